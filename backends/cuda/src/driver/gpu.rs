//! A device opened for one session: its context and streams, and how its errors are reported.

use std::fmt::Display;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget,
};
use portcullis_core::device::offload::{self, LAUNCH_TIMEOUT, PINNING_ADVICE};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind, Dispatch};

use super::api::{Driver, ErrorCode, check};
use super::context::{Context, ContextGuard};
use super::poll;
use super::stream::Stream;

/// How long to wait for other sessions to release a context in which a kernel has failed.
const CONTEXT_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Clock rate assumed if the driver does not report one, in kHz: no GPU runs faster than 4 GHz.
const FASTEST_CLOCK_KHZ: u32 = 4_000_000;

/// The properties of a device that opening it and compiling for it depend on.
#[derive(Debug, Clone)]
pub(crate) struct GpuProperties {
    /// `cuda:0`.
    pub id: String,
    /// The driver's name for the device.
    pub name: String,
    /// Id, name and driver in one line: the key under which measurements of the device are cached.
    pub identity: String,
    pub kind: DeviceKind,
    pub handle: CUdevice,
    /// Compute capability, 90 for 9.0.
    pub arch: i32,
    pub multiprocessors: u32,
    /// Threads in a block of an `inline` or `pipelined` launch.
    pub block_size: u32,
    /// Maximum clock rate in kHz; 0 if the driver does not report it.
    pub clock_khz: u32,
    /// The CUDA version that the driver supports, major and minor.
    pub driver_version: (i32, i32),
}

impl GpuProperties {
    /// Number of clock cycles that take at least `nanos`, at any clock rate of the device.
    pub fn cycles(&self, nanos: NonZeroU64) -> NonZeroU64 {
        let clock = u64::from(if self.clock_khz == 0 { FASTEST_CLOCK_KHZ } else { self.clock_khz });
        NonZeroU64::new(nanos.get().saturating_mul(clock).div_ceil(1_000_000)).unwrap_or(NonZeroU64::MIN)
    }
}

/// How writes of other PCIe devices into this device's memory become visible to running kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoteWriteFlush {
    /// The device orders them before whatever announces them, so no flush is needed.
    NotNeeded,
    /// The host calls `cuFlushGPUDirectRDMAWrites`.
    ByDriver,
    /// The host cannot flush them; only kernels launched afterwards see them.
    Unavailable,
}

impl RemoteWriteFlush {
    fn of_device(driver: &Driver, device: CUdevice) -> RemoteWriteFlush {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as OPTIONS,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as ORDERING,
        };
        let (ordering, options) = (driver.attribute(device, ORDERING), driver.attribute(device, OPTIONS));
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, and
        // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST.
        match (ordering >= 100, options & 1 != 0 && driver.cuFlushGPUDirectRDMAWrites.is_some()) {
            (true, _) => RemoteWriteFlush::NotNeeded,
            (false, true) => RemoteWriteFlush::ByDriver,
            (false, false) => RemoteWriteFlush::Unavailable,
        }
    }
}

/// A device opened for one session.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub id: String,
    pub name: String,
    /// See [`GpuProperties::identity`].
    pub identity: String,
    pub kind: DeviceKind,
    pub handle: CUdevice,
    pub multiprocessors: u32,
    // One stream for each direction and one for kernels, so that uploads, kernels and downloads of
    // different batches overlap; events order what depends on each other. `inline` has one stream,
    // three times.
    pub uploads: Arc<Stream>,
    pub kernels: Arc<Stream>,
    pub downloads: Arc<Stream>,
    pub remote_write_flush: RemoteWriteFlush,
    pub context: Arc<Context>,
}

impl Gpu {
    /// Opens the device for one session by one dispatch method. `cancel` ends waiting for other
    /// sessions.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] without a driver; [`DeviceError::Cancelled`];
    /// [`DeviceError::Failed`] if the driver cannot open the device.
    pub fn open(properties: &GpuProperties, dispatch: Dispatch, cancel: &CancelToken) -> Result<Gpu, DeviceError> {
        let driver = Driver::get().map_err(|unavailable| DeviceError::Missing(unavailable.to_string()))?;
        let failed = |code: ErrorCode| DeviceError::Failed {
            device: properties.id.clone(),
            reason: format!("cannot be opened: {code}"),
        };
        let open = || -> Result<Gpu, (ErrorCode, bool)> {
            let context = Context::new(driver, properties.handle, cancel).map_err(|code| (code, false))?;
            let is_shared = context.is_shared();
            let context = Arc::new(context);
            Gpu::open_in(properties, &context, dispatch).map_err(|code| (code, is_shared && code.is_sticky()))
        };
        let mut opened = open();
        // After a kernel has failed, every call in its context fails. The driver makes a new
        // context once all sessions have released the old one, which abandoned sessions soon do.
        poll::within(CONTEXT_RELEASE_TIMEOUT, Some(cancel), || {
            if matches!(opened, Err((_, true))) {
                opened = open();
            }
            !matches!(opened, Err((_, true)))
        });
        opened
            .map_err(|(code, retry)| if retry && cancel.is_cancelled() { DeviceError::Cancelled } else { failed(code) })
    }

