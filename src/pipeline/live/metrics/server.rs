//! Serves metrics over HTTP on this machine only.
//!
//! One thread polls all connections. Each has a deadline, their number is limited, and a new one
//! replaces the oldest: so no client can block others or the run. `httparse` parses; a server crate
//! with these limits would bring an async runtime.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::http::{self, Reply};
use crate::pipeline::live::local_socket::{LocalError, LocalSocket};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 16;

/// Maximum lifetime of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long accepting pauses after it failed because memory or file descriptors ran out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of bytes to transfer for one connection before others are served.
const MAX_BYTES_PER_TURN: usize = 64 << 10;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port of a loopback address.
    Port(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a text is not an address to listen at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Other machines could reach the address.
    #[error(
        "{0}: metrics are served only on this machine, at 127.0.0.1, [::1] or unix:PATH; for access from elsewhere, run \
         Prometheus or its agent here, or use a proxy or ssh"
    )]
    NotLocal(IpAddr),
    /// The text cannot be parsed.
    #[error("`{0}` is not an address to listen at; use 9100, 127.0.0.1:9100, [::1]:9100 or unix:PATH")]
    Invalid(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let invalid = || AddressError::Invalid(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(invalid()) } else { Ok(Address::Unix(path.into())) };
        }
        let local = |port: &str| port.parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = match text.strip_prefix("localhost:") {
            Some(port) => local(port).map_err(|_| invalid())?,
            None => match local(text) {
                Ok(address) => address,
                Err(_) => text.parse().map_err(|_| invalid())?,
            },
        };
        if address.ip().to_canonical().is_loopback() {
            Ok(Address::Port(address))
        } else {
            Err(AddressError::NotLocal(address.ip()))
        }
    }
}

impl TryFrom<&OsStr> for Address {
    type Error = AddressError;

    /// Parses an address, whose path may have any bytes.
    fn try_from(text: &OsStr) -> Result<Address, AddressError> {
        match (text.to_str(), text.as_bytes().strip_prefix(b"unix:")) {
            (Some(text), _) => text.parse(),
            (None, Some(path)) => Ok(Address::Unix(OsStr::from_bytes(path).into())),
            (None, None) => Err(AddressError::Invalid(text.display().to_string())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Port(address) => write!(f, "http://{address}/metrics"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The port cannot be used.
    #[error("{address}: {}{}", portcullis_core::reason(.error), port_hint(.error))]
    Port {
        /// The port's address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The Unix socket cannot be used.
    #[error(transparent)]
    Unix(#[from] LocalError),
    /// The thread or its wake-up pipe could not be created.
    #[error("metrics: {}", portcullis_core::reason(.0))]
    Thread(io::Error),
}

fn port_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => " (another program listens there; choose another port, or 0 for any free port)",
        _ => "",
    }
}

/// Serves metrics on a thread of its own until dropped.
#[derive(Debug)]
pub struct Server {
    address: Address,
    /// Closing the pipe ends the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to answer requests with the text that `text` returns.
    ///
    /// # Errors
    /// [`ServerError::Thread`]
    pub fn start(listener: MetricsListener, text: impl Fn() -> String + Send + 'static) -> Result<Server, ServerError> {
        Server::with_deadline(listener, text, CONNECTION_TIMEOUT)
    }

    fn with_deadline(
        listener: MetricsListener,
        text: impl Fn() -> String + Send + 'static,
        deadline: Duration,
    ) -> Result<Server, ServerError> {
        let address = listener.address.clone();
        let (wake_reader, wake) = io::pipe().map_err(ServerError::Thread)?;
        let thread = thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serve(&listener, &wake_reader, &text, deadline));
        Ok(Server { address, wake: Some(wake), thread: Some(thread.map_err(ServerError::Thread)?) })
    }

    /// Returns where it listens, with the actual port if 0 was requested.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread only ends the metrics, which clients have noticed.
            let _ = thread.join();
        }
    }
}

/// A listening socket for metrics. Connections wait in its backlog until a [`Server`] is started.
#[derive(Debug)]
pub struct MetricsListener {
    listener: Listener,
    address: Address,
}

#[derive(Debug)]
enum Listener {
    Port(TcpListener),
    Unix(LocalSocket),
}

impl MetricsListener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`ServerError`], for example if the port is in use.
    pub fn open(address: &Address) -> Result<MetricsListener, ServerError> {
        let (listener, address) = match address {
            Address::Port(at) => {
                let refused = |error| ServerError::Port { address: *at, error };
                let listener = TcpListener::bind(at).map_err(refused)?;
                listener.set_nonblocking(true).map_err(refused)?;
                // The port that the system chose if 0 was requested.
                let found = listener.local_addr().unwrap_or(*at);
                (Listener::Port(listener), Address::Port(found))
            }
            Address::Unix(path) => (Listener::Unix(LocalSocket::listen(path)?), address.clone()),
        };
        Ok(MetricsListener { listener, address })
    }

    fn accept(&self) -> io::Result<Stream> {
        let stream = match &self.listener {
            Listener::Port(listener) => Stream::Port(listener.accept()?.0),
            Listener::Unix(socket) => Stream::Unix(socket.listener().accept()?.0),
        };
        match &stream {
            Stream::Port(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(stream)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Port(listener) => listener.as_fd(),
            Listener::Unix(socket) => socket.listener().as_fd(),
        }
    }
}

