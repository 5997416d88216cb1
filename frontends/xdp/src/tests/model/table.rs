//! Programs that execute every instruction with operands at all corners, known at compile time,
//! only at run time, or partly (a byte, a number of a narrow range).
//!
//! A packet starts with two 64-bit numbers. The results of the instructions are stored after them,
//! so that one program executes many.

use super::{Code, Instruction, MapSpec, op};

/// Numbers at which instructions change their behaviour.
pub const CORNERS: [u64; 24] = [
    0,
    1,
    2,
    7,
    8,
    16,
    31,
    32,
    33,
    63,
    64,
    65,
    0xff,
    0x8000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_8000_0001,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x0123_4567_89ab_cdef,
    0xffff_ffff_8000_0000,
    0xffff_ffff_ffff_ffff,
];

/// A program with packets for it.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub code: Code,
    pub packets: Vec<Vec<u8>>,
    /// Whether all results are known at compile time.
    pub is_constant: bool,
    /// Whether the kernel accepts the program.
    pub for_kernel: bool,
}

/// Results per program, limited because some drivers compile slowly.
const RESULTS: usize = 24;
/// Offset of the first result, and length of a packet.
const FIRST: usize = 24;
const LENGTH: usize = FIRST + 8 * RESULTS;

/// Source of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperandSource {
    /// 64 bits of the packet.
    Whole,
    /// Low bytes of the packet's number, zero-extended.
    Word,
    Byte,
    /// A value from 31 to 46.
    Narrow,
    /// A value from -8 to -1.
    Negative,
    /// Sign-extended from 32 bits.
    Extended,
    /// A constant in a register.
    Known(u64),
    /// A constant in the instruction.
    Immediate(i32),
}

const FROM_PACKETS: [OperandSource; 6] = [
    OperandSource::Whole,
    OperandSource::Word,
    OperandSource::Byte,
    OperandSource::Narrow,
    OperandSource::Negative,
    OperandSource::Extended,
];

/// Instructions that load an operand to a register, from this offset of the packet.
fn given(from: OperandSource, register: u8, at: i16) -> Vec<Instruction> {
    let load = |code| op(code, register, 6, at, 0);
    let by = |code, imm| op(code, register, 0, 0, imm);
    match from {
        OperandSource::Whole => vec![load(0x79)],
        OperandSource::Word => vec![load(0x61)],
        OperandSource::Byte => vec![load(0x71)],
        OperandSource::Narrow => vec![load(0x79), by(0x57, 15), by(0x07, 31)],
        OperandSource::Negative => vec![load(0x71), by(0x57, 7), by(0x07, -8)],
        OperandSource::Extended => vec![load(0x61), by(0x67, 32), by(0xc7, 32)],
        OperandSource::Known(value) => {
            vec![op(0x18, register, 0, 0, value as i32), op(0, 0, 0, 0, (value >> 32) as i32)]
        }
        OperandSource::Immediate(_) => Vec::new(),
    }
}

/// Arithmetic with two operands, the second in a register: opcode and offset.
fn arithmetic() -> Vec<(u8, i16)> {
    let mut all = Vec::new();
    for class in [4, 7] {
        for operation in [0_u8, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12] {
            let code = operation << 4 | 8 | class;
            all.push((code, 0));
            match operation {
                3 | 9 => all.push((code, 1)),
                11 => all.extend([(code, 8), (code, 16)]),
                _ => {}
            }
        }
    }
    all.push((0xbf, 32));
    all
}

/// Arithmetic with one operand: opcode and constant.
const UNARY: [(u8, i32); 11] = [
    (0x84, 0),
    (0x87, 0),
    (0xd4, 16),
    (0xd4, 32),
    (0xd4, 64),
    (0xdc, 16),
    (0xdc, 32),
    (0xdc, 64),
    (0xd7, 16),
    (0xd7, 32),
    (0xd7, 64),
];

