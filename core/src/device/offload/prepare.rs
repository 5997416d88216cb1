//! Preparing a batch for the device: planning the transfer, splitting into chunks, reserving
//! buffers.

use std::time::Instant;

use super::flight::{BatchInFlight, Slot};
use super::resident::ResidentBatch;
use super::transfer_tuner::DISCARD_RATIO;
use super::{FlowOrder, Launcher, OffloadSession, VerdictColumns};
use crate::device::chunk::{self, Chunk, PacketLayout};
use crate::device::descriptor_format::GROUP_PACKETS;
use crate::device::transfer_planner::{self, BatchMemory, MemoryReach, PlanReason, TransferCosts, TransferPlan};
use crate::device::{DeviceError, StageTimes, Stages, SubmitError, Transfer, check_host_memory};
use crate::packet::{Batch, Descriptor, Span};

/// Longest window in bytes that a kernel reads over the bus in a trial.
const MAX_IMPORTED_WINDOW: u32 = 128;

impl<L: Launcher> OffloadSession<L> {
    /// Refuses memory that neither the device nor the host can access, unless the kernel accesses
    /// no packet bytes.
    pub(super) fn check_reach(&self, span: &Span) -> Result<(), DeviceError> {
        if !self.effects.accesses_packets || self.launcher.can_reach(span) { Ok(()) } else { check_host_memory(span) }
    }

    /// The error for packets in device memory that would have to be copied, which the host cannot
    /// do.
    fn copy_error(&self, batch: &Batch) -> DeviceError {
        let is_misaligned = |d: &Descriptor| d.length > 0 && !d.offset.is_multiple_of(4);
        let reason = match batch.descriptors().iter().position(is_misaligned) {
            Some(index) => {
                let offset = batch.descriptors()[index].offset;
                format!("packet {index} starts at byte {offset}, which is not a multiple of 4")
            }
            None => "the device would need a copy of them".into(),
        };
        let owner = batch.span().device_view().map_or("a device", |view| &view.device);
        DeviceError::Refused(format!(
            "its packets are in the memory of {owner}, where {} cannot filter them: {reason}",
            self.launcher.id()
        ))
    }

