//! Inline probes of hash-map searches.
//!
//! A search probes slot after slot until it finds its key, and no branch predictor learns how many:
//! in a table that is half full every fourth search goes beyond its first slot. So the slots in
//! which nearly all searches end are compared at once, without branches, and a predictable branch
//! leads to the prelude's own code for the few searches that go further, for removed keys, and for
//! keys to be inserted. Inserting a key that exists needs no atomic exchange this way.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, MemFlagsData, Type, Value, types as clif};
use naga::{Function, Handle};
use portcullis_core::map::layout::{
    HEADER_GENERATION, HEADER_WORDS, KEY_WORD_WRITTEN, Layout, STATE_PRESENT, stored_key_words,
};
use portcullis_core::map::{Declaration, MapFunction, MapKind};
use portcullis_core::program::prelude::Intrinsic;

use super::branch_free::Outcome;
use super::codegen::{Codegen, Operand, ReturnTarget};
use crate::compile::errors::{Result, Unsupported};

/// Slots that are compared at once. In a table that is half full this is enough for 95 % of all
/// keys; each further probe costs as much as it saves.
const INLINE_PROBES: usize = 3;

/// Result of a search without an entry.
const MAP_NONE: u32 = 0xffff_ffff;

/// Pairs of key words that distinguish nearly all keys, so that the others need to be compared for
/// one slot only: the first pair, and more of long keys. Long keys may begin with IPv6 addresses,
/// which differ in their second half, and continue with ports.
const fn discriminating_words(key: u32) -> &'static [usize] {
    match key {
        0..=4 => &[0],
        5..=7 => &[0, 1],
        8 => &[1, 3],
        _ => &[1, 3, 4],
    }
}

/// A search for a key in a hash map.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapSearch<'a> {
    pub map: &'a Declaration,
    /// The map's number in the program.
    pub number: u32,
    pub call: MapFunction,
}

