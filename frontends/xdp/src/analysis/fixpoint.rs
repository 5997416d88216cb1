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

use crate::Linked;
use crate::analysis::domain::state::{Apart, Frame, Name, State, Ty, Value};
use crate::analysis::register_liveness::{self, Registers};
use crate::analysis::transfer::{Events, Walk};
use crate::decode::helper;
use crate::decode::instruction::{CALL, EXIT, Instruction, JA, JA32, call, class};
use crate::lower::ir::Binary::{Add, Eq, Lt, Or};
use crate::lower::ir::{Code, Id, Op};
use crate::lower::liveness::{self, Needed};
use crate::lower::privatize::{Copies, Words, frame_of};
use crate::lower::value_numbering;
use crate::object::Reference;
use crate::rejection::Refused;

type Result<T> = std::result::Result<T, Refused>;

/// Blocks at most, functions counted where they are called.
const MAX_BLOCKS: usize = 16_384;

/// Blocks for the same place, at most.
const MAX_VARIANTS: u32 = 16;

/// How often a block that control comes back to is looked at before what still changes is let go.
const PATIENCE: u32 = 8;

/// How often before that goes no longer from one constant that the function compares with to the next.
const PATIENCE_WITH_BOUNDS: u32 = 100;

/// And at most.
const MAX_VISITS: u32 = 400;

/// Instructions looked at, at most.
const MAX_WORK: usize = 4_000_000;

/// Numbers for things, from 1 on.
#[derive(Debug, Clone)]
pub(crate) struct Numbers<K> {
    all: Vec<K>,
    of: HashMap<K, u32>,
    first: u32,
}

impl<K: Clone + std::cmp::Eq + std::hash::Hash> Numbers<K> {
    fn from(first: u32) -> Self {
        Numbers { all: Vec::new(), of: HashMap::new(), first }
    }

    pub fn of(&mut self, key: K) -> u32 {
        if let Some(&number) = self.of.get(&key) {
            return number;
        }
        let number = self.first + self.all.len() as u32;
        self.all.push(key.clone());
        self.of.insert(key, number);
        number
    }

    pub fn all(&self) -> &[K] {
        &self.all
    }
}

/// What all blocks have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Names by who gave them.
    pub names: Numbers<(u32, u32, u32, u32)>,
    /// Where a packet may be aborted: section, instruction, reason.
    pub sites: Numbers<(u32, u32, &'static str)>,
    /// Where what is added to a map's value may be lost, likewise.
    pub losses: Numbers<(u32, u32, &'static str)>,
    /// Loads of maps' values, by context, section and instruction.
    pub loads: Numbers<(u32, u32, u32)>,
    /// Those that are nothing but parts of atomic additions, unless somebody asks for the number after all.
    pub added: BTreeSet<u32>,
    /// Those of which the number is asked for by more than additions.
    pub observed: BTreeSet<u32>,
    /// The maps whose entries are gone through.
    pub entries_of: HashMap<(u32, u32), u16>,
    /// Maps that are used.
    pub used: BTreeSet<u16>,
    /// Tries that are searched for prefixes shorter than an address, or changed by the program.
    pub tries: BTreeSet<u16>,
    /// Helpers that are called.
    pub helpers: BTreeSet<u32>,
    /// Maps that packets are redirected to all devices of, each with whether to the others alone.
    pub broadcasts: Numbers<(u16, bool)>,
    /// Families that routes are looked for of.
    pub families: crate::fib::Families,
    /// What is told to the host.
    pub events: Events,
    /// What packets have copies of.
    pub copies: Copies,
    /// Frames whose stack is indexed by what is known only when the packet is there.
    pub memory: [bool; crate::analysis::domain::state::STACKS],
    /// Whether pointers on the stack are there behind a store at an offset that is not known: that this does not hit one is
    /// checked when the packet is there. Else they are numbers then.
    pub keeps_spilled: bool,
    /// Whether a store at an offset that is not known may hit a pointer.
    pub overwrites_spilled: bool,
}

/// Where a block begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// At an instruction.
    At(u32),
    /// At a `bpf_loop`, before a round.
    Round(u32),
    /// At a tail call, where the programs up to this one were not meant.
    Tail(u32, u32),
    /// At a lookup in a map of maps, where the maps up to this one were not what it gave.
    Inner(u32, u32),
    /// At a `bpf_for_each_map_elem`, before an entry.
    Each(u32),
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    context: u32,
    place: Place,
    /// Where pointers point into different things on different ways here, each kind of way has a block of its own.
    variant: u32,
}

