//! Measurements for benchmarks: the kernel alone, device memory and bus bandwidth. Not part of the
//! crate's public interface.

mod records;

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_core::device::offload::OffloadSession;
use portcullis_core::device::{CancelToken, DeviceError, Dispatch, LoadOptions};
use portcullis_core::packet::Batch;
use portcullis_core::program::Program;

use crate::compile;
use crate::device::CudaDevice;
use crate::driver::ErrorCode;
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::driver::stream::Event;
use crate::memory::{Buffer, DeviceMemory, HostMemory};
use crate::session::PipelinedLauncher;

pub use records::CudaRecords;

/// Times a program's kernel over packets that are in device memory already.
pub struct KernelTimer(OffloadSession<PipelinedLauncher>);

impl KernelTimer {
    /// Loads a program like [`Device::load`](portcullis_core::device::Device::load).
    ///
    /// # Errors
    /// As [`Device::load`](portcullis_core::device::Device::load).
    pub fn load(device: &CudaDevice, program: &Arc<Program>) -> Result<KernelTimer, DeviceError> {
        let options = LoadOptions::default();
        let (gpu, loaded) = compile::load(device.properties(), program, Dispatch::Inline, &options)?;
        let (kind, effects) = (gpu.kind, loaded.effects);
        Ok(KernelTimer(OffloadSession::new(
            PipelinedLauncher::new(gpu, loaded).without_splitting(),
            kind,
            effects,
            program,
            &options,
        )?))
    }

    /// Uploads the batch, runs the kernel over it `rounds` times and returns the time of a round by
    /// the device's clock.
    ///
    /// # Errors
    /// As [`Session::run`](portcullis_core::device::Session::run).
    pub fn time(&mut self, batch: Batch, rounds: u32) -> Result<(Duration, Batch), DeviceError> {
        self.0.with_uploaded(batch, |device, chunks| {
            timed(&device.gpu.clone(), rounds, |_| {
                chunks
                    .iter()
                    .try_for_each(|(chunk, buffers)| device.launch_kernel(chunk, buffers, 0, chunk.invocations()))
            })
        })
    }
}

/// Returns the time of copying `bytes` bytes within device memory, which moves twice as many bytes.
///
/// # Errors
/// There is not enough memory, or the driver fails.
pub fn time_device_copy(device: &CudaDevice, bytes: usize, rounds: u32) -> Result<Duration, DeviceError> {
    let gpu = Arc::new(Gpu::open(device.properties(), Dispatch::Inline, &CancelToken::new())?);
    let failed = |code: ErrorCode| gpu.error("copying failed", code);
    let from = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    let to = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    timed(&gpu, rounds, |gpu| to.copy_from(&from, bytes, &gpu.kernels).map_err(failed))
}

/// Returns the time of copying `bytes` bytes from pinned host memory to the device.
///
/// # Errors
/// As [`time_device_copy`].
pub fn time_upload(device: &CudaDevice, bytes: usize, rounds: u32) -> Result<Duration, DeviceError> {
    let gpu = Arc::new(Gpu::open(device.properties(), Dispatch::Inline, &CancelToken::new())?);
    let failed = |code: ErrorCode| gpu.error("copying failed", code);
    let from = HostMemory::new(&gpu.context, bytes).map_err(failed)?;
    let to = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    timed(&gpu, rounds, |gpu| {
        // SAFETY: both exist until `timed` has waited for the copies, and nobody writes to them.
        unsafe { to.upload(0, from.as_ptr(), bytes, &gpu.kernels) }.map_err(failed)
    })
}

/// How long the device works before a measurement, so that its clock rate has risen.
const WARM_UP_TIME: Duration = Duration::from_millis(200);

/// Queues work `rounds` times, after a warm-up, and returns the time of a round.
fn timed(
    gpu: &Arc<Gpu>,
    rounds: u32,
    mut work: impl FnMut(&Gpu) -> Result<(), DeviceError>,
) -> Result<Duration, DeviceError> {
    let failed = |code: ErrorCode| gpu.error("timing failed", code);
    let (start, end) =
        (Event::with_timing(&gpu.context).map_err(failed)?, Event::with_timing(&gpu.context).map_err(failed)?);
    let began = Instant::now();
    let mut measure = || {
        while began.elapsed() < WARM_UP_TIME {
            work(gpu)?;
            end.record(&gpu.kernels).map_err(failed)?;
            poll::until(&gpu.id, &CancelToken::new(), || end.is_complete().map_err(failed))?;
        }
        start.record(&gpu.kernels).map_err(failed)?;
        for _ in 0..rounds {
            work(gpu)?;
        }
        end.record(&gpu.kernels).map_err(failed)
    };
    let queued = measure();
    if queued.is_err() {
        // Queued commands still use the caller's memory.
        gpu.wait_idle();
        queued?;
    }
    poll::until(&gpu.id, &CancelToken::new(), || end.is_complete().map_err(failed))?;
    let milliseconds = end.elapsed_ms_since(&start).map_err(failed)?;
    Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3 / f64::from(rounds.max(1))))
}
