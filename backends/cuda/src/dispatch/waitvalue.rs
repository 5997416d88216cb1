//! `waitvalue`: kernels that are queued ahead of their batches, each behind a wait for its entry's turn, and
//! each followed by the stream's own answer. A batch is posted by writing to memory; no call of the driver is
//! between it and its kernel. Further kernels are queued behind each that was posted, so the stream never runs
//! dry.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::offload::{Columns, Effects, GRACE, Launcher, Part};
use portcullis_core::device::plan::{Bounds, Layout, Needs};
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::entries::{Entries, Entry, Guarded, REST, Resident};
use crate::api::{Code, check};
use crate::compile::{BLOCK, Kernel, Loaded};
use crate::device::Gpu;
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

/// A compiled filter, with what it takes to launch it.
pub(crate) struct Waiting {
    effects: Effects,
    cancel: CancelToken,
    queue: Arc<Queue>,
}

/// The stream with its kernels.
struct Queue {
    state: Mutex<State>,
    entries: Entries,
    blocks: u32,
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

impl Waiting {
    pub fn new(gpu: Arc<Gpu>, loaded: Loaded, cancel: &CancelToken) -> Result<Waiting, DeviceError> {
        let failed = |code| gpu.failed("has no memory for a queue", code);
        let entries = Entries::new(&gpu.context, AHEAD, 0).map_err(failed)?;
        let blocks = (gpu.processors * loaded.kernel.blocks_each().map_err(failed)?).min(MOST_BLOCKS);
        let queue = Queue { state: Mutex::default(), entries, blocks, kernel: loaded.kernel, gpu: gpu.clone() };
        // Once without a wait before it, over an entry of nothing: drivers load a kernel when it is first launched, and
        // may wait for the device then.
        let warm = queue.launch(0).and_then(|()| queue.gpu.kernels.record());
        let warm = warm.map_err(|code| gpu.failed("does not launch the filter", code))?;
        let ended =
            wait::until(&gpu.id, cancel, || warm.has_come().map_err(|code| gpu.failed("the filter failed", code)));
        if ended.is_err() {
            gpu.context.abandon(gpu.clone(), || ());
        }
        ended?;
        let queue = Arc::new(queue);
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
        Ok(Waiting { effects: loaded.effects, cancel: cancel.clone(), queue })
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the kernel over an entry.
    fn launch(&self, number: u64) -> Result<(), Code> {
        let mut entry = self.entries.address(number);
        // SAFETY: the kernel takes one address, that of an entry, and stays within the slot's memory that the entry
        // names (see `Pipelined::run`), which stays until the entry was answered. An entry of zeros has no packet.
        unsafe { self.kernel.launch(self.blocks, &mut [(&raw mut entry).cast()], &self.gpu.kernels) }
    }

    /// Queues kernels until as many wait as may.
    fn queue(&self, state: &mut State) -> Result<(), Code> {
        let (context, stream) = (&self.gpu.context, &self.gpu.kernels);
        let driver = context.driver;
        let functions = driver.cuStreamWaitValue32_v2.zip(driver.cuStreamWriteValue32_v2);
        let (wait, write) = functions.ok_or(Code::NOT_SUPPORTED)?;
        while state.queued < state.next + AHEAD {
            let _here = context.enter()?;
            let (number, turn) = (state.queued, self.entries.turn(state.queued));
            // SAFETY: the addresses are those of words in pinned memory that is mapped, which stays until the stream is
            // empty: `rest` sees to that before anything goes.
            check(unsafe { wait(stream.handle(), self.entries.turn_address(number), turn, UNTIL_REACHED) })?;
            self.launch(number)?;
            // SAFETY: as above.
            check(unsafe { write(stream.handle(), self.entries.answer_address(number), turn, AFTER_ALL_ELSE) })?;
            state.queued += 1;
        }
        Ok(())
    }

    fn let_go_when_idle(&self) {
        let mut state = self.state();
        let idle = state.posted.is_some_and(|posted| posted.elapsed() >= IDLE);
        let answered = state.next.checked_sub(1).is_none_or(|last| self.entries.is_answered(last));
        if idle && answered && state.queued > state.next && !self.gpu.context.is_abandoned() {
            self.release(&mut state, GRACE, None);
        }
    }

    /// Posts a launch of nothing to each kernel that waits, so that the stream runs empty. Whether it does.
    fn release(&self, state: &mut State, time: Duration, cancel: Option<&CancelToken>) -> bool {
        while state.next < state.queued {
            if !wait::within(time, cancel, || self.entries.is_free_for(state.next)) {
                return false;
            }
            self.entries.post(state.next, Entry::default());
            state.next += 1;
        }
        wait::within(time, cancel, || self.gpu.is_idle())
    }
}

impl Queue {
    /// Leaves the device behind, and goes on posting launches of nothing as places for them come free: else what
    /// waits in the stream would do so for ever.
    fn abandon(self: &Arc<Self>, kept: impl Send + 'static) {
        let queue = self.clone();
        self.gpu.context.abandon(kept, move || while !queue.release(&mut queue.state(), REST, None) {});
    }
}

impl Resident for Queue {
    fn rest(&self, cancel: Option<&CancelToken>) -> bool {
        !self.gpu.context.is_abandoned() && self.release(&mut self.state(), REST, cancel)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.closed = true;
        if !self.queue.gpu.context.is_abandoned() && !self.queue.release(&mut state, GRACE, None) {
            self.queue.abandon(self.queue.clone());
        }
    }
}

impl Launcher for Waiting {
    type Buffers = Guarded;
    type Import = ();
    /// The entry's number.
    type Ticket = u64;

