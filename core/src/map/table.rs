//! A map as the host has it: its memory, in which entries are found, made and removed as filters do.

use std::ops::Range;

use super::compactor::rehashed;
use super::declaration::{Declaration, MapKind};
use super::layout::{HEADER_CLAIMED, HEADER_REMOVED, HEADER_WORDS, Layout};
use super::lpm::PrefixTable;
use super::rows::{Row, rows};
use super::slot::{self, SlotOwner};

/// There is no room for an entry, or no entry of this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no room in the map")]
pub struct MapFull;

/// A map's memory, and what of it was changed.
#[derive(Debug, Clone)]
pub struct Table {
    map: Declaration,
    layout: Layout,
    words: Vec<u32>,
    changed: Range<usize>,
    /// What there is beside it where the keys are prefixes.
    prefixes: PrefixTable,
}

/// What a search came to.
enum ProbeResult {
    /// The key's place.
    Place(u32),
    /// Where it would go.
    Free(u32),
    /// No place among those that are looked at.
    Absent,
}

impl Table {
    /// The table in a map's memory, as a session gives it. What is missing of that is zeros.
    pub fn new(map: &Declaration, mut words: Vec<u32>) -> Table {
        let layout = Layout::of(map);
        words.resize(layout.words(), 0);
        Table { map: map.clone(), layout, words, changed: 0..0, prefixes: PrefixTable::default() }
    }

    /// The entries in order of their keys.
    pub fn rows(&self) -> Vec<Row> {
        rows(&self.map, &self.words)
    }

    /// Where the first changed word is, and all words from there to the last: what to give back to the session. Where
    /// prefixes were made or removed, what finds them is made here.
    pub fn changes(&self) -> (usize, &[u32]) {
        if let Some(image) = self.prefixes.image(&self.map, &self.words) {
            return (0, image);
        }
        (self.changed.start, &self.words[self.changed.clone()])
    }

    /// The value of a key, which has as many words as the map's; of a map by number, that number; of a map of prefixes,
    /// an address's words, the first bits first, and behind them the length.
    pub fn get(&self, key: &[u32]) -> Option<&[u32]> {
        let place = self.place(key)?;
        Some(&self.words[self.value(place)])
    }

    /// Gives a key a value, of which words that are missing are zeros; makes the entry where there is none.
    ///
    /// # Errors
    /// [`MapFull`], also where the key is none that the map has: its words are too few or too many, or no prefix, of which
    /// [`super::lpm::check`] says what is wrong.
    pub fn set(&mut self, key: &[u32], value: &[u32]) -> Result<(), MapFull> {
        self.set_within(key, value, self.layout.max_claimed)
    }

    /// The same, with room where filters find none any more: for what was in a map before. Lanes that claim places at the
    /// same time go a little beyond the limit, but for that of [`Declaration::max_keys`].
    ///
    /// # Errors
    /// As [`Table::set`]'s.
    pub fn restore(&mut self, key: &[u32], value: &[u32]) -> Result<(), MapFull> {
        self.set_within(key, value, self.layout.slots)
    }

    fn set_within(&mut self, key: &[u32], value: &[u32], limit: u32) -> Result<(), MapFull> {
        let place = match self.place(key) {
            Some(place) => place,
            None => self.make(key, limit)?,
        };
        let (to, mut differs) = (self.value(place), false);
        for (number, at) in to.clone().enumerate() {
            let word = value.get(number).copied().unwrap_or(0);
            differs |= self.words[at] != word;
            self.words[at] = word;
        }
        self.note(to);
        if differs {
            self.prefixes.changed(&self.map);
        }
        Ok(())
    }

    /// Removes a key; whether it was there. Entries by number always are, and are set to zeros.
    pub fn remove(&mut self, key: &[u32]) -> bool {
        if self.map.kind == MapKind::Lpm {
            return self.prefixes.remove(&self.map, &mut self.words, key);
        }
        let Some(number) = self.place(key) else { return false };
        if !self.is_hashed() {
            let value = self.value(number);
            self.words[value.clone()].fill(0);
            self.note(value);
            return true;
        }
        let (layout, at) = (self.layout, self.layout.slot_offset(number)..self.layout.slot_offset(number + 1));
        let (header, place) = self.header_and_place(number);
        slot::remove(&layout, header, place);
        self.note(at.start + layout.state as usize..at.end);
        self.note(HEADER_REMOVED as usize..HEADER_REMOVED as usize + 1);
        true
    }

