//! Layout of a map's memory, an array of 32-bit words. It is the same on every device, so that maps
//! can be saved, loaded and moved. `docs/reference/map-memory.md` is the specification.

pub(super) mod trie;

use super::declaration::{Declaration, MapKind};

pub use trie::TrieLayout;

/// Number of words before a map's slots.
pub const HEADER_WORDS: u32 = 16;

/// Maximum number of words of a map: word indices leave a bit to spare.
pub const MAX_WORDS: u64 = 1 << 31;

/// Index in the header: number of slots claimed by keys since the last compaction.
pub const HEADER_CLAIMED: u32 = 0;

/// Index in the header: number of those slots whose entry was removed.
pub const HEADER_REMOVED: u32 = 1;

/// Index in the header of an `lru_hash`: the current generation, with which entries are stamped
/// when they are used.
pub const HEADER_GENERATION: u32 = 2;

/// Maximum number of slots that a search visits.
pub const MAX_PROBES: u32 = 128;

/// State of a claimed slot whose entry is present. The state is 0 before.
pub const STATE_PRESENT: u32 = 1;

/// State of a claimed slot whose entry was removed (a tombstone).
pub const STATE_REMOVED: u32 = 2;

/// Set in every stored word of a key, so that a written word is not zero. The other 31 bits hold
/// key bits.
pub const KEY_WORD_WRITTEN: u32 = 0x8000_0000;

/// Number of words that a key of `key` words takes in memory.
pub const fn stored_key_words(key: u32) -> u32 {
    (32 * key).div_ceil(31)
}

/// The `index`th stored word of a key: 31 of its bits from bit 31 · `index` on, zeros behind the
/// key's end, and [`KEY_WORD_WRITTEN`].
pub fn stored_word(key: &[u32], index: usize) -> u32 {
    let low = index.checked_sub(1).and_then(|before| key.get(before)).map_or(0, |word| word >> (32 - index));
    let high = key.get(index).map_or(0, |word| word << index);
    low | high | KEY_WORD_WRITTEN
}

/// The memory of empty maps.
pub(crate) fn zeros(maps: &[Declaration]) -> Vec<Vec<u32>> {
    maps.iter().map(|map| vec![0; Layout::of(map).words()]).collect()
}

/// Where a map's parts are in its memory. Offsets and sizes are in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of slots for entries; a power of two in a hash map.
    pub slots: u32,
    /// Words per slot.
    pub stride: u32,
    /// Offset in a slot of the word that says whether the entry is present; the key precedes it.
    pub state: u32,
    /// Offset in a slot of an `lru_hash`: the generation in which the entry was used last.
    pub stamp: Option<u32>,
    /// Offset in a slot of the value.
    pub value: u32,
    /// Number of slots that keys may claim before the map is full.
    pub max_claimed: u32,
    /// Words behind the slots.
    pub trailing_words: usize,
}

impl Layout {
    /// The layout of a declared map.
    pub fn of(map: &Declaration) -> Layout {
        match map.kind {
            MapKind::Array | MapKind::Counter => {
                let (stride, max_claimed) = (map.value, map.entries);
                Layout { slots: map.entries, stride, state: 0, stamp: None, value: 0, max_claimed, trailing_words: 0 }
            }
            // Values are indexed by entry; the prefixes and the trie are behind them.
            MapKind::Lpm => {
                let TrieLayout { prefixes, end, .. } = TrieLayout::of(map);
                let trailing_words = usize::try_from(end - prefixes).unwrap_or(usize::MAX);
                let (stride, max_claimed) = (map.value, map.entries);
                Layout { slots: map.entries, stride, state: 0, stamp: None, value: 0, max_claimed, trailing_words }
            }
            MapKind::Hash | MapKind::LruHash => {
                let lru = map.kind == MapKind::LruHash;
                // Eviction runs between batches, so a batch may insert as many keys again.
                let keys = if lru { 2 * map.entries } else { map.entries };
                // Load factor at most 0.7: beyond that, probe sequences grow long.
                let slots = (keys * 10).div_ceil(7).next_power_of_two().max(8);
                let state = stored_key_words(map.key);
                let stamp = lru.then_some(state + 1);
                let value = state + 1 + u32::from(lru);
                Layout {
                    slots,
                    stride: value + map.value,
                    state,
                    stamp,
                    value,
                    max_claimed: slots * 7 / 10,
                    trailing_words: 0,
                }
            }
        }
    }

