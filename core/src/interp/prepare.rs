//! Preparation of a program, once before the first packet: constants, initial values of variables,
//! and limits on memory.

use naga::{AddressSpace, Expression, Function, Handle, TypeInner};

use super::InterpError;
use super::expression::{Context, Types};
use super::layout::{self, Layouts};
use super::value::{Pointer, Scalar, Space, Value};
use crate::map::BIND_GROUP;
use crate::program::prelude::Intrinsic;
use crate::program::{Program, for_each_operand, is_computed};

/// Maximum size of a value in scalars: the 16 KiB of private memory that a filter may have, in
/// words.
const MAX_VALUE_SCALARS: usize = 16 * 1024 / 4;

/// Maximum number of scalars in all expressions and variables of a program. There is no recursion,
/// so this bounds the interpreter's memory per packet, at 16 bytes per scalar.
const MAX_SCALARS: usize = 8 << 20;

/// A program prepared for execution.
#[derive(Debug)]
pub(super) struct PreparedProgram {
    pub(super) layouts: Layouts,
    /// Prepared functions, by handle.
    pub(super) functions: Vec<PreparedFunction>,
    /// Initial values of the private globals.
    pub(super) privates: Vec<Scalar>,
    /// Location of each global variable, by handle; `None` for kinds that filters cannot have.
    pub(super) globals: Vec<Option<Pointer>>,
}

#[derive(Debug)]
pub(super) struct PreparedFunction {
    /// Whether the function is the filter's own: its loops cost fuel, and its calls of prelude
    /// functions are traced.
    pub(super) is_filter_code: bool,
    /// The packet access that the function makes at its second argument, if it is a prelude load or
    /// store.
    pub(super) access: Option<Access>,
    /// Values that do not depend on the call, by expression handle.
    pub(super) fixed: Vec<Option<Value>>,
    /// Initial values of the local variables.
    pub(super) locals: Vec<Scalar>,
    /// Expressions that are an argument, with the argument's index.
    pub(super) arguments: Vec<(Handle<Expression>, usize)>,
    /// Expressions that are the address of a local variable, with the index of its first scalar in
    /// `locals`.
    pub(super) addresses: Vec<(Handle<Expression>, usize)>,
}

/// The packet access of a prelude load or store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    /// Number of bytes.
    pub(super) size: u32,
    pub(super) write: bool,
}

impl PreparedProgram {
    pub(super) fn new(program: &Program) -> Result<PreparedProgram, InterpError> {
        let module = program.module();
        let layouts = Layouts::new(module);
        let mut budget = MAX_SCALARS;

        // Expressions refer to earlier ones only, so in order their operands are evaluated already.
        let mut constants: Vec<Option<Value>> = Vec::with_capacity(module.global_expressions.len());
        for (handle, expression) in module.global_expressions.iter() {
            let context = Context {
                module,
                layouts: &layouts,
                types: Types::Module(program.info()),
                fixed: &constants,
                live: &[],
            };
            charge(&mut budget, &layouts, context.type_of(handle))?;
            let value = match expression {
                Expression::Constant(constant) => context.get(module.constants[*constant].init)?.clone(),
                Expression::Override(_) => return Err(unresolved_override()),
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
            } else if let Some(map) = map_index(program, variable) {
                Some(Pointer { space: Space::Map(map), slot: 0 })
            } else if variable.space == AddressSpace::Private {
                let slot = privates.len();
                charge(&mut budget, &layouts, inner)?;
                match variable.init {
                    Some(init) => privates.extend_from_slice(constants[init.index()].as_ref().unwrap().scalars()?),
                    None => layout::zero(module, inner, &mut privates)?,
                }
                Some(Pointer { space: Space::Memory, slot })
            } else {
                None
            });
        }

        let mut code =
            PreparedProgram { layouts, functions: Vec::with_capacity(module.functions.len()), privates, globals };
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
    ) -> Result<PreparedFunction, InterpError> {
        let module = program.module();
        let info = &program.info()[handle];
        let mut fixed: Vec<Option<Value>> = Vec::with_capacity(function.expressions.len());
        let mut arguments = Vec::new();
        for (handle, expression) in function.expressions.iter() {
            let context =
                Context { module, layouts: &self.layouts, types: Types::Function(info), fixed: &fixed, live: &[] };
            charge(budget, &self.layouts, context.type_of(handle))?;
            let value = match *expression {
                Expression::Constant(constant) => constants[module.constants[constant].init.index()].clone(),
                Expression::Override(_) => return Err(unresolved_override()),
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
                    let is_constant = matches!(other, Expression::Literal(_) | Expression::ZeroValue(_));
                    let mut known = is_constant || is_computed(other);
                    for_each_operand(other, |operand| known &= fixed[operand.index()].is_some());
                    if known { Some(context.evaluate(handle, other)?) } else { None }
                }
            };
            fixed.push(value);
        }

        let (mut locals, mut local_slots) = (Vec::new(), Vec::new());
        for (_, variable) in function.local_variables.iter() {
            let inner = &module.types[variable.ty].inner;
            charge(budget, &self.layouts, inner)?;
            local_slots.push(locals.len());
            match variable.init {
                Some(init) => {
                    let value = fixed[init.index()].as_ref();
                    locals.extend_from_slice(
                        value
                            .ok_or_else(|| InterpError::internal("the initial value of a variable is not constant"))?
                            .scalars()?,
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
        Ok(PreparedFunction {
            is_filter_code: !program.is_prelude(handle),
            access,
            fixed,
            locals,
            arguments,
            addresses,
        })
    }
}

/// The index of the map that a global variable holds.
fn map_index(program: &Program, variable: &naga::GlobalVariable) -> Option<usize> {
    let binding = variable.binding?;
    let map = binding.binding as usize;
    (binding.group == BIND_GROUP && map < program.maps().len()).then_some(map)
}

/// Charges a value's scalars to the budget, and rejects types and sizes that a valid filter cannot
/// have.
fn charge(budget: &mut usize, layouts: &Layouts, inner: &TypeInner) -> Result<(), InterpError> {
    let Some(slots) = layouts.slots_of(inner) else {
        return match inner {
            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => Ok(()),
            other => Err(InterpError::Unsupported(format!("values of the type {other:?}"))),
        };
    };
    if slots > MAX_VALUE_SCALARS {
        return Err(InterpError::Unsupported(format!(
            "a value of {slots} scalars; the maximum is {MAX_VALUE_SCALARS} (16 KiB of words)"
        )));
    }
    *budget = budget.checked_sub(slots).ok_or_else(|| {
        InterpError::Unsupported(format!(
            "more than {MAX_SCALARS} scalars in all values together; use fewer large arrays"
        ))
    })?;
    Ok(())
}

fn unresolved_override() -> InterpError {
    InterpError::Unsupported("an override that has no value yet".into())
}
