//! `persistent`: one kernel stays on the device and polls a ring of launch requests in host memory.
//! No driver call lies between posting a batch and its verdicts, which minimises the latency of
//! small batches.
//!
//! A small batch is one request, which one block answers; the packets of a larger one are split
//! into requests for several blocks. The kernel exits by itself after [`KERNEL_LIFETIME`], between
//! two requests, whatever the host does: so a driver's watchdog never kills it, and it does not
//! outlive a host that has died. The host launches it again when it finds that it has left with
//! work pending; requests not yet answered are answered by the next launch.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portcullis_core::device::{CancelToken, DeviceError};

use super::mailbox::{MailboxKernel, wait_for_launch_permit};
use super::request::{Request, RequestRing};
use crate::compile::{Kernel, LoadedProgram};
use crate::driver::ErrorCode;
use crate::driver::context::ResidentKernels;
use crate::driver::gpu::Gpu;
use crate::maps::Maps;
use crate::memory::{Buffer, DeviceMemory};

/// How long one launch of the kernel stays on the device.
const KERNEL_LIFETIME: Duration = Duration::from_secs(1);

/// Maximum number of blocks of the kernel: each poll is a read over the bus.
const MAX_BLOCKS: u32 = 32;

/// The kernel takes at most this fraction of the blocks that fit on the device.
const OCCUPANCY_DIVISOR: u32 = 4;

/// Ring capacity per block.
const REQUESTS_PER_BLOCK: u64 = 8;

/// Chunks of a batch posted before the first is answered: several for each block.
const MAX_CHUNKS_IN_FLIGHT: usize = 2 * MAX_BLOCKS as usize;

/// Number of packets in a request up to which a batch is not split among blocks.
const MIN_REQUEST_PACKETS: usize = 128;

/// Maximum number of packets in a slot, and their maximum size in bytes.
const SLOT_PACKETS: usize = 4 << 10;
const SLOT_BYTES: u64 = 16 << 20;

/// Values of the stop flag: exit once the pending requests are answered, or as soon as possible,
/// leaving the response incomplete. `persistent.cu` has the same.
const STOP_BETWEEN_REQUESTS: u32 = 1;
const STOP_NOW: u32 = 2;

/// The kernel, and the memory that it shares with the host.
pub(crate) struct PersistentKernel {
    state: Mutex<State>,
    ring: RequestRing,
    /// Device-only words: requests answered by each block, then the launch whose blocks are
    /// leaving.
    served: DeviceMemory,
    blocks: u32,
    maps: Maps,
    kernel: Kernel,
    // Last: whatever was made on it is dropped first.
    gpu: Arc<Gpu>,
}

#[derive(Default)]
struct State {
    /// Number of the next request.
    next: u64,
    /// Number of launches so far, and whether the last may still be on the device.
    starts: u32,
    running: bool,
    /// Set once nothing is posted any more.
    closed: bool,
}

/// The kernel's argument, `pc_ring` in `persistent.cu`.
#[repr(C)]
struct KernelArgument {
    requests: u64,
    answers: u64,
    stop: u64,
    left: u64,
    served: u64,
    leaving: u64,
    life: u64,
    size: u32,
    start: u32,
}

