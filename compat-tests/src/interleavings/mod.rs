//! Model checking of map operations: explores every interleaving of a few packets' operations, on
//! the source of the prelude itself. The interpreter runs each packet up to its next operation
//! ([`map_requests`](portcullis_core::interp::map_requests)), and [`memory`] returns all possible
//! results of the operation. States reached in two ways are explored once, so that all outcomes are
//! found in seconds; [`check`] decides which of them are correct.
//!
//! A packet's behaviour depends only on the results of its operations, so the interpreter runs once
//! for each sequence of results (`Packets`). Sequences that lead a packet to the same point with
//! the same values are merged.

pub mod check;
pub mod memory;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use portcullis_core::interp::Interpreter;
use portcullis_core::interp::map_requests::{AtomicOp, MapReply, MapRequest, Progress};
use portcullis_core::packet::{Metadata, Verdict};
use portcullis_core::program::Program;

use memory::{Memory, Order, Word};

/// Upper bound on a packet's operations, more than any wait-free operation needs.
const MAX_OPERATIONS: usize = 60;

/// Deliberate faults, which the exploration must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Splits compare-and-exchange into a load and a store.
    SplitExchange,
    /// Skips the claim of one word of a slot, and reports success.
    SkippedClaim {
        /// Index of the word in its slot.
        word: usize,
        /// Words before the first slot.
        header: usize,
        /// Words per slot.
        stride: usize,
    },
    /// Splits additions to this word of the header into a load and a store.
    SplitAddition(usize),
}

/// Operations to interleave.
#[derive(Debug)]
pub struct Case<'a> {
    /// The filter.
    pub program: &'a Arc<Program>,
    /// Initial words of the filter's maps.
    pub maps: Vec<Vec<u32>>,
    /// The packets, which run concurrently.
    pub packets: Vec<Vec<u8>>,
    /// Memory model.
    pub order: Order,
    /// Maximum number of spurious failures of compare-and-exchange per packet.
    pub spurious_failures: usize,
    /// Fault to inject, if any.
    pub fault: Option<Fault>,
}

/// A possible final state.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Each packet's verdict and final bytes.
    pub packets: Vec<(Verdict, Vec<u8>)>,
    /// Final words of the maps.
    pub maps: Vec<Vec<u32>>,
}

/// A packet that does not terminate.
#[derive(Debug)]
pub struct UnendingPacket {
    /// Number of the packet.
    pub packet: usize,
    /// Latest request.
    pub last: MapRequest,
}

/// Calls `visit` with every outcome and returns the number of states explored.
///
/// # Errors
/// If a packet waits for another.
///
/// # Panics
/// If the interpreter cannot run the filter.
pub fn explore(case: &Case<'_>, mut visit: impl FnMut(&Outcome)) -> Result<usize, UnendingPacket> {
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

/// State of the exploration: the progress of all packets, and the memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    threads: Vec<Thread>,
    memory: Memory,
}

/// Progress of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Thread {
    /// Results of the packet's operations so far, as a node of [`Packets`].
    node: usize,
    /// Second half of an operation split by a fault: the value to store, and the result of the
    /// whole operation.
    half: Option<(u32, MapReply)>,
}

/// The packets' next steps by the results of their operations: a tree that is built on demand.
struct Packets {
    interpreter: Interpreter,
    nodes: Vec<Node>,
    /// Nodes by packet, spurious failures, and next step.
    known: HashMap<(usize, usize, String), usize>,
    /// Numbers of the words that were accessed.
    words: BTreeMap<(usize, usize), usize>,
}

struct Node {
    packet: usize,
    answers: Vec<MapReply>,
    /// Spurious failures of compare-and-exchange so far.
    spurious_failures: usize,
    next: Progress,
    children: HashMap<MapReply, usize>,
}

