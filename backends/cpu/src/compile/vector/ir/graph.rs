//! The graph of pure operations.

use std::collections::HashMap;

use super::node::{EffectId, Kind, Load, Node, Op, RegionId};
use super::range::Range;

#[derive(Debug, Clone, Copy)]
struct Entry {
    op: Op,
    kind: Kind,
    home: RegionId,
    range: Range,
}

/// The graph.
#[derive(Debug, Clone)]
pub(crate) struct Dag {
    entries: Vec<Entry>,
    found: HashMap<Op, Node>,
    /// How deep each region lies.
    depths: Vec<u32>,
}

impl Dag {
    pub fn new() -> Dag {
        Dag { entries: Vec::new(), found: HashMap::new(), depths: vec![0] }
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.entries.len() as u32).map(Node)
    }

    pub fn op(&self, node: Node) -> Op {
        self.entries[node.index()].op
    }

    pub fn kind(&self, node: Node) -> Kind {
        self.entries[node.index()].kind
    }

    /// The innermost region that it depends on: it cannot be computed outside.
    pub fn home(&self, node: Node) -> RegionId {
        self.entries[node.index()].home
    }

    /// What a word can be, in every lane, those that are off included.
    pub fn range(&self, node: Node) -> Range {
        self.entries[node.index()].range
    }

    /// The node that is this, where there is one.
    pub fn find(&self, op: Op) -> Option<Node> {
        self.found.get(&op).copied()
    }

    /// The number that a word is.
    pub fn as_constant(&self, node: Node) -> Option<u32> {
        match self.op(node) {
            Op::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// What a mask is in all lanes.
    pub fn as_flag(&self, node: Node) -> Option<bool> {
        match self.op(node) {
            Op::Flag(value) => Some(value),
            _ => None,
        }
    }

    /// The nodes that an operation takes.
    pub fn operands(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        operands(self.op(node))
    }

    /// Makes a region known, the next one by number.
    pub fn region(&mut self, parent: RegionId) -> RegionId {
        self.depths.push(self.depths[parent.index()] + 1);
        RegionId(self.depths.len() as u32 - 1)
    }

    /// What an effect in a region gives: a word in that range.
    pub fn result(&mut self, effect: EffectId, region: RegionId, range: Range) -> Node {
        self.insert(Op::Result(effect), Kind::Word, region, range)
    }

    /// A carried value of a loop.
    pub fn carried(&mut self, body: RegionId, index: u32, kind: Kind) -> Node {
        self.insert(Op::Carried { body, index }, kind, body, Range::ALL)
    }

    /// The lanes that take part in a loop's round.
    pub fn live(&mut self, body: RegionId) -> Node {
        self.insert(Op::Live(body), Kind::Mask, body, Range::ALL)
    }

    /// What comes out of a region, in the one around it.
    pub fn out(&mut self, region: RegionId, index: u32, kind: Kind, around: RegionId, range: Range) -> Node {
        self.insert(Op::Out { region, index }, kind, around, range)
    }

    /// A node, the one that is there already if there is one. Its home is the innermost of its
    /// operands'.
    pub(super) fn add(&mut self, op: Op, kind: Kind, range: Range) -> Node {
        if let Some(&node) = self.found.get(&op) {
            return node;
        }
        let homes = operands(op).map(|node| self.home(node));
        let home = homes.max_by_key(|home| self.depths[home.index()]).unwrap_or(RegionId::ROOT);
        self.insert(op, kind, home, range)
    }

    fn insert(&mut self, op: Op, kind: Kind, home: RegionId, range: Range) -> Node {
        let Dag { entries, found, .. } = self;
        *found.entry(op).or_insert_with(|| {
            entries.push(Entry { op, kind, home, range });
            Node(entries.len() as u32 - 1)
        })
    }
}

fn operands(op: Op) -> impl Iterator<Item = Node> {
    let all = match op {
        Op::Load(Load { root, .. }) => [root, None, None],
        Op::Table { index, .. } => [Some(index), None, None],
        Op::Unary(_, a) | Op::Not(a) => [Some(a), None, None],
        Op::Binary(_, a, b) | Op::Compare(_, a, b) | Op::And(a, b) | Op::Or(a, b) => [Some(a), Some(b), None],
        Op::Select { mask, accept, reject } => [Some(mask), Some(accept), Some(reject)],
        Op::Constant(_)
        | Op::Length
        | Op::Metadata(_)
        | Op::Flag(_)
        | Op::Result(_)
        | Op::Carried { .. }
        | Op::Live(_)
        | Op::Out { .. } => [None; 3],
    };
    all.into_iter().flatten()
}
