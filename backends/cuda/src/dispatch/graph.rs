//! `graph`: copy in, kernel and copies out as one graph, made once for each slot and launched by one call. What
//! changes from launch to launch is how much is copied; the kernel reads from the slot's head how many packets
//! there are.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUgraph_st, CUgraphExec_st, CUgraphNode, CUgraphNode_st, CUmemorytype,
};
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{ChunkView, DRAIN_TIMEOUT, KernelEffects, Launcher, VerdictColumns};
use portcullis_core::device::transfer_planner::BatchMemory;
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::slots::{HEAD, InPlace, Inside, Shape, Slot};
use crate::api::{Code, check};
use crate::compile::{BLOCK, Loaded};
use crate::context::{Context, Handle};
use crate::device::{Event, Gpu, Stream, Tickets};
use crate::memory::View;
use crate::wait;

/// Parts of a batch that are launched before the first has come back.
const PARTS: usize = 32;

/// Packets in a slot; larger batches take several.
const PACKETS: usize = 16 << 10;

/// Bytes of a slot's packets.
const BYTES: u64 = 64 << 20;

/// A compiled filter, with what it takes to launch it.
pub(crate) struct Graphs {
    effects: KernelEffects,
    cancel: CancelToken,
    /// Slots made so far: each takes the next stream.
    made: AtomicUsize,
    kernel: Arc<Loaded>,
    // Last: what was made on it goes first.
    gpu: Arc<Gpu>,
}

/// A slot with its graph.
pub(crate) struct Buffers {
    // First: it goes before the memory that it copies.
    graph: Option<Executable>,
    slot: Slot,
    stream: Arc<Stream>,
    ended: Tickets,
    /// The last launch.
    last: Option<Arc<Event>>,
}

impl Graphs {
    pub fn new(gpu: Arc<Gpu>, loaded: Loaded, cancel: &CancelToken) -> Graphs {
        let (effects, kernel) = (loaded.effects, Arc::new(loaded));
        Graphs { effects, cancel: cancel.clone(), made: AtomicUsize::new(0), kernel, gpu }
    }

    fn failed(&self, what: &str, code: Code) -> DeviceError {
        self.gpu.failed(what, code)
    }
}

impl Launcher for Graphs {
    type Buffers = Buffers;
    type Import = InPlace;
    type Ticket = Arc<Event>;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || View::of(span, self.id()).is_some()
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(InPlace::announced(span, self.id()))
    }

    fn batch_memory(&mut self, batch: &Batch, _: bool) -> BatchMemory<InPlace> {
        InPlace::batch_memory(batch, self.id())
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        InPlace::chunk_limits(layout, PACKETS, BYTES)
    }

    fn max_chunks(&self) -> usize {
        PARTS
    }

    fn new_buffers(&self) -> Buffers {
        let streams = [&self.gpu.kernels, &self.gpu.uploads, &self.gpu.downloads];
        let stream = streams[self.made.fetch_add(1, Ordering::Relaxed) % streams.len()].clone();
        Buffers { graph: None, slot: Slot::default(), stream, ended: Tickets::default(), last: None }
    }

    fn upload(
        &mut self,
        part: &ChunkView<'_, InPlace>,
        effects: KernelEffects,
        buffers: &mut Buffers,
    ) -> Result<(), DeviceError> {
        let shape = Shape::of_slot(part, effects);
        let _here = self.gpu.enter()?;
        let reserved = buffers.slot.reserve(&self.gpu.context, &shape, Inside::GivenAndAnswers);
        reserved.map_err(|code| self.gpu.no_room("a batch", code))?;
        // SAFETY: the part that the slot was used for last was waited for (`Launcher`).
        unsafe { buffers.slot.write(part, effects, &shape) };
        buffers.slot.flush(&self.gpu)?;
        // It is made for the memory that the slot had then, and for packets that are, or are not, in it.
        if buffers.graph.as_ref().is_none_or(|graph| graph.memory != Memory::of(&buffers.slot)) {
            buffers.graph = None;
            let made = Executable::new(&self.kernel, &buffers.slot, effects, &buffers.stream);
            buffers.graph = Some(made.map_err(|code| self.failed("does not make a graph", code))?);
        }
        Ok(())
    }

    fn launch(
        &mut self,
        _: &ChunkView<'_, InPlace>,
        effects: KernelEffects,
        buffers: &mut Buffers,
        first: usize,
        count: usize,
    ) -> Result<Arc<Event>, DeviceError> {
        let gpu = self.gpu.clone();
        let _here = gpu.enter()?;
        if first > 0 {
            // The head is written anew, so the launch that reads it has to have ended.
            let last = buffers.last.take().expect("the part's first launch came before");
            self.wait(&last, &self.cancel.clone())?;
        }
        // SAFETY: as in `upload`, and the part's earlier launches were waited for.
        unsafe { buffers.slot.write_head(first, count) };
        // Only the head, later: the rest is there, and the filter has worked on it.
        let sizes = Sizes::of(&buffers.slot, effects, if first == 0 { buffers.slot.given_at.end } else { HEAD });
        let graph = buffers.graph.as_mut().expect("made in `upload`");
        let launched = graph.launch(&buffers.slot, sizes, &buffers.stream);
        let ended = launched.and_then(|()| buffers.ended.next(&buffers.stream));
        let event = ended.map_err(|code| self.failed("does not launch the filter", code))?;
        buffers.last = Some(event.clone());
        Ok(event)
    }

    fn wait(&mut self, ticket: &Arc<Event>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        let _here = gpu.enter()?;
        wait::until(&gpu.id, cancel, || ticket.has_come().map_err(|code| gpu.failed("the filter failed", code)))
    }

    fn read_verdicts(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        // SAFETY: the launch was waited for (`Launcher`); the same below.
        unsafe { buffers.slot.verdicts(self.effects, columns) };
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut Buffers,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot.ends() });
        Ok(())
    }

    fn read_packets(&mut self, _: u64, buffers: &mut Buffers, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot.changed() });
        Ok(())
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.kernel.maps.read(&self.gpu, map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.kernel.maps.write(&self.gpu, map, at, words)
    }

    fn wait_idle(&mut self) {
        self.gpu.settle();
    }

    fn try_drain(&mut self, _: &[&Arc<Event>], _: bool) -> bool {
        wait::within(DRAIN_TIMEOUT, None, || self.gpu.is_idle())
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        self.gpu.abandon(kept, || ());
    }
}

