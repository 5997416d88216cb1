//! `bpf_for_each_map_elem`: a function called for each of a map's entries, until it gives 1. An array's come by number, those of
//! a hash as they lie here.

use super::{Add, Context, Finding, Gone, Key, Lt, Place, Result, State, Ty, Value, again_or_behind, branches};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{NOBODY, Offsets};
use crate::analysis::transfer::{ARGUMENT, FUNCTION, ROUND, ROUNDS, Walk};
use crate::decode::helper;
use crate::decode::maps::Use;
use portcullis_core::map::layout::Layout;

/// Where a function finds the key, from the top of its frame: at its other end. All frames under way have no more than 512
/// bytes together, and a caller has 32 at least (`check_max_stack_depth`), so that these are nobody's.
const KEY: i64 = -512;
const LONGEST: u32 = 32;

/// `bpf_for_each_map_elem(map, function, argument, flags)`: what is kept for its rounds.
pub(super) fn begin(walk: &mut Walk) -> Result<()> {
    walk.shared.helpers.insert(helper::FOR_EACH_MAP_ELEM);
    let (map, function, argument, flags) = (walk.get(1)?, walk.get(2)?, walk.get(3)?, walk.get(4)?);
    let map = walk.map(map)?;
    let info = &walk.linked.maps[usize::from(map)];
    let (ty, key_size) = (info.definition.ty, info.definition.key_size);
    if !(ty.is_array() || ty.is_hash() || ty.is_lru()) {
        let given = ty.name();
        return walk
            .refuse(format!("bpf_for_each_map_elem is given a map of type {given}, and takes arrays and hashes"));
    }
    if key_size > LONGEST {
        let what =
            format!("bpf_for_each_map_elem is given a map with keys of {key_size} bytes, and {LONGEST} are the most");
        return walk.lack(what, "bpf_for_each_map_elem over keys of any size");
    }
    if !matches!(function.ty, Ty::Function { .. }) {
        let what = function.ty.words();
        return walk.refuse(format!("bpf_for_each_map_elem is given {what} for a function"));
    }
    if flags.ty.range().and_then(Range::exact) != Some(0) {
        return walk.refuse("bpf_for_each_map_elem is given flags, and there are none");
    }
    let zero = walk.constant(0);
    walk.set(ROUND, zero)?;
    walk.set(ROUNDS, zero)?;
    walk.set(ARGUMENT, argument)?;
    walk.set(FUNCTION, function)?;
    match walk.shared.entries_of.insert((walk.context, walk.at as u32), map) {
        Some(before) if before != map => walk.refuse("bpf_for_each_map_elem is given another map on another way"),
        _ => Ok(()),
    }
}

impl Finding<'_, '_> {
    /// Before each entry. Of the registers that no program sees, the round is where the entry may be, and the rounds are how
    /// many there were.
    pub(super) fn each(&mut self, key: Key, at: u32, state: State) -> Result<Gone> {
        let context = self.context(key);
        let mut walk = Walk::new(self.linked, &mut self.shared, state, key.context, context.section as usize);
        walk.at = at as usize;
        let place = (key.context, at);
        let Some(map) = walk.shared.entries_of.get(&place).copied() else {
            return walk.refuse("the map of a bpf_for_each_map_elem is not known");
        };
        let (section, first) = walk.callback()?;
        walk.shared.used.insert(map);
        let (from, count, argument) = (walk.get(ROUND)?, walk.get(ROUNDS)?, walk.get(ARGUMENT)?);
        let info = &walk.linked.maps[usize::from(map)];
        let is_hash = info.used_as == Use::Hash;
        let words = info.definition.key_size.div_ceil(4);
        let places = Layout::of(&info.declaration()).slots;
        let entry = if is_hash { walk.next_entry(map, from.low) } else { from.low };
        let end = walk.code.known(places);
        let goes_on = walk.code.binary(Lt, entry, end);
        // Behind the last.
        walk.after_call();
        walk.set(0, count)?;
        let behind = Key { context: key.context, place: Place::At(at + 1), variant: 0 };
        let behind_state = walk.state.clone().without_rounds();
        // In the function.
        let next = walk.code.by(Add, entry, 1);
        let (next, counted) = (walk.word(Range::WORD, next), walk.code.by(Add, count.low, 1));
        let counted = walk.word(Range::WORD, counted);
        walk.set(ROUND, next)?;
        walk.set(ROUNDS, counted)?;
        if !walk.enter()? {
            return walk.refuse("the function of a bpf_for_each_map_elem would be called too deep");
        }
        let frame = walk.frame() as u8;
        for word in 0..words {
            let part = if is_hash { walk.key_of_entry(map, entry, word) } else { entry };
            let part = walk.word(Range::WORD, part);
            walk.store_stack(frame, Offsets::one(KEY + 4 * i64::from(word)), 0, 0, 4, part)?;
        }
        let (zero, one) = (walk.code.known(0), walk.code.known(1));
        let low = walk.code.known(KEY as u32);
        walk.state.scratch[1] = Value::of(Ty::Map(map));
        walk.state.scratch[2] = Value { ty: Ty::Stack { frame, off: Offsets::one(KEY) }, low, high: one };
        let ty = Ty::Value { map, off: Offsets::one(0), name: NOBODY, nullable: false };
        walk.state.scratch[3] = Value { ty, low: zero, high: next.low };
        walk.state.scratch[4] = argument;
        walk.state.scratch[0] = Value::of(Ty::Nothing);
        let inner = self.contexts.of(Context { section, first, caller: Some(place) });
        let inside = Key { context: inner, place: Place::At(first), variant: 0 };
        let inside_state = walk.state.clone();
        // The code's end is that of the function's way; what that asks for the other does not.
        walk.state.scratch[0] = count;
        Ok(branches(walk, goes_on, (inside, inside_state), (behind, behind_state)))
    }
}

/// Behind the function: on with the next entry, or behind the last.
pub(super) fn returned(mut walk: Walk, caller: u32, at: u32) -> Result<Gone> {
    let result = walk.get(0)?;
    walk.expect_number(result, "what the function of a bpf_for_each_map_elem returns")?;
    walk.state.frames.pop();
    let count = walk.get(ROUNDS)?;
    walk.after_call();
    walk.set(0, count)?;
    Ok(again_or_behind(walk, result, Key { context: caller, place: Place::Each(at), variant: 0 }, at))
}
