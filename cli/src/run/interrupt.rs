//! Ctrl-C: the first one ends the run in order, the second one immediately.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use portcullis::device::CancelToken;

use crate::failure::INTERRUPTED;
#[cfg(unix)]
use crate::run::ignored_signals::keep_ignored;
use crate::{exit, out};

/// Time after which a pending end is announced.
const ANNOUNCE_DELAY: Duration = Duration::from_millis(200);

/// Time that batches in flight have to complete after the announcement.
const ABANDON_DELAY: Duration = Duration::from_millis(1300);

/// State that an interrupt sets.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    /// Cancelled to read no more packets; batches in flight complete.
    pub stop: CancelToken,
    /// Cancelled to abandon the batches in flight as well.
    pub give_up: CancelToken,
    begun: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Interrupt {
    /// Handles Ctrl-C, SIGTERM and SIGHUP from now on. Those that are ignored, as by `nohup`, stay
    /// ignored.
    pub fn listen(&self) {
        // ctrlc runs the handler on a thread of its own.
        #[cfg(unix)]
        keep_ignored(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP], || _ = ctrlc::set_handler(self.handler()));
        #[cfg(not(unix))]
        let _ = ctrlc::set_handler(self.handler());
    }

    /// Listens for interrupts even if the signal was ignored at start: shells ignore Ctrl-C for
    /// background jobs, and a live run has no other way to end in order. SIGHUP that `nohup`
    /// ignores stays ignored.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn listen_always(&self) {
        keep_ignored(&[libc::SIGHUP], || _ = ctrlc::set_handler(self.handler()));
    }

    fn handler(&self) -> impl FnMut() + 'static + Send + use<> {
        let Interrupt { stop, give_up, begun, ended } = self.clone();
        let count = AtomicU32::new(0);
        move || {
            if count.fetch_add(1, Ordering::Relaxed) > 0 {
                #[cfg(all(target_os = "linux", feature = "live"))]
                out::live::clear_table();
                exit::immediately(INTERRUPTED);
            }
            stop.cancel();
            let (give_up, begun, ended) = (give_up.clone(), begun.clone(), ended.clone());
            std::thread::spawn(move || {
                // On another thread: standard error may block, and the handler must not.
                std::thread::sleep(ANNOUNCE_DELAY);
                if !begun.load(Ordering::Relaxed) {
                    #[cfg(all(target_os = "linux", feature = "live"))]
                    out::live::clear_table();
                    exit::immediately(INTERRUPTED);
                }
                if !ended.load(Ordering::Relaxed) {
                    out::note("interrupted: finishing the batches in flight (again: end at once)");
                }
                std::thread::sleep(ABANDON_DELAY);
                give_up.cancel();
            });
        }
    }

    /// Declares that there is work to finish in order. Before, an interrupt ends the program after
    /// [`ANNOUNCE_DELAY`], which leaves a run that is just starting the time to begin and end in
    /// order.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Declares that all work is finished, so that a late interrupt is not announced after the
    /// totals.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
