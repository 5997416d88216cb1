//! Words of maps that are kept from block to block: where every way to a block has read one, and has written nothing to its
//! map since, the block has it from a variable. A read of memory is dear where lanes go to different places, and a driver in
//! software makes a loop of each. What other packets write meanwhile is not seen then, as nobody is promised that it is.

use std::collections::HashMap;
use std::rc::Rc;

use super::code::{Argument, Binary, Call, Code, Effect, Id, Op, Var};
use super::flow::{Flow, Numbers};
use super::live::{in_variables, successors};

/// Steps of the computation of a place, at most: an entry's number times its size, and words.
const MOST_PARTS: usize = 15;

/// Names by which a word is given on, at most.
const MOST_NAMES: usize = 4;

/// A word of a map: the function that reads it, and where, by what is in variables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Word {
    function: Rc<str>,
    /// Operations before their operands.
    at: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Known(u32),
    Var(Var),
    Binary(Binary),
}

impl Word {
    /// Whether a function may write to it: a map's functions are called by its name.
    fn is_written_by(&self, function: &str) -> bool {
        let own = &self.function[OWN.len()..self.function.len() - GET.len()];
        let function = function.strip_prefix(OWN).unwrap_or(function);
        function.strip_prefix(own).is_some_and(|rest| rest.starts_with('_'))
    }

    fn has(&self, var: Var) -> bool {
        self.at.contains(&Part::Var(var))
    }
}

/// `x_NAME_get` reads a word.
const OWN: &str = "x_";
const GET: &str = "_get";

/// Words by their numbers, one of which the others follow.
type Set = Vec<u64>;

/// What a block does with words.
struct Block {
    /// Those that it reads as they were when it began.
    reads: Vec<(Id, u32)>,
    /// Those that it has read as they are when it ends.
    gives: Vec<(Id, u32)>,
    /// Functions that write, and variables that it sets.
    writes: Vec<Rc<str>>,
    sets: Vec<Var>,
}

/// Has words that are read again kept in variables.
pub(super) fn keep(flow: &mut Flow) {
    let mut words: Numbers<Word> = Numbers::from(0);
    let blocks: Vec<Block> = flow.blocks.iter().map(|it| block(it, &flow.shared.memory, &mut words)).collect();
    let words = words.all();
    // A variable has a number of 16 bits.
    if words.is_empty() || words.len() > usize::from(u16::MAX) {
        return;
    }
    let arriving = arriving(flow, &blocks, words);
    let mut is_kept = vec![false; words.len()];
    for ((it, block), arriving) in flow.blocks.iter_mut().zip(&blocks).zip(&arriving) {
        for &(id, word) in block.reads.iter().filter(|(_, word)| contains(arriving, *word)) {
            it.code.ops[id as usize] = Op::Var(Var::Kept(word as u16));
            is_kept[word as usize] = true;
        }
    }
    for (it, block) in flow.blocks.iter_mut().zip(blocks) {
        let kept = block.gives.into_iter().filter(|(_, word)| is_kept[*word as usize]);
        it.kept = kept.map(|(id, word)| (Var::Kept(word as u16), id)).collect();
    }
}

