//! Which piece of code for the same filter is the fastest, for the traffic of the moment.
//!
//! Nobody can know it before: the conditions that a filter asks of its packets may come out alike
//! for all of them, or differently for each. So the pieces of code take turns at the packets that
//! have to be filtered anyway, and the fastest gets all the others.
//!
//! A trial has the code on trial and the one that is in use by turns, each a sample of packets at a time, so that both
//! see the same traffic, in pieces of the same size, and whatever else the machine does. The best of its samples
//! counts for each: what else was done made the others longer. What a trial has cost decides when there is the next:
//! code that is far slower gets another late, so that all trials together cost [`SHARE`] of the time.

use std::time::Duration;

/// Packets of a sample.
const SAMPLE: usize = 512;

/// Samples of each side.
const SAMPLES: u32 = 3;

/// Samples after which a trial ends of code that is slower by so much.
const FEW_SAMPLES: u32 = 2;
const FAR: f64 = 1.5;

/// How much faster the code on trial has to be, in nanoseconds a packet, to be preferred.
const CLEARLY: f64 = 0.97;

/// Trials in a row that code has to win: what else the machine does may hit all samples of one side, once.
const WINS: u32 = 2;

/// What is faster by more was not only measured better: the traffic is another, and all others may be the fastest.
const CHANGED: f64 = 0.8;

/// What trials may cost: the share of all time, for all code together.
const SHARE: f64 = 0.005;

/// What cutting packets into a sample's pieces costs, in nanoseconds.
const CUT: f64 = 100.0;

/// Packets between two trials of a piece of code, at least and at most: so that a change of the traffic is found at last.
const SOON: u64 = 1 << 15;
const LATE: u64 = 1 << 23;

/// The most packets before the code that was in use gets another trial: the one that is now has proved itself once only.
const REMATCH: u64 = 1 << 17;

/// Packets that are to be filtered next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// By this code.
    pub code: usize,
    /// So many, at most.
    pub most: usize,
    /// Whether they are a sample's.
    sampled: bool,
}

impl Turn {
    /// Any number, by code of which no sample is taken.
    pub fn of(code: usize) -> Turn {
        Turn { code, most: usize::MAX, sampled: false }
    }
}

/// Times of pieces of code, and what follows from them.
#[derive(Debug)]
pub(crate) struct Choice {
    current: usize,
    /// For each piece of code after how many packets in all it has its next trial. The current one has none.
    due: Vec<u64>,
    /// The least of those.
    next_due: u64,
    /// Packets filtered.
    packets: u64,
    trial: Option<Trial>,
}

#[derive(Debug)]
struct Trial {
    candidate: usize,
    /// Trials that it has won just before this one.
    wins: u32,
    /// Complete samples of both sides together: the code in use begins.
    samples: u32,
    /// Nanoseconds a packet of the best sample, of the code in use and of the one on trial.
    best: [f64; 2],
    /// Of the sample under way: packets given away, and of those the ones that are back, with the time that they took.
    given: usize,
    back: usize,
    nanos: f64,
}

impl Trial {
    fn of(candidate: usize, wins: u32) -> Trial {
        Trial { candidate, wins, samples: 0, best: [f64::INFINITY; 2], given: 0, back: 0, nanos: 0.0 }
    }

    /// Whose sample is under way: 0 is the code in use.
    fn side(&self) -> usize {
        self.samples as usize % 2
    }
}

impl Choice {
    /// Between so many pieces of code, the first of which is preferred until something is known.
    pub fn new(candidates: usize) -> Choice {
        Choice { current: 0, due: vec![0; candidates], next_due: 0, packets: 0, trial: None }
    }

    /// There are so many pieces of code by now: no fewer than before.
    pub fn grow(&mut self, candidates: usize) {
        if candidates > self.due.len() {
            self.due.resize(candidates, self.packets);
            self.set_next_due();
        }
    }

    /// The code for the next packets. [`Choice::took`] is to be told what came of it, in any case.
    pub fn next(&mut self) -> Turn {
        let in_use = Turn::of(self.current);
        if self.due.len() < 2 {
            return in_use;
        }
        if self.trial.is_none() && self.packets >= self.next_due {
            let others = (0..self.due.len()).filter(|code| *code != self.current);
            self.trial = others.min_by_key(|code| self.due[*code]).map(|code| Trial::of(code, 0));
        }
        let Some(trial) = &mut self.trial else { return in_use };
        let most = SAMPLE - trial.given;
        if most == 0 {
            // Another thread has the rest of the sample.
            return in_use;
        }
        trial.given = SAMPLE;
        Turn { code: if trial.side() == 0 { self.current } else { trial.candidate }, most, sampled: true }
    }

    /// Takes note of how long a turn took, and for how many packets; there may have been none.
    pub fn took(&mut self, turn: Turn, packets: usize, time: Duration) {
        self.packets += packets as u64;
        if !turn.sampled {
            return;
        }
        let Some(trial) = &mut self.trial else { return };
        trial.given -= turn.most.saturating_sub(packets);
        trial.back += packets;
        trial.nanos += time.as_secs_f64() * 1e9;
        if trial.back < SAMPLE {
            return;
        }
        let side = trial.side();
        // Clocks may stand still for so short a time.
        let cost = (trial.nanos / trial.back as f64).max(1e-3);
        trial.best[side] = trial.best[side].min(cost);
        (trial.given, trial.back, trial.nanos) = (0, 0, 0.0);
        trial.samples += 1;
        let is_far = trial.samples >= 2 * FEW_SAMPLES && trial.best[1] > trial.best[0] * FAR;
        if side == 1 && (is_far || trial.samples >= 2 * SAMPLES) {
            self.judge();
        }
    }

    fn judge(&mut self) {
        let Some(Trial { candidate, wins, samples, best: [cost, other], .. }) = self.trial.take() else { return };
        let has_won = other < cost * CLEARLY;
        if has_won && wins + 1 < WINS {
            self.trial = Some(Trial::of(candidate, wins + 1));
            return;
        }
        // Were there another trial as this one: what it would cost, and over how many packets that is the share.
        let interval = |cost: f64, other: f64| {
            let lost = f64::from(samples / 2) * SAMPLE as f64 * (other - cost).max(0.0) + f64::from(samples) * CUT;
            let share = SHARE / (self.due.len() - 1) as f64;
            ((lost / (share * cost)) as u64).clamp(SOON, LATE)
        };
        if has_won {
            self.due[self.current] = self.packets + interval(other, cost).min(REMATCH);
            if other < cost * CHANGED {
                let now = self.packets;
                let rest = self.due.iter_mut().enumerate().filter(|(code, _)| *code != self.current);
                rest.for_each(|(_, due)| *due = now.min(*due));
            }
            self.current = candidate;
        } else {
            self.due[candidate] = self.packets + interval(cost, other);
        }
        self.set_next_due();
    }

    fn set_next_due(&mut self) {
        let others = self.due.iter().enumerate().filter(|(code, _)| *code != self.current);
        self.next_due = others.map(|(_, due)| *due).min().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests;
