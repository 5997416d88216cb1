//! `graph`: a CUDA graph for each request of a ring, built once and launched by one call without
//! arguments. The kernel reads from the request what it filters, and copies packets and results
//! over the bus itself: copy nodes would each be a command that the next waits for.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS, CUgraph_st, CUgraphExec_st};
use portcullis_core::device::{CancelToken, DeviceError};

use super::mailbox::MailboxKernel;
use super::queued::BlockCounters;
use super::request::{Request, RequestRing};
use crate::compile::{BLOCK_SIZE, LoadedProgram};
use crate::driver::context::{Context, Handle, ResidentKernels};
use crate::driver::gpu::Gpu;
use crate::driver::stream::Stream;
use crate::driver::{ErrorCode, check};
use crate::maps::Maps;

/// Number of graphs; also the ring's capacity.
const GRAPHS: u64 = 24;

/// Blocks of a launch; larger requests are covered by a grid-stride loop.
const BLOCKS: u32 = 32;

/// Maximum number of packets in a slot; larger batches take several.
const SLOT_PACKETS: usize = (BLOCKS * BLOCK_SIZE) as usize;

/// Maximum size in bytes of a slot's packets.
const SLOT_BYTES: u64 = 64 << 20;

/// The graphs of a session.
pub(crate) struct GraphKernels {
    // First: graphs are dropped before the memory that they name.
    graphs: Vec<ExecutableGraph>,
    state: Mutex<State>,
    ring: RequestRing,
    _counters: BlockCounters,
    loaded: LoadedProgram,
    // Last: whatever was made on it is dropped first.
    gpu: Arc<Gpu>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next request.
    next: u64,
    /// Set once nothing is posted any more.
    closed: bool,
}

impl GraphKernels {
    pub fn new(gpu: Arc<Gpu>, loaded: LoadedProgram) -> Result<Arc<GraphKernels>, DeviceError> {
        let failed = |code| gpu.allocation_error("graphs", code);
        // One period for all: instantiating and uploading may allocate device memory.
        let quiescent = gpu.context.quiesce().map_err(failed)?;
        let ring = RequestRing::new(&gpu.context, GRAPHS, 0).map_err(failed)?;
        let counters = BlockCounters::new(&gpu, GRAPHS).map_err(failed)?;
        // The other streams start after the counters are cleared.
        let cleared = gpu.kernels.record_event().map_err(failed)?;
        for stream in [&gpu.uploads, &gpu.downloads] {
            stream.wait_for(&cleared).map_err(failed)?;
        }
        let graph = |number| {
            let addresses =
                [ring.request_address(number), ring.answer_address(number), counters.address(ring.index(number))];
            ExecutableGraph::new(&loaded, addresses, stream_of(&gpu, number))
        };
        let graphs = (0..GRAPHS).map(graph).collect::<Result<_, _>>();
        drop(quiescent);
        let graphs = graphs.map_err(|code| gpu.error("building a graph failed", code))?;
        Ok(Arc::new(GraphKernels { graphs, state: Mutex::default(), ring, _counters: counters, loaded, gpu }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream of a request: graphs in different streams run concurrently.
fn stream_of(gpu: &Gpu, number: u64) -> &Arc<Stream> {
    [&gpu.kernels, &gpu.uploads, &gpu.downloads][(number % GRAPHS % 3) as usize]
}

impl ResidentKernels for GraphKernels {
    fn try_leave(&self) -> bool {
        self.gpu.is_idle()
    }
}

impl MailboxKernel for GraphKernels {
    const SLOT_LIMITS: (usize, u64) = (SLOT_PACKETS, SLOT_BYTES);

    fn max_chunks(&self) -> usize {
        GRAPHS as usize
    }

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn maps(&self) -> &Maps {
        &self.loaded.maps
    }

    fn ring(&self) -> &RequestRing {
        &self.ring
    }

    fn post(&self, request: &Request, cancel: &CancelToken) -> Result<u64, DeviceError> {
        let mut state = self.state();
        if state.closed {
            return Err(self.gpu.failure("its kernels were given up after an error".into()));
        }
        let number = state.next;
        if let Some(before) = number.checked_sub(GRAPHS) {
            self.wait_for_answer(before, cancel)?;
        }
        self.ring.post(number, request);
        state.next += 1;
        let graph = &self.graphs[self.ring.index(number)];
        let launched = graph.launch(stream_of(&self.gpu, number));
        launched.map_err(|code| self.gpu.error("launching the filter failed", code))?;
        Ok(number)
    }

    fn close(&self) {
        self.state().closed = true;
    }

    fn abandon(self: &Arc<Self>, resources: impl Send + 'static) {
        self.gpu.abandon(resources, || ());
    }
}

/// An executable graph of one kernel. One thread at a time launches it, as CUDA requires.
struct ExecutableGraph {
    executable: Handle<CUgraphExec_st>,
    graph: Handle<CUgraph_st>,
    context: Arc<Context>,
}

impl ExecutableGraph {
    /// Builds the graph of a kernel over the request, the answer and the counter at these
    /// addresses.
    fn new(loaded: &LoadedProgram, mut addresses: [u64; 3], stream: &Stream) -> Result<ExecutableGraph, ErrorCode> {
        let context = stream.context();
        let (_quiescent, driver) = (context.quiesce()?, context.driver);
        let (executable, graph) = (Handle(ptr::null_mut()), Handle(ptr::null_mut()));
        let mut made = ExecutableGraph { executable, graph, context: context.clone() };
        // SAFETY: the pointer outlives the call.
        check(unsafe { (driver.cuGraphCreate)(&mut made.graph.0, 0) })?;
        let mut maps = loaded.maps.addresses();
        let [request, answer, counter] = addresses.each_mut().map(|address| (address as *mut u64).cast());
        let mut arguments: [*mut c_void; 4] = [request, answer, counter, (&raw mut maps).cast()];
        let parameters = CUDA_KERNEL_NODE_PARAMS {
            func: loaded.kernel.function(),
            gridDimX: BLOCKS,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: BLOCK_SIZE,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: ptr::null_mut(),
        };
        let mut node = ptr::null_mut();
        // SAFETY: the pointers outlive the call; the driver copies the arguments, which are those
        // of `pc_queued`. It stays within the slot that the request names (see
        // `PipelinedLauncher::launch_kernel`), which exists until the request is answered.
        check(unsafe { (driver.cuGraphAddKernelNode)(&mut node, made.graph.get(), ptr::null(), 0, &parameters) })?;
        // SAFETY: the pointer outlives the call; the graph was created above.
        check(unsafe { (driver.cuGraphInstantiateWithFlags)(&mut made.executable.0, made.graph.get(), 0) })?;
        // Upload now rather than with the first launch.
        // SAFETY: it was instantiated above; the stream is alive.
        check(unsafe { (driver.cuGraphUpload)(made.executable.get(), stream.handle()) })?;
        Ok(made)
    }

    /// Queues a launch.
    fn launch(&self, stream: &Stream) -> Result<(), ErrorCode> {
        let _current = self.context.enter()?;
        // SAFETY: both are alive, and belong to the current context.
        check(unsafe { (self.context.driver.cuGraphLaunch)(self.executable.get(), stream.handle()) })
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
