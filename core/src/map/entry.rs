//! A single entry of a map in a session, without a copy of the whole map: of the map's memory only what a search for the
//! key looks at is read, and only what changes is written.
//!
//! Reads and writes of one entry follow each other without a batch between them, since the session is the caller's alone
//! meanwhile: to a batch they are there together or not at all.

use super::declaration::{Declaration, MapKind};
use super::layout::{HEADER_CLAIMED, HEADER_REMOVED, HEADER_WORDS, Layout};
use super::lpm;
use super::slot::{self, SlotOwner};
use crate::device::{DeviceError, Session};

/// Places that are read at once at the beginning of a search, which ends among them nearly always.
const PROBE_READAHEAD: u32 = 32;

/// A key of a map in a session.
pub struct EntryAccess<'a> {
    session: &'a mut dyn Session,
    number: usize,
    map: &'a Declaration,
    key: &'a [u32],
    layout: Layout,
}

/// What came of a change of a single entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryUpdate {
    /// It is made.
    Done,
    /// There is nothing to change: no such entry, or no room for it, nor would there be more in a tidy map.
    Impossible,
    /// It takes a copy of the whole map.
    NeedsFullCopy,
}

/// Where an entry is or would be.
enum ProbeResult {
    /// It is there: its place of a map by number or of prefixes.
    Value(u32),
    /// The key's place in a map of hashed keys, and the place's words.
    Place(u32, Vec<u32>),
    /// Nobody's place, where the key would go.
    Free(u32),
    /// There is none.
    Absent,
}

