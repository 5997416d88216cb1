//! Loads and stores, dispatched on the type of the pointer.

use super::buffer_helpers::split_access;
use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::{PACKET_START, RegType};
use crate::analysis::domain::state::Value;
use crate::ir::BinaryOp::*;
use crate::ir::Id;

impl BlockInterpreter<'_, '_> {
    pub(super) fn load(&mut self, from: Value, off: i64, size: u32) -> Result<Value> {
        match from.ty {
            RegType::Context(base) => self.load_context(base.saturating_add(off), size),
            RegType::Packet { .. } => {
                let at = self.check_packet_access(from, off, size)?;
                Ok(self.load_packet(at, size))
            }
            RegType::Stack { frame, off: base } => self.load_stack(frame, base, from.low, off, size),
            RegType::MapValue { .. } => self.load_value(from, off, size),
            RegType::RingRecord { .. } => self.load_record(from, off, size),
            other => {
                let what = other.describe();
                self.reject(format!("memory is read through r{}, which is {what}", self.instruction().src))
            }
        }
    }

    pub(super) fn store(&mut self, to: Value, off: i64, size: u32, value: Value) -> Result<()> {
        if size < 8 && value.ty.is_pointer() && !matches!(to.ty, RegType::Stack { .. }) {
            // Part of an address is meaningless here, and the verifier rejects it too.
            return self.reject("a part of a pointer is stored");
        }
        match to.ty {
            RegType::Packet { .. } => {
                self.expect_scalar(value, "the value stored in the packet")?;
                let at = self.check_packet_access(to, off, size)?;
                self.store_packet(at, size, value);
                Ok(())
            }
            RegType::Stack { frame, off: base } => self.store_stack(frame, base, to.low, off, size, value),
            RegType::MapValue { .. } => {
                self.expect_scalar(value, "the value stored in a map")?;
                self.store_value(to, off, size, value)
            }
            RegType::RingRecord { .. } => {
                self.expect_scalar(value, "the value stored in a record")?;
                self.store_record(to, off, size, value)
            }
            RegType::Context(_) => self.reject("the context is written to"),
            other => {
                let what = other.describe();
                self.reject(format!("memory is written through r{}, which is {what}", self.instruction().dst))
            }
        }
    }

    /// Loads a field of `struct xdp_md` (linux/bpf.h).
    fn load_context(&mut self, at: i64, size: u32) -> Result<Value> {
        if size != 4 {
            return self.reject(format!("{size} bytes of the context are read at once; its members have 4"));
        }
        let packet = RegType::Packet { name: PACKET_START, off: 0, floor: 0, nullable: false };
        let mut value = match at {
            // data, data_end, data_meta
            0 => Value::of(packet),
            4 => Value::of(RegType::PacketEnd),
            8 => return self.metadata_pointer(),
            // ingress_ifindex
            12 => {
                use crate::ir::{Argument, Effect};
                let port = self.code.call("pkt_port", vec![Argument::Packet], Effect::Reads);
                return Ok(self.scalar32(Interval::U32, port));
            }
            // rx_queue_index
            16 => return Ok(self.constant(0)),
            20 => {
                let what = "egress_ifindex is read, which exists only in devmap programs";
                return self.reject_unsupported(what, "programs in the entries of devmaps and cpumaps");
            }
            _ => return self.reject(format!("the context is read at offset {at}, where it has no member")),
        };
        self.materialize(&mut value, super::NO_VARIABLES);
        Ok(value)
    }

    /// Loads bytes as little-endian words, as helpers take keys and values. The last word is padded
    /// with zeros.
    pub(super) fn load_words(&mut self, from: Value, bytes: u32, what: &str) -> Result<Vec<Id>> {
        let mut words = Vec::new();
        for at in (0..bytes).step_by(4) {
            words.push(self.load_partial_word(from, i64::from(at), (bytes - at).min(4), what)?);
        }
        Ok(words)
    }

    /// Bits `shift` to `shift + 31` of two consecutive words. For a shift of zero the second word
    /// does not matter.
    pub(super) fn funnel_shift(&mut self, word: Id, next: Id, shift: Id) -> Id {
        let low = self.code.binary(Shr, word, shift);
        let up = self.code.constant(31);
        let up = self.code.binary(Sub, up, shift);
        let high = self.code.binary(Shl, next, up);
        let high = self.code.binary_const(Shl, high, 1);
        self.code.binary(Or, low, high)
    }

    /// Loads up to four bytes as a word.
    fn load_partial_word(&mut self, from: Value, off: i64, count: u32, what: &str) -> Result<Id> {
        if let RegType::Stack { frame, off: base } = from.ty {
            let all = match base.as_constant() {
                Some(base) => self.load_unaligned(frame, base + off, count)?,
                None => self.load_indexed_unaligned(frame, base, from.low, off, count)?,
            };
            return Ok(self.code.binary_const(And, all, u32::MAX >> (32 - 8 * count)));
        }
        let mut word = self.code.constant(0);
        for &(at, size) in split_access(count) {
            let piece = match from.ty {
                RegType::Packet { .. } | RegType::MapValue { .. } | RegType::RingRecord { .. } => {
                    self.load(from, off + i64::from(at), size)?.low
                }
                other => {
                    let given = other.describe();
                    return self.reject(format!("{what} must be in memory, and is at {given}"));
                }
            };
            let piece = self.code.binary_const(Shl, piece, 8 * at);
            word = self.code.binary(Or, word, piece);
        }
        Ok(word)
    }
}
