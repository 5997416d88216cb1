//! What every sink looks like.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use portcullis_core::packet::Batch;
use portcullis_core::reason;

use crate::capture::{CaptureKind, CaptureSink};
use crate::reason::create_error_reason;
use crate::source::CaptureFormat;

/// What a sink has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Packets.
    pub packets: u64,
    /// Their captured bytes, without what the format adds.
    pub bytes: u64,
}

/// Where packets go.
pub trait Sink: Send {
    /// Takes the packets `indices` of `batch`, in this order, as they are now.
    ///
    /// # Errors
    /// See [`SinkError`]; the sink is of no more use then.
    ///
    /// # Panics
    /// When the batch has no such packet.
    fn write(&mut self, batch: &Batch, indices: &[u32]) -> Result<(), SinkError>;

    /// Brings everything to where it belongs. A sink that is dropped without may lose packets.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn finish(self: Box<Self>) -> Result<Written, SinkError>;
}

/// Why packets could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The file or directory cannot be made.
    #[error("{name}: cannot be created: {}", create_error_reason(Path::new(.name), .error))]
    Create {
        /// The file or directory.
        name: String,
        /// The system's.
        error: io::Error,
    },
    /// Writing failed: the disk is full, the reader of a pipe is gone.
    #[error("{name}: writing failed: {}", reason(.error))]
    Write {
        /// The file.
        name: String,
        /// The system's.
        error: io::Error,
    },
}

impl SinkError {
    /// Whether the reader of a pipe went away, which is no fault worth a message.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            SinkError::Create { error, .. } | SinkError::Write { error, .. } => {
                error.kind() == io::ErrorKind::BrokenPipe
            }
        }
    }
}

/// Creates the capture file `path`, over one that is there: pcapng when its name ends so, else
/// classic pcap with the resolution of `format`. `-` is classic pcap on standard output.
///
/// The file is there from now on, even if no packet comes. Mind [`same_file`].
///
/// # Errors
/// See [`SinkError`].
pub fn create(path: &str, format: &CaptureFormat) -> Result<Box<dyn Sink>, SinkError> {
    if path == "-" {
        return Ok(Box::new(CaptureSink::new("stdout", standard_output()?, CaptureKind::Pcap, format)?.live()));
    }
    Ok(Box::new(CaptureSink::create(Path::new(path), format)?))
}

/// Standard output without the line buffer that [`io::stdout`] puts every byte through.
fn standard_output() -> Result<Box<dyn Write + Send>, SinkError> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let descriptor = io::stdout().as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(|error| SinkError::Create { name: "stdout".into(), error })?;
        Ok(Box::new(std::fs::File::from(descriptor)))
    }
    #[cfg(not(unix))]
    Ok(Box::new(io::stdout()))
}

/// Whether both paths lead to one file that exists: creating the second would wipe out the first.
pub fn same_file(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Devices (/dev/null, terminals) may be both input and output.
        matches!((one.metadata(), other.metadata()), (Ok(a), Ok(b))
            if a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
    #[cfg(not(unix))]
    {
        matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b && a.is_file())
    }
}

/// Whether two outputs would write to the same place, which only `/dev/null` does not mind.
pub fn same_destination(one: &Path, other: &Path) -> bool {
    same_file(one, other)
        || (resolved_path(one) == resolved_path(other) && resolved_path(other) != Path::new("/dev/null"))
}

/// Where a path leads, also when nothing is there yet.
pub fn resolved_path(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many links as Linux follows.
    for _ in 0..40 {
        if let Ok(real) = path.canonicalize() {
            return real;
        }
        let Ok(target) = path.read_link() else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (parent.canonicalize(), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path,
    }
}
