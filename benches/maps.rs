//! Maps on the CPU against tables of Rust. `cargo bench --bench maps`.
//!
//! Tables full of keys that are pairs of addresses, and a million packets of 64 bytes that look up keys in random order,
//! all of which are there. The rival is the standard library's map, which is hashbrown, with a hash of one
//! multiplication a word. Both sides of a row run in turn over the same packets.

mod support;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::lang::{Source, wgsl};
use portcullis_core::map::Table as MapTable;
use portcullis_core::packet::{Arena, Batch, Carver, Descriptor, Room};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::Cpu;

use support::{LENGTH, Random, Table, in_turn, only_testing};

const FILTER: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        if pkt_len(pkt) < 34u { return XDP_DROP; }
        let flow = flows_find(vec2<u32>(load_le32(pkt, 26u), load_le32(pkt, 30u)));
        if flow == MAP_NONE { return XDP_DROP; }
        return 1u + (flows_read(flow, 0u) & 1u);
    }";

/// A multiplication a word, as the fastest hashers of Rust have it.
#[derive(Default)]
struct Fast(u64);

impl Hasher for Fast {
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

type Rival = HashMap<(u32, u32), [u32; 2], BuildHasherDefault<Fast>>;

fn program(keys: u32) -> Arc<Program> {
    let text = format!("//! map flows: hash key=2 value=2 entries={keys}\n{FILTER}");
    let program = wgsl::compile(&Source::new("flows.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())))
}

fn key(number: u32) -> [u32; 2] {
    let mixed = number.wrapping_mul(0x9e37_79b1);
    [mixed ^ mixed >> 15, number.wrapping_mul(0x85eb_ca77).rotate_left(9)]
}

fn batch(packets: usize, keys: u32) -> Batch {
    let mut arena = Arena::new(packets * LENGTH).expect("memory for the packets");
    let mut random = Random::new();
    for slot in arena.chunks_exact_mut(LENGTH) {
        let key = key(random.next() % keys);
        slot[26..30].copy_from_slice(&key[0].to_le_bytes());
        slot[30..34].copy_from_slice(&key[1].to_le_bytes());
    }
    let descriptors = (0..packets).map(|i| Descriptor { offset: (i * LENGTH) as u32, length: LENGTH as u32 });
    Carver::new(arena, None).carve(descriptors.collect(), Vec::new(), Room::None).expect("slots do not overlap")
}

fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
}

fn theirs(rival: &Rival, batch: &Batch, out: &mut Vec<u8>) {
    out.clear();
    out.extend(batch.packets().map(|packet| {
        if packet.len() < 34 {
            return 1;
        }
        rival.get(&(word(packet, 26), word(packet, 30))).map_or(1, |value| 1 + (value[0] & 1) as u8)
    }));
}

fn session(program: &Arc<Program>, keys: u32, threads: usize) -> Box<dyn Session> {
    let options = LoadOptions { threads: NonZeroUsize::new(threads), ..LoadOptions::default() };
    let mut session = Cpu::new().load(program, &options).expect("the CPU takes it");
    let mut table = MapTable::new(&program.maps()[0], Vec::new());
    for number in 0..keys {
        table.set(&key(number), &[number, 0]).expect("there is room");
    }
    let (at, words) = table.changes();
    session.set_map_words(0, at, words).expect("they lie in the map");
    session
}

fn main() {
    let (packets, rounds) = if only_testing() { (1000, 1) } else { (1 << 20, 15) };
    let mut table = Table::new("hash, one thread", "ours", "hashbrown");
    let mut threads = Table::new("two threads against one", "two", "one");
    for keys in [1 << 10, 1 << 16, 1 << 20] {
        let program = program(keys);
        let rival: Rival = (0..keys).map(|number| (key(number).into(), [number, 0])).collect();
        let mut ours = session(&program, keys, 1);
        let mut batch = Some(batch(packets, keys));
        let mut out = Vec::new();
        let mut round = |session: &mut Box<dyn Session>, batch: &mut Option<Batch>| {
            let done = session.run(batch.take().expect("it came back")).expect("the CPU does not fail");
            black_box(&done.verdicts);
            *batch = Some(done.batch);
            done.verdicts
        };
        let verdicts = round(&mut ours, &mut batch);
        theirs(&rival, batch.as_ref().expect("it came back"), &mut out);
        assert_eq!(verdicts.actions(), out, "{keys} keys");
        let both = std::cell::RefCell::new(&mut batch);
        let pair = in_turn(
            rounds,
            || _ = round(&mut ours, &mut both.borrow_mut()),
            || {
                theirs(&rival, both.borrow().as_ref().expect("it came back"), &mut out);
                black_box(&out);
            },
        );
        table.rates(&format!("{keys} keys"), packets, pair);
        let mut two = session(&program, keys, 2);
        let round = std::cell::RefCell::new(&mut round);
        let pair = in_turn(
            rounds,
            || _ = (round.borrow_mut())(&mut two, &mut both.borrow_mut()),
            || _ = (round.borrow_mut())(&mut ours, &mut both.borrow_mut()),
        );
        threads.rates(&format!("{keys} keys"), packets, pair);
    }
    table.print();
    threads.print();
}
