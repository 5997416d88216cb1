//! Classic BPF instructions: encoding and disassembly.
//!
//! Opcodes are those of `linux/bpf_common.h` and `linux/filter.h`; the machine is that of McCanne
//! and Jacobson, "The BSD Packet Filter", 1993.

use std::fmt;

/// One instruction, with the layout of `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Instruction {
    /// Opcode: class, size or operation, and addressing mode.
    pub code: u16,
    /// Number of instructions to skip if the condition holds.
    pub jt: u8,
    /// Number of instructions to skip if the condition does not hold.
    pub jf: u8,
    /// Immediate operand; its meaning depends on the opcode.
    pub k: u32,
}

/// Number of scratch memory words, `BPF_MEMWORDS`.
pub const SCRATCH_WORDS: u32 = 16;

/// A register of the machine: A, X or a word of scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Register(u8);

impl Register {
    /// The accumulator.
    pub const A: Register = Register(0);
    /// The index register.
    pub const X: Register = Register(1);
    /// Number of registers, scratch memory included.
    pub const COUNT: usize = 2 + SCRATCH_WORDS as usize;

    /// Returns scratch memory word `k`, or `None` if `k` is out of range.
    pub fn scratch(k: u32) -> Option<Register> {
        (k < SCRATCH_WORDS).then(|| Register(2 + k as u8))
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    pub fn all() -> impl Iterator<Item = Register> {
        (0..Register::COUNT as u8).map(Register)
    }

    /// Name of the local variable that holds the register.
    pub fn name(self) -> String {
        match self.0 {
            0 => "a".into(),
            1 => "x".into(),
            n => format!("m{}", n - 2),
        }
    }
}

/// Right operand of an ALU operation or comparison; the left operand is A.
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

/// Comparison of a conditional jump, with A on the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Greater,
    GreaterEqual,
    /// `BPF_JSET`: A and the operand have a bit in common.
    Set,
}

/// An instruction that falls through to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// A = `size` bytes at `offset`, big-endian.
    Load {
        offset: u32,
        size: u32,
    },
    /// A = `size` bytes at X + `offset`, big-endian.
    LoadIndexed {
        offset: u32,
        size: u32,
    },
    /// X = 4 × (the byte at `offset` & 0xf), the length of an IPv4 header (`BPF_MSH`).
    HeaderLength {
        offset: u32,
    },
    Set {
        to: Register,
        value: u32,
    },
    Copy {
        to: Register,
        from: Register,
    },
    /// `to` = length of the packet on the wire, in bytes.
    WireLength {
        to: Register,
    },
    Alu(Alu, Operand),
    Negate,
    /// A = ingress port.
    Port,
    /// A = the protocol, as Linux's `eth_type_trans` determines it.
    Protocol,
}

/// A decoded instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoded {
    Op(Op),
    /// Jump relative to the next instruction.
    Jump(i32),
    Branch(Comparison, Operand),
    /// Return a constant, or A if `None`; the packet is accepted if the value is not zero.
    Return(Option<u32>),
}

/// The reason why an instruction cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DecodeError {
    Unknown,
    /// Scratch memory has no word with this number.
    ScratchIndex,
    /// Division by a constant zero.
    DivisionByZero,
    /// An ancillary load that has no value here: its name and the reason.
    Ancillary(&'static str, &'static str),
}

/// Formats a program as `tcpdump -d` does, one instruction a line.
pub fn disassemble(program: &[Instruction]) -> String {
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
            _ if self.instruction.decode() == Err(DecodeError::Unknown) => ("unimp", format!("0x{code:x}")),
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

/// Mnemonics by operation, bits 4 to 7 of the opcode.
const ALU_NAMES: [&str; 16] =
    ["add", "sub", "mul", "div", "or", "and", "lsh", "rsh", "neg", "mod", "xor", "", "", "", "", ""];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disassembly_matches_tcpdump() {
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
            disassemble(&program),
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
    fn decodes_exactly_the_opcodes_of_the_kernel_header() {
        let valid =
            |code: u16| Instruction { code, k: 1, ..Instruction::default() }.decode() != Err(DecodeError::Unknown);
        let all: Vec<u16> = (0..=u16::MAX).filter(|&code| valid(code)).collect();
        // The codes that net/core/filter.c's `chk_code_allowed` lets pass.
        #[rustfmt::skip]
        let expected = [
            0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x14, 0x15, 0x16, 0x1c, 0x1d, 0x20, 0x24, 0x25, 0x28,
            0x2c, 0x2d, 0x30, 0x34, 0x35, 0x3c, 0x3d, 0x40, 0x44, 0x45, 0x48, 0x4c, 0x4d, 0x50, 0x54, 0x5c, 0x60, 0x61,
            0x64, 0x6c, 0x74, 0x7c, 0x80, 0x81, 0x84, 0x87, 0x94, 0x9c, 0xa4, 0xac, 0xb1,
        ];
        assert_eq!(all, expected);
    }
}
