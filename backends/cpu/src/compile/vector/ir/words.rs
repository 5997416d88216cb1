//! Construction of words, with algebraic simplification and strength reduction.

use super::graph::Dag;
use super::node::{Load, MetadataField, Node, Op, ValueKind};
use super::ops::{Binary, Unary, binary, is_commutative, unary};
use super::range::Range;

impl Dag {
    pub fn constant(&mut self, value: u32) -> Node {
        self.add(Op::Constant(value), ValueKind::Word, Range::exactly(value))
    }

    /// The packet's length on arrival.
    pub fn length(&mut self) -> Node {
        self.add(Op::Length, ValueKind::Word, Range::ALL)
    }

    pub fn metadata(&mut self, field: MetadataField) -> Node {
        self.add(Op::Metadata(field), ValueKind::Word, Range::ALL)
    }

    /// Bytes of the packet at `root + add`, a sum that must not wrap in any lane.
    pub fn load(&mut self, load: Load) -> Node {
        debug_assert!(load.root.is_none_or(|root| self.range(root).high.checked_add(load.add).is_some()));
        self.add(Op::Load(load), ValueKind::Word, Range::of_bytes(load.size))
    }

    /// A word of a table, whose words are all in `range`. The index must be in the table in every
    /// lane.
    pub fn table(&mut self, table: u32, index: Node, range: Range) -> Node {
        self.add(Op::Table { table, index }, ValueKind::Word, range)
    }

    pub fn unary(&mut self, op: Unary, a: Node) -> Node {
        if let Some(value) = self.as_constant(a) {
            return self.constant(unary(op, value));
        }
        let turns_back = matches!(op, Unary::Invert | Unary::SwapBytes16 | Unary::SwapBytes32 | Unary::ReverseBits);
        match self.op(a) {
            Op::Unary(inner, x) if inner == op && turns_back => return x,
            _ => {}
        }
        let range = Range::unary(op, self.range(a));
        self.word(Op::Unary(op, a), range)
    }

    /// Swaps the bytes of a number that has only its low `size` bytes.
    pub fn swap_bytes(&mut self, a: Node, size: u32) -> Node {
        match size {
            1 => a,
            2 => self.unary(Unary::SwapBytes16, a),
            _ => self.unary(Unary::SwapBytes32, a),
        }
    }

    pub fn binary(&mut self, op: Binary, mut a: Node, mut b: Node) -> Node {
        if let (Some(x), Some(y)) = (self.as_constant(a), self.as_constant(b)) {
            return self.constant(binary(op, x, y));
        }
        // Canonical order: constants last, otherwise the older node first.
        if is_commutative(op) && (self.as_constant(a).is_some() || (self.as_constant(b).is_none() && b < a)) {
            std::mem::swap(&mut a, &mut b);
        }
        if let Some(simple) = self.simplify_binary(op, a, b) {
            return simple;
        }
        let range = Range::binary(op, self.range(a), self.range(b));
        self.word(Op::Binary(op, a, b), range)
    }

    pub fn and(&mut self, a: Node, mask: u32) -> Node {
        let mask = self.constant(mask);
        self.binary(Binary::And, a, mask)
    }

    pub fn add_constant(&mut self, a: Node, add: u32) -> Node {
        let add = self.constant(add);
        self.binary(Binary::Add, a, add)
    }

    pub fn shift_right(&mut self, a: Node, count: u32) -> Node {
        let count = self.constant(count);
        self.binary(Binary::ShiftRight, a, count)
    }

    /// Decomposes a word into a sum that does not wrap in any lane, of an optional node and a
    /// constant.
    pub fn sum(&self, node: Node) -> (Option<Node>, u32) {
        match self.op(node) {
            Op::Constant(value) => (None, value),
            Op::Binary(Binary::Add, a, b) => match self.as_constant(b) {
                Some(add) if self.range(a).high.checked_add(add).is_some() => (Some(a), add),
                _ => (Some(node), 0),
            },
            _ => (Some(node), 0),
        }
    }

    fn word(&mut self, op: Op, range: Range) -> Node {
        match range.single() {
            Some(value) => self.constant(value),
            None => self.add(op, ValueKind::Word, range),
        }
    }

