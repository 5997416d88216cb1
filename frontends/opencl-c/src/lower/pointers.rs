//! Pointers and places.
//!
//! A pointer is a *shape*, known when the filter is compiled, and *numbers*, known when it runs. Into the
//! packet: the number is the byte offset from the packet's first byte. Into a table or a local variable:
//! the shape says which, and the members and indices on the way to what it points to; the numbers are
//! the indices. Pointer arithmetic is about the last one.
//!
//! So `*p` of a variable is an access of that variable, which devices keep in registers, and what is in
//! a variable is reached as the type that it has. The packet is bytes, and is reached as any type.

use std::rc::Rc;

use naga::{BinaryOperator, Expression};

use super::functions::{Binding, Given, Scope};
use super::{Result, Stop};
use crate::ast::{BinaryOp, Space};
use crate::files::Span;
use crate::tree::{Expr, LocalId, Place, PlaceKind, TableId};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;

/// What a pointer points into.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Base {
    Packet,
    Table(TableId),
    /// A variable of the function itself, of this type.
    Local(LocalId, Type),
    /// A variable that a caller gave a pointer to, by the parameter.
    Argument(u32, Type),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Member(u32),
    /// Takes a number.
    Index,
    /// What is no element of an array is the first of one (C11 6.5.6): takes a number, which moves
    /// nothing.
    Alone,
}

/// See the head of this file. Into the packet there are no steps, and what is there has no type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub base: Base,
    pub steps: Vec<Step>,
    /// What it points to.
    pub element: Type,
}

