//! A filter loaded on several devices. Each batch goes to the device that the chooser picks, or
//! split to two; batches complete in the order of submission.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::{
    self, Completion, DeviceError, Imported, Instrumented, Session, SingleDispatch, Stages, SubmitError, check_batch,
    check_host_memory, check_map_range, map_layout,
};
use portcullis_core::packet::{Batch, Span};
use portcullis_core::program::Program;

use super::chooser::{Choice, Chooser};
use super::costs::{Placement, length_class};
use super::measure::Clock;

/// Number of consecutive batches after which the usual concurrency is reassessed: times of batches
/// that ran alone count only if that is usual, and vice versa.
const CONCURRENCY_MEMORY: u32 = 32;

/// A device that the filter is loaded on.
pub struct LoadedDevice {
    /// Id of the device.
    pub id: String,
    /// Session on the device.
    pub session: Box<dyn Session>,
}

/// A batch in flight.
struct InFlightBatch {
    location: BatchLocation,
    timing: Option<Timing>,
}

enum BatchLocation {
    /// Submitted to a device.
    Device(usize),
    /// First part submitted to one device, second part to another.
    Split(usize, usize),
    /// Completed early to make room on its device.
    Completed(Box<Result<Completion, DeviceError>>),
}

/// Data for correcting the costs by a batch's time.
struct Timing {
    placement: Placement,
    class: usize,
    packets: usize,
    submitted: Duration,
    /// Time that `submit` took: the transfer to the device, or all of the filtering.
    busy: Duration,
    /// Whether the previous batch, with the same placement, was in flight and kept the device busy.
    is_concurrent: bool,
}

/// A session over several devices; see the [module](self).
pub struct AutoSession {
    program: Arc<Program>,
    devices: Vec<Option<LoadedDevice>>,
    chooser: Chooser,
    clock: Arc<dyn Clock>,
    queue: VecDeque<InFlightBatch>,
    /// The device that has the batches in flight behind the queue, and their number. Nothing else
    /// is recorded of these small batches: it would take as long as filtering them.
    streak: (usize, usize),
    repeated: RepeatedChoice,
    depth: usize,
    /// Placement of the last batch.
    last_placement: Option<Placement>,
    /// When the batch before the next one completed, if that was timed.
    last_completion: Option<Duration>,
    /// How many more batches concurrency counts as usual.
    concurrency: u32,
}

/// The decision that is repeated for batches like the last one.
#[derive(Clone, Copy, Default)]
struct RepeatedChoice {
    packets: usize,
    class: usize,
    device: usize,
    /// Number of batches that it still applies to.
    left: u32,
}

impl AutoSession {
    /// Creates a session. Each device that the chooser may pick must be loaded.
    pub fn new(
        program: &Arc<Program>,
        devices: Vec<Option<LoadedDevice>>,
        chooser: Chooser,
        clock: Arc<dyn Clock>,
        depth: usize,
    ) -> AutoSession {
        AutoSession {
            program: program.clone(),
            devices,
            chooser,
            clock,
            queue: VecDeque::new(),
            streak: (0, 0),
            repeated: RepeatedChoice::default(),
            depth: depth.max(1),
            last_placement: None,
            last_completion: None,
            concurrency: 0,
        }
    }

    fn device(&mut self, device: usize) -> Result<&mut LoadedDevice, DeviceError> {
        let ready = self.devices.get_mut(device).and_then(Option::as_mut);
        ready.ok_or_else(|| DeviceError::Missing(format!("device {device} is not loaded (internal error)")))
    }

    /// Chooses the placement of a batch. Packets in device memory bind it to that device.
    fn choose(&mut self, batch: &Batch) -> (Choice, usize) {
        let class = length_class(typical_length(batch));
        if let Some(view) = batch.span().device_view().filter(|_| !batch.span().is_on_host()) {
            let owner = self
                .devices
                .iter()
                .position(|it| it.as_ref().is_some_and(|it| SingleDispatch::base_id(&it.id) == view.device));
            // If none of the devices owns the memory, any of them will report that.
            let any = self.devices.iter().position(Option::is_some);
            let placement = Placement::Single(owner.or(any).unwrap_or(0));
            return (Choice { placement, timed: false }, class);
        }
        (self.chooser.choose(class, batch.len()), class)
    }

