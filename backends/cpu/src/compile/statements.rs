//! Control flow: with branches, or ([`Style::BranchFree`]) without them where both ways are harmless
//! and cheap.
//!
//! Code without branches evaluates both ways of an `if` and selects between the values that they
//! leave in variables. A `return` in it becomes a pair, whether the filter has returned and with
//! what ([`Pending`]), which is selected against whatever is returned later, or turned into one
//! branch before code that must not run in vain. Packets of mixed traffic make branches that no
//! predictor can learn, so this is worth far more than the instructions that it wastes.
//!
//! Code with branches follows `&&` and `||` from condition to condition ([`Ways`]): the boolean
//! variables that naga turns them into are never made.

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, BlockArg, InstBuilder, Value};
use cranelift_frontend::{Switch, Variable};
use naga::{Block, Expression, Function, Handle, Statement, SwitchCase, SwitchValue};
use portcullis_core::program::prelude::Intrinsic;

use super::known::Lengths;
use super::types;
use super::{Codegen, Exit, Frame, Jumps, Operand, Result, Style, Unsupported};

/// What an `if` may cost (see `cost`) to be executed both ways.
const BRANCHLESS: u32 = 16;

/// What may follow a return that has not been acted upon, before a branch is cheaper than doing the
/// rest in vain.
const IN_VAIN: u32 = 24;

/// A return that has not been acted upon: whether, and with what.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    returned: Value,
    value: Vec<Value>,
}

/// Where code without branches ended.
pub(super) enum Outcome {
    /// It goes on, except where something was returned.
    Falls(Option<Pending>),
    /// It returned this on every way.
    Returns(Vec<Value>),
}

/// Where code with branches ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Falls,
    /// Nothing behind it is reached.
    Leaves,
}

/// A block that code goes on in, and what is known on each way that leads there.
struct Way {
    block: ir::Block,
    arrivals: Vec<(Lengths, Lengths)>,
}

/// Where code goes on when a condition holds, and where when it does not.
struct Ways {
    yes: Way,
    no: Way,
}

/// Who wants to know what an `if` left in its boolean variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// The statement after next, an `if` that depends on it.
    If,
    /// The statement after next, a store to the variable of an outer `&&` or `||`.
    Store,
}

