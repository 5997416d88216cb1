//! Instructions of x86-64 as bytes: those that vectors of 256 bits take, and the few beside them.
//!
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: sections 2.1 (ModRM, SIB), 2.3 (VEX), and each
//! instruction's own page.

/// A general register, by its number: 0 is RAX, 4 RSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct General(pub u8);

/// A vector register, 0 to 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Register(pub u8);

/// An instruction that takes two vectors and gives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    Add,
    Subtract,
    Multiply,
    And,
    /// The second and not the first.
    AndNot,
    Or,
    Xor,
    Equal,
    /// Signed.
    Greater,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    /// Bytes of the first in each half, by the second; zero where its highest bit is set.
    Shuffle,
    /// Words of each half's low half, by turns.
    LowWords,
    HighWords,
    /// The low half of each half.
    LowPairs,
    HighPairs,
}

/// By a number of bits, the same in all lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    Left,
    Right,
    RightSigned,
}

/// What is in the opcode maps.
#[derive(Debug, Clone, Copy)]
enum Map {
    M0f = 1,
    M0f38 = 2,
    M0f3a = 3,
}

/// A prefix that is a part of the opcode.
#[derive(Debug, Clone, Copy)]
enum Prefix {
    None = 0,
    P66 = 1,
    Pf3 = 2,
}

/// Bits of a vector that an instruction takes.
#[derive(Debug, Clone, Copy)]
enum Bits {
    B128 = 0,
    B256 = 1,
}

impl Opcode {
    fn encoding(self) -> (Map, u8) {
        use Map::{M0f, M0f38};
        match self {
            Opcode::Add => (M0f, 0xfe),
            Opcode::Subtract => (M0f, 0xfa),
            Opcode::Multiply => (M0f38, 0x40),
            Opcode::And => (M0f, 0xdb),
            Opcode::AndNot => (M0f, 0xdf),
            Opcode::Or => (M0f, 0xeb),
            Opcode::Xor => (M0f, 0xef),
            Opcode::Equal => (M0f, 0x76),
            Opcode::Greater => (M0f, 0x66),
            Opcode::Min => (M0f38, 0x3b),
            Opcode::Max => (M0f38, 0x3f),
            Opcode::MinSigned => (M0f38, 0x39),
            Opcode::MaxSigned => (M0f38, 0x3d),
            Opcode::ShiftLeft => (M0f38, 0x47),
            Opcode::ShiftRight => (M0f38, 0x45),
            Opcode::ShiftRightSigned => (M0f38, 0x46),
            Opcode::Shuffle => (M0f38, 0x00),
            Opcode::LowWords => (M0f, 0x62),
            Opcode::HighWords => (M0f, 0x6a),
            Opcode::LowPairs => (M0f, 0x6c),
            Opcode::HighPairs => (M0f, 0x6d),
        }
    }
}

/// Memory: `base + index * scale + displacement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub base: General,
    pub index: Option<(General, u8)>,
    pub displacement: i32,
}

impl Memory {
    pub fn at(base: General, displacement: i32) -> Memory {
        Memory { base, index: None, displacement }
    }

    pub fn with_index(base: General, index: General, displacement: i32) -> Memory {
        Memory { base, index: Some((index, 1)), displacement }
    }
}

/// What an instruction takes beside its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Vector(Register),
    Memory(Memory),
    /// A constant, by its number.
    Constant(usize),
}

/// A place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(pub usize);

/// Bytes of a constant.
pub(super) const CONSTANT: usize = 32;

/// Four bytes that are to be the distance from behind an instruction to something.
#[derive(Debug, Clone, Copy)]
struct Distance {
    /// Where, in which piece.
    aside: bool,
    at: usize,
    /// Bytes of the instruction behind them.
    behind: usize,
    to: Target,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Label(Label),
    Constant(usize),
}

/// Code in the making: what is usually executed, and what stands behind it, aside.
#[derive(Debug, Default)]
pub(super) struct Code {
    usual: Vec<u8>,
    aside: Vec<u8>,
    /// Whether what comes next is put aside.
    is_aside: bool,
    distances: Vec<Distance>,
    /// By their numbers: whether aside, and where.
    labels: Vec<Option<(bool, usize)>>,
}