impl PersistentKernel {
    pub fn new(gpu: Arc<Gpu>, loaded: LoadedProgram) -> Result<Arc<PersistentKernel>, DeviceError> {
        let LoadedProgram { kernel, maps, .. } = loaded;
        let failed = |code| gpu.allocation_error("a ring", code);
        // Not all blocks that fit: the kernels of other sessions need room beside these.
        let blocks = (gpu.multiprocessors * kernel.blocks_per_multiprocessor().map_err(failed)? / OCCUPANCY_DIVISOR)
            .clamp(1, MAX_BLOCKS);
        // Clear the memory within the period too: that may wait for the device.
        let quiescent = gpu.context.quiesce().map_err(failed)?;
        // Extra words: the stop flag, and for each block the last launch in which it has left.
        let ring = RequestRing::new(&gpu.context, u64::from(blocks) * REQUESTS_PER_BLOCK, 1 + blocks as usize)
            .map_err(failed)?;
        let bytes = (blocks as usize + 1) * 8;
        let served = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
        served.clear(&gpu.kernels, bytes).map_err(failed)?;
        drop(quiescent);
        let kernel = Arc::new(PersistentKernel { state: Mutex::default(), ring, served, blocks, maps, kernel, gpu });
        let resident: Arc<dyn ResidentKernels> = kernel.clone();
        kernel.gpu.context.register_resident(Arc::downgrade(&resident));
        Ok(kernel)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_stop_flag(&self, flag: u32) {
        self.ring.extra_word(0).store(flag, Ordering::Release);
    }

    /// Whether the block that a request belongs to has left, or was never launched.
    fn has_left(&self, state: &State, number: u64) -> bool {
        let block = (number % u64::from(self.blocks)) as usize;
        !state.running || self.ring.extra_word(1 + block).load(Ordering::Acquire) == state.starts
    }

    /// Launches the kernel if the block that a request belongs to has left. The caller holds a
    /// launch permit.
    fn start_if_left(&self, state: &mut State, number: u64) -> Result<(), ErrorCode> {
        if state.closed || !self.has_left(state, number) || self.ring.is_answered(number) {
            return Ok(());
        }
        // A kernel that was told to leave, too late for whoever waited, may have left since.
        self.set_stop_flag(0);
        state.starts = state.starts.wrapping_add(1).max(1);
        let words = self.ring.extra_words_address();
        let mut argument = KernelArgument {
            requests: self.ring.request_address(0),
            answers: self.ring.answer_address(0),
            stop: words,
            left: words + 4,
            served: self.served.address(),
            leaving: self.served.address() + u64::from(self.blocks) * 8,
            life: KERNEL_LIFETIME.as_nanos() as u64,
            size: self.ring.capacity() as u32,
            start: state.starts,
        };
        let mut maps = self.maps.addresses();
        let mut arguments: [*mut c_void; 2] = [(&raw mut argument).cast(), (&raw mut maps).cast()];
        // SAFETY: these are the kernel's two arguments. It stays within the ring, and within the
        // slots that requests name (see `PipelinedLauncher::launch_kernel`), all of which exist
        // until it was seen to be idle. A launch that is still leaving comes first in the same
        // stream.
        unsafe { self.kernel.launch(self.blocks, &mut arguments, &self.gpu.kernels)? };
        state.running = true;
        Ok(())
    }
}

/// Returns the number of the next request, or an error if the mailbox is closed.
fn next_number(gpu: &Gpu, state: &State) -> Result<u64, DeviceError> {
    if state.closed { Err(gpu.failure("its kernels were given up after an error".into())) } else { Ok(state.next) }
}

impl ResidentKernels for PersistentKernel {
    fn try_leave(&self) -> bool {
        let mut state = self.state();
        if state.running {
            self.set_stop_flag(if state.closed { STOP_NOW } else { STOP_BETWEEN_REQUESTS });
        }
        let left = self.gpu.is_idle();
        if left {
            self.set_stop_flag(0);
            state.running = false;
        }
        left
    }
}

impl MailboxKernel for PersistentKernel {
    const SLOT_LIMITS: (usize, u64) = (SLOT_PACKETS, SLOT_BYTES);

    fn request_packets(&self, packets: usize) -> usize {
        let per_block = packets.div_ceil(self.blocks as usize).next_multiple_of(4);
        per_block.clamp(MIN_REQUEST_PACKETS, SLOT_PACKETS)
    }

    fn max_chunks(&self) -> usize {
        MAX_CHUNKS_IN_FLIGHT
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
        let number = next_number(gpu, &self.state())?;
        if let Some(before) = number.checked_sub(self.ring.capacity()) {
            self.wait_for_answer(before, cancel)?;
        }
        let _sending = wait_for_launch_permit(gpu, cancel)?;
        let mut state = self.state();
        next_number(gpu, &state)?;
        self.ring.post(number, request);
        state.next += 1;
        self.start_if_left(&mut state, number).map_err(|code| gpu.error("launching the filter failed", code))?;
        Ok(number)
    }

    fn keep_running(&self, number: u64) -> Result<(), DeviceError> {
        // During a quiescent period do nothing: the caller polls again.
        let Some(_sending) = self.gpu.context.try_launch_permit() else { return Ok(()) };
        let started = self.start_if_left(&mut self.state(), number);
        started.map_err(|code| self.gpu.error("launching the filter failed", code))
    }

    fn close(&self) {
        self.state().closed = true;
    }

    fn abandon(self: &Arc<Self>, resources: impl Send + 'static) {
        self.gpu.abandon(resources, || ());
    }
}
