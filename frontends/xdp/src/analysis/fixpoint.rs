//! Worklist solver: interprets a program abstractly, block by block, to a fixpoint.
//!
//! Functions are inlined: a block is identified by its call context and its position in the
//! function, so a function called twice is analysed twice. The abstract state at a block's entry is
//! the join over all edges that reach it. Blocks that no edge reaches are never interpreted, so
//! code that the configuration makes unreachable costs nothing and may use anything.
//!
//! The worklist is ordered by reverse post-order, callers before callees. Ranges in loops are
//! widened after [`WIDENING_DELAY`] visits; [`MAX_BLOCK_VISITS`] and
//! [`MAX_INTERPRETED_INSTRUCTIONS`] bound the whole. A program that is rejected is tried again with
//! more path [`Sensitivity`].
//!
//! A tail call is an edge to the other program's first block that keeps little more than the
//! packet.

mod bpf_loop;
mod for_each_map_elem;
mod map_of_maps;
mod tail_call;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::analysis::cfg::{block_leaders, branch_target, reachable_instructions, reverse_post_order, successors_of};
use crate::analysis::domain::reg_type::{RegType, SymbolicName};
use crate::analysis::domain::state::{Frame, Sensitivity, State, Value};
use crate::analysis::interner::Interner;
use crate::analysis::liveness::{self, BlockLiveness};
use crate::analysis::program::{AnalyzedProgram, Block, ProgramFacts, Terminator};
use crate::analysis::register_liveness::{self, RegisterSet};
use crate::analysis::transfer::BlockInterpreter;
use crate::analysis::value_numbering;
use crate::decode::linked::LinkedObject;
use crate::helper;
use crate::instruction::{CALL, EXIT, Instruction, call, class};
use crate::ir::BinaryOp::{Add, Eq, Lt, Or};
use crate::ir::privatize::{MapWords, copy_frame};
use crate::ir::{BlockCode, Id, Op};
use crate::object::Reference;
use crate::rejection::Rejection;

type Result<T> = std::result::Result<T, Rejection>;

/// Upper bound on the number of blocks, those of a function counted once per call context.
const MAX_BLOCKS: usize = 16_384;

/// Upper bound on path-sensitive variants of one block.
const MAX_VARIANTS: u32 = 16;

/// Visits of a loop head before values that still change are widened.
const WIDENING_DELAY: u32 = 8;

/// Visits before widening stops using the function's comparison constants as thresholds.
const THRESHOLD_WIDENING_DELAY: u32 = 100;

/// Visits of one block after which the analysis gives up.
const MAX_BLOCK_VISITS: u32 = 400;

/// Upper bound on instructions that are interpreted, repeated visits included.
const MAX_INTERPRETED_INSTRUCTIONS: usize = 4_000_000;

/// Program point where a block starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BlockStart {
    /// An instruction.
    Instruction(u32),
    /// A `bpf_loop` call, before each round of its callback.
    LoopRound(u32),
    /// A tail call, once the programs before this index are excluded.
    TailCall(u32, u32),
    /// A lookup in a map of maps, once the inner maps before this index are excluded.
    InnerMap(u32, u32),
    /// A `bpf_for_each_map_elem` call, before each entry.
    ForEachEntry(u32),
}

/// Identity of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BlockKey {
    context: u32,
    start: BlockStart,
    /// Number of the variant, if states with pointers to different objects are kept apart here.
    variant: u32,
}

/// An activation of a function: a call context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CallContext {
    section: u32,
    /// First instruction of the function.
    first: u32,
    /// Context and instruction of the call; `None` for a program.
    caller: Option<(u32, u32)>,
}

/// How a block ends, before its successors have indices.
enum PendingTerminator {
    Exit,
    Goto(BlockKey),
    Branch(Id, BlockKey, BlockKey),
}

/// Result of interpreting a block: its code and final state, its terminator, and the state along
/// each outgoing edge.
type BlockResult = ((BlockCode, State), PendingTerminator, Vec<(BlockKey, State)>);

