//! Model checking of the prelude's map operations: a few packets on a small map, in every
//! interleaving of their operations and with weakly ordered memory. The prelude's own source is
//! executed, with its protocol for claiming slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_compat_tests::interleavings::check::{Call, Check, MapOperation, filter, packet};
use portcullis_compat_tests::interleavings::memory::Order;
use portcullis_compat_tests::interleavings::{Case, Fault, explore};
use portcullis_compat_tests::texts::in_wgsl;
use portcullis_core::map::layout::{HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, HEADER_WORDS, Layout, hash};
use portcullis_core::map::{Accumulation, MapKind, Table};
use portcullis_core::program::Program;

use MapOperation::{Count, Find, Insert, Remove};

fn program(text: &str) -> Arc<Program> {
    in_wgsl("interleavings.wgsl", text)
}

/// A map of eight slots, five of which may be claimed, and the packets' operations on it.
struct Scenario {
    kind: MapKind,
    /// Key length in words.
    key: u32,
    /// Initial entries, and keys that were inserted and removed before.
    before: BTreeMap<Vec<u32>, u32>,
    removed: Vec<Vec<u32>>,
    packets: Vec<Vec<Call>>,
    order: Order,
    spurious_failures: usize,
}

impl Scenario {
    fn of(packets: Vec<Vec<Call>>) -> Scenario {
        let key = packets[0][0].1.len() as u32;
        Scenario {
            kind: MapKind::Hash,
            key,
            before: BTreeMap::new(),
            removed: Vec::new(),
            packets,
            order: Order::Relaxed,
            spurious_failures: 1,
        }
    }

    fn before(mut self, keys: &[&Vec<u32>]) -> Scenario {
        self.before = keys.iter().map(|key| ((*key).clone(), 1 << 20)).collect();
        self
    }

    /// Disables spurious failures of compare-exchange, to limit the number of states with three
    /// packets.
    fn strict(self) -> Scenario {
        Scenario { spurious_failures: 0, ..self }
    }

    /// Explores all interleavings; returns the number of outcomes and states, or the first
    /// incorrect outcome.
    fn explored(&self, fault: Option<Fault>) -> Result<(usize, usize), String> {
        let program = program(&filter(self.kind, self.key, if self.kind == MapKind::Hash { 5 } else { 2 }));
        let map = &program.maps()[0];
        let mut table = Table::new(map, Vec::new());
        self.removed.iter().for_each(|key| assert!(table.set(key, &[0]).is_ok() && table.remove(key)));
        self.before.iter().for_each(|(key, value)| table.set(key, &[*value]).unwrap());
        let mut words = vec![0; Layout::of(map).words()];
        let (at, changed) = table.changes();
        words[at..at + changed.len()].copy_from_slice(changed);
        words[HEADER_GENERATION as usize] = if self.kind == MapKind::LruHash { 3 } else { 0 };
        let packets = self.packets.iter().map(|calls| packet(calls)).collect();
        let case = Case {
            program: &program,
            maps: vec![words],
            packets,
            order: self.order,
            spurious_failures: self.spurious_failures,
            fault,
        };
        let check = Check { map, before: &self.before, packets: &self.packets };
        let (mut outcomes, mut wrong) = (0, None);
        let states = explore(&case, |outcome| {
            outcomes += 1;
            if wrong.is_none() {
                wrong = check.check_outcome(outcome).err();
            }
        });
        let states = states.map_err(|waits| format!("packet {} waits: {:?}", waits.packet, waits.last))?;
        wrong.map_or(Ok((outcomes, states)), Err)
    }

    #[track_caller]
    fn holds(&self, what: &str) {
        let started = std::time::Instant::now();
        match self.explored(None) {
            Ok((outcomes, states)) => {
                println!("{what}: {outcomes} outcomes of {states} states, {:.1} s", started.elapsed().as_secs_f32());
            }
            Err(wrong) => panic!("{what}: {wrong}"),
        }
    }
}

/// Returns keys that are equal in memory up to `word` and whose probe sequences start at the same
/// slot. Keys of two words are stored as three, those of three as four.
fn colliding_keys(word: usize) -> Vec<Vec<u32>> {
    let key = |i: u32| match word {
        0 => vec![i, 5],
        1 => vec![77, i << 2],
        _ => vec![77, 5, i],
    };
    let first = hash(&key(1)) & 7;
    (1..100).map(key).filter(|key| hash(key) & 7 == first).collect()
}

/// Returns two keys of one word, which are stored as two words, that differ in the second stored
/// word only. Their probe sequences start at the same slot.
fn colliding_one_word_keys() -> [Vec<u32>; 2] {
    let low = (1..).find(|low| hash(&[*low]) & 7 == hash(&[low | 1 << 31]) & 7).expect("some key collides");
    [vec![low], vec![low | 1 << 31]]
}

