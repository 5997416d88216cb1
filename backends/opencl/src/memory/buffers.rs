//! Buffers of sessions: uploads, device-only outputs and downloads.

use std::ptr::NonNull;

use ocl_core::{ArgVal, CommandQueue, Event, MapFlags, Mem, MemFlags, MemMap};
use portcullis_core::device::DeviceError;

use crate::driver::gpu::Gpu;

/// Least capacity of a buffer. Capacities are powers of two, so that batches of varying sizes soon
/// find a buffer that is large enough.
const MIN_CAPACITY: u64 = 64 << 10;

fn capacity_for(bytes: u64, limit: u64) -> u64 {
    bytes.next_power_of_two().clamp(MIN_CAPACITY, limit.max(MIN_CAPACITY)).max(bytes)
}

/// A device buffer that is reused from batch to batch.
struct PersistentBuffer {
    memory: Mem,
    size: u64,
}

impl PersistentBuffer {
    fn new(gpu: &Gpu, bytes: u64) -> Result<PersistentBuffer, DeviceError> {
        let size = capacity_for(bytes, gpu.max_buffer_size);
        // Shared memory must be where the host can access it.
        let place = if gpu.shares_memory { MemFlags::ALLOC_HOST_PTR } else { MemFlags::empty() };
        Ok(PersistentBuffer { memory: gpu.device_buffer(MemFlags::READ_WRITE | place, size)?, size })
    }
}

/// Pinned host memory, which the device copies by DMA; mapped as long as it exists.
pub(super) struct PinnedBuffer {
    map: MemMap<u8>,
    memory: Mem,
    queue: CommandQueue,
    size: u64,
}

// SAFETY: shared references give the address only.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<PinnedBuffer, DeviceError> {
        let size = capacity_for(bytes, gpu.max_buffer_size);
        let pin = || {
            let memory = gpu.device_buffer(MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR, size)?;
            // SAFETY: only this struct uses the map, within its size, and unmaps it when dropped.
            let map = unsafe { gpu.map_blocking(&memory, MapFlags::READ | MapFlags::WRITE, size)? };
            Ok(PinnedBuffer { map, memory, queue: gpu.uploads.clone(), size })
        };
        pin().inspect_err(|error: &DeviceError| {
            if let DeviceError::Failed { reason, .. } = error {
                // Only the first reason is reported.
                let _ = gpu.unpinned.set(reason.clone());
            }
        })
    }

    /// The address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_ptr().cast_mut()).expect("a map is not null")
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // If this fails, the memory is left to the driver.
        let unmapped =
            ocl_core::enqueue_unmap_mem_object::<u8, _, (), ()>(&self.queue, &self.memory, &self.map, None, None);
        let _ = unmapped.and_then(|()| ocl_core::flush(&self.queue));
    }
}

/// Host memory that the device copies from or to.
enum HostBuffer {
    Pinned(PinnedBuffer),
    /// Pageable memory, because the driver pins none.
    Pageable(Vec<u8>),
}

impl HostBuffer {
    fn new(gpu: &Gpu, bytes: u64) -> Result<HostBuffer, DeviceError> {
        // If the driver is lost, the next command says so.
        PinnedBuffer::new(gpu, bytes).map(HostBuffer::Pinned).or_else(|error| {
            let (mut all, size) = (Vec::new(), capacity_for(bytes, gpu.max_buffer_size) as usize);
            all.try_reserve_exact(size).map_err(|_| error)?;
            all.resize(size, 0);
            Ok(HostBuffer::Pageable(all))
        })
    }

    fn size(&self) -> u64 {
        match self {
            HostBuffer::Pinned(pinned) => pinned.size,
            HostBuffer::Pageable(bytes) => bytes.len() as u64,
        }
    }

    /// The first `bytes` bytes.
    ///
    /// # Safety
    /// They are within the buffer, and no command writes them meanwhile.
    unsafe fn as_slice(&self, bytes: usize) -> &[u8] {
        match self {
            // SAFETY: by the caller's promise.
            HostBuffer::Pinned(pinned) => unsafe { pinned.map.as_slice(bytes) },
            HostBuffer::Pageable(all) => &all[..bytes],
        }
    }