/// Bytes that a launch copies in and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    given: usize,
    answers: usize,
    /// Nothing where the filter does not change them, or they are not in the slot.
    ends: usize,
    changed: usize,
}

impl Sizes {
    fn of(slot: &Slot, effects: KernelEffects, given: usize) -> Sizes {
        // A copy of nothing is an error: where there is no byte, one is copied that nobody looks at.
        let size = |wanted: bool, bytes: usize| if wanted { bytes.max(1) } else { 0 };
        Sizes {
            given,
            answers: slot.returned_at.answers(),
            ends: size(effects.resizes_packets, slot.packets * 8),
            changed: size(effects.writes_packets && slot.place == 0, slot.bytes),
        }
    }
}

/// A copy in a graph, and which.
#[derive(Debug, Clone, Copy)]
struct Node {
    node: Handle<CUgraphNode_st>,
    copy: Copied,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Given,
    Answers,
    Ends,
    Changed,
}

impl Copied {
    fn parameters(self, slot: &Slot, sizes: Sizes) -> CUDA_MEMCPY3D {
        let (given, returned) = (slot.given_at, slot.returned_at);
        let (inside, answers) = (slot.inside().address(), slot.answers().address());
        match self {
            Copied::Given => copy_in(slot.given().host(), inside, sizes.given),
            Copied::Answers => copy_back(answers, slot.returned().host(), sizes.answers),
            Copied::Ends => {
                copy_back(inside + HEAD as u64, slot.returned().host().wrapping_add(returned.ends), sizes.ends)
            }
            Copied::Changed => copy_back(
                inside + given.packets as u64,
                slot.returned().host().wrapping_add(returned.changed),
                sizes.changed,
            ),
        }
    }
}

fn copy_in(from: *const u8, to: u64, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from.cast(),
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        ..row(bytes)
    }
}

fn copy_back(from: u64, to: *mut u8, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: from,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: to.cast(),
        ..row(bytes)
    }
}

