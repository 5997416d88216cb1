//! Code that is made while a session filters already: loading a filter does not wait for what only many packets pay for.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Filtering for so long makes it worth while, all threads together: about what making it takes.
const WORTH_MAKING: u64 = 2_000_000;

/// Whether what is being made is still wanted.
pub(crate) type Wanted<'a> = &'a dyn Fn() -> bool;

type Make<T> = Box<dyn FnOnce(Wanted<'_>) -> Option<T> + Send>;

/// Something that is made on a thread of its own, once, or not at all.
pub(crate) struct Late<T> {
    make: Mutex<Option<Make<T>>>,
    /// What came of it: nothing, where it failed or nobody wants it.
    made: OnceLock<Option<T>>,
    unwanted: AtomicBool,
    /// Nanoseconds spent without.
    filtered: AtomicU64,
}

impl<T: Send + Sync + 'static> Late<T> {
    /// By this function, when its time has come. It asks now and then whether it is to go on.
    pub fn new(make: impl FnOnce(Wanted<'_>) -> Option<T> + Send + 'static) -> Arc<Late<T>> {
        Arc::new(Late {
            make: Mutex::new(Some(Box::new(make))),
            made: OnceLock::new(),
            unwanted: AtomicBool::new(false),
            filtered: AtomicU64::new(0),
        })
    }

    /// What was made, once it was.
    pub fn get(&self) -> Option<&T> {
        self.made.get()?.as_ref()
    }

    /// Takes note of time spent filtering, and says once whether it is enough to begin.
    pub fn filtered(&self, time: Duration) -> bool {
        if self.filtered.load(Ordering::Relaxed) >= WORTH_MAKING {
            return false;
        }
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(WORTH_MAKING);
        let before = self.filtered.fetch_add(time, Ordering::Relaxed);
        before < WORTH_MAKING && before + time >= WORTH_MAKING
    }

    /// Begins, unless somebody has.
    pub fn begin(self: &Arc<Self>) {
        let Some(make) = self.make.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let late = self.clone();
        let work = move || {
            let wanted = || !late.unwanted.load(Ordering::Relaxed);
            // A fault in there is no reason to stop a filter that runs without.
            let made = std::panic::catch_unwind(AssertUnwindSafe(|| make(&wanted)));
            let _ = late.made.set(made.unwrap_or_default().filter(|_| wanted()));
        };
        let thread = std::thread::Builder::new().name("portcullis-late".into()).stack_size(crate::COMPILER_STACK);
        // Nobody waits for it: what it works with is its own.
        if thread.spawn(work).is_err() {
            let _ = self.made.set(None);
        }
    }

    /// Begins where nobody has, and waits until it is there, or is known not to come.
    pub fn wait(self: &Arc<Self>) {
        self.filtered.store(WORTH_MAKING, Ordering::Relaxed);
        self.begin();
        self.made.wait();
    }

    /// Nobody wants it any more. What is under way ends soon, and is waited for by nobody.
    pub fn forget(&self) {
        self.unwanted.store(true, Ordering::Relaxed);
        let never_begun = self.make.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(never_begun);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_is_made_when_enough_was_filtered_and_once() {
        let late = Late::new(|_| Some(7));
        let some = Duration::from_nanos(WORTH_MAKING / 4);
        let told: Vec<bool> = (0..8).map(|_| late.filtered(some)).collect();
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
        assert!(told[3], "{told:?}");
        assert_eq!(late.get(), None);
        late.begin();
        late.begin();
        late.wait();
        assert_eq!(late.get(), Some(&7));
    }

    #[test]
    fn what_fails_is_nothing() {
        let late = Late::<u32>::new(|_| panic!("a fault, made for this test"));
        late.wait();
        assert_eq!(late.get(), None);
        let late = Late::<u32>::new(|_| None);
        late.wait();
        assert_eq!(late.get(), None);
    }

    #[test]
    fn whoever_forgets_it_does_not_wait() {
        let ((begun, wait_begun), (go_on, wait_go_on)) = (mpsc::channel(), mpsc::channel());
        let late = Late::new(move |wanted| {
            begun.send(wanted()).unwrap();
            wait_go_on.recv().unwrap();
            begun.send(wanted()).unwrap();
            Some(7)
        });
        late.begin();
        assert!(wait_begun.recv().unwrap());
        late.forget();
        go_on.send(()).unwrap();
        assert!(!wait_begun.recv().unwrap());
        late.made.wait();
        assert_eq!(late.get(), None);
    }

    #[test]
    fn what_is_forgotten_is_never_begun() {
        let late = Late::<u32>::new(|_| unreachable!("nobody wants it"));
        late.forget();
        late.begin();
        assert_eq!(late.get(), None);
    }
}
