//! Launches that are posted to kernels by writing to memory. `entries.cu` has the same.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{
    ChunkView, DRAIN_TIMEOUT, KernelEffects, LAUNCH_TIMEOUT, Launcher, VerdictColumns,
};
use portcullis_core::device::transfer_planner::BatchMemory;
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::slots::{InPlace, Inside, Shape, Slot};
use crate::api::Code;
use crate::context::{Context, Resident};
use crate::device::Gpu;
use crate::maps::Maps;
use crate::memory::{Buffer, HostMemory, View};
use crate::wait;

/// A launch: packets `first` to `first + count` of a slot.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    given: u64,
    inside: u64,
    returned: u64,
    place: u64,
    first: u32,
    count: u32,
    packets: u32,
    bytes: u32,
    /// Where the bytes of the launch's packets begin, and how many words they are.
    start: u32,
    words: u32,
}

impl Entry {
    pub fn of(slot: &Slot, effects: KernelEffects, first: usize, count: usize) -> Entry {
        let bytes = slot.bytes_of(effects, first..first + count);
        Entry {
            given: slot.given().address(),
            inside: slot.inside().address(),
            returned: slot.returned().address(),
            place: slot.place,
            first: first as u32,
            count: count as u32,
            packets: slot.packets as u32,
            bytes: slot.bytes as u32,
            start: bytes.start as u32,
            words: (bytes.len() / 4) as u32,
        }
    }
}

/// Bytes from entry to entry, and where in one its turn is.
const STRIDE: usize = 64;
const TURN: usize = size_of::<Entry>();
const _: () = assert!(TURN + 4 <= STRIDE);

/// A ring of entries, and of the answers to them, in pinned memory that kernels reach.
///
/// Entry number `n` is in place `n` modulo the ring's size, and its turn is how often the place was used
/// before, and one. Whoever posts it writes the turn last; who has filtered it writes the turn to its answer.
#[derive(Debug)]
pub(crate) struct Entries {
    memory: HostMemory,
    size: u64,
}

impl Entries {
    /// With `words` words behind, zeros at first, for other purposes.
    pub fn new(context: &Arc<Context>, size: u64, words: usize) -> Result<Entries, Code> {
        let bytes = size as usize * (STRIDE + 4) + words * 4;
        Ok(Entries { memory: HostMemory::new(context, bytes)?, size })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn turn(&self, number: u64) -> u32 {
        (number / self.size) as u32 + 1
    }

    fn place(&self, number: u64) -> usize {
        (number % self.size) as usize
    }

    /// Where kernels find the entry, and in it its turn.
    pub fn address(&self, number: u64) -> u64 {
        self.memory.address() + (self.place(number) * STRIDE) as u64
    }

    pub fn turn_address(&self, number: u64) -> u64 {
        self.address(number) + TURN as u64
    }

    /// Where kernels find the answer to an entry.
    pub fn answer_address(&self, number: u64) -> u64 {
        self.memory.address() + (self.size as usize * STRIDE + self.place(number) * 4) as u64
    }

    /// Where kernels find the words behind.
    pub fn words_address(&self) -> u64 {
        self.memory.address() + self.size * (STRIDE + 4) as u64
    }

    /// A word that host and device share.
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.memory.size() && at.is_multiple_of(4), "within the memory");
        // SAFETY: within the memory, which stays as long as this, and at a multiple of 4. The host uses it by atomic
        // operations only, and devices by those or by volatile accesses.
        unsafe { AtomicU32::from_ptr(self.memory.host().add(at).cast()) }
    }

    /// A word behind.
    pub fn extra(&self, index: usize) -> &AtomicU32 {
        self.word(self.size as usize * (STRIDE + 4) + index * 4)
    }

    /// Posts an entry, whose place is free: the one before in it was answered.
    pub fn post(&self, number: u64, entry: Entry) {
        let at = self.place(number) * STRIDE;
        // SAFETY: within the memory, and at a multiple of 64. No kernel reads it before its turn is written below, and
        // none the one before any more.
        unsafe { self.memory.host().add(at).cast::<Entry>().write_volatile(entry) };
        // What was written before, the slot's memory too, is seen by who sees the turn.
        self.word(at + TURN).store(self.turn(number), Ordering::Release);
    }

    /// Whether an entry was answered, and then everything that it returns is there.
    pub fn is_answered(&self, number: u64) -> bool {
        let answer = self.word(self.size as usize * STRIDE + self.place(number) * 4).load(Ordering::Acquire);
        // Later ones may have been answered in the same place since.
        answer.wrapping_sub(self.turn(number)).cast_signed() >= 0
    }

    /// Whether the place of an entry is free for it.
    pub fn is_free_for(&self, number: u64) -> bool {
        number.checked_sub(self.size).is_none_or(|before| self.is_answered(before))
    }
}