/// A copy of one row, from nowhere to nowhere.
fn row(bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: ptr::null(),
        srcDevice: 0,
        srcArray: ptr::null_mut(),
        reserved0: ptr::null_mut(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: ptr::null_mut(),
        dstDevice: 0,
        dstArray: ptr::null_mut(),
        reserved1: ptr::null_mut(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}

/// Where a slot's memory is, on either side, and whether packets are elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    addresses: [u64; 4],
    in_place: bool,
}

impl Memory {
    fn of(slot: &Slot) -> Memory {
        let addresses =
            [slot.given().address(), slot.inside().address(), slot.answers().address(), slot.returned().address()];
        Memory { addresses, in_place: slot.place != 0 }
    }
}

/// A graph that can be launched. CUDA asks that one thread at a time uses it: this owns it.
struct Executable {
    memory: Memory,
    executable: Handle<CUgraphExec_st>,
    graph: Handle<CUgraph_st>,
    copies: Vec<Node>,
    /// What it copies now.
    sizes: Sizes,
    // Kept while the graph launches it.
    _kernel: Arc<Loaded>,
    context: Arc<Context>,
}

impl Executable {
    /// A graph over a slot's memory, as large as the part that is in it.
    fn new(kernel: &Arc<Loaded>, slot: &Slot, effects: KernelEffects, stream: &Stream) -> Result<Executable, Code> {
        let context = stream.context();
        // It may take memory of the device's.
        let (_quiet, driver) = (context.quiet()?, context.driver);
        let sizes = Sizes::of(slot, effects, slot.given_at.end);
        let mut made = Executable {
            memory: Memory::of(slot),
            executable: Handle(ptr::null_mut()),
            graph: Handle(ptr::null_mut()),
            copies: Vec::new(),
            sizes,
            _kernel: kernel.clone(),
            context: context.clone(),
        };
        // SAFETY: room for a graph.
        check(unsafe { (driver.cuGraphCreate)(&mut made.graph.0, 0) })?;
        let mut last = made.add_copy(slot, Copied::Given, None)?;
        let (mut inside, mut answers) = (slot.inside().address(), slot.answers().address());
        let mut maps = kernel.maps.addresses();
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut inside).cast(), (&raw mut answers).cast(), (&raw mut maps).cast()];
        let parameters = CUDA_KERNEL_NODE_PARAMS {
            func: kernel.kernel.function(),
            gridDimX: (PACKETS as u32).div_ceil(BLOCK),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: BLOCK,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: ptr::null_mut(),
        };
        let before = last;
        // SAFETY: room for a node; the graph was made above, and `before` is its node; the driver copies the arguments.
        // The kernel takes two addresses and those of the maps, and stays within the slot's memory (see `Pipelined::run`), which the head says
        // the size of.
        check(unsafe { (driver.cuGraphAddKernelNode)(&mut last, made.graph.get(), &before, 1, &parameters) })?;
        last = made.add_copy(slot, Copied::Answers, Some(last))?;
        if sizes.ends > 0 {
            last = made.add_copy(slot, Copied::Ends, Some(last))?;
        }
        if sizes.changed > 0 {
            made.add_copy(slot, Copied::Changed, Some(last))?;
        }
        // SAFETY: room for an executable graph; the graph was made above.
        check(unsafe { (driver.cuGraphInstantiateWithFlags)(&mut made.executable.0, made.graph.get(), 0) })?;
        // Now, and not with the first launch.
        // SAFETY: it was made above; the stream is alive.
        check(unsafe { (driver.cuGraphUpload)(made.executable.get(), stream.handle()) })?;
        Ok(made)
    }

    fn add_copy(&mut self, slot: &Slot, copy: Copied, before: Option<CUgraphNode>) -> Result<CUgraphNode, Code> {
        let (mut node, context) = (ptr::null_mut(), &self.context);
        let parameters = copy.parameters(slot, self.sizes);
        let before = before.as_slice();
        // SAFETY: room for a node; the graph was made by `new`, and so were the nodes before. The copy is within the
        // slot's memory.
        check(unsafe {
            (context.driver.cuGraphAddMemcpyNode)(
                &mut node,
                self.graph.get(),
                before.as_ptr(),
                before.len(),
                &parameters,
                context.handle(),
            )
        })?;
        self.copies.push(Node { node: Handle(node), copy });
        Ok(node)
    }

    /// Queues a launch that copies so much.
    fn launch(&mut self, slot: &Slot, sizes: Sizes, stream: &Stream) -> Result<(), Code> {
        let _here = self.context.enter()?;
        let driver = self.context.driver;
        if sizes != self.sizes {
            for Node { node, copy } in &self.copies {
                let parameters = copy.parameters(slot, sizes);
                // SAFETY: a node of the graph that this was made of, and a copy within the slot's memory, of the kind
                // that it was.
                check(unsafe {
                    (driver.cuGraphExecMemcpyNodeSetParams)(
                        self.executable.get(),
                        node.get(),
                        &parameters,
                        self.context.handle(),
                    )
                })?;
            }
            self.sizes = sizes;
        }
        // SAFETY: both are alive, and of the context that is current; the slot stays until the launch was waited for.
        check(unsafe { (driver.cuGraphLaunch)(self.executable.get(), stream.handle()) })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let (executable, graph) = (self.executable, self.graph);
        self.context.release(move |driver| {
            // SAFETY: they were made here, where they are not null, and no launch is queued: sessions see to that.
            unsafe {
                if !executable.get().is_null() {
                    (driver.cuGraphExecDestroy)(executable.get());
                }
                if !graph.get().is_null() {
                    (driver.cuGraphDestroy)(graph.get());
                }
            }
        });
    }
}
