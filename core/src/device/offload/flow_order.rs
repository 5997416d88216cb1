//! Flow order: the packets of a chunk sorted stably by flow, for filters with flows.
//!
//! Each *run* of packets of one flow is filtered by one kernel invocation, one packet after
//! another. No launch has two runs of one flow, and launches are sequential. So a flow with more
//! packets than an invocation may filter per launch has several runs, in several launches.
//!
//! Only the packets' numbers are sorted. Kernels get the runs as descriptors behind those of the
//! packets, one per invocation, and the numbers behind the runs, so that descriptors, metadata,
//! verdicts and bytes keep the order of the batch, and nothing but the numbers is permuted.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::device::DeviceKind;
use crate::device::host_threads::HostThreads;
use crate::map::MapFunction;
use crate::map::declaration::MAX_VALUE_WORDS;
use crate::map::layout::MAX_PROBES;
use crate::packet::Descriptor;
use crate::program::prelude::Intrinsic;
use crate::program::{FLOW_BITS, Program};

/// Maximum number of expressions that an invocation may evaluate in a launch;
/// [`launch_budget`](super::super::launch_budget) counts those of all invocations together. A
/// single invocation is much slower than a GPU, and about as fast as a processor core.
const MAX_INVOCATION_EXPRESSIONS: u64 = 1 << 27;

/// Maximum number of loop iterations per invocation on a software GPU: llvmpipe silently leaves all
/// loops after 65,535.
const MAX_SOFTWARE_ITERATIONS: u64 = 65_000;

/// Upper bound on the loop iterations of a map lookup, with the work on the entry found.
const MAX_LOOKUP_ITERATIONS: u64 = MAX_PROBES as u64 + MAX_VALUE_WORDS as u64 + 8;

/// Maximum number of packets in a run, so that an invocation's work stays within bounds. `size` is
/// the kernel's number of expressions, `work` the synthetic work as in
/// [`LaunchBudget::new`](super::LaunchBudget).
pub(super) fn max_run_length(kind: DeviceKind, program: &Program, size: u64, work: u64) -> usize {
    let iterations = u64::from(program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel())) + 1;
    let by_expressions = MAX_INVOCATION_EXPRESSIONS / iterations.saturating_mul(size.max(1)).saturating_add(work);
    let by_iterations = if kind == DeviceKind::Software {
        let lookups = program.max_calls(|intrinsic| {
            matches!(
                intrinsic,
                Intrinsic::Map { call: MapFunction::Find | MapFunction::Insert | MapFunction::Remove, .. }
            )
        });
        MAX_SOFTWARE_ITERATIONS / lookups.saturating_mul(MAX_LOOKUP_ITERATIONS).saturating_add(iterations)
    } else {
        u64::MAX
    };
    usize::try_from(by_expressions.min(by_iterations)).unwrap_or(usize::MAX).max(1)
}

/// Maximum size in bytes of the descriptors of a packet that a kernel takes in flow order: its own,
/// that of a run, and a third one with its number.
pub const MAX_ORDERED_DESCRIPTOR_BYTES: usize = 3 * size_of::<Descriptor>();

/// Maximum number of bits of the flow id that tell runs apart.
const MAX_BUCKET_BITS: u32 = 16;

/// Minimum number of packets that a thread sorts: clearing and adding up its counters takes as long
/// as sorting some thousands.
const MIN_SORTED_PACKETS: usize = 32 << 10;

/// Length from which runs are sorted by comparisons.
const MIN_LONG_RUN: u32 = 1024;

/// The packets of a chunk sorted by flow. Its memory is reused for chunk after chunk.
#[derive(Debug, Default)]
pub(super) struct FlowOrder {
    /// The packets' indices in the chunk, flow by flow. Written by several threads, each index by
    /// one.
    positions: Vec<AtomicU32>,
    /// The runs, round by round; no round has two runs of one flow.
    runs: Vec<FlowRun>,
    /// End of each round, as an index into `runs`.
    rounds: Vec<usize>,
    /// For each part of the packets a counter per bucket: the packets, then where the next one
    /// goes. Behind them are those of all parts.
    counters: Vec<u32>,
    /// The runs that are not in a round yet.
    pending: Vec<FlowRun>,
}

