//! A map in the host's memory, with the same operations on entries as in filters.

use std::ops::Range;

use super::compactor::rehash;
use super::declaration::{Declaration, MapKind};
use super::layout::{HEADER_CLAIMED, HEADER_REMOVED, HEADER_WORDS, Layout};
use super::lpm::PrefixTable;
use super::rows::{Row, rows};
use super::slot::{self, SlotOwner};

/// The map has no room for the entry, or no such index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no room in the map")]
pub struct MapFull;

/// A map's memory, with the range of words that have changed.
#[derive(Debug, Clone)]
pub struct Table {
    map: Declaration,
    layout: Layout,
    words: Vec<u32>,
    changed: Range<usize>,
    /// The index of the prefixes of an `lpm`.
    prefixes: PrefixTable,
}

/// Result of probing for a key.
enum ProbeResult {
    /// The slot that the key has claimed.
    Slot(u32),
    /// The unclaimed slot that the key would get.
    Free(u32),
    /// The key has no slot, and no slot within the probe limit is unclaimed.
    Absent,
}

impl Table {
    /// A table over a map's memory, as read from a session; missing words are zeros.
    pub fn new(map: &Declaration, mut words: Vec<u32>) -> Table {
        let layout = Layout::of(map);
        words.resize(layout.words(), 0);
        Table { map: map.clone(), layout, words, changed: 0..0, prefixes: PrefixTable::default() }
    }

    /// The entries, in order of their keys.
    pub fn rows(&self) -> Vec<Row> {
        rows(&self.map, &self.words)
    }

    /// Index of the first changed word, and all words from there to the last changed one, to be
    /// written back to the session. If prefixes were inserted or removed, this builds the new trie.
    pub fn changes(&self) -> (usize, &[u32]) {
        if let Some(image) = self.prefixes.image(&self.map, &self.words) {
            return (0, image);
        }
        (self.changed.start, &self.words[self.changed.clone()])
    }

    /// The value of a key. A key has as many words as the map's keys; for a map by index, it is the
    /// index; for a prefix map, the address's words, most significant first, and the length.
    pub fn get(&self, key: &[u32]) -> Option<&[u32]> {
        let slot = self.find_slot(key)?;
        Some(&self.words[self.value_range(slot)])
    }

    /// Sets the value of a key, inserting the entry if it is absent; missing words of the value are
    /// zeros.
    ///
    /// # Errors
    /// [`MapFull`], also if the key is not valid for the map: a wrong number of words, or not a
    /// prefix, for which [`super::lpm::check`] returns the reason.
    pub fn set(&mut self, key: &[u32], value: &[u32]) -> Result<(), MapFull> {
        self.set_within(key, value, self.layout.max_claimed)
    }

    /// Sets the value of a key, beyond the limit at which filters find the map full. Use it to
    /// restore entries of a map: lanes that claim slots concurrently may exceed that limit
    /// slightly. The limit of [`Declaration::max_keys`] still applies.
    ///
    /// # Errors
    /// As for [`Table::set`].
    pub fn restore(&mut self, key: &[u32], value: &[u32]) -> Result<(), MapFull> {
        self.set_within(key, value, self.layout.slots)
    }

    fn set_within(&mut self, key: &[u32], value: &[u32], limit: u32) -> Result<(), MapFull> {
        let slot = match self.find_slot(key) {
            Some(slot) => slot,
            None => self.insert(key, limit)?,
        };
        let (to, mut differs) = (self.value_range(slot), false);
        for (number, at) in to.clone().enumerate() {
            let word = value.get(number).copied().unwrap_or(0);
            differs |= self.words[at] != word;
            self.words[at] = word;
        }
        self.mark_changed(to);
        if differs {
            self.prefixes.mark_value_changed(&self.map);
        }
        Ok(())
    }

