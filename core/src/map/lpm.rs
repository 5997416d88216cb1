//! Maps of prefixes: how they lie in memory, and their prefixes out of it. `docs/maps.md` is the specification.
//!
//! Behind the values and the prefixes is a trie: a root of nodes that the first bits of an address number directly, and
//! behind it groups of two nodes, which tell six bits apart. A node has a bit for each of its 32 slots that differs from
//! the one before, and a word for each bit that is set: no entry, an entry, or what more bits lead to. So it is small, and
//! a slot's word is found by counting bits. Where few prefixes are left, or all that are left begin alike, there is a list
//! in place of groups: up to three beginnings, and a word for each.
//!
//! - `trie`: the builder;
//! - `host`: what a table needs to have prefixes set and removed.

mod prefix_table;
mod trie;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::declaration::Declaration;
use super::layout::{HEADER_WORDS, Layout};

pub(super) use prefix_table::PrefixTable;

/// In the header: where what is used of the memory ends.
pub const HEADER_END: u32 = 1;

/// Bits of an address that a node tells apart.
pub const NODE_BITS: u32 = 5;

/// Words of a node: the bits, then the number of the word before its first.
pub const NODE_WORDS: u32 = 2;

/// Bits of an address that a group tells apart.
pub const GROUP_BITS: u32 = NODE_BITS + 1;

/// Words of a group: its nodes.
pub const GROUP_WORDS: u32 = 2 * NODE_WORDS;

/// Words from node to node in the root: as many as a cache line has, so that most nodes' words lie in it as well.
pub const ROOT_NODE_STRIDE: u32 = 16;

/// Of a slot's word: it says where a group or a list is, and no entry's number.
pub const INNER_FLAG: u32 = 0x8000_0000;

/// Of such a word: it is a list. Both begin at multiples of four words.
pub const LIST_FLAG: u32 = 1;

/// Beginnings of a list.
pub const LIST_PREFIXES: u32 = 3;

/// Words of a list: the lengths of its beginnings, 8 bits each; they themselves, from the highest bit on; their words; and
/// the word of what begins with none of them. They are in order of their lengths, and the last that fits counts.
pub const LIST_WORDS: u32 = 2 + 2 * LIST_PREFIXES;

/// Bits of a beginning at the most.
pub const LIST_MAX_BITS: u32 = 31;

/// Where the parts of such a map lie behind its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrieLayout {
    /// Bits of an address that number the root's nodes.
    pub root_bits: u32,
    /// Groups and lists that a search meets behind the root at the most.
    pub levels: u32,
    /// The first prefix: words of an address, then its length and one, or zero where there is none.
    pub prefixes: u64,
    /// The root's first node.
    pub root: u64,
    /// The first of the groups and lists, and of words that have no room in the root.
    pub heap: u64,
    /// Where the memory ends.
    pub end: u64,
}

impl TrieLayout {
    /// Those of a declaration.
    pub fn of(map: &Declaration) -> TrieLayout {
        let (entries, bits) = (u64::from(map.entries), bits(map));
        // Addresses of IPv4 are spread over more of their first bits than those of IPv6.
        let nodes = if bits == 32 { 8 * entries } else { 2 * entries };
        let root_bits = [19, 13].into_iter().find(|root_bits| 1 << root_bits <= nodes).unwrap_or(7);
        let told_apart = root_bits + NODE_BITS;
        let levels = (bits - told_apart).div_ceil(GROUP_BITS);
        let prefixes = u64::from(HEADER_WORDS) + entries * u64::from(map.value);
        let root = (prefixes + entries * u64::from(map.key + 1)).next_multiple_of(ROOT_NODE_STRIDE.into());
        let heap = root + (u64::from(ROOT_NODE_STRIDE) << root_bits);
        // Each is there for a prefix that is longer, and each but a prefix's last takes it six bits on at least. A group
        // has a word for each node, and two for each prefix that ends in it and all that is behind it; with what fills
        // them up to four words these are four each, and four for its nodes. A list that prefixes end in takes eight
        // words in place of theirs; behind any other is what takes no words of it.
        let inner = entries * u64::from(levels);
        TrieLayout { root_bits, levels, prefixes, root, heap, end: heap + 8 * inner + 4 * entries }
    }
}

/// Bits of an address.
pub fn bits(map: &Declaration) -> u32 {
    32 * map.key
}

/// What is wrong with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// It is not an address and a length.
    #[error("a prefix of this map is {0} words of an address and one for the length")]
    Words(u32),
    /// It is longer than an address.
    #[error("a prefix is no longer than an address, which has {bits} bits, and this has {length}")]
    Length {
        /// Bits of an address.
        bits: u32,
        /// Its own.
        length: u32,
    },
    /// There are bits beyond its length.
    #[error("beyond the length of `{prefix}` all bits are zero: `{meant}`")]
    Bits {
        /// As it was given.
        prefix: String,
        /// With zeros.
        meant: String,
    },
}