impl<'a> Codegen<'a, '_> {
    /// Goes on in a block to which every way is known already.
    pub(super) fn enter(&mut self, block: ir::Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    /// Lowers the filter for the packet of this turn; every way leads to the verdict block.
    pub(super) fn filter(&mut self) -> Result<()> {
        self.init_globals()?;
        let packet = self.constant(0);
        let mut frame = self.frame(self.program.filter(), vec![Operand::Value(vec![packet])], Exit::Verdict)?;
        let body = &frame.code.body;
        if self.branching(&mut frame, body)? == End::Falls {
            // Behind a loop that only fuel ends.
            self.leave(&mut frame, &[]);
        }
        Ok(())
    }

    pub(super) fn frame(
        &mut self,
        function: Handle<Function>,
        arguments: Vec<Operand>,
        exit: Exit,
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
        self.spend(code.expressions.len())?;
        self.init_locals(&mut frame)?;
        Ok(frame)
    }

    fn cost(&self, frame: &Frame<'a>, statement: &Statement) -> Option<u32> {
        self.costs.statement(self.program, frame.code, statement)
    }

    /// What follows before the next statement that must not be executed in vain, and whether the
    /// block ends without one.
    fn cost_ahead(&self, frame: &Frame<'a>, statements: &[Statement]) -> (u32, bool) {
        let mut sum = 0u32;
        for statement in statements {
            match self.cost(frame, statement) {
                Some(cost) => sum = sum.saturating_add(cost),
                None => return (sum, false),
            }
            if sum > IN_VAIN {
                break;
            }
        }
        (sum, true)
    }

    // With branches.

    fn branching(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<End> {
        match self.style {
            // Beside code for several packets at a time there are packets that make no group.
            Style::BranchFree | Style::SpeculativeVector | Style::Vector => self.mostly_branchless(frame, block),
            Style::Branching => self.sequence(frame, block, None),
        }
    }

    /// Statements one after another. With `out`, the last one stores a boolean that only decides
    /// where to go on: then it is not stored.
    fn sequence(&mut self, frame: &mut Frame<'a>, block: &'a Block, mut out: Option<(&mut Ways, bool)>) -> Result<End> {
        // Where the next `if` goes, when the one before has decided that.
        let mut decided: Option<Ways> = None;
        let mut statements = block.iter().enumerate();
        while let Some((i, statement)) = statements.next() {
            match statement {
                Statement::If { condition, accept, reject } => {
                    let ways = match decided.take() {
                        Some(ways) => ways,
                        None => {
                            let condition = self.scalar(frame, *condition)?;
                            let mut ways = self.ways();
                            self.branch_on(condition, &mut ways, true);
                            ways
                        }
                    };
                    match (asked(frame, block, i), &mut out) {
                        (Some((Asks::If, straight)), _) => {
                            let mut next = self.ways();
                            self.decide(frame, ways, accept, reject, (&mut next, straight))?;
                            decided = Some(next);
                            // What reads the variable.
                            statements.next();
                        }
                        (Some((Asks::Store, straight)), Some((out, outer))) if i + 3 == block.len() => {
                            let straight = straight == *outer;
                            self.decide(frame, ways, accept, reject, (out, straight))?;
                            return Ok(End::Leaves);
                        }
                        _ => {
                            if self.branching_if(frame, ways, accept, reject)? == End::Leaves {
                                return Ok(End::Leaves);
                            }
                        }
                    }
                }
                Statement::Store { value, .. } if out.is_some() && i + 1 == block.len() => {
                    let value = self.scalar(frame, *value)?;
                    if let Some((out, straight)) = out {
                        self.branch_on(value, out, straight);
                    }
                    return Ok(End::Leaves);
                }
                Statement::Return { value } => {
                    let value = match value {
                        Some(value) => self.value(frame, *value)?,
                        None => Vec::new(),
                    };
                    self.leave(frame, &value);
                    return Ok(End::Leaves);
                }
                other => {
                    if self.branching_statement(frame, other)? == End::Leaves {
                        return Ok(End::Leaves);
                    }
                }
            }
        }
        Ok(End::Falls)
    }

    /// Both ways of an `if` that only sets a boolean variable, each going on where that leads.
    fn decide(
        &mut self,
        frame: &mut Frame<'a>,
        ways: Ways,
        accept: &'a Block,
        reject: &'a Block,
        (out, straight): (&mut Ways, bool),
    ) -> Result<()> {
        for (way, code) in [(ways.yes, accept), (ways.no, reject)] {
            if self.arrive(way) {
                self.sequence(frame, code, Some((&mut *out, straight)))?;
            }
        }
        Ok(())
    }

    fn ways(&mut self) -> Ways {
        let mut way = || Way { block: self.b.create_block(), arrivals: Vec::new() };
        Ways { yes: way(), no: way() }
    }

    /// Leaves on one of two ways; with `straight` false, on the other.
    fn branch_on(&mut self, condition: Value, ways: &mut Ways, straight: bool) {
        let (yes, no) = if straight { (&mut ways.yes, &mut ways.no) } else { (&mut ways.no, &mut ways.yes) };
        if let Some(outcome) = self.known.constant(condition) {
            let way = if outcome == 0 { no } else { yes };
            self.b.ins().jump(way.block, &[]);
            way.arrivals.push((self.firm.clone(), self.assumed.clone()));
            return;
        }
        let length = self.length();
        self.b.ins().brif(condition, yes.block, &[], no.block, &[]);
        for (way, outcome) in [(yes, true), (no, false)] {
            let (mut firm, mut assumed) = (self.firm.clone(), self.assumed.clone());
            let facts = self.known.facts(condition, outcome);
            firm.learn(length, facts);
            assumed.learn(length, facts);
            way.arrivals.push((firm, assumed));
        }
    }

    /// Goes on where several ways meet; false if none comes here.
    fn arrive(&mut self, way: Way) -> bool {
        let Some(met) = way.arrivals.into_iter().reduce(|a, b| (a.0.meet(&b.0), a.1.meet(&b.1))) else {
            return false;
        };
        (self.firm, self.assumed) = met;
        self.enter(way.block);
        true
    }

    fn mostly_branchless(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<End> {
        let mut pending = None;
        for (i, statement) in block.iter().enumerate() {
            let cost = self.cost(frame, statement);
            if pending.is_some() {
                let (ahead, to_the_end) = self.cost_ahead(frame, &block[i..]);
                if ahead > if to_the_end { IN_VAIN } else { IN_VAIN / 4 } || cost.is_none() {
                    self.act_upon(frame, pending.take());
                }
            }
            match statement {
                Statement::Return { value } => {
                    let value = match value {
                        Some(value) => self.value(frame, *value)?,
                        None => Vec::new(),
                    };
                    let value = self.behind(&pending, value);
                    self.leave(frame, &value);
                    return Ok(End::Leaves);
                }
                Statement::If { .. } | Statement::Switch { .. } | Statement::Block(_) | Statement::Call { .. }
                    if cost.is_some_and(|cost| cost <= BRANCHLESS) =>
                {
                    match self.branchless_statement(frame, statement)? {
                        Outcome::Falls(new) => pending = self.merge_pending(pending, new),
                        Outcome::Returns(value) => {
                            let value = self.behind(&pending, value);
                            self.leave(frame, &value);
                            return Ok(End::Leaves);
                        }
                    }
                }
                Statement::Emit(_) | Statement::Store { .. } => {
                    self.plain(frame, statement)?;
                }
                other => {
                    self.act_upon(frame, pending.take());
                    if self.branching_statement(frame, other)? == End::Leaves {
                        return Ok(End::Leaves);
                    }
                }
            }
        }
        self.act_upon(frame, pending);
        Ok(End::Falls)
    }

    fn branching_statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<End> {
        match statement {
            Statement::Block(block) => self.branching(frame, block),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(frame, *condition)?;
                let mut ways = self.ways();
                self.branch_on(condition, &mut ways, true);
                self.branching_if(frame, ways, accept, reject)
            }
            Statement::Switch { selector, cases } => {
                let selector = self.scalar(frame, *selector)?;
                self.branching_switch(frame, selector, cases)
            }
            Statement::Loop { body, continuing, break_if } => self.branching_loop(frame, body, continuing, *break_if),
            Statement::Break => {
                let jumps = *self.jumps.last().ok_or_else(|| Unsupported("a break outside a loop".into()))?;
                self.b.ins().jump(jumps.leave, &[]);
                Ok(End::Leaves)
            }
            Statement::Continue => {
                let again = self.jumps.iter().rev().find_map(|jumps| jumps.again);
                let again = again.ok_or_else(|| Unsupported("a continue outside a loop".into()))?;
                self.b.ins().jump(again, &[]);
                Ok(End::Leaves)
            }
            Statement::Call { function, arguments, result } => {
                if self.ahead.is_some()
                    && let Some(end) = self.call_ahead(frame, *function, arguments, *result)?
                {
                    return Ok(end);
                }
                if self.intrinsic_of(*function).is_some() {
                    self.plain(frame, statement)?;
                    return Ok(End::Falls);
                }
                let keys = arguments;
                let arguments = arguments.iter().map(|&a| self.operand(frame, a)).collect::<Result<_>>()?;
                let exit = self.b.create_block();
                let ended_early = match self.search(*function) {
                    Some(search) => {
                        let key = self.value(frame, keys[0])?;
                        self.first_places(search, &key, exit)?
                    }
                    None => false,
                };
                let stack = self.stack.top;
                let mut callee = self.frame(*function, arguments, Exit::Block { block: exit, used: ended_early })?;
                let results = match &callee.code.result {
                    Some(result) => types::leaves(self.module, types::inner(self.module, result.ty))?
                        .iter()
                        .map(|leaf| self.b.append_block_param(exit, leaf.clif()))
                        .collect(),
                    None => Vec::new(),
                };
                let before = (self.firm.clone(), self.assumed.clone());
                let jumps = std::mem::take(&mut self.jumps);
                let body = &callee.code.body;
                if self.branching(&mut callee, body)? == End::Falls {
                    // Without a result, or behind a loop that only fuel ends.
                    let zeros = match &callee.code.result {
                        Some(result) => self.zeros(types::inner(self.module, result.ty))?,
                        None => Vec::new(),
                    };
                    self.leave(&mut callee, &zeros);
                }
                self.jumps = jumps;
                self.stack.top = stack;
                (self.firm, self.assumed) = before;
                if matches!(callee.exit, Exit::Block { used: false, .. }) {
                    return Ok(End::Leaves);
                }
                self.enter(exit);
                if let Some(result) = result {
                    frame.values[result.index()] = Some(Operand::Value(results));
                }
                Ok(End::Falls)
            }
            other => {
                self.plain(frame, other)?;
                Ok(End::Falls)
            }
        }
    }

    fn branching_if(&mut self, frame: &mut Frame<'a>, ways: Ways, accept: &'a Block, reject: &'a Block) -> Result<End> {
        let mut behind = Way { block: self.b.create_block(), arrivals: Vec::new() };
        for (way, code) in [(ways.yes, accept), (ways.no, reject)] {
            if self.arrive(way) && self.branching(frame, code)? == End::Falls {
                self.b.ins().jump(behind.block, &[]);
                behind.arrivals.push((self.firm.clone(), self.assumed.clone()));
            }
        }
        Ok(if self.arrive(behind) { End::Falls } else { End::Leaves })
    }

    fn branching_switch(&mut self, frame: &mut Frame<'a>, selector: Value, cases: &'a [SwitchCase]) -> Result<End> {
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
        let before = (self.firm.clone(), self.assumed.clone());
        self.jumps.push(Jumps { leave: behind, again: None });
        for (i, case) in cases.iter().enumerate() {
            (self.firm, self.assumed) = before.clone();
            self.enter(blocks[i]);
            if self.branching(frame, &case.body)? == End::Falls {
                let next = if case.fall_through { blocks.get(i + 1).copied().unwrap_or(behind) } else { behind };
                self.b.ins().jump(next, &[]);
            }
        }
        self.jumps.pop();
        // Breaks come here too: only what held before is sure to hold, if the length is the same.
        (self.firm, self.assumed) = before;
        self.enter(behind);
        Ok(End::Falls)
    }

    fn branching_loop(
        &mut self,
        frame: &mut Frame<'a>,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<End> {
        let (round, again, behind) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let before = (self.firm.clone(), self.assumed.clone());
        self.b.ins().jump(round, &[]);
        self.b.switch_to_block(round);
        // The prelude's own loops cost nothing.
        if let Some(fuel) = self.fuel.filter(|_| !self.program.is_prelude(frame.function)) {
            let left = self.b.use_var(fuel);
            let (verdict, go) = (self.verdict_block()?, self.b.create_block());
            let aborted = self.nothing();
            self.b.ins().brif(left, go, &[], verdict, &[aborted.into()]);
            self.enter(go);
            let less = self.b.ins().iadd_imm_s(left, -1);
            self.b.def_var(fuel, less);
        }
        self.jumps.push(Jumps { leave: behind, again: Some(again) });
        if self.branching(frame, body)? == End::Falls {
            self.b.ins().jump(again, &[]);
        }
        self.jumps.pop();
        (self.firm, self.assumed) = before.clone();
        self.enter(again);
        if self.branching(frame, continuing)? == End::Falls {
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
        (self.firm, self.assumed) = before;
        self.enter(behind);
        Ok(End::Falls)
    }

    pub(super) fn verdict_block(&self) -> Result<ir::Block> {
        self.verdict.ok_or_else(|| Unsupported("code outside a packet's turn".into()))
    }

    /// Returns from the frame's function with a value.
    fn leave(&mut self, frame: &mut Frame<'a>, value: &[Value]) {
        match &mut frame.exit {
            Exit::Verdict => {
                let verdict = self.verdict.expect("set before the filter is lowered");
                let value = value.first().copied();
                let value = match value {
                    Some(value) if self.ahead.is_none() => self.normalise(value),
                    _ => self.nothing(),
                };
                self.b.ins().jump(verdict, &[value.into()]);
            }
            Exit::Block { block, used } => {
                *used = true;
                let block = *block;
                let arguments: Vec<BlockArg> = value.iter().map(|&v| v.into()).collect();
                self.b.ins().jump(block, &arguments);
            }
            Exit::Collected => unreachable!("code without branches leaves no function"),
        }
    }

    /// Turns a return that has not been acted upon into a branch.
    fn act_upon(&mut self, frame: &mut Frame<'a>, pending: Option<Pending>) {
        let Some(Pending { returned, value }) = pending else { return };
        let (gone, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(returned, gone, &[], on, &[]);
        self.enter(gone);
        self.leave(frame, &value);
        self.enter(on);
        // What was assumed for code that is not in vain is now certain.
        self.firm = self.assumed.clone();
    }

    /// The verdict that a filter's return value means.
    fn normalise(&mut self, value: Value) -> Value {
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

    // Without branches.

    /// Statements that neither branch nor return.
    fn plain(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<()> {
        match statement {
            Statement::Emit(range) => self.emit(frame, range.clone()),
            Statement::Store { pointer, value } => self.store_through(frame, *pointer, *value),
            Statement::Call { function, arguments, result } => {
                let Some(intrinsic) = self.intrinsic_of(*function) else {
                    return Err(Unsupported("a call that is no call".into()));
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

    /// What a function of the prelude is, unless it is one whose body is compiled.
    fn intrinsic_of(&self, function: Handle<naga::Function>) -> Option<Intrinsic> {
        self.program.intrinsic(function).filter(|intrinsic| !intrinsic.is_map_function())
    }

    pub(super) fn branchless(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<Outcome> {
        let mut pending = None;
        for statement in block.iter() {
            match self.branchless_statement(frame, statement)? {
                Outcome::Falls(new) => pending = self.merge_pending(pending, new),
                Outcome::Returns(value) => return Ok(Outcome::Returns(self.behind(&pending, value))),
            }
        }
        Ok(Outcome::Falls(pending))
    }

    fn branchless_statement(&mut self, frame: &mut Frame<'a>, statement: &'a Statement) -> Result<Outcome> {
        match statement {
            Statement::Block(block) => self.branchless(frame, block),
            Statement::Return { value } => Ok(Outcome::Returns(match value {
                Some(value) => self.value(frame, *value)?,
                None => Vec::new(),
            })),
            Statement::If { condition, accept, reject } => {
                let condition = self.scalar(frame, *condition)?;
                self.choose(frame, condition, |s, f| s.branchless(f, accept), |s, f| s.branchless(f, reject))
            }
            Statement::Switch { selector, cases } => {
                let selector = self.scalar(frame, *selector)?;
                self.branchless_switch(frame, selector, cases)
            }
            Statement::Call { function, arguments, result } if self.intrinsic_of(*function).is_none() => {
                let arguments = arguments.iter().map(|&a| self.operand(frame, a)).collect::<Result<_>>()?;
                let stack = self.stack.top;
                let mut callee = self.frame(*function, arguments, Exit::Collected)?;
                let outer = self.assumed.clone();
                let body = &callee.code.body;
                let outcome = self.branchless(&mut callee, body)?;
                self.stack.top = stack;
                // What the callee's early returns imply holds for its own rest, not for ours.
                self.assumed = outer;
                if let (Some(result), Outcome::Returns(value)) = (result, outcome) {
                    frame.values[result.index()] = Some(Operand::Value(value));
                }
                Ok(Outcome::Falls(None))
            }
            other => {
                self.plain(frame, other)?;
                Ok(Outcome::Falls(None))
            }
        }
    }

    /// Both ways of a condition, and a selection between what they leave behind.
    fn choose(
        &mut self,
        frame: &mut Frame<'a>,
        condition: Value,
        accept: impl FnOnce(&mut Self, &mut Frame<'a>) -> Result<Outcome>,
        reject: impl FnOnce(&mut Self, &mut Frame<'a>) -> Result<Outcome>,
    ) -> Result<Outcome> {
        self.saves_branches = true;
        let before = self.assumed.clone();
        let length = self.length();

        self.journals.push(Default::default());
        let facts = self.known.facts(condition, true).to_vec();
        self.assumed.learn(length, &facts);
        let accepted = accept(self, frame)?;
        let accept_lengths = std::mem::replace(&mut self.assumed, before);
        // Back to how things were, keeping what the accepted way left.
        let old = self.journals.pop().unwrap_or_default();
        let mut left = BTreeMap::new();
        for (&variable, &old) in &old {
            let accepted = self.b.use_var(Variable::from_u32(variable));
            left.insert(variable, (accepted, old));
            self.b.def_var(Variable::from_u32(variable), old);
        }

        self.journals.push(Default::default());
        let facts = self.known.facts(condition, false).to_vec();
        self.assumed.learn(length, &facts);
        let rejected = reject(self, frame)?;
        let old = self.journals.pop().unwrap_or_default();
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
            (Outcome::Falls(None), Outcome::Falls(None)) => Outcome::Falls(None),
            (Outcome::Returns(a), Outcome::Falls(None)) => {
                Outcome::Falls(Some(Pending { returned: condition, value: a }))
            }
            (Outcome::Falls(None), Outcome::Returns(b)) => {
                let returned = self.not(condition);
                Outcome::Falls(Some(Pending { returned, value: b }))
            }
            (Outcome::Returns(a), Outcome::Falls(Some(b))) => {
                let returned = self.either(condition, b.returned);
                Outcome::Falls(Some(Pending { returned, value: self.select_all(condition, &a, &b.value) }))
            }
            (Outcome::Falls(Some(a)), Outcome::Returns(b)) => {
                let not = self.not(condition);
                let returned = self.either(not, a.returned);
                Outcome::Falls(Some(Pending { returned, value: self.select_all(condition, &a.value, &b) }))
            }
            (Outcome::Falls(Some(a)), Outcome::Falls(None)) => {
                let returned = self.both(condition, a.returned);
                Outcome::Falls(Some(Pending { returned, value: a.value }))
            }
            (Outcome::Falls(None), Outcome::Falls(Some(b))) => {
                let not = self.not(condition);
                let returned = self.both(not, b.returned);
                Outcome::Falls(Some(Pending { returned, value: b.value }))
            }
            (Outcome::Falls(Some(a)), Outcome::Falls(Some(b))) => {
                let returned = self.select(condition, a.returned, b.returned);
                Outcome::Falls(Some(Pending { returned, value: self.select_all(condition, &a.value, &b.value) }))
            }
        })
    }

    /// Cases one after another, the default last.
    fn branchless_switch(
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
                        Some(condition) => self.either(condition, here),
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
        self.arms(frame, &arms, default)
    }

    fn arms(
        &mut self,
        frame: &mut Frame<'a>,
        arms: &[(Option<Value>, &'a Block)],
        default: Option<&'a Block>,
    ) -> Result<Outcome> {
        match arms {
            [] => match default {
                Some(block) => self.branchless(frame, block),
                None => Ok(Outcome::Falls(None)),
            },
            [(None, _), rest @ ..] => self.arms(frame, rest, default),
            [(Some(condition), block), rest @ ..] => {
                self.choose(frame, *condition, |s, f| s.branchless(f, block), |s, f| s.arms(f, rest, default))
            }
        }
    }

    fn select_all(&mut self, condition: Value, a: &[Value], b: &[Value]) -> Vec<Value> {
        a.iter().zip(b).map(|(&a, &b)| self.select(condition, a, b)).collect()
    }

    /// What is returned, now that `value` is where nothing was before.
    fn behind(&mut self, pending: &Option<Pending>, value: Vec<Value>) -> Vec<Value> {
        match pending {
            Some(first) => self.select_all(first.returned, &first.value, &value),
            None => value,
        }
    }

    fn merge_pending(&mut self, first: Option<Pending>, second: Option<Pending>) -> Option<Pending> {
        match (first, second) {
            (Some(first), Some(second)) => {
                let returned = self.either(first.returned, second.returned);
                let value = self.select_all(first.returned, &first.value, &second.value);
                Some(Pending { returned, value })
            }
            (first, second) => first.or(second),
        }
    }
}

/// Whether all that is ever done with the boolean that the `if` at `i` leaves in a variable is to
/// ask for it two statements on; who asks, and whether for it or for its opposite. That is what
/// naga makes of `&&` and `||`.
fn asked(frame: &Frame<'_>, block: &Block, i: usize) -> Option<(Asks, bool)> {
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
    let (asked, straight) = match emitted.next() {
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
        Statement::If { condition, .. } if condition == asked => Some((Asks::If, straight)),
        Statement::Store { value, .. } if value == asked => Some((Asks::Store, straight)),
        _ => None,
    }
}
