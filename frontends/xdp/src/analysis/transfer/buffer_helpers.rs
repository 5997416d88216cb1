//! Helpers that checksum or copy a buffer whose size is known to be bounded only (`ARG_CONST_SIZE`
//! of the verifier, which need not be constant).

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::Value;
use crate::errno::{EFAULT, EINVAL};
use crate::ir::BinaryOp::*;
use crate::ir::{Argument, Effect, Id};

/// Maximum size of a buffer, in bytes.
const MAX_BYTES: u64 = 512;

/// Size of a buffer: its IR value, and bounds that are proven.
#[derive(Clone, Copy)]
struct ByteCount {
    number: Id,
    min: u32,
    max: u32,
}

impl BlockInterpreter<'_, '_> {
    fn byte_count(&mut self, number: Value, feature: &'static str) -> Result<ByteCount> {
        let range = self.expect_scalar(number, "the number of bytes")?;
        if range.high > MAX_BYTES {
            let what = if range.as_constant().is_some() { "is" } else { "may be" };
            let name = self.helper_name();
            let what = format!("{name} is called for a number of bytes that {what} above {MAX_BYTES}");
            return self.reject_unsupported(what, feature);
        }
        Ok(ByteCount { number: number.low, min: range.low as u32, max: range.high as u32 })
    }

    /// Mask of the bits, in the word that starts at byte `at`, that are within the buffer. Bytes
    /// past [`ByteCount::max`] do not matter, so a word that ends there is whole.
    fn byte_mask(&mut self, count: ByteCount, at: u32) -> Id {
        if count.min >= count.max.min(at + 4) {
            return self.code.constant(u32::MAX);
        }
        let at = self.code.constant(at);
        self.code.call_values("x_counting", &[count.number, at], Effect::None)
    }

    /// The words of a buffer, with zeros past its size.
    fn masked_words(&mut self, from: Value, count: ByteCount, what: &str) -> Result<Vec<Id>> {
        // The verifier, too, requires the maximum size to be readable.
        let mut words = self.load_words(from, count.max, what)?;
        for (at, word) in (0..).step_by(4).zip(&mut words) {
            let mask = self.byte_mask(count, at);
            *word = self.code.binary(And, *word, mask);
        }
        Ok(words)
    }

    /// `bpf_csum_diff(from, from_size, to, to_size, seed)`: the folded one's complement sum of `to`
    /// minus that of `from`. Since Linux 6.13 the result has 16 bits and buffers may have any size.
    pub(super) fn csum_diff(&mut self) -> Result<Value> {
        let (from, from_size, to, to_size, seed) = (
            self.read_register(1)?,
            self.read_register(2)?,
            self.read_register(3)?,
            self.read_register(4)?,
            self.read_register(5)?,
        );
        self.expect_scalar(seed, "the seed")?;
        let feature = "bpf_csum_diff of any size";
        let (was, is) = (self.byte_count(from_size, feature)?, self.byte_count(to_size, feature)?);
        // Follow the kernel's order of operations, which decides between the zeros 0 and 0xffff.
        let sum = match (was.max, is.max) {
            (0, 0) => seed.low,
            (0, _) => self.add_sum(to, is, seed.low)?,
            (_, 0) => self.subtract_sum(from, was, seed.low)?,
            _ => {
                let zero = self.code.constant(0);
                let (new, old) = (self.add_sum(to, is, seed.low)?, self.add_sum(from, was, zero)?);
                let old = self.code.binary_const(Xor, old, u32::MAX);
                let both = self.code.call_values("csum_add", &[new, old], Effect::None);
                // A size may turn out to be zero at run time.
                let no_old = self.is_empty(was);
                let no_new = self.is_empty(is);
                let without = if is.min > 0 { both } else { self.subtract_sum(from, was, seed.low)? };
                let some = self.code.select(no_new, without, both);
                self.code.select(no_old, new, some)
            }
        };
        let sum = self.code.call_values("csum_fold", &[sum], Effect::None);
        Ok(self.scalar32(Interval::new(0, 0xffff), sum))
    }

    fn is_empty(&mut self, count: ByteCount) -> Id {
        if count.min > 0 { self.code.boolean(false) } else { self.code.binary_const(Eq, count.number, 0) }
    }

    /// Subtracts the one's complement sum of a buffer from a number.
    fn subtract_sum(&mut self, pointer: Value, count: ByteCount, from: Id) -> Result<Id> {
        let from = self.code.binary_const(Xor, from, u32::MAX);
        let sum = self.add_sum(pointer, count, from)?;
        Ok(self.code.binary_const(Xor, sum, u32::MAX))
    }

    /// Adds the one's complement sum of a buffer, padded with zeros, to a number.
    fn add_sum(&mut self, pointer: Value, count: ByteCount, mut sum: Id) -> Result<Id> {
        for word in self.masked_words(pointer, count, "the checksummed buffer")? {
            sum = self.code.call_values("csum_add", &[sum, word], Effect::None);
        }
        Ok(sum)
    }

    /// Offset in the packet, whether the range lies in it, and size, for a helper that copies
    /// bytes.
    fn packet_range(&mut self) -> Result<(Id, Id, ByteCount)> {
        let (off, number) = (self.read_register(2)?, self.read_register(4)?);
        self.expect_scalar(off, "the offset of the copied bytes")?;
        let count = self.byte_count(number, "bpf_xdp_load_bytes and bpf_xdp_store_bytes of any length")?;
        let length = self.packet_length();
        let short = self.code.binary(Lt, length, count.number);
        let last = self.code.binary(Sub, length, count.number);
        let far = self.code.binary(Lt, last, off.low);
        let outside = self.code.binary(LogicalOr, short, far);
        let inside = self.code.not(outside);
        Ok((off.low, inside, count))
    }

