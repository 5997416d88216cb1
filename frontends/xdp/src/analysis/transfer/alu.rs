//! Arithmetic (RFC 9669, section 4.1 and 4.2).

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{FAR, FIXED, META, NOBODY, Offsets, Ty, Value};
use crate::decode::instruction::{Alu, Instruction, class};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Effect, Id, Op, Sum, Wide};

/// Offsets into a packet that are told apart: beyond there is none (`BPF_MAX_VAR_OFF`).
const MAX_OFFSET: i64 = 1 << 29;

/// Moves so near that no program makes enough of them to come beyond 32 bits: of 16 bits, 32,768 times.
const NEAR: i64 = 0xffff;

impl Walk<'_, '_> {
    pub(super) fn alu(&mut self, it: Instruction) -> Result<()> {
        let wide = it.class() == class::ALU64;
        let Some(alu) = it.alu() else { return self.unknown(it) };
        // What other fields say where they say nothing (the kernel's verifier: "uses reserved fields").
        let is_one = match alu {
            Alu::Neg => it.off == 0 && !it.by_register(),
            Alu::End => it.off == 0 && !(wide && it.by_register()),
            Alu::Div | Alu::Mod => matches!(it.off, 0 | 1),
            Alu::Mov => it.off == 0 || it.by_register() && (matches!(it.off, 8 | 16) || wide && it.off == 32),
            _ => it.off == 0,
        };
        if !is_one {
            return self.refuse(format!("unknown instruction {:#04x} with an offset of {}", it.code, it.off));
        }
        let right = match alu {
            Alu::End | Alu::Neg => self.constant(0),
            _ if it.by_register() => self.get(it.src)?,
            _ => self.constant(i64::from(it.imm) as u64),
        };
        let value = match alu {
            Alu::Mov => self.moved(it, right, wide)?,
            Alu::End => self.swapped(it, wide)?,
            _ => {
                let left = self.get(it.dst)?;
                let is_pointer = left.ty.is_pointer() || right.ty.is_pointer();
                if is_pointer && wide {
                    self.pointer(alu, left, right)?
                } else if wide {
                    self.wide(alu, left, right, it.off)?
                } else {
                    self.narrow(alu, left, right, it.off)?
                }
            }
        };
        self.set(it.dst, value)
    }

    fn moved(&mut self, it: Instruction, right: Value, wide: bool) -> Result<Value> {
        let value = match it.off {
            0 => right,
            bits => {
                self.expect_number(right, "what is moved with its sign")?;
                self.sign_extended(right, bits as u32)
            }
        };
        if wide {
            return Ok(value);
        }
        let range = value.ty.range().map_or(Range::WORD, Range::low_word);
        Ok(self.word(range, value.low))
    }

    fn swapped(&mut self, it: Instruction, wide: bool) -> Result<Value> {
        let value = self.get(it.dst)?;
        self.expect_number(value, "what the bytes are exchanged of")?;
        let zero = self.code.known(0);
        // `le` on a little-endian machine cuts off; `be` and `bswap` exchange.
        let swaps = wide || it.by_register();
        let (low, high) = match (it.imm, swaps) {
            (16, false) => (self.code.by(And, value.low, 0xffff), zero),
            (32, false) => (value.low, zero),
            (64, false) => (value.low, value.high),
            (16, true) => (self.code.swap16(value.low), zero),
            (32, true) => (self.code.swap32(value.low), zero),
            (64, true) => (self.code.swap32(value.high), self.code.swap32(value.low)),
            _ => return self.refuse(format!("bytes of {} bits cannot be exchanged", it.imm)),
        };
        Ok(self.number(Range::of_bytes(it.imm as u32 / 8), low, high))
    }