fn block(block: &super::flow::Block, memory: &[bool], words: &mut Numbers<Word>) -> Block {
    let code = &block.code;
    let at_end = in_variables(block, memory);
    let is_new = |(var, id): &(Var, Id)| code.ops[*id as usize] != Op::Var(*var);
    let sets: Vec<Var> = at_end.iter().filter(|it| is_new(it)).map(|(var, _)| *var).collect();
    let mut held: HashMap<Id, Vec<Var>> = HashMap::new();
    at_end.iter().for_each(|&(var, id)| held.entry(id).or_default().push(var));
    let calls = || (0..).zip(&code.ops).filter_map(|(id, op)| Some(id).zip(as_call(op)));
    let writes: Vec<(Id, Rc<str>)> =
        calls().filter(|(_, it)| it.effect == Effect::Writes).map(|(id, it)| (id, it.function.clone())).collect();
    let written = |word: &Word, from: Id, to: Id| {
        let mut between = writes.iter().filter(|(id, _)| (from..to).contains(id));
        between.any(|(_, function)| word.is_written_by(function))
    };
    let (mut reads, mut gives) = (Vec::new(), Vec::new());
    for (id, call) in calls() {
        let Some(at) = place(call).filter(|_| !code.aliases.contains_key(&id)) else { continue };
        let word = |held: &dyn Fn(Id) -> Option<Var>| {
            let mut parts = Vec::new();
            let is_told = told(code, at, held, &mut parts);
            is_told.then(|| Word { function: call.function.clone(), at: parts })
        };
        let before = |id: Id| match code.ops[id as usize] {
            Op::Var(var) => Some(var),
            _ => None,
        };
        if let Some(word) = word(&before).filter(|word| !written(word, 0, id)) {
            reads.push((id, words.of(word)));
        }
        // A pointer may be in several registers: others may know the word by any.
        for name in 0..MOST_NAMES {
            let behind = |id: Id| match held.get(&id) {
                Some(vars) => Some(vars[name.min(vars.len() - 1)]),
                None => before(id).filter(|var| !sets.contains(var)),
            };
            let Some(word) = word(&behind).filter(|word| !written(word, id, Id::MAX)) else { break };
            let given = (id, words.of(word));
            if gives.last() == Some(&given) {
                break;
            }
            gives.push(given);
        }
    }
    Block { reads, gives, writes: writes.into_iter().map(|(_, function)| function).collect(), sets }
}

fn as_call(op: &Op) -> Option<&Call> {
    match op {
        Op::Call(call) => Some(call),
        _ => None,
    }
}

/// Where a call reads a word of a map, if that is what it does.
fn place(call: &Call) -> Option<Id> {
    let is_one = call.effect == Effect::Reads && call.function.starts_with(OWN) && call.function.ends_with(GET);
    match call.arguments[..] {
        [Argument::One(at)] if is_one => Some(at),
        _ => None,
    }
}

/// Says a computation by what is in variables, as `held` has them; whether that can be done.
fn told(code: &Code, id: Id, held: &dyn Fn(Id) -> Option<Var>, parts: &mut Vec<Part>) -> bool {
    if parts.len() >= MOST_PARTS {
        return false;
    }
    let id = code.aliases.get(&id).copied().unwrap_or(id);
    if let Some(value) = code.value(id) {
        parts.push(Part::Known(value));
        return true;
    }
    if let Some(var) = held(id) {
        parts.push(Part::Var(var));
        return true;
    }
    match code.ops[id as usize] {
        Op::Binary(op, a, b) => {
            parts.push(Part::Binary(op));
            told(code, a, held, parts) && told(code, b, held, parts)
        }
        _ => false,
    }
}

/// The words that are in variables at the beginning of each block, whatever the way there.
fn arriving(flow: &Flow, blocks: &[Block], words: &[Word]) -> Vec<Set> {
    let length = words.len().div_ceil(64);
    let stays = |block: &Block| {
        let mut stays = vec![0; length];
        let is_lost = |word: &Word| {
            block.sets.iter().any(|var| word.has(*var)) || block.writes.iter().any(|it| word.is_written_by(it))
        };
        (0..).zip(words).filter(|(_, word)| !is_lost(word)).for_each(|(number, _)| insert(&mut stays, number));
        stays
    };
    let stays: Vec<Set> = blocks.iter().map(stays).collect();
    let mut arriving = vec![vec![u64::MAX; length]; blocks.len()];
    arriving[0] = vec![0; length];
    let mut work: Vec<usize> = (0..blocks.len()).rev().collect();
    let mut queued = vec![true; blocks.len()];
    while let Some(at) = work.pop() {
        queued[at] = false;
        let mut leaving: Set = arriving[at].iter().zip(&stays[at]).map(|(here, stays)| here & stays).collect();
        blocks[at].gives.iter().for_each(|&(_, word)| insert(&mut leaving, word));
        for to in successors(&flow.blocks[at].end) {
            let now: Set = arriving[to].iter().zip(&leaving).map(|(there, leaving)| there & leaving).collect();
            if now != arriving[to] {
                arriving[to] = now;
                if !std::mem::replace(&mut queued[to], true) {
                    work.push(to);
                }
            }
        }
    }
    arriving
}

fn insert(set: &mut Set, number: u32) {
    set[number as usize / 64] |= 1 << (number % 64);
}

fn contains(set: &Set, number: u32) -> bool {
    set[number as usize / 64] >> (number % 64) & 1 != 0
}