    /// Forgets the keys that were removed, so that their places are free again. What was changed is all of it then. Of
    /// arrays, counters and prefixes there is nothing to forget.
    pub fn tidy(&mut self) {
        if !self.is_hashed() || self.words[HEADER_REMOVED as usize] == 0 {
            return;
        }
        if let Some(words) = rehashed(&self.map, &self.words, |_| true) {
            self.words = words;
            self.changed = 0..self.words.len();
        }
    }

    /// Places that keys have taken, those of keys that were removed included.
    pub fn taken(&self) -> u32 {
        self.words[HEADER_CLAIMED as usize]
    }

    fn is_hashed(&self) -> bool {
        matches!(self.map.kind, MapKind::Hash | MapKind::LruHash)
    }

    fn note(&mut self, words: Range<usize>) {
        self.changed = match self.changed.is_empty() {
            true => words,
            false => self.changed.start.min(words.start)..self.changed.end.max(words.end),
        };
    }

    fn header_and_place(&mut self, number: u32) -> (&mut [u32], &mut [u32]) {
        let (at, end) = (self.layout.slot_offset(number), self.layout.slot_offset(number + 1));
        let (header, places) = self.words.split_at_mut(HEADER_WORDS as usize);
        (header, &mut places[at - HEADER_WORDS as usize..end - HEADER_WORDS as usize])
    }

    fn value(&self, place: u32) -> Range<usize> {
        let start = self.layout.slot_offset(place) + self.layout.value as usize;
        start..start + self.map.value as usize
    }

    /// The place of a key that is there.
    fn place(&self, key: &[u32]) -> Option<u32> {
        match self.map.kind {
            MapKind::Array | MapKind::Counter => {
                return key.first().copied().filter(|number| *number < self.layout.slots);
            }
            MapKind::Lpm => return self.prefixes.place(&self.map, &self.words, key),
            MapKind::Hash | MapKind::LruHash if key.len() != self.map.key as usize => return None,
            MapKind::Hash | MapKind::LruHash => {}
        }
        match self.search(key) {
            ProbeResult::Place(place)
                if slot::is_present(&self.layout, &self.words[self.layout.slot_offset(place)..]) =>
            {
                Some(place)
            }
            _ => None,
        }
    }

    fn search(&self, key: &[u32]) -> ProbeResult {
        for place in slot::of(&self.layout, key) {
            match slot::meets(&self.layout, &self.words[self.layout.slot_offset(place)..], key) {
                SlotOwner::Key => return ProbeResult::Place(place),
                SlotOwner::Unclaimed => return ProbeResult::Free(place),
                SlotOwner::OtherKey => {}
            }
        }
        ProbeResult::Absent
    }

