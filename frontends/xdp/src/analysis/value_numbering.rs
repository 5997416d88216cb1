//! Value numbering on extended basic blocks: forwards packet and map reads to later blocks.
//!
//! A block with a single predecessor can reuse what that has read, if nothing was written since.
//! clang reads the members of a structure one by one with branches in between, and several members
//! lie in one word. Most compilers behind the front end would find as much; but a block that no
//! longer reads may only compute, and can be if-converted (`lower::if_convert`).
//!
//! Source: S. Muchnick, Advanced Compiler Design and Implementation, section 12.4.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use crate::analysis::liveness::{defined_variables, live_ops, successors};
use crate::analysis::program::Block;
use crate::ir::{BlockCode, Effect, Epoch, Id, Op, Variable};

/// Value number; equal values have the same.
type ValueNumber = u32;

/// Forwards reads across blocks. `added` are loads that only feed atomic additions.
pub(crate) fn run(blocks: &mut [Block], memory: &[bool], added: &BTreeSet<u32>) {
    let mut before = vec![Predecessors::None; blocks.len()];
    if let Some(first) = before.first_mut() {
        // The entry block has a predecessor outside, besides any others.
        *first = Predecessors::Multiple;
    }
    for (from, block) in blocks.iter().enumerate() {
        for to in successors(&block.terminator) {
            before[to] = match before[to] {
                Predecessors::None => Predecessors::Single(from),
                Predecessors::Single(one) if one == from => Predecessors::Single(from),
                _ => Predecessors::Multiple,
            };
        }
    }
    let mut behind = vec![Vec::new(); blocks.len()];
    for (block, before) in before.iter().enumerate() {
        if let Predecessors::Single(from) = before {
            behind[*from].push(block);
        }
    }
    let mut numbering = ValueNumbering {
        added,
        numbers: HashMap::default(),
        next: 0,
        vars: ScopedMap::default(),
        reads: ScopedMap::default(),
    };
    for first in (0..blocks.len()).filter(|&block| before[block] == Predecessors::Multiple && !behind[block].is_empty())
    {
        let epoch = numbering.fresh_epoch();
        let mut open = vec![(first, epoch)];
        // The path of blocks from the root of the extended basic block, with the scope where each
        // begins.
        let mut under_way: Vec<(usize, ScopeMark)> = Vec::new();
        while let Some((block, epoch)) = open.pop() {
            while let Some(&(last, mark)) = under_way.last()
                && before[block] != Predecessors::Single(last)
            {
                numbering.roll_back(mark);
                under_way.pop();
            }
            under_way.push((block, numbering.mark()));
            let epoch = numbering.number_block(blocks, block, epoch, memory, !behind[block].is_empty());
            open.extend(behind[block].iter().map(|&block| (block, epoch)));
        }
        numbering.roll_back(ScopeMark::default());
    }
}

/// The predecessors of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Predecessors {
    None,
    Single(usize),
    Multiple,
}

/// A map with an undo log.
#[derive(Debug)]
struct ScopedMap<K, V> {
    known: HashMap<K, V, foldhash::fast::RandomState>,
    before: Vec<(K, Option<V>)>,
}

