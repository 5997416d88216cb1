//! Conditional jumps: conditions, and the refinement of states on both edges (RFC 9669, section
//! 4.3).

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::{ANONYMOUS, PACKET_START, RegType, SymbolicName};
use crate::analysis::domain::state::{METADATA_FRAME, State, Value};
use crate::instruction::{Comparison, Instruction, class};
use crate::ir::BinaryOp::*;
use crate::ir::Id;

/// The values that a pointer may have as a number: kernel addresses have the highest bit set, and
/// the last 4,095 numbers are error codes (`MAX_ERRNO`, linux/err.h).
const KERNEL_ADDRESSES: Interval = Interval::new(1 << 63, u64::MAX - 4095);

/// Feature name for comparisons of pointers other than with the packet's end, NULL and the like.
const OTHER_POINTERS: &str = "other comparisons of pointers";

/// A conditional jump: its condition, and the state on each edge; `None` if the edge is infeasible.
pub(crate) struct Branch {
    pub condition: Id,
    pub taken: Option<State>,
    pub not_taken: Option<State>,
}

impl BlockInterpreter<'_, '_> {
    pub fn branch(&mut self, it: Instruction) -> Result<Branch> {
        let Some(comparison) = it.comparison() else {
            return self.reject_unknown(it);
        };
        let wide = it.class() == class::JMP;
        let left = self.read_register(it.dst)?;
        let right = if it.has_register_operand() {
            self.read_register(it.src)?
        } else {
            self.constant(i64::from(it.imm) as u64)
        };
        let is_pointer = left.ty.is_pointer() || right.ty.is_pointer();
        // The context has pointers as 32-bit numbers, and clang compares them as such.
        let condition = if wide || is_pointer {
            self.compare(comparison, left, right)?
        } else {
            self.compare32(comparison, left, right)
        };
        let known = self.code.as_boolean(condition);
        let side = |interp: &Self, holds: bool| {
            if known == Some(!holds) {
                return None;
            }
            let mut state = interp.state.clone();
            let possible = match (left.ty, right.ty) {
                (RegType::Scalar(_), RegType::Scalar(_)) => {
                    refine_scalars(&mut state, comparison, left, right, holds, wide)
                }
                _ => {
                    refine_pointers(&mut state, comparison, left, right, holds);
                    true
                }
            };
            possible.then_some(state)
        };
        let (taken, not_taken) = (side(self, true), side(self, false));
        Ok(Branch { condition, taken, not_taken })
    }

    pub(super) fn compare32(&mut self, comparison: Comparison, left: Value, right: Value) -> Id {
        use Comparison as C;
        let (a, b) = (left.low, right.low);
        let code = &mut self.code;
        match comparison {
            C::Eq => code.binary(Eq, a, b),
            C::Ne => code.binary(Ne, a, b),
            C::Lt => code.binary(Lt, a, b),
            C::Le => code.binary(Le, a, b),
            C::Gt => code.binary(Lt, b, a),
            C::Ge => code.binary(Le, b, a),
            C::Slt => code.binary(Slt, a, b),
            C::Sle => code.binary(Sle, a, b),
            C::Sgt => code.binary(Slt, b, a),
            C::Sge => code.binary(Sle, b, a),
            C::Set => {
                let both = code.binary(And, a, b);
                code.binary_const(Ne, both, 0)
            }
        }
    }

