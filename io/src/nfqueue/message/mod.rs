//! The messages of netfilter queues, as bytes.
//!
//! A netlink message (`struct nlmsghdr` of `linux/netlink.h`, in the machine's byte order) has in it a `struct nfgenmsg` of
//! `linux/netfilter/nfnetlink.h`, with the queue's number, and behind that attributes (`struct nlattr`) each at a multiple
//! of 4 bytes. What netfilter puts into attributes is in network byte order.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{KernelAck, Malformed, Message, Packet, decode};
pub use encode::{Config, Verdict, config, put_attribute, release, verdict, verdict_batch, verdict_with_payload};

/// `sizeof(struct nlmsghdr)`: length (4), type (2), flags (2), sequence number (4), port id (4).
const MESSAGE_HEADER: usize = 16;
/// `sizeof(struct nfgenmsg)`: address family (1), version (1), the queue's number (2).
const FAMILY_HEADER: usize = 4;
/// `sizeof(struct nlattr)`: length, this header included (2), type (2).
const ATTRIBUTE_HEADER: usize = 4;

/// The longest packet that an attribute can hold, whose length has 16 bits: `NFQNL_MAX_COPY_RANGE` of
/// `net/netfilter/nfnetlink_queue.c`.
pub const MAX_PAYLOAD: usize = 0xffff - ATTRIBUTE_HEADER;

/// Of `linux/netlink.h`.
mod netlink {
    pub const NLMSG_ERROR: u16 = 2;
    pub const NLM_F_REQUEST: u16 = 1;
    /// The bits of an attribute's type that are none: `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
    pub const NLA_FLAGS: u16 = 0xc000;
}

/// `enum nfqnl_msg_types` of `linux/netfilter/nfnetlink_queue.h`, behind the subsystem's number, `NFNL_SUBSYS_QUEUE` of
/// `linux/netfilter/nfnetlink.h`.
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

/// `enum nfqnl_attr_config`, and what goes into these attributes, of `linux/netfilter/nfnetlink_queue.h`.
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