    /// `bpf_xdp_load_bytes(ctx, off, buffer, length)`
    pub(super) fn load_bytes(&mut self) -> Result<Value> {
        let (off, inside, count) = self.packet_range()?;
        let buffer = self.read_register(3)?;
        let stack = match buffer.ty {
            RegType::RingRecord { .. } | RegType::MapValue { .. } => None,
            RegType::Stack { frame, off } => match off.as_constant() {
                Some(off) => Some((frame, off)),
                None => {
                    let what = "bytes of the packet are copied to the stack at an unknown offset";
                    return self.reject_unsupported(what, "bpf_xdp_load_bytes to any place of the stack");
                }
            },
            other => {
                let what = other.describe();
                return self.reject(format!(
                    "bytes of the packet can be copied to the stack, a map's value or a record, not to {what}"
                ));
            }
        };
        let mut words = Vec::new();
        for at in (0..count.max).step_by(4) {
            let size = (count.max - at).min(4);
            let new = self.load_packet_bytes(off, at, size, count);
            let mask = self.byte_mask(count, at);
            if let Some((frame, base)) = stack {
                let old = self.load_unaligned(frame, base + i64::from(at), size)?;
                words.push(self.merge_bits(old, new, (inside, mask)));
                continue;
            }
            for &(from, size) in split_access(size) {
                let place = (i64::from(at + from), size);
                let (new, mask) =
                    (self.code.binary_const(Shr, new, 8 * from), self.code.binary_const(Shr, mask, 8 * from));
                if let RegType::MapValue { .. } = buffer.ty {
                    self.store_value_masked(buffer, place, new, (inside, mask))?;
                } else {
                    let old = self.load_record(buffer, place.0, size)?.low;
                    let part = self.merge_bits(old, new, (inside, mask));
                    let part = self.scalar32(Interval::U32, part);
                    self.store_record(buffer, place.0, size, part)?;
                }
            }
        }
        if let Some((frame, base)) = stack {
            self.store_stack_bytes(frame, base, count.max, &words)?;
        }
        Ok(self.copy_result(off, inside))
    }

    /// Up to four bytes of the packet, from byte `at` of the copied range on.
    fn load_packet_bytes(&mut self, off: Id, at: u32, size: u32, count: ByteCount) -> Id {
        if count.min < count.max {
            // The packet may end right after the last byte that counts.
            let at = self.code.binary_const(Add, off, at);
            return self.code.call("x_bytes", vec![Argument::Packet, Argument::Value(at)], Effect::Reads);
        }
        let mut word = self.code.constant(0);
        for &(from, size) in split_access(size) {
            let at = self.code.binary_const(Add, off, at + from);
            let piece = self.load_packet(at, size).low;
            let piece = self.code.binary_const(Shl, piece, 8 * from);
            word = self.code.binary(Or, word, piece);
        }
        word
    }

    /// The bits of `new` where the mask is set, if the condition holds, else `old`.
    pub(super) fn merge_bits(&mut self, old: Id, new: Id, (condition, mask): (Id, Id)) -> Id {
        let rest = self.code.binary_const(Xor, mask, u32::MAX);
        let (rest, new) = (self.code.binary(And, old, rest), self.code.binary(And, new, mask));
        let mixed = self.code.binary(Or, new, rest);
        self.code.select(condition, mixed, old)
    }

    /// `bpf_xdp_store_bytes(ctx, off, buffer, length)`
    pub(super) fn store_bytes(&mut self) -> Result<Value> {
        let (off, inside, count) = self.packet_range()?;
        let buffer = self.read_register(3)?;
        let words = self.load_words(buffer, count.max, "the buffer copied into the packet")?;
        // All bytes or none: a store far beyond the end does nothing.
        let nowhere = self.code.constant(1 << 31);
        let to = self.code.select(inside, off, nowhere);
        for (at, word) in (0..).step_by(4).zip(words) {
            let size = (count.max - at).min(4);
            if count.min < at + size {
                let (to, at) = (self.code.binary_const(Add, to, at), self.code.constant(at));
                let arguments = [to, word, count.number, at].map(Argument::Value);
                let arguments = [Argument::Packet].into_iter().chain(arguments).collect();
                self.code.call("x_store_counting", arguments, Effect::Writes);
                continue;
            }
            for &(from, size) in split_access(size) {
                let to = self.code.binary_const(Add, to, at + from);
                let part = self.code.binary_const(Shr, word, 8 * from);
                let part = self.scalar32(Interval::U32, part);
                self.store_packet(to, size, part);
            }
        }
        Ok(self.copy_result(off, inside))
    }

    /// Result of a helper that copies bytes. An offset of more than 16 bits is -EFAULT
    /// (`bpf_xdp_pointer`, net/core/filter.c).
    fn copy_result(&mut self, off: Id, inside: Id) -> Value {
        let max = self.code.constant(0xffff);
        let is_offset = self.code.binary(Le, off, max);
        self.first_error(&[(is_offset, EFAULT), (inside, EINVAL)])
    }
}

/// Splits up to four bytes into naturally sized accesses: offset and size of each.
pub(super) fn split_access(size: u32) -> &'static [(u32, u32)] {
    match size {
        4.. => &[(0, 4)],
        3 => &[(0, 2), (2, 1)],
        2 => &[(0, 2)],
        _ => &[(0, 1)],
    }
}
