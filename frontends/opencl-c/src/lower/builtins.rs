//! Built-in functions on integers and vectors (OpenCL C 1.2, 6.12.3, 6.12.6), in naga's operators.

use naga::{BinaryOperator as Op, Expression, Literal, MathFunction, RelationalFunction};

use super::convert::count;
use super::functions::FunctionLowering;
use super::{ErrorReported, Result, literal};
use crate::tree::{Builtin, Expr};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;

impl FunctionLowering<'_, '_> {
    /// Swaps the bytes of a 16- or 32-bit value.
    pub(super) fn byte_swap(&mut self, value: Value, scalar: Scalar) -> Value {
        let mut moved = |mask: u32, left: u32, right: u32| {
            let (mask, left, right) = (self.builder.u32(mask), self.builder.u32(left), self.builder.u32(right));
            let up = self.builder.binary(Op::And, value, mask);
            let up = self.builder.binary(Op::ShiftLeft, up, left);
            let down = self.builder.binary(Op::ShiftRight, value, right);
            (up, self.builder.binary(Op::And, down, mask))
        };
        let parts = match scalar {
            Scalar::UShort => vec![moved(0xff, 8, 8)],
            _ => vec![moved(0xff, 24, 24), moved(0xff00, 8, 8)],
        };
        let parts: Vec<Value> = parts.into_iter().flat_map(|(up, down)| [up, down]).collect();
        let (first, rest) = parts.split_first().expect("there are two or four");
        rest.iter().fold(*first, |sum, part| self.builder.binary(Op::InclusiveOr, sum, *part))
    }

