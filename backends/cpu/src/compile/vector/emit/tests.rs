//! Generated code against the interpreter of lane IR, for pure operations.

use portcullis_core::packet::{Descriptor, Metadata, READABLE_PAST_END};

use super::super::interp;
use super::super::ir::*;
use super::super::testing::{BINARY, COMPARE, UNARY, mixed};
use super::*;
use crate::compile::abi::BatchContext;
use crate::compile::filter_code::FilterCode;
use crate::compile::lowered::CompiledBody;
use crate::compile::processor::Processor;

pub(super) const PASS: u32 = 2;
pub(super) const DROP: u32 = 1;

/// Builds a filter without steps.
pub(super) fn pure(make: impl FnOnce(&mut Dag) -> Node) -> LaneIr {
    let mut dag = Dag::new();
    let verdict = make(&mut dag);
    LaneIr {
        dag,
        regions: vec![Region::default()],
        arrays: Vec::new(),
        tables: Vec::new(),
        verdict,
        ends: None,
        writes: false,
    }
}

/// Packets for an arena of their own.
pub(super) struct Traffic {
    pub packets: Vec<Vec<u8>>,
    pub metadata: Vec<Metadata>,
}

/// Everything that filtering packets results in.
#[derive(Debug, PartialEq)]
pub(super) struct Outcomes {
    pub verdicts: Vec<u8>,
    pub targets: Vec<u32>,
    pub packets: Vec<Vec<u8>>,
    pub maps: Vec<Vec<u32>>,
}

/// Bytes before and behind each packet, for filters that change lengths.
const RESIZE_ROOM: usize = 128;

pub(super) fn run(code: &FilterCode, lanes: &LaneIr, traffic: &Traffic, maps: &[Vec<u32>]) -> Outcomes {
    let mut arena = Vec::new();
    let mut descriptors = Vec::new();
    let room = if lanes.ends.is_some() { RESIZE_ROOM } else { 0 };
    for packet in &traffic.packets {
        arena.resize(arena.len() + room, 0xa5_u8);
        descriptors.push(Descriptor { offset: arena.len() as u32, length: packet.len() as u32 });
        arena.extend(packet);
        arena.resize(arena.len().next_multiple_of(4) + room, 0xa5);
    }
    arena.resize(arena.len() + READABLE_PAST_END, 0x5a);
    let count = descriptors.len();
    let (mut verdicts, mut targets, mut resized) = (vec![0xee; count], vec![0xeeee; count], descriptors.clone());
    let mut maps = maps.to_vec();
    let addresses: Vec<*mut u32> = maps.iter_mut().map(|words| words.as_mut_ptr()).collect();
    let context = BatchContext {
        arena: arena.as_mut_ptr(),
        descriptors: descriptors.as_ptr(),
        verdicts: verdicts.as_mut_ptr(),
        targets: targets.as_mut_ptr(),
        metadata: traffic.metadata.as_ptr(),
        tables: std::ptr::null(),
        resized: resized.as_mut_ptr(),
        float_functions: std::ptr::null(),
        maps: addresses.as_ptr(),
    };
    // SAFETY: the columns have an element per packet, and all packets lie in the arena, with their
    // room, which is readable past its end.
    unsafe { code.run(0, &context, 0, count) };
    let packets = resized.iter().map(|d| arena[d.offset as usize..][..d.length as usize].to_vec()).collect();
    Outcomes { verdicts, targets, packets, maps }
}

/// Processors with and without recent extensions, as far as this machine can run their code.
fn processors() -> Vec<Processor> {
    [Processor::Host, Processor::X86_64V2].into_iter().filter(|processor| processor.is_of_host()).collect()
}

pub(super) fn compile(lanes: &LaneIr, offsets: OffsetStrategy) -> (FilterCode, usize) {
    compile_for(Processor::Host, lanes, offsets)
}

fn compile_for(processor: Processor, lanes: &LaneIr, offsets: OffsetStrategy) -> (FilterCode, usize) {
    let isa = processor.isa().unwrap();
    let lowered = lower(lanes, offsets, true, &*isa).unwrap().expect("both strategies have code");
    let group = lowered.group_size;
    (FilterCode::new(vec![lowered], true, None, isa).unwrap(), group)
}

