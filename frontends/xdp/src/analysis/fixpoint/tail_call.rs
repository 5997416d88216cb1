//! Tail calls: a program in place of the one under way, or of a function of its.

use super::{Add, Context, Eq, Finding, Frame, Gone, Key, Lt, Place, Result, State, Ty, Value, Way, branches, done};
use crate::analysis::domain::range::Range;
use crate::analysis::transfer::{TAIL_CALLS, Walk};
use crate::lower::ir::Binary::Both;

/// Tail calls at most (`MAX_TAIL_CALL_CNT`).
const MAX_TAIL_CALLS: u32 = 33;

impl Finding<'_, '_> {
    /// At a tail call, behind the programs that were not meant.
    pub(super) fn tail(&mut self, key: Key, at: u32, number: u32, state: State) -> Result<Gone> {
        let context = self.context(key);
        let mut walk = Walk::new(self.linked, &mut self.shared, state, key.context, context.section as usize);
        walk.at = at as usize;
        let (map, slot) = walk.tail_call()?;
        let calls = walk.get(TAIL_CALLS)?;
        let programs = self.linked.programs_of(map);
        let behind = Key { context: key.context, place: Place::At(at + 1), variant: 0 };
        let mut fallen = walk.state.clone();
        (0..6).for_each(|register| fallen.scratch[register] = Value::of(Ty::Nothing));
        let Some(&(program, section, first)) = programs.get(number as usize) else {
            // It gives an error's number, which nobody can rely on.
            let zero = walk.constant(0);
            walk.set(0, zero)?;
            fallen.scratch[0].ty = Ty::UNKNOWN;
            return Ok((done(walk), Way::Goto(behind), vec![(behind, fallen)]));
        };
        let meant = walk.code.by(Eq, slot, program + 1);
        let few = walk.code.by(Lt, calls.low, MAX_TAIL_CALLS);
        let condition = walk.code.binary(Both, meant, few);
        let next = Key { context: key.context, place: Place::Tail(at, number + 1), variant: 0 };
        let mut next_state = walk.state.clone();
        // Whoever is not called does not count, and nobody asks who was not.
        let more = walk.code.number(condition);
        let more = walk.code.binary(Add, calls.low, more);
        let counted = walk.word(Range::new(0, u64::from(MAX_TAIL_CALLS)), more);
        walk.set(TAIL_CALLS, counted)?;
        next_state.scratch[7] = counted;
        // The program runs in place of the function, and what it returns is what the function returns.
        let mut begun =
            State { frames: walk.state.frames.clone(), metadata: walk.state.metadata.clone(), ..State::beginning() };
        begun.scratch[6..].copy_from_slice(&walk.state.scratch[6..]);
        *begun.frames.last_mut().expect("there is always a frame") = Frame::new();
        begun.length = walk.state.length;
        begun.stored = walk.state.stored.clone();
        if begun.frames.len() > 1 {
            // Callers may have pointers into the packet.
            begun.extents = walk.state.extents.clone();
        }
        let to = self.contexts.of(Context { section, first, caller: context.caller });
        let to = Key { context: to, place: Place::At(first), variant: 0 };
        Ok(branches(walk, condition, (to, begun), (next, next_state)))
    }
}
