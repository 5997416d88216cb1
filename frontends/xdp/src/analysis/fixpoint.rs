//! Going through a program: its blocks, with those of the functions that it calls in their places, and the types of what there
//! is at the beginning of each. Blocks that no way leads to are never looked at, so that what a program does only where its
//! configuration says so costs nothing, and may be what cannot be taken.
//!
//! A block is known by its *context* (whose call of a function it belongs to) and its place. A tail call leads to another
//! program's first block: all that is left of the one before is the packet.

mod bpf_loop;
mod for_each_map_elem;
mod map_of_maps;
mod tail_call;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::lang::xdp::analysis::cfg::{
    block_leaders, branch_target, reachable_instructions, reverse_post_order, successors_of,
};
use crate::lang::xdp::analysis::domain::reg_type::{RegType, SymbolicName};
use crate::lang::xdp::analysis::domain::state::{Frame, Sensitivity, State, Value};
use crate::lang::xdp::analysis::interner::Interner;
use crate::lang::xdp::analysis::register_liveness::{self, RegisterSet};
use crate::lang::xdp::analysis::transfer::{BlockInterpreter, EventUses};
use crate::lang::xdp::decode::helper;
use crate::lang::xdp::decode::instruction::{CALL, EXIT, Instruction, call, class};
use crate::lang::xdp::decode::linked::LinkedObject;
use crate::lang::xdp::lower::ir::BinaryOp::{Add, Eq, Lt, Or};
use crate::lang::xdp::lower::ir::{BlockCode, Id, Op};
use crate::lang::xdp::lower::liveness::{self, BlockLiveness};
use crate::lang::xdp::lower::privatize::{MapWords, Privatization, copy_frame};
use crate::lang::xdp::lower::value_numbering;
use crate::lang::xdp::object::Reference;
use crate::lang::xdp::rejection::Rejection;

type Result<T> = std::result::Result<T, Rejection>;

/// Blocks at most, functions counted where they are called.
const MAX_BLOCKS: usize = 16_384;

/// Blocks for the same place, at most.
const MAX_VARIANTS: u32 = 16;

/// How often a block that control comes back to is looked at before what still changes is let go.
const WIDENING_DELAY: u32 = 8;

/// How often before that goes no longer from one constant that the function compares with to the next.
const THRESHOLD_WIDENING_DELAY: u32 = 100;

/// And at most.
const MAX_BLOCK_VISITS: u32 = 400;

/// Instructions looked at, at most.
const MAX_INTERPRETED_INSTRUCTIONS: usize = 4_000_000;

