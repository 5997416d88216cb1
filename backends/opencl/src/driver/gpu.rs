//! A device opened for one session: its context and queues, and how its errors are reported.

use std::fmt::Display;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use num_traits::FromPrimitive;
use ocl_core::ffi::{self, cl_mem};
use ocl_core::{
    CommandQueue, CommandQueueProperties, Context, DeviceId, Event, MapFlags, Mem, MemFlags, MemMap, ProfilingInfo,
    Status,
};
use portcullis_core::device::{DeviceError, DeviceKind};

use super::loader;

/// The properties of a device that opening it and compiling for it depend on.
#[derive(Debug, Clone)]
pub(crate) struct GpuProperties {
    /// `opencl:0`.
    pub id: String,
    /// The driver's name for the device.
    pub name: String,
    /// Platform, driver version and OpenCL C version.
    pub driver: String,
    pub kind: DeviceKind,
    pub device: DeviceId,
    /// Largest size of a buffer in bytes.
    pub max_buffer_size: u64,
    /// Whether the device's memory is the host's, so that kernels work on host memory in place.
    pub shares_memory: bool,
    /// Work items in a group, if the caller has set a number.
    pub group_size: Option<usize>,
    /// Whether kernels for a CPU may gather; see [`crate::compile`].
    pub has_fast_gather: bool,
}

impl GpuProperties {
    /// Cache key that distinguishes the device's binaries from those of other devices and drivers.
    pub fn fingerprint(&self) -> String {
        let version = ocl_core::get_device_info(self.device, ocl_core::DeviceInfo::Version);
        let version = version.map_or_else(|error| error_text(&error), |version| version.to_string());
        format!("{}\n{}\n{}", self.name, self.driver, version.trim())
    }
}

/// A device opened for one session, with a context of its own: a session that fails takes no other
/// with it.
pub(crate) struct Gpu {
    pub id: String,
    /// Id, name and driver in one line: the key under which measurements of the device are cached.
    pub identity: String,
    pub kind: DeviceKind,
    pub device: DeviceId,
    /// See [`GpuProperties::max_buffer_size`].
    pub max_buffer_size: u64,
    /// See [`GpuProperties::shares_memory`].
    pub shares_memory: bool,
    /// See [`GpuProperties::group_size`].
    pub group_size: Option<usize>,
    /// Whether completion is polled; else the driver calls back (`completion`).
    pub polls_completion: bool,
    /// Whether events record when their commands began and ended.
    pub profiles: bool,
    /// Why the driver refused to pin host memory, if it did.
    pub unpinned: OnceLock<String>,
    // Three in-order queues, so that uploads, kernels and downloads of different batches overlap;
    // events order what depends on each other.
    pub uploads: CommandQueue,
    pub kernels: CommandQueue,
    pub downloads: CommandQueue,
    // Last: whatever is made in it is dropped first.
    pub context: Context,
}

impl Gpu {
    /// Opens a device; with `profiles`, events record times.
    pub fn open(properties: &GpuProperties, profiles: bool) -> Result<Gpu, DeviceError> {
        let failed = |what: &str, error| DeviceError::Failed {
            device: properties.id.clone(),
            reason: format!("{what}: {}", error_text(&error)),
        };
        let device = properties.device;
        let context =
            ocl_core::create_context(None, &[device], None, None).map_err(|error| failed("cannot be opened", error))?;
        let queue = || {
            let properties = profiles.then_some(CommandQueueProperties::PROFILING_ENABLE);
            ocl_core::create_command_queue(&context, device, properties)
                .map_err(|error| failed("creating a queue failed", error))
        };
        let kernels = queue()?;
        Ok(Gpu {
            id: properties.id.clone(),
            identity: format!("{} | {} | {}", properties.id, properties.name, properties.driver),
            kind: properties.kind,
            device,
            max_buffer_size: properties.max_buffer_size,
            shares_memory: properties.shares_memory,
            group_size: properties.group_size,
            polls_completion: !properties.shares_memory || properties.kind != DeviceKind::Cpu,
            profiles,
            unpinned: OnceLock::new(),
            uploads: queue()?,
            downloads: queue()?,
            kernels,
            context,
        })
    }

    /// The error of an OpenCL call; `what` says what failed.
    pub fn error(&self, what: impl Display, error: &ocl_core::Error) -> DeviceError {
        self.failure(format!("{what}: {}", error_text(error)))
    }

