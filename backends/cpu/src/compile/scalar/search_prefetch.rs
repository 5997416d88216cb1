//! Code that runs ahead of the filter: the part of it that leads to a packet's first search in a map, which says where
//! that search will begin.
//!
//! A search in a large table waits for memory, and one filter after another would wait in turn. So the addresses of
//! many packets' first places are found first, and are fetched all at once while other packets are filtered
//! (`memory::Code::run`). This is only a guess at what the filter will do: code that runs ahead has no effect. It writes
//! nothing that the filter can see, and what it reads is checked as in the filter itself. Where the filter would write,
//! nothing is written; where it would read what has been written or found in a map, a zero stands for it, or the guess
//! ends.
//!
//! A search for a prefix leads on from there, and in a large table each step waits. So the address that is searched for is
//! found as well, and the steps are made ahead too (`walk`).

use cranelift_codegen::ir::{InstBuilder, Value, types as clif};
use naga::{Expression, Function, Handle};
use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::map::lpm::{ROOT_NODE_STRIDE, TrieLayout};
use portcullis_core::map::{Declaration, MapFunction, MapKind};
use portcullis_core::program::Program;
use portcullis_core::program::prelude::Intrinsic;

use super::codegen::{Codegen, Frame, LoweringOutput, Operand};
use super::control_flow::BlockEnd;
use super::cost::CostModel;
use crate::compile::abi::context_offset;
use crate::compile::errors::Result;
use crate::compile::lowered::output_memory;
use crate::compile::lpm_prefetch::{PrefetchCursor, cursor_offset};

/// Bytes of a map from which on fetching ahead is worth a trial: smaller ones stay in the cache.
pub(crate) const MIN_PREFETCHED_MAP_BYTES: usize = 256 << 10;

/// For each map how many bytes to fetch from where a search begins, which is not done for small maps beside large ones.
pub(crate) fn prefetch_bytes(program: &Program) -> Vec<Option<usize>> {
    let maps = || program.maps().iter().filter(|map| !matches!(map.kind, MapKind::Array | MapKind::Counter));
    let worth = maps().map(map_bytes).max().unwrap_or(0).min(MIN_PREFETCHED_MAP_BYTES);
    let bytes = |map: &Declaration| match map.kind {
        MapKind::Array | MapKind::Counter => None,
        _ if map_bytes(map) < worth => None,
        // Most searches end within four places.
        MapKind::Hash | MapKind::LruHash => Some((4 * 4 * Layout::of(map).stride as usize).clamp(128, 256)),
        MapKind::Lpm => Some(4 * ROOT_NODE_STRIDE as usize),
    };
    program.maps().iter().map(bytes).collect()
}

/// A map's bytes.
pub(crate) fn map_bytes(map: &Declaration) -> usize {
    4 * Layout::of(map).words()
}

