//! Calls: helpers of the filter are interpreted in their body; functions of the prelude have a
//! transfer function each.

use std::rc::Rc;

use naga::{Expression, Function, Handle};

use super::VerdictSet;
use super::interpreter::{AbstractInterpreter, Frame, HEAD_SHIFT};
use super::interval::{IntKind, Interval};
use super::scan::{StatementId, scan};
use super::targets::Target;
use super::value::{Int, Value};
use crate::program::prelude::Intrinsic;

/// Range of the offset of the packet's first byte from its first byte on arrival, in bytes: how far
/// `adjust_head` may move it (docs/reference/semantics.md).
const HEAD_SHIFT_RANGE: Interval = Interval::new(-(crate::packet::RESIZE_ROOM as i64), u32::MAX as i64);

impl<'a> AbstractInterpreter<'a> {
    /// Interprets a function's body with these arguments. Returns the join of its return values, if
    /// any path returns one.
    pub(super) fn interpret_function(
        &mut self,
        function: Handle<Function>,
        arguments: Vec<Value>,
        caller: u32,
        statement: StatementId,
    ) -> Option<Value> {
        let next = self.instances.len() as u32;
        let instance = *self.instances.entry((caller, statement)).or_insert(next);
        let (module, info) = (self.module, self.input.info);
        let scan = self.scans.entry(function).or_insert_with(|| Rc::new(scan(module, &module.functions[function])));
        let scan = scan.clone();
        let body = &module.functions[function];
        let mark = self.state.mark();
        let base = self.state.grow(body.expressions.len() + body.local_variables.len());
        self.frames.push(Frame {
            function: body,
            info: &info[function],
            scan,
            base,
            arguments,
            instance,
            mark,
            returns: Vec::new(),
            result: None,
            max_iterations: 0,
        });
        for (handle, expression) in body.expressions.iter() {
            if expression.needs_pre_emit()
                || matches!(expression, Expression::Compose { .. } | Expression::Splat { .. })
            {
                self.evaluate(handle);
            }
        }
        for (handle, variable) in body.local_variables.iter() {
            let value = match variable.init {
                Some(init) => self.value(init).clone(),
                None => self.shapes.zero(variable.ty),
            };
            let cell = self.frame().local(handle);
            self.state.evaluate(cell, value.without_conditions(), None);
        }
        self.interpret_block(&body.body);
        if self.state.live {
            self.interpret_return(None);
        }
        self.state.undo(mark);
        let frame = self.frames.pop().expect("pushed above");
        self.state.shrink(base, mark);
        self.iterations = frame.max_iterations;
        self.continue_from(frame.returns);
        if !self.state.live && !self.frames.is_empty() {
            self.end_path();
        }
        frame.result
    }

    /// Interprets a `return`: records the changes to the caller's cells and the returned value.
    pub(super) fn interpret_return(&mut self, value: Option<Handle<Expression>>) {
        let value = value.map(|value| self.value(value).without_conditions());
        let (mark, base) = (self.frame().mark, self.frame().base);
        let delta = self.state.delta(mark, base);
        let frame = self.frame_mut();
        frame.returns.push(delta);
        if let Some(value) = value {
            frame.result = Some(match frame.result.take() {
                Some(other) => other.join(&value),
                None => value,
            });
        }
        self.end_path();
        self.state.live = false;
    }

    /// Ends a path that leaves the innermost loop or, outside loops, the function: its iterations
    /// count for the loop's last, partial iteration or for the function.
    pub(super) fn end_path(&mut self) {
        let iterations = self.iterations;
        let frame = self.frames.len();
        let inner = self.targets.iter_mut().rev().find_map(|target| match target {
            Target::Loop(target) => Some(target),
            Target::Switch { .. } => None,
        });
        match inner {
            Some(target) if target.frame == frame => target.max_in_last = target.max_in_last.max(iterations),
            _ => {
                let frame = self.frame_mut();
                frame.max_iterations = frame.max_iterations.max(iterations);
            }
        }
    }

