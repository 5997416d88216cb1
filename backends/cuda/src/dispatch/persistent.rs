//! `persistent`: one kernel that stays at the device and polls a ring of entries in the host's memory. A
//! batch is posted by writing to memory, and its verdicts are there when the answer is: no call of the driver
//! is between, which makes small batches as quick as they can be.
//!
//! A small batch is one entry, and one block answers it. Larger ones are cut into several, each for the next
//! block. The kernel ends by itself after [`LIFE`], between two entries, whatever the host does: a driver's
//! watchdog never meets it, and it does not outlive a host that has died. The host starts it anew when it
//! finds that it has left while there is work. What was not answered then is answered by the next.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portcullis_core::device::offload::{Columns, Effects, GRACE, Launcher, Part};
use portcullis_core::device::plan::{Bounds, Layout, Needs};
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::entries::{Entries, Entry, Guarded, REST, Resident};
use crate::api::Code;
use crate::compile::{Kernel, Loaded};
use crate::device::Gpu;
use crate::memory::{Buffer, DeviceMemory};
use crate::wait;

/// How long the kernel stays.
const LIFE: Duration = Duration::from_secs(1);

/// Blocks that poll, at most: each poll is a read over the bus.
const MOST_BLOCKS: u32 = 32;

/// Entries for each block.
const EACH: u64 = 8;

/// Parts of a batch that are posted before the first has come back: some for each block.
const PARTS: usize = 2 * MOST_BLOCKS as usize;

/// Packets in an entry; larger batches take several, each for another block. Of batches that are larger than all
/// blocks take at once entries have more, so that there are not too many of them.
const PACKETS: usize = 128;
const MOST_PACKETS: usize = 64 << 10;

/// Bytes of an entry's packets.
const BYTES: u64 = 16 << 20;

/// What the kernel is told to do: the second for good, and without looking at what is left.
const LEAVE: u32 = 1;
const ABANDON: u32 = 2;

/// A compiled filter, with what it takes to have it stay.
pub(crate) struct Persistent {
    effects: Effects,
    /// Packets in an entry of the batch that is being cut.
    packets: usize,
    cancel: CancelToken,
    ring: Arc<Ring>,
}

/// The kernel, and what it shares with the host.
struct Ring {
    state: Mutex<State>,
    entries: Entries,
    /// How many entries each block has answered, and which start of the kernel is ending: for the device alone.
    served: DeviceMemory,
    blocks: u32,
    kernel: Kernel,
    // Last: what was made on it goes first.
    gpu: Arc<Gpu>,
}

#[derive(Default)]
struct State {
    /// The number of the entry that is posted next.
    next: u64,
    /// How often the kernel was started, and whether it may be there.
    starts: u32,
    running: bool,
    /// Nothing is posted any more.
    closed: bool,
}

/// The kernel's argument. `persistent.cu` has the same.
#[repr(C)]
struct Argument {
    entries: u64,
    answers: u64,
    stop: u64,
    left: u64,
    served: u64,
    leaving: u64,
    life: u64,
    size: u32,
    start: u32,
}

impl Persistent {
    pub fn new(gpu: Arc<Gpu>, loaded: Loaded, cancel: &CancelToken) -> Result<Persistent, DeviceError> {
        let failed = |code| gpu.failed("has no memory for a ring", code);
        let each = loaded.kernel.blocks_each().map_err(failed)?;
        let blocks = (gpu.processors * each).min(MOST_BLOCKS);
        // Behind the entries: whether to stop, and for each block the start in which it has left.
        let entries = Entries::new(&gpu.context, u64::from(blocks) * EACH, 1 + blocks as usize).map_err(failed)?;
        let bytes = (blocks as usize + 1) * 8;
        let served = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
        served.clear(&gpu.kernels, bytes).map_err(failed)?;
        let ring = Ring { state: Mutex::default(), entries, served, blocks, kernel: loaded.kernel, gpu };
        Ok(Persistent { effects: loaded.effects, packets: PACKETS, cancel: cancel.clone(), ring: Arc::new(ring) })
    }
}

