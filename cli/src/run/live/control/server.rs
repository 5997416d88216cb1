//! Server of the control socket: one thread, one client at a time, one request per connection.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis::control::{self, MAX_REQUEST_BYTES, Service};
use portcullis::pipeline::live::local_socket::LocalSocket;
use portcullis::reason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
use crate::out;
use crate::run::live::privileges::drop_net_admin;

/// Time that a client has to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a client has to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after the process ran out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The server's thread; it ends when this is dropped.
pub struct Server {
    thread: Option<JoinHandle<()>>,
    /// Closed to end the thread.
    wake: Option<UnixStream>,
    _socket: LocalSocket,
}

impl Server {
    /// Starts the server.
    pub fn start(socket: LocalSocket, mut service: impl Service + Send + 'static) -> Result<Server, Failure> {
        let cannot = |error: io::Error| Failure::Error(format!("--control: {}", reason(&error)));
        let (wake, ended) = UnixStream::pair().map_err(cannot)?;
        let listener = socket.listener().try_clone().map_err(cannot)?;
        let span = tracing::Span::current();
        let thread = thread::Builder::new().name("control".into()).spawn(move || {
            let _run = span.entered();
            // This thread gives no verdicts and needs no capabilities.
            if let Err(failure) = drop_net_admin() {
                out::report_failure(failure);
                return;
            }
            loop {
                match wait(&listener, PollFlags::IN, &ended, None) {
                    WaitOutcome::Ready => {}
                    WaitOutcome::TimedOut => continue,
                    WaitOutcome::RunFinished => return,
                }
                match listener.accept() {
                    // Errors of a connection concern only its client.
                    Ok((client, _)) => drop(handle_client(client, &ended, &mut service)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => thread::sleep(ACCEPT_RETRY_DELAY),
                }
            }
        });
        Ok(Server { thread: Some(thread.map_err(cannot)?), wake: Some(wake), _socket: socket })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // The panic has been reported.
            let _ = thread.join();
        }
    }
}

enum WaitOutcome {
    Ready,
    TimedOut,
    /// The run is ending.
    RunFinished,
}

/// Waits until a file is ready, without limit if `until` is `None`.
fn wait(file: &impl AsFd, flags: PollFlags, ended: &UnixStream, until: Option<Instant>) -> WaitOutcome {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return WaitOutcome::TimedOut;
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut files = [PollFd::new(file, flags), PollFd::new(ended, PollFlags::IN)];
        match poll(&mut files, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(0) => {}
            Err(_) => return WaitOutcome::RunFinished,
            Ok(_) if !files[1].revents().is_empty() => return WaitOutcome::RunFinished,
            Ok(_) => return WaitOutcome::Ready,
        }
    }
}

/// Reads a client's request and sends the answer.
fn handle_client(mut client: UnixStream, ended: &UnixStream, service: &mut dyn Service) -> io::Result<()> {
    client.set_nonblocking(true)?;
    let until = Instant::now() + REQUEST_TIMEOUT;
    let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
    let length = loop {
        match client.read(&mut chunk) {
            // The end of the stream ends a line too.
            Ok(0) => break request.len(),
            Ok(count) => {
                let before = request.len();
                request.extend_from_slice(&chunk[..count]);
                if let Some(end) = chunk[..count].iter().position(|byte| *byte == b'\n') {
                    break before + end;
                }
                // Too long for any request: `control::answer` reports that.
                if request.len() > MAX_REQUEST_BYTES {
                    break request.len();
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match wait(&client, PollFlags::IN, ended, Some(until)) {
                    WaitOutcome::Ready => {}
                    // A client that is too slow would keep others waiting.
                    WaitOutcome::TimedOut | WaitOutcome::RunFinished => return Ok(()),
                }
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            return Ok(());
        }
    };
    let answer = control::answer(&request[..length], service);
    let until = Instant::now() + ANSWER_TIMEOUT;
    let mut rest = &answer[..];
    while !rest.is_empty() {
        match client.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match wait(&client, PollFlags::OUT, ended, Some(until)) {
                    WaitOutcome::Ready => {}
                    WaitOutcome::TimedOut | WaitOutcome::RunFinished => return Ok(()),
                }
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            return Ok(());
        }
    }
    Ok(())
}
