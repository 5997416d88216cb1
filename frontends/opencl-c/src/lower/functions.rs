//! Lowers functions to naga, specialised (monomorphised) by the *shape* of each pointer argument:
//! the object that it points into, and the path of members and indices.

use std::rc::Rc;

use naga::{AddressSpace, Expression, FunctionArgument, FunctionResult, Handle, Statement, TypeInner};

use super::shapes::{Base, PathStep, Pointer, Shape};
use super::{ErrorReported, Lowering, MAX_FUNCTIONS, Result};
use crate::files::Span;
use crate::library;
use crate::tree::{Expr, Function, FunctionId, LocalId};
use crate::types::Space;
use crate::types::Type;
use portcullis_core::ir::builder::{FunctionBuilder, Value};
use portcullis_core::program::prelude::Intrinsic;

/// A function and the shapes of its pointer arguments: what a lowered function is keyed by.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Specialization {
    pub function: FunctionId,
    /// The shape of each parameter that is a pointer.
    shapes: Vec<Option<Rc<Shape>>>,
}

/// A lowered function.
#[derive(Clone)]
pub(super) struct LoweredFunction {
    handle: Handle<naga::Function>,
    /// Shape of the returned pointer, relative to the function's own parameters.
    result: Option<Rc<Shape>>,
}

/// Lowering of a local variable.
#[derive(Clone)]
pub(super) enum Binding {
    /// A value that does not change.
    Value(Value),
    /// A naga variable: a pointer to it.
    Variable(Value),
    /// A pointer that does not change.
    ConstPointer(Pointer),
    /// A pointer that changes: its shape, once known, and variables for its indices.
    MutablePointer(Option<Pointer>),
}

/// The result of lowering an expression.
#[derive(Clone)]
pub(super) enum LoweredValue {
    Value(Value),
    Pointer(Pointer),
    Nothing,
}

/// State of lowering one function.
pub(super) struct FunctionLowering<'l, 'a> {
    pub lowering: &'l mut Lowering<'a>,
    pub function: &'a Function,
    pub builder: FunctionBuilder,
    pub bindings: Vec<Option<Binding>>,
    /// The packet argument, if a parameter points into the packet.
    pub packet: Option<Value>,
    /// Targets of the enclosing compound assignments, innermost last, with their old values once
    /// read.
    pub update_targets: Vec<(super::shapes::Location, Option<LoweredValue>)>,
    pub loops: u32,
    pub result: Option<Rc<Shape>>,
}

impl<'a> Lowering<'a> {
    /// Lowers the filter and the flow function, and the functions that they call.
    pub(super) fn lower_entry_points(&mut self) -> Result<()> {
        let shape = Rc::new(Shape { base: Base::Packet, steps: Vec::new(), element: Type::Void });
        for function in [Some(self.filter.filter), self.filter.flow].into_iter().flatten() {
            self.specialize(&Specialization { function, shapes: vec![Some(shape.clone()), None] }, true)?;
        }
        Ok(())
    }

