//! A session for filters with flows, out of one that gives the numbers of packets' flows and one that keeps packets of
//! equal numbers in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{
    Completion, Device, DeviceError, Imported, LoadOptions, Session, Stages, SubmitError, TransferPlan, check_batch,
};
use crate::packet::{Batch, Span};
use crate::program::{FLOW_BITS, Program};

/// A session that filters packets of a flow one at a time, in the order in which they came.
pub trait OrderedSession: Session {
    /// Whether [`OrderedSession::submit_with_flows`] would take the batch, as far as the batch can tell.
    ///
    /// # Errors
    /// Why it would not.
    fn check_submit(&mut self, batch: &Batch) -> Result<(), DeviceError>;

    /// As [`Session::submit`], of a batch whose packets belong to flows of these numbers, one a packet.
    ///
    /// # Errors
    /// As [`Session::submit`]'s.
    fn submit_with_flows(&mut self, batch: Batch, flow_ids: &[u32]) -> Result<(), SubmitError>;
}

/// Packets of one flow that make a batch one-sided, at least.
const MIN_ELEPHANT_PACKETS: usize = 1024;

/// And which part of the batch they have to be, at least.
const MIN_ELEPHANT_SHARE: usize = 64;

/// How many one-sided batches more than others there have to have been lately for a change of device, and how many of
/// them are remembered: moving costs a copy of all maps.
const MIGRATE_THRESHOLD: u32 = 2;
const MAX_SKEW: u32 = 4;

/// A filter with flows on a device: see the module.
///
/// A lane takes all packets of a flow. So a batch most of which is one flow is left to another device where there is one
/// ([`LoadOptions::elephant_flow_device`]), and the maps go with it.
pub struct FlowSession<S> {
    program: Arc<Program>,
    options: LoadOptions,
    /// Redirects packets to the numbers of their flows.
    flow_ids: Box<dyn Session>,
    session: S,
    /// What takes one-sided batches; there once it was needed.
    fallback: Option<Box<dyn Session>>,
    /// Where batches go now, and with them the maps.
    on_fallback: bool,
    /// How many batches were one-sided lately.
    skew: u32,
    /// Of each batch that went on, whether it went aside.
    routed: VecDeque<bool>,
    /// Why a batch between the sessions is lost; all behind it are as well.
    failed: Option<DeviceError>,
}

impl<S: OrderedSession> FlowSession<S> {
    /// Over a session of the program on the device, which is asked for the numbers as well.
    ///
    /// # Errors
    /// As [`Device::load`]'s.
    pub fn new(
        device: &dyn Device,
        session: S,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<FlowSession<S>, DeviceError> {
        let flows = program.flow_program().expect("it is for programs with flows");
        Ok(FlowSession {
            program: program.clone(),
            options: options.clone(),
            flow_ids: device.load(&Arc::new(flows), &LoadOptions { synthetic_work: None, ..options.clone() })?,
            session,
            fallback: None,
            on_fallback: false,
            skew: 0,
            routed: VecDeque::new(),
            failed: None,
        })
    }

    /// Has the oldest batch go on whose numbers are asked for, once they are there.
    fn forward_oldest(&mut self) -> Result<(), DeviceError> {
        let Some(Completion { batch, verdicts, .. }) = self.flow_ids.complete()? else { return Ok(()) };
        self.choose_session(&batch, verdicts.targets())?;
        let routed = match (self.on_fallback, &mut self.fallback) {
            (true, Some(fallback)) => fallback.submit(batch),
            _ => self.session.submit_with_flows(batch, verdicts.targets()),
        };
        routed.map_err(|refused| refused.error)?;
        self.routed.push_back(self.on_fallback);
        Ok(())
    }

    /// Decides where the next batch goes, and moves the maps there.
    fn choose_session(&mut self, batch: &Batch, flow_ids: &[u32]) -> Result<(), DeviceError> {
        let Some(device) = self.options.elephant_flow_device.clone() else { return Ok(()) };
        let on_fallback = if !batch.span().is_on_host() {
            // The other one need not reach it.
            self.skew = 0;
            false
        } else if flow_ids.len() <= MIN_ELEPHANT_PACKETS {
            // Nothing can be said of it, and it is soon done wherever it goes.
            self.on_fallback
        } else {
            self.skew = match largest_flow(flow_ids) > MIN_ELEPHANT_PACKETS.max(flow_ids.len() / MIN_ELEPHANT_SHARE) {
                true => (self.skew + 1).min(MAX_SKEW),
                false => self.skew.saturating_sub(1),
            };
            if self.on_fallback { self.skew > 0 } else { self.skew >= MIGRATE_THRESHOLD }
        };
        if on_fallback == self.on_fallback {
            return Ok(());
        }
        if self.fallback.is_none() {
            let options = LoadOptions { dispatch: None, elephant_flow_device: None, ..self.options.clone() };
            match device.load(&self.program, &options) {
                Ok(fallback) => self.fallback = Some(fallback),
                // It was not asked for: what there is goes on.
                Err(_) => self.options.elephant_flow_device = None,
            }
        }
        let Some(fallback) = &mut self.fallback else { return Ok(()) };
        // Both wait for the batches before.
        for map in 0..self.program.maps().len() {
            match on_fallback {
                true => fallback.set_map_words(map, 0, &self.session.map_words(map)?)?,
                false => self.session.set_map_words(map, 0, &fallback.map_words(map)?)?,
            }
        }
        self.on_fallback = on_fallback;
        Ok(())
    }

    /// Has batches go on until no more than so many are asked about. One that fails is told of when it is completed.
    fn forward_until(&mut self, most: usize) {
        while self.failed.is_none() && self.flow_ids.in_flight() > most {
            self.failed = self.forward_oldest().err();
        }
    }

    /// The session that has the maps, when all batches have gone on.
    fn map_owner(&mut self) -> Result<&mut dyn Session, DeviceError> {
        self.forward_until(0);
        match (&self.failed, &mut self.fallback) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(fallback)) if self.on_fallback => Ok(&mut **fallback),
            _ => Ok(&mut self.session),
        }
    }
}