/// Consecutive packets of one flow, or of flows that share a bucket, for one invocation of a
/// launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct FlowRun {
    first: u32,
    packets: u32,
}

impl FlowOrder {
    /// Sorts packets by flow id, with a stable counting sort over the highest bits of the id, into
    /// runs of at most `max_run` packets.
    ///
    /// The longest runs of a round come first, so that neighbouring invocations, which run
    /// in lockstep, have about equally much to do.
    pub fn sort(&mut self, flow_ids: &[u32], max_run: usize, threads: &HostThreads) {
        let FlowOrder { positions, counters, pending, .. } = self;
        // About as many buckets as packets: clearing the counters then costs no more than counting.
        let bits = (flow_ids.len().max(2).ilog2() + 2).min(MAX_BUCKET_BITS);
        let bucket = |id: &u32| (*id >> (FLOW_BITS - bits)) as usize & ((1 << bits) - 1);
        positions.resize_with(flow_ids.len(), AtomicU32::default);
        let positions = &*positions;
        let sort = |has_threads: bool| {
            let parts = flow_ids.len() / MIN_SORTED_PACKETS;
            let parts = if has_threads { parts.clamp(1, rayon::current_num_threads()) } else { 1 };
            let part = flow_ids.len().div_ceil(parts).max(1);
            counters.clear();
            counters.resize((parts + 1) << bits, 0);
            let (counters, starts) = counters.split_at_mut(parts << bits);
            let each_part = || flow_ids.par_chunks(part).zip(0..parts as u32);
            let count = |flow_ids: &[u32], counters: &mut [u32]| {
                flow_ids.iter().for_each(|id| counters[bucket(id)] += 1);
            };
            let place = |(flow_ids, number): (&[u32], u32), counters: &mut [u32]| {
                for (position, id) in (number * part as u32..).zip(flow_ids) {
                    let at = &mut counters[bucket(id)];
                    positions[*at as usize].store(position, Relaxed);
                    *at += 1;
                }
            };
            if parts > 1 {
                flow_ids.par_chunks(part).zip(counters.par_chunks_mut(1 << bits)).for_each(|(ids, to)| count(ids, to));
            } else {
                count(flow_ids, counters);
            }
            buckets_to_runs(counters, starts, pending);
            if parts > 1 {
                each_part().zip(counters.par_chunks_mut(1 << bits)).for_each(|(ids, at)| place(ids, at));
            } else {
                place((flow_ids, 0), counters);
            }
        };
        threads.run(flow_ids.len() / MIN_SORTED_PACKETS, sort);
        self.cut_runs(u32::try_from(max_run.max(1)).unwrap_or(u32::MAX));
    }

    /// Moves the pending runs into rounds, cut to at most `max_run` packets.
    fn cut_runs(&mut self, max_run: u32) {
        let FlowOrder { runs, rounds, pending, .. } = self;
        runs.clear();
        rounds.clear();
        sort_longest_first(pending, runs);
        while !pending.is_empty() {
            runs.extend(pending.iter().map(|run| FlowRun { packets: run.packets.min(max_run), ..*run }));
            rounds.push(runs.len());
            // The order is preserved, since all runs that continue lose the same number of packets.
            pending.truncate(pending.partition_point(|run| run.packets > max_run));
            pending
                .iter_mut()
                .for_each(|run| *run = FlowRun { first: run.first + max_run, packets: run.packets - max_run });
        }
    }

    /// Makes each packet a flow of its own.
    pub fn set_singletons(&mut self, packets: usize) {
        self.positions.clear();
        self.positions.extend((0..packets as u32).map(AtomicU32::new));
        self.runs.clear();
        self.runs.extend((0..packets as u32).map(|first| FlowRun { first, packets: 1 }));
        self.rounds.clear();
        self.rounds.push(packets);
    }

