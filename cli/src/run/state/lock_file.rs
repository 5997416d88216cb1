//! Locks for files that do not exist yet, or that are replaced while they are locked.
//!
//! A lock on the file itself would be lost with each replacement, and is impossible before the
//! first. So the lock is on an empty companion, `.NAME.lock` in the same folder, which is removed
//! at the end. A companion left by a killed run is not locked, and the next run takes it over.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Maximum number of times to start over if other runs remove the companion meanwhile.
const MAX_ATTEMPTS: u32 = 100;

/// The lock, held until it is dropped.
pub struct LockFile {
    path: PathBuf,
    _file: File,
}

impl LockFile {
    /// Locks a [`companion`]. Returns `None` if another process has locked it.
    ///
    /// # Errors
    /// The companion cannot be created.
    pub fn acquire(path: PathBuf) -> io::Result<Option<LockFile>> {
        let mut result = Ok(None);
        for _ in 0..MAX_ATTEMPTS {
            let file = match open(&path) {
                // Another run removed it after this one found that it exists.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    result = Err(error);
                    continue;
                }
                opened => opened?,
            };
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Some file systems have no locks; there the user has to keep runs apart.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            // The previous owner may have removed the companion between `open` and `try_lock`.
            if is_at(&file, &path) {
                return Ok(Some(LockFile { path, _file: file }));
            }
        }
        result
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Before the lock is released, so that no other run holds the file that is removed here.
        let _ = fs::remove_file(&self.path);
    }
}

/// The companion of a file whose path is resolved.
pub fn companion(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".lock");
    path.with_file_name(name)
}

/// Creates the companion, or opens the one that exists; reading suffices to lock it.
fn open(path: &Path) -> io::Result<File> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => File::open(path),
        created => created,
    }
}

/// Whether an open file is still the one at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        matches!((file.metadata(), path.metadata()), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}
