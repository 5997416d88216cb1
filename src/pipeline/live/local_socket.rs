//! Unix sockets that only this user may connect to.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that wait to be accepted.
const ACCEPT_BACKLOG: i32 = 64;

/// A Unix socket with mode 0600, which listens; to accept does not wait. Its file goes with it.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The file's device and number: another's in its place is not ours to remove.
    file: (u64, u64),
    /// Given up after the file is gone.
    _lock: Lock,
}

/// Why there is no such socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// Somebody else listens there.
    #[error("{}: another run listens here; choose another path, or end that run", .0.display())]
    InUse(PathBuf),
    /// There is something else.
    #[error("{}: there is something else already, and no socket; choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The system refused it.
    #[error("{}: {}", .path.display(), portcullis_core::reason(.error))]
    System {
        /// Where.
        path: PathBuf,
        /// The system's.
        error: io::Error,
    },
}

impl LocalSocket {
    /// Listens at this path. What a program that was killed has left there is taken away.
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
                    // One that has no room for another connection is one that is there.
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

    /// What accepts.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|there| (there.dev(), there.ino()) == self.file) {
            // One that cannot be removed is taken away by the next that listens there.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A locked file beside a socket, `PATH.lock`, for as long as somebody has the socket or is about to. Of several that find one
/// that a killed program has left, only who has the lock takes it away: another might take away the one that came in its place.
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
            // It is about the folder.
            ErrorKind::NotFound => LocalError::System { path: socket.to_owned(), error },
            _ => LocalError::System { path: path.clone(), error },
        };
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        // Whatever lies there is not followed, nor waited for.
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
            // Who had it before may have removed it after it was opened here: then it is a lock no more.
            if lock.owns_path() {
                return Ok(lock);
            }
        }
    }

    /// Whether its file is the one at its path.
    fn owns_path(&self) -> bool {
        let (Ok(mine), Ok(there)) = (self.file.metadata(), self.path.symlink_metadata()) else { return false };
        (mine.dev(), mine.ino()) == (there.dev(), there.ino())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that has something in it is somebody's who happened to give it this name.
        let is_ours = self.file.metadata().is_ok_and(|it| it.is_file() && it.len() == 0);
        if is_ours && self.owns_path() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A file has the mode of the socket that is bound to it (less the umask), so that there is no moment in which others may connect.
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
    fn only_this_user_may_connect_and_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let socket = LocalSocket::listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(socket.listener().accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        UnixStream::connect(&path).unwrap();
        socket.listener().accept().unwrap();
        drop(socket);
        assert_eq!(place.path().read_dir().unwrap().count(), 0, "neither the socket nor its lock");
    }

    #[test]
    fn of_many_that_begin_at_once_one_has_the_socket() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        for round in 0..200 {
            // Each finds what a killed program has left, and its lock half of the time.
            drop(UnixListener::bind(&path).unwrap());
            if round % 2 == 0 {
                std::fs::write(place.path().join("socket.lock"), "").unwrap();
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
            have[0].as_ref().unwrap().listener().accept().expect("who connects is connected to it");
        }
    }

    #[test]
    fn who_is_about_to_have_it_is_not_overtaken() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let left = path.metadata().unwrap().ino();
        let other = Lock::take(&path).unwrap();
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::InUse(_))));
        assert_eq!(path.metadata().unwrap().ino(), left, "it is the other's to take away");
        // A lock whose file is gone keeps nobody away, and is not given for the next one's.
        let late = Lock { file: File::open(&other.path).unwrap(), path: other.path.clone() };
        drop(other);
        let socket = LocalSocket::listen(&path).unwrap();
        assert!(!late.owns_path());
        drop(late);
        assert!(matches!(Lock::take(&path), Err(LocalError::InUse(_))), "the next one's is still there");
        drop(socket);
    }

    #[test]
    fn a_file_that_happens_to_be_where_the_lock_is_stays() {
        let place = tempfile::tempdir().unwrap();
        let lock = place.path().join("socket.lock");
        std::fs::write(&lock, "precious").unwrap();
        drop(LocalSocket::listen(&place.path().join("socket")).unwrap());
        assert_eq!(std::fs::read(&lock).unwrap(), b"precious");
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
        let error = LocalSocket::listen(&place.path().join("socket")).unwrap_err();
        assert!(error.to_string().contains("socket.lock: "), "{error}");
    }

    #[test]
    fn what_a_killed_program_left_is_taken_away_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        // Closed, and its file is still there.
        drop(UnixListener::bind(&path).unwrap());
        let socket = LocalSocket::listen(&path).unwrap();
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::InUse(_))), "one has it");
        assert!(path.exists());
        // Somebody has put something else there: it stays.
        std::fs::rename(&path, place.path().join("old")).unwrap();
        std::fs::write(&path, "precious").unwrap();
        drop(socket);
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let nowhere = LocalSocket::listen(&place.path().join("no/socket")).unwrap_err();
        assert!(nowhere.to_string().contains("no/socket: "), "{nowhere}");
        let long = LocalSocket::listen(&place.path().join("x".repeat(200))).unwrap_err();
        assert!(matches!(long, LocalError::System { .. }), "{long}");
    }
}
