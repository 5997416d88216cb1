//! Loads at offsets from `SKF_LL_OFF` on, which Linux takes for something else than bytes from the packet's first on
//! (`linux/filter.h`; net/core/filter.c, `convert_bpf_extensions`).
//!
//! A frame here has its VLAN tags among its bytes, and none has been taken off: the answers are those that Linux gives of such
//! a frame.

use super::instruction::{Alu, Invalid, Op, Operand, Register};

const SKF_AD_OFF: u32 = -0x1000_i32 as u32;
const SKF_NET_OFF: u32 = -0x10_0000_i32 as u32;
const SKF_LL_OFF: u32 = -0x20_0000_i32 as u32;

/// Where the network header begins: behind Ethernet's.
const NETWORK: u32 = 14;

/// `ARPHRD_ETHER`, linux/if_arp.h.
const ETHERNET: u32 = 1;

/// A load at a constant offset.
pub(super) fn load(at: u32, size: u32) -> Result<Op, Invalid> {
    let set = |value| Ok(Op::Set { to: Register::A, value });
    match at {
        SKF_AD_OFF.. => match at - SKF_AD_OFF {
            0 => Ok(Op::Protocol),
            4 => Err(Invalid::Ancillary("SKF_AD_PKTTYPE", "whose packet it is depends on the address of a host")),
            8 => Ok(Op::Port),
            12 => Err(Invalid::Ancillary("SKF_AD_NLATTR", "attributes are netlink's")),
            16 => Err(Invalid::Ancillary("SKF_AD_NLATTR_NEST", "attributes are netlink's")),
            20 => Err(Invalid::Ancillary("SKF_AD_MARK", "a packet has no mark outside of the kernel")),
            24 => Err(Invalid::Ancillary("SKF_AD_QUEUE", "no source says which queue a packet came by")),
            28 => set(ETHERNET),
            32 => Err(Invalid::Ancillary("SKF_AD_RXHASH", "no source says a packet's hash")),
            36 => Err(Invalid::Ancillary("SKF_AD_CPU", "where a filter runs must not decide what it gives")),
            40 => Ok(Op::Alu(Alu::Xor, Operand::X)),
            // The tag, whether there is one, and its protocol, beside the frame's bytes.
            44 | 48 | 60 => set(0),
            52 => Err(Invalid::Ancillary(
                "SKF_AD_PAY_OFFSET",
                "where the payload begins is what Linux's dissector takes for it",
            )),
            56 => Err(Invalid::Ancillary("SKF_AD_RANDOM", "a filter gives the same for the same packet")),
            // No such load: what libpcap takes for an offset far behind any packet's end.
            _ => Ok(Op::Load { at, size }),
        },
        SKF_NET_OFF.. => Ok(Op::Load { at: at - SKF_NET_OFF + NETWORK, size }),
        SKF_LL_OFF.. => Ok(Op::Load { at: at - SKF_LL_OFF, size }),
        _ => Ok(Op::Load { at, size }),
    }
}
