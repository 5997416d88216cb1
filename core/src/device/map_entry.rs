//! Access to a single entry of a map in a session, without a copy of the map: reads only the memory
//! that a probe for the key visits, and writes only what changes.
//!
//! The caller has exclusive access to the session, so no batch runs between the reads and writes of
//! one operation: to a batch they are atomic.

use super::{DeviceError, Session};
use crate::map::layout::{HEADER_CLAIMED, HEADER_REMOVED, HEADER_WORDS, Layout};
use crate::map::slot::{self, SlotOwner};
use crate::map::{Declaration, MapKind, lpm};

/// Number of slots that are read at once at the start of a probe, which nearly always ends among
/// them.
const PROBE_READAHEAD: u32 = 32;

/// A key of a map in a session.
pub struct EntryAccess<'a> {
    session: &'a mut dyn Session,
    number: usize,
    map: &'a Declaration,
    key: &'a [u32],
    layout: Layout,
}

/// Outcome of changing a single entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryUpdate {
    /// The change is complete.
    Done,
    /// The change is impossible: there is no such entry, or no room for it even after compaction.
    Impossible,
    /// The change requires a copy of the whole map.
    NeedsFullCopy,
}

/// Result of locating a key.
enum ProbeResult {
    /// The index of the entry, in a map by index or by prefix.
    Value(u32),
    /// The slot that the key has claimed in a hash map, and the slot's words.
    Slot(u32, Vec<u32>),
    /// The unclaimed slot that the key would get.
    Free(u32),
    /// There is no entry and no slot for one.
    Absent,
}

