//! Host memory of a filter's maps.

use std::convert::Infallible;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use portcullis_core::device::DeviceError;
use portcullis_core::map::compactor::MapMemory;
use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::map::{Declaration, MapKind};

/// Cache line in 32-bit words.
const LINE_WORDS: usize = 16;

/// Maximum size in bytes of a counter map that each thread has a copy of. In larger ones threads
/// rarely meet, and adding up copies would take long.
const MAX_COPIED_BYTES: usize = 4 << 10;

/// Words of all maps of a session.
pub(crate) struct Maps {
    words: Vec<AlignedWords>,
    /// Address of each map's first word, for generated code; one table for all threads, or one for
    /// each.
    addresses: Vec<Vec<*mut u32>>,
    /// What each thread has copies of; empty if there is one table.
    copies: Vec<ThreadCounters>,
}

/// A thread's copies of small counters, which it adds to instead of the counters themselves, so
/// that threads do not wait for each other. They are added up when a batch has ended, as filters
/// cannot read counters.
struct ThreadCounters {
    /// The number of each map, and its copy.
    counters: Vec<(usize, AlignedWords)>,
    /// Whether the thread has taken part in the current batch.
    is_used: AtomicBool,
}

// SAFETY: the addresses point to `words`, which are atomic and do not move.
unsafe impl Send for Maps {}
// SAFETY: as above.
unsafe impl Sync for Maps {}

impl Maps {
    /// Allocates all maps, empty, for `threads` threads.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if there is not enough memory.
    pub fn new(maps: &[Declaration], threads: usize) -> Result<Maps, DeviceError> {
        let words = |map: &Declaration| {
            let count = Layout::of(map).words();
            AlignedWords::zeroed(count).ok_or_else(|| DeviceError::Unsupported {
                device: "cpu".into(),
                reason: format!("cannot allocate {} bytes for map `{}`", 4 * count, map.name),
            })
        };
        let is_copied =
            |map: &Declaration| map.kind == MapKind::Counter && 4 * Layout::of(map).words() <= MAX_COPIED_BYTES;
        let copied: Vec<_> = maps.iter().enumerate().filter(|(_, map)| is_copied(map)).collect();
        let copies = |_| {
            let counters = copied.iter().map(|(number, map)| Ok((*number, words(map)?))).collect::<Result<_, _>>()?;
            Ok(ThreadCounters { counters, is_used: AtomicBool::new(false) })
        };
        let threads = if copied.is_empty() || threads < 2 { 0 } else { threads };
        let copies = (0..threads).map(copies).collect::<Result<Vec<_>, _>>()?;
        let words = maps.iter().map(words).collect::<Result<Vec<_>, _>>()?;
        let shared: Vec<*mut u32> = words.iter().map(AlignedWords::address).collect();
        let with_copies = |copies: &ThreadCounters| {
            let mut addresses = shared.clone();
            copies.counters.iter().for_each(|(map, copy)| addresses[*map] = copy.address());
            addresses
        };
        let addresses = if copies.is_empty() { vec![shared] } else { copies.iter().map(with_copies).collect() };
        Ok(Maps { words, addresses, copies })
    }

    /// Borrows a map's words exclusively.
    ///
    /// # Safety
    ///
    /// No other code accesses them during the borrow.
    #[expect(clippy::mut_from_ref, reason = "the words are atomics; the caller guarantees exclusive access")]
    unsafe fn exclusive_words(&self, map: usize) -> &mut [u32] {
        let words = &self.words[map];
        // SAFETY: atomic words have the layout of words, and the caller guarantees exclusive
        // access.
        unsafe { std::slice::from_raw_parts_mut(words.as_ptr().cast_mut().cast(), words.len()) }
    }

    /// Returns the table for [`BatchContext::maps`](crate::compile::abi::BatchContext::maps) for a
    /// thread of those that the maps were made for. Generated code accesses the words atomically
    /// only.
    pub fn addresses(&self, thread: usize) -> *const *mut u32 {
        let Some(copies) = self.copies.get(thread) else { return self.addresses[0].as_ptr() };
        if !copies.is_used.load(Ordering::Relaxed) {
            copies.is_used.store(true, Ordering::Relaxed);
        }
        self.addresses[thread].as_ptr()
    }