    /// Ensures that a device has capacity for a batch, by completing its oldest batches early.
    fn ensure_capacity(&mut self, device: usize) -> Result<(), DeviceError> {
        loop {
            let session = &mut self.device(device)?.session;
            if session.in_flight() < session.depth() {
                return Ok(());
            }
            let is_there = |entry: &InFlightBatch| match entry.location {
                BatchLocation::Device(at) => at == device,
                BatchLocation::Split(first, second) => first == device || second == device,
                BatchLocation::Completed(_) => false,
            };
            let Some(at) = self.queue.iter().position(is_there) else {
                return Err(DeviceError::Refused("a device is full without a batch in flight (internal error)".into()));
            };
            self.complete_entries(at + 1);
            self.last_completion = None;
        }
    }

    /// Completes the first `entries` of the queue. They must complete in order because each device
    /// completes its batches in order of submission.
    fn complete_entries(&mut self, entries: usize) {
        for at in 0..entries {
            let done = match self.queue[at].location {
                BatchLocation::Device(device) => self.complete_on(device),
                BatchLocation::Split(first, second) => self.complete_both(first, second),
                BatchLocation::Completed(_) => continue,
            };
            self.queue[at] = InFlightBatch { location: BatchLocation::Completed(Box::new(done)), timing: None };
        }
    }

    fn complete_on(&mut self, device: usize) -> Result<Completion, DeviceError> {
        let ready = self.device(device)?;
        let done = ready.session.complete()?;
        done.ok_or_else(|| DeviceError::Failed {
            device: ready.id.clone(),
            reason: "has no batch to complete (internal error)".into(),
        })
    }

    /// Completes both parts of a split batch. The first device may filter its part in this call,
    /// while the second works.
    fn complete_both(&mut self, first: usize, second: usize) -> Result<Completion, DeviceError> {
        let head = self.complete_on(first);
        // Complete the second part in any case: left behind, it would be taken for the next
        // batch's.
        let tail = self.complete_on(second);
        let (mut done, tail) = (head?, tail?);
        done.batch.join(tail.batch);
        done.verdicts.append(tail.verdicts);
        done.times += tail.times;
        Ok(done)
    }

