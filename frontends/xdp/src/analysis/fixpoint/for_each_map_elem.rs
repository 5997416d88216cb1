//! `bpf_for_each_map_elem`: a callback called for each entry of a map, until it returns 1. Entries
//! of an array come in index order, those of a hash in the order of their slots.

use super::{
    Add, BlockKey, BlockResult, BlockStart, CallContext, FixpointSolver, Lt, RegType, Result, State, Value,
    finish_with_branch, loop_or_exit,
};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::pseudo_registers::{LOOP_ARGUMENT, LOOP_CALLBACK, LOOP_LIMIT, LOOP_ROUND};
use crate::analysis::domain::reg_type::ANONYMOUS;
use crate::analysis::transfer::BlockInterpreter;
use crate::decode::maps::MapUse;
use crate::helper;
use portcullis_core::map::layout::Layout;

/// Stack offset where the callback finds the key: the far end of its frame. All active frames share
/// 512 bytes and the caller counts at least 32 of them (`check_max_stack_depth`), so the callback
/// does not use these bytes itself.
const KEY_OFFSET: i64 = -512;
const MAX_KEY_BYTES: u32 = 32;

/// `bpf_for_each_map_elem(map, callback, argument, flags)`: checks the arguments and keeps them in
/// pseudo registers for the rounds.
pub(super) fn start(interp: &mut BlockInterpreter) -> Result<()> {
    interp.facts.helpers.insert(helper::FOR_EACH_MAP_ELEM);
    let (map, function, argument, flags) =
        (interp.read_register(1)?, interp.read_register(2)?, interp.read_register(3)?, interp.read_register(4)?);
    let map = interp.expect_map(map)?;
    let info = &interp.linked.maps[usize::from(map)];
    let (ty, key_size) = (info.definition.ty, info.definition.key_size);
    if !(ty.is_array() || ty.is_hash() || ty.is_lru()) {
        let given = ty.name();
        return interp.reject(format!("bpf_for_each_map_elem takes arrays and hashes, not a map of type {given}"));
    }
    if key_size > MAX_KEY_BYTES {
        let what =
            format!("bpf_for_each_map_elem is given a map with keys of {key_size} bytes; the limit is {MAX_KEY_BYTES}");
        return interp.reject_unsupported(what, "bpf_for_each_map_elem over keys of any size");
    }
    if !matches!(function.ty, RegType::Function { .. }) {
        let what = function.ty.describe();
        return interp.reject(format!("bpf_for_each_map_elem takes a function for its callback, not {what}"));
    }
    if flags.ty.as_scalar().and_then(Interval::as_constant) != Some(0) {
        return interp.reject("the flags of bpf_for_each_map_elem must be zero");
    }
    let zero = interp.constant(0);
    interp.write_register(LOOP_ROUND, zero)?;
    interp.write_register(LOOP_LIMIT, zero)?;
    interp.write_register(LOOP_ARGUMENT, argument)?;
    interp.write_register(LOOP_CALLBACK, function)?;
    match interp.facts.iterated_maps.insert((interp.context, interp.pc as u32), map) {
        Some(before) if before != map => {
            interp.reject("bpf_for_each_map_elem is given different maps on different paths")
        }
        _ => Ok(()),
    }
}

impl FixpointSolver<'_, '_> {
    /// Interprets the point before each entry. Of the pseudo registers, the round is the next slot
    /// to look at, and the limit counts the entries visited.
    pub(super) fn interpret_for_each_entry(&mut self, key: BlockKey, at: u32, state: State) -> Result<BlockResult> {
        let context = self.context(key);
        let mut interp =
            BlockInterpreter::new(self.linked, &mut self.facts, state, key.context, context.section as usize);
        interp.pc = at as usize;
        let place = (key.context, at);
        let Some(map) = interp.facts.iterated_maps.get(&place).copied() else {
            return interp.reject("the map of a bpf_for_each_map_elem is unknown");
        };
        let (section, first) = interp.loop_callback()?;
        interp.facts.used_maps.insert(map);
        let (from, count, argument) = (
            interp.read_register(LOOP_ROUND)?,
            interp.read_register(LOOP_LIMIT)?,
            interp.read_register(LOOP_ARGUMENT)?,
        );
        let info = &interp.linked.maps[usize::from(map)];
        let is_hash = info.used_as == MapUse::Hash;
        let words = info.definition.key_size.div_ceil(4);
        let places = Layout::of(&info.declaration()).slots;
        let entry = if is_hash { interp.next_entry(map, from.low) } else { from.low };
        let end = interp.code.constant(places);
        let goes_on = interp.code.binary(Lt, entry, end);
        // The edge that leaves the loop.
        interp.clear_caller_saved();
        interp.write_register(0, count)?;
        let behind = BlockKey { context: key.context, start: BlockStart::Instruction(at + 1), variant: 0 };
        let behind_state = interp.state.clone().without_loop_registers();
        // The edge into the callback.
        let next = interp.code.binary_const(Add, entry, 1);
        let (next, counted) = (interp.scalar32(Interval::U32, next), interp.code.binary_const(Add, count.low, 1));
        let counted = interp.scalar32(Interval::U32, counted);
        interp.write_register(LOOP_ROUND, next)?;
        interp.write_register(LOOP_LIMIT, counted)?;
        if !interp.push_frame()? {
            return interp.reject("the callback of a bpf_for_each_map_elem would exceed the call depth");
        }
        let frame = interp.current_frame() as u8;
        for word in 0..words {
            let part = if is_hash { interp.entry_key_word(map, entry, word) } else { entry };
            let part = interp.scalar32(Interval::U32, part);
            interp.store_stack(frame, Offsets::constant(KEY_OFFSET + 4 * i64::from(word)), 0, 0, 4, part)?;
        }
        let (zero, one) = (interp.code.constant(0), interp.code.constant(1));
        let low = interp.code.constant(KEY_OFFSET as u32);
        interp.state.scratch[1] = Value::of(RegType::Map(map));
        interp.state.scratch[2] =
            Value { ty: RegType::Stack { frame, off: Offsets::constant(KEY_OFFSET) }, low, high: one };
        let ty = RegType::MapValue { map, off: Offsets::constant(0), name: ANONYMOUS, nullable: false };
        interp.state.scratch[3] = Value { ty, low: zero, high: next.low };
        interp.state.scratch[4] = argument;
        interp.state.scratch[0] = Value::of(RegType::Uninit);
        let inner = self.contexts.intern(CallContext { section, first, caller: Some(place) });
        let inside = BlockKey { context: inner, start: BlockStart::Instruction(first), variant: 0 };
        let inside_state = interp.state.clone();
        // The exit state is that of the edge into the callback, and r0 must hold the count for the
        // other.
        interp.state.scratch[0] = count;
        Ok(finish_with_branch(interp, goes_on, (inside, inside_state), (behind, behind_state)))
    }
}

/// Returns from the callback: continues with the next entry or after the loop.
pub(super) fn finish_callback(mut interp: BlockInterpreter, caller: u32, at: u32) -> Result<BlockResult> {
    let result = interp.read_register(0)?;
    interp.expect_scalar(result, "the return value of a bpf_for_each_map_elem callback")?;
    interp.state.frames.pop();
    let count = interp.read_register(LOOP_LIMIT)?;
    interp.clear_caller_saved();
    interp.write_register(0, count)?;
    Ok(loop_or_exit(interp, result, BlockKey { context: caller, start: BlockStart::ForEachEntry(at), variant: 0 }, at))
}
