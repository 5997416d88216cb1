//! Tracing of loops: unrolled if the number of iterations is known, otherwise executed as long as
//! any lane is active.

use naga::{Block, Expression, Handle, Statement};
use portcullis_core::program::child_blocks;

use super::tracer::{Exit, FIXED_SLOTS, FUEL, Frame, JumpTarget, Tracer};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Compare, Dag, LoopCarried, LoopMask, Node, Range, Step, ValueKind};

/// Maximum number of iterations of an unrolled loop.
const MAX_UNROLLED_ITERATIONS: usize = 32;

/// Maximum size of an unrolled loop, in nodes and in steps.
const MAX_UNROLLED_SIZE: (usize, usize) = (1_500, 48);

/// Maximum nesting depth of unrolled loops.
const MAX_UNROLLED_DEPTH: usize = 2;

/// Parts of naga's loop statement.
#[derive(Clone, Copy)]
pub(super) struct LoopStatement<'a> {
    pub body: &'a Block,
    pub continuing: &'a Block,
    pub break_if: Option<Handle<Expression>>,
}

impl<'a> Tracer<'a> {
    pub(super) fn trace_loop(&mut self, frame: &mut Frame<'a>, code: LoopStatement<'a>) -> Result<()> {
        if loop_depth(code.body).max(loop_depth(code.continuing)) < MAX_UNROLLED_DEPTH
            && self.try_unroll(frame, code)?
        {
            return Ok(());
        }
        self.trace_dynamic_loop(frame, code)
    }

    /// Traces one iteration. Afterwards the active lanes are those that begin the next one; the
    /// result are the exits of lanes that have left the loop.
    fn trace_iteration(&mut self, frame: &mut Frame<'a>, code: LoopStatement<'a>) -> Result<Vec<Exit>> {
        self.targets.push(JumpTarget::Loop { breaks: Vec::new(), continues: Vec::new() });
        let all = self.active;
        if frame.burns_fuel && self.exhausts {
            self.burn_fuel();
        }
        self.trace_block(frame, code.body)?;
        // Lanes that have continued early are active again.
        let continues = match self.targets.last_mut() {
            Some(JumpTarget::Loop { continues, .. }) => std::mem::take(continues),
            _ => return Err(Unsupported("unbalanced loop statements, which is a fault of Portcullis".into())),
        };
        if !continues.is_empty() {
            let mut exits = continues;
            exits.push(Exit { lanes: self.active, state: self.state.clone(), value: Vec::new() });
            match self.merge_exits(exits, all) {
                Some(met) => (self.active, self.state) = (met.lanes, met.state),
                None => self.active = self.dag.flag(false),
            }
        }
        if !self.is_unreachable() {
            self.trace_block(frame, code.continuing)?;
        }
        let mut breaks = match self.targets.pop() {
            Some(JumpTarget::Loop { breaks, .. }) => breaks,
            _ => return Err(Unsupported("unbalanced loop statements, which is a fault of Portcullis".into())),
        };
        if let (Some(condition), false) = (code.break_if, self.is_unreachable()) {
            let ends = self.scalar(frame, condition)?;
            let lanes = self.dag.mask_and(self.active, ends);
            if self.dag.as_flag(lanes) != Some(false) {
                breaks.push(Exit { lanes, state: self.state.clone(), value: Vec::new() });
            }
            let continues = self.dag.mask_not(ends);
            self.active = self.dag.mask_and(self.active, continues);
        }
        Ok(breaks)
    }

    /// Burns a unit of fuel; lanes that have none abort.
    fn burn_fuel(&mut self) {
        let (fuel, zero) = (self.state[FUEL], self.dag.constant(0));
        let empty = self.dag.compare(Compare::Equal, fuel, zero);
        let aborted = self.dag.mask_and(self.active, empty);
        if self.dag.as_flag(aborted) != Some(false) {
            let state = self.state[..FIXED_SLOTS].to_vec();
            self.aborts.push(Exit { lanes: aborted, state, value: Vec::new() });
            self.departures += 1;
            let some = self.dag.mask_not(empty);
            self.active = self.dag.mask_and(self.active, some);
        }
        self.state[FUEL] = self.dag.add_constant(fuel, u32::MAX);
    }

