//! Several packets at a time: the filter as a graph over lanes.
//!
//! - `dag`: the form in between (lane IR): pure operations in a graph without duplicates, and, in
//!   order, the steps that have effects. It says what one lane, which is one packet, does; how many
//!   lanes go side by side is for whoever executes it;
//! - `trace`: from a program to that form, by executing it symbolically;
//! - `emit`: from there to native code;
//! - `interp`: executes that form, slowly: a second oracle beside the reference interpreter, which
//!   it shares nothing with.

pub(crate) mod dag;
pub(crate) mod emit;
pub mod interp;
#[cfg(test)]
mod testing;
pub(crate) mod trace;

use portcullis_core::program::Program;

/// A filter in lane IR.
#[derive(Debug, Clone)]
pub struct LaneProgram {
    pub(crate) lanes: dag::Lanes,
}

impl LaneProgram {
    /// Traces a filter.
    ///
    /// # Errors
    /// What the filter does that cannot be done in lanes, in words.
    pub fn trace(program: &Program) -> Result<LaneProgram, String> {
        let lanes = crate::on_large_stack(|| trace::trace(program))?;
        lanes.map(|lanes| LaneProgram { lanes }).map_err(|error| error.0)
    }

    /// The IR as text: `check --emit lanes`.
    pub fn dump(&self) -> String {
        self.lanes.dump()
    }

    /// How many operations it comes to.
    pub fn operations(&self) -> usize {
        self.lanes.dag.len()
    }

    /// Executes it on one packet, or on up to four in lock step, in order. `maps` are the words of the filter's maps;
    /// `unspecified` is what comes of what the IR does not say, and must not matter.
    ///
    /// # Errors
    /// [`interp::InvalidLaneIr`] where the IR is inconsistent.
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
