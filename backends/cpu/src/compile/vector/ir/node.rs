//! Nodes of the graph: pure operations on lanes.

use super::ops::{Binary, Compare, Unary};

/// A node of the graph, by number. Operands have lower numbers than the nodes that use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node(pub(super) u32);

impl Node {
    /// Number of the node; numbers are consecutive from zero.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A region, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RegionId(pub u32);

impl RegionId {
    /// The region that is the whole filter.
    pub const ROOT: RegionId = RegionId(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An effect, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EffectId(pub u32);

/// Type of a node's value in each lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ValueKind {
    /// 32 bits.
    Word,
    /// A boolean.
    Mask,
}

/// A field of [`Metadata`](portcullis_core::packet::Metadata).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MetadataField {
    WireLength,
    Port,
    TimeLow,
    TimeHigh,
    TimeMs,
}

/// A load of packet bytes as they arrived, little-endian and zero-extended. Only in filters that
/// never write to the packet ([`LaneIr::writes`](super::program::LaneIr::writes)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    /// The offset is `root + add`, a sum that does not wrap in any lane.
    pub root: Option<Node>,
    pub add: u32,
    /// Bytes: 1, 2 or 4. The result is unspecified if any of them is outside the packet.
    pub size: u32,
}

/// Operation of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    // Operations that result in a word.
    Constant(u32),
    /// The packet's length on arrival.
    Length,
    Metadata(MetadataField),
    Load(Load),
    /// A word of a constant table ([`LaneIr::tables`](super::program::LaneIr::tables)); the index
    /// is in range in every lane.
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
    // Operations that result in a mask.
    /// One constant value in all lanes.
    Flag(bool),
    Compare(Compare, Node, Node),
    And(Node, Node),
    Or(Node, Node),
    Not(Node),
    // Values of steps.
    /// Result of an effect, a word.
    Result(EffectId),
    /// A loop-carried value, word or mask, in the current iteration of the loop with this body.
    LoopCarried {
        body: RegionId,
        index: u32,
    },
    /// Mask of the lanes that are active in the current iteration of the loop with this body.
    Live(RegionId),
    /// Output of a region, word or mask: one of the `outs` of a `Step::When`, or the final value of
    /// one of the carried values of a `Step::Loop`.
    Out {
        region: RegionId,
        index: u32,
    },
}
