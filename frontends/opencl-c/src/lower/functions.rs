//! Functions, one for each way that they are called.

use std::rc::Rc;

use naga::{AddressSpace, Expression, FunctionArgument, FunctionResult, Handle, Statement, TypeInner};

use super::pointers::{Base, Pointer, Shape, Step};
use super::{Lowering, MAX_FUNCTIONS, Result, Stop};
use crate::ast::Space;
use crate::files::Span;
use crate::library;
use crate::tree::{Expr, Function, FunctionId, LocalId};
use crate::types::Type;
use portcullis_core::ir::builder::{Builder, Value};
use portcullis_core::program::prelude::Intrinsic;

/// A function and where its pointers point to: a way of lowering it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub function: FunctionId,
    /// For each parameter that is a pointer.
    shapes: Vec<Option<Rc<Shape>>>,
}

/// A function that has been lowered.
#[derive(Clone)]
pub(super) struct Lowered {
    handle: Handle<naga::Function>,
    /// Where the pointer that it gives back points to, as the function itself sees it.
    result: Option<Rc<Shape>>,
}

/// What a local variable of the text is here.
#[derive(Clone)]
pub(super) enum Binding {
    /// A value that does not change.
    Value(Value),
    /// A variable: a pointer to it.
    Variable(Value),
    /// A pointer that does not change.
    Fixed(Pointer),
    /// A pointer that does: what it points into, once that is known, and variables for its numbers.
    Moving(Option<Pointer>),
}

/// What an expression gave.
#[derive(Clone)]
pub(super) enum Given {
    Value(Value),
    Pointer(Pointer),
    Nothing,
}

/// A function under way.
pub(super) struct Scope<'l, 'a> {
    pub l: &'l mut Lowering<'a>,
    pub function: &'a Function,
    pub b: Builder,
    pub bindings: Vec<Option<Binding>>,
    /// The packet, where one of the parameters points into it.
    pub packet: Option<Value>,
    /// The places that compound assignments are about, innermost last, and what they held.
    pub old: Vec<(super::pointers::Spot, Option<Given>)>,
    pub loops: u32,
    pub result: Option<Rc<Shape>>,
}

impl<'a> Lowering<'a> {
    /// Lowers the filter itself and the function of flows, and with them whatever they call.
    pub(super) fn filter(&mut self) -> Result<()> {
        let shape = Rc::new(Shape { base: Base::Packet, steps: Vec::new(), element: Type::Void });
        for function in [Some(self.filter.filter), self.filter.flow].into_iter().flatten() {
            self.function(&Key { function, shapes: vec![Some(shape.clone()), None] }, true)?;
        }
        Ok(())
    }

    /// Lowers a function that nothing calls, with pointers to what it may be meant for.
    pub(super) fn alone(&mut self, id: FunctionId) {
        let function = &self.filter.functions[id.0 as usize];
        let mut shapes = Vec::new();
        for parameter in &function.parameters {
            let ty = &function.locals[parameter.0 as usize].ty;
            shapes.push(match ty {
                Type::Pointer(it) if it.to == Type::Void || it.space != Some(Space::Private) => {
                    // A table that there may be is not looked for: no more is said of the function.
                    if it.space == Some(Space::Constant) {
                        return;
                    }
                    Some(Rc::new(Shape { base: Base::Packet, steps: Vec::new(), element: Type::Void }))
                }
                Type::Pointer(it) => {
                    let base = Base::Argument(0, it.to.clone());
                    Some(Rc::new(Shape { base, steps: vec![Step::Alone], element: it.to.clone() }))
                }
                _ => None,
            });
        }
        for (i, shape) in shapes.iter_mut().enumerate() {
            if let Some(shape) = shape
                && let Base::Argument(_, ty) = shape.base.clone()
            {
                *shape = Rc::new(Shape { base: Base::Argument(i as u32, ty), ..Shape::clone(shape) });
            }
        }
        self.alone = true;
        // What is wrong has been said.
        let _ = self.function(&Key { function: id, shapes }, false);
        self.alone = false;
    }

