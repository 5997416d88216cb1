//! The library's error type.

use std::path::PathBuf;

use portcullis_core::device::{DeviceError, OpenError, UpdateError};
use portcullis_core::diagnostics::Diagnostics;
use portcullis_core::packet::ArenaError;
use portcullis_io::{SinkError, SourceError};

use crate::pipeline::PipelineError;

/// Any error that [`Filter`](crate::Filter), [`Run`](crate::Run), [`Device`](crate::Device) and
/// [`Pipeline`](crate::Pipeline) return. Its `Display` is the message that the command line prints.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The filter does not compile. [`Diagnostics::render`] shows each error with its place.
    #[error(transparent)]
    Compile(#[from] Diagnostics),
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The name of a filter file does not imply a language.
    #[error("cannot tell the language of {path}: names of filters end in .wgsl, .cl, .bpf or .o", path = path.display())]
    UnknownLanguage {
        /// The file.
        path: PathBuf,
    },
    /// No stock filter has this name.
    #[error("no stock filter is called `{0}`")]
    UnknownStockFilter(String),
    /// A parameter that no filter can have.
    #[error("cannot set the parameter `{name}` to `{value}`: {reason}")]
    Parameter {
        /// The parameter's name.
        name: String,
        /// The value, as given.
        value: String,
        /// Why no filter can have it.
        reason: &'static str,
    },
    /// The device is missing, or failed while it loaded or ran the filter.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The packets do not fit into a batch.
    #[error(transparent)]
    Packets(#[from] ArenaError),
    /// The filter has no such map, or its rows have other types.
    #[error(transparent)]
    OpenMap(#[from] OpenError),
    /// A map cannot be changed as asked; it is as it was.
    #[error(transparent)]
    UpdateMap(#[from] UpdateError),
    /// A run over a capture ended early: its source, the device or an output failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A live run ended early: a lane, or the device, failed.
    #[cfg(all(target_os = "linux", feature = "live"))]
    #[error(transparent)]
    Live(#[from] crate::pipeline::live::LaneError),
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Error {
        Error::Pipeline(error.into())
    }
}

impl From<SinkError> for Error {
    fn from(error: SinkError) -> Error {
        Error::Pipeline(error.into())
    }
}
