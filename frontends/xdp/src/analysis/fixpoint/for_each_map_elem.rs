//! `bpf_for_each_map_elem`: a function called for each of a map's entries, until it gives 1. An array's come by number, those of
//! a hash as they lie here.

use super::{Add, CallContext, FixpointSolver, BlockResult, BlockKey, Lt, BlockStart, Result, State, RegType, Value, loop_or_exit, finish_with_branch};
use crate::lang::xdp::analysis::domain::range::Interval;
use crate::lang::xdp::analysis::domain::state::{ANONYMOUS, Offsets};
use crate::lang::xdp::analysis::transfer::{ARGUMENT, FUNCTION, ROUND, ROUNDS, Walk};
use crate::lang::xdp::decode::helper;
use crate::lang::xdp::decode::maps::MapUse;
use crate::map::layout::Layout;

/// Where a function finds the key, from the top of its frame: at its other end. All frames under way have no more than 512
/// bytes together, and a caller has 32 at least (`check_max_stack_depth`), so that these are nobody's.
const KEY_OFFSET: i64 = -512;
const MAX_KEY_BYTES: u32 = 32;

/// `bpf_for_each_map_elem(map, function, argument, flags)`: what is kept for its rounds.
pub(super) fn start(walk: &mut Walk) -> Result<()> {
    walk.facts.helpers.insert(helper::FOR_EACH_MAP_ELEM);
    let (map, function, argument, flags) = (walk.get(1)?, walk.get(2)?, walk.get(3)?, walk.get(4)?);
    let map = walk.map(map)?;
    let info = &walk.linked.maps[usize::from(map)];
    let (ty, key_size) = (info.definition.ty, info.definition.key_size);
    if !(ty.is_array() || ty.is_hash() || ty.is_lru()) {
        let given = ty.name();
        return walk
            .refuse(format!("bpf_for_each_map_elem is given a map of type {given}, and takes arrays and hashes"));
    }
    if key_size > MAX_KEY_BYTES {
        let what =
            format!("bpf_for_each_map_elem is given a map with keys of {key_size} bytes, and {MAX_KEY_BYTES} are the most");
        return walk.lack(what, "bpf_for_each_map_elem over keys of any size");
    }
    if !matches!(function.ty, RegType::Function { .. }) {
        let what = function.ty.describe();
        return walk.refuse(format!("bpf_for_each_map_elem is given {what} for a function"));
    }
    if flags.ty.as_scalar().and_then(Interval::as_constant) != Some(0) {
        return walk.refuse("bpf_for_each_map_elem is given flags, and there are none");
    }
    let zero = walk.constant(0);
    walk.set(ROUND, zero)?;
    walk.set(ROUNDS, zero)?;
    walk.set(ARGUMENT, argument)?;
    walk.set(FUNCTION, function)?;
    match walk.facts.iterated_maps.insert((walk.context, walk.at as u32), map) {
        Some(before) if before != map => walk.refuse("bpf_for_each_map_elem is given another map on another way"),
        _ => Ok(()),
    }
}

impl FixpointSolver<'_, '_> {
    /// Before each entry. Of the registers that no program sees, the round is where the entry may be, and the rounds are how
    /// many there were.
    pub(super) fn interpret_for_each_entry(&mut self, key: BlockKey, at: u32, state: State) -> Result<BlockResult> {
        let context = self.context(key);
        let mut walk = Walk::new(self.linked, &mut self.facts, state, key.context, context.section as usize);
        walk.at = at as usize;
        let place = (key.context, at);
        let Some(map) = walk.facts.iterated_maps.get(&place).copied() else {
            return walk.refuse("the map of a bpf_for_each_map_elem is not known");
        };
        let (section, first) = walk.callback()?;
        walk.facts.used_maps.insert(map);
        let (from, count, argument) = (walk.get(ROUND)?, walk.get(ROUNDS)?, walk.get(ARGUMENT)?);
        let info = &walk.linked.maps[usize::from(map)];
        let is_hash = info.used_as == MapUse::Hash;
        let words = info.definition.key_size.div_ceil(4);
        let places = Layout::of(&info.declaration()).places;
        let entry = if is_hash { walk.next_entry(map, from.low) } else { from.low };
        let end = walk.code.known(places);
        let goes_on = walk.code.binary(Lt, entry, end);
        // Behind the last.
        walk.after_call();
        walk.set(0, count)?;
        let behind = BlockKey { context: key.context, start: BlockStart::Instruction(at + 1), variant: 0 };
        let behind_state = walk.state.clone().without_loop_registers();
        // In the function.
        let next = walk.code.by(Add, entry, 1);
        let (next, counted) = (walk.word(Interval::U32, next), walk.code.by(Add, count.low, 1));
        let counted = walk.word(Interval::U32, counted);
        walk.set(ROUND, next)?;
        walk.set(ROUNDS, counted)?;
        if !walk.enter()? {
            return walk.refuse("the function of a bpf_for_each_map_elem would be called too deep");
        }
        let frame = walk.frame() as u8;
        for word in 0..words {
            let part = if is_hash { walk.key_of_entry(map, entry, word) } else { entry };
            let part = walk.word(Interval::U32, part);
            walk.store_stack(frame, Offsets::constant(KEY_OFFSET + 4 * i64::from(word)), 0, 0, 4, part)?;
        }
        let (zero, one) = (walk.code.known(0), walk.code.known(1));
        let low = walk.code.known(KEY_OFFSET as u32);
        walk.state.scratch[1] = Value::of(RegType::Map(map));
        walk.state.scratch[2] = Value { ty: RegType::Stack { frame, off: Offsets::constant(KEY_OFFSET) }, low, high: one };
        let ty = RegType::MapValue { map, off: Offsets::constant(0), name: ANONYMOUS, nullable: false };
        walk.state.scratch[3] = Value { ty, low: zero, high: next.low };
        walk.state.scratch[4] = argument;
        walk.state.scratch[0] = Value::of(RegType::Uninit);
        let inner = self.contexts.intern(CallContext { section, first, caller: Some(place) });
        let inside = BlockKey { context: inner, start: BlockStart::Instruction(first), variant: 0 };
        let inside_state = walk.state.clone();
        // The code's end is that of the function's way; what that asks for the other does not.
        walk.state.scratch[0] = count;
        Ok(finish_with_branch(walk, goes_on, (inside, inside_state), (behind, behind_state)))
    }
}

/// Behind the function: on with the next entry, or behind the last.
pub(super) fn finish_callback(mut walk: Walk, caller: u32, at: u32) -> Result<BlockResult> {
    let result = walk.get(0)?;
    walk.expect_number(result, "what the function of a bpf_for_each_map_elem returns")?;
    walk.state.frames.pop();
    let count = walk.get(ROUNDS)?;
    walk.after_call();
    walk.set(0, count)?;
    Ok(loop_or_exit(walk, result, BlockKey { context: caller, start: BlockStart::ForEachEntry(at), variant: 0 }, at))
}
