//! What has come through a lane, for whoever asks while it runs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use portcullis_core::device::{Done, StageTimes};
use portcullis_core::packet::Action;
use portcullis_io::live::{Carried, Received};

/// Latencies above this are counted as this.
const LONGEST: Duration = Duration::from_secs(60);

/// A lane's numbers, now and later.
#[derive(Debug)]
pub struct LaneStats(Mutex<Snapshot>);

/// A lane's numbers at a moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What came in.
    pub received: Received,
    /// What became of it.
    pub carried: Carried,
    /// Verdicts, by their numbers.
    pub verdicts: [u64; Action::ALL.len()],
    /// Batches.
    pub batches: u64,
    /// Where the device's time went.
    pub times: StageTimes,
    /// From when the first packet of a batch was received until its verdicts were carried out, in nanoseconds, each packet counted.
    pub latency: Histogram<u64>,
}

impl Default for LaneStats {
    fn default() -> LaneStats {
        // Three digits: 0.1 % of what is measured.
        let latency = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("bounds that make sense");
        LaneStats(Mutex::new(Snapshot {
            received: Received::default(),
            carried: Carried::default(),
            verdicts: [0; Action::ALL.len()],
            batches: 0,
            times: StageTimes::default(),
            latency,
        }))
    }
}

impl LaneStats {
    /// How things stand.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Notes a batch that the device is through with.
    pub(super) fn done(&self, done: &Done) {
        let counts = done.verdicts.counts();
        let mut now = self.lock();
        for (action, sum) in Action::ALL.into_iter().zip(&mut now.verdicts) {
            *sum += counts[action as usize];
        }
        now.batches += 1;
        now.times += done.times;
    }

    /// Notes what became of a batch of so many packets, the first of which came this long ago.
    pub(super) fn carried(&self, carried: &Carried, packets: usize, latency: Duration) {
        let mut now = self.lock();
        now.carried = *carried;
        let latency = (latency.as_nanos() as u64).clamp(1, LONGEST.as_nanos() as u64);
        now.latency.saturating_record_n(latency, packets as u64);
    }

    pub(super) fn received(&self, received: Received) {
        self.lock().received = received;
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        // Numbers are numbers whoever died meanwhile.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
