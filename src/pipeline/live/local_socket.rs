//! Unix sockets that only the current user may connect to.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Backlog of `listen`, in connections.
const ACCEPT_BACKLOG: i32 = 64;

/// A listening, non-blocking Unix socket with mode 0600. Dropping it removes its file.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file, so that a file someone else put in its place is not
    /// removed.
    file: (u64, u64),
    /// Released after the socket's file is removed.
    _lock: Lock,
}

/// Why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// Another process listens at the path.
    #[error("{}: another run listens here; choose another path or stop that run", .0.display())]
    InUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{}: exists and is not a socket; choose another path", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{}: {}", .path.display(), portcullis_core::reason(.error))]
    System {
        /// The socket or its lock file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl LocalSocket {
    /// Listens at `path`, replacing a stale socket that a killed process has left there.
    ///
    /// # Errors
    /// [`LocalError`]
    pub fn listen(path: &Path) -> Result<LocalSocket, LocalError> {
        let refused = |error| LocalError::System { path: path.to_owned(), error };
        let lock = Lock::take(path)?;
        let listener = match bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let file = path.symlink_metadata().map_err(refused)?.file_type();
                if !file.is_socket() {
                    return Err(LocalError::NotASocket(path.to_owned()));
                }
                match UnixStream::connect(path) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                    // A full backlog also means that someone is listening.
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(refused(error)),
                    _ => return Err(LocalError::InUse(path.to_owned())),
                }
                std::fs::remove_file(path).and_then(|()| bind(path))
            }
            bound => bound,
        };
        let listener = listener.map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let file = path.symlink_metadata().map_err(refused)?;
        Ok(LocalSocket { listener, path: path.to_owned(), file: (file.dev(), file.ino()), _lock: lock })
    }

    /// Returns the listener to accept connections from.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|there| (there.dev(), there.ino()) == self.file) {
            // If this fails, the next process that listens here replaces the stale socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A locked file beside the socket, `PATH.lock`, held while a process has the socket or is about to
/// bind it. Only the holder may remove a stale socket: without the lock, one of several starting
/// processes could remove the new socket of another.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    fn take(socket: &Path) -> Result<Lock, LocalError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let refused = |error: io::Error| match error.kind() {
            // The directory is missing, so name the socket that the user gave.
            ErrorKind::NotFound => LocalError::System { path: socket.to_owned(), error },
            _ => LocalError::System { path: path.clone(), error },
        };
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        // Neither follow a symbolic link nor block on a FIFO at this path.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        loop {
            let file = options.open(&path).map_err(refused)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Err(LocalError::InUse(socket.to_owned())),
                Err(error) => return Err(refused(error.into())),
            }
            let lock = Lock { file, path: path.clone() };
            // The previous holder may have removed the file after it was opened here; then the lock
            // protects nothing.
            if lock.owns_path() {
                return Ok(lock);
            }
        }
    }

    /// Whether the locked file is still the one at its path.
    fn owns_path(&self) -> bool {
        let (Ok(locked), Ok(there)) = (self.file.metadata(), self.path.symlink_metadata()) else { return false };
        (locked.dev(), locked.ino()) == (there.dev(), there.ino())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file with content is not a lock of ours, but someone's file of this name.
        let is_ours = self.file.metadata().is_ok_and(|it| it.is_file() && it.len() == 0);
        if is_ours && self.owns_path() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds and listens. The mode is set before binding because the file inherits it (less the umask),
/// so at no time can other users connect.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, ACCEPT_BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn the_socket_has_mode_0600_and_drop_removes_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = LocalSocket::listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(socket.listener().accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        UnixStream::connect(&path).unwrap();
        socket.listener().accept().unwrap();
        drop(socket);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "neither the socket nor its lock is left");
    }

    #[test]
    fn one_of_several_concurrent_listeners_gets_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for round in 0..200 {
            // Each process finds a stale socket, and in every other round a stale lock.
            drop(UnixListener::bind(&path).unwrap());
            if round % 2 == 0 {
                std::fs::write(dir.path().join("socket.lock"), "").unwrap();
            }
            let begin = Barrier::new(4);
            let listen = || {
                begin.wait();
                LocalSocket::listen(&path)
            };
            let all: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let (have, others): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
            assert_eq!(have.len(), 1, "{round}: {others:?}");
            assert!(others.iter().all(|it| matches!(it, Err(LocalError::InUse(_)))), "{round}: {others:?}");
            UnixStream::connect(&path).unwrap();
            have[0].as_ref().unwrap().listener().accept().expect("the connection reaches the listener");
        }
    }

    #[test]
    fn the_holder_of_the_lock_alone_may_replace_a_stale_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let left = path.metadata().unwrap().ino();
        let other = Lock::take(&path).unwrap();
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::InUse(_))));
        assert_eq!(path.metadata().unwrap().ino(), left, "only the lock holder may remove it");
        // A lock whose file was removed neither blocks others nor removes their lock file.
        let late = Lock { file: File::open(&other.path).unwrap(), path: other.path.clone() };
        drop(other);
        let socket = LocalSocket::listen(&path).unwrap();
        assert!(!late.owns_path());
        drop(late);
        assert!(matches!(Lock::take(&path), Err(LocalError::InUse(_))), "the lock of the new socket is still held");
        drop(socket);
    }

    #[test]
    fn a_foreign_file_in_place_of_the_lock_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("socket.lock");
        std::fs::write(&lock, "precious").unwrap();
        drop(LocalSocket::listen(&dir.path().join("socket")).unwrap());
        assert_eq!(std::fs::read(&lock).unwrap(), b"precious");
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
        let error = LocalSocket::listen(&dir.path().join("socket")).unwrap_err();
        assert!(error.to_string().contains("socket.lock: "), "{error}");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_other_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // Closed, but its file is still there.
        drop(UnixListener::bind(&path).unwrap());
        let socket = LocalSocket::listen(&path).unwrap();
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::InUse(_))), "another listens");
        assert!(path.exists());
        // A file that replaced the socket must stay.
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::write(&path, "precious").unwrap();
        drop(socket);
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let nowhere = LocalSocket::listen(&dir.path().join("no/socket")).unwrap_err();
        assert!(nowhere.to_string().contains("no/socket: "), "{nowhere}");
        let long = LocalSocket::listen(&dir.path().join("x".repeat(200))).unwrap_err();
        assert!(matches!(long, LocalError::System { .. }), "{long}");
    }
}
