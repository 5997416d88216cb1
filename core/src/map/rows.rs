//! A map's entries, out of its memory.

use super::declare::{Declaration, Kind};
use super::layout::{Layout, THERE, WRITTEN, stored};

/// An entry: its key and its value, in words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The key; of a map by number, that number.
    pub key: Vec<u32>,
    /// The value.
    pub value: Vec<u32>,
}

/// The entries of a map in order of their keys, out of its memory as a device gives it.
pub fn rows(map: &Declaration, words: &[u32]) -> Vec<Row> {
    let layout = Layout::of(map);
    let place = |place: u32| words.get(layout.at(place)..layout.at(place + 1));
    let all = (0..layout.places).filter_map(|number| Some((number, place(number)?)));
    let mut rows: Vec<Row> = match map.kind {
        Kind::Array | Kind::Counter => {
            all.map(|(number, place)| Row { key: vec![number], value: place.to_vec() }).collect()
        }
        Kind::Hash | Kind::LruHash | Kind::Lpm => all
            .filter(|(_, place)| place[layout.state as usize] == THERE)
            .map(|(_, place)| Row {
                key: key(&place[..layout.state as usize], map.key),
                value: place[layout.value as usize..].to_vec(),
            })
            .collect(),
    };
    rows.sort_unstable();
    rows
}

/// A key out of its words in memory.
fn key(stored_words: &[u32], length: u32) -> Vec<u32> {
    debug_assert_eq!(stored_words.len(), stored(length) as usize);
    let bits = |index: usize| stored_words.get(index).map_or(0, |word| word & !WRITTEN);
    // Word `i` has bits 32 i and on: those from 31 i on are in the stored word `i`, from its bit `i`.
    (0..length as usize).map(|i| bits(i) >> i | bits(i + 1) << (31 - i)).collect()
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
                let in_memory: Vec<u32> = (0..stored(length) as usize).map(|i| stored_word(&words, i)).collect();
                assert_eq!(key(&in_memory, length), words);
            }
        }
    }
}
