//! A filter on several devices: each batch goes to the one that its size favours, or in two parts to two, and all come back in
//! the order they went in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use portcullis_core::device::{
    self, Completion, DeviceError, Imported, Session, Stages, SubmitError, check_batch, check_host_memory,
    check_map_range, map_layout,
};
use portcullis_core::packet::{Batch, Span};
use portcullis_core::program::Program;

use super::chooser::{Choice, Chooser};
use super::costs::{Plan, class_of};
use super::measure::Clock;

/// Batches in a row that have company in flight before times of lone ones are of no interest, and the other way round.
const COMPANY: u32 = 32;

/// A device's session, where it is kept ready.
pub struct Ready {
    /// The device's id.
    pub id: String,
    /// Its session.
    pub session: Box<dyn Session>,
}

/// A batch in flight.
struct Entry {
    place: Place,
    timing: Option<Timing>,
}

enum Place {
    /// On a device.
    Device(usize),
    /// The first part on one device, the second one on another.
    Split(usize, usize),
    /// Back already, for there was no room for one behind it.
    Back(Box<Result<Completion, DeviceError>>),
}

/// What is to be known of a batch to learn from its time.
struct Timing {
    plan: Plan,
    class: usize,
    packets: usize,
    submitted: Duration,
    /// Time that submitting it took, in which it was brought to the device, or filtered.
    busy: Duration,
    /// Whether one by the same plan was in flight before it, which its device was busy with.
    company: bool,
}

/// See the module.
pub struct AutoSession {
    program: Arc<Program>,
    devices: Vec<Option<Ready>>,
    chooser: Chooser,
    clock: Arc<dyn Clock>,
    queue: VecDeque<Entry>,
    /// The device that has what is in flight behind the queue, and how many batches that are: of those nothing else is known,
    /// for small ones are filtered in the time that more would take.
    streak: (usize, usize),
    again: Again,
    depth: usize,
    /// By which plan the last batch went.
    last_plan: Option<Plan>,
    /// When the batch before the next one came back, where anybody looked.
    last_back: Option<Duration>,
    /// How usual it is that batches have company.
    company: u32,
}

/// What is decided for batches like the last one.
#[derive(Clone, Copy, Default)]
struct Again {
    packets: usize,
    class: usize,
    device: usize,
    /// How many of them.
    left: u32,
}