    pub(super) fn builtin(&mut self, builtin: Builtin, arguments: &[Expr], ty: &Type) -> Result<Value> {
        let values = arguments.iter().map(|argument| self.value(argument)).collect::<Result<Vec<_>>>()?;
        let Some(first) = arguments.first() else { return Err(ErrorReported) };
        let (Some(scalar), size) = (first.ty.element(), count(&first.ty)) else { return Err(ErrorReported) };
        let unsigned = scalar.unsigned();
        Ok(match (builtin, &values[..]) {
            (Builtin::Min, &[a, b]) => self.math(MathFunction::Min, a, Some(b), None),
            (Builtin::Max, &[a, b]) => self.math(MathFunction::Max, a, Some(b), None),
            (Builtin::Clamp, &[x, low, high]) => {
                let x = self.math(MathFunction::Max, x, Some(low), None);
                self.math(MathFunction::Min, x, Some(high), None)
            }
            (Builtin::Abs, &[a]) if scalar.is_signed() => {
                let positive = self.math(MathFunction::Abs, a, None, None);
                self.convert(positive, scalar, unsigned, size)
            }
            (Builtin::Abs, &[a]) => a,
            (Builtin::AbsDiff, &[a, b]) => {
                let high = self.math(MathFunction::Max, a, Some(b), None);
                let low = self.math(MathFunction::Min, a, Some(b), None);
                let (high, low) =
                    (self.convert(high, scalar, unsigned, size), self.convert(low, scalar, unsigned, size));
                let difference = self.builder.binary(Op::Subtract, high, low);
                self.in_range(difference, unsigned, size)
            }
            (Builtin::Rotate, &[a, by]) => self.rotate(a, by, scalar, size),
            (Builtin::MulHi, &[a, b]) => self.mul_hi(a, b, scalar, size),
            (Builtin::MadHi, &[a, b, c]) => {
                let high = self.mul_hi(a, b, scalar, size);
                let sum = self.builder.binary(Op::Add, high, c);
                self.in_range(sum, scalar, size)
            }
            (Builtin::MadSat, &[a, b, c]) => self.mad_sat(a, b, c, scalar, size),
            (Builtin::Upsample, &[high, low]) => {
                let to = ty.element().ok_or(ErrorReported)?;
                let width = self.number_of(Literal::U32(scalar.bits()), size);
                let high = self.convert(high, scalar, to, size);
                let high = self.builder.binary(Op::ShiftLeft, high, width);
                let low = self.convert(low, unsigned, to, size);
                self.builder.binary(Op::InclusiveOr, high, low)
            }
            (Builtin::Mad, &[a, b, c]) => {
                let product = self.builder.binary(Op::Multiply, a, b);
                let sum = self.builder.binary(Op::Add, product, c);
                self.in_range(sum, scalar, size)
            }
            (Builtin::Popcount, &[a]) => {
                let bits = self.convert(a, scalar, unsigned, size);
                let ones = self.math(MathFunction::CountOneBits, bits, None, None);
                self.convert(ones, unsigned, scalar, size)
            }
            (Builtin::Clz, &[a]) => {
                let bits = self.convert(a, scalar, unsigned, size);
                let mut zeros = self.math(MathFunction::CountLeadingZeros, bits, None, None);
                if scalar.size() < 4 {
                    let wider = self.number_of(Literal::U32(32 - scalar.bits()), size);
                    zeros = self.builder.binary(Op::Subtract, zeros, wider);
                }
                self.convert(zeros, unsigned, scalar, size)
            }
            (Builtin::Ctz, &[a]) => {
                let bits = self.convert(a, scalar, unsigned, size);
                let mut zeros = self.math(MathFunction::CountTrailingZeros, bits, None, None);
                if scalar.size() < 4 {
                    let width = self.number_of(Literal::U32(scalar.bits()), size);
                    zeros = self.math(MathFunction::Min, zeros, Some(width), None);
                }
                self.convert(zeros, unsigned, scalar, size)
            }
            (Builtin::AddSat, &[a, b]) => self.saturating_op(Op::Add, a, b, scalar, size),
            (Builtin::SubSat, &[a, b]) => self.saturating_op(Op::Subtract, a, b, scalar, size),
            (Builtin::Hadd, &[a, b]) => {
                let (both, half) = (self.builder.binary(Op::And, a, b), self.half_xor(a, b, size));
                self.builder.binary(Op::Add, both, half)
            }
            (Builtin::Rhadd, &[a, b]) => {
                let (either, half) = (self.builder.binary(Op::InclusiveOr, a, b), self.half_xor(a, b, size));
                self.builder.binary(Op::Subtract, either, half)
            }
            (Builtin::Bitselect, &[a, b, c]) => {
                let others = self.builder.unary(naga::UnaryOperator::BitwiseNot, c);
                let (a, b) = (self.builder.binary(Op::And, a, others), self.builder.binary(Op::And, b, c));
                self.builder.binary(Op::InclusiveOr, a, b)
            }
            (Builtin::Any | Builtin::All, &[a]) => {
                let mut set = self.highest_bit(a, scalar, size);
                if size.is_some() {
                    let fun = if builtin == Builtin::Any { RelationalFunction::Any } else { RelationalFunction::All };
                    set = self.builder.add(Expression::Relational { fun, argument: set });
                }
                self.convert(set, Scalar::Bool, ty.scalar().ok_or(ErrorReported)?, None)
            }
            (Builtin::Select, &[a, b, c]) => {
                let Some(condition) = arguments[2].ty.element() else { return Err(ErrorReported) };
                // For vectors the highest bit decides, for scalars whether the value is zero.
                let chosen = match size {
                    Some(_) => self.highest_bit(c, condition, size),
                    None => self.convert(c, condition, Scalar::Bool, None),
                };
                self.builder.select(chosen, b, a)
            }
            _ => return Err(ErrorReported),
        })
    }

    fn half_xor(&mut self, a: Value, b: Value, size: Option<u8>) -> Value {
        let differ = self.builder.binary(Op::ExclusiveOr, a, b);
        let one = self.number_of(Literal::U32(1), size);
        self.builder.binary(Op::ShiftRight, differ, one)
    }

    /// Whether the highest bit is set: `bool`, or a vector of `bool`.
    fn highest_bit(&mut self, value: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let signed = scalar.signed();
        let value = self.convert(value, scalar, signed, size);
        let zero = self.number_of(literal(signed, 0), size);
        self.builder.binary(Op::Less, value, zero)
    }

