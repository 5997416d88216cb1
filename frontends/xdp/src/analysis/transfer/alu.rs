//! Arithmetic instructions (RFC 9669, sections 4.1 and 4.2).

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::{OFFSET_LIMIT, Offsets};
use crate::analysis::domain::reg_type::{ANONYMOUS, PACKET_START, RegType};
use crate::analysis::domain::state::{METADATA_FRAME, Value};
use crate::instruction::{AluOp, Instruction, class};
use crate::ir::BinaryOp::*;
use crate::ir::{Effect, Id, Op, Sum, WideOp};

/// Bound on offsets into the packet that are tracked (`BPF_MAX_VAR_OFF`).
const MAX_OFFSET: i64 = 1 << 29;

/// Moves up to this distance need no clamping at run time: it takes 32,768 of them to overflow 32
/// bits.
const MAX_UNCHECKED_MOVE: i64 = 0xffff;

impl BlockInterpreter<'_, '_> {
    pub(super) fn alu(&mut self, it: Instruction) -> Result<()> {
        let wide = it.class() == class::ALU64;
        let Some(alu) = it.alu() else { return self.reject_unknown(it) };
        // Reserved fields must be zero (the verifier's "uses reserved fields").
        let is_one = match alu {
            AluOp::Neg => it.off == 0 && !it.has_register_operand(),
            AluOp::End => it.off == 0 && !(wide && it.has_register_operand()),
            AluOp::Div | AluOp::Mod => matches!(it.off, 0 | 1),
            AluOp::Mov => {
                it.off == 0 || it.has_register_operand() && (matches!(it.off, 8 | 16) || wide && it.off == 32)
            }
            _ => it.off == 0,
        };
        if !is_one {
            return self.reject(format!("unknown instruction {:#04x} with an offset of {}", it.code, it.off));
        }
        let right = match alu {
            AluOp::End | AluOp::Neg => self.constant(0),
            _ if it.has_register_operand() => self.read_register(it.src)?,
            _ => self.constant(i64::from(it.imm) as u64),
        };
        let value = match alu {
            AluOp::Mov => self.mov(it, right, wide)?,
            AluOp::End => self.byte_swap(it, wide)?,
            _ => {
                let left = self.read_register(it.dst)?;
                let is_pointer = left.ty.is_pointer() || right.ty.is_pointer();
                if is_pointer && wide {
                    self.pointer_arithmetic(alu, left, right)?
                } else if wide {
                    self.alu64(alu, left, right, it.off)?
                } else {
                    self.alu32(alu, left, right, it.off)?
                }
            }
        };
        self.write_register(it.dst, value)
    }

    fn mov(&mut self, it: Instruction, right: Value, wide: bool) -> Result<Value> {
        let value = match it.off {
            0 => right,
            bits => {
                self.expect_scalar(right, "the operand of a sign-extending move")?;
                self.sign_extend(right, bits as u32)
            }
        };
        if wide {
            return Ok(value);
        }
        let range = value.ty.as_scalar().map_or(Interval::U32, Interval::truncate_u32);
        Ok(self.scalar32(range, value.low))
    }

    fn byte_swap(&mut self, it: Instruction, wide: bool) -> Result<Value> {
        let value = self.read_register(it.dst)?;
        self.expect_scalar(value, "the operand of a byte swap")?;
        let zero = self.code.constant(0);
        // On a little-endian machine `le` truncates; `be` and `bswap` swap bytes.
        let swaps = wide || it.has_register_operand();
        let (low, high) = match (it.imm, swaps) {
            (16, false) => (self.code.binary_const(And, value.low, 0xffff), zero),
            (32, false) => (value.low, zero),
            (64, false) => (value.low, value.high),
            (16, true) => (self.code.swap16(value.low), zero),
            (32, true) => (self.code.swap32(value.low), zero),
            (64, true) => (self.code.swap32(value.high), self.code.swap32(value.low)),
            _ => return self.reject(format!("a byte swap of {} bits does not exist", it.imm)),
        };
        Ok(self.scalar(Interval::of_width(it.imm as u32 / 8), low, high))
    }

