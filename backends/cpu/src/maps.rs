//! The memory of a filter's maps.

use std::sync::atomic::{AtomicU32, Ordering};

use portcullis_core::map::Declaration;
use portcullis_core::map::layout::Layout;

/// The words of all maps of a session.
pub(crate) struct Maps {
    words: Vec<Box<[AtomicU32]>>,
    /// Where each begins, for the code.
    addresses: Vec<*mut u32>,
}

// SAFETY: the addresses are those of the words, which are atomic and stay where they are.
unsafe impl Send for Maps {}
// SAFETY: as above.
unsafe impl Sync for Maps {}

impl Maps {
    /// With nothing in them.
    pub fn new(maps: &[Declaration]) -> Maps {
        let words: Vec<_> = maps.iter().map(|map| zeros(Layout::of(map).words())).collect();
        let addresses = words.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        Maps { words, addresses }
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

/// Zeros that the system gives page by page when they are first written.
fn zeros(count: usize) -> Box<[AtomicU32]> {
    let zeros: Box<[u32]> = vec![0; count].into();
    // SAFETY: an atomic word has the size and alignment of a word, on processors of 64 bits.
    unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU32]) }
}
