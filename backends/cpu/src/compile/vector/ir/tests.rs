use super::*;
use crate::vector::testing::{BINARY, COMPARE, UNARY};

/// Small numbers, and numbers at which operators overflow or change sign.
const NUMBERS: [u32; 12] = [0, 1, 2, 3, 7, 31, 0xff, 0x100, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.next() as usize % all.len()]
    }
}

/// Nodes with their values for each packet, computed independently of the graph by the operations
/// that were requested.
struct Model {
    words: Vec<(Node, Vec<u32>)>,
    masks: Vec<(Node, Vec<bool>)>,
}

/// Evaluates a node for a packet with these bytes, by the simplified operations in the graph.
fn evaluate(dag: &Dag, node: Node, bytes: &[u8; 8]) -> u32 {
    let value = |node| evaluate(dag, node, bytes);
    match dag.op(node) {
        Op::Constant(value) => value,
        Op::Flag(value) => value.into(),
        Op::Length => 8,
        Op::Load(Load { root, add, size }) => {
            assert!(root.is_none());
            bytes[add as usize..][..size as usize].iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte))
        }
        Op::Unary(op, a) => unary(op, value(a)),
        Op::Binary(op, a, b) => binary(op, value(a), value(b)),
        Op::Compare(op, a, b) => compare(op, value(a), value(b)).into(),
        Op::Select { mask, accept, reject } => {
            if value(mask) == 1 {
                value(accept)
            } else {
                value(reject)
            }
        }
        Op::And(a, b) => value(a) & value(b),
        Op::Or(a, b) => value(a) | value(b),
        Op::Not(a) => 1 - value(a),
        other => panic!("{other:?}"),
    }
}

#[test]
fn simplification_preserves_values_and_ranges() {
    for seed in 0..400 {
        let mut numbers = Numbers(seed * 7919 + 1);
        let packets: Vec<[u8; 8]> = (0..24)
            .map(|i| {
                let number = |numbers: &mut Numbers| if i % 2 == 0 { numbers.of(&NUMBERS) } else { numbers.next() };
                let (a, b) = (number(&mut numbers), number(&mut numbers));
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&a.to_le_bytes());
                bytes[4..].copy_from_slice(&b.to_le_bytes());
                bytes
            })
            .collect();
        let mut dag = Dag::new();
        let mut model = Model { words: Vec::new(), masks: Vec::new() };
        for (add, size) in [(0, 4), (4, 4), (0, 2), (4, 1), (5, 1), (6, 2)] {
            let node = dag.load(Load { root: None, add, size });
            let values = packets.iter().map(|bytes| evaluate(&dag, node, bytes)).collect();
            model.words.push((node, values));
        }
        for value in [true, false] {
            model.masks.push((dag.flag(value), vec![value; packets.len()]));
        }
        for _ in 0..60 {
            step(&mut dag, &mut model, &mut numbers, packets.len());
        }
        for (node, expected) in &model.words {
            let Range { low, high } = dag.range(*node);
            for (bytes, &expected) in packets.iter().zip(expected) {
                assert_eq!(evaluate(&dag, *node, bytes), expected, "seed {seed}: {:?}", dag.op(*node));
                assert!(low <= expected && expected <= high, "seed {seed}: {:?}", dag.op(*node));
            }
        }
        for (node, expected) in &model.masks {
            for (bytes, &expected) in packets.iter().zip(expected) {
                assert_eq!(evaluate(&dag, *node, bytes) == 1, expected, "seed {seed}: {:?}", dag.op(*node));
            }
        }
    }
}

/// Adds a random operation on existing nodes.
fn step(dag: &mut Dag, model: &mut Model, numbers: &mut Numbers, packets: usize) {
    let (a, x) = model.words[numbers.next() as usize % model.words.len()].clone();
    let (b, y) = match numbers.next() % 3 {
        0 => {
            let value = if numbers.next().is_multiple_of(4) { numbers.next() } else { numbers.of(&NUMBERS) };
            (dag.constant(value), vec![value; packets])
        }
        _ => model.words[numbers.next() as usize % model.words.len()].clone(),
    };
    let (p, u) = model.masks[numbers.next() as usize % model.masks.len()].clone();
    let (q, v) = model.masks[numbers.next() as usize % model.masks.len()].clone();
    let each = |f: &dyn Fn(usize) -> u32| (0..packets).map(f).collect::<Vec<u32>>();
    let mask = |f: &dyn Fn(usize) -> bool| (0..packets).map(f).collect::<Vec<bool>>();
    match numbers.next() % 9 {
        0 => {
            let op = numbers.of(&UNARY);
            if op != Unary::SwapBytes16 || dag.range(a).high <= 0xffff {
                model.words.push((dag.unary(op, a), each(&|i| unary(op, x[i]))));
            }
        }
        1..=3 => {
            let op = numbers.of(&BINARY);
            model.words.push((dag.binary(op, a, b), each(&|i| binary(op, x[i], y[i]))));
        }
        4 => model.words.push((dag.select(p, a, b), each(&|i| if u[i] { x[i] } else { y[i] }))),
        5 => {
            let op = numbers.of(&COMPARE);
            let (a, b, x, y) = if numbers.next().is_multiple_of(2) { (a, b, &x, &y) } else { (b, a, &y, &x) };
            model.masks.push((dag.compare(op, a, b), mask(&|i| compare(op, x[i], y[i]))));
        }
        6 => model.masks.push((dag.mask_and(p, q), mask(&|i| u[i] && v[i]))),
        7 => model.masks.push((dag.mask_or(p, q), mask(&|i| u[i] || v[i]))),
        _ => match numbers.next() % 2 {
            0 => model.masks.push((dag.mask_not(p), mask(&|i| !u[i]))),
            _ => {
                let (r, w) = model.masks[numbers.next() as usize % model.masks.len()].clone();
                model.masks.push((dag.select(r, p, q), mask(&|i| if w[i] { u[i] } else { v[i] })));
            }
        },
    }
}

#[test]
fn common_filter_expressions_are_simplified() {
    let mut dag = Dag::new();
    // load_be16(pkt, 12) == 0x0800 is compared without swapping the loaded bytes.
    let raw = dag.load(Load { root: None, add: 12, size: 2 });
    let kind = dag.swap_bytes(raw, 2);
    let ip = dag.constant(0x0800);
    let equal = dag.compare(Compare::Equal, kind, ip);
    let turned = dag.constant(0x0008);
    assert_eq!(dag.op(equal), Op::Compare(Compare::Equal, raw, turned));
    // (byte & 15) << 2 is at most 60, so adding 14 does not wrap.
    let byte = dag.load(Load { root: None, add: 14, size: 1 });
    assert_eq!(dag.and(byte, 0xff), byte);
    let low = dag.and(byte, 15);
    let four = dag.constant(4);
    let header = dag.binary(Binary::Multiply, low, four);
    assert_eq!(dag.range(header), Range::up_to(60));
    let behind = dag.add_constant(header, 14);
    assert_eq!(dag.sum(behind), (Some(header), 14));
    // A comparison and its negation are recognised in whatever form they are written.
    let length = dag.length();
    let short = {
        let c = dag.constant(34);
        dag.compare(Compare::Less, length, c)
    };
    let long = dag.at_least(length, 34);
    assert_eq!(dag.mask_not(short), long);
    assert_eq!(dag.mask_and(short, long), dag.flag(false));
    assert_eq!(dag.mask_or(short, long), dag.flag(true));
}
