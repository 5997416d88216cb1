//! Batches that find their size.
//!
//! A batch of *n* packets costs a device *a* + *b*·*n*: to launch it, and to filter. Where λ packets come in a second, the device
//! keeps up when a batch is done before the next one is there, *a* + *b*·*n* ≤ *n*/λ; so the least batch for it has
//! *n* = *a*·λ / (1 − *b*·λ) packets. A larger one has its packets wait for nothing, and a smaller one lets them pile up. *a* and
//! *b* are fitted to what batches have cost, and λ is an average; both forget, exponentially. [`HEADROOM`] is what they may be
//! wrong by.
//!
//! What a batch has cost is the time for which nothing else could be done instead: from when it was submitted, or the batch
//! before it had left, whichever was later, until its verdicts were carried out. The device's own account
//! ([`Completion::times`](portcullis_core::device::Done)) lacks what the host does for a batch, and adds up what happens at the same time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::BatchPolicy;

/// How much more than what comes a device is to be able to do.
const HEADROOM: f64 = 1.25;

/// What is left of what is known of costs when another batch is done.
const COST_DECAY: f64 = 1.0 - 1.0 / 128.0;

/// A cost that is more than this many times what was expected tells of the system, which did something else meanwhile.
const OUTLIER_RATIO: f64 = 4.0;

/// Batches after which one knows what to expect.
const OUTLIER_MIN_WEIGHT: f64 = 8.0;

/// The least spread of sizes, in parts of the mean, from which costs a packet can be told from costs a batch.
const MIN_SIZE_SPREAD: f64 = 0.05;

/// The time after which an average of arrivals has forgotten about two thirds, in seconds.
const RATE_TIME_CONSTANT: f64 = 0.02;

/// The part of the way to its new size that a batch goes at a time, in proportions.
const SIZE_STEP_EXPONENT: f64 = 0.125;

/// How much longer than expected a batch may take to fill.
const FILL_TIME_SLACK: f64 = 1.5;

/// The longest delay where nobody has said one.
pub(super) const DEFAULT_MAX_DELAY: Duration = Duration::from_millis(1);

/// A shorter delay is none: a system's timers are no finer, and what comes meanwhile is seen at the next look.
pub(super) const MIN_DELAY: Duration = Duration::from_micros(50);

/// What a batch that finds its size has been found to be, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizing {
    /// Packets with which a batch is closed at once.
    pub batch: usize,
    /// How long a batch waits for them.
    pub delay: Duration,
    /// Packets that come, in a second.
    pub rate: f64,
    /// What a batch costs, whatever is in it.
    pub fixed: Duration,
    /// What each packet costs beside that, in nanoseconds.
    pub packet_ns: f64,
}

/// Finds the size of batches.
#[derive(Debug)]
pub(super) struct BatchSizer {
    max_packets: usize,
    /// No delay is longer; none is where waiting is of no use.
    max_delay: Duration,
    costs: CostModel,
    size: f64,
}

impl BatchSizer {
    /// Within these bounds. By a device that is `inline` what comes waits in any case while a batch is filtered, and need not
    /// wait for others before that.
    pub fn new(bounds: BatchPolicy, inline: bool) -> BatchSizer {
        let max_delay = if inline { Duration::ZERO } else { bounds.delay };
        BatchSizer { max_packets: bounds.max_packets.max(1), max_delay, costs: CostModel::default(), size: 1.0 }
    }

    /// Learns what a batch of so many packets has cost, and tells what batches are to be while `rate` packets come in a second.
    pub fn record_batch(&mut self, packets: usize, cost: Duration, rate: f64) -> Sizing {
        self.costs.record(packets as f64, cost.as_secs_f64());
        let (fixed, packet) = self.costs.fit();
        let spare = 1.0 - packet * rate * HEADROOM;
        let max_packets = self.max_packets as f64;
        // Where no size is enough, the largest does most.
        let wanted = if spare > 0.0 { fixed * rate * HEADROOM / spare } else { max_packets };
        self.size = match wanted {
            // There is time for each packet alone, and so none is kept waiting any more.
            ..=1.0 => 1.0,
            _ => self.size * (wanted.min(max_packets) / self.size).powf(SIZE_STEP_EXPONENT),
        };
        let batch = (self.size.ceil() as usize).clamp(1, self.max_packets);
        Sizing {
            batch,
            delay: self.delay(batch, rate),
            rate,
            fixed: Duration::from_secs_f64(fixed),
            packet_ns: packet * 1e9,
        }
    }

