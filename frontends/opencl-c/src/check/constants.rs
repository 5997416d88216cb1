//! Constant evaluation. Results equal those at run time: integers wrap, x / 0 is x, x % 0 is 0, and
//! shift counts are taken modulo the width.

use crate::ast::BinaryOp;
use crate::tree::{Expr, ExprKind};
use crate::types::{Scalar, Type};

/// Evaluates `a op b` for values of one integer type; the count `b` of a shift may have any.
/// Comparisons return 0 or 1.
pub(super) fn binary(op: BinaryOp, ty: Scalar, a: i128, b: i128) -> i128 {
    use BinaryOp as Op;
    // A `bool` operand is promoted, so no other type has one bit.
    let bits = i128::from(ty.bits().max(8));
    let value = match op {
        Op::Multiply => a.wrapping_mul(b),
        Op::Divide if b == 0 => a,
        Op::Divide => a / b,
        Op::Modulo if b == 0 => 0,
        Op::Modulo => a % b,
        Op::Add => a + b,
        Op::Subtract => a - b,
        Op::ShiftLeft => a << (b & (bits - 1)),
        Op::ShiftRight => a >> (b & (bits - 1)),
        Op::And => a & b,
        Op::Xor => a ^ b,
        Op::Or => a | b,
        Op::Less => return i128::from(a < b),
        Op::Greater => return i128::from(a > b),
        Op::LessEqual => return i128::from(a <= b),
        Op::GreaterEqual => return i128::from(a >= b),
        Op::Equal => return i128::from(a == b),
        Op::NotEqual => return i128::from(a != b),
    };
    ty.wrap(value)
}

/// Evaluates `a op b` for floats; `None` for comparisons and results that are not finite.
pub(super) fn float(op: BinaryOp, a: f32, b: f32) -> Option<f32> {
    let value = match op {
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide => a / b,
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        _ => return None,
    };
    value.is_finite().then_some(value)
}

/// Converts a constant to a scalar type.
pub(super) fn convert(kind: &ExprKind, from: Scalar, to: Scalar) -> Option<ExprKind> {
    match *kind {
        ExprKind::Integer(bits) => {
            let value = from.wrap(i128::from(bits));
            Some(match to {
                Scalar::Float => ExprKind::Float(value as f32),
                to => ExprKind::Integer(to.wrap(value) as u64),
            })
        }
        ExprKind::Float(value) => match to {
            Scalar::Float => Some(ExprKind::Float(value)),
            Scalar::Bool => Some(ExprKind::Integer(u64::from(value != 0.0))),
            // Out of range, the result is that of the device's conversion.
            to => {
                let whole = value.trunc() as i128;
                (to.wrap(whole) == whole).then_some(ExprKind::Integer(whole as u64))
            }
        },
        _ => None,
    }
}

/// Appends the scalars of a constant, as the bits of their types; returns `false` if `value` is not
/// constant.
pub(super) fn scalars(value: &Expr, out: &mut Vec<u64>) -> bool {
    match &value.kind {
        ExprKind::Integer(bits) => out.push(*bits),
        ExprKind::Float(value) => out.push(u64::from(value.to_bits())),
        ExprKind::Compose(parts) => return parts.iter().all(|part| scalars(part, out)),
        ExprKind::Splat(inner) => {
            let Type::Vector(_, size) = value.ty else { return false };
            return (0..size).all(|_| scalars(inner, out));
        }
        ExprKind::Convert(inner) => {
            // Convert a vector component by component.
            let (Some(from), Some(to), Type::Vector(..)) = (inner.ty.element(), value.ty.element(), &value.ty) else {
                return false;
            };
            let first = out.len();
            if !scalars(inner, out) {
                return false;
            }
            for bits in &mut out[first..] {
                let known = match from {
                    Scalar::Float => ExprKind::Float(f32::from_bits(*bits as u32)),
                    _ => ExprKind::Integer(*bits),
                };
                *bits = match convert(&known, from, to) {
                    Some(ExprKind::Integer(bits)) => bits,
                    Some(ExprKind::Float(value)) => u64::from(value.to_bits()),
                    _ => return false,
                };
            }
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undefined_operations_have_defined_results() {
        use BinaryOp as Op;
        let int = |op, a, b| binary(op, Scalar::Int, a, b);
        assert_eq!(int(Op::Add, i128::from(i32::MAX), 1), i128::from(i32::MIN));
        assert_eq!(int(Op::Divide, 7, 0), 7);
        assert_eq!(int(Op::Modulo, 7, 0), 0);
        assert_eq!(int(Op::Divide, i128::from(i32::MIN), -1), i128::from(i32::MIN));
        assert_eq!(int(Op::Modulo, i128::from(i32::MIN), -1), 0);
        assert_eq!(int(Op::Divide, -7, 2), -3);
        assert_eq!(int(Op::Modulo, -7, 2), -1);
        assert_eq!(int(Op::ShiftLeft, 1, 33), 2);
        assert_eq!(int(Op::ShiftLeft, 1, 31), i128::from(i32::MIN));
        assert_eq!(int(Op::ShiftRight, -8, 1), -4);
        assert_eq!(binary(Op::ShiftRight, Scalar::UInt, 0xffff_fff8, 1), 0x7fff_fffc);
        assert_eq!(binary(Op::Multiply, Scalar::ULong, i128::from(u64::MAX), i128::from(u64::MAX)), 1);
        assert_eq!(binary(Op::ShiftLeft, Scalar::ULong, 1, 63), 1 << 63);
    }
}
