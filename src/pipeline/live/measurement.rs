//! From which packet on a run is measured, and after which it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_core::device::CancelToken;

/// Counts the packets that all lanes of a run take: the first of them warm it up, and are not measured; and when those that are
/// wanted have come, it ends. Batches have packets of the one kind or the other.
///
/// With several lanes each may take a batch more than is wanted, as they do not wait for one another.
#[derive(Debug)]
pub struct MeasurementWindow {
    warm_up: u64,
    /// All packets, those of the warm-up included.
    limit: u64,
    received: AtomicU64,
    stop: CancelToken,
    created: Instant,
    /// Nanoseconds since it was made until packets began to be measured, and one; 0 before.
    started_at: AtomicU64,
    /// The same until the last of them was through.
    ended_at: AtomicU64,
}

impl MeasurementWindow {
    /// So many packets for warming up, and then so many as are wanted, after which `stop` is cancelled; without an end where there
    /// is no number.
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

    /// Packets that have come.
    pub fn received_packets(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether the warm-up is over.
    pub fn is_warmed_up(&self) -> bool {
        self.received_packets() >= self.warm_up
    }

    /// The time from when packets began to be measured until the last of them was through; `None` where none was.
    pub fn elapsed(&self) -> Option<Duration> {
        let (started_at, ended_at) = (self.started_at.load(Ordering::Relaxed), self.ended_at.load(Ordering::Relaxed));
        (started_at > 0).then(|| ended_at.checked_sub(started_at).map(Duration::from_nanos)).flatten()
    }

    /// Of so many packets those that a lane may take now which is warming up, or is measured.
    pub(super) fn allowance(&self, packets: usize, is_warm_up: bool) -> usize {
        let end = if is_warm_up { self.warm_up } else { self.limit };
        let left = end.saturating_sub(self.received_packets());
        packets.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Notes packets that have come.
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

    /// Notes when measured packets were through.
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
    fn packets_are_measured_after_the_warm_up_and_until_the_last() {
        let stop = CancelToken::new();
        let meter = MeasurementWindow::new(10, Some(25), stop.clone());
        assert_eq!((meter.allowance(64, true), meter.is_warmed_up()), (10, false));
        meter.record_received(9);
        assert_eq!((meter.allowance(64, true), meter.started_at.load(Ordering::Relaxed)), (1, 0));
        meter.record_received(1);
        assert_eq!((meter.allowance(64, true), meter.allowance(64, false), meter.is_warmed_up()), (0, 25, true));
        assert!(meter.started_at.load(Ordering::Relaxed) > 0 && meter.elapsed().is_none(), "none is through");
        meter.record_received(24);
        assert!(!stop.is_cancelled());
        let now = Instant::now();
        meter.record_completed(now + Duration::from_millis(3));
        // Another lane may be before.
        meter.record_completed(now);
        meter.record_received(1);
        assert!(stop.is_cancelled() && meter.allowance(64, false) == 0);
        assert!(meter.elapsed().unwrap() >= Duration::from_millis(3));
    }

    #[test]
    fn without_a_warm_up_the_first_packet_begins() {
        let meter = MeasurementWindow::new(0, None, CancelToken::new());
        assert!(meter.is_warmed_up() && meter.elapsed().is_none());
        meter.record_received(1);
        let started_at = meter.started_at.load(Ordering::Relaxed);
        assert!(started_at > 0);
        meter.record_received(1 << 40);
        assert_eq!((meter.started_at.load(Ordering::Relaxed), meter.allowance(64, false)), (started_at, 64));
        // Two lanes at once may pass the end of a warm-up.
        let meter = MeasurementWindow::new(10, Some(u64::MAX), CancelToken::new());
        meter.record_received(64);
        assert!(meter.started_at.load(Ordering::Relaxed) > 0);
    }
}
