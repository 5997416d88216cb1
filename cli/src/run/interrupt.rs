//! Ctrl-C: the first time an orderly end, the second time an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use portcullis::device::CancelToken;
#[cfg(all(target_os = "linux", feature = "live"))]
use portcullis::io::live::sighup::keep_sighup_ignored;

use crate::failure::INTERRUPTED;
use crate::out;

/// An end that takes no longer than this needs no announcement.
const AT_ONCE: Duration = Duration::from_millis(200);

/// How long batches in flight may take to come home after that.
const GRACE: Duration = Duration::from_millis(1300);

/// What a Ctrl-C sets.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    /// Read no more; what is in flight comes home.
    pub stop: CancelToken,
    /// Give up what is in flight too.
    pub give_up: CancelToken,
    begun: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens for Ctrl-C (and the other ways in which a system asks a program to end). Until then,
    /// and where it cannot, or one of them is ignored as by `nohup`, they do what they always do.
    pub fn listen(&self) {
        // The handler runs on a thread of its own.
        let _ = ctrlc::try_set_handler(self.handler());
    }

    /// Listens for interrupts even if the signal was ignored at start: shells ignore Ctrl-C for
    /// background jobs, and a live run has no other way to end in order. SIGHUP that `nohup`
    /// ignores stays ignored.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn listen_always(&self) {
        keep_sighup_ignored(|| _ = ctrlc::set_handler(self.handler()));
    }

    fn handler(&self) -> impl FnMut() + 'static + Send + use<> {
        let Interrupt { stop, give_up, begun, ended } = self.clone();
        let count = AtomicU32::new(0);
        move || {
            if count.fetch_add(1, Ordering::Relaxed) > 0 {
                #[cfg(all(target_os = "linux", feature = "live"))]
                out::live::leave();
                std::process::exit(INTERRUPTED.into());
            }
            stop.cancel();
            let (give_up, begun, ended) = (give_up.clone(), begun.clone(), ended.clone());
            std::thread::spawn(move || {
                // Here, since nobody may be reading standard error, and the handler must not wait.
                std::thread::sleep(AT_ONCE);
                if !begun.load(Ordering::Relaxed) {
                    #[cfg(all(target_os = "linux", feature = "live"))]
                    out::live::leave();
                    std::process::exit(INTERRUPTED.into());
                }
                if !ended.load(Ordering::Relaxed) {
                    out::note("interrupted: finishing what is under way (again: end at once)");
                }
                std::thread::sleep(GRACE);
                give_up.cancel();
            });
        }
    }

    /// From now on there is something to finish. Until then a Ctrl-C ends the program, soon enough
    /// for whoever waits, and late enough for what is about to begin and stop in order.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// From now on there is nothing under way any more, and a Ctrl-C before this is not told of
    /// behind the totals.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
