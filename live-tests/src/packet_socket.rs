//! Sends and receives whole frames: packet(7).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::{Error, ErrorKind};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::{c_int, c_void};

use crate::namespace::Namespace;
use crate::veth::End;

/// Length of the longest frame that a link delivers: segments not yet cut have up to 64 KiB behind
/// their headers.
const MAX_FRAME_LENGTH: usize = 66 << 10;

/// Receive buffer, in bytes, for frames not taken yet.
const RECEIVE_BUFFER: c_int = 32 << 20;

/// A packet socket that sends and receives frames at an interface, beside the kernel's own stack.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The whole frame, including a VLAN tag that the kernel had removed.
    pub bytes: Vec<u8>,
    /// State of the transport checksum.
    pub checksum: Checksum,
}

/// State of a frame's transport checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Left to the sender's network card: the field holds the pseudo-header's sum.
    Partial,
    /// Verified by the kernel or the card.
    Verified,
    /// Neither completed nor verified.
    Unknown,
}

impl PacketSocket {
    /// Opens a socket that receives what arrives at an end of a link, and not what leaves there.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn at(end: &End) -> PacketSocket {
        PacketSocket::open(end.namespace(), end.name())
    }

    /// Opens a socket on any interface of a namespace.
    ///
    /// # Panics
    /// If there is no such interface, or the system refuses.
    pub fn open(namespace: &Namespace, interface: &str) -> PacketSocket {
        let what = format!("{interface} in {}", namespace.name());
        let opened = namespace.run(|| open(interface));
        let socket = opened.unwrap_or_else(|e| panic!("a packet socket at {what}: {e}"));
        PacketSocket { socket, buffer: vec![0; MAX_FRAME_LENGTH].into() }
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// If the system refuses; see [`PacketSocket::try_send`].
    pub fn send(&self, frame: &[u8]) {
        self.try_send(frame).unwrap_or_else(|e| panic!("a frame of {} bytes cannot be sent: {e}", frame.len()));
    }

    /// Sends a frame unchanged, however malformed.
    ///
    /// # Errors
    /// The system's: the interface is down, or the frame is longer than its MTU.
    pub fn try_send(&self, frame: &[u8]) -> Result<(), Error> {
        // SAFETY: pointer and length are those of a slice.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        errno_result(sent).map(|sent| assert_eq!(sent as usize, frame.len(), "the frame was sent in part"))
    }

    /// Sends a frame that the link may have no room for; the link then counts it as dropped.
    ///
    /// # Errors
    /// As [`PacketSocket::try_send`], without ENOBUFS.
    pub fn offer(&self, frame: &[u8]) -> Result<(), Error> {
        match self.try_send(frame) {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => sent,
        }
    }

    /// Returns the next frame, waiting up to `timeout` for it.
    ///
    /// # Panics
    /// If the system refuses: the interface is gone.
    pub fn receive(&mut self, timeout: Duration) -> Option<Frame> {
        self.try_receive(timeout).unwrap_or_else(|e| panic!("no frame can be received: {e}"))
    }

    /// Returns the next frame that `is_wanted` accepts, waiting up to `timeout` in all; others are
    /// discarded.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn receive_where(&mut self, timeout: Duration, mut is_wanted: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        let until = Instant::now() + timeout;
        loop {
            let frame = self.receive(until.saturating_duration_since(Instant::now()))?;
            if is_wanted(&frame) {
                return Some(frame);
            }
        }
    }

    /// Returns the next frame, waiting up to `timeout` for it.
    ///
    /// # Errors
    /// The system's. The socket reports once that the interface went down.
    pub fn try_receive(&mut self, timeout: Duration) -> Result<Option<Frame>, Error> {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = timeout.as_micros().div_ceil(1000).try_into().unwrap_or(c_int::MAX);
        // SAFETY: one structure, which outlives the call.
        match errno_result(unsafe { libc::poll(&raw mut poll, 1, milliseconds) } as isize) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        }
        // u64, for the alignment of control messages.
        let mut control = [0u64; 16];
        let mut vector = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: a structure of pointers and numbers, for which zeros are valid.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the message names a buffer and a control buffer that outlive the call, with their
        // lengths.
        let received =
            errno_result(unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) });
        let length = match received {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            received => received? as usize,
        };
        assert_eq!(message.msg_flags & libc::MSG_TRUNC, 0, "a frame is longer than {MAX_FRAME_LENGTH} bytes");
        let mut frame = Frame { bytes: self.buffer[..length].to_vec(), checksum: Checksum::Unknown };
        // SAFETY: the kernel has filled in the message.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: a header that is not null lies within `control`.
        if let Some(what) = unsafe { header.as_ref() }
            && (what.cmsg_level, what.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        {
            // SAFETY: a message of this type holds this structure, possibly unaligned.
            let aux = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
            frame.apply_auxiliary_data(&aux);
        }
        Ok(Some(frame))
    }
}

impl Frame {
    /// Applies the auxiliary data that the kernel gives for a frame: linux/if_packet.h.
    fn apply_auxiliary_data(&mut self, aux: &libc::tpacket_auxdata) {
        if aux.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            self.checksum = Checksum::Partial;
        } else if aux.tp_status & libc::TP_STATUS_CSUM_VALID != 0 {
            self.checksum = Checksum::Verified;
        }
        if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
            let [t0, t1] = aux.tp_vlan_tpid.to_be_bytes();
            let [c0, c1] = aux.tp_vlan_tci.to_be_bytes();
            self.bytes.splice(12..12, [t0, t1, c0, c1]);
        }
    }

    /// Returns the EtherType, or that of the first tag; 0 if the frame is too short.
    pub fn ether_type(&self) -> u16 {
        self.bytes.get(12..14).map_or(0, |word| u16::from_be_bytes([word[0], word[1]]))
    }
}

/// Opens a socket at an interface of the calling thread's namespace.
fn open(interface: &str) -> Result<OwnedFd, Error> {
    let name = CString::new(interface).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
    // SAFETY: a NUL-terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(Error::last_os_error());
    }
    // Protocol 0: until it is bound the socket receives nothing, and so nothing of other
    // interfaces. SAFETY: the call takes no memory.
    let socket =
        errno_result(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } as isize)?;
    // SAFETY: the call has just returned this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as c_int) };
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER),
        (libc::SOL_PACKET, libc::PACKET_AUXDATA, 1),
        (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1),
    ] {
        let pointer: *const c_void = (&raw const value).cast();
        // SAFETY: pointer and length are those of an integer that outlives the call.
        let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, size_of::<c_int>() as u32) };
        errno_result(set as isize)?;
    }
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let length = size_of_val(&address) as u32;
    // SAFETY: pointer and length are those of a structure that outlives the call and that the
    // family requires.
    errno_result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } as isize)?;
    Ok(socket)
}

fn errno_result(result: isize) -> Result<isize, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}
