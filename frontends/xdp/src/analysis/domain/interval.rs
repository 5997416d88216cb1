//! Strided intervals of unsigned 64-bit numbers, the domain of scalars.
//!
//! Source: T. Reps, G. Balakrishnan and J. Lim, Intermediate-Representation Recovery from Low-Level
//! Code, PEPM 2006 (strided intervals).

/// The numbers `low`, `low + step`, … up to `high`. A single number has step 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub low: u64,
    pub high: u64,
    pub step: u64,
}

/// The sign bit of a 64-bit number.
const SIGN: u64 = 1 << 63;

impl Interval {
    /// All 64-bit numbers.
    pub const ANY: Interval = Interval::new(0, u64::MAX);
    /// All 32-bit numbers.
    pub const U32: Interval = Interval::new(0, u32::MAX as u64);

    pub const fn new(low: u64, high: u64) -> Interval {
        Interval { low, high, step: (low != high) as u64 }
    }

    pub const fn constant(value: u64) -> Interval {
        Interval::new(value, value)
    }

    /// Numbers from `low` in steps of `step` that do not exceed `high`; with step 0, `low` alone.
    fn with_step(step: u64, low: u64, high: u64) -> Interval {
        let rest = (high - low).checked_rem(step).unwrap_or(high - low);
        let high = high - rest;
        Interval { low, high, step: if low == high { 0 } else { step } }
    }

    /// The numbers that `size` bytes can hold.
    pub fn of_width(size: u32) -> Interval {
        if size >= 8 { Interval::ANY } else { Interval::new(0, (1 << (8 * size)) - 1) }
    }

    /// The number, if there is only one.
    pub fn as_constant(self) -> Option<u64> {
        (self.low == self.high).then_some(self.low)
    }

    /// Whether all numbers fit 32 bits.
    pub fn fits_u32(self) -> bool {
        self.high <= u64::from(u32::MAX)
    }

    fn is_non_negative(self) -> bool {
        self.high < SIGN
    }

    /// Number of low bits that are zero in every number; 64 if zero is the only number.
    fn trailing_zeros(self) -> u32 {
        (self.low | self.step).trailing_zeros()
    }

    /// Lattice join: the smallest strided interval that contains both.
    pub fn join(self, other: Interval) -> Interval {
        let step = gcd(gcd(self.step, other.step), self.low.abs_diff(other.low));
        Interval::with_step(step, self.low.min(other.low), self.high.max(other.high))
    }

    /// The numbers between `low` and `high`, inclusive; `None` if there is none.
    pub fn meet(self, low: u64, high: u64) -> Option<Interval> {
        let below = low.saturating_sub(self.low);
        let low = match below.checked_rem(self.step) {
            Some(0) => self.low + below,
            Some(rest) => (self.low + below).checked_add(self.step - rest)?,
            None => self.low.max(low),
        };
        let high = self.high.min(high);
        (low <= high).then(|| Interval::with_step(self.step, low, high))
    }

    /// The low 32 bits of each number.
    pub fn truncate_u32(self) -> Interval {
        if self.low >> 32 == self.high >> 32 {
            Interval { low: self.low & 0xffff_ffff, high: self.high & 0xffff_ffff, ..self }
        } else {
            Interval::U32
        }
    }

    pub fn add(self, other: Interval) -> Interval {
        let step = gcd(self.step, other.step);
        match (self.low.checked_add(other.low), self.high.checked_add(other.high)) {
            (Some(low), Some(high)) => Interval::with_step(step, low, high),
            // Both bounds wrap, so every number does.
            (None, None) => {
                Interval::with_step(step, self.low.wrapping_add(other.low), self.high.wrapping_add(other.high))
            }
            _ => Interval::ANY,
        }
    }

    pub fn sub(self, other: Interval) -> Interval {
        let step = gcd(self.step, other.step);
        match (self.low.checked_sub(other.high), self.high.checked_sub(other.low)) {
            (Some(low), Some(high)) => Interval::with_step(step, low, high),
            (None, None) => {
                Interval::with_step(step, self.low.wrapping_sub(other.high), self.high.wrapping_sub(other.low))
            }
            _ => Interval::ANY,
        }
    }

    pub fn mul(self, other: Interval) -> Interval {
        match self.high.checked_mul(other.high) {
            Some(high) => {
                let step = gcd(gcd(self.low * other.step, self.step * other.low), self.step * other.step);
                Interval::with_step(step, self.low * other.low, high)
            }
            None => Interval::ANY,
        }
    }

