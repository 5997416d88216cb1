//! `waitvalue`: kernels are queued ahead of their batches, each after a stream wait for its
//! request's lap (`cuStreamWaitValue32`). The host posts a batch by writing to memory, and the
//! kernel answers by writing to memory; no driver call lies between. Further kernels are queued
//! while the device filters, several at a time, so that the stream never runs dry: each queued
//! command is a submission that the device has to fetch, which delays kernels if it comes in
//! between.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::offload::{DRAIN_TIMEOUT, DriverThread, LAUNCH_TIMEOUT};
use portcullis_core::device::{CancelToken, DeviceError};

use super::mailbox::{MailboxKernel, wait_for_launch_permit};
use super::queued::BlockCounters;
use super::request::{Request, RequestRing};
use crate::compile::{BLOCK_SIZE, Kernel, LoadedProgram};
use crate::driver::context::ResidentKernels;
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::driver::{ErrorCode, check};
use crate::maps::Maps;

/// Maximum number of kernels queued ahead; also the ring's capacity.
const QUEUE_DEPTH: u64 = 32;

/// Number of kernels queued ahead below which more are queued.
const MIN_QUEUED: u64 = QUEUE_DEPTH / 2;

/// Maximum number of blocks of a launch; larger requests are covered by a grid-stride loop.
const MAX_BLOCKS: u32 = 32;

/// How long kernels wait for a batch before they are drained: a stream that waits blocks anything
/// else in the process that synchronises with the device.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of packets in a slot; larger batches take several.
const SLOT_PACKETS: usize = (MAX_BLOCKS * BLOCK_SIZE) as usize;

/// Maximum size in bytes of a slot's packets.
const SLOT_BYTES: u64 = 64 << 20;

/// `CU_STREAM_WAIT_VALUE_GEQ`: waits until the word in memory is at least the value, compared by
/// the sign of the wrapping difference.
const WAIT_GEQ: u32 = 0;

/// The stream with its queued kernels.
pub(crate) struct QueuedKernels {
    state: Mutex<State>,
    ring: RequestRing,
    counters: BlockCounters,
    blocks: u32,
    maps: Maps,
    kernel: Kernel,
    // Last: whatever was made on it is dropped first.
    gpu: Arc<Gpu>,
}

#[derive(Default)]
struct State {
    /// Number of the next request to be posted, and of the next kernel to be queued.
    next: u64,
    queued: u64,
    /// When a batch was posted last.
    last_post: Option<Instant>,
    /// Set once nothing is posted any more.
    closed: bool,
}