/// Conditional jumps with a register operand.
fn conditions() -> Vec<u8> {
    let all = [1_u8, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13];
    [5, 6].into_iter().flat_map(|class| all.map(|condition| condition << 4 | 8 | class)).collect()
}

/// An arithmetic instruction that leaves its result in r2.
fn computed(code: u8, off: i16, a: OperandSource, b: OperandSource) -> Vec<Instruction> {
    let mut all = given(a, 2, 0);
    all.extend(given(b, 3, 8));
    all.push(match b {
        OperandSource::Immediate(imm) => op(code & !8, 2, 0, off, imm),
        _ => op(code, 2, 3, off, 0),
    });
    all
}

/// A jump between two operands; r2 tells the edges apart, and the operands on each.
fn branched(code: u8, a: OperandSource, b: OperandSource) -> Vec<Instruction> {
    let mut all = given(a, 2, 0);
    all.extend(given(b, 3, 8));
    let (code, imm) = if let OperandSource::Immediate(imm) = b { (code & !8, imm) } else { (code, 0) };
    let by_register = code & 8 != 0;
    all.extend([
        op(code, 2, if by_register { 3 } else { 0 }, 3, imm),
        // The fall-through.
        if by_register { op(0x0f, 2, 3, 0, 0) } else { op(0x07, 2, 0, 0, 5) },
        op(0xa7, 2, 0, 0, 0x55),
        op(0x05, 0, 0, 2, 0),
        // The taken edge.
        if by_register { op(0x1f, 2, 3, 0, 0) } else { op(0x17, 2, 0, 0, 5) },
        op(0x27, 2, 0, 0, 3),
    ]);
    all
}

/// Listing of the instructions that produce the result at a byte of the packet.
pub fn part(code: &Code, at: usize) -> String {
    let stores = |it: &Instruction| it.code == 0x7b && it.dst == 6 && it.off as usize >= FIRST;
    let number = at.saturating_sub(FIRST) / 8;
    let parts = code.instructions.split_inclusive(stores).nth(number).unwrap_or_default();
    parts.iter().map(|it| format!("{it} (off {}, imm {})\n", it.off, it.imm)).collect()
}

/// Whether the kernel accepts an instruction: no shift by a constant beyond the width, no division
/// by a constant zero.
fn is_for_kernel(code: u8, b: OperandSource) -> bool {
    let OperandSource::Immediate(imm) = b else { return true };
    match code >> 4 {
        6 | 7 | 12 => (0..if code & 7 == 7 { 64 } else { 32 }).contains(&imm),
        3 | 9 => imm != 0,
        _ => true,
    }
}

/// Programs made of parts, each of which leaves a result in r2.
fn programs(name: &str, parts: &[Vec<Instruction>], packets: &[Vec<u8>], maps: &[MapSpec]) -> Vec<Case> {
    let is_constant = packets.len() == 1;
    let cases = parts.chunks(RESULTS).enumerate().map(|(number, parts)| {
        let mut code = beginning(maps);
        for (result, part) in parts.iter().enumerate() {
            code.extend(part);
            code.push(op(0x7b, 6, 2, (FIRST + 8 * result) as i16, 0));
        }
        code.extend([op(0xb7, 0, 0, 0, 2), op(0x95, 0, 0, 0, 0)]);
        let code = Code { instructions: code, functions: vec![0], maps: maps.to_vec() };
        Case { name: format!("{name} {number}"), code, packets: packets.to_vec(), is_constant, for_kernel: true }
    });
    cases.collect()
}

