//! What callers see of it.

use std::sync::Arc;

use super::{Launcher, OffloadSession};
use crate::device::chunk::{ChunkLimits, PacketLayout};
use crate::device::transfer_planner::TransferPlan;
use crate::device::{
    Completion, DeviceError, Imported, OrderedSession, Session, Stages, SubmitError, check_map_range, map_layout,
};
use crate::packet::{Batch, Span};

impl<L: Launcher> Session for OffloadSession<L> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        // Of what no kernel looks at nothing is copied.
        if self.effects.accesses_packets { self.launcher.import_span(span) } else { Ok(Imported::InPlace) }
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.begin(batch, None)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(mut flight) = self.flights.pop_front() else { return Ok(None) };
        if let Err(error) = self.finish(&mut flight) {
            self.flights.push_front(flight);
            self.give_up();
            return Err(error);
        }
        self.note(&flight);
        self.leave(flight.slot, &flight.batch, flight.plan, flight.pieces);
        let verdicts = flight.columns.into_verdicts();
        Ok(Some(Completion { batch: flight.batch, verdicts, times: flight.times }))
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

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.program, map, at, words.len())?;
        self.finish_all()?;
        if let Some(compactor) = &mut self.compactor {
            compactor.invalidate();
        }
        if words.is_empty() { Ok(()) } else { self.launcher.write_map(map, at, words) }
    }

    fn stages(&self) -> Option<Stages> {
        self.stages
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.plan
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl<L: Launcher> OrderedSession for OffloadSession<L> {
    fn check_submit(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let largest = batch.descriptors().iter().map(|packet| u64::from(packet.length)).max().unwrap_or(0);
        // Cutting is work, and only a packet that comes near what a piece may have is ever refused.
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
            largest + alignment < binding / 2
        });
        self.check_reach(batch.span())?;
        if fits && batch.span().is_on_host() { Ok(()) } else { self.cut(batch).map(drop) }
    }

    fn submit_with_flows(&mut self, batch: Batch, flow_ids: &[u32]) -> Result<(), SubmitError> {
        if flow_ids.len() == batch.len() {
            return self.begin(batch, Some(flow_ids));
        }
        let text = format!("{} flow numbers for {} packets", flow_ids.len(), batch.len());
        Err(SubmitError { batch: Box::new(batch), error: DeviceError::Refused(text) })
    }
}

impl<L: Launcher> Drop for OffloadSession<L> {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            self.give_up();
        }
    }
}
