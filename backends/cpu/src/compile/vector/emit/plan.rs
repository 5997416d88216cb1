//! Decisions made before code is emitted: which rows of a packet to load, which variable offsets to
//! speculate on, and in which lanes a speculated offset has to be right.

use std::collections::{BTreeSet, HashMap, HashSet};

use portcullis_core::packet::READABLE_PAST_END;

use crate::compile::vector::ir::{
    self, Atomic, Binary, Dag, Effect, LaneIr, Load, LoopCarried, LoopMask, Node, Op, RegionId, Step, Unary,
    initial_nodes, iteration_nodes,
};

/// Bytes of a row.
pub(super) const ROW: u32 = 16;

/// End of the bytes that may be read of any packet, however short it is, counted from its start.
pub(super) const ALWAYS_READABLE: u32 = READABLE_PAST_END as u32;

/// Size in bytes of an IPv4 or TCP header without options.
const MIN_HEADER_BYTES: u32 = 20;

/// How loads at variable offsets are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OffsetStrategy {
    /// Speculate that headers have no options and load the fields together with fixed ones; if that
    /// is wrong in a lane where it matters, gather them.
    Speculate,
    /// Gather the fields packet by packet.
    Gather,
}

/// A variable offset with a speculated value, and the loads at it.
pub(super) struct SpeculativeOffset {
    /// The speculated value.
    pub value: u32,
    /// Mask of the lanes in which the value matters; `None` for all lanes.
    pub lanes: Option<Node>,
    pub loads: Vec<Node>,
}

pub(super) struct Plan {
    /// Offset of the packet's 4-byte words, modulo 4.
    phase: u32,
    /// Starts of the rows to load. A word outside them is loaded by itself.
    rows: Vec<u32>,
    /// Speculated offsets, by the node of the offset.
    pub speculations: HashMap<Node, SpeculativeOffset>,
    /// Number of live nodes.
    pub node_count: usize,
}

impl Plan {
    /// Plans a filter. Adds the masks in which speculated offsets matter to its graph.
    pub fn new(lanes: &mut LaneIr, offsets: OffsetStrategy) -> Plan {
        let used = live_nodes(lanes);
        let loads: Vec<(Node, Load)> = used
            .iter()
            .filter_map(|&node| match lanes.dag.op(node) {
                Op::Load(load) => Some((node, load)),
                _ => None,
            })
            .collect();
        let mut speculations: HashMap<Node, SpeculativeOffset> = HashMap::new();
        for &(node, load) in &loads {
            let Some(root) = load.root else { continue };
            let Some(value) = (offsets == OffsetStrategy::Speculate).then(|| usual_offset(&lanes.dag, root)).flatten()
            else {
                continue;
            };
            if value.checked_add(load.add).is_some_and(|at| is_always_readable(at, load.size)) {
                speculations
                    .entry(root)
                    .or_insert(SpeculativeOffset { value, lanes: None, loads: Vec::new() })
                    .loads
                    .push(node);
            }
        }
        if !speculations.is_empty() {
            let mut demands = DemandAnalysis::new(lanes, &used);
            demands.seed(lanes);
            demands.propagate(lanes, &used);
            for speculation in speculations.values_mut() {
                speculation.lanes = demands.demand_of_any(&mut lanes.dag, &speculation.loads);
            }
        }
        let constant = loads.iter().filter_map(|(_, load)| match load.root {
            None => Some((load.add, load.size)),
            Some(root) => {
                speculations.get(&root).map(|speculation| (speculation.value.saturating_add(load.add), load.size))
            }
        });
        let constant: BTreeSet<(u32, u32)> = constant.filter(|&(at, size)| is_always_readable(at, size)).collect();
        let mut plan = Plan { phase: 0, rows: Vec::new(), speculations, node_count: used.len() };
        let mut least = u32::MAX;
        for phase in 0..4 {
            let (rows, cost) = choose_rows(phase, &constant);
            if cost < least {
                (plan.phase, plan.rows, least) = (phase, rows, cost);
            }
        }
        plan
    }

    /// Returns the first and the last word that bytes `at..at + size` lie in, by their offsets.
    pub fn word_span(&self, at: u32, size: u32) -> (u32, u32) {
        word_span(self.phase, at, size)
    }

    /// Whether a load at a variable offset is done speculatively.
    pub fn is_speculative(&self, load: Node, root: Node) -> bool {
        self.speculations.get(&root).is_some_and(|speculation| speculation.loads.contains(&load))
    }

