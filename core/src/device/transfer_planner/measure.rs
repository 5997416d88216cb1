//! Measures the host's costs of a transfer: copying and gathering.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::{CostSource, REFERENCE_WINDOW, TransferCosts};
use crate::device::host_threads::HostThreads;
use crate::packet::gather::{StorePolicy, WindowRows};
use crate::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};

/// Number of packets of [`REFERENCE_WINDOW`] bytes per thread, adjacent and in slots of
/// [`SLOT_STRIDE`] bytes. Few, because a caller waits for the measurement.
const PACKED_PACKETS: u32 = 1 << 14;
const SLOT_PACKETS: u32 = 1 << 11;

/// Distance between slots in bytes; not a power of two, as in real sources.
const SLOT_STRIDE: u32 = 2112;

/// Maximum number of threads that are measured.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Number of rounds per measurement. The fastest counts, since other processes only slow a round
/// down.
const ROUNDS: usize = 3;

/// Measures copying and gathering with these threads, in some milliseconds per thread, with packets
/// that are in no cache, as if another device had just written them. Returns
/// [`TransferCosts::GEN4`] if the memory cannot be allocated.
pub fn measure_host(threads: NonZeroUsize) -> TransferCosts {
    let default = TransferCosts::GEN4;
    // More threads than this share the memory's bandwidth, and would take longer to fill theirs.
    let threads = threads.min(MAX_THREADS);
    let count = threads.get();
    let (packed_packets, slot_packets) = (PACKED_PACKETS * count as u32, SLOT_PACKETS * count as u32);
    let (Some(packed), Some(slots)) =
        (batch(packed_packets, REFERENCE_WINDOW as u32), batch(slot_packets, SLOT_STRIDE))
    else {
        return default;
    };
    let threads = HostThreads::new(Some(threads));
    let mut to = vec![0; packed_packets as usize * REFERENCE_WINDOW as usize];
    let part = PACKED_PACKETS as usize * REFERENCE_WINDOW as usize;
    let from = packed.bytes(0..to.len() as u64);
    let copy = fastest_round(&packed, || {
        threads.run(count, |has_threads| match has_threads {
            true => to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| to.copy_from_slice(from)),
            false => to.copy_from_slice(from),
        });
        black_box(&mut to);
    });
    let bytes = from.len();
    let mut gather = |batch: &Batch| {
        let packets = batch.len() / count;
        let time = fastest_round(batch, || {
            let bytes = packets * REFERENCE_WINDOW as usize;
            let gather = |(number, to): (usize, &mut [u8])| {
                let part = number * packets..(number + 1) * packets;
                WindowRows::new(batch, part, REFERENCE_WINDOW as u32).write(to, StorePolicy::Cached);
            };
            threads.run(count, |has_threads| match has_threads {
                true => to.par_chunks_mut(bytes).take(count).enumerate().for_each(gather),
                false => to.chunks_mut(bytes).take(count).enumerate().for_each(gather),
            });
            black_box(&mut to);
        });
        time.as_nanos() as f64 / batch.len() as f64
    };
    let (gather_packed_ns, gather_slots_ns) = (gather(&packed), gather(&slots));
    let copy_bytes_per_ns = bytes as f64 / copy.as_nanos().max(1) as f64;
    TransferCosts { copy_bytes_per_ns, gather_packed_ns, gather_slots_ns, host_source: CostSource::Measured, ..default }
}

/// Packets of [`REFERENCE_WINDOW`] bytes, `stride` bytes apart, in memory that is populated.
fn batch(packets: u32, stride: u32) -> Option<Batch> {
    let mut arena = Arena::new((packets * stride) as usize).ok()?;
    arena.fill(1);
    let descriptors =
        (0..packets).map(|i| Descriptor { offset: i * stride, length: REFERENCE_WINDOW as u32 }).collect();
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).ok()
}

fn fastest_round(batch: &Batch, mut work: impl FnMut()) -> Duration {
    let once = |()| {
        evict(batch);
        let start = Instant::now();
        work();
        start.elapsed()
    };
    std::iter::repeat_n((), ROUNDS).map(once).min().unwrap_or_default()
}

/// Evicts the packets from all caches, where the processor allows it. Elsewhere the measured costs
/// are those of cached packets.
fn evict(batch: &Batch) {
    let packets = || batch.packets().flat_map(|packet| packet.chunks(CACHE_LINE));
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    packets().for_each(|line| {
        // SAFETY: flushing a line of valid memory does not change its contents. Every x86-64 has
        // SSE2.
        unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) }
    });
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    // SAFETY: only orders the flushes above before the measurement.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    drop(packets());
}

/// Size of a cache line in bytes.
const CACHE_LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_costs_are_positive_and_finite() {
        for threads in [1, 2] {
            let TransferCosts { copy_bytes_per_ns, gather_packed_ns, gather_slots_ns, host_source: known, .. } =
                measure_host(NonZeroUsize::new(threads).unwrap());
            assert_eq!(known, CostSource::Measured);
            for cost in [copy_bytes_per_ns, gather_packed_ns, gather_slots_ns] {
                assert!(cost.is_finite() && cost > 0.0, "{cost}");
            }
        }
    }

    #[test]
    fn evicting_changes_no_byte() {
        let packets = batch(100, SLOT_STRIDE).unwrap();
        evict(&packets);
        assert!(packets.packets().all(|packet| *packet == [1; REFERENCE_WINDOW as usize]));
    }
}
