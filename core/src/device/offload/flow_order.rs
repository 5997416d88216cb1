//! Flow order: the packets of a chunk sorted stably by flow, for filters with flows.
//!
//! Each *run* of packets of one flow is filtered by one kernel invocation, one packet after
//! another. Kernels get the runs as descriptors behind those of the packets, one per invocation:
//! the index of the run's first packet, and its number of packets. No launch has two runs of one
//! flow, and launches are sequential. So a flow with more packets than an invocation may filter per
//! launch has several runs, in several launches.

use std::cmp::Reverse;

use crate::device::DeviceKind;
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

/// Maximum number of bits of the flow id that tell runs apart.
const MAX_BUCKET_BITS: u32 = 16;

/// A permutation of a chunk's packets, with the runs of equal flows in it.
#[derive(Debug, Default)]
pub(super) struct FlowOrder {
    /// For each packet in flow order, its index in the chunk.
    positions: Vec<u32>,
    /// The runs, round by round; no round has two runs of one flow.
    runs: Vec<FlowRun>,
    /// End of each round, as an index into `runs`.
    rounds: Vec<usize>,
}

/// Consecutive packets of one flow, or of flows that share a bucket, for one invocation of a
/// launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub fn new(flow_ids: &[u32], max_run: usize) -> FlowOrder {
        // About as many buckets as packets: clearing the counters then costs no more than counting.
        let bits = (flow_ids.len().max(2).ilog2() + 2).min(MAX_BUCKET_BITS);
        let bucket = |id: &u32| (*id >> (FLOW_BITS - bits)) as usize & ((1 << bits) - 1);
        let mut ends = vec![0_u32; 1 << bits];
        flow_ids.iter().for_each(|id| ends[bucket(id)] += 1);
        let (mut sum, mut pending) = (0, Vec::with_capacity(ends.len().min(flow_ids.len())));
        for end in &mut ends {
            let packets = *end;
            if packets > 0 {
                pending.push(FlowRun { first: sum, packets });
            }
            // The start of the bucket. Placing the packets moves it to the bucket's end.
            *end = sum;
            sum += packets;
        }
        let mut positions = vec![0; flow_ids.len()];
        for (position, id) in (0..).zip(flow_ids) {
            let at = &mut ends[bucket(id)];
            positions[*at as usize] = position;
            *at += 1;
        }
        let max_run = u32::try_from(max_run.max(1)).unwrap_or(u32::MAX);
        pending.sort_unstable_by_key(|run| (Reverse(run.packets), run.first));
        let (mut runs, mut rounds) = (Vec::with_capacity(pending.len()), Vec::new());
        while !pending.is_empty() {
            runs.extend(pending.iter().map(|run| FlowRun { packets: run.packets.min(max_run), ..*run }));
            rounds.push(runs.len());
            // The order is preserved, since all runs that continue lose the same number of packets.
            pending.truncate(pending.partition_point(|run| run.packets > max_run));
            pending
                .iter_mut()
                .for_each(|run| *run = FlowRun { first: run.first + max_run, packets: run.packets - max_run });
        }
        FlowOrder { positions, runs, rounds }
    }

    /// The order in which each packet is a flow of its own.
    pub fn singletons(packets: usize) -> FlowOrder {
        let positions: Vec<u32> = (0..packets as u32).collect();
        let runs = positions.iter().map(|&first| FlowRun { first, packets: 1 }).collect();
        FlowOrder { positions, runs, rounds: vec![packets] }
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

    /// For each packet in flow order, its index in the chunk.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Permutes per-packet items from chunk order to flow order.
    pub fn apply<T: Copy>(&self, items: &[T]) -> Vec<T> {
        self.positions.iter().map(|position| items[*position as usize]).collect()
    }

    /// Permutes per-packet items from flow order back to chunk order.
    pub fn undo<T: Copy>(&self, items: &mut [T]) {
        let ordered = items.to_vec();
        for (position, item) in self.positions.iter().zip(ordered) {
            items[*position as usize] = item;
        }
    }

    /// The packets' descriptors in flow order, followed by those of the runs.
    pub fn descriptors(&self, descriptors: Vec<Descriptor>) -> impl Iterator<Item = Descriptor> + '_ {
        let runs = self.runs.iter().map(|run| Descriptor { offset: run.first, length: run.packets });
        self.apply(&descriptors).into_iter().chain(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let split = |max_run, max_packets| launches(&FlowOrder::new(&flow_ids, max_run), max_packets);
        assert_eq!(split(100, 100), [vec![5, 3, 1]]);
        assert_eq!(split(100, 4), [vec![5], vec![3, 1]]);
        assert_eq!(split(2, 100), [vec![2, 2, 1], vec![2, 1], vec![1]]);
        assert_eq!(split(2, 1), [[2], [2], [1], [2], [1], [1]]);
        assert_eq!(split(1, 2), [vec![1, 1], vec![1], vec![1, 1], vec![1, 1], vec![1], vec![1]]);
        assert!(launches(&FlowOrder::new(&[], 7), 100).is_empty());
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
                let order = FlowOrder::new(&flow_ids, max_run);
                let unordered: Vec<_> = (0..count as u32).map(|offset| Descriptor { offset, length: 60 }).collect();
                let descriptors: Vec<_> = order.descriptors(unordered).collect();
                let (packets, runs) = descriptors.split_at(flow_ids.len());
                assert_eq!(runs.len(), order.runs());
                // Across all launches: each packet once, and the packets of a flow in order.
                let (mut taken, mut last) = (vec![false; flow_ids.len()], std::collections::HashMap::new());
                let mut first = 0;
                while first < runs.len() {
                    let (invocations, _) = order.next_launch(first, usize::MAX);
                    let mut invocation_of = std::collections::HashMap::new();
                    for (invocation, run) in runs[first..first + invocations].iter().enumerate() {
                        assert!((1..=max_run).contains(&(run.length as usize)));
                        for packet in &packets[run.offset as usize..][..run.length as usize] {
                            let (index, flow) = (packet.offset as usize, flow_ids[packet.offset as usize]);
                            assert!(!std::mem::replace(&mut taken[index], true) && packet.length == 60);
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
                let (items, mut restored) = (flow_ids.clone(), order.apply(&flow_ids));
                order.undo(&mut restored);
                assert_eq!(items, restored);
            }
        }
    }
}