    fn compare(&mut self, comparison: Comparison, left: Value, right: Value) -> Result<Id> {
        use Comparison as C;
        match (left.ty, right.ty) {
            (RegType::Scalar(a), RegType::Scalar(b)) => {
                if let Some(known) = decide(comparison, a, b) {
                    return Ok(self.code.boolean(known));
                }
                let signs_agree = a.high < 1 << 31 && b.high < 1 << 31;
                let is_signed = matches!(comparison, C::Slt | C::Sle | C::Sgt | C::Sge);
                if a.fits_u32() && b.fits_u32() && (!is_signed || signs_agree) {
                    return Ok(self.compare32(comparison, left, right));
                }
                if is_signed && a.fits_u32() && b.fits_u32() {
                    // A 32-bit number is non-negative as a signed 64-bit number.
                    let unsigned = match comparison {
                        C::Slt => C::Lt,
                        C::Sle => C::Le,
                        C::Sgt => C::Gt,
                        _ => C::Ge,
                    };
                    return Ok(self.compare32(unsigned, left, right));
                }
                Ok(self.compare64(comparison, left, right))
            }
            (pointer, RegType::Scalar(range)) if pointer.is_pointer() => {
                self.compare_pointer_with_scalar(comparison, pointer, left, (range, right))
            }
            (RegType::Scalar(range), pointer) if pointer.is_pointer() => {
                self.compare_pointer_with_scalar(comparison.swap_operands(), pointer, right, (range, left))
            }
            (pointer, RegType::PacketEnd) | (RegType::PacketEnd, pointer) if pointer.is_nullable() => {
                // A check against the end proves nothing for NULL. If the program means it, a
                // higher path sensitivity keeps the paths apart.
                let what = pointer.describe();
                self.reject(format!("{what} is compared with the packet's end: compare it with NULL first"))
            }
            (a @ (RegType::Packet { .. } | RegType::PacketEnd), b @ (RegType::Packet { .. } | RegType::PacketEnd)) => {
                // Offsets in front of the packet are negative.
                let may_be_before = |ty| matches!(ty, RegType::Packet { floor, .. } if floor < 0);
                let comparison = if may_be_before(a) || may_be_before(b) { to_signed(comparison) } else { comparison };
                Ok(self.compare32(comparison, left, right))
            }
            (RegType::Stack { frame: METADATA_FRAME, .. }, RegType::Packet { .. } | RegType::PacketEnd)
            | (RegType::Packet { .. } | RegType::PacketEnd, RegType::Stack { frame: METADATA_FRAME, .. }) => {
                Ok(self.compare_with_packet(comparison, left, right))
            }
            (RegType::Stack { frame: a, .. }, RegType::Stack { frame: b, .. }) if a == b => {
                Ok(self.compare32(to_signed(comparison), left, right))
            }
            (RegType::MapValue { map: a, .. }, RegType::MapValue { map: b, .. })
                if a == b && matches!(comparison, C::Eq | C::Ne) =>
            {
                Ok(self.compare64(comparison, left, right))
            }
            (a, b) => {
                let (a, b) = (a.describe(), b.describe());
                let what = format!("{a} is compared with {b}; the result cannot be determined");
                self.reject_unsupported(what, OTHER_POINTERS)
            }
        }
    }

    /// Compares a pointer with a scalar, NULL or an error code for example, using that every
    /// pointer lies in [`KERNEL_ADDRESSES`].
    fn compare_pointer_with_scalar(
        &mut self,
        comparison: Comparison,
        pointer: RegType,
        value: Value,
        (range, number): (Interval, Value),
    ) -> Result<Id> {
        let Some(holds) = decide(comparison, KERNEL_ADDRESSES, range) else {
            let what = pointer.describe();
            let what = format!("{what} is compared with a number; the result cannot be determined");
            return self.reject_unsupported(what, OTHER_POINTERS);
        };
        let holds = self.code.boolean(holds);
        if !pointer.is_nullable() {
            return Ok(holds);
        }
        let (null, is_null) = (self.constant(0), self.code.binary_const(Eq, value.high, 0));
        let of_null = self.compare(comparison, null, number)?;
        let (null, there) = (self.code.binary(LogicalAnd, is_null, of_null), self.code.not(is_null));
        let there = self.code.binary(LogicalAnd, there, holds);
        Ok(self.code.binary(LogicalOr, null, there))
    }

