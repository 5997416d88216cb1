//! What numbers a register can hold: from one number to another, without a sign.

/// All numbers from `low` to `high`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub low: u64,
    pub high: u64,
}

const SIGN: u64 = 1 << 63;

impl Range {
    /// Any number.
    pub const ANY: Range = Range { low: 0, high: u64::MAX };
    /// Any number of 32 bits.
    pub const WORD: Range = Range { low: 0, high: u32::MAX as u64 };

    pub const fn new(low: u64, high: u64) -> Range {
        Range { low, high }
    }

    pub const fn one(value: u64) -> Range {
        Range { low: value, high: value }
    }

    /// What so many bytes can hold.
    pub fn of_bytes(size: u32) -> Range {
        if size >= 8 { Range::ANY } else { Range::new(0, (1 << (8 * size)) - 1) }
    }

    /// The only number.
    pub fn exact(self) -> Option<u64> {
        (self.low == self.high).then_some(self.low)
    }

    /// Whether it has no more than 32 bits.
    pub fn is_word(self) -> bool {
        self.high <= u64::from(u32::MAX)
    }

    fn is_positive(self) -> bool {
        self.high < SIGN
    }

    pub fn union(self, other: Range) -> Range {
        Range::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// Those that are in both; `None` where that is none.
    pub fn meet(self, low: u64, high: u64) -> Option<Range> {
        let (low, high) = (self.low.max(low), self.high.min(high));
        (low <= high).then_some(Range { low, high })
    }

    /// The lower 32 bits of any of these.
    pub fn low_word(self) -> Range {
        if self.low >> 32 == self.high >> 32 {
            Range::new(self.low & 0xffff_ffff, self.high & 0xffff_ffff)
        } else {
            Range::WORD
        }
    }

    pub fn add(self, other: Range) -> Range {
        match (self.low.checked_add(other.low), self.high.checked_add(other.high)) {
            (Some(low), Some(high)) => Range::new(low, high),
            // All of them wrap.
            (None, None) => Range::new(self.low.wrapping_add(other.low), self.high.wrapping_add(other.high)),
            _ => Range::ANY,
        }
    }

    pub fn sub(self, other: Range) -> Range {
        match (self.low.checked_sub(other.high), self.high.checked_sub(other.low)) {
            (Some(low), Some(high)) => Range::new(low, high),
            (None, None) => Range::new(self.low.wrapping_sub(other.high), self.high.wrapping_sub(other.low)),
            _ => Range::ANY,
        }
    }

    pub fn mul(self, other: Range) -> Range {
        match self.high.checked_mul(other.high) {
            Some(high) => Range::new(self.low * other.low, high),
            None => Range::ANY,
        }
    }

    /// Division, where that by zero is zero.
    pub fn div(self, other: Range) -> Range {
        let high = self.high / other.low.max(1);
        let low = if other.low == 0 { 0 } else { self.low / other.high };
        Range::new(low, high)
    }

    /// The remainder, where that by zero is the number itself.
    pub fn rem(self, other: Range) -> Range {
        if other.low == 0 {
            return Range::new(0, self.high);
        }
        if self.high < other.low { self } else { Range::new(0, self.high.min(other.high - 1)) }
    }

    pub fn and(self, other: Range) -> Range {
        Range::new(0, self.high.min(other.high))
    }

    pub fn or(self, other: Range) -> Range {
        Range::new(self.low.max(other.low), bits(self.high | other.high))
    }

    pub fn xor(self, other: Range) -> Range {
        Range::new(0, bits(self.high | other.high))
    }

    pub fn shl(self, by: Range) -> Range {
        if by.high < 64 && self.high.leading_zeros() >= by.high as u32 {
            Range::new(self.low << by.low, self.high << by.high)
        } else {
            Range::ANY
        }
    }

    pub fn shr(self, by: Range) -> Range {
        if by.high < 64 { Range::new(self.low >> by.high, self.high >> by.low) } else { Range::new(0, self.high) }
    }

    pub fn sar(self, by: Range) -> Range {
        if self.is_positive() { self.shr(by) } else { Range::ANY }
    }

    /// What a number below or up to a bound with a sign can be; `None` where that is none. Only what a range without a
    /// sign can say.
    pub fn signed_at_least(self, bound: i64) -> Option<Range> {
        if bound >= 0 { self.meet(bound as u64, SIGN - 1) } else { Some(self) }
    }

    /// See [`signed_at_least`](Range::signed_at_least).
    pub fn signed_at_most(self, bound: i64) -> Option<Range> {
        if self.is_positive() {
            return if bound < 0 { None } else { self.meet(0, bound as u64) };
        }
        if bound < 0 { self.meet(SIGN, bound as u64) } else { Some(self) }
    }

    /// Whether all of these are below all of those.
    pub fn is_below(self, other: Range) -> bool {
        self.high < other.low
    }

    /// With a sign: the least and the greatest.
    pub fn signed(self) -> (i64, i64) {
        if self.is_positive() || self.low >= SIGN { (self.low as i64, self.high as i64) } else { (i64::MIN, i64::MAX) }
    }

    /// What it may become if it goes on to change as it did from `before`.
    pub fn widened(self, before: Range) -> Range {
        let low = if self.low < before.low { 0 } else { self.low };
        let steps = [u64::from(u8::MAX), u64::from(u16::MAX), u64::from(u32::MAX), u64::MAX];
        let high = if self.high > before.high {
            steps.into_iter().find(|&step| step >= self.high).unwrap_or(u64::MAX)
        } else {
            self.high
        };
        Range::new(low, high)
    }
}

/// All bits up to the highest.
fn bits(of: u64) -> u64 {
    u64::MAX.checked_shr(of.leading_zeros()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation holds what it gives for numbers of its ranges.
    #[test]
    fn operations_hold_what_they_give() {
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
                let span = (high - low).wrapping_add(1);
                let pick = low + if span == 0 { next() } else { next() % span };
                (Range::new(low, high), pick)
            };
            let ((a, x), (b, y)) = (range(), range());
            let holds = |range: Range, value: u64, what: &str| {
                assert!(
                    range.low <= value && value <= range.high,
                    "{what} of {a:?} {b:?} ({x} {y}): {range:?} {value}"
                );
            };
            holds(a.add(b), x.wrapping_add(y), "+");
            holds(a.sub(b), x.wrapping_sub(y), "-");
            holds(a.mul(b), x.wrapping_mul(y), "*");
            holds(a.div(b), x.checked_div(y).unwrap_or(0), "/");
            holds(a.rem(b), x.checked_rem(y).unwrap_or(x), "%");
            holds(a.and(b), x & y, "&");
            holds(a.or(b), x | y, "|");
            holds(a.xor(b), x ^ y, "^");
            holds(a.low_word(), x & 0xffff_ffff, "low");
            holds(a.union(b), x, "union");
            let by = Range::one(y % 64);
            holds(a.shl(by), x << (y % 64), "<<");
            holds(a.shr(by), x >> (y % 64), ">>");
            holds(a.sar(by), ((x as i64) >> (y % 64)) as u64, "s>>");
            let by = Range::new(y % 64, y % 64 + (63 - y % 64).min(b.high % 5));
            for shift in by.low..=by.high {
                holds(a.shl(by), x << shift, "<< of several");
                holds(a.shr(by), x >> shift, ">> of several");
                holds(a.sar(by), ((x as i64) >> shift) as u64, "s>> of several");
            }
            holds(a.widened(b), x, "widened");
            if x as i64 >= y as i64 {
                holds(a.signed_at_least(y as i64).unwrap(), x, "s>=");
            } else {
                holds(a.signed_at_most(y as i64).unwrap(), x, "s<");
            }
            let (least, most) = a.signed();
            assert!(least <= x as i64 && x as i64 <= most);
        }
    }
}