/// Prologue: pointer to the packet in r6, checked for its length; pointer to the first map's value
/// in r8.
fn beginning(maps: &[MapSpec]) -> Vec<Instruction> {
    let mut code = vec![
        op(0x61, 6, 1, 0, 0),
        op(0x61, 7, 1, 4, 0),
        op(0xbf, 1, 6, 0, 0),
        op(0x07, 1, 0, 0, LENGTH as i32),
        op(0xbd, 1, 7, 2, 0),
        op(0xb7, 0, 0, 0, 1),
        op(0x95, 0, 0, 0, 0),
    ];
    if !maps.is_empty() {
        code.extend([
            op(0x62, 10, 0, -4, 0),
            op(0xbf, 2, 10, 0, 0),
            op(0x07, 2, 0, 0, -4),
            op(0x18, 1, 1, 0, 0),
            op(0, 0, 0, 0, 0),
            op(0x85, 0, 0, 0, 1),
            op(0x55, 0, 0, 2, 0),
            op(0xb7, 0, 0, 0, 1),
            op(0x95, 0, 0, 0, 0),
            op(0xbf, 8, 0, 0, 0),
        ]);
    }
    code
}

fn packet(a: u64, b: u64) -> Vec<u8> {
    let mut packet = [a.to_le_bytes(), b.to_le_bytes()].concat();
    packet.extend(a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b).to_le_bytes());
    packet.resize(LENGTH, 0xa5);
    packet
}

/// Packets with every pair of corners.
pub fn pairs() -> Vec<Vec<u8>> {
    CORNERS.iter().flat_map(|&a| CORNERS.map(|b| packet(a, b))).collect()
}

/// Packets with every corner in either position.
fn some_pairs() -> Vec<Vec<u8>> {
    let others = |i: usize| [i, i + 1, 3 * i + 5, 7 * i + 11].map(|other| CORNERS[other % CORNERS.len()]);
    CORNERS.iter().enumerate().flat_map(|(i, &a)| others(i).map(|b| packet(a, b))).collect()
}

/// Packets with every corner in the first position.
fn singles() -> Vec<Vec<u8>> {
    CORNERS.iter().enumerate().map(|(i, &a)| packet(a, CORNERS[CORNERS.len() - 1 - i])).collect()
}

/// Packets with the same corner in both positions.
fn twins() -> Vec<Vec<u8>> {
    CORNERS.map(|a| packet(a, a)).to_vec()
}

/// Corners that fit an instruction's constant.
fn immediates() -> impl Iterator<Item = OperandSource> {
    CORNERS
        .into_iter()
        .filter(|&value| i64::from(value as i32) as u64 == value)
        .map(|value| OperandSource::Immediate(value as i32))
}

/// Every pair of operands.
fn all(of: &[OperandSource], with: &[OperandSource]) -> Vec<(OperandSource, OperandSource)> {
    of.iter().flat_map(|&a| with.iter().map(move |&b| (a, b))).collect()
}

/// A third of the pairs, a different one for each instruction.
fn thirds(of: &[OperandSource], with: &[OperandSource], code: u8) -> Vec<(OperandSource, OperandSource)> {
    let third = |(number, _): &(usize, (OperandSource, OperandSource))| (number + usize::from(code >> 3)) % 3 == 0;
    all(of, with).into_iter().enumerate().filter(third).map(|(_, pair)| pair).collect()
}

