//! From control flow as jumps have it to `if` and `loop`, for front ends whose language has only jumps.
//!
//! A block stands where the blocks that lead to it allow:
//! - one that a single block leads to stands in that block's arm;
//! - one that several lead to stands behind its immediate dominator, in reverse post-order. Who leads to it sets its
//!   *flag*, and it is run where that is set; where one other can be meant, it is run where the other's flag is not set, so
//!   that a chain of blocks which all may lead far away has one flag; where nothing else can be meant, there is none;
//! - a block that is led back to from blocks that it dominates begins a loop, and what the loop leads to stands behind it;
//! - what is led back to in another way (an irreducible graph) gets a block in front that tells its entries apart
//!   ([`reducible_graph`]). That costs a variable and a branch each round, and nothing else does.
//!
//! Branches nest no deeper than [`DEEPEST`] but for loops: what would stand deeper stands behind a flag further out. Nor are
//! there more than [`RETURNS`] returns before the end. Both are for devices without jumps (`passes/nesting.rs`).

mod dominators;
pub mod emit;
mod reducible_graph;

use std::collections::{BTreeMap, BTreeSet};

use dominators::Dominators;

/// Branches in each other, loops apart.
const DEEPEST: usize = 16;

/// Returns that end a function before its end; others keep their value, and control comes to the end by itself.
const RETURNS: usize = 16;

/// Loops in each other, at most.
pub const MAX_LOOPS: usize = 64;

/// A control-flow graph, entered at block 0.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Where a block goes on, in the order of its branch's arms; nowhere if it returns.
    pub successors: Vec<Vec<usize>>,
    /// Whether a block that returns is so small that it is better copied than led to.
    pub copied: Vec<bool>,
}

/// A statement. Blocks are those of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// What a block does before it goes on.
    Block(usize),
    /// Where a block goes on: one arm for each of its successors.
    Branch { block: usize, arms: Vec<Vec<Node>> },
    /// The function returns what this block, which stands before, gives.
    Return(usize),
    /// That is kept, to be returned at the end.
    Keep(usize),
    /// Sets a flag, or clears it. Flags are not set at first.
    Flag(usize, bool),
    /// If a flag is set, or is not.
    If { flag: usize, set: bool, body: Vec<Node> },
    /// Goes round by `Continue` alone: no body ends by itself.
    Loop(Vec<Node>),
    /// Leaves the innermost loop.
    Break,
    /// Begins its next round.
    Continue,
    /// Says which arm a dispatch will take.
    Label { dispatch: usize, arm: usize },
    /// Takes that arm.
    Dispatch { dispatch: usize, arms: Vec<Vec<Node>> },
}

/// A function's statements.
#[derive(Debug, Clone, Default)]
pub struct Structured {
    /// In their order.
    pub body: Vec<Node>,
    /// How many flags there are.
    pub flags: usize,
    /// How many dispatches.
    pub dispatches: usize,
    /// Whether control may come to the end, where what was kept is returned.
    pub ends: bool,
}

/// More than [`MAX_LOOPS`] loops in each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

/// An edge; one to a dispatch says which of its arms is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edge {
    to: usize,
    arm: Option<usize>,
}

/// Structures a graph. Blocks that are not reached are left out.
pub fn structure(graph: &Graph) -> Result<Structured, TooDeep> {
    within(graph, DEEPEST, RETURNS)
}

/// The same within other limits.
fn within(graph: &Graph, deepest: usize, returns: usize) -> Result<Structured, TooDeep> {
    let flow = reducible_graph::make_reducible(graph)?;
    let dominators = Dominators::of(&flow);
    let mut placing = Placing { deepest, returns, ..Placing::new(graph, &flow, &dominators) };
    if (0..flow.successors.len()).any(|block| placing.dominators.loops_around(block) > MAX_LOOPS) {
        return Err(TooDeep);
    }
    let mut body = Vec::new();
    if let Some(arm) = flow.entry.arm {
        body.push(Node::Label { dispatch: flow.entry.to - graph.successors.len(), arm });
    }
    let rest = placing.region(flow.entry.to, 0, &mut body);
    debug_assert!(rest.iter().all(|it| *it == Target::End), "all that is led to has been met: {rest:?}");
    let mut numbers = BTreeMap::new();
    number(&mut body, &placing.tested, &mut numbers);
    let dispatches = flow.successors.len() - graph.successors.len();
    Ok(Structured { body, flags: numbers.len(), dispatches, ends: !rest.is_empty() })
}

/// What control may be on its way to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// A block further on.
    Block(usize),
    /// Another round of the loop that this block begins.
    Again(usize),
    /// The function's end.
    End,
}

type Pending = BTreeSet<Target>;

/// A list of blocks that stand one behind the other, while what is before them is being made.
struct Frame {
    depth: usize,
    /// The loop that it is in.
    within: Option<usize>,
    /// By their places in reverse post-order.
    blocks: BTreeMap<usize, usize>,
}

