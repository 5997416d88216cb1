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
mod tests;
