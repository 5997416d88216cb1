//! Compares generated CPU code with the same filters in hand-written safe Rust on one thread,
//! vector code with scalar code, and two threads with one; and measures compile times. `cargo bench
//! --bench stock`.
//!
//! Both sides of a row run in turn over the same packets in the same memory: 16,384 packets of 64
//! bytes, which fit the L2 cache, and 1 Mi packets, contiguous and in slots of 2,112 bytes as a
//! network card fills them. "Ours" is a whole round through a session, which builds new verdict
//! columns each time.

mod hand_written;
mod support;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use portcullis::stock::STATELESS_WGSL;
use portcullis_core::device::{Device, Session};
use portcullis_core::packet::{Batch, ResizeRoom};
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

use support::{ReusedBatch, Table, Traffic, is_test_run, record_bar, stock, time_alone, time_in_turn};

/// A filter's name, and its hand-written counterpart for a batch.
type Case = (&'static str, fn(&Batch, &mut Columns));

const CASES: [Case; 4] = [
    ("simple_filter", |batch, out| out.actions(batch, hand_written::simple_filter)),
    ("port_filter", |batch, out| out.actions(batch, hand_written::port_filter)),
    ("http_only", |batch, out| out.actions(batch, hand_written::http_only)),
    ("hash_lb", |batch, out| out.returns(batch, hand_written::hash_lb)),
];

/// Output of the hand-written side: one column, reused between rounds.
#[derive(Default)]
struct Columns {
    actions: Vec<u8>,
    returns: Vec<u32>,
}

impl Columns {
    #[inline(always)]
    fn actions(&mut self, batch: &Batch, filter: impl Fn(&[u8]) -> u8) {
        self.actions.resize(batch.len(), 0);
        for (action, packet) in self.actions.iter_mut().zip(batch.packets()) {
            *action = filter(packet);
        }
    }

    #[inline(always)]
    fn returns(&mut self, batch: &Batch, filter: impl Fn(&[u8]) -> u32) {
        self.returns.resize(batch.len(), 0);
        for (value, packet) in self.returns.iter_mut().zip(batch.packets()) {
            *value = filter(packet);
        }
    }
}

fn load(cpu: &Cpu, program: &Arc<Program>, threads: usize) -> Box<dyn Session> {
    cpu.load(program, &support::threads(threads)).expect("the CPU loads every stock filter")
}

/// Asserts that both sides return the same verdicts.
fn agree(session: &mut dyn Session, batch: &ReusedBatch, (name, theirs): Case) {
    let verdicts = batch.run(session);
    let mut columns = Columns::default();
    theirs(&batch.get(), &mut columns);
    for (i, ours) in verdicts.iter().enumerate() {
        let theirs = match columns.returns.get(i) {
            Some(&value) => value,
            None => u32::from(columns.actions[i]),
        };
        assert_eq!(ours.to_return(), theirs, "{name}: packet {i}: {:02x?}", batch.get().packet(i));
    }
}

/// Texts and minimum ratios of the targets in docs/performance.md: one for each of [`layouts`].
const WHAT: &str = "CPU, one thread, stock stateless filters";
const AGAINST: &str = "the same filter in hand-written safe Rust, same run";
const COMMAND: &str = "cargo bench --bench stock";
const BARS: [(&str, f64); 3] = [("in a cache", 1.8), ("out of caches", 1.0), ("in slots of 2,112 bytes", 2.0)];

/// Returns number of packets, their stride in bytes, and number of rounds: in cache, out of cache,
/// and in slots.
fn layouts(count: usize, rounds: usize) -> [(usize, usize, usize); 3] {
    let few = count.min(1 << 14);
    [(few, support::LENGTH, 8 * rounds), (count, support::LENGTH, rounds), (count, 2112, rounds)]
}

fn against_hand_written(cpu: &Cpu, count: usize, rounds: usize) {
    let mut table = Table::new("one thread", "ours", "hand-written");
    let mut all = Vec::new();
    for ((count, stride, rounds), (layout, least)) in layouts(count, rounds).into_iter().zip(BARS) {
        let mut ratios = Vec::new();
        for traffic in [Traffic::Uniform, Traffic::Mixed, Traffic::Options] {
            let batch = ReusedBatch::new(support::batch(traffic, count, stride));
            for case in CASES {
                let (name, theirs) = case;
                let mut session = load(cpu, &stock(name), 1);
                agree(&mut *session, &batch, case);
                settle(&mut *session, &batch, count);
                let mut columns = Columns::default();
                let pair = time_in_turn(
                    rounds,
                    || batch.run(&mut *session),
                    || {
                        theirs(&batch.get(), &mut columns);
                        black_box((&columns.actions, &columns.returns));
                    },
                );
                let label = format!("{name}, {}, {count} packets, one every {stride} B", traffic.name());
                table.rates(&label, count, pair);
                ratios.push((label, pair.ratio()));
            }
        }
        record_bar(&format!("{WHAT}, {layout}"), AGAINST, least, COMMAND, &ratios);
        all.append(&mut ratios);
    }
    record_bar(WHAT, AGAINST, 1.0, COMMAND, &all);
    table.print();
}

/// Waits until background compilation has finished and the session has tried each code variant.
fn settle(session: &mut dyn Session, batch: &ReusedBatch, count: usize) {
    session.finish_background_work();
    (0..(1_usize << 18).div_ceil(count)).for_each(|_| drop(batch.run(session)));
}

/// Compares vector code with scalar code for every stock filter.
fn against_scalar(cpu: &Cpu, count: usize, rounds: usize) {
    let mut table = Table::new("one thread", "ours", "scalar");
    let other = Cpu::scalar_only();
    let (count, _, rounds) = layouts(count, rounds)[0];
    for traffic in [Traffic::Uniform, Traffic::Mixed, Traffic::Options] {
        let packed = ReusedBatch::new(support::batch(traffic, count, support::LENGTH));
        let roomy = ReusedBatch::new(support::batch_with(traffic, count, 320 + support::LENGTH, ResizeRoom::Both));
        for &(name, _) in STATELESS_WGSL {
            let program = stock(name);
            let batch = if program.facts().changes_length { &roomy } else { &packed };
            let (mut ours, mut theirs) = (load(cpu, &program, 1), load(&other, &program, 1));
            settle(&mut *ours, batch, count);
            settle(&mut *theirs, batch, count);
            let pair = time_in_turn(rounds, || batch.run(&mut *ours), || batch.run(&mut *theirs));
            table.rates(&format!("{name}, {}", traffic.name()), count, pair);
        }
    }
    table.print();
}

fn two_threads_against_one(cpu: &Cpu, count: usize, rounds: usize) {
    let mut table = Table::new("packed, mixed", "two threads", "one thread");
    let batch = ReusedBatch::new(support::batch(Traffic::Mixed, count, support::LENGTH));
    for (name, _) in CASES {
        let program = stock(name);
        let (mut two, mut one) = (load(cpu, &program, 2), load(cpu, &program, 1));
        settle(&mut *two, &batch, count);
        settle(&mut *one, &batch, count);
        let pair = time_in_turn(rounds, || batch.run(&mut *two), || batch.run(&mut *one));
        table.rates(name, count, pair);
    }
    // Scaling to two threads with a filter that does almost nothing.
    let (batch, mut actions) = (&*batch.get(), vec![0; count]);
    let by_hand = |actions: &mut [u8], packets: std::ops::Range<usize>| {
        for (action, index) in actions.iter_mut().zip(packets) {
            *action = hand_written::simple_filter(batch.packet(index));
        }
        black_box(actions);
    };
    let mut halves = actions.clone();
    let pair = time_in_turn(
        rounds,
        || {
            let (first, second) = halves.split_at_mut(count / 2);
            std::thread::scope(|scope| {
                scope.spawn(|| by_hand(second, count / 2..count));
                by_hand(first, 0..count / 2);
            });
        },
        || by_hand(&mut actions, 0..count),
    );
    table.rates("simple_filter, hand-written", count, pair);
    table.print();
}

fn compile_times(cpu: &Cpu, rounds: usize) {
    println!("\nfilter to native code, median of {rounds} (front end, then generated code)");
    for &(name, _) in STATELESS_WGSL {
        let program = stock(name);
        let front = time_alone(rounds, || stock(name)).median;
        let native = time_alone(rounds, || load(cpu, &program, 1)).median;
        println!("{name:<16} {front:>9.2?} {native:>9.2?}");
    }
}

/// Repeats the rounds under criterion, which keeps a history and reports regressions.
fn record(cpu: &Cpu, criterion: &mut Criterion, count: usize) {
    let batch = ReusedBatch::new(support::batch(Traffic::Mixed, count, support::LENGTH));
    for (name, theirs) in CASES {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(count as u64)).sample_size(10);
        let mut session = load(cpu, &stock(name), 1);
        settle(&mut *session, &batch, count);
        group.bench_function("generated", |b| b.iter(|| drop(batch.run(&mut *session))));
        let mut columns = Columns::default();
        let batch = batch.get();
        group.bench_function("hand-written", |b| {
            b.iter(|| {
                theirs(black_box(&batch), &mut columns);
                black_box((&columns.actions, &columns.returns));
            });
        });
        group.finish();
    }
}

fn main() {
    support::restore_sigpipe();
    let cpu = Cpu::new();
    let (count, rounds) = if is_test_run() { (1 << 10, 1) } else { (1 << 20, 31) };
    against_hand_written(&cpu, count, rounds);
    against_scalar(&cpu, count, rounds);
    two_threads_against_one(&cpu, count, rounds);
    compile_times(&cpu, rounds);
    let mut criterion = Criterion::default().configure_from_args();
    record(&cpu, &mut criterion, count);
    criterion.final_summary();
}
