//! Live packets: from a lane's queues through a device to where their verdicts send them.
//!
//! ```text
//! inline:    one thread     receive, filter, carry out
//! otherwise: RX thread      receive ──2 batches──►
//!            driver thread  submit … complete, carry out
//! ```
//!
//! The driver thread is the TX thread. A session is a queue of which one thread has both ends, so one submits and completes; a
//! third that only carries out would have each batch wait for it to wake up, and what it carries out (the frames' ways home,
//! the ports' rings, the numbers) be handed from processor to processor. While it carries out, a device other than the CPU works on
//! what is in flight. The thread that is worth having apart is the one that must not wait: who receives.
//!
//! A batch is closed when it has as many packets as it may have, or when its first packet has waited for long enough, whichever
//! comes first. Nothing here grows: where a device takes no more batches, packets stay where they came in, and the kernel drops
//! and counts what finds no room there.

mod assembler;
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

use portcullis_core::device::{CancelToken, DeviceError, Dispatch, Session};
use portcullis_io::live::{Lane, LiveError};
use tracing::Span;

use super::Observer;
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
pub struct BatchPolicy {
    /// Packets in a batch, at most.
    pub max_packets: usize,
    /// How long a packet may wait for others, at most.
    pub delay: Duration,
    /// Whether the two are bounds only, within which size and delay are found ([`Sizing`]): as large as the device needs them
    /// to keep up with what comes, and no larger.
    pub adaptive: bool,
}

impl BatchPolicy {
    /// Batches of so many packets, or of those that came within a delay.
    pub fn fixed(max_packets: usize, delay: Duration) -> BatchPolicy {
        BatchPolicy { max_packets, delay, adaptive: false }
    }

    /// Batches that find their size, within what a source has memory for if nothing else is asked of it.
    pub fn adaptive() -> BatchPolicy {
        BatchPolicy { max_packets: 1024, delay: sizing::DEFAULT_MAX_DELAY, adaptive: true }
    }
}

impl Default for BatchPolicy {
    /// As much as one receive brings, at once.
    fn default() -> BatchPolicy {
        BatchPolicy::fixed(256, Duration::ZERO)
    }
}

/// How a live run goes.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// When batches are closed.
    pub batching: BatchPolicy,
    /// How batches are handed to the device: by [`Dispatch::Inline`] one thread does everything.
    pub dispatch: Dispatch,
    /// Processors for the lanes' threads, taken in turn, for each lane one or two; wherever the system puts them where there
    /// are none.
    pub processors: Vec<usize>,
    /// What becomes of batches for which the device has no time yet.
    pub backlog: OverloadPolicy,
    /// What counts packets and measures them, where somebody wants that.
    pub window: Option<Arc<MeasurementWindow>>,
}

impl LiveOptions {
    /// Threads wherever the system puts them, packets that wait for the device, and nothing else that is wanted.
    pub fn new(batching: BatchPolicy, dispatch: Dispatch) -> LiveOptions {
        LiveOptions { batching, dispatch, processors: Vec::new(), backlog: OverloadPolicy::Block, window: None }
    }
}

/// What becomes of batches for which the device has no time yet, where a thread receives that does nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverloadPolicy {
    /// Two batches wait, and after them packets where they came in: whoever brings them drops what finds no room there.
    Block,
    /// So many batches wait, and so many packets in them. What finds no room is dropped at once, and counted
    /// ([`Loss::Overload`](portcullis_io::live::Loss::Overload)).
    Drop {
        /// Batches, at least one.
        max_batches: usize,
        /// Packets; one batch may have more.
        max_packets: usize,
    },
}

/// A lane and the session that its batches go through.
pub struct LiveLane {
    /// Where packets come from, and where they go.
    pub lane: Lane,
    /// What filters them.
    pub session: Box<dyn Session>,
    /// What others want done with the session meanwhile.
    pub commands: Arc<LaneCommands>,
    /// Targets that stand for several, where the filter has such.
    pub broadcasts: Option<super::Broadcasts>,
}

impl LiveLane {
    /// A lane of which nobody wants anything yet.
    pub fn new(lane: Lane, session: Box<dyn Session>) -> LiveLane {
        LiveLane { lane, session, commands: Arc::default(), broadcasts: None }
    }
}

/// Why a lane ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// Its packets come no longer, or cannot go where they should.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The device failed; the packets in flight are lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A thread could not be started, or died: a fault of the system or of ours.
    #[error("{lane}: the {thread} thread {what}")]
    Thread {
        /// The lane.
        lane: String,
        /// Which.
        thread: &'static str,
        /// What happened to it.
        what: String,
    },
}

