//! Accesses to map values that may be [privatized](crate::ir::privatize).

use super::BlockInterpreter;
use crate::ir::BinaryOp::Eq;
use crate::ir::privatize::{StoreCertainty, can_privatize, copy_frame};
use crate::ir::{Id, Op, Variable};

/// The bytes of a map value that an access touches, or, if its offset is unknown, may touch.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteSpan {
    pub map: u16,
    pub bytes: (u32, u32),
    pub is_exact: bool,
}

impl BlockInterpreter<'_, '_> {
    pub(super) fn may_be_private(&self, span: ByteSpan) -> bool {
        can_privatize(&self.linked.maps[usize::from(span.map)])
            && self.facts.privatization.may_privatize(span.map, span.bytes)
    }

    /// Records a load for privatization. Returns whether this packet has stored all these bytes
    /// itself.
    pub(super) fn note_load(&mut self, span: ByteSpan) -> bool {
        let ByteSpan { map, bytes, is_exact } = span;
        if !self.may_be_private(span) {
            return false;
        }
        if self.state.stored.may_be_changed(map, bytes) {
            self.facts.privatization.record_reload(map, bytes);
        }
        if !is_exact {
            self.facts.privatization.record_indexed(map, bytes);
        }
        self.state.stored.definitely_stored(map, bytes)
    }

    /// Whether this packet may have stored some of these bytes other than by adding to them.
    pub(super) fn may_have_stored(&self, span: ByteSpan) -> bool {
        self.may_be_private(span) && self.state.stored.may_be_stored(span.map, span.bytes)
    }

    /// Records a store for privatization. If the offset is unknown, no byte is definitely stored.
    pub(super) fn note_store(&mut self, span: ByteSpan, how: StoreCertainty) {
        let ByteSpan { map, bytes, is_exact } = span;
        if !self.may_be_private(span) {
            return;
        }
        if !is_exact {
            self.facts.privatization.record_indexed(map, bytes);
        }
        self.state.stored.record(map, bytes, if is_exact { how } else { how.min(StoreCertainty::Maybe) });
    }

    /// A word of the packet's private copy, if that has it.
    pub(super) fn private_word(&mut self, map: u16, word: Id) -> Option<Id> {
        let copy = self.facts.privatization.copy_of(map)?;
        match self.code.as_constant(word).map(|word| word as u16) {
            Some(word) if copy.variables.contains(&word) => {
                let held = self.code.private_words.get(&(map, word)).copied();
                Some(held.unwrap_or_else(|| self.code.variable(Variable::PrivateWord { map, word })))
            }
            Some(known) if !copy.memory.contains(&known) => None,
            None if copy.memory.is_empty() => None,
            _ => Some(self.code.add(Op::LoadIndexed { frame: copy_frame(map), word })),
        }
    }

    /// Whether the value of a word is what the block began with or is read from memory, so that no
    /// other IR value of the block stands for it.
    pub(super) fn is_unmodified_word(&self, map: u16, word: Id) -> bool {
        let known = self.code.as_constant(word).map(|word| word as u16);
        known.is_none_or(|word| !self.code.private_words.contains_key(&(map, word)))
    }

    /// Writes the masked bits of a private word if `entry` is the map's single entry.
    pub(super) fn write_private_bits(&mut self, map: u16, entry: Id, word: Id, mask: Id, bits: Id) {
        let Some(old) = self.private_word(map, word) else { return };
        let is_it = self.code.binary_const(Eq, entry, 0);
        let value = self.merge_bits(old, bits, (is_it, mask));
        let known = self.code.as_constant(word).map(|word| word as u16);
        let is_variable =
            |word: &u16| self.facts.privatization.copy_of(map).is_some_and(|copy| copy.variables.contains(word));
        match known.filter(is_variable) {
            Some(word) => drop(self.code.private_words.insert((map, word), value)),
            None => drop(self.code.add(Op::StoreIndexed { frame: copy_frame(map), word, value })),
        }
    }

    /// Writes a whole private word.
    pub(super) fn write_private_word(&mut self, map: u16, entry: Id, word: Id, value: Id) {
        let all = self.code.constant(u32::MAX);
        self.write_private_bits(map, entry, word, all, value);
    }
}