    /// Lowers a function that is never called, with plausible targets for its pointers.
    pub(super) fn lower_uncalled(&mut self, id: FunctionId) {
        let function = &self.filter.functions[id.0 as usize];
        let mut shapes = Vec::new();
        for parameter in &function.parameters {
            let ty = &function.locals[parameter.0 as usize].ty;
            shapes.push(match ty {
                Type::Pointer(it) if it.to == Type::Void || it.space != Some(Space::Private) => {
                    // No table to assume: skip the function.
                    if it.space == Some(Space::Constant) {
                        return;
                    }
                    Some(Rc::new(Shape { base: Base::Packet, steps: Vec::new(), element: Type::Void }))
                }
                Type::Pointer(it) => {
                    let base = Base::Argument(0, it.to.clone());
                    Some(Rc::new(Shape { base, steps: vec![PathStep::Single], element: it.to.clone() }))
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
        self.is_uncalled = true;
        // Errors have been reported.
        let _ = self.specialize(&Specialization { function: id, shapes }, false);
        self.is_uncalled = false;
    }

    fn specialize(&mut self, key: &Specialization, is_filter: bool) -> Result<LoweredFunction> {
        if let Some(lowered) = self.lowered.get(key) {
            return Ok(lowered.clone());
        }
        let filter = self.filter;
        let function = &filter.functions[key.function.0 as usize];
        let Some(body) = &function.body else { return Err(ErrorReported) };
        if self.lowered.len() >= MAX_FUNCTIONS {
            let note = "a function with pointer parameters counts once for each kind of target";
            return self.fail(function.span, format!("more than {MAX_FUNCTIONS} functions"), note);
        }
        let span = self.span(function.span);
        let bindings = vec![None; function.locals.len()];
        let mut builder = FunctionBuilder::default();
        builder.span = span;
        let mut scope = FunctionLowering {
            lowering: self,
            function,
            builder,
            bindings,
            packet: None,
            update_targets: Vec::new(),
            loops: 0,
            result: None,
        };
        scope.builder.function.name = Some(function.name.clone());
        scope.parameters(key, is_filter);
        scope.statements(body)?;
        let result = match &function.result {
            Type::Void => None,
            ty => Some(scope.lowering.ty(ty)),
        };
        scope.builder.function.result = result.map(|ty| FunctionResult { ty, binding: None });
        scope.finish_body(result);
        let FunctionLowering { builder, result, lowering, .. } = scope;
        let handle = lowering.module.functions.append(builder.finish(), span);
        let lowered = LoweredFunction { handle, result };
        lowering.lowered.insert(key.clone(), lowered.clone());
        Ok(lowered)
    }
}

impl FunctionLowering<'_, '_> {
    fn argument(&mut self, name: &str, ty: Handle<naga::Type>) -> Value {
        let index = self.builder.function.arguments.len() as u32;
        let name = (!name.is_empty()).then(|| name.to_owned());
        self.builder.function.arguments.push(FunctionArgument { name, ty, binding: None });
        self.builder.add(Expression::FunctionArgument(index))
    }

    fn parameters(&mut self, key: &Specialization, is_filter: bool) {
        let function = self.function;
        let number = self.lowering.ty(&Type::Scalar(crate::types::Scalar::UInt));
        if key.shapes.iter().flatten().any(|shape| shape.base == Base::Packet) {
            self.packet = Some(self.argument("pkt", number));
        }
        for (i, (parameter, shape)) in function.parameters.iter().zip(&key.shapes).enumerate() {
            let local = &function.locals[parameter.0 as usize];
            let binding = match shape {
                Some(shape) if is_filter => {
                    let start = self.builder.u32(0);
                    self.bind_pointer(
                        &local.name,
                        local.is_mutated,
                        Pointer { shape: shape.clone(), indices: vec![start], variable: None },
                    )
                }
                Some(shape) => {
                    let variable = match &shape.base {
                        Base::Argument(_, ty) => {
                            let base = self.lowering.ty(ty);
                            let inner = TypeInner::Pointer { base, space: AddressSpace::Function };
                            let ty = self
                                .lowering
                                .module
                                .types
                                .insert(naga::Type { name: None, inner }, naga::Span::UNDEFINED);
                            Some(self.argument(&local.name, ty))
                        }
                        _ => None,
                    };
                    let indices = (0..shape.index_count()).map(|_| self.argument(&local.name, number)).collect();
                    let pointer = Pointer { shape: shape.clone(), indices, variable };
                    self.bind_pointer(&local.name, local.is_mutated, pointer)
                }
                None if is_filter => {
                    // The current length, as changed by `adjust_head` and `adjust_tail`; the
                    // parameter itself stays.
                    if !local.is_used {
                        continue;
                    }
                    let value = self.call_intrinsic(Intrinsic::PktLen, Vec::new());
                    self.builder.name(value, &local.name);
                    self.variable_or_value(*parameter, value)
                }
                None => {
                    let ty = self.lowering.ty(&local.ty);
                    let value = self.argument(&local.name, ty);
                    self.variable_or_value(*parameter, value)
                }
            };
            self.bindings[i] = Some(binding);
        }
    }

    fn variable_or_value(&mut self, id: LocalId, value: Value) -> Binding {
        let local = &self.function.locals[id.0 as usize];
        if !local.is_mutated {
            return Binding::Value(value);
        }
        let ty = self.lowering.ty(&local.ty);
        let variable = self.builder.local(Some(&local.name), ty);
        self.builder.store(variable, value);
        Binding::Variable(variable)
    }

    /// Binds a local name to a pointer.
    pub(super) fn bind_pointer(&mut self, name: &str, is_mutated: bool, pointer: Pointer) -> Binding {
        if !is_mutated {
            return Binding::ConstPointer(pointer);
        }
        let number = self.lowering.ty(&Type::Scalar(crate::types::Scalar::UInt));
        let mut variables = Vec::new();
        for &value in &pointer.indices {
            let variable = self.builder.local(Some(name), number);
            self.builder.store(variable, value);
            variables.push(variable);
        }
        Binding::MutablePointer(Some(Pointer { indices: variables, ..pointer }))
    }

    /// Ends the function; without a `return` it returns zero, which C leaves undefined.
    fn finish_body(&mut self, result: Option<Handle<naga::Type>>) {
        if self.builder.diverges() {
            return;
        }
        let value = result.map(|ty| self.builder.add(Expression::ZeroValue(ty)));
        self.builder.push(Statement::Return { value });
    }

    /// Calls a function of the prelude.
    pub(super) fn call_intrinsic(&mut self, intrinsic: Intrinsic, arguments: Vec<Value>) -> Value {
        let table = portcullis_core::program::prelude::FUNCTIONS;
        let name = match intrinsic {
            Intrinsic::MapIsNew => library::MAP_IS_NEW,
            _ => table.iter().find(|(_, known)| *known == intrinsic).map_or("", |(name, _)| name),
        };
        self.call_by_name(name, intrinsic.takes_packet(), arguments)
    }

    /// Calls a prelude or map function by name; returns a dummy value if it has no result.
    pub(super) fn call_by_name(&mut self, name: &str, takes_packet: bool, mut arguments: Vec<Value>) -> Value {
        let function = self.lowering.prelude_functions[name];
        if takes_packet && let Some(packet) = self.packet {
            arguments.insert(0, packet);
        }
        let has_result = self.lowering.module.functions[function].result.is_some();
        match self.builder.call(function, arguments, has_result) {
            Some(result) => result,
            None => self.builder.u32(0),
        }
    }

    /// Calls a function of the filter.
    pub(super) fn call(&mut self, id: FunctionId, arguments: &[Expr], ty: &Type, span: Span) -> Result<LoweredValue> {
        let filter = self.lowering.filter;
        let function = &filter.functions[id.0 as usize];
        let mut given = Vec::new();
        for (argument, parameter) in arguments.iter().zip(&function.parameters) {
            let value = self.expr(argument)?;
            if let LoweredValue::Pointer(pointer) = &value {
                let wanted = &function.locals[parameter.0 as usize].ty;
                self.check_space(pointer, wanted, argument.span)?;
            }
            given.push(value);
        }
        let (mut shapes, mut values) = (Vec::new(), Vec::new());
        let mut packet = None;
        for (i, given) in given.iter().enumerate() {
            match given {
                LoweredValue::Pointer(pointer) => {
                    if pointer.shape.base == Base::Packet {
                        packet = self.packet;
                    }
                    if let Some(variable) = pointer.variable {
                        values.push(variable);
                    }
                    values.extend(&pointer.indices);
                    let base = match &pointer.shape.base {
                        Base::Local(_, ty) | Base::Argument(_, ty) => Base::Argument(i as u32, ty.clone()),
                        other => other.clone(),
                    };
                    shapes.push(Some(Rc::new(Shape { base, ..Shape::clone(&pointer.shape) })));
                }
                LoweredValue::Value(value) => {
                    values.push(*value);
                    shapes.push(None);
                }
                LoweredValue::Nothing => return Err(ErrorReported),
            }
        }
        if let Some(packet) = packet {
            values.insert(0, packet);
        }
        let lowered = self.lowering.specialize(&Specialization { function: id, shapes }, false)?;
        let has_result = !matches!(ty, Type::Void);
        self.builder.span = self.lowering.span(span);
        let Some(result) = self.builder.call(lowered.handle, values, has_result) else {
            return Ok(LoweredValue::Nothing);
        };
        if !matches!(ty, Type::Pointer(_)) {
            return Ok(LoweredValue::Value(result));
        }
        let Some(shape) = lowered.result else {
            return self.lowering.fail(span, format!("`{}` never returns its pointer", function.name), "");
        };
        // A shape relative to the callee's parameter becomes one relative to the caller's argument.
        let (base, variable) = match &shape.base {
            Base::Argument(i, _) => match given.get(*i as usize) {
                Some(LoweredValue::Pointer(pointer)) => (pointer.shape.base.clone(), pointer.variable),
                _ => return Err(ErrorReported),
            },
            other => (other.clone(), None),
        };
        let shape = Rc::new(Shape { base, ..Shape::clone(&shape) });
        Ok(LoweredValue::Pointer(Pointer { shape, indices: vec![result], variable }))
    }

    /// Lowers `return` of a pointer; all returned pointers of a function must have one shape.
    pub(super) fn return_pointer(&mut self, pointer: &Pointer, span: Span) -> Result<Value> {
        if let Base::Local(..) = pointer.shape.base {
            let note = "the variable ends with the function: let the caller pass a pointer";
            return self.lowering.fail(span, "returning a pointer to a local variable", note);
        }
        let [number] = pointer.indices[..] else {
            let note = "such a pointer has several indices: return an index instead";
            return self.lowering.fail(span, "returning a pointer into an array of arrays or structures", note);
        };
        match &self.result {
            Some(shape) if *shape != pointer.shape => {
                let note = "the target of a pointer must be known at compile time";
                self.lowering.fail(span, "this pointer has another target than the one returned before", note)
            }
            _ => {
                self.result = Some(pointer.shape.clone());
                Ok(number)
            }
        }
    }
}
