//! Vector code: several packets at a time, one per lane.
//!
//! - `ir`: lane IR, the intermediate form: a graph of pure operations and an ordered list of steps
//!   with effects. It says what one lane does with one packet; how many lanes run together is up to
//!   the emitter;
//! - `trace`: from a program to lane IR, by symbolic execution;
//! - `emit`: from lane IR to native code;
//! - `interp`: an interpreter of lane IR, as an oracle that shares no code with the reference
//!   interpreter.

pub(super) mod emit;
pub mod interp;
mod ir;
#[cfg(test)]
mod testing;
pub(super) mod trace;

use portcullis_core::program::Program;

use super::compiler_stack::on_large_stack;

/// A filter in lane IR.
#[derive(Debug, Clone)]
pub struct LaneProgram {
    lanes: ir::LaneIr,
}

/// Error of [`LaneProgram::trace`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Lane IR cannot express a construct of the filter, which the text describes.
    #[error("{0}")]
    Unsupported(String),
    /// Tracing itself failed, for the reason in the text: its thread could not be started, or it
    /// panicked.
    #[error("{0}")]
    Failed(String),
}

impl LaneProgram {
    /// Traces a filter.
    ///
    /// # Errors
    ///
    /// [`TraceError`] describes the construct that lane IR cannot express.
    pub fn trace(program: &Program) -> Result<LaneProgram, TraceError> {
        let lanes = on_large_stack(|| trace::trace(program)).map_err(TraceError::Failed)?;
        lanes.map(|lanes| LaneProgram { lanes }).map_err(|error| TraceError::Unsupported(error.0))
    }

    /// Renders the IR as text (`check --emit lanes`).
    pub fn dump(&self) -> String {
        self.lanes.dump()
    }

    /// Number of nodes in the graph.
    pub fn operations(&self) -> usize {
        self.lanes.dag.len()
    }

    /// Executes the filter on up to four packets in lock step, lane 0 first where order matters.
    /// `maps` are the words of the filter's maps; `unspecified` stands for every value that the IR
    /// leaves unspecified, and must not change the outcome.
    ///
    /// # Errors
    ///
    /// [`interp::InvalidLaneIr`] if the IR is inconsistent.
    pub fn run(
        &self,
        packets: &[interp::Packet],
        maps: &mut [Vec<u32>],
        unspecified: u32,
    ) -> Result<Vec<interp::Outcome>, interp::InvalidLaneIr> {
        match packets.len() {
            0 => Ok(Vec::new()),
            1 => interp::run::<1>(&self.lanes, packets, maps, unspecified),
            _ => interp::run::<4>(&self.lanes, packets, maps, unspecified),
        }
    }
}
