//! Maps: lookups, updates, and accesses to values word by word.

use super::private_copy::ByteSpan;
use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::Value;
use crate::decode::maps::{MapInfo, MapUse};
use crate::errno::{E2BIG, EEXIST, EINVAL, ENOENT, ENOSPC};
use crate::helper;
use crate::ir::BinaryOp::*;
use crate::ir::privatize::StoreCertainty;
use crate::ir::{Argument, Effect, Field, Id};
use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::map::{AtomicOp, atomic_function_name};

/// `BPF_F_LOCK`: update under the value's `bpf_spin_lock`, which no map here has.
const BPF_F_LOCK: u64 = 4;

/// `MAP_NONE` of the prelude: no entry.
const NO_ENTRY: u32 = u32::MAX;

/// A checked access to a map value.
struct ValueAccess {
    map: u16,
    /// High half of the pointer: the entry index plus one.
    high: Id,
    /// Byte offset in the value.
    at: Id,
    span: ByteSpan,
    /// Whether the offset is a multiple of the access size, or of 4 if that is less.
    fits: bool,
}

impl BlockInterpreter<'_, '_> {
    /// The map given to a helper.
    pub fn expect_map(&mut self, value: Value) -> Result<u16> {
        match value.ty {
            RegType::Map(map) => {
                self.facts.used_maps.insert(map);
                let MapInfo { definition, used_as, .. } = &self.linked.maps[usize::from(map)];
                match used_as {
                    MapUse::Unsupported(why) => match definition.ty.is_supported() {
                        true => self.reject(why.clone()),
                        false => self.reject_unsupported(why.clone(), definition.ty.missing_feature()),
                    },
                    _ => Ok(map),
                }
            }
            other => {
                let (name, what) = (self.helper_name(), other.describe());
                self.reject(format!("{name} takes a map, not {what}"))
            }
        }
    }

    /// Name of the helper called by the current instruction.
    pub(super) fn helper_name(&self) -> String {
        helper::name(self.instruction().imm as u32)
    }
    /// Name of one of a map's own functions.
    pub(super) fn map_function(&self, map: u16, end: &str) -> String {
        format!("{}_{end}", self.linked.maps[usize::from(map)].name)
    }
    /// Name of a function that the front end adds for a map.
    pub(super) fn runtime_function(&self, map: u16, end: &str) -> String {
        format!("x_{}_{end}", self.linked.maps[usize::from(map)].name)
    }

    /// The entry index that a pointer's high half stands for.
    pub(super) fn entry_index(&mut self, high: Id) -> Id {
        self.code.binary_const(Add, high, u32::MAX)
    }

    /// Looks up a key; returns the entry as a pointer's high half.
    pub(super) fn find_entry(&mut self, map: u16, key: Value) -> Result<Id> {
        let info = &self.linked.maps[usize::from(map)];
        let (entries, key_size) = (info.definition.max_entries, info.definition.key_size);
        let is_of_targets = info.definition.ty.holds_redirect_targets();
        let words = self.load_words(key, key_size, "the key")?;
        match self.use_for_search(map, words[0]) {
            MapUse::Array => {
                let entries = self.code.constant(entries);
                let mut is_one = self.code.binary(Lt, words[0], entries);
                if is_of_targets {
                    // A slot that was never set has no entry.
                    let slot = self.read_slot(map, words[0]);
                    let there = self.code.binary_const(Ne, slot, 0);
                    is_one = self.code.binary(LogicalAnd, is_one, there);
                }
                let (entry, null) = (self.code.binary_const(Add, words[0], 1), self.code.constant(0));
                Ok(self.code.select(is_one, entry, null))
            }
            MapUse::Hash => {
                let entry = self.call_with_key(map, "find", words, Effect::Reads);
                Ok(self.code.binary_const(Add, entry, 1))
            }
            MapUse::Lpm => {
                let address = words[1..].iter().map(|&word| self.code.swap32(word)).collect();
                let entry = self.call_with_key(map, "find", address, Effect::Reads);
                Ok(self.code.binary_const(Add, entry, 1))
            }
            MapUse::Prefixes => {
                let function = self.runtime_function(map, "prefix_find");
                let entry = self.code.call(&function, vec![key_argument(words)], Effect::Reads);
                Ok(self.code.binary_const(Add, entry, 1))
            }
            MapUse::EventRing => self.reject("the entries of an event map can only be written by event helpers"),
            MapUse::Unsupported(why) => self.reject(why),
        }
    }

