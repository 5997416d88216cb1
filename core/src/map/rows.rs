//! A map's entries, out of its memory.

use super::declaration::{Declaration, MapKind};
use super::layout::{KEY_WORD_WRITTEN, Layout, STATE_PRESENT, stored_key_words};
use super::lpm::Prefix;

/// An entry: its key and its value, in words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The key; of a map by number, that number; of a map of prefixes, an address's words and a length.
    pub key: Vec<u32>,
    /// The value.
    pub value: Vec<u32>,
}

/// The entries of a map in order of their keys, out of its memory as a device gives it.
pub fn rows(map: &Declaration, words: &[u32]) -> Vec<Row> {
    sorted_rows(map, words).collect()
}

/// The same one by one, so that a large map is not there twice.
pub fn sorted_rows<'a>(map: &Declaration, words: &'a [u32]) -> impl Iterator<Item = Row> + 'a {
    let (layout, map) = (Layout::of(map), map.clone());
    let at = move |place: u32| &words[layout.slot_offset(place)..layout.slot_offset(place + 1)];
    let whole = (words.len().saturating_sub(layout.slot_offset(0)) / (layout.stride as usize).max(1)) as u32;
    let mut places: Vec<u32> = (0..layout.slots.min(whole)).collect();
    match map.kind {
        MapKind::Array | MapKind::Counter => {}
        MapKind::Hash | MapKind::LruHash => {
            let key = |place| key(&at(place)[..layout.state as usize], map.key);
            places.retain(|place| at(*place)[layout.state as usize] == STATE_PRESENT);
            places.sort_unstable_by(|a, b| key(*a).cmp(key(*b)));
        }
        MapKind::Lpm => {
            places.retain(|place| Prefix::at(&map, words, *place).is_some());
            places.sort_by_cached_key(|place| Prefix::at(&map, words, *place));
        }
    }
    places.into_iter().map(move |place| {
        let key = match map.kind {
            MapKind::Array | MapKind::Counter => vec![place],
            MapKind::Hash | MapKind::LruHash => key(&at(place)[..layout.state as usize], map.key).collect(),
            MapKind::Lpm => Prefix::at(&map, words, place).map(|prefix| prefix.key(&map)).unwrap_or_default(),
        };
        Row { key, value: at(place)[layout.value as usize..].to_vec() }
    })
}

/// A key out of its words in memory.
pub(super) fn key(stored_words: &[u32], length: u32) -> impl Iterator<Item = u32> {
    debug_assert_eq!(stored_words.len(), stored_key_words(length) as usize);
    let bits = move |index: usize| stored_words.get(index).map_or(0, |word| word & !KEY_WORD_WRITTEN);
    // Word `i` has bits 32 i and on: those from 31 i on are in the stored word `i`, from its bit `i`.
    (0..length as usize).map(move |i| bits(i) >> i | bits(i + 1) << (31 - i))
}

#[cfg(test)]
mod tests {
    use super::super::layout::stored_word;
    use super::*;

    #[test]
    fn keys_come_out_as_they_went_in() {
        let mut state = 7_u32;
        for length in 1..=16 {
            let words: Vec<u32> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state
                })
                .collect();
            for words in [words, vec![u32::MAX; length as usize], vec![0; length as usize]] {
                let in_memory: Vec<u32> =
                    (0..stored_key_words(length) as usize).map(|i| stored_word(&words, i)).collect();
                assert_eq!(key(&in_memory, length).collect::<Vec<u32>>(), words);
            }
        }
    }
    #[test]
    fn entries_come_in_order_of_their_keys() {
        let map = Declaration::new("m", MapKind::Hash, 2, 1, 5);
        let layout = Layout::of(&map);
        let mut words = vec![0; layout.words()];
        // The highest bits matter, the first word before the second; an entry that was removed is none.
        let keys = [[1, 0x8000_0000], [u32::MAX, 0], [0x8000_0000, 2], [1, 7], [0, 0], [5, 5]];
        for (place, (key, value)) in (1..).zip(keys.iter().zip(10..)) {
            let place = &mut words[layout.slot_offset(place)..layout.slot_offset(place + 1)];
            (0..3).for_each(|i| place[i] = stored_word(key, i));
            (place[3], place[4]) = (u32::from(*key != [5, 5]), value);
        }
        let row = |key: [u32; 2], value| Row { key: key.into(), value: vec![value] };
        let wanted = [row(keys[4], 14), row(keys[3], 13), row(keys[0], 10), row(keys[2], 12), row(keys[1], 11)];
        assert_eq!(rows(&map, &words), wanted);
        // Memory that was cut off has the entries that are whole.
        assert_eq!(rows(&map, &words[..layout.slot_offset(3) + 4]), [row(keys[0], 10), row(keys[1], 11)]);
        assert_eq!(rows(&map, &words[..3]), []);
    }
}
