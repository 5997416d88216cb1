//! Unix sockets that only this user may connect to.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that wait to be accepted.
const WAITING: i32 = 64;

/// A Unix socket with mode 0600, which listens; to accept does not wait. Its file goes with it.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The file's device and number: another's in its place is not ours to remove.
    file: (u64, u64),
}

/// Why there is no such socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// Somebody else listens there.
    #[error("{}: another run listens here; choose another path, or end that run", .0.display())]
    Taken(PathBuf),
    /// There is something else.
    #[error("{}: there is something else already, and no socket; choose another path", .0.display())]
    NoSocket(PathBuf),
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
        let listener = match bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let file = path.symlink_metadata().map_err(refused)?.file_type();
                if !file.is_socket() {
                    return Err(LocalError::NoSocket(path.to_owned()));
                }
                match UnixStream::connect(path) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                    // One that has no room for another connection is one that is there.
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(refused(error)),
                    _ => return Err(LocalError::Taken(path.to_owned())),
                }
                std::fs::remove_file(path).and_then(|()| bind(path))
            }
            bound => bound,
        };
        let listener = listener.map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let file = path.symlink_metadata().map_err(refused)?;
        Ok(LocalSocket { listener, path: path.to_owned(), file: (file.dev(), file.ino()) })
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

/// A file has the mode of the socket that is bound to it (less the umask), so that there is no moment in which others may connect.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, WAITING)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_program_left_is_taken_away_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        // Closed, and its file is still there.
        drop(UnixListener::bind(&path).unwrap());
        let socket = LocalSocket::listen(&path).unwrap();
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::Taken(_))), "one has it");
        assert!(path.exists());
        // Somebody has put something else there: it stays.
        std::fs::rename(&path, place.path().join("old")).unwrap();
        std::fs::write(&path, "precious").unwrap();
        drop(socket);
        assert!(matches!(LocalSocket::listen(&path), Err(LocalError::NoSocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let nowhere = LocalSocket::listen(&place.path().join("no/socket")).unwrap_err();
        assert!(nowhere.to_string().contains("no/socket: "), "{nowhere}");
        let long = LocalSocket::listen(&place.path().join("x".repeat(200))).unwrap_err();
        assert!(matches!(long, LocalError::System { .. }), "{long}");
    }
}
