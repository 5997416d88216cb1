//! Recognition of additions to map values, which become atomic additions.
//!
//! C's `v->packets++` is a load, an addition and a store. Packets run side by side, so if what is
//! stored is what was loaded from the same field plus an amount, an atomic addition of the amount
//! is emitted instead.
//!
//! [`FieldAlias`] records that a number equals a field plus an amount: for what was loaded, sums of
//! it, and what was stored, until the field is written otherwise. At block boundaries aliases are
//! kept by the variables that hold numbers and pointers ([`CarriedAlias`]), and amounts are
//! variables.
//!
//! If a loaded number is used for more than additions, within the load's own block it becomes the
//! result of the atomic addition. Behind a branch it may have decided the path, so the store stays
//! a plain one there, and is reported as a possible lost update.

use super::BlockInterpreter;
use super::private_copy::ByteSpan;
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::{CarriedAlias, FieldLocation, METADATA_FRAME, Value};
use crate::ir::BinaryOp::*;
use crate::ir::{Argument, BlockCode, Call, Effect, Field, FieldAlias, Id, Op, Sum, Variable};
use portcullis_core::map::{ATOMIC_FUNCTION_PREFIX, AtomicOp};

/// Maximum depth of nested sums that are looked through.
const MAX_SUM_DEPTH: u32 = 6;

impl BlockInterpreter<'_, '_> {
    /// Records that a number was loaded from a field.
    pub(super) fn note_field_load(&mut self, field: Field, value: Value) {
        let load = self.facts.map_loads.intern((self.context, self.section as u32, self.pc as u32));
        let number = alias_key(field.size, (value.low, value.high));
        let zero = self.code.constant(0);
        let since = self.code.ops.len();
        let word = self.code.binary_const(Shr, field.at, 2);
        let next = self.code.binary_const(Add, word, 1);
        let is_unshared =
            self.is_unmodified_word(field.map, word) && (field.size < 8 || self.is_unmodified_word(field.map, next));
        let alias = FieldAlias { field, load, number, is_loaded_here: true, is_unshared, since, amount: (zero, zero) };
        self.code.field_aliases.insert(number, alias);
    }

    /// Emits an atomic addition if the stored value equals the field plus an amount. Returns
    /// whether it did.
    pub(super) fn try_fetch_add(&mut self, field: Field, value: Value, (span, fits): (ByteSpan, bool)) -> bool {
        let halves = (value.low, value.high);
        let Some(alias) = self.find_alias(field.size, halves, Some(field), MAX_SUM_DEPTH) else {
            if field.size < 4 && self.is_low_part_of_sum(field, value.low) {
                self.report_lost_update("it is loaded and stored in parts, like a member of a packed structure");
            }
            return false;
        };
        let is_observed = self.facts.observed_loads.contains(&alias.load);
        let lost = if !fits {
            Some("its offset is not known to be a multiple of its size")
        } else if !self.is_current(&alias) {
            Some("the map is written to between the load and the store")
        } else if is_observed && !alias.is_loaded_here {
            Some("the loaded value is used for more than the addition")
        } else {
            None
        };
        if let Some(reason) = lost {
            self.report_lost_update(reason);
            return false;
        }
        let before = self.code.field_aliases.get(&alias.number).copied();
        let before = before.filter(|it| it.field == field && self.is_current(it));
        let (entry, amount) = (self.entry_index(field.entry), alias.amount);
        let word = self.code.binary_const(Shr, field.at, 2);
        let (old, parts) = match field.size {
            8 => {
                let name = self.runtime_function(field.map, "add64");
                let old = self.code.call_values(&name, &[entry, word, amount.0, amount.1], Effect::Writes);
                let halves = self.split_pair(old);
                (old, vec![(alias.number.0, halves.0), (alias.number.1, halves.1)])
            }
            4 => {
                let old = self.code.call_values(
                    &self.map_function(field.map, "add"),
                    &[entry, word, amount.0],
                    Effect::Writes,
                );
                (old, vec![(alias.number.0, old)])
            }
            size => {
                let (shift, mask) = self.part_of_word(field.at, size);
                let old = self.call_change(field.map, AtomicOp::AddBits, &[entry, word, shift, mask, amount.0]);
                (old, vec![(alias.number.0, old)])
            }
        };
        // The packet's private copy counts if the packet may have stored there, or has added to it
        // and seen the result.
        let is_private = self.may_have_stored(span) || is_observed && !alias.is_unshared;
        self.update_private_copy(field, (entry, word), if is_private { None } else { Some(old) }, amount);
        if is_observed {
            if !is_private && !self.escapes_before(alias, old) {
                self.code.replaced_loads.extend(parts);
            }
        } else {
            // The stored number equals the field now, and a number loaded earlier is less by the
            // amount.
            if let Some(before) = before {
                let amount = self.combine_amounts(field.size, before.amount, amount, true);
                let since = self.code.ops.len();
                self.code.field_aliases.insert(alias.number, FieldAlias { since, amount, ..before });
            }
            let (zero, since) = (self.code.constant(0), self.code.ops.len());
            let stored = alias_key(field.size, halves);
            let is_loaded_here = alias.is_loaded_here && stored == alias.number;
            self.code.field_aliases.insert(stored, FieldAlias { is_loaded_here, since, amount: (zero, zero), ..alias });
            self.facts.add_only_loads.insert(alias.load);
        }
        true
    }

