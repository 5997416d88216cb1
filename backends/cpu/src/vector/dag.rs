//! Lane IR: what one lane does with one packet.
//!
//! Two kinds of values, [`Kind::Word`] (32 bits a lane) and [`Kind::Mask`] (yes or no a lane), are
//! nodes of a graph in which nothing occurs twice. A node has no effect and a value in every lane,
//! whatever a program's control flow: it may be computed at any place where what it depends on is
//! there ([`Dag::home`]), as often as one likes.
//!
//! What has effects, or depends on them, is a [`Step`] of a [`Region`], executed in order, each in
//! the lanes of its mask. Nothing is branched over but whole regions in which no lane takes part.
//!
//! Lanes that are off: a result that depends on a mask (of an effect, of what leaves a
//! [`Step::When`], of a load outside the packet) is *unspecified* in lanes that are off, within the
//! node's [`Dag::range`]. No lane that is on depends on it.
//!
//! Loads and stores need no check: `trace` has put those that are needed into masks and selects. An
//! offset that lies outside the packet occurs in lanes that are off, and for pure loads in any, so
//! executing them must be harmless; what is loaded then does not matter.

mod dump;
mod masks;
mod range;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;

pub(crate) use masks::compare;
pub(crate) use range::Range;
pub(crate) use words::{binary, unary};

/// A node of the graph, by its number. Operands have lower numbers than what is made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node(u32);

impl Node {
    /// Its number; numbers go on from zero without gaps.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A piece of steps, by its number; 0 is the whole filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RegionId(pub u32);

impl RegionId {
    /// The whole filter.
    pub const ROOT: RegionId = RegionId(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An effect, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EffectId(pub u32);

/// What a node's value is, in each lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// 32 bits.
    Word,
    /// Yes or no.
    Mask,
}

/// What is known of a packet beside its bytes; the members of `portcullis_core::packet::Metadata`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    WireLength,
    Port,
    TimeLow,
    TimeHigh,
    TimeMs,
}

/// Bytes of the packet, as it arrived: lowest address in the lowest byte, zero above. Only in filters
/// that never write to it ([`Lanes::writes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    /// The offset is `root + add`, which does not wrap in any lane.
    pub root: Option<Node>,
    pub add: u32,
    /// 1, 2 or 4. Unspecified where a byte of it lies outside the packet.
    pub size: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unary {
    /// Every bit inverted.
    Invert,
    /// The two low bytes exchanged; the operand is below 2^16.
    SwapBytes16,
    SwapBytes32,
    CountOnes,
    /// 32 of zero.
    LeadingZeros,
    /// 32 of zero.
    TrailingZeros,
    ReverseBits,
}

/// WGSL's operators on 32 bits: everything wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    /// x / 0 = x
    Divide,
    /// x % 0 = 0
    Modulo,
    /// x / 0 = x, MIN / -1 = MIN
    DivideSigned,
    /// x % 0 = 0, MIN % -1 = 0
    ModuloSigned,
    And,
    Or,
    Xor,
    /// By the count modulo 32, as all shifts.
    ShiftLeft,
    ShiftRight,
    /// The sign is carried.
    ShiftRightSigned,
    Min,
    Max,
    MinSigned,
    MaxSigned,
}

/// The others are these, exchanged or inverted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Compare {
    Equal,
    Less,
    LessEqual,
    LessSigned,
    LessEqualSigned,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    // Words.
    Constant(u32),
    /// The packet's length when it arrived.
    Length,
    Metadata(Field),
    Load(Load),
    /// A word of a constant table ([`Lanes::tables`]); the index lies in it, in every lane.
    Table {
        table: u32,
        index: Node,
    },
    Unary(Unary, Node),
    Binary(Binary, Node, Node),
    Select {
        mask: Node,
        accept: Node,
        reject: Node,
    },
    // Masks.
    /// The same in all lanes.
    Flag(bool),
    Compare(Compare, Node, Node),
    And(Node, Node),
    Or(Node, Node),
    Not(Node),
    // Either.
    /// What an effect gave: a word.
    Result(EffectId),
    /// A carried value of the loop with this body, in the current round.
    Carried {
        body: RegionId,
        index: u32,
    },
    /// The lanes that take part in the current round of the loop with this body: a mask.
    Live(RegionId),
    /// Behind a [`Step::When`]: one of its `outs`. Behind a [`Step::Loop`]: what a carried value is
    /// in the end.
    Out {
        region: RegionId,
        index: u32,
    },
}

/// Where in the packet, in a filter that writes to it: `start + offset` bytes from the packet's
/// first byte as it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// Where the packet begins now, signed, in filters that change lengths.
    pub start: Option<Node>,
    /// The offset from there, unsigned.
    pub offset: Node,
}

/// What is done to a word of a map; gives what was there before. Of two lanes that meet in a word,
/// the one with the lower number comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Atomic {
    Load,
    /// Gives nothing.
    Store(Node),
    Add(Node),
    Exchange(Node),
    CompareExchange {
        expected: Node,
        value: Node,
    },
}

