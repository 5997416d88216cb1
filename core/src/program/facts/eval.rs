//! Transfer functions of expressions, and the constraints that a condition puts on its operands.

use std::rc::Rc;

use naga::{
    BinaryOperator, Expression, Handle, MathFunction, RelationalFunction, ScalarKind, TypeInner, UnaryOperator,
};

use super::VerdictSet;
use super::interpreter::AbstractInterpreter;
use super::interval::{IntKind, Interval};
use super::value::{Bool, Condition, Conditions, Int, Pointer, Value, int_kind};

/// Maximum number of additions, subtractions and casts that a constraint is propagated back
/// through.
const MAX_STEPS_BACK: u32 = 8;

impl AbstractInterpreter<'_> {
    /// Cell of an expression of the current function.
    pub(super) fn cell_of(&self, expression: Handle<Expression>) -> u32 {
        self.frame().base + expression.index() as u32
    }

    pub(super) fn value(&self, expression: Handle<Expression>) -> &Value {
        &self.state.cell(self.cell_of(expression)).value
    }

    fn kind(&self, expression: Handle<Expression>) -> Option<IntKind> {
        match *self.type_of(expression) {
            TypeInner::Scalar(scalar) => int_kind(scalar),
            TypeInner::Vector { scalar, .. } => int_kind(scalar),
            _ => None,
        }
    }

    fn type_of(&self, expression: Handle<Expression>) -> &TypeInner {
        self.frame().info[expression].ty.inner_with(&self.module.types)
    }

    /// Abstract value of an integer; `None` unless the expression is a 32-bit integer scalar.
    pub(super) fn int(&self, expression: Handle<Expression>) -> Option<Int> {
        match *self.type_of(expression) {
            TypeInner::Scalar(scalar) => Some(self.value(expression).int(int_kind(scalar)?)),
            _ => None,
        }
    }

    pub(super) fn range(&self, expression: Handle<Expression>) -> Option<Interval> {
        self.int(expression).map(|int| int.range)
    }

    /// Evaluates an expression whose operands have been evaluated.
    pub(super) fn evaluate(&mut self, expression: Handle<Expression>) {
        let mut loaded = None;
        let function = self.frame().function;
        let value = match function.expressions[expression] {
            Expression::Load { pointer } => match self.value(pointer).clone() {
                Value::Pointer(Pointer { slot, path }) => {
                    let cell = self.state.cell(slot);
                    if path.is_empty() {
                        loaded = Some((slot, cell.version));
                    }
                    path.iter().fold(cell.value.clone(), |value, &index| value.component(index))
                }
                _ => Value::Any,
            },
            ref other => self.eval_pure(expression, other),
        };
        let cell = self.cell_of(expression);
        self.state.evaluate(cell, value, loaded);
    }

    fn eval_pure(&self, whole: Handle<Expression>, expression: &Expression) -> Value {
        match *expression {
            Expression::Literal(literal) => Value::literal(literal),
            Expression::Constant(constant) => self.constants[self.module.constants[constant].init.index()].clone(),
            Expression::ZeroValue(ty) => self.shapes.zero(ty),
            Expression::Compose { ty, ref components } => {
                self.shapes.compose(ty, components.iter().map(|&c| self.value(c).clone()).collect())
            }
            Expression::Splat { size, value } => {
                Value::Composite(Rc::new(vec![self.value(value).clone(); size as usize]))
            }
            Expression::Swizzle { size, vector, pattern } => {
                let vector = self.value(vector);
                let components = pattern[..size as usize].iter().map(|&c| vector.component(Some(c as u32))).collect();
                Value::Composite(Rc::new(components))
            }
            Expression::FunctionArgument(index) => self.frame().arguments[index as usize].clone(),
            Expression::LocalVariable(local) => {
                Value::Pointer(Pointer { slot: self.frame().local(local), path: Rc::default() })
            }
            Expression::GlobalVariable(global) => match self.privates.get(&global) {
                Some(&slot) => Value::Pointer(Pointer { slot, path: Rc::default() }),
                None => Value::Any,
            },
            Expression::AccessIndex { base, index } => access_part(self.value(base), Some(index)),
            Expression::Access { base, index } => {
                let index = self.range(index).and_then(Interval::as_point).and_then(|i| u32::try_from(i).ok());
                // An index beyond the end is clamped to it at run time, so it may select any
                // component.
                access_part(self.value(base), index.filter(|&i| i < self.length(base)))
            }
            Expression::Unary { op, expr } => match (op, self.kind(expr)) {
                (UnaryOperator::LogicalNot, _) => Value::Bool(self.value(expr).bool().not()),
                (UnaryOperator::Negate, Some(kind)) => map_components(self.value(expr), &|v| v.neg(kind)),
                (UnaryOperator::BitwiseNot, Some(kind)) => map_components(self.value(expr), &|v| v.not(kind)),
                _ => Value::Any,
            },
            Expression::Binary { op, left, right } => self.binary(op, left, right),
            Expression::Select { condition, accept, reject } => {
                let (accept, reject) = (self.value(accept), self.value(reject));
                match self.value(condition) {
                    Value::Bool(Bool { can_be_false: false, .. }) => accept.clone(),
                    Value::Bool(Bool { can_be_true: false, .. }) => reject.clone(),
                    _ => accept.join(reject),
                }
            }
            Expression::As { expr, kind, convert } => self.cast(whole, expr, kind, convert),
            Expression::Math { fun, arg, arg1, arg2, .. } => self.math(whole, fun, arg, arg1, arg2),
            Expression::Relational { fun: RelationalFunction::All | RelationalFunction::Any, .. } => {
                Value::Bool(Bool::unknown())
            }
            _ => Value::Any,
        }
    }

    /// Number of components that a constant index distinguishes in `base`, a composite or a pointer
    /// to one.
    fn length(&self, base: Handle<Expression>) -> u32 {
        match *self.type_of(base) {
            TypeInner::Pointer { base, .. } => match self.module.types[base].inner {
                TypeInner::Vector { size, .. } => size as u32,
                _ => 0,
            },
            TypeInner::Vector { size, .. } => size as u32,
            TypeInner::ValuePointer { size: Some(size), .. } => size as u32,
            _ => 0,
        }
    }

    fn binary(&self, op: BinaryOperator, left: Handle<Expression>, right: Handle<Expression>) -> Value {
        use BinaryOperator as Op;
        let (a, b) = (self.value(left), self.value(right));
        match op {
            Op::LogicalAnd => return Value::Bool(a.bool().and(&b.bool())),
            Op::LogicalOr => return Value::Bool(a.bool().not().and(&b.bool().not()).not()),
            Op::Equal | Op::NotEqual | Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
                return self.compare(op, left, right);
            }
            _ => {}
        }
        if let (Value::Bool(a), Value::Bool(b)) = (a, b) {
            return match op {
                Op::And => Value::Bool(a.and(b)),
                Op::InclusiveOr => Value::Bool(a.not().and(&b.not()).not()),
                _ => Value::Bool(Bool::unknown()),
            };
        }
        let Some(kind) = self.kind(left) else { return Value::Any };
        match op {
            Op::Add => zip_components(a, b, &|a, b| a.add(b, kind), kind),
            Op::Subtract => zip_components(a, b, &|a, b| a.sub(b, kind), kind),
            Op::Multiply => zip_components(a, b, &|a, b| a.mul(b, kind), kind),
            Op::Divide => zip_components(a, b, &|a, b| a.div(b, kind), kind),
            Op::Modulo => zip_components(a, b, &|a, b| a.rem(b, kind), kind),
            Op::And => zip_components(a, b, &|a, b| a.and(b, kind), kind),
            Op::InclusiveOr => zip_components(a, b, &|a, b| a.or(b, kind), kind),
            Op::ExclusiveOr => zip_components(a, b, &|a, b| a.xor(b, kind), kind),
            // Shift counts are unsigned whatever the type of the value.
            Op::ShiftLeft | Op::ShiftRight => match (self.range(left), self.range(right)) {
                (Some(a), Some(count)) if op == Op::ShiftLeft => Value::range(a.shl(count, kind)),
                (Some(a), Some(count)) => Value::range(a.shr(count)),
                _ => Value::Any,
            },
            _ => Value::Any,
        }
    }

    fn compare(&self, op: BinaryOperator, left: Handle<Expression>, right: Handle<Expression>) -> Value {
        use BinaryOperator as Op;
        let (Some(a), Some(b)) = (self.range(left), self.range(right)) else {
            return Value::Bool(Bool::unknown());
        };
        let (x, y) = (self.cell_of(left), self.cell_of(right));
        // Each comparison is described by what it implies when it holds; if it does not, the
        // opposite comparison holds.
        let less = |x, a: Interval, y, b: Interval, or_equal: bool| {
            let gap = i64::from(!or_equal);
            let (low, high) = (Interval::new(i64::MIN, b.hi - gap), Interval::new(a.lo + gap, i64::MAX));
            (
                a.lo <= b.hi - gap,
                vec![Condition { expression: x, range: low }, Condition { expression: y, range: high }],
            )
        };
        let equal = || {
            (a.meet(b).is_some(), vec![Condition { expression: x, range: b }, Condition { expression: y, range: a }])
        };
        let differ = || {
            let mut conditions = Vec::new();
            for (cell, mine, other) in [(x, a, b), (y, b, a)] {
                let range = match other.as_point() {
                    Some(n) if n == mine.lo => Interval::new(n + 1, i64::MAX),
                    Some(n) if n == mine.hi => Interval::new(i64::MIN, n - 1),
                    _ => continue,
                };
                conditions.push(Condition { expression: cell, range });
            }
            (a.as_point().is_none() || a != b, conditions)
        };
        let ((can_be_true, when_true), (can_be_false, when_false)) = match op {
            Op::Equal => (equal(), differ()),
            Op::NotEqual => (differ(), equal()),
            Op::Less => (less(x, a, y, b, false), less(y, b, x, a, true)),
            Op::LessEqual => (less(x, a, y, b, true), less(y, b, x, a, false)),
            Op::Greater => (less(y, b, x, a, false), less(x, a, y, b, true)),
            _ => (less(y, b, x, a, true), less(x, a, y, b, false)),
        };
        let list = |conditions: Vec<Condition>| (!conditions.is_empty()).then(|| Rc::new(conditions));
        Value::Bool(Bool { can_be_true, can_be_false, when_true: list(when_true), when_false: list(when_false) })
    }

    fn cast(&self, whole: Handle<Expression>, from: Handle<Expression>, to: ScalarKind, convert: Option<u8>) -> Value {
        let value = self.value(from);
        if to == ScalarKind::Bool {
            let Some(range) = self.range(from) else {
                return if matches!(value, Value::Bool(_)) { value.clone() } else { Value::Any };
            };
            let can_be_false = range.meet(Interval::point(0)).is_some();
            let can_be_true = range.as_point() != Some(0);
            return Value::Bool(Bool { can_be_true, can_be_false, ..Bool::default() });
        }
        let Some(kind) = self.kind(whole) else { return Value::Any };
        if let Value::Bool(b) = value {
            return Value::range(Interval::new(i64::from(!b.can_be_false), i64::from(b.can_be_true)));
        }
        // Between 32-bit integers a conversion and a bitcast are the same.
        match self.kind(from) {
            Some(_) if convert.is_none_or(|width| width == 4) => {
                map_components(value, &|v| kind.wrap(v.lo.into(), v.hi.into()))
            }
            _ => Value::Any,
        }
    }

    fn math(
        &self,
        whole: Handle<Expression>,
        fun: MathFunction,
        arg: Handle<Expression>,
        arg1: Option<Handle<Expression>>,
        arg2: Option<Handle<Expression>>,
    ) -> Value {
        let operand = |e: Option<Handle<Expression>>| e.and_then(|e| self.range(e));
        let Some(a) = self.range(arg) else { return Value::Any };
        // Every function handled here returns a number of its first argument's type.
        if self.kind(whole).is_none() {
            return Value::Any;
        }
        let min = |a: Interval, b: Interval| Interval::new(a.lo.min(b.lo), a.hi.min(b.hi));
        let max = |a: Interval, b: Interval| Interval::new(a.lo.max(b.lo), a.hi.max(b.hi));
        match (fun, operand(arg1), operand(arg2)) {
            (MathFunction::Min, Some(b), _) => Value::range(min(a, b)),
            (MathFunction::Max, Some(b), _) => Value::range(max(a, b)),
            (MathFunction::Clamp, Some(low), Some(high)) => Value::range(min(max(a, low), high)),
            (MathFunction::Abs, ..) if a.lo >= 0 => Value::range(a),
            (MathFunction::CountOneBits | MathFunction::CountLeadingZeros | MathFunction::CountTrailingZeros, ..) => {
                Value::range(Interval::new(0, 32))
            }
            // extractBits(e, offset, count) of a u32 keeps at most `count` bits.
            (MathFunction::ExtractBits, Some(_), Some(count)) if a.lo >= 0 && count.hi < 31 => match self.kind(arg) {
                Some(IntKind::Unsigned) => Value::range(Interval::new(0, (1 << count.hi) - 1)),
                _ => Value::Any,
            },
            _ => Value::Any,
        }
    }

    /// Assumes that all conditions hold. Marks the state dead if they cannot.
    pub(super) fn assume(&mut self, conditions: &Conditions) {
        let Some(conditions) = conditions else { return };
        for condition in conditions.iter() {
            self.restrict(condition.expression, condition.range, MAX_STEPS_BACK);
        }
    }

    /// Restricts an expression to `range`, and what it was computed from accordingly, through at
    /// most `steps` operations.
    pub(super) fn restrict(&mut self, cell: u32, range: Interval, steps: u32) {
        let Some((frame, expression)) = self.expression_of_cell(cell) else { return };
        let TypeInner::Scalar(scalar) = *frame.info[expression].ty.inner_with(&self.module.types) else { return };
        let Some(kind) = int_kind(scalar) else { return };
        let source = &frame.function.expressions[expression];
        let base = frame.base;
        self.meet(cell, range, kind);
        if steps == 0 || !self.state.live {
            return;
        }
        let range = self.state.cell(cell).value.int(kind).range;
        let at = |e: Handle<Expression>| base + e.index() as u32;
        match *source {
            Expression::Load { .. } => {
                if let Some((slot, version)) = self.state.cell(cell).loaded
                    && self.state.cell(slot).version == version
                {
                    self.meet(slot, range, kind);
                }
            }
            // x + n in a range means x in the range minus n, if nothing wraps.
            Expression::Binary { op: BinaryOperator::Add, left, right } => {
                for (x, n) in [(left, right), (right, left)] {
                    if let Some(n) = self.state.cell(at(n)).value.int(kind).range.as_point() {
                        let before = range.sub(Interval::point(n), kind);
                        self.restrict(at(x), before, steps - 1);
                    }
                }
            }
            Expression::Binary { op: BinaryOperator::Subtract, left, right } => {
                if let Some(n) = self.state.cell(at(right)).value.int(kind).range.as_point() {
                    self.restrict(at(left), range.add(Interval::point(n), kind), steps - 1);
                }
            }
            Expression::As { expr, convert, .. } if convert.is_none_or(|width| width == 4) => {
                let Some((frame, _)) = self.expression_of_cell(cell) else { return };
                if let TypeInner::Scalar(from) = *frame.info[expr].ty.inner_with(&self.module.types)
                    && let Some(from) = int_kind(from)
                {
                    self.restrict(at(expr), from.wrap(range.lo.into(), range.hi.into()), steps - 1);
                }
            }
            _ => {}
        }
    }

    fn meet(&mut self, cell: u32, range: Interval, kind: IntKind) {
        let old = self.state.cell(cell).value.int(kind);
        match old.range.meet(range) {
            None => self.state.live = false,
            Some(both) if both == old.range => {}
            Some(both) => {
                let verdicts = old.verdicts.intersection(VerdictSet::of_range(both));
                self.state.narrow(cell, Value::Int(Int { range: both, verdicts }));
            }
        }
    }
}

