//! A device opened for one session: wgpu's handles, and the errors that it reports.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use portcullis_core::device::offload::{self, CANCEL_POLL_INTERVAL, DRAIN_TIMEOUT, LAUNCH_TIMEOUT, panic_message};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind};

use super::host_import::{HostImport, HostMemory};

/// Features for timing stages with the device's clock: timestamps between any two commands.
pub(crate) const TIMESTAMP_FEATURES: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// The first error that a device reported outside of a call's result.
type ReportedError = Arc<Mutex<Option<String>>>;

/// The properties of a device that opening it and compiling for it depend on.
#[derive(Debug, Clone)]
pub(crate) struct GpuProperties {
    /// `wgpu:0`.
    pub id: String,
    /// Id, name and driver in one line: the key under which measurements of the device are cached.
    pub identity: String,
    pub kind: DeviceKind,
    pub adapter: wgpu::Adapter,
    /// Set if the device can import host memory.
    pub import: Option<HostImport>,
    /// Invocations in a work group.
    pub group_size: u32,
    /// Whether to treat the device's memory as separate from the host's even if it is not.
    pub is_discrete: bool,
}

/// A device opened for one session: a session that fails takes no other with it.
pub(crate) struct Gpu {
    pub id: String,
    /// See [`GpuProperties::identity`].
    pub identity: String,
    pub kind: DeviceKind,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    /// Whether the device's memory is the host's, so that the host can map the buffers that kernels
    /// use.
    pub shares_memory: bool,
    /// Set if host memory can be imported.
    pub host_memory: Option<HostMemory>,
    reported_error: ReportedError,
}

/// Returns the result of a wgpu future, all of which are ready at once on native platforms.
pub(crate) fn ready<F: Future>(future: F) -> Result<F::Output, DeviceError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(DeviceError::Missing("wgpu does not answer on this platform".into())),
    }
}