/// Compares code in every strategy and for every processor with the interpreter.
pub(super) fn assert_agrees(lanes: &LaneIr, traffic: &Traffic, maps: &[Vec<u32>], what: &str) {
    let each = |processor| [OffsetStrategy::Speculate, OffsetStrategy::Gather].map(|offsets| (processor, offsets));
    for (processor, offsets) in processors().into_iter().flat_map(each) {
        if lower(lanes, offsets, true, &*processor.isa().unwrap()).unwrap().is_none() {
            continue;
        }
        let (code, group) = compile_for(processor, lanes, offsets);
        let whole = traffic.packets.len() / group * group;
        let ours = run(&code, lanes, traffic, maps);
        let mut words = maps.to_vec();
        let mut theirs = Vec::new();
        for start in (0..whole).step_by(4) {
            let packets: Vec<_> = (start..start + 4).map(|i| (&traffic.packets[i][..], &traffic.metadata[i])).collect();
            theirs.extend(interp::run::<4>(lanes, &packets, &mut words, 0x1234_5678).unwrap());
        }
        for (i, theirs) in theirs.iter().enumerate() {
            let ours_is = u32::from(ours.verdicts[i]) | ours.targets[i] << 8;
            assert_eq!(
                (ours_is, &ours.packets[i]),
                (theirs.verdict, &theirs.packet),
                "{what}, {offsets:?}, {processor:?}: packet {i}, {:02x?}\n{}",
                traffic.packets[i],
                lanes.dump()
            );
        }
        assert_eq!(ours.maps, words, "{what}, {offsets:?}, {processor:?}");
        assert!(
            ours.verdicts[whole..].iter().all(|&verdict| verdict == 0xee),
            "packets of an incomplete group were filtered"
        );
    }
}

/// Xorshift (Marsaglia, 2003).
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }
}

/// Packets of up to `most` bytes, half of whose words are numbers at which operators overflow or
/// change sign.
pub(super) fn traffic(count: usize, most: u32) -> Traffic {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let turns = [0, 1, 2, 31, 32, 33, 0xff, 0x100, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff_u32];
    let packets = (0..count)
        .map(|_| {
            let length = random.next() % (most + 1);
            let words = (0..length.div_ceil(4)).flat_map(|_| match random.next() % 2 {
                0 => turns[random.next() as usize % turns.len()].to_le_bytes(),
                _ => random.next().to_le_bytes(),
            });
            let mut packet: Vec<u8> = words.collect();
            packet.truncate(length as usize);
            packet
        })
        .collect();
    let metadata = (0..count).map(|i| Metadata::new(i as u32 * 3, i as u32 % 5, u64::from(random.next()) << 20));
    Traffic { packets, metadata: metadata.collect() }
}

/// A bounds-checked load, 0 if any byte is outside the packet.
pub(super) fn checked(dag: &mut Dag, root: Option<Node>, add: u32, size: u32) -> Node {
    let load = dag.load(Load { root, add, size });
    let end = match root {
        None => dag.constant(add + size),
        Some(root) => dag.add_constant(root, add + size),
    };
    let length = dag.length();
    let inside = dag.compare(Compare::LessEqual, end, length);
    let zero = dag.constant(0);
    dag.select(inside, load, zero)
}

/// `simple_filter`, as tracing might produce it.
pub(super) fn simple_filter() -> LaneIr {
    pure(|dag| {
        let length = dag.length();
        let long = dag.at_least(length, 34);
        let kind = dag.load(Load { root: None, add: 12, size: 2 });
        let kind = dag.swap_bytes(kind, 2);
        let ipv4 = dag.constant(0x800);
        let ipv4 = dag.compare(Compare::Equal, kind, ipv4);
        let version = dag.load(Load { root: None, add: 14, size: 1 });
        let version = dag.add_constant(version, 0x45_u32.wrapping_neg());
        let most = dag.constant(10);
        let version = dag.compare(Compare::LessEqual, version, most);
        let protocol = dag.load(Load { root: None, add: 23, size: 1 });
        let (tcp, udp) = (dag.constant(6), dag.constant(17));
        let (tcp, udp) = (dag.compare(Compare::Equal, protocol, tcp), dag.compare(Compare::Equal, protocol, udp));
        let known = dag.mask_or(tcp, udp);
        let source = dag.load(Load { root: None, add: 26, size: 4 });
        let source = dag.swap_bytes(source, 4);
        let blocked = dag.constant(0xc0a8_0001);
        let blocked = dag.compare(Compare::Equal, source, blocked);
        let free = dag.mask_not(blocked);
        let (pass, drop) = (dag.constant(PASS), dag.constant(DROP));
        let mut all = dag.mask_and(long, ipv4);
        for mask in [version, known, free] {
            all = dag.mask_and(all, mask);
        }
        dag.select(all, pass, drop)
    })
}