impl<'a> Codegen<'a, '_> {
    /// The loop over packets `start..end`: for each a [`PrefetchCursor`], in the column of the verdicts from its beginning on.
    pub(super) fn lower_prefetch(mut self) -> Result<Option<LoweringOutput>> {
        self.found_search = Some(false);
        // What they lead to is to be fetched.
        self.costs = CostModel::new(self.program, false);
        let packet_loop = self.begin_function(false, clif::I64);
        let column = self.context_field(context_offset::VERDICTS);
        self.cursors = Some((column, packet_loop.start));
        self.begin_packet_loop(&packet_loop);
        self.lower_body()?;
        self.set_stack_size();

        self.b.switch_to_block(packet_loop.verdict);
        let lead = self.cursor_address();
        self.b.ins().store(output_memory(), packet_loop.value, lead, cursor_offset::ADDRESS);
        let finds = self.found_search == Some(true);
        let found = self.finish_packet_loop(&packet_loop);
        Ok(finds.then_some(found))
    }

    /// What a turn gives that has come to nothing.
    pub(super) fn no_result(&mut self) -> Value {
        match self.found_search {
            // An address that is no trouble to fetch.
            Some(_) => self.context,
            None => self.constant(0),
        }
    }

    /// What becomes of a call in code that runs ahead; nothing where it is made as it stands.
    pub(super) fn lower_prefetch_call(
        &mut self,
        frame: &mut Frame<'a>,
        function: Handle<Function>,
        arguments: &[Handle<Expression>],
        result: Option<Handle<Expression>>,
    ) -> Result<Option<BlockEnd>> {
        let Some(intrinsic) = self.program.intrinsic(function) else { return Ok(None) };
        let prefetch_bytes = prefetch_bytes(self.program);
        let is_large = |map: u32| prefetch_bytes[map as usize].is_some();
        let address = match intrinsic {
            Intrinsic::Map { map, call: call @ (MapFunction::Find | MapFunction::Insert | MapFunction::Remove) } => {
                let declared = &self.program.maps()[map as usize];
                if is_large(map) {
                    let key = self.value(frame, arguments[0])?;
                    self.found_search = Some(true);
                    match self.map_search(function) {
                        Some(search) => {
                            let place = self.first_slot(search, &key)?;
                            let at = self.slot_address(search, place);
                            self.b.ins().iadd_imm_u(at, i64::from(4 * HEADER_WORDS))
                        }
                        None => {
                            self.record_lpm_search(map, &key);
                            self.lpm_root_address(map, key[0])
                        }
                    }
                } else if call == MapFunction::Find && declared.kind != MapKind::LruHash {
                    // It has no effect, and may lead to a search that is worth more.
                    return Ok(None);
                } else {
                    self.no_result()
                }
            }
            Intrinsic::AdjustHead | Intrinsic::AdjustTail => self.no_result(),
            Intrinsic::Store { .. }
            | Intrinsic::Map {
                call:
                    MapFunction::Write
                    | MapFunction::Add
                    | MapFunction::CompareExchange
                    | MapFunction::Count
                    | MapFunction::Atomic(_),
                ..
            } => {
                if let Some(result) = result {
                    let zero = self.constant(0);
                    frame.values[result.index()] = Some(Operand::Value(vec![zero]));
                }
                return Ok(Some(BlockEnd::FallsThrough));
            }
            _ => return Ok(None),
        };
        let verdict = self.verdict_block()?;
        self.b.ins().jump(verdict, &[address.into()]);
        Ok(Some(BlockEnd::Diverges))
    }

    /// The address of the packet's lead.
    fn cursor_address(&mut self) -> Value {
        let (column, start) = self.cursors.expect("set before the filter is lowered");
        let place = self.packet().position;
        let number = self.b.ins().isub(place, start);
        let offset = self.b.ins().imul_imm_u(number, size_of::<PrefetchCursor>() as i64);
        self.b.ins().iadd(column, offset)
    }

    /// Notes in the packet's lead for which address which map of prefixes is searched.
    fn record_lpm_search(&mut self, map: u32, key: &[Value]) {
        let lead = self.cursor_address();
        let number = self.constant(map + 1);
        self.b.ins().store(output_memory(), number, lead, cursor_offset::MAP);
        for (index, words) in key.chunks(2).enumerate() {
            let wide = self.b.ins().uextend(clif::I64, words[0]);
            let mut bits = self.b.ins().ishl_imm_u(wide, 32);
            if let Some(&low) = words.get(1) {
                let low = self.b.ins().uextend(clif::I64, low);
                bits = self.b.ins().bor(bits, low);
            }
            self.b.ins().store(output_memory(), bits, lead, cursor_offset::KEY + 8 * index as i32);
        }
    }

    /// The address of the node that the search for a prefix begins with.
    fn lpm_root_address(&mut self, map: u32, address: Value) -> Value {
        let TrieLayout { root_bits, root, .. } = TrieLayout::of(&self.program.maps()[map as usize]);
        let number = self.b.ins().ushr_imm_u(address, i64::from(32 - root_bits));
        let number = self.b.ins().uextend(clif::I64, number);
        let offset = self.b.ins().imul_imm_u(number, i64::from(4 * ROOT_NODE_STRIDE));
        let words = self.map_address(map);
        let group = self.b.ins().iadd(words, offset);
        self.b.ins().iadd_imm_u(group, 4 * root as i64)
    }
}
