//! What is decided about a filter before its code is made: which rows of a packet are loaded, which
//! offsets that vary are guessed, and in which lanes a guess has to be right.

use std::collections::{BTreeSet, HashMap, HashSet};

use portcullis_core::packet::READABLE_PAST_END;

use crate::compile::vector::ir::{
    self, Atomic, Binary, Carry, Dag, Effect, Lanes, Live, Load, Node, Op, RegionId, Step, Unary, firsts, nexts,
};

/// Bytes of a row.
pub(super) const ROW: u32 = 16;

/// Bytes from a packet's first one on that may be read of any packet, however short it is.
pub(super) const ALWAYS_READABLE: u32 = READABLE_PAST_END as u32;

/// What a header takes that has no options: of IPv4 and of TCP alike.
const PLAIN_HEADER: u32 = 20;

/// What is done about fields whose place depends on the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OffsetStrategy {
    /// They are taken to be where headers without options have them, and read with all others; where
    /// that is wrong, packet by packet.
    Speculate,
    /// They are read packet by packet.
    Gather,
}

/// Loads at one offset that varies.
pub(super) struct Guess {
    /// What it is taken for.
    pub value: u32,
    /// The lanes in which it matters; all of them where there is none.
    pub lanes: Option<Node>,
    pub loads: Vec<Node>,
}

pub(super) struct Plan {
    /// Where in the packet words of four bytes lie, modulo 4.
    phase: u32,
    /// Where rows begin that are loaded as a whole. Words outside of them are loaded each for itself.
    rows: Vec<u32>,
    /// By the offsets' nodes.
    pub guesses: HashMap<Node, Guess>,
    /// Nodes that are needed at all.
    pub used: usize,
}

impl Plan {
    /// Of a filter, whose graph gets nodes that say where guesses matter.
    pub fn new(lanes: &mut Lanes, offsets: OffsetStrategy) -> Plan {
        let used = used(lanes);
        let loads: Vec<(Node, Load)> = used
            .iter()
            .filter_map(|&node| match lanes.dag.op(node) {
                Op::Load(load) => Some((node, load)),
                _ => None,
            })
            .collect();
        let mut guesses: HashMap<Node, Guess> = HashMap::new();
        for &(node, load) in &loads {
            let Some(root) = load.root else { continue };
            let Some(value) = (offsets == OffsetStrategy::Speculate).then(|| plain(&lanes.dag, root)).flatten() else {
                continue;
            };
            if value.checked_add(load.add).is_some_and(|at| in_reach(at, load.size)) {
                guesses.entry(root).or_insert(Guess { value, lanes: None, loads: Vec::new() }).loads.push(node);
            }
        }
        if !guesses.is_empty() {
            let mut demands = Demands::new(lanes, &used);
            demands.seed(lanes);
            demands.spread(lanes, &used);
            for guess in guesses.values_mut() {
                guess.lanes = demands.of_all(&mut lanes.dag, &guess.loads);
            }
        }
        let constant = loads.iter().filter_map(|(_, load)| match load.root {
            None => Some((load.add, load.size)),
            Some(root) => guesses.get(&root).map(|guess| (guess.value.saturating_add(load.add), load.size)),
        });
        let constant: BTreeSet<(u32, u32)> = constant.filter(|&(at, size)| in_reach(at, size)).collect();
        let mut plan = Plan { phase: 0, rows: Vec::new(), guesses, used: used.len() };
        let mut least = u32::MAX;
        for phase in 0..4 {
            let (rows, cost) = rows(phase, &constant);
            if cost < least {
                (plan.phase, plan.rows, least) = (phase, rows, cost);
            }
        }
        plan
    }

    /// The words in which bytes `at..at + size` lie, by the offset of each one's first byte.
    pub fn words(&self, at: u32, size: u32) -> (u32, u32) {
        words(self.phase, at, size)
    }

    /// Whether there is a guess for a load at that root.
    pub fn is_guessed(&self, load: Node, root: Node) -> bool {
        self.guesses.get(&root).is_some_and(|guess| guess.loads.contains(&load))
    }

    /// The row that a word is in, if any.
    pub fn row_of(&self, word: u32) -> Option<u32> {
        self.rows.iter().copied().find(|&row| row <= word && word + 4 <= row + ROW)
    }
}

