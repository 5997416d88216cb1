//! Packet accesses. What the program has not compared with the packet's end is checked at run time.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::{ANONYMOUS, PACKET_START, RegType};
use crate::analysis::domain::state::Value;
use crate::ir::BinaryOp::*;
use crate::ir::Id;

impl BlockInterpreter<'_, '_> {
    /// Offset of an access from the packet's first byte; aborts the packet at run time if the
    /// access is not proven to lie in it and does not.
    pub(super) fn check_packet_access(&mut self, pointer: Value, off: i64, size: u32) -> Result<Id> {
        let RegType::Packet { name, off: base, floor, .. } = pointer.ty else {
            unreachable!("the caller has looked");
        };
        self.trap_null(pointer, "the pointer is NULL");
        let end = base + off + i64::from(size);
        let known = match name {
            PACKET_START => i64::from(self.state.proven_length),
            ANONYMOUS => 0,
            _ => self.state.extents.get(&name).copied().map_or(0, i64::from),
        };
        let at = self.code.binary_const(Add, pointer.low, off as u32);
        if floor + off >= 0 && end <= known {
            return Ok(at);
        }
        let length = self.packet_length();
        let beyond = match self.code.as_constant(at) {
            // An offset in front of the packet is a large unsigned number.
            Some(at) if at > u32::MAX - size => self.code.boolean(true),
            Some(at) => {
                let end = self.code.constant(at + size);
                self.code.binary(Lt, length, end)
            }
            None => {
                let size = self.code.constant(size);
                let short = self.code.binary(Lt, length, size);
                let last = self.code.binary(Sub, length, size);
                let far = self.code.binary(Lt, last, at);
                self.code.binary(LogicalOr, short, far)
            }
        };
        self.trap(beyond, "the packet is not so long");
        Ok(at)
    }

    pub(super) fn load_packet(&mut self, at: Id, size: u32) -> Value {
        match size {
            8 => {
                let low = self.code.load_packet(at, 4);
                let behind = self.code.binary_const(Add, at, 4);
                let high = self.code.load_packet(behind, 4);
                self.scalar(Interval::ANY, low, high)
            }
            _ => {
                let low = self.code.load_packet(at, size);
                self.scalar32(Interval::of_width(size), low)
            }
        }
    }

    pub(super) fn store_packet(&mut self, at: Id, size: u32, value: Value) {
        if size == 8 {
            self.code.store_packet(at, 4, value.low);
            let behind = self.code.binary_const(Add, at, 4);
            self.code.store_packet(behind, 4, value.high);
        } else {
            self.code.store_packet(at, size, value.low);
        }
    }
}