    /// Selects the runs of the next launch, from run `first` on: at least one, all of one round,
    /// with at most `max_packets` packets unless a single run has more. Returns the number of runs,
    /// and the number of packets that count for the launch budget: `max_packets` if the limit was
    /// reached.
    pub fn next_launch(&self, first: usize, max_packets: usize) -> (usize, usize) {
        let round = self.rounds[self.rounds.partition_point(|end| *end <= first)];
        let (mut count, mut packets) = (0, 0);
        for run in &self.runs[first..round] {
            if count > 0 && packets + run.packets as usize > max_packets {
                return (count, max_packets.max(packets));
            }
            (count, packets) = (count + 1, packets + run.packets as usize);
        }
        (count, packets)
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Number of descriptors behind those of the packets.
    pub fn descriptor_count(&self) -> usize {
        self.runs.len() + self.positions.len().div_ceil(2)
    }

    /// The descriptors behind those of the packets: of each run the index of its first packet's
    /// number, counted in words from the first descriptor, and its number of packets; then the
    /// numbers, two in a descriptor.
    pub fn descriptors(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let numbers = 2 * (self.positions.len() + self.runs.len()) as u32;
        let runs = self.runs.iter().map(move |run| Descriptor { offset: numbers + run.first, length: run.packets });
        let number = |position: Option<&AtomicU32>| position.map_or(0, |position| position.load(Relaxed));
        let positions = self.positions.chunks(2);
        runs.chain(positions.map(move |two| Descriptor { offset: number(two.first()), length: number(two.get(1)) }))
    }
}

/// Turns the parts' numbers of packets per bucket into the positions at which they are placed, and
/// lists the buckets that have packets as runs.
///
/// `starts` has a zero for each bucket.
fn buckets_to_runs(counters: &mut [u32], starts: &mut [u32], runs: &mut Vec<FlowRun>) {
    runs.clear();
    for part in counters.chunks_exact(starts.len()) {
        starts.iter_mut().zip(part).for_each(|(sum, packets)| *sum += packets);
    }
    let mut first = 0;
    for start in &mut *starts {
        let packets = std::mem::replace(start, first);
        if packets > 0 {
            runs.push(FlowRun { first, packets });
        }
        first += packets;
    }
    for part in counters.chunks_exact_mut(starts.len()) {
        for (start, packets) in starts.iter_mut().zip(part) {
            *start += std::mem::replace(packets, *start);
        }
    }
}

/// Sorts runs by decreasing length, those of equal length by position as they are, with a counting
/// sort for all but long ones. `scratch` is left empty.
fn sort_longest_first(runs: &mut Vec<FlowRun>, scratch: &mut Vec<FlowRun>) {
    let key = |run: &FlowRun| (MIN_LONG_RUN - run.packets.min(MIN_LONG_RUN)) as usize;
    let mut ends = [0_usize; MIN_LONG_RUN as usize + 1];
    runs.iter().for_each(|run| ends[key(run)] += 1);
    let long = ends[0];
    let mut sum = 0;
    for end in &mut ends {
        sum += std::mem::replace(end, sum);
    }
    scratch.clear();
    scratch.resize(runs.len(), FlowRun::default());
    for run in &*runs {
        let at = &mut ends[key(run)];
        scratch[*at] = *run;
        *at += 1;
    }
    scratch[..long].sort_unstable_by_key(|run| (Reverse(run.packets), run.first));
    std::mem::swap(runs, scratch);
    scratch.clear();
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn sorted(flow_ids: &[u32], max_run: usize, threads: usize) -> FlowOrder {
        let mut order = FlowOrder::default();
        order.sort(flow_ids, max_run, &HostThreads::new(NonZeroUsize::new(threads)));
        order
    }

    /// The packet counts of each launch's runs.
    fn launches(order: &FlowOrder, max_packets: usize) -> Vec<Vec<u32>> {
        let (mut launches, mut first) = (Vec::new(), 0);
        while first < order.runs() {
            let (count, packets) = order.next_launch(first, max_packets);
            let runs: Vec<u32> = order.runs[first..first + count].iter().map(|run| run.packets).collect();
            let (sum, next) = (runs.iter().sum::<u32>() as usize, order.runs.get(first + count));
            let is_full = !order.rounds.contains(&(first + count)) && next.is_some_and(|_| sum <= max_packets);
            assert_eq!(packets, if is_full { max_packets } else { sum });
            launches.push(runs);
            first += count;
        }
        launches
    }

    #[test]
    fn launches_respect_rounds_and_the_packet_limit() {
        // Three flows with five, one and three packets.
        let flow_ids = [5, 5, 7, 5, 9, 9, 5, 5, 9].map(|flow| flow << 19);
        let split = |max_run, max_packets| launches(&sorted(&flow_ids, max_run, 1), max_packets);
        assert_eq!(split(100, 100), [vec![5, 3, 1]]);
        assert_eq!(split(100, 4), [vec![5], vec![3, 1]]);
        assert_eq!(split(2, 100), [vec![2, 2, 1], vec![2, 1], vec![1]]);
        assert_eq!(split(2, 1), [[2], [2], [1], [2], [1], [1]]);
        assert_eq!(split(1, 2), [vec![1, 1], vec![1], vec![1, 1], vec![1, 1], vec![1], vec![1]]);
        assert!(launches(&sorted(&[], 7, 1), 100).is_empty());
    }

    #[test]
    fn runs_keep_their_packets_in_order() {
        let mut random = crate::testing::Random(7);
        let mut next = |below: u32| random.below(below.into()) as u32;
        let packets = [0, 1, 2, 2, 50, 1000, 1000, 1000, 70_000];
        for (count, flows) in packets.into_iter().zip([1, 1, 1, 2, 3, 1, 7, 5000, 90_000]) {
            let flow_ids: Vec<u32> =
                (0..count).map(|_| next(flows).wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS)).collect();
            for max_run in [1, 3, 1 << 20] {
                let order = sorted(&flow_ids, max_run, 1);
                let descriptors: Vec<_> = order.descriptors().collect();
                assert_eq!(descriptors.len(), order.descriptor_count());
                let runs = &descriptors[..order.runs()];
                // The words of the kernel's buffer, in which these are behind the packets' own.
                let words: Vec<u32> = descriptors.iter().flat_map(|d| [d.offset, d.length]).collect();
                let packets = |run: &Descriptor| {
                    let first = run.offset as usize - 2 * flow_ids.len();
                    words[first..first + run.length as usize].iter().map(|index| *index as usize)
                };
                // Across all launches: each packet once, and the packets of a flow in order.
                let (mut taken, mut last) = (vec![false; flow_ids.len()], std::collections::HashMap::new());
                let mut first = 0;
                while first < runs.len() {
                    let (invocations, _) = order.next_launch(first, usize::MAX);
                    let mut invocation_of = std::collections::HashMap::new();
                    for (invocation, run) in runs[first..first + invocations].iter().enumerate() {
                        assert!((1..=max_run).contains(&(run.length as usize)));
                        for index in packets(run) {
                            let flow = flow_ids[index];
                            assert!(!std::mem::replace(&mut taken[index], true));
                            assert!(
                                last.insert(flow, index).is_none_or(|last| last < index),
                                "packets of a flow keep their order"
                            );
                            assert_eq!(
                                *invocation_of.entry(flow).or_insert(invocation),
                                invocation,
                                "one invocation per flow"
                            );
                        }
                    }
                    assert!(runs[first..first + invocations].is_sorted_by_key(|run| Reverse(run.length)));
                    first += invocations;
                }
                assert!(taken.into_iter().all(|taken| taken), "each packet is launched once");
            }
        }
    }

    #[test]
    fn threads_sort_as_one_does() {
        let mut random = crate::testing::Random(3);
        for flows in [1, 5, 3000, 1 << 20] {
            for count in [0, 1, MIN_SORTED_PACKETS, 2 * MIN_SORTED_PACKETS, 3 * MIN_SORTED_PACKETS + 17] {
                let ids: Vec<u32> = (0..count)
                    .map(|_| (random.below(flows) as u32).wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS))
                    .collect();
                let descriptors = |order: &FlowOrder| order.descriptors().collect::<Vec<_>>();
                let one = sorted(&ids, 100, 1);
                // One that has been used before, for other packets.
                let mut order = sorted(&[1, 2, 3, 1], 100, 1);
                for threads in [2, 3, 8] {
                    order.sort(&ids, 100, &HostThreads::new(NonZeroUsize::new(threads)));
                    assert_eq!(descriptors(&order), descriptors(&one), "{flows} flows, {count} packets");
                    assert_eq!(order.rounds, one.rounds);
                }
            }
        }
    }
}
