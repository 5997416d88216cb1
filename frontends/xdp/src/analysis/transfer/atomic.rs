//! Atomic operations (RFC 9669, section 5.3).

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::Value;
use crate::instruction::Instruction;
use crate::ir::privatize::StoreCertainty;
use crate::ir::{BinaryOp, Effect, Id};
use portcullis_core::map::AtomicOp;

const FETCH: i32 = 1;
const ADD: i32 = 0;
const OR: i32 = 0x40;
const AND: i32 = 0x50;
const XOR: i32 = 0xa0;
const XCHG: i32 = 0xe0 | FETCH;
const CMPXCHG: i32 = 0xf0 | FETCH;

impl BlockInterpreter<'_, '_> {
    pub(super) fn atomic(&mut self, it: Instruction) -> Result<()> {
        let size = it.size();
        if size < 4 {
            return self.reject("atomic operations take 4 or 8 bytes");
        }
        let (to, value) = (self.read_register(it.dst)?, self.read_register(it.src)?);
        self.expect_scalar(value, "the operand of an atomic operation")?;
        let expected = if it.imm == CMPXCHG { Some(self.read_register(0)?) } else { None };
        let old = match to.ty {
            RegType::Stack { frame, off } => self.atomic_on_stack(it, frame, off, to, value, expected)?,
            RegType::MapValue { .. } => self.atomic_on_map(it, to, value, expected)?,
            other => {
                let what = other.describe();
                return self.reject(format!("an atomic operation takes the stack or a map's value, not {what}"));
            }
        };
        if it.imm == CMPXCHG {
            self.write_register(0, old)
        } else if it.imm & FETCH != 0 {
            self.write_register(it.src, old)
        } else {
            Ok(())
        }
    }

    fn old_value(&mut self, size: u32, low: u32, high: u32) -> Value {
        if size == 8 { self.scalar(Interval::ANY, low, high) } else { self.scalar32(Interval::U32, low) }
    }

    fn atomic_on_map(&mut self, it: Instruction, to: Value, value: Value, expected: Option<Value>) -> Result<Value> {
        let size = it.size();
        let (map, entry, word, span) = self.check_atomic_access(to, i64::from(it.off), size)?;
        // Counts as a load even without FETCH: the result depends on all that was there before.
        let (is_own, may_be_own) = (self.note_load(span), self.may_have_stored(span));
        self.note_store(span, StoreCertainty::Updated);
        let next = self.code.binary_const(BinaryOp::Add, word, 1);
        if is_own {
            // What this packet has stored there is private to it. (A copy exists once privatization
            // is decided.)
            let high = self.code.binary_const(BinaryOp::Add, entry, 1);
            let low = self.read_value_word(map, high, word);
            let high = if size == 8 { self.read_value_word(map, high, next) } else { low };
            let old = self.old_value(size, low, high);
            let (low, high) = self.atomic_result(it, old, value, expected)?;
            self.write_value_word(map, entry, word, low);
            if size == 8 {
                self.write_value_word(map, entry, next, high);
            }
            return Ok(old);
        }
        let last = if size == 8 { next } else { word };
        let own = self.private_word(map, word).zip(self.private_word(map, last));
        let there = self.device_atomic(it, (map, entry, word), value, expected)?;
        let Some((low, high)) = own else { return Ok(there) };
        // Words that the packet may have stored are taken from its copy.
        let old = if may_be_own { self.old_value(size, low, high) } else { there };
        let (low, high) = self.atomic_result(it, old, value, expected)?;
        self.write_private_word(map, entry, word, low);
        if size == 8 {
            self.write_private_word(map, entry, next, high);
        }
        Ok(old)
    }

    /// Performs the operation on the shared value, atomically with other packets.
    fn device_atomic(
        &mut self,
        it: Instruction,
        (map, entry, word): (u16, Id, Id),
        value: Value,
        expected: Option<Value>,
    ) -> Result<Value> {
        let size = it.size();
        if it.imm & !FETCH == ADD {
            if size == 4 {
                let name = self.map_function(map, "add");
                let low = self.code.call_values(&name, &[entry, word, value.low], Effect::Writes);
                return Ok(self.old_value(size, low, low));
            }
            let name = self.runtime_function(map, "add64");
            let old = self.code.call_values(&name, &[entry, word, value.low, value.high], Effect::Writes);
            let (low, high) = self.split_pair(old);
            return Ok(self.old_value(size, low, high));
        }
        if let Some(expected) = expected {
            if size == 8 {
                let what = "a 64-bit compare-and-exchange is used; devices have only 32 bits";
                return self.reject_unsupported(what, "compare-and-exchange of 64 bits");
            }
            let name = self.map_function(map, "compare_exchange");
            let low = self.code.call_values(&name, &[entry, word, expected.low, value.low], Effect::Writes);
            return Ok(self.old_value(size, low, low));
        }
        let change = match it.imm & !FETCH {
            OR => AtomicOp::Or,
            AND => AtomicOp::And,
            XOR => AtomicOp::Xor,
            _ if it.imm == XCHG => AtomicOp::Exchange,
            _ => return self.reject(format!("unknown atomic operation {:#x}", it.imm)),
        };
        let low = self.call_change(map, change, &[entry, word, value.low]);
        if size == 4 {
            return Ok(self.old_value(size, low, low));
        }
        let next = self.code.binary_const(BinaryOp::Add, word, 1);
        let high = self.call_change(map, change, &[entry, next, value.high]);
        Ok(self.old_value(size, low, high))
    }

    /// Performs the operation on the stack, which no other packet shares.
    fn atomic_on_stack(
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
        self.expect_scalar(old, "the target of an atomic operation")?;
        let (low, high) = self.atomic_result(it, old, value, expected)?;
        let new = self.scalar(Interval::ANY, low, high);
        self.store_stack(frame, off, to.low, i64::from(it.off), size, new)?;
        Ok(old)
    }

    /// Returns the value that an operation leaves in memory, as halves.
    fn atomic_result(
        &mut self,
        it: Instruction,
        old: Value,
        value: Value,
        expected: Option<Value>,
    ) -> Result<(Id, Id)> {
        use BinaryOp::{And, Eq, LogicalAnd, Or, Xor};
        let each = |interp: &mut Self, op| {
            (interp.code.binary(op, old.low, value.low), interp.code.binary(op, old.high, value.high))
        };
        Ok(match it.imm & !FETCH {
            ADD => self.add64(old, value),
            OR => each(self, Or),
            AND => each(self, And),
            XOR => each(self, Xor),
            _ if it.imm == XCHG => (value.low, value.high),
            _ if it.imm == CMPXCHG => {
                let expected = expected.unwrap_or(old);
                let same = self.code.binary(Eq, old.low, expected.low);
                let high = match it.size() {
                    8 => self.code.binary(Eq, old.high, expected.high),
                    _ => self.code.boolean(true),
                };
                let same = self.code.binary(LogicalAnd, same, high);
                (self.code.select(same, value.low, old.low), self.code.select(same, value.high, old.high))
            }
            _ => return self.reject(format!("unknown atomic operation {:#x}", it.imm)),
        })
    }
}
