//! Structured control flow (`if`, `loop`) from a control-flow graph, for front ends whose language
//! has only jumps.
//!
//! Blocks are emitted in reverse post-order, placed by the dominator tree (compare N. Ramsey,
//! "Beyond Relooper", ICFP 2022, which has labelled blocks where naga IR needs flags):
//! - A block with a single predecessor is nested in that block's branch arm.
//! - A block with several predecessors follows its immediate dominator. Each predecessor sets the
//!   block's *flag*, and the block runs if the flag is set. If only one other block can be the
//!   target, the block runs if the other's flag is not set, so that a chain of blocks with the same
//!   far target needs one flag. If nothing else can be the target, no flag is needed.
//! - A block with a back edge from a block that it dominates is a loop header; the targets of the
//!   loop's exits follow the loop.
//! - A loop with several entries (an irreducible graph) gets a dispatch block in front, which
//!   branches to the entry in use (`reducible_graph`). Only such loops pay for it, with a
//!   variable and a branch per iteration.
//!
//! Branches nest at most `MAX_BRANCH_DEPTH` deep, loops aside: deeper blocks move outward behind
//! a flag. A function has at most `MAX_EARLY_RETURNS` early returns. Both limits are for devices
//! without jumps (`passes/nesting.rs`).

mod dominators;
pub mod emit;
mod reducible_graph;

use std::collections::{BTreeMap, BTreeSet};

use dominators::Dominators;

/// Maximum nesting depth of branches, not counting loops.
const MAX_BRANCH_DEPTH: usize = 16;

/// Maximum number of early returns. Further returns store their result, and control falls through
/// to the end of the function.
const MAX_EARLY_RETURNS: usize = 16;

/// Maximum nesting depth of loops.
pub const MAX_LOOP_DEPTH: usize = 64;

/// A control-flow graph with entry block 0.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Successors of each block, in the order of its branch's arms; empty for a block that returns.
    pub successors: Vec<Vec<usize>>,
    /// Whether a returning block is small enough for tail duplication: it is copied to each
    /// predecessor instead of being a target.
    pub duplicated: Vec<bool>,
}

/// A structured statement. Blocks are those of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// The block's own statements.
    Block(usize),
    /// The block's branch, with one arm per successor.
    Branch {
        /// The block that ends with the branch.
        block: usize,
        /// The arms.
        arms: Vec<Vec<Node>>,
    },
    /// Returns the result of this block, which precedes.
    Return(usize),
    /// Stores the result of this block, to be returned at the end of the function.
    SetResult(usize),
    /// Sets or clears a flag. Flags are initially clear.
    SetFlag(usize, bool),
    /// Runs `body` if the flag equals `set`.
    If {
        /// The flag's number.
        flag: usize,
        /// The value that runs the body.
        set: bool,
        /// The body.
        body: Vec<Node>,
    },
    /// A loop. Every path through its body ends with `Continue`, `Break` or a return.
    Loop(Vec<Node>),
    /// Leaves the innermost loop.
    Break,
    /// Starts the innermost loop's next iteration.
    Continue,
    /// Sets the arm that a dispatch will take.
    SetLabel {
        /// The dispatch's number.
        dispatch: usize,
        /// The arm's index.
        arm: usize,
    },
    /// Takes the arm that was set.
    Dispatch {
        /// The dispatch's number.
        dispatch: usize,
        /// The arms.
        arms: Vec<Vec<Node>>,
    },
}

/// A function's structured statements.
#[derive(Debug, Clone, Default)]
pub struct Structured {
    /// The statements, in order.
    pub body: Vec<Node>,
    /// Number of flags.
    pub flags: usize,
    /// Number of dispatches.
    pub dispatches: usize,
    /// Whether control may reach the end, where the stored result is returned.
    pub falls_through: bool,
}

/// Error: loops nest deeper than [`MAX_LOOP_DEPTH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

/// An edge of the graph; one to a dispatch has the arm to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edge {
    to: usize,
    arm: Option<usize>,
}

/// Structures a graph. Unreachable blocks are dropped.
///
/// # Errors
/// [`TooDeep`] if loops nest too deep.
pub fn structure(graph: &Graph) -> Result<Structured, TooDeep> {
    structure_with_limits(graph, MAX_BRANCH_DEPTH, MAX_EARLY_RETURNS)
}

