//! Records in a device's memory and back: how XDP-on-GPU drives a device, measured beside what we do.
//!
//! A host's buffer of records goes to the device, a kernel writes into each, and all of them come back: in chunks, each on
//! one of four queues, as it has it with CUDA's streams.

use ocl_core::{ArgVal, CommandQueue, Kernel, MapFlags, Mem, MemFlags, MemMap};
use portcullis_c_writer::Kernel as Source;
use portcullis_core::device::DeviceError;
use portcullis_core::device::record_kernel::{self, HostMemory, RecordKernel};
use portcullis_core::packet::Arena;

use crate::compile::build;
use crate::device::Gpu;
use crate::probe::OpenClDevice;

/// Queues that chunks take in turn.
const QUEUES: usize = 4;

/// What the text of kernels is defined with: `KERNEL`, `GLOBAL`, `FUNCTION`, `ITEM` and `TIME`.
const DEFINITIONS: &str = "#define KERNEL __kernel\n#define GLOBAL __global\n#define FUNCTION\n\
    #define ITEM ((unsigned int)get_global_id(0))\n#define TIME ulong\n";

/// Work items in a group, as over there.
const GROUP: usize = 256;

/// A kernel and the memory that its records are in. The kernel keeps to the records that it is told of, which nothing
/// here can make sure of: for texts of this project's own.
pub struct OpenClRecords {
    kernel: Kernel,
    /// In the order of chunks.
    queues: Vec<CommandQueue>,
    /// A chunk's place on the device for each queue; none where the host's memory is the device's.
    slots: Vec<Mem>,
    host: Host,
    record: usize,
    per_item: usize,
    /// Records that there is room for, on the host and in a chunk.
    room: (usize, usize),
    // Last: what was made on it goes first.
    gpu: Gpu,
}

/// The host's records.
enum Host {
    Pageable(Vec<u8>),
    Pinned { map: MemMap<u8>, memory: Mem, bytes: usize },
    // The buffer goes before the memory that it is over.
    Imported { memory: Mem, arena: Arena },
}

impl OpenClRecords {
    /// Compiles the kernel `entry` of a text, and makes room for `count` records of `record` bytes, which go to the device
    /// `chunk` at a time; a work item takes `per_item` of them.
    ///
    /// # Errors
    /// The compiler's own, and where the device has no memory for it.
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
        let gpu = Gpu::open(device, false)?;
        let source =
            Source { source: format!("{DEFINITIONS}{text}"), entry: entry.to_owned(), arguments: Vec::new(), size: 0 };
        let kernel = build(&gpu, &source, "", None)?;
        let bytes = (count * record).max(1);
        let queues = (0..QUEUES)
            .map(|_| ocl_core::create_command_queue(&gpu.context, gpu.device, None))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| gpu.failed("creating a queue failed", &error))?;
        let copied = host != HostMemory::Imported;
        let slot = (chunk.min(count) * record).max(1) as u64;
        let slots = (0..if copied { QUEUES.min(count.div_ceil(chunk.max(1)).max(1)) } else { 0 })
            .map(|_| gpu.own_buffer(MemFlags::READ_WRITE, slot))
            .collect::<Result<Vec<_>, _>>()?;
        let host = match host {
            HostMemory::Pageable => Host::Pageable(vec![0; bytes]),
            HostMemory::Pinned => {
                let memory = gpu.own_buffer(MemFlags::READ_WRITE | MemFlags::ALLOC_HOST_PTR, bytes as u64)?;
                // SAFETY: used within its size, and unmapped by this type's end only.
                let map = unsafe { gpu.map_now(&memory, MapFlags::READ | MapFlags::WRITE, bytes as u64)? };
                Host::Pinned { map, memory, bytes }
            }
            HostMemory::Imported => {
                let mut arena = Arena::new(bytes).map_err(|error| gpu.gave_up(error.to_string()))?;
                let flags = MemFlags::READ_WRITE | MemFlags::USE_HOST_PTR;
                // SAFETY: the arena stays until the buffer is gone, and is looked at by the host only while no kernel is
                // queued: `run` maps it again before it returns.
                let memory = unsafe { gpu.buffer(flags, bytes as u64, arena.as_mut_ptr())? };
                Host::Imported { memory, arena }
            }
        };
        Ok(OpenClRecords { kernel, queues, slots, host, record, per_item: per_item.max(1), room: (count, chunk), gpu })
    }

    /// Sends a chunk, has it filtered, and fetches it, in a queue's order.
    fn copy(&mut self, queue: usize, at: usize, count: usize) -> Result<(), DeviceError> {
        let (queue, slot) = (&self.queues[queue], &self.slots[queue]);
        let bytes = at * self.record..(at + count) * self.record;
        let blocking = matches!(self.host, Host::Pageable(_));
        let host = match &mut self.host {
            Host::Pageable(memory) => &mut memory[bytes],
            // SAFETY: within the map; nobody else looks at it before `run` has waited for all queues.
            Host::Pinned { map, bytes: all, .. } => unsafe { &mut map.as_slice_mut(*all)[bytes] },
            Host::Imported { .. } => unreachable!("it is not copied"),
        };
        // SAFETY: as many bytes on either side, which stay until `run` has waited for all queues.
        unsafe { ocl_core::enqueue_write_buffer::<u8, _, (), ()>(queue, slot, false, 0, host, None, None) }
            .map_err(|error| self.gpu.failed("queuing a copy failed", &error))?;
        launch(&self.gpu, &self.kernel, queue, slot, count, self.per_item)?;
        // SAFETY: as above.
        unsafe { ocl_core::enqueue_read_buffer::<u8, _, (), ()>(queue, slot, blocking, 0, host, None, None) }
            .map_err(|error| self.gpu.failed("queuing a read failed", &error))
    }
}

