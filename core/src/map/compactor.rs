//! What sessions do for maps between batches: forget keys that were removed, and make room in an `lru_hash`. Within a
//! batch a place keeps its key, so that nobody needs to wait for anybody ([`super::text`]).
//!
//! Looking costs a device with memory of its own a round trip. So a session counts what its batches may have put into a
//! map, and looks only where the next one might not find room.

use std::convert::Infallible;

use super::declaration::{Declaration, MAX_KEY_WORDS, MapKind};
use super::layout::{
    HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, HEADER_WORDS, Layout, MAX_PROBES, STATE_PRESENT, hash,
};
use super::rows::key;
use super::wgsl::MapFunction;
use crate::program::Program;
use crate::program::prelude::Intrinsic;

/// Of the places that are taken, which part has to be of removed keys before they are worth forgetting: doing so costs
/// a pass over the map.
const MIN_REMOVED_DIVISOR: u32 = 16;

/// Generations that an `lru_hash` tells apart, at least, from one making of room to the next.
const LRU_GENERATIONS: u32 = 8;

/// The memory of a session's maps while no batch is under way.
pub trait MapMemory {
    /// Why it cannot be reached.
    type Error;

    /// The header of a map.
    ///
    /// # Errors
    /// Where the memory cannot be reached.
    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], Self::Error>;

    /// Sets a word of the header of a map.
    ///
    /// # Errors
    /// As [`MapMemory::read_header`].
    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), Self::Error>;

    /// Changes the words of a map: gives them all, and takes others in their place where there are any.
    ///
    /// # Errors
    /// As [`MapMemory::read_header`].
    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), Self::Error>;
}

/// The words of each map, in the host's memory.
impl MapMemory for Vec<Vec<u32>> {
    type Error = Infallible;

    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], Infallible> {
        Ok(std::array::from_fn(|at| self[map][at]))
    }

    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), Infallible> {
        self[map][at as usize] = word;
        Ok(())
    }

    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), Infallible> {
        if let Some(words) = change(&self[map]) {
            self[map] = words;
        }
        Ok(())
    }
}

/// The upkeep of a program's maps.
#[derive(Debug)]
pub struct MapCompactor {
    maps: Vec<CompactionState>,
}

/// A map that wants upkeep.
#[derive(Debug)]
struct CompactionState {
    number: usize,
    map: Declaration,
    layout: Layout,
    /// Keys that a packet may bring at most.
    inserts: u64,
    /// Places that may be taken by now.
    taken: u64,
    /// As many when an `lru_hash` has a new generation.
    next: u64,
}

impl MapCompactor {
    /// That of a program's maps; `None` where no map of it wants any.
    pub fn new(program: &Program) -> Option<MapCompactor> {
        let maps: Vec<CompactionState> = program
            .maps()
            .iter()
            .enumerate()
            .filter(|(_, map)| matches!(map.kind, MapKind::Hash | MapKind::LruHash))
            .map(|(number, map)| {
                let insert = Intrinsic::Map { map: number as u32, call: MapFunction::Insert };
                let inserts = program.max_calls(|intrinsic| intrinsic == insert);
                CompactionState { number, map: map.clone(), layout: Layout::of(map), inserts, taken: 0, next: 0 }
            })
            .filter(|state| state.inserts > 0)
            .collect();
        (!maps.is_empty()).then_some(MapCompactor { maps })
    }

    /// Notes that a batch of so many packets is about to begin; whether a look is due before it.
    pub fn needs_compaction(&mut self, packets: usize) -> bool {
        let mut due = false;
        for state in &mut self.maps {
            let most = state.taken.saturating_add(state.most(packets));
            due |= most > u64::from(state.layout.max_claimed) || (state.layout.stamp.is_some() && most > state.next);
            state.taken = most;
        }
        due
    }

    /// Notes that the host has written to maps: what they hold is not known any more.
    pub fn invalidate(&mut self) {
        self.maps.iter_mut().for_each(|state| state.taken = state.layout.max_claimed.into());
    }

    /// Looks at all maps before a batch of so many packets, and does what is to be done.
    ///
    /// # Errors
    /// Where the memory cannot be reached; maps are as they were or done with.
    pub fn compact_if_needed<M: MapMemory>(&mut self, packets: usize, memory: &mut M) -> Result<(), M::Error> {
        for state in &mut self.maps {
            state.compact_if_needed(packets, memory)?;
        }
        Ok(())
    }
}