    /// A [`DeviceError::Failed`] of this device.
    pub fn failure(&self, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.id.clone(), reason }
    }

    /// Creates a buffer of `bytes` bytes, in memory of the driver's choice or over host memory.
    ///
    /// # Safety
    /// With `USE_HOST_PTR`, `host` is the start of `bytes` bytes of memory, which exists as long as
    /// the buffer, and is used meanwhile only as OpenCL allows (the OpenCL specification, 5.2.1).
    pub unsafe fn buffer(&self, flags: MemFlags, bytes: u64, host: *mut u8) -> Result<Mem, DeviceError> {
        let mut status = 0;
        // SAFETY: the context is alive, and the memory is as OpenCL requires by the caller's
        // promise.
        let memory: cl_mem = unsafe {
            ffi::clCreateBuffer(self.context.as_ptr(), flags.bits(), bytes as usize, host.cast(), &mut status)
        };
        if status != 0 || memory.is_null() {
            return Err(self.failure(format!("creating a buffer of {bytes} bytes failed: {}", status_name(status))));
        }
        // SAFETY: the object is new, and nothing else refers to it.
        Ok(unsafe { Mem::from_raw_create_ptr(memory) })
    }

    /// Creates a buffer in memory of the driver's choice.
    pub fn device_buffer(&self, flags: MemFlags, bytes: u64) -> Result<Mem, DeviceError> {
        // SAFETY: there is no host memory.
        unsafe { self.buffer(flags, bytes, ptr::null_mut()) }
    }

    /// Duration of a completed command by the device's clock; `None` if the driver does not report
    /// it.
    pub fn duration_of(&self, event: &Event) -> Option<Duration> {
        let time = |what| ocl_core::get_event_profiling_info(event, what).ok()?.time().ok();
        let (start, end) = (time(ProfilingInfo::Start)?, time(ProfilingInfo::End)?);
        Some(Duration::from_nanos(end.saturating_sub(start)))
    }

    /// Submits the queue's commands to the device.
    pub fn flush(&self, queue: &CommandQueue) -> Result<(), DeviceError> {
        ocl_core::flush(queue).map_err(|error| self.error("queuing commands failed", &error))
    }

    /// Waits until all queues are empty, or the driver reports an error.
    pub fn wait_idle(&self) {
        for queue in [&self.uploads, &self.kernels, &self.downloads] {
            let _ = ocl_core::finish(queue);
        }
    }

    /// Maps the first `bytes` bytes of a buffer, and waits for completion.
    ///
    /// # Safety
    /// The map is not used beyond the buffer, nor after it was unmapped.
    pub unsafe fn map_blocking(&self, memory: &Mem, flags: MapFlags, bytes: u64) -> Result<MemMap<u8>, DeviceError> {
        let (queue, bytes) = (&self.uploads, bytes as usize);
        // SAFETY: the call blocks, so the map is complete; the rest is the caller's promise.
        let map =
            unsafe { ocl_core::enqueue_map_buffer::<u8, _, (), ()>(queue, memory, true, flags, 0, bytes, None, None) };
        map.map_err(|error| self.error("mapping a buffer failed", &error))
    }
}

/// The name of an error's status code, or else its text.
pub(crate) fn error_text(error: &ocl_core::Error) -> String {
    error.api_status().map_or_else(|| error.to_string().trim().to_owned(), |status| status_name(status as i32))
}

/// The name of a status code.
pub(crate) fn status_name(code: i32) -> String {
    // The loader has replaced a code that ocl-core does not know.
    let original = loader::take_unknown_status().filter(|_| code == Status::CL_INVALID_OPERATION as i32);
    let code = original.unwrap_or(code);
    Status::from_i32(code).map_or_else(|| format!("error {code}, for which OpenCL has no name"), |s| format!("{s:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_that_ocl_core_does_not_know_keep_their_numbers() {
        assert_eq!(status_name(-5), "CL_OUT_OF_RESOURCES");
        assert_eq!(status_name(-9999), "CL_NV_INVALID_MEM_ACCESS");
        assert_eq!(status_name(-1234), "error -1234, for which OpenCL has no name");
        // Replaced as by a forwarder, and then seen by `ocl-core`, which knows no such code.
        let replaced = loader::replace_unknown_status(-1234);
        assert_eq!(status_name(replaced), "error -1234, for which OpenCL has no name");
        assert_eq!(status_name(replaced), "CL_INVALID_OPERATION");
        // A code that nobody asked for is not reported for a later error.
        loader::replace_unknown_status(-1234);
        let next = loader::replace_unknown_status(-59);
        assert_eq!(status_name(next), "CL_INVALID_OPERATION");
        loader::replace_unknown_status(-1234);
        assert_eq!(status_name(-4), "CL_MEM_OBJECT_ALLOCATION_FAILURE");
    }
}
