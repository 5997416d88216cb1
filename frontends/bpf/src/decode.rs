//! Decodes instructions.

use super::ancillary;
use super::instruction::{Alu, Comparison, DecodeError, Decoded, Instruction, Op, Operand, Register};

impl Instruction {
    pub(super) fn decode(self) -> Result<Decoded, DecodeError> {
        let Instruction { code, k, .. } = self;
        let scratch = Register::scratch(k).ok_or(DecodeError::ScratchIndex);
        let size = match code & 0x18 {
            0x00 => 4,
            0x08 => 2,
            _ => 1,
        };
        let operand = if code & 0x08 == 0 { Operand::K(k) } else { Operand::X };
        Ok(Decoded::Op(match code {
            // ld, ldh, ldb [k] and [x + k]
            0x20 | 0x28 | 0x30 => ancillary::decode_load(k, size)?,
            0x40 | 0x48 | 0x50 => Op::LoadIndexed { offset: k, size },
            // ldxb 4*([k]&0xf)
            0xb1 => Op::HeaderLength { offset: k },
            // ld, ldx #k, #pktlen and M[k]
            0x00 => Op::Set { to: Register::A, value: k },
            0x01 => Op::Set { to: Register::X, value: k },
            0x80 => Op::WireLength { to: Register::A },
            0x81 => Op::WireLength { to: Register::X },
            0x60 => Op::Copy { to: Register::A, from: scratch? },
            0x61 => Op::Copy { to: Register::X, from: scratch? },
            // st, stx
            0x02 => Op::Copy { to: scratch?, from: Register::A },
            0x03 => Op::Copy { to: scratch?, from: Register::X },
            // tax, txa
            0x07 => Op::Copy { to: Register::X, from: Register::A },
            0x87 => Op::Copy { to: Register::A, from: Register::X },
            // neg
            0x84 => Op::Negate,
            0x05 => return Ok(Decoded::Jump(k as i32)),
            0x06 => return Ok(Decoded::Return(Some(k))),
            0x16 => return Ok(Decoded::Return(None)),
            _ => match (code & !0x08, code & 0x07) {
                (0x34 | 0x94, _) if operand == Operand::K(0) => return Err(DecodeError::DivisionByZero),
                (op, 4) => Op::Alu(alu(op).ok_or(DecodeError::Unknown)?, operand),
                (op, 5) => return Ok(Decoded::Branch(comparison(op).ok_or(DecodeError::Unknown)?, operand)),
                _ => return Err(DecodeError::Unknown),
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
