//! Facts about values: ranges, decompositions into sums, origins, and what conditions imply about
//! the packet's length. They allow loads to be emitted without a bounds check.

use std::collections::HashMap;

use cranelift_codegen::ir::{MemFlagsData, Value};
use portcullis_core::program::prelude::ByteOrder;

/// A lower bound of a packet's length: `length >= root + add`, a sum that does not wrap, or `length
/// >= add`. It names the length, because a filter may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LengthFact {
    pub length: Value,
    pub root: Option<Value>,
    pub add: u32,
}

impl LengthFact {
    /// Whether one of the two facts implies the other.
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

/// Bytes in the opposite order of a value's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteSwapped {
    /// The bytes as a 32-bit value, with zeros above them.
    pub raw: Value,
    /// Number of bytes: 2 or 4.
    pub size: u32,
}

impl ByteSwapped {
    /// Swaps the `size` low bytes of a number.
    pub fn swap(self, number: u32) -> u32 {
        match self.size {
            2 => u32::from((number as u16).swap_bytes()),
            _ => number.swap_bytes(),
        }
    }
}

/// The memory that a value was loaded from, which does not change while the filter runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadOrigin {
    pub flags: MemFlagsData,
    pub address: Value,
    /// Byte offset from the address.
    pub displacement: i32,
    pub size: u32,
    pub order: ByteOrder,
}

/// A select between constants: `condition ? accept : reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConstantSelect {
    pub condition: Value,
    pub accept: u32,
    pub reject: u32,
}

/// Facts about one 32-bit or boolean value.
#[derive(Debug, Clone, Default)]
pub(super) struct ValueInfo {
    range: Option<(u32, u32)>,
    sum: Option<Sum>,
    /// The value is these bytes, swapped.
    pub swapped: Option<ByteSwapped>,
    /// The value was loaded from constant memory.
    pub loaded: Option<LoadOrigin>,
    /// The value is a loaded value, shifted down by this many bytes; see [`ValueFacts::load_part`].
    pub part: Option<(Value, u32)>,
    /// The value is one of two constants.
    pub constant_select: Option<ConstantSelect>,
    /// The value is the negation of this condition.
    pub opposite: Option<Value>,
    /// The value is the packet's length.
    pub is_length: bool,
    /// The value is a valid verdict; see [`ValueFacts::is_verdict`].
    pub is_verdict: bool,
    when_true: Vec<LengthFact>,
    when_false: Vec<LengthFact>,
}

/// Facts by value. Values are in static single-assignment form, so facts stay true.
#[derive(Debug, Default)]
pub(super) struct ValueFacts {
    entries: HashMap<Value, ValueInfo>,
    nothing: ValueInfo,
}

impl ValueFacts {
    /// Returns the facts about a value.
    pub fn info(&self, value: Value) -> &ValueInfo {
        self.entries.get(&value).unwrap_or(&self.nothing)
    }

    /// Returns the facts about a value, to add to them.
    pub fn info_mut(&mut self, value: Value) -> &mut ValueInfo {
        self.entries.entry(value).or_default()
    }

    /// Smallest and largest number that the value can be, unsigned.
    pub fn range(&self, value: Value) -> (u32, u32) {
        self.info(value).range.unwrap_or((0, u32::MAX))
    }

    /// The value's number, if it can only be one.
    pub fn constant(&self, value: Value) -> Option<u32> {
        let (low, high) = self.range(value);
        (low == high).then_some(low)
    }

    /// Intersects the value's range with another one.
    pub fn set_range(&mut self, value: Value, low: u32, high: u32) {
        let (old_low, old_high) = self.range(value);
        let (low, high) = (low.max(old_low), high.min(old_high));
        debug_assert!(low <= high);
        self.info_mut(value).range = Some((low, high));
    }

    /// Decomposes a value into a sum.
    pub fn sum(&self, value: Value) -> Sum {
        if let Some(constant) = self.constant(value) {
            return Sum { root: None, add: constant };
        }
        self.info(value).sum.unwrap_or(Sum { root: Some(value), add: 0 })
    }

    /// Records that `value` is `base + add`, which does not wrap.
    pub fn set_sum(&mut self, value: Value, base: Value, add: u32) {
        let base = self.sum(base);
        // Since `base + add` does not wrap, neither does the sum of their constant parts.
        self.info_mut(value).sum = Some(Sum { root: base.root, add: base.add + add });
    }

    /// Returns the loaded value that `value` is the upper part of, and how many of its low bytes
    /// are missing.
    pub fn load_part(&self, value: Value) -> Option<(Value, u32)> {
        self.info(value).part.or_else(|| self.load_size(value).map(|_| (value, 0)))
    }

    /// Number of bytes that a value was loaded from, if they can be accessed singly.
    pub fn load_size(&self, value: Value) -> Option<u32> {
        let entry = self.info(value);
        entry.loaded.map(|l| l.size).or(entry.swapped.map(|s| s.size))
    }

    /// Whether the value is known to be a verdict: 0 to 3, or a result of `redirect`.
    pub fn is_verdict(&self, value: Value) -> bool {
        self.range(value).1 <= 3 || self.info(value).is_verdict
    }

    /// Facts that hold if the condition is `outcome`.
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

    /// Facts that follow from two conditions both holding.
    pub fn conjunction(a: &[LengthFact], b: &[LengthFact]) -> Vec<LengthFact> {
        let mut all = a.to_vec();
        for fact in b {
            let full = all.len() >= MAX_LENGTH_FACTS;
            match all.iter_mut().find(|other| other.is_comparable(fact)) {
                Some(known) => known.add = known.add.max(fact.add),
                // Dropping a fact is always safe.
                None if full => {}
                None => all.push(*fact),
            }
        }
        all
    }

    /// Facts that follow from at least one of two conditions holding.
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

/// Lower bounds of the packet's length at a point of the code.
#[derive(Debug, Clone, Default)]
pub(super) struct LengthFacts {
    /// The length that the facts are about. A filter that changes the length makes a new value.
    length: Option<Value>,
    at_least: u32,
    sums: Vec<(Value, u32)>,
}

/// Maximum number of facts at one point of the code or about one condition; more helps no filter.
const MAX_LENGTH_FACTS: usize = 32;

impl LengthFacts {
    /// Adds those facts that are about `length`, the packet's current length. Facts about a
    /// previous length are dropped.
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

    /// Whether `sum + size` bytes are known to be in the packet; `high` is an upper bound of `sum`.
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

    /// Returns what holds where two paths join.
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