    /// The first `bytes` bytes.
    ///
    /// # Safety
    /// They are within the buffer, and no command uses them meanwhile.
    unsafe fn as_slice_mut(&mut self, bytes: usize) -> &mut [u8] {
        match self {
            // SAFETY: by the caller's promise.
            HostBuffer::Pinned(pinned) => unsafe { pinned.map.as_slice_mut(bytes) },
            HostBuffer::Pageable(all) => &mut all[..bytes],
        }
    }
}

/// Replaces the buffer if it has room for fewer than `bytes` bytes.
fn ensure_capacity<T>(
    buffer: &mut Option<T>,
    bytes: u64,
    size: impl Fn(&T) -> u64,
    make: impl FnOnce(u64) -> Result<T, DeviceError>,
) -> Result<&mut T, DeviceError> {
    if buffer.as_ref().is_none_or(|buffer| size(buffer) < bytes) {
        // Free the old buffer first: there may not be memory for both.
        *buffer = None;
        *buffer = Some(make(bytes)?);
    }
    Ok(buffer.as_mut().expect("made above"))
}

/// Data for kernels to read.
#[derive(Default)]
pub(crate) struct Upload {
    device: Option<PersistentBuffer>,
    host: Option<HostBuffer>,
    /// A buffer over the batch's own memory.
    shared: Option<Mem>,
}

impl Upload {
    /// Makes `data` available to kernels in place, on a device that shares memory.
    ///
    /// # Safety
    /// The data neither moves nor changes until [`Upload::release`] is called or this is dropped,
    /// which happens only after the last command that uses it has completed.
    pub unsafe fn share<T: Copy>(&mut self, gpu: &Gpu, data: &[T]) -> Result<(), DeviceError> {
        let (bytes, start) = (size_of_val(data) as u64, data.as_ptr().cast::<u8>());
        let flags = MemFlags::READ_ONLY | MemFlags::USE_HOST_PTR;
        // SAFETY: initialised memory that does not change, by the caller's promise. The function
        // takes a mutable pointer, but kernels only read, as the flag says.
        self.shared = Some(unsafe { gpu.buffer(flags, bytes, start.cast_mut())? });
        Ok(())
    }

    /// Ensures a capacity of `capacity` bytes and fills the first of them through `fill`, which
    /// returns their number. Returns the event of the command that must complete before kernels
    /// run, if there is one.
    pub fn write(
        &mut self,
        gpu: &Gpu,
        capacity: u64,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Option<Event>, DeviceError> {
        if capacity == 0 {
            fill(&mut []);
            return Ok(None);
        }
        let bytes = capacity;
        let device =
            ensure_capacity(&mut self.device, bytes, |buffer| buffer.size, |bytes| PersistentBuffer::new(gpu, bytes))?;
        let mut event = Event::null();
        if gpu.shares_memory {
            // SAFETY: used only here, within its bounds. No command uses the buffer, whose chunk is
            // yet to be launched, so mapping waits for nothing.
            unsafe {
                let mut map = gpu.map_blocking(&device.memory, MapFlags::WRITE_INVALIDATE_REGION, bytes)?;
                fill(map.as_slice_mut(bytes as usize));
                unmap(gpu, &gpu.uploads, &device.memory, &map, Some(&mut event))?;
            }
            return Ok(Some(event));
        }
        let host = ensure_capacity(&mut self.host, bytes, HostBuffer::size, |bytes| HostBuffer::new(gpu, bytes))?;
        // SAFETY: within its bounds, and nobody else uses it: the copy that an earlier batch queued
        // has completed with that batch.
        let from = unsafe { host.as_slice_mut(bytes as usize) };
        let written = fill(from);
        if written == 0 {
            return Ok(None);
        }
        // SAFETY: the host's memory does not change until the batch has completed.
        let queued = unsafe {
            ocl_core::enqueue_write_buffer::<u8, _, _, ()>(
                &gpu.uploads,
                &device.memory,
                false,
                0,
                &from[..written],
                None,
                Some(&mut event),
            )
        };
        queued.map_err(|error| gpu.error("queuing a copy failed", &error))?;
        Ok(Some(event))
    }

    fn buffer(&self) -> Option<&Mem> {
        self.shared.as_ref().or(self.device.as_ref().map(|buffer| &buffer.memory))
    }

    /// The buffer that kernels read.
    pub fn memory(&self) -> &Mem {
        self.buffer().expect("written before it is used")
    }

    /// The buffer as a kernel's argument; null if nothing was ever written.
    pub fn argument(&self) -> ArgVal<'_> {
        self.buffer().map_or_else(ArgVal::mem_null, ArgVal::mem)
    }

