//! State of the emitter, and the loop over groups of packets.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, InstBuilder, Value, types as clif};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::FunctionBuilder;

use super::super::plan::Plan;
use crate::compile::abi::context_offset;
use crate::compile::errors::Result;
use crate::compile::lowered::{constant_memory, output_memory};
use crate::compile::vector::ir::{Dag, LaneIr, Node, RegionId};

/// Packets per group.
pub(super) const LANES: usize = 4;

/// The group of packets that code is currently emitted for.
#[derive(Clone, Copy)]
pub(super) struct PacketGroup {
    /// Index in the batch of the first packet of the loop's iteration, `lead` packets before this
    /// group; 64 bits.
    pub index: Value,
    pub lead: usize,
    /// Addresses of the packets' first bytes.
    pub starts: [Value; LANES],
    /// Fields of the packets' descriptors, as vectors.
    pub offsets: Value,
    pub lengths: Value,
}

/// Identifies a value that has been emitted and can be reused in the code that it dominates.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CacheKey {
    Node(Node),
    /// A word of all packets, by the offset of its first byte.
    Word(u32),
    /// A row of one packet.
    Row(u32, usize),
    /// Half of the rows of two packets, interleaved: row, first or second pair, and whether it is
    /// the high half.
    Pair(u32, usize, bool),
    /// A word in one lane, zero-extended to 64 bits.
    Lane64(Node, usize),
    /// Offsets of a load with out-of-bounds ones replaced, by root, constant part and size.
    SafeOffset(Node, u32, u32),
}

pub(super) struct Emitter<'a, 'f> {
    pub b: FunctionBuilder<'f>,
    pub isa: &'a dyn TargetIsa,
    pub lanes: &'a LaneIr,
    pub plan: &'a Plan,
    pub redirects: bool,
    pub context: Value,
    pub group: Option<PacketGroup>,
    pub cache: HashMap<CacheKey, Value>,
    /// Keys of `cache` in order of insertion.
    pub journal: Vec<CacheKey>,
    pub tables: Vec<u8>,
    /// Byte offset of each table.
    pub table_offsets: Vec<u32>,
    pub arrays: Vec<ir::StackSlot>,
    /// Address that stores of inactive lanes go to.
    pub scratch: Option<Value>,
    pub operations: u64,
}

impl Emitter<'_, '_> {
    /// Emits the function: a loop with `groups` groups per iteration, tested at its end.
    pub fn emit_function(mut self, groups: usize) -> Result<(Vec<u8>, u64)> {
        let packets = (LANES * groups) as i64;
        let (entry, first, turn, done) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.append_block_params_for_function_params(entry);
        self.b.switch_to_block(entry);
        let &[context, start, end] = self.b.block_params(entry) else {
            unreachable!("the signature has three parameters")
        };
        self.context = context;
        self.lay_out_tables_and_arrays();
        let count = self.b.ins().isub(end, start);
        let some = self.b.ins().icmp_imm_u(IntCC::SignedGreaterThanOrEqual, count, packets);
        self.b.ins().brif(some, first, &[], done, &[]);

        self.b.switch_to_block(first);
        let size = self.b.ins().iconst(clif::I64, packets);
        let last = self.b.ins().isub(end, size);
        self.b.ins().jump(turn, &[start.into()]);

        let index = self.b.append_block_param(turn, clif::I64);
        self.b.switch_to_block(turn);
        for number in 0..groups {
            self.emit_group(index, number * LANES)?;
        }
        let next = self.b.ins().iadd_imm_u(index, packets);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, next, last);
        self.b.ins().brif(more, turn, &[next.into()], done, &[]);

