//! The graph of pure operations.

use std::collections::HashMap;

use super::node::{EffectId, Load, Node, Op, RegionId, ValueKind};
use super::range::Range;

#[derive(Debug, Clone, Copy)]
struct NodeData {
    op: Op,
    kind: ValueKind,
    scope: RegionId,
    range: Range,
}

/// Hash-consed graph: no two nodes have the same operation.
#[derive(Debug, Clone)]
pub(crate) struct Dag {
    entries: Vec<NodeData>,
    interned: HashMap<Op, Node>,
    /// Nesting depth of each region.
    depths: Vec<u32>,
}

impl Dag {
    pub fn new() -> Dag {
        Dag { entries: Vec::new(), interned: HashMap::new(), depths: vec![0] }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.entries.len() as u32).map(Node)
    }

    pub fn op(&self, node: Node) -> Op {
        self.entries[node.index()].op
    }

    pub fn kind(&self, node: Node) -> ValueKind {
        self.entries[node.index()].kind
    }

    /// Returns the innermost region that a node depends on; it cannot be computed outside.
    pub fn scope(&self, node: Node) -> RegionId {
        self.entries[node.index()].scope
    }

    /// Bounds of a word in every lane, inactive ones included.
    pub fn range(&self, node: Node) -> Range {
        self.entries[node.index()].range
    }

    /// Returns the node of an operation if there is one.
    pub fn lookup(&self, op: Op) -> Option<Node> {
        self.interned.get(&op).copied()
    }

    /// Returns the value of a word that is a constant.
    pub fn as_constant(&self, node: Node) -> Option<u32> {
        match self.op(node) {
            Op::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the value of a mask that is the same constant in all lanes.
    pub fn as_flag(&self, node: Node) -> Option<bool> {
        match self.op(node) {
            Op::Flag(value) => Some(value),
            _ => None,
        }
    }

    /// Operands of a node.
    pub fn operands(&self, node: Node) -> impl Iterator<Item = Node> + use<> {
        operands(self.op(node))
    }

    /// Registers a region; regions are numbered consecutively.
    pub fn new_region(&mut self, parent: RegionId) -> RegionId {
        self.depths.push(self.depths[parent.index()] + 1);
        RegionId(self.depths.len() as u32 - 1)
    }

    /// Creates the result of an effect in a region: a word in `range`.
    pub fn result(&mut self, effect: EffectId, region: RegionId, range: Range) -> Node {
        self.insert(Op::Result(effect), ValueKind::Word, region, range)
    }

    /// Creates a loop-carried value.
    pub fn loop_carried(&mut self, body: RegionId, index: u32, kind: ValueKind) -> Node {
        self.insert(Op::LoopCarried { body, index }, kind, body, Range::ALL)
    }

    /// Creates the mask of lanes that are active in a loop's iteration.
    pub fn live(&mut self, body: RegionId) -> Node {
        self.insert(Op::Live(body), ValueKind::Mask, body, Range::ALL)
    }

    /// Creates an output of a region, in the region around it.
    pub fn out(&mut self, region: RegionId, index: u32, kind: ValueKind, around: RegionId, range: Range) -> Node {
        self.insert(Op::Out { region, index }, kind, around, range)
    }

    /// Returns the node of an operation, adding it if necessary. Its scope is the innermost scope
    /// of its operands.
    pub(super) fn add(&mut self, op: Op, kind: ValueKind, range: Range) -> Node {
        if let Some(&node) = self.interned.get(&op) {
            return node;
        }
        let scopes = operands(op).map(|node| self.scope(node));
        let scope = scopes.max_by_key(|scope| self.depths[scope.index()]).unwrap_or(RegionId::ROOT);
        self.insert(op, kind, scope, range)
    }

    fn insert(&mut self, op: Op, kind: ValueKind, scope: RegionId, range: Range) -> Node {
        let Dag { entries, interned, .. } = self;
        *interned.entry(op).or_insert_with(|| {
            entries.push(NodeData { op, kind, scope, range });
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
        | Op::LoopCarried { .. }
        | Op::Live(_)
        | Op::Out { .. } => [None; 3],
    };
    all.into_iter().flatten()
}
