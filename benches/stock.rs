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
use std::num::NonZeroUsize;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use portcullis::stock::STATELESS_WGSL;
use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::{Batch, ResizeRoom};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::Cpu;
use portcullis_wgsl as wgsl;

use support::{Table, Times, Traffic, is_test_run, record_bar, time, time_in_turn};

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

fn compile(name: &str) -> Arc<Program> {
    let text = STATELESS_WGSL.iter().find(|(n, _)| *n == name).expect("a stock filter").1;
    let source = Source::new(format!("{name}.wgsl"), text);
    Arc::new(wgsl::compile(&source, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render())))
}

fn load(cpu: &Cpu, program: &Arc<Program>, threads: usize) -> Box<dyn Session> {
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
    cpu.load(program, &options).expect("the CPU loads every stock filter")
}

/// Filters a batch and returns it for the next round.
fn round(session: &mut dyn Session, batch: &mut Option<Batch>) {
    let done = session.run(batch.take().expect("the batch was completed")).expect("the CPU does not fail");
    black_box(&done.verdicts);
    *batch = Some(done.batch);
}

/// Asserts that both sides return the same verdicts.
fn agree(session: &mut dyn Session, batch: &mut Option<Batch>, (name, theirs): Case) {
    let done = session.run(batch.take().expect("the batch was completed")).expect("the CPU does not fail");
    let mut columns = Columns::default();
    theirs(&done.batch, &mut columns);
    for (i, ours) in done.verdicts.iter().enumerate() {
        let theirs = match columns.returns.get(i) {
            Some(&value) => value,
            None => u32::from(columns.actions[i]),
        };
        assert_eq!(ours.to_return(), theirs, "{name}: packet {i}: {:02x?}", done.batch.packet(i));
    }
    *batch = Some(done.batch);
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
            let mut batch = Some(support::batch(traffic, count, stride));
            for case in CASES {
                let (name, theirs) = case;
                let mut session = load(cpu, &compile(name), 1);
                agree(&mut *session, &mut batch, case);
                settle(&mut *session, &mut batch, count);
                // Both closures need the batch, one after the other.
                let batch = std::cell::RefCell::new(&mut batch);
                let mut columns = Columns::default();
                let pair = time_in_turn(
                    rounds,
                    || round(&mut *session, &mut batch.borrow_mut()),
                    || {
                        theirs(batch.borrow().as_ref().expect("the batch was completed"), &mut columns);
                        black_box(&columns.actions);
                        black_box(&columns.returns);
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
fn settle(session: &mut dyn Session, batch: &mut Option<Batch>, count: usize) {
    session.finish_background_work();
    (0..(1_usize << 18).div_ceil(count)).for_each(|_| round(session, batch));
}

/// Compares vector code with scalar code for every stock filter.
fn against_scalar(cpu: &Cpu, count: usize, rounds: usize) {
    let mut table = Table::new("one thread", "ours", "scalar");
    let other = Cpu::scalar_only();
    let (count, _, rounds) = layouts(count, rounds)[0];
    for traffic in [Traffic::Uniform, Traffic::Mixed, Traffic::Options] {
        let mut packed = Some(support::batch(traffic, count, support::LENGTH));
        let mut roomy = Some(support::batch_with(traffic, count, 320 + support::LENGTH, ResizeRoom::Both));
        for &(name, _) in STATELESS_WGSL {
            let program = compile(name);
            let batch = if program.facts().changes_length { &mut roomy } else { &mut packed };
            let (mut ours, mut theirs) = (load(cpu, &program, 1), load(&other, &program, 1));
            settle(&mut *ours, batch, count);
            settle(&mut *theirs, batch, count);
            let batch = std::cell::RefCell::new(batch);
            let pair = time_in_turn(
                rounds,
                || round(&mut *ours, &mut batch.borrow_mut()),
                || round(&mut *theirs, &mut batch.borrow_mut()),
            );
            table.rates(&format!("{name}, {}", traffic.name()), count, pair);
        }
    }
    table.print();
}

fn two_threads_against_one(cpu: &Cpu, count: usize, rounds: usize) {
    let mut table = Table::new("packed, mixed", "two threads", "one thread");
    let mut batch = Some(support::batch(Traffic::Mixed, count, support::LENGTH));
    for (name, _) in CASES {
        let program = compile(name);
        let (mut two, mut one) = (load(cpu, &program, 2), load(cpu, &program, 1));
        settle(&mut *two, &mut batch, count);
        settle(&mut *one, &mut batch, count);
        let batch = std::cell::RefCell::new(&mut batch);
        let pair = time_in_turn(
            rounds,
            || round(&mut *two, &mut batch.borrow_mut()),
            || round(&mut *one, &mut batch.borrow_mut()),
        );
        table.rates(name, count, pair);
    }
    // Scaling to two threads with a filter that does almost nothing.
    let batch = batch.as_ref().expect("the batch was completed");
    let mut actions = vec![0; count];
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
        let program = compile(name);
        let front: Vec<_> = (0..rounds).map(|_| time(|| drop(black_box(compile(name))))).collect();
        let native: Vec<_> = (0..rounds).map(|_| time(|| drop(black_box(load(cpu, &program, 1))))).collect();
        println!("{name:<16} {:>9.2?} {:>9.2?}", Times::of(&front).median, Times::of(&native).median);
    }
}

/// Repeats the rounds under criterion, which keeps a history and reports regressions.
fn record(cpu: &Cpu, criterion: &mut Criterion, count: usize) {
    let mut batch = Some(support::batch(Traffic::Mixed, count, support::LENGTH));
    for (name, theirs) in CASES {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(count as u64)).sample_size(10);
        let mut session = load(cpu, &compile(name), 1);
        settle(&mut *session, &mut batch, count);
        group.bench_function("generated", |b| b.iter(|| round(&mut *session, &mut batch)));
        let mut columns = Columns::default();
        let batch = batch.as_ref().expect("the batch was completed");
        group.bench_function("hand-written", |b| {
            b.iter(|| {
                theirs(black_box(batch), &mut columns);
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
