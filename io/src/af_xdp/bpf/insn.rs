//! BPF instructions (RFC 9669); names and layout follow include/uapi/linux/bpf.h.

/// A register. Calls take arguments in `R1` to `R5`, return the result in `R0` and clobber `R1` to
/// `R5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
}

/// The second operand of an operation or comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Register(Reg),
    /// A value that is sign-extended to 64 bits.
    Immediate(i32),
}

impl From<Reg> for Operand {
    fn from(register: Reg) -> Operand {
        Operand::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Operand {
        Operand::Immediate(value)
    }
}

/// Width of a load; the upper bits of the register become 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// BPF_B
    Byte = 0x10,
    /// BPF_H
    Half = 0x08,
    /// BPF_W
    Word = 0x00,
}

/// A 64-bit arithmetic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// BPF_ADD
    Add = 0x00,
    /// BPF_AND
    And = 0x50,
    /// BPF_LSH
    Shl = 0x60,
    /// BPF_MOV
    Mov = 0xb0,
}

/// Condition of a jump: a 64-bit unsigned comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cond {
    /// BPF_JEQ
    Eq = 0x10,
    /// BPF_JGT
    Gt = 0x20,
    /// BPF_JNE
    Ne = 0x50,
    /// BPF_JLT
    Lt = 0xa0,
    /// BPF_JLE
    Le = 0xb0,
}

// Instruction classes: the lowest three bits of the opcode.
const BPF_LD: u8 = 0x00;
const BPF_LDX: u8 = 0x01;
const BPF_ALU: u8 = 0x04;
const BPF_JMP: u8 = 0x05;
const BPF_ALU64: u8 = 0x07;
/// The second operand is a register instead of the immediate.
const BPF_X: u8 = 0x08;
// Loads.
const BPF_IMM: u8 = 0x00;
const BPF_MEM: u8 = 0x60;
const BPF_DW: u8 = 0x18;
/// Source register value of a 64-bit immediate that is a map's file descriptor.
const BPF_PSEUDO_MAP_FD: u8 = 1;
// Operations without a second operand.
const BPF_END: u8 = 0xd0;
const BPF_TO_BE: u8 = 0x08;
const BPF_JA: u8 = 0x00;
const BPF_CALL: u8 = 0x80;
const BPF_EXIT: u8 = 0x90;

/// `struct bpf_insn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Insn {
    code: u8,
    /// Two 4-bit fields, in the order of the C structure: destination first.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Insn>() == size_of::<libbpf_sys::bpf_insn>());

impl Insn {
    fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Insn {
        let registers =
            if cfg!(target_endian = "little") { source << 4 | destination } else { destination << 4 | source };
        Insn { code, registers, offset, immediate }
    }

    /// An instruction with a register and an operand.
    fn binary(code: u8, destination: Reg, operand: Operand, offset: i16) -> Insn {
        match operand {
            Operand::Register(source) => Insn::new(code | BPF_X, destination as u8, source as u8, offset, 0),
            Operand::Immediate(value) => Insn::new(code, destination as u8, 0, offset, value),
        }
    }

    /// `register = register OP operand`.
    pub fn alu(op: Op, register: Reg, operand: Operand) -> Insn {
        Insn::binary(BPF_ALU64 | op as u8, register, operand, 0)
    }

    /// Converts the lower 16 bits from network to host byte order; the upper bits become 0.
    pub fn be16(register: Reg) -> Insn {
        Insn::new(BPF_ALU | BPF_END | BPF_TO_BE, register as u8, 0, 0, 16)
    }

    /// `register = *(size *)(address + offset)`.
    pub fn load(size: Size, register: Reg, address: Reg, offset: i16) -> Insn {
        Insn::new(BPF_LDX | BPF_MEM | size as u8, register as u8, address as u8, offset, 0)
    }

    /// `register = ` the map with this file descriptor; takes two instructions.
    pub fn load_map(register: Reg, map: i32) -> [Insn; 2] {
        [Insn::new(BPF_LD | BPF_IMM | BPF_DW, register as u8, BPF_PSEUDO_MAP_FD, 0, map), Insn::default()]
    }

    /// `if register COND operand`, skip `distance` instructions.
    pub fn jump_if(cond: Cond, register: Reg, operand: Operand, distance: i16) -> Insn {
        Insn::binary(BPF_JMP | cond as u8, register, operand, distance)
    }

    /// Skips `distance` instructions.
    pub fn jump(distance: i16) -> Insn {
        Insn::new(BPF_JMP | BPF_JA, 0, 0, distance, 0)
    }

