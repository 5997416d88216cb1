//! Pointers and lvalues, lowered as `shapes` describes.

use std::rc::Rc;

use naga::{BinaryOperator, Expression};

use super::functions::{Binding, FunctionLowering, LoweredValue};
use super::shapes::{Base, Location, PathStep, Pointer, Shape};
use super::{ErrorReported, Result};
use crate::ast::BinaryOp;
use crate::files::Span;
use crate::tree::{Expr, LocalId, Place, PlaceKind};
use crate::types::{Scalar, Space, Type};
use portcullis_core::ir::builder::Value;

/// Path to an lvalue that has an address, before it is accessed.
struct AccessPath {
    base: Base,
    variable: Option<Value>,
    steps: Vec<PathStep>,
    indices: Vec<Value>,
}

impl FunctionLowering<'_, '_> {
    /// Reports a pointer whose target is in another address space than its type says.
    pub(super) fn check_space(&mut self, pointer: &Pointer, ty: &Type, span: Span) -> Result<()> {
        let Type::Pointer(it) = ty else { return Ok(()) };
        let lies = match pointer.shape.base {
            Base::Packet => Space::Global,
            Base::Table(_) => Space::Constant,
            Base::Local(..) | Base::Argument(..) => Space::Private,
        };
        if it.space.is_some_and(|space| space != lies) {
            let what = match lies {
                Space::Global => "into the packet, which is `__global`",
                Space::Constant => "into a table, which is `__constant`",
                Space::Private => "to a local variable, which is `__private`",
            };
            return self.lowering.fail(
                span,
                format!("this points {what}"),
                "the expected type has another address space",
            );
        }
        Ok(())
    }

    pub(super) fn pointer(&mut self, expr: &Expr) -> Result<Pointer> {
        match self.expr(expr)? {
            LoweredValue::Pointer(pointer) => Ok(pointer),
            LoweredValue::Value(_) | LoweredValue::Nothing => Err(ErrorReported),
        }
    }

    /// The current value of a local pointer variable.
    pub(super) fn read_pointer(&mut self, id: LocalId, span: Span) -> Result<Pointer> {
        match self.bindings[id.0 as usize].clone() {
            Some(Binding::ConstPointer(pointer)) => Ok(pointer),
            Some(Binding::MutablePointer(Some(pointer))) => {
                let indices = pointer.indices.iter().map(|&variable| self.builder.load(variable)).collect();
                Ok(Pointer { indices, ..pointer })
            }
            _ => {
                let message = format!("`{}` has no target yet", self.function.locals[id.0 as usize].name);
                self.lowering.fail(span, message, "assign the pointer before its first use")
            }
        }
    }

    /// Assigns to a local pointer variable.
    pub(super) fn set_pointer(&mut self, id: LocalId, pointer: &Pointer, span: Span) -> Result<()> {
        let function = self.function;
        let local = &function.locals[id.0 as usize];
        self.check_space(pointer, &local.ty, span)?;
        match self.bindings[id.0 as usize].clone() {
            Some(Binding::MutablePointer(Some(now))) => {
                if now.shape != pointer.shape {
                    let message = format!("`{}` changes its target", local.name);
                    let note = "the target of a pointer must be known at compile time: use another pointer for this";
                    return self.lowering.fail(span, message, note);
                }
                for (&variable, &value) in now.indices.iter().zip(&pointer.indices) {
                    self.builder.store(variable, value);
                }
            }
            _ => {
                let binding = self.bind_pointer(&local.name, true, pointer.clone());
                self.bindings[id.0 as usize] = Some(binding);
            }
        }
        Ok(())
    }

    /// Creates the variable for a declaration that a `switch` jumps past.
    fn unbound(&mut self, id: LocalId) -> Value {
        let function = self.function;
        let local = &function.locals[id.0 as usize];
        let ty = self.lowering.ty(&local.ty);
        let variable = self.builder.local(Some(&local.name), ty);
        self.bindings[id.0 as usize] = Some(Binding::Variable(variable));
        variable
    }