struct FixpointSolver<'a, 'o> {
    linked: &'a LinkedObject<'o>,
    facts: ProgramFacts,
    contexts: Interner<CallContext>,
    keys: Interner<BlockKey>,
    /// State at the entry of each block, by block number; `None` until an edge reaches it.
    entry_states: Vec<Option<State>>,
    visits: Vec<u32>,
    /// Whether a backward edge leads to the block.
    is_loop_head: Vec<bool>,
    /// The variant that an edge leads to, by source block and target without variant.
    edges: HashMap<(u32, BlockKey), u32>,
    /// Instructions where blocks start, by section and first instruction of the function.
    leaders: HashMap<(u32, u32), BTreeSet<u32>>,
    /// Position of each instruction in reverse post-order, by function.
    reverse_post_orders: HashMap<(u32, u32), HashMap<u32, u32>>,
    /// Live registers at each instruction, by function.
    live_registers: HashMap<(u32, u32), HashMap<u32, RegisterSet>>,
    /// Widening thresholds by function: the constants in comparisons and their neighbours, sorted.
    thresholds: HashMap<(u32, u32), Arc<[u64]>>,
    interpreted: usize,
    sensitivity: Sensitivity,
}

/// Analyses the program that starts at an instruction.
///
/// A join keeps what holds on all paths. The kernel's verifier follows each path by itself: it sees
/// that a function which returned no error has set its output pointer, and where each round of a
/// loop stores. So a rejected program is analysed again with more path sensitivity, which is not
/// used at once because it multiplies blocks; and finally with spilled pointers kept across stores
/// that may hit them, guarded by run-time checks.
///
/// # Errors
///
/// The rejection of the last attempt that did not merely exceed a limit.
pub(crate) fn analyze(
    linked: &LinkedObject,
    section: usize,
    first: usize,
) -> Result<(AnalyzedProgram, Vec<BlockLiveness>)> {
    let mut may_overwrite_spills = false;
    let mut rejection: Option<Rejection> = None;
    for guard_spills in [false, true] {
        if guard_spills && !may_overwrite_spills {
            break;
        }
        for sensitivity in [Sensitivity::Minimal, Sensitivity::Types, Sensitivity::Offsets] {
            match analyze_with(linked, (section, first), sensitivity, guard_spills, &mut may_overwrite_spills) {
                Ok(found) => return Ok(found),
                // Exceeding a limit at a higher sensitivity says nothing new about the program.
                Err(again) if again.is_over_limit && rejection.is_some() => {}
                Err(again) => rejection = Some(again),
            }
        }
    }
    Err(rejection.expect("at least one attempt was made"))
}

