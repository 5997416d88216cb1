//! `graph`: uploads, kernel and downloads as one CUDA graph, which is built once for each slot and
//! launched by one call. Only the sizes of its copies change from launch to launch; the kernel
//! reads the number of packets from the slot's header.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUgraph_st, CUgraphExec_st, CUgraphNode, CUgraphNode_st, CUmemorytype,
};
use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{
    ChunkView, DRAIN_TIMEOUT, KernelEffects, Launcher, NoVerdictMemory, VerdictColumns,
};
use portcullis_core::device::transfer_planner::BatchMemory;
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::slots::{DeviceArena, DeviceBuffers, HEADER_SIZE, Slot, SlotShape};
use crate::compile::{BLOCK_SIZE, LoadedProgram};
use crate::driver::context::{Context, Handle};
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::driver::stream::{Event, EventPool, Stream};
use crate::driver::{ErrorCode, check};
use crate::memory::SpanAddress;

/// Chunks of a batch launched before the first is waited for.
const MAX_CHUNKS_IN_FLIGHT: usize = 32;

/// Maximum number of packets in a slot; larger batches take several.
const PACKETS_PER_SLOT: usize = 16 << 10;

/// Maximum size in bytes of a slot's packets.
const BYTES_PER_SLOT: u64 = 64 << 20;

/// Launches a compiled filter through graphs.
pub(crate) struct GraphLauncher {
    effects: KernelEffects,
    cancel: CancelToken,
    /// Number of slots so far; each takes the next of the three streams.
    slots_made: AtomicUsize,
    kernel: Arc<LoadedProgram>,
    // Last: whatever was made on it is dropped first.
    gpu: Arc<Gpu>,
}

/// A slot and its graph.
pub(crate) struct GraphSlot {
    // First: the graph is dropped before the memory that it copies.
    graph: Option<ExecutableGraph>,
    slot: Slot,
    stream: Arc<Stream>,
    ended: EventPool,
    /// Completion of the last launch.
    last: Option<Arc<Event>>,
}

impl GraphLauncher {
    pub fn new(gpu: Arc<Gpu>, loaded: LoadedProgram, cancel: &CancelToken) -> GraphLauncher {
        let (effects, kernel) = (loaded.effects, Arc::new(loaded));
        GraphLauncher { effects, cancel: cancel.clone(), slots_made: AtomicUsize::new(0), kernel, gpu }
    }

    fn failed(&self, what: &str, code: ErrorCode) -> DeviceError {
        self.gpu.error(what, code)
    }
}

impl Launcher for GraphLauncher {
    type Buffers = GraphSlot;
    type Import = DeviceArena;
    type VerdictMemory = NoVerdictMemory;
    type Ticket = Arc<Event>;

    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || SpanAddress::of_span(span, self.id()).is_some()
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(DeviceArena::import_result(span, self.id()))
    }

    fn batch_memory(&mut self, batch: &Batch, _: bool) -> BatchMemory<DeviceArena> {
        DeviceArena::batch_memory(batch, self.id())
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        DeviceArena::chunk_limits(layout, PACKETS_PER_SLOT, BYTES_PER_SLOT)
    }

    fn max_chunks(&self) -> usize {
        MAX_CHUNKS_IN_FLIGHT
    }

    fn new_buffers(&self) -> GraphSlot {
        let streams = [&self.gpu.kernels, &self.gpu.uploads, &self.gpu.downloads];
        let stream = streams[self.slots_made.fetch_add(1, Ordering::Relaxed) % streams.len()].clone();
        GraphSlot { graph: None, slot: Slot::default(), stream, ended: EventPool::default(), last: None }
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_, DeviceArena>,
        effects: KernelEffects,
        buffers: &mut GraphSlot,
    ) -> Result<(), DeviceError> {
        let shape = SlotShape::of(chunk, effects);
        let _current = self.gpu.enter()?;
        let reserved = buffers.slot.ensure_capacity(&self.gpu.context, &shape, DeviceBuffers::RequestAndVerdicts);
        reserved.map_err(|code| self.gpu.allocation_error("a batch", code))?;
        // SAFETY: the launch that used the slot last was waited for (`Launcher`).
        unsafe { buffers.slot.write(chunk, effects) };
        buffers.slot.flush_remote_writes(&self.gpu)?;
        // A graph has fixed addresses, and either copies packets or does not.
        if buffers.graph.as_ref().is_none_or(|graph| graph.addresses != SlotAddresses::of(&buffers.slot)) {
            buffers.graph = None;
            let made = ExecutableGraph::new(&self.kernel, &buffers.slot, effects, &buffers.stream);
            buffers.graph = Some(made.map_err(|code| self.failed("building a graph failed", code))?);
        }
        Ok(())
    }

    fn launch(
        &mut self,
        _: &ChunkView<'_, DeviceArena>,
        effects: KernelEffects,
        buffers: &mut GraphSlot,
        first: usize,
        count: usize,
    ) -> Result<Arc<Event>, DeviceError> {
        let gpu = self.gpu.clone();
        let _current = gpu.enter()?;
        if first > 0 {
            // Wait before rewriting the header: the previous launch reads it.
            let last = buffers.last.take().expect("the chunk's first launch came before");
            self.wait(&last, &self.cancel.clone())?;
        }
        // SAFETY: as in `upload`, and the chunk's earlier launches were waited for.
        unsafe { buffers.slot.write_header(first, count) };
        // Later launches of a chunk upload the header only: the filter may have changed the rest.
        let sizes = CopySizes::of(
            &buffers.slot,
            effects,
            if first == 0 { buffers.slot.request_layout.end } else { HEADER_SIZE },
        );
        let graph = buffers.graph.as_mut().expect("made in `upload`");
        let launched = graph.launch(&buffers.slot, sizes, &buffers.stream);
        let ended = launched.and_then(|()| buffers.ended.record(&buffers.stream));
        let event = ended.map_err(|code| self.failed("launching the filter failed", code))?;
        buffers.last = Some(event.clone());
        Ok(event)
    }

    fn wait(&mut self, ticket: &Arc<Event>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        let _current = gpu.enter()?;
        poll::until(&gpu.id, cancel, || ticket.is_complete().map_err(|code| gpu.error("the filter failed", code)))
    }

    fn read_verdicts(
        &mut self,
        _: usize,
        buffers: &mut GraphSlot,
        columns: &mut VerdictColumns,
    ) -> Result<(), DeviceError> {
        // SAFETY: the launch was waited for (`Launcher`); the same below.
        unsafe { buffers.slot.append_verdicts(self.effects, columns) };
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        _: usize,
        buffers: &mut GraphSlot,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot.descriptors() });
        Ok(())
    }

    fn read_packets(
        &mut self,
        _: u64,
        buffers: &mut GraphSlot,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot.packet_bytes() });
        Ok(())
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.kernel.maps.read(&self.gpu, map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.kernel.maps.write(&self.gpu, map, at, words)
    }

    fn wait_idle(&mut self) {
        self.gpu.wait_idle();
    }

    fn try_drain(&mut self, _: &[&Arc<Event>], _: bool) -> bool {
        poll::within(DRAIN_TIMEOUT, None, || self.gpu.is_idle())
    }

    fn keep_alive(&mut self, resources: impl Send + 'static) {
        self.gpu.abandon(resources, || ());
    }
}

