//! Additions to maps' values. C's `v->packets++` is a load, an addition and a store. Packets run side by side, so where what
//! is stored is what was loaded from there and an amount, that is an atomic addition of the amount.
//!
//! It is known of numbers that they are what a field of a value holds, and by how much more ([`Held`]): of what was loaded, what
//! that was added to, and what was stored; as long as nothing else is written there. Between blocks that is kept by where numbers
//! and pointers are ([`Holding`]), and the amounts are in variables.
//!
//! Where the number is asked for by more than additions, in the load's own block it is what the atomic addition gives. Behind a
//! branch it may have decided on the way, so that there the store stays as it is, and `check` says so.

use super::Walk;
use super::private_copy::Span;
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{FieldPlace, Holding, META, Ty, Value};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Argument, Call, Code, Effect, Field, Held, Id, Op, Sum, Var};
use portcullis_core::map::{ATOMIC_FUNCTION_PREFIX, AtomicOp};

/// Sums of sums that are looked through.
const DEPTH: u32 = 6;

impl Walk<'_, '_> {
    /// Remembers that a number was loaded from a field.
    pub(super) fn loaded(&mut self, field: Field, value: Value) {
        let load = self.shared.loads.of((self.context, self.section as u32, self.at as u32));
        let number = key(field.size, (value.low, value.high));
        let zero = self.code.known(0);
        let since = self.code.ops.len();
        let word = self.code.by(Shr, field.at, 2);
        let next = self.code.by(Add, word, 1);
        let is_alone = self.is_fresh(field.map, word) && (field.size < 8 || self.is_fresh(field.map, next));
        let held = Held { field, load, number, is_own: true, is_alone, since, amount: (zero, zero) };
        self.code.held.insert(number, held);
    }

    /// Where what is stored in a field is what it holds and an amount, adds that at once; whether it does.
    pub(super) fn added(&mut self, field: Field, value: Value, (span, fits): (Span, bool)) -> bool {
        let halves = (value.low, value.high);
        let Some(held) = self.held(field.size, halves, Some(field), DEPTH) else {
            if field.size < 4 && self.is_part(field, value.low) {
                self.lost("it is loaded and stored in parts, as members of packed structures are");
            }
            return false;
        };
        let is_observed = self.shared.observed.contains(&held.load);
        let lost = if !fits {
            Some("its offset is not known to be a multiple of its size")
        } else if !self.is_current(&held) {
            Some("the map is written to between the load and the store")
        } else if is_observed && !held.is_own {
            Some("what was loaded is asked for by more than the addition")
        } else {
            None
        };
        if let Some(reason) = lost {
            self.lost(reason);
            return false;
        }
        let before = self.code.held.get(&held.number).copied();
        let before = before.filter(|it| it.field == field && self.is_current(it));
        let (entry, amount) = (self.entry(field.entry), held.amount);
        let word = self.code.by(Shr, field.at, 2);
        let (old, parts) = match field.size {
            8 => {
                let name = self.helper_of(field.map, "add64");
                let old = self.code.call_with(&name, &[entry, word, amount.0, amount.1], Effect::Writes);
                let halves = self.pair(old);
                (old, vec![(held.number.0, halves.0), (held.number.1, halves.1)])
            }
            4 => {
                let old = self.code.call_with(&self.named(field.map, "add"), &[entry, word, amount.0], Effect::Writes);
                (old, vec![(held.number.0, old)])
            }
            size => {
                let (shift, mask) = self.part(field.at, size);
                let old = self.change(field.map, AtomicOp::AddBits, &[entry, word, shift, mask, amount.0]);
                (old, vec![(held.number.0, old)])
            }
        };
        // What the packet may have stored itself is its own, and so is what it has added to before, and has seen.
        let is_own = self.may_have_stored(span) || is_observed && !held.is_alone;
        self.add_to_own(field, (entry, word), if is_own { None } else { Some(old) }, amount);
        if is_observed {
            if !is_own && !self.is_gone(held, old) {
                self.code.aliases.extend(parts);
            }
        } else {
            // What is stored there is what is there, and what was loaded is less by what was added.
            if let Some(before) = before {
                let amount = self.more(field.size, before.amount, amount, true);
                let since = self.code.ops.len();
                self.code.held.insert(held.number, Held { since, amount, ..before });
            }
            let (zero, since) = (self.code.known(0), self.code.ops.len());
            let stored = key(field.size, halves);
            let is_own = held.is_own && stored == held.number;
            self.code.held.insert(stored, Held { is_own, since, amount: (zero, zero), ..held });
            self.shared.added.insert(held.load);
        }
        true
    }

