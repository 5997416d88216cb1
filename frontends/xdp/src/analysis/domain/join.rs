//! Join and widening of abstract states.
//!
//! The join is componentwise. Proven packet lengths and definitely stored bytes are intersected.
//! Pointers into the packet with different bases get a name of the block; two such pointers with
//! the same distance on both paths share it, so that a bounds check of one still covers the other.

use std::collections::{BTreeMap, HashMap};

use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::{ANONYMOUS, PACKET_START, RegType, SymbolicName};
use crate::analysis::domain::state::{CarriedAlias, METADATA_FRAME, STACK_WORDS, Sensitivity, State, Value, Word};
use crate::analysis::register_liveness::RegisterSet;

impl State {
    /// Whether another state may be joined with this one without losing what the program may rely
    /// on: live pointers point to the same object, and nothing differs that `sensitivity` keeps
    /// apart.
    pub fn can_join(&self, other: &State, asked: RegisterSet, sensitivity: Sensitivity) -> bool {
        let same = |a: &Value, b: &Value| match (a.ty, b.ty) {
            (a, b) if sensitivity >= Sensitivity::Types && a.conflicts_with(b) => false,
            (RegType::Stack { off: a, .. }, RegType::Stack { off: b, .. })
                if sensitivity >= Sensitivity::Offsets && a != b =>
            {
                false
            }
            (RegType::MapValue { off: a, .. }, RegType::MapValue { off: b, .. })
                if sensitivity >= Sensitivity::Offsets && a != b =>
            {
                false
            }
            (RegType::Map(a), RegType::Map(b)) => a == b,
            (RegType::MapValue { map: a, .. }, RegType::MapValue { map: b, .. }) => a == b,
            (RegType::Stack { frame: a, .. }, RegType::Stack { frame: b, .. }) => a == b,
            (RegType::RingRecord { record: a, .. }, RegType::RingRecord { record: b, .. }) => a == b,
            // A map of maps gives a map or NULL.
            (RegType::Map(_), other) | (other, RegType::Map(_)) => other.as_scalar().is_none() && !other.is_pointer(),
            (a, b) => !a.is_pointer() || !b.is_pointer() || a.kind() == b.kind(),
        };
        let is_asked = |register: usize| asked >> register & 1 != 0;
        let mut scratch = self.scratch.iter().zip(&other.scratch).take(6).enumerate();
        if !scratch.all(|(register, (a, b))| !is_asked(register) || same(a, b)) {
            return false;
        }
        let [result, theirs] =
            [self, other].map(|state| state.scratch[0].ty.as_scalar().and_then(Interval::as_constant));
        if sensitivity >= Sensitivity::Offsets && is_asked(0) && result.zip(theirs).is_some_and(|(a, b)| a != b) {
            return false;
        }
        // Inner maps may be spilled to the stack.
        let kept = |word: &Word| match word.ty {
            RegType::Map(map) => Some(Some(map)),
            ty => ty.is_null().then_some(None),
        };
        let differs = |(a, b): (&Word, &Word)| {
            let one = matches!(a.ty, RegType::Map(_)) || matches!(b.ty, RegType::Map(_));
            let lost = sensitivity >= Sensitivity::Types
                && (a.ty.is_pointer() || b.ty.is_pointer())
                && a.ty.conflicts_with(b.ty);
            lost || one && kept(a).zip(kept(b)).is_some_and(|(a, b)| a != b)
        };
        if self.frames.iter().zip(&other.frames).any(|(a, b)| a.words.iter().zip(&b.words).any(differs)) {
            return false;
        }
        let last = self.frames.len() - 1;
        self.frames.iter().zip(&other.frames).enumerate().all(|(frame, (a, b))| {
            let mut saved = a.saved.iter().zip(&b.saved).enumerate();
            saved.all(|(register, (a, b))| frame == last && register < 4 && !is_asked(register + 6) || same(a, b))
        })
    }

    /// Number of bytes proven to follow each pointer into the packet, by position; 0 for other
    /// types.
    fn bytes_after_pointers(&mut self) -> Vec<i64> {
        let (length, extents) = (self.proven_length, self.extents.clone());
        let behind = |ty: &mut RegType| match *ty {
            RegType::Packet { name: PACKET_START, off, .. } => i64::from(length) - off,
            RegType::Packet { name, off, .. } => extents.get(&name).map_or(0, |&extent| i64::from(extent) - off),
            _ => 0,
        };
        let mut all = Vec::with_capacity(self.type_count());
        self.types().for_each(|ty| all.push(behind(ty)));
        all
    }

