//! Runs one lane: receives packets into batches, drives them through the session, and executes the
//! verdicts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, Completion, DeviceError, Dispatch, FallbackSession, Session};
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

/// Capacity of the queue from the RX thread to the driver, in batches, if the RX thread may block.
const RX_QUEUE_BATCHES: usize = 2;

/// How often pending transmissions are polled while nothing else happens.
const TX_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// How long frames may take to be transmitted at the end of a run.
const TX_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the receiver must have been quiet after a stop before the lane ends.
const STOP_QUIET_TIME: Duration = Duration::from_millis(50);

/// How long after a stop packets are still received.
const STOP_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the receiver's counters are read, which costs a system call per queue. Often enough
/// for rates over one second.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(20);

/// Cancels the run if the thread that holds it panics, so that neither the other lanes nor the
/// lane's other thread run on.
struct CancelOnPanic<'a>(&'a CancelToken);

impl Drop for CancelOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.cancel();
        }
    }
}

/// Runs one lane until it ends.
pub(super) struct LaneRunner<'a> {
    lane: &'a mut LiveLane,
    stats: &'a LaneStats,
    options: &'a LiveOptions,
    stop: &'a CancelToken,
    /// CPU to pin the RX thread to.
    processor: Option<usize>,
    shared: &'a SharedSizing,
    observer: Option<&'a mut dyn Observer>,
}

/// Start times of a batch.
struct BatchTiming {
    first_packet: FirstPacket,
    /// When the batch began to occupy the lane's thread or the device, from which its cost is
    /// measured.
    started: Instant,
}

/// A batch on its way from the RX thread to the driver.
type TimedBatch = (Batch, BatchTiming);

impl<'a> LaneRunner<'a> {
    pub fn new(
        lane: &'a mut LiveLane,
        stats: &'a LaneStats,
        options: &'a LiveOptions,
        (stop, processor): (&'a CancelToken, Option<usize>),
        shared: &'a SharedSizing,
        observer: Option<&'a mut dyn Observer>,
    ) -> LaneRunner<'a> {
        LaneRunner { lane, stats, options, stop, processor, shared, observer }
    }

    pub fn run(self) -> Result<(), LaneError> {
        let LaneRunner { lane, stats, options, stop, processor, shared, observer } = self;
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
            observer: observer.map(|observer| observer as _),
            sizing: options.batching.adaptive.then(sizer),
            shared,
            _cancel_on_panic: CancelOnPanic(stop),
        };
        let rx_batcher = RxBatcher {
            receiver: &mut *receiver,
            assembler: BatchAssembler::new(options.batching, shared, options.window.as_deref()),
            stats,
            stop,
            last_counters_read: Instant::now(),
            end: StopClock::default(),
        };
        let ended = match is_inline {
            // One thread does everything.
            true => endpoints(LaneSource::Inline(rx_batcher)).drive(session),
            false => {
                let waiting = AtomicUsize::new(0);
                let overload = (options.overload, &waiting);
                run_with_rx_thread(name, rx_batcher, processor, overload, |queue| {
                    endpoints(LaneSource::Queue(queue, &waiting)).drive(session)
                })
            }
        };
        stats.set_received(receiver.received());
        if ended.is_err() {
            // The batch that failed may have been executed in part.
            stats.set_executed(lane.executor.executed());
        }
        ended
    }
}

/// Receives on a new thread and drives the session on this one. `waiting` counts the packets queued
/// between the two.
fn run_with_rx_thread(
    name: &str,
    rx_batcher: RxBatcher<'_>,
    processor: Option<usize>,
    (overload, waiting): (OverloadPolicy, &AtomicUsize),
    drive: impl FnOnce(Queue<TimedBatch>) -> Result<(), LaneError>,
) -> Result<(), LaneError> {
    let (queue, room) = match overload {
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
                            // Block while the driver has enough: packets then wait in the RX rings.
                            None => to.send((batch, timing)).map_err(|gone| TrySendError::Disconnected(gone.0)),
                            // A batch above the limit by itself is queued only if no other waits.
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
        let rx_error = |problem: String| LaneError::Thread { lane: name.to_string(), thread: "RX", problem };
        let thread = thread.map_err(|e| rx_error(format!("cannot be started: {}", portcullis_core::reason(&e))))?;
        // Once the driver's end of the queue is dropped, the RX thread ends at its next batch at
        // the latest.
        let driven = drive(from);
        if driven.is_err() {
            stop.cancel();
        }
        let received =
            thread.join().map_err(|_| rx_error("panicked; this is a bug in portcullis, please report it".into()));
        driven.and(received?.map_err(|error: LiveError| error.into()))
    })
}

/// Assembles batches from a receiver and notices when the run is to end.
struct RxBatcher<'a> {
    receiver: &'a mut dyn Receiver,
    assembler: BatchAssembler<'a>,
    stats: &'a LaneStats,
    stop: &'a CancelToken,
    /// When the receiver's counters were last read.
    last_counters_read: Instant,
    end: StopClock,
}

