//! Launch requests to kernels that are already on the device, through a ring in pinned host memory.
//! `mailbox.cu` has the device's side.
//!
//! A driver call per batch would cost several microseconds; here the host posts a batch by writing
//! to memory, and the kernel answers by writing to memory.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{
    ChunkView, DRAIN_TIMEOUT, KernelEffects, LAUNCH_TIMEOUT, Launcher, NoVerdictMemory, VerdictColumns,
};
use portcullis_core::device::transfer_planner::BatchMemory;
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::slots::{DeviceArena, DeviceBuffers, Slot, SlotShape};
use crate::driver::ErrorCode;
use crate::driver::context::{Context, ResidentKernels};
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::maps::Maps;
use crate::memory::{Buffer, HostMemory, SpanAddress};

/// A launch of packets `first` to `first + count` of a slot, as `mailbox.cu` reads it (`pc_entry`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LaunchRequest {
    request: u64,
    device_request: u64,
    response: u64,
    arena_address: u64,
    first: u32,
    count: u32,
    packets: u32,
    bytes: u32,
    /// Start of the launch's packets within the slot's packet section in bytes, and their size in
    /// words.
    start: u32,
    words: u32,
}

impl LaunchRequest {
    pub fn new(slot: &Slot, effects: KernelEffects, first: usize, count: usize) -> LaunchRequest {
        let bytes = slot.byte_range(effects, first..first + count);
        LaunchRequest {
            request: slot.request().address(),
            device_request: slot.device_request().address(),
            response: slot.response().address(),
            arena_address: slot.arena_address,
            first: first as u32,
            count: count as u32,
            packets: slot.packets as u32,
            bytes: slot.bytes as u32,
            start: bytes.start as u32,
            words: (bytes.len() / 4) as u32,
        }
    }
}

/// Bytes from one request of the ring to the next, and offset of its lap.
const REQUEST_STRIDE: usize = 64;
const LAP_OFFSET: usize = size_of::<LaunchRequest>();
const _: () = assert!(LAP_OFFSET + 4 <= REQUEST_STRIDE);

/// A ring of launch requests and of the answers to them, in pinned memory that kernels access.
///
/// Request number `n` has index `n % capacity` and lap `n / capacity + 1` (`turn` in `mailbox.cu`).
/// The host writes a request and then, with release ordering, its lap; whoever has filtered its
/// packets writes the lap to the answer of the same index.
#[derive(Debug)]
pub(crate) struct MailboxRing {
    memory: HostMemory,
    capacity: u64,
}

impl MailboxRing {
    /// Allocates a ring and `words` zeroed words after it for other uses.
    pub fn new(context: &Arc<Context>, capacity: u64, words: usize) -> Result<MailboxRing, ErrorCode> {
        let bytes = capacity as usize * (REQUEST_STRIDE + 4) + words * 4;
        Ok(MailboxRing { memory: HostMemory::new(context, bytes)?, capacity })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn lap(&self, number: u64) -> u32 {
        (number / self.capacity) as u32 + 1
    }

    fn index(&self, number: u64) -> usize {
        (number % self.capacity) as usize
    }

    /// Device address of a request.
    pub fn request_address(&self, number: u64) -> u64 {
        self.memory.address() + (self.index(number) * REQUEST_STRIDE) as u64
    }

    pub fn lap_address(&self, number: u64) -> u64 {
        self.request_address(number) + LAP_OFFSET as u64
    }

    /// Device address of the answer to a request.
    pub fn answer_address(&self, number: u64) -> u64 {
        self.memory.address() + (self.capacity as usize * REQUEST_STRIDE + self.index(number) * 4) as u64
    }

    /// Device address of the extra words.
    pub fn extra_words_address(&self) -> u64 {
        self.memory.address() + self.capacity * (REQUEST_STRIDE + 4) as u64
    }

    /// A word that host and device share.
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.memory.size() && at.is_multiple_of(4), "within the memory");
        // SAFETY: within the memory, which lives as long as this value, and 4-byte aligned. The
        // host only uses atomic operations on it, the device those or volatile accesses.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(at).cast()) }
    }

    /// An extra word after the ring.
    pub fn extra_word(&self, index: usize) -> &AtomicU32 {
        self.word(self.capacity as usize * (REQUEST_STRIDE + 4) + index * 4)
    }

    /// Posts a request, whose index is free: its predecessor there was answered.
    pub fn post(&self, number: u64, request: LaunchRequest) {
        let at = self.index(number) * REQUEST_STRIDE;
        // SAFETY: within the memory, and 64-byte aligned. No kernel reads the request before its
        // lap is written below, nor its predecessor any more.
        unsafe { self.memory.as_ptr().add(at).cast::<LaunchRequest>().write_volatile(request) };
        // Publishes everything written before, the slot's memory included.
        self.word(at + LAP_OFFSET).store(self.lap(number), Ordering::Release);
    }

    /// Whether a request was answered; its response is then visible to the host.
    pub fn is_answered(&self, number: u64) -> bool {
        let answer =
            self.word(self.capacity as usize * REQUEST_STRIDE + self.index(number) * 4).load(Ordering::Acquire);
        // The answer may already be that of a later lap.
        answer.wrapping_sub(self.lap(number)).cast_signed() >= 0
    }

    /// Whether the index of a request is free.
    pub fn is_free_for(&self, number: u64) -> bool {
        number.checked_sub(self.capacity).is_none_or(|before| self.is_answered(before))
    }
}