impl<K, V> Default for ScopedMap<K, V> {
    fn default() -> Self {
        ScopedMap { known: HashMap::default(), before: Vec::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V: Copy> ScopedMap<K, V> {
    fn set(&mut self, key: K, value: V) {
        let before = self.known.insert(key, value);
        self.before.push((key, before));
    }

    /// Undoes all changes since the log had length `to`.
    fn roll_back(&mut self, to: usize) {
        for (key, before) in self.before.drain(to..).rev() {
            match before {
                Some(before) => self.known.insert(key, before),
                None => self.known.remove(&key),
            };
        }
    }
}

/// Lengths of the undo logs.
#[derive(Debug, Clone, Copy, Default)]
struct ScopeMark {
    vars: usize,
    reads: usize,
}

/// A read that later blocks may reuse.
#[derive(Debug, Clone, Copy)]
struct ReadSource {
    block: usize,
    read: Id,
    /// Number of reads before it on the path, which names its variable. Paths that diverge use the
    /// same names: a carried read is live only between its block and blocks dominated by it, on
    /// each of which the name is unique.
    slot: u32,
}

struct ValueNumbering<'a> {
    added: &'a BTreeSet<u32>,
    /// Value numbers of operations, whose operands are replaced by value numbers.
    numbers: HashMap<(Op, Epoch), ValueNumber, foldhash::fast::RandomState>,
    next: ValueNumber,
    /// Value numbers of variables.
    vars: ScopedMap<Variable, ValueNumber>,
    /// Available reads by value number.
    reads: ScopedMap<ValueNumber, ReadSource>,
}

impl ValueNumbering<'_> {
    fn mark(&self) -> ScopeMark {
        ScopeMark { vars: self.vars.before.len(), reads: self.reads.before.len() }
    }

    fn roll_back(&mut self, to: ScopeMark) {
        self.vars.roll_back(to.vars);
        self.reads.roll_back(to.reads);
    }

    /// A value number that no other operation has.
    fn fresh_number(&mut self) -> ValueNumber {
        self.next += 1;
        self.next - 1
    }

    fn fresh_epoch(&mut self) -> Epoch {
        [self.fresh_number(), self.fresh_number()]
    }

    /// Numbers a block that starts in an epoch, and replaces its redundant reads. Returns the epoch
    /// at its end.
    fn number_block(
        &mut self,
        blocks: &mut [Block],
        at: usize,
        mut epoch: Epoch,
        memory: &[bool],
        goes_on: bool,
    ) -> Epoch {
        let code = &blocks[at].code;
        let defined = defined_variables(&blocks[at], memory);
        // Do not keep a dead read alive for later blocks.
        let needed = live_ops(&blocks[at], defined.iter().map(|(_, id)| *id));
        // The value of a load that only feeds an addition is not available; pairs are not words.
        let mut stays = vec![false; code.ops.len()];
        let held = code.field_aliases.values().filter(|held| self.added.contains(&held.load));
        held.flat_map(|held| [held.number.0, held.number.1]).for_each(|id| stays[id as usize] = true);
        let mut is_pair = vec![false; code.ops.len()];
        let pairs = code.ops.iter().filter_map(|op| if let Op::Component(of, _) = op { Some(*of) } else { None });
        pairs.for_each(|id| is_pair[id as usize] = true);
        let mut numbers: Vec<ValueNumber> = Vec::with_capacity(code.ops.len());
        let mut carried: Vec<(Id, ReadSource)> = Vec::new();
        for (id, op) in (0..).zip(&code.ops) {
            for (epoch, is_it) in epoch.iter_mut().zip(BlockCode::writes(op)) {
                if is_it {
                    *epoch = self.fresh_number();
                }
            }
            let is_read = matches!(op, Op::Call(call) if call.effect == Effect::Reads);
            let number = match op {
                // A load that is replaced by the result of a fetch-add differs from an earlier
                // read.
                _ if !needed[id as usize] || is_pair[id as usize] || code.replaced_loads.contains_key(&id) => {
                    self.fresh_number()
                }
                Op::Variable(var) => self.number_of_variable(*var),
                Op::Call(call) if call.effect != Effect::Writes => self.number_of(op, &numbers, call.epoch(epoch)),
                Op::Call(_) | Op::Trap { .. } | Op::StoreIndexed { .. } | Op::LoadIndexed { .. } => self.fresh_number(),
                _ => self.number_of(op, &numbers, Epoch::default()),
            };
            numbers.push(number);
            if is_read && needed[id as usize] && !is_pair[id as usize] && !stays[id as usize] {
                match self.reads.known.get(&number) {
                    Some(&source) if source.block != at => carried.push((id, source)),
                    Some(_) => {}
                    None => {
                        let slot = self.reads.before.len() as u32;
                        self.reads.set(number, ReadSource { block: at, read: id, slot });
                    }
                }
            }
        }
        if goes_on {
            defined.iter().for_each(|&(var, id)| self.vars.set(var, numbers[id as usize]));
        }
        for (id, ReadSource { block, read, slot }) in carried {
            let var = Variable::CarriedRead { slot };
            blocks[at].code.ops[id as usize] = Op::Variable(var);
            blocks[block].code.carried_reads.insert(var, read);
        }
        epoch
    }

    /// The value number of a variable at the start of a block.
    fn number_of_variable(&mut self, var: Variable) -> ValueNumber {
        if let Some(&number) = self.vars.known.get(&var) {
            return number;
        }
        let number = self.fresh_number();
        self.vars.set(var, number);
        number
    }

    /// The value number of an operation, from those of its operands and the epoch that it depends
    /// on.
    fn number_of(&mut self, op: &Op, numbers: &[ValueNumber], epoch: Epoch) -> ValueNumber {
        let mut op = op.clone();
        BlockCode::replace_operands(&mut op, |of| numbers[of as usize]);
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