    /// 32-bit arithmetic, which zeroes the high half. The low half of a pointer is a number like
    /// any other.
    fn alu32(&mut self, alu: AluOp, left: Value, right: Value, off: i16) -> Result<Value> {
        let range = |value: Value| value.ty.as_scalar().map_or(Interval::U32, Interval::truncate_u32);
        let (a, b) = (range(left), range(right));
        let (x, y) = (left.low, right.low);
        let signed = off == 1 && matches!(alu, AluOp::Div | AluOp::Mod);
        // A range of shift counts that exceeds the width may give any count, modulo the width.
        let shift = |of: Interval| match of.as_constant() {
            Some(by) => Interval::constant(by & 31),
            None if of.high < 32 => of,
            None => Interval::new(0, 31),
        };
        let (low, range) = match alu {
            AluOp::Add => (self.code.binary(Add, x, y), a.add(b)),
            AluOp::Sub => (self.code.binary(Sub, x, y), a.sub(b)),
            AluOp::Mul => (self.code.binary(Mul, x, y), a.mul(b)),
            AluOp::Div if signed => (self.code.call_values("x_sdiv32", &[x, y], Effect::None), Interval::U32),
            AluOp::Mod if signed => (self.code.call_values("x_srem32", &[x, y], Effect::None), Interval::U32),
            AluOp::Div => (self.divide(x, y, b), a.div(b)),
            AluOp::Mod => (self.remainder(x, y, b), a.rem(b)),
            AluOp::Or => (self.code.binary(Or, x, y), a.or(b)),
            AluOp::And => (self.code.binary(And, x, y), a.and(b)),
            AluOp::Xor => (self.code.binary(Xor, x, y), a.xor(b)),
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => {
                let by = self.code.binary_const(And, y, 31);
                let op = match alu {
                    AluOp::Lsh => Shl,
                    AluOp::Rsh => Shr,
                    _ => Sar,
                };
                let range = match alu {
                    AluOp::Lsh => a.shl(shift(b)),
                    AluOp::Rsh => a.shr(shift(b)),
                    _ if a.high < 1 << 31 => a.shr(shift(b)),
                    _ => Interval::U32,
                };
                (self.code.binary(op, x, by), range)
            }
            AluOp::Neg => {
                let zero = self.code.constant(0);
                (self.code.binary(Sub, zero, x), Interval::U32)
            }
            AluOp::Mov | AluOp::End => unreachable!("done by the caller"),
        };
        Ok(self.scalar32(if range.fits_u32() { range } else { range.truncate_u32() }, low))
    }

    /// x / y, which is 0 if y is 0 (RFC 9669, section 4.1).
    fn divide(&mut self, x: Id, y: Id, by: Interval) -> Id {
        if by.low > 0 {
            return self.code.binary(Div, x, y);
        }
        if by.as_constant().is_some() {
            return self.code.constant(0);
        }
        let (zero, quotient) = (self.code.constant(0), self.code.binary(Div, x, y));
        let is_zero = self.code.binary(Eq, y, zero);
        self.code.select(is_zero, zero, quotient)
    }

    /// x % y, which is x if y is 0.
    fn remainder(&mut self, x: Id, y: Id, by: Interval) -> Id {
        if by.low > 0 {
            return self.code.binary(Rem, x, y);
        }
        if by.as_constant().is_some() {
            return x;
        }
        let (zero, rest) = (self.code.constant(0), self.code.binary(Rem, x, y));
        let is_zero = self.code.binary(Eq, y, zero);
        self.code.select(is_zero, x, rest)
    }