/// A component of a composite, or a pointer to a component of the pointee.
fn access_part(base: &Value, index: Option<u32>) -> Value {
    match base {
        Value::Pointer(Pointer { slot, path }) => {
            let path = path.iter().copied().chain([index]).collect();
            Value::Pointer(Pointer { slot: *slot, path: Rc::new(path) })
        }
        other => other.component(index),
    }
}

/// Applies an operator to a number, or to every component of a vector.
fn map_components(a: &Value, op: &dyn Fn(Interval) -> Interval) -> Value {
    match a {
        Value::Composite(components) => {
            Value::Composite(Rc::new(components.iter().map(|component| map_components(component, op)).collect()))
        }
        Value::Int(int) => Value::range(op(int.range)),
        _ => Value::Any,
    }
}

/// Applies an operator to two numbers, or component by component if one or both are vectors.
fn zip_components(a: &Value, b: &Value, op: &dyn Fn(Interval, Interval) -> Interval, kind: IntKind) -> Value {
    match (a, b) {
        (Value::Composite(x), Value::Composite(y)) => {
            Value::Composite(Rc::new(x.iter().zip(y.iter()).map(|(x, y)| zip_components(x, y, op, kind)).collect()))
        }
        (Value::Composite(x), y) => {
            Value::Composite(Rc::new(x.iter().map(|x| zip_components(x, y, op, kind)).collect()))
        }
        (x, Value::Composite(y)) => {
            Value::Composite(Rc::new(y.iter().map(|y| zip_components(x, y, op, kind)).collect()))
        }
        // `Any` may stand for a vector, so the result cannot be a scalar's range.
        (Value::Any, Value::Any) => Value::Any,
        (x, y) => Value::range(op(x.int(kind).range, y.int(kind).range)),
    }
}
