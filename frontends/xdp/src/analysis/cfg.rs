//! Control-flow graph of a function: successors, reachability, reverse post-order and block
//! leaders.

use std::collections::{BTreeSet, HashMap};

use crate::decode::linked::LinkedObject;
use crate::instruction::{CALL, EXIT, Instruction, JA, JA32, LDDW, class};

/// The successors of an instruction within its section of `count` instructions.
pub(super) fn successors_of(at: u32, it: Instruction, count: usize) -> Vec<u32> {
    let next = at + if it.code == LDDW { 2 } else { 1 };
    let mut to = Vec::new();
    match branch_target(it) {
        Some((distance, falls)) => {
            to.extend(u32::try_from(i64::from(at) + 1 + distance));
            to.extend(falls.then_some(next));
        }
        None if it.code == EXIT => {}
        None => to.push(next),
    }
    to.retain(|&to| (to as usize) < count);
    to
}

/// The instructions of a function that are reachable from its first.
pub(super) fn reachable_instructions(instructions: &[Instruction], first: u32) -> BTreeSet<u32> {
    let (mut seen, mut work) = (BTreeSet::new(), vec![first]);
    while let Some(at) = work.pop() {
        // A malformed call may name a function that starts beyond the section.
        let Some(&it) = instructions.get(at as usize) else { continue };
        if seen.insert(at) {
            work.extend(successors_of(at, it, instructions.len()));
        }
    }
    seen
}

/// Numbers the instructions of a function in reverse post-order: each before its successors, except
/// along back edges.
pub(super) fn reverse_post_order(instructions: &[Instruction], first: u32) -> HashMap<u32, u32> {
    let mut seen = BTreeSet::from([first]);
    let mut done = Vec::new();
    let successors = |at: u32| {
        instructions.get(at as usize).map(|&it| successors_of(at, it, instructions.len())).unwrap_or_default()
    };
    let mut work = vec![(first, successors(first))];
    while let Some((at, pending)) = work.last_mut() {
        // The jump target is visited before the fall-through, which therefore comes first in the
        // order.
        if pending.is_empty() {
            done.push(*at);
            work.pop();
            continue;
        }
        let to = pending.remove(0);
        if seen.insert(to) {
            work.push((to, successors(to)));
        }
    }
    done.into_iter().rev().zip(0..).collect()
}

/// The instructions of a function where blocks start: successors of jumps. Computed once a
/// function.
pub(super) fn block_leaders<'l>(
    known: &'l mut HashMap<(u32, u32), BTreeSet<u32>>,
    linked: &LinkedObject,
    section: u32,
    first: u32,
) -> &'l BTreeSet<u32> {
    known.entry((section, first)).or_insert_with(|| {
        let instructions = &linked.object.sections[section as usize].instructions;
        let jumps = reachable_instructions(instructions, first)
            .into_iter()
            .filter(|&at| branch_target(instructions[at as usize]).is_some());
        jumps.flat_map(|at| successors_of(at, instructions[at as usize], instructions.len())).collect()
    })
}

/// The distance of a jump from the next instruction, and whether it may fall through; `None` for
/// other instructions.
pub(super) fn branch_target(it: Instruction) -> Option<(i64, bool)> {
    match it.class() {
        class::JMP | class::JMP32 if it.code == JA => Some((i64::from(it.off), false)),
        class::JMP32 if it.code == JA32 => Some((i64::from(it.imm), false)),
        class::JMP | class::JMP32 if it.code != CALL && it.code != EXIT => Some((i64::from(it.off), true)),
        _ => None,
    }
}