    /// Unrolls a loop if all lanes leave it in the same iteration. Otherwise returns false and
    /// restores the state.
    fn try_unroll(&mut self, frame: &mut Frame<'a>, code: LoopStatement<'a>) -> Result<bool> {
        let all = self.active;
        let (before, loaded) = (self.state.clone(), self.loaded.clone());
        let (nodes, steps, arrays) = (self.dag.len(), self.steps, self.arrays.len());
        let own_steps = self.regions[self.region.index()].steps.len();
        let (aborts, returns) = (self.aborts.len(), self.returns.last().map_or(0, Vec::len));
        let departures = self.departures;
        let mut breaks: Vec<Exit> = Vec::new();
        for _ in 0..MAX_UNROLLED_ITERATIONS {
            breaks.extend(self.trace_iteration(frame, code)?);
            if self.is_unreachable() {
                let any_left = self.aborts.len() > aborts || self.returns.last().map_or(0, Vec::len) > returns;
                match self.merge_exits(breaks, all) {
                    Some(end) => {
                        self.active = if any_left { end.lanes } else { all };
                        self.state = end.state;
                    }
                    None => self.active = self.dag.flag(false),
                }
                return Ok(true);
            }
            // A loop whose exit depends on the packet may exit in any iteration: do not unroll it.
            let open = !breaks.is_empty() || self.aborts.len() > aborts;
            if open || self.dag.len() - nodes > MAX_UNROLLED_SIZE.0 || self.steps - steps > MAX_UNROLLED_SIZE.1 {
                break;
            }
        }
        self.active = all;
        (self.state, self.loaded) = (before, loaded);
        self.steps = steps;
        self.arrays.truncate(arrays);
        self.regions[self.region.index()].steps.truncate(own_steps);
        self.aborts.truncate(aborts);
        if let Some(exits) = self.returns.last_mut() {
            exits.truncate(returns);
        }
        self.departures = departures;
        Ok(false)
    }