impl<'a> EntryAccess<'a> {
    /// A key, as long as those of the map of this number.
    pub fn new(session: &'a mut dyn Session, number: usize, map: &'a Declaration, key: &'a [u32]) -> EntryAccess<'a> {
        EntryAccess { session, number, map, key, layout: Layout::of(map) }
    }

    /// The value's words.
    pub fn get(&mut self) -> Result<Option<Vec<u32>>, DeviceError> {
        match self.find()? {
            ProbeResult::Value(place) => {
                let at = self.value(place);
                self.session.map_words_at(self.number, at, self.map.value as usize).map(Some)
            }
            ProbeResult::Place(_, words) if slot::is_present(&self.layout, &words) => {
                Ok(Some(words[self.layout.value as usize..].to_vec()))
            }
            ProbeResult::Place(..) | ProbeResult::Free(_) | ProbeResult::Absent => Ok(None),
        }
    }

    /// Gives the key a value of as many words as the map's; makes the entry where there is none.
    pub fn set(&mut self, value: &[u32]) -> Result<EntryUpdate, DeviceError> {
        let layout = self.layout;
        let (number, mut words) = match self.find()? {
            // Prefixes of equal values may share one, so that others find what is written at theirs.
            ProbeResult::Value(_) if self.map.kind == MapKind::Lpm && self.map.read_only => {
                return Ok(EntryUpdate::NeedsFullCopy);
            }
            ProbeResult::Value(place) => {
                self.session.set_map_words(self.number, self.value(place), value)?;
                return Ok(EntryUpdate::Done);
            }
            ProbeResult::Place(place, words) if slot::is_present(&layout, &words) => {
                self.session.set_map_words(self.number, self.value(place), value)?;
                return Ok(EntryUpdate::Done);
            }
            ProbeResult::Place(place, words) => (place, words),
            ProbeResult::Free(place) => (place, vec![0; layout.stride as usize]),
            ProbeResult::Absent if self.map.kind == MapKind::Lpm => return Ok(EntryUpdate::NeedsFullCopy),
            ProbeResult::Absent => return self.without_room(),
        };
        let mut header = self.header()?;
        if slot::entry_count(&header) >= self.map.max_keys() {
            return Ok(EntryUpdate::Impossible);
        }
        if words[0] == 0 && header[HEADER_CLAIMED as usize] >= layout.max_claimed {
            return self.without_room();
        }
        slot::make(&layout, &mut header, &mut words, self.key);
        words[layout.value as usize..].copy_from_slice(value);
        self.write(number, &header, &words)
    }

    /// Removes the entry. One by number is there always, and is zeros then.
    pub fn remove(&mut self) -> Result<EntryUpdate, DeviceError> {
        let layout = self.layout;
        match self.find()? {
            ProbeResult::Value(_) if self.map.kind == MapKind::Lpm => Ok(EntryUpdate::NeedsFullCopy),
            ProbeResult::Value(place) => {
                self.session.set_map_words(self.number, self.value(place), &vec![0; self.map.value as usize])?;
                Ok(EntryUpdate::Done)
            }
            ProbeResult::Place(number, mut words) if slot::is_present(&layout, &words) => {
                let mut header = self.header()?;
                slot::remove(&layout, &mut header, &mut words);
                self.write(number, &header, &words)
            }
            ProbeResult::Place(..) | ProbeResult::Free(_) | ProbeResult::Absent => Ok(EntryUpdate::Impossible),
        }
    }

    fn find(&mut self) -> Result<ProbeResult, DeviceError> {
        match self.map.kind {
            MapKind::Array | MapKind::Counter if self.key[0] < self.layout.slots => Ok(ProbeResult::Value(self.key[0])),
            MapKind::Array | MapKind::Counter => Ok(ProbeResult::Absent),
            MapKind::Hash | MapKind::LruHash => self.search(),
            MapKind::Lpm => {
                let (at, count) = lpm::prefixes(self.map);
                let prefixes = self.session.map_words_at(self.number, at, count)?;
                Ok(lpm::place(self.map, &prefixes, self.key).map_or(ProbeResult::Absent, ProbeResult::Value))
            }
        }
    }

    fn search(&mut self) -> Result<ProbeResult, DeviceError> {
        let (layout, stride) = (self.layout, self.layout.stride as usize);
        let (mut first, mut read_ahead) = (0, Vec::new());
        for (step, place) in slot::of(&layout, self.key).enumerate() {
            let mut at = place.checked_sub(first).map_or(read_ahead.len(), |after| after as usize * stride);
            if at >= read_ahead.len() {
                // The steps grow: soon the next place is further than what is worth reading with this one.
                let count = if step < PROBE_READAHEAD as usize { PROBE_READAHEAD } else { 1 }.min(layout.slots - place);
                read_ahead =
                    self.session.map_words_at(self.number, layout.slot_offset(place), count as usize * stride)?;
                (first, at) = (place, 0);
            }
            let words = &read_ahead[at..at + stride];
            match slot::meets(&layout, words, self.key) {
                SlotOwner::Key => return Ok(ProbeResult::Place(place, words.to_vec())),
                SlotOwner::Unclaimed => return Ok(ProbeResult::Free(place)),
                SlotOwner::OtherKey => {}
            }
        }
        Ok(ProbeResult::Absent)
    }

    /// Whether forgetting removed keys might make room.
    fn without_room(&mut self) -> Result<EntryUpdate, DeviceError> {
        let removed =
            matches!(self.map.kind, MapKind::Hash | MapKind::LruHash) && self.header()?[HEADER_REMOVED as usize] > 0;
        Ok(if removed { EntryUpdate::NeedsFullCopy } else { EntryUpdate::Impossible })
    }

    fn value(&self, place: u32) -> usize {
        self.layout.slot_offset(place) + self.layout.value as usize
    }

    fn header(&mut self) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words_at(self.number, 0, HEADER_WORDS as usize)
    }

    /// Writes a place, and what the header counts.
    fn write(&mut self, place: u32, header: &[u32], words: &[u32]) -> Result<EntryUpdate, DeviceError> {
        const { assert!(HEADER_CLAIMED == 0 && HEADER_REMOVED == 1) };
        self.session.set_map_words(self.number, self.layout.slot_offset(place), words)?;
        self.session.set_map_words(self.number, 0, &header[..=HEADER_REMOVED as usize])?;
        Ok(EntryUpdate::Done)
    }
}
