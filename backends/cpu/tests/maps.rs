//! Maps in batches of many packets: with one thread every style of code agrees with the
//! interpreter, with and without prefetch code. Several threads are covered by compat-tests.

mod common;

use std::num::NonZeroUsize;

use common::program_with;
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::Batch;
use portcullis_core::program::ProgramOptions;
use portcullis_cpu::{Cpu, Style};

/// Little fuel, so that it is used up quickly in the interpreter too.
const FUEL: u32 = 100;

fn devices() -> [Cpu; 5] {
    [
        Cpu::new(),
        Cpu::with_style(Style::BranchFree),
        Cpu::with_style(Style::Branching),
        Cpu::with_style(Style::Vector),
        Cpu::with_prefetch(),
    ]
}

fn batch(packets: &[Vec<u32>]) -> Batch {
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    Batch::from_packets(&packets.iter().map(bytes).collect::<Vec<_>>()).unwrap()
}

fn batches(count: usize, packets: usize, packet: &mut dyn FnMut() -> Vec<u32>) -> Vec<Vec<Vec<u32>>> {
    (0..count).map(|_| (0..packets).map(|_| packet()).collect()).collect()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

const EVERYTHING: &str = "
    //! map flows: hash key=3 value=2 entries=300
    //! map ports: array value=1 entries=16
    //! map bytes: counter entries=5
    fn xdp_filter(pkt: u32) -> u32 {
        let call = load_le32(pkt, 0u);
        let key = vec3<u32>(load_le32(pkt, 4u), load_le32(pkt, 8u) & 3u, load_le32(pkt, 12u) & 7u);
        bytes_add(call, 0xf0000000u);
        ports_write(call, 0u, ports_read(call, 0u) * 3u + 1u);
        if call % 5u == 0u { return select(XDP_DROP, XDP_PASS, flows_remove(key)); }
        var flow = flows_find(key);
        if flow == MAP_NONE && call % 5u != 1u {
            flow = flows_insert(key);
            if flow == MAP_FULL { return XDP_TX; }
            if map_is_new(flow) { flows_write(flow, 0u, call); }
        }
        let before = flows_add(flow, 1u, key.x | 1u);
        let was = flows_compare_exchange(flow, 0u, call, call + 1u);
        store_le32(pkt, 0u, before ^ was * 5u);
        return 1u + (before & 1u);
    }";

/// Runs batches on every variant of the device and compares verdicts, packets and maps with the
/// interpreter's.
fn assert_agrees_with_interpreter(text: &str, batches: &[Vec<Vec<u32>>]) {
    let program = program_with(text, &ProgramOptions::default().with_fuel(FUEL));
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(1));
    let run = |device: &dyn Device| {
        let mut session = device.load(&program, &options).unwrap();
        let mut outcome = |packets: &Vec<Vec<u32>>| {
            let done = session.run(batch(packets)).unwrap();
            let bytes: Vec<Vec<u8>> = done.batch.packets().map(<[u8]>::to_vec).collect();
            let words: Vec<_> = (0..program.maps().len()).map(|map| session.map_words(map).unwrap()).collect();
            (done.verdicts, bytes, words)
        };
        batches.iter().map(&mut outcome).collect::<Vec<_>>()
    };
    let want = run(&InterpDevice::new());
    for device in devices() {
        for (round, (done, want)) in run(&device).iter().zip(&want).enumerate() {
            assert_eq!(done, want, "{}, round {round}", device.info().id);
        }
    }
}

#[test]
fn all_map_functions_agree_with_the_interpreter() {
    let mut random = Random(3);
    let mut packet =
        || vec![random.next() % 20, (random.next() % 40).wrapping_mul(0x4000_0001), random.next(), random.next()];
    assert_agrees_with_interpreter(EVERYTHING, &batches(10, 500, &mut packet));
}

/// The packet's first word chooses an operation on the key behind it. There are few keys for as
/// many slots, so that searches are long, meet removed keys, and find the map full.
#[test]
fn keys_of_every_length_agree_with_the_interpreter() {
    for (words, kind) in
        [1, 2, 3, 4, 5, 9, 10, 16_u32].into_iter().flat_map(|words| [(words, "hash"), (words, "lru_hash")])
    {
        let key = (0..words).map(|i| format!("load_le32(pkt, {}u)", 4 + 4 * i)).collect::<Vec<_>>().join(", ");
        let key = match words {
            1 => key,
            2..=4 => format!("vec{words}<u32>({key})"),
            _ => format!("array<u32, {words}>({key})"),
        };
        let text = format!(
            "//! map flows: {kind} key={words} value=1 entries=50
             fn xdp_filter(pkt: u32) -> u32 {{
                 let call = load_le32(pkt, 0u);
                 let key = {key};
                 if call == 0u {{ return select(XDP_DROP, XDP_PASS, flows_remove(key)); }}
                 if call == 1u {{
                     let flow = flows_insert(key);
                     if flow == MAP_FULL {{ return XDP_TX; }}
                     flows_write(flow, 0u, load_le32(pkt, 4u) + select(0u, 1u, map_is_new(flow)));
                     return XDP_PASS;
                 }}
                 let flow = flows_find(key);
                 if flow == MAP_NONE {{ return XDP_DROP; }}
                 return 1u + ((flows_read(flow, 0u) ^ flow) & 1u);
             }}"
        );
        let mut random = Random(words.into());
        // Some keys differ from others in a single bit.
        let mut keys: Vec<Vec<u32>> = (0..50).map(|_| (0..words).map(|_| random.next()).collect()).collect();
        for at in 0..70 {
            let mut near = keys[at].clone();
            near[(random.next() % words) as usize] ^= 1 << (random.next() % 32);
            keys.push(near);
        }
        let mut packet = || {
            let call = random.next() % 4;
            [&[call][..], &keys[random.next() as usize % keys.len()]].concat()
        };
        assert_agrees_with_interpreter(&text, &batches(2, 500, &mut packet));
    }
}

