//! Compares CUDA devices with the limits of their memory and bus: `cargo bench --bench cuda`.
//!
//! - kernel: the filter over packets in device memory, compared with a copy within that memory of
//!   as many bytes as the filter accesses. A copy moves each byte twice and counts twice its size.
//! - end to end: batches from pinned memory and their verdicts back, compared with a copy to the
//!   device of the bytes that must move there: packets and descriptors.
//! - latency: from submitting a small batch to its verdicts, for each dispatch method.
//!
//! A ratio is the time that the bytes take at the copy's rate, divided by the time measured: 1 is
//! the limit of memory or bus. If `PORTCULLIS_BENCH_JSON` names a file, the figures are written to
//! it.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::{Device, DeviceKind, Dispatch, LoadOptions};
use portcullis_core::packet::Descriptor;
use portcullis_core::program::Program;
use portcullis_cuda::CudaDevice;
use portcullis_cuda::measure::{KernelTimer, time_device_copy, time_upload};
use serde_json::{Value, json};

use support::device::{DEPTH, FILTERS};
use support::{LENGTH, ReusedBatch, Traffic, is_test_run, stock};

/// A filter that reads headers and writes nothing, and one that redirects.
const END_TO_END_FILTERS: [&str; 2] = ["http_only", "hash_lb"];

/// File for the figures.
const JSON_PATH_VARIABLE: &str = "PORTCULLIS_BENCH_JSON";

/// Size of a memory sector, the unit of GPU memory access, in bytes.
const SECTOR_BYTES: u64 = 32;

/// Amount of work to measure.
struct Scale {
    /// Bytes of a copy, packets of the kernels' batch, and repetitions.
    copy: usize,
    packets: usize,
    rounds: u32,
    /// Packets per batch and in total for end-to-end runs, and repetitions.
    end_to_end_packets: &'static [usize],
    turns: usize,
    /// Small batches for each dispatch method.
    small: usize,
}

const FULL: Scale = Scale {
    copy: 256 << 20,
    packets: 8 << 20,
    rounds: 50,
    end_to_end_packets: &[100_000, 1_000_000, 10_000_000],
    turns: 15,
    small: 20_000,
};

/// A short run that only checks that the bench works.
const TRIAL: Scale =
    Scale { copy: 1 << 20, packets: 1000, rounds: 2, end_to_end_packets: &[1000], turns: 2, small: 20 };

