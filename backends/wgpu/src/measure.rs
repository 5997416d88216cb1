//! For benches: the kernel alone. No part of the crate's interface.

use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::{DeviceError, LoadOptions};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::probe::WgpuDevice;
use crate::session::{self, WgpuSession};

/// A program whose kernel can be run over packets that are already where it reads them.
pub struct KernelTimer(WgpuSession);

impl KernelTimer {
    /// Loads a program as [`Device::load`](portcullis_core::device::Device::load) does.
    ///
    /// # Errors
    /// As there.
    pub fn load(device: &WgpuDevice, program: &Arc<Program>) -> Result<KernelTimer, DeviceError> {
        Ok(KernelTimer(session::open(device, program, &LoadOptions::default())?))
    }

    /// Runs the kernel `rounds` times over the batch, which is imported or copied before, and gives
    /// the time of a round: launches only, no descriptors sent, no verdicts read.
    ///
    /// # Errors
    /// As a session's.
    pub fn time(&mut self, batch: Batch, rounds: u32) -> Result<(Duration, Batch), DeviceError> {
        session::kernel_only(&mut self.0, batch, rounds)
    }
}