/// Refuses what is no prefix of a map: words of an address, the first bits first, and a length.
///
/// # Errors
/// What is wrong with it.
pub fn check(map: &Declaration, prefix: &[u32]) -> Result<(), PrefixError> {
    let Some((&length, address)) = prefix.split_last().filter(|_| prefix.len() == map.key as usize + 1) else {
        return Err(PrefixError::Words(map.key));
    };
    if length > bits(map) {
        return Err(PrefixError::Length { bits: bits(map), length });
    }
    let whole = left_aligned(address);
    let meant = whole & mask(length);
    if whole != meant {
        let display_prefix = |address: u128| PrefixDisplay { address, length, bits: bits(map) }.to_string();
        return Err(PrefixError::Bits { prefix: display_prefix(whole), meant: display_prefix(meant) });
    }
    Ok(())
}

/// A prefix as people write it; the words are right.
pub fn display_prefix(prefix: &[u32]) -> impl fmt::Display {
    let (length, address) = prefix.split_last().map_or((0, prefix), |(length, address)| (*length, address));
    PrefixDisplay { address: left_aligned(address), length, bits: 32 * address.len() as u32 }
}

struct PrefixDisplay {
    address: u128,
    length: u32,
    bits: u32,
}

impl fmt::Display for PrefixDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            32 => write!(f, "{}/{}", Ipv4Addr::from((self.address >> 96) as u32), self.length),
            _ => write!(f, "{}/{}", Ipv6Addr::from(self.address), self.length),
        }
    }
}

/// An address, its first bit the highest.
fn left_aligned(words: &[u32]) -> u128 {
    (0..4).fold(0, |all, i| all << 32 | u128::from(words.get(i).copied().unwrap_or(0)))
}

/// The first bits of an address.
fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0)
}

/// The words in which such a map has its prefixes: the first's number, and how many there are.
pub(super) fn prefixes(map: &Declaration) -> (usize, usize) {
    (Prefix::place(map, 0), map.entries as usize * (map.key as usize + 1))
}

/// The place of a prefix, out of those words.
pub(super) fn place(map: &Declaration, prefixes: &[u32], key: &[u32]) -> Option<u32> {
    check(map, key).ok()?;
    let (&length, address) = key.split_last()?;
    let is_it = |words: &[u32]| words.split_last() == Some((&(length + 1), address));
    prefixes.chunks_exact(map.key as usize + 1).position(is_it).map(|place| place as u32)
}

/// A prefix in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Prefix {
    /// Its address, the first bit the highest.
    pub address: u128,
    /// How many bits of that count.
    pub length: u32,
}

impl Prefix {
    /// Out of the words of a key.
    pub fn of(map: &Declaration, key: &[u32]) -> Option<Prefix> {
        check(map, key).ok()?;
        let (&length, address) = key.split_last()?;
        Some(Prefix { address: left_aligned(address), length })
    }

    /// That of a place, if there is one.
    pub fn at(map: &Declaration, words: &[u32], place: u32) -> Option<Prefix> {
        let at = Prefix::place(map, place);
        let (&more, address) = words.get(at..at + map.key as usize + 1)?.split_last()?;
        let prefix = Prefix { address: left_aligned(address), length: more.checked_sub(1)? };
        (prefix.length <= bits(map) && prefix.address & !mask(prefix.length) == 0).then_some(prefix)
    }

    /// Where that of a place is.
    fn place(map: &Declaration, place: u32) -> usize {
        Layout::of(map).slot_offset(map.entries) + place as usize * (map.key as usize + 1)
    }

    /// Its address in words.
    fn address_words(self, map: &Declaration) -> impl Iterator<Item = u32> {
        (0..map.key).map(move |i| (self.address >> (96 - 32 * i)) as u32)
    }

    /// The words of a key.
    pub fn key(self, map: &Declaration) -> Vec<u32> {
        self.address_words(map).chain([self.length]).collect()
    }

    /// Puts it at a place.
    fn write(self, map: &Declaration, words: &mut [u32], place: u32) {
        let at = Prefix::place(map, place);
        for (to, word) in words[at..].iter_mut().zip(self.address_words(map).chain([self.length + 1])) {
            *to = word;
        }
    }

    /// Takes away that of a place.
    fn clear(map: &Declaration, words: &mut [u32], place: u32) {
        let at = Prefix::place(map, place);
        words[at..at + map.key as usize + 1].fill(0);
    }
}

#[cfg(test)]
mod tests;
