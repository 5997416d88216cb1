//! Assembles the function: the loop around the code for a group, and each instruction's encoding.

use portcullis_core::packet::{Descriptor, Metadata};

use super::allocate::{Home, Homes, REGISTERS};
use super::encode::{Code, Condition, General, Memory, Opcode, Operand, Register, Shift};
use super::vcode::{Base, If, Instruction, Label, Listing, Source, Vector};
use crate::compile::abi::context_offset;

/// Packets side by side.
pub(super) const LANES: usize = 8;

/// Bytes of a vector.
pub(super) const BYTES: i32 = 32;

/// Where the parameters are, by System V's ABI for AMD64: the context, the next packet's number, and the last one's at which
/// a group may begin.
const CONTEXT: General = General(7);
const INDEX: General = General(6);
const LAST: General = General(2);

const ARENA: General = General(0);
/// The packets' offsets in the arena: RCX, R8 to R11, RBX, RBP, R12.
const OFFSETS: [General; LANES] =
    [General(1), General(8), General(9), General(10), General(11), General(3), General(5), General(12)];
/// The group's first descriptor.
const DESCRIPTORS: General = General(13);
/// For the moment.
const FIRST: General = General(14);
const SECOND: General = General(15);
const STACK: General = General(4);

/// What a caller wants to find again.
pub(super) const KEPT: [General; 6] = [General(3), General(5), General(12), General(13), General(14), General(15)];

/// For what is under way between memory and memory.
const LOW: Register = Register(REGISTERS);
const HIGH: Register = Register(REGISTERS + 1);

/// What is on the stack, at multiples of a vector's size: vectors, what is looked for lane by lane, and where the stack was.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub places: i32,
}

impl Frame {
    fn place(number: usize) -> Memory {
        Memory::at(STACK, number as i32 * BYTES)
    }

    fn lane(self, lane: usize) -> Memory {
        Memory::at(STACK, self.places * BYTES + 4 * lane as i32)
    }

    fn stack(self) -> Memory {
        Memory::at(STACK, (self.places + 1) * BYTES)
    }

    pub fn size(self) -> i32 {
        (self.places + 2) * BYTES
    }
}

pub(super) struct Assemble<'a> {
    pub code: Code,
    pub homes: &'a Homes,
    pub frame: Frame,
}