    /// Arithmetic on 32 bits, which leaves the high half zero. A pointer's lower half is a number like any other.
    fn narrow(&mut self, alu: Alu, left: Value, right: Value, off: i16) -> Result<Value> {
        let range = |value: Value| value.ty.range().map_or(Range::WORD, Range::low_word);
        let (a, b) = (range(left), range(right));
        let (x, y) = (left.low, right.low);
        let signed = off == 1 && matches!(alu, Alu::Div | Alu::Mod);
        // Of a range of counts that goes beyond the width any may be left, modulo the width.
        let shift = |of: Range| match of.exact() {
            Some(by) => Range::one(by & 31),
            None if of.high < 32 => of,
            None => Range::new(0, 31),
        };
        let (low, range) = match alu {
            Alu::Add => (self.code.binary(Add, x, y), a.add(b)),
            Alu::Sub => (self.code.binary(Sub, x, y), a.sub(b)),
            Alu::Mul => (self.code.binary(Mul, x, y), a.mul(b)),
            Alu::Div if signed => (self.code.call_with("x_sdiv32", &[x, y], Effect::None), Range::WORD),
            Alu::Mod if signed => (self.code.call_with("x_srem32", &[x, y], Effect::None), Range::WORD),
            Alu::Div => (self.divided(x, y, b), a.div(b)),
            Alu::Mod => (self.remainder(x, y, b), a.rem(b)),
            Alu::Or => (self.code.binary(Or, x, y), a.or(b)),
            Alu::And => (self.code.binary(And, x, y), a.and(b)),
            Alu::Xor => (self.code.binary(Xor, x, y), a.xor(b)),
            Alu::Lsh | Alu::Rsh | Alu::Arsh => {
                let by = self.code.by(And, y, 31);
                let op = match alu {
                    Alu::Lsh => Shl,
                    Alu::Rsh => Shr,
                    _ => Sar,
                };
                let range = match alu {
                    Alu::Lsh => a.shl(shift(b)),
                    Alu::Rsh => a.shr(shift(b)),
                    _ if a.high < 1 << 31 => a.shr(shift(b)),
                    _ => Range::WORD,
                };
                (self.code.binary(op, x, by), range)
            }
            Alu::Neg => {
                let zero = self.code.known(0);
                (self.code.binary(Sub, zero, x), Range::WORD)
            }
            Alu::Mov | Alu::End => unreachable!("done by the caller"),
        };
        Ok(self.word(if range.is_word() { range } else { range.low_word() }, low))
    }

    /// x / y, which is 0 where y is (RFC 9669, section 4.1).
    fn divided(&mut self, x: Id, y: Id, by: Range) -> Id {
        if by.low > 0 {
            return self.code.binary(Div, x, y);
        }
        if by.exact().is_some() {
            return self.code.known(0);
        }
        let (zero, quotient) = (self.code.known(0), self.code.binary(Div, x, y));
        let is_zero = self.code.binary(Eq, y, zero);
        self.code.select(is_zero, zero, quotient)
    }

    /// x % y, which is x where y is 0.
    fn remainder(&mut self, x: Id, y: Id, by: Range) -> Id {
        if by.low > 0 {
            return self.code.binary(Rem, x, y);
        }
        if by.exact().is_some() {
            return x;
        }
        let (zero, rest) = (self.code.known(0), self.code.binary(Rem, x, y));
        let is_zero = self.code.binary(Eq, y, zero);
        self.code.select(is_zero, x, rest)
    }

