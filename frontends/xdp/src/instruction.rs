//! eBPF instructions (RFC 9669, "BPF Instruction Set Architecture").

use std::fmt;

use crate::helper;

/// An instruction of 8 bytes. LDDW takes two, the second with the high half of its constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Instruction {
    /// Opcode.
    pub code: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register, or the kind of a call or constant.
    pub src: u8,
    /// Jump distance, or offset of an address.
    pub off: i16,
    /// Immediate constant.
    pub imm: i32,
}

/// Instruction classes (RFC 9669, section 3.1).
pub(crate) mod class {
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
}

/// Opcode that loads a 64-bit constant.
pub(crate) const LDDW: u8 = 0x18;
/// Opcode of calls.
pub(crate) const CALL: u8 = 0x85;
/// Opcode of a call through a register, which the kernel does not have.
pub(crate) const CALLX: u8 = 0x8d;
/// Opcode that returns.
pub(crate) const EXIT: u8 = 0x95;
/// Unconditional jump by `off`.
pub(crate) const JA: u8 = 0x05;
/// Unconditional jump by `imm`.
pub(crate) const JA32: u8 = 0x06;

/// Values of `src` in a call.
pub(crate) mod call {
    /// A helper, by number.
    pub const HELPER: u8 = 0;
    /// A function of the program.
    pub const FUNCTION: u8 = 1;
    /// A kernel function (kfunc).
    pub const KERNEL: u8 = 2;
}

/// Arithmetic operations (RFC 9669, section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AluOp {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    Lsh,
    Rsh,
    Neg,
    Mod,
    Xor,
    Mov,
    Arsh,
    End,
}

/// Jump conditions (RFC 9669, section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Comparison {
    Eq,
    Gt,
    Ge,
    Set,
    Ne,
    Sgt,
    Sge,
    Lt,
    Le,
    Slt,
    Sle,
}

impl Comparison {
    /// The equivalent comparison with operands swapped.
    pub(crate) fn swap_operands(self) -> Comparison {
        use Comparison::*;
        match self {
            Gt => Lt,
            Ge => Le,
            Lt => Gt,
            Le => Ge,
            Sgt => Slt,
            Sge => Sle,
            Slt => Sgt,
            Sle => Sge,
            same => same,
        }
    }
}

