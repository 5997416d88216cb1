//! Stack accesses: a variable per word, or an array if the program indexes the frame by a value
//! known only at run time.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::{METADATA_FRAME, NOT_LOADED, STACK_WORDS, Value, Word};
use crate::ir::BinaryOp::*;
use crate::ir::{Id, Op, Variable};

const STACK_BYTES: i64 = 4 * STACK_WORDS as i64;

impl BlockInterpreter<'_, '_> {
    /// Byte index in the frame of an access at `base + off` from the top.
    fn stack_offset(&self, base: i64, off: i64, size: u32) -> Result<usize> {
        let at = STACK_BYTES + base + off;
        if at < 0 || at + i64::from(size) > STACK_BYTES {
            let off = base + off;
            return self.reject(format!("the stack is accessed at offset {off}, and it goes from -{STACK_BYTES} to 0"));
        }
        Ok(at as usize)
    }

    fn aligned_offset(&self, base: i64, off: i64, size: u32) -> Result<usize> {
        let at = self.stack_offset(base, off, size)?;
        if at % size as usize != 0 {
            return self.reject(format!(
                "{size} bytes of the stack are accessed at an offset that is not a multiple of {size}"
            ));
        }
        Ok(at)
    }

    fn frame_words(&mut self, frame: u8) -> &mut Vec<Word> {
        self.state.words(frame)
    }

    /// The IR value of a word.
    pub(super) fn read_stack_word(&mut self, frame: u8, word: usize) -> Id {
        if self.facts.indexed_frames[usize::from(frame)] {
            let word = self.code.constant(word as u32);
            return self.code.add(Op::LoadIndexed { frame: frame.into(), word });
        }
        let Word { ty, is_high_half, id } = self.frame_words(frame)[word];
        if id != NOT_LOADED {
            return id;
        }
        let has_high_half = self.frame_words(frame).get(word + 1).is_some_and(|rest| rest.is_high_half);
        let low = Variable::Stack { frame, word: word as u8 };
        let id = match ty {
            _ if is_high_half => {
                let before = self.frame_words(frame)[word - 1];
                let mut value = Value { ty: before.ty, low: 0, high: NOT_LOADED };
                self.materialize(&mut value, (low, low));
                value.high
            }
            ty if has_high_half || ty.as_scalar().is_some_and(|range| range.as_constant().is_some()) => {
                let mut value = Value { ty, low: NOT_LOADED, high: 0 };
                self.materialize(&mut value, (low, low));
                value.low
            }
            _ => self.code.variable(low),
        };
        self.frame_words(frame)[word].id = id;
        id
    }

    fn write_stack_word(&mut self, frame: u8, word: usize, id: Id) {
        if self.facts.indexed_frames[usize::from(frame)] {
            let word = self.code.constant(word as u32);
            self.code.add(Op::StoreIndexed { frame: frame.into(), word, value: id });
            return;
        }
        self.frame_words(frame)[word].id = id;
    }

    /// Turns spilled registers that overlap words `first..=last` into scalars.
    fn demote_to_scalars(&mut self, frame: u8, first: usize, last: usize) {
        let words = self.frame_words(frame);
        let first = if words[first].is_high_half { first - 1 } else { first };
        let last = if words.get(last + 1).is_some_and(|word| word.is_high_half) { last + 1 } else { last };
        // Load the words first: while they are not loaded their value may be implied by the type of
        // the spilled register, which is lost now.
        for word in first..=last {
            self.read_stack_word(frame, word);
        }
        for word in first..=last {
            let it = &mut self.frame_words(frame)[word];
            let low = it.ty.as_scalar().filter(|_| !it.is_high_half).map_or(Interval::U32, Interval::truncate_u32);
            (it.ty, it.is_high_half) = (RegType::Scalar(low), false);
        }
    }

