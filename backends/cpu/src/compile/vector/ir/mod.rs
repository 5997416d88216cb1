//! Lane IR: what one lane does with one packet.
//!
//! The IR has two parts. Pure operations are nodes of a graph ([`Dag`]) with two kinds of values,
//! [`ValueKind::Word`] (32 bits per lane) and [`ValueKind::Mask`] (one bit per lane). The graph is
//! hash-consed: equal operations are one node, as in global value numbering, and they are
//! simplified while it is built. A node has a value in every lane, whatever the program's control
//! flow, so it may be computed wherever its operands exist ([`Dag::scope`]), any number of times.
//!
//! Operations with effects, or that depend on effects, are steps ([`Step`]) of a region
//! ([`Region`]), executed in order, each in the lanes of its mask. Control flow is limited to
//! skipping whole regions in which no lane is active, and to loops.
//!
//! # Inactive lanes
//!
//! A result that depends on a mask (of an effect, of an output of a [`Step::When`], of a load
//! outside the packet) is *unspecified* in inactive lanes, but within the node's [`Dag::range`]. No
//! active lane depends on it.
//!
//! # Bounds
//!
//! Loads and stores need no check: `trace` has turned those that are needed into masks and selects.
//! An offset outside the packet occurs in inactive lanes only, or, for pure loads, in any lane. So
//! pure loads must be harmless for any offset; what they load outside the packet does not matter.

mod dump;
mod graph;
mod masks;
mod node;
mod ops;
mod program;
mod range;
#[cfg(test)]
mod tests;
mod words;

pub(super) use graph::Dag;
pub(super) use node::{EffectId, Load, MetadataField, Node, Op, RegionId, ValueKind};
pub(super) use ops::{Binary, Compare, Unary, binary, compare, unary};
pub(super) use program::{
    Atomic, Effect, LaneIr, LoopCarried, LoopMask, PacketAddress, Region, Step, initial_nodes, iteration_nodes,
};
pub(super) use range::Range;
