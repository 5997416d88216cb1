//! Arithmetic and comparisons of RFC 9669, sections 4.1 to 4.3, on 64-bit numbers.

use super::Instruction;

/// Instruction classes (section 3.1).
pub const ALU: u8 = 4;
pub const JMP: u8 = 5;
pub const JMP32: u8 = 6;
pub const ALU64: u8 = 7;

/// Result of an arithmetic instruction; `None` if it does not exist.
pub fn alu(it: Instruction, dst: u64, src: u64) -> Option<u64> {
    let wide = it.code & 7 == ALU64;
    let by_register = it.code & 8 != 0;
    let operation = it.code >> 4;
    // Neg and byte swaps have one operand. The register bit must be clear for Neg, and gives the
    // byte order for swaps.
    if operation == 8 && (by_register || it.off != 0) || operation == 13 && it.off != 0 {
        return None;
    }
    if operation == 13 {
        return swap(it, dst);
    }
    let allowed = match operation {
        3 | 9 => matches!(it.off, 0 | 1),
        11 if by_register => matches!(it.off, 0 | 8 | 16) || wide && it.off == 32,
        _ => it.off == 0,
    };
    if !allowed {
        return None;
    }
    let second = if by_register { src } else { i64::from(it.imm) as u64 };
    if wide {
        return operate(operation, it.off, (dst, second), (dst as i64, second as i64), 64);
    }
    // Of 32-bit numbers the low half of the result counts; the high half of the register is zeroed.
    let (a, b) = (dst as u32, second as u32);
    let signed = (i64::from(a as i32), i64::from(b as i32));
    operate(operation, it.off, (a.into(), b.into()), signed, 32).map(|result| u64::from(result as u32))
}

/// An operation on two numbers of `width` bits, given zero-extended and sign-extended. Only the
/// low `width` bits of the result are defined.
fn operate(operation: u8, off: i16, (a, b): (u64, u64), (x, y): (i64, i64), width: u64) -> Option<u64> {
    let signed = off == 1;
    // "Shift operations use a mask of 0x3F (63) for 64-bit operations and 0x1F (31) for 32-bit
    // operations."
    let count = b & (width - 1);
    Some(match operation {
        0 => a.wrapping_add(b),
        1 => a.wrapping_sub(b),
        2 => a.wrapping_mul(b),
        // "If the execution would result in division by zero, the destination register is instead
        // set to zero". The minimum by -1 is itself.
        3 if b == 0 => 0,
        3 if signed => x.wrapping_div(y) as u64,
        3 => a / b,
        4 => a | b,
        5 => a & b,
        6 => a << count,
        7 => a >> count,
        8 => a.wrapping_neg(),
        // "If execution would result in modulo by zero, for ALU64 the value of the destination
        // register is unchanged whereas for ALU the upper 32 bits of the destination register are
        // zeroed."
        9 if b == 0 => a,
        9 if signed => x.wrapping_rem(y) as u64,
        9 => a % b,
        10 => a ^ b,
        11 => match off {
            8 => b as i8 as u64,
            16 => b as i16 as u64,
            32 => b as i32 as u64,
            _ => b,
        },
        12 => (x >> count) as u64,
        _ => return None,
    })
}

/// Byte swaps (section 4.2): ALU converts to the order that the bit gives, ALU64 always swaps.
fn swap(it: Instruction, dst: u64) -> Option<u64> {
    let wide = it.code & 7 == ALU64;
    let to_big = it.code & 8 != 0;
    if wide && to_big {
        return None;
    }
    // The kernel that results are compared with is little-endian.
    Some(match (it.imm, wide || to_big) {
        (16, false) => dst & 0xffff,
        (32, false) => dst & 0xffff_ffff,
        (64, false) => dst,
        (16, true) => (dst as u16).swap_bytes().into(),
        (32, true) => (dst as u32).swap_bytes().into(),
        (64, true) => dst.swap_bytes(),
        _ => return None,
    })
}

/// Whether a conditional jump is taken; `None` if it does not exist.
pub fn holds(it: Instruction, dst: u64, src: u64) -> Option<bool> {
    let second = if it.code & 8 != 0 { src } else { i64::from(it.imm) as u64 };
    if it.code & 7 == JMP32 {
        // Sign extension keeps the order of 32-bit numbers.
        let (x, y) = (i64::from(dst as i32), i64::from(second as i32));
        compare(it.code >> 4, u64::from(dst as u32), u64::from(second as u32), x, y)
    } else {
        compare(it.code >> 4, dst, second, dst as i64, second as i64)
    }
}

fn compare(condition: u8, a: u64, b: u64, x: i64, y: i64) -> Option<bool> {
    Some(match condition {
        1 => a == b,
        2 => a > b,
        3 => a >= b,
        4 => a & b != 0,
        5 => a != b,
        6 => x > y,
        7 => x >= y,
        10 => a < b,
        11 => a <= b,
        12 => x < y,
        13 => x <= y,
        _ => return None,
    })
}
