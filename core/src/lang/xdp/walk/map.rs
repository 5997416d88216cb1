//! Maps: entries, and their values word by word.

use super::{Result, Walk};
use crate::lang::xdp::code::Binary::*;
use crate::lang::xdp::code::{Argument, Call, Code, Effect, Field, Id, Op};
use crate::lang::xdp::maps::Use;
use crate::lang::xdp::range::Range;
use crate::lang::xdp::types::{Offsets, Ty, Value};

/// An entry of a map's, as filters have it: `MAP_NONE`.
const NONE: u32 = u32::MAX;

impl Walk<'_, '_> {
    /// A map that a helper is given.
    pub(super) fn map(&mut self, value: Value) -> Result<u16> {
        match value.ty {
            Ty::Map(map) => {
                self.shared.used.insert(map);
                match &self.linked.maps[usize::from(map)].used_as {
                    Use::Refused(why) => self.refuse(why.clone()),
                    _ => Ok(map),
                }
            }
            other => {
                let what = other.words();
                self.refuse(format!("a helper is given {what} for a map"))
            }
        }
    }

    fn named(&self, map: u16, end: &str) -> String {
        format!("{}_{end}", self.linked.maps[usize::from(map)].name)
    }

    fn helper_of(&self, map: u16, end: &str) -> String {
        format!("x_{}_{end}", self.linked.maps[usize::from(map)].name)
    }

    /// The number that an entry goes by in memory: what is in a pointer's high half, less one.
    fn entry(&mut self, high: Id) -> Id {
        self.code.by(Add, high, u32::MAX)
    }

    /// The entry of a key, as a pointer's high half.
    pub(super) fn found(&mut self, map: u16, key: Value) -> Result<Id> {
        let info = &self.linked.maps[usize::from(map)];
        let (entries, key_size) = (info.definition.max_entries, info.definition.key_size);
        let (used_as, is_of_targets) = (info.used_as.clone(), info.definition.ty.is_of_targets());
        let words = self.words(key, key_size, "the key")?;
        match used_as {
            Use::Array => {
                let entries = self.code.known(entries);
                let mut is_one = self.code.binary(Lt, words[0], entries);
                if is_of_targets {
                    // What nothing was put into is not there.
                    let slot = self.slot_of(map, words[0]);
                    let there = self.code.by(Ne, slot, 0);
                    is_one = self.code.binary(Both, is_one, there);
                }
                let (entry, null) = (self.code.by(Add, words[0], 1), self.code.known(0));
                Ok(self.code.select(is_one, entry, null))
            }
            Use::Hash => {
                let entry = self.by_key(map, "find", words, Effect::Reads);
                Ok(self.code.by(Add, entry, 1))
            }
            Use::Lpm => {
                let bits = 8 * (key_size - 4);
                let (length, address) = (words[0], words[1..].to_vec());
                if self.code.value(length) != Some(bits) {
                    let bits = self.code.known(bits);
                    let short = self.code.binary(Lt, length, bits);
                    self.trap(short, "an LPM trie is searched for a prefix that is no whole address");
                }
                let address = address.into_iter().map(|word| self.code.swap32(word)).collect();
                let entry = self.by_key(map, "find", address, Effect::Reads);
                Ok(self.code.by(Add, entry, 1))
            }
            Use::Refused(why) => self.refuse(why),
        }
    }

    fn by_key(&mut self, map: u16, end: &str, words: Vec<Id>, effect: Effect) -> Id {
        let argument = match words[..] {
            [one] => Argument::One(one),
            _ => Argument::Words(words),
        };
        self.code.call(&self.named(map, end), vec![argument], effect)
    }

    /// `bpf_map_lookup_elem`
    pub(super) fn lookup(&mut self, map: u16, key: Value) -> Result<Value> {
        if self.linked.maps[usize::from(map)].definition.ty.holds_no_values() {
            return self.refuse("this map's entries cannot be looked at");
        }
        let high = self.found(map, key)?;
        let (low, name) = (self.code.known(0), self.name());
        Ok(Value { ty: Ty::Value { map, off: Offsets::one(0), name, nullable: true }, low, high })
    }

