//! Every order in which a few packets' operations on maps may come, tried on the prelude's own
//! text: the interpreter runs each packet up to its next operation
//! ([`map_requests`](portcullis_core::interp::map_requests)), and [`memory`] says all that the
//! operation may give. What two ways lead to is looked at once, so that all outcomes are found in
//! seconds; [`check`] says which of them are right.
//!
//! What a packet does depends on nothing but what its operations have given. So the interpreter
//! runs once for each series of them (`Packets`), and less: where two have led a packet to the same
//! place with the same in hand, they are one.

pub mod check;
pub mod memory;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use portcullis_core::interp::Interpreter;
use portcullis_core::interp::map_requests::{AtomicOp, MapReply, MapRequest, Progress};
use portcullis_core::packet::{Metadata, Verdict};
use portcullis_core::program::Program;

use memory::{Memory, Order, Word};

/// Operations of a packet that are more than any needs that waits for nobody.
const MOST: usize = 60;

/// Deliberate faults, which the exploration must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Compare and exchange is a load, and then a store.
    InTwo,
    /// Claiming a word of this number in a place does nothing, and succeeds.
    Skipped {
        /// The word's number.
        word: usize,
        /// Words before the first place.
        header: usize,
        /// Words of a place.
        stride: usize,
    },
    /// Additions to this word of the header are a load, and then a store.
    Lost(usize),
}

/// Operations to interleave.
#[derive(Debug)]
pub struct Case<'a> {
    /// The filter.
    pub program: &'a Arc<Program>,
    /// The words of its maps before.
    pub maps: Vec<Vec<u32>>,
    /// The packets, which run side by side.
    pub packets: Vec<Vec<u8>>,
    /// How memory behaves.
    pub order: Order,
    /// How often compare and exchange may fail for no reason, for each packet.
    pub whims: usize,
    /// See [`Fault`].
    pub fault: Option<Fault>,
}

/// How the packets may have ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Of each packet what was returned, and its bytes.
    pub packets: Vec<(Verdict, Vec<u8>)>,
    /// The words of the maps.
    pub maps: Vec<Vec<u32>>,
}

/// A packet that comes to no end.
#[derive(Debug)]
pub struct Waits {
    /// Number of the packet.
    pub packet: usize,
    /// Latest request.
    pub last: MapRequest,
}

/// Calls `visit` with every outcome; gives the number of states that were met on the way.
///
/// # Errors
/// Where a packet waits for another.
///
/// # Panics
/// When the interpreter cannot run the filter.
pub fn explore(case: &Case<'_>, mut visit: impl FnMut(&Outcome)) -> Result<usize, Waits> {
    let mut packets = Packets::new(case);
    let threads = case
        .packets
        .iter()
        .enumerate()
        .map(|(number, packet)| Thread { node: packets.root(number, packet), half: None });
    let first = State { threads: threads.collect(), memory: Memory::default() };
    let (mut seen, mut open) = (HashSet::new(), vec![first]);
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let before = open.len();
        for number in 0..state.threads.len() {
            packets.steps(case, &state, number, &mut open)?;
        }
        if open.len() == before {
            visit(&packets.outcome(case, &state));
        }
    }
    Ok(seen.len())
}

/// Where all packets are, and the memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    threads: Vec<Thread>,
    memory: Memory,
}

/// How far a packet has got.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Thread {
    /// What its operations have given: a node of [`Packets`].
    node: usize,
    /// The second half of an operation that a fault has made two: what is to be stored, and what
    /// the whole gives.
    half: Option<(u32, MapReply)>,
}

/// What packets do next, by what their operations have given: a tree, of which what is asked for is
/// made.
struct Packets {
    interpreter: Interpreter,
    nodes: Vec<Node>,
    /// Nodes by packet, whims, and what the packet does next.
    known: HashMap<(usize, usize, String), usize>,
    /// Words that were asked for.
    words: BTreeMap<(usize, usize), usize>,
}

struct Node {
    packet: usize,
    answers: Vec<MapReply>,
    /// How often compare and exchange has failed for no reason.
    whims: usize,
    next: Progress,
    children: HashMap<MapReply, usize>,
}

impl Packets {
    fn new(case: &Case<'_>) -> Packets {
        let interpreter = Interpreter::new(case.program).unwrap_or_else(|error| panic!("{error}"));
        Packets { interpreter, nodes: Vec::new(), known: HashMap::new(), words: BTreeMap::new() }
    }

    /// The node that answers lead a packet to.
    fn node(&mut self, number: usize, packet: &[u8], answers: Vec<MapReply>, whims: usize) -> usize {
        let next =
            self.interpreter.run_with_replies(packet, &Metadata::default(), &answers).unwrap_or_else(|e| panic!("{e}"));
        let fresh = self.nodes.len();
        let known = self.known.entry((number, whims, format!("{next:?}"))).or_insert(fresh);
        if *known == fresh {
            self.nodes.push(Node { packet: number, answers, whims, next, children: HashMap::new() });
        }
        *known
    }