/// What all blocks have in common.
#[derive(Debug)]
pub(crate) struct ProgramFacts {
    /// Names by who gave them.
    pub names: Interner<(u32, u32, u32, u32)>,
    /// Where a packet may be aborted: section, instruction, reason.
    pub trap_sites: Interner<(u32, u32, &'static str)>,
    /// Where what is added to a map's value may be lost, likewise.
    pub lost_update_sites: Interner<(u32, u32, &'static str)>,
    /// Loads of maps' values, by context, section and instruction.
    pub map_loads: Interner<(u32, u32, u32)>,
    /// Those that are nothing but parts of atomic additions, unless somebody asks for the number after all.
    pub add_only_loads: BTreeSet<u32>,
    /// Those of which the number is asked for by more than additions.
    pub observed_loads: BTreeSet<u32>,
    /// The maps whose entries are gone through.
    pub iterated_maps: HashMap<(u32, u32), u16>,
    /// Maps that are used.
    pub used_maps: BTreeSet<u16>,
    /// Tries that are searched for prefixes shorter than an address, or changed by the program.
    pub prefix_search_maps: BTreeSet<u16>,
    /// Helpers that are called.
    pub helpers: BTreeSet<u32>,
    /// Maps that packets are redirected to all devices of, each with whether to the others alone.
    pub broadcasts: Interner<(u16, bool)>,
    /// Families that routes are looked for of.
    pub families: crate::lang::xdp::fib::AddressFamilies,
    /// What is told to the host.
    pub events: EventUses,
    /// What packets have copies of.
    pub privatization: Privatization,
    /// Frames whose stack is indexed by what is known only when the packet is there.
    pub indexed_frames: [bool; crate::lang::xdp::analysis::domain::state::STACK_COUNT],
    /// Whether pointers on the stack are there behind a store at an offset that is not known: that this does not hit one is
    /// checked when the packet is there. Else they are numbers then.
    pub guard_spills: bool,
    /// Whether a store at an offset that is not known may hit a pointer.
    pub may_overwrite_spills: bool,
}

/// Where a block begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BlockStart {
    /// At an instruction.
    Instruction(u32),
    /// At a `bpf_loop`, before a round.
    LoopRound(u32),
    /// At a tail call, where the programs up to this one were not meant.
    TailCall(u32, u32),
    /// At a lookup in a map of maps, where the maps up to this one were not what it gave.
    InnerMap(u32, u32),
    /// At a `bpf_for_each_map_elem`, before an entry.
    ForEachEntry(u32),
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BlockKey {
    context: u32,
    start: BlockStart,
    /// Where pointers point into different things on different ways here, each kind of way has a block of its own.
    variant: u32,
}

/// A call of a function under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CallContext {
    section: u32,
    /// The function's first instruction.
    first: u32,
    /// The caller's context, and its instruction; none of a program.
    caller: Option<(u32, u32)>,
}

/// How a block goes on.
#[derive(Debug, Clone)]
pub(crate) enum Terminator {
    Exit,
    Goto(usize),
    Branch(Id, usize, usize),
}

/// A block, with all that is computed in it.
pub(crate) struct Block {
    pub code: BlockCode,
    /// What there is at its end.
    pub exit_state: State,
    pub terminator: Terminator,
}

/// A program's blocks; it begins with the first.
pub(crate) struct AnalyzedProgram {
    pub blocks: Vec<Block>,
    pub facts: ProgramFacts,
    /// Words of maps' values, by map and word, that are asked for before they are set.
    pub first: Vec<(u16, u16)>,
}

/// How a block ended, while its successors may still be without numbers.
enum PendingTerminator {
    Exit,
    Goto(BlockKey),
    Branch(Id, BlockKey, BlockKey),
}

/// A block that was gone through: its code with what there is at its end, where it goes on, and what there is on the way there.
type BlockResult = ((BlockCode, State), PendingTerminator, Vec<(BlockKey, State)>);

struct FixpointSolver<'a, 'o> {
    linked: &'a LinkedObject<'o>,
    facts: ProgramFacts,
    contexts: Interner<CallContext>,
    keys: Interner<BlockKey>,
    /// By key: what there is at its beginning.
    entry_states: Vec<Option<State>>,
    visits: Vec<u32>,
    /// Whether control comes back to it.
    is_loop_head: Vec<bool>,
    /// From a block to a place: which of its blocks that leads to.
    edges: HashMap<(u32, BlockKey), u32>,
    /// The instructions of functions that blocks begin at.
    leaders: HashMap<(u32, u32), BTreeSet<u32>>,
    /// The order in which control comes to a function's instructions.
    reverse_post_orders: HashMap<(u32, u32), HashMap<u32, u32>>,
    /// The registers that are asked for at them.
    live_registers: HashMap<(u32, u32), HashMap<u32, RegisterSet>>,
    /// What numbers in a function are compared with, and the numbers next to it, in order.
    thresholds: HashMap<(u32, u32), Arc<[u64]>>,
    interpreted: usize,
    sensitivity: Sensitivity,
}

/// Goes through the program that begins at an instruction.
///
/// What is known where ways meet is what holds on all of them. The kernel follows each way by itself: it sees that a function
/// which gave no error has set its pointer, and where each round of a loop stores. So what is refused is tried again with more
/// ways kept apart, not at once, since each kind of way has blocks of its own; and then with pointers on the stack that a store
/// may hit kept, and this checked.
pub(crate) fn analyze(
    linked: &LinkedObject,
    section: usize,
    first: usize,
) -> Result<(AnalyzedProgram, Vec<BlockLiveness>)> {
    let mut may_overwrite_spills = false;
    let mut refused: Option<Rejection> = None;
    for guard_spills in [false, true] {
        if guard_spills && !may_overwrite_spills {
            break;
        }
        for sensitivity in [Sensitivity::Minimal, Sensitivity::Types, Sensitivity::Offsets] {
            match analyze_with(linked, (section, first), sensitivity, guard_spills, &mut may_overwrite_spills) {
                Ok(found) => return Ok(found),
                // That there are too many ways is no news of the program.
                Err(again) if again.is_over_limit && refused.is_some() => {}
                Err(again) => refused = Some(again),
            }
        }
    }
    Err(refused.expect("it was tried"))
}

/// That a frame is memory shows where it is indexed, which may be behind what was said of its words before: these are looked at
/// again then. There are only so many frames. So it is where a copy of a map's value turns out to be too large.
fn analyze_with(
    linked: &LinkedObject,
    (section, first): (usize, usize),
    sensitivity: Sensitivity,
    guard_spills: bool,
    may_overwrite_spills: &mut bool,
) -> Result<(AnalyzedProgram, Vec<BlockLiveness>)> {
    let mut indexed_frames = [false; crate::lang::xdp::analysis::domain::state::STACK_COUNT];
    let mut left_out = MapWords::new();
    loop {
        let mut solver = FixpointSolver::new(linked, sensitivity, indexed_frames, guard_spills);
        solver.facts.privatization.excluded = std::mem::take(&mut left_out);
        let root = solver.root(section as u32, first as u32);
        let settled = solver.solve(root);
        *may_overwrite_spills |= solver.facts.may_overwrite_spills;
        if settled? && solver.facts.privatization.decide() {
            return solver.finish(root);
        }
        indexed_frames = solver.facts.indexed_frames;
        left_out = solver.facts.privatization.excluded;
    }
}

impl<'a, 'o> FixpointSolver<'a, 'o> {
    fn new(
        linked: &'a LinkedObject<'o>,
        sensitivity: Sensitivity,
        indexed_frames: [bool; crate::lang::xdp::analysis::domain::state::STACK_COUNT],
        guard_spills: bool,
    ) -> Self {
        let facts = ProgramFacts {
            names: Interner::starting_at(1),
            trap_sites: Interner::starting_at(0),
            lost_update_sites: Interner::starting_at(0),
            map_loads: Interner::starting_at(0),
            add_only_loads: BTreeSet::new(),
            observed_loads: BTreeSet::new(),
            iterated_maps: HashMap::new(),
            used_maps: BTreeSet::new(),
            prefix_search_maps: BTreeSet::new(),
            helpers: BTreeSet::new(),
            broadcasts: Interner::starting_at(0),
            families: crate::lang::xdp::fib::AddressFamilies::default(),
            events: EventUses::default(),
            privatization: Privatization::default(),
            indexed_frames,
            guard_spills,
            may_overwrite_spills: false,
        };
        FixpointSolver {
            linked,
            facts,
            contexts: Interner::starting_at(0),
            keys: Interner::starting_at(0),
            entry_states: Vec::new(),
            visits: Vec::new(),
            is_loop_head: Vec::new(),
            edges: HashMap::new(),
            leaders: HashMap::new(),
            reverse_post_orders: HashMap::new(),
            live_registers: HashMap::new(),
            thresholds: HashMap::new(),
            interpreted: 0,
            sensitivity,
        }
    }

