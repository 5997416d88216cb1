//! The wire format of netfilter queue messages.
//!
//! A netlink message (`struct nlmsghdr` of `linux/netlink.h`, in native byte order) contains a
//! `struct nfgenmsg` of `linux/netfilter/nfnetlink.h` with the queue number, then attributes
//! (`struct nlattr`) at multiples of 4 bytes. Values in netfilter's attributes are in network byte
//! order.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{KernelAck, Malformed, Message, Packet, decode};
pub(crate) use encode::{Config, config};
pub use encode::{Verdict, put_attribute, release, verdict, verdict_batch, verdict_with_payload};

/// Size of `struct nlmsghdr`: length (4), type (2), flags (2), sequence number (4), port ID (4).
const MESSAGE_HEADER: usize = 16;
/// Size of `struct nfgenmsg`: address family (1), version (1), queue number (2).
const FAMILY_HEADER: usize = 4;
/// Size of `struct nlattr`: length, this header included (2), type (2).
const ATTRIBUTE_HEADER: usize = 4;

/// Maximum length of a packet in an attribute, whose length field has 16 bits:
/// `NFQNL_MAX_COPY_RANGE` of `net/netfilter/nfnetlink_queue.c`.
pub const MAX_PAYLOAD: usize = 0xffff - ATTRIBUTE_HEADER;

/// Constants of `linux/netlink.h`.
mod netlink {
    pub const NLMSG_ERROR: u16 = 2;
    pub const NLM_F_REQUEST: u16 = 1;
    /// The flag bits of an attribute type: `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
    pub const NLA_FLAGS: u16 = 0xc000;
}

/// Message types: `enum nfqnl_msg_types` of `linux/netfilter/nfnetlink_queue.h` with the subsystem
/// number `NFNL_SUBSYS_QUEUE` of `linux/netfilter/nfnetlink.h` in the upper byte.
mod kind {
    const NFNL_SUBSYS_QUEUE: u16 = 3;
    pub const PACKET: u16 = NFNL_SUBSYS_QUEUE << 8;
    pub const VERDICT: u16 = NFNL_SUBSYS_QUEUE << 8 | 1;
    pub const CONFIG: u16 = NFNL_SUBSYS_QUEUE << 8 | 2;
    pub const VERDICT_BATCH: u16 = NFNL_SUBSYS_QUEUE << 8 | 3;
}

/// `enum nfqnl_attr_type` of `linux/netfilter/nfnetlink_queue.h`.
mod attribute {
    pub const PACKET_HDR: u16 = 1;
    pub const VERDICT_HDR: u16 = 2;
    pub const TIMESTAMP: u16 = 4;
    pub const HWADDR: u16 = 9;
    pub const PAYLOAD: u16 = 10;
    pub const CAP_LEN: u16 = 13;
    pub const SKB_INFO: u16 = 14;
}

/// `enum nfqnl_attr_config`, and values of these attributes, of
/// `linux/netfilter/nfnetlink_queue.h`.
mod configuration {
    pub const CMD: u16 = 1;
    pub const PARAMS: u16 = 2;
    pub const QUEUE_MAXLEN: u16 = 3;
    pub const MASK: u16 = 4;
    pub const FLAGS: u16 = 5;

    pub const CMD_BIND: u8 = 1;
    pub const CMD_UNBIND: u8 = 2;
    pub const COPY_PACKET: u8 = 2;
    pub const F_FAIL_OPEN: u32 = 1;
    pub const F_CONNTRACK: u32 = 2;
    pub const F_GSO: u32 = 4;
}

/// Flags of `NFQA_SKB_INFO`.
mod info {
    pub const CSUMNOTREADY: u32 = 1;
    pub const GSO: u32 = 2;
}
