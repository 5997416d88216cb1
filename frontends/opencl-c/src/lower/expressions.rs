//! Expressions.

use naga::{Expression, Literal, Statement, UnaryOperator};

use super::convert::count;
use super::functions::{Given, Scope};
use super::pointers::{Base, Pointer, Spot};
use super::{Result, Stop, literal};
use crate::files::Span;
use crate::tree::{Builtin, Expr, ExprKind, Place};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;
use portcullis_core::program::MAX_EXPRESSIONS;
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

/// How much may be evaluated where it might not be needed, to spare a branch.
const CHEAP: u32 = 12;

impl Scope<'_, '_> {
    pub(super) fn value(&mut self, expr: &Expr) -> Result<Value> {
        match self.expr(expr)? {
            Given::Value(value) => Ok(value),
            Given::Pointer(_) | Given::Nothing => Err(Stop),
        }
    }

    pub(super) fn expr(&mut self, expr: &Expr) -> Result<Given> {
        self.spend(1, expr.span)?;
        self.b.span = self.l.span(expr.span);
        let given = self.expr_kind(expr)?;
        Ok(given)
    }

    /// Counts what is made: what is too much for the verifier by far need not be.
    pub(super) fn spend(&mut self, count: usize, span: Span) -> Result<()> {
        self.spend_on(count, span, "a function counts as often as pointers make it another one")
    }

    /// The same with the cause that there may be.
    pub(super) fn spend_on(&mut self, count: usize, span: Span, cause: &str) -> Result<()> {
        self.l.expressions += count as u64;
        if self.l.expressions <= 4 * MAX_EXPRESSIONS {
            return Ok(());
        }
        self.l.errors.stop();
        self.l.fail(span, "the filter is too large", cause)
    }

    fn expr_kind(&mut self, expr: &Expr) -> Result<Given> {
        let (ty, span) = (&expr.ty, expr.span);
        let size = count(ty);
        let scalar = || ty.element().ok_or(Stop);
        Ok(Given::Value(match &expr.kind {
            ExprKind::Integer(_) if *ty == Type::Void => return Ok(Given::Nothing),
            ExprKind::Integer(bits) => self.b.literal(literal(scalar()?, *bits)),
            ExprKind::Float(value) => self.b.literal(Literal::F32(*value)),
            ExprKind::Load(place) => {
                let spot = self.spot(place)?;
                return self.read(&spot, ty, span);
            }
            ExprKind::Address(place) => return self.address(place).map(Given::Pointer),
            ExprKind::Offset(pointer, by) => {
                let from = self.pointer(pointer)?;
                let by = self.value(by)?;
                let Type::Pointer(it) = ty else { return Err(Stop) };
                return self.moved(from, by, &it.to, span).map(Given::Pointer);
            }
            ExprKind::Distance(left, right) => {
                let (a, b) = (self.pointer(left)?, self.pointer(right)?);
                let Type::Pointer(it) = &left.ty else { return Err(Stop) };
                self.distance(&a, &b, &it.to, span)?
            }
            ExprKind::ComparePointers(op, left, right) => {
                let (a, b) = (self.pointer(left)?, self.pointer(right)?);
                self.compare(*op, &a, &b, span)?
            }
            ExprKind::Repoint(inner) => {
                let pointer = self.pointer(inner)?;
                self.check_space(&pointer, ty, span)?;
                if let Type::Pointer(it) = ty {
                    self.check_type(&pointer, &it.to, span)?;
                }
                return Ok(Given::Pointer(pointer));
            }
            ExprKind::Negate(inner) => {
                let value = self.value(inner)?;
                self.negated(value, scalar()?, size)
            }
            ExprKind::BitNot(inner) => {
                let value = self.value(inner)?;
                self.inverted(value, scalar()?, size)
            }
            ExprKind::Not(inner) => {
                let value = self.value(inner)?;
                self.b.unary(UnaryOperator::LogicalNot, value)
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
                self.convert(value, inner.ty.element().ok_or(Stop)?, scalar()?, size)
            }
            ExprKind::Saturate(inner) => {
                let value = self.value(inner)?;
                self.saturate(value, inner.ty.element().ok_or(Stop)?, scalar()?, size)
            }
            ExprKind::Reinterpret(inner) => {
                let (value, from) = (self.value(inner)?, inner.ty.element().ok_or(Stop)?);
                if count(&inner.ty) == size {
                    self.reinterpret(value, from, scalar()?, size)
                } else {
                    self.regroup(value, (from, count(&inner.ty)), ty, (scalar()?, size))
                }
            }
            ExprKind::Splat(inner) => {
                let value = self.value(inner)?;
                self.b.splat(value, size)
            }
            ExprKind::Compose(parts) => {
                let components = parts.iter().map(|part| self.value(part)).collect::<Result<Vec<_>>>()?;
                if let [one] = components[..] {
                    return Ok(Given::Value(one));
                }
                let ty = self.l.ty(ty);
                self.b.add(Expression::Compose { ty, components })
            }
            ExprKind::Swizzle(inner, picked) => {
                let vector = self.value(inner)?;
                self.b.swizzle(vector, picked)
            }
            ExprKind::Member(inner, index) => {
                let value = self.value(inner)?;
                self.b.at(value, *index)
            }
            ExprKind::Assign(place, value) => return self.assign(place, value),
            ExprKind::Update { place, value, gives_old } => return self.update(place, value, *gives_old),
            ExprKind::Old => {
                let Some((spot, held)) = self.old.last().cloned() else { return Err(Stop) };
                if let Some(held) = held {
                    return Ok(held);
                }
                let value = self.read(&spot, ty, span)?;
                if let Some((_, held)) = self.old.last_mut() {
                    *held = Some(value.clone());
                }
                return Ok(value);
            }
            ExprKind::Call(id, arguments) => return self.call(*id, arguments, ty, span),
            ExprKind::Prelude(Intrinsic::Map { map, call }, arguments) => {
                self.map_call(*map, *call, arguments, span)?
            }
            ExprKind::Prelude(intrinsic, arguments) => self.prelude_call(*intrinsic, arguments, ty)?,
            ExprKind::Builtin(Builtin::Swap, arguments) => self.swapped(arguments, ty)?,
            ExprKind::Builtin(builtin, arguments) => self.builtin(*builtin, arguments, ty)?,
        }))
    }