    /// The first block of a program.
    fn root(&mut self, section: u32, first: u32) -> BlockKey {
        let context = self.contexts.intern(CallContext { section, first, caller: None });
        BlockKey { context, start: BlockStart::Instruction(first), variant: 0 }
    }

    fn context(&self, key: BlockKey) -> CallContext {
        self.contexts.values()[key.context as usize]
    }

    /// Looks at blocks until nothing changes any more; or until a frame turns out to be memory which was not known as such, where
    /// it gives `false`.
    ///
    /// They wait in the order in which control comes to them, so that what leads to a block has been looked at before it, but
    /// for what leads back.
    fn solve(&mut self, root: BlockKey) -> Result<bool> {
        let indexed_frames = self.facts.indexed_frames;
        let first = self.keys.intern(root);
        self.entry_states.push(Some(State::at_entry()));
        self.visits.push(0);
        self.is_loop_head.push(false);
        let mut work = BTreeSet::from([(self.worklist_priority(root), first)]);
        while let Some((_, number)) = work.pop_first() {
            let key = self.keys.values()[number as usize];
            self.visits[number as usize] += 1;
            if self.visits[number as usize] > MAX_BLOCK_VISITS {
                return Err(self.over_limit(key, "what is in the registers here does not settle"));
            }
            let state = self.entry_states[number as usize].clone().expect("what is in the list was led to");
            let (_, _, onward) = self.interpret_block(key, state)?;
            if self.facts.indexed_frames != indexed_frames {
                return Ok(false);
            }
            for (to, state) in onward {
                let (arrived, changed) = self.propagate(number, to, state)?;
                if changed {
                    work.insert((self.worklist_priority(to), arrived));
                }
            }
        }
        Ok(true)
    }

