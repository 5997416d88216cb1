//! What came through a pipeline.

use std::collections::HashMap;
use std::time::Duration;

use portcullis_core::device::{Completion, StageTimes};
use portcullis_core::packet::{Action, VerdictCounts};
use portcullis_io::RedirectGroups;

use super::outputs::redirect_targets;

/// Redirect targets that are counted one by one; packets to further ones are counted together.
pub const MAX_TARGETS: usize = 65_536;

/// Counts of everything that came through, and where the time went.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Packets.
    pub packets: u64,
    /// Their captured bytes, as they arrived.
    pub bytes: u64,
    /// Packets with each verdict.
    pub verdicts: VerdictCounts,
    /// Where the redirected packets went.
    pub targets: TargetCounts,
    /// Time that each stage was busy.
    pub times: Times,
    /// Time from the start to the last write. A capture has read its first block before.
    pub elapsed: Duration,
}

/// Time that each stage was busy. Stages work at the same time: the sum may exceed the time elapsed.
/// See [`Totals::unattributed`] where it does not reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Reading and cutting batches.
    pub read: Duration,
    /// What the device tells of itself.
    pub device: StageTimes,
    /// Carrying out verdicts: writing captures.
    pub write: Duration,
}

impl Totals {
    /// Counts a batch.
    pub fn add(&mut self, done: &Completion) {
        self.add_with_broadcasts(done, None);
    }

    /// Counts a batch, where some targets stand for several: a packet counts once as redirected, and once for each target.
    pub fn add_with_broadcasts(&mut self, done: &Completion, redirect_groups: Option<&RedirectGroups>) {
        let Completion { batch, verdicts, times } = done;
        self.packets += batch.len() as u64;
        self.bytes += batch.original().iter().map(|d| u64::from(d.length)).sum::<u64>();
        let counts = verdicts.counts();
        for (sum, count) in self.verdicts.iter_mut().zip(counts) {
            *sum += count;
        }
        if counts[Action::Redirect as usize] > 0 {
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

    /// The time elapsed that no stage took: starting threads, waiting for each other, counting. Zero
    /// where stages that worked at the same time took more in all.
    pub fn unattributed(&self) -> Duration {
        let Times { read, device: StageTimes { upload, kernel, download }, write } = self.times;
        self.elapsed.saturating_sub(read + upload + kernel + download + write)
    }

    /// Millions of packets a second, over the time elapsed.
    pub fn mpps(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.packets as f64 / seconds / 1e6 } else { 0.0 }
    }
}

/// Packets by redirect target, in bounded memory.
#[derive(Debug, Clone, Default)]
pub struct TargetCounts {
    /// The first few targets by number: no hashing for the usual filter.
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

    /// Each target that was counted, by number, with its packets.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut high: Vec<_> = self.high.iter().map(|(&target, &count)| (target, count)).collect();
        high.sort_unstable();
        let low = self.low.iter().enumerate().filter(|&(_, &count)| count > 0);
        low.map(|(target, &count)| (target as u32, count)).chain(high)
    }

    /// Packets to targets beyond the first [`MAX_TARGETS`].
    pub fn other(&self) -> u64 {
        self.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_stage_took_is_other_time() {
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
