//! Adaptive batch sizes.
//!
//! A batch of *n* packets costs a device *a* + *b*·*n*: *a* to launch it and *b* per packet. At λ
//! packets per second the device keeps up if a batch is done before the next one is there, *a* +
//! *b*·*n* ≤ *n*/λ; so the smallest sufficient batch has *n* = *a*·λ / (1 − *b*·λ) packets. In a
//! larger one packets wait longer than needed; with smaller ones packets pile up. *a* and *b* come
//! from a least-squares fit and λ is a moving average, both with exponential decay. [`HEADROOM`]
//! allows for their errors.
//!
//! The cost of a batch is the time that it occupies the device: from its submission, or the end of
//! the previous batch if that is later, until its verdicts are executed. The device's own account
//! ([`Completion::times`](portcullis_core::device::Completion)) lacks the host's part and adds up
//! stages that overlap.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::BatchPolicy;

/// Throughput that the device is to sustain, relative to the arrival rate.
const HEADROOM: f64 = 1.25;

/// Factor by which the weight of all earlier costs decays with each batch.
const COST_DECAY: f64 = 1.0 - 1.0 / 128.0;

/// Costs are clamped to this many times the expected cost: a larger one comes from the system, for
/// example from preemption.
const OUTLIER_RATIO: f64 = 4.0;

/// Weight of the recorded batches (about their number) from which outliers are clamped.
const OUTLIER_MIN_WEIGHT: f64 = 8.0;

/// Minimum standard deviation of batch sizes, relative to their mean, for which the fit can tell
/// per-packet from fixed costs.
const MIN_SIZE_SPREAD: f64 = 0.05;

/// Time constant of the moving average of the arrival rate, in seconds.
const RATE_TIME_CONSTANT: f64 = 0.02;

/// Each step multiplies the size by the ratio of target to current size, raised to this power.
const SIZE_STEP_EXPONENT: f64 = 0.125;

/// Maximum time for filling a batch, relative to the time expected.
const FILL_TIME_SLACK: f64 = 1.5;

/// Maximum delay of a batch if none is configured.
pub(super) const DEFAULT_MAX_DELAY: Duration = Duration::from_millis(1);

/// Delays below this are rounded down to none: timers are no finer, and the next poll sees what
/// arrives meanwhile.
pub(super) const MIN_DELAY: Duration = Duration::from_micros(50);

/// The batch size that adaptive sizing has chosen, and what it was computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizing {
    /// Number of packets at which a batch is closed at once.
    pub batch: usize,
    /// Maximum time that a batch waits for them.
    pub delay: Duration,
    /// Arrival rate in packets per second.
    pub rate: f64,
    /// Fixed cost of a batch.
    pub fixed: Duration,
    /// Additional cost of each packet, in nanoseconds.
    pub packet_ns: f64,
}

/// Controller that adapts the batch size to costs and arrival rate.
#[derive(Debug)]
pub(super) struct BatchSizer {
    max_packets: usize,
    /// Upper bound of the delay; zero if waiting is of no use.
    max_delay: Duration,
    costs: CostModel,
    size: f64,
}

impl BatchSizer {
    /// Creates a sizer within `bounds`. With `is_inline` dispatch packets queue while a batch is
    /// filtered, so batches never wait for more.
    pub fn new(bounds: BatchPolicy, is_inline: bool) -> BatchSizer {
        let max_delay = if is_inline { Duration::ZERO } else { bounds.delay };
        BatchSizer { max_packets: bounds.max_packets.max(1), max_delay, costs: CostModel::default(), size: 1.0 }
    }

    /// Records the cost of a batch and returns the size for the next ones, at an arrival rate of
    /// `rate` packets per second.
    pub fn record_batch(&mut self, packets: usize, cost: Duration, rate: f64) -> Sizing {
        self.costs.record(packets as f64, cost.as_secs_f64());
        let (fixed, packet) = self.costs.fit();
        let spare = 1.0 - packet * rate * HEADROOM;
        let max_packets = self.max_packets as f64;
        // If no size is sufficient, the largest one has the highest throughput.
        let wanted = if spare > 0.0 { fixed * rate * HEADROOM / spare } else { max_packets };
        self.size = match wanted {
            // The device can filter each packet alone: go there at once, so that none waits any
            // longer.
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

/// Linear model of the cost of a batch: a least-squares fit with exponential decay.
#[derive(Debug, Default)]
struct CostModel {
    weight: f64,
    packets: f64,
    squares: f64,
    seconds: f64,
    products: f64,
    /// Cost of a packet in seconds, from the last time that it could be determined.
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
        // The clock may be too coarse for a small batch.
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
        // Batches of equal size do not determine the slope, so it keeps its value, at first zero. A
        // cost per packet of zero makes the batches larger, after which their sizes differ.
        if variance > (MIN_SIZE_SPREAD * packets).powi(2) {
            self.slope = (self.products / self.weight - packets * seconds) / variance;
        }
    }

    /// Fixed cost of a batch and cost per packet, in seconds. Neither is negative.
    fn fit(&self) -> (f64, f64) {
        if self.weight == 0.0 {
            return (0.0, 0.0);
        }
        let (packets, seconds) = (self.packets / self.weight, self.seconds / self.weight);
        let slope = self.slope.clamp(0.0, seconds / packets.max(1.0));
        ((seconds - slope * packets).max(0.0), slope)
    }
}

/// Moving average of the packets arriving per second.
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

    /// Adds packets that have arrived by `now` and returns the rate.
    pub fn record(&mut self, packets: usize, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        let kept = (-passed / RATE_TIME_CONSTANT).exp();
        self.packets = self.packets * kept + packets as f64;
        self.seconds = self.seconds * kept + passed;
        if self.seconds > 0.0 { self.packets / self.seconds } else { 0.0 }
    }
}

/// State shared by the two threads of a lane. Each number is meaningful by itself, so relaxed
/// ordering suffices.
#[derive(Debug)]
pub(super) struct SharedSizing {
    /// Packets per second, as the bits of an `f64`.
    rate: AtomicU64,
    batch: AtomicUsize,
    delay_ns: AtomicU64,
}

impl SharedSizing {
    /// Initial state: batches of one packet that do not wait.
    pub fn new() -> SharedSizing {
        SharedSizing { rate: AtomicU64::new(0), batch: AtomicUsize::new(1), delay_ns: AtomicU64::new(0) }
    }

    pub fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed))
    }

    pub fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Number of packets at which a batch is closed, and how long it waits for them.
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
