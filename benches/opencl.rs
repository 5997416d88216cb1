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

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::packet::Batch;
use portcullis_opencl::OpenClDevice;
use portcullis_opencl::measure::KernelTimer;

use support::device::{DEPTH, FILTERS, batches, round, stock};
use support::{LENGTH, PairedTimes, Sample, Table, Times, Traffic, is_test_run, record_bar, time};

const COMMAND: &str = "cargo bench --bench opencl --features opencl";

const HAND_WRITTEN: &str = include_str!("hand_written/filters.cl");

/// Stock filters that have a hand-written kernel.
const BOTH: [&str; 4] = ["simple_filter", "port_filter", "http_only", "hash_lb"];

/// Timed passes over the packets per turn: the number of launches queued at once.
const LAUNCHES: u32 = 4;

/// One round of batches through a session.
fn session_time(session: &mut dyn Session, sent: &mut Vec<Batch>) -> Sample {
    round(session, sent);
    let all = time(|| (0..LAUNCHES).for_each(|_| round(session, sent)));
    Sample { wall: all.wall / LAUNCHES, processor: all.processor / LAUNCHES }
}

/// Time per launch. On a CPU device the driver's threads belong to this process.
fn kernel_time(kernel: &mut KernelTimer, batch: Batch) -> (Sample, Batch) {
    let mut result = None;
    let all = time(|| result = Some(kernel.time(batch, LAUNCHES)));
    let (wall, batch) = result.expect("the closure ran").unwrap_or_else(|e| panic!("{e}"));
    // One untimed launch goes first.
    (Sample { wall, processor: all.processor / (LAUNCHES + 1) }, batch)
}

fn kernels(device: &OpenClDevice, count: usize, rounds: usize) {
    let info = device.info();
    let mut ratios = Vec::new();
    let mut table = Table::new(&format!("{}: {}", info.id, info.name), "generated", "hand-written");
    for traffic in [Traffic::Mixed, Traffic::Uniform] {
        let mut resident = Some(support::batch(traffic, count, LENGTH));
        for name in BOTH {
            let program = stock(name);
            let mut generated = KernelTimer::load(device, &program).unwrap_or_else(|e| panic!("{name}: {e}"));
            let by_hand = KernelTimer::from_source(device, &program, HAND_WRITTEN, name);
            let mut by_hand = by_hand.unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut verdicts = Vec::new();
            for side in [&mut generated, &mut by_hand] {
                let batch = resident.take().expect("the batch was completed");
                let done = side.session().run(batch).unwrap_or_else(|e| panic!("{name}: {e}"));
                resident = Some(done.batch);
                verdicts.push(done.verdicts);
            }
            assert_eq!(verdicts[0], verdicts[1], "{name}: the verdicts of the two kernels differ");
            let mut samples = [Vec::new(), Vec::new()];
            for turn in 0..=rounds {
                for (side, samples) in [&mut generated, &mut by_hand].into_iter().zip(&mut samples) {
                    let batch = resident.take().expect("the batch was completed");
                    let (sample, batch) = kernel_time(side, batch);
                    resident = Some(batch);
                    if turn > 0 {
                        samples.push(sample);
                    }
                }
            }
            let [ours, theirs] = samples.map(|samples| Times::of(&samples));
            let (label, pair) = (format!("{name}, {}", traffic.name()), PairedTimes { ours, theirs });
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
    let mut resident = Some(support::batch(Traffic::Mixed, count, LENGTH));
    for name in FILTERS {
        let program = stock(name);
        let options = LoadOptions::default().with_depth(DEPTH);
        let mut session = device.load(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut kernel = KernelTimer::load(device, &program).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for turn in 0..=rounds {
            let sample = session_time(&mut *session, &mut sent);
            let batch = resident.take().expect("the batch was completed");
            let (alone, batch) = kernel_time(&mut kernel, batch);
            resident = Some(batch);
            // The first round creates buffers and faults pages in.
            if turn > 0 {
                ours.push(sample);
                theirs.push(alone);
            }
        }
        let pair = PairedTimes { ours: Times::of(&ours), theirs: Times::of(&theirs) };
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
