//! When a device may be done, for who has something else to do.

use std::time::{Duration, Instant};

/// Of so many batches that come home, [`CLEAN`] are waited for in a row, and nothing else is done meanwhile.
const TURN: u32 = 16;

/// The first shows when the device begins with the second, and that one how long it takes.
const CLEAN: u32 = 2;

/// Knows when a device may be through with its oldest batch.
///
/// A session does not tell whether one would have to wait for it, and so whoever has something else to do asks at the time at
/// which a batch is likely to be done. How long that takes is seen now and then, by waiting for it: what is seen after
/// something else was done may just be that.
#[derive(Debug)]
pub(super) struct Due {
    /// What a batch takes, as it was seen last.
    takes: Duration,
    seen: bool,
    count: u32,
    /// When the last one came home.
    last: Instant,
}

impl Due {
    pub fn new(now: Instant) -> Due {
        Due { takes: Duration::ZERO, seen: false, count: 0, last: now }
    }

    /// Whether the oldest batch, which was submitted then, is to be waited for now.
    pub fn is_due(&self, submitted: Instant, now: Instant) -> bool {
        self.is_clean() || now >= submitted.max(self.last) + self.takes
    }

    /// A batch that was submitted then has come home.
    pub fn came(&mut self, submitted: Instant, now: Instant) {
        if self.count % TURN == CLEAN - 1 {
            let took = now - submitted.max(self.last);
            self.takes = if self.seen { (self.takes + took) / 2 } else { took };
            self.seen = true;
        }
        self.count = self.count.wrapping_add(1);
        self.last = now;
    }

    fn is_clean(&self) -> bool {
        self.count % TURN < CLEAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes so long, whoever does what meanwhile, and batches aside that take a tenth of that. Gives how many
    /// of the latter there are to one of the former, and what a batch is thought to take in the end.
    fn work(takes: Duration, while_asked: bool) -> (f64, Duration) {
        let mut now = Instant::now();
        let mut due = Due::new(now);
        let (mut aside, mut before) = (0, now);
        let home = 1000;
        for _ in 0..home {
            let submitted = before;
            while !due.is_due(submitted, now) {
                now += takes / 10;
                aside += 1;
            }
            // One that works only while it is asked has done nothing up to now.
            now = if while_asked { now + takes } else { now.max(before + takes) };
            before = now;
            due.came(submitted, now);
        }
        (f64::from(aside) / f64::from(home), due.takes)
    }

    #[test]
    fn what_a_device_takes_is_seen_and_the_time_is_used() {
        let takes = Duration::from_millis(1);
        for while_asked in [false, true] {
            let (aside, seen) = work(takes, while_asked);
            assert_eq!(seen, takes);
            assert!((8.0..=10.0).contains(&aside), "{aside} are done aside, {while_asked}");
        }
    }

    #[test]
    fn a_device_that_becomes_slower_or_faster_is_followed() {
        let mut now = Instant::now();
        let mut due = Due::new(now);
        for takes in [10, 1000, 10].map(Duration::from_micros) {
            for _ in 0..20 * TURN {
                let submitted = now;
                now += takes;
                due.came(submitted, now);
            }
            assert!(due.takes >= takes * 9 / 10 && due.takes <= takes * 11 / 10, "{:?}", due.takes);
        }
    }
}
