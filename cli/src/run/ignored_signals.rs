//! Preserving ignored signals: SIGHUP as set up by `nohup`, SIGINT as shells set it up for
//! background jobs.
#![allow(unsafe_code)]

use std::ptr;

use libc::c_int;

/// Runs `install`, which installs handlers for the terminating signals, and then ignores those of
/// `signals` again that were ignored before.
pub fn keep_ignored(signals: &[c_int], install: impl FnOnce()) {
    let is_ignored = |signal: &c_int| {
        // SAFETY: `sigaction` is plain integers and an optional function pointer, for which zeros
        // are valid.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: with a null new action the call only writes the current one to `before`.
        let is_known = unsafe { libc::sigaction(*signal, ptr::null(), &raw mut before) } == 0;
        is_known && before.sa_sigaction == libc::SIG_IGN
    };
    let ignored: Vec<c_int> = signals.iter().copied().filter(is_ignored).collect();
    install();
    for signal in ignored {
        // SAFETY: an ignored signal runs no code of this process.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
