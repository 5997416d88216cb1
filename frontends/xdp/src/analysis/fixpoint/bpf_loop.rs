//! `bpf_loop`: a callback called up to a number of times, until it returns 1.

use super::{
    Add, BlockKey, BlockResult, BlockStart, CallContext, FixpointSolver, Lt, RegType, Result, State, Value,
    finish_with_branch, loop_or_exit,
};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::pseudo_registers::{LOOP_ARGUMENT, LOOP_CALLBACK, LOOP_LIMIT, LOOP_ROUND};
use crate::analysis::transfer::BlockInterpreter;
use crate::errno::E2BIG;
use crate::helper;
use crate::ir::BinaryOp::{LogicalOr, Ne};

/// Maximum number of rounds (`BPF_MAX_LOOPS`).
const MAX_ROUNDS: u64 = 1 << 23;

/// `bpf_loop(rounds, callback, argument, flags)`: checks the arguments and keeps them in pseudo
/// registers for the rounds.
pub(super) fn start(interp: &mut BlockInterpreter) -> Result<()> {
    interp.facts.helpers.insert(helper::LOOP);
    let (all, function, argument, flags) =
        (interp.read_register(1)?, interp.read_register(2)?, interp.read_register(3)?, interp.read_register(4)?);
    let range = interp.expect_scalar(all, "the number of rounds of a bpf_loop")?;
    if !matches!(function.ty, RegType::Function { .. }) {
        let what = function.ty.describe();
        return interp.reject(format!("bpf_loop takes a function for its callback, not {what}"));
    }
    if flags.ty.as_scalar().and_then(Interval::as_constant) != Some(0) {
        return interp.reject("the flags of bpf_loop must be zero");
    }
    let (mut round, mut rounds) = (interp.constant(0), interp.scalar32(range, all.low));
    if range.high > MAX_ROUNDS {
        // More rounds than the maximum give an error and run none: start at round -E2BIG, which is
        // past the end and is what the helper returns. The verifier inlines the error as a 32-bit
        // number (`inline_bpf_loop`, kernel/bpf/verifier.c).
        let high = interp.code.binary_const(Ne, all.high, 0);
        let most = interp.code.constant(MAX_ROUNDS as u32);
        let low = interp.code.binary(Lt, most, all.low);
        let many = interp.code.binary(LogicalOr, high, low);
        let (zero, error) = (interp.code.constant(0), interp.code.constant(E2BIG as u32));
        let (first, limit) = (interp.code.select(many, error, zero), interp.code.select(many, zero, all.low));
        round = interp.scalar32(Interval::U32, first);
        rounds = interp.scalar32(Interval::new(0, MAX_ROUNDS), limit);
    }
    interp.write_register(LOOP_ROUND, round)?;
    interp.write_register(LOOP_LIMIT, rounds)?;
    interp.write_register(LOOP_ARGUMENT, argument)?;
    interp.write_register(LOOP_CALLBACK, function)
}

impl FixpointSolver<'_, '_> {
    /// Interprets the point before each round: enters the callback or continues after the loop.
    pub(super) fn interpret_loop_round(&mut self, key: BlockKey, at: u32, state: State) -> Result<BlockResult> {
        let context = self.context(key);
        let mut interp =
            BlockInterpreter::new(self.linked, &mut self.facts, state, key.context, context.section as usize);
        interp.pc = at as usize;
        let (round, rounds, argument) = (
            interp.read_register(LOOP_ROUND)?,
            interp.read_register(LOOP_LIMIT)?,
            interp.read_register(LOOP_ARGUMENT)?,
        );
        let (section, first) = interp.loop_callback()?;
        let goes_on = interp.code.binary(Lt, round.low, rounds.low);
        // The edge that leaves the loop.
        interp.clear_caller_saved();
        interp.write_register(0, round)?;
        let behind = BlockKey { context: key.context, start: BlockStart::Instruction(at + 1), variant: 0 };
        let behind_state = interp.state.clone().without_loop_registers();
        // The edge into the callback.
        if !interp.push_frame()? {
            return interp.reject("the callback of a bpf_loop would exceed the call depth");
        }
        interp.state.scratch[1] = round;
        interp.state.scratch[2] = argument;
        interp.state.scratch[0] = Value::of(RegType::Uninit);
        let inner = self.contexts.intern(CallContext { section, first, caller: Some((key.context, at)) });
        let inside = BlockKey { context: inner, start: BlockStart::Instruction(first), variant: 0 };
        let inside_state = interp.state.clone();
        // The two edges keep different registers. The exit state is that of the edge into the
        // callback, and r0 must hold the round for the other.
        interp.state.scratch[0] = round;
        Ok(finish_with_branch(interp, goes_on, (inside, inside_state), (behind, behind_state)))
    }
}

/// Returns from the callback. The round counts even if it is the last.
pub(super) fn finish_callback(mut interp: BlockInterpreter, caller: u32, at: u32) -> Result<BlockResult> {
    let result = interp.read_register(0)?;
    interp.expect_scalar(result, "the return value of a bpf_loop callback")?;
    interp.state.frames.pop();
    let round = interp.read_register(LOOP_ROUND)?;
    let next = interp.code.binary_const(Add, round.low, 1);
    let next = interp.scalar32(Interval::U32, next);
    interp.write_register(LOOP_ROUND, next)?;
    interp.clear_caller_saved();
    interp.write_register(0, next)?;
    Ok(loop_or_exit(interp, result, BlockKey { context: caller, start: BlockStart::LoopRound(at), variant: 0 }, at))
}
