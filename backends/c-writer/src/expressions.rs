//! Expressions of one function.
//!
//! naga's `Emit` says when an expression is evaluated. Expressions that read no memory may be
//! evaluated later, so they are written where they are used, if that is a single place. Reads of
//! memory stay *pending* until they are used, or until a statement might change what they read;
//! then they get a name (`naming`).
//!
//! Operators on vectors are written component by component in all languages, so that only those on
//! scalars need the right semantics. The devices work that way too.

use naga::{
    ArraySize, BinaryOperator, Expression, Handle, Literal, MathFunction, RelationalFunction, Scalar, ScalarKind,
    TypeInner,
};
use portcullis_core::program::prelude::Intrinsic;

use crate::builtins::{MatrixOperation, is_componentwise, unsupported_builtin};
use crate::c_expr::CExpr;
use crate::function::FunctionWriter;
use crate::types::{COMPONENTS, unsupported_type};
use crate::{Result, WriteError};

/// The C lvalue that a pointer refers to.
pub(crate) enum Place {
    /// An lvalue.
    Value(CExpr),
    /// A component of a vector whose index is known only at run time.
    Component { scalar: Scalar, size: usize, vector: CExpr, index: CExpr },
}

impl<'a> FunctionWriter<'_, 'a> {
    /// Writes the value of an expression.
    pub(crate) fn expression(&mut self, handle: Handle<Expression>) -> Result<CExpr> {
        self.value(handle, None)
    }

    /// Writes the negation of a condition.
    pub(crate) fn negated(&mut self, handle: Handle<Expression>) -> Result<CExpr> {
        use BinaryOperator as B;
        if !self.baked.contains_key(&handle) {
            match self.function.expressions[handle] {
                Expression::Unary { op: naga::UnaryOperator::LogicalNot, expr } => return self.expression(expr),
                // With floats, `!(a < b)` differs from `a >= b` if one is NaN.
                Expression::Binary { op, left, right } if self.scalar(left)?.kind != ScalarKind::Float => {
                    let opposite = match op {
                        B::Equal => B::NotEqual,
                        B::NotEqual => B::Equal,
                        B::Less => B::GreaterEqual,
                        B::LessEqual => B::Greater,
                        B::Greater => B::LessEqual,
                        B::GreaterEqual => B::Less,
                        _ => return Ok(CExpr::unary("!", self.expression(handle)?)),
                    };
                    let scalar = self.scalar(left)?;
                    let (left, right) = (self.expression(left)?, self.expression(right)?);
                    return self.writer.binary(opposite, scalar, left, right, false);
                }
                _ => {}
            }
        }
        Ok(CExpr::unary("!", self.expression(handle)?))
    }

    /// Writes the components of a vector.
    fn components(&mut self, handle: Handle<Expression>) -> Result<Vec<CExpr>> {
        (0..self.vector_size(handle).unwrap_or(1)).map(|i| self.value(handle, Some(i))).collect()
    }

    /// Writes the value of an expression, or one component if it is a vector.
    fn value(&mut self, handle: Handle<Expression>, component: Option<usize>) -> Result<CExpr> {
        let size = self.vector_size(handle);
        let component = component.filter(|_| size.is_some());
        let pick = |text: CExpr| match component {
            Some(component) => text.with(&format!(".{}", COMPONENTS[component])),
            None => text,
        };
        if let Some(name) = self.baked.get(&handle) {
            return Ok(pick(CExpr::atom(name)));
        }
        let function = self.function;
        match function.expressions[handle] {
            Expression::Literal(literal) => Ok(CExpr::atom(self.writer.literal(literal)?)),
            Expression::Constant(constant) => Ok(pick(CExpr::atom(self.writer.constant(constant)?))),
            Expression::ZeroValue(ty) => match component {
                Some(_) => Ok(CExpr::atom(self.writer.scalar_zero(self.scalar(handle)?)?)),
                None => Ok(CExpr::atom(self.writer.zero(ty)?)),
            },
            Expression::FunctionArgument(index) => Ok(pick(CExpr::atom(&self.arguments[index as usize]))),
            Expression::CallResult(_) | Expression::AtomicResult { .. } => match self.calls.get(&handle) {
                Some(text) => Ok(pick(text.clone())),
                None => Err(WriteError::internal("a call's result is used before the call")),
            },
            Expression::Load { pointer } => Ok(pick(self.load(pointer)?)),
            Expression::Access { base, index } => Ok(pick(self.element(base, index)?)),
            Expression::AccessIndex { base, index } => match (self.vector_size(base), component) {
                (Some(_), _) => self.value(base, Some(index as usize)),
                _ => {
                    let base_text = self.expression(base)?;
                    let member = self.member(base, index)?;
                    Ok(pick(base_text.with(&member)))
                }
            },
            Expression::Compose { ty, ref components } if size.is_none() => {
                let parts =
                    components.iter().map(|&part| Ok(self.expression(part)?.text)).collect::<Result<Vec<_>>>()?;
                let name = self.writer.type_name(ty)?;
                let wrapped = !matches!(self.writer.module.types[ty].inner, TypeInner::Struct { .. });
                let parts = parts.join(", ");
                let members = if wrapped { format!("{{{parts}}}") } else { parts };
                Ok(CExpr::atom(self.writer.dialect.structure(&name, &members)))
            }
            Expression::Select { condition, accept, reject } if self.vector_size(condition).is_none() => {
                let condition = self.expression(condition)?;
                let (accept, reject) = (self.value(accept, component)?, self.value(reject, component)?);
                Ok(CExpr::conditional(condition, accept, reject))
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } if !is_componentwise(fun) => {
                let arguments: Vec<_> = [Some(arg), arg1, arg2, arg3].into_iter().flatten().collect();
                Ok(pick(self.whole_math(handle, fun, &arguments)?))
            }
            Expression::Binary { op, left, right } if self.has_matrix(left) || self.has_matrix(right) => {
                Ok(pick(self.matrix_operator(handle, op, left, right)?))
            }
            ref expression => match (size, component) {
                (Some(size), None) => {
                    let parts = (0..size).map(|i| Ok(self.value(handle, Some(i))?.text)).collect::<Result<Vec<_>>>()?;
                    let name = self.writer.inner_name(self.inner(handle))?;
                    Ok(CExpr::atom(self.writer.dialect.vector(&name, &parts)))
                }
                _ => self.scalar_value(handle, expression, component.unwrap_or(0)),
            },
        }
    }

    /// Writes a scalar, or component `at` of a vector.
    fn scalar_value(&mut self, handle: Handle<Expression>, expression: &Expression, at: usize) -> Result<CExpr> {
        let component = Some(at);
        match *expression {
            Expression::Splat { value, .. } => self.expression(value),
            Expression::Swizzle { vector, pattern, .. } => self.value(vector, Some(pattern[at] as usize)),
            Expression::Compose { ref components, .. } => {
                let mut first = 0;
                for &part in components {
                    let count = self.vector_size(part).unwrap_or(1);
                    if at < first + count {
                        return self.value(part, Some(at - first));
                    }
                    first += count;
                }
                Err(WriteError::internal("a vector of too few components"))
            }
            Expression::Unary { op, expr } => {
                let value = self.value(expr, component)?;
                self.writer.unary(op, self.scalar(expr)?, value)
            }
            Expression::Binary { op, left, right } => {
                let scalar = self.scalar(left)?;
                let safe = self.is_safe_divisor(right);
                let (left, right) = match op {
                    BinaryOperator::And | BinaryOperator::InclusiveOr | BinaryOperator::ExclusiveOr => {
                        (self.bitwise_operand(left, component)?, self.bitwise_operand(right, component)?)
                    }
                    _ => (self.value(left, component)?, self.value(right, component)?),
                };
                self.writer.binary(op, scalar, left, right, safe)
            }
            Expression::Select { condition, accept, reject } => {
                let condition = self.value(condition, component)?;
                let (accept, reject) = (self.value(accept, component)?, self.value(reject, component)?);
                Ok(CExpr::conditional(condition, accept, reject))
            }
            Expression::Relational { fun, argument } => {
                let operator = match fun {
                    RelationalFunction::All => self.writer.logical(true),
                    RelationalFunction::Any => self.writer.logical(false),
                    RelationalFunction::IsNan | RelationalFunction::IsInf => {
                        let value = self.value(argument, component)?;
                        return Ok(self.writer.float_class(fun == RelationalFunction::IsNan, value));
                    }
                };
                let parts = self.components(argument)?;
                let all = parts.into_iter().reduce(|a, b| CExpr::binary(operator, a, b));
                all.ok_or_else(|| WriteError::internal("a vector without components"))
            }
            Expression::As { expr, kind, convert } => {
                let value = self.value(expr, component)?;
                let from = self.scalar(expr)?;
                let to = Scalar { kind, width: convert.unwrap_or(from.width) };
                self.writer.convert(from, to, convert.is_some(), value)
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let scalar = self.scalar(arg)?;
                let arguments = [Some(arg), arg1, arg2, arg3].into_iter().flatten();
                let arguments = arguments.map(|a| self.value(a, component)).collect::<Result<Vec<_>>>()?;
                self.writer.math(fun, scalar, &arguments)
            }
            _ => Err(WriteError::Unsupported(format!("the expression {:?}", self.function.expressions[handle]))),
        }
    }

    /// Writes an operand of a bitwise operator, with literals in hexadecimal.
    fn bitwise_operand(&mut self, handle: Handle<Expression>, component: Option<usize>) -> Result<CExpr> {
        match self.function.expressions[handle] {
            Expression::Literal(Literal::U32(value)) if value > 9 => Ok(CExpr::atom(format!("0x{value:x}u"))),
            _ => self.value(handle, component),
        }
    }

    /// Whether any integer can be divided by the value: a constant other than 0 and -1.
    fn is_safe_divisor(&self, handle: Handle<Expression>) -> bool {
        let literal = match self.function.expressions[handle] {
            Expression::Literal(literal) => literal,
            Expression::Splat { value, .. } => return self.is_safe_divisor(value),
            Expression::Constant(constant) => {
                let module = self.writer.module;
                match module.global_expressions[module.constants[constant].init] {
                    Expression::Literal(literal) => literal,
                    _ => return false,
                }
            }
            _ => return false,
        };
        match literal {
            Literal::U32(value) => value != 0,
            Literal::U64(value) => value != 0,
            Literal::I32(value) => value != 0 && value != -1,
            Literal::I64(value) => value != 0 && value != -1,
            _ => false,
        }
    }

    fn has_matrix(&self, handle: Handle<Expression>) -> bool {
        matches!(self.inner(handle), TypeInner::Matrix { .. })
    }

    fn matrix_operator(
        &mut self,
        handle: Handle<Expression>,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<CExpr> {
        let what = match op {
            BinaryOperator::Add => MatrixOperation::Sum("+"),
            BinaryOperator::Subtract => MatrixOperation::Sum("-"),
            BinaryOperator::Multiply => MatrixOperation::Product,
            other => return Err(WriteError::Unsupported(format!("{other:?} of matrices"))),
        };
        let types = [self.inner(left), self.inner(right)];
        let arguments = [self.expression(left)?, self.expression(right)?];
        self.writer.matrix(what, types, self.inner(handle), &arguments)
    }

    /// Writes a built-in that takes vectors or matrices as a whole.
    fn whole_math(
        &mut self,
        handle: Handle<Expression>,
        fun: MathFunction,
        arguments: &[Handle<Expression>],
    ) -> Result<CExpr> {
        use MathFunction as M;
        let first = self.inner(arguments[0]);
        if fun == M::Dot {
            let scalar = self.scalar(arguments[0])?;
            let (left, right) = (self.components(arguments[0])?, self.components(arguments[1])?);
            return self.writer.dot(scalar, left, right);
        }
        let texts = arguments.iter().map(|&a| self.expression(a)).collect::<Result<Vec<_>>>()?;
        match fun {
            M::Transpose => self.writer.matrix(MatrixOperation::Transpose, [first; 2], self.inner(handle), &texts),
            M::Determinant => self.writer.matrix(MatrixOperation::Determinant, [first; 2], self.inner(handle), &texts),
            M::Modf | M::Frexp => {
                let Some(ty) = self.info[handle].ty.handle() else { return Err(unsupported_builtin(fun)) };
                let result = self.writer.type_name(ty)?;
                let value = texts.into_iter().next().ok_or_else(|| unsupported_builtin(fun))?;
                self.writer.split(fun, &result, self.vector_size(arguments[0]), value)
            }
            M::Cross | M::Distance | M::Length | M::Normalize | M::FaceForward | M::Reflect | M::Refract => {
                match self.vector_size(arguments[0]) {
                    Some(size) => self.writer.geometry(fun, size, &texts),
                    // For scalars: |x|, |a - b|.
                    None => match (fun, texts.as_slice()) {
                        (M::Length, [_]) => self.writer.math(M::Abs, Scalar::F32, &texts),
                        (M::Distance, [a, b]) => {
                            let difference = CExpr::binary("-", a.clone(), b.clone());
                            self.writer.math(M::Abs, Scalar::F32, &[difference])
                        }
                        _ => Err(unsupported_builtin(fun)),
                    },
                }
            }
            _ => self.writer.pack(fun, &texts),
        }
    }

    /// The suffix `.name` or `.at[index]`, for types other than vectors.
    fn member(&self, base: Handle<Expression>, index: u32) -> Result<String> {
        let (inner, handle) = self.pointee(base);
        match (inner, handle) {
            (TypeInner::Struct { .. }, Some(handle)) => {
                Ok(format!(".{}", self.writer.members[&handle][index as usize]))
            }
            (TypeInner::Array { size: ArraySize::Dynamic, .. }, _) => Ok(format!("[{index}]")),
            (TypeInner::Array { .. } | TypeInner::Matrix { .. }, _) => Ok(format!(".at[{index}]")),
            (other, _) => Err(unsupported_type(other)),
        }
    }

    /// Writes an element of a value. The index has been clamped.
    fn element(&mut self, base: Handle<Expression>, index: Handle<Expression>) -> Result<CExpr> {
        let vector = self.vector_size(base);
        let value = self.expression(base)?;
        let index = self.expression(index)?;
        match vector {
            Some(size) => Ok(self.writer.component_at(self.scalar(base)?, size, value, index)),
            None => Ok(value.with(&format!(".at[{}]", index.text))),
        }
    }

    /// Writes a load.
    fn load(&mut self, pointer: Handle<Expression>) -> Result<CExpr> {
        if let Expression::LocalVariable(local) = self.function.expressions[pointer]
            && let Some(condition) = self.conditions.get(&local)
        {
            return Ok(condition.text.clone());
        }
        match self.place(pointer)? {
            Place::Value(text) => Ok(text),
            Place::Component { scalar, size, vector, index } => {
                Ok(self.writer.component_at(scalar, size, vector, index))
            }
        }
    }

    /// Writes the lvalue that a pointer refers to.
    pub(crate) fn place(&mut self, pointer: Handle<Expression>) -> Result<Place> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => {
                self.used_locals.insert(local);
                Ok(Place::Value(CExpr::atom(&self.locals[&local])))
            }
            Expression::GlobalVariable(global) => {
                let state = self.state()?;
                let name = self.writer.globals.get(&global);
                let name = name.ok_or_else(|| WriteError::Unsupported("a buffer of the filter's own".into()))?;
                Ok(Place::Value(CExpr::atom(format!("{state}->{name}"))))
            }
            Expression::FunctionArgument(index) => {
                Ok(Place::Value(CExpr::unary("*", CExpr::atom(&self.arguments[index as usize]))))
            }
            Expression::Access { base, index } => {
                let Place::Value(value) = self.place(base)? else {
                    return Err(WriteError::internal("a part of a component"));
                };
                let index = self.expression(index)?;
                match *self.pointee(base).0 {
                    TypeInner::Vector { size, scalar } | TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                        Ok(Place::Component { scalar, size: size as usize, vector: value, index })
                    }
                    TypeInner::Array { size: ArraySize::Dynamic, .. } => {
                        Ok(Place::Value(value.with(&format!("[{}]", index.text))))
                    }
                    _ => Ok(Place::Value(with_member(value, &format!(".at[{}]", index.text)))),
                }
            }
            Expression::AccessIndex { base, index } => {
                let Place::Value(value) = self.place(base)? else {
                    return Err(WriteError::internal("a part of a component"));
                };
                let member = match self.pointee(base).0 {
                    TypeInner::Vector { .. } | TypeInner::ValuePointer { .. } => {
                        format!(".{}", COMPONENTS[index as usize])
                    }
                    _ => self.member(base, index)?,
                };
                Ok(Place::Value(with_member(value, &member)))
            }
            ref other => Err(WriteError::Unsupported(format!("the pointer {other:?}"))),
        }
    }

    /// Writes a pointer as an argument.
    pub(crate) fn address(&mut self, pointer: Handle<Expression>) -> Result<CExpr> {
        match self.place(pointer)? {
            Place::Value(text) => Ok(match text.text.strip_prefix('*') {
                Some(pointer) => CExpr::atom(pointer),
                None => CExpr::unary("&", text),
            }),
            Place::Component { .. } => Err(WriteError::Unsupported("a pointer to a component of a vector".into())),
        }
    }

    /// Upper bound of a `u32` expression, from its operands to a depth of `depth`.
    pub(crate) fn upper_bound(&self, handle: Handle<Expression>, depth: u32) -> u64 {
        const ALL: u64 = u32::MAX as u64;
        let Some(depth) = depth.checked_sub(1) else { return ALL };
        let of = |handle| self.upper_bound(handle, depth);
        let module = self.writer.module;
        let literal = |handle: Handle<Expression>| match self.function.expressions[handle] {
            Expression::Literal(Literal::U32(value)) => Some(u64::from(value)),
            Expression::Constant(constant) => match module.global_expressions[module.constants[constant].init] {
                Expression::Literal(Literal::U32(value)) => Some(value.into()),
                _ => None,
            },
            _ => None,
        };
        if let Some(value) = literal(handle) {
            return value;
        }
        if *self.inner(handle) != TypeInner::Scalar(Scalar::U32) {
            return ALL;
        }
        let most = match self.function.expressions[handle] {
            Expression::Binary { op, left, right } => match (op, literal(right)) {
                (BinaryOperator::And, _) => of(left).min(of(right)),
                (BinaryOperator::InclusiveOr | BinaryOperator::ExclusiveOr, _) => {
                    (of(left).max(of(right)) + 1).next_power_of_two() - 1
                }
                (BinaryOperator::Add, _) => of(left) + of(right),
                (BinaryOperator::Multiply, _) => of(left).saturating_mul(of(right)),
                (BinaryOperator::ShiftLeft, Some(by)) => of(left) << (by & 31),
                (BinaryOperator::ShiftRight, Some(by)) => of(left) >> (by & 31),
                (BinaryOperator::Divide, Some(by)) => of(left) / by.max(1),
                (BinaryOperator::Modulo, Some(by)) if by > 0 => of(left).min(by - 1),
                _ => ALL,
            },
            Expression::Select { accept, reject, .. } => of(accept).max(of(reject)),
            Expression::Math { fun: MathFunction::Min, arg, arg1: Some(arg1), .. } => of(arg).min(of(arg1)),
            Expression::As { expr, convert: Some(4), .. }
                if self.inner(expr).scalar_kind() == Some(ScalarKind::Bool) =>
            {
                1
            }
            Expression::CallResult(callee) => match self.writer.lowered.intrinsics.get(&callee) {
                Some(Intrinsic::Load { size, .. }) if *size < 4 => ALL >> (32 - 8 * size),
                Some(Intrinsic::CsumFold | Intrinsic::CsumReplace16 | Intrinsic::CsumReplace32) => 0xffff,
                _ => ALL,
            },
            _ => ALL,
        };
        // A larger result may have wrapped.
        if most > ALL { ALL } else { most }
    }
}

/// Appends a suffix to an lvalue, with `->` for a dereferenced pointer.
fn with_member(value: CExpr, part: &str) -> CExpr {
    match (value.text.strip_prefix('*'), part.strip_prefix('.')) {
        (Some(pointer), Some(member)) => CExpr::atom(format!("{pointer}->{member}")),
        _ => value.with(part),
    }
}