impl QueuedKernels {
    pub fn new(gpu: Arc<Gpu>, loaded: LoadedProgram) -> Result<Arc<QueuedKernels>, DeviceError> {
        let LoadedProgram { kernel, maps, .. } = loaded;
        let failed = |code| gpu.allocation_error("a queue", code);
        let ring = RequestRing::new(&gpu.context, QUEUE_DEPTH, 0).map_err(failed)?;
        let counters = BlockCounters::new(&gpu, QUEUE_DEPTH).map_err(failed)?;
        let blocks = (gpu.multiprocessors * kernel.blocks_per_multiprocessor().map_err(failed)?).min(MAX_BLOCKS);
        let queue = Arc::new(QueuedKernels { state: Mutex::default(), ring, counters, blocks, maps, kernel, gpu });
        let resident: Arc<dyn ResidentKernels> = queue.clone();
        queue.gpu.context.register_resident(Arc::downgrade(&resident));
        let watched = Arc::downgrade(&queue);
        let watch = move || {
            loop {
                let counted = DriverThread::new();
                let Some(queue) = watched.upgrade() else { return };
                queue.drain_when_idle();
                // It may be the last reference, which releases memory.
                drop(queue);
                drop(counted);
                std::thread::sleep(IDLE_TIMEOUT / 4);
            }
        };
        // Without the thread, kernels stay queued as long as the session exists.
        let _ = std::thread::Builder::new().name("idle kernels".into()).spawn(watch);
        Ok(queue)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the kernel for a request.
    fn launch(&self, number: u64) -> Result<(), ErrorCode> {
        let ring = &self.ring;
        let mut request = ring.request_address(number);
        let (mut answer, mut counter) = (ring.answer_address(number), self.counters.address(ring.index(number)));
        let mut maps = self.maps.addresses();
        let addresses = [&mut request, &mut answer, &mut counter].map(|address| (address as *mut u64).cast());
        let mut arguments = [addresses[0], addresses[1], addresses[2], (&raw mut maps).cast()];
        // SAFETY: these are the arguments of `pc_queued`. It stays within the slot that the request
        // names (see `PipelinedLauncher::launch_kernel`), which exists until the request is
        // answered. A zeroed request has no packets.
        unsafe { self.kernel.launch(self.blocks, &mut arguments, &self.gpu.kernels) }
    }

    /// Queues kernels until [`QUEUE_DEPTH`] of them wait, if fewer than [`MIN_QUEUED`] do. The
    /// caller holds a launch permit.
    fn fill_queue(&self, state: &mut State) -> Result<(), ErrorCode> {
        if state.queued >= state.next + MIN_QUEUED {
            return Ok(());
        }
        let (context, stream) = (&self.gpu.context, &self.gpu.kernels);
        let wait = context.driver.cuStreamWaitValue32_v2.ok_or(ErrorCode::NOT_SUPPORTED)?;
        let _current = context.enter()?;
        while state.queued < state.next + QUEUE_DEPTH {
            let (number, lap) = (state.queued, self.ring.lap(state.queued));
            // SAFETY: the address is that of a word in mapped pinned memory, which exists until the
            // stream is empty: the session drains it before it drops anything.
            check(unsafe { wait(stream.handle(), self.ring.lap_address(number), lap, WAIT_GEQ) })?;
            // From here on the request must be posted, even if a call below fails.
            state.queued += 1;
            self.launch(number)?;
        }
        Ok(())
    }

    fn drain_when_idle(&self) {
        let is_idle = |state: &State| {
            let answered = state.next.checked_sub(1).is_none_or(|last| self.ring.is_answered(last));
            answered && state.last_post.is_some_and(|posted| posted.elapsed() >= IDLE_TIMEOUT)
        };
        if is_idle(&self.state()) && !self.gpu.context.is_abandoned() {
            poll::within(DRAIN_TIMEOUT, None, || {
                let mut state = self.state();
                // A batch may have been posted meanwhile.
                !is_idle(&state) || self.try_drain(&mut state)
            });
        }
    }

    /// Posts empty requests to the waiting kernels, as far as the ring has room; returns whether
    /// the stream is empty.
    fn try_drain(&self, state: &mut State) -> bool {
        if self.gpu.kernels.is_idle().is_err() {
            // A context that has failed runs nothing, so nothing more is answered.
            state.next = state.queued;
        }
        while state.next < state.queued && self.ring.is_free_for(state.next) {
            self.ring.post(state.next, &Request::default());
            state.next += 1;
        }
        state.next == state.queued && self.gpu.is_idle()
    }
}

impl ResidentKernels for QueuedKernels {
    fn try_leave(&self) -> bool {
        self.try_drain(&mut self.state())
    }
}

impl MailboxKernel for QueuedKernels {
    const SLOT_LIMITS: (usize, u64) = (SLOT_PACKETS, SLOT_BYTES);

    fn max_chunks(&self) -> usize {
        QUEUE_DEPTH as usize
    }

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn maps(&self) -> &Maps {
        &self.maps
    }

    fn ring(&self) -> &RequestRing {
        &self.ring
    }

    fn post(&self, request: &Request, cancel: &CancelToken) -> Result<u64, DeviceError> {
        let gpu = &*self.gpu;
        let (_sending, mut state) = loop {
            if self.state().closed {
                return Err(gpu.failure("its kernels were given up after an error".into()));
            }
            poll::until(&gpu.id, cancel, || {
                let free = self.ring.is_free_for(self.state().next);
                if !free {
                    gpu.kernels.is_idle().map_err(|code| gpu.error("the filter failed", code))?;
                }
                Ok(free)
            })?;
            let (sending, state) = (wait_for_launch_permit(gpu, cancel)?, self.state());
            // Draining may have posted empty requests meanwhile.
            if self.ring.is_free_for(state.next) {
                break (sending, state);
            }
        };
        let number = state.next;
        self.ring.post(number, request);
        state.next += 1;
        state.last_post = Some(Instant::now());
        self.fill_queue(&mut state).map_err(|code| gpu.error("queuing commands failed", code))?;
        Ok(number)
    }

    fn close(&self) {
        self.state().closed = true;
    }

    /// Keeps posting empty requests as the ring gets room: otherwise the queued kernels would wait
    /// forever.
    fn abandon(self: &Arc<Self>, resources: impl Send + 'static) {
        let queue = self.clone();
        self.gpu.abandon(resources, move || while !poll::within(LAUNCH_TIMEOUT, None, || queue.try_leave()) {});
    }
}