impl<'a> Codegen<'a, '_> {
    /// Returns the search that a prelude function makes, if it does.
    pub(super) fn map_search(&self, function: Handle<Function>) -> Option<MapSearch<'a>> {
        match self.program.intrinsic(function)? {
            Intrinsic::Map {
                map: number,
                call: call @ (MapFunction::Find | MapFunction::Insert | MapFunction::Remove),
            } => {
                let map = &self.program.maps()[number as usize];
                matches!(map.kind, MapKind::Hash | MapKind::LruHash).then_some(MapSearch { map, number, call })
            }
            _ => None,
        }
    }

    /// Compares the first slots of a search with its key. If that decides the search, jumps to
    /// `exit` with the slot of the key or with [`MAP_NONE`]. Returns false, emitting nothing, if
    /// the prelude's code alone makes the search.
    pub(super) fn inline_probes(&mut self, search: MapSearch<'a>, key: &[Value], exit: ir::Block) -> Result<bool> {
        let layout = Layout::of(search.map);
        if search.call == MapFunction::Remove {
            return Ok(false);
        }
        let mut slots = vec![self.first_slot(search, key)?];
        for step in 1..INLINE_PROBES {
            let next = self.b.ins().iadd_imm_u(slots[step - 1], step as i64);
            slots.push(self.b.ins().band_imm_u(next, i64::from(layout.slots - 1)));
        }
        let wanted = self.encode_key(key);
        self.count_operations(8 * INLINE_PROBES + 12 * wanted.len())?;

        // The first slot that may hold the key; the last one if none does.
        let discriminating = discriminating_words(search.map.key);
        let mut slot = slots[INLINE_PROBES - 1];
        for &one in slots.iter().rev().skip(1) {
            let at = self.slot_address(search, one);
            let differences = self.xor_key_words(at, &wanted, discriminating);
            let may_be = self.b.ins().icmp_imm_u(IntCC::Equal, differences, 0);
            slot = self.b.ins().select(may_be, one, slot);
        }
        let at = self.slot_address(search, slot);
        let first_difference = self.xor_key_words(at, &wanted, discriminating);
        let others: Vec<usize> = (0..wanted.len()).filter(|number| !discriminating.contains(number)).collect();
        let other_difference = self.xor_key_words(at, &wanted, &others);
        let differences = self.b.ins().bor(first_difference, other_difference);
        let (here, elsewhere) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(differences, elsewhere, &[], here, &[]);
        self.switch_to_sealed(here);
        if let Some(stamp) = layout.stamp {
            self.update_stamp(search, at, stamp);
        }
        self.b.ins().jump(exit, &[slot.into()]);
        self.switch_to_sealed(elsewhere);
        if search.call == MapFunction::Find {
            self.finish_at_free_slot(search, &slots, first_difference, exit);
        }
        Ok(true)
    }

    /// Marks a slot's entry as used in the current generation, unless it is already.
    fn update_stamp(&mut self, search: MapSearch<'a>, slot: Value, stamp: u32) {
        let memory = MemFlagsData::new().with_notrap();
        let words = self.map_address(search.number);
        let now = self.b.ins().load(clif::I32, memory, words, 4 * HEADER_GENERATION as i32);
        let before = self.load_slot_word(clif::I32, slot, 4 * stamp as i32);
        let old = self.b.ins().icmp(IntCC::NotEqual, before, now);
        let (write, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(old, write, &[], on, &[]);
        self.switch_to_sealed(write);
        self.b.ins().store(memory, now, slot, 4 * (HEADER_WORDS + stamp) as i32);
        self.b.ins().jump(on, &[]);
        self.switch_to_sealed(on);
    }

    /// Compares some words of a slot with those of a key; the result is zero if they are equal.
    fn xor_key_words(&mut self, slot: Value, wanted: &[Value], which: &[usize]) -> Value {
        let mut all = None;
        for &number in which {
            let ty = self.b.func.dfg.value_type(wanted[number]);
            let there = self.load_slot_word(ty, slot, 8 * number as i32);
            let mut difference = self.b.ins().bxor(there, wanted[number]);
            if ty == clif::I32 {
                difference = self.b.ins().uextend(clif::I64, difference);
            }
            all = Some(all.map_or(difference, |before| self.b.ins().bor(before, difference)));
        }
        all.expect("at least one word is compared")
    }

    /// Jumps to `exit` without an entry if one of the slots is free and none holds the key: a key
    /// is never behind a free slot. `first_difference` is the difference of the most similar slot,
    /// zero if it may hold the key.
    fn finish_at_free_slot(
        &mut self,
        search: MapSearch<'a>,
        slots: &[Value],
        first_difference: Value,
        exit: ir::Block,
    ) {
        let mut written = None;
        for &slot in slots {
            let at = self.slot_address(search, slot);
            let first = self.load_slot_word(clif::I32, at, 0);
            written = Some(written.map_or(first, |before| self.b.ins().band(before, first)));
        }
        let all_taken =
            self.b.ins().band_imm_u(written.expect("at least one slot is probed"), i64::from(KEY_WORD_WRITTEN));
        let free = self.b.ins().icmp_imm_u(IntCC::Equal, all_taken, 0);
        let other = self.b.ins().icmp_imm_u(IntCC::NotEqual, first_difference, 0);
        let ends = self.b.ins().band(free, other);
        let none = self.constant(MAP_NONE);
        let text = self.b.create_block();
        self.b.ins().brif(ends, exit, &[none.into()], text, &[]);
        self.switch_to_sealed(text);
    }

    /// Emits the number of the slot in which a search begins.
    pub(super) fn first_slot(&mut self, search: MapSearch<'a>, key: &[Value]) -> Result<Value> {
        let name = format!("pc_in_{}_hash", search.map.name);
        let function = self.module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(&name));
        let (function, _) = function.ok_or_else(|| Unsupported(format!("a map without `{name}`")))?;
        let mut frame = self.new_frame(function, vec![Operand::Value(key.to_vec())], ReturnTarget::Collected)?;
        let body = &frame.code.body;
        let hash = match self.branch_free_block(&mut frame, body)? {
            Outcome::Returns(hash) if hash.len() == 1 => hash[0],
            _ => return Err(Unsupported("a hash function that does not return one scalar".into())),
        };
        Ok(self.b.ins().band_imm_u(hash, i64::from(Layout::of(search.map).slots - 1)))
    }

    /// Encodes a key as its slot holds it while the entry exists: the key's words as they are
    /// stored (`layout::stored_word`), then the state. Each value holds two words, the first in its
    /// low half; the last value may hold one.
    fn encode_key(&mut self, key: &[Value]) -> Vec<Value> {
        let wide: Vec<Value> = key.iter().map(|&word| self.b.ins().uextend(clif::I64, word)).collect();
        let pairs: Vec<Value> = wide
            .chunks(2)
            .map(|pair| match *pair {
                [low, high] => {
                    let high = self.b.ins().ishl_imm_u(high, 32);
                    self.b.ins().bor(low, high)
                }
                _ => pair[0],
            })
            .collect();
        let words = stored_key_words(key.len() as u32);
        let mut wanted = Vec::new();
        for number in 0..words.div_ceil(2) {
            // 62 bits of the key. The operands have no bits in common; `iadd` instead of `bor`,
            // because Cranelift would make a double-precision shift of the latter, which is slow.
            let at = number as usize;
            let low = at.checked_sub(1).map(|at| self.b.ins().ushr_imm_u(pairs[at], 64 - 2 * i64::from(number)));
            let high = pairs.get(at).map(|&pair| self.b.ins().ishl_imm_u(pair, 2 * i64::from(number)));
            let bits = match (low, high) {
                (Some(low), Some(high)) => self.b.ins().iadd(low, high),
                (one, other) => one.or(other).expect("a stored word holds part of the key"),
            };
            let (spread, marks) = match words - 2 * number {
                1 => (bits, u64::from(STATE_PRESENT) << 32 | u64::from(KEY_WORD_WRITTEN)),
                _ => {
                    // Bits from the 31st on move up by one: add them again.
                    let upper = self.b.ins().band_imm_s(bits, -1 << 31);
                    (self.b.ins().iadd(bits, upper), u64::from(KEY_WORD_WRITTEN) << 32 | u64::from(KEY_WORD_WRITTEN))
                }
            };
            wanted.push(self.b.ins().bor_imm_s(spread, marks as i64));
        }
        if words.is_multiple_of(2) {
            wanted.push(self.constant(STATE_PRESENT));
        }
        wanted
    }

    /// Emits the address of a slot's first word.
    pub(super) fn slot_address(&mut self, search: MapSearch<'a>, slot: Value) -> Value {
        let words = self.map_address(search.number);
        let wide = self.b.ins().uextend(clif::I64, slot);
        let offset = self.b.ins().imul_imm_u(wide, i64::from(4 * Layout::of(search.map).stride));
        self.b.ins().iadd(words, offset)
    }

    /// Loads words of a slot. A pair of words is not torn: it lies in one cache line.
    fn load_slot_word(&mut self, ty: Type, slot: Value, offset: i32) -> Value {
        self.b.ins().load(ty, MemFlagsData::new().with_notrap(), slot, 4 * HEADER_WORDS as i32 + offset)
    }
}
