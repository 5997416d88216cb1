//! Calls: of the filter's helpers, which are walked, and of the prelude, whose meaning is known.

use std::rc::Rc;

use naga::{Expression, Function, Handle};

use super::VerdictSet;
use super::interpreter::{AbstractInterpreter, Frame, HEAD_SHIFT, Target};
use super::interval::{IntKind, Interval};
use super::scan::{StatementId, scan};
use super::value::{Int, Value};
use crate::program::prelude::Intrinsic;

/// How far `adjust_head` may move a packet's first byte, in bytes: docs/semantics.md.
const HEAD_SHIFT_RANGE: Interval = Interval::new(-(crate::packet::RESIZE_ROOM as i64), u32::MAX as i64);

impl<'a> AbstractInterpreter<'a> {
    /// Walks a function's body with these arguments. The value it returns, where it does.
    pub(super) fn interpret_function(
        &mut self,
        function: Handle<Function>,
        arguments: Vec<Value>,
        caller: u32,
        place: StatementId,
    ) -> Option<Value> {
        let next = self.instances.len() as u32;
        let instance = *self.instances.entry((caller, place)).or_insert(next);
        let (module, info) = (self.module, self.subject.info);
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
            at_end: 0,
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
        self.iterations = frame.at_end;
        self.continue_from(frame.returns);
        if !self.state.live && !self.frames.is_empty() {
            self.end_path();
        }
        frame.result
    }

    /// A `return`: what the function did to its caller's cells, and its value.
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

    /// A path ends here, other than in the innermost loop's own way: its iterations count for the
    /// last round of the loop that it is in, or else for the function.
    pub(super) fn end_path(&mut self) {
        let iterations = self.iterations;
        let frame = self.frames.len();
        let inner = self.targets.iter_mut().rev().find_map(|target| match target {
            Target::Loop(target) => Some(target),
            Target::Switch { .. } => None,
        });
        match inner {
            Some(target) if target.frame == frame => target.last = target.last.max(iterations),
            _ => {
                let frame = self.frame_mut();
                frame.at_end = frame.at_end.max(iterations);
            }
        }
    }

    pub(super) fn interpret_call(
        &mut self,
        place: StatementId,
        function: Handle<Function>,
        arguments: &[Handle<Expression>],
    ) -> Value {
        if let Some(&intrinsic) = self.subject.intrinsics.get(&function) {
            return self.interpret_intrinsic(intrinsic, arguments);
        }
        if self.subject.prelude.contains(&function) {
            self.give_up();
            return Value::Any;
        }
        let arguments = arguments.iter().map(|&a| self.value(a).clone()).collect();
        let caller = self.frame().instance;
        self.interpret_function(function, arguments, caller, place).unwrap_or(Value::Any)
    }

    fn interpret_intrinsic(&mut self, intrinsic: Intrinsic, arguments: &[Handle<Expression>]) -> Value {
        let full = IntKind::Unsigned.full();
        let argument = |i: usize| arguments.get(i).and_then(|&a| self.range(a));
        match intrinsic {
            Intrinsic::Load { size, .. } => {
                let end = self.end(argument(1).unwrap_or(full), size);
                self.found.read_end = self.found.read_end.max(end);
                Value::range(Interval::new(0, full.hi >> (32 - 8 * size)))
            }
            Intrinsic::Store { size, .. } => {
                let end = self.end(argument(1).unwrap_or(full), size);
                self.found.write_end = self.found.write_end.max(end);
                Value::Any
            }
            Intrinsic::AdjustHead => {
                let delta = argument(1).unwrap_or(IntKind::Signed.full());
                let shift = self.shift();
                if delta.lo < 0 {
                    // New bytes are cleared, in front of the packet or where it was cut off before.
                    self.found.write_end = u64::MAX;
                }
                let moved = Interval::new(shift.lo + delta.lo.min(0), shift.hi + delta.hi.max(0));
                self.state.store(HEAD_SHIFT, Value::range(moved.meet(HEAD_SHIFT_RANGE).unwrap_or(HEAD_SHIFT_RANGE)));
                Value::Any
            }
            Intrinsic::AdjustTail => {
                if argument(1).unwrap_or(IntKind::Signed.full()).hi > 0 {
                    // As for the head.
                    self.found.write_end = u64::MAX;
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
            // Twice the upper half is added to the lower: 0xffff and a carry at the most.
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

    /// One past the last byte of an access, from where the packet began. An offset that would wrap
    /// is no special case: it lies outside every packet.
    fn end(&self, offset: Interval, size: u32) -> u64 {
        u64::try_from(offset.hi + i64::from(size) + self.shift().hi).unwrap_or(0)
    }
}
