//! Built-in functions of f32, by the formulas of the WGSL specification, "Numeric Built-in
//! Functions". Devices may round differently: identical results are promised for integers only.

use naga::MathFunction;

use crate::interp::InterpError;
use crate::interp::value::{Scalar, Value};

pub(super) fn component(fun: MathFunction, arguments: &[Scalar]) -> Option<Scalar> {
    use MathFunction as M;
    use Scalar::F32;
    Some(F32(match (fun, arguments) {
        (M::Abs, &[F32(x)]) => x.abs(),
        (M::Min, &[F32(x), F32(y)]) => x.min(y),
        (M::Max, &[F32(x), F32(y)]) => x.max(y),
        (M::Clamp, &[F32(x), F32(low), F32(high)]) => x.max(low).min(high),
        (M::Saturate, &[F32(x)]) => x.clamp(0.0, 1.0),
        (M::Cos, &[F32(x)]) => x.cos(),
        (M::Cosh, &[F32(x)]) => x.cosh(),
        (M::Sin, &[F32(x)]) => x.sin(),
        (M::Sinh, &[F32(x)]) => x.sinh(),
        (M::Tan, &[F32(x)]) => x.tan(),
        (M::Tanh, &[F32(x)]) => x.tanh(),
        (M::Acos, &[F32(x)]) => x.acos(),
        (M::Asin, &[F32(x)]) => x.asin(),
        (M::Atan, &[F32(x)]) => x.atan(),
        (M::Atan2, &[F32(y), F32(x)]) => y.atan2(x),
        (M::Asinh, &[F32(x)]) => x.asinh(),
        (M::Acosh, &[F32(x)]) => x.acosh(),
        (M::Atanh, &[F32(x)]) => x.atanh(),
        (M::Radians, &[F32(x)]) => x.to_radians(),
        (M::Degrees, &[F32(x)]) => x.to_degrees(),
        (M::Ceil, &[F32(x)]) => x.ceil(),
        (M::Floor, &[F32(x)]) => x.floor(),
        (M::Round, &[F32(x)]) => x.round_ties_even(),
        (M::Fract, &[F32(x)]) => x - x.floor(),
        (M::Trunc, &[F32(x)]) => x.trunc(),
        (M::Ldexp, &[F32(x), Scalar::I32(e)]) => (f64::from(x) * 2f64.powi(e.clamp(-400, 400))) as f32,
        (M::Exp, &[F32(x)]) => x.exp(),
        (M::Exp2, &[F32(x)]) => x.exp2(),
        (M::Log, &[F32(x)]) => x.ln(),
        (M::Log2, &[F32(x)]) => x.log2(),
        (M::Pow, &[F32(x), F32(y)]) => x.powf(y),
        (M::Sign, &[F32(x)]) => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        (M::Fma, &[F32(x), F32(y), F32(z)]) => x.mul_add(y, z),
        (M::Mix, &[F32(x), F32(y), F32(a)]) => x * (1.0 - a) + y * a,
        (M::Step, &[F32(edge), F32(x)]) => f32::from(u8::from(edge <= x)),
        (M::SmoothStep, &[F32(low), F32(high), F32(x)]) => {
            let t = ((x - low) / (high - low)).clamp(0.0, 1.0);
            t * t * (3.0 - 2.0 * t)
        }
        (M::Sqrt, &[F32(x)]) => x.sqrt(),
        (M::InverseSqrt, &[F32(x)]) => 1.0 / x.sqrt(),
        _ => return None,
    }))
}

fn vector(values: impl IntoIterator<Item = f32>) -> Value {
    Value::Composite(values.into_iter().map(Scalar::F32).collect())
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Built-ins that take whole vectors.
pub(super) fn geometry(fun: MathFunction, arguments: &[&Value]) -> Result<Value, InterpError> {
    let all = arguments.iter().map(|v| v.floats()).collect::<Result<Vec<_>, _>>()?;
    let all: Vec<&[f32]> = all.iter().map(Vec::as_slice).collect();
    let scalar = |v| Value::Scalar(Scalar::F32(v));
    Ok(match (fun, all.as_slice()) {
        (MathFunction::Length, [v]) => scalar(product(v, v).sqrt()),
        (MathFunction::Distance, [a, b]) => {
            scalar(a.iter().zip(*b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt())
        }
        (MathFunction::Normalize, [v]) => {
            let length = product(v, v).sqrt();
            vector(v.iter().map(|x| x / length))
        }
        (MathFunction::Cross, &[&[a, b, c], &[x, y, z]]) => vector([b * z - c * y, c * x - a * z, a * y - b * x]),
        (MathFunction::FaceForward, [v, incident, reference]) => {
            let sign = if product(incident, reference) < 0.0 { 1.0 } else { -1.0 };
            vector(v.iter().map(|x| x * sign))
        }
        (MathFunction::Reflect, [incident, normal]) => {
            let twice = 2.0 * product(normal, incident);
            vector(incident.iter().zip(*normal).map(|(i, n)| i - twice * n))
        }
        (MathFunction::Refract, &[incident, normal, &[ratio]]) => {
            let cosine = product(normal, incident);
            let k = 1.0 - ratio * ratio * (1.0 - cosine * cosine);
            let turned = |(i, n): (&f32, &f32)| if k < 0.0 { 0.0 } else { ratio * i - (ratio * cosine + k.sqrt()) * n };
            vector(incident.iter().zip(normal).map(turned))
        }
        _ => return Err(super::unsupported(fun)),
    })
}

/// `modf` and `frexp`: a structure of all first parts, then all second parts.
pub(super) fn split(fun: MathFunction, value: &Value) -> Result<Value, InterpError> {
    let values = value.floats()?;
    let parts: Vec<(Scalar, Scalar)> = values
        .iter()
        .map(|&x| {
            if fun == MathFunction::Modf {
                (Scalar::F32(x - x.trunc()), Scalar::F32(x.trunc()))
            } else {
                let (fraction, exponent) = frexp(x);
                (Scalar::F32(fraction), Scalar::I32(exponent))
            }
        })
        .collect();
    Ok(Value::Composite(parts.iter().map(|p| p.0).chain(parts.iter().map(|p| p.1)).collect()))
}

/// Splits `x` into `fraction × 2^exponent` with a fraction of magnitude in [0.5, 1).
fn frexp(x: f32) -> (f32, i32) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0);
    }
    // Scale subnormal numbers into the normal range first.
    let (scaled, extra) = if x.is_normal() { (x, 0) } else { (x * 2f32.powi(32), -32) };
    let exponent = (scaled.to_bits() >> 23 & 0xff) as i32 - 126;
    (scaled * 2f32.powi(-exponent), exponent + extra)
}
