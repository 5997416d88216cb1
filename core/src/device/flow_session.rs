//! Sessions for filters with flows: packets of a flow are filtered one at a time, in order.
//!
//! A first kernel, the classifier, computes the flow id of each packet (a hash of what `xdp_flow`
//! returns). A second session then runs the filter and keeps packets with equal ids in order.
//!
//! A kernel invocation takes all packets of a flow, so one invocation filters most of a batch that
//! one (elephant) flow dominates. Such batches go to another device
//! ([`LoadOptions::elephant_flow_device`]), and the maps move along.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{
    Completion, Device, DeviceError, Imported, Instrumented, LoadOptions, Session, Stages, SubmitError, TransferPlan,
    check_batch,
};
use crate::packet::{Batch, DeviceView, Span};
use crate::program::{FLOW_BITS, Program};

/// A session that filters the packets of each flow one at a time, in arrival order.
pub trait OrderedSession: Session {
    /// Whether [`OrderedSession::submit_with_flows`] would accept the batch, as far as that depends
    /// on the batch.
    ///
    /// # Errors
    /// The reason why it would not.
    fn check_submit(&mut self, batch: &Batch) -> Result<(), DeviceError>;

    /// Like [`Session::submit`], with the flow id of each packet.
    ///
    /// # Errors
    /// As [`Session::submit`].
    fn submit_with_flows(&mut self, batch: Batch, flow_ids: &[u32]) -> Result<(), SubmitError>;
}

/// Minimum number of packets of one flow that makes it an elephant flow.
const MIN_ELEPHANT_PACKETS: usize = 1024;

/// An elephant flow has at least this fraction of the batch: one in `MIN_ELEPHANT_SHARE` packets.
const MIN_ELEPHANT_SHARE: usize = 64;

/// Skewed batches in excess of others, counted up to `MAX_SKEW`, that move the filter to the other
/// device. Moving copies all maps, so a single batch does not suffice.
const MIGRATE_THRESHOLD: u32 = 2;
const MAX_SKEW: u32 = 4;

/// A session for a filter with flows; see the module.
pub struct FlowSession<S> {
    program: Arc<Program>,
    options: LoadOptions,
    /// Redirects each packet to its flow id.
    classifier: Box<dyn Session>,
    session: S,
    /// Session on the device for elephant flows, loaded on first use.
    fallback: Option<Box<dyn Session>>,
    /// Whether new batches, and the maps, are on the fallback session.
    on_fallback: bool,
    /// Recent skewed batches in excess of others.
    skew: u32,
    /// For each batch that was classified and submitted: whether to the fallback session.
    routed: VecDeque<bool>,
    /// The error that lost a classified batch, and with it all batches behind.
    failed: Option<DeviceError>,
}

impl<S: OrderedSession> FlowSession<S> {
    /// Creates a session from `session` for the program on `device`, which also runs the
    /// classifier.
    ///
    /// # Errors
    /// As [`Device::load`].
    pub fn new(
        device: &dyn Device,
        session: S,
        program: &Arc<Program>,
        options: &LoadOptions,
    ) -> Result<FlowSession<S>, DeviceError> {
        let flows = program.flow_program().expect("a flow session needs a program with flows");
        let mut without_work = options.clone();
        without_work.measure.synthetic_work = None;
        Ok(FlowSession {
            program: program.clone(),
            options: options.clone(),
            classifier: device.load(&Arc::new(flows), &without_work)?,
            session,
            fallback: None,
            on_fallback: false,
            skew: 0,
            routed: VecDeque::new(),
            failed: None,
        })
    }

    /// Completes the classification of the oldest batch and submits the batch to its session.
    fn forward_oldest(&mut self) -> Result<(), DeviceError> {
        let Some(Completion { batch, verdicts, .. }) = self.classifier.complete()? else { return Ok(()) };
        self.choose_session(&batch, verdicts.targets())?;
        let routed = match (self.on_fallback, &mut self.fallback) {
            (true, Some(fallback)) => fallback.submit(batch),
            _ => self.session.submit_with_flows(batch, verdicts.targets()),
        };
        routed.map_err(|refused| refused.error)?;
        self.routed.push_back(self.on_fallback);
        Ok(())
    }

