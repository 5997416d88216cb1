//! Records that are reserved for a ring buffer: memory of the packet's own until they are handed over, so that what a packet
//! does with one depends on nobody else.

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{STACKS, Ty, Value};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Id, Op};

/// The number that a record goes by among frames that are memory.
pub(crate) fn frame_of(record: u16) -> u16 {
    STACKS as u16 + record
}

impl Walk<'_, '_> {
    /// Where an access of a record begins, and whether that is in one word for certain, or in each half of its own; it lies in
    /// the record, or the packet has been aborted.
    fn in_record(&mut self, pointer: Value, off: i64, size: u32) -> Result<(u16, Id, bool)> {
        let Ty::Record { record, off: base, .. } = pointer.ty else { unreachable!("the caller has looked") };
        let length = i64::from(self.shared.events.records()[usize::from(record)].bytes);
        self.trap_null(pointer, "the pointer to a reserved record is NULL");
        let (low, high) = (base.low.saturating_add(off), base.high.saturating_add(off) + i64::from(size));
        if high <= 0 || low >= length || (base.exact().is_some() && (low < 0 || high > length)) {
            return self.refuse(format!("the record has {length} bytes, and is accessed at offset {low}"));
        }
        let at = self.code.by(Add, pointer.low, off as u32);
        if low < 0 || high > length {
            let last = self.code.known((length - i64::from(size)).max(0) as u32);
            let beyond = if length < i64::from(size) { self.code.truth(true) } else { self.code.binary(Lt, last, at) };
            self.trap(beyond, "the record is not so long");
        }
        Ok((frame_of(record), at, base.are_multiples(size.min(4), off)))
    }

    pub(super) fn load_record(&mut self, from: Value, off: i64, size: u32) -> Result<Value> {
        let (frame, at, fits) = self.in_record(from, off, size)?;
        if size == 8 {
            let low = self.recalled(frame, at, 4, fits);
            let behind = self.code.by(Add, at, 4);
            let high = self.recalled(frame, behind, 4, fits);
            return Ok(self.number(Range::ANY, low, high));
        }
        let low = self.recalled(frame, at, size, fits);
        Ok(self.word(Range::of_bytes(size), low))
    }

    /// Up to four bytes.
    fn recalled(&mut self, frame: u16, at: Id, size: u32, fits: bool) -> Id {
        if !fits {
            let mut all = self.code.known(0);
            for byte in 0..size {
                let at = self.code.by(Add, at, byte);
                let part = self.recalled(frame, at, 1, true);
                let part = self.code.by(Shl, part, 8 * byte);
                all = self.code.binary(Or, all, part);
            }
            return all;
        }
        let word = self.code.by(Shr, at, 2);
        let all = self.code.add(Op::Recall { frame, word });
        if size == 4 {
            return all;
        }
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let part = self.code.binary(Shr, all, shift);
        self.code.by(And, part, (1 << (8 * size)) - 1)
    }

    pub(super) fn store_record(&mut self, to: Value, off: i64, size: u32, value: Value) -> Result<()> {
        let (frame, at, fits) = self.in_record(to, off, size)?;
        if size == 8 {
            self.kept(frame, at, 4, value.low, fits);
            let behind = self.code.by(Add, at, 4);
            self.kept(frame, behind, 4, value.high, fits);
        } else {
            self.kept(frame, at, size, value.low, fits);
        }
        Ok(())
    }

    fn kept(&mut self, frame: u16, at: Id, size: u32, value: Id, fits: bool) {
        if !fits {
            for byte in 0..size {
                let (at, value) = (self.code.by(Add, at, byte), self.code.by(Shr, value, 8 * byte));
                self.kept(frame, at, 1, value, true);
            }
            return;
        }
        let word = self.code.by(Shr, at, 2);
        if size == 4 {
            self.code.add(Op::Keep { frame, word, value });
            return;
        }
        let mask = self.code.known((1 << (8 * size)) - 1);
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let (new, hole) = (self.code.binary(And, value, mask), self.code.binary(Shl, mask, shift));
        let (new, hole) = (self.code.binary(Shl, new, shift), self.code.by(Xor, hole, u32::MAX));
        let old = self.code.add(Op::Recall { frame, word });
        let old = self.code.binary(And, old, hole);
        let value = self.code.binary(Or, old, new);
        self.code.add(Op::Keep { frame, word, value });
    }
}
