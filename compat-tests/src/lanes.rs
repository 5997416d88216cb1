//! Lane IR as a device: executes the CPU backend's vector form with that form's own interpreter.
//! The device shares only the front end with the reference interpreter, so a difference is a bug in
//! one of the two.
//!
//! Filters without maps run four packets at a time in lock step. Filters with maps run one packet
//! at a time, so that the order of their map updates is defined. A value that the form leaves
//! unspecified is a number that changes from group to group.

use std::sync::Arc;

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, DeviceLimit, Dispatch, InPlaceReads, LoadOptions, Session,
};
use portcullis_core::packet::ResizeRoom;
use portcullis_core::program::Program;
use portcullis_cpu::vector::LaneProgram;
use portcullis_cpu::vector::interp::{Outcome, Packet};

use crate::synchronous::{Execute, SynchronousSession};

const ID: &str = "lanes";

/// Packets executed in lock step.
const LANES: usize = 4;

/// The lane IR device.
#[derive(Debug)]
pub struct Lanes {
    info: DeviceInfo,
}

impl Lanes {
    /// Creates the device, which every machine has.
    pub fn new() -> Lanes {
        Lanes {
            info: DeviceInfo {
                id: ID.into(),
                name: "the interpreter of lane IR".into(),
                kind: DeviceKind::Reference,
                driver: "none".into(),
                dispatch: Dispatch::COMMON,
                limits: vec![DeviceLimit::new("threads", "1"), DeviceLimit::ReadsInPlace(InPlaceReads::Always)],
            },
        }
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Lanes::new()
    }
}

impl Device for Lanes {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let traced = LaneProgram::trace(program)
            .map_err(|error| DeviceError::Unsupported { device: ID.into(), reason: error.to_string() })?;
        Ok(Box::new(SynchronousSession::new(ID, program, options, Interpreted { traced, unspecified: 1 })))
    }
}

struct Interpreted {
    traced: LaneProgram,
    unspecified: u32,
}

impl Execute for Interpreted {
    fn execute(
        &mut self,
        packets: &[Packet<'_>],
        _: ResizeRoom,
        maps: &mut [Vec<u32>],
    ) -> Result<Vec<Outcome>, String> {
        let lanes = if maps.is_empty() { LANES } else { 1 };
        let mut outcomes = Vec::with_capacity(packets.len());
        for group in packets.chunks(lanes) {
            // A linear congruential generator: its values are small and large, odd and even.
            self.unspecified = self.unspecified.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let done = self.traced.run(group, maps, self.unspecified >> (self.unspecified & 31));
            outcomes.extend(done.map_err(|fault| format!("{fault}\n{}", self.traced.dump()))?);
        }
        Ok(outcomes)
    }
}
