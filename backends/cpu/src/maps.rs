//! Host memory of a filter's maps.

use std::convert::Infallible;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, Ordering};

use portcullis_core::device::DeviceError;
use portcullis_core::map::Declaration;
use portcullis_core::map::compactor::MapMemory;
use portcullis_core::map::layout::{HEADER_WORDS, Layout};

/// Cache line in 32-bit words.
const LINE_WORDS: usize = 16;

/// Words of all maps of a session.
pub(crate) struct Maps {
    words: Vec<AlignedWords>,
    /// Address of each map's first word, for generated code.
    addresses: Vec<*mut u32>,
}

// SAFETY: the addresses point to `words`, which are atomic and do not move.
unsafe impl Send for Maps {}
// SAFETY: as above.
unsafe impl Sync for Maps {}

impl Maps {
    /// Allocates all maps, empty.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if there is not enough memory.
    pub fn new(maps: &[Declaration]) -> Result<Maps, DeviceError> {
        let words = |map: &Declaration| {
            let count = Layout::of(map).words();
            AlignedWords::zeroed(count).ok_or_else(|| DeviceError::Unsupported {
                device: "cpu".into(),
                reason: format!("cannot allocate {} bytes for map `{}`", 4 * count, map.name),
            })
        };
        let words = maps.iter().map(words).collect::<Result<Vec<_>, _>>()?;
        let addresses = words.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        Ok(Maps { words, addresses })
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

    /// Returns the table for [`BatchContext::maps`](crate::compile::abi::BatchContext::maps).
    /// Generated code accesses the words atomically only.
    pub fn addresses(&self) -> *const *mut u32 {
        self.addresses.as_ptr()
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

/// Words of a map, starting at a cache line: the layouts of maps keep what belongs together in as
/// few lines as possible.
struct AlignedWords {
    memory: Box<[AtomicU32]>,
    /// The aligned part of `memory`.
    aligned: Range<usize>,
}

impl AlignedWords {
    /// Allocates zeroed words, `None` if there is not enough memory. The system provides their
    /// pages when they are first written.
    fn zeroed(count: usize) -> Option<AlignedWords> {
        let layout = std::alloc::Layout::array::<AtomicU32>(count + LINE_WORDS - 1).ok()?;
        // SAFETY: the size is not zero, as every map has at least one word.
        let zeros = unsafe { std::alloc::alloc_zeroed(layout) };
        if zeros.is_null() {
            return None;
        }
        // SAFETY: the memory has this layout and comes from the allocator that boxes use; zeros are
        // valid atomics.
        let memory = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(zeros.cast(), count + LINE_WORDS - 1)) };
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
