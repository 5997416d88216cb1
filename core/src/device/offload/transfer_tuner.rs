//! Chooses between transfers by what the session has measured.
//!
//! The planner predicts costs from measurements of the machine, and is wrong where those differ
//! from what a session meets: another thread's load, a slower bus, a cache. So a session tries each
//! transfer that could be the fastest on a few of its own batches, the predicted one first, and
//! then keeps to the fastest. It does so for each power of two of packets, and repeats the trials
//! at growing intervals.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Transfer;
use crate::device::transfer_planner::MeasuredTimes;

/// Packets of the smallest batch that is measured: smaller ones take hardly longer either way.
const MIN_PACKETS: usize = 4096;

/// Batches of a trial that count. Their mean decides: a batch that completed while the host did
/// something else seems to take no time, and the one before it takes longer.
const TRIAL_BATCHES: u32 = 4;

/// A transfer that takes this many times as long as another is not tried again, and not at all if
/// the planner predicts it.
pub(super) const DISCARD_RATIO: f64 = 2.0;

/// Batches after which the trials are repeated the first time; each time it takes twice as many.
const RETRY_BATCHES: usize = 1024;

/// The measurements of a session.
#[derive(Debug)]
pub(super) struct TransferTuner {
    /// Batches in flight, which may have been submitted before a trial began.
    depth: usize,
    /// By the logarithm of the number of packets.
    classes: BTreeMap<u32, SizeClass>,
}

/// Batches of about the same size.
#[derive(Debug)]
struct SizeClass {
    candidates: Vec<Candidate>,
    /// The candidate in use, and the number of its batches that have completed.
    current: usize,
    completed: usize,
    is_trial: bool,
    /// Nanoseconds per packet, summed over the trial's batches that count.
    sum: f64,
    counted: u32,
    retry_after: usize,
}

#[derive(Debug)]
struct Candidate {
    transfer: Transfer,
    /// Nanoseconds per packet in its last trial.
    measured: Option<f64>,
}

impl TransferTuner {
    /// Creates a tuner for sessions with at most `depth` batches in flight.
    pub fn new(depth: usize) -> TransferTuner {
        TransferTuner { depth, classes: BTreeMap::new() }
    }

    /// Returns the transfer for a batch, and the times so far. `predicted` is the planner's choice,
    /// and `possible` returns all transfers that are worth a trial, `predicted` among them.
    pub fn choose(
        &mut self,
        packets: usize,
        predicted: Transfer,
        possible: impl FnOnce() -> Vec<Transfer>,
    ) -> (Transfer, Option<MeasuredTimes>) {
        if packets < MIN_PACKETS {
            return (predicted, None);
        }
        let class = self.classes.entry(packets.ilog2()).or_insert_with(|| {
            let mut transfers = possible();
            transfers.sort_by_key(|transfer| *transfer != predicted);
            SizeClass::new(transfers)
        });
        (class.candidates.get(class.current).map_or(predicted, |current| current.transfer), class.times())
    }

    /// Records a completed batch whose transfer was chosen here: the time since the batch before
    /// it completed, or since it was submitted if that was later.
    pub fn record(&mut self, packets: usize, transfer: Transfer, time: Duration) {
        if let Some(class) = self.classes.get_mut(&packets.max(1).ilog2()) {
            class.record(transfer, time.as_nanos() as f64 / packets.max(1) as f64, self.depth);
        }
    }
}

impl SizeClass {
    fn new(transfers: Vec<Transfer>) -> SizeClass {
        let candidates: Vec<_> = transfers.into_iter().map(|transfer| Candidate { transfer, measured: None }).collect();
        let is_trial = candidates.len() > 1;
        let retry_after = RETRY_BATCHES;
        SizeClass { candidates, current: 0, completed: 0, is_trial, sum: 0.0, counted: 0, retry_after }
    }

    fn record(&mut self, transfer: Transfer, ns: f64, depth: usize) {
        // A batch that was submitted before the current candidate was chosen.
        if self.candidates.get(self.current).is_none_or(|current| current.transfer != transfer) {
            return;
        }
        self.completed += 1;
        if !self.is_trial {
            if self.completed >= self.retry_after {
                self.restart();
            }
            return;
        }
        // Those of earlier batches overlap the first ones.
        if self.completed <= depth {
            return;
        }
        (self.sum, self.counted) = (self.sum + ns, self.counted + 1);
        let best = self.best();
        let is_lost = self.counted == 1 && best.is_finite() && ns > 2.0 * DISCARD_RATIO * best;
        if is_lost || self.counted == TRIAL_BATCHES {
            self.candidates[self.current].measured = Some(self.sum / f64::from(self.counted));
            match self.candidates.iter().position(|candidate| candidate.measured.is_none()) {
                Some(untried) => self.switch_to(untried, true),
                None => self.switch_to(self.fastest(), false),
            }
        }
    }

    fn best(&self) -> f64 {
        self.candidates.iter().filter_map(|candidate| candidate.measured).fold(f64::INFINITY, f64::min)
    }

    fn fastest(&self) -> usize {
        let time = |index: &usize| self.candidates[*index].measured.unwrap_or(f64::INFINITY);
        (0..self.candidates.len()).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(0)
    }

    fn switch_to(&mut self, candidate: usize, is_trial: bool) {
        (self.current, self.is_trial, self.completed) = (candidate, is_trial, 0);
        (self.sum, self.counted) = (0.0, 0);
    }

