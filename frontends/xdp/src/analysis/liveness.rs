//! Backward liveness analysis of the IR: which operations of each block are needed, and which
//! variables it must set. The high half of a register exists only if something reads it.

use std::collections::{BTreeSet, HashMap};

use crate::analysis::domain::pseudo_registers::REDIRECT_TARGET;
use crate::analysis::program::{Block, Terminator};
use crate::ir::{BlockCode, FieldAlias, Id, Op, Variable};

/// Live parts of a block.
pub(crate) struct BlockLiveness {
    /// Whether each operation is needed.
    pub live_ops: Vec<bool>,
    /// Variables to set at the end of the block, with their values.
    pub outputs: Vec<(Variable, Id)>,
    /// Whether the taken and the other successor of its branch use any of the outputs.
    pub arm_uses_outputs: [bool; 2],
}

/// A set of variables, by number.
type BitSet = Vec<u64>;

/// The program's return value, in r0.
pub(crate) const RESULT: Variable = Variable::Register { frame: 0, register: 0, half: 0 };
/// The target of the last redirect, which leaves the program with its return value.
pub(crate) const REDIRECT: Variable = Variable::Register { frame: 0, register: REDIRECT_TARGET, half: 0 };

/// Map loads whose value is live.
pub(crate) fn observed_loads(blocks: &[Block], needed: &[BlockLiveness]) -> BTreeSet<u32> {
    let of_block = |(block, needed): (&Block, &BlockLiveness)| {
        let own = block.code.field_aliases.values().filter(|alias| alias.is_loaded_here);
        let is_needed =
            |alias: &&FieldAlias| needed.live_ops[alias.number.0 as usize] || needed.live_ops[alias.number.1 as usize];
        own.filter(is_needed).map(|alias| alias.load).collect::<Vec<_>>()
    };
    blocks.iter().zip(needed).flat_map(of_block).collect()
}

/// Computes the liveness of each block, and the words of private copies that are live at entry, as
/// (map, word). Slots of frames that `indexed_frames` marks are memory, not variables. A worklist
/// over the blocks runs until no live-in set grows.
pub(crate) fn analyze(blocks: &[Block], indexed_frames: &[bool]) -> (Vec<BlockLiveness>, Vec<(u16, u16)>) {
    let mut numbers: HashMap<Variable, usize> = HashMap::new();
    let mut number = |var: Variable| {
        let next = numbers.len();
        *numbers.entry(var).or_insert(next)
    };
    let computed: Vec<Vec<(Variable, Id)>> =
        blocks.iter().map(|block| defined_variables(block, indexed_frames)).collect();
    let mut vars: Vec<Vec<(usize, Id)>> = Vec::new();
    for (block, computed) in blocks.iter().zip(&computed) {
        vars.push(computed.iter().map(|&(var, id)| (number(var), id)).collect());
        for op in &block.code.ops {
            if let Op::Variable(var) = op {
                number(*var);
            }
        }
    }
    let result = [number(RESULT), number(REDIRECT)];
    let length = numbers.len().div_ceil(64);
    let mut live_in: Vec<BitSet> = vec![vec![0; length]; blocks.len()];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for (number, block) in blocks.iter().enumerate() {
        successors(&block.terminator).for_each(|to| before[to].push(number));
    }
    let live_out = |block: &Block, live_in: &[BitSet]| {
        let mut live = vec![0; length];
        successors(&block.terminator).for_each(|to| live.iter_mut().zip(&live_in[to]).for_each(|(all, it)| *all |= it));
        if matches!(block.terminator, Terminator::Exit) {
            result.iter().for_each(|&var| insert(&mut live, var));
        }
        live
    };
    let ops_of = |at: usize, live: &BitSet| {
        let vars = vars[at].iter().filter(|(var, _)| contains(live, *var));
        live_ops(&blocks[at], vars.map(|(_, id)| *id))
    };
    let mut work: Vec<usize> = (0..blocks.len()).collect();
    let mut queued = vec![true; blocks.len()];
    while let Some(at) = work.pop() {
        queued[at] = false;
        let block = &blocks[at];
        let mut live = live_out(block, &live_in);
        let ops = ops_of(at, &live);
        vars[at].iter().for_each(|&(var, _)| remove(&mut live, var));
        for (op, _) in block.code.ops.iter().zip(&ops).filter(|(_, needed)| **needed) {
            if let Op::Variable(var) = op {
                insert(&mut live, numbers[var]);
            }
        }
        if live != live_in[at] {
            live_in[at] = live;
            for &from in &before[at] {
                if !std::mem::replace(&mut queued[from], true) {
                    work.push(from);
                }
            }
        }
    }
    let mut all = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let live = live_out(block, &live_in);
        let ops = ops_of(at, &live);
        let is_set = |(var, id): &&(Variable, Id)| {
            contains(&live, numbers[var]) && block.code.ops[*id as usize] != Op::Variable(*var)
        };
        let sets: Vec<(Variable, Id)> = if matches!(block.terminator, Terminator::Exit) {
            Vec::new()
        } else {
            computed[at].iter().filter(is_set).copied().collect()
        };
        let uses_outputs = |to: usize| sets.iter().any(|(var, _)| contains(&live_in[to], numbers[var]));
        let arm_uses_outputs = match block.terminator {
            Terminator::Branch(_, taken, fallen) => [taken, fallen].map(uses_outputs),
            Terminator::Goto(_) | Terminator::Exit => [false; 2],
        };
        all.push(BlockLiveness { live_ops: ops, outputs: sets, arm_uses_outputs });
    }
    let first = numbers.iter().filter(|(_, number)| contains(&live_in[0], **number));
    let mut first: Vec<(u16, u16)> = first
        .filter_map(|(var, _)| match *var {
            Variable::PrivateWord { map, word } => Some((map, word)),
            _ => None,
        })
        .collect();
    first.sort_unstable();
    (all, first)
}