    fn id(&self) -> &str {
        &self.queue.gpu.id
    }

    fn announce(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::Copied)
    }

    fn place(&mut self, _: &Batch, _: Needs) -> (Layout, Option<()>) {
        (Layout::Packed, None)
    }

    fn bounds(&self, _: Layout) -> Bounds {
        Bounds { binding: BYTES, alignment: 4, packets: PACKETS }
    }

    fn parts(&self) -> usize {
        AHEAD as usize
    }

    fn buffers(&self) -> Guarded {
        Guarded::new(self.queue.clone())
    }

    fn upload(&mut self, part: &Part<'_, ()>, effects: Effects, buffers: &mut Guarded) -> Result<(), DeviceError> {
        let gpu = &*self.queue.gpu;
        // SAFETY: the part that the slot was used for last was waited for (`Launcher`).
        match unsafe { buffers.fill(&gpu.context, part, effects, &self.cancel) } {
            Ok(true) => Ok(()),
            Ok(false) if self.cancel.is_cancelled() => Err(DeviceError::Cancelled),
            Ok(false) => Err(gpu.gave_up("kernels that wait for batches do not end".into())),
            Err(code) => Err(gpu.failed("has no memory for a batch", code)),
        }
    }

    fn launch(
        &mut self,
        _: &Part<'_, ()>,
        _: Effects,
        buffers: &mut Guarded,
        first: usize,
        count: usize,
    ) -> Result<u64, DeviceError> {
        let (queue, gpu) = (&*self.queue, &*self.queue.gpu);
        let mut state = queue.state();
        if state.closed {
            return Err(gpu.gave_up("it was given up".into()));
        }
        let number = state.next;
        wait::until(&gpu.id, &self.cancel, || {
            let free = queue.entries.is_free_for(number);
            if !free {
                gpu.kernels.is_idle().map_err(|code| gpu.failed("the filter failed", code))?;
            }
            Ok(free)
        })?;
        queue.entries.post(number, Entry::of(buffers.slot(), first, count));
        state.next += 1;
        state.posted = Some(Instant::now());
        queue.queue(&mut state).map_err(|code| gpu.failed("does not take commands", code))?;
        Ok(number)
    }

    fn wait(&mut self, ticket: &u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        let (queue, gpu) = (&*self.queue, &*self.queue.gpu);
        let mut questions = 0_u32;
        wait::until(&gpu.id, cancel, || {
            if queue.entries.is_answered(*ticket) {
                return Ok(true);
            }
            // A kernel that fails answers nothing.
            questions = questions.wrapping_add(1);
            if questions.is_multiple_of(256) {
                gpu.kernels.is_idle().map_err(|code| gpu.failed("the filter failed", code))?;
            }
            Ok(false)
        })
    }

    fn verdicts(&mut self, _: usize, buffers: &mut Guarded, columns: &mut Columns) -> Result<(), DeviceError> {
        // SAFETY: the entry was answered (`Launcher`); the same below.
        unsafe { buffers.slot().verdicts(self.effects, columns) };
        Ok(())
    }

    fn ends(&mut self, _: usize, buffers: &mut Guarded, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot().ends() });
        Ok(())
    }

    fn changed(&mut self, _: u64, buffers: &mut Guarded, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { buffers.slot().changed() });
        Ok(())
    }

    fn settle(&mut self) {
        self.queue.rest(None);
    }

    fn settles(&mut self, _: &[&u64], _: bool) -> bool {
        let mut state = self.queue.state();
        state.closed = true;
        self.queue.release(&mut state, GRACE, None)
    }

    fn outlive(&mut self, kept: impl Send + 'static) {
        self.queue.abandon((kept, self.queue.clone()));
    }
}
