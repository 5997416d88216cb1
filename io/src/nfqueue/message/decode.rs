//! Decoding messages from the kernel.

use std::ops::Range;

use super::{ATTRIBUTE_HEADER, FAMILY_HEADER, MESSAGE_HEADER, attribute, info, kind, netlink};

/// A message from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// `NFQNL_MSG_PACKET`: a packet that waits for its verdict.
    Packet(Packet),
    /// `NLMSG_ERROR`: the kernel's answer to a message.
    Ack(KernelAck),
    /// Any other message.
    Other,
}

/// A packet that waits for its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Packet ID, to which the verdict refers. IDs ascend modulo 2^32.
    pub id: u32,
    /// Network protocol as an EtherType.
    pub protocol: u16,
    /// Netfilter hook number, as in `linux/netfilter.h`.
    pub hook: u8,
    /// Source MAC address, if the packet came from a link with 6-byte addresses.
    pub sender: Option<[u8; 6]>,
    /// Time of arrival in nanoseconds since the epoch, if the kernel recorded it.
    pub time_ns: Option<u64>,
    /// Range of the packet in the message, from the network header on. Starts at
    /// [`Packet::BEFORE_PAYLOAD`] or later.
    pub payload: Range<usize>,
    /// Original length, which may exceed the bytes in the message.
    pub length: usize,
    /// Whether the packet's checksum is partial (`CHECKSUM_PARTIAL`).
    pub has_partial_checksum: bool,
    /// Whether the packet is longer than the MTU and will be segmented by the kernel, or was
    /// coalesced.
    pub is_gso: bool,
}

impl Packet {
    /// Minimum number of bytes before a packet in its message, which leave room for a link-layer
    /// header.
    pub const BEFORE_PAYLOAD: usize = MESSAGE_HEADER + FAMILY_HEADER + ATTRIBUTE_HEADER;

    /// `NF_INET_LOCAL_IN`: the hook for packets destined for this machine.
    pub const LOCAL_IN: u8 = 1;
}

/// The kernel's answer to a message: `struct nlmsgerr` of `linux/netlink.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelAck {
    /// Error number as in `errno.h`; 0 for success.
    pub error: i32,
    /// Sequence number of the message.
    pub sequence: u32,
}

/// Why bytes are not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed netfilter queue message: {what} at byte {at}")]
pub struct Malformed {
    /// The defect, for example `an attribute shorter than its header`.
    pub what: &'static str,
    /// Offset of the defect in bytes.
    pub at: usize,
    /// The packet ID if it could be read, because the packet still waits for a verdict.
    pub id: Option<u32>,
}

/// Decodes the first message of a datagram; the kernel sends one per datagram.
///
/// # Errors
/// [`Malformed`] if a message or attribute is shorter than its minimum or exceeds what contains it,
/// or if a packet lacks its ID or bytes.
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
            // The error is negated; the header of the refused message follows.
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
    // A truncated datagram is shorter than its message. The packet is useless, but its ID is
    // needed.
    let end = length.min(datagram.len());
    let mut at = MESSAGE_HEADER + FAMILY_HEADER;
    while at < end {
        let header = Fields(&datagram[at..end]);
        let (Some(length), Some(attribute)) = (header.native16(0), header.native16(2)) else {
            return Err(malformed("less than an attribute's header", at, id));
        };
        let length = usize::from(length);
        if length < ATTRIBUTE_HEADER {
            return Err(malformed("an attribute shorter than its header", at, id));
        }
        let value = at + ATTRIBUTE_HEADER..at + length;
        let Some(bytes) = datagram[..end].get(value.clone()) else {
            return Err(malformed("an attribute that exceeds the message", at, id));
        };
        let fields = Fields(bytes);
        match attribute & !netlink::NLA_FLAGS {
            // `struct nfqnl_msg_packet_hdr`: ID (4), protocol (2), hook (1).
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
            // `struct nfqnl_msg_packet_hw`: address length (2), padding (2), address (8).
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

/// Bounds-checked access to integers in bytes.
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
