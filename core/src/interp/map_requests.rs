//! Running a packet with its map accesses answered by the caller, for model checking.
//!
//! The packet has no maps of its own. It blocks at each access to a map word, and the caller
//! supplies the reply, that is, decides what concurrent packets have done meanwhile. So the
//! prelude's own code can be run in every interleaving of several packets, with memory as relaxed
//! as on a device.

use super::machine::{Machine, Stop};
use super::{InterpError, Interpreter, Outcome};
use crate::device::CancelToken;
use crate::packet::{Metadata, Verdict};

/// An atomic operation on a map word. Each returns the previous value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Reads the word.
    Load,
    /// Writes the word.
    Store(u32),
    /// Adds to the word, wrapping.
    Add(u32),
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
    /// The reply to the next request, or [`Stop::Blocked`] if there is none left.
    pub(super) fn next(&mut self, request: MapRequest, at: usize) -> Result<MapReply, Stop> {
        self.at = at;
        let reply = self.all.get(self.used).ok_or(Stop::Blocked(request))?;
        self.used += 1;
        Ok(*reply)
    }
}

impl Interpreter {
    /// Runs one packet from its start, with replies to its first map accesses, until it needs
    /// another reply or ends.
    ///
    /// # Errors
    /// As [`Interpreter::run`].
    pub fn run_with_replies(
        &self,
        packet: &[u8],
        metadata: &Metadata,
        replies: &[MapReply],
    ) -> Result<Progress, InterpError> {
        let cancel = CancelToken::new();
        let mut machine = Machine::new(&self.program, &self.code, Vec::new(), &cancel);
        machine.replies = Some(Replies { all: replies.to_vec(), used: 0, at: 0 });
        match machine.run_packet(packet, 0, metadata) {
            Ok(value) => Ok(Progress::Finished(machine.outcome(Verdict::from_return(value)))),
            Err(Stop::Blocked(request)) => Ok(Progress::Blocked { request, state: machine.state(request) }),
            Err(stop) => Err(stop.into_error()),
        }
    }
}
