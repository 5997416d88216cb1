//! A single entry of a map in a session, without a copy of the whole map: of the map's memory only what a search for the
//! key looks at is read, and only what changes is written.
//!
//! Reads and writes of one entry follow each other without a batch between them, since the session is the caller's alone
//! meanwhile: to a batch they are there together or not at all.

use super::declare::{Declaration, Kind};
use super::layout::{HEADER, Layout, REMOVED, TAKEN};
use super::lpm;
use super::place::{self, Meets};
use crate::device::{DeviceError, Session};

/// Places that are read at once at the beginning of a search, which ends among them nearly always.
const NEAR: u32 = 32;

/// A key of a map in a session.
pub struct Single<'a> {
    session: &'a mut dyn Session,
    number: usize,
    map: &'a Declaration,
    key: &'a [u32],
    layout: Layout,
}

/// What came of a change of a single entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It is made.
    Done,
    /// There is nothing to change: no such entry, or no room for it, nor would there be more in a tidy map.
    Cannot,
    /// It takes a copy of the whole map.
    TakesAll,
}

/// Where an entry is or would be.
enum Found {
    /// It is there: its place of a map by number or of prefixes.
    Value(u32),
    /// The key's place in a map of hashed keys, and the place's words.
    Place(u32, Vec<u32>),
    /// Nobody's place, where the key would go.
    Free(u32),
    /// There is none.
    Nowhere,
}

impl<'a> Single<'a> {
    /// A key, as long as those of the map of this number.
    pub fn new(session: &'a mut dyn Session, number: usize, map: &'a Declaration, key: &'a [u32]) -> Single<'a> {
        Single { session, number, map, key, layout: Layout::of(map) }
    }

    /// The value's words.
    pub fn get(&mut self) -> Result<Option<Vec<u32>>, DeviceError> {
        match self.find()? {
            Found::Value(place) => {
                let at = self.value(place);
                self.session.map_words_at(self.number, at, self.map.value as usize).map(Some)
            }
            Found::Place(_, words) if place::is_there(&self.layout, &words) => {
                Ok(Some(words[self.layout.value as usize..].to_vec()))
            }
            Found::Place(..) | Found::Free(_) | Found::Nowhere => Ok(None),
        }
    }

    /// Gives the key a value of as many words as the map's; makes the entry where there is none.
    pub fn set(&mut self, value: &[u32]) -> Result<Changed, DeviceError> {
        let layout = self.layout;
        let (number, mut words) = match self.find()? {
            // Prefixes of equal values may share one, so that others find what is written at theirs.
            Found::Value(_) if self.map.kind == Kind::Lpm && self.map.read_only => return Ok(Changed::TakesAll),
            Found::Value(place) => {
                self.session.set_map_words(self.number, self.value(place), value)?;
                return Ok(Changed::Done);
            }
            Found::Place(place, words) if place::is_there(&layout, &words) => {
                self.session.set_map_words(self.number, self.value(place), value)?;
                return Ok(Changed::Done);
            }
            Found::Place(place, words) => (place, words),
            Found::Free(place) => (place, vec![0; layout.stride as usize]),
            Found::Nowhere if self.map.kind == Kind::Lpm => return Ok(Changed::TakesAll),
            Found::Nowhere => return self.without_room(),
        };
        let mut header = self.header()?;
        if place::there(&header) >= self.map.most_keys() {
            return Ok(Changed::Cannot);
        }
        if words[0] == 0 && header[TAKEN as usize] >= layout.limit {
            return self.without_room();
        }
        place::make(&layout, &mut header, &mut words, self.key);
        words[layout.value as usize..].copy_from_slice(value);
        self.write(number, &header, &words)
    }

    /// Removes the entry. One by number is there always, and is zeros then.
    pub fn remove(&mut self) -> Result<Changed, DeviceError> {
        let layout = self.layout;
        match self.find()? {
            Found::Value(_) if self.map.kind == Kind::Lpm => Ok(Changed::TakesAll),
            Found::Value(place) => {
                self.session.set_map_words(self.number, self.value(place), &vec![0; self.map.value as usize])?;
                Ok(Changed::Done)
            }
            Found::Place(number, mut words) if place::is_there(&layout, &words) => {
                let mut header = self.header()?;
                place::remove(&layout, &mut header, &mut words);
                self.write(number, &header, &words)
            }
            Found::Place(..) | Found::Free(_) | Found::Nowhere => Ok(Changed::Cannot),
        }
    }

    fn find(&mut self) -> Result<Found, DeviceError> {
        match self.map.kind {
            Kind::Array | Kind::Counter if self.key[0] < self.layout.places => Ok(Found::Value(self.key[0])),
            Kind::Array | Kind::Counter => Ok(Found::Nowhere),
            Kind::Hash | Kind::LruHash => self.search(),
            Kind::Lpm => {
                let (at, count) = lpm::prefixes(self.map);
                let prefixes = self.session.map_words_at(self.number, at, count)?;
                Ok(lpm::place(self.map, &prefixes, self.key).map_or(Found::Nowhere, Found::Value))
            }
        }
    }

    fn search(&mut self) -> Result<Found, DeviceError> {
        let (layout, stride) = (self.layout, self.layout.stride as usize);
        let (mut first, mut near) = (0, Vec::new());
        for (step, place) in place::of(&layout, self.key).enumerate() {
            let mut at = place.checked_sub(first).map_or(near.len(), |after| after as usize * stride);
            if at >= near.len() {
                // The steps grow: soon the next place is further than what is worth reading with this one.
                let count = if step < NEAR as usize { NEAR } else { 1 }.min(layout.places - place);
                near = self.session.map_words_at(self.number, layout.at(place), count as usize * stride)?;
                (first, at) = (place, 0);
            }
            let words = &near[at..at + stride];
            match place::meets(&layout, words, self.key) {
                Meets::Key => return Ok(Found::Place(place, words.to_vec())),
                Meets::Nobody => return Ok(Found::Free(place)),
                Meets::Another => {}
            }
        }
        Ok(Found::Nowhere)
    }

    /// Whether forgetting removed keys might make room.
    fn without_room(&mut self) -> Result<Changed, DeviceError> {
        let removed = matches!(self.map.kind, Kind::Hash | Kind::LruHash) && self.header()?[REMOVED as usize] > 0;
        Ok(if removed { Changed::TakesAll } else { Changed::Cannot })
    }

    fn value(&self, place: u32) -> usize {
        self.layout.at(place) + self.layout.value as usize
    }

    fn header(&mut self) -> Result<Vec<u32>, DeviceError> {
        self.session.map_words_at(self.number, 0, HEADER as usize)
    }

    /// Writes a place, and what the header counts.
    fn write(&mut self, place: u32, header: &[u32], words: &[u32]) -> Result<Changed, DeviceError> {
        const { assert!(TAKEN == 0 && REMOVED == 1) };
        self.session.set_map_words(self.number, self.layout.at(place), words)?;
        self.session.set_map_words(self.number, 0, &header[..=REMOVED as usize])?;
        Ok(Changed::Done)
    }
}
