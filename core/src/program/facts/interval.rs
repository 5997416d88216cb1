//! Interval domain for 32-bit integers, with a transfer function for each of WGSL's operators.
//!
//! Every operator is sound: if `x` is in `a` and `y` in `b`, the value of WGSL's `x op y` is in the
//! result. Bounds are numbers, not bit patterns: a `u32` is in `0..2^32`, an `i32` in
//! `-2^31..2^31`.

/// The two 32-bit integer types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntKind {
    Unsigned,
    Signed,
}

impl IntKind {
    /// The interval of all numbers of the type.
    pub(super) const fn full(self) -> Interval {
        match self {
            IntKind::Unsigned => Interval::new(0, u32::MAX as i64),
            IntKind::Signed => Interval::new(i32::MIN as i64, i32::MAX as i64),
        }
    }

    /// The numbers of the type that are congruent, modulo 2^32, to those of `lo..=hi`; all numbers
    /// if only a part of the range wraps.
    pub(super) fn wrap(self, lo: i128, hi: i128) -> Interval {
        let full = self.full();
        let wraps_of = |x: i128| (x - i128::from(full.lo)).div_euclid(1 << 32);
        let wraps = wraps_of(lo);
        if wraps_of(hi) != wraps {
            return full;
        }
        let back = wraps << 32;
        Interval::new((lo - back) as i64, (hi - back) as i64)
    }
}

/// A non-empty interval, both bounds included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) lo: i64,
    pub(super) hi: i64,
}

impl Interval {
    pub(super) const fn new(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }

    pub(super) const fn point(value: i64) -> Interval {
        Interval { lo: value, hi: value }
    }

    /// The interval's number, if it has only one.
    pub(super) fn as_point(self) -> Option<i64> {
        (self.lo == self.hi).then_some(self.lo)
    }

    /// The smallest interval that contains both.
    pub(super) fn hull(self, other: Interval) -> Interval {
        Interval::new(self.lo.min(other.lo), self.hi.max(other.hi))
    }

    /// The intersection; `None` if it is empty.
    pub(super) fn meet(self, other: Interval) -> Option<Interval> {
        let both = Interval::new(self.lo.max(other.lo), self.hi.min(other.hi));
        (both.lo <= both.hi).then_some(both)
    }

    fn is_non_negative(self) -> bool {
        self.lo >= 0
    }

    pub(super) fn add(self, b: Interval, kind: IntKind) -> Interval {
        kind.wrap(i128::from(self.lo + b.lo), i128::from(self.hi + b.hi))
    }

    pub(super) fn sub(self, b: Interval, kind: IntKind) -> Interval {
        kind.wrap(i128::from(self.lo - b.hi), i128::from(self.hi - b.lo))
    }

    pub(super) fn mul(self, b: Interval, kind: IntKind) -> Interval {
        let corner = |x: i64, y: i64| i128::from(x) * i128::from(y);
        let corners = [corner(self.lo, b.lo), corner(self.lo, b.hi), corner(self.hi, b.lo), corner(self.hi, b.hi)];
        let lo = corners.iter().copied().fold(i128::MAX, i128::min);
        let hi = corners.iter().copied().fold(i128::MIN, i128::max);
        kind.wrap(lo, hi)
    }

    /// Quotient, where `x / 0` is `x`.
    pub(super) fn div(self, b: Interval, kind: IntKind) -> Interval {
        if !self.is_non_negative() || !b.is_non_negative() {
            return kind.full();
        }
        let hi = if b.lo == 0 { self.hi } else { self.hi / b.lo };
        Interval::new(self.lo / b.hi.max(1), hi)
    }

    /// Remainder, where `x % 0` is 0.
    pub(super) fn rem(self, b: Interval, kind: IntKind) -> Interval {
        if !self.is_non_negative() || !b.is_non_negative() {
            return kind.full();
        }
        if self.hi < b.lo {
            return self;
        }
        Interval::new(0, self.hi.min((b.hi - 1).max(0)))
    }