    /// Calls a kernel helper, given by its `BPF_FUNC_` number.
    pub fn call(helper: u32) -> Insn {
        Insn::new(BPF_JMP | BPF_CALL, 0, 0, 0, helper as i32)
    }

    /// Exits with the result in `R0`.
    pub fn exit() -> Insn {
        Insn::new(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
    }

    /// Returns this jump with another distance.
    pub fn with_distance(self, distance: i16) -> Insn {
        Insn { offset: distance, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares encodings with what `llvm-objdump -d` shows for clang's output, on a little-endian
    /// machine.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_encoded_as_by_clang() {
        let cases: &[(Insn, [u8; 8], &str)] = &[
            (Insn::alu(Op::Mov, Reg::R6, Reg::R1.into()), [0xbf, 0x16, 0, 0, 0, 0, 0, 0], "r6 = r1"),
            (Insn::alu(Op::Mov, Reg::R0, (-1).into()), [0xb7, 0x00, 0, 0, 0xff, 0xff, 0xff, 0xff], "r0 = -1"),
            (Insn::alu(Op::Add, Reg::R7, 14.into()), [0x07, 0x07, 0, 0, 14, 0, 0, 0], "r7 += 14"),
            (Insn::alu(Op::Add, Reg::R7, Reg::R9.into()), [0x0f, 0x97, 0, 0, 0, 0, 0, 0], "r7 += r9"),
            (Insn::alu(Op::And, Reg::R2, 0x1fff.into()), [0x57, 0x02, 0, 0, 0xff, 0x1f, 0, 0], "r2 &= 8191"),
            (Insn::alu(Op::Shl, Reg::R3, 2.into()), [0x67, 0x03, 0, 0, 2, 0, 0, 0], "r3 <<= 2"),
            (Insn::be16(Reg::R4), [0xdc, 0x04, 0, 0, 16, 0, 0, 0], "r4 = be16 r4"),
            (Insn::load(Size::Byte, Reg::R9, Reg::R7, 9), [0x71, 0x79, 9, 0, 0, 0, 0, 0], "r9 = *(u8 *)(r7 + 9)"),
            (
                Insn::load(Size::Half, Reg::R5, Reg::R8, -2),
                [0x69, 0x85, 0xfe, 0xff, 0, 0, 0, 0],
                "r5 = *(u16 *)(r8 - 2)",
            ),
            (Insn::load(Size::Word, Reg::R2, Reg::R6, 16), [0x61, 0x62, 16, 0, 0, 0, 0, 0], "r2 = *(u32 *)(r6 + 16)"),
            (Insn::jump_if(Cond::Eq, Reg::R9, 6.into(), 3), [0x15, 0x09, 3, 0, 6, 0, 0, 0], "if r9 == 6 goto +3"),
            (
                Insn::jump_if(Cond::Gt, Reg::R1, Reg::R8.into(), 258),
                [0x2d, 0x81, 2, 1, 0, 0, 0, 0],
                "if r1 > r8 goto +258",
            ),
            (Insn::jump_if(Cond::Ne, Reg::R9, 44.into(), 1), [0x55, 0x09, 1, 0, 44, 0, 0, 0], "if r9 != 44 goto +1"),
            (Insn::jump_if(Cond::Lt, Reg::R1, 133.into(), 2), [0xa5, 0x01, 2, 0, 133, 0, 0, 0], "if r1 < 133 goto +2"),
            (Insn::jump_if(Cond::Le, Reg::R1, 137.into(), 2), [0xb5, 0x01, 2, 0, 137, 0, 0, 0], "if r1 <= 137 goto +2"),
            (Insn::jump(5), [0x05, 0, 5, 0, 0, 0, 0, 0], "goto +5"),
            (Insn::call(51), [0x85, 0, 0, 0, 51, 0, 0, 0], "call 51"),
            (Insn::exit(), [0x95, 0, 0, 0, 0, 0, 0, 0], "exit"),
            (Insn::load_map(Reg::R1, 7)[0], [0x18, 0x11, 0, 0, 7, 0, 0, 0], "r1 = map 7"),
            (Insn::load_map(Reg::R1, 7)[1], [0; 8], "second half of r1 = map 7"),
        ];
        for (insn, bytes, text) in cases {
            let mut encoded = [0; 8];
            encoded[0] = insn.code;
            encoded[1] = insn.registers;
            encoded[2..4].copy_from_slice(&insn.offset.to_le_bytes());
            encoded[4..].copy_from_slice(&insn.immediate.to_le_bytes());
            assert_eq!(encoded, *bytes, "{text}");
        }
    }
}
