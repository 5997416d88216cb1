//! Accesses of the packet. What the program has not compared with the packet's end is checked as it runs.

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{FIXED, NOBODY, Ty, Value};
use crate::lower::ir::Binary::*;
use crate::lower::ir::Id;

impl Walk<'_, '_> {
    /// Where an access of the packet begins, as an offset from its first byte; it lies in the packet, or the packet has been
    /// aborted.
    pub(super) fn in_packet(&mut self, pointer: Value, off: i64, size: u32) -> Result<Id> {
        let Ty::Packet { name, off: base, floor, .. } = pointer.ty else {
            unreachable!("the caller has looked");
        };
        self.trap_null(pointer, "the pointer is NULL");
        let end = base + off + i64::from(size);
        let known = match name {
            FIXED => i64::from(self.state.length),
            NOBODY => 0,
            _ => self.state.extents.get(&name).copied().map_or(0, i64::from),
        };
        let at = self.code.by(Add, pointer.low, off as u32);
        if floor + off >= 0 && end <= known {
            return Ok(at);
        }
        let length = self.length();
        let beyond = match self.code.value(at) {
            // An offset in front of the packet is a large one.
            Some(at) if at > u32::MAX - size => self.code.truth(true),
            Some(at) => {
                let end = self.code.known(at + size);
                self.code.binary(Lt, length, end)
            }
            None => {
                let size = self.code.known(size);
                let short = self.code.binary(Lt, length, size);
                let last = self.code.binary(Sub, length, size);
                let far = self.code.binary(Lt, last, at);
                self.code.binary(Either, short, far)
            }
        };
        self.trap(beyond, "the packet is not so long");
        Ok(at)
    }

    pub(super) fn load_packet(&mut self, at: Id, size: u32) -> Value {
        match size {
            8 => {
                let low = self.code.load_packet(at, 4);
                let behind = self.code.by(Add, at, 4);
                let high = self.code.load_packet(behind, 4);
                self.number(Range::ANY, low, high)
            }
            _ => {
                let low = self.code.load_packet(at, size);
                self.word(Range::of_bytes(size), low)
            }
        }
    }

    pub(super) fn store_packet(&mut self, at: Id, size: u32, value: Value) {
        if size == 8 {
            self.code.store_packet(at, 4, value.low);
            let behind = self.code.by(Add, at, 4);
            self.code.store_packet(behind, 4, value.high);
        } else {
            self.code.store_packet(at, size, value.low);
        }
    }
}
