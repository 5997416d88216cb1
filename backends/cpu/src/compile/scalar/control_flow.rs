//! Control flow: with branches, or ([`Style::BranchFree`]) without them where both ways are harmless
//! and cheap.
//!
//! Code without branches evaluates both ways of an `if` and selects between the values that they
//! leave in variables. A `return` in it becomes a pair, whether the filter has returned and with
//! what ([`PendingReturn`]), which is selected against whatever is returned later, or turned into one
//! branch before code that must not run in vain. Packets of mixed traffic make branches that no
//! predictor can learn, so this is worth far more than the instructions that it wastes.
//!
//! Code with branches follows `&&` and `||` from condition to condition ([`BranchTargets`]): the boolean
//! variables that naga turns them into are never made.

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

/// What an `if` may cost (see `cost`) to be executed both ways.
const MAX_SELECT_COST: u32 = 16;

/// What may follow a return that has not been acted upon, before a branch is cheaper than doing the
/// rest in vain.
const MAX_WASTED_COST: u32 = 24;

/// Where code with branches ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockEnd {
    FallsThrough,
    /// Nothing behind it is reached.
    Diverges,
}

/// A block that code goes on in, and what is known on each way that leads there.
struct MergeBlock {
    block: ir::Block,
    incoming: Vec<(LengthFacts, LengthFacts)>,
}

/// Where code goes on when a condition holds, and where when it does not.
struct BranchTargets {
    if_true: MergeBlock,
    if_false: MergeBlock,
}

/// Who wants to know what an `if` left in its boolean variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConditionUse {
    /// The statement after next, an `if` that depends on it.
    If,
    /// The statement after next, a store to the variable of an outer `&&` or `||`.
    Store,
}

