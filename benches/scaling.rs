//! Measures the CPU's threads: `cargo bench --bench scaling`. Names of stateful filters, `small`
//! and `hand-over` select what to measure.
//!
//! Two threads against one for filters with state, and for small batches of filters without; what
//! many threads would do to each other's cache lines, counted in the reference interpreter; and how
//! long a worker takes to begin a task.
//!
//! Packets of 64 bytes belong to 60,000 clients, evenly, by Zipf's law with exponent 1.1, or half
//! of them to a single one. Both sides run in turn over the same packets, each with a session of
//! its own whose maps have all clients. The calling thread is one of the threads.

mod support;

// The CPU backend's own modules, which it does not export.
#[allow(dead_code, reason = "the bench uses some of it")]
#[path = "../backends/cpu/src/session/queue.rs"]
mod queue;
#[allow(dead_code, unused_imports, reason = "the bench uses some of it")]
#[path = "../backends/cpu/src/session/sync.rs"]
mod sync;
#[allow(dead_code, reason = "the bench uses some of it")]
#[path = "../backends/cpu/src/session/workers.rs"]
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis::packet_io::synth::Random;
use portcullis::stock::wgsl;
use portcullis_core::device::{DEFAULT_IDLE_SPIN, Device, Session};
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

use support::contention::{self, Contention, Schedule};
use support::{
    ACK, LENGTH, ReusedBatch, SYN, Table, Traffic, compile, fill_map, is_test_run, record_bar, stock, threads,
    time_in_turn, write_segment, written_batch,
};
use workers::{Task, Workers};

const CLIENTS: u32 = 60_000;

/// The stock filters, and the TCP flags of the packets to measure with.
const FILTERS: [(&str, u8); 5] =
    [("flow_stats", ACK), ("conntrack_fw", ACK), ("syn_flood", SYN), ("policer", ACK), ("token_bucket", ACK)];

/// How packets are distributed among clients, and the least ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Even,
    Zipf,
    HalfOfOne,
}

impl Distribution {
    const ALL: [(Distribution, &str, f64); 3] = [
        (Distribution::Even, "even", 1.7),
        (Distribution::Zipf, "Zipf 1.1", 1.7),
        (Distribution::HalfOfOne, "half of one", 1.3),
    ];

    /// Clients of `count` packets in random order.
    fn clients(self, count: usize) -> Vec<u32> {
        let mut random = Random::new(0, 0);
        // Cumulative weights.
        let mut sum = 0.0;
        let weights: Vec<f64> = (1..=CLIENTS)
            .map(|rank| {
                sum += if self == Distribution::Zipf { f64::from(rank).powf(-1.1) } else { 1.0 };
                sum
            })
            .collect();
        let client = |_| {
            if self == Distribution::HalfOfOne && random.one_in(2) {
                return 0;
            }
            let at = f64::from(random.u32()) / f64::from(u32::MAX) * sum;
            weights.partition_point(|weight| *weight < at).min(CLIENTS as usize - 1) as u32
        };
        (0..count).map(client).collect()
    }
}

/// A session that has seen every client, with profiles and limits for all where the filter has any.
fn session(name: &str, program: &Arc<Program>, count: usize) -> Box<dyn Session> {
    let mut session = Cpu::new().load(program, &threads(count)).expect("the CPU loads every stock filter");
    let default_limits: Option<&[u32]> = match name {
        "policer" => Some(&[1_000_000, 100_000, 2_000_000, 200_000]),
        "token_bucket" => Some(&[1_000_000, 1_000_000]),
        _ => None,
    };
    if let Some(value) = default_limits {
        fill_map(&mut *session, program, 0, [([0; 4], value)]);
    }
    // Only connections need an answer.
    let opening = [(true, SYN), (false, SYN | ACK)];
    for (from_client, flags) in opening.into_iter().take(if name == "conntrack_fw" { 2 } else { 1 }) {
        let write_opening = |index: usize, slot: &mut [u8]| write_segment(slot, index as u32, from_client, flags);
        session.run(written_batch(CLIENTS as usize, write_opening)).expect("the CPU does not fail");
    }
    session
}