    /// Selects the session for the next batch, and moves the maps if it changes.
    fn choose_session(&mut self, batch: &Batch, flow_ids: &[u32]) -> Result<(), DeviceError> {
        let Some(device) = self.options.elephant_flow_device.clone() else { return Ok(()) };
        let on_fallback = if !batch.span().is_on_host() {
            // The other device may be unable to access device memory.
            self.skew = 0;
            false
        } else if flow_ids.len() <= MIN_ELEPHANT_PACKETS {
            // Too few packets to tell, and quickly filtered on either device.
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
                // The other device is an optimisation: carry on without it.
                Err(_) => self.options.elephant_flow_device = None,
            }
        }
        let Some(fallback) = &mut self.fallback else { return Ok(()) };
        // Both wait for the batches submitted before.
        for map in 0..self.program.maps().len() {
            match on_fallback {
                true => fallback.set_map_words(map, 0, &self.session.map_words(map)?)?,
                false => self.session.set_map_words(map, 0, &fallback.map_words(map)?)?,
            }
        }
        self.on_fallback = on_fallback;
        Ok(())
    }

    /// Forwards batches until at most `max_pending` are being classified. [`Session::complete`]
    /// reports an error.
    fn forward_until(&mut self, max_pending: usize) {
        while self.failed.is_none() && self.classifier.in_flight() > max_pending {
            self.failed = self.forward_oldest().err();
        }
    }

    /// The session that holds the maps, after all batches have been forwarded to it.
    fn map_owner(&mut self) -> Result<&mut dyn Session, DeviceError> {
        self.forward_until(0);
        match (&self.failed, &mut self.fallback) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(fallback)) if self.on_fallback => Ok(&mut **fallback),
            _ => Ok(&mut self.session),
        }
    }
}

/// Estimates the number of packets of the largest flow.
fn largest_flow(flow_ids: &[u32]) -> usize {
    // Count by the highest bits of the id, by which kernel invocations tell flows apart too.
    const BITS: u32 = 12;
    let mut counts = vec![0_usize; 1 << BITS];
    flow_ids.iter().for_each(|id| counts[(id >> (FLOW_BITS - BITS)) as usize & ((1 << BITS) - 1)] += 1);
    // Other flows share these bits: subtract twice the mean.
    counts.into_iter().max().unwrap_or(0).saturating_sub((2 * flow_ids.len()) >> BITS)
}

impl<S: OrderedSession> Session for FlowSession<S> {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        self.classifier.import(span)?;
        self.session.import(span)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let checked = check_batch(&self.program, &batch, self.in_flight(), self.depth());
        // Check now: after classification the batch cannot be returned to the caller.
        if let Err(error) = checked.and_then(|()| self.session.check_submit(&batch)) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        self.forward_until(self.classifier.depth() - 1);
        if let Some(error) = &self.failed {
            return Err(SubmitError { batch: Box::new(batch), error: error.clone() });
        }
        self.classifier.submit(batch)?;
        // Classify this batch while the ones before are being filtered.
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

    fn map_device_view(&mut self, map: usize) -> Result<Option<DeviceView>, DeviceError> {
        self.map_owner()?.map_device_view(map)
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        self.map_owner()?.set_map_words(map, at, words)
    }

    fn in_flight(&self) -> usize {
        self.classifier.in_flight() + self.routed.len()
    }

    fn depth(&self) -> usize {
        self.options.depth.max(1)
    }
}

impl<S: OrderedSession> Instrumented for FlowSession<S> {
    /// Classification counts as the filter's time and bytes, but not as batches or packets of its
    /// own.
    fn stages(&self) -> Option<Stages> {
        let (mut sum, flow_ids) = self.session.stages().zip(self.classifier.stages())?;
        let (batches, packets, transfers) = (sum.batches, sum.packets, sum.transfers);
        sum += flow_ids;
        (sum.batches, sum.packets, sum.transfers) = (batches, packets, transfers);
        if let Some(fallback) = self.fallback.as_ref().and_then(|fallback| fallback.stages()) {
            sum += fallback;
        }
        Some(sum)
    }

    fn transfer_plan(&self) -> Option<TransferPlan> {
        self.session.transfer_plan()
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.session.take_warnings()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_elephant_flows_skew_a_batch() {
        let flow_ids = |count: u32, of_one: u32| -> Vec<u32> {
            let number = |i: u32| if i % 100 < of_one { 7 << 12 } else { i.wrapping_mul(0x9e37_79b1) >> 8 };
            (0..count).map(number).collect()
        };
        let large = |count, of_one| {
            largest_flow(&flow_ids(count, of_one)) > MIN_ELEPHANT_PACKETS.max(count as usize / MIN_ELEPHANT_SHARE)
        };
        assert!(!large(1000, 100), "an invocation filters so few packets quickly");
        assert!(large(2000, 90) && large(100_000, 90) && large(1_000_000, 3));
        assert!(!large(2000, 20) && !large(100_000, 1) && !large(1_000_000, 0));
    }
}
