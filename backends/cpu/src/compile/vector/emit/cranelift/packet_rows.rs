//! Loads from packets that the filter does not write to: rows of all packets of a group, transposed
//! so that each word of a row becomes a vector; and gathers at variable offsets.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types as clif};

use super::super::plan::{ALWAYS_READABLE, is_always_readable};
use super::emitter::{CacheKey, Emitter, LANES};
use crate::compile::abi::context_offset;
use crate::compile::errors::Result;
use crate::compile::lowered::constant_memory;
use crate::compile::vector::ir::{Load, Node, Op};

impl Emitter<'_, '_> {
    pub(super) fn load(&mut self, node: Node, load: Load) -> Result<Value> {
        match load.root {
            None if is_always_readable(load.add, load.size) => Ok(self.load_bytes(load.add, load.size, false)),
            Some(root) if self.plan.is_speculative(node, root) => self.speculative_load(node, root),
            _ => self.gather_load(load),
        }
    }

    /// Loads a big-endian number, if that takes less than a load and a byte swap.
    pub(super) fn load_swapped(&mut self, load: Load) -> Option<Value> {
        if load.root.is_some() || !is_always_readable(load.add, load.size) {
            return None;
        }
        let (first, last) = self.plan.word_span(load.add, load.size);
        (first == last).then(|| self.load_bytes(load.add, load.size, true))
    }

    /// Loads bytes at a constant offset; with `turned`, which needs them to lie in one word, as a
    /// big-endian number.
    fn load_bytes(&mut self, at: u32, size: u32, turned: bool) -> Value {
        let (first, last) = self.plan.word_span(at, size);
        let word = self.row_word(first);
        let skip = at - first;
        if first == last {
            return match (skip, size) {
                _ if turned => self.shuffle_in_lanes(word, skip, size, true),
                (0, 4) => word,
                (0, _) => {
                    let mask = self.splat(u32::MAX >> (32 - 8 * size));
                    self.b.ins().band(word, mask)
                }
                (skip, size) if skip + size == 4 => self.shift_right(word, 8 * skip),
                (skip, size) => self.shuffle_in_lanes(word, skip, size, false),
            };
        }
        let next_word = self.row_word(last);
        let low = self.shift_right(word, 8 * skip);
        // The first byte of the second word is byte `last - at` of the number.
        let high = self.shift_left(next_word, 8 * (last - at));
        // If the words overlap, the bits in common are equal.
        let both = self.b.ins().bor(low, high);
        if size == 4 {
            return both;
        }
        let mask = self.splat(u32::MAX >> (32 - 8 * size));
        self.b.ins().band(both, mask)
    }

    /// Loads a word of every packet of the group, by the offset of its first byte.
    fn row_word(&mut self, word: u32) -> Value {
        if let Some(&value) = self.cache.get(&CacheKey::Word(word)) {
            return value;
        }
        let starts = self.group().starts;
        let value = match self.plan.row_of(word) {
            None => self
                .gather(constant_memory(), 4, |_, lane| Ok((starts[lane], word as i32)))
                .expect("packet addresses never fail"),
            Some(row) => {
                let high = word - row >= 8;
                let (first, second) = (self.interleaved_rows(row, 0, high), self.interleaved_rows(row, 1, high));
                // Each vector has a word and the following one, of two packets.
                let words = if (word - row).is_multiple_of(8) { [0, 1, 4, 5] } else { [2, 3, 6, 7] };
                self.shuffle_words(first, second, words)
            }
        };
        self.remember(CacheKey::Word(word), value)
    }

    /// Interleaves half of the rows of the first or the second pair of packets.
    fn interleaved_rows(&mut self, row: u32, pair: usize, high: bool) -> Value {
        let key = CacheKey::Pair(row, pair, high);
        if let Some(&value) = self.cache.get(&key) {
            return value;
        }
        let (first, second) = (self.load_row(row, 2 * pair), self.load_row(row, 2 * pair + 1));
        let value = self.shuffle_words(first, second, if high { [2, 6, 3, 7] } else { [0, 4, 1, 5] });
        self.remember(key, value)
    }

    /// Loads a row of a packet. It may be read of any packet: see "Memory safety" in `emit`.
    fn load_row(&mut self, row: u32, lane: usize) -> Value {
        if let Some(&value) = self.cache.get(&CacheKey::Row(row, lane)) {
            return value;
        }
        let start = self.group().starts[lane];
        let value = self.b.ins().load(clif::I32X4, constant_memory(), start, row as i32);
        self.remember(CacheKey::Row(row, lane), value)
    }

