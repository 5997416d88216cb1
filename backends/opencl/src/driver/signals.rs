//! Protects the process's signal handlers from the compilers in drivers.
//!
//! LLVM, which PoCL and other drivers compile with, replaces the handlers of signals that end a
//! process as soon as it has a temporary file to clean up, and never restores them: from then on
//! Ctrl-C kills a program that has a handler of its own. This happens when a driver is initialised,
//! when a program is built, and at the first launch, on a thread of the driver's.

/// The handlers of termination signals at some point in time.
pub(crate) struct SignalHandlers {
    #[cfg(unix)]
    actions: [libc::sigaction; TERMINATION_SIGNALS.len()],
}

/// Signals that ask a process to end.
#[cfg(unix)]
const TERMINATION_SIGNALS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

#[cfg(unix)]
impl SignalHandlers {
    /// Captures the current handlers.
    pub fn capture() -> SignalHandlers {
        SignalHandlers { actions: TERMINATION_SIGNALS.map(current_action) }
    }

    /// Restores the captured handlers.
    pub fn restore(&self) {
        for (signal, action) in TERMINATION_SIGNALS.into_iter().zip(&self.actions) {
            if current_action(signal).sa_sigaction != action.sa_sigaction {
                // SAFETY: the system has returned this action for the signal. Its handler is the
                // program's.
                unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
            }
        }
    }
}

impl SignalHandlers {
    /// Captures the current handlers, and restores them when the result is dropped.
    pub fn restore_on_drop() -> impl Drop {
        struct Guard(SignalHandlers);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.restore();
            }
        }
        Guard(SignalHandlers::capture())
    }
}

#[cfg(unix)]
fn current_action(signal: i32) -> libc::sigaction {
    // SAFETY: plain data, for which zeros are valid.
    let mut action = unsafe { std::mem::zeroed() };
    // SAFETY: only queries the action; the pointer outlives the call.
    unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    action
}

#[cfg(not(unix))]
impl SignalHandlers {
    pub fn capture() -> SignalHandlers {
        SignalHandlers {}
    }

    pub fn restore(&self) {}
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    extern "C" fn other_handler(_: i32) {}

    #[test]
    fn replaced_handlers_are_restored() {
        let handlers = SignalHandlers::capture();
        let before = current_action(libc::SIGHUP).sa_sigaction;
        let mut other = current_action(libc::SIGHUP);
        other.sa_sigaction = other_handler as *const () as usize;
        // SAFETY: the handler does nothing, and is replaced below.
        unsafe { libc::sigaction(libc::SIGHUP, &other, std::ptr::null_mut()) };
        assert_ne!(current_action(libc::SIGHUP).sa_sigaction, before);
        handlers.restore();
        assert_eq!(current_action(libc::SIGHUP).sa_sigaction, before);
    }
}
