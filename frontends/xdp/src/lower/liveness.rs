//! What is asked for: of each block the computations that are needed, and the variables that others ask it for. So halves of
//! registers are there only where somebody reads them.

use std::collections::{BTreeSet, HashMap};

use crate::analysis::fixpoint::{Block, End};
use crate::analysis::transfer::TARGET;
use crate::lower::ir::{Code, Held, Id, Op, Var};

/// A block as it is to be written.
pub(crate) struct Needed {
    /// By computation.
    pub ops: Vec<bool>,
    /// Variables that are set at its end.
    pub sets: Vec<(Var, Id)>,
    /// Whether any of these is asked for where its branch leads to, by arm.
    pub asked: [bool; 2],
}

/// A set of variables by their numbers.
type Set = Vec<u64>;

pub(crate) const RESULT: Var = Var::Register { frame: 0, register: 0, half: 0 };
pub(crate) const REDIRECTED: Var = Var::Register { frame: 0, register: TARGET, half: 0 };

/// The loads of maps' values whose numbers are needed.
pub(crate) fn observed(blocks: &[Block], needed: &[Needed]) -> BTreeSet<u32> {
    let of_block = |(block, needed): (&Block, &Needed)| {
        let own = block.code.held.values().filter(|held| held.is_own);
        let is_needed = |held: &&Held| needed.ops[held.number.0 as usize] || needed.ops[held.number.1 as usize];
        own.filter(is_needed).map(|held| held.load).collect::<Vec<_>>()
    };
    blocks.iter().zip(needed).flat_map(of_block).collect()
}

/// What is needed of each block, and which words of maps' values are from the beginning on.
pub(crate) fn needed(blocks: &[Block], memory: &[bool]) -> (Vec<Needed>, Vec<(u16, u16)>) {
    let mut numbers: HashMap<Var, usize> = HashMap::new();
    let mut number = |var: Var| {
        let next = numbers.len();
        *numbers.entry(var).or_insert(next)
    };
    let computed: Vec<Vec<(Var, Id)>> = blocks.iter().map(|block| in_variables(block, memory)).collect();
    let mut vars: Vec<Vec<(usize, Id)>> = Vec::new();
    for (block, computed) in blocks.iter().zip(&computed) {
        vars.push(computed.iter().map(|&(var, id)| (number(var), id)).collect());
        for op in &block.code.ops {
            if let Op::Var(var) = op {
                number(*var);
            }
        }
    }
    let result = [number(RESULT), number(REDIRECTED)];
    let length = numbers.len().div_ceil(64);
    let mut live_in: Vec<Set> = vec![vec![0; length]; blocks.len()];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for (number, block) in blocks.iter().enumerate() {
        successors(&block.end).for_each(|to| before[to].push(number));
    }
    let live_out = |block: &Block, live_in: &[Set]| {
        let mut live = vec![0; length];
        successors(&block.end).for_each(|to| live.iter_mut().zip(&live_in[to]).for_each(|(all, it)| *all |= it));
        if matches!(block.end, End::Exit) {
            result.iter().for_each(|&var| insert(&mut live, var));
        }
        live
    };
    let ops_of = |at: usize, live: &Set| {
        let vars = vars[at].iter().filter(|(var, _)| contains(live, *var));
        ops(&blocks[at], vars.map(|(_, id)| *id))
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
            if let Op::Var(var) = op {
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
        let is_set =
            |(var, id): &&(Var, Id)| contains(&live, numbers[var]) && block.code.ops[*id as usize] != Op::Var(*var);
        let sets: Vec<(Var, Id)> = if matches!(block.end, End::Exit) {
            Vec::new()
        } else {
            computed[at].iter().filter(is_set).copied().collect()
        };
        let asks = |to: usize| sets.iter().any(|(var, _)| contains(&live_in[to], numbers[var]));
        let asked = match block.end {
            End::Branch(_, taken, fallen) => [taken, fallen].map(asks),
            End::Goto(_) | End::Exit => [false; 2],
        };
        all.push(Needed { ops, sets, asked });
    }
    let first = numbers.iter().filter(|(_, number)| contains(&live_in[0], **number));
    let mut first: Vec<(u16, u16)> = first
        .filter_map(|(var, _)| match *var {
            Var::Own { map, word } => Some((map, word)),
            _ => None,
        })
        .collect();
    first.sort_unstable();
    (all, first)
}

pub(crate) fn successors(end: &End) -> impl Iterator<Item = usize> {
    match *end {
        End::Exit => [None, None],
        End::Goto(to) => [Some(to), None],
        End::Branch(_, taken, fallen) => [Some(taken), Some(fallen)],
    }
    .into_iter()
    .flatten()
}

fn insert(set: &mut Set, number: usize) {
    set[number / 64] |= 1 << (number % 64);
}

fn remove(set: &mut Set, number: usize) {
    set[number / 64] &= !(1 << (number % 64));
}

fn contains(set: &Set, number: usize) -> bool {
    set[number / 64] >> (number % 64) & 1 != 0
}

/// What was computed for variables; words of frames that are memory are none.
pub(crate) fn in_variables(block: &Block, memory: &[bool]) -> Vec<(Var, Id)> {
    let mut all = block.state.computed();
    all.retain(|(var, _)| !matches!(var, Var::Stack { frame, .. } if memory[usize::from(*frame)]));
    all.extend(&block.code.amounts);
    all.extend(block.code.carried.iter().map(|(&var, &id)| (var, id)));
    all.extend(block.code.own.iter().map(|(&(map, word), &id)| (Var::Own { map, word }, id)));
    all
}

/// The computations of a block that are needed, where these are asked for behind it.
pub(crate) fn ops(block: &Block, asked: impl Iterator<Item = Id>) -> Vec<bool> {
    let code = &block.code;
    let mut needed = vec![false; code.ops.len()];
    let mut work: Vec<Id> = Vec::new();
    work.extend((0..).zip(&code.ops).filter(|(_, op)| Code::stays(op)).map(|(id, _)| id as Id));
    if let End::Branch(condition, ..) = block.end {
        work.push(condition);
    }
    work.extend(asked);
    while let Some(id) = work.pop() {
        let id = code.aliases.get(&id).copied().unwrap_or(id);
        if !std::mem::replace(&mut needed[id as usize], true) {
            work.extend(Code::operands(&code.ops[id as usize]));
        }
    }
    needed
}
