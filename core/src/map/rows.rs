//! The entries in a map's memory.

use super::declaration::{Declaration, MapKind};
use super::layout::{KEY_WORD_WRITTEN, Layout, STATE_PRESENT, stored_key_words};
use super::lpm::Prefix;

/// An entry: key and value, in words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The key; for a map by index, the index; for a prefix map, the address's words and the
    /// length.
    pub key: Vec<u32>,
    /// The value.
    pub value: Vec<u32>,
}

/// The entries in a map's memory, in order of their keys.
pub fn rows(map: &Declaration, words: &[u32]) -> Vec<Row> {
    sorted_rows(map, words).collect()
}

/// Iterates over the entries in order of their keys, without a second copy of a large map.
pub fn sorted_rows<'a>(map: &Declaration, words: &'a [u32]) -> impl Iterator<Item = Row> + 'a {
    let (layout, map) = (Layout::of(map), map.clone());
    let at = move |slot: u32| &words[layout.slot_offset(slot)..layout.slot_offset(slot + 1)];
    let whole = (words.len().saturating_sub(layout.slot_offset(0)) / (layout.stride as usize).max(1)) as u32;
    let mut slots: Vec<u32> = (0..layout.slots.min(whole)).collect();
    match map.kind {
        MapKind::Array | MapKind::Counter => {}
        MapKind::Hash | MapKind::LruHash => {
            let key = |slot| unpack_key(&at(slot)[..layout.state as usize], map.key);
            slots.retain(|slot| at(*slot)[layout.state as usize] == STATE_PRESENT);
            slots.sort_unstable_by(|a, b| key(*a).cmp(key(*b)));
        }
        MapKind::Lpm => {
            slots.retain(|slot| Prefix::at(&map, words, *slot).is_some());
            slots.sort_by_cached_key(|slot| Prefix::at(&map, words, *slot));
        }
    }
    slots.into_iter().map(move |slot| {
        let key = match map.kind {
            MapKind::Array | MapKind::Counter => vec![slot],
            MapKind::Hash | MapKind::LruHash => unpack_key(&at(slot)[..layout.state as usize], map.key).collect(),
            MapKind::Lpm => Prefix::at(&map, words, slot).map(|prefix| prefix.key(&map)).unwrap_or_default(),
        };
        Row { key, value: at(slot)[layout.value as usize..].to_vec() }
    })
}

/// Recovers a key from its stored words.
pub(super) fn unpack_key(stored_words: &[u32], length: u32) -> impl Iterator<Item = u32> {
    debug_assert_eq!(stored_words.len(), stored_key_words(length) as usize);
    let bits = move |index: usize| stored_words.get(index).map_or(0, |word| word & !KEY_WORD_WRITTEN);
    // Word `i` consists of bits 32 i and on. Those from 31 i on are in stored word `i`, from its
    // bit `i` on.
    (0..length as usize).map(move |i| bits(i) >> i | bits(i + 1) << (31 - i))
}

#[cfg(test)]
mod tests {
    use super::super::layout::stored_word;
    use super::*;

    #[test]
    fn unpacking_a_stored_key_returns_it() {
        let mut random = crate::testing::Random(7);
        for length in 1..=16 {
            let words: Vec<u32> = (0..length).map(|_| random.next() as u32).collect();
            for words in [words, vec![u32::MAX; length as usize], vec![0; length as usize]] {
                let in_memory: Vec<u32> =
                    (0..stored_key_words(length) as usize).map(|i| stored_word(&words, i)).collect();
                assert_eq!(unpack_key(&in_memory, length).collect::<Vec<u32>>(), words);
            }
        }
    }
    #[test]
    fn rows_are_sorted_by_key() {
        let map = Declaration::new("m", MapKind::Hash, 2, 1, 5);
        let layout = Layout::of(&map);
        let mut words = vec![0; layout.words()];
        // The most significant bits count first, and the first word before the second. The last
        // entry is removed.
        let keys = [[1, 0x8000_0000], [u32::MAX, 0], [0x8000_0000, 2], [1, 7], [0, 0], [5, 5]];
        for (slot, (key, value)) in (1..).zip(keys.iter().zip(10..)) {
            let slot = &mut words[layout.slot_offset(slot)..layout.slot_offset(slot + 1)];
            (0..3).for_each(|i| slot[i] = stored_word(key, i));
            (slot[3], slot[4]) = (u32::from(*key != [5, 5]), value);
        }
        let row = |key: [u32; 2], value| Row { key: key.into(), value: vec![value] };
        let wanted = [row(keys[4], 14), row(keys[3], 13), row(keys[0], 10), row(keys[2], 12), row(keys[1], 11)];
        assert_eq!(rows(&map, &words), wanted);
        // Truncated memory has the entries that are complete.
        assert_eq!(rows(&map, &words[..layout.slot_offset(3) + 4]), [row(keys[0], 10), row(keys[1], 11)]);
        assert_eq!(rows(&map, &words[..3]), []);
    }
}
