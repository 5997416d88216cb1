//! Memory is asked for by the batch and never by the packet.
// The allocator below is one; see there.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::Batch;
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

/// The system's allocator, counting how often it is asked.
struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
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

/// How often memory is asked for while a batch of `packets` packets is filtered.
fn asked(session: &mut dyn Session, packets: usize) -> usize {
    let batch = Batch::from_packets(&vec![[0x45u8; 60]; packets]).unwrap();
    let before = ASKED.load(Ordering::Relaxed);
    let done = session.run(batch).unwrap();
    let after = ASKED.load(Ordering::Relaxed);
    assert_eq!(done.verdicts.len(), packets);
    after - before
}

/// One test only in this program: another, running beside it, would be counted too.
#[test]
fn filtering_asks_for_memory_by_the_batch() {
    let pass = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
    let rewrite = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, 1u); return redirect(load_u8(pkt, 1u)); }";
    let resize = "fn xdp_filter(pkt: u32) -> u32 { adjust_head(pkt, 4i); adjust_tail(pkt, 4i); return XDP_TX; }";
    // What a batch is given back with: verdicts, and targets, or places.
    for (text, columns) in [(pass, 1), (rewrite, 2), (resize, 2)] {
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default()).unwrap();
        let program = Arc::new(program);
        for threads in [1, 2] {
            let options = LoadOptions { threads: NonZeroUsize::new(threads), ..LoadOptions::default() };
            let mut session = portcullis_cpu::Cpu::new().load(&program, &options).unwrap();
            // Code that comes later is made with memory too.
            session.finish_background_work();
            // The first batch may set up what the later ones use.
            asked(&mut *session, 100);
            // Of a batch that one thread filters alone nothing else is needed. Threads of the session's
            // pool that are only now starting ask too, a few times in all, and never take away.
            let least = (0..16).map(|_| asked(&mut *session, 64)).min();
            assert_eq!(least, Some(columns), "{text}, {threads} threads");
            let (few, many) = (asked(&mut *session, 100), asked(&mut *session, 100_000));
            // A few more where work is split for threads, and none for each of 99,900 packets.
            assert!(many <= few + 50, "{text}, {threads} threads: {few} times for 100 packets, {many} for 100,000");
        }
    }
}
