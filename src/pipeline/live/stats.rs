//! What has come through a lane, for whoever asks while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use portcullis_core::device::{Done, StageTimes};
use portcullis_core::packet::{Action, VerdictCounts};
use portcullis_io::live::{ExecutedCounts, Loss, ReceivedCounts};

use super::Sizing;

/// Latencies above this are counted as this.
const LONGEST: Duration = Duration::from_secs(60);

/// A lane's numbers, now and later.
///
/// The lane's own thread notes them, and is not to wait for those who ask: a histogram of latencies is some hundred KiB, and
/// copying it takes longer than a batch. So whoever asks takes the lane's away, puts an empty one there, and adds.
#[derive(Debug)]
pub struct LaneStats {
    /// What the lane notes. The latencies are those since somebody asked last.
    now: Mutex<Snapshot>,
    /// Packets that were dropped since the driver had all that may wait for it: its RX thread counts them.
    overrun: AtomicU64,
    /// Packets in batches that were received, and are not through yet.
    under_way: AtomicU64,
    /// How things stood when packets began to be measured.
    before: Mutex<Before>,
    /// For those who ask, who may wait for one another.
    asked: Mutex<Asked>,
}

/// What is not measured, where something is measured ([`Meter`](super::Meter)).
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    /// What had come in, and been dropped at once.
    received: Option<(ReceivedCounts, u64)>,
    carried: Option<Counts>,
}

/// What a driver counts.
#[derive(Debug, Clone, Copy)]
struct Counts {
    carried: ExecutedCounts,
    verdicts: [u64; Action::ALL.len()],
    batches: u64,
    relieved: u64,
    times: StageTimes,
}

#[derive(Debug)]
struct Asked {
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
    pub relieved: u64,
    /// Where the device's time went.
    pub times: StageTimes,
    /// From when the first packet of a batch was received until its verdicts were carried out, in nanoseconds, each packet counted.
    pub latency: Histogram<u64>,
    /// What batches that find their size are now; `None` for all others.
    pub sizing: Option<Sizing>,
}

/// What is noted of a batch that a device is through with.
#[derive(Debug, Default)]
pub(super) struct Filtered {
    pub packets: usize,
    pub verdicts: VerdictCounts,
    pub times: StageTimes,
    /// Whether another device filtered it, since this one had all the batches that it takes.
    pub aside: bool,
}

impl Filtered {
    pub fn new(done: &Done, aside: bool) -> Filtered {
        Filtered { packets: done.batch.len(), verdicts: done.verdicts.counts(), times: done.times, aside }
    }
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot {
            received: ReceivedCounts::default(),
            carried: ExecutedCounts::default(),
            verdicts: [0; Action::ALL.len()],
            batches: 0,
            relieved: 0,
            times: StageTimes::default(),
            latency: latencies(),
            sizing: None,
        }
    }
}

impl Snapshot {
    /// What has come since `before`, an earlier snapshot of the same lane.
    pub fn since(&self, before: &Snapshot) -> Snapshot {
        let mut since = self.clone();
        each(&mut since, before, |now, before| *now = now.saturating_sub(before));
        since.times = StageTimes {
            upload: self.times.upload.saturating_sub(before.times.upload),
            kernel: self.times.kernel.saturating_sub(before.times.kernel),
            download: self.times.download.saturating_sub(before.times.download),
        };
        // Both have the same bounds, and nothing that is not in the later one.
        if since.latency.subtract(&before.latency).is_err() {
            since.latency.clear();
        }
        since
    }

    /// Adds another lane's numbers.
    pub fn add(&mut self, other: &Snapshot) {
        each(self, other, |sum, other| *sum += other);
        self.times += other.times;
        self.latency.add(&other.latency).expect("all have the same bounds");
    }

    /// Packets with a verdict.
    pub fn judged(&self) -> u64 {
        self.verdicts.iter().sum()
    }
}

/// Does something with every count of `to` and its fellow in `from`.
fn each(to: &mut Snapshot, from: &Snapshot, mut with: impl FnMut(&mut u64, u64)) {
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
    with(&mut to.relieved, from.relieved);
}

/// Three digits: 0.1 % of what is measured.
fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("bounds that make sense")
}

impl Default for LaneStats {
    fn default() -> LaneStats {
        LaneStats {
            now: Mutex::default(),
            overrun: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            before: Mutex::default(),
            asked: Mutex::new(Asked { latency: latencies(), spare: latencies() }),
        }
    }
}

