//! Maps under contention, on every device: whatever packets of a batch do at once with the same keys, it comes out as if
//! they had come in some order.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_compat_tests::devices;
use portcullis_compat_tests::interleavings::check::{Call, What, filter, memory, packet};
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::lang::{Source, wgsl};
use portcullis_core::map::layout::{Layout, TAKEN};
use portcullis_core::map::{Declaration, Kind, rows};
use portcullis_core::packet::Batch;
use portcullis_core::program::{Program, ProgramOptions};

use What::{Count, Find, Insert, Remove};

struct Random(u64);

impl Random {
    fn below(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) % u64::from(below)) as u32
    }
}

/// Keys of so many words that are the same but for the last.
fn key(number: u32, words: u32) -> Vec<u32> {
    (1..words).map(|i| i.wrapping_mul(0x1234_5678)).chain([number.wrapping_mul(0x9e37_79b1)]).collect()
}

fn program(kind: Kind, words: u32, entries: u32) -> Arc<Program> {
    let program =
        wgsl::compile(&Source::new("contention.wgsl", filter(kind, words, entries)), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())))
}

/// What has happened to a key.
#[derive(Debug, Default)]
struct Seen {
    found: u32,
    missed: u32,
    made: u32,
    was_there: u32,
    full: u32,
    removed: u32,
    had_nothing_to_remove: u32,
    /// What was there before each addition of one.
    counted: Vec<u32>,
}

impl Seen {
    fn note(&mut self, what: What, result: u32, value: u32) {
        let to = match (what, result) {
            (Find, 0) => &mut self.missed,
            (Find, _) => &mut self.found,
            (Remove, 0) => &mut self.had_nothing_to_remove,
            (Remove, _) => &mut self.removed,
            (Insert | Count(_), 0) => &mut self.full,
            (Insert | Count(_), 1) => &mut self.was_there,
            (Insert | Count(_), _) => &mut self.made,
        };
        *to += 1;
        if matches!(what, Count(_)) && result > 0 {
            self.counted.push(value);
        }
    }

    /// Whether some order of single calls gives that, of a key that was not there and ends with this value. An order there is
    /// where makings and removals take turns, and who has found the key, or has not, has a time to do so.
    fn check(mut self, after: Option<u32>) {
        assert_eq!(self.made, self.removed + u32::from(after.is_some()), "{self:?}, {after:?}");
        assert!(self.made > 0 || self.found + self.was_there == 0, "found, and never made: {self:?}");
        self.counted.sort_unstable();
        if self.removed + self.had_nothing_to_remove == 0 {
            assert!(self.counted.iter().copied().eq(0..self.counted.len() as u32), "an update is lost: {self:?}");
            assert_eq!(after.unwrap_or(0), self.counted.len() as u32);
        } else {
            assert!(after.unwrap_or(0) <= self.counted.len() as u32, "more than all updates: {self:?}, {after:?}");
        }
    }
}

/// Makes calls, one a packet, in batches of some size; gives what has happened to each key, and the map's words.
fn run(
    device: &Arc<dyn Device>,
    program: &Arc<Program>,
    calls: &[Call],
    size: usize,
) -> (BTreeMap<Vec<u32>, Seen>, Vec<u32>) {
    // More than there are processors here, so that threads stop each other anywhere.
    let options = LoadOptions { threads: NonZeroUsize::new(4), ..LoadOptions::default() };
    let mut session = device.load(program, &options).unwrap_or_else(|error| panic!("{error}"));
    let mut seen: BTreeMap<Vec<u32>, Seen> = BTreeMap::new();
    for calls in calls.chunks(size) {
        let packets: Vec<Vec<u8>> = calls.iter().map(|call| packet(std::slice::from_ref(call))).collect();
        let done = session.run(Batch::from_packets(&packets).unwrap()).unwrap();
        for ((what, key), packet) in calls.iter().zip(done.batch.packets()) {
            let word = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
            seen.entry(key.clone()).or_default().note(*what, word(0), word(4));
        }
    }
    (seen, session.map_words(0).unwrap())
}

/// Looks at all keys, at the memory, and whether a map that was full to somebody is full; gives the number of entries.
fn check(map: &Declaration, (seen, words): (BTreeMap<Vec<u32>, Seen>, Vec<u32>)) -> usize {
    memory(map, &words).unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut after: BTreeMap<_, _> = rows(map, &words).into_iter().map(|row| (row.key, row.value[0])).collect();
    let entries = after.len();
    let is_full = words[TAKEN as usize] >= Layout::of(map).limit;
    for (key, seen) in seen {
        assert!(is_full || seen.full == 0, "no room for {key:x?} in a map that has");
        seen.check(after.remove(&key));
    }
    assert!(after.is_empty(), "keys that nobody has made: {after:x?}");
    entries
}