    /// What an addition makes of the packet's copy: of what the map had before, or of what the copy has.
    fn add_to_own(&mut self, field: Field, (entry, word): (Id, Id), before: Option<Id>, amount: (Id, Id)) {
        let Field { map, at, size, .. } = field;
        let next = self.code.by(Add, word, 1);
        let Some(own) = self.own_word(map, word) else { return };
        match size {
            8 => {
                let Some(own_next) = self.own_word(map, next) else { return };
                let (low, high) = before.map_or((own, own_next), |before| self.pair(before));
                let (old, amount) = (self.number(Range::ANY, low, high), self.number(Range::ANY, amount.0, amount.1));
                let (low, high) = self.sum(old, amount);
                self.set_own_word(map, entry, word, low);
                self.set_own_word(map, entry, next, high);
            }
            4 => {
                let sum = self.code.binary(Add, before.unwrap_or(own), amount.0);
                self.set_own_word(map, entry, word, sum);
            }
            size => {
                let (shift, mask) = self.part(at, size);
                let before = before.unwrap_or_else(|| self.code.binary(Shr, own, shift));
                let sum = self.code.binary(Add, before, amount.0);
                let bits = self.code.binary(Shl, sum, shift);
                self.set_own(map, entry, word, mask, bits);
            }
        }
    }

    /// Whether what is stored in a field is what it holds and perhaps an amount.
    pub(super) fn is_made_of(&mut self, field: Field, value: Value) -> bool {
        let is_sum = self.held(field.size, (value.low, value.high), Some(field), DEPTH).is_some();
        is_sum || field.size < 4 && self.is_part(field, value.low)
    }

    fn lost(&mut self, reason: &'static str) {
        self.shared.losses.of((self.section as u32, self.at as u32, reason));
    }

    /// Whether what is stored in a field is the lowest part of a sum, of something that this field was the lowest part of.
    fn is_part(&self, field: Field, low: Id) -> bool {
        let mut sum = low;
        while let Some(inner) = self.cut(sum, field.size) {
            sum = inner;
        }
        let Op::Binary(Add | Sub, a, b) = self.code.ops[sum as usize] else { return false };
        [a, b].into_iter().any(|mut part| {
            // Parts are put together from one side on.
            for _ in 0..8 {
                let Op::Binary(Or, a, b) = self.code.ops[part as usize] else { return false };
                let is_it = |id: Id| self.code.held.get(&(id, id)).is_some_and(|held| held.field == field);
                if is_it(a) || is_it(b) {
                    return true;
                }
                let is_or = |id: Id| matches!(self.code.ops[id as usize], Op::Binary(Or, ..));
                part = if is_or(a) { a } else { b };
            }
            false
        })
    }

    /// Whether what was loaded, or is made of it, went elsewhere before the addition, which else would give it.
    fn is_gone(&self, held: Held, old: Id) -> bool {
        let first = held.number.0.min(held.number.1);
        let mut from = vec![false; old as usize];
        from[held.number.0 as usize] = true;
        from[held.number.1 as usize] = true;
        let is_from = |from: &[bool], op: &Op| Code::operands(op).any(|operand| from[operand as usize]);
        let mut gone = false;
        for id in first as usize + 1..old as usize {
            let op = &self.code.ops[id];
            if is_from(&from, op) {
                from[id] = true;
                gone |= Code::is_in_order(op);
            }
        }
        // What is added may be made of it: `x += 2 * x`.
        gone || is_from(&from, &self.code.ops[old as usize])
    }

    /// What is known to be held of a number: of this field, or of any.
    fn held(&mut self, size: u32, halves: (Id, Id), of: Option<Field>, depth: u32) -> Option<Held> {
        let mut number = key(size, halves);
        loop {
            let is_it = |held: &&Held| of.map_or(held.field.size == size, |field| held.field == field);
            if let Some(held) = self.code.held.get(&number).filter(is_it) {
                return Some(*held);
            }
            match self.cut(number.0, size) {
                Some(inner) => number = (inner, inner),
                None => break,
            }
        }
        if depth == 0 {
            return None;
        }
        let Sum { left, right, is_difference } = self.sum_of(size, number)?;
        if let Some(held) = self.held(size, left, of, depth - 1) {
            return Some(Held { amount: self.more(size, held.amount, right, is_difference), ..held });
        }
        if is_difference {
            return None;
        }
        let held = self.held(size, right, of, depth - 1)?;
        Some(Held { amount: self.more(size, held.amount, left, false), ..held })
    }

