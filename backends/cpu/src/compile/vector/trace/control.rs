//! Tracing of statements and calls.

use naga::{AtomicFunction, Block, Expression, Function, Handle, Statement, SwitchCase, SwitchValue};

use super::loops::LoopStatement;
use super::places::kind_of;
use super::tracer::{Exit, Frame, JumpTarget, Operand, Place, Tracer};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types;
use crate::compile::vector::ir::{Atomic, Compare, Effect, Node, Range};

impl<'a> Tracer<'a> {
    /// Whether no lane is active.
    pub(super) fn is_unreachable(&self) -> bool {
        self.dag.as_flag(self.active) == Some(false)
    }

    /// Traces the body of a function in place of a call.
    pub(super) fn inline_call(&mut self, handle: Handle<Function>, arguments: Vec<Operand>) -> Result<Vec<Node>> {
        let code = &self.module.functions[handle];
        self.count_executed(1)?;
        let mut frame = Frame {
            handle,
            code,
            info: &self.code.info[handle],
            arguments,
            locals: Vec::with_capacity(code.local_variables.len()),
            values: vec![None; code.expressions.len()],
            base: self.state.len(),
            burns_fuel: !self.code.prelude.contains(&handle),
        };
        let (all, aborts) = (self.active, self.aborts.len());
        self.init_locals(&mut frame)?;
        self.returns.push(Vec::new());
        self.trace_block(&mut frame, &code.body)?;
        if !self.is_unreachable() {
            self.return_active_lanes(&frame, Vec::new());
        }
        let exits = self.returns.pop().unwrap_or_default();
        let Some(end) = self.merge_exits(exits, all) else {
            // No lane returns: all are out of fuel.
            self.active = self.dag.flag(false);
            self.state.truncate(frame.base);
            return self.zero_result(code);
        };
        self.active = if self.aborts.len() == aborts { all } else { end.lanes };
        self.state = end.state;
        Ok(end.value)
    }

    /// Zeros of a function's result type.
    fn zero_result(&mut self, code: &Function) -> Result<Vec<Node>> {
        let Some(result) = &code.result else { return Ok(Vec::new()) };
        let leaves = types::leaves(self.module, &self.module.types[result.ty].inner)?;
        leaves.into_iter().map(|leaf| kind_of(leaf).map(|kind| self.zero(kind))).collect()
    }

    /// Makes the active lanes return.
    fn return_active_lanes(&mut self, frame: &Frame<'a>, value: Vec<Node>) {
        let exit = Exit { lanes: self.active, state: self.state[..frame.base].to_vec(), value };
        if let Some(exits) = self.returns.last_mut() {
            exits.push(exit);
        }
        self.deactivate_all();
    }

    /// Deactivates all lanes, which have left for elsewhere.
    pub(super) fn deactivate_all(&mut self) {
        self.departures += 1;
        self.active = self.dag.flag(false);
    }

    pub(super) fn trace_block(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<()> {
        for statement in block {
            // Unreachable statements are not traced.
            if self.is_unreachable() {
                break;
            }
            self.count_executed(1)?;
            self.trace_statement(frame, statement)?;
        }
        Ok(())
    }

    fn trace_statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<()> {
        match statement {
            Statement::Emit(range) => self.emit(frame, range.clone()),
            Statement::Block(block) => self.trace_block(frame, block),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(frame, *condition)?;
                self.trace_if(frame, condition, accept, reject)
            }
            Statement::Switch { selector, cases } => {
                let selector = self.scalar(frame, *selector)?;
                self.trace_switch(frame, selector, cases)
            }
            Statement::Loop { body, continuing, break_if } => {
                self.trace_loop(frame, LoopStatement { body, continuing, break_if: *break_if })
            }
            Statement::Break => {
                let exit = Exit { lanes: self.active, state: self.state.clone(), value: Vec::new() };
                match self.targets.last_mut() {
                    Some(JumpTarget::Switch { breaks }) => {
                        breaks.push(exit);
                        self.active = self.dag.flag(false);
                    }
                    Some(JumpTarget::Loop { breaks, .. }) => {
                        breaks.push(exit);
                        self.deactivate_all();
                    }
                    None => return Err(Unsupported("a break outside a loop".into())),
                }
                Ok(())
            }
            Statement::Continue => {
                let exit = Exit { lanes: self.active, state: self.state.clone(), value: Vec::new() };
                let target = self.targets.iter_mut().rev().find_map(|target| match target {
                    JumpTarget::Loop { continues, .. } => Some(continues),
                    JumpTarget::Switch { .. } => None,
                });
                target.ok_or_else(|| Unsupported("a continue outside a loop".into()))?.push(exit);
                self.deactivate_all();
                Ok(())
            }
            Statement::Return { value } => {
                let value = value.map(|value| self.value(frame, value)).transpose()?.unwrap_or_default();
                self.return_active_lanes(frame, value);
                Ok(())
            }
            Statement::Store { pointer, value } => {
                let place = self.place(frame, *pointer)?;
                let value = self.value(frame, *value)?;
                self.store(place, &value)
            }
            Statement::Call { function, arguments, result } => {
                let value = match self.code.intrinsics.get(function).copied() {
                    Some(intrinsic) if intrinsic.takes_packet() => {
                        let mut scalars = Vec::new();
                        for &argument in &arguments[1..] {
                            scalars.push(self.scalar(frame, argument)?);
                        }
                        self.intrinsic(intrinsic, &scalars)?
                    }
                    _ => {
                        let arguments = arguments.iter().map(|&a| self.operand(frame, a)).collect::<Result<_>>()?;
                        self.inline_call(*function, arguments)?
                    }
                };
                if let Some(result) = result {
                    frame.values[result.index()] = Some(Operand::Value(value));
                }
                Ok(())
            }
            Statement::Atomic { pointer, fun, value, result } => {
                let given = self.atomic(frame, *pointer, *fun, *value)?;
                if let Some(result) = result {
                    frame.values[result.index()] = Some(Operand::Value(given));
                }
                Ok(())
            }
            other => Err(Unsupported(format!("the statement {other:?}"))),
        }
    }

