//! Linearisability of map operations under contention, on every device: the results of packets that
//! access the same keys concurrently must equal those of some sequential order.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis::packet_io::synth::Random;
use portcullis_compat_tests::interleavings::check::{Call, MapOperation, check_memory, filter, packet};
use portcullis_compat_tests::{devices, texts};
use portcullis_core::device::{Device, DeviceKind, LoadOptions, Session};
use portcullis_core::map::layout::{HEADER_CLAIMED, HEADER_REMOVED, KEY_WORD_WRITTEN, Layout, STATE_PRESENT};
use portcullis_core::map::{Declaration, MapKind, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use MapOperation::{Count, Find, Insert, Remove};

/// Returns a key of `words` words that differs from the others in its last word alone.
fn key(number: u32, words: u32) -> Vec<u32> {
    (1..words).map(|i| i.wrapping_mul(0x1234_5678)).chain([number.wrapping_mul(0x9e37_79b1)]).collect()
}

fn program(kind: MapKind, words: u32, entries: u32) -> Arc<Program> {
    texts::in_wgsl("contention.wgsl", &filter(kind, words, entries))
}

/// Counts of the results of operations on one key.
#[derive(Debug, Default)]
struct KeyHistory {
    found: u32,
    missed: u32,
    made: u32,
    existed: u32,
    full: u32,
    removed: u32,
    not_removed: u32,
    /// Values returned by additions of one.
    counted: Vec<u32>,
}

impl KeyHistory {
    fn record(&mut self, operation: MapOperation, result: u32, value: u32) {
        let to = match (operation, result) {
            (Find, 0) => &mut self.missed,
            (Find, _) => &mut self.found,
            (Remove, 0) => &mut self.not_removed,
            (Remove, _) => &mut self.removed,
            (Insert | Count(_), 0) => &mut self.full,
            (Insert | Count(_), 1) => &mut self.existed,
            (Insert | Count(_), _) => &mut self.made,
        };
        *to += 1;
        if matches!(operation, Count(_)) && result > 0 {
            self.counted.push(value);
        }
    }

    /// Asserts that some sequential order of the operations gives these results, for a key that was
    /// absent at first and ends with the value `after`. Such an order exists if insertions and
    /// removals alternate and every lookup, successful or not, has a place between them.
    fn check(mut self, after: Option<u32>) {
        assert_eq!(self.made, self.removed + u32::from(after.is_some()), "{self:?}, {after:?}");
        assert!(self.made > 0 || self.found + self.existed == 0, "found but never inserted: {self:?}");
        self.counted.sort_unstable();
        if self.removed + self.not_removed == 0 {
            assert!(self.counted.iter().copied().eq(0..self.counted.len() as u32), "lost update: {self:?}");
            assert_eq!(after.unwrap_or(0), self.counted.len() as u32);
        } else {
            assert!(
                after.unwrap_or(0) <= self.counted.len() as u32,
                "more than the number of updates: {self:?}, {after:?}"
            );
        }
    }
}

fn load(device: &Arc<dyn Device>, program: &Arc<Program>) -> Box<dyn Session> {
    // More threads than processors, so that a thread may be preempted at any instruction.
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(4));
    device.load(program, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the result words of a packet's first operation.
fn first_result(packet: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
    (word(0), word(4))
}

/// Runs one operation per packet in batches of `size` packets; returns the history of each key and
/// the map's words.
fn run(
    device: &Arc<dyn Device>,
    program: &Arc<Program>,
    calls: &[Call],
    size: usize,
) -> (BTreeMap<Vec<u32>, KeyHistory>, Vec<u32>) {
    let mut session = load(device, program);
    let mut seen: BTreeMap<Vec<u32>, KeyHistory> = BTreeMap::new();
    for calls in calls.chunks(size) {
        let packets: Vec<Vec<u8>> = calls.iter().map(|call| packet(std::slice::from_ref(call))).collect();
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        for ((operation, key), packet) in calls.iter().zip(done.batch.packets()) {
            let (result, value) = first_result(packet);
            seen.entry(key.clone()).or_default().record(*operation, result, value);
        }
    }
    (seen, session.map_words(0).unwrap())
}

/// Checks the history of every key and the map's memory, and that the map is full if an insertion
/// failed. Returns the number of entries.
fn check(map: &Declaration, (seen, words): (BTreeMap<Vec<u32>, KeyHistory>, Vec<u32>)) -> usize {
    check_memory(map, &words).unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut after: BTreeMap<_, _> = rows(map, &words).into_iter().map(|row| (row.key, row.value[0])).collect();
    let entries = after.len();
    let is_full = words[HEADER_CLAIMED as usize] >= Layout::of(map).max_claimed;
    for (key, seen) in seen {
        assert!(is_full || seen.full == 0, "{key:x?} refused by a map that is not full");
        seen.check(after.remove(&key));
    }
    assert!(after.is_empty(), "keys that no packet has inserted: {after:x?}");
    entries
}

/// Key lengths in words. One filter has a map for each: `m1`, `m2` and so on.
const LENGTHS: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16];

/// Returns the filter. A packet consists of the index of a map in [`LENGTHS`] and the last word of
/// the key, the only word in which keys differ. The filter counts the key and writes the same
/// results to the packet as `filter` does.
fn filter_with_every_key_length() -> String {
    let maps = LENGTHS.map(|words| format!("//! map m{words}: hash key={words} value=1 entries=5\n")).concat();
    let count = |(number, words): (usize, u32)| {
        let key: Vec<String> = key(0, words)[..words as usize - 1].iter().map(|word| format!("{word}u")).collect();
        let key = texts::wgsl_key(&[&key[..], &["load_le32(pkt, 4u)".to_owned()]].concat());
        format!(
            "case {number}u: {{
                let entry = m{words}_insert({key});
                result = select(select(1u, 2u, map_is_new(entry)), 0u, entry == MAP_FULL);
                value = m{words}_add(entry, 0u, 1u);
            }}
            "
        )
    };
    let counts = LENGTHS.into_iter().enumerate().map(count).collect::<String>();
    format!(
        "{maps}
        fn xdp_filter(pkt: u32) -> u32 {{
            var result = 0u;
            var value = 0u;
            switch load_le32(pkt, 0u) {{
                {counts}default: {{ return XDP_ABORTED; }}
            }}
            store_le32(pkt, 0u, result);
            store_le32(pkt, 4u, value);
            return XDP_PASS;
        }}"
    )
}

