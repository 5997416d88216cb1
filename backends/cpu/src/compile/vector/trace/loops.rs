//! Loops: unrolled where their ends can be seen, else rounds as long as any lane is live.

use naga::{Block, Expression, Handle, Statement};
use portcullis_core::program::child_blocks;

use super::tracer::{Exit, FIXED, FUEL, Frame, Target, Trace};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Carry, Compare, Dag, Kind, Live, Node, Range, Step};

/// Rounds up to which a loop is written out.
const MAX_ROUNDS: usize = 32;

/// What a loop that is written out may come to: nodes and steps.
const MAX_UNROLLED: (usize, usize) = (1_500, 48);

/// How deep loops are nested that are written out.
const MAX_NESTED: usize = 2;

/// A loop as naga has it.
#[derive(Clone, Copy)]
pub(super) struct Loop<'a> {
    pub body: &'a Block,
    pub continuing: &'a Block,
    pub break_if: Option<Handle<Expression>>,
}

impl<'a> Trace<'a> {
    pub(super) fn repeat(&mut self, frame: &mut Frame<'a>, code: Loop<'a>) -> Result<()> {
        if nested(code.body).max(nested(code.continuing)) < MAX_NESTED && self.unroll(frame, code)? {
            return Ok(());
        }
        self.rounds(frame, code)
    }

    /// One round, from the lanes and the state that are here to those that begin the next; who has left the loop for what is
    /// behind it.
    fn round(&mut self, frame: &mut Frame<'a>, code: Loop<'a>) -> Result<Vec<Exit>> {
        self.targets.push(Target::Loop { breaks: Vec::new(), continues: Vec::new() });
        let all = self.here;
        if frame.own && self.exhausts {
            self.burn();
        }
        self.block(frame, code.body)?;
        // Who went on early is here again.
        let continues = match self.targets.last_mut() {
            Some(Target::Loop { continues, .. }) => std::mem::take(continues),
            _ => return Err(Unsupported("a loop that is left by another".into())),
        };
        if !continues.is_empty() {
            let mut exits = continues;
            exits.push(Exit { lanes: self.here, state: self.state.clone(), value: Vec::new() });
            match self.meet(exits, all) {
                Some(met) => (self.here, self.state) = (met.lanes, met.state),
                None => self.here = self.dag.flag(false),
            }
        }
        if !self.nobody() {
            self.block(frame, code.continuing)?;
        }
        let mut breaks = match self.targets.pop() {
            Some(Target::Loop { breaks, .. }) => breaks,
            _ => return Err(Unsupported("a loop that is left by another".into())),
        };
        if let (Some(condition), false) = (code.break_if, self.nobody()) {
            let ends = self.scalar(frame, condition)?;
            let lanes = self.dag.both(self.here, ends);
            if self.dag.as_flag(lanes) != Some(false) {
                breaks.push(Exit { lanes, state: self.state.clone(), value: Vec::new() });
            }
            let goes_on = self.dag.not(ends);
            self.here = self.dag.both(self.here, goes_on);
        }
        Ok(breaks)
    }

    /// A unit of fuel; who has none is aborted.
    fn burn(&mut self) {
        let (fuel, zero) = (self.state[FUEL], self.dag.constant(0));
        let empty = self.dag.compare(Compare::Equal, fuel, zero);
        let aborted = self.dag.both(self.here, empty);
        if self.dag.as_flag(aborted) != Some(false) {
            let state = self.state[..FIXED].to_vec();
            self.aborts.push(Exit { lanes: aborted, state, value: Vec::new() });
            self.departures += 1;
            let some = self.dag.not(empty);
            self.here = self.dag.both(self.here, some);
        }
        self.state[FUEL] = self.dag.add_constant(fuel, u32::MAX);
    }

