//! Frames, byte for byte: packet(7).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::{Error, ErrorKind};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libc::{c_int, c_void};

use crate::namespace::Namespace;
use crate::veth::End;

/// The longest frame that a link gives: segments that are still to be cut have up to 64 KiB behind
/// their headers.
const LONGEST: usize = 66 << 10;

/// Memory for frames that nobody has taken yet, in bytes.
const BACKLOG: c_int = 32 << 20;

/// Sends and receives frames at an interface, beside the kernel's own stack.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

/// A frame that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// All of it, a VLAN tag that the kernel had taken out included.
    pub bytes: Vec<u8>,
    /// State of the transport checksum.
    pub checksum: Checksum,
}

/// Whether a frame's checksum is to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// The sender left it to its network card: what stands there is the pseudo-header's sum.
    Partial,
    /// Somebody has checked it.
    Verified,
    /// Nobody has.
    Unknown,
}

impl PacketSocket {
    /// One that receives what comes in at an end of a link; what goes out there it does not see.
    ///
    /// # Panics
    /// When the system refuses.
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
        PacketSocket { socket, buffer: vec![0; LONGEST].into() }
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// When the system refuses: [`PacketSocket::try_send`].
    pub fn send(&self, frame: &[u8]) {
        self.try_send(frame).unwrap_or_else(|e| panic!("a frame of {} bytes cannot be sent: {e}", frame.len()));
    }

    /// Sends a frame. It goes out as it is, with all that is wrong in it.
    ///
    /// # Errors
    /// The system's: the interface is down, the frame is longer than its MTU.
    pub fn try_send(&self, frame: &[u8]) -> Result<(), Error> {
        // SAFETY: pointer and length are those of a slice.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        check(sent).map(|sent| assert_eq!(sent as usize, frame.len(), "a part of a frame went out"))
    }

    /// Sends a frame that the link may have no room for; then the link counts it as dropped.
    ///
    /// # Errors
    /// As [`PacketSocket::try_send`].
    pub fn offer(&self, frame: &[u8]) -> Result<(), Error> {
        match self.try_send(frame) {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => sent,
        }
    }

    /// The next frame that came in, for which it waits this long.
    ///
    /// # Panics
    /// When the system refuses: the interface is gone.
    pub fn receive(&mut self, most: Duration) -> Option<Frame> {
        self.try_receive(most).unwrap_or_else(|e| panic!("no frame can be received: {e}"))
    }

    /// The next frame that is wanted, for which it waits this long in all; others are thrown away.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn receive_where(&mut self, most: Duration, mut is_wanted: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        let until = Instant::now() + most;
        loop {
            let frame = self.receive(until.saturating_duration_since(Instant::now()))?;
            if is_wanted(&frame) {
                return Some(frame);
            }
        }
    }

    /// The next frame that came in, for which it waits this long.
    ///
    /// # Errors
    /// The system's. That the interface went down is told once.
    pub fn try_receive(&mut self, most: Duration) -> Result<Option<Frame>, Error> {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = most.as_micros().div_ceil(1000).try_into().unwrap_or(c_int::MAX);
        // SAFETY: one structure, which lives.
        match check(unsafe { libc::poll(&raw mut poll, 1, milliseconds) } as isize) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        }
        // Aligned as control messages are.
        let mut control = [0u64; 16];
        let mut vector = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: a structure of pointers and numbers, for which zeros are good.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the message names a buffer and room for control messages that live, with their
        // lengths.
        let received = check(unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) });
        let length = match received {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            received => received? as usize,
        };
        assert_eq!(message.msg_flags & libc::MSG_TRUNC, 0, "a frame is longer than {LONGEST} bytes");
        let mut frame = Frame { bytes: self.buffer[..length].to_vec(), checksum: Checksum::Unknown };
        // SAFETY: the kernel has filled in the message.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: where there is a header, it lies in `control`.
        if let Some(what) = unsafe { header.as_ref() }
            && (what.cmsg_level, what.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        {
            // SAFETY: behind a header of this kind there is this structure, maybe not aligned.
            let aux = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
            frame.complete(&aux);
        }
        Ok(Some(frame))
    }
}

impl Frame {
    /// Adds what the kernel says of a frame beside its bytes: linux/if_packet.h.
    fn complete(&mut self, aux: &libc::tpacket_auxdata) {
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

/// A socket at an interface of the namespace that the thread is in.
fn open(interface: &str) -> Result<OwnedFd, Error> {
    let name = CString::new(interface).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
    // SAFETY: a string that lives.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(Error::last_os_error());
    }
    // Protocol 0: it receives nothing until it is bound, and so nothing of other interfaces.
    // SAFETY: it takes no memory.
    let socket = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } as isize)?;
    // SAFETY: it was just made, and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as c_int) };
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BACKLOG),
        (libc::SOL_PACKET, libc::PACKET_AUXDATA, 1),
        (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1),
    ] {
        let pointer: *const c_void = (&raw const value).cast();
        // SAFETY: pointer and length are those of a number that lives.
        let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, size_of::<c_int>() as u32) };
        check(set as isize)?;
    }
    // SAFETY: a structure of numbers, for which zeros are good.
    let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let length = size_of_val(&address) as u32;
    // SAFETY: pointer and length are those of a structure that lives, the one that the family has.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } as isize)?;
    Ok(socket)
}

fn check(result: isize) -> Result<isize, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}
