//! What is worked out once for a program: constants, the first values of variables, the size of
//! everything.

use naga::{AddressSpace, Expression, Function, Handle, TypeInner};

use super::InterpError;
use super::expression::{Context, Types, operands};
use super::layout::{self, Layouts};
use super::value::{Pointer, Scalar, Space, Value};
use crate::map::BIND_GROUP;
use crate::program::Program;
use crate::program::prelude::Intrinsic;

/// The largest value, in scalars: the 16 KiB that a filter's private memory may have, in words.
const MAX_VALUE: usize = 16 * 1024 / 4;

/// Scalars of all expressions and variables of a program together. No function calls itself, so
/// this bounds what a packet can make the interpreter hold: 16 bytes a scalar.
const MAX_SCALARS: usize = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) layouts: Layouts,
    /// By function handle.
    pub(super) functions: Vec<FunctionCode>,
    /// The private globals' first values.
    pub(super) privates: Vec<Scalar>,
    /// Where each global is, by its handle; `None` for what a filter cannot have.
    pub(super) globals: Vec<Option<Pointer>>,
}

#[derive(Debug)]
pub(super) struct FunctionCode {
    /// Whether it is the filter's own: its loops cost fuel, and its calls of the prelude are traced.
    pub(super) own: bool,
    /// Bytes that it loads, or stores, at its second argument, if it is that function of the prelude.
    pub(super) access: Option<Access>,
    /// By expression handle: values that no call changes.
    pub(super) fixed: Vec<Option<Value>>,
    /// The local variables' first values.
    pub(super) locals: Vec<Scalar>,
    /// Expressions that stand for an argument, and its number.
    pub(super) arguments: Vec<(Handle<Expression>, usize)>,
    /// Expressions that stand for a local variable's address, and its first scalar among `locals`.
    pub(super) addresses: Vec<(Handle<Expression>, usize)>,
}

/// What a load or store of the prelude does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) size: u32,
    pub(super) write: bool,
}

impl Code {
    pub(super) fn new(program: &Program) -> Result<Code, InterpError> {
        let module = program.module();
        let layouts = Layouts::new(module);
        let mut budget = MAX_SCALARS;

        // Expressions refer to those before them only: in order, each finds its operands done.
        let mut constants: Vec<Option<Value>> = Vec::with_capacity(module.global_expressions.len());
        for (handle, expression) in module.global_expressions.iter() {
            let context = Context {
                module,
                layouts: &layouts,
                types: Types::Module(program.info()),
                fixed: &constants,
                live: &[],
            };
            take(&mut budget, &layouts, context.inner(handle))?;
            let value = match expression {
                Expression::Constant(constant) => context.get(module.constants[*constant].init)?.clone(),
                Expression::Override(_) => return Err(unresolved()),
                other => context.evaluate(handle, other)?,
            };
            constants.push(Some(value));
        }

        let internals = program.internals();
        let (mut privates, mut globals) = (Vec::new(), Vec::new());
        for (handle, variable) in module.global_variables.iter() {
            let inner = &module.types[variable.ty].inner;
            globals.push(if handle == internals.arena {
                Some(Pointer { space: Space::Arena, slot: 0 })
            } else if handle == internals.descriptors {
                Some(Pointer { space: Space::Descriptor, slot: 0 })
            } else if handle == internals.metadata {
                Some(Pointer { space: Space::Metadata, slot: 0 })
            } else if let Some(map) = map_of(program, variable) {
                Some(Pointer { space: Space::Map(map), slot: 0 })
            } else if variable.space == AddressSpace::Private {
                let slot = privates.len();
                take(&mut budget, &layouts, inner)?;
                match variable.init {
                    Some(init) => privates.extend_from_slice(constants[init.index()].as_ref().unwrap().scalars()?),
                    None => layout::zero(module, inner, &mut privates)?,
                }
                Some(Pointer { space: Space::Memory, slot })
            } else {
                None
            });
        }

        let mut code = Code { layouts, functions: Vec::with_capacity(module.functions.len()), privates, globals };
        for (handle, function) in module.functions.iter() {
            let prepared = code.function(program, handle, function, &constants, &mut budget)?;
            code.functions.push(prepared);
        }
        Ok(code)
    }

