//! Compares `--device auto` with the best of its devices at each batch size: `cargo bench --bench
//! auto --features opencl`.
//!
//! On a machine with a GPU the candidates are those of `auto`: the GPU and the CPU. Without a GPU,
//! software devices take its place, each beside the CPU and both together: although they share its
//! cores, their costs cross the CPU's, or not, as a GPU's would. The calibration is made at the
//! start and not cached.
//!
//! All sides filter the same packets of 64 bytes in batches of one size, three in flight, in turn.
//! A turn is some batches, and the median over the turns counts. `auto/best` is the median ratio of
//! the best device's time to `auto`'s time in the same turn: 1.00 is a perfect choice, and the
//! target is 0.90. `PORTCULLIS_BENCH_FILTERS` selects other filters.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::auto::calibration::CalibrationStore;
use portcullis::auto::{AutoDevice, CalibrationMode, Settings};
use portcullis::devices;
use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use support::device::DEPTH;
use support::{LENGTH, Traffic, is_test_run, record_bar, stock};

/// Approximate packets per turn, and minimum number of batches.
const TURN_PACKETS: usize = 1 << 17;
const MIN_TURN_BATCHES: usize = 6;

/// Times `count` batches through a session with as many in flight as it allows.
fn time_turn(session: &mut dyn Session, batches: &mut Vec<Batch>, count: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        if batches.is_empty() || session.in_flight() == session.depth() {
            batches.push(session.complete().expect("no device fails").expect("a batch is in flight").batch);
        }
        session.submit(batches.pop().expect("a batch was completed")).expect("the queue has capacity");
    }
    while let Some(done) = session.complete().expect("no device fails") {
        batches.push(done.batch);
    }
    start.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures all batch sizes and prints a row for each. Returns the minimum ratio of `auto`'s speed
/// to the best device's.
fn sweep(name: &str, program: &Arc<Program>, candidates: &[Arc<dyn Device>], sizes: &[usize], turns: usize) -> f64 {
    let settings = Settings::default().with_store(CalibrationStore::disabled()).with_mode(CalibrationMode::Always);
    let auto = AutoDevice::new(candidates.to_vec(), settings);
    let options = LoadOptions::default().with_depth(DEPTH);
    let chosen = auto.load(program, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let singles =
        candidates.iter().map(|device| device.load(program, &options).unwrap_or_else(|e| panic!("{name}: {e}")));
    let mut sessions: Vec<Box<dyn Session>> = singles.chain([chosen]).collect();
    println!("\n{name}: {}", auto.info().name);
    let ids: Vec<&str> = candidates.iter().map(|device| device.info().id.as_str()).collect();
    print!("  {:>9}", "packets");
    ids.iter().chain(&["auto"]).for_each(|id| print!(" {id:>10}"));
    println!(" {:>10}   Mpps", "auto/best");
    let mut least = f64::INFINITY;
    for &size in sizes {
        let mut batches: Vec<Batch> = (0..DEPTH).map(|_| support::batch(Traffic::Mixed, size, LENGTH)).collect();
        let count = (TURN_PACKETS / size).max(MIN_TURN_BATCHES);
        let mut taken = vec![Vec::new(); sessions.len()];
        for round in 0..=turns {
            // Vary the order: a side benefits from caches that the one before it has filled.
            for position in 0..sessions.len() {
                let side = (position + round) % sessions.len();
                let side = if round % 2 == 0 { side } else { sessions.len() - 1 - side };
                let time = time_turn(&mut *sessions[side], &mut batches, count);
                if round > 0 {
                    taken[side].push(time.as_secs_f64() / count as f64);
                }
            }
        }
        let medians: Vec<f64> = taken.iter().cloned().map(median).collect();
        let (best, _) = medians[..ids.len()].iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).expect("a device");
        let ratio = median(taken[best].iter().zip(&taken[ids.len()]).map(|(best, auto)| best / auto).collect());
        least = least.min(ratio);
        print!("  {size:>9}");
        medians.iter().for_each(|seconds| print!(" {:>10.1}", size as f64 / seconds / 1e6));
        println!(" {ratio:>10.2}");
    }
    print!("{}", auto.explain().expect("it is loaded"));
    least
}

fn main() {
    support::restore_sigpipe();
    let (sizes, turns): (&[usize], _) = match is_test_run() {
        true => (&[64, 4096], 1),
        false => (&[64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20], 25),
    };
    let mut candidates = devices::candidates().unwrap_or_default();
    let mut lists = Vec::new();
    if candidates.len() > 1 {
        lists.push(candidates);
    } else if let Some(cpu) = candidates.pop() {
        let software: Vec<_> = ["opencl", "wgpu"].iter().filter_map(|name| devices::open(name).ok()).collect();
        lists.extend(software.iter().map(|device| vec![cpu.clone(), device.clone()]));
        if software.len() > 1 {
            lists.push([cpu].into_iter().chain(software).collect());
        }
    }
    let wanted = std::env::var("PORTCULLIS_BENCH_FILTERS").unwrap_or_else(|_| "simple_filter,hash_lb,mac_swap".into());
    let mut ratios = Vec::new();
    for name in wanted.split(',') {
        for candidates in &lists {
            let ids: Vec<&str> = candidates.iter().map(|device| device.info().id.as_str()).collect();
            let label = format!("{name} with {} to choose from", ids.join(", "));
            ratios.push((label, sweep(name, &stock(name), candidates, sizes, turns)));
        }
    }
    let least = ratios.iter().map(|(_, ratio)| *ratio).fold(f64::INFINITY, f64::min);
    let (what, against) = ("--device auto, at any batch size", "the best single device, same run");
    record_bar(what, against, 0.9, "cargo bench --bench auto --features opencl", &ratios);
    match least.is_finite() {
        true => println!("\nminimum auto/best: {least:.2} (target 0.90)"),
        false => {
            println!("nothing to measure: auto has one device to choose from, and no software device was found")
        }
    }
}
