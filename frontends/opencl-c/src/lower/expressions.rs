//! Lowers expressions to naga.

use naga::{Expression, Literal, Statement, UnaryOperator};

use super::convert::count;
use super::functions::{FunctionLowering, LoweredValue};
use super::shapes::{Base, Location, Pointer};
use super::{ErrorReported, Result, literal};
use crate::files::Span;
use crate::tree::{Builtin, Expr, ExprKind, Place};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;
use portcullis_core::program::MAX_EXPRESSIONS;
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

/// Maximum number of nodes to evaluate speculatively instead of branching.
const SPECULATION_BUDGET: u32 = 12;

impl FunctionLowering<'_, '_> {
    pub(super) fn value(&mut self, expr: &Expr) -> Result<Value> {
        match self.expr(expr)? {
            LoweredValue::Value(value) => Ok(value),
            LoweredValue::Pointer(_) | LoweredValue::Nothing => Err(ErrorReported),
        }
    }

    pub(super) fn expr(&mut self, expr: &Expr) -> Result<LoweredValue> {
        self.charge(1, expr.span)?;
        self.builder.span = self.lowering.span(expr.span);
        self.expr_kind(expr)
    }

    /// Counts lowered expressions; stops far beyond what the verifier accepts.
    pub(super) fn charge(&mut self, count: usize, span: Span) -> Result<()> {
        self.charge_with_note(count, span, "a function counts once for each combination of pointer targets")
    }

    /// [`charge`](Self::charge) with a note on the likely cause.
    pub(super) fn charge_with_note(&mut self, count: usize, span: Span, cause: &str) -> Result<()> {
        self.lowering.expressions += count as u64;
        if self.lowering.expressions <= 4 * MAX_EXPRESSIONS {
            return Ok(());
        }
        self.lowering.errors.stop();
        self.lowering.fail(span, "the filter is too large", cause)
    }

