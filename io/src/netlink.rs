//! A minimal rtnetlink client: netlink(7), rtnetlink(7), include/uapi/linux/netlink.h.
//!
//! Requests are few and answers are read attribute by attribute, so this is smaller than the glue
//! for `netlink-packet-route`, `netlink-packet-core` and `netlink-sys` would be.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Receive buffer size in bytes, larger than any message: an interface without its statistics takes
/// a page or two.
const BUFFER_SIZE: usize = 64 << 10;

/// Size of `struct nlmsghdr`: length, type, flags, sequence number, port ID.
const MESSAGE_HEADER: usize = size_of::<libc::nlmsghdr>();

/// Size of the header of an attribute (`struct nlattr`): length, type.
const ATTRIBUTE_HEADER: usize = 4;

/// Size of `struct ifinfomsg`, include/uapi/linux/rtnetlink.h, which precedes an interface's
/// attributes.
pub(crate) const LINK_HEADER: usize = size_of::<libc::ifinfomsg>();

/// Body of a request: a fixed part, then attributes.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Creates a body whose fixed part consists of these words.
    pub(crate) fn new(fixed: &[u32]) -> Message {
        Message(fixed.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    /// Creates a body that starts with `struct ifinfomsg`; the flags in `changed` are set to their
    /// values in `flags`.
    pub(crate) fn link(index: u32, flags: u32, changed: u32) -> Message {
        // Family AF_UNSPEC and device type 0: the kernel ignores them in requests.
        Message::new(&[0, index, flags, changed])
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |message| message.0.extend(value));
    }

    /// Appends a zero-terminated string attribute.
    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        self.nested(kind, |message| {
            message.0.extend(value.as_bytes());
            message.0.push(0);
        });
    }

    pub(crate) fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute with nested attributes, or with any other content that `fill` writes.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let start = self.0.len();
        self.0.extend([0, 0]);
        self.0.extend(kind.to_ne_bytes());
        fill(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Appends another message's fixed part, which some attributes contain.
    pub(crate) fn append(&mut self, message: &Message) {
        self.0.extend(&message.0);
    }
}

/// An rtnetlink(7) socket, in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: File,
    sequence: u32,
    buffer: Vec<u8>,
}

/// A message from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'a> {
    /// Message type: `RTM_…`, `NLMSG_…`.
    pub kind: u16,
    /// Sequence number of the request it answers; 0 for events.
    sequence: u32,
    /// Message without its header.
    pub body: &'a [u8],
}

impl Netlink {
    /// Opens a socket. With multicast `groups` (`RTMGRP_…`) it also receives events and does not
    /// block.
    pub(crate) fn open(groups: u32) -> io::Result<Netlink> {
        let wait = if groups == 0 { 0 } else { libc::SOCK_NONBLOCK };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | wait;
        // SAFETY: the call takes no pointers.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created; nothing else owns it.
        let socket = File::from(unsafe { OwnedFd::from_raw_fd(socket) });
        // SAFETY: `sockaddr_nl` is plain integers, for which zeros are valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: pointer and length describe a live `sockaddr_nl`.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; BUFFER_SIZE] })
    }

    /// Sends a request and waits for the acknowledgement.
    pub(crate) fn request(&mut self, kind: u16, flags: i32, message: &Message) -> io::Result<()> {
        self.send(kind, libc::NLM_F_ACK | flags, message)?;
        self.receive_answers(|_| Ok(()))
    }

    /// Requests one object and returns the first answer's body.
    pub(crate) fn query(&mut self, kind: u16, message: &Message) -> io::Result<Vec<u8>> {
        self.send(kind, libc::NLM_F_ACK, message)?;
        let mut body = None;
        self.receive_answers(|it| {
            body.get_or_insert(it.body.to_vec());
            Ok(())
        })?;
        body.ok_or_else(|| io::Error::other("the kernel has no answer"))
    }

