//! Expressions of one function.
//!
//! naga says when an expression is evaluated (`Emit`). What reads no memory can be evaluated at any later time as
//! well, so it is written where it is used, if that is in one place. What reads memory *waits* for its
//! use until a statement comes that might change what it reads; then it gets a name (`statements`).
//!
//! Operators on vectors are written component by component, in all languages: there is one meaning for
//! scalars to get right then, and the devices work that way.

use naga::{
    ArraySize, BinaryOperator, Expression, Handle, Literal, MathFunction, RelationalFunction, Scalar, ScalarKind,
    TypeInner,
};
use portcullis_core::program::prelude::Intrinsic;

use crate::builtins::{Matrix, unsupported};
use crate::statements::Body;
use crate::text::Text;
use crate::types::{COMPONENTS, unsupported_type};
use crate::{Result, WriteError};

/// What a pointer points to.
pub(crate) enum Place {
    /// Something with a name of its own.
    Value(Text),
    /// A component of a vector, by a number that is known only when the filter runs.
    Component { scalar: Scalar, size: usize, vector: Text, index: Text },
}

impl<'a> Body<'_, 'a> {
    pub(crate) fn inner(&self, handle: Handle<Expression>) -> &'a TypeInner {
        self.info[handle].ty.inner_with(&self.w.module.types)
    }

    /// What an expression points to, or the type of its value.
    fn behind(&self, handle: Handle<Expression>) -> (&'a TypeInner, Option<Handle<naga::Type>>) {
        match self.inner(handle) {
            TypeInner::Pointer { base, .. } => (&self.w.module.types[*base].inner, Some(*base)),
            other => (other, self.info[handle].ty.handle()),
        }
    }

    pub(crate) fn scalar(&self, handle: Handle<Expression>) -> Result<Scalar> {
        let inner = self.inner(handle);
        inner.scalar().ok_or_else(|| unsupported_type(inner))
    }

    fn vector_size(&self, handle: Handle<Expression>) -> Option<usize> {
        match *self.inner(handle) {
            TypeInner::Vector { size, .. } => Some(size as usize),
            _ => None,
        }
    }

    /// The value of an expression.
    pub(crate) fn expression(&mut self, handle: Handle<Expression>) -> Result<Text> {
        self.value(handle, None)
    }

    /// The opposite of a truth value.
    pub(crate) fn negated(&mut self, handle: Handle<Expression>) -> Result<Text> {
        use BinaryOperator as B;
        if !self.baked.contains_key(&handle) {
            match self.function.expressions[handle] {
                Expression::Unary { op: naga::UnaryOperator::LogicalNot, expr } => return self.expression(expr),
                // `!(a < b)` is not `a >= b` where one of them is a NaN.
                Expression::Binary { op, left, right } if self.scalar(left)?.kind != ScalarKind::Float => {
                    let opposite = match op {
                        B::Equal => B::NotEqual,
                        B::NotEqual => B::Equal,
                        B::Less => B::GreaterEqual,
                        B::LessEqual => B::Greater,
                        B::Greater => B::LessEqual,
                        B::GreaterEqual => B::Less,
                        _ => return Ok(Text::unary("!", self.expression(handle)?)),
                    };
                    let scalar = self.scalar(left)?;
                    let (left, right) = (self.expression(left)?, self.expression(right)?);
                    return self.w.binary(opposite, scalar, left, right, false);
                }
                _ => {}
            }
        }
        Ok(Text::unary("!", self.expression(handle)?))
    }

    /// The components of a vector.
    fn components(&mut self, handle: Handle<Expression>) -> Result<Vec<Text>> {
        (0..self.vector_size(handle).unwrap_or(1)).map(|i| self.value(handle, Some(i))).collect()
    }

    /// The value of an expression, or of one component of it where it is a vector.
    fn value(&mut self, handle: Handle<Expression>, component: Option<usize>) -> Result<Text> {
        let size = self.vector_size(handle);
        let component = component.filter(|_| size.is_some());
        let pick = |text: Text| match component {
            Some(component) => text.with(&format!(".{}", COMPONENTS[component])),
            None => text,
        };
        if let Some(name) = self.baked.get(&handle) {
            return Ok(pick(Text::atom(name)));
        }
        let function = self.function;
        match function.expressions[handle] {
            Expression::Literal(literal) => Ok(Text::atom(self.w.literal(literal)?)),
            Expression::Constant(constant) => Ok(pick(Text::atom(self.w.constant(constant)?))),
            Expression::ZeroValue(ty) => match component {
                Some(_) => Ok(Text::atom(self.w.scalar_zero(self.scalar(handle)?)?)),
                None => Ok(Text::atom(self.w.zero(ty)?)),
            },
            Expression::FunctionArgument(index) => Ok(pick(Text::atom(&self.arguments[index as usize]))),
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
                let name = self.w.type_name(ty)?;
                let wrapped = !matches!(self.w.module.types[ty].inner, TypeInner::Struct { .. });
                let parts = parts.join(", ");
                let members = if wrapped { format!("{{{parts}}}") } else { parts };
                Ok(Text::atom(self.w.dialect.structure(&name, &members)))
            }
            Expression::Select { condition, accept, reject } if self.vector_size(condition).is_none() => {
                let condition = self.expression(condition)?;
                let (accept, reject) = (self.value(accept, component)?, self.value(reject, component)?);
                Ok(Text::choice(condition, accept, reject))
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } if !by_component(fun) => {
                let arguments: Vec<_> = [Some(arg), arg1, arg2, arg3].into_iter().flatten().collect();
                Ok(pick(self.whole_math(handle, fun, &arguments)?))
            }
            Expression::Binary { op, left, right } if self.has_matrix(left) || self.has_matrix(right) => {
                Ok(pick(self.matrix_operator(handle, op, left, right)?))
            }
            ref expression => match (size, component) {
                (Some(size), None) => {
                    let parts = (0..size).map(|i| Ok(self.value(handle, Some(i))?.text)).collect::<Result<Vec<_>>>()?;
                    let name = self.w.inner_name(self.inner(handle))?;
                    Ok(Text::atom(self.w.dialect.vector(&name, &parts)))
                }
                _ => self.scalar_value(handle, expression, component.unwrap_or(0)),
            },
        }
    }

    /// A scalar, or component number `at` of a vector.
    fn scalar_value(&mut self, handle: Handle<Expression>, expression: &Expression, at: usize) -> Result<Text> {
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
                self.w.unary(op, self.scalar(expr)?, value)
            }
            Expression::Binary { op, left, right } => {
                let scalar = self.scalar(left)?;
                let safe = self.is_safe_divisor(right);
                let (left, right) = match op {
                    BinaryOperator::And | BinaryOperator::InclusiveOr | BinaryOperator::ExclusiveOr => {
                        (self.bits(left, component)?, self.bits(right, component)?)
                    }
                    _ => (self.value(left, component)?, self.value(right, component)?),
                };
                self.w.binary(op, scalar, left, right, safe)
            }
            Expression::Select { condition, accept, reject } => {
                let condition = self.value(condition, component)?;
                let (accept, reject) = (self.value(accept, component)?, self.value(reject, component)?);
                Ok(Text::choice(condition, accept, reject))
            }
            Expression::Relational { fun, argument } => {
                let operator = match fun {
                    RelationalFunction::All => self.w.logical(true),
                    RelationalFunction::Any => self.w.logical(false),
                    RelationalFunction::IsNan | RelationalFunction::IsInf => {
                        let value = self.value(argument, component)?;
                        return Ok(self.w.float_class(fun == RelationalFunction::IsNan, value));
                    }
                };
                let parts = self.components(argument)?;
                let all = parts.into_iter().reduce(|a, b| Text::binary(operator, a, b));
                all.ok_or_else(|| WriteError::internal("a vector without components"))
            }
            Expression::As { expr, kind, convert } => {
                let value = self.value(expr, component)?;
                let from = self.scalar(expr)?;
                let to = Scalar { kind, width: convert.unwrap_or(from.width) };
                self.w.convert(from, to, convert.is_some(), value)
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let scalar = self.scalar(arg)?;
                let arguments = [Some(arg), arg1, arg2, arg3].into_iter().flatten();
                let arguments = arguments.map(|a| self.value(a, component)).collect::<Result<Vec<_>>>()?;
                self.w.math(fun, scalar, &arguments)
            }
            _ => Err(WriteError::Unsupported(format!("the expression {:?}", self.function.expressions[handle]))),
        }
    }

    /// An operand of a bitwise operator: numbers are easier to read in base 16 there.
    fn bits(&mut self, handle: Handle<Expression>, component: Option<usize>) -> Result<Text> {
        match self.function.expressions[handle] {
            Expression::Literal(Literal::U32(value)) if value > 9 => Ok(Text::atom(format!("0x{value:x}u"))),
            _ => self.value(handle, component),
        }
    }

    /// Whether an integer can be divided by a value without a second look: a constant but 0 and -1.
    fn is_safe_divisor(&self, handle: Handle<Expression>) -> bool {
        let literal = match self.function.expressions[handle] {
            Expression::Literal(literal) => literal,
            Expression::Splat { value, .. } => return self.is_safe_divisor(value),
            Expression::Constant(constant) => {
                let module = self.w.module;
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
    ) -> Result<Text> {
        let what = match op {
            BinaryOperator::Add => Matrix::Sum("+"),
            BinaryOperator::Subtract => Matrix::Sum("-"),
            BinaryOperator::Multiply => Matrix::Product,
            other => return Err(WriteError::Unsupported(format!("{other:?} of matrices"))),
        };
        let types = [self.inner(left), self.inner(right)];
        let arguments = [self.expression(left)?, self.expression(right)?];
        self.w.matrix(what, types, self.inner(handle), &arguments)
    }

    /// A built-in that takes vectors or matrices as a whole.
    fn whole_math(
        &mut self,
        handle: Handle<Expression>,
        fun: MathFunction,
        arguments: &[Handle<Expression>],
    ) -> Result<Text> {
        use MathFunction as M;
        let first = self.inner(arguments[0]);
        if fun == M::Dot {
            let scalar = self.scalar(arguments[0])?;
            let (left, right) = (self.components(arguments[0])?, self.components(arguments[1])?);
            return self.w.dot(scalar, left, right);
        }
        let texts = arguments.iter().map(|&a| self.expression(a)).collect::<Result<Vec<_>>>()?;
        match fun {
            M::Transpose => self.w.matrix(Matrix::Transpose, [first; 2], self.inner(handle), &texts),
            M::Determinant => self.w.matrix(Matrix::Determinant, [first; 2], self.inner(handle), &texts),
            M::Modf | M::Frexp => {
                let Some(ty) = self.info[handle].ty.handle() else { return Err(unsupported(fun)) };
                let result = self.w.type_name(ty)?;
                let value = texts.into_iter().next().ok_or_else(|| unsupported(fun))?;
                self.w.split(fun, &result, self.vector_size(arguments[0]), value)
            }
            M::Cross | M::Distance | M::Length | M::Normalize | M::FaceForward | M::Reflect | M::Refract => {
                match self.vector_size(arguments[0]) {
                    Some(size) => self.w.geometry(fun, size, &texts),
                    // Of numbers: |x|, |a - b|.
                    None => match (fun, texts.as_slice()) {
                        (M::Length, [_]) => self.w.math(M::Abs, Scalar::F32, &texts),
                        (M::Distance, [a, b]) => {
                            let difference = Text::binary("-", a.clone(), b.clone());
                            self.w.math(M::Abs, Scalar::F32, &[difference])
                        }
                        _ => Err(unsupported(fun)),
                    },
                }
            }
            _ => self.w.pack(fun, &texts),
        }
    }

    /// `.name` or `.at[index]`, for what is no vector.
    fn member(&self, base: Handle<Expression>, index: u32) -> Result<String> {
        let (inner, handle) = self.behind(base);
        match (inner, handle) {
            (TypeInner::Struct { .. }, Some(handle)) => Ok(format!(".{}", self.w.members[&handle][index as usize])),
            (TypeInner::Array { size: ArraySize::Dynamic, .. }, _) => Ok(format!("[{index}]")),
            (TypeInner::Array { .. } | TypeInner::Matrix { .. }, _) => Ok(format!(".at[{index}]")),
            (other, _) => Err(unsupported_type(other)),
        }
    }

    /// An element of a value. The index has been clamped.
    fn element(&mut self, base: Handle<Expression>, index: Handle<Expression>) -> Result<Text> {
        let vector = self.vector_size(base);
        let value = self.expression(base)?;
        let index = self.expression(index)?;
        match vector {
            Some(size) => Ok(self.w.component_at(self.scalar(base)?, size, value, index)),
            None => Ok(value.with(&format!(".at[{}]", index.text))),
        }
    }

    /// What is behind a pointer.
    fn load(&mut self, pointer: Handle<Expression>) -> Result<Text> {
        if let Expression::LocalVariable(local) = self.function.expressions[pointer]
            && let Some(condition) = self.conditions.get(&local)
        {
            return Ok(condition.text.clone());
        }
        match self.place(pointer)? {
            Place::Value(text) => Ok(text),
            Place::Component { scalar, size, vector, index } => Ok(self.w.component_at(scalar, size, vector, index)),
        }
    }

    /// What a pointer points to.
    pub(crate) fn place(&mut self, pointer: Handle<Expression>) -> Result<Place> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => {
                self.used_locals.insert(local);
                Ok(Place::Value(Text::atom(&self.locals[&local])))
            }
            Expression::GlobalVariable(global) => {
                let state = self.state()?;
                let name = self.w.globals.get(&global);
                let name = name.ok_or_else(|| WriteError::Unsupported("a buffer of the filter's own".into()))?;
                Ok(Place::Value(Text::atom(format!("{state}->{name}"))))
            }
            Expression::FunctionArgument(index) => {
                Ok(Place::Value(Text::unary("*", Text::atom(&self.arguments[index as usize]))))
            }
            Expression::Access { base, index } => {
                let Place::Value(value) = self.place(base)? else {
                    return Err(WriteError::internal("a part of a component"));
                };
                let index = self.expression(index)?;
                match *self.behind(base).0 {
                    TypeInner::Vector { size, scalar } | TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                        Ok(Place::Component { scalar, size: size as usize, vector: value, index })
                    }
                    TypeInner::Array { size: ArraySize::Dynamic, .. } => {
                        Ok(Place::Value(value.with(&format!("[{}]", index.text))))
                    }
                    _ => Ok(Place::Value(behind_pointer(value, &format!(".at[{}]", index.text)))),
                }
            }
            Expression::AccessIndex { base, index } => {
                let Place::Value(value) = self.place(base)? else {
                    return Err(WriteError::internal("a part of a component"));
                };
                let member = match self.behind(base).0 {
                    TypeInner::Vector { .. } | TypeInner::ValuePointer { .. } => {
                        format!(".{}", COMPONENTS[index as usize])
                    }
                    _ => self.member(base, index)?,
                };
                Ok(Place::Value(behind_pointer(value, &member)))
            }
            ref other => Err(WriteError::Unsupported(format!("the pointer {other:?}"))),
        }
    }

    /// A pointer, as an argument.
    pub(crate) fn address(&mut self, pointer: Handle<Expression>) -> Result<Text> {
        match self.place(pointer)? {
            Place::Value(text) => Ok(match text.text.strip_prefix('*') {
                Some(pointer) => Text::atom(pointer),
                None => Text::unary("&", text),
            }),
            Place::Component { .. } => Err(WriteError::Unsupported("a pointer to a component of a vector".into())),
        }
    }

    /// The most that a `u32` can be, by what it is made of; looks no deeper than `depth`.
    pub(crate) fn most(&self, handle: Handle<Expression>, depth: u32) -> u64 {
        const ALL: u64 = u32::MAX as u64;
        let Some(depth) = depth.checked_sub(1) else { return ALL };
        let of = |handle| self.most(handle, depth);
        let module = self.w.module;
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
            Expression::CallResult(callee) => match self.w.lowered.intrinsics.get(&callee) {
                Some(Intrinsic::Load { size, .. }) if *size < 4 => ALL >> (32 - 8 * size),
                Some(Intrinsic::CsumFold | Intrinsic::CsumReplace16 | Intrinsic::CsumReplace32) => 0xffff,
                _ => ALL,
            },
            _ => ALL,
        };
        // What is above may have wrapped.
        if most > ALL { ALL } else { most }
    }
}

