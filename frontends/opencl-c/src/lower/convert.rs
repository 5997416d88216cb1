//! Conversions (C11 6.3.1). A `char` or `short` is kept in 32 bits, within its type's range;
//! results that may leave the range are wrapped.

use naga::{BinaryOperator, Expression, Literal, MathFunction, ScalarKind};

use super::functions::FunctionLowering;
use super::{literal, naga_scalar};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;

/// Number of components of a vector type; `None` for other types.
pub(super) fn count(ty: &Type) -> Option<u8> {
    match ty {
        Type::Vector(_, size) => Some(*size),
        _ => None,
    }
}

impl FunctionLowering<'_, '_> {
    /// A constant, splatted to `size` components for a vector.
    pub(super) fn number_of(&mut self, known: Literal, size: Option<u8>) -> Value {
        let value = self.builder.literal(known);
        self.builder.splat(value, size)
    }

    /// Converts between scalar types; vectors component by component.
    pub(super) fn convert(&mut self, value: Value, from: Scalar, to: Scalar, size: Option<u8>) -> Value {
        if from == to {
            return value;
        }
        if let Some(known) = self.builder.constant(value)
            && let Some(bits) = bits(known)
            && to != Scalar::Float
        {
            let converted = to.wrap(from.wrap(i128::from(bits)));
            return self.builder.literal(literal(to, converted as u64));
        }
        if to == Scalar::Bool {
            let zero = self.number_of(literal(from, 0), size);
            return self.builder.binary(BinaryOperator::NotEqual, value, zero);
        }
        let (source, target) = (naga_scalar(from), naga_scalar(to));
        let mut value = value;
        if source != target {
            value = self.builder.cast(value, target.kind, Some(target.width));
        }
        if to.can_represent(from) { value } else { self.in_range(value, to, size) }
    }

    /// Wraps a 32-bit value to the range of `char` or `short`; wider types need no wrapping.
    pub(super) fn in_range(&mut self, value: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let bits = scalar.bits();
        if !matches!(scalar, Scalar::Char | Scalar::UChar | Scalar::Short | Scalar::UShort) {
            return value;
        }
        if let Some(known) = self.builder.constant(value)
            && let Some(now) = self::bits(known)
        {
            return self.builder.literal(literal(scalar, now));
        }
        if scalar.is_signed() {
            let shift = self.number_of(Literal::U32(32 - bits), size);
            let up = self.builder.binary(BinaryOperator::ShiftLeft, value, shift);
            return self.builder.binary(BinaryOperator::ShiftRight, up, shift);
        }
        let mask = self.number_of(Literal::U32((1 << bits) - 1), size);
        self.builder.binary(BinaryOperator::And, value, mask)
    }

    /// Saturating conversion, `convert_T_sat`.
    pub(super) fn saturate(&mut self, value: Value, from: Scalar, to: Scalar, size: Option<u8>) -> Value {
        if to.can_represent(from) {
            return self.convert(value, from, to, size);
        }
        let (low, high) = range(to);
        let mut value = value;
        if from == Scalar::Float {
            // Conversions of floats saturate at the range of the 32- or 64-bit target by
            // themselves.
            let wide = match (to.size() == 8, to.is_signed()) {
                (true, true) => Scalar::Long,
                (true, false) => Scalar::ULong,
                (false, true) => Scalar::Int,
                (false, false) => Scalar::UInt,
            };
            let target = naga_scalar(wide);
            value = self.builder.cast(value, target.kind, Some(target.width));
            return self.saturate(value, wide, to, size);
        }
        let (from_low, from_high) = range(from);
        if low > from_low {
            let bound = self.number_of(literal(from, low as u64), size);
            value = self.math(MathFunction::Max, value, Some(bound), None);
        }
        if high < from_high {
            let bound = self.number_of(literal(from, high as u64), size);
            value = self.math(MathFunction::Min, value, Some(bound), None);
        }
        self.convert(value, from, to, size)
    }

    /// Reinterprets the bits as another type of the same width.
    pub(super) fn reinterpret(&mut self, value: Value, from: Scalar, to: Scalar, size: Option<u8>) -> Value {
        if from == Scalar::Float || to == Scalar::Float {
            let middle = if from == Scalar::Float { naga_scalar(to).kind } else { ScalarKind::Float };
            return self.builder.cast(value, middle, None);
        }
        self.convert(value, from, to, size)
    }

    /// Reinterprets the bits as another number of components, in little-endian memory order: the
    /// first component has the lowest bits. A vector of three occupies the space of four.
    pub(super) fn regroup(
        &mut self,
        value: Value,
        (from, from_size): (Scalar, Option<u8>),
        ty: &Type,
        (to, to_size): (Scalar, Option<u8>),
    ) -> Value {
        let (from_bits, to_bits) = (unsigned_bits(from), unsigned_bits(to));
        let mut parts: Vec<Value> = match from_size {
            None => vec![value],
            Some(size) => (0..u32::from(size)).map(|index| self.builder.access_index(value, index)).collect(),
        };
        for part in &mut parts {
            *part = self.reinterpret(*part, from, from_bits, None);
        }
        if from_size == Some(3) {
            parts.push(self.number_of(literal(from_bits, 0), None));
        }
        let mut pieces = Vec::new();
        if from.bits() > to.bits() {
            for part in parts {
                for shift in (0..from.bits()).step_by(to.bits() as usize) {
                    let shift = self.builder.u32(shift);
                    let low = self.builder.binary(BinaryOperator::ShiftRight, part, shift);
                    pieces.push(self.convert(low, from_bits, to_bits, None));
                }
            }
        } else {
            for group in parts.chunks((to.bits() / from.bits()) as usize) {
                let mut all = None;
                for (part, shift) in group.iter().zip((0..).step_by(from.bits() as usize)) {
                    let (wide, shift) = (self.convert(*part, from_bits, to_bits, None), self.builder.u32(shift));
                    let placed = self.builder.binary(BinaryOperator::ShiftLeft, wide, shift);
                    all = Some(all.map_or(placed, |all| self.builder.binary(BinaryOperator::InclusiveOr, all, placed)));
                }
                pieces.extend(all);
            }
        }
        pieces.truncate(to_size.map_or(1, usize::from));
        for piece in &mut pieces {
            *piece = self.reinterpret(*piece, to_bits, to, None);
        }
        match pieces[..] {
            [one] => one,
            _ => {
                let ty = self.lowering.ty(ty);
                self.builder.add(Expression::Compose { ty, components: pieces })
            }
        }
    }

    pub(super) fn math(&mut self, fun: MathFunction, arg: Value, arg1: Option<Value>, arg2: Option<Value>) -> Value {
        self.builder.add(Expression::Math { fun, arg, arg1, arg2, arg3: None })
    }
}

/// The unsigned integer type with the same number of bits.
fn unsigned_bits(scalar: Scalar) -> Scalar {
    if scalar == Scalar::Float { Scalar::UInt } else { scalar.unsigned() }
}

/// Minimum and maximum of an integer type.
fn range(scalar: Scalar) -> (i128, i128) {
    let bits = scalar.bits();
    match scalar.is_signed() {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    }
}

/// The bits of an integer literal.
fn bits(literal: Literal) -> Option<u64> {
    match literal {
        Literal::U32(value) => Some(u64::from(value)),
        Literal::I32(value) => Some(i64::from(value) as u64),
        Literal::U64(value) => Some(value),
        Literal::I64(value) => Some(value as u64),
        Literal::Bool(value) => Some(u64::from(value)),
        _ => None,
    }
}