    /// 64-bit arithmetic on scalars.
    fn alu64(&mut self, alu: AluOp, left: Value, right: Value, off: i16) -> Result<Value> {
        let a = self.expect_scalar(left, "the operand of an arithmetic operation")?;
        let b = self.expect_scalar(right, "the operand of an arithmetic operation")?;
        let signed = off == 1 && matches!(alu, AluOp::Div | AluOp::Mod);
        let small = a.fits_u32() && b.fits_u32();
        let zero = self.code.constant(0);
        let each = |interp: &mut Self, op| {
            (interp.code.binary(op, left.low, right.low), interp.code.binary(op, left.high, right.high))
        };
        let ((low, high), range) = match alu {
            AluOp::Add => (self.add64(left, right), a.add(b)),
            AluOp::Sub => (self.sub64(left, right), a.sub(b)),
            AluOp::Or => (each(self, Or), a.or(b)),
            AluOp::And => (each(self, And), a.and(b)),
            AluOp::Xor => (each(self, Xor), a.xor(b)),
            AluOp::Neg => {
                let nothing = self.constant(0);
                (self.sub64(nothing, left), Interval::constant(0).sub(a))
            }
            AluOp::Mul if small && a.mul(b).fits_u32() => {
                ((self.code.binary(Mul, left.low, right.low), zero), a.mul(b))
            }
            AluOp::Div if small && !signed => ((self.divide(left.low, right.low, b), zero), a.div(b)),
            AluOp::Mod if small && !signed => ((self.remainder(left.low, right.low, b), zero), a.rem(b)),
            AluOp::Mul => {
                let halves = |value: Value| (value.low, value.high);
                (self.code.wide_op(WideOp::Mul, halves(left), halves(right)), a.mul(b))
            }
            AluOp::Div if signed => (self.call64("x_sdiv64", left, right), Interval::ANY),
            AluOp::Mod if signed => (self.call64("x_srem64", left, right), Interval::ANY),
            AluOp::Div => (self.call64("x_div64", left, right), a.div(b)),
            AluOp::Mod => (self.call64("x_rem64", left, right), a.rem(b)),
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => {
                let by = match b.as_constant() {
                    Some(by) => Interval::constant(by & 63),
                    None if b.high < 64 => b,
                    None => Interval::new(0, 63),
                };
                let range = match alu {
                    AluOp::Lsh => a.shl(by),
                    AluOp::Rsh => a.shr(by),
                    _ => a.sar(by),
                };
                let halves = match by.as_constant() {
                    Some(by) => self.shift_by_constant(alu, left, by as u32),
                    // The result fits the low half.
                    None if alu == AluOp::Lsh && a.fits_u32() && by.high < 32 && range.fits_u32() => {
                        (self.code.binary(Shl, left.low, right.low), zero)
                    }
                    None if alu != AluOp::Lsh && a.fits_u32() && by.high < 32 => {
                        (self.code.binary(Shr, left.low, right.low), zero)
                    }
                    None => {
                        let name = match alu {
                            AluOp::Lsh => "x_shl64",
                            AluOp::Rsh => "x_shr64",
                            _ => "x_sar64",
                        };
                        let pair = self.code.call_values(name, &[left.low, left.high, right.low], Effect::None);
                        self.split_pair(pair)
                    }
                };
                (halves, range)
            }
            AluOp::Mov | AluOp::End => unreachable!("done by the caller"),
        };
        Ok(self.scalar(range, low, high))
    }

    fn call64(&mut self, name: &str, left: Value, right: Value) -> (Id, Id) {
        let pair = self.code.call_values(name, &[left.low, left.high, right.low, right.high], Effect::None);
        self.split_pair(pair)
    }

    pub(super) fn split_pair(&mut self, pair: Id) -> (Id, Id) {
        (self.code.add(Op::Component(pair, 0)), self.code.add(Op::Component(pair, 1)))
    }

    /// The halves of a 64-bit sum; its operands are recorded for the recognition of additions.
    pub(super) fn add64(&mut self, left: Value, right: Value) -> (Id, Id) {
        let low = self.code.binary(Add, left.low, right.low);
        let ranges = (left.ty.as_scalar().unwrap_or(Interval::ANY), right.ty.as_scalar().unwrap_or(Interval::ANY));
        let high = if ranges.0.add(ranges.1).fits_u32() && ranges.0.fits_u32() && ranges.1.fits_u32() {
            self.code.constant(0)
        } else {
            // The sum carried if it is smaller than an operand. Compare with the right one: a
            // constant there may be the complement of the left.
            let carry = self.code.binary(Lt, low, right.low);
            let carry = self.code.bool_to_u32(carry);
            let high = self.code.binary(Add, left.high, right.high);
            self.code.binary(Add, high, carry)
        };
        self.record_sum(low, high, left, right, false);
        (low, high)
    }

    /// Records the operands of a sum or difference.
    fn record_sum(&mut self, low: Id, high: Id, left: Value, right: Value, is_difference: bool) {
        let sum = Sum { left: (left.low, left.high), right: (right.low, right.high), is_difference };
        self.code.sums.insert((low, high), sum);
    }

