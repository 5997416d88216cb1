//! Nodes of the graph: pure operations on lanes.

use super::ops::{Binary, Compare, Unary};

/// A node of the graph, by its number. Operands have lower numbers than what is made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node(pub(super) u32);

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
