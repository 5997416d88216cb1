//! Searches for a key in a map: the first places of each are compared without a branch.
//!
//! A search goes on from place to place until it meets its key, and no predictor foresees how far that is: in a table
//! half full every fourth search goes beyond its first place. So the places that nearly all searches end at are
//! compared at once, and a branch that is foreseen leads to the prelude's own text for the few that go further, for
//! keys that were removed, and for those that are to be inserted. A key that is there needs no atomic exchange to be
//! inserted.

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

/// Places of a search that are compared at once. In a table half full that is enough for 95 of 100 keys; each more costs
/// as much as it saves.
const INLINE_PROBES: usize = 3;

/// What the text gives where there is no entry.
const MAP_NONE: u32 = 0xffff_ffff;

/// The pairs of a key's words that tell nearly all keys apart, so that the others are looked at in one place only: the
/// first, of long keys more. These may begin with addresses of IPv6, of which the second halves are those that differ,
/// and go on with ports.
const fn discriminating_words(key: u32) -> &'static [usize] {
    match key {
        0..=4 => &[0],
        5..=7 => &[0, 1],
        8 => &[1, 3],
        _ => &[1, 3, 4],
    }
}

/// A search that looks for a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapSearch<'a> {
    pub map: &'a Declaration,
    /// The map's number.
    pub number: u32,
    pub call: MapFunction,
}

