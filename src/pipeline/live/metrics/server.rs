//! Listens for those who ask for metrics, on this machine alone.
//!
//! One thread waits for all connections at once. Each has a deadline, there are few, and a new one takes the place of the oldest:
//! so nobody keeps others waiting, and nobody is waited for.

use std::fmt;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::http::{self, Reply};
use crate::pipeline::live::local_socket::{LocalError, LocalSocket};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;

/// How long a connection may take, from the first byte to the last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long nobody is let in after the system has refused a connection, for want of memory or descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Bytes that one connection may send or get before it is another's turn.
const MAX_BYTES_PER_TURN: usize = 64 << 10;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port of this machine's own addresses.
    Port(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a text is no address to listen at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Others could reach it.
    #[error(
        "{0}: metrics are only given on this machine, at 127.0.0.1, [::1] or unix:PATH; to have them elsewhere, run Prometheus or \
         its agent here, or have a proxy or ssh ask for them"
    )]
    Elsewhere(IpAddr),
    /// It is none.
    #[error("`{0}` is no address to listen at; give a port as 9100, or 127.0.0.1:9100, [::1]:9100 or unix:PATH")]
    Text(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = || AddressError::Text(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Address::Unix(path.into())) };
        }
        let local = |port: &str| port.parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = match text.strip_prefix("localhost:") {
            Some(port) => local(port).map_err(|_| wrong())?,
            None => match local(text) {
                Ok(address) => address,
                Err(_) => text.parse().map_err(|_| wrong())?,
            },
        };
        if address.ip().to_canonical().is_loopback() {
            Ok(Address::Port(address))
        } else {
            Err(AddressError::Elsewhere(address.ip()))
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

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Not at this port.
    #[error("{address}: {}{}", portcullis_core::reason(.error), port_hint(.error))]
    Port {
        /// Which.
        address: SocketAddr,
        /// The system's.
        error: io::Error,
    },
    /// Not at this socket.
    #[error(transparent)]
    Unix(#[from] LocalError),
    /// There is no thread for it, or nothing to wake it by.
    #[error("metrics: {}", portcullis_core::reason(.0))]
    Thread(io::Error),
}

fn port_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => " (another program listens there; choose another port, or 0 for one that is free)",
        _ => "",
    }
}

/// Gives metrics to whoever asks, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: Address,
    /// Closed to end the thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers with what `text` makes from now on.
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

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // If it died, there are no metrics any more, which whoever asked for them has seen.
            let _ = thread.join();
        }
    }
}