/// Sizes in bytes of a launch's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CopySizes {
    request: usize,
    answers: usize,
    /// 0 if the filter does not change descriptors or packets, or if packets are not in the slot.
    descriptors: usize,
    packets: usize,
}

impl CopySizes {
    fn of(slot: &Slot, effects: KernelEffects, request: usize) -> CopySizes {
        // CUDA rejects copies of 0 bytes: copy one byte, which is ignored, if there are none.
        let size = |wanted: bool, bytes: usize| if wanted { bytes.max(1) } else { 0 };
        CopySizes {
            request,
            answers: slot.response_layout.verdicts_and_targets_size(),
            descriptors: size(effects.resizes_packets, slot.packets * 8),
            packets: size(effects.writes_packets && slot.arena_address == 0, slot.bytes),
        }
    }
}

/// A copy node of a graph.
#[derive(Debug, Clone, Copy)]
struct CopyNode {
    node: Handle<CUgraphNode_st>,
    copy: CopyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyKind {
    Request,
    Answers,
    Descriptors,
    Packets,
}

impl CopyKind {
    fn parameters(self, slot: &Slot, sizes: CopySizes) -> CUDA_MEMCPY3D {
        let (request, response) = (slot.request_layout, slot.response_layout);
        let (device_request, answers) = (slot.device_request().address(), slot.device_verdicts().address());
        match self {
            CopyKind::Request => copy_in(slot.request().as_ptr(), device_request, sizes.request),
            CopyKind::Answers => copy_back(answers, slot.response().as_ptr(), sizes.answers),
            CopyKind::Descriptors => copy_back(
                device_request + HEADER_SIZE as u64,
                slot.response().as_ptr().wrapping_add(response.descriptors),
                sizes.descriptors,
            ),
            CopyKind::Packets => copy_back(
                device_request + request.packets as u64,
                slot.response().as_ptr().wrapping_add(response.packets),
                sizes.packets,
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
        ..one_row(bytes)
    }
}

fn copy_back(from: u64, to: *mut u8, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: from,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: to.cast(),
        ..one_row(bytes)
    }
}

/// A copy of one row; the caller fills in source and destination.
fn one_row(bytes: usize) -> CUDA_MEMCPY3D {
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

/// The addresses that a slot's graph was built for, and whether packets are in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotAddresses {
    addresses: [u64; 4],
    in_place: bool,
}

impl SlotAddresses {
    fn of(slot: &Slot) -> SlotAddresses {
        let addresses = [
            slot.request().address(),
            slot.device_request().address(),
            slot.device_verdicts().address(),
            slot.response().address(),
        ];
        SlotAddresses { addresses, in_place: slot.arena_address != 0 }
    }
}

/// An executable graph. CUDA requires that one thread at a time uses it, which ownership ensures.
struct ExecutableGraph {
    addresses: SlotAddresses,
    executable: Handle<CUgraphExec_st>,
    graph: Handle<CUgraph_st>,
    copies: Vec<CopyNode>,
    /// The sizes that the copy nodes have now.
    sizes: CopySizes,
    // Must outlive the graph, whose kernel node refers to it.
    _kernel: Arc<LoadedProgram>,
    context: Arc<Context>,
}

impl ExecutableGraph {
    /// Builds a graph over a slot's memory, with copies of the sizes of the chunk that it holds.
    fn new(
        kernel: &Arc<LoadedProgram>,
        slot: &Slot,
        effects: KernelEffects,
        stream: &Stream,
    ) -> Result<ExecutableGraph, ErrorCode> {
        let context = stream.context();
        // Instantiating and uploading may allocate device memory.
        let (_quiescent, driver) = (context.quiesce()?, context.driver);
        let sizes = CopySizes::of(slot, effects, slot.request_layout.end);
        let mut made = ExecutableGraph {
            addresses: SlotAddresses::of(slot),
            executable: Handle(ptr::null_mut()),
            graph: Handle(ptr::null_mut()),
            copies: Vec::new(),
            sizes,
            _kernel: kernel.clone(),
            context: context.clone(),
        };
        // SAFETY: the pointer outlives the call.
        check(unsafe { (driver.cuGraphCreate)(&mut made.graph.0, 0) })?;
        let mut last = made.add_copy(slot, CopyKind::Request, None)?;
        let (mut device_request, mut answers) = (slot.device_request().address(), slot.device_verdicts().address());
        let mut maps = kernel.maps.addresses();
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut device_request).cast(), (&raw mut answers).cast(), (&raw mut maps).cast()];
        let parameters = CUDA_KERNEL_NODE_PARAMS {
            func: kernel.kernel.function(),
            gridDimX: (PACKETS_PER_SLOT as u32).div_ceil(BLOCK_SIZE),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: BLOCK_SIZE,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: ptr::null_mut(),
        };
        let before = last;
        // SAFETY: the pointers outlive the call; `before` is a node of the graph created above; the
        // driver copies the arguments. The kernel takes two addresses and those of the maps, and
        // stays within the slot's memory (see `PipelinedLauncher::launch_kernel`), as its header
        // describes it.
        check(unsafe { (driver.cuGraphAddKernelNode)(&mut last, made.graph.get(), &before, 1, &parameters) })?;
        last = made.add_copy(slot, CopyKind::Answers, Some(last))?;
        if sizes.descriptors > 0 {
            last = made.add_copy(slot, CopyKind::Descriptors, Some(last))?;
        }
        if sizes.packets > 0 {
            made.add_copy(slot, CopyKind::Packets, Some(last))?;
        }
        // SAFETY: the pointer outlives the call; the graph was created above.
        check(unsafe { (driver.cuGraphInstantiateWithFlags)(&mut made.executable.0, made.graph.get(), 0) })?;
        // Upload now rather than with the first launch.
        // SAFETY: it was instantiated above; the stream is alive.
        check(unsafe { (driver.cuGraphUpload)(made.executable.get(), stream.handle()) })?;
        Ok(made)
    }