impl CompactionState {
    /// Keys that a batch may bring.
    fn most(&self, packets: usize) -> u64 {
        self.inserts.saturating_mul(packets as u64)
    }

    fn compact_if_needed<M: MapMemory>(&mut self, packets: usize, memory: &mut M) -> Result<(), M::Error> {
        let header = memory.read_header(self.number)?;
        let (mut taken, removed) = (header[HEADER_CLAIMED as usize], header[HEADER_REMOVED as usize]);
        let there = taken.saturating_sub(removed);
        let fills = u64::from(taken) + self.most(packets) > u64::from(self.layout.max_claimed);
        let evicts = self.layout.stamp.is_some() && there > self.map.entries;
        // An `lru_hash` has to have room for as many keys as it has entries.
        let worth = if self.layout.stamp.is_some() { 0 } else { taken / MIN_REMOVED_DIVISOR };
        if fills && (evicts || removed > worth) {
            let most = if evicts { self.map.entries } else { u32::MAX };
            let mut left = taken;
            memory.rewrite(self.number, &mut |words| {
                let words = with_most(&self.map, words, most)?;
                left = words[HEADER_CLAIMED as usize];
                Some(words)
            })?;
            taken = left;
        }
        if self.layout.stamp.is_some() {
            memory.write_header_word(
                self.number,
                HEADER_GENERATION,
                header[HEADER_GENERATION as usize].wrapping_add(1),
            )?;
        }
        self.taken = u64::from(taken) + self.most(packets);
        self.next = self.taken + u64::from(self.map.entries / LRU_GENERATIONS);
        Ok(())
    }
}

/// A map's words with the removed keys forgotten, and of its entries at most so many: those that were used last. `None`
/// where that cannot be, and the words are to stay as they are.
fn with_most(map: &Declaration, words: &[u32], most: u32) -> Option<Vec<u32>> {
    let layout = Layout::of(map);
    let (Some(stamp), true) = (layout.stamp, most < layout.slots) else { return rehashed(map, words, |_| true) };
    let now = words[HEADER_GENERATION as usize];
    // Stamps go round: what matters is how long ago they were.
    let age = |place: &[u32]| now.wrapping_sub(place[stamp as usize]);
    let mut ages: Vec<u32> = there(&layout, words).map(age).collect();
    let most = most as usize;
    if most == 0 || ages.len() <= most {
        return rehashed(map, words, |_| most > 0);
    }
    let (_, oldest, _) = ages.select_nth_unstable(most - 1);
    let oldest = *oldest;
    // Of the oldest that stay, as many as there is room for.
    let mut room = most - ages.iter().filter(|age| **age < oldest).count();
    rehashed(map, words, |place| match age(place).cmp(&oldest) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => {
            let stays = room > 0;
            room = room.saturating_sub(1);
            stays
        }
        std::cmp::Ordering::Greater => false,
    })
}

/// The places whose entries are there.
fn there<'a>(layout: &Layout, words: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
    let (start, stride, state) = (layout.slot_offset(0), layout.stride as usize, layout.state as usize);
    words[start..].chunks_exact(stride).filter(move |place| place[state] == STATE_PRESENT)
}

/// A map's words with those of its entries alone that are kept, each where a search finds it soonest. `None` where one
/// finds no place, as may happen in another order, if never was seen to.
pub(super) fn rehashed(map: &Declaration, words: &[u32], mut keep: impl FnMut(&[u32]) -> bool) -> Option<Vec<u32>> {
    let layout = Layout::of(map);
    let mut all = vec![0; layout.words()];
    all[..HEADER_WORDS as usize].copy_from_slice(&words[..HEADER_WORDS as usize]);
    let (mut taken, mask) = (0, layout.slots - 1);
    let mut words_of_key = [0; MAX_KEY_WORDS as usize];
    for place in there(&layout, words).filter(|place| keep(place)) {
        key(&place[..layout.state as usize], map.key).zip(&mut words_of_key).for_each(|(word, to)| *to = word);
        let mut number = hash(&words_of_key[..map.key as usize]) & mask;
        let mut step = 1;
        while all[layout.slot_offset(number)] != 0 {
            if step == MAX_PROBES {
                return None;
            }
            number = number.wrapping_add(step) & mask;
            step += 1;
        }
        all[layout.slot_offset(number)..layout.slot_offset(number + 1)].copy_from_slice(place);
        taken += 1;
    }
    all[HEADER_CLAIMED as usize] = taken;
    all[HEADER_REMOVED as usize] = 0;
    Some(all)
}
