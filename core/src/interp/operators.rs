//! Unary and binary operators, as WGSL defines them; `docs/reference/semantics.md` settles what it
//! leaves open.

use naga::{BinaryOperator, TypeInner, UnaryOperator, VectorSize};

use super::InterpError;
use super::value::{Scalar, Value, zip};

pub(super) fn unary(op: UnaryOperator, value: &Value) -> Result<Value, InterpError> {
    value.map(|v| {
        Ok(match (op, v) {
            (UnaryOperator::Negate, Scalar::I32(v)) => Scalar::I32(v.wrapping_neg()),
            (UnaryOperator::Negate, Scalar::I64(v)) => Scalar::I64(v.wrapping_neg()),
            (UnaryOperator::Negate, Scalar::F32(v)) => Scalar::F32(-v),
            (UnaryOperator::LogicalNot, Scalar::Bool(v)) => Scalar::Bool(!v),
            (UnaryOperator::BitwiseNot, Scalar::U32(v)) => Scalar::U32(!v),
            (UnaryOperator::BitwiseNot, Scalar::I32(v)) => Scalar::I32(!v),
            (UnaryOperator::BitwiseNot, Scalar::U64(v)) => Scalar::U64(!v),
            (UnaryOperator::BitwiseNot, Scalar::I64(v)) => Scalar::I64(!v),
            (op, v) => return Err(InterpError::Unsupported(format!("{op:?} of {v:?}"))),
        })
    })
}

pub(super) fn binary(
    op: BinaryOperator,
    (left, left_type): (&Value, &TypeInner),
    (right, right_type): (&Value, &TypeInner),
) -> Result<Value, InterpError> {
    if op == BinaryOperator::Multiply {
        match (left_type, right_type) {
            (TypeInner::Matrix { columns, rows, .. }, TypeInner::Vector { .. }) => {
                return matrix_product(left, right, *rows, *columns, 1);
            }
            // A vector on the left is a row vector.
            (TypeInner::Vector { .. }, TypeInner::Matrix { columns, rows, .. }) => {
                return row_product(left, right, *rows, *columns);
            }
            (TypeInner::Matrix { columns, rows, .. }, TypeInner::Matrix { columns: count, .. }) => {
                return matrix_product(left, right, *rows, *columns, *count as usize);
            }
            _ => {}
        }
    }
    zip([left, right], |[a, b]| binary_scalar(op, a, b))
}

/// The operators that are the same for all integer types.
macro_rules! integer {
    ($variant:ident, $op:ident, $a:ident, $b:ident) => {
        match $op {
            BinaryOperator::Add => Scalar::$variant($a.wrapping_add($b)),
            BinaryOperator::Subtract => Scalar::$variant($a.wrapping_sub($b)),
            BinaryOperator::Multiply => Scalar::$variant($a.wrapping_mul($b)),
            // x / 0 = x, and MIN / -1 wraps to MIN
            BinaryOperator::Divide => Scalar::$variant(if $b == 0 { $a } else { $a.wrapping_div($b) }),
            // x % 0 = 0, and MIN % -1 = 0
            BinaryOperator::Modulo => Scalar::$variant(if $b == 0 { 0 } else { $a.wrapping_rem($b) }),
            BinaryOperator::Equal => Scalar::Bool($a == $b),
            BinaryOperator::NotEqual => Scalar::Bool($a != $b),
            BinaryOperator::Less => Scalar::Bool($a < $b),
            BinaryOperator::LessEqual => Scalar::Bool($a <= $b),
            BinaryOperator::Greater => Scalar::Bool($a > $b),
            BinaryOperator::GreaterEqual => Scalar::Bool($a >= $b),
            BinaryOperator::And => Scalar::$variant($a & $b),
            BinaryOperator::InclusiveOr => Scalar::$variant($a | $b),
            BinaryOperator::ExclusiveOr => Scalar::$variant($a ^ $b),
            other => return Err(InterpError::Unsupported(format!("{other:?} of integers"))),
        }
    };
}