    /// `bpf_map_update_elem`
    pub(super) fn update(&mut self, map: u16, key: Value, value: Value, flags: Value) -> Result<Value> {
        let range = self.expect_number(flags, "what the flags are")?;
        let info = &self.linked.maps[usize::from(map)];
        let (key_size, size) = (info.definition.key_size, info.definition.value_size);
        let used_as = info.used_as.clone();
        let (exists, no_room, none, wrong) = (-17, -7, -2, -22);
        let words = self.words(value, size, "the value")?;
        let Some(flags) = range.exact() else {
            return self.update_by(map, key, &words, flags);
        };
        if flags > 2 {
            return Ok(self.constant(i64::from(wrong) as u64));
        }
        let (entry, result) = match used_as {
            Use::Array => {
                let high = self.found(map, key)?;
                let there = self.code.by(Ne, high, 0);
                if flags == 1 {
                    let (low, none) = (self.code.known(exists as u32), self.code.known(no_room as u32));
                    let (low, high) = (self.code.select(there, low, none), self.code.known(u32::MAX));
                    return Ok(self.number(Range::ANY, low, high));
                }
                (self.entry(high), self.outcome(there, no_room))
            }
            Use::Hash if flags == 2 => {
                let high = self.found(map, key)?;
                let there = self.code.by(Ne, high, 0);
                (self.entry(high), self.outcome(there, none))
            }
            Use::Hash => {
                let words = self.words(key, key_size, "the key")?;
                let given = self.by_key(map, "insert", words, Effect::Writes);
                let full = self.code.by(Eq, given, NONE - 1);
                let room = self.code.not(full);
                let has_room = self.outcome(room, no_room);
                if flags == 0 {
                    (given, has_room)
                } else {
                    let is_new = self.code.call_with("map_is_new", &[given], Effect::None);
                    let nobody = self.code.known(NONE);
                    let entry = self.code.select(is_new, given, nobody);
                    let (low, high) = (self.code.known(exists as u32), self.code.known(u32::MAX));
                    let settled = self.code.binary(Either, is_new, full);
                    let low = self.code.select(settled, has_room.low, low);
                    let high = self.code.select(settled, has_room.high, high);
                    (entry, self.number(Range::ANY, low, high))
                }
            }
            Use::Lpm => return self.refuse("a program adds to an LPM trie, which only the host can do here"),
            Use::Refused(why) => return self.refuse(why),
        };
        let write = self.named(map, "write");
        for (word, value) in (0..).zip(words) {
            let word = self.code.known(word);
            self.code.call_with(&write, &[entry, word, value], Effect::Writes);
        }
        Ok(result)
    }

    /// The same by flags that are known only when the packet is there.
    fn update_by(&mut self, map: u16, key: Value, words: &[Id], flags: Value) -> Result<Value> {
        let info = &self.linked.maps[usize::from(map)];
        let (key_size, used_as) = (info.definition.key_size, info.used_as.clone());
        let (three, few) = (self.code.known(3), self.code.by(Eq, flags.high, 0));
        let flags = self.code.select(few, flags.low, three);
        // An entry, or one of these.
        let (missing, full, exists, wrong) = (NONE, NONE - 1, NONE - 2, NONE - 3);
        let entry = match used_as {
            Use::Hash => {
                let key = self.words(key, key_size, "the key")?;
                let key = match key[..] {
                    [one] => Argument::One(one),
                    _ => Argument::Words(key),
                };
                self.code.call(&self.helper_of(map, "update"), vec![key, Argument::One(flags)], Effect::Writes)
            }
            Use::Array => {
                let high = self.found(map, key)?;
                let [full, exists, wrong] = [full, exists, wrong].map(|it| self.code.known(it));
                let (entry, there) = (self.entry(high), self.code.by(Ne, high, 0));
                let makes = self.code.by(Eq, flags, 1);
                let entry = self.code.select(makes, exists, entry);
                let entry = self.code.select(there, entry, full);
                let two = self.code.known(2);
                let many = self.code.binary(Lt, two, flags);
                self.code.select(many, wrong, entry)
            }
            Use::Lpm => return self.refuse("a program adds to an LPM trie, which only the host can do here"),
            Use::Refused(why) => return self.refuse(why),
        };
        let write = self.named(map, "write");
        for (word, &value) in (0..).zip(words) {
            let word = self.code.known(word);
            self.code.call_with(&write, &[entry, word, value], Effect::Writes);
        }
        let (mut low, mut high) = (self.code.known(0), self.code.known(0));
        let all = self.code.known(u32::MAX);
        for (what, error) in [(missing, -2), (full, -7), (exists, -17), (wrong, -22)] {
            let is_it = self.code.by(Eq, entry, what);
            let error = self.code.known(error as u32);
            (low, high) = (self.code.select(is_it, error, low), self.code.select(is_it, all, high));
        }
        Ok(self.number(Range::ANY, low, high))
    }

