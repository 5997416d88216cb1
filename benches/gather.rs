//! Compares gathering packet windows into rows with `memcpy` of as many bytes and with a plain
//! loop: `cargo bench --bench gather`.
//!
//! All sides run in turn. A "hot" batch stays in the L2 cache, a "cold" one has 2 million packets
//! and is gathered once per turn; "slots" lie 2,112 bytes apart, as in a ring. `memcpy` copies the
//! total size of the rows, from memory that is equally hot or cold. "Streamed" rows are written
//! with non-temporal stores, which bypass the caches.

mod support;

use std::hint::black_box;

use portcullis_core::packet::Batch;
use portcullis_core::packet::gather::{StorePolicy, WindowRows};

use support::{LENGTH, PairedTimes, Table, Traffic, is_test_run, sample_all_in_turn, time};

/// The windows of the stock filters, and all of a short packet.
const WINDOWS: [u32; 3] = [24, 54, 64];

fn measure(what: &str, batch: &Batch, repeats: u32, rounds: usize) {
    let mut table = Table::new(&format!("{what}, {} packets", batch.len()), "gathered", "other");
    for window in WINDOWS {
        let rows = WindowRows::new(batch, 0..batch.len(), window);
        let from = vec![1_u8; rows.size()];
        let [mut cached, mut streamed, mut plain, mut copied] = [0; 4].map(|_| vec![0_u8; rows.size() + 64]);
        let at = streamed.as_ptr().align_offset(64);
        let sides: [&mut dyn FnMut(); 4] = [
            &mut || rows.write(black_box(&mut cached), StorePolicy::Cached),
            &mut || rows.write(black_box(&mut streamed[at..]), StorePolicy::Streamed),
            &mut || rows.write_reference(black_box(&mut plain)),
            &mut || black_box(&mut copied)[..from.len()].copy_from_slice(black_box(&from)),
        ];
        let mut sides = sides.map(|side| move || time(|| (0..repeats).for_each(|_| side())).per(repeats));
        let times = sample_all_in_turn(rounds, sides.each_mut().map(|side| side as _));
        for (other, name) in [(2, "to the plain loop"), (3, "to memcpy")] {
            for (ours, how) in [(0, ""), (1, ", streamed")] {
                let pair = PairedTimes { ours: times[ours], theirs: times[other] };
                table.rates(&format!("{window} bytes{how}, {name}"), batch.len(), pair);
            }
        }
    }
    table.print();
}

fn main() {
    support::restore_sigpipe();
    let (scale, rounds) = if is_test_run() { (64, 1) } else { (1, 15) };
    let batch = |count: usize, stride| support::batch(Traffic::Mixed, count / scale, stride);
    measure("hot", &batch(8 << 10, LENGTH), 64 / scale as u32, rounds);
    measure("cold", &batch(2 << 20, LENGTH), 1, rounds);
    measure("slots", &batch(256 << 10, 2112), 1, rounds);
}