impl AutoSession {
    /// Of these devices, those of which the chooser holds for ready have a session.
    pub fn new(
        program: &Arc<Program>,
        devices: Vec<Option<Ready>>,
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
            again: Again::default(),
            depth: depth.max(1),
            last_plan: None,
            last_back: None,
            company: 0,
        }
    }

    fn device(&mut self, device: usize) -> Result<&mut Ready, DeviceError> {
        let ready = self.devices.get_mut(device).and_then(Option::as_mut);
        ready.ok_or_else(|| DeviceError::Missing(format!("device {device} is not loaded (a fault of this program)")))
    }

    /// The plan for a batch, which may be one device's alone by where its packets are.
    fn choose(&mut self, batch: &Batch) -> (Choice, usize) {
        let class = class_of(usual_length(batch));
        if let Some(view) = batch.span().device_view().filter(|_| !batch.span().is_on_host()) {
            let owner = self.devices.iter().position(|it| it.as_ref().is_some_and(|it| it.id == view.device));
            // Where it is none of them, any of them says so.
            let any = self.devices.iter().position(Option::is_some);
            let plan = Plan::One(owner.or(any).unwrap_or(0));
            return (Choice { plan, timed: false }, class);
        }
        (self.chooser.next(class, batch.len()), class)
    }

    /// Has a device have room for one more batch. What it has first is completed, though it is not its turn.
    fn make_room(&mut self, device: usize) -> Result<(), DeviceError> {
        loop {
            let session = &mut self.device(device)?.session;
            if session.in_flight() < session.depth() {
                return Ok(());
            }
            let is_there = |entry: &Entry| match entry.place {
                Place::Device(at) => at == device,
                Place::Split(first, second) => first == device || second == device,
                Place::Back(_) => false,
            };
            let Some(at) = self.queue.iter().position(is_there) else {
                return Err(DeviceError::Refused("a device is busy with nothing (a fault of this program)".into()));
            };
            self.bring_back(at + 1);
            self.last_back = None;
        }
    }

    /// Completes the first `entries` of the queue, in order: each device gives its batches in the order in which it got
    /// them, so that none may be taken before those of an earlier entry.
    fn bring_back(&mut self, entries: usize) {
        for at in 0..entries {
            let done = match self.queue[at].place {
                Place::Device(device) => self.complete_on(device),
                Place::Split(first, second) => self.complete_both(first, second),
                Place::Back(_) => continue,
            };
            self.queue[at] = Entry { place: Place::Back(Box::new(done)), timing: None };
        }
    }

    fn complete_on(&mut self, device: usize) -> Result<Completion, DeviceError> {
        let ready = self.device(device)?;
        let done = ready.session.complete()?;
        done.ok_or_else(|| DeviceError::Failed {
            device: ready.id.clone(),
            reason: "has no batch where there must be one (a fault of this program)".into(),
        })
    }

    /// The first part is filtered on the caller's thread where it is small or the device does so: the other device works
    /// meanwhile.
    fn complete_both(&mut self, first: usize, second: usize) -> Result<Completion, DeviceError> {
        let head = self.complete_on(first);
        // Whatever came of the first: a batch that stays there would be taken for the next one.
        let tail = self.complete_on(second);
        let (mut done, tail) = (head?, tail?);
        done.batch.join(tail.batch);
        done.verdicts.append(tail.verdicts);
        done.times += tail.times;
        Ok(done)
    }

    /// Sends a batch by a plan; gives it back where that does not do.
    fn send(&mut self, mut batch: Batch, plan: Plan) -> Result<Place, SubmitError> {
        let refuse = |batch, error| Err(SubmitError { batch: Box::new(batch), error });
        match plan {
            Plan::One(device) => {
                if let Err(error) = self.make_room(device) {
                    return refuse(batch, error);
                }
                match self.device(device) {
                    Ok(ready) => ready.session.submit(batch).map(|()| Place::Device(device)),
                    Err(error) => refuse(batch, error),
                }
            }
            Plan::Split { first, second, share } => {
                let room = self.make_room(first).and_then(|()| self.make_room(second));
                let fits = room.and_then(|()| check_host_memory(batch.span()));
                let fits = fits.and_then(|()| check_batch(&self.program, &batch, 0, 1));
                let fits = fits.and_then(|()| self.device(first).map(drop));
                let fits = fits.and_then(|()| self.device(second).map(drop));
                if let Err(error) = fits {
                    return refuse(batch, error);
                }
                let tail = batch.split_off(Plan::first_part(share, batch.len()));
                // The one that works on its own begins: the first may filter its part here and now.
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
                    Ok(Ok(())) => Ok(Place::Split(first, second)),
                    Ok(Err(SubmitError { batch: mut head, error })) => {
                        // The other part is under way, and is waited for behind all that is there before it: nobody may
                        // have its packets before.
                        let tail = self.take_newest(second);
                        match tail {
                            // What the filter wrote stays: the batch is no longer untouched, and so is none to send again.
                            Ok(done) => {
                                head.join(done.batch);
                                Ok(Place::Back(Box::new(Err(error))))
                            }
                            Err(failed) => Ok(Place::Back(Box::new(Err(failed)))),
                        }
                    }
                    Err(error) => Ok(Place::Back(Box::new(Err(error)))),
                }
            }
        }
    }

    /// Whether a batch is like the one before it, which was decided for more like it: then it need not be looked at further.
    fn is_again(&self, batch: &Batch) -> bool {
        let Again { packets, class, device, left } = self.again;
        left > 0
            && batch.len() == packets
            && (self.streak.1 == 0 || self.streak.0 == device)
            && batch.span().is_on_host()
            && class_of(usual_length(batch)) == class
    }

    /// The session for such a batch, if it has room.
    fn again_session(&mut self) -> Option<&mut dyn Session> {
        let ready = self.devices[self.again.device].as_mut().expect("it has had a batch");
        (ready.session.in_flight() < ready.session.depth()).then_some(&mut *ready.session)
    }

    /// A batch that has to be decided about.
    fn submit_anew(&mut self, batch: Batch) -> Result<(), SubmitError> {
        self.chooser.did_not_come(std::mem::take(&mut self.again.left));
        let (choice, class) = self.choose(&batch);
        self.begin(batch, choice, class)
    }

    /// Batches that went the way of all others become such as any.
    fn end_streak(&mut self) {
        let (device, count) = std::mem::take(&mut self.streak);
        self.queue.extend((0..count).map(|_| Entry { place: Place::Device(device), timing: None }));
    }

    /// Begins with a batch by a plan, for which there is a place in the queue.
    pub(super) fn begin(&mut self, batch: Batch, choice: Choice, class: usize) -> Result<(), SubmitError> {
        self.end_streak();
        let Choice { mut plan, timed } = choice;
        let packets = batch.len();
        self.note_company(!self.queue.is_empty());
        let submitted = timed.then(|| self.clock.now());
        let place = match self.send(batch, plan) {
            // What is too much for one device, another may take.
            Err(SubmitError { batch, error: error @ DeviceError::Refused(_) }) if batch.span().is_on_host() => {
                match self.chooser.instead(&plan, class, packets) {
                    Some(other) => {
                        plan = other;
                        self.send(*batch, other)?
                    }
                    None => return Err(SubmitError { batch, error }),
                }
            }
            sent => sent?,
        };
        let company = !self.queue.is_empty() && self.last_plan.is_some_and(|last| last.is_as(&plan));
        let timing = submitted.map(|submitted| {
            let busy = self.clock.now().saturating_sub(submitted);
            Timing { plan, class, packets, submitted, busy, company }
        });
        self.last_plan = Some(plan);
        if let (Plan::One(device), &Place::Device(_)) = (plan, &place) {
            let left = if plan.is_as(&choice.plan) { self.chooser.again(class, packets) } else { 0 };
            self.again = Again { packets, class, device, left };
        }
        self.queue.push_back(Entry { place, timing });
        Ok(())
    }

    /// Completes all that is under way, and gives the last that a device has.
    fn take_newest(&mut self, device: usize) -> Result<Completion, DeviceError> {
        self.bring_back(self.queue.len());
        self.complete_on(device)
    }

    /// Learns from a batch that came back.
    fn learn(&mut self, timing: &Timing, asked: Duration, now: Duration) {
        let before = if timing.company { self.last_back } else { Some(timing.submitted) };
        // One that had nothing before it says how long one takes, but not how many a second there are.
        let counts = timing.company || self.company == 0;
        if let Some(before) = before.filter(|_| counts) {
            let begun = before.max(timing.submitted);
            let most = now.saturating_sub(begun);
            // It may have been done long before anybody asked.
            let least = (timing.busy + now.saturating_sub(asked)).min(most);
            let [least, most] = [least, most].map(|time| time.as_secs_f64() * 1e9);
            self.chooser.took(&timing.plan, timing.class, timing.packets, least, most);
        }
    }

    fn note_company(&mut self, is_there: bool) {
        self.company = if is_there { COMPANY } else { self.company.saturating_sub(1) };
    }
}