/// Arithmetic instructions.
pub fn of_arithmetic() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut others = Vec::new();
    let mut make = |pairs: &mut dyn FnMut(u8, i16) -> Vec<(OperandSource, OperandSource)>| {
        let mut parts = Vec::new();
        for (code, off) in arithmetic() {
            for (a, b) in pairs(code, off) {
                // Sign-extending moves take a register only.
                if matches!(b, OperandSource::Immediate(_)) && code >> 4 == 11 && off != 0 {
                    continue;
                }
                let part = computed(code, off, a, b);
                if is_for_kernel(code, b) { parts.push(part) } else { others.push(part) }
            }
        }
        parts
    };
    let known = CORNERS.map(OperandSource::Known);
    let immediates: Vec<OperandSource> = immediates().collect();
    let whole = [OperandSource::Whole, OperandSource::Word];
    let both = make(&mut |_, _| all(&whole, &whole));
    cases.extend(programs("arithmetic, both from the packet", &both, &pairs(), &[]));
    let both = make(&mut |_, _| all(&FROM_PACKETS, &FROM_PACKETS));
    cases.extend(programs("arithmetic, of narrow numbers", &both, &some_pairs(), &[]));
    let second = make(&mut |_, _| all(&whole, &[&known[..], &immediates].concat()));
    cases.extend(programs("arithmetic, the second known", &second, &singles(), &[]));
    let first = make(&mut |_, _| all(&known, &whole));
    cases.extend(programs("arithmetic, the first known", &first, &twins(), &[]));
    let seconds = [&known[..], &immediates].concat();
    let none = make(&mut |code, _| thirds(&known, &seconds, code));
    cases.extend(programs("arithmetic, both known", &none, &[packet(3, 5)], &[]));
    let others = programs("arithmetic that the kernel refuses", &others, &singles(), &[]);
    cases.extend(others.into_iter().map(|case| Case { for_kernel: false, ..case }));
    let mut unary = Vec::new();
    for (code, imm) in UNARY {
        for a in FROM_PACKETS {
            unary.push([given(a, 2, 0), vec![op(code, 2, 0, 0, imm)]].concat());
        }
    }
    cases.extend(programs("one operand", &unary, &singles(), &[]));
    let mut unary = Vec::new();
    for (code, imm) in UNARY {
        for a in known {
            unary.push([given(a, 2, 0), vec![op(code, 2, 0, 0, imm)]].concat());
        }
    }
    cases.extend(programs("one operand, known", &unary, &[packet(3, 5)], &[]));
    // Both operands in one register.
    let mut same = Vec::new();
    for (code, off) in arithmetic() {
        for a in FROM_PACKETS {
            same.push([given(a, 2, 0), vec![op(code, 2, 2, off, 0)]].concat());
        }
    }
    cases.extend(programs("a register with itself", &same, &singles(), &[]));
    cases
}

/// Jump instructions.
pub fn of_jumps() -> Vec<Case> {
    let known = CORNERS.map(OperandSource::Known);
    let immediates: Vec<OperandSource> = immediates().collect();
    let seconds = [&known[..], &immediates].concat();
    let each = |of: &[OperandSource], with: &[OperandSource], step: usize| {
        let mut parts = Vec::new();
        for code in conditions() {
            let pairs = if step == 1 { all(of, with) } else { thirds(of, with, code) };
            parts.extend(pairs.into_iter().map(|(a, b)| branched(code, a, b)));
        }
        parts
    };
    let make = |of: &[OperandSource], with: &[OperandSource]| each(of, with, 1);
    let whole = [OperandSource::Whole, OperandSource::Word];
    let mut cases = programs("jumps, both from the packet", &make(&whole, &whole), &pairs(), &[]);
    cases.extend(programs("jumps, of narrow numbers", &make(&FROM_PACKETS, &FROM_PACKETS), &some_pairs(), &[]));
    cases.extend(programs("jumps, the second known", &make(&whole, &seconds), &singles(), &[]));
    cases.extend(programs("jumps, the first known", &make(&known, &whole), &twins(), &[]));
    cases.extend(programs("jumps, both known", &each(&known, &seconds, 3), &[packet(3, 5)], &[]));
    // Jumps over an instruction that is reachable otherwise, with 16-bit and 32-bit distances.
    let over = |code: u8, off: i16, imm: i32| {
        let either = [op(0x71, 2, 6, 0, 0), op(0x25, 2, 0, 2, 7), op(0xb7, 2, 0, 0, 5)];
        [&either[..], &[op(code, 0, 0, off, imm), op(0xb7, 2, 0, 0, 9), op(0x07, 2, 0, 0, 1)]].concat()
    };
    cases.extend(programs("jumps without a condition", &[over(0x05, 1, 0), over(0x06, 0, 1)], &singles(), &[]));
    cases
}

