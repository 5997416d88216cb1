//! What is read of packets that the filter does not write to: rows of all packets of a group at once,
//! turned so that each word of a row is a vector; and, where offsets vary, each packet's bytes.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types as clif};

use super::super::plan::{ALWAYS_READABLE, in_reach};
use super::emitter::{Emit, Key, LANES};
use crate::compile::abi::context_offset;
use crate::compile::errors::Result;
use crate::compile::lowered::constant_memory;
use crate::compile::vector::ir::{Load, Node, Op};

impl Emit<'_, '_> {
    pub(super) fn load(&mut self, node: Node, load: Load) -> Result<Value> {
        match load.root {
            None if in_reach(load.add, load.size) => Ok(self.bytes(load.add, load.size, false)),
            Some(root) if self.plan.is_guessed(node, root) => self.guessed(node, root),
            _ => self.scattered(load),
        }
    }

    /// A load of a number whose first byte is the highest, if it can be had in less than a load and
    /// a turn.
    pub(super) fn load_turned(&mut self, load: Load) -> Option<Value> {
        if load.root.is_some() || !in_reach(load.add, load.size) {
            return None;
        }
        let (first, last) = self.plan.words(load.add, load.size);
        (first == last).then(|| self.bytes(load.add, load.size, true))
    }

    /// Bytes at a constant offset; `turned`: the first one is the highest, where they lie in one word.
    fn bytes(&mut self, at: u32, size: u32, turned: bool) -> Value {
        let (first, last) = self.plan.words(at, size);
        let word = self.row_word(first);
        let skip = at - first;
        if first == last {
            return match (skip, size) {
                _ if turned => self.pick_in_lanes(word, skip, size, true),
                (0, 4) => word,
                (0, _) => {
                    let mask = self.splat(u32::MAX >> (32 - 8 * size));
                    self.b.ins().band(word, mask)
                }
                (skip, size) if skip + size == 4 => self.shift_right(word, 8 * skip),
                (skip, size) => self.pick_in_lanes(word, skip, size, false),
            };
        }
        let behind = self.row_word(last);
        let low = self.shift_right(word, 8 * skip);
        // Of the word behind, whose first byte is byte `last - at` of the number.
        let high = self.shift_left(behind, 8 * (last - at));
        // What the first word has beyond its end is also in the one behind it.
        let both = self.b.ins().bor(low, high);
        if size == 4 {
            return both;
        }
        let mask = self.splat(u32::MAX >> (32 - 8 * size));
        self.b.ins().band(both, mask)
    }

    /// A word of every packet of the group, by the offset of its first byte, which the plan knows.
    fn row_word(&mut self, word: u32) -> Value {
        if let Some(&value) = self.found.get(&Key::Word(word)) {
            return value;
        }
        let starts = self.packets().starts;
        let value = match self.plan.row_of(word) {
            None => self
                .gather(constant_memory(), 4, |_, lane| Ok((starts[lane], word as i32)))
                .expect("addresses are there"),
            Some(row) => {
                let high = word - row >= 8;
                let (first, second) = (self.pair(row, 0, high), self.pair(row, 1, high));
                // Each has, of two packets, a word and the one behind it.
                let words = if (word - row).is_multiple_of(8) { [0, 1, 4, 5] } else { [2, 3, 6, 7] };
                self.words_of(first, second, words)
            }
        };
        self.know(Key::Word(word), value)
    }

    /// Half of a row of the first or the last two packets, interleaved.
    fn pair(&mut self, row: u32, pair: usize, high: bool) -> Value {
        let key = Key::Pair(row, pair, high);
        if let Some(&value) = self.found.get(&key) {
            return value;
        }
        let (first, second) = (self.row(row, 2 * pair), self.row(row, 2 * pair + 1));
        let value = self.words_of(first, second, if high { [2, 6, 3, 7] } else { [0, 4, 1, 5] });
        self.know(key, value)
    }

    /// A row of a packet. It may be executed wherever the address is there: see the module's head.
    fn row(&mut self, row: u32, lane: usize) -> Value {
        if let Some(&value) = self.found.get(&Key::Row(row, lane)) {
            return value;
        }
        let start = self.packets().starts[lane];
        let value = self.b.ins().load(clif::I32X4, constant_memory(), start, row as i32);
        self.know(Key::Row(row, lane), value)
    }