impl LaneStats {
    /// How things stand.
    pub fn snapshot(&self) -> Snapshot {
        let mut asked = lock(&self.asked);
        let Asked { latency, spare } = &mut *asked;
        let mut now = lock(&self.now);
        std::mem::swap(&mut now.latency, spare);
        let Snapshot { received, mut carried, verdicts, batches, relieved, times, sizing, .. } = *now;
        drop(now);
        carried.losses.add(Loss::Overload, self.overrun.load(Ordering::Relaxed));
        latency.add(&*spare).expect("all have the same bounds");
        spare.reset();
        Snapshot { received, carried, verdicts, batches, relieved, times, latency: latency.clone(), sizing }
    }

    /// Packets in batches that were received, and are not through yet: a device has them, or they wait for it. Where a lane has
    /// failed, those with which it did.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// What came in, what became of it, and how many packets another device filtered, without the rest, which is more.
    pub(super) fn counts(&self) -> (ReceivedCounts, ExecutedCounts, u64) {
        let now = lock(&self.now);
        let mut carried = now.carried;
        carried.losses.add(Loss::Overload, self.overrun.load(Ordering::Relaxed));
        (now.received, carried, now.relieved)
    }

    /// What has come since packets began to be measured; `None` where they have not.
    pub fn measured(&self) -> Option<Snapshot> {
        let Before { received, carried } = *lock(&self.before);
        let (received, overrun) = received?;
        let now = self.snapshot();
        let mut before = match carried {
            Some(Counts { carried, verdicts, batches, relieved, times }) => {
                Snapshot { carried, verdicts, batches, relieved, times, ..Snapshot::default() }
            }
            // The driver is through with none of those: what was not dropped at once was lost with the lane, if anything was.
            None => {
                let overrun_now = self.overrun.load(Ordering::Relaxed);
                let mut before = Snapshot { latency: latencies(), ..now.clone() };
                let losses = &mut before.carried.losses;
                *losses.of_mut(Loss::Overload) -= overrun_now;
                let came = now.received.packets.saturating_sub(received.packets);
                let left = came.saturating_sub(overrun_now - overrun);
                *losses.of_mut(Loss::Failed) -= left.min(losses.of(Loss::Failed));
                before
            }
        };
        before.received = received;
        before.carried.losses.add(Loss::Overload, overrun);
        Some(now.since(&before))
    }

    /// What comes in from now on is measured, and this has come in before.
    pub(super) fn received_before(&self, received: ReceivedCounts) {
        lock(&self.before).received = Some((received, self.overrun.load(Ordering::Relaxed)));
    }

    /// What the driver does from now on is measured.
    pub(super) fn carried_before(&self) {
        let Snapshot { carried, verdicts, batches, relieved, times, .. } = *lock(&self.now);
        lock(&self.before).carried = Some(Counts { carried, verdicts, batches, relieved, times });
    }

    /// Notes a batch that was received.
    pub(super) fn gathered(&self, packets: usize) {
        self.under_way.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Notes packets of a batch that were dropped at once.
    pub(super) fn overran(&self, packets: usize) {
        self.under_way.fetch_sub(packets as u64, Ordering::Relaxed);
        self.overrun.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Notes a batch that the device is through with, what became of packets up to now, and how long ago the batch's first one came,
    /// where that is of interest.
    pub(super) fn through(&self, filtered: &Filtered, carried: &ExecutedCounts, latency: Option<Duration>) {
        self.under_way.fetch_sub(filtered.packets as u64, Ordering::Relaxed);
        let mut now = lock(&self.now);
        for (count, sum) in filtered.verdicts.iter().zip(&mut now.verdicts) {
            *sum += count;
        }
        now.batches += 1;
        now.times += filtered.times;
        if filtered.aside {
            now.relieved += filtered.packets as u64;
        }
        now.carried = *carried;
        if let Some(latency) = latency {
            let latency = (latency.as_nanos() as u64).clamp(1, LONGEST.as_nanos() as u64);
            now.latency.saturating_record_n(latency, filtered.packets as u64);
        }
    }

    /// Notes what became of packets, after the fact.
    pub(super) fn tended(&self, carried: &ExecutedCounts) {
        lock(&self.now).carried = *carried;
    }

    /// Notes what batches are to be from now on.
    pub(super) fn sized(&self, sizing: Sizing) {
        lock(&self.now).sizing = Some(sizing);
    }

    /// Notes what became of packets up to now.
    pub(super) fn carried_in_all(&self, carried: &ExecutedCounts) {
        lock(&self.now).carried = *carried;
    }

    /// Notes that the lane is over before its end: what was received and is not through is lost.
    pub(super) fn failed(&self) {
        let mut now = lock(&self.now);
        let through = now.carried.all() + self.overrun.load(Ordering::Relaxed);
        let lost = now.received.packets.saturating_sub(through);
        now.carried.losses.add(Loss::Failed, lost);
    }

    pub(super) fn received(&self, received: ReceivedCounts) {
        lock(&self.now).received = received;
    }
}

fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    // Numbers are numbers whoever died meanwhile.
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}