        self.b.switch_to_block(done);
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
        self.operations = self.b.func.dfg.num_insts() as u64;
        self.b.finalize(self.isa.frontend_config());
        Ok((self.tables, self.operations))
    }

    /// Emits what is the same in all iterations: tables, and stack slots of arrays.
    pub fn lay_out_tables_and_arrays(&mut self) {
        for table in &self.lanes.tables {
            self.table_offsets.push(self.tables.len() as u32);
            self.tables.extend(table.iter().flat_map(|word| word.to_le_bytes()));
        }
        for &words in &self.lanes.arrays {
            let size = (words * 4 * LANES as u32).max(16);
            let slot = ir::StackSlotData::new(ir::StackSlotKind::ExplicitSlot, size, 4);
            self.arrays.push(self.b.create_sized_stack_slot(slot));
        }
        if self.lanes.writes || !self.lanes.regions.is_empty() {
            let slot = ir::StackSlotData::new(ir::StackSlotKind::ExplicitSlot, 16, 4);
            let slot = self.b.create_sized_stack_slot(slot);
            self.scratch = Some(self.b.ins().stack_addr(clif::I64, slot, 0));
        }
    }

    /// Emits the code for one group, `lead` packets behind the iteration's first one.
    pub fn emit_group(&mut self, index: Value, lead: usize) -> Result<()> {
        self.cache.clear();
        self.journal.clear();
        let arena = self.context_field(context_offset::ARENA);
        let at = {
            let descriptors = self.context_field(context_offset::DESCRIPTORS);
            let scaled = self.b.ins().ishl_imm_u(index, 3);
            self.b.ins().iadd(descriptors, scaled)
        };
        let place = |lane: usize| (8 * (lead + lane)) as i32;
        let starts = std::array::from_fn(|lane| {
            let offset = self.b.ins().uload32(constant_memory(), at, place(lane));
            self.b.ins().iadd(arena, offset)
        });
        let mut pair = |lane| self.b.ins().load(clif::I32X4, constant_memory(), at, place(lane));
        let (first, second) = (pair(0), pair(2));
        let offsets = self.shuffle_words(first, second, [0, 2, 4, 6]);
        let lengths = self.shuffle_words(first, second, [1, 3, 5, 7]);
        self.group = Some(PacketGroup { index, lead, starts, offsets, lengths });

        self.emit_region(RegionId::ROOT)?;
        let verdict = self.value(self.lanes.verdict)?;
        self.store_verdicts(index, lead, verdict);
        if let Some((start, length)) = self.lanes.ends {
            let (start, length) = (self.value(start)?, self.value(length)?);
            self.store_descriptors(index, lead, start, length);
        }
        Ok(())
    }

    /// Stores the group's verdicts, and its redirect targets.
    pub fn store_verdicts(&mut self, index: Value, lead: usize, verdict: Value) {
        let lead = lead as i32;
        // Shuffle mask for the lowest byte of each word.
        let mut low = [0xff; 16];
        (0..LANES).for_each(|lane| low[lane] = 4 * lane as u8);
        let bytes = self.shuffle_bytes(verdict, low);
        let word = self.b.ins().extractlane(bytes, 0);
        let verdicts = self.context_field(context_offset::VERDICTS);
        let at = self.b.ins().iadd(verdicts, index);
        self.b.ins().store(output_memory(), word, at, lead);
        if self.redirects {
            let targets = self.context_field(context_offset::TARGETS);
            let ports = self.shift_right(verdict, 8);
            let scaled = self.b.ins().ishl_imm_u(index, 2);
            let at = self.b.ins().iadd(targets, scaled);
            self.b.ins().store(output_memory(), ports, at, 4 * lead);
        }
    }

    /// Stores the descriptors of packets whose start or length has changed.
    pub fn store_descriptors(&mut self, index: Value, lead: usize, start: Value, length: Value) {
        let PacketGroup { offsets, .. } = self.group();
        let offset = self.b.ins().iadd(offsets, start);
        let resized = self.context_field(context_offset::RESIZED);
        let scaled = self.b.ins().ishl_imm_u(index, 3);
        let at = self.b.ins().iadd(resized, scaled);
        for (half, words) in [[0, 4, 1, 5], [2, 6, 3, 7]].into_iter().enumerate() {
            let both = self.shuffle_words(offset, length, words);
            self.b.ins().store(output_memory(), both, at, (8 * lead + 16 * half) as i32);
        }
    }

    pub fn group(&self) -> PacketGroup {
        self.group.expect("set before code for a group is emitted")
    }

    pub fn dag(&self) -> &Dag {
        &self.lanes.dag
    }

    /// Loads a pointer from the context. Cranelift merges equal loads.
    pub fn context_field(&mut self, offset: i32) -> Value {
        self.b.ins().load(clif::I64, constant_memory(), self.context, offset)
    }

    pub fn remember(&mut self, key: CacheKey, value: Value) -> Value {
        if self.cache.insert(key, value).is_none() {
            self.journal.push(key);
        }
        value
    }

    /// Starts a scope: values that are emitted in it are not available behind it. Returns a mark
    /// for [`end_scope`](Emitter::end_scope).
    pub fn begin_scope(&mut self) -> usize {
        self.journal.len()
    }

    pub fn end_scope(&mut self, mark: usize) {
        for key in self.journal.drain(mark..) {
            self.cache.remove(&key);
        }
    }
}