/// How many packets have the number that most have.
fn largest_flow(flow_ids: &[u32]) -> usize {
    // By the highest bits, as lanes share flows out.
    const BITS: u32 = 12;
    let mut counts = vec![0_usize; 1 << BITS];
    flow_ids.iter().for_each(|number| counts[(number >> (FLOW_BITS - BITS)) as usize & ((1 << BITS) - 1)] += 1);
    // Others share those bits: an even part of the batch is not the flow's.
    counts.into_iter().max().unwrap_or(0).saturating_sub((2 * flow_ids.len()) >> BITS)
}

impl<S: OrderedSession> Session for FlowSession<S> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.flow_ids.import(span)?;
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let checked = check_batch(&self.program, &batch, self.in_flight(), self.depth());
        // Once its numbers are known nobody could be given it back.
        if let Err(error) = checked.and_then(|()| self.session.check_submit(&batch)) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.forward_until(self.flow_ids.depth() - 1);
        if let Some(error) = &self.failed {
            return Err(SubmitError { batch: Box::new(batch), error: error.clone() });
        }
        self.flow_ids.submit(batch)?;
        // The numbers of this one are found while those before are filtered.
        self.forward_until(1);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        if self.routed.is_empty() {
            self.forward_until(0);
        }
        match (self.routed.pop_front(), &self.failed, &mut self.fallback) {
            (None, Some(error), _) => Err(error.clone()),
            (Some(true), _, Some(fallback)) => fallback.complete(),
            (Some(_), ..) => self.session.complete(),
            (None, None, _) => Ok(None),
        }
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        self.map_owner()?.map_words(map)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        self.map_owner()?.map_words_at(map, at, words)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.map_owner()?.set_map_words(map, at, words)
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.session.transfer_plan()
    }

    /// Finding the numbers of flows is the filter's time as well; its bytes are not counted twice as packets.
    fn stages(&self) -> Option<Stages> {
        let (mut sum, flow_ids) = self.session.stages().zip(self.flow_ids.stages())?;
        let (batches, packets, transfers) = (sum.batches, sum.packets, sum.transfers);
        sum += flow_ids;
        (sum.batches, sum.packets, sum.transfers) = (batches, packets, transfers);
        if let Some(fallback) = self.fallback.as_ref().and_then(|fallback| fallback.stages()) {
            sum += fallback;
        }
        Some(sum)
    }

    fn in_flight(&self) -> usize {
        self.flow_ids.in_flight() + self.routed.len()
    }

    fn depth(&self) -> usize {
        self.options.depth.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_large_flow_makes_a_batch_one_sided() {
        let flow_ids = |count: u32, of_one: u32| -> Vec<u32> {
            let number = |i: u32| if i % 100 < of_one { 7 << 12 } else { i.wrapping_mul(0x9e37_79b1) >> 8 };
            (0..count).map(number).collect()
        };
        let large = |count, of_one| {
            largest_flow(&flow_ids(count, of_one)) > MIN_ELEPHANT_PACKETS.max(count as usize / MIN_ELEPHANT_SHARE)
        };
        assert!(!large(1000, 100), "a lane is done with them soon");
        assert!(large(2000, 90) && large(100_000, 90) && large(1_000_000, 3));
        assert!(!large(2000, 20) && !large(100_000, 1) && !large(1_000_000, 0));
    }
}
