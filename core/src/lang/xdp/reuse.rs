//! Reads that a block before has done. Of a block that only one other leads to, what that one has read and nothing has written
//! since is there: clang reads a structure's members one by one, with a branch between one and the next, and several of them lie
//! in a word. Most compilers behind us would see as much; but where a block reads nothing any more it may only compute, and is
//! done with the one before it ([`joined`](super::joined)).
//!
//! Computations have numbers, equal ones the same, from block to block as long as one leads to the next alone (value numbering
//! on extended basic blocks: Muchnick, Advanced Compiler Design and Implementation, section 12.4).

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use super::code::{Code, Effect, Epoch, Id, Op, Var};
use super::flow::Block;
use super::live::{in_variables, successors};

/// A computation's number: equal ones have the same.
type Number = u32;

/// Of what has none yet.
const NONE: Number = Number::MAX;

/// Computations in each other that are looked through.
const DEPTH: u32 = 12;

/// Has blocks take over what those before them have read. `added` are loads that are nothing but parts of additions.
pub(super) fn run(blocks: &mut [Block], memory: &[bool], added: &BTreeSet<u32>) {
    let mut before = vec![Before::None; blocks.len()];
    if let Some(first) = before.first_mut() {
        // From outside, and perhaps from others.
        *first = Before::Several;
    }
    for (from, block) in blocks.iter().enumerate() {
        for to in successors(&block.end) {
            before[to] = match before[to] {
                Before::None => Before::One(from),
                Before::One(one) if one == from => Before::One(from),
                _ => Before::Several,
            };
        }
    }
    let mut behind = vec![Vec::new(); blocks.len()];
    for (block, before) in before.iter().enumerate() {
        if let Before::One(from) = before {
            behind[*from].push(block);
        }
    }
    let mut reuse =
        Reuse { added, numbers: HashMap::default(), next: 0, vars: Scoped::default(), reads: Scoped::default() };
    for first in (0..blocks.len()).filter(|&block| before[block] == Before::Several && !behind[block].is_empty()) {
        let epoch = reuse.epoch();
        let mut open = vec![(first, epoch)];
        // Blocks that are gone through with what follows them, and where what is known there begins.
        let mut under_way: Vec<(usize, Mark)> = Vec::new();
        while let Some((block, epoch)) = open.pop() {
            while let Some(&(last, mark)) = under_way.last()
                && before[block] != Before::One(last)
            {
                reuse.back(mark);
                under_way.pop();
            }
            under_way.push((block, reuse.mark()));
            let epoch = reuse.block(blocks, block, epoch, memory, !behind[block].is_empty());
            open.extend(behind[block].iter().map(|&block| (block, epoch)));
        }
        reuse.back(Mark::default());
    }
}

/// What leads to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    None,
    One(usize),
    Several,
}

