//! Driving a lane.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Dispatch, Done, Session};
use portcullis_core::packet::Batch;
use portcullis_io::live::{Executor, LiveError, Receiver};

use super::batcher::{Batcher, Look, PATIENCE};
use super::mailbox::Mailbox;
use super::relief::Due;
use super::sizing::{Shared, Sizer};
use super::{LaneError, LaneStats, LiveLane, LiveOptions, pin};
use crate::pipeline::Observer;

/// Batches between the RX thread and the driver.
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

/// One lane, until it ends.
pub(super) struct Driver<'a> {
    name: &'a str,
    receiver: &'a mut dyn Receiver,
    rest: Rest<'a>,
    options: &'a LiveOptions,
    /// Where the RX thread is to be kept.
    processor: Option<usize>,
    shared: &'a Shared,
}

/// All of a lane but what receives.
struct Rest<'a> {
    executor: &'a mut dyn Executor,
    session: &'a mut Box<dyn Session>,
    orders: &'a Mailbox,
    stats: &'a LaneStats,
    stop: &'a CancelToken,
    observe: Option<&'a mut dyn Observer>,
    in_flight: VecDeque<Begun>,
    /// Where batches find their size: what finds it, and when the last batch had left.
    sizing: Option<(Sizer, Instant)>,
    shared: &'a Shared,
    due: Due,
}

/// When a batch in flight began.
struct Begun {
    /// When its first packet was received.
    first: Instant,
    /// When it was there to be filtered.
    closed: Instant,
}

/// A batch from the RX thread, and when its first packet came.
type Gathered = (Batch, Instant);

impl<'a> Driver<'a> {
    pub fn new(
        lane: &'a mut LiveLane,
        stats: &'a LaneStats,
        options: &'a LiveOptions,
        (stop, processor): (&'a CancelToken, Option<usize>),
        shared: &'a Shared,
        observe: Option<&'a mut dyn Observer>,
    ) -> Driver<'a> {
        let (executor, session) = (&mut *lane.lane.executor, &mut lane.session);
        let sizer = || (Sizer::new(options.closing, options.dispatch == Dispatch::Inline), Instant::now());
        let sizing = options.closing.auto.then(sizer);
        let rest = Rest {
            executor,
            session,
            orders: &lane.orders,
            stats,
            stop,
            observe,
            in_flight: VecDeque::new(),
            sizing,
            shared,
            due: Due::new(Instant::now()),
        };
        Driver { name: &lane.lane.name, receiver: &mut *lane.lane.receiver, rest, options, processor, shared }
    }

    pub fn run(mut self) -> Result<(), LaneError> {
        let ended = if self.options.dispatch == Dispatch::Inline { self.inline() } else { self.apart() };
        let left = self.rest.leave();
        self.rest.stats.received(self.receiver.received());
        ended.and(left)
    }

    /// One thread does everything.
    fn inline(&mut self) -> Result<(), LaneError> {
        let mut batcher = Batcher::new(self.options.closing, self.shared);
        let mut asked = Instant::now();
        let mut end = End::default();
        loop {
            let stopped = self.rest.stop.is_cancelled();
            self.rest.obey()?;
            // What one thread does, receiving is a part of.
            let closed = Instant::now();
            match batcher.look(self.receiver, stopped)? {
                Look::Batch(batch, first) => {
                    self.rest.submit((batch, first), closed)?;
                    self.rest.complete()?;
                    if asked.elapsed() >= ASKED {
                        asked = Instant::now();
                        self.rest.stats.received(self.receiver.received());
                    }
                    if end.is_due(stopped) {
                        return Ok(());
                    }
                    continue;
                }
                Look::Until(until) => batcher.wait(self.receiver, until)?,
                Look::Nothing if end.has_settled(stopped) => return Ok(()),
                Look::Nothing => {
                    self.rest.stats.received(self.receiver.received());
                    self.receiver.wait(if stopped || self.rest.executor.is_busy() { SOON } else { PATIENCE })?;
                }
            }
            self.rest.executor.tend()?;
        }
    }

    /// A thread receives, and this one does the rest.
    fn apart(&mut self) -> Result<(), LaneError> {
        let (to, from) = sync_channel::<Gathered>(QUEUE);
        let Driver { name, receiver, rest, options, processor, shared } = self;
        let (receiver, stop, stats) = (&mut **receiver, rest.stop, rest.stats);
        thread::scope(|scope| {
            let (closing, processor) = (options.closing, *processor);
            let shared: &Shared = shared;
            let rx = move || {
                pin(processor);
                receive(receiver, Batcher::new(closing, shared), &to, stop, stats)
            };
            let thread = thread::Builder::new().name(format!("{name} RX")).spawn_scoped(scope, rx);
            let died = |what: String| LaneError::Thread { lane: name.to_string(), thread: "RX", what };
            let thread = thread.map_err(|e| died(format!("cannot be started: {}", portcullis_core::reason(&e))))?;
            let driven = rest.drive(&from);
            if driven.is_err() {
                stop.cancel();
            }
            // It ends at its next batch at the latest.
            drop(from);
            let received = thread.join().map_err(|_| died("died (a fault of this program; please report it)".into()));
            driven.and(received?.map_err(LaneError::from))
        })
    }
}

