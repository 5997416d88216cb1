//! Conversions between scalar types, and bit casts.

use naga::ScalarKind;

use super::InterpError;
use super::value::{Scalar, Value};

/// `kind(value)` if `width`, in bytes, is given; else `bitcast<kind>(value)`.
pub(super) fn convert(value: &Value, kind: ScalarKind, width: Option<u8>) -> Result<Value, InterpError> {
    value.map(|v| match width {
        Some(width) => by_value(v, kind, width),
        None => by_bits(v, kind),
    })
}

/// Converts by value. Integers are extended by the sign of the *source* type. Floating-point
/// numbers are truncated, and clamped to what both types can represent (WGSL, "Floating Point
/// Conversion"); NaN becomes 0.
fn by_value(value: Scalar, kind: ScalarKind, width: u8) -> Result<Scalar, InterpError> {
    // An `i128` holds every integer of up to 64 bits.
    let wide: i128 = match value {
        Scalar::Bool(v) => v.into(),
        Scalar::U32(v) => v.into(),
        Scalar::I32(v) => v.into(),
        Scalar::U64(v) => v.into(),
        Scalar::I64(v) => v.into(),
        Scalar::F32(v) => return from_float(v, kind, width),
    };
    Ok(match (kind, width) {
        (ScalarKind::Bool, _) => Scalar::Bool(wide != 0),
        (ScalarKind::Uint, 4) => Scalar::U32(wide as u32),
        (ScalarKind::Sint, 4) => Scalar::I32(wide as i32),
        (ScalarKind::Uint, 8) => Scalar::U64(wide as u64),
        (ScalarKind::Sint, 8) => Scalar::I64(wide as i64),
        (ScalarKind::Float, 4) => Scalar::F32(wide as f32),
        (kind, width) => return Err(unknown(kind, width)),
    })
}

fn from_float(value: f32, kind: ScalarKind, width: u8) -> Result<Scalar, InterpError> {
    // The largest f32 below 2^31, 2^32, 2^63 and 2^64: a 24-bit mantissa of ones.
    const ONES: f32 = 16_777_215.0;
    let most = |shift: i32| ONES * 2f32.powi(shift);
    Ok(match (kind, width) {
        (ScalarKind::Bool, _) => Scalar::Bool(value != 0.0),
        // `min` would drop a NaN; `as` truncates and clamps below.
        (ScalarKind::Uint, 4) => Scalar::U32(if value.is_nan() { 0 } else { value.min(most(8)) as u32 }),
        (ScalarKind::Sint, 4) => Scalar::I32(if value.is_nan() { 0 } else { value.min(most(7)) as i32 }),
        (ScalarKind::Uint, 8) => Scalar::U64(if value.is_nan() { 0 } else { value.min(most(40)) as u64 }),
        (ScalarKind::Sint, 8) => Scalar::I64(if value.is_nan() { 0 } else { value.min(most(39)) as i64 }),
        (ScalarKind::Float, 4) => Scalar::F32(value),
        (kind, width) => return Err(unknown(kind, width)),
    })
}

fn by_bits(value: Scalar, kind: ScalarKind) -> Result<Scalar, InterpError> {
    let narrow = match value {
        Scalar::U32(v) => v,
        Scalar::I32(v) => v as u32,
        Scalar::F32(v) => v.to_bits(),
        Scalar::U64(v) => return by_wide_bits(v, kind),
        Scalar::I64(v) => return by_wide_bits(v as u64, kind),
        Scalar::Bool(v) if kind == ScalarKind::Bool => return Ok(Scalar::Bool(v)),
        Scalar::Bool(_) => return Err(InterpError::Unsupported("the bits of a bool".into())),
    };
    Ok(match kind {
        ScalarKind::Uint => Scalar::U32(narrow),
        ScalarKind::Sint => Scalar::I32(narrow as i32),
        ScalarKind::Float => Scalar::F32(f32::from_bits(narrow)),
        other => return Err(unknown(other, 4)),
    })
}

fn by_wide_bits(bits: u64, kind: ScalarKind) -> Result<Scalar, InterpError> {
    Ok(match kind {
        ScalarKind::Uint => Scalar::U64(bits),
        ScalarKind::Sint => Scalar::I64(bits as i64),
        other => return Err(unknown(other, 8)),
    })
}

fn unknown(kind: ScalarKind, width: u8) -> InterpError {
    InterpError::Unsupported(format!("a conversion to {kind:?} of {width} bytes"))
}
