//! Tracing of naga's expressions and constants.

use naga::{
    BinaryOperator as Bo, Expression, Handle, Literal, RelationalFunction, ScalarKind, TypeInner, UnaryOperator,
};

use super::places::{kind_of, number};
use super::tracer::{Frame, Operand, Place, Tracer};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types::{self, Leaf};
use crate::compile::vector::ir::{Binary, Compare, Node, Unary, ValueKind};

impl<'a> Tracer<'a> {
    /// Type of an expression.
    pub(super) fn type_of(&self, frame: &Frame<'a>, expression: Handle<Expression>) -> &'a TypeInner {
        frame.info[expression].ty.inner_with(&self.module.types)
    }

    /// Evaluates the expressions of an `Emit` statement in order.
    pub(super) fn emit(&mut self, frame: &mut Frame<'a>, range: naga::Range<Expression>) -> Result<()> {
        for handle in range {
            let operand = self.evaluate(frame, handle)?;
            self.count_executed(1)?;
            frame.values[handle.index()] = Some(operand);
        }
        Ok(())
    }

    /// Returns the value of an expression, evaluating it if it needs no `Emit`.
    pub(super) fn operand(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Operand> {
        match &frame.values[handle.index()] {
            Some(operand) => Ok(operand.clone()),
            None => self.evaluate(frame, handle),
        }
    }

    /// Returns the scalars of an expression.
    pub(super) fn value(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Vec<Node>> {
        match self.operand(frame, handle)? {
            Operand::Value(leaves) => Ok(leaves),
            Operand::Constant(constant) => self.materialise(constant),
            Operand::Place(_) => Err(Unsupported("a pointer used as a value".into())),
        }
    }

    /// Returns the only scalar of an expression.
    pub(super) fn scalar(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Node> {
        match self.value(frame, handle)?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Unsupported("a composite value where a scalar is expected".into())),
        }
    }

    pub(super) fn place(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Place> {
        match self.operand(frame, handle)? {
            Operand::Place(place) => Ok(place),
            _ => Err(Unsupported("a value used as a pointer".into())),
        }
    }

    /// The scalar type of an expression, all of whose scalars are of the same type.
    pub(super) fn leaf(&self, frame: &Frame<'a>, expression: Handle<Expression>) -> Result<Leaf> {
        match self.type_of(frame, expression).scalar() {
            Some(scalar) => Ok(Leaf(scalar)),
            None => Err(Unsupported("an operator on a composite value".into())),
        }
    }

    fn evaluate(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Operand> {
        let values = match frame.code.expressions[handle] {
            Expression::Literal(literal) => vec![self.literal(literal)?],
            Expression::Constant(constant) => return Ok(Operand::Constant(self.module.constants[constant].init)),
            Expression::ZeroValue(ty) => self.zeros(types::inner(self.module, ty))?,
            Expression::Compose { ref components, .. } => {
                let mut leaves = Vec::new();
                for &component in components {
                    leaves.extend(self.value(frame, component)?);
                }
                self.count_executed(leaves.len())?;
                leaves
            }
            Expression::Splat { size, value } => vec![self.scalar(frame, value)?; size as usize],
            Expression::Swizzle { size, vector, pattern } => {
                let vector = self.value(frame, vector)?;
                pattern[..size as usize].iter().map(|&c| vector[c as usize]).collect()
            }
            Expression::FunctionArgument(index) => return Ok(frame.arguments[index as usize].clone()),
            Expression::LocalVariable(local) => {
                return Ok(Operand::Place(self.place_of(frame.locals[local.index()])));
            }
            Expression::GlobalVariable(global) => return Ok(Operand::Place(self.global_place(global)?)),
            Expression::AccessIndex { base, index } => {
                let inner = self.type_of(frame, base);
                match (types::pointee(self.module, inner), self.operand(frame, base)?) {
                    (Some(pointee), Operand::Place(place)) => {
                        let (_, leaves, _) = types::part(self.module, &pointee, index)?;
                        return Ok(Operand::Place(self.subplace(place, leaves)));
                    }
                    (None, _) => {
                        let value = self.value(frame, base)?;
                        let (part, leaves, _) = types::part(self.module, inner, index)?;
                        value[leaves as usize..][..part.leaves as usize].to_vec()
                    }
                    _ => return Err(Unsupported("a pointer to something other than a variable".into())),
                }
            }
            Expression::Access { base, index } => {
                let inner = self.type_of(frame, base);
                let index = self.scalar(frame, index)?;
                match types::pointee(self.module, inner) {
                    Some(pointee) => {
                        let place = self.place(frame, base)?;
                        let (part, n) = types::uniform_part(self.module, &pointee)?;
                        return Ok(Operand::Place(self.element_place(place, part.leaves, n, index)?));
                    }
                    None => self.value_element(frame, base, inner, index)?,
                }
            }
            Expression::Load { pointer } => {
                let inner = types::pointee(self.module, self.type_of(frame, pointer))
                    .ok_or_else(|| Unsupported("a load through a value that is not a pointer".into()))?;
                let place = self.place(frame, pointer)?;
                self.load_place(place, &inner)?
            }
            Expression::Unary { op, expr } => {
                kind_of(self.leaf(frame, expr)?)?;
                let values = self.value(frame, expr)?;
                values.into_iter().map(|v| self.unary_operator(op, v)).collect()
            }
            Expression::Binary { op, left, right } => {
                let leaf = self.leaf(frame, left)?;
                let (left, right) = (self.value(frame, left)?, self.value(frame, right)?);
                self.componentwise(leaf, op, &left, &right)?
            }
            Expression::Select { condition, accept, reject } => {
                let condition = self.value(frame, condition)?;
                let (accept, reject) = (self.value(frame, accept)?, self.value(frame, reject)?);
                (0..accept.len())
                    .map(|i| self.dag.select(condition[if condition.len() == 1 { 0 } else { i }], accept[i], reject[i]))
                    .collect()
            }
            Expression::Relational { fun, argument } => {
                let values = self.value(frame, argument)?;
                match fun {
                    RelationalFunction::All => {
                        let all = self.dag.flag(true);
                        vec![values.into_iter().fold(all, |all, v| self.dag.mask_and(all, v))]
                    }
                    RelationalFunction::Any => {
                        let none = self.dag.flag(false);
                        vec![values.into_iter().fold(none, |any, v| self.dag.mask_or(any, v))]
                    }
                    other => return Err(Unsupported(format!("the function {other:?}"))),
                }
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let leaf = self.leaf(frame, arg)?;
                let mut arguments = vec![self.value(frame, arg)?];
                for argument in [arg1, arg2, arg3].into_iter().flatten() {
                    arguments.push(self.value(frame, argument)?);
                }
                self.math(fun, leaf, &arguments)?
            }
            Expression::As { expr, kind, convert } => {
                let from = self.leaf(frame, expr)?;
                let values = self.value(frame, expr)?;
                let to = Leaf(naga::Scalar { kind, width: convert.unwrap_or(from.0.width) });
                let (from, to) = (kind_of(from)?, kind_of(to)?);
                values
                    .into_iter()
                    .map(|v| match (from, to) {
                        (ValueKind::Mask, ValueKind::Word) => self.dag.word_from_mask(v),
                        (ValueKind::Word, ValueKind::Mask) => self.dag.nonzero_mask(v),
                        _ => v,
                    })
                    .collect()
            }
            ref other => return Err(Unsupported(format!("the expression {other:?}"))),
        };
        Ok(Operand::Value(values))
    }

    fn literal(&mut self, literal: Literal) -> Result<Node> {
        Ok(match literal {
            Literal::Bool(value) => self.dag.flag(value),
            other => {
                let value = number(other)?;
                self.dag.constant(value)
            }
        })
    }

    fn zeros(&mut self, inner: &TypeInner) -> Result<Vec<Node>> {
        let leaves = types::leaves(self.module, inner)?;
        self.count_executed(leaves.len())?;
        leaves.into_iter().map(|leaf| kind_of(leaf).map(|kind| self.zero(kind))).collect()
    }

    /// Returns the scalars of a constant of the module.
    pub(super) fn materialise(&mut self, constant: Handle<Expression>) -> Result<Vec<Node>> {
        match self.module.global_expressions[constant] {
            Expression::Literal(literal) => Ok(vec![self.literal(literal)?]),
            Expression::Constant(constant) => self.materialise(self.module.constants[constant].init),
            Expression::ZeroValue(ty) => self.zeros(types::inner(self.module, ty)),
            Expression::Compose { ref components, .. } => {
                let mut leaves = Vec::new();
                for &component in components {
                    leaves.extend(self.materialise(component)?);
                    self.count_executed(1)?;
                }
                Ok(leaves)
            }
            Expression::Splat { size, value } => {
                let value = self.materialise(value)?;
                Ok(std::iter::repeat_n(value, size as usize).flatten().collect())
            }
            ref other => Err(Unsupported(format!("the constant expression {other:?}"))),
        }
    }

    fn unary_operator(&mut self, op: UnaryOperator, value: Node) -> Node {
        match op {
            UnaryOperator::LogicalNot => self.dag.mask_not(value),
            UnaryOperator::BitwiseNot => self.dag.unary(Unary::Invert, value),
            UnaryOperator::Negate => self.negate(value),
        }
    }

    pub(super) fn negate(&mut self, value: Node) -> Node {
        let zero = self.dag.constant(0);
        self.dag.binary(Binary::Subtract, zero, value)
    }

    /// Applies an operator to each component; a scalar operand is paired with all components.
    pub(super) fn componentwise(&mut self, leaf: Leaf, op: Bo, left: &[Node], right: &[Node]) -> Result<Vec<Node>> {
        let n = left.len().max(right.len());
        let at = |values: &[Node], i: usize| values[if values.len() == 1 { 0 } else { i }];
        (0..n).map(|i| self.binary_operator(leaf, op, at(left, i), at(right, i))).collect()
    }

    fn binary_operator(&mut self, leaf: Leaf, op: Bo, a: Node, b: Node) -> Result<Node> {
        let signed = leaf.0.kind == ScalarKind::Sint;
        let dag = &mut self.dag;
        if kind_of(leaf)? == ValueKind::Mask {
            return Ok(match op {
                Bo::And | Bo::LogicalAnd => dag.mask_and(a, b),
                Bo::InclusiveOr | Bo::LogicalOr => dag.mask_or(a, b),
                Bo::Equal | Bo::NotEqual => {
                    let opposite = dag.mask_not(b);
                    if op == Bo::Equal { dag.select(a, b, opposite) } else { dag.select(a, opposite, b) }
                }
                other => return Err(Unsupported(format!("{other:?} on booleans"))),
            });
        }
        let pick = |unsigned, with_sign| if signed { with_sign } else { unsigned };
        let (less, less_equal) =
            (pick(Compare::Less, Compare::LessSigned), pick(Compare::LessEqual, Compare::LessEqualSigned));
        Ok(match op {
            Bo::Add => dag.binary(Binary::Add, a, b),
            Bo::Subtract => dag.binary(Binary::Subtract, a, b),
            Bo::Multiply => dag.binary(Binary::Multiply, a, b),
            Bo::Divide if signed => dag.binary(Binary::DivideSigned, a, b),
            Bo::Divide => dag.binary(Binary::Divide, a, b),
            Bo::Modulo if signed => dag.binary(Binary::ModuloSigned, a, b),
            Bo::Modulo => dag.binary(Binary::Modulo, a, b),
            Bo::And => dag.binary(Binary::And, a, b),
            Bo::InclusiveOr => dag.binary(Binary::Or, a, b),
            Bo::ExclusiveOr => dag.binary(Binary::Xor, a, b),
            Bo::ShiftLeft => dag.binary(Binary::ShiftLeft, a, b),
            Bo::ShiftRight if signed => dag.binary(Binary::ShiftRightSigned, a, b),
            Bo::ShiftRight => dag.binary(Binary::ShiftRight, a, b),
            Bo::Equal => dag.compare(Compare::Equal, a, b),
            Bo::NotEqual => {
                let equal = dag.compare(Compare::Equal, a, b);
                dag.mask_not(equal)
            }
            Bo::Less => dag.compare(less, a, b),
            Bo::LessEqual => dag.compare(less_equal, a, b),
            Bo::Greater => dag.compare(less, b, a),
            Bo::GreaterEqual => dag.compare(less_equal, b, a),
            Bo::LogicalAnd | Bo::LogicalOr => return Err(Unsupported(format!("{op:?} on integers"))),
        })
    }
}