/// Waits until kernels that stay may be sent to the device.
pub(crate) fn sending<'a>(gpu: &'a Gpu, cancel: &CancelToken) -> Result<RwLockReadGuard<'a, ()>, DeviceError> {
    let mut guard = None;
    wait::until(&gpu.id, cancel, || {
        guard = gpu.context.sending();
        Ok(guard.is_some())
    })?;
    Ok(guard.expect("waited for"))
}

/// Kernels at the device that take entries: what differs between ways of having them there.
pub(crate) trait Answering: Resident + Sized + 'static {
    /// Packets in an entry of a batch of so many, and bytes.
    fn sizes(&self, packets: usize) -> (usize, u64);

    /// Packets in an entry of a batch of which the kernel sees none.
    fn unseen(&self) -> usize;

    /// See [`Launcher::max_chunks`].
    fn max_chunks(&self) -> usize;

    fn gpu(&self) -> &Arc<Gpu>;

    fn maps(&self) -> &Maps;

    fn entries(&self) -> &Entries;

    /// Posts an entry, once there is a place for it. Its number.
    fn post(&self, entry: Entry, cancel: &CancelToken) -> Result<u64, DeviceError>;

    /// Sees to it that an entry which was posted is answered.
    fn attend(&self, number: u64) -> Result<(), DeviceError> {
        let _ = number;
        Ok(())
    }

    /// Waits until an entry is answered.
    fn answer(&self, number: u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = self.gpu();
        let mut questions = 0_u32;
        wait::until(&gpu.id, cancel, || {
            if self.entries().is_answered(number) {
                return Ok(true);
            }
            self.attend(number)?;
            // A kernel that has failed answers nothing, and does not say that it has left.
            questions = questions.wrapping_add(1);
            if questions.is_multiple_of(256) {
                gpu.kernels.is_idle().map_err(|code| gpu.failed("the filter failed", code))?;
            }
            Ok(false)
        })
    }

    /// Posts nothing any more. Nobody looks at what is left.
    fn close(&self);

    /// Leaves the device behind, with what is kept until it is done.
    fn abandon(self: &Arc<Self>, kept: impl Send + 'static);
}

/// A session's launcher over such kernels.
pub(crate) struct Posting<K: Answering> {
    effects: KernelEffects,
    /// Packets and bytes in an entry of the batch that is being cut.
    sizes: (usize, u64),
    cancel: CancelToken,
    kernels: Arc<K>,
}

impl<K: Answering> Posting<K> {
    pub fn new(kernels: Arc<K>, effects: KernelEffects, cancel: &CancelToken) -> Posting<K> {
        Posting { effects, sizes: kernels.sizes(0), cancel: cancel.clone(), kernels }
    }

    /// Gives the kernels up; whether they have left soon.
    fn closes(&self) -> bool {
        self.kernels.close();
        wait::within(DRAIN_TIMEOUT, None, || self.kernels.leaves())
    }
}

impl<K: Answering> Drop for Posting<K> {
    fn drop(&mut self) {
        if !self.kernels.gpu().context.is_abandoned() && !self.closes() {
            self.kernels.abandon(self.kernels.clone());
        }
    }
}