    /// Computes the path to an lvalue that has an address.
    fn path(&mut self, place: &Place) -> Result<AccessPath> {
        Ok(match &place.kind {
            PlaceKind::Local(id) => {
                let variable = match self.bindings[id.0 as usize].clone() {
                    Some(Binding::Variable(variable)) => variable,
                    None => self.unbound(*id),
                    Some(_) => return Err(ErrorReported),
                };
                let base = Base::Local(*id, place.ty.clone());
                AccessPath { base, variable: Some(variable), steps: Vec::new(), indices: Vec::new() }
            }
            PlaceKind::Table(id) => {
                AccessPath { base: Base::Table(*id), variable: None, steps: Vec::new(), indices: Vec::new() }
            }
            PlaceKind::Deref(pointer) => {
                let pointer = self.pointer(pointer)?;
                self.check_type(&pointer, &place.ty, place.span)?;
                let mut steps = pointer.shape.steps.clone();
                let mut indices = pointer.indices;
                if steps.last() == Some(&PathStep::Single) {
                    steps.pop();
                    indices.pop();
                }
                AccessPath { base: pointer.shape.base.clone(), variable: pointer.variable, steps, indices }
            }
            PlaceKind::Member(base, index) => {
                let mut path = self.path(base)?;
                match path.base {
                    Base::Packet => {
                        let offset = self.field_offset(&base.ty, *index);
                        let offset = self.builder.u32(offset);
                        path.indices[0] = self.builder.add_u32(path.indices[0], offset);
                    }
                    _ => path.steps.push(PathStep::Member(*index)),
                }
                path
            }
            PlaceKind::Index(base, index) => {
                let mut path = self.path(base)?;
                let index = self.index_value(index)?;
                match path.base {
                    Base::Packet => {
                        let size = self.lowering.filter.structs.size(&place.ty);
                        let offset = self.builder.mul_u32(index, size);
                        path.indices[0] = self.builder.add_u32(path.indices[0], offset);
                    }
                    _ => {
                        path.steps.push(PathStep::Index);
                        path.indices.push(index);
                    }
                }
                path
            }
            PlaceKind::Components(..) => return Err(ErrorReported),
        })
    }

    /// Lowers `&place`, or the address of an array's first element.
    pub(super) fn address(&mut self, place: &Place) -> Result<Pointer> {
        let mut path = self.path(place)?;
        let mut element = place.ty.clone();
        if path.base == Base::Packet {
            let shape = Shape { base: Base::Packet, steps: Vec::new(), element: Type::Void };
            return Ok(Pointer { shape: Rc::new(shape), indices: path.indices, variable: None });
        }
        let first = self.builder.u32(0);
        if let Type::Array(of, _) = &place.ty {
            element = (**of).clone();
            path.steps.push(PathStep::Index);
            path.indices.push(first);
        } else if path.steps.last() != Some(&PathStep::Index) {
            path.steps.push(PathStep::Single);
            path.indices.push(first);
        }
        let shape = Shape { base: path.base, steps: path.steps, element };
        Ok(Pointer { shape: Rc::new(shape), indices: path.indices, variable: path.variable })
    }

    /// Reports an access to a variable or table as a type that it does not have.
    pub(super) fn check_type(&mut self, pointer: &Pointer, ty: &Type, span: Span) -> Result<()> {
        let element = &pointer.shape.element;
        let fits = match (element, ty) {
            _ if pointer.shape.base == Base::Packet || *ty == Type::Void => true,
            (Type::Scalar(a), Type::Scalar(b)) if a != b => {
                a.is_integer() && b.is_integer() && a.size() == b.size() && *a != Scalar::Bool && *b != Scalar::Bool
            }
            (a, b) => a == b,
        };
        if fits {
            return Ok(());
        }
        let note = "only the packet can be accessed as any type; convert the value, or reinterpret its bits with `as_uint` and the like";
        self.lowering.fail(span, "a variable or table is accessed as another type than it has", note)
    }

    fn field_offset(&self, ty: &Type, index: u32) -> u32 {
        let Type::Struct(id) = ty else { return 0 };
        let fields = self.lowering.filter.structs.get(*id).fields.as_deref().unwrap_or_default();
        fields.get(index as usize).map_or(0, |field| field.offset)
    }

    fn index_value(&mut self, expr: &Expr) -> Result<Value> {
        self.value(expr)
    }

    /// Locates an lvalue, evaluating its indices.
    pub(super) fn locate(&mut self, place: &Place) -> Result<Location> {
        Ok(match &place.kind {
            PlaceKind::Local(id) => match self.bindings[id.0 as usize].clone() {
                Some(Binding::Value(value)) => Location::Value(value),
                Some(Binding::Variable(variable)) => Location::Memory(variable),
                Some(Binding::ConstPointer(_) | Binding::MutablePointer(..)) => Location::Pointer(*id),
                None if matches!(place.ty, Type::Pointer(_)) => Location::Pointer(*id),
                None => Location::Memory(self.unbound(*id)),
            },
            PlaceKind::Table(id) => {
                let constant = self.lowering.table(*id);
                Location::Value(self.builder.add(Expression::Constant(constant)))
            }
            PlaceKind::Deref(pointer) => {
                let pointer = self.pointer(pointer)?;
                self.pointee(&pointer, &place.ty, place.span)?
            }
            PlaceKind::Member(base, index) => {
                let offset = self.field_offset(&base.ty, *index);
                match self.locate(base)? {
                    Location::Packet(at, plus) => Location::Packet(at, plus.wrapping_add(offset)),
                    Location::Memory(pointer) => Location::Memory(self.builder.access_index(pointer, *index)),
                    Location::Value(value) => Location::Value(self.builder.access_index(value, *index)),
                    _ => return Err(ErrorReported),
                }
            }
            PlaceKind::Index(base, index) => {
                let location = self.locate(base)?;
                let index = self.index_value(index)?;
                let Type::Array(of, count) = &base.ty else { return Err(ErrorReported) };
                match location {
                    Location::Packet(at, plus) => {
                        let size = self.lowering.filter.structs.size(of);
                        match self.builder.constant_u32(index) {
                            Some(known) => Location::Packet(at, plus.wrapping_add(known.wrapping_mul(size))),
                            None => {
                                let offset = self.builder.mul_u32(index, size);
                                Location::Packet(self.builder.add_u32(at, offset), plus)
                            }
                        }
                    }
                    Location::Memory(pointer) => Location::Memory(self.element(pointer, index, *count)),
                    Location::Value(value) => Location::Value(self.element(value, index, *count)),
                    _ => return Err(ErrorReported),
                }
            }
            PlaceKind::Components(base, picked) => {
                let location = self.locate(base)?;
                Location::Components(location.into(), picked.clone(), base.ty.clone())
            }
        })
    }

