//! A netlink socket to netfilter: the one place here that speaks to the system.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The most datagrams that one call takes.
pub(super) const BURST: usize = 64;

/// The most pieces that a message may be sent in: `UIO_MAXIOV` of `linux/uio.h`.
pub(super) const MAX_PIECES: usize = 1024;

/// `NETLINK_NO_ENOBUFS` and `NETLINK_CAP_ACK` of `linux/netlink.h`.
const NETLINK_NO_ENOBUFS: libc::c_int = 5;
const NETLINK_CAP_ACK: libc::c_int = 10;

/// A socket that only the kernel sends to.
#[derive(Debug)]
pub(super) struct Socket(File);

impl Socket {
    /// # Errors
    /// The system's: `EPROTONOSUPPORT` where the kernel has no netfilter that can be spoken to.
    pub fn open() -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is involved.
        let socket = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER) })?;
        // SAFETY: the number was just opened, and nobody else knows it.
        let socket = Socket(File::from(unsafe { OwnedFd::from_raw_fd(socket) }));
        // Connecting gives it a port of its own, and lets the kernel refuse what other programs send there.
        // SAFETY: all bytes zero are a `sockaddr_nl`.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let length = size_of_val(&kernel) as libc::socklen_t;
        // SAFETY: `kernel` is a `sockaddr_nl` of this length.
        check(unsafe { libc::connect(socket.0.as_raw_fd(), (&raw const kernel).cast(), length) })?;
        // Refusals then have the header of what they refuse, and not all of the packet that was in it. A kernel that does not
        // know the option (before 4.3) sends more than is wanted.
        let _ = socket.set(libc::SOL_NETLINK, NETLINK_CAP_ACK, 1);
        // Without it, once the buffer has been full the kernel drops everything until it is empty. A kernel that does not
        // know it (before 2.6.30) says ENOBUFS, which the receiver survives.
        let _ = socket.set(libc::SOL_NETLINK, NETLINK_NO_ENOBUFS, 1);
        Ok(socket)
    }

    /// Asks for room for bytes that wait to be taken, and to be sent. Who may not pass the system's limit gets that.
    pub fn set_buffers(&self, receive: usize, send: usize) -> io::Result<()> {
        for (force, plain, bytes) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send)]
        {
            // The kernel doubles it.
            let bytes = bytes.min(i32::MAX as usize / 2) as libc::c_int;
            if self.set(libc::SOL_SOCKET, force, bytes).is_err() {
                self.set(libc::SOL_SOCKET, plain, bytes)?;
            }
        }
        Ok(())
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let length = size_of_val(&value) as libc::socklen_t;
        let at = (&raw const value).cast();
        // SAFETY: `at` is an int of this length, which outlives the call.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, at, length) }).map(|_| ())
    }

    /// Sends messages as one datagram. The kernel has carried out, or refused, all of them when this comes back.
    pub fn send(&self, pieces: &[IoSlice]) -> io::Result<()> {
        // Datagrams go as a whole or not at all.
        (&self.0).write_vectored(pieces).map(|_| ())
    }

    /// Looks at the datagram that will be taken next, without waiting for one; gives how many of its bytes there are.
    pub fn look(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, libc::MSG_PEEK)
    }

    /// Takes the next datagram, without waiting for one; gives how many of its bytes there are. What does not fit is lost.
    pub fn next(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, 0)
    }

    fn receive(&self, into: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: pointer and length are those of a slice that is ours to write.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Waits until there is a datagram, or the time is over, or a signal came; says whether there is one.
    pub fn wait(&self, most: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = libc::timespec {
            tv_sec: most.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: one `pollfd` and a `timespec`, both of which outlive the call; no signal mask.
        match check(unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) }) {
            Ok(ready) => Ok(ready > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes datagrams, without waiting, into these places in order; gives how many, at most [`BURST`]. A place is for a
    /// datagram's beginning and for what does not fit there; what does not fit there either is lost. `lengths` gets how
    /// long they were as they were sent.
    pub fn take<'a>(
        &self,
        places: impl Iterator<Item = [&'a mut [u8]; 2]>,
        lengths: &mut [usize; BURST],
    ) -> io::Result<usize> {
        let nowhere = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut pieces = [[nowhere; 2]; BURST];
        // SAFETY: all bytes zero are an `mmsghdr` without an address, pieces and control data.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        for ((message, pieces), place) in messages.iter_mut().zip(&mut pieces).zip(places) {
            *pieces = place.map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len();
            count += 1;
        }
        // MSG_TRUNC: the length is that of the datagram, and not of what there is of it.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (descriptor, no_timeout) = (self.0.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: `count` headers, each with two pieces of memory that are borrowed for writing (`'a`) until this function
        // is over, and so do not overlap.
        let taken = check(unsafe { libc::recvmmsg(descriptor, messages.as_mut_ptr(), count, flags as _, no_timeout) })?;
        let taken = taken as usize;
        for (length, message) in lengths.iter_mut().zip(&messages[..taken]) {
            *length = message.msg_len as usize;
        }
        Ok(taken)
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
