//! Records through a device and back, as XDP-on-GPU drives a GPU, for comparison in benchmarks.
//!
//! A host buffer of records is uploaded, a kernel writes into each record, and all of them are
//! downloaded: in chunks, over four streams, as XDP-on-GPU does it.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use portcullis_core::device::record_kernel::{self, HostMemory as HostMemoryKind, RecordKernel};
use portcullis_core::device::{CancelToken, DeviceError, Dispatch};

use crate::compile::{self, Kernel};
use crate::device::CudaDevice;
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::driver::stream::Stream;
use crate::driver::{ErrorCode, check};
use crate::memory::{Buffer, DeviceMemory, HostMemory};

/// Streams that chunks take in turn.
const STREAMS: usize = 4;

/// Threads in a block, as in XDP-on-GPU.
const BLOCK_SIZE: u32 = 256;

/// Definitions before a kernel's text: `GLOBAL`, `FUNCTION`, `ITEM` and `TIME`.
const DEFINITIONS: &str = "#define GLOBAL\n#define FUNCTION static __device__\n\
    #define ITEM (blockIdx.x * blockDim.x + threadIdx.x)\n#define TIME unsigned long long\n";

/// A hand-written kernel and the memory of its records. That the kernel stays within the records
/// that it is given cannot be checked here: only for this project's own kernels.
pub struct CudaRecords {
    kernel: Kernel,
    streams: Vec<Arc<Stream>>,
    /// Device buffer of a chunk, for each stream; empty if kernels access host memory.
    slots: Vec<DeviceMemory>,
    host: HostRecords,
    record: usize,
    per_item: usize,
    /// Capacity in records, of the host buffer and of a chunk.
    capacity: (usize, usize),
    gpu: Arc<Gpu>,
}

/// Host buffer of the records.
enum HostRecords {
    Pageable(Vec<u8>),
    Pinned(HostMemory),
    Imported(HostMemory),
}

impl CudaRecords {
    /// Compiles the kernel `entry` of `text`, and allocates memory for `count` records of `record`
    /// bytes, which go to the device `chunk` at a time; a thread processes `per_item` of them.
    ///
    /// # Errors
    /// If the kernel does not compile, or the device has not enough memory.
    #[expect(clippy::too_many_arguments, reason = "each is one thing")]
    pub fn open(
        device: &CudaDevice,
        text: &str,
        entry: &'static str,
        host: HostMemoryKind,
        count: usize,
        chunk: usize,
        record: usize,
        per_item: usize,
    ) -> Result<CudaRecords, DeviceError> {
        let gpu = Arc::new(Gpu::open(device.properties(), Dispatch::Inline, &CancelToken::new())?);
        // Substituted rather than defined as a macro: the emulated compiler searches the text for
        // kernels.
        let text = DEFINITIONS.to_owned() + &text.replace("KERNEL void ", "extern \"C\" __global__ void ");
        let kernel = compile::compile_text(&gpu, device.properties(), text, entry, BLOCK_SIZE)?;
        let bytes = (count * record).max(1);
        let no_room = |code: ErrorCode| gpu.allocation_error("records", code);
        let streams = (0..STREAMS).map(|_| Stream::new(&gpu.context)).collect::<Result<_, _>>().map_err(no_room)?;
        let copied = host != HostMemoryKind::Imported;
        let slot = (chunk.min(count) * record).max(1);
        let slots = (0..if copied { STREAMS.min(count.div_ceil(chunk.max(1)).max(1)) } else { 0 })
            .map(|_| DeviceMemory::new(&gpu.context, slot))
            .collect::<Result<_, _>>()
            .map_err(no_room)?;
        let pinned = || HostMemory::new(&gpu.context, bytes).map_err(no_room);
        let host = match host {
            HostMemoryKind::Pageable => HostRecords::Pageable(vec![0; bytes]),
            HostMemoryKind::Pinned => HostRecords::Pinned(pinned()?),
            HostMemoryKind::Imported => HostRecords::Imported(pinned()?),
        };
        Ok(CudaRecords {
            kernel,
            streams,
            slots,
            host,
            record,
            per_item: per_item.max(1),
            capacity: (count, chunk),
            gpu,
        })
    }

    /// Queues upload, kernel and download of a chunk in a stream.
    fn copy(&mut self, stream: usize, at: usize, count: usize) -> Result<(), ErrorCode> {
        let (stream, slot, first, bytes) =
            (&self.streams[stream], &self.slots[stream], at * self.record, count * self.record);
        let host = match &mut self.host {
            HostRecords::Pageable(memory) => memory[first..first + bytes].as_mut_ptr(),
            HostRecords::Pinned(memory) | HostRecords::Imported(memory) => {
                // SAFETY: within the memory; nobody else accesses it before `run` has waited for
                // all streams.
                unsafe { memory.slice_mut(first, bytes) }.as_mut_ptr()
            }
        };
        // SAFETY: both exist until `run` has waited for all streams, and nobody writes to them
        // meanwhile.
        unsafe { slot.upload(0, host, bytes, stream)? };
        launch(&self.kernel, stream, slot.address(), count, self.per_item)?;
        let context = &self.gpu.context;
        let _current = context.enter()?;
        // SAFETY: both have that many bytes, and exist until `run` has waited for all streams.
        check(unsafe { (context.driver.cuMemcpyDtoHAsync_v2)(host.cast(), slot.address(), bytes, stream.handle()) })
    }
}

/// Queues the kernel over records at a device address.
fn launch(
    kernel: &Kernel,
    stream: &Stream,
    records: CUdeviceptr,
    count: usize,
    per_item: usize,
) -> Result<(), ErrorCode> {
    let (mut records, mut number) = (records, count as u32);
    let mut arguments: [*mut c_void; 2] = [(&raw mut records).cast(), (&raw mut number).cast()];
    // SAFETY: kernels over records have these two arguments. The kernel stays within `count`
    // records, as the type requires, which exist until the stream was waited for.
    unsafe { kernel.launch(kernel.blocks_for(count.div_ceil(per_item) as u32), &mut arguments, stream) }
}

impl RecordKernel for CudaRecords {
    fn host(&mut self) -> &mut [u8] {
        match &mut self.host {
            HostRecords::Pageable(memory) => memory,
            // SAFETY: all of it; no command is queued between two calls of `run`.
            HostRecords::Pinned(memory) | HostRecords::Imported(memory) => unsafe {
                memory.slice_mut(0, memory.size())
            },
        }
    }

    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError> {
        record_kernel::check_capacity(&self.gpu.id, self.capacity, (count, chunk))?;
        if count == 0 {
            return Ok(());
        }
        let gpu = self.gpu.clone();
        let failed = |code: ErrorCode| gpu.error("filtering records failed", code);
        let mut queued = Ok(());
        if let HostRecords::Imported(memory) = &self.host {
            queued = launch(&self.kernel, &self.streams[0], memory.address(), count, self.per_item);
        } else {
            for (number, at) in (0..count).step_by(chunk.max(1)).enumerate() {
                queued = self.copy(number % self.slots.len(), at, chunk.min(count - at));
                if queued.is_err() {
                    break;
                }
            }
        }
        // After an error too: commands already queued use the host buffer.
        let mut ended = queued.map_err(failed);
        for stream in &self.streams {
            let waited = stream
                .record_event()
                .map_err(failed)
                .and_then(|event| poll::until(&gpu.id, &CancelToken::new(), || event.is_complete().map_err(failed)));
            ended = ended.and(waited);
        }
        ended
    }
}
