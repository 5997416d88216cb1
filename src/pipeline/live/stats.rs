//! Counters and latencies of a lane, readable by other threads while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, VerdictCounts};
use portcullis_io::live::{ExecutedCounts, Loss, ReceivedCounts};

use super::Sizing;

/// Upper bound of recorded latencies; longer ones count as this.
const MAX_LATENCY: Duration = Duration::from_secs(60);

/// Counters and latencies of a lane.
///
/// The lane's thread writes them and must not wait for readers. A latency histogram has some
/// hundred KiB, and copying it takes longer than filtering a batch. So a reader swaps the lane's
/// histogram for an empty one and adds it to its own.
#[derive(Debug)]
pub struct LaneStats {
    /// Counts of the lane. The latencies are those since the last read.
    current: Mutex<Snapshot>,
    /// Packets dropped because the queue to the driver was full, counted by the RX thread.
    overload_drops: AtomicU64,
    /// Packets in flight at a device that failed and was replaced by its fallback.
    lost_with_device: AtomicU64,
    /// Packets in batches that were received and not yet completed.
    in_flight: AtomicU64,
    /// Counters at the start of the measurement.
    baseline: Mutex<MeasurementBaseline>,
    /// State of the readers, who may wait for one another.
    reader: Mutex<ReaderState>,
    /// Warnings of the session that nobody has taken.
    warnings: Mutex<Vec<String>>,
}

/// Counters at the start of the measurement, which [`MeasurementWindow`](super::MeasurementWindow)
/// excludes from results.
#[derive(Debug, Clone, Copy, Default)]
struct MeasurementBaseline {
    /// Received packets, and those dropped for overload.
    received: Option<(ReceivedCounts, u64)>,
    executed: Option<DriverCounters>,
}

/// The counters that the driver writes.
#[derive(Debug, Clone, Copy)]
struct DriverCounters {
    executed: ExecutedCounts,
    verdicts: VerdictCounts,
    batches: u64,
    fallback_packets: u64,
    times: StageTimes,
}

#[derive(Debug)]
struct ReaderState {
    /// Sum of the histograms taken from the lane.
    latency: Histogram<u64>,
    /// An empty histogram to leave with the lane.
    spare: Histogram<u64>,
}

/// Counters and latencies of one lane, or of several together, up to now or between two points in
/// time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Counts of the receiver.
    pub received: ReceivedCounts,
    /// Counts of the executor.
    pub executed: ExecutedCounts,
    /// Number of verdicts, by action.
    pub verdicts: VerdictCounts,
    /// Number of completed batches.
    pub batches: u64,
    /// Packets that the fallback device filtered because this one was full.
    pub fallback_packets: u64,
    /// Busy time of the device's stages.
    pub times: StageTimes,
    /// Time from the reception of a batch's first packet until its verdicts were executed, in
    /// nanoseconds; each packet counts.
    pub latency: Histogram<u64>,
    /// Current batch size, if sizes adapt.
    pub sizing: Option<Sizing>,
}

/// Counts of one completed batch.
#[derive(Debug, Default)]
pub(super) struct CompletedBatch {
    pub packets: usize,
    pub verdicts: VerdictCounts,
    pub times: StageTimes,
    /// Whether the fallback device filtered it.
    pub by_fallback: bool,
}

impl CompletedBatch {
    pub fn new(done: &Completion, by_fallback: bool) -> CompletedBatch {
        CompletedBatch { packets: done.batch.len(), verdicts: done.verdicts.counts(), times: done.times, by_fallback }
    }
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot {
            received: ReceivedCounts::default(),
            executed: ExecutedCounts::default(),
            verdicts: VerdictCounts::default(),
            batches: 0,
            fallback_packets: 0,
            times: StageTimes::default(),
            latency: latency_histogram(),
            sizing: None,
        }
    }
}

impl Snapshot {
    /// Returns the difference to `baseline`, an earlier snapshot of the same lane.
    pub fn since(&self, baseline: &Snapshot) -> Snapshot {
        let mut since = self.clone();
        combine_counters(&mut since, baseline, |current, baseline| *current = current.saturating_sub(baseline));
        since.times = StageTimes {
            upload: self.times.upload.saturating_sub(baseline.times.upload),
            kernel: self.times.kernel.saturating_sub(baseline.times.kernel),
            download: self.times.download.saturating_sub(baseline.times.download),
        };
        // Both have the same bounds, and the later one contains the earlier one.
        if since.latency.subtract(&baseline.latency).is_err() {
            since.latency.clear();
        }
        since
    }

