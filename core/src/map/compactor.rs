//! Maintenance of hash maps between batches: compaction, which frees the slots of removed keys, and
//! eviction from an `lru_hash`. Within a batch a slot keeps its key, which makes the filters'
//! operations wait-free ([`super::wgsl_text`]).
//!
//! On a device with memory of its own, reading a map's header costs a round trip. So a session
//! bounds the number of keys that its batches may have inserted, and reads the header only if the
//! next batch might run out of slots.

use std::convert::Infallible;

use super::declaration::{Declaration, MAX_KEY_WORDS, MapKind};
use super::layout::{HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, HEADER_WORDS, Layout, STATE_PRESENT};
use super::rows::unpack_key;
use super::slot::probe_sequence;

/// Compact if more than one in this many claimed slots has a removed key: compaction costs a pass
/// over the map.
const MIN_REMOVED_DIVISOR: u32 = 16;

/// Minimum number of generations that an `lru_hash` distinguishes between two evictions.
const LRU_GENERATIONS: u32 = 8;

/// Access to the memory of a session's maps while no batch is running.
pub trait MapMemory {
    /// Error if the memory cannot be accessed.
    type Error;

    /// Reads the header of a map.
    ///
    /// # Errors
    /// If the memory cannot be accessed.
    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], Self::Error>;

    /// Writes a word of a map's header.
    ///
    /// # Errors
    /// As for [`MapMemory::read_header`].
    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), Self::Error>;

    /// Passes the words of a map to `change` and replaces them by what it returns, if anything.
    ///
    /// # Errors
    /// As for [`MapMemory::read_header`].
    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), Self::Error>;
}

/// The words of each map in the host's memory.
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

/// Maintains the hash maps of a session.
#[derive(Debug)]
pub struct MapCompactor {
    maps: Vec<CompactionState>,
}

/// State of a map that is maintained.
#[derive(Debug)]
struct CompactionState {
    number: usize,
    map: Declaration,
    layout: Layout,
    /// Maximum number of keys that a packet inserts.
    max_inserts_per_packet: u64,
    /// Upper bound on the number of claimed slots.
    claimed: u64,
    /// Value of `claimed` at which an `lru_hash` starts a new generation.
    next_generation_at: u64,
}

impl MapCompactor {
    /// A compactor for maps, given the maximum number of keys that a packet inserts into each;
    /// `None` if packets insert into no hash map.
    pub fn new(maps: &[Declaration], max_inserts_per_packet: impl Fn(usize) -> u64) -> Option<MapCompactor> {
        let maps: Vec<CompactionState> = maps
            .iter()
            .enumerate()
            .filter(|(_, map)| matches!(map.kind, MapKind::Hash | MapKind::LruHash))
            .map(|(number, map)| CompactionState {
                number,
                map: map.clone(),
                layout: Layout::of(map),
                max_inserts_per_packet: max_inserts_per_packet(number),
                claimed: 0,
                next_generation_at: 0,
            })
            .filter(|state| state.max_inserts_per_packet > 0)
            .collect();
        (!maps.is_empty()).then_some(MapCompactor { maps })
    }

    /// Records that a batch of `packets` packets is about to start. Returns whether
    /// [`MapCompactor::compact_if_needed`] must run before it.
    pub fn needs_compaction(&mut self, packets: usize) -> bool {
        let mut due = false;
        for state in &mut self.maps {
            let max = state.claimed.saturating_add(state.max_inserts(packets));
            due |= max > u64::from(state.layout.max_claimed)
                || (state.layout.stamp.is_some() && max > state.next_generation_at);
            state.claimed = max;
        }
        due
    }

    /// Records that the host has written to maps, so that the number of their keys is unknown.
    pub fn invalidate(&mut self) {
        self.maps.iter_mut().for_each(|state| state.claimed = state.layout.max_claimed.into());
    }

    /// Reads the maps' headers before a batch of `packets` packets; compacts maps and evicts
    /// entries if it might run out of slots.
    ///
    /// # Errors
    /// If the memory cannot be accessed; each map is either unchanged or done.
    pub fn compact_if_needed<M: MapMemory>(&mut self, packets: usize, memory: &mut M) -> Result<(), M::Error> {
        for state in &mut self.maps {
            state.compact_if_needed(packets, memory)?;
        }
        Ok(())
    }
}

impl CompactionState {
    /// Maximum number of keys that a batch inserts.
    fn max_inserts(&self, packets: usize) -> u64 {
        self.max_inserts_per_packet.saturating_mul(packets as u64)
    }