/// [`structure`] with other limits, for tests.
fn structure_with_limits(graph: &Graph, max_depth: usize, returns_left: usize) -> Result<Structured, TooDeep> {
    let flow = reducible_graph::make_reducible(graph)?;
    let dominators = Dominators::of(&flow);
    let mut structurizer = Structurizer { max_depth, returns_left, ..Structurizer::new(graph, &flow, &dominators) };
    if (0..flow.successors.len()).any(|block| structurizer.dominators.loops_around(block) > MAX_LOOP_DEPTH) {
        return Err(TooDeep);
    }
    let mut body = Vec::new();
    if let Some(arm) = flow.entry.arm {
        body.push(Node::SetLabel { dispatch: flow.entry.to - graph.successors.len(), arm });
    }
    let pending = structurizer.emit_region(flow.entry.to, 0, &mut body);
    debug_assert!(pending.iter().all(|it| *it == Target::End), "every target has been emitted: {pending:?}");
    let mut numbers = BTreeMap::new();
    number_flags(&mut body, &structurizer.tested_targets, &mut numbers);
    let dispatches = flow.successors.len() - graph.successors.len();
    Ok(Structured { body, flags: numbers.len(), dispatches, falls_through: !pending.is_empty() })
}

/// A place that control may have to reach from the current position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// A block that is emitted further on.
    Block(usize),
    /// The next iteration of the loop with this header.
    NextRound(usize),
    /// The end of the function.
    End,
}

type TargetSet = BTreeSet<Target>;

/// Blocks that will be emitted one after another, while the statements before them are emitted.
struct DeferredBlocks {
    depth: usize,
    /// Header of the loop that contains them.
    innermost_loop: Option<usize>,
    /// The blocks by their position in reverse post-order.
    blocks: BTreeMap<usize, usize>,
}

struct Structurizer<'a> {
    graph: &'a Graph,
    flow: &'a reducible_graph::Flow,
    dominators: &'a Dominators,
    /// Blocks that follow a block, and blocks that follow the loop that it heads.
    followers: Vec<Vec<usize>>,
    loop_followers: Vec<Vec<usize>>,
    /// Whether a block is nested in the arm that leads to it.
    nested: Vec<bool>,
    /// Number of blocks that each block dominates, itself included.
    dominated_count: Vec<usize>,
    frames: Vec<DeferredBlocks>,
    /// Headers of the open loops, with the targets of the breaks out of them.
    loops: Vec<(usize, TargetSet)>,
    max_depth: usize,
    /// Number of early returns that may still be emitted.
    returns_left: usize,
    /// Targets whose flags are tested; other flags are removed.
    tested_targets: BTreeSet<Target>,
}

