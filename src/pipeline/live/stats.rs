//! What has come through a lane, for whoever asks while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, VerdictCounts};
use portcullis_io::live::{ExecutedCounts, Loss, ReceivedCounts};

use super::Sizing;

/// Latencies above this are counted as this.
const MAX_LATENCY: Duration = Duration::from_secs(60);

/// A lane's numbers, now and later.
///
/// The lane's own thread notes them, and is not to wait for those who ask: a histogram of latencies is some hundred KiB, and
/// copying it takes longer than a batch. So whoever asks takes the lane's away, puts an empty one there, and adds.
#[derive(Debug)]
pub struct LaneStats {
    /// What the lane notes. The latencies are those since somebody asked last.
    current: Mutex<Snapshot>,
    /// Packets that were dropped since the driver had all that may wait for it: its RX thread counts them.
    overload_drops: AtomicU64,
    /// Packets in batches that were received, and are not through yet.
    in_flight: AtomicU64,
    /// How things stood when packets began to be measured.
    baseline: Mutex<MeasurementBaseline>,
    /// For those who ask, who may wait for one another.
    reader: Mutex<ReaderState>,
}

/// What is not measured, where something is measured ([`MeasurementWindow`](super::Meter)).
#[derive(Debug, Clone, Copy, Default)]
struct MeasurementBaseline {
    /// What had come in, and been dropped at once.
    received: Option<(ReceivedCounts, u64)>,
    carried: Option<DriverCounters>,
}

/// What a driver counts.
#[derive(Debug, Clone, Copy)]
struct DriverCounters {
    carried: ExecutedCounts,
    verdicts: [u64; Action::ALL.len()],
    batches: u64,
    fallback_packets: u64,
    times: StageTimes,
}

#[derive(Debug)]
struct ReaderState {
    /// All latencies that were taken from the lane.
    latency: Histogram<u64>,
    /// An empty one, for the lane.
    spare: Histogram<u64>,
}

/// A lane's numbers at a moment, or of the time between two; or those of several lanes.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What came in.
    pub received: ReceivedCounts,
    /// What became of it.
    pub carried: ExecutedCounts,
    /// Verdicts, by their numbers.
    pub verdicts: [u64; Action::ALL.len()],
    /// Batches.
    pub batches: u64,
    /// Packets that another device filtered, since this one had all the batches that it takes.
    pub fallback_packets: u64,
    /// Where the device's time went.
    pub times: StageTimes,
    /// From when the first packet of a batch was received until its verdicts were carried out, in nanoseconds, each packet counted.
    pub latency: Histogram<u64>,
    /// What batches that find their size are now; `None` for all others.
    pub sizing: Option<Sizing>,
}

/// What is noted of a batch that a device is through with.
#[derive(Debug, Default)]
pub(super) struct CompletedBatch {
    pub packets: usize,
    pub verdicts: VerdictCounts,
    pub times: StageTimes,
    /// Whether another device filtered it, since this one had all the batches that it takes.
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
            carried: ExecutedCounts::default(),
            verdicts: [0; Action::ALL.len()],
            batches: 0,
            fallback_packets: 0,
            times: StageTimes::default(),
            latency: latency_histogram(),
            sizing: None,
        }
    }
}

impl Snapshot {
    /// What has come since `baseline`, an earlier snapshot of the same lane.
    pub fn since(&self, baseline: &Snapshot) -> Snapshot {
        let mut since = self.clone();
        combine_counters(&mut since, baseline, |current, baseline| *current = current.saturating_sub(baseline));
        since.times = StageTimes {
            upload: self.times.upload.saturating_sub(baseline.times.upload),
            kernel: self.times.kernel.saturating_sub(baseline.times.kernel),
            download: self.times.download.saturating_sub(baseline.times.download),
        };
        // Both have the same bounds, and nothing that is not in the later one.
        if since.latency.subtract(&baseline.latency).is_err() {
            since.latency.clear();
        }
        since
    }

    /// Adds another lane's numbers.
    pub fn add(&mut self, other: &Snapshot) {
        combine_counters(self, other, |sum, other| *sum += other);
        self.times += other.times;
        self.latency.add(&other.latency).expect("all have the same bounds");
    }

    /// Packets with a verdict.
    pub fn verdict_count(&self) -> u64 {
        self.verdicts.iter().sum()
    }
}

/// Does something with every count of `to` and its fellow in `from`.
fn combine_counters(to: &mut Snapshot, from: &Snapshot, mut with: impl FnMut(&mut u64, u64)) {
    let ReceivedCounts { packets, bytes, reassembled, checksums, dropped_by_kernel, refused } = &mut to.received;
    with(packets, from.received.packets);
    with(bytes, from.received.bytes);
    with(reassembled, from.received.reassembled);
    with(checksums, from.received.checksums);
    with(dropped_by_kernel, from.received.dropped_by_kernel);
    with(refused, from.received.refused);
    let ExecutedCounts { packets, bytes, losses, checksums, from_stack, from_stack_lost } = &mut to.carried;
    for action in Action::ALL.map(|action| action as usize) {
        with(&mut packets[action], from.carried.packets[action]);
        with(&mut bytes[action], from.carried.bytes[action]);
        with(&mut to.verdicts[action], from.verdicts[action]);
    }
    for loss in Loss::ALL {
        with(losses.of_mut(loss), from.carried.losses.of(loss));
    }
    with(checksums, from.carried.checksums);
    with(from_stack, from.carried.from_stack);
    with(from_stack_lost, from.carried.from_stack_lost);
    with(&mut to.batches, from.batches);
    with(&mut to.fallback_packets, from.fallback_packets);
}