struct Placing<'a> {
    graph: &'a Graph,
    flow: &'a reducible_graph::Flow,
    dominators: &'a Dominators,
    /// Blocks that stand behind a block, or behind the loop that it begins.
    behind: Vec<Vec<usize>>,
    behind_loop: Vec<Vec<usize>>,
    /// Blocks that stand in the arm that leads to them.
    nested: Vec<bool>,
    /// How many blocks each dominates.
    dominated: Vec<usize>,
    frames: Vec<Frame>,
    /// The loops under way, and what is meant where control breaks out of them.
    loops: Vec<(usize, Pending)>,
    deepest: usize,
    /// How many more returns there may be before the end.
    returns: usize,
    /// What is tested: other flags need not be set.
    tested: BTreeSet<Target>,
}

impl<'a> Placing<'a> {
    fn new(graph: &'a Graph, flow: &'a reducible_graph::Flow, dominators: &'a Dominators) -> Placing<'a> {
        let count = flow.successors.len();
        let mut placing = Placing {
            graph,
            flow,
            dominators,
            behind: vec![Vec::new(); count],
            behind_loop: vec![Vec::new(); count],
            nested: vec![false; count],
            dominated: vec![1; count],
            frames: Vec::new(),
            loops: Vec::new(),
            deepest: DEEPEST,
            returns: RETURNS,
            tested: BTreeSet::new(),
        };
        for &block in &dominators.order {
            let Some(dominator) = dominators.immediate(block).filter(|_| !placing.is_copied(block)) else { continue };
            // The outermost loop that leads here from within.
            let left = dominators.loops_of(dominator).take_while(|&head| !dominators.in_loop(block, head)).last();
            match left {
                Some(head) => placing.behind_loop[head].push(block),
                None if dominators.edges_into(block) == 1 => placing.nested[block] = true,
                None => placing.behind[dominator].push(block),
            }
        }
        for &block in dominators.order.iter().rev() {
            if let Some(dominator) = dominators.immediate(block) {
                placing.dominated[dominator] += placing.dominated[block];
            }
        }
        placing
    }

    /// How much an arm that leads there has in it.
    fn weight(&self, block: usize) -> usize {
        if self.nested[block] { self.dominated[block] } else { 0 }
    }

    fn is_copied(&self, block: usize) -> bool {
        self.graph.copied.get(block).copied().unwrap_or(false) && self.flow.successors[block].is_empty()
    }

    fn within(&self) -> Option<usize> {
        self.loops.last().map(|(head, _)| *head)
    }

    fn frame(&mut self, depth: usize, blocks: &[usize]) {
        let blocks = blocks.iter().map(|&block| (self.dominators.position(block), block)).collect();
        self.frames.push(Frame { depth, within: self.within(), blocks });
    }

    /// A block with all that stands in and behind it; what control may be on its way to at the end.
    fn region(&mut self, block: usize, depth: usize, out: &mut Vec<Node>) -> Pending {
        if !self.dominators.is_head(block) {
            return self.inner(block, depth, out);
        }
        let dominators = self.dominators;
        let behind = std::mem::take(&mut self.behind_loop[block]);
        self.frame(depth, &behind);
        self.loops.push((block, Pending::new()));
        let mut body = Vec::new();
        let mut pending = self.inner(block, 0, &mut body);
        let again = Target::Again(block);
        if pending.remove(&again) {
            if pending.is_empty() {
                body.push(Node::Continue);
            } else {
                self.tested.insert(again);
                let flag = self.flag(again);
                body.push(Node::If { flag, set: true, body: vec![Node::Flag(flag, false), Node::Continue] });
            }
        }
        if !pending.is_empty() {
            body.push(Node::Break);
        }
        let (_, broken) = self.loops.pop().expect("it was pushed above");
        pending.extend(broken);
        out.push(Node::Loop(body));
        debug_assert!(!pending.contains(&again) && dominators.is_head(block));
        self.rest(pending, depth, out)
    }

    /// A block without the loop that it begins.
    fn inner(&mut self, block: usize, depth: usize, out: &mut Vec<Node>) -> Pending {
        let behind = std::mem::take(&mut self.behind[block]);
        self.frame(depth, &behind);
        let pending = self.leave(block, depth, out);
        self.rest(pending, depth, out)
    }

    /// A block's own statements and where it goes on.
    fn leave(&mut self, block: usize, depth: usize, out: &mut Vec<Node>) -> Pending {
        let flow = self.flow;
        let own = self.graph.successors.len();
        if block < own {
            out.push(Node::Block(block));
        }
        match flow.successors[block].as_slice() {
            [] => self.end(block, out),
            [only] if block < own => self.edge(*only, depth, out),
            edges => {
                let mut pending = Pending::new();
                let (mut arms, mut behind) = (vec![Vec::new(); edges.len()], Vec::new());
                // The shortest first: behind one that control does not come to the end of, the last need be in no arm.
                let mut order: Vec<usize> = (0..edges.len()).collect();
                order.sort_by_key(|&arm| self.weight(edges[arm].to));
                for (done, &arm) in order.iter().enumerate() {
                    let is_last = done + 1 == edges.len() && pending.is_empty();
                    let (into, deeper) = if is_last { (&mut behind, 0) } else { (&mut arms[arm], 1) };
                    pending.extend(self.edge(edges[arm], depth + deeper, into));
                }
                out.push(match block.checked_sub(own) {
                    None => Node::Branch { block, arms },
                    Some(dispatch) => Node::Dispatch { dispatch, arms },
                });
                out.append(&mut behind);
                pending
            }
        }
    }

    /// The end of a block that returns.
    fn end(&mut self, block: usize, out: &mut Vec<Node>) -> Pending {
        if let Some(fewer) = self.returns.checked_sub(1) {
            self.returns = fewer;
            out.push(Node::Return(block));
            return Pending::new();
        }
        out.push(Node::Keep(block));
        self.lead(Target::End, false, out)
    }

    fn edge(&mut self, Edge { to, arm }: Edge, depth: usize, out: &mut Vec<Node>) -> Pending {
        if let Some(arm) = arm {
            out.push(Node::Label { dispatch: to - self.graph.successors.len(), arm });
        }
        if self.is_copied(to) {
            out.push(Node::Block(to));
            return self.end(to, out);
        }
        let is_back = self.loops.iter().any(|(head, _)| *head == to);
        if is_back {
            if self.within() == Some(to) {
                out.push(Node::Continue);
                return Pending::new();
            }
            return self.lead(Target::Again(to), false, out);
        }
        if self.nested[to] && (depth < self.deepest || !self.defer(to)) {
            return self.region(to, depth, out);
        }
        let stays = self.within().is_none_or(|head| self.dominators.in_loop(to, head));
        self.lead(Target::Block(to), stays, out)
    }

    /// Says where control is to go, and leaves the loop that is in the way.
    fn lead(&mut self, target: Target, stays: bool, out: &mut Vec<Node>) -> Pending {
        if target != Target::End {
            out.push(Node::Flag(self.flag(target), true));
        }
        match self.loops.last_mut() {
            Some((_, broken)) if !stays => {
                broken.insert(target);
                out.push(Node::Break);
                Pending::new()
            }
            _ => Pending::from([target]),
        }
    }

    /// Has a block stand further out in its loop, and with it all that is still to come between here and there: it may
    /// lead to any of that. Whether there is such a place.
    fn defer(&mut self, block: usize) -> bool {
        let within = self.within();
        let place = self.frames.iter().rposition(|frame| frame.within == within && frame.depth <= self.deepest / 2);
        let Some(place) = place else { return false };
        let (outer, inner) = self.frames.split_at_mut(place + 1);
        for frame in inner {
            outer[place].blocks.append(&mut frame.blocks);
        }
        outer[place].blocks.insert(self.dominators.position(block), block);
        self.nested[block] = false;
        true
    }

    /// What stands behind, one after the other.
    fn rest(&mut self, mut pending: Pending, depth: usize, out: &mut Vec<Node>) -> Pending {
        while let Some((_, block)) = self.frames.last_mut().and_then(|frame| frame.blocks.pop_first()) {
            let target = Target::Block(block);
            let known = pending.remove(&target);
            debug_assert!(known, "block {block} is led to from before");
            // In a loop it may be led to again.
            let cleared = (!self.loops.is_empty()).then(|| Node::Flag(self.flag(target), false));
            if pending.is_empty() {
                // In the next round others may be run because this is not set.
                out.extend(cleared);
                pending = self.region(block, depth, out);
                continue;
            }
            let only = pending.first().copied().filter(|_| pending.len() == 1);
            let (tested, set) = match only {
                Some(other @ Target::Block(_)) => (other, false),
                _ => (target, true),
            };
            self.tested.insert(tested);
            let mut body = Vec::from_iter(cleared);
            pending.extend(self.region(block, depth + 1, &mut body));
            out.push(Node::If { flag: self.flag(tested), set, body });
        }
        self.frames.pop();
        pending
    }

    /// A flag's number until all are known.
    fn flag(&self, target: Target) -> usize {
        match target {
            Target::Block(block) => 2 * block,
            Target::Again(block) => 2 * block + 1,
            Target::End => unreachable!("the end is not led to by a flag"),
        }
    }
}

/// Leaves out flags that nobody tests, and numbers the others.
fn number(nodes: &mut Vec<Node>, tested: &BTreeSet<Target>, numbers: &mut BTreeMap<usize, usize>) {
    let target = |flag: usize| if flag.is_multiple_of(2) { Target::Block(flag / 2) } else { Target::Again(flag / 2) };
    nodes.retain(|node| !matches!(node, Node::Flag(flag, _) if !tested.contains(&target(*flag))));
    for node in nodes {
        match node {
            Node::Flag(flag, _) => {
                let next = numbers.len();
                *flag = *numbers.entry(*flag).or_insert(next);
            }
            Node::If { flag, body, .. } => {
                let next = numbers.len();
                *flag = *numbers.entry(*flag).or_insert(next);
                number(body, tested, numbers);
            }
            Node::Branch { arms, .. } | Node::Dispatch { arms, .. } => {
                arms.iter_mut().for_each(|arm| number(arm, tested, numbers));
            }
            Node::Loop(body) => number(body, tested, numbers),
            Node::Block(_) | Node::Return(_) | Node::Keep(_) | Node::Break | Node::Continue | Node::Label { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
