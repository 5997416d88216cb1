//! `waitvalue`: kernels that are queued ahead of their batches, each behind a wait for its entry's turn, and
//! each followed by the stream's own answer. A batch is posted by writing to memory; no call of the driver is
//! between it and its kernel. Further kernels are queued behind each that was posted, so the stream never runs
//! dry.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::offload::{DRAIN_TIMEOUT, LAUNCH_TIMEOUT};
use portcullis_core::device::{CancelToken, DeviceError};

use super::entries::{Answering, Entries, Entry, sending};
use crate::api::{Code, check};
use crate::compile::{BLOCK, Kernel, Loaded};
use crate::context::Resident;
use crate::device::Gpu;
use crate::maps::Maps;
use crate::wait;

/// Kernels that are queued ahead.
const AHEAD: u64 = 32;

/// Blocks of a kernel, at most; each takes packet after packet where there are more.
const MOST_BLOCKS: u32 = 64;

/// How long kernels wait for a batch that does not come. Then they are let go until there is one: a stream that waits
/// is in the way of whoever else in the process has the driver wait for the device.
const IDLE: Duration = Duration::from_secs(1);

/// Packets in a slot; larger batches take several.
const PACKETS: usize = (MOST_BLOCKS * BLOCK) as usize;

/// Bytes of a slot's packets.
const BYTES: u64 = 64 << 20;

/// `CU_STREAM_WAIT_VALUE_GEQ`: until the value, less that in memory, is not above 0, as the difference of two
/// words with a sign.
const UNTIL_REACHED: u32 = 0;

/// `CU_STREAM_WRITE_VALUE_DEFAULT`: what was written before is seen by who sees the value.
const AFTER_ALL_ELSE: u32 = 0;

/// The stream with its kernels.
pub(crate) struct Queue {
    state: Mutex<State>,
    entries: Entries,
    blocks: u32,
    maps: Maps,
    kernel: Kernel,
    // Last: what was made on it goes first.
    gpu: Arc<Gpu>,
}

#[derive(Default)]
struct State {
    /// The number of the entry that is posted next, and of the kernel that is queued next.
    next: u64,
    queued: u64,
    /// When one was posted last.
    posted: Option<Instant>,
    /// Nothing is posted any more.
    closed: bool,
}

