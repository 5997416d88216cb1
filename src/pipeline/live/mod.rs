//! Live packets: receives from a lane's queues, filters on a device, and executes the verdicts.
//!
//! ```text
//! inline:    one thread     receive, filter, execute
//! otherwise: RX thread      receive ──2 batches──►
//!            driver thread  submit … complete, execute
//! ```
//!
//! The driver thread is also the TX thread. A session is used by one thread, so one thread submits
//! and completes. A separate TX thread would cost a wake-up per batch and move the free frames, the
//! TX rings and the counters between CPU caches. While the driver transmits, a device other than
//! the CPU works on the batches in flight. Only reception gets a thread of its own, because it must
//! not block.
//!
//! A batch is closed when it is full or when its first packet has waited for the maximum delay,
//! whichever comes first. Memory is bounded: if the device accepts no more batches, packets stay in
//! the RX rings, and the kernel drops and counts what does not fit there.

mod assembler;
mod builder;
mod commands;
mod lane;
#[cfg(any(feature = "af-xdp", feature = "dpdk"))]
pub mod link_monitor;
pub mod local_socket;
mod loss_monitor;
mod measurement;
pub mod metrics;
mod sizing;
mod stats;
mod summary;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use portcullis_core::device::{CancelToken, DeviceError, Dispatch, FallbackSession};
use portcullis_io::live::{Lane, LiveError};
use tracing::Span;

use super::Observer;
pub use builder::{LaneRequirements, LivePipeline};
pub use commands::{LaneCommand, LaneCommands};
use lane::LaneRunner;
use loss_monitor::LossMonitor;
pub use measurement::MeasurementWindow;
use sizing::SharedSizing;
pub use sizing::Sizing;
pub use stats::{LaneStats, Snapshot};
pub use summary::{LaneSummary, LanesSummary, Latency, RunSnapshot, RunStats, RunSummary, SizingSummary, Summary};

/// When batches are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchPolicy {
    /// Maximum number of packets in a batch.
    pub max_packets: usize,
    /// Maximum time that a packet waits for others to fill its batch.
    pub delay: Duration,
    /// Whether size and delay adapt within these bounds ([`Sizing`]): as large as the device needs
    /// them to keep up, and no larger.
    pub adaptive: bool,
}

impl BatchPolicy {
    /// Batches of up to `max_packets` that are closed after `delay` at the latest.
    pub fn fixed(max_packets: usize, delay: Duration) -> BatchPolicy {
        BatchPolicy { max_packets, delay, adaptive: false }
    }

    /// Batches whose size adapts, within what a source has memory for by default.
    pub fn adaptive() -> BatchPolicy {
        BatchPolicy { max_packets: 1024, delay: sizing::DEFAULT_MAX_DELAY, adaptive: true }
    }

    /// Sets [`BatchPolicy::max_packets`].
    #[must_use]
    pub fn with_max_packets(self, max_packets: usize) -> BatchPolicy {
        BatchPolicy { max_packets, ..self }
    }

    /// Sets [`BatchPolicy::delay`].
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> BatchPolicy {
        BatchPolicy { delay, ..self }
    }
}

impl Default for BatchPolicy {
    /// One receive's worth of packets, without delay.
    fn default() -> BatchPolicy {
        BatchPolicy::fixed(256, Duration::ZERO)
    }
}

/// Options of a live run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveOptions {
    /// When batches are closed.
    pub batching: BatchPolicy,
    /// How batches are dispatched to the device. With [`Dispatch::Inline`] one thread per lane does
    /// everything.
    pub dispatch: Dispatch,
    /// CPUs to pin the lanes' threads to, assigned round-robin to the one or two threads of each
    /// lane. If empty, threads are not pinned.
    pub processors: Vec<usize>,
    /// Policy for batches that the device has no capacity for.
    pub overload: OverloadPolicy,
    /// Limits and measures the run, if set.
    pub window: Option<Arc<MeasurementWindow>>,
}

impl LiveOptions {
    /// Options without pinning or measurement, where packets wait for the device.
    pub fn new(batching: BatchPolicy, dispatch: Dispatch) -> LiveOptions {
        LiveOptions { batching, dispatch, processors: Vec::new(), overload: OverloadPolicy::Block, window: None }
    }

