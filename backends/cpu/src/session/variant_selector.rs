//! Online selection of the fastest code variant for the current traffic.
//!
//! Which variant is fastest cannot be known in advance: a filter's conditions may come out alike
//! for all packets or differently for each. So variants are timed on packets that have to be
//! filtered anyway, and the fastest one gets the rest: exploration and exploitation as in a
//! multi-armed bandit, with a bound on the cost of exploring.
//!
//! A trial alternates samples of the variant in use and of a candidate, so that both see the same
//! traffic in chunks of the same size and suffer the same interference. The best sample counts for
//! each side, as interference only ever makes samples slower. What a trial cost decides when the
//! candidate has its next one: the slower it is, the longer it waits, so that all trials together
//! take at most [`TRIAL_TIME_SHARE`] of the time.

use std::time::Duration;

/// Packets of a sample.
pub(super) const SAMPLE_PACKETS: usize = 512;

/// Samples per side of a trial.
const SAMPLES_PER_SIDE: u32 = 3;

/// Samples per side after which a trial may end early, if the candidate is slower by the factor
/// [`EARLY_STOP_RATIO`].
const EARLY_STOP_SAMPLES: u32 = 2;
const EARLY_STOP_RATIO: f64 = 1.5;

/// Time per packet of a winning candidate, relative to the variant in use.
const WIN_RATIO: f64 = 0.97;

/// Consecutive trials that a candidate has to win: interference may hit all samples of one side of
/// a single trial.
const REQUIRED_WINS: u32 = 2;

/// Relative time per packet below which a win means that the traffic has changed, in which case
/// every other variant may be the fastest now and has a trial at once.
const TRAFFIC_CHANGE_RATIO: f64 = 0.8;

/// Upper bound on the share of all time that trials cost, for all variants together.
const TRIAL_TIME_SHARE: f64 = 0.005;

/// Cost of cutting packets into chunks of a sample's size, in nanoseconds per sample.
const SPLIT_NANOS: f64 = 100.0;

/// Bounds on the number of packets between two trials of a variant. The upper bound ensures that a
/// change of the traffic is eventually found.
const MIN_TRIAL_INTERVAL: u64 = 1 << 15;
const MAX_TRIAL_INTERVAL: u64 = 1 << 23;

/// Upper bound on the number of packets before a variant that was just replaced has a trial: its
/// successor has won only once.
const MAX_REMATCH_INTERVAL: u64 = 1 << 17;

/// Packets that a thread is to filter next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// The variant to filter them with.
    pub variant: usize,
    /// Maximum number of packets.
    pub max_packets: usize,
    /// Whether they are part of a sample.
    is_sample: bool,
}

impl Assignment {
    /// Any number of packets, without taking a sample.
    pub fn unsampled(variant: usize) -> Assignment {
        Assignment { variant, max_packets: usize::MAX, is_sample: false }
    }
}

/// Chooses a variant for each assignment from the times of earlier ones.
#[derive(Debug)]
pub(crate) struct VariantSelector {
    current: usize,
    /// For each variant, the total packet count at which it has its next trial. The entry of the
    /// current variant is not used.
    trial_due: Vec<u64>,
    /// The least of these, the current variant's excepted.
    next_due: u64,
    /// Packets filtered so far.
    packets: u64,
    trial: Option<Trial>,
}

#[derive(Debug)]
struct Trial {
    candidate: usize,
    /// Consecutive trials that the candidate has won before this one.
    wins: u32,
    /// Complete samples of both sides; the variant in use has the first one.
    samples: u32,
    /// Nanoseconds per packet of the best sample, of the variant in use and of the candidate.
    best: [f64; 2],
    /// Packets of the current sample that have been assigned.
    assigned: usize,
    /// Packets of the current sample that have been reported, and the time that they took.
    reported: usize,
    nanos: f64,
}

impl Trial {
    fn new(candidate: usize, wins: u32) -> Trial {
        Trial { candidate, wins, samples: 0, best: [f64::INFINITY; 2], assigned: 0, reported: 0, nanos: 0.0 }
    }

    /// The side that the current sample is of: 0 for the variant in use, 1 for the candidate.
    fn side(&self) -> usize {
        self.samples as usize % 2
    }
}

impl VariantSelector {
    /// Starts with the first of `variants` variants in use and all others due for a trial.
    pub fn new(variants: usize) -> VariantSelector {
        VariantSelector { current: 0, trial_due: vec![0; variants], next_due: 0, packets: 0, trial: None }
    }