/// The RX thread.
fn receive(
    receiver: &mut dyn Receiver,
    mut batcher: Batcher<'_>,
    to: &SyncSender<Gathered>,
    stop: &CancelToken,
    stats: &LaneStats,
) -> Result<(), LiveError> {
    let mut asked = Instant::now();
    let mut end = End::default();
    loop {
        let stopped = stop.is_cancelled();
        if end.is_due(stopped) {
            return Ok(());
        }
        if asked.elapsed() >= ASKED {
            asked = Instant::now();
            stats.received(receiver.received());
        }
        match batcher.look(receiver, stopped)? {
            // Waits where the driver has enough: then packets wait where they came in.
            Look::Batch(batch, first) => match to.send((batch, first)) {
                Ok(()) => {}
                Err(_) => return Ok(()),
            },
            Look::Until(until) => batcher.wait(receiver, until)?,
            Look::Nothing if end.has_settled(stopped) => return Ok(()),
            Look::Nothing => receiver.wait(if stopped { SOON } else { PATIENCE })?,
        }
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

impl Drop for Rest<'_> {
    /// However it ended: whoever waits for an order to be carried out is not to wait for ever.
    fn drop(&mut self) {
        self.orders.close();
    }
}

impl Rest<'_> {
    /// Submits what comes and completes what is submitted, until nothing more comes.
    fn drive(&mut self, from: &Queue<Gathered>) -> Result<(), LaneError> {
        loop {
            self.obey()?;
            while self.session.in_flight() < self.session.depth() {
                let idle = self.session.in_flight() == 0;
                let wait = if self.executor.is_busy() { SOON } else { PATIENCE };
                let next = if idle { from.recv_timeout(wait) } else { from.try_recv().map_err(empty) };
                match next {
                    Ok(gathered) => self.submit(gathered, Instant::now())?,
                    Err(RecvTimeoutError::Disconnected) if idle => return Ok(()),
                    Err(_) => break,
                }
            }
            if self.is_relieved()
                && let Ok(gathered) = from.try_recv()
            {
                self.relieve(gathered)?;
            } else if self.session.in_flight() > 0 {
                self.complete()?;
            } else {
                self.executor.tend()?;
            }
        }
    }

    fn submit(&mut self, (batch, first): Gathered, closed: Instant) -> Result<(), LaneError> {
        if let Some(observe) = &mut self.observe {
            observe.boundary(&mut **self.session)?;
        }
        self.session.submit(batch).map_err(|refused| refused.error)?;
        self.in_flight.push_back(Begun { first, closed });
        Ok(())
    }

    /// Does what others want done with the session.
    fn obey(&mut self) -> Result<(), LaneError> {
        if !self.orders.is_waiting() {
            return Ok(());
        }
        for order in self.orders.take() {
            while order.wants_idle() && self.session.in_flight() > 0 {
                self.complete()?;
            }
            order.carry_out(self.session)?;
        }
        Ok(())
    }

    /// Whether the device has all that it takes, and another one has time for what comes meanwhile.
    fn is_relieved(&mut self) -> bool {
        let oldest = self.in_flight.front().map(|begun| begun.closed);
        self.session.in_flight() >= self.session.depth()
            && oldest.is_some_and(|submitted| !self.due.is_due(submitted, Instant::now()))
            && self.session.relief().is_some()
    }

    /// Has another device filter a batch, and carries out its verdicts.
    fn relieve(&mut self, (batch, first): Gathered) -> Result<(), LaneError> {
        let Some(relief) = self.session.relief() else { return self.submit((batch, first), Instant::now()) };
        let done = relief.run(batch)?;
        self.stats.relieved(done.batch.len());
        self.carry_out(done, first)
    }

    /// Waits for the oldest batch in flight, and carries out its verdicts.
    fn complete(&mut self) -> Result<(), LaneError> {
        let Some(done) = self.session.complete()? else { return Ok(()) };
        let now = Instant::now();
        let Begun { first, closed } = self.in_flight.pop_front().unwrap_or(Begun { first: now, closed: now });
        self.due.came(closed, now);
        let packets = done.batch.len();
        self.carry_out(done, first)?;
        if let Some((sizer, before)) = &mut self.sizing {
            let now = Instant::now();
            let sizing = sizer.served(packets, now - closed.max(*before), self.shared.rate());
            *before = now;
            self.shared.want(&sizing);
            self.stats.sized(sizing);
        }
        Ok(())
    }

    /// Carries out the verdicts on a batch, the first packet of which came then.
    fn carry_out(&mut self, done: Done, first: Instant) -> Result<(), LaneError> {
        self.stats.done(&done);
        let packets = done.batch.len();
        self.executor.carry_out(done)?;
        self.stats.carried(self.executor.carried(), packets, first.elapsed());
        Ok(())
    }

    /// Brings home what is in flight, and waits for what is on its way out.
    fn leave(&mut self) -> Result<(), LaneError> {
        while self.session.in_flight() > 0 {
            self.complete()?;
        }
        let begun = Instant::now();
        while self.executor.is_busy() && begun.elapsed() < LEAVING {
            self.executor.tend()?;
            thread::sleep(SOON);
        }
        Ok(())
    }
}

fn empty(error: TryRecvError) -> RecvTimeoutError {
    match error {
        TryRecvError::Empty => RecvTimeoutError::Timeout,
        TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
    }
}
