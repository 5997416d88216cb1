//! Statistics of repeated measurements without assumptions about their distribution: run times are
//! skewed, multimodal, and sometimes interrupted.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::results::{Estimate, Latency};

/// Returns the indices, among `count` sorted samples, of a symmetric confidence interval for the
/// median; `None` if there are too few samples for this confidence.
///
/// The number of samples below the median is binomial with p = 1/2, so the sample at index `k` lies
/// above the median with the probability of at most `k` successes in `n`.
pub fn median_places(count: usize, confidence: f64) -> Option<(usize, usize)> {
    let outside = (1.0 - confidence) / 2.0;
    let n = count as f64;
    // In logarithms: the probabilities underflow for many samples.
    let mut chance = -n * std::f64::consts::LN_2;
    let (mut sum, mut place) = (chance.exp(), None);
    let mut k = 0;
    while sum <= outside && k < count / 2 {
        place = Some(k);
        chance += ((n - k as f64) / (k as f64 + 1.0)).ln();
        sum += chance.exp();
        k += 1;
    }
    place.map(|place| (place, count - 1 - place))
}

/// Returns the median of samples with its interval; `None` if there are too few for one.
pub fn median(samples: &[f64], confidence: f64) -> Option<Estimate> {
    let (low, high) = median_places(samples.len(), confidence)?;
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(Estimate { median, low: sorted[low], high: sorted[high] })
}

impl Estimate {
    /// Width of the interval, as a share of the median.
    pub fn width(&self) -> f64 {
        (self.high - self.low) / self.median
    }

    /// Returns `constant` divided by the estimate, as a rate is of a time.
    pub fn under(&self, constant: f64) -> Estimate {
        Estimate { median: constant / self.median, low: constant / self.high, high: constant / self.low }
    }

    /// Returns the ratio of this estimate to `before`. Its interval is conservative: it holds if
    /// both intervals do.
    pub fn ratio(&self, before: &Estimate) -> Estimate {
        Estimate { median: self.median / before.median, low: self.low / before.high, high: self.high / before.low }
    }

    /// Whether the interval of a ratio excludes 1.
    pub fn is_change(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// Longest latency recorded; longer ones count as this.
const LONGEST: Duration = Duration::from_secs(3600);

/// Histogram of latencies in nanoseconds with three significant digits, in bounded memory.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Creates an empty histogram.
    pub fn new() -> Latencies {
        // The bounds are in order and the digits supported, so this cannot fail.
        Latencies(Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("valid bounds and digits"))
    }

    /// Records a latency.
    pub fn add(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Number of latencies recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the quantiles; of few samples the last ones are the maximum.
    pub fn quantiles(&self) -> Latency {
        let of = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e9;
        Latency { p50: of(0.5), p99: of(0.99), p999: of(0.999) }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies::new()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_io::synth::Random;

    use super::*;

    /// Returns the probability of at most `k` heads in `n` throws, from exact integer counts by
    /// Pascal's triangle.
    fn heads(n: usize, k: usize) -> f64 {
        let mut row = vec![1u128];
        for _ in 0..n {
            let next = (0..=row.len()).map(|i| {
                let left = if i > 0 { row[i - 1] } else { 0 };
                left + row.get(i).copied().unwrap_or(0)
            });
            row = next.collect();
        }
        row[..=k].iter().sum::<u128>() as f64 / 2f64.powi(n as i32)
    }

    #[test]
    fn places_are_the_closest_that_hold_the_median_often_enough() {
        for confidence in [0.5, 0.9, 0.95, 0.99] {
            let outside = (1.0 - confidence) / 2.0;
            for n in 1..=100 {
                match median_places(n, confidence) {
                    None => assert!(heads(n, 0) > outside || n < 2, "{n} would do for {confidence}"),
                    Some((low, high)) => {
                        assert_eq!(low + high, n - 1);
                        assert!(heads(n, low) <= outside + 1e-12, "{n} {confidence}: {low}");
                        let closer = low + 1 < n / 2 && heads(n, low + 1) < outside - 1e-12;
                        assert!(!closer, "{n} {confidence}: {low} could be closer");
                    }
                }
            }
        }
        // Textbooks' table for 95 %: ranks 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20; none of 5.
        let places = |n| median_places(n, 0.95);
        assert_eq!((places(5), places(6), places(10), places(20)), (None, Some((0, 5)), Some((1, 8)), Some((5, 14))));
        assert_eq!(median_places(0, 0.95), None);
        // Probabilities that would underflow: the lower rank is about n/2 - 0.98 √n.
        let (low, _) = median_places(1_000_000, 0.95).unwrap();
        assert!((499_015..499_025).contains(&low), "{low}");
    }

    #[test]
    fn intervals_hold_the_median_as_often_as_they_say() {
        // Skewed, as run times are: the square of a uniform variable, whose median is a quarter.
        let mut random = Random::new(9, 0);
        for n in [6, 11, 30, 101] {
            let mut held = 0;
            for _ in 0..2_000 {
                let samples: Vec<f64> = (0..n).map(|_| (f64::from(random.u32()) / 2f64.powi(32)).powi(2)).collect();
                let Estimate { median, low, high } = median(&samples, 0.95).unwrap();
                assert!(low <= median && median <= high);
                held += u32::from(low <= 0.25 && 0.25 <= high);
            }
            // Five standard deviations below the expected number, at least 95 % of 2,000 tries.
            assert!(held > 1_850, "{n}: {held} of 2000");
        }
    }

    #[test]
    fn medians_are_the_middle() {
        let of = |samples: &[f64]| median(samples, 0.5).unwrap().median;
        assert_eq!(of(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(of(&[4.0, 9.0, 1.0, 6.0]), 5.0);
        assert_eq!(median(&[], 0.5), None);
        assert_eq!(median(&[1.0], 0.95), None);
    }

    #[test]
    fn ratios_that_could_be_one_are_no_change() {
        let of = |low: f64, high: f64| Estimate { median: (low + high) / 2.0, low, high };
        let ratio = of(11.0, 13.0).ratio(&of(9.0, 10.0));
        assert_eq!((ratio.low, ratio.high), (1.1, 13.0 / 9.0));
        assert!(ratio.is_change() && of(9.0, 10.0).ratio(&of(11.0, 13.0)).is_change());
        assert!(!of(9.5, 13.0).ratio(&of(9.0, 10.0)).is_change());
        let rate = of(2.0, 4.0).under(12.0);
        assert_eq!((rate.low, rate.median, rate.high), (3.0, 4.0, 6.0));
        assert_eq!(of(3.0, 5.0).width(), 0.5);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let mut random = Random::new(5, 0);
        let mut all: Vec<u64> = (0..10_000).map(|_| 1_000 + u64::from(random.u32() >> 8)).collect();
        let mut latencies = Latencies::new();
        all.iter().for_each(|&ns| latencies.add(Duration::from_nanos(ns)));
        all.sort_unstable();
        let Latency { p50, p99, p999 } = latencies.quantiles();
        for (found, rank) in [(p50, 5_000), (p99, 9_900), (p999, 9_990)] {
            let exact = all[rank - 1] as f64 / 1e9;
            assert!((found / exact - 1.0).abs() < 1e-3, "{found} for {exact}");
        }
        assert_eq!(latencies.count(), 10_000);
        latencies.add(Duration::MAX);
        assert_eq!(latencies.count(), 10_001);
        let mut latencies = Latencies::new();
        latencies.add(Duration::MAX);
        assert!((latencies.quantiles().p50 / 3600.0 - 1.0).abs() < 1e-3);
    }
}
