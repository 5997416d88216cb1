//! WGSL's numeric and relational built-in functions.

mod float;
mod integer;
mod matrix;
mod pack;

use naga::{BinaryOperator, MathFunction, RelationalFunction, TypeInner};

use super::InterpError;
use super::operators::binary_scalar;
use super::value::{Scalar, Value, zip};

/// Evaluates a built-in function. `inner` is the type of the first argument.
pub(super) fn math(fun: MathFunction, arguments: &[&Value], inner: &TypeInner) -> Result<Value, InterpError> {
    use MathFunction as M;
    match (fun, arguments) {
        (M::Dot, [a, b]) => dot(a, b),
        (M::Cross | M::Distance | M::Length | M::Normalize | M::FaceForward | M::Reflect | M::Refract, _) => {
            float::geometry(fun, arguments)
        }
        (M::Modf | M::Frexp, [value]) => float::split(fun, value),
        (M::Transpose | M::Determinant, _) => matrix::matrix(fun, arguments, inner),
        (
            M::Dot4I8Packed
            | M::Dot4U8Packed
            | M::Pack4x8snorm
            | M::Pack4x8unorm
            | M::Pack2x16snorm
            | M::Pack2x16unorm
            | M::Pack4xI8
            | M::Pack4xU8
            | M::Pack4xI8Clamp
            | M::Pack4xU8Clamp
            | M::Unpack4x8snorm
            | M::Unpack4x8unorm
            | M::Unpack2x16snorm
            | M::Unpack2x16unorm
            | M::Unpack4xI8
            | M::Unpack4xU8,
            _,
        ) => pack::pack(fun, arguments),
        (_, [a]) => zip([*a], |v| component(fun, &v)),
        (_, [a, b]) => zip([*a, *b], |v| component(fun, &v)),
        (_, [a, b, c]) => zip([*a, *b, *c], |v| component(fun, &v)),
        (_, [a, b, c, d]) => zip([*a, *b, *c, *d], |v| component(fun, &v)),
        _ => Err(unsupported(fun)),
    }
}

fn component(fun: MathFunction, arguments: &[Scalar]) -> Result<Scalar, InterpError> {
    let result = match arguments.first() {
        Some(Scalar::F32(_)) => float::component(fun, arguments),
        _ => integer::component(fun, arguments),
    };
    result.ok_or_else(|| unsupported(fun))
}

fn unsupported(fun: MathFunction) -> InterpError {
    InterpError::Unsupported(format!("the built-in {fun:?} of these arguments"))
}

/// The dot product: integers wrap; floating-point products are added from the first component on.
fn dot(a: &Value, b: &Value) -> Result<Value, InterpError> {
    let products = zip([a, b], |[a, b]| binary_scalar(BinaryOperator::Multiply, a, b))?;
    let sum = products.scalars()?.iter().copied().map(Ok).reduce(|a, b| binary_scalar(BinaryOperator::Add, a?, b?));
    sum.transpose()?.map(Value::Scalar).ok_or_else(|| InterpError::internal("a vector without components"))
}

pub(super) fn relational(fun: RelationalFunction, argument: &Value) -> Result<Value, InterpError> {
    match fun {
        RelationalFunction::All => {
            argument.scalars()?.iter().try_fold(true, |all, v| Ok(all & v.as_bool()?)).map(boolean)
        }
        RelationalFunction::Any => {
            argument.scalars()?.iter().try_fold(false, |any, v| Ok(any | v.as_bool()?)).map(boolean)
        }
        RelationalFunction::IsNan => argument.map(|v| Ok(Scalar::Bool(v.as_f32()?.is_nan()))),
        RelationalFunction::IsInf => argument.map(|v| Ok(Scalar::Bool(v.as_f32()?.is_infinite()))),
    }
}

fn boolean(value: bool) -> Value {
    Value::Scalar(Scalar::Bool(value))
}
