//! Arenas whose pages are only populated on first use: most of the space for the longest packets
//! never is.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use portcullis_core::packet::{Arena, ArenaError, READABLE_PAST_END};

/// Alignment of an arena's start and size.
const PAGE: usize = 4096;

/// A private anonymous mapping.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping only owns pages; the arena synchronises access to them.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives no access to the pages.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned these pages, and nothing uses them any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Allocates an arena of `len` zero bytes.
///
/// # Errors
/// As [`Arena::new`].
pub(super) fn arena(len: usize) -> Result<Arena, ArenaError> {
    if len > Arena::MAX_LEN {
        return Err(ArenaError::TooLarge { requested: len });
    }
    let allocated = (len + READABLE_PAST_END).next_multiple_of(PAGE);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), allocated, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(ArenaError::OutOfMemory { requested: len });
    }
    let start = NonNull::new(start.cast::<u8>()).ok_or(ArenaError::OutOfMemory { requested: len })?;
    // SAFETY: `allocated` bytes, zero and ours, at a page's beginning, until the mapping is
    // dropped.
    unsafe { Arena::from_raw_parts(start, len, allocated, Box::new(Mapping { start, len: allocated })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_zeroed_and_lives_as_long_as_its_last_span() {
        let mut arena = arena(5000).unwrap();
        assert!(arena.len() == 5000 && arena.iter().all(|&byte| byte == 0));
        arena.fill(7);
        let span = arena.span().clone();
        drop(arena);
        // SAFETY: the span keeps the memory alive, and nothing writes to it.
        assert_eq!(unsafe { *span.as_ptr().add(4999) }, 7);
        assert_eq!(
            super::arena(Arena::MAX_LEN + 1).unwrap_err(),
            ArenaError::TooLarge { requested: Arena::MAX_LEN + 1 }
        );
    }
}
