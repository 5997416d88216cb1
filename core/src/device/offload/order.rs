//! Packets of a part in the order of their flows, for filters that have any: those of a flow one behind the other, as
//! they came. A kernel gives each run of them to one lane, which takes them one after the other.
//!
//! Descriptors tell the lanes: one whose packet is not the last of its run has [`GOES_ON`] in its length. A lane whose
//! packet goes on from the one before has nothing to do, unless that one belongs to another launch; the others go on
//! until their run ends, or the launch does. So a run may be cut between launches, which come one after the other.

use std::ops::Range;

use crate::device::DeviceKind;
use crate::lang::prelude::Intrinsic;
use crate::map::Call;
use crate::map::declare::MAX_VALUE;
use crate::map::layout::PROBES;
use crate::packet::Descriptor;
use crate::program::{FLOW_BITS, Program};

/// In a descriptor's length: the next packet is of the same run.
pub const GOES_ON: u32 = 1 << 31;

/// What a lane may do in a launch, in expressions, as [`super::super::pace`] counts them for all lanes together: one alone
/// is much slower than a GPU, and about as fast as a processor.
const LANE: u64 = 1 << 27;

/// Rounds of loops that an invocation may take on a software GPU: llvmpipe leaves them all after 65,535, without a word.
const SOFTWARE_ROUNDS: u64 = 65_000;

/// Rounds of a search in a map at most, and of what is done where it ends.
const SEARCH: u64 = PROBES as u64 + MAX_VALUE as u64 + 8;

/// Packets of one run that a launch may have: a lane takes them one after the other. `size` is the number of expressions
/// of a kernel for the program.
pub(super) fn longest(kind: DeviceKind, program: &Program, size: u64) -> usize {
    let rounds = u64::from(program.facts().max_iterations.unwrap_or(program.fuel()).min(program.fuel())) + 1;
    let by_work = LANE / rounds.saturating_mul(size.max(1));
    let by_rounds = if kind == DeviceKind::Software {
        let searches = program.calls(|intrinsic| {
            matches!(intrinsic, Intrinsic::Map { call: Call::Find | Call::Insert | Call::Remove, .. })
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
    /// Those that are not the last of their runs, a bit each.
    goes_on: Vec<bool>,
}

impl Order {
    /// The order of packets with these flow numbers: runs by the numbers' highest bits, in each as they came.
    pub fn new(numbers: &[u32]) -> Order {
        // As many runs as packets, about, so that clearing the counts is not more work than counting.
        let bits = (numbers.len().max(2).ilog2() + 2).min(BITS);
        let run = |number: &u32| (*number >> (FLOW_BITS - bits)) as usize & ((1 << bits) - 1);
        let mut ends = vec![0_u32; 1 << bits];
        numbers.iter().for_each(|number| ends[run(number)] += 1);
        let mut sum = 0;
        for end in &mut ends {
            // Where the run begins; it becomes where it ends as its packets are put there.
            sum += std::mem::replace(end, sum);
        }
        let (mut positions, mut goes_on) = (vec![0; numbers.len()], vec![true; numbers.len()]);
        for (position, number) in (0..).zip(numbers) {
            let at = &mut ends[run(number)];
            positions[*at as usize] = position;
            *at += 1;
        }
        // Of an empty run that is where the one before it ends.
        ends.iter().filter(|end| **end > 0).for_each(|end| goes_on[*end as usize - 1] = false);
        Order { positions, goes_on }
    }

    /// How many packets from `first` on, at most so many, have no more than `longest` of one run.
    pub fn cut(&self, first: usize, most: usize, longest: usize) -> usize {
        let mut run = 0;
        let ahead = self.goes_on[first..].iter().take(most);
        for (count, goes_on) in (1..).zip(ahead) {
            run = if *goes_on { run + 1 } else { 0 };
            if run >= longest {
                return count;
            }
        }
        most.min(self.goes_on.len() - first)
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

    /// The part's descriptors in this order, with [`GOES_ON`].
    pub fn descriptors(&self, seen: Vec<Descriptor>) -> impl Iterator<Item = Descriptor> + '_ {
        self.of(&seen).into_iter().zip(&self.goes_on).map(|(descriptor, goes_on)| Descriptor {
            length: descriptor.length | if *goes_on { GOES_ON } else { 0 },
            ..descriptor
        })
    }
}

/// The orders of a batch's parts.
pub(super) fn orders(numbers: &[u32], parts: impl Iterator<Item = Range<usize>>) -> Vec<Order> {
    parts.map(|packets| Order::new(&numbers[packets])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_end_where_a_run_gets_long() {
        // Runs of five, one, and three.
        let numbers = [5, 5, 7, 5, 9, 9, 5, 5, 9].map(|run| run << 19);
        let order = Order::new(&numbers);
        let cuts = |most, longest| {
            let mut cuts = Vec::new();
            while cuts.iter().sum::<usize>() < numbers.len() {
                cuts.push(order.cut(cuts.iter().sum(), most, longest));
            }
            cuts
        };
        assert_eq!(cuts(100, 100), [9]);
        assert_eq!(cuts(4, 100), [4, 4, 1]);
        assert_eq!(cuts(100, 2), [2, 2, 4, 1]);
        assert_eq!(cuts(100, 1), [1, 1, 1, 1, 3, 1, 1]);
    }

    #[test]
    fn runs_keep_their_packets_in_order() {
        let mut state = 7_u64;
        let mut next = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32 % below
        };
        for (count, flows) in
            [(0, 1), (1, 1), (2, 1), (2, 2), (50, 3), (1000, 1), (1000, 7), (1000, 5000), (70_000, 90_000)]
        {
            let numbers: Vec<u32> =
                (0..count).map(|_| next(flows).wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS)).collect();
            let order = Order::new(&numbers);
            let mut sorted = order.positions().to_vec();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count as u32), "each packet is there once");
            // Each number is in one run, in which positions ascend.
            let (mut runs, mut last) = (std::collections::HashMap::new(), None);
            let mut run = 0;
            let seen: Vec<_> = (0..count as u32).map(|offset| Descriptor { offset, length: 60 }).collect();
            for descriptor in order.descriptors(seen) {
                assert!(last.is_none_or(|last| last < descriptor.offset), "as they came");
                assert_eq!(*runs.entry(numbers[descriptor.offset as usize]).or_insert(run), run, "one run a number");
                assert_eq!(descriptor.length & !GOES_ON, 60);
                last = Some(descriptor.offset);
                if descriptor.length & GOES_ON == 0 {
                    (run, last) = (run + 1, None);
                }
            }
            assert_eq!(last, None, "the last run ends");
            let (things, mut back) = (numbers.clone(), order.of(&numbers));
            order.back(&mut back);
            assert_eq!(things, back);
        }
    }
}