    /// Adds the numbers of another lane.
    pub fn add(&mut self, other: &Snapshot) {
        combine_counters(self, other, |sum, other| *sum += other);
        self.times += other.times;
        self.latency.add(&other.latency).expect("all have the same bounds");
    }

    /// Number of packets with a verdict.
    pub fn verdict_count(&self) -> u64 {
        self.verdicts.total()
    }
}

/// Applies `with` to each counter of `to` and its counterpart in `from`.
fn combine_counters(to: &mut Snapshot, from: &Snapshot, mut with: impl FnMut(&mut u64, u64)) {
    let ReceivedCounts { packets, bytes, reassembled, checksums, dropped_by_kernel, refused } = &mut to.received;
    with(packets, from.received.packets);
    with(bytes, from.received.bytes);
    with(reassembled, from.received.reassembled);
    with(checksums, from.received.checksums);
    with(dropped_by_kernel, from.received.dropped_by_kernel);
    with(refused, from.received.refused);
    let ExecutedCounts { packets, bytes, losses, checksums, from_stack, from_stack_lost } = &mut to.executed;
    for action in Action::ALL {
        with(to.verdicts.of_mut(action), from.verdicts.of(action));
        let action = action as usize;
        with(&mut packets[action], from.executed.packets[action]);
        with(&mut bytes[action], from.executed.bytes[action]);
    }
    for loss in Loss::ALL {
        with(losses.of_mut(loss), from.executed.losses.of(loss));
    }
    with(checksums, from.executed.checksums);
    with(from_stack, from.executed.from_stack);
    with(from_stack_lost, from.executed.from_stack_lost);
    with(&mut to.batches, from.batches);
    with(&mut to.fallback_packets, from.fallback_packets);
}

/// An empty histogram with three significant digits: values are exact to 0.1 %.
fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY.as_nanos() as u64, 3).expect("bounds that make sense")
}

impl Default for LaneStats {
    fn default() -> LaneStats {
        LaneStats {
            current: Mutex::default(),
            overload_drops: AtomicU64::new(0),
            lost_with_device: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            baseline: Mutex::default(),
            reader: Mutex::new(ReaderState { latency: latency_histogram(), spare: latency_histogram() }),
            warnings: Mutex::default(),
        }
    }
}

impl LaneStats {
    /// Returns all numbers up to now.
    pub fn snapshot(&self) -> Snapshot {
        let mut reader = lock(&self.reader);
        let ReaderState { latency, spare } = &mut *reader;
        let mut current = lock(&self.current);
        std::mem::swap(&mut current.latency, spare);
        let Snapshot { received, mut executed, verdicts, batches, fallback_packets, times, sizing, .. } = *current;
        drop(current);
        self.add_losses(&mut executed);
        latency.add(&*spare).expect("all have the same bounds");
        spare.reset();
        Snapshot { received, executed, verdicts, batches, fallback_packets, times, latency: latency.clone(), sizing }
    }

    /// Records a warning of the lane's session.
    pub(super) fn record_warning(&self, warning: String) {
        lock(&self.warnings).push(warning);
    }

