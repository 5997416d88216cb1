//! Records in a device's memory and back: how XDP-on-GPU drives a GPU, measured beside what we do.
//!
//! A host's buffer of records goes to the device, a kernel writes into each, and all of them come back: in chunks, each on
//! one of four streams, as it has it.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use portcullis_core::device::record_kernel::{self, HostMemory as Where, RecordKernel};
use portcullis_core::device::{CancelToken, DeviceError, Dispatch};

use crate::api::{Code, check};
use crate::compile::{self, Kernel};
use crate::device::{Gpu, Stream};
use crate::memory::{Buffer, DeviceMemory, HostMemory};
use crate::probe::CudaDevice;
use crate::wait;

/// Streams that chunks take in turn.
const STREAMS: usize = 4;

/// Threads in a block, as over there.
const BLOCK: u32 = 256;

/// What the text of kernels is defined with: `GLOBAL`, `FUNCTION`, `ITEM` and `TIME`.
const DEFINITIONS: &str = "#define GLOBAL\n#define FUNCTION static __device__\n\
    #define ITEM (blockIdx.x * blockDim.x + threadIdx.x)\n#define TIME unsigned long long\n";

/// A kernel and the memory that its records are in. The kernel keeps to the records that it is told of, which nothing
/// here can make sure of: for texts of this project's own.
pub struct CudaRecords {
    kernel: Kernel,
    streams: Vec<Stream>,
    /// A chunk's place on the device for each stream; none where kernels reach the host's memory.
    slots: Vec<DeviceMemory>,
    host: Host,
    record: usize,
    per_item: usize,
    /// Records that there is room for, on the host and in a chunk.
    room: (usize, usize),
    gpu: Arc<Gpu>,
}

/// The host's records.
enum Host {
    Pageable(Vec<u8>),
    Pinned(HostMemory),
    Imported(HostMemory),
}

impl CudaRecords {
    /// Compiles the kernel `entry` of a text, and makes room for `count` records of `record` bytes, which go to the device
    /// `chunk` at a time; a thread takes `per_item` of them.
    ///
    /// # Errors
    /// The compiler's own, and where the device has no memory for it.
    #[expect(clippy::too_many_arguments, reason = "each is one thing")]
    pub fn open(
        device: &CudaDevice,
        text: &str,
        entry: &'static str,
        host: Where,
        count: usize,
        chunk: usize,
        record: usize,
        per_item: usize,
    ) -> Result<CudaRecords, DeviceError> {
        let gpu = Arc::new(device.open(Dispatch::Inline, &CancelToken::new())?);
        // Written out, and no macro: whoever looks for kernels in a text finds them.
        let text = DEFINITIONS.to_owned() + &text.replace("KERNEL void ", "extern \"C\" __global__ void ");
        let kernel = compile::by_hand(&gpu, device, text, entry, BLOCK)?;
        let bytes = (count * record).max(1);
        let no_room = |code: Code| gpu.no_room("records", code);
        let streams = (0..STREAMS).map(|_| Stream::new(&gpu.context)).collect::<Result<_, _>>().map_err(no_room)?;
        let copied = host != Where::Imported;
        let slot = (chunk.min(count) * record).max(1);
        let slots = (0..if copied { STREAMS.min(count.div_ceil(chunk.max(1)).max(1)) } else { 0 })
            .map(|_| DeviceMemory::new(&gpu.context, slot))
            .collect::<Result<_, _>>()
            .map_err(no_room)?;
        let pinned = || HostMemory::new(&gpu.context, bytes).map_err(no_room);
        let host = match host {
            Where::Pageable => Host::Pageable(vec![0; bytes]),
            Where::Pinned => Host::Pinned(pinned()?),
            Where::Imported => Host::Imported(pinned()?),
        };
        Ok(CudaRecords { kernel, streams, slots, host, record, per_item: per_item.max(1), room: (count, chunk), gpu })
    }

    /// Sends a chunk, has it filtered, and fetches it, in a stream's order.
    fn copy(&mut self, stream: usize, at: usize, count: usize) -> Result<(), Code> {
        let (stream, slot, first, bytes) =
            (&self.streams[stream], &self.slots[stream], at * self.record, count * self.record);
        let host = match &mut self.host {
            Host::Pageable(memory) => memory[first..first + bytes].as_mut_ptr(),
            // SAFETY: within the memory; nobody else looks at it before `run` has waited for all streams.
            Host::Pinned(memory) | Host::Imported(memory) => unsafe { memory.bytes_mut(first, bytes) }.as_mut_ptr(),
        };
        // SAFETY: both stay until `run` has waited for all streams, and nobody writes to them meanwhile.
        unsafe { slot.bring_in(0, host, bytes, stream)? };
        launch(&self.kernel, stream, slot.address(), count, self.per_item)?;
        let context = &self.gpu.context;
        let _here = context.enter()?;
        // SAFETY: as many bytes on either side, which stay until `run` has waited for all streams.
        check(unsafe { (context.driver.cuMemcpyDtoHAsync_v2)(host.cast(), slot.address(), bytes, stream.handle()) })
    }
}

/// Queues the kernel over records at an address of the device's.
fn launch(kernel: &Kernel, stream: &Stream, records: CUdeviceptr, count: usize, per_item: usize) -> Result<(), Code> {
    let (mut records, mut number) = (records, count as u32);
    let mut arguments: [*mut c_void; 2] = [(&raw mut records).cast(), (&raw mut number).cast()];
    // SAFETY: the two arguments that every kernel over records has; it keeps to `count` of them, as the type says, which
    // stay until the stream was waited for.
    unsafe { kernel.launch(kernel.blocks_for(count.div_ceil(per_item) as u32), &mut arguments, stream) }
}

impl RecordKernel for CudaRecords {
    fn host(&mut self) -> &mut [u8] {
        match &mut self.host {
            Host::Pageable(memory) => memory,
            // SAFETY: all of it; no command is queued between two calls of `run`.
            Host::Pinned(memory) | Host::Imported(memory) => unsafe { memory.bytes_mut(0, memory.size()) },
        }
    }

    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError> {
        record_kernel::check_capacity(&self.gpu.id, self.room, (count, chunk))?;
        if count == 0 {
            return Ok(());
        }
        let gpu = self.gpu.clone();
        let failed = |code: Code| gpu.failed("does not filter records", code);
        let mut queued = Ok(());
        if let Host::Imported(memory) = &self.host {
            queued = launch(&self.kernel, &self.streams[0], memory.address(), count, self.per_item);
        } else {
            for (number, at) in (0..count).step_by(chunk.max(1)).enumerate() {
                queued = self.copy(number % self.slots.len(), at, chunk.min(count - at));
                if queued.is_err() {
                    break;
                }
            }
        }
        // Also where one of them failed: the others use the host's memory.
        let mut ended = queued.map_err(failed);
        for stream in &self.streams {
            let waited = stream
                .record()
                .map_err(failed)
                .and_then(|event| wait::until(&gpu.id, &CancelToken::new(), || event.has_come().map_err(failed)));
            ended = ended.and(waited);
        }
        ended
    }
}
