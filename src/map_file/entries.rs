//! Entries of a map, out of a file.

use portcullis_core::map::{Declaration, MapKind, sorted_rows};

/// Entries, one behind the other: the words of the key, then those of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    key: usize,
    value: usize,
    words: Vec<u32>,
}

impl Entries {
    /// None yet.
    pub fn new(map: &Declaration) -> Entries {
        Entries { key: map.key_words() as usize, value: map.value as usize, words: Vec::new() }
    }

    /// Those in a map's memory, in order of their keys. Of maps by number those that are zeros are left out.
    pub fn in_memory(map: &Declaration, words: &[u32]) -> Entries {
        let mut entries = Entries::new(map);
        let numbered = matches!(map.kind, MapKind::Array | MapKind::Counter);
        for row in sorted_rows(map, words).filter(|row| !numbered || row.value.iter().any(|word| *word != 0)) {
            entries.words.extend(row.key);
            entries.words.extend(row.value);
        }
        entries
    }

    /// One more, whose key and value are as long as the map's.
    pub fn push(&mut self, key_and_value: &[u32]) {
        debug_assert_eq!(key_and_value.len(), self.width());
        self.words.extend(key_and_value);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.words.len() / self.width()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Keys and values, in the order in which they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u32], &[u32])> {
        self.words.chunks_exact(self.width()).map(|words| words.split_at(self.key))
    }

    /// All words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Words of an entry, of which a key has one at least.
    pub fn width(&self) -> usize {
        self.key + self.value
    }
}
