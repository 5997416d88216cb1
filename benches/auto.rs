//! `--device auto` against the best of its devices at each size of batch. `cargo bench --bench auto --features opencl`.
//!
//! On a machine with a GPU the candidates are those that `auto` has: the GPU and the CPU. Without one, software devices take
//! the GPU's place for the bench's sake, each beside the CPU and both at once: what they cost crosses what the CPU costs, or
//! does not, as with a GPU, though they share its processors. The calibration is made at the start, and not kept.
//!
//! Every side has the same packets, 64 bytes each, in batches of one size, three in flight, by turns; a side's turn is some
//! batches, and the median of its turns counts. `auto/best` is the median, over the turns, of the time of the device that
//! is the best at this size by the time of `auto` in the same turn: 1.00 is as good as knowing, and the bar is 0.90.
//! `PORTCULLIS_BENCH_FILTERS` names other filters.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::auto::calibration::CalibrationStore;
use portcullis::auto::{AutoDevice, CalibrationMode, Settings};
use portcullis::devices;
use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use support::device::{DEPTH, stock};
use support::{LENGTH, Traffic, note_bar, only_testing};

/// Packets of a turn, about, and batches at least.
const TURN: usize = 1 << 17;
const LEAST: usize = 6;

/// Some batches through a session, as many in flight as it takes.
fn turn(session: &mut dyn Session, batches: &mut Vec<Batch>, count: usize) -> Duration {
    let begun = Instant::now();
    for _ in 0..count {
        if batches.is_empty() || session.in_flight() == session.depth() {
            batches.push(session.complete().expect("no device fails").expect("a batch is in flight").batch);
        }
        session.submit(batches.pop().expect("one came back")).expect("there is room in the queue");
    }
    while let Some(done) = session.complete().expect("no device fails") {
        batches.push(done.batch);
    }
    begun.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The least part of the best device's speed that auto had.
fn sweep(name: &str, program: &Arc<Program>, candidates: &[Arc<dyn Device>], sizes: &[usize], turns: usize) -> f64 {
    let settings =
        Settings { store: CalibrationStore::disabled(), mode: CalibrationMode::Always, ..Settings::default() };
    let auto = AutoDevice::new(candidates.to_vec(), settings);
    let options = LoadOptions { depth: DEPTH, ..LoadOptions::default() };
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
        let count = (TURN / size).max(LEAST);
        let mut taken = vec![Vec::new(); sessions.len()];
        for round in 0..=turns {
            // Nobody is always behind the same one, which has left the caches as it needs them.
            for place in 0..sessions.len() {
                let side = (place + round) % sessions.len();
                let side = if round % 2 == 0 { side } else { sessions.len() - 1 - side };
                let time = turn(&mut *sessions[side], &mut batches, count);
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
    support::end_with_the_reader();
    let (sizes, turns): (&[usize], _) = match only_testing() {
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
    note_bar(what, against, 0.9, "cargo bench --bench auto --features opencl", &ratios);
    match least.is_finite() {
        true => println!("\nthe least auto/best of all: {least:.2} (the bar is 0.90)"),
        false => {
            println!("nothing to measure: auto has one device to choose from here, and there is no software device")
        }
    }
}