/// Waits until resident kernels may be launched.
pub(crate) fn wait_for_launch_permit<'a>(
    gpu: &'a Gpu,
    cancel: &CancelToken,
) -> Result<RwLockReadGuard<'a, ()>, DeviceError> {
    let mut guard = None;
    poll::until(&gpu.id, cancel, || {
        guard = gpu.context.try_launch_permit();
        Ok(guard.is_some())
    })?;
    Ok(guard.expect("waited for"))
}

/// Kernels on the device that take launch requests; implemented by each way of keeping them there.
pub(crate) trait MailboxKernel: ResidentKernels + Sized + 'static {
    /// Returns the maximum number of packets in a request of a batch of `packets` packets, and
    /// their maximum size in bytes.
    fn request_limits(&self, packets: usize) -> (usize, u64);

    /// Returns the maximum number of packets in a request if the kernel does not read packets.
    fn max_unseen_packets(&self) -> usize;

    /// See [`Launcher::max_chunks`].
    fn max_chunks(&self) -> usize;

    fn gpu(&self) -> &Arc<Gpu>;

    fn maps(&self) -> &Maps;

    fn ring(&self) -> &MailboxRing;

    /// Posts a request once its index is free, and returns its number.
    fn post(&self, request: LaunchRequest, cancel: &CancelToken) -> Result<u64, DeviceError>;

    /// Makes sure that a kernel is there to answer the request; called while waiting for it.
    fn keep_running(&self, number: u64) -> Result<(), DeviceError> {
        let _ = number;
        Ok(())
    }

    /// Waits until a request is answered.
    fn wait_for_answer(&self, number: u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        let gpu = self.gpu();
        let mut polls = 0_u32;
        poll::until(&gpu.id, cancel, || {
            if self.ring().is_answered(number) {
                return Ok(true);
            }
            self.keep_running(number)?;
            // A kernel that has failed neither answers nor reports that it has left: ask the
            // stream.
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(256) {
                gpu.kernels.is_idle().map_err(|code| gpu.error("the filter failed", code))?;
            }
            Ok(false)
        })
    }

    /// Stops posting. Responses still to come are ignored.
    fn close(&self);

    /// Abandons the device, keeping `resources` until it is idle.
    fn abandon(self: &Arc<Self>, resources: impl Send + 'static);
}

/// The launcher of a session over mailbox kernels.
pub(crate) struct MailboxLauncher<K: MailboxKernel> {
    effects: KernelEffects,
    /// Limits of [`MailboxKernel::request_limits`] for the batch that is being split.
    limits: (usize, u64),
    cancel: CancelToken,
    kernels: Arc<K>,
}

impl<K: MailboxKernel> MailboxLauncher<K> {
    pub fn new(kernels: Arc<K>, effects: KernelEffects, cancel: &CancelToken) -> MailboxLauncher<K> {
        MailboxLauncher { effects, limits: kernels.request_limits(0), cancel: cancel.clone(), kernels }
    }

    /// Closes the mailbox; returns whether the kernels have left within [`DRAIN_TIMEOUT`].
    fn close_and_leave(&self) -> bool {
        self.kernels.close();
        poll::within(DRAIN_TIMEOUT, None, || self.kernels.try_leave())
    }
}

impl<K: MailboxKernel> Drop for MailboxLauncher<K> {
    fn drop(&mut self) {
        if !self.kernels.gpu().context.is_abandoned() && !self.close_and_leave() {
            self.kernels.abandon(self.kernels.clone());
        }
    }
}

