//! Microbenchmarks of components: compiling, reading captures, host access to maps, executing
//! verdicts, and their memory allocations. `cargo bench --bench parts`; names after `--` select
//! components.
//!
//! Times are kept by criterion in `target/criterion`, which reports changes since the last run.
//! Numbers of allocations do not depend on the machine.

mod support;

use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use portcullis::packet_io::synth::Random;
use portcullis::pipeline::Outputs;
use portcullis::stock::STATELESS_WGSL;
use portcullis_core::device::{Completion, Device, MapHandle, StageTimes};
use portcullis_core::packet::{Batch, Verdicts};
use portcullis_cpu::Cpu;
use portcullis_io::{Sink, Source, SourceOptions, Written, capture};

use support::allocations::{CountingAllocator, count_allocations};
use support::{ReusedBatch, Traffic, compile, is_test_run, stock, threads};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocations of each component: name, operations per round, number of allocations and bytes.
struct AllocationTable {
    rows: Vec<(String, u64, u64, u64)>,
}

impl AllocationTable {
    /// Counts the allocations of one round of `operations`.
    fn record(&mut self, name: impl Into<String>, operations: usize, work: impl FnMut()) {
        let (times, bytes) = count_allocations(work);
        self.rows.push((name.into(), operations as u64, times, bytes));
    }

    fn print(&self) {
        println!("\n{:<40} {:>10} {:>12} {:>14}", "allocations per round", "operations", "count", "bytes");
        for (name, of, times, bytes) in &self.rows {
            println!("{name:<40} {of:>10} {times:>12} {bytes:>14}");
        }
    }
}

/// From a filter's source to a program, and from that to native code.
fn compiling(criterion: &mut Criterion, allocations: &mut AllocationTable) {
    let mut group = criterion.benchmark_group("compile");
    for &(name, text) in STATELESS_WGSL {
        group.bench_function(BenchmarkId::new("program", name), |b| b.iter(|| black_box(compile(name, text))));
        let program = compile(name, text);
        let load = || drop(black_box(Cpu::new().load(&program, &threads(1)).expect("the CPU loads the filter")));
        group.bench_function(BenchmarkId::new("native code", name), |b| b.iter(load));
        allocations.record(format!("native code, {name}"), 1, load);
    }
    group.finish();
}

/// A capture in memory with packets of 64 bytes.
fn in_memory(pcapng: bool, count: usize) -> Vec<u8> {
    let batch = support::batch(Traffic::Mixed, count, support::LENGTH);
    let mut out = Vec::new();
    let words =
        |out: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    let length = support::LENGTH as u32;
    if pcapng {
        // Section header (draft-ietf-opsawg-pcapng, 4.1), interface (4.2), enhanced packets (4.3).
        words(&mut out, &[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 1, 0, 20]);
    } else {
        words(&mut out, &[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1]);
    }
    for (index, packet) in batch.packets().enumerate() {
        if pcapng {
            words(&mut out, &[6, 32 + length, 0, 0, index as u32, length, length]);
        } else {
            words(&mut out, &[1_700_000_000, index as u32 % 1_000_000, length, length]);
        }
        out.extend_from_slice(packet);
        if pcapng {
            words(&mut out, &[32 + length]);
        }
    }
    out
}

fn reading(criterion: &mut Criterion, allocations: &mut AllocationTable, count: usize) {
    let mut group = criterion.benchmark_group("read");
    group.throughput(Throughput::Elements(count as u64)).sample_size(20);
    for (name, pcapng) in [("pcap", false), ("pcapng", true)] {
        let bytes: Arc<[u8]> = in_memory(pcapng, count).into();
        let read = || {
            let reader = Box::new(Cursor::new(bytes.clone()));
            let size = Some(bytes.len() as u64);
            let mut source = capture::read(name, size, reader, &SourceOptions::default()).expect("a capture");
            let mut packets = 0;
            while let Some(batch) = source.next_batch().expect("the capture is complete") {
                packets += batch.len();
            }
            assert_eq!(packets, count);
        };
        group.bench_function(name, |b| b.iter(read));
        allocations.record(format!("read {name}, packets"), count, read);
    }
    group.finish();
}

