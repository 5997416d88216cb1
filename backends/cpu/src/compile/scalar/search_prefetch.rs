//! Prefetch code: the part of a filter that leads to a packet's first search in a map, or in each
//! of two maps, run ahead of the filter to compute the addresses at which those searches begin.
//!
//! A search in a large table waits for memory, and the packets of a batch would wait one after
//! another. So the addresses for many packets are computed and prefetched together while other
//! packets are filtered (`FilterCode::run`). This is speculative, and free of side effects:
//! prefetch code writes nothing that the filter can see, and its reads are bounds-checked like the
//! filter's. It skips the filter's writes; a value that was written before, or that comes from a
//! map, reads as zero or ends the speculation.
//!
//! A search in the first of two maps is assumed to find its key, as that is what most do, and
//! values of its entry read as zero.
//!
//! An LPM search follows pointers from there, each of which waits for memory again. So the key is
//! recorded as well, and the steps of the search are made ahead, too (`lpm_prefetch`).

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

/// Size in bytes from which a map's searches are worth prefetching: smaller maps stay in the cache.
pub(crate) const MIN_PREFETCHED_MAP_BYTES: usize = 256 << 10;

/// Bytes that are prefetched from where a search in a hash map begins.
const HASH_SEARCH_BYTES: usize = 128;

/// Returns for each map how many bytes to prefetch from where a search begins; `None` for maps that
/// are not searched, and for small maps if there is a large one.
pub(crate) fn prefetch_bytes(program: &Program) -> Vec<Option<usize>> {
    let maps = || program.maps().iter().filter(|map| !matches!(map.kind, MapKind::Array | MapKind::Counter));
    let worth = maps().map(map_bytes).max().unwrap_or(0).min(MIN_PREFETCHED_MAP_BYTES);
    let bytes = |map: &Declaration| match map.kind {
        MapKind::Array | MapKind::Counter => None,
        _ if map_bytes(map) < worth => None,
        // Most searches end within two slots, and more lines than that wait for the memory.
        MapKind::Hash | MapKind::LruHash => Some(HASH_SEARCH_BYTES),
        MapKind::Lpm => Some(4 * ROOT_NODE_STRIDE as usize),
    };
    program.maps().iter().map(bytes).collect()
}

/// The first two maps whose searches are prefetched, unless the filter searches one, or searches
/// for prefixes, which are prefetched step by step.
fn searched_pair(program: &Program) -> Option<[u32; 2]> {
    let is_searched = |number: u32| {
        program.max_calls(|intrinsic| {
            matches!(intrinsic, Intrinsic::Map { map, call: MapFunction::Find | MapFunction::Insert | MapFunction::Remove } if map == number)
        }) > 0
    };
    let bytes = prefetch_bytes(program);
    let searched: Vec<u32> = (0..)
        .zip(&bytes)
        .filter(|(number, bytes)| bytes.is_some() && is_searched(*number))
        .map(|(number, _)| number)
        .collect();
    let is_lpm = |number: &u32| program.maps()[*number as usize].kind == MapKind::Lpm;
    match searched[..] {
        [first, second, ..] if !searched.iter().any(is_lpm) => Some([first, second]),
        _ => None,
    }
}

/// Size of a map in bytes.
pub(crate) fn map_bytes(map: &Declaration) -> usize {
    4 * Layout::of(map).words()
}

