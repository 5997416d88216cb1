//! Atomic operations (RFC 9669, section 5.3).

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{Offsets, Ty, Value};
use crate::decode::instruction::Instruction;
use crate::lower::ir::{Binary, Effect, Id};
use crate::lower::privatize::How;
use portcullis_core::map::AtomicOp;

const FETCH: i32 = 1;
const ADD: i32 = 0;
const OR: i32 = 0x40;
const AND: i32 = 0x50;
const XOR: i32 = 0xa0;
const XCHG: i32 = 0xe0 | FETCH;
const CMPXCHG: i32 = 0xf0 | FETCH;

impl Walk<'_, '_> {
    pub(super) fn atomic(&mut self, it: Instruction) -> Result<()> {
        let size = it.size();
        if size < 4 {
            return self.refuse("atomic operations are on 4 or 8 bytes");
        }
        let (to, value) = (self.get(it.dst)?, self.get(it.src)?);
        self.expect_number(value, "what an atomic operation is done with")?;
        let expected = if it.imm == CMPXCHG { Some(self.get(0)?) } else { None };
        let old = match to.ty {
            Ty::Stack { frame, off } => self.on_stack(it, frame, off, to, value, expected)?,
            Ty::Value { .. } => self.on_map(it, to, value, expected)?,
            other => {
                let what = other.words();
                return self.refuse(format!("an atomic operation is done on {what}"));
            }
        };
        if it.imm == CMPXCHG {
            self.set(0, old)
        } else if it.imm & FETCH != 0 {
            self.set(it.src, old)
        } else {
            Ok(())
        }
    }

    fn old(&mut self, size: u32, low: u32, high: u32) -> Value {
        if size == 8 { self.number(Range::ANY, low, high) } else { self.word(Range::WORD, low) }
    }

    fn on_map(&mut self, it: Instruction, to: Value, value: Value, expected: Option<Value>) -> Result<Value> {
        let size = it.size();
        let (map, entry, word, span) = self.whole(to, i64::from(it.off), size)?;
        // Also where it does not give what was there: what is there then is made of all of it.
        let (is_own, may_be_own) = (self.loads(span), self.may_have_stored(span));
        self.stores(span, How::Changed);
        let next = self.code.by(Binary::Add, word, 1);
        if is_own {
            // Nobody else has what this packet has stored there. (There is a copy of it, once that is settled.)
            let high = self.code.by(Binary::Add, entry, 1);
            let low = self.get_word(map, high, word);
            let high = if size == 8 { self.get_word(map, high, next) } else { low };
            let old = self.old(size, low, high);
            let (low, high) = self.becomes(it, old, value, expected)?;
            self.write_word(map, entry, word, low);
            if size == 8 {
                self.write_word(map, entry, next, high);
            }
            return Ok(old);
        }
        let last = if size == 8 { next } else { word };
        let own = self.own_word(map, word).zip(self.own_word(map, last));
        let there = self.at_once(it, (map, entry, word), value, expected)?;
        let Some((low, high)) = own else { return Ok(there) };
        // What the packet may have stored itself is its own.
        let old = if may_be_own { self.old(size, low, high) } else { there };
        let (low, high) = self.becomes(it, old, value, expected)?;
        self.set_own_word(map, entry, word, low);
        if size == 8 {
            self.set_own_word(map, entry, next, high);
        }
        Ok(old)
    }

    /// Packets side by side do it to the same value: as devices have it.
    fn at_once(
        &mut self,
        it: Instruction,
        (map, entry, word): (u16, Id, Id),
        value: Value,
        expected: Option<Value>,
    ) -> Result<Value> {
        let size = it.size();
        if it.imm & !FETCH == ADD {
            if size == 4 {
                let name = self.named(map, "add");
                let low = self.code.call_with(&name, &[entry, word, value.low], Effect::Writes);
                return Ok(self.old(size, low, low));
            }
            let name = self.helper_of(map, "add64");
            let old = self.code.call_with(&name, &[entry, word, value.low, value.high], Effect::Writes);
            let (low, high) = self.pair(old);
            return Ok(self.old(size, low, high));
        }
        if let Some(expected) = expected {
            if size == 8 {
                let what = "8 bytes are compared and exchanged at once, and devices do that with 4 alone";
                return self.lack(what, "compare-and-exchange of 64 bits");
            }
            let name = self.named(map, "compare_exchange");
            let low = self.code.call_with(&name, &[entry, word, expected.low, value.low], Effect::Writes);
            return Ok(self.old(size, low, low));
        }
        let change = match it.imm & !FETCH {
            OR => AtomicOp::Or,
            AND => AtomicOp::And,
            XOR => AtomicOp::Xor,
            _ if it.imm == XCHG => AtomicOp::Exchange,
            _ => return self.refuse(format!("unknown atomic operation {:#x}", it.imm)),
        };
        let low = self.change(map, change, &[entry, word, value.low]);
        if size == 4 {
            return Ok(self.old(size, low, low));
        }
        let next = self.code.by(Binary::Add, word, 1);
        let high = self.change(map, change, &[entry, next, value.high]);
        Ok(self.old(size, low, high))
    }

    /// Nobody else has this packet's stack.
    fn on_stack(
        &mut self,
        it: Instruction,
        frame: u8,
        off: Offsets,
        to: Value,
        value: Value,
        expected: Option<Value>,
    ) -> Result<Value> {
        let size = it.size();
        let old = self.load_stack(frame, off, to.low, i64::from(it.off), size)?;
        self.expect_number(old, "what an atomic operation is done on")?;
        let (low, high) = self.becomes(it, old, value, expected)?;
        let new = self.number(Range::ANY, low, high);
        self.store_stack(frame, off, to.low, i64::from(it.off), size, new)?;
        Ok(old)
    }

    /// What an operation makes of what was there.
    fn becomes(&mut self, it: Instruction, old: Value, value: Value, expected: Option<Value>) -> Result<(Id, Id)> {
        use Binary::{And, Both, Eq, Or, Xor};
        let each = |walk: &mut Self, op| {
            (walk.code.binary(op, old.low, value.low), walk.code.binary(op, old.high, value.high))
        };
        Ok(match it.imm & !FETCH {
            ADD => self.sum(old, value),
            OR => each(self, Or),
            AND => each(self, And),
            XOR => each(self, Xor),
            _ if it.imm == XCHG => (value.low, value.high),
            _ if it.imm == CMPXCHG => {
                let expected = expected.unwrap_or(old);
                let same = self.code.binary(Eq, old.low, expected.low);
                let high = match it.size() {
                    8 => self.code.binary(Eq, old.high, expected.high),
                    _ => self.code.truth(true),
                };
                let same = self.code.binary(Both, same, high);
                (self.code.select(same, value.low, old.low), self.code.select(same, value.high, old.high))
            }
            _ => return self.refuse(format!("unknown atomic operation {:#x}", it.imm)),
        })
    }
}