impl<'a> Structurizer<'a> {
    fn new(graph: &'a Graph, flow: &'a reducible_graph::Flow, dominators: &'a Dominators) -> Structurizer<'a> {
        let count = flow.successors.len();
        let mut structurizer = Structurizer {
            graph,
            flow,
            dominators,
            followers: vec![Vec::new(); count],
            loop_followers: vec![Vec::new(); count],
            nested: vec![false; count],
            dominated_count: vec![1; count],
            frames: Vec::new(),
            loops: Vec::new(),
            max_depth: MAX_BRANCH_DEPTH,
            returns_left: MAX_EARLY_RETURNS,
            tested_targets: BTreeSet::new(),
        };
        for &block in &dominators.order {
            let Some(dominator) = dominators.immediate_dominator(block).filter(|_| !structurizer.is_duplicated(block))
            else {
                continue;
            };
            // The outermost loop that contains the dominator, but not the block.
            let left = dominators.loops_of(dominator).take_while(|&head| !dominators.in_loop(block, head)).last();
            match left {
                Some(head) => structurizer.loop_followers[head].push(block),
                None if dominators.forward_edges_into(block) == 1 => structurizer.nested[block] = true,
                None => structurizer.followers[dominator].push(block),
            }
        }
        for &block in dominators.order.iter().rev() {
            if let Some(dominator) = dominators.immediate_dominator(block) {
                structurizer.dominated_count[dominator] += structurizer.dominated_count[block];
            }
        }
        structurizer
    }

    /// Number of blocks nested in an arm that leads to this block.
    fn arm_size(&self, block: usize) -> usize {
        if self.nested[block] { self.dominated_count[block] } else { 0 }
    }

    fn is_duplicated(&self, block: usize) -> bool {
        self.graph.duplicated.get(block).copied().unwrap_or(false) && self.flow.successors[block].is_empty()
    }

    fn innermost_loop(&self) -> Option<usize> {
        self.loops.last().map(|(head, _)| *head)
    }

    fn push_frame(&mut self, depth: usize, blocks: &[usize]) {
        let blocks = blocks.iter().map(|&block| (self.dominators.position(block), block)).collect();
        self.frames.push(DeferredBlocks { depth, innermost_loop: self.innermost_loop(), blocks });
    }

    /// Emits a block with everything nested in it and following it. Returns the targets that are
    /// still pending at the end.
    fn emit_region(&mut self, block: usize, depth: usize, out: &mut Vec<Node>) -> TargetSet {
        if !self.dominators.is_head(block) {
            return self.emit_block(block, depth, out);
        }
        let dominators = self.dominators;
        let followers = std::mem::take(&mut self.loop_followers[block]);
        self.push_frame(depth, &followers);
        self.loops.push((block, TargetSet::new()));
        let mut body = Vec::new();
        let mut pending = self.emit_block(block, 0, &mut body);
        let next_round = Target::NextRound(block);
        if pending.remove(&next_round) {
            if pending.is_empty() {
                body.push(Node::Continue);
            } else {
                self.tested_targets.insert(next_round);
                let flag = self.flag_of(next_round);
                body.push(Node::If { flag, set: true, body: vec![Node::SetFlag(flag, false), Node::Continue] });
            }
        }
        if !pending.is_empty() {
            body.push(Node::Break);
        }
        let (_, break_targets) = self.loops.pop().expect("pushed above");
        pending.extend(break_targets);
        out.push(Node::Loop(body));
        debug_assert!(!pending.contains(&next_round) && dominators.is_head(block));
        self.emit_followers(pending, depth, out)
    }

    /// Emits a block and its followers, without the loop that it heads.
    fn emit_block(&mut self, block: usize, depth: usize, out: &mut Vec<Node>) -> TargetSet {
        let followers = std::mem::take(&mut self.followers[block]);
        self.push_frame(depth, &followers);
        let pending = self.emit_body_and_edges(block, depth, out);
        self.emit_followers(pending, depth, out)
    }

    /// Emits a block's own statements and its outgoing edges.
    fn emit_body_and_edges(&mut self, block: usize, depth: usize, out: &mut Vec<Node>) -> TargetSet {
        let flow = self.flow;
        let own = self.graph.successors.len();
        if block < own {
            out.push(Node::Block(block));
        }
        match flow.successors[block].as_slice() {
            [] => self.emit_return(block, out),
            [only] if block < own => self.emit_edge(*only, depth, out),
            edges => {
                let mut pending = TargetSet::new();
                let (mut arms, mut followers) = (vec![Vec::new(); edges.len()], Vec::new());
                // Smallest arm first: if control does not reach the end of the others, the last arm
                // need not be nested.
                let mut order: Vec<usize> = (0..edges.len()).collect();
                order.sort_by_key(|&arm| self.arm_size(edges[arm].to));
                for (done, &arm) in order.iter().enumerate() {
                    let is_last = done + 1 == edges.len() && pending.is_empty();
                    let (into, deeper) = if is_last { (&mut followers, 0) } else { (&mut arms[arm], 1) };
                    pending.extend(self.emit_edge(edges[arm], depth + deeper, into));
                }
                out.push(match block.checked_sub(own) {
                    None => Node::Branch { block, arms },
                    Some(dispatch) => Node::Dispatch { dispatch, arms },
                });
                out.append(&mut followers);
                pending
            }
        }
    }

    /// Emits the end of a block that returns.
    fn emit_return(&mut self, block: usize, out: &mut Vec<Node>) -> TargetSet {
        if let Some(fewer) = self.returns_left.checked_sub(1) {
            self.returns_left = fewer;
            out.push(Node::Return(block));
            return TargetSet::new();
        }
        out.push(Node::SetResult(block));
        self.go_to(Target::End, false, out)
    }

    fn emit_edge(&mut self, Edge { to, arm }: Edge, depth: usize, out: &mut Vec<Node>) -> TargetSet {
        if let Some(arm) = arm {
            out.push(Node::SetLabel { dispatch: to - self.graph.successors.len(), arm });
        }
        if self.is_duplicated(to) {
            out.push(Node::Block(to));
            return self.emit_return(to, out);
        }
        let is_back = self.loops.iter().any(|(head, _)| *head == to);
        if is_back {
            if self.innermost_loop() == Some(to) {
                out.push(Node::Continue);
                return TargetSet::new();
            }
            return self.go_to(Target::NextRound(to), false, out);
        }
        if self.nested[to] && (depth < self.max_depth || !self.defer_block(to)) {
            return self.emit_region(to, depth, out);
        }
        let stays = self.innermost_loop().is_none_or(|head| self.dominators.in_loop(to, head));
        self.go_to(Target::Block(to), stays, out)
    }

    /// Sets the target's flag, and breaks out of the innermost loop unless the target is inside it.
    fn go_to(&mut self, target: Target, stays: bool, out: &mut Vec<Node>) -> TargetSet {
        if target != Target::End {
            out.push(Node::SetFlag(self.flag_of(target), true));
        }
        match self.loops.last_mut() {
            Some((_, break_targets)) if !stays => {
                break_targets.insert(target);
                out.push(Node::Break);
                TargetSet::new()
            }
            _ => TargetSet::from([target]),
        }
    }

    /// Moves a block outward within its loop, together with all blocks deferred in between, since
    /// it may lead to any of them. Returns whether there is an outer place.
    fn defer_block(&mut self, block: usize) -> bool {
        let innermost = self.innermost_loop();
        let place = self
            .frames
            .iter()
            .rposition(|frame| frame.innermost_loop == innermost && frame.depth <= self.max_depth / 2);
        let Some(place) = place else { return false };
        let (outer, inner) = self.frames.split_at_mut(place + 1);
        for frame in inner {
            outer[place].blocks.append(&mut frame.blocks);
        }
        outer[place].blocks.insert(self.dominators.position(block), block);
        self.nested[block] = false;
        true
    }

    /// Emits the deferred blocks of the top frame, one after another.
    fn emit_followers(&mut self, mut pending: TargetSet, depth: usize, out: &mut Vec<Node>) -> TargetSet {
        while let Some((_, block)) = self.frames.last_mut().and_then(|frame| frame.blocks.pop_first()) {
            let target = Target::Block(block);
            let known = pending.remove(&target);
            debug_assert!(known, "block {block} has a predecessor before it");
            // In a loop the block may be reached again.
            let cleared = (!self.loops.is_empty()).then(|| Node::SetFlag(self.flag_of(target), false));
            if pending.is_empty() {
                // In the next iteration, another block may run because this flag is clear.
                out.extend(cleared);
                pending = self.emit_region(block, depth, out);
                continue;
            }
            let only = pending.first().copied().filter(|_| pending.len() == 1);
            let (tested, set) = match only {
                Some(other @ Target::Block(_)) => (other, false),
                _ => (target, true),
            };
            self.tested_targets.insert(tested);
            let mut body = Vec::from_iter(cleared);
            pending.extend(self.emit_region(block, depth + 1, &mut body));
            out.push(Node::If { flag: self.flag_of(tested), set, body });
        }
        self.frames.pop();
        pending
    }

    /// A provisional flag number.
    fn flag_of(&self, target: Target) -> usize {
        match target {
            Target::Block(block) => 2 * block,
            Target::NextRound(block) => 2 * block + 1,
            Target::End => unreachable!("the end of the function has no flag"),
        }
    }
}

/// Removes flags that are never tested, and numbers the others consecutively.
fn number_flags(nodes: &mut Vec<Node>, tested_targets: &BTreeSet<Target>, numbers: &mut BTreeMap<usize, usize>) {
    let target =
        |flag: usize| if flag.is_multiple_of(2) { Target::Block(flag / 2) } else { Target::NextRound(flag / 2) };
    nodes.retain(|node| !matches!(node, Node::SetFlag(flag, _) if !tested_targets.contains(&target(*flag))));
    for node in nodes {
        match node {
            Node::SetFlag(flag, _) => {
                let next = numbers.len();
                *flag = *numbers.entry(*flag).or_insert(next);
            }
            Node::If { flag, body, .. } => {
                let next = numbers.len();
                *flag = *numbers.entry(*flag).or_insert(next);
                number_flags(body, tested_targets, numbers);
            }
            Node::Branch { arms, .. } | Node::Dispatch { arms, .. } => {
                arms.iter_mut().for_each(|arm| number_flags(arm, tested_targets, numbers));
            }
            Node::Loop(body) => number_flags(body, tested_targets, numbers),
            Node::Block(_)
            | Node::Return(_)
            | Node::SetResult(_)
            | Node::Break
            | Node::Continue
            | Node::SetLabel { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
