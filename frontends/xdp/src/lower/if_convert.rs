//! If-conversion of short-circuit conditions.
//!
//! C's `&&` and `||` are jumps in BPF: a chain of blocks that share one successor. If such a block
//! only computes, it is executed speculatively with its predecessor and the two conditions become
//! one. That saves a branch on every device, and a flag if the shared successor is reached from
//! several places.

use crate::analysis::liveness::{BlockLiveness, successors};
use crate::analysis::program::Block;
use crate::ir::{BinaryOp, Op};

/// Upper bound on operations and outputs of a block that is executed speculatively.
const MAX_SPECULATED_OPS: usize = 12;

/// Upper bound on blocks merged into one; `program::facts` draws no conclusion from more
/// conditions.
const MAX_MERGED_BLOCKS: usize = 7;

/// A block that is merged into a predecessor, and how the conditions combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MergedBlock {
    pub block: usize,
    /// Whether both conditions must hold, or either.
    pub is_and: bool,
    /// Whether the block's condition is negated.
    pub negated: bool,
}

/// Result of the pass.
#[derive(Debug, Default)]
pub(crate) struct IfConversion {
    /// Blocks merged into each block, in order.
    pub merged: Vec<Vec<MergedBlock>>,
    /// Successors of each block; of two, the first is taken if the combined condition is true.
    pub successors: Vec<Vec<usize>>,
}

/// Merges conditions where that is possible.
pub(crate) fn run(blocks: &[Block], needed: &[BlockLiveness]) -> IfConversion {
    let block_successors = |block: &Block| {
        let mut successors: Vec<usize> = successors(&block.terminator).collect();
        // Both arms may lead to the same block.
        successors.dedup();
        successors
    };
    let mut successors: Vec<Vec<usize>> = blocks.iter().map(block_successors).collect();
    let mut merged = vec![Vec::new(); blocks.len()];
    // Number of predecessors; the entry block has one more.
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
                // The shared successor must not use outputs of a block that control may not have
                // reached.
                (!needed[next].arm_uses_outputs[side]).then_some((
                    next,
                    shared,
                    is_yes,
                    side,
                    [first, second][1 - side],
                ))
            });
            let Some((next, shared, is_yes, side, other)) = found else { break };
            // On the true edge of the predecessor both conditions guard the other successor; on the
            // false edge either guards the shared one.
            merged[block].push(MergedBlock { block: next, is_and: is_yes, negated: (side == 0) == is_yes });
            successors[block] = if is_yes { vec![other, shared] } else { vec![shared, other] };
            successors[next].clear();
            predecessor_counts[shared] -= 1;
            is_taken[next] = true;
        }
    }
    IfConversion { merged, successors }
}

/// Whether a block does nothing but compute a little for its condition. Its outputs must be
/// constants or variables: facts about a value computed under the earlier condition, a loop counter
/// for example, are derived from that condition.
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
