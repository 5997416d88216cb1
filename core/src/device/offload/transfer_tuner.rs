//! Chooses between transfers by what the session has measured.
//!
//! The planner predicts costs from measurements of the machine, and is wrong where those differ
//! from what a session meets: another thread's load, a slower bus, a cache. So a session tries each
//! possible transfer on a few of its own batches, the predicted one first, and then keeps to the
//! fastest. It does so for each power of two of packets, and tries the others again from time to
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Transfer;
use crate::device::transfer_planner::MeasuredTimes;

/// Packets of the smallest batch that is measured: smaller ones take hardly longer either way.
const MIN_PACKETS: usize = 4096;

/// Batches of a trial that count. Their minimum decides: other load only adds time.
const TRIAL_BATCHES: usize = 3;

/// A trial ends at once if a batch takes this many times the best so far.
const HOPELESS_RATIO: f64 = 4.0;

/// Batches after which a transfer that was not chosen is tried again.
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
    /// Nanoseconds per packet of the fastest batch of the trial so far.
    fastest: f64,
    next_retry: usize,
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
    /// and `possible` returns all transfers that the batch can take.
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
        (class.candidates[class.current].transfer, class.times())
    }

    /// Records a completed batch: the time in which the session did nothing else.
    pub fn record(&mut self, packets: usize, transfer: Option<Transfer>, time: Duration) {
        if packets < MIN_PACKETS {
            return;
        }
        if let (Some(class), Some(transfer)) = (self.classes.get_mut(&packets.ilog2()), transfer) {
            class.record(transfer, time.as_nanos() as f64 / packets as f64, self.depth);
        }
    }
}

impl SizeClass {
    fn new(transfers: Vec<Transfer>) -> SizeClass {
        let candidates: Vec<_> = transfers.into_iter().map(|transfer| Candidate { transfer, measured: None }).collect();
        let is_trial = candidates.len() > 1;
        SizeClass { candidates, current: 0, completed: 0, is_trial, fastest: f64::INFINITY, next_retry: 0 }
    }

    fn record(&mut self, transfer: Transfer, ns: f64, depth: usize) {
        // A batch that was submitted before the current candidate was chosen.
        if transfer != self.candidates[self.current].transfer {
            return;
        }
        self.completed += 1;
        if !self.is_trial {
            if self.completed >= RETRY_BATCHES && self.candidates.len() > 1 {
                let others = (0..self.candidates.len()).filter(|&index| index != self.current);
                let retried = others.cycle().nth(self.next_retry).expect("there is another");
                self.next_retry = (self.next_retry + 1) % (self.candidates.len() - 1);
                self.switch_to(retried, true);
            }
            return;
        }
        // Those of earlier batches overlap the first ones.
        if self.completed > depth {
            self.fastest = self.fastest.min(ns);
        }
        let best = self.candidates.iter().filter_map(|candidate| candidate.measured).fold(f64::INFINITY, f64::min);
        let is_hopeless = self.fastest.is_finite() && self.fastest > HOPELESS_RATIO * best;
        if is_hopeless || self.completed >= depth + TRIAL_BATCHES {
            self.candidates[self.current].measured = Some(self.fastest);
            match self.candidates.iter().position(|candidate| candidate.measured.is_none()) {
                Some(untried) => self.switch_to(untried, true),
                None => self.switch_to(self.fastest_candidate(), false),
            }
        }
    }

    fn fastest_candidate(&self) -> usize {
        let time = |index: &usize| self.candidates[*index].measured.unwrap_or(f64::INFINITY);
        (0..self.candidates.len()).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(0)
    }

    fn switch_to(&mut self, candidate: usize, is_trial: bool) {
        (self.current, self.is_trial, self.completed, self.fastest) = (candidate, is_trial, 0, f64::INFINITY);
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
    /// per packet, and returns the transfers in order.
    fn run(tuner: &mut TransferTuner, batches: usize, packets: usize, ns: impl Fn(Transfer) -> u64) -> Vec<Transfer> {
        let (mut chosen, mut in_flight) = (Vec::new(), std::collections::VecDeque::new());
        for _ in 0..batches {
            let (transfer, _) = tuner.choose(packets, Transfer::Window, || ALL.to_vec());
            chosen.push(transfer);
            in_flight.push_back(transfer);
            if in_flight.len() == tuner.depth {
                let done = in_flight.pop_front().unwrap();
                tuner.record(packets, Some(done), Duration::from_nanos(ns(done) * packets as u64));
            }
        }
        chosen
    }

    #[test]
    fn each_transfer_is_tried_and_the_fastest_kept() {
        for depth in [1, 3] {
            let mut tuner = TransferTuner::new(depth);
            let ns = |transfer| match transfer {
                Transfer::Whole => 10,
                Transfer::Imported => 15,
                _ => 20,
            };
            let chosen = run(&mut tuner, 100, 1 << 16, ns);
            assert_eq!(chosen[0], Transfer::Window, "the prediction comes first");
            assert!(ALL.iter().all(|transfer| chosen.contains(transfer)));
            assert!(chosen[40..].iter().all(|transfer| *transfer == Transfer::Whole), "{chosen:?}");
            let times = tuner.choose(1 << 16, Transfer::Window, || unreachable!()).1;
            let expected = MeasuredTimes { whole_ns: Some(10.0), window_ns: Some(20.0), imported_ns: Some(15.0) };
            assert_eq!(times, Some(expected));
            // Batches of another size are measured anew, and small ones never.
            assert_eq!(run(&mut tuner, 1, 1 << 18, ns), [Transfer::Window]);
            assert!(run(&mut tuner, 50, 100, ns).iter().all(|transfer| *transfer == Transfer::Window));
        }
    }

    #[test]
    fn a_hopeless_transfer_is_left_after_one_batch_and_a_changed_one_found_again() {
        let mut tuner = TransferTuner::new(1);
        let first = run(&mut tuner, 50, 1 << 16, |transfer| if transfer == Transfer::Window { 10 } else { 100 });
        let tried = first.iter().filter(|transfer| **transfer != Transfer::Window).count();
        assert_eq!(tried, 2 * 2, "one that does not count, and one that does");
        // From now on reading in place is faster.
        let later =
            run(&mut tuner, 4 * RETRY_BATCHES, 1 << 16, |transfer| if transfer == Transfer::Imported { 5 } else { 10 });
        assert_eq!(later.last(), Some(&Transfer::Imported));
    }
}