impl RxBatcher<'_> {
    /// Returns the next batch. If nothing is in flight (`is_idle`), waits for packets, but only
    /// briefly while transmissions are pending (`busy`).
    fn next_batch(&mut self, is_idle: bool, busy: impl FnOnce() -> bool) -> Result<NextBatch<BatchTiming>, LiveError> {
        let stopped = self.stop.is_cancelled();
        if self.assembler.starts_measuring() {
            self.stats.start_measuring_rx(self.receiver.received());
        }
        if self.end.is_expired(stopped) {
            return Ok(NextBatch::End);
        }
        // Adaptive sizing counts receiving towards the cost of a batch and needs the exact time.
        // Otherwise the time of the last poll saves a clock read.
        let started = if self.assembler.is_adaptive() { Instant::now() } else { self.assembler.last_poll() };
        if started - self.last_counters_read >= COUNTERS_INTERVAL {
            self.last_counters_read = started;
            self.stats.set_received(self.receiver.received());
        }
        match self.assembler.poll(self.receiver, stopped)? {
            PollOutcome::Batch(batch, first_packet) => {
                self.stats.record_received_batch(batch.len());
                return Ok(NextBatch::Ready(batch, BatchTiming { first_packet, started }));
            }
            // If the receiver has no free memory, earlier packets are waiting for frames in
            // transit.
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

/// When the lane first noticed that the run is to stop.
#[derive(Default)]
struct StopClock(Option<Instant>);

impl StopClock {
    /// Whether the time for receiving the remaining packets is over.
    fn is_expired(&mut self, stopped: bool) -> bool {
        stopped && self.0.get_or_insert_with(Instant::now).elapsed() >= STOP_DRAIN_TIMEOUT
    }

    /// Whether the lane may end if no packets are waiting now.
    fn has_settled(&mut self, stopped: bool) -> bool {
        stopped && self.0.get_or_insert_with(Instant::now).elapsed() >= STOP_QUIET_TIME
    }
}

/// Where the driver gets its batches from.
enum LaneSource<'a> {
    /// A receiver on the driver's own thread.
    Inline(RxBatcher<'a>),
    /// The RX thread, with the number of packets queued.
    Queue(Queue<TimedBatch>, &'a AtomicUsize),
}

/// Endpoints of a lane's driver.
struct LaneEndpoints<'a> {
    source: LaneSource<'a>,
    executor: &'a mut dyn Executor,
    broadcasts: Option<&'a mut Broadcasts>,
    commands: &'a LaneCommands,
    /// Commands started from the queue that still have to run.
    pending_commands: VecDeque<LaneCommand>,
    stats: &'a LaneStats,
    window: Option<&'a MeasurementWindow>,
    /// Whether a batch of the measurement window has arrived.
    is_measured: bool,
    observer: Option<&'a mut dyn Observer>,
    /// Sizer, and the time when the previous batch was done; `None` without adaptive batches.
    sizing: Option<(BatchSizer, Instant)>,
    shared: &'a SharedSizing,
    _cancel_on_panic: CancelOnPanic<'a>,
}

impl Drop for LaneEndpoints<'_> {
    /// Closes the command queue however the lane ended, so that no one waits for a command forever.
    fn drop(&mut self) {
        self.commands.close();
    }
}

impl LaneEndpoints<'_> {
    /// Drives the session until the source ends, then flushes transmissions. Batches completed
    /// before an error are still executed.
    fn drive(self, session: &mut FallbackSession) -> Result<(), LaneError> {
        let mut driver = driver::Driver::new(session, self);
        let driven = driver.drive();
        let flushed = driver.drain().and_then(|()| driver.endpoints.flush_tx());
        driven.and(flushed)
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

impl Endpoints<&mut FallbackSession> for LaneEndpoints<'_> {
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
                NextBatch::Ready(batch, BatchTiming { started: Instant::now(), ..timing })
            }
            Err(RecvTimeoutError::Timeout) => NextBatch::Pending,
            Err(RecvTimeoutError::Disconnected) => NextBatch::End,
        })
    }

    fn on_batch_boundary(&mut self, session: &mut dyn Session, packets: usize) -> Result<(), DeviceError> {
        match &mut self.observer {
            Some(observer) => observer.on_batch_boundary(session, packets),
            None => Ok(()),
        }
    }

    fn run_commands(&mut self, session: &mut &mut FallbackSession, is_idle: bool) -> Result<bool, DeviceError> {
        if self.commands.has_pending() {
            self.pending_commands.extend(self.commands.take());
        }
        while let Some(command) = self.pending_commands.pop_front() {
            if command.requires_idle() && !is_idle {
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

    fn on_session_warning(&mut self, warning: String) {
        tracing::warn!("{warning}");
        self.stats.record_warning(warning);
    }

    fn on_fail_over(&mut self, error: &DeviceError, lost: usize) {
        tracing::error!("{error}; {lost} packets in flight are lost, and the device of --overload filters from now on");
        self.stats.record_lost_with_device(lost);
    }

    /// Executes the verdicts of a batch.
    fn deliver(&mut self, done: Completion, timing: BatchTiming, by_fallback: bool) -> Result<(), LaneError> {
        let is_warm_up = timing.first_packet.is_warm_up;
        if self.window.is_some() && !is_warm_up && !self.is_measured {
            self.is_measured = true;
            self.stats.start_measuring_driver();
        }
        let filtered = CompletedBatch::new(&done, by_fallback);
        let packets = filtered.packets;
        let executed = self.executor.execute(done);
        let now = Instant::now();
        // Latencies of the warm-up are not recorded.
        let latency = (!is_warm_up && executed.is_ok()).then(|| now - timing.first_packet.at);
        self.stats.record_completed(&filtered, self.executor.executed(), latency);
        executed?;
        if let (Some(window), false) = (self.window, is_warm_up) {
            window.record_completed(now);
        }
        if let (Some((sizer, previous)), false) = (&mut self.sizing, by_fallback) {
            let sizing = sizer.record_batch(packets, now - timing.started.max(*previous), self.shared.rate());
            *previous = now;
            self.shared.set_target(&sizing);
            self.stats.set_sizing(sizing);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LaneError> {
        let polled = self.executor.poll();
        self.stats.set_executed(self.executor.executed());
        Ok(polled?)
    }
}