/// Adjacent packets access the same key of the same map.
#[test]
fn concurrent_packets_count_one_key() {
    const KEY: u32 = 7;
    let program = texts::in_wgsl("lengths.wgsl", &filter_with_every_key_length());
    devices::on_each("contention: one key of each length", |device| {
        let each = if device.info().kind == DeviceKind::Reference { 300 } else { 3000 };
        let packets: Vec<Vec<u8>> =
            (0..each * LENGTHS.len()).map(|i| [(i / each) as u32, KEY, 0, 0].map(u32::to_le_bytes).concat()).collect();
        let mut session = load(device, &program);
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        let packets: Vec<&[u8]> = done.batch.packets().collect();
        for (number, packets) in packets.chunks(each).enumerate() {
            let mut seen = KeyHistory::default();
            for (result, value) in packets.iter().map(|packet| first_result(packet)) {
                seen.record(Count(1), result, value);
            }
            let map = &program.maps()[number];
            let mut key = key(0, map.key);
            key[map.key as usize - 1] = KEY;
            let words = session.map_words(number).unwrap();
            assert_eq!(check(map, ([(key, seen)].into(), words)), 1, "{} words", map.key);
        }
    });
}

#[test]
fn batches_of_any_size_count_a_few_keys() {
    devices::on_each("contention: batches of all sizes", |device| {
        let program = program(MapKind::Hash, 3, 40);
        // Sizes around those of subgroups and work groups.
        for size in [1, 31, 32, 33, 63, 64, 65, 255, 1000] {
            let calls: Vec<Call> = (0..size * 2).map(|i| (Count(1), key(i as u32 % 5, 3))).collect();
            assert_eq!(check(&program.maps()[0], run(device, &program, &calls, size)), (size * 2).min(5), "{size}");
        }
    });
}

/// Returns the number of keys to insert concurrently: a million, or fewer on slow devices.
fn many(device: &Arc<dyn Device>) -> u32 {
    let (count, reason) = match device.info().kind {
        DeviceKind::Reference => (5_000, "it is slow, and runs packets one by one"),
        DeviceKind::Software if device.info().id.starts_with("cuda") => {
            (100_000, "a million take a minute on the emulated device")
        }
        _ => return 1_000_000,
    };
    println!("{count} keys for {}: {reason}", device.info().id);
    count
}

/// Every packet of the batch inserts its own key.
#[test]
fn a_million_keys_are_inserted_concurrently() {
    const FIRST: u32 = 0xffff_fff5;
    devices::on_each("contention: a million keys", |device| {
        let count = many(device);
        let program = program(MapKind::Hash, 2, count);
        let mut session = load(device, &program);
        // A permutation of the numbers below `count`, which has no factor in common with 7919.
        let numbers = (0..count).map(|i| (u64::from(i) * 7919 % u64::from(count)) as u32);
        let packets: Vec<Vec<u8>> = numbers.map(|number| packet(&[(Count(1), vec![FIRST, number])])).collect();
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        assert!(
            done.batch.packets().all(|packet| first_result(packet) == (2, 0)),
            "each packet inserts its key with a count of 0"
        );

        let (words, layout) = (session.map_words(0).unwrap(), Layout::of(&program.maps()[0]));
        let mut is_there = vec![false; count as usize];
        for place in words[layout.slot_offset(0)..].chunks_exact(layout.stride as usize).filter(|place| place[0] != 0) {
            // Key words hold 31 bits each, lowest first (docs/reference/map-memory.md).
            let bits = |index: usize| place[index] & !KEY_WORD_WRITTEN;
            let (first, number) = (bits(0) | bits(1) << 31, bits(1) >> 1 | bits(2) << 30);
            let whole = first == FIRST && place[..3].iter().all(|word| word & KEY_WORD_WRITTEN != 0);
            assert!(whole && place[3..] == [STATE_PRESENT, 1], "not an entry that a packet inserted: {place:x?}");
            assert!(!std::mem::replace(&mut is_there[number as usize], true), "{number} has two slots");
        }
        assert!(is_there.iter().all(|there| *there), "lost key");
        assert_eq!((words[HEADER_CLAIMED as usize], words[HEADER_REMOVED as usize]), (count, 0));
    });
}

