//! The socket's file: nobody's but its owner's from the start, and gone at the end.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use portcullis::reason;
use rustix::fs::Mode;

use crate::cli::failure::Failure;

/// A socket that is listened to. Its file is removed with it.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// The file's device and number: another run may have put its own there.
    file: (u64, u64),
    pub(super) listener: UnixListener,
}

impl Socket {
    /// Takes a path. What a run has left there that is no more is replaced.
    pub fn bind(path: &Path) -> Result<Socket, Failure> {
        let wrong = |what: &str| Failure::Wrong(format!("--control {}: {what}", path.display()));
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(wrong(&reason(&error))),
            Ok(there) if !there.file_type().is_socket() => {
                return Err(wrong("there is something else already; choose another path"));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(|error| wrong(&reason(&error)))?;
                }
                Ok(_) => return Err(wrong("another run has this socket; choose another path, or end that run")),
                Err(error) => return Err(wrong(&format!("there is a socket already: {}", reason(&error)))),
            },
        }
        let listener = private(|| UnixListener::bind(path)).map_err(|error| {
            wrong(&match error.kind() {
                // What is too long for the system, the standard library refuses.
                ErrorKind::InvalidInput => {
                    "the path is too long for a socket; choose one of less than 108 bytes".into()
                }
                ErrorKind::AddrInUse => "another run is taking this socket; choose another path".into(),
                _ => reason(&error),
            })
        })?;
        let there = fs::symlink_metadata(path).map_err(|error| wrong(&reason(&error)))?;
        listener.set_nonblocking(true).map_err(|error| wrong(&reason(&error)))?;
        Ok(Socket { path: path.to_owned(), file: (there.dev(), there.ino()), listener })
    }
}

/// What files are made by this are for nobody else to open: there is no moment at which they could be.
fn private<T>(make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = rustix::process::umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
    let made = make();
    rustix::process::umask(before);
    made
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.file) {
            // One that cannot be removed is replaced by the next run.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        match Socket::bind(path) {
            Err(Failure::Wrong(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_socket_is_its_owners_alone_and_goes_with_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let socket = Socket::bind(&path).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().mode() & 0o777, 0o600);
        assert!(refused(&path).contains("another run has this socket"));
        drop(socket);
        assert!(!path.exists());
        // One of a run that was killed: nobody listens there any more.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let old = Socket::bind(&path).unwrap();
        // What another has put there is not ours to remove.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        drop(old);
        assert!(path.exists());
        assert!(refused(&path).contains("something else"));
        assert!(refused(&folder.path().join("x".repeat(120))).contains("too long"));
        assert!(refused(&folder.path().join("none/control")).contains("none/control"));
    }
}