    /// Writes a loop out, where its last round is the same in all lanes. Otherwise all is as it was.
    fn unroll(&mut self, frame: &mut Frame<'a>, code: Loop<'a>) -> Result<bool> {
        let all = self.here;
        let (before, loaded) = (self.state.clone(), self.loaded.clone());
        let (nodes, steps, arrays) = (self.dag.len(), self.steps, self.arrays.len());
        let own_steps = self.regions[self.region.index()].steps.len();
        let (aborts, returns) = (self.aborts.len(), self.returns.last().map_or(0, Vec::len));
        let departures = self.departures;
        let mut breaks: Vec<Exit> = Vec::new();
        for _ in 0..MAX_ROUNDS {
            breaks.extend(self.round(frame, code)?);
            if self.nobody() {
                let away = self.aborts.len() > aborts || self.returns.last().map_or(0, Vec::len) > returns;
                match self.meet(breaks, all) {
                    Some(end) => {
                        self.here = if away { end.lanes } else { all };
                        self.state = end.state;
                    }
                    None => self.here = self.dag.flag(false),
                }
                return Ok(true);
            }
            // An end that depends on the packet comes in any round: that is no loop to write out.
            let open = !breaks.is_empty() || self.aborts.len() > aborts;
            if open || self.dag.len() - nodes > MAX_UNROLLED.0 || self.steps - steps > MAX_UNROLLED.1 {
                break;
            }
        }
        self.here = all;
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

    /// Rounds as long as any lane is live.
    fn rounds(&mut self, frame: &mut Frame<'a>, code: Loop<'a>) -> Result<()> {
        let (all, before, outer) = (self.here, self.state.clone(), self.region);
        let slots: Vec<usize> = self.assigned(frame, [code.body, code.continuing]).into_iter().collect();
        let inner = self.open();
        self.loaded.clear();
        let live = self.dag.live(inner);
        // Who is live in a round came to the loop.
        self.facts.follow(live, all);
        self.here = live;
        for (index, &slot) in (0..).zip(&slots) {
            let kind = self.dag.kind(before[slot]);
            self.state[slot] = self.dag.carried(inner, index, kind);
        }
        let begun = self.state.clone();
        let earlier = (std::mem::take(&mut self.aborts), self.returns.last_mut().map(std::mem::take));
        let breaks = self.round(frame, code)?;
        let aborts = std::mem::replace(&mut self.aborts, earlier.0);
        let returns = match (self.returns.last_mut(), earlier.1) {
            (Some(returns), Some(earlier)) => std::mem::replace(returns, earlier),
            _ => Vec::new(),
        };
        for (slot, (now, then)) in self.state.iter().zip(&before).enumerate() {
            if now != then && !slots.contains(&slot) {
                return Err(Unsupported(
                    "a loop that assigns what nobody saw it assign, which is a fault of Portcullis".into(),
                ));
            }
        }

        // What a round leaves, in lanes that go on and in lanes that have left by whatever way.
        let next_live = self.here;
        let returned = returns.first().map(|exit| exit.value.clone());
        let away = |exits: &[Exit], dag: &mut Dag| {
            let none = dag.flag(false);
            exits.iter().fold(none, |any, exit| dag.either(any, exit.lanes))
        };
        let (left_aborted, left_returned) = (away(&aborts, &mut self.dag), away(&returns, &mut self.dag));
        let (any_aborted, any_returned) = (!aborts.is_empty(), !returns.is_empty());
        let state = std::mem::take(&mut self.state);
        let values = returned.as_ref().map(|_| self.meet(strip(&returns), live)).and_then(|met| Some(met?.value));
        let padded = |exit: Exit| {
            // Of the variables of calls that are over nobody asks: they are what takes nothing.
            let rest = begun[exit.state.len()..].iter().copied();
            Exit { state: exit.state.into_iter().chain(rest).collect(), value: Vec::new(), ..exit }
        };
        let exits: Vec<Exit> = breaks.into_iter().chain(returns).chain(aborts).map(padded).collect();
        let left = self.meet(exits, live).map_or_else(|| state.clone(), |met| met.state);
        let carried = slots.iter().map(|&slot| Carry { first: before[slot], next: state[slot], left: left[slot] });
        let mut carried: Vec<Carry> = carried.collect();
        self.region = outer;
        self.loaded.clear();
        self.state = before;
        let carry = |trace: &mut Self, carried: &mut Vec<Carry>, first: Node, next: Node| {
            carried.push(Carry { first, next, left: next });
            let kind = trace.dag.kind(first);
            trace.dag.out(inner, carried.len() as u32 - 1, kind, outer, Range::ALL)
        };
        for (index, &slot) in (0..).zip(&slots) {
            let kind = self.dag.kind(self.state[slot]);
            self.state[slot] = self.dag.out(inner, index, kind, outer, Range::ALL);
        }
        let none = self.dag.flag(false);
        self.here = all;
        if any_returned {
            let lanes = carry(self, &mut carried, none, left_returned);
            self.facts.follow(lanes, all);
            let mut value = Vec::new();
            for next in values.unwrap_or_default() {
                let first = match self.dag.kind(next) {
                    Kind::Word => self.dag.constant(0),
                    Kind::Mask => none,
                };
                value.push(carry(self, &mut carried, first, next));
            }
            let state = self.state[..frame.base].to_vec();
            if let Some(exits) = self.returns.last_mut() {
                exits.push(Exit { lanes, state, value });
            }
            self.stay(lanes);
        }
        if any_aborted {
            let lanes = carry(self, &mut carried, none, left_aborted);
            self.facts.follow(lanes, all);
            self.aborts.push(Exit { lanes, state: self.state[..FIXED].to_vec(), value: Vec::new() });
            self.stay(lanes);
        }
        let live = Live { first: all, next: next_live };
        self.regions[outer.index()].steps.push(Step::Loop { live, carried, body: inner });
        self.steps += 1;
        Ok(())
    }

    /// All but those stay here.
    fn stay(&mut self, gone: Node) {
        let stays = self.dag.not(gone);
        self.here = self.dag.both(self.here, stays);
        self.departures += 1;
    }
}

/// Exits with their values alone.
fn strip(exits: &[Exit]) -> Vec<Exit> {
    exits.iter().map(|exit| Exit { state: Vec::new(), ..exit.clone() }).collect()
}

/// How deep loops are nested in a block.
fn nested(block: &Block) -> usize {
    let deepest = |statement: &Statement| {
        let inner = child_blocks(statement).into_iter().map(nested).max().unwrap_or(0);
        inner + usize::from(matches!(statement, Statement::Loop { .. }))
    };
    block.iter().map(deepest).max().unwrap_or(0)
}
