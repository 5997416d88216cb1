//! A list of map entries, as read from a file.

use portcullis_core::map::{Declaration, MapKind, sorted_rows};

/// Map entries in one vector: the words of each key, followed by those of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    key: usize,
    value: usize,
    words: Vec<u32>,
}

impl Entries {
    /// Creates an empty list for entries of `map`.
    pub fn new(map: &Declaration) -> Entries {
        Entries { key: map.key_words() as usize, value: map.value as usize, words: Vec::new() }
    }

    /// Extracts the entries from a map's memory, in the order of their keys. Zero entries of arrays
    /// and counters are omitted.
    pub fn in_memory(map: &Declaration, words: &[u32]) -> Entries {
        let mut entries = Entries::new(map);
        let numbered = matches!(map.kind, MapKind::Array | MapKind::Counter);
        for row in sorted_rows(map, words).filter(|row| !numbered || row.value.iter().any(|word| *word != 0)) {
            entries.words.extend(row.key);
            entries.words.extend(row.value);
        }
        entries
    }

    /// Appends an entry, given as the words of its key and value.
    pub fn push(&mut self, key_and_value: &[u32]) {
        debug_assert_eq!(key_and_value.len(), self.width());
        self.words.extend(key_and_value);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.words.len() / self.width()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Iterates over keys and values, in the order of insertion.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u32], &[u32])> {
        self.words.chunks_exact(self.width()).map(|words| words.split_at(self.key))
    }

    /// Returns the words of all entries.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Number of words per entry; at least one, as keys are not empty.
    pub fn width(&self) -> usize {
        self.key + self.value
    }
}
