//! What was decided, for people to read.

use std::fmt;

use portcullis_core::device::DeviceInfo;

use super::costs::{Costs, LENGTHS, Plan, SWEEP};
use super::{Decided, Origin, plan_in_words};

/// What the choice of a device for a filter rests on.
#[derive(Debug, Clone)]
pub struct Explanation {
    devices: Vec<DeviceInfo>,
    decided: Decided,
    expected: usize,
}

impl Explanation {
    pub(super) fn new(devices: Vec<DeviceInfo>, decided: Decided, expected: usize) -> Explanation {
        Explanation { devices, decided, expected }
    }

    /// From which number of packets on a batch of a class goes where: ascending, the first from 1 on.
    pub fn crossovers(costs: &Costs, class: usize) -> Vec<(usize, Plan)> {
        let mut all: Vec<(usize, Plan)> = Vec::new();
        let best = |packets| costs.best(class, packets).map(|(plan, _)| plan);
        // Steps of a twelfth of a doubling, and by halves from there.
        let mut before = 1;
        for step in 0..=20 * 12 {
            let packets = 2f64.powf(f64::from(step) / 12.0).round() as usize;
            let Some(plan) = best(packets) else { continue };
            if let Some((_, last)) = all.last()
                && last.is_as(&plan)
            {
                before = packets;
                continue;
            }
            let (mut low, mut high) = (before, packets);
            while high - low > 1 {
                let middle = usize::midpoint(low, high);
                if best(middle).is_some_and(|it| it.is_as(&plan)) { high = middle } else { low = middle }
            }
            all.push((if all.is_empty() { 1 } else { high }, plan));
            before = packets;
        }
        all
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>, costs: &Costs) -> fmt::Result {
        let ids: Vec<String> = self.devices.iter().map(|info| info.id.clone()).collect();
        let width = ids.iter().map(String::len).max().unwrap_or(0).max("packets".len());
        for (class, length) in LENGTHS.into_iter().enumerate() {
            writeln!(f, "\npackets of about {length} bytes, microseconds a batch:")?;
            write!(f, "  {:<width$}", "packets")?;
            SWEEP.iter().try_for_each(|packets| write!(f, " {packets:>9}"))?;
            writeln!(f, "   a batch, and each packet")?;
            for (device, curves) in costs.devices.iter().enumerate() {
                let Some(curves) = curves else { continue };
                write!(f, "  {:<width$}", ids[device])?;
                SWEEP.iter().try_for_each(|&packets| write!(f, " {:>9}", micros(curves[class].at(packets))))?;
                let curve = &curves[class];
                writeln!(f, "   {} us, {:.2} ns", micros(curve.fixed()), curve.packet())?;
            }
            if let Some(split) = &costs.split
                && let Some(curve) = &split.curves[class]
            {
                write!(f, "  {:<width$}", "both")?;
                for packets in SWEEP {
                    let is_known = packets >= curve.points()[0].0 as usize;
                    write!(f, " {:>9}", if is_known { micros(curve.at(packets)) } else { "-".into() })?;
                }
                writeln!(f)?;
            }
            for (packets, plan) in Explanation::crossovers(costs, class) {
                writeln!(f, "  from {packets} packets on: {}", plan_in_words(&plan, &ids))?;
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
            let why = self.decided.left_out.iter().find(|(out, _)| *out == device).map(|(_, why)| why);
            let state = match why {
                Some(why) => format!("left out: {why}"),
                None if self.decided.ready[device] => "in use".into(),
                None if self.decided.alone.is_some() => "not in use".into(),
                None => "not in use: others are clearly better for batches of every size".into(),
            };
            writeln!(f, "  {} ({}): {state}", info.id, info.name)?;
        }
        if let Some(why) = self.decided.alone {
            writeln!(f, "  {why}")?;
        }
        match &self.decided.costs {
            None => writeln!(f, "calibration: none (`portcullis calibrate FILTER` makes one)"),
            Some((costs, origin)) => {
                let origin = match origin {
                    Origin::Kept => "kept by an earlier run, for these devices, drivers and this filter",
                    Origin::Measured => "made for this run, and kept for the next ones",
                };
                writeln!(f, "calibration: {origin}; batches of {} packets are expected", self.expected)?;
                self.costs(f, costs)
            }
        }
    }
}
