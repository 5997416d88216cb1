//! Driving a lane.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Completion, DeviceError, Dispatch, Session};
use portcullis_core::packet::Batch;
use portcullis_io::live::{Executor, LiveError, Receiver};
use tracing::Span;

use super::assembler::{BatchAssembler, FirstPacket, PollOutcome, STOP_POLL_INTERVAL};
use super::commands::{LaneCommand, LaneCommands};
use super::sizing::{BatchSizer, SharedSizing};
use super::stats::CompletedBatch;
use super::{LaneError, LaneStats, LiveLane, LiveOptions, MeasurementWindow, OverloadPolicy, pin};
use crate::pipeline::driver::{self, Endpoints, NextBatch};
use crate::pipeline::{Broadcasts, Observer};

/// Batches between the RX thread and the driver, where packets wait.
const RX_QUEUE_BATCHES: usize = 2;

/// How soon what is on its way out is looked after, while nothing else happens.
const TX_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// How long frames may take to leave in the end.
const TX_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long after an end was wanted the last packets may come: by then nobody sends them here any more.
const STOP_QUIET_TIME: Duration = Duration::from_millis(50);

/// For how long packets are taken that came before an end was wanted.
const STOP_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often what came in and what the kernel dropped is asked for, a system call a queue: often enough for rates over a second to
/// be right.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(20);

/// Ends the run where the thread that has it dies: the other lanes are not to go on as if nothing had happened, nor is the
/// lane's other thread to be waited for that would.
struct CancelOnPanic<'a>(&'a CancelToken);

impl Drop for CancelOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.cancel();
        }
    }
}

/// One lane, until it ends.
pub(super) struct LaneRunner<'a> {
    lane: &'a mut LiveLane,
    stats: &'a LaneStats,
    options: &'a LiveOptions,
    stop: &'a CancelToken,
    /// Where the RX thread is to be kept.
    processor: Option<usize>,
    shared: &'a SharedSizing,
    observe: Option<&'a mut dyn Observer>,
}

/// When a batch began.
struct BatchTiming {
    first: FirstPacket,
    /// When it began to keep the lane's thread, or the device, from anything else.
    taken: Instant,
}

/// A batch from the RX thread.
type TimedBatch = (Batch, BatchTiming);

impl<'a> LaneRunner<'a> {
    pub fn new(
        lane: &'a mut LiveLane,
        stats: &'a LaneStats,
        options: &'a LiveOptions,
        (stop, processor): (&'a CancelToken, Option<usize>),
        shared: &'a SharedSizing,
        observe: Option<&'a mut dyn Observer>,
    ) -> LaneRunner<'a> {
        LaneRunner { lane, stats, options, stop, processor, shared, observe }
    }

    pub fn run(self) -> Result<(), LaneError> {
        let LaneRunner { lane, stats, options, stop, processor, shared, observe } = self;
        let LiveLane { lane, session, commands, broadcasts } = lane;
        let (name, receiver) = (&lane.name, &mut *lane.receiver);
        let is_inline = options.dispatch == Dispatch::Inline;
        let sizer = || (BatchSizer::new(options.batching, is_inline), Instant::now());
        let endpoints = |source| LaneEndpoints {
            source,
            executor: &mut *lane.executor,
            broadcasts: broadcasts.as_mut(),
            commands,
            pending_commands: VecDeque::new(),
            stats,
            window: options.window.as_deref(),
            is_measured: false,
            observe: observe.map(|observe| observe as _),
            sizing: options.batching.adaptive.then(sizer),
            shared,
            _cancel_on_panic: CancelOnPanic(stop),
        };
        let rx_batcher = RxBatcher {
            receiver: &mut *receiver,
            assembler: BatchAssembler::new(options.batching, shared, options.window.as_deref()),
            stats,
            stop,
            asked: Instant::now(),
            end: StopClock::default(),
        };
        let ended = match is_inline {
            // One thread does everything.
            true => endpoints(LaneSource::Inline(rx_batcher)).drive(session),
            false => {
                let waiting = AtomicUsize::new(0);
                let backlog = (options.backlog, &waiting);
                run_with_rx_thread(name, rx_batcher, processor, backlog, |queue| {
                    endpoints(LaneSource::Queue(queue, &waiting)).drive(session)
                })
            }
        };
        stats.set_received(receiver.received());
        if ended.is_err() {
            // Of the batch with which it failed a part may be through.
            stats.set_executed(lane.executor.executed());
        }
        ended
    }
}

