//! Statements as control flow with branches, and the entry to the branch-free style
//! ([`Style::BranchFree`]), which branches only around code that is costly or has side effects.
//!
//! Branch-free code (`branch_free`) evaluates both arms of an `if` and selects between the values
//! that they leave in variables. A `return` in it becomes a pair, a condition and a value
//! ([`PendingReturn`]), which later returns are selected against, or which becomes one branch
//! before code that must not run needlessly. Mixed traffic makes branches that no predictor can
//! learn, so this is worth far more than the instructions that it wastes.
//!
//! Branching code lowers `&&` and `||` by short-circuit evaluation, from condition to condition
//! ([`BranchTargets`]), without materialising the boolean variables that naga turns them into.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, BlockArg, InstBuilder, Value};
use cranelift_frontend::Switch;
use naga::{Block, Expression, Function, Handle, Statement, SwitchCase, SwitchValue};

use super::branch_free::{Outcome, PendingReturn};
use super::codegen::{Codegen, Frame, LoopTargets, Operand, ReturnTarget};
use super::value_facts::LengthFacts;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::Style;
use crate::compile::types;

/// Maximum cost (see `cost`) of a statement that is executed without branches.
const MAX_SELECT_COST: u32 = 16;

/// Maximum cost of the code behind a pending return that packets execute for nothing if they have
/// returned; beyond it a branch is cheaper.
const MAX_WASTED_COST: u32 = 24;

/// Whether control reaches the end of a block that was lowered with branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockEnd {
    FallsThrough,
    /// Every path returns or jumps elsewhere.
    Diverges,
}

/// A block where several paths join, and what is known about the packet's length on each.
struct MergeBlock {
    block: ir::Block,
    incoming: Vec<(LengthFacts, LengthFacts)>,
}

/// Where a condition leads.
struct BranchTargets {
    if_true: MergeBlock,
    if_false: MergeBlock,
}

/// Consumer of the boolean variable that an `if` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConditionUse {
    /// The statement after next, an `if` with the variable as its condition.
    If,
    /// The statement after next, a store to the variable of an enclosing `&&` or `||`.
    Store,
}

