//! Ancillary loads: absolute loads from `SKF_LL_OFF` on, which Linux gives a meaning of its own
//! (`linux/filter.h`; net/core/filter.c, `convert_bpf_extensions`).
//!
//! Values are those that Linux has for a frame whose VLAN tags are in its bytes, none offloaded.

use super::instruction::{Alu, DecodeError, Op, Operand, Register};

const SKF_AD_OFF: u32 = -0x1000_i32 as u32;
const SKF_NET_OFF: u32 = -0x10_0000_i32 as u32;
const SKF_LL_OFF: u32 = -0x20_0000_i32 as u32;

/// Offset of the network header: after the Ethernet header.
const NETWORK_HEADER: u32 = 14;

/// `ARPHRD_ETHER`, linux/if_arp.h.
const ARPHRD_ETHER: u32 = 1;

/// Decodes an absolute load of `size` bytes at `offset`.
pub(super) fn decode_load(offset: u32, size: u32) -> Result<Op, DecodeError> {
    let set = |value| Ok(Op::Set { to: Register::A, value });
    match offset {
        SKF_AD_OFF.. => match offset - SKF_AD_OFF {
            0 => Ok(Op::Protocol),
            4 => Err(DecodeError::Ancillary(
                "SKF_AD_PKTTYPE",
                "whether a packet is for this host depends on the host's address",
            )),
            8 => Ok(Op::Port),
            12 => Err(DecodeError::Ancillary("SKF_AD_NLATTR", "netlink attributes do not occur in Ethernet frames")),
            16 => {
                Err(DecodeError::Ancillary("SKF_AD_NLATTR_NEST", "netlink attributes do not occur in Ethernet frames"))
            }
            20 => Err(DecodeError::Ancillary("SKF_AD_MARK", "packets have no mark outside the kernel")),
            24 => Err(DecodeError::Ancillary("SKF_AD_QUEUE", "packet sources do not report the receive queue")),
            28 => set(ARPHRD_ETHER),
            32 => Err(DecodeError::Ancillary("SKF_AD_RXHASH", "packet sources do not report a hash")),
            36 => Err(DecodeError::Ancillary("SKF_AD_CPU", "the verdict must not depend on where the filter runs")),
            40 => Ok(Op::Alu(Alu::Xor, Operand::X)),
            // VLAN tag, its presence and its TPID: no tag is kept beside the frame's bytes.
            44 | 48 | 60 => set(0),
            52 => Err(DecodeError::Ancillary(
                "SKF_AD_PAY_OFFSET",
                "the payload's offset depends on Linux's flow dissector",
            )),
            56 => {
                Err(DecodeError::Ancillary("SKF_AD_RANDOM", "a filter must give the same verdict for the same packet"))
            }
            // Unassigned: as in libpcap, an offset past the end of any packet.
            _ => Ok(Op::Load { offset, size }),
        },
        SKF_NET_OFF.. => Ok(Op::Load { offset: offset - SKF_NET_OFF + NETWORK_HEADER, size }),
        SKF_LL_OFF.. => Ok(Op::Load { offset: offset - SKF_LL_OFF, size }),
        _ => Ok(Op::Load { offset, size }),
    }
}
