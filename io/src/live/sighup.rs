//! SIGHUP of a process that was started to survive it (`nohup`).
#![allow(unsafe_code)]

use std::ptr;

/// Has something installed that takes all signals which end programs; where SIGHUP was ignored before, it is ignored again behind.
pub fn keep_sighup_ignored(install: impl FnOnce()) {
    // SAFETY: a `sigaction` is numbers, for all of which 0 will do.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and what is there is written to a `sigaction` that is there during the call.
    let is_known = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), &raw mut before) } == 0;
    install();
    if is_known && before.sa_sigaction == libc::SIG_IGN {
        // SAFETY: no code of ours is called by a signal that is ignored.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
}