    fn add_copy(&mut self, slot: &Slot, copy: CopyKind, before: Option<CUgraphNode>) -> Result<CUgraphNode, ErrorCode> {
        let (mut node, context) = (ptr::null_mut(), &self.context);
        let parameters = copy.parameters(slot, self.sizes);
        let before = before.as_slice();
        // SAFETY: the pointers outlive the call; `new` created the graph and the nodes before. The
        // copy stays within the slot's memory.
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
        self.copies.push(CopyNode { node: Handle(node), copy });
        Ok(node)
    }

    /// Queues a launch with copies of these sizes.
    fn launch(&mut self, slot: &Slot, sizes: CopySizes, stream: &Stream) -> Result<(), ErrorCode> {
        let _current = self.context.enter()?;
        let driver = self.context.driver;
        if sizes != self.sizes {
            for CopyNode { node, copy } in &self.copies {
                let parameters = copy.parameters(slot, sizes);
                // SAFETY: a node of the graph that this was instantiated from; the copy stays
                // within the slot's memory and has the same memory types.
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
        // SAFETY: both are alive, and belong to the current context; the slot exists until the
        // launch was waited for.
        check(unsafe { (driver.cuGraphLaunch)(self.executable.get(), stream.handle()) })
    }
}

impl Drop for ExecutableGraph {
    fn drop(&mut self) {
        let (executable, graph) = (self.executable, self.graph);
        self.context.release_when_quiescent(move |driver| {
            // SAFETY: they were created here unless null, and sessions release them only when no
            // launch is queued.
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