/// Prefetch code takes the same path as the filter up to the first search, without its effects.
#[test]
fn prefetch_code_has_no_side_effects() {
    let text = "
        //! map flows: hash key=2 value=1 entries=3000
        //! map seen: array value=1 entries=4
        //! map bytes: counter entries=2
        var<private> rounds: u32 = 3u;

        fn key_of(pkt: u32, salt: u32) -> vec2<u32> {
            // A store on the path to the search: executing it twice would change the result.
            store_le32(pkt, 8u, load_le32(pkt, 8u) * 5u + salt);
            bytes_add(1u, load_le32(pkt, 8u) & 0xffu);
            return vec2<u32>(load_le32(pkt, 4u) & 0x3fu, load_le32(pkt, 8u) & 0xfu);
        }

        fn xdp_filter(pkt: u32) -> u32 {
            bytes_add(0u, pkt_len(pkt));
            let before = seen_add(0u, 0u, 1u);
            seen_write(1u, 0u, seen_read(1u, 0u) * 3u + before);
            let was = seen_compare_exchange(2u, 0u, before, before + 1u);
            if load_u8(pkt, 0u) == 7u { _ = adjust_tail(pkt, -4); }
            if load_u8(pkt, 0u) == 9u { return 1u + (u32(flows_remove(vec2<u32>(5u, 5u))) & 1u); }
            var sum = 0u;
            for (var i = 0u; i < load_u8(pkt, 1u) % 5u + rounds; i++) { sum += load_u8(pkt, i + 2u); rounds -= 1u; }
            let flow = flows_insert(key_of(pkt, was + sum));
            if flow == MAP_FULL { return XDP_DROP; }
            let count = flows_add(flow, 0u, 1u);
            if flows_find(key_of(pkt, count)) == MAP_NONE { return XDP_TX; }
            return 1u + (count & 1u);
        }";
    let mut random = Random(5);
    let mut packet = || (0..5 + random.next() % 3).map(|_| random.next() & 0x0f0f_0f0f).collect();
    assert_agrees_with_interpreter(text, &batches(4, 500, &mut packet));
}

/// An endless loop before the first search: fuel bounds prefetch code as well.
#[test]
fn prefetch_code_stops_when_fuel_runs_out() {
    let text = "
        //! map flows: hash key=1 value=1 entries=50
        fn xdp_filter(pkt: u32) -> u32 {
            loop {
                if load_u8(pkt, 0u) != 1u { break; }
            }
            return 1u + (flows_insert(load_le32(pkt, 0u)) & 1u);
        }";
    let mut random = Random(6);
    let mut packet = || vec![random.next() & 0x0303];
    assert_agrees_with_interpreter(text, &batches(1, 100, &mut packet));
}

/// Threads count in copies of small counters. The sums are exact between batches, whoever counted
/// and whatever the host wrote meanwhile.
#[test]
fn counters_are_exact_after_each_batch_with_any_number_of_threads() {
    // The second map is too large for copies.
    let text = "
        //! map few: counter entries=3
        //! map many: counter entries=1000
        fn xdp_filter(pkt: u32) -> u32 {
            let word = load_le32(pkt, 0u);
            few_add(word % 4u, 0xfffffff0u + word % 16u);
            many_add(word % 1000u, word);
            return XDP_PASS;
        }";
    let program = program_with(text, &ProgramOptions::default());
    let mut random = Random(7);
    let batches = batches(3, 30_000, &mut || vec![random.next() >> 3]);
    for threads in [1, 2, 3, 8, 33] {
        let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
        let mut reference = InterpDevice::new().load(&program, &options).unwrap();
        let mut session = Cpu::new().load(&program, &options).unwrap();
        for packets in &batches {
            reference.run(batch(packets)).unwrap();
            // Not by the calling thread, and then with its help.
            for part in packets.chunks(20_000) {
                session.submit(batch(part)).unwrap();
                session.complete().unwrap();
            }
            for map in 0..2 {
                let expected = reference.map_words(map).unwrap();
                assert!(session.map_words(map).unwrap() == expected, "{threads} threads, map {map}");
            }
            let written = [5, 7];
            reference.set_map_words(0, 18, &written).unwrap();
            session.set_map_words(0, 18, &written).unwrap();
            reference.run(batch(&packets[..9000])).unwrap();
            session.run(batch(&packets[..9000])).unwrap();
        }
    }
}
