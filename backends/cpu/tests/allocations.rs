//! Memory is allocated per batch, never per packet.
// For the allocator below.
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::program;
use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::packet::Batch;

/// The system allocator with a counter of allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations while a batch of `packets` packets is filtered.
fn count_allocations(session: &mut dyn Session, packets: usize) -> usize {
    let batch = Batch::from_packets(&vec![[0x45u8; 60]; packets]).unwrap();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let done = session.run(batch).unwrap();
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(done.verdicts.len(), packets);
    after - before
}

/// The only test in this program: the counter would include allocations of tests that run beside
/// it.
#[test]
fn filtering_allocates_per_batch_not_per_packet() {
    let pass = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
    let rewrite = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, 1u); return redirect(load_u8(pkt, 1u)); }";
    let resize = "fn xdp_filter(pkt: u32) -> u32 { adjust_head(pkt, 4i); adjust_tail(pkt, 4i); return XDP_TX; }";
    // Columns of a result: verdicts, and targets or descriptors if the filter writes them.
    for (text, columns) in [(pass, 1), (rewrite, 2), (resize, 2)] {
        let program = program(text);
        for threads in [1, 2] {
            let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
            let mut session = portcullis_cpu::Cpu::new().load(&program, &options).unwrap();
            // Background compilation allocates, too.
            session.finish_background_work();
            // The first batch may set up what later ones use.
            count_allocations(&mut *session, 100);
            // A batch that one thread filters alone needs nothing but its columns. Threads of the
            // pool that are only now starting may add a few allocations but never remove any, hence
            // the minimum.
            let least = (0..16).map(|_| count_allocations(&mut *session, 64)).min();
            assert_eq!(least, Some(columns), "{text}, {threads} threads");
            let (few, many) = (count_allocations(&mut *session, 100), count_allocations(&mut *session, 100_000));
            // Splitting work among threads takes a few more, but none for each of 99,900 packets.
            assert!(many <= few + 50, "{text}, {threads} threads: {few} times for 100 packets, {many} for 100,000");
        }
    }
}
