//! Lowering of expressions. Those without 64-bit integers are copied; the others become operations
//! on pairs, component by component, or calls of library functions.

use naga::{
    BinaryOperator, Expression, Handle, MathFunction, RelationalFunction, Scalar, ScalarKind, SwizzleComponent,
    TypeInner, UnaryOperator,
};

use super::Int64Error;
use super::function::{Component, FunctionLowering};
use super::types::{WideType, wide_literal};

type Lowered = Result<Handle<Expression>, Int64Error>;

impl FunctionLowering<'_> {
    /// Lowers `old`, to be evaluated at the current point.
    pub(super) fn lower_expression(&mut self, old: Handle<Expression>) -> Lowered {
        let outer = std::mem::replace(&mut self.span, self.old.expressions.get_span(old));
        let new = match self.wide(old) {
            Some(wide) => self.lower_wide(old, wide),
            None => self.lower_narrow(old),
        };
        self.span = outer;
        new
    }

    /// Lowers an expression that is a 64-bit integer or a vector of them.
    fn lower_wide(&mut self, old: Handle<Expression>, wide: WideType) -> Lowered {
        let pairs = Component::Pair;
        match self.old.expressions[old] {
            Expression::Literal(literal) => {
                let bits = wide_literal(literal).ok_or_else(|| Int64Error(format!("a literal {literal:?}")))?;
                let constant = self.target.wide_literal(bits);
                Ok(self.add_pre_emitted(Expression::Constant(constant)))
            }
            Expression::Compose { ref components, .. } => {
                let mut scalars = Vec::new();
                for &component in components {
                    let wide = self.wide(component).ok_or_else(|| mixed("a vector"))?;
                    let new = self.get(component)?;
                    for i in 0..wide.size.map_or(1, |size| size as u32) {
                        scalars.push(self.component(new, wide, i));
                    }
                }
                self.each(wide.size, pairs, |_, i| Ok(scalars[i as usize]))
            }
            Expression::Splat { value, .. } => {
                let value = self.get(value)?;
                self.each(wide.size, pairs, |_, _| Ok(value))
            }
            Expression::Swizzle { vector, pattern, .. } => self.swizzle(vector, wide, pattern),
            Expression::Unary { op, expr } => {
                let expr = self.get(expr)?;
                self.each(wide.size, pairs, |this, i| {
                    let expr = this.component(expr, wide, i);
                    Ok(match op {
                        UnaryOperator::Negate => this.call("pc_i64_neg", vec![expr]),
                        UnaryOperator::BitwiseNot | UnaryOperator::LogicalNot => {
                            this.add(Expression::Unary { op, expr })
                        }
                    })
                })
            }
            Expression::Binary { op, left, right } => self.binary(op, left, right),
            Expression::Select { condition, accept, reject } => {
                let vector = matches!(self.type_of(condition), TypeInner::Vector { .. });
                let [condition, accept, reject] = self.get_all([condition, accept, reject])?;
                self.each(wide.size, pairs, |this, i| {
                    let condition = this.element(condition, vector, i);
                    let (accept, reject) = (this.component(accept, wide, i), this.component(reject, wide, i));
                    Ok(this.add(Expression::Select { condition, accept, reject }))
                })
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => self.math(fun, wide, arg, [arg1, arg2, arg3]),
            Expression::As { expr, .. } => self.widen(expr, wide),
            // Variables, arguments, loads, accesses and zero values only change their type.
            _ => self.copy_expression(old),
        }
    }

    /// Lowers an expression of any other type; its operands may be 64-bit integers.
    fn lower_narrow(&mut self, old: Handle<Expression>) -> Lowered {
        match self.old.expressions[old] {
            Expression::Binary { op, left, right } if self.wide(left).is_some() || self.wide(right).is_some() => {
                self.binary(op, left, right)
            }
            Expression::As { expr, kind, convert } => match self.wide(expr) {
                Some(wide) => self.narrow(expr, wide, kind, convert),
                None => self.copy_expression(old),
            },
            _ => self.copy_expression(old),
        }
    }

    /// Copies an expression with new operands and types.
    fn copy_expression(&mut self, old: Handle<Expression>) -> Lowered {
        let ty = |old: Handle<naga::Type>| self.source.types[old.index()];
        let new = match self.old.expressions[old] {
            Expression::Constant(constant) => Expression::Constant(self.source.constants[constant.index()]),
            Expression::ZeroValue(old) => Expression::ZeroValue(ty(old)),
            ref same @ (Expression::Literal(_)
            | Expression::Override(_)
            | Expression::FunctionArgument(_)
            | Expression::GlobalVariable(_)
            | Expression::LocalVariable(_)) => same.clone(),
            Expression::Compose { ty: of, ref components } => {
                let ty = ty(of);
                let components = components.iter().map(|&c| self.get(c)).collect::<Result<_, _>>()?;
                Expression::Compose { ty, components }
            }
            Expression::Access { base, index } => {
                let wide = self.wide(index).is_some();
                let [base, mut index] = self.get_all([base, index])?;
                if wide {
                    index = self.call("pc_u64_to_index", vec![index]);
                }
                Expression::Access { base, index }
            }
            Expression::AccessIndex { base, index } => Expression::AccessIndex { base: self.get(base)?, index },
            Expression::Splat { size, value } => Expression::Splat { size, value: self.get(value)? },
            Expression::Swizzle { size, vector, pattern } => {
                Expression::Swizzle { size, vector: self.get(vector)?, pattern }
            }
            Expression::Load { pointer } => Expression::Load { pointer: self.get(pointer)? },
            Expression::Unary { op, expr } => Expression::Unary { op, expr: self.get(expr)? },
            Expression::Binary { op, left, right } => {
                let [left, right] = self.get_all([left, right])?;
                Expression::Binary { op, left, right }
            }
            Expression::Select { condition, accept, reject } => {
                let [condition, accept, reject] = self.get_all([condition, accept, reject])?;
                Expression::Select { condition, accept, reject }
            }
            Expression::Relational { fun, argument } => Expression::Relational { fun, argument: self.get(argument)? },
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let arg = self.get(arg)?;
                let [arg1, arg2, arg3] = self.get_some([arg1, arg2, arg3])?;
                Expression::Math { fun, arg, arg1, arg2, arg3 }
            }
            Expression::As { expr, kind, convert } => Expression::As { expr: self.get(expr)?, kind, convert },
            Expression::ArrayLength(array) => Expression::ArrayLength(self.get(array)?),
            // The verifier rejects the others, or they are results, which their statement defines.
            ref other => return Err(Int64Error(format!("{other:?} is not known"))),
        };
        Ok(if new.needs_pre_emit() { self.add_pre_emitted(new) } else { self.add(new) })
    }

    fn get_all<const N: usize>(&mut self, old: [Handle<Expression>; N]) -> Result<[Handle<Expression>; N], Int64Error> {
        let mut new = old;
        for handle in &mut new {
            *handle = self.get(*handle)?;
        }
        Ok(new)
    }

    fn get_some<const N: usize>(
        &mut self,
        old: [Option<Handle<Expression>>; N],
    ) -> Result<[Option<Handle<Expression>>; N], Int64Error> {
        let mut new = old;
        for handle in new.iter_mut().flatten() {
            *handle = self.get(*handle)?;
        }
        Ok(new)
    }

    /// A component of a vector of 32-bit values, or the scalar itself.
    fn element(&mut self, of: Handle<Expression>, vector: bool, index: u32) -> Handle<Expression> {
        if vector { self.add(Expression::AccessIndex { base: of, index }) } else { of }
    }

    /// The low word of a pair.
    pub(super) fn low(&mut self, pair: Handle<Expression>) -> Handle<Expression> {
        self.add(Expression::AccessIndex { base: pair, index: 0 })
    }

    /// Emits whether two pairs are equal.
    pub(super) fn equal(&mut self, left: Handle<Expression>, right: Handle<Expression>) -> Handle<Expression> {
        let argument = self.add(Expression::Binary { op: BinaryOperator::Equal, left, right });
        self.add(Expression::Relational { fun: RelationalFunction::All, argument })
    }

    /// Emits whether two pairs differ.
    fn differs(&mut self, left: Handle<Expression>, right: Handle<Expression>) -> Handle<Expression> {
        let argument = self.add(Expression::Binary { op: BinaryOperator::NotEqual, left, right });
        self.add(Expression::Relational { fun: RelationalFunction::Any, argument })
    }

    fn swizzle(&mut self, vector: Handle<Expression>, wide: WideType, pattern: [SwizzleComponent; 4]) -> Lowered {
        let from = self.wide(vector).ok_or_else(|| mixed("a swizzle"))?;
        let vector = self.get(vector)?;
        self.each(wide.size, Component::Pair, |this, i| Ok(this.component(vector, from, pattern[i as usize] as u32)))
    }

    /// Lowers a binary operation with a 64-bit integer on at least one side.
    fn binary(&mut self, op: BinaryOperator, left: Handle<Expression>, right: Handle<Expression>) -> Lowered {
        use BinaryOperator as Op;
        if matches!(op, Op::ShiftLeft | Op::ShiftRight) {
            return self.shift(op, left, right);
        }
        let (Some(a), Some(b)) = (self.wide(left), self.wide(right)) else { return Err(mixed("an operation")) };
        let [left, right] = self.get_all([left, right])?;
        let kind = match op {
            Op::Equal | Op::NotEqual | Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
                Component::Scalar(Scalar::BOOL)
            }
            _ => Component::Pair,
        };
        // One operand of a multiplication may be a scalar and the other a vector.
        self.each(a.size.or(b.size), kind, |this, i| {
            let left = this.component(left, a, i);
            let right = this.component(right, b, i);
            let by_sign = |unsigned, signed| if a.signed { signed } else { unsigned };
            let (name, arguments, negated) = match op {
                Op::And | Op::ExclusiveOr | Op::InclusiveOr => {
                    return Ok(this.add(Expression::Binary { op, left, right }));
                }
                Op::Equal => return Ok(this.equal(left, right)),
                Op::NotEqual => return Ok(this.differs(left, right)),
                Op::Add => ("pc_u64_add", [left, right], false),
                Op::Subtract => ("pc_u64_sub", [left, right], false),
                Op::Multiply => ("pc_u64_mul", [left, right], false),
                Op::Divide => (by_sign("pc_u64_div", "pc_i64_div"), [left, right], false),
                Op::Modulo => (by_sign("pc_u64_mod", "pc_i64_mod"), [left, right], false),
                Op::Less => (by_sign("pc_u64_less", "pc_i64_less"), [left, right], false),
                Op::Greater => (by_sign("pc_u64_less", "pc_i64_less"), [right, left], false),
                Op::LessEqual => (by_sign("pc_u64_less", "pc_i64_less"), [right, left], true),
                Op::GreaterEqual => (by_sign("pc_u64_less", "pc_i64_less"), [left, right], true),
                Op::LogicalAnd | Op::LogicalOr | Op::ShiftLeft | Op::ShiftRight => return Err(mixed("an operation")),
            };
            let result = this.call(name, arguments.to_vec());
            Ok(if negated {
                this.add(Expression::Unary { op: UnaryOperator::LogicalNot, expr: result })
            } else {
                result
            })
        })
    }

    /// Lowers a shift of a 64-bit integer or by one; only the count's low word matters.
    fn shift(&mut self, op: BinaryOperator, value: Handle<Expression>, count: Handle<Expression>) -> Lowered {
        let (wide, wide_count) = (self.wide(value), self.wide(count));
        let vector = matches!(self.type_of(count), TypeInner::Vector { .. });
        let [value, mut count] = self.get_all([value, count])?;
        if let Some(by) = wide_count {
            count = self.each(by.size, Component::Scalar(Scalar::U32), |this, i| {
                let pair = this.component(count, by, i);
                Ok(this.low(pair))
            })?;
        }
        let Some(wide) = wide else { return Ok(self.add(Expression::Binary { op, left: value, right: count })) };
        let name = match (op, wide.signed) {
            (BinaryOperator::ShiftLeft, _) => "pc_u64_shl",
            (_, false) => "pc_u64_shr",
            (_, true) => "pc_i64_shr",
        };
        self.each(wide.size, Component::Pair, |this, i| {
            let value = this.component(value, wide, i);
            let count = this.element(count, vector, i);
            Ok(this.call(name, vec![value, count]))
        })
    }

    /// Lowers a built-in function whose result, and therefore whose first argument, is 64-bit.
    fn math(
        &mut self,
        fun: MathFunction,
        wide: WideType,
        first: Handle<Expression>,
        others: [Option<Handle<Expression>>; 3],
    ) -> Lowered {
        use MathFunction as F;
        let from = self.wide(first).ok_or_else(|| mixed("a function"))?;
        let wide_others = others.map(|other| other.is_some_and(|other| self.wide(other).is_some()));
        let first = self.get(first)?;
        let others = self.get_some(others)?;
        let by_sign = |unsigned, signed| if wide.signed { signed } else { unsigned };
        let name = match fun {
            F::Abs if !wide.signed => return Ok(first),
            F::Abs => "pc_i64_abs",
            F::Sign => by_sign("pc_u64_sign", "pc_i64_sign"),
            F::Min => by_sign("pc_u64_min", "pc_i64_min"),
            F::Max | F::Clamp => by_sign("pc_u64_max", "pc_i64_max"),
            F::CountOneBits => "pc_u64_count_one_bits",
            F::CountLeadingZeros => "pc_u64_count_leading_zeros",
            F::CountTrailingZeros => "pc_u64_count_trailing_zeros",
            F::FirstLeadingBit => by_sign("pc_u64_first_leading_bit", "pc_i64_first_leading_bit"),
            F::FirstTrailingBit => "pc_u64_first_trailing_bit",
            F::ReverseBits => "pc_u64_reverse_bits",
            F::ExtractBits => by_sign("pc_u64_extract_bits", "pc_i64_extract_bits"),
            F::InsertBits => "pc_u64_insert_bits",
            F::Dot => return self.dot(from, first, others[0].ok_or_else(|| mixed("a function"))?),
            other => return Err(Int64Error(format!("{other:?} of 64-bit integers is not known"))),
        };
        self.each(wide.size, Component::Pair, |this, i| {
            let mut arguments = vec![this.component(first, from, i)];
            for (other, is_wide) in others.into_iter().zip(wide_others) {
                let Some(other) = other else { continue };
                // Bit offsets and counts are one u32 for all components.
                arguments.push(if is_wide { this.component(other, from, i) } else { other });
            }
            if fun != F::Clamp {
                return Ok(this.call(name, arguments));
            }
            // clamp is min(max(value, low), high) for integers in WGSL.
            let high = arguments.pop().ok_or_else(|| mixed("a function"))?;
            let raised = this.call(name, arguments);
            Ok(this.call(by_sign("pc_u64_min", "pc_i64_min"), vec![raised, high]))
        })
    }

    fn dot(&mut self, wide: WideType, left: Handle<Expression>, right: Handle<Expression>) -> Lowered {
        let mut sum = None;
        for i in 0..wide.size.map_or(1, |size| size as u32) {
            let arguments = vec![self.component(left, wide, i), self.component(right, wide, i)];
            let product = self.call("pc_u64_mul", arguments);
            sum = Some(match sum {
                Some(sum) => self.call("pc_u64_add", vec![sum, product]),
                None => product,
            });
        }
        sum.ok_or_else(|| mixed("a function"))
    }

    /// Lowers a conversion to a 64-bit integer.
    fn widen(&mut self, expr: Handle<Expression>, to: WideType) -> Lowered {
        // A conversion between signed and unsigned keeps the bits.
        if self.wide(expr).is_some() {
            return self.get(expr);
        }
        let (TypeInner::Scalar(from) | TypeInner::Vector { scalar: from, .. }) = *self.type_of(expr) else {
            return Err(mixed("a conversion"));
        };
        let expr = self.get(expr)?;
        self.each(to.size, Component::Pair, |this, i| {
            let word = this.element(expr, to.size.is_some(), i);
            match from {
                Scalar::F32 => Ok(this.call(if to.signed { "pc_i64_from_f32" } else { "pc_u64_from_f32" }, vec![word])),
                // Sign extension depends on the source's type.
                Scalar::I32 => Ok(this.call("pc_i64_from_i32", vec![word])),
                Scalar::U32 => Ok(this.pair_of(word)),
                Scalar::BOOL => {
                    let (accept, reject) = (this.literal(1), this.literal(0));
                    let word = this.add(Expression::Select { condition: word, accept, reject });
                    Ok(this.pair_of(word))
                }
                other => Err(Int64Error(format!("a conversion from {other:?} is not known"))),
            }
        })
    }

    /// The pair with this low word and a high word of 0.
    pub(super) fn pair_of(&mut self, word: Handle<Expression>) -> Handle<Expression> {
        let (ty, zero) = (self.target.types.pair(), self.literal(0));
        self.add(Expression::Compose { ty, components: vec![word, zero] })
    }

    /// Lowers a conversion from a 64-bit integer to another type.
    fn narrow(&mut self, expr: Handle<Expression>, from: WideType, kind: ScalarKind, width: Option<u8>) -> Lowered {
        let expr = self.get(expr)?;
        let to = match (kind, width) {
            (ScalarKind::Bool, _) => Scalar::BOOL,
            (kind, Some(4)) => Scalar { kind, width: 4 },
            (kind, width) => {
                return Err(Int64Error(format!("a conversion to {kind:?} of {width:?} bytes is not known")));
            }
        };
        self.each(from.size, Component::Scalar(to), |this, i| {
            let pair = this.component(expr, from, i);
            match to {
                Scalar::BOOL => {
                    let zero = this.zero();
                    Ok(this.differs(pair, zero))
                }
                Scalar::U32 => Ok(this.low(pair)),
                Scalar::I32 => {
                    let expr = this.low(pair);
                    Ok(this.add(Expression::As { expr, kind: ScalarKind::Sint, convert: None }))
                }
                Scalar::F32 => Ok(this.call(if from.signed { "pc_i64_to_f32" } else { "pc_u64_to_f32" }, vec![pair])),
                other => Err(Int64Error(format!("a conversion to {other:?} is not known"))),
            }
        })
    }
}

/// The error for operands that no valid module combines.
fn mixed(what: &str) -> Int64Error {
    Int64Error(format!("{what} mixes 64-bit integers with other types"))
}