    /// Applies an addition to the packet's private copy: to the map's previous content, or to the
    /// copy's.
    fn update_private_copy(&mut self, field: Field, (entry, word): (Id, Id), before: Option<Id>, amount: (Id, Id)) {
        let Field { map, at, size, .. } = field;
        let next = self.code.binary_const(Add, word, 1);
        let Some(own) = self.private_word(map, word) else { return };
        match size {
            8 => {
                let Some(own_next) = self.private_word(map, next) else { return };
                let (low, high) = before.map_or((own, own_next), |before| self.split_pair(before));
                let (old, amount) =
                    (self.scalar(Interval::ANY, low, high), self.scalar(Interval::ANY, amount.0, amount.1));
                let (low, high) = self.add64(old, amount);
                self.write_private_word(map, entry, word, low);
                self.write_private_word(map, entry, next, high);
            }
            4 => {
                let sum = self.code.binary(Add, before.unwrap_or(own), amount.0);
                self.write_private_word(map, entry, word, sum);
            }
            size => {
                let (shift, mask) = self.part_of_word(at, size);
                let before = before.unwrap_or_else(|| self.code.binary(Shr, own, shift));
                let sum = self.code.binary(Add, before, amount.0);
                let bits = self.code.binary(Shl, sum, shift);
                self.write_private_bits(map, entry, word, mask, bits);
            }
        }
    }

    /// Whether the stored value is the field's content, possibly plus an amount.
    pub(super) fn is_derived_from_field(&mut self, field: Field, value: Value) -> bool {
        let is_sum = self.find_alias(field.size, (value.low, value.high), Some(field), MAX_SUM_DEPTH).is_some();
        is_sum || field.size < 4 && self.is_low_part_of_sum(field, value.low)
    }

    fn report_lost_update(&mut self, reason: &'static str) {
        self.facts.lost_update_sites.intern((self.section as u32, self.pc as u32, reason));
    }