    fn logical(&mut self, and: bool, left: &Expr, right: &Expr) -> Result<Value> {
        let a = self.value(left)?;
        if right.is_cheap(&mut CHEAP.clone()) {
            let b = self.value(right)?;
            let op = if and { naga::BinaryOperator::LogicalAnd } else { naga::BinaryOperator::LogicalOr };
            return Ok(self.b.binary(op, a, b));
        }
        // As naga makes it of WGSL, so that passes and devices find what they know.
        let ty = self.l.ty(&left.ty);
        let result = self.b.local(None, ty);
        let condition = if and { a } else { self.b.unary(UnaryOperator::LogicalNot, a) };
        self.b.open();
        let b = self.value(right);
        if let Ok(b) = b {
            self.b.store(result, b);
        }
        let accept = self.b.close();
        b?;
        self.b.open();
        let other = self.b.literal(Literal::Bool(!and));
        self.b.store(result, other);
        let reject = self.b.close();
        self.b.push(Statement::If { condition, accept, reject });
        Ok(self.b.load(result))
    }

    fn conditional(&mut self, condition: &Expr, accept: &Expr, reject: &Expr, ty: &Type) -> Result<Given> {
        let condition = self.value(condition)?;
        let budget = &mut CHEAP.clone();
        let at_once = matches!(ty, Type::Pointer(_)) || ty.element().is_some();
        if at_once && accept.is_cheap(budget) && reject.is_cheap(budget) {
            return match (self.expr(accept)?, self.expr(reject)?) {
                (Given::Value(a), Given::Value(b)) => Ok(Given::Value(self.b.select(condition, a, b))),
                (Given::Pointer(mut a), Given::Pointer(b)) => {
                    self.same_place(&a, &b, reject)?;
                    for (a, b) in a.numbers.iter_mut().zip(&b.numbers) {
                        *a = self.b.select(condition, *a, *b);
                    }
                    Ok(Given::Pointer(a))
                }
                _ => Err(Stop),
            };
        }
        // Each is evaluated only if it is the one (C11 6.5.15).
        let mut variables: Vec<Value> = Vec::new();
        let mut pointer: Option<Pointer> = None;
        let mut blocks = Vec::new();
        for side in [accept, reject] {
            blocks.push(self.block(|this| this.side(side, &mut variables, &mut pointer))?);
        }
        let (Some(reject), Some(accept)) = (blocks.pop(), blocks.pop()) else { return Err(Stop) };
        self.b.push(Statement::If { condition, accept, reject });
        let values: Vec<Value> = variables.iter().map(|&variable| self.b.load(variable)).collect();
        Ok(match (pointer, &values[..]) {
            (Some(pointer), _) => Given::Pointer(Pointer { numbers: values, ..pointer }),
            (None, [value]) => Given::Value(*value),
            (None, _) => Given::Nothing,
        })
    }

    /// Evaluates one of two values into variables, which the first of them makes.
    fn side(&mut self, side: &Expr, variables: &mut Vec<Value>, pointer: &mut Option<Pointer>) -> Result<()> {
        let values = match self.expr(side)? {
            Given::Value(value) => vec![value],
            Given::Nothing => Vec::new(),
            Given::Pointer(now) => {
                if let Some(first) = &*pointer {
                    self.same_place(first, &now, side)?;
                }
                let numbers = now.numbers.clone();
                *pointer = Some(now);
                numbers
            }
        };
        for (i, value) in values.into_iter().enumerate() {
            if variables.len() <= i {
                let ty = self.l.ty(&side.ty);
                variables.push(self.b.local(None, ty));
            }
            self.b.store(variables[i], value);
        }
        Ok(())
    }