    /// Sets [`LiveOptions::processors`].
    #[must_use]
    pub fn with_processors(self, processors: Vec<usize>) -> LiveOptions {
        LiveOptions { processors, ..self }
    }

    /// Sets [`LiveOptions::overload`].
    #[must_use]
    pub fn with_overload(self, overload: OverloadPolicy) -> LiveOptions {
        LiveOptions { overload, ..self }
    }

    /// Sets [`LiveOptions::window`].
    #[must_use]
    pub fn with_window(self, window: impl Into<Option<Arc<MeasurementWindow>>>) -> LiveOptions {
        LiveOptions { window: window.into(), ..self }
    }
}

/// Policy for batches that the device has no capacity for. It matters only to lanes with an RX
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverloadPolicy {
    /// The RX thread blocks with two batches queued; further packets stay in the RX rings, which
    /// drop what does not fit.
    Block,
    /// Batches that exceed these limits are dropped at once and counted as
    /// [`Loss::Overload`](portcullis_io::live::Loss::Overload).
    Drop {
        /// Maximum number of queued batches; at least one is allowed.
        max_batches: usize,
        /// Maximum number of packets in queued batches; a single batch may exceed it.
        max_packets: usize,
    },
}

/// A lane and the session that filters its packets.
pub struct LiveLane {
    /// Receiver and executor of the lane's packets.
    pub lane: Lane,
    /// The session that filters the packets.
    pub session: FallbackSession,
    /// Commands of other threads for the session.
    pub commands: Arc<LaneCommands>,
    /// Broadcast targets of the filter, if it has any.
    pub broadcasts: Option<super::Broadcasts>,
}

impl LiveLane {
    /// Creates a lane with no commands queued and no broadcasts.
    pub fn new(lane: Lane, session: impl Into<FallbackSession>) -> LiveLane {
        LiveLane { lane, session: session.into(), commands: Arc::default(), broadcasts: None }
    }
}

/// Why a lane ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// Receiving or transmitting failed.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The device failed; the packets in flight are lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A thread could not be started, or panicked.
    #[error("{lane}: the {thread} thread {problem}")]
    Thread {
        /// Name of the lane.
        lane: String,
        /// Name of the thread.
        thread: &'static str,
        /// Predicate that says how the thread failed.
        problem: String,
    },
}

