//! Preserving an ignored SIGHUP, as set up by `nohup`.
#![allow(unsafe_code)]

use std::ptr;

/// Runs `install`, which installs handlers for the terminating signals, and then ignores SIGHUP
/// again if it was ignored before.
pub fn keep_sighup_ignored(install: impl FnOnce()) {
    // SAFETY: `sigaction` is plain integers and an optional function pointer, for which zeros are
    // valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: with a null new action the call only writes the current one to `before`.
    let is_known = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), &raw mut before) } == 0;
    install();
    if is_known && before.sa_sigaction == libc::SIG_IGN {
        // SAFETY: an ignored signal runs no code of this process.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
}