/// What a step does in the lanes of its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Bytes of the packet, lowest address in the lowest byte; all lie in the packet.
    LoadPacket { at: Place, size: u32 },
    /// The value's low bytes, lowest first; all lie in the packet.
    StorePacket { at: Place, size: u32, value: Node },
    /// Zeros in so many bytes, which lie in the room that a packet has to grow (or in the packet).
    ClearPacket { at: Place, count: Node },
    /// A word of a map; it is there.
    Map { map: u32, word: Node, atomic: Atomic },
    /// A word of a lane's own memory ([`Lanes::arrays`]); the index lies in it, in every lane.
    ArrayLoad { array: u32, index: Node },
    /// See `ArrayLoad`.
    ArrayStore { array: u32, index: Node, value: Node },
    /// The same in all of an array's words.
    ArrayFill { array: u32, value: Node },
}

impl Effect {
    /// Whether it has a result.
    pub fn gives(&self) -> bool {
        match self {
            Effect::LoadPacket { .. } | Effect::ArrayLoad { .. } => true,
            Effect::Map { atomic, .. } => !matches!(atomic, Atomic::Store(_)),
            _ => false,
        }
    }

    /// What it depends on.
    pub fn operands(&self) -> impl Iterator<Item = Node> {
        let place = |at: Place| [at.start, Some(at.offset), None, None];
        let all = match *self {
            Effect::LoadPacket { at, .. } => place(at),
            Effect::StorePacket { at, value, .. } => [at.start, Some(at.offset), Some(value), None],
            Effect::ClearPacket { at, count } => [at.start, Some(at.offset), Some(count), None],
            Effect::Map { word, atomic, .. } => match atomic {
                Atomic::Load => [Some(word), None, None, None],
                Atomic::Store(value) | Atomic::Add(value) | Atomic::Exchange(value) => {
                    [Some(word), Some(value), None, None]
                }
                Atomic::CompareExchange { expected, value } => [Some(word), Some(expected), Some(value), None],
            },
            Effect::ArrayLoad { index, .. } => [Some(index), None, None, None],
            Effect::ArrayStore { index, value, .. } => [Some(index), Some(value), None, None],
            Effect::ArrayFill { value, .. } => [Some(value), None, None, None],
        };
        all.into_iter().flatten()
    }
}

/// Which lanes take part in a loop's rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    /// In the first round.
    pub first: Node,
    /// In the next one, of those that are live in this one: it need not be masked with [`Op::Live`].
    pub next: Node,
}

/// A value that goes from a loop's round to the next. Lanes that are not live in a round keep what they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carry {
    /// Before the first round.
    pub first: Node,
    /// After a round, in the lanes that go on to the next one. It need not be computed where none does.
    pub next: Node,
    /// After a round, in the lanes that it is the last one of.
    pub left: Node,
}

/// What a loop's rounds are made from.
pub(crate) fn firsts<'a>(live: &'a Live, carried: &'a [Carry]) -> impl Iterator<Item = Node> + 'a {
    carried.iter().map(|carry| carry.first).chain([live.first])
}

/// What a loop's round makes.
pub(crate) fn nexts<'a>(live: &'a Live, carried: &'a [Carry]) -> impl Iterator<Item = Node> + 'a {
    let other = |carry: &Carry| (carry.left != carry.next).then_some(carry.left);
    carried.iter().flat_map(move |carry| [Some(carry.next), other(carry)]).flatten().chain([live.next])
}

/// One thing after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something with effects, in the lanes of a mask.
    Effect { id: EffectId, mask: Node, effect: Effect },
    /// A region's steps, which may be left out where no lane of the mask is on. The masks of its
    /// steps are all within this one.
    When { mask: Node, body: RegionId, outs: Vec<Node> },
    /// A region's steps, as long as any lane is live. Lanes that are live in a round and not in the
    /// next take part no more.
    Loop { live: Live, carried: Vec<Carry>, body: RegionId },
}

/// Steps in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// The one that it is a part of.
    pub parent: Option<RegionId>,
    pub steps: Vec<Step>,
}

/// A whole filter.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    pub dag: Dag,
    /// By their numbers.
    pub regions: Vec<Region>,
    /// Words of each lane's own arrays. What is in them to begin with does not matter.
    pub arrays: Vec<u32>,
    /// Constant tables.
    pub tables: Vec<Vec<u32>>,
    /// The verdict, its target in the upper 24 bits; normalised.
    pub verdict: Node,
    /// Where the packet begins in the end, in bytes from where it began, signed, and its length: in
    /// filters that change lengths.
    pub ends: Option<(Node, Node)>,
    /// Whether packets are written to; all their loads are effects then.
    pub writes: bool,
}

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
    fn add(&mut self, op: Op, kind: Kind, range: Range) -> Node {
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
