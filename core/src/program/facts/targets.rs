//! Targets of `break` and `continue`: the loops and switches under interpretation.

use std::collections::HashMap;

use super::interval::{IntKind, Interval};
use super::scan::StatementId;
use super::state::Delta;
use super::value::Value;

/// Target of `break` and `continue`.
pub(super) enum Target {
    Loop(LoopTarget),
    Switch {
        mark: usize,
        breaks: Vec<Delta>,
        /// Maximum number of iterations on a path to a `break`.
        max_at_break: u64,
    },
}

/// Values, at a loop's back edge, of the cells that the loop may assign. `None` for a cell that
/// keeps its value, or if the back edge is not taken.
pub(super) type BackEdgeState = HashMap<u32, Option<Value>>;

/// State of a loop under interpretation.
pub(super) struct LoopTarget {
    pub(super) statement: StatementId,
    /// Number of frames when the loop was entered.
    pub(super) frame: usize,
    pub(super) mark: usize,
    pub(super) breaks: Vec<Delta>,
    pub(super) continues: Vec<Delta>,
    /// Maximum number of nested iterations before a `continue`.
    pub(super) max_at_continue: u64,
    /// Maximum number of nested iterations in an iteration that leaves the loop.
    pub(super) max_in_last: u64,
    pub(super) steps: Vec<InductionStep>,
    pub(super) inequality_bounds: HashMap<u32, InequalityBound>,
}

/// Bounds on an induction variable whose loop ends when it equals a constant (see
/// `scan::InequalityTest`).
#[derive(Clone, Copy)]
pub(super) struct InequalityBound {
    pub(super) kind: IntKind,
    /// Value when an iteration begins.
    pub(super) head: Interval,
    /// Value before it is stepped.
    pub(super) from: Interval,
}

/// A step of an induction variable, which every iteration moves in one direction without wrapping.
pub(super) struct InductionStep {
    pub(super) cell: u32,
    pub(super) kind: IntKind,
    pub(super) upwards: bool,
    /// Distance, at least 1.
    pub(super) by: Interval,
    /// Value before the step.
    pub(super) from: Interval,
}

impl InductionStep {
    /// Maximum number of steps that start in `within`, if the first starts in `entry`: each starts
    /// at least `by.lo` beyond the one before.
    fn max_steps(&self, within: Interval, entry: Interval) -> u64 {
        let (first, max_in_last) =
            if self.upwards { (entry.lo.max(within.lo), within.hi) } else { (-entry.hi.min(within.hi), -within.lo) };
        if max_in_last < first { 0 } else { ((max_in_last - first) / self.by.lo) as u64 + 1 }
    }

    /// Maximum number of complete iterations, if the variable is in `back_edge` after each. The
    /// step of an iteration that leaves the loop is not among them.
    pub(super) fn max_full_iterations(&self, entry: Interval, back_edge: Interval) -> u64 {
        self.max_steps(self.from, entry).min(self.max_steps(back_edge, self.after_step(entry)))
    }

    /// Values that the variable may have after a step.
    pub(super) fn after_step(&self, entry: Interval) -> Interval {
        let full = self.kind.full();
        if self.upwards {
            Interval::new(entry.lo + self.by.lo, full.hi)
        } else {
            Interval::new(full.lo, entry.hi - self.by.lo)
        }
    }
}