#[test]
fn a_key_is_inserted_once_into_one_slot() {
    for word in 0..3 {
        let keys = colliding_keys(word);
        let [a, b, ..] = &keys[..] else { unreachable!() };
        Scenario::of(vec![vec![(Count(1), a.clone())], vec![(Count(2), b.clone())]]).holds("two make two keys alike");
    }
    let a = &colliding_keys(1)[0];
    Scenario::of(vec![vec![(Count(1), a.clone())], vec![(Count(2), a.clone())]]).holds("two make one key");
    Scenario::of(vec![vec![(Insert, a.clone())], vec![(Find, a.clone()), (Find, a.clone())]]).holds("one looks on");
    let [a, b] = colliding_one_word_keys();
    let three = [(Count(1), a.clone()), (Count(2), a.clone()), (Insert, b)].map(|call| vec![call]);
    Scenario::of(three.to_vec()).strict().holds("three make two keys alike");
}

#[test]
fn removals_and_insertions_are_linearizable() {
    let a = &colliding_keys(2)[0];
    let calls =
        |operations: &[MapOperation]| operations.iter().map(|operation| (*operation, a.clone())).collect::<Vec<_>>();
    for packets in [
        vec![calls(&[Remove]), calls(&[Insert])],
        vec![calls(&[Remove]), calls(&[Count(1)])],
        vec![calls(&[Remove]), calls(&[Find, Find])],
        vec![calls(&[Remove, Insert]), calls(&[Remove])],
        vec![calls(&[Insert]), calls(&[Remove, Find])],
    ] {
        let what = format!("{packets:?}");
        let scenario = || Scenario::of(packets.clone());
        scenario().before(&[a]).holds(&format!("{what}, key present"));
        scenario().holds(&format!("{what}, key absent"));
        Scenario { removed: vec![a.clone()], ..scenario() }.holds(&format!("{what}, key removed before"));
    }
    // A removed key's slot is reused by that key only.
    let [a, b] = colliding_one_word_keys();
    for packets in [[(Insert, a.clone()), (Insert, a.clone())], [(Insert, a.clone()), (Insert, b.clone())]] {
        let packets = packets.map(|call| vec![call]).to_vec();
        let scenario = Scenario { removed: vec![b.clone()], ..Scenario::of(packets.clone()) };
        scenario.holds(&format!("{packets:?}, {b:?} removed before"));
    }
    let scenario = Scenario::of(vec![vec![(Remove, a.clone())], vec![(Find, b.clone())]]).before(&[&a, &b]);
    scenario.holds("a lookup probes past a slot that another packet removes");
    let three = [(Remove, a.clone()), (Remove, a.clone()), (Insert, a.clone())].map(|call| vec![call]);
    Scenario::of(three.to_vec()).before(&[&a]).strict().holds("two packets remove a key that a third inserts");
}

#[test]
fn a_full_map_refuses_keys_and_loses_none() {
    let keys: Vec<Vec<u32>> = (1..).map(|i| vec![i]).take(7).collect();
    let there: Vec<&Vec<u32>> = keys[..4].iter().collect();
    let each = [keys[4].clone(), keys[5].clone(), keys[0].clone()].map(|key| vec![(Count(1), key)]);
    Scenario::of(each[..2].to_vec()).before(&there).holds("two packets insert a fifth and a sixth key");
    Scenario::of(each.to_vec()).before(&there).strict().holds("the same, and a third packet counts a present key");
    let five: Vec<&Vec<u32>> = keys[..5].iter().collect();
    Scenario::of(vec![vec![(Insert, keys[5].clone())], vec![(Remove, keys[0].clone()), (Insert, keys[0].clone())]])
        .before(&five)
        .holds("one packet inserts a sixth key while another removes and reinserts its own");
}

#[test]
fn lru_hash_operations_stamp_entries() {
    let [a, b] = colliding_one_word_keys();
    for packets in [
        [(Insert, a.clone()), (Insert, a.clone())],
        [(Count(1), a.clone()), (Find, a.clone())],
        [(Insert, a), (Insert, b)],
    ] {
        let packets = packets.map(|call| vec![call]).to_vec();
        let what = format!("lru_hash: {packets:?}");
        Scenario { kind: MapKind::LruHash, ..Scenario::of(packets) }.holds(&what);
    }
}

