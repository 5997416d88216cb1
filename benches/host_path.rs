//! Measures the host's part of filtering on a GPU against its bars: `cargo bench --bench host_path
//! --features opencl`.
//!
//! The device is the idle CUDA driver (`backends/cuda/emulator/driver/idle.cpp`), whose copies and
//! kernels take no time, so what remains is validating, gathering, queueing and handing out
//! verdicts. It shows the same code as a GPU, on a machine without one. Times are host nanoseconds
//! per packet from submitting a batch to dropping its verdicts, one batch at a time; medians.
//!
//! Devices that share the host's cores run the same code too: OpenCL devices are compared with
//! XDP-on-GPU's method on the same device, wgpu devices with their kernels alone.

mod support;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use portcullis::packet_io::synth::Random;
use portcullis_core::device::{Device, Dispatch, Imported, LoadOptions, MeasureOptions, Session, Transfer};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, ResizeRoom};
use portcullis_core::program::Program;
use portcullis_cuda::CudaDevice;
use portcullis_cuda_emulator::Unavailable;
use rayon::prelude::*;

use support::{LENGTH, ReusedBatch, Times, Traffic, is_test_run, sample_all_in_turn, stock, time, time_alone};

/// Set in the process that runs over the idle driver.
const CHILD_VARIABLE: &str = "PORTCULLIS_BENCH_HOST_PATH";

/// Amount of work to measure.
struct Scale {
    /// Packets of a large batch, and of one that stays in the L2 cache.
    large: usize,
    cached: usize,
    /// Timed rounds, and batches per round where batches are small.
    rounds: usize,
    small_batches: u32,
}

const FULL: Scale = Scale { large: 1 << 20, cached: 16 << 10, rounds: 41, small_batches: 2000 };
const TRIAL: Scale = Scale { large: 1 << 12, cached: 1 << 10, rounds: 2, small_batches: 5 };

/// Packets of a small batch, and of the largest that `persistent` is for.
const SMALL: usize = 64;
const MEDIUM: usize = 1024;

/// The filters: one that only returns verdicts, and one that returns targets too.
const PLAIN: &str = "simple_filter";
const REDIRECTING: &str = "hash_lb";

/// A filter that reads the time, and no packet bytes.
const READS_TIME: &str = "fn xdp_filter(pkt: u32) -> u32 { return 1u + (pkt_time(pkt).x & 1u); }";

/// Rows of bars, printed at the end.
#[derive(Default)]
struct Bars(Vec<[String; 4]>);

impl Bars {
    /// Adds a row: `figure` against the most that is allowed, or without a bar.
    fn at_most(&mut self, what: &str, figure: f64, bar: Option<f64>, unit: &str) {
        self.add(what, format!("{figure:.3} {unit}"), bar.map(|bar| (format!("at most {bar} {unit}"), figure <= bar)));
    }

    /// Adds a row of a ratio against the least that is required.
    fn at_least(&mut self, what: &str, figure: f64, bar: f64) {
        self.add(what, format!("{figure:.2}"), Some((format!("at least {bar}"), figure >= bar)));
    }

    fn add(&mut self, what: &str, figure: String, bar: Option<(String, bool)>) {
        let (bar, result) = bar.map_or((String::new(), ""), |(bar, met)| (bar, if met { "met" } else { "missed" }));
        self.0.push([what.into(), figure, bar, result.into()]);
    }

    fn print(&self) {
        let width = |column: usize| self.0.iter().map(|row| row[column].len()).max().unwrap_or(0);
        println!();
        for [what, figure, bar, result] in &self.0 {
            let (what_width, figure_width, bar_width) = (width(0), width(1), width(2));
            println!("{what:what_width$}  {figure:>figure_width$}  {bar:bar_width$}  {result}");
        }
    }
}