    /// Makes an entry for a key that is not there.
    fn make(&mut self, key: &[u32], limit: u32) -> Result<u32, MapFull> {
        if self.map.kind == MapKind::Lpm {
            return self.prefixes.make(&self.map, &mut self.words, key).ok_or(MapFull);
        }
        if !self.is_hashed() || key.len() != self.map.key as usize {
            return Err(MapFull);
        }
        let (number, is_new) = match self.search(key) {
            ProbeResult::Place(place) => (place, false),
            ProbeResult::Free(place) if self.taken() < limit => (place, true),
            ProbeResult::Free(_) | ProbeResult::Absent => return Err(MapFull),
        };
        if slot::entry_count(&self.words) >= self.map.max_keys() {
            return Err(MapFull);
        }
        let (layout, at) = (self.layout, self.layout.slot_offset(number));
        let (header, place) = self.header_and_place(number);
        slot::make(&layout, header, place, key);
        self.note(at + if is_new { 0 } else { layout.state as usize }..at + layout.value as usize);
        self.note(if is_new {
            HEADER_CLAIMED as usize..HEADER_CLAIMED as usize + 1
        } else {
            HEADER_REMOVED as usize..HEADER_REMOVED as usize + 1
        });
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::super::typed::{CType, TypeInfo};
    use super::*;

    fn map(kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
        Declaration::new("m", kind, key, value, entries)
    }

    #[test]
    fn a_table_is_a_map_of_rust() {
        let mut state = 1_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for length in [1, 2, 5] {
            let map = map(MapKind::Hash, length, 2, 400);
            let (mut table, mut model) = (Table::new(&map, Vec::new()), BTreeMap::new());
            // What others see of it: all changes carried over.
            let mut copy = vec![0; Layout::of(&map).words()];
            for round in 0..4000 {
                let mut key = vec![0; length as usize];
                key[next(length) as usize] = next(30) << 27 | next(2);
                let value = vec![next(5), next(5)];
                match next(3) {
                    0 => assert_eq!(table.remove(&key), model.remove(&key).is_some()),
                    1 => {
                        table.set(&key, &value).unwrap();
                        model.insert(key, value);
                    }
                    _ => assert_eq!(table.get(&key), model.get(&key).map(Vec::as_slice)),
                }
                if round % 40 == 0 {
                    table.tidy();
                    assert_eq!(table.taken() as usize, model.len());
                }
                let (at, words) = table.changes();
                copy[at..at + words.len()].copy_from_slice(words);
                table = Table::new(&map, copy.clone());
                let rows: Vec<_> = model.iter().map(|(k, v)| Row { key: k.clone(), value: v.clone() }).collect();
                assert_eq!(table.rows(), rows);
            }
        }
    }

    /// An object's `hash` takes `max_entries` keys, whatever it has places for (`htab_map_update_elem`: E2BIG).
    #[test]
    fn a_table_of_an_object_takes_as_many_keys_as_it_has_entries() {
        let typed = TypeInfo {
            name: "m".into(),
            map_type: "hash".into(),
            map_type_number: 1,
            key: CType::unknown(4),
            value: CType::unknown(4),
            constant: false,
        };
        let map = Declaration { typed: Some(Arc::new(typed)), ..map(MapKind::Hash, 1, 1, 6) };
        let mut table = Table::new(&map, Vec::new());
        assert_eq!(table.layout.max_claimed, 11, "places for more");
        (0..6).for_each(|key| table.set(&[key], &[key]).unwrap());
        assert_eq!((table.set(&[6], &[6]), table.restore(&[6], &[6])), (Err(MapFull), Err(MapFull)));
        assert_eq!(table.set(&[5], &[7]), Ok(()), "it is there already");
        // Another in place of one that is removed, and the same one again.
        assert!(table.remove(&[0]));
        assert_eq!((table.set(&[6], &[6]), table.set(&[0], &[0])), (Ok(()), Err(MapFull)));
        assert!(table.remove(&[6]));
        assert_eq!((table.set(&[0], &[9]), table.set(&[6], &[6])), (Ok(()), Err(MapFull)));
        assert_eq!((table.rows().len(), table.get(&[0])), (6, Some(&[9][..])));
    }

    #[test]
    fn a_full_table_takes_no_more_and_numbers_are_bounded() {
        let mut table = Table::new(&map(MapKind::Hash, 1, 0, 5), Vec::new());
        let taken = (0..100).filter(|key| table.set(&[*key], &[]).is_ok()).count();
        assert_eq!(taken, 5, "seven tenths of eight places");
        assert_eq!(table.set(&[0], &[]), Ok(()), "it is there already");
        assert_eq!((table.set(&[200], &[]), table.restore(&[200], &[])), (Err(MapFull), Ok(())), "as it was before");
        assert_eq!(table.set(&[0, 1], &[]), Err(MapFull), "no key of this map");
        let mut table = Table::new(&map(MapKind::Array, 1, 3, 4), Vec::new());
        assert_eq!((table.set(&[3], &[7]), table.set(&[4], &[7])), (Ok(()), Err(MapFull)));
        assert_eq!((table.get(&[3]), table.get(&[4])), (Some(&[7, 0, 0][..]), None));
        assert!(table.remove(&[3]) && table.get(&[3]) == Some(&[0, 0, 0]));
    }
}
