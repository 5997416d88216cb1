//! In steady state nothing is allocated per batch, by any dispatch method and transfer, and
//! dispatch methods for small batches give the device few commands.
// For the allocator below.
#![allow(unsafe_code)]

mod child;

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use child::{CHILD, compiled, device, is_child};
use portcullis_core::device::{Device, Dispatch, LoadOptions, MeasureOptions, Transfer};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, ResizeRoom};
use portcullis_cuda_emulator::Unavailable;

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

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const READS: &str = "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 14u) & 3u; }";
const REDIRECTS: &str = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_be16(pkt, 14u)); }";
const WRITES: &str = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 1u, pkt_port(pkt)); return XDP_TX; }";

const READS_ALL: &str = "fn xdp_filter(pkt: u32) -> u32 {
    return (load_u8(pkt, pkt_len(pkt) - 1u) + pkt_port(pkt) + pkt_time(pkt).x) & 3u;
}";

/// Packets of 60 bytes; at equal distances unless `gap` puts more bytes behind every third. With a
/// gap above 4 every second is a byte shorter.
fn batch(packets: u32, gap: u32) -> Batch {
    let mut at = 0;
    let descriptors: Vec<Descriptor> = (0..packets)
        .map(|index| {
            let offset = at;
            at += 60 + if index % 3 == 0 { gap } else { 0 };
            Descriptor { offset, length: if gap > 4 { 60 - index % 2 } else { 60 } }
        })
        .collect();
    let metadata = (0..packets).map(|index| Metadata::new(60, index, 900 * u64::from(index))).collect();
    let mut cutter = BatchCutter::new(Arena::new(at as usize).unwrap(), None);
    cutter.cut_batch(descriptors, metadata, ResizeRoom::None).unwrap()
}

/// Batches in a round, and rounds.
const BATCHES: usize = 16;
const ROUNDS: usize = 6;

/// Allocations in a round of batches: the minimum, since the first rounds set up what later ones
/// use, and threads that are only now ending may add some but never remove any.
fn count_allocations(text: &str, options: &LoadOptions, packets: u32, gap: u32) -> usize {
    let mut session = device().load(&compiled(text), options).unwrap();
    let mut next = Some(batch(packets, gap));
    let mut round = |_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..BATCHES {
            next = Some(session.run(next.take().unwrap()).unwrap().batch);
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    (0..ROUNDS).map(&mut round).min().unwrap()
}

/// Commands given to the device per batch of 64 packets: launches, copies, events and waits.
fn count_commands(dispatch: Dispatch) -> f64 {
    // SAFETY: the library is loaded already.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the function of the idle driver has this type (`idle.cpp`).
    let commands = || unsafe {
        let commands: libloading::Symbol<unsafe extern "C" fn() -> u64> =
            library.get(b"portcullis_submissions\0").unwrap();
        commands()
    };
    let mut session = device().load(&compiled(READS), &LoadOptions::default().with_dispatch(dispatch)).unwrap();
    let mut next = Some(session.run(batch(64, 0)).unwrap().batch);
    let before = commands();
    (0..ROUNDS * BATCHES).for_each(|_| next = Some(session.run(next.take().unwrap()).unwrap().batch));
    (commands() - before) as f64 / (ROUNDS * BATCHES) as f64
}

/// The only test in this program: the counter would include allocations of tests that run beside
/// it. The child runs over the idle driver, whose kernels do nothing.
#[test]
fn nothing_is_allocated_per_batch() {
    if !is_child() {
        return run_over_the_idle_driver();
    }
    let threads = |count| LoadOptions::default().with_threads(NonZeroUsize::new(count));
    for &dispatch in device().info().dispatch {
        for (text, packets, gap) in
            [(READS, 64, 0), (READS, 20_000, 4), (REDIRECTS, 20_000, 0), (WRITES, 64, 4), (WRITES, 20_000, 4)]
        {
            for transfer in [Transfer::Auto, Transfer::Whole, Transfer::Window, Transfer::Imported] {
                let options = threads(1).with_dispatch(dispatch).with_transfer(transfer);
                let count = count_allocations(text, &options, packets, gap);
                assert_eq!(count, 0, "{dispatch}, {transfer}, {packets} packets: {text}");
            }
        }
    }
    assert_eq!(count_commands(Dispatch::Persistent), 0.0);
    assert_eq!(count_commands(Dispatch::Graph), 1.0);
    // A wait and a launch, several batches ahead.
    let queued = count_commands(Dispatch::WaitValue);
    assert!((1.5..=2.5).contains(&queued), "{queued}");
    let resident = threads(1).with_measure(MeasureOptions::default().with_resident(true));
    assert_eq!(count_allocations(READS, &resident, 20_000, 4), 0);
    // The queue of a thread pool takes a block of memory for every 63 jobs from outside. A batch is
    // two chunks, each with a job to gather, and one for each table: of descriptors, ports, times.
    let window = threads(2).with_transfer(Transfer::Window);
    for (text, gap, jobs) in [(READS, 4, 1), (READS_ALL, 8, 4)] {
        let count = count_allocations(text, &window, 150_000, gap);
        assert!(count <= 2 * jobs * BATCHES / 63 + 1, "{count}: {text}");
    }
}

fn run_over_the_idle_driver() {
    let folder = match portcullis_cuda_emulator::build_idle(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(folder) => folder,
        Err(Unavailable::NotSupported(reason)) => return println!("skipped: {reason}"),
        Err(broken) => panic!("{broken}"),
    };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "nothing_is_allocated_per_batch", "--nocapture"]).env(CHILD, "1");
    child.env("LD_LIBRARY_PATH", folder).env("PORTCULLIS_CACHE", "");
    for name in ["CUDA_VISIBLE_DEVICES", "PORTCULLIS_NVRTC", "PORTCULLIS_CUBINS"] {
        child.env_remove(name);
    }
    let child = child.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{out}\n{error}");
}
