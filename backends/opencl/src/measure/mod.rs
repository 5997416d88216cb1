//! For benches: the kernel alone. No part of the crate's interface.

mod records;
mod vendor_kernel;

use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::{DeviceError, LoadOptions, Session};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::probe::OpenClDevice;
use crate::session::{self, OpenClSession};

pub use records::OpenClRecords;
pub use vendor_kernel::VendorKernel;

/// A program whose kernel can be run over packets that are already where it reads them.
pub struct KernelTimer(OpenClSession);

impl KernelTimer {
    /// Loads a program as [`Device::load`](portcullis_core::device::Device::load) does.
    ///
    /// # Errors
    /// As there.
    pub fn load(device: &OpenClDevice, program: &Arc<Program>) -> Result<KernelTimer, DeviceError> {
        Ok(KernelTimer(session::open(device, program, &LoadOptions::default())?))
    }

    /// Loads a kernel that somebody wrote by hand in place of the program's. It takes the arguments that the
    /// program's would, by words: a descriptor is two.
    ///
    /// # Errors
    /// As [`KernelTimer::load`], and where the text is none that the device's compiler takes.
    pub fn from_source(
        device: &OpenClDevice,
        program: &Arc<Program>,
        text: &str,
        entry: &str,
    ) -> Result<KernelTimer, DeviceError> {
        Ok(KernelTimer(session::open_text(device, program, text, entry)?))
    }

    /// The same kernel over batches.
    pub fn session(&mut self) -> &mut dyn Session {
        &mut self.0
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
