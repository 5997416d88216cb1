//! Built-in functions that pack numbers into a u32 and unpack them. The first component is in the
//! lowest bits.

use naga::MathFunction;

use crate::interp::InterpError;
use crate::interp::value::{Scalar, Value};

pub(super) fn pack(fun: MathFunction, arguments: &[&Value]) -> Result<Value, InterpError> {
    use MathFunction as M;
    let first = arguments.first().ok_or_else(|| super::unsupported(fun))?.scalars()?;
    let word = |values: &[u32], bits: u32| {
        let mask = u32::MAX >> (32 - bits);
        let word = values.iter().enumerate().fold(0, |word, (i, v)| word | (v & mask) << (i as u32 * bits));
        Ok(Value::Scalar(Scalar::U32(word)))
    };
    let floats = |scale: fn(f32) -> u32, bits: u32| {
        let values = first.iter().map(|v| Ok(scale(v.as_f32()?))).collect::<Result<Vec<u32>, InterpError>>()?;
        word(&values, bits)
    };
    let integers = |clamp: fn(i64) -> i64| {
        let values = first.iter().map(|v| match v {
            Scalar::I32(v) => Ok(clamp(i64::from(*v)) as u32),
            Scalar::U32(v) => Ok(clamp(i64::from(*v)) as u32),
            _ => Err(super::unsupported(fun)),
        });
        word(&values.collect::<Result<Vec<u32>, _>>()?, 8)
    };
    let vector = |make: fn(u32) -> Scalar, bits: u32| {
        let word = first[0].as_u32()?;
        let mask = u32::MAX >> (32 - bits);
        Ok(Value::Composite((0..32 / bits).map(|i| make(word >> (i * bits) & mask)).collect()))
    };
    match fun {
        M::Pack4x8snorm => floats(|v| (0.5 + 127.0 * v.clamp(-1.0, 1.0)).floor() as i32 as u32, 8),
        M::Pack4x8unorm => floats(|v| (0.5 + 255.0 * v.clamp(0.0, 1.0)).floor() as u32, 8),
        M::Pack2x16snorm => floats(|v| (0.5 + 32767.0 * v.clamp(-1.0, 1.0)).floor() as i32 as u32, 16),
        M::Pack2x16unorm => floats(|v| (0.5 + 65535.0 * v.clamp(0.0, 1.0)).floor() as u32, 16),
        M::Pack4xI8 | M::Pack4xU8 => integers(|v| v),
        M::Pack4xI8Clamp => integers(|v| v.clamp(-128, 127)),
        M::Pack4xU8Clamp => integers(|v| v.clamp(0, 255)),
        M::Unpack4x8snorm => vector(|v| Scalar::F32((f32::from(v as i8) / 127.0).max(-1.0)), 8),
        M::Unpack4x8unorm => vector(|v| Scalar::F32(v as f32 / 255.0), 8),
        M::Unpack2x16snorm => vector(|v| Scalar::F32((f32::from(v as i16) / 32767.0).max(-1.0)), 16),
        M::Unpack2x16unorm => vector(|v| Scalar::F32(v as f32 / 65535.0), 16),
        M::Unpack4xI8 => vector(|v| Scalar::I32((v as i8).into()), 8),
        M::Unpack4xU8 => vector(Scalar::U32, 8),
        M::Dot4I8Packed | M::Dot4U8Packed => {
            let second = arguments.get(1).ok_or_else(|| super::unsupported(fun))?.scalars()?;
            let (a, b) = (first[0].as_u32()?.to_le_bytes(), second[0].as_u32()?.to_le_bytes());
            Ok(Value::Scalar(if fun == M::Dot4I8Packed {
                Scalar::I32(a.iter().zip(b).map(|(&a, b)| i32::from(a as i8) * i32::from(b as i8)).sum())
            } else {
                Scalar::U32(a.iter().zip(b).map(|(&a, b)| u32::from(a) * u32::from(b)).sum())
            }))
        }
        _ => Err(super::unsupported(fun)),
    }
}