impl Assemble<'_> {
    /// The function: whole groups, tested at their end.
    pub fn run(mut self, listing: &Listing, redirects: bool) -> Vec<u8> {
        let (turn, done) = (Label(listing.labels), Label(listing.labels + 1));
        let group = LANES as i32;
        KEPT.into_iter().for_each(|register| self.code.push(register));
        self.code.copy(SECOND, STACK);
        self.code.add_number(STACK, -self.frame.size());
        self.code.and_number(STACK, -BYTES);
        self.code.store_pointer(self.frame.stack(), SECOND);
        self.code.add_number(LAST, -group);
        self.code.compare(INDEX, LAST);
        self.code.jump_if(Condition::Greater, done);
        self.code.load_pointer(ARENA, Memory::at(CONTEXT, context_offset::ARENA));
        self.code.load_pointer(DESCRIPTORS, Memory::at(CONTEXT, context_offset::DESCRIPTORS));
        let first = Memory { base: DESCRIPTORS, index: Some((INDEX, size_of::<Descriptor>() as u8)), displacement: 0 };
        self.code.address(DESCRIPTORS, first);

        self.code.label(turn);
        for (lane, register) in OFFSETS.into_iter().enumerate() {
            self.code.load_offset(register, Memory::at(DESCRIPTORS, (lane * size_of::<Descriptor>()) as i32));
        }
        for (at, instruction) in listing.instructions.iter().enumerate() {
            for &(register, place) in self.homes.parked.get(&at).into_iter().flatten() {
                match instruction {
                    Instruction::Enter => self.code.store(Frame::place(place), register),
                    _ => self.code.load(register, Operand::Memory(Frame::place(place))),
                }
            }
            self.instruction(instruction);
        }
        let verdict = listing.verdict.expect("every filter has one");
        self.give(verdict, redirects, listing.constants.len());
        self.code.add_number(DESCRIPTORS, group * size_of::<Descriptor>() as i32);
        self.code.add_number(INDEX, group);
        self.code.compare(INDEX, LAST);
        self.code.jump_if(Condition::LessOrEqual, turn);

        self.code.label(done);
        self.code.load_pointer(STACK, self.frame.stack());
        self.code.forget_upper_halves();
        KEPT.into_iter().rev().for_each(|register| self.code.pop(register));
        self.code.leave();
        // The lowest bytes of each half's words, next to each other.
        let mut low = [0xff; BYTES as usize];
        low.chunks_exact_mut(16).for_each(|half| half[..4].copy_from_slice(&[0, 4, 8, 12]));
        let constants: Vec<_> = listing.constants.iter().copied().chain([low]).collect();
        self.code.finish(&constants)
    }

    /// Writes the columns. `low`: the constant for a shuffle that brings words' lowest bytes together.
    fn give(&mut self, verdict: Vector, redirects: bool, low: usize) {
        let verdict = self.read(verdict, LOW);
        self.code.vectors(Opcode::Shuffle, HIGH, verdict, Operand::Constant(low));
        self.code.load_pointer(FIRST, Memory::at(CONTEXT, context_offset::VERDICTS));
        self.code.store_word(Memory::with_index(FIRST, INDEX, 0), HIGH);
        self.code.upper_half(HIGH, HIGH);
        self.code.store_word(Memory::with_index(FIRST, INDEX, 4), HIGH);
        if redirects {
            self.code.shift(Shift::Right, HIGH, verdict, 8);
            self.code.load_pointer(FIRST, Memory::at(CONTEXT, context_offset::TARGETS));
            self.code.store(Memory { base: FIRST, index: Some((INDEX, 4)), displacement: 0 }, HIGH);
        }
    }

    /// A vector in a register: its own, or this one.
    fn read(&mut self, vector: Vector, scratch: Register) -> Register {
        match self.homes.homes[vector.0] {
            Home::Register(register) => register,
            Home::Memory(place) => {
                self.code.load(scratch, Operand::Memory(Frame::place(place)));
                scratch
            }
            Home::Nowhere => unreachable!("what is read is somewhere"),
        }
    }

    fn source(&self, source: Source) -> Operand {
        match source {
            Source::Constant(number) => Operand::Constant(number),
            Source::Vector(vector) => match self.homes.homes[vector.0] {
                Home::Register(register) => Operand::Vector(register),
                Home::Memory(place) => Operand::Memory(Frame::place(place)),
                Home::Nowhere => unreachable!("what is read is somewhere"),
            },
        }
    }

    /// Where to make a vector: [`Assemble::made`] has to be told then.
    fn target(&self, vector: Vector) -> Register {
        match self.homes.homes[vector.0] {
            Home::Register(register) => register,
            Home::Memory(_) | Home::Nowhere => LOW,
        }
    }

    fn made(&mut self, vector: Vector) {
        if let Home::Memory(place) = self.homes.homes[vector.0] {
            self.code.store(Frame::place(place), LOW);
        }
    }

    fn instruction(&mut self, instruction: &Instruction) {
        match *instruction {
            Instruction::Binary { op, a, b, to } => {
                let (first, second, to) = (self.read(a, LOW), self.source(b), self.target(to));
                self.code.vectors(op, to, first, second);
            }
            Instruction::Shift { op, to, from, count } => {
                let (from, to) = (self.read(from, LOW), self.target(to));
                self.code.shift(op, to, from, count);
            }
            Instruction::Choose { to, mask, on, off } => {
                let (off, mask) = (self.read(off, LOW), self.read(mask, HIGH));
                let (on, to) = (self.source(on), self.target(to));
                self.code.blend(to, mask, on, off);
            }
            Instruction::Move { to, from } => {
                let (from, to) = (self.source(from), self.target(to));
                if from != Operand::Vector(to) {
                    self.code.load(to, from);
                }
            }
            Instruction::Row { to, lane, at } => {
                let to = self.target(to);
                let row = |lane| Memory::with_index(ARENA, OFFSETS[lane], at as i32);
                self.code.load_half(to, row(usize::from(lane)));
                self.code.insert_half(to, to, Operand::Memory(row(usize::from(lane) + LANES / 2)));
            }
            Instruction::Descriptors { to, pair } => {
                let to = self.target(to);
                let at = |first: usize| Memory::at(DESCRIPTORS, (first * size_of::<Descriptor>()) as i32);
                self.code.load_half(to, at(2 * usize::from(pair)));
                self.code.insert_half(to, to, Operand::Memory(at(2 * usize::from(pair) + LANES / 2)));
            }
            Instruction::EveryOther { to, a, b, odd } => {
                let (a, b) = (self.read(a, LOW), self.read(b, HIGH));
                let to = self.target(to);
                self.code.every_other(to, a, b, odd);
            }
            Instruction::Gather { to, base, index, displacement, size } => {
                let index = self.read(index, LOW);
                self.code.store(self.frame.lane(0), index);
                let base = match base {
                    Base::Arena => ARENA,
                    Base::Tables => {
                        self.code.load_pointer(FIRST, Memory::at(CONTEXT, context_offset::TABLES));
                        FIRST
                    }
                };
                self.lane_by_lane(to, size, |code, frame, lane| {
                    code.load_offset(SECOND, frame.lane(lane));
                    Memory::with_index(base, SECOND, displacement as i32)
                });
            }
            Instruction::Metadata { to, offset } => {
                let entry = size_of::<Metadata>() as i32;
                self.code.multiply(FIRST, INDEX, entry);
                self.code.load_pointer(SECOND, Memory::at(CONTEXT, context_offset::METADATA));
                self.lane_by_lane(to, 4, |_, _, lane| {
                    Memory::with_index(SECOND, FIRST, offset as i32 + lane as i32 * entry)
                });
            }
            Instruction::JumpIf { mask, lanes, to } => {
                let mask = self.read(mask, LOW);
                let (second, condition) = match lanes {
                    If::Any => (Operand::Vector(mask), Condition::NotZero),
                    If::None => (Operand::Vector(mask), Condition::Zero),
                    If::All => {
                        self.code.vectors(Opcode::Equal, HIGH, HIGH, Operand::Vector(HIGH));
                        (Operand::Vector(HIGH), Condition::Carry)
                    }
                };
                self.code.test(mask, second);
                self.code.jump_if(condition, to);
            }
            Instruction::Jump(label) => self.code.jump(label),
            Instruction::Label(label) => self.code.label(label),
            Instruction::Aside => self.code.put_aside(true),
            Instruction::EndAside => self.code.put_aside(false),
            Instruction::Enter | Instruction::Exit | Instruction::Loop | Instruction::EndLoop => {}
        }
        if let Some(to) = instruction.writes() {
            self.made(to);
        }
    }

    /// A vector of bytes of memory, zero-extended, by where they are in each lane. That takes less than the processor's own
    /// gathering, which it does piece by piece as well, and on some very slowly.
    fn lane_by_lane(&mut self, to: Vector, size: u32, mut place: impl FnMut(&mut Code, Frame, usize) -> Memory) {
        for (half, register) in [LOW, HIGH].into_iter().enumerate() {
            self.code.clear(register);
            for lane in 0..LANES / 2 {
                let from = place(&mut self.code, self.frame, half * LANES / 2 + lane);
                self.code.insert(register, lane as u8, from, size);
            }
        }
        let to = self.target(to);
        self.code.insert_half(to, LOW, Operand::Vector(HIGH));
    }
}
