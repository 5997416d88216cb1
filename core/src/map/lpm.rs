//! Prefix maps: layout in memory, and access to the prefixes in it.
//! `docs/reference/map-memory.md` is the specification.
//!
//! The lookup structure is a variant of the Poptrie (Asai and Ohara, SIGCOMM 2015). The first bits
//! of an address index an array of root nodes directly; below them, groups of two nodes resolve six
//! bits each. A node has a bit vector of its 32 slots, in which a bit is set if the slot differs
//! from the one before, and one word for each set bit: no entry, an entry, or a reference to a
//! group or list. A slot's word is found by a population count. If few prefixes remain, or all
//! remaining ones share a long common part, a list replaces groups: up to three bit strings to
//! compare with, and a word for each.
//!
//! - `trie`: builds the structure.
//! - `prefix_table`: the host's index of prefixes, for inserting and removing them.

mod prefix_table;
mod trie;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::declaration::Declaration;
use super::layout::{HEADER_WORDS, Layout};

pub(super) use prefix_table::PrefixTable;

/// Index in the header: end of the memory in use.
pub const HEADER_END: u32 = 1;

/// Address bits that a node resolves.
pub const NODE_BITS: u32 = 5;

/// Words of a node: the bit vector, then the index of the word before the node's first.
pub const NODE_WORDS: u32 = 2;

/// Address bits that a group resolves.
pub const GROUP_BITS: u32 = NODE_BITS + 1;

/// Words of a group, which consists of two nodes.
pub const GROUP_WORDS: u32 = 2 * NODE_WORDS;

/// Words from one root node to the next: a cache line, which most nodes' words fit in as well.
pub const ROOT_NODE_STRIDE: u32 = 16;

/// Set in a slot's word that refers to a group or a list rather than an entry.
pub const INNER_FLAG: u32 = 0x8000_0000;

/// Set, in addition, if it refers to a list. Groups and lists start at multiples of four words, so
/// the low bits are free.
pub const LIST_FLAG: u32 = 1;

/// Number of bit strings in a list.
pub const LIST_PREFIXES: u32 = 3;

/// Words of a list: the lengths of the bit strings, 8 bits each; the bit strings, left-aligned; a
/// word for each; and the word for addresses that match none. Shorter strings come first, and the
/// last match wins.
pub const LIST_WORDS: u32 = 2 + 2 * LIST_PREFIXES;

/// Maximum length of a bit string in a list.
pub const LIST_MAX_BITS: u32 = 31;

/// Where a prefix map's parts are, behind its values. Word indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrieLayout {
    /// Number of address bits that index the root nodes.
    pub root_bits: u32,
    /// Maximum number of groups and lists that a search visits below the root.
    pub levels: u32,
    /// The first prefix: the address's words, then the length plus one, or zero if there is none.
    pub prefixes: u64,
    /// The first root node.
    pub root: u64,
    /// The first group or list, or word that does not fit into the root.
    pub heap: u64,
    /// End of the memory.
    pub end: u64,
}

impl TrieLayout {
    /// The layout of a declared map.
    pub fn of(map: &Declaration) -> TrieLayout {
        let (entries, bits) = (u64::from(map.entries), address_bits(map));
        // IPv4 routes are spread over more of the first bits than IPv6 routes.
        let nodes = if bits == 32 { 8 * entries } else { 2 * entries };
        let root_bits = [19, 13].into_iter().find(|root_bits| 1 << root_bits <= nodes).unwrap_or(7);
        let told_apart = root_bits + NODE_BITS;
        let levels = (bits - told_apart).div_ceil(GROUP_BITS);
        let prefixes = u64::from(HEADER_WORDS) + entries * u64::from(map.value);
        let root = (prefixes + entries * u64::from(map.key + 1)).next_multiple_of(ROOT_NODE_STRIDE.into());
        let heap = root + (u64::from(ROOT_NODE_STRIDE) << root_bits);
        // Each group or list exists for a longer prefix, and each except a prefix's last takes it
        // at least six bits further. A group has a word for each node, and at most two for each
        // prefix that ends in it or continues below it. Padded to a multiple of four words, that is
        // at most four for each of these and four for its nodes. A list in which prefixes end takes
        // eight words instead of theirs; any other list takes the words of the group or list below
        // it.
        let inner = entries * u64::from(levels);
        TrieLayout { root_bits, levels, prefixes, root, heap, end: heap + 8 * inner + 4 * entries }
    }
}

/// Number of bits of an address.
pub fn address_bits(map: &Declaration) -> u32 {
    32 * map.key
}