fn main() -> ExitCode {
    support::restore_sigpipe();
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        measure();
        return ExitCode::SUCCESS;
    }
    software_devices();
    let folder = match portcullis_cuda_emulator::build_idle(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(folder) => folder,
        Err(reason @ Unavailable::NotSupported(_)) => {
            println!("nothing to measure: {reason}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => panic!("{reason}"),
    };
    let program = std::env::current_exe().expect("the path of this program");
    let mut child = Command::new(program);
    child.args(std::env::args_os().skip(1)).env(CHILD_VARIABLE, "1");
    child.env("LD_LIBRARY_PATH", folder).env("PORTCULLIS_CACHE", "");
    for name in ["CUDA_VISIBLE_DEVICES", "PORTCULLIS_NVRTC", "PORTCULLIS_CUBINS"] {
        child.env_remove(name);
    }
    let status = child.status().expect("this program can be run");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure() {
    let scale = if is_test_run() { &TRIAL } else { &FULL };
    let device = portcullis_cuda::probe().expect("the idle driver has a device").remove(0);
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    println!("{}, {cores} cores, batches of {} packets of {LENGTH} bytes", device.info().name, scale.large);
    let mut bars = Bars::default();
    let uniform = ReusedBatch::new(support::batch(Traffic::Uniform, scale.large, LENGTH));
    let irregular = ReusedBatch::new(irregular_batch(scale.large));
    let resident = |options: LoadOptions| options.with_measure(MeasureOptions::default().with_resident(true));
    for threads in [1, cores] {
        let options = support::threads(threads);
        let name = |what: &str| format!("{what}, {threads} thread{}", if threads == 1 { "" } else { "s" });
        let mut row = |what: &str, filter: &str, options: LoadOptions, batch: &ReusedBatch, bar: Option<f64>| {
            let mut session = open(&device, filter, &options);
            let times = time_alone(scale.rounds, || drop(batch.run(&mut *session)));
            bars.at_most(&name(what), per_packet(&times, batch), bar, "ns");
        };
        row("resident, verdicts", PLAIN, resident(options.clone()), &uniform, Some(0.05));
        row("resident, targets", REDIRECTING, resident(options.clone()), &uniform, Some(0.10));
        let whole = || options.clone().with_transfer(Transfer::Whole);
        row("whole, uniform", PLAIN, whole(), &uniform, Some(0.05));
        row("whole, irregular", PLAIN, whole(), &irregular, Some(0.4));
        row("in place, uniform", PLAIN, options.clone().with_transfer(Transfer::Imported), &uniform, None);
        row("in place, irregular", PLAIN, options.clone().with_transfer(Transfer::Imported), &irregular, None);
        if cores == 1 {
            break;
        }
    }
    metadata(&device, scale, cores, &mut bars);
    windows(&device, scale, cores, &irregular, &mut bars);
    if cores > 1 {
        bars.at_most("a word to another core and back", round_trip(scale), None, "µs");
    }
    latency(&device, scale, &mut bars);
    bars.print();
}

/// Measures sessions on devices that share the host's cores and memory: OpenCL against XDP-on-GPU's
/// method on the same device, wgpu against its kernel.
fn software_devices() {
    let (count, rounds) = if is_test_run() { (1 << 12, 1) } else { (1_000_000, 15) };
    let mut bars = Bars::default();
    #[cfg(feature = "opencl")]
    match portcullis_opencl::probe() {
        Ok(devices) => devices.iter().for_each(|device| against_records(device, count, rounds, &mut bars)),
        Err(reason) => println!("no OpenCL device: {reason}"),
    }
    #[cfg(feature = "wgpu")]
    match portcullis_wgpu::probe() {
        Ok(devices) => devices.iter().for_each(|device| against_kernel(device, count, rounds, &mut bars)),
        Err(reason) => println!("no wgpu device: {reason}"),
    }
    bars.print();
}

/// Filters raw packets end to end, beside XDP-on-GPU's kernels over its records in pinned memory,
/// and beside reading the packets by all cores. The bar is the lesser of the two.
#[cfg(feature = "opencl")]
fn against_records(device: &portcullis_opencl::OpenClDevice, count: usize, rounds: usize, bars: &mut Bars) {
    use portcullis_bench::xdp_on_gpu::packet_runner::{BATCH, PacketRunner, program};
    use portcullis_bench::xdp_on_gpu::records::{SIZE, traffic};
    use portcullis_bench::xdp_on_gpu::workloads::{KERNELS, WORKLOADS};
    use portcullis_core::device::record_kernel::{HostMemory, RecordKernel};

    /// Records per transfer, as XDP-on-GPU has them.
    const CHUNK: usize = 100_000;
    // In pages of the size that sessions' packets have, read by threads that are awake.
    let mut packets = Arena::new(count * LENGTH).expect("memory for the packets");
    packets.fill(1);
    for workload in &WORKLOADS {
        let (kernel, pinned) = (workload.kernel, HostMemory::Pinned);
        let records = portcullis_opencl::measure::OpenClRecords::open(
            device,
            KERNELS,
            kernel,
            pinned,
            count,
            CHUNK,
            SIZE,
            workload.records_per_item,
        );
        let mut records = records.unwrap_or_else(|error| panic!("{}: {error}", workload.name));
        for (to, fields) in records.host().chunks_exact_mut(SIZE).zip(traffic(workload.traffic, count)) {
            to.copy_from_slice(&fields.to_record(0));
        }
        let options = LoadOptions::default();
        let runner = PacketRunner::open(device, &program(workload), workload, count, BATCH, &options);
        let mut runner = runner.unwrap_or_else(|error| panic!("{}: {error}", workload.name));
        let [ours, theirs, read] = sample_all_in_turn(
            rounds,
            [
                &mut || time(|| runner.run(|_| ()).unwrap_or_else(|error| panic!("{error}"))),
                &mut || time(|| records.run(count, CHUNK).unwrap_or_else(|error| panic!("{error}"))),
                &mut || time(|| read_by_all_cores(&packets)),
            ],
        );
        let (peer, bandwidth) = (ratio(theirs.median, ours.median), ratio(read.median, ours.median));
        let what =
            format!("{}, {}: against XDP-on-GPU (read bandwidth {bandwidth:.2})", device.info().id, workload.name);
        let bar = "at least 2.5, or 0.9 of read bandwidth".into();
        bars.add(&what, format!("{peer:.2}"), Some((bar, peer >= 2.5 || bandwidth >= 0.9)));
    }
}

/// Reads memory by all cores.
#[cfg(feature = "opencl")]
fn read_by_all_cores(bytes: &[u8]) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let sum = |part: &[u8]| {
        let words = part.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.fold(0, u64::wrapping_add)
    };
    let parts = bytes.par_chunks(bytes.len().div_ceil(4 * cores));
    parts.map(|part| sum(black_box(part))).reduce(|| 0, u64::wrapping_add)
}

/// Filters packets end to end, beside the kernel alone over the same packets.
#[cfg(feature = "wgpu")]
fn against_kernel(device: &portcullis_wgpu::WgpuDevice, count: usize, rounds: usize, bars: &mut Bars) {
    use support::Sample;
    use support::device::{DEPTH, batches, round};

    let mut sent = batches(count);
    let resident = ReusedBatch::new(support::batch(Traffic::Mixed, count, LENGTH));
    for name in [PLAIN, REDIRECTING] {
        let program = stock(name);
        let options = LoadOptions::default().with_depth(DEPTH);
        let mut session = device.load(&program, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let kernel = portcullis_wgpu::measure::KernelTimer::load(device, &program);
        let mut kernel = kernel.unwrap_or_else(|error| panic!("{name}: {error}"));
        let launches = 4;
        let mut launch =
            || resident.lend(|batch| kernel.time(batch, launches).unwrap_or_else(|error| panic!("{name}: {error}")));
        let [ours, alone] = sample_all_in_turn(
            rounds,
            [&mut || time(|| round(&mut *session, &mut sent)), &mut || Sample::wall(launch())],
        );
        let what = format!("{}, {name}: times its kernel", device.info().id);
        bars.at_most(&what, ratio(ours.median, alone.median), Some(1.2), "");
    }
}

fn open(device: &CudaDevice, filter: &str, options: &LoadOptions) -> Box<dyn Session> {
    device.load(&stock(filter), options).unwrap_or_else(|error| panic!("{filter}: {error}"))
}

fn per_packet(times: &Times, batch: &ReusedBatch) -> f64 {
    times.median.as_secs_f64() * 1e9 / batch.get().len() as f64
}

/// Packets of [`LENGTH`] bytes whose distance is [`LENGTH`] or a word more, at random.
fn irregular_batch(count: usize) -> Batch {
    let mut random = Random::new(0, 0);
    let mut at = 0;
    let descriptors: Vec<Descriptor> = (0..count)
        .map(|_| {
            let offset = at;
            at += LENGTH as u32 + 4 * random.below(2);
            Descriptor { offset, length: LENGTH as u32 }
        })
        .collect();
    let mut arena = Arena::new(at as usize).expect("memory for the packets");
    arena.fill(1);
    BatchCutter::new(arena, None).cut_batch(descriptors, Vec::new(), ResizeRoom::None).expect("packets do not overlap")
}

/// Metadata of batches as captures have them, each packet with a time of its own, and as a ring
/// delivers them, with one time.
fn metadata(device: &CudaDevice, scale: &Scale, cores: usize, bars: &mut Bars) {
    let program = support::compile("reads_time", READS_TIME);
    let load = |options: &LoadOptions| device.load(&program, options).unwrap_or_else(|error| panic!("{error}"));
    for (what, step) in [("rising times", 700), ("one time", 0)] {
        let batch = ReusedBatch::new(timed_batch(scale.large, step));
        let measure = MeasureOptions::default().with_record_stages(true);
        let mut session = load(&support::threads(1).with_measure(measure));
        drop(batch.run(&mut *session));
        let bytes = session.stages().map_or(0, |stages| stages.bytes_to_device);
        bars.at_most(&format!("metadata, {what}, to the device"), bytes as f64 / scale.large as f64, None, "B");
        for threads in if cores == 1 { vec![1] } else { vec![1, cores] } {
            let mut session = load(&support::threads(threads));
            let times = time_alone(scale.rounds, || drop(batch.run(&mut *session)));
            let name = format!("metadata, {what}, {threads} thread{}", if threads == 1 { "" } else { "s" });
            bars.at_most(&name, per_packet(&times, &batch), None, "ns");
        }
    }
}

/// Packets of [`LENGTH`] bytes that arrive `step` nanoseconds after each other, at one port.
fn timed_batch(count: usize, step: u64) -> Batch {
    let descriptor = |index| Descriptor { offset: (index * LENGTH) as u32, length: LENGTH as u32 };
    let time = |index| Metadata::new(LENGTH as u32, 0, 1_700_000_000_000_000_000 + index * step);
    let arena = Arena::new(count * LENGTH).expect("memory for the packets");
    let (descriptors, times) = ((0..count).map(descriptor).collect(), (0..count as u64).map(time).collect());
    let batch = BatchCutter::new(arena, None).cut_batch(descriptors, times, ResizeRoom::None);
    batch.expect("packets do not overlap")
}

/// Gathering windows: in a cache, out of it against a loop that does nothing else, and with two
/// threads.
fn windows(device: &CudaDevice, scale: &Scale, cores: usize, large: &ReusedBatch, bars: &mut Bars) {
    let load = |threads| open(device, PLAIN, &support::threads(threads).with_transfer(Transfer::Window));
    let cached = ReusedBatch::new(irregular_batch(scale.cached));
    let (mut one, mut two) = (load(1), load(2));
    let repeats = (scale.large / scale.cached).min(16) as u32;
    let times = time_alone(scale.rounds, || (0..repeats).for_each(|_| drop(cached.run(&mut *one))));
    bars.at_most("window, in the cache, 1 thread", per_packet(&times, &cached) / f64::from(repeats), Some(1.3), "ns");
    let words = window_words(&stock(PLAIN));
    let mut rows = vec![0_u32; words * large.get().len()];
    let [bare, one, two] = sample_all_in_turn(
        scale.rounds,
        [
            &mut || time(|| bare_gather(&large.get(), words, black_box(&mut rows))),
            &mut || time(|| drop(large.run(&mut *one))),
            &mut || time(|| drop(large.run(&mut *two))),
        ],
    );
    bars.at_most("window, 1 thread", per_packet(&one, large), None, "ns");
    bars.at_most("window, a bare loop", per_packet(&bare, large), None, "ns");
    bars.at_least("window, 1 thread against the bare loop", ratio(bare.median, one.median), 0.85);
    if cores > 1 {
        bars.at_least("window, 2 threads against 1", ratio(one.median, two.median), 1.7);
    }
}

/// Words of a filter's window.
fn window_words(program: &Program) -> usize {
    program.facts().reads.max_bytes().div_ceil(4) as usize
}

fn ratio(theirs: Duration, ours: Duration) -> f64 {
    theirs.as_secs_f64() / ours.as_secs_f64()
}

/// Reads the line in which each packet starts, prefetched, and writes the words of its window.
fn bare_gather(batch: &Batch, words: usize, rows: &mut [u32]) {
    /// Packets ahead of the one being read.
    const AHEAD: usize = 16;
    let descriptors = batch.descriptors();
    for (index, row) in rows.chunks_exact_mut(words).enumerate() {
        if let Some(next) = descriptors.get(index + AHEAD) {
            prefetch(batch.span().as_ptr().wrapping_add(next.offset as usize));
        }
        let packet = batch.packet(index);
        for (to, word) in row.iter_mut().zip(packet.chunks_exact(4)) {
            *to = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        }
    }
}

fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a prefetch is a hint and does not fault, whatever the address")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Microseconds that a word takes to a thread on another core and back, which the kernels of
/// `persistent` and `waitvalue` cost at least. It differs from machine to machine, and by the cores
/// that the threads got.
fn round_trip(scale: &Scale) -> f64 {
    // On a cache line of its own, as words beside it would move with it.
    #[repr(align(128))]
    struct Line(AtomicU32);
    let (there, back) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    let next_word = |line: &Line, old: u32| loop {
        let word = line.0.load(Ordering::Acquire);
        if word != old {
            break word;
        }
        std::hint::spin_loop();
    };
    const END: u32 = u32::MAX;
    let times = std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut word = 0;
            while word != END {
                word = next_word(&there, word);
                back.0.store(word, Ordering::Release);
            }
        });
        let mut word = 0;
        let times = time_alone(scale.rounds, || {
            for _ in 0..scale.small_batches {
                there.0.store(word + 1, Ordering::Release);
                word = next_word(&back, word);
            }
        });
        there.0.store(END, Ordering::Release);
        times
    });
    times.median.as_secs_f64() * 1e6 / f64::from(scale.small_batches)
}

