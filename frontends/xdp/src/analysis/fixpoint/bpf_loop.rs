//! `bpf_loop`: a function called so many times, until it gives 1.

use super::{Add, Context, Finding, Gone, Key, Lt, Place, Result, State, Ty, Value, again_or_behind, branches};
use crate::analysis::domain::range::Range;
use crate::analysis::transfer::{ARGUMENT, FUNCTION, ROUND, ROUNDS, Walk};
use crate::decode::helper;
use crate::errno::E2BIG;
use crate::lower::ir::Binary::{Either, Ne};

/// Rounds of a `bpf_loop` (`BPF_MAX_LOOPS`).
const MAX_ROUNDS: u64 = 1 << 23;

/// `bpf_loop(rounds, function, argument, flags)`: what is kept for its rounds.
pub(super) fn begin(walk: &mut Walk) -> Result<()> {
    walk.shared.helpers.insert(helper::LOOP);
    let (all, function, argument, flags) = (walk.get(1)?, walk.get(2)?, walk.get(3)?, walk.get(4)?);
    let range = walk.expect_number(all, "how often a bpf_loop goes round")?;
    if !matches!(function.ty, Ty::Function { .. }) {
        let what = function.ty.words();
        return walk.refuse(format!("a bpf_loop is given {what} for a function"));
    }
    if flags.ty.range().and_then(Range::exact) != Some(0) {
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
        round = walk.word(Range::WORD, first);
        rounds = walk.word(Range::new(0, MAX_ROUNDS), limit);
    }
    walk.set(ROUND, round)?;
    walk.set(ROUNDS, rounds)?;
    walk.set(ARGUMENT, argument)?;
    walk.set(FUNCTION, function)
}

impl Finding<'_, '_> {
    /// Before a round of a `bpf_loop`.
    pub(super) fn round(&mut self, key: Key, at: u32, state: State) -> Result<Gone> {
        let context = self.context(key);
        let mut walk = Walk::new(self.linked, &mut self.shared, state, key.context, context.section as usize);
        walk.at = at as usize;
        let (round, rounds, argument) = (walk.get(ROUND)?, walk.get(ROUNDS)?, walk.get(ARGUMENT)?);
        let (section, first) = walk.callback()?;
        let goes_on = walk.code.binary(Lt, round.low, rounds.low);
        // Behind the loop.
        walk.after_call();
        walk.set(0, round)?;
        let behind = Key { context: key.context, place: Place::At(at + 1), variant: 0 };
        let behind_state = walk.state.clone().without_rounds();
        // In the function.
        if !walk.enter()? {
            return walk.refuse("the function of a bpf_loop would be called too deep");
        }
        walk.state.scratch[1] = round;
        walk.state.scratch[2] = argument;
        walk.state.scratch[0] = Value::of(Ty::Nothing);
        let inner = self.contexts.of(Context { section, first, caller: Some((key.context, at)) });
        let inside = Key { context: inner, place: Place::At(first), variant: 0 };
        let inside_state = walk.state.clone();
        // Which registers hold what differs on the two ways: the code's end is that of the function's way, and r0 is
        // the round on both.
        walk.state.scratch[0] = round;
        Ok(branches(walk, goes_on, (inside, inside_state), (behind, behind_state)))
    }
}

/// Behind the function: the round counts, whether or not it was the last.
pub(super) fn returned(mut walk: Walk, caller: u32, at: u32) -> Result<Gone> {
    let result = walk.get(0)?;
    walk.expect_number(result, "what the function of a bpf_loop returns")?;
    walk.state.frames.pop();
    let round = walk.get(ROUND)?;
    let next = walk.code.by(Add, round.low, 1);
    let next = walk.word(Range::WORD, next);
    walk.set(ROUND, next)?;
    walk.after_call();
    walk.set(0, next)?;
    Ok(again_or_behind(walk, result, Key { context: caller, place: Place::Round(at), variant: 0 }, at))
}
