//! Shared by the benches: packets to filter, programs and sessions, timing of two sides in turn,
//! and result tables.

#![allow(dead_code, reason = "each bench uses its part")]

pub mod allocations;
pub mod contention;
pub mod device;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod routes;

use std::cell::{Ref, RefCell};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::packet_io::synth::Random;
use portcullis::stock::STATELESS_WGSL;
use portcullis_core::device::{LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::map::Table as MapTable;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, RESIZE_ROOM, ResizeRoom, Verdicts};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

/// Kind of packets to filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// TCP over IPv4 to port 80, each packet a flow of its own: all branches are predictable.
    Uniform,
    /// A mix as on a link, in random order: TCP and UDP to a few ports over IPv4 and IPv6, some
    /// with options, tags or fragments, and some ICMP and ARP. Branches are unpredictable.
    Mixed,
    /// As `Uniform`, but one packet in ten, at random, has IPv4 options.
    Options,
}

impl Traffic {
    /// One-word name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Uniform => "uniform",
            Traffic::Mixed => "mixed",
            Traffic::Options => "options",
        }
    }
}

/// Bytes of each packet: a minimum-size Ethernet frame, with payload in place of the checksum.
pub const LENGTH: usize = 64;

/// A batch of `count` packets of [`LENGTH`] bytes, one every `stride` bytes.
pub fn batch(traffic: Traffic, count: usize, stride: usize) -> Batch {
    batch_with(traffic, count, stride, ResizeRoom::None)
}

/// Variant of [`batch`] with headroom and tailroom for each packet, which requires longer slots.
pub fn batch_with(traffic: Traffic, count: usize, stride: usize, room: ResizeRoom) -> Batch {
    let mut random = Random::new(0, 0);
    written_in_slots(count, stride, room, |_, packet| write_packet(packet, traffic, &mut random))
}

/// A batch of `count` packets of [`LENGTH`] bytes without gaps. `write` gets each packet's number
/// and its bytes, which are 0.
pub fn written_batch(count: usize, write: impl FnMut(usize, &mut [u8])) -> Batch {
    written_in_slots(count, LENGTH, ResizeRoom::None, write)
}

fn written_in_slots(count: usize, stride: usize, room: ResizeRoom, mut write: impl FnMut(usize, &mut [u8])) -> Batch {
    let before = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
    let mut arena = Arena::new(count * stride).expect("memory for the packets");
    let mut descriptors = Vec::with_capacity(count);
    for (index, slot) in arena.chunks_exact_mut(stride).enumerate() {
        write(index, &mut slot[before..][..LENGTH]);
        descriptors.push(Descriptor { offset: (index * stride + before) as u32, length: LENGTH as u32 });
    }
    BatchCutter::new(arena, None).cut_batch(descriptors, Vec::new(), room).expect("slots do not overlap")
}

/// A batch that sessions filter again and again. Both sides of a comparison share it.
pub struct ReusedBatch(RefCell<Option<Batch>>);

impl ReusedBatch {
    /// Wraps a batch.
    pub fn new(batch: Batch) -> ReusedBatch {
        ReusedBatch(RefCell::new(Some(batch)))
    }

    /// Borrows the batch.
    pub fn get(&self) -> Ref<'_, Batch> {
        Ref::map(self.0.borrow(), |batch| batch.as_ref().expect("the batch was returned"))
    }

    /// Lends the batch to `work`, which returns it with a result.
    pub fn lend<T>(&self, work: impl FnOnce(Batch) -> (T, Batch)) -> T {
        let batch = self.0.take().expect("the batch was returned");
        let (result, batch) = work(batch);
        self.0.replace(Some(batch));
        result
    }

    /// Filters the batch and returns the verdicts.
    pub fn run(&self, session: &mut dyn Session) -> Verdicts {
        self.lend(|batch| {
            let done = session.run(batch).unwrap_or_else(|error| panic!("{error}"));
            (black_box(done.verdicts), done.batch)
        })
    }
}

