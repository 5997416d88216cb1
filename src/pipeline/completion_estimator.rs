//! When a device may be done, for who has something else to do.

use std::time::{Duration, Instant};

/// Of so many batches that come home, [`SAMPLED_BATCHES`] are waited for in a row, and nothing else is done meanwhile.
const SAMPLE_PERIOD: u32 = 16;

/// The first shows when the device begins with the second, and that one how long it takes.
const SAMPLED_BATCHES: u32 = 2;

/// Knows when a device may be through with its oldest batch.
///
/// A session does not tell whether one would have to wait for it, and so whoever has something else to do asks at the time at
/// which a batch is likely to be done. How long that takes is seen now and then, by waiting for it: what is seen after
/// something else was done may just be that.
#[derive(Debug)]
pub(super) struct CompletionEstimator {
    /// What a batch takes, as it was seen last.
    batch_time: Duration,
    has_sample: bool,
    count: u32,
    /// When the last one came home.
    last_completion: Instant,
}

impl CompletionEstimator {
    pub fn new(now: Instant) -> CompletionEstimator {
        CompletionEstimator { batch_time: Duration::ZERO, has_sample: false, count: 0, last_completion: now }
    }

    /// Whether the oldest batch, which was submitted then, is to be waited for now.
    pub fn is_due(&self, submitted: Instant, now: Instant) -> bool {
        self.is_sampling() || now >= submitted.max(self.last_completion) + self.batch_time
    }

    /// A batch that was submitted then has come home.
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

    /// A device that takes so long, whoever does what meanwhile, and batches aside that take a tenth of that. Gives how many
    /// of the latter there are to one of the former, and what a batch is thought to take in the end.
    fn work(batch_time: Duration, while_asked: bool) -> (f64, Duration) {
        let mut now = Instant::now();
        let mut estimator = CompletionEstimator::new(now);
        let (mut aside, mut before) = (0, now);
        let home = 1000;
        for _ in 0..home {
            let submitted = before;
            while !estimator.is_due(submitted, now) {
                now += batch_time / 10;
                aside += 1;
            }
            // One that works only while it is asked has done nothing up to now.
            now = if while_asked { now + batch_time } else { now.max(before + batch_time) };
            before = now;
            estimator.record_completion(submitted, now);
        }
        (f64::from(aside) / f64::from(home), estimator.batch_time)
    }

    #[test]
    fn what_a_device_takes_is_seen_and_the_time_is_used() {
        let batch_time = Duration::from_millis(1);
        for while_asked in [false, true] {
            let (aside, has_sample) = work(batch_time, while_asked);
            assert_eq!(has_sample, batch_time);
            assert!((8.0..=10.0).contains(&aside), "{aside} are done aside, {while_asked}");
        }
    }

    #[test]
    fn a_device_that_becomes_slower_or_faster_is_followed() {
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
