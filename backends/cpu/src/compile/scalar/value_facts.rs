//! What is known of the values in the code being built, and what follows from it for the packet's
//! length. This is what lets a load go without its check.

use std::collections::HashMap;

use cranelift_codegen::ir::{MemFlagsData, Value};
use portcullis_core::program::prelude::ByteOrder;

/// Something true of a packet's length: `length >= root + add`, which does not wrap, or
/// `length >= add`. It names the length that it is about, because a filter may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LengthFact {
    pub length: Value,
    pub root: Option<Value>,
    pub add: u32,
}

impl LengthFact {
    /// Whether one of the two follows from the other.
    fn is_comparable(&self, other: &LengthFact) -> bool {
        self.length == other.length && self.root == other.root
    }
}

/// A value as a sum that does not wrap: `root + add`, or `add` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub root: Option<Value>,
    pub add: u32,
}

/// Bytes in the opposite order of the value's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteSwapped {
    /// As 32 bits, zero above the bytes.
    pub raw: Value,
    /// How many there are: 2 or 4.
    pub size: u32,
}

impl ByteSwapped {
    /// The number's `size` low bytes in the opposite order.
    pub fn swap(self, number: u32) -> u32 {
        match self.size {
            2 => u32::from((number as u16).swap_bytes()),
            _ => number.swap_bytes(),
        }
    }
}

/// Where a value was read from memory that does not change while the filter runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadOrigin {
    pub flags: MemFlagsData,
    pub address: Value,
    /// To be added to the address.
    pub displacement: i32,
    pub size: u32,
    pub order: ByteOrder,
}

/// `condition ? accept : reject`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConstantSelect {
    pub condition: Value,
    pub accept: u32,
    pub reject: u32,
}

/// What is known of one 32-bit or boolean value.
#[derive(Debug, Clone, Default)]
pub(super) struct ValueInfo {
    range: Option<(u32, u32)>,
    sum: Option<Sum>,
    /// The value is these bytes in the opposite order.
    pub swapped: Option<ByteSwapped>,
    /// The value was read from memory that does not change.
    pub loaded: Option<LoadOrigin>,
    /// The value is what another was loaded as, shifted down by so many bytes; see [`ValueFacts::part`].
    pub part: Option<(Value, u32)>,
    /// The value is one constant or the other.
    pub constant_select: Option<ConstantSelect>,
    /// The value is the opposite of this condition.
    pub opposite: Option<Value>,
    /// The value is the length of the packet whose length is this value.
    pub is_length: bool,
    /// The value is a verdict already, without being checked again; see [`ValueFacts::is_verdict`].
    pub is_verdict: bool,
    when_true: Vec<LengthFact>,
    when_false: Vec<LengthFact>,
}

/// A table over values. Values never change, so entries stay true.
#[derive(Debug, Default)]
pub(super) struct ValueFacts {
    entries: HashMap<Value, ValueInfo>,
    nothing: ValueInfo,
}

impl ValueFacts {
    /// What is known of a value.
    pub fn info(&self, value: Value) -> &ValueInfo {
        self.entries.get(&value).unwrap_or(&self.nothing)
    }

    /// The place to note what is known of a value.
    pub fn info_mut(&mut self, value: Value) -> &mut ValueInfo {
        self.entries.entry(value).or_default()
    }

    /// The least and greatest number that the value can be, unsigned.
    pub fn range(&self, value: Value) -> (u32, u32) {
        self.info(value).range.unwrap_or((0, u32::MAX))
    }

    /// The number that the value is.
    pub fn constant(&self, value: Value) -> Option<u32> {
        let (low, high) = self.range(value);
        (low == high).then_some(low)
    }

    /// Notes a range; the tighter of old and new counts.
    pub fn set_range(&mut self, value: Value, low: u32, high: u32) {
        let (old_low, old_high) = self.range(value);
        let (low, high) = (low.max(old_low), high.min(old_high));
        debug_assert!(low <= high);
        self.info_mut(value).range = Some((low, high));
    }

    /// The value as a sum.
    pub fn sum(&self, value: Value) -> Sum {
        if let Some(constant) = self.constant(value) {
            return Sum { root: None, add: constant };
        }
        self.info(value).sum.unwrap_or(Sum { root: Some(value), add: 0 })
    }

    /// Notes that `value` is `base + add`, which does not wrap.
    pub fn set_sum(&mut self, value: Value, base: Value, add: u32) {
        let base = self.sum(base);
        // `base` as a whole plus `add` does not wrap, so its constant part does not either.
        self.info_mut(value).sum = Some(Sum { root: base.root, add: base.add + add });
    }

    /// The value that was loaded, and how many of its low bytes are missing from this one.
    pub fn load_part(&self, value: Value) -> Option<(Value, u32)> {
        self.info(value).part.or_else(|| self.load_size(value).map(|_| (value, 0)))
    }

    /// How many bytes a value was loaded from, where they can be had one by one.
    pub fn load_size(&self, value: Value) -> Option<u32> {
        let entry = self.info(value);
        entry.loaded.map(|l| l.size).or(entry.swapped.map(|s| s.size))
    }

    /// Whether the value is a verdict: one of 0 to 3, or what `redirect` gave.
    pub fn is_verdict(&self, value: Value) -> bool {
        self.range(value).1 <= 3 || self.info(value).is_verdict
    }

    /// What follows when the condition is `outcome`.
    pub fn implied_facts(&self, condition: Value, outcome: bool) -> &[LengthFact] {
        let entry = self.info(condition);
        if outcome { &entry.when_true } else { &entry.when_false }
    }