    /// `bpf_map_delete_elem`
    pub(super) fn delete(&mut self, map: u16, key: Value) -> Result<Value> {
        let info = &self.linked.maps[usize::from(map)];
        let key_size = info.definition.key_size;
        match info.used_as.clone() {
            Use::Array => Ok(self.constant(-22_i64 as u64)),
            Use::Hash => {
                let words = self.words(key, key_size, "the key")?;
                let there = self.by_key(map, "remove", words, Effect::Writes);
                Ok(self.outcome(there, -2))
            }
            Use::Lpm => self.refuse("a program removes from an LPM trie, which only the host can do here"),
            Use::Refused(why) => self.refuse(why),
        }
    }

    /// Where an access of a value begins; it lies in the value, or the packet has been aborted.
    fn in_value(&mut self, pointer: Value, off: i64, size: u32) -> Result<(u16, Id, Id)> {
        let Ty::Value { map, off: base, nullable, .. } = pointer.ty else { unreachable!("the caller has looked") };
        let length = i64::from(self.linked.maps[usize::from(map)].definition.value_size);
        if nullable {
            let null = self.code.by(Eq, pointer.high, 0);
            self.trap(null, "the pointer to a map's value is NULL");
        }
        let (low, high) = (base.low.saturating_add(off), base.high.saturating_add(off) + i64::from(size));
        if high <= 0 || low >= length || (base.exact().is_some() && (low < 0 || high > length)) {
            return self.refuse(format!("a map's value has {length} bytes, and is accessed at offset {low}"));
        }
        let at = self.code.by(Add, pointer.low, off as u32);
        if low < 0 || high > length {
            let last = self.code.known((length - i64::from(size)).max(0) as u32);
            let beyond = if length < i64::from(size) { self.code.truth(true) } else { self.code.binary(Lt, last, at) };
            self.trap(beyond, "the map's value is not so long");
        }
        Ok((map, pointer.high, at))
    }

    /// What global variables are that no program writes, as far as it is known where.
    fn constant_data(&mut self, map: u16, at: Id, size: u32) -> Option<Value> {
        let info = &self.linked.maps[usize::from(map)].definition;
        let data = info.data.as_ref().filter(|_| info.read_only)?;
        let at = self.code.value(at)? as usize;
        let bytes = data.get(at..at + size as usize)?;
        let value = bytes.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        Some(self.constant(value))
    }

    pub(super) fn load_value(&mut self, pointer: Value, off: i64, size: u32) -> Result<Value> {
        let (map, high, at) = self.in_value(pointer, off, size)?;
        if let Some(value) = self.constant_data(map, at, size) {
            return Ok(value);
        }
        self.shared.used.insert(map);
        let entry = self.entry(high);
        let value = if size == 8 {
            let low = self.read(map, entry, at, 4);
            let behind = self.code.by(Add, at, 4);
            let high = self.read(map, entry, behind, 4);
            self.number(Range::ANY, low, high)
        } else {
            let low = self.read(map, entry, at, size);
            self.word(Range::of_bytes(size), low)
        };
        self.code.fields.insert((value.low, value.high), Field { map, entry: high, at, size });
        Ok(value)
    }

    /// Up to four bytes of a value.
    fn read(&mut self, map: u16, entry: Id, at: Id, size: u32) -> Id {
        let read = self.named(map, "read");
        let word = self.code.by(Shr, at, 2);
        let all = self.code.call_with(&read, &[entry, word], Effect::Reads);
        let fits = is_multiple(&self.code, at, size);
        if size == 4 && fits {
            return all;
        }
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let mut value = self.code.binary(Shr, all, shift);
        if !fits {
            // The rest is in the next word, and there is none of it where the shift is zero.
            let next = self.code.by(Add, word, 1);
            let next = self.code.call_with(&read, &[entry, next], Effect::Reads);
            let up = self.code.known(31);
            let up = self.code.binary(Sub, up, shift);
            let next = self.code.binary(Shl, next, up);
            let next = self.code.by(Shl, next, 1);
            value = self.code.binary(Or, value, next);
        }
        if size == 4 { value } else { self.code.by(And, value, (1 << (8 * size)) - 1) }
    }