#[test]
fn simple_filter_agrees_with_the_interpreter() {
    let mut traffic = traffic(403, 80);
    for (i, packet) in traffic.packets.iter_mut().enumerate() {
        if packet.len() >= 34 {
            packet[12..15].copy_from_slice(&[8, 0, 0x45 + (i % 12) as u8]);
            packet[23] = [6, 17, 5][i % 3];
            if i % 2 == 0 {
                packet[26..30].copy_from_slice(&[192, 168, 0, 1]);
            }
        }
    }
    assert_agrees(&simple_filter(), &traffic, &[], "simple_filter");
}

/// Operands for operators: loads of all sizes, the length, and constants.
fn words(dag: &mut Dag) -> Vec<Node> {
    let mut all = vec![dag.length()];
    for (add, size) in [(0, 4), (4, 4), (9, 2), (3, 1), (6, 4), (13, 2), (11, 2), (2, 2), (7, 1)] {
        all.push(checked(dag, None, add, size));
    }
    for value in [0, 1, 2, 7, 31, 32, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        all.push(dag.constant(value));
    }
    all
}

const FIELDS: [MetadataField; 5] = [
    MetadataField::WireLength,
    MetadataField::Port,
    MetadataField::TimeLow,
    MetadataField::TimeHigh,
    MetadataField::TimeMs,
];

#[test]
fn every_operator_agrees_with_the_interpreter() {
    let traffic = traffic(96, 24);
    for op in BINARY {
        let lanes = pure(|dag| {
            let words = words(dag);
            let mut all = Vec::new();
            for &a in &words {
                all.extend(words.iter().map(|&b| dag.binary(op, a, b)));
            }
            mixed(dag, &all)
        });
        assert_agrees(&lanes, &traffic, &[], &format!("{op:?}"));
    }
    for op in COMPARE {
        let lanes = pure(|dag| {
            let words = words(dag);
            let mut all = Vec::new();
            for (i, &a) in words.iter().enumerate() {
                for (j, &b) in words.iter().enumerate() {
                    let mask = dag.compare(op, a, b);
                    // Pairs of constants for which selects have different code.
                    let pairs = [(1, 0), (0, 1), (7, 0), (0, 7), (5, 9), (u32::MAX, 3), (3, u32::MAX)];
                    let (on, off) = pairs[(i + j) % pairs.len()];
                    let (on, off) = (dag.constant(on), dag.constant(off));
                    let (on, off) = if (i + j) % 3 == 0 { (on, off) } else { (if i % 2 == 0 { a } else { on }, b) };
                    all.push(dag.select(mask, on, off));
                }
            }
            mixed(dag, &all)
        });
        assert_agrees(&lanes, &traffic, &[], &format!("{op:?}"));
    }
    for op in UNARY {
        let lanes = pure(|dag| {
            let words = words(dag).into_iter();
            let narrow = |dag: &mut Dag, a| if op == Unary::SwapBytes16 { dag.and(a, 0xffff) } else { a };
            let all: Vec<Node> = words.map(|a| narrow(dag, a)).collect();
            let all: Vec<Node> = all.into_iter().map(|a| dag.unary(op, a)).collect();
            mixed(dag, &all)
        });
        assert_agrees(&lanes, &traffic, &[], &format!("{op:?}"));
    }
    let lanes = pure(|dag| {
        let all = FIELDS.map(|field| dag.metadata(field));
        mixed(dag, &all)
    });
    assert_agrees(&lanes, &traffic, &[], "metadata");
}

/// Whether code for groups of eight packets was generated.
fn has_avx2_code(lanes: &LaneIr, offsets: OffsetStrategy) -> bool {
    let isa = Processor::Host.isa().unwrap();
    let lowered = lower(lanes, offsets, true, &*isa).unwrap().expect("both strategies have code");
    matches!(lowered.body, CompiledBody::Machine { .. })
}

