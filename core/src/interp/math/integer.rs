//! Built-in functions of integers, component by component. The bit functions visit the bits one by
//! one, as WGSL's text describes them.

use naga::MathFunction;

use crate::interp::value::Scalar;

/// The bits of an integer.
#[derive(Clone, Copy)]
struct Bits {
    /// The bits; those above `width` are zero.
    bits: u64,
    width: u32,
    signed: bool,
}

impl Bits {
    fn of(value: Scalar) -> Option<Bits> {
        Some(match value {
            Scalar::U32(v) => Bits { bits: v.into(), width: 32, signed: false },
            Scalar::I32(v) => Bits { bits: (v as u32).into(), width: 32, signed: true },
            Scalar::U64(v) => Bits { bits: v, width: 64, signed: false },
            Scalar::I64(v) => Bits { bits: v as u64, width: 64, signed: true },
            Scalar::Bool(_) | Scalar::F32(_) => return None,
        })
    }

    fn bit(self, index: u32) -> bool {
        self.bits >> index & 1 == 1
    }

    /// An integer of the same type with these bits.
    fn with(self, bits: u64) -> Scalar {
        match (self.width, self.signed) {
            (32, false) => Scalar::U32(bits as u32),
            (32, true) => Scalar::I32(bits as i32),
            (_, false) => Scalar::U64(bits),
            (_, true) => Scalar::I64(bits as i64),
        }
    }

    /// A bit's index as an integer of the same type; all ones if there is none (-1 for signed
    /// types).
    fn position(self, index: Option<u32>) -> Scalar {
        self.with(index.map_or(u64::MAX, u64::from))
    }
}

macro_rules! compare {
    ($fun:ident, $arguments:ident, $($variant:ident),*) => {
        match ($fun, $arguments) {
            $(
                (MathFunction::Min, &[Scalar::$variant(a), Scalar::$variant(b)]) => Some(Scalar::$variant(a.min(b))),
                (MathFunction::Max, &[Scalar::$variant(a), Scalar::$variant(b)]) => Some(Scalar::$variant(a.max(b))),
                // min(max(value, low), high), even if low > high
                (MathFunction::Clamp, &[Scalar::$variant(a), Scalar::$variant(low), Scalar::$variant(high)]) => {
                    Some(Scalar::$variant(a.max(low).min(high)))
                }
            )*
            _ => None,
        }
    };
}

pub(super) fn component(fun: MathFunction, arguments: &[Scalar]) -> Option<Scalar> {
    use MathFunction as M;
    if let M::Min | M::Max | M::Clamp = fun {
        return compare!(fun, arguments, U32, I32, U64, I64);
    }
    let value = Bits::of(*arguments.first()?)?;
    let up = 0..value.width;
    Some(match (fun, arguments) {
        (M::Abs, &[Scalar::I32(v)]) => Scalar::I32(v.wrapping_abs()),
        (M::Abs, &[Scalar::I64(v)]) => Scalar::I64(v.wrapping_abs()),
        (M::Abs, &[unsigned]) => unsigned,
        (M::Sign, &[Scalar::I32(v)]) => Scalar::I32(v.signum()),
        (M::Sign, &[Scalar::I64(v)]) => Scalar::I64(v.signum()),
        (M::CountOneBits, &[_]) => value.with(up.filter(|&i| value.bit(i)).count() as u64),
        (M::CountTrailingZeros, &[_]) => value.with(up.take_while(|&i| !value.bit(i)).count() as u64),
        (M::CountLeadingZeros, &[_]) => value.with(up.rev().take_while(|&i| !value.bit(i)).count() as u64),
        (M::ReverseBits, &[_]) => value.with(up.fold(0, |bits, i| bits << 1 | u64::from(value.bit(i)))),
        (M::FirstTrailingBit, &[_]) => value.position(up.clone().find(|&i| value.bit(i))),
        // The highest bit that differs from the sign bit, which counts as 0 for unsigned types.
        (M::FirstLeadingBit, &[_]) => {
            let sign = value.signed && value.bit(value.width - 1);
            value.position(up.rev().find(|&i| value.bit(i) != sign))
        }
        (M::ExtractBits, &[_, Scalar::U32(offset), Scalar::U32(count)]) => {
            let (offset, count) = field(value, offset, count);
            let sign = value.signed && count > 0 && value.bit(offset + count - 1);
            let bits = (0..64).fold(0, |bits, i| {
                let bit = if i < count { value.bit(offset + i) } else { sign };
                bits | u64::from(bit) << i
            });
            value.with(bits)
        }
        (M::InsertBits, &[_, new, Scalar::U32(offset), Scalar::U32(count)]) => {
            let (offset, count) = field(value, offset, count);
            let new = Bits::of(new)?;
            let bits = up.fold(0, |bits, i| {
                let bit = if i >= offset && i - offset < count { new.bit(i - offset) } else { value.bit(i) };
                bits | u64::from(bit) << i
            });
            value.with(bits)
        }
        _ => return None,
    })
}

/// Clamps a bit field's offset and length to the width of the type.
fn field(value: Bits, offset: u32, count: u32) -> (u32, u32) {
    let offset = offset.min(value.width);
    (offset, count.min(value.width - offset))
}
