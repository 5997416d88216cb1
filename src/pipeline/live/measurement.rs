//! The measurement window of a run: which packets are warm-up, which are measured, and when the run
//! ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_core::device::CancelToken;

/// Counts the packets that all lanes of a run receive. The first ones are warm-up and not measured;
/// once the requested number has been received, the run is stopped. No batch has packets of both
/// kinds.
///
/// Lanes do not wait for one another, so each may exceed the limit by one batch.
#[derive(Debug)]
pub struct MeasurementWindow {
    warm_up: u64,
    /// Packets after which the run ends, warm-up included.
    limit: u64,
    received: AtomicU64,
    stop: CancelToken,
    created: Instant,
    /// When packets began to be measured, in nanoseconds after `created` plus one; 0 before that.
    started_at: AtomicU64,
    /// When the last measured packet was completed, in the same form.
    ended_at: AtomicU64,
}

impl MeasurementWindow {
    /// Creates a window of `warm_up` packets followed by `packets` measured ones, after which
    /// `stop` is cancelled. Without `packets` the window has no end.
    pub fn new(warm_up: u64, packets: Option<u64>, stop: CancelToken) -> MeasurementWindow {
        let limit = packets.map_or(u64::MAX, |packets| warm_up.saturating_add(packets));
        let zero = || AtomicU64::new(0);
        MeasurementWindow {
            warm_up,
            limit,
            received: zero(),
            stop,
            created: Instant::now(),
            started_at: zero(),
            ended_at: zero(),
        }
    }

    /// Number of packets received, warm-up included.
    pub fn received_packets(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether the warm-up is over.
    pub fn is_warmed_up(&self) -> bool {
        self.received_packets() >= self.warm_up
    }

    /// Time from the start of the measurement until the last measured packet was completed; `None`
    /// if none was.
    pub fn elapsed(&self) -> Option<Duration> {
        let (started_at, ended_at) = (self.started_at.load(Ordering::Relaxed), self.ended_at.load(Ordering::Relaxed));
        (started_at > 0).then(|| ended_at.checked_sub(started_at).map(Duration::from_nanos)).flatten()
    }

    /// Limits `packets` to what a lane may still receive, in the warm-up or after it.
    pub(super) fn allowance(&self, packets: usize, is_warm_up: bool) -> usize {
        let end = if is_warm_up { self.warm_up } else { self.limit };
        let left = end.saturating_sub(self.received_packets());
        packets.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Records received packets, and stops the run at its limit.
    pub(super) fn record_received(&self, packets: usize) {
        let before = self.received.fetch_add(packets as u64, Ordering::Relaxed);
        let received = before.saturating_add(packets as u64);
        let begins = if self.warm_up == 0 { before == 0 } else { (before..received).contains(&(self.warm_up - 1)) };
        if begins {
            self.started_at.store(self.at(Instant::now()), Ordering::Relaxed);
        }
        if received >= self.limit {
            self.stop.cancel();
        }
    }

    /// Records that measured packets were completed at `now`.
    pub(super) fn record_completed(&self, now: Instant) {
        self.ended_at.fetch_max(self.at(now), Ordering::Relaxed);
    }

    fn at(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.created).as_nanos() as u64).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_measured_from_the_warm_up_to_the_limit() {
        let stop = CancelToken::new();
        let window = MeasurementWindow::new(10, Some(25), stop.clone());
        assert_eq!((window.allowance(64, true), window.is_warmed_up()), (10, false));
        window.record_received(9);
        assert_eq!((window.allowance(64, true), window.started_at.load(Ordering::Relaxed)), (1, 0));
        window.record_received(1);
        assert_eq!((window.allowance(64, true), window.allowance(64, false), window.is_warmed_up()), (0, 25, true));
        assert!(window.started_at.load(Ordering::Relaxed) > 0 && window.elapsed().is_none(), "no packet is completed");
        window.record_received(24);
        assert!(!stop.is_cancelled());
        let now = Instant::now();
        window.record_completed(now + Duration::from_millis(3));
        // Lanes may report out of order.
        window.record_completed(now);
        window.record_received(1);
        assert!(stop.is_cancelled() && window.allowance(64, false) == 0);
        assert!(window.elapsed().unwrap() >= Duration::from_millis(3));
    }

    #[test]
    fn without_a_warm_up_the_first_packet_starts_the_measurement() {
        let window = MeasurementWindow::new(0, None, CancelToken::new());
        assert!(window.is_warmed_up() && window.elapsed().is_none());
        window.record_received(1);
        let started_at = window.started_at.load(Ordering::Relaxed);
        assert!(started_at > 0);
        window.record_received(1 << 40);
        assert_eq!((window.started_at.load(Ordering::Relaxed), window.allowance(64, false)), (started_at, 64));
        // Two lanes together may overshoot the end of the warm-up.
        let window = MeasurementWindow::new(10, Some(u64::MAX), CancelToken::new());
        window.record_received(64);
        assert!(window.started_at.load(Ordering::Relaxed) > 0);
    }
}
