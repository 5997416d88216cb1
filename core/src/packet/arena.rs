//! Packet memory: page-aligned arenas, and the spans that devices import.
//!
//! This module owns raw memory that a device may map, and defines who may access which part of it.
//! An [`Arena`] is the only handle through which safe code reaches all of its bytes, and it cannot
//! be cloned. Consuming it in a [`BatchCutter`](super::BatchCutter) yields
//! [`Batch`](super::Batch)es whose packets share no 4-byte word, and each batch accesses its own
//! packets only. A device accesses bytes through [`Span::as_ptr`] or [`Span::device_view`], which
//! are safe to call and unsafe to use, and only while it holds the batch.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes past an arena's end that may be read, so that a device can load whole vectors at the last
/// packet. Their values are meaningless. See `docs/reference/abi.md`, section "Arena".
pub const READABLE_PAST_END: usize = 128;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Errors of allocating an arena.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The arena would be longer than its 32-bit offsets can address.
    #[error("an arena holds at most {max} bytes, {requested} were requested", max = Arena::MAX_LEN)]
    TooLarge {
        /// The requested length in bytes.
        requested: usize,
    },
    /// The system could not allocate the memory.
    #[error("cannot allocate an arena of {requested} bytes: out of memory")]
    OutOfMemory {
        /// The requested length in bytes.
        requested: usize,
    },
}

/// Address of a span on a device that accesses it without an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// The device's id, as in [`DeviceInfo::id`](crate::device::DeviceInfo): `cuda:0`.
    pub device: String,
    /// The device address of the first byte.
    pub address: u64,
}

/// Reference-counted, page-aligned raw memory that holds packets: an [`Arena`], the frames of a
/// ring, or device memory. Its addresses never change.
///
/// A span is visible to the host, to a device, or to both. Code that reads packets on the host
/// checks [`Span::is_on_host`] first; sessions refuse batches in memory that they cannot access.
///
/// A device that imported the memory keeps an `Arc<Span>`. Holding a span does not permit reading
/// or writing through it: only the holder of the arena or of the batch may.
pub struct Span {
    /// Host address of the first byte.
    start: Option<NonNull<u8>>,
    /// Device address, for memory that a device accesses without an import.
    device: Option<DeviceView>,
    len: usize,
    allocated: usize,
    id: u64,
    owner: Backing,
}

/// Owner of a span's memory, which decides how it is freed.
enum Backing {
    /// A block from the global allocator, with its layout; the span starts inside it.
    Allocation(NonNull<u8>, Layout),
    /// Memory allocated elsewhere, freed when this is dropped.
    External(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Any + Send + Sync>),
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
// `Batch`, which order them (see the module's documentation).
unsafe impl Send for Span {}
// SAFETY: as above; `&Span` gives out a pointer and plain numbers.
unsafe impl Sync for Span {}

impl Span {
    /// Creates a span over memory that was allocated elsewhere and is visible to the host, to a
    /// device, or to both. `owner` is dropped with the last reference to the span.
    ///
    /// # Errors
    /// More than [`Arena::MAX_LEN`] bytes.
    ///
    /// # Panics
    /// If the memory is visible to neither.
    ///
    /// # Safety
    /// Both addresses, aligned to 4 KiB, refer to the same `allocated` initialised bytes, readable
    /// and writable until `owner` is dropped, and `allocated` is at least `len` +
    /// [`READABLE_PAST_END`]. The caller orders accesses;
    /// [`Batch::from_frames`](super::Batch::from_frames) makes batches of a span.
    pub unsafe fn from_views(
        host: Option<NonNull<u8>>,
        device: Option<DeviceView>,
        len: usize,
        allocated: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Span>, ArenaError> {
        assert!(host.is_some() || device.is_some(), "a span is visible to the host or to a device");
        debug_assert!(allocated >= len + READABLE_PAST_END);
        debug_assert!(host.is_none_or(|start| (start.as_ptr() as usize).is_multiple_of(PAGE)));
        if len > Arena::MAX_LEN {
            return Err(ArenaError::TooLarge { requested: len });
        }
        Ok(Arc::new(Span::with_backing(host, device, len, allocated, Backing::External(owner))))
    }

    fn with_backing(
        start: Option<NonNull<u8>>,
        device: Option<DeviceView>,
        len: usize,
        allocated: usize,
        owner: Backing,
    ) -> Span {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Span { start, device, len, allocated, id, owner }
    }

    /// Whether the host can access the memory. If not, only a device can.
    pub fn is_on_host(&self) -> bool {
        self.start.is_some()
    }

    /// The device address of memory that a device accesses without an import.
    pub fn device_view(&self) -> Option<&DeviceView> {
        self.device.as_ref()
    }

    /// The host address of the first byte, aligned to a 4 KiB page.
    ///
    /// # Panics
    /// If only a device can access the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        match (self.start, &self.device) {
            (Some(start), _) => start.as_ptr(),
            (None, Some(view)) => panic!("memory of {}, which the host cannot access", view.device),
            (None, None) => unreachable!("a span is visible to the host or to a device"),
        }
    }

    /// Number of bytes that may hold packets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the span cannot hold any packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of bytes from the first one to the end of the allocation, which is what a device
    /// imports: a multiple of 4 KiB and at least [`Span::len`] + [`READABLE_PAST_END`].
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// An id that is unique in this process and never reused.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Backing::Allocation(block, layout) = self.owner {
            // SAFETY: `block` was allocated with exactly this layout in `Arena::new`.
            unsafe { dealloc(block.as_ptr(), layout) }
        }
    }
}

