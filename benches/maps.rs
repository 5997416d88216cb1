//! Compares maps on the CPU with Rust hash tables: `cargo bench --bench maps`.
//!
//! Keys are pairs of addresses, and a million packets of 64 bytes have keys in random order. `find`
//! looks them up in a full table that has all of them, `find strangers` one that has none. `count`
//! counts the packets of each key, with an atomic addition on our side, and inserts new keys in the
//! untimed first round: otherwise page faults of a new table would dominate. The other side is the
//! standard library's map (hashbrown) with a hash of one multiplication per word. Both sides of a
//! row run in turn over the same packets.

mod support;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis_core::device::{Device, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

use support::{ReusedBatch, Table, compile, fill_map, is_test_run, time_in_turn, written_batch};

/// Operation of the filter on the keys.
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
    compile("flows", format!("//! map flows: hash key=2 value=2 entries={keys}\n{}", work.filter()))
}

fn key(number: u32) -> [u32; 2] {
    let mixed = number.wrapping_mul(0x9e37_79b1);
    [mixed ^ mixed >> 15, number.wrapping_mul(0x85eb_ca77).rotate_left(9)]
}

fn batch(work: Work, packets: usize, keys: u32) -> Batch {
    let mut random = Random::new(0, 0);
    written_batch(packets, |_, slot| {
        // Strangers are keys that are not in the table.
        let first = if work == Work::FindStrangers { keys } else { 0 };
        let key = key(first + random.below(keys));
        slot[26..30].copy_from_slice(&key[0].to_le_bytes());
        slot[30..34].copy_from_slice(&key[1].to_le_bytes());
    })
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
    let mut session = Cpu::new().load(program, &support::threads(threads)).expect("the CPU loads the filter");
    fill_map(&mut *session, program, 0, keys.iter().map(|&number| (key(number), [number, 0])));
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
    let batch = ReusedBatch::new(batch(work, packets, keys));
    let mut out = Vec::new();
    let mut theirs = |out: &mut Vec<u8>| {
        theirs(work, &mut rival, &batch.get(), out);
        black_box(&out);
    };
    let verdicts = batch.run(&mut *ours);
    theirs(&mut out);
    assert_eq!(verdicts.actions(), out, "{}, {keys} keys", work.name());
    let name = format!("{}, {keys} keys", work.name());
    let pair = time_in_turn(rounds, || batch.run(&mut *ours), || theirs(&mut out));
    against_rival.rates(&name, packets, pair);
    let mut two = session(&program, &initial_keys, 2);
    let pair = time_in_turn(rounds, || batch.run(&mut *two), || batch.run(&mut *ours));
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
