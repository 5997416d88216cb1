//! Encoder for the x86-64 instructions that AVX2 code needs.
//!
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: sections 2.1 (ModRM,
//! SIB), 2.3 (VEX), and the page of each instruction.

/// A general-purpose register, by number: 0 is RAX, 4 is RSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gpr(pub u8);

/// A vector register, 0 to 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ymm(pub u8);

/// An instruction with two source vectors and a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VectorOp {
    Add,
    Subtract,
    Multiply,
    And,
    /// `!first & second`
    AndNot,
    Or,
    Xor,
    Equal,
    /// Signed comparison.
    Greater,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    /// Selects bytes of the first vector, within each half, by the indices in the second; zero if
    /// an index's highest bit is set.
    Shuffle,
    /// Interleaves the words of each half's low half.
    LowWords,
    HighWords,
    /// Interleaves the low quadwords of each half.
    LowPairs,
    HighPairs,
}

/// A shift by the same number of bits in all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShiftOp {
    Left,
    Right,
    RightSigned,
}

/// Opcode maps.
#[derive(Debug, Clone, Copy)]
enum OpcodeMap {
    M0f = 1,
    M0f38 = 2,
    M0f3a = 3,
}

/// Mandatory prefixes, which are part of the opcode.
#[derive(Debug, Clone, Copy)]
enum VexPrefix {
    None = 0,
    P66 = 1,
    Pf3 = 2,
}

/// Vector length of an instruction.
#[derive(Debug, Clone, Copy)]
enum VectorLength {
    B128 = 0,
    B256 = 1,
}

impl VectorOp {
    fn encoding(self) -> (OpcodeMap, u8) {
        use OpcodeMap::{M0f, M0f38};
        match self {
            VectorOp::Add => (M0f, 0xfe),
            VectorOp::Subtract => (M0f, 0xfa),
            VectorOp::Multiply => (M0f38, 0x40),
            VectorOp::And => (M0f, 0xdb),
            VectorOp::AndNot => (M0f, 0xdf),
            VectorOp::Or => (M0f, 0xeb),
            VectorOp::Xor => (M0f, 0xef),
            VectorOp::Equal => (M0f, 0x76),
            VectorOp::Greater => (M0f, 0x66),
            VectorOp::Min => (M0f38, 0x3b),
            VectorOp::Max => (M0f38, 0x3f),
            VectorOp::MinSigned => (M0f38, 0x39),
            VectorOp::MaxSigned => (M0f38, 0x3d),
            VectorOp::ShiftLeft => (M0f38, 0x47),
            VectorOp::ShiftRight => (M0f38, 0x45),
            VectorOp::ShiftRightSigned => (M0f38, 0x46),
            VectorOp::Shuffle => (M0f38, 0x00),
            VectorOp::LowWords => (M0f, 0x62),
            VectorOp::HighWords => (M0f, 0x6a),
            VectorOp::LowPairs => (M0f, 0x6c),
            VectorOp::HighPairs => (M0f, 0x6d),
        }
    }
}

/// A memory operand: `base + index * scale + displacement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub base: Gpr,
    pub index: Option<(Gpr, u8)>,
    pub displacement: i32,
}

impl Memory {
    pub fn at(base: Gpr, displacement: i32) -> Memory {
        Memory { base, index: None, displacement }
    }

    pub fn with_index(base: Gpr, index: Gpr, displacement: i32) -> Memory {
        Memory { base, index: Some((index, 1)), displacement }
    }
}

/// The operand that ModRM encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Vector(Ymm),
    Memory(Memory),
    /// A constant behind the code, by number.
    Constant(usize),
}

/// A position in the code, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(pub usize);

/// Bytes of a constant.
pub(super) const CONSTANT_BYTES: usize = 32;

/// A 32-bit displacement relative to the end of an instruction, to be filled in when the code is
/// complete.
#[derive(Debug, Clone, Copy)]
struct Fixup {
    /// Section that the displacement is in.
    cold: bool,
    at: usize,
    /// Bytes of the instruction behind the displacement.
    behind: usize,
    to: Target,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Label(Label),
    Constant(usize),
}

/// A function being assembled: hot code, and cold code that is placed behind it.
#[derive(Debug, Default)]
pub(super) struct CodeBuffer {
    hot: Vec<u8>,
    cold: Vec<u8>,
    /// Whether instructions go to the cold section.
    is_cold: bool,
    fixups: Vec<Fixup>,
    /// Section and offset of each bound label, by number.
    labels: Vec<Option<(bool, usize)>>,
}