    pub fn set_implied_facts(&mut self, condition: Value, when_true: Vec<LengthFact>, when_false: Vec<LengthFact>) {
        if !when_true.is_empty() || !when_false.is_empty() {
            let entry = self.info_mut(condition);
            (entry.when_true, entry.when_false) = (when_true, when_false);
        }
    }

    /// What follows when two conditions both hold.
    pub fn conjunction(a: &[LengthFact], b: &[LengthFact]) -> Vec<LengthFact> {
        let mut all = a.to_vec();
        for fact in b {
            let full = all.len() >= MAX_LENGTH_FACTS;
            match all.iter_mut().find(|other| other.is_comparable(fact)) {
                Some(known) => known.add = known.add.max(fact.add),
                // Knowing less is never wrong.
                None if full => {}
                None => all.push(*fact),
            }
        }
        all
    }

    /// What follows from either of two conditions holding, when only one of them need hold.
    pub fn disjunction(a: &[LengthFact], b: &[LengthFact]) -> Vec<LengthFact> {
        a.iter()
            .filter_map(|fact| {
                b.iter()
                    .find(|other| other.is_comparable(fact))
                    .map(|other| LengthFact { add: fact.add.min(other.add), ..*fact })
            })
            .collect()
    }
}

/// What holds for the packet's length at a point of the code.
#[derive(Debug, Clone, Default)]
pub(super) struct LengthFacts {
    /// The value that the facts are about; a filter that changes the length makes a new one.
    length: Option<Value>,
    at_least: u32,
    sums: Vec<(Value, u32)>,
}

/// Facts kept at one point of the code, or about one condition; more than that helps no filter.
const MAX_LENGTH_FACTS: usize = 32;

impl LengthFacts {
    /// Adds those facts that are about `length`, the packet's length now. What was known about
    /// another length is forgotten.
    pub fn learn(&mut self, length: Value, facts: &[LengthFact]) {
        for fact in facts.iter().filter(|f| f.length == length) {
            if self.length != Some(length) {
                *self = LengthFacts { length: Some(length), ..LengthFacts::default() };
            }
            match fact.root {
                None => self.at_least = self.at_least.max(fact.add),
                Some(root) => match self.sums.iter_mut().find(|(r, _)| *r == root) {
                    Some((_, known)) => *known = (*known).max(fact.add),
                    None => {
                        if self.sums.len() < MAX_LENGTH_FACTS {
                            self.sums.push((root, fact.add));
                        }
                    }
                },
            }
        }
    }

    /// Whether `sum + size` bytes, `sum` being at most `high`, are known to be there.
    pub fn proves(&self, length: Value, sum: Sum, high: u32, size: u32) -> bool {
        if self.length != Some(length) {
            return false;
        }
        if high.checked_add(size).is_some_and(|end| end <= self.at_least) {
            return true;
        }
        let Some(need) = sum.add.checked_add(size) else { return false };
        match sum.root {
            None => need <= self.at_least,
            Some(root) => self.sums.iter().any(|&(r, add)| r == root && need <= add),
        }
    }

    /// What holds where two ways meet.
    pub fn meet(&self, other: &LengthFacts) -> LengthFacts {
        if self.length != other.length {
            return LengthFacts::default();
        }
        LengthFacts {
            length: self.length,
            at_least: self.at_least.min(other.at_least),
            sums: self
                .sums
                .iter()
                .filter_map(|&(root, add)| {
                    other.sums.iter().find(|(r, _)| *r == root).map(|&(_, theirs)| (root, add.min(theirs)))
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_codegen::entity::EntityRef;

    #[test]
    fn a_proof_needs_the_whole_access() {
        let (length, root, other) = (Value::new(1), Value::new(2), Value::new(3));
        let fact = |root, add| LengthFact { length, root, add };
        let mut lengths = LengthFacts::default();
        lengths.learn(length, &[fact(None, 34), fact(Some(root), 20)]);
        lengths.learn(length, &[LengthFact { length: other, root: None, add: 1000 }]);
        let at = |add| Sum { root: None, add };
        assert!(lengths.proves(length, at(30), 30, 4));
        assert!(!lengths.proves(length, at(31), 31, 4));
        assert!(!lengths.proves(length, at(u32::MAX), u32::MAX, 4));
        let from = |root, add| Sum { root: Some(root), add };
        assert!(lengths.proves(length, from(root, 18), u32::MAX, 2));
        assert!(!lengths.proves(length, from(root, 19), u32::MAX, 2));
        assert!(!lengths.proves(length, from(other, 0), u32::MAX, 1));
        assert!(lengths.proves(length, from(other, 0), 33, 1));
        assert!(!lengths.proves(other, at(0), 0, 1), "facts about another length prove nothing");
    }

    #[test]
    fn where_ways_meet_only_what_both_know_counts() {
        let (length, root) = (Value::new(1), Value::new(2));
        let (mut a, mut b) = (LengthFacts::default(), LengthFacts::default());
        a.learn(length, &[LengthFact { length, root: None, add: 34 }, LengthFact { length, root: Some(root), add: 8 }]);
        b.learn(length, &[LengthFact { length, root: None, add: 14 }]);
        let both = a.meet(&b);
        assert!(both.proves(length, Sum { root: None, add: 10 }, 10, 4));
        assert!(!both.proves(length, Sum { root: None, add: 14 }, 14, 1));
        assert!(!both.proves(length, Sum { root: Some(root), add: 0 }, u32::MAX, 1));
    }
}
