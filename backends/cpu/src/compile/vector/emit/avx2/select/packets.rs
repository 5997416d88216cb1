//! Selection for descriptors and loads from packets.

use super::super::super::plan::{ALWAYS_READABLE, is_always_readable};
use super::super::encode::{ShiftOp, VectorOp};
use super::super::vcode::{GatherBase, Instruction, LaneCondition, Source, VReg};
use super::selector::{CacheKey, Selector};
use crate::compile::errors::Result;
use crate::compile::vector::ir::{Load, Node, Op};

impl Selector<'_> {
    /// Loads the packets' offsets in the arena, or their lengths.
    pub fn descriptors(&mut self, lengths: bool) -> VReg {
        let mut pair = |pair| match self.cache.get(&CacheKey::Descriptors(pair)) {
            Some(&value) => value,
            None => {
                let to = self.code.new_vreg();
                self.push(Instruction::Descriptors { to, pair });
                self.remember(CacheKey::Descriptors(pair), to)
            }
        };
        let (a, b) = (pair(0), pair(1));
        let to = self.code.new_vreg();
        self.push(Instruction::EveryOther { to, a, b, odd: lengths });
        to
    }

    pub fn packet_starts(&mut self) -> VReg {
        if let Some(&value) = self.cache.get(&CacheKey::PacketStarts) {
            return value;
        }
        let value = self.descriptors(false);
        self.remember(CacheKey::PacketStarts, value)
    }

    pub fn load_op(&mut self, node: Node, load: Load) -> Result<VReg> {
        match load.root {
            None if is_always_readable(load.add, load.size) => Ok(self.load_bytes(load.add, load.size, false)),
            Some(root) if self.plan.is_speculative(node, root) => self.speculative_load(node, root),
            _ => self.gather_load(load),
        }
    }

    /// Loads a big-endian number, if that takes less than a load and a byte swap.
    pub fn load_swapped(&mut self, load: Load) -> Option<VReg> {
        if load.root.is_some() || !is_always_readable(load.add, load.size) {
            return None;
        }
        let (first, last) = self.plan.word_span(load.add, load.size);
        (first == last).then(|| self.load_bytes(load.add, load.size, true))
    }

    /// Loads bytes at a constant offset; with `turned`, which needs them to lie in one word, as a
    /// big-endian number.
    pub fn load_bytes(&mut self, at: u32, size: u32, turned: bool) -> VReg {
        let (first, last) = self.plan.word_span(at, size);
        let word = self.row_word(first);
        let skip = at - first;
        if first == last {
            return match (skip, size) {
                _ if turned => self.shuffle_in_lanes(word, skip, size, true),
                (0, 4) => word,
                (0, _) => self.emit_binary_constant(VectorOp::And, word, u32::MAX >> (32 - 8 * size)),
                (skip, size) if skip + size == 4 => self.emit_shift(ShiftOp::Right, word, 8 * skip),
                (skip, size) => self.shuffle_in_lanes(word, skip, size, false),
            };
        }
        let next_word = self.row_word(last);
        let low = self.emit_shift(ShiftOp::Right, word, 8 * skip);
        // The first byte of the second word is byte `last - at` of the number.
        let high = self.emit_shift(ShiftOp::Left, next_word, 8 * (last - at));
        // If the words overlap, the bits in common are equal.
        let both = self.emit_binary_vectors(VectorOp::Or, low, high);
        match size {
            4 => both,
            _ => self.emit_binary_constant(VectorOp::And, both, u32::MAX >> (32 - 8 * size)),
        }
    }

    /// Loads a word of every packet of the group, by the offset of its first byte.
    pub fn row_word(&mut self, word: u32) -> VReg {
        if let Some(&value) = self.cache.get(&CacheKey::Word(word)) {
            return value;
        }
        // A word outside the plan's rows starts a row: eight loads of single words would take
        // longer.
        let row = self.plan.row_of(word).unwrap_or(word);
        let high = word - row >= 8;
        let (first, second) = (self.interleaved_rows(row, 0, high), self.interleaved_rows(row, 1, high));
        // Each vector has a word and the following one, of pairs of packets.
        let op = if (word - row).is_multiple_of(8) { VectorOp::LowPairs } else { VectorOp::HighPairs };
        let value = self.emit_binary_vectors(op, first, second);
        self.remember(CacheKey::Word(word), value)
    }

    pub fn interleaved_rows(&mut self, row: u32, pair: u8, high: bool) -> VReg {
        let key = CacheKey::Pair(row, pair, high);
        if let Some(&value) = self.cache.get(&key) {
            return value;
        }
        let (first, second) = (self.load_row(row, 2 * pair), self.load_row(row, 2 * pair + 1));
        let value =
            self.emit_binary_vectors(if high { VectorOp::HighWords } else { VectorOp::LowWords }, first, second);
        self.remember(key, value)
    }

    pub fn load_row(&mut self, at: u32, lane: u8) -> VReg {
        if let Some(&value) = self.cache.get(&CacheKey::Row(at, lane)) {
            return value;
        }
        let to = self.code.new_vreg();
        self.push(Instruction::Row { to, lane, at });
        self.remember(CacheKey::Row(at, lane), to)
    }

    /// Loads at a variable offset, packet by packet.
    pub fn gather_load(&mut self, load: Load) -> Result<VReg> {
        let most = load.root.map_or(0, |root| self.dag().range(root).high);
        let harmless = u64::from(most) + u64::from(load.add) + u64::from(load.size) <= u64::from(ALWAYS_READABLE);
        let (index, displacement) = match load.root.filter(|_| harmless) {
            Some(root) => {
                let (root, starts) = (self.source(root)?, self.packet_starts());
                (self.emit_binary(VectorOp::Add, starts, root), load.add)
            }
            None => (self.safe_offset(load)?, 0),
        };
        let to = self.code.new_vreg();
        self.push(Instruction::Gather { to, base: GatherBase::Arena, index, displacement, size: load.size });
        Ok(to)
    }

    /// Returns arena offsets of a load: the packet's start in lanes in which the load would leave
    /// the packet.
    pub fn safe_offset(&mut self, load: Load) -> Result<VReg> {
        let key = load.root.map(|root| CacheKey::SafeOffset(root, load.add, load.size));
        if let Some(&value) = key.and_then(|key| self.cache.get(&key)) {
            return Ok(value);
        }
        let offset = match load.root {
            None => {
                let add = self.splat(load.add);
                self.as_vector(add)
            }
            Some(root) => {
                let root = self.value(root)?;
                if load.add == 0 { root } else { self.emit_binary_constant(VectorOp::Add, root, load.add) }
            }
        };
        let lengths = self.packet_lengths()?;
        // Does not wrap if the packet is at least as long as the load.
        let room = self.emit_binary_constant(VectorOp::Subtract, lengths, load.size);
        let greater = self.emit_binary_constant(VectorOp::Max, lengths, load.size);
        let fits = self.emit_binary_vectors(VectorOp::Equal, greater, lengths);
        let lesser = self.emit_binary_vectors(VectorOp::Min, offset, room);
        let inside = self.emit_binary_vectors(VectorOp::Equal, lesser, offset);
        let fits = self.emit_binary_vectors(VectorOp::And, fits, inside);
        let offset = self.emit_binary_vectors(VectorOp::And, fits, offset);
        let starts = self.packet_starts();
        let safe = self.emit_binary_vectors(VectorOp::Add, starts, offset);
        Ok(match key {
            Some(key) => self.remember(key, safe),
            None => safe,
        })
    }

    /// The packets' lengths, whether or not the filter uses them.
    pub fn packet_lengths(&mut self) -> Result<VReg> {
        match self.dag().lookup(Op::Length) {
            Some(node) => self.value(node),
            None => Ok(self.descriptors(true)),
        }
    }

    /// Loads everything at a speculated offset: as parts of rows if the speculation is right in all
    /// lanes in which it matters, by gathers otherwise.
    pub fn speculative_load(&mut self, node: Node, root: Node) -> Result<VReg> {
        let plan = self.plan;
        let speculation = &plan.speculations[&root];
        let offset = self.value(root)?;
        let right = self.emit_binary_constant(VectorOp::Equal, offset, speculation.value);
        let wrong = match speculation.lanes {
            Some(lanes) => {
                let lanes = self.source(lanes)?;
                self.emit_binary(VectorOp::AndNot, right, lanes)
            }
            None => self.emit_invert(right),
        };
        let (fallback, merge) = (self.code.new_label(), self.code.new_label());
        self.push(Instruction::JumpIf { mask: wrong, lanes: LaneCondition::Any, to: fallback });
        let loads: Vec<(Load, VReg)> = speculation
            .loads
            .iter()
            .map(|&load| match self.lanes.dag.op(load) {
                Op::Load(load) => (load, self.code.new_vreg()),
                _ => unreachable!("speculation is on loads only"),
            })
            .collect();

        let mark = self.journal.len();
        for &(load, to) in &loads {
            let from = Source::Vector(self.load_bytes(speculation.value + load.add, load.size, false));
            self.push(Instruction::Move { to, from });
        }
        self.forget_since(mark);

        self.push(Instruction::BeginCold);
        self.push(Instruction::Label(fallback));
        let mark = self.enter_conditional();
        for &(load, to) in &loads {
            let from = Source::Vector(self.gather_load(load)?);
            self.push(Instruction::Move { to, from });
        }
        self.exit_conditional(mark);
        self.push(Instruction::Jump(merge));
        self.push(Instruction::EndCold);

        self.push(Instruction::Label(merge));
        for (&node, (_, value)) in speculation.loads.iter().zip(loads) {
            self.remember(CacheKey::Node(node), value);
        }
        Ok(self.cache[&CacheKey::Node(node)])
    }
}