    /// A load at an offset that varies, of each packet for itself.
    fn scattered(&mut self, load: Load) -> Result<Value> {
        let starts = self.packets().starts;
        let most = load.root.map_or(0, |root| self.dag().range(root).high);
        let harmless = u64::from(most) + u64::from(load.add) + u64::from(load.size) <= u64::from(ALWAYS_READABLE);
        if let (true, Some(root)) = (harmless, load.root) {
            return self.gather(constant_memory(), load.size, |emit, lane| {
                let offset = emit.wide(root, lane)?;
                Ok((emit.b.ins().iadd(starts[lane], offset), load.add as i32))
            });
        }
        let safe = self.safe(load)?;
        self.gather(constant_memory(), load.size, |emit, lane| {
            let word = emit.b.ins().extractlane(safe, lane as u8);
            let offset = emit.b.ins().uextend(clif::I64, word);
            Ok((emit.b.ins().iadd(starts[lane], offset), 0))
        })
    }

    /// Where a load goes, in bytes from the packets' first ones: 0 where it would not lie in the packet.
    fn safe(&mut self, load: Load) -> Result<Value> {
        let key = load.root.map(|root| Key::Safe(root, load.add, load.size));
        if let Some(&value) = key.and_then(|key| self.found.get(&key)) {
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
        let lengths = self.packets().lengths;
        // It does not wrap where the packet is as long as the load.
        let room = self.b.ins().isub(lengths, size);
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, size, lengths);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, offset, room);
        let fits = self.b.ins().band(fits, inside);
        let safe = self.b.ins().band(fits, offset);
        Ok(match key {
            Some(key) => self.know(key, safe),
            None => safe,
        })
    }

    /// All loads at an offset for which there is a guess: where it is right in all lanes in which it
    /// matters they are a part of rows, else they are read packet by packet.
    fn guessed(&mut self, node: Node, root: Node) -> Result<Value> {
        let guess = &self.plan.guesses[&root];
        let offset = self.value(root)?;
        let value = self.splat(guess.value);
        let mut wrong = self.b.ins().icmp(IntCC::NotEqual, offset, value);
        if let Some(lanes) = guess.lanes {
            let lanes = self.value(lanes)?;
            wrong = self.b.ins().band(lanes, wrong);
        }
        let any = self.b.ins().vany_true(wrong);
        let (usual, other, behind) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(other);
        self.b.ins().brif(any, other, &[], usual, &[]);

        let part = |emit: &Self, load: Node| match emit.dag().op(load) {
            Op::Load(load) => load,
            _ => unreachable!("guesses are about loads"),
        };
        for (block, right) in [(usual, true), (other, false)] {
            self.b.switch_to_block(block);
            let mark = self.enter();
            let mut loaded = Vec::with_capacity(guess.loads.len());
            for &load in &guess.loads {
                let load = part(self, load);
                loaded.push(match right {
                    true => self.bytes(guess.value + load.add, load.size, false),
                    false => self.scattered(load)?,
                });
            }
            self.leave(mark);
            let loaded: Vec<_> = loaded.into_iter().map(Into::into).collect();
            self.b.ins().jump(behind, &loaded);
        }
        self.b.switch_to_block(behind);
        for &load in &guess.loads {
            let value = self.b.append_block_param(behind, clif::I32X4);
            self.know(Key::Node(load), value);
        }
        Ok(self.found[&Key::Node(node)])
    }

    /// A member of each packet's metadata.
    pub(super) fn metadata(&mut self, offset: i32) -> Result<Value> {
        use portcullis_core::packet::Metadata;
        let group = self.packets();
        let base = self.field(context_offset::METADATA);
        let scaled = self.b.ins().imul_imm_u(group.index, size_of::<Metadata>() as i64);
        let at = self.b.ins().iadd(base, scaled);
        self.gather(constant_memory(), 4, |_, lane| {
            Ok((at, offset + ((group.lead + lane) * size_of::<Metadata>()) as i32))
        })
    }
}

const _: () = assert!(LANES == 4, "rows are turned as four by four words");
