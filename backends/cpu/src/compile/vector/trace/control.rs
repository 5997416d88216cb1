//! Statements and calls.

use naga::{AtomicFunction, Block, Expression, Function, Handle, Statement, SwitchCase, SwitchValue};

use super::loops::Loop;
use super::places::kind_of;
use super::tracer::{Exit, Frame, Operand, Place, Target, Trace};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types;
use crate::compile::vector::ir::{Atomic, Compare, Effect, Node, Range};

impl<'a> Trace<'a> {
    /// Whether no lane is here.
    pub(super) fn nobody(&self) -> bool {
        self.dag.as_flag(self.here) == Some(false)
    }

    /// Calls a function: its text is executed in the caller's place.
    pub(super) fn call(&mut self, handle: Handle<Function>, arguments: Vec<Operand>) -> Result<Vec<Node>> {
        let code = &self.module.functions[handle];
        self.spend(1)?;
        let mut frame = Frame {
            handle,
            code,
            info: &self.code.info[handle],
            arguments,
            locals: Vec::with_capacity(code.local_variables.len()),
            values: vec![None; code.expressions.len()],
            base: self.state.len(),
            own: !self.code.prelude.contains(&handle),
        };
        let (all, aborts) = (self.here, self.aborts.len());
        self.init_locals(&mut frame)?;
        self.returns.push(Vec::new());
        self.block(&mut frame, &code.body)?;
        if !self.nobody() {
            self.leave(&frame, Vec::new());
        }
        let exits = self.returns.pop().unwrap_or_default();
        let Some(end) = self.meet(exits, all) else {
            // Nobody comes back: all are out of fuel.
            self.here = self.dag.flag(false);
            self.state.truncate(frame.base);
            return self.nothing(code);
        };
        self.here = if self.aborts.len() == aborts { all } else { end.lanes };
        self.state = end.state;
        Ok(end.value)
    }

    /// Zeros in place of what a function returns.
    fn nothing(&mut self, code: &Function) -> Result<Vec<Node>> {
        let Some(result) = &code.result else { return Ok(Vec::new()) };
        let leaves = types::leaves(self.module, &self.module.types[result.ty].inner)?;
        leaves.into_iter().map(|leaf| kind_of(leaf).map(|kind| self.zero(kind))).collect()
    }

    /// Who is here returns.
    fn leave(&mut self, frame: &Frame<'a>, value: Vec<Node>) {
        let exit = Exit { lanes: self.here, state: self.state[..frame.base].to_vec(), value };
        if let Some(exits) = self.returns.last_mut() {
            exits.push(exit);
        }
        self.depart();
    }

    /// Nobody is here any more.
    pub(super) fn depart(&mut self) {
        self.departures += 1;
        self.here = self.dag.flag(false);
    }