/// Three digits: 0.1 % of what is measured.
fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY.as_nanos() as u64, 3).expect("bounds that make sense")
}

impl Default for LaneStats {
    fn default() -> LaneStats {
        LaneStats {
            current: Mutex::default(),
            overload_drops: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            baseline: Mutex::default(),
            reader: Mutex::new(ReaderState { latency: latency_histogram(), spare: latency_histogram() }),
        }
    }
}

impl LaneStats {
    /// How things stand.
    pub fn snapshot(&self) -> Snapshot {
        let mut reader = lock(&self.reader);
        let ReaderState { latency, spare } = &mut *reader;
        let mut current = lock(&self.current);
        std::mem::swap(&mut current.latency, spare);
        let Snapshot { received, mut carried, verdicts, batches, fallback_packets, times, sizing, .. } = *current;
        drop(current);
        carried.losses.add(Loss::Overload, self.overload_drops.load(Ordering::Relaxed));
        latency.add(&*spare).expect("all have the same bounds");
        spare.reset();
        Snapshot { received, carried, verdicts, batches, fallback_packets, times, latency: latency.clone(), sizing }
    }

    /// Packets in batches that were received, and are not through yet: a device has them, or they wait for it. Where a lane has
    /// failed, those with which it did.
    pub fn packets_in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// What came in, what became of it, and how many packets another device filtered, without the rest, which is more.
    pub(super) fn counters(&self) -> (ReceivedCounts, ExecutedCounts, u64) {
        let current = lock(&self.current);
        let mut carried = current.carried;
        carried.losses.add(Loss::Overload, self.overload_drops.load(Ordering::Relaxed));
        (current.received, carried, current.fallback_packets)
    }

    /// What has come since packets began to be measured; `None` where they have not.
    pub fn measured_snapshot(&self) -> Option<Snapshot> {
        let MeasurementBaseline { received, carried } = *lock(&self.baseline);
        let (received, overload_drops) = received?;
        let current = self.snapshot();
        let mut baseline = match carried {
            Some(DriverCounters { carried, verdicts, batches, fallback_packets, times }) => {
                Snapshot { carried, verdicts, batches, fallback_packets, times, ..Snapshot::default() }
            }
            // The driver is through with none of those: what was not dropped at once was lost with the lane, if anything was.
            None => {
                let overrun_now = self.overload_drops.load(Ordering::Relaxed);
                let mut baseline = Snapshot { latency: latency_histogram(), ..current.clone() };
                let losses = &mut baseline.carried.losses;
                *losses.of_mut(Loss::Overload) -= overrun_now;
                let came = current.received.packets.saturating_sub(received.packets);
                let left = came.saturating_sub(overrun_now - overload_drops);
                *losses.of_mut(Loss::Failed) -= left.min(losses.of(Loss::Failed));
                baseline
            }
        };
        baseline.received = received;
        baseline.carried.losses.add(Loss::Overload, overload_drops);
        Some(current.since(&baseline))
    }

    /// What comes in from now on is measured, and this has come in before.
    pub(super) fn start_measuring_rx(&self, received: ReceivedCounts) {
        lock(&self.baseline).received = Some((received, self.overload_drops.load(Ordering::Relaxed)));
    }

    /// What the driver does from now on is measured.
    pub(super) fn start_measuring_driver(&self) {
        let Snapshot { carried, verdicts, batches, fallback_packets, times, .. } = *lock(&self.current);
        lock(&self.baseline).carried = Some(DriverCounters { carried, verdicts, batches, fallback_packets, times });
    }

    /// Notes a batch that was received.
    pub(super) fn record_received_batch(&self, packets: usize) {
        self.in_flight.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Notes packets of a batch that were dropped at once.
    pub(super) fn record_overload_drop(&self, packets: usize) {
        self.in_flight.fetch_sub(packets as u64, Ordering::Relaxed);
        self.overload_drops.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Notes a batch that the device is through with, what became of packets up to now, and how long ago the batch's first one came,
    /// where that is of interest.
    pub(super) fn record_completed(
        &self,
        filtered: &CompletedBatch,
        carried: &ExecutedCounts,
        latency: Option<Duration>,
    ) {
        self.in_flight.fetch_sub(filtered.packets as u64, Ordering::Relaxed);
        let mut current = lock(&self.current);
        for (count, sum) in filtered.verdicts.iter().zip(&mut current.verdicts) {
            *sum += count;
        }
        current.batches += 1;
        current.times += filtered.times;
        if filtered.by_fallback {
            current.fallback_packets += filtered.packets as u64;
        }
        current.carried = *carried;
        if let Some(latency) = latency {
            let latency = (latency.as_nanos() as u64).clamp(1, MAX_LATENCY.as_nanos() as u64);
            current.latency.saturating_record_n(latency, filtered.packets as u64);
        }
    }

    /// Notes what became of packets, after the fact.
    pub(super) fn set_executed(&self, carried: &ExecutedCounts) {
        lock(&self.current).carried = *carried;
    }

    /// Notes what batches are to be from now on.
    pub(super) fn set_sizing(&self, sizing: Sizing) {
        lock(&self.current).sizing = Some(sizing);
    }

    /// Notes that the lane is over before its end: what was received and is not through is lost.
    pub(super) fn record_failure(&self) {
        let mut current = lock(&self.current);
        let through = current.carried.all() + self.overload_drops.load(Ordering::Relaxed);
        let lost = current.received.packets.saturating_sub(through);
        current.carried.losses.add(Loss::Failed, lost);
    }

    pub(super) fn set_received(&self, received: ReceivedCounts) {
        lock(&self.current).received = received;
    }
}

fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    // Numbers are numbers whoever died meanwhile.
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}