    fn root(&mut self, number: usize, packet: &[u8]) -> usize {
        self.node(number, packet, Vec::new(), 0)
    }

    fn child(&mut self, case: &Case<'_>, node: usize, answer: MapReply, whim: bool) -> Result<usize, Waits> {
        if let Some(&child) = self.nodes[node].children.get(&answer) {
            return Ok(child);
        }
        let Node { packet, ref answers, whims, .. } = self.nodes[node];
        let many = answers.len() == MOST;
        let answers = answers.iter().copied().chain([answer]).collect();
        let child = self.node(packet, &case.packets[packet], answers, whims + usize::from(whim));
        if let (true, Progress::Blocked { request, .. }) = (many || self.leads(child, node), &self.nodes[node].next) {
            return Err(Waits { packet, last: *request });
        }
        self.nodes[node].children.insert(answer, child);
        Ok(child)
    }

    /// Whether a packet may come from a node to another: where it then goes on to the first, it
    /// goes round.
    fn leads(&self, from: usize, to: usize) -> bool {
        let (mut open, mut seen) = (vec![from], HashSet::new());
        while let Some(node) = open.pop() {
            if node == to {
                return true;
            }
            if seen.insert(node) {
                open.extend(self.nodes[node].children.values());
            }
        }
        false
    }

    /// Puts the states that one packet's next operation may lead to.
    fn steps(&mut self, case: &Case<'_>, state: &State, number: usize, open: &mut Vec<State>) -> Result<(), Waits> {
        let thread = &state.threads[number];
        let Progress::Blocked { request, .. } = self.nodes[thread.node].next else { return Ok(()) };
        let fresh = self.words.len();
        let word = *self.words.entry((request.map, request.at)).or_insert(fresh);
        let threads = state.threads.len();
        let start = || Word::new(case.maps[request.map][request.at], threads);
        let whims = self.nodes[thread.node].whims < case.whims;
        let mut put = |packets: &mut Packets, half, memory, answer, whim| {
            let mut state = State { threads: state.threads.clone(), memory };
            state.threads[number] = match half {
                Some(value) => Thread { node: thread.node, half: Some((value, answer)) },
                None => Thread { node: packets.child(case, thread.node, answer, whim)?, half: None },
            };
            // What has ended looks at nothing any more.
            let ended = |thread: &Thread| matches!(packets.nodes[thread.node].next, Progress::Finished(_));
            let State { threads, memory } = &mut state;
            memory.forget(|number| ended(&threads[number]));
            open.push(state);
            Ok(())
        };
        if let Some((value, answer)) = thread.half {
            for memory in state.memory.stores(case.order, word, number, value, start) {
                put(self, None, memory, answer, false)?;
            }
            return Ok(());
        }
        if let Some(half) = case.fault.and_then(|fault| fault.broken(&request)) {
            let Some(half) = half else {
                return put(self, None, state.memory.clone(), MapReply { before: 0, exchanged: true }, false);
            };
            for (memory, before) in state.memory.loads(case.order, word, number, start) {
                let answer = MapReply { before, exchanged: true };
                match half.after(before) {
                    Some(value) => put(self, Some(value), memory, answer, false)?,
                    None => put(self, None, memory, MapReply { exchanged: false, ..answer }, false)?,
                }
            }
            return Ok(());
        }
        for (memory, mut answer, whim) in state.memory.does(case.order, word, number, request.op, whims, start) {
            if !request.uses_result {
                answer = MapReply::default();
            }
            put(self, None, memory, answer, whim)?;
        }
        Ok(())
    }

    fn outcome(&self, case: &Case<'_>, state: &State) -> Outcome {
        let packet = |thread: &Thread| match &self.nodes[thread.node].next {
            Progress::Finished(outcome) => (outcome.verdict, outcome.packet.clone()),
            Progress::Blocked { request, .. } => unreachable!("it goes on with {request:?}"),
        };
        let mut maps = case.maps.clone();
        for (&(map, at), &word) in &self.words {
            if let Some(value) = state.memory.last(word) {
                maps[map][at] = value;
            }
        }
        Outcome { packets: state.threads.iter().map(packet).collect(), maps }
    }
}

impl Fault {
    /// What becomes of a request: nothing unusual, nothing at all, or two halves.
    fn broken(self, request: &MapRequest) -> Option<Option<AtomicOp>> {
        match (self, request.op) {
            (Fault::InTwo, AtomicOp::CompareExchange { .. }) => Some(Some(request.op)),
            (Fault::Lost(at), AtomicOp::Add(_)) if at == request.at => Some(Some(request.op)),
            (Fault::Skipped { word, header, stride }, AtomicOp::CompareExchange { .. })
                if request.at >= header && (request.at - header) % stride == word =>
            {
                Some(None)
            }
            _ => None,
        }
    }
}
