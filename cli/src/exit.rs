//! Ends the process, without the handlers of `exit` while threads of drivers use what they destroy.
#![allow(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use portcullis::device::has_abandoned_work;

/// Time that drivers have to finish their work.
const GRACE_PERIOD: Duration = Duration::from_millis(200);

/// Ends `main` with an exit code.
pub fn finish(code: u8) -> ExitCode {
    let begun = Instant::now();
    while has_abandoned_work() {
        if begun.elapsed() > GRACE_PERIOD {
            immediately(code);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    code.into()
}

/// Ends the process whatever its threads are doing.
pub fn immediately(code: u8) -> ! {
    // SAFETY: ends the process, without running any code of it.
    #[cfg(unix)]
    unsafe {
        libc::_exit(code.into())
    }
    #[cfg(not(unix))]
    std::process::exit(code.into())
}
