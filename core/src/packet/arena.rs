//! The memory that packets lie in.
//!
//! This is the one place of the crate with `unsafe`: it owns raw memory that a device may map, and
//! says who may touch which part of it. The argument is short. An [`Arena`] is the only handle
//! through which safe code reaches all of its bytes, and it cannot be cloned. Giving it up (see
//! [`BatchCutter`](super::Carver)) hands out [`Batch`](super::Batch)es whose packets share no 4-byte
//! word, and each batch reaches its own packets only. A device reaches bytes through
//! [`Span::as_ptr`] or [`Span::device_view`], which are safe to call and unsafe to use, and only while it holds the batch.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes past an arena's end that may be read (their value is of no meaning), so that a device can
/// load whole vectors at the last packet. `docs/abi.md`, section "Arena".
pub const READABLE_PAST_END: usize = 128;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Why an arena could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// Offsets into an arena are 32 bits wide.
    #[error("an arena holds at most {max} bytes, {asked} were asked for", max = Arena::MAX_LEN)]
    TooLarge {
        /// The length asked for, in bytes.
        asked: usize,
    },
    /// The system has no such amount of memory to give.
    #[error("no memory for an arena of {asked} bytes")]
    OutOfMemory {
        /// The length asked for, in bytes.
        asked: usize,
    },
}

/// Where a device finds memory that it reaches by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// The device, as [`DeviceInfo::id`](crate::device::DeviceInfo) has it: `cuda:0`.
    pub device: String,
    /// The first byte's address there.
    pub address: u64,
}

/// The raw memory that packets lie in: an [`Arena`]'s, a ring's frames, a device's. Page-aligned, at addresses that never
/// change, alive as long as anyone holds it.
///
/// It is in the host's memory, in a device's, or has a view from either side. Whoever reads packets on the host asks
/// first ([`Span::is_on_host`]); sessions refuse batches in memory that they do not reach.
///
/// A device that imported the memory keeps an `Arc<Span>`. Holding a span gives no right to read
/// or write through it: that right belongs to whoever holds the arena or the batch.
pub struct Span {
    /// As the host sees it.
    start: Option<NonNull<u8>>,
    /// As a device sees it, without being shown it.
    device: Option<DeviceView>,
    len: usize,
    allocated: usize,
    id: u64,
    owner: Owner,
}

/// Who gives the memory back.
enum Owner {
    /// It lies in what came from the allocator, with this layout.
    Allocator(NonNull<u8>, Layout),
    /// It is somebody else's, and stays as long as this is kept.
    Foreign(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Any + Send + Sync>),
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, device) = (&self.start, &self.device);
        f.debug_struct("Span")
            .field("id", &self.id)
            .field("start", start)
            .field("device", device)
            .field("len", &self.len)
            .finish()
    }
}

// SAFETY: a span only owns memory and hands out its address; every access goes through `Arena` and
// `Batch`, which order them (see the module's head).
unsafe impl Send for Span {}
// SAFETY: as above; `&Span` gives out a pointer and plain numbers.
unsafe impl Sync for Span {}

