//! Construction of masks, with algebraic simplification.

use super::graph::Dag;
use super::node::{Node, Op, ValueKind};
use super::ops::{Binary, Compare, Unary, binary, compare, unary};
use super::range::Range;

impl Dag {
    /// Mask with one constant value in all lanes.
    pub fn flag(&mut self, value: bool) -> Node {
        self.add(Op::Flag(value), ValueKind::Mask, Range::ALL)
    }

    fn mask(&mut self, op: Op) -> Node {
        self.add(op, ValueKind::Mask, Range::ALL)
    }

    pub fn mask_not(&mut self, a: Node) -> Node {
        match self.op(a) {
            Op::Flag(value) => self.flag(!value),
            Op::Not(inner) => inner,
            // Every ordering has an opposite.
            Op::Compare(Compare::Less, x, y) => self.compare(Compare::LessEqual, y, x),
            Op::Compare(Compare::LessEqual, x, y) => self.compare(Compare::Less, y, x),
            Op::Compare(Compare::LessSigned, x, y) => self.compare(Compare::LessEqualSigned, y, x),
            Op::Compare(Compare::LessEqualSigned, x, y) => self.compare(Compare::LessSigned, y, x),
            _ => self.mask(Op::Not(a)),
        }
    }

    pub fn mask_and(&mut self, a: Node, b: Node) -> Node {
        match (self.as_flag(a), self.as_flag(b)) {
            (Some(true), _) => return b,
            (_, Some(true)) => return a,
            (Some(false), _) => return a,
            (_, Some(false)) => return b,
            _ => {}
        }
        if a == b || self.implies(a, b) {
            return a;
        }
        if self.implies(b, a) {
            return b;
        }
        let opposite = self.mask_not(b);
        if a == opposite || self.implies(a, opposite) {
            return self.flag(false);
        }
        // a & (a | x) = a, a & (!a | x) = a & x
        for (a, b) in [(a, b), (b, a)] {
            if let Op::Or(x, y) = self.op(b) {
                if a == x || a == y {
                    return a;
                }
                let opposite = self.mask_not(a);
                if opposite == x || opposite == y {
                    return self.mask_and(a, if opposite == x { y } else { x });
                }
            }
        }
        let (a, b) = (a.min(b), a.max(b));
        self.mask(Op::And(a, b))
    }

