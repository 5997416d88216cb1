//! The [`Session`] and [`OrderedSession`] implementations of [`OffloadSession`].

use std::sync::Arc;
use std::time::Instant;

use super::{BatchInFlight, Launcher, OffloadSession, Slot};
use crate::device::chunk::{ChunkLimits, PacketLayout};
use crate::device::transfer_planner::{PlanReason, TransferPlan};
use crate::device::{
    Completion, DeviceError, Imported, Instrumented, OrderedSession, Session, Stages, SubmitError, check_map_range,
    map_layout,
};
use crate::packet::{Batch, DeviceView, Span};

impl<L: Launcher> Session for OffloadSession<L> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        // No import is needed if the kernel does not access packet bytes.
        if self.effects.accesses_packets { self.launcher.import_span(span) } else { Ok(Imported::InPlace) }
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.start(batch, None)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(mut flight) = self.in_flight.pop_front() else { return Ok(None) };
        if let Err(error) = self.finish(&mut flight) {
            self.in_flight.push_front(flight);
            self.abandon_all();
            return Err(error);
        }
        let completed = Instant::now();
        let alone = completed.saturating_duration_since(flight.submitted.max(self.last_completed));
        self.last_completed = completed;
        if let (PlanReason::Cheaper(_) | PlanReason::Measured(_), Some(transfer)) =
            (flight.plan.reason, flight.plan.transfer())
        {
            self.tuner.record(flight.batch.len(), transfer, alone);
        }
        self.record_stages(&flight);
        let BatchInFlight { slot, batch, plan, chunks, flow_orders, queued, columns, times, .. } = flight;
        self.retire_slot(Slot { buffers: slot, chunks, flow_orders, queued }, &batch, plan);
        Ok(Some(Completion { batch, verdicts: columns.into_verdicts(), times }))
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = map_layout(&self.program, map)?.words();
        self.map_words_at(map, 0, words)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_range(&self.program, map, at, words)?;
        self.finish_all()?;
        if words == 0 { Ok(Vec::new()) } else { self.launcher.read_map(map, at, words) }
    }

    fn map_device_view(&mut self, map: usize) -> Result<Option<DeviceView>, DeviceError> {
        let address = if map < self.program.maps().len() { self.launcher.map_address(map) } else { None };
        Ok(address.map(|address| DeviceView { device: self.launcher.id().to_owned(), address }))
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.program, map, at, words.len())?;
        self.finish_all()?;
        if let Some(compactor) = &mut self.compactor {
            compactor.invalidate();
        }
        if words.is_empty() { Ok(()) } else { self.launcher.write_map(map, at, words) }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl<L: Launcher> Instrumented for OffloadSession<L> {
    fn stages(&self) -> Option<Stages> {
        self.stages
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.plan
    }

    fn take_warnings(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.launcher.take_warning()).collect()
    }
}

impl<L: Launcher> OrderedSession for OffloadSession<L> {
    fn check_submit(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let longest = batch.descriptors().iter().map(|packet| u64::from(packet.length)).max().unwrap_or(0);
        // Splitting is expensive, and fails only for packets close to the size of a chunk.
        let mut layouts = [
            PacketLayout::NoAccess,
            PacketLayout::InPlace,
            PacketLayout::Copied,
            PacketLayout::Packed,
            PacketLayout::Rows,
        ]
        .into_iter();
        let fits = layouts.all(|layout| {
            let ChunkLimits { binding, alignment, .. } = self.launcher.chunk_limits(layout);
            longest + alignment < binding / 2
        });
        self.check_reach(batch.span())?;
        if fits && batch.span().is_on_host() { Ok(()) } else { self.split(batch, &mut Vec::new()).map(drop) }
    }

    fn submit_with_flows(&mut self, batch: Batch, flow_ids: &[u32]) -> Result<(), SubmitError> {
        if flow_ids.len() == batch.len() {
            return self.start(batch, Some(flow_ids));
        }
        let text = format!("{} flow ids for {} packets", flow_ids.len(), batch.len());
        Err(SubmitError { batch: Box::new(batch), error: DeviceError::Refused(text) })
    }
}

impl<L: Launcher> Drop for OffloadSession<L> {
    fn drop(&mut self) {
        if !self.in_flight.is_empty() {
            self.abandon_all();
        }
    }
}
