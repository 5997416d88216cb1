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
use crate::compile::vector::ir::{Dag, Lanes, Node, RegionId};

/// Packets side by side.
pub(super) const LANES: usize = 4;

/// The packets of the group that code is made for.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// The first one's index in the batch, less `lead` packets: 64 bits.
    pub index: Value,
    pub lead: usize,
    /// The first bytes' addresses.
    pub starts: [Value; LANES],
    /// The descriptors' members, a packet a lane.
    pub offsets: Value,
    pub lengths: Value,
}

/// What there is once it was made, in the code that follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Node(Node),
    /// Words of all packets, by the offset of their first byte.
    Word(u32),
    /// A row of one packet.
    Row(u32, usize),
    /// Half of a row of two packets, interleaved: the first or the last two; the low half or the high one.
    Pair(u32, usize, bool),
    /// A word in one lane, zero-extended to 64 bits.
    Wide(Node, usize),
    /// The offsets of a load, chosen so that it may be executed: by the root, what is added, and the size.
    Safe(Node, u32, u32),
}

pub(super) struct Emit<'a, 'f> {
    pub b: FunctionBuilder<'f>,
    pub isa: &'a dyn TargetIsa,
    pub lanes: &'a Lanes,
    pub plan: &'a Plan,
    pub redirects: bool,
    pub context: Value,
    pub group: Option<Group>,
    pub found: HashMap<Key, Value>,
    /// The keys of `found`, in order.
    pub journal: Vec<Key>,
    pub tables: Vec<u8>,
    /// Where each begins.
    pub table_offsets: Vec<u32>,
    pub arrays: Vec<ir::StackSlot>,
    /// What stores of lanes that are off go to.
    pub scratch: Option<Value>,
    pub operations: u64,
}

impl Emit<'_, '_> {
    /// The function: whole turns of so many groups, tested at their end.
    pub fn run(mut self, groups: usize) -> Result<(Vec<u8>, u64)> {
        let packets = (LANES * groups) as i64;
        let (entry, first, turn, done) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.append_block_params_for_function_params(entry);
        self.b.switch_to_block(entry);
        let &[context, start, end] = self.b.block_params(entry) else {
            unreachable!("the signature has three parameters")
        };
        self.context = context;
        self.lay_out();
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
            self.group(index, number * LANES)?;
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

    /// Tables, arrays and what else does not change from turn to turn.
    pub fn lay_out(&mut self) {
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

    /// The code for one group, `lead` packets behind the turn's first one.
    pub fn group(&mut self, index: Value, lead: usize) -> Result<()> {
        self.found.clear();
        self.journal.clear();
        let arena = self.field(context_offset::ARENA);
        let at = {
            let descriptors = self.field(context_offset::DESCRIPTORS);
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
        let offsets = self.words_of(first, second, [0, 2, 4, 6]);
        let lengths = self.words_of(first, second, [1, 3, 5, 7]);
        self.group = Some(Group { index, lead, starts, offsets, lengths });

        self.region(RegionId::ROOT)?;
        let verdict = self.value(self.lanes.verdict)?;
        self.give(index, lead, verdict);
        if let Some((start, length)) = self.lanes.ends {
            let (start, length) = (self.value(start)?, self.value(length)?);
            self.resize(index, lead, start, length);
        }
        Ok(())
    }

    /// Writes the columns.
    pub fn give(&mut self, index: Value, lead: usize, verdict: Value) {
        let lead = lead as i32;
        // The lowest bytes, next to each other.
        let mut low = [0xff; 16];
        (0..LANES).for_each(|lane| low[lane] = 4 * lane as u8);
        let bytes = self.pick(verdict, low);
        let word = self.b.ins().extractlane(bytes, 0);
        let verdicts = self.field(context_offset::VERDICTS);
        let at = self.b.ins().iadd(verdicts, index);
        self.b.ins().store(output_memory(), word, at, lead);
        if self.redirects {
            let targets = self.field(context_offset::TARGETS);
            let ports = self.shift_right(verdict, 8);
            let scaled = self.b.ins().ishl_imm_u(index, 2);
            let at = self.b.ins().iadd(targets, scaled);
            self.b.ins().store(output_memory(), ports, at, 4 * lead);
        }
    }

    /// Writes where packets are now.
    pub fn resize(&mut self, index: Value, lead: usize, start: Value, length: Value) {
        let Group { offsets, .. } = self.packets();
        let offset = self.b.ins().iadd(offsets, start);
        let resized = self.field(context_offset::RESIZED);
        let scaled = self.b.ins().ishl_imm_u(index, 3);
        let at = self.b.ins().iadd(resized, scaled);
        for (half, words) in [[0, 4, 1, 5], [2, 6, 3, 7]].into_iter().enumerate() {
            let both = self.words_of(offset, length, words);
            self.b.ins().store(output_memory(), both, at, (8 * lead + 16 * half) as i32);
        }
    }

    pub fn packets(&self) -> Group {
        self.group.expect("set before anything of a group is made")
    }

    pub fn dag(&self) -> &Dag {
        &self.lanes.dag
    }

    /// A pointer out of the context. The code generator has one for all.
    pub fn field(&mut self, offset: i32) -> Value {
        self.b.ins().load(clif::I64, constant_memory(), self.context, offset)
    }

    pub fn know(&mut self, key: Key, value: Value) -> Value {
        if self.found.insert(key, value).is_none() {
            self.journal.push(key);
        }
        value
    }

    /// What is made from here on is not there any more when the code is left.
    pub fn enter(&mut self) -> usize {
        self.journal.len()
    }

    pub fn leave(&mut self, mark: usize) {
        for key in self.journal.drain(mark..) {
            self.found.remove(&key);
        }
    }
}
