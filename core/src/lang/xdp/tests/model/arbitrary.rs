//! Programs that nobody would write, and that the kernel takes for the most part: whatever is read was set, accesses lie in
//! memory, packets are compared with their ends, loops are bounded. What they compute is added up in the end.

use super::{Code, Instruction, MapOf, Random, op};

/// What a register holds, as far as the rest of a program may rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unset,
    Number,
    Context,
    /// Into the packet, of which so many bytes are there from it on.
    Packet(i32),
    /// 16 bytes of the caller's stack.
    Outer,
    /// To a map's value, of which so many bytes are left.
    Value(usize, i32),
}

impl Kind {
    fn is_packet(self) -> bool {
        matches!(self, Kind::Packet(_))
    }
}

/// Eight bytes of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Unset,
    Bytes,
    Kept(Kind),
}

/// Slots that are used: the first is at the top, -8.
const SLOTS: usize = 8;

/// Maps: an array that results are added up in, a hash, a small array, and one per processor.
pub const MAPS: [MapOf; 4] = [
    MapOf { ty: 2, key: 4, value: 16, entries: 2 },
    MapOf { ty: 1, key: 8, value: 24, entries: 64 },
    MapOf { ty: 2, key: 4, value: 12, entries: 5 },
    MapOf { ty: 6, key: 4, value: 32, entries: 3 },
];

/// What there is at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    registers: [Kind; 10],
    slots: [Slot; SLOTS],
    /// Registers and slots that may not be written.
    frozen: u32,
    frozen_slots: u32,
}

/// A program being made.
struct Making<'r> {
    random: &'r mut Random,
    code: Vec<Instruction>,
    state: State,
    is_main: bool,
    /// How deep blocks are nested, and loops.
    depth: u32,
    loops: u32,
    /// Instructions of other functions that call: which function.
    calls: Vec<(usize, usize)>,
    /// The function's number: it calls only later ones.
    number: usize,
    functions: usize,
}

/// Functions: the odd ones are those of `bpf_loop`.
const FUNCTIONS: usize = 4;

/// A program of about so many statements.
pub fn program(random: &mut Random, budget: u32) -> Code {
    let mut whole = Code { maps: MAPS.to_vec(), ..Code::default() };
    let mut calls = Vec::new();
    let functions = if random.once_in(3) { FUNCTIONS } else { 0 };
    let mut called = vec![true];
    called.resize(functions + 1, false);
    for number in 0..=functions {
        let first = whole.instructions.len();
        if !called[number] {
            whole.functions.push(usize::MAX);
            continue;
        }
        whole.functions.push(first);
        let mut making = Making::new(random, number, functions);
        making.function(if number == 0 { budget } else { budget / 4 });
        for &(at, to) in &making.calls {
            called[to] = true;
            calls.push((first + at, to));
        }
        whole.instructions.extend(making.code);
    }
    for (at, to) in calls {
        whole.instructions[at].imm = (whole.functions[to] as i64 - at as i64 - 1) as i32;
    }
    whole.functions.retain(|&first| first != usize::MAX);
    whole
}

/// Packets for such programs: of 14 bytes and more, as the kernel takes them.
pub fn packets(random: &mut Random, count: usize) -> Vec<Vec<u8>> {
    let packet = |_| {
        let length = 14 + random.below(90);
        let kind = random.below(4);
        let byte = |random: &mut Random| match kind {
            0 => random.below(4) as u8,
            1 => random.pick(&[0, 0xff, 0x80, 0x7f, 1]),
            _ => random.number() as u8,
        };
        (0..length).map(|_| byte(random)).collect()
    };
    (0..count).map(packet).collect()
}

/// Changes something of a program: mostly it is none the kernel takes any more.
pub fn damaged(random: &mut Random, code: &Code) -> Code {
    let mut code = code.clone();
    for _ in 0..1 + random.below(3) {
        let count = code.instructions.len() as u32;
        let at = random.below(count) as usize;
        let other = code.instructions[random.below(count) as usize];
        let it = &mut code.instructions[at];
        match random.below(10) {
            0 => it.code = random.number() as u8,
            1 => it.code ^= 1 << random.below(8),
            2 => it.dst = random.below(11) as u8,
            3 => it.src = random.below(11) as u8,
            4 => it.off = it.off.wrapping_add(random.pick(&[-8, -4, -1, 1, 2, 4, 8])),
            5 => it.imm = it.imm.wrapping_add(random.pick(&[-1, 1, 8, -8, 1 << 31, 0x7fff_ffff])),
            6 => it.imm = constant(random),
            7 => *it = other,
            8 => {
                code.instructions.remove(at);
                code.functions.iter_mut().filter(|first| **first > at).for_each(|first| *first -= 1);
            }
            _ => code.instructions.swap(at, (at + 1) % count as usize),
        }
        if code.instructions.is_empty() {
            break;
        }
    }
    let count = code.instructions.len();
    code.functions.retain(|&first| first < count);
    code.functions.dedup();
    code
}