impl<'a> EntryAccess<'a> {
    /// Access to the entry of `key` in the map with index `number`. The key has as many words as
    /// the map's keys.
    pub fn new(session: &'a mut dyn Session, number: usize, map: &'a Declaration, key: &'a [u32]) -> EntryAccess<'a> {
        EntryAccess { session, number, map, key, layout: Layout::of(map) }
    }

    /// The value's words, if the entry is present.
    pub fn get(&mut self) -> Result<Option<Vec<u32>>, DeviceError> {
        match self.locate()? {
            ProbeResult::Value(slot) => {
                let at = self.value_offset(slot);
                self.session.map_words_at(self.number, at, self.map.value as usize).map(Some)
            }
            ProbeResult::Slot(_, words) if slot::is_present(&self.layout, &words) => {
                Ok(Some(words[self.layout.value as usize..].to_vec()))
            }
            ProbeResult::Slot(..) | ProbeResult::Free(_) | ProbeResult::Absent => Ok(None),
        }
    }

    /// Sets the value, which has as many words as the map's values; inserts the entry if it is
    /// absent.
    pub fn set(&mut self, value: &[u32]) -> Result<EntryUpdate, DeviceError> {
        let layout = self.layout;
        let (number, mut words) = match self.locate()? {
            // Prefixes with equal values may share an entry, whose value must not change for the
            // others.
            ProbeResult::Value(_) if self.map.kind == MapKind::Lpm && self.map.read_only => {
                return Ok(EntryUpdate::NeedsFullCopy);
            }
            ProbeResult::Value(slot) => {
                self.session.set_map_words(self.number, self.value_offset(slot), value)?;
                return Ok(EntryUpdate::Done);
            }
            ProbeResult::Slot(slot, words) if slot::is_present(&layout, &words) => {
                self.session.set_map_words(self.number, self.value_offset(slot), value)?;
                return Ok(EntryUpdate::Done);
            }
            ProbeResult::Slot(slot, words) => (slot, words),
            ProbeResult::Free(slot) => (slot, vec![0; layout.stride as usize]),
            ProbeResult::Absent if self.map.kind == MapKind::Lpm => return Ok(EntryUpdate::NeedsFullCopy),
            ProbeResult::Absent => return self.update_without_room(),
        };
        let mut header = self.header()?;
        if slot::entry_count(&header) >= self.map.max_keys() {
            return Ok(EntryUpdate::Impossible);
        }
        if words[0] == 0 && header[HEADER_CLAIMED as usize] >= layout.max_claimed {
            return self.update_without_room();
        }
        slot::insert(&layout, &mut header, &mut words, self.key);
        words[layout.value as usize..].copy_from_slice(value);
        self.write(number, &header, &words)
    }

    /// Removes the entry. An entry by index is always present; it is set to zeros.
    pub fn remove(&mut self) -> Result<EntryUpdate, DeviceError> {
        let layout = self.layout;
        match self.locate()? {
            ProbeResult::Value(_) if self.map.kind == MapKind::Lpm => Ok(EntryUpdate::NeedsFullCopy),
            ProbeResult::Value(slot) => {
                self.session.set_map_words(self.number, self.value_offset(slot), &vec![0; self.map.value as usize])?;
                Ok(EntryUpdate::Done)
            }
            ProbeResult::Slot(number, mut words) if slot::is_present(&layout, &words) => {
                let mut header = self.header()?;
                slot::remove(&layout, &mut header, &mut words);
                self.write(number, &header, &words)
            }
            ProbeResult::Slot(..) | ProbeResult::Free(_) | ProbeResult::Absent => Ok(EntryUpdate::Impossible),
        }
    }

    fn locate(&mut self) -> Result<ProbeResult, DeviceError> {
        match self.map.kind {
            MapKind::Array | MapKind::Counter if self.key[0] < self.layout.slots => Ok(ProbeResult::Value(self.key[0])),
            MapKind::Array | MapKind::Counter => Ok(ProbeResult::Absent),
            MapKind::Hash | MapKind::LruHash => self.probe(),
            MapKind::Lpm => {
                let (at, count) = lpm::prefixes(self.map);
                let prefixes = self.session.map_words_at(self.number, at, count)?;
                Ok(lpm::find_entry(self.map, &prefixes, self.key).map_or(ProbeResult::Absent, ProbeResult::Value))
            }
        }
    }

    fn probe(&mut self) -> Result<ProbeResult, DeviceError> {
        let (layout, stride) = (self.layout, self.layout.stride as usize);
        let (mut first, mut read_ahead) = (0, Vec::new());
        for (step, slot) in slot::probe_sequence(&layout, self.key).enumerate() {
            let mut at = slot.checked_sub(first).map_or(read_ahead.len(), |after| after as usize * stride);
            if at >= read_ahead.len() {
                // Probe steps grow: soon the next slot is too far away to read others along with
                // it.
                let count = if step < PROBE_READAHEAD as usize { PROBE_READAHEAD } else { 1 }.min(layout.slots - slot);
                read_ahead =
                    self.session.map_words_at(self.number, layout.slot_offset(slot), count as usize * stride)?;
                (first, at) = (slot, 0);
            }
            let words = &read_ahead[at..at + stride];
            match slot::owner_of(&layout, words, self.key) {
                SlotOwner::Key => return Ok(ProbeResult::Slot(slot, words.to_vec())),
                SlotOwner::Unclaimed => return Ok(ProbeResult::Free(slot)),
                SlotOwner::OtherKey => {}
            }
        }
        Ok(ProbeResult::Absent)
    }

    /// The outcome if there is no slot: compaction may free some if keys have been removed.
    fn update_without_room(&mut self) -> Result<EntryUpdate, DeviceError> {
        let removed =
            matches!(self.map.kind, MapKind::Hash | MapKind::LruHash) && self.header()?[HEADER_REMOVED as usize] > 0;
        Ok(if removed { EntryUpdate::NeedsFullCopy } else { EntryUpdate::Impossible })
    }

    fn value_offset(&self, slot: u32) -> usize {
        self.layout.slot_offset(slot) + self.layout.value as usize
    }

    fn header(&mut self) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words_at(self.number, 0, HEADER_WORDS as usize)
    }

    /// Writes a slot and the header's counters.
    fn write(&mut self, slot: u32, header: &[u32], words: &[u32]) -> Result<EntryUpdate, DeviceError> {
        const { assert!(HEADER_CLAIMED == 0 && HEADER_REMOVED == 1) };
        self.session.set_map_words(self.number, self.layout.slot_offset(slot), words)?;
        self.session.set_map_words(self.number, 0, &header[..=HEADER_REMOVED as usize])?;
        Ok(EntryUpdate::Done)
    }
}