    /// Quotient; division by zero gives zero.
    pub fn div(self, other: Interval) -> Interval {
        let high = self.high / other.low.max(1);
        let low = if other.low == 0 { 0 } else { self.low / other.high };
        match other.as_constant() {
            Some(by) if by > 0 && self.step.is_multiple_of(by) => Interval::with_step(self.step / by, low, high),
            _ => Interval::new(low, high),
        }
    }

    /// Remainder; the remainder by zero is the dividend.
    pub fn rem(self, other: Interval) -> Interval {
        if other.low == 0 {
            return Interval::new(0, self.high);
        }
        if self.high < other.low { self } else { Interval::new(0, self.high.min(other.high - 1)) }
    }

    pub fn and(self, other: Interval) -> Interval {
        Interval::multiples_of_power_of_two(
            self.trailing_zeros().max(other.trailing_zeros()),
            0,
            self.high.min(other.high),
        )
    }

    pub fn or(self, other: Interval) -> Interval {
        let zeros = self.trailing_zeros().min(other.trailing_zeros());
        Interval::multiples_of_power_of_two(zeros, self.low.max(other.low), low_bits_mask(self.high | other.high))
    }

    pub fn xor(self, other: Interval) -> Interval {
        Interval::multiples_of_power_of_two(
            self.trailing_zeros().min(other.trailing_zeros()),
            0,
            low_bits_mask(self.high | other.high),
        )
    }

    pub fn shl(self, by: Interval) -> Interval {
        if by.high >= 64 || self.high.leading_zeros() < by.high as u32 {
            return Interval::ANY;
        }
        let (low, high) = (self.low << by.low, self.high << by.high);
        match by.as_constant() {
            Some(by) => Interval::with_step(self.step << by, low, high),
            None => Interval::multiples_of_power_of_two(self.trailing_zeros().saturating_add(by.low as u32), low, high),
        }
    }

    /// Multiples of `1 << zeros` from `low`, which is one, to `high`.
    fn multiples_of_power_of_two(zeros: u32, low: u64, high: u64) -> Interval {
        Interval::with_step(1_u64.checked_shl(zeros).unwrap_or(0), low, high)
    }

    pub fn shr(self, by: Interval) -> Interval {
        match by.as_constant() {
            Some(by) if by < 64 => self.div(Interval::constant(1 << by)),
            _ if by.high < 64 => Interval::new(self.low >> by.high, self.high >> by.low),
            _ => Interval::new(0, self.high),
        }
    }

    pub fn sar(self, by: Interval) -> Interval {
        if self.is_non_negative() { self.shr(by) } else { Interval::ANY }
    }

    /// The numbers that are at least `bound` as signed numbers; `None` if there is none. An
    /// over-approximation where an unsigned interval cannot express the set.
    pub fn signed_at_least(self, bound: i64) -> Option<Interval> {
        if bound >= 0 { self.meet(bound as u64, SIGN - 1) } else { Some(self) }
    }

    /// The numbers that are at most `bound` as signed numbers; see
    /// [`signed_at_least`](Interval::signed_at_least).
    pub fn signed_at_most(self, bound: i64) -> Option<Interval> {
        if self.is_non_negative() {
            return if bound < 0 { None } else { self.meet(0, bound as u64) };
        }
        if bound < 0 { self.meet(SIGN, bound as u64) } else { Some(self) }
    }

    /// Whether every number is below every number of `other`.
    pub fn is_below(self, other: Interval) -> bool {
        self.high < other.low
    }

    /// The smallest and the greatest number, read as signed.
    pub fn signed_bounds(self) -> (i64, i64) {
        if self.is_non_negative() || self.low >= SIGN {
            (self.low as i64, self.high as i64)
        } else {
            (i64::MIN, i64::MAX)
        }
    }