    /// Whether the stored value is the low part of a sum of something that this field was the low
    /// part of.
    fn is_low_part_of_sum(&self, field: Field, low: Id) -> bool {
        let mut sum = low;
        while let Some(inner) = self.without_mask(sum, field.size) {
            sum = inner;
        }
        let Op::Binary(Add | Sub, a, b) = self.code.ops[sum as usize] else { return false };
        [a, b].into_iter().any(|mut part| {
            // Parts are combined from one side on.
            for _ in 0..8 {
                let Op::Binary(Or, a, b) = self.code.ops[part as usize] else { return false };
                let is_it = |id: Id| self.code.field_aliases.get(&(id, id)).is_some_and(|alias| alias.field == field);
                if is_it(a) || is_it(b) {
                    return true;
                }
                let is_or = |id: Id| matches!(self.code.ops[id as usize], Op::Binary(Or, ..));
                part = if is_or(a) { a } else { b };
            }
            false
        })
    }

    /// Whether the loaded number, or a value computed from it, has an effect before the addition
    /// that would provide it.
    fn escapes_before(&self, alias: FieldAlias, old: Id) -> bool {
        let first = alias.number.0.min(alias.number.1);
        let mut from = vec![false; old as usize];
        from[alias.number.0 as usize] = true;
        from[alias.number.1 as usize] = true;
        let is_from = |from: &[bool], op: &Op| BlockCode::operands(op).any(|operand| from[operand as usize]);
        let mut gone = false;
        for id in first as usize + 1..old as usize {
            let op = &self.code.ops[id];
            if is_from(&from, op) {
                from[id] = true;
                gone |= BlockCode::is_ordered(op);
            }
        }
        // The amount may itself depend on the number: `x += 2 * x`.
        gone || is_from(&from, &self.code.ops[old as usize])
    }

    /// The alias of a number: with field `of`, or with any field of this size.
    fn find_alias(&mut self, size: u32, halves: (Id, Id), of: Option<Field>, depth: u32) -> Option<FieldAlias> {
        let mut number = alias_key(size, halves);
        loop {
            let is_it = |alias: &&FieldAlias| of.map_or(alias.field.size == size, |field| alias.field == field);
            if let Some(alias) = self.code.field_aliases.get(&number).filter(is_it) {
                return Some(*alias);
            }
            match self.without_mask(number.0, size) {
                Some(inner) => number = (inner, inner),
                None => break,
            }
        }
        if depth == 0 {
            return None;
        }
        let Sum { left, right, is_difference } = self.sum_parts(size, number)?;
        if let Some(alias) = self.find_alias(size, left, of, depth - 1) {
            return Some(FieldAlias {
                amount: self.combine_amounts(size, alias.amount, right, is_difference),
                ..alias
            });
        }
        if is_difference {
            return None;
        }
        let alias = self.find_alias(size, right, of, depth - 1)?;
        Some(FieldAlias { amount: self.combine_amounts(size, alias.amount, left, false), ..alias })
    }

    /// The operand of a mask that keeps all bits of a field of this size.
    fn without_mask(&self, low: Id, size: u32) -> Option<Id> {
        let Op::Binary(And, inner, mask) = self.code.ops[low as usize] else { return None };
        let all = Interval::of_width(size.min(4)).high as u32;
        (size < 4 && self.code.as_constant(mask)? & all == all).then_some(inner)
    }

    /// The operands of a sum or difference of this size.
    fn sum_parts(&self, size: u32, number: (Id, Id)) -> Option<Sum> {
        if size == 8 {
            return self.code.sums.get(&number).copied();
        }
        match self.code.ops[number.0 as usize] {
            Op::Binary(op @ (Add | Sub), a, b) => Some(Sum { left: (a, a), right: (b, b), is_difference: op == Sub }),
            _ => None,
        }
    }

    /// Adds an amount to another, or subtracts it.
    fn combine_amounts(&mut self, size: u32, amount: (Id, Id), by: (Id, Id), is_less: bool) -> (Id, Id) {
        if size < 8 {
            let sum = self.code.binary(if is_less { Sub } else { Add }, amount.0, by.0);
            return (sum, sum);
        }
        if !is_less && [amount.0, amount.1].iter().all(|&half| self.code.as_constant(half) == Some(0)) {
            return by;
        }
        let number = |interp: &mut Self, (low, high): (Id, Id)| interp.scalar(Interval::ANY, low, high);
        let (amount, by) = (number(self, amount), number(self, by));
        if is_less { self.sub64(amount, by) } else { self.add64(amount, by) }
    }