    /// Takes the warnings of the lane's session; see
    /// [`Instrumented::take_warnings`](portcullis_core::device::Instrumented::take_warnings).
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.warnings))
    }

    /// Adds the packets that the executor did not see.
    fn add_losses(&self, executed: &mut ExecutedCounts) {
        executed.losses.add(Loss::Overload, self.overload_drops.load(Ordering::Relaxed));
        executed.losses.add(Loss::Failed, self.lost_with_device());
    }

    /// Packets that were lost with a device whose fallback took over; the device may still hold
    /// their memory.
    pub fn lost_with_device(&self) -> u64 {
        self.lost_with_device.load(Ordering::Relaxed)
    }

    /// Packets in batches that were received and are not completed: the device has them, or they
    /// wait for it. After a lane has failed, the packets lost in it.
    pub fn packets_in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counters of received and executed packets, and packets filtered by the fallback. Cheaper
    /// than a snapshot.
    pub(super) fn counters(&self) -> (ReceivedCounts, ExecutedCounts, u64) {
        let current = lock(&self.current);
        let mut executed = current.executed;
        self.add_losses(&mut executed);
        (current.received, executed, current.fallback_packets)
    }

    /// Returns the numbers since the start of the measurement, or `None` if it has not started.
    pub fn measured_snapshot(&self) -> Option<Snapshot> {
        let MeasurementBaseline { received, executed } = *lock(&self.baseline);
        let (received, overload_drops) = received?;
        let current = self.snapshot();
        let mut baseline = match executed {
            Some(DriverCounters { executed, verdicts, batches, fallback_packets, times }) => {
                Snapshot { executed, verdicts, batches, fallback_packets, times, ..Snapshot::default() }
            }
            // The driver has completed no measured batch: those not dropped for overload were lost
            // with the lane, if any were.
            None => {
                let drops_now = self.overload_drops.load(Ordering::Relaxed);
                let mut baseline = Snapshot { latency: latency_histogram(), ..current.clone() };
                let losses = &mut baseline.executed.losses;
                *losses.of_mut(Loss::Overload) -= drops_now;
                let arrived = current.received.packets.saturating_sub(received.packets);
                let unaccounted = arrived.saturating_sub(drops_now - overload_drops);
                *losses.of_mut(Loss::Failed) -= unaccounted.min(losses.of(Loss::Failed));
                baseline
            }
        };
        baseline.received = received;
        baseline.executed.losses.add(Loss::Overload, overload_drops);
        Some(current.since(&baseline))
    }

    /// Starts the measurement of received packets; `received` came before.
    pub(super) fn start_measuring_rx(&self, received: ReceivedCounts) {
        lock(&self.baseline).received = Some((received, self.overload_drops.load(Ordering::Relaxed)));
    }

    /// Starts the measurement of what the driver does.
    pub(super) fn start_measuring_driver(&self) {
        let Snapshot { mut executed, verdicts, batches, fallback_packets, times, .. } = *lock(&self.current);
        executed.losses.add(Loss::Failed, self.lost_with_device());
        lock(&self.baseline).executed = Some(DriverCounters { executed, verdicts, batches, fallback_packets, times });
    }

    /// Records a batch that was received.
    pub(super) fn record_received_batch(&self, packets: usize) {
        self.in_flight.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Records packets of a batch that was dropped because the queue was full.
    pub(super) fn record_overload_drop(&self, packets: usize) {
        self.in_flight.fetch_sub(packets as u64, Ordering::Relaxed);
        self.overload_drops.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Records packets that were in flight at a device that its fallback has replaced.
    pub(super) fn record_lost_with_device(&self, packets: usize) {
        self.in_flight.fetch_sub(packets as u64, Ordering::Relaxed);
        self.lost_with_device.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Records a completed batch, the executor's counters, and the batch's latency unless that
    /// belongs to the warm-up.
    pub(super) fn record_completed(
        &self,
        completed: &CompletedBatch,
        executed: &ExecutedCounts,
        latency: Option<Duration>,
    ) {
        self.in_flight.fetch_sub(completed.packets as u64, Ordering::Relaxed);
        let mut current = lock(&self.current);
        current.verdicts += completed.verdicts;
        current.batches += 1;
        current.times += completed.times;
        if completed.by_fallback {
            current.fallback_packets += completed.packets as u64;
        }
        current.executed = *executed;
        if let Some(latency) = latency {
            let latency = (latency.as_nanos() as u64).clamp(1, MAX_LATENCY.as_nanos() as u64);
            current.latency.saturating_record_n(latency, completed.packets as u64);
        }
    }

    /// Sets the executor's counters.
    pub(super) fn set_executed(&self, executed: &ExecutedCounts) {
        lock(&self.current).executed = *executed;
    }

    /// Sets the current batch size.
    pub(super) fn set_sizing(&self, sizing: Sizing) {
        lock(&self.current).sizing = Some(sizing);
    }

    /// Counts packets that were received and not completed as lost with the lane.
    pub(super) fn record_failure(&self) {
        let mut current = lock(&self.current);
        let accounted = current.executed.all() + self.overload_drops.load(Ordering::Relaxed) + self.lost_with_device();
        let lost = current.received.packets.saturating_sub(accounted);
        current.executed.losses.add(Loss::Failed, lost);
    }

    pub(super) fn set_received(&self, received: ReceivedCounts) {
        lock(&self.current).received = received;
    }
}

fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counters stay valid if a thread panics while it holds the lock.
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}
