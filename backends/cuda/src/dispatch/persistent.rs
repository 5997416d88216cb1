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

use portcullis_core::device::{CancelToken, DeviceError};

use super::entries::{Answering, Entries, Entry, sending};
use crate::api::Code;
use crate::compile::{Kernel, Loaded};
use crate::context::Resident;
use crate::device::Gpu;
use crate::maps::Maps;
use crate::memory::{Buffer, DeviceMemory};

/// How long the kernel stays.
const LIFE: Duration = Duration::from_secs(1);

/// Blocks that poll, at most: each poll is a read over the bus.
const MOST_BLOCKS: u32 = 32;

/// And no more than one in so many that the device has room for.
const SHARE: u32 = 4;

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

/// The kernel, and what it shares with the host.
pub(crate) struct Ring {
    state: Mutex<State>,
    entries: Entries,
    /// How many entries each block has answered, and which start of the kernel is ending: for the device alone.
    served: DeviceMemory,
    blocks: u32,
    maps: Maps,
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

impl Ring {
    pub fn new(gpu: Arc<Gpu>, loaded: Loaded) -> Result<Arc<Ring>, DeviceError> {
        let Loaded { kernel, maps, .. } = loaded;
        let failed = |code| gpu.no_room("a ring", code);
        // Not all that there is room for: while these are there, others cannot begin in their places.
        let blocks = (gpu.processors * kernel.blocks_each().map_err(failed)? / SHARE).clamp(1, MOST_BLOCKS);
        // Memory is cleared while it is quiet as well: it may wait for the device.
        let quiet = gpu.context.quiet().map_err(failed)?;
        // Behind the entries: whether to stop, and for each block the start in which it has left.
        let entries = Entries::new(&gpu.context, u64::from(blocks) * EACH, 1 + blocks as usize).map_err(failed)?;
        let bytes = (blocks as usize + 1) * 8;
        let served = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
        served.clear(&gpu.kernels, bytes).map_err(failed)?;
        drop(quiet);
        let ring = Arc::new(Ring { state: Mutex::default(), entries, served, blocks, maps, kernel, gpu });
        let resident: Arc<dyn Resident> = ring.clone();
        ring.gpu.context.has_resident(Arc::downgrade(&resident));
        Ok(ring)
    }

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

    /// Starts the kernel where the block that an entry belongs to has left. The time is not quiet.
    fn start(&self, state: &mut State, number: u64) -> Result<(), Code> {
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
        let mut maps = self.maps.addresses();
        let mut arguments: [*mut c_void; 2] = [(&raw mut argument).cast(), (&raw mut maps).cast()];
        // SAFETY: the kernel takes two such arguments. It stays within the ring and within the slots that entries name
        // (see `Pipelined::run`), all of which stay until it was seen to rest. One that is still leaving comes first: it
        // is in the same stream.
        unsafe { self.kernel.launch(self.blocks, &mut arguments, &self.gpu.kernels)? };
        state.running = true;
        Ok(())
    }
}

/// The number of the next entry, unless nothing is posted any more.
fn open(gpu: &Gpu, state: &State) -> Result<u64, DeviceError> {
    if state.closed { Err(gpu.gave_up("its kernels were given up after an error".into())) } else { Ok(state.next) }
}

impl Resident for Ring {
    fn leaves(&self) -> bool {
        let mut state = self.state();
        if state.running {
            self.stop(if state.closed { ABANDON } else { LEAVE });
        }
        let left = self.gpu.is_idle();
        if left {
            self.stop(0);
            state.running = false;
        }
        left
    }
}

impl Answering for Ring {
    fn sizes(&self, packets: usize) -> (usize, u64) {
        ((packets / self.blocks as usize).clamp(PACKETS, MOST_PACKETS), BYTES)
    }

    fn unseen(&self) -> usize {
        MOST_PACKETS
    }

    fn max_chunks(&self) -> usize {
        PARTS
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
        let number = open(gpu, &self.state())?;
        if let Some(before) = number.checked_sub(self.entries.size()) {
            self.answer(before, cancel)?;
        }
        let _sending = sending(gpu, cancel)?;
        let mut state = self.state();
        open(gpu, &state)?;
        self.entries.post(number, entry);
        state.next += 1;
        self.start(&mut state, number).map_err(|code| gpu.failed("does not launch the filter", code))?;
        Ok(number)
    }

    fn attend(&self, number: u64) -> Result<(), DeviceError> {
        // In a quiet time it is asked again.
        let Some(_sending) = self.gpu.context.sending() else { return Ok(()) };
        let started = self.start(&mut self.state(), number);
        started.map_err(|code| self.gpu.failed("does not launch the filter", code))
    }

    fn close(&self) {
        self.state().closed = true;
    }

    fn abandon(self: &Arc<Self>, kept: impl Send + 'static) {
        self.gpu.abandon(kept, || ());
    }
}