/// A thread receives, and this one does the rest. `waiting` are the packets between the two.
fn run_with_rx_thread(
    name: &str,
    rx_batcher: RxBatcher<'_>,
    processor: Option<usize>,
    (backlog, waiting): (OverloadPolicy, &AtomicUsize),
    drive: impl FnOnce(Queue<TimedBatch>) -> Result<(), LaneError>,
) -> Result<(), LaneError> {
    let (queue, room) = match backlog {
        OverloadPolicy::Block => (RX_QUEUE_BATCHES, None),
        OverloadPolicy::Drop { max_batches, max_packets } => (max_batches.max(1), Some(max_packets)),
    };
    let (to, from) = sync_channel::<TimedBatch>(queue);
    let stop = rx_batcher.stop;
    thread::scope(|scope| {
        let span = Span::current();
        let rx = move || {
            let _lane = span.entered();
            pin(processor);
            let mut rx_batcher = rx_batcher;
            let _cancel_on_panic = CancelOnPanic(rx_batcher.stop);
            loop {
                match rx_batcher.next_batch(true, || false)? {
                    NextBatch::Ready(batch, timing) => {
                        let packets = batch.len();
                        let before = waiting.fetch_add(packets, Ordering::Relaxed);
                        let sent = match room {
                            // Waits where the driver has enough: then packets wait where they came in.
                            None => to.send((batch, timing)).map_err(|gone| TrySendError::Disconnected(gone.0)),
                            // One that would never fit has the room alone.
                            Some(room) if before > 0 && before + packets > room => {
                                Err(TrySendError::Full((batch, timing)))
                            }
                            Some(_) => to.try_send((batch, timing)),
                        };
                        match sent {
                            Ok(()) => {}
                            Err(TrySendError::Full(_)) => {
                                waiting.fetch_sub(packets, Ordering::Relaxed);
                                rx_batcher.stats.record_overload_drop(packets);
                            }
                            Err(TrySendError::Disconnected(_)) => return Ok(()),
                        }
                    }
                    NextBatch::Pending => {}
                    NextBatch::End => return Ok(()),
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
struct RxBatcher<'a> {
    receiver: &'a mut dyn Receiver,
    assembler: BatchAssembler<'a>,
    stats: &'a LaneStats,
    stop: &'a CancelToken,
    /// When the receiver was last asked for what it has counted.
    asked: Instant,
    end: StopClock,
}

impl RxBatcher<'_> {
    /// The next batch. Waits for a while where nobody has anything else to do, which is a short one where somebody is `busy`.
    fn next_batch(&mut self, is_idle: bool, busy: impl FnOnce() -> bool) -> Result<NextBatch<BatchTiming>, LiveError> {
        let stopped = self.stop.is_cancelled();
        if self.assembler.starts_measuring() {
            self.stats.start_measuring_rx(self.receiver.received());
        }
        if self.end.is_expired(stopped) {
            return Ok(NextBatch::End);
        }
        // Receiving is a part of what one thread does that does everything. Who finds no sizes by it need not know it that well.
        let taken = if self.assembler.is_adaptive() { Instant::now() } else { self.assembler.last_poll() };
        if taken - self.asked >= COUNTERS_INTERVAL {
            self.asked = taken;
            self.stats.set_received(self.receiver.received());
        }
        match self.assembler.poll(self.receiver, stopped)? {
            PollOutcome::Batch(batch, first) => {
                self.stats.record_received_batch(batch.len());
                return Ok(NextBatch::Ready(batch, BatchTiming { first, taken }));
            }
            // Where it has no memory now, what came before waits for what is on its way.
            PollOutcome::Nothing if self.end.has_settled(stopped) && !self.receiver.is_full() => {
                return Ok(NextBatch::End);
            }
            _ if !is_idle => {}
            PollOutcome::Until(until) => self.assembler.wait(self.receiver, until)?,
            PollOutcome::Nothing => {
                self.receiver.wait(if stopped || busy() { TX_POLL_INTERVAL } else { STOP_POLL_INTERVAL })?
            }
        }
        Ok(NextBatch::Pending)
    }
}

/// When a lane has seen that an end is wanted.
#[derive(Default)]
struct StopClock(Option<Instant>);

impl StopClock {
    /// Whether packets that came before have been taken for long enough.
    fn is_expired(&mut self, stopped: bool) -> bool {
        stopped && self.0.get_or_insert_with(Instant::now).elapsed() >= STOP_DRAIN_TIMEOUT
    }

    /// Whether no more can come, if nothing is there now.
    fn has_settled(&mut self, stopped: bool) -> bool {
        stopped && self.0.get_or_insert_with(Instant::now).elapsed() >= STOP_QUIET_TIME
    }
}

/// Where a driver's batches come from.
enum LaneSource<'a> {
    /// From a receiver.
    Inline(RxBatcher<'a>),
    /// From the RX thread, which is told of the packets that wait.
    Queue(Queue<TimedBatch>, &'a AtomicUsize),
}

/// All of a lane but what receives.
struct LaneEndpoints<'a> {
    source: LaneSource<'a>,
    executor: &'a mut dyn Executor,
    broadcasts: Option<&'a mut Broadcasts>,
    commands: &'a LaneCommands,
    /// Orders that were taken, and are still to be carried out.
    pending_commands: VecDeque<LaneCommand>,
    stats: &'a LaneStats,
    window: Option<&'a MeasurementWindow>,
    /// Whether a batch has come that the meter measures.
    is_measured: bool,
    observe: Option<&'a mut dyn Observer>,
    /// Where batches find their size: what finds it, and when the last batch had left.
    sizing: Option<(BatchSizer, Instant)>,
    shared: &'a SharedSizing,
    _cancel_on_panic: CancelOnPanic<'a>,
}

impl Drop for LaneEndpoints<'_> {
    /// However it ended: whoever waits for an order to be carried out is not to wait for ever.
    fn drop(&mut self) {
        self.commands.close();
    }
}

impl LaneEndpoints<'_> {
    /// Filters what comes, until nothing more comes, and waits for what is on its way out. What came before an error is
    /// carried out, too.
    fn drive(self, session: &mut Box<dyn Session>) -> Result<(), LaneError> {
        let mut driver = driver::Driver::new(session, self);
        let driven = driver.drive();
        let left = driver.drain().and_then(|()| driver.endpoints.flush_tx());
        driven.and(left)
    }

    fn flush_tx(&mut self) -> Result<(), LaneError> {
        let timing = Instant::now();
        self.poll()?;
        while self.executor.is_busy() && timing.elapsed() < TX_FLUSH_TIMEOUT {
            thread::sleep(TX_POLL_INTERVAL);
            self.poll()?;
        }
        Ok(())
    }
}

impl Endpoints<&mut Box<dyn Session>> for LaneEndpoints<'_> {
    type Tag = BatchTiming;
    type Error = LaneError;

    fn next_batch(&mut self, is_idle: bool) -> Result<NextBatch<BatchTiming>, LaneError> {
        let LaneEndpoints { source, executor, .. } = self;
        let busy = || executor.is_busy();
        let (queue, waiting) = match source {
            LaneSource::Inline(rx_batcher) => return Ok(rx_batcher.next_batch(is_idle, busy)?),
            LaneSource::Queue(queue, waiting) => (queue, waiting),
        };
        let next = match is_idle {
            true => queue.recv_timeout(if busy() { TX_POLL_INTERVAL } else { STOP_POLL_INTERVAL }),
            false => queue.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        };
        Ok(match next {
            Ok((batch, timing)) => {
                waiting.fetch_sub(batch.len(), Ordering::Relaxed);
                NextBatch::Ready(batch, BatchTiming { taken: Instant::now(), ..timing })
            }
            Err(RecvTimeoutError::Timeout) => NextBatch::Pending,
            Err(RecvTimeoutError::Disconnected) => NextBatch::End,
        })
    }

    fn on_batch_boundary(&mut self, session: &mut dyn Session, coming: usize) -> Result<(), DeviceError> {
        match &mut self.observe {
            Some(observe) => observe.on_batch_boundary(session, coming),
            None => Ok(()),
        }
    }

    fn run_commands(&mut self, session: &mut &mut Box<dyn Session>, idle: bool) -> Result<bool, DeviceError> {
        if self.commands.is_waiting() {
            self.pending_commands.extend(self.commands.take());
        }
        while let Some(command) = self.pending_commands.pop_front() {
            if command.requires_idle() && !idle {
                self.pending_commands.push_front(command);
                return Ok(false);
            }
            command.execute(session)?;
        }
        Ok(true)
    }

    fn inspect_completed(&mut self, session: &mut dyn Session, done: &Completion) -> Result<(), DeviceError> {
        if let Some(broadcasts) = &mut self.broadcasts
            && let Some(redirect_groups) = broadcasts.resolve(session, done)?
        {
            self.executor.set_redirect_groups(&redirect_groups);
        }
        Ok(())
    }

    /// Carries out the verdicts on a batch.
    fn deliver(&mut self, done: Completion, timing: BatchTiming, by_fallback: bool) -> Result<(), LaneError> {
        let is_warm_up = timing.first.is_warm_up;
        if self.window.is_some() && !is_warm_up && !self.is_measured {
            self.is_measured = true;
            self.stats.start_measuring_driver();
        }
        let filtered = CompletedBatch::new(&done, by_fallback);
        let packets = filtered.packets;
        let carried = self.executor.execute(done);
        let now = Instant::now();
        // How long it took while it warmed up is of no interest.
        let latency = (!is_warm_up && carried.is_ok()).then(|| now - timing.first.at);
        self.stats.record_completed(&filtered, self.executor.executed(), latency);
        carried?;
        if let (Some(window), false) = (self.window, is_warm_up) {
            window.record_completed(now);
        }
        if let (Some((sizer, before)), false) = (&mut self.sizing, by_fallback) {
            let sizing = sizer.record_batch(packets, now - timing.taken.max(*before), self.shared.rate());
            *before = now;
            self.shared.set_target(&sizing);
            self.stats.set_sizing(sizing);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LaneError> {
        let tended = self.executor.poll();
        self.stats.set_executed(self.executor.executed());
        Ok(tended?)
    }
}