/// Instructions of no kind, some of which are what they should be.
pub fn noise(random: &mut Random, count: u32) -> Code {
    let any = |random: &mut Random| {
        let code = match random.below(4) {
            0 => random.number() as u8,
            1 => random.pick(&[0x61, 0x69, 0x71, 0x79, 0x63, 0x7b, 0x62, 0x7a, 0x73, 0xdb, 0xc3, 0x91, 0x81]),
            2 => (random.below(14) as u8) << 4 | random.pick(&[5, 6, 13, 14]),
            _ => (random.below(14) as u8) << 4 | random.pick(&[4, 7, 12, 15]),
        };
        let off = random.pick(&[0, 0, 0, 1, 2, 3, 4, 8, -8, -16, 16]);
        op(code, random.below(4) as u8, random.pick(&[0, 1, 2, 3, 10]), off, constant(random))
    };
    let mut instructions = vec![op(0x61, 2, 1, 0, 0), op(0x61, 3, 1, 4, 0), op(0xb7, 0, 0, 0, random.below(5) as i32)];
    instructions.extend((0..count).map(|_| any(random)));
    instructions.extend([op(0x57, 0, 0, 0, 3), op(0x95, 0, 0, 0, 0)]);
    Code { instructions, functions: vec![0], maps: MAPS.to_vec() }
}

fn constant(random: &mut Random) -> i32 {
    match random.below(6) {
        0 => random.number() as i32,
        1 => random.pick(&[i32::MIN, i32::MAX, -1, -8, 0x8000, 0xffff, 0x1_0000]),
        2 => 1_i32.wrapping_shl(random.below(32)),
        _ => random.below(70) as i32,
    }
}

