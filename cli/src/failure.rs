//! How a command can end other than well, and the exit codes.

use std::io;
use std::process::ExitCode;

use codespan_reporting::term::termcolor::StandardStream;
use portcullis::device::DeviceError;
use portcullis::diagnostics::Diagnostics;
use portcullis::packet_io::SinkError;

use super::out;

/// The filter or the input is wrong, or a device failed.
pub const WRONG: u8 = 1;
/// The arguments are wrong; clap uses the same number.
pub const USAGE: u8 = 2;
/// Ctrl-C: 128 + SIGINT, as shells have it.
pub const INTERRUPTED: u8 = 130;
/// Nobody reads standard output: 128 + SIGPIPE, which ends other programs there.
pub const CLOSED_PIPE: u8 = 141;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// The filter, the input or a device is at fault; the text says what and where.
    Wrong(String),
    /// The filter does not compile.
    Filter(Box<Diagnostics>),
    /// The arguments contradict each other or the world.
    Usage(String),
    /// What had to be said has been said: only the exit code is left.
    Silent(u8),
    /// Nobody reads what we write: a quiet end, as of any program in a pipe.
    ClosedPipe,
}

impl Failure {
    /// Says it on standard error, and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Wrong(text) => {
                out::error(&text);
                ExitCode::from(WRONG)
            }
            Failure::Filter(diagnostics) => {
                // Where standard error is gone, the exit code still tells.
                let _ = diagnostics.emit(&mut StandardStream::stderr(out::color(&io::stderr())));
                ExitCode::from(code(&diagnostics))
            }
            Failure::Usage(text) => {
                out::error(&text);
                ExitCode::from(USAGE)
            }
            Failure::Silent(code) => ExitCode::from(code),
            Failure::ClosedPipe => ExitCode::from(CLOSED_PIPE),
        }
    }
}

/// A filter that is wrong only in what it was given on the command line was used wrongly.
pub fn code(diagnostics: &Diagnostics) -> u8 {
    if diagnostics.errors.iter().all(|error| error.parameter.is_some()) { USAGE } else { WRONG }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostics: Diagnostics) -> Failure {
        Failure::Filter(Box::new(diagnostics))
    }
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Failure {
        if error.is_broken_pipe() { Failure::ClosedPipe } else { Failure::Wrong(error.to_string()) }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        match error {
            // Whoever pressed Ctrl-C has been told.
            DeviceError::Cancelled => Failure::Silent(INTERRUPTED),
            error => Failure::Wrong(error.to_string()),
        }
    }
}