    /// Plans the transfer of a batch and splits it into chunks.
    pub(super) fn split(
        &mut self,
        batch: &Batch,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(TransferPlan, Option<L::Import>), DeviceError> {
        let (plan, import) = match self.effects.accesses_packets && !batch.is_empty() {
            true => self.plan_transfer(batch)?,
            false => (TransferPlan::without_access(self.needs), None),
        };
        let TransferPlan { layout, needs, .. } = plan;
        if layout.is_copy() && !batch.span().is_on_host() {
            return Err(self.copy_error(batch));
        }
        let mut limits = self.launcher.chunk_limits(layout);
        limits.packets = limits.packets.min(self.overlap_packets(batch.len(), &plan));
        chunk::split_batch(batch, layout, needs, limits, chunks).map_err(|large| {
            DeviceError::Refused(format!(
                "packet {} has {} bytes, but a chunk on {} holds at most {}, overhead included",
                large.index,
                large.length,
                self.launcher.id(),
                limits.binding
            ))
        })?;
        Ok((plan, import))
    }

    /// Maximum number of packets in a chunk for the stages of the batch's chunks to overlap: chunks
    /// of about equal size.
    fn overlap_packets(&self, packets: usize, plan: &TransferPlan) -> usize {
        // Packets of a flow take a launch each if they are in several chunks, and nothing is copied
        // for resident batches.
        if self.program.has_flows() || self.resident.is_some() {
            return usize::MAX;
        }
        let chunks = packets.div_ceil(self.launcher.overlap_packets(plan.layout, plan.reach)).max(1);
        packets.div_ceil(chunks).next_multiple_of(GROUP_PACKETS).max(1)
    }

    /// Plans the transfer of a batch that is not empty and whose packets the kernel accesses.
    fn plan_transfer(&mut self, batch: &Batch) -> Result<(TransferPlan, Option<L::Import>), DeviceError> {
        let memory = self.launcher.batch_memory(batch, self.transfer == Transfer::Imported);
        // The costs given when loading, or else the launcher's, which are determined once.
        // A small batch is gathered by one thread, whatever the session has.
        let threads = self.threads.count_for(batch.len());
        let (costs, launcher) = (&mut self.costs[usize::from(threads.get() > 1)], &self.launcher);
        let costs = || *costs.get_or_insert_with(|| launcher.transfer_costs(threads));
        let plan = transfer_planner::plan_transfer(batch, self.needs, &memory, self.transfer, costs);
        let plan = plan.map(|plan| self.tuned(batch, &memory, plan)).map_err(|reason| {
            DeviceError::Refused(format!(
                "the transfer `imported` was requested, but {} cannot filter these packets in place: {reason}; use `auto`",
                self.launcher.id()
            ))
        })?;
        // The device accesses the batch's memory itself, either from the kernel or to copy from it.
        let uses_import = plan.layout == PacketLayout::InPlace
            || (plan.layout == PacketLayout::Copied && memory.reach == MemoryReach::Bus);
        Ok((plan, memory.import.filter(|_| uses_import)))
    }

    /// Replaces the transfer that the planner has estimated to be the cheapest by the one that the
    /// session tries, or has found to be the fastest.
    fn tuned<I>(&mut self, batch: &Batch, memory: &BatchMemory<I>, plan: TransferPlan) -> TransferPlan {
        let (PlanReason::Cheaper(estimate), Some(predicted), true) = (plan.reason, plan.transfer(), self.tunes) else {
            return plan;
        };
        let needs = self.needs;
        let requested =
            |transfer| transfer_planner::plan_transfer(batch, needs, memory, transfer, || TransferCosts::GEN4).ok();
        let possible = || {
            let limit = DISCARD_RATIO * estimate.whole_ns.min(estimate.window_ns);
            // Reading a few words of each packet over the bus takes as long as copying windows;
            // long dependent reads take far longer.
            let reads_little = needs.window <= MAX_IMPORTED_WINDOW;
            let is_worth_it = |transfer| match transfer {
                Transfer::Whole => estimate.whole_ns <= limit,
                Transfer::Window => estimate.window_ns <= limit,
                Transfer::Imported => reads_little,
                Transfer::Auto => false,
            };
            let is_possible = |transfer| requested(transfer).and_then(|plan| plan.transfer()) == Some(transfer);
            let all = [Transfer::Whole, Transfer::Window, Transfer::Imported].into_iter();
            all.filter(|transfer| *transfer == predicted || is_worth_it(*transfer) && is_possible(*transfer)).collect()
        };
        let (transfer, times) = self.tuner.choose(batch.len(), predicted, possible);
        let reason = times.map_or(plan.reason, PlanReason::Measured);
        // If the batch cannot take it, unlike those before, the estimate stands.
        let changed = if transfer == predicted { None } else { requested(transfer) };
        TransferPlan { reason, ..changed.unwrap_or(plan) }
    }

    /// Prepares a batch and reserves buffers for it; uploads nothing yet. Without flow ids each
    /// packet is a flow of its own. `lends_verdict_memory` is false if nobody takes the verdicts.
    pub(super) fn prepare(
        &mut self,
        batch: Batch,
        flow_ids: Option<&[u32]>,
        lends_verdict_memory: bool,
    ) -> Result<BatchInFlight<L>, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        if self.cancel.is_cancelled() {
            return refuse(batch, DeviceError::Cancelled);
        }
        let waiting_since = Instant::now();
        let resident_batch = self.resident.as_mut().and_then(|resident| resident.take(&batch));
        let is_resident = resident_batch.is_some();
        let (planned, mut slot) = match resident_batch {
            Some(ResidentBatch { slot, plan }) => (Ok((plan, None)), slot),
            None => {
                let mut slot = self.free_slots.pop().unwrap_or_default();
                (self.split(&batch, &mut slot.chunks), slot)
            }
        };
        let (plan, mut import) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                slot.chunks.clear();
                self.free_slots.push(slot);
                return refuse(batch, error);
            }
        };
        let chunks = &slot.chunks;
        if self.program.has_flows() {
            // More of them keep their memory for batches of more chunks.
            slot.flow_orders.resize_with(slot.flow_orders.len().max(chunks.len()), FlowOrder::default);
            for (order, chunk) in slot.flow_orders.iter_mut().zip(chunks) {
                match flow_ids {
                    Some(ids) => order.sort(&ids[chunk.packets.clone()], self.max_run_length, &self.threads),
                    None => order.set_singletons(chunk.packets.len()),
                }
            }
        }
        let buffers = if self.resident.is_some() { chunks.len() } else { chunks.len().min(self.launcher.max_chunks()) };
        while slot.buffers.len() < buffers {
            slot.buffers.push(self.launcher.new_buffers());
        }
        if self.resident.is_some() {
            // Have the host copy the packets: the batch's memory may be reused while the copy
            // stays.
            import = None;
        }
        let verdict_memory = match lends_verdict_memory && !batch.is_empty() {
            true => self.launcher.lend_verdict_memory(batch.len(), self.effects),
            false => Ok(None),
        };
        let verdict_memory = match verdict_memory {
            Ok(memory) => memory,
            Err(error) => {
                slot.chunks.clear();
                self.free_slots.push(slot);
                return refuse(batch, error);
            }
        };
        let columns = match &verdict_memory {
            Some(memory) => VerdictColumns::lent(batch.len(), memory.clone()),
            None => VerdictColumns::appended(batch.len(), self.host_verdicts.lend(batch.len(), self.effects.redirects)),
        };
        let Slot { buffers, chunks, flow_orders, queued } = slot;
        let mut flight = BatchInFlight {
            slot: buffers,
            import,
            verdict_memory,
            batch,
            plan,
            is_resident,
            chunks,
            flow_orders,
            uploaded: 0,
            collected: 0,
            launching: 0,
            launched_invocations: 0,
            queued,
            columns,
            error: None,
            has_untracked_work: false,
            submitted: waiting_since,
            times: StageTimes::default(),
            stages: Stages::default(),
            device_times: None,
            waiting_since,
            threads: self.threads.clone(),
        };
        if flight.chunks.is_empty() || is_resident {
            return Ok(flight);
        }
        match self.reserve(&mut flight) {
            Ok(()) => Ok(flight),
            // Nothing is queued yet, so the batch can go back at once.
            Err(error) => {
                let (slot, batch) = flight.into_slot();
                self.free_slots.push(slot);
                refuse(batch, error)
            }
        }
    }

    fn reserve(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let chunks = flight.chunks.len();
        let (slot, view) = flight.chunk_views();
        self.launcher.reserve_chunks(&mut (0..chunks).map(view), self.effects, slot)
    }
}