impl Shape {
    pub fn numbers(&self) -> usize {
        match self.base {
            Base::Packet => 1,
            _ => self.steps.iter().filter(|step| !matches!(step, Step::Member(_))).count(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Pointer {
    pub shape: Rc<Shape>,
    pub numbers: Vec<Value>,
    /// The variable that it points into, if it is one.
    pub variable: Option<Value>,
}

/// Where something is.
#[derive(Clone)]
pub(super) enum Spot {
    /// In a variable: a pointer of naga's.
    Memory(Value),
    /// Nowhere: a value that can be read.
    Value(Value),
    /// In the packet, so many bytes behind an offset.
    Packet(Value, u32),
    /// Components of what is there, a vector of that type.
    Components(Box<Spot>, Vec<u8>, Type),
    /// A variable that is a pointer.
    Pointer(LocalId),
    /// In a variable as another type than this, of the same size.
    As(Box<Spot>, Scalar),
}

/// A way to a place, before anything is read or computed for it.
struct Path {
    base: Base,
    variable: Option<Value>,
    steps: Vec<Step>,
    numbers: Vec<Value>,
}

impl Scope<'_, '_> {
    /// Refuses a pointer that goes into another address space than its type says.
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
            return self.l.fail(span, format!("this points {what}"), "the type wanted here says another address space");
        }
        Ok(())
    }

    pub(super) fn pointer(&mut self, expr: &Expr) -> Result<Pointer> {
        match self.expr(expr)? {
            Given::Pointer(pointer) => Ok(pointer),
            Given::Value(_) | Given::Nothing => Err(Stop),
        }
    }

    /// The pointer that a variable holds now.
    pub(super) fn read_pointer(&mut self, id: LocalId, span: Span) -> Result<Pointer> {
        match self.bindings[id.0 as usize].clone() {
            Some(Binding::Fixed(pointer)) => Ok(pointer),
            Some(Binding::Moving(Some(pointer))) => {
                let numbers = pointer.numbers.iter().map(|&variable| self.b.load(variable)).collect();
                Ok(Pointer { numbers, ..pointer })
            }
            _ => {
                let message = format!("`{}` points nowhere yet", self.function.locals[id.0 as usize].name);
                self.l.fail(span, message, "a pointer gets its value before it is used")
            }
        }
    }

    /// Sets a variable that is a pointer.
    pub(super) fn set_pointer(&mut self, id: LocalId, pointer: &Pointer, span: Span) -> Result<()> {
        let function = self.function;
        let local = &function.locals[id.0 as usize];
        self.check_space(pointer, &local.ty, span)?;
        match self.bindings[id.0 as usize].clone() {
            Some(Binding::Moving(Some(now))) => {
                if now.shape != pointer.shape {
                    let message = format!("`{}` points into something else than before", local.name);
                    let note =
                        "what a pointer points into is known when the filter is compiled: use another one for this";
                    return self.l.fail(span, message, note);
                }
                for (&variable, &value) in now.numbers.iter().zip(&pointer.numbers) {
                    self.b.store(variable, value);
                }
            }
            _ => {
                let binding = self.kept(&local.name, true, pointer.clone());
                self.bindings[id.0 as usize] = Some(binding);
            }
        }
        Ok(())
    }

    /// A variable whose declaration nothing comes to, in a `switch`.
    fn unbound(&mut self, id: LocalId) -> Value {
        let function = self.function;
        let local = &function.locals[id.0 as usize];
        let ty = self.l.ty(&local.ty);
        let variable = self.b.local(Some(&local.name), ty);
        self.bindings[id.0 as usize] = Some(Binding::Variable(variable));
        variable
    }

    /// The way to a place that has an address.
    fn path(&mut self, place: &Place) -> Result<Path> {
        Ok(match &place.kind {
            PlaceKind::Local(id) => {
                let variable = match self.bindings[id.0 as usize].clone() {
                    Some(Binding::Variable(variable)) => variable,
                    None => self.unbound(*id),
                    Some(_) => return Err(Stop),
                };
                let base = Base::Local(*id, place.ty.clone());
                Path { base, variable: Some(variable), steps: Vec::new(), numbers: Vec::new() }
            }
            PlaceKind::Table(id) => {
                Path { base: Base::Table(*id), variable: None, steps: Vec::new(), numbers: Vec::new() }
            }
            PlaceKind::Deref(pointer) => {
                let pointer = self.pointer(pointer)?;
                self.check_type(&pointer, &place.ty, place.span)?;
                let mut steps = pointer.shape.steps.clone();
                let mut numbers = pointer.numbers;
                if steps.last() == Some(&Step::Alone) {
                    steps.pop();
                    numbers.pop();
                }
                Path { base: pointer.shape.base.clone(), variable: pointer.variable, steps, numbers }
            }
            PlaceKind::Member(base, index) => {
                let mut path = self.path(base)?;
                match path.base {
                    Base::Packet => {
                        let offset = self.field_offset(&base.ty, *index);
                        let offset = self.b.u32(offset);
                        path.numbers[0] = self.b.sum(path.numbers[0], offset);
                    }
                    _ => path.steps.push(Step::Member(*index)),
                }
                path
            }
            PlaceKind::Index(base, index) => {
                let mut path = self.path(base)?;
                let index = self.number(index)?;
                match path.base {
                    Base::Packet => {
                        let size = self.l.filter.structs.size(&place.ty);
                        let offset = self.b.times(index, size);
                        path.numbers[0] = self.b.sum(path.numbers[0], offset);
                    }
                    _ => {
                        path.steps.push(Step::Index);
                        path.numbers.push(index);
                    }
                }
                path
            }
            PlaceKind::Components(..) => return Err(Stop),
        })
    }

    /// `&place`; of an array the address of its first element.
    pub(super) fn address(&mut self, place: &Place) -> Result<Pointer> {
        let mut path = self.path(place)?;
        let mut element = place.ty.clone();
        if path.base == Base::Packet {
            let shape = Shape { base: Base::Packet, steps: Vec::new(), element: Type::Void };
            return Ok(Pointer { shape: Rc::new(shape), numbers: path.numbers, variable: None });
        }
        let first = self.b.u32(0);
        if let Type::Array(of, _) = &place.ty {
            element = (**of).clone();
            path.steps.push(Step::Index);
            path.numbers.push(first);
        } else if path.steps.last() != Some(&Step::Index) {
            path.steps.push(Step::Alone);
            path.numbers.push(first);
        }
        let shape = Shape { base: path.base, steps: path.steps, element };
        Ok(Pointer { shape: Rc::new(shape), numbers: path.numbers, variable: path.variable })
    }

    /// Refuses to reach what is in a variable or table as something else.
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
        let note =
            "only the packet is reached as any type; convert the value, or use `as_uint` and the like for its bits";
        self.l.fail(span, "what is in a variable or table is reached as another type than it has", note)
    }

    fn field_offset(&self, ty: &Type, index: u32) -> u32 {
        let Type::Struct(id) = ty else { return 0 };
        let fields = self.l.filter.structs.get(*id).fields.as_deref().unwrap_or_default();
        fields.get(index as usize).map_or(0, |field| field.offset)
    }

    fn number(&mut self, expr: &Expr) -> Result<Value> {
        self.value(expr)
    }

    /// Where a place is, its indices evaluated.
    pub(super) fn spot(&mut self, place: &Place) -> Result<Spot> {
        Ok(match &place.kind {
            PlaceKind::Local(id) => match self.bindings[id.0 as usize].clone() {
                Some(Binding::Value(value)) => Spot::Value(value),
                Some(Binding::Variable(variable)) => Spot::Memory(variable),
                Some(Binding::Fixed(_) | Binding::Moving(..)) => Spot::Pointer(*id),
                None if matches!(place.ty, Type::Pointer(_)) => Spot::Pointer(*id),
                None => Spot::Memory(self.unbound(*id)),
            },
            PlaceKind::Table(id) => {
                let constant = self.l.table(*id);
                Spot::Value(self.b.add(Expression::Constant(constant)))
            }
            PlaceKind::Deref(pointer) => {
                let pointer = self.pointer(pointer)?;
                self.target(&pointer, &place.ty, place.span)?
            }
            PlaceKind::Member(base, index) => {
                let offset = self.field_offset(&base.ty, *index);
                match self.spot(base)? {
                    Spot::Packet(at, plus) => Spot::Packet(at, plus.wrapping_add(offset)),
                    Spot::Memory(pointer) => Spot::Memory(self.b.at(pointer, *index)),
                    Spot::Value(value) => Spot::Value(self.b.at(value, *index)),
                    _ => return Err(Stop),
                }
            }
            PlaceKind::Index(base, index) => {
                let spot = self.spot(base)?;
                let index = self.number(index)?;
                let Type::Array(of, count) = &base.ty else { return Err(Stop) };
                match spot {
                    Spot::Packet(at, plus) => {
                        let size = self.l.filter.structs.size(of);
                        match self.b.known_u32(index) {
                            Some(known) => Spot::Packet(at, plus.wrapping_add(known.wrapping_mul(size))),
                            None => {
                                let offset = self.b.times(index, size);
                                Spot::Packet(self.b.sum(at, offset), plus)
                            }
                        }
                    }
                    Spot::Memory(pointer) => Spot::Memory(self.element(pointer, index, *count)),
                    Spot::Value(value) => Spot::Value(self.element(value, index, *count)),
                    _ => return Err(Stop),
                }
            }
            PlaceKind::Components(base, picked) => {
                let spot = self.spot(base)?;
                Spot::Components(spot.into(), picked.clone(), base.ty.clone())
            }
        })
    }

    fn element(&mut self, base: Value, index: Value, count: u32) -> Value {
        match self.b.known_u32(index) {
            // Out of range is the last (docs/semantics.md, "Arithmetic").
            Some(known) => self.b.at(base, known.min(count - 1)),
            None => self.b.add(Expression::Access { base, index }),
        }
    }

    /// What a pointer points to, taken for a `ty`.
    pub(super) fn target(&mut self, pointer: &Pointer, ty: &Type, span: Span) -> Result<Spot> {
        self.check_type(pointer, ty, span)?;
        let (mut at, mut now, in_memory) = match &pointer.shape.base {
            Base::Packet => return Ok(Spot::Packet(pointer.numbers[0], 0)),
            Base::Table(id) => {
                let constant = self.l.table(*id);
                let ty = self.l.filter.tables[id.0 as usize].ty.clone();
                (self.b.add(Expression::Constant(constant)), ty, false)
            }
            Base::Local(_, ty) | Base::Argument(_, ty) => {
                let Some(variable) = pointer.variable else { return Err(Stop) };
                (variable, ty.clone(), true)
            }
        };
        let mut numbers = pointer.numbers.iter();
        for step in &pointer.shape.steps {
            match (step, &now) {
                (Step::Member(index), Type::Struct(id)) => {
                    let fields = self.l.filter.structs.get(*id).fields.as_deref().unwrap_or_default();
                    let Some(field) = fields.get(*index as usize) else { return Err(Stop) };
                    at = self.b.at(at, *index);
                    now = field.ty.clone();
                }
                (Step::Index, Type::Array(of, count)) => {
                    let Some(&number) = numbers.next() else { return Err(Stop) };
                    at = self.element(at, number, *count);
                    now = (**of).clone();
                }
                _ => break,
            }
        }
        let spot = if in_memory { Spot::Memory(at) } else { Spot::Value(at) };
        Ok(match (&now, ty) {
            (Type::Scalar(has), Type::Scalar(wanted)) if has != wanted => Spot::As(spot.into(), *has),
            _ => spot,
        })
    }

    /// `pointer + count`.
    pub(super) fn moved(&mut self, pointer: Pointer, count: Value, to: &Type, span: Span) -> Result<Pointer> {
        self.check_type(&pointer, to, span)?;
        let Pointer { shape, mut numbers, variable } = pointer;
        let size = match shape.base {
            Base::Packet => self.l.filter.structs.size(to),
            _ => 1,
        };
        let by = self.b.times(count, size);
        if let Some(last) = numbers.last_mut() {
            *last = self.b.sum(*last, by);
        }
        Ok(Pointer { shape, numbers, variable })
    }

    fn of_one_place(&mut self, left: &Pointer, right: &Pointer, span: Span) -> Result<(Value, Value)> {
        if left.shape != right.shape {
            let note = "only pointers into one and the same packet, table or variable are";
            return self.l.fail(span, "these pointers are not to be compared", note);
        }
        match (left.numbers.last(), right.numbers.last()) {
            (Some(&left), Some(&right)) => Ok((left, right)),
            _ => Err(Stop),
        }
    }

    /// `left - right`, in elements.
    pub(super) fn distance(&mut self, left: &Pointer, right: &Pointer, to: &Type, span: Span) -> Result<Value> {
        let (a, b) = self.of_one_place(left, right, span)?;
        let difference = self.b.binary(BinaryOperator::Subtract, a, b);
        let difference = self.b.cast(difference, naga::ScalarKind::Sint, Some(4));
        let size = match left.shape.base {
            Base::Packet => self.l.filter.structs.size(to),
            _ => 1,
        };
        if size == 1 {
            return Ok(difference);
        }
        let size = self.b.literal(naga::Literal::I32(size as i32));
        Ok(self.b.binary(BinaryOperator::Divide, difference, size))
    }

    pub(super) fn compare(&mut self, op: BinaryOp, left: &Pointer, right: &Pointer, span: Span) -> Result<Value> {
        let (a, b) = self.of_one_place(left, right, span)?;
        Ok(self.b.binary(super::arithmetic::operator(op), a, b))
    }
}