    /// Returns the row that contains a word, if there is one.
    pub fn row_of(&self, word: u32) -> Option<u32> {
        self.rows.iter().copied().find(|&row| row <= word && word + 4 <= row + ROW)
    }
}

/// Whether filtering packets in lock step has the same effect on maps, and the same results, as
/// filtering them one after the other.
///
/// In lock step each step is executed for all packets before the next one. This cannot be observed
/// if every map is only read, or only added to without using the result, or accessed by a single
/// step outside loops, which serves lanes in order.
pub(crate) fn preserves_map_order(lanes: &LaneIr) -> bool {
    let mut uses: HashMap<u32, MapUse> = HashMap::new();
    for (number, region) in lanes.regions.iter().enumerate() {
        let in_loop =
            lanes.regions.iter().flat_map(|region| &region.steps).any(
                |step| matches!(step, Step::Loop { body, .. } if is_within(lanes, RegionId(number as u32), *body)),
            );
        for step in &region.steps {
            let Step::Effect { id, effect: Effect::Map { map, atomic, .. }, .. } = step else { continue };
            let this_use = match atomic {
                Atomic::Load => MapUse::Read,
                Atomic::Add(_) if lanes.dag.lookup(Op::Result(*id)).is_none() => MapUse::AddOnly,
                _ if in_loop => MapUse::Unordered,
                _ => MapUse::Once,
            };
            let before = uses.insert(*map, this_use);
            match (before, this_use) {
                (_, MapUse::Unordered) => return false,
                (None, _) | (Some(MapUse::Read), MapUse::Read) | (Some(MapUse::AddOnly), MapUse::AddOnly) => {}
                _ => return false,
            }
        }
    }
    true
}

/// How a map is accessed.
#[derive(Clone, Copy)]
enum MapUse {
    Read,
    AddOnly,
    Once,
    Unordered,
}

/// Whether a region is `whole` or nested in it.
fn is_within(lanes: &LaneIr, region: RegionId, whole: RegionId) -> bool {
    let parent = |region: &RegionId| lanes.regions[region.index()].parent;
    std::iter::successors(Some(region), parent).any(|region| region == whole)
}

/// Loop-invariant inputs of a loop.
pub(super) struct LoopInvariants {
    /// Nodes that are computed outside the loop.
    pub nodes: Vec<Node>,
    /// Whether the loop loads packet bytes at variable offsets.
    pub has_variable_loads: bool,
}

pub(super) fn loop_invariants(
    lanes: &LaneIr,
    body: RegionId,
    live: LoopMask,
    carried: &[LoopCarried],
) -> LoopInvariants {
    let mut open: Vec<Node> = iteration_nodes(&live, carried).collect();
    let mut regions = vec![body];
    while let Some(region) = regions.pop() {
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { mask, effect, .. } => open.extend(effect.operands().chain([*mask])),
                Step::When { mask, body, outs } => {
                    open.extend(outs.iter().chain([mask]));
                    regions.push(*body);
                }
                Step::Loop { live, carried, body } => {
                    open.extend(initial_nodes(live, carried).chain(iteration_nodes(live, carried)));
                    regions.push(*body);
                }
            }
        }
    }
    let (mut seen, mut invariants) = (HashSet::new(), LoopInvariants { nodes: Vec::new(), has_variable_loads: false });
    while let Some(node) = open.pop() {
        if !seen.insert(node) {
            continue;
        }
        match is_within(lanes, lanes.dag.scope(node), body) {
            true => open.extend(lanes.dag.operands(node)),
            false => invariants.nodes.push(node),
        }
        invariants.has_variable_loads |= matches!(lanes.dag.op(node), Op::Load(Load { root: Some(_), .. }));
    }
    invariants
}

/// Whether bytes can be extracted from words that may be read of any packet.
pub(super) fn is_always_readable(at: u32, size: u32) -> bool {
    at.checked_add(size).is_some_and(|end| end <= ALWAYS_READABLE - ROW)
}

fn word_span(phase: u32, at: u32, size: u32) -> (u32, u32) {
    let word = |at: u32| at.checked_sub(phase).map_or(0, |at| phase + at / 4 * 4);
    let first = word(at);
    let last = at + size - 1;
    // The first word of all may overlap the next one.
    (first, if last < first + 4 { first } else { word(last) })
}