impl<'a> Codegen<'a, '_> {
    /// Continues in a block whose predecessors are all known.
    pub(super) fn switch_to_sealed(&mut self, block: ir::Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    /// Lowers the filter for one packet; every path ends in the verdict block.
    pub(super) fn lower_body(&mut self) -> Result<()> {
        self.init_globals()?;
        let packet = self.constant(0);
        let mut frame =
            self.new_frame(self.program.filter(), vec![Operand::Value(vec![packet])], ReturnTarget::Verdict)?;
        let body = &frame.code.body;
        if self.lower_block(&mut frame, body)? == BlockEnd::FallsThrough {
            // Behind a loop that only fuel ends.
            self.emit_return(&mut frame, &[]);
        }
        Ok(())
    }

    pub(super) fn new_frame(
        &mut self,
        function: Handle<Function>,
        arguments: Vec<Operand>,
        exit: ReturnTarget,
    ) -> Result<Frame<'a>> {
        let code = &self.module.functions[function];
        let info = &self.program.info()[function];
        let mut uses = vec![0; code.local_variables.len()];
        for (handle, expression) in code.expressions.iter() {
            if let Expression::LocalVariable(variable) = expression {
                uses[variable.index()] += info[handle].ref_count;
            }
        }
        let mut frame =
            Frame { function, code, info, uses, arguments, values: vec![None; code.expressions.len()], exit };
        self.count_operations(code.expressions.len())?;
        self.init_locals(&mut frame)?;
        Ok(frame)
    }

    fn statement_cost(&self, frame: &Frame<'a>, statement: &Statement) -> Option<u32> {
        self.costs.statement(self.program, frame.code, statement)
    }

    /// Returns the cost up to the next statement with side effects, and whether the block ends
    /// before there is one.
    fn cost_until_side_effect(&self, frame: &Frame<'a>, statements: &[Statement]) -> (u32, bool) {
        let mut sum = 0u32;
        for statement in statements {
            match self.statement_cost(frame, statement) {
                Some(cost) => sum = sum.saturating_add(cost),
                None => return (sum, false),
            }
            if sum > MAX_WASTED_COST {
                break;
            }
        }
        (sum, true)
    }

    fn lower_block(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<BlockEnd> {
        match self.style {
            // Vector code needs scalar code only for the packets that are left over.
            Style::BranchFree | Style::SpeculativeVector | Style::Vector => self.lower_mostly_branch_free(frame, block),
            Style::Branching => self.lower_with_branches(frame, block, None),
        }
    }

    /// Lowers statements one after another. With `out`, the last statement stores a boolean whose
    /// only use is to decide between these targets: then control goes to them and nothing is
    /// stored. The flag says whether true leads to `if_true`.
    fn lower_with_branches(
        &mut self,
        frame: &mut Frame<'a>,
        block: &'a Block,
        mut out: Option<(&mut BranchTargets, bool)>,
    ) -> Result<BlockEnd> {
        // Targets of the next `if`, if the previous one has decided it.
        let mut decided: Option<BranchTargets> = None;
        let mut statements = block.iter().enumerate();
        while let Some((i, statement)) = statements.next() {
            match statement {
                Statement::If { condition, accept, reject } => {
                    let targets = match decided.take() {
                        Some(targets) => targets,
                        None => {
                            let condition = self.scalar(frame, *condition)?;
                            let mut targets = self.new_targets();
                            self.emit_branch(condition, &mut targets, true);
                            targets
                        }
                    };
                    match (condition_use(frame, block, i), &mut out) {
                        (Some((ConditionUse::If, polarity)), _) => {
                            let mut next = self.new_targets();
                            self.lower_condition_arms(frame, targets, accept, reject, (&mut next, polarity))?;
                            decided = Some(next);
                            // Skip the load of the variable.
                            statements.next();
                        }
                        (Some((ConditionUse::Store, polarity)), Some((out, outer))) if i + 3 == block.len() => {
                            let polarity = polarity == *outer;
                            self.lower_condition_arms(frame, targets, accept, reject, (out, polarity))?;
                            return Ok(BlockEnd::Diverges);
                        }
                        _ => {
                            if self.lower_if(frame, targets, accept, reject)? == BlockEnd::Diverges {
                                return Ok(BlockEnd::Diverges);
                            }
                        }
                    }
                }
                Statement::Store { value, .. } if out.is_some() && i + 1 == block.len() => {
                    let value = self.scalar(frame, *value)?;
                    if let Some((out, polarity)) = out {
                        self.emit_branch(value, out, polarity);
                    }
                    return Ok(BlockEnd::Diverges);
                }
                Statement::Return { value } => {
                    let value = match value {
                        Some(value) => self.value(frame, *value)?,
                        None => Vec::new(),
                    };
                    self.emit_return(frame, &value);
                    return Ok(BlockEnd::Diverges);
                }
                other => {
                    if self.lower_statement(frame, other)? == BlockEnd::Diverges {
                        return Ok(BlockEnd::Diverges);
                    }
                }
            }
        }
        Ok(BlockEnd::FallsThrough)
    }

    /// Lowers both arms of an `if` that only sets a boolean variable; each continues where its
    /// value leads.
    fn lower_condition_arms(
        &mut self,
        frame: &mut Frame<'a>,
        targets: BranchTargets,
        accept: &'a Block,
        reject: &'a Block,
        (out, polarity): (&mut BranchTargets, bool),
    ) -> Result<()> {
        for (target, code) in [(targets.if_true, accept), (targets.if_false, reject)] {
            if self.enter_merge(target) {
                self.lower_with_branches(frame, code, Some((&mut *out, polarity)))?;
            }
        }
        Ok(())
    }

    fn new_targets(&mut self) -> BranchTargets {
        let mut target = || MergeBlock { block: self.b.create_block(), incoming: Vec::new() };
        BranchTargets { if_true: target(), if_false: target() }
    }

    /// Branches to one of two targets; with `polarity` false, to the opposite ones.
    fn emit_branch(&mut self, condition: Value, targets: &mut BranchTargets, polarity: bool) {
        let (if_true, if_false) = if polarity {
            (&mut targets.if_true, &mut targets.if_false)
        } else {
            (&mut targets.if_false, &mut targets.if_true)
        };
        if let Some(outcome) = self.known.constant(condition) {
            let target = if outcome == 0 { if_false } else { if_true };
            self.b.ins().jump(target.block, &[]);
            target.incoming.push((self.proven.clone(), self.assumed.clone()));
            return;
        }
        let length = self.packet_length();
        self.b.ins().brif(condition, if_true.block, &[], if_false.block, &[]);
        for (target, outcome) in [(if_true, true), (if_false, false)] {
            let (mut proven, mut assumed) = (self.proven.clone(), self.assumed.clone());
            let facts = self.known.implied_facts(condition, outcome);
            proven.learn(length, facts);
            assumed.learn(length, facts);
            target.incoming.push((proven, assumed));
        }
    }

    /// Continues where several paths join. Returns false if no path leads here.
    fn enter_merge(&mut self, target: MergeBlock) -> bool {
        let Some(met) = target.incoming.into_iter().reduce(|a, b| (a.0.meet(&b.0), a.1.meet(&b.1))) else {
            return false;
        };
        (self.proven, self.assumed) = met;
        self.switch_to_sealed(target.block);
        true
    }

    fn lower_mostly_branch_free(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<BlockEnd> {
        let mut pending = None;
        for (i, statement) in block.iter().enumerate() {
            let cost = self.statement_cost(frame, statement);
            if pending.is_some() {
                let (ahead, to_the_end) = self.cost_until_side_effect(frame, &block[i..]);
                if ahead > if to_the_end { MAX_WASTED_COST } else { MAX_WASTED_COST / 4 } || cost.is_none() {
                    self.emit_pending_return(frame, pending.take());
                }
            }
            match statement {
                Statement::Return { value } => {
                    let value = match value {
                        Some(value) => self.value(frame, *value)?,
                        None => Vec::new(),
                    };
                    let value = self.unless_returned(&pending, value);
                    self.emit_return(frame, &value);
                    return Ok(BlockEnd::Diverges);
                }
                Statement::If { .. } | Statement::Switch { .. } | Statement::Block(_) | Statement::Call { .. }
                    if cost.is_some_and(|cost| cost <= MAX_SELECT_COST) =>
                {
                    match self.branch_free_statement(frame, statement)? {
                        Outcome::FallsThrough(new) => pending = self.merge_pending(pending, new),
                        Outcome::Returns(value) => {
                            let value = self.unless_returned(&pending, value);
                            self.emit_return(frame, &value);
                            return Ok(BlockEnd::Diverges);
                        }
                    }
                }
                Statement::Emit(_) | Statement::Store { .. } => {
                    self.lower_simple_statement(frame, statement)?;
                }
                other => {
                    self.emit_pending_return(frame, pending.take());
                    if self.lower_statement(frame, other)? == BlockEnd::Diverges {
                        return Ok(BlockEnd::Diverges);
                    }
                }
            }
        }
        self.emit_pending_return(frame, pending);
        Ok(BlockEnd::FallsThrough)
    }

    fn lower_statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<BlockEnd> {
        match statement {
            Statement::Block(block) => self.lower_block(frame, block),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(frame, *condition)?;
                let mut targets = self.new_targets();
                self.emit_branch(condition, &mut targets, true);
                self.lower_if(frame, targets, accept, reject)
            }
            Statement::Switch { selector, cases } => {
                let selector = self.scalar(frame, *selector)?;
                self.lower_switch(frame, selector, cases)
            }
            Statement::Loop { body, continuing, break_if } => self.lower_loop(frame, body, continuing, *break_if),
            Statement::Break => {
                let targets = *self.loop_targets.last().ok_or_else(|| Unsupported("a break outside a loop".into()))?;
                self.b.ins().jump(targets.break_block, &[]);
                Ok(BlockEnd::Diverges)
            }
            Statement::Continue => {
                let continue_block = self.loop_targets.iter().rev().find_map(|targets| targets.continue_block);
                let continue_block = continue_block.ok_or_else(|| Unsupported("a continue outside a loop".into()))?;
                self.b.ins().jump(continue_block, &[]);
                Ok(BlockEnd::Diverges)
            }
            Statement::Call { function, arguments, result } => {
                if self.found_search.is_some()
                    && let Some(end) = self.lower_prefetch_call(frame, *function, arguments, *result)?
                {
                    return Ok(end);
                }
                if self.inlined_intrinsic(*function).is_some() {
                    self.lower_simple_statement(frame, statement)?;
                    return Ok(BlockEnd::FallsThrough);
                }
                let keys = arguments;
                let arguments = arguments.iter().map(|&a| self.operand(frame, a)).collect::<Result<_>>()?;
                let exit = self.b.create_block();
                let ended_early = match self.map_search(*function) {
                    Some(search) => {
                        let key = self.value(frame, keys[0])?;
                        self.inline_probes(search, &key, exit)?
                    }
                    None => false,
                };
                let stack = self.stack.top;
                let mut callee =
                    self.new_frame(*function, arguments, ReturnTarget::Block { block: exit, used: ended_early })?;
                let results = match &callee.code.result {
                    Some(result) => types::leaves(self.module, types::inner(self.module, result.ty))?
                        .iter()
                        .map(|leaf| self.b.append_block_param(exit, leaf.clif()))
                        .collect(),
                    None => Vec::new(),
                };
                let before = (self.proven.clone(), self.assumed.clone());
                let jumps = std::mem::take(&mut self.loop_targets);
                let body = &callee.code.body;
                if self.lower_block(&mut callee, body)? == BlockEnd::FallsThrough {
                    // A function without a result, or behind a loop that only fuel ends.
                    let zeros = match &callee.code.result {
                        Some(result) => self.zeros(types::inner(self.module, result.ty))?,
                        None => Vec::new(),
                    };
                    self.emit_return(&mut callee, &zeros);
                }
                self.loop_targets = jumps;
                self.stack.top = stack;
                (self.proven, self.assumed) = before;
                if matches!(callee.exit, ReturnTarget::Block { used: false, .. }) {
                    return Ok(BlockEnd::Diverges);
                }
                self.switch_to_sealed(exit);
                if let Some(result) = result {
                    frame.values[result.index()] = Some(Operand::Value(results));
                }
                Ok(BlockEnd::FallsThrough)
            }
            other => {
                self.lower_simple_statement(frame, other)?;
                Ok(BlockEnd::FallsThrough)
            }
        }
    }

    fn lower_if(
        &mut self,
        frame: &mut Frame<'a>,
        targets: BranchTargets,
        accept: &'a Block,
        reject: &'a Block,
    ) -> Result<BlockEnd> {
        let mut exit = MergeBlock { block: self.b.create_block(), incoming: Vec::new() };
        for (target, code) in [(targets.if_true, accept), (targets.if_false, reject)] {
            if self.enter_merge(target) && self.lower_block(frame, code)? == BlockEnd::FallsThrough {
                self.b.ins().jump(exit.block, &[]);
                exit.incoming.push((self.proven.clone(), self.assumed.clone()));
            }
        }
        Ok(if self.enter_merge(exit) { BlockEnd::FallsThrough } else { BlockEnd::Diverges })
    }

    fn lower_switch(&mut self, frame: &mut Frame<'a>, selector: Value, cases: &'a [SwitchCase]) -> Result<BlockEnd> {
        let blocks: Vec<ir::Block> = cases.iter().map(|_| self.b.create_block()).collect();
        let exit = self.b.create_block();
        let mut switch = Switch::new();
        let mut default = exit;
        for (case, &block) in cases.iter().zip(&blocks) {
            match case.value {
                SwitchValue::U32(value) => switch.set_entry(u128::from(value), block),
                SwitchValue::I32(value) => switch.set_entry(u128::from(value as u32), block),
                SwitchValue::Default => default = block,
            }
        }
        switch.emit(&mut self.b, selector, default);
        let before = (self.proven.clone(), self.assumed.clone());
        self.loop_targets.push(LoopTargets { break_block: exit, continue_block: None });
        for (i, case) in cases.iter().enumerate() {
            (self.proven, self.assumed) = before.clone();
            self.switch_to_sealed(blocks[i]);
            if self.lower_block(frame, &case.body)? == BlockEnd::FallsThrough {
                let next = if case.fall_through { blocks.get(i + 1).copied().unwrap_or(exit) } else { exit };
                self.b.ins().jump(next, &[]);
            }
        }
        self.loop_targets.pop();
        // Code that breaks out of a case also leads here, so only what held before the switch still
        // holds.
        (self.proven, self.assumed) = before;
        self.switch_to_sealed(exit);
        Ok(BlockEnd::FallsThrough)
    }

    fn lower_loop(
        &mut self,
        frame: &mut Frame<'a>,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<BlockEnd> {
        let (body_block, continue_block, exit) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let before = (self.proven.clone(), self.assumed.clone());
        self.b.ins().jump(body_block, &[]);
        self.b.switch_to_block(body_block);
        // The prelude's own loops burn no fuel.
        if let Some(fuel) = self.fuel.filter(|_| !self.program.is_prelude(frame.function)) {
            let left = self.b.use_var(fuel);
            let (verdict, go) = (self.verdict_block()?, self.b.create_block());
            let aborted = self.no_result();
            self.b.ins().brif(left, go, &[], verdict, &[aborted.into()]);
            self.switch_to_sealed(go);
            let less = self.b.ins().iadd_imm_s(left, -1);
            self.b.def_var(fuel, less);
        }
        self.loop_targets.push(LoopTargets { break_block: exit, continue_block: Some(continue_block) });
        if self.lower_block(frame, body)? == BlockEnd::FallsThrough {
            self.b.ins().jump(continue_block, &[]);
        }
        self.loop_targets.pop();
        (self.proven, self.assumed) = before.clone();
        self.switch_to_sealed(continue_block);
        if self.lower_block(frame, continuing)? == BlockEnd::FallsThrough {
            match break_if {
                Some(condition) => {
                    let condition = self.scalar(frame, condition)?;
                    self.b.ins().brif(condition, exit, &[], body_block, &[]);
                }
                None => {
                    self.b.ins().jump(body_block, &[]);
                }
            }
        }
        self.b.seal_block(body_block);
        (self.proven, self.assumed) = before;
        self.switch_to_sealed(exit);
        Ok(BlockEnd::FallsThrough)
    }

    pub(super) fn verdict_block(&self) -> Result<ir::Block> {
        self.verdict.ok_or_else(|| Unsupported("code outside the loop over packets".into()))
    }

    /// Returns a value from the frame's function.
    fn emit_return(&mut self, frame: &mut Frame<'a>, value: &[Value]) {
        match &mut frame.exit {
            ReturnTarget::Verdict => {
                let verdict = self.verdict.expect("set before the filter is lowered");
                let value = value.first().copied();
                let value = match value {
                    Some(value) if self.found_search.is_none() => self.normalise_verdict(value),
                    _ => self.no_result(),
                };
                self.b.ins().jump(verdict, &[value.into()]);
            }
            ReturnTarget::Block { block, used } => {
                *used = true;
                let block = *block;
                let arguments: Vec<BlockArg> = value.iter().map(|&v| v.into()).collect();
                self.b.ins().jump(block, &arguments);
            }
            ReturnTarget::Collected => unreachable!("branch-free code does not jump"),
        }
    }

    /// Turns a pending return into a branch.
    fn emit_pending_return(&mut self, frame: &mut Frame<'a>, pending: Option<PendingReturn>) {
        let Some(PendingReturn { returned, value }) = pending else { return };
        let (gone, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(returned, gone, &[], on, &[]);
        self.switch_to_sealed(gone);
        self.emit_return(frame, &value);
        self.switch_to_sealed(on);
        // Packets that have returned are gone, so what was assumed is now proven.
        self.proven = self.assumed.clone();
    }

    /// Converts a filter's return value to a verdict: values that are no verdict mean `ABORTED`.
    fn normalise_verdict(&mut self, value: Value) -> Value {
        if self.known.is_verdict(value) {
            return value;
        }
        let low = self.b.ins().band_imm_u(value, 0xff);
        let redirect = self.b.ins().icmp_imm_u(IntCC::Equal, low, 4);
        let plain = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, value, 4);
        let good = self.b.ins().bor(redirect, plain);
        let aborted = self.constant(0);
        self.b.ins().select(good, value, aborted)
    }
}

