//! Built-in functions of f32 matrices, which are stored column by column.

use naga::{MathFunction, TypeInner};

use crate::interp::InterpError;
use crate::interp::value::{Scalar, Value};

pub(super) fn matrix(fun: MathFunction, arguments: &[&Value], inner: &TypeInner) -> Result<Value, InterpError> {
    let all = arguments.iter().map(|v| v.floats()).collect::<Result<Vec<_>, _>>()?;
    let wrap = |v: Vec<f32>| Value::Composite(v.into_iter().map(Scalar::F32).collect());
    match (fun, all.as_slice(), inner) {
        (MathFunction::Transpose, [m], TypeInner::Matrix { columns, rows, .. }) => {
            let (columns, rows) = (*columns as usize, *rows as usize);
            Ok(wrap((0..rows).flat_map(|row| (0..columns).map(move |c| m[c * rows + row])).collect()))
        }
        (MathFunction::Determinant, [m], TypeInner::Matrix { columns, .. }) => {
            Ok(Value::Scalar(Scalar::F32(determinant(m, *columns as usize))))
        }
        _ => Err(super::unsupported(fun)),
    }
}

/// Laplace expansion along the first column. `n`, and so the recursion depth, is at most 4.
fn determinant(m: &[f32], n: usize) -> f32 {
    if n == 1 {
        return m[0];
    }
    let cofactor = |row: usize| {
        let rest: Vec<f32> = (n..n * n).filter(|i| i % n != row).map(|i| m[i]).collect();
        let sign = if row.is_multiple_of(2) { 1.0 } else { -1.0 };
        sign * determinant(&rest, n - 1)
    };
    (0..n).map(|row| m[row] * cofactor(row)).sum()
}
