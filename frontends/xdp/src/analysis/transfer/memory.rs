//! Loads and stores, by what the pointer points into.

use super::buffer_helpers::pieces;
use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{FIXED, Ty, Value};
use crate::lower::ir::Binary::*;
use crate::lower::ir::Id;

impl Walk<'_, '_> {
    pub(super) fn load(&mut self, from: Value, off: i64, size: u32) -> Result<Value> {
        match from.ty {
            Ty::Context(base) => self.context(base.saturating_add(off), size),
            Ty::Packet { .. } => {
                let at = self.in_packet(from, off, size)?;
                Ok(self.load_packet(at, size))
            }
            Ty::Stack { frame, off: base } => self.load_stack(frame, base, from.low, off, size),
            Ty::Value { .. } => self.load_value(from, off, size),
            Ty::Record { .. } => self.load_record(from, off, size),
            other => {
                let what = other.words();
                self.refuse(format!("memory is read through r{}, which is {what}", self.instruction().src))
            }
        }
    }

    pub(super) fn store(&mut self, to: Value, off: i64, size: u32, value: Value) -> Result<()> {
        if size < 8 && value.ty.is_pointer() && !matches!(to.ty, Ty::Stack { .. }) {
            // A part of an address says nothing here, and the kernel refuses it too.
            return self.refuse("a part of a pointer is stored");
        }
        match to.ty {
            Ty::Packet { .. } => {
                self.expect_number(value, "what is stored in the packet")?;
                let at = self.in_packet(to, off, size)?;
                self.store_packet(at, size, value);
                Ok(())
            }
            Ty::Stack { frame, off: base } => self.store_stack(frame, base, to.low, off, size, value),
            Ty::Value { .. } => {
                self.expect_number(value, "what is stored in a map")?;
                self.store_value(to, off, size, value)
            }
            Ty::Record { .. } => {
                self.expect_number(value, "what is stored in a record")?;
                self.store_record(to, off, size, value)
            }
            Ty::Context(_) => self.refuse("the context is written to"),
            other => {
                let what = other.words();
                self.refuse(format!("memory is written through r{}, which is {what}", self.instruction().dst))
            }
        }
    }

    /// `struct xdp_md`, linux/bpf.h.
    fn context(&mut self, at: i64, size: u32) -> Result<Value> {
        if size != 4 {
            return self.refuse(format!("{size} bytes of the context are read at once, and its members have 4"));
        }
        let packet = Ty::Packet { name: FIXED, off: 0, floor: 0, nullable: false };
        let mut value = match at {
            // data, data_end, data_meta
            0 => Value::of(packet),
            4 => Value::of(Ty::End),
            8 => return self.metadata(),
            // ingress_ifindex
            12 => {
                use crate::lower::ir::{Argument, Effect};
                let port = self.code.call("pkt_port", vec![Argument::Packet], Effect::Reads);
                return Ok(self.word(Range::WORD, port));
            }
            // rx_queue_index
            16 => return Ok(self.constant(0)),
            20 => {
                let what = "egress_ifindex is read, which only programs of a devmap have";
                return self.lack(what, "programs in the entries of devmaps and cpumaps");
            }
            _ => return self.refuse(format!("the context is read at offset {at}, where it has no member")),
        };
        self.wake(&mut value, super::NO_VARS);
        Ok(value)
    }

    /// Bytes at a pointer as words, the first byte the lowest of the first: what helpers take keys and values as. Behind the
    /// last byte there are zeros.
    pub(super) fn words(&mut self, from: Value, bytes: u32, what: &str) -> Result<Vec<Id>> {
        let mut words = Vec::new();
        for at in (0..bytes).step_by(4) {
            words.push(self.bytes(from, i64::from(at), (bytes - at).min(4), what)?);
        }
        Ok(words)
    }

    /// Four bytes of two words, from so many bits of the first on. Where these are none the second counts for nothing.
    pub(super) fn across(&mut self, word: Id, next: Id, shift: Id) -> Id {
        let low = self.code.binary(Shr, word, shift);
        let up = self.code.known(31);
        let up = self.code.binary(Sub, up, shift);
        let high = self.code.binary(Shl, next, up);
        let high = self.code.by(Shl, high, 1);
        self.code.binary(Or, low, high)
    }

    /// Up to four bytes as a word.
    fn bytes(&mut self, from: Value, off: i64, count: u32, what: &str) -> Result<Id> {
        if let Ty::Stack { frame, off: base } = from.ty {
            let all = match base.exact() {
                Some(base) => self.stack_word(frame, base + off, count)?,
                None => self.stack_word_somewhere(frame, base, from.low, off, count)?,
            };
            return Ok(self.code.by(And, all, u32::MAX >> (32 - 8 * count)));
        }
        let mut word = self.code.known(0);
        for &(at, size) in pieces(count) {
            let piece = match from.ty {
                Ty::Packet { .. } | Ty::Value { .. } | Ty::Record { .. } => {
                    self.load(from, off + i64::from(at), size)?.low
                }
                other => {
                    let given = other.words();
                    return self.refuse(format!("{what} is at {given}, and a pointer to memory is needed"));
                }
            };
            let piece = self.code.by(Shl, piece, 8 * at);
            word = self.code.binary(Or, word, piece);
        }
        Ok(word)
    }
}
