//! Running a packet with its map accesses answered by the caller, for model checking.
//!
//! The packet has no maps of its own. It blocks at each access to a map word, and the caller
//! supplies the reply, that is, decides what concurrent packets have done meanwhile. So the
//! prelude's own code can be run in every interleaving of several packets, with memory as relaxed
//! as on a device.

use super::Outcome;

/// An atomic operation on a map word. Each returns the previous value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Reads the word.
    Load,
    /// Writes the word.
    Store(u32),
    /// Adds to the word, wrapping.
    Add(u32),
    /// The smaller number.
    Min(u32),
    /// The larger number.
    Max(u32),
    /// The bits that are set in either.
    Or(u32),
    /// Replaces the word.
    Exchange(u32),
    /// Replaces the word if it has the expected value.
    CompareExchange {
        /// The expected value.
        expected: u32,
        /// The new value.
        value: u32,
    },
}

impl AtomicOp {
    /// The word's value after the operation; `None` if it does not change.
    pub fn after(self, before: u32) -> Option<u32> {
        match self {
            AtomicOp::Load => None,
            AtomicOp::Store(value) | AtomicOp::Exchange(value) => Some(value),
            AtomicOp::Add(amount) => Some(before.wrapping_add(amount)),
            AtomicOp::Min(value) => Some(before.min(value)),
            AtomicOp::Max(value) => Some(before.max(value)),
            AtomicOp::Or(value) => Some(before | value),
            AtomicOp::CompareExchange { expected, value } => (before == expected).then_some(value),
        }
    }
}

/// A packet's access to a map word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MapRequest {
    /// The map's number.
    pub map: usize,
    /// Index of the word in the map's memory.
    pub at: usize,
    /// The operation.
    pub op: AtomicOp,
    /// Whether the packet uses the previous value.
    pub uses_result: bool,
}

/// The result of a [`MapRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MapReply {
    /// The previous value; ignored for a store.
    pub before: u32,
    /// Whether a compare-exchange replaced the word. It may fail spuriously.
    pub exchanged: bool,
}

/// How far a packet runs with the given replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The packet needs another reply.
    Blocked {
        /// The access that has no reply yet.
        request: MapRequest,
        /// Hash of the machine's state, which determines how the packet continues for equal
        /// replies.
        state: u64,
    },
    /// The packet has been filtered.
    Finished(Outcome),
}

/// The replies for a packet, and how many of them are used up.
#[derive(Debug)]
pub(super) struct Replies {
    all: Vec<MapReply>,
    used: usize,
    /// Index of the expression that made the last request.
    pub(super) at: usize,
}

impl Replies {
    pub(super) fn new(replies: &[MapReply]) -> Replies {
        Replies { all: replies.to_vec(), used: 0, at: 0 }
    }

    /// The reply to the next request, which the expression with this index makes; `None` if none is
    /// left.
    pub(super) fn next(&mut self, at: usize) -> Option<MapReply> {
        self.at = at;
        let reply = self.all.get(self.used).copied()?;
        self.used += 1;
        Some(reply)
    }
}