    fn call_with_key(&mut self, map: u16, end: &str, words: Vec<Id>, effect: Effect) -> Id {
        self.code.call(&self.map_function(map, end), vec![key_argument(words)], effect)
    }

    /// Use of a map that is searched for a key with this first word. A trie of whole addresses
    /// becomes a general prefix trie if it is ever searched for a shorter prefix.
    fn use_for_search(&mut self, map: u16, first: Id) -> MapUse {
        let info = &self.linked.maps[usize::from(map)];
        if info.used_as != MapUse::Lpm {
            return info.used_as.clone();
        }
        if self.code.as_constant(first) != Some(8 * (info.definition.key_size - 4)) {
            self.facts.prefix_search_maps.insert(map);
        }
        if self.facts.prefix_search_maps.contains(&map) { MapUse::Prefixes } else { MapUse::Lpm }
    }

    /// Use of a map that the program changes.
    fn use_for_update(&mut self, map: u16) -> MapUse {
        let used_as = self.linked.maps[usize::from(map)].used_as.clone();
        if used_as != MapUse::Lpm {
            return used_as;
        }
        self.facts.prefix_search_maps.insert(map);
        MapUse::Prefixes
    }

    /// Whether the map in r1 is a map of maps.
    pub fn is_inner_map_lookup(&self) -> bool {
        matches!(self.state.scratch[1].ty, RegType::Map(map) if self.linked.maps[usize::from(map)].definition.ty.is_map_of_maps())
    }

    /// The map of maps given to a lookup.
    pub fn outer_map(&mut self) -> Result<u16> {
        let map = self.read_register(1)?;
        self.expect_map(map)
    }

    /// Reads the slot for a key of a map of maps: the index of a map plus one, or zero.
    pub fn read_inner_map_slot(&mut self) -> Result<Value> {
        self.facts.helpers.insert(helper::MAP_LOOKUP_ELEM);
        let (map, key) = (self.outer_map()?, self.read_register(2)?);
        let found = self.find_entry(map, key)?;
        let (entry, word, read) = (self.entry_index(found), self.code.constant(0), self.map_function(map, "read"));
        let slot = self.code.call_values(&read, &[entry, word], Effect::Reads);
        Ok(self.scalar32(Interval::U32, slot))
    }

    /// Rejects changes to a map of maps.
    fn expect_mutable(&self, map: u16) -> Result<()> {
        match self.linked.maps[usize::from(map)].definition.ty.is_map_of_maps() {
            true => self.reject("only the host can change which maps a map of maps holds"),
            false => Ok(()),
        }
    }

    /// `bpf_map_lookup_elem`
    pub(super) fn lookup(&mut self, map: u16, key: Value) -> Result<Value> {
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if ty.has_no_readable_values() {
            return self.reject(format!("programs cannot read the entries of a map of type {}", ty.name()));
        }
        let high = self.find_entry(map, key)?;
        let (low, name) = (self.code.constant(0), self.fresh_name());
        // An array has an entry at every constant index within its bounds.
        let nullable = self.code.as_constant(high).is_none_or(|high| high == 0);
        Ok(Value { ty: RegType::MapValue { map, off: Offsets::constant(0), name, nullable }, low, high })
    }

    /// The first occupied slot of a hash from a slot on.
    pub fn next_entry(&mut self, map: u16, from: Id) -> Id {
        let function = self.runtime_function(map, "next");
        self.code.call_values(&function, &[from], Effect::Reads)
    }
    /// A word of the key in a slot.
    pub fn entry_key_word(&mut self, map: u16, entry: Id, word: u32) -> Id {
        let (function, word) = (self.runtime_function(map, "key"), self.code.constant(word));
        self.code.call_values(&function, &[entry, word], Effect::Reads)
    }

