//! A packet that asks for the words of maps, one operation after the other, in place of having maps of its own: whoever
//! answers decides what other packets have done meanwhile. So the prelude's own text can be tried in every order of
//! what several packets do, and with memory as relaxed as a device's may be.

use super::machine::{Machine, Stop};
use super::{InterpError, Interpreter, Outcome};
use crate::device::CancelToken;
use crate::packet::{Metadata, Verdict};

/// What is done to a word. All give what was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// It is read.
    Load,
    /// It is written.
    Store(u32),
    /// So much is added.
    Add(u32),
    /// It is replaced.
    Exchange(u32),
    /// It is replaced where it is what was expected.
    CompareExchange {
        /// What was expected.
        expected: u32,
        /// What it is replaced by.
        value: u32,
    },
}

impl AtomicOp {
    /// What is there afterwards; `None` where it stays as it is.
    pub fn after(self, before: u32) -> Option<u32> {
        match self {
            AtomicOp::Load => None,
            AtomicOp::Store(value) | AtomicOp::Exchange(value) => Some(value),
            AtomicOp::Add(amount) => Some(before.wrapping_add(amount)),
            AtomicOp::CompareExchange { expected, value } => (before == expected).then_some(value),
        }
    }
}

/// An operation on a word of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MapRequest {
    /// The map's number.
    pub map: usize,
    /// The word's place in the map's memory.
    pub at: usize,
    /// What is done to it.
    pub what: AtomicOp,
    /// Whether the packet looks at what was there before.
    pub looks: bool,
}

/// What came of a [`MapRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MapReply {
    /// What was there before; of a store it does not matter.
    pub before: u32,
    /// Whether a compare and exchange has exchanged. It may fail for no reason.
    pub exchanged: bool,
}

/// How far a packet gets with some answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It wants one more.
    Blocked {
        /// What it asks for.
        request: MapRequest,
        /// A number for all that its further way depends on beside answers: where it is, and what it has in hand.
        state: u64,
    },
    /// It has ended.
    Finished(Outcome),
}

/// The answers, and how many of them were used.
#[derive(Debug)]
pub(super) struct Answers {
    all: Vec<MapReply>,
    used: usize,
    /// The number of the expression that has asked last.
    pub(super) at: usize,
}

impl Answers {
    /// The answer to the next request.
    pub(super) fn next(&mut self, request: MapRequest, at: usize) -> Result<MapReply, Stop> {
        self.at = at;
        let answer = self.all.get(self.used).ok_or(Stop::Blocked(request))?;
        self.used += 1;
        Ok(*answer)
    }
}

impl Interpreter {
    /// Runs one packet from its start with what its operations on maps have given so far, until it asks for more.
    ///
    /// # Errors
    /// As [`Interpreter::run`].
    pub fn next(&self, packet: &[u8], metadata: &Metadata, answers: &[MapReply]) -> Result<Progress, InterpError> {
        let cancel = CancelToken::new();
        let mut machine = Machine::new(&self.program, &self.code, Vec::new(), &cancel);
        machine.answers = Some(Answers { all: answers.to_vec(), used: 0, at: 0 });
        match machine.packet(packet, 0, metadata) {
            Ok(value) => Ok(Progress::Finished(machine.outcome(Verdict::from_return(value)))),
            Err(Stop::Blocked(request)) => Ok(Progress::Blocked { request, state: machine.state(request) }),
            Err(stop) => Err(stop.into_error()),
        }
    }
}
