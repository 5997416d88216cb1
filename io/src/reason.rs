//! Explanations of why a file or directory cannot be created.

use std::io::{self, ErrorKind};
use std::path::Path;

use portcullis_core::reason;

/// Like [`reason`], for a file or directory that could not be created at `path`. Names the missing
/// parent directory or the existing file, which the system's error text leaves open.
pub fn create_error_reason(path: &Path, error: &io::Error) -> String {
    match path.parent() {
        Some(folder) if error.kind() == ErrorKind::NotFound && !folder.as_os_str().is_empty() && !folder.exists() => {
            format!("there is no folder {}; create it first", folder.display())
        }
        _ if error.kind() == ErrorKind::AlreadyExists => {
            if path.exists() { "it is a file, not a folder" } else { "it is a link that leads nowhere" }.into()
        }
        _ => reason(error),
    }
}
