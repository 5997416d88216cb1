//! The reference interpreter: slow, obvious, and the definition of the correct result.
//!
//! The interpreter runs [`Program::module`] as the validator left it, including the prelude's
//! function bodies, and shares no code with any backend, nor with the passes and facts that
//! backends rely on. If another device's result differs from the interpreter's, the other device is
//! wrong.
//!
//! Design:
//! - A value is a flat list of typed scalars (`value`); `layout` locates the parts of a type in it.
//! - A packet is copied into a small arena of its own, at the same alignment and surrounded by
//!   non-zero bytes, runs there as a batch of one, and is copied back (`memory`).
//! - `prepare` evaluates constants once per program; `machine` runs statements; `expression`,
//!   `operators`, `convert` and `math` evaluate expressions.
//! - A packet can also run without maps, with the caller answering each map access
//!   (`map_requests`).
//! - Nothing recurses over a filter's nesting, calls or types, and all memory that a filter can
//!   make the interpreter allocate is counted before the first packet. So a filter can exhaust
//!   neither the stack nor the memory.

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
use map_requests::{MapReply, Progress, Replies};
use prepare::PreparedProgram;

/// Errors of preparing or running a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpError {
    /// A construct that the verifier rejects in filters, and that has no meaning here.
    #[error("the interpreter does not support {0}")]
    Unsupported(String),
    /// The module breaks a promise of the validator: a bug of ours.
    #[error("inconsistent module: {0}")]
    Internal(String),
}

impl InterpError {
    fn internal(what: impl Into<String>) -> InterpError {
        InterpError::Internal(what.into())
    }
}

/// Observations about one packet's run. Offsets are in bytes from the packet's original first byte;
/// bytes that `adjust_head` and `adjust_tail` clear do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trace {
    /// End of the furthest byte that was loaded; `None` if there was none.
    pub read_end: Option<u32>,
    /// End of the furthest byte that was stored; `None` if there was none.
    pub written_end: Option<u32>,
    /// Loop iterations of the filter and its helpers: the fuel spent.
    pub iterations: u64,
}

/// The result of running one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The packet as the filter left it.
    pub packet: Vec<u8>,
    /// Observations about the run.
    pub trace: Trace,
}

/// A program prepared for running single packets, outside of any batch.
#[derive(Debug)]
pub struct Interpreter {
    program: Arc<Program>,
    code: PreparedProgram,
}

impl Interpreter {
    /// Prepares a program: evaluates everything that does not depend on the packet.
    ///
    /// # Errors
    /// [`InterpError::Unsupported`] for constructs that the verifier rejects.
    pub fn new(program: &Arc<Program>) -> Result<Interpreter, InterpError> {
        Ok(Interpreter { program: program.clone(), code: PreparedProgram::new(program)? })
    }

    /// Runs one packet, with empty maps.
    ///
    /// # Errors
    /// As [`Interpreter::new`], for what only execution shows.
    pub fn run(&self, packet: &[u8], metadata: &Metadata) -> Result<Outcome, InterpError> {
        let cancel = CancelToken::new();
        let mut machine = Machine::new(&self.program, &self.code, zeros(self.program.maps()), &cancel);
        let value = machine.run_packet(packet, 0, metadata).map_err(Stop::into_error)?;
        Ok(machine.outcome(Verdict::from_return(value)))
    }

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
        machine.replies = Some(Replies::new(replies));
        match machine.run_packet(packet, 0, metadata) {
            Ok(value) => Ok(Progress::Finished(machine.outcome(Verdict::from_return(value)))),
            Err(Stop::Blocked(request)) => Ok(Progress::Blocked { request, state: machine.state(request) }),
            Err(stop) => Err(stop.into_error()),
        }
    }
}
