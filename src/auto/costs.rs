//! Costs of batches on all candidate devices, and the cheapest placement of a batch: on one device,
//! or split between two.

use serde::{Deserialize, Serialize};

use super::curve::CostCurve;

/// Packet lengths in bytes that costs are known for. A batch belongs to the class of the length
/// closest to its packets'.
pub const LENGTH_CLASSES: [u32; 3] = [64, 512, 1514];

/// Batch sizes that are examined to see which devices are useful.
pub const SWEEP_SIZES: [usize; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20];

/// A device is loaded if at some size it costs at most this many times the best one.
pub const USEFUL_COST_RATIO: f64 = 1.25;

/// A batch is split if that takes less than this fraction of the time of the best single device.
pub const SPLIT_COST_RATIO: f64 = 0.9;

/// Minimum number of packets in a part of a split batch.
const MIN_PART_PACKETS: usize = 256;

/// Costs of a filter on all candidates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Cost curves of each candidate, one for each of [`LENGTH_CLASSES`]; `None` if it cannot run
    /// the filter.
    pub devices: Vec<Option<[CostCurve; LENGTH_CLASSES.len()]>>,
    /// Costs of splitting batches between two candidates, if that was found to pay.
    pub split: Option<SplitCosts>,
}

/// Costs of batches split between two devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SplitCosts {
    /// The candidate that gets the first part.
    pub first: usize,
    /// The candidate that gets the second part.
    pub second: usize,
    /// Cost curves for each of [`LENGTH_CLASSES`], from the smallest size at which splitting was
    /// worth measuring.
    pub curves: [Option<CostCurve>; LENGTH_CLASSES.len()],
}

/// Where a batch is filtered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Placement {
    /// One device, given by its index.
    Single(usize),
    /// Two devices, between which the batch is split.
    Split {
        /// Device that gets the first part.
        first: usize,
        /// Device that gets the second part.
        second: usize,
        /// Fraction of the packets in the first part.
        share: f32,
    },
}

impl Placement {
    /// Whether both use the same devices, with any shares.
    pub fn has_same_devices(&self, other: &Placement) -> bool {
        match (self, other) {
            (Placement::Single(a), Placement::Single(b)) => a == b,
            (Placement::Split { first: a, second: b, .. }, Placement::Split { first, second, .. }) => {
                (a, b) == (first, second)
            }
            _ => false,
        }
    }

    /// Number of packets in the first part of a batch of `packets`.
    pub fn first_part(share: f32, packets: usize) -> usize {
        let part = (packets as f64 * f64::from(share)).round() as usize;
        // The device packs four verdicts into a word, so parts end at whole words.
        part.next_multiple_of(64).min(packets)
    }
}

impl Costs {
    /// Predicted time of a batch in nanoseconds, or `None` if unknown.
    pub fn predict(&self, placement: &Placement, class: usize, packets: usize) -> Option<f64> {
        match placement {
            Placement::Single(device) => Some(self.devices.get(*device)?.as_ref()?[class].cost_at(packets)),
            Placement::Split { first, second, .. } => {
                let split = self.split.as_ref().filter(|split| (split.first, split.second) == (*first, *second))?;
                let curve = split.curves[class].as_ref()?;
                (packets >= curve.points()[0].0 as usize).then(|| curve.cost_at(packets))
            }
        }
    }

    /// Returns all placements with known costs, cheapest first. A split is included only if it
    /// pays.
    pub fn ranked_placements(&self, class: usize, packets: usize) -> Vec<(Placement, f64)> {
        let one = (0..self.devices.len()).map(Placement::Single);
        let mut ranked_placements: Vec<_> =
            one.filter_map(|placement| Some((placement, self.predict(&placement, class, packets)?))).collect();
        ranked_placements.sort_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some(split), Some(best)) = (&self.split, ranked_placements.first()) {
            // Compare costs first: balancing the parts takes longer.
            let split_placement = Placement::Split { first: split.first, second: split.second, share: 0.5 };
            if let Some(ns) =
                self.predict(&split_placement, class, packets).filter(|ns| *ns < best.1 * SPLIT_COST_RATIO)
                && let Some(placement) = self.balance_split(split.first, split.second, class, packets)
            {
                ranked_placements.insert(0, (placement, ns));
            }
        }
        ranked_placements
    }

    /// Returns the cheapest placement and its cost in nanoseconds.
    pub fn cheapest(&self, class: usize, packets: usize) -> Option<(Placement, f64)> {
        self.ranked_placements(class, packets).first().copied()
    }

    /// Balances a split so that both devices finish at the same time if neither slows the other.
    /// Returns `None` if a part would be too small.
    pub fn balance_split(&self, first: usize, second: usize, class: usize, packets: usize) -> Option<Placement> {
        let curve = |device: usize| Some(&self.devices.get(device)?.as_ref()?[class]);
        let (a, b) = (curve(first)?, curve(second)?);
        let (mut low, mut high) = (0.0f64, packets as f64);
        // Bisection: the first part's time grows with the share, the second part's falls.
        for _ in 0..24 {
            let middle = f64::midpoint(low, high);
            if a.cost_at(middle as usize) < b.cost_at(packets - middle as usize) { low = middle } else { high = middle }
        }
        let share = (low / packets as f64) as f32;
        let part = Placement::first_part(share, packets);
        (part >= MIN_PART_PACKETS && packets - part >= MIN_PART_PACKETS).then_some(Placement::Split {
            first,
            second,
            share,
        })
    }

    /// Time of a split batch in nanoseconds if neither device slows the other.
    pub fn predict_split(&self, placement: &Placement, class: usize, packets: usize) -> Option<f64> {
        let Placement::Split { first, second, share } = *placement else { return None };
        let part = Placement::first_part(share, packets);
        let first = self.predict(&Placement::Single(first), class, part)?;
        Some(first.max(self.predict(&Placement::Single(second), class, packets - part)?))
    }

    /// Returns which devices are the best, or nearly, for batches of some size and class.
    pub fn useful_devices(&self) -> Vec<bool> {
        let mut worth = vec![false; self.devices.len()];
        for class in 0..LENGTH_CLASSES.len() {
            for packets in SWEEP_SIZES {
                let one: Vec<_> =
                    (0..worth.len()).map(|device| self.predict(&Placement::Single(device), class, packets)).collect();
                let best = one.iter().flatten().copied().fold(f64::INFINITY, f64::min);
                for (worth, ns) in worth.iter_mut().zip(one) {
                    *worth |= ns.is_some_and(|ns| ns <= best * USEFUL_COST_RATIO);
                }
                if let Some((Placement::Split { first, second, .. }, _)) = self.cheapest(class, packets) {
                    (worth[first], worth[second]) = (true, true);
                }
            }
        }
        worth
    }

    /// Returns the best device if all batches, about this large and of any length, must go to the
    /// same one: for filters with state.
    pub fn best_single_device(&self, packets: usize) -> Option<usize> {
        let total = |device: usize| {
            let costs = (0..LENGTH_CLASSES.len()).map(|class| self.predict(&Placement::Single(device), class, packets));
            costs.sum::<Option<f64>>()
        };
        let known = (0..self.devices.len()).filter_map(|device| Some((device, total(device)?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(device, _)| device)
    }
}

/// Returns the class of packets of this length.
pub fn length_class(length: u32) -> usize {
    // The limits are the geometric means of neighbouring lengths.
    match length {
        0..=181 => 0,
        182..=880 => 1,
        _ => 2,
    }
}