    fn function(&mut self, key: &Key, is_filter: bool) -> Result<Lowered> {
        if let Some(lowered) = self.lowered.get(key) {
            return Ok(lowered.clone());
        }
        let filter = self.filter;
        let function = &filter.functions[key.function.0 as usize];
        let Some(body) = &function.body else { return Err(Stop) };
        if self.lowered.len() >= MAX_FUNCTIONS {
            let note = "a function with pointers counts once for each kind of place that it is called with";
            return self.fail(function.span, format!("more than {MAX_FUNCTIONS} functions"), note);
        }
        let span = self.span(function.span);
        let bindings = vec![None; function.locals.len()];
        let mut b = Builder::default();
        b.span = span;
        let mut scope = Scope { l: self, function, b, bindings, packet: None, old: Vec::new(), loops: 0, result: None };
        scope.b.function.name = Some(function.name.clone());
        scope.parameters(key, is_filter);
        scope.statements(body)?;
        let result = match &function.result {
            Type::Void => None,
            ty => Some(scope.l.ty(ty)),
        };
        scope.b.function.result = result.map(|ty| FunctionResult { ty, binding: None });
        scope.end(result);
        let Scope { b, result, l, .. } = scope;
        let handle = l.module.functions.append(b.finish(), span);
        let lowered = Lowered { handle, result };
        l.lowered.insert(key.clone(), lowered.clone());
        Ok(lowered)
    }
}

impl Scope<'_, '_> {
    fn argument(&mut self, name: &str, ty: Handle<naga::Type>) -> Value {
        let index = self.b.function.arguments.len() as u32;
        let name = (!name.is_empty()).then(|| name.to_owned());
        self.b.function.arguments.push(FunctionArgument { name, ty, binding: None });
        self.b.add(Expression::FunctionArgument(index))
    }

    fn parameters(&mut self, key: &Key, is_filter: bool) {
        let function = self.function;
        let number = self.l.ty(&Type::Scalar(crate::types::Scalar::UInt));
        if key.shapes.iter().flatten().any(|shape| shape.base == Base::Packet) {
            self.packet = Some(self.argument("pkt", number));
        }
        for (i, (parameter, shape)) in function.parameters.iter().zip(&key.shapes).enumerate() {
            let local = &function.locals[parameter.0 as usize];
            let binding = match shape {
                Some(shape) if is_filter => {
                    let start = self.b.u32(0);
                    self.kept(
                        &local.name,
                        local.changes,
                        Pointer { shape: shape.clone(), numbers: vec![start], variable: None },
                    )
                }
                Some(shape) => {
                    let variable = match &shape.base {
                        Base::Argument(_, ty) => {
                            let base = self.l.ty(ty);
                            let inner = TypeInner::Pointer { base, space: AddressSpace::Function };
                            let ty =
                                self.l.module.types.insert(naga::Type { name: None, inner }, naga::Span::UNDEFINED);
                            Some(self.argument(&local.name, ty))
                        }
                        _ => None,
                    };
                    let numbers = (0..shape.numbers()).map(|_| self.argument(&local.name, number)).collect();
                    let pointer = Pointer { shape: shape.clone(), numbers, variable };
                    self.kept(&local.name, local.changes, pointer)
                }
                None if is_filter => {
                    // The length as it is now: `adjust_head` and `adjust_tail` leave the parameter alone.
                    if !local.used {
                        continue;
                    }
                    let value = self.prelude(Intrinsic::PktLen, Vec::new());
                    self.b.name(value, &local.name);
                    self.variable_or_value(*parameter, value)
                }
                None => {
                    let ty = self.l.ty(&local.ty);
                    let value = self.argument(&local.name, ty);
                    self.variable_or_value(*parameter, value)
                }
            };
            self.bindings[i] = Some(binding);
        }
    }

    fn variable_or_value(&mut self, id: LocalId, value: Value) -> Binding {
        let local = &self.function.locals[id.0 as usize];
        if !local.changes {
            return Binding::Value(value);
        }
        let ty = self.l.ty(&local.ty);
        let variable = self.b.local(Some(&local.name), ty);
        self.b.store(variable, value);
        Binding::Variable(variable)
    }

    /// A pointer that a name stands for.
    pub(super) fn kept(&mut self, name: &str, changes: bool, pointer: Pointer) -> Binding {
        if !changes {
            return Binding::Fixed(pointer);
        }
        let number = self.l.ty(&Type::Scalar(crate::types::Scalar::UInt));
        let mut variables = Vec::new();
        for &value in &pointer.numbers {
            let variable = self.b.local(Some(name), number);
            self.b.store(variable, value);
            variables.push(variable);
        }
        Binding::Moving(Some(Pointer { numbers: variables, ..pointer }))
    }

    /// Ends the function: who comes here without a `return` gives zero, where C leaves it open.
    fn end(&mut self, result: Option<Handle<naga::Type>>) {
        if self.b.leaves() {
            return;
        }
        let value = result.map(|ty| self.b.add(Expression::ZeroValue(ty)));
        self.b.push(Statement::Return { value });
    }

