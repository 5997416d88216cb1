//! Arithmetic operators on scalars and vectors.

use naga::{BinaryOperator, Expression, Literal, UnaryOperator};

use super::convert::count;
use super::functions::FunctionLowering;
use super::{ErrorReported, Result, literal};
use crate::ast::BinaryOp;
use crate::tree::{Expr, ExprKind};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;

pub(super) fn operator(op: BinaryOp) -> BinaryOperator {
    match op {
        BinaryOp::Multiply => BinaryOperator::Multiply,
        BinaryOp::Divide => BinaryOperator::Divide,
        BinaryOp::Modulo => BinaryOperator::Modulo,
        BinaryOp::Add => BinaryOperator::Add,
        BinaryOp::Subtract => BinaryOperator::Subtract,
        BinaryOp::ShiftLeft => BinaryOperator::ShiftLeft,
        BinaryOp::ShiftRight => BinaryOperator::ShiftRight,
        BinaryOp::Less => BinaryOperator::Less,
        BinaryOp::Greater => BinaryOperator::Greater,
        BinaryOp::LessEqual => BinaryOperator::LessEqual,
        BinaryOp::GreaterEqual => BinaryOperator::GreaterEqual,
        BinaryOp::Equal => BinaryOperator::Equal,
        BinaryOp::NotEqual => BinaryOperator::NotEqual,
        BinaryOp::And => BinaryOperator::And,
        BinaryOp::Xor => BinaryOperator::ExclusiveOr,
        BinaryOp::Or => BinaryOperator::InclusiveOr,
    }
}

impl FunctionLowering<'_, '_> {
    /// Lowers `left op right` with the result type `ty`.
    pub(super) fn binary(&mut self, op: BinaryOp, left: &Expr, right: &Expr, ty: &Type) -> Result<Value> {
        if op.is_comparison() {
            return self.comparison(op, left, right, ty);
        }
        let Some(scalar) = ty.element() else { return Err(ErrorReported) };
        let size = count(ty);
        let (a, b) = (self.value(left)?, self.value(right)?);
        let b = match op {
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight => self.shift_count(b, scalar, size),
            BinaryOp::Divide | BinaryOp::Modulo if scalar.is_integer() => self.divisor(b),
            _ => b,
        };
        let value = self.builder.binary(operator(op), a, b);
        Ok(self.in_range(value, scalar, size))
    }

    /// Replaces a constant divisor of zero, which naga rejects, by 1: x / 0 is x and x % 0 is 0
    /// (docs/reference/semantics.md, "Arithmetic"), the same as for 1.
    fn divisor(&mut self, value: Value) -> Value {
        let one = |known| match known {
            Literal::I32(0) => Some(Literal::I32(1)),
            Literal::U32(0) => Some(Literal::U32(1)),
            Literal::I64(0) => Some(Literal::I64(1)),
            Literal::U64(0) => Some(Literal::U64(1)),
            _ => None,
        };
        match self.builder.function.expressions[value].clone() {
            Expression::Literal(known) => one(known).map_or(value, |one| self.builder.literal(one)),
            Expression::Splat { size, value: inner } => {
                let other = self.divisor(inner);
                if other == inner { value } else { self.builder.add(Expression::Splat { size, value: other }) }
            }
            Expression::Compose { ty, components } => {
                let others: Vec<Value> = components.iter().map(|&component| self.divisor(component)).collect();
                if others == components {
                    value
                } else {
                    self.builder.add(Expression::Compose { ty, components: others })
                }
            }
            _ => value,
        }
    }

    /// Takes a shift count modulo the width. naga does so itself for 32 and 64 bits, but rejects a
    /// constant count beyond the width.
    fn shift_count(&mut self, value: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let mask = scalar.bits() - 1;
        match (self.builder.constant_u32(value), size) {
            (Some(known), _) => self.builder.u32(known & mask),
            (None, None) if scalar.size() >= 4 => value,
            _ => {
                let mask = self.number_of(Literal::U32(mask), size);
                self.builder.binary(BinaryOperator::And, value, mask)
            }
        }
    }

    fn comparison(&mut self, op: BinaryOp, left: &Expr, right: &Expr, ty: &Type) -> Result<Value> {
        let operator = operator(op);
        // Compare promoted unsigned values without the promotion; the result is the same.
        let (a, b) = match (unpromoted(left), unpromoted(right)) {
            (Some(a), Some(b)) => {
                let (a, b) = (self.unpromoted(a)?, self.unpromoted(b)?);
                (a, b)
            }
            _ => (self.value(left)?, self.value(right)?),
        };
        let compared = self.builder.binary(operator, a, b);
        let (Some(size), Some(scalar)) = (count(ty), ty.element()) else { return Ok(compared) };
        // -1 in every component for which the comparison is true.
        let yes = self.number_of(literal(scalar, u64::MAX), Some(size));
        let no = self.number_of(literal(scalar, 0), Some(size));
        Ok(self.builder.select(compared, yes, no))
    }

    fn unpromoted(&mut self, expr: &Expr) -> Result<Value> {
        match expr.constant() {
            Some(known) => Ok(self.builder.u32(known as u32)),
            None => self.value(expr),
        }
    }

    pub(super) fn negate(&mut self, value: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let negated = if scalar.is_signed() || scalar == Scalar::Float {
            self.builder.unary(UnaryOperator::Negate, value)
        } else {
            let zero = self.number_of(literal(scalar, 0), size);
            self.builder.binary(BinaryOperator::Subtract, zero, value)
        };
        self.in_range(negated, scalar, size)
    }

    pub(super) fn bit_not(&mut self, value: Value, scalar: Scalar, size: Option<u8>) -> Value {
        let inverted = self.builder.unary(UnaryOperator::BitwiseNot, value);
        self.in_range(inverted, scalar, size)
    }
}

/// The operand of an integer promotion from unsigned `char` or `short`; also a non-negative
/// constant.
fn unpromoted(expr: &Expr) -> Option<&Expr> {
    if expr.ty != Type::Scalar(Scalar::Int) {
        return None;
    }
    match &expr.kind {
        ExprKind::Convert(inner) => matches!(inner.ty, Type::Scalar(Scalar::UChar | Scalar::UShort)).then_some(inner),
        ExprKind::Integer(_) => expr.constant().filter(|known| *known >= 0).map(|_| expr),
        _ => None,
    }
}