    /// Loads at a variable offset, packet by packet.
    fn gather_load(&mut self, load: Load) -> Result<Value> {
        let starts = self.group().starts;
        let most = load.root.map_or(0, |root| self.dag().range(root).high);
        let harmless = u64::from(most) + u64::from(load.add) + u64::from(load.size) <= u64::from(ALWAYS_READABLE);
        if let (true, Some(root)) = (harmless, load.root) {
            return self.gather(constant_memory(), load.size, |emit, lane| {
                let offset = emit.lane_as_u64(root, lane)?;
                Ok((emit.b.ins().iadd(starts[lane], offset), load.add as i32))
            });
        }
        let safe = self.safe_offset(load)?;
        self.gather(constant_memory(), load.size, |emit, lane| {
            let word = emit.b.ins().extractlane(safe, lane as u8);
            let offset = emit.b.ins().uextend(clif::I64, word);
            Ok((emit.b.ins().iadd(starts[lane], offset), 0))
        })
    }

    /// Returns offsets of a load from the packets' starts, 0 in lanes in which the load would leave
    /// the packet.
    fn safe_offset(&mut self, load: Load) -> Result<Value> {
        let key = load.root.map(|root| CacheKey::SafeOffset(root, load.add, load.size));
        if let Some(&value) = key.and_then(|key| self.cache.get(&key)) {
            return Ok(value);
        }
        let add = self.splat(load.add);
        let offset = match load.root {
            None => add,
            Some(root) => {
                let root = self.value(root)?;
                self.b.ins().iadd(root, add)
            }
        };
        let size = self.splat(load.size);
        let lengths = self.group().lengths;
        // Does not wrap if the packet is at least as long as the load.
        let room = self.b.ins().isub(lengths, size);
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, size, lengths);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, offset, room);
        let fits = self.b.ins().band(fits, inside);
        let safe = self.b.ins().band(fits, offset);
        Ok(match key {
            Some(key) => self.remember(key, safe),
            None => safe,
        })
    }

    /// Loads everything at a speculated offset: as parts of rows if the speculation is right in all
    /// lanes in which it matters, by gathers otherwise.
    fn speculative_load(&mut self, node: Node, root: Node) -> Result<Value> {
        let speculation = &self.plan.speculations[&root];
        let offset = self.value(root)?;
        let value = self.splat(speculation.value);
        let mut wrong = self.b.ins().icmp(IntCC::NotEqual, offset, value);
        if let Some(lanes) = speculation.lanes {
            let lanes = self.value(lanes)?;
            wrong = self.b.ins().band(lanes, wrong);
        }
        let any = self.b.ins().vany_true(wrong);
        let (speculated, fallback, merge) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(fallback);
        self.b.ins().brif(any, fallback, &[], speculated, &[]);

        let part = |emit: &Self, load: Node| match emit.dag().op(load) {
            Op::Load(load) => load,
            _ => unreachable!("speculation is on loads only"),
        };
        for (block, right) in [(speculated, true), (fallback, false)] {
            self.b.switch_to_block(block);
            let mark = self.begin_scope();
            let mut loaded = Vec::with_capacity(speculation.loads.len());
            for &load in &speculation.loads {
                let load = part(self, load);
                loaded.push(match right {
                    true => self.load_bytes(speculation.value + load.add, load.size, false),
                    false => self.gather_load(load)?,
                });
            }
            self.end_scope(mark);
            let loaded: Vec<_> = loaded.into_iter().map(Into::into).collect();
            self.b.ins().jump(merge, &loaded);
        }
        self.b.switch_to_block(merge);
        for &load in &speculation.loads {
            let value = self.b.append_block_param(merge, clif::I32X4);
            self.remember(CacheKey::Node(load), value);
        }
        Ok(self.cache[&CacheKey::Node(node)])
    }

    /// Loads a field of each packet's metadata.
    pub(super) fn metadata(&mut self, offset: i32) -> Result<Value> {
        use portcullis_core::packet::Metadata;
        let group = self.group();
        let base = self.context_field(context_offset::METADATA);
        let scaled = self.b.ins().imul_imm_u(group.index, size_of::<Metadata>() as i64);
        let at = self.b.ins().iadd(base, scaled);
        self.gather(constant_memory(), 4, |_, lane| {
            Ok((at, offset + ((group.lead + lane) * size_of::<Metadata>()) as i32))
        })
    }
}

const _: () = assert!(LANES == 4, "rows are transposed as four by four words");