    /// Whether the field has not been written since the alias was recorded.
    fn is_current(&self, alias: &FieldAlias) -> bool {
        !self.code.ops[alias.since..].iter().any(|op| may_write_field(op, self, alias.field))
    }

    /// Records the valid aliases in the exit state, by the variables that hold the numbers.
    pub(crate) fn save_field_aliases(&mut self) {
        if self.code.field_aliases.is_empty() {
            return;
        }
        let places = self.stored_values();
        let mut field_aliases = Vec::new();
        for &(number, value) in places.iter().filter(|(_, value)| is_unknown_scalar(value.ty)) {
            let Some((alias, found)) = self.find_locatable_alias((value.low, value.high), &places) else { continue };
            let FieldAlias { field: Field { map, size, .. }, load, amount: halves, .. } = alias;
            let has_amount = [halves.0, halves.1].iter().any(|&half| self.code.as_constant(half) != Some(0));
            field_aliases.extend(found.into_iter().map(|place| CarriedAlias {
                number,
                map,
                place,
                size,
                load,
                has_amount,
            }));
            self.code.amounts.extend([(amount_variable(number, 0), halves.0), (amount_variable(number, 1), halves.1)]);
        }
        field_aliases.sort_unstable();
        self.state.field_aliases = field_aliases;
    }

    /// The alias of a number with the widest field whose location can be named in the next block,
    /// and that location.
    fn find_locatable_alias(
        &mut self,
        halves: (Id, Id),
        places: &[(Variable, Value)],
    ) -> Option<(FieldAlias, Vec<FieldLocation>)> {
        for size in [8, 4, 2, 1] {
            let Some(alias) = self.find_alias(size, halves, None, MAX_SUM_DEPTH).filter(|alias| self.is_current(alias))
            else {
                continue;
            };
            let found = self.field_locations(alias.field, places);
            if !found.is_empty() {
                return Some((alias, found));
            }
        }
        None
    }

    /// Locations of a field in terms of what the next block knows.
    fn field_locations(&self, field: Field, places: &[(Variable, Value)]) -> Vec<FieldLocation> {
        if let (Some(entry), Some(at)) = (self.code.as_constant(field.entry), self.code.as_constant(field.at)) {
            return vec![FieldLocation::Constant { entry, at }];
        }
        let behind = |&(pointer, it): &(Variable, Value)| match it.ty {
            RegType::MapValue { map, .. } if map == field.map && it.high == field.entry => {
                Some(FieldLocation::Relative { pointer, off: self.code.offset_between(it.low, field.at)? })
            }
            _ => None,
        };
        places.iter().filter_map(behind).collect()
    }

    /// Restores the aliases of the entry state.
    pub(super) fn restore_field_aliases(&mut self) {
        for carried in std::mem::take(&mut self.state.field_aliases) {
            let CarriedAlias { number: place, map, size, load, has_amount, .. } = carried;
            let Some(value) = self.value_at(place) else { continue };
            let (entry, at) = match carried.place {
                FieldLocation::Constant { entry, at } => (self.code.constant(entry), self.code.constant(at)),
                FieldLocation::Relative { pointer, off } => match self.value_at(pointer) {
                    Some(it) if matches!(it.ty, RegType::MapValue { map: of, .. } if of == map) => {
                        (it.high, self.code.binary_const(Add, it.low, off))
                    }
                    _ => continue,
                },
            };
            if !is_unknown_scalar(value.ty) {
                continue;
            }
            let amount = match has_amount {
                true => (self.code.variable(amount_variable(place, 0)), self.code.variable(amount_variable(place, 1))),
                false => (self.code.constant(0), self.code.constant(0)),
            };
            let number = alias_key(size, (value.low, value.high));
            let field = Field { map, entry, at, size };
            let alias = FieldAlias { field, load, number, is_loaded_here: false, is_unshared: false, since: 0, amount };
            self.code.field_aliases.insert(number, alias);
        }
    }