    fn simplify_binary(&mut self, op: Binary, a: Node, b: Node) -> Option<Node> {
        use Binary as B;
        if a == b {
            match op {
                B::And | B::Or | B::Min | B::Max | B::MinSigned | B::MaxSigned => return Some(a),
                B::Subtract | B::Xor | B::Modulo | B::ModuloSigned => return Some(self.constant(0)),
                _ => {}
            }
        }
        if self.as_constant(a) == Some(0)
            && matches!(op, B::ShiftLeft | B::ShiftRight | B::ShiftRightSigned | B::Divide | B::Modulo)
        {
            return Some(a);
        }
        let constant = self.as_constant(b)?;
        let range = self.range(a);
        match (op, constant) {
            (B::Add | B::Subtract | B::Or | B::Xor | B::Max, 0) | (B::Multiply | B::Divide | B::DivideSigned, 1) => {
                return Some(a);
            }
            (B::Divide | B::DivideSigned, 0) => return Some(a),
            (B::ShiftLeft | B::ShiftRight | B::ShiftRightSigned, count) if count % 32 == 0 => return Some(a),
            (B::Multiply | B::And | B::Min, 0) | (B::Modulo | B::ModuloSigned, 0 | 1) => {
                return Some(self.constant(0));
            }
            (B::And, mask) if mask & mask.wrapping_add(1) == 0 && range.high <= mask => return Some(a),
            (B::Min, most) if range.high <= most => return Some(a),
            (B::Modulo, divisor) if range.high < divisor => return Some(a),
            (B::ShiftRight, count) if range.high >> (count % 32) == 0 => return Some(self.constant(0)),
            (B::Xor, u32::MAX) => return Some(self.unary(Unary::Invert, a)),
            // Strength reduction.
            (B::Subtract, _) => return Some(self.add_constant(a, constant.wrapping_neg())),
            (B::Multiply, _) if constant.is_power_of_two() => {
                let count = self.constant(constant.trailing_zeros());
                return Some(self.binary(B::ShiftLeft, a, count));
            }
            (B::Divide, _) if constant.is_power_of_two() => {
                return Some(self.shift_right(a, constant.trailing_zeros()));
            }
            (B::Modulo, _) if constant.is_power_of_two() => return Some(self.and(a, constant - 1)),
            _ => {}
        }
        // Extract a byte from the unswapped word, so that either byte order gives the same node.
        if let (B::And, 0xff) = (op, constant)
            && let Op::Binary(B::ShiftRight, turned, count) = self.op(a)
            && let (Op::Unary(Unary::SwapBytes32, x), Some(count @ (8 | 16))) =
                (self.op(turned), self.as_constant(count))
        {
            let shifted = self.shift_right(x, 24 - count);
            return Some(self.and(shifted, 0xff));
        }
        let (inner, x, y) = match self.op(a) {
            Op::Binary(inner, x, y) => (inner, x, self.as_constant(y)?),
            Op::Unary(Unary::SwapBytes16 | Unary::SwapBytes32, _) => return self.simplify_swapped(op, a, constant),
            _ => return None,
        };
        match (op, inner) {
            (B::Add, B::Add) => Some(self.add_constant(x, y.wrapping_add(constant))),
            (B::And, B::And) => Some(self.and(x, y & constant)),
            (B::Xor, B::Xor) | (B::Or, B::Or) => {
                let both = self.constant(binary(op, y, constant));
                Some(self.binary(op, x, both))
            }
            (B::ShiftRight, B::ShiftRight) | (B::ShiftLeft, B::ShiftLeft) => {
                let count = y % 32 + constant % 32;
                if count > 31 {
                    return Some(self.constant(0));
                }
                let count = self.constant(count);
                Some(self.binary(op, x, count))
            }
            (B::And, B::ShiftLeft) if constant >> (y % 32) == 0 => Some(self.constant(0)),
            // (port << 8 | 4) & 0xff
            (B::And, B::Or) => {
                let rest = self.and(x, constant);
                let rest = self.as_constant(rest)?;
                Some(self.constant(rest | (y & constant)))
            }
            // (x << 2) & 0xfc = (x & 0x3f) << 2, which is redundant if x has no other bits.
            (B::And, B::ShiftLeft) => {
                let kept = constant >> (y % 32);
                (self.range(x).high <= kept && kept & kept.wrapping_add(1) == 0).then_some(a)
            }
            (B::And, B::ShiftRight) => {
                let most = u32::MAX >> (y % 32);
                (constant & most == most).then_some(a)
            }
            _ => None,
        }
    }

    /// A byte of a swapped number is a byte of its operand.
    fn simplify_swapped(&mut self, op: Binary, swapped: Node, constant: u32) -> Option<Node> {
        let Op::Unary(turn, x) = self.op(swapped) else { return None };
        let top = if turn == Unary::SwapBytes16 { 8 } else { 24 };
        match op {
            Binary::ShiftRight if constant == top => Some(self.and(x, 0xff)),
            Binary::And if constant == 0xff => Some(self.shift_right(x, top)),
            _ => None,
        }
    }

    /// Selects between two words, or two masks.
    pub fn select(&mut self, mask: Node, accept: Node, reject: Node) -> Node {
        debug_assert_eq!(self.kind(accept), self.kind(reject));
        if let Some(outcome) = self.as_flag(mask) {
            return if outcome { accept } else { reject };
        }
        if accept == reject {
            return accept;
        }
        if self.kind(accept) == ValueKind::Mask {
            return self.select_mask(mask, accept, reject);
        }
        if let Op::Not(opposite) = self.op(mask) {
            return self.select(opposite, reject, accept);
        }
        if let Op::Select { mask: inner, accept: x, reject: y } = self.op(accept) {
            if inner == mask {
                return self.select(mask, x, reject);
            }
            // Merge nested selects that share an arm.
            if y == reject {
                let both = self.mask_and(mask, inner);
                return self.select(both, x, reject);
            }
        }
        if let Op::Select { mask: inner, accept: x, reject: y } = self.op(reject) {
            if inner == mask {
                return self.select(mask, accept, y);
            }
            if x == accept {
                let either = self.mask_or(mask, inner);
                return self.select(either, accept, y);
            }
        }
        let range = self.range(accept).union(self.range(reject));
        self.word(Op::Select { mask, accept, reject }, range)
    }

    /// 1 if the mask is set, 0 otherwise.
    pub fn word_from_mask(&mut self, mask: Node) -> Node {
        let (one, zero) = (self.constant(1), self.constant(0));
        self.select(mask, one, zero)
    }
}