    fn rotate(&mut self, value: Value, by: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let unsigned = scalar.unsigned();
        let bits = self.convert(value, scalar, unsigned, size);
        let by = self.convert(by, scalar, Scalar::UInt, size);
        let mask = self.number_of(Literal::U32(scalar.bits() - 1), size);
        let left = self.builder.binary(Op::And, by, mask);
        let zero = self.number_of(Literal::U32(0), size);
        let right = self.builder.binary(Op::Subtract, zero, left);
        let right = self.builder.binary(Op::And, right, mask);
        let up = self.builder.binary(Op::ShiftLeft, bits, left);
        let down = self.builder.binary(Op::ShiftRight, bits, right);
        let both = self.builder.binary(Op::InclusiveOr, up, down);
        let turned = self.in_range(both, unsigned, size);
        self.convert(turned, unsigned, scalar, size)
    }

    /// High half of the double-width product.
    fn mul_hi(&mut self, a: Value, b: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let by = self.number_of(Literal::U32(scalar.bits() % 64), size);
        match scalar.size() {
            1 | 2 => {
                let product = self.builder.binary(Op::Multiply, a, b);
                self.builder.binary(Op::ShiftRight, product, by)
            }
            4 => {
                let wide = if scalar.is_signed() { Scalar::Long } else { Scalar::ULong };
                let (a, b) = (self.convert(a, scalar, wide, size), self.convert(b, scalar, wide, size));
                let product = self.builder.binary(Op::Multiply, a, b);
                let high = self.builder.binary(Op::ShiftRight, product, by);
                self.convert(high, wide, scalar, size)
            }
            _ => self.mul_hi_64(a, b, scalar, size),
        }
    }

    /// Schoolbook multiplication of halves, (2^32 p + q)(2^32 r + s), with the carries of the low
    /// words.
    fn mul_hi_64(&mut self, a: Value, b: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let (x, y) = (self.convert(a, scalar, Scalar::ULong, size), self.convert(b, scalar, Scalar::ULong, size));
        let low = self.number_of(Literal::U64(0xffff_ffff), size);
        let half = self.number_of(Literal::U32(32), size);
        let (p, q) = (self.builder.binary(Op::ShiftRight, x, half), self.builder.binary(Op::And, x, low));
        let (r, s) = (self.builder.binary(Op::ShiftRight, y, half), self.builder.binary(Op::And, y, low));
        let (pr, ps) = (self.builder.binary(Op::Multiply, p, r), self.builder.binary(Op::Multiply, p, s));
        let (qr, qs) = (self.builder.binary(Op::Multiply, q, r), self.builder.binary(Op::Multiply, q, s));
        // No sum overflows: (2^32 - 1)^2 + 2 (2^32 - 1) is less than 2^64.
        let carry = self.builder.binary(Op::ShiftRight, qs, half);
        let middle = self.builder.binary(Op::Add, ps, carry);
        let middle_low = self.builder.binary(Op::And, middle, low);
        let middle_high = self.builder.binary(Op::ShiftRight, middle, half);
        let other = self.builder.binary(Op::Add, qr, middle_low);
        let other_high = self.builder.binary(Op::ShiftRight, other, half);
        let high = self.builder.binary(Op::Add, pr, middle_high);
        let mut high = self.builder.binary(Op::Add, high, other_high);
        if scalar.is_signed() {
            // A negative factor was taken as 2^64 more than its value.
            let zero = self.number_of(Literal::U64(0), size);
            for (factor, other) in [(a, y), (b, x)] {
                let negative = self.highest_bit(factor, scalar, size);
                let too_much = self.builder.select(negative, other, zero);
                high = self.builder.binary(Op::Subtract, high, too_much);
            }
        }
        self.convert(high, Scalar::ULong, scalar, size)
    }