    pub(super) fn store_value(&mut self, pointer: Value, off: i64, size: u32, value: Value) -> Result<()> {
        let (map, high, at) = self.in_value(pointer, off, size)?;
        if self.linked.maps[usize::from(map)].definition.read_only {
            return self.refuse("a constant global variable is written to");
        }
        self.shared.used.insert(map);
        let field = Field { map, entry: high, at, size };
        if self.added(field, value) {
            return Ok(());
        }
        let entry = self.entry(high);
        match size {
            8 => {
                self.write(map, entry, at, 4, value.low);
                let behind = self.code.by(Add, at, 4);
                self.write(map, entry, behind, 4, value.high);
            }
            _ => self.write(map, entry, at, size, value.low),
        }
        Ok(())
    }

    fn write(&mut self, map: u16, entry: Id, at: Id, size: u32, value: Id) {
        let word = self.code.by(Shr, at, 2);
        if !is_multiple(&self.code, at, size) {
            for byte in 0..size {
                let (at, value) = (self.code.by(Add, at, byte), self.code.by(Shr, value, 8 * byte));
                self.write(map, entry, at, 1, value);
            }
            return;
        }
        if size == 4 {
            self.code.call_with(&self.named(map, "write"), &[entry, word, value], Effect::Writes);
            return;
        }
        // Others may write to the rest of the word meanwhile.
        let (shift, mask) = self.part(at, size);
        let bits = self.code.binary(Shl, value, shift);
        let bits = self.code.binary(And, bits, mask);
        self.code.call_with(&self.helper_of(map, "put"), &[entry, word, mask, bits], Effect::Writes);
    }

    /// Where in its word a part of it is, and which bits.
    fn part(&mut self, at: Id, size: u32) -> (Id, Id) {
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let mask = self.code.known((1 << (8 * size)) - 1);
        (shift, self.code.binary(Shl, mask, shift))
    }

    /// Where what is stored is what was loaded from there and something more: packets that run side by side then add each
    /// their own. Whether it was.
    fn added(&mut self, field: Field, value: Value) -> bool {
        let Some((loaded, amount)) = self.increment(field, value) else { return false };
        // Somebody has written there meanwhile.
        let first = loaded.0.min(loaded.1);
        if self.code.ops[first as usize..].iter().any(|op| writes(op, self, field)) {
            return false;
        }
        if !is_multiple(&self.code, field.at, field.size) {
            return false;
        }
        let entry = self.entry(field.entry);
        let word = self.code.by(Shr, field.at, 2);
        let (old, parts) = match field.size {
            8 => {
                let name = self.helper_of(field.map, "add64");
                let old = self.code.call_with(&name, &[entry, word, amount.0, amount.1], Effect::Writes);
                let halves = self.pair(old);
                (old, vec![(loaded.0, halves.0), (loaded.1, halves.1)])
            }
            4 => {
                let old = self.code.call_with(&self.named(field.map, "add"), &[entry, word, amount.0], Effect::Writes);
                (old, vec![(loaded.0, old)])
            }
            size => {
                let (shift, mask) = self.part(field.at, size);
                let name = self.helper_of(field.map, "add_part");
                let arguments = [entry, word, shift, mask, amount.0];
                let old = self.code.call_with(&name, &arguments, Effect::Writes);
                (old, vec![(loaded.0, old)])
            }
        };
        // Who asked for what was there gets what this gives, unless it went elsewhere before.
        let mut from = vec![false; old as usize];
        from[loaded.0 as usize] = true;
        if field.size == 8 {
            from[loaded.1 as usize] = true;
        }
        let mut gone = false;
        for id in first as usize + 1..old as usize {
            let op = &self.code.ops[id];
            if Code::operands(op).iter().any(|&operand| from[operand as usize]) {
                from[id] = true;
                gone |= Code::stays(op) || matches!(op, Op::Call(call) if call.effect != Effect::None);
            }
        }
        if !gone {
            self.code.aliases.extend(parts);
        }
        true
    }