    pub fn mask_or(&mut self, a: Node, b: Node) -> Node {
        match (self.as_flag(a), self.as_flag(b)) {
            (Some(false), _) => return b,
            (_, Some(false)) => return a,
            (Some(true), _) => return a,
            (_, Some(true)) => return b,
            _ => {}
        }
        if a == b || self.implies(b, a) {
            return a;
        }
        if self.implies(a, b) {
            return b;
        }
        let opposite = self.mask_not(b);
        if a == opposite {
            return self.flag(true);
        }
        for (a, b) in [(a, b), (b, a)] {
            match self.op(b) {
                Op::Or(x, y) if a == x || a == y => return b,
                // a | (!a & x) = a | x, (a & x) | (a & !x) = a
                Op::And(x, y) => {
                    let opposite = self.mask_not(a);
                    if opposite == x || opposite == y {
                        return self.mask_or(a, if opposite == x { y } else { x });
                    }
                    if let Op::And(u, v) = self.op(a) {
                        for (same, rest, other) in [(x == u, y, v), (x == v, y, u), (y == u, x, v), (y == v, x, u)] {
                            if same && self.mask_not(rest) == other {
                                return if x == u || x == v { x } else { y };
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        let (a, b) = (a.min(b), a.max(b));
        self.mask(Op::Or(a, b))
    }

    /// Whether `whole` is a conjunction with `part` as one of its terms. Only its outermost levels
    /// are searched.
    fn implies(&self, whole: Node, part: Node) -> bool {
        self.implies_within(whole, part, 4)
    }

    fn implies_within(&self, whole: Node, part: Node, levels: u32) -> bool {
        match self.op(whole) {
            Op::And(x, y) if levels > 0 => {
                x == part
                    || y == part
                    || self.implies_within(x, part, levels - 1)
                    || self.implies_within(y, part, levels - 1)
            }
            _ => false,
        }
    }

    pub(super) fn select_mask(&mut self, mask: Node, accept: Node, reject: Node) -> Node {
        let opposite = self.mask_not(mask);
        match (self.as_flag(accept), self.as_flag(reject)) {
            (Some(true), _) => return self.mask_or(mask, reject),
            (Some(false), _) => return self.mask_and(opposite, reject),
            (_, Some(true)) => return self.mask_or(opposite, accept),
            (_, Some(false)) => return self.mask_and(mask, accept),
            _ => {}
        }
        let (yes, no) = (self.mask_and(mask, accept), self.mask_and(opposite, reject));
        self.mask_or(yes, no)
    }

    /// Whether a word is not zero.
    pub fn nonzero_mask(&mut self, a: Node) -> Node {
        let zero = self.constant(0);
        let equal = self.compare(Compare::Equal, a, zero);
        self.mask_not(equal)
    }

    /// `a >= constant`
    pub fn at_least(&mut self, a: Node, constant: u32) -> Node {
        let constant = self.constant(constant);
        self.compare(Compare::LessEqual, constant, a)
    }

    pub fn compare(&mut self, op: Compare, mut a: Node, mut b: Node) -> Node {
        if let (Some(x), Some(y)) = (self.as_constant(a), self.as_constant(b)) {
            return self.flag(compare(op, x, y));
        }
        if a == b {
            return self.flag(matches!(op, Compare::Equal | Compare::LessEqual | Compare::LessEqualSigned));
        }
        if op == Compare::Equal && (self.as_constant(a).is_some() || (self.as_constant(b).is_none() && b < a)) {
            std::mem::swap(&mut a, &mut b);
        }
        let (x, y) = (self.range(a), self.range(b));
        match op {
            Compare::Equal if x.high < y.low || y.high < x.low => return self.flag(false),
            Compare::Less if x.high < y.low => return self.flag(true),
            Compare::Less if x.low >= y.high => return self.flag(false),
            Compare::LessEqual if x.high <= y.low => return self.flag(true),
            Compare::LessEqual if x.low > y.high => return self.flag(false),
            Compare::LessSigned if (x.high | y.high) >> 31 == 0 => return self.compare(Compare::Less, a, b),
            Compare::LessEqualSigned if (x.high | y.high) >> 31 == 0 => return self.compare(Compare::LessEqual, a, b),
            // Canonical form: x < 5 becomes x <= 4, 4 < x becomes 5 <= x. The constants do not
            // wrap, as the ranges have been compared above.
            Compare::Less if let Some(constant) = self.as_constant(b) => {
                let b = self.constant(constant - 1);
                return self.compare(Compare::LessEqual, a, b);
            }
            Compare::Less if let Some(constant) = self.as_constant(a) => {
                let a = self.constant(constant + 1);
                return self.compare(Compare::LessEqual, a, b);
            }
            _ => {}
        }
        if let Some(constant) = self.as_constant(b)
            && let Some(simple) = self.simplify_compare(op, a, constant)
        {
            return simple;
        }
        if let Some(constant) = self.as_constant(a)
            && let Op::Select { mask, accept, reject } = self.op(b)
            && (self.as_constant(accept).is_some() || self.as_constant(reject).is_some())
        {
            let constant = self.constant(constant);
            let (accept, reject) = (self.compare(op, constant, accept), self.compare(op, constant, reject));
            return self.select(mask, accept, reject);
        }
        // Swaps and inversion are injective: compare their operands.
        if op == Compare::Equal
            && let (Op::Unary(turn, x), Op::Unary(other, y)) = (self.op(a), self.op(b))
            && turn == other
            && matches!(turn, Unary::SwapBytes16 | Unary::SwapBytes32 | Unary::Invert)
        {
            return self.compare(op, x, y);
        }
        self.mask(Op::Compare(op, a, b))
    }

    fn simplify_compare(&mut self, op: Compare, a: Node, constant: u32) -> Option<Node> {
        if let Op::Select { mask, accept, reject } = self.op(a)
            && (self.as_constant(accept).is_some() || self.as_constant(reject).is_some())
        {
            let constant = self.constant(constant);
            let (accept, reject) = (self.compare(op, accept, constant), self.compare(op, reject, constant));
            return Some(self.select(mask, accept, reject));
        }
        if op == Compare::LessEqual && constant == 0 {
            let zero = self.constant(0);
            return Some(self.compare(Compare::Equal, a, zero));
        }
        if op != Compare::Equal {
            return None;
        }
        match self.op(a) {
            Op::Unary(turn @ (Unary::SwapBytes16 | Unary::SwapBytes32 | Unary::Invert), x) => {
                // A constant beyond 16 bits is outside the range of the swapped value, and was
                // handled above.
                let constant = self.constant(unary(turn, constant));
                Some(self.compare(op, x, constant))
            }
            Op::Binary(inner, x, y) => {
                let by = self.as_constant(y)?;
                match inner {
                    // A bit outside the mask cannot be set.
                    Binary::And if constant & !by != 0 => Some(self.flag(false)),
                    Binary::And => {
                        let Op::Unary(turn @ (Unary::SwapBytes16 | Unary::SwapBytes32), raw) = self.op(x) else {
                            return None;
                        };
                        let masked = self.and(raw, unary(turn, by));
                        let constant = self.constant(unary(turn, constant));
                        Some(self.compare(op, masked, constant))
                    }
                    Binary::Add | Binary::Xor => {
                        let back = if inner == Binary::Add { Binary::Subtract } else { Binary::Xor };
                        let constant = self.constant(binary(back, constant, by));
                        Some(self.compare(op, x, constant))
                    }
                    // Compares the bits that are not shifted out.
                    Binary::ShiftRight => {
                        let count = by % 32;
                        if constant.leading_zeros() < count {
                            return Some(self.flag(false));
                        }
                        let masked = self.and(x, u32::MAX << count);
                        let constant = self.constant(constant << count);
                        Some(self.compare(op, masked, constant))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}