/// Stream of a connection.
enum Stream {
    Port(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Port(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Port(stream) => stream.read(to),
            Stream::Unix(stream) => stream.read(to),
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Port(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Stream::Port(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

/// A client's connection.
struct Connection {
    stream: Stream,
    until: Instant,
    state: State,
}

enum State {
    /// Bytes of the request received so far.
    ReadingRequest(Vec<u8>),
    /// The response, and how many of its bytes are sent.
    SendingResponse(Vec<u8>, usize),
    /// The response is sent. Remaining input is read and discarded: closing with unread input would
    /// reset the connection and could destroy the response.
    Lingering,
}

impl Connection {
    fn poll_flags(&self) -> PollFlags {
        match self.state {
            State::SendingResponse(..) => PollFlags::OUT,
            State::ReadingRequest(_) | State::Lingering => PollFlags::IN,
        }
    }

    /// Reads or writes as much as possible without blocking. Returns false once the connection is
    /// done.
    fn advance(&mut self, text: &dyn Fn() -> String) -> bool {
        let mut buffer = [0; 4096];
        let mut moved = 0;
        while moved < MAX_BYTES_PER_TURN {
            let length = match &mut self.state {
                State::SendingResponse(answer, sent) => self.stream.write(&answer[*sent..]),
                State::ReadingRequest(_) | State::Lingering => self.stream.read(&mut buffer),
            };
            let length = match length {
                Ok(0) => return false,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            };
            moved += length;
            match &mut self.state {
                State::ReadingRequest(request) => {
                    request.extend(&buffer[..length]);
                    if let Reply::Answer(answer) = http::reply(request, text) {
                        self.state = State::SendingResponse(answer, 0);
                    }
                }
                State::SendingResponse(answer, sent) => {
                    *sent += length;
                    if *sent == answer.len() {
                        self.state = State::Lingering;
                        if self.stream.shutdown_write().is_err() {
                            return false;
                        }
                    }
                }
                State::Lingering => {}
            }
        }
        true
    }
}

/// Accepts and serves connections until the wake-up pipe is closed.
fn serve(listener: &MetricsListener, wake_reader: &PipeReader, text: &dyn Fn() -> String, deadline: Duration) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut accept_paused_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        accept_paused_until = accept_paused_until.filter(|until| *until > now);
        connections.retain(|connection| connection.until > now);
        let listens = if accept_paused_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut waits = vec![PollFd::new(wake_reader, PollFlags::IN), PollFd::from_borrowed_fd(listener.fd(), listens)];
        waits.extend(
            connections
                .iter()
                .map(|connection| PollFd::from_borrowed_fd(connection.stream.fd(), connection.poll_flags())),
        );
        let until = connections.iter().map(|connection| connection.until).chain(accept_paused_until).min();
        let most = until.map(|until| {
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut waits, most.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            // Without `poll` the server cannot go on.
            Err(_) => return,
        }
        let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let mut ready_connections = ready[2..].iter();
        connections
            .retain_mut(|connection| !ready_connections.next().is_some_and(|ready| *ready) || connection.advance(text));
        if !ready[1] {
            continue;
        }
        match listener.accept() {
            Ok(stream) => {
                if connections.len() == MAX_CONNECTIONS {
                    connections.remove(0);
                }
                connections.push(Connection {
                    stream,
                    until: Instant::now() + deadline,
                    state: State::ReadingRequest(Vec::new()),
                });
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => accept_paused_until = Some(Instant::now() + ACCEPT_RETRY_DELAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than anything in these tests takes.
    const TIMEOUT: Duration = Duration::from_secs(30);

    fn start(text: String) -> (Server, SocketAddr) {
        // No connection times out here.
        let hour = Duration::from_secs(3600);
        let server =
            Server::with_deadline(MetricsListener::open(&"0".parse().unwrap()).unwrap(), move || text.clone(), hour)
                .unwrap();
        let Address::Port(address) = *server.address() else { panic!("a port") };
        (server, address)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    fn request(mut stream: impl Read + Write, bytes: &[u8]) -> String {
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn only_loopback_addresses_are_accepted() {
        let port = |text: &str| Ok(Address::Port(text.parse().unwrap()));
        for (text, want) in [
            ("9100", port("127.0.0.1:9100")),
            ("127.0.0.1:9100", port("127.0.0.1:9100")),
            ("127.8.8.8:0", port("127.8.8.8:0")),
            ("localhost:9100", port("127.0.0.1:9100")),
            ("[::1]:9100", port("[::1]:9100")),
            ("unix:/run/metrics", Ok(Address::Unix("/run/metrics".into()))),
            ("0.0.0.0:9100", Err(AddressError::NotLocal("0.0.0.0".parse().unwrap()))),
            ("[::]:9100", Err(AddressError::NotLocal("::".parse().unwrap()))),
            ("192.0.2.1:80", Err(AddressError::NotLocal("192.0.2.1".parse().unwrap()))),
            ("[::ffff:192.0.2.1]:80", Err(AddressError::NotLocal("::ffff:192.0.2.1".parse().unwrap()))),
        ] {
            assert_eq!(text.parse::<Address>(), want, "{text}");
        }
        for text in
            ["", "x", "70000", "-1", "localhost", "localhost:x", ":9100", "127.0.0.1", "example.org:9100", "unix:"]
        {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Invalid(text.into())));
        }
    }

    #[test]
    fn requests_are_answered_and_drop_stops_listening() {
        let text = "x".repeat(1 << 20);
        let (server, address) = start(text.clone());
        for _ in 0..3 {
            let answer = request(connect(address), REQUEST);
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(body == text, "{} bytes came", body.len());
        }
        let taken = MetricsListener::open(server.address());
        let taken = taken.unwrap_err().to_string();
        assert!(taken.starts_with(&format!("{address}: ")) && taken.contains("choose another port"), "{taken}");
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "the port is closed");
    }

    #[test]
    fn metrics_on_a_unix_socket_are_served_and_its_file_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("metrics");
        let server =
            Server::start(MetricsListener::open(&Address::Unix(path.clone())).unwrap(), || "metrics".into()).unwrap();
        let answer = request(UnixStream::connect(&path).unwrap(), REQUEST);
        assert!(answer.ends_with("\r\n\r\nmetrics"), "{answer}");
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn misbehaving_clients_do_not_block_others() {
        let (server, address) = start("metrics".into());
        // More than the maximum: they send nothing, or an incomplete request.
        let silent: Vec<_> = (0..3 * MAX_CONNECTIONS).map(|_| connect(address)).collect();
        for mut stream in &silent[..MAX_CONNECTIONS] {
            let _ = stream.write_all(b"GET /metrics HT");
        }
        // The oldest connection is replaced, not a new one.
        let mut oldest = &silent[0];
        let gone = oldest.read(&mut [0; 1]);
        assert!(
            matches!(&gone, Ok(0)) || gone.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
            "{gone:?}"
        );
        let garbage = request(connect(address), &[0xff; 100]);
        assert!(garbage.starts_with("HTTP/1.1 400 "), "{garbage}");
        // A request that is too long still gets its response.
        let endless = [b"GET /metrics HTTP/1.1\r\nCookie: ", &[b'x'; 1 << 20][..]].concat();
        let answer = request(connect(address), &endless);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        // Clients that disconnect after their request.
        for _ in 0..MAX_CONNECTIONS {
            connect(address).write_all(REQUEST).unwrap();
        }
        assert!(request(connect(address), REQUEST).ends_with("metrics"));
        drop(server);
        drop(silent);
    }

    #[test]
    fn a_silent_connection_is_closed_at_its_deadline() {
        let moment = Duration::from_millis(50);
        let server =
            Server::with_deadline(MetricsListener::open(&"0".parse().unwrap()).unwrap(), String::new, moment).unwrap();
        let Address::Port(address) = *server.address() else { panic!("a port") };
        let mut silent = connect(address);
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "it is closed without a response");
    }
}