/// A call of a function under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Context {
    section: u32,
    /// The function's first instruction.
    first: u32,
    /// The caller's context, and its instruction; none of a program.
    caller: Option<(u32, u32)>,
}

/// How a block goes on.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Exit,
    Goto(usize),
    Branch(Id, usize, usize),
}

/// A block, with all that is computed in it.
pub(crate) struct Block {
    pub code: Code,
    /// What there is at its end.
    pub state: State,
    pub end: End,
}

/// A program's blocks; it begins with the first.
pub(crate) struct Flow {
    pub blocks: Vec<Block>,
    pub shared: Shared,
    /// Words of maps' values, by map and word, that are asked for before they are set.
    pub first: Vec<(u16, u16)>,
}

/// How a block ended, while its successors may still be without numbers.
enum Way {
    Exit,
    Goto(Key),
    Branch(Id, Key, Key),
}

/// A block that was gone through: its code with what there is at its end, where it goes on, and what there is on the way there.
type Gone = ((Code, State), Way, Vec<(Key, State)>);

struct Finding<'a, 'o> {
    linked: &'a Linked<'o>,
    shared: Shared,
    contexts: Numbers<Context>,
    keys: Numbers<Key>,
    /// By key: what there is at its beginning.
    states: Vec<Option<State>>,
    visits: Vec<u32>,
    /// Whether control comes back to it.
    again: Vec<bool>,
    /// From a block to a place: which of its blocks that leads to.
    edges: HashMap<(u32, Key), u32>,
    /// The instructions of functions that blocks begin at.
    leaders: HashMap<(u32, u32), BTreeSet<u32>>,
    /// The order in which control comes to a function's instructions.
    order: HashMap<(u32, u32), HashMap<u32, u32>>,
    /// The registers that are asked for at them.
    registers: HashMap<(u32, u32), HashMap<u32, Registers>>,
    /// What numbers in a function are compared with, and the numbers next to it, in order.
    bounds: HashMap<(u32, u32), Arc<[u64]>>,
    instructions: usize,
    apart: Apart,
}

/// Goes through the program that begins at an instruction.
///
/// What is known where ways meet is what holds on all of them. The kernel follows each way by itself: it sees that a function
/// which gave no error has set its pointer, and where each round of a loop stores. So what is refused is tried again with more
/// ways kept apart, not at once, since each kind of way has blocks of its own; and then with pointers on the stack that a store
/// may hit kept, and this checked.
pub(crate) fn find(linked: &Linked, section: usize, first: usize) -> Result<(Flow, Vec<Needed>)> {
    let mut overwrites_spilled = false;
    let mut refused: Option<Refused> = None;
    for keeps_spilled in [false, true] {
        if keeps_spilled && !overwrites_spilled {
            break;
        }
        for apart in [Apart::Nothing, Apart::Kinds, Apart::Places] {
            match find_with(linked, (section, first), apart, keeps_spilled, &mut overwrites_spilled) {
                Ok(found) => return Ok(found),
                // That there are too many ways is no news of the program.
                Err(again) if again.too_much && refused.is_some() => {}
                Err(again) => refused = Some(again),
            }
        }
    }
    Err(refused.expect("it was tried"))
}