/// Compiles a filter.
pub fn compile(name: &str, text: impl Into<Arc<str>>) -> Arc<Program> {
    let source = Source::new(format!("{name}.wgsl"), text);
    Arc::new(wgsl::compile(&source, &ProgramOptions::default()).unwrap_or_else(|errors| panic!("{}", errors.render())))
}

/// Compiles a stock filter.
pub fn stock(name: &str) -> Arc<Program> {
    compile(name, STATELESS_WGSL.iter().find(|(stock, _)| *stock == name).expect("a stock filter").1)
}

/// Load options for a number of CPU threads.
pub fn threads(count: usize) -> LoadOptions {
    LoadOptions::default().with_threads(NonZeroUsize::new(count))
}

/// Sets entries of a session's empty map, whose number is `map`.
pub fn fill_map<K: AsRef<[u32]>, V: AsRef<[u32]>>(
    session: &mut dyn Session,
    program: &Program,
    map: usize,
    entries: impl IntoIterator<Item = (K, V)>,
) {
    let mut table = MapTable::new(&program.maps()[map], Vec::new());
    for (key, value) in entries {
        table.set(key.as_ref(), value.as_ref()).expect("the map has capacity");
    }
    let (at, words) = table.changes();
    session.set_map_words(map, at, words).expect("the entries fit the map");
}

