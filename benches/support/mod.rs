//! Shared by the benches: packets to filter, timing of two sides in turn, and result tables.

#![allow(dead_code, reason = "each bench uses its part")]

pub mod allocations;
pub mod device;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod routes;

use std::time::{Duration, Instant};

use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, RESIZE_ROOM, ResizeRoom};

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
    let before = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
    let mut arena = Arena::new(count * stride).expect("memory for the packets");
    let mut random = Random::new();
    let mut descriptors = Vec::with_capacity(count);
    for (index, slot) in arena.chunks_exact_mut(stride).enumerate() {
        write_packet(&mut slot[before..][..LENGTH], traffic, &mut random);
        descriptors.push(Descriptor { offset: (index * stride + before) as u32, length: LENGTH as u32 });
    }
    BatchCutter::new(arena, None).cut_batch(descriptors, Vec::new(), room).expect("slots do not overlap")
}

/// Xorshift pseudorandom numbers (Marsaglia, 2003): the same packets in every run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from the seed that all benches share.
    pub fn new() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the next 32 bits.
    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// Returns a number from 0 to 99.
    pub fn percent(&mut self) -> u32 {
        self.next() % 100
    }
}

fn write_packet(packet: &mut [u8], traffic: Traffic, random: &mut Random) {
    packet[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    let mixed = traffic == Traffic::Mixed;
    let kind = if mixed { random.percent() } else { 0 };
    let protocol = match if mixed { random.percent() } else { 0 } {
        0..70 => 6,
        70..96 => 17,
        _ => 1,
    };
    let port: u16 = match if mixed { random.percent() } else { 0 } {
        0..20 => 80,
        20..50 => 443,
        50..55 => 22,
        55..65 => 53,
        _ => 1024 + (random.next() % 60_000) as u16,
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
        Traffic::Mixed => 2 * usize::from(random.percent() < 2),
        Traffic::Options => 2 * usize::from(random.percent() < 10),
    };
    packet[ip] = 0x45 + options as u8;
    if mixed && random.percent() < 1 {
        packet[ip + 7] = 185;
    }
    packet[ip + 8] = 64;
    packet[ip + 9] = protocol;
    packet[ip + 12..ip + 14].copy_from_slice(&[192, 168]);
    packet[ip + 14..ip + 16].copy_from_slice(&(random.next() as u16).to_be_bytes());
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
    packet[28..30].copy_from_slice(&(random.next() as u16).to_be_bytes());
    packet[30..34].copy_from_slice(&[8, 8, 8, 8]);
    write_ports(&mut packet[34..], port, random);
}

fn write_ipv6(packet: &mut [u8], protocol: u8, port: u16, random: &mut Random) {
    packet[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    packet[20] = protocol;
    packet[29] = random.next() as u8;
    write_ports(&mut packet[54..], port, random);
}

fn write_ports(transport: &mut [u8], port: u16, random: &mut Random) {
    transport[..2].copy_from_slice(&(1024 + (random.next() % 60_000) as u16).to_be_bytes());
    transport[2..4].copy_from_slice(&port.to_be_bytes());
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
pub fn time_in_turn(rounds: usize, ours: impl FnMut(), theirs: impl FnMut()) -> PairedTimes {
    time_in_turn_prepared(rounds, || (), ours, theirs)
}

/// Variant of [`time_in_turn`] with untimed preparation before each side's turn.
pub fn time_in_turn_prepared(
    rounds: usize,
    mut prepare: impl FnMut(),
    mut ours: impl FnMut(),
    mut theirs: impl FnMut(),
) -> PairedTimes {
    let mut samples = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for round in 0..=rounds {
        prepare();
        let first = time(&mut ours);
        prepare();
        let second = time(&mut theirs);
        if round > 0 {
            samples.0.push(first);
            samples.1.push(second);
        }
    }
    PairedTimes { ours: Times::of(&samples.0), theirs: Times::of(&samples.1) }
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

/// Times one call.
pub fn time(f: impl FnOnce()) -> Sample {
    let (wall, processor) = (Instant::now(), processor_time());
    f();
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