/// The carry of a counter is added by a separate operation, and of several compare-exchanges one
/// succeeds.
#[test]
fn sums_and_exchanges_are_exact() {
    let text = "
        //! map sums: counter entries=1
        //! map a: array value=1 entries=1
        fn xdp_filter(pkt: u32) -> u32 {
            let amount = load_le32(pkt, 0u);
            sums_add(0u, amount);
            store_le32(pkt, 0u, a_compare_exchange(0u, 0u, 0u, amount));
            return XDP_PASS;
        }";
    let program = program(text);
    let amounts = [u32::MAX, 5, 0x8000_0000];
    let maps = || vec![[vec![0; HEADER_WORDS as usize], vec![0, 0]].concat(), vec![0; HEADER_WORDS as usize + 1]];
    let packets = amounts.map(|amount| amount.to_le_bytes().to_vec()).to_vec();
    let case =
        Case { program: &program, maps: maps(), packets, order: Order::Relaxed, spurious_failures: 1, fault: None };
    let mut winners = std::collections::BTreeSet::new();
    explore(&case, |outcome| {
        let [low, high] = outcome.maps[0][HEADER_WORDS as usize..] else { panic!("the counter has one entry") };
        assert_eq!(
            u64::from(low) | u64::from(high) << 32,
            amounts.iter().map(|amount| u64::from(*amount)).sum::<u64>()
        );
        let before = outcome.packets.iter().map(|(_, bytes)| u32::from_le_bytes(bytes[..4].try_into().unwrap()));
        let first: Vec<u32> =
            amounts.into_iter().zip(before.clone()).filter(|(_, b)| *b == 0).map(|(a, _)| a).collect();
        assert_eq!(first.len(), 1, "one compare-exchange found the initial value");
        assert!(before.into_iter().all(|before| before == 0 || before == first[0]));
        assert_eq!(outcome.maps[1][HEADER_WORDS as usize], first[0]);
        winners.insert(first[0]);
    })
    .unwrap_or_else(|waits| panic!("{waits:?}"));
    assert_eq!(winners.len(), 3, "each of the packets may be the first");
}

/// The result is that of any order, although several of these functions are not one operation.
#[test]
fn accumulations_do_not_depend_on_the_order() {
    // The values, and the word before.
    let fold = |operation, values: &[u32]| match operation {
        Accumulation::AddWide => values.iter().map(|&value| u64::from(value)).sum::<u64>(),
        Accumulation::AddSaturating => values.iter().fold(0_u32, |sum, &value| sum.saturating_add(value)).into(),
        Accumulation::Min => values.iter().copied().min().unwrap_or(0).into(),
        Accumulation::MinNonzero => values.iter().copied().filter(|&value| value != 0).min().unwrap_or(0).into(),
        Accumulation::Max => values.iter().copied().max().unwrap_or(0).into(),
        Accumulation::Or => values.iter().fold(0, |bits, &value| bits | value).into(),
    };
    for operation in Accumulation::ALL {
        let program = program(&format!(
            "//! map a: array value=2 entries=1
            fn xdp_filter(pkt: u32) -> u32 {{
                a_{}(0u, 0u, load_le32(pkt, 0u));
                return XDP_PASS;
            }}",
            operation.name()
        ));
        let values = [[u32::MAX, 1, u32::MAX], [0x8000_0000, 5, 0x8000_0001], [7, 3, 7], [0, 6, 4]];
        for (values, before) in values.into_iter().flat_map(|values| [0, 5, u32::MAX].map(|before| (values, before))) {
            let mut words = vec![0; HEADER_WORDS as usize + 2];
            words[HEADER_WORDS as usize] = before;
            let case = Case {
                program: &program,
                maps: vec![words],
                packets: values.map(|value| value.to_le_bytes().to_vec()).to_vec(),
                order: Order::Relaxed,
                spurious_failures: 1,
                fault: None,
            };
            let explored = explore(&case, |outcome| {
                let [low, high] = outcome.maps[0][HEADER_WORDS as usize..] else { panic!("one entry of two words") };
                let after = u64::from(high) << 32 | u64::from(low);
                let [first, second, third] = values;
                let expected = fold(operation, &[before, first, second, third]);
                assert_eq!(after, expected, "{operation:?} {values:?}, {before} before");
            });
            explored.unwrap_or_else(|waits| panic!("{operation:?} {values:?}: {waits:?}"));
        }
    }
}

/// The checker can fail: it rejects an incorrect protocol.
#[test]
fn incorrect_protocols_are_detected() {
    let keys = colliding_keys(1);
    let [a, b, ..] = &keys[..] else { unreachable!() };
    let found = |fault, packets: Vec<Vec<Call>>, before: &[&Vec<u32>], what: &str| {
        let scenario =
            Scenario { order: Order::Sequential, spurious_failures: 0, ..Scenario::of(packets).before(before) };
        let wrong = scenario.explored(Some(fault)).expect_err(what);
        assert!(wrong.contains(what), "{fault:?}: {wrong}");
    };
    let two = |x: &Vec<u32>, y: &Vec<u32>, what| vec![vec![(what, x.clone())], vec![(what, y.clone())]];
    found(Fault::SplitExchange, two(a, a, Insert), &[], "the header counts 2 slots");
    found(Fault::SplitExchange, two(a, b, Insert), &[], "");
    let skipped = Fault::SkippedClaim { word: 1, header: HEADER_WORDS as usize, stride: 5 };
    found(skipped, two(a, b, Insert), &[], "a slot has half a key");
    let apart = colliding_keys(0);
    found(
        Fault::SplitAddition(HEADER_CLAIMED as usize),
        two(&apart[0], &apart[1], Insert),
        &[],
        "the header counts 1 slots",
    );
    found(Fault::SplitAddition(HEADER_REMOVED as usize), two(a, b, Remove), &[a, b], "and 1 removed keys");
    let value = Fault::SplitAddition(HEADER_WORDS as usize + (hash(a) & 7) as usize * 5 + 4);
    found(value, two(a, a, Count(1)), &[], "no order of");
}
