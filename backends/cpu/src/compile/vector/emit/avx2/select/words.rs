//! Selection for pure operations.

use std::mem::offset_of;

use portcullis_core::packet::Metadata;

use super::super::encode::{Opcode, Shift};
use super::super::vcode::{Base, If, Instruction, Source, Vector};
use super::selector::{Key, Select};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Binary, Compare, Field, Node, Op, Unary};

/// The highest bit of a word.
const SIGN: u32 = 1 << 31;

impl Select<'_> {
    /// A node's value: a word a lane, or all ones and all zeros for a mask.
    pub fn value(&mut self, node: Node) -> Result<Vector> {
        let source = self.source(node)?;
        Ok(self.in_vector(source))
    }

    /// The same, where a constant will do.
    pub fn source(&mut self, node: Node) -> Result<Source> {
        match self.dag().op(node) {
            Op::Constant(value) => return Ok(self.splat(value)),
            Op::Flag(value) => return Ok(self.splat(if value { u32::MAX } else { 0 })),
            _ => {}
        }
        if let Some(&value) = self.found.get(&Key::Node(node)) {
            return Ok(Source::Vector(value));
        }
        let value = self.made(node)?;
        Ok(Source::Vector(self.know(Key::Node(node), value)))
    }

    pub fn made(&mut self, node: Node) -> Result<Vector> {
        Ok(match self.dag().op(node) {
            Op::Constant(_) | Op::Flag(_) => self.value(node)?,
            Op::Length => self.descriptors(true),
            Op::Metadata(field) => {
                let offset = match field {
                    Field::WireLength => offset_of!(Metadata, wire_length),
                    Field::Port => offset_of!(Metadata, port),
                    Field::TimeLow => offset_of!(Metadata, time_low),
                    Field::TimeHigh => offset_of!(Metadata, time_high),
                    Field::TimeMs => offset_of!(Metadata, time_ms),
                };
                let to = self.listing.vector();
                self.put(Instruction::Metadata { to, offset: offset as u32 });
                to
            }
            Op::Load(load) => self.load(node, load)?,
            Op::Table { table, index } => {
                let index = self.value(index)?;
                let index = self.shifted(Shift::Left, index, 2);
                let displacement = self.tables[table as usize];
                let to = self.listing.vector();
                self.put(Instruction::Gather { to, base: Base::Tables, index, displacement, size: 4 });
                to
            }
            Op::Unary(op, a) => self.unary(op, a)?,
            Op::Binary(op, a, b) => self.binary(op, a, b)?,
            Op::Select { mask, accept, reject } => self.select(mask, accept, reject)?,
            Op::Compare(op, a, b) => self.compare(op, a, b)?,
            Op::And(a, b) => match (self.dag().op(a), self.dag().op(b)) {
                (Op::Not(a), _) => {
                    let (a, b) = (self.value(a)?, self.source(b)?);
                    self.binary_of(Opcode::AndNot, a, b)
                }
                (_, Op::Not(b)) => {
                    let (b, a) = (self.value(b)?, self.source(a)?);
                    self.binary_of(Opcode::AndNot, b, a)
                }
                _ => self.commutative(Opcode::And, a, b)?,
            },
            Op::Or(a, b) => self.commutative(Opcode::Or, a, b)?,
            Op::Not(a) => {
                let a = self.value(a)?;
                self.inverted(a)
            }
            // They are there where what they come out of has been made.
            op @ (Op::Result(_) | Op::Carried { .. } | Op::Live(_) | Op::Out { .. }) => {
                return Err(Unsupported(format!("{op:?} before it is there, which is a fault of Portcullis")));
            }
        })
    }

    pub fn commutative(&mut self, op: Opcode, a: Node, b: Node) -> Result<Vector> {
        let (a, b) = (self.source(a)?, self.source(b)?);
        Ok(match (a, b) {
            (Source::Vector(a), b) | (b, Source::Vector(a)) => self.binary_of(op, a, b),
            (a, b) => {
                let a = self.in_vector(a);
                self.binary_of(op, a, b)
            }
        })
    }

    pub fn unary(&mut self, op: Unary, a: Node) -> Result<Vector> {
        if let (Unary::SwapBytes16 | Unary::SwapBytes32, Op::Load(load)) = (op, self.dag().op(a))
            && load.size == (if op == Unary::SwapBytes16 { 2 } else { 4 })
            && let Some(value) = self.load_turned(load)
        {
            return Ok(value);
        }
        let all = self.value(a)?;
        Ok(match op {
            Unary::Invert => self.inverted(all),
            Unary::SwapBytes16 => self.pick(all, 0, 2, true),
            Unary::SwapBytes32 => self.pick(all, 0, 4, true),
            Unary::CountOnes | Unary::LeadingZeros | Unary::TrailingZeros | Unary::ReverseBits => {
                return Err(Unsupported(format!("{op:?} eight at a time")));
            }
        })
    }

    pub fn binary(&mut self, op: Binary, a: Node, b: Node) -> Result<Vector> {
        let by = |op| match op {
            Binary::ShiftLeft => Some((Shift::Left, Opcode::ShiftLeft)),
            Binary::ShiftRight => Some((Shift::Right, Opcode::ShiftRight)),
            Binary::ShiftRightSigned => Some((Shift::RightSigned, Opcode::ShiftRightSigned)),
            _ => None,
        };
        if let Some((fixed, varying)) = by(op) {
            let a = self.value(a)?;
            return Ok(match self.dag().as_constant(b) {
                Some(count) => self.shifted(fixed, a, count % 32),
                None => {
                    let b = self.value(b)?;
                    let count = self.with(Opcode::And, b, 31);
                    self.both_of(varying, a, count)
                }
            });
        }
        let op = match op {
            Binary::Subtract => {
                let (a, b) = (self.value(a)?, self.source(b)?);
                return Ok(self.binary_of(Opcode::Subtract, a, b));
            }
            Binary::Add => Opcode::Add,
            Binary::Multiply => Opcode::Multiply,
            Binary::And => Opcode::And,
            Binary::Or => Opcode::Or,
            Binary::Xor => Opcode::Xor,
            Binary::Min => Opcode::Min,
            Binary::Max => Opcode::Max,
            Binary::MinSigned => Opcode::MinSigned,
            Binary::MaxSigned => Opcode::MaxSigned,
            Binary::Divide
            | Binary::Modulo
            | Binary::DivideSigned
            | Binary::ModuloSigned
            | Binary::ShiftLeft
            | Binary::ShiftRight
            | Binary::ShiftRightSigned => return Err(Unsupported(format!("{op:?} eight at a time"))),
        };
        self.commutative(op, a, b)
    }

    pub fn select(&mut self, mask: Node, accept: Node, reject: Node) -> Result<Vector> {
        let (mask, accept, reject) = match self.dag().op(mask) {
            Op::Not(mask) => (mask, reject, accept),
            _ => (mask, accept, reject),
        };
        let m = self.value(mask)?;
        for (arm, other, none) in [(accept, reject, If::None), (reject, accept, If::All)] {
            let found = &self.found;
            let is_there = |node| found.contains_key(&Key::Node(node));
            if let Some(shared) = self.arms.apart(self.lanes, self.plan, arm, is_there) {
                return self.choice_apart(m, (accept, reject), other, none, &shared);
            }
        }
        self.choice(m, accept, reject)
    }

    /// A choice one arm of which is left out if the mask is such that only the other one counts.
    pub fn choice_apart(
        &mut self,
        mask: Vector,
        (accept, reject): (Node, Node),
        other: Node,
        only_other: If,
        shared: &[Node],
    ) -> Result<Vector> {
        for &node in shared {
            self.source(node)?;
        }
        let other = self.source(other)?;
        let (to, behind) = (self.copied(other), self.listing.label());
        self.put(Instruction::JumpIf { mask, lanes: only_other, to: behind });
        let mark = self.enter();
        let from = Source::Vector(self.choice(mask, accept, reject)?);
        self.put(Instruction::Move { to, from });
        self.leave(mark);
        self.put(Instruction::Label(behind));
        Ok(to)
    }

    /// One where the mask is on, the other where it is off.
    pub fn choice(&mut self, m: Vector, accept: Node, reject: Node) -> Result<Vector> {
        let constants = (self.dag().as_constant(accept), self.dag().as_constant(reject));
        // A mask is a number, too: -1 where it is on.
        Ok(match constants {
            (Some(on), Some(off)) if off == on.wrapping_add(1) => self.with(Opcode::Add, m, off),
            (Some(on), Some(off)) if on == off.wrapping_add(1) => {
                let off = self.splat(off);
                let off = self.in_vector(off);
                self.both_of(Opcode::Subtract, off, m)
            }
            (_, Some(0)) => {
                let on = self.source(accept)?;
                self.binary_of(Opcode::And, m, on)
            }
            (Some(0), _) => {
                let off = self.source(reject)?;
                self.binary_of(Opcode::AndNot, m, off)
            }
            (Some(u32::MAX), _) => {
                let off = self.source(reject)?;
                self.binary_of(Opcode::Or, m, off)
            }
            (Some(on), Some(off)) => {
                let differ = self.with(Opcode::And, m, on ^ off);
                self.with(Opcode::Xor, differ, off)
            }
            _ => {
                let (on, off) = (self.source(accept)?, self.value(reject)?);
                self.chosen(m, on, off)
            }
        })
    }

    pub fn compare(&mut self, op: Compare, a: Node, b: Node) -> Result<Vector> {
        let (x, y) = (self.dag().range(a), self.dag().range(b));
        let (constant_a, constant_b) = (self.dag().as_constant(a), self.dag().as_constant(b));
        let small = (x.high | y.high) < SIGN;
        // There are two comparisons: whether words are equal, and whether the first, signed, is greater.
        Ok(match op {
            Compare::Equal => self.commutative(Opcode::Equal, a, b)?,
            Compare::LessSigned => {
                let (a, b) = (self.source(a)?, self.value(b)?);
                self.binary_of(Opcode::Greater, b, a)
            }
            Compare::Less if small => {
                let (a, b) = (self.source(a)?, self.value(b)?);
                self.binary_of(Opcode::Greater, b, a)
            }
            Compare::Less => {
                let not = self.at_most(Opcode::Min, Opcode::Max, b, a)?;
                self.inverted(not)
            }
            Compare::LessEqual => match (constant_a, constant_b) {
                (Some(least), _) if small && least > 0 => {
                    let b = self.value(b)?;
                    self.with(Opcode::Greater, b, least - 1)
                }
                (_, Some(most)) if small && most < SIGN - 1 => {
                    let above = self.splat(most + 1);
                    let (above, a) = (self.in_vector(above), self.value(a)?);
                    self.both_of(Opcode::Greater, above, a)
                }
                _ => self.at_most(Opcode::Min, Opcode::Max, a, b)?,
            },
            Compare::LessEqualSigned => self.at_most(Opcode::MinSigned, Opcode::MaxSigned, a, b)?,
        })
    }

    /// `a <= b`: the lesser of them is a, and the greater is b.
    pub fn at_most(&mut self, min: Opcode, max: Opcode, a: Node, b: Node) -> Result<Vector> {
        let (a, b) = (self.source(a)?, self.source(b)?);
        Ok(match (a, b) {
            (Source::Vector(a), b) => {
                let least = self.binary_of(min, a, b);
                self.both_of(Opcode::Equal, least, a)
            }
            (a, b) => {
                let b = self.in_vector(b);
                let most = self.binary_of(max, b, a);
                self.both_of(Opcode::Equal, most, b)
            }
        })
    }
}