impl Packets {
    fn new(case: &Case<'_>) -> Packets {
        let interpreter = Interpreter::new(case.program).unwrap_or_else(|error| panic!("{error}"));
        Packets { interpreter, nodes: Vec::new(), known: HashMap::new(), words: BTreeMap::new() }
    }

    /// Returns the node that a sequence of results leads a packet to.
    fn node(&mut self, number: usize, packet: &[u8], answers: Vec<MapReply>, spurious_failures: usize) -> usize {
        let next =
            self.interpreter.run_with_replies(packet, &Metadata::default(), &answers).unwrap_or_else(|e| panic!("{e}"));
        let fresh = self.nodes.len();
        let known = self.known.entry((number, spurious_failures, format!("{next:?}"))).or_insert(fresh);
        if *known == fresh {
            self.nodes.push(Node { packet: number, answers, spurious_failures, next, children: HashMap::new() });
        }
        *known
    }

    fn root(&mut self, number: usize, packet: &[u8]) -> usize {
        self.node(number, packet, Vec::new(), 0)
    }

    fn child(
        &mut self,
        case: &Case<'_>,
        node: usize,
        answer: MapReply,
        spurious: bool,
    ) -> Result<usize, UnendingPacket> {
        if let Some(&child) = self.nodes[node].children.get(&answer) {
            return Ok(child);
        }
        let Node { packet, ref answers, spurious_failures, .. } = self.nodes[node];
        let many = answers.len() == MAX_OPERATIONS;
        let answers = answers.iter().copied().chain([answer]).collect();
        let child = self.node(packet, &case.packets[packet], answers, spurious_failures + usize::from(spurious));
        if let (true, Progress::Blocked { request, .. }) = (many || self.leads(child, node), &self.nodes[node].next) {
            return Err(UnendingPacket { packet, last: *request });
        }
        self.nodes[node].children.insert(answer, child);
        Ok(child)
    }

    /// Returns whether a packet can get from one node to another; a step from the latter back to
    /// the former is then a cycle.
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

    /// Adds the states that a packet's next operation may lead to.
    fn steps(
        &mut self,
        case: &Case<'_>,
        state: &State,
        number: usize,
        open: &mut Vec<State>,
    ) -> Result<(), UnendingPacket> {
        let thread = &state.threads[number];
        let Progress::Blocked { request, .. } = self.nodes[thread.node].next else { return Ok(()) };
        let fresh = self.words.len();
        let word = *self.words.entry((request.map, request.at)).or_insert(fresh);
        let threads = state.threads.len();
        let start = || Word::new(case.maps[request.map][request.at], threads);
        let spurious_failures = self.nodes[thread.node].spurious_failures < case.spurious_failures;
        let mut put = |packets: &mut Packets, half, memory, answer, spurious| {
            let mut state = State { threads: state.threads.clone(), memory };
            state.threads[number] = match half {
                Some(value) => Thread { node: thread.node, half: Some((value, answer)) },
                None => Thread { node: packets.child(case, thread.node, answer, spurious)?, half: None },
            };
            // A packet that has ended reads nothing more.
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
        for (memory, mut answer, spurious) in
            state.memory.does(case.order, word, number, request.op, spurious_failures, start)
        {
            if !request.uses_result {
                answer = MapReply::default();
            }
            put(self, None, memory, answer, spurious)?;
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
    /// Returns how the fault changes a request: not at all, by skipping it, or by splitting it.
    fn broken(self, request: &MapRequest) -> Option<Option<AtomicOp>> {
        match (self, request.op) {
            (Fault::SplitExchange, AtomicOp::CompareExchange { .. }) => Some(Some(request.op)),
            (Fault::SplitAddition(at), AtomicOp::Add(_)) if at == request.at => Some(Some(request.op)),
            (Fault::SkippedClaim { word, header, stride }, AtomicOp::CompareExchange { .. })
                if request.at >= header && (request.at - header) % stride == word =>
            {
                Some(None)
            }
            _ => None,
        }
    }
}