    fn element(&mut self, base: Value, index: Value, count: u32) -> Value {
        match self.builder.constant_u32(index) {
            // Indices out of range select the last element (docs/reference/semantics.md,
            // "Arithmetic").
            Some(known) => self.builder.access_index(base, known.min(count - 1)),
            None => self.builder.add(Expression::Access { base, index }),
        }
    }

    /// Locates a pointer's target, accessed as type `ty`.
    pub(super) fn pointee(&mut self, pointer: &Pointer, ty: &Type, span: Span) -> Result<Location> {
        self.check_type(pointer, ty, span)?;
        let (mut at, mut now, in_memory) = match &pointer.shape.base {
            Base::Packet => return Ok(Location::Packet(pointer.indices[0], 0)),
            Base::Table(id) => {
                let constant = self.lowering.table(*id);
                let ty = self.lowering.filter.tables[id.0 as usize].ty.clone();
                (self.builder.add(Expression::Constant(constant)), ty, false)
            }
            Base::Local(_, ty) | Base::Argument(_, ty) => {
                let Some(variable) = pointer.variable else { return Err(ErrorReported) };
                (variable, ty.clone(), true)
            }
        };
        let mut indices = pointer.indices.iter();
        for step in &pointer.shape.steps {
            match (step, &now) {
                (PathStep::Member(index), Type::Struct(id)) => {
                    let fields = self.lowering.filter.structs.get(*id).fields.as_deref().unwrap_or_default();
                    let Some(field) = fields.get(*index as usize) else { return Err(ErrorReported) };
                    at = self.builder.access_index(at, *index);
                    now = field.ty.clone();
                }
                (PathStep::Index, Type::Array(of, count)) => {
                    let Some(&number) = indices.next() else { return Err(ErrorReported) };
                    at = self.element(at, number, *count);
                    now = (**of).clone();
                }
                _ => break,
            }
        }
        let location = if in_memory { Location::Memory(at) } else { Location::Value(at) };
        Ok(match (&now, ty) {
            (Type::Scalar(has), Type::Scalar(wanted)) if has != wanted => {
                Location::Reinterpreted(location.into(), *has)
            }
            _ => location,
        })
    }

    /// Lowers `pointer + count`.
    pub(super) fn pointer_add(&mut self, pointer: Pointer, count: Value, to: &Type, span: Span) -> Result<Pointer> {
        self.check_type(&pointer, to, span)?;
        let Pointer { shape, mut indices, variable } = pointer;
        let size = match shape.base {
            Base::Packet => self.lowering.filter.structs.size(to),
            _ => 1,
        };
        let by = self.builder.mul_u32(count, size);
        if let Some(last) = indices.last_mut() {
            *last = self.builder.add_u32(*last, by);
        }
        Ok(Pointer { shape, indices, variable })
    }

    fn comparable_indices(&mut self, left: &Pointer, right: &Pointer, span: Span) -> Result<(Value, Value)> {
        if left.shape != right.shape {
            let note = "only pointers into the same packet, table or variable can be compared";
            return self.lowering.fail(span, "these pointers cannot be compared", note);
        }
        match (left.indices.last(), right.indices.last()) {
            (Some(&left), Some(&right)) => Ok((left, right)),
            _ => Err(ErrorReported),
        }
    }

    /// Lowers `left - right`, in elements.
    pub(super) fn distance(&mut self, left: &Pointer, right: &Pointer, to: &Type, span: Span) -> Result<Value> {
        let (a, b) = self.comparable_indices(left, right, span)?;
        let difference = self.builder.binary(BinaryOperator::Subtract, a, b);
        let difference = self.builder.cast(difference, naga::ScalarKind::Sint, Some(4));
        let size = match left.shape.base {
            Base::Packet => self.lowering.filter.structs.size(to),
            _ => 1,
        };
        if size == 1 {
            return Ok(difference);
        }
        let size = self.builder.literal(naga::Literal::I32(size as i32));
        Ok(self.builder.binary(BinaryOperator::Divide, difference, size))
    }

    pub(super) fn compare(&mut self, op: BinaryOp, left: &Pointer, right: &Pointer, span: Span) -> Result<Value> {
        let (a, b) = self.comparable_indices(left, right, span)?;
        Ok(self.builder.binary(super::arithmetic::operator(op), a, b))
    }
}
