//! Where a map's parts lie in its memory, an array of 32-bit words: the same on every device, so that a map can be
//! saved, loaded and moved. `docs/maps.md` is the specification.

use super::declaration::{Declaration, MapKind};
use super::lpm::TrieLayout;

/// Words before a map's entries.
pub const HEADER_WORDS: u32 = 16;

/// The most words that a map has, so that the number of each has a bit to spare.
pub const MAX_WORDS: u64 = 1 << 31;

/// In the header: places that keys have taken since the last maintenance.
pub const HEADER_CLAIMED: u32 = 0;

/// In the header: those of them whose entry was removed.
pub const HEADER_REMOVED: u32 = 1;

/// In the header, of a map that makes room by itself: what entries are stamped with when they are used.
pub const HEADER_GENERATION: u32 = 2;

/// Places that a search looks at before it gives up.
pub const MAX_PROBES: u32 = 128;

/// The state of a key's place whose entry is there. It is 0 before.
pub const STATE_PRESENT: u32 = 1;

/// And of one whose entry was removed.
pub const STATE_REMOVED: u32 = 2;

/// The bit that says, in a word of a key, that it was written. A word in memory has 31 bits of the key.
pub const KEY_WORD_WRITTEN: u32 = 0x8000_0000;

/// Words that a key of so many words takes in memory.
pub const fn stored_key_words(key: u32) -> u32 {
    (32 * key).div_ceil(31)
}

/// The `index`th of a key's words as they are stored: bits 31 · `index` and on, and [`KEY_WORD_WRITTEN`]. Behind the key's end
/// there are zeros.
pub fn stored_word(key: &[u32], index: usize) -> u32 {
    let low = index.checked_sub(1).and_then(|before| key.get(before)).map_or(0, |word| word >> (32 - index));
    let high = key.get(index).map_or(0, |word| word << index);
    low | high | KEY_WORD_WRITTEN
}

/// The words of maps with nothing in them.
pub(crate) fn zeros(maps: &[Declaration]) -> Vec<Vec<u32>> {
    maps.iter().map(|map| vec![0; Layout::of(map).words()]).collect()
}

/// Where a map's parts lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Places for entries. Of a map with keys that are hashed it is a power of two.
    pub slots: u32,
    /// Words from place to place.
    pub stride: u32,
    /// In a place: the word that says whether its entry is there; what lies before it is the key.
    pub state: u32,
    /// In a place, of a map that makes room by itself: when its entry was used last, behind the state.
    pub stamp: Option<u32>,
    /// In a place: the value's first word.
    pub value: u32,
    /// Places that keys may take before a map is full.
    pub max_claimed: u32,
    /// Words behind the places.
    pub trailing_words: usize,
}

impl Layout {
    /// That of a declaration.
    pub fn of(map: &Declaration) -> Layout {
        match map.kind {
            MapKind::Array | MapKind::Counter => {
                let (stride, max_claimed) = (map.value, map.entries);
                Layout { slots: map.entries, stride, state: 0, stamp: None, value: 0, max_claimed, trailing_words: 0 }
            }
            // Values by number; prefixes and what finds them lie apart.
            MapKind::Lpm => {
                let TrieLayout { prefixes, end, .. } = TrieLayout::of(map);
                let trailing_words = usize::try_from(end - prefixes).unwrap_or(usize::MAX);
                let (stride, max_claimed) = (map.value, map.entries);
                Layout { slots: map.entries, stride, state: 0, stamp: None, value: 0, max_claimed, trailing_words }
            }
            MapKind::Hash | MapKind::LruHash => {
                let lru = map.kind == MapKind::LruHash;
                // What makes room between batches has room for as many keys again within one.
                let keys = if lru { 2 * map.entries } else { map.entries };
                // At most seven tenths of the places are taken: beyond that, searches grow long.
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

    /// Where a place begins.
    pub fn slot_offset(&self, place: u32) -> usize {
        HEADER_WORDS as usize + place as usize * self.stride as usize
    }

    /// Words in all.
    pub fn words(&self) -> usize {
        self.slot_offset(self.slots).saturating_add(self.trailing_words)
    }
}

/// The number that a key's search begins at, modulo the number of places. Each word is multiplied by itself, so that
/// a processor need not wait for one before the next.
pub fn hash(key: &[u32]) -> u32 {
    let parts = key.iter().zip(0..).map(|(word, index)| word.wrapping_mul(multiplier(index)).rotate_left(turn(index)));
    let mixed = parts.fold(0, |all: u32, part| all ^ part);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
    mixed ^ mixed >> 13
}

/// What the `index`th word of a key is multiplied by: odd numbers without a pattern, from the golden ratio's.
pub(super) fn multiplier(index: u32) -> u32 {
    0x9e37_79b1_u32.wrapping_mul(2 * index + 1).rotate_left(3 * index) | 1
}

/// And how far the product is turned.
pub(super) fn turn(index: u32) -> u32 {
    index * 11 % 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_words_hold_all_of_a_key() {
        assert_eq!([1, 2, 4, 10, 16].map(stored_key_words), [2, 3, 5, 11, 17]);
        let mut state = 1_u32;
        for length in 1..=16 {
            let key: Vec<u32> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state
                })
                .collect();
            let words: Vec<u32> = (0..stored_key_words(length) as usize).map(|i| stored_word(&key, i)).collect();
            assert!(words.iter().all(|word| word & KEY_WORD_WRITTEN != 0));
            // Bit by bit.
            let bit = |words: &[u32], width: usize, at: usize| words[at / width] >> (at % width) & 1;
            for at in 0..32 * length as usize {
                assert_eq!(bit(&words, 31, at), bit(&key, 32, at), "bit {at} of {length} words");
            }
        }
    }

    #[test]
    fn maps_have_room_for_what_they_say() {
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