/// Whether packets side by side leave maps as they would one after the other, and find in them what they would then.
///
/// Each step is done for all of them before the next one. So that nobody can tell, a map is only read; or only added to, by
/// who does not ask for the sum; or touched by one step, once, in which lanes come in order.
pub(crate) fn preserves_map_order(lanes: &Lanes) -> bool {
    let mut touched: HashMap<u32, Touched> = HashMap::new();
    for (number, region) in lanes.regions.iter().enumerate() {
        let in_loop =
            lanes.regions.iter().flat_map(|region| &region.steps).any(
                |step| matches!(step, Step::Loop { body, .. } if is_within(lanes, RegionId(number as u32), *body)),
            );
        for step in &region.steps {
            let Step::Effect { id, effect: Effect::Map { map, atomic, .. }, .. } = step else { continue };
            let touches = match atomic {
                Atomic::Load => Touched::Read,
                Atomic::Add(_) if lanes.dag.find(Op::Result(*id)).is_none() => Touched::Added,
                _ if in_loop => Touched::Otherwise,
                _ => Touched::Once,
            };
            let before = touched.insert(*map, touches);
            match (before, touches) {
                (_, Touched::Otherwise) => return false,
                (None, _) | (Some(Touched::Read), Touched::Read) | (Some(Touched::Added), Touched::Added) => {}
                _ => return false,
            }
        }
    }
    true
}

/// How a map is touched.
#[derive(Clone, Copy)]
enum Touched {
    Read,
    Added,
    Once,
    Otherwise,
}

/// Whether a region is another or a part of it.
fn is_within(lanes: &Lanes, region: RegionId, whole: RegionId) -> bool {
    let parent = |region: &RegionId| lanes.regions[region.index()].parent;
    std::iter::successors(Some(region), parent).any(|region| region == whole)
}

/// What a loop's rounds need.
pub(super) struct Needs {
    /// Nodes outside of it, which do not change from round to round.
    pub outside: Vec<Node>,
    /// They load bytes of the packet at offsets that vary.
    pub loads_anywhere: bool,
}

pub(super) fn needed_by(lanes: &Lanes, body: RegionId, live: Live, carried: &[Carry]) -> Needs {
    let mut open: Vec<Node> = nexts(&live, carried).collect();
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
                    open.extend(firsts(live, carried).chain(nexts(live, carried)));
                    regions.push(*body);
                }
            }
        }
    }
    let (mut seen, mut needs) = (HashSet::new(), Needs { outside: Vec::new(), loads_anywhere: false });
    while let Some(node) = open.pop() {
        if !seen.insert(node) {
            continue;
        }
        match is_within(lanes, lanes.dag.home(node), body) {
            true => open.extend(lanes.dag.operands(node)),
            false => needs.outside.push(node),
        }
        needs.loads_anywhere |= matches!(lanes.dag.op(node), Op::Load(Load { root: Some(_), .. }));
    }
    needs
}

/// Whether bytes can be had out of words that may be read of any packet.
pub(super) fn in_reach(at: u32, size: u32) -> bool {
    at.checked_add(size).is_some_and(|end| end <= ALWAYS_READABLE - ROW)
}

fn words(phase: u32, at: u32, size: u32) -> (u32, u32) {
    let word = |at: u32| at.checked_sub(phase).map_or(0, |at| phase + at / 4 * 4);
    let first = word(at);
    let last = at + size - 1;
    // The first word of all may overlap the one behind it.
    (first, if last < first + 4 { first } else { word(last) })
}

