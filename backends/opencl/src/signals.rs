//! What a process does when it is told to end, kept from drivers' compilers.
//!
//! LLVM, which PoCL and others compile with, takes over the signals that end a process as soon as it has a temporary
//! file to clean up, and never gives them back: from then on Ctrl-C kills a program that had its own way of ending.
//! It does so when it is set up, when a program is built, and at the first launch, on a thread of the driver's.

/// What was done on a signal before a driver was called.
pub(crate) struct Signals {
    #[cfg(unix)]
    before: [libc::sigaction; ENDS.len()],
}

/// Signals that ask a process to end.
#[cfg(unix)]
const ENDS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

#[cfg(unix)]
impl Signals {
    /// Takes down what is done now.
    pub fn now() -> Signals {
        Signals { before: ENDS.map(action) }
    }

    /// Sees to it that the same is done again.
    pub fn restore(&self) {
        for (signal, before) in ENDS.into_iter().zip(&self.before) {
            if action(signal).sa_sigaction != before.sa_sigaction {
                // SAFETY: what the system itself gave for this signal before. Its handler is the program's own.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
            }
        }
    }
}

impl Signals {
    /// Puts back what was done until now when this is dropped.
    pub fn guard() -> impl Drop {
        struct Guard(Signals);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.restore();
            }
        }
        Guard(Signals::now())
    }
}

#[cfg(unix)]
fn action(signal: i32) -> libc::sigaction {
    // SAFETY: plain data, for which zeros are a value.
    let mut action = unsafe { std::mem::zeroed() };
    // SAFETY: only asked for, and there is room for the answer.
    unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
    action
}

#[cfg(not(unix))]
impl Signals {
    pub fn now() -> Signals {
        Signals {}
    }

    pub fn restore(&self) {}
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    extern "C" fn driver_s_own(_: i32) {}

    #[test]
    fn what_a_driver_has_changed_is_put_back() {
        let signals = Signals::now();
        let before = action(libc::SIGHUP).sa_sigaction;
        let mut other = action(libc::SIGHUP);
        other.sa_sigaction = driver_s_own as *const () as usize;
        // SAFETY: a handler that does nothing, for a moment.
        unsafe { libc::sigaction(libc::SIGHUP, &other, std::ptr::null_mut()) };
        assert_ne!(action(libc::SIGHUP).sa_sigaction, before);
        signals.restore();
        assert_eq!(action(libc::SIGHUP).sa_sigaction, before);
    }
}
