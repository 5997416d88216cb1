//! Compilation in the background: a session starts filtering with scalar code at once, while code
//! that pays only for many packets is still being compiled.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::compiler_stack::COMPILER_STACK_BYTES;

/// Time spent filtering, all threads together, after which compilation starts, in nanoseconds:
/// about as long as it takes.
const START_AFTER_NANOS: u64 = 2_000_000;

/// Polled by a running task between its steps; false once its result is no longer wanted.
pub(crate) type KeepGoing<'a> = &'a dyn Fn() -> bool;

type Task<T> = Box<dyn FnOnce(KeepGoing<'_>) -> Option<T> + Send>;

/// A value computed at most once, on a thread of its own.
pub(crate) struct BackgroundCell<T> {
    /// Taken when the task is started or cancelled.
    task: Mutex<Option<Task<T>>>,
    /// Set when the task ends; `None` if it failed or was cancelled.
    result: OnceLock<Option<T>>,
    cancelled: AtomicBool,
    /// Whether a caller has started the task, or has asked another thread to.
    is_started: AtomicBool,
    is_requested: AtomicBool,
    /// Time spent filtering so far, in nanoseconds, up to about [`START_AFTER_NANOS`].
    filtering_nanos: AtomicU64,
}

impl<T: Send + Sync + 'static> BackgroundCell<T> {
    /// Creates a cell that will compute its value with `task`.
    pub fn new(task: impl FnOnce(KeepGoing<'_>) -> Option<T> + Send + 'static) -> Arc<BackgroundCell<T>> {
        Arc::new(BackgroundCell {
            task: Mutex::new(Some(Box::new(task))),
            result: OnceLock::new(),
            cancelled: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            is_requested: AtomicBool::new(false),
            filtering_nanos: AtomicU64::new(0),
        })
    }

    /// Returns the value once it has been computed.
    pub fn get(&self) -> Option<&T> {
        self.result.get()?.as_ref()
    }

    /// Records time spent filtering. Returns true from when the total reaches
    /// [`START_AFTER_NANOS`] until a caller calls [`start`](BackgroundCell::start).
    pub fn record_filtering(&self, time: Duration) -> bool {
        if self.is_started.load(Ordering::Relaxed) {
            return false;
        }
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(START_AFTER_NANOS);
        let before = self.filtering_nanos.load(Ordering::Relaxed);
        if before < START_AFTER_NANOS {
            self.filtering_nanos.fetch_add(time, Ordering::Relaxed);
        }
        before + time >= START_AFTER_NANOS
    }

    /// Returns true once: the caller should then ask another thread to start the task.
    pub fn should_request_start(&self) -> bool {
        !self.is_requested.swap(true, Ordering::Relaxed)
    }

    /// Starts the task on a thread of its own, unless it has been started or cancelled.
    pub fn start(self: &Arc<Self>) {
        self.is_started.store(true, Ordering::Relaxed);
        let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let cell = self.clone();
        let work = move || {
            let keep_going = || !cell.cancelled.load(Ordering::Relaxed);
            // A bug in the task must not stop a filter that runs without its result.
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| task(&keep_going)));
            let _ = cell.result.set(result.unwrap_or_default().filter(|_| keep_going()));
        };
        let thread = std::thread::Builder::new().name("portcullis-late".into()).stack_size(COMPILER_STACK_BYTES);
        // Never joined: the thread owns everything that it works with.
        if thread.spawn(work).is_err() {
            let _ = self.result.set(None);
        }
    }

    /// Starts the task if necessary, and blocks until it has ended.
    pub fn wait(self: &Arc<Self>) {
        self.filtering_nanos.store(START_AFTER_NANOS, Ordering::Relaxed);
        self.start();
        self.result.wait();
    }

    /// Drops the task, or tells it to stop if it is running, without waiting for it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let not_started = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(not_started);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_is_started_by_enough_filtering_and_computed_once() {
        let cell = BackgroundCell::new(|_| Some(7));
        let quarter = Duration::from_nanos(START_AFTER_NANOS / 4);
        let due: Vec<bool> = (0..8).map(|_| cell.record_filtering(quarter)).collect();
        assert_eq!(due, [false, false, false, true, true, true, true, true]);
        assert_eq!(cell.get(), None);
        cell.start();
        assert!(!cell.record_filtering(quarter));
        cell.start();
        cell.wait();
        assert_eq!(cell.get(), Some(&7));
    }

    #[test]
    fn a_task_that_fails_or_panics_leaves_no_value() {
        let cell = BackgroundCell::<u32>::new(|_| panic!("a panic of this test's making"));
        cell.wait();
        assert_eq!(cell.get(), None);
        let cell = BackgroundCell::<u32>::new(|_| None);
        cell.wait();
        assert_eq!(cell.get(), None);
    }

    #[test]
    fn cancelling_a_running_task_does_not_wait_for_it() {
        let ((report, reports), (resume, resumed)) = (mpsc::channel(), mpsc::channel());
        let cell = BackgroundCell::new(move |keep_going| {
            report.send(keep_going()).unwrap();
            resumed.recv().unwrap();
            report.send(keep_going()).unwrap();
            Some(7)
        });
        cell.start();
        assert!(reports.recv().unwrap());
        cell.cancel();
        resume.send(()).unwrap();
        assert!(!reports.recv().unwrap());
        cell.result.wait();
        assert_eq!(cell.get(), None);
    }

    #[test]
    fn a_cancelled_task_is_never_started() {
        let cell = BackgroundCell::<u32>::new(|_| unreachable!("it was cancelled"));
        cell.cancel();
        cell.start();
        assert_eq!(cell.get(), None);
    }
}