#[test]
fn avx2_code_is_generated_if_every_operation_has_an_instruction() {
    if !avx2::is_supported(&*Processor::Host.isa().unwrap()) {
        eprintln!("skipped: this processor has no AVX2");
        return;
    }
    assert!(has_avx2_code(&simple_filter(), OffsetStrategy::Gather));
    let offsets = [OffsetStrategy::Speculate, OffsetStrategy::Gather];
    assert_eq!(offsets.map(|offsets| has_avx2_code(&behind_a_header(14, Some(4)), offsets)), [true, true]);
    // An operation without an AVX2 instruction falls back to groups of four.
    let lanes = pure(|dag| {
        let length = dag.length();
        dag.unary(Unary::CountOnes, length)
    });
    assert!(!has_avx2_code(&lanes, OffsetStrategy::Gather));
}

#[test]
fn a_long_arm_is_skipped_only_if_no_packet_takes_it() {
    // Groups in which all packets take the arm, in which none does, and mixed ones.
    let mut traffic = traffic(96, 100);
    for (i, packet) in traffic.packets.iter_mut().enumerate() {
        packet.resize(packet.len().max(2), 7);
        packet[0] = match i / 8 % 3 {
            0 => 0,
            1 => 1,
            _ => (i % 3 == 1).into(),
        };
    }
    for (is_accept, jump) in [(true, "lanes: None"), (false, "lanes: All")] {
        let lanes = pure(|dag| {
            let first = checked(dag, None, 0, 1);
            let one = dag.constant(1);
            let takes = dag.compare(Compare::Equal, first, one);
            let parts: Vec<Node> = (0..20).map(|i| checked(dag, None, 2 + 3 * i, 2)).collect();
            // A value that other code needs as well.
            let (arm, shared) = (mixed(dag, &parts), dag.add_constant(parts[3], 5));
            let other = dag.length();
            let chosen = if is_accept { dag.select(takes, arm, other) } else { dag.select(takes, other, arm) };
            mixed(dag, &[chosen, shared])
        });
        assert_agrees(&lanes, &traffic, &[], jump);
        if avx2::is_supported(&*Processor::Host.isa().unwrap()) {
            let isa = Processor::Host.isa().unwrap();
            let lowered =
                lower(&lanes, OffsetStrategy::Gather, true, &*isa).unwrap().expect("both strategies have code");
            assert!(lowered.body.to_string().contains(jump), "{}", lowered.body);
        }
    }
}

/// More live values than registers.
#[test]
fn spilled_values_are_preserved() {
    let traffic = traffic(64, 120);
    for count in [13, 14, 15, 16, 24, 40] {
        let lanes = pure(|dag| {
            let mut all: Vec<Node> = (0..count).map(|i| checked(dag, None, 2 * i + 1, 1 + i % 2)).collect();
            let header = checked(dag, None, 0, 1);
            let header = dag.and(header, 0x3f);
            let far = checked(dag, Some(header), 3, 4);
            let first = mixed(dag, &all);
            all.extend([far, first]);
            all.reverse();
            let odd = dag.and(first, 1);
            let odd = dag.nonzero_mask(odd);
            let chosen = dag.select(odd, all[0], all[5]);
            all.push(chosen);
            mixed(dag, &all)
        });
        assert_agrees(&lanes, &traffic, &[], &format!("{count} values"));
    }
}

#[test]
fn loads_at_every_offset_agree_with_the_interpreter() {
    // Long enough to reach beyond the bytes that may be read of any packet.
    let traffic = traffic(32, 160);
    for size in [1, 2, 4] {
        for turned in [false, true] {
            for at in 0..140 {
                let lanes = pure(|dag| {
                    let near = checked(dag, None, at, size);
                    let far = checked(dag, None, (at * 7 + 3) % 150, 4);
                    let near = if turned { dag.swap_bytes(near, size) } else { near };
                    let load = dag.load(Load { root: None, add: at / 2, size });
                    let length = dag.length();
                    let there = dag.at_least(length, at / 2 + size);
                    let swapped = dag.swap_bytes(load, size);
                    let zero = dag.constant(0);
                    let third = dag.select(there, swapped, zero);
                    mixed(dag, &[near, far, third])
                });
                assert_agrees(&lanes, &traffic, &[], &format!("{size} bytes at {at}"));
            }
        }
    }
}

