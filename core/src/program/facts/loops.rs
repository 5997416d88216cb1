//! Loops: a fixpoint over the values at their back edges, and a bound on the number of iterations.
//!
//! The fixpoint starts from loops whose back edges are not taken. Each pass adds what it observed
//! at the back edges to the assumptions, with widening from the second time on; up to
//! [`MAX_NARROWING_PASSES`] more passes then narrow the result. Iterations are bounded by induction
//! variables: local variables that every iteration moves in one direction without wrapping.

use std::collections::HashMap;

use naga::{BinaryOperator, Block, Expression, Handle};

use super::interpreter::{AbstractInterpreter, HEAD_SHIFT, InferredFacts};
use super::interval::Interval;
use super::scan::{StatementId, Variable};
use super::targets::{BackEdgeState, InductionStep, InequalityBound, LoopTarget, Target};
use super::value::{Value, int_kind};

/// Maximum number of passes with growing assumptions; after that, loops may assign anything.
const MAX_ASCENDING_PASSES: usize = 24;

/// Maximum work, summed over those passes.
const MAX_ASCENDING_WORK: u64 = 1 << 22;

/// Maximum number of passes that narrow assumptions which already hold.
const MAX_NARROWING_PASSES: usize = 2;

impl<'a> AbstractInterpreter<'a> {
    /// Runs passes until the assumptions about loops hold, then narrows them. `None` if a pass
    /// exceeds a limit.
    pub(super) fn solve(&mut self) -> Option<InferredFacts> {
        let mut found = self.run_pass()?;
        let mut work = self.state.work;
        let mut walks = 1;
        while !self.assumptions_hold() {
            if walks == MAX_ASCENDING_PASSES || work > MAX_ASCENDING_WORK {
                self.assumed.clear();
                self.pessimistic = true;
                found = self.run_pass()?;
                break;
            }
            self.extend_assumptions(walks > 1);
            found = self.run_pass()?;
            work += self.state.work;
            walks += 1;
        }
        for _ in 0..MAX_NARROWING_PASSES {
            if self.assumed == self.observed {
                break;
            }
            self.assumed = std::mem::take(&mut self.observed);
            found = self.run_pass()?;
        }
        Some(found)
    }

    /// Whether the last pass observed nothing at back edges beyond the assumptions.
    fn assumptions_hold(&self) -> bool {
        self.observed.iter().all(|(key, seen)| {
            let assumed = self.assumed.get(key);
            seen.iter().all(|(cell, value)| match (value, assumed.and_then(|assumed| assumed.get(cell))) {
                (None, _) => true,
                (Some(value), Some(Some(assumed))) => value.is_within(assumed),
                (Some(_), _) => false,
            })
        })
    }

    /// Adds what was observed to the assumptions; `widen` extrapolates what still grows.
    fn extend_assumptions(&mut self, widen: bool) {
        for (key, seen) in &self.observed {
            let assumed = self.assumed.entry(*key).or_default();
            for (cell, value) in seen {
                let old = assumed.entry(*cell).or_insert(None);
                *old = match (old.take(), value) {
                    (old, None) => old,
                    (None, Some(new)) => Some(new.clone()),
                    (Some(old), Some(new)) if widen => Some(old.widen(new)),
                    (Some(old), Some(new)) => Some(old.join(new)),
                };
            }
        }
    }