    /// `bpf_map_lookup_percpu_elem`: there is one CPU, number 0.
    pub(super) fn lookup_percpu(&mut self, map: u16, key: Value, processor: Value) -> Result<Value> {
        self.expect_scalar(processor, "the CPU number")?;
        let ty = self.linked.maps[usize::from(map)].definition.ty;
        if !ty.is_per_cpu() {
            let given = ty.name();
            let what = format!("bpf_map_lookup_percpu_elem takes a per-CPU map, not one of type {given}");
            return self.reject(what);
        }
        let mut found = self.lookup(map, key)?;
        let (is_first, null) = (self.code.binary_const(Eq, processor.low, 0), self.code.constant(0));
        found.high = self.code.select(is_first, found.high, null);
        if let RegType::MapValue { nullable, .. } = &mut found.ty {
            *nullable = true;
        }
        Ok(found)
    }

    /// `bpf_map_update_elem`
    pub(super) fn update(&mut self, map: u16, key: Value, value: Value, flags: Value) -> Result<Value> {
        self.expect_mutable(map)?;
        let range = self.expect_scalar(flags, "the flags argument")?;
        let info = &self.linked.maps[usize::from(map)];
        let (key_size, size) = (info.definition.key_size, info.definition.value_size);
        let used_as = self.use_for_update(map);
        let words = self.load_words(value, size, "the value")?;
        let flags = match range.as_constant() {
            Some(flags) if used_as != MapUse::Prefixes => flags,
            _ => return self.update_with_runtime_flags(map, key, &words, flags),
        };
        // For an array the kernel checks the key before it finds that the value has no lock
        // (`array_map_update_elem`).
        let is_locked = info.definition.ty.is_array() && flags & BPF_F_LOCK != 0;
        let mode = if is_locked { flags & !BPF_F_LOCK } else { flags };
        if mode > 2 {
            return Ok(self.error_code(EINVAL));
        }
        let (entry, result) = match used_as {
            MapUse::Array => {
                let high = self.find_entry(map, key)?;
                let there = self.code.binary_const(Ne, high, 0);
                if mode == 1 || is_locked {
                    let refused = if mode == 1 { EEXIST } else { EINVAL };
                    let (low, none) = (self.code.constant(refused as u32), self.code.constant(E2BIG as u32));
                    let (low, high) = (self.code.select(there, low, none), self.code.constant(u32::MAX));
                    return Ok(self.scalar(Interval::ANY, low, high));
                }
                (self.entry_index(high), self.zero_or_error(there, E2BIG))
            }
            MapUse::Hash if flags == 2 => {
                let high = self.find_entry(map, key)?;
                let there = self.code.binary_const(Ne, high, 0);
                (self.entry_index(high), self.zero_or_error(there, ENOENT))
            }
            MapUse::Hash => {
                let words = self.load_words(key, key_size, "the key")?;
                let function = match self.linked.maps[usize::from(map)].enforces_max_entries() {
                    true => self.runtime_function(map, "insert"),
                    false => self.map_function(map, "insert"),
                };
                let given = self.code.call(&function, vec![key_argument(words)], Effect::Writes);
                let full = self.code.binary_const(Eq, given, NO_ENTRY - 1);
                let room = self.code.not(full);
                let has_room = self.zero_or_error(room, E2BIG);
                if flags == 0 {
                    (given, has_room)
                } else {
                    let is_new = self.code.call_values("map_is_new", &[given], Effect::None);
                    let nobody = self.code.constant(NO_ENTRY);
                    let entry = self.code.select(is_new, given, nobody);
                    let (low, high) = (self.code.constant(EEXIST as u32), self.code.constant(u32::MAX));
                    let settled = self.code.binary(LogicalOr, is_new, full);
                    let low = self.code.select(settled, has_room.low, low);
                    let high = self.code.select(settled, has_room.high, high);
                    (entry, self.scalar(Interval::ANY, low, high))
                }
            }
            MapUse::Lpm | MapUse::Prefixes => unreachable!("they are changed by what flags say"),
            MapUse::EventRing => {
                return self.reject("the entries of an event map can only be written by event helpers");
            }
            MapUse::Unsupported(why) => return self.reject(why),
        };
        self.write_value(map, entry, &words);
        Ok(result)
    }