    pub(super) fn and(self, b: Interval, kind: IntKind) -> Interval {
        match (self.is_non_negative(), b.is_non_negative()) {
            (true, true) => match (self.as_point(), b.as_point()) {
                (Some(x), Some(y)) => Interval::point(x & y),
                _ => Interval::new(0, self.hi.min(b.hi)),
            },
            // A non-negative number has no sign bit, so the result has none and does not exceed it.
            (true, false) => Interval::new(0, self.hi),
            (false, true) => Interval::new(0, b.hi),
            (false, false) => kind.full(),
        }
    }

    pub(super) fn or(self, b: Interval, kind: IntKind) -> Interval {
        if !self.is_non_negative() || !b.is_non_negative() {
            return kind.full();
        }
        match (self.as_point(), b.as_point()) {
            (Some(x), Some(y)) => Interval::point(x | y),
            _ => Interval::new(self.lo.max(b.lo), all_ones_at_least(self.hi | b.hi)),
        }
    }

    pub(super) fn xor(self, b: Interval, kind: IntKind) -> Interval {
        if !self.is_non_negative() || !b.is_non_negative() {
            return kind.full();
        }
        match (self.as_point(), b.as_point()) {
            (Some(x), Some(y)) => Interval::point(x ^ y),
            _ => Interval::new(0, all_ones_at_least(self.hi | b.hi)),
        }
    }

    pub(super) fn not(self, kind: IntKind) -> Interval {
        kind.wrap(-1 - i128::from(self.hi), -1 - i128::from(self.lo))
    }

    pub(super) fn neg(self, kind: IntKind) -> Interval {
        kind.wrap(-i128::from(self.hi), -i128::from(self.lo))
    }

    /// Left shift by a `u32` count, taken modulo 32.
    pub(super) fn shl(self, count: Interval, kind: IntKind) -> Interval {
        let count = shift_count(count);
        if !self.is_non_negative() {
            return kind.full();
        }
        let hi = i128::from(self.hi) << count.hi;
        if hi > i128::from(kind.full().hi) {
            return kind.full();
        }
        Interval::new(self.lo << count.lo, hi as i64)
    }

    /// Right shift by a `u32` count, taken modulo 32; arithmetic for negative numbers.
    pub(super) fn shr(self, count: Interval) -> Interval {
        let count = shift_count(count);
        let corners = [self.lo >> count.lo, self.lo >> count.hi, self.hi >> count.lo, self.hi >> count.hi];
        Interval::new(*corners.iter().min().unwrap_or(&self.lo), *corners.iter().max().unwrap_or(&self.hi))
    }
}

/// The interval of `count % 32`.
fn shift_count(count: Interval) -> Interval {
    match count.as_point() {
        Some(one) => Interval::point(one & 31),
        None if count.lo >= 0 && count.hi < 32 => count,
        None => Interval::new(0, 31),
    }
}