    fn delay(&self, batch: usize, rate: f64) -> Duration {
        if batch <= 1 {
            return Duration::ZERO;
        }
        let fills = Duration::try_from_secs_f64(batch as f64 / rate * FILL_TIME_SLACK).unwrap_or(Duration::MAX);
        let delay = fills.min(self.max_delay);
        if delay < MIN_DELAY { Duration::ZERO } else { delay }
    }
}

/// A straight line through what batches have cost: least squares, the older the lighter.
#[derive(Debug, Default)]
struct CostModel {
    weight: f64,
    packets: f64,
    squares: f64,
    seconds: f64,
    products: f64,
    /// What a packet costs, as it was last seen.
    slope: f64,
}

impl CostModel {
    fn record(&mut self, packets: f64, seconds: f64) {
        let seconds = match self.weight {
            OUTLIER_MIN_WEIGHT.. => {
                let (fixed, packet) = self.fit();
                seconds.min(OUTLIER_RATIO * (fixed + packet * packets))
            }
            _ => seconds,
        };
        // A clock may be too coarse to see a small batch.
        let seconds = seconds.max(1e-9);
        for sum in [&mut self.weight, &mut self.packets, &mut self.squares, &mut self.seconds, &mut self.products] {
            *sum *= COST_DECAY;
        }
        self.weight += 1.0;
        self.packets += packets;
        self.squares += packets * packets;
        self.seconds += seconds;
        self.products += packets * seconds;
        let (packets, seconds) = (self.packets / self.weight, self.seconds / self.weight);
        let variance = self.squares / self.weight - packets * packets;
        // Batches that are all alike tell nothing of the slope: it is what it was, and at first none. What costs nothing a
        // packet is better in larger batches, which then are not alike.
        if variance > (MIN_SIZE_SPREAD * packets).powi(2) {
            self.slope = (self.products / self.weight - packets * seconds) / variance;
        }
    }

    /// The cost of a batch, and of each packet in it, in seconds. Neither is negative.
    fn fit(&self) -> (f64, f64) {
        if self.weight == 0.0 {
            return (0.0, 0.0);
        }
        let (packets, seconds) = (self.packets / self.weight, self.seconds / self.weight);
        let slope = self.slope.clamp(0.0, seconds / packets.max(1.0));
        ((seconds - slope * packets).max(0.0), slope)
    }
}

/// How many packets come in a second.
#[derive(Debug)]
pub(super) struct ArrivalRate {
    packets: f64,
    seconds: f64,
    since: Instant,
}

impl ArrivalRate {
    pub fn new(now: Instant) -> ArrivalRate {
        ArrivalRate { packets: 0.0, seconds: 0.0, since: now }
    }

    /// So many more have come by now. Gives the rate.
    pub fn record(&mut self, packets: usize, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        let kept = (-passed / RATE_TIME_CONSTANT).exp();
        self.packets = self.packets * kept + packets as f64;
        self.seconds = self.seconds * kept + passed;
        if self.seconds > 0.0 { self.packets / self.seconds } else { 0.0 }
    }
}

/// What the two threads of a lane tell each other. Each number is of use by itself.
#[derive(Debug)]
pub(super) struct SharedSizing {
    /// The bits of how many packets come in a second.
    rate: AtomicU64,
    batch: AtomicUsize,
    delay_ns: AtomicU64,
}

impl SharedSizing {
    /// What is known at first: nothing waits.
    pub fn new() -> SharedSizing {
        SharedSizing { rate: AtomicU64::new(0), batch: AtomicUsize::new(1), delay_ns: AtomicU64::new(0) }
    }

    pub fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed))
    }

    pub fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// The packets of a batch, and how long it waits for them.
    pub fn target(&self) -> (usize, Duration) {
        let delay = Duration::from_nanos(self.delay_ns.load(Ordering::Relaxed));
        (self.batch.load(Ordering::Relaxed), delay)
    }

    pub fn set_target(&self, sizing: &Sizing) {
        self.batch.store(sizing.batch, Ordering::Relaxed);
        self.delay_ns.store(sizing.delay.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
