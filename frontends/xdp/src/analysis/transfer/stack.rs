//! The stack: words that are variables each, or where a program indexes it by what is not known, memory.

use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{ASLEEP, META, Offsets, STACK_WORDS, Ty, Value, Word};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Id, Op, Var};

const BYTES: i64 = 4 * STACK_WORDS as i64;

impl Walk<'_, '_> {
    fn at(&self, base: i64, off: i64, size: u32) -> Result<usize> {
        let at = BYTES + base + off;
        if at < 0 || at + i64::from(size) > BYTES {
            let off = base + off;
            return self.refuse(format!("the stack is accessed at offset {off}, and it goes from -{BYTES} to 0"));
        }
        Ok(at as usize)
    }

    fn aligned(&self, base: i64, off: i64, size: u32) -> Result<usize> {
        let at = self.at(base, off, size)?;
        if at % size as usize != 0 {
            return self
                .refuse(format!("{size} bytes of the stack are accessed at an offset that is no multiple of {size}"));
        }
        Ok(at)
    }

    fn words_of(&mut self, frame: u8) -> &mut Vec<Word> {
        self.state.words(frame)
    }

    /// What a word holds.
    pub(super) fn word_at(&mut self, frame: u8, word: usize) -> Id {
        if self.shared.memory[usize::from(frame)] {
            let word = self.code.known(word as u32);
            return self.code.add(Op::Recall { frame: frame.into(), word });
        }
        let Word { ty, is_rest, id } = self.words_of(frame)[word];
        if id != ASLEEP {
            return id;
        }
        let has_rest = self.words_of(frame).get(word + 1).is_some_and(|rest| rest.is_rest);
        let low = Var::Stack { frame, word: word as u8 };
        let id = match ty {
            _ if is_rest => {
                let before = self.words_of(frame)[word - 1];
                let mut value = Value { ty: before.ty, low: 0, high: ASLEEP };
                self.wake(&mut value, (low, low));
                value.high
            }
            ty if has_rest || ty.range().is_some_and(|range| range.exact().is_some()) => {
                let mut value = Value { ty, low: ASLEEP, high: 0 };
                self.wake(&mut value, (low, low));
                value.low
            }
            _ => self.code.var(low),
        };
        self.words_of(frame)[word].id = id;
        id
    }

    fn set_word(&mut self, frame: u8, word: usize, id: Id) {
        if self.shared.memory[usize::from(frame)] {
            let word = self.code.known(word as u32);
            self.code.add(Op::Keep { frame: frame.into(), word, value: id });
            return;
        }
        self.words_of(frame)[word].id = id;
    }

    /// Makes numbers of words that half a register would be left of.
    fn break_up(&mut self, frame: u8, first: usize, last: usize) {
        let words = self.words_of(frame);
        let first = if words[first].is_rest { first - 1 } else { first };
        let last = if words.get(last + 1).is_some_and(|word| word.is_rest) { last + 1 } else { last };
        // Where they are asleep their types say what they are, and the lower word's also what the higher is: that is lost now.
        for word in first..=last {
            self.word_at(frame, word);
        }
        for word in first..=last {
            let it = &mut self.words_of(frame)[word];
            let low = it.ty.range().filter(|_| !it.is_rest).map_or(Range::WORD, Range::low_word);
            (it.ty, it.is_rest) = (Ty::Number(low), false);
        }
    }