    fn open_in(properties: &GpuProperties, context: &Arc<Context>, dispatch: Dispatch) -> Result<Gpu, ErrorCode> {
        let stream = || Stream::new(context);
        let kernels = stream()?;
        let other = || if dispatch == Dispatch::Inline { Ok(kernels.clone()) } else { stream() };
        Ok(Gpu {
            id: properties.id.clone(),
            name: properties.name.clone(),
            identity: properties.identity.clone(),
            kind: properties.kind,
            handle: properties.handle,
            multiprocessors: properties.multiprocessors,
            uploads: other()?,
            downloads: other()?,
            kernels,
            remote_write_flush: RemoteWriteFlush::of_device(context.driver, properties.handle),
            context: context.clone(),
        })
    }

    /// The error of an allocation: there is no memory for `what`, or the driver failed otherwise.
    pub fn allocation_error(&self, what: impl Display, code: ErrorCode) -> DeviceError {
        match code {
            ErrorCode::OUT_OF_MEMORY => self.failure(format!("has no memory for {what}: {code}")),
            _ if code.is_unpinnable() => self.failure(format!(
                "host memory for {what} cannot be pinned ({code}): {PINNING_ADVICE}, or take --dispatch pipelined, \
                 which can do without"
            )),
            _ => self.error("cannot be used", code),
        }
    }

    /// The error of a driver call; `what` says what the device did not do.
    pub fn error(&self, what: impl Display, code: ErrorCode) -> DeviceError {
        match code {
            ErrorCode::CANCELLED => DeviceError::Cancelled,
            _ => self.failure(format!("{what}: {code}")),
        }
    }

    /// A [`DeviceError::Failed`] of this device.
    pub fn failure(&self, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.id.clone(), reason }
    }

    /// Makes the device's context current on this thread, once for several driver calls.
    pub fn enter(&self) -> Result<ContextGuard<'_>, DeviceError> {
        self.context.enter().map_err(|code| self.error("cannot be used", code))
    }

    /// Whether all streams are empty. A context that has failed runs nothing, and counts as idle.
    pub fn is_idle(&self) -> bool {
        [&self.uploads, &self.kernels, &self.downloads].iter().all(|stream| stream.is_idle().unwrap_or(true))
    }

    /// Waits until all streams are empty, without a timeout.
    pub fn wait_idle(&self) {
        while !poll::within(LAUNCH_TIMEOUT, None, || self.is_idle()) {}
    }

    /// Makes writes of other devices into this device's memory, which the host knows to be
    /// complete, visible to running kernels too.
    pub fn flush_remote_writes(&self) -> Result<(), ErrorCode> {
        let needed = self.remote_write_flush == RemoteWriteFlush::ByDriver;
        let flush = self.context.driver.cuFlushGPUDirectRDMAWrites.filter(|_| needed);
        let Some(flush) = flush else { return Ok(()) };
        let _current = self.context.enter()?;
        let target = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: the context is current.
        check(unsafe { flush(target, scope) })
    }

    /// Waits until everything queued in `stream` has completed, and returns `used`, which the
    /// queued commands use. On an error `used` is kept until the device is done with it.
    pub fn wait_for_stream<T: Send + 'static>(
        self: &Arc<Self>,
        stream: &Stream,
        used: T,
        error: impl Fn(ErrorCode) -> DeviceError + Copy,
    ) -> Result<T, DeviceError> {
        let waited = stream
            .record_event()
            .map_err(error)
            .and_then(|end| poll::until(&self.id, &CancelToken::new(), || end.is_complete().map_err(error)));
        match waited {
            Ok(()) => Ok(used),
            Err(error) => {
                self.abandon(used, || ());
                Err(error)
            }
        }
    }

    /// Abandons the session's queued work: a thread runs `before`, waits until the device is idle
    /// and then drops `resources`. `before` is for work without which the device would never become
    /// idle.
    pub fn abandon(self: &Arc<Self>, resources: impl Send + 'static, before: impl FnOnce() + Send + 'static) {
        let gpu = self.clone();
        // Dropped in this order: whatever `resources` and the session release is deferred until the
        // session no longer counts as abandoned.
        let resources = (resources, self.clone(), self.context.abandon());
        offload::drop_after(resources, move || {
            before();
            gpu.wait_idle();
        });
    }
}
