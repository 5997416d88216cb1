//! The host's index of a prefix map, which finds, inserts and removes prefixes without a trie.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::super::declaration::{Declaration, MapKind};
use super::super::layout::{HEADER_CLAIMED, Layout};
use super::fold_hash::FoldHashBuilder;
use super::{Prefix, trie};

/// Index of the prefixes in a map's memory, and the memory with an up-to-date trie.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct PrefixTable {
    index: OnceLock<Index>,
    /// Whether the trie is out of date: prefixes were inserted or removed, or values of shared
    /// entries changed.
    stale: bool,
    /// Cached memory with an up-to-date trie.
    image: OnceLock<Vec<u32>>,
}

#[derive(Debug, Clone, Default)]
struct Index {
    entries: HashMap<Prefix, u32, FoldHashBuilder>,
    /// Entries without a prefix, the lowest last.
    free: Vec<u32>,
}

impl Index {
    fn of(map: &Declaration, words: &[u32]) -> Index {
        let mut index = Index::default();
        for entry in (0..map.entries).rev() {
            match Prefix::at(map, words, entry) {
                Some(prefix) => _ = index.entries.insert(prefix, entry),
                None => index.free.push(entry),
            }
        }
        index
    }
}

impl PrefixTable {
    /// The entry of a prefix.
    pub fn find_entry(&self, map: &Declaration, words: &[u32], key: &[u32]) -> Option<u32> {
        let prefix = Prefix::of(map, key)?;
        self.index.get_or_init(|| Index::of(map, words)).entries.get(&prefix).copied()
    }

    /// Inserts a prefix that is absent. `None` if the map is full or the key is not a prefix.
    pub fn insert(&mut self, map: &Declaration, words: &mut [u32], key: &[u32]) -> Option<u32> {
        let prefix = Prefix::of(map, key)?;
        let index = self.index(map, words);
        let entry = index.free.pop()?;
        index.entries.insert(prefix, entry);
        let taken = index.entries.len() as u32;
        words[HEADER_CLAIMED as usize] = taken;
        prefix.write(map, words, entry);
        self.stale = true;
        Some(entry)
    }

    /// Removes a prefix and its value. Returns whether it was present.
    pub fn remove(&mut self, map: &Declaration, words: &mut [u32], key: &[u32]) -> bool {
        let Some(prefix) = Prefix::of(map, key) else { return false };
        let index = self.index(map, words);
        let Some(entry) = index.entries.remove(&prefix) else { return false };
        index.free.push(entry);
        let taken = index.entries.len() as u32;
        words[HEADER_CLAIMED as usize] = taken;
        Prefix::clear(map, words, entry);
        let layout = Layout::of(map);
        words[layout.slot_offset(entry)..layout.slot_offset(entry + 1)].fill(0);
        self.stale = true;
        true
    }

    /// Records that a value has changed.
    pub fn mark_value_changed(&mut self, map: &Declaration) {
        self.image.take();
        // Prefixes that shared an entry may have different values now.
        self.stale |= map.kind == MapKind::Lpm && map.read_only;
    }

    /// The memory with a new trie; `None` if the trie in the map's memory is up to date.
    pub fn image(&self, map: &Declaration, words: &[u32]) -> Option<&[u32]> {
        let value = |entry| {
            let layout = Layout::of(map);
            &words[layout.slot_offset(entry)..layout.slot_offset(entry + 1)]
        };
        let entries = || {
            let index = self.index.get_or_init(|| Index::of(map, words));
            index.entries.iter().map(|(prefix, entry)| (*prefix, value(*entry))).collect()
        };
        self.stale.then(|| self.image.get_or_init(|| trie::build_image(map, entries())).as_slice())
    }

    fn index(&mut self, map: &Declaration, words: &[u32]) -> &mut Index {
        self.image.take();
        self.index.get_or_init(|| Index::of(map, words));
        self.index.get_mut().expect("initialised above")
    }
}
