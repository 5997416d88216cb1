//! Strided intervals of pointer offsets, in bytes.

use crate::analysis::domain::interval::{Interval, gcd};

/// Bound beyond which offsets are not told apart: no memory reaches that far.
pub(crate) const OFFSET_LIMIT: i64 = 1 << 40;

/// The offsets `low`, `low + step`, … up to `high`. A single offset has step 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub low: i64,
    pub high: i64,
    step: u64,
}

impl Offsets {
    pub const fn constant(at: i64) -> Offsets {
        Offsets { low: at, high: at, step: 0 }
    }

    pub fn as_constant(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    /// Whether every offset plus `on` is a multiple of `of`.
    pub fn are_multiples_of(self, of: u32, on: i64) -> bool {
        (self.low + on).rem_euclid(of.into()) == 0 && self.step.is_multiple_of(of.into())
    }

    pub(super) fn join(self, other: Offsets) -> Offsets {
        let step = gcd(gcd(self.step, other.step), self.low.abs_diff(other.low));
        Offsets { low: self.low.min(other.low), high: self.high.max(other.high), step }
    }

    /// Adds a 64-bit number, read as signed.
    pub fn add(self, by: Interval) -> Offsets {
        let (low, high) = by.signed_bounds();
        self.with_bounds(by, self.low.saturating_add(low), self.high.saturating_add(high))
    }

    pub fn sub(self, by: Interval) -> Offsets {
        let (low, high) = by.signed_bounds();
        self.with_bounds(by, self.low.saturating_sub(high), self.high.saturating_sub(low))
    }

    /// Offsets from `low` to `high` after a move by `by`, clamped to [`OFFSET_LIMIT`]. Clamping
    /// keeps the stride when `low` is just outside the limit, as it is after widening; far outside,
    /// the stride is dropped.
    fn with_bounds(self, by: Interval, low: i64, high: i64) -> Offsets {
        let step = gcd(self.step, by.step);
        let step =
            if (-2 * OFFSET_LIMIT..=OFFSET_LIMIT).contains(&low) && step <= OFFSET_LIMIT as u64 { step } else { 1 };
        let rest = (low.min(-OFFSET_LIMIT) + OFFSET_LIMIT).rem_euclid(step.max(1) as i64);
        let (low, high) = (low.clamp(-OFFSET_LIMIT + rest, OFFSET_LIMIT), high.clamp(-OFFSET_LIMIT, OFFSET_LIMIT));
        Offsets { low, high, step: if low == high { 0 } else { step } }
    }

    /// Widens the bounds that moved since `before` to [`OFFSET_LIMIT`].
    pub(super) fn widen(self, before: Offsets) -> Offsets {
        // The stride counts from the bound that stays.
        match (self.low < before.low, self.high > before.high) {
            (false, false) => self,
            (false, true) => Offsets { high: OFFSET_LIMIT, ..self },
            (true, above) => {
                let rest = (self.low + OFFSET_LIMIT).unsigned_abs() % self.step.max(1);
                Offsets { low: -OFFSET_LIMIT + rest as i64, high: if above { OFFSET_LIMIT } else { self.high }, ..self }
            }
        }
    }
}