/// What packets of a batch are long, by a few of them: costs are known for few lengths.
fn usual_length(batch: &Batch) -> u32 {
    let descriptors = batch.descriptors();
    let Some(last) = descriptors.len().checked_sub(1) else { return 0 };
    let lengths = [0, last / 3, last / 2, last].map(|index| u64::from(descriptors[index].length));
    (lengths.iter().sum::<u64>() / 4) as u32
}

impl Session for AutoSession {
    fn finish_background_work(&mut self) {
        self.devices.iter_mut().flatten().for_each(|ready| ready.session.finish_background_work());
    }

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
        // Small batches take no longer than moving them from place to place a few times: they are handed on as they are.
        if self.is_again(&batch)
            && let Some(session) = self.again_session()
        {
            return match session.submit(batch) {
                Ok(()) => {
                    self.again.left -= 1;
                    self.streak = (self.again.device, self.streak.1 + 1);
                    Ok(())
                }
                // It may be for another device.
                Err(SubmitError { batch, error: DeviceError::Refused(_) }) => self.submit_anew(*batch),
                failed => failed,
            };
        }
        self.submit_anew(batch)
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(Entry { place, timing }) = self.queue.pop_front() else {
            let (device, count @ 1..) = self.streak else { return Ok(None) };
            self.streak.1 = count - 1;
            self.last_back = None;
            return self.device(device)?.session.complete();
        };
        let timing = timing.map(|timing| (timing, self.clock.now()));
        let done = match place {
            Place::Device(device) => self.complete_on(device)?,
            Place::Split(first, second) => self.complete_both(first, second)?,
            Place::Back(done) => {
                self.last_back = None;
                return done.map(Some);
            }
        };
        match timing {
            Some((timing, asked)) => {
                let now = self.clock.now();
                self.learn(&timing, asked, now);
                self.last_back = Some(now);
            }
            None => self.last_back = None,
        }
        Ok(Some(done))
    }

    // Filters with maps are on one device, by its own session: what follows is for those that ask without need.

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        map_layout(&self.program, map).map(|_| Vec::new())
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.program, map, at, words.len())
    }

    /// Those of all devices; a batch that was cut in two counts as two.
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

    fn in_flight(&self) -> usize {
        self.queue.len() + self.streak.1
    }

    fn depth(&self) -> usize {
        self.depth
    }
}
