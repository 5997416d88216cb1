//! Generator of random programs, most of which the kernel accepts: registers are set before they
//! are read, accesses are in bounds, packets are compared with their ends, loops are bounded. At
//! the end a program combines everything it computed.

mod calls;
mod control;
mod memory;
mod packet;

use super::{Code, Instruction, MapSpec, Random, op};

/// Content of a register, as far as the rest of the program may rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unset,
    Number,
    Context,
    /// A pointer into the packet with so many bytes after it.
    Packet(i32),
    /// A pointer to 16 bytes of the caller's stack.
    CallerStack,
    /// A pointer into a map's value with so many bytes left.
    Value(usize, i32),
}

impl Kind {
    fn is_packet(self) -> bool {
        matches!(self, Kind::Packet(_))
    }
}

/// Content of eight bytes of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Unset,
    Bytes,
    SavedRegister(Kind),
}

/// Number of stack slots in use, downwards from -8.
const SLOTS: usize = 8;

/// Maps: an array for results, a hash, a small array, and a per-CPU array.
pub const MAPS: [MapSpec; 4] = [
    MapSpec { ty: 2, key: 4, value: 16, entries: 2 },
    MapSpec { ty: 1, key: 8, value: 24, entries: 64 },
    MapSpec { ty: 2, key: 4, value: 12, entries: 5 },
    MapSpec { ty: 6, key: 4, value: 32, entries: 3 },
];

/// Facts that hold at a program point.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    registers: [Kind; 10],
    slots: [Slot; SLOTS],
    /// Bit masks of registers and slots that must not be written.
    frozen: u32,
    frozen_slots: u32,
}

/// State of generating a function.
struct Generator<'r> {
    random: &'r mut Random,
    code: Vec<Instruction>,
    state: State,
    is_main: bool,
    /// Nesting depth of blocks, and of loops.
    depth: u32,
    loops: u32,
    /// Instructions that call, and the function that each calls.
    calls: Vec<(usize, usize)>,
    /// Number of the function; it calls only functions with higher numbers.
    number: usize,
    functions: usize,
}

/// Number of functions besides the program. Odd ones are callbacks of `bpf_loop`.
const FUNCTIONS: usize = 4;

/// Generates a program of about `budget` statements.
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
        let mut generator = Generator::new(random, number, functions);
        generator.function(if number == 0 { budget } else { budget / 4 });
        for &(at, to) in &generator.calls {
            called[to] = true;
            calls.push((first + at, to));
        }
        whole.instructions.extend(generator.code);
    }
    for (at, to) in calls {
        whole.instructions[at].imm = (whole.functions[to] as i64 - at as i64 - 1) as i32;
    }
    whole.functions.retain(|&first| first != usize::MAX);
    whole
}

/// Generates packets of at least 14 bytes, as the kernel requires.
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

/// Damages a program, so that the kernel mostly rejects it.
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

/// Generates random instructions, some of which are valid.
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

impl<'r> Generator<'r> {
    fn new(random: &'r mut Random, number: usize, functions: usize) -> Generator<'r> {
        let state = State { registers: [Kind::Unset; 10], slots: [Slot::Unset; SLOTS], frozen: 0, frozen_slots: 0 };
        let is_main = number == 0;
        Generator { random, code: Vec::new(), state, is_main, depth: 0, loops: 0, calls: Vec::new(), number, functions }
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
            self.state.registers[2] = if is_round { Kind::CallerStack } else { Kind::Number };
            self.state.registers[3] = if is_round { Kind::Unset } else { Kind::CallerStack };
        }
        // Two numbers to start with.
        for register in [7, 8] {
            let imm = constant(self.random);
            self.emit(0xb7, register, 0, 0, imm);
            self.state.registers[usize::from(register)] = Kind::Number;
        }
        self.block(budget);
        self.emit_return();
    }

    /// Combines all numbers in r0 and returns.
    fn emit_return(&mut self) {
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
            // Adds r0 to the first value of the first map.
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

    /// Returns a random register that may be written.
    fn allocate_register(&mut self) -> u8 {
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

    /// A register with a number that may be written.
    fn own_number(&mut self) -> u8 {
        let frozen = self.state.frozen;
        let all: Vec<u8> = (0..10).filter(|&r| self.of(r) == Kind::Number && frozen >> r & 1 == 0).collect();
        if !all.is_empty() && !self.random.once_in(6) {
            return self.random.pick(&all);
        }
        let register = self.allocate_register();
        self.set_to_number(register);
        register
    }

    fn number(&mut self) -> u8 {
        match self.any(|kind| kind == Kind::Number) {
            Some(register) => register,
            None => self.own_number(),
        }
    }

    /// Puts a constant in a register.
    fn set_to_number(&mut self, register: u8) {
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
                let register = self.allocate_register();
                self.set_to_number(register);
            }
            10 => self.copy_register(),
            11 | 12 => self.checked_pointer(),
            13..17 => self.memory(),
            17 | 18 => self.spill(),
            19 | 20 => self.fill(),
            21..25 if self.depth < 3 => self.branch(),
            25 if self.loops < 2 && self.depth < 3 => self.loop_of_rounds(),
            26 | 27 => self.lookup(),
            28 => self.change_map(),
            29 => self.call(),
            30 => self.call_byte_helper(),
            31 if self.is_main && self.loops == 0 => self.move_ends(),
            32 if self.random.once_in(2) => self.distance(),
            32 if self.is_main && self.depth < 3 => self.far_pointer(),
            _ => self.bound_number(),
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
                    // The kernel rejects shifts beyond the width and division by a constant zero.
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

    /// Bounds a number, as programs do.
    fn bound_number(&mut self) {
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

    fn copy_register(&mut self) {
        let Some(src) = self.any(|kind| kind != Kind::Unset) else { return };
        let dst = self.allocate_register();
        self.emit(0xbf, dst, src, 0, 0);
        let kind = self.of(src);
        self.set(dst, kind);
    }
}

/// Stack offset of a slot.
fn at(slot: usize) -> i16 {
    -8 * (slot as i16 + 1)
}