/// Returns what consumes the boolean that the `if` at `i` leaves in a variable, and whether it
/// consumes the boolean itself or its negation. Returns `None` if the variable has any other use.
/// This is the pattern that naga makes of `&&` and `||`.
fn condition_use(frame: &Frame<'_>, block: &Block, i: usize) -> Option<(ConditionUse, bool)> {
    let [Statement::If { accept, reject, .. }, Statement::Emit(range), consumer] = block.get(i..i + 3)? else {
        return None;
    };
    let stored = |arm: &Block| match arm.last() {
        Some(&Statement::Store { pointer, .. }) => Some(pointer),
        _ => None,
    };
    let pointer = stored(accept).filter(|&pointer| stored(reject) == Some(pointer))?;
    let Expression::LocalVariable(variable) = frame.code.expressions[pointer] else { return None };
    let once = |expression: Handle<Expression>| frame.info[expression].ref_count == 1;
    let mut emitted = range.clone();
    let load = emitted.next().filter(|&load| once(load))?;
    let Expression::Load { pointer: from } = frame.code.expressions[load] else { return None };
    // The two stores and this load are all references to the variable.
    if frame.code.expressions[from] != Expression::LocalVariable(variable) || frame.uses[variable.index()] != 3 {
        return None;
    }
    let (consumed, polarity) = match emitted.next() {
        None => (load, true),
        Some(not) => match frame.code.expressions[not] {
            Expression::Unary { op: naga::UnaryOperator::LogicalNot, expr } if expr == load && once(not) => {
                (not, false)
            }
            _ => return None,
        },
    };
    if emitted.next().is_some() {
        return None;
    }
    match *consumer {
        Statement::If { condition, .. } if condition == consumed => Some((ConditionUse::If, polarity)),
        Statement::Store { value, .. } if value == consumed => Some((ConditionUse::Store, polarity)),
        _ => None,
    }
}