    /// What a field is increased by, where that is what is stored in it: what was loaded, and the amount.
    fn increment(&self, field: Field, value: Value) -> Option<((Id, Id), (Id, Id))> {
        let is_it = |halves: (Id, Id)| self.code.fields.get(&halves) == Some(&field);
        if field.size == 8 {
            let sum = self.code.sums.get(&(value.low, value.high))?;
            return match (is_it(sum.left), is_it(sum.right)) {
                (true, _) => Some((sum.left, sum.right)),
                (_, true) => Some((sum.right, sum.left)),
                _ => None,
            };
        }
        // The high half is zero in what was loaded.
        let loaded = |id: Id| {
            let mut halves = self.code.fields.iter().filter(|(halves, it)| halves.0 == id && **it == field);
            halves.next().map(|(halves, _)| (halves.0, halves.0))
        };
        let mut low = value.low;
        // What is more than the field has is cut off in any case.
        while let Op::Binary(And, inner, mask) = self.code.ops[low as usize]
            && let Some(mask) = self.code.value(mask)
            && field.size < 4
            && mask & ((1 << (8 * field.size)) - 1) == (1 << (8 * field.size)) - 1
            && !self.code.fields.iter().any(|(halves, _)| halves.0 == low)
        {
            low = inner;
        }
        let Op::Binary(Add, a, b) = self.code.ops[low as usize] else { return None };
        match (loaded(a), loaded(b)) {
            (Some(it), _) => Some((it, (b, b))),
            (_, Some(it)) => Some((it, (a, a))),
            _ => None,
        }
    }

    /// A value that atomics are about: its map, entry, word.
    pub(super) fn whole(&mut self, pointer: Value, off: i64, size: u32) -> Result<(u16, Id, Id)> {
        let (map, high, at) = self.in_value(pointer, off, size)?;
        self.shared.used.insert(map);
        if !is_multiple(&self.code, at, size.min(4)) {
            return self.refuse("an atomic operation is done at an offset that may be odd");
        }
        let (entry, word) = (self.entry(high), self.code.by(Shr, at, 2));
        Ok((map, entry, word))
    }

    pub(super) fn of_map(&mut self, map: u16, own: bool, end: &str, arguments: &[Id]) -> Id {
        let name = if own { self.named(map, end) } else { self.helper_of(map, end) };
        self.code.call_with(&name, arguments, Effect::Writes)
    }

    /// The word of a map by number, zero where there is none: of maps of devices, sockets, processors, programs and maps.
    pub(super) fn slot_of(&mut self, map: u16, index: Id) -> Id {
        let (word, read) = (self.code.known(0), self.named(map, "read"));
        let entry = if self.linked.maps[usize::from(map)].used_as == Use::Hash {
            self.by_key(map, "find", vec![index], Effect::Reads)
        } else {
            index
        };
        self.code.call_with(&read, &[entry, word], Effect::Reads)
    }
}

/// Whether an operation may write to a field.
fn writes(op: &Op, walk: &Walk, field: Field) -> bool {
    let Op::Call(Call { function, effect: Effect::Writes, arguments }) = op else { return false };
    let name = &walk.linked.maps[usize::from(field.map)].name;
    let own = function.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('_'));
    let of_helper = function.strip_prefix("x_").and_then(|rest| rest.strip_prefix(name.as_str()));
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

/// Whether an offset is a multiple of 1, 2 or 4 for certain.
fn is_multiple(code: &Code, at: Id, of: u32) -> bool {
    let of = of.min(4);
    if of == 1 {
        return true;
    }
    let known = |id: Id| code.value(id);
    match code.ops[at as usize] {
        Op::Known(at) => at % of == 0,
        Op::Binary(Shl, _, by) => known(by).is_some_and(|by| 1_u32.checked_shl(by).is_none_or(|it| it % of == 0)),
        Op::Binary(Mul, a, b) => is_multiple(code, a, of) || is_multiple(code, b, of),
        Op::Binary(And, a, b) => is_multiple(code, a, of) || is_multiple(code, b, of),
        Op::Binary(Add | Or, a, b) => is_multiple(code, a, of) && is_multiple(code, b, of),
        Op::Select(_, a, b) => is_multiple(code, a, of) && is_multiple(code, b, of),
        _ => false,
    }
}