    /// Arithmetic on 64 bits.
    fn wide(&mut self, alu: Alu, left: Value, right: Value, off: i16) -> Result<Value> {
        let a = self.expect_number(left, "what is calculated with")?;
        let b = self.expect_number(right, "what is calculated with")?;
        let signed = off == 1 && matches!(alu, Alu::Div | Alu::Mod);
        let small = a.is_word() && b.is_word();
        let zero = self.code.known(0);
        let each = |walk: &mut Self, op| {
            (walk.code.binary(op, left.low, right.low), walk.code.binary(op, left.high, right.high))
        };
        let ((low, high), range) = match alu {
            Alu::Add => (self.sum(left, right), a.add(b)),
            Alu::Sub => (self.difference(left, right), a.sub(b)),
            Alu::Or => (each(self, Or), a.or(b)),
            Alu::And => (each(self, And), a.and(b)),
            Alu::Xor => (each(self, Xor), a.xor(b)),
            Alu::Neg => {
                let nothing = self.constant(0);
                (self.difference(nothing, left), Range::one(0).sub(a))
            }
            Alu::Mul if small && a.mul(b).is_word() => ((self.code.binary(Mul, left.low, right.low), zero), a.mul(b)),
            Alu::Div if small && !signed => ((self.divided(left.low, right.low, b), zero), a.div(b)),
            Alu::Mod if small && !signed => ((self.remainder(left.low, right.low, b), zero), a.rem(b)),
            Alu::Mul => {
                let halves = |value: Value| (value.low, value.high);
                (self.code.wide(Wide::Mul, halves(left), halves(right)), a.mul(b))
            }
            Alu::Div if signed => (self.call64("x_sdiv64", left, right), Range::ANY),
            Alu::Mod if signed => (self.call64("x_srem64", left, right), Range::ANY),
            Alu::Div => (self.call64("x_div64", left, right), a.div(b)),
            Alu::Mod => (self.call64("x_rem64", left, right), a.rem(b)),
            Alu::Lsh | Alu::Rsh | Alu::Arsh => {
                let by = match b.exact() {
                    Some(by) => Range::one(by & 63),
                    None if b.high < 64 => b,
                    None => Range::new(0, 63),
                };
                let range = match alu {
                    Alu::Lsh => a.shl(by),
                    Alu::Rsh => a.shr(by),
                    _ => a.sar(by),
                };
                let halves = match by.exact() {
                    Some(by) => self.shifted(alu, left, by as u32),
                    // What stays in the low half.
                    None if alu == Alu::Lsh && a.is_word() && by.high < 32 && range.is_word() => {
                        (self.code.binary(Shl, left.low, right.low), zero)
                    }
                    None if alu != Alu::Lsh && a.is_word() && by.high < 32 => {
                        (self.code.binary(Shr, left.low, right.low), zero)
                    }
                    None => {
                        let name = match alu {
                            Alu::Lsh => "x_shl64",
                            Alu::Rsh => "x_shr64",
                            _ => "x_sar64",
                        };
                        let pair = self.code.call_with(name, &[left.low, left.high, right.low], Effect::None);
                        self.pair(pair)
                    }
                };
                (halves, range)
            }
            Alu::Mov | Alu::End => unreachable!("done by the caller"),
        };
        Ok(self.number(range, low, high))
    }

    fn call64(&mut self, name: &str, left: Value, right: Value) -> (Id, Id) {
        let pair = self.code.call_with(name, &[left.low, left.high, right.low, right.high], Effect::None);
        self.pair(pair)
    }

    pub(super) fn pair(&mut self, pair: Id) -> (Id, Id) {
        (self.code.add(Op::Part(pair, 0)), self.code.add(Op::Part(pair, 1)))
    }

    /// The halves of a sum; it is remembered what of.
    pub(super) fn sum(&mut self, left: Value, right: Value) -> (Id, Id) {
        let low = self.code.binary(Add, left.low, right.low);
        let ranges = (left.ty.range().unwrap_or(Range::ANY), right.ty.range().unwrap_or(Range::ANY));
        let high = if ranges.0.add(ranges.1).is_word() && ranges.0.is_word() && ranges.1.is_word() {
            self.code.known(0)
        } else {
            // What is smaller than one of two is their sum less 2^32. A known one may be the other's complement.
            let carry = self.code.binary(Lt, low, right.low);
            let carry = self.code.number(carry);
            let high = self.code.binary(Add, left.high, right.high);
            self.code.binary(Add, high, carry)
        };
        self.made_of(low, high, left, right, false);
        (low, high)
    }

