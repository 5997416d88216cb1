//! Corner cases of instructions, worked out by hand from RFC 9669, to check the model.

use super::model::arithmetic::{alu, holds};
use super::model::op;

const MIN: u64 = 1 << 63;
const MIN32: u64 = 1 << 31;
const MINUS: u64 = u64::MAX;

/// Opcode (with a register operand), offset, both operands and the result.
const ARITHMETIC: &[(u8, i16, u64, u64, u64)] = &[
    // Additions wrap; 32-bit ones zero the high half.
    (0x0f, 0, MINUS, 1, 0),
    (0x0f, 0, MIN, MIN, 0),
    (0x0c, 0, 0xffff_ffff, 1, 0),
    (0x0c, 0, 0xdead_0000_0000_0001, 0xbeef_0000_0000_0002, 3),
    (0x1f, 0, 0, 1, MINUS),
    (0x1c, 0, 0, 1, 0xffff_ffff),
    (0x2f, 0, 0x1_0000_0000, 0x1_0000_0000, 0),
    (0x2f, 0, MINUS, MINUS, 1),
    (0x2c, 0, 0x1_0001_0000, 0x10_0000, 0),
    (0x2c, 0, 0xffff_ffff, 0xffff_ffff, 1),
    // Division by zero gives zero. Signed division truncates toward zero; the minimum by -1 is
    // itself.
    (0x3f, 0, 7, 0, 0),
    (0x3f, 0, MINUS, 2, 0x7fff_ffff_ffff_ffff),
    (0x3f, 0, 1 << 40, 1 << 8, 1 << 32),
    (0x3c, 0, 7, 0, 0),
    (0x3c, 0, 0xffff_ffff, 2, 0x7fff_ffff),
    // 2^32 is zero as a 32-bit number.
    (0x3c, 0, 7, 1 << 32, 0),
    (0x3f, 1, 7, 0, 0),
    (0x3f, 1, -7_i64 as u64, 2, -3_i64 as u64),
    (0x3f, 1, 7, -2_i64 as u64, -3_i64 as u64),
    (0x3f, 1, MIN, MINUS, MIN),
    (0x3c, 1, MIN32, 0xffff_ffff, MIN32),
    (0x3c, 1, -7_i64 as u64, 2, 0xffff_fffd),
    (0x3c, 1, 5, 0, 0),
    // The remainder by zero is the dividend, with the high half zero for 32 bits. A signed
    // remainder has the dividend's sign.
    (0x9f, 0, 7, 0, 7),
    (0x9f, 0, MINUS, 10, 5),
    (0x9c, 0, 0xffff_ffff_0000_0007, 0, 7),
    (0x9c, 0, 0xffff_ffff_0000_0007, 4, 3),
    (0x9f, 1, -13_i64 as u64, 3, -1_i64 as u64),
    (0x9f, 1, 13, -3_i64 as u64, 1),
    (0x9f, 1, MIN, MINUS, 0),
    (0x9f, 1, MIN, 0, MIN),
    (0x9c, 1, MIN32, 0xffff_ffff, 0),
    (0x9c, 1, -13_i64 as u64, 3, 0xffff_ffff),
    (0x9c, 1, 0xdead_beef_8000_0000, 0, MIN32),
    // Bitwise operations.
    (0x4c, 0, 0xff00_0000_0000_00f0, 0x0f, 0xff),
    (0x5f, 0, MINUS, MIN, MIN),
    (0x5c, 0, MINUS, MINUS, 0xffff_ffff),
    (0xaf, 0, MINUS, MINUS, 0),
    (0xac, 0, 1 << 32, 1, 1),
    // Shift counts are taken modulo the width.
    (0x6f, 0, 1, 63, MIN),
    (0x6f, 0, 1, 64, 1),
    (0x6f, 0, 1, 65, 2),
    (0x6f, 0, 1, 32, 1 << 32),
    (0x6c, 0, 1, 31, MIN32),
    (0x6c, 0, 1, 32, 1),
    (0x6c, 0, 3, 31, MIN32),
    (0x7f, 0, MIN, 63, 1),
    (0x7f, 0, MIN, 64, MIN),
    (0x7c, 0, MIN32, 31, 1),
    (0x7c, 0, 0xffff_ffff_8000_0000, 32, MIN32),
    (0xcf, 0, MIN, 63, MINUS),
    (0xcf, 0, MIN, 0, MIN),
    (0xcf, 0, 0x7fff_ffff_ffff_ffff, 62, 1),
    (0xcc, 0, MIN32, 31, 0xffff_ffff),
    (0xcc, 0, MIN32, 33, 0xc000_0000),
    (0xcc, 0, 0xffff_ffff_7fff_ffff, 30, 1),
    // Moves: plain, and sign-extending 8, 16 and 32 bits.
    (0xbf, 0, 9, MINUS, MINUS),
    (0xbc, 0, 9, MINUS, 0xffff_ffff),
    (0xbf, 8, 9, 0x80, 0xffff_ffff_ffff_ff80),
    (0xbf, 8, 9, 0xff7f, 0x7f),
    (0xbf, 16, 9, 0x8000, 0xffff_ffff_ffff_8000),
    (0xbf, 32, 9, MIN32, 0xffff_ffff_8000_0000),
    (0xbf, 32, 9, 0xffff_ffff_7fff_ffff, 0x7fff_ffff),
    (0xbc, 8, 9, 0x80, 0xffff_ff80),
    (0xbc, 16, 9, 0x7_8000, 0xffff_8000),
];

