//! Evaluation of expressions that depend on their operands alone. Loads and call results are in
//! `machine`.

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{Expression, Handle, Module, TypeInner};

use super::InterpError;
use super::layout::{self, Layouts};
use super::value::{Pointer, Scalar, Value, zip};
use super::{convert, math, operators};

/// The types of a set of expressions.
#[derive(Clone, Copy)]
pub(super) enum Types<'a> {
    /// The module's `global_expressions`.
    Module(&'a ModuleInfo),
    /// The expressions of a function.
    Function(&'a FunctionInfo),
}

/// The context that expressions are evaluated in.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) module: &'a Module,
    pub(super) layouts: &'a Layouts,
    pub(super) types: Types<'a>,
    /// Values that do not depend on the call: constants, and what follows from them.
    pub(super) fixed: &'a [Option<Value>],
    /// Values of the current call.
    pub(super) live: &'a [Option<Value>],
}

impl<'a> Context<'a> {
    pub(super) fn get(&self, handle: Handle<Expression>) -> Result<&'a Value, InterpError> {
        let index = handle.index();
        let value = self.live.get(index).and_then(Option::as_ref);
        value
            .or_else(|| self.fixed.get(index).and_then(Option::as_ref))
            .ok_or_else(|| InterpError::internal(format!("expression {index} is used before it was evaluated")))
    }

    pub(super) fn type_of(&self, handle: Handle<Expression>) -> &'a TypeInner {
        match self.types {
            Types::Module(info) => info[handle].inner_with(&self.module.types),
            Types::Function(info) => info[handle].ty.inner_with(&self.module.types),
        }
    }

    /// The pointee type of a pointer; any other type itself. A pointer to a vector may be a
    /// `ValuePointer`, which [`Layouts::elements`] accepts as is.
    fn pointee(&self, inner: &'a TypeInner) -> &'a TypeInner {
        match inner {
            TypeInner::Pointer { base, .. } => &self.module.types[*base].inner,
            other => other,
        }
    }

    /// A value of the type of `handle`, from the scalars at `first` on.
    fn part(&self, handle: Handle<Expression>, scalars: &[Scalar], first: usize) -> Result<Value, InterpError> {
        let missing = || InterpError::internal("a part lies outside its composite");
        let inner = self.type_of(handle);
        if let TypeInner::Scalar(_) = inner {
            return scalars.get(first).copied().map(Value::Scalar).ok_or_else(missing);
        }
        let slots = self.layouts.slots_of(inner).ok_or_else(missing)?;
        Ok(Value::Composite(scalars.get(first..first.saturating_add(slots)).ok_or_else(missing)?.to_vec()))
    }

    fn access(&self, handle: Handle<Expression>, base: &Value, first: usize) -> Result<Value, InterpError> {
        match base {
            Value::Pointer(Pointer { space, slot }) => {
                Ok(Value::Pointer(Pointer { space: *space, slot: slot.saturating_add(first) }))
            }
            other => self.part(handle, other.scalars()?, first),
        }
    }

    /// Evaluates `expression`, which has this handle.
    pub(super) fn evaluate(&self, handle: Handle<Expression>, expression: &Expression) -> Result<Value, InterpError> {
        match *expression {
            Expression::Literal(literal) => Scalar::from_literal(literal).map(Value::Scalar),
            Expression::ZeroValue(ty) => {
                let mut scalars = Vec::new();
                let inner = &self.module.types[ty].inner;
                layout::zero(self.module, inner, &mut scalars)?;
                self.part(handle, &scalars, 0)
            }
            Expression::Compose { ref components, .. } => {
                let mut scalars = Vec::new();
                for &component in components {
                    scalars.extend_from_slice(self.get(component)?.scalars()?);
                }
                Ok(Value::Composite(scalars))
            }
            Expression::Splat { size, value } => Ok(Value::Composite(vec![self.get(value)?.scalar()?; size as usize])),
            Expression::Swizzle { size, vector, pattern } => {
                let scalars = self.get(vector)?.scalars()?;
                let picked = pattern[..size as usize].iter().map(|&c| scalars.get(c as usize).copied());
                picked
                    .collect::<Option<_>>()
                    .map(Value::Composite)
                    .ok_or_else(|| InterpError::internal("a swizzle reaches outside its vector"))
            }
            Expression::Access { base, index } => {
                let part = self.layouts.elements(self.pointee(self.type_of(base)))?;
                let mut index = self.get(index)?.scalar()?.as_index()?;
                // An index out of range selects the last element. The prelude checks the bounds of
                // its buffers itself.
                if let Some(count) = part.count {
                    index = index.min(count - 1);
                }
                self.access(handle, self.get(base)?, (index as usize).saturating_mul(part.stride))
            }
            Expression::AccessIndex { base, index } => {
                let first = self.layouts.offset(self.pointee(self.type_of(base)), index)?;
                self.access(handle, self.get(base)?, first)
            }
            Expression::Unary { op, expr } => operators::unary(op, self.get(expr)?),
            Expression::Binary { op, left, right } => {
                operators::binary(op, (self.get(left)?, self.type_of(left)), (self.get(right)?, self.type_of(right)))
            }
            Expression::Select { condition, accept, reject } => {
                let (accept, reject) = (self.get(accept)?, self.get(reject)?);
                match self.get(condition)? {
                    Value::Scalar(condition) => Ok(if condition.as_bool()? { accept } else { reject }.clone()),
                    each => zip([each, accept, reject], |[c, a, r]| Ok(if c.as_bool()? { a } else { r })),
                }
            }
            Expression::Relational { fun, argument } => math::relational(fun, self.get(argument)?),
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let mut arguments = vec![self.get(arg)?];
                for argument in [arg1, arg2, arg3].into_iter().flatten() {
                    arguments.push(self.get(argument)?);
                }
                math::math(fun, &arguments, self.type_of(arg))
            }
            Expression::As { expr, kind, convert } => convert::convert(self.get(expr)?, kind, convert),
            ref other => Err(InterpError::Unsupported(format!("the expression {other:?}"))),
        }
    }
}
