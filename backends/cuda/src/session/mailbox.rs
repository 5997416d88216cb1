//! The launcher of sessions whose kernels take requests from a ring in pinned host memory.

use std::sync::{Arc, RwLockReadGuard};

use portcullis_core::device::chunk::{ChunkLimits, PacketLayout};
use portcullis_core::device::offload::{
    ChunkView, DRAIN_TIMEOUT, KernelEffects, LAUNCH_TIMEOUT, Launcher, NoVerdictMemory, TransferBytes, VerdictColumns,
};
use portcullis_core::device::transfer_planner::BatchMemory;
use portcullis_core::device::{CancelToken, DeviceError, Imported};
use portcullis_core::packet::{Batch, Span};

use super::request::{Request, RequestRing};
use super::slots::{Slot, SlotArena, SlotShape, TaggedResults};
use crate::driver::ErrorCode;
use crate::driver::context::ResidentKernels;
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::maps::Maps;
use crate::memory::{PinnedSpanCache, SpanAddress, UnpinnedMemory};

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

/// Kernels that take requests; implemented by each way of launching them.
pub(crate) trait MailboxKernel: ResidentKernels + Sized + 'static {
    /// Maximum number of packets in a slot, and their maximum size in bytes.
    const SLOT_LIMITS: (usize, u64);

    /// Returns the maximum number of packets in a request of a batch of `packets` packets, a
    /// multiple of 4.
    fn request_packets(&self, packets: usize) -> usize {
        let _ = packets;
        Self::SLOT_LIMITS.0
    }

    /// See [`Launcher::max_chunks`].
    fn max_chunks(&self) -> usize;

    fn gpu(&self) -> &Arc<Gpu>;

    fn maps(&self) -> &Maps;

    fn ring(&self) -> &RequestRing;

    /// Posts a request once its index is free, and returns its number.
    fn post(&self, request: &Request, cancel: &CancelToken) -> Result<u64, DeviceError>;

    /// Makes sure that a kernel is there to answer the request; called while waiting for it.
    fn keep_running(&self, number: u64) -> Result<(), DeviceError> {
        let _ = number;
        Ok(())
    }

    /// Waits until these requests, or rather `is_complete`, if they have tagged results, are
    /// answered.
    fn wait_until(
        &self,
        mut numbers: std::ops::Range<u64>,
        cancel: &CancelToken,
        mut is_complete: Option<impl FnMut() -> bool>,
    ) -> Result<(), DeviceError> {
        /// Polls after which the kernel is looked after.
        const POLLS: u32 = 64;
        let gpu = self.gpu();
        let mut polls = 0_u32;
        poll::until(&gpu.id, cancel, || {
            let complete = match &mut is_complete {
                Some(is_complete) => is_complete(),
                None => {
                    while numbers.start < numbers.end && self.ring().is_answered(numbers.start) {
                        numbers.start += 1;
                    }
                    numbers.is_empty()
                }
            };
            polls = polls.wrapping_add(1);
            if complete || !polls.is_multiple_of(POLLS) {
                return Ok(complete);
            }
            numbers.clone().try_for_each(|number| self.keep_running(number))?;
            // A kernel that has failed neither answers nor reports that it has left: ask the
            // stream.
            if polls.is_multiple_of(4 * POLLS) {
                gpu.kernels.is_idle().map_err(|code| gpu.error("the filter failed", code))?;
            }
            Ok(false)
        })
    }

    /// Waits until a request is answered.
    fn wait_for_answer(&self, number: u64, cancel: &CancelToken) -> Result<(), DeviceError> {
        self.wait_until(number..number + 1, cancel, None::<fn() -> bool>)
    }

    /// Stops posting. Responses still to come are ignored.
    fn close(&self);

    /// Abandons the device, keeping `resources` until it is idle.
    fn abandon(self: &Arc<Self>, resources: impl Send + 'static);
}

/// The launcher of a session over mailbox kernels.
pub(crate) struct MailboxLauncher<K: MailboxKernel> {
    effects: KernelEffects,
    /// Length in bytes of the longest packet of the batch that is being split.
    longest_packet: u32,
    cancel: CancelToken,
    pinned_spans: PinnedSpanCache,
    unpinned: UnpinnedMemory,
    kernels: Arc<K>,
}

