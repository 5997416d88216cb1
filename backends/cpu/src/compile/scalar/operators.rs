//! Operators on scalars, by WGSL's rules: integers wrap and nothing traps.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types as clif};
use naga::{BinaryOperator as Op, Expression, Handle, ScalarKind, TypeInner, UnaryOperator};
use portcullis_core::program::prelude::ByteOrder;

use super::codegen::{Codegen, Frame};
use super::value_facts::{ByteSwapped, ConstantSelect, LengthFact, ValueFacts};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::float_runtime::FloatFunction;
use crate::compile::types::Leaf;

impl<'a> Codegen<'a, '_> {
    /// Lowers a binary operator on scalars, vectors, a vector and a scalar, or matrices.
    pub(super) fn binary_expression(
        &mut self,
        frame: &mut Frame<'a>,
        op: Op,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<Vec<Value>> {
        let leaf = self.leaf(frame, left)?;
        let (left_type, right_type) = (self.type_of(frame, left), self.type_of(frame, right));
        let (a, b) = (self.value(frame, left)?, self.value(frame, right)?);
        if op == Op::Multiply
            && let Some(product) = self.matrix_product(left_type, &a, right_type, &b)
        {
            return Ok(product);
        }
        let n = a.len().max(b.len());
        let pick = |v: &[Value], i: usize| if v.len() == 1 { v[0] } else { v[i] };
        (0..n).map(|i| self.binary(op, leaf, pick(&a, i), pick(&b, i))).collect()
    }

    /// Multiplies a matrix with a matrix or vector. Matrices are stored column by column. Returns
    /// `None` if the product is by component.
    fn matrix_product(&mut self, left: &TypeInner, a: &[Value], right: &TypeInner, b: &[Value]) -> Option<Vec<Value>> {
        let (rows, inner, columns) = match (left, right) {
            (&TypeInner::Matrix { columns, rows, .. }, &TypeInner::Matrix { columns: out, .. }) => {
                (rows as usize, columns as usize, out as usize)
            }
            (&TypeInner::Matrix { columns, rows, .. }, &TypeInner::Vector { .. }) => {
                (rows as usize, columns as usize, 1)
            }
            (&TypeInner::Vector { .. }, &TypeInner::Matrix { columns, rows, .. }) => {
                (1, rows as usize, columns as usize)
            }
            _ => return None,
        };
        let mut product = Vec::with_capacity(rows * columns);
        for column in 0..columns {
            for row in 0..rows {
                let mut sum = None;
                for k in 0..inner {
                    let term = self.b.ins().fmul(a[k * rows + row], b[column * inner + k]);
                    sum = Some(sum.map_or(term, |sum| self.b.ins().fadd(sum, term)));
                }
                product.extend(sum);
            }
        }
        Some(product)
    }

    /// Lowers a binary operator on scalars; `leaf` is the type of the left one.
    pub(super) fn binary(&mut self, op: Op, leaf: Leaf, a: Value, b: Value) -> Result<Value> {
        match leaf.0.kind {
            ScalarKind::Bool => self.boolean_operator(op, a, b),
            ScalarKind::Float => self.float_operator(op, leaf, a, b),
            kind => match op {
                Op::Equal | Op::NotEqual | Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
                    Ok(self.compare(op, kind == ScalarKind::Sint, a, b))
                }
                _ => self.integer_operator(op, leaf, a, b),
            },
        }
    }

    fn boolean_operator(&mut self, op: Op, a: Value, b: Value) -> Result<Value> {
        Ok(match op {
            Op::And | Op::LogicalAnd => self.logical_and(a, b),
            Op::InclusiveOr | Op::LogicalOr => self.logical_or(a, b),
            Op::Equal => self.b.ins().icmp(IntCC::Equal, a, b),
            Op::NotEqual | Op::ExclusiveOr => self.b.ins().bxor(a, b),
            other => return Err(Unsupported(format!("{other:?} on booleans"))),
        })
    }

    /// Emits `a && b` with both operands evaluated.
    pub(super) fn logical_and(&mut self, a: Value, b: Value) -> Value {
        if a == b {
            return a;
        }
        match (self.known.constant(a), self.known.constant(b)) {
            (Some(0), _) | (_, Some(1)) => return a,
            (_, Some(0)) | (Some(1), _) => return b,
            _ => {}
        }
        let value = self.b.ins().band(a, b);
        let when_true = ValueFacts::conjunction(self.known.implied_facts(a, true), self.known.implied_facts(b, true));
        let when_false =
            ValueFacts::disjunction(self.known.implied_facts(a, false), self.known.implied_facts(b, false));
        self.known.set_implied_facts(value, when_true, when_false);
        value
    }

    /// Emits `a || b` with both operands evaluated.
    pub(super) fn logical_or(&mut self, a: Value, b: Value) -> Value {
        if a == b {
            return a;
        }
        match (self.known.constant(a), self.known.constant(b)) {
            (Some(1), _) | (_, Some(0)) => return a,
            (_, Some(1)) | (Some(0), _) => return b,
            _ => {}
        }
        let value = self.b.ins().bor(a, b);
        let when_true = ValueFacts::disjunction(self.known.implied_facts(a, true), self.known.implied_facts(b, true));
        let when_false =
            ValueFacts::conjunction(self.known.implied_facts(a, false), self.known.implied_facts(b, false));
        self.known.set_implied_facts(value, when_true, when_false);
        value
    }

    /// Emits `!a`.
    pub(super) fn logical_not(&mut self, a: Value) -> Value {
        if let Some(constant) = self.known.constant(a) {
            return self.boolean(constant == 0);
        }
        if let Some(condition) = self.known.info(a).opposite {
            return condition;
        }
        // A comparison with zero: Cranelift folds it into the opposite condition if `a` is a
        // comparison.
        let value = self.b.ins().icmp_imm_u(IntCC::Equal, a, 0);
        let (when_true, when_false) =
            (self.known.implied_facts(a, false).to_vec(), self.known.implied_facts(a, true).to_vec());
        self.known.set_implied_facts(value, when_true, when_false);
        self.known.info_mut(value).opposite = Some(a);
        value
    }

    fn compare(&mut self, op: Op, signed: bool, a: Value, b: Value) -> Value {
        let condition = match (op, signed) {
            (Op::Equal, _) => IntCC::Equal,
            (Op::NotEqual, _) => IntCC::NotEqual,
            (Op::Less, false) => IntCC::UnsignedLessThan,
            (Op::LessEqual, false) => IntCC::UnsignedLessThanOrEqual,
            (Op::Greater, false) => IntCC::UnsignedGreaterThan,
            (Op::GreaterEqual, false) => IntCC::UnsignedGreaterThanOrEqual,
            (Op::Less, true) => IntCC::SignedLessThan,
            (Op::LessEqual, true) => IntCC::SignedLessThanOrEqual,
            (Op::Greater, true) => IntCC::SignedGreaterThan,
            _ => IntCC::SignedGreaterThanOrEqual,
        };
        if matches!(op, Op::Equal | Op::NotEqual)
            && let Some(value) = self.compare_swapped(condition, a, b).or_else(|| self.compare_swapped(condition, b, a))
        {
            return value;
        }
        let value = self.b.ins().icmp(condition, a, b);
        if !signed {
            self.record_length_facts(op, value, a, b);
        }
        value
    }

    /// Compares byte-swapped bytes with a constant by swapping the constant instead.
    fn compare_swapped(&mut self, condition: IntCC, a: Value, b: Value) -> Option<Value> {
        let swapped = self.known.info(a).swapped?;
        let constant = self.known.constant(b)?;
        if swapped.size == 2 && constant > 0xffff {
            return Some(self.boolean(condition == IntCC::NotEqual));
        }
        Some(self.b.ins().icmp_imm_u(condition, swapped.raw, i64::from(swapped.swap(constant))))
    }

    /// Records what a comparison with the packet's length implies about the length.
    fn record_length_facts(&mut self, op: Op, value: Value, a: Value, b: Value) {
        let (op, length, other) = if self.known.info(a).is_length {
            (op, a, b)
        } else if self.known.info(b).is_length {
            let turned = match op {
                Op::Less => Op::Greater,
                Op::LessEqual => Op::GreaterEqual,
                Op::Greater => Op::Less,
                Op::GreaterEqual => Op::LessEqual,
                same => same,
            };
            (turned, b, a)
        } else {
            return;
        };
        let at_least = |more: u32| -> Vec<LengthFact> {
            let sum = self.known.sum(other);
            let mut facts = Vec::new();
            // If length > other, then other + 1 does not wrap, nor does the sum of its parts.
            if let Some(add) = sum.add.checked_add(more) {
                facts.push(LengthFact { length, root: sum.root, add });
            }
            if sum.root.is_some()
                && let Some(add) = self.known.range(other).0.checked_add(more)
                && add > 0
            {
                facts.push(LengthFact { length, root: None, add });
            }
            facts
        };
        let (when_true, when_false) = match op {
            Op::Less => (Vec::new(), at_least(0)),
            Op::LessEqual => (Vec::new(), at_least(1)),
            Op::Greater => (at_least(1), Vec::new()),
            Op::GreaterEqual | Op::Equal => (at_least(0), Vec::new()),
            Op::NotEqual => (Vec::new(), at_least(0)),
            _ => return,
        };
        self.known.set_implied_facts(value, when_true, when_false);
    }

    fn integer_operator(&mut self, op: Op, leaf: Leaf, a: Value, b: Value) -> Result<Value> {
        let signed = leaf.0.kind == ScalarKind::Sint;
        if leaf.clif() == clif::I32
            && !signed
            && let Some(part) = self.narrow_load(op, a, b)
        {
            return Ok(part);
        }
        let value = match op {
            Op::Add => self.b.ins().iadd(a, b),
            Op::Subtract => self.b.ins().isub(a, b),
            Op::Multiply => self.b.ins().imul(a, b),
            // Strength reduction: Cranelift would emit a division.
            Op::Divide | Op::Modulo if !signed && leaf.clif() == clif::I32 && self.power_of_two(b).is_some() => {
                let power = self.power_of_two(b).unwrap_or(1);
                match op {
                    Op::Divide => self.b.ins().ushr_imm_u(a, i64::from(power.trailing_zeros())),
                    _ => self.b.ins().band_imm_u(a, i64::from(power - 1)),
                }
            }
            Op::Divide => {
                let divisor = self.divisor(leaf, a, b);
                if signed { self.b.ins().sdiv(a, divisor) } else { self.b.ins().udiv(a, divisor) }
            }
            Op::Modulo => {
                let divisor = self.divisor(leaf, a, b);
                if signed { self.b.ins().srem(a, divisor) } else { self.b.ins().urem(a, divisor) }
            }
            Op::And => self.b.ins().band(a, b),
            Op::ExclusiveOr => self.b.ins().bxor(a, b),
            Op::InclusiveOr => self.b.ins().bor(a, b),
            // Cranelift takes shift counts modulo the width, as WGSL does.
            Op::ShiftLeft => self.b.ins().ishl(a, b),
            Op::ShiftRight if signed => self.b.ins().sshr(a, b),
            Op::ShiftRight => self.b.ins().ushr(a, b),
            other => return Err(Unsupported(format!("{other:?} on integers"))),
        };
        if leaf.clif() == clif::I32 && !signed {
            return Ok(self.record_range(op, value, a, b));
        }
        Ok(value)
    }

    /// Narrows a shift or mask of a loaded value: a single byte is loaded alone, or extracted from
    /// the value before its bytes were swapped; masked bytes are compared in the byte order that
    /// they were loaded in. Cranelift then drops the wide load if nothing else uses it.
    fn narrow_load(&mut self, op: Op, a: Value, b: Value) -> Option<Value> {
        match op {
            Op::ShiftRight => {
                let shift = self.known.constant(b)? & 31;
                let (origin, lowest) = self.known.load_part(a)?;
                if shift % 8 != 0 {
                    return None;
                }
                let lowest = lowest + shift / 8;
                let size = self.known.load_size(origin)?;
                if lowest >= size {
                    return Some(self.constant(0));
                }
                if lowest + 1 == size {
                    return self.load_byte(origin, lowest);
                }
                let (low, high) = self.known.range(a);
                let value = self.b.ins().ushr_imm_u(a, i64::from(shift));
                self.known.set_range(value, low >> shift, high >> shift);
                self.known.info_mut(value).part = Some((origin, lowest));
                Some(value)
            }
            Op::And => {
                let (a, mask) = match (self.known.constant(a), self.known.constant(b)) {
                    (_, Some(mask)) => (a, mask),
                    (Some(mask), _) => (b, mask),
                    _ => return None,
                };
                if mask == 0xff
                    && let Some((origin, lowest)) = self.known.load_part(a)
                {
                    return self.load_byte(origin, lowest);
                }
                let swapped = self.known.info(a).swapped?;
                let high = self.known.range(a).1.min(mask);
                let raw = self.b.ins().band_imm_u(swapped.raw, i64::from(swapped.swap(mask)));
                let value = self.b.ins().band_imm_u(a, i64::from(mask));
                self.known.set_range(value, 0, high);
                self.known.info_mut(value).swapped = Some(ByteSwapped { raw, ..swapped });
                Some(value)
            }
            _ => None,
        }
    }

    /// Emits byte `index` of a loaded value, 0 being the lowest.
    fn load_byte(&mut self, origin: Value, index: u32) -> Option<Value> {
        // Bytes beyond the load are zero; in memory they may not even belong to the packet.
        if index >= self.known.load_size(origin)? {
            return Some(self.constant(0));
        }
        let value = if let Some(loaded) = self.known.info(origin).loaded {
            let at = match loaded.order {
                ByteOrder::Little => index,
                ByteOrder::Big => loaded.size - 1 - index,
            };
            let displacement = loaded.displacement.checked_add(at as i32)?;
            self.b.ins().uload8(clif::I32, loaded.flags, loaded.address, displacement)
        } else {
            let swapped = self.known.info(origin).swapped?;
            let at = swapped.size - 1 - index;
            let shifted = self.b.ins().ushr_imm_u(swapped.raw, i64::from(8 * at));
            if index == 0 { shifted } else { self.b.ins().band_imm_u(shifted, 0xff) }
        };
        self.known.set_range(value, 0, 0xff);
        Some(value)
    }

    fn power_of_two(&self, value: Value) -> Option<u32> {
        self.known.constant(value).filter(|constant| constant.is_power_of_two())
    }

    /// Emits a divisor that makes division behave as WGSL defines it: 1 instead of 0 (x / 0 is x, x
    /// % 0 is 0), and instead of −1 if the dividend is the smallest number (MIN / −1 is MIN, MIN %
    /// −1 is 0).
    fn divisor(&mut self, leaf: Leaf, a: Value, b: Value) -> Value {
        if leaf.clif() == clif::I32 && leaf.0.kind != ScalarKind::Sint && self.known.range(b).0 > 0 {
            return b;
        }
        let mut bad = self.b.ins().icmp_imm_u(IntCC::Equal, b, 0);
        if leaf.0.kind == ScalarKind::Sint {
            let least = if leaf.0.width == 8 { i64::MIN } else { i64::from(i32::MIN) };
            let least = self.b.ins().icmp_imm_s(IntCC::Equal, a, least);
            let minus_one = self.b.ins().icmp_imm_s(IntCC::Equal, b, -1);
            let overflow = self.b.ins().band(least, minus_one);
            bad = self.b.ins().bor(bad, overflow);
        }
        let one = self.b.ins().iconst(leaf.clif(), 1);
        self.b.ins().select(bad, one, b)
    }

    /// Records the range of a u32 operator's result, and returns a constant if it has a single
    /// element.
    fn record_range(&mut self, op: Op, value: Value, a: Value, b: Value) -> Value {
        let ((a_low, a_high), (b_low, b_high)) = (self.known.range(a), self.known.range(b));
        // All ones up to the highest bit that can be set.
        let ones = |high: u32| high.checked_ilog2().map_or(0, |bit| u32::MAX >> (31 - bit));
        let range = match op {
            Op::Add => a_high.checked_add(b_high).map(|high| (a_low + b_low, high)),
            Op::Subtract => (a_low >= b_high).then(|| (a_low - b_high, a_high - b_low)),
            Op::Multiply => a_high.checked_mul(b_high).map(|high| (a_low * b_low, high)),
            Op::Divide if b_low > 0 => Some((a_low / b_high, a_high / b_low)),
            Op::Divide => Some((0, a_high)),
            Op::Modulo if b_high > 0 => Some((0, a_high.min(b_high - 1))),
            Op::Modulo => Some((0, 0)),
            Op::And => Some((0, a_high.min(b_high))),
            Op::InclusiveOr => Some((a_low.max(b_low), ones(a_high) | ones(b_high))),
            Op::ExclusiveOr => Some((0, ones(a_high) | ones(b_high))),
            Op::ShiftRight if b_low == b_high => Some((a_low >> (b_low & 31), a_high >> (b_low & 31))),
            Op::ShiftRight => Some((0, a_high)),
            Op::ShiftLeft if b_low == b_high => {
                let factor = 1u32 << (b_low & 31);
                a_high.checked_mul(factor).map(|high| (a_low * factor, high))
            }
            _ => None,
        };
        let range = match (op, self.known.constant(a), self.known.constant(b)) {
            (Op::And, Some(a), Some(b)) => Some((a & b, a & b)),
            (Op::ExclusiveOr, Some(a), Some(b)) => Some((a ^ b, a ^ b)),
            (Op::InclusiveOr, Some(a), Some(b)) => Some((a | b, a | b)),
            (Op::Modulo, Some(a), Some(b)) if b > 0 => Some((a % b, a % b)),
            _ => range,
        };
        let Some((low, high)) = range else { return value };
        if low == high {
            return self.constant(low);
        }
        self.known.set_range(value, low, high);
        if op == Op::Add {
            if let Some(add) = self.known.constant(b) {
                self.known.set_sum(value, a, add);
            } else if let Some(add) = self.known.constant(a) {
                self.known.set_sum(value, b, add);
            }
        }
        value
    }

    fn float_operator(&mut self, op: Op, leaf: Leaf, a: Value, b: Value) -> Result<Value> {
        Ok(match op {
            Op::Add => self.b.ins().fadd(a, b),
            Op::Subtract => self.b.ins().fsub(a, b),
            Op::Multiply => self.b.ins().fmul(a, b),
            Op::Divide => self.b.ins().fdiv(a, b),
            Op::Modulo => {
                let quotient = self.b.ins().fdiv(a, b);
                let whole = self.call_float(FloatFunction::Trunc, leaf, &[quotient])?;
                let product = self.b.ins().fmul(whole, b);
                self.b.ins().fsub(a, product)
            }
            Op::Equal => self.b.ins().fcmp(FloatCC::Equal, a, b),
            Op::NotEqual => self.b.ins().fcmp(FloatCC::NotEqual, a, b),
            Op::Less => self.b.ins().fcmp(FloatCC::LessThan, a, b),
            Op::LessEqual => self.b.ins().fcmp(FloatCC::LessThanOrEqual, a, b),
            Op::Greater => self.b.ins().fcmp(FloatCC::GreaterThan, a, b),
            Op::GreaterEqual => self.b.ins().fcmp(FloatCC::GreaterThanOrEqual, a, b),
            other => return Err(Unsupported(format!("{other:?} on floating point"))),
        })
    }

    pub(super) fn unary(&mut self, op: UnaryOperator, leaf: Leaf, value: Value) -> Value {
        match (op, leaf.0.kind) {
            (UnaryOperator::Negate, ScalarKind::Float) => self.b.ins().fneg(value),
            (UnaryOperator::Negate, _) => self.b.ins().ineg(value),
            (UnaryOperator::LogicalNot, _) => self.logical_not(value),
            (UnaryOperator::BitwiseNot, _) => self.b.ins().bnot(value),
        }
    }

    /// Emits `condition ? accept : reject`.
    pub(super) fn select(&mut self, condition: Value, accept: Value, reject: Value) -> Value {
        if accept == reject {
            return accept;
        }
        match self.known.constant(condition) {
            Some(0) => return reject,
            Some(_) => return accept,
            None => {}
        }
        let ty = self.b.func.dfg.value_type(accept);
        if ty == clif::I8 {
            // Lower booleans to && and ||, which carry length facts; a select does not.
            match (self.known.constant(accept), self.known.constant(reject)) {
                (Some(1), _) => return self.logical_or(condition, reject),
                (_, Some(0)) => return self.logical_and(condition, accept),
                (Some(_), _) => {
                    let not = self.logical_not(condition);
                    return self.logical_and(not, reject);
                }
                (_, Some(_)) => {
                    let not = self.logical_not(condition);
                    return self.logical_or(not, accept);
                }
                _ => {}
            }
        }
        if let Some(choice) = self.as_constant_select(condition, accept, reject) {
            return self.emit_constant_select(choice);
        }
        let value = self.b.ins().select(condition, accept, reject);
        if ty == clif::I32 {
            let ((a_low, a_high), (b_low, b_high)) = (self.known.range(accept), self.known.range(reject));
            self.known.set_range(value, a_low.min(b_low), a_high.max(b_high));
            if self.known.is_verdict(accept) && self.known.is_verdict(reject) {
                self.known.info_mut(value).is_verdict = true;
            }
        }
        value
    }

    /// Returns a select as a choice between two constants, if its arms are constants or such
    /// selects.
    fn as_constant_select(&mut self, condition: Value, accept: Value, reject: Value) -> Option<ConstantSelect> {
        if self.b.func.dfg.value_type(accept) != clif::I32 {
            return None;
        }
        match (self.known.constant(accept), self.known.constant(reject)) {
            (Some(accept), Some(reject)) => Some(ConstantSelect { condition, accept, reject }),
            (Some(constant), None) => {
                self.merge_constant_select(condition, constant, self.known.info(reject).constant_select?)
            }
            (None, Some(constant)) => {
                let inner = self.known.info(accept).constant_select?;
                if [inner.accept, inner.reject].contains(&constant) {
                    let not = self.logical_not(condition);
                    return self.merge_constant_select(not, constant, inner);
                }
                None
            }
            (None, None) => None,
        }
    }

    /// Merges `condition ? constant : inner` into `inner` if the constant is one of `inner`'s two.
    fn merge_constant_select(
        &mut self,
        condition: Value,
        constant: u32,
        inner: ConstantSelect,
    ) -> Option<ConstantSelect> {
        let condition = if constant == inner.accept {
            self.logical_or(condition, inner.condition)
        } else if constant == inner.reject {
            let not = self.logical_not(condition);
            self.logical_and(not, inner.condition)
        } else {
            return None;
        };
        Some(ConstantSelect { condition, ..inner })
    }

    /// Emits a select between constants, by arithmetic if they differ by 1.
    fn emit_constant_select(&mut self, choice: ConstantSelect) -> Value {
        let ConstantSelect { condition, accept, reject } = choice;
        if accept == reject {
            return self.constant(accept);
        }
        if let Some(outcome) = self.known.constant(condition) {
            return self.constant(if outcome == 0 { reject } else { accept });
        }
        let value = if accept.abs_diff(reject) == 1 {
            let one = self.b.ins().uextend(clif::I32, condition);
            let reject = self.b.ins().iconst(clif::I32, i64::from(reject));
            if accept > choice.reject { self.b.ins().iadd(reject, one) } else { self.b.ins().isub(reject, one) }
        } else {
            let (accept, reject) = (self.constant(accept), self.constant(reject));
            self.b.ins().select(condition, accept, reject)
        };
        self.known.set_range(value, accept.min(reject), accept.max(reject));
        if [accept, reject].iter().all(|&number| number <= 3) {
            self.known.info_mut(value).is_verdict = true;
        }
        self.known.info_mut(value).constant_select = Some(choice);
        value
    }

    /// Converts a value to another type, of `convert` bytes; without `convert`, reinterprets its
    /// bits.
    pub(super) fn cast(&mut self, value: Value, from: Leaf, kind: ScalarKind, convert: Option<u8>) -> Result<Value> {
        let to = Leaf(naga::Scalar { kind, width: convert.unwrap_or(from.0.width) });
        if convert.is_none() {
            return Ok(match (from.clif(), to.clif()) {
                (a, b) if a == b => value,
                (_, b) => self.b.ins().bitcast(b, MemFlagsData::new(), value),
            });
        }
        use ScalarKind::{Bool, Float, Sint, Uint};
        let signed = from.0.kind == Sint;
        Ok(match (from.0.kind, kind) {
            (Bool, Bool) => value,
            (Bool, Float) => {
                let wide = self.b.ins().uextend(clif::I32, value);
                self.b.ins().fcvt_from_uint(to.clif(), wide)
            }
            (Bool, _) => {
                let wide = self.b.ins().uextend(to.clif(), value);
                if to.clif() == clif::I32 {
                    self.known.set_range(wide, 0, 1);
                }
                wide
            }
            (Sint | Uint, Bool) => self.b.ins().icmp_imm_u(IntCC::NotEqual, value, 0),
            (Float, Bool) => {
                let zero = self.zero(from);
                self.b.ins().fcmp(FloatCC::NotEqual, value, zero)
            }
            (Sint | Uint, Sint | Uint) => match (from.0.width, to.0.width) {
                (4, 8) if signed => self.b.ins().sextend(clif::I64, value),
                (4, 8) => self.b.ins().uextend(clif::I64, value),
                (8, 4) => self.b.ins().ireduce(clif::I32, value),
                _ => value,
            },
            (Sint, Float) => self.b.ins().fcvt_from_sint(to.clif(), value),
            (Uint, Float) => self.b.ins().fcvt_from_uint(to.clif(), value),
            (Float, Sint) => self.b.ins().fcvt_to_sint_sat(to.clif(), value),
            (Float, Uint) => self.b.ins().fcvt_to_uint_sat(to.clif(), value),
            (Float, Float) if from.0.width == to.0.width => value,
            (from, to) => return Err(Unsupported(format!("a conversion from {from:?} to {to:?}"))),
        })
    }
}
