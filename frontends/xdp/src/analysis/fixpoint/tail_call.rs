//! Tail calls: a chain of comparisons with the programs that the program array may hold. The other
//! program takes the place of the current frame.

use super::{
    Add, BlockKey, BlockResult, BlockStart, CallContext, Eq, FixpointSolver, Frame, Lt, PendingTerminator, RegType,
    Result, State, Value, finish_with_branch, into_parts,
};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::pseudo_registers::TAIL_CALL_COUNT;
use crate::analysis::transfer::BlockInterpreter;
use crate::ir::BinaryOp::LogicalAnd;

/// Maximum number of tail calls a packet (`MAX_TAIL_CALL_CNT`).
const MAX_TAIL_CALLS: u32 = 33;

impl FixpointSolver<'_, '_> {
    /// Interprets a tail call once the programs before `number` are excluded.
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
            // r0 is an error number that programs cannot rely on.
            let zero = interp.constant(0);
            interp.write_register(0, zero)?;
            not_taken.scratch[0].ty = RegType::UNKNOWN;
            return Ok((into_parts(interp), PendingTerminator::Goto(behind), vec![(behind, not_taken)]));
        };
        let is_target = interp.code.binary_const(Eq, slot, program + 1);
        let is_below_limit = interp.code.binary_const(Lt, calls.low, MAX_TAIL_CALLS);
        let condition = interp.code.binary(LogicalAnd, is_target, is_below_limit);
        let next = BlockKey { context: key.context, start: BlockStart::TailCall(at, number + 1), variant: 0 };
        let mut next_state = interp.state.clone();
        // A call that is not taken does not count; the count is read only where it is.
        let more = interp.code.bool_to_u32(condition);
        let more = interp.code.binary(Add, calls.low, more);
        let counted = interp.scalar32(Interval::new(0, u64::from(MAX_TAIL_CALLS)), more);
        interp.write_register(TAIL_CALL_COUNT, counted)?;
        next_state.scratch[7] = counted;
        // The program replaces the current function and returns to its caller.
        let mut entry =
            State { frames: interp.state.frames.clone(), metadata: interp.state.metadata.clone(), ..State::at_entry() };
        entry.scratch[6..].copy_from_slice(&interp.state.scratch[6..]);
        *entry.frames.last_mut().expect("there is always a frame") = Frame::new();
        entry.proven_length = interp.state.proven_length;
        entry.stored = interp.state.stored.clone();
        if entry.frames.len() > 1 {
            // Callers may hold pointers into the packet.
            entry.extents = interp.state.extents.clone();
        }
        let to = self.contexts.intern(CallContext { section, first, caller: context.caller });
        let to = BlockKey { context: to, start: BlockStart::Instruction(first), variant: 0 };
        Ok(finish_with_branch(interp, condition, (to, entry), (next, next_state)))
    }
}