/// The rows for loads, with words in that phase, and about what all of it costs.
fn rows(phase: u32, loads: &BTreeSet<(u32, u32)>) -> (Vec<u32>, u32) {
    let mut needed = BTreeSet::new();
    let mut cost = 0;
    for &(at, size) in loads {
        let (first, last) = words(phase, at, size);
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

/// The nodes that a filter needs, in order.
pub(super) fn used(lanes: &Lanes) -> Vec<Node> {
    let mut marked = vec![false; lanes.dag.len()];
    let mut open: Vec<Node> = vec![lanes.verdict];
    open.extend(lanes.ends.iter().flat_map(|&(start, length)| [start, length]));
    for step in lanes.regions.iter().flat_map(|region| &region.steps) {
        match step {
            Step::Effect { mask, effect, .. } => open.extend(effect.operands().chain([*mask])),
            Step::When { mask, outs, .. } => open.extend(outs.iter().copied().chain([*mask])),
            Step::Loop { live, carried, .. } => {
                open.extend(firsts(live, carried).chain(nexts(live, carried)));
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

/// What an offset is where headers have no options: it is computed from a byte that says how long a
/// header is, in units of 4 bytes, in its low half (IPv4's first byte) or in its high one (TCP's thirteenth).
fn plain(dag: &Dag, root: Node) -> Option<u32> {
    let first = evaluate(dag, root, 0x45, &mut HashMap::new())?;
    if first == PLAIN_HEADER {
        return Some(first);
    }
    match evaluate(dag, root, 0x50, &mut HashMap::new())? {
        PLAIN_HEADER => Some(PLAIN_HEADER),
        _ => Some(first),
    }
}

/// A word, were all single bytes of the packet that it depends on this one. `known` is what was found before: operands are
/// shared, and there are more ways through a graph than anybody could go.
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
        // Where the packet is long enough, mostly.
        Op::Select { accept, reject, .. } => of(accept).or_else(|| of(reject)),
        _ => None,
    };
    known.insert(node, value);
    value
}

/// In which lanes a node's value matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    Nowhere,
    In(Node),
    Everywhere,
}

/// The demand for each node, spread from what uses it to what it is made of. It may be too much,
/// never too little.
struct Demands {
    demands: Vec<Demand>,
    /// Masks that can be computed anywhere in the filter without a load whose offset varies.
    plain: Vec<bool>,
}

impl Demands {
    fn new(lanes: &Lanes, used: &[Node]) -> Demands {
        let dag = &lanes.dag;
        let mut plain = vec![false; dag.len()];
        for &node in used {
            plain[node.index()] = dag.home(node) == RegionId::ROOT
                && match dag.op(node) {
                    Op::Load(load) => load.root.is_none(),
                    Op::Result(_) | Op::Carried { .. } | Op::Live(_) | Op::Out { .. } => false,
                    _ => dag.operands(node).all(|operand| plain[operand.index()]),
                };
        }
        Demands { demands: vec![Demand::Nowhere; dag.len()], plain }
    }

    /// What a filter gives and does.
    fn seed(&mut self, lanes: &mut Lanes) {
        let Lanes { dag, regions, .. } = lanes;
        let ends = lanes.ends.iter().flat_map(|&(start, length)| [start, length]);
        let mut everywhere: Vec<Node> = ends.chain([lanes.verdict]).collect();
        for step in regions.iter().flat_map(|region| &region.steps) {
            match step {
                Step::Effect { mask, effect, .. } => {
                    everywhere.push(*mask);
                    // These indices have to be right in every lane.
                    let in_all = matches!(effect, Effect::ArrayLoad { .. } | Effect::ArrayStore { .. });
                    let demand = match self.is_plain(*mask) && !in_all {
                        true => Demand::In(*mask),
                        false => Demand::Everywhere,
                    };
                    effect.operands().for_each(|node| self.add(dag, node, demand, None));
                }
                Step::When { mask, outs, .. } => everywhere.extend(outs.iter().chain([mask])),
                Step::Loop { live, carried, .. } => {
                    everywhere.extend(firsts(live, carried).chain(nexts(live, carried)));
                }
            }
        }
        everywhere.into_iter().for_each(|node| self.add(dag, node, Demand::Everywhere, None));
    }

    fn is_plain(&self, mask: Node) -> bool {
        self.plain.get(mask.index()).copied().unwrap_or(false)
    }

    fn spread(&mut self, lanes: &mut Lanes, used: &[Node]) {
        // What nodes are made of has lower numbers.
        for &node in used.iter().rev() {
            let demand = self.demands[node.index()];
            if demand == Demand::Nowhere {
                continue;
            }
            match lanes.dag.op(node) {
                Op::Select { mask, accept, reject } => {
                    self.add(&mut lanes.dag, mask, demand, None);
                    self.add(&mut lanes.dag, accept, demand, Some((mask, true)));
                    self.add(&mut lanes.dag, reject, demand, Some((mask, false)));
                }
                // Of two conditions the one matters only where the other does not decide. What can be
                // computed without loads whose offsets vary comes first.
                Op::And(a, b) | Op::Or(a, b) => {
                    let (first, second) = if self.is_plain(b) { (b, a) } else { (a, b) };
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

    /// A node matters where `demand` says, and the mask is what is said, where it is plain.
    fn add(&mut self, dag: &mut Dag, node: Node, demand: Demand, only: Option<(Node, bool)>) {
        let mut demand = demand;
        if let Some((mask, on)) = only.filter(|&(mask, _)| self.is_plain(mask)) {
            let mask = if on { mask } else { dag.not(mask) };
            demand = match demand {
                Demand::Everywhere => Demand::In(mask),
                Demand::In(whole) => Demand::In(dag.both(whole, mask)),
                Demand::Nowhere => Demand::Nowhere,
            };
        }
        let had = self.demands[node.index()];
        self.demands[node.index()] = either(dag, had, demand);
    }

    /// The lanes in which any of these matters.
    fn of_all(&self, dag: &mut Dag, nodes: &[Node]) -> Option<Node> {
        let all = nodes.iter().map(|node| self.demands[node.index()]);
        match all.fold(Demand::Nowhere, |a, b| either(dag, a, b)) {
            Demand::In(mask) => Some(mask),
            Demand::Nowhere | Demand::Everywhere => None,
        }
    }
}

fn either(dag: &mut Dag, a: Demand, b: Demand) -> Demand {
    match (a, b) {
        (Demand::Nowhere, other) | (other, Demand::Nowhere) => other,
        (Demand::In(a), Demand::In(b)) => Demand::In(dag.either(a, b)),
        _ => Demand::Everywhere,
    }
}
