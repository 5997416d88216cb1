//! Merges a branch into its predecessor if both share a target, so that two conditions become one
//! (LLVM's `FoldBranchToCommonDest`, GCC's ifcombine).
//!
//! The successor's steps are speculated: they run even if the predecessor's condition decides
//! alone. That is safe because steps only write registers; a step that writes a register that is
//! live at the shared target prevents the merge. A long list of `or` becomes one condition instead
//! of a branch for each host, which devices without jumps could not take.

use std::collections::BTreeSet;

use super::cfg::{Block, Cfg, Predicate, Step, Target, Terminator};
use super::dataflow;
use super::instruction::{Op, Register};

/// Maximum number of packet loads to speculate in one merge; loads that the predecessor has made
/// already do not count.
const MAX_SPECULATED_LOADS: usize = 1;

/// Maximum number of steps of a merged block.
const MAX_BLOCK_STEPS: usize = 256;

/// Merges all branches of `cfg` that can be merged.
pub(super) fn merge_branches(mut cfg: Cfg) -> Cfg {
    cfg.thread_jumps();
    let live = dataflow::live_in(&cfg);
    let mut in_degrees = in_degrees(&cfg);
    let writes_are_dead = |block: usize, target: Target, cfg: &Cfg| {
        let Some(target) = target.block() else { return true };
        let mut written = cfg.blocks[block].steps.iter().filter_map(|(step, _)| step.defined_register());
        written.all(|register| !live[target].contains(register))
    };
    // Successors first: what merges there is a single block for its predecessors.
    for block in post_order(&cfg) {
        while let Terminator::Branch { then, otherwise } = cfg.blocks[block].terminator {
            let candidate =
                [(otherwise, then, true), (then, otherwise, false)].into_iter().find_map(|(next, shared, or)| {
                    let next = next.block().filter(|&next| next != block && next != 0 && in_degrees[next] == 1)?;
                    let merged = merge_conditions(&cfg.blocks[next], shared, or)?;
                    let can_speculate = can_speculate(&cfg.blocks[next], &cfg.blocks[block]);
                    (can_speculate && writes_are_dead(next, shared, &cfg)).then_some((next, shared, merged))
                });
            let Some((next, shared, merged)) = candidate else { break };
            let number = cfg.blocks[block].steps.last().map_or(0, |(_, number)| *number);
            // The only edge to `next` disappears, so it may be left empty.
            let emptied = Block { steps: Vec::new(), terminator: Terminator::Return };
            let mut steps = std::mem::replace(&mut cfg.blocks[next], emptied).steps;
            let into = &mut cfg.blocks[block];
            into.steps.append(&mut steps);
            for step in merged.steps.into_iter().flatten() {
                match into.steps.last_mut() {
                    Some((Step::Test { expected, .. }, _)) if step == Step::Not => *expected = !*expected,
                    _ => into.steps.push((step, number)),
                }
            }
            into.terminator = merged.terminator;
            // Two edges to the shared target became one.
            if let Some(shared) = shared.block() {
                in_degrees[shared] -= 1;
            }
        }
    }
    cfg
}

/// The end of a merged block: the steps that combine both conditions, and its terminator.
struct MergedBranch {
    steps: [Option<Step>; 2],
    terminator: Terminator,
}

/// Combines the condition of `next` with that of its predecessor, whose other target is `shared`.
/// The predecessor goes to `shared` if its condition holds (`or`) or does not hold (`!or`).
fn merge_conditions(next: &Block, shared: Target, or: bool) -> Option<MergedBranch> {
    let Terminator::Branch { then, otherwise } = next.terminator else { return None };
    let combine = if or { Step::Or } else { Step::And };
    let (steps, other) = match (then == shared, otherwise == shared) {
        (true, _) => ([(!or).then_some(Step::Not), Some(combine)], otherwise),
        (_, true) => ([or.then_some(Step::Not), Some(combine)], then),
        _ => return None,
    };
    let (then, otherwise) = if or { (shared, other) } else { (other, shared) };
    Some(MergedBranch { steps, terminator: Terminator::Branch { then, otherwise } })
}

/// Whether `next` is cheap enough to run after `block` unconditionally.
fn can_speculate(next: &Block, block: &Block) -> bool {
    if next.steps.len() + block.steps.len() > MAX_BLOCK_STEPS {
        return false;
    }
    // A length check guards the loads after it: do not run any of them before it.
    let max_loads = if ends_with_length_check(block) { 0 } else { MAX_SPECULATED_LOADS };
    // Equal indexed loads give the same value only while X does not change.
    let defines_x = |(step, _): &(Step, usize)| step.defined_register() == Some(Register::X);
    let x_changes = [next, block].iter().flat_map(|it| &it.steps).any(defines_x);
    let mut made = BTreeSet::new();
    let mut count_new_loads = |block: &Block| {
        let loads = block.steps.iter().filter_map(|(step, _)| match *step {
            Step::Op(Op::Load { offset, size }) => Some((false, offset, size)),
            Step::Op(Op::HeaderLength { offset }) => Some((false, offset, 1)),
            // Loads the EtherType and the two bytes after it.
            Step::Op(Op::Protocol) => Some((false, 12, 2)),
            Step::Op(Op::LoadIndexed { offset, size }) => Some((true, offset, size)),
            _ => None,
        });
        loads.filter(|&load| made.insert(load) || x_changes && load.0).count()
    };
    count_new_loads(block);
    count_new_loads(next) <= max_loads
}

/// Whether the last test of a block is of the packet's length.
fn ends_with_length_check(block: &Block) -> bool {
    let last_test = block.steps.iter().rev().find_map(|(step, _)| match step {
        Step::Test { predicate, .. } => Some(predicate),
        _ => None,
    });
    matches!(last_test, Some(Predicate::LengthBelow(_) | Predicate::LengthBelowX { .. }))
}

/// Number of edges into each block from reachable blocks.
fn in_degrees(cfg: &Cfg) -> Vec<usize> {
    let mut in_degrees = vec![0; cfg.blocks.len()];
    let reachable = cfg.reachable_blocks();
    for (block, _) in cfg.blocks.iter().zip(reachable).filter(|(_, reachable)| *reachable) {
        block.terminator.targets().filter_map(Target::block).for_each(|target| in_degrees[target] += 1);
    }
    in_degrees
}

/// Reachable blocks in post-order: each after its successors, except along back edges.
fn post_order(cfg: &Cfg) -> Vec<usize> {
    let (mut order, mut visited) = (Vec::new(), vec![false; cfg.blocks.len()]);
    let mut work = vec![(0, 0)];
    visited[0] = true;
    while let Some((block, next)) = work.last_mut() {
        match cfg.blocks[*block].terminator.targets().nth(*next) {
            Some(target) => {
                *next += 1;
                if let Some(target) = target.block()
                    && !std::mem::replace(&mut visited[target], true)
                {
                    work.push((target, 0));
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