impl Instruction {
    /// Decodes 8 bytes.
    pub(crate) fn decode(bytes: [u8; 8]) -> Instruction {
        let [code, registers, ..] = bytes;
        Instruction {
            code,
            dst: registers & 15,
            src: registers >> 4,
            off: i16::from_le_bytes([bytes[2], bytes[3]]),
            imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    /// The instruction class.
    pub(crate) fn class(self) -> u8 {
        self.code & 7
    }

    /// Whether the second operand is a register.
    pub(crate) fn has_register_operand(self) -> bool {
        self.code & 8 != 0
    }

    /// Size of a load or store in bytes.
    pub(crate) fn size(self) -> u32 {
        match self.code >> 3 & 3 {
            0 => 4,
            1 => 2,
            2 => 1,
            _ => 8,
        }
    }

    /// Addressing mode of a load or store.
    pub(crate) fn mode(self) -> u8 {
        self.code >> 5
    }

    /// The arithmetic operation, if the opcode has one.
    pub(crate) fn alu(self) -> Option<AluOp> {
        use AluOp::*;
        let all = [Add, Sub, Mul, Div, Or, And, Lsh, Rsh, Neg, Mod, Xor, Mov, Arsh, End];
        all.get(usize::from(self.code >> 4)).copied()
    }

    /// The jump condition, if the opcode has one.
    pub(crate) fn comparison(self) -> Option<Comparison> {
        use Comparison::*;
        match self.code >> 4 {
            1 => Some(Eq),
            2 => Some(Gt),
            3 => Some(Ge),
            4 => Some(Set),
            5 => Some(Ne),
            6 => Some(Sgt),
            7 => Some(Sge),
            10 => Some(Lt),
            11 => Some(Le),
            12 => Some(Slt),
            13 => Some(Sle),
            _ => None,
        }
    }
}

/// For bits 4 to 7 of an atomic instruction's constant: the name of the fetching form
/// (`atomic_fetch_add`), and the operator of the other (`lock … += …`).
fn atomic_names(operation: u8) -> Option<(&'static str, &'static str)> {
    match operation {
        0 => Some(("add", "+=")),
        4 => Some(("or", "|=")),
        5 => Some(("and", "&=")),
        10 => Some(("xor", "^=")),
        _ => None,
    }
}

impl Instruction {
    /// Writes an atomic instruction (RFC 9669, section 5.3).
    fn format_atomic(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instruction { dst, src, off, imm, .. } = self;
        let (wide, ty) = if self.size() == 8 { ("64", "u64") } else { ("", "u32") };
        let place = format!("({ty} *)(r{dst} {off:+})");
        match (atomic_names((imm >> 4) as u8 & 15), imm) {
            (Some((_, sign)), 0..0x100) if imm & 15 == 0 => write!(f, "lock *{place} {sign} r{src}"),
            (Some((name, _)), 0..0x100) if imm & 15 == 1 => {
                write!(f, "r{src} = atomic{wide}_fetch_{name}({place}, r{src})")
            }
            (_, 0xe1) => write!(f, "r{src} = atomic{wide}_xchg({place}, r{src})"),
            (_, 0xf1) => write!(f, "r0 = atomic{wide}_cmpxchg({place}, r0, r{src})"),
            _ => write!(f, "unknown atomic instruction {imm:#x}"),
        }
    }
}

/// Formats like the verifier (kernel/bpf/disasm.c), except for 64-bit constants, whose high half is
/// in the next instruction.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instruction { code, dst, src, off, imm } = *self;
        let width = |size| match size {
            1 => "u8",
            2 => "u16",
            4 => "u32",
            _ => "u64",
        };
        let w = if matches!(self.class(), class::ALU | class::JMP32) { 'w' } else { 'r' };
        let second = if self.has_register_operand() { format!("{w}{src}") } else { imm.to_string() };
        match self.class() {
            class::LD if code == LDDW => write!(f, "r{dst} = {imm:#x} ll"),
            class::LDX => {
                let sign = if self.mode() == 4 { "s" } else { "u" };
                write!(f, "r{dst} = *({sign}{} *)(r{src} {off:+})", self.size() * 8)
            }
            class::STX if self.mode() == 6 => self.format_atomic(f),
            class::ST => write!(f, "*({} *)(r{dst} {off:+}) = {imm}", width(self.size())),
            class::STX => write!(f, "*({} *)(r{dst} {off:+}) = r{src}", width(self.size())),
            class::ALU | class::ALU64 => {
                let sign = match self.alu() {
                    Some(AluOp::Add) => "+=",
                    Some(AluOp::Sub) => "-=",
                    Some(AluOp::Mul) => "*=",
                    Some(AluOp::Div) if off == 1 => "s/=",
                    Some(AluOp::Mod) if off == 1 => "s%=",
                    Some(AluOp::Div) => "/=",
                    Some(AluOp::Or) => "|=",
                    Some(AluOp::And) => "&=",
                    Some(AluOp::Lsh) => "<<=",
                    Some(AluOp::Rsh) => ">>=",
                    Some(AluOp::Mod) => "%=",
                    Some(AluOp::Xor) => "^=",
                    Some(AluOp::Mov) => "=",
                    Some(AluOp::Arsh) => "s>>=",
                    Some(AluOp::Neg) => return write!(f, "{w}{dst} = -{w}{dst}"),
                    Some(AluOp::End) => {
                        let order = match (self.class(), self.has_register_operand()) {
                            (class::ALU64, _) => "bswap",
                            (_, true) => "be",
                            (_, false) => "le",
                        };
                        return write!(f, "r{dst} = {order}{imm} r{dst}");
                    }
                    None => return write!(f, "unknown instruction {code:#04x}"),
                };
                // A move may sign-extend.
                match self.alu() {
                    Some(AluOp::Mov) if off != 0 => write!(f, "{w}{dst} = (s{off}){second}"),
                    _ => write!(f, "{w}{dst} {sign} {second}"),
                }
            }
            _ if code == EXIT => f.write_str("exit"),
            _ if code == JA => write!(f, "goto pc{off:+}"),
            _ if code == JA32 => write!(f, "gotol pc{imm:+}"),
            _ if code == CALL => match src {
                call::FUNCTION => write!(f, "call pc{imm:+}"),
                call::KERNEL => write!(f, "call kernel-function#{imm}"),
                _ => {
                    let name = helper::name(imm as u32);
                    let name = if name.starts_with("bpf_") { name.as_str() } else { "unknown" };
                    write!(f, "call {name}#{imm}")
                }
            },
            class::JMP | class::JMP32 => {
                use Comparison::*;
                let sign = match self.comparison() {
                    Some(Eq) => "==",
                    Some(Gt) => ">",
                    Some(Ge) => ">=",
                    Some(Set) => "&",
                    Some(Ne) => "!=",
                    Some(Sgt) => "s>",
                    Some(Sge) => "s>=",
                    Some(Lt) => "<",
                    Some(Le) => "<=",
                    Some(Slt) => "s<",
                    Some(Sle) => "s<=",
                    None => return write!(f, "unknown instruction {code:#04x}"),
                };
                let second = if self.has_register_operand() { second } else { format!("{imm:#x}") };
                write!(f, "if {w}{dst} {sign} {second} goto pc{off:+}")
            }
            _ => write!(f, "unknown instruction {code:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats that no test compares with the kernel itself, from kernel/bpf/disasm.c.
    #[test]
    fn instructions_are_formatted_like_the_kernel_does() {
        let shown = |code, off, imm| Instruction { code, dst: 1, src: 2, off, imm }.to_string();
        for (code, imm, wanted) in [
            (0xdb, 0x00, "lock *(u64 *)(r1 -8) += r2"),
            (0xc3, 0x40, "lock *(u32 *)(r1 -8) |= r2"),
            (0xdb, 0x50, "lock *(u64 *)(r1 -8) &= r2"),
            (0xdb, 0xa0, "lock *(u64 *)(r1 -8) ^= r2"),
            (0xdb, 0x01, "r2 = atomic64_fetch_add((u64 *)(r1 -8), r2)"),
            (0xc3, 0x41, "r2 = atomic_fetch_or((u32 *)(r1 -8), r2)"),
            (0xc3, 0x51, "r2 = atomic_fetch_and((u32 *)(r1 -8), r2)"),
            (0xdb, 0xa1, "r2 = atomic64_fetch_xor((u64 *)(r1 -8), r2)"),
            (0xdb, 0xe1, "r2 = atomic64_xchg((u64 *)(r1 -8), r2)"),
            (0xdb, 0xf1, "r0 = atomic64_cmpxchg((u64 *)(r1 -8), r0, r2)"),
            (0xc3, 0xf1, "r0 = atomic_cmpxchg((u32 *)(r1 -8), r0, r2)"),
            (0xdb, 0x17, "unknown atomic instruction 0x17"),
        ] {
            assert_eq!(shown(code, -8, imm), wanted);
        }
        let call = |src, imm| Instruction { code: CALL, src, imm, ..Instruction::default() }.to_string();
        assert_eq!(call(call::HELPER, 1), "call bpf_map_lookup_elem#1");
        assert_eq!(call(call::HELPER, 4000), "call unknown#4000");
        assert_eq!(call(call::FUNCTION, -3), "call pc-3");
        assert_eq!(call(call::KERNEL, 77), "call kernel-function#77");
    }
}