    pub(super) fn block(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<()> {
        for statement in block {
            // What nobody comes to need not be executed.
            if self.nobody() {
                break;
            }
            self.spend(1)?;
            self.statement(frame, statement)?;
        }
        Ok(())
    }

    fn statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<()> {
        match statement {
            Statement::Emit(range) => self.emit(frame, range.clone()),
            Statement::Block(block) => self.block(frame, block),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(frame, *condition)?;
                self.branch(frame, condition, accept, reject)
            }
            Statement::Switch { selector, cases } => {
                let selector = self.scalar(frame, *selector)?;
                self.switch(frame, selector, cases)
            }
            Statement::Loop { body, continuing, break_if } => {
                self.repeat(frame, Loop { body, continuing, break_if: *break_if })
            }
            Statement::Break => {
                let exit = Exit { lanes: self.here, state: self.state.clone(), value: Vec::new() };
                match self.targets.last_mut() {
                    Some(Target::Switch { breaks }) => {
                        breaks.push(exit);
                        self.here = self.dag.flag(false);
                    }
                    Some(Target::Loop { breaks, .. }) => {
                        breaks.push(exit);
                        self.depart();
                    }
                    None => return Err(Unsupported("a break outside a loop".into())),
                }
                Ok(())
            }
            Statement::Continue => {
                let exit = Exit { lanes: self.here, state: self.state.clone(), value: Vec::new() };
                let target = self.targets.iter_mut().rev().find_map(|target| match target {
                    Target::Loop { continues, .. } => Some(continues),
                    Target::Switch { .. } => None,
                });
                target.ok_or_else(|| Unsupported("a continue outside a loop".into()))?.push(exit);
                self.depart();
                Ok(())
            }
            Statement::Return { value } => {
                let value = value.map(|value| self.value(frame, value)).transpose()?.unwrap_or_default();
                self.leave(frame, value);
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
                        self.call(*function, arguments)?
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
            AtomicFunction::Exchange { compare: None } => Atomic::Exchange(value),
            AtomicFunction::Exchange { compare: Some(compare) } => {
                Atomic::CompareExchange { expected: self.scalar(frame, compare)?, value }
            }
            other => return Err(Unsupported(format!("the atomic function {other:?}"))),
        };
        let before = self.effect(self.here, Effect::Map { map, word: index, atomic }, Range::ALL);
        Ok(match atomic {
            Atomic::CompareExchange { expected, .. } => {
                vec![before, self.dag.compare(Compare::Equal, before, expected)]
            }
            _ => vec![before],
        })
    }

    fn branch(&mut self, frame: &mut Frame<'a>, condition: Node, accept: &'a Block, reject: &'a Block) -> Result<()> {
        let all = self.here;
        let opposite = self.dag.not(condition);
        let (yes, no) = (self.dag.both(all, condition), self.dag.both(all, opposite));
        match (self.dag.as_flag(yes), self.dag.as_flag(no)) {
            (_, Some(false)) => return self.block(frame, accept),
            (Some(false), _) => return self.block(frame, reject),
            _ => {}
        }
        let before = self.state.clone();
        self.within(yes, |trace| trace.block(frame, accept))?;
        let (after_yes, left) = (std::mem::replace(&mut self.state, before), self.here);
        let kept = Exit { lanes: left, state: after_yes, value: Vec::new() };
        self.within(no, |trace| trace.block(frame, reject))?;
        let after = if self.nobody() {
            (self.here, self.state) = (kept.lanes, kept.state);
            return Ok(());
        } else if self.dag.as_flag(kept.lanes) == Some(false) {
            return Ok(());
        } else if left == yes && self.here == no {
            all
        } else {
            self.dag.either(kept.lanes, self.here)
        };
        for (slot, theirs) in self.state.iter_mut().zip(kept.state) {
            *slot = self.dag.select(condition, theirs, *slot);
        }
        self.here = after;
        Ok(())
    }

    fn switch(&mut self, frame: &mut Frame<'a>, selector: Node, cases: &'a [SwitchCase]) -> Result<()> {
        let (all, before, departures) = (self.here, self.state.clone(), self.departures);
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
            any = self.dag.either(any, mask);
            chosen.push(Some(mask));
        }
        let other = self.dag.not(any);
        let mut exits = Vec::new();
        if !chosen.contains(&None) {
            let lanes = self.dag.both(all, other);
            exits.push(Exit { lanes, state: before.clone(), value: Vec::new() });
        }
        self.targets.push(Target::Switch { breaks: exits });
        // Who falls through to the next case.
        let mut falls = self.dag.flag(false);
        self.state.clone_from(&before);
        for (case, mask) in cases.iter().zip(chosen) {
            let mask = mask.unwrap_or(other);
            let enters = self.dag.both(all, mask);
            if self.dag.as_flag(falls) == Some(false) {
                self.state.clone_from(&before);
            } else {
                for (slot, fresh) in self.state.iter_mut().zip(&before) {
                    *slot = self.dag.select(mask, *fresh, *slot);
                }
            }
            let lanes = self.dag.either(enters, falls);
            if self.dag.as_flag(lanes) != Some(false) {
                self.within(lanes, |trace| trace.block(frame, &case.body))?;
            } else {
                self.here = lanes;
            }
            falls = self.dag.flag(false);
            if case.fall_through {
                falls = self.here;
            } else if !self.nobody() {
                let exit = Exit { lanes: self.here, state: self.state.clone(), value: Vec::new() };
                if let Some(Target::Switch { breaks }) = self.targets.last_mut() {
                    breaks.push(exit);
                }
            }
        }
        let Some(Target::Switch { breaks }) = self.targets.pop() else {
            return Err(Unsupported("a switch that is left by another".into()));
        };
        match self.meet(breaks, all) {
            Some(end) => {
                self.here = if self.departures == departures { all } else { end.lanes };
                self.state = end.state;
            }
            None => self.here = self.dag.flag(false),
        }
        Ok(())
    }
}