    /// Interprets a loop's body once and continues behind the loop.
    pub(super) fn interpret_loop(
        &mut self,
        statement: StatementId,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) {
        let key = (self.frame().instance, statement);
        let cells = self.assigned_cells(statement);
        let entry: Vec<Value> = cells.iter().map(|&cell| self.state.cell(cell).value.clone()).collect();
        self.state.work += cells.len() as u64;
        let inequality_bounds = self.inequality_bounds(statement);
        let assumed = self.assumed.get(&key);
        let heads: Vec<Option<Value>> = cells
            .iter()
            .zip(&entry)
            .map(|(cell, entry)| match assumed.and_then(|assumed| assumed.get(cell)) {
                Some(None) => None,
                Some(Some(back_edge)) => Some(entry.without_conditions().join(back_edge)),
                None => self.pessimistic.then_some(Value::Any),
            })
            .collect();
        for (&cell, head) in cells.iter().zip(heads) {
            let Some(mut head) = head else { continue };
            if let Some(bound) = inequality_bounds.get(&cell) {
                head = Value::range(head.int(bound.kind).range.meet(bound.head).unwrap_or(bound.head));
            }
            self.state.store(cell, head);
        }
        let versions: Vec<u32> = cells.iter().map(|&cell| self.state.cell(cell).version).collect();

        let mark = self.state.mark();
        let outside = std::mem::take(&mut self.iterations);
        self.targets.push(Target::Loop(LoopTarget {
            statement,
            frame: self.frames.len(),
            mark,
            breaks: Vec::new(),
            continues: Vec::new(),
            max_at_continue: 0,
            max_in_last: 0,
            steps: Vec::new(),
            inequality_bounds,
        }));
        let at = self.targets.len() - 1;
        self.interpret_block(body);
        let mut paths = Vec::new();
        if self.state.live {
            paths.push(self.state.delta(mark, u32::MAX));
        }
        let ended = if self.state.live { self.iterations } else { 0 };
        if let Some(target) = self.loop_target(at) {
            paths.append(&mut target.continues);
            self.iterations = ended.max(target.max_at_continue);
        }
        self.state.undo(mark);
        self.continue_from(paths);
        self.interpret_block_if_live(continuing);
        if let Some(condition) = break_if
            && self.state.live
        {
            self.break_if(condition, at, mark);
        }

        let Some(Target::Loop(target)) = self.targets.pop() else { return };
        let goes_round = self.state.live;
        let mut seen = BackEdgeState::new();
        for ((&cell, &version), entry) in cells.iter().zip(&versions).zip(&entry) {
            let now = self.state.cell(cell);
            let value = (goes_round && now.version != version).then(|| {
                let step = target.steps.iter().find(|step| step.cell == cell);
                let value = now.value.without_conditions();
                match step {
                    Some(step) => {
                        let range = value.int(step.kind).range;
                        let beyond = step.after_step(entry.int(step.kind).range);
                        Value::range(range.meet(beyond).unwrap_or(range))
                    }
                    None => value,
                }
            });
            seen.insert(cell, value);
        }
        self.observed.insert(key, seen);

        let rounds = if goes_round {
            let entry_of = |cell: u32| cells.iter().position(|&c| c == cell).map(|i| &entry[i]);
            target
                .steps
                .iter()
                .filter_map(|step| {
                    let back_edge = self.state.cell(step.cell).value.int(step.kind).range;
                    Some(step.max_full_iterations(entry_of(step.cell)?.int(step.kind).range, back_edge))
                })
                .min()
                .unwrap_or(u64::MAX)
        } else {
            0
        };
        // The complete iterations, and one that leaves the loop.
        let full = rounds.saturating_mul(self.iterations.saturating_add(1));
        let total = full.saturating_add(target.max_in_last).saturating_add(1);
        self.iterations = outside.saturating_add(total);

        self.state.undo(mark);
        self.continue_from(target.breaks);
        if !self.state.live || self.loop_returns(statement) {
            self.end_path();
        }
    }

    fn interpret_block_if_live(&mut self, block: &'a Block) {
        if self.state.live {
            self.interpret_block(block);
        }
    }

    fn loop_target(&mut self, at: usize) -> Option<&mut LoopTarget> {
        match self.targets.get_mut(at) {
            Some(Target::Loop(target)) => Some(target),
            _ => None,
        }
    }

    fn break_if(&mut self, condition: Handle<Expression>, at: usize, mark: usize) {
        let condition = self.value(condition).bool();
        if condition.can_be_true {
            let here = self.state.mark();
            self.assume(&condition.when_true);
            if self.state.live {
                let delta = self.state.delta(mark, u32::MAX);
                let iterations = self.iterations;
                if let Some(target) = self.loop_target(at) {
                    target.max_in_last = target.max_in_last.max(iterations);
                    target.breaks.push(delta);
                }
            }
            self.state.undo(here);
        }
        self.state.live = condition.can_be_false;
        if condition.can_be_false {
            self.assume(&condition.when_false);
        }
    }

    fn loop_returns(&self, statement: StatementId) -> bool {
        self.frame().scan.loops.get(&statement).is_none_or(|scan| scan.returns)
    }

