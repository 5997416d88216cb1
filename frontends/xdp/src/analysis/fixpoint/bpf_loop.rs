//! `bpf_loop`: a function called so many times, until it gives 1.

use super::{Add, CallContext, FixpointSolver, BlockResult, BlockKey, Lt, BlockStart, Result, State, RegType, Value, loop_or_exit, finish_with_branch};
use crate::lang::xdp::analysis::domain::range::Interval;
use crate::lang::xdp::analysis::transfer::{ARGUMENT, FUNCTION, ROUND, ROUNDS, Walk};
use crate::lang::xdp::decode::helper;
use crate::lang::xdp::errno::E2BIG;
use crate::lang::xdp::lower::ir::Binary::{Either, Ne};

/// Rounds of a `bpf_loop` (`BPF_MAX_LOOPS`).
const MAX_ROUNDS: u64 = 1 << 23;

/// `bpf_loop(rounds, function, argument, flags)`: what is kept for its rounds.
pub(super) fn start(walk: &mut Walk) -> Result<()> {
    walk.facts.helpers.insert(helper::LOOP);
    let (all, function, argument, flags) = (walk.get(1)?, walk.get(2)?, walk.get(3)?, walk.get(4)?);
    let range = walk.expect_number(all, "how often a bpf_loop goes round")?;
    if !matches!(function.ty, RegType::Function { .. }) {
        let what = function.ty.describe();
        return walk.refuse(format!("a bpf_loop is given {what} for a function"));
    }
    if flags.ty.as_scalar().and_then(Interval::as_constant) != Some(0) {
        return walk.refuse("a bpf_loop is given flags, and there are none");
    }
    let (mut round, mut rounds) = (walk.constant(0), walk.word(range, all.low));
    if range.high > MAX_ROUNDS {
        // More give an error and no round at all: it is where the first round would be, and no round that there is. As the
        // verifier puts it into the program, it has 32 bits (`inline_bpf_loop`, kernel/bpf/verifier.c).
        let high = walk.code.by(Ne, all.high, 0);
        let most = walk.code.known(MAX_ROUNDS as u32);
        let low = walk.code.binary(Lt, most, all.low);
        let many = walk.code.binary(Either, high, low);
        let (zero, error) = (walk.code.known(0), walk.code.known(E2BIG as u32));
        let (first, limit) = (walk.code.select(many, error, zero), walk.code.select(many, zero, all.low));
        round = walk.word(Interval::U32, first);
        rounds = walk.word(Interval::new(0, MAX_ROUNDS), limit);
    }
    walk.set(ROUND, round)?;
    walk.set(ROUNDS, rounds)?;
    walk.set(ARGUMENT, argument)?;
    walk.set(FUNCTION, function)
}

impl FixpointSolver<'_, '_> {
    /// Before a round of a `bpf_loop`.
    pub(super) fn interpret_loop_round(&mut self, key: BlockKey, at: u32, state: State) -> Result<BlockResult> {
        let context = self.context(key);
        let mut walk = Walk::new(self.linked, &mut self.facts, state, key.context, context.section as usize);
        walk.at = at as usize;
        let (round, rounds, argument) = (walk.get(ROUND)?, walk.get(ROUNDS)?, walk.get(ARGUMENT)?);
        let (section, first) = walk.callback()?;
        let goes_on = walk.code.binary(Lt, round.low, rounds.low);
        // Behind the loop.
        walk.after_call();
        walk.set(0, round)?;
        let behind = BlockKey { context: key.context, start: BlockStart::Instruction(at + 1), variant: 0 };
        let behind_state = walk.state.clone().without_loop_registers();
        // In the function.
        if !walk.enter()? {
            return walk.refuse("the function of a bpf_loop would be called too deep");
        }
        walk.state.scratch[1] = round;
        walk.state.scratch[2] = argument;
        walk.state.scratch[0] = Value::of(RegType::Uninit);
        let inner = self.contexts.intern(CallContext { section, first, caller: Some((key.context, at)) });
        let inside = BlockKey { context: inner, start: BlockStart::Instruction(first), variant: 0 };
        let inside_state = walk.state.clone();
        // RegKind registers hold what differs on the two ways: the code's end is that of the function's way, and r0 is
        // the round on both.
        walk.state.scratch[0] = round;
        Ok(finish_with_branch(walk, goes_on, (inside, inside_state), (behind, behind_state)))
    }
}

/// Behind the function: the round counts, whether or not it was the last.
pub(super) fn finish_callback(mut walk: Walk, caller: u32, at: u32) -> Result<BlockResult> {
    let result = walk.get(0)?;
    walk.expect_number(result, "what the function of a bpf_loop returns")?;
    walk.state.frames.pop();
    let round = walk.get(ROUND)?;
    let next = walk.code.by(Add, round.low, 1);
    let next = walk.word(Interval::U32, next);
    walk.set(ROUND, next)?;
    walk.after_call();
    walk.set(0, next)?;
    Ok(loop_or_exit(walk, result, BlockKey { context: caller, start: BlockStart::LoopRound(at), variant: 0 }, at))
}
