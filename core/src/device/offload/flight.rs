//! State of a batch in flight on a device.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{ChunkView, FlowOrder, HostThreads, Launcher, VerdictColumns};
use crate::device::chunk::Chunk;
use crate::device::transfer_planner::{MemoryReach, TransferPlan};
use crate::device::{Clock, DeviceError, StageTimes, Stages, Transfer, TransferCounts};
use crate::packet::Batch;

/// A batch in flight.
pub(super) struct BatchInFlight<L: Launcher> {
    /// Buffers of the slot that the batch occupies; chunks use them round-robin. Declared before
    /// the batch, and so dropped first: buffers may be made over the batch's memory.
    pub slot: Vec<L::Buffers>,
    pub import: Option<L::Import>,
    /// Memory lent by the launcher for the verdicts, if there is any.
    pub verdict_memory: Option<Arc<L::VerdictMemory>>,
    pub batch: Batch,
    pub plan: TransferPlan,
    /// Whether the batch was resident on the device already.
    pub is_resident: bool,
    pub chunks: Vec<Chunk>,
    /// The flow order of each chunk, and maybe more; empty for filters without flows.
    pub flow_orders: Vec<FlowOrder>,
    /// Number of chunks uploaded.
    pub uploaded: usize,
    /// Number of chunks whose results were read back.
    pub collected: usize,
    /// The chunk that the next launch belongs to.
    pub launching: usize,
    /// Number of that chunk's kernel invocations that were launched.
    pub launched_invocations: usize,
    pub queued: VecDeque<QueuedLaunch<L::Ticket>>,
    pub columns: VerdictColumns,
    /// The error that prevents further launches, which [`Session::complete`] will report.
    ///
    /// [`Session::complete`]: crate::device::Session::complete
    pub error: Option<DeviceError>,
    /// Whether work may be queued on the device that no ticket covers.
    pub has_untracked_work: bool,
    /// When the session took the batch.
    pub submitted: Instant,
    pub times: StageTimes,
    pub stages: Stages,
    /// Sum of the collected chunks' times on the device's clock.
    pub device_times: Option<StageTimes>,
    /// When the host began to wait for the device on behalf of this batch.
    pub waiting_since: Instant,
    pub threads: Arc<HostThreads>,
}

/// A chunk as a launcher gets it.
pub(super) type LauncherChunk<'a, L> = ChunkView<'a, <L as Launcher>::Import, <L as Launcher>::VerdictMemory>;

/// Buffers and lists that a batch occupies, reused for batch after batch.
pub(super) struct Slot<L: Launcher> {
    pub buffers: Vec<L::Buffers>,
    pub chunks: Vec<Chunk>,
    pub flow_orders: Vec<FlowOrder>,
    /// Empty, with capacity.
    pub queued: VecDeque<QueuedLaunch<L::Ticket>>,
}

impl<L: Launcher> Default for Slot<L> {
    fn default() -> Slot<L> {
        Slot { buffers: Vec::new(), chunks: Vec::new(), flow_orders: Vec::new(), queued: VecDeque::new() }
    }
}

/// A launch queued on the device.
pub(super) struct QueuedLaunch<T> {
    pub ticket: T,
    /// Number of packets that the launch counts for in the launch budget.
    pub packets: usize,
    /// Whether the launch budget kept the launch from covering its whole chunk.
    pub is_limited: bool,
    /// Whether the launch is the last of its chunk.
    pub ends_chunk: bool,
}

impl<L: Launcher> BatchInFlight<L> {
    /// The slot of a batch that has nothing on the device, and the batch.
    pub(super) fn into_slot(self) -> (Slot<L>, Batch) {
        let (mut chunks, mut queued) = (self.chunks, self.queued);
        chunks.clear();
        queued.clear();
        (Slot { buffers: self.slot, chunks, flow_orders: self.flow_orders, queued }, self.batch)
    }

    /// A chunk and its buffers.
    pub(super) fn chunk_and_buffers(&mut self, index: usize) -> (LauncherChunk<'_, L>, &mut L::Buffers) {
        let buffers = index % self.slot.len();
        let (slot, view) = self.chunk_views();
        (view(index), &mut slot[buffers])
    }

    /// The slot, and the chunks by their numbers.
    pub(super) fn chunk_views<'a>(
        &'a mut self,
    ) -> (&'a mut Vec<L::Buffers>, impl Fn(usize) -> LauncherChunk<'a, L> + use<'a, L>) {
        let BatchInFlight { slot, import, verdict_memory, batch, plan, chunks, flow_orders, threads, .. } = self;
        let (batch, chunks, flow_orders, threads) = (&*batch, &**chunks, &**flow_orders, &**threads);
        let (import, verdict_memory, plan) = (import.as_ref(), verdict_memory.as_deref(), *plan);
        let view = move |index: usize| ChunkView {
            batch,
            chunk: &chunks[index],
            layout: plan.layout,
            needs: plan.needs,
            import,
            verdict_memory,
            flow_order: flow_orders.get(index),
            threads,
            gather_time: Cell::default(),
        };
        (slot, view)
    }

    /// Whether the kernel works on a copy instead of the batch's memory.
    pub(super) fn is_copied(&self) -> bool {
        self.plan.layout.is_copy()
    }

    /// Time and bytes of the completed batch. `clock` is the clock in use by the session.
    pub(super) fn stage_totals(&self, clock: Clock) -> Stages {
        let one_if = |condition: bool| u64::from(condition);
        let (transfer, is_local) = (self.plan.transfer(), self.plan.reach == MemoryReach::DeviceLocal);
        let transfers = TransferCounts {
            unseen: one_if(transfer.is_none()),
            resident: one_if(transfer == Some(Transfer::Imported) && is_local),
            imported: one_if(transfer == Some(Transfer::Imported) && !is_local),
            whole: one_if(transfer == Some(Transfer::Whole)),
            window: one_if(transfer == Some(Transfer::Window)),
        };
        let (batches, packets, kernel) = (1, self.batch.len() as u64, self.times.kernel);
        let mut stages = Stages { kernel, batches, packets, transfers, clock, ..self.stages };
        match self.device_times {
            Some(times) => {
                (stages.upload, stages.kernel, stages.download) = (times.upload, times.kernel, times.download)
            }
            // A batch without packets has no times, on either clock.
            None if self.chunks.is_empty() => {}
            None => stages.clock = Clock::Host,
        }
        stages
    }
}
