//! What a batch costs on a device, by its number of packets.

use serde::{Deserialize, Serialize};

/// How far one measurement moves a curve towards itself: a single odd one changes little, and ten of them most.
const WEIGHT: f64 = 0.2;

/// One measurement counts for no more than this many times what was believed, or this part of it.
const ODD: f64 = 4.0;

/// Nanoseconds a batch at a few sizes, and by straight lines between them. Beyond the largest size a packet costs what it
/// did up to there; below the smallest a batch keeps the fixed cost that the first two sizes tell of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, f64)>", into = "Vec<(u32, f64)>")]
pub struct Curve {
    /// Packets and nanoseconds, ascending by packets.
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// Through these points: packets and nanoseconds.
    ///
    /// # Errors
    /// Where there is none, they do not ascend, or a cost is none.
    pub fn new(points: Vec<(u32, f64)>) -> Result<Curve, String> {
        let ascend = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let are_costs = points.iter().all(|&(packets, ns)| packets > 0 && ns.is_finite() && ns > 0.0);
        match !points.is_empty() && ascend && are_costs {
            true => Ok(Curve { points }),
            false => Err("impossible costs".into()),
        }
    }

    /// Packets and nanoseconds of what was measured.
    pub fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// Nanoseconds for a batch of so many packets.
    pub fn at(&self, packets: usize) -> f64 {
        let packets = packets as f64;
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if packets <= f64::from(first.0) {
            let fixed = self.fixed();
            return fixed + (first.1 - fixed) * packets / f64::from(first.0);
        }
        if packets > f64::from(last.0) {
            return last.1 + self.packet() * (packets - f64::from(last.0));
        }
        let above = self.points.iter().position(|point| f64::from(point.0) >= packets).unwrap_or(self.points.len() - 1);
        let (low, high) = (self.points[above - 1], self.points[above]);
        low.1 + (high.1 - low.1) * (packets - f64::from(low.0)) / f64::from(high.0 - low.0)
    }

    /// Nanoseconds that a batch costs however few packets it has.
    pub fn fixed(&self) -> f64 {
        match self.points[..] {
            [first, second, ..] => {
                let packet = (second.1 - first.1) / f64::from(second.0 - first.0);
                (first.1 - packet * f64::from(first.0)).clamp(0.0, first.1)
            }
            _ => 0.0,
        }
    }

    /// Nanoseconds that one more packet costs in large batches: from an eighth of the largest size on, or all of its cost
    /// where that is the only one.
    pub fn packet(&self) -> f64 {
        let last = self.points[self.points.len() - 1];
        let before = self.points.iter().rev().find(|point| point.0 <= last.0 / 8);
        let before = before.or_else(|| self.points.first().filter(|first| first.0 < last.0));
        match before {
            Some(before) => ((last.1 - before.1) / f64::from(last.0 - before.0)).max(0.0),
            None => last.1 / f64::from(last.0),
        }
    }

    /// Moves the curve towards what a batch of so many packets has cost now.
    pub fn correct(&mut self, packets: usize, ns: f64) {
        let ratio = (ns / self.at(packets)).clamp(1.0 / ODD, ODD);
        if !ratio.is_finite() {
            return;
        }
        let packets = packets.max(1) as f64;
        let above = self.points.iter().position(|point| f64::from(point.0) >= packets);
        match above {
            Some(0) => self.points[0].1 *= ratio.powf(WEIGHT),
            None => {
                if let Some(last) = self.points.last_mut() {
                    last.1 *= ratio.powf(WEIGHT);
                }
            }
            Some(above) => {
                let (low, high) = (f64::from(self.points[above - 1].0), f64::from(self.points[above].0));
                // As near as each is, by orders of magnitude.
                let nearness = (packets / low).ln() / (high / low).ln();
                self.points[above - 1].1 *= ratio.powf(WEIGHT * (1.0 - nearness));
                self.points[above].1 *= ratio.powf(WEIGHT * nearness);
            }
        }
    }
}

impl TryFrom<Vec<(u32, f64)>> for Curve {
    type Error = String;

    fn try_from(points: Vec<(u32, f64)>) -> Result<Curve, String> {
        Curve::new(points)
    }
}

impl From<Curve> for Vec<(u32, f64)> {
    fn from(curve: Curve) -> Self {
        curve.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of this fixed cost and this cost a packet.
    fn line(fixed: f64, packet: f64) -> Curve {
        let sizes = [64u32, 256, 1024, 4096, 16_384, 65_536];
        Curve::new(sizes.iter().map(|&n| (n, fixed + packet * f64::from(n))).collect()).unwrap()
    }

    #[test]
    fn a_line_is_a_line_everywhere() {
        for (fixed, packet) in [(50_000.0, 1.5), (300.0, 4.0), (1.0, 100.0)] {
            let curve = line(fixed, packet);
            for packets in [1usize, 10, 64, 65, 100, 5000, 65_536, 65_537, 1 << 20] {
                let (is, expected) = (curve.at(packets), fixed + packet * packets as f64);
                assert!((is / expected - 1.0).abs() < 1e-3, "{fixed}, {packet}: {packets}: {is}, not {expected}");
            }
            assert!((curve.packet() - packet).abs() < 1e-6 && (curve.fixed() / fixed - 1.0).abs() < 0.5);
        }
        let alone = Curve::new(vec![(64, 6400.0)]).unwrap();
        assert_eq!((alone.at(1), alone.at(64), alone.at(128)), (100.0, 6400.0, 12_800.0));
    }

    #[test]
    fn impossible_costs_are_no_curve() {
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
            assert!(Curve::new(points.clone()).is_err(), "{points:?}");
        }
        assert!(serde_json::from_str::<Curve>("[[64,1.0],[16,2.0]]").is_err());
        let curve = line(100.0, 3.0);
        assert_eq!(serde_json::from_str::<Curve>(&serde_json::to_string(&curve).unwrap()).unwrap(), curve);
    }

    #[test]
    fn measurements_correct_it_and_single_ones_hardly() {
        for packets in [10usize, 64, 500, 4096, 65_536, 1 << 20] {
            let truth = line(20_000.0, 2.0);
            let mut curve = line(60_000.0, 9.0);
            let before = curve.at(packets);
            curve.correct(packets, before * 1000.0);
            assert!(curve.at(packets) < before * 1.4, "one stall");
            for _ in 0..100 {
                curve.correct(packets, truth.at(packets));
            }
            let (is, expected) = (curve.at(packets), truth.at(packets));
            assert!((is / expected - 1.0).abs() < 0.05, "{packets}: {is}, not {expected}");
        }
    }
}