impl<K: MailboxKernel> MailboxLauncher<K> {
    pub fn new(kernels: Arc<K>, effects: KernelEffects, cancel: &CancelToken) -> MailboxLauncher<K> {
        let (pinned_spans, unpinned) = Default::default();
        MailboxLauncher { effects, longest_packet: 0, cancel: cancel.clone(), pinned_spans, unpinned, kernels }
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

/// The error of reserving a slot for a batch. If its memory cannot be pinned, another session may
/// take the batch.
fn batch_error(gpu: &Gpu, code: ErrorCode) -> DeviceError {
    match gpu.allocation_error("a batch", code) {
        DeviceError::Failed { device, reason } if code.is_unpinnable() => {
            DeviceError::Refused(format!("{device}: {reason}"))
        }
        error => error,
    }
}

/// The requests of a launch.
#[derive(Debug)]
pub(crate) struct Ticket {
    first: u64,
    count: u64,
    tagged: Option<TaggedResults>,
}

impl<K: MailboxKernel> Launcher for MailboxLauncher<K> {
    type Buffers = Slot;
    type Import = SlotArena;
    type VerdictMemory = NoVerdictMemory;
    type Ticket = Ticket;

    fn id(&self) -> &str {
        &self.kernels.gpu().id
    }

    fn can_reach(&self, span: &Span) -> bool {
        SlotArena::is_reachable(span, self.id())
    }

    fn import_span(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        let gpu = self.kernels.gpu();
        let is_reachable = match SpanAddress::of_span(span, &gpu.id) {
            Some(view) => view.is_on_device || !self.effects.resizes_packets,
            None => !self.effects.resizes_packets && self.pinned_spans.get_or_pin(&gpu.context, span, true).is_some(),
        };
        Ok(if is_reachable { Imported::InPlace } else { Imported::Copied })
    }

    fn batch_memory(&mut self, batch: &Batch, requested: bool) -> BatchMemory<SlotArena> {
        self.longest_packet = batch.summary().max_length;
        let gpu = self.kernels.gpu();
        SlotArena::batch_memory(&mut self.pinned_spans, &gpu.context, batch, &gpu.id, self.effects, requested)
    }

    fn chunk_limits(&self, layout: PacketLayout) -> ChunkLimits {
        let (packets, bytes) = K::SLOT_LIMITS;
        SlotArena::chunk_limits(layout, packets, bytes, self.longest_packet)
    }

    fn max_chunks(&self) -> usize {
        self.kernels.max_chunks()
    }

    fn traffic(&self, chunk: &ChunkView<'_, SlotArena>, effects: KernelEffects, slot: &Slot) -> TransferBytes {
        slot.traffic(chunk, effects)
    }

    fn take_warning(&mut self) -> Option<String> {
        self.unpinned.record(self.pinned_spans.refusal());
        self.unpinned.take_warning(&self.kernels.gpu().id)
    }

    fn new_buffers(&self) -> Slot {
        Slot::default()
    }

    fn reserve_chunks(
        &mut self,
        chunks: &mut dyn Iterator<Item = ChunkView<'_, SlotArena>>,
        effects: KernelEffects,
        slots: &mut [Slot],
    ) -> Result<(), DeviceError> {
        let gpu = self.kernels.gpu();
        // One quiescent period, if any, for all slots, since the kernels have to leave for it.
        let mut quiet = None;
        let places = slots.len();
        for (number, chunk) in chunks.enumerate() {
            let (slot, shape) = (&mut slots[number % places], SlotShape::of(&chunk, effects));
            if quiet.is_none() && !slot.has_capacity(&shape) {
                quiet = Some(gpu.context.quiesce().map_err(|code| batch_error(gpu, code))?);
            }
            slot.ensure_capacity(&gpu.context, &shape).map_err(|code| batch_error(gpu, code))?;
        }
        Ok(())
    }

    fn upload(
        &mut self,
        chunk: &ChunkView<'_, SlotArena>,
        effects: KernelEffects,
        slot: &mut Slot,
    ) -> Result<(), DeviceError> {
        let gpu = self.kernels.gpu();
        let shape = SlotShape::of(chunk, effects);
        slot.ensure_capacity(&gpu.context, &shape).map_err(|code| batch_error(gpu, code))?;
        // SAFETY: the launch that used the slot last was waited for (`Launcher`).
        unsafe { slot.write(chunk, effects) };
        // Makes packets in device memory visible to running kernels, whoever has written them.
        let flushed = if slot.is_in_place() { gpu.flush_remote_writes() } else { Ok(()) };
        flushed.map_err(|code| gpu.error("flushing remote writes failed", code))
    }

    fn launch(
        &mut self,
        chunk: &ChunkView<'_, SlotArena>,
        effects: KernelEffects,
        slot: &mut Slot,
        first: usize,
        count: usize,
    ) -> Result<Ticket, DeviceError> {
        let _current = self.kernels.gpu().enter()?;
        // SAFETY: a launch that covers the chunk is its only one (`Launcher`).
        let tagged = unsafe { slot.begin_launch(effects, first, count) };
        let mut ticket = Ticket { first: 0, count: 0, tagged };
        let request_packets = self.kernels.request_packets(chunk.batch_packets());
        for start in (first..first + count).step_by(request_packets) {
            let packets = (first + count - start).min(request_packets);
            let number = self.kernels.post(&slot.request(effects, start, packets), &self.cancel)?;
            if ticket.count == 0 {
                ticket.first = number;
            }
            ticket.count = number + 1 - ticket.first;
        }
        Ok(ticket)
    }

    fn wait(&mut self, ticket: &Ticket, cancel: &CancelToken) -> Result<(), DeviceError> {
        let _current = self.kernels.gpu().enter()?;
        let mut seen = 0;
        // SAFETY: the session keeps the slot, and launches no more over it, until this launch was
        // waited for.
        let is_complete = ticket.tagged.map(|results| move || unsafe { results.are_complete(&mut seen) });
        self.kernels.wait_until(ticket.first..ticket.first + ticket.count, cancel, is_complete)
    }

    fn read_verdicts(&mut self, _: usize, slot: &mut Slot, columns: &mut VerdictColumns) -> Result<(), DeviceError> {
        // SAFETY: the requests were answered (`Launcher`); the same below.
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

    fn map_address(&self, map: usize) -> Option<u64> {
        Some(self.kernels.maps().address(map))
    }

    fn wait_idle(&mut self) {
        while !poll::within(LAUNCH_TIMEOUT, None, || self.kernels.try_leave()) {}
    }

    fn try_drain(&mut self, _: &[&Ticket], _: bool) -> bool {
        self.close_and_leave()
    }

    fn keep_alive(&mut self, resources: impl Send + 'static) {
        self.kernels.abandon((resources, self.kernels.clone()));
    }
}
