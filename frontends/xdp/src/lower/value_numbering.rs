//! Reads that a block before has done. Of a block that only one other leads to, what that one has read and nothing has written
//! since is there: clang reads a structure's members one by one, with a branch between one and the next, and several of them lie
//! in a word. Most compilers behind us would see as much; but where a block reads nothing any more it may only compute, and is
//! done with the one before it ([`joined`](crate::lower::if_convert)).
//!
//! Computations have numbers, equal ones the same, from block to block as long as one leads to the next alone (value numbering
//! on extended basic blocks: Muchnick, Advanced Compiler Design and Implementation, section 12.4).

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use crate::analysis::fixpoint::Block;
use crate::lower::ir::{Code, Effect, Epoch, Id, Op, Var};
use crate::lower::liveness::{in_variables, ops, successors};

/// A computation's number: equal ones have the same.
type Number = u32;

/// Has blocks take over what those before them have read. `added` are loads that are nothing but parts of additions.
pub(crate) fn run(blocks: &mut [Block], memory: &[bool], added: &BTreeSet<u32>) {
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

/// A number that was read.
#[derive(Debug, Clone, Copy)]
struct Source {
    block: usize,
    read: Id,
    /// How many others there were on the way, which is its variable's name. Ways that part use the same: what is carried is asked
    /// for between the block that has read it and those that no other way leads to, and there each has a name of its own.
    slot: u32,
}

struct Reuse<'a> {
    added: &'a BTreeSet<u32>,
    /// By what they are made of, in numbers.
    numbers: HashMap<(Op, Epoch), Number, foldhash::fast::RandomState>,
    next: Number,
    /// What variables hold.
    vars: Scoped<Var, Number>,
    /// Where numbers were read.
    reads: Scoped<Number, Source>,
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
        let in_variables = in_variables(&blocks[at], memory);
        // What nobody can ask for is not to be done for somebody behind.
        let needed = ops(&blocks[at], in_variables.iter().map(|(_, id)| *id));
        // Of loads that are parts of additions nobody has the number; pairs are none.
        let mut stays = vec![false; code.ops.len()];
        let held = code.held.values().filter(|held| self.added.contains(&held.load));
        held.flat_map(|held| [held.number.0, held.number.1]).for_each(|id| stays[id as usize] = true);
        let mut is_pair = vec![false; code.ops.len()];
        let pairs = code.ops.iter().filter_map(|op| if let Op::Part(of, _) = op { Some(*of) } else { None });
        pairs.for_each(|id| is_pair[id as usize] = true);
        let mut numbers: Vec<Number> = Vec::with_capacity(code.ops.len());
        let mut carried: Vec<(Id, Source)> = Vec::new();
        for (id, op) in (0..).zip(&code.ops) {
            for (epoch, is_it) in epoch.iter_mut().zip(Code::writes(op)) {
                if is_it {
                    *epoch = self.fresh();
                }
            }
            let is_read = matches!(op, Op::Call(call) if call.effect == Effect::Reads);
            let number = match op {
                // A load that is what a fetch-add behind it gives is not what others have read.
                _ if !needed[id as usize] || is_pair[id as usize] || code.aliases.contains_key(&id) => self.fresh(),
                Op::Var(var) => self.held(*var),
                Op::Call(call) if call.effect != Effect::Writes => self.number(op, &numbers, call.epoch(epoch)),
                Op::Call(_) | Op::Trap { .. } | Op::Keep { .. } | Op::Recall { .. } => self.fresh(),
                _ => self.number(op, &numbers, Epoch::default()),
            };
            numbers.push(number);
            if is_read && needed[id as usize] && !is_pair[id as usize] && !stays[id as usize] {
                match self.reads.known.get(&number) {
                    Some(&source) if source.block != at => carried.push((id, source)),
                    Some(_) => {}
                    None => {
                        let slot = self.reads.before.len() as u32;
                        self.reads.set(number, Source { block: at, read: id, slot });
                    }
                }
            }
        }
        if goes_on {
            in_variables.iter().for_each(|&(var, id)| self.vars.set(var, numbers[id as usize]));
        }
        for (id, Source { block, read, slot }) in carried {
            let var = Var::Read { slot };
            blocks[at].code.ops[id as usize] = Op::Var(var);
            blocks[block].code.carried.insert(var, read);
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

    /// The number of a computation, by those of what it is made of; `epoch` is when what it reads was written.
    fn number(&mut self, op: &Op, numbers: &[Number], epoch: Epoch) -> Number {
        let mut op = op.clone();
        Code::replace_operands(&mut op, |of| numbers[of as usize]);
        let next = self.next;
        match self.numbers.entry((op, epoch)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.next += 1;
                *new.insert(next)
            }
        }
    }
}
