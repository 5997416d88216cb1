//! Prefixes in CIDR notation.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A valid prefix in CIDR notation.
pub(super) fn display_prefix(prefix: &[u32]) -> impl fmt::Display {
    let (length, address) = prefix.split_last().map_or((0, prefix), |(length, address)| (*length, address));
    PrefixDisplay { address: left_aligned(address), length, bits: 32 * address.len() as u32 }
}

pub(super) struct PrefixDisplay {
    /// The address, left-aligned.
    pub address: u128,
    /// Number of significant bits.
    pub length: u32,
    /// Number of bits of an address.
    pub bits: u32,
}

impl fmt::Display for PrefixDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            32 => write!(f, "{}/{}", Ipv4Addr::from((self.address >> 96) as u32), self.length),
            _ => write!(f, "{}/{}", Ipv6Addr::from(self.address), self.length),
        }
    }
}

/// An address, left-aligned in 128 bits.
pub(super) fn left_aligned(words: &[u32]) -> u128 {
    (0..4).fold(0, |all, i| all << 32 | u128::from(words.get(i).copied().unwrap_or(0)))
}