/// A part of what a pointer points to.
fn behind_pointer(value: Text, part: &str) -> Text {
    match (value.text.strip_prefix('*'), part.strip_prefix('.')) {
        (Some(pointer), Some(member)) => Text::atom(format!("{pointer}->{member}")),
        _ => value.with(part),
    }
}

/// Whether a built-in works on each component for itself.
pub(crate) fn by_component(fun: MathFunction) -> bool {
    use MathFunction as M;
    !matches!(
        fun,
        M::Dot
            | M::Dot4I8Packed
            | M::Dot4U8Packed
            | M::Outer
            | M::Cross
            | M::Distance
            | M::Length
            | M::Normalize
            | M::FaceForward
            | M::Reflect
            | M::Refract
            | M::Inverse
            | M::Transpose
            | M::Determinant
            | M::Modf
            | M::Frexp
            | M::Pack4x8snorm
            | M::Pack4x8unorm
            | M::Pack2x16snorm
            | M::Pack2x16unorm
            | M::Pack2x16float
            | M::Pack4xI8
            | M::Pack4xU8
            | M::Pack4xI8Clamp
            | M::Pack4xU8Clamp
            | M::Unpack4x8snorm
            | M::Unpack4x8unorm
            | M::Unpack2x16snorm
            | M::Unpack2x16unorm
            | M::Unpack2x16float
            | M::Unpack4xI8
            | M::Unpack4xU8
    )
}
