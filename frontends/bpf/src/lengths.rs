//! Checks of the packet's length, and of divisors: what an instruction rejects a packet for becomes a branch before it.
//!
//! A check asks for all that the packet must have to be taken at all: what no way on takes a packet without is asked for at
//! once. So most programs ask once or twice. What has been asked on every way here is not asked again.

use std::collections::BTreeSet;

use super::flow::{Asked, Block, End, Flow, Step, To};
use super::instruction::{Alu, Op, Operand, Register};
use super::values::{self, Most};

/// Bytes without which no packet is taken: more than any has.
const NEVER: u64 = u64::MAX;

/// How often a block may learn that less is known than was thought.
const ROUNDS: u8 = 8;

/// What is known of the packet's length: bytes that it has, and bytes that it has behind X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    bytes: u64,
    behind_x: u64,
}

impl Known {
    const NOTHING: Known = Known { bytes: 0, behind_x: 0 };

    fn common(self, other: Known) -> Known {
        Known { bytes: self.bytes.min(other.bytes), behind_x: self.behind_x.min(other.behind_x) }
    }
}

/// Puts checks before what needs them.
pub(super) fn checked(flow: &Flow) -> Flow {
    let most = values::most(flow);
    let needs = needs(flow);
    let mut known: Vec<Option<Known>> = vec![None; flow.blocks.len()];
    let mut rounds = vec![0_u8; flow.blocks.len()];
    known[0] = Some(Known::NOTHING);
    let mut work = BTreeSet::from([0]);
    while let Some(block) = work.pop_first() {
        let Some(before) = known[block] else { continue };
        let Some(most) = most[block] else { continue };
        let mut pass = Pass { known: before, most, out: None };
        if !pass.block(flow, &needs, block) {
            continue;
        }
        for target in flow.blocks[block].end.targets().filter_map(To::block) {
            let there = known[target];
            let both = there.map_or(pass.known, |there| there.common(pass.known));
            if there == Some(both) {
                continue;
            }
            rounds[target] = rounds[target].saturating_add(1);
            known[target] = Some(if rounds[target] > ROUNDS { Known::NOTHING } else { both });
            work.insert(target);
        }
    }
    let mut done = flow.clone();
    for block in 0..flow.blocks.len() {
        let (Some(known), Some(most)) = (known[block], most[block]) else { continue };
        let mut pass = Pass { known, most, out: Some(Vec::new()) };
        let goes_on = pass.block(flow, &needs, block);
        let pieces = pass.out.unwrap_or_default();
        done.replace(block, pieces, if goes_on { flow.blocks[block].end } else { End::Go(To::Drop) });
    }
    done
}

impl Flow {
    /// Has a block consist of pieces: behind each but the last stands a question, and who answers it with yes is rejected.
    fn replace(&mut self, block: usize, pieces: Vec<Vec<(Step, usize)>>, end: End) {
        let count = pieces.len();
        let mut at = block;
        for (number, steps) in pieces.into_iter().enumerate() {
            let is_last = number + 1 == count;
            let next = self.blocks.len();
            let end = if is_last { end } else { End::If { then: To::Drop, otherwise: To::Block(next) } };
            self.blocks[at] = Block { steps, end };
            if !is_last {
                self.blocks.push(Block { steps: Vec::new(), end: End::Return });
                at = next;
            }
        }
    }
}

/// One way through a block.
struct Pass {
    known: Known,
    most: Most,
    /// The block's pieces, where they are wanted.
    out: Option<Vec<Vec<(Step, usize)>>>,
}