    /// Measures those that are not far behind again, beginning with the one in use.
    fn restart(&mut self) {
        let limit = DISCARD_RATIO * self.best();
        self.candidates.retain(|candidate| candidate.measured.is_some_and(|ns| ns <= limit));
        self.candidates.sort_by(|a, b| a.measured.unwrap_or(0.0).total_cmp(&b.measured.unwrap_or(0.0)));
        let is_trial = self.candidates.len() > 1;
        if is_trial {
            self.candidates.iter_mut().for_each(|candidate| candidate.measured = None);
        }
        self.retry_after = self.retry_after.saturating_mul(2);
        self.switch_to(0, is_trial);
    }

    /// The times, once every candidate was tried.
    fn times(&self) -> Option<MeasuredTimes> {
        let mut times = MeasuredTimes::default();
        for Candidate { transfer, measured } in &self.candidates {
            let measured = Some((*measured)?);
            match transfer {
                Transfer::Whole => times.whole_ns = measured,
                Transfer::Window => times.window_ns = measured,
                Transfer::Imported => times.imported_ns = measured,
                Transfer::Auto => {}
            }
        }
        Some(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Transfer; 3] = [Transfer::Whole, Transfer::Window, Transfer::Imported];

    /// Runs `batches` batches, `depth` of them in flight, whose transfers take these nanoseconds
    /// per packet, and returns the transfers in order. The host is busy for as long as `stall`
    /// batches after every seventh, in which the device goes on.
    fn run(
        tuner: &mut TransferTuner,
        batches: usize,
        packets: usize,
        stall: u64,
        ns: impl Fn(Transfer) -> u64,
    ) -> Vec<Transfer> {
        let (mut chosen, mut in_flight) = (Vec::new(), std::collections::VecDeque::new());
        let (mut now, mut device_free, mut last) = (0, 0, 0);
        for number in 0..batches {
            let (transfer, _) = tuner.choose(packets, Transfer::Window, || ALL.to_vec());
            chosen.push(transfer);
            let time = ns(transfer) * packets as u64;
            device_free = now.max(device_free) + time;
            in_flight.push_back((transfer, now, device_free));
            if number % 7 == 6 {
                now += stall * time;
            }
            if in_flight.len() == tuner.depth {
                let (done, submitted, completed) = in_flight.pop_front().unwrap();
                now = now.max(completed);
                tuner.record(packets, done, Duration::from_nanos(now - last.max(submitted)));
                last = now;
            }
        }
        chosen
    }

    #[test]
    fn each_transfer_is_tried_and_the_fastest_kept() {
        for (depth, stall) in [(1, 0), (3, 0), (3, 1), (4, 2)] {
            let mut tuner = TransferTuner::new(depth);
            let ns = |transfer| match transfer {
                Transfer::Whole => 10,
                Transfer::Imported => 25,
                _ => 40,
            };
            let chosen = run(&mut tuner, 200, 1 << 16, stall, ns);
            assert_eq!(chosen[0], Transfer::Window, "the prediction comes first");
            assert!(ALL.iter().all(|transfer| chosen.contains(transfer)));
            assert!(chosen[60..].iter().all(|transfer| *transfer == Transfer::Whole), "{depth} {stall} {chosen:?}");
            let times = tuner.choose(1 << 16, Transfer::Window, || unreachable!()).1.unwrap();
            assert!(times.whole_ns < times.imported_ns && times.imported_ns < times.window_ns, "{times:?}");
            // Batches of another size are measured anew, and small ones never.
            assert_eq!(run(&mut tuner, 1, 1 << 18, 0, ns), [Transfer::Window]);
            assert!(run(&mut tuner, 50, 100, 0, ns).iter().all(|transfer| *transfer == Transfer::Window));
        }
    }

    #[test]
    fn a_transfer_that_lost_by_far_is_left_for_good_and_a_close_one_found_again() {
        let mut tuner = TransferTuner::new(1);
        let ns = |transfer| match transfer {
            Transfer::Window => 10,
            Transfer::Imported => 15,
            _ => 100,
        };
        let first = run(&mut tuner, 2 * RETRY_BATCHES, 1 << 16, 0, ns);
        let whole = first.iter().filter(|transfer| **transfer == Transfer::Whole).count();
        assert_eq!(whole, 2, "one that does not count, and one that does");
        // From now on reading in place is faster, and so would be the discarded one.
        let ns = |transfer| if transfer == Transfer::Window { 10 } else { 5 };
        let later = run(&mut tuner, 4 * RETRY_BATCHES, 1 << 16, 0, ns);
        assert_eq!(later.last(), Some(&Transfer::Imported));
        assert!(!later.contains(&Transfer::Whole));
    }

    #[test]
    fn a_batch_with_one_transfer_needs_no_trial() {
        let mut tuner = TransferTuner::new(1);
        for _ in 0..3 * RETRY_BATCHES {
            let (transfer, _) = tuner.choose(1 << 16, Transfer::Window, || vec![Transfer::Window]);
            assert_eq!(transfer, Transfer::Window);
            tuner.record(1 << 16, transfer, Duration::from_millis(1));
        }
        // Nor does one without any.
        let (transfer, _) = tuner.choose(1 << 20, Transfer::Whole, Vec::new);
        tuner.record(1 << 20, transfer, Duration::ZERO);
        assert_eq!(transfer, Transfer::Whole);
    }
}