    /// Widens the bounds that moved since `before`, which this interval contains: to the next of
    /// the sorted thresholds `bounds`, or to what 1, 2, 4 or 8 bytes hold.
    pub fn widen(self, before: Interval, bounds: &[u64]) -> Interval {
        let next = || {
            let bytes = [u64::from(u8::MAX), u64::from(u16::MAX), u64::from(u32::MAX)];
            let bounds = bounds.get(bounds.partition_point(|&bound| bound < self.high));
            bytes.into_iter().filter(|&bound| bound >= self.high).chain(bounds.copied()).min().unwrap_or(u64::MAX)
        };
        let last = || {
            let below = bounds.partition_point(|&bound| bound <= self.low);
            let low = below.checked_sub(1).map_or(0, |at| bounds[at]);
            low + (self.low - low).checked_rem(self.step).unwrap_or(0)
        };
        let low = if self.low < before.low { last() } else { self.low };
        Interval::with_step(self.step, low, if self.high > before.high { next() } else { self.high })
    }
}

/// Greatest common divisor.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// All bits up to the highest set one.
fn low_bits_mask(of: u64) -> u64 {
    u64::MAX.checked_shr(of.leading_zeros()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each operation's interval contains the results for random members of its operands.
    #[test]
    fn results_lie_in_the_interval_of_the_operation() {
        let mut state = 3_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 7
        };
        let number = |next: &mut dyn FnMut() -> u64| {
            let bits = next() % 65;
            let value = (next() << 20 ^ next()) & u64::MAX.checked_shl(bits as u32).map_or(u64::MAX, |mask| !mask);
            if next().is_multiple_of(4) { value.wrapping_neg() } else { value }
        };
        for _ in 0..200_000 {
            let mut range = || {
                let (a, b) = (number(&mut next), number(&mut next));
                let (low, high) = if next().is_multiple_of(3) { (a, a) } else { (a.min(b), a.max(b)) };
                let step = if next().is_multiple_of(2) { 1 } else { number(&mut next).max(1) };
                let range = Interval::with_step(step, low, high);
                let count = ((range.high - low) / step).wrapping_add(1);
                (range, low + step * if count == 0 { next() } else { next() % count })
            };
            let ((a, x), (b, y)) = (range(), range());
            let holds = |range: Interval, value: u64, what: &str| {
                assert!(
                    range.low <= value
                        && value <= range.high
                        && (value - range.low).checked_rem(range.step).unwrap_or(0) == 0,
                    "{what} of {a:?} {b:?} ({x} {y}): {range:?} {value}"
                );
                // Equal intervals have one representation.
                assert_eq!(Interval::with_step(range.step, range.low, range.high), range, "{what} of {a:?} {b:?}");
            };
            holds(a.add(b), x.wrapping_add(y), "+");
            holds(a.sub(b), x.wrapping_sub(y), "-");
            holds(a.mul(b), x.wrapping_mul(y), "*");
            holds(a.div(b), x.checked_div(y).unwrap_or(0), "/");
            holds(a.rem(b), x.checked_rem(y).unwrap_or(x), "%");
            holds(a.and(b), x & y, "&");
            holds(a.or(b), x | y, "|");
            holds(a.xor(b), x ^ y, "^");
            holds(a.truncate_u32(), x & 0xffff_ffff, "low");
            holds(a.join(b), x, "union");
            let by = Interval::constant(y % 64);
            holds(a.shl(by), x << (y % 64), "<<");
            holds(a.shr(by), x >> (y % 64), ">>");
            holds(a.sar(by), ((x as i64) >> (y % 64)) as u64, "s>>");
            let by = Interval::new(y % 64, y % 64 + (63 - y % 64).min(b.high % 5));
            for shift in by.low..=by.high {
                holds(a.shl(by), x << shift, "<< of several");
                holds(a.shr(by), x >> shift, ">> of several");
                holds(a.sar(by), ((x as i64) >> shift) as u64, "s>> of several");
            }
            let mut bounds = [y, y.wrapping_add(1), number(&mut next)];
            bounds.sort_unstable();
            holds(a.join(b).widen(b, &bounds), x, "widened");
            if let Some(met) = a.meet(b.low, b.high) {
                assert!(b.low <= met.low && met.high <= b.high, "{a:?} {b:?}: {met:?}");
            }
            if b.low <= x && x <= b.high {
                holds(a.meet(b.low, b.high).expect("this number is in both"), x, "meet");
            }
            if x as i64 >= y as i64 {
                holds(a.signed_at_least(y as i64).unwrap(), x, "s>=");
            } else {
                holds(a.signed_at_most(y as i64).unwrap(), x, "s<");
            }
            let (least, most) = a.signed_bounds();
            assert!(least <= x as i64 && x as i64 <= most);
        }
    }
}
