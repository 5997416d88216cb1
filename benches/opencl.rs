//! Compares generated OpenCL kernels with hand-written ones, and sessions end to end with their
//! kernels alone: `cargo bench --bench opencl --features opencl`.
//!
//! Both sides of a row run in turn over the same traffic, 1 Mi packets of 64 bytes in host memory,
//! which CPU devices read in place. The kernel's time is that of a launch over packets and
//! descriptors already in place, with four launches queued; end to end is a session with several
//! batches in flight: descriptors in, kernel, verdict columns out. Each side goes over its packets
//! five times per turn, of which the last four are timed, so that neither side profits from the
//! caches that the other has left.
//!
//! The hand-written kernels (`hand_written/filters.cl`) read packets through `uchar` pointers and
//! check lengths where necessary. Their verdicts are compared before they are timed.

mod support;

use std::time::Duration;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::packet::Batch;
use portcullis_opencl::OpenClDevice;
use portcullis_opencl::measure::KernelTimer;

use support::device::{DEPTH, FILTERS, batches, round};
use support::{LENGTH, ReusedBatch, Sample, Table, Traffic, is_test_run, record_bar, sample_in_turn, stock, time};

const COMMAND: &str = "cargo bench --bench opencl --features opencl";

const HAND_WRITTEN: &str = include_str!("hand_written/filters.cl");

/// Stock filters that have a hand-written kernel.
const BOTH: [&str; 4] = ["simple_filter", "port_filter", "http_only", "hash_lb"];

/// Timed passes over the packets per turn: the number of launches queued at once.
const LAUNCHES: u32 = 4;

/// One round of batches through a session.
fn session_time(session: &mut dyn Session, sent: &mut Vec<Batch>) -> Sample {
    round(session, sent);
    time(|| (0..LAUNCHES).for_each(|_| round(session, sent))).per(LAUNCHES)
}

/// Time per launch. On a CPU device the driver's threads belong to this process.
fn kernel_time(kernel: &mut KernelTimer, batch: &ReusedBatch) -> Sample {
    let mut wall = Duration::ZERO;
    let all = time(|| wall = batch.lend(|batch| kernel.time(batch, LAUNCHES).unwrap_or_else(|e| panic!("{e}"))));
    // One untimed launch goes first.
    Sample { wall, ..all.per(LAUNCHES + 1) }
}

fn kernels(device: &OpenClDevice, count: usize, rounds: usize) {
    let info = device.info();
    let mut ratios = Vec::new();
    let mut table = Table::new(&format!("{}: {}", info.id, info.name), "generated", "hand-written");
    for traffic in [Traffic::Mixed, Traffic::Uniform] {
        let resident = ReusedBatch::new(support::batch(traffic, count, LENGTH));
        for name in BOTH {
            let program = stock(name);
            let mut generated = KernelTimer::load(device, &program).unwrap_or_else(|e| panic!("{name}: {e}"));
            let by_hand = KernelTimer::from_source(device, &program, HAND_WRITTEN, name);
            let mut by_hand = by_hand.unwrap_or_else(|e| panic!("{name}: {e}"));
            let verdicts = [&mut generated, &mut by_hand].map(|side| resident.run(side.session()));
            assert_eq!(verdicts[0], verdicts[1], "{name}: the verdicts of the two kernels differ");
            let pair = sample_in_turn(
                rounds,
                || kernel_time(&mut generated, &resident),
                || kernel_time(&mut by_hand, &resident),
            );
            let label = format!("{name}, {}", traffic.name());
            table.rates(&label, count, pair);
            ratios.push((label, pair.ratio()));
        }
    }
    table.print();
    record_bar("OpenCL on PoCL, kernel", "hand-written OpenCL C on PoCL, same run", 0.95, COMMAND, &ratios);
}

fn end_to_end(device: &OpenClDevice, count: usize, rounds: usize) {
    let info = device.info();
    let mut table = Table::new(&format!("{}: {}", info.id, info.name), "end to end", "kernel only");
    let mut ratios = Vec::new();
    let mut sent = batches(count);
    let resident = ReusedBatch::new(support::batch(Traffic::Mixed, count, LENGTH));
    for name in FILTERS {
        let program = stock(name);
        let options = LoadOptions::default().with_depth(DEPTH);
        let mut session = device.load(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut kernel = KernelTimer::load(device, &program).unwrap_or_else(|e| panic!("{name}: {e}"));
        let pair =
            sample_in_turn(rounds, || session_time(&mut *session, &mut sent), || kernel_time(&mut kernel, &resident));
        table.rates(name, count, pair);
        ratios.push((name.to_owned(), pair.ratio()));
    }
    table.print();
    record_bar("OpenCL sessions, end to end", "their kernel alone, same run", 0.9, COMMAND, &ratios);
}

fn main() {
    support::restore_sigpipe();
    let (count, rounds) = if is_test_run() { (1 << 10, 1) } else { (1 << 20, 25) };
    match portcullis_opencl::probe() {
        Ok(devices) => {
            for device in &devices {
                kernels(device, count, rounds);
                end_to_end(device, count, rounds);
            }
        }
        Err(error) => println!("nothing to measure: {error}"),
    }
}
