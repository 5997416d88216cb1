//! The [`Sink`] trait, its errors, and comparing the paths of sinks.

use std::io;
use std::path::{Path, PathBuf};

use portcullis_core::packet::Batch;
use portcullis_core::reason;

use crate::reason::create_error_reason;

/// Totals of a finished sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Packets written.
    pub packets: u64,
    /// Captured bytes of the packets, without the format's headers.
    pub bytes: u64,
}

/// A destination for packets.
pub trait Sink: Send {
    /// Writes the packets `indices` of `batch`, in this order and with their present contents.
    ///
    /// # Errors
    /// See [`SinkError`]; the sink is unusable after an error.
    ///
    /// # Panics
    /// If an index is out of range.
    fn write(&mut self, batch: &Batch, indices: &[u32]) -> Result<(), SinkError>;

    /// Flushes and closes the sink. A sink dropped without this may lose packets.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn finish(self: Box<Self>) -> Result<Written, SinkError>;
}

/// Why packets could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The file or directory cannot be created.
    #[error("{name}: cannot be created: {}", create_error_reason(Path::new(.name), .error))]
    Create {
        /// The file or directory.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Writing failed, for example because the disk is full or the reader of a pipe is gone.
    #[error("{name}: writing failed: {}", reason(.error))]
    Write {
        /// The file.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Writing a regular file failed; it ends after its last whole packet.
    #[error("{name}: writing failed: {}; packets in the file: {packets}", reason(.error))]
    Incomplete {
        /// The file.
        name: String,
        /// Number of packets in the file, the first of those that were to be written to it.
        packets: u64,
        /// The system's error.
        error: io::Error,
    },
}

impl SinkError {
    /// Whether the reader closed the pipe (EPIPE), which commands end on silently.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            SinkError::Create { error, .. } | SinkError::Write { error, .. } | SinkError::Incomplete { error, .. } => {
                error.kind() == io::ErrorKind::BrokenPipe
            }
        }
    }
}

/// Whether both paths name one existing file, so that creating the second would truncate the first.
pub fn same_file(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Devices (/dev/null, terminals) may be input and output at once.
        matches!((one.metadata(), other.metadata()), (Ok(a), Ok(b))
            if a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
    #[cfg(not(unix))]
    {
        matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b && a.is_file())
    }
}

/// Whether two output paths have the same destination; `/dev/null` may be shared.
pub fn same_destination(one: &Path, other: &Path) -> bool {
    same_file(one, other)
        || (resolved_path(one) == resolved_path(other) && resolved_path(other) != Path::new("/dev/null"))
}

/// Resolves a path to the file it names, following symbolic links, whether or not that file exists
/// yet.
pub fn resolved_path(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // Linux follows at most 40 links (`MAXSYMLINKS`).
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