    fn expr_kind(&mut self, expr: &Expr) -> Result<LoweredValue> {
        let (ty, span) = (&expr.ty, expr.span);
        let size = count(ty);
        let scalar = || ty.element().ok_or(ErrorReported);
        Ok(LoweredValue::Value(match &expr.kind {
            ExprKind::Integer(_) if *ty == Type::Void => return Ok(LoweredValue::Nothing),
            ExprKind::Integer(bits) => self.builder.literal(literal(scalar()?, *bits)),
            ExprKind::Float(value) => self.builder.literal(Literal::F32(*value)),
            ExprKind::Load(place) => {
                let location = self.locate(place)?;
                return self.read(&location, ty, span);
            }
            ExprKind::Address(place) => return self.address(place).map(LoweredValue::Pointer),
            ExprKind::Offset(pointer, by) => {
                let from = self.pointer(pointer)?;
                let by = self.value(by)?;
                let Type::Pointer(it) = ty else { return Err(ErrorReported) };
                return self.pointer_add(from, by, &it.to, span).map(LoweredValue::Pointer);
            }
            ExprKind::Distance(left, right) => {
                let (a, b) = (self.pointer(left)?, self.pointer(right)?);
                let Type::Pointer(it) = &left.ty else { return Err(ErrorReported) };
                self.distance(&a, &b, &it.to, span)?
            }
            ExprKind::ComparePointers(op, left, right) => {
                let (a, b) = (self.pointer(left)?, self.pointer(right)?);
                self.compare(*op, &a, &b, span)?
            }
            ExprKind::PointerCast(inner) => {
                let pointer = self.pointer(inner)?;
                self.check_space(&pointer, ty, span)?;
                if let Type::Pointer(it) = ty {
                    self.check_type(&pointer, &it.to, span)?;
                }
                return Ok(LoweredValue::Pointer(pointer));
            }
            ExprKind::Negate(inner) => {
                let value = self.value(inner)?;
                self.negate(value, scalar()?, size)
            }
            ExprKind::BitNot(inner) => {
                let value = self.value(inner)?;
                self.bit_not(value, scalar()?, size)
            }
            ExprKind::Not(inner) => {
                let value = self.value(inner)?;
                self.builder.unary(UnaryOperator::LogicalNot, value)
            }
            ExprKind::Binary(op, left, right) => self.binary(*op, left, right, ty)?,
            ExprKind::And(left, right) => self.logical(true, left, right)?,
            ExprKind::Or(left, right) => self.logical(false, left, right)?,
            ExprKind::Conditional(condition, accept, reject) => {
                return self.conditional(condition, accept, reject, ty);
            }
            ExprKind::Comma(left, right) => {
                self.expr(left)?;
                return self.expr(right);
            }
            ExprKind::Convert(inner) => {
                let value = self.value(inner)?;
                self.convert(value, inner.ty.element().ok_or(ErrorReported)?, scalar()?, size)
            }
            ExprKind::Saturate(inner) => {
                let value = self.value(inner)?;
                self.saturate(value, inner.ty.element().ok_or(ErrorReported)?, scalar()?, size)
            }
            ExprKind::Reinterpret(inner) => {
                let (value, from) = (self.value(inner)?, inner.ty.element().ok_or(ErrorReported)?);
                if count(&inner.ty) == size {
                    self.reinterpret(value, from, scalar()?, size)
                } else {
                    self.regroup(value, (from, count(&inner.ty)), ty, (scalar()?, size))
                }
            }
            ExprKind::Splat(inner) => {
                let value = self.value(inner)?;
                self.builder.splat(value, size)
            }
            ExprKind::Compose(parts) => {
                let components = parts.iter().map(|part| self.value(part)).collect::<Result<Vec<_>>>()?;
                if let [one] = components[..] {
                    return Ok(LoweredValue::Value(one));
                }
                let ty = self.lowering.ty(ty);
                self.builder.add(Expression::Compose { ty, components })
            }
            ExprKind::Swizzle(inner, picked) => {
                let vector = self.value(inner)?;
                self.builder.swizzle(vector, picked)
            }
            ExprKind::Member(inner, index) => {
                let value = self.value(inner)?;
                self.builder.access_index(value, *index)
            }
            ExprKind::Assign(place, value) => return self.assign(place, value),
            ExprKind::Update { place, value, returns_old } => return self.update(place, value, *returns_old),
            ExprKind::Old => {
                let Some((location, old_value)) = self.update_targets.last().cloned() else {
                    return Err(ErrorReported);
                };
                if let Some(old_value) = old_value {
                    return Ok(old_value);
                }
                let value = self.read(&location, ty, span)?;
                if let Some((_, old_value)) = self.update_targets.last_mut() {
                    *old_value = Some(value.clone());
                }
                return Ok(value);
            }
            ExprKind::Call(id, arguments) => return self.call(*id, arguments, ty, span),
            ExprKind::Prelude(Intrinsic::Map { map, call }, arguments) => {
                self.map_call(*map, *call, arguments, span)?
            }
            ExprKind::Prelude(intrinsic, arguments) => self.prelude_call(*intrinsic, arguments, ty)?,
            ExprKind::Builtin(Builtin::Swap, arguments) => self.lower_byte_swap(arguments, ty)?,
            ExprKind::Builtin(builtin, arguments) => self.builtin(*builtin, arguments, ty)?,
        }))
    }

    fn logical(&mut self, and: bool, left: &Expr, right: &Expr) -> Result<Value> {
        let a = self.value(left)?;
        if right.is_cheap(&mut SPECULATION_BUDGET.clone()) {
            let b = self.value(right)?;
            let op = if and { naga::BinaryOperator::LogicalAnd } else { naga::BinaryOperator::LogicalOr };
            return Ok(self.builder.binary(op, a, b));
        }
        // The same statements as naga's WGSL front end emits, so that passes and drivers recognise
        // them.
        let ty = self.lowering.ty(&left.ty);
        let result = self.builder.local(None, ty);
        let condition = if and { a } else { self.builder.unary(UnaryOperator::LogicalNot, a) };
        self.builder.begin_block();
        let b = self.value(right);
        if let Ok(b) = b {
            self.builder.store(result, b);
        }
        let accept = self.builder.end_block();
        b?;
        self.builder.begin_block();
        let other = self.builder.literal(Literal::Bool(!and));
        self.builder.store(result, other);
        let reject = self.builder.end_block();
        self.builder.push(Statement::If { condition, accept, reject });
        Ok(self.builder.load(result))
    }