/// From submitting a small batch to its verdicts, for each dispatch method; from pinned memory too
/// for those whose kernels can copy packets from it.
fn latency(device: &CudaDevice, scale: &Scale, bars: &mut Bars) {
    for (packets, bar) in [(SMALL, Some(1.0)), (MEDIUM, None)] {
        for &dispatch in device.info().dispatch {
            for pinned in [false, true] {
                if pinned && matches!(dispatch, Dispatch::Pipelined | Dispatch::Inline) {
                    continue;
                }
                let mut session = open(device, PLAIN, &support::threads(1).with_dispatch(dispatch).with_depth(1));
                let batch = ReusedBatch::new(support::batch(Traffic::Uniform, packets, LENGTH));
                if pinned {
                    let imported = session.import(batch.get().span());
                    assert_eq!(imported.unwrap_or_else(|error| panic!("{error}")), Imported::InPlace);
                }
                let run = || (0..scale.small_batches).for_each(|_| drop(batch.run(&mut *session)));
                let times = time_alone(scale.rounds, run);
                let micros = times.median.as_secs_f64() * 1e6 / f64::from(scale.small_batches);
                let what = format!("{packets} packets, {dispatch}{}", if pinned { ", pinned" } else { "" });
                bars.at_most(&what, micros, bar, "µs");
            }
        }
    }
}
