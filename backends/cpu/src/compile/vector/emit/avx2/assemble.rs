//! Assembles the function: the loop around the code for a group, and the encoding of each
//! instruction.

use portcullis_core::packet::{Descriptor, Metadata};

use super::allocate::{Allocation, Location, REGISTERS};
use super::encode::{CodeBuffer, Condition, Gpr, Label, Memory, Operand, ShiftOp, VectorOp, Ymm};
use super::vcode::{GatherBase, Instruction, LaneCondition, Source, VCode, VReg};
use crate::compile::abi::context_offset;

/// Packets per group.
pub(super) const LANES: usize = 8;

/// Bytes of a vector.
pub(super) const VECTOR_BYTES: i32 = 32;

/// The parameters' registers in System V's ABI for AMD64 (RDI, RSI, RDX): the context; the index of
/// the group's first packet; and the index past the last packet, which the prologue turns into the
/// last index at which a group may begin.
const CONTEXT: Gpr = Gpr(7);
const INDEX: Gpr = Gpr(6);
const LAST: Gpr = Gpr(2);

const ARENA: Gpr = Gpr(0);
/// Registers with the packets' offsets in the arena: RCX, R8 to R11, RBX, RBP, R12.
const OFFSETS: [Gpr; LANES] = [Gpr(1), Gpr(8), Gpr(9), Gpr(10), Gpr(11), Gpr(3), Gpr(5), Gpr(12)];
/// Address of the group's first descriptor.
const DESCRIPTORS: Gpr = Gpr(13);
/// Scratch registers.
const SCRATCH_A: Gpr = Gpr(14);
const SCRATCH_B: Gpr = Gpr(15);
const STACK: Gpr = Gpr(4);

/// Callee-saved registers that the function uses.
pub(super) const CALLEE_SAVED: [Gpr; 6] = [Gpr(3), Gpr(5), Gpr(12), Gpr(13), Gpr(14), Gpr(15)];

/// Scratch registers for vectors in the frame.
const SCRATCH_LOW: Ymm = Ymm(REGISTERS);
const SCRATCH_HIGH: Ymm = Ymm(REGISTERS + 1);

/// The stack frame, in units of a vector: spilled vectors, the lanes of a gather's index, and the
/// caller's stack pointer.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub slots: i32,
}

impl Frame {
    fn slot(number: usize) -> Memory {
        Memory::at(STACK, number as i32 * VECTOR_BYTES)
    }

    fn lane(self, lane: usize) -> Memory {
        Memory::at(STACK, self.slots * VECTOR_BYTES + 4 * lane as i32)
    }

    fn saved_stack_pointer(self) -> Memory {
        Memory::at(STACK, (self.slots + 1) * VECTOR_BYTES)
    }

    pub fn size(self) -> i32 {
        (self.slots + 2) * VECTOR_BYTES
    }
}

pub(super) struct Assembler<'a> {
    pub code: CodeBuffer,
    pub allocation: &'a Allocation,
    pub frame: Frame,
}

