//! What callers see of it.

use std::sync::Arc;

use super::{Launcher, Offload};
use crate::device::plan::{Bounds, Layout};
use crate::device::planner::Plan;
use crate::device::{DeviceError, Done, Imported, InOrder, Session, Stages, SubmitError, check_map, check_map_words};
use crate::packet::{Batch, Span};

impl<L: Launcher> Session for Offload<L> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        // Of what no kernel looks at nothing is copied.
        if self.effects.sees_packets { self.launcher.announce(span) } else { Ok(Imported::InPlace) }
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.begin(batch, None)
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        let Some(mut flight) = self.flights.pop_front() else { return Ok(None) };
        if let Err(error) = self.finish(&mut flight) {
            self.flights.push_front(flight);
            self.give_up();
            return Err(error);
        }
        self.note(&flight);
        self.leave(flight.slot, &flight.batch, flight.plan, flight.pieces);
        let verdicts = flight.columns.into_verdicts();
        Ok(Some(Done { batch: flight.batch, verdicts, times: flight.times }))
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = check_map(&self.program, map)?.words();
        self.map_words_at(map, 0, words)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_words(&self.program, map, at, words)?;
        self.finish_all()?;
        if words == 0 { Ok(Vec::new()) } else { self.launcher.read_map(map, at, words) }
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_words(&self.program, map, at, words.len())?;
        self.finish_all()?;
        if let Some(compactor) = &mut self.compactor {
            compactor.invalidate();
        }
        if words.is_empty() { Ok(()) } else { self.launcher.write_map(map, at, words) }
    }

    fn stages(&self) -> Option<Stages> {
        self.stages
    }

    fn plan(&self) -> Option<Plan> {
        self.plan
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl<L: Launcher> InOrder for Offload<L> {
    fn check(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let largest = batch.descriptors().iter().map(|packet| u64::from(packet.length)).max().unwrap_or(0);
        // Cutting is work, and only a packet that comes near what a piece may have is ever refused.
        let mut layouts = [Layout::Unseen, Layout::InPlace, Layout::Copied, Layout::Packed, Layout::Rows].into_iter();
        let fits = layouts.all(|layout| {
            let Bounds { binding, alignment, .. } = self.launcher.bounds(layout);
            largest + alignment < binding / 2
        });
        self.check_reach(batch.span())?;
        if fits && batch.span().is_on_host() { Ok(()) } else { self.cut(batch).map(drop) }
    }

    fn submit_in_order(&mut self, batch: Batch, numbers: &[u32]) -> Result<(), SubmitError> {
        if numbers.len() == batch.len() {
            return self.begin(batch, Some(numbers));
        }
        let text = format!("{} flow numbers for {} packets", numbers.len(), batch.len());
        Err(SubmitError { batch: Box::new(batch), error: DeviceError::Refused(text) })
    }
}

impl<L: Launcher> Drop for Offload<L> {
    fn drop(&mut self) {
        if !self.flights.is_empty() {
            self.give_up();
        }
    }
}
