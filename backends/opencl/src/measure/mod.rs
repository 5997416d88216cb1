//! Measurements for benchmarks, and hand-written kernels for tests. Not part of the crate's public
//! interface.

mod records;
mod vendor_kernel;

use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::{DeviceError, LoadOptions, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::device::OpenClDevice;
use crate::session::{self, OpenClSession};

pub use records::OpenClRecords;
pub use vendor_kernel::VendorKernel;

/// Times a program's kernel over packets that are already where it reads them.
pub struct KernelTimer(OpenClSession);

impl KernelTimer {
    /// Loads a program like [`Device::load`](portcullis_core::device::Device::load).
    ///
    /// # Errors
    /// As [`Device::load`](portcullis_core::device::Device::load).
    pub fn load(device: &OpenClDevice, program: &Arc<Program>) -> Result<KernelTimer, DeviceError> {
        Ok(KernelTimer(session::open(device.properties(), program, &LoadOptions::default())?))
    }

    /// Loads a hand-written kernel in place of the program's. It has the same arguments, as words:
    /// a descriptor is two.
    ///
    /// # Errors
    /// As [`KernelTimer::load`]; or the device's compiler rejects the text.
    pub fn from_source(
        device: &OpenClDevice,
        program: &Arc<Program>,
        text: &str,
        entry: &str,
    ) -> Result<KernelTimer, DeviceError> {
        Ok(KernelTimer(session::open_source(device.properties(), program, text, entry)?))
    }

    /// The session that runs the kernel over batches.
    pub fn session(&mut self) -> &mut dyn Session {
        &mut self.0
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