    fn compact_if_needed<M: MapMemory>(&mut self, packets: usize, memory: &mut M) -> Result<(), M::Error> {
        let header = memory.read_header(self.number)?;
        let (mut claimed, removed) = (header[HEADER_CLAIMED as usize], header[HEADER_REMOVED as usize]);
        let present = claimed.saturating_sub(removed);
        let fills = u64::from(claimed) + self.max_inserts(packets) > u64::from(self.layout.max_claimed);
        let evicts = self.layout.stamp.is_some() && present > self.map.entries;
        // An `lru_hash` must have room for as many new keys as it has entries, so every removed key
        // counts.
        let min_removed = if self.layout.stamp.is_some() { 0 } else { claimed / MIN_REMOVED_DIVISOR };
        if fills && (evicts || removed > min_removed) {
            let max = if evicts { self.map.entries } else { u32::MAX };
            let mut left = claimed;
            memory.rewrite(self.number, &mut |words| {
                let words = compact_to(&self.map, words, max)?;
                left = words[HEADER_CLAIMED as usize];
                Some(words)
            })?;
            claimed = left;
        }
        if self.layout.stamp.is_some() {
            memory.write_header_word(
                self.number,
                HEADER_GENERATION,
                header[HEADER_GENERATION as usize].wrapping_add(1),
            )?;
        }
        self.claimed = u64::from(claimed) + self.max_inserts(packets);
        self.next_generation_at = self.claimed + u64::from(self.map.entries / LRU_GENERATIONS);
        Ok(())
    }
}

/// The words of a map without removed keys and with at most `max` entries, those used most
/// recently. `None` if rehashing fails and the words must stay as they are.
fn compact_to(map: &Declaration, words: &[u32], max: u32) -> Option<Vec<u32>> {
    let layout = Layout::of(map);
    let (Some(stamp), true) = (layout.stamp, max < layout.slots) else { return rehash(map, words, |_| true) };
    let now = words[HEADER_GENERATION as usize];
    // Generations wrap around, so compare ages rather than stamps.
    let age = |slot: &[u32]| now.wrapping_sub(slot[stamp as usize]);
    let mut ages: Vec<u32> = present_slots(&layout, words).map(age).collect();
    let max = max as usize;
    if max == 0 || ages.len() <= max {
        return rehash(map, words, |_| max > 0);
    }
    let (_, oldest_kept, _) = ages.select_nth_unstable(max - 1);
    let oldest_kept = *oldest_kept;
    // Number of entries of the oldest kept age that there is room for.
    let mut room = max - ages.iter().filter(|age| **age < oldest_kept).count();
    rehash(map, words, |slot| match age(slot).cmp(&oldest_kept) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => {
            let stays = room > 0;
            room = room.saturating_sub(1);
            stays
        }
        std::cmp::Ordering::Greater => false,
    })
}

/// The slots whose entries are present.
fn present_slots<'a>(layout: &Layout, words: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
    let (start, stride, state) = (layout.slot_offset(0), layout.stride as usize, layout.state as usize);
    words[start..].chunks_exact(stride).filter(move |slot| slot[state] == STATE_PRESENT)
}

/// The words of a map with only the entries that `keep` selects, each in the first free slot of its
/// probe sequence. `None` if an entry finds no slot within [`MAX_PROBES`], which may happen because
/// the order of insertion differs, but has never been observed.
pub(super) fn rehash(map: &Declaration, words: &[u32], mut keep: impl FnMut(&[u32]) -> bool) -> Option<Vec<u32>> {
    let layout = Layout::of(map);
    let mut all = vec![0; layout.words()];
    all[..HEADER_WORDS as usize].copy_from_slice(&words[..HEADER_WORDS as usize]);
    let mut claimed = 0;
    let mut words_of_key = [0; MAX_KEY_WORDS as usize];
    for slot in present_slots(&layout, words).filter(|slot| keep(slot)) {
        unpack_key(&slot[..layout.state as usize], map.key).zip(&mut words_of_key).for_each(|(word, to)| *to = word);
        let mut probes = probe_sequence(&layout, &words_of_key[..map.key as usize]);
        let number = probes.find(|number| all[layout.slot_offset(*number)] == 0)?;
        all[layout.slot_offset(number)..layout.slot_offset(number + 1)].copy_from_slice(slot);
        claimed += 1;
    }
    all[HEADER_CLAIMED as usize] = claimed;
    all[HEADER_REMOVED as usize] = 0;
    Some(all)
}