#[test]
fn insertions_into_a_full_map_fail() {
    devices::on_each("contention: more keys than room", |device| {
        for (words, entries) in [(1, 300), (5, 700)] {
            let program = program(MapKind::Hash, words, entries);
            let map = &program.maps()[0];
            let mut random = Random::new(2, 0);
            let calls: Vec<Call> = (0..6000).map(|_| (Count(1), key(random.below(1500), words))).collect();
            let (seen, memory) = run(device, &program, &calls, calls.len());
            let full: u32 = seen.values().map(|seen| seen.full).sum();
            let made = check(map, (seen, memory));
            assert!(made >= entries as usize && full > 0, "{made} entries, {full} failed insertions");
        }
    });
}

#[test]
fn keys_are_inserted_and_removed_within_a_batch() {
    devices::on_each("contention: insert and remove", |device| {
        for (kind, words) in [(MapKind::Hash, 1), (MapKind::Hash, 4), (MapKind::LruHash, 2)] {
            let program = program(kind, words, 60);
            for keys in [1, 8] {
                let mut random = Random::new(u64::from(keys), 0);
                let calls: Vec<Call> = (0..1500)
                    .map(|_| {
                        let operation = random.pick(&[Find, Insert, Remove, Remove, Count(1)]);
                        (operation, key(random.below(keys), words))
                    })
                    .collect();
                check(&program.maps()[0], run(device, &program, &calls, calls.len()));
                check(&program.maps()[0], run(device, &program, &calls, 400));
            }
        }
    });
}

/// The size of work groups must not affect results.
#[test]
fn results_do_not_depend_on_the_work_group_size() {
    let contended = [Find, Insert, Remove, Count(1)];
    let mut seen = BTreeSet::new();
    devices::on_each("contention: sizes of work groups", |device| {
        // Once per device: variants that differ in their transfers have the same kernels.
        if !seen.insert(device.info().id.clone()) {
            return;
        }
        for size in [1, 32, 256] {
            let Some(device) = devices::with_group_size(device, size) else {
                return println!("{}: the size of work groups cannot be set", device.info().id);
            };
            let program = program(MapKind::Hash, 3, 300);
            let mut random = Random::new(u64::from(size), 1);
            // A single key, more keys than fit, and keys that are inserted and removed.
            let one = vec![(Count(1), key(7, 3)); 3000];
            assert_eq!(check(&program.maps()[0], run(&device, &program, &one, one.len())), 1, "groups of {size}");
            let many: Vec<Call> = (0..6000).map(|_| (Count(1), key(random.below(1500), 3))).collect();
            let made = check(&program.maps()[0], run(&device, &program, &many, many.len()));
            assert!(made >= 300, "groups of {size}: {made} entries");
            let come_and_go: Vec<Call> =
                (0..2000).map(|_| (random.pick(&contended), key(random.below(8), 3))).collect();
            check(&program.maps()[0], run(&device, &program, &come_and_go, come_and_go.len()));
        }
    });
}

/// The check can fail: it rejects results that no order gives.
#[test]
fn impossible_histories_are_detected() {
    let wrong = |seen: KeyHistory, after| std::panic::catch_unwind(move || seen.check(after)).is_err();
    assert!(!wrong(KeyHistory { made: 2, removed: 1, existed: 3, not_removed: 1, ..KeyHistory::default() }, Some(0)));
    assert!(wrong(KeyHistory { made: 2, ..KeyHistory::default() }, Some(0)), "inserted twice");
    assert!(
        wrong(KeyHistory { made: 1, counted: vec![0, 0], ..KeyHistory::default() }, Some(2)),
        "two have found nothing"
    );
    assert!(wrong(KeyHistory { made: 1, counted: vec![0, 1], ..KeyHistory::default() }, Some(1)), "lost update");
    assert!(wrong(KeyHistory { removed: 1, ..KeyHistory::default() }, None), "removed but never inserted");
    assert!(wrong(KeyHistory { existed: 1, ..KeyHistory::default() }, None), "found but never inserted");
}