    /// Writes a whole value.
    fn write_value(&mut self, map: u16, entry: Id, words: &[Id]) {
        let bytes = (0, self.linked.maps[usize::from(map)].definition.value_size);
        let is_certain = self.code.as_constant(entry) == Some(0);
        let how = if is_certain { StoreCertainty::Definite } else { StoreCertainty::Maybe };
        self.note_store(ByteSpan { map, bytes, is_exact: true }, how);
        for (word, &value) in (0..).zip(words) {
            let word = self.code.constant(word);
            self.write_value_word(map, entry, word, value);
        }
    }

    /// Updates an entry with flags known only at run time.
    fn update_with_runtime_flags(&mut self, map: u16, key: Value, words: &[Id], flags: Value) -> Result<Value> {
        let info = &self.linked.maps[usize::from(map)];
        let key_size = info.definition.key_size;
        let is_array = info.definition.ty.is_array();
        let used_as = self.use_for_update(map);
        let (three, few) = (self.code.constant(3), self.code.binary_const(Eq, flags.high, 0));
        let flags = self.code.select(few, flags.low, three);
        // An update gives an entry or one of these codes.
        let (missing, full, exists, wrong) = (NO_ENTRY, NO_ENTRY - 1, NO_ENTRY - 2, NO_ENTRY - 3);
        let entry = match used_as {
            MapUse::Hash | MapUse::Prefixes | MapUse::Lpm => {
                let key = key_argument(self.load_words(key, key_size, "the key")?);
                let update = if used_as == MapUse::Hash { "update" } else { "prefix_update" };
                self.code.call(&self.runtime_function(map, update), vec![key, Argument::Value(flags)], Effect::Writes)
            }
            MapUse::Array => {
                let high = self.find_entry(map, key)?;
                let [full, exists, wrong] = [full, exists, wrong].map(|it| self.code.constant(it));
                let (mut entry, there) = (self.entry_index(high), self.code.binary_const(Ne, high, 0));
                let mut mode = flags;
                if is_array {
                    let lock = self.code.binary_const(And, flags, BPF_F_LOCK as u32);
                    let is_locked = self.code.binary_const(Ne, lock, 0);
                    entry = self.code.select(is_locked, wrong, entry);
                    mode = self.code.binary_const(And, flags, !BPF_F_LOCK as u32);
                }
                let makes = self.code.binary_const(Eq, mode, 1);
                let entry = self.code.select(makes, exists, entry);
                let entry = self.code.select(there, entry, full);
                let two = self.code.constant(2);
                let many = self.code.binary(Lt, two, mode);
                self.code.select(many, wrong, entry)
            }
            MapUse::EventRing => {
                return self.reject("the entries of an event map can only be written by event helpers");
            }
            MapUse::Unsupported(why) => return self.reject(why),
        };
        self.write_value(map, entry, words);
        let (mut low, mut high) = (self.code.constant(0), self.code.constant(0));
        let all = self.code.constant(u32::MAX);
        let no_room = if used_as == MapUse::Prefixes { ENOSPC } else { E2BIG };
        for (what, error) in [(missing, ENOENT), (full, no_room), (exists, EEXIST), (wrong, EINVAL)] {
            let is_it = self.code.binary_const(Eq, entry, what);
            let error = self.code.constant(error as u32);
            (low, high) = (self.code.select(is_it, error, low), self.code.select(is_it, all, high));
        }
        Ok(self.scalar(Interval::ANY, low, high))
    }

    /// `bpf_map_delete_elem`
    pub(super) fn delete(&mut self, map: u16, key: Value) -> Result<Value> {
        self.expect_mutable(map)?;
        let info = &self.linked.maps[usize::from(map)];
        let key_size = info.definition.key_size;
        match self.use_for_update(map) {
            MapUse::Array => Ok(self.error_code(EINVAL)),
            MapUse::Hash => {
                let words = self.load_words(key, key_size, "the key")?;
                let there = self.call_with_key(map, "remove", words, Effect::Writes);
                Ok(self.zero_or_error(there, ENOENT))
            }
            MapUse::Lpm | MapUse::Prefixes => {
                let key = key_argument(self.load_words(key, key_size, "the key")?);
                let gone = self.code.call(&self.runtime_function(map, "prefix_remove"), vec![key], Effect::Writes);
                let (zero, all) = (self.code.constant(0), self.code.constant(u32::MAX));
                let (none, wrong) = (self.code.constant(ENOENT as u32), self.code.constant(EINVAL as u32));
                let (was_there, was_none) = (self.code.binary_const(Eq, gone, 0), self.code.binary_const(Eq, gone, 1));
                let low = self.code.select(was_none, none, wrong);
                let (low, high) = (self.code.select(was_there, zero, low), self.code.select(was_there, zero, all));
                Ok(self.scalar(Interval::ANY, low, high))
            }
            MapUse::EventRing => self.reject("the entries of an event map can only be written by event helpers"),
            MapUse::Unsupported(why) => self.reject(why),
        }
    }