/// Queues the kernel over records at a buffer's beginning.
fn launch(
    gpu: &Gpu,
    kernel: &Kernel,
    queue: &CommandQueue,
    records: &Mem,
    count: usize,
    per_item: usize,
) -> Result<(), DeviceError> {
    let failed = |error: ocl_core::Error| gpu.failed("queuing a kernel over records failed", &error);
    ocl_core::set_kernel_arg(kernel, 0, ArgVal::mem(records)).map_err(failed)?;
    ocl_core::set_kernel_arg(kernel, 1, ArgVal::scalar(&(count as u32))).map_err(failed)?;
    let items = [count.div_ceil(per_item).next_multiple_of(GROUP), 1, 1];
    // SAFETY: both arguments are set, and the buffer stays until the kernel has ended. The kernel keeps to `count` records,
    // as this type says.
    unsafe { ocl_core::enqueue_kernel::<(), ()>(queue, kernel, 1, None, &items, Some([GROUP, 1, 1]), None, None) }
        .map_err(failed)
}

/// Maps bytes of host memory and unmaps them again: who looks at it next, host or device, finds what the other has written.
fn touch(gpu: &Gpu, queue: &CommandQueue, memory: &Mem, flags: MapFlags, bytes: usize) -> Result<(), DeviceError> {
    let failed = |error: ocl_core::Error| gpu.failed("mapping host memory failed", &error);
    // SAFETY: nobody looks through the map: it is the memory that the buffer was made over (the OpenCL specification,
    // 5.2.4).
    let map =
        unsafe { ocl_core::enqueue_map_buffer::<u8, _, (), ()>(queue, memory, false, flags, 0, bytes, None, None) };
    let map = map.map_err(failed)?;
    ocl_core::enqueue_unmap_mem_object::<u8, _, (), ()>(queue, memory, &map, None, None).map_err(failed)
}

impl RecordKernel for OpenClRecords {
    fn host(&mut self) -> &mut [u8] {
        match &mut self.host {
            Host::Pageable(memory) => memory,
            // SAFETY: within the map; no command is queued between two calls of `run`.
            Host::Pinned { map, bytes, .. } => unsafe { map.as_slice_mut(*bytes) },
            Host::Imported { arena, .. } => arena,
        }
    }

    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError> {
        record_kernel::check_capacity(&self.gpu.id, self.room, (count, chunk))?;
        if count == 0 {
            return Ok(());
        }
        if let Host::Imported { memory, .. } = &self.host {
            let (queue, bytes) = (&self.queues[0], count * self.record);
            touch(&self.gpu, queue, memory, MapFlags::WRITE_INVALIDATE_REGION, bytes)?;
            launch(&self.gpu, &self.kernel, queue, memory, count, self.per_item)?;
            touch(&self.gpu, queue, memory, MapFlags::READ, bytes)?;
            return ocl_core::finish(queue).map_err(|error| self.gpu.failed("records", &error));
        }
        let mut queued = Ok(());
        for (number, at) in (0..count).step_by(chunk.max(1)).enumerate() {
            queued = self.copy(number % self.slots.len(), at, chunk.min(count - at));
            if queued.is_err() {
                break;
            }
        }
        // Also where one of them failed: the others use the host's memory.
        for queue in &self.queues {
            let ended = ocl_core::finish(queue).map_err(|error| self.gpu.failed("records", &error));
            queued = queued.and(ended);
        }
        queued
    }
}

impl Drop for OpenClRecords {
    fn drop(&mut self) {
        if let Host::Pinned { map, memory, .. } = &self.host {
            // A failure leaves the memory to the driver, which it belongs to.
            let unmapped =
                ocl_core::enqueue_unmap_mem_object::<u8, _, (), ()>(&self.queues[0], memory, map, None, None);
            let _ = unmapped.and_then(|()| ocl_core::finish(&self.queues[0]));
        }
    }
}