pub(crate) fn successors(end: &Terminator) -> impl Iterator<Item = usize> {
    match *end {
        Terminator::Exit => [None, None],
        Terminator::Goto(to) => [Some(to), None],
        Terminator::Branch(_, taken, fallen) => [Some(taken), Some(fallen)],
    }
    .into_iter()
    .flatten()
}

fn insert(set: &mut BitSet, number: usize) {
    set[number / 64] |= 1 << (number % 64);
}

fn remove(set: &mut BitSet, number: usize) {
    set[number / 64] &= !(1 << (number % 64));
}

fn contains(set: &BitSet, number: usize) -> bool {
    set[number / 64] >> (number % 64) & 1 != 0
}

/// The variables that a block gives a value. Words of indexed frames are not variables.
pub(crate) fn defined_variables(block: &Block, indexed_frames: &[bool]) -> Vec<(Variable, Id)> {
    let mut all = block.exit_state.loaded_variables();
    all.retain(|(var, _)| !matches!(var, Variable::Stack { frame, .. } if indexed_frames[usize::from(*frame)]));
    all.extend(&block.code.amounts);
    all.extend(block.code.carried_reads.iter().map(|(&var, &id)| (var, id)));
    all.extend(block.code.private_words.iter().map(|(&(map, word), &id)| (Variable::PrivateWord { map, word }, id)));
    all
}

/// The operations of a block that are needed if the operations `roots` are.
pub(crate) fn live_ops(block: &Block, roots: impl Iterator<Item = Id>) -> Vec<bool> {
    let code = &block.code;
    let mut needed = vec![false; code.ops.len()];
    let mut work: Vec<Id> = Vec::new();
    work.extend((0..).zip(&code.ops).filter(|(_, op)| BlockCode::has_side_effect(op)).map(|(id, _)| id as Id));
    if let Terminator::Branch(condition, ..) = block.terminator {
        work.push(condition);
    }
    work.extend(roots);
    while let Some(id) = work.pop() {
        let id = code.replaced_loads.get(&id).copied().unwrap_or(id);
        if !std::mem::replace(&mut needed[id as usize], true) {
            work.extend(BlockCode::operands(&code.ops[id as usize]));
        }
    }
    needed
}