/// Why a key is not a prefix of the map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// The key is not an address and a length.
    #[error("a prefix of this map is {0} words of address and one word of length")]
    Words(u32),
    /// The length exceeds an address's.
    #[error("the prefix length {length} exceeds the {bits} bits of an address")]
    Length {
        /// Number of bits of an address.
        bits: u32,
        /// The prefix's length.
        length: u32,
    },
    /// Bits beyond the length are set.
    #[error("`{prefix}` has bits set beyond its length: did you mean `{meant}`?")]
    Bits {
        /// The prefix as given.
        prefix: String,
        /// The prefix with these bits cleared.
        meant: String,
    },
}

/// Checks that a key is a prefix of a map: the words of an address, most significant first, and a
/// length.
///
/// # Errors
/// If it is not.
pub fn check(map: &Declaration, prefix: &[u32]) -> Result<(), PrefixError> {
    let Some((&length, address)) = prefix.split_last().filter(|_| prefix.len() == map.key as usize + 1) else {
        return Err(PrefixError::Words(map.key));
    };
    if length > address_bits(map) {
        return Err(PrefixError::Length { bits: address_bits(map), length });
    }
    let whole = left_aligned(address);
    let meant = whole & prefix_mask(length);
    if whole != meant {
        let display_prefix = |address: u128| PrefixDisplay { address, length, bits: address_bits(map) }.to_string();
        return Err(PrefixError::Bits { prefix: display_prefix(whole), meant: display_prefix(meant) });
    }
    Ok(())
}

/// A valid prefix in CIDR notation.
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

/// An address, left-aligned in 128 bits.
fn left_aligned(words: &[u32]) -> u128 {
    (0..4).fold(0, |all, i| all << 32 | u128::from(words.get(i).copied().unwrap_or(0)))
}

/// Mask of the first `length` bits of an address.
fn prefix_mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0)
}

/// The range of a map's prefixes in its memory: first word and number of words.
pub(super) fn prefixes(map: &Declaration) -> (usize, usize) {
    (Prefix::offset(map, 0), map.entries as usize * (map.key as usize + 1))
}

/// The entry of a prefix, looked up in the words of that range.
pub(super) fn find_entry(map: &Declaration, prefixes: &[u32], key: &[u32]) -> Option<u32> {
    check(map, key).ok()?;
    let (&length, address) = key.split_last()?;
    let is_it = |words: &[u32]| words.split_last() == Some((&(length + 1), address));
    prefixes.chunks_exact(map.key as usize + 1).position(is_it).map(|entry| entry as u32)
}

/// A prefix of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Prefix {
    /// The address, left-aligned.
    pub address: u128,
    /// Number of significant bits.
    pub length: u32,
}

impl Prefix {
    /// The prefix that a key's words stand for, if it is valid.
    pub fn of(map: &Declaration, key: &[u32]) -> Option<Prefix> {
        check(map, key).ok()?;
        let (&length, address) = key.split_last()?;
        Some(Prefix { address: left_aligned(address), length })
    }

    /// The prefix of an entry, if there is one.
    pub fn at(map: &Declaration, words: &[u32], entry: u32) -> Option<Prefix> {
        let at = Prefix::offset(map, entry);
        let (&more, address) = words.get(at..at + map.key as usize + 1)?.split_last()?;
        let prefix = Prefix { address: left_aligned(address), length: more.checked_sub(1)? };
        (prefix.length <= address_bits(map) && prefix.address & !prefix_mask(prefix.length) == 0).then_some(prefix)
    }

    /// Index of the first word of an entry's prefix.
    fn offset(map: &Declaration, entry: u32) -> usize {
        Layout::of(map).slot_offset(map.entries) + entry as usize * (map.key as usize + 1)
    }

    /// The address's words.
    fn address_words(self, map: &Declaration) -> impl Iterator<Item = u32> {
        (0..map.key).map(move |i| (self.address >> (96 - 32 * i)) as u32)
    }

    /// The words of the key.
    pub fn key(self, map: &Declaration) -> Vec<u32> {
        self.address_words(map).chain([self.length]).collect()
    }

    /// Writes the prefix of an entry.
    fn write(self, map: &Declaration, words: &mut [u32], entry: u32) {
        let at = Prefix::offset(map, entry);
        for (to, word) in words[at..].iter_mut().zip(self.address_words(map).chain([self.length + 1])) {
            *to = word;
        }
    }

    /// Clears the prefix of an entry.
    fn clear(map: &Declaration, words: &mut [u32], entry: u32) {
        let at = Prefix::offset(map, entry);
        words[at..at + map.key as usize + 1].fill(0);
    }
}

#[cfg(test)]
mod tests;