impl Queue {
    pub fn new(gpu: Arc<Gpu>, loaded: Loaded) -> Result<Arc<Queue>, DeviceError> {
        let Loaded { kernel, maps, .. } = loaded;
        let failed = |code| gpu.no_room("a queue", code);
        let entries = Entries::new(&gpu.context, AHEAD, 0).map_err(failed)?;
        let blocks = (gpu.processors * kernel.blocks_each().map_err(failed)?).min(MOST_BLOCKS);
        let queue = Arc::new(Queue { state: Mutex::default(), entries, blocks, maps, kernel, gpu });
        let resident: Arc<dyn Resident> = queue.clone();
        queue.gpu.context.has_resident(Arc::downgrade(&resident));
        let watched = Arc::downgrade(&queue);
        let watch = move || {
            while let Some(queue) = watched.upgrade() {
                queue.let_go_when_idle();
                drop(queue);
                std::thread::sleep(IDLE / 4);
            }
        };
        // Without a thread they wait for as long as the session is there.
        let _ = std::thread::Builder::new().name("idle kernels".into()).spawn(watch);
        Ok(queue)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the kernel over an entry.
    fn launch(&self, number: u64) -> Result<(), Code> {
        let mut entry = self.entries.address(number);
        let mut maps = self.maps.addresses();
        // SAFETY: the kernel takes the address of an entry and those of the maps, and stays within the slot's memory that the entry
        // names (see `Pipelined::run`), which stays until the entry was answered. An entry of zeros has no packet.
        unsafe {
            self.kernel.launch(self.blocks, &mut [(&raw mut entry).cast(), (&raw mut maps).cast()], &self.gpu.kernels)
        }
    }

    /// Queues kernels until as many wait as may. The time is not quiet.
    fn queue(&self, state: &mut State) -> Result<(), Code> {
        let (context, stream) = (&self.gpu.context, &self.gpu.kernels);
        let driver = context.driver;
        let functions = driver.cuStreamWaitValue32_v2.zip(driver.cuStreamWriteValue32_v2);
        let (wait, write) = functions.ok_or(Code::NOT_SUPPORTED)?;
        let _here = context.enter()?;
        while state.queued < state.next + AHEAD {
            let (number, turn) = (state.queued, self.entries.turn(state.queued));
            // SAFETY: the addresses are those of words in pinned memory that is mapped, which stays until the stream is
            // empty: `rest` sees to that before anything goes.
            check(unsafe { wait(stream.handle(), self.entries.turn_address(number), turn, UNTIL_REACHED) })?;
            // From here on somebody has to post it, whatever becomes of the rest.
            state.queued += 1;
            self.launch(number)?;
            // SAFETY: as above.
            check(unsafe { write(stream.handle(), self.entries.answer_address(number), turn, AFTER_ALL_ELSE) })?;
        }
        Ok(())
    }

    fn let_go_when_idle(&self) {
        let is_idle = |state: &State| {
            let answered = state.next.checked_sub(1).is_none_or(|last| self.entries.is_answered(last));
            answered && state.posted.is_some_and(|posted| posted.elapsed() >= IDLE)
        };
        if is_idle(&self.state()) && !self.gpu.context.is_abandoned() {
            wait::within(DRAIN_TIMEOUT, None, || {
                let mut state = self.state();
                // Somebody may have posted a batch meanwhile.
                !is_idle(&state) || self.lets_go(&mut state)
            });
        }
    }

    /// Posts launches of nothing to the kernels that wait, as places for them come free. Whether the stream is empty.
    fn lets_go(&self, state: &mut State) -> bool {
        if self.gpu.kernels.is_idle().is_err() {
            // Nothing runs in a context that has failed, and so nothing is answered.
            state.next = state.queued;
        }
        while state.next < state.queued && self.entries.is_free_for(state.next) {
            self.entries.post(state.next, Entry::default());
            state.next += 1;
        }
        state.next == state.queued && self.gpu.is_idle()
    }
}

impl Resident for Queue {
    fn leaves(&self) -> bool {
        self.lets_go(&mut self.state())
    }
}

impl Answering for Queue {
    fn sizes(&self, _: usize) -> (usize, u64) {
        (PACKETS, BYTES)
    }

    fn unseen(&self) -> usize {
        PACKETS
    }

    fn max_chunks(&self) -> usize {
        AHEAD as usize
    }

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn maps(&self) -> &Maps {
        &self.maps
    }

    fn entries(&self) -> &Entries {
        &self.entries
    }

    fn post(&self, entry: Entry, cancel: &CancelToken) -> Result<u64, DeviceError> {
        let gpu = &*self.gpu;
        let (_sending, mut state) = loop {
            if self.state().closed {
                return Err(gpu.gave_up("its kernels were given up after an error".into()));
            }
            wait::until(&gpu.id, cancel, || {
                let free = self.entries.is_free_for(self.state().next);
                if !free {
                    gpu.kernels.is_idle().map_err(|code| gpu.failed("the filter failed", code))?;
                }
                Ok(free)
            })?;
            let (sending, state) = (sending(gpu, cancel)?, self.state());
            // Launches of nothing may have been posted meanwhile.
            if self.entries.is_free_for(state.next) {
                break (sending, state);
            }
        };
        let number = state.next;
        self.entries.post(number, entry);
        state.next += 1;
        state.posted = Some(Instant::now());
        self.queue(&mut state).map_err(|code| gpu.failed("does not take commands", code))?;
        Ok(number)
    }

    fn close(&self) {
        self.state().closed = true;
    }

    /// Goes on posting launches of nothing as places for them come free: else what waits in the stream would do so
    /// for ever.
    fn abandon(self: &Arc<Self>, kept: impl Send + 'static) {
        let queue = self.clone();
        self.gpu.abandon(kept, move || while !wait::within(LAUNCH_TIMEOUT, None, || queue.leaves()) {});
    }
}
