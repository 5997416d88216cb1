//! Branches: what they compare, and what is known on either side (RFC 9669, section 4.3).

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{FIXED, META, NOBODY, Name, State, Ty, Value};
use crate::decode::instruction::{Comparison, Instruction, class};
use crate::lower::ir::Binary::*;
use crate::lower::ir::Id;

/// What a pointer may be as a number: the kernel's addresses have the highest bit, and the last 4,095 numbers are those of errors
/// (`MAX_ERRNO`, linux/err.h).
const ADDRESSES: Range = Range::new(1 << 63, u64::MAX - 4095);

/// What is missing where pointers are compared in other ways than with the packet's end, NULL and their like.
const OTHER_POINTERS: &str = "other comparisons of pointers";

/// A branch: what is asked, and what is known where it holds and where it does not; `None` where that cannot be.
pub(crate) struct Branch {
    pub condition: Id,
    pub taken: Option<State>,
    pub fallen: Option<State>,
}

impl Walk<'_, '_> {
    pub fn branch(&mut self, it: Instruction) -> Result<Branch> {
        let Some(comparison) = it.comparison() else {
            return self.unknown(it);
        };
        let wide = it.class() == class::JMP;
        let left = self.get(it.dst)?;
        let right = if it.by_register() { self.get(it.src)? } else { self.constant(i64::from(it.imm) as u64) };
        let is_pointer = left.ty.is_pointer() || right.ty.is_pointer();
        // The context has its pointers as numbers of 32 bits, and clang compares them as such.
        let condition = if wide || is_pointer {
            self.compared(comparison, left, right)?
        } else {
            self.compared32(comparison, left, right)
        };
        let known = self.code.as_truth(condition);
        let side = |walk: &Self, holds: bool| {
            if known == Some(!holds) {
                return None;
            }
            let mut state = walk.state.clone();
            let possible = match (left.ty, right.ty) {
                (Ty::Number(_), Ty::Number(_)) => numbers(&mut state, comparison, left, right, holds, wide),
                _ => {
                    pointers(&mut state, comparison, left, right, holds);
                    true
                }
            };
            possible.then_some(state)
        };
        let (taken, fallen) = (side(self, true), side(self, false));
        Ok(Branch { condition, taken, fallen })
    }