pub(super) fn binary_scalar(op: BinaryOperator, a: Scalar, b: Scalar) -> Result<Scalar, InterpError> {
    if let (BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight, Scalar::U32(count)) = (op, b) {
        return shift(op == BinaryOperator::ShiftLeft, a, count);
    }
    Ok(match (a, b) {
        (Scalar::U32(a), Scalar::U32(b)) => integer!(U32, op, a, b),
        (Scalar::I32(a), Scalar::I32(b)) => integer!(I32, op, a, b),
        (Scalar::U64(a), Scalar::U64(b)) => integer!(U64, op, a, b),
        (Scalar::I64(a), Scalar::I64(b)) => integer!(I64, op, a, b),
        (Scalar::F32(a), Scalar::F32(b)) => float(op, a, b)?,
        (Scalar::Bool(a), Scalar::Bool(b)) => Scalar::Bool(match op {
            BinaryOperator::Equal => a == b,
            BinaryOperator::NotEqual => a != b,
            BinaryOperator::And | BinaryOperator::LogicalAnd => a & b,
            BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => a | b,
            other => return Err(InterpError::Unsupported(format!("{other:?} of bools"))),
        }),
        (a, b) => return Err(InterpError::internal(format!("{op:?} of {a:?} and {b:?}"))),
    })
}

/// Shifts by the count modulo the width; a right shift of a signed integer is arithmetic.
fn shift(left: bool, value: Scalar, count: u32) -> Result<Scalar, InterpError> {
    let (narrow, wide) = (count % 32, count % 64);
    Ok(match (value, left) {
        (Scalar::U32(v), true) => Scalar::U32(v << narrow),
        (Scalar::U32(v), false) => Scalar::U32(v >> narrow),
        (Scalar::I32(v), true) => Scalar::I32(v << narrow),
        (Scalar::I32(v), false) => Scalar::I32(v >> narrow),
        (Scalar::U64(v), true) => Scalar::U64(v << wide),
        (Scalar::U64(v), false) => Scalar::U64(v >> wide),
        (Scalar::I64(v), true) => Scalar::I64(v << wide),
        (Scalar::I64(v), false) => Scalar::I64(v >> wide),
        (other, _) => return Err(InterpError::Unsupported(format!("shifting {other:?}"))),
    })
}

fn float(op: BinaryOperator, a: f32, b: f32) -> Result<Scalar, InterpError> {
    Ok(match op {
        BinaryOperator::Add => Scalar::F32(a + b),
        BinaryOperator::Subtract => Scalar::F32(a - b),
        BinaryOperator::Multiply => Scalar::F32(a * b),
        BinaryOperator::Divide => Scalar::F32(a / b),
        BinaryOperator::Modulo => Scalar::F32(a % b),
        BinaryOperator::Equal => Scalar::Bool(a == b),
        BinaryOperator::NotEqual => Scalar::Bool(a != b),
        BinaryOperator::Less => Scalar::Bool(a < b),
        BinaryOperator::LessEqual => Scalar::Bool(a <= b),
        BinaryOperator::Greater => Scalar::Bool(a > b),
        BinaryOperator::GreaterEqual => Scalar::Bool(a >= b),
        other => return Err(InterpError::Unsupported(format!("{other:?} of floating-point numbers"))),
    })
}

/// Multiplies `left`, of `rows` × `inner`, by `right`, of `inner` × `columns`; both are stored
/// column by column.
fn matrix_product(
    left: &Value,
    right: &Value,
    rows: VectorSize,
    inner: VectorSize,
    columns: usize,
) -> Result<Value, InterpError> {
    let (left, right) = (left.floats()?, right.floats()?);
    let (rows, inner) = (rows as usize, inner as usize);
    let mut product = Vec::with_capacity(rows * columns);
    for column in 0..columns {
        for row in 0..rows {
            let sum = (0..inner).map(|i| left[i * rows + row] * right[column * inner + i]).sum();
            product.push(Scalar::F32(sum));
        }
    }
    Ok(Value::Composite(product))
}

/// Multiplies the row vector `left` by a matrix of `rows` × `columns`.
fn row_product(left: &Value, right: &Value, rows: VectorSize, columns: VectorSize) -> Result<Value, InterpError> {
    let (left, right) = (left.floats()?, right.floats()?);
    let rows = rows as usize;
    let product = (0..columns as usize).map(|column| {
        let sum = (0..rows).map(|row| left[row] * right[column * rows + row]).sum();
        Scalar::F32(sum)
    });
    Ok(Value::Composite(product.collect()))
}