/// Runs lanes until `stop` is cancelled, or one of them fails, and gives them back, in order, with what went wrong first: all but
/// those whose thread died.
/// What has been received by then is filtered and carried out.
///
/// The first lane is driven by the calling thread, which also calls `observe`; [`Observer::on_batch_boundary`] is about its session.
/// `stats` has an entry for each lane, which tells at any time what has come through. `at_stop` is called once when an end is
/// wanted, and is to see to it that no more packets come: those that are here then are still filtered, for a second at most.
///
/// # Panics
/// When there are not as many `stats` as lanes.
pub fn run_live(
    lanes: Vec<LiveLane>,
    stats: &[Arc<LaneStats>],
    options: &LiveOptions,
    stop: &CancelToken,
    at_stop: impl FnOnce() + Send,
    observe: &mut dyn Observer,
) -> (Vec<LiveLane>, Option<LaneError>) {
    assert_eq!(lanes.len(), stats.len(), "each lane has its statistics");
    let names: Vec<String> = lanes.iter().map(|lane| lane.lane.name.clone()).collect();
    // What a lane's threads say is of the lane. They enter its span once, and no packet has to do with it. Whatever is shown at
    // all shows it: an event without its place is of little use.
    let spans: Vec<Span> = names.iter().map(|lane| tracing::error_span!("lane", %lane)).collect();
    for (lane, span) in names.iter().zip(&spans) {
        let _lane = span.enter();
        tracing::info!(%lane, dispatch = %options.dispatch, "lane started");
    }
    let mut monitor = LossMonitor::new(names.iter().cloned().zip(spans.iter().cloned()), stats);
    let ended = thread::scope(|scope| {
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
            // The lane's threads are side by side: the driver, and the RX thread where there is one.
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
                Err(wrong) => {
                    let what = format!("cannot be started: {}", portcullis_core::reason(&wrong));
                    error.get_or_insert(LaneError::Thread { lane: name, thread: "driver", what });
                    stop.cancel();
                }
            }
        }
        let mut back = Vec::new();
        if let Some((mut lane, stats, processor, rx)) = first {
            let _lane = spans[0].enter();
            pin(processor);
            let name = lane.lane.name.clone();
            // As with the others: what it leaves behind where it dies, nobody gets.
            let driven = catch_unwind(AssertUnwindSafe(move || {
                let ended =
                    LaneRunner::new(&mut lane, stats, options, (stop, rx), &SharedSizing::new(), Some(observe)).run();
                (lane, ended)
            }));
            match driven {
                Ok((lane, ended)) => {
                    if let Err(wrong) = ended {
                        error.get_or_insert(wrong);
                        stop.cancel();
                    }
                    back.push((0, lane));
                }
                Err(_) => {
                    error.get_or_insert(died(name));
                }
            }
        }
        // Where there is no lane, there is nothing to wait for.
        if back.is_empty() {
            stop.cancel();
        }
        for (number, name, thread) in others {
            match thread.join() {
                Ok((lane, ended)) => {
                    if let Err(wrong) = ended {
                        error.get_or_insert(wrong);
                    }
                    back.push((number, lane));
                }
                Err(_) => {
                    error.get_or_insert(died(name));
                }
            }
        }
        // Only now, since counts may go down: whoever asks while another lane still runs is not to see that.
        for (number, LiveLane { lane, .. }) in &mut back {
            if let Err(wrong) = lane.executor.finish() {
                error.get_or_insert(wrong.into());
            }
            stats[*number].set_executed(lane.executor.executed());
        }
        (back.into_iter().map(|(_, lane)| lane).collect::<Vec<_>>(), error)
    });
    if ended.1.is_some() {
        // Those that came to their end have nothing left.
        stats.iter().for_each(|lane| lane.record_failure());
    }
    monitor.report();
    for ((lane, span), stats) in names.iter().zip(&spans).zip(stats) {
        let (received, carried, _) = stats.counters();
        let _lane = span.enter();
        tracing::info!(%lane, packets = received.packets, lost = carried.losses.all(), "lane ended");
    }
    ended
}

/// A lane whose driver died.
fn died(lane: String) -> LaneError {
    LaneError::Thread { lane, thread: "driver", what: "died (a fault of this program; please report it)".into() }
}

/// Keeps the calling thread on a processor, where it may be there.
fn pin(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = rustix::thread::CpuSet::new();
    if processor < rustix::thread::CpuSet::MAX_CPU {
        set.set(processor);
        // A processor that is not there was named in vain, and does no harm.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests;
