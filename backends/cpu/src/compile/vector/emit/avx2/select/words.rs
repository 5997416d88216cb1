//! Selection for pure operations.

use std::mem::offset_of;

use portcullis_core::packet::Metadata;

use super::super::encode::{ShiftOp, VectorOp};
use super::super::vcode::{GatherBase, Instruction, LaneCondition, Source, VReg};
use super::selector::{CacheKey, Selector};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Binary, Compare, MetadataField, Node, Op, Unary};

/// The highest bit of a word.
const SIGN: u32 = 1 << 31;

impl Selector<'_> {
    /// Returns a node's value: a word per lane; masks are all ones or all zeros.
    pub fn value(&mut self, node: Node) -> Result<VReg> {
        let source = self.source(node)?;
        Ok(self.as_vector(source))
    }

    /// Returns a node's value as an operand, which may be a constant.
    pub fn source(&mut self, node: Node) -> Result<Source> {
        match self.dag().op(node) {
            Op::Constant(value) => return Ok(self.splat(value)),
            Op::Flag(value) => return Ok(self.splat(if value { u32::MAX } else { 0 })),
            _ => {}
        }
        if let Some(&value) = self.cache.get(&CacheKey::Node(node)) {
            return Ok(Source::Vector(value));
        }
        let value = self.compute(node)?;
        Ok(Source::Vector(self.remember(CacheKey::Node(node), value)))
    }

    pub fn compute(&mut self, node: Node) -> Result<VReg> {
        Ok(match self.dag().op(node) {
            Op::Constant(_) | Op::Flag(_) => self.value(node)?,
            Op::Length => self.descriptors(true),
            Op::Metadata(field) => {
                let offset = match field {
                    MetadataField::WireLength => offset_of!(Metadata, wire_length),
                    MetadataField::Port => offset_of!(Metadata, port),
                    MetadataField::TimeLow => offset_of!(Metadata, time_low),
                    MetadataField::TimeHigh => offset_of!(Metadata, time_high),
                    MetadataField::TimeMs => offset_of!(Metadata, time_ms),
                };
                let to = self.code.new_vreg();
                self.push(Instruction::Metadata { to, offset: offset as u32 });
                to
            }
            Op::Load(load) => self.load_op(node, load)?,
            Op::Table { table, index } => {
                let index = self.value(index)?;
                let index = self.emit_shift(ShiftOp::Left, index, 2);
                let displacement = self.tables[table as usize];
                let to = self.code.new_vreg();
                self.push(Instruction::Gather { to, base: GatherBase::Tables, index, displacement, size: 4 });
                to
            }
            Op::Unary(op, a) => self.unary_op(op, a)?,
            Op::Binary(op, a, b) => self.binary_op(op, a, b)?,
            Op::Select { mask, accept, reject } => self.select_op(mask, accept, reject)?,
            Op::Compare(op, a, b) => self.compare_op(op, a, b)?,
            Op::And(a, b) => match (self.dag().op(a), self.dag().op(b)) {
                (Op::Not(a), _) => {
                    let (a, b) = (self.value(a)?, self.source(b)?);
                    self.emit_binary(VectorOp::AndNot, a, b)
                }
                (_, Op::Not(b)) => {
                    let (b, a) = (self.value(b)?, self.source(a)?);
                    self.emit_binary(VectorOp::AndNot, b, a)
                }
                _ => self.emit_commutative(VectorOp::And, a, b)?,
            },
            Op::Or(a, b) => self.emit_commutative(VectorOp::Or, a, b)?,
            Op::Not(a) => {
                let a = self.value(a)?;
                self.emit_invert(a)
            }
            // Values of steps are in the cache once the step has been selected.
            op @ (Op::Result(_) | Op::LoopCarried { .. } | Op::Live(_) | Op::Out { .. }) => {
                return Err(Unsupported(format!(
                    "{op:?} is used before it is computed, which is a fault of Portcullis"
                )));
            }
        })
    }

    pub fn emit_commutative(&mut self, op: VectorOp, a: Node, b: Node) -> Result<VReg> {
        let (a, b) = (self.source(a)?, self.source(b)?);
        Ok(match (a, b) {
            (Source::Vector(a), b) | (b, Source::Vector(a)) => self.emit_binary(op, a, b),
            (a, b) => {
                let a = self.as_vector(a);
                self.emit_binary(op, a, b)
            }
        })
    }

    pub fn unary_op(&mut self, op: Unary, a: Node) -> Result<VReg> {
        if let (Unary::SwapBytes16 | Unary::SwapBytes32, Op::Load(load)) = (op, self.dag().op(a))
            && load.size == (if op == Unary::SwapBytes16 { 2 } else { 4 })
            && let Some(value) = self.load_swapped(load)
        {
            return Ok(value);
        }
        let all = self.value(a)?;
        Ok(match op {
            Unary::Invert => self.emit_invert(all),
            Unary::SwapBytes16 => self.shuffle_in_lanes(all, 0, 2, true),
            Unary::SwapBytes32 => self.shuffle_in_lanes(all, 0, 4, true),
            Unary::CountOnes | Unary::LeadingZeros | Unary::TrailingZeros | Unary::ReverseBits => {
                return Err(Unsupported(format!("{op:?} in groups of eight packets")));
            }
        })
    }

    pub fn binary_op(&mut self, op: Binary, a: Node, b: Node) -> Result<VReg> {
        let by = |op| match op {
            Binary::ShiftLeft => Some((ShiftOp::Left, VectorOp::ShiftLeft)),
            Binary::ShiftRight => Some((ShiftOp::Right, VectorOp::ShiftRight)),
            Binary::ShiftRightSigned => Some((ShiftOp::RightSigned, VectorOp::ShiftRightSigned)),
            _ => None,
        };
        if let Some((fixed, varying)) = by(op) {
            let a = self.value(a)?;
            return Ok(match self.dag().as_constant(b) {
                Some(count) => self.emit_shift(fixed, a, count % 32),
                None => {
                    let b = self.value(b)?;
                    let count = self.emit_binary_constant(VectorOp::And, b, 31);
                    self.emit_binary_vectors(varying, a, count)
                }
            });
        }
        let op = match op {
            Binary::Subtract => {
                let (a, b) = (self.value(a)?, self.source(b)?);
                return Ok(self.emit_binary(VectorOp::Subtract, a, b));
            }
            Binary::Add => VectorOp::Add,
            Binary::Multiply => VectorOp::Multiply,
            Binary::And => VectorOp::And,
            Binary::Or => VectorOp::Or,
            Binary::Xor => VectorOp::Xor,
            Binary::Min => VectorOp::Min,
            Binary::Max => VectorOp::Max,
            Binary::MinSigned => VectorOp::MinSigned,
            Binary::MaxSigned => VectorOp::MaxSigned,
            Binary::Divide
            | Binary::Modulo
            | Binary::DivideSigned
            | Binary::ModuloSigned
            | Binary::ShiftLeft
            | Binary::ShiftRight
            | Binary::ShiftRightSigned => return Err(Unsupported(format!("{op:?} in groups of eight packets"))),
        };
        self.emit_commutative(op, a, b)
    }

    pub fn select_op(&mut self, mask: Node, accept: Node, reject: Node) -> Result<VReg> {
        let (mask, accept, reject) = match self.dag().op(mask) {
            Op::Not(mask) => (mask, reject, accept),
            _ => (mask, accept, reject),
        };
        let m = self.value(mask)?;
        for (arm, other, none) in [(accept, reject, LaneCondition::None), (reject, accept, LaneCondition::All)] {
            let cache = &self.cache;
            let is_computed = |node| cache.contains_key(&CacheKey::Node(node));
            if let Some(shared) = self.arm_analysis.worth_branching(self.lanes, self.plan, arm, is_computed) {
                return self.select_lazily(m, (accept, reject), other, none, &shared);
            }
        }
        self.select_words(m, accept, reject)
    }

    /// Selects with a branch around one arm, taken if the mask shows that no lane needs it.
    pub fn select_lazily(
        &mut self,
        mask: VReg,
        (accept, reject): (Node, Node),
        other: Node,
        skip_condition: LaneCondition,
        shared: &[Node],
    ) -> Result<VReg> {
        for &node in shared {
            self.source(node)?;
        }
        let other = self.source(other)?;
        let (to, merge) = (self.copy_to_new(other), self.code.new_label());
        self.push(Instruction::JumpIf { mask, lanes: skip_condition, to: merge });
        let mark = self.enter_conditional();
        let from = Source::Vector(self.select_words(mask, accept, reject)?);
        self.push(Instruction::Move { to, from });
        self.exit_conditional(mark);
        self.push(Instruction::Label(merge));
        Ok(to)
    }

    /// Selects `accept` in lanes of the mask and `reject` in the others.
    pub fn select_words(&mut self, m: VReg, accept: Node, reject: Node) -> Result<VReg> {
        let constants = (self.dag().as_constant(accept), self.dag().as_constant(reject));
        // As a number a mask is -1 or 0.
        Ok(match constants {
            (Some(on), Some(off)) if off == on.wrapping_add(1) => self.emit_binary_constant(VectorOp::Add, m, off),
            (Some(on), Some(off)) if on == off.wrapping_add(1) => {
                let off = self.splat(off);
                let off = self.as_vector(off);
                self.emit_binary_vectors(VectorOp::Subtract, off, m)
            }
            (_, Some(0)) => {
                let on = self.source(accept)?;
                self.emit_binary(VectorOp::And, m, on)
            }
            (Some(0), _) => {
                let off = self.source(reject)?;
                self.emit_binary(VectorOp::AndNot, m, off)
            }
            (Some(u32::MAX), _) => {
                let off = self.source(reject)?;
                self.emit_binary(VectorOp::Or, m, off)
            }
            (Some(on), Some(off)) => {
                let differ = self.emit_binary_constant(VectorOp::And, m, on ^ off);
                self.emit_binary_constant(VectorOp::Xor, differ, off)
            }
            _ => {
                let (on, off) = (self.source(accept)?, self.value(reject)?);
                self.emit_blend(m, on, off)
            }
        })
    }

    pub fn compare_op(&mut self, op: Compare, a: Node, b: Node) -> Result<VReg> {
        let (x, y) = (self.dag().range(a), self.dag().range(b));
        let (constant_a, constant_b) = (self.dag().as_constant(a), self.dag().as_constant(b));
        let small = (x.high | y.high) < SIGN;
        // AVX2 has two comparisons: equality, and signed greater-than.
        Ok(match op {
            Compare::Equal => self.emit_commutative(VectorOp::Equal, a, b)?,
            Compare::LessSigned => {
                let (a, b) = (self.source(a)?, self.value(b)?);
                self.emit_binary(VectorOp::Greater, b, a)
            }
            Compare::Less if small => {
                let (a, b) = (self.source(a)?, self.value(b)?);
                self.emit_binary(VectorOp::Greater, b, a)
            }
            Compare::Less => {
                let not = self.emit_at_most(VectorOp::Min, VectorOp::Max, b, a)?;
                self.emit_invert(not)
            }
            Compare::LessEqual => match (constant_a, constant_b) {
                (Some(least), _) if small && least > 0 => {
                    let b = self.value(b)?;
                    self.emit_binary_constant(VectorOp::Greater, b, least - 1)
                }
                (_, Some(most)) if small && most < SIGN - 1 => {
                    let above = self.splat(most + 1);
                    let (above, a) = (self.as_vector(above), self.value(a)?);
                    self.emit_binary_vectors(VectorOp::Greater, above, a)
                }
                _ => self.emit_at_most(VectorOp::Min, VectorOp::Max, a, b)?,
            },
            Compare::LessEqualSigned => self.emit_at_most(VectorOp::MinSigned, VectorOp::MaxSigned, a, b)?,
        })
    }

    /// `a <= b`, computed as `min(a, b) == a` or `max(a, b) == b`.
    pub fn emit_at_most(&mut self, min: VectorOp, max: VectorOp, a: Node, b: Node) -> Result<VReg> {
        let (a, b) = (self.source(a)?, self.source(b)?);
        Ok(match (a, b) {
            (Source::Vector(a), b) => {
                let least = self.emit_binary(min, a, b);
                self.emit_binary_vectors(VectorOp::Equal, least, a)
            }
            (a, b) => {
                let b = self.as_vector(b);
                let most = self.emit_binary(max, b, a);
                self.emit_binary_vectors(VectorOp::Equal, most, b)
            }
        })
    }
}
