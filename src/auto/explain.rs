//! Explains the choice of devices for a filter, for `--explain`.

use std::fmt;

use portcullis_core::device::DeviceInfo;

use super::costs::{Costs, LENGTH_CLASSES, Placement, SWEEP_SIZES};
use super::{CostsOrigin, PlacementOutcome, format_placement};

/// Basis of the choice of devices for a filter. Its `Display` is the explanation.
#[derive(Debug, Clone)]
pub struct Explanation {
    devices: Vec<DeviceInfo>,
    outcome: PlacementOutcome,
    expected: usize,
}

impl Explanation {
    pub(super) fn new(devices: Vec<DeviceInfo>, outcome: PlacementOutcome, expected: usize) -> Explanation {
        Explanation { devices, outcome, expected }
    }

    /// Returns from which number of packets on batches of a class go to which placement, in
    /// ascending order starting at 1.
    pub fn crossovers(costs: &Costs, class: usize) -> Vec<(usize, Placement)> {
        let mut all: Vec<(usize, Placement)> = Vec::new();
        let best = |packets| costs.cheapest(class, packets).map(|(placement, _)| placement);
        // Steps of a twelfth of a power of two, then bisection.
        let mut before = 1;
        for step in 0..=20 * 12 {
            let packets = 2f64.powf(f64::from(step) / 12.0).round() as usize;
            let Some(placement) = best(packets) else { continue };
            if let Some((_, last)) = all.last()
                && last.has_same_devices(&placement)
            {
                before = packets;
                continue;
            }
            let (mut low, mut high) = (before, packets);
            while high - low > 1 {
                let middle = usize::midpoint(low, high);
                if best(middle).is_some_and(|it| it.has_same_devices(&placement)) {
                    high = middle
                } else {
                    low = middle
                }
            }
            all.push((if all.is_empty() { 1 } else { high }, placement));
            before = packets;
        }
        all
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>, costs: &Costs) -> fmt::Result {
        let ids: Vec<String> = self.devices.iter().map(|info| info.id.clone()).collect();
        let width = ids.iter().map(String::len).max().unwrap_or(0).max("packets".len());
        for (class, length) in LENGTH_CLASSES.into_iter().enumerate() {
            writeln!(f, "\npackets of about {length} bytes, microseconds a batch:")?;
            write!(f, "  {:<width$}", "packets")?;
            SWEEP_SIZES.iter().try_for_each(|packets| write!(f, " {packets:>9}"))?;
            writeln!(f, "   fixed cost, cost per packet")?;
            for (device, curves) in costs.devices.iter().enumerate() {
                let Some(curves) = curves else { continue };
                write!(f, "  {:<width$}", ids[device])?;
                SWEEP_SIZES
                    .iter()
                    .try_for_each(|&packets| write!(f, " {:>9}", micros(curves[class].cost_at(packets))))?;
                let curve = &curves[class];
                writeln!(f, "   {} us, {:.2} ns", micros(curve.fixed_ns()), curve.packet_ns())?;
            }
            if let Some(split) = &costs.split
                && let Some(curve) = &split.curves[class]
            {
                write!(f, "  {:<width$}", "both")?;
                for packets in SWEEP_SIZES {
                    let is_known = packets >= curve.points()[0].0 as usize;
                    write!(f, " {:>9}", if is_known { micros(curve.cost_at(packets)) } else { "-".into() })?;
                }
                writeln!(f)?;
            }
            for (packets, placement) in Explanation::crossovers(costs, class) {
                writeln!(f, "  from {packets} packets on: {}", format_placement(&placement, &ids))?;
            }
        }
        Ok(())
    }
}

fn micros(ns: f64) -> String {
    match ns / 1e3 {
        us @ ..10.0 => format!("{us:.2}"),
        us @ ..100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device auto:")?;
        for (device, info) in self.devices.iter().enumerate() {
            let why = self.outcome.excluded.iter().find(|(out, _)| *out == device).map(|(_, why)| why);
            let state = match why {
                Some(why) => format!("excluded: {why}"),
                None if self.outcome.loaded[device] => "in use".into(),
                None if self.outcome.single_device_reason.is_some() => "not in use".into(),
                None => "not in use: others are clearly better at every batch size".into(),
            };
            writeln!(f, "  {} ({}): {state}", info.id, info.name)?;
        }
        if let Some(why) = self.outcome.single_device_reason {
            writeln!(f, "  {why}")?;
        }
        match &self.outcome.costs {
            None => writeln!(f, "calibration: none (run `portcullis calibrate FILTER` to make one)"),
            Some((costs, origin)) => {
                let origin = match origin {
                    CostsOrigin::Cached => "cached by an earlier run for these devices, drivers and this filter",
                    CostsOrigin::Measured => "made for this run and cached for later ones",
                };
                writeln!(f, "calibration: {origin}; expected batch size: {} packets", self.expected)?;
                self.costs(f, costs)
            }
        }
    }
}
