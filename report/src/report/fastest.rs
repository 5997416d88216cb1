//! Determines the fastest device over ranges of batch sizes, from curves measured at some sizes.

use super::bar_charts::FastestRange;
use super::plot::{Point, Slot};

/// A device's throughput against batch size, in ascending order.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Colour slot of the device.
    pub slot: Slot,
    /// Device id.
    pub name: String,
    /// Packets per batch, and rate in Mpps.
    pub points: Vec<Point>,
}

impl Curve {
    fn at(&self, batch: f64) -> Option<&Point> {
        self.points.iter().find(|point| point.x == batch)
    }
}

/// Returns the ranges in which one device is the fastest. A device keeps its range until another is
/// faster by more than the noise; the next is, of those within the noise, the one that stays within
/// it longest, so that noise alone starts no new range. A range ends where two curves cross.
pub fn fastest_ranges(curves: &[Curve]) -> Vec<FastestRange> {
    let mut batches: Vec<f64> = curves.iter().flat_map(|c| c.points.iter().map(|p| p.x)).collect();
    batches.sort_by(f64::total_cmp);
    batches.dedup();
    let Some((&first, &last)) = batches.first().zip(batches.last()) else { return Vec::new() };
    // Give the range of a single batch size some width.
    let room = if first == last { 1.5 } else { 1.0 };
    // The fastest devices within the noise, the fastest first.
    let leaders: Vec<Vec<&Curve>> = batches.iter().map(|batch| leaders(curves, *batch)).collect();

    let mut fastest_ranges: Vec<FastestRange> = Vec::new();
    let mut before: Option<(f64, &Curve)> = None;
    for (place, batch) in batches.iter().copied().enumerate() {
        let stays = before.map(|(_, curve)| curve).filter(|old| leaders[place].iter().any(|c| c.slot == old.slot));
        let holds =
            |curve: &Curve| leaders[place..].iter().take_while(|l| l.iter().any(|c| c.slot == curve.slot)).count();
        let longest = || leaders[place].iter().copied().rev().max_by_key(|curve| holds(curve));
        let Some(best) = stays.or_else(longest) else { continue };
        let close = leaders[place].len() > 1;
        let same = fastest_ranges.last().is_some_and(|fastest| fastest.slot == best.slot && fastest.close == close);
        if !same {
            let from = match before {
                None => first / room,
                Some((earlier, other)) if other.slot != best.slot => crossing(other, best, earlier, batch),
                Some((earlier, _)) => (earlier * batch).sqrt(),
            };
            if let Some(fastest) = fastest_ranges.last_mut() {
                fastest.to = from;
            }
            fastest_ranges.push(FastestRange {
                slot: best.slot,
                name: best.name.clone(),
                from,
                to: last * room,
                close,
            });
        }
        before = Some((batch, best));
    }
    fastest_ranges
}

/// Returns the devices whose intervals overlap that of the fastest at a batch size, fastest first.
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

/// Returns the batch size at which a device overtakes another, interpolated on logarithmic axes;
/// the geometric mean if one was not measured at both sizes.
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
    fn ranges_end_where_lines_cross() {
        // Constant against proportional: y = 10 and y = x / 100 meet at 1,000.
        let flat = curve(0, 0.01, &[(100.0, 10.0), (10_000.0, 10.0)]);
        let rising = curve(1, 0.01, &[(100.0, 1.0), (10_000.0, 100.0)]);
        let fastest_ranges = fastest_ranges(&[rising, flat]);
        assert_eq!(fastest_ranges.iter().map(|r| r.slot.0).collect::<Vec<_>>(), [0, 1]);
        assert!((fastest_ranges[0].to / 1_000.0 - 1.0).abs() < 1e-9, "{fastest_ranges:?}");
        assert_eq!(
            (fastest_ranges[0].from, fastest_ranges[0].to, fastest_ranges[1].to),
            (100.0, fastest_ranges[1].from, 10_000.0)
        );
        assert!(fastest_ranges.iter().all(|r| !r.close));
    }

    #[test]
    fn differences_within_the_noise_are_marked() {
        let a = curve(0, 0.1, &[(100.0, 10.0), (1_000.0, 20.0)]);
        let b = curve(1, 0.1, &[(100.0, 9.0), (1_000.0, 10.0)]);
        let fastest_ranges = fastest_ranges(&[a, b]);
        assert_eq!(fastest_ranges.iter().map(|r| (r.slot.0, r.close)).collect::<Vec<_>>(), [(0, true), (0, false)]);
    }

    #[test]
    fn noise_starts_no_new_range() {
        let a = curve(0, 0.1, &[(100.0, 10.0), (1_000.0, 20.0), (10_000.0, 30.0)]);
        let b = curve(1, 0.1, &[(100.0, 10.5), (1_000.0, 19.0), (10_000.0, 20.0)]);
        let c = curve(2, 0.1, &[(100.0, 11.0), (1_000.0, 1.0), (10_000.0, 1.0)]);
        // The second and the third are a little faster at first, and the first is faster in the
        // end.
        let fastest_ranges = fastest_ranges(&[a, b, c]);
        assert_eq!(fastest_ranges.iter().map(|r| (r.slot.0, r.close)).collect::<Vec<_>>(), [(0, true), (0, false)]);
    }

    #[test]
    fn gaps_single_batches_and_no_data() {
        assert_eq!(fastest_ranges(&[]), []);
        assert_eq!(fastest_ranges(&[curve(0, 0.1, &[])]), []);
        let one = fastest_ranges(&[curve(0, 0.1, &[(64.0, 1.0)])]);
        assert!(one.len() == 1 && one[0].from < 64.0 && one[0].to > 64.0, "{one:?}");
        // Each device was measured at batch sizes of its own.
        let apart = fastest_ranges(&[curve(0, 0.1, &[(100.0, 5.0)]), curve(1, 0.1, &[(10_000.0, 5.0)])]);
        assert_eq!(apart.iter().map(|r| (r.slot.0, r.to.round())).collect::<Vec<_>>(), [(0, 1_000.0), (1, 10_000.0)]);
    }
}