    pub(super) fn load_stack(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Value> {
        let Some(base) = base.as_constant() else {
            return self.load_indexed(frame, base, low, off, size);
        };
        if frame == METADATA_FRAME {
            self.check_metadata_access(base + off, size)?;
            // Metadata may be unaligned, as packets are.
            if size == 8 || (STACK_BYTES + base + off) % i64::from(size) != 0 {
                let low = self.load_unaligned(frame, base + off, size.min(4))?;
                if size == 8 {
                    let high = self.load_unaligned(frame, base + off + 4, 4)?;
                    return Ok(self.scalar(Interval::ANY, low, high));
                }
                let mask = Interval::of_width(size).high as u32;
                let low = self.code.binary_const(And, low, mask);
                return Ok(self.scalar32(Interval::of_width(size), low));
            }
        }
        let at = self.aligned_offset(base, off, size)?;
        let word = at / 4;
        let id = self.read_stack_word(frame, word);
        let ty = self.frame_words(frame)[word].ty;
        if size == 8 {
            let high = self.read_stack_word(frame, word + 1);
            if self.frame_words(frame)[word + 1].is_high_half {
                // What the type determines need not be loaded.
                let (low, rest) = self.known_halves(ty);
                return Ok(Value { ty, low: low.unwrap_or(id), high: rest.unwrap_or(high) });
            }
            return Ok(self.scalar(Interval::ANY, id, high));
        }
        let is_high_half = self.frame_words(frame)[word].is_high_half;
        if size == 4 {
            let range = ty.as_scalar().filter(|_| !is_high_half).map_or(Interval::U32, Interval::truncate_u32);
            return Ok(self.scalar32(range, id));
        }
        let shift = 8 * (at % 4) as u32;
        let shifted = self.code.binary_const(Shr, id, shift);
        let low = self.code.binary_const(And, shifted, (1 << (8 * size)) - 1);
        Ok(self.scalar32(Interval::of_width(size), low))
    }

    pub fn store_stack(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32, value: Value) -> Result<()> {
        if usize::from(frame) != self.current_frame()
            && matches!(value.ty, RegType::Stack { frame, .. } if frame != METADATA_FRAME)
        {
            // The pointer may be to the function's own frame, which ends when it returns. The
            // verifier rejects it as well.
            return self.reject("a pointer to the stack is stored in the stack of a function's caller");
        }
        let Some(base) = base.as_constant() else {
            return self.store_indexed(frame, base, low, off, size, value);
        };
        if frame == METADATA_FRAME {
            self.expect_scalar(value, "the value stored in the packet's metadata")?;
            self.check_metadata_access(base + off, size)?;
            if size == 8 || (STACK_BYTES + base + off) % i64::from(size) != 0 {
                return self.store_stack_bytes(frame, base + off, size, &[value.low, value.high]);
            }
        }
        let at = self.aligned_offset(base, off, size)?;
        let word = at / 4;
        if size == 8 {
            self.demote_to_scalars(frame, word, word + 1);
            self.write_stack_word(frame, word, value.low);
            self.write_stack_word(frame, word + 1, value.high);
            let words = self.frame_words(frame);
            (words[word].ty, words[word].is_high_half) = (value.ty, false);
            (words[word + 1].ty, words[word + 1].is_high_half) = (RegType::Uninit, true);
            return Ok(());
        }
        self.demote_to_scalars(frame, word, word);
        let ty = if size == 4 {
            self.write_stack_word(frame, word, value.low);
            RegType::Scalar(value.ty.as_scalar().map_or(Interval::U32, Interval::truncate_u32))
        } else {
            let (shift, mask) = (8 * (at % 4) as u32, (1_u32 << (8 * size)) - 1);
            let old = self.read_stack_word(frame, word);
            let old = self.code.binary_const(And, old, !(mask << shift));
            let new = self.code.binary_const(And, value.low, mask);
            let new = self.code.binary_const(Shl, new, shift);
            let all = self.code.binary(Or, old, new);
            self.write_stack_word(frame, word, all);
            RegType::Scalar(Interval::U32)
        };
        let it = &mut self.frame_words(frame)[word];
        (it.ty, it.is_high_half) = (ty, false);
        Ok(())
    }

    /// Loads four bytes at any offset, of which the first `count` must be in the stack.
    pub(super) fn load_unaligned(&mut self, frame: u8, off: i64, count: u32) -> Result<Id> {
        let at = self.stack_offset(off, 0, count)?;
        let (word, shift) = (at / 4, 8 * (at % 4) as u32);
        let id = self.read_stack_word(frame, word);
        if shift == 0 {
            return Ok(id);
        }
        let low = self.code.binary_const(Shr, id, shift);
        if word + 1 == STACK_WORDS {
            return Ok(low);
        }
        let next = self.read_stack_word(frame, word + 1);
        let high = self.code.binary_const(Shl, next, 32 - shift);
        Ok(self.code.binary(Or, low, high))
    }

    /// Stores the result of a helper, as little-endian words, at any offset.
    pub(super) fn store_stack_bytes(&mut self, frame: u8, off: i64, bytes: u32, words: &[Id]) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let to = off + i64::from(at);
            let whole = (STACK_BYTES + to) % 4 == 0 && at % 4 == 0 && bytes - at >= 4;
            let size = if whole { 4 } else { 1 };
            let part = self.code.binary_const(Shr, words[at as usize / 4], 8 * (at % 4));
            let value = self.scalar32(Interval::U32, part);
            self.store_stack(frame, Offsets::constant(to), 0, 0, size, value)?;
            at += size;
        }
        Ok(())
    }

    /// Byte index of an access at an unknown offset; aborts the packet at run time if the access
    /// lies outside.
    fn indexed_offset(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Id> {
        self.facts.indexed_frames[usize::from(frame)] = true;
        let at = self.code.binary_const(Add, low, (STACK_BYTES + off) as u32);
        if STACK_BYTES + base.low + off < 0 || base.high + off + i64::from(size) > 0 {
            let last = self.code.constant((STACK_BYTES - i64::from(size)) as u32);
            let beyond = self.code.binary(Lt, last, at);
            self.trap(beyond, "the stack does not reach so far");
        }
        if frame == METADATA_FRAME {
            self.check_indexed_metadata_access(low, off)?;
        }
        Ok(at)
    }

    /// Byte index of an access at an unknown offset that must be aligned.
    fn aligned_indexed_offset(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Id> {
        let at = self.indexed_offset(frame, base, low, off, size)?;
        if !base.are_multiples_of(size.min(4), off) {
            let odd = self.code.binary_const(And, at, size.min(4) - 1);
            let odd = self.code.binary_const(Ne, odd, 0);
            self.trap(odd, "the stack is accessed at an odd offset");
        }
        Ok(at)
    }

    /// Loads four bytes at an unknown offset, of which the first `count` must be in the stack.
    pub(super) fn load_indexed_unaligned(
        &mut self,
        frame: u8,
        base: Offsets,
        low: Id,
        off: i64,
        count: u32,
    ) -> Result<Id> {
        let at = self.indexed_offset(frame, base, low, off, count)?;
        let word = self.code.binary_const(Shr, at, 2);
        let id = self.code.add(Op::LoadIndexed { frame: frame.into(), word });
        if base.are_multiples_of(4, off) {
            return Ok(id);
        }
        // After the last word the first is read instead, and its bits are not used.
        let next = self.code.binary_const(Add, word, 1);
        let next = self.code.binary_const(And, next, STACK_WORDS as u32 - 1);
        let next = self.code.add(Op::LoadIndexed { frame: frame.into(), word: next });
        let shift = self.code.binary_const(And, at, 3);
        let shift = self.code.binary_const(Shl, shift, 3);
        Ok(self.funnel_shift(id, next, shift))
    }

    fn load_indexed(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Value> {
        let at = self.aligned_indexed_offset(frame, base, low, off, size)?;
        let word = self.code.binary_const(Shr, at, 2);
        let id = self.code.add(Op::LoadIndexed { frame: frame.into(), word });
        if size == 8 {
            let next = self.code.binary_const(Add, word, 1);
            let high = self.code.add(Op::LoadIndexed { frame: frame.into(), word: next });
            return Ok(self.scalar(Interval::ANY, id, high));
        }
        if size == 4 {
            return Ok(self.scalar32(Interval::U32, id));
        }
        let shift = self.code.binary_const(And, at, 3);
        let shift = self.code.binary_const(Shl, shift, 3);
        let shifted = self.code.binary(Shr, id, shift);
        let low = self.code.binary_const(And, shifted, (1 << (8 * size)) - 1);
        Ok(self.scalar32(Interval::of_width(size), low))
    }

    fn store_indexed(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32, value: Value) -> Result<()> {
        if value.ty.is_pointer() {
            let what = "a pointer is stored on the stack at an unknown offset";
            return self.reject_unsupported(what, "pointers at any place of the stack");
        }
        let at = self.aligned_indexed_offset(frame, base, low, off, size)?;
        let word = self.code.binary_const(Shr, at, 2);
        if size >= 4 {
            self.code.add(Op::StoreIndexed { frame: frame.into(), word, value: value.low });
            if size == 8 {
                let word = self.code.binary_const(Add, word, 1);
                self.code.add(Op::StoreIndexed { frame: frame.into(), word, value: value.high });
            }
        } else {
            let mask = self.code.constant((1 << (8 * size)) - 1);
            let shift = self.code.binary_const(And, at, 3);
            let shift = self.code.binary_const(Shl, shift, 3);
            let (new, hole) = (self.code.binary(And, value.low, mask), self.code.binary(Shl, mask, shift));
            let (new, hole) = (self.code.binary(Shl, new, shift), self.code.binary_const(Xor, hole, u32::MAX));
            let old = self.code.add(Op::LoadIndexed { frame: frame.into(), word });
            let old = self.code.binary(And, old, hole);
            let all = self.code.binary(Or, old, new);
            self.code.add(Op::StoreIndexed { frame: frame.into(), word, value: all });
        }
        // The words that the store may have hit become scalars.
        let low = (STACK_BYTES + base.low + off).clamp(0, STACK_BYTES - 1) as usize / 4;
        let high = (STACK_BYTES + base.high + off + i64::from(size) - 1).clamp(0, STACK_BYTES - 1) as usize / 4;
        let mut next = low;
        for (first, last) in self.spilled_pointers(frame, low, high) {
            if self.facts.guard_spills {
                let before = self.code.constant((size / 8).wrapping_sub(first as u32));
                let from = self.code.binary(Add, word, before);
                let length = self.code.constant((last - first) as u32 + size / 8);
                let hits = self.code.binary(Le, from, length);
                self.trap(hits, "a spilled pointer would be overwritten");
                self.mark_unknown(frame, next, first);
                next = last + 1;
            }
            self.facts.may_overwrite_spills = true;
        }
        self.mark_unknown(frame, next, high + 1);
        Ok(())
    }

    /// Marks words as unknown scalars, from `first` up to but not including `end`.
    fn mark_unknown(&mut self, frame: u8, first: usize, end: usize) {
        if first < end {
            self.demote_to_scalars(frame, first, end - 1);
            self.frame_words(frame)[first..end].iter_mut().for_each(|word| word.ty = RegType::Scalar(Interval::U32));
        }
    }

    /// Ranges of words, first and last, that hold spilled pointers overlapping words `low..=high`;
    /// adjacent ones are merged.
    fn spilled_pointers(&mut self, frame: u8, low: usize, high: usize) -> Vec<(usize, usize)> {
        let words = self.frame_words(frame);
        let is_whole =
            |&at: &usize| words[at].ty.is_pointer() && words.get(at + 1).is_some_and(|rest| rest.is_high_half);
        let mut all: Vec<(usize, usize)> = Vec::new();
        for at in (low.saturating_sub(1)..=high).filter(is_whole).filter(|at| at + 1 >= low) {
            match all.last_mut() {
                Some((_, last)) if *last + 1 == at => *last = at + 1,
                _ => all.push((at, at + 1)),
            }
        }
        all
    }
}
