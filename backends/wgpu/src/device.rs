//! An opened device: wgpu's handles, what was found out about it, and the errors it reports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::offload::{self, CANCEL_POLL_INTERVAL, DRAIN_TIMEOUT, LAUNCH_TIMEOUT, panic_message};
use portcullis_core::device::{CancelToken, DeviceError, DeviceInfo, DeviceKind};

use crate::memory::import::{HostImport, HostMemory};
use crate::probe::ready;
use crate::session::clock;

/// The first error that a device reported outside any call's result.
type Reported = Arc<Mutex<Option<String>>>;

/// A device opened for one session.
pub(crate) struct Gpu {
    pub id: String,
    /// What tells it and its driver from all others.
    pub about: String,
    pub kind: DeviceKind,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    /// Buffers that kernels use can be mapped: the device's memory is the host's, and copying
    /// between the two would be wasted.
    pub direct: bool,
    /// Set where host memory can be imported.
    pub host: Option<HostMemory>,
    reported: Reported,
}

impl Gpu {
    /// Opens it; `apart` from the host's memory whatever it is.
    pub fn open(
        info: &DeviceInfo,
        adapter: &wgpu::Adapter,
        import: Option<&HostImport>,
        apart: bool,
    ) -> Result<Gpu, DeviceError> {
        let failed = |reason: String| DeviceError::Failed { device: info.id.clone(), reason };
        let shares_memory = !apart && matches!(info.kind, DeviceKind::IntegratedGpu | DeviceKind::Software);
        let mut features = clock::NEEDED;
        features.set(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, shares_memory);
        features &= adapter.features();
        let description = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: adapter.limits(),
            // The buffers are few and large: blocks set aside for small ones would lie idle.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let imported = import.and_then(|import| import.open(adapter, &description));
        let (device, queue, host) = match imported {
            Some((device, queue, host)) => (device, queue, Some(host)),
            None => {
                let (device, queue) = ready(adapter.request_device(&description))?
                    .map_err(|error| failed(format!("cannot be opened: {error}")))?;
                (device, queue, None)
            }
        };
        let reported = Reported::default();
        let store = reported.clone();
        // wgpu's own handler panics.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
        }));
        let store = reported.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                let text = format!("the device is lost: {message}");
                store.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
            }
        });
        Ok(Gpu {
            id: info.id.clone(),
            about: format!("{} | {} | {}", info.id, info.name, info.driver),
            kind: info.kind,
            limits: device.limits(),
            direct: features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            device,
            queue,
            host,
            reported,
        })
    }

    /// The error that means: this device gave up.
    pub fn failed(&self, reason: impl Into<String>) -> DeviceError {
        // What the driver said first is nearer to the cause than what followed from it.
        let first = self.reported.lock().unwrap_or_else(PoisonError::into_inner).clone();
        DeviceError::Failed { device: self.id.clone(), reason: first.unwrap_or_else(|| reason.into()) }
    }

    /// An error where the device has reported one.
    pub fn check(&self) -> Result<(), DeviceError> {
        match &*self.reported.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(DeviceError::Failed { device: self.id.clone(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until the device is done with a submission, or with all of them, and lets wgpu tell
    /// whoever waits for a buffer to be mapped.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] where the token was used meanwhile; the device may be busy still.
    pub fn wait(&self, submission: Option<&wgpu::SubmissionIndex>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let began = Instant::now();
        loop {
            match poll(&self.device, submission, CANCEL_POLL_INTERVAL) {
                Polled::Done => return self.check(),
                Polled::Failed(reason) => return Err(self.failed(reason)),
                Polled::Busy => self.check()?,
            }
            if cancel.is_cancelled() {
                return Err(DeviceError::Cancelled);
            }
            if began.elapsed() >= LAUNCH_TIMEOUT {
                return Err(self.failed(format!(
                    "no answer for {} s; its driver may still be compiling the filter, which it does with every \
                     helper inlined: make the filter shorter, or take --device cpu",
                    LAUNCH_TIMEOUT.as_secs()
                )));
            }
        }
    }

    /// Whether the device is done with everything, or will be in a moment. One that is lost is.
    pub fn settles(&self) -> bool {
        !matches!(poll(&self.device, None, DRAIN_TIMEOUT), Polled::Busy)
    }

    /// Keeps something until the device is done with everything, without waiting for that.
    pub fn outlive<T: Send + 'static>(&self, kept: T) {
        // The queue too: whoever drops its last handle waits for the device, and cannot be told to stop.
        let device = self.device.clone();
        let settle = move || while matches!(poll(&device, None, CANCEL_POLL_INTERVAL), Polled::Busy) {};
        offload::drop_after((kept, self.queue.clone(), self.device.clone()), settle);
    }

    /// Waits until the device is done with everything, or silent for too long.
    pub fn settle(&self) {
        let _ = self.wait(None, &CancelToken::new());
    }

    /// A new buffer; errors show at the next [`Gpu::check`].
    pub fn buffer(&self, label: &str, size: u64, usage: wgpu::BufferUsages, mapped: bool) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: mapped,
        })
    }

    /// How long the device takes to bring so many bytes out of memory that the host writes: `None` where it does not.
    pub fn time_of_copy(&self, bytes: u64) -> Option<Duration> {
        use wgpu::BufferUsages as Usages;
        let from = self.buffer("bus, from", bytes, Usages::MAP_WRITE | Usages::COPY_SRC, false);
        let to = self.buffer("bus, to", bytes, Usages::STORAGE | Usages::COPY_DST, false);
        self.check().ok()?;
        let copy = || {
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
            let began = Instant::now();
            let submission = self.queue.submit([encoder.finish()]);
            self.wait(Some(&submission), &CancelToken::new()).ok().map(|()| began.elapsed())
        };
        // Once for the pages of both.
        copy().and_then(|_| copy())
    }

    /// The most bytes that one storage binding may show a kernel, a multiple of 4.
    pub fn binding_limit(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size).min(u64::from(u32::MAX)) & !3
    }
}

/// What a look at a device found.
enum Polled {
    Done,
    Busy,
    Failed(String),
}

/// Waits for a submission, or for all of them, no longer than `time`.
fn poll(device: &wgpu::Device, submission: Option<&wgpu::SubmissionIndex>, time: Duration) -> Polled {
    let wait = wgpu::PollType::Wait { submission_index: submission.cloned(), timeout: Some(time) };
    // wgpu panics where the device is lost while it waits, and has no other way to tell.
    match catch_unwind(AssertUnwindSafe(|| device.poll(wait))) {
        Ok(Ok(_)) => Polled::Done,
        Ok(Err(wgpu::PollError::Timeout)) => Polled::Busy,
        Ok(Err(error)) => Polled::Failed(error.to_string()),
        Err(panic) => Polled::Failed(format!("lost while waiting: {}", panic_message(&*panic))),
    }
}
