//! Compares maps on the CPU with Rust hash tables: `cargo bench --bench maps`.
//!
//! Keys are pairs of addresses, and a million packets of 64 bytes have keys in random order. `find`
//! looks them up in a full table that has all of them, `find strangers` one that has none. `count`
//! counts the packets of each key, with an atomic addition on our side, and inserts new keys in the
//! untimed first round: otherwise page faults of a new table would dominate. The other side is the
//! standard library's map (hashbrown) with a hash of one multiplication per word. Both sides of a
//! row run in turn over the same packets.

mod support;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::diagnostics::Source;
use portcullis_core::map::Table as MapTable;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, ResizeRoom};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::Cpu;
use portcullis_wgsl as wgsl;

use support::{LENGTH, Random, Table, is_test_run, time_in_turn};

/// What the filter does with the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Find,
    FindStrangers,
    Count,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Find => "find",
            Work::FindStrangers => "find strangers",
            Work::Count => "count",
        }
    }

    fn filter(self) -> &'static str {
        match self {
            Work::Find | Work::FindStrangers => {
                "fn xdp_filter(pkt: u32) -> u32 {
                    if pkt_len(pkt) < 34u { return XDP_DROP; }
                    let flow = flows_find(vec2<u32>(load_le32(pkt, 26u), load_le32(pkt, 30u)));
                    if flow == MAP_NONE { return XDP_DROP; }
                    return 1u + (flows_read(flow, 0u) & 1u);
                }"
            }
            Work::Count => {
                "fn xdp_filter(pkt: u32) -> u32 {
                    if pkt_len(pkt) < 34u { return XDP_DROP; }
                    let flow = flows_insert(vec2<u32>(load_le32(pkt, 26u), load_le32(pkt, 30u)));
                    if flow == MAP_FULL { return XDP_DROP; }
                    return 1u + (flows_add(flow, 0u, 1u) & 1u);
                }"
            }
        }
    }
}

/// A hasher with one multiplication per word, like the fastest ones in Rust.
#[derive(Default)]
struct MultiplicativeHasher(u64);

impl Hasher for MultiplicativeHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words")
    }

    fn write_u32(&mut self, word: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

type RustMap = HashMap<(u32, u32), [u32; 2], BuildHasherDefault<MultiplicativeHasher>>;

fn program(work: Work, keys: u32) -> Arc<Program> {
    let text = format!("//! map flows: hash key=2 value=2 entries={keys}\n{}", work.filter());
    let program = wgsl::compile(&Source::new("flows.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())))
}

fn key(number: u32) -> [u32; 2] {
    let mixed = number.wrapping_mul(0x9e37_79b1);
    [mixed ^ mixed >> 15, number.wrapping_mul(0x85eb_ca77).rotate_left(9)]
}

fn batch(work: Work, packets: usize, keys: u32) -> Batch {
    let mut arena = Arena::new(packets * LENGTH).expect("memory for the packets");
    let mut random = Random::new();
    for slot in arena.chunks_exact_mut(LENGTH) {
        // Strangers are keys that are not in the table.
        let first = if work == Work::FindStrangers { keys } else { 0 };
        let key = key(first + random.next() % keys);
        slot[26..30].copy_from_slice(&key[0].to_le_bytes());
        slot[30..34].copy_from_slice(&key[1].to_le_bytes());
    }
    let descriptors = (0..packets).map(|i| Descriptor { offset: (i * LENGTH) as u32, length: LENGTH as u32 });
    BatchCutter::new(arena, None)
        .cut_batch(descriptors.collect(), Vec::new(), ResizeRoom::None)
        .expect("slots do not overlap")
}

fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}

fn theirs(work: Work, rival: &mut RustMap, batch: &Batch, out: &mut Vec<u8>) {
    out.clear();
    match work {
        Work::Find | Work::FindStrangers => out.extend(batch.packets().map(|packet| {
            if packet.len() < 34 {
                return 1;
            }
            rival.get(&(word(packet, 26), word(packet, 30))).map_or(1, |value| 1 + (value[0] & 1) as u8)
        })),
        Work::Count => out.extend(batch.packets().map(|packet| {
            if packet.len() < 34 {
                return 1;
            }
            let value = rival.entry((word(packet, 26), word(packet, 30))).or_insert([0, 0]);
            value[0] += 1;
            1 + ((value[0] - 1) & 1) as u8
        })),
    }
}

fn session(program: &Arc<Program>, keys: &[u32], threads: usize) -> Box<dyn Session> {
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
    let mut session = Cpu::new().load(program, &options).expect("the CPU loads the filter");
    let mut table = MapTable::new(&program.maps()[0], Vec::new());
    for &number in keys {
        table.set(&key(number), &[number, 0]).expect("the map has capacity");
    }
    let (at, words) = table.changes();
    session.set_map_words(0, at, words).expect("the entries fit the map");
    session
}

/// Measures one kind of work with `keys` keys.
fn rows(work: Work, keys: u32, against_rival: &mut Table, threads: &mut Table) {
    let (packets, rounds) = if is_test_run() { (1000, 1) } else { (1 << 20, 15) };
    let program = program(work, keys);
    // For `count`, the packets insert the keys.
    let initial_keys: Vec<u32> = if work == Work::Count { Vec::new() } else { (0..keys).collect() };
    let mut rival = RustMap::with_capacity_and_hasher(keys as usize, Default::default());
    rival.extend(initial_keys.iter().map(|&number| ((key(number).into()), [number, 0])));
    let mut ours = session(&program, &initial_keys, 1);
    let batch = RefCell::new(Some(batch(work, packets, keys)));
    let mut out = Vec::new();
    let round = |session: &mut Box<dyn Session>| {
        let taken = batch.borrow_mut().take().expect("the batch was completed");
        let done = session.run(taken).expect("the CPU does not fail");
        *batch.borrow_mut() = Some(done.batch);
        black_box(done.verdicts)
    };
    let mut theirs = |out: &mut Vec<u8>| {
        theirs(work, &mut rival, batch.borrow().as_ref().expect("the batch was completed"), out);
        black_box(&out);
    };
    let verdicts = round(&mut ours);
    theirs(&mut out);
    assert_eq!(verdicts.actions(), out, "{}, {keys} keys", work.name());
    let name = format!("{}, {keys} keys", work.name());
    let pair = time_in_turn(rounds, || _ = round(&mut ours), || theirs(&mut out));
    against_rival.rates(&name, packets, pair);
    let mut two = session(&program, &initial_keys, 2);
    let pair = time_in_turn(rounds, || _ = round(&mut two), || _ = round(&mut ours));
    threads.rates(&name, packets, pair);
}

fn main() {
    support::restore_sigpipe();
    let mut against_rival = Table::new("hash, one thread", "ours", "hashbrown");
    let mut threads = Table::new("two threads against one", "two", "one");
    for work in [Work::Find, Work::FindStrangers, Work::Count] {
        for keys in [1 << 10, 1 << 16, 1 << 20] {
            rows(work, keys, &mut against_rival, &mut threads);
        }
    }
    against_rival.print();
    threads.print();
}