/// Loads behind a header whose length is in the packet.
fn behind_a_header(far: u32, only_where: Option<u32>) -> LaneIr {
    pure(|dag| {
        let first = checked(dag, None, 1, 1);
        let units = dag.and(first, 0xf);
        let four = dag.constant(4);
        let header = dag.binary(Binary::Multiply, units, four);
        let all: Vec<_> =
            [(0, 2), (2, 2), (5, 1), (8, 4)].map(|(at, size)| checked(dag, Some(header), far + at, size)).into();
        let sum = mixed(dag, &all);
        let Some(kind) = only_where else { return sum };
        let (is, kind) = (checked(dag, None, 0, 1), dag.constant(kind));
        let is = dag.compare(Compare::Equal, is, kind);
        let other = dag.constant(77);
        dag.select(is, sum, other)
    })
}

#[test]
fn right_and_wrong_speculation_agree_with_the_interpreter() {
    for (share, only_where) in [(0, None), (10, None), (100, None), (10, Some(4)), (100, Some(4))] {
        for far in [0, 14, 60, 100, 3000] {
            let mut traffic = traffic(400, 160);
            let mut random = Random(share + 1);
            for packet in &mut traffic.packets {
                if packet.len() > 1 {
                    packet[0] = random.next() as u8 % 5;
                    packet[1] = if u64::from(random.next() % 100) < share { random.next() as u8 } else { 0x45 };
                }
            }
            let lanes = behind_a_header(far, only_where);
            assert_agrees(&lanes, &traffic, &[], &format!("{share} % of other headers, {far} bytes"));
        }
    }
    let isa = Processor::Host.isa().unwrap();
    let speculations = |far| Plan::new(&mut behind_a_header(far, Some(4)), OffsetStrategy::Speculate).speculations;
    let speculation = speculations(14).into_values().next().expect("the offset has a usual value");
    assert_eq!((speculation.value, speculation.loads.len(), speculation.lanes.is_some()), (20, 4, true));
    // Beyond the bytes that may be read of any packet there is no speculation.
    assert!(speculations(3000).is_empty());
    assert!(lower(&behind_a_header(3000, None), OffsetStrategy::Speculate, true, &*isa).unwrap().is_none());
}

/// An unbounded offset: accesses must not leave the packet.
#[test]
fn loads_at_unbounded_offsets_stay_in_the_packet() {
    let mut traffic = traffic(64, 40);
    for (i, packet) in traffic.packets.iter_mut().enumerate() {
        if packet.len() >= 4 {
            let length = packet.len() as u32;
            let offset = [length - 4, length - 3, length, u32::MAX - 3, 0x4000_0000, 0, 1, 4][i % 8];
            packet[..4].copy_from_slice(&offset.to_le_bytes());
        }
    }
    for size in [1, 2, 4] {
        let lanes = pure(|dag| {
            let root = checked(dag, None, 0, 4);
            let load = dag.load(Load { root: Some(root), add: 0, size });
            let (length, bytes) = (dag.length(), dag.constant(size));
            let long = dag.compare(Compare::LessEqual, bytes, length);
            let room = dag.binary(Binary::Subtract, length, bytes);
            let inside = dag.compare(Compare::LessEqual, root, room);
            let inside = dag.mask_and(long, inside);
            let zero = dag.constant(0);
            dag.select(inside, load, zero)
        });
        assert_agrees(&lanes, &traffic, &[], &format!("{size} bytes anywhere"));
    }
}

#[test]
fn incomplete_groups_are_left_alone() {
    let lanes = simple_filter();
    let (code, group) = compile(&lanes, OffsetStrategy::Gather);
    let all = traffic(64, 60);
    for count in 0..=2 * group + 1 {
        let part = Traffic { packets: all.packets[..count].to_vec(), metadata: all.metadata[..count].to_vec() };
        let verdicts = run(&code, &lanes, &part, &[]).verdicts;
        let whole = count / group * group;
        assert!(verdicts[..whole].iter().all(|&verdict| verdict == 1 || verdict == 2), "{count}");
        assert!(verdicts[whole..].iter().all(|&verdict| verdict == 0xee), "{count}");
    }
}