fn batch(clients: &[u32], flags: u8) -> Batch {
    written_batch(clients.len(), |index, slot| write_segment(slot, clients[index], true, flags))
}

/// The flow numbers of packets, which `flows` redirects to them.
fn flow_numbers(flows: Program, batch: Batch) -> Vec<u32> {
    let mut session = Cpu::new().load(&Arc::new(flows), &threads(1)).expect("the CPU loads every stock filter");
    let verdicts = session.run(batch).expect("the CPU does not fail").verdicts;
    let number = |verdict| if let Verdict::Redirect(number) = verdict { number } else { 0 };
    verdicts.iter().map(number).collect()
}

/// Counts what 16 and 64 workers would do to each other's cache lines, in maps that know all
/// clients.
fn count_contention(selected: &[(&str, u8)]) {
    let packets = if is_test_run() { 64 } else { 1 << 13 };
    println!("\ncontention, {packets} packets, half of one client: failed exchanges, shared of written cache lines");
    for &(name, flags) in selected {
        let program = compile(name, wgsl(name).expect("a stock filter"));
        let mut session = session(name, &program, 1);
        let batch = batch(&Distribution::HalfOfOne.clients(packets), flags);
        let packets: Vec<Vec<u8>> = batch.packets().map(<[u8]>::to_vec).collect();
        let flow_numbers = program.flow_program().map_or_else(Vec::new, |flows| flow_numbers(flows, batch));
        let maps: Vec<Vec<u32>> =
            (0..program.maps().len()).map(|map| session.map_words(map).expect("the CPU does not fail")).collect();
        for workers in [16, 64] {
            for schedule in [Schedule::ByPosition, Schedule::Partitioned] {
                let found = contention::count(&program, &packets, &flow_numbers, maps.clone(), workers, schedule);
                let Contention { failed_exchanges, shared_lines, written_lines } = found;
                println!(
                    "  {name}, {workers} workers, {schedule:?}: {failed_exchanges}, {shared_lines} of {written_lines}"
                );
            }
        }
    }
}

/// A task that says when it began.
struct HandOverProbe {
    created: Instant,
    /// Nanoseconds from creation to beginning.
    nanos: AtomicU64,
    has_begun: AtomicBool,
}

