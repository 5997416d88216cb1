//! Records through a device and back, as XDP-on-GPU drives a GPU, for comparison in benchmarks.
//!
//! A host buffer of records is uploaded, a kernel writes into each record, and all of them are
//! downloaded: in chunks, over four queues, as XDP-on-GPU does it with CUDA's streams.

use ocl_core::{ArgVal, CommandQueue, Kernel, MapFlags, Mem, MemFlags, MemMap};
use portcullis_core::device::DeviceError;
use portcullis_core::device::record_kernel::{self, HostMemory, RecordKernel};
use portcullis_core::packet::Arena;

use crate::compile::build_kernel;
use crate::device::OpenClDevice;
use crate::driver::gpu::Gpu;

/// Queues that chunks take in turn.
const QUEUES: usize = 4;

/// Definitions before a kernel's text: `KERNEL`, `GLOBAL`, `FUNCTION`, `ITEM` and `TIME`.
const DEFINITIONS: &str = "#define KERNEL __kernel\n#define GLOBAL __global\n#define FUNCTION\n\
    #define ITEM ((unsigned int)get_global_id(0))\n#define TIME ulong\n";

/// Work items in a group, as in XDP-on-GPU.
const GROUP: usize = 256;

/// A hand-written kernel and the memory of its records. That the kernel stays within the records
/// that it is given cannot be checked here: only for this project's own kernels.
pub struct OpenClRecords {
    kernel: Kernel,
    /// Command queues, in the order of chunks.
    queues: Vec<CommandQueue>,
    /// Device buffer of a chunk, for each queue; empty if kernels use host memory.
    slots: Vec<Mem>,
    host: HostRecords,
    record: usize,
    per_item: usize,
    /// Capacity in records, of the host buffer and of a chunk.
    capacity: (usize, usize),
    // Last: whatever was made on it is dropped first.
    gpu: Gpu,
}

/// Host buffer of the records.
enum HostRecords {
    Pageable(Vec<u8>),
    Pinned { map: MemMap<u8>, memory: Mem, bytes: usize },
    // The buffer is dropped before the memory that it is over.
    Imported { memory: Mem, arena: Arena },
}

impl OpenClRecords {
    /// Compiles the kernel `entry` of `text`, and allocates memory for `count` records of `record`
    /// bytes, which go to the device `chunk` at a time; a work item processes `per_item` of them.
    ///
    /// # Errors
    /// If the kernel does not compile, or the device has not enough memory.
    #[expect(clippy::too_many_arguments, reason = "each is one thing")]
    pub fn open(
        device: &OpenClDevice,
        text: &str,
        entry: &str,
        host: HostMemory,
        count: usize,
        chunk: usize,
        record: usize,
        per_item: usize,
    ) -> Result<OpenClRecords, DeviceError> {
        let gpu = Gpu::open(device.properties(), false)?;
        let kernel = build_kernel(&gpu, &format!("{DEFINITIONS}{text}"), entry, "", None)?;
        let bytes = (count * record).max(1);
        let queues = (0..QUEUES)
            .map(|_| ocl_core::create_command_queue(&gpu.context, gpu.device, None))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| gpu.error("creating a queue failed", &error))?;
        let copied = host != HostMemory::Imported;
        let slot = (chunk.min(count) * record).max(1) as u64;
        let slots = (0..if copied { QUEUES.min(count.div_ceil(chunk.max(1)).max(1)) } else { 0 })
            .map(|_| gpu.device_buffer(MemFlags::READ_WRITE, slot))
            .collect::<Result<Vec<_>, _>>()?;
        let host = match host {
            HostMemory::Pageable => HostRecords::Pageable(vec![0; bytes]),
            HostMemory::Pinned => {
                let memory = gpu.device_buffer(MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR, bytes as u64)?;
                // SAFETY: used within its size, and unmapped only when this value is dropped.
                let map = unsafe { gpu.map_blocking(&memory, MapFlags::READ | MapFlags::WRITE, bytes as u64)? };
                HostRecords::Pinned { map, memory, bytes }
            }
            HostMemory::Imported => {
                let mut arena = Arena::new(bytes).map_err(|error| gpu.failure(error.to_string()))?;
                let flags = MemFlags::READ_WRITE | MemFlags::USE_HOST_PTR;
                // SAFETY: the arena outlives the buffer, and the host accesses it only while no
                // kernel is queued: `run` maps it before it returns.
                let memory = unsafe { gpu.buffer(flags, bytes as u64, arena.as_mut_ptr())? };
                HostRecords::Imported { memory, arena }
            }
        };
        Ok(OpenClRecords {
            kernel,
            queues,
            slots,
            host,
            record,
            per_item: per_item.max(1),
            capacity: (count, chunk),
            gpu,
        })
    }

    /// Queues upload, kernel and download of a chunk in a queue.
    fn copy(&mut self, queue: usize, at: usize, count: usize) -> Result<(), DeviceError> {
        let (queue, slot) = (&self.queues[queue], &self.slots[queue]);
        let bytes = at * self.record..(at + count) * self.record;
        let blocking = matches!(self.host, HostRecords::Pageable(_));
        let host = match &mut self.host {
            HostRecords::Pageable(memory) => &mut memory[bytes],
            // SAFETY: within the map; nobody else accesses it before `run` has waited for all
            // queues.
            HostRecords::Pinned { map, bytes: all, .. } => unsafe { &mut map.as_slice_mut(*all)[bytes] },
            HostRecords::Imported { .. } => unreachable!("it is not copied"),
        };
        // SAFETY: both have that many bytes, and exist until `run` has waited for all queues.
        unsafe { ocl_core::enqueue_write_buffer::<u8, _, (), ()>(queue, slot, false, 0, host, None, None) }
            .map_err(|error| self.gpu.error("queuing a copy failed", &error))?;
        launch(&self.gpu, &self.kernel, queue, slot, count, self.per_item)?;
        // SAFETY: as above.
        unsafe { ocl_core::enqueue_read_buffer::<u8, _, (), ()>(queue, slot, blocking, 0, host, None, None) }
            .map_err(|error| self.gpu.error("queuing a read failed", &error))
    }
}