impl<'a> Codegen<'a, '_> {
    /// What a function of the prelude searches for.
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

    /// Compares the first places of a search with its key, and goes to `exit` where that ends it: with the one of them
    /// that has the key, or without any. False for searches that are the text's alone.
    pub(super) fn inline_probes(&mut self, search: MapSearch<'a>, key: &[Value], exit: ir::Block) -> Result<bool> {
        let layout = Layout::of(search.map);
        if search.call == MapFunction::Remove {
            return Ok(false);
        }
        let mut places = vec![self.first_slot(search, key)?];
        for step in 1..INLINE_PROBES {
            let next = self.b.ins().iadd_imm_u(places[step - 1], step as i64);
            places.push(self.b.ins().band_imm_u(next, i64::from(layout.slots - 1)));
        }
        let wanted = self.encode_key(key);
        self.count_operations(8 * INLINE_PROBES + 12 * wanted.len())?;

        // The first that may be it; if none is, the last.
        let telling = discriminating_words(search.map.key);
        let mut place = places[INLINE_PROBES - 1];
        for &one in places.iter().rev().skip(1) {
            let at = self.slot_address(search, one);
            let differences = self.xor_key_words(at, &wanted, telling);
            let may_be = self.b.ins().icmp_imm_u(IntCC::Equal, differences, 0);
            place = self.b.ins().select(may_be, one, place);
        }
        let at = self.slot_address(search, place);
        let in_telling = self.xor_key_words(at, &wanted, telling);
        let others: Vec<usize> = (0..wanted.len()).filter(|number| !telling.contains(number)).collect();
        let in_others = self.xor_key_words(at, &wanted, &others);
        let differences = self.b.ins().bor(in_telling, in_others);
        let (here, elsewhere) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(differences, elsewhere, &[], here, &[]);
        self.switch_to_sealed(here);
        if let Some(stamp) = layout.stamp {
            self.update_stamp(search, at, stamp);
        }
        self.b.ins().jump(exit, &[place.into()]);
        self.switch_to_sealed(elsewhere);
        if search.call == MapFunction::Find {
            self.finish_at_free_slot(search, &places, in_telling, exit);
        }
        Ok(true)
    }

    /// Notes that the entry of a place is used, where that is news.
    fn update_stamp(&mut self, search: MapSearch<'a>, place: Value, stamp: u32) {
        let memory = MemFlagsData::new().with_notrap();
        let words = self.map_address(search.number);
        let now = self.b.ins().load(clif::I32, memory, words, 4 * HEADER_GENERATION as i32);
        let before = self.load_slot_word(clif::I32, place, 4 * stamp as i32);
        let old = self.b.ins().icmp(IntCC::NotEqual, before, now);
        let (write, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(old, write, &[], on, &[]);
        self.switch_to_sealed(write);
        self.b.ins().store(memory, now, place, 4 * (HEADER_WORDS + stamp) as i32);
        self.b.ins().jump(on, &[]);
        self.switch_to_sealed(on);
    }

    /// What is in some of a place's words and not in a key's, or in the key's alone: zero where they are the same.
    fn xor_key_words(&mut self, place: Value, wanted: &[Value], which: &[usize]) -> Value {
        let mut all = None;
        for &number in which {
            let ty = self.b.func.dfg.value_type(wanted[number]);
            let there = self.load_slot_word(ty, place, 8 * number as i32);
            let mut difference = self.b.ins().bxor(there, wanted[number]);
            if ty == clif::I32 {
                difference = self.b.ins().uextend(clif::I64, difference);
            }
            all = Some(all.map_or(difference, |before| self.b.ins().bor(before, difference)));
        }
        all.expect("there are words to compare")
    }

    /// Goes to `exit` without an entry where one of the places is free, for behind that there is no key, and the key is
    /// in none of them: the one that was most like it differs in what tells keys apart.
    fn finish_at_free_slot(&mut self, search: MapSearch<'a>, places: &[Value], in_telling: Value, exit: ir::Block) {
        let mut written = None;
        for &place in places {
            let at = self.slot_address(search, place);
            let first = self.load_slot_word(clif::I32, at, 0);
            written = Some(written.map_or(first, |before| self.b.ins().band(before, first)));
        }
        let all_taken = self.b.ins().band_imm_u(written.expect("there is a place"), i64::from(KEY_WORD_WRITTEN));
        let free = self.b.ins().icmp_imm_u(IntCC::Equal, all_taken, 0);
        let other = self.b.ins().icmp_imm_u(IntCC::NotEqual, in_telling, 0);
        let ends = self.b.ins().band(free, other);
        let none = self.constant(MAP_NONE);
        let text = self.b.create_block();
        self.b.ins().brif(ends, exit, &[none.into()], text, &[]);
        self.switch_to_sealed(text);
    }

    /// Where a search begins.
    pub(super) fn first_slot(&mut self, search: MapSearch<'a>, key: &[Value]) -> Result<Value> {
        let name = format!("pc_in_{}_hash", search.map.name);
        let function = self.module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(&name));
        let (function, _) = function.ok_or_else(|| Unsupported(format!("a map without `{name}`")))?;
        let mut frame = self.new_frame(function, vec![Operand::Value(key.to_vec())], ReturnTarget::Collected)?;
        let body = &frame.code.body;
        let hash = match self.branch_free_block(&mut frame, body)? {
            Outcome::Returns(hash) if hash.len() == 1 => hash[0],
            _ => return Err(Unsupported("a hash that is no number".into())),
        };
        Ok(self.b.ins().band_imm_u(hash, i64::from(Layout::of(search.map).slots - 1)))
    }

    /// What is in a key's place while its entry is there: words of the key as they are stored (`layout::stored_word`),
    /// then the state. Two words to a value, the first of them in its low half; the last may be alone.
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
            // 62 bits of the key. The sum is of bits that are not in both, and no `or`, of which the code
            // generator would make a shift of two registers, which is slow.
            let at = number as usize;
            let low = at.checked_sub(1).map(|at| self.b.ins().ushr_imm_u(pairs[at], 64 - 2 * i64::from(number)));
            let high = pairs.get(at).map(|&pair| self.b.ins().ishl_imm_u(pair, 2 * i64::from(number)));
            let bits = match (low, high) {
                (Some(low), Some(high)) => self.b.ins().iadd(low, high),
                (one, other) => one.or(other).expect("a stored word has a part of the key"),
            };
            let (spread, marks) = match words - 2 * number {
                1 => (bits, u64::from(STATE_PRESENT) << 32 | u64::from(KEY_WORD_WRITTEN)),
                _ => {
                    // From the 31st on they move up by one: twice as much.
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

    /// The address of a place's first word.
    pub(super) fn slot_address(&mut self, search: MapSearch<'a>, place: Value) -> Value {
        let words = self.map_address(search.number);
        let wide = self.b.ins().uextend(clif::I64, place);
        let offset = self.b.ins().imul_imm_u(wide, i64::from(4 * Layout::of(search.map).stride));
        self.b.ins().iadd(words, offset)
    }

    /// Words of a place. Of two at a time none is torn: each lies in one line of a cache.
    fn load_slot_word(&mut self, ty: Type, place: Value, offset: i32) -> Value {
        self.b.ins().load(ty, MemFlagsData::new().with_notrap(), place, 4 * HEADER_WORDS as i32 + offset)
    }
}