/// That a frame is memory shows where it is indexed, which may be behind what was said of its words before: these are looked at
/// again then. There are only so many frames. So it is where a copy of a map's value turns out to be too large.
fn find_with(
    linked: &Linked,
    (section, first): (usize, usize),
    apart: Apart,
    keeps_spilled: bool,
    overwrites_spilled: &mut bool,
) -> Result<(Flow, Vec<Needed>)> {
    let mut memory = [false; crate::analysis::domain::state::STACKS];
    let mut left_out = Words::new();
    loop {
        let mut finding = Finding::new(linked, apart, memory, keeps_spilled);
        finding.shared.copies.left_out = std::mem::take(&mut left_out);
        let root = finding.root(section as u32, first as u32);
        let settled = finding.settle(root);
        *overwrites_spilled |= finding.shared.overwrites_spilled;
        if settled? && finding.shared.copies.settle() {
            return finding.finished(root);
        }
        memory = finding.shared.memory;
        left_out = finding.shared.copies.left_out;
    }
}

impl<'a, 'o> Finding<'a, 'o> {
    fn new(
        linked: &'a Linked<'o>,
        apart: Apart,
        memory: [bool; crate::analysis::domain::state::STACKS],
        keeps_spilled: bool,
    ) -> Self {
        let shared = Shared {
            names: Numbers::from(1),
            sites: Numbers::from(0),
            losses: Numbers::from(0),
            loads: Numbers::from(0),
            added: BTreeSet::new(),
            observed: BTreeSet::new(),
            entries_of: HashMap::new(),
            used: BTreeSet::new(),
            tries: BTreeSet::new(),
            helpers: BTreeSet::new(),
            broadcasts: Numbers::from(0),
            families: crate::fib::Families::default(),
            events: Events::default(),
            copies: Copies::default(),
            memory,
            keeps_spilled,
            overwrites_spilled: false,
        };
        Finding {
            linked,
            shared,
            contexts: Numbers::from(0),
            keys: Numbers::from(0),
            states: Vec::new(),
            visits: Vec::new(),
            again: Vec::new(),
            edges: HashMap::new(),
            leaders: HashMap::new(),
            order: HashMap::new(),
            registers: HashMap::new(),
            bounds: HashMap::new(),
            instructions: 0,
            apart,
        }
    }

    /// The first block of a program.
    fn root(&mut self, section: u32, first: u32) -> Key {
        let context = self.contexts.of(Context { section, first, caller: None });
        Key { context, place: Place::At(first), variant: 0 }
    }

    fn context(&self, key: Key) -> Context {
        self.contexts.all()[key.context as usize]
    }

    /// Looks at blocks until nothing changes any more; or until a frame turns out to be memory which was not known as such, where
    /// it gives `false`.
    ///
    /// They wait in the order in which control comes to them, so that what leads to a block has been looked at before it, but
    /// for what leads back.
    fn settle(&mut self, root: Key) -> Result<bool> {
        let memory = self.shared.memory;
        let first = self.keys.of(root);
        self.states.push(Some(State::beginning()));
        self.visits.push(0);
        self.again.push(false);
        let mut work = BTreeSet::from([(self.turn(root), first)]);
        while let Some((_, number)) = work.pop_first() {
            let key = self.keys.all()[number as usize];
            self.visits[number as usize] += 1;
            if self.visits[number as usize] > MAX_VISITS {
                return Err(self.too_much(key, "what is in the registers here does not settle"));
            }
            let state = self.states[number as usize].clone().expect("what is in the list was led to");
            let (_, _, onward) = self.block(key, state)?;
            if self.shared.memory != memory {
                return Ok(false);
            }
            for (to, state) in onward {
                let (arrived, changed) = self.arrive(number, to, state)?;
                if changed {
                    work.insert((self.turn(to), arrived));
                }
            }
        }
        Ok(true)
    }

