//! From bytes to messages.

use std::ops::Range;

use super::{ATTRIBUTE_HEADER, FAMILY_HEADER, MESSAGE_HEADER, attribute, info, kind, netlink};

/// A message from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// `NFQNL_MSG_PACKET`: a packet that waits for its verdict.
    Packet(Packet),
    /// `NLMSG_ERROR`: what the kernel says to a message of ours.
    Ack(KernelAck),
    /// Something of no interest.
    Other,
}

/// A packet that waits for its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The number that its verdict names. They ascend, modulo 2^32.
    pub id: u32,
    /// Its protocol, as an EtherType.
    pub protocol: u16,
    /// Which of netfilter's hooks it is at, numbered as in `linux/netfilter.h`.
    pub hook: u8,
    /// The sender's address on the link, where it came from one with addresses of 6 bytes.
    pub sender: Option<[u8; 6]>,
    /// When it arrived, in nanoseconds since the epoch, where the kernel noted it.
    pub time_ns: Option<u64>,
    /// Where its bytes lie in the message, the network header first. Never before byte
    /// [`Packet::BEFORE_PAYLOAD`].
    pub payload: Range<usize>,
    /// Its length, which may be more than the bytes in the message.
    pub length: usize,
    /// Whether its checksum is left to the network card, or to whoever sends it on.
    pub has_partial_checksum: bool,
    /// Whether it is longer than what a link takes, and will be cut (or was put together from several) by the kernel.
    pub is_gso: bool,
}

impl Packet {
    /// Bytes of a message that lie before a packet's, at the least: room for a link's header.
    pub const BEFORE_PAYLOAD: usize = MESSAGE_HEADER + FAMILY_HEADER + ATTRIBUTE_HEADER;

    /// `NF_INET_LOCAL_IN`: the hook for packets that are for this machine.
    pub const LOCAL_IN: u8 = 1;
}

/// What the kernel says to a message: `struct nlmsgerr` of `linux/netlink.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelAck {
    /// The error's number, as in `errno.h`; 0 where there is none.
    pub error: i32,
    /// The sequence number that the message had.
    pub sequence: u32,
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no message of a netfilter queue: {what} at byte {at}")]
pub struct Malformed {
    /// What is wrong: `an attribute that ends before it begins`.
    pub what: &'static str,
    /// Where.
    pub at: usize,
    /// The packet's number, where that much could be read: it waits for a verdict all the same.
    pub id: Option<u32>,
}

/// The first message of a datagram. The kernel sends one in each.
///
/// # Errors
/// [`Malformed`]: the message, or an attribute, is shorter than it has to be, or longer than what it lies in; or a packet
/// lacks its number or its bytes.
pub fn decode(datagram: &[u8]) -> Result<Message, Malformed> {
    let whole = Fields(if datagram.len() < MESSAGE_HEADER { &[] } else { datagram });
    let (Some(length), Some(message), Some(sequence)) = (whole.native32(0), whole.native16(4), whole.native32(8))
    else {
        return Err(malformed("less than a netlink header", 0, None));
    };
    if length < MESSAGE_HEADER as u32 {
        return Err(malformed("a length of less than the header", 0, None));
    }
    match message {
        kind::PACKET => packet(datagram, length as usize).map(Message::Packet),
        netlink::NLMSG_ERROR => {
            // The error is negative, and what follows is the header of the message that it is about.
            let Some(error) = whole.native32(MESSAGE_HEADER) else {
                return Err(malformed("an error without a number", MESSAGE_HEADER, None));
            };
            let about = whole.native32(MESSAGE_HEADER + 4 + 8).unwrap_or(sequence);
            Ok(Message::Ack(KernelAck { error: (error as i32).checked_neg().unwrap_or(i32::MAX), sequence: about }))
        }
        _ => Ok(Message::Other),
    }
}

fn malformed(what: &'static str, at: usize, id: Option<u32>) -> Malformed {
    Malformed { what, at, id }
}

fn packet(datagram: &[u8], length: usize) -> Result<Packet, Malformed> {
    let mut id = None;
    let mut packet = Packet {
        id: 0,
        protocol: 0,
        hook: 0,
        sender: None,
        time_ns: None,
        payload: 0..0,
        length: 0,
        has_partial_checksum: false,
        is_gso: false,
    };
    let mut full_length = None;
    // A datagram that did not fit is shorter than its message. What is there of the packet is of no use, but its number is.
    let end = length.min(datagram.len());
    let mut at = MESSAGE_HEADER + FAMILY_HEADER;
    while at < end {
        let header = Fields(&datagram[at..end]);
        let (Some(length), Some(attribute)) = (header.native16(0), header.native16(2)) else {
            return Err(malformed("less than an attribute's header", at, id));
        };
        let length = usize::from(length);
        if length < ATTRIBUTE_HEADER {
            return Err(malformed("an attribute that ends before it begins", at, id));
        }
        let value = at + ATTRIBUTE_HEADER..at + length;
        let Some(bytes) = datagram[..end].get(value.clone()) else {
            return Err(malformed("an attribute that ends behind the message", at, id));
        };
        let fields = Fields(bytes);
        match attribute & !netlink::NLA_FLAGS {
            // `struct nfqnl_msg_packet_hdr`: number (4), protocol (2), hook (1).
            attribute::PACKET_HDR => {
                let (Some(number), Some(protocol), Some(&hook)) =
                    (fields.network32(0), fields.network16(4), bytes.get(6))
                else {
                    return Err(malformed("a short NFQA_PACKET_HDR", at, id));
                };
                id = Some(number);
                (packet.protocol, packet.hook) = (protocol, hook);
            }
            // `struct nfqnl_msg_packet_timestamp`: seconds (8), microseconds (8).
            attribute::TIMESTAMP => {
                let (Some(seconds), Some(micros)) = (fields.network64(0), fields.network64(8)) else {
                    return Err(malformed("a short NFQA_TIMESTAMP", at, id));
                };
                packet.time_ns = Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(micros.wrapping_mul(1000)));
            }
            // `struct nfqnl_msg_packet_hw`: length of the address (2), nothing (2), address (8).
            attribute::HWADDR => {
                let (Some(length), Some(address)) = (fields.network16(0), bytes.get(4..10)) else {
                    return Err(malformed("a short NFQA_HWADDR", at, id));
                };
                packet.sender = if length == 6 { address.try_into().ok() } else { None };
            }
            attribute::CAP_LEN => full_length = fields.network32(0),
            attribute::SKB_INFO => {
                let flags = fields.network32(0).unwrap_or(0);
                packet.has_partial_checksum = flags & info::CSUMNOTREADY != 0;
                packet.is_gso = flags & info::GSO != 0;
            }
            attribute::PAYLOAD => packet.payload = value,
            _ => {}
        }
        at += length.next_multiple_of(4);
    }
    packet.id = id.ok_or(malformed("a packet without NFQA_PACKET_HDR", 0, None))?;
    if packet.payload.is_empty() {
        return Err(malformed("a packet without bytes", 0, id));
    }
    let there = packet.payload.len();
    packet.length = full_length.map_or(there, |length| there.max(length as usize));
    Ok(packet)
}

/// Numbers in bytes, where there are enough.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn native16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn native32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn network16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    fn network32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    fn network64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_be_bytes)
    }
}
