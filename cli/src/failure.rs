//! Failures of commands, and the exit codes of the program.

use portcullis::device::DeviceError;
use portcullis::diagnostics::Diagnostics;
use portcullis::packet_io::SinkError;

/// Exit code: the filter or the input is wrong, or a device failed.
pub const FAILED: u8 = 1;
/// Exit code: the arguments are wrong. clap uses the same number.
pub const USAGE: u8 = 2;
/// Exit code after Ctrl-C: 128 + SIGINT, as in shells.
pub const INTERRUPTED: u8 = 130;
/// Exit code after the reader closed the pipe: 128 + SIGPIPE, as if the signal had ended the
/// program.
pub const CLOSED_PIPE: u8 = 141;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The filter, the input or a device is at fault; the text names it and the cause.
    Error(String),
    /// The filter does not compile.
    Filter(Box<Diagnostics>),
    /// The arguments contradict each other, or do not apply to the filter or the system.
    Usage(String),
    /// The error has been reported; only the exit code is left.
    Silent(u8),
    /// The reader of standard output closed the pipe, which ends the program silently.
    ClosedPipe,
}

/// Returns the exit code for diagnostics: [`USAGE`] if all are about parameters given on the
/// command line.
pub fn code(diagnostics: &Diagnostics) -> u8 {
    if diagnostics.errors.iter().all(|error| error.parameter.is_some()) { USAGE } else { FAILED }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostics: Diagnostics) -> Failure {
        Failure::Filter(Box::new(diagnostics))
    }
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Failure {
        if error.is_broken_pipe() { Failure::ClosedPipe } else { Failure::Error(error.to_string()) }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        match error {
            // The interrupt handler has reported it.
            DeviceError::Cancelled => Failure::Silent(INTERRUPTED),
            error => Failure::Error(error.to_string()),
        }
    }
}
