//! Conditions of blocks one behind the other, made one. C's `&&` and `||` are jumps in BPF, and each is a block that shares where
//! it leads to with the one before. Where such a block only computes, it is done with the one before at once, and both conditions
//! are one: a branch less, for every device; and a flag less, where what they share is led to from several places.

use crate::analysis::fixpoint::Block;
use crate::lower::ir::{Binary, Op};
use crate::lower::liveness::{Needed, successors};

/// Computations, and variables that are set, of a block that is done before it is known whether control comes to it.
const COMPUTATIONS: usize = 12;

/// Blocks that are done with another: of more conditions no conclusion is drawn (`program::facts`).
const BLOCKS: usize = 7;

/// A block that is done with the one before it, and what its condition is to that one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub block: usize,
    /// Both, or either.
    pub is_and: bool,
    /// The opposite of its condition.
    pub negated: bool,
}

/// How blocks go on, once conditions are joined.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// By block: what is done with it, in order.
    pub links: Vec<Vec<Link>>,
    /// Where it goes on: first where the condition is true.
    pub successors: Vec<Vec<usize>>,
}

/// Joins conditions.
pub(crate) fn join(blocks: &[Block], needed: &[Needed]) -> Joined {
    let of_block = |block: &Block| {
        let mut successors: Vec<usize> = successors(&block.end).collect();
        // Both arms may lead to the same place.
        successors.dedup();
        successors
    };
    let mut successors: Vec<Vec<usize>> = blocks.iter().map(of_block).collect();
    let mut links = vec![Vec::new(); blocks.len()];
    // Blocks that lead to each; to the first, the outside does.
    let mut ways = vec![0; blocks.len()];
    ways[0] = 1;
    successors.iter().flatten().for_each(|&to| ways[to] += 1);
    let only_computes: Vec<bool> = blocks.iter().zip(needed).map(|it| only_computes(it.0, it.1)).collect();
    let mut is_taken = vec![false; blocks.len()];
    for block in 0..blocks.len() {
        while links[block].len() < BLOCKS && !is_taken[block] {
            let &[yes, no] = successors[block].as_slice() else { break };
            let found = [(yes, no, true), (no, yes, false)].into_iter().find_map(|(next, shared, is_yes)| {
                let &[first, second] = successors[next].as_slice() else { return None };
                let joins = only_computes[next] && ways[next] == 1 && next != block && links[next].is_empty();
                let side = [first, second].iter().position(|&to| to == shared).filter(|_| joins)?;
                // What it sets must be of no interest where control would not have come by it.
                (!needed[next].asked[side]).then_some((next, shared, is_yes, side, [first, second][1 - side]))
            });
            let Some((next, shared, is_yes, side, other)) = found else { break };
            // Behind `yes` both have to hold for the other way; behind `no` either for the shared one.
            links[block].push(Link { block: next, is_and: is_yes, negated: (side == 0) == is_yes });
            successors[block] = if is_yes { vec![other, shared] } else { vec![shared, other] };
            successors[next].clear();
            ways[shared] -= 1;
            is_taken[next] = true;
        }
    }
    Joined { links, successors }
}

/// Whether a block does nothing but compute a little, for its condition. What it sets must be there already: what is worked out
/// where it is known that the condition before it holds is worked out from that, a loop's counter for example.
fn only_computes(block: &Block, needed: &Needed) -> bool {
    let is_free = |op: &Op| matches!(op, Op::Known(_) | Op::Truth(_) | Op::Var(_));
    let computes = |op: &Op| match op {
        Op::Binary(op, ..) => !matches!(op, Binary::Div | Binary::Rem),
        Op::Not(_) | Op::Select(..) | Op::Swap16(_) | Op::Swap32(_) | Op::Whole(..) | Op::Half(..) => true,
        _ => is_free(op),
    };
    let ops = block.code.ops.iter().zip(&needed.ops).filter(|(_, needed)| **needed).map(|(op, _)| op);
    let count = ops.clone().filter(|op| !is_free(op)).count() + needed.sets.len();
    let sets_free = needed.sets.iter().all(|(_, id)| is_free(&block.code.ops[*id as usize]));
    count <= COMPUTATIONS && sets_free && ops.clone().all(computes)
}