/// Chooses rows for loads, with words at the given phase; returns them with their approximate cost.
fn choose_rows(phase: u32, loads: &BTreeSet<(u32, u32)>) -> (Vec<u32>, u32) {
    let mut needed = BTreeSet::new();
    let mut cost = 0;
    for &(at, size) in loads {
        let (first, last) = word_span(phase, at, size);
        needed.extend([first, last]);
        cost += if first == last { u32::from(size < 4) } else { 3 };
    }
    let (mut rows, mut needed) = (Vec::new(), Vec::from_iter(needed).into_iter().peekable());
    while let Some(start) = needed.next() {
        let mut members = vec![start];
        while let Some(word) = needed.next_if(|word| word + 4 <= start + ROW && (word - start).is_multiple_of(4)) {
            members.push(word);
        }
        if members.len() == 1 {
            cost += 7;
            continue;
        }
        rows.push(start);
        let halves = members.iter().map(|word| (word - start) / 8).collect::<BTreeSet<_>>().len() as u32;
        cost += 4 + 2 * halves + members.len() as u32;
    }
    (rows, cost)
}

/// Returns the nodes that a filter uses, in order.
pub(super) fn live_nodes(lanes: &LaneIr) -> Vec<Node> {
    let mut marked = vec![false; lanes.dag.len()];
    let mut open: Vec<Node> = vec![lanes.verdict];
    open.extend(lanes.ends.iter().flat_map(|&(start, length)| [start, length]));
    for step in lanes.regions.iter().flat_map(|region| &region.steps) {
        match step {
            Step::Effect { mask, effect, .. } => open.extend(effect.operands().chain([*mask])),
            Step::When { mask, outs, .. } => open.extend(outs.iter().copied().chain([*mask])),
            Step::Loop { live, carried, .. } => {
                open.extend(initial_nodes(live, carried).chain(iteration_nodes(live, carried)));
            }
        }
    }
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut marked[node.index()], true) {
            open.extend(lanes.dag.operands(node));
        }
    }
    lanes.dag.nodes().filter(|node| marked[node.index()]).collect()
}

/// Returns the value of an offset if headers have no options. Such an offset is computed from a
/// byte that holds a header length in units of 4 bytes, in its low half (IPv4) or its high half
/// (TCP).
fn usual_offset(dag: &Dag, root: Node) -> Option<u32> {
    let first = evaluate(dag, root, 0x45, &mut HashMap::new())?;
    if first == MIN_HEADER_BYTES {
        return Some(first);
    }
    match evaluate(dag, root, 0x50, &mut HashMap::new())? {
        MIN_HEADER_BYTES => Some(MIN_HEADER_BYTES),
        _ => Some(first),
    }
}

/// Evaluates a word on the assumption that every single byte loaded from the packet is `byte`.
/// `known` memoises results: operands are shared, and the number of paths through a graph can be
/// exponential.
fn evaluate(dag: &Dag, node: Node, byte: u32, known: &mut HashMap<Node, Option<u32>>) -> Option<u32> {
    if let Some(&value) = known.get(&node) {
        return value;
    }
    let mut of = |node| evaluate(dag, node, byte, known);
    let value = match dag.op(node) {
        Op::Constant(value) => Some(value),
        Op::Load(Load { size: 1, .. }) => Some(byte),
        Op::Unary(op @ Unary::Invert, a) => of(a).map(|a| ir::unary(op, a)),
        Op::Binary(op, a, b) => match op {
            Binary::Add
            | Binary::Subtract
            | Binary::Multiply
            | Binary::And
            | Binary::Or
            | Binary::ShiftLeft
            | Binary::ShiftRight => of(a).zip(of(b)).map(|(a, b)| ir::binary(op, a, b)),
            _ => None,
        },
        // The accepted value is the one of packets that are long enough.
        Op::Select { accept, reject, .. } => of(accept).or_else(|| of(reject)),
        _ => None,
    };
    known.insert(node, value);
    value
}

/// The lanes in which a node's value matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneDemand {
    Nowhere,
    In(Node),
    Everywhere,
}

/// Backward data-flow analysis of demand, from each node to its operands. The result may be too
/// much, never too little.
struct DemandAnalysis {
    demands: Vec<LaneDemand>,
    /// Masks that can be computed anywhere in the filter without a load at a variable offset.
    hoistable: Vec<bool>,
}

impl DemandAnalysis {
    fn new(lanes: &LaneIr, used: &[Node]) -> DemandAnalysis {
        let dag = &lanes.dag;
        let mut hoistable = vec![false; dag.len()];
        for &node in used {
            hoistable[node.index()] = dag.scope(node) == RegionId::ROOT
                && match dag.op(node) {
                    Op::Load(load) => load.root.is_none(),
                    Op::Result(_) | Op::LoopCarried { .. } | Op::Live(_) | Op::Out { .. } => false,
                    _ => dag.operands(node).all(|operand| hoistable[operand.index()]),
                };
        }
        DemandAnalysis { demands: vec![LaneDemand::Nowhere; dag.len()], hoistable }
    }

