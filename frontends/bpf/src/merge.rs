//! Fewer blocks: questions that are asked one after the other become one.
//!
//! Where a block's answer leads to a block that leads to one of the same two targets, that block is run in any case, and the
//! two answers are one condition. Nothing that a block does has an effect but on registers, so it may be run where it would
//! not have been, unless it sets a register that is read there. A long list of `or` is so one condition and not a branch for
//! each of its hosts, which devices without jumps could not take.

use std::collections::BTreeSet;

use super::flow::{Asked, Block, End, Flow, Step, To};
use super::instruction::{Op, Register};
use super::values;

/// Loads from the packet that a block may have to be run where it need not be, those apart that have been made anyway.
const LOADS: usize = 1;

/// Steps of a block that others were put into, at most.
const STEPS: usize = 256;

/// Puts blocks together.
pub(super) fn merged(mut flow: Flow) -> Flow {
    flow.thread();
    let live = values::live(&flow);
    let mut edges = edges(&flow);
    let is_dead = |block: usize, to: To, flow: &Flow| {
        let Some(to) = to.block() else { return true };
        flow.blocks[block].steps.iter().filter_map(|(step, _)| step.sets()).all(|set| !live[to].has(set))
    };
    // Those behind first: what is put together there is one block for those before.
    for block in order(&flow) {
        while let End::If { then, otherwise } = flow.blocks[block].end {
            let joined =
                [(otherwise, then, true), (then, otherwise, false)].into_iter().find_map(|(next, other, or)| {
                    let next = next.block().filter(|&next| next != block && next != 0 && edges[next] == 1)?;
                    let joins = joins(&flow.blocks[next], other, or)?;
                    let is_cheap = is_cheap(&flow.blocks[next], &flow.blocks[block]);
                    (is_cheap && is_dead(next, other, &flow)).then_some((next, other, joins))
                });
            let Some((next, other, joins)) = joined else { break };
            let number = flow.blocks[block].steps.last().map_or(0, |(_, number)| *number);
            // Nothing leads there any more.
            let mut steps =
                std::mem::replace(&mut flow.blocks[next], Block { steps: Vec::new(), end: End::Return }).steps;
            let own = &mut flow.blocks[block];
            own.steps.append(&mut steps);
            for step in joins.steps.into_iter().flatten() {
                match own.steps.last_mut() {
                    Some((Step::Ask { is, .. }, _)) if step == Step::Not => *is = !*is,
                    _ => own.steps.push((step, number)),
                }
            }
            own.end = joins.end;
            // Of two edges to the other target one is left.
            if let Some(other) = other.block() {
                edges[other] -= 1;
            }
        }
    }
    flow
}

/// How two conditions become one.
struct Joins {
    steps: [Option<Step>; 2],
    end: End,
}

/// `next` is come to where the block before does not lead to `other`. With `or` that is where its condition does not hold.
fn joins(next: &Block, other: To, or: bool) -> Option<Joins> {
    let End::If { then, otherwise } = next.end else { return None };
    let join = if or { Step::Or } else { Step::And };
    let (steps, rest) = match (then == other, otherwise == other) {
        (true, _) => ([(!or).then_some(Step::Not), Some(join)], otherwise),
        (_, true) => ([or.then_some(Step::Not), Some(join)], then),
        _ => return None,
    };
    let end = if or { End::If { then: other, otherwise: rest } } else { End::If { then: rest, otherwise: other } };
    Some(Joins { steps, end })
}

/// Whether a block may be run where it need not be, behind another.
fn is_cheap(next: &Block, block: &Block) -> bool {
    if next.steps.len() + block.steps.len() > STEPS {
        return false;
    }
    let new = if asks_length(block) { 0 } else { LOADS };
    // Those behind X are the same only where X is.
    let sets_x = [next, block].iter().flat_map(|it| &it.steps).any(|(step, _)| step.sets() == Some(Register::X));
    let mut made = BTreeSet::new();
    let mut count = |block: &Block| {
        let loads = block.steps.iter().filter_map(|(step, _)| match *step {
            Step::Do(Op::Load { at, size }) => Some((false, at, size)),
            Step::Do(Op::Header { at }) => Some((false, at, 1)),
            // Of the type and of what is behind it.
            Step::Do(Op::Protocol) => Some((false, 12, 2)),
            Step::Do(Op::LoadBehind { at, size }) => Some((true, at, size)),
            _ => None,
        });
        loads.filter(|&load| made.insert(load) || sets_x && load.0).count()
    };
    count(block);
    count(next) <= new
}

/// Whether the packet's length is what a block asks for last. What it is for is not done before it is known.
fn asks_length(block: &Block) -> bool {
    let asked = block.steps.iter().rev().find_map(|(step, _)| match step {
        Step::Ask { asked, .. } => Some(asked),
        _ => None,
    });
    matches!(asked, Some(Asked::Shorter(_) | Asked::ShorterThanX { .. }))
}

/// How many edges lead to each block, from those that are come to.
fn edges(flow: &Flow) -> Vec<usize> {
    let mut edges = vec![0; flow.blocks.len()];
    let reached = flow.reached();
    for (block, _) in flow.blocks.iter().zip(reached).filter(|(_, reached)| *reached) {
        block.end.targets().filter_map(To::block).for_each(|to| edges[to] += 1);
    }
    edges
}

/// The blocks that are come to, each behind those that it leads to, but for those that lead back.
fn order(flow: &Flow) -> Vec<usize> {
    let (mut order, mut seen) = (Vec::new(), vec![false; flow.blocks.len()]);
    let mut work = vec![(0, 0)];
    seen[0] = true;
    while let Some((block, next)) = work.last_mut() {
        match flow.blocks[*block].end.targets().nth(*next) {
            Some(to) => {
                *next += 1;
                if let Some(to) = to.block()
                    && !std::mem::replace(&mut seen[to], true)
                {
                    work.push((to, 0));
                }
            }
            None => {
                order.push(*block);
                work.pop();
            }
        }
    }
    order
}