    /// The halves of a 64-bit difference; its operands are recorded.
    pub(super) fn sub64(&mut self, left: Value, right: Value) -> (Id, Id) {
        let low = self.code.binary(Sub, left.low, right.low);
        let ranges = (left.ty.as_scalar().unwrap_or(Interval::ANY), right.ty.as_scalar().unwrap_or(Interval::ANY));
        if ranges.0.fits_u32() && ranges.0.low >= ranges.1.high {
            return (low, self.code.constant(0));
        }
        let borrow = self.code.binary(Lt, left.low, right.low);
        let borrow = self.code.bool_to_u32(borrow);
        let high = self.code.binary(Sub, left.high, right.high);
        let high = self.code.binary(Sub, high, borrow);
        self.record_sum(low, high, left, right, true);
        (low, high)
    }

    /// A shift by a constant below 64.
    fn shift_by_constant(&mut self, alu: AluOp, of: Value, by: u32) -> (Id, Id) {
        let (low, high) = (of.low, of.high);
        if by == 0 {
            return (low, high);
        }
        let code = &mut self.code;
        let zero = code.constant(0);
        match (alu, by) {
            (AluOp::Lsh, 32..) => (zero, code.binary_const(Shl, low, by - 32)),
            (AluOp::Rsh, 32..) => (code.binary_const(Shr, high, by - 32), zero),
            (_, 32..) => (code.binary_const(Sar, high, by - 32), code.binary_const(Sar, high, 31)),
            (AluOp::Lsh, _) => {
                let (up, over) = (code.binary_const(Shl, high, by), code.binary_const(Shr, low, 32 - by));
                (code.binary_const(Shl, low, by), code.binary(Or, up, over))
            }
            _ => {
                let (down, over) = (code.binary_const(Shr, low, by), code.binary_const(Shl, high, 32 - by));
                let low = code.binary(Or, down, over);
                (low, code.binary_const(if alu == AluOp::Rsh { Shr } else { Sar }, high, by))
            }
        }
    }

    /// Moves of pointers by scalars, and the distance between two pointers.
    fn pointer_arithmetic(&mut self, alu: AluOp, left: Value, right: Value) -> Result<Value> {
        match (alu, left.ty, right.ty) {
            (AluOp::Add, _, RegType::Scalar(by)) => self.advance_pointer(left, right, by, false),
            (AluOp::Add, RegType::Scalar(by), _) => self.advance_pointer(right, left, by, false),
            (AluOp::Sub, _, RegType::Scalar(by)) => self.advance_pointer(left, right, by, true),
            (AluOp::Sub, a, b) if have_distance(a, b) => {
                let low = self.code.binary(Sub, left.low, right.low);
                let high = self.code.binary_const(Sar, low, 31);
                let range = match (a, b) {
                    // Up to an offset that the packet is proven to reach, the distance has a lower
                    // bound.
                    (RegType::PacketEnd, RegType::Packet { name: PACKET_START, off, .. })
                        if off >= 0 && off <= i64::from(self.state.proven_length) =>
                    {
                        Interval::new(u64::from(self.state.proven_length - off as u32), 0xffff_ffff >> 1)
                    }
                    (RegType::Packet { name: PACKET_START, off, .. }, RegType::Stack { off: from, .. })
                        if from.high <= off =>
                    {
                        Interval::new((off - from.high) as u64, (off - from.low) as u64)
                    }
                    (RegType::Packet { name: a, off, .. }, RegType::Packet { name: b, off: from, .. })
                        if a == b && a != ANONYMOUS =>
                    {
                        Interval::constant((off - from) as u64)
                    }
                    _ => Interval::ANY,
                };
                Ok(self.scalar(range, low, high))
            }
            (AluOp::And | AluOp::Or | AluOp::Xor | AluOp::Lsh | AluOp::Rsh | AluOp::Mul | _, a, b) => {
                let (what, with) = (a.describe(), b.describe());
                self.reject(format!("a pointer can only be moved by a number: here {what} is combined with {with}"))
            }
        }
    }