#[test]
fn all_packets_count_one_key() {
    let sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16];
    devices::on_each("contention: one key", |device| {
        for &words in devices::share(device, &sizes, 4) {
            let program = program(Kind::Hash, words, 5);
            let calls = vec![(Count(1), key(7, words)); 3000];
            assert_eq!(check(&program.maps()[0], run(device, &program, &calls, calls.len())), 1, "{words} words");
        }
    });
}

#[test]
fn batches_of_any_size_count_few_keys() {
    devices::on_each("contention: batches of all sizes", |device| {
        let program = program(Kind::Hash, 3, 40);
        // Groups of lanes that are full, all but, and a little more than that.
        for size in [1, 31, 32, 33, 63, 64, 65, 255, 1000] {
            let calls: Vec<Call> = (0..size * 2).map(|i| (Count(1), key(i as u32 % 5, 3))).collect();
            assert_eq!(check(&program.maps()[0], run(device, &program, &calls, size)), (size * 2).min(5), "{size}");
        }
    });
}

#[test]
fn many_keys_are_made_at_once() {
    devices::on_each("contention: many keys", |device| {
        // The reference has no contention, and takes its time.
        let count = if device.info().id == "interp" { 2_000 } else { 100_000 };
        let program = program(Kind::Hash, 2, count);
        let mut random = Random(1);
        let calls: Vec<Call> = (0..count).map(|_| (Count(1), key(random.below(count), 2))).collect();
        let wanted = calls.iter().map(|(_, key)| key).collect::<BTreeSet<_>>().len();
        assert_eq!(check(&program.maps()[0], run(device, &program, &calls, calls.len())), wanted);
    });
}

#[test]
fn more_keys_come_than_there_is_room_for() {
    devices::on_each("contention: more keys than room", |device| {
        for (words, entries) in [(1, 300), (5, 700)] {
            let program = program(Kind::Hash, words, entries);
            let map = &program.maps()[0];
            let mut random = Random(2);
            let calls: Vec<Call> = (0..6000).map(|_| (Count(1), key(random.below(1500), words))).collect();
            let (seen, memory) = run(device, &program, &calls, calls.len());
            let full: u32 = seen.values().map(|seen| seen.full).sum();
            let made = check(map, (seen, memory));
            assert!(made >= entries as usize && full > 0, "{made} entries, {full} times full");
        }
    });
}

#[test]
fn keys_come_and_go_within_a_batch() {
    devices::on_each("contention: insert and remove", |device| {
        for (kind, words) in [(Kind::Hash, 1), (Kind::Hash, 4), (Kind::LruHash, 2)] {
            let program = program(kind, words, 60);
            for keys in [1, 8] {
                let mut random = Random(u64::from(keys));
                let calls: Vec<Call> = (0..1500)
                    .map(|_| {
                        let what = [Find, Insert, Remove, Remove, Count(1)][random.below(5) as usize];
                        (what, key(random.below(keys), words))
                    })
                    .collect();
                check(&program.maps()[0], run(device, &program, &calls, calls.len()));
                check(&program.maps()[0], run(device, &program, &calls, 400));
            }
        }
    });
}

/// Outcomes that no order gives are found out.
#[test]
fn what_no_order_gives_is_found() {
    let wrong = |seen: Seen, after| std::panic::catch_unwind(move || seen.check(after)).is_err();
    assert!(!wrong(Seen { made: 2, removed: 1, was_there: 3, had_nothing_to_remove: 1, ..Seen::default() }, Some(0)));
    assert!(wrong(Seen { made: 2, ..Seen::default() }, Some(0)), "two have made it");
    assert!(wrong(Seen { made: 1, counted: vec![0, 0], ..Seen::default() }, Some(2)), "two have found nothing");
    assert!(wrong(Seen { made: 1, counted: vec![0, 1], ..Seen::default() }, Some(1)), "one is lost");
    assert!(wrong(Seen { removed: 1, ..Seen::default() }, None), "what was not there is removed");
    assert!(wrong(Seen { was_there: 1, ..Seen::default() }, None), "found, and never made");
}