/// Host access to maps, by key and as a whole.
fn maps(criterion: &mut Criterion, allocations: &mut AllocationTable, keys: u32) {
    let text = format!(
        "//! map table: hash key=1 value=2 entries={}\n\
         fn xdp_filter(pkt: u32) -> u32 {{ return table_find(pkt_len(pkt)) & 1u; }}",
        2 * keys
    );
    let program = compile("maps", text);
    let mut session = Cpu::new().load(&program, &threads(1)).expect("the CPU loads the filter");
    let table = MapHandle::<u32, u64>::open(&program, "table").expect("the filter declares the map with these types");
    table
        .update(&mut *session, |rows| (0..keys).try_for_each(|key| rows.set(&key, &u64::from(key))))
        .expect("the map has capacity");
    let mut group = criterion.benchmark_group("map");
    let mut next = 0;
    let mut key = move || {
        next = (next + 7919) % keys;
        next
    };
    group.bench_function("get", |b| {
        b.iter(|| assert!(table.get(&mut *session, &key()).expect("the CPU does not fail").is_some()));
    });
    group.bench_function("set", |b| b.iter(|| table.set(&mut *session, &key(), &5).expect("the map has capacity")));
    group.throughput(Throughput::Elements(keys.into()));
    group.bench_function("snapshot", |b| {
        b.iter(|| black_box(table.snapshot(&mut *session).expect("the CPU does not fail").iter().count()));
    });
    group.finish();
    allocations.record("map get", 1, || {
        black_box(table.get(&mut *session, &17).expect("the CPU does not fail"));
    });
    allocations.record("map set", 1, || table.set(&mut *session, &17, &6).expect("the map has capacity"));
}

/// A sink that reads the first byte of each packet and keeps nothing.
struct NullSink;

impl Sink for NullSink {
    fn write(&mut self, batch: &Batch, indices: &[u32]) -> Result<(), portcullis_io::SinkError> {
        let sum: u32 = indices.iter().map(|&index| u32::from(batch.packet(index as usize)[0])).sum();
        black_box(sum);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Written, portcullis_io::SinkError> {
        Ok(Written::default())
    }
}

/// Selecting packets by verdict, and writing them to sinks.
fn verdicts(criterion: &mut Criterion, allocations: &mut AllocationTable, count: usize) {
    let mut group = criterion.benchmark_group("verdicts");
    group.throughput(Throughput::Elements(count as u64)).sample_size(20);
    // In unpredictable order: half of the packets pass, a quarter is sent back, a quarter dropped.
    let mut random = Random::new(0, 0);
    let returns: Vec<u32> = (0..count).map(|_| random.pick(&[1, 2, 2, 3])).collect();
    let batch = support::batch(Traffic::Mixed, count, support::LENGTH);
    let done = Completion { batch, verdicts: Verdicts::from_returns(&returns, false), times: StageTimes::default() };
    let mut outputs = Outputs::new(Some(Box::new(NullSink)), Some(Box::new(NullSink)), None);
    let mut take = || outputs.write(&done).expect("the sinks accept all packets");
    group.bench_function("to two sinks", |b| b.iter(&mut take));
    allocations.record("verdicts to two sinks, packets", count, &mut take);
    let mut counts = || {
        black_box(done.verdicts.counts());
    };
    group.bench_function("counted", |b| b.iter(&mut counts));
    allocations.record("verdicts counted, packets", count, &mut counts);
    let mut session = Cpu::new().load(&stock("http_only"), &threads(1)).expect("the CPU loads the filter");
    let batch = ReusedBatch::new(support::batch(Traffic::Mixed, count, support::LENGTH));
    let mut filter = || drop(batch.run(&mut *session));
    group.bench_function("made by http_only", |b| b.iter(&mut filter));
    allocations.record("verdicts made by http_only, packets", count, &mut filter);
    group.finish();
}

fn main() {
    support::restore_sigpipe();
    let (packets, keys) = if is_test_run() { (1 << 10, 100) } else { (1 << 18, 65_536) };
    let mut criterion = Criterion::default().configure_from_args();
    let mut allocations = AllocationTable { rows: Vec::new() };
    compiling(&mut criterion, &mut allocations);
    reading(&mut criterion, &mut allocations, packets);
    maps(&mut criterion, &mut allocations, keys);
    verdicts(&mut criterion, &mut allocations, packets);
    allocations.print();
    criterion.final_summary();
}