    /// When a block's turn is: by where its function was called, then by the order of the function's instructions.
    fn worklist_priority(&mut self, key: BlockKey) -> Vec<u32> {
        let mut turn = Vec::new();
        let (mut context, mut at, mut part) = match key.start {
            BlockStart::Instruction(at) => (key.context, at, 0),
            BlockStart::LoopRound(at) | BlockStart::ForEachEntry(at) => (key.context, at, 1),
            BlockStart::TailCall(at, number) | BlockStart::InnerMap(at, number) => (key.context, at, 1 + number),
        };
        loop {
            let CallContext { section, first, caller } = self.contexts.values()[context as usize];
            let linked = self.linked;
            let instructions = &linked.object.sections[section as usize].instructions;
            let order = self
                .reverse_post_orders
                .entry((section, first))
                .or_insert_with(|| reverse_post_order(instructions, first));
            turn.extend([part, order.get(&at).copied().unwrap_or(u32::MAX)]);
            match caller {
                // What is called comes behind all that its caller does at the same instruction.
                Some((outer, call)) => (context, at, part) = (outer, call, u32::MAX),
                None => break,
            }
        }
        // Programs come one after the other, as they are called.
        turn.push(context);
        turn.reverse();
        turn
    }

    /// Takes in what leads from a block to another: its number, and whether it has to be looked at again.
    fn propagate(&mut self, from: u32, to: BlockKey, mut state: State) -> Result<(u32, bool)> {
        let asked = self.live_registers_at(to);
        if let Some(asked) = asked {
            state.drop_dead_registers(asked);
        }
        let asked = asked.unwrap_or(RegisterSet::MAX);
        let before = self.edges.get(&(from, to)).copied();
        let variants = before.into_iter().chain(0..MAX_VARIANTS);
        let agrees = |&variant: &u32| match self.keys.get(&BlockKey { variant, ..to }) {
            Some(number) => self.entry_states[number as usize]
                .as_ref()
                .is_none_or(|known| known.can_join(&state, asked, self.sensitivity)),
            None => true,
        };
        let variant = { variants }.find(agrees).unwrap_or(MAX_VARIANTS - 1);
        self.edges.insert((from, to), variant);
        let to = BlockKey { variant, ..to };
        let number = self.keys.intern(to);
        // Whatever goes round comes back somewhere: to let go there is enough, and what is between follows.
        let visits = self.visits.get(number as usize).copied().unwrap_or(0);
        if visits > WIDENING_DELAY && !self.is_loop_head[number as usize] {
            let from = self.keys.values()[from as usize];
            self.is_loop_head[number as usize] = self.worklist_priority(to) <= self.worklist_priority(from);
        }
        let bounds = (visits > WIDENING_DELAY && self.is_loop_head[number as usize])
            .then(|| if visits > THRESHOLD_WIDENING_DELAY { Arc::default() } else { self.widening_thresholds(to) });
        let changed = self.join_into(to, state, bounds.as_deref())?;
        Ok((number, changed))
    }