    /// Drops the buffer over the batch's memory.
    pub fn release(&mut self) {
        self.shared = None;
    }
}

/// Memory that only kernels write.
#[derive(Default)]
pub(crate) struct DeviceOutput {
    device: Option<PersistentBuffer>,
}

impl DeviceOutput {
    /// Ensures a capacity of `bytes` bytes.
    pub fn ensure_capacity(&mut self, gpu: &Gpu, bytes: u64) -> Result<(), DeviceError> {
        ensure_capacity(&mut self.device, bytes, |buffer| buffer.size, |bytes| PersistentBuffer::new(gpu, bytes))
            .map(|_| ())
    }

    /// The buffer that kernels write.
    pub fn memory(&self) -> &Mem {
        &self.device.as_ref().expect("reserved before it is used").memory
    }
}

/// Downloads the contents of a buffer.
#[derive(Default)]
pub(crate) struct Download {
    host: Option<HostBuffer>,
    /// The map to read through, on a device that shares memory.
    map: Option<MemMap<u8>>,
    bytes: usize,
}

impl Download {
    /// Queues the download of a buffer's first `bytes` bytes after an event. If memory is shared,
    /// that is a map in the queue of kernels, whose order keeps later kernels from mapped memory.
    pub fn enqueue(&mut self, gpu: &Gpu, from: &Mem, bytes: u64, after: &Event) -> Result<Event, DeviceError> {
        let mut event = Event::null();
        self.bytes = bytes as usize;
        if gpu.shares_memory {
            let (flags, bytes) = (MapFlags::READ, self.bytes);
            // SAFETY: the map is only used in `read`, after the event has completed, and unmapped
            // there.
            let map = unsafe {
                ocl_core::enqueue_map_buffer(&gpu.kernels, from, false, flags, 0, bytes, Some(after), Some(&mut event))
            };
            self.map = Some(map.map_err(|error| gpu.error("mapping a buffer failed", &error))?);
            return Ok(event);
        }
        let host = ensure_capacity(&mut self.host, bytes, HostBuffer::size, |bytes| HostBuffer::new(gpu, bytes))?;
        // SAFETY: within its bounds, and nobody reads it before the event has completed.
        let queued = unsafe {
            let to = host.as_slice_mut(self.bytes);
            let (queue, event) = (&gpu.downloads, Some(&mut event));
            ocl_core::enqueue_read_buffer::<u8, _, _, _>(queue, from, false, 0, to, Some(after), event)
        };
        queued.map_err(|error| gpu.error("queuing a read failed", &error))?;
        Ok(event)
    }

    /// Reads what was downloaded from `from`, once the event has completed.
    pub fn read<T>(&mut self, gpu: &Gpu, from: &Mem, read: impl FnOnce(&[u8]) -> T) -> Result<T, DeviceError> {
        if let Some(map) = self.map.take() {
            // SAFETY: the map is complete and has that many bytes; kernels that write there come
            // after the unmap command in the same queue.
            let result = read(unsafe { map.as_slice(self.bytes) });
            unmap(gpu, &gpu.kernels, from, &map, None)?;
            return Ok(result);
        }
        let host = self.host.as_ref().expect("queued before it is read");
        // SAFETY: the copy is complete and has that many bytes.
        Ok(read(unsafe { host.as_slice(self.bytes) }))
    }
}

pub(super) fn unmap(
    gpu: &Gpu,
    queue: &CommandQueue,
    memory: &Mem,
    map: &MemMap<u8>,
    event: Option<&mut Event>,
) -> Result<(), DeviceError> {
    let queued = ocl_core::enqueue_unmap_mem_object::<u8, _, _, ()>(queue, memory, map, None, event);
    queued.map_err(|error| gpu.error("unmapping a buffer failed", &error))
}
