//! Estimates when a device completes its oldest batch, so that the driver can use the time before
//! for something else.

use std::time::{Duration, Instant};

/// Length of a sampling period, in completed batches. The driver waits for the first
/// [`SAMPLED_BATCHES`] of each period and does nothing else meanwhile, so that their time can be
/// measured.
const SAMPLE_PERIOD: u32 = 16;

/// Batches measured per period: the first marks when the device starts the second, whose time
/// counts.
const SAMPLED_BATCHES: u32 = 2;

/// Estimates when a device completes its oldest batch.
///
/// `Session` has no way to ask whether `complete` would block. So the driver does other work until
/// the batch is probably done, judging by the time that recent batches took. Only batches that the
/// driver has waited for are measured: after other work, the measured time may be that of the work.
#[derive(Debug)]
pub(super) struct CompletionEstimator {
    /// Moving average of the time that one batch takes.
    batch_time: Duration,
    has_sample: bool,
    count: u32,
    /// When the previous batch was completed.
    last_completion: Instant,
}

impl CompletionEstimator {
    pub fn new(now: Instant) -> CompletionEstimator {
        CompletionEstimator { batch_time: Duration::ZERO, has_sample: false, count: 0, last_completion: now }
    }

    /// Whether to wait for the oldest batch, submitted at `submitted`, now.
    pub fn is_due(&self, submitted: Instant, now: Instant) -> bool {
        self.is_sampling() || now >= submitted.max(self.last_completion) + self.batch_time
    }

    /// Records that a batch submitted at `submitted` was completed at `now`.
    pub fn record_completion(&mut self, submitted: Instant, now: Instant) {
        if self.count % SAMPLE_PERIOD == SAMPLED_BATCHES - 1 {
            let took = now - submitted.max(self.last_completion);
            self.batch_time = if self.has_sample { (self.batch_time + took) / 2 } else { took };
            self.has_sample = true;
        }
        self.count = self.count.wrapping_add(1);
        self.last_completion = now;
    }

    fn is_sampling(&self) -> bool {
        self.count % SAMPLE_PERIOD < SAMPLED_BATCHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a device that takes `batch_time` for a batch, and other work in steps of a tenth
    /// of that. Returns the number of steps per batch and the final estimate. If
    /// `works_only_when_polled`, the device makes no progress while other work is done.
    fn simulate(batch_time: Duration, works_only_when_polled: bool) -> (f64, Duration) {
        let mut now = Instant::now();
        let mut estimator = CompletionEstimator::new(now);
        let (mut other_work, mut before) = (0, now);
        let batches = 1000;
        for _ in 0..batches {
            let submitted = before;
            while !estimator.is_due(submitted, now) {
                now += batch_time / 10;
                other_work += 1;
            }
            // A device that works only when polled has done nothing until now.
            now = if works_only_when_polled { now + batch_time } else { now.max(before + batch_time) };
            before = now;
            estimator.record_completion(submitted, now);
        }
        (f64::from(other_work) / f64::from(batches), estimator.batch_time)
    }

    #[test]
    fn the_batch_time_is_estimated_and_the_wait_is_used_for_other_work() {
        let batch_time = Duration::from_millis(1);
        for works_only_when_polled in [false, true] {
            let (other_work, estimate) = simulate(batch_time, works_only_when_polled);
            assert_eq!(estimate, batch_time);
            assert!((8.0..=10.0).contains(&other_work), "{other_work} steps of other work, {works_only_when_polled}");
        }
    }

    #[test]
    fn the_estimate_follows_a_device_that_becomes_slower_or_faster() {
        let mut now = Instant::now();
        let mut estimator = CompletionEstimator::new(now);
        for batch_time in [10, 1000, 10].map(Duration::from_micros) {
            for _ in 0..20 * SAMPLE_PERIOD {
                let submitted = now;
                now += batch_time;
                estimator.record_completion(submitted, now);
            }
            assert!(
                estimator.batch_time >= batch_time * 9 / 10 && estimator.batch_time <= batch_time * 11 / 10,
                "{:?}",
                estimator.batch_time
            );
        }
    }
}