impl Span {
    /// Memory that somebody else allocated, with a view from the host, from a device, or from both. `owner` is dropped when
    /// nobody holds the span any more.
    ///
    /// # Errors
    /// More than [`Arena::MAX_LEN`] bytes.
    ///
    /// # Panics
    /// Where there is no view at all.
    ///
    /// # Safety
    /// From each view's first byte on (aligned to 4 KiB), there are `allocated` initialised bytes, the same ones, readable and writable from
    /// there until `owner` is dropped; `allocated` is at least `len` + [`READABLE_PAST_END`]. Who reads and writes them is the caller's affair:
    /// batches are made of a span by [`Batch::from_frames`](super::Batch::from_frames).
    pub unsafe fn from_views(
        host: Option<NonNull<u8>>,
        device: Option<DeviceView>,
        len: usize,
        allocated: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Span>, ArenaError> {
        assert!(host.is_some() || device.is_some(), "memory that nobody sees");
        debug_assert!(allocated >= len + READABLE_PAST_END);
        debug_assert!(host.is_none_or(|start| (start.as_ptr() as usize).is_multiple_of(PAGE)));
        if len > Arena::MAX_LEN {
            return Err(ArenaError::TooLarge { asked: len });
        }
        Ok(Arc::new(Span::made_of(host, device, len, allocated, Owner::Foreign(owner))))
    }

    fn made_of(
        start: Option<NonNull<u8>>,
        device: Option<DeviceView>,
        len: usize,
        allocated: usize,
        owner: Owner,
    ) -> Span {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Span { start, device, len, allocated, id, owner }
    }

    /// Whether the host reads and writes the memory. Where it does not, a device does.
    pub fn is_on_host(&self) -> bool {
        self.start.is_some()
    }

    /// Where a device finds the memory that need not be shown it.
    pub fn device_view(&self) -> Option<&DeviceView> {
        self.device.as_ref()
    }

    /// The first byte's address for the host, aligned to a page of 4 KiB.
    ///
    /// # Panics
    /// For memory that only a device sees.
    pub fn as_ptr(&self) -> *mut u8 {
        match (self.start, &self.device) {
            (Some(start), _) => start.as_ptr(),
            (None, Some(view)) => panic!("memory of {}, which the host does not see", view.device),
            (None, None) => unreachable!("a span has a view"),
        }
    }

    /// Bytes that packets may lie in.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room for any packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes from the first one to the end of the allocation: a multiple of 4 KiB and at least
    /// [`Span::len`] + [`READABLE_PAST_END`]. What a device imports.
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// A number that no other span of this process has or had.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Owner::Allocator(block, layout) = self.owner {
            // SAFETY: `block` came from `alloc_zeroed` with this very layout, in `Arena::new`.
            unsafe { dealloc(block.as_ptr(), layout) }
        }
    }
}

/// One page-aligned span of host memory with exclusive access to all of it, as a byte slice.
#[derive(Debug)]
pub struct Arena {
    span: Arc<Span>,
}

impl Arena {
    /// The greatest length in bytes: offsets are `u32`, and the end is readable past.
    pub const MAX_LEN: usize = (1 << 32) - PAGE;

    /// An arena of `len` zero bytes.
    ///
    /// Pages are touched when they are first used. From 2 MiB on the kernel is asked for huge
    /// pages: packets are read all over a large arena, and 4 KiB pages then miss the TLB.
    ///
    /// # Errors
    /// More than [`Arena::MAX_LEN`] bytes, or more than the system gives.
    pub fn new(len: usize) -> Result<Arena, ArenaError> {
        if len > Self::MAX_LEN {
            return Err(ArenaError::TooLarge { asked: len });
        }
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let allocated = (len + READABLE_PAST_END).next_multiple_of(PAGE);
        // Aligned here: for what it has to align itself, Rust's allocator writes all the zeros, where it otherwise takes the
        // system's new pages, which are zero without being touched.
        let layout = Layout::from_size_align(allocated + align, align_of::<u64>())
            .map_err(|_| ArenaError::OutOfMemory { asked: len })?;
        // SAFETY: the layout's size is not zero.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(ArenaError::OutOfMemory { asked: len })?;
        // SAFETY: the block has `align` bytes more than are needed from there on.
        let start = unsafe { block.add(block.align_offset(align)) };
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range lies in the allocation; MADV_HUGEPAGE changes no contents, and
            // a refusal changes nothing at all.
            unsafe { libc::madvise(start.as_ptr().cast(), allocated, libc::MADV_HUGEPAGE) };
        }
        Ok(Arena::made_of(start, len, allocated, Owner::Allocator(block, layout)))
    }

    /// An arena over memory that somebody else allocated: a ring's frames, a driver's pinned pages.
    /// `owner` is dropped when nobody holds the memory any more.
    ///
    /// # Errors
    /// More than [`Arena::MAX_LEN`] bytes.
    ///
    /// # Safety
    /// From `start` (aligned to 4 KiB) on, `allocated` bytes are initialised, readable and
    /// writable, and nobody else's, until `owner` is dropped; `allocated` is at least `len` +
    /// [`READABLE_PAST_END`].
    pub unsafe fn from_raw_parts(
        start: NonNull<u8>,
        len: usize,
        allocated: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arena, ArenaError> {
        debug_assert!(allocated >= len + READABLE_PAST_END && (start.as_ptr() as usize).is_multiple_of(PAGE));
        if len > Self::MAX_LEN {
            return Err(ArenaError::TooLarge { asked: len });
        }
        Ok(Arena::made_of(start, len, allocated, Owner::Foreign(owner)))
    }

    fn made_of(start: NonNull<u8>, len: usize, allocated: usize, owner: Owner) -> Arena {
        Arena { span: Arc::new(Span::made_of(Some(start), None, len, allocated, owner)) }
    }

    /// The memory behind the arena, for a device to import.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the span is initialised (zeroed), and this handle alone may reach it: it is not
        // `Clone`, and it is given up for batches only by moving it into a `BatchCutter`.
        unsafe { std::slice::from_raw_parts(self.span.as_ptr(), self.span.len()) }
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_ptr(), self.span.len()) }
    }
}

