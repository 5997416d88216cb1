//! The netlink socket to netfilter; contains all system calls of this module.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Maximum number of datagrams received per call.
pub(super) const BURST: usize = 64;

/// Maximum number of parts of a datagram: `UIO_MAXIOV` of `linux/uio.h`.
pub(super) const MAX_PARTS: usize = 1024;

/// `NETLINK_NO_ENOBUFS` and `NETLINK_CAP_ACK` of `linux/netlink.h`.
const NETLINK_NO_ENOBUFS: libc::c_int = 5;
const NETLINK_CAP_ACK: libc::c_int = 10;

/// A socket connected to the kernel.
#[derive(Debug)]
pub(super) struct Socket(File);

impl Socket {
    /// # Errors
    /// The system's: `EPROTONOSUPPORT` if the kernel has no nfnetlink.
    pub fn open() -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes no pointers.
        let socket = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER) })?;
        // SAFETY: the descriptor was just created; nothing else owns it.
        let socket = Socket(File::from(unsafe { OwnedFd::from_raw_fd(socket) }));
        // Connecting assigns a port ID and makes the kernel reject messages from other processes.
        // SAFETY: zeros are a valid `sockaddr_nl`.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let length = size_of_val(&kernel) as libc::socklen_t;
        // SAFETY: pointer and length describe the live `kernel`.
        check(unsafe { libc::connect(socket.0.as_raw_fd(), (&raw const kernel).cast(), length) })?;
        // Truncates error reports to the header of the refused message, without the packet in it.
        // Ignore failure: kernels before 4.3 send it all.
        let _ = socket.set(libc::SOL_NETLINK, NETLINK_CAP_ACK, 1);
        // Otherwise, after an overflow the kernel drops everything until the buffer is empty.
        // Ignore failure: kernels before 2.6.30 report ENOBUFS, which the receiver handles.
        let _ = socket.set(libc::SOL_NETLINK, NETLINK_NO_ENOBUFS, 1);
        Ok(socket)
    }

    /// Sets the buffer sizes in bytes, beyond the system's limits if permitted.
    pub fn set_buffers(&self, receive: usize, send: usize) -> io::Result<()> {
        for (force, plain, bytes) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send)]
        {
            // The kernel doubles the value.
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
        // SAFETY: `at` points to an int of this length that outlives the call.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, at, length) }).map(|_| ())
    }

    /// Sends a datagram of messages. On return, the kernel has executed or refused all of them.
    pub fn send(&self, pieces: &[IoSlice]) -> io::Result<()> {
        // Datagrams are sent whole or not at all.
        (&self.0).write_vectored(pieces).map(|_| ())
    }

    /// Peeks at the next datagram without blocking; returns the number of bytes copied.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, libc::MSG_PEEK)
    }

    /// Receives the next datagram without blocking; returns the number of bytes copied. The excess
    /// is lost.
    pub fn receive_one(&self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, 0)
    }

    fn receive(&self, into: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: pointer and length describe a writable slice.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Waits until a datagram is available, a signal arrives or `max` has passed; returns whether
    /// a datagram is available.
    pub fn wait(&self, max: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = libc::timespec {
            tv_sec: max.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: max.subsec_nanos().into(),
        };
        // SAFETY: `poll` and `timeout` outlive the call; there is no signal mask.
        match check(unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) }) {
            Ok(ready) => Ok(ready > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Receives at most [`BURST`] datagrams without blocking and returns their number. Each place
    /// consists of a buffer for the start of a datagram and one for the excess; what fits in
    /// neither is lost. `lengths` receives the datagrams' full lengths.
    pub fn receive_many<'a>(
        &self,
        places: impl Iterator<Item = [&'a mut [u8]; 2]>,
        lengths: &mut [usize; BURST],
    ) -> io::Result<usize> {
        let nowhere = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut pieces = [[nowhere; 2]; BURST];
        // SAFETY: zeros are a valid `mmsghdr` without address, parts and control data.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        for ((message, pieces), place) in messages.iter_mut().zip(&mut pieces).zip(places) {
            *pieces = place.map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len();
            count += 1;
        }
        // MSG_TRUNC: report the full length of a truncated datagram.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (descriptor, no_timeout) = (self.0.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: `count` headers, each with two buffers borrowed mutably (`'a`) until this
        // function returns, so they do not overlap.
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
