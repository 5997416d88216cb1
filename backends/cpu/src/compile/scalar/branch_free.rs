//! Control flow without branches: if-conversion of cheap statements without side effects.

use std::collections::BTreeMap;

use cranelift_codegen::ir::Value;
use cranelift_frontend::Variable;
use naga::{Block, Handle, Statement, SwitchCase, SwitchValue};
use portcullis_core::program::prelude::Intrinsic;

use super::codegen::{Codegen, Frame, Operand, ReturnTarget};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types;

/// A `return` that has not been turned into control flow: its condition and its value.
#[derive(Debug, Clone)]
pub(super) struct PendingReturn {
    pub returned: Value,
    pub value: Vec<Value>,
}

/// How control leaves branch-free code.
pub(super) enum Outcome {
    /// Falls through, unless the condition of a pending return holds.
    FallsThrough(Option<PendingReturn>),
    /// Every path returns; this is the value selected between them.
    Returns(Vec<Value>),
}

impl<'a> Codegen<'a, '_> {
    /// Lowers a statement that neither branches nor returns.
    pub fn lower_simple_statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<()> {
        match statement {
            Statement::Emit(range) => self.emit(frame, range.clone()),
            Statement::Store { pointer, value } => self.store_through(frame, *pointer, *value),
            Statement::Call { function, arguments, result } => {
                let Some(intrinsic) = self.inlined_intrinsic(*function) else {
                    return Err(Unsupported("a branch-free call of a function that is not inlined".into()));
                };
                let mut scalars = Vec::with_capacity(3);
                for &argument in &arguments[usize::from(intrinsic.takes_packet())..] {
                    scalars.push(self.scalar(frame, argument)?);
                }
                let value = self.intrinsic(intrinsic, &scalars)?;
                if let Some(result) = result {
                    frame.values[result.index()] = Some(Operand::Value(value));
                }
                Ok(())
            }
            Statement::Atomic { pointer, fun, value, result } => {
                let before = self.atomic(frame, *pointer, *fun, *value)?;
                if let Some(result) = result {
                    frame.values[result.index()] = Some(Operand::Value(before));
                }
                Ok(())
            }
            other => Err(Unsupported(format!("the statement {other:?}"))),
        }
    }

    /// Returns the intrinsic that a prelude function is, unless its body is compiled like the
    /// filter's own functions.
    pub fn inlined_intrinsic(&self, function: Handle<naga::Function>) -> Option<Intrinsic> {
        self.program.intrinsic(function).filter(|intrinsic| !intrinsic.is_map_function())
    }

    pub fn branch_free_block(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<Outcome> {
        let mut pending = None;
        for statement in block.iter() {
            match self.branch_free_statement(frame, statement)? {
                Outcome::FallsThrough(new) => pending = self.merge_pending(pending, new),
                Outcome::Returns(value) => return Ok(Outcome::Returns(self.unless_returned(&pending, value))),
            }
        }
        Ok(Outcome::FallsThrough(pending))
    }

    pub fn branch_free_statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<Outcome> {
        match statement {
            Statement::Block(block) => self.branch_free_block(frame, block),
            Statement::Return { value } => Ok(Outcome::Returns(match value {
                Some(value) => self.value(frame, *value)?,
                None => Vec::new(),
            })),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(frame, *condition)?;
                self.select_arms(
                    frame,
                    condition,
                    |s, f| s.branch_free_block(f, accept),
                    |s, f| s.branch_free_block(f, reject),
                )
            }
            Statement::Switch { selector, cases } => {
                let selector = self.scalar(frame, *selector)?;
                self.branch_free_switch(frame, selector, cases)
            }
            Statement::Call { function, arguments, result } if self.inlined_intrinsic(*function).is_none() => {
                let arguments = arguments.iter().map(|&a| self.operand(frame, a)).collect::<Result<_>>()?;
                let stack = self.stack.top;
                let mut callee = self.new_frame(*function, arguments, ReturnTarget::Collected)?;
                let outer = self.assumed.clone();
                let body = &callee.code.body;
                let outcome = self.branch_free_block(&mut callee, body)?;
                self.stack.top = stack;
                // What the callee's early returns imply holds for the rest of the callee, not for
                // the caller.
                self.assumed = outer;
                if let (Some(result), Outcome::Returns(value)) = (result, outcome) {
                    frame.values[result.index()] = Some(Operand::Value(value));
                }
                Ok(Outcome::FallsThrough(None))
            }
            other => {
                self.lower_simple_statement(frame, other)?;
                Ok(Outcome::FallsThrough(None))
            }
        }
    }

    /// Evaluates both arms of a condition and selects between the variables and returns that they
    /// leave.
    pub fn select_arms(
        &mut self,
        frame: &mut Frame<'a>,
        condition: Value,
        accept: impl FnOnce(&mut Self, &mut Frame<'a>) -> Result<Outcome>,
        reject: impl FnOnce(&mut Self, &mut Frame<'a>) -> Result<Outcome>,
    ) -> Result<Outcome> {
        self.saves_branches = true;
        let before = self.assumed.clone();
        let length = self.packet_length();

        self.undo_logs.push(Default::default());
        let facts = self.known.implied_facts(condition, true).to_vec();
        self.assumed.learn(length, &facts);
        let accepted = accept(self, frame)?;
        let accept_lengths = std::mem::replace(&mut self.assumed, before);
        // Restore the variables for the other arm, keeping the values that this one left.
        let old = self.undo_logs.pop().unwrap_or_default();
        let mut left = BTreeMap::new();
        for (&variable, &old) in &old {
            let accepted = self.b.use_var(Variable::from_u32(variable));
            left.insert(variable, (accepted, old));
            self.b.def_var(Variable::from_u32(variable), old);
        }

        self.undo_logs.push(Default::default());
        let facts = self.known.implied_facts(condition, false).to_vec();
        self.assumed.learn(length, &facts);
        let rejected = reject(self, frame)?;
        let old = self.undo_logs.pop().unwrap_or_default();
        for (&variable, &old) in &old {
            left.entry(variable).or_insert((old, old));
        }
        for (variable, (accepted, old)) in left {
            let variable = Variable::from_u32(variable);
            let rejected = self.b.use_var(variable);
            let value = self.select(condition, accepted, rejected);
            self.b.def_var(variable, old);
            self.assign(variable, value);
        }

        self.assumed = match (&accepted, &rejected) {
            (Outcome::Returns(_), _) => std::mem::take(&mut self.assumed),
            (_, Outcome::Returns(_)) => accept_lengths,
            _ => accept_lengths.meet(&self.assumed),
        };
        Ok(match (accepted, rejected) {
            (Outcome::Returns(a), Outcome::Returns(b)) => Outcome::Returns(self.select_all(condition, &a, &b)),
            (Outcome::FallsThrough(None), Outcome::FallsThrough(None)) => Outcome::FallsThrough(None),
            (Outcome::Returns(a), Outcome::FallsThrough(None)) => {
                Outcome::FallsThrough(Some(PendingReturn { returned: condition, value: a }))
            }
            (Outcome::FallsThrough(None), Outcome::Returns(b)) => {
                let returned = self.logical_not(condition);
                Outcome::FallsThrough(Some(PendingReturn { returned, value: b }))
            }
            (Outcome::Returns(a), Outcome::FallsThrough(Some(b))) => {
                let returned = self.logical_or(condition, b.returned);
                Outcome::FallsThrough(Some(PendingReturn { returned, value: self.select_all(condition, &a, &b.value) }))
            }
            (Outcome::FallsThrough(Some(a)), Outcome::Returns(b)) => {
                let not = self.logical_not(condition);
                let returned = self.logical_or(not, a.returned);
                Outcome::FallsThrough(Some(PendingReturn { returned, value: self.select_all(condition, &a.value, &b) }))
            }
            (Outcome::FallsThrough(Some(a)), Outcome::FallsThrough(None)) => {
                let returned = self.logical_and(condition, a.returned);
                Outcome::FallsThrough(Some(PendingReturn { returned, value: a.value }))
            }
            (Outcome::FallsThrough(None), Outcome::FallsThrough(Some(b))) => {
                let not = self.logical_not(condition);
                let returned = self.logical_and(not, b.returned);
                Outcome::FallsThrough(Some(PendingReturn { returned, value: b.value }))
            }
            (Outcome::FallsThrough(Some(a)), Outcome::FallsThrough(Some(b))) => {
                let returned = self.select(condition, a.returned, b.returned);
                Outcome::FallsThrough(Some(PendingReturn {
                    returned,
                    value: self.select_all(condition, &a.value, &b.value),
                }))
            }
        })
    }

    /// Evaluates all cases, the default last.
    pub fn branch_free_switch(
        &mut self,
        frame: &mut Frame<'a>,
        selector: Value,
        cases: &'a [SwitchCase],
    ) -> Result<Outcome> {
        let mut arms: Vec<(Option<Value>, &'a Block)> = Vec::new();
        let mut default = None;
        let (mut condition, mut is_default): (Option<Value>, bool) = (None, false);
        for case in cases {
            match case.value {
                SwitchValue::Default => is_default = true,
                SwitchValue::U32(_) | SwitchValue::I32(_) => {
                    let value = match case.value {
                        SwitchValue::U32(value) => value,
                        SwitchValue::I32(value) => value as u32,
                        SwitchValue::Default => unreachable!("matched above"),
                    };
                    let value = self.constant(value);
                    let leaf = types::Leaf(naga::Scalar::U32);
                    let here = self.binary(naga::BinaryOperator::Equal, leaf, selector, value)?;
                    condition = Some(match condition {
                        Some(condition) => self.logical_or(condition, here),
                        None => here,
                    });
                }
            }
            if !case.fall_through {
                // `case 1, default:` is the default: the 1 adds nothing.
                if is_default {
                    default = Some(&case.body);
                } else {
                    arms.push((condition, &case.body));
                }
                (condition, is_default) = (None, false);
            }
        }
        self.branch_free_arms(frame, &arms, default)
    }

    pub fn branch_free_arms(
        &mut self,
        frame: &mut Frame<'a>,
        arms: &[(Option<Value>, &'a Block)],
        default: Option<&'a Block>,
    ) -> Result<Outcome> {
        match arms {
            [] => match default {
                Some(block) => self.branch_free_block(frame, block),
                None => Ok(Outcome::FallsThrough(None)),
            },
            [(None, _), rest @ ..] => self.branch_free_arms(frame, rest, default),
            [(Some(condition), block), rest @ ..] => self.select_arms(
                frame,
                *condition,
                |s, f| s.branch_free_block(f, block),
                |s, f| s.branch_free_arms(f, rest, default),
            ),
        }
    }

    pub fn select_all(&mut self, condition: Value, a: &[Value], b: &[Value]) -> Vec<Value> {
        a.iter().zip(b).map(|(&a, &b)| self.select(condition, a, b)).collect()
    }

    /// Selects between the value of a pending return and `value`, which is returned otherwise.
    pub fn unless_returned(&mut self, pending: &Option<PendingReturn>, value: Vec<Value>) -> Vec<Value> {
        match pending {
            Some(first) => self.select_all(first.returned, &first.value, &value),
            None => value,
        }
    }

    pub fn merge_pending(
        &mut self,
        first: Option<PendingReturn>,
        second: Option<PendingReturn>,
    ) -> Option<PendingReturn> {
        match (first, second) {
            (Some(first), Some(second)) => {
                let returned = self.logical_or(first.returned, second.returned);
                let value = self.select_all(first.returned, &first.value, &second.value);
                Some(PendingReturn { returned, value })
            }
            (first, second) => first.or(second),
        }
    }
}