    /// Requests a dump and passes each answer's body to `each`.
    pub(crate) fn dump(&mut self, kind: u16, message: &Message, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, libc::NLM_F_DUMP, message)?;
        self.receive_answers(|it| {
            each(it.body);
            Ok(())
        })
    }

    /// Passes all queued events to `each`, then returns the error that ended reading: `WouldBlock`
    /// if the queue is empty, `ENOBUFS` if it overflowed and events were lost.
    pub(crate) fn drain_events(&mut self, mut each: impl FnMut(Answer)) -> io::Error {
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(length) => Messages(&self.buffer[..length]).for_each(&mut each),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
        }
    }

    fn send(&mut self, kind: u16, flags: i32, message: &Message) -> io::Result<()> {
        self.sequence += 1;
        let mut request = Vec::with_capacity(MESSAGE_HEADER + message.0.len());
        request.extend(((MESSAGE_HEADER + message.0.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        // Port ID 0: the kernel fills in the sender's.
        request.extend([0; 4]);
        request.extend(&message.0);
        self.socket.write_all(&request)
    }

    /// Passes the answers to the last request to `each`, until the final one.
    fn receive_answers(&mut self, mut each: impl FnMut(Answer) -> io::Result<()>) -> io::Result<()> {
        loop {
            let length = match self.socket.read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                length => length?,
            };
            if length == 0 {
                return Err(io::Error::other("the kernel has no answer"));
            }
            for answer in Messages(&self.buffer[..length]) {
                // Late answer to an earlier request whose reading was abandoned.
                if answer.sequence != self.sequence {
                    continue;
                }
                match i32::from(answer.kind) {
                    // `struct nlmsgerr`: the error (0 for success), then the request.
                    libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                        let error = answer.body.first_chunk().map_or(0, |word| i32::from_ne_bytes(*word));
                        return match error {
                            0 => Ok(()),
                            error => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
                        };
                    }
                    libc::NLMSG_NOOP | libc::NLMSG_OVERRUN => {}
                    _ => each(answer)?,
                }
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

/// Iterator over the messages of a datagram.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Answer<'a>;

    fn next(&mut self) -> Option<Answer<'a>> {
        let header: &[u8; MESSAGE_HEADER] = self.0.first_chunk()?;
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = word(0) as usize;
        let message = self.0.get(..length)?;
        let body = message.get(MESSAGE_HEADER..)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Answer { kind: u16::from_ne_bytes([header[4], header[5]]), sequence: word(8), body })
    }
}

/// Iterates over attributes as (type, value), with the two flag bits of the type cleared.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[l0, l1, k0, k1] = bytes.first_chunk::<ATTRIBUTE_HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(..length)?.get(ATTRIBUTE_HEADER..)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & libc::NLA_TYPE_MASK as u16, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let mut message = Message::new(&[7]);
        message.string(3, "eth0");
        message.nested(18, |message| {
            message.number(1, 0x0102_0304);
            message.attribute(2, &[]);
        });
        assert_eq!(message.0.len(), 4 + 12 + 4 + 8 + 4);
        let (_, rest) = message.0.split_at(4);
        let read: Vec<_> = attributes(rest).collect();
        assert_eq!(read[0], (3, &b"eth0\0"[..]));
        assert_eq!(read[1].0, 18);
        let inner: Vec<_> = attributes(read[1].1).collect();
        assert_eq!(inner, [(1, &0x0102_0304u32.to_ne_bytes()[..]), (2, &[])]);
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn parsing_stops_at_truncated_messages_and_invalid_lengths() {
        let mut message = Message::new(&[]);
        message.string(3, "eth0");
        message.number(4, 1500);
        for length in 0..message.0.len() {
            assert_eq!(attributes(&message.0[..length]).count(), usize::from(length >= 9), "{length}");
            assert!(Messages(&message.0[..length]).count() <= 1);
        }
        for length in [0u16, 1, 3, 5000] {
            message.0[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&message.0).count(), 0, "{length}");
            let mut header = [0; MESSAGE_HEADER];
            header[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(Messages(&header).count(), 0, "{length}");
        }
    }

    #[test]
    fn the_loopback_interface_is_found_and_an_unknown_one_is_enodev() {
        let mut netlink = Netlink::open(0).unwrap();
        let link = netlink.query(libc::RTM_GETLINK, &Message::link(1, 0, 0)).unwrap();
        assert!(attributes(&link[LINK_HEADER..]).any(|it| it == (libc::IFLA_IFNAME, b"lo\0")));
        let mut seen = 0;
        netlink.dump(libc::RTM_GETLINK, &Message::link(0, 0, 0), |_| seen += 1).unwrap();
        assert!(seen >= 1);
        let error = netlink.query(libc::RTM_GETLINK, &Message::link(0x7fff_fff0, 0, 0)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