    /// Checks an access to a map value; aborts the packet at run time if it may lie outside and
    /// does.
    fn check_value_access(&mut self, pointer: Value, off: i64, size: u32) -> Result<ValueAccess> {
        let RegType::MapValue { map, off: base, .. } = pointer.ty else { unreachable!("the caller has looked") };
        let length = i64::from(self.linked.maps[usize::from(map)].definition.value_size);
        self.trap_null(pointer, "the pointer to a map's value is NULL");
        let (low, high) = (base.low.saturating_add(off), base.high.saturating_add(off) + i64::from(size));
        if high <= 0 || low >= length || (base.as_constant().is_some() && (low < 0 || high > length)) {
            return self.reject(format!("a map's value has {length} bytes, and is accessed at offset {low}"));
        }
        let at = self.code.binary_const(Add, pointer.low, off as u32);
        if low < 0 || high > length {
            let last = self.code.constant((length - i64::from(size)).max(0) as u32);
            let beyond =
                if length < i64::from(size) { self.code.boolean(true) } else { self.code.binary(Lt, last, at) };
            self.trap(beyond, "the map's value is not so long");
        }
        let bytes = (low.clamp(0, length) as u32, high.clamp(0, length) as u32);
        let span = ByteSpan { map, bytes, is_exact: base.as_constant().is_some() };
        Ok(ValueAccess { map, high: pointer.high, at, span, fits: base.are_multiples_of(size.min(4), off) })
    }

    /// The value of a load from constant global variables, if the offset is known.
    fn constant_data(&mut self, map: u16, at: Id, size: u32) -> Option<Value> {
        let info = &self.linked.maps[usize::from(map)].definition;
        let data = info.data.as_ref().filter(|_| info.read_only)?;
        let at = self.code.as_constant(at)? as usize;
        let bytes = data.get(at..at + size as usize)?;
        let value = bytes.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        Some(self.constant(value))
    }

    pub(super) fn load_value(&mut self, pointer: Value, off: i64, size: u32) -> Result<Value> {
        let ValueAccess { map, high, at, span, fits } = self.check_value_access(pointer, off, size)?;
        if let Some(value) = self.constant_data(map, at, size) {
            return Ok(value);
        }
        self.facts.used_maps.insert(map);
        let is_own = self.note_load(span);
        let value = if size == 8 {
            let low = self.read_bytes(map, high, at, 4, fits);
            let behind = self.code.binary_const(Add, at, 4);
            let high = self.read_bytes(map, high, behind, 4, fits);
            self.scalar(Interval::ANY, low, high)
        } else {
            let low = self.read_bytes(map, high, at, size, fits);
            self.scalar32(Interval::of_width(size), low)
        };
        if !is_own {
            self.note_field_load(Field { map, entry: high, at, size }, value);
        }
        Ok(value)
    }

    /// Reads up to four bytes of a value; with `fits`, they are in one word.
    fn read_bytes(&mut self, map: u16, high: Id, at: Id, size: u32, fits: bool) -> Id {
        let word = self.code.binary_const(Shr, at, 2);
        let all = self.read_value_word(map, high, word);
        if size == 4 && fits {
            return all;
        }
        let shift = self.code.binary_const(And, at, 3);
        let shift = self.code.binary_const(Shl, shift, 3);
        let value = if fits {
            self.code.binary(Shr, all, shift)
        } else {
            let (entry, next, read) =
                (self.entry_index(high), self.code.binary_const(Add, word, 1), self.map_function(map, "read"));
            let next = match self.private_word(map, next) {
                Some(next) => next,
                None => self.code.call_values(&read, &[entry, next], Effect::Reads),
            };
            self.funnel_shift(all, next, shift)
        };
        if size == 4 { value } else { self.code.binary_const(And, value, (1 << (8 * size)) - 1) }
    }