    /// Remembers what a sum or a difference is of.
    fn made_of(&mut self, low: Id, high: Id, left: Value, right: Value, is_difference: bool) {
        let sum = Sum { left: (left.low, left.high), right: (right.low, right.high), is_difference };
        self.code.sums.insert((low, high), sum);
    }

    pub(super) fn difference(&mut self, left: Value, right: Value) -> (Id, Id) {
        let low = self.code.binary(Sub, left.low, right.low);
        let ranges = (left.ty.range().unwrap_or(Range::ANY), right.ty.range().unwrap_or(Range::ANY));
        if ranges.0.is_word() && ranges.0.low >= ranges.1.high {
            return (low, self.code.known(0));
        }
        let borrow = self.code.binary(Lt, left.low, right.low);
        let borrow = self.code.number(borrow);
        let high = self.code.binary(Sub, left.high, right.high);
        let high = self.code.binary(Sub, high, borrow);
        self.made_of(low, high, left, right, true);
        (low, high)
    }

    /// A shift by a known number below 64.
    fn shifted(&mut self, alu: Alu, of: Value, by: u32) -> (Id, Id) {
        let (low, high) = (of.low, of.high);
        if by == 0 {
            return (low, high);
        }
        let code = &mut self.code;
        let zero = code.known(0);
        match (alu, by) {
            (Alu::Lsh, 32..) => (zero, code.by(Shl, low, by - 32)),
            (Alu::Rsh, 32..) => (code.by(Shr, high, by - 32), zero),
            (_, 32..) => (code.by(Sar, high, by - 32), code.by(Sar, high, 31)),
            (Alu::Lsh, _) => {
                let (up, over) = (code.by(Shl, high, by), code.by(Shr, low, 32 - by));
                (code.by(Shl, low, by), code.binary(Or, up, over))
            }
            _ => {
                let (down, over) = (code.by(Shr, low, by), code.by(Shl, high, 32 - by));
                let low = code.binary(Or, down, over);
                (low, code.by(if alu == Alu::Rsh { Shr } else { Sar }, high, by))
            }
        }
    }

    /// Moving pointers, and the distance between two.
    fn pointer(&mut self, alu: Alu, left: Value, right: Value) -> Result<Value> {
        match (alu, left.ty, right.ty) {
            (Alu::Add, _, Ty::Number(by)) => self.advanced(left, right, by, false),
            (Alu::Add, Ty::Number(by), _) => self.advanced(right, left, by, false),
            (Alu::Sub, _, Ty::Number(by)) => self.advanced(left, right, by, true),
            (Alu::Sub, a, b) if is_distance(a, b) => {
                let low = self.code.binary(Sub, left.low, right.low);
                let high = self.code.by(Sar, low, 31);
                let range = match (a, b) {
                    // An offset that the packet is known to reach.
                    (Ty::End, Ty::Packet { name: FIXED, off, .. })
                        if off >= 0 && off <= i64::from(self.state.length) =>
                    {
                        Range::new(u64::from(self.state.length - off as u32), 0xffff_ffff >> 1)
                    }
                    (Ty::Packet { name: FIXED, off, .. }, Ty::Stack { off: from, .. }) if from.high <= off => {
                        Range::new((off - from.high) as u64, (off - from.low) as u64)
                    }
                    (Ty::Packet { name: a, off, .. }, Ty::Packet { name: b, off: from, .. })
                        if a == b && a != NOBODY =>
                    {
                        Range::one((off - from) as u64)
                    }
                    _ => Range::ANY,
                };
                Ok(self.number(range, low, high))
            }
            (Alu::And | Alu::Or | Alu::Xor | Alu::Lsh | Alu::Rsh | Alu::Mul | _, a, b) => {
                let (what, with) = (a.words(), b.words());
                self.refuse(format!("pointers can be moved by numbers alone: here {what} is calculated with {with}"))
            }
        }
    }