impl Task for HandOverProbe {
    fn participate(self: Arc<HandOverProbe>) {
        self.nanos.store(self.created.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.has_begun.store(true, Ordering::Release);
    }
}

/// Prints how long a worker takes to begin a task, awake and asleep.
fn measure_hand_over() {
    let workers = Workers::new(Some(1), DEFAULT_IDLE_SPIN).expect("a thread");
    let hand_over = |pause: Duration, rounds: usize| {
        let one = |_| {
            // The worker goes on looking, or goes to sleep.
            let begin = Instant::now();
            while begin.elapsed() < pause {
                std::hint::spin_loop();
            }
            let task = Arc::new(HandOverProbe {
                created: Instant::now(),
                nanos: AtomicU64::new(0),
                has_begun: AtomicBool::new(false),
            });
            let shared: Arc<dyn Task> = task.clone();
            workers.request(&shared, 1);
            while !task.has_begun.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            task.nanos.load(Ordering::Relaxed)
        };
        let mut nanos: Vec<u64> = (0..=rounds).map(one).collect();
        // The first one wakes the worker.
        nanos.remove(0);
        nanos.sort_unstable();
        [nanos[nanos.len() / 2], nanos[nanos.len() * 99 / 100]].map(|nanos| nanos as f64 / 1000.0)
    };
    let rounds = if is_test_run() { 10 } else { 5000 };
    let [median, high] = hand_over(DEFAULT_IDLE_SPIN / 5, rounds);
    println!("\nhand-over to a worker that is awake: {median:.1} µs median, {high:.1} µs in 1 of 100");
    record_bar(
        "CPU, hand-over of a batch to a worker that is awake",
        "3 µs",
        1.0,
        "cargo bench --bench scaling",
        &[(format!("{median:.1} µs"), 3.0 / median)],
    );
    println!("  {} (at most 3 µs)", if median <= 3.0 { "met" } else { "missed" });
    let [median, high] = hand_over(10 * DEFAULT_IDLE_SPIN, rounds / 10);
    println!("hand-over to a worker that sleeps: {median:.1} µs median, {high:.1} µs in 1 of 100");
}

/// Packets in small batches that each side filters in a turn.
const PACKETS_PER_TURN: usize = 1 << 22;

/// Filters without state on small batches, whose threads must be at hand.
fn measure_small_batches() {
    let sizes: &[usize] = if is_test_run() { &[64] } else { &[1 << 10, 1 << 12, 1 << 14, 1 << 16] };
    let mut table = Table::new("filters without state", "2 threads", "1 thread");
    let mut ratios = Vec::new();
    for name in ["http_only", "port_filter", "complex_filter", "hash_lb"] {
        let program = stock(name);
        let [mut two, mut one] = [2, 1].map(|count| {
            let mut session = Cpu::new().load(&program, &threads(count)).expect("the CPU loads every stock filter");
            session.finish_background_work();
            session
        });
        for &packets in sizes {
            let batch = ReusedBatch::new(support::batch(Traffic::Uniform, packets, LENGTH));
            // A stream of batches in each turn: threads are woken for many, not for one.
            let (rounds, batches) = if is_test_run() { (1, 1) } else { (21, PACKETS_PER_TURN / packets) };
            let stream = |session: &mut dyn Session| (0..batches).for_each(|_| drop(batch.run(session)));
            let pair = time_in_turn(rounds, || stream(&mut *two), || stream(&mut *one));
            let label = format!("{name}, {packets} packets");
            table.rates(&label, packets * batches, pair);
            if packets == 1 << 14 {
                ratios.push((label, pair.ratio()));
            }
        }
    }
    table.print();
    let what = "CPU, two threads, filters without state, batches of 16,384";
    record_bar(what, "one thread, same run", 1.7, "cargo bench --bench scaling", &ratios);
    print_bar(what, 1.7, &ratios);
}

fn print_bar(what: &str, least: f64, ratios: &[(String, f64)]) {
    let met = ratios.iter().filter(|(_, ratio)| *ratio >= least).count();
    println!("{what}: {met} of {} reach {least}", ratios.len());
}

fn main() {
    support::restore_sigpipe();
    let selected: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |name: &str| selected.is_empty() || selected.iter().any(|selected| selected == name);
    let (sizes, rounds): (&[usize], _) = if is_test_run() { (&[1000], 1) } else { (&[1 << 14, 1 << 16, 1 << 20], 21) };
    let mut table = Table::new("filters with state", "2 threads", "1 thread");
    for (distribution, distributed, least) in Distribution::ALL {
        let mut ratios = Vec::new();
        for (name, flags) in FILTERS.into_iter().filter(|(name, _)| is_selected(name)) {
            let program = compile(name, wgsl(name).expect("a stock filter"));
            let [mut two, mut one] = [2, 1].map(|count| session(name, &program, count));
            for &packets in sizes {
                let batch = ReusedBatch::new(batch(&distribution.clients(packets), flags));
                let rounds = rounds * ((1 << 18) / packets).clamp(1, 8);
                let pair = time_in_turn(rounds, || batch.run(&mut *two), || batch.run(&mut *one));
                let label = format!("{name}, {distributed}, {packets} packets");
                table.rates(&label, packets, pair);
                ratios.push((label, pair.ratio()));
            }
        }
        let what = format!("CPU, two threads, filters with state, packets {distributed}");
        record_bar(&what, "one thread, same run", least, "cargo bench --bench scaling", &ratios);
        print_bar(&what, least, &ratios);
    }
    table.print();
    let counted: Vec<_> = FILTERS.into_iter().filter(|(name, _)| is_selected(name)).collect();
    if !counted.is_empty() {
        count_contention(&counted);
    }
    if is_selected("small") {
        measure_small_batches();
    }
    if is_selected("hand-over") {
        measure_hand_over();
    }
}
