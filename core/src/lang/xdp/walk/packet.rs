//! Accesses of the packet. What the program has not compared with the packet's end is checked as it runs.

use super::{Result, Walk};
use crate::lang::xdp::code::Binary::*;
use crate::lang::xdp::code::{Argument, Effect, Id, Op};
use crate::lang::xdp::range::Range;
use crate::lang::xdp::types::{FIXED, NOBODY, Ty, Value};

impl Walk<'_, '_> {
    /// Where an access of the packet begins, as an offset from its first byte; it lies in the packet, or the packet has been
    /// aborted.
    pub(super) fn in_packet(&mut self, pointer: Value, off: i64, size: u32) -> Result<Id> {
        let Ty::Packet { name, off: base, floor, nullable } = pointer.ty else {
            unreachable!("the caller has looked");
        };
        if nullable {
            let null = self.code.by(Eq, pointer.high, 0);
            self.trap(null, "the pointer is NULL");
        }
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
                let low = self.load_word(at, 4);
                let behind = self.code.by(Add, at, 4);
                let high = self.load_word(behind, 4);
                self.number(Range::ANY, low, high)
            }
            _ => {
                let low = self.load_word(at, size);
                self.word(Range::of_bytes(size), low)
            }
        }
    }

    fn load_word(&mut self, at: Id, size: u32) -> Id {
        let load =
            |walk: &mut Self, name| walk.code.call(name, vec![Argument::Packet, Argument::One(at)], Effect::Reads);
        let (little, big) = match size {
            1 => return load(self, "load_u8"),
            2 => ("load_le16", "load_be16"),
            _ => ("load_le32", "load_be32"),
        };
        let (id, twin) = (load(self, little), load(self, big));
        // What is exchanged behind the load is another load, and nobody asks for this one.
        self.code.twins.insert(id, (twin, size));
        id
    }

    pub(super) fn store_packet(&mut self, at: Id, size: u32, value: Value) {
        if size == 8 {
            self.store_word(at, 4, value.low);
            let behind = self.code.by(Add, at, 4);
            self.store_word(behind, 4, value.high);
        } else {
            self.store_word(at, size, value.low);
        }
    }

    fn store_word(&mut self, at: Id, size: u32, value: Id) {
        let (little, big) = match size {
            1 => ("store_u8", None),
            2 => ("store_le16", Some("store_be16")),
            _ => ("store_le32", Some("store_be32")),
        };
        let turned = match (&self.code.ops[value as usize], size) {
            (Op::Swap16(inner), 2) | (Op::Swap32(inner), 4) => Some(*inner),
            _ => None,
        };
        let (name, value) = match (turned, big) {
            (Some(inner), Some(big)) => (big, inner),
            _ => (little, value),
        };
        let arguments = vec![Argument::Packet, Argument::One(at), Argument::One(value)];
        self.code.call(name, arguments, Effect::Writes);
    }
}