impl<K: Answering> Launcher for Posting<K> {
    type Buffers = Slot;
    type Import = InPlace;
    /// The entry's number.
    type Ticket = u64;

    fn id(&self) -> &str {
        &self.kernels.gpu().id
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || View::of(span, self.id()).is_some()
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(InPlace::announced(span, self.id()))
    }

    fn batch_memory(&mut self, batch: &Batch, _: bool) -> BatchMemory<InPlace> {
        self.sizes = self.kernels.sizes(batch.len());
        InPlace::batch_memory(batch, self.id())
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        let (packets, bytes) = self.sizes;
        let packets = if layout == PacketLayout::NoAccess { self.kernels.unseen() } else { packets };
        InPlace::chunk_limits(layout, packets, bytes)
    }

    fn max_chunks(&self) -> usize {
        self.kernels.max_chunks()
    }

    fn new_buffers(&self) -> Slot {
        Slot::default()
    }

    fn reserve_chunks(
        &mut self,
        parts: &mut dyn Iterator<Item = ChunkView<'_, InPlace>>,
        effects: KernelEffects,
        slots: &mut [Slot],
    ) -> Result<(), DeviceError> {
        let gpu = self.kernels.gpu();
        let failed = |code| gpu.no_room("a batch", code);
        // One quiet time, if any, for all of them: the kernels are away meanwhile.
        let mut quiet = None;
        let places = slots.len();
        for (number, part) in parts.enumerate() {
            let (slot, shape) = (&mut slots[number % places], Shape::of_slot(&part, effects));
            if quiet.is_none() && !slot.has_room(&shape, Inside::Given) {
                quiet = Some(gpu.context.quiet().map_err(failed)?);
            }
            slot.reserve(&gpu.context, &shape, Inside::Given).map_err(failed)?;
        }
        Ok(())
    }

    fn upload(
        &mut self,
        part: &ChunkView<'_, InPlace>,
        effects: KernelEffects,
        slot: &mut Slot,
    ) -> Result<(), DeviceError> {
        let gpu = self.kernels.gpu();
        let shape = Shape::of_slot(part, effects);
        let reserved = slot.reserve(&gpu.context, &shape, Inside::Given);
        reserved.map_err(|code| gpu.no_room("a batch", code))?;
        // SAFETY: the part that the slot was used for last was waited for (`Launcher`).
        unsafe { slot.write(part, effects, &shape) };
        slot.flush(gpu)
    }

    fn launch(
        &mut self,
        _: &ChunkView<'_, InPlace>,
        effects: KernelEffects,
        slot: &mut Slot,
        first: usize,
        count: usize,
    ) -> Result<u64, DeviceError> {
        let _here = self.kernels.gpu().enter()?;
        self.kernels.post(Entry::of(slot, effects, first, count), &self.cancel)
    }

    fn wait(&mut self, ticket: &u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        let _here = self.kernels.gpu().enter()?;
        self.kernels.answer(*ticket, cancel)
    }

    fn read_verdicts(&mut self, _: usize, slot: &mut Slot, columns: &mut VerdictColumns) -> Result<(), DeviceError> {
        // SAFETY: the entry was answered (`Launcher`); the same below.
        unsafe { slot.verdicts(self.effects, columns) };
        Ok(())
    }

    fn read_descriptors(&mut self, _: usize, slot: &mut Slot, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { slot.ends() });
        Ok(())
    }

    fn read_packets(&mut self, _: u64, slot: &mut Slot, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { slot.changed() });
        Ok(())
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.kernels.maps().read(self.kernels.gpu(), map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.kernels.maps().write(self.kernels.gpu(), map, at, words)
    }

    fn wait_idle(&mut self) {
        while !wait::within(LAUNCH_TIMEOUT, None, || self.kernels.leaves()) {}
    }

    fn try_drain(&mut self, _: &[&u64], _: bool) -> bool {
        self.closes()
    }

    fn keep_alive(&mut self, kept: impl Send + 'static) {
        self.kernels.abandon((kept, self.kernels.clone()));
    }
}