impl<'r> Making<'r> {
    fn new(random: &'r mut Random, number: usize, functions: usize) -> Making<'r> {
        let state = State { registers: [Kind::Unset; 10], slots: [Slot::Unset; SLOTS], frozen: 0, frozen_slots: 0 };
        let is_main = number == 0;
        Making { random, code: Vec::new(), state, is_main, depth: 0, loops: 0, calls: Vec::new(), number, functions }
    }

    fn emit(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.code.push(op(code, dst, src, off, imm));
    }

    fn function(&mut self, budget: u32) {
        if self.is_main {
            self.emit(0xbf, 6, 1, 0, 0);
            self.state.registers[6] = Kind::Context;
            self.state.frozen = 1 << 6;
            self.state.registers[1] = Kind::Unset;
        } else {
            let is_round = self.number % 2 == 1;
            self.state.registers[1] = Kind::Number;
            self.state.registers[2] = if is_round { Kind::Outer } else { Kind::Number };
            self.state.registers[3] = if is_round { Kind::Unset } else { Kind::Outer };
        }
        // Something to begin with.
        for register in [7, 8] {
            let imm = constant(self.random);
            self.emit(0xb7, register, 0, 0, imm);
            self.state.registers[usize::from(register)] = Kind::Number;
        }
        self.block(budget);
        self.end();
    }

    /// Adds up what there is, and returns.
    fn end(&mut self) {
        let numbers: Vec<u8> = (1..10).filter(|&r| self.state.registers[usize::from(r)] == Kind::Number).collect();
        let has_result = self.state.registers[0] == Kind::Number;
        if !has_result {
            self.emit(0xb7, 0, 0, 0, 1);
        }
        for register in numbers {
            self.emit(0x27, 0, 0, 0, 31);
            self.emit(0xaf, 0, register, 0, 0);
        }
        for slot in 0..SLOTS {
            if self.state.slots[slot] == Slot::Bytes {
                self.emit(0x79, 1, 10, at(slot), 0);
                self.emit(0x27, 0, 0, 0, 33);
                self.emit(0x0f, 0, 1, 0, 0);
            }
        }
        if self.is_main {
            // r0 is added to the first map's first value.
            self.emit(0xbf, 7, 0, 0, 0);
            self.emit(0x62, 10, 0, -4, 0);
            self.emit(0xbf, 2, 10, 0, 0);
            self.emit(0x07, 2, 0, 0, -4);
            self.map(1, 0);
            self.emit(0x85, 0, 0, 0, 1);
            self.emit(0x15, 0, 0, 4, 0);
            self.emit(0x79, 1, 0, 0, 0);
            self.emit(0x27, 1, 0, 0, 7);
            self.emit(0x0f, 1, 7, 0, 0);
            self.emit(0x7b, 0, 1, 0, 0);
            self.emit(0xbf, 0, 7, 0, 0);
            self.emit(0x57, 0, 0, 0, 3);
        } else if self.number % 2 == 1 {
            self.emit(0x57, 0, 0, 0, 1);
        }
        self.emit(0x95, 0, 0, 0, 0);
    }

    fn map(&mut self, register: u8, map: usize) {
        self.emit(0x18, register, 1, 0, map as i32);
        self.emit(0, 0, 0, 0, 0);
    }

    fn block(&mut self, budget: u32) {
        for _ in 0..budget {
            self.statement();
        }
    }

    fn is_frozen(&self, register: u8) -> bool {
        self.state.frozen >> register & 1 != 0
    }

    /// A register that may be written.
    fn free(&mut self) -> u8 {
        loop {
            let register = self.random.below(10) as u8;
            if !self.is_frozen(register) {
                return register;
            }
        }
    }

    fn set(&mut self, register: u8, kind: Kind) {
        self.state.registers[usize::from(register)] = kind;
    }

    fn of(&self, register: u8) -> Kind {
        self.state.registers[usize::from(register)]
    }

    fn any(&mut self, is_it: impl Fn(Kind) -> bool) -> Option<u8> {
        let all: Vec<u8> = (0..10).filter(|&register| is_it(self.of(register))).collect();
        if all.is_empty() { None } else { Some(self.random.pick(&all)) }
    }

    /// A number that may be written.
    fn own_number(&mut self) -> u8 {
        let frozen = self.state.frozen;
        let all: Vec<u8> = (0..10).filter(|&r| self.of(r) == Kind::Number && frozen >> r & 1 == 0).collect();
        if !all.is_empty() && !self.random.once_in(6) {
            return self.random.pick(&all);
        }
        let register = self.free();
        self.fresh(register);
        register
    }

    fn number(&mut self) -> u8 {
        match self.any(|kind| kind == Kind::Number) {
            Some(register) => register,
            None => self.own_number(),
        }
    }

    /// A number in a register: from the instruction.
    fn fresh(&mut self, register: u8) {
        if self.random.once_in(4) {
            let (low, high) = (constant(self.random), constant(self.random));
            self.emit(0x18, register, 0, 0, low);
            self.emit(0, 0, 0, 0, high);
        } else {
            let imm = constant(self.random);
            let code = self.random.pick(&[0xb7, 0xb4]);
            self.emit(code, register, 0, 0, imm);
        }
        self.set(register, Kind::Number);
    }

    fn statement(&mut self) {
        match self.random.below(34) {
            0..9 => self.arithmetic(),
            9 => {
                let register = self.free();
                self.fresh(register);
            }
            10 => self.moved(),
            11 | 12 => self.reach(),
            13..17 => self.memory(),
            17 | 18 => self.spill(),
            19 | 20 => self.fill(),
            21..25 if self.depth < 3 => self.branch(),
            25 if self.loops < 2 && self.depth < 3 => self.again(),
            26 | 27 => self.lookup(),
            28 => self.change(),
            29 => self.call(),
            30 => self.bytes(),
            31 if self.is_main && self.loops == 0 => self.ends(),
            32 if self.random.once_in(2) => self.distance(),
            32 if self.is_main && self.depth < 3 => self.far(),
            _ => self.narrowed(),
        }
    }

    fn arithmetic(&mut self) {
        let dst = self.own_number();
        let class = self.random.pick(&[4_u8, 7]);
        let operation = self.random.pick(&[0_u8, 0, 1, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        match operation {
            8 => self.emit(0x80 | class, dst, 0, 0, 0),
            13 => {
                let code = if class == 7 { 0xd7 } else { self.random.pick(&[0xd4, 0xdc]) };
                let imm = self.random.pick(&[16, 32, 64]);
                self.emit(code, dst, 0, 0, imm);
            }
            _ => {
                let off = match operation {
                    3 | 9 => self.random.below(2) as i16,
                    _ => 0,
                };
                if self.random.once_in(2) {
                    let src = self.number();
                    let off = match (operation, self.random.below(4)) {
                        (11, 0) => self.random.pick(&[8, 16]),
                        (11, 1) if class == 7 => 32,
                        _ => off,
                    };
                    self.emit(operation << 4 | 8 | class, dst, src, off, 0);
                } else {
                    let width = if class == 7 { 64 } else { 32 };
                    // The kernel takes no shift by more than there is, and no division by a constant zero.
                    let imm = match operation {
                        6 | 7 | 12 => self.random.below(width) as i32,
                        3 | 9 => constant(self.random).max(1),
                        _ => constant(self.random),
                    };
                    self.emit(operation << 4 | class, dst, 0, off, imm);
                }
            }
        }
    }

    /// A number within bounds, as programs come by them.
    fn narrowed(&mut self) {
        let dst = self.own_number();
        let mask = self.random.pick(&[1, 3, 7, 15, 63, 0xff, 0xffff, 0x7fff_ffff]);
        let code = self.random.pick(&[0x57, 0x54]);
        self.emit(code, dst, 0, 0, mask);
        if self.random.once_in(2) {
            let by = self.random.pick(&[1, 31, -1, -4, 64, 0xff]);
            let code = self.random.pick(&[0x07, 0x04, 0x17]);
            self.emit(code, dst, 0, 0, by);
        }
    }

    fn moved(&mut self) {
        let Some(src) = self.any(|kind| kind != Kind::Unset) else { return };
        let dst = self.free();
        self.emit(0xbf, dst, src, 0, 0);
        let kind = self.of(src);
        self.set(dst, kind);
    }

    /// A pointer into the packet behind which there are some bytes for certain.
    fn reach(&mut self) {
        if !self.is_main {
            return;
        }
        let (pointer, end, beyond) = (self.free(), self.free(), self.free());
        if pointer == end || pointer == beyond || end == beyond {
            return;
        }
        let count = 1 + self.random.below(24) as i32;
        let by = match self.random.below(3) {
            0 => {
                // Of a number in the program.
                let by = self.own_number();
                let mask = self.random.pick(&[3, 15, 31, 63]);
                if by == pointer || by == end || by == beyond {
                    return;
                }
                self.emit(0x57, by, 0, 0, mask);
                Some(by)
            }
            _ => None,
        };
        self.emit(0x61, pointer, 6, 0, 0);
        self.emit(0x61, end, 6, 4, 0);
        if let Some(by) = by {
            self.emit(0x0f, pointer, by, 0, 0);
        }
        if self.random.once_in(3) {
            let off = self.random.below(20) as i32;
            self.emit(0x07, pointer, 0, 0, off);
        }
        self.emit(0xbf, beyond, pointer, 0, 0);
        self.emit(0x07, beyond, 0, 0, count);
        // It is there: over the return.
        let (code, a, b) =
            self.random.pick(&[(0xbd, beyond, end), (0x3d, end, beyond), (0xad, beyond, end), (0x2d, end, beyond)]);
        self.emit(code, a, b, 2, 0);
        self.emit(0xb7, 0, 0, 0, 1);
        self.emit(0x95, 0, 0, 0, 0);
        self.set(pointer, Kind::Packet(count));
        self.set(end, Kind::Unset);
        self.set(beyond, Kind::Unset);
        if self.random.once_in(2) && self.random.once_in(2) {
            // Bytes from the end.
            self.set(beyond, Kind::Packet(0));
        }
    }

    /// A load, store or atomic operation.
    fn memory(&mut self) {
        let is_memory = |kind| match kind {
            Kind::Packet(count) => count > 0,
            Kind::Value(..) | Kind::Outer => true,
            _ => false,
        };
        let Some(base) = self.any(is_memory) else { return self.on_stack() };
        let (bytes, aligned) = match self.of(base) {
            Kind::Packet(count) => (count, false),
            Kind::Value(_, count) => (count, false),
            Kind::Outer => (16, true),
            _ => return self.on_stack(),
        };
        let sizes: Vec<(i32, u8)> =
            [(1, 0x10), (2, 0x08), (4, 0x00), (8, 0x18)].into_iter().filter(|(size, _)| *size <= bytes).collect();
        if sizes.is_empty() {
            return;
        }
        let (size, bits) = self.random.pick(&sizes);
        let mut off = self.random.below((bytes - size + 1) as u32) as i32;
        if aligned || self.random.once_in(2) {
            off -= off % size;
        }
        let off = off as i16;
        match self.random.below(8) {
            0..3 => {
                let dst = self.free();
                let mode = if size < 8 && self.random.once_in(3) { 0x81 } else { 0x61 };
                self.emit(mode | bits, dst, base, off, 0);
                self.set(dst, Kind::Number);
            }
            3 | 4 => {
                let src = self.number();
                self.emit(0x63 | bits, base, src, off, 0);
            }
            5 => {
                let imm = constant(self.random);
                self.emit(0x62 | bits, base, 0, off, imm);
            }
            6 if size >= 4 && i32::from(off) % size == 0 && !self.of(base).is_packet() => {
                let imm = self.random.pick(&[0, 0, 1, 0x40, 0x41, 0x51, 0xa0, 0xa1, 0xe1]);
                let src = if imm & 1 != 0 { self.own_number() } else { self.number() };
                if src != base {
                    self.emit(0xc3 | bits, base, src, off, imm);
                }
            }
            _ if size <= 8 => {
                // As clang makes of `x += y`.
                let (dst, by) = (self.free(), self.number());
                if dst == base || dst == by {
                    return;
                }
                self.emit(0x61 | bits, dst, base, off, 0);
                if self.random.once_in(2) {
                    self.emit(0x0f, dst, by, 0, 0);
                } else {
                    let imm = constant(self.random);
                    let code = self.random.pick(&[0x07, 0x04]);
                    self.emit(code, dst, 0, 0, imm);
                }
                self.emit(0x63 | bits, base, dst, off, 0);
                self.set(dst, Kind::Number);
            }
            _ => {}
        }
    }

    /// A part of a slot, read or written.
    fn on_stack(&mut self) {
        let slots: Vec<usize> = (0..SLOTS).filter(|&slot| self.state.slots[slot] == Slot::Bytes).collect();
        if slots.is_empty() {
            return self.spill();
        }
        let slot = self.random.pick(&slots);
        let (size, bits) = self.random.pick(&[(1, 0x10), (2, 0x08), (4, 0x00), (8, 0x18)]);
        let off = at(slot) + (self.random.below(8 / size) * size) as i16;
        let frozen = self.state.frozen_slots >> slot & 1 != 0;
        match self.random.below(4) {
            0 if !frozen => {
                let src = self.number();
                self.emit(0x63 | bits, 10, src, off, 0);
            }
            1 if !frozen => {
                let imm = constant(self.random);
                self.emit(0x62 | bits, 10, 0, off, imm);
            }
            2 if !frozen && size >= 4 => {
                let imm = self.random.pick(&[0, 1, 0x41, 0x51, 0xa1, 0xe1]);
                let src = self.own_number();
                self.emit(0xc3 | bits, 10, src, off, imm);
            }
            _ => {
                let dst = self.free();
                let mode = if size < 8 && self.random.once_in(3) { 0x81 } else { 0x61 };
                self.emit(mode | bits, dst, 10, off, 0);
                self.set(dst, Kind::Number);
            }
        }
    }

    fn free_slot(&mut self) -> usize {
        loop {
            let slot = self.random.below(SLOTS as u32) as usize;
            if self.state.frozen_slots >> slot & 1 == 0 {
                return slot;
            }
        }
    }

    fn spill(&mut self) {
        let Some(src) = self.any(|kind| kind != Kind::Unset) else { return };
        let slot = self.free_slot();
        self.emit(0x7b, 10, src, at(slot), 0);
        self.state.slots[slot] = match self.of(src) {
            Kind::Number => Slot::Bytes,
            kind => Slot::Kept(kind),
        };
    }

    fn fill(&mut self) {
        let all: Vec<usize> = (0..SLOTS).filter(|&slot| self.state.slots[slot] != Slot::Unset).collect();
        if all.is_empty() {
            return self.spill();
        }
        let slot = self.random.pick(&all);
        let dst = self.free();
        self.emit(0x79, dst, 10, at(slot), 0);
        let kind = match self.state.slots[slot] {
            Slot::Kept(kind) => kind,
            _ => Kind::Number,
        };
        self.set(dst, kind);
    }

    /// What is the same on both ways.
    fn joined(a: &State, b: &State) -> State {
        let mut state = a.clone();
        for (kind, other) in state.registers.iter_mut().zip(&b.registers) {
            *kind = match (*kind, *other) {
                (Kind::Packet(a), Kind::Packet(b)) => Kind::Packet(a.min(b)),
                (a, b) if a == b => a,
                _ => Kind::Unset,
            };
        }
        for (slot, other) in state.slots.iter_mut().zip(&b.slots) {
            *slot = match (*slot, *other) {
                (Slot::Kept(Kind::Packet(a)), Slot::Kept(Kind::Packet(b))) => Slot::Kept(Kind::Packet(a.min(b))),
                (a, b) if a == b => a,
                _ => Slot::Unset,
            };
        }
        state
    }

    /// A comparison of numbers, with where it leads still open.
    fn condition(&mut self) -> usize {
        let class = self.random.pick(&[5_u8, 6]);
        let condition = self.random.pick(&[1_u8, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13]);
        let dst = self.number();
        if self.random.once_in(2) {
            let src = self.number();
            self.emit(condition << 4 | 8 | class, dst, src, 0, 0);
        } else {
            let imm = constant(self.random);
            self.emit(condition << 4 | class, dst, 0, 0, imm);
        }
        self.code.len() - 1
    }

    fn lead(&mut self, at: usize) {
        self.code[at].off = (self.code.len() - at - 1) as i16;
    }

    fn branch(&mut self) {
        let jump = self.condition();
        self.depth += 1;
        let before = self.state.clone();
        let budget = 1 + self.random.below(5);
        self.block(budget);
        let returns = self.random.once_in(8);
        if returns {
            self.end();
        }
        let fallen = std::mem::replace(&mut self.state, before);
        if self.random.once_in(2) && !returns {
            // Nothing on the other way.
            self.lead(jump);
            self.state = Self::joined(&fallen, &self.state);
        } else {
            let over = self.code.len();
            if !returns {
                self.emit(0x05, 0, 0, 0, 0);
            }
            self.lead(jump);
            let budget = 1 + self.random.below(4);
            self.block(budget);
            if !returns {
                self.lead(over);
                self.state = Self::joined(&fallen, &self.state);
            }
        }
        self.depth -= 1;
    }

    /// A loop of a few rounds.
    fn again(&mut self) {
        let counter = self.free();
        let before = (self.state.frozen, self.state.frozen_slots);
        // What is no number stays as it is, or is lost.
        for register in 0..10 {
            if !matches!(self.state.registers[register], Kind::Number | Kind::Unset) && before.0 >> register & 1 == 0 {
                if self.random.once_in(2) {
                    self.state.frozen |= 1 << register;
                } else {
                    self.state.registers[register] = Kind::Unset;
                }
            }
        }
        for slot in 0..SLOTS {
            if matches!(self.state.slots[slot], Slot::Kept(_)) && before.1 >> slot & 1 == 0 {
                if self.random.once_in(2) {
                    self.state.frozen_slots |= 1 << slot;
                } else {
                    self.state.slots[slot] = Slot::Unset;
                }
            }
        }
        self.emit(0xb7, counter, 0, 0, 0);
        self.set(counter, Kind::Number);
        self.state.frozen |= 1 << counter;
        // A call would lose the lower ones, and the last few are wanted for other things.
        if counter < 6 || (self.state.frozen & 0x3ff).count_ones() > 6 || self.state.frozen_slots.count_ones() > 5 {
            (self.state.frozen, self.state.frozen_slots) = before;
            return;
        }
        let head = self.state.clone();
        let first = self.code.len();
        (self.depth, self.loops) = (self.depth + 1, self.loops + 1);
        let budget = 1 + self.random.below(4);
        self.block(budget);
        (self.depth, self.loops) = (self.depth - 1, self.loops - 1);
        // What was a number is one again.
        for register in 0..10_u8 {
            let (was, is) = (head.registers[usize::from(register)], self.of(register));
            if was == Kind::Number && is != was {
                self.fresh(register);
            }
        }
        for slot in 0..SLOTS {
            if head.slots[slot] == Slot::Bytes && self.state.slots[slot] != Slot::Bytes {
                self.emit(0x7a, 10, 0, at(slot), 9);
            }
        }
        let rounds = 1 + self.random.below(6) as i32;
        self.emit(0x07, counter, 0, 0, 1);
        let back = first as i64 - self.code.len() as i64 - 1;
        let code = self.random.pick(&[0xa5, 0x55, 0xa6]);
        self.emit(code, counter, 0, back as i16, rounds);
        // A pointer that a helper or a call has lost in the round is lost.
        let lost: Vec<usize> = (0..10).filter(|&r| head.registers[r] != self.state.registers[r]).collect();
        let slots = self.state.slots;
        self.state = head;
        for register in lost {
            if self.state.registers[register] != Kind::Number {
                self.state.registers[register] = Kind::Unset;
            }
        }
        for (slot, now) in self.state.slots.iter_mut().zip(slots) {
            if *slot != now && *slot != Slot::Bytes {
                *slot = Slot::Unset;
            }
        }
        (self.state.frozen, self.state.frozen_slots) = before;
    }

    fn after_call(&mut self, result: Kind) {
        (1..6).for_each(|register| self.state.registers[register] = Kind::Unset);
        self.state.registers[0] = result;
    }

    /// Whether a call may come here: it sets r0 to r5.
    fn can_call(&self) -> bool {
        self.state.frozen & 0x3f == 0
    }

    /// A key on the stack, and a pointer to it in r2; the map in r1.
    fn key(&mut self, map: usize) -> Option<()> {
        let slot = self.free_slot();
        let key = self.number();
        let most = if map == 1 { 7 } else { MAPS[map].entries as i32 };
        // In a copy: whoever has the number wants it whole.
        self.emit(0xbf, 2, key, 0, 0);
        self.emit(0x57, 2, 0, 0, if map == 1 { most } else { 7 });
        self.emit(0x7b, 10, 2, at(slot), 0);
        self.state.slots[slot] = Slot::Bytes;
        self.emit(0xbf, 2, 10, 0, 0);
        self.emit(0x07, 2, 0, 0, at(slot).into());
        self.map(1, map);
        (self.state.registers[1], self.state.registers[2]) = (Kind::Unset, Kind::Unset);
        Some(())
    }

    fn lookup(&mut self) {
        if !self.can_call() {
            return;
        }
        let map = self.random.below(MAPS.len() as u32) as usize;
        if self.key(map).is_none() {
            return;
        }
        self.emit(0x85, 0, 0, 0, 1);
        self.after_call(Kind::Unset);
        let keep = self.free();
        let value = MAPS[map].value as i32;
        if self.random.once_in(2) && keep != 0 {
            self.emit(0xbf, keep, 0, 0, 0);
        } else {
            self.set(keep, Kind::Unset);
        }
        let moved = self.code.last().is_some_and(|it| it.code == 0xbf && it.dst == keep && it.src == 0);
        if moved {
            self.set(keep, Kind::Unset);
        }
        if self.random.once_in(3) {
            // Where there is none it goes on as well.
            self.emit(0x15, 0, 0, 0, 0);
            let jump = self.code.len() - 1;
            let before = self.state.clone();
            self.set(0, Kind::Value(map, value));
            if moved {
                self.set(keep, Kind::Value(map, value));
            }
            self.depth += 1;
            self.memory();
            self.memory();
            self.depth -= 1;
            self.lead(jump);
            self.state = Self::joined(&self.state, &before);
            return;
        }
        self.emit(0x55, 0, 0, 2, 0);
        self.emit(0xb7, 0, 0, 0, 2);
        if self.number % 2 == 1 {
            self.code.pop();
            self.emit(0xb7, 0, 0, 0, 1);
        }
        self.emit(0x95, 0, 0, 0, 0);
        self.set(0, Kind::Value(map, value));
        if moved {
            self.set(keep, Kind::Value(map, value));
        }
        if self.random.once_in(3) {
            // At an offset that only the packet says.
            let by = self.own_number();
            if by != 0 && by != keep {
                self.emit(0x57, by, 0, 0, 7);
                self.emit(0x0f, 0, by, 0, 0);
                self.set(0, Kind::Value(map, value - 7));
            }
        }
        self.memory();
    }

    /// An update or a delete.
    fn change(&mut self) {
        if !self.can_call() || self.loops > 0 && self.random.once_in(2) {
            return;
        }
        let map = self.random.below(MAPS.len() as u32 - 1) as usize;
        let update = !self.random.once_in(4);
        if !update && map != 1 {
            return;
        }
        // Room for a value at the stack's other end.
        let words = MAPS[map].value.div_ceil(8);
        if update {
            for word in 0..words {
                let src = self.number();
                self.emit(0x7b, 10, src, (-200 + 8 * word as i32) as i16, 0);
            }
        }
        if self.key(map).is_none() {
            return;
        }
        if update {
            self.emit(0xbf, 3, 10, 0, 0);
            self.emit(0x07, 3, 0, 0, -200);
            let flags = self.random.pick(&[0, 0, 1, 2]);
            self.emit(0xb7, 4, 0, 0, flags);
        }
        self.emit(0x85, 0, 0, 0, if update { 2 } else { 3 });
        self.after_call(Kind::Number);
        if map == 1 {
            // Pointers to entries may lead to none any more.
            self.lose(|kind| matches!(kind, Kind::Value(1, _)));
        }
    }

    fn lose(&mut self, is_it: impl Fn(Kind) -> bool) {
        self.state.registers.iter_mut().filter(|kind| is_it(**kind)).for_each(|kind| *kind = Kind::Unset);
        let is_kept = |slot: &&mut Slot| matches!(**slot, Slot::Kept(kind) if is_it(kind));
        self.state.slots.iter_mut().filter(is_kept).for_each(|slot| *slot = Slot::Unset);
    }

    fn call(&mut self) {
        let later: Vec<usize> = (self.number + 1..=self.functions).collect();
        if !self.can_call() || later.is_empty() || self.loops > 1 {
            return;
        }
        let function = self.random.pick(&later);
        // 16 bytes at the top, numbers all.
        if self.state.frozen_slots & 3 != 0 {
            return;
        }
        for slot in 0..2 {
            if self.state.slots[slot] != Slot::Bytes {
                let src = self.number();
                self.emit(0x7b, 10, src, at(slot), 0);
                self.state.slots[slot] = Slot::Bytes;
            }
        }
        if function % 2 == 1 {
            let rounds = self.random.below(4) as i32;
            self.emit(0xb7, 1, 0, 0, rounds);
            self.calls.push((self.code.len(), function));
            self.emit(0x18, 2, 4, 0, 0);
            self.emit(0, 0, 0, 0, 0);
            self.emit(0xbf, 3, 10, 0, 0);
            self.emit(0x07, 3, 0, 0, -16);
            self.emit(0xb7, 4, 0, 0, 0);
            self.emit(0x85, 0, 0, 0, 181);
        } else {
            let (a, b) = (self.number(), self.number());
            // r1 may be b.
            self.emit(0xbf, 0, b, 0, 0);
            self.emit(0xbf, 1, if a == 0 { b } else { a }, 0, 0);
            self.emit(0xbf, 2, 0, 0, 0);
            self.emit(0xbf, 3, 10, 0, 0);
            self.emit(0x07, 3, 0, 0, -16);
            self.calls.push((self.code.len(), function));
            self.emit(0x85, 0, 1, 0, 0);
        }
        self.after_call(Kind::Number);
        // It may change what is in the hash.
        self.lose(|kind| matches!(kind, Kind::Value(1, _)));
    }

    /// Helpers about bytes.
    fn bytes(&mut self) {
        if !self.can_call() {
            return;
        }
        // 16 bytes of numbers at the stack's top but one.
        if self.state.frozen_slots & 0b1100 != 0 {
            return;
        }
        for slot in 2..4 {
            if self.state.slots[slot] != Slot::Bytes {
                let src = self.number();
                self.emit(0x7b, 10, src, at(slot), 0);
                self.state.slots[slot] = Slot::Bytes;
            }
        }
        match self.random.below(4) {
            0 => {
                let seed = self.number();
                self.emit(0xbf, 5, seed, 0, 0);
                self.emit(0xbf, 1, 10, 0, 0);
                self.emit(0x07, 1, 0, 0, -32);
                let sizes = self.random.pick(&[(0, 16), (8, 8), (4, 12), (16, 0), (0, 7), (5, 3)]);
                self.emit(0xb7, 2, 0, 0, sizes.0);
                self.emit(0xbf, 3, 1, 0, 0);
                self.emit(0xb7, 4, 0, 0, sizes.1);
                self.emit(0x85, 0, 0, 0, 28);
                self.after_call(Kind::Number);
            }
            1 => {
                self.emit(0x85, 0, 0, 0, 8);
                self.after_call(Kind::Number);
            }
            _ if self.is_main => {
                let off = self.number();
                self.emit(0xbf, 2, off, 0, 0);
                self.emit(0x57, 2, 0, 0, 63);
                self.emit(0xbf, 1, 6, 0, 0);
                self.emit(0xbf, 3, 10, 0, 0);
                self.emit(0x07, 3, 0, 0, -32);
                let count = 1 + self.random.below(16) as i32;
                self.emit(0xb7, 4, 0, 0, count);
                let helper = self.random.pick(&[189, 190]);
                self.emit(0x85, 0, 0, 0, helper);
                self.after_call(Kind::Number);
                self.lose(Kind::is_packet);
            }
            _ => {}
        }
    }

    /// The packet's ends move.
    fn ends(&mut self) {
        if !self.can_call() {
            return;
        }
        self.emit(0xbf, 1, 6, 0, 0);
        if self.random.once_in(3) {
            let by = self.number();
            self.emit(0xbf, 2, by, 0, 0);
            self.emit(0x57, 2, 0, 0, 15);
        } else {
            let by = self.random.below(33) as i32 - 16;
            self.emit(0xb7, 2, 0, 0, by);
        }
        // `bpf_xdp_adjust_tail` gives zeros, as does the other where nothing was.
        let helper = self.random.pick(&[44, 65]);
        self.emit(0x85, 0, 0, 0, helper);
        self.after_call(Kind::Number);
        self.lose(Kind::is_packet);
    }

    /// A place in or beyond the packet, or in front of it, compared with another: where it may be anywhere, nothing is read there.
    fn far(&mut self) {
        let (pointer, other, by) = (self.free(), self.free(), self.number());
        if pointer == other || pointer == by || other == by {
            return;
        }
        self.emit(0x61, pointer, 6, 0, 0);
        let off = self.random.pick(&[0, 14, -5, -200, 300]);
        self.emit(0x07, pointer, 0, 0, off);
        if self.random.once_in(2) {
            // 32 bits of a number, in a copy.
            self.emit(0xbc, other, by, 0, 0);
            self.emit(0x0f, pointer, other, 0, 0);
        }
        let off = self.random.pick(&[0, 4, 4]);
        self.emit(0x61, other, 6, off, 0);
        self.set(pointer, Kind::Unset);
        self.set(other, Kind::Unset);
        let condition = self.random.pick(&[1_u8, 2, 3, 5, 10, 11]);
        let (a, b) = if self.random.once_in(2) { (pointer, other) } else { (other, pointer) };
        self.emit(condition << 4 | 0xd, a, b, 0, 0);
        let jump = self.code.len() - 1;
        let before = self.state.clone();
        self.depth += 1;
        self.arithmetic();
        self.depth -= 1;
        self.lead(jump);
        self.state = Self::joined(&self.state, &before);
    }

    /// How far two places in the packet are apart.
    fn distance(&mut self) {
        let Some(from) = self.any(Kind::is_packet) else { return };
        let to = self.free();
        if !self.is_main || to == from {
            return;
        }
        let off = self.random.pick(&[0, 4]);
        self.emit(0x61, to, 6, off, 0);
        self.emit(0x1f, to, from, 0, 0);
        self.set(to, Kind::Number);
    }
}

/// Where a slot is.
fn at(slot: usize) -> i16 {
    -8 * (slot as i16 + 1)
}