    fn compare64(&mut self, comparison: Comparison, left: Value, right: Value) -> Id {
        use Comparison as C;
        let ((al, ah), (bl, bh)) = ((left.low, left.high), (right.low, right.high));
        let code = &mut self.code;
        let below = |code: &mut crate::ir::BlockCode, high, low, (al, ah), (bl, bh)| {
            let less = code.binary(high, ah, bh);
            let same = code.binary(Eq, ah, bh);
            let then = code.binary(low, al, bl);
            let both = code.binary(LogicalAnd, same, then);
            code.binary(LogicalOr, less, both)
        };
        match comparison {
            C::Eq | C::Ne => {
                let (low, high) = (code.binary(Eq, al, bl), code.binary(Eq, ah, bh));
                let same = code.binary(LogicalAnd, low, high);
                if comparison == C::Eq { same } else { code.not(same) }
            }
            C::Set => {
                let (low, high) = (code.binary(And, al, bl), code.binary(And, ah, bh));
                let any = code.binary(Or, low, high);
                code.binary_const(Ne, any, 0)
            }
            C::Lt => below(code, Lt, Lt, (al, ah), (bl, bh)),
            C::Le => below(code, Lt, Le, (al, ah), (bl, bh)),
            C::Gt => below(code, Lt, Lt, (bl, bh), (al, ah)),
            C::Ge => below(code, Lt, Le, (bl, bh), (al, ah)),
            C::Slt => below(code, Slt, Lt, (al, ah), (bl, bh)),
            C::Sle => below(code, Slt, Le, (al, ah), (bl, bh)),
            C::Sgt => below(code, Slt, Lt, (bl, bh), (al, ah)),
            C::Sge => below(code, Slt, Le, (bl, bh), (al, ah)),
        }
    }
}

/// The signed comparison, for offsets that may be negative, as those from the top of a stack are.
pub(super) fn to_signed(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Lt => Comparison::Slt,
        Comparison::Le => Comparison::Sle,
        Comparison::Gt => Comparison::Sgt,
        Comparison::Ge => Comparison::Sge,
        other => other,
    }
}

/// The result of a comparison if the intervals determine it.
fn decide(comparison: Comparison, a: Interval, b: Interval) -> Option<bool> {
    use Comparison as C;
    let ((al, ah), (bl, bh)) = (a.signed_bounds(), b.signed_bounds());
    let (yes, no) = match comparison {
        C::Eq => (a.as_constant().is_some() && a == b, a.is_below(b) || b.is_below(a)),
        C::Ne => (a.is_below(b) || b.is_below(a), a.as_constant().is_some() && a == b),
        C::Lt => (a.high < b.low, a.low >= b.high),
        C::Le => (a.high <= b.low, a.low > b.high),
        C::Gt => (a.low > b.high, a.high <= b.low),
        C::Ge => (a.low >= b.high, a.high < b.low),
        C::Slt => (ah < bl, al >= bh),
        C::Sle => (ah <= bl, al > bh),
        C::Sgt => (al > bh, ah <= bl),
        C::Sge => (al >= bh, ah < bl),
        C::Set => match (a.as_constant(), b.as_constant()) {
            (Some(a), Some(b)) => (a & b != 0, a & b == 0),
            _ => (false, b.as_constant() == Some(0) || a.as_constant() == Some(0)),
        },
    };
    if yes {
        Some(true)
    } else if no {
        Some(false)
    } else {
        None
    }
}

/// The comparison that holds exactly if this one does not.
fn negated(comparison: Comparison) -> Option<Comparison> {
    use Comparison as C;
    Some(match comparison {
        C::Eq => C::Ne,
        C::Ne => C::Eq,
        C::Lt => C::Ge,
        C::Ge => C::Lt,
        C::Le => C::Gt,
        C::Gt => C::Le,
        C::Slt => C::Sge,
        C::Sge => C::Slt,
        C::Sle => C::Sgt,
        C::Sgt => C::Sle,
        C::Set => return None,
    })
}

/// Narrows the scalars of a comparison that holds or does not. Returns false if that is infeasible.
fn refine_scalars(
    state: &mut State,
    comparison: Comparison,
    left: Value,
    right: Value,
    holds: bool,
    wide: bool,
) -> bool {
    let comparison = if holds { Some(comparison) } else { negated(comparison) };
    let (Some(comparison), Some(a), Some(b)) = (comparison, left.ty.as_scalar(), right.ty.as_scalar()) else {
        return true;
    };
    // A 32-bit comparison says something about the whole number only if the high half is zero; and
    // its sign bit is another one.
    let is_signed = matches!(comparison, Comparison::Slt | Comparison::Sle | Comparison::Sgt | Comparison::Sge);
    if !wide && (!a.fits_u32() || !b.fits_u32() || is_signed) {
        return true;
    }
    let (Some(left_now), Some(right_now)) = (narrow(a, comparison, b), narrow(b, comparison.swap_operands(), a)) else {
        return false;
    };
    state.refine(left, ANONYMOUS, |_| RegType::Scalar(left_now));
    state.refine(right, ANONYMOUS, |_| RegType::Scalar(right_now));
    true
}

