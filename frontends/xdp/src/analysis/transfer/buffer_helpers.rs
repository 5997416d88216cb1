//! Helpers that sum bytes up or copy them: as many as they are told, of which it may be known only how many there are at most
//! (`ARG_CONST_SIZE` of the kernel's verifier, which is no constant).

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{Ty, Value};
use crate::errno::{EFAULT, EINVAL};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Argument, Effect, Id};

/// The most that a helper copies at once here, in bytes.
const MOST_BYTES: u64 = 512;

/// How many bytes a helper is told of.
#[derive(Clone, Copy)]
struct Count {
    number: Id,
    least: u32,
    most: u32,
}

impl Walk<'_, '_> {
    fn count(&mut self, number: Value, feature: &'static str) -> Result<Count> {
        let range = self.expect_number(number, "how many bytes there are")?;
        if range.high > MOST_BYTES {
            let what = if range.exact().is_some() { "is" } else { "may be" };
            let name = self.helper_name();
            let what = format!("{name} is called for a number of bytes that {what} above {MOST_BYTES}");
            return self.lack(what, feature);
        }
        Ok(Count { number: number.low, least: range.low as u32, most: range.high as u32 })
    }

    /// Which bits count of the word that begins with a byte; of which nothing counts behind [`Count::most`], so that it is all of
    /// them where that is known to be there.
    fn counting(&mut self, count: Count, at: u32) -> Id {
        if count.least >= count.most.min(at + 4) {
            return self.code.known(u32::MAX);
        }
        let at = self.code.known(at);
        self.code.call_with("x_counting", &[count.number, at], Effect::None)
    }

    /// Bytes at a pointer as words, with zeros behind those that count.
    fn counted(&mut self, from: Value, count: Count, what: &str) -> Result<Vec<Id>> {
        // The kernel, too, has all of them that there may be in memory that the program may read.
        let mut words = self.words(from, count.most, what)?;
        for (at, word) in (0..).step_by(4).zip(&mut words) {
            let mask = self.counting(count, at);
            *word = self.code.binary(And, *word, mask);
        }
        Ok(words)
    }

    /// One's complement sum of what is there less what was, folded: since Linux 6.13 it gives no more than 16 bits, and takes any
    /// number of bytes.
    pub(super) fn csum_diff(&mut self) -> Result<Value> {
        let (from, from_size, to, to_size, seed) =
            (self.get(1)?, self.get(2)?, self.get(3)?, self.get(4)?, self.get(5)?);
        self.expect_number(seed, "the seed")?;
        let feature = "bpf_csum_diff of any size";
        let (was, is) = (self.count(from_size, feature)?, self.count(to_size, feature)?);
        // As the kernel sums it up, so that zero is 0 or 0xffff where it is there.
        let sum = match (was.most, is.most) {
            (0, 0) => seed.low,
            (0, _) => self.summed(to, is, seed.low)?,
            (_, 0) => self.without(from, was, seed.low)?,
            _ => {
                let zero = self.code.known(0);
                let (new, old) = (self.summed(to, is, seed.low)?, self.summed(from, was, zero)?);
                let old = self.code.by(Xor, old, u32::MAX);
                let both = self.code.call_with("csum_add", &[new, old], Effect::None);
                // One of them may turn out to be none.
                let no_old = self.is_none(was);
                let no_new = self.is_none(is);
                let without = if is.least > 0 { both } else { self.without(from, was, seed.low)? };
                let some = self.code.select(no_new, without, both);
                self.code.select(no_old, new, some)
            }
        };
        let sum = self.code.call_with("csum_fold", &[sum], Effect::None);
        Ok(self.word(Range::new(0, 0xffff), sum))
    }

    fn is_none(&mut self, count: Count) -> Id {
        if count.least > 0 { self.code.truth(false) } else { self.code.by(Eq, count.number, 0) }
    }

    /// A number less the one's complement sum of bytes.
    fn without(&mut self, pointer: Value, count: Count, from: Id) -> Result<Id> {
        let from = self.code.by(Xor, from, u32::MAX);
        let sum = self.summed(pointer, count, from)?;
        Ok(self.code.by(Xor, sum, u32::MAX))
    }

    /// The one's complement sum of bytes, as if zeros were behind them, and of a number.
    fn summed(&mut self, pointer: Value, count: Count, mut sum: Id) -> Result<Id> {
        for word in self.counted(pointer, count, "what is summed up")? {
            sum = self.code.call_with("csum_add", &[sum, word], Effect::None);
        }
        Ok(sum)
    }

    /// Where bytes of the packet are that a helper copies, whether they are in it, and how many.
    fn copied(&mut self) -> Result<(Id, Id, Count)> {
        let (off, number) = (self.get(2)?, self.get(4)?);
        self.expect_number(off, "where bytes are copied")?;
        let count = self.count(number, "bpf_xdp_load_bytes and bpf_xdp_store_bytes of any length")?;
        let length = self.length();
        let short = self.code.binary(Lt, length, count.number);
        let last = self.code.binary(Sub, length, count.number);
        let far = self.code.binary(Lt, last, off.low);
        let outside = self.code.binary(Either, short, far);
        let inside = self.code.not(outside);
        Ok((off.low, inside, count))
    }