impl Pass {
    /// Whether a packet can come to the block's end and still be taken.
    fn block(&mut self, flow: &Flow, needs: &[u64], block: usize) -> bool {
        let Block { steps, end } = &flow.blocks[block];
        // Backwards: what is needed from a step on.
        let mut from = vec![end_needs(*end, needs)];
        for &(step, _) in steps.iter().rev() {
            from.push(own(step).max(from[from.len() - 1]));
        }
        from.reverse();
        if let Some(out) = &mut self.out {
            out.push(Vec::new());
        }
        for (i, &(step, number)) in steps.iter().enumerate() {
            if own(step) > self.known.bytes {
                let Some(wanted) = u32::try_from(from[i]).ok().filter(|_| from[i] != NEVER) else { return false };
                self.ask(Asked::Shorter(wanted), number);
                self.known.bytes = from[i];
            }
            if let Step::Do(op) = step {
                self.before(op, &steps[i..], number);
            }
            if let Some(out) = self.out.as_mut().and_then(|out| out.last_mut()) {
                out.push((step, number));
            }
            values::follow(&mut self.most, step);
            if step.sets() == Some(Register::X) {
                self.known.behind_x = 0;
            }
        }
        from[steps.len()] != NEVER
    }

    /// What an operation needs that is about X.
    fn before(&mut self, op: Op, rest: &[(Step, usize)], number: usize) {
        match op {
            Op::LoadBehind { .. } => {
                let more = behind_x(op);
                let most = self.most[Register::X.index()];
                if more <= self.known.behind_x || more + u64::from(most) <= self.known.bytes {
                    return;
                }
                // All loads up to where X changes.
                let same_x = rest.iter().take_while(|(step, _)| step.sets() != Some(Register::X));
                let all = same_x.map(|(step, _)| if let Step::Do(op) = step { behind_x(*op) } else { 0 }).max();
                let all = all.unwrap_or(0).max(more);
                let Ok(asked) = u32::try_from(all) else { return };
                self.ask(Asked::ShorterThanX { more: asked, most }, number);
                self.known.behind_x = all;
                self.known.bytes = self.known.bytes.max(all);
            }
            Op::Alu(Alu::Divide | Alu::Modulo, Operand::X) => self.ask(Asked::XIsZero, number),
            _ => {}
        }
    }

    fn ask(&mut self, asked: Asked, number: usize) {
        if let Some(out) = &mut self.out {
            if let Some(piece) = out.last_mut() {
                piece.push((Step::Ask { asked, is: true }, number));
            }
            out.push(Vec::new());
        }
    }
}

/// Bytes that the packet must have for a step to go on, at the least.
fn own(step: Step) -> u64 {
    match step {
        Step::Do(Op::Load { at, size }) => u64::from(at) + u64::from(size),
        Step::Do(Op::Header { at }) => u64::from(at) + 1,
        Step::Do(op @ Op::LoadBehind { .. }) => behind_x(op),
        // An Ethernet header.
        Step::Do(Op::Protocol) => 14,
        _ => 0,
    }
}

/// Bytes that it must have behind X.
fn behind_x(op: Op) -> u64 {
    match op {
        Op::LoadBehind { at, size } => u64::from(at) + u64::from(size),
        _ => 0,
    }
}

fn end_needs(end: End, needs: &[u64]) -> u64 {
    let of = |to: To| match to {
        To::Block(block) => needs[block],
        To::Pass => 0,
        To::Drop => NEVER,
    };
    match end {
        End::Go(to) => of(to),
        End::If { then, otherwise } => of(then).min(of(otherwise)),
        End::Return => 0,
    }
}

/// Bytes without which a packet that comes to a block is not taken. In loops it may be more than this.
fn needs(flow: &Flow) -> Vec<u64> {
    let mut needs = vec![0; flow.blocks.len()];
    for _ in 0..ROUNDS {
        let mut changed = false;
        // Each before those that lead to it, but for jumps back.
        for block in (0..flow.blocks.len()).rev() {
            let Block { steps, end } = &flow.blocks[block];
            let need = steps.iter().map(|&(step, _)| own(step)).fold(end_needs(*end, &needs), u64::max);
            changed |= std::mem::replace(&mut needs[block], need) != need;
        }
        if !changed {
            break;
        }
    }
    needs
}