    fn atomic(
        &mut self,
        frame: &mut Frame<'a>,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
    ) -> Result<Vec<Node>> {
        let Place::Map { map, index } = self.place(frame, pointer)? else {
            return Err(Unsupported("an atomic variable that is not in a map".into()));
        };
        let value = self.scalar(frame, value)?;
        let atomic = match function {
            AtomicFunction::Add => Atomic::Add(value),
            AtomicFunction::Min => Atomic::Min(value),
            AtomicFunction::Max => Atomic::Max(value),
            AtomicFunction::InclusiveOr => Atomic::Or(value),
            AtomicFunction::Exchange { compare: None } => Atomic::Exchange(value),
            AtomicFunction::Exchange { compare: Some(compare) } => {
                Atomic::CompareExchange { expected: self.scalar(frame, compare)?, value }
            }
            other => return Err(Unsupported(format!("the atomic function {other:?}"))),
        };
        let before = self.push_effect(self.active, Effect::Map { map, word: index, atomic }, Range::ALL);
        Ok(match atomic {
            Atomic::CompareExchange { expected, .. } => {
                vec![before, self.dag.compare(Compare::Equal, before, expected)]
            }
            _ => vec![before],
        })
    }

    fn trace_if(&mut self, frame: &mut Frame<'a>, condition: Node, accept: &'a Block, reject: &'a Block) -> Result<()> {
        let all = self.active;
        let opposite = self.dag.mask_not(condition);
        let (yes, no) = (self.dag.mask_and(all, condition), self.dag.mask_and(all, opposite));
        match (self.dag.as_flag(yes), self.dag.as_flag(no)) {
            (_, Some(false)) => return self.trace_block(frame, accept),
            (Some(false), _) => return self.trace_block(frame, reject),
            _ => {}
        }
        let before = self.state.clone();
        self.in_region(yes, |trace| trace.trace_block(frame, accept))?;
        let (after_yes, left) = (std::mem::replace(&mut self.state, before), self.active);
        let kept = Exit { lanes: left, state: after_yes, value: Vec::new() };
        self.in_region(no, |trace| trace.trace_block(frame, reject))?;
        let after = if self.is_unreachable() {
            (self.active, self.state) = (kept.lanes, kept.state);
            return Ok(());
        } else if self.dag.as_flag(kept.lanes) == Some(false) {
            return Ok(());
        } else if left == yes && self.active == no {
            all
        } else {
            self.dag.mask_or(kept.lanes, self.active)
        };
        for (slot, theirs) in self.state.iter_mut().zip(kept.state) {
            *slot = self.dag.select(condition, theirs, *slot);
        }
        self.active = after;
        Ok(())
    }

    fn trace_switch(&mut self, frame: &mut Frame<'a>, selector: Node, cases: &'a [SwitchCase]) -> Result<()> {
        let (all, before, departures) = (self.active, self.state.clone(), self.departures);
        let mut chosen = Vec::with_capacity(cases.len());
        let mut any = self.dag.flag(false);
        for case in cases {
            let value = match case.value {
                SwitchValue::U32(value) => value,
                SwitchValue::I32(value) => value as u32,
                SwitchValue::Default => {
                    chosen.push(None);
                    continue;
                }
            };
            let value = self.dag.constant(value);
            let mask = self.dag.compare(Compare::Equal, selector, value);
            any = self.dag.mask_or(any, mask);
            chosen.push(Some(mask));
        }
        let other = self.dag.mask_not(any);
        let mut exits = Vec::new();
        if !chosen.contains(&None) {
            let lanes = self.dag.mask_and(all, other);
            exits.push(Exit { lanes, state: before.clone(), value: Vec::new() });
        }
        self.targets.push(JumpTarget::Switch { breaks: exits });
        // Lanes that fall through to the next case.
        let mut falls = self.dag.flag(false);
        self.state.clone_from(&before);
        for (case, mask) in cases.iter().zip(chosen) {
            let mask = mask.unwrap_or(other);
            let enters = self.dag.mask_and(all, mask);
            if self.dag.as_flag(falls) == Some(false) {
                self.state.clone_from(&before);
            } else {
                for (slot, fresh) in self.state.iter_mut().zip(&before) {
                    *slot = self.dag.select(mask, *fresh, *slot);
                }
            }
            let lanes = self.dag.mask_or(enters, falls);
            if self.dag.as_flag(lanes) != Some(false) {
                self.in_region(lanes, |trace| trace.trace_block(frame, &case.body))?;
            } else {
                self.active = lanes;
            }
            falls = self.dag.flag(false);
            if case.fall_through {
                falls = self.active;
            } else if !self.is_unreachable() {
                let exit = Exit { lanes: self.active, state: self.state.clone(), value: Vec::new() };
                if let Some(JumpTarget::Switch { breaks }) = self.targets.last_mut() {
                    breaks.push(exit);
                }
            }
        }
        let Some(JumpTarget::Switch { breaks }) = self.targets.pop() else {
            return Err(Unsupported("unbalanced switch statements, which is a fault of Portcullis".into()));
        };
        match self.merge_exits(breaks, all) {
            Some(end) => {
                self.active = if self.departures == departures { all } else { end.lanes };
                self.state = end.state;
            }
            None => self.active = self.dag.flag(false),
        }
        Ok(())
    }
}
