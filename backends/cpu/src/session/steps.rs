//! Work in steps: threads take the units of a step in any order, and the next step begins when all
//! units of the one before are done.

use super::sync::{AtomicU64, AtomicUsize, CachePadded, Ordering};

/// Bits of a unit's number.
const UNIT_BITS: u32 = 32;

/// Progress of work in steps.
pub(super) struct Steps {
    /// The current step, and in the low bits the first of its units that no thread has taken. They
    /// share a word so that a late thread cannot take a unit of one step for that of another.
    next: CachePadded<AtomicU64>,
    /// Units of the current step that are not done.
    remaining: CachePadded<AtomicUsize>,
}

/// A unit of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    pub step: usize,
    pub number: usize,
}

impl Steps {
    /// Starts with step 0 of `units` units, at least one.
    pub fn new(units: usize) -> Steps {
        Steps { next: CachePadded::new(AtomicU64::new(0)), remaining: CachePadded::new(AtomicUsize::new(units)) }
    }

    /// The current step.
    pub fn current(&self) -> usize {
        (self.next.load(Ordering::Relaxed) >> UNIT_BITS) as usize
    }

    /// Takes the next unit; `None` if all of the current step are taken. `units` returns a step's
    /// number of units. What was done in earlier steps is visible to the caller.
    pub fn take(&self, units: impl Fn(usize) -> usize) -> Option<Unit> {
        let next = self.next.fetch_add(1, Ordering::Acquire);
        let unit = Unit { step: (next >> UNIT_BITS) as usize, number: (next & ((1 << UNIT_BITS) - 1)) as usize };
        (unit.number < units(unit.step)).then_some(unit)
    }

    /// Records that a unit is done. Returns whether it was the last one of its step; the caller has
    /// then to [begin](Steps::begin) the next one, if there is any.
    pub fn finish_unit(&self) -> bool {
        // Release what this thread wrote, and acquire what the others wrote.
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Begins a step of `units` units, at least one.
    pub fn begin(&self, step: usize, units: usize) {
        self.remaining.store(units, Ordering::Relaxed);
        // A store would do. The model checker would let an increment that read the value before
        // follow it, which no memory model allows.
        self.next.swap((step as u64) << UNIT_BITS, Ordering::Release);
    }
}
