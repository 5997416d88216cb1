//! Instructions of classic BPF: their numbers (`linux/bpf_common.h`, `linux/filter.h`; McCanne and Jacobson, "The BSD Packet
//! Filter", 1993), what they do, and how they are written.

use std::fmt;

use super::ancillary;

/// One instruction, as `struct sock_filter` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions skipped where a condition holds.
    pub jt: u8,
    /// Instructions skipped where it does not.
    pub jf: u8,
    /// A number, whose meaning is the code's.
    pub k: u32,
}

/// Words of scratch memory, `BPF_MEMWORDS`.
pub const MEMORY: u32 = 16;

/// What instructions hold values in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Register(u8);

impl Register {
    /// The accumulator.
    pub const A: Register = Register(0);
    /// The index.
    pub const X: Register = Register(1);
    /// How many there are.
    pub const COUNT: usize = 2 + MEMORY as usize;

    /// A word of scratch memory, if there is one of this number.
    fn memory(k: u32) -> Option<Register> {
        (k < MEMORY).then(|| Register(2 + k as u8))
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    pub fn all() -> impl Iterator<Item = Register> {
        (0..Register::COUNT as u8).map(Register)
    }

    /// What a variable for it is called.
    pub fn name(self) -> String {
        match self.0 {
            0 => "a".into(),
            1 => "x".into(),
            n => format!("m{}", n - 2),
        }
    }
}

/// The right side of an operation on A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    K(u32),
    X,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alu {
    Add,
    Subtract,
    Multiply,
    Divide,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Modulo,
    Xor,
}

/// What A is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Greater,
    GreaterEqual,
    /// Any of these bits is set.
    Set,
}

/// What does not jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// A = so many bytes at `at`, highest first.
    Load {
        at: u32,
        size: u32,
    },
    /// A = so many bytes at X + `at`.
    LoadBehind {
        at: u32,
        size: u32,
    },
    /// X = four times the low half of a byte: the length of an IPv4 header.
    Header {
        at: u32,
    },
    Set {
        to: Register,
        value: u32,
    },
    Copy {
        to: Register,
        from: Register,
    },
    /// The length on the wire.
    WireLength {
        to: Register,
    },
    Alu(Alu, Operand),
    Negate,
    /// A = the ingress port.
    Port,
    /// A = what Linux takes for the packet's protocol.
    Protocol,
}

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoded {
    Do(Op),
    /// From the next instruction on.
    Jump(i32),
    Branch(Comparison, Operand),
    /// Whether the packet is taken: where that is said by A, `None`.
    Return(Option<u32>),
}

/// Why an instruction is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalid {
    Unknown,
    /// Scratch memory has no such word.
    Memory,
    /// By a constant zero.
    Division,
    /// A load of Linux's that has no value here: its name, and why.
    Ancillary(&'static str, &'static str),
}

impl Instruction {
    pub(super) fn decode(self) -> Result<Decoded, Invalid> {
        let Instruction { code, k, .. } = self;
        let memory = Register::memory(k).ok_or(Invalid::Memory);
        let size = match code & 0x18 {
            0x00 => 4,
            0x08 => 2,
            _ => 1,
        };
        let operand = if code & 0x08 == 0 { Operand::K(k) } else { Operand::X };
        Ok(Decoded::Do(match code {
            // ld, ldh, ldb [k] and [x + k]
            0x20 | 0x28 | 0x30 => ancillary::load(k, size)?,
            0x40 | 0x48 | 0x50 => Op::LoadBehind { at: k, size },
            // ldxb 4*([k]&0xf)
            0xb1 => Op::Header { at: k },
            // ld, ldx #k, #pktlen and M[k]
            0x00 => Op::Set { to: Register::A, value: k },
            0x01 => Op::Set { to: Register::X, value: k },
            0x80 => Op::WireLength { to: Register::A },
            0x81 => Op::WireLength { to: Register::X },
            0x60 => Op::Copy { to: Register::A, from: memory? },
            0x61 => Op::Copy { to: Register::X, from: memory? },
            // st, stx
            0x02 => Op::Copy { to: memory?, from: Register::A },
            0x03 => Op::Copy { to: memory?, from: Register::X },
            // tax, txa
            0x07 => Op::Copy { to: Register::X, from: Register::A },
            0x87 => Op::Copy { to: Register::A, from: Register::X },
            // neg
            0x84 => Op::Negate,
            0x05 => return Ok(Decoded::Jump(k as i32)),
            0x06 => return Ok(Decoded::Return(Some(k))),
            0x16 => return Ok(Decoded::Return(None)),
            _ => match (code & !0x08, code & 0x07) {
                (0x34 | 0x94, _) if operand == Operand::K(0) => return Err(Invalid::Division),
                (op, 4) => Op::Alu(alu(op).ok_or(Invalid::Unknown)?, operand),
                (op, 5) => return Ok(Decoded::Branch(comparison(op).ok_or(Invalid::Unknown)?, operand)),
                _ => return Err(Invalid::Unknown),
            },
        }))
    }
}

fn alu(code: u16) -> Option<Alu> {
    Some(match code {
        0x04 => Alu::Add,
        0x14 => Alu::Subtract,
        0x24 => Alu::Multiply,
        0x34 => Alu::Divide,
        0x44 => Alu::Or,
        0x54 => Alu::And,
        0x64 => Alu::ShiftLeft,
        0x74 => Alu::ShiftRight,
        0x94 => Alu::Modulo,
        0xa4 => Alu::Xor,
        _ => return None,
    })
}