impl<'a> Codegen<'a, '_> {
    /// Lowers the prefetch code, in a loop over packets `start..end`. It stores a
    /// [`PrefetchCursor`] per packet, at the address in the context's field for verdicts. Returns
    /// `None` if the filter has no search whose address could be computed.
    pub(super) fn lower_prefetch(mut self) -> Result<Option<LoweringOutput>> {
        self.found_search = Some(false);
        self.searched_pair = searched_pair(self.program);
        // Words of maps are not worth reading speculatively here: they are what is to be
        // prefetched.
        self.costs = CostModel::new(self.program, false);
        let packet_loop = self.begin_function(false, clif::I64);
        let column = self.context_field(context_offset::VERDICTS);
        self.cursors = Some((column, packet_loop.start));
        self.begin_packet_loop(&packet_loop);
        self.lower_body()?;
        self.set_stack_size();

        self.b.switch_to_block(packet_loop.verdict);
        if self.searched_pair.is_none() {
            let cursor = self.cursor_address();
            self.b.ins().store(output_memory(), packet_loop.value, cursor, cursor_offset::ADDRESS);
        }
        let found_search = self.found_search == Some(true);
        let output = self.finish_packet_loop(&packet_loop);
        Ok(found_search.then_some(output))
    }

    /// The loop body's result for a packet that ends without one: verdict `ABORTED`, or in prefetch
    /// code an address that is certainly in the cache.
    pub(super) fn no_result(&mut self) -> Value {
        match self.found_search {
            Some(_) => self.context,
            None => self.constant(0),
        }
    }

    /// Lowers a call in prefetch code. Returns `None` if the call is lowered as in the filter.
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
                            let slot = self.first_slot(search, &key)?;
                            let at = self.slot_address(search, slot);
                            let address = self.b.ins().iadd_imm_u(at, i64::from(4 * HEADER_WORDS));
                            if self.searched_pair.is_some() {
                                self.record_one_of_two(map, address)?;
                                let found = if call == MapFunction::Remove { self.boolean(true) } else { slot };
                                if let Some(result) = result {
                                    frame.values[result.index()] = Some(Operand::Value(vec![found]));
                                }
                                return Ok(Some(BlockEnd::FallsThrough));
                            }
                            address
                        }
                        None => {
                            self.record_lpm_search(map, &key);
                            self.lpm_root_address(map, key[0])
                        }
                    }
                } else if call == MapFunction::Find && declared.kind != MapKind::LruHash {
                    // It has no side effects, and its result may cursor to a search that is worth
                    // prefetching.
                    return Ok(None);
                } else {
                    self.no_result()
                }
            }
            Intrinsic::AdjustHead | Intrinsic::AdjustTail => self.no_result(),
            Intrinsic::Map { map, call: MapFunction::Read } if !is_large(map) => return Ok(None),
            Intrinsic::Store { .. }
            | Intrinsic::Map {
                call:
                    MapFunction::Read
                    | MapFunction::Write
                    | MapFunction::Add
                    | MapFunction::CompareExchange
                    | MapFunction::Count
                    | MapFunction::Accumulate(_)
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

    /// Stores where a search begins in one of two maps. Ends the packet if the other is known too;
    /// in a third map the search is not prefetched.
    fn record_one_of_two(&mut self, map: u32, address: Value) -> Result<()> {
        let fields = [cursor_offset::ADDRESS, cursor_offset::SECOND];
        let Some(which) = self.searched_pair.iter().flatten().position(|number| *number == map) else { return Ok(()) };
        let cursor = self.cursor_address();
        self.b.ins().store(output_memory(), address, cursor, fields[which]);
        let other = self.b.ins().load(clif::I64, output_memory(), cursor, fields[1 - which]);
        let (verdict, on) = (self.verdict_block()?, self.b.create_block());
        self.b.ins().brif(other, verdict, &[address.into()], on, &[]);
        self.switch_to_sealed(on);
        Ok(())
    }

    /// Emits the address of the packet's cursor.
    fn cursor_address(&mut self) -> Value {
        let (column, start) = self.cursors.expect("set before the filter is lowered");
        let index = self.packet().index;
        let number = self.b.ins().isub(index, start);
        let offset = self.b.ins().imul_imm_u(number, size_of::<PrefetchCursor>() as i64);
        self.b.ins().iadd(column, offset)
    }

    /// Stores an LPM map's number and the key that is searched for in the packet's cursor.
    fn record_lpm_search(&mut self, map: u32, key: &[Value]) {
        let cursor = self.cursor_address();
        let number = self.constant(map + 1);
        self.b.ins().store(output_memory(), number, cursor, cursor_offset::MAP);
        for (index, words) in key.chunks(2).enumerate() {
            let wide = self.b.ins().uextend(clif::I64, words[0]);
            let mut bits = self.b.ins().ishl_imm_u(wide, 32);
            if let Some(&low) = words.get(1) {
                let low = self.b.ins().uextend(clif::I64, low);
                bits = self.b.ins().bor(bits, low);
            }
            self.b.ins().store(output_memory(), bits, cursor, cursor_offset::KEY + 8 * index as i32);
        }
    }

    /// Emits the address of the root node at which an LPM search begins.
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