/// Condition codes; `0f 80 + condition` is the jump.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    LoopCarried = 2,
    Zero = 4,
    NotZero = 5,
    LessOrEqual = 14,
    Greater = 15,
}

impl CodeBuffer {
    fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_cold { &mut self.cold } else { &mut self.hot }
    }

    fn emit_bytes(&mut self, bytes: &[u8]) {
        self.bytes().extend_from_slice(bytes);
    }

    /// Chooses the section for the following instructions.
    pub fn set_cold(&mut self, cold: bool) {
        self.is_cold = cold;
    }

    pub fn bind_label(&mut self, label: Label) {
        let place = (self.is_cold, self.bytes().len());
        if self.labels.len() <= label.0 {
            self.labels.resize(label.0 + 1, None);
        }
        self.labels[label.0] = Some(place);
    }

    fn emit_fixup(&mut self, to: Target, behind: usize) {
        let (cold, at) = (self.is_cold, self.bytes().len());
        self.fixups.push(Fixup { cold, at, behind, to });
        self.emit_bytes(&[0; 4]);
    }

    /// Joins the sections, appends the constants, each aligned to its size, and resolves the
    /// fixups.
    pub fn finish(mut self, constants: &[[u8; CONSTANT_BYTES]]) -> Vec<u8> {
        let begin = self.hot.len();
        self.hot.append(&mut self.cold);
        let pool = self.hot.len().next_multiple_of(CONSTANT_BYTES);
        // Pad with `int3`.
        self.hot.resize(pool, 0xcc);
        constants.iter().for_each(|constant| self.hot.extend_from_slice(constant));
        for Fixup { cold, at, behind, to } in self.fixups {
            let place = |(cold, at): (bool, usize)| if cold { begin + at } else { at };
            let at = place((cold, at));
            let to = match to {
                Target::Label(label) => place(self.labels[label.0].expect("every label is bound")),
                Target::Constant(number) => pool + number * CONSTANT_BYTES,
            };
            let distance = to as i64 - (at + 4 + behind) as i64;
            let distance = i32::try_from(distance).expect("the size of a filter bounds the size of its code");
            self.hot[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.hot
    }

    /// Emits ModRM, SIB and displacement. `behind` is the number of bytes of the instruction that
    /// follow.
    fn emit_modrm(&mut self, reg: u8, operand: Operand, behind: usize) {
        let reg = (reg & 7) << 3;
        match operand {
            Operand::Vector(Ymm(rm)) => self.emit_bytes(&[0xc0 | reg | rm & 7]),
            Operand::Constant(number) => {
                self.emit_bytes(&[reg | 5]);
                self.emit_fixup(Target::Constant(number), behind);
            }
            Operand::Memory(Memory { base, index, displacement }) => {
                let low = base.0 & 7;
                // RBP and R13 have no encoding without a displacement.
                let (mode, bytes) = match i8::try_from(displacement) {
                    Ok(0) if low != 5 => (0, 0),
                    Ok(_) => (0x40, 1),
                    Err(_) => (0x80, 4),
                };
                match index {
                    // RSP and R12 have no encoding without SIB; index 4 in SIB means none.
                    None if low == 4 => self.emit_bytes(&[mode | reg | 4, 0x20 | low]),
                    None => self.emit_bytes(&[mode | reg | low]),
                    Some((index, scale)) => {
                        debug_assert!(index.0 != 4 && scale.is_power_of_two() && scale <= 8);
                        let scale = (scale.trailing_zeros() as u8) << 6;
                        self.emit_bytes(&[mode | reg | 4, scale | (index.0 & 7) << 3 | low]);
                    }
                }
                self.emit_bytes(&displacement.to_le_bytes()[..bytes]);
            }
        }
    }

    /// Emits an instruction with a VEX prefix. `first` is the register in VEX.vvvv, 0 if there is
    /// none.
    #[expect(clippy::too_many_arguments)]
    fn emit_vex_op(
        &mut self,
        (map, opcode): (OpcodeMap, u8),
        prefix: VexPrefix,
        bits: VectorLength,
        reg: u8,
        first: u8,
        operand: Operand,
        behind: usize,
    ) {
        let (x, b) = match operand {
            Operand::Vector(Ymm(rm)) => (0, rm >> 3),
            Operand::Memory(Memory { base, index, .. }) => (index.map_or(0, |(index, _)| index.0 >> 3), base.0 >> 3),
            Operand::Constant(_) => (0, 0),
        };
        let r = reg >> 3;
        let last = (!first & 0xf) << 3 | (bits as u8) << 2 | prefix as u8;
        // VEX stores the registers' highest bits inverted.
        match map {
            OpcodeMap::M0f if x == 0 && b == 0 => self.emit_bytes(&[0xc5, (r ^ 1) << 7 | last]),
            _ => self.emit_bytes(&[0xc4, (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | map as u8, last]),
        }
        self.emit_bytes(&[opcode]);
        self.emit_modrm(reg, operand, behind);
    }

    /// `to = first op second`, 256 bits.
    pub fn vector_op(&mut self, op: VectorOp, to: Ymm, first: Ymm, second: Operand) {
        self.emit_vex_op(op.encoding(), VexPrefix::P66, VectorLength::B256, to.0, first.0, second, 0);
    }

    /// `to = from`, shifted in each lane.
    pub fn shift(&mut self, op: ShiftOp, to: Ymm, from: Ymm, count: u8) {
        let digit = match op {
            ShiftOp::Left => 6,
            ShiftOp::Right => 2,
            ShiftOp::RightSigned => 4,
        };
        self.emit_vex_op(
            (OpcodeMap::M0f, 0x72),
            VexPrefix::P66,
            VectorLength::B256,
            digit,
            to.0,
            Operand::Vector(from),
            1,
        );
        self.emit_bytes(&[count]);
    }

    /// `to = on` for bytes whose mask has its highest bit set, `off` for the others.
    pub fn blend(&mut self, to: Ymm, mask: Ymm, on: Operand, off: Ymm) {
        self.emit_vex_op((OpcodeMap::M0f3a, 0x4c), VexPrefix::P66, VectorLength::B256, to.0, off.0, on, 1);
        self.emit_bytes(&[mask.0 << 4]);
    }

    /// Words 0 and 2, or 1 and 3, of each half of two vectors; those of `first` come first.
    pub fn every_other(&mut self, to: Ymm, first: Ymm, second: Ymm, odd: bool) {
        self.emit_vex_op(
            (OpcodeMap::M0f, 0xc6),
            VexPrefix::None,
            VectorLength::B256,
            to.0,
            first.0,
            Operand::Vector(second),
            1,
        );
        self.emit_bytes(&[if odd { 0xdd } else { 0x88 }]);
    }

    /// Sets the zero flag if `first & second` is zero, and the carry flag if `!first & second` is
    /// zero.
    pub fn vptest(&mut self, first: Ymm, second: Operand) {
        self.emit_vex_op((OpcodeMap::M0f38, 0x17), VexPrefix::P66, VectorLength::B256, first.0, 0, second, 0);
    }

    /// Loads 256 bits, unaligned.
    pub fn load(&mut self, to: Ymm, from: Operand) {
        self.emit_vex_op((OpcodeMap::M0f, 0x6f), VexPrefix::Pf3, VectorLength::B256, to.0, 0, from, 0);
    }

    pub fn store(&mut self, to: Memory, from: Ymm) {
        self.emit_vex_op((OpcodeMap::M0f, 0x7f), VexPrefix::Pf3, VectorLength::B256, from.0, 0, Operand::Memory(to), 0);
    }

    /// Loads 128 bits, unaligned, zero-extended.
    pub fn load_half(&mut self, to: Ymm, from: Memory) {
        self.emit_vex_op((OpcodeMap::M0f, 0x6f), VexPrefix::Pf3, VectorLength::B128, to.0, 0, Operand::Memory(from), 0);
    }

    /// `to = low` with its upper half replaced by memory or by the lower half of `high`.
    pub fn insert_half(&mut self, to: Ymm, low: Ymm, high: Operand) {
        self.emit_vex_op((OpcodeMap::M0f3a, 0x38), VexPrefix::P66, VectorLength::B256, to.0, low.0, high, 1);
        self.emit_bytes(&[1]);
    }

    /// Moves the upper half to a lower half.
    pub fn extract_upper_half(&mut self, to: Ymm, from: Ymm) {
        self.emit_vex_op(
            (OpcodeMap::M0f3a, 0x39),
            VexPrefix::P66,
            VectorLength::B256,
            from.0,
            0,
            Operand::Vector(to),
            1,
        );
        self.emit_bytes(&[1]);
    }

    /// Stores the lowest word.
    pub fn store_low_word(&mut self, to: Memory, from: Ymm) {
        self.emit_vex_op((OpcodeMap::M0f, 0x7e), VexPrefix::P66, VectorLength::B128, from.0, 0, Operand::Memory(to), 0);
    }

    /// Zeroes a register.
    pub fn zero(&mut self, to: Ymm) {
        self.emit_vex_op(
            (OpcodeMap::M0f, 0xef),
            VexPrefix::P66,
            VectorLength::B128,
            to.0,
            to.0,
            Operand::Vector(to),
            0,
        );
    }

    /// Inserts 1, 2 or 4 bytes of memory at the position of word `lane` of the lower half.
    pub fn insert_lane(&mut self, to: Ymm, lane: u8, from: Memory, size: u32) {
        let (encoding, place) = match size {
            1 => ((OpcodeMap::M0f3a, 0x20), 4 * lane),
            2 => ((OpcodeMap::M0f, 0xc4), 2 * lane),
            _ => ((OpcodeMap::M0f3a, 0x22), lane),
        };
        self.emit_vex_op(encoding, VexPrefix::P66, VectorLength::B128, to.0, to.0, Operand::Memory(from), 1);
        self.emit_bytes(&[place]);
    }

    /// Clears the upper halves of all registers, so that SSE code that follows pays no transition
    /// penalty.
    pub fn vzeroupper(&mut self) {
        self.emit_bytes(&[0xc5, 0xf8, 0x77]);
    }

    /// Emits an instruction on general-purpose registers with ModRM; `wide` for 64 bits.
    fn emit_gpr_op(&mut self, opcode: u8, reg: u8, operand: Operand, wide: bool, behind: usize) {
        let (x, b) = match operand {
            Operand::Vector(Ymm(rm)) => (0, rm >> 3),
            Operand::Memory(Memory { base, index, .. }) => (index.map_or(0, |(index, _)| index.0 >> 3), base.0 >> 3),
            Operand::Constant(_) => (0, 0),
        };
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | x << 1 | b;
        if rex != 0x40 {
            self.emit_bytes(&[rex]);
        }
        self.emit_bytes(&[opcode]);
        self.emit_modrm(reg, operand, behind);
    }

    /// Loads 64 bits.
    pub fn load64(&mut self, to: Gpr, from: Memory) {
        self.emit_gpr_op(0x8b, to.0, Operand::Memory(from), true, 0);
    }

    /// Loads 32 bits, zero-extended.
    pub fn load32(&mut self, to: Gpr, from: Memory) {
        self.emit_gpr_op(0x8b, to.0, Operand::Memory(from), false, 0);
    }

    pub fn store64(&mut self, to: Memory, from: Gpr) {
        self.emit_gpr_op(0x89, from.0, Operand::Memory(to), true, 0);
    }

    pub fn lea(&mut self, to: Gpr, of: Memory) {
        self.emit_gpr_op(0x8d, to.0, Operand::Memory(of), true, 0);
    }

    pub fn mov(&mut self, to: Gpr, from: Gpr) {
        self.emit_gpr_op(0x8b, to.0, Operand::Vector(Ymm(from.0)), true, 0);
    }

    pub fn imul(&mut self, to: Gpr, from: Gpr, by: i32) {
        self.emit_gpr_op(0x69, to.0, Operand::Vector(Ymm(from.0)), true, 4);
        self.emit_bytes(&by.to_le_bytes());
    }

    pub fn add_imm(&mut self, to: Gpr, number: i32) {
        self.emit_gpr_op(0x81, 0, Operand::Vector(Ymm(to.0)), true, 4);
        self.emit_bytes(&number.to_le_bytes());
    }

    pub fn and_imm(&mut self, to: Gpr, number: i32) {
        self.emit_gpr_op(0x81, 4, Operand::Vector(Ymm(to.0)), true, 4);
        self.emit_bytes(&number.to_le_bytes());
    }

    pub fn cmp(&mut self, a: Gpr, b: Gpr) {
        self.emit_gpr_op(0x3b, a.0, Operand::Vector(Ymm(b.0)), true, 0);
    }

    pub fn push(&mut self, register: Gpr) {
        if register.0 >= 8 {
            self.emit_bytes(&[0x41]);
        }
        self.emit_bytes(&[0x50 | register.0 & 7]);
    }

    pub fn pop(&mut self, register: Gpr) {
        if register.0 >= 8 {
            self.emit_bytes(&[0x41]);
        }
        self.emit_bytes(&[0x58 | register.0 & 7]);
    }

    pub fn jmp(&mut self, to: Label) {
        self.emit_bytes(&[0xe9]);
        self.emit_fixup(Target::Label(to), 0);
    }

    pub fn jcc(&mut self, condition: Condition, to: Label) {
        self.emit_bytes(&[0x0f, 0x80 | condition as u8]);
        self.emit_fixup(Target::Label(to), 0);
    }

    pub fn ret(&mut self) {
        self.emit_bytes(&[0xc3]);
    }
}

#[cfg(test)]
mod tests;