    /// What numbers in a block's function are compared with, and the numbers next to it, in order.
    fn widening_thresholds(&mut self, key: BlockKey) -> Arc<[u64]> {
        let CallContext { section, first, .. } = self.context(key);
        let instructions = &self.linked.object.sections[section as usize].instructions;
        let bounds = self.thresholds.entry((section, first)).or_insert_with(|| {
            let all = reachable_instructions(instructions, first).into_iter().map(|at| instructions[at as usize]);
            let compared =
                all.filter(|&it| branch_target(it).is_some_and(|(_, falls)| falls) && !it.has_register_operand());
            let constants = compared.map(|it| match it.class() {
                class::JMP32 => u64::from(it.imm as u32),
                _ => i64::from(it.imm) as u64,
            });
            let around = constants.flat_map(|it| [it.wrapping_sub(1), it, it.wrapping_add(1)]);
            around.collect::<BTreeSet<u64>>().into_iter().collect()
        });
        bounds.clone()
    }

    /// The registers that are asked for from a place on, where that is told by its instruction.
    fn live_registers_at(&mut self, key: BlockKey) -> Option<RegisterSet> {
        let BlockStart::Instruction(at) = key.start else { return None };
        let CallContext { section, first, .. } = self.context(key);
        let linked = self.linked;
        let instructions = &linked.object.sections[section as usize].instructions;
        let asked = self.live_registers.entry((section, first)).or_insert_with(|| {
            let reached: Vec<u32> = reachable_instructions(instructions, first).into_iter().collect();
            register_liveness::live_registers(instructions, &reached, |at, it| {
                successors_of(at, it, instructions.len())
            })
        });
        asked.get(&at).copied()
    }

    /// Joins what leads to a block with what is known there, and lets go of what changes where there are bounds; whether that
    /// changed.
    fn join_into(&mut self, to: BlockKey, mut state: State, bounds: Option<&[u64]>) -> Result<bool> {
        let number = self.keys.intern(to) as usize;
        if number == self.entry_states.len() {
            if number >= MAX_BLOCKS {
                return Err(self.over_limit(
                    to,
                    format!("the program has more than {MAX_BLOCKS} blocks, functions counted where they are called"),
                ));
            }
            self.entry_states.push(None);
            self.visits.push(0);
            self.is_loop_head.push(false);
        }
        // The names that this block gives to places which are known by several.
        let base = number as u32;
        let names = &mut self.facts.names;
        let mut given: BTreeMap<usize, SymbolicName> = BTreeMap::new();
        let is_ours = |names: &Interner<(u32, u32, u32, u32)>, name: SymbolicName| {
            name != crate::lang::xdp::analysis::domain::reg_type::ANONYMOUS
                && name != crate::lang::xdp::analysis::domain::reg_type::PACKET_START
                && names.values().get(name as usize - 1).is_some_and(|it| it.0 == u32::MAX && it.1 == base)
        };
        match &mut self.entry_states[number] {
            none @ None => {
                let snapshot = &*names;
                state.forget_names(|name| is_ours(snapshot, name));
                *none = Some(state);
                Ok(true)
            }
            Some(known) => {
                // Before: so that the closure only reads.
                for slot in known.packet_pointer_slots() {
                    given.insert(slot, names.intern((u32::MAX, base, slot as u32, 0)));
                }
                let snapshot = &*names;
                let name = |slot: usize| {
                    given.get(&slot).copied().unwrap_or(crate::lang::xdp::analysis::domain::reg_type::ANONYMOUS)
                };
                Ok(known.join(state, bounds, name, |name| is_ours(snapshot, name)))
            }
        }
    }

    fn over_limit(&self, key: BlockKey, message: impl Into<String>) -> Rejection {
        let at = match key.start {
            BlockStart::Instruction(at)
            | BlockStart::LoopRound(at)
            | BlockStart::ForEachEntry(at)
            | BlockStart::TailCall(at, _)
            | BlockStart::InnerMap(at, _) => at,
        };
        Rejection::new(self.context(key).section as usize, at as usize, message).over_limit()
    }