    /// Index of a slot's first word.
    pub fn slot_offset(&self, place: u32) -> usize {
        HEADER_WORDS as usize + place as usize * self.stride as usize
    }

    /// Total number of words.
    pub fn words(&self) -> usize {
        self.slot_offset(self.slots).saturating_add(self.trailing_words)
    }
}

/// Hash of a key, whose low bits are the first slot to probe. Words are multiplied independently of
/// each other, so that a processor can overlap the multiplications.
pub fn hash(key: &[u32]) -> u32 {
    let parts =
        key.iter().zip(0..).map(|(word, index)| word.wrapping_mul(multiplier(index)).rotate_left(rotation(index)));
    let mixed = parts.fold(0, |all: u32, part| all ^ part);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
    mixed ^ mixed >> 13
}

/// Multiplier of a key's `index`th word: odd, and derived from the golden ratio.
pub(super) fn multiplier(index: u32) -> u32 {
    0x9e37_79b1_u32.wrapping_mul(2 * index + 1).rotate_left(3 * index) | 1
}

/// Left rotation of the product for a key's `index`th word, in bits.
pub(super) fn rotation(index: u32) -> u32 {
    index * 11 % 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_words_contain_every_bit_of_a_key() {
        assert_eq!([1, 2, 4, 10, 16].map(stored_key_words), [2, 3, 5, 11, 17]);
        let mut random = crate::testing::Random(1);
        for length in 1..=16 {
            let key: Vec<u32> = (0..length).map(|_| random.next() as u32).collect();
            let words: Vec<u32> = (0..stored_key_words(length) as usize).map(|i| stored_word(&key, i)).collect();
            assert!(words.iter().all(|word| word & KEY_WORD_WRITTEN != 0));
            // Compare bit by bit.
            let bit = |words: &[u32], width: usize, at: usize| words[at / width] >> (at % width) & 1;
            for at in 0..32 * length as usize {
                assert_eq!(bit(&words, 31, at), bit(&key, 32, at), "bit {at} of {length} words");
            }
        }
    }

    #[test]
    fn maps_have_room_for_their_declared_entries() {
        let map = |kind, key, value, entries| Declaration::new("m", kind, key, value, entries);
        for entries in [1, 5, 6, 7, 1000, 1 << 20, 16 << 20] {
            let layout = Layout::of(&map(MapKind::Hash, 4, 6, entries));
            assert!(
                layout.max_claimed >= entries && layout.max_claimed <= layout.slots * 7 / 10,
                "{entries}: {layout:?}"
            );
            assert!(layout.slots.is_power_of_two());
        }
        let layout = Layout::of(&map(MapKind::Hash, 4, 6, 700));
        assert_eq!(
            layout,
            Layout { slots: 1024, stride: 12, state: 5, stamp: None, value: 6, max_claimed: 716, trailing_words: 0 }
        );
        assert_eq!((layout.slot_offset(0), layout.slot_offset(2), layout.words()), (16, 40, 16 + 12 * 1024));
        let layout = Layout::of(&map(MapKind::LruHash, 4, 6, 350));
        assert_eq!(
            layout,
            Layout { slots: 1024, stride: 13, state: 5, stamp: Some(6), value: 7, max_claimed: 716, trailing_words: 0 }
        );
        let layout = Layout::of(&map(MapKind::LruHash, 16, 64, 16 << 20));
        assert!(layout.max_claimed >= 32 << 20 && layout.slots < 1 << 30);
        let layout = Layout::of(&map(MapKind::Counter, 1, 2, 3));
        assert_eq!((layout.slot_offset(1), layout.words()), (18, 22));
    }
}