#[test]
fn arithmetic_at_its_corners() {
    for &(code, off, a, b, gives) in ARITHMETIC {
        let it = op(code, 1, 2, off, 0);
        assert_eq!(alu(it, a, b), Some(gives), "{it}, off {off}: {a:#x}, {b:#x}");
        // With a constant operand, if it fits.
        let constant = i64::from(b as i32) as u64;
        if constant == b && !(code >> 4 == 11 && off != 0) {
            assert_eq!(alu(op(code & !8, 1, 0, off, b as i32), a, 0), Some(gives), "{it} by {constant:#x}");
        }
    }
}

#[test]
fn one_operand_at_its_corners() {
    let number = 0x0123_4567_89ab_cdef;
    for (code, imm, a, gives) in [
        (0x87, 0, 1, MINUS),
        (0x87, 0, MIN, MIN),
        (0x87, 0, 0, 0),
        (0x84, 0, 1, 0xffff_ffff),
        (0x84, 0, 0xffff_ffff_8000_0000, MIN32),
        (0xd4, 16, number, 0xcdef),
        (0xd4, 32, number, 0x89ab_cdef),
        (0xd4, 64, number, number),
        (0xdc, 16, number, 0xefcd),
        (0xdc, 32, number, 0xefcd_ab89),
        (0xdc, 64, number, 0xefcd_ab89_6745_2301),
        (0xd7, 16, number, 0xefcd),
        (0xd7, 32, number, 0xefcd_ab89),
        (0xd7, 64, number, 0xefcd_ab89_6745_2301),
    ] {
        let it = op(code, 1, 0, 0, imm);
        assert_eq!(alu(it, a, 0), Some(gives), "{it}");
    }
    // None of these instructions exists.
    for (code, off, imm) in [
        (0xd4, 0, 8),
        (0xdf, 0, 16),
        (0x8f, 0, 0),
        (0x8c, 0, 0),
        (0xbc, 32, 0),
        (0xb7, 8, 0),
        (0xbf, 24, 0),
        (0x0f, 1, 0),
        (0x3f, 2, 0),
        (0xe7, 0, 0),
        (0xf4, 0, 0),
    ] {
        assert_eq!(alu(op(code, 1, 1, off, imm), 1, 1), None, "{code:#x}, {off}, {imm}");
    }
}

#[test]
fn conditions_at_their_corners() {
    let signs = (MINUS, 1);
    for (code, (a, b), taken) in [
        (0x1d, (5, 5), true),
        (0x1d, (5, 5 | 1 << 32), false),
        (0x1e, (5, 5 | 1 << 32), true),
        (0x2d, signs, true),
        (0x2e, (1, 0xffff_ffff), false),
        (0x2e, (1 << 32, 1), false),
        (0x3d, (7, 7), true),
        (0x3e, (MIN, 1), false),
        (0x4d, (MIN, MIN), true),
        (0x4d, (6, 1), false),
        (0x4e, (MIN, MIN), false),
        (0x5d, (1 << 32, 0), true),
        (0x5e, (1 << 32, 0), false),
        (0x6d, signs, false),
        (0x6d, (1, MINUS), true),
        (0x6e, (0xffff_ffff, 1), false),
        (0x6d, (0xffff_ffff, 1), true),
        (0x7d, (MIN, MIN), true),
        (0x7e, (MIN32, 0), false),
        (0xad, signs, false),
        (0xae, (1 << 32, 1), true),
        (0xbd, (7, 7), true),
        (0xbe, (0xffff_ffff, 1 << 32), false),
        (0xcd, signs, true),
        (0xce, (0xffff_ffff, 1), true),
        (0xcd, (0xffff_ffff, 1), false),
        (0xdd, (MIN, 0), true),
        (0xde, (MIN, 0), true),
    ] {
        let it = op(code, 1, 2, 0, 0);
        assert_eq!(holds(it, a, b), Some(taken), "{it}: {a:#x}, {b:#x}");
    }
    // Constants are sign-extended to 64 bits; a 32-bit comparison uses the low half.
    assert_eq!(holds(op(0x15, 1, 0, 0, -1), MINUS, 0), Some(true));
    assert_eq!(holds(op(0x15, 1, 0, 0, -1), 0xffff_ffff, 0), Some(false));
    assert_eq!(holds(op(0x16, 1, 0, 0, -1), 0xffff_ffff, 0), Some(true));
    for code in [0x8d, 0x9d, 0xed, 0xfe, 0x0e] {
        assert_eq!(holds(op(code, 1, 2, 0, 0), 1, 1), None, "{code:#x}");
    }
}
