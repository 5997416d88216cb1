//! Packets of a part in the order of their flows, for filters that have any: those of a flow one behind the other, as
//! they came. A kernel gives each run of them to one lane, which takes them one after the other.
//!
//! Kernels are told of runs by descriptors behind those of the packets, one a lane: where a run begins among the packets,
//! and how many packets it has. No launch has two runs of one flow, and launches come one after the other, so a flow
//! that has more packets than a lane may take in a launch has several runs, in several launches.

use std::cmp::Reverse;

use crate::device::DeviceKind;
use crate::map::MapFunction;
use crate::map::declaration::MAX_VALUE_WORDS;
use crate::map::layout::MAX_PROBES;
use crate::packet::Descriptor;
use crate::program::prelude::Intrinsic;
use crate::program::{FLOW_BITS, Program};

/// What a lane may do in a launch, in expressions, as [`super::super::pace`] counts them for all lanes together: one alone
/// is much slower than a GPU, and about as fast as a processor.
const LANE: u64 = 1 << 27;

/// Rounds of loops that an invocation may take on a software GPU: llvmpipe leaves them all after 65,535, without a word.
const SOFTWARE_ROUNDS: u64 = 65_000;

/// Rounds of a search in a map at most, and of what is done where it ends.
const SEARCH: u64 = MAX_PROBES as u64 + MAX_VALUE_WORDS as u64 + 8;

/// Packets of one run that a launch may have: a lane takes them one after the other. `size` is the number of expressions
/// of a kernel for the program, `work` as [`super::super::pace`] has it.
pub(super) fn longest(kind: DeviceKind, program: &Program, size: u64, work: u64) -> usize {
    let rounds = u64::from(program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel())) + 1;
    let by_work = LANE / rounds.saturating_mul(size.max(1)).saturating_add(work);
    let by_rounds = if kind == DeviceKind::Software {
        let searches = program.max_calls(|intrinsic| {
            matches!(
                intrinsic,
                Intrinsic::Map { call: MapFunction::Find | MapFunction::Insert | MapFunction::Remove, .. }
            )
        });
        SOFTWARE_ROUNDS / searches.saturating_mul(SEARCH).saturating_add(rounds)
    } else {
        u64::MAX
    };
    usize::try_from(by_work.min(by_rounds)).unwrap_or(usize::MAX).max(1)
}

/// Bits of flows' numbers that tell runs apart, at most.
const BITS: u32 = 16;

/// The packets of a part in their new order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Where in the part each of them was.
    positions: Vec<u32>,
    /// The runs, round by round: no round has two of one flow.
    runs: Vec<Run>,
    /// Where in the runs each round ends.
    rounds: Vec<usize>,
}

/// Packets of a flow, or of flows that are not told apart, which a lane takes in a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u32,
    packets: u32,
}

impl Order {
    /// The order of packets with these flow numbers, in runs of at most so many packets: flows are told apart by the
    /// numbers' highest bits.
    ///
    /// The longest runs of a round come first, so that lanes that go in step have about as much to do.
    pub fn new(numbers: &[u32], longest: usize) -> Order {
        // As many kinds as packets, about, so that clearing the counts is not more work than counting.
        let bits = (numbers.len().max(2).ilog2() + 2).min(BITS);
        let kind = |number: &u32| (*number >> (FLOW_BITS - bits)) as usize & ((1 << bits) - 1);
        let mut ends = vec![0_u32; 1 << bits];
        numbers.iter().for_each(|number| ends[kind(number)] += 1);
        let (mut sum, mut left) = (0, Vec::with_capacity(ends.len().min(numbers.len())));
        for end in &mut ends {
            let packets = *end;
            if packets > 0 {
                left.push(Run { first: sum, packets });
            }
            // Where they begin; it becomes where they end as the packets are put there.
            *end = sum;
            sum += packets;
        }
        let mut positions = vec![0; numbers.len()];
        for (position, number) in (0..).zip(numbers) {
            let at = &mut ends[kind(number)];
            positions[*at as usize] = position;
            *at += 1;
        }
        let longest = u32::try_from(longest.max(1)).unwrap_or(u32::MAX);
        left.sort_unstable_by_key(|run| (Reverse(run.packets), run.first));
        let (mut runs, mut rounds) = (Vec::with_capacity(left.len()), Vec::new());
        while !left.is_empty() {
            runs.extend(left.iter().map(|run| Run { packets: run.packets.min(longest), ..*run }));
            rounds.push(runs.len());
            // They stay in order: what is taken of each that goes on is the same.
            left.truncate(left.partition_point(|run| run.packets > longest));
            left.iter_mut().for_each(|run| *run = Run { first: run.first + longest, packets: run.packets - longest });
        }
        Order { positions, runs, rounds }
    }

    /// The order of packets each of which is a flow.
    pub fn apart(packets: usize) -> Order {
        let positions: Vec<u32> = (0..packets as u32).collect();
        let runs = positions.iter().map(|&first| Run { first, packets: 1 }).collect();
        Order { positions, runs, rounds: vec![packets] }
    }

