//! From which packet on a run is measured, and after which it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis_core::device::CancelToken;

/// Counts the packets that all lanes of a run take: the first of them warm it up, and are not measured; and when those that are
/// wanted have come, it ends. Batches have packets of the one kind or the other.
///
/// With several lanes each may take a batch more than is wanted, as they do not wait for one another.
#[derive(Debug)]
pub struct Meter {
    warm_up: u64,
    /// All packets, those of the warm-up included.
    all: u64,
    taken: AtomicU64,
    stop: CancelToken,
    made: Instant,
    /// Nanoseconds since it was made until packets began to be measured, and one; 0 before.
    began: AtomicU64,
    /// The same until the last of them was through.
    ended: AtomicU64,
}

impl Meter {
    /// So many packets for warming up, and then so many as are wanted, after which `stop` is cancelled; without an end where there
    /// is no number.
    pub fn new(warm_up: u64, packets: Option<u64>, stop: CancelToken) -> Meter {
        let all = packets.map_or(u64::MAX, |packets| warm_up.saturating_add(packets));
        let zero = || AtomicU64::new(0);
        Meter { warm_up, all, taken: zero(), stop, made: Instant::now(), began: zero(), ended: zero() }
    }

    /// Packets that have come.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether the warm-up is over.
    pub fn is_warm(&self) -> bool {
        self.taken() >= self.warm_up
    }

    /// The time from when packets began to be measured until the last of them was through; `None` where none was.
    pub fn elapsed(&self) -> Option<Duration> {
        let (began, ended) = (self.began.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        (began > 0).then(|| ended.checked_sub(began).map(Duration::from_nanos)).flatten()
    }

    /// Of so many packets those that a lane may take now which is warming up, or is measured.
    pub(super) fn allowed(&self, packets: usize, is_warm_up: bool) -> usize {
        let end = if is_warm_up { self.warm_up } else { self.all };
        let left = end.saturating_sub(self.taken());
        packets.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Notes packets that have come.
    pub(super) fn took(&self, packets: usize) {
        let before = self.taken.fetch_add(packets as u64, Ordering::Relaxed);
        let taken = before.saturating_add(packets as u64);
        let begins = if self.warm_up == 0 { before == 0 } else { (before..taken).contains(&(self.warm_up - 1)) };
        if begins {
            self.began.store(self.at(Instant::now()), Ordering::Relaxed);
        }
        if taken >= self.all {
            self.stop.cancel();
        }
    }

    /// Notes when measured packets were through.
    pub(super) fn through(&self, now: Instant) {
        self.ended.fetch_max(self.at(now), Ordering::Relaxed);
    }

    fn at(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.made).as_nanos() as u64).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_measured_after_the_warm_up_and_until_the_last() {
        let stop = CancelToken::new();
        let meter = Meter::new(10, Some(25), stop.clone());
        assert_eq!((meter.allowed(64, true), meter.is_warm()), (10, false));
        meter.took(9);
        assert_eq!((meter.allowed(64, true), meter.began.load(Ordering::Relaxed)), (1, 0));
        meter.took(1);
        assert_eq!((meter.allowed(64, true), meter.allowed(64, false), meter.is_warm()), (0, 25, true));
        assert!(meter.began.load(Ordering::Relaxed) > 0 && meter.elapsed().is_none(), "none is through");
        meter.took(24);
        assert!(!stop.is_cancelled());
        let now = Instant::now();
        meter.through(now + Duration::from_millis(3));
        // Another lane may be before.
        meter.through(now);
        meter.took(1);
        assert!(stop.is_cancelled() && meter.allowed(64, false) == 0);
        assert!(meter.elapsed().unwrap() >= Duration::from_millis(3));
    }

    #[test]
    fn without_a_warm_up_the_first_packet_begins() {
        let meter = Meter::new(0, None, CancelToken::new());
        assert!(meter.is_warm() && meter.elapsed().is_none());
        meter.took(1);
        let began = meter.began.load(Ordering::Relaxed);
        assert!(began > 0);
        meter.took(1 << 40);
        assert_eq!((meter.began.load(Ordering::Relaxed), meter.allowed(64, false)), (began, 64));
        // Two lanes at once may pass the end of a warm-up.
        let meter = Meter::new(10, Some(u64::MAX), CancelToken::new());
        meter.took(64);
        assert!(meter.began.load(Ordering::Relaxed) > 0);
    }
}
