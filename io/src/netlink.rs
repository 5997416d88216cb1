//! Messages to the kernel and from it: netlink(7), rtnetlink(7), include/uapi/linux/netlink.h.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longer than any answer: an interface without its statistics is a page or two.
const ANSWER: usize = 64 << 10;

/// `struct nlmsghdr`: length, type, flags, sequence number, who asks.
const HEADER: usize = size_of::<libc::nlmsghdr>();

/// `struct nlattr`: length, type.
const ATTRIBUTE: usize = 4;

/// `struct ifinfomsg`, include/uapi/linux/rtnetlink.h, which comes before the attributes of an interface.
pub(crate) const LINK: usize = size_of::<libc::ifinfomsg>();

/// What follows `struct nlmsghdr` in a request: a fixed part, then attributes.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// With a fixed part of words.
    pub(crate) fn new(fixed: &[u32]) -> Message {
        Message(fixed.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    /// `struct ifinfomsg`: of the flags, those in `changed` are set to what is in `flags`.
    pub(crate) fn link(index: u32, flags: u32, changed: u32) -> Message {
        // Family and type are told by nobody.
        Message::new(&[0, index, flags, changed])
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |message| message.0.extend(value));
    }

    /// A string, with the zero byte that ends it.
    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        self.nested(kind, |message| {
            message.0.extend(value.as_bytes());
            message.0.push(0);
        });
    }

    pub(crate) fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// An attribute that has attributes; or something else, which is put behind its header.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let start = self.0.len();
        self.0.extend([0, 0]);
        self.0.extend(kind.to_ne_bytes());
        fill(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Another message's fixed part, as some attributes have it.
    pub(crate) fn append(&mut self, message: &Message) {
        self.0.extend(&message.0);
    }
}

/// A socket of rtnetlink(7), in the network namespace in which it was made.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: File,
    sequence: u32,
    answer: Vec<u8>,
}

/// A message from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'a> {
    /// `RTM_…`, `NLMSG_…`.
    pub kind: u16,
    /// Which request it answers; 0 where none.
    sequence: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

impl Netlink {
    /// One that also hears what happens in these groups (`RTMGRP_…`), without waiting for it.
    pub(crate) fn open(groups: u32) -> io::Result<Netlink> {
        let wait = if groups == 0 { 0 } else { libc::SOCK_NONBLOCK };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | wait;
        // SAFETY: it takes no memory.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just made, and is nobody else's.
        let socket = File::from(unsafe { OwnedFd::from_raw_fd(socket) });
        // SAFETY: a structure of numbers, for which zeros are good.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: pointer and length are those of a structure that lives, the one that the family has.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Netlink { socket, sequence: 0, answer: vec![0; ANSWER] })
    }

    /// Has something done, and waits until it is.
    pub(crate) fn request(&mut self, kind: u16, flags: i32, message: &Message) -> io::Result<()> {
        self.send(kind, libc::NLM_F_ACK | flags, message)?;
        self.each_answer(|_| Ok(()))
    }

    /// Asks for one thing, and gives what follows the header of the answer.
    pub(crate) fn ask(&mut self, kind: u16, message: &Message) -> io::Result<Vec<u8>> {
        self.send(kind, libc::NLM_F_ACK, message)?;
        let mut answer = None;
        self.each_answer(|it| {
            answer.get_or_insert(it.body.to_vec());
            Ok(())
        })?;
        answer.ok_or_else(|| io::Error::other("the kernel has no answer"))
    }

    /// Asks for a list, and hands out what follows the header of each answer.
    pub(crate) fn list(&mut self, kind: u16, message: &Message, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, libc::NLM_F_DUMP, message)?;
        self.each_answer(|it| {
            each(it.body);
            Ok(())
        })
    }

    /// What has happened and was not handed out yet. An error ends it: `WouldBlock` where there is no more, `ENOBUFS` where
    /// there was too much of it, and some was lost.
    pub(crate) fn heard(&mut self, mut each: impl FnMut(Answer)) -> io::Error {
        loop {
            match self.socket.read(&mut self.answer) {
                Ok(length) => Answers(&self.answer[..length]).for_each(&mut each),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
        }
    }

    fn send(&mut self, kind: u16, flags: i32, message: &Message) -> io::Result<()> {
        self.sequence += 1;
        let mut request = Vec::with_capacity(HEADER + message.0.len());
        request.extend(((HEADER + message.0.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        // The kernel fills in who asks.
        request.extend([0; 4]);
        request.extend(&message.0);
        self.socket.write_all(&request)
    }

    /// Hands out the answers to the last request, until its end.
    fn each_answer(&mut self, mut each: impl FnMut(Answer) -> io::Result<()>) -> io::Result<()> {
        loop {
            let length = match self.socket.read(&mut self.answer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                length => length?,
            };
            if length == 0 {
                return Err(io::Error::other("the kernel has no answer"));
            }
            for answer in Answers(&self.answer[..length]) {
                // To a request before, that was given up.
                if answer.sequence != self.sequence {
                    continue;
                }
                match i32::from(answer.kind) {
                    // `struct nlmsgerr`: the error, 0 where there is none, then the request.
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

/// The messages of a datagram.
struct Answers<'a>(&'a [u8]);

impl<'a> Iterator for Answers<'a> {
    type Item = Answer<'a>;

    fn next(&mut self) -> Option<Answer<'a>> {
        let header: &[u8; HEADER] = self.0.first_chunk()?;
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = word(0) as usize;
        let message = self.0.get(..length)?;
        let body = message.get(HEADER..)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Answer { kind: u16::from_ne_bytes([header[4], header[5]]), sequence: word(8), body })
    }
}

/// The attributes in these bytes, each with its type, without the two bits that are none of it.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[l0, l1, k0, k1] = bytes.first_chunk::<ATTRIBUTE>()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(..length)?.get(ATTRIBUTE..)?;
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
    fn what_is_cut_off_or_lies_ends_the_reading() {
        let mut message = Message::new(&[]);
        message.string(3, "eth0");
        message.number(4, 1500);
        for length in 0..message.0.len() {
            assert_eq!(attributes(&message.0[..length]).count(), usize::from(length >= 9), "{length}");
            assert!(Answers(&message.0[..length]).count() <= 1);
        }
        for length in [0u16, 1, 3, 5000] {
            message.0[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&message.0).count(), 0, "{length}");
            let mut header = [0; HEADER];
            header[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(Answers(&header).count(), 0, "{length}");
        }
    }

    #[test]
    fn the_kernel_tells_of_the_loopback_interface() {
        let mut netlink = Netlink::open(0).unwrap();
        let answer = netlink.ask(libc::RTM_GETLINK, &Message::link(1, 0, 0)).unwrap();
        assert!(attributes(&answer[LINK..]).any(|it| it == (libc::IFLA_IFNAME, b"lo\0")));
        let mut seen = 0;
        netlink.list(libc::RTM_GETLINK, &Message::link(0, 0, 0), |_| seen += 1).unwrap();
        assert!(seen >= 1);
        let error = netlink.ask(libc::RTM_GETLINK, &Message::link(0x7fff_fff0, 0, 0)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
