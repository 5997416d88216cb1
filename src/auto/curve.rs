//! Cost of a batch on one device as a function of its number of packets.

use serde::{Deserialize, Serialize};

/// Weight of one measurement in a correction: a single outlier changes little, ten measurements
/// most.
const CORRECTION_WEIGHT: f64 = 0.2;

/// Measurements are clamped to this factor above or below the expected cost.
const MAX_CORRECTION: f64 = 4.0;

/// Piecewise linear cost of a batch in nanoseconds. Beyond the largest size it continues with the
/// cost per packet of large batches; below the smallest it tends to the fixed cost that the first
/// two sizes imply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, f64)>", into = "Vec<(u32, f64)>")]
pub struct CostCurve {
    /// Number of packets and nanoseconds, in ascending order of packets.
    points: Vec<(u32, f64)>,
}

/// Points that no curve of costs can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("impossible costs")]
pub struct ImpossibleCosts;

impl CostCurve {
    /// Creates a curve through points of packets and nanoseconds.
    ///
    /// # Errors
    /// If there is no point, they are not in ascending order, or a cost is not positive and finite.
    pub fn new(points: Vec<(u32, f64)>) -> Result<CostCurve, ImpossibleCosts> {
        let ascend = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let are_costs = points.iter().all(|&(packets, ns)| packets > 0 && ns.is_finite() && ns > 0.0);
        match !points.is_empty() && ascend && are_costs {
            true => Ok(CostCurve { points }),
            false => Err(ImpossibleCosts),
        }
    }

    /// Returns the measured points: packets and nanoseconds.
    pub fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// Cost of a batch of `packets` in nanoseconds.
    pub fn cost_at(&self, packets: usize) -> f64 {
        let packets = packets as f64;
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if packets <= f64::from(first.0) {
            let fixed = self.fixed_ns();
            return fixed + (first.1 - fixed) * packets / f64::from(first.0);
        }
        if packets > f64::from(last.0) {
            return last.1 + self.packet_ns() * (packets - f64::from(last.0));
        }
        let above = self.points.iter().position(|point| f64::from(point.0) >= packets).unwrap_or(self.points.len() - 1);
        let (low, high) = (self.points[above - 1], self.points[above]);
        low.1 + (high.1 - low.1) * (packets - f64::from(low.0)) / f64::from(high.0 - low.0)
    }

    /// Fixed cost of a batch in nanoseconds.
    pub fn fixed_ns(&self) -> f64 {
        match self.points[..] {
            [first, second, ..] => {
                let packet = (second.1 - first.1) / f64::from(second.0 - first.0);
                (first.1 - packet * f64::from(first.0)).clamp(0.0, first.1)
            }
            _ => 0.0,
        }
    }

    /// Cost of a further packet in large batches, in nanoseconds: the slope from an eighth of the
    /// largest size on, or the whole cost per packet if there is a single size.
    pub fn packet_ns(&self) -> f64 {
        let last = self.points[self.points.len() - 1];
        let before = self.points.iter().rev().find(|point| point.0 <= last.0 / 8);
        let before = before.or_else(|| self.points.first().filter(|first| first.0 < last.0));
        match before {
            Some(before) => ((last.1 - before.1) / f64::from(last.0 - before.0)).max(0.0),
            None => last.1 / f64::from(last.0),
        }
    }

