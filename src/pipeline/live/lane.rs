//! Driving a lane.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, DeviceError, Dispatch, Done, Session};
use portcullis_core::packet::Batch;
use portcullis_io::live::{Executor, LiveError, Receiver};
use tracing::Span;

use super::batcher::{Batcher, First, Look, PATIENCE};
use super::mailbox::{Mailbox, Order};
use super::sizing::{Shared, Sizer};
use super::stats::Filtered;
use super::{Backlog, LaneError, LaneStats, LiveLane, LiveOptions, Meter, pin};
use crate::pipeline::driver::{self, Ends, Next};
use crate::pipeline::{Broadcasts, Observer};

/// Batches between the RX thread and the driver, where packets wait.
const QUEUE: usize = 2;

/// How soon what is on its way out is looked after, while nothing else happens.
const SOON: Duration = Duration::from_micros(200);

/// How long frames may take to leave in the end.
const LEAVING: Duration = Duration::from_secs(1);

/// How long after an end was wanted the last packets may come: by then nobody sends them here any more.
const SETTLED: Duration = Duration::from_millis(50);

/// For how long packets are taken that came before an end was wanted.
const DRAIN: Duration = Duration::from_secs(1);

/// How often what came in and what the kernel dropped is asked for, a system call a queue: often enough for rates over a second to
/// be right.
const ASKED: Duration = Duration::from_millis(20);

/// Ends the run where the thread that has it dies: the other lanes are not to go on as if nothing had happened, nor is the
/// lane's other thread to be waited for that would.
struct Alive<'a>(&'a CancelToken);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.cancel();
        }
    }
}

/// One lane, until it ends.
pub(super) struct Driver<'a> {
    lane: &'a mut LiveLane,
    stats: &'a LaneStats,
    options: &'a LiveOptions,
    stop: &'a CancelToken,
    /// Where the RX thread is to be kept.
    processor: Option<usize>,
    shared: &'a Shared,
    observe: Option<&'a mut dyn Observer>,
}

/// When a batch began.
struct Begun {
    first: First,
    /// When it began to keep the lane's thread, or the device, from anything else.
    taken: Instant,
}

/// A batch from the RX thread.
type Gathered = (Batch, Begun);

impl<'a> Driver<'a> {
    pub fn new(
        lane: &'a mut LiveLane,
        stats: &'a LaneStats,
        options: &'a LiveOptions,
        (stop, processor): (&'a CancelToken, Option<usize>),
        shared: &'a Shared,
        observe: Option<&'a mut dyn Observer>,
    ) -> Driver<'a> {
        Driver { lane, stats, options, stop, processor, shared, observe }
    }

    pub fn run(self) -> Result<(), LaneError> {
        let Driver { lane, stats, options, stop, processor, shared, observe } = self;
        let LiveLane { lane, session, orders, broadcasts } = lane;
        let (name, receiver) = (&lane.name, &mut *lane.receiver);
        let is_inline = options.dispatch == Dispatch::Inline;
        let sizer = || (Sizer::new(options.closing, is_inline), Instant::now());
        let rest = |intake| Rest {
            intake,
            executor: &mut *lane.executor,
            broadcasts: broadcasts.as_mut(),
            orders,
            obeyed: VecDeque::new(),
            stats,
            meter: options.meter.as_deref(),
            is_measured: false,
            observe: observe.map(|observe| observe as _),
            sizing: options.closing.auto.then(sizer),
            shared,
            _alive: Alive(stop),
        };
        let gatherer = Gatherer {
            receiver: &mut *receiver,
            batcher: Batcher::new(options.closing, shared, options.meter.as_deref()),
            stats,
            stop,
            asked: Instant::now(),
            end: End::default(),
        };
        let ended = match is_inline {
            // One thread does everything.
            true => rest(Intake::Here(gatherer)).drive(session),
            false => {
                let waiting = AtomicUsize::new(0);
                let backlog = (options.backlog, &waiting);
                apart(name, gatherer, processor, backlog, |queue| rest(Intake::There(queue, &waiting)).drive(session))
            }
        };
        stats.received(receiver.received());
        if ended.is_err() {
            // Of the batch with which it failed a part may be through.
            stats.carried_in_all(lane.executor.executed());
        }
        ended
    }
}

