//! The memory of a filter's maps.

use std::convert::Infallible;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, Ordering};

use portcullis_core::device::DeviceError;
use portcullis_core::map::Declaration;
use portcullis_core::map::compactor::MapMemory;
use portcullis_core::map::layout::{HEADER_WORDS, Layout};

/// Words of a line of the cache.
const LINE: usize = 16;

/// The words of all maps of a session.
pub(crate) struct Maps {
    words: Vec<Words>,
    /// Where each begins, for the code.
    addresses: Vec<*mut u32>,
}

// SAFETY: the addresses are those of the words, which are atomic and stay where they are.
unsafe impl Send for Maps {}
// SAFETY: as above.
unsafe impl Sync for Maps {}

impl Maps {
    /// With nothing in them.
    pub fn new(maps: &[Declaration]) -> Result<Maps, DeviceError> {
        let words = |map: &Declaration| {
            let count = Layout::of(map).words();
            Words::zeros(count).ok_or_else(|| DeviceError::Unsupported {
                device: "cpu".into(),
                reason: format!("there is no memory for its map `{}`, which takes {} bytes", map.name, 4 * count),
            })
        };
        let words = maps.iter().map(words).collect::<Result<Vec<_>, _>>()?;
        let addresses = words.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        Ok(Maps { words, addresses })
    }

    /// A map's words, to be changed as a whole.
    ///
    /// # Safety
    /// Nobody else uses them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "the words are behind atomics; the caller has them alone")]
    unsafe fn exclusive(&self, map: usize) -> &mut [u32] {
        let words = &self.words[map];
        // SAFETY: atomic words have the layout of words, and nobody else uses them (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(words.as_ptr().cast_mut().cast(), words.len()) }
    }

    /// Where each begins, for `Context::maps`: the code reads and writes there by atomic accesses alone.
    pub fn addresses(&self) -> *const *mut u32 {
        self.addresses.as_ptr()
    }

    /// Writes some of a map's words, which are there.
    pub fn set_words(&self, map: usize, at: usize, words: &[u32]) {
        for (to, word) in self.words[map][at..].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// Some of a map's words, which are there, as they are now.
    pub fn words(&self, map: usize, at: usize, words: usize) -> Vec<u32> {
        self.words[map][at..at + words].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// The maps while no batch is under way.
pub(crate) struct Idle<'a>(&'a Maps);

impl<'a> Idle<'a> {
    /// # Safety
    /// No batch is under way as long as this is there, and no other of these is.
    pub unsafe fn new(maps: &'a Maps) -> Idle<'a> {
        Idle(maps)
    }
}

impl MapMemory for Idle<'_> {
    type Error = Infallible;

    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], Infallible> {
        Ok(std::array::from_fn(|at| self.0.words[map][at].load(Ordering::Relaxed)))
    }

    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), Infallible> {
        self.0.words[map][at as usize].store(word, Ordering::Relaxed);
        Ok(())
    }

    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), Infallible> {
        // SAFETY: no batch is under way, and nobody else has an `Idle` (the promise of `Idle::new`); a session's owner,
        // who reads and writes words as well, waits for all batches first.
        let words = unsafe { self.0.exclusive(map) };
        if let Some(changed) = change(words) {
            words.copy_from_slice(&changed);
        }
        Ok(())
    }
}

/// The words of a map, which begin with a line of the cache, as what they hold is laid out to be in few of them.
struct Words {
    memory: Box<[AtomicU32]>,
    own: Range<usize>,
}

impl Words {
    /// Zeros that the system gives page by page when they are first written; `None` where it has not so many.
    fn zeros(count: usize) -> Option<Words> {
        let layout = std::alloc::Layout::array::<AtomicU32>(count + LINE - 1).ok()?;
        // SAFETY: the layout has a size: there is a word at least.
        let zeros = unsafe { std::alloc::alloc_zeroed(layout) };
        if zeros.is_null() {
            return None;
        }
        // SAFETY: the memory is of this layout, by the allocator that boxes use, and zeros are atomic words.
        let memory = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(zeros.cast(), count + LINE - 1)) };
        let memory: Box<[AtomicU32]> = memory;
        // An allocator that could be asked for it would write the zeros.
        let start = (memory.as_ptr() as usize / size_of::<u32>()).wrapping_neg() % LINE;
        Some(Words { memory, own: start..start + count })
    }
}

impl Deref for Words {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        &self.memory[self.own.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_with_a_line() {
        for count in [1, 16, 17, 1000, 100_000] {
            let words = Words::zeros(count).unwrap();
            assert_eq!((words.len(), words.as_ptr() as usize % 64), (count, 0));
        }
    }
}
