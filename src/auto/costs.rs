//! What batches cost on all devices, and which of them, or which two, a batch had best go to.

use serde::{Deserialize, Serialize};

use super::curve::Curve;

/// Bytes of the packets that costs are known for: a batch's class is the one that its packets come nearest to.
pub const LENGTHS: [u32; 3] = [64, 512, 1514];

/// The sizes of batches that are looked at to see which devices can be of any use.
pub const SWEEP: [usize; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20];

/// A device that is no better than this many times the best at any size is not kept ready.
pub const WORTH_KEEPING: f64 = 1.25;

/// What two devices at once have to take, of the time that the better one takes alone, to be worth it.
pub const WORTH_SPLITTING: f64 = 0.9;

/// The fewest packets of a part.
const LEAST_PART: usize = 256;

/// The costs of all candidates for a filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Of each candidate, in their order, for packets of each of [`LENGTHS`]; without curves where it cannot run the filter.
    pub devices: Vec<Option<[Curve; LENGTHS.len()]>>,
    /// Of two of them at once, where that was found to be worth it.
    pub split: Option<SplitCosts>,
}

/// The costs of batches cut in two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitCosts {
    /// The candidate that gets the first packets.
    pub first: usize,
    /// The one that gets the others.
    pub second: usize,
    /// For packets of each of [`LENGTHS`]; from the smallest size on at which it was worth measuring.
    pub curves: [Option<Curve>; LENGTHS.len()],
}

/// Where a batch goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plan {
    /// To one device, by its number.
    One(usize),
    /// To two devices at once.
    Split {
        /// Which gets the first packets.
        first: usize,
        /// Which gets the others.
        second: usize,
        /// The part of the packets that the first one gets.
        share: f32,
    },
}

impl Plan {
    /// Whether it is the same devices, whatever the shares.
    pub fn is_as(&self, other: &Plan) -> bool {
        match (self, other) {
            (Plan::One(a), Plan::One(b)) => a == b,
            (Plan::Split { first: a, second: b, .. }, Plan::Split { first, second, .. }) => (a, b) == (first, second),
            _ => false,
        }
    }

    /// Packets of so many that the first of two devices gets.
    pub fn first_part(share: f32, packets: usize) -> usize {
        let part = (packets as f64 * f64::from(share)).round() as usize;
        // A word of verdicts has four packets: parts end where one does.
        part.next_multiple_of(64).min(packets)
    }
}

impl Costs {
    /// Nanoseconds for so many packets of a class by a plan; `None` where they are not known.
    pub fn of(&self, plan: &Plan, class: usize, packets: usize) -> Option<f64> {
        match plan {
            Plan::One(device) => Some(self.devices.get(*device)?.as_ref()?[class].at(packets)),
            Plan::Split { first, second, .. } => {
                let split = self.split.as_ref().filter(|split| (split.first, split.second) == (*first, *second))?;
                let curve = split.curves[class].as_ref()?;
                (packets >= curve.points()[0].0 as usize).then(|| curve.at(packets))
            }
        }
    }

    /// All plans for so many packets with their costs, the cheapest first. That of two devices at once is among them only
    /// where it is worth it.
    pub fn ranked(&self, class: usize, packets: usize) -> Vec<(Plan, f64)> {
        let one = (0..self.devices.len()).map(Plan::One);
        let mut ranked: Vec<_> = one.filter_map(|plan| Some((plan, self.of(&plan, class, packets)?))).collect();
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some(split), Some(best)) = (&self.split, ranked.first()) {
            // Costs first: where the parts lie takes longer to find.
            let any = Plan::Split { first: split.first, second: split.second, share: 0.5 };
            if let Some(ns) = self.of(&any, class, packets).filter(|ns| *ns < best.1 * WORTH_SPLITTING)
                && let Some(plan) = self.split_between(split.first, split.second, class, packets)
            {
                ranked.insert(0, (plan, ns));
            }
        }
        ranked
    }

    /// The cheapest plan.
    pub fn best(&self, class: usize, packets: usize) -> Option<(Plan, f64)> {
        self.ranked(class, packets).first().copied()
    }

    /// The parts of which two devices are done at the same time, if neither slowed the other; `None` where one would get
    /// next to nothing.
    pub fn split_between(&self, first: usize, second: usize, class: usize, packets: usize) -> Option<Plan> {
        let curve = |device: usize| Some(&self.devices.get(device)?.as_ref()?[class]);
        let (a, b) = (curve(first)?, curve(second)?);
        let (mut low, mut high) = (0.0f64, packets as f64);
        // The more the first one gets the longer it takes, and the sooner the second one is done.
        for _ in 0..24 {
            let middle = f64::midpoint(low, high);
            if a.at(middle as usize) < b.at(packets - middle as usize) { low = middle } else { high = middle }
        }
        let share = (low / packets as f64) as f32;
        let part = Plan::first_part(share, packets);
        (part >= LEAST_PART && packets - part >= LEAST_PART).then_some(Plan::Split { first, second, share })
    }

    /// What a batch cut in two would take if neither device slowed the other.
    pub fn predicted_split(&self, plan: &Plan, class: usize, packets: usize) -> Option<f64> {
        let Plan::Split { first, second, share } = *plan else { return None };
        let part = Plan::first_part(share, packets);
        let first = self.of(&Plan::One(first), class, part)?;
        Some(first.max(self.of(&Plan::One(second), class, packets - part)?))
    }

    /// Which devices are of use for batches of some size and class, or nearly.
    pub fn worth_keeping(&self) -> Vec<bool> {
        let mut worth = vec![false; self.devices.len()];
        for class in 0..LENGTHS.len() {
            for packets in SWEEP {
                let one: Vec<_> = (0..worth.len()).map(|device| self.of(&Plan::One(device), class, packets)).collect();
                let best = one.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                for (worth, ns) in worth.iter_mut().zip(one) {
                    *worth |= ns.is_some_and(|ns| ns <= best * WORTH_KEEPING);
                }
                if let Some((Plan::Split { first, second, .. }, _)) = self.best(class, packets) {
                    (worth[first], worth[second]) = (true, true);
                }
            }
        }
        worth
    }

    /// The device for all batches of about so many packets, of whatever length: for filters whose state is in one place.
    pub fn one_for_all(&self, packets: usize) -> Option<usize> {
        let total = |device: usize| {
            let costs = (0..LENGTHS.len()).map(|class| self.of(&Plan::One(device), class, packets));
            costs.sum::<Option<f64>>()
        };
        let known = (0..self.devices.len()).filter_map(|device| Some((device, total(device)?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(device, _)| device)
    }
}

/// The class of packets of about so many bytes.
pub fn class_of(length: u32) -> usize {
    // Half way by orders of magnitude.
    match length {
        0..=181 => 0,
        182..=880 => 1,
        _ => 2,
    }
}