    /// `bpf_xdp_load_bytes(ctx, off, buffer, length)`
    pub(super) fn load_bytes(&mut self) -> Result<Value> {
        let (off, inside, count) = self.copied()?;
        let buffer = self.get(3)?;
        let stack = match buffer.ty {
            Ty::Record { .. } | Ty::Value { .. } => None,
            Ty::Stack { frame, off } => match off.exact() {
                Some(off) => Some((frame, off)),
                None => {
                    let what = "bytes of the packet are copied to the stack at an offset that is not known";
                    return self.lack(what, "bpf_xdp_load_bytes to any place of the stack");
                }
            },
            other => {
                let what = other.words();
                return self.refuse(format!(
                    "bytes of the packet are copied to {what}, and go to the stack, to a map's value or to a record"
                ));
            }
        };
        let mut words = Vec::new();
        for at in (0..count.most).step_by(4) {
            let size = (count.most - at).min(4);
            let new = self.loaded_bytes(off, at, size, count);
            let mask = self.counting(count, at);
            if let Some((frame, base)) = stack {
                let old = self.stack_word(frame, base + i64::from(at), size)?;
                words.push(self.copied_over(old, new, (inside, mask)));
                continue;
            }
            for &(from, size) in pieces(size) {
                let place = (i64::from(at + from), size);
                let (new, mask) = (self.code.by(Shr, new, 8 * from), self.code.by(Shr, mask, 8 * from));
                if let Ty::Value { .. } = buffer.ty {
                    self.store_some_of_value(buffer, place, new, (inside, mask))?;
                } else {
                    let old = self.load_record(buffer, place.0, size)?.low;
                    let part = self.copied_over(old, new, (inside, mask));
                    let part = self.word(Range::WORD, part);
                    self.store_record(buffer, place.0, size, part)?;
                }
            }
        }
        if let Some((frame, base)) = stack {
            self.set_bytes(frame, base, count.most, &words)?;
        }
        Ok(self.copied_or_not(off, inside))
    }

    /// Up to four bytes of the packet, of those that are copied from an offset on.
    fn loaded_bytes(&mut self, off: Id, at: u32, size: u32, count: Count) -> Id {
        if count.least < count.most {
            // The packet may end where the last does that counts.
            let at = self.code.by(Add, off, at);
            return self.code.call("x_bytes", vec![Argument::Packet, Argument::One(at)], Effect::Reads);
        }
        let mut word = self.code.known(0);
        for &(from, size) in pieces(size) {
            let at = self.code.by(Add, off, at + from);
            let piece = self.load_packet(at, size).low;
            let piece = self.code.by(Shl, piece, 8 * from);
            word = self.code.binary(Or, word, piece);
        }
        word
    }

    /// What becomes of a word: if the condition holds, what is new in the bits of the mask.
    pub(super) fn copied_over(&mut self, old: Id, new: Id, (condition, mask): (Id, Id)) -> Id {
        let rest = self.code.by(Xor, mask, u32::MAX);
        let (rest, new) = (self.code.binary(And, old, rest), self.code.binary(And, new, mask));
        let mixed = self.code.binary(Or, new, rest);
        self.code.select(condition, mixed, old)
    }

    /// `bpf_xdp_store_bytes(ctx, off, buffer, length)`
    pub(super) fn store_bytes(&mut self) -> Result<Value> {
        let (off, inside, count) = self.copied()?;
        let buffer = self.get(3)?;
        let words = self.words(buffer, count.most, "what is copied into the packet")?;
        // All of them or none: far beyond the end a store does nothing.
        let nowhere = self.code.known(1 << 31);
        let to = self.code.select(inside, off, nowhere);
        for (at, word) in (0..).step_by(4).zip(words) {
            let size = (count.most - at).min(4);
            if count.least < at + size {
                let (to, at) = (self.code.by(Add, to, at), self.code.known(at));
                let arguments = [to, word, count.number, at].map(Argument::One);
                let arguments = [Argument::Packet].into_iter().chain(arguments).collect();
                self.code.call("x_store_counting", arguments, Effect::Writes);
                continue;
            }
            for &(from, size) in pieces(size) {
                let to = self.code.by(Add, to, at + from);
                let part = self.code.by(Shr, word, 8 * from);
                let part = self.word(Range::WORD, part);
                self.store_packet(to, size, part);
            }
        }
        Ok(self.copied_or_not(off, inside))
    }

    /// What is given for bytes that were to be copied: of more than 16 bits the kernel takes an offset for no offset at all
    /// (`bpf_xdp_pointer`, net/core/filter.c).
    fn copied_or_not(&mut self, off: Id, inside: Id) -> Value {
        let most = self.code.known(0xffff);
        let is_offset = self.code.binary(Le, off, most);
        self.first_of(&[(is_offset, EFAULT), (inside, EINVAL)])
    }
}

/// Up to four bytes as what is accessed at once: where each begins, and how many it has.
pub(super) fn pieces(size: u32) -> &'static [(u32, u32)] {
    match size {
        4.. => &[(0, 4)],
        3 => &[(0, 2), (2, 1)],
        2 => &[(0, 2)],
        _ => &[(0, 1)],
    }
}