    /// When a block's turn is: by where its function was called, then by the order of the function's instructions.
    fn turn(&mut self, key: Key) -> Vec<u32> {
        let mut turn = Vec::new();
        let (mut context, mut at, mut part) = match key.place {
            Place::At(at) => (key.context, at, 0),
            Place::Round(at) | Place::Each(at) => (key.context, at, 1),
            Place::Tail(at, number) | Place::Inner(at, number) => (key.context, at, 1 + number),
        };
        loop {
            let Context { section, first, caller } = self.contexts.all()[context as usize];
            let linked = self.linked;
            let instructions = &linked.object.sections[section as usize].instructions;
            let order = self.order.entry((section, first)).or_insert_with(|| order(instructions, first));
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
    fn arrive(&mut self, from: u32, to: Key, mut state: State) -> Result<(u32, bool)> {
        let asked = self.asked(to);
        if let Some(asked) = asked {
            state.keep(asked);
        }
        let asked = asked.unwrap_or(Registers::MAX);
        let before = self.edges.get(&(from, to)).copied();
        let variants = before.into_iter().chain(0..MAX_VARIANTS);
        let agrees = |&variant: &u32| match self.keys.of.get(&Key { variant, ..to }) {
            Some(&number) => {
                self.states[number as usize].as_ref().is_none_or(|known| known.agrees(&state, asked, self.apart))
            }
            None => true,
        };
        let variant = { variants }.find(agrees).unwrap_or(MAX_VARIANTS - 1);
        self.edges.insert((from, to), variant);
        let to = Key { variant, ..to };
        let number = self.keys.of(to);
        // Whatever goes round comes back somewhere: to let go there is enough, and what is between follows.
        let visits = self.visits.get(number as usize).copied().unwrap_or(0);
        if visits > PATIENCE && !self.again[number as usize] {
            let from = self.keys.all()[from as usize];
            self.again[number as usize] = self.turn(to) <= self.turn(from);
        }
        let bounds = (visits > PATIENCE && self.again[number as usize])
            .then(|| if visits > PATIENCE_WITH_BOUNDS { Arc::default() } else { self.bounds(to) });
        let changed = self.join(to, state, bounds.as_deref())?;
        Ok((number, changed))
    }

    /// What numbers in a block's function are compared with, and the numbers next to it, in order.
    fn bounds(&mut self, key: Key) -> Arc<[u64]> {
        let Context { section, first, .. } = self.context(key);
        let instructions = &self.linked.object.sections[section as usize].instructions;
        let bounds = self.bounds.entry((section, first)).or_insert_with(|| {
            let all = reached(instructions, first).into_iter().map(|at| instructions[at as usize]);
            let compared = all.filter(|&it| jump(it).is_some_and(|(_, falls)| falls) && !it.by_register());
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
    fn asked(&mut self, key: Key) -> Option<Registers> {
        let Place::At(at) = key.place else { return None };
        let Context { section, first, .. } = self.context(key);
        let linked = self.linked;
        let instructions = &linked.object.sections[section as usize].instructions;
        let asked = self.registers.entry((section, first)).or_insert_with(|| {
            let reached: Vec<u32> = reached(instructions, first).into_iter().collect();
            register_liveness::registers(instructions, &reached, |at, it| onward(at, it, instructions.len()))
        });
        asked.get(&at).copied()
    }

    /// Joins what leads to a block with what is known there, and lets go of what changes where there are bounds; whether that
    /// changed.
    fn join(&mut self, to: Key, mut state: State, bounds: Option<&[u64]>) -> Result<bool> {
        let number = self.keys.of(to) as usize;
        if number == self.states.len() {
            if number >= MAX_BLOCKS {
                return Err(self.too_much(
                    to,
                    format!("the program has more than {MAX_BLOCKS} blocks, functions counted where they are called"),
                ));
            }
            self.states.push(None);
            self.visits.push(0);
            self.again.push(false);
        }
        // The names that this block gives to places which are known by several.
        let base = number as u32;
        let names = &mut self.shared.names;
        let mut given: BTreeMap<usize, Name> = BTreeMap::new();
        let is_ours = |names: &Numbers<(u32, u32, u32, u32)>, name: Name| {
            name != crate::analysis::domain::state::NOBODY
                && name != crate::analysis::domain::state::FIXED
                && names.all().get(name as usize - 1).is_some_and(|it| it.0 == u32::MAX && it.1 == base)
        };
        match &mut self.states[number] {
            none @ None => {
                let snapshot = &*names;
                state.forget(|name| is_ours(snapshot, name));
                *none = Some(state);
                Ok(true)
            }
            Some(known) => {
                // Before: so that the closure only reads.
                for slot in known.slots_of_packets() {
                    given.insert(slot, names.of((u32::MAX, base, slot as u32, 0)));
                }
                let snapshot = &*names;
                let name = |slot: usize| given.get(&slot).copied().unwrap_or(crate::analysis::domain::state::NOBODY);
                Ok(known.join(state, bounds, name, |name| is_ours(snapshot, name)))
            }
        }
    }

    fn too_much(&self, key: Key, message: impl Into<String>) -> Refused {
        let at = match key.place {
            Place::At(at) | Place::Round(at) | Place::Each(at) | Place::Tail(at, _) | Place::Inner(at, _) => at,
        };
        Refused::new(self.context(key).section as usize, at as usize, message).too_much()
    }

    /// The blocks with their code, and what is needed of it.
    ///
    /// At first every number that is loaded from a map's value, added to and stored there is taken for one that nobody asks for
    /// but the addition, which is atomic then, in whatever blocks these are. Where somebody does ask for one after all, it was
    /// loaded for more: `if (v->tokens) v->tokens--` must not become an addition that packets side by side do as often as there
    /// are packets.
    fn finished(mut self, root: Key) -> Result<(Flow, Vec<Needed>)> {
        loop {
            let mut blocks = self.made(root)?;
            value_numbering::run(&mut blocks, &self.shared.memory, &self.shared.added);
            let (needed, first) = liveness::needed(&blocks, &self.shared.memory);
            let observed = liveness::observed(&blocks, &needed);
            if observed.is_disjoint(&self.shared.added) {
                let idle = self.idle_copies(&blocks, &needed);
                if !idle.is_empty() {
                    idle.into_iter().for_each(|map| self.shared.copies.let_go(map));
                    continue;
                }
                return Ok((Flow { blocks, shared: self.shared, first }, needed));
            }
            if !self.shared.observed.is_empty() {
                // What changed has made others so: let go of all.
                self.shared.observed.extend((0..).take(self.shared.loads.all().len()));
            }
            self.shared.observed.extend(observed);
        }
    }

    /// Maps of whose values there are copies in memory that nobody looks at: what is only added to, in an array for example.
    fn idle_copies(&self, blocks: &[Block], needed: &[Needed]) -> Vec<u16> {
        let recalled = |(block, needed): (&Block, &Needed)| {
            let ops = block.code.ops.iter().zip(&needed.ops).filter(|(_, needed)| **needed);
            let frames = ops.filter_map(|(op, _)| match op {
                Op::Recall { frame, .. } => Some(*frame),
                _ => None,
            });
            frames.collect::<BTreeSet<u16>>()
        };
        let recalled: BTreeSet<u16> = blocks.iter().zip(needed).flat_map(recalled).collect();
        let copies = self.shared.copies.in_memory().map(|(map, _)| map);
        copies.filter(|&map| !recalled.contains(&frame_of(map))).collect()
    }

    /// The blocks with their code, once the types are known.
    fn made(&mut self, root: Key) -> Result<Vec<Block>> {
        // What was found on the way there may not be what is left.
        self.shared.used.clear();
        self.shared.helpers.clear();
        self.shared.families = crate::fib::Families::default();
        self.shared.events.begin_again();
        self.shared.sites = Numbers::from(0);
        self.shared.losses = Numbers::from(0);
        self.shared.added.clear();
        let mut numbers: HashMap<Key, usize> = HashMap::from([(root, 0)]);
        let mut order = vec![root];
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < order.len() {
            let key = order[at];
            at += 1;
            let number = self.keys.of(key) as usize;
            let state = self.states[number].clone().expect("all that is led to was looked at");
            let (walk, way, _) = self.block(key, state)?;
            let edges = &self.edges;
            let mut number_of = |to: Key| {
                let key = Key { variant: *edges.get(&(number as u32, to))?, ..to };
                Some(*numbers.entry(key).or_insert_with(|| {
                    order.push(key);
                    order.len() - 1
                }))
            };
            // Copies tell more of what is loaded than maps do, and nothing less, so that no way is new.
            let end = match way {
                Way::Exit => Some(End::Exit),
                Way::Goto(to) => number_of(to).map(End::Goto),
                Way::Branch(condition, taken, fallen) => {
                    let both = number_of(taken).zip(number_of(fallen));
                    both.map(|(taken, fallen)| End::Branch(condition, taken, fallen))
                }
            };
            let Some(end) = end else {
                return Err(self.too_much(key, "what is known of a value here does not settle"));
            };
            blocks.push(Block { code: walk.0, state: walk.1, end });
        }
        Ok(blocks)
    }

    /// Goes through a block: its code with what there is at its end, where it goes on, and what there is on the way there.
    fn block(&mut self, key: Key, state: State) -> Result<Gone> {
        let context = self.context(key);
        let (section, first) = (context.section, context.first);
        let linked = self.linked;
        let instructions = &linked.object.sections[section as usize].instructions;
        let here = |place| Key { context: key.context, place, variant: 0 };
        let mut at = match key.place {
            Place::At(at) => at as usize,
            Place::Round(at) => return self.round(key, at, state),
            Place::Tail(at, number) => return self.tail(key, at, number, state),
            Place::Inner(at, number) => return self.inner(key, at, number, state),
            Place::Each(at) => return self.each(key, at, state),
        };
        let leaders = leaders(&mut self.leaders, linked, section, first);
        let mut walk = Walk::new(linked, &mut self.shared, state, key.context, section as usize);
        loop {
            walk.at = at;
            let Some(&it) = instructions.get(at) else {
                walk.at = instructions.len().saturating_sub(1);
                return walk.refuse("control runs over the section's end");
            };
            self.instructions += 1;
            if self.instructions > MAX_WORK {
                return walk
                    .refuse("the program is too much to look at: functions count where they are called, and loops several times")
                    .map_err(Refused::too_much);
            }
            if let Some((to, falls)) = jump(it) {
                let target = at as i64 + 1 + to;
                if target < 0 || target >= instructions.len() as i64 {
                    return walk.refuse("a jump leads out of the section");
                }
                let taken_to = here(Place::At(target as u32));
                if !falls {
                    return Ok(goes_to(walk, taken_to));
                }
                let fallen_to = here(Place::At(at as u32 + 1));
                walk.leave_holdings();
                let branch = walk.branch(it)?;
                if taken_to == fallen_to {
                    // Which way it is says nothing there, and edges are known by where they lead.
                    return Ok(goes_to(walk, taken_to));
                }
                let made = done(walk);
                return Ok(match (branch.taken, branch.fallen) {
                    (Some(taken), Some(fallen)) => (
                        made,
                        Way::Branch(branch.condition, taken_to, fallen_to),
                        vec![(fallen_to, fallen), (taken_to, taken)],
                    ),
                    (Some(taken), None) => (made, Way::Goto(taken_to), vec![(taken_to, taken)]),
                    (None, Some(fallen)) => (made, Way::Goto(fallen_to), vec![(fallen_to, fallen)]),
                    // The types contradict each other: no packet comes here.
                    (None, None) => (made, Way::Exit, Vec::new()),
                });
            }
            if it.code == EXIT {
                return exit(linked, &self.contexts, walk, context);
            }
            if it.code == CALL && it.src == call::FUNCTION {
                let (section, first) = callee(&walk, it)?;
                if !walk.enter()? {
                    return Ok((done(walk), Way::Exit, Vec::new()));
                }
                let inner = self.contexts.of(Context { section, first, caller: Some((key.context, at as u32)) });
                return Ok(goes_to(walk, Key { context: inner, place: Place::At(first), variant: 0 }));
            }
            // Helpers that lead elsewhere than on. What they are given is looked at there, or before the first round.
            let called = (it.code == CALL && it.src == call::HELPER).then_some(it.imm as u32);
            let place = match called {
                Some(helper::TAIL_CALL) => Some(Place::Tail(at as u32, 0)),
                Some(helper::MAP_LOOKUP_ELEM) if walk.is_map_of_maps() => Some(Place::Inner(at as u32, 0)),
                Some(helper::FOR_EACH_MAP_ELEM) => {
                    for_each_map_elem::begin(&mut walk)?;
                    Some(Place::Each(at as u32))
                }
                Some(helper::LOOP) => {
                    bpf_loop::begin(&mut walk)?;
                    Some(Place::Round(at as u32))
                }
                _ => None,
            };
            if let Some(place) = place {
                return Ok(goes_to(walk, here(place)));
            }
            at = walk.step(at)?;
            if leaders.contains(&(at as u32)) {
                return Ok(goes_to(walk, here(Place::At(at as u32))));
            }
        }
    }
}

/// Where an instruction of a function goes on in it.
fn onward(at: u32, it: Instruction, count: usize) -> Vec<u32> {
    let next = at + if it.code == crate::decode::instruction::LDDW { 2 } else { 1 };
    let mut to = Vec::new();
    match jump(it) {
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

/// The instructions of a function that control comes to.
fn reached(instructions: &[Instruction], first: u32) -> BTreeSet<u32> {
    let (mut seen, mut work) = (BTreeSet::new(), vec![first]);
    while let Some(at) = work.pop() {
        // A function may be said to begin anywhere.
        let Some(&it) = instructions.get(at as usize) else { continue };
        if seen.insert(at) {
            work.extend(onward(at, it, instructions.len()));
        }
    }
    seen
}

/// The instructions of a function in reverse post-order: each before those that it leads to, but for those that lead back.
fn order(instructions: &[Instruction], first: u32) -> HashMap<u32, u32> {
    let mut seen = BTreeSet::from([first]);
    let mut done = Vec::new();
    let ways =
        |at: u32| instructions.get(at as usize).map(|&it| onward(at, it, instructions.len())).unwrap_or_default();
    let mut work = vec![(first, ways(first))];
    while let Some((at, open)) = work.last_mut() {
        // Where a jump leads before what is behind it, which so comes first.
        if open.is_empty() {
            done.push(*at);
            work.pop();
            continue;
        }
        let to = open.remove(0);
        if seen.insert(to) {
            work.push((to, ways(to)));
        }
    }
    done.into_iter().rev().zip(0..).collect()
}

/// Where blocks begin in a function.
fn leaders<'l>(
    known: &'l mut HashMap<(u32, u32), BTreeSet<u32>>,
    linked: &Linked,
    section: u32,
    first: u32,
) -> &'l BTreeSet<u32> {
    known.entry((section, first)).or_insert_with(|| {
        let instructions = &linked.object.sections[section as usize].instructions;
        let jumps = reached(instructions, first).into_iter().filter(|&at| jump(instructions[at as usize]).is_some());
        jumps.flat_map(|at| onward(at, instructions[at as usize], instructions.len())).collect()
    })
}

/// The end of a function or program.
fn exit(linked: &Linked, contexts: &Numbers<Context>, mut walk: Walk, context: Context) -> Result<Gone> {
    let Some((caller, at)) = context.caller else {
        let result = walk.get(0)?;
        walk.expect_number(result, "what the program returns")?;
        return Ok((done(walk), Way::Exit, Vec::new()));
    };
    let by = {
        let section = contexts.all()[caller as usize].section;
        linked.object.sections[section as usize].instructions[at as usize]
    };
    match (by.src, by.imm as u32) {
        (call::HELPER, helper::FOR_EACH_MAP_ELEM) => for_each_map_elem::returned(walk, caller, at),
        (call::HELPER, _) => bpf_loop::returned(walk, caller, at),
        _ => {
            let own = walk.frame();
            // A function that returns nothing has set nothing.
            if matches!(walk.state.scratch[0].ty, Ty::Stack { frame, .. } if usize::from(frame) == own) {
                return walk
                    .refuse("a function returns a pointer to its own stack, which is gone when it has returned");
            }
            walk.state.frames.pop();
            walk.after_call();
            Ok(goes_to(walk, Key { context: caller, place: Place::At(at + 1), variant: 0 }))
        }
    }
}

/// Behind a round of what a helper calls a function for: on with the next, unless the function gave something else than 0.
fn again_or_behind(mut walk: Walk, result: Value, again: Key, at: u32) -> Gone {
    let any = walk.code.binary(Or, result.low, result.high);
    let goes_on = walk.code.by(Eq, any, 0);
    let behind = Key { place: Place::At(at + 1), ..again };
    walk.leave_holdings();
    let state = walk.state.clone();
    branches(walk, goes_on, (again, state.clone()), (behind, state.without_rounds()))
}

/// A block that goes on in one place.
fn goes_to(mut walk: Walk, to: Key) -> Gone {
    walk.leave_holdings();
    let state = walk.state.clone();
    (done(walk), Way::Goto(to), vec![(to, state)])
}

/// A block that goes on in one of two places, which differ, each with what there is then.
fn branches(walk: Walk, condition: Id, yes: (Key, State), no: (Key, State)) -> Gone {
    match walk.code.as_truth(condition) {
        Some(true) => (done(walk), Way::Goto(yes.0), vec![yes]),
        Some(false) => (done(walk), Way::Goto(no.0), vec![no]),
        None => (done(walk), Way::Branch(condition, yes.0, no.0), vec![yes, no]),
    }
}

fn done(mut walk: Walk) -> (Code, State) {
    walk.code.flush();
    (walk.code, walk.state)
}

/// Where a jump leads, from the next instruction on, and whether control may also go on there.
fn jump(it: Instruction) -> Option<(i64, bool)> {
    match it.class() {
        class::JMP | class::JMP32 if it.code == JA => Some((i64::from(it.off), false)),
        class::JMP32 if it.code == JA32 => Some((i64::from(it.imm), false)),
        class::JMP | class::JMP32 if it.code != CALL && it.code != EXIT => Some((i64::from(it.off), true)),
        _ => None,
    }
}

/// The function that an instruction calls.
fn callee(walk: &Walk, it: Instruction) -> Result<(u32, u32)> {
    let section = &walk.linked.object.sections[walk.section];
    let (section, first) = match section.references.get(&walk.at) {
        Some(&Reference::Code { section, offset }) => (section, offset as i64 / 8 + i64::from(it.imm) + 1),
        Some(Reference::External(name)) => {
            return walk.lack(format!("`{name}` is called, a function of the kernel's"), "kernel functions (kfuncs)");
        }
        Some(_) => return walk.refuse("what is called is no function"),
        None => (walk.section, walk.at as i64 + 1 + i64::from(it.imm)),
    };
    let count = walk.linked.object.sections[section].instructions.len() as i64;
    if first < 0 || first >= count {
        return walk.refuse("a call leads out of the section");
    }
    Ok((section as u32, first as u32))
}