    fn advance_pointer(&mut self, pointer: Value, number: Value, by: Interval, back: bool) -> Result<Value> {
        if pointer.ty.is_nullable() {
            // NULL plus an offset would be an unknown scalar. If the program means that, a higher
            // path sensitivity keeps the paths apart.
            let what = pointer.ty.describe();
            return self.reject(format!("{what} is moved: compare it with NULL first"));
        }
        let low = self.code.binary(if back { Sub } else { Add }, pointer.low, number.low);
        let low = self.clamp_offset(low, number, by, back);
        let distance = by.as_constant().map(|by| if back { (by as i64).wrapping_neg() } else { by as i64 });
        let moved = |off: Offsets| if back { off.sub(by) } else { off.add(by) };
        let ty = match pointer.ty {
            RegType::Packet { name, off, floor, .. } => match distance {
                Some(by) if off.checked_add(by).is_some_and(|off| off.abs() < MAX_OFFSET) => {
                    RegType::Packet { name, off: off + by, floor: (floor + by).max(-OFFSET_LIMIT), nullable: false }
                }
                _ => RegType::Packet {
                    name: self.fresh_name(),
                    off: 0,
                    floor: moved(Offsets::constant(floor)).low,
                    nullable: false,
                },
            },
            RegType::Stack { frame, off } => RegType::Stack { frame, off: moved(off) },
            RegType::MapValue { map, off, name, .. } => {
                RegType::MapValue { map, off: moved(off), name, nullable: false }
            }
            RegType::RingRecord { record, off, name, .. } => {
                RegType::RingRecord { record, off: moved(off), name, nullable: false }
            }
            RegType::Context(off) => match distance {
                Some(by) => RegType::Context(off.saturating_add(by)),
                None => return self.reject("the context is read at an unknown offset"),
            },
            other => {
                let what = other.describe();
                return self.reject(format!("{what} cannot be moved"));
            }
        };
        Ok(Value { ty, low, high: pointer.high })
    }
}

impl BlockInterpreter<'_, '_> {
    /// Offset of a moved pointer when the distance may not fit 32 bits: an offset beyond the
    /// tracked range is replaced by one outside of all memory on the same side.
    fn clamp_offset(&mut self, moved: Id, number: Value, by: Interval, back: bool) -> Id {
        let (least, most) = by.signed_bounds();
        if least >= -MAX_UNCHECKED_MOVE && most <= MAX_UNCHECKED_MOVE {
            return moved;
        }
        let (behind, before) = (2 * MAX_OFFSET as u32, (-2 * MAX_OFFSET) as u32);
        let (behind, before) = (self.code.constant(behind), self.code.constant(before));
        if least > -MAX_OFFSET && most < MAX_OFFSET {
            // Clamp, so that further moves cannot wrap around in 32 bits.
            let is_behind = self.code.binary(Slt, behind, moved);
            let moved = self.code.select(is_behind, behind, moved);
            let is_before = self.code.binary(Slt, moved, before);
            return self.code.select(is_before, before, moved);
        }
        let limit = self.constant(MAX_OFFSET as u64);
        let number = Value { ty: RegType::Scalar(by), ..number };
        let (low, high) = self.add64(number, limit);
        let far = self.code.binary_const(Ne, high, 0);
        let last = self.code.constant(2 * MAX_OFFSET as u32);
        let farther = self.code.binary(Lt, last, low);
        let far = self.code.binary(LogicalOr, far, farther);
        let zero = self.code.constant(0);
        let is_negative = self.code.binary(Slt, number.high, zero);
        let (positive, negative) = if back { (before, behind) } else { (behind, before) };
        let outside = self.code.select(is_negative, negative, positive);
        self.code.select(far, outside, moved)
    }
}

fn have_distance(a: RegType, b: RegType) -> bool {
    match (a, b) {
        (RegType::Packet { .. } | RegType::PacketEnd, RegType::Packet { .. } | RegType::PacketEnd) => true,
        (RegType::Stack { frame: METADATA_FRAME, .. }, RegType::Packet { .. } | RegType::PacketEnd)
        | (RegType::Packet { .. } | RegType::PacketEnd, RegType::Stack { frame: METADATA_FRAME, .. }) => true,
        (RegType::Stack { frame: a, .. }, RegType::Stack { frame: b, .. }) => a == b,
        (RegType::MapValue { map: a, name: x, .. }, RegType::MapValue { map: b, name: y, .. }) => a == b && x == y,
        (RegType::RingRecord { record: a, .. }, RegType::RingRecord { record: b, .. }) => a == b,
        _ => false,
    }
}