/// The bytes `at..at + len` of a span.
///
/// # Safety
/// The range lies in the span, and for `'a` nobody writes to it.
pub(super) unsafe fn bytes<'a>(span: &Span, at: usize, len: usize) -> &'a [u8] {
    debug_assert!(at + len <= span.len());
    // SAFETY: in bounds and unshared for writing by the caller's promise; initialised since birth.
    unsafe { std::slice::from_raw_parts(span.as_ptr().add(at), len) }
}

/// The bytes `at..at + len` of a span, for writing.
///
/// # Safety
/// The range lies in the span, and for `'a` nobody else reads or writes it.
pub(super) unsafe fn bytes_mut<'a>(span: &Span, at: usize, len: usize) -> &'a mut [u8] {
    debug_assert!(at + len <= span.len());
    // SAFETY: in bounds and unique by the caller's promise; initialised since birth.
    unsafe { std::slice::from_raw_parts_mut(span.as_ptr().add(at), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_and_page_aligned_and_longer_than_asked() {
        for len in [0, 1, 4095, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let arena = Arena::new(len).unwrap();
            assert_eq!(arena.len(), len);
            assert!(arena.iter().all(|&b| b == 0));
            assert_eq!(arena.span().as_ptr() as usize % PAGE, 0);
            assert_eq!(arena.span().allocated() % PAGE, 0);
            assert!(arena.span().allocated() >= len + READABLE_PAST_END);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_are_there_once_they_are_used() {
        // Resident pages of this process, in which other tests have some, too.
        let resident = || {
            let numbers = std::fs::read_to_string("/proc/self/statm").unwrap();
            numbers.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
        };
        let (len, before) = (1 << 30, resident());
        let arena = Arena::new(len).unwrap();
        assert!(resident() < before + len / 2);
        assert_eq!((arena[0], arena[len - 1]), (0, 0));
    }

    #[test]
    fn the_host_is_told_of_memory_that_it_does_not_see() {
        let view = DeviceView { device: "cuda:0".into(), address: 0x7000_0000 };
        // SAFETY: nobody looks at the memory, which is not there.
        let span = unsafe { Span::from_views(None, Some(view.clone()), 4096, 8192, Box::new(())) }.unwrap();
        assert_eq!((span.is_on_host(), span.device_view()), (false, Some(&view)));
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| span.as_ptr())).unwrap_err();
        assert!(looked.downcast_ref::<String>().unwrap().contains("cuda:0"));
        let host = Arena::new(4096).unwrap();
        assert!(host.span().is_on_host() && host.span().device_view().is_none());
    }

    #[test]
    fn refuses_what_offsets_cannot_reach() {
        assert!(matches!(Arena::new(Arena::MAX_LEN + 1), Err(ArenaError::TooLarge { .. })));
    }

    #[test]
    fn ids_are_never_reused() {
        let first = Arena::new(1).unwrap().span().id();
        assert_ne!(first, Arena::new(1).unwrap().span().id());
    }
}