    /// The blocks with their code, and what is needed of it.
    ///
    /// At first every number that is loaded from a map's value, added to and stored there is taken for one that nobody asks for
    /// but the addition, which is atomic then, in whatever blocks these are. Where somebody does ask for one after all, it was
    /// loaded for more: `if (v->tokens) v->tokens--` must not become an addition that packets side by side do as often as there
    /// are packets.
    fn finish(mut self, root: BlockKey) -> Result<(AnalyzedProgram, Vec<BlockLiveness>)> {
        loop {
            let mut blocks = self.emit_blocks(root)?;
            value_numbering::run(&mut blocks, &self.facts.indexed_frames, &self.facts.add_only_loads);
            let (needed, first) = liveness::analyze(&blocks, &self.facts.indexed_frames);
            let observed = liveness::observed_loads(&blocks, &needed);
            if observed.is_disjoint(&self.facts.add_only_loads) {
                let idle = self.unread_copies(&blocks, &needed);
                if !idle.is_empty() {
                    idle.into_iter().for_each(|map| self.facts.privatization.drop_memory_copy(map));
                    continue;
                }
                return Ok((AnalyzedProgram { blocks, facts: self.facts, first }, needed));
            }
            if !self.facts.observed_loads.is_empty() {
                // What changed has made others so: let go of all.
                self.facts.observed_loads.extend((0..).take(self.facts.map_loads.values().len()));
            }
            self.facts.observed_loads.extend(observed);
        }
    }

    /// Maps of whose values there are copies in memory that nobody looks at: what is only added to, in an array for example.
    fn unread_copies(&self, blocks: &[Block], needed: &[BlockLiveness]) -> Vec<u16> {
        let recalled = |(block, needed): (&Block, &BlockLiveness)| {
            let ops = block.code.ops.iter().zip(&needed.live_ops).filter(|(_, needed)| **needed);
            let frames = ops.filter_map(|(op, _)| match op {
                Op::LoadIndexed { frame, .. } => Some(*frame),
                _ => None,
            });
            frames.collect::<BTreeSet<u16>>()
        };
        let recalled: BTreeSet<u16> = blocks.iter().zip(needed).flat_map(recalled).collect();
        let copies = self.facts.privatization.memory_copies().map(|(map, _)| map);
        copies.filter(|&map| !recalled.contains(&copy_frame(map))).collect()
    }

    /// The blocks with their code, once the types are known.
    fn emit_blocks(&mut self, root: BlockKey) -> Result<Vec<Block>> {
        // What was found on the way there may not be what is left.
        self.facts.used_maps.clear();
        self.facts.helpers.clear();
        self.facts.families = crate::lang::xdp::fib::AddressFamilies::default();
        self.facts.events.reset_uses();
        self.facts.trap_sites = Interner::starting_at(0);
        self.facts.lost_update_sites = Interner::starting_at(0);
        self.facts.add_only_loads.clear();
        let mut numbers: HashMap<BlockKey, usize> = HashMap::from([(root, 0)]);
        let mut order = vec![root];
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < order.len() {
            let key = order[at];
            at += 1;
            let number = self.keys.intern(key) as usize;
            let state = self.entry_states[number].clone().expect("all that is led to was looked at");
            let (interp, way, _) = self.interpret_block(key, state)?;
            let edges = &self.edges;
            let mut number_of = |to: BlockKey| {
                let key = BlockKey { variant: *edges.get(&(number as u32, to))?, ..to };
                Some(*numbers.entry(key).or_insert_with(|| {
                    order.push(key);
                    order.len() - 1
                }))
            };
            // Copies tell more of what is loaded than maps do, and nothing less, so that no way is new.
            let end = match way {
                PendingTerminator::Exit => Some(Terminator::Exit),
                PendingTerminator::Goto(to) => number_of(to).map(Terminator::Goto),
                PendingTerminator::Branch(condition, taken, not_taken) => {
                    let both = number_of(taken).zip(number_of(not_taken));
                    both.map(|(taken, not_taken)| Terminator::Branch(condition, taken, not_taken))
                }
            };
            let Some(end) = end else {
                return Err(self.over_limit(key, "what is known of a value here does not settle"));
            };
            blocks.push(Block { code: interp.0, exit_state: interp.1, terminator: end });
        }
        Ok(blocks)
    }