impl<K: MailboxKernel> Launcher for MailboxLauncher<K> {
    type Buffers = Slot;
    type Import = DeviceArena;
    type VerdictMemory = NoVerdictMemory;
    /// The request's number.
    type Ticket = u64;

    fn id(&self) -> &str {
        &self.kernels.gpu().id
    }

    fn can_reach(&self, span: &Span) -> bool {
        span.is_on_host() || SpanAddress::of_span(span, self.id()).is_some()
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(DeviceArena::import_result(span, self.id()))
    }

    fn batch_memory(&mut self, batch: &Batch, _: bool) -> BatchMemory<DeviceArena> {
        self.limits = self.kernels.request_limits(batch.len());
        DeviceArena::batch_memory(batch, self.id())
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        let (packets, bytes) = self.limits;
        let packets = if layout == PacketLayout::NoAccess { self.kernels.max_unseen_packets() } else { packets };
        DeviceArena::chunk_limits(layout, packets, bytes)
    }

    fn max_chunks(&self) -> usize {
        self.kernels.max_chunks()
    }

    fn new_buffers(&self) -> Slot {
        Slot::default()
    }

    fn reserve_chunks(
        &mut self,
        chunks: &mut dyn Iterator<Item = ChunkView<'_, DeviceArena>>,
        effects: KernelEffects,
        slots: &mut [Slot],
    ) -> Result<(), DeviceError> {
        let gpu = self.kernels.gpu();
        let failed = |code| gpu.allocation_error("a batch", code);
        // One quiescent period, if any, for all slots, since the kernels have to leave for it.
        let mut quiet = None;
        let places = slots.len();
        for (number, chunk) in chunks.enumerate() {
            let (slot, shape) = (&mut slots[number % places], SlotShape::of(&chunk, effects));
            if quiet.is_none() && !slot.has_capacity(&shape, DeviceBuffers::Request) {
                quiet = Some(gpu.context.quiesce().map_err(failed)?);
            }
            slot.ensure_capacity(&gpu.context, &shape, DeviceBuffers::Request).map_err(failed)?;
        }
        Ok(())
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_, DeviceArena>,
        effects: KernelEffects,
        slot: &mut Slot,
    ) -> Result<(), DeviceError> {
        let gpu = self.kernels.gpu();
        let shape = SlotShape::of(chunk, effects);
        let reserved = slot.ensure_capacity(&gpu.context, &shape, DeviceBuffers::Request);
        reserved.map_err(|code| gpu.allocation_error("a batch", code))?;
        // SAFETY: the launch that used the slot last was waited for (`Launcher`).
        unsafe { slot.write(chunk, effects) };
        slot.flush_remote_writes(gpu)
    }

    fn launch(
        &mut self,
        _: &ChunkView<'_, DeviceArena>,
        effects: KernelEffects,
        slot: &mut Slot,
        first: usize,
        count: usize,
    ) -> Result<u64, DeviceError> {
        let _current = self.kernels.gpu().enter()?;
        self.kernels.post(LaunchRequest::new(slot, effects, first, count), &self.cancel)
    }

    fn wait(&mut self, ticket: &u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        let _current = self.kernels.gpu().enter()?;
        self.kernels.wait_for_answer(*ticket, cancel)
    }

    fn read_verdicts(&mut self, _: usize, slot: &mut Slot, columns: &mut VerdictColumns) -> Result<(), DeviceError> {
        // SAFETY: the request was answered (`Launcher`); the same below.
        unsafe { slot.append_verdicts(self.effects, columns) };
        Ok(())
    }

    fn read_descriptors(&mut self, _: usize, slot: &mut Slot, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { slot.descriptors() });
        Ok(())
    }

    fn read_packets(&mut self, _: u64, slot: &mut Slot, read: &mut dyn FnMut(&[u8])) -> Result<(), DeviceError> {
        // SAFETY: as above.
        read(unsafe { slot.packet_bytes() });
        Ok(())
    }

    fn read_map(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.kernels.maps().read(self.kernels.gpu(), map, at, words)
    }

    fn write_map(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.kernels.maps().write(self.kernels.gpu(), map, at, words)
    }

    fn wait_idle(&mut self) {
        while !poll::within(LAUNCH_TIMEOUT, None, || self.kernels.try_leave()) {}
    }

    fn try_drain(&mut self, _: &[&u64], _: bool) -> bool {
        self.close_and_leave()
    }

    fn keep_alive(&mut self, resources: impl Send + 'static) {
        self.kernels.abandon((resources, self.kernels.clone()));
    }
}