    /// Submits a batch with a placement, or returns it if that fails.
    fn submit_to(&mut self, mut batch: Batch, placement: Placement) -> Result<BatchLocation, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        match placement {
            Placement::Single(device) => {
                if let Err(error) = self.ensure_capacity(device) {
                    return refuse(batch, error);
                }
                match self.device(device) {
                    Ok(ready) => ready.session.submit(batch).map(|()| BatchLocation::Device(device)),
                    Err(error) => refuse(batch, error),
                }
            }
            Placement::Split { first, second, share } => {
                let room = self.ensure_capacity(first).and_then(|()| self.ensure_capacity(second));
                let checked = room.and_then(|()| check_host_memory(batch.span()));
                let checked = checked.and_then(|()| check_batch(&self.program, &batch, 0, 1));
                let checked = checked.and_then(|()| self.device(first).map(drop));
                let checked = checked.and_then(|()| self.device(second).map(drop));
                if let Err(error) = checked {
                    return refuse(batch, error);
                }
                let tail = batch.split_off(Placement::first_part(share, batch.len()));
                // Submit to the asynchronous device first: the first device may filter its part
                // within `submit`.
                let submitted = self.device(second).map(|ready| ready.session.submit(tail));
                match submitted {
                    Ok(Ok(())) => {}
                    Ok(Err(refused)) => {
                        batch.join(*refused.batch);
                        return refuse(batch, refused.error);
                    }
                    Err(error) => return refuse(batch, error),
                }
                let submitted = self.device(first).map(|ready| ready.session.submit(batch));
                match submitted {
                    Ok(Ok(())) => Ok(BatchLocation::Split(first, second)),
                    Ok(Err(SubmitError { batch: mut head, error })) => {
                        // The other part is in flight and must complete, after everything before
                        // it, before anyone may use its packets.
                        let tail = self.complete_newest(second);
                        match tail {
                            // The filter may have changed packets, so the batch cannot be submitted
                            // again.
                            Ok(done) => {
                                head.join(done.batch);
                                Ok(BatchLocation::Completed(Box::new(Err(error))))
                            }
                            Err(failed) => Ok(BatchLocation::Completed(Box::new(Err(failed)))),
                        }
                    }
                    Err(error) => Ok(BatchLocation::Completed(Box::new(Err(error)))),
                }
            }
        }
    }

    /// Whether the last decision applies to this batch, so that no other state need be read.
    fn matches_repeated(&self, batch: &Batch) -> bool {
        let RepeatedChoice { packets, class, device, left } = self.repeated;
        left > 0
            && batch.len() == packets
            && (self.streak.1 == 0 || self.streak.0 == device)
            && batch.span().is_on_host()
            && length_class(typical_length(batch)) == class
    }

    /// The session of the repeated decision, if it has capacity.
    fn repeated_session(&mut self) -> Option<&mut dyn Session> {
        let ready = self.devices[self.repeated.device].as_mut().expect("it has had a batch");
        (ready.session.in_flight() < ready.session.depth()).then_some(&mut *ready.session)
    }

    /// Submits a batch with a new decision.
    fn submit_with_new_choice(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.chooser.return_repeats(std::mem::take(&mut self.repeated.left));
        let (choice, class) = self.choose(&batch);
        self.submit_with(batch, choice, class)
    }

    /// Turns the batches of the streak into ordinary queue entries.
    fn end_streak(&mut self) {
        let (device, count) = std::mem::take(&mut self.streak);
        self.queue.extend((0..count).map(|_| InFlightBatch { location: BatchLocation::Device(device), timing: None }));
    }

    /// Submits a batch with a placement. The caller has checked the depth.
    pub(super) fn submit_with(&mut self, batch: Batch, choice: Choice, class: usize) -> Result<(), SubmitError> {
        self.end_streak();
        let Choice { mut placement, timed } = choice;
        let packets = batch.len();
        self.record_concurrency(!self.queue.is_empty());
        let submitted = timed.then(|| self.clock.now());
        let location = match self.submit_to(batch, placement) {
            // Another device may accept what one device refuses, for example a batch that is too
            // large.
            Err(SubmitError { batch, error: error @ DeviceError::Refused(_) }) if batch.span().is_on_host() => {
                match self.chooser.alternative(&placement, class, packets) {
                    Some(other) => {
                        placement = other;
                        self.submit_to(*batch, other)?
                    }
                    None => return Err(SubmitError { batch, error }),
                }
            }
            sent => sent?,
        };
        let is_concurrent =
            !self.queue.is_empty() && self.last_placement.is_some_and(|last| last.has_same_devices(&placement));
        let timing = submitted.map(|submitted| {
            let busy = self.clock.now().saturating_sub(submitted);
            Timing { placement, class, packets, submitted, busy, is_concurrent }
        });
        self.last_placement = Some(placement);
        if let (Placement::Single(device), &BatchLocation::Device(_)) = (placement, &location) {
            let left = if placement.has_same_devices(&choice.placement) {
                self.chooser.reserve_repeats(class, packets)
            } else {
                0
            };
            self.repeated = RepeatedChoice { packets, class, device, left };
        }
        self.queue.push_back(InFlightBatch { location, timing });
        Ok(())
    }

    /// Completes everything in flight, and returns the newest batch of a device.
    fn complete_newest(&mut self, device: usize) -> Result<Completion, DeviceError> {
        self.complete_entries(self.queue.len());
        self.complete_on(device)
    }

    /// Corrects the costs by the time of a completed batch.
    fn learn(&mut self, timing: &Timing, polled: Duration, now: Duration) {
        let before = if timing.is_concurrent { self.last_completion } else { Some(timing.submitted) };
        // The latency of a batch that ran alone says nothing about throughput.
        let counts = timing.is_concurrent || self.concurrency == 0;
        if let Some(before) = before.filter(|_| counts) {
            let begun = before.max(timing.submitted);
            let most = now.saturating_sub(begun);
            // The batch may have been done long before `complete` was called.
            let least = (timing.busy + now.saturating_sub(polled)).min(most);
            let [least, most] = [least, most].map(|time| time.as_secs_f64() * 1e9);
            self.chooser.record_time(&timing.placement, timing.class, timing.packets, least, most);
        }
    }

    fn record_concurrency(&mut self, is_concurrent: bool) {
        self.concurrency = if is_concurrent { CONCURRENCY_MEMORY } else { self.concurrency.saturating_sub(1) };
    }
}