/// Runs lanes until `stop` is cancelled or one of them fails. Packets received by then are still
/// filtered and their verdicts executed.
///
/// The calling thread drives the first lane and calls `observer`; [`Observer::on_batch_boundary`]
/// gets that lane's session. `stats` has one entry per lane and can be read at any time. `at_stop`
/// is called once when the run is to stop and should stop the inflow of packets: those already
/// queued are filtered for at most one more second.
///
/// Returns the lanes in their order, except those whose thread panicked, and the first error.
///
/// # Panics
/// If there are not as many `stats` as lanes.
pub fn run_live(
    lanes: Vec<LiveLane>,
    stats: &[Arc<LaneStats>],
    options: &LiveOptions,
    stop: &CancelToken,
    at_stop: impl FnOnce() + Send,
    observer: &mut dyn Observer,
) -> (Vec<LiveLane>, Option<LaneError>) {
    assert_eq!(lanes.len(), stats.len(), "each lane has its statistics");
    let names: Vec<String> = lanes.iter().map(|lane| lane.lane.name.clone()).collect();
    // The threads enter their lane's span once, so it costs nothing per packet. It has the level
    // error so that every event that is shown names its lane.
    let spans: Vec<Span> = names.iter().map(|lane| tracing::error_span!("lane", %lane)).collect();
    for (lane, span) in names.iter().zip(&spans) {
        let _lane = span.enter();
        tracing::info!(%lane, dispatch = %options.dispatch, "lane started");
    }
    let mut monitor = LossMonitor::new(names.iter().cloned().zip(spans.iter().cloned()), stats);
    let result = thread::scope(|scope| {
        let monitor = &mut monitor;
        scope.spawn(move || {
            while !stop.wait_for(loss_monitor::POLL_INTERVAL) {
                monitor.report_if_due();
            }
            at_stop();
        });
        let mut first = None;
        let mut others = Vec::new();
        let mut error = None;
        for (number, (mut lane, stats)) in lanes.into_iter().zip(stats).enumerate() {
            // A lane's threads get neighbouring CPUs of the list: the driver, and the RX thread if
            // there is one.
            let threads = if options.dispatch == Dispatch::Inline { 1 } else { 2 };
            let processor = |thread| {
                let count = options.processors.len().max(1);
                options.processors.get((number * threads + thread) % count).copied()
            };
            let (processor, rx) = (processor(0), processor(threads - 1));
            if number == 0 {
                first = Some((lane, stats, processor, rx));
                continue;
            }
            let (name, span) = (lane.lane.name.clone(), spans[number].clone());
            let thread = thread::Builder::new().name(name.clone()).spawn_scoped(scope, move || {
                let _lane = span.entered();
                pin(processor);
                let ended = LaneRunner::new(&mut lane, stats, options, (stop, rx), &SharedSizing::new(), None).run();
                if ended.is_err() {
                    stop.cancel();
                }
                (lane, ended)
            });
            match thread {
                Ok(thread) => others.push((number, name, thread)),
                Err(failure) => {
                    let problem = format!("cannot be started: {}", portcullis_core::reason(&failure));
                    error.get_or_insert(LaneError::Thread { lane: name, thread: "driver", problem });
                    stop.cancel();
                }
            }
        }
        let mut returned = Vec::new();
        if let Some((mut lane, stats, processor, rx)) = first {
            let _lane = spans[0].enter();
            pin(processor);
            let name = lane.lane.name.clone();
            // As for the other lanes: a lane whose driver panicked is not returned.
            let driven = catch_unwind(AssertUnwindSafe(move || {
                let ended =
                    LaneRunner::new(&mut lane, stats, options, (stop, rx), &SharedSizing::new(), Some(observer)).run();
                (lane, ended)
            }));
            match driven {
                Ok((lane, ended)) => {
                    if let Err(failure) = ended {
                        error.get_or_insert(failure);
                        stop.cancel();
                    }
                    returned.push((0, lane));
                }
                Err(_) => {
                    error.get_or_insert(driver_panicked(name));
                }
            }
        }
        // Without the first lane, nothing would end the others.
        if returned.is_empty() {
            stop.cancel();
        }
        for (number, name, thread) in others {
            match thread.join() {
                Ok((lane, ended)) => {
                    if let Err(failure) = ended {
                        error.get_or_insert(failure);
                    }
                    returned.push((number, lane));
                }
                Err(_) => {
                    error.get_or_insert(driver_panicked(name));
                }
            }
        }
        // Only after all lanes have ended: `finish` may lower counts, which a reader must not see
        // during the run.
        for (number, LiveLane { lane, .. }) in &mut returned {
            if let Err(failure) = lane.executor.finish() {
                error.get_or_insert(failure.into());
            }
            stats[*number].set_executed(lane.executor.executed());
        }
        (returned.into_iter().map(|(_, lane)| lane).collect::<Vec<_>>(), error)
    });
    if result.1.is_some() {
        // For lanes that ended normally this adds nothing.
        stats.iter().for_each(|lane| lane.record_failure());
    }
    monitor.report();
    for ((lane, span), stats) in names.iter().zip(&spans).zip(stats) {
        let (received, executed, _) = stats.counters();
        let _lane = span.enter();
        tracing::info!(%lane, packets = received.packets, lost = executed.losses.all(), "lane ended");
    }
    result
}

/// The error of a lane whose driver panicked.
fn driver_panicked(lane: String) -> LaneError {
    LaneError::Thread {
        lane,
        thread: "driver",
        problem: "panicked; this is a bug in portcullis, please report it".into(),
    }
}

/// Pins the calling thread to a CPU, if one is given and exists.
fn pin(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = rustix::thread::CpuSet::new();
    if processor < rustix::thread::CpuSet::MAX_CPU {
        set.set(processor);
        // Pinning is an optimisation, so a CPU that does not exist is ignored.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests;