/// A general instruction's condition: `0f 80 + condition` is a jump.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    Carry = 2,
    Zero = 4,
    NotZero = 5,
    LessOrEqual = 14,
    Greater = 15,
}

impl Code {
    fn bytes(&mut self) -> &mut Vec<u8> {
        if self.is_aside { &mut self.aside } else { &mut self.usual }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes().extend_from_slice(bytes);
    }

    /// From here on code is put aside, or no longer.
    pub fn put_aside(&mut self, aside: bool) {
        self.is_aside = aside;
    }

    pub fn label(&mut self, label: Label) {
        let place = (self.is_aside, self.bytes().len());
        if self.labels.len() <= label.0 {
            self.labels.resize(label.0 + 1, None);
        }
        self.labels[label.0] = Some(place);
    }

    fn distance(&mut self, to: Target, behind: usize) {
        let (aside, at) = (self.is_aside, self.bytes().len());
        self.distances.push(Distance { aside, at, behind, to });
        self.put(&[0; 4]);
    }

    /// All of it, with constants behind, each at a multiple of its size.
    pub fn finish(mut self, constants: &[[u8; CONSTANT]]) -> Vec<u8> {
        let begin = self.usual.len();
        self.usual.append(&mut self.aside);
        let pool = self.usual.len().next_multiple_of(CONSTANT);
        // What never runs is filled with what stops whoever runs it.
        self.usual.resize(pool, 0xcc);
        constants.iter().for_each(|constant| self.usual.extend_from_slice(constant));
        for Distance { aside, at, behind, to } in self.distances {
            let place = |(aside, at): (bool, usize)| if aside { begin + at } else { at };
            let at = place((aside, at));
            let to = match to {
                Target::Label(label) => place(self.labels[label.0].expect("every label is put somewhere")),
                Target::Constant(number) => pool + number * CONSTANT,
            };
            let distance = to as i64 - (at + 4 + behind) as i64;
            let distance = i32::try_from(distance).expect("filters are bounded, and their code with them");
            self.usual[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.usual
    }

    /// ModRM, and what belongs to it. `behind`: bytes of the instruction that follow.
    fn operand(&mut self, reg: u8, operand: Operand, behind: usize) {
        let reg = (reg & 7) << 3;
        match operand {
            Operand::Vector(Register(rm)) => self.put(&[0xc0 | reg | rm & 7]),
            Operand::Constant(number) => {
                self.put(&[reg | 5]);
                self.distance(Target::Constant(number), behind);
            }
            Operand::Memory(Memory { base, index, displacement }) => {
                let low = base.0 & 7;
                // RBP and R13 have no form without a displacement.
                let (mode, bytes) = match i8::try_from(displacement) {
                    Ok(0) if low != 5 => (0, 0),
                    Ok(_) => (0x40, 1),
                    Err(_) => (0x80, 4),
                };
                match index {
                    // RSP and R12 have none without an index; RSP as an index is none.
                    None if low == 4 => self.put(&[mode | reg | 4, 0x20 | low]),
                    None => self.put(&[mode | reg | low]),
                    Some((index, scale)) => {
                        debug_assert!(index.0 != 4 && scale.is_power_of_two() && scale <= 8);
                        let scale = (scale.trailing_zeros() as u8) << 6;
                        self.put(&[mode | reg | 4, scale | (index.0 & 7) << 3 | low]);
                    }
                }
                self.put(&displacement.to_le_bytes()[..bytes]);
            }
        }
    }

    /// An instruction with a VEX prefix. `first` is the register in VEX.vvvv, 0 where there is none.
    #[expect(clippy::too_many_arguments)]
    fn vex(
        &mut self,
        (map, opcode): (Map, u8),
        prefix: Prefix,
        bits: Bits,
        reg: u8,
        first: u8,
        operand: Operand,
        behind: usize,
    ) {
        let (x, b) = match operand {
            Operand::Vector(Register(rm)) => (0, rm >> 3),
            Operand::Memory(Memory { base, index, .. }) => (index.map_or(0, |(index, _)| index.0 >> 3), base.0 >> 3),
            Operand::Constant(_) => (0, 0),
        };
        let r = reg >> 3;
        let last = (!first & 0xf) << 3 | (bits as u8) << 2 | prefix as u8;
        // Registers' highest bits are stored inverted.
        match map {
            Map::M0f if x == 0 && b == 0 => self.put(&[0xc5, (r ^ 1) << 7 | last]),
            _ => self.put(&[0xc4, (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | map as u8, last]),
        }
        self.put(&[opcode]);
        self.operand(reg, operand, behind);
    }

    /// `to = first op second`, 256 bits.
    pub fn vectors(&mut self, op: Opcode, to: Register, first: Register, second: Operand) {
        self.vex(op.encoding(), Prefix::P66, Bits::B256, to.0, first.0, second, 0);
    }

    /// `to = from` shifted, in each lane.
    pub fn shift(&mut self, op: Shift, to: Register, from: Register, count: u8) {
        let digit = match op {
            Shift::Left => 6,
            Shift::Right => 2,
            Shift::RightSigned => 4,
        };
        self.vex((Map::M0f, 0x72), Prefix::P66, Bits::B256, digit, to.0, Operand::Vector(from), 1);
        self.put(&[count]);
    }

    /// `to = on` where the mask's bytes have their highest bit set, `off` elsewhere.
    pub fn blend(&mut self, to: Register, mask: Register, on: Operand, off: Register) {
        self.vex((Map::M0f3a, 0x4c), Prefix::P66, Bits::B256, to.0, off.0, on, 1);
        self.put(&[mask.0 << 4]);
    }

    /// Words 0 and 2, or 1 and 3, of each half of two vectors, the first one's first.
    pub fn every_other(&mut self, to: Register, first: Register, second: Register, odd: bool) {
        self.vex((Map::M0f, 0xc6), Prefix::None, Bits::B256, to.0, first.0, Operand::Vector(second), 1);
        self.put(&[if odd { 0xdd } else { 0x88 }]);
    }

    /// Sets the zero flag where no bit is set in both, the carry flag where none is set in the second alone.
    pub fn test(&mut self, first: Register, second: Operand) {
        self.vex((Map::M0f38, 0x17), Prefix::P66, Bits::B256, first.0, 0, second, 0);
    }

    /// 256 bits, at any place.
    pub fn load(&mut self, to: Register, from: Operand) {
        self.vex((Map::M0f, 0x6f), Prefix::Pf3, Bits::B256, to.0, 0, from, 0);
    }

    pub fn store(&mut self, to: Memory, from: Register) {
        self.vex((Map::M0f, 0x7f), Prefix::Pf3, Bits::B256, from.0, 0, Operand::Memory(to), 0);
    }

    /// 128 bits, at any place; zeros above.
    pub fn load_half(&mut self, to: Register, from: Memory) {
        self.vex((Map::M0f, 0x6f), Prefix::Pf3, Bits::B128, to.0, 0, Operand::Memory(from), 0);
    }

    /// The vector with its upper half out of memory, or out of another's lower half.
    pub fn insert_half(&mut self, to: Register, low: Register, high: Operand) {
        self.vex((Map::M0f3a, 0x38), Prefix::P66, Bits::B256, to.0, low.0, high, 1);
        self.put(&[1]);
    }

    /// The upper half.
    pub fn upper_half(&mut self, to: Register, from: Register) {
        self.vex((Map::M0f3a, 0x39), Prefix::P66, Bits::B256, from.0, 0, Operand::Vector(to), 1);
        self.put(&[1]);
    }

    /// The low half's first word to memory.
    pub fn store_word(&mut self, to: Memory, from: Register) {
        self.vex((Map::M0f, 0x7e), Prefix::P66, Bits::B128, from.0, 0, Operand::Memory(to), 0);
    }

    /// Zeros.
    pub fn clear(&mut self, to: Register) {
        self.vex((Map::M0f, 0xef), Prefix::P66, Bits::B128, to.0, to.0, Operand::Vector(to), 0);
    }

    /// Bytes of memory, 1, 2 or 4, into the place of the low half that is `lane` of its words.
    pub fn insert(&mut self, to: Register, lane: u8, from: Memory, size: u32) {
        let (encoding, place) = match size {
            1 => ((Map::M0f3a, 0x20), 4 * lane),
            2 => ((Map::M0f, 0xc4), 2 * lane),
            _ => ((Map::M0f3a, 0x22), lane),
        };
        self.vex(encoding, Prefix::P66, Bits::B128, to.0, to.0, Operand::Memory(from), 1);
        self.put(&[place]);
    }

    /// Whoever uses 128 bits without a VEX prefix after this pays nothing for what is above.
    pub fn forget_upper_halves(&mut self) {
        self.put(&[0xc5, 0xf8, 0x77]);
    }

    /// An instruction on general registers with ModRM; `wide`: 64 bits.
    fn general(&mut self, opcode: u8, reg: u8, operand: Operand, wide: bool, behind: usize) {
        let (x, b) = match operand {
            Operand::Vector(Register(rm)) => (0, rm >> 3),
            Operand::Memory(Memory { base, index, .. }) => (index.map_or(0, |(index, _)| index.0 >> 3), base.0 >> 3),
            Operand::Constant(_) => (0, 0),
        };
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | x << 1 | b;
        if rex != 0x40 {
            self.put(&[rex]);
        }
        self.put(&[opcode]);
        self.operand(reg, operand, behind);
    }

    /// 64 bits of memory.
    pub fn load_pointer(&mut self, to: General, from: Memory) {
        self.general(0x8b, to.0, Operand::Memory(from), true, 0);
    }

    /// 32 bits of memory, and zeros above.
    pub fn load_offset(&mut self, to: General, from: Memory) {
        self.general(0x8b, to.0, Operand::Memory(from), false, 0);
    }

    pub fn store_pointer(&mut self, to: Memory, from: General) {
        self.general(0x89, from.0, Operand::Memory(to), true, 0);
    }

    pub fn address(&mut self, to: General, of: Memory) {
        self.general(0x8d, to.0, Operand::Memory(of), true, 0);
    }

    pub fn copy(&mut self, to: General, from: General) {
        self.general(0x8b, to.0, Operand::Vector(Register(from.0)), true, 0);
    }

    pub fn multiply(&mut self, to: General, from: General, by: i32) {
        self.general(0x69, to.0, Operand::Vector(Register(from.0)), true, 4);
        self.put(&by.to_le_bytes());
    }

    pub fn add_number(&mut self, to: General, number: i32) {
        self.general(0x81, 0, Operand::Vector(Register(to.0)), true, 4);
        self.put(&number.to_le_bytes());
    }

    pub fn and_number(&mut self, to: General, number: i32) {
        self.general(0x81, 4, Operand::Vector(Register(to.0)), true, 4);
        self.put(&number.to_le_bytes());
    }

    pub fn compare(&mut self, a: General, b: General) {
        self.general(0x3b, a.0, Operand::Vector(Register(b.0)), true, 0);
    }

    pub fn push(&mut self, register: General) {
        if register.0 >= 8 {
            self.put(&[0x41]);
        }
        self.put(&[0x50 | register.0 & 7]);
    }

    pub fn pop(&mut self, register: General) {
        if register.0 >= 8 {
            self.put(&[0x41]);
        }
        self.put(&[0x58 | register.0 & 7]);
    }

    pub fn jump(&mut self, to: Label) {
        self.put(&[0xe9]);
        self.distance(Target::Label(to), 0);
    }

    pub fn jump_if(&mut self, condition: Condition, to: Label) {
        self.put(&[0x0f, 0x80 | condition as u8]);
        self.distance(Target::Label(to), 0);
    }

    pub fn leave(&mut self) {
        self.put(&[0xc3]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn y(number: u8) -> Register {
        Register(number)
    }

    const RAX: General = General(0);
    const RBX: General = General(3);
    const RDX: General = General(2);
    const RSP: General = General(4);
    const RBP: General = General(5);
    const RSI: General = General(6);
    const RDI: General = General(7);
    const R12: General = General(12);
    const R13: General = General(13);
    const R14: General = General(14);
    const R15: General = General(15);

    fn vector(number: u8) -> Operand {
        Operand::Vector(y(number))
    }

    /// What GNU `as` 2.40 makes of the same, in Intel's syntax.
    #[test]
    fn instructions_are_what_an_assembler_makes_of_them() {
        type Make = fn(&mut Code);
        let all: &[(&str, Make, &[u8])] = &[
            ("vpaddd ymm1,ymm2,ymm3", |c| c.vectors(Opcode::Add, y(1), y(2), vector(3)), &[0xc5, 0xed, 0xfe, 0xcb]),
            (
                "vpaddd ymm9,ymm10,ymm11",
                |c| c.vectors(Opcode::Add, y(9), y(10), vector(11)),
                &[0xc4, 0x41, 0x2d, 0xfe, 0xcb],
            ),
            (
                "vpmulld ymm1,ymm2,[rsp+32]",
                |c| c.vectors(Opcode::Multiply, y(1), y(2), Operand::Memory(Memory::at(RSP, 32))),
                &[0xc4, 0xe2, 0x6d, 0x40, 0x4c, 0x24, 0x20],
            ),
            (
                "vpcmpgtd ymm8,ymm1,ymm15",
                |c| c.vectors(Opcode::Greater, y(8), y(1), vector(15)),
                &[0xc4, 0x41, 0x75, 0x66, 0xc7],
            ),
            (
                "vpsllvd ymm3,ymm4,ymm5",
                |c| c.vectors(Opcode::ShiftLeft, y(3), y(4), vector(5)),
                &[0xc4, 0xe2, 0x5d, 0x47, 0xdd],
            ),
            (
                "vpsrlvd ymm3,ymm12,ymm5",
                |c| c.vectors(Opcode::ShiftRight, y(3), y(12), vector(5)),
                &[0xc4, 0xe2, 0x1d, 0x45, 0xdd],
            ),
            (
                "vpsravd ymm13,ymm4,ymm5",
                |c| c.vectors(Opcode::ShiftRightSigned, y(13), y(4), vector(5)),
                &[0xc4, 0x62, 0x5d, 0x46, 0xed],
            ),
            (
                "vpshufb ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::Shuffle, y(1), y(2), vector(3)),
                &[0xc4, 0xe2, 0x6d, 0x00, 0xcb],
            ),
            (
                "vpminud ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::Min, y(1), y(2), vector(3)),
                &[0xc4, 0xe2, 0x6d, 0x3b, 0xcb],
            ),
            (
                "vpmaxsd ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::MaxSigned, y(1), y(2), vector(3)),
                &[0xc4, 0xe2, 0x6d, 0x3d, 0xcb],
            ),
            (
                "vpunpckhqdq ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::HighPairs, y(1), y(2), vector(3)),
                &[0xc5, 0xed, 0x6d, 0xcb],
            ),
            ("vpslld ymm9,ymm2,7", |c| c.shift(Shift::Left, y(9), y(2), 7), &[0xc5, 0xb5, 0x72, 0xf2, 0x07]),
            ("vpsrld ymm1,ymm12,31", |c| c.shift(Shift::Right, y(1), y(12), 31), &[0xc4, 0xc1, 0x75, 0x72, 0xd4, 0x1f]),
            ("vpsrad ymm1,ymm2,1", |c| c.shift(Shift::RightSigned, y(1), y(2), 1), &[0xc5, 0xf5, 0x72, 0xe2, 0x01]),
            (
                "vpblendvb ymm1,ymm2,ymm13,ymm14",
                |c| c.blend(y(1), y(14), vector(13), y(2)),
                &[0xc4, 0xc3, 0x6d, 0x4c, 0xcd, 0xe0],
            ),
            (
                "vshufps ymm1,ymm9,ymm10,0xdd",
                |c| c.every_other(y(1), y(9), y(10), true),
                &[0xc4, 0xc1, 0x34, 0xc6, 0xca, 0xdd],
            ),
            ("vptest ymm9,ymm9", |c| c.test(y(9), vector(9)), &[0xc4, 0x42, 0x7d, 0x17, 0xc9]),
            (
                "vmovdqu ymm14,[rsp+256]",
                |c| c.load(y(14), Operand::Memory(Memory::at(RSP, 256))),
                &[0xc5, 0x7e, 0x6f, 0xb4, 0x24, 0x00, 0x01, 0x00, 0x00],
            ),
            (
                "vmovdqu [rbx+rsi*4],ymm9",
                |c| c.store(Memory { base: RBX, index: Some((RSI, 4)), displacement: 0 }, y(9)),
                &[0xc5, 0x7e, 0x7f, 0x0c, 0xb3],
            ),
            (
                "vmovdqu xmm3,[rax+r12+12]",
                |c| c.load_half(y(3), Memory::with_index(RAX, R12, 12)),
                &[0xc4, 0xa1, 0x7a, 0x6f, 0x5c, 0x20, 0x0c],
            ),
            (
                "vmovdqu xmm3,[r13+16]",
                |c| c.load_half(y(3), Memory::at(R13, 16)),
                &[0xc4, 0xc1, 0x7a, 0x6f, 0x5d, 0x10],
            ),
            (
                "vinserti128 ymm3,ymm3,[rax+rbp+112],1",
                |c| c.insert_half(y(3), y(3), Operand::Memory(Memory::with_index(RAX, RBP, 112))),
                &[0xc4, 0xe3, 0x65, 0x38, 0x5c, 0x28, 0x70, 0x01],
            ),
            (
                "vinserti128 ymm13,ymm14,xmm15,1",
                |c| c.insert_half(y(13), y(14), vector(15)),
                &[0xc4, 0x43, 0x0d, 0x38, 0xef, 0x01],
            ),
            ("vextracti128 xmm15,ymm15,1", |c| c.upper_half(y(15), y(15)), &[0xc4, 0x43, 0x7d, 0x39, 0xff, 0x01]),
            (
                "vmovd [r14+rsi+4],xmm15",
                |c| c.store_word(Memory::with_index(R14, RSI, 4), y(15)),
                &[0xc4, 0x41, 0x79, 0x7e, 0x7c, 0x36, 0x04],
            ),
            ("vpxor xmm14,xmm14,xmm14", |c| c.clear(y(14)), &[0xc4, 0x41, 0x09, 0xef, 0xf6]),
            (
                "vpinsrd xmm14,xmm14,[rax+r15],3",
                |c| c.insert(y(14), 3, Memory::with_index(RAX, R15, 0), 4),
                &[0xc4, 0x23, 0x09, 0x22, 0x34, 0x38, 0x03],
            ),
            (
                "vpinsrw xmm15,xmm15,[rax+r15+16],2",
                |c| c.insert(y(15), 1, Memory::with_index(RAX, R15, 16), 2),
                &[0xc4, 0x21, 0x01, 0xc4, 0x7c, 0x38, 0x10, 0x02],
            ),
            (
                "vpinsrb xmm14,xmm14,[r14+r15+1000],12",
                |c| c.insert(y(14), 3, Memory::with_index(R14, R15, 1000), 1),
                &[0xc4, 0x03, 0x09, 0x20, 0xb4, 0x3e, 0xe8, 0x03, 0x00, 0x00, 0x0c],
            ),
            ("vzeroupper", |c| c.forget_upper_halves(), &[0xc5, 0xf8, 0x77]),
            ("mov r13,[rdi+8]", |c| c.load_pointer(R13, Memory::at(RDI, 8)), &[0x4c, 0x8b, 0x6f, 0x08]),
            ("mov r12d,[r13+56]", |c| c.load_offset(R12, Memory::at(R13, 56)), &[0x45, 0x8b, 0x65, 0x38]),
            ("mov [rsp+64],r15", |c| c.store_pointer(Memory::at(RSP, 64), R15), &[0x4c, 0x89, 0x7c, 0x24, 0x40]),
            (
                "lea r13,[r13+rsi*8]",
                |c| c.address(R13, Memory { base: R13, index: Some((RSI, 8)), displacement: 0 }),
                &[0x4d, 0x8d, 0x6c, 0xf5, 0x00],
            ),
            (
                "vpsubd ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::Subtract, y(1), y(2), vector(3)),
                &[0xc5, 0xed, 0xfa, 0xcb],
            ),
            ("vpand ymm1,ymm12,ymm3", |c| c.vectors(Opcode::And, y(1), y(12), vector(3)), &[0xc5, 0x9d, 0xdb, 0xcb]),
            (
                "vpandn ymm1,ymm2,ymm13",
                |c| c.vectors(Opcode::AndNot, y(1), y(2), vector(13)),
                &[0xc4, 0xc1, 0x6d, 0xdf, 0xcd],
            ),
            ("vpor ymm11,ymm2,ymm3", |c| c.vectors(Opcode::Or, y(11), y(2), vector(3)), &[0xc5, 0x6d, 0xeb, 0xdb]),
            ("vpxor ymm1,ymm2,ymm3", |c| c.vectors(Opcode::Xor, y(1), y(2), vector(3)), &[0xc5, 0xed, 0xef, 0xcb]),
            ("vpcmpeqd ymm1,ymm2,ymm3", |c| c.vectors(Opcode::Equal, y(1), y(2), vector(3)), &[0xc5, 0xed, 0x76, 0xcb]),
            (
                "vpmaxud ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::Max, y(1), y(2), vector(3)),
                &[0xc4, 0xe2, 0x6d, 0x3f, 0xcb],
            ),
            (
                "vpminsd ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::MinSigned, y(1), y(2), vector(3)),
                &[0xc4, 0xe2, 0x6d, 0x39, 0xcb],
            ),
            (
                "vpunpckldq ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::LowWords, y(1), y(2), vector(3)),
                &[0xc5, 0xed, 0x62, 0xcb],
            ),
            (
                "vpunpckhdq ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::HighWords, y(1), y(2), vector(3)),
                &[0xc5, 0xed, 0x6a, 0xcb],
            ),
            (
                "vpunpcklqdq ymm1,ymm2,ymm3",
                |c| c.vectors(Opcode::LowPairs, y(1), y(2), vector(3)),
                &[0xc5, 0xed, 0x6c, 0xcb],
            ),
            ("mov r15,rsp", |c| c.copy(R15, RSP), &[0x4c, 0x8b, 0xfc]),
            ("mov rsp,r15", |c| c.copy(RSP, R15), &[0x49, 0x8b, 0xe7]),
            ("imul r14,rsi,1000", |c| c.multiply(R14, RSI, 1000), &[0x4c, 0x69, 0xf6, 0xe8, 0x03, 0x00, 0x00]),
            ("add rsi,256", |c| c.add_number(RSI, 256), &[0x48, 0x81, 0xc6, 0x00, 0x01, 0x00, 0x00]),
            ("add r13,256", |c| c.add_number(R13, 256), &[0x49, 0x81, 0xc5, 0x00, 0x01, 0x00, 0x00]),
            ("add rsp,-256", |c| c.add_number(RSP, -256), &[0x48, 0x81, 0xc4, 0x00, 0xff, 0xff, 0xff]),
            ("and rsp,-256", |c| c.and_number(RSP, -256), &[0x48, 0x81, 0xe4, 0x00, 0xff, 0xff, 0xff]),
            ("cmp rsi,rdx", |c| c.compare(RSI, RDX), &[0x48, 0x3b, 0xf2]),
            ("cmp r14,r15", |c| c.compare(R14, R15), &[0x4d, 0x3b, 0xf7]),
            ("push r12", |c| c.push(R12), &[0x41, 0x54]),
            ("pop rbx", |c| c.pop(RBX), &[0x5b]),
        ];
        for (text, make, expected) in all {
            let mut code = Code::default();
            make(&mut code);
            assert_eq!(&code.usual, expected, "{text}");
        }
    }

    #[test]
    fn distances_are_from_behind_the_instruction() {
        let mut code = Code::default();
        code.jump_if(Condition::Zero, Label(0));
        code.blend(y(0), y(1), Operand::Constant(1), y(2));
        code.put_aside(true);
        code.label(Label(0));
        code.jump(Label(1));
        code.put_aside(false);
        code.label(Label(1));
        code.leave();
        let bytes = code.finish(&[[1; CONSTANT], [2; CONSTANT]]);
        let at = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as i64 + at as i64 + 4;
        // 6 bytes of `jz`, 10 of `vpblendvb` with a byte behind its distance, 1 of `ret`; then what is aside.
        assert_eq!(bytes[..2], [0x0f, 0x84]);
        assert_eq!(at(2), 17);
        assert_eq!(at(11) + 1, 32 + 32);
        assert_eq!((bytes[16], bytes[17]), (0xc3, 0xe9));
        assert_eq!(at(18), 16);
        assert_eq!(bytes.len(), 32 + 2 * 32);
        assert_eq!((bytes[31], bytes[32], bytes[64]), (0xcc, 1, 2));
    }
}
