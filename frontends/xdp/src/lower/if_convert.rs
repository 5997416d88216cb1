//! Conditions of blocks one behind the other, made one. C's `&&` and `||` are jumps in BPF, and each is a block that shares where
//! it leads to with the one before. Where such a block only computes, it is done with the one before at once, and both conditions
//! are one: a branch less, for every device; and a flag less, where what they share is led to from several places.

use crate::lang::xdp::analysis::fixpoint::Block;
use crate::lang::xdp::lower::ir::{BinaryOp, Op};
use crate::lang::xdp::lower::liveness::{BlockLiveness, successors};

/// Computations, and variables that are set, of a block that is done before it is known whether control comes to it.
const MAX_SPECULATED_OPS: usize = 12;

/// Blocks that are done with another: of more conditions no conclusion is drawn (`program::facts`).
const MAX_MERGED_BLOCKS: usize = 7;

/// A block that is done with the one before it, and what its condition is to that one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MergedBlock {
    pub block: usize,
    /// Both, or either.
    pub is_and: bool,
    /// The opposite of its condition.
    pub negated: bool,
}

/// How blocks go on, once conditions are joined.
#[derive(Debug, Default)]
pub(crate) struct IfConversion {
    /// By block: what is done with it, in order.
    pub merged: Vec<Vec<MergedBlock>>,
    /// Where it goes on: first where the condition is true.
    pub successors: Vec<Vec<usize>>,
}

/// Joins conditions.
pub(crate) fn run(blocks: &[Block], needed: &[BlockLiveness]) -> IfConversion {
    let block_successors = |block: &Block| {
        let mut successors: Vec<usize> = successors(&block.terminator).collect();
        // Both arms may lead to the same place.
        successors.dedup();
        successors
    };
    let mut successors: Vec<Vec<usize>> = blocks.iter().map(block_successors).collect();
    let mut merged = vec![Vec::new(); blocks.len()];
    // Blocks that lead to each; to the first, the outside does.
    let mut predecessor_counts = vec![0; blocks.len()];
    predecessor_counts[0] = 1;
    successors.iter().flatten().for_each(|&to| predecessor_counts[to] += 1);
    let is_speculatable: Vec<bool> = blocks.iter().zip(needed).map(|it| is_speculatable(it.0, it.1)).collect();
    let mut is_taken = vec![false; blocks.len()];
    for block in 0..blocks.len() {
        while merged[block].len() < MAX_MERGED_BLOCKS && !is_taken[block] {
            let &[yes, no] = successors[block].as_slice() else { break };
            let found = [(yes, no, true), (no, yes, false)].into_iter().find_map(|(next, shared, is_yes)| {
                let &[first, second] = successors[next].as_slice() else { return None };
                let joins =
                    is_speculatable[next] && predecessor_counts[next] == 1 && next != block && merged[next].is_empty();
                let side = [first, second].iter().position(|&to| to == shared).filter(|_| joins)?;
                // What it sets must be of no interest where control would not have come by it.
                (!needed[next].arm_uses_outputs[side]).then_some((
                    next,
                    shared,
                    is_yes,
                    side,
                    [first, second][1 - side],
                ))
            });
            let Some((next, shared, is_yes, side, other)) = found else { break };
            // Behind `yes` both have to hold for the other way; behind `no` either for the shared one.
            merged[block].push(MergedBlock { block: next, is_and: is_yes, negated: (side == 0) == is_yes });
            successors[block] = if is_yes { vec![other, shared] } else { vec![shared, other] };
            successors[next].clear();
            predecessor_counts[shared] -= 1;
            is_taken[next] = true;
        }
    }
    IfConversion { merged, successors }
}

/// Whether a block does nothing but compute a little, for its condition. What it sets must be there already: what is worked out
/// where it is known that the condition before it holds is worked out from that, a loop's counter for example.
fn is_speculatable(block: &Block, needed: &BlockLiveness) -> bool {
    let is_free = |op: &Op| matches!(op, Op::Constant(_) | Op::Bool(_) | Op::Variable(_));
    let computes = |op: &Op| match op {
        Op::Binary(op, ..) => !matches!(op, BinaryOp::Div | BinaryOp::Rem),
        Op::Not(_) | Op::Select(..) | Op::Swap16(_) | Op::Swap32(_) | Op::Join64(..) | Op::Half(..) => true,
        _ => is_free(op),
    };
    let ops = block.code.ops.iter().zip(&needed.live_ops).filter(|(_, needed)| **needed).map(|(op, _)| op);
    let count = ops.clone().filter(|op| !is_free(op)).count() + needed.outputs.len();
    let sets_free = needed.outputs.iter().all(|(_, id)| is_free(&block.code.ops[*id as usize]));
    count <= MAX_SPECULATED_OPS && sets_free && ops.clone().all(computes)
}