impl<'a> Codegen<'a, '_> {
    /// Goes on in a block to which every way is known already.
    pub(super) fn switch_to_sealed(&mut self, block: ir::Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    /// Lowers the filter for the packet of this turn; every way leads to the verdict block.
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

    /// What follows before the next statement that must not be executed in vain, and whether the
    /// block ends without one.
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

    // With branches.

    fn lower_block(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<BlockEnd> {
        match self.style {
            // Beside code for several packets at a time there are packets that make no group.
            Style::BranchFree | Style::SpeculativeVector | Style::Vector => self.lower_mostly_branch_free(frame, block),
            Style::Branching => self.lower_with_branches(frame, block, None),
        }
    }

    /// Statements one after another. With `out`, the last one stores a boolean that only decides
    /// where to go on: then it is not stored.
    fn lower_with_branches(
        &mut self,
        frame: &mut Frame<'a>,
        block: &'a Block,
        mut out: Option<(&mut BranchTargets, bool)>,
    ) -> Result<BlockEnd> {
        // Where the next `if` goes, when the one before has decided that.
        let mut decided: Option<BranchTargets> = None;
        let mut statements = block.iter().enumerate();
        while let Some((i, statement)) = statements.next() {
            match statement {
                Statement::If { condition, accept, reject } => {
                    let ways = match decided.take() {
                        Some(ways) => ways,
                        None => {
                            let condition = self.scalar(frame, *condition)?;
                            let mut ways = self.new_targets();
                            self.emit_branch(condition, &mut ways, true);
                            ways
                        }
                    };
                    match (asked(frame, block, i), &mut out) {
                        (Some((ConditionUse::If, polarity)), _) => {
                            let mut next = self.new_targets();
                            self.lower_condition_arms(frame, ways, accept, reject, (&mut next, polarity))?;
                            decided = Some(next);
                            // What reads the variable.
                            statements.next();
                        }
                        (Some((ConditionUse::Store, polarity)), Some((out, outer))) if i + 3 == block.len() => {
                            let polarity = polarity == *outer;
                            self.lower_condition_arms(frame, ways, accept, reject, (out, polarity))?;
                            return Ok(BlockEnd::Diverges);
                        }
                        _ => {
                            if self.lower_if(frame, ways, accept, reject)? == BlockEnd::Diverges {
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

    /// Both ways of an `if` that only sets a boolean variable, each going on where that leads.
    fn lower_condition_arms(
        &mut self,
        frame: &mut Frame<'a>,
        ways: BranchTargets,
        accept: &'a Block,
        reject: &'a Block,
        (out, polarity): (&mut BranchTargets, bool),
    ) -> Result<()> {
        for (way, code) in [(ways.if_true, accept), (ways.if_false, reject)] {
            if self.enter_merge(way) {
                self.lower_with_branches(frame, code, Some((&mut *out, polarity)))?;
            }
        }
        Ok(())
    }

    fn new_targets(&mut self) -> BranchTargets {
        let mut way = || MergeBlock { block: self.b.create_block(), incoming: Vec::new() };
        BranchTargets { if_true: way(), if_false: way() }
    }

    /// Leaves on one of two ways; with `polarity` false, on the other.
    fn emit_branch(&mut self, condition: Value, ways: &mut BranchTargets, polarity: bool) {
        let (if_true, if_false) =
            if polarity { (&mut ways.if_true, &mut ways.if_false) } else { (&mut ways.if_false, &mut ways.if_true) };
        if let Some(outcome) = self.known.constant(condition) {
            let way = if outcome == 0 { if_false } else { if_true };
            self.b.ins().jump(way.block, &[]);
            way.incoming.push((self.proven.clone(), self.assumed.clone()));
            return;
        }
        let length = self.packet_length();
        self.b.ins().brif(condition, if_true.block, &[], if_false.block, &[]);
        for (way, outcome) in [(if_true, true), (if_false, false)] {
            let (mut proven, mut assumed) = (self.proven.clone(), self.assumed.clone());
            let facts = self.known.implied_facts(condition, outcome);
            proven.learn(length, facts);
            assumed.learn(length, facts);
            way.incoming.push((proven, assumed));
        }
    }

    /// Goes on where several ways meet; false if none comes here.
    fn enter_merge(&mut self, way: MergeBlock) -> bool {
        let Some(met) = way.incoming.into_iter().reduce(|a, b| (a.0.meet(&b.0), a.1.meet(&b.1))) else {
            return false;
        };
        (self.proven, self.assumed) = met;
        self.switch_to_sealed(way.block);
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
                let mut ways = self.new_targets();
                self.emit_branch(condition, &mut ways, true);
                self.lower_if(frame, ways, accept, reject)
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
                let again = self.loop_targets.iter().rev().find_map(|targets| targets.continue_block);
                let again = again.ok_or_else(|| Unsupported("a continue outside a loop".into()))?;
                self.b.ins().jump(again, &[]);
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
                    // Without a result, or behind a loop that only fuel ends.
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
        ways: BranchTargets,
        accept: &'a Block,
        reject: &'a Block,
    ) -> Result<BlockEnd> {
        let mut behind = MergeBlock { block: self.b.create_block(), incoming: Vec::new() };
        for (way, code) in [(ways.if_true, accept), (ways.if_false, reject)] {
            if self.enter_merge(way) && self.lower_block(frame, code)? == BlockEnd::FallsThrough {
                self.b.ins().jump(behind.block, &[]);
                behind.incoming.push((self.proven.clone(), self.assumed.clone()));
            }
        }
        Ok(if self.enter_merge(behind) { BlockEnd::FallsThrough } else { BlockEnd::Diverges })
    }

    fn lower_switch(&mut self, frame: &mut Frame<'a>, selector: Value, cases: &'a [SwitchCase]) -> Result<BlockEnd> {
        let blocks: Vec<ir::Block> = cases.iter().map(|_| self.b.create_block()).collect();
        let behind = self.b.create_block();
        let mut switch = Switch::new();
        let mut default = behind;
        for (case, &block) in cases.iter().zip(&blocks) {
            match case.value {
                SwitchValue::U32(value) => switch.set_entry(u128::from(value), block),
                SwitchValue::I32(value) => switch.set_entry(u128::from(value as u32), block),
                SwitchValue::Default => default = block,
            }
        }
        switch.emit(&mut self.b, selector, default);
        let before = (self.proven.clone(), self.assumed.clone());
        self.loop_targets.push(LoopTargets { break_block: behind, continue_block: None });
        for (i, case) in cases.iter().enumerate() {
            (self.proven, self.assumed) = before.clone();
            self.switch_to_sealed(blocks[i]);
            if self.lower_block(frame, &case.body)? == BlockEnd::FallsThrough {
                let next = if case.fall_through { blocks.get(i + 1).copied().unwrap_or(behind) } else { behind };
                self.b.ins().jump(next, &[]);
            }
        }
        self.loop_targets.pop();
        // Breaks come here too: only what held before is sure to hold, if the length is the same.
        (self.proven, self.assumed) = before;
        self.switch_to_sealed(behind);
        Ok(BlockEnd::FallsThrough)
    }

    fn lower_loop(
        &mut self,
        frame: &mut Frame<'a>,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<BlockEnd> {
        let (round, again, behind) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let before = (self.proven.clone(), self.assumed.clone());
        self.b.ins().jump(round, &[]);
        self.b.switch_to_block(round);
        // The prelude's own loops cost nothing.
        if let Some(fuel) = self.fuel.filter(|_| !self.program.is_prelude(frame.function)) {
            let left = self.b.use_var(fuel);
            let (verdict, go) = (self.verdict_block()?, self.b.create_block());
            let aborted = self.no_result();
            self.b.ins().brif(left, go, &[], verdict, &[aborted.into()]);
            self.switch_to_sealed(go);
            let less = self.b.ins().iadd_imm_s(left, -1);
            self.b.def_var(fuel, less);
        }
        self.loop_targets.push(LoopTargets { break_block: behind, continue_block: Some(again) });
        if self.lower_block(frame, body)? == BlockEnd::FallsThrough {
            self.b.ins().jump(again, &[]);
        }
        self.loop_targets.pop();
        (self.proven, self.assumed) = before.clone();
        self.switch_to_sealed(again);
        if self.lower_block(frame, continuing)? == BlockEnd::FallsThrough {
            match break_if {
                Some(condition) => {
                    let condition = self.scalar(frame, condition)?;
                    self.b.ins().brif(condition, behind, &[], round, &[]);
                }
                None => {
                    self.b.ins().jump(round, &[]);
                }
            }
        }
        self.b.seal_block(round);
        (self.proven, self.assumed) = before;
        self.switch_to_sealed(behind);
        Ok(BlockEnd::FallsThrough)
    }

    pub(super) fn verdict_block(&self) -> Result<ir::Block> {
        self.verdict.ok_or_else(|| Unsupported("code outside a packet's turn".into()))
    }

    /// Returns from the frame's function with a value.
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
            ReturnTarget::Collected => unreachable!("code without branches leaves no function"),
        }
    }

    /// Turns a return that has not been acted upon into a branch.
    fn emit_pending_return(&mut self, frame: &mut Frame<'a>, pending: Option<PendingReturn>) {
        let Some(PendingReturn { returned, value }) = pending else { return };
        let (gone, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(returned, gone, &[], on, &[]);
        self.switch_to_sealed(gone);
        self.emit_return(frame, &value);
        self.switch_to_sealed(on);
        // What was assumed for code that is not in vain is now certain.
        self.proven = self.assumed.clone();
    }

    /// The verdict that a filter's return value means.
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

/// Whether all that is ever done with the boolean that the `if` at `i` leaves in a variable is to
/// ask for it two statements on; who asks, and whether for it or for its opposite. That is what
/// naga makes of `&&` and `||`.
fn asked(frame: &Frame<'_>, block: &Block, i: usize) -> Option<(ConditionUse, bool)> {
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
    // Two stores and this load: all that is ever done with it.
    if frame.code.expressions[from] != Expression::LocalVariable(variable) || frame.uses[variable.index()] != 3 {
        return None;
    }
    let (asked, polarity) = match emitted.next() {
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
        Statement::If { condition, .. } if condition == asked => Some((ConditionUse::If, polarity)),
        Statement::Store { value, .. } if value == asked => Some((ConditionUse::Store, polarity)),
        _ => None,
    }
}
