//! A batch on its way through a device.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Instant;

use super::{ChunkView, DeviceTimes, Launcher, Order, VerdictColumns};
use crate::device::chunk::Chunk;
use crate::device::transfer_planner::{MemoryReach, TransferPlan};
use crate::device::{Clock, DeviceError, StageTimes, Stages, Transfer, TransferCounts};
use crate::packet::Batch;

/// A batch in flight.
pub(super) struct BatchInFlight<L: Launcher> {
    // Before the batch: buffers may be made over its memory. One after the other has the parts in turn.
    pub slot: Vec<L::Buffers>,
    pub import: Option<L::Import>,
    pub batch: Batch,
    pub plan: TransferPlan,
    /// It was at the device already.
    pub again: bool,
    pub pieces: Vec<Chunk>,
    /// Of each piece, where packets are to be filtered in the order of their flows; else none.
    pub orders: Vec<Order>,
    /// How many pieces were brought to the device, and how many have been read back.
    pub uploaded: usize,
    pub collected: usize,
    /// The piece that is launched next, and how many of its lanes have been launched.
    pub next: usize,
    pub launched: usize,
    pub running: VecDeque<QueuedLaunch<L::Ticket>>,
    pub columns: VerdictColumns,
    /// Why no more of it can be launched; completing it tells.
    pub failed: Option<DeviceError>,
    /// Whether something may be queued that no ticket is about.
    pub torn: bool,
    pub times: StageTimes,
    pub stages: Stages,
    /// What the device's clock says of the parts that were read back.
    pub own: Option<DeviceTimes>,
    pub started: Instant,
}

/// How the packets of a batch are to lie, and the pieces that the device can take.
pub(super) struct ChunkedBatch<L: Launcher> {
    pub plan: TransferPlan,
    pub import: Option<L::Import>,
    pub pieces: Vec<Chunk>,
}

/// A launch on its way.
pub(super) struct QueuedLaunch<T> {
    pub ticket: T,
    /// For how many packets it stands, and whether there would have been more but for the pace.
    pub packets: usize,
    pub cut: bool,
    /// Whether its piece ends with it.
    pub ends: bool,
}

impl<L: Launcher> BatchInFlight<L> {
    /// A piece, and its buffers.
    pub(super) fn part(&mut self, index: usize) -> (ChunkView<'_, L::Import>, &mut L::Buffers) {
        let BatchInFlight { slot, import, batch, plan, pieces, orders, .. } = self;
        let part = part(batch, plan, pieces, orders, import.as_ref(), index);
        let place = index % slot.len();
        (part, &mut slot[place])
    }

    /// The packets lie in a copy, which is not the batch's memory.
    pub(super) fn is_copied(&self) -> bool {
        self.plan.layout.is_copy()
    }

    /// What became of its time and bytes; `clock` is whose clock is asked for.
    pub(super) fn stage_totals(&self, clock: Clock) -> Stages {
        let one = |is: bool| u64::from(is);
        let (transfer, own) = (self.plan.transfer(), self.plan.reach == MemoryReach::DeviceLocal);
        let transfers = TransferCounts {
            unseen: one(transfer.is_none()),
            resident: one(transfer == Some(Transfer::Imported) && own),
            imported: one(transfer == Some(Transfer::Imported) && !own),
            whole: one(transfer == Some(Transfer::Whole)),
            window: one(transfer == Some(Transfer::Window)),
        };
        let (batches, packets, kernel) = (1, self.batch.len() as u64, self.times.kernel);
        let mut stages = Stages { kernel, batches, packets, transfers, clock, ..self.stages };
        match self.own {
            Some(own) => (stages.upload, stages.kernel, stages.download) = (own.upload, own.kernel, own.download),
            // Of a batch without packets there is nothing to be said.
            None if self.pieces.is_empty() => {}
            None => stages.clock = Clock::Host,
        }
        stages
    }
}

/// A piece of a batch.
pub(super) fn part<'a, I>(
    batch: &'a Batch,
    plan: &TransferPlan,
    pieces: &'a [Chunk],
    orders: &'a [Order],
    import: Option<&'a I>,
    index: usize,
) -> ChunkView<'a, I> {
    let &TransferPlan { layout, needs, .. } = plan;
    ChunkView {
        batch,
        piece: &pieces[index],
        layout,
        needs,
        import,
        order: orders.get(index),
        gathered: Cell::default(),
    }
}
