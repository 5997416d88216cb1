//! What a table of prefixes has beside the map's memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use super::super::declaration::{Declaration, MapKind};
use super::super::layout::{HEADER_CLAIMED, Layout};
use super::{Prefix, trie};

/// Where prefixes are in a map's memory, and that memory as it is to be.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct PrefixTable {
    index: OnceLock<Index>,
    /// Whether prefixes were made or removed, or values changed that entries share, which the trie does not know of.
    stale: bool,
    /// The memory with a trie that does.
    image: OnceLock<Vec<u32>>,
}

#[derive(Debug, Clone, Default)]
struct Index {
    places: HashMap<Prefix, u32, FoldHashBuilder>,
    /// Places without a prefix, the first last.
    free: Vec<u32>,
}

/// Hashes by multiplying and folding, from a random number on, so that nobody can choose prefixes that meet.
#[derive(Debug, Clone)]
pub(super) struct FoldHashBuilder(u64);

impl Default for FoldHashBuilder {
    fn default() -> FoldHashBuilder {
        FoldHashBuilder(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for FoldHashBuilder {
    type Hasher = FoldHasher;

    fn build_hasher(&self) -> FoldHasher {
        FoldHasher(self.0)
    }
}

pub(super) struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64((word >> 64) as u64);
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Index {
    fn of(map: &Declaration, words: &[u32]) -> Index {
        let mut index = Index::default();
        for place in (0..map.entries).rev() {
            match Prefix::at(map, words, place) {
                Some(prefix) => _ = index.places.insert(prefix, place),
                None => index.free.push(place),
            }
        }
        index
    }
}

impl PrefixTable {
    /// The place of a prefix.
    pub fn place(&self, map: &Declaration, words: &[u32], key: &[u32]) -> Option<u32> {
        let prefix = Prefix::of(map, key)?;
        self.index.get_or_init(|| Index::of(map, words)).places.get(&prefix).copied()
    }

    /// Makes an entry for a prefix that has none, where there is room.
    pub fn make(&mut self, map: &Declaration, words: &mut [u32], key: &[u32]) -> Option<u32> {
        let prefix = Prefix::of(map, key)?;
        let index = self.index(map, words);
        let place = index.free.pop()?;
        index.places.insert(prefix, place);
        let taken = index.places.len() as u32;
        words[HEADER_CLAIMED as usize] = taken;
        prefix.write(map, words, place);
        self.stale = true;
        Some(place)
    }

    /// Removes a prefix and its value; whether it was there.
    pub fn remove(&mut self, map: &Declaration, words: &mut [u32], key: &[u32]) -> bool {
        let Some(prefix) = Prefix::of(map, key) else { return false };
        let index = self.index(map, words);
        let Some(place) = index.places.remove(&prefix) else { return false };
        index.free.push(place);
        let taken = index.places.len() as u32;
        words[HEADER_CLAIMED as usize] = taken;
        Prefix::clear(map, words, place);
        let layout = Layout::of(map);
        words[layout.slot_offset(place)..layout.slot_offset(place + 1)].fill(0);
        self.stale = true;
        true
    }

    /// A value has changed.
    pub fn changed(&mut self, map: &Declaration) {
        self.image.take();
        // What shared its entry with others may do so no more.
        self.stale |= map.kind == MapKind::Lpm && map.read_only;
    }

    /// The memory with a trie over its prefixes, where they are others than before.
    pub fn image(&self, map: &Declaration, words: &[u32]) -> Option<&[u32]> {
        let value = |place| {
            let layout = Layout::of(map);
            &words[layout.slot_offset(place)..layout.slot_offset(place + 1)]
        };
        let entries = || {
            let index = self.index.get_or_init(|| Index::of(map, words));
            index.places.iter().map(|(prefix, place)| (*prefix, value(*place))).collect()
        };
        self.stale.then(|| self.image.get_or_init(|| trie::image(map, entries())).as_slice())
    }

    fn index(&mut self, map: &Declaration, words: &[u32]) -> &mut Index {
        self.image.take();
        self.index.get_or_init(|| Index::of(map, words));
        self.index.get_mut().expect("it was made just now")
    }
}