/// Analyses a program at one level of sensitivity.
///
/// Indexing a frame may be met after words of it were treated as variables, and a private copy may
/// turn out too large. Either restarts the analysis with that knowledge; both happen a bounded
/// number of times.
fn analyze_with(
    linked: &LinkedObject,
    (section, first): (usize, usize),
    sensitivity: Sensitivity,
    guard_spills: bool,
    may_overwrite_spills: &mut bool,
) -> Result<(AnalyzedProgram, Vec<BlockLiveness>)> {
    let mut indexed_frames = [false; crate::analysis::domain::state::STACK_COUNT];
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
        indexed_frames: [bool; crate::analysis::domain::state::STACK_COUNT],
        guard_spills: bool,
    ) -> Self {
        let facts =
            ProgramFacts { names: Interner::starting_at(1), indexed_frames, guard_spills, ..ProgramFacts::default() };
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

    /// The entry block of a program.
    fn root(&mut self, section: u32, first: u32) -> BlockKey {
        let context = self.contexts.intern(CallContext { section, first, caller: None });
        BlockKey { context, start: BlockStart::Instruction(first), variant: 0 }
    }

    fn context(&self, key: BlockKey) -> CallContext {
        self.contexts.values()[key.context as usize]
    }

    /// Interprets blocks until no entry state changes. Returns false as soon as a frame turns out
    /// to be indexed that was not known to be.
    fn solve(&mut self, root: BlockKey) -> Result<bool> {
        let indexed_frames = self.facts.indexed_frames;
        let first = self.keys.intern(root);
        self.entry_states.push(Some(State::at_entry()));
        self.visits.push(0);
        self.is_loop_head.push(false);
        let mut worklist = BTreeSet::from([(self.worklist_priority(root), first)]);
        while let Some((_, number)) = worklist.pop_first() {
            let key = self.keys.values()[number as usize];
            self.visits[number as usize] += 1;
            if self.visits[number as usize] > MAX_BLOCK_VISITS {
                return Err(
                    self.over_limit(key, "the analysis does not converge here: the state of registers keeps changing")
                );
            }
            let state = self.entry_states[number as usize].clone().expect("what is in the list was led to");
            let (_, _, edges) = self.interpret_block(key, state)?;
            if self.facts.indexed_frames != indexed_frames {
                return Ok(false);
            }
            for (to, state) in edges {
                let (target, changed) = self.propagate(number, to, state)?;
                if changed {
                    worklist.insert((self.worklist_priority(to), target));
                }
            }
        }
        Ok(true)
    }

    /// Priority in the worklist: lexicographic by call site, then by reverse post-order in the
    /// function, so that predecessors come first except along back edges.
    fn worklist_priority(&mut self, key: BlockKey) -> Vec<u32> {
        let mut priority = Vec::new();
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
            priority.extend([part, order.get(&at).copied().unwrap_or(u32::MAX)]);
            match caller {
                // A callee comes after everything that its caller does at the same instruction.
                Some((outer, call)) => (context, at, part) = (outer, call, u32::MAX),
                None => break,
            }
        }
        // Programs run one after another along tail calls.
        priority.push(context);
        priority.reverse();
        priority
    }

    /// Joins the state along an edge into a variant of its target. Returns the target's number and
    /// whether its state changed.
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
        // Every cycle has a back edge, so widening at the targets of back edges suffices.
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

    /// The sorted constants in the comparisons of a block's function, and their neighbours.
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

    /// The registers that are live at the start of a block, if it starts at an instruction.
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

    /// Joins a state into the entry state of a block, widening to `bounds` if given. Returns
    /// whether the entry state changed.
    fn join_into(&mut self, to: BlockKey, mut state: State, bounds: Option<&[u64]>) -> Result<bool> {
        let number = self.keys.intern(to) as usize;
        if number == self.entry_states.len() {
            if number >= MAX_BLOCKS {
                return Err(self.over_limit(
                    to,
                    format!("the program has more than {MAX_BLOCKS} blocks, functions counted once per call"),
                ));
            }
            self.entry_states.push(None);
            self.visits.push(0);
            self.is_loop_head.push(false);
        }
        // Names that this block gives to pointers whose bases differ between paths.
        let base = number as u32;
        let names = &mut self.facts.names;
        let mut given: BTreeMap<usize, SymbolicName> = BTreeMap::new();
        let is_ours = |names: &Interner<(u32, u32, u32, u32)>, name: SymbolicName| {
            name != crate::analysis::domain::reg_type::ANONYMOUS
                && name != crate::analysis::domain::reg_type::PACKET_START
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
                // Intern names up front: the closure below must not borrow the interner mutably.
                for slot in known.packet_pointer_slots() {
                    given.insert(slot, names.intern((u32::MAX, base, slot as u32, 0)));
                }
                let snapshot = &*names;
                let name =
                    |slot: usize| given.get(&slot).copied().unwrap_or(crate::analysis::domain::reg_type::ANONYMOUS);
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

    /// Emits the final code of all blocks, and computes what of it is live.
    ///
    /// At first every map load whose value is added to and stored back is assumed to feed nothing
    /// but the addition, which is atomic then, across blocks as well. If the value turns out to be
    /// live, it was loaded for more: `if (v->tokens) v->tokens--` must not become an addition that
    /// every packet in flight performs. Such loads are marked observed and the code is emitted
    /// again.
    fn finish(mut self, root: BlockKey) -> Result<(AnalyzedProgram, Vec<BlockLiveness>)> {
        loop {
            let mut blocks = self.emit_blocks(root)?;
            value_numbering::run(&mut blocks, &self.facts.indexed_frames, &self.facts.add_only_loads);
            let (needed, initial_words) = liveness::analyze(&blocks, &self.facts.indexed_frames);
            let observed = liveness::observed_loads(&blocks, &needed);
            if observed.is_disjoint(&self.facts.add_only_loads) {
                let unread = self.unread_copies(&blocks, &needed);
                if !unread.is_empty() {
                    unread.into_iter().for_each(|map| self.facts.privatization.drop_memory_copy(map));
                    continue;
                }
                return Ok((AnalyzedProgram { blocks, facts: self.facts, initial_words }, needed));
            }
            if !self.facts.observed_loads.is_empty() {
                // The second pass changed what is live, so give up on all loads: this bounds the
                // loop.
                self.facts.observed_loads.extend((0..).take(self.facts.map_loads.values().len()));
            }
            self.facts.observed_loads.extend(observed);
        }
    }

    /// Maps whose private copy in an array is never read: an array of counters, for example.
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

    /// Interprets all reachable blocks once more, with final entry states, keeping their code.
    fn emit_blocks(&mut self, root: BlockKey) -> Result<Vec<Block>> {
        // Earlier passes may have used what is no longer reachable.
        self.facts.used_maps.clear();
        self.facts.helpers.clear();
        self.facts.families = crate::fib::AddressFamilies::default();
        self.facts.events.reset_uses();
        self.facts.trap_sites = Interner::default();
        self.facts.lost_update_sites = Interner::default();
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
            let (interp, pending, _) = self.interpret_block(key, state)?;
            let edges = &self.edges;
            let mut number_of = |to: BlockKey| {
                let key = BlockKey { variant: *edges.get(&(number as u32, to))?, ..to };
                Some(*numbers.entry(key).or_insert_with(|| {
                    order.push(key);
                    order.len() - 1
                }))
            };
            // With private copies decided, loads only become more precise, so no edge is new.
            let end = match pending {
                PendingTerminator::Exit => Some(Terminator::Exit),
                PendingTerminator::Goto(to) => number_of(to).map(Terminator::Goto),
                PendingTerminator::Branch(condition, taken, not_taken) => {
                    let both = number_of(taken).zip(number_of(not_taken));
                    both.map(|(taken, not_taken)| Terminator::Branch(condition, taken, not_taken))
                }
            };
            let Some(end) = end else {
                return Err(
                    self.over_limit(key, "the analysis does not converge here: the final pass reaches a new block")
                );
            };
            blocks.push(Block { code: interp.0, exit_state: interp.1, terminator: end });
        }
        Ok(blocks)
    }

    /// Interprets a block from its entry state.
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
                return interp.reject("execution runs past the end of the section");
            };
            self.interpreted += 1;
            if self.interpreted > MAX_INTERPRETED_INSTRUCTIONS {
                return interp
                    .reject(
                        "the program is too large to analyse: functions count once per call, and loops several times",
                    )
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
                    // Both targets coincide, and edges are identified by their target.
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
                    // The types contradict each other, so no packet gets here.
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
            // Helpers that continue elsewhere than at the next instruction. Their arguments are
            // checked at that block, or here before the first round.
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

/// Interprets the exit of a function or program.
fn interpret_exit(
    linked: &LinkedObject,
    contexts: &Interner<CallContext>,
    mut interp: BlockInterpreter,
    context: CallContext,
) -> Result<BlockResult> {
    let Some((caller, at)) = context.caller else {
        let result = interp.read_register(0)?;
        interp.expect_scalar(result, "the program's return value")?;
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
            // r0 is unset if the function returns nothing.
            if matches!(interp.state.scratch[0].ty, RegType::Stack { frame, .. } if usize::from(frame) == own) {
                return interp.reject("a function returns a pointer to its own stack, which ends when it returns");
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

/// Ends a round of a callback: continues with the next round if the callback returned 0.
fn loop_or_exit(mut interp: BlockInterpreter, result: Value, again: BlockKey, at: u32) -> BlockResult {
    let any = interp.code.binary(Or, result.low, result.high);
    let goes_on = interp.code.binary_const(Eq, any, 0);
    let behind = BlockKey { start: BlockStart::Instruction(at + 1), ..again };
    interp.save_field_aliases();
    let state = interp.state.clone();
    finish_with_branch(interp, goes_on, (again, state.clone()), (behind, state.without_loop_registers()))
}

/// Ends a block with a jump.
fn finish_with_goto(mut interp: BlockInterpreter, to: BlockKey) -> BlockResult {
    interp.save_field_aliases();
    let state = interp.state.clone();
    (into_parts(interp), PendingTerminator::Goto(to), vec![(to, state)])
}

/// Ends a block with a branch to two distinct targets, with the state for each.
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

/// Section and first instruction of the function that an instruction calls.
fn callee(interp: &BlockInterpreter, it: Instruction) -> Result<(u32, u32)> {
    let section = &interp.linked.object.sections[interp.section];
    let (section, first) = match section.references.get(&interp.pc) {
        Some(&Reference::Code { section, offset }) => (section, offset as i64 / 8 + i64::from(it.imm) + 1),
        Some(Reference::External(name)) => {
            return interp
                .reject_unsupported(format!("`{name}` is called, a kernel function"), "kernel functions (kfuncs)");
        }
        Some(_) => return interp.reject("the call target is not a function"),
        None => (interp.section, interp.pc as i64 + 1 + i64::from(it.imm)),
    };
    let count = interp.linked.object.sections[section].instructions.len() as i64;
    if first < 0 || first >= count {
        return interp.reject("a call leads out of the section");
    }
    Ok((section as u32, first as u32))
}
