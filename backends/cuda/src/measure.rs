//! For benches: the kernel alone, and what the device's memory and its bus can do. No part of the crate's
//! interface.

mod records;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::offload::OffloadSession;
use portcullis_core::device::{CancelToken, DeviceError, Dispatch, LoadOptions};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::api::Code;
use crate::compile;
use crate::device::{Event, Gpu};
use crate::dispatch::pipelined::Pipelined;
use crate::memory::{Buffer, DeviceMemory, HostMemory};
use crate::probe::CudaDevice;
use crate::wait;

pub use records::CudaRecords;

/// A program whose kernel can be run over packets that are in the device's memory already.
pub struct KernelTimer(OffloadSession<Pipelined>);

impl KernelTimer {
    /// Loads a program as [`Device::load`](portcullis_core::device::Device::load) does.
    ///
    /// # Errors
    /// As there.
    pub fn load(device: &CudaDevice, program: &Arc<Program>) -> Result<KernelTimer, DeviceError> {
        let options = LoadOptions::default();
        let (gpu, loaded) = compile::load(device, program, Dispatch::Inline, &options)?;
        let (kind, effects) = (gpu.kind, loaded.effects);
        Ok(KernelTimer(OffloadSession::new(Pipelined::new(gpu, loaded).whole(), kind, effects, program, &options)?))
    }

    /// Runs the kernel `rounds` times over the batch, which is copied to the device before, and gives the time of a
    /// round by the device's own clock.
    ///
    /// # Errors
    /// As a session's.
    pub fn time(&mut self, batch: Batch, rounds: u32) -> Result<(Duration, Batch), DeviceError> {
        self.0.with_uploaded(batch, |device, parts| {
            timed(&device.gpu.clone(), rounds, |_| {
                parts.iter().try_for_each(|(part, buffers)| device.run(part, buffers, 0, part.lanes()))
            })
        })
    }
}

/// The time of copying `bytes` bytes from one place to another in the device's memory: twice as many bytes
/// are moved.
///
/// # Errors
/// Where there is no memory for it, or the driver gives up.
pub fn time_device_copy(device: &CudaDevice, bytes: usize, rounds: u32) -> Result<Duration, DeviceError> {
    let gpu = Arc::new(device.open(Dispatch::Inline, &CancelToken::new())?);
    let failed = |code: Code| gpu.failed("does not copy", code);
    let from = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    let to = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    timed(&gpu, rounds, |gpu| to.copy_from(&from, bytes, &gpu.kernels).map_err(failed))
}

/// The time of copying `bytes` bytes of pinned host memory to the device.
///
/// # Errors
/// As [`time_device_copy`].
pub fn time_upload(device: &CudaDevice, bytes: usize, rounds: u32) -> Result<Duration, DeviceError> {
    let gpu = Arc::new(device.open(Dispatch::Inline, &CancelToken::new())?);
    let failed = |code: Code| gpu.failed("does not copy", code);
    let from = HostMemory::new(&gpu.context, bytes).map_err(failed)?;
    let to = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    timed(&gpu, rounds, |gpu| {
        // SAFETY: both stay until the copies were waited for, below in `timed`, and nobody writes to them.
        unsafe { to.bring_in(0, from.host(), bytes, &gpu.kernels) }.map_err(failed)
    })
}

/// How long a device works before anything is measured: its clocks rise with work.
const WARM: Duration = Duration::from_millis(200);

/// Queues some work `rounds` times, after some that does not count, and gives the time of a round.
fn timed(
    gpu: &Arc<Gpu>,
    rounds: u32,
    mut work: impl FnMut(&Gpu) -> Result<(), DeviceError>,
) -> Result<Duration, DeviceError> {
    let failed = |code: Code| gpu.failed("does not tell the time", code);
    let (start, end) = (Event::timed(&gpu.context).map_err(failed)?, Event::timed(&gpu.context).map_err(failed)?);
    let began = Instant::now();
    let mut measure = || {
        while began.elapsed() < WARM {
            work(gpu)?;
            end.record(&gpu.kernels).map_err(failed)?;
            wait::until(&gpu.id, &CancelToken::new(), || end.has_come().map_err(failed))?;
        }
        start.record(&gpu.kernels).map_err(failed)?;
        for _ in 0..rounds {
            work(gpu)?;
        }
        end.record(&gpu.kernels).map_err(failed)
    };
    let queued = measure();
    if queued.is_err() {
        // What was queued uses memory of the caller's.
        gpu.settle();
        queued?;
    }
    wait::until(&gpu.id, &CancelToken::new(), || end.has_come().map_err(failed))?;
    let milliseconds = end.since(&start).map_err(failed)?;
    Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3 / f64::from(rounds.max(1))))
}
