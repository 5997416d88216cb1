//! An opened device: OpenCL's handles, what was found out about it, and how errors are told.

use std::fmt::Display;
use std::ptr;
use std::time::Duration;

use num_traits::FromPrimitive;
use ocl_core::ffi::{self, cl_mem};
use ocl_core::{
    CommandQueue, CommandQueueProperties, Context, DeviceId, Event, MapFlags, Mem, MemFlags, MemMap, ProfilingInfo,
    Status,
};
use portcullis_core::device::{DeviceError, DeviceKind};

use crate::loader;
use crate::probe::OpenClDevice;

/// A device opened for one session: a session that fails takes no other with it.
pub(crate) struct Gpu {
    pub id: String,
    /// What tells it and its driver from all others.
    pub about: String,
    pub kind: DeviceKind,
    pub device: DeviceId,
    /// Bytes that one buffer may have.
    pub largest: u64,
    /// The device's memory is the host's: kernels work on host memory where it lies.
    pub shares_memory: bool,
    /// Work items in a group, where somebody has said how many.
    pub group: Option<usize>,
    /// Whether events tell when their commands began and ended.
    pub clocks: bool,
    // Three queues, each in order: what one batch brings in, another runs and a third brings back go
    // on side by side. Events say what waits for what.
    pub uploads: CommandQueue,
    pub kernels: CommandQueue,
    pub downloads: CommandQueue,
    // Last: what is made in it goes first.
    pub context: Context,
}

impl Gpu {
    /// Opens a device; with `clocks` it keeps the times of what is queued.
    pub fn open(device: &OpenClDevice, clocks: bool) -> Result<Gpu, DeviceError> {
        let info = portcullis_core::device::Device::info(device);
        let failed = |what: &str, error| DeviceError::Failed {
            device: info.id.clone(),
            reason: format!("{what}: {}", words(&error)),
        };
        let device_id = device.device();
        let context = ocl_core::create_context(None, &[device_id], None, None)
            .map_err(|error| failed("cannot be opened", error))?;
        let queue = || {
            let properties = clocks.then_some(CommandQueueProperties::PROFILING_ENABLE);
            ocl_core::create_command_queue(&context, device_id, properties)
                .map_err(|error| failed("creating a queue failed", error))
        };
        let shares_memory = device.shares_memory();
        let kernels = queue()?;
        Ok(Gpu {
            id: info.id.clone(),
            about: format!("{} | {} | {}", info.id, info.name, info.driver),
            kind: info.kind,
            device: device_id,
            largest: device.largest(),
            shares_memory,
            group: device.group(),
            clocks,
            uploads: queue()?,
            downloads: queue()?,
            kernels,
            context,
        })
    }

    /// The error that means: this device gave up, in the middle of `what`.
    pub fn failed(&self, what: impl Display, error: &ocl_core::Error) -> DeviceError {
        self.gave_up(format!("{what}: {}", words(error)))
    }

    /// The error that means: this device gave up.
    pub fn gave_up(&self, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.id.clone(), reason }
    }

    /// A buffer of `bytes` bytes, of the device's own choosing or over host memory.
    ///
    /// # Safety
    /// With `USE_HOST_PTR`, `host` is the start of as many bytes of memory, which stays as long as the
    /// buffer does, and which nobody uses in ways that OpenCL does not allow meanwhile (the OpenCL
    /// specification, 5.2.1).
    pub unsafe fn buffer(&self, flags: MemFlags, bytes: u64, host: *mut u8) -> Result<Mem, DeviceError> {
        let mut status = 0;
        // SAFETY: the context is alive, and the memory is as OpenCL wants it by the caller's promise.
        let memory: cl_mem = unsafe {
            ffi::clCreateBuffer(self.context.as_ptr(), flags.bits(), bytes as usize, host.cast(), &mut status)
        };
        if status != 0 || memory.is_null() {
            return Err(self.gave_up(format!("no buffer of {bytes} bytes to be had: {}", name_of(status))));
        }
        // SAFETY: it was made just now, and is nobody else's.
        Ok(unsafe { Mem::from_raw_create_ptr(memory) })
    }

    /// A buffer in the device's memory.
    pub fn own_buffer(&self, flags: MemFlags, bytes: u64) -> Result<Mem, DeviceError> {
        // SAFETY: no host memory.
        unsafe { self.buffer(flags, bytes, ptr::null_mut()) }
    }

    /// How long a command took that has ended, on the device's clock; `None` where its driver does not say.
    pub fn time_of(&self, event: &Event) -> Option<Duration> {
        let at = |what| ocl_core::get_event_profiling_info(event, what).ok()?.time().ok();
        let (start, end) = (at(ProfilingInfo::Start)?, at(ProfilingInfo::End)?);
        Some(Duration::from_nanos(end.saturating_sub(start)))
    }

    /// Hands the queue's commands to the device.
    pub fn flush(&self, queue: &CommandQueue) -> Result<(), DeviceError> {
        ocl_core::flush(queue).map_err(|error| self.failed("queuing commands failed", &error))
    }

    /// Waits until the device is done with everything, or its driver says that it never will be.
    pub fn settle(&self) {
        for queue in [&self.uploads, &self.kernels, &self.downloads] {
            let _ = ocl_core::finish(queue);
        }
    }

    /// Maps the first `bytes` bytes of a buffer and waits for it.
    ///
    /// # Safety
    /// The bytes are not used beyond the buffer, nor after it was unmapped.
    pub unsafe fn map_now(&self, memory: &Mem, flags: MapFlags, bytes: u64) -> Result<MemMap<u8>, DeviceError> {
        let (queue, bytes) = (&self.uploads, bytes as usize);
        // SAFETY: the map blocks, so it is complete; the rest is the caller's promise.
        let map =
            unsafe { ocl_core::enqueue_map_buffer::<u8, _, (), ()>(queue, memory, true, flags, 0, bytes, None, None) };
        map.map_err(|error| self.failed("mapping a buffer failed", &error))
    }
}

/// An error in the driver's words.
pub(crate) fn words(error: &ocl_core::Error) -> String {
    error.api_status().map_or_else(|| error.to_string().trim().to_owned(), |status| name_of(status as i32))
}

/// The name of an error number.
pub(crate) fn name_of(code: i32) -> String {
    // A number without a name was replaced by the forwarder.
    let unnamed = loader::unnamed().filter(|_| code == Status::CL_INVALID_OPERATION as i32);
    let code = unnamed.unwrap_or(code);
    Status::from_i32(code).map_or_else(|| format!("error {code}, for which OpenCL has no name"), |s| format!("{s:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_driver_s_numbers() {
        assert_eq!(name_of(-5), "CL_OUT_OF_RESOURCES");
        assert_eq!(name_of(-9999), "CL_NV_INVALID_MEM_ACCESS");
        assert_eq!(name_of(-1234), "error -1234, for which OpenCL has no name");
        // As if through a forwarder, and then by `ocl-core`, which knows no such number.
        let through = loader::named(-1234);
        assert_eq!(name_of(through), "error -1234, for which OpenCL has no name");
        assert_eq!(name_of(through), "CL_INVALID_OPERATION");
        // One that nobody looked at is not the next one's.
        loader::named(-1234);
        let next = loader::named(-59);
        assert_eq!(name_of(next), "CL_INVALID_OPERATION");
        loader::named(-1234);
        assert_eq!(name_of(-4), "CL_MEM_OBJECT_ALLOCATION_FAILURE");
    }
}
