//! Where a batch's packets are to lie for the kernel, and the pieces that the device can take.

use std::collections::VecDeque;
use std::time::Instant;

use super::flight::{BatchInFlight, ChunkedBatch, part};
use super::resident::ResidentBatch;
use super::{Launcher, OffloadSession, Order, VerdictColumns};
use crate::device::chunk::{self, Chunk, PacketLayout};
use crate::device::transfer_planner::{self, MemoryReach, TransferPlan};
use crate::device::{DeviceError, StageTimes, Stages, SubmitError, Transfer, check_host_memory};
use crate::packet::{Batch, Descriptor, Span};

impl<L: Launcher> OffloadSession<L> {
    /// Refuses memory that the device does not reach.
    pub(super) fn check_reach(&self, span: &Span) -> Result<(), DeviceError> {
        if !self.effects.accesses_packets || self.launcher.can_reach(span) { Ok(()) } else { check_host_memory(span) }
    }

    /// Why a batch is not filtered where it is, where the host cannot copy it either.
    fn cannot_copy(&self, batch: &Batch) -> DeviceError {
        let lies = |d: &Descriptor| d.length > 0 && !d.offset.is_multiple_of(4);
        let why = match batch.descriptors().iter().position(lies) {
            Some(index) => {
                let offset = batch.descriptors()[index].offset;
                format!("packet {index} begins at byte {offset} there, which is no multiple of 4")
            }
            None => "the device would need a copy of them".into(),
        };
        let owner = batch.span().device_view().map_or("a device", |view| &view.device);
        DeviceError::Refused(format!(
            "its packets are in the memory of {owner}, where {} does not filter them: {why}",
            self.launcher.id()
        ))
    }

    /// Cuts a batch.
    pub(super) fn cut(&mut self, batch: &Batch) -> Result<ChunkedBatch<L>, DeviceError> {
        let (plan, import) = match self.effects.accesses_packets && !batch.is_empty() {
            true => self.place(batch)?,
            false => (TransferPlan::without_access(self.needs), None),
        };
        let TransferPlan { layout, needs, .. } = plan;
        if layout.is_copy() && !batch.span().is_on_host() {
            return Err(self.cannot_copy(batch));
        }
        let bounds = self.launcher.chunk_limits(layout);
        let pieces = chunk::split_batch(batch, layout, needs, bounds).map_err(|large| {
            DeviceError::Refused(format!(
                "packet {} has {} bytes, and {} takes {} at a time, its own needs included",
                large.index,
                large.length,
                self.launcher.id(),
                bounds.binding
            ))
        })?;
        Ok(ChunkedBatch { plan, import, pieces })
    }

    /// Decides where the kernel is to find a batch's packets, which it sees.
    fn place(&mut self, batch: &Batch) -> Result<(TransferPlan, Option<L::Import>), DeviceError> {
        let site = self.launcher.batch_memory(batch, self.transfer == Transfer::Imported);
        // As was said, or as it is here, which is looked up once.
        let (known, launcher) = (&mut self.costs, &self.launcher);
        let costs = || *known.get_or_insert_with(|| launcher.transfer_costs());
        let plan = transfer_planner::plan_transfer(batch, self.needs, &site, self.transfer, costs).map_err(|why| {
            DeviceError::Refused(format!(
                "the transfer `imported` was asked for, and {} does not filter these packets where they lie: {why}; take \
                 `auto`",
                self.launcher.id()
            ))
        })?;
        // Packets are where it says, or are copied from there by the device.
        let uses_import = plan.layout == PacketLayout::InPlace
            || (plan.layout == PacketLayout::Copied && site.reach == MemoryReach::Bus);
        Ok((plan, site.import.filter(|_| uses_import)))
    }

    /// Cuts a batch, and has room made for it at the device; brings nothing there yet. Without flow numbers each packet is a flow.
    pub(super) fn prepare(&mut self, batch: Batch, flow_ids: Option<&[u32]>) -> Result<BatchInFlight<L>, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        if self.cancel.is_cancelled() {
            return refuse(batch, DeviceError::Cancelled);
        }
        let started = Instant::now();
        let stay = self.resident.as_mut().and_then(|resident| resident.take(&batch));
        let again = stay.is_some();
        let (cut, slot) = match stay {
            Some(ResidentBatch { slot, plan, pieces }) => (Ok(ChunkedBatch { plan, import: None, pieces }), slot),
            None => (self.cut(&batch), self.idle.pop().unwrap_or_default()),
        };
        let ChunkedBatch { plan, mut import, pieces } = match cut {
            Ok(cut) => cut,
            Err(error) => {
                self.idle.push(slot);
                return refuse(batch, error);
            }
        };
        let order = |piece: &Chunk| match flow_ids {
            Some(flow_ids) => Order::new(&flow_ids[piece.packets.clone()], self.longest),
            None => Order::apart(piece.packets.len()),
        };
        let orders = if self.program.has_flows() { pieces.iter().map(order).collect() } else { Vec::new() };
        let mut slot = slot;
        let parts = if self.resident.is_some() { pieces.len() } else { pieces.len().min(self.launcher.max_chunks()) };
        while slot.len() < parts {
            slot.push(self.launcher.new_buffers());
        }
        if self.resident.is_some() {
            // They are copied by the host: where they come from is not theirs for long.
            import = None;
        }
        let columns = VerdictColumns::of(batch.len());
        let mut flight = BatchInFlight {
            slot,
            import,
            batch,
            plan,
            again,
            pieces,
            orders,
            uploaded: 0,
            collected: 0,
            next: 0,
            launched: 0,
            running: VecDeque::new(),
            columns,
            failed: None,
            torn: false,
            times: StageTimes::default(),
            stages: Stages::default(),
            own: None,
            started,
        };
        if flight.pieces.is_empty() || again {
            return Ok(flight);
        }
        match self.make_room(&mut flight) {
            Ok(()) => Ok(flight),
            // Nothing of it is queued yet.
            Err(error) => {
                self.idle.push(flight.slot);
                refuse(flight.batch, error)
            }
        }
    }

    fn make_room(&mut self, flight: &mut BatchInFlight<L>) -> Result<(), DeviceError> {
        let BatchInFlight { slot, import, batch, plan, pieces, orders, .. } = flight;
        let mut parts = (0..pieces.len()).map(|index| part(batch, plan, pieces, orders, import.as_ref(), index));
        self.launcher.reserve_chunks(&mut parts, self.effects, slot)
    }
}