    /// A call of one of the prelude's functions that takes the packet, or of one that does not.
    pub(super) fn prelude(&mut self, intrinsic: Intrinsic, arguments: Vec<Value>) -> Value {
        let table = portcullis_core::program::prelude::FUNCTIONS;
        let name = match intrinsic {
            Intrinsic::MapIsNew => library::MAP_IS_NEW,
            _ => table.iter().find(|(_, known)| *known == intrinsic).map_or("", |(name, _)| name),
        };
        self.helper(name, intrinsic.takes_packet(), arguments)
    }

    /// The same by name; what it gives, or for those that give nothing any value.
    pub(super) fn helper(&mut self, name: &str, takes_packet: bool, mut arguments: Vec<Value>) -> Value {
        let function = self.l.named[name];
        if takes_packet && let Some(packet) = self.packet {
            arguments.insert(0, packet);
        }
        let gives = self.l.module.functions[function].result.is_some();
        match self.b.call(function, arguments, gives) {
            Some(result) => result,
            None => self.b.u32(0),
        }
    }

    /// A call of one of the filter's own functions.
    pub(super) fn call(&mut self, id: FunctionId, arguments: &[Expr], ty: &Type, span: Span) -> Result<Given> {
        let filter = self.l.filter;
        let function = &filter.functions[id.0 as usize];
        let mut given = Vec::new();
        for (argument, parameter) in arguments.iter().zip(&function.parameters) {
            let value = self.expr(argument)?;
            if let Given::Pointer(pointer) = &value {
                let wanted = &function.locals[parameter.0 as usize].ty;
                self.check_space(pointer, wanted, argument.span)?;
            }
            given.push(value);
        }
        let (mut shapes, mut values) = (Vec::new(), Vec::new());
        let mut packet = None;
        for (i, given) in given.iter().enumerate() {
            match given {
                Given::Pointer(pointer) => {
                    if pointer.shape.base == Base::Packet {
                        packet = self.packet;
                    }
                    if let Some(variable) = pointer.variable {
                        values.push(variable);
                    }
                    values.extend(&pointer.numbers);
                    let base = match &pointer.shape.base {
                        Base::Local(_, ty) | Base::Argument(_, ty) => Base::Argument(i as u32, ty.clone()),
                        other => other.clone(),
                    };
                    shapes.push(Some(Rc::new(Shape { base, ..Shape::clone(&pointer.shape) })));
                }
                Given::Value(value) => {
                    values.push(*value);
                    shapes.push(None);
                }
                Given::Nothing => return Err(Stop),
            }
        }
        if let Some(packet) = packet {
            values.insert(0, packet);
        }
        let lowered = self.l.function(&Key { function: id, shapes }, false)?;
        let gives = !matches!(ty, Type::Void);
        self.b.span = self.l.span(span);
        let Some(result) = self.b.call(lowered.handle, values, gives) else { return Ok(Given::Nothing) };
        if !matches!(ty, Type::Pointer(_)) {
            return Ok(Given::Value(result));
        }
        let Some(shape) = lowered.result else {
            return self.l.fail(span, format!("`{}` never gives its pointer back", function.name), "");
        };
        // What is the function's parameter is the caller's argument.
        let (base, variable) = match &shape.base {
            Base::Argument(i, _) => match given.get(*i as usize) {
                Some(Given::Pointer(pointer)) => (pointer.shape.base.clone(), pointer.variable),
                _ => return Err(Stop),
            },
            other => (other.clone(), None),
        };
        let shape = Rc::new(Shape { base, ..Shape::clone(&shape) });
        Ok(Given::Pointer(Pointer { shape, numbers: vec![result], variable }))
    }

    /// `return` of a pointer: all of a function's go to one place.
    pub(super) fn return_pointer(&mut self, pointer: &Pointer, span: Span) -> Result<Value> {
        if let Base::Local(..) = pointer.shape.base {
            let note = "the variable is gone when the function has returned: let the caller give a pointer to one";
            return self.l.fail(span, "a pointer to a local variable is given back", note);
        }
        let [number] = pointer.numbers[..] else {
            let note = "such a pointer has several indices: give back the index";
            return self.l.fail(span, "a pointer into an array of arrays or structures is given back", note);
        };
        match &self.result {
            Some(shape) if *shape != pointer.shape => {
                let note = "where a pointer points to is known when the filter is compiled";
                self.l.fail(span, "this pointer points elsewhere than the one given back before", note)
            }
            _ => {
                self.result = Some(pointer.shape.clone());
                Ok(number)
            }
        }
    }
}