/// A page-aligned span of host memory with exclusive access to all of it, as a byte slice.
#[derive(Debug)]
pub struct Arena {
    span: Arc<Span>,
}

impl Arena {
    /// Maximum length in bytes: offsets are `u32`, and the end is readable past.
    pub const MAX_LEN: usize = (1 << 32) - PAGE;

    /// Allocates an arena of `len` zero bytes.
    ///
    /// Pages are populated on first use. Arenas from 2 MiB on ask for huge pages: packets are
    /// accessed all over a large arena, and 4 KiB pages would miss the TLB.
    ///
    /// # Errors
    /// More than [`Arena::MAX_LEN`] bytes, or more than the system can allocate.
    pub fn new(len: usize) -> Result<Arena, ArenaError> {
        if len > Self::MAX_LEN {
            return Err(ArenaError::TooLarge { requested: len });
        }
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let allocated = (len + READABLE_PAST_END).next_multiple_of(PAGE);
        // Align by hand: for a larger alignment Rust's allocator zeroes the memory itself and so
        // touches every page, instead of taking fresh pages that are zero already.
        let layout = Layout::from_size_align(allocated + align, align_of::<u64>())
            .map_err(|_| ArenaError::OutOfMemory { requested: len })?;
        // SAFETY: the layout's size is not zero.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(ArenaError::OutOfMemory { requested: len })?;
        // SAFETY: the block is `align` bytes longer than needed.
        let start = unsafe { block.add(block.align_offset(align)) };
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range lies in the allocation; MADV_HUGEPAGE changes no contents, and a
            // failure has no effect.
            unsafe { libc::madvise(start.as_ptr().cast(), allocated, libc::MADV_HUGEPAGE) };
        }
        Ok(Arena::with_backing(start, len, allocated, Backing::Allocation(block, layout)))
    }

    /// Creates an arena over memory that was allocated elsewhere: the frames of a ring, a driver's
    /// pinned pages. `owner` is dropped with the last reference to the memory.
    ///
    /// # Errors
    /// More than [`Arena::MAX_LEN`] bytes.
    ///
    /// # Safety
    /// From `start`, aligned to 4 KiB, `allocated` bytes are initialised, readable, writable and
    /// used by nothing else until `owner` is dropped; `allocated` is at least `len` +
    /// [`READABLE_PAST_END`].
    pub unsafe fn from_raw_parts(
        start: NonNull<u8>,
        len: usize,
        allocated: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arena, ArenaError> {
        debug_assert!(allocated >= len + READABLE_PAST_END && (start.as_ptr() as usize).is_multiple_of(PAGE));
        if len > Self::MAX_LEN {
            return Err(ArenaError::TooLarge { requested: len });
        }
        Ok(Arena::with_backing(start, len, allocated, Backing::External(owner)))
    }

    fn with_backing(start: NonNull<u8>, len: usize, allocated: usize, owner: Backing) -> Arena {
        Arena { span: Arc::new(Span::with_backing(Some(start), None, len, allocated, owner)) }
    }

    /// The arena's memory, for a device to import.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the span is initialised (zeroed), and only this handle accesses it: it is not
        // `Clone`, and is consumed by the `BatchCutter` that makes batches of it.
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
/// The range lies in the span, and nothing writes to it during `'a`.
pub(super) unsafe fn bytes<'a>(span: &Span, at: usize, len: usize) -> &'a [u8] {
    debug_assert!(at + len <= span.len());
    // SAFETY: in bounds and without writers by the caller's promise; initialised at allocation.
    unsafe { std::slice::from_raw_parts(span.as_ptr().add(at), len) }
}

/// The bytes `at..at + len` of a span, for writing.
///
/// # Safety
/// The range lies in the span, and nothing else reads or writes it during `'a`.
pub(super) unsafe fn bytes_mut<'a>(span: &Span, at: usize, len: usize) -> &'a mut [u8] {
    debug_assert!(at + len <= span.len());
    // SAFETY: in bounds and unique by the caller's promise; initialised at allocation.
    unsafe { std::slice::from_raw_parts_mut(span.as_ptr().add(at), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_zeroed_page_aligned_and_readable_past_the_end() {
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
    fn pages_are_populated_on_first_use() {
        // Resident pages of this process, which include those of other tests.
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
    fn host_access_to_device_memory_panics_with_the_device() {
        let view = DeviceView { device: "cuda:0".into(), address: 0x7000_0000 };
        // SAFETY: the memory does not exist, and nothing accesses it.
        let span = unsafe { Span::from_views(None, Some(view.clone()), 4096, 8192, Box::new(())) }.unwrap();
        assert_eq!((span.is_on_host(), span.device_view()), (false, Some(&view)));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| span.as_ptr())).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("cuda:0"));
        let host = Arena::new(4096).unwrap();
        assert!(host.span().is_on_host() && host.span().device_view().is_none());
    }

    #[test]
    fn arenas_longer_than_offsets_can_address_are_refused() {
        assert!(matches!(Arena::new(Arena::MAX_LEN + 1), Err(ArenaError::TooLarge { .. })));
    }

    #[test]
    fn ids_are_never_reused() {
        let first = Arena::new(1).unwrap().span().id();
        assert_ne!(first, Arena::new(1).unwrap().span().id());
    }
}
