//! Atomic replacement of files: the content is written to a temporary file in the same folder,
//! which is then renamed.
//!
//! The process that writes a temporary file holds a lock on it. A file left by a killed process is
//! not locked, and the next process that writes to the folder removes it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use portcullis::packet_io::{SinkError, resolved_path};

/// Standard output, or a file to be created or replaced.
pub enum Destination {
    Stdout,
    File(Replacement),
}

impl Destination {
    /// Checks that the file can be written; `-` is standard output.
    pub fn new(name: &Path) -> Result<Destination, SinkError> {
        if name == Path::new("-") { Ok(Destination::Stdout) } else { Replacement::new(name).map(Destination::File) }
    }
}

/// A file to be created or replaced.
#[derive(Debug)]
pub struct Replacement {
    /// Path as the user gave it.
    name: String,
    /// Path with all symbolic links resolved.
    path: PathBuf,
    /// Set for a pipe or a device, which cannot be replaced.
    special: bool,
    /// Permissions of the file to be replaced.
    permissions: Option<Permissions>,
}

impl Replacement {
    /// Checks that the file can be written, and changes nothing.
    ///
    /// # Errors
    /// [`SinkError::Create`].
    pub fn new(name: impl AsRef<Path>) -> Result<Replacement, SinkError> {
        let name = name.as_ref();
        Replacement::probe(name).map_err(|error| SinkError::Create { name: name.display().to_string(), error })
    }

    fn probe(name: &Path) -> io::Result<Replacement> {
        let path = resolved_path(name);
        let there = path.metadata().ok();
        // Do not open a pipe, which would block until it has a reader.
        let special = there.as_ref().is_some_and(|it| !it.is_file() && !it.is_dir());
        let permissions = there.map(|it| it.permissions());
        if !special {
            if permissions.is_some() {
                OpenOptions::new().write(true).open(&path)?;
            }
            let (_, temporary) = create_temporary(&path)?;
            fs::remove_file(temporary)?;
        }
        Ok(Replacement { name: name.display().to_string(), path, special, permissions })
    }

    /// Writes the content and replaces the file by it.
    ///
    /// # Errors
    /// See [`SinkError`]; the file is as it was before.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), SinkError> {
        let create = |error| SinkError::Create { name: self.name.clone(), error };
        let write = |error| SinkError::Write { name: self.name.clone(), error };
        if self.special {
            let file = OpenOptions::new().write(true).open(&self.path).map_err(create)?;
            return fill(file, content).map(drop).map_err(write);
        }
        let (file, temporary) = create_temporary(&self.path).map_err(create)?;
        let placed = fill(file, content).and_then(|file| {
            // Before the rename, so that not even a power failure leaves an empty file under the
            // name.
            file.sync_all()?;
            self.permissions.clone().map_or(Ok(()), |as_before| file.set_permissions(as_before))?;
            fs::rename(&temporary, &self.path)
        });
        if placed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        placed.map_err(write)
    }
}

fn fill(file: File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.into_inner().map_err(|error| error.into_error())
}

/// Creates a temporary file in the folder of `path` and locks it, if the file system has locks.
fn create_temporary(path: &Path) -> io::Result<(File, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    remove_stale_files(path);
    loop {
        let name = format!("{PREFIX}{}-{}{SUFFIX}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let temporary = path.with_file_name(name);
        let file = match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            // Process numbers repeat in other containers.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        let _ = file.lock();
        // Until it was locked, another process may have removed it.
        if temporary.exists() {
            return Ok((file, temporary));
        }
    }
}

/// Names of temporary files: `.portcullis-PROCESS-NUMBER.tmp`.
const PREFIX: &str = ".portcullis-";
const SUFFIX: &str = ".tmp";

/// Removes temporary files that killed processes have left in a file's folder, as far as possible.
fn remove_stale_files(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        let is_ours = number.is_some_and(|it| it.bytes().all(|b| b.is_ascii_digit() || b == b'-'));
        // Opening a pipe would block.
        if !is_ours || !entry.file_type().is_ok_and(|it| it.is_file()) {
            continue;
        }
        // Locked during the removal, so that a process that has just created it notices.
        if let Ok(file) = OpenOptions::new().write(true).open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        let names = || fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect::<Vec<_>>();
        let file = Replacement::new(path.to_str().unwrap()).unwrap();
        assert!(names().is_empty(), "no file exists before it is written");
        file.write(|out| out.write_all(b"old")).unwrap();
        let failed = file.write(|out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::Error::other("it stopped"))
        });
        assert_eq!(failed.unwrap_err().to_string(), format!("{}: writing failed: it stopped", path.display()));
        assert_eq!((fs::read(&path).unwrap(), names()), (b"old".to_vec(), vec!["a.csv".into()]));
        file.write(|out| out.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names()), (b"new".to_vec(), vec!["a.csv".into()]));
    }

    #[test]
    fn temporary_files_of_killed_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let ours = [".portcullis-1-0.tmp", ".portcullis-4000000-17.tmp"];
        let others = [".portcullis-1.tmp.bak", ".portcullis-x-1.tmp", "portcullis-1-0.tmp", ".portcullis-7-7.tmp"];
        for name in ours.iter().chain(&others) {
            fs::write(path(name), "half").unwrap();
        }
        let another = File::open(path(others[3])).unwrap();
        another.lock().unwrap();
        Replacement::new(path("a.csv").to_str().unwrap()).unwrap();
        assert!(ours.iter().all(|name| !path(name).exists()));
        assert!(others.iter().all(|name| path(name).exists()), "files of others, or of a running process");
        drop(another);
        Replacement::new(path("a.csv").to_str().unwrap()).unwrap();
        assert!(!path(others[3]).exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_are_preserved() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("a.csv"), dir.path().join("link.csv"));
        symlink("a.csv", &link).unwrap();
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        Replacement::new(link.to_str().unwrap()).unwrap().write(|out| out.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        // Pipes and devices are written to.
        Replacement::new("/dev/null").unwrap().write(|out| out.write_all(b"new")).unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
