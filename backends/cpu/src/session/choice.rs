//! Which piece of code for the same filter is the fastest, for the traffic of the moment.
//!
//! Nobody can know it before: the conditions that a filter asks of its packets may come out alike
//! for all of them, or differently for each. So the pieces of code take turns at the packets that
//! have to be filtered anyway, and the fastest gets all the others.

use std::time::Duration;

/// Packets that a trial gives to the code on trial at a time.
const TRIAL_PACKETS: usize = 512;

/// How often it gets them. The best of its times counts: whatever else the machine did meanwhile
/// made the others longer.
const TRIAL_PIECES: u32 = 4;

/// Packets between two trials, at first and after a change of mind.
const SOON: u64 = 16_384;

/// Packets between two trials, when nothing changes; trials are then under 1 % of the work.
const LATE: u64 = 262_144;

/// How much faster the code on trial has to be, in nanoseconds a packet, to be preferred.
const CLEARLY: f64 = 0.97;

/// Times of pieces of code, and what follows from them.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Nanoseconds a packet, the least since the code was last judged.
    costs: Vec<f64>,
    current: usize,
    stage: Stage,
    /// Packets from one trial to the next.
    interval: u64,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The current code runs for so many packets more.
    Settled { left: u64, next: usize },
    /// Other code runs for so many pieces more.
    Trial { candidate: usize, pieces: u32 },
}

impl Choice {
    /// Between so many pieces of code, the first of which is preferred until something is known.
    pub fn new(candidates: usize) -> Choice {
        let left = TRIAL_PACKETS as u64;
        Choice {
            costs: vec![f64::INFINITY; candidates],
            current: 0,
            stage: Stage::Settled { left, next: 1 },
            interval: SOON,
        }
    }

    /// The code for the next packets, and how many of them it should get at most.
    pub fn next(&mut self) -> (usize, usize) {
        if self.costs.len() < 2 {
            return (0, usize::MAX);
        }
        if let Stage::Settled { left: 0, next } = self.stage {
            // The current one follows itself: then it is the turn of the one behind it.
            let candidate = if next == self.current { (next + 1) % self.costs.len() } else { next };
            self.costs[candidate] = f64::INFINITY;
            self.stage = Stage::Trial { candidate, pieces: TRIAL_PIECES };
        }
        match self.stage {
            Stage::Settled { left, .. } => (self.current, usize::try_from(left).unwrap_or(usize::MAX)),
            Stage::Trial { candidate, .. } => (candidate, TRIAL_PACKETS),
        }
    }

    /// Takes note of how long a piece of code took for its packets.
    pub fn took(&mut self, code: usize, packets: usize, time: Duration) {
        if self.costs.len() < 2 || packets == 0 {
            return;
        }
        let cost = time.as_secs_f64() * 1e9 / packets as f64;
        self.costs[code] = self.costs[code].min(cost);
        match &mut self.stage {
            Stage::Settled { left, .. } => *left = left.saturating_sub(packets as u64),
            Stage::Trial { candidate, pieces } if *candidate == code => {
                *pieces -= 1;
                if *pieces == 0 {
                    self.judge(code);
                }
            }
            // From before the trial, on another thread.
            Stage::Trial { .. } => {}
        }
    }

    fn judge(&mut self, candidate: usize) {
        if self.costs[candidate] < self.costs[self.current] * CLEARLY {
            self.current = candidate;
            self.interval = SOON;
        } else {
            self.interval = (self.interval * 2).min(LATE);
        }
        // Traffic changes: what was once is not to be compared with what will be.
        self.costs[self.current] = f64::INFINITY;
        self.stage = Stage::Settled { left: self.interval, next: (candidate + 1) % self.costs.len() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `packets` packets through code that costs so much each; how many each code got.
    fn run(choice: &mut Choice, packets: usize, mut cost: impl FnMut(usize, usize) -> f64) -> Vec<usize> {
        let mut shares = vec![0; choice.costs.len()];
        let mut done = 0;
        while done < packets {
            let (code, most) = choice.next();
            let piece = most.min(16_384).min(packets - done);
            let nanos = cost(code, done) * piece as f64;
            choice.took(code, piece, Duration::from_nanos(nanos as u64));
            shares[code] += piece;
            done += piece;
        }
        shares
    }

    #[test]
    fn the_fastest_gets_nearly_everything() {
        for costs in [[3.0, 5.0, 9.0], [5.0, 9.0, 3.0], [9.0, 3.0, 5.0]] {
            let mut choice = Choice::new(3);
            let shares = run(&mut choice, 1 << 22, |code, _| costs[code]);
            let fastest = costs.iter().position(|&cost| cost == 3.0).unwrap();
            assert!(shares[fastest] > (1 << 22) / 100 * 97, "{costs:?}: {shares:?}");
            assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
        }
    }

    #[test]
    fn it_follows_the_traffic() {
        let mut choice = Choice::new(2);
        let before = run(&mut choice, 1 << 22, |code, _| [3.0, 9.0][code]);
        let after = run(&mut choice, 1 << 22, |code, _| [9.0, 3.0][code]);
        assert!(before[0] > before[1] * 30, "{before:?}");
        assert!(after[1] > after[0] * 10, "{after:?}");
    }

    #[test]
    fn an_interruption_does_not_mislead_it_for_long() {
        let mut choice = Choice::new(2);
        // Now and then the thread has to wait for its processor, whatever it runs.
        let mut pieces = 0;
        let shares = run(&mut choice, 1 << 23, |code, _| {
            pieces += 1;
            [3.0, 4.0][code] + if pieces % 7 == 0 { 300.0 } else { 0.0 }
        });
        assert!(shares[0] > shares[1] * 10, "{shares:?}");
    }

    #[test]
    fn one_piece_of_code_needs_no_trials() {
        let mut choice = Choice::new(1);
        assert_eq!(choice.next(), (0, usize::MAX));
        choice.took(0, 100, Duration::from_secs(1));
        assert_eq!(choice.next(), (0, usize::MAX));
    }

    #[test]
    fn one_packet_at_a_time_works_too() {
        let mut choice = Choice::new(2);
        let mut shares = [0; 2];
        for _ in 0..1 << 20 {
            let (code, most) = choice.next();
            assert!(most > 0);
            choice.took(code, 1, Duration::from_nanos([300, 100][code]));
            shares[code] += 1;
        }
        assert!(shares[1] > shares[0] * 10, "{shares:?}");
    }
}
