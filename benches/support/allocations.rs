//! Counts memory allocations. A bench that needs this makes [`CountingAllocator`] its
//! `#[global_allocator]`.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait; every call is forwarded unchanged")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system allocator, with counters of allocations and bytes.
pub struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

// SAFETY: all calls are forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Counts allocations and their bytes while `work` runs: the minimum over some rounds, as the
/// allocations of other threads count too.
pub fn count_allocations(mut work: impl FnMut()) -> (u64, u64) {
    let mut once = || {
        let before = (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
        work();
        (ALLOCATIONS.load(Ordering::Relaxed) - before.0, BYTES.load(Ordering::Relaxed) - before.1)
    };
    (0..5).map(|_| once()).min().unwrap_or_default()
}