    /// Registers and spilled registers that have values, without indexed frames.
    fn stored_values(&self) -> Vec<(Variable, Value)> {
        let memory = self.facts.indexed_frames;
        let is_variable = |var: &Variable| !matches!(var, Variable::Stack { frame, .. } if memory[usize::from(*frame)]);
        let mut all = self.state.loaded_values();
        all.retain(|(var, _)| is_variable(var));
        all
    }

    /// The value of a register or spilled register.
    fn value_at(&mut self, place: Variable) -> Option<Value> {
        let frames = self.state.frames.len();
        match place {
            Variable::Register { frame, register, half: 0 } if usize::from(frame) < frames => {
                let other = Variable::Register { frame, register, half: 1 };
                let mut value = *self.state.register(frame, register);
                self.materialize(&mut value, (place, other));
                *self.state.register(frame, register) = value;
                Some(value)
            }
            Variable::Stack { frame, word } if frame != METADATA_FRAME && usize::from(frame) < frames => {
                if self.facts.indexed_frames[usize::from(frame)] {
                    return None;
                }
                let low = self.read_stack_word(frame, usize::from(word));
                let words = self.state.words(frame);
                let ty = words[usize::from(word)].ty;
                let is_whole = words.get(usize::from(word) + 1).is_some_and(|rest| rest.is_high_half);
                let high = is_whole.then(|| self.read_stack_word(frame, usize::from(word) + 1))?;
                Some(Value { ty, low, high })
            }
            _ => None,
        }
    }
}

/// Whether a type is a scalar that is not constant.
fn is_unknown_scalar(ty: RegType) -> bool {
    matches!(ty, RegType::Scalar(range) if range.as_constant().is_none())
}

/// The key of a number among the aliases; below 64 bits the low half identifies it.
fn alias_key(size: u32, (low, high): (Id, Id)) -> (Id, Id) {
    if size == 8 { (low, high) } else { (low, low) }
}

/// The variable that holds the amount of the alias of a register or stack word.
fn amount_variable(place: Variable, half: u8) -> Variable {
    match place {
        Variable::Register { frame, register, .. } => {
            Variable::Amount { frame, register: Some(register), word: 0, half }
        }
        Variable::Stack { frame, word } => Variable::Amount { frame, register: None, word, half },
        Variable::Amount { .. } | Variable::PrivateWord { .. } | Variable::CarriedRead { .. } => {
            unreachable!("numbers with aliases are in registers and on the stack")
        }
    }
}

/// Whether an operation may write to a field.
fn may_write_field(op: &Op, interp: &BlockInterpreter, field: Field) -> bool {
    let Op::Call(Call { function, effect: Effect::Writes, arguments }) = op else { return false };
    let name = &interp.linked.maps[usize::from(field.map)].name;
    let own = function.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('_'));
    let of_helper = function.strip_prefix("x_").or(function.strip_prefix(ATOMIC_FUNCTION_PREFIX));
    let of_helper = of_helper.and_then(|rest| rest.strip_prefix(name.as_str()));
    if !own && of_helper.is_none_or(|rest| !rest.starts_with('_')) {
        return false;
    }
    // Constant words of the same map that do not overlap are distinct.
    let word = match arguments.get(1) {
        Some(Argument::Value(word)) => interp.code.as_constant(*word),
        _ => None,
    };
    let first = interp.code.as_constant(field.at).map(|at| at / 4);
    match (word, first) {
        (Some(word), Some(first)) => {
            // A 64-bit addition covers two words.
            let length = if function.ends_with("add64") { 2 } else { 1 };
            word < first + field.size.div_ceil(4) && first < word + length
        }
        _ => true,
    }
}