/// Loads and stores of every size in the packet, the stack and a map's value.
pub fn of_memory() -> Vec<Case> {
    let value = MapSpec { ty: 2, key: 4, value: 48, entries: 3 };
    let mut cases = Vec::new();
    // In the packet, use the bytes of a third number.
    for (name, base, at, maps) in
        [("packet", 6_u8, 16_i16, &[][..]), ("stack", 10, -16, &[]), ("map's value", 8, 16, &[value][..])]
    {
        let aligned = base == 10;
        let mut parts = Vec::new();
        // Two adjacent numbers, except in the packet, where results follow.
        let fill = [op(0x79, 2, 6, 0, 0), op(0x79, 3, 6, 8, 0), op(0x7b, base, 2, at, 0)];
        let fill = if base == 6 { fill.to_vec() } else { [&fill[..], &[op(0x7b, base, 3, at + 8, 0)]].concat() };
        let room = if base == 6 { 8 } else { 16 };
        for (size, bits) in [(1_i16, 0x10_u8), (2, 0x08), (4, 0x00), (8, 0x18)] {
            let step = if aligned { size } else { 1 };
            for off in (0..=room - size).step_by(step as usize) {
                // Loads: mode 3, and sign-extending mode 4.
                for mode in [3_u8, 4] {
                    if mode == 3 || size < 8 {
                        parts.push([fill.clone(), vec![op(mode << 5 | bits | 1, 2, base, at + off, 0)]].concat());
                    }
                }
                // Stores of a register and of constants.
                let stores = [op(0x60 | bits | 3, base, 3, at + off, 0)].into_iter().chain(
                    [0, 1, -1, i32::MIN, i32::MAX, 0x1234_5678].map(|imm| op(0x60 | bits | 2, base, 0, at + off, imm)),
                );
                for store in stores {
                    for read in (0..room).step_by(8) {
                        parts.push([fill.clone(), vec![store, op(0x79, 2, base, at + read, 0)]].concat());
                    }
                }
            }
        }
        cases.extend(programs(&format!("loads and stores, {name}"), &parts, &singles(), maps));
    }
    cases
}

/// Atomic operations on the stack and a map's value, except 64-bit compare-and-exchange in a map.
pub fn of_atomics() -> Vec<Case> {
    let value = MapSpec { ty: 2, key: 4, value: 48, entries: 3 };
    let mut cases = Vec::new();
    for (name, base, at, maps) in [("stack", 10_u8, -16_i16, &[][..]), ("map's value", 8, 16, &[value][..])] {
        let mut parts = Vec::new();
        for (code, size) in [(0xc3_u8, 4_i16), (0xdb, 8)] {
            for imm in [0x00, 0x01, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1] {
                if imm == 0xf1 && size == 8 && base == 8 {
                    continue;
                }
                for off in (0..8).step_by(size as usize) {
                    for amount in [
                        OperandSource::Whole,
                        OperandSource::Byte,
                        OperandSource::Known(u64::MAX),
                        OperandSource::Known(1),
                    ] {
                        // Compare with what is there, or with another number.
                        for other in [0_i16, 8] {
                            if imm != 0xf1 && other != 0 {
                                continue;
                            }
                            let mut part = vec![op(0x79, 2, 6, 0, 0), op(0x7b, base, 2, at, 0)];
                            part.extend(given(amount, 3, 8));
                            part.extend([op(if size == 4 { 0x61 } else { 0x79 }, 0, 6, other + off, 0)]);
                            part.push(op(code, base, 3, at + off, imm));
                            for last in [
                                op(0x79, 2, base, at, 0),
                                op(0xbf, 2, 3, 0, 0),
                                // Only compare-and-exchange sets r0.
                                op(0xbf, 2, 0, 0, 0),
                            ] {
                                parts.push([part.clone(), vec![last]].concat());
                            }
                        }
                    }
                }
            }
        }
        cases.extend(programs(&format!("atomics, {name}"), &parts, &some_pairs(), maps));
    }
    cases
}