    pub(super) fn compared32(&mut self, comparison: Comparison, left: Value, right: Value) -> Id {
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
                code.by(Ne, both, 0)
            }
        }
    }

    fn compared(&mut self, comparison: Comparison, left: Value, right: Value) -> Result<Id> {
        use Comparison as C;
        match (left.ty, right.ty) {
            (Ty::Number(a), Ty::Number(b)) => {
                if let Some(known) = decided(comparison, a, b) {
                    return Ok(self.code.truth(known));
                }
                let signs_agree = a.high < 1 << 31 && b.high < 1 << 31;
                let is_signed = matches!(comparison, C::Slt | C::Sle | C::Sgt | C::Sge);
                if a.is_word() && b.is_word() && (!is_signed || signs_agree) {
                    return Ok(self.compared32(comparison, left, right));
                }
                if is_signed && a.is_word() && b.is_word() {
                    // With the sign of 64 bits these have none.
                    let unsigned = match comparison {
                        C::Slt => C::Lt,
                        C::Sle => C::Le,
                        C::Sgt => C::Gt,
                        _ => C::Ge,
                    };
                    return Ok(self.compared32(unsigned, left, right));
                }
                Ok(self.compared64(comparison, left, right))
            }
            (pointer, Ty::Number(range)) if pointer.is_pointer() => {
                self.against_number(comparison, pointer, left, (range, right))
            }
            (Ty::Number(range), pointer) if pointer.is_pointer() => {
                self.against_number(comparison.turned(), pointer, right, (range, left))
            }
            (pointer, Ty::End) | (Ty::End, pointer) if pointer.is_nullable() => {
                // NULL says nothing of the packet: where it is meant to be compared, ways are kept apart.
                let what = pointer.words();
                self.refuse(format!("{what} is compared with the packet's end: compare it with NULL first"))
            }
            (a @ (Ty::Packet { .. } | Ty::End), b @ (Ty::Packet { .. } | Ty::End)) => {
                // In front of the packet offsets are below zero.
                let may_be_before = |ty| matches!(ty, Ty::Packet { floor, .. } if floor < 0);
                let comparison = if may_be_before(a) || may_be_before(b) { signed(comparison) } else { comparison };
                Ok(self.compared32(comparison, left, right))
            }
            (Ty::Stack { frame: META, .. }, Ty::Packet { .. } | Ty::End)
            | (Ty::Packet { .. } | Ty::End, Ty::Stack { frame: META, .. }) => {
                Ok(self.against_packet(comparison, left, right))
            }
            (Ty::Stack { frame: a, .. }, Ty::Stack { frame: b, .. }) if a == b => {
                Ok(self.compared32(signed(comparison), left, right))
            }
            (Ty::Value { map: a, .. }, Ty::Value { map: b, .. }) if a == b && matches!(comparison, C::Eq | C::Ne) => {
                Ok(self.compared64(comparison, left, right))
            }
            (a, b) => {
                let (a, b) = (a.words(), b.words());
                let what = format!("{a} is compared with {b}, of which nothing here can be told");
                self.lack(what, OTHER_POINTERS)
            }
        }
    }

    /// A pointer against a number, NULL or that of an error for example: it is above the one and below the other.
    fn against_number(
        &mut self,
        comparison: Comparison,
        pointer: Ty,
        value: Value,
        (range, number): (Range, Value),
    ) -> Result<Id> {
        let Some(holds) = decided(comparison, ADDRESSES, range) else {
            let what = pointer.words();
            let what = format!("{what} is compared with a number, of which nothing here can be told");
            return self.lack(what, OTHER_POINTERS);
        };
        let holds = self.code.truth(holds);
        if !pointer.is_nullable() {
            return Ok(holds);
        }
        let (null, is_null) = (self.constant(0), self.code.by(Eq, value.high, 0));
        let of_null = self.compared(comparison, null, number)?;
        let (null, there) = (self.code.binary(Both, is_null, of_null), self.code.not(is_null));
        let there = self.code.binary(Both, there, holds);
        Ok(self.code.binary(Either, null, there))
    }

    fn compared64(&mut self, comparison: Comparison, left: Value, right: Value) -> Id {
        use Comparison as C;
        let ((al, ah), (bl, bh)) = ((left.low, left.high), (right.low, right.high));
        let code = &mut self.code;
        let below = |code: &mut crate::lower::ir::Code, high, low, (al, ah), (bl, bh)| {
            let less = code.binary(high, ah, bh);
            let same = code.binary(Eq, ah, bh);
            let then = code.binary(low, al, bl);
            let both = code.binary(Both, same, then);
            code.binary(Either, less, both)
        };
        match comparison {
            C::Eq | C::Ne => {
                let (low, high) = (code.binary(Eq, al, bl), code.binary(Eq, ah, bh));
                let same = code.binary(Both, low, high);
                if comparison == C::Eq { same } else { code.not(same) }
            }
            C::Set => {
                let (low, high) = (code.binary(And, al, bl), code.binary(And, ah, bh));
                let any = code.binary(Or, low, high);
                code.by(Ne, any, 0)
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

/// Of offsets that may be below zero, as those from the top of a stack are.
pub(super) fn signed(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Lt => Comparison::Slt,
        Comparison::Le => Comparison::Sle,
        Comparison::Gt => Comparison::Sgt,
        Comparison::Ge => Comparison::Sge,
        other => other,
    }
}

/// What a comparison gives, where the ranges say so.
fn decided(comparison: Comparison, a: Range, b: Range) -> Option<bool> {
    use Comparison as C;
    let ((al, ah), (bl, bh)) = (a.signed(), b.signed());
    let (yes, no) = match comparison {
        C::Eq => (a.exact().is_some() && a == b, a.is_below(b) || b.is_below(a)),
        C::Ne => (a.is_below(b) || b.is_below(a), a.exact().is_some() && a == b),
        C::Lt => (a.high < b.low, a.low >= b.high),
        C::Le => (a.high <= b.low, a.low > b.high),
        C::Gt => (a.low > b.high, a.high <= b.low),
        C::Ge => (a.low >= b.high, a.high < b.low),
        C::Slt => (ah < bl, al >= bh),
        C::Sle => (ah <= bl, al > bh),
        C::Sgt => (al > bh, ah <= bl),
        C::Sge => (al >= bh, ah < bl),
        C::Set => match (a.exact(), b.exact()) {
            (Some(a), Some(b)) => (a & b != 0, a & b == 0),
            _ => (false, b.exact() == Some(0) || a.exact() == Some(0)),
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

/// The comparison that holds where this one does not.
fn opposite(comparison: Comparison) -> Option<Comparison> {
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

/// What numbers can be where a comparison holds or does not; whether that can be.
fn numbers(state: &mut State, comparison: Comparison, left: Value, right: Value, holds: bool, wide: bool) -> bool {
    let comparison = if holds { Some(comparison) } else { opposite(comparison) };
    let (Some(comparison), Some(a), Some(b)) = (comparison, left.ty.range(), right.ty.range()) else { return true };
    // Of 32 bits a comparison says something of all only where the rest is zero; and its sign is another.
    let is_signed = matches!(comparison, Comparison::Slt | Comparison::Sle | Comparison::Sgt | Comparison::Sge);
    if !wide && (!a.is_word() || !b.is_word() || is_signed) {
        return true;
    }
    let (Some(left_now), Some(right_now)) = (narrowed(a, comparison, b), narrowed(b, comparison.turned(), a)) else {
        return false;
    };
    state.refine(left, NOBODY, |_| Ty::Number(left_now));
    state.refine(right, NOBODY, |_| Ty::Number(right_now));
    true
}

/// Those numbers of which a comparison can hold with some of the others.
fn narrowed(a: Range, comparison: Comparison, b: Range) -> Option<Range> {
    use Comparison as C;
    match comparison {
        C::Eq => a.meet(b.low, b.high),
        C::Ne => match b.exact() {
            Some(value) if value == a.low => a.low.checked_add(1).and_then(|low| a.meet(low, u64::MAX)),
            Some(value) if value == a.high => a.high.checked_sub(1).and_then(|high| a.meet(0, high)),
            _ => Some(a),
        },
        C::Lt => a.meet(0, b.high.checked_sub(1)?),
        C::Le => a.meet(0, b.high),
        C::Gt => a.meet(b.low.checked_add(1)?, u64::MAX),
        C::Ge => a.meet(b.low, u64::MAX),
        C::Slt => a.signed_at_most(b.signed().1.checked_sub(1)?),
        C::Sle => a.signed_at_most(b.signed().1),
        C::Sgt => a.signed_at_least(b.signed().0.checked_add(1)?),
        C::Sge => a.signed_at_least(b.signed().0),
        C::Set => Some(a),
    }
}

/// What pointers are known to be.
fn pointers(state: &mut State, comparison: Comparison, left: Value, right: Value, holds: bool) {
    let Some(comparison) = (if holds { Some(comparison) } else { opposite(comparison) }) else { return };
    match (left.ty, right.ty) {
        (Ty::Packet { name, off, .. }, Ty::End) => reaches(state, comparison, name, off),
        (Ty::End, Ty::Packet { name, off, .. }) => reaches(state, comparison.turned(), name, off),
        (_, Ty::Number(number)) if number.exact() == Some(0) => against_null(state, comparison, left),
        (Ty::Number(number), _) if number.exact() == Some(0) => against_null(state, comparison.turned(), right),
        _ => {}
    }
}

fn against_null(state: &mut State, comparison: Comparison, pointer: Value) {
    match comparison {
        Comparison::Ne | Comparison::Gt => there(state, pointer),
        Comparison::Eq | Comparison::Le => null(state, pointer),
        _ => {}
    }
}

/// A place in the packet against its end.
fn reaches(state: &mut State, comparison: Comparison, name: Name, off: i64) {
    let bytes = match comparison {
        Comparison::Le | Comparison::Eq => off,
        Comparison::Lt => off.saturating_add(1),
        _ => return,
    };
    let Ok(bytes) = u32::try_from(bytes) else { return };
    match name {
        FIXED => state.length = state.length.max(bytes),
        NOBODY => {}
        _ => {
            let extent = state.extents.entry(name).or_insert(0);
            *extent = (*extent).max(bytes);
        }
    }
}

/// It is known of a pointer that it is not NULL.
pub(super) fn there(state: &mut State, value: Value) {
    let name = if matches!(value.ty, Ty::Packet { .. }) { NOBODY } else { value.ty.name() };
    state.refine(value, name, |ty| match ty {
        Ty::Packet { name, off, floor, .. } => Ty::Packet { name, off, floor, nullable: false },
        Ty::Value { map, off, name, .. } => Ty::Value { map, off, name, nullable: false },
        Ty::Record { record, off, name, .. } => Ty::Record { record, off, name, nullable: false },
        other => other,
    });
}

fn null(state: &mut State, value: Value) {
    if value.ty.is_nullable() {
        let name = if matches!(value.ty, Ty::Packet { .. }) { NOBODY } else { value.ty.name() };
        state.refine(value, name, |_| Ty::Number(Range::one(0)));
    }
}