    /// Removes a key; returns whether it was present. An entry by index is always present; it is
    /// set to zeros.
    pub fn remove(&mut self, key: &[u32]) -> bool {
        if self.map.kind == MapKind::Lpm {
            return self.prefixes.remove(&self.map, &mut self.words, key);
        }
        let Some(number) = self.find_slot(key) else { return false };
        if !self.is_hashed() {
            let value = self.value_range(number);
            self.words[value.clone()].fill(0);
            self.mark_changed(value);
            return true;
        }
        let (layout, at) = (self.layout, self.layout.slot_offset(number)..self.layout.slot_offset(number + 1));
        let (header, slot) = self.header_and_place(number);
        slot::remove(&layout, header, slot);
        self.mark_changed(at.start + layout.state as usize..at.end);
        self.mark_changed(HEADER_REMOVED as usize..HEADER_REMOVED as usize + 1);
        true
    }

    /// Frees the slots of removed keys, after which all words count as changed. Does nothing for
    /// arrays, counters and prefix maps.
    pub fn compact(&mut self) {
        if !self.is_hashed() || self.words[HEADER_REMOVED as usize] == 0 {
            return;
        }
        if let Some(words) = rehash(&self.map, &self.words, |_| true) {
            self.words = words;
            self.changed = 0..self.words.len();
        }
    }

    /// Number of slots claimed by keys, removed ones included.
    pub fn claimed_slots(&self) -> u32 {
        self.words[HEADER_CLAIMED as usize]
    }

    fn is_hashed(&self) -> bool {
        matches!(self.map.kind, MapKind::Hash | MapKind::LruHash)
    }

    fn mark_changed(&mut self, words: Range<usize>) {
        self.changed = match self.changed.is_empty() {
            true => words,
            false => self.changed.start.min(words.start)..self.changed.end.max(words.end),
        };
    }

    fn header_and_place(&mut self, number: u32) -> (&mut [u32], &mut [u32]) {
        let (at, end) = (self.layout.slot_offset(number), self.layout.slot_offset(number + 1));
        let (header, slots) = self.words.split_at_mut(HEADER_WORDS as usize);
        (header, &mut slots[at - HEADER_WORDS as usize..end - HEADER_WORDS as usize])
    }

    fn value_range(&self, slot: u32) -> Range<usize> {
        let start = self.layout.slot_offset(slot) + self.layout.value as usize;
        start..start + self.map.value as usize
    }

    /// The slot of a key whose entry is present, or the index of an entry.
    fn find_slot(&self, key: &[u32]) -> Option<u32> {
        match self.map.kind {
            MapKind::Array | MapKind::Counter => {
                return key.first().copied().filter(|number| *number < self.layout.slots);
            }
            MapKind::Lpm => return self.prefixes.find_entry(&self.map, &self.words, key),
            MapKind::Hash | MapKind::LruHash if key.len() != self.map.key as usize => return None,
            MapKind::Hash | MapKind::LruHash => {}
        }
        match self.probe(key) {
            ProbeResult::Slot(slot) if slot::is_present(&self.layout, &self.words[self.layout.slot_offset(slot)..]) => {
                Some(slot)
            }
            _ => None,
        }
    }

    fn probe(&self, key: &[u32]) -> ProbeResult {
        for slot in slot::probe_sequence(&self.layout, key) {
            match slot::owner_of(&self.layout, &self.words[self.layout.slot_offset(slot)..], key) {
                SlotOwner::Key => return ProbeResult::Slot(slot),
                SlotOwner::Unclaimed => return ProbeResult::Free(slot),
                SlotOwner::OtherKey => {}
            }
        }
        ProbeResult::Absent
    }