    pub(super) fn interpret_call(
        &mut self,
        statement: StatementId,
        function: Handle<Function>,
        arguments: &[Handle<Expression>],
    ) -> Value {
        if let Some(&intrinsic) = self.input.intrinsics.get(&function) {
            return self.interpret_intrinsic(intrinsic, arguments);
        }
        if self.input.prelude.contains(&function) {
            self.give_up();
            return Value::Any;
        }
        let arguments = arguments.iter().map(|&a| self.value(a).clone()).collect();
        let caller = self.frame().instance;
        self.interpret_function(function, arguments, caller, statement).unwrap_or(Value::Any)
    }

    fn interpret_intrinsic(&mut self, intrinsic: Intrinsic, arguments: &[Handle<Expression>]) -> Value {
        let full = IntKind::Unsigned.full();
        let argument = |i: usize| arguments.get(i).and_then(|&a| self.range(a));
        match intrinsic {
            Intrinsic::Load { size, .. } => {
                let end = self.end(argument(1).unwrap_or(full), size);
                self.inferred.read_end = self.inferred.read_end.max(end);
                Value::range(Interval::new(0, full.hi >> (32 - 8 * size)))
            }
            Intrinsic::Store { size, .. } => {
                let end = self.end(argument(1).unwrap_or(full), size);
                self.inferred.write_end = self.inferred.write_end.max(end);
                Value::Any
            }
            Intrinsic::AdjustHead => {
                let delta = argument(1).unwrap_or(IntKind::Signed.full());
                let shift = self.shift();
                if delta.lo < 0 {
                    // Clears the bytes it adds, whether they lie before the packet or were cut off
                    // earlier.
                    self.inferred.write_end = u64::MAX;
                }
                let moved = Interval::new(shift.lo + delta.lo.min(0), shift.hi + delta.hi.max(0));
                self.state.store(HEAD_SHIFT, Value::range(moved.meet(HEAD_SHIFT_RANGE).unwrap_or(HEAD_SHIFT_RANGE)));
                Value::Any
            }
            Intrinsic::AdjustTail => {
                if argument(1).unwrap_or(IntKind::Signed.full()).hi > 0 {
                    // Clears the bytes it adds, as `AdjustHead` does.
                    self.inferred.write_end = u64::MAX;
                }
                Value::Any
            }
            Intrinsic::Redirect => {
                let port = argument(0).unwrap_or(full);
                let mut int = Int::new(full);
                int.verdicts = VerdictSet::of_redirect(port);
                if port.hi < 1 << 24 {
                    int.range = Interval::new(port.lo << 8 | 4, port.hi << 8 | 4);
                }
                Value::Int(int)
            }
            // The upper half is added to the lower twice: at most 0xffff and a carry.
            Intrinsic::CsumFold => Value::range(Interval::new(0, 0x1_0000)),
            Intrinsic::CsumReplace16 | Intrinsic::CsumReplace32 => Value::range(Interval::new(0, 0xffff)),
            Intrinsic::PktLen
            | Intrinsic::PktWireLen
            | Intrinsic::PktPort
            | Intrinsic::PktTime
            | Intrinsic::PktTimeMs
            | Intrinsic::CsumAdd
            | Intrinsic::MapIsNew
            | Intrinsic::Map { .. } => Value::Any,
        }
    }

    fn shift(&self) -> Interval {
        match self.state.cell(HEAD_SHIFT).value {
            Value::Int(int) => int.range,
            _ => HEAD_SHIFT_RANGE,
        }
    }

    /// One past the last byte that an access reaches, counted from the packet's first byte on
    /// arrival. An offset that wraps needs no special case: it lies outside every packet.
    fn end(&self, offset: Interval, size: u32) -> u64 {
        u64::try_from(offset.hi + i64::from(size) + self.shift().hi).unwrap_or(0)
    }
}
