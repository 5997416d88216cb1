//! Operators of lane IR on 32-bit words, and their evaluation on constants.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unary {
    /// Bitwise complement.
    Invert,
    /// Swaps the two low bytes; the operand is below 2^16.
    SwapBytes16,
    SwapBytes32,
    CountOnes,
    /// 32 for zero.
    LeadingZeros,
    /// 32 for zero.
    TrailingZeros,
    ReverseBits,
}

/// WGSL's operators on 32 bits. Everything wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    /// x / 0 = x
    Divide,
    /// x % 0 = 0
    Modulo,
    /// x / 0 = x, MIN / -1 = MIN
    DivideSigned,
    /// x % 0 = 0, MIN % -1 = 0
    ModuloSigned,
    And,
    Or,
    Xor,
    /// Shift counts are taken modulo 32.
    ShiftLeft,
    ShiftRight,
    /// Arithmetic shift.
    ShiftRightSigned,
    Min,
    Max,
    MinSigned,
    MaxSigned,
}

/// Comparisons; all others are one of these with operands exchanged or the result negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Compare {
    Equal,
    Less,
    LessEqual,
    LessSigned,
    LessEqualSigned,
}

/// Evaluates a unary operator.
pub(crate) fn unary(op: Unary, a: u32) -> u32 {
    match op {
        Unary::Invert => !a,
        Unary::SwapBytes16 => (a as u16).swap_bytes().into(),
        Unary::SwapBytes32 => a.swap_bytes(),
        Unary::CountOnes => a.count_ones(),
        Unary::LeadingZeros => a.leading_zeros(),
        Unary::TrailingZeros => a.trailing_zeros(),
        Unary::ReverseBits => a.reverse_bits(),
    }
}

/// Evaluates a binary operator.
pub(crate) fn binary(op: Binary, a: u32, b: u32) -> u32 {
    let (sa, sb) = (a as i32, b as i32);
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        Binary::Divide => a.checked_div(b).unwrap_or(a),
        Binary::Modulo => a.checked_rem(b).unwrap_or(0),
        Binary::DivideSigned if b == 0 => a,
        Binary::DivideSigned => sa.wrapping_div(sb) as u32,
        Binary::ModuloSigned if b == 0 => 0,
        Binary::ModuloSigned => sa.wrapping_rem(sb) as u32,
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::ShiftLeft => a << (b % 32),
        Binary::ShiftRight => a >> (b % 32),
        Binary::ShiftRightSigned => (sa >> (b % 32)) as u32,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::MinSigned => sa.min(sb) as u32,
        Binary::MaxSigned => sa.max(sb) as u32,
    }
}

pub(super) fn is_commutative(op: Binary) -> bool {
    use Binary::{Add, And, Max, MaxSigned, Min, MinSigned, Multiply, Or, Xor};
    matches!(op, Add | Multiply | And | Or | Xor | Min | Max | MinSigned | MaxSigned)
}

/// Evaluates a comparison.
pub(crate) fn compare(op: Compare, a: u32, b: u32) -> bool {
    match op {
        Compare::Equal => a == b,
        Compare::Less => a < b,
        Compare::LessEqual => a <= b,
        Compare::LessSigned => (a as i32) < b as i32,
        Compare::LessEqualSigned => a as i32 <= b as i32,
    }
}