/// The smallest number of the form `2^n - 1` that is at least `x`.
fn all_ones_at_least(x: i64) -> i64 {
    if x <= 0 { 0 } else { i64::MAX >> (x.leading_zeros() - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: IntKind = IntKind::Unsigned;
    const I: IntKind = IntKind::Signed;

    fn at(lo: i64, hi: i64) -> Interval {
        Interval::new(lo, hi)
    }

    #[test]
    fn sums_that_wrap_in_part_become_all_numbers() {
        assert_eq!(at(14, 14).add(at(20, 60), U), at(34, 74));
        // Both bounds wrap: 0xfffffff0 + 0x20..0x30 = 0x10..0x20.
        assert_eq!(at(0xffff_fff0, 0xffff_fff0).add(at(0x20, 0x30), U), at(0x10, 0x20));
        // Only one bound wraps.
        assert_eq!(at(0xffff_fff0, 0xffff_fff0).add(at(0, 0x30), U), U.full());
        assert_eq!(at(5, 9).sub(at(5, 5), U), at(0, 4));
        assert_eq!(at(4, 9).sub(at(5, 5), U), U.full());
        // 0 - 1 = 2^32 - 1
        assert_eq!(at(0, 0).sub(at(1, 1), U), at(0xffff_ffff, 0xffff_ffff));
        assert_eq!(at(0, 0).sub(at(1, 1), I), at(-1, -1));
        assert_eq!(at(i64::from(i32::MAX), i64::from(i32::MAX)).add(at(1, 1), I), at(-(1 << 31), -(1 << 31)));
    }

    #[test]
    fn products_have_the_bounds_of_their_corners() {
        assert_eq!(at(0, 15).mul(at(4, 4), U), at(0, 60));
        assert_eq!(at(0, 0x1_0000).mul(at(0, 0x1_0000), U), U.full());
        assert_eq!(at(-3, 2).mul(at(-5, 7), I), at(-21, 15));
    }

    #[test]
    fn division_by_zero_follows_wgsl() {
        assert_eq!(at(100, 200).div(at(0, 10), U), at(10, 200));
        assert_eq!(at(100, 200).div(at(0, 0), U), at(100, 200));
        assert_eq!(at(100, 200).rem(at(0, 10), U), at(0, 9));
        assert_eq!(at(100, 200).rem(at(0, 0), U), at(0, 0));
        assert_eq!(at(3, 5).rem(at(8, 8), U), at(3, 5));
        assert_eq!(at(-7, 5).rem(at(8, 8), I), I.full());
    }

    /// Calls `check` with every pair of intervals between `edges`, and with every pair of edges in
    /// them.
    fn each_pair<N: Copy + PartialOrd + Into<i64>>(edges: &[N], check: impl Fn(Interval, Interval, N, N)) {
        let ranges = || edges.iter().enumerate().flat_map(|(i, &low)| edges[i..].iter().map(move |&high| (low, high)));
        let inside = |(low, high): (N, N)| edges.iter().copied().filter(move |&x| low <= x && x <= high);
        for a in ranges() {
            for b in ranges() {
                for x in inside(a) {
                    for y in inside(b) {
                        check(at(a.0.into(), a.1.into()), at(b.0.into(), b.1.into()), x, y);
                    }
                }
            }
        }
    }

    /// Checks every operator on all pairs of edge values, with Rust's wrapping operators as the
    /// model.
    #[test]
    fn unsigned_operators_are_sound() {
        each_pair(
            &[0u32, 1, 2, 3, 7, 8, 31, 32, 33, 255, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff],
            |a, b, x, y| {
                let has = |r: Interval, v: u32, what: &str| {
                    assert!(r.meet(Interval::point(v.into())).is_some(), "{x} {what} {y}: {v} not in {r:?}");
                };
                has(a.add(b, U), x.wrapping_add(y), "+");
                has(a.sub(b, U), x.wrapping_sub(y), "-");
                has(a.mul(b, U), x.wrapping_mul(y), "*");
                has(a.div(b, U), x.checked_div(y).unwrap_or(x), "/");
                has(a.rem(b, U), x.checked_rem(y).unwrap_or(0), "%");
                has(a.and(b, U), x & y, "&");
                has(a.or(b, U), x | y, "|");
                has(a.xor(b, U), x ^ y, "^");
                has(a.not(U), !x, "~");
                has(a.neg(U), x.wrapping_neg(), "neg");
                has(a.shl(b, U), x.wrapping_shl(y), "<<");
                has(a.shr(b), x.wrapping_shr(y), ">>");
            },
        );
    }

    #[test]
    fn signed_operators_are_sound() {
        each_pair(
            &[i32::MIN, i32::MIN + 1, -255, -8, -2, -1, 0, 1, 2, 7, 31, 255, i32::MAX - 1, i32::MAX],
            |a, b, x, y| {
                let has = |r: Interval, v: i32, what: &str| {
                    assert!(r.meet(Interval::point(v.into())).is_some(), "{x} {what} {y}: {v} not in {r:?}");
                };
                has(a.add(b, I), x.wrapping_add(y), "+");
                has(a.sub(b, I), x.wrapping_sub(y), "-");
                has(a.mul(b, I), x.wrapping_mul(y), "*");
                has(a.div(b, I), if y == 0 { x } else { x.wrapping_div(y) }, "/");
                has(a.rem(b, I), if y == 0 { 0 } else { x.wrapping_rem(y) }, "%");
                has(a.and(b, I), x & y, "&");
                has(a.or(b, I), x | y, "|");
                has(a.xor(b, I), x ^ y, "^");
                has(a.not(I), !x, "~");
                has(a.neg(I), x.wrapping_neg(), "neg");
                if y >= 0 {
                    has(a.shl(b, I), x.wrapping_shl(y as u32), "<<");
                    has(a.shr(b), x.wrapping_shr(y as u32), ">>");
                }
            },
        );
    }
}