    /// Traces a loop with a number of iterations known only at run time.
    fn trace_dynamic_loop(&mut self, frame: &mut Frame<'a>, code: LoopStatement<'a>) -> Result<()> {
        let (all, before, outer) = (self.active, self.state.clone(), self.region);
        let slots: Vec<usize> = self.assigned_slots(frame, [code.body, code.continuing]).into_iter().collect();
        let inner = self.open_region();
        self.loaded.clear();
        let live = self.dag.live(inner);
        // A lane that is active in an iteration has entered the loop.
        self.facts.add_implication(live, all);
        self.active = live;
        for (index, &slot) in (0..).zip(&slots) {
            let kind = self.dag.kind(before[slot]);
            self.state[slot] = self.dag.loop_carried(inner, index, kind);
        }
        let entry_state = self.state.clone();
        let outer_exits = (std::mem::take(&mut self.aborts), self.returns.last_mut().map(std::mem::take));
        let breaks = self.trace_iteration(frame, code)?;
        let aborts = std::mem::replace(&mut self.aborts, outer_exits.0);
        let returns = match (self.returns.last_mut(), outer_exits.1) {
            (Some(returns), Some(outer_returns)) => std::mem::replace(returns, outer_returns),
            _ => Vec::new(),
        };
        for (slot, (now, then)) in self.state.iter().zip(&before).enumerate() {
            if now != then && !slots.contains(&slot) {
                return Err(Unsupported(
                    "a loop that assigns variables its scan missed, which is a fault of Portcullis".into(),
                ));
            }
        }

        // State after an iteration, of lanes that continue and of lanes that leave on any path.
        let next_live = self.active;
        let returned = returns.first().map(|exit| exit.value.clone());
        let any_left = |exits: &[Exit], dag: &mut Dag| {
            let none = dag.flag(false);
            exits.iter().fold(none, |any, exit| dag.mask_or(any, exit.lanes))
        };
        let (aborted_lanes, returned_lanes) = (any_left(&aborts, &mut self.dag), any_left(&returns, &mut self.dag));
        let (any_aborted, any_returned) = (!aborts.is_empty(), !returns.is_empty());
        let state = std::mem::take(&mut self.state);
        let values =
            returned.as_ref().map(|_| self.merge_exits(values_only(&returns), live)).and_then(|met| Some(met?.value));
        let padded = |exit: Exit| {
            // Variables of calls that are over have no use any more: pad with values that cost
            // nothing.
            let rest = entry_state[exit.state.len()..].iter().copied();
            Exit { state: exit.state.into_iter().chain(rest).collect(), value: Vec::new(), ..exit }
        };
        let exits: Vec<Exit> = breaks.into_iter().chain(returns).chain(aborts).map(padded).collect();
        let left = self.merge_exits(exits, live).map_or_else(|| state.clone(), |met| met.state);
        let carried =
            slots.iter().map(|&slot| LoopCarried { initial: before[slot], next: state[slot], on_exit: left[slot] });
        let mut carried: Vec<LoopCarried> = carried.collect();
        self.region = outer;
        self.loaded.clear();
        self.state = before;
        let carry = |trace: &mut Self, carried: &mut Vec<LoopCarried>, first: Node, next: Node| {
            carried.push(LoopCarried { initial: first, next, on_exit: next });
            let kind = trace.dag.kind(first);
            trace.dag.out(inner, carried.len() as u32 - 1, kind, outer, Range::ALL)
        };
        for (index, &slot) in (0..).zip(&slots) {
            let kind = self.dag.kind(self.state[slot]);
            self.state[slot] = self.dag.out(inner, index, kind, outer, Range::ALL);
        }
        let none = self.dag.flag(false);
        self.active = all;
        if any_returned {
            let lanes = carry(self, &mut carried, none, returned_lanes);
            self.facts.add_implication(lanes, all);
            let mut value = Vec::new();
            for next in values.unwrap_or_default() {
                let first = match self.dag.kind(next) {
                    ValueKind::Word => self.dag.constant(0),
                    ValueKind::Mask => none,
                };
                value.push(carry(self, &mut carried, first, next));
            }
            let state = self.state[..frame.base].to_vec();
            if let Some(exits) = self.returns.last_mut() {
                exits.push(Exit { lanes, state, value });
            }
            self.deactivate(lanes);
        }
        if any_aborted {
            let lanes = carry(self, &mut carried, none, aborted_lanes);
            self.facts.add_implication(lanes, all);
            self.aborts.push(Exit { lanes, state: self.state[..FIXED_SLOTS].to_vec(), value: Vec::new() });
            self.deactivate(lanes);
        }
        let live = LoopMask { initial: all, next: next_live };
        self.regions[outer.index()].steps.push(Step::Loop { live, carried, body: inner });
        self.steps += 1;
        Ok(())
    }

    /// Deactivates lanes.
    fn deactivate(&mut self, lanes: Node) {
        let stays = self.dag.mask_not(lanes);
        self.active = self.dag.mask_and(self.active, stays);
        self.departures += 1;
    }
}

/// Exits without their states.
fn values_only(exits: &[Exit]) -> Vec<Exit> {
    exits.iter().map(|exit| Exit { state: Vec::new(), ..exit.clone() }).collect()
}

/// Nesting depth of the loops in a block.
fn loop_depth(block: &Block) -> usize {
    let deepest = |statement: &Statement| {
        let inner = child_blocks(statement).into_iter().map(loop_depth).max().unwrap_or(0);
        inner + usize::from(matches!(statement, Statement::Loop { .. }))
    };
    block.iter().map(deepest).max().unwrap_or(0)
}