    fn same_place(&mut self, a: &Pointer, b: &Pointer, at: &Expr) -> Result<()> {
        if a.shape == b.shape {
            return Ok(());
        }
        let note =
            "what a pointer points into is known when the filter is compiled: both values of `?:` go to one place";
        self.l.fail(at.span, "this pointer points into something else than the other", note)
    }

    fn assign(&mut self, place: &Place, value: &Expr) -> Result<Given> {
        // A pointer that gets its first value points nowhere before.
        if let (crate::tree::PlaceKind::Local(id), Type::Pointer(_)) = (&place.kind, &place.ty) {
            let pointer = self.pointer(value)?;
            self.set_pointer(*id, &pointer, value.span)?;
            return Ok(Given::Pointer(pointer));
        }
        let spot = self.spot(place)?;
        // `header->length = htons(n)` is a store in network order.
        if let (Spot::Packet(at, plus), ExprKind::Builtin(Builtin::Swap, inner)) = (&spot, &value.kind)
            && place.ty == value.ty
            && let (Some(scalar), [inner]) = (place.ty.scalar(), &inner[..])
        {
            let value = self.value(inner)?;
            let at = self.offset(*at, *plus);
            let order = ByteOrder::Big;
            self.prelude(Intrinsic::Store { size: scalar.size(), order }, vec![at, value]);
            return Ok(Given::Value(self.swap(value, scalar)));
        }
        let given = self.expr(value)?;
        self.b.span = self.l.span(place.span);
        self.write(&spot, &given, &place.ty, place.span)?;
        Ok(given)
    }

    fn update(&mut self, place: &Place, value: &Expr, gives_old: bool) -> Result<Given> {
        let spot = self.spot(place)?;
        self.old.push((spot.clone(), None));
        let new = self.expr(value);
        let (_, held) = self.old.pop().ok_or(Stop)?;
        let new = new?;
        self.b.span = self.l.span(place.span);
        self.write(&spot, &new, &place.ty, place.span)?;
        Ok(if gives_old { held.ok_or(Stop)? } else { new })
    }

    /// `ntohs(x)`: of what is in the packet a load in network order.
    fn swapped(&mut self, arguments: &[Expr], ty: &Type) -> Result<Value> {
        let ([argument], Some(scalar)) = (arguments, ty.scalar()) else { return Err(Stop) };
        if let ExprKind::Load(place) = &argument.kind
            && let spot = self.spot(place)?
        {
            if let Spot::Packet(at, plus) = spot {
                let at = self.offset(at, plus);
                let order = ByteOrder::Big;
                return Ok(self.prelude(Intrinsic::Load { size: scalar.size(), order }, vec![at]));
            }
            let Given::Value(value) = self.read(&spot, ty, argument.span)? else { return Err(Stop) };
            return Ok(self.swap(value, scalar));
        }
        let value = self.value(argument)?;
        Ok(self.swap(value, scalar))
    }

    fn prelude_call(&mut self, intrinsic: Intrinsic, arguments: &[Expr], ty: &Type) -> Result<Value> {
        let mut values = Vec::new();
        let mut start = None;
        for (i, argument) in arguments.iter().enumerate() {
            match self.expr(argument)? {
                Given::Pointer(pointer) => {
                    if pointer.shape.base != Base::Packet {
                        let note = "it takes the filter's parameter, or a pointer into the packet";
                        return self.l.fail(argument.span, "this does not point into the packet", note);
                    }
                    start = pointer.numbers.first().copied();
                }
                // Offsets count from where the pointer is.
                Given::Value(value) => match (start, i, intrinsic) {
                    (Some(start), 1, Intrinsic::Load { .. } | Intrinsic::Store { .. }) => {
                        values.push(self.b.sum(start, value));
                    }
                    _ => values.push(value),
                },
                Given::Nothing => return Err(Stop),
            }
        }
        let result = self.prelude(intrinsic, values);
        if intrinsic != Intrinsic::PktTime {
            return Ok(result);
        }
        let (low, high) = (self.b.at(result, 0), self.b.at(result, 1));
        let (low, high) = (self.widened(low, ty), self.widened(high, ty));
        let shift = self.b.u32(32);
        let high = self.b.binary(naga::BinaryOperator::ShiftLeft, high, shift);
        Ok(self.b.binary(naga::BinaryOperator::InclusiveOr, high, low))
    }

    fn widened(&mut self, value: Value, ty: &Type) -> Value {
        self.convert(value, Scalar::UInt, ty.scalar().unwrap_or(Scalar::ULong), None)
    }
}