impl Gpu {
    /// Opens the device.
    pub fn open(properties: &GpuProperties) -> Result<Gpu, DeviceError> {
        let GpuProperties { id, kind, adapter, .. } = properties;
        let failed = |reason: String| DeviceError::Failed { device: id.clone(), reason };
        let shares_memory = !properties.is_discrete && matches!(kind, DeviceKind::IntegratedGpu | DeviceKind::Software);
        let mut features = TIMESTAMP_FEATURES;
        features.set(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, shares_memory);
        features &= adapter.features();
        let description = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: adapter.limits(),
            // Buffers are few and large, so blocks reserved for small ones would be wasted.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = properties.import.as_ref().and_then(|import| import.open(adapter, &description));
        let (device, queue, host_memory) = match opened {
            Some((device, queue, host_memory)) => (device, queue, Some(host_memory)),
            None => {
                let (device, queue) = ready(adapter.request_device(&description))?
                    .map_err(|error| failed(format!("cannot be opened: {error}")))?;
                (device, queue, None)
            }
        };
        let reported_error = ReportedError::default();
        let store = reported_error.clone();
        // wgpu's default handler panics.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
        }));
        let store = reported_error.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                let text = format!("the device is lost: {message}");
                store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
            }
        });
        Ok(Gpu {
            id: id.clone(),
            identity: properties.identity.clone(),
            kind: *kind,
            limits: device.limits(),
            shares_memory: features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            device,
            queue,
            host_memory,
            reported_error,
        })
    }

    /// A [`DeviceError::Failed`] of this device.
    pub fn failure(&self, reason: impl Into<String>) -> DeviceError {
        // The driver's first report is closer to the cause than what followed from it.
        let first = self.reported_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        DeviceError::Failed { device: self.id.clone(), reason: first.unwrap_or_else(|| reason.into()) }
    }

    /// Returns the error that the device has reported, if any.
    pub fn check(&self) -> Result<(), DeviceError> {
        match &*self.reported_error.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(DeviceError::Failed { device: self.id.clone(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Lets wgpu complete mappings of buffers that no queued command uses.
    pub fn complete_mappings(&self) -> Result<(), DeviceError> {
        count_call("poll");
        self.device.poll(wgpu::PollType::Poll).map(drop).map_err(|error| self.failure(error.to_string()))
    }

    /// Waits until the device is done with a submission, or with all of them, and lets wgpu
    /// complete the mappings of buffers that were requested.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] if the token is used while waiting, in which case the device may
    /// still be busy; [`DeviceError::Failed`] if the device reports an error, or after
    /// [`LAUNCH_TIMEOUT`].
    pub fn wait(&self, submission: Option<&wgpu::SubmissionIndex>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let start = Instant::now();
        loop {
            match poll(&self.device, submission, CANCEL_POLL_INTERVAL) {
                PollResult::Done => return self.check(),
                PollResult::Failed(reason) => return Err(self.failure(reason)),
                PollResult::Busy => self.check()?,
            }
            if cancel.is_cancelled() {
                return Err(DeviceError::Cancelled);
            }
            if start.elapsed() >= LAUNCH_TIMEOUT {
                return Err(self.failure(format!(
                    "no answer for {} s; its driver may still be compiling the filter, which it does with every \
                     helper inlined: make the filter shorter, or take --device cpu",
                    LAUNCH_TIMEOUT.as_secs()
                )));
            }
        }
    }

    /// Waits for at most [`DRAIN_TIMEOUT`], and returns whether the device is done with everything;
    /// a lost device is.
    pub fn try_drain(&self) -> bool {
        !matches!(poll(&self.device, None, DRAIN_TIMEOUT), PollResult::Busy)
    }

    /// Keeps `kept` until the device is done with everything, without blocking.
    pub fn keep_alive<T: Send + 'static>(&self, kept: T) {
        // The queue too: dropping its last handle waits for the device, and cannot be cancelled.
        let device = self.device.clone();
        let wait_idle = move || while matches!(poll(&device, None, CANCEL_POLL_INTERVAL), PollResult::Busy) {};
        offload::drop_after((kept, self.queue.clone(), self.device.clone()), wait_idle);
    }

    /// Waits until the device is done with everything, or until [`LAUNCH_TIMEOUT`].
    pub fn wait_idle(&self) {
        let _ = self.wait(None, &CancelToken::new());
    }

    /// Creates a buffer; errors show at the next [`Gpu::check`].
    pub fn buffer(&self, label: &str, size: u64, usage: wgpu::BufferUsages, mapped: bool) -> wgpu::Buffer {
        count_call("create_buffer");
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: mapped,
        })
    }

    /// Creates a bind group; errors show at the next [`Gpu::check`].
    pub fn bind_group(&self, layout: &wgpu::BindGroupLayout, entries: &[wgpu::BindGroupEntry<'_>]) -> wgpu::BindGroup {
        count_call("create_bind_group");
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries })
    }

    /// Writes to a buffer before the next submission, through a buffer that wgpu creates for that.
    pub fn write_buffer(&self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) {
        count_call("write_buffer");
        self.queue.write_buffer(buffer, at, bytes);
    }

    /// Submits commands; errors show at the next [`Gpu::check`].
    pub fn submit(&self, encoder: wgpu::CommandEncoder) -> wgpu::SubmissionIndex {
        count_call("submit");
        self.queue.submit([encoder.finish()])
    }

    /// Requests a mapping of the first `bytes` bytes of a buffer. A failure shows when they are
    /// accessed.
    pub fn request_mapping(buffer: &wgpu::Buffer, mode: wgpu::MapMode, bytes: u64) {
        count_call("map_async");
        buffer.map_async(mode, ..bytes, |_| ());
    }

    /// Times a copy of `bytes` bytes from host to device memory; `None` if it fails.
    pub fn time_copy(&self, bytes: u64) -> Option<Duration> {
        use wgpu::BufferUsages as Usages;
        let from = self.buffer("bus, from", bytes, Usages::MAP_WRITE | Usages::COPY_SRC, false);
        let to = self.buffer("bus, to", bytes, Usages::STORAGE | Usages::COPY_DST, false);
        self.check().ok()?;
        let copy = || {
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
            let start = Instant::now();
            let submission = self.submit(encoder);
            self.wait(Some(&submission), &CancelToken::new()).ok().map(|()| start.elapsed())
        };
        // The first copy touches the pages of both.
        copy().and_then(|_| copy())
    }

    /// Largest size of a storage binding in bytes, a multiple of 4.
    pub fn binding_limit(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size).min(u64::from(u32::MAX)) & !3
    }
}

/// The result of polling a device.
enum PollResult {
    Done,
    Busy,
    Failed(String),
}

/// Counts a call for tests.
fn count_call(call: &'static str) {
    #[cfg(test)]
    super::calls::record(call);
    #[cfg(not(test))]
    let _ = call;
}

/// Waits for a submission, or for all of them, for at most `timeout`.
fn poll(device: &wgpu::Device, submission: Option<&wgpu::SubmissionIndex>, timeout: Duration) -> PollResult {
    count_call("poll");
    let wait = wgpu::PollType::Wait { submission_index: submission.cloned(), timeout: Some(timeout) };
    // wgpu panics if the device is lost while it waits.
    match catch_unwind(AssertUnwindSafe(|| device.poll(wait))) {
        Ok(Ok(_)) => PollResult::Done,
        Ok(Err(wgpu::PollError::Timeout)) => PollResult::Busy,
        Ok(Err(error)) => PollResult::Failed(error.to_string()),
        Err(panic) => PollResult::Failed(format!("lost while waiting: {}", panic_message(&*panic))),
    }
}