    /// Goes through a block: its code with what there is at its end, where it goes on, and what there is on the way there.
    fn interpret_block(&mut self, key: BlockKey, state: State) -> Result<BlockResult> {
        let context = self.context(key);
        let (section, first) = (context.section, context.first);
        let linked = self.linked;
        let instructions = &linked.object.sections[section as usize].instructions;
        let here = |start| BlockKey { context: key.context, start, variant: 0 };
        let mut at = match key.start {
            BlockStart::Instruction(at) => at as usize,
            BlockStart::LoopRound(at) => return self.interpret_loop_round(key, at, state),
            BlockStart::TailCall(at, number) => return self.interpret_tail_call(key, at, number, state),
            BlockStart::InnerMap(at, number) => return self.interpret_inner_map(key, at, number, state),
            BlockStart::ForEachEntry(at) => return self.interpret_for_each_entry(key, at, state),
        };
        let leaders = block_leaders(&mut self.leaders, linked, section, first);
        let mut interp = BlockInterpreter::new(linked, &mut self.facts, state, key.context, section as usize);
        loop {
            interp.pc = at;
            let Some(&it) = instructions.get(at) else {
                interp.pc = instructions.len().saturating_sub(1);
                return interp.reject("control runs over the section's end");
            };
            self.interpreted += 1;
            if self.interpreted > MAX_INTERPRETED_INSTRUCTIONS {
                return interp
                    .reject("the program is too much to look at: functions count where they are called, and loops several times")
                    .map_err(Rejection::over_limit);
            }
            if let Some((to, falls)) = branch_target(it) {
                let target = at as i64 + 1 + to;
                if target < 0 || target >= instructions.len() as i64 {
                    return interp.reject("a jump leads out of the section");
                }
                let taken_to = here(BlockStart::Instruction(target as u32));
                if !falls {
                    return Ok(finish_with_goto(interp, taken_to));
                }
                let not_taken_to = here(BlockStart::Instruction(at as u32 + 1));
                interp.save_field_aliases();
                let branch = interp.branch(it)?;
                if taken_to == not_taken_to {
                    // RegKind way it is says nothing there, and edges are known by where they lead.
                    return Ok(finish_with_goto(interp, taken_to));
                }
                let parts = into_parts(interp);
                return Ok(match (branch.taken, branch.not_taken) {
                    (Some(taken), Some(not_taken)) => (
                        parts,
                        PendingTerminator::Branch(branch.condition, taken_to, not_taken_to),
                        vec![(not_taken_to, not_taken), (taken_to, taken)],
                    ),
                    (Some(taken), None) => (parts, PendingTerminator::Goto(taken_to), vec![(taken_to, taken)]),
                    (None, Some(not_taken)) => {
                        (parts, PendingTerminator::Goto(not_taken_to), vec![(not_taken_to, not_taken)])
                    }
                    // The types contradict each other: no packet comes here.
                    (None, None) => (parts, PendingTerminator::Exit, Vec::new()),
                });
            }
            if it.code == EXIT {
                return interpret_exit(linked, &self.contexts, interp, context);
            }
            if it.code == CALL && it.src == call::FUNCTION {
                let (section, first) = callee(&interp, it)?;
                if !interp.push_frame()? {
                    return Ok((into_parts(interp), PendingTerminator::Exit, Vec::new()));
                }
                let inner =
                    self.contexts.intern(CallContext { section, first, caller: Some((key.context, at as u32)) });
                return Ok(finish_with_goto(
                    interp,
                    BlockKey { context: inner, start: BlockStart::Instruction(first), variant: 0 },
                ));
            }
            // Helpers that lead elsewhere than on. What they are given is looked at there, or before the first round.
            let called = (it.code == CALL && it.src == call::HELPER).then_some(it.imm as u32);
            let start = match called {
                Some(helper::TAIL_CALL) => Some(BlockStart::TailCall(at as u32, 0)),
                Some(helper::MAP_LOOKUP_ELEM) if interp.is_inner_map_lookup() => {
                    Some(BlockStart::InnerMap(at as u32, 0))
                }
                Some(helper::FOR_EACH_MAP_ELEM) => {
                    for_each_map_elem::start(&mut interp)?;
                    Some(BlockStart::ForEachEntry(at as u32))
                }
                Some(helper::LOOP) => {
                    bpf_loop::start(&mut interp)?;
                    Some(BlockStart::LoopRound(at as u32))
                }
                _ => None,
            };
            if let Some(start) = start {
                return Ok(finish_with_goto(interp, here(start)));
            }
            at = interp.step(at)?;
            if leaders.contains(&(at as u32)) {
                return Ok(finish_with_goto(interp, here(BlockStart::Instruction(at as u32))));
            }
        }
    }
}

/// The end of a function or program.
fn interpret_exit(
    linked: &LinkedObject,
    contexts: &Interner<CallContext>,
    mut interp: BlockInterpreter,
    context: CallContext,
) -> Result<BlockResult> {
    let Some((caller, at)) = context.caller else {
        let result = interp.read_register(0)?;
        interp.expect_scalar(result, "what the program returns")?;
        return Ok((into_parts(interp), PendingTerminator::Exit, Vec::new()));
    };
    let by = {
        let section = contexts.values()[caller as usize].section;
        linked.object.sections[section as usize].instructions[at as usize]
    };
    match (by.src, by.imm as u32) {
        (call::HELPER, helper::FOR_EACH_MAP_ELEM) => for_each_map_elem::finish_callback(interp, caller, at),
        (call::HELPER, _) => bpf_loop::finish_callback(interp, caller, at),
        _ => {
            let own = interp.current_frame();
            // A function that returns nothing has set nothing.
            if matches!(interp.state.scratch[0].ty, RegType::Stack { frame, .. } if usize::from(frame) == own) {
                return interp
                    .reject("a function returns a pointer to its own stack, which is gone when it has returned");
            }
            interp.state.frames.pop();
            interp.clear_caller_saved();
            Ok(finish_with_goto(
                interp,
                BlockKey { context: caller, start: BlockStart::Instruction(at + 1), variant: 0 },
            ))
        }
    }
}

/// Behind a round of what a helper calls a function for: on with the next, unless the function gave something else than 0.
fn loop_or_exit(mut interp: BlockInterpreter, result: Value, again: BlockKey, at: u32) -> BlockResult {
    let any = interp.code.binary(Or, result.low, result.high);
    let goes_on = interp.code.binary_const(Eq, any, 0);
    let behind = BlockKey { start: BlockStart::Instruction(at + 1), ..again };
    interp.save_field_aliases();
    let state = interp.state.clone();
    finish_with_branch(interp, goes_on, (again, state.clone()), (behind, state.without_loop_registers()))
}

/// A block that goes on in one place.
fn finish_with_goto(mut interp: BlockInterpreter, to: BlockKey) -> BlockResult {
    interp.save_field_aliases();
    let state = interp.state.clone();
    (into_parts(interp), PendingTerminator::Goto(to), vec![(to, state)])
}

/// A block that goes on in one of two places, which differ, each with what there is then.
fn finish_with_branch(
    interp: BlockInterpreter,
    condition: Id,
    yes: (BlockKey, State),
    no: (BlockKey, State),
) -> BlockResult {
    match interp.code.as_boolean(condition) {
        Some(true) => (into_parts(interp), PendingTerminator::Goto(yes.0), vec![yes]),
        Some(false) => (into_parts(interp), PendingTerminator::Goto(no.0), vec![no]),
        None => (into_parts(interp), PendingTerminator::Branch(condition, yes.0, no.0), vec![yes, no]),
    }
}

fn into_parts(mut interp: BlockInterpreter) -> (BlockCode, State) {
    interp.code.flush();
    (interp.code, interp.state)
}

/// The function that an instruction calls.
fn callee(interp: &BlockInterpreter, it: Instruction) -> Result<(u32, u32)> {
    let section = &interp.linked.object.sections[interp.section];
    let (section, first) = match section.references.get(&interp.pc) {
        Some(&Reference::Code { section, offset }) => (section, offset as i64 / 8 + i64::from(it.imm) + 1),
        Some(Reference::External(name)) => {
            return interp.reject_unsupported(
                format!("`{name}` is called, a function of the kernel's"),
                "kernel functions (kfuncs)",
            );
        }
        Some(_) => return interp.reject("what is called is no function"),
        None => (interp.section, interp.pc as i64 + 1 + i64::from(it.imm)),
    };
    let count = interp.linked.object.sections[section].instructions.len() as i64;
    if first < 0 || first >= count {
        return interp.reject("a call leads out of the section");
    }
    Ok((section as u32, first as u32))
}