    /// Moves the curve towards the measured cost of a batch of `packets`.
    pub fn correct(&mut self, packets: usize, ns: f64) {
        let ratio = (ns / self.cost_at(packets)).clamp(1.0 / MAX_CORRECTION, MAX_CORRECTION);
        if !ratio.is_finite() {
            return;
        }
        let packets = packets.max(1) as f64;
        let above = self.points.iter().position(|point| f64::from(point.0) >= packets);
        match above {
            Some(0) => self.points[0].1 *= ratio.powf(CORRECTION_WEIGHT),
            None => {
                if let Some(last) = self.points.last_mut() {
                    last.1 *= ratio.powf(CORRECTION_WEIGHT);
                }
            }
            Some(above) => {
                let (low, high) = (f64::from(self.points[above - 1].0), f64::from(self.points[above].0));
                // Distribute the correction by the distance to both sizes on a logarithmic scale.
                let nearness = (packets / low).ln() / (high / low).ln();
                self.points[above - 1].1 *= ratio.powf(CORRECTION_WEIGHT * (1.0 - nearness));
                self.points[above].1 *= ratio.powf(CORRECTION_WEIGHT * nearness);
            }
        }
    }
}

impl TryFrom<Vec<(u32, f64)>> for CostCurve {
    type Error = ImpossibleCosts;

    fn try_from(points: Vec<(u32, f64)>) -> Result<CostCurve, ImpossibleCosts> {
        CostCurve::new(points)
    }
}

impl From<CostCurve> for Vec<(u32, f64)> {
    fn from(curve: CostCurve) -> Self {
        curve.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with this fixed cost and cost per packet.
    fn line(fixed: f64, packet: f64) -> CostCurve {
        let sizes = [64u32, 256, 1024, 4096, 16_384, 65_536];
        CostCurve::new(sizes.iter().map(|&n| (n, fixed + packet * f64::from(n))).collect()).unwrap()
    }

    #[test]
    fn a_linear_cost_is_reproduced_at_all_sizes() {
        for (fixed, packet) in [(50_000.0, 1.5), (300.0, 4.0), (1.0, 100.0)] {
            let curve = line(fixed, packet);
            for packets in [1usize, 10, 64, 65, 100, 5000, 65_536, 65_537, 1 << 20] {
                let (is, expected) = (curve.cost_at(packets), fixed + packet * packets as f64);
                assert!((is / expected - 1.0).abs() < 1e-3, "{fixed}, {packet}: {packets}: {is}, not {expected}");
            }
            assert!((curve.packet_ns() - packet).abs() < 1e-6 && (curve.fixed_ns() / fixed - 1.0).abs() < 0.5);
        }
        let alone = CostCurve::new(vec![(64, 6400.0)]).unwrap();
        assert_eq!((alone.cost_at(1), alone.cost_at(64), alone.cost_at(128)), (100.0, 6400.0, 12_800.0));
    }

    #[test]
    fn impossible_costs_are_rejected() {
        for points in [
            vec![],
            vec![(0, 1.0)],
            vec![(64, 0.0)],
            vec![(64, -1.0)],
            vec![(64, f64::NAN)],
            vec![(64, f64::INFINITY)],
            vec![(64, 1.0), (64, 2.0)],
            vec![(64, 1.0), (32, 2.0)],
        ] {
            assert!(CostCurve::new(points.clone()).is_err(), "{points:?}");
        }
        assert!(serde_json::from_str::<CostCurve>("[[64,1.0],[16,2.0]]").is_err());
        let curve = line(100.0, 3.0);
        assert_eq!(serde_json::from_str::<CostCurve>(&serde_json::to_string(&curve).unwrap()).unwrap(), curve);
    }

    #[test]
    fn measurements_correct_the_curve_and_single_outliers_hardly() {
        for packets in [10usize, 64, 500, 4096, 65_536, 1 << 20] {
            let truth = line(20_000.0, 2.0);
            let mut curve = line(60_000.0, 9.0);
            let before = curve.cost_at(packets);
            curve.correct(packets, before * 1000.0);
            assert!(curve.cost_at(packets) < before * 1.4, "a single outlier");
            for _ in 0..100 {
                curve.correct(packets, truth.cost_at(packets));
            }
            let (is, expected) = (curve.cost_at(packets), truth.cost_at(packets));
            assert!((is / expected - 1.0).abs() < 0.05, "{packets}: {is}, not {expected}");
        }
    }
}