/// Queues the kernel over records at the start of a buffer.
fn launch(
    gpu: &Gpu,
    kernel: &Kernel,
    queue: &CommandQueue,
    records: &Mem,
    count: usize,
    per_item: usize,
) -> Result<(), DeviceError> {
    let failed = |error: ocl_core::Error| gpu.error("queuing a kernel over records failed", &error);
    ocl_core::set_kernel_arg(kernel, 0, ArgVal::mem(records)).map_err(failed)?;
    ocl_core::set_kernel_arg(kernel, 1, ArgVal::scalar(&(count as u32))).map_err(failed)?;
    let items = [count.div_ceil(per_item).next_multiple_of(GROUP), 1, 1];
    // SAFETY: both arguments are set, and the buffer exists until the kernel has completed. The
    // kernel stays within `count` records, as the type requires.
    unsafe { ocl_core::enqueue_kernel::<(), ()>(queue, kernel, 1, None, &items, Some([GROUP, 1, 1]), None, None) }
        .map_err(failed)
}

/// Maps a range of host memory and unmaps it again, which makes it visible to whoever uses it next.
fn map_and_unmap(
    gpu: &Gpu,
    queue: &CommandQueue,
    memory: &Mem,
    flags: MapFlags,
    bytes: usize,
) -> Result<(), DeviceError> {
    let failed = |error: ocl_core::Error| gpu.error("mapping host memory failed", &error);
    // SAFETY: nobody uses the map: it is the memory that the buffer was created over (the OpenCL
    // specification, 5.2.4).
    let map =
        unsafe { ocl_core::enqueue_map_buffer::<u8, _, (), ()>(queue, memory, false, flags, 0, bytes, None, None) };
    let map = map.map_err(failed)?;
    ocl_core::enqueue_unmap_mem_object::<u8, _, (), ()>(queue, memory, &map, None, None).map_err(failed)
}

impl RecordKernel for OpenClRecords {
    fn host(&mut self) -> &mut [u8] {
        match &mut self.host {
            HostRecords::Pageable(memory) => memory,
            // SAFETY: within the map; no command is queued between two calls of `run`.
            HostRecords::Pinned { map, bytes, .. } => unsafe { map.as_slice_mut(*bytes) },
            HostRecords::Imported { arena, .. } => arena,
        }
    }

    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError> {
        record_kernel::check_capacity(&self.gpu.id, self.capacity, (count, chunk))?;
        if count == 0 {
            return Ok(());
        }
        if let HostRecords::Imported { memory, .. } = &self.host {
            let (queue, bytes) = (&self.queues[0], count * self.record);
            map_and_unmap(&self.gpu, queue, memory, MapFlags::WRITE_INVALIDATE_REGION, bytes)?;
            launch(&self.gpu, &self.kernel, queue, memory, count, self.per_item)?;
            map_and_unmap(&self.gpu, queue, memory, MapFlags::READ, bytes)?;
            return ocl_core::finish(queue).map_err(|error| self.gpu.error("filtering records failed", &error));
        }
        let mut queued = Ok(());
        for (number, at) in (0..count).step_by(chunk.max(1)).enumerate() {
            queued = self.copy(number % self.slots.len(), at, chunk.min(count - at));
            if queued.is_err() {
                break;
            }
        }
        // After an error too: commands already queued use the host buffer.
        for queue in &self.queues {
            let ended = ocl_core::finish(queue).map_err(|error| self.gpu.error("filtering records failed", &error));
            queued = queued.and(ended);
        }
        queued
    }
}

impl Drop for OpenClRecords {
    fn drop(&mut self) {
        if let HostRecords::Pinned { map, memory, .. } = &self.host {
            // If this fails, the memory is left to the driver.
            let unmapped =
                ocl_core::enqueue_unmap_mem_object::<u8, _, (), ()>(&self.queues[0], memory, map, None, None);
            let _ = unmapped.and_then(|()| ocl_core::finish(&self.queues[0]));
        }
    }
}
