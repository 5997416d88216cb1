//! Selection of results for plots and tables.

use std::collections::BTreeMap;

use super::fastest::Curve;
use super::plot::{Ceiling, Point, Series, Slot, placeable};
use crate::results::{Cell, Device, Measured, Outcome, Results};

/// A device as the report shows it.
#[derive(Debug, Clone)]
pub struct DeviceView {
    /// Colour slot of the device.
    pub slot: Slot,
    /// Device id.
    pub id: String,
    /// Name that the device reports.
    pub name: String,
}

/// Results, indexed for the report.
#[derive(Debug)]
pub struct View<'a> {
    /// The results.
    pub results: &'a Results,
    /// Devices in the order in which they are listed.
    pub devices: Vec<DeviceView>,
    /// Filters in the order in which they were measured.
    pub filters: Vec<&'a str>,
    /// Packet sizes, the smallest first.
    pub packets: Vec<&'a str>,
    /// Transfers in the order in which they were measured.
    pub transfers: Vec<&'a str>,
}

impl<'a> View<'a> {
    /// Indexes the results.
    pub fn new(results: &'a Results) -> View<'a> {
        let mut devices: Vec<DeviceView> = Vec::new();
        let listed = results.devices.iter().map(|Device { id, name, .. }| (id, name));
        for (id, name) in listed.chain(results.cells.iter().map(|cell| (&cell.device, &cell.device))) {
            if devices.iter().all(|shown| shown.id != *id) {
                devices.push(DeviceView { slot: Slot(devices.len()), id: id.clone(), name: name.clone() });
            }
        }
        let mut filters: Vec<&str> = Vec::new();
        let mut transfers: Vec<&str> = Vec::new();
        let mut packets: Vec<(&str, f64)> = Vec::new();
        for cell in &results.cells {
            if !filters.contains(&cell.filter.as_str()) {
                filters.push(&cell.filter);
            }
            if !transfers.contains(&cell.transfer.as_str()) {
                transfers.push(&cell.transfer);
            }
            if packets.iter().all(|(name, _)| *name != cell.packets) {
                packets.push((&cell.packets, cell.packet_bytes));
            }
        }
        packets.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let packets = packets.into_iter().map(|(name, _)| name).collect();
        View { results, devices, filters, packets, transfers }
    }

    /// Returns the cells of a filter and packet size.
    pub fn cells(&self, filter: &str, packets: &str) -> impl Iterator<Item = &'a Cell> {
        self.results.cells.iter().filter(move |cell| cell.filter == filter && cell.packets == packets)
    }

    /// Returns a device's fastest cell at each batch size, over all transfers and dispatch methods,
    /// for packets that start in host memory.
    pub fn best(&self, filter: &str, packets: &str, device: &str) -> Vec<(&'a Cell, &'a Measured)> {
        self.best_of(filter, packets, device, &|cell| !cell.is_resident())
    }

    /// Returns the fastest measurement for packets already in the device's memory; if that is host
    /// memory, for packets in host memory.
    pub fn best_resident(&self, filter: &str, packets: &str, device: &str) -> Vec<(&'a Cell, &'a Measured)> {
        self.best_of(filter, packets, device, &|cell| cell.is_resident() || cell.transfer == "in place")
    }

    fn best_of(
        &self,
        filter: &str,
        packets: &str,
        device: &str,
        wanted: &dyn Fn(&Cell) -> bool,
    ) -> Vec<(&'a Cell, &'a Measured)> {
        let mut best: BTreeMap<u64, (&Cell, &Measured)> = BTreeMap::new();
        for cell in self.cells(filter, packets).filter(|c| c.device == device && wanted(c)) {
            if let Some(measured) = cell.measured()
                && placeable(measured.mpps.median)
                && best.get(&cell.batch).is_none_or(|(_, other)| measured.mpps.median > other.mpps.median)
            {
                best.insert(cell.batch, (cell, measured));
            }
        }
        best.into_values().collect()
    }

    /// Returns a device's throughput against batch size.
    pub fn curve(&self, filter: &str, packets: &str, shown: &DeviceView) -> Curve {
        Curve { slot: shown.slot, name: shown.id.clone(), points: points(self.best(filter, packets, &shown.id)) }
    }

    /// Throughput of each device over the batch size, as series of a plot.
    pub fn throughput(&self, filter: &str, packets: &str) -> Vec<Series> {
        self.series(filter, packets, false)
    }

    /// Throughput of resident packets over the batch size, as series of a plot.
    pub fn resident(&self, filter: &str, packets: &str) -> Vec<Series> {
        self.series(filter, packets, true)
    }

    fn series(&self, filter: &str, packets: &str, resident: bool) -> Vec<Series> {
        let best = if resident { Self::best_resident } else { Self::best };
        let series = self.devices.iter().map(|shown| Series {
            slot: shown.slot,
            label: shown.id.clone(),
            points: points(best(self, filter, packets, &shown.id)),
            wrong: self
                .cells(filter, packets)
                .filter(|c| c.device == shown.id && c.is_resident() == resident)
                .filter(|c| matches!(c.outcome, Outcome::Mismatch { .. }))
                .map(|c| c.batch as f64)
                .collect(),
            joined: true,
        });
        series.filter(|s| !s.points.is_empty() || !s.wrong.is_empty()).collect()
    }

    /// Returns the highest rate that each measured bandwidth allows, by its name.
    pub fn ceilings(&self, filter: &str, packets: &str) -> Vec<Ceiling> {
        let mut highest: BTreeMap<&str, f64> = BTreeMap::new();
        for cell in self.cells(filter, packets).filter(|c| !c.is_resident()) {
            if let Some(measured) = cell.measured()
                && let Some((share, name)) = &measured.of_ceiling
                && placeable(measured.mpps.median / share)
            {
                let height = highest.entry(name).or_default();
                *height = height.max(measured.mpps.median / share);
            }
        }
        let line = |(name, height): (&str, f64)| Ceiling { label: name.into(), ends: [(1.0, height), (1e10, height)] };
        highest.into_iter().map(line).collect()
    }
}

fn points(best: Vec<(&Cell, &Measured)>) -> Vec<Point> {
    best.into_iter().map(|(cell, measured)| Point::from_estimate(cell.batch as f64, measured.mpps)).collect()
}
