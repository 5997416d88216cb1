//! Arenas whose pages are there only once they are used: most of the longest packets' never are.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use portcullis_core::packet::{Arena, ArenaError, READABLE_PAST_END};

/// A multiple of the size that an arena's memory has to have, and of what it begins at.
const PAGE: usize = 4096;

/// Pages of the system, not shared with anybody.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it only owns the pages; whoever uses them is ordered by the arena that has it.
unsafe impl Send for Mapping {}
// SAFETY: as above, and a shared one gives nothing.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `mmap` gave these pages, and nobody has them any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// An arena of `len` zero bytes.
///
/// # Errors
/// As [`Arena::new`].
pub(super) fn arena(len: usize) -> Result<Arena, ArenaError> {
    if len > Arena::MAX_LEN {
        return Err(ArenaError::TooLarge { requested: len });
    }
    let allocated = (len + READABLE_PAST_END).next_multiple_of(PAGE);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new pages, wherever the system likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), allocated, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(ArenaError::OutOfMemory { requested: len });
    }
    let start = NonNull::new(start.cast::<u8>()).ok_or(ArenaError::OutOfMemory { requested: len })?;
    // SAFETY: `allocated` bytes, zero and ours, at a page's beginning, until the mapping is dropped.
    unsafe { Arena::from_raw_parts(start, len, allocated, Box::new(Mapping { start, len: allocated })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_zero_and_goes_with_its_last_user() {
        let mut arena = arena(5000).unwrap();
        assert!(arena.len() == 5000 && arena.iter().all(|&byte| byte == 0));
        arena.fill(7);
        let span = arena.span().clone();
        drop(arena);
        // SAFETY: the span has the memory yet, and nobody writes to it.
        assert_eq!(unsafe { *span.as_ptr().add(4999) }, 7);
        assert_eq!(
            super::arena(Arena::MAX_LEN + 1).unwrap_err(),
            ArenaError::TooLarge { requested: Arena::MAX_LEN + 1 }
        );
    }
}
