//! The reference interpreter: slow, obvious, and right.
//!
//! It runs [`Program::module`] as the validator left it, the prelude's bodies included, and shares
//! no code with any backend, nor with the passes and facts that backends rely on. Where another
//! device's answer differs from this one's, the other is wrong.
//!
//! How it is built:
//! - a value is a flat list of scalars, each of which knows its type (`value`); `layout` says
//!   where a type's parts are in such a list;
//! - a packet is copied into a small arena of its own, with the same alignment and something other
//!   than zeros around it, runs there as a batch of one, and is copied back (`memory`);
//! - `code` works out constants once a program, `machine` runs statements, `expression`,
//!   `operators`, `convert` and `math` say what expressions are;
//! - a packet may also be run without maps, and asks for each of their words (`map_requests`);
//! - nothing in it recurses along a filter's nesting, calls or types, and everything a filter can
//!   make it hold is counted before the first packet: a filter can exhaust neither the stack nor
//!   the memory.

mod convert;
mod device;
mod expression;
mod layout;
mod machine;
pub mod map_requests;
mod math;
mod memory;
mod operators;
mod prepare;
mod value;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use device::InterpDevice;

use crate::device::CancelToken;
use crate::map::layout::zeros;
use crate::packet::{Metadata, Verdict};
use crate::program::Program;
use machine::{Machine, Stop};
use prepare::Code;

/// Why the interpreter could not run a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpError {
    /// Something that the verifier refuses in filters, and that has no meaning here.
    #[error("the interpreter does not know {0}")]
    Unsupported(String),
    /// The module is not what the validator promises: a fault of ours.
    #[error("inconsistent module: {0}")]
    Internal(String),
}

impl InterpError {
    fn internal(what: impl Into<String>) -> InterpError {
        InterpError::Internal(what.into())
    }
}

/// What a filter did to one packet, beside its effects. Offsets are in bytes from the packet's
/// first byte as it arrived; bytes that `adjust_head` and `adjust_tail` clear do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trace {
    /// One past the furthest byte read by a load; `None` when there was no such byte.
    pub read_end: Option<u32>,
    /// One past the furthest byte written by a store; `None` when there was no such byte.
    pub written_end: Option<u32>,
    /// Loop iterations of the filter and its helpers: the fuel spent.
    pub iterations: u64,
}

/// What became of one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The filter's decision.
    pub verdict: Verdict,
    /// The packet as the filter left it.
    pub packet: Vec<u8>,
    /// What it did on the way.
    pub trace: Trace,
}

/// A program made ready for running packets one at a time, apart from any batch.
#[derive(Debug)]
pub struct Interpreter {
    program: Arc<Program>,
    code: Code,
}

impl Interpreter {
    /// Works out what does not depend on the packet.
    ///
    /// # Errors
    /// [`InterpError::Unsupported`] for what no filter that the verifier let through contains.
    pub fn new(program: &Arc<Program>) -> Result<Interpreter, InterpError> {
        Ok(Interpreter { program: program.clone(), code: Code::new(program)? })
    }

    /// Runs one packet, with nothing in the filter's maps.
    ///
    /// # Errors
    /// As [`Interpreter::new`], where only execution shows it.
    pub fn run(&self, packet: &[u8], metadata: &Metadata) -> Result<Outcome, InterpError> {
        let cancel = CancelToken::new();
        let mut machine = Machine::new(&self.program, &self.code, zeros(self.program.maps()), &cancel);
        let value = machine.packet(packet, 0, metadata).map_err(Stop::into_error)?;
        Ok(machine.outcome(Verdict::from_return(value)))
    }
}