impl Ring {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self, how: u32) {
        self.entries.extra(0).store(how, Ordering::Release);
    }

    /// Whether the block that an entry belongs to has left, or never was there.
    fn has_left(&self, state: &State, number: u64) -> bool {
        let block = (number % u64::from(self.blocks)) as usize;
        !state.running || self.entries.extra(1 + block).load(Ordering::Acquire) == state.starts
    }

    /// Sees to it that an entry which was posted is answered: starts the kernel where it has left.
    fn attend(&self, state: &mut State, number: u64) -> Result<(), Code> {
        if state.closed || !self.has_left(state, number) || self.entries.is_answered(number) {
            return Ok(());
        }
        // One that was told to leave, and took too long for who waited, may have left since.
        self.stop(0);
        state.starts = state.starts.wrapping_add(1).max(1);
        let words = self.entries.words_address();
        let mut argument = Argument {
            entries: self.entries.address(0),
            answers: self.entries.answer_address(0),
            stop: words,
            left: words + 4,
            served: self.served.address(),
            leaving: self.served.address() + u64::from(self.blocks) * 8,
            life: LIFE.as_nanos() as u64,
            size: self.entries.size() as u32,
            start: state.starts,
        };
        let mut arguments: [*mut c_void; 1] = [(&raw mut argument).cast()];
        // SAFETY: the kernel takes one such argument. It stays within the ring and within the slots that entries name
        // (see `Pipelined::run`), all of which stay until it was seen to rest. One that is still leaving comes first: it
        // is in the same stream.
        unsafe { self.kernel.launch(self.blocks, &mut arguments, &self.gpu.kernels)? };
        state.running = true;
        Ok(())
    }

    /// Waits until an entry is answered, and keeps the kernel there meanwhile.
    fn answer(&self, number: u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = &*self.gpu;
        let mut questions = 0_u32;
        wait::until(&gpu.id, cancel, || {
            if self.entries.is_answered(number) {
                return Ok(true);
            }
            let attended = self.attend(&mut self.state(), number);
            attended.map_err(|code| gpu.failed("does not launch the filter", code))?;
            // A kernel that has failed answers nothing, and does not say that it has left.
            questions = questions.wrapping_add(1);
            if questions.is_multiple_of(256) {
                gpu.kernels.is_idle().map_err(|code| gpu.failed("the filter failed", code))?;
            }
            Ok(false)
        })
    }

    /// Whether the kernel has left within this time, and the device with it.
    fn leaves_within(&self, state: &mut State, how: u32, time: Duration, cancel: Option<&CancelToken>) -> bool {
        if state.running {
            self.stop(how);
        }
        let left = wait::within(time, cancel, || self.gpu.is_idle());
        if left {
            self.stop(0);
            state.running = false;
        }
        left
    }
}

impl Resident for Ring {
    fn rest(&self, cancel: Option<&CancelToken>) -> bool {
        !self.gpu.context.is_abandoned() && self.leaves_within(&mut self.state(), LEAVE, REST, cancel)
    }
}

impl Drop for Persistent {
    fn drop(&mut self) {
        let mut state = self.ring.state();
        state.closed = true;
        let context = &self.ring.gpu.context;
        if !context.is_abandoned() && !self.ring.leaves_within(&mut state, ABANDON, GRACE, None) {
            context.abandon(self.ring.clone(), || ());
        }
    }
}

impl Launcher for Persistent {
    type Buffers = Guarded;
    type Import = ();
    /// The entry's number.
    type Ticket = u64;

    fn id(&self) -> &str {
        &self.ring.gpu.id
    }

    fn announce(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::Copied)
    }

    fn place(&mut self, batch: &Batch, _: Needs) -> (Layout, Option<()>) {
        self.packets = (batch.len() / self.ring.blocks as usize).clamp(PACKETS, MOST_PACKETS);
        (Layout::Packed, None)
    }

    fn bounds(&self, layout: Layout) -> Bounds {
        let packets = if layout == Layout::Unseen { MOST_PACKETS } else { self.packets };
        Bounds { binding: BYTES, alignment: 4, packets }
    }

    fn parts(&self) -> usize {
        PARTS
    }

    fn buffers(&self) -> Guarded {
        Guarded::new(self.ring.clone())
    }

    fn upload(&mut self, part: &Part<'_, ()>, effects: Effects, buffers: &mut Guarded) -> Result<(), DeviceError> {
        let gpu = &*self.ring.gpu;
        // SAFETY: the part that the slot was used for last was waited for (`Launcher`).
        match unsafe { buffers.fill(&gpu.context, part, effects, &self.cancel) } {
            Ok(true) => Ok(()),
            Ok(false) if self.cancel.is_cancelled() => Err(DeviceError::Cancelled),
            Ok(false) => Err(gpu.gave_up("the resident kernel does not leave".into())),
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
        let (ring, gpu) = (&*self.ring, &*self.ring.gpu);
        let number = ring.state().next;
        if let Some(before) = number.checked_sub(ring.entries.size()) {
            ring.answer(before, &self.cancel)?;
        }
        let mut state = ring.state();
        if state.closed {
            return Err(gpu.gave_up("it was given up".into()));
        }
        ring.entries.post(number, Entry::of(buffers.slot(), first, count));
        state.next += 1;
        ring.attend(&mut state, number).map_err(|code| gpu.failed("does not launch the filter", code))?;
        Ok(number)
    }

    fn wait(&mut self, ticket: &u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        self.ring.answer(*ticket, cancel)
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
        self.ring.rest(None);
    }

    fn settles(&mut self, _: &[&u64], _: bool) -> bool {
        let mut state = self.ring.state();
        state.closed = true;
        self.ring.leaves_within(&mut state, ABANDON, GRACE, None)
    }

    fn outlive(&mut self, kept: impl Send + 'static) {
        self.ring.gpu.context.abandon((kept, self.ring.clone()), || ());
    }
}