    /// Inserts an entry for a key that is absent.
    fn insert(&mut self, key: &[u32], limit: u32) -> Result<u32, MapFull> {
        if self.map.kind == MapKind::Lpm {
            return self.prefixes.insert(&self.map, &mut self.words, key).ok_or(MapFull);
        }
        if !self.is_hashed() || key.len() != self.map.key as usize {
            return Err(MapFull);
        }
        let (number, is_new) = match self.probe(key) {
            ProbeResult::Slot(slot) => (slot, false),
            ProbeResult::Free(slot) if self.claimed_slots() < limit => (slot, true),
            ProbeResult::Free(_) | ProbeResult::Absent => return Err(MapFull),
        };
        if slot::entry_count(&self.words) >= self.map.max_keys() {
            return Err(MapFull);
        }
        let (layout, at) = (self.layout, self.layout.slot_offset(number));
        let (header, slot) = self.header_and_place(number);
        slot::insert(&layout, header, slot, key);
        self.mark_changed(at + if is_new { 0 } else { layout.state as usize }..at + layout.value as usize);
        self.mark_changed(if is_new {
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
    fn a_table_behaves_like_a_btree_map() {
        let mut random = crate::testing::Random(1);
        let mut next = |below: u32| random.below(below.into()) as u32;
        for length in [1, 2, 5] {
            let map = map(MapKind::Hash, length, 2, 400);
            let (mut table, mut model) = (Table::new(&map, Vec::new()), BTreeMap::new());
            // A copy to which all changes are written.
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
                    table.compact();
                    assert_eq!(table.claimed_slots() as usize, model.len());
                }
                let (at, words) = table.changes();
                copy[at..at + words.len()].copy_from_slice(words);
                table = Table::new(&map, copy.clone());
                let rows: Vec<_> = model.iter().map(|(k, v)| Row { key: k.clone(), value: v.clone() }).collect();
                assert_eq!(table.rows(), rows);
            }
        }
    }

    /// A `hash` of an object takes `max_entries` keys, whatever its number of slots
    /// (`htab_map_update_elem`: E2BIG).
    #[test]
    fn a_hash_of_an_object_takes_max_entries_keys() {
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
        assert_eq!(table.layout.max_claimed, 11, "there are more slots than entries");
        (0..6).for_each(|key| table.set(&[key], &[key]).unwrap());
        assert_eq!((table.set(&[6], &[6]), table.restore(&[6], &[6])), (Err(MapFull), Err(MapFull)));
        assert_eq!(table.set(&[5], &[7]), Ok(()), "the key is present");
        // A new key may replace a removed one, and the removed key may come back.
        assert!(table.remove(&[0]));
        assert_eq!((table.set(&[6], &[6]), table.set(&[0], &[0])), (Ok(()), Err(MapFull)));
        assert!(table.remove(&[6]));
        assert_eq!((table.set(&[0], &[9]), table.set(&[6], &[6])), (Ok(()), Err(MapFull)));
        assert_eq!((table.rows().len(), table.get(&[0])), (6, Some(&[9][..])));
    }

    #[test]
    fn full_tables_and_out_of_range_indices_are_rejected() {
        let mut table = Table::new(&map(MapKind::Hash, 1, 0, 5), Vec::new());
        let taken = (0..100).filter(|key| table.set(&[*key], &[]).is_ok()).count();
        assert_eq!(taken, 5, "seven tenths of eight slots");
        assert_eq!(table.set(&[0], &[]), Ok(()), "the key is present");
        assert_eq!(
            (table.set(&[200], &[]), table.restore(&[200], &[])),
            (Err(MapFull), Ok(())),
            "restoring ignores the limit"
        );
        assert_eq!(table.set(&[0, 1], &[]), Err(MapFull), "wrong number of words");
        let mut table = Table::new(&map(MapKind::Array, 1, 3, 4), Vec::new());
        assert_eq!((table.set(&[3], &[7]), table.set(&[4], &[7])), (Ok(()), Err(MapFull)));
        assert_eq!((table.get(&[3]), table.get(&[4])), (Some(&[7, 0, 0][..]), None));
        assert!(table.remove(&[3]) && table.get(&[3]) == Some(&[0, 0, 0]));
    }
}
