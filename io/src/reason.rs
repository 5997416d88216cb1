//! What is said of files and folders that cannot be made.

use std::io::{self, ErrorKind};
use std::path::Path;

use portcullis_core::reason;

/// As [`reason`], of a file or folder that could not be made at `path`: what is missing then is
/// another.
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