    /// Adds what threads have counted in the current batch to the counters. No thread counts
    /// meanwhile.
    pub fn add_up_counters(&self) {
        for ThreadCounters { counters, is_used } in &self.copies {
            if !is_used.swap(false, Ordering::Relaxed) {
                continue;
            }
            for (map, copy) in counters {
                for (sum, counted) in sums(&self.words[*map]).iter().zip(sums(copy)) {
                    let value = |[low, high]: &[AtomicU32; 2]| {
                        u64::from(high.load(Ordering::Relaxed)) << 32 | u64::from(low.load(Ordering::Relaxed))
                    };
                    let set = |[low, high]: &[AtomicU32; 2], value: u64| {
                        low.store(value as u32, Ordering::Relaxed);
                        high.store((value >> 32) as u32, Ordering::Relaxed);
                    };
                    if value(counted) != 0 {
                        set(sum, value(sum).wrapping_add(value(counted)));
                        set(counted, 0);
                    }
                }
            }
        }
    }

    /// Returns the distance of an address from the start of the map that it is in, as a fraction of
    /// the map's size in units of 2^-24; `None` if it is in no map.
    pub fn offset_fraction(&self, address: *const u8) -> Option<u32> {
        self.words.iter().find_map(|words| {
            let (offset, size) = ((address as usize).wrapping_sub(words.as_ptr() as usize), size_of_val(&**words));
            (offset < size).then(|| (((offset as u64) << 24) / size as u64) as u32)
        })
    }

    /// Writes words of a map from index `at` on.
    ///
    /// # Panics
    ///
    /// If `at` is beyond the map's end.
    pub fn set_words(&self, map: usize, at: usize, words: &[u32]) {
        for (to, word) in self.words[map][at..].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// Reads `words` words of a map from index `at` on.
    ///
    /// # Panics
    ///
    /// If they are beyond the map's end.
    pub fn words(&self, map: usize, at: usize, words: usize) -> Vec<u32> {
        self.words[map][at..at + words].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// The sums of a counter map, each as its low and its high word.
fn sums(counters: &[AtomicU32]) -> &[[AtomicU32; 2]] {
    counters[HEADER_WORDS as usize..].as_chunks().0
}

/// Exclusive access to the maps between batches.
pub(crate) struct QuiescentMaps<'a>(&'a Maps);

impl<'a> QuiescentMaps<'a> {
    /// # Safety
    ///
    /// As long as this value exists no batch is being filtered, and there is no other such value.
    pub unsafe fn new(maps: &'a Maps) -> QuiescentMaps<'a> {
        QuiescentMaps(maps)
    }
}

impl MapMemory for QuiescentMaps<'_> {
    type Error = Infallible;

    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], Infallible> {
        Ok(std::array::from_fn(|at| self.0.words[map][at].load(Ordering::Relaxed)))
    }

    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), Infallible> {
        self.0.words[map][at as usize].store(word, Ordering::Relaxed);
        Ok(())
    }

    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), Infallible> {
        // SAFETY: no batch is being filtered and no other `QuiescentMaps` exists
        // (`QuiescentMaps::new`); the session, which also reads and writes words for its owner,
        // waits for all batches first.
        let words = unsafe { self.0.exclusive_words(map) };
        if let Some(changed) = change(words) {
            words.copy_from_slice(&changed);
        }
        Ok(())
    }
}

/// Words of a map, in cache lines of their own: the layouts of maps keep what belongs together in
/// as few lines as possible.
struct AlignedWords {
    memory: Box<[AtomicU32]>,
    /// The aligned part of `memory`.
    aligned: Range<usize>,
}

impl AlignedWords {
    /// Address of the first word.
    fn address(&self) -> *mut u32 {
        self.as_ptr().cast_mut().cast()
    }

    /// Allocates zeroed words, `None` if there is not enough memory. The system provides their
    /// pages when they are first written.
    fn zeroed(count: usize) -> Option<AlignedWords> {
        let room = count.checked_next_multiple_of(LINE_WORDS)?.checked_add(LINE_WORDS - 1)?;
        let layout = std::alloc::Layout::array::<AtomicU32>(room).ok()?;
        // SAFETY: the size is not zero, as every map has at least one word.
        let zeros = unsafe { std::alloc::alloc_zeroed(layout) };
        if zeros.is_null() {
            return None;
        }
        // SAFETY: the memory has this layout and comes from the allocator that boxes use; zeros are
        // valid atomics.
        let memory = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(zeros.cast(), room)) };
        let memory: Box<[AtomicU32]> = memory;
        // Aligned by hand: the allocator's own zeroed and aligned allocation would write the zeros.
        let start = (memory.as_ptr() as usize / size_of::<u32>()).wrapping_neg() % LINE_WORDS;
        Some(AlignedWords { memory, aligned: start..start + count })
    }
}

impl Deref for AlignedWords {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        &self.memory[self.aligned.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_start_at_a_cache_line() {
        for count in [1, 16, 17, 1000, 100_000] {
            let words = AlignedWords::zeroed(count).unwrap();
            assert_eq!((words.len(), words.as_ptr() as usize % 64), (count, 0));
        }
    }
}
