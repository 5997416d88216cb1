//! Tail calls: a program in place of the one under way, or of a function of its.

use super::{
    Add, BlockKey, BlockResult, BlockStart, CallContext, Eq, FixpointSolver, Frame, Lt, PendingTerminator, RegType,
    Result, State, Value, finish_with_branch, into_parts,
};
use crate::lang::xdp::analysis::domain::interval::Interval;
use crate::lang::xdp::analysis::transfer::{BlockInterpreter, TAIL_CALL_COUNT};
use crate::lang::xdp::lower::ir::BinaryOp::LogicalAnd;

/// Tail calls at most (`MAX_TAIL_CALL_CNT`).
const MAX_TAIL_CALLS: u32 = 33;

impl FixpointSolver<'_, '_> {
    /// At a tail call, behind the programs that were not meant.
    pub(super) fn interpret_tail_call(
        &mut self,
        key: BlockKey,
        at: u32,
        number: u32,
        state: State,
    ) -> Result<BlockResult> {
        let context = self.context(key);
        let mut interp =
            BlockInterpreter::new(self.linked, &mut self.facts, state, key.context, context.section as usize);
        interp.pc = at as usize;
        let (map, slot) = interp.read_tail_call()?;
        let calls = interp.read_register(TAIL_CALL_COUNT)?;
        let programs = self.linked.tail_call_targets(map);
        let behind = BlockKey { context: key.context, start: BlockStart::Instruction(at + 1), variant: 0 };
        let mut not_taken = interp.state.clone();
        (0..6).for_each(|register| not_taken.scratch[register] = Value::of(RegType::Uninit));
        let Some(&(program, section, first)) = programs.get(number as usize) else {
            // It gives an error's number, which nobody can rely on.
            let zero = interp.constant(0);
            interp.write_register(0, zero)?;
            not_taken.scratch[0].ty = RegType::UNKNOWN;
            return Ok((into_parts(interp), PendingTerminator::Goto(behind), vec![(behind, not_taken)]));
        };
        let meant = interp.code.binary_const(Eq, slot, program + 1);
        let few = interp.code.binary_const(Lt, calls.low, MAX_TAIL_CALLS);
        let condition = interp.code.binary(LogicalAnd, meant, few);
        let next = BlockKey { context: key.context, start: BlockStart::TailCall(at, number + 1), variant: 0 };
        let mut next_state = interp.state.clone();
        // Whoever is not called does not count, and nobody asks who was not.
        let more = interp.code.bool_to_u32(condition);
        let more = interp.code.binary(Add, calls.low, more);
        let counted = interp.scalar32(Interval::new(0, u64::from(MAX_TAIL_CALLS)), more);
        interp.write_register(TAIL_CALL_COUNT, counted)?;
        next_state.scratch[7] = counted;
        // The program runs in place of the function, and what it returns is what the function returns.
        let mut begun =
            State { frames: interp.state.frames.clone(), metadata: interp.state.metadata.clone(), ..State::at_entry() };
        begun.scratch[6..].copy_from_slice(&interp.state.scratch[6..]);
        *begun.frames.last_mut().expect("there is always a frame") = Frame::new();
        begun.proven_length = interp.state.proven_length;
        begun.stored = interp.state.stored.clone();
        if begun.frames.len() > 1 {
            // Callers may have pointers into the packet.
            begun.extents = interp.state.extents.clone();
        }
        let to = self.contexts.intern(CallContext { section, first, caller: context.caller });
        let to = BlockKey { context: to, start: BlockStart::Instruction(first), variant: 0 };
        Ok(finish_with_branch(interp, condition, (to, begun), (next, next_state)))
    }
}
