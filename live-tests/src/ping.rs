//! ICMP echo requests: icmp(7).
#![allow(unsafe_code)]

use std::io::Error;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::namespace::Namespace;

/// Payload of a request, in bytes.
const PAYLOAD: usize = 56;

/// Sends echo requests from a namespace, five a second for up to `timeout`, and returns whether one
/// was answered.
///
/// # Panics
/// If the system refuses to create a socket.
pub fn ping(from: &Namespace, to: IpAddr, timeout: Duration) -> bool {
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP, 8, 0),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6, 128, 129),
    };
    let socket = from.run(|| {
        // SAFETY: the call takes no memory.
        let socket = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol) };
        assert!(socket >= 0, "a socket for echoes: {}", Error::last_os_error());
        // An ICMP datagram socket: the kernel sets identifier and checksum, and delivers only its
        // answers. SAFETY: the call has just returned this descriptor, and nothing else owns it.
        UdpSocket::from(unsafe { OwnedFd::from_raw_fd(socket) })
    });
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout above 0");
    let started = Instant::now();
    for sequence in 0..u16::MAX {
        // RFC 792, RFC 4443: type, code, checksum, identifier, sequence number.
        let mut message = vec![request, 0, 0, 0, 0, 0];
        message.extend(sequence.to_be_bytes());
        message.extend((0..PAYLOAD).map(|i| i as u8 ^ sequence as u8));
        // There may be no route or no neighbour entry yet: retry.
        let sent = socket.send_to(&message, SocketAddr::new(to, 0));
        let mut answer = [0; 8 + PAYLOAD + 1];
        while let (Ok(_), Ok(length)) = (&sent, socket.recv(&mut answer)) {
            if length == message.len() && answer[0] == reply && answer[6..length] == message[6..] {
                return true;
            }
        }
        if started.elapsed() >= timeout {
            return false;
        }
        if sent.is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    false
}