    /// Puts the first trials off until `packets` packets are filtered.
    pub fn with_first_trial_after(mut self, packets: u64) -> VariantSelector {
        self.trial_due.fill(packets);
        self.next_due = packets;
        self
    }

    /// Raises the number of variants to `variants`; the new ones are due for a trial at once. A
    /// smaller number changes nothing.
    pub fn add_variants(&mut self, variants: usize) {
        if variants > self.trial_due.len() {
            self.trial_due.resize(variants, self.packets);
            self.update_next_due();
        }
    }

    /// The variant in use.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Returns the next assignment. The caller must report it to
    /// [`record`](VariantSelector::record), even if no packets were left.
    pub fn next_assignment(&mut self) -> Assignment {
        let in_use = Assignment::unsampled(self.current);
        if self.trial_due.len() < 2 {
            return in_use;
        }
        if self.trial.is_none() && self.packets >= self.next_due {
            let others = (0..self.trial_due.len()).filter(|variant| *variant != self.current);
            self.trial = others.min_by_key(|variant| self.trial_due[*variant]).map(|variant| Trial::new(variant, 0));
        }
        let Some(trial) = &mut self.trial else { return in_use };
        let max_packets = SAMPLE_PACKETS - trial.assigned;
        if max_packets == 0 {
            // Other threads have the rest of the sample.
            return in_use;
        }
        trial.assigned = SAMPLE_PACKETS;
        let variant = if trial.side() == 0 { self.current } else { trial.candidate };
        Assignment { variant, max_packets, is_sample: true }
    }

    /// Records how long an assignment took and how many packets it filtered, possibly none.
    pub fn record(&mut self, assignment: Assignment, packets: usize, time: Duration) {
        self.packets += packets as u64;
        if !assignment.is_sample {
            return;
        }
        let Some(trial) = &mut self.trial else { return };
        trial.assigned -= assignment.max_packets.saturating_sub(packets);
        trial.reported += packets;
        trial.nanos += time.as_secs_f64() * 1e9;
        if trial.reported < SAMPLE_PACKETS {
            return;
        }
        let side = trial.side();
        // A coarse clock may show no time at all for a sample.
        let cost = (trial.nanos / trial.reported as f64).max(1e-3);
        trial.best[side] = trial.best[side].min(cost);
        (trial.assigned, trial.reported, trial.nanos) = (0, 0, 0.0);
        trial.samples += 1;
        let is_far_slower = trial.samples >= 2 * EARLY_STOP_SAMPLES && trial.best[1] > trial.best[0] * EARLY_STOP_RATIO;
        if side == 1 && (is_far_slower || trial.samples >= 2 * SAMPLES_PER_SIDE) {
            self.finish_trial();
        }
    }

    /// Decides the current trial, and when the loser has its next one.
    fn finish_trial(&mut self) {
        let Some(Trial { candidate, wins, samples, best: [cost, other], .. }) = self.trial.take() else { return };
        let has_won = other < cost * WIN_RATIO;
        if has_won && wins + 1 < REQUIRED_WINS {
            self.trial = Some(Trial::new(candidate, wins + 1));
            return;
        }
        // Packets over which the cost of another trial like this one is the allowed share of time.
        let interval = |cost: f64, other: f64| {
            let lost = f64::from(samples / 2) * SAMPLE_PACKETS as f64 * (other - cost).max(0.0)
                + f64::from(samples) * SPLIT_NANOS;
            let share = TRIAL_TIME_SHARE / (self.trial_due.len() - 1) as f64;
            ((lost / (share * cost)) as u64).clamp(MIN_TRIAL_INTERVAL, MAX_TRIAL_INTERVAL)
        };
        if has_won {
            self.trial_due[self.current] = self.packets + interval(other, cost).min(MAX_REMATCH_INTERVAL);
            if other < cost * TRAFFIC_CHANGE_RATIO {
                let now = self.packets;
                let rest = self.trial_due.iter_mut().enumerate().filter(|(variant, _)| *variant != self.current);
                rest.for_each(|(_, due)| *due = now.min(*due));
            }
            self.current = candidate;
        } else {
            self.trial_due[candidate] = self.packets + interval(cost, other);
        }
        self.update_next_due();
    }

    fn update_next_due(&mut self) {
        let others = self.trial_due.iter().enumerate().filter(|(variant, _)| *variant != self.current);
        self.next_due = others.map(|(_, due)| *due).min().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests;