/// Where connections come in. Nobody is answered before there is a [`Server`], and they wait until then.
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
    /// Listens.
    ///
    /// # Errors
    /// [`ServerError`]: among others, somebody else has the port.
    pub fn open(address: &Address) -> Result<MetricsListener, ServerError> {
        let (listener, address) = match address {
            Address::Port(at) => {
                let refused = |error| ServerError::Port { address: *at, error };
                let listener = TcpListener::bind(at).map_err(refused)?;
                listener.set_nonblocking(true).map_err(refused)?;
                // The port that was found, where any would do.
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

/// A connection.
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

/// Who is connected.
struct Connection {
    stream: Stream,
    until: Instant,
    state: State,
}

enum State {
    /// What has come of the request.
    ReadingRequest(Vec<u8>),
    /// The answer, and how much of it is sent.
    SendingResponse(Vec<u8>, usize),
    /// It has the answer. What it still sends is taken: a connection that is closed before would be reset, and the answer lost.
    Lingering,
}

impl Connection {
    fn poll_flags(&self) -> PollFlags {
        match self.state {
            State::SendingResponse(..) => PollFlags::OUT,
            State::ReadingRequest(_) | State::Lingering => PollFlags::IN,
        }
    }

    /// Goes on as far as that takes no wait. Whether there is more to come.
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

/// Lets guests in and answers them, until it is woken.
fn serve(listener: &MetricsListener, wake_reader: &PipeReader, text: &dyn Fn() -> String, deadline: Duration) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut closed_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        closed_until = closed_until.filter(|until| *until > now);
        connections.retain(|connection| connection.until > now);
        let listens = if closed_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut waits = vec![PollFd::new(wake_reader, PollFlags::IN), PollFd::from_borrowed_fd(listener.fd(), listens)];
        waits.extend(
            connections
                .iter()
                .map(|connection| PollFd::from_borrowed_fd(connection.stream.fd(), connection.poll_flags())),
        );
        let until = connections.iter().map(|connection| connection.until).chain(closed_until).min();
        let most = until.map(|until| {
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut waits, most.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            // There is nothing to wait by any more.
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
            Err(_) => closed_until = Some(Instant::now() + ACCEPT_RETRY_DELAY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than anything here takes.
    const SOON: Duration = Duration::from_secs(30);

    fn start(text: String) -> (Server, SocketAddr) {
        // Nobody's time runs out here.
        let hour = Duration::from_secs(3600);
        let server =
            Server::with_deadline(MetricsListener::open(&"0".parse().unwrap()).unwrap(), move || text.clone(), hour)
                .unwrap();
        let Address::Port(address) = *server.address() else { panic!("a port") };
        (server, address)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect_timeout(&address, SOON).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn addresses_are_this_machines() {
        let port = |text: &str| Ok(Address::Port(text.parse().unwrap()));
        for (text, want) in [
            ("9100", port("127.0.0.1:9100")),
            ("127.0.0.1:9100", port("127.0.0.1:9100")),
            ("127.8.8.8:0", port("127.8.8.8:0")),
            ("localhost:9100", port("127.0.0.1:9100")),
            ("[::1]:9100", port("[::1]:9100")),
            ("unix:/run/metrics", Ok(Address::Unix("/run/metrics".into()))),
            ("0.0.0.0:9100", Err(AddressError::Elsewhere("0.0.0.0".parse().unwrap()))),
            ("[::]:9100", Err(AddressError::Elsewhere("::".parse().unwrap()))),
            ("192.0.2.1:80", Err(AddressError::Elsewhere("192.0.2.1".parse().unwrap()))),
            ("[::ffff:192.0.2.1]:80", Err(AddressError::Elsewhere("::ffff:192.0.2.1".parse().unwrap()))),
        ] {
            assert_eq!(text.parse::<Address>(), want, "{text}");
        }
        for text in
            ["", "x", "70000", "-1", "localhost", "localhost:x", ":9100", "127.0.0.1", "example.org:9100", "unix:"]
        {
            assert_eq!(text.parse::<Address>(), Err(AddressError::Text(text.into())));
        }
    }

    #[test]
    fn those_who_ask_are_answered() {
        let text = "x".repeat(1 << 20);
        let (server, address) = start(text.clone());
        for _ in 0..3 {
            let answer = ask(connect(address), REQUEST);
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(body == text, "{} bytes came", body.len());
        }
        let taken = MetricsListener::open(server.address());
        let taken = taken.unwrap_err().to_string();
        assert!(taken.starts_with(&format!("{address}: ")) && taken.contains("choose another port"), "{taken}");
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "nobody listens");
    }

    #[test]
    fn a_unix_socket_is_one_users_and_does_not_stay() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("metrics");
        let server =
            Server::start(MetricsListener::open(&Address::Unix(path.clone())).unwrap(), || "metrics".into()).unwrap();
        let answer = ask(UnixStream::connect(&path).unwrap(), REQUEST);
        assert!(answer.ends_with("\r\n\r\nmetrics"), "{answer}");
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn odd_ones_keep_nobody_waiting() {
        let (server, address) = start("metrics".into());
        // More than are let in at a time: they say nothing, or not enough.
        let silent: Vec<_> = (0..3 * MAX_CONNECTIONS).map(|_| connect(address)).collect();
        for mut stream in &silent[..MAX_CONNECTIONS] {
            let _ = stream.write_all(b"GET /metrics HT");
        }
        // It is the oldest that make room, and not those who have just come.
        let mut oldest = &silent[0];
        let gone = oldest.read(&mut [0; 1]);
        assert!(
            matches!(&gone, Ok(0)) || gone.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
            "{gone:?}"
        );
        let garbage = ask(connect(address), &[0xff; 100]);
        assert!(garbage.starts_with("HTTP/1.1 400 "), "{garbage}");
        // It sends more than anybody wants, and is answered all the same.
        let endless = [b"GET /metrics HTTP/1.1\r\nCookie: ", &[b'x'; 1 << 20][..]].concat();
        let answer = ask(connect(address), &endless);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        // They asked, and went away.
        for _ in 0..MAX_CONNECTIONS {
            connect(address).write_all(REQUEST).unwrap();
        }
        assert!(ask(connect(address), REQUEST).ends_with("metrics"));
        drop(server);
        drop(silent);
    }

    #[test]
    fn time_runs_out() {
        let moment = Duration::from_millis(50);
        let server =
            Server::with_deadline(MetricsListener::open(&"0".parse().unwrap()).unwrap(), String::new, moment).unwrap();
        let Address::Port(address) = *server.address() else { panic!("a port") };
        let mut silent = connect(address);
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "it is closed, and nothing was said");
    }
}