fn main() {
    support::restore_sigpipe();
    let devices = match portcullis_cuda::probe() {
        Ok(devices) => devices,
        Err(reason) => {
            println!("nothing to measure: {reason}");
            return;
        }
    };
    let mut all = Vec::new();
    for device in devices {
        let emulated = device.info().kind == DeviceKind::Software;
        if emulated {
            println!("{}: an emulated device, whose times are not comparable", device.info().name);
        }
        let scale = if emulated || is_test_run() { &TRIAL } else { &FULL };
        all.push(measure(&device, scale));
    }
    if let Some(file) = std::env::var_os(JSON_PATH_VARIABLE) {
        let text =
            serde_json::to_string_pretty(&json!({ "bench": "cuda", "devices": all })).expect("numbers and texts");
        std::fs::write(&file, text + "\n").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

fn measure(device: &CudaDevice, scale: &Scale) -> Value {
    let info = device.info();
    println!("\n{}: {}, {}", info.id, info.name, info.driver);
    let on_device = || {
        let time = time_device_copy(device, scale.copy, scale.rounds).unwrap_or_else(|e| panic!("{e}"));
        2.0 * scale.copy as f64 / time.as_secs_f64()
    };
    let to_device = time_upload(device, scale.copy, scale.rounds).unwrap_or_else(|e| panic!("{e}"));
    let to_device = scale.copy as f64 / to_device.as_secs_f64();
    // Measure the copy before and after and use the faster one: clock rates depend on the previous
    // load.
    let before = on_device();
    let mut kernels = kernels(device, scale);
    let on_device = before.max(on_device());
    println!("copy on the device {:.1} GB/s, to the device {:.1} GB/s", on_device / 1e9, to_device / 1e9);
    show_kernels(&mut kernels, on_device);
    json!({
        "id": info.id,
        "name": info.name,
        "driver": info.driver,
        "emulated": info.kind == DeviceKind::Software,
        "copy_on_device_bytes_per_s": on_device,
        "copy_to_device_bytes_per_s": to_device,
        "kernels": kernels,
        "end_to_end": end_to_end(device, scale, to_device),
        "latency": latency(device, scale),
    })
}

/// Bytes that a kernel moves to and from device memory per packet: a descriptor, the sectors of the
/// packet that it may access, and its verdict.
fn device_bytes_per_packet(program: &Program) -> f64 {
    let facts = program.facts();
    let sectors = |reach: u32| u64::from(reach).min(LENGTH as u64).div_ceil(SECTOR_BYTES) * SECTOR_BYTES;
    let packet =
        sectors(facts.reads.max_bytes()).max(sectors(facts.writes.max_bytes())) + sectors(facts.writes.max_bytes());
    (size_of::<Descriptor>() as u64 + packet + 1 + if facts.redirects { 4 } else { 0 }) as f64
}

fn kernels(device: &CudaDevice, scale: &Scale) -> Vec<Value> {
    let batch = ReusedBatch::new(support::batch(Traffic::Mixed, scale.packets, LENGTH));
    let mut rows = Vec::new();
    for name in FILTERS {
        let program = stock(name);
        let mut kernel = KernelTimer::load(device, &program).unwrap_or_else(|e| panic!("{name}: {e}"));
        let time = batch.lend(|batch| kernel.time(batch, scale.rounds).unwrap_or_else(|e| panic!("{name}: {e}")));
        let (rate, bytes) = (scale.packets as f64 / time.as_secs_f64(), device_bytes_per_packet(&program));
        rows.push(json!({
            "filter": name, "packets": scale.packets, "packets_per_s": rate, "bytes_a_packet": bytes,
        }));
    }
    rows
}

/// Prints kernel throughput relative to a copy, and records the ratios. A filter that reads no
/// packet bytes has none, as memory does not limit it.
fn show_kernels(rows: &mut [Value], bandwidth: f64) {
    println!("\nkernel             Mpps   bytes a packet   of a copy's rate");
    for row in rows {
        let number = |name: &str| row[name].as_f64().expect("a number");
        let (rate, bytes) = (number("packets_per_s"), number("bytes_a_packet"));
        let name = row["filter"].as_str().expect("a name");
        let ratio = (name != "minimal").then_some(rate * bytes / bandwidth);
        let shown = ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        println!("{name:15} {:>7.0}   {bytes:>14}   {shown}", rate / 1e6);
        row["ratio"] = json!(ratio);
    }
}

fn end_to_end(device: &CudaDevice, scale: &Scale, bandwidth: f64) -> Vec<Value> {
    println!("\nend to end         packets     Mpps   of the bus");
    let mut rows = Vec::new();
    for name in END_TO_END_FILTERS {
        let program = stock(name);
        for &packets in scale.end_to_end_packets {
            let options = LoadOptions::default().with_depth(DEPTH);
            let mut session = device.load(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            // Completed batches are submitted again, so that the bus never waits for the host.
            let mut idle: Vec<_> = (0..DEPTH).map(|_| support::batch(Traffic::Mixed, packets, LENGTH)).collect();
            let mut done = 0;
            let mut began = Instant::now();
            // Untimed at first: the first batches create buffers and register memory.
            let turns = DEPTH + scale.turns * DEPTH;
            while done < turns {
                while let Some(batch) = idle.pop() {
                    session.submit(batch).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
                let back = session.complete().unwrap_or_else(|e| panic!("{name}: {e}"));
                idle.push(back.expect("a batch is in flight").batch);
                done += 1;
                if done == DEPTH {
                    began = Instant::now();
                }
            }
            let rate = ((turns - DEPTH) * packets) as f64 / began.elapsed().as_secs_f64();
            let bytes = (LENGTH + size_of::<Descriptor>()) as f64;
            println!("{name:15} {packets:>10} {:>8.1}   {:.2}", rate / 1e6, rate * bytes / bandwidth);
            rows.push(json!({
                "filter": name, "packets": packets, "packets_per_s": rate, "bytes_a_packet": bytes,
                "ratio": rate * bytes / bandwidth,
            }));
        }
    }
    rows
}

fn latency(device: &CudaDevice, scale: &Scale) -> Vec<Value> {
    println!("\nlatency      packets   p50 µs   p99 µs");
    let program: Arc<Program> = stock("http_only");
    let mut rows = Vec::new();
    for &dispatch in device.info().dispatch {
        for packets in [64, 1024] {
            let options = LoadOptions::default().with_dispatch(dispatch).with_depth(1);
            let mut session = device.load(&program, &options).unwrap_or_else(|e| panic!("{dispatch}: {e}"));
            let batch = ReusedBatch::new(support::batch(Traffic::Mixed, packets, LENGTH));
            let mut times = Vec::with_capacity(scale.small);
            for turn in 0..scale.small + scale.small / 10 {
                let began = Instant::now();
                batch.run(&mut *session);
                let time = began.elapsed();
                // Untimed at first: the first batches create buffers and wake the device up.
                if turn >= scale.small / 10 {
                    times.push(time);
                }
            }
            times.sort_unstable();
            let (p50, p99) = (quantile(&times, 50), quantile(&times, 99));
            println!("{:11}  {packets:>7}  {p50:>7.1}  {p99:>7.1}", Dispatch::name(dispatch));
            rows.push(json!({ "dispatch": dispatch.name(), "packets": packets, "p50_us": p50, "p99_us": p99 }));
        }
    }
    rows
}

/// Latency percentile in microseconds.
fn quantile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)].as_secs_f64() * 1e6
}