fn write_packet(packet: &mut [u8], traffic: Traffic, random: &mut Random) {
    packet[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    let mixed = traffic == Traffic::Mixed;
    let kind = if mixed { random.below(100) } else { 0 };
    let protocol = match if mixed { random.below(100) } else { 0 } {
        0..70 => 6,
        70..96 => 17,
        _ => 1,
    };
    let port: u16 = match if mixed { random.below(100) } else { 0 } {
        0..20 => 80,
        20..50 => 443,
        50..55 => 22,
        55..65 => 53,
        _ => 1024 + random.below(60_000) as u16,
    };
    let ip = match kind {
        0..85 => 14,
        85..89 => {
            packet[12..16].copy_from_slice(&[0x81, 0x00, 0, 7]);
            18
        }
        89..97 => return write_ipv6(packet, protocol, port, random),
        _ => {
            packet[12..14].copy_from_slice(&[0x08, 0x06]);
            return;
        }
    };
    packet[ip - 2..ip].copy_from_slice(&[0x08, 0x00]);
    let options = match traffic {
        Traffic::Uniform => 0,
        Traffic::Mixed => 2 * usize::from(random.below(100) < 2),
        Traffic::Options => 2 * usize::from(random.below(100) < 10),
    };
    packet[ip] = 0x45 + options as u8;
    if mixed && random.below(100) < 1 {
        packet[ip + 7] = 185;
    }
    packet[ip + 8] = 64;
    packet[ip + 9] = protocol;
    packet[ip + 12..ip + 14].copy_from_slice(&[192, 168]);
    packet[ip + 14..ip + 16].copy_from_slice(&(random.u32() as u16).to_be_bytes());
    packet[ip + 16..ip + 20].copy_from_slice(&[8, 8, 8, 8]);
    write_ports(&mut packet[ip + 20 + options * 4..], port, random);
}

/// Writes Ethernet, IPv4 without options, ports and nothing else, for packets of at least 38 bytes.
pub fn write_ipv4(packet: &mut [u8], protocol: u8, port: u16, random: &mut Random) {
    packet[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[22] = 64;
    packet[23] = protocol;
    packet[26..28].copy_from_slice(&[192, 168]);
    packet[28..30].copy_from_slice(&(random.u32() as u16).to_be_bytes());
    packet[30..34].copy_from_slice(&[8, 8, 8, 8]);
    write_ports(&mut packet[34..], port, random);
}

fn write_ipv6(packet: &mut [u8], protocol: u8, port: u16, random: &mut Random) {
    packet[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    packet[20] = protocol;
    packet[29] = random.u32() as u8;
    write_ports(&mut packet[54..], port, random);
}

fn write_ports(transport: &mut [u8], port: u16, random: &mut Random) {
    transport[..2].copy_from_slice(&(1024 + random.below(60_000) as u16).to_be_bytes());
    transport[2..4].copy_from_slice(&port.to_be_bytes());
}

/// TCP flags (RFC 9293, section 3.1).
pub const SYN: u8 = 2;
pub const ACK: u8 = 16;

/// A TCP segment of a connection, from its client or its server.
pub fn write_segment(packet: &mut [u8], connection: u32, from_client: bool, flags: u8) {
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[22..24].copy_from_slice(&[64, 6]);
    let client = (connection.wrapping_mul(0x9e37_79b1) | 0x4000_0000).to_be_bytes();
    let port = (1024 + (connection >> 4) as u16 % 60_000).to_be_bytes();
    let ends = if from_client {
        [(client, port), ([192, 0, 2, 1], [0, 80])]
    } else {
        [([192, 0, 2, 1], [0, 80]), (client, port)]
    };
    for (end, (address, port)) in ends.iter().enumerate() {
        packet[26 + 4 * end..30 + 4 * end].copy_from_slice(address);
        packet[34 + 2 * end..36 + 2 * end].copy_from_slice(port);
    }
    packet[47] = flags;
}

/// Restores the default action of SIGPIPE, so that the program ends silently if its reader exits
/// (`| head`). Rust ignores the signal, which makes `println!` panic.
pub fn restore_sigpipe() {
    #[cfg(target_os = "linux")]
    // SAFETY: no other thread runs yet, and nothing here handles the signal.
    #[expect(unsafe_code, reason = "signal(2)")]
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Returns true under `cargo test --benches`, which only checks that the benches run.
pub fn is_test_run() -> bool {
    std::env::args().any(|a| a == "--test") || !std::env::args().any(|a| a == "--bench")
}

/// Appends the measured value of a bar to the file for reports (docs/guide/bench.md), if one is
/// requested and this is not a trial run.
pub fn record_bar(what: &str, against: &str, least: f64, command: &str, ratios: &[(String, f64)]) {
    if !is_test_run() {
        let bar = portcullis_bench::bars::of_ratios(what, against, least, command, ratios);
        portcullis_bench::bars::record(bar).expect("the file that PORTCULLIS_BARS names can be written");
    }
}

/// Times two sides in turn, so that other load on the machine affects both. Each has one untimed
/// round first.
pub fn time_in_turn<A, B>(rounds: usize, mut ours: impl FnMut() -> A, mut theirs: impl FnMut() -> B) -> PairedTimes {
    sample_in_turn(rounds, || time(&mut ours), || time(&mut theirs))
}

/// Variant of [`time_in_turn`] for sides that measure themselves.
pub fn sample_in_turn(
    rounds: usize,
    mut ours: impl FnMut() -> Sample,
    mut theirs: impl FnMut() -> Sample,
) -> PairedTimes {
    let [ours, theirs] = sample_all_in_turn(rounds, [&mut ours, &mut theirs]);
    PairedTimes { ours, theirs }
}

/// Variant of [`sample_in_turn`] for any number of sides.
pub fn sample_all_in_turn<const N: usize>(rounds: usize, mut sides: [&mut dyn FnMut() -> Sample; N]) -> [Times; N] {
    let mut samples = [const { Vec::new() }; N];
    for round in 0..=rounds {
        for (side, samples) in sides.iter_mut().zip(&mut samples) {
            let sample = side();
            // The first round creates buffers and faults pages in.
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    samples.map(|samples| Times::of(&samples))
}

/// Times one side, after one untimed round.
pub fn time_alone<T>(rounds: usize, mut work: impl FnMut() -> T) -> Times {
    let [times] = sample_all_in_turn(rounds, [&mut || time(&mut work)]);
    times
}

/// Times of two sides.
#[derive(Debug, Clone, Copy)]
pub struct PairedTimes {
    /// The side of this project.
    pub ours: Times,
    /// The side to compare with.
    pub theirs: Times,
}

impl PairedTimes {
    /// Ratio of the medians: above 1 ours is faster.
    pub fn ratio(&self) -> f64 {
        self.theirs.median.as_secs_f64() / self.ours.median.as_secs_f64()
    }
}

/// Time of one round.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Wall-clock time.
    pub wall: Duration,
    /// CPU time of all threads of this process.
    pub processor: Duration,
}

impl Sample {
    /// A time without CPU time.
    pub fn wall(wall: Duration) -> Sample {
        Sample { wall, processor: Duration::ZERO }
    }

    /// The share of one of `count` repetitions.
    pub fn per(self, count: u32) -> Sample {
        Sample { wall: self.wall / count, processor: self.processor / count }
    }
}

/// Statistics of the times of many rounds.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Median of the wall-clock times.
    pub median: Duration,
    /// Minimum of the wall-clock times: the speed of an otherwise idle machine.
    pub best: Duration,
    /// Median of the CPU times, which exclude waiting for a CPU.
    pub processor: Duration,
}

impl Times {
    /// Summarises the times of at least one round.
    pub fn of(samples: &[Sample]) -> Times {
        let sorted = |get: fn(&Sample) -> Duration| {
            let mut times: Vec<Duration> = samples.iter().map(get).collect();
            times.sort_unstable();
            times
        };
        let (wall, processor) = (sorted(|s| s.wall), sorted(|s| s.processor));
        let middle = samples.len() / 2;
        Times { median: wall[middle], best: wall[0], processor: processor[middle] }
    }
}

/// Times one call, and dropping its result.
pub fn time<T>(f: impl FnOnce() -> T) -> Sample {
    let (wall, processor) = (Instant::now(), processor_time());
    drop(black_box(f()));
    Sample { processor: processor_time().saturating_sub(processor), wall: wall.elapsed() }
}

/// CPU time of this process so far; zero if the system has no such clock.
fn processor_time() -> Duration {
    #[cfg(unix)]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }
    #[cfg(not(unix))]
    Duration::ZERO
}

/// A table of comparisons: name, ours, theirs, and the ratios of the medians, of the best rounds
/// and of the median CPU times. Above 1 ours is faster. If the ratios differ much, the machine was
/// busy with something else.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
}

impl Table {
    /// Creates a table with these column headings.
    pub fn new(name: &str, ours: &str, theirs: &str) -> Table {
        Table { rows: vec![[name, ours, theirs, "ratio", "best", "cpu"].map(String::from)] }
    }

    /// Adds a row whose times are formatted by `show`.
    pub fn row(&mut self, name: &str, pair: PairedTimes, show: impl Fn(Duration) -> String) {
        let ratio = |of: fn(&Times) -> Duration| {
            let (ours, theirs) = (of(&pair.ours), of(&pair.theirs));
            if ours.is_zero() || theirs.is_zero() {
                "-".into()
            } else {
                format!("{:.2}", theirs.as_secs_f64() / ours.as_secs_f64())
            }
        };
        let (ours, theirs) = (show(pair.ours.median), show(pair.theirs.median));
        self.rows.push([name.into(), ours, theirs, ratio(|t| t.median), ratio(|t| t.best), ratio(|t| t.processor)]);
    }

    /// Adds a row of two times for the same number of packets, formatted as rates.
    pub fn rates(&mut self, name: &str, packets: usize, pair: PairedTimes) {
        self.row(name, pair, |time| format!("{:.1} Mpps", packets as f64 / time.as_secs_f64() / 1e6));
    }

    /// Prints the table.
    pub fn print(&self) {
        let width = |column: usize| self.rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
        println!();
        for [name, ours, theirs, ratio, best, cpu] in &self.rows {
            let (name_width, ours_width, theirs_width) = (width(0), width(1), width(2));
            print!("{name:<name_width$}  {ours:>ours_width$}  {theirs:>theirs_width$}  ");
            println!("{ratio:>5}  {best:>5}  {cpu:>5}");
        }
    }
}