fn comparison(code: u16) -> Option<Comparison> {
    Some(match code {
        0x15 => Comparison::Equal,
        0x25 => Comparison::Greater,
        0x35 => Comparison::GreaterEqual,
        0x45 => Comparison::Set,
        _ => return None,
    })
}

/// A program as `tcpdump -d` prints it, a line an instruction.
pub fn listing(program: &[Instruction]) -> String {
    let line = |(number, &instruction): (usize, &Instruction)| format!("{}\n", Line { number, instruction });
    program.iter().enumerate().map(line).collect()
}

struct Line {
    number: usize,
    instruction: Instruction,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instruction { code, jt, jf, k } = self.instruction;
        let next = self.number as i64 + 1;
        let (name, operand) = match (code & 0x07, code & 0xf8) {
            _ if self.instruction.decode() == Err(Invalid::Unknown) => ("unimp", format!("0x{code:x}")),
            (0, 0x20) => ("ld", format!("[{}]", k as i32)),
            (0, 0x28) => ("ldh", format!("[{}]", k as i32)),
            (0, 0x30) => ("ldb", format!("[{}]", k as i32)),
            (0, 0x40) => ("ld", format!("[x + {}]", k as i32)),
            (0, 0x48) => ("ldh", format!("[x + {}]", k as i32)),
            (0, 0x50) => ("ldb", format!("[x + {}]", k as i32)),
            (0, 0x00) => ("ld", format!("#0x{k:x}")),
            (1, 0x00) => ("ldx", format!("#0x{k:x}")),
            (0, 0x80) => ("ld", "#pktlen".into()),
            (1, 0x80) => ("ldx", "#pktlen".into()),
            (1, 0xb0) => ("ldxb", format!("4*([{}]&0xf)", k as i32)),
            (0, _) => ("ld", format!("M[{k}]")),
            (1, _) => ("ldx", format!("M[{k}]")),
            (2, _) => ("st", format!("M[{k}]")),
            (3, _) => ("stx", format!("M[{k}]")),
            (4, 0x80) => ("neg", String::new()),
            (4, op) => {
                let number = if matches!(op & 0xf0, 0x40 | 0x50 | 0xa0) {
                    format!("#0x{k:x}")
                } else {
                    format!("#{}", k as i32)
                };
                (ALU_NAMES[usize::from(op >> 4)], if op & 0x08 == 0 { number } else { "x".into() })
            }
            (5, 0x00) => ("ja", (next + i64::from(k as i32)).to_string()),
            (5, op) => {
                let name = ["", "jeq", "jgt", "jge", "jset"][usize::from(op >> 4)];
                (name, if op & 0x08 == 0 { format!("#0x{k:x}") } else { "x".into() })
            }
            (6, 0x00) => ("ret", format!("#{}", k as i32)),
            (6, _) => ("ret", String::new()),
            (_, op) => (if op == 0 { "tax" } else { "txa" }, String::new()),
        };
        write!(f, "({:03}) {name:<8} ", self.number)?;
        match self.instruction.decode() {
            Ok(Decoded::Branch(..)) => {
                write!(f, "{operand:<16} jt {}\tjf {}", next + i64::from(jt), next + i64::from(jf))
            }
            _ => f.write_str(&operand),
        }
    }
}

/// By the operation's number.
const ALU_NAMES: [&str; 16] =
    ["add", "sub", "mul", "div", "or", "and", "lsh", "rsh", "neg", "mod", "xor", "", "", "", "", ""];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_reads_as_tcpdumps() {
        let program = [
            (0x28, 0, 0, 12),
            (0x15, 0, 3, 0x800),
            (0xb1, 0, 0, 14),
            (0x50, 0, 0, 14),
            (0x54, 0, 0, 0xff),
            (0x1c, 0, 0, 0),
            (0x02, 0, 0, 3),
            (0x80, 0, 0, 0),
            (0x05, 0, 0, -3_i32 as u32),
            (0x30, 0, 0, -1_i32 as u32),
            (0x87, 0, 0, 0),
            (0x99, 0, 0, 0),
            (0x06, 0, 0, 262_144),
        ];
        let program = program.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k });
        assert_eq!(
            listing(&program),
            "(000) ldh      [12]
(001) jeq      #0x800           jt 2\tjf 5
(002) ldxb     4*([14]&0xf)
(003) ldb      [x + 14]
(004) and      #0xff
(005) sub      x
(006) st       M[3]
(007) ld       #pktlen
(008) ja       6
(009) ldb      [-1]
(010) txa      \n\
(011) unimp    0x99
(012) ret      #262144
"
        );
    }

    #[test]
    fn codes_are_those_of_the_header_and_no_others() {
        let valid = |code: u16| Instruction { code, k: 1, ..Instruction::default() }.decode() != Err(Invalid::Unknown);
        let all: Vec<u16> = (0..=u16::MAX).filter(|&code| valid(code)).collect();
        // Loads, stores, ALU with K and X, jumps, returns, moves: net/core/filter.c, `chk_code_allowed`.
        #[rustfmt::skip]
        let expected = [
            0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x14, 0x15, 0x16, 0x1c, 0x1d, 0x20, 0x24, 0x25, 0x28,
            0x2c, 0x2d, 0x30, 0x34, 0x35, 0x3c, 0x3d, 0x40, 0x44, 0x45, 0x48, 0x4c, 0x4d, 0x50, 0x54, 0x5c, 0x60, 0x61,
            0x64, 0x6c, 0x74, 0x7c, 0x80, 0x81, 0x84, 0x87, 0x94, 0x9c, 0xa4, 0xac, 0xb1,
        ];
        assert_eq!(all, expected);
    }
}
