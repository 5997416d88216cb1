//! Reserved ring buffer records: memory of the packet's own until they are submitted, so that no
//! other packet can affect them.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::{STACK_COUNT, Value};
use crate::ir::BinaryOp::*;
use crate::ir::{Id, Op};

/// The number of the indexed frame that holds a record.
pub(crate) fn record_frame(record: u16) -> u16 {
    STACK_COUNT as u16 + record
}

impl BlockInterpreter<'_, '_> {
    /// Frame and offset of an access to a record, and whether each word of it is aligned; aborts
    /// the packet at run time if the access may lie outside and does.
    fn check_record_access(&mut self, pointer: Value, off: i64, size: u32) -> Result<(u16, Id, bool)> {
        let RegType::RingRecord { record, off: base, .. } = pointer.ty else { unreachable!("the caller has looked") };
        let length = i64::from(self.facts.events.records[usize::from(record)].bytes);
        self.trap_null(pointer, "the pointer to a reserved record is NULL");
        let (low, high) = (base.low.saturating_add(off), base.high.saturating_add(off) + i64::from(size));
        if high <= 0 || low >= length || (base.as_constant().is_some() && (low < 0 || high > length)) {
            return self.reject(format!("the record has {length} bytes, and is accessed at offset {low}"));
        }
        let at = self.code.binary_const(Add, pointer.low, off as u32);
        if low < 0 || high > length {
            let last = self.code.constant((length - i64::from(size)).max(0) as u32);
            let beyond =
                if length < i64::from(size) { self.code.boolean(true) } else { self.code.binary(Lt, last, at) };
            self.trap(beyond, "the record is not so long");
        }
        Ok((record_frame(record), at, base.are_multiples_of(size.min(4), off)))
    }

    pub(super) fn load_record(&mut self, from: Value, off: i64, size: u32) -> Result<Value> {
        let (frame, at, fits) = self.check_record_access(from, off, size)?;
        if size == 8 {
            let low = self.read_indexed(frame, at, 4, fits);
            let behind = self.code.binary_const(Add, at, 4);
            let high = self.read_indexed(frame, behind, 4, fits);
            return Ok(self.scalar(Interval::ANY, low, high));
        }
        let low = self.read_indexed(frame, at, size, fits);
        Ok(self.scalar32(Interval::of_width(size), low))
    }

    /// Reads up to four bytes of an indexed frame.
    fn read_indexed(&mut self, frame: u16, at: Id, size: u32, fits: bool) -> Id {
        if !fits {
            let mut all = self.code.constant(0);
            for byte in 0..size {
                let at = self.code.binary_const(Add, at, byte);
                let part = self.read_indexed(frame, at, 1, true);
                let part = self.code.binary_const(Shl, part, 8 * byte);
                all = self.code.binary(Or, all, part);
            }
            return all;
        }
        let word = self.code.binary_const(Shr, at, 2);
        let all = self.code.add(Op::LoadIndexed { frame, word });
        if size == 4 {
            return all;
        }
        let shift = self.code.binary_const(And, at, 3);
        let shift = self.code.binary_const(Shl, shift, 3);
        let part = self.code.binary(Shr, all, shift);
        self.code.binary_const(And, part, (1 << (8 * size)) - 1)
    }

    pub(super) fn store_record(&mut self, to: Value, off: i64, size: u32, value: Value) -> Result<()> {
        let (frame, at, fits) = self.check_record_access(to, off, size)?;
        if size == 8 {
            self.write_indexed(frame, at, 4, value.low, fits);
            let behind = self.code.binary_const(Add, at, 4);
            self.write_indexed(frame, behind, 4, value.high, fits);
        } else {
            self.write_indexed(frame, at, size, value.low, fits);
        }
        Ok(())
    }

    /// Writes up to four bytes of an indexed frame.
    fn write_indexed(&mut self, frame: u16, at: Id, size: u32, value: Id, fits: bool) {
        if !fits {
            for byte in 0..size {
                let (at, value) = (self.code.binary_const(Add, at, byte), self.code.binary_const(Shr, value, 8 * byte));
                self.write_indexed(frame, at, 1, value, true);
            }
            return;
        }
        let word = self.code.binary_const(Shr, at, 2);
        if size == 4 {
            self.code.add(Op::StoreIndexed { frame, word, value });
            return;
        }
        let mask = self.code.constant((1 << (8 * size)) - 1);
        let shift = self.code.binary_const(And, at, 3);
        let shift = self.code.binary_const(Shl, shift, 3);
        let (new, hole) = (self.code.binary(And, value, mask), self.code.binary(Shl, mask, shift));
        let (new, hole) = (self.code.binary(Shl, new, shift), self.code.binary_const(Xor, hole, u32::MAX));
        let old = self.code.add(Op::LoadIndexed { frame, word });
        let old = self.code.binary(And, old, hole);
        let value = self.code.binary(Or, old, new);
        self.code.add(Op::StoreIndexed { frame, word, value });
    }
}
