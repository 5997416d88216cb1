//! What the host takes for its share of a transfer, measured.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{TransferCosts, WINDOW};
use crate::packet::gather::{Rows, Store};
use crate::packet::{Arena, Batch, Carver, Descriptor, Room};

/// Packets that are gathered: of 64 bytes and in slots of [`SLOT`] more than second caches hold.
const PACKETS: u32 = 1 << 13;

/// Bytes from one slot to the next: no power of two, as sources have it.
const SLOT: u32 = 2112;

/// The quietest of so many rounds counts: others' work only adds to it.
const ROUNDS: usize = 3;

/// Measures copying and gathering on this thread. Where there is no memory for that nothing is measured.
pub fn host() -> TransferCosts {
    let known = TransferCosts::GEN4;
    let (Some(packed), Some(slots)) = (batch(8 * PACKETS, WINDOW as u32), batch(PACKETS, SLOT)) else { return known };
    let mut to = vec![0; 8 * PACKETS as usize * WINDOW as usize];
    let bytes = to.len() as u64;
    let copy = quietest(|| {
        to.copy_from_slice(packed.bytes(0..bytes));
        black_box(&mut to);
    });
    let mut gather = |batch: &Batch| {
        let rows = Rows::new(batch, 0..batch.len(), WINDOW as u32);
        let time = quietest(|| {
            rows.write(&mut to, Store::Cached);
            black_box(&mut to);
        });
        time.as_nanos() as f64 / batch.len() as f64
    };
    let (gather_packed_ns, gather_slots_ns) = (gather(&packed), gather(&slots));
    let copy_bytes_per_ns = packed.len() as f64 * WINDOW / copy.as_nanos().max(1) as f64;
    TransferCosts { copy_bytes_per_ns, gather_packed_ns, gather_slots_ns, ..known }
}

/// Packets of [`WINDOW`] bytes, so far apart, in memory that is there.
fn batch(packets: u32, stride: u32) -> Option<Batch> {
    let mut arena = Arena::new((packets * stride) as usize).ok()?;
    arena.fill(1);
    let descriptors = (0..packets).map(|i| Descriptor { offset: i * stride, length: WINDOW as u32 }).collect();
    Carver::new(arena, None).carve(descriptors, vec![], Room::None).ok()
}

fn quietest(mut work: impl FnMut()) -> Duration {
    let once = |()| {
        let began = Instant::now();
        work();
        began.elapsed()
    };
    std::iter::repeat_n((), ROUNDS).map(once).min().unwrap_or_default()
}
