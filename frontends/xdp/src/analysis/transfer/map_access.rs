//! Maps: entries, and their values word by word.

use super::private_copy::Span;
use super::{Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{Offsets, Ty, Value};
use crate::decode::helper;
use crate::decode::maps::{MapInfo, Use};
use crate::errno::{E2BIG, EEXIST, EINVAL, ENOENT, ENOSPC};
use crate::lower::ir::Binary::*;
use crate::lower::ir::{Argument, Effect, Field, Id};
use crate::lower::privatize::How;
use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::map::{AtomicOp, atomic_function_name};

/// Linux' flag of updates under the value's `bpf_spin_lock`, which no map here has.
const BPF_F_LOCK: u64 = 4;

/// An entry of a map's, as filters have it: `MAP_NONE`.
const NONE: u32 = u32::MAX;

/// Where in a map's value an access is.
struct Place {
    map: u16,
    /// The entry's number and one.
    high: Id,
    /// Bytes from the value's beginning.
    at: Id,
    span: Span,
    /// Whether these are a multiple of the access's size, or of 4 where that is more.
    fits: bool,
}

impl Walk<'_, '_> {
    /// A map that a helper is given.
    pub fn map(&mut self, value: Value) -> Result<u16> {
        match value.ty {
            Ty::Map(map) => {
                self.shared.used.insert(map);
                let MapInfo { definition, used_as, .. } = &self.linked.maps[usize::from(map)];
                match used_as {
                    Use::Refused(why) => match definition.ty.is_supported() {
                        true => self.refuse(why.clone()),
                        false => self.lack(why.clone(), definition.ty.feature()),
                    },
                    _ => Ok(map),
                }
            }
            other => {
                let (name, what) = (self.helper_name(), other.words());
                self.refuse(format!("{name} is given {what} for a map"))
            }
        }
    }

    /// The helper that is called here.
    pub(super) fn helper_name(&self) -> String {
        helper::name(self.instruction().imm as u32)
    }

    pub(super) fn named(&self, map: u16, end: &str) -> String {
        format!("{}_{end}", self.linked.maps[usize::from(map)].name)
    }

    pub(super) fn helper_of(&self, map: u16, end: &str) -> String {
        format!("x_{}_{end}", self.linked.maps[usize::from(map)].name)
    }

    /// The number that an entry goes by in memory: what is in a pointer's high half, less one.
    pub(super) fn entry(&mut self, high: Id) -> Id {
        self.code.by(Add, high, u32::MAX)
    }

    /// The entry of a key, as a pointer's high half.
    pub(super) fn found(&mut self, map: u16, key: Value) -> Result<Id> {
        let info = &self.linked.maps[usize::from(map)];
        let (entries, key_size) = (info.definition.max_entries, info.definition.key_size);
        let is_of_targets = info.definition.ty.holds_redirect_targets();
        let words = self.words(key, key_size, "the key")?;
        match self.used_as(map, words[0]) {
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
                let address = words[1..].iter().map(|&word| self.code.swap32(word)).collect();
                let entry = self.by_key(map, "find", address, Effect::Reads);
                Ok(self.code.by(Add, entry, 1))
            }
            Use::Prefixes => {
                let function = self.helper_of(map, "prefix_find");
                let entry = self.code.call(&function, vec![key_of(words)], Effect::Reads);
                Ok(self.code.by(Add, entry, 1))
            }
            Use::EventRing => self.refuse("the entries of a map of events can only be written by helpers for events"),
            Use::Refused(why) => self.refuse(why),
        }
    }

    fn by_key(&mut self, map: u16, end: &str, words: Vec<Id>, effect: Effect) -> Id {
        self.code.call(&self.named(map, end), vec![key_of(words)], effect)
    }

    /// What a map is used as, where it is asked for a key of which this is the first word. A trie of addresses that is once
    /// searched for less than a whole one is made otherwise.
    fn used_as(&mut self, map: u16, first: Id) -> Use {
        let info = &self.linked.maps[usize::from(map)];
        if info.used_as != Use::Lpm {
            return info.used_as.clone();
        }
        if self.code.value(first) != Some(8 * (info.definition.key_size - 4)) {
            self.shared.tries.insert(map);
        }
        if self.shared.tries.contains(&map) { Use::Prefixes } else { Use::Lpm }
    }

    /// The same where the program changes it.
    fn changed_as(&mut self, map: u16) -> Use {
        let used_as = self.linked.maps[usize::from(map)].used_as.clone();
        if used_as != Use::Lpm {
            return used_as;
        }
        self.shared.tries.insert(map);
        Use::Prefixes
    }

    /// Whether the first argument is a map of maps.
    pub fn is_map_of_maps(&self) -> bool {
        matches!(self.state.scratch[1].ty, Ty::Map(map) if self.linked.maps[usize::from(map)].definition.ty.is_map_of_maps())
    }

    /// The map of maps that a lookup is given.
    pub fn outer(&mut self) -> Result<u16> {
        let map = self.get(1)?;
        self.map(map)
    }

    /// What it holds for the key: a map's number and one, or zero.
    pub fn slot_of_maps(&mut self) -> Result<Value> {
        self.shared.helpers.insert(helper::MAP_LOOKUP_ELEM);
        let (map, key) = (self.outer()?, self.get(2)?);
        let found = self.found(map, key)?;
        let (entry, word, read) = (self.entry(found), self.code.known(0), self.named(map, "read"));
        let slot = self.code.call_with(&read, &[entry, word], Effect::Reads);
        Ok(self.word(Range::WORD, slot))
    }

    /// That a program may change a map's entries.
    fn changes(&self, map: u16) -> Result<()> {
        match self.linked.maps[usize::from(map)].definition.ty.is_map_of_maps() {
            true => self.refuse("a program changes which maps a map of maps holds, which only the host can do"),
            false => Ok(()),
        }
    }

    /// `bpf_map_lookup_elem`
    pub(super) fn lookup(&mut self, map: u16, key: Value) -> Result<Value> {
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if ty.has_no_readable_values() {
            return self.refuse(format!("programs cannot look at the entries of a map of type {}", ty.name()));
        }
        let high = self.found(map, key)?;
        let (low, name) = (self.code.known(0), self.name());
        // An array's entry of a known number is there.
        let nullable = self.code.value(high).is_none_or(|high| high == 0);
        Ok(Value { ty: Ty::Value { map, off: Offsets::one(0), name, nullable }, low, high })
    }

    /// The first entry of a map by key from a place on, and a word of its key.
    pub fn next_entry(&mut self, map: u16, from: Id) -> Id {
        let function = self.helper_of(map, "next");
        self.code.call_with(&function, &[from], Effect::Reads)
    }

    pub fn key_of_entry(&mut self, map: u16, entry: Id, word: u32) -> Id {
        let (function, word) = (self.helper_of(map, "key"), self.code.known(word));
        self.code.call_with(&function, &[entry, word], Effect::Reads)
    }

    /// `bpf_map_lookup_percpu_elem`: there is one processor, number 0.
    pub(super) fn lookup_percpu(&mut self, map: u16, key: Value, processor: Value) -> Result<Value> {
        self.expect_number(processor, "the number of the processor")?;
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if !ty.is_per_cpu() {
            let given = ty.name();
            let what =
                format!("bpf_map_lookup_percpu_elem is given a map of type {given}, and takes those per processor");
            return self.refuse(what);
        }
        let mut found = self.lookup(map, key)?;
        let (is_first, null) = (self.code.by(Eq, processor.low, 0), self.code.known(0));
        found.high = self.code.select(is_first, found.high, null);
        if let Ty::Value { nullable, .. } = &mut found.ty {
            *nullable = true;
        }
        Ok(found)
    }

    /// `bpf_map_update_elem`
    pub(super) fn update(&mut self, map: u16, key: Value, value: Value, flags: Value) -> Result<Value> {
        self.changes(map)?;
        let range = self.expect_number(flags, "what the flags are")?;
        let info = &self.linked.maps[usize::from(map)];
        let (key_size, size) = (info.definition.key_size, info.definition.value_size);
        let used_as = self.changed_as(map);
        let words = self.words(value, size, "the value")?;
        let flags = match range.exact() {
            Some(flags) if used_as != Use::Prefixes => flags,
            _ => return self.update_by(map, key, &words, flags),
        };
        // Of an array the kernel looks at the key before it finds that values have no lock (`array_map_update_elem`).
        let is_locked = info.definition.ty.is_array() && flags & BPF_F_LOCK != 0;
        let mode = if is_locked { flags & !BPF_F_LOCK } else { flags };
        if mode > 2 {
            return Ok(self.error(EINVAL));
        }
        let (entry, result) = match used_as {
            Use::Array => {
                let high = self.found(map, key)?;
                let there = self.code.by(Ne, high, 0);
                if mode == 1 || is_locked {
                    let refused = if mode == 1 { EEXIST } else { EINVAL };
                    let (low, none) = (self.code.known(refused as u32), self.code.known(E2BIG as u32));
                    let (low, high) = (self.code.select(there, low, none), self.code.known(u32::MAX));
                    return Ok(self.number(Range::ANY, low, high));
                }
                (self.entry(high), self.outcome(there, E2BIG))
            }
            Use::Hash if flags == 2 => {
                let high = self.found(map, key)?;
                let there = self.code.by(Ne, high, 0);
                (self.entry(high), self.outcome(there, ENOENT))
            }
            Use::Hash => {
                let words = self.words(key, key_size, "the key")?;
                let function = match self.linked.maps[usize::from(map)].is_limited() {
                    true => self.helper_of(map, "insert"),
                    false => self.named(map, "insert"),
                };
                let given = self.code.call(&function, vec![key_of(words)], Effect::Writes);
                let full = self.code.by(Eq, given, NONE - 1);
                let room = self.code.not(full);
                let has_room = self.outcome(room, E2BIG);
                if flags == 0 {
                    (given, has_room)
                } else {
                    let is_new = self.code.call_with("map_is_new", &[given], Effect::None);
                    let nobody = self.code.known(NONE);
                    let entry = self.code.select(is_new, given, nobody);
                    let (low, high) = (self.code.known(EEXIST as u32), self.code.known(u32::MAX));
                    let settled = self.code.binary(Either, is_new, full);
                    let low = self.code.select(settled, has_room.low, low);
                    let high = self.code.select(settled, has_room.high, high);
                    (entry, self.number(Range::ANY, low, high))
                }
            }
            Use::Lpm | Use::Prefixes => unreachable!("they are changed by what flags say"),
            Use::EventRing => {
                return self.refuse("the entries of a map of events can only be written by helpers for events");
            }
            Use::Refused(why) => return self.refuse(why),
        };
        self.write_all(map, entry, &words);
        Ok(result)
    }

    /// Writes all of a value.
    fn write_all(&mut self, map: u16, entry: Id, words: &[Id]) {
        let bytes = (0, self.linked.maps[usize::from(map)].definition.value_size);
        let is_certain = self.code.value(entry) == Some(0);
        let how = if is_certain { How::Stored } else { How::Perhaps };
        self.stores(Span { map, bytes, is_exact: true }, how);
        for (word, &value) in (0..).zip(words) {
            let word = self.code.known(word);
            self.write_word(map, entry, word, value);
        }
    }

    /// The same by flags that are known only when the packet is there.
    fn update_by(&mut self, map: u16, key: Value, words: &[Id], flags: Value) -> Result<Value> {
        let info = &self.linked.maps[usize::from(map)];
        let key_size = info.definition.key_size;
        let is_array = info.definition.ty.is_array();
        let used_as = self.changed_as(map);
        let (three, few) = (self.code.known(3), self.code.by(Eq, flags.high, 0));
        let flags = self.code.select(few, flags.low, three);
        // An entry, or one of these.
        let (missing, full, exists, wrong) = (NONE, NONE - 1, NONE - 2, NONE - 3);
        let entry = match used_as {
            Use::Hash | Use::Prefixes | Use::Lpm => {
                let key = key_of(self.words(key, key_size, "the key")?);
                let update = if used_as == Use::Hash { "update" } else { "prefix_update" };
                self.code.call(&self.helper_of(map, update), vec![key, Argument::One(flags)], Effect::Writes)
            }
            Use::Array => {
                let high = self.found(map, key)?;
                let [full, exists, wrong] = [full, exists, wrong].map(|it| self.code.known(it));
                let (mut entry, there) = (self.entry(high), self.code.by(Ne, high, 0));
                let mut mode = flags;
                if is_array {
                    let lock = self.code.by(And, flags, BPF_F_LOCK as u32);
                    let is_locked = self.code.by(Ne, lock, 0);
                    entry = self.code.select(is_locked, wrong, entry);
                    mode = self.code.by(And, flags, !BPF_F_LOCK as u32);
                }
                let makes = self.code.by(Eq, mode, 1);
                let entry = self.code.select(makes, exists, entry);
                let entry = self.code.select(there, entry, full);
                let two = self.code.known(2);
                let many = self.code.binary(Lt, two, mode);
                self.code.select(many, wrong, entry)
            }
            Use::EventRing => {
                return self.refuse("the entries of a map of events can only be written by helpers for events");
            }
            Use::Refused(why) => return self.refuse(why),
        };
        self.write_all(map, entry, words);
        let (mut low, mut high) = (self.code.known(0), self.code.known(0));
        let all = self.code.known(u32::MAX);
        let no_room = if used_as == Use::Prefixes { ENOSPC } else { E2BIG };
        for (what, error) in [(missing, ENOENT), (full, no_room), (exists, EEXIST), (wrong, EINVAL)] {
            let is_it = self.code.by(Eq, entry, what);
            let error = self.code.known(error as u32);
            (low, high) = (self.code.select(is_it, error, low), self.code.select(is_it, all, high));
        }
        Ok(self.number(Range::ANY, low, high))
    }

    /// `bpf_map_delete_elem`
    pub(super) fn delete(&mut self, map: u16, key: Value) -> Result<Value> {
        self.changes(map)?;
        let info = &self.linked.maps[usize::from(map)];
        let key_size = info.definition.key_size;
        match self.changed_as(map) {
            Use::Array => Ok(self.error(EINVAL)),
            Use::Hash => {
                let words = self.words(key, key_size, "the key")?;
                let there = self.by_key(map, "remove", words, Effect::Writes);
                Ok(self.outcome(there, ENOENT))
            }
            Use::Lpm | Use::Prefixes => {
                let key = key_of(self.words(key, key_size, "the key")?);
                let gone = self.code.call(&self.helper_of(map, "prefix_remove"), vec![key], Effect::Writes);
                let (zero, all) = (self.code.known(0), self.code.known(u32::MAX));
                let (none, wrong) = (self.code.known(ENOENT as u32), self.code.known(EINVAL as u32));
                let (was_there, was_none) = (self.code.by(Eq, gone, 0), self.code.by(Eq, gone, 1));
                let low = self.code.select(was_none, none, wrong);
                let (low, high) = (self.code.select(was_there, zero, low), self.code.select(was_there, zero, all));
                Ok(self.number(Range::ANY, low, high))
            }
            Use::EventRing => self.refuse("the entries of a map of events can only be written by helpers for events"),
            Use::Refused(why) => self.refuse(why),
        }
    }

    /// Where an access of a value is; it lies in the value, or the packet has been aborted.
    fn in_value(&mut self, pointer: Value, off: i64, size: u32) -> Result<Place> {
        let Ty::Value { map, off: base, .. } = pointer.ty else { unreachable!("the caller has looked") };
        let length = i64::from(self.linked.maps[usize::from(map)].definition.value_size);
        self.trap_null(pointer, "the pointer to a map's value is NULL");
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
        let bytes = (low.clamp(0, length) as u32, high.clamp(0, length) as u32);
        let span = Span { map, bytes, is_exact: base.exact().is_some() };
        Ok(Place { map, high: pointer.high, at, span, fits: base.are_multiples(size.min(4), off) })
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
        let Place { map, high, at, span, fits } = self.in_value(pointer, off, size)?;
        if let Some(value) = self.constant_data(map, at, size) {
            return Ok(value);
        }
        self.shared.used.insert(map);
        let is_own = self.loads(span);
        let value = if size == 8 {
            let low = self.read(map, high, at, 4, fits);
            let behind = self.code.by(Add, at, 4);
            let high = self.read(map, high, behind, 4, fits);
            self.number(Range::ANY, low, high)
        } else {
            let low = self.read(map, high, at, size, fits);
            self.word(Range::of_bytes(size), low)
        };
        if !is_own {
            self.loaded(Field { map, entry: high, at, size }, value);
        }
        Ok(value)
    }

    /// Up to four bytes of a value, by its pointer's high half: of one word for certain where they fit.
    fn read(&mut self, map: u16, high: Id, at: Id, size: u32, fits: bool) -> Id {
        let word = self.code.by(Shr, at, 2);
        let all = self.get_word(map, high, word);
        if size == 4 && fits {
            return all;
        }
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let value = if fits {
            self.code.binary(Shr, all, shift)
        } else {
            let (entry, next, read) = (self.entry(high), self.code.by(Add, word, 1), self.named(map, "read"));
            let next = match self.own_word(map, next) {
                Some(next) => next,
                None => self.code.call_with(&read, &[entry, next], Effect::Reads),
            };
            self.across(all, next, shift)
        };
        if size == 4 { value } else { self.code.by(And, value, (1 << (8 * size)) - 1) }
    }

    /// A word of a value that is there, and so is the word, or the packet has been aborted.
    pub(super) fn get_word(&mut self, map: u16, high: Id, word: Id) -> Id {
        if let Some(own) = self.own_word(map, word) {
            return own;
        }
        let info = &self.linked.maps[usize::from(map)];
        if info.used_as == Use::Lpm {
            // Where it will lie is not known: it may be found to be searched by length.
            let (entry, read) = (self.entry(high), self.named(map, "read"));
            return self.code.call_with(&read, &[entry, word], Effect::Reads);
        }
        let Layout { stride, value, .. } = Layout::of(&info.declaration());
        let get = self.helper_of(map, "get");
        // The high half is one more than the entry's number.
        let place = self.code.by(Mul, high, stride);
        let place = self.code.binary(Add, place, word);
        let at = self.code.by(Add, place, (HEADER_WORDS + value).wrapping_sub(stride));
        self.code.call_with(&get, &[at], Effect::Reads)
    }

    pub(super) fn store_value(&mut self, pointer: Value, off: i64, size: u32, value: Value) -> Result<()> {
        let Place { map, high, at, span, fits } = self.in_value(pointer, off, size)?;
        self.expect_writable(map)?;
        self.shared.used.insert(map);
        let field = Field { map, entry: high, at, size };
        // What is made of what was there may be made of what others have left there.
        let is_made = self.may_be_own(span) && self.is_made_of(field, value);
        if self.added(field, value, (span, fits)) {
            self.stores(span, How::Changed);
            return Ok(());
        }
        let entry = self.entry(high);
        let is_certain = !is_made && self.code.value(entry) == Some(0);
        self.stores(span, if is_certain { How::Stored } else { How::Perhaps });
        match size {
            8 => {
                self.write(map, entry, at, 4, value.low, fits);
                let behind = self.code.by(Add, at, 4);
                self.write(map, entry, behind, 4, value.high, fits);
            }
            _ => self.write(map, entry, at, size, value.low, fits),
        }
        Ok(())
    }

    /// Writes up to four bytes if the condition holds, and of them those whose bits are in the mask.
    pub(super) fn store_some_of_value(
        &mut self,
        pointer: Value,
        (off, size): (i64, u32),
        value: Id,
        (condition, mask): (Id, Id),
    ) -> Result<()> {
        let Place { map, high, at, span, fits } = self.in_value(pointer, off, size)?;
        self.expect_writable(map)?;
        self.shared.used.insert(map);
        let (entry, nobody) = (self.entry(high), self.code.known(NONE));
        let entry = self.code.select(condition, entry, nobody);
        self.stores(span, How::Perhaps);
        let all = u32::MAX >> (32 - 8 * size);
        if self.code.value(mask).is_some_and(|mask| mask & all == all) {
            self.write(map, entry, at, size, value, fits);
        } else if fits {
            let word = self.code.by(Shr, at, 2);
            let (shift, part) = self.part(at, size);
            let mask = self.code.binary(Shl, mask, shift);
            let mask = self.code.binary(And, mask, part);
            let bits = self.code.binary(Shl, value, shift);
            let bits = self.code.binary(And, bits, mask);
            self.put(map, entry, word, mask, bits);
        } else {
            for byte in 0..size {
                let counts = self.code.by(And, mask, 0xff << (8 * byte));
                let counts = self.code.by(Ne, counts, 0);
                let entry = self.code.select(counts, entry, nobody);
                let (at, value) = (self.code.by(Add, at, byte), self.code.by(Shr, value, 8 * byte));
                self.write(map, entry, at, 1, value, true);
            }
        }
        Ok(())
    }

    fn expect_writable(&self, map: u16) -> Result<()> {
        match self.linked.maps[usize::from(map)].definition.read_only {
            true => self.refuse("a constant global variable is written to"),
            false => Ok(()),
        }
    }

    /// Writes up to four bytes, of one word for certain where they fit.
    fn write(&mut self, map: u16, entry: Id, at: Id, size: u32, value: Id, fits: bool) {
        let word = self.code.by(Shr, at, 2);
        if !fits {
            for byte in 0..size {
                let (at, value) = (self.code.by(Add, at, byte), self.code.by(Shr, value, 8 * byte));
                self.write(map, entry, at, 1, value, true);
            }
            return;
        }
        if size == 4 {
            self.write_word(map, entry, word, value);
            return;
        }
        // Others may write to the rest of the word meanwhile.
        let (shift, mask) = self.part(at, size);
        let bits = self.code.binary(Shl, value, shift);
        let bits = self.code.binary(And, bits, mask);
        self.put(map, entry, word, mask, bits);
    }

    pub(super) fn write_word(&mut self, map: u16, entry: Id, word: Id, value: Id) {
        self.code.call_with(&self.named(map, "write"), &[entry, word, value], Effect::Writes);
        self.set_own_word(map, entry, word, value);
    }

    fn put(&mut self, map: u16, entry: Id, word: Id, mask: Id, bits: Id) {
        self.change(map, AtomicOp::ReplaceBits, &[entry, word, mask, bits]);
        self.set_own(map, entry, word, mask, bits);
    }

    /// Where in its word a part of it is, and which bits.
    pub(super) fn part(&mut self, at: Id, size: u32) -> (Id, Id) {
        let shift = self.code.by(And, at, 3);
        let shift = self.code.by(Shl, shift, 3);
        let mask = self.code.known(u32::MAX >> (32 - 8 * size));
        (shift, self.code.binary(Shl, mask, shift))
    }

    /// A value that atomics are about: its map, entry, word, and what of it they are about.
    pub(super) fn whole(&mut self, pointer: Value, off: i64, size: u32) -> Result<(u16, Id, Id, Span)> {
        let Place { map, high, at, span, fits } = self.in_value(pointer, off, size)?;
        self.shared.used.insert(map);
        if !fits {
            let Ty::Value { off: base, .. } = pointer.ty else { unreachable!("looked at above") };
            if (1..4).any(|by| base.are_multiples(4, off + by)) {
                return self.refuse(format!("an atomic operation on {size} bytes is done at an odd offset"));
            }
            let rest = self.code.by(And, at, 3);
            let is_odd = self.code.by(Ne, rest, 0);
            self.trap(is_odd, "an atomic operation is done at an odd offset");
        }
        let (entry, word) = (self.entry(high), self.code.by(Shr, at, 2));
        Ok((map, entry, word, span))
    }

    /// Changes a word of a value; what was there before.
    pub(super) fn change(&mut self, map: u16, change: AtomicOp, arguments: &[Id]) -> Id {
        let name = atomic_function_name(&self.linked.maps[usize::from(map)].name, change);
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

/// A key as an argument.
fn key_of(words: Vec<Id>) -> Argument {
    match words[..] {
        [one] => Argument::One(one),
        _ => Argument::Words(words),
    }
}
