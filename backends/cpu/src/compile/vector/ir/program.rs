//! Lane IR of a whole filter: a DAG of values that vector code computes for several packets (lanes)
//! at once, and regions of steps with side effects, predicated by masks.

use super::graph::Dag;
use super::node::{EffectId, Node, RegionId};

/// An address in a packet that the filter may write to: `start + offset` bytes from the first byte
/// on arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PacketAddress {
    /// Current start of the packet, signed, in filters that change lengths.
    pub start: Option<Node>,
    /// Offset from the start, unsigned.
    pub offset: Node,
}

/// An atomic operation on a word of a map; its result is the old value. If several lanes access the
/// same word, they do so in order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Atomic {
    Load,
    /// Has no result.
    Store(Node),
    Add(Node),
    Min(Node),
    Max(Node),
    Or(Node),
    Exchange(Node),
    CompareExchange {
        expected: Node,
        value: Node,
    },
}

/// The effect of a step, in the lanes of its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Loads little-endian bytes, all of which are in the packet.
    LoadPacket { at: PacketAddress, size: u32 },
    /// Stores the low bytes of a value, little-endian; all of them are in the packet.
    StorePacket { at: PacketAddress, size: u32, value: Node },
    /// Zeroes `count` bytes, which are in the packet or in its room to grow.
    ClearPacket { at: PacketAddress, count: Node },
    /// Accesses a word of a map; the index is in range.
    Map { map: u32, word: Node, atomic: Atomic },
    /// Loads a word of a lane's own array ([`LaneIr::arrays`]); the index is in range in every
    /// lane.
    ArrayLoad { array: u32, index: Node },
    /// Stores a word of a lane's own array; the index is in range in every lane.
    ArrayStore { array: u32, index: Node, value: Node },
    /// Stores a value in all words of a lane's own array.
    ArrayFill { array: u32, value: Node },
}

impl Effect {
    /// Whether the effect has a result.
    pub fn has_result(&self) -> bool {
        match self {
            Effect::LoadPacket { .. } | Effect::ArrayLoad { .. } => true,
            Effect::Map { atomic, .. } => !matches!(atomic, Atomic::Store(_)),
            _ => false,
        }
    }

    /// Operands of the effect.
    pub fn operands(&self) -> impl Iterator<Item = Node> {
        let place = |at: PacketAddress| [at.start, Some(at.offset), None, None];
        let all = match *self {
            Effect::LoadPacket { at, .. } => place(at),
            Effect::StorePacket { at, value, .. } => [at.start, Some(at.offset), Some(value), None],
            Effect::ClearPacket { at, count } => [at.start, Some(at.offset), Some(count), None],
            Effect::Map { word, atomic, .. } => match atomic {
                Atomic::Load => [Some(word), None, None, None],
                Atomic::Store(value)
                | Atomic::Add(value)
                | Atomic::Min(value)
                | Atomic::Max(value)
                | Atomic::Or(value)
                | Atomic::Exchange(value) => [Some(word), Some(value), None, None],
                Atomic::CompareExchange { expected, value } => [Some(word), Some(expected), Some(value), None],
            },
            Effect::ArrayLoad { index, .. } => [Some(index), None, None, None],
            Effect::ArrayStore { index, value, .. } => [Some(index), Some(value), None, None],
            Effect::ArrayFill { value, .. } => [Some(value), None, None, None],
        };
        all.into_iter().flatten()
    }
}

/// Which lanes are active in the iterations of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopMask {
    /// Lanes that are active in the first iteration.
    pub initial: Node,
    /// Lanes that are active in the next iteration, among those active in this one: the mask need
    /// not be combined with [`Op::Live`](super::node::Op::Live).
    pub next: Node,
}

/// A loop-carried value. Lanes that are not active in an iteration keep their value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopCarried {
    /// Value before the first iteration.
    pub initial: Node,
    /// Value after an iteration in lanes that continue. Need not be computed if no lane does.
    pub next: Node,
    /// Value after an iteration in lanes that leave the loop.
    pub on_exit: Node,
}

/// Nodes that a loop needs before its first iteration.
pub(crate) fn initial_nodes<'a>(live: &'a LoopMask, carried: &'a [LoopCarried]) -> impl Iterator<Item = Node> + 'a {
    carried.iter().map(|carry| carry.initial).chain([live.initial])
}

/// Nodes that an iteration of a loop computes.
pub(crate) fn iteration_nodes<'a>(live: &'a LoopMask, carried: &'a [LoopCarried]) -> impl Iterator<Item = Node> + 'a {
    let other = |carry: &LoopCarried| (carry.on_exit != carry.next).then_some(carry.on_exit);
    carried.iter().flat_map(move |carry| [Some(carry.next), other(carry)]).flatten().chain([live.next])
}

/// An element of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// An effect in the lanes of a mask.
    Effect { id: EffectId, mask: Node, effect: Effect },
    /// The steps of a region, which may be skipped if no lane of the mask is active. The masks of
    /// its steps imply this one.
    When { mask: Node, body: RegionId, outs: Vec<Node> },
    /// The steps of a region, repeated as long as any lane is active. A lane that is active in one
    /// iteration but not in the next has left the loop for good.
    Loop { live: LoopMask, carried: Vec<LoopCarried>, body: RegionId },
}

/// Steps in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// The region that this one is part of.
    pub parent: Option<RegionId>,
    pub steps: Vec<Step>,
}

/// A whole filter.
#[derive(Debug, Clone)]
pub(crate) struct LaneIr {
    pub dag: Dag,
    /// Regions, indexed by [`RegionId`].
    pub regions: Vec<Region>,
    /// Size in words of each lane's own arrays. Their initial content does not matter.
    pub arrays: Vec<u32>,
    /// Constant tables, in words.
    pub tables: Vec<Vec<u32>>,
    /// The normalised verdict, with the redirect target in the upper 24 bits.
    pub verdict: Node,
    /// Start (signed, in bytes from the start on arrival) and length of the packet when the filter
    /// ends, in filters that change lengths.
    pub ends: Option<(Node, Node)>,
    /// Whether the filter writes to packets; all loads from packets are effects then.
    pub writes: bool,
}