/// What is known of keys, and what was known before.
#[derive(Debug)]
struct Scoped<K, V> {
    known: HashMap<K, V, foldhash::fast::RandomState>,
    before: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Scoped<K, V> {
    fn default() -> Self {
        Scoped { known: HashMap::default(), before: Vec::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V: Copy> Scoped<K, V> {
    fn set(&mut self, key: K, value: V) {
        let before = self.known.insert(key, value);
        self.before.push((key, before));
    }

    /// Forgets all but what was known first.
    fn back(&mut self, to: usize) {
        for (key, before) in self.before.drain(to..).rev() {
            match before {
                Some(before) => self.known.insert(key, before),
                None => self.known.remove(&key),
            };
        }
    }
}

/// How much is known.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    vars: usize,
    reads: usize,
}

struct Reuse<'a> {
    added: &'a BTreeSet<u32>,
    /// By what they are made of, in numbers.
    numbers: HashMap<(Op, Epoch), Number, foldhash::fast::RandomState>,
    next: Number,
    /// What variables hold.
    vars: Scoped<Var, Number>,
    /// Where numbers were read: the block and its computation.
    reads: Scoped<Number, (usize, Id)>,
}

impl Reuse<'_> {
    fn mark(&self) -> Mark {
        Mark { vars: self.vars.before.len(), reads: self.reads.before.len() }
    }

    fn back(&mut self, to: Mark) {
        self.vars.back(to.vars);
        self.reads.back(to.reads);
    }

    /// One that no other computation has.
    fn fresh(&mut self) -> Number {
        self.next += 1;
        self.next - 1
    }

    fn epoch(&mut self) -> Epoch {
        [self.fresh(), self.fresh()]
    }

    /// Goes through a block, which begins when the packet and the maps were last written so; and when they were in the end.
    fn block(&mut self, blocks: &mut [Block], at: usize, mut epoch: Epoch, memory: &[bool], goes_on: bool) -> Epoch {
        let code = &blocks[at].code;
        let mut numbers = vec![NONE; code.ops.len()];
        let mut carried: Vec<(Id, usize, Id)> = Vec::new();
        // Pairs are no numbers, and of loads that are parts of additions, or are made by them, nobody has a number.
        let mut stays = vec![false; code.ops.len()];
        let pairs = code.ops.iter().filter_map(|op| if let Op::Part(of, _) = op { Some(*of) } else { None });
        let held = code.held.values().filter(|held| self.added.contains(&held.load));
        let held = held.flat_map(|held| [held.number.0, held.number.1]);
        pairs.chain(held).chain(code.aliases.keys().copied()).for_each(|id| stays[id as usize] = true);
        for (id, op) in (0..).zip(&code.ops) {
            match op {
                Op::Var(var) => numbers[id as usize] = self.held(*var),
                Op::Call(call) if call.effect == Effect::Reads => {
                    let number = self.number(code, &mut numbers, id, call.epoch(epoch), DEPTH);
                    match self.reads.known.get(&number) {
                        _ if stays[id as usize] => {}
                        Some(&(from, read)) if from != at => carried.push((id, from, read)),
                        Some(_) => {}
                        None => self.reads.set(number, (at, id)),
                    }
                }
                _ => {
                    for (epoch, is_it) in epoch.iter_mut().zip(Code::writes(op)) {
                        if is_it {
                            *epoch = self.fresh();
                        }
                    }
                }
            }
        }
        if goes_on {
            for (var, id) in in_variables(&blocks[at], memory) {
                let number = self.number(&blocks[at].code, &mut numbers, id, Epoch::default(), DEPTH);
                self.vars.set(var, number);
            }
        }
        for (id, from, read) in carried {
            let var = Var::Read { block: from as u32, read };
            blocks[at].code.ops[id as usize] = Op::Var(var);
            let known = &mut blocks[from].code.carried;
            if !known.contains(&(var, read)) {
                known.push((var, read));
            }
        }
        epoch
    }

    /// What a variable holds where a block begins.
    fn held(&mut self, var: Var) -> Number {
        if let Some(&number) = self.vars.known.get(&var) {
            return number;
        }
        let number = self.fresh();
        self.vars.set(var, number);
        number
    }

    /// The number of a computation; `epoch` is when what it reads was written, if it is a call that reads.
    fn number(&mut self, code: &Code, numbers: &mut [Number], id: Id, epoch: Epoch, depth: u32) -> Number {
        if numbers[id as usize] != NONE {
            return numbers[id as usize];
        }
        let mut op = code.ops[id as usize].clone();
        let known = match &op {
            Op::Trap { .. } | Op::Keep { .. } | Op::Recall { .. } | Op::Var(_) => false,
            Op::Call(call) => call.effect != Effect::Writes,
            _ => true,
        };
        let number = if !known || depth == 0 {
            self.fresh()
        } else {
            Code::replace_operands(&mut op, |of| self.number(code, numbers, of, Epoch::default(), depth - 1));
            let next = self.next;
            match self.numbers.entry((op, epoch)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    self.next += 1;
                    *new.insert(next)
                }
            }
        };
        numbers[id as usize] = number;
        number
    }
}