    fn advanced(&mut self, pointer: Value, number: Value, by: Range, back: bool) -> Result<Value> {
        if pointer.ty.is_nullable() {
            // NULL that is moved is a number, of which nothing would be known: where that is meant, ways are kept apart.
            let what = pointer.ty.words();
            return self.refuse(format!("{what} is moved: compare it with NULL first"));
        }
        let low = self.code.binary(if back { Sub } else { Add }, pointer.low, number.low);
        let low = self.within(low, number, by, back);
        let distance = by.exact().map(|by| if back { (by as i64).wrapping_neg() } else { by as i64 });
        let moved = |off: Offsets| if back { off.sub(by) } else { off.add(by) };
        let ty = match pointer.ty {
            Ty::Packet { name, off, floor, .. } => match distance {
                Some(by) if off.checked_add(by).is_some_and(|off| off.abs() < MAX_OFFSET) => {
                    Ty::Packet { name, off: off + by, floor: (floor + by).max(-FAR), nullable: false }
                }
                _ => Ty::Packet { name: self.name(), off: 0, floor: moved(Offsets::one(floor)).low, nullable: false },
            },
            Ty::Stack { frame, off } => Ty::Stack { frame, off: moved(off) },
            Ty::Value { map, off, name, .. } => Ty::Value { map, off: moved(off), name, nullable: false },
            Ty::Record { record, off, name, .. } => Ty::Record { record, off: moved(off), name, nullable: false },
            Ty::Context(off) => match distance {
                Some(by) => Ty::Context(off.saturating_add(by)),
                None => return self.refuse("the context is read at an offset that is not known"),
            },
            other => {
                let what = other.words();
                return self.refuse(format!("{what} cannot be moved"));
            }
        };
        Ok(Value { ty, low, high: pointer.high })
    }
}

impl Walk<'_, '_> {
    /// A moved pointer's offset, where the distance has 64 bits: beyond what offsets are told apart to, one that lies outside of
    /// all memory, on the side that it is on.
    fn within(&mut self, moved: Id, number: Value, by: Range, back: bool) -> Id {
        let (least, most) = by.signed();
        if least >= -NEAR && most <= NEAR {
            return moved;
        }
        let (behind, before) = (2 * MAX_OFFSET as u32, (-2 * MAX_OFFSET) as u32);
        let (behind, before) = (self.code.known(behind), self.code.known(before));
        if least > -MAX_OFFSET && most < MAX_OFFSET {
            // So far that a few moves more would come to where they began, in 32 bits.
            let is_behind = self.code.binary(Slt, behind, moved);
            let moved = self.code.select(is_behind, behind, moved);
            let is_before = self.code.binary(Slt, moved, before);
            return self.code.select(is_before, before, moved);
        }
        let limit = self.constant(MAX_OFFSET as u64);
        let number = Value { ty: Ty::Number(by), ..number };
        let (low, high) = self.sum(number, limit);
        let far = self.code.by(Ne, high, 0);
        let last = self.code.known(2 * MAX_OFFSET as u32);
        let farther = self.code.binary(Lt, last, low);
        let far = self.code.binary(Either, far, farther);
        let zero = self.code.known(0);
        let is_negative = self.code.binary(Slt, number.high, zero);
        let (positive, negative) = if back { (before, behind) } else { (behind, before) };
        let outside = self.code.select(is_negative, negative, positive);
        self.code.select(far, outside, moved)
    }
}

fn is_distance(a: Ty, b: Ty) -> bool {
    match (a, b) {
        (Ty::Packet { .. } | Ty::End, Ty::Packet { .. } | Ty::End) => true,
        (Ty::Stack { frame: META, .. }, Ty::Packet { .. } | Ty::End)
        | (Ty::Packet { .. } | Ty::End, Ty::Stack { frame: META, .. }) => true,
        (Ty::Stack { frame: a, .. }, Ty::Stack { frame: b, .. }) => a == b,
        (Ty::Value { map: a, name: x, .. }, Ty::Value { map: b, name: y, .. }) => a == b && x == y,
        (Ty::Record { record: a, .. }, Ty::Record { record: b, .. }) => a == b,
        _ => false,
    }
}
