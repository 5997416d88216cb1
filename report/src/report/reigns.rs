//! Which device is the fastest at which batch, from curves that were measured at some batches only.

use super::plot::{Point, Slot};
use super::strips::FastestRange;

/// A device's throughput against batch sizes, which rise.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Whose.
    pub slot: Slot,
    /// Device id.
    pub name: String,
    /// Packets in a batch, and millions of packets a second.
    pub points: Vec<Point>,
}

impl Curve {
    fn at(&self, batch: f64) -> Option<&Point> {
        self.points.iter().find(|point| point.x == batch)
    }
}

/// Who is the fastest where. A device stays so while no other is faster by more than the noise, and
/// of those that are within it when one is looked for, that is taken which will stay so the
/// longest: noise alone changes nobody's mind. Between two batches one takes over where their lines
/// cross.
pub fn reigns(curves: &[Curve]) -> Vec<FastestRange> {
    let mut batches: Vec<f64> = curves.iter().flat_map(|c| c.points.iter().map(|p| p.x)).collect();
    batches.sort_by(f64::total_cmp);
    batches.dedup();
    let Some((&first, &last)) = batches.first().zip(batches.last()) else { return Vec::new() };
    // A single batch has no width of its own.
    let room = if first == last { 1.5 } else { 1.0 };
    // Those that are the fastest within the noise, the fastest first.
    let leaders: Vec<Vec<&Curve>> = batches.iter().map(|batch| leaders(curves, *batch)).collect();

    let mut reigns: Vec<FastestRange> = Vec::new();
    let mut before: Option<(f64, &Curve)> = None;
    for (place, batch) in batches.iter().copied().enumerate() {
        let stays = before.map(|(_, curve)| curve).filter(|old| leaders[place].iter().any(|c| c.slot == old.slot));
        let holds =
            |curve: &Curve| leaders[place..].iter().take_while(|l| l.iter().any(|c| c.slot == curve.slot)).count();
        let longest = || leaders[place].iter().copied().rev().max_by_key(|curve| holds(curve));
        let Some(best) = stays.or_else(longest) else { continue };
        let close = leaders[place].len() > 1;
        let same = reigns.last().is_some_and(|reign| reign.slot == best.slot && reign.close == close);
        if !same {
            let from = match before {
                None => first / room,
                Some((earlier, other)) if other.slot != best.slot => crossing(other, best, earlier, batch),
                Some((earlier, _)) => (earlier * batch).sqrt(),
            };
            if let Some(reign) = reigns.last_mut() {
                reign.to = from;
            }
            reigns.push(FastestRange { slot: best.slot, name: best.name.clone(), from, to: last * room, close });
        }
        before = Some((batch, best));
    }
    reigns
}

/// Devices whose interval reaches into the fastest one's at a batch, the fastest first.
fn leaders(curves: &[Curve], batch: f64) -> Vec<&Curve> {
    let mut there: Vec<(&Curve, &Point)> = curves.iter().filter_map(|c| Some((c, c.at(batch)?))).collect();
    there.sort_by(|(_, a), (_, b)| b.y.total_cmp(&a.y));
    let least = there.first().map_or(f64::INFINITY, |(_, point)| point.low);
    there
        .into_iter()
        .enumerate()
        .filter(|(place, (_, point))| *place == 0 || point.high >= least)
        .map(|(_, (curve, _))| curve)
        .collect()
}

/// Where a device overtakes another between two batches, by straight lines over logarithmic axes;
/// half way where one of the two was not measured at both.
fn crossing(slower: &Curve, faster: &Curve, from: f64, to: f64) -> f64 {
    let lead = |batch: f64| Some((slower.at(batch)?.y / faster.at(batch)?.y).ln());
    match (lead(from), lead(to)) {
        (Some(before), Some(after)) if before.is_finite() && after.is_finite() && before > after => {
            from * (to / from).powf((before / (before - after)).clamp(0.0, 1.0))
        }
        _ => (from * to).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(slot: usize, noise: f64, points: &[(f64, f64)]) -> Curve {
        let points =
            points.iter().map(|(x, y)| Point { x: *x, y: *y, low: y * (1.0 - noise), high: y * (1.0 + noise) });
        Curve { slot: Slot(slot), name: format!("d{slot}"), points: points.collect() }
    }

    #[test]
    fn one_takes_over_where_lines_cross() {
        // Constant against proportional: y = 10 and y = x / 100 meet at 1,000.
        let flat = curve(0, 0.01, &[(100.0, 10.0), (10_000.0, 10.0)]);
        let rising = curve(1, 0.01, &[(100.0, 1.0), (10_000.0, 100.0)]);
        let reigns = reigns(&[rising, flat]);
        assert_eq!(reigns.iter().map(|r| r.slot.0).collect::<Vec<_>>(), [0, 1]);
        assert!((reigns[0].to / 1_000.0 - 1.0).abs() < 1e-9, "{reigns:?}");
        assert_eq!((reigns[0].from, reigns[0].to, reigns[1].to), (100.0, reigns[1].from, 10_000.0));
        assert!(reigns.iter().all(|r| !r.close));
    }

    #[test]
    fn what_is_within_the_noise_is_said_to_be() {
        let a = curve(0, 0.1, &[(100.0, 10.0), (1_000.0, 20.0)]);
        let b = curve(1, 0.1, &[(100.0, 9.0), (1_000.0, 10.0)]);
        let reigns = reigns(&[a, b]);
        assert_eq!(reigns.iter().map(|r| (r.slot.0, r.close)).collect::<Vec<_>>(), [(0, true), (0, false)]);
    }

    #[test]
    fn noise_changes_nobodys_mind() {
        let a = curve(0, 0.1, &[(100.0, 10.0), (1_000.0, 20.0), (10_000.0, 30.0)]);
        let b = curve(1, 0.1, &[(100.0, 10.5), (1_000.0, 19.0), (10_000.0, 20.0)]);
        let c = curve(2, 0.1, &[(100.0, 11.0), (1_000.0, 1.0), (10_000.0, 1.0)]);
        // The second and the third are a little faster at first, and the first is faster in the
        // end.
        let reigns = reigns(&[a, b, c]);
        assert_eq!(reigns.iter().map(|r| (r.slot.0, r.close)).collect::<Vec<_>>(), [(0, true), (0, false)]);
    }

    #[test]
    fn gaps_single_batches_and_nothing_at_all() {
        assert_eq!(reigns(&[]), []);
        assert_eq!(reigns(&[curve(0, 0.1, &[])]), []);
        let one = reigns(&[curve(0, 0.1, &[(64.0, 1.0)])]);
        assert!(one.len() == 1 && one[0].from < 64.0 && one[0].to > 64.0, "{one:?}");
        // Each was measured at its own batches only.
        let apart = reigns(&[curve(0, 0.1, &[(100.0, 5.0)]), curve(1, 0.1, &[(10_000.0, 5.0)])]);
        assert_eq!(apart.iter().map(|r| (r.slot.0, r.to.round())).collect::<Vec<_>>(), [(0, 1_000.0), (1, 10_000.0)]);
    }
}
