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
//! - `fold_hash`: the hash function of both.

mod fold_hash;
mod prefix_table;
mod trie;

use super::cidr::{PrefixDisplay, left_aligned};
use super::declaration::Declaration;
use super::layout::Layout;

pub use super::layout::trie::{
    GROUP_BITS, GROUP_WORDS, INNER_FLAG, LIST_FLAG, LIST_MAX_BITS, LIST_PREFIXES, LIST_WORDS, NODE_BITS, NODE_WORDS,
    ROOT_NODE_STRIDE, TrieLayout, address_bits,
};
pub(super) use prefix_table::PrefixTable;

/// Index in the header: end of the memory in use.
pub const HEADER_END: u32 = 1;

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

/// Mask of the first `length` bits of an address.
fn prefix_mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0)
}

/// The range of a map's prefixes in its memory: first word and number of words.
pub(crate) fn prefixes(map: &Declaration) -> (usize, usize) {
    (Prefix::offset(map, 0), map.entries as usize * (map.key as usize + 1))
}

/// The entry of a prefix, looked up in the words of that range.
pub(crate) fn find_entry(map: &Declaration, prefixes: &[u32], key: &[u32]) -> Option<u32> {
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
