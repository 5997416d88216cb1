//! Packet counts and times of a pipeline run.

use std::collections::HashMap;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, VerdictCounts};
use portcullis_io::RedirectGroups;

use super::outputs::redirect_targets;

/// Number of redirect targets counted one by one; packets to further targets are counted together.
pub const MAX_TARGETS: usize = 65_536;

/// Counts of all packets of a run, and the time that each stage took.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Number of packets.
    pub packets: u64,
    /// Captured bytes, before the filter changed any lengths.
    pub bytes: u64,
    /// Number of packets by verdict.
    pub verdicts: VerdictCounts,
    /// Number of redirected packets by target.
    pub targets: TargetCounts,
    /// Time that each stage was busy.
    pub times: Times,
    /// Time from the start to the last write. A capture reads its first block before the start.
    pub elapsed: Duration,
}

/// Busy time of each stage. Stages run at the same time, so the sum may exceed the time elapsed;
/// see [`Totals::unattributed`] for what it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Reading and cutting batches.
    pub read: Duration,
    /// The device's own account of its stages.
    pub device: StageTimes,
    /// Writing captures.
    pub write: Duration,
}

impl Totals {
    /// Adds a completed batch.
    pub fn add(&mut self, done: &Completion) {
        self.add_with_broadcasts(done, None);
    }

    /// Adds a completed batch. A packet for a redirect group counts once as redirected, and once
    /// for each port of the group.
    pub fn add_with_broadcasts(&mut self, done: &Completion, redirect_groups: Option<&RedirectGroups>) {
        let Completion { batch, verdicts, times } = done;
        self.packets += batch.len() as u64;
        self.bytes += batch.original().iter().map(|d| u64::from(d.length)).sum::<u64>();
        let counts = verdicts.counts();
        self.verdicts += counts;
        if counts.redirect > 0 {
            for (index, (&action, &target)) in verdicts.actions().iter().zip(verdicts.targets()).enumerate() {
                match redirect_groups {
                    _ if action != Action::Redirect as u8 => {}
                    None => self.targets.add(target),
                    Some(redirect_groups) => {
                        redirect_targets(done, redirect_groups, index).for_each(|target| self.targets.add(target))
                    }
                }
            }
        }
        self.times.device += *times;
    }

    /// Elapsed time that belongs to no stage: starting threads, waiting, counting. Zero if
    /// overlapping stages took more than the time elapsed.
    pub fn unattributed(&self) -> Duration {
        let Times { read, device: StageTimes { upload, kernel, download }, write } = self.times;
        self.elapsed.saturating_sub(read + upload + kernel + download + write)
    }

    /// Millions of packets per second of elapsed time.
    pub fn mpps(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.packets as f64 / seconds / 1e6 } else { 0.0 }
    }
}

/// Number of packets by redirect target, in bounded memory.
#[derive(Debug, Clone, Default)]
pub struct TargetCounts {
    /// Counts of targets below `LOW`, indexed by target: most filters need no hashing.
    low: Vec<u64>,
    high: HashMap<u32, u64>,
    other: u64,
}

impl TargetCounts {
    const LOW: usize = 4096;

    fn add(&mut self, target: u32) {
        let index = target as usize;
        if index < Self::LOW {
            if index >= self.low.len() {
                self.low.resize((index + 1).next_power_of_two(), 0);
            }
            self.low[index] += 1;
        } else if self.high.len() < MAX_TARGETS - Self::LOW {
            *self.high.entry(target).or_default() += 1;
        } else if let Some(count) = self.high.get_mut(&target) {
            *count += 1;
        } else {
            self.other += 1;
        }
    }

    /// Returns each target counted by itself with its packets, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut high: Vec<_> = self.high.iter().map(|(&target, &count)| (target, count)).collect();
        high.sort_unstable();
        let low = self.low.iter().enumerate().filter(|&(_, &count)| count > 0);
        low.map(|(target, &count)| (target as u32, count)).chain(high)
    }

    /// Number of packets to targets beyond the first [`MAX_TARGETS`].
    pub fn other(&self) -> u64 {
        self.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unattributed_time_is_what_no_stage_took() {
        let [read, kernel, write] = [1, 2, 4].map(Duration::from_millis);
        let device = StageTimes { kernel, ..StageTimes::default() };
        let mut totals = Totals { times: Times { read, device, write }, ..Totals::default() };
        assert_eq!(totals.unattributed(), Duration::ZERO);
        totals.elapsed = Duration::from_millis(10);
        assert_eq!(totals.unattributed(), Duration::from_millis(3));
    }

    #[test]
    fn targets_are_counted_in_bounded_memory() {
        let mut counts = TargetCounts::default();
        for target in (0..200_000u32).rev() {
            counts.add(target);
            counts.add(7);
        }
        let listed: Vec<_> = counts.iter().collect();
        assert!(listed.is_sorted());
        assert_eq!(listed.len(), MAX_TARGETS);
        assert_eq!(listed[7], (7, 200_001));
        assert_eq!(listed.iter().map(|l| l.1).sum::<u64>() + counts.other(), 400_000);
    }
}