    /// How many runs from `first` on, at least one, are of one round and have at most so many packets; and how many packets
    /// that is, or, where the next run has no room, for how many it stands.
    pub fn cut(&self, first: usize, most: usize) -> (usize, usize) {
        let round = self.rounds[self.rounds.partition_point(|end| *end <= first)];
        let (mut count, mut packets) = (0, 0);
        for run in &self.runs[first..round] {
            if count > 0 && packets + run.packets as usize > most {
                return (count, most.max(packets));
            }
            (count, packets) = (count + 1, packets + run.packets as usize);
        }
        (count, packets)
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Where in the part the packets are, in their order.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Things that there is one of for each packet of the part, in this order.
    pub fn of<T: Copy>(&self, things: &[T]) -> Vec<T> {
        self.positions.iter().map(|position| things[*position as usize]).collect()
    }

    /// And back: things in this order, as the part has its packets.
    pub fn back<T: Copy>(&self, things: &mut [T]) {
        let ordered = things.to_vec();
        for (position, thing) in self.positions.iter().zip(ordered) {
            things[*position as usize] = thing;
        }
    }

    /// The part's descriptors in this order, and behind them those of the runs.
    pub fn descriptors(&self, seen: Vec<Descriptor>) -> impl Iterator<Item = Descriptor> + '_ {
        let runs = self.runs.iter().map(|run| Descriptor { offset: run.first, length: run.packets });
        self.of(&seen).into_iter().chain(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of each run of each launch.
    fn launches(order: &Order, most: usize) -> Vec<Vec<u32>> {
        let (mut launches, mut first) = (Vec::new(), 0);
        while first < order.runs() {
            let (count, packets) = order.cut(first, most);
            let runs: Vec<u32> = order.runs[first..first + count].iter().map(|run| run.packets).collect();
            let (sum, next) = (runs.iter().sum::<u32>() as usize, order.runs.get(first + count));
            let is_full = !order.rounds.contains(&(first + count)) && next.is_some_and(|_| sum <= most);
            assert_eq!(packets, if is_full { most } else { sum });
            launches.push(runs);
            first += count;
        }
        launches
    }

    #[test]
    fn launches_end_where_a_run_gets_long() {
        // Of three flows five, one and three packets.
        let numbers = [5, 5, 7, 5, 9, 9, 5, 5, 9].map(|flow| flow << 19);
        let cuts = |longest, most| launches(&Order::new(&numbers, longest), most);
        assert_eq!(cuts(100, 100), [vec![5, 3, 1]]);
        assert_eq!(cuts(100, 4), [vec![5], vec![3, 1]]);
        assert_eq!(cuts(2, 100), [vec![2, 2, 1], vec![2, 1], vec![1]]);
        assert_eq!(cuts(2, 1), [[2], [2], [1], [2], [1], [1]]);
        assert_eq!(cuts(1, 2), [vec![1, 1], vec![1], vec![1, 1], vec![1, 1], vec![1], vec![1]]);
        assert!(launches(&Order::new(&[], 7), 100).is_empty());
    }

    #[test]
    fn runs_keep_their_packets_in_order() {
        let mut state = 7_u64;
        let mut next = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32 % below
        };
        let packets = [0, 1, 2, 2, 50, 1000, 1000, 1000, 70_000];
        for (count, flows) in packets.into_iter().zip([1, 1, 1, 2, 3, 1, 7, 5000, 90_000]) {
            let numbers: Vec<u32> =
                (0..count).map(|_| next(flows).wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS)).collect();
            for longest in [1, 3, 1 << 20] {
                let order = Order::new(&numbers, longest);
                let seen: Vec<_> = (0..count as u32).map(|offset| Descriptor { offset, length: 60 }).collect();
                let descriptors: Vec<_> = order.descriptors(seen).collect();
                let (packets, runs) = descriptors.split_at(numbers.len());
                assert_eq!(runs.len(), order.runs());
                // As launches take them, one after the other: each packet once, those of a number as they came.
                let (mut taken, mut last) = (vec![false; numbers.len()], std::collections::HashMap::new());
                let mut first = 0;
                while first < runs.len() {
                    let (lanes, _) = order.cut(first, usize::MAX);
                    let mut lane_of = std::collections::HashMap::new();
                    for (lane, run) in runs[first..first + lanes].iter().enumerate() {
                        assert!((1..=longest).contains(&(run.length as usize)));
                        for packet in &packets[run.offset as usize..][..run.length as usize] {
                            let (index, number) = (packet.offset as usize, numbers[packet.offset as usize]);
                            assert!(!std::mem::replace(&mut taken[index], true) && packet.length == 60);
                            assert!(last.insert(number, index).is_none_or(|last| last < index), "as they came");
                            assert_eq!(*lane_of.entry(number).or_insert(lane), lane, "one lane a number");
                        }
                    }
                    assert!(runs[first..first + lanes].is_sorted_by_key(|run| Reverse(run.length)));
                    first += lanes;
                }
                assert!(taken.into_iter().all(|taken| taken), "each packet is there");
                let (things, mut back) = (numbers.clone(), order.of(&numbers));
                order.back(&mut back);
                assert_eq!(things, back);
            }
        }
    }
}