    pub(super) fn load_stack(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Value> {
        let Some(base) = base.exact() else {
            return self.load_somewhere(frame, base, low, off, size);
        };
        if frame == META {
            self.in_metadata(base + off, size)?;
            // It is aligned as packets are, to anything.
            if size == 8 || (BYTES + base + off) % i64::from(size) != 0 {
                let low = self.stack_word(frame, base + off, size.min(4))?;
                if size == 8 {
                    let high = self.stack_word(frame, base + off + 4, 4)?;
                    return Ok(self.number(Range::ANY, low, high));
                }
                let mask = Range::of_bytes(size).high as u32;
                let low = self.code.by(And, low, mask);
                return Ok(self.word(Range::of_bytes(size), low));
            }
        }
        let at = self.aligned(base, off, size)?;
        let word = at / 4;
        let id = self.word_at(frame, word);
        let ty = self.words_of(frame)[word].ty;
        if size == 8 {
            let high = self.word_at(frame, word + 1);
            if self.words_of(frame)[word + 1].is_rest {
                // What the type says need not be asked of memory.
                let (low, rest) = self.said(ty);
                return Ok(Value { ty, low: low.unwrap_or(id), high: rest.unwrap_or(high) });
            }
            return Ok(self.number(Range::ANY, id, high));
        }
        let is_rest = self.words_of(frame)[word].is_rest;
        if size == 4 {
            let range = ty.range().filter(|_| !is_rest).map_or(Range::WORD, Range::low_word);
            return Ok(self.word(range, id));
        }
        let shift = 8 * (at % 4) as u32;
        let shifted = self.code.by(Shr, id, shift);
        let low = self.code.by(And, shifted, (1 << (8 * size)) - 1);
        Ok(self.word(Range::of_bytes(size), low))
    }

    pub fn store_stack(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32, value: Value) -> Result<()> {
        if usize::from(frame) != self.frame() && matches!(value.ty, Ty::Stack { frame, .. } if frame != META) {
            // It may be of the function's own frame, which is gone when it returns. The kernel asks no further either.
            return self.refuse("a pointer to the stack is stored in the stack of a function's caller");
        }
        let Some(base) = base.exact() else {
            return self.store_somewhere(frame, base, low, off, size, value);
        };
        if frame == META {
            self.expect_number(value, "what is stored in the packet's metadata")?;
            self.in_metadata(base + off, size)?;
            if size == 8 || (BYTES + base + off) % i64::from(size) != 0 {
                return self.set_bytes(frame, base + off, size, &[value.low, value.high]);
            }
        }
        let at = self.aligned(base, off, size)?;
        let word = at / 4;
        if size == 8 {
            self.break_up(frame, word, word + 1);
            self.set_word(frame, word, value.low);
            self.set_word(frame, word + 1, value.high);
            let words = self.words_of(frame);
            (words[word].ty, words[word].is_rest) = (value.ty, false);
            (words[word + 1].ty, words[word + 1].is_rest) = (Ty::Nothing, true);
            return Ok(());
        }
        self.break_up(frame, word, word);
        let ty = if size == 4 {
            self.set_word(frame, word, value.low);
            Ty::Number(value.ty.range().map_or(Range::WORD, Range::low_word))
        } else {
            let (shift, mask) = (8 * (at % 4) as u32, (1_u32 << (8 * size)) - 1);
            let old = self.word_at(frame, word);
            let old = self.code.by(And, old, !(mask << shift));
            let new = self.code.by(And, value.low, mask);
            let new = self.code.by(Shl, new, shift);
            let all = self.code.binary(Or, old, new);
            self.set_word(frame, word, all);
            Ty::Number(Range::WORD)
        };
        let it = &mut self.words_of(frame)[word];
        (it.ty, it.is_rest) = (ty, false);
        Ok(())
    }

    /// Four bytes anywhere, of which so many are to be in the stack.
    pub(super) fn stack_word(&mut self, frame: u8, off: i64, count: u32) -> Result<Id> {
        let at = self.at(off, 0, count)?;
        let (word, shift) = (at / 4, 8 * (at % 4) as u32);
        let id = self.word_at(frame, word);
        if shift == 0 {
            return Ok(id);
        }
        let low = self.code.by(Shr, id, shift);
        if word + 1 == STACK_WORDS {
            return Ok(low);
        }
        let next = self.word_at(frame, word + 1);
        let high = self.code.by(Shl, next, 32 - shift);
        Ok(self.code.binary(Or, low, high))
    }

    /// Writes what a helper gives to bytes anywhere: words, the first byte the lowest of the first.
    pub(super) fn set_bytes(&mut self, frame: u8, off: i64, bytes: u32, words: &[Id]) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let to = off + i64::from(at);
            let whole = (BYTES + to) % 4 == 0 && at % 4 == 0 && bytes - at >= 4;
            let size = if whole { 4 } else { 1 };
            let part = self.code.by(Shr, words[at as usize / 4], 8 * (at % 4));
            let value = self.word(Range::WORD, part);
            self.store_stack(frame, Offsets::one(to), 0, 0, size, value)?;
            at += size;
        }
        Ok(())
    }

    /// Where an access at an offset that is not known begins; it lies in the stack, or the packet has been aborted.
    fn somewhere(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Id> {
        self.shared.memory[usize::from(frame)] = true;
        let at = self.code.by(Add, low, (BYTES + off) as u32);
        if BYTES + base.low + off < 0 || base.high + off + i64::from(size) > 0 {
            let last = self.code.known((BYTES - i64::from(size)) as u32);
            let beyond = self.code.binary(Lt, last, at);
            self.trap(beyond, "the stack does not reach so far");
        }
        if frame == META {
            self.in_metadata_somewhere(low, off)?;
        }
        Ok(at)
    }

    /// The same where it is to be a multiple of its size.
    fn aligned_somewhere(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Id> {
        let at = self.somewhere(frame, base, low, off, size)?;
        if !base.are_multiples(size.min(4), off) {
            let odd = self.code.by(And, at, size.min(4) - 1);
            let odd = self.code.by(Ne, odd, 0);
            self.trap(odd, "the stack is accessed at an odd offset");
        }
        Ok(at)
    }

    /// Four bytes at an offset that is not known, of which so many are to be in the stack.
    pub(super) fn stack_word_somewhere(
        &mut self,
        frame: u8,
        base: Offsets,
        low: Id,
        off: i64,
        count: u32,
    ) -> Result<Id> {
        let at = self.somewhere(frame, base, low, off, count)?;
        let word = self.code.by(Shr, at, 2);
        let id = self.code.add(Op::Recall { frame: frame.into(), word });
        if base.are_multiples(4, off) {
            return Ok(id);
        }
        // Behind the last word there is none, and nothing is asked of it.
        let next = self.code.by(Add, word, 1);
        let next = self.code.by(And, next, STACK_WORDS as u32 - 1);
        let next = self.code.add(Op::Recall { frame: frame.into(), word: next });
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        Ok(self.across(id, next, shift))
    }

    fn load_somewhere(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32) -> Result<Value> {
        let at = self.aligned_somewhere(frame, base, low, off, size)?;
        let word = self.code.by(Shr, at, 2);
        let id = self.code.add(Op::Recall { frame: frame.into(), word });
        if size == 8 {
            let next = self.code.by(Add, word, 1);
            let high = self.code.add(Op::Recall { frame: frame.into(), word: next });
            return Ok(self.number(Range::ANY, id, high));
        }
        if size == 4 {
            return Ok(self.word(Range::WORD, id));
        }
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let shifted = self.code.binary(Shr, id, shift);
        let low = self.code.by(And, shifted, (1 << (8 * size)) - 1);
        Ok(self.word(Range::of_bytes(size), low))
    }

    fn store_somewhere(&mut self, frame: u8, base: Offsets, low: Id, off: i64, size: u32, value: Value) -> Result<()> {
        if value.ty.is_pointer() {
            let what = "a pointer is stored on the stack at an offset that is not known";
            return self.lack(what, "pointers at any place of the stack");
        }
        let at = self.aligned_somewhere(frame, base, low, off, size)?;
        let word = self.code.by(Shr, at, 2);
        if size >= 4 {
            self.code.add(Op::Keep { frame: frame.into(), word, value: value.low });
            if size == 8 {
                let word = self.code.by(Add, word, 1);
                self.code.add(Op::Keep { frame: frame.into(), word, value: value.high });
            }
        } else {
            let mask = self.code.known((1 << (8 * size)) - 1);
            let shift = self.code.by(And, at, 3);
            let shift = self.code.by(Shl, shift, 3);
            let (new, hole) = (self.code.binary(And, value.low, mask), self.code.binary(Shl, mask, shift));
            let (new, hole) = (self.code.binary(Shl, new, shift), self.code.by(Xor, hole, u32::MAX));
            let old = self.code.add(Op::Recall { frame: frame.into(), word });
            let old = self.code.binary(And, old, hole);
            let all = self.code.binary(Or, old, new);
            self.code.add(Op::Keep { frame: frame.into(), word, value: all });
        }
        // What may have been overwritten is numbers.
        let low = (BYTES + base.low + off).clamp(0, BYTES - 1) as usize / 4;
        let high = (BYTES + base.high + off + i64::from(size) - 1).clamp(0, BYTES - 1) as usize / 4;
        let mut next = low;
        for (first, last) in self.spilled(frame, low, high) {
            if self.shared.keeps_spilled {
                let before = self.code.known((size / 8).wrapping_sub(first as u32));
                let from = self.code.binary(Add, word, before);
                let length = self.code.known((last - first) as u32 + size / 8);
                let hits = self.code.binary(Le, from, length);
                self.trap(hits, "a spilled pointer would be overwritten");
                self.make_numbers(frame, next, first);
                next = last + 1;
            }
            self.shared.overwrites_spilled = true;
        }
        self.make_numbers(frame, next, high + 1);
        Ok(())
    }

    /// Words from one up to another, without it, hold numbers of which nothing is known.
    fn make_numbers(&mut self, frame: u8, first: usize, end: usize) {
        if first < end {
            self.break_up(frame, first, end - 1);
            self.words_of(frame)[first..end].iter_mut().for_each(|word| word.ty = Ty::Number(Range::WORD));
        }
    }

    /// The first and last words of pointers that words from one to another belong to; those side by side are one.
    fn spilled(&mut self, frame: u8, low: usize, high: usize) -> Vec<(usize, usize)> {
        let words = self.words_of(frame);
        let is_whole = |&at: &usize| words[at].ty.is_pointer() && words.get(at + 1).is_some_and(|rest| rest.is_rest);
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
