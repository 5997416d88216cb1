//! Keys and values as the kernel represents them, and their words.

use super::super::declaration::{Declaration, MapKind};

impl Declaration {
    /// Whether the map has this name, in the filter or in the object.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.typed.as_ref().is_some_and(|typed| typed.name == name)
    }

    /// Sizes of a key and of a value in bytes, as in the kernel.
    pub fn sizes(&self) -> (u32, u32) {
        match &self.typed {
            Some(typed) => (typed.key.size, typed.value.size),
            None => (4 * self.key_words(), 4 * self.value),
        }
    }

    /// A key as the kernel represents it: for a prefix, the length and then the address in network
    /// byte order (`struct bpf_lpm_trie_key`).
    pub fn key_bytes(&self, words: &[u32]) -> Vec<u8> {
        let mut bytes: Vec<u8> = match (self.kind, words.split_last()) {
            (MapKind::Lpm, Some((length, address))) => {
                let address = address.iter().flat_map(|word| word.to_be_bytes());
                length.to_le_bytes().into_iter().chain(address).collect()
            }
            _ => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        };
        bytes.resize(self.sizes().0 as usize, 0);
        bytes
    }

    /// A value as the kernel represents it.
    pub fn value_bytes(&self, words: &[u32]) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(self.sizes().1 as usize, 0);
        bytes
    }

    /// The words of a key of the kernel. Bits beyond a prefix's length are cleared, because the
    /// kernel ignores them.
    pub fn key_from_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let mut bytes = bytes.to_vec();
        if self.kind == MapKind::Lpm || self.typed.as_ref().is_some_and(|typed| typed.is_trie()) {
            let length = bytes.first_chunk().copied().map_or(0, u32::from_le_bytes);
            for (byte, at) in bytes.iter_mut().skip(4).zip((0_u32..).step_by(8)) {
                let kept = length.saturating_sub(at).min(8);
                *byte &= 0xff00_u16.checked_shr(kept).unwrap_or(0) as u8;
            }
        }
        let words = words(&bytes, self.key_words());
        match (self.kind, words.split_first()) {
            (MapKind::Lpm, Some((length, address))) => {
                address.iter().map(|word| word.swap_bytes()).chain([*length]).collect()
            }
            _ => words,
        }
    }

    /// The words of a value of the kernel.
    pub fn value_from_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        words(bytes, self.value)
    }
}

/// Converts bytes to `count` little-endian words, padded with zeros.
fn words(bytes: &[u8], count: u32) -> Vec<u32> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    let mut words: Vec<u32> = bytes.chunks(4).map(word).collect();
    words.resize(count as usize, 0);
    words
}