    /// Saturating `a * b + c`, computed in double width.
    fn mad_sat(&mut self, a: Value, b: Value, c: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let wide = match (scalar.size(), scalar.is_signed()) {
            (8, _) => return self.mad_sat_64(a, b, c, scalar, size),
            (4, true) => Scalar::Long,
            (4, false) => Scalar::ULong,
            (_, true) => Scalar::Int,
            (_, false) => Scalar::UInt,
        };
        let [a, b, c] = [a, b, c].map(|value| self.convert(value, scalar, wide, size));
        let product = self.builder.binary(Op::Multiply, a, b);
        // At most (2^n - 1)^2 + 2^n - 1, which is below 2^2n.
        let sum = self.builder.binary(Op::Add, product, c);
        self.saturate(sum, wide, scalar, size)
    }

    /// [`mad_sat`](Self::mad_sat) for 64 bits: the sum fits if its high half only extends the low
    /// half.
    fn mad_sat_64(&mut self, a: Value, b: Value, c: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let high = self.mul_hi_64(a, b, scalar, size);
        let low = self.builder.binary(Op::Multiply, a, b);
        let sum = self.builder.binary(Op::Add, low, c);
        let [low_bits, sum_bits] = [low, sum].map(|value| self.convert(value, scalar, Scalar::ULong, size));
        let carries = self.builder.binary(Op::Less, sum_bits, low_bits);
        let (zero, one) = (self.number_of(literal(scalar, 0), size), self.number_of(literal(scalar, 1), size));
        let carry = self.builder.select(carries, one, zero);
        let mut high = self.builder.binary(Op::Add, high, carry);
        if !scalar.is_signed() {
            let most = self.number_of(literal(scalar, u64::MAX), size);
            let fits = self.builder.binary(Op::Equal, high, zero);
            return self.builder.select(fits, sum, most);
        }
        // The high half of a negative `c` is all ones.
        let sign = self.number_of(Literal::U32(63), size);
        let c_high = self.builder.binary(Op::ShiftRight, c, sign);
        high = self.builder.binary(Op::Add, high, c_high);
        let sum_high = self.builder.binary(Op::ShiftRight, sum, sign);
        let fits = self.builder.binary(Op::Equal, high, sum_high);
        let negative = self.highest_bit(high, scalar, size);
        let least = self.number_of(literal(scalar, 1 << 63), size);
        let most = self.number_of(literal(scalar, (1 << 63) - 1), size);
        let bound = self.builder.select(negative, least, most);
        self.builder.select(fits, sum, bound)
    }

    /// Saturating addition or subtraction.
    fn saturating_op(&mut self, op: Op, a: Value, b: Value, scalar: Scalar, size: Option<u8>) -> Value {
        if scalar.size() < 4 {
            // The result fits in a signed 32-bit integer, also a difference of unsigned values.
            let (a, b) = (self.convert(a, scalar, Scalar::Int, size), self.convert(b, scalar, Scalar::Int, size));
            let result = self.builder.binary(op, a, b);
            return self.saturate(result, Scalar::Int, scalar, size);
        }
        let result = self.builder.binary(op, a, b);
        let bits = scalar.bits();
        if !scalar.is_signed() {
            let (beyond, bound) = match op {
                Op::Add => (self.builder.binary(Op::Less, result, a), u64::MAX),
                _ => (self.builder.binary(Op::Less, a, b), 0),
            };
            let bound = self.number_of(literal(scalar, bound), size);
            return self.builder.select(beyond, bound, result);
        }
        // Signed overflow: the result's sign differs from that of `a`, although `b` does not
        // explain it.
        let differs = self.builder.binary(Op::ExclusiveOr, a, result);
        let other = match op {
            Op::Add => self.builder.binary(Op::ExclusiveOr, b, result),
            _ => self.builder.binary(Op::ExclusiveOr, a, b),
        };
        let both = self.builder.binary(Op::And, differs, other);
        let wrapped = self.highest_bit(both, scalar, size);
        let negative = self.highest_bit(a, scalar, size);
        let least = self.number_of(literal(scalar, 1 << (bits - 1)), size);
        let most = self.number_of(literal(scalar, (1 << (bits - 1)) - 1), size);
        let bound = self.builder.select(negative, least, most);
        self.builder.select(wrapped, bound, result)
    }
}