    fn conditional(&mut self, condition: &Expr, accept: &Expr, reject: &Expr, ty: &Type) -> Result<LoweredValue> {
        let condition = self.value(condition)?;
        let budget = &mut SPECULATION_BUDGET.clone();
        let at_once = matches!(ty, Type::Pointer(_)) || ty.element().is_some();
        if at_once && accept.is_cheap(budget) && reject.is_cheap(budget) {
            return match (self.expr(accept)?, self.expr(reject)?) {
                (LoweredValue::Value(a), LoweredValue::Value(b)) => {
                    Ok(LoweredValue::Value(self.builder.select(condition, a, b)))
                }
                (LoweredValue::Pointer(mut a), LoweredValue::Pointer(b)) => {
                    self.check_same_shape(&a, &b, reject)?;
                    for (a, b) in a.indices.iter_mut().zip(&b.indices) {
                        *a = self.builder.select(condition, *a, *b);
                    }
                    Ok(LoweredValue::Pointer(a))
                }
                _ => Err(ErrorReported),
            };
        }
        // Only one branch is evaluated (C11 6.5.15).
        let mut variables: Vec<Value> = Vec::new();
        let mut pointer: Option<Pointer> = None;
        let mut blocks = Vec::new();
        for side in [accept, reject] {
            blocks.push(self.block(|this| this.lower_branch_value(side, &mut variables, &mut pointer))?);
        }
        let (Some(reject), Some(accept)) = (blocks.pop(), blocks.pop()) else { return Err(ErrorReported) };
        self.builder.push(Statement::If { condition, accept, reject });
        let values: Vec<Value> = variables.iter().map(|&variable| self.builder.load(variable)).collect();
        Ok(match (pointer, &values[..]) {
            (Some(pointer), _) => LoweredValue::Pointer(Pointer { indices: values, ..pointer }),
            (None, [value]) => LoweredValue::Value(*value),
            (None, _) => LoweredValue::Nothing,
        })
    }

    /// Lowers one branch of `?:` and stores its result to variables, which the first branch
    /// creates.
    fn lower_branch_value(
        &mut self,
        side: &Expr,
        variables: &mut Vec<Value>,
        pointer: &mut Option<Pointer>,
    ) -> Result<()> {
        let values = match self.expr(side)? {
            LoweredValue::Value(value) => vec![value],
            LoweredValue::Nothing => Vec::new(),
            LoweredValue::Pointer(now) => {
                if let Some(first) = &*pointer {
                    self.check_same_shape(first, &now, side)?;
                }
                let indices = now.indices.clone();
                *pointer = Some(now);
                indices
            }
        };
        for (i, value) in values.into_iter().enumerate() {
            if variables.len() <= i {
                let ty = self.lowering.ty(&side.ty);
                variables.push(self.builder.local(None, ty));
            }
            self.builder.store(variables[i], value);
        }
        Ok(())
    }

    fn check_same_shape(&mut self, a: &Pointer, b: &Pointer, at: &Expr) -> Result<()> {
        if a.shape == b.shape {
            return Ok(());
        }
        let note = "the target of a pointer must be known at compile time: both values of `?:` must point into the same object";
        self.lowering.fail(at.span, "this pointer has another target than the other one", note)
    }