    /// Adds the demand of the filter's results and effects.
    fn seed(&mut self, lanes: &mut LaneIr) {
        let LaneIr { dag, regions, .. } = lanes;
        let ends = lanes.ends.iter().flat_map(|&(start, length)| [start, length]);
        let mut everywhere: Vec<Node> = ends.chain([lanes.verdict]).collect();
        for step in regions.iter().flat_map(|region| &region.steps) {
            match step {
                Step::Effect { mask, effect, .. } => {
                    everywhere.push(*mask);
                    // These indices have to be in range in every lane.
                    let in_all = matches!(effect, Effect::ArrayLoad { .. } | Effect::ArrayStore { .. });
                    let demand = match self.is_hoistable(*mask) && !in_all {
                        true => LaneDemand::In(*mask),
                        false => LaneDemand::Everywhere,
                    };
                    effect.operands().for_each(|node| self.add(dag, node, demand, None));
                }
                Step::When { mask, outs, .. } => everywhere.extend(outs.iter().chain([mask])),
                Step::Loop { live, carried, .. } => {
                    everywhere.extend(initial_nodes(live, carried).chain(iteration_nodes(live, carried)));
                }
            }
        }
        everywhere.into_iter().for_each(|node| self.add(dag, node, LaneDemand::Everywhere, None));
    }

    fn is_hoistable(&self, mask: Node) -> bool {
        self.hoistable.get(mask.index()).copied().unwrap_or(false)
    }

    fn propagate(&mut self, lanes: &mut LaneIr, used: &[Node]) {
        // Operands have lower numbers than the nodes that use them.
        for &node in used.iter().rev() {
            let demand = self.demands[node.index()];
            if demand == LaneDemand::Nowhere {
                continue;
            }
            match lanes.dag.op(node) {
                Op::Select { mask, accept, reject } => {
                    self.add(&mut lanes.dag, mask, demand, None);
                    self.add(&mut lanes.dag, accept, demand, Some((mask, true)));
                    self.add(&mut lanes.dag, reject, demand, Some((mask, false)));
                }
                // One of two conditions matters only where the other does not decide. The one that
                // can be computed without loads at variable offsets decides first.
                Op::And(a, b) | Op::Or(a, b) => {
                    let (first, second) = if self.is_hoistable(b) { (b, a) } else { (a, b) };
                    let decides_not = matches!(lanes.dag.op(node), Op::And(..));
                    self.add(&mut lanes.dag, first, demand, None);
                    self.add(&mut lanes.dag, second, demand, Some((first, decides_not)));
                }
                _ => {
                    for operand in lanes.dag.operands(node) {
                        self.add(&mut lanes.dag, operand, demand, None);
                    }
                }
            }
        }
    }

    /// Adds demand for a node. With `only`, the node matters only where that mask has that value,
    /// which counts if the mask is hoistable.
    fn add(&mut self, dag: &mut Dag, node: Node, demand: LaneDemand, only: Option<(Node, bool)>) {
        let mut demand = demand;
        if let Some((mask, on)) = only.filter(|&(mask, _)| self.is_hoistable(mask)) {
            let mask = if on { mask } else { dag.mask_not(mask) };
            demand = match demand {
                LaneDemand::Everywhere => LaneDemand::In(mask),
                LaneDemand::In(whole) => LaneDemand::In(dag.mask_and(whole, mask)),
                LaneDemand::Nowhere => LaneDemand::Nowhere,
            };
        }
        let had = self.demands[node.index()];
        self.demands[node.index()] = join(dag, had, demand);
    }

    /// Returns the mask of lanes in which any of the nodes matters, `None` for all lanes.
    fn demand_of_any(&self, dag: &mut Dag, nodes: &[Node]) -> Option<Node> {
        let all = nodes.iter().map(|node| self.demands[node.index()]);
        match all.fold(LaneDemand::Nowhere, |a, b| join(dag, a, b)) {
            LaneDemand::In(mask) => Some(mask),
            LaneDemand::Nowhere | LaneDemand::Everywhere => None,
        }
    }
}

fn join(dag: &mut Dag, a: LaneDemand, b: LaneDemand) -> LaneDemand {
    match (a, b) {
        (LaneDemand::Nowhere, other) | (other, LaneDemand::Nowhere) => other,
        (LaneDemand::In(a), LaneDemand::In(b)) => LaneDemand::In(dag.mask_or(a, b)),
        _ => LaneDemand::Everywhere,
    }
}