    /// Reads a word of a value. The caller has checked that entry and word exist.
    pub(super) fn read_value_word(&mut self, map: u16, high: Id, word: Id) -> Id {
        if let Some(own) = self.private_word(map, word) {
            return own;
        }
        let info = &self.linked.maps[usize::from(map)];
        if info.used_as == MapUse::Lpm {
            // The layout is not fixed yet: the trie may become a general prefix trie.
            let (entry, read) = (self.entry_index(high), self.map_function(map, "read"));
            return self.code.call_values(&read, &[entry, word], Effect::Reads);
        }
        let Layout { stride, value, .. } = Layout::of(&info.declaration());
        let get = self.runtime_function(map, "get");
        // The high half is the entry index plus one.
        let place = self.code.binary_const(Mul, high, stride);
        let place = self.code.binary(Add, place, word);
        let at = self.code.binary_const(Add, place, (HEADER_WORDS + value).wrapping_sub(stride));
        self.code.call_values(&get, &[at], Effect::Reads)
    }

    pub(super) fn store_value(&mut self, pointer: Value, off: i64, size: u32, value: Value) -> Result<()> {
        let ValueAccess { map, high, at, span, fits } = self.check_value_access(pointer, off, size)?;
        self.expect_writable(map)?;
        self.facts.used_maps.insert(map);
        let field = Field { map, entry: high, at, size };
        // A value derived from the old one may derive from what another packet stored.
        let is_made = self.may_be_private(span) && self.is_derived_from_field(field, value);
        if self.try_fetch_add(field, value, (span, fits)) {
            self.note_store(span, StoreCertainty::Updated);
            return Ok(());
        }
        let entry = self.entry_index(high);
        let is_certain = !is_made && self.code.as_constant(entry) == Some(0);
        self.note_store(span, if is_certain { StoreCertainty::Definite } else { StoreCertainty::Maybe });
        match size {
            8 => {
                self.write_bytes(map, entry, at, 4, value.low, fits);
                let behind = self.code.binary_const(Add, at, 4);
                self.write_bytes(map, entry, behind, 4, value.high, fits);
            }
            _ => self.write_bytes(map, entry, at, size, value.low, fits),
        }
        Ok(())
    }

    /// Stores up to four bytes, those selected by the mask, if the condition holds.
    pub(super) fn store_value_masked(
        &mut self,
        pointer: Value,
        (off, size): (i64, u32),
        value: Id,
        (condition, mask): (Id, Id),
    ) -> Result<()> {
        let ValueAccess { map, high, at, span, fits } = self.check_value_access(pointer, off, size)?;
        self.expect_writable(map)?;
        self.facts.used_maps.insert(map);
        let (entry, nobody) = (self.entry_index(high), self.code.constant(NO_ENTRY));
        let entry = self.code.select(condition, entry, nobody);
        self.note_store(span, StoreCertainty::Maybe);
        let all = u32::MAX >> (32 - 8 * size);
        if self.code.as_constant(mask).is_some_and(|mask| mask & all == all) {
            self.write_bytes(map, entry, at, size, value, fits);
        } else if fits {
            let word = self.code.binary_const(Shr, at, 2);
            let (shift, part) = self.part_of_word(at, size);
            let mask = self.code.binary(Shl, mask, shift);
            let mask = self.code.binary(And, mask, part);
            let bits = self.code.binary(Shl, value, shift);
            let bits = self.code.binary(And, bits, mask);
            self.put_bits(map, entry, word, mask, bits);
        } else {
            for byte in 0..size {
                let counts = self.code.binary_const(And, mask, 0xff << (8 * byte));
                let counts = self.code.binary_const(Ne, counts, 0);
                let entry = self.code.select(counts, entry, nobody);
                let (at, value) = (self.code.binary_const(Add, at, byte), self.code.binary_const(Shr, value, 8 * byte));
                self.write_bytes(map, entry, at, 1, value, true);
            }
        }
        Ok(())
    }

