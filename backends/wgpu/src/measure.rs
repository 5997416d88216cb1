//! Measurements for benchmarks: the kernel alone. Not part of the crate's public interface.

use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::{DeviceError, LoadOptions};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::device::WgpuDevice;
use crate::session::{self, WgpuSession};

/// Times a program's kernel over packets that are already where it reads them.
pub struct KernelTimer(WgpuSession);

impl KernelTimer {
    /// Loads a program like [`Device::load`](portcullis_core::device::Device::load).
    ///
    /// # Errors
    /// As [`Device::load`](portcullis_core::device::Device::load).
    pub fn load(device: &WgpuDevice, program: &Arc<Program>) -> Result<KernelTimer, DeviceError> {
        Ok(KernelTimer(session::open(device.properties(), program, &LoadOptions::default())?))
    }

    /// Imports or uploads the batch, runs the kernel over it `rounds` times and returns the time of
    /// a round, without transfers of descriptors or verdicts.
    ///
    /// # Errors
    /// As [`Session::run`](portcullis_core::device::Session::run).
    pub fn time(&mut self, batch: Batch, rounds: u32) -> Result<(Duration, Batch), DeviceError> {
        session::time_kernel(&mut self.0, batch, rounds)
    }
}