    /// What a number was cut from, where no bit was that a field of this size has.
    fn cut(&self, low: Id, size: u32) -> Option<Id> {
        let Op::Binary(And, inner, mask) = self.code.ops[low as usize] else { return None };
        let all = Range::of_bytes(size.min(4)).high as u32;
        (size < 4 && self.code.value(mask)? & all == all).then_some(inner)
    }

    /// The parts of a sum or difference of so many bytes.
    fn sum_of(&self, size: u32, number: (Id, Id)) -> Option<Sum> {
        if size == 8 {
            return self.code.sums.get(&number).copied();
        }
        match self.code.ops[number.0 as usize] {
            Op::Binary(op @ (Add | Sub), a, b) => Some(Sum { left: (a, a), right: (b, b), is_difference: op == Sub }),
            _ => None,
        }
    }

    /// An amount and another, or less that.
    fn more(&mut self, size: u32, amount: (Id, Id), by: (Id, Id), is_less: bool) -> (Id, Id) {
        if size < 8 {
            let sum = self.code.binary(if is_less { Sub } else { Add }, amount.0, by.0);
            return (sum, sum);
        }
        if !is_less && [amount.0, amount.1].iter().all(|&half| self.code.value(half) == Some(0)) {
            return by;
        }
        let number = |walk: &mut Self, (low, high): (Id, Id)| walk.number(Range::ANY, low, high);
        let (amount, by) = (number(self, amount), number(self, by));
        if is_less { self.difference(amount, by) } else { self.sum(amount, by) }
    }

    /// Whether nothing was written there since.
    fn is_current(&self, held: &Held) -> bool {
        !self.code.ops[held.since..].iter().any(|op| writes(op, self, held.field))
    }

    /// What is held when the block ends, by where it is.
    pub(crate) fn leave_holdings(&mut self) {
        if self.code.held.is_empty() {
            return;
        }
        let places = self.places();
        let mut holdings = Vec::new();
        for &(number, value) in places.iter().filter(|(_, value)| is_unknown(value.ty)) {
            let Some((held, found)) = self.held_somewhere((value.low, value.high), &places) else { continue };
            let Held { field: Field { map, size, .. }, load, amount: halves, .. } = held;
            let is_more = [halves.0, halves.1].iter().any(|&half| self.code.value(half) != Some(0));
            holdings.extend(found.into_iter().map(|place| Holding { number, map, place, size, load, is_more }));
            self.code.amounts.extend([(amount(number, 0), halves.0), (amount(number, 1), halves.1)]);
        }
        holdings.sort_unstable();
        self.state.holdings = holdings;
    }

    /// What is held of a number still, by the widest field that it is of, and where that is.
    fn held_somewhere(&mut self, halves: (Id, Id), places: &[(Var, Value)]) -> Option<(Held, Vec<FieldPlace>)> {
        for size in [8, 4, 2, 1] {
            let Some(held) = self.held(size, halves, None, DEPTH).filter(|held| self.is_current(held)) else {
                continue;
            };
            let found = self.field_places(held.field, places);
            if !found.is_empty() {
                return Some((held, found));
            }
        }
        None
    }

    /// Where a field is, said by what is still known in the next block.
    fn field_places(&self, field: Field, places: &[(Var, Value)]) -> Vec<FieldPlace> {
        if let (Some(entry), Some(at)) = (self.code.value(field.entry), self.code.value(field.at)) {
            return vec![FieldPlace::Known { entry, at }];
        }
        let behind = |&(pointer, it): &(Var, Value)| match it.ty {
            Ty::Value { map, .. } if map == field.map && it.high == field.entry => {
                Some(FieldPlace::Behind { pointer, off: self.code.distance(it.low, field.at)? })
            }
            _ => None,
        };
        places.iter().filter_map(behind).collect()
    }