/// A thread receives, and this one does the rest. `waiting` are the packets between the two.
fn apart(
    name: &str,
    gatherer: Gatherer<'_>,
    processor: Option<usize>,
    (backlog, waiting): (Backlog, &AtomicUsize),
    drive: impl FnOnce(Queue<Gathered>) -> Result<(), LaneError>,
) -> Result<(), LaneError> {
    let (queue, room) = match backlog {
        Backlog::Waits => (QUEUE, None),
        Backlog::Dropped { batches, packets } => (batches.max(1), Some(packets)),
    };
    let (to, from) = sync_channel::<Gathered>(queue);
    let stop = gatherer.stop;
    thread::scope(|scope| {
        let span = Span::current();
        let rx = move || {
            let _lane = span.entered();
            pin(processor);
            let mut gatherer = gatherer;
            let _alive = Alive(gatherer.stop);
            loop {
                match gatherer.next(true, || false)? {
                    Next::Batch(batch, begun) => {
                        let packets = batch.len();
                        let before = waiting.fetch_add(packets, Ordering::Relaxed);
                        let sent = match room {
                            // Waits where the driver has enough: then packets wait where they came in.
                            None => to.send((batch, begun)).map_err(|gone| TrySendError::Disconnected(gone.0)),
                            // One that would never fit has the room alone.
                            Some(room) if before > 0 && before + packets > room => {
                                Err(TrySendError::Full((batch, begun)))
                            }
                            Some(_) => to.try_send((batch, begun)),
                        };
                        match sent {
                            Ok(()) => {}
                            Err(TrySendError::Full(_)) => {
                                waiting.fetch_sub(packets, Ordering::Relaxed);
                                gatherer.stats.overran(packets);
                            }
                            Err(TrySendError::Disconnected(_)) => return Ok(()),
                        }
                    }
                    Next::NotYet => {}
                    Next::End => return Ok(()),
                }
            }
        };
        let thread = thread::Builder::new().name(format!("{name} RX")).spawn_scoped(scope, rx);
        let died = |what: String| LaneError::Thread { lane: name.to_string(), thread: "RX", what };
        let thread = thread.map_err(|e| died(format!("cannot be started: {}", portcullis_core::reason(&e))))?;
        // With its end of the queue gone, the RX thread ends at its next batch at the latest.
        let driven = drive(from);
        if driven.is_err() {
            stop.cancel();
        }
        let received = thread.join().map_err(|_| died("died (a fault of this program; please report it)".into()));
        driven.and(received?.map_err(|error: LiveError| error.into()))
    })
}

/// Makes batches of what a receiver takes.
struct Gatherer<'a> {
    receiver: &'a mut dyn Receiver,
    batcher: Batcher<'a>,
    stats: &'a LaneStats,
    stop: &'a CancelToken,
    /// When the receiver was last asked for what it has counted.
    asked: Instant,
    end: End,
}

impl Gatherer<'_> {
    /// The next batch. Waits for a while where nobody has anything else to do, which is a short one where somebody is `busy`.
    fn next(&mut self, idle: bool, busy: impl FnOnce() -> bool) -> Result<Next<Begun>, LiveError> {
        let stopped = self.stop.is_cancelled();
        if self.batcher.begins() {
            self.stats.received_before(self.receiver.received());
        }
        if self.end.is_due(stopped) {
            return Ok(Next::End);
        }
        // Receiving is a part of what one thread does that does everything. Who finds no sizes by it need not know it that well.
        let taken = if self.batcher.finds_size() { Instant::now() } else { self.batcher.looked() };
        if taken - self.asked >= ASKED {
            self.asked = taken;
            self.stats.received(self.receiver.received());
        }
        match self.batcher.look(self.receiver, stopped)? {
            Look::Batch(batch, first) => {
                self.stats.gathered(batch.len());
                return Ok(Next::Batch(batch, Begun { first, taken }));
            }
            // Where it has no memory now, what came before waits for what is on its way.
            Look::Nothing if self.end.has_settled(stopped) && !self.receiver.is_full() => return Ok(Next::End),
            _ if !idle => {}
            Look::Until(until) => self.batcher.wait(self.receiver, until)?,
            Look::Nothing => self.receiver.wait(if stopped || busy() { SOON } else { PATIENCE })?,
        }
        Ok(Next::NotYet)
    }
}

/// When a lane has seen that an end is wanted.
#[derive(Default)]
struct End(Option<Instant>);

impl End {
    /// Whether packets that came before have been taken for long enough.
    fn is_due(&mut self, stopped: bool) -> bool {
        stopped && self.0.get_or_insert_with(Instant::now).elapsed() >= DRAIN
    }

    /// Whether no more can come, if nothing is there now.
    fn has_settled(&mut self, stopped: bool) -> bool {
        stopped && self.0.get_or_insert_with(Instant::now).elapsed() >= SETTLED
    }
}