/// The numbers of `a` for which the comparison can hold with some number of `b`.
fn narrow(a: Interval, comparison: Comparison, b: Interval) -> Option<Interval> {
    use Comparison as C;
    match comparison {
        C::Eq => a.meet(b.low, b.high),
        C::Ne => match b.as_constant() {
            Some(value) if value == a.low => a.low.checked_add(1).and_then(|low| a.meet(low, u64::MAX)),
            Some(value) if value == a.high => a.high.checked_sub(1).and_then(|high| a.meet(0, high)),
            _ => Some(a),
        },
        C::Lt => a.meet(0, b.high.checked_sub(1)?),
        C::Le => a.meet(0, b.high),
        C::Gt => a.meet(b.low.checked_add(1)?, u64::MAX),
        C::Ge => a.meet(b.low, u64::MAX),
        C::Slt => a.signed_at_most(b.signed_bounds().1.checked_sub(1)?),
        C::Sle => a.signed_at_most(b.signed_bounds().1),
        C::Sgt => a.signed_at_least(b.signed_bounds().0.checked_add(1)?),
        C::Sge => a.signed_at_least(b.signed_bounds().0),
        C::Set => Some(a),
    }
}

/// Refines pointers by a comparison that holds or does not.
fn refine_pointers(state: &mut State, comparison: Comparison, left: Value, right: Value, holds: bool) {
    let Some(comparison) = (if holds { Some(comparison) } else { negated(comparison) }) else { return };
    match (left.ty, right.ty) {
        (RegType::Packet { name, off, .. }, RegType::PacketEnd) => extend_proven_bytes(state, comparison, name, off),
        (RegType::PacketEnd, RegType::Packet { name, off, .. }) => {
            extend_proven_bytes(state, comparison.swap_operands(), name, off)
        }
        (_, RegType::Scalar(number)) if number.as_constant() == Some(0) => refine_against_null(state, comparison, left),
        (RegType::Scalar(number), _) if number.as_constant() == Some(0) => {
            refine_against_null(state, comparison.swap_operands(), right)
        }
        _ => {}
    }
}

fn refine_against_null(state: &mut State, comparison: Comparison, pointer: Value) {
    match comparison {
        Comparison::Ne | Comparison::Gt => mark_non_null(state, pointer),
        Comparison::Eq | Comparison::Le => mark_null(state, pointer),
        _ => {}
    }
}

/// Extends the bytes proven to follow a place that compares below the packet's end.
fn extend_proven_bytes(state: &mut State, comparison: Comparison, name: SymbolicName, off: i64) {
    let bytes = match comparison {
        Comparison::Le | Comparison::Eq => off,
        Comparison::Lt => off.saturating_add(1),
        _ => return,
    };
    let Ok(bytes) = u32::try_from(bytes) else { return };
    match name {
        PACKET_START => state.proven_length = state.proven_length.max(bytes),
        ANONYMOUS => {}
        _ => {
            let extent = state.extents.entry(name).or_insert(0);
            *extent = (*extent).max(bytes);
        }
    }
}

/// Marks a pointer and all its copies as non-null.
pub(super) fn mark_non_null(state: &mut State, value: Value) {
    let name = if matches!(value.ty, RegType::Packet { .. }) { ANONYMOUS } else { value.ty.name() };
    state.refine(value, name, |ty| match ty {
        RegType::Packet { name, off, floor, .. } => RegType::Packet { name, off, floor, nullable: false },
        RegType::MapValue { map, off, name, .. } => RegType::MapValue { map, off, name, nullable: false },
        RegType::RingRecord { record, off, name, .. } => RegType::RingRecord { record, off, name, nullable: false },
        other => other,
    });
}

fn mark_null(state: &mut State, value: Value) {
    if value.ty.is_nullable() {
        let name = if matches!(value.ty, RegType::Packet { .. }) { ANONYMOUS } else { value.ty.name() };
        state.refine(value, name, |_| RegType::Scalar(Interval::constant(0)));
    }
}