    /// Takes in what is held when the block begins.
    pub(super) fn take_holdings(&mut self) {
        for holding in std::mem::take(&mut self.state.holdings) {
            let Holding { number: place, map, size, load, is_more, .. } = holding;
            let Some(value) = self.at_place(place) else { continue };
            let (entry, at) = match holding.place {
                FieldPlace::Known { entry, at } => (self.code.known(entry), self.code.known(at)),
                FieldPlace::Behind { pointer, off } => match self.at_place(pointer) {
                    Some(it) if matches!(it.ty, Ty::Value { map: of, .. } if of == map) => {
                        (it.high, self.code.by(Add, it.low, off))
                    }
                    _ => continue,
                },
            };
            if !is_unknown(value.ty) {
                continue;
            }
            let amount = match is_more {
                true => (self.code.var(amount(place, 0)), self.code.var(amount(place, 1))),
                false => (self.code.known(0), self.code.known(0)),
            };
            let number = key(size, (value.low, value.high));
            let field = Field { map, entry, at, size };
            let held = Held { field, load, number, is_own: false, is_alone: false, since: 0, amount };
            self.code.held.insert(number, held);
        }
    }

    /// Registers and words of the stack that hold something whole, with what they hold.
    fn places(&self) -> Vec<(Var, Value)> {
        let memory = self.shared.memory;
        let is_variable = |var: &Var| !matches!(var, Var::Stack { frame, .. } if memory[usize::from(*frame)]);
        let mut all = self.state.whole_values();
        all.retain(|(var, _)| is_variable(var));
        all
    }

    /// What is at such a place.
    fn at_place(&mut self, place: Var) -> Option<Value> {
        let frames = self.state.frames.len();
        match place {
            Var::Register { frame, register, half: 0 } if usize::from(frame) < frames => {
                let other = Var::Register { frame, register, half: 1 };
                let mut value = *self.state.register(frame, register);
                self.wake(&mut value, (place, other));
                *self.state.register(frame, register) = value;
                Some(value)
            }
            Var::Stack { frame, word } if frame != META && usize::from(frame) < frames => {
                if self.shared.memory[usize::from(frame)] {
                    return None;
                }
                let low = self.word_at(frame, usize::from(word));
                let words = self.state.words(frame);
                let ty = words[usize::from(word)].ty;
                let is_whole = words.get(usize::from(word) + 1).is_some_and(|rest| rest.is_rest);
                let high = is_whole.then(|| self.word_at(frame, usize::from(word) + 1))?;
                Some(Value { ty, low, high })
            }
            _ => None,
        }
    }
}

/// Whether it is a number of which nobody knows which.
fn is_unknown(ty: Ty) -> bool {
    matches!(ty, Ty::Number(range) if range.exact().is_none())
}

/// What a number goes by: of fewer than 64 bits the lower half is all of it.
fn key(size: u32, (low, high): (Id, Id)) -> (Id, Id) {
    if size == 8 { (low, high) } else { (low, low) }
}

/// The variable of the amount of what is at a place.
fn amount(place: Var, half: u8) -> Var {
    match place {
        Var::Register { frame, register, .. } => Var::Amount { frame, register: Some(register), word: 0, half },
        Var::Stack { frame, word } => Var::Amount { frame, register: None, word, half },
        Var::Amount { .. } | Var::Own { .. } | Var::Read { .. } => {
            unreachable!("numbers that are held are in registers and on the stack")
        }
    }
}

/// Whether an operation may write to a field.
fn writes(op: &Op, walk: &Walk, field: Field) -> bool {
    let Op::Call(Call { function, effect: Effect::Writes, arguments }) = op else { return false };
    let name = &walk.linked.maps[usize::from(field.map)].name;
    let own = function.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('_'));
    let of_helper = function.strip_prefix("x_").or(function.strip_prefix(ATOMIC_FUNCTION_PREFIX));
    let of_helper = of_helper.and_then(|rest| rest.strip_prefix(name.as_str()));
    if !own && of_helper.is_none_or(|rest| !rest.starts_with('_')) {
        return false;
    }
    // The same entry's other words are others.
    let word = match arguments.get(1) {
        Some(Argument::One(word)) => walk.code.value(*word),
        _ => None,
    };
    let first = walk.code.value(field.at).map(|at| at / 4);
    match (word, first) {
        (Some(word), Some(first)) => {
            // A sum of 64 bits is two words from its first on.
            let length = if function.ends_with("add64") { 2 } else { 1 };
            word < first + field.size.div_ceil(4) && first < word + length
        }
        _ => true,
    }
}