/// Where a driver's batches come from.
enum Intake<'a> {
    /// From a receiver.
    Here(Gatherer<'a>),
    /// From the RX thread, which is told of the packets that wait.
    There(Queue<Gathered>, &'a AtomicUsize),
}

/// All of a lane but what receives.
struct Rest<'a> {
    intake: Intake<'a>,
    executor: &'a mut dyn Executor,
    broadcasts: Option<&'a mut Broadcasts>,
    orders: &'a Mailbox,
    /// Orders that were taken, and are still to be carried out.
    obeyed: VecDeque<Order>,
    stats: &'a LaneStats,
    meter: Option<&'a Meter>,
    /// Whether a batch has come that the meter measures.
    is_measured: bool,
    observe: Option<&'a mut dyn Observer>,
    /// Where batches find their size: what finds it, and when the last batch had left.
    sizing: Option<(Sizer, Instant)>,
    shared: &'a Shared,
    _alive: Alive<'a>,
}

impl Drop for Rest<'_> {
    /// However it ended: whoever waits for an order to be carried out is not to wait for ever.
    fn drop(&mut self) {
        self.orders.close();
    }
}

impl Rest<'_> {
    /// Filters what comes, until nothing more comes, and waits for what is on its way out. What came before an error is
    /// carried out, too.
    fn drive(self, session: &mut Box<dyn Session>) -> Result<(), LaneError> {
        let mut driver = driver::Driver::new(session, self);
        let driven = driver.drive();
        let left = driver.drain().and_then(|()| driver.ends.leave());
        driven.and(left)
    }

    fn leave(&mut self) -> Result<(), LaneError> {
        let begun = Instant::now();
        self.poll()?;
        while self.executor.is_busy() && begun.elapsed() < LEAVING {
            thread::sleep(SOON);
            self.poll()?;
        }
        Ok(())
    }
}

impl Ends<&mut Box<dyn Session>> for Rest<'_> {
    type Note = Begun;
    type Error = LaneError;

    fn next(&mut self, idle: bool) -> Result<Next<Begun>, LaneError> {
        let Rest { intake, executor, .. } = self;
        let busy = || executor.is_busy();
        let (queue, waiting) = match intake {
            Intake::Here(gatherer) => return Ok(gatherer.next(idle, busy)?),
            Intake::There(queue, waiting) => (queue, waiting),
        };
        let next = match idle {
            true => queue.recv_timeout(if busy() { SOON } else { PATIENCE }),
            false => queue.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        };
        Ok(match next {
            Ok((batch, begun)) => {
                waiting.fetch_sub(batch.len(), Ordering::Relaxed);
                Next::Batch(batch, Begun { taken: Instant::now(), ..begun })
            }
            Err(RecvTimeoutError::Timeout) => Next::NotYet,
            Err(RecvTimeoutError::Disconnected) => Next::End,
        })
    }

    fn boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        match &mut self.observe {
            Some(observe) => observe.boundary(session, coming),
            None => Ok(()),
        }
    }

    fn obey(&mut self, session: &mut &mut Box<dyn Session>, idle: bool) -> Result<bool, DeviceError> {
        if self.orders.is_waiting() {
            self.obeyed.extend(self.orders.take());
        }
        while let Some(order) = self.obeyed.pop_front() {
            if order.wants_idle() && !idle {
                self.obeyed.push_front(order);
                return Ok(false);
            }
            order.execute(session)?;
        }
        Ok(true)
    }

    fn came_back(&mut self, session: &mut dyn Session, done: &Done) -> Result<(), DeviceError> {
        if let Some(broadcasts) = &mut self.broadcasts
            && let Some(several) = broadcasts.read(session, done)?
        {
            self.executor.set_redirect_groups(&several);
        }
        Ok(())
    }

    /// Carries out the verdicts on a batch.
    fn done(&mut self, done: Done, begun: Begun, aside: bool) -> Result<(), LaneError> {
        let is_warm_up = begun.first.is_warm_up;
        if self.meter.is_some() && !is_warm_up && !self.is_measured {
            self.is_measured = true;
            self.stats.carried_before();
        }
        let filtered = Filtered::new(&done, aside);
        let packets = filtered.packets;
        let carried = self.executor.execute(done);
        let now = Instant::now();
        // How long it took while it warmed up is of no interest.
        let latency = (!is_warm_up && carried.is_ok()).then(|| now - begun.first.at);
        self.stats.through(&filtered, self.executor.executed(), latency);
        carried?;
        if let (Some(meter), false) = (self.meter, is_warm_up) {
            meter.through(now);
        }
        if let (Some((sizer, before)), false) = (&mut self.sizing, aside) {
            let sizing = sizer.served(packets, now - begun.taken.max(*before), self.shared.rate());
            *before = now;
            self.shared.want(&sizing);
            self.stats.sized(sizing);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LaneError> {
        let tended = self.executor.poll();
        self.stats.tended(self.executor.executed());
        Ok(tended?)
    }
}