impl Assembler<'_> {
    /// Assembles the function: a loop over whole groups, tested at its end.
    pub fn assemble(mut self, code: &VCode, redirects: bool) -> Vec<u8> {
        let (body, exit) = (Label(code.labels), Label(code.labels + 1));
        let group = LANES as i32;
        CALLEE_SAVED.into_iter().for_each(|register| self.code.push(register));
        self.code.mov(SCRATCH_B, STACK);
        self.code.add_imm(STACK, -self.frame.size());
        self.code.and_imm(STACK, -VECTOR_BYTES);
        self.code.store64(self.frame.saved_stack_pointer(), SCRATCH_B);
        self.code.add_imm(LAST, -group);
        self.code.cmp(INDEX, LAST);
        self.code.jcc(Condition::Greater, exit);
        self.code.load64(ARENA, Memory::at(CONTEXT, context_offset::ARENA));
        self.code.load64(DESCRIPTORS, Memory::at(CONTEXT, context_offset::DESCRIPTORS));
        let first = Memory { base: DESCRIPTORS, index: Some((INDEX, size_of::<Descriptor>() as u8)), displacement: 0 };
        self.code.lea(DESCRIPTORS, first);

        self.code.bind_label(body);
        for (lane, register) in OFFSETS.into_iter().enumerate() {
            self.code.load32(register, Memory::at(DESCRIPTORS, (lane * size_of::<Descriptor>()) as i32));
        }
        for (at, instruction) in code.instructions.iter().enumerate() {
            for &(register, place) in self.allocation.spills.get(&at).into_iter().flatten() {
                match instruction {
                    Instruction::EnterConditional => self.code.store(Frame::slot(place), register),
                    _ => self.code.load(register, Operand::Memory(Frame::slot(place))),
                }
            }
            self.emit_instruction(instruction);
        }
        let verdict = code.verdict.expect("every filter has a verdict");
        self.store_verdicts(verdict, redirects, code.constants.len());
        self.code.add_imm(DESCRIPTORS, group * size_of::<Descriptor>() as i32);
        self.code.add_imm(INDEX, group);
        self.code.cmp(INDEX, LAST);
        self.code.jcc(Condition::LessOrEqual, body);

        self.code.bind_label(exit);
        self.code.load64(STACK, self.frame.saved_stack_pointer());
        self.code.vzeroupper();
        CALLEE_SAVED.into_iter().rev().for_each(|register| self.code.pop(register));
        self.code.ret();
        // Shuffle mask for the lowest byte of each word, in each half.
        let mut low = [0xff; VECTOR_BYTES as usize];
        low.chunks_exact_mut(16).for_each(|half| half[..4].copy_from_slice(&[0, 4, 8, 12]));
        let constants: Vec<_> = code.constants.iter().copied().chain([low]).collect();
        self.code.finish(&constants)
    }

    /// Stores the group's verdicts and redirect targets. `low` is the number of the constant that
    /// shuffles the lowest bytes of words together.
    fn store_verdicts(&mut self, verdict: VReg, redirects: bool, low: usize) {
        let verdict = self.read(verdict, SCRATCH_LOW);
        self.code.vector_op(VectorOp::Shuffle, SCRATCH_HIGH, verdict, Operand::Constant(low));
        self.code.load64(SCRATCH_A, Memory::at(CONTEXT, context_offset::VERDICTS));
        self.code.store_low_word(Memory::with_index(SCRATCH_A, INDEX, 0), SCRATCH_HIGH);
        self.code.extract_upper_half(SCRATCH_HIGH, SCRATCH_HIGH);
        self.code.store_low_word(Memory::with_index(SCRATCH_A, INDEX, 4), SCRATCH_HIGH);
        if redirects {
            self.code.shift(ShiftOp::Right, SCRATCH_HIGH, verdict, 8);
            self.code.load64(SCRATCH_A, Memory::at(CONTEXT, context_offset::TARGETS));
            self.code.store(Memory { base: SCRATCH_A, index: Some((INDEX, 4)), displacement: 0 }, SCRATCH_HIGH);
        }
    }

    /// Returns the register that holds a vector, loading it to `scratch` if it is in the frame.
    fn read(&mut self, vector: VReg, scratch: Ymm) -> Ymm {
        match self.allocation.locations[vector.0] {
            Location::Register(register) => register,
            Location::Slot(place) => {
                self.code.load(scratch, Operand::Memory(Frame::slot(place)));
                scratch
            }
            Location::Dead => unreachable!("a dead vector is never read"),
        }
    }

    fn source(&self, source: Source) -> Operand {
        match source {
            Source::Constant(number) => Operand::Constant(number),
            Source::Vector(vector) => match self.allocation.locations[vector.0] {
                Location::Register(register) => Operand::Vector(register),
                Location::Slot(place) => Operand::Memory(Frame::slot(place)),
                Location::Dead => unreachable!("a dead vector is never read"),
            },
        }
    }

    /// Returns the register to compute a vector in. [`Assembler::write_back`] must be called
    /// afterwards.
    fn target(&self, vector: VReg) -> Ymm {
        match self.allocation.locations[vector.0] {
            Location::Register(register) => register,
            Location::Slot(_) | Location::Dead => SCRATCH_LOW,
        }
    }

    fn write_back(&mut self, vector: VReg) {
        if let Location::Slot(place) = self.allocation.locations[vector.0] {
            self.code.store(Frame::slot(place), SCRATCH_LOW);
        }
    }

    fn emit_instruction(&mut self, instruction: &Instruction) {
        match *instruction {
            Instruction::Binary { op, a, b, to } => {
                let (first, second, to) = (self.read(a, SCRATCH_LOW), self.source(b), self.target(to));
                self.code.vector_op(op, to, first, second);
            }
            Instruction::Shift { op, to, from, count } => {
                let (from, to) = (self.read(from, SCRATCH_LOW), self.target(to));
                self.code.shift(op, to, from, count);
            }
            Instruction::Blend { to, mask, on, off } => {
                let (off, mask) = (self.read(off, SCRATCH_LOW), self.read(mask, SCRATCH_HIGH));
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
                let (a, b) = (self.read(a, SCRATCH_LOW), self.read(b, SCRATCH_HIGH));
                let to = self.target(to);
                self.code.every_other(to, a, b, odd);
            }
            Instruction::Gather { to, base, index, displacement, size } => {
                let index = self.read(index, SCRATCH_LOW);
                self.code.store(self.frame.lane(0), index);
                let base = match base {
                    GatherBase::Arena => ARENA,
                    GatherBase::Tables => {
                        self.code.load64(SCRATCH_A, Memory::at(CONTEXT, context_offset::TABLES));
                        SCRATCH_A
                    }
                };
                self.emit_gather(to, size, |code, frame, lane| {
                    code.load32(SCRATCH_B, frame.lane(lane));
                    Memory::with_index(base, SCRATCH_B, displacement as i32)
                });
            }
            Instruction::Metadata { to, offset } => {
                let entry = size_of::<Metadata>() as i32;
                self.code.imul(SCRATCH_A, INDEX, entry);
                self.code.load64(SCRATCH_B, Memory::at(CONTEXT, context_offset::METADATA));
                self.emit_gather(to, 4, |_, _, lane| {
                    Memory::with_index(SCRATCH_B, SCRATCH_A, offset as i32 + lane as i32 * entry)
                });
            }
            Instruction::JumpIf { mask, lanes, to } => {
                let mask = self.read(mask, SCRATCH_LOW);
                let (second, condition) = match lanes {
                    LaneCondition::Any => (Operand::Vector(mask), Condition::NotZero),
                    LaneCondition::None => (Operand::Vector(mask), Condition::Zero),
                    LaneCondition::All => {
                        self.code.vector_op(VectorOp::Equal, SCRATCH_HIGH, SCRATCH_HIGH, Operand::Vector(SCRATCH_HIGH));
                        (Operand::Vector(SCRATCH_HIGH), Condition::LoopCarried)
                    }
                };
                self.code.vptest(mask, second);
                self.code.jcc(condition, to);
            }
            Instruction::Jump(label) => self.code.jmp(label),
            Instruction::Label(label) => self.code.bind_label(label),
            Instruction::BeginCold => self.code.set_cold(true),
            Instruction::EndCold => self.code.set_cold(false),
            Instruction::EnterConditional
            | Instruction::ExitConditional
            | Instruction::BeginLoop
            | Instruction::EndLoop => {}
        }
        if let Some(to) = instruction.writes() {
            self.write_back(to);
        }
    }

    /// Emits a gather of bytes, zero-extended, lane by lane. This takes less time than
    /// `vpgatherdd`, which also loads lane by lane and is very slow on some processors.
    fn emit_gather(&mut self, to: VReg, size: u32, mut place: impl FnMut(&mut CodeBuffer, Frame, usize) -> Memory) {
        for (half, register) in [SCRATCH_LOW, SCRATCH_HIGH].into_iter().enumerate() {
            self.code.zero(register);
            for lane in 0..LANES / 2 {
                let from = place(&mut self.code, self.frame, half * LANES / 2 + lane);
                self.code.insert_lane(register, lane as u8, from, size);
            }
        }
        let to = self.target(to);
        self.code.insert_half(to, SCRATCH_LOW, Operand::Vector(SCRATCH_HIGH));
    }
}