    /// Joins another state into this one and returns whether this one changed. With `widen`, what
    /// changed is widened to these thresholds. `name` gives the name of this block for the pointer
    /// at a position; `is_ours` tells such names.
    pub fn join(
        &mut self,
        mut other: State,
        widen: Option<&[u64]>,
        name: impl Fn(usize) -> SymbolicName,
        is_ours: impl Fn(SymbolicName) -> bool,
    ) -> bool {
        if !self.metadata.is_empty() || !other.metadata.is_empty() {
            self.words(METADATA_FRAME);
            other.words(METADATA_FRAME);
        }
        let behind = (self.bytes_after_pointers(), other.bytes_after_pointers());
        // In `other` a name of this block is from an earlier round of a loop, and so means another
        // place.
        other.forget_names(&is_ours);
        // Maps a pair of bases with a given distance to the joined name and the offset where it
        // begins.
        let mut joined_bases: HashMap<(SymbolicName, SymbolicName, i64), (SymbolicName, i64)> = HashMap::new();
        let mut extents: BTreeMap<SymbolicName, i64> = BTreeMap::new();
        let (others, before) = (other.all_types(), self.all_types());
        let mut number = 0;
        self.types().for_each(|ty| {
            let other = others[number];
            let joined = ty.join(other, |(a, off), (b, there)| {
                if a == ANONYMOUS || b == ANONYMOUS {
                    return (name(number), 0);
                }
                let (name, from) = *joined_bases.entry((a, b, off - there)).or_insert_with(|| (name(number), off));
                (name, off - from)
            });
            let joined = widen.map_or(joined, |bounds| joined.widen(*ty, bounds));
            if let RegType::Packet { name, off, .. } = joined
                && is_ours(name)
            {
                let extent = behind.0[number].min(behind.1[number]) + off;
                extents.entry(name).and_modify(|known| *known = extent.min(*known)).or_insert(extent);
            }
            *ty = joined;
            number += 1;
        });
        let mut changed = false;
        for (frame, other) in self.frames.iter_mut().zip(&other.frames) {
            for (word, other) in frame.words.iter_mut().zip(&other.words) {
                // A spilled register on one path only.
                if word.is_high_half != other.is_high_half {
                    changed |= word.is_high_half;
                    (word.is_high_half, word.ty) = (false, RegType::UNKNOWN);
                }
            }
            // The low half of a pointer without the high half is a scalar.
            for at in 0..STACK_WORDS {
                let has_high_half = frame.words.get(at + 1).is_some_and(|word| word.is_high_half);
                let word = &mut frame.words[at];
                if word.ty.is_pointer() && !has_high_half {
                    word.ty = RegType::UNKNOWN;
                }
            }
        }
        // Compare at the end: a word may have changed and changed back.
        changed |= before != self.all_types();
        let length = self.proven_length.min(other.proven_length);
        changed |= length != self.proven_length;
        self.proven_length = length;
        let before = self.extents.clone();
        self.extents.retain(|name, extent| match other.extents.get(name) {
            Some(&there) => {
                *extent = (*extent).min(there);
                true
            }
            None => false,
        });
        for (name, extent) in extents {
            let shrinks = before.get(&name).is_some_and(|&before| extent < i64::from(before));
            if extent > 0 && !(widen.is_some() && shrinks) {
                self.extents.insert(name, extent as u32);
            }
        }
        changed |= before != self.extents;
        let before = std::mem::take(&mut self.field_aliases);
        let same = |a: &CarriedAlias, b: &CarriedAlias| {
            CarriedAlias { has_amount: false, ..*a } == CarriedAlias { has_amount: false, ..*b }
        };
        self.field_aliases.extend(before.iter().filter_map(|it| {
            let there = other.field_aliases.iter().find(|there| same(it, there))?;
            Some(CarriedAlias { has_amount: it.has_amount || there.has_amount, ..*it })
        }));
        changed |= before != self.field_aliases;
        changed | self.stored.join(&other.stored)
    }
}