    fn function(
        &self,
        program: &Program,
        handle: Handle<Function>,
        function: &Function,
        constants: &[Option<Value>],
        budget: &mut usize,
    ) -> Result<FunctionCode, InterpError> {
        let module = program.module();
        let info = &program.info()[handle];
        let mut fixed: Vec<Option<Value>> = Vec::with_capacity(function.expressions.len());
        let mut arguments = Vec::new();
        for (handle, expression) in function.expressions.iter() {
            let context =
                Context { module, layouts: &self.layouts, types: Types::Function(info), fixed: &fixed, live: &[] };
            take(budget, &self.layouts, context.inner(handle))?;
            let value = match *expression {
                Expression::Constant(constant) => constants[module.constants[constant].init.index()].clone(),
                Expression::Override(_) => return Err(unresolved()),
                Expression::GlobalVariable(variable) => {
                    let pointer = self.globals[variable.index()].ok_or_else(|| {
                        InterpError::Unsupported(format!(
                            "the variable `{}` outside private memory",
                            module.global_variables[variable].name.as_deref().unwrap_or("?")
                        ))
                    })?;
                    Some(Value::Pointer(pointer))
                }
                Expression::FunctionArgument(number) => {
                    arguments.push((handle, number as usize));
                    None
                }
                ref other => {
                    let mut known = true;
                    let pure = operands(other, |operand| known &= fixed[operand.index()].is_some());
                    if pure && known { Some(context.evaluate(handle, other)?) } else { None }
                }
            };
            fixed.push(value);
        }

        let (mut locals, mut local_slots) = (Vec::new(), Vec::new());
        for (_, variable) in function.local_variables.iter() {
            let inner = &module.types[variable.ty].inner;
            take(budget, &self.layouts, inner)?;
            local_slots.push(locals.len());
            match variable.init {
                Some(init) => {
                    let value = fixed[init.index()].as_ref();
                    locals.extend_from_slice(
                        value.ok_or_else(|| InterpError::internal("a variable starts with no constant"))?.scalars()?,
                    );
                }
                None => layout::zero(module, inner, &mut locals)?,
            }
        }
        let addresses = function
            .expressions
            .iter()
            .filter_map(|(handle, expression)| match expression {
                Expression::LocalVariable(variable) => Some((handle, local_slots[variable.index()])),
                _ => None,
            })
            .collect();
        let access = match program.intrinsic(handle) {
            Some(Intrinsic::Load { size, .. }) => Some(Access { size, write: false }),
            Some(Intrinsic::Store { size, .. }) => Some(Access { size, write: true }),
            _ => None,
        };
        Ok(FunctionCode { own: !program.is_prelude(handle), access, fixed, locals, arguments, addresses })
    }
}

/// The number of the map that a variable holds.
fn map_of(program: &Program, variable: &naga::GlobalVariable) -> Option<usize> {
    let binding = variable.binding?;
    let map = binding.binding as usize;
    (binding.group == BIND_GROUP && map < program.maps().len()).then_some(map)
}

/// Counts a value's scalars, and refuses what a filter within its limits cannot have.
fn take(budget: &mut usize, layouts: &Layouts, inner: &TypeInner) -> Result<(), InterpError> {
    let Some(slots) = layouts.slots_of(inner) else {
        return match inner {
            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => Ok(()),
            other => Err(InterpError::Unsupported(format!("values of the type {other:?}"))),
        };
    };
    if slots > MAX_VALUE {
        return Err(InterpError::Unsupported(format!(
            "a value of {slots} scalars: at most {MAX_VALUE} (16 KiB of words) can be held"
        )));
    }
    *budget = budget.checked_sub(slots).ok_or_else(|| {
        InterpError::Unsupported(format!("values of more than {MAX_SCALARS} scalars in all: use fewer large arrays"))
    })?;
    Ok(())
}

fn unresolved() -> InterpError {
    InterpError::Unsupported("an override that has no value yet".into())
}
