//! Accesses of values that packets have copies of ([`crate::lower::privatize`]).

use super::Walk;
use crate::lower::ir::Binary::Eq;
use crate::lower::ir::{Id, Op, Var};
use crate::lower::privatize::{How, frame_of, may_be};

/// Bytes of a map's value that an access is somewhere in; of one at a known place those that it is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub map: u16,
    pub bytes: (u32, u32),
    pub is_exact: bool,
}

impl Walk<'_, '_> {
    pub(super) fn may_be_own(&self, span: Span) -> bool {
        may_be(&self.linked.maps[usize::from(span.map)]) && self.shared.copies.may_have(span.map, span.bytes)
    }

    /// Takes down that these bytes are loaded. Whether this packet has stored all of them itself.
    pub(super) fn loads(&mut self, span: Span) -> bool {
        let Span { map, bytes, is_exact } = span;
        if !self.may_be_own(span) {
            return false;
        }
        if self.state.stored.may_have_changed(map, bytes) {
            self.shared.copies.ask(map, bytes);
        }
        if !is_exact {
            self.shared.copies.anywhere(map, bytes);
        }
        self.state.stored.has_all(map, bytes)
    }

    /// Whether this packet may have stored some of these bytes, other than by adding to them.
    pub(super) fn may_have_stored(&self, span: Span) -> bool {
        self.may_be_own(span) && self.state.stored.may_have(span.map, span.bytes)
    }

    /// Takes down that these bytes are stored, or changed. Of what is not exact it is not known which of them were.
    pub(super) fn stores(&mut self, span: Span, how: How) {
        let Span { map, bytes, is_exact } = span;
        if !self.may_be_own(span) {
            return;
        }
        if !is_exact {
            self.shared.copies.anywhere(map, bytes);
        }
        self.state.stored.insert(map, bytes, if is_exact { how } else { how.min(How::Perhaps) });
    }

    /// A word of the packet's copy, where it has one.
    pub(super) fn own_word(&mut self, map: u16, word: Id) -> Option<Id> {
        let copy = self.shared.copies.of(map)?;
        match self.code.value(word).map(|word| word as u16) {
            Some(word) if copy.variables.contains(&word) => {
                let held = self.code.own.get(&(map, word)).copied();
                Some(held.unwrap_or_else(|| self.code.var(Var::Own { map, word })))
            }
            Some(known) if !copy.memory.contains(&known) => None,
            None if copy.memory.is_empty() => None,
            _ => Some(self.code.add(Op::Recall { frame: frame_of(map), word })),
        }
    }

    /// Whether nobody else has what is loaded from a word of a value: it is what the block began with, or was read from memory.
    pub(super) fn is_fresh(&self, map: u16, word: Id) -> bool {
        let known = self.code.value(word).map(|word| word as u16);
        known.is_none_or(|word| !self.code.own.contains_key(&(map, word)))
    }

    /// Sets those bits of a word of the packet's copy that are in the mask, if this is the entry that there is.
    pub(super) fn set_own(&mut self, map: u16, entry: Id, word: Id, mask: Id, bits: Id) {
        let Some(old) = self.own_word(map, word) else { return };
        let is_it = self.code.by(Eq, entry, 0);
        let value = self.copied_over(old, bits, (is_it, mask));
        let known = self.code.value(word).map(|word| word as u16);
        let is_variable = |word: &u16| self.shared.copies.of(map).is_some_and(|copy| copy.variables.contains(word));
        match known.filter(is_variable) {
            Some(word) => drop(self.code.own.insert((map, word), value)),
            None => drop(self.code.add(Op::Keep { frame: frame_of(map), word, value })),
        }
    }

    /// The same of all of a word.
    pub(super) fn set_own_word(&mut self, map: u16, entry: Id, word: Id, value: Id) {
        let all = self.code.known(u32::MAX);
        self.set_own(map, entry, word, all, value);
    }
}
