//! Connections: tcp(7).

use std::io::{Error, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::namespace::Namespace;

/// How long nothing may come, once there is a connection.
const STALLED: Duration = Duration::from_secs(20);

/// Connects one namespace to an address of another, and has it carry so many bytes there and back,
/// with both directions in use at once. Port 0 is any port. There is an error where no connection
/// comes about in time, or it ends or stalls.
///
/// # Panics
/// When other bytes come back.
pub fn tcp_echo(
    from: &Namespace,
    to: &Namespace,
    address: impl Into<SocketAddr>,
    bytes: usize,
    patience: Duration,
) -> Result<(), Error> {
    let address = address.into();
    let listener = to.run(|| TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    let stream = from.run(|| TcpStream::connect_timeout(&address, patience))?;
    // It is there: the connection came about.
    let (mut other, _) = listener.accept()?;
    for stream in [&stream, &other] {
        stream.set_read_timeout(Some(STALLED))?;
        stream.set_write_timeout(Some(STALLED))?;
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
        writer.join().expect("it does not panic")?;
        echo.join().expect("it does not panic")?;
        assert!(&received == sent, "{} of {} bytes came back, or others", received.len(), sent.len());
        Ok(())
    })
}