    /// The cells that a loop may assign.
    fn assigned_cells(&self, statement: StatementId) -> Vec<u32> {
        let frame = self.frame();
        let Some(scan) = frame.scan.loops.get(&statement) else { return Vec::new() };
        let mut cells: Vec<u32> = scan
            .assigned
            .iter()
            .filter_map(|root| match root {
                Variable::Local(local) => Some(frame.local(*local)),
                Variable::Private(global) => self.privates.get(global).copied(),
                Variable::Argument(index) => match &frame.arguments[*index as usize] {
                    Value::Pointer(pointer) => Some(pointer.slot),
                    _ => None,
                },
            })
            .collect();
        if scan.calls {
            cells.push(HEAD_SHIFT);
            cells.extend(self.privates.values());
        }
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// Bounds that tests for inequality imply: if a variable counts up from at most `n` in steps
    /// that cannot miss `n`, then while it differs from `n` it is at least one step below it.
    fn inequality_bounds(&self, statement: StatementId) -> HashMap<u32, InequalityBound> {
        let frame = self.frame();
        let mut found = HashMap::new();
        let Some(scan) = frame.scan.loops.get(&statement) else { return found };
        for test in &scan.tests {
            let ty = frame.function.local_variables[test.local].ty;
            let naga::TypeInner::Scalar(scalar) = self.module.types[ty].inner else { continue };
            let Some(kind) = int_kind(scalar) else { continue };
            let cell = frame.local(test.local);
            let entry = self.state.cell(cell).value.int(kind).range;
            let Some(against) = self.range(test.against).and_then(Interval::as_point) else { continue };
            let step = i64::from(test.step);
            let hits = step == 1 || entry.as_point().is_some_and(|entry| (against - entry) % step == 0);
            let (head, from) = if test.upwards && entry.hi <= against {
                (Interval::new(entry.lo, against), Interval::new(entry.lo.min(against - step), against - step))
            } else if !test.upwards && entry.lo >= against {
                (Interval::new(against, entry.hi), Interval::new(against + step, entry.hi.max(against + step)))
            } else {
                continue;
            };
            if hits {
                found.insert(cell, InequalityBound { kind, head, from });
            }
        }
        found
    }

    /// Records a store to a whole variable as an induction step, if it is the loop's only store to
    /// it and adds a constant sign.
    pub(super) fn record_step(&mut self, statement: StatementId, cell: u32, value: Handle<Expression>) {
        let frame = self.frame();
        let Some(Target::Loop(target)) = self.targets.last() else { return };
        let counts = |scan: &super::scan::FunctionScan| {
            scan.loops.get(&target.statement).is_some_and(|loop_scan| loop_scan.steps.contains(&statement))
        };
        if target.frame != self.frames.len() || !counts(&frame.scan) {
            return;
        }
        let Expression::Binary { op, left, right } = frame.function.expressions[value] else { return };
        // The variable's current value, loaded in this iteration.
        let current = Some((cell, self.state.cell(cell).version));
        let is_current = |e: Handle<Expression>| self.state.cell(self.cell_of(e)).loaded == current;
        let (load, by) = match op {
            BinaryOperator::Add if is_current(left) => (left, right),
            BinaryOperator::Add if is_current(right) => (right, left),
            BinaryOperator::Subtract if is_current(left) => (left, right),
            _ => return,
        };
        let naga::TypeInner::Scalar(scalar) = *frame.info[value].ty.inner_with(&self.module.types) else { return };
        let (Some(kind), Some(mut by)) = (int_kind(scalar), self.range(by)) else { return };
        let mut upwards = op == BinaryOperator::Add;
        if by.hi < 0 {
            by = Interval::new(-by.hi, -by.lo);
            upwards = !upwards;
        }
        let held = self.state.cell(cell).value.int(kind).range;
        let inequality_bounds =
            target.inequality_bounds.get(&cell).map_or(held, |inequality_bounds| inequality_bounds.from);
        let Some(from) = self.range(load).and_then(|load| load.meet(held)?.meet(inequality_bounds)) else { return };
        let full = kind.full();
        let stays = if upwards { from.hi + by.hi <= full.hi } else { from.lo - by.hi >= full.lo };
        if by.lo >= 1 && stays {
            let at = self.targets.len() - 1;
            if let Some(target) = self.loop_target(at) {
                target.steps.push(InductionStep { cell, kind, upwards, by, from });
            }
        }
    }
}