    fn expect_writable(&self, map: u16) -> Result<()> {
        match self.linked.maps[usize::from(map)].definition.read_only {
            true => self.reject("a constant global variable is written to"),
            false => Ok(()),
        }
    }

    /// Writes up to four bytes of a value; with `fits`, they are in one word.
    fn write_bytes(&mut self, map: u16, entry: Id, at: Id, size: u32, value: Id, fits: bool) {
        let word = self.code.binary_const(Shr, at, 2);
        if !fits {
            for byte in 0..size {
                let (at, value) = (self.code.binary_const(Add, at, byte), self.code.binary_const(Shr, value, 8 * byte));
                self.write_bytes(map, entry, at, 1, value, true);
            }
            return;
        }
        if size == 4 {
            self.write_value_word(map, entry, word, value);
            return;
        }
        // Other packets may write the rest of the word at the same time.
        let (shift, mask) = self.part_of_word(at, size);
        let bits = self.code.binary(Shl, value, shift);
        let bits = self.code.binary(And, bits, mask);
        self.put_bits(map, entry, word, mask, bits);
    }

    pub(super) fn write_value_word(&mut self, map: u16, entry: Id, word: Id, value: Id) {
        self.code.call_values(&self.map_function(map, "write"), &[entry, word, value], Effect::Writes);
        self.write_private_word(map, entry, word, value);
    }

    fn put_bits(&mut self, map: u16, entry: Id, word: Id, mask: Id, bits: Id) {
        self.call_change(map, AtomicOp::ReplaceBits, &[entry, word, mask, bits]);
        self.write_private_bits(map, entry, word, mask, bits);
    }

    /// Bit position and mask of an access within its word.
    pub(super) fn part_of_word(&mut self, at: Id, size: u32) -> (Id, Id) {
        let shift = self.code.binary_const(And, at, 3);
        let shift = self.code.binary_const(Shl, shift, 3);
        let mask = self.code.constant(u32::MAX >> (32 - 8 * size));
        (shift, self.code.binary(Shl, mask, shift))
    }

    /// Checks an atomic access; returns map, entry index, word, and the bytes touched.
    pub(super) fn check_atomic_access(
        &mut self,
        pointer: Value,
        off: i64,
        size: u32,
    ) -> Result<(u16, Id, Id, ByteSpan)> {
        let ValueAccess { map, high, at, span, fits } = self.check_value_access(pointer, off, size)?;
        self.facts.used_maps.insert(map);
        if !fits {
            let RegType::MapValue { off: base, .. } = pointer.ty else { unreachable!("looked at above") };
            if (1..4).any(|by| base.are_multiples_of(4, off + by)) {
                return self.reject(format!("an atomic operation on {size} bytes is done at an odd offset"));
            }
            let rest = self.code.binary_const(And, at, 3);
            let is_odd = self.code.binary_const(Ne, rest, 0);
            self.trap(is_odd, "an atomic operation is done at an odd offset");
        }
        let (entry, word) = (self.entry_index(high), self.code.binary_const(Shr, at, 2));
        Ok((map, entry, word, span))
    }

    /// Calls a function that changes a word of a value; returns the previous content.
    pub(super) fn call_change(&mut self, map: u16, change: AtomicOp, arguments: &[Id]) -> Id {
        let name = atomic_function_name(&self.linked.maps[usize::from(map)].name, change);
        self.code.call_values(&name, arguments, Effect::Writes)
    }

    /// Reads the single word of an entry, zero if there is none: a target, a program or an inner
    /// map.
    pub(super) fn read_slot(&mut self, map: u16, index: Id) -> Id {
        let (word, read) = (self.code.constant(0), self.map_function(map, "read"));
        let entry = if self.linked.maps[usize::from(map)].used_as == MapUse::Hash {
            self.call_with_key(map, "find", vec![index], Effect::Reads)
        } else {
            index
        };
        self.code.call_values(&read, &[entry, word], Effect::Reads)
    }
}

/// A key as an argument of a map function.
fn key_argument(words: Vec<Id>) -> Argument {
    match words[..] {
        [one] => Argument::Value(one),
        _ => Argument::Words(words),
    }
}
