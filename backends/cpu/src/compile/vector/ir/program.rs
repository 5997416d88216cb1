//! Steps with effects, and a whole filter in lane IR.

use super::graph::Dag;
use super::node::{EffectId, Node, RegionId};

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
