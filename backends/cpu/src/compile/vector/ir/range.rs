//! Interval arithmetic on 32-bit words.

use super::ops::{Binary, Unary};

/// An interval of unsigned words, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub low: u32,
    pub high: u32,
}

impl Range {
    /// All words.
    pub const ALL: Range = Range { low: 0, high: u32::MAX };

    pub fn exactly(value: u32) -> Range {
        Range { low: value, high: value }
    }

    pub fn up_to(high: u32) -> Range {
        Range { low: 0, high }
    }

    /// All words of `size` bytes.
    pub fn of_bytes(size: u32) -> Range {
        Range::up_to(u32::MAX >> (32 - 8 * size))
    }

    /// Smallest interval that contains both.
    pub fn union(self, other: Range) -> Range {
        Range { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Returns the only element, if there is one.
    pub fn single(self) -> Option<u32> {
        (self.low == self.high).then_some(self.low)
    }

    /// Mask of the bits that can be set.
    fn bits(self) -> u32 {
        u32::MAX.checked_shr(self.high.leading_zeros()).unwrap_or(0)
    }

    pub(super) fn unary(op: Unary, a: Range) -> Range {
        match op {
            Unary::Invert => Range { low: !a.high, high: !a.low },
            Unary::SwapBytes16 if a.high == 0 => a,
            Unary::SwapBytes16 => Range::up_to(0xffff),
            Unary::CountOnes | Unary::LeadingZeros | Unary::TrailingZeros => Range::up_to(32),
            Unary::SwapBytes32 | Unary::ReverseBits => Range::ALL,
        }
    }

    pub(super) fn binary(op: Binary, a: Range, b: Range) -> Range {
        let wide = |low: Option<u32>, high: Option<u32>| match (low, high) {
            (Some(low), Some(high)) => Range { low, high },
            _ => Range::ALL,
        };
        match op {
            Binary::Add => wide(a.low.checked_add(b.low), a.high.checked_add(b.high)),
            Binary::Subtract => wide(a.low.checked_sub(b.high), a.high.checked_sub(b.low)),
            Binary::Multiply => wide(a.low.checked_mul(b.low), a.high.checked_mul(b.high)),
            Binary::Divide if b.low > 0 => Range { low: a.low / b.high, high: a.high / b.low },
            Binary::Divide => Range::up_to(a.high),
            Binary::Modulo => Range::up_to(a.high.min(b.high.saturating_sub(1))),
            Binary::And => Range::up_to(a.high.min(b.high)),
            Binary::Or => Range { low: a.low.max(b.low), high: a.bits() | b.bits() },
            Binary::Xor => Range::up_to(a.bits() | b.bits()),
            Binary::ShiftLeft => match b.single() {
                Some(count) => {
                    let count = count % 32;
                    let fits = a.high.leading_zeros() >= count;
                    if fits { Range { low: a.low << count, high: a.high << count } } else { Range::ALL }
                }
                None => Range::ALL,
            },
            Binary::ShiftRight => match b.single() {
                Some(count) => Range { low: a.low >> (count % 32), high: a.high >> (count % 32) },
                None => Range::up_to(a.high),
            },
            Binary::Min => Range { low: a.low.min(b.low), high: a.high.min(b.high) },
            Binary::Max => Range { low: a.low.max(b.low), high: a.high.max(b.high) },
            Binary::ShiftRightSigned if a.high >> 31 == 0 => Range::binary(Binary::ShiftRight, a, b),
            Binary::MinSigned if (a.high | b.high) >> 31 == 0 => Range::binary(Binary::Min, a, b),
            Binary::MaxSigned if (a.high | b.high) >> 31 == 0 => Range::binary(Binary::Max, a, b),
            Binary::DivideSigned if (a.high | b.high) >> 31 == 0 => Range::binary(Binary::Divide, a, b),
            Binary::ModuloSigned if (a.high | b.high) >> 31 == 0 => Range::binary(Binary::Modulo, a, b),
            Binary::ShiftRightSigned
            | Binary::MinSigned
            | Binary::MaxSigned
            | Binary::DivideSigned
            | Binary::ModuloSigned => Range::ALL,
        }
    }
}