/// Typical packet length of a batch, from a sample of four: costs exist for few lengths only.
fn typical_length(batch: &Batch) -> u32 {
    let descriptors = batch.descriptors();
    let Some(last) = descriptors.len().checked_sub(1) else { return 0 };
    let lengths = [0, last / 3, last / 2, last].map(|index| u64::from(descriptors[index].length));
    (lengths.iter().sum::<u64>() / 4) as u32
}

impl Session for AutoSession {
    fn import(&mut self, span: &Arc<Span>) -> Result<Imported, DeviceError> {
        let mut imported = Imported::InPlace;
        for ready in self.devices.iter_mut().flatten() {
            if ready.session.import(span)? == Imported::Copied {
                imported = Imported::Copied;
            }
        }
        Ok(imported)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        let in_flight = self.in_flight();
        if in_flight >= self.depth {
            let error = DeviceError::Refused(format!("{in_flight} batches are in flight already, complete one first"));
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        // For small batches, even moving them through the queue would take as long as filtering.
        if self.matches_repeated(&batch)
            && let Some(session) = self.repeated_session()
        {
            return match session.submit(batch) {
                Ok(()) => {
                    self.repeated.left -= 1;
                    self.streak = (self.repeated.device, self.streak.1 + 1);
                    Ok(())
                }
                // Another device may accept it.
                Err(SubmitError { batch, error: DeviceError::Refused(_) }) => self.submit_with_new_choice(*batch),
                failed => failed,
            };
        }
        self.submit_with_new_choice(batch)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(InFlightBatch { location, timing }) = self.queue.pop_front() else {
            let (device, count @ 1..) = self.streak else { return Ok(None) };
            self.streak.1 = count - 1;
            self.last_completion = None;
            return self.device(device)?.session.complete();
        };
        let timing = timing.map(|timing| (timing, self.clock.now()));
        let done = match location {
            BatchLocation::Device(device) => self.complete_on(device)?,
            BatchLocation::Split(first, second) => self.complete_both(first, second)?,
            BatchLocation::Completed(done) => {
                self.last_completion = None;
                return done.map(Some);
            }
        };
        match timing {
            Some((timing, polled)) => {
                let now = self.clock.now();
                self.learn(&timing, polled, now);
                self.last_completion = Some(now);
            }
            None => self.last_completion = None,
        }
        Ok(Some(done))
    }

    // Filters with maps have a plain session on one device, so these only check their arguments.

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        map_layout(&self.program, map).map(|_| Vec::new())
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.program, map, at, words.len())
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.streak.1
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Instrumented for AutoSession {
    fn finish_background_work(&mut self) {
        self.devices.iter_mut().flatten().for_each(|ready| ready.session.finish_background_work());
    }

    /// Sum over all devices; a split batch counts twice.
    fn stages(&self) -> Option<Stages> {
        let mut sum = Stages::default();
        for ready in self.devices.iter().flatten() {
            sum += ready.session.stages()?;
        }
        Some(sum)
    }

    fn transfer_plan(&self) -> Option<device::TransferPlan> {
        self.devices.iter().flatten().find_map(|ready| ready.session.transfer_plan())
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.devices.iter_mut().flatten().flat_map(|ready| ready.session.take_warnings()).collect()
    }
}
