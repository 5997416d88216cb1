//! The end of the process, which threads of drivers may outlive.
#![allow(unsafe_code)]

use std::process::ExitCode;

/// Ends `main` with an exit code.
pub fn from_main(code: u8) -> ExitCode {
    if portcullis::device::has_abandoned_work() {
        at_once(code);
    }
    code.into()
}

/// Ends the process without the handlers of `exit`, which destroy objects that drivers' threads may
/// be using.
pub fn at_once(code: u8) -> ! {
    // SAFETY: ends the process, without running any code of it.
    #[cfg(unix)]
    unsafe {
        libc::_exit(code.into())
    }
    #[cfg(not(unix))]
    std::process::exit(code.into())
}