    fn assign(&mut self, place: &Place, value: &Expr) -> Result<LoweredValue> {
        // A pointer may be assigned before it has any target.
        if let (crate::tree::PlaceKind::Local(id), Type::Pointer(_)) = (&place.kind, &place.ty) {
            let pointer = self.pointer(value)?;
            self.set_pointer(*id, &pointer, value.span)?;
            return Ok(LoweredValue::Pointer(pointer));
        }
        let location = self.locate(place)?;
        // `header->length = htons(n)` becomes a big-endian store.
        if let (Location::Packet(at, plus), ExprKind::Builtin(Builtin::Swap, inner)) = (&location, &value.kind)
            && place.ty == value.ty
            && let (Some(scalar), [inner]) = (place.ty.scalar(), &inner[..])
        {
            let value = self.value(inner)?;
            let at = self.offset(*at, *plus);
            let order = ByteOrder::Big;
            self.call_intrinsic(Intrinsic::Store { size: scalar.size(), order }, vec![at, value]);
            return Ok(LoweredValue::Value(self.byte_swap(value, scalar)));
        }
        let operand = self.expr(value)?;
        self.builder.span = self.lowering.span(place.span);
        self.write(&location, &operand, &place.ty, place.span)?;
        Ok(operand)
    }

    fn update(&mut self, place: &Place, value: &Expr, returns_old: bool) -> Result<LoweredValue> {
        let location = self.locate(place)?;
        self.update_targets.push((location.clone(), None));
        let new = self.expr(value);
        let (_, old_value) = self.update_targets.pop().ok_or(ErrorReported)?;
        let new = new?;
        self.builder.span = self.lowering.span(place.span);
        self.write(&location, &new, &place.ty, place.span)?;
        Ok(if returns_old { old_value.ok_or(ErrorReported)? } else { new })
    }

    /// Lowers a byte swap such as `ntohs(x)`; of a value in the packet it becomes a big-endian
    /// load.
    fn lower_byte_swap(&mut self, arguments: &[Expr], ty: &Type) -> Result<Value> {
        let ([argument], Some(scalar)) = (arguments, ty.scalar()) else { return Err(ErrorReported) };
        if let ExprKind::Load(place) = &argument.kind
            && let location = self.locate(place)?
        {
            if let Location::Packet(at, plus) = location {
                let at = self.offset(at, plus);
                let order = ByteOrder::Big;
                return Ok(self.call_intrinsic(Intrinsic::Load { size: scalar.size(), order }, vec![at]));
            }
            let LoweredValue::Value(value) = self.read(&location, ty, argument.span)? else {
                return Err(ErrorReported);
            };
            return Ok(self.byte_swap(value, scalar));
        }
        let value = self.value(argument)?;
        Ok(self.byte_swap(value, scalar))
    }

    fn prelude_call(&mut self, intrinsic: Intrinsic, arguments: &[Expr], ty: &Type) -> Result<Value> {
        let mut values = Vec::new();
        let mut start = None;
        for (i, argument) in arguments.iter().enumerate() {
            match self.expr(argument)? {
                LoweredValue::Pointer(pointer) => {
                    if pointer.shape.base != Base::Packet {
                        let note = "pass the filter's parameter, or a pointer into the packet";
                        return self.lowering.fail(argument.span, "this does not point into the packet", note);
                    }
                    start = pointer.indices.first().copied();
                }
                // Offsets are relative to the pointer.
                LoweredValue::Value(value) => match (start, i, intrinsic) {
                    (Some(start), 1, Intrinsic::Load { .. } | Intrinsic::Store { .. }) => {
                        values.push(self.builder.add_u32(start, value));
                    }
                    _ => values.push(value),
                },
                LoweredValue::Nothing => return Err(ErrorReported),
            }
        }
        let result = self.call_intrinsic(intrinsic, values);
        if intrinsic != Intrinsic::PktTime {
            return Ok(result);
        }
        let (low, high) = (self.builder.access_index(result, 0), self.builder.access_index(result, 1));
        let (low, high) = (self.convert_from_uint(low, ty), self.convert_from_uint(high, ty));
        let shift = self.builder.u32(32);
        let high = self.builder.binary(naga::BinaryOperator::ShiftLeft, high, shift);
        Ok(self.builder.binary(naga::BinaryOperator::InclusiveOr, high, low))
    }

    fn convert_from_uint(&mut self, value: Value, ty: &Type) -> Value {
        self.convert(value, Scalar::UInt, ty.scalar().unwrap_or(Scalar::ULong), None)
    }
}
