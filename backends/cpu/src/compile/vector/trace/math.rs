//! WGSL's built-in functions on integers.

use naga::{BinaryOperator as Bo, MathFunction as Mf, ScalarKind};

use super::places::kind_of;
use super::tracer::Tracer;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types::Leaf;
use crate::compile::vector::ir::{Binary, Compare, Node, Unary};

impl Tracer<'_> {
    /// Traces a built-in function; `leaf` is the scalar type of its first argument.
    pub(super) fn math(&mut self, fun: Mf, leaf: Leaf, arguments: &[Vec<Node>]) -> Result<Vec<Node>> {
        kind_of(leaf)?;
        let a = &arguments[0];
        match fun {
            Mf::Dot => return Ok(vec![self.dot(leaf, a, &arguments[1])?]),
            Mf::Dot4U8Packed | Mf::Dot4I8Packed => {
                let signed = fun == Mf::Dot4I8Packed;
                let (x, y) = (self.unpack_bytes(a[0], signed), self.unpack_bytes(arguments[1][0], signed));
                return Ok(vec![self.dot(leaf, &x, &y)?]);
            }
            Mf::Unpack4xU8 => return Ok(self.unpack_bytes(a[0], false)),
            Mf::Unpack4xI8 => return Ok(self.unpack_bytes(a[0], true)),
            Mf::Pack4xU8 | Mf::Pack4xI8 => return Ok(vec![self.pack_bytes(a)]),
            Mf::Pack4xU8Clamp | Mf::Pack4xI8Clamp => {
                let signed = fun == Mf::Pack4xI8Clamp;
                let (least, most) = if signed { (-128_i32 as u32, 127) } else { (0, 255) };
                let (least, most) = (self.dag.constant(least), self.dag.constant(most));
                let clamped: Vec<Node> = a.iter().map(|&v| self.clamp(signed, v, least, most)).collect();
                return Ok(vec![self.pack_bytes(&clamped)]);
            }
            _ => {}
        }
        let n = arguments.iter().map(Vec::len).max().unwrap_or(0);
        (0..n)
            .map(|i| {
                let scalars: Vec<Node> = arguments.iter().map(|a| if a.len() == 1 { a[0] } else { a[i] }).collect();
                self.integer_math(fun, leaf, &scalars)
            })
            .collect()
    }

    fn dot(&mut self, leaf: Leaf, a: &[Node], b: &[Node]) -> Result<Node> {
        let products = self.componentwise(leaf, Bo::Multiply, a, b)?;
        Ok(products[1..].iter().fold(products[0], |sum, &product| self.dag.binary(Binary::Add, sum, product)))
    }

    fn binary_constant(&mut self, op: Binary, a: Node, constant: u32) -> Node {
        let constant = self.dag.constant(constant);
        self.dag.binary(op, a, constant)
    }

    fn unpack_bytes(&mut self, value: Node, signed: bool) -> Vec<Node> {
        let down = if signed { Binary::ShiftRightSigned } else { Binary::ShiftRight };
        (0..4)
            .map(|i| {
                let up = self.binary_constant(Binary::ShiftLeft, value, 24 - 8 * i);
                self.binary_constant(down, up, 24)
            })
            .collect()
    }

    fn pack_bytes(&mut self, values: &[Node]) -> Node {
        let zero = self.dag.constant(0);
        (0..).zip(values).fold(zero, |all, (i, &value)| {
            let byte = self.dag.and(value, 0xff);
            let placed = self.binary_constant(Binary::ShiftLeft, byte, 8 * i);
            self.dag.binary(Binary::Or, all, placed)
        })
    }

    fn clamp(&mut self, signed: bool, value: Node, low: Node, high: Node) -> Node {
        let (max, min) = if signed { (Binary::MaxSigned, Binary::MinSigned) } else { (Binary::Max, Binary::Min) };
        let raised = self.dag.binary(max, value, low);
        self.dag.binary(min, raised, high)
    }

    fn integer_math(&mut self, fun: Mf, leaf: Leaf, a: &[Node]) -> Result<Node> {
        let signed = leaf.0.kind == ScalarKind::Sint;
        let x = a[0];
        Ok(match fun {
            Mf::Abs if signed => {
                let negated = self.negate(x);
                self.dag.binary(Binary::MaxSigned, x, negated)
            }
            Mf::Abs => x,
            Mf::Min => self.dag.binary(if signed { Binary::MinSigned } else { Binary::Min }, x, a[1]),
            Mf::Max => self.dag.binary(if signed { Binary::MaxSigned } else { Binary::Max }, x, a[1]),
            Mf::Clamp => self.clamp(signed, x, a[1], a[2]),
            Mf::Sign => {
                let zero = self.dag.constant(0);
                let positive = self.dag.compare(Compare::LessSigned, zero, x);
                let positive = self.dag.word_from_mask(positive);
                let negative = self.binary_constant(Binary::ShiftRightSigned, x, 31);
                self.dag.binary(Binary::Or, positive, negative)
            }
            Mf::CountOneBits => self.dag.unary(Unary::CountOnes, x),
            Mf::CountLeadingZeros => self.dag.unary(Unary::LeadingZeros, x),
            Mf::CountTrailingZeros => self.dag.unary(Unary::TrailingZeros, x),
            Mf::ReverseBits => self.dag.unary(Unary::ReverseBits, x),
            Mf::FirstTrailingBit => {
                let zeros = self.dag.unary(Unary::TrailingZeros, x);
                self.or_minus_one(x, zeros)
            }
            Mf::FirstLeadingBit => {
                // For a negative number: the highest bit that differs from the sign bit.
                let sign = self.binary_constant(Binary::ShiftRightSigned, x, 31);
                let x = if signed { self.dag.binary(Binary::Xor, x, sign) } else { x };
                let zeros = self.dag.unary(Unary::LeadingZeros, x);
                let last = self.dag.constant(31);
                let bit = self.dag.binary(Binary::Subtract, last, zeros);
                self.or_minus_one(x, bit)
            }
            Mf::ExtractBits => {
                let (offset, count) = self.bit_field(a[1], a[2]);
                // Shift up to the top and down again. A count of 0 would shift by the width, hence
                // the select.
                let width = self.dag.constant(32);
                let rest = self.dag.binary(Binary::Subtract, width, count);
                let up = self.dag.binary(Binary::Subtract, rest, offset);
                let up = self.dag.binary(Binary::ShiftLeft, x, up);
                let down = if signed { Binary::ShiftRightSigned } else { Binary::ShiftRight };
                let down = self.dag.binary(down, up, rest);
                self.zero_if_empty(count, down)
            }
            Mf::InsertBits => {
                let (offset, count) = self.bit_field(a[2], a[3]);
                let (width, ones) = (self.dag.constant(32), self.dag.constant(u32::MAX));
                let rest = self.dag.binary(Binary::Subtract, width, count);
                let ones = self.dag.binary(Binary::ShiftRight, ones, rest);
                let mask = self.dag.binary(Binary::ShiftLeft, ones, offset);
                let mask = self.zero_if_empty(count, mask);
                let moved = self.dag.binary(Binary::ShiftLeft, a[1], offset);
                let new = self.dag.binary(Binary::And, moved, mask);
                let kept = self.dag.unary(Unary::Invert, mask);
                let old = self.dag.binary(Binary::And, x, kept);
                self.dag.binary(Binary::Or, old, new)
            }
            other => return Err(Unsupported(format!("{other:?} on integers"))),
        })
    }

    /// −1 if `x` is zero, `otherwise` if not.
    fn or_minus_one(&mut self, x: Node, otherwise: Node) -> Node {
        let (some, none) = (self.dag.nonzero_mask(x), self.dag.constant(u32::MAX));
        self.dag.select(some, otherwise, none)
    }

    /// 0 if a bit count is zero, `value` if not.
    fn zero_if_empty(&mut self, count: Node, value: Node) -> Node {
        let (some, zero) = (self.dag.nonzero_mask(count), self.dag.constant(0));
        self.dag.select(some, value, zero)
    }

    /// Clamps offset and count of a bit field to 32 bits, as WGSL defines.
    fn bit_field(&mut self, offset: Node, count: Node) -> (Node, Node) {
        let width = self.dag.constant(32);
        let offset = self.dag.binary(Binary::Min, offset, width);
        let rest = self.dag.binary(Binary::Subtract, width, offset);
        (offset, self.dag.binary(Binary::Min, count, rest))
    }
}
