//! TCP connections between namespaces: tcp(7).

use std::io::{Error, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::namespace::Namespace;

/// Time limit for each read and write once the connection is established.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects one namespace to an address of another, and sends `bytes` bytes through an echo server
/// there, using both directions at once. Port 0 is any free port.
///
/// # Errors
/// No connection within `timeout`, or a connection that ends early or stalls.
///
/// # Panics
/// If other bytes come back.
pub fn tcp_echo(
    from: &Namespace,
    to: &Namespace,
    address: impl Into<SocketAddr>,
    bytes: usize,
    timeout: Duration,
) -> Result<(), Error> {
    let address = address.into();
    let listener = to.run(|| TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    let stream = from.run(|| TcpStream::connect_timeout(&address, timeout))?;
    // The connection is established already, so this does not block.
    let (mut other, _) = listener.accept()?;
    for stream in [&stream, &other] {
        stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        stream.set_write_timeout(Some(STALL_TIMEOUT))?;
    }
    let sent: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || std::io::copy(&mut other.try_clone()?, &mut other));
        let (mut out, mut back) = (stream.try_clone()?, stream);
        let sent = &sent;
        let writer = scope.spawn(move || {
            out.write_all(sent)?;
            out.shutdown(Shutdown::Write)
        });
        let mut received = Vec::new();
        back.read_to_end(&mut received)?;
        writer.join().expect("the thread does not panic")?;
        echo.join().expect("the thread does not panic")?;
        assert!(&received == sent, "received {} of {} bytes, or wrong ones", received.len(), sent.len());
        Ok(())
    })
}
