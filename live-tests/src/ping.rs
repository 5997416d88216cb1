//! Echoes: icmp(7).
#![allow(unsafe_code)]

use std::io::Error;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::namespace::Namespace;

/// Bytes behind the header of a request.
const PAYLOAD: usize = 56;

/// Whether somebody at this address answers a namespace, which asks five times a second for this
/// long.
///
/// # Panics
/// When the system refuses to make a socket.
pub fn ping(from: &Namespace, to: IpAddr, most: Duration) -> bool {
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP, 8, 0),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6, 128, 129),
    };
    let socket = from.run(|| {
        // SAFETY: it takes no memory.
        let socket = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol) };
        assert!(socket >= 0, "a socket for echoes: {}", Error::last_os_error());
        // Sent and received like datagrams: the kernel sees to identifiers and checksums, and sorts
        // answers out. SAFETY: it was just made, and is nobody else's.
        UdpSocket::from(unsafe { OwnedFd::from_raw_fd(socket) })
    });
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a time above 0");
    let started = Instant::now();
    for sequence in 0..u16::MAX {
        // RFC 792, RFC 4443: type, code, checksum, identifier, sequence number.
        let mut message = vec![request, 0, 0, 0, 0, 0];
        message.extend(sequence.to_be_bytes());
        message.extend((0..PAYLOAD).map(|i| i as u8 ^ sequence as u8));
        // There may be no route, or nobody who knows the address, yet.
        let sent = socket.send_to(&message, SocketAddr::new(to, 0));
        let mut answer = [0; 8 + PAYLOAD + 1];
        while let (Ok(_), Ok(length)) = (&sent, socket.recv(&mut answer)) {
            if length == message.len() && answer[0] == reply && answer[6..length] == message[6..] {
                return true;
            }
        }
        if started.elapsed() >= most {
            return false;
        }
        if sent.is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    false
}
