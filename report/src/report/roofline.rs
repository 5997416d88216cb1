//! Roofline: throughput against bytes moved per packet, under memory and bus bandwidth (Williams,
//! Waterman, Patterson, 2009).

use maud::{Markup, html};

use super::ReportError;
use super::parts::{Cell, details, grid, numbers, table, words};
use super::plot::{Axis, Ceiling, Plot, Point, Series, label_width, placeable, plot_size};
use super::throughput::key;
use super::view::View;
use crate::number::{digits, grouped, trimmed};
use crate::results::{self, Measured};

/// Bandwidth that bounds throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BandwidthLimit {
    Memory,
    Bus,
}

impl BandwidthLimit {
    fn name(self) -> &'static str {
        match self {
            BandwidthLimit::Memory => "memory",
            BandwidthLimit::Bus => "bus",
        }
    }

    fn bytes(self, measured: &Measured) -> Option<f64> {
        match self {
            BandwidthLimit::Memory => measured.memory_bytes,
            BandwidthLimit::Bus => measured.bus_bytes,
        }
        .filter(|bytes| placeable(*bytes))
    }

    /// Whether a ceiling is of this kind, and of a device in the report.
    fn has(self, ceiling: &results::Ceiling, view: &View<'_>) -> bool {
        let shown = ceiling.device.as_deref().is_none_or(|id| view.devices.iter().any(|shown| shown.id == id));
        shown && ceiling.name.contains("bus") == (self == BandwidthLimit::Bus)
    }
}

/// Renders the section; `None` if no bytes were counted.
pub fn section(view: &View<'_>) -> Result<Option<Markup>, ReportError> {
    let groups = [group(view, BandwidthLimit::Memory)?, group(view, BandwidthLimit::Bus)?];
    let key = key(view)?;
    Ok(groups.iter().any(Option::is_some).then(|| html! {
        section #roofline {
            h2 { "Roofline" }
            p {
                "Throughput against the bytes that must move for each packet, at the largest batch of each kind of packets and transfer. On a falling line all "
                "that memory or bus was measured to give is used: what is near it is as fast as this machine lets it be, what is far below is bound by something else."
            }
            (key)
            @for limit in groups.iter().flatten() { (limit) }
        }
    }))
}

/// Renders the plots for memory or for the bus.
fn group(view: &View<'_>, limit: BandwidthLimit) -> Result<Option<Markup>, ReportError> {
    let plots: Vec<_> = view.filters.iter().map(|filter| (*filter, largest(view, filter, limit))).collect();
    let moved = || plots.iter().flat_map(|(_, largest)| largest);
    let (least, most) = moved().fold((f64::INFINITY, 0.0f64), |(low, high), (.., b)| (low.min(*b), high.max(*b)));
    let ceilings: Vec<_> = view.results.ceilings.iter().filter(|c| limit.has(c, view)).collect();
    // Include the ceilings' heights at the middle of the x axis.
    let heights = ceilings.iter().map(|c| c.bytes_per_second.median / 1e6 / (least * most).sqrt());
    let heights = moved().map(|(_, measured, _)| measured.mpps.median).chain(heights);
    let (Some(x), Some(y)) = (Axis::over([least / 1.5, most * 1.5], trimmed), Axis::over(heights, trimmed)) else {
        return Ok(None);
    };
    let ceilings: Vec<_> = ceilings.into_iter().filter_map(line).collect();
    let shown: Vec<_> = plots.iter().filter(|(_, largest)| !largest.is_empty()).collect();
    let captions: Vec<&str> = shown.iter().map(|(filter, _)| *filter).collect();
    let figures = grid(&captions, |place, width| {
        let (filter, largest) = shown[place];
        draw(view, filter, limit, largest, (&x, &y), &ceilings, width)
    })?;
    let rows: Vec<_> = moved().map(|(cell, measured, bytes)| row(cell, measured, *bytes)).collect();
    let names = [words("filter"), words("device"), words("packets"), words("transfer"), words("dispatch")];
    let values = [numbers("batch"), numbers("bytes a packet"), numbers("Mpps"), numbers("GB/s")];
    let columns: Vec<_> = names.into_iter().chain(values).collect();
    let caption = format!("Bytes over the {} for each packet, and throughput", limit.name());
    Ok(Some(html! {
        h3 { @match limit { BandwidthLimit::Memory => "Memory", BandwidthLimit::Bus => "Bus" } }
        (figures)
        (details("The numbers", &table(&caption, &columns, &rows)))
    }))
}

type Moved<'a> = (&'a results::Cell, &'a Measured, f64);

/// Returns the largest batch of each device, packet size and transfer, at its fastest dispatch.
fn largest<'a>(view: &View<'a>, filter: &str, limit: BandwidthLimit) -> Vec<Moved<'a>> {
    let cells = view.results.cells.iter().filter(|c| c.filter == filter);
    let key = |cell: &'a results::Cell| (&cell.device, &cell.packets, &cell.transfer);
    results::largest_batches(cells, key, |_, measured| {
        limit.bytes(measured).filter(|_| placeable(measured.mpps.median))
    })
}

/// Returns a ceiling as a line of constant bytes per second.
fn line(ceiling: &results::Ceiling) -> Option<Ceiling> {
    let rate = ceiling.bytes_per_second.median;
    let whose = ceiling.device.as_ref().map(|device| format!("{device} ")).unwrap_or_default();
    let label = format!("{whose}{}, {} GB/s", ceiling.name, digits(rate / 1e9));
    placeable(rate).then(|| Ceiling { label, ends: [(1e-3, rate / 1e6 / 1e-3), (1e9, rate / 1e6 / 1e9)] })
}

fn draw(
    view: &View<'_>,
    filter: &str,
    limit: BandwidthLimit,
    largest: &[Moved<'_>],
    (x, y): (&Axis, &Axis),
    ceilings: &[Ceiling],
    width: u32,
) -> Result<Markup, ReportError> {
    let series = view.devices.iter().map(|shown| {
        let its = largest.iter().filter(|(cell, ..)| cell.device == shown.id);
        let points = its.map(|(_, measured, bytes)| Point::from_estimate(*bytes, measured.mpps));
        Series { slot: shown.slot, label: String::new(), points: points.collect(), wrong: Vec::new(), joined: false }
    });
    let series: Vec<_> = series.collect();
    let limits = ceilings.iter().map(|c| c.label.as_str()).collect::<Vec<_>>().join("; ");
    let description = format!(
        "Throughput of {filter} against bytes over the {} for each packet. Ceilings: {limits}. The table below has the values.",
        limit.name()
    );
    Plot {
        size: plot_size(width),
        description: &description,
        x,
        x_name: "bytes a packet",
        y,
        y_name: "Mpps",
        label_width: label_width([]),
        series: &series,
        ceilings,
    }
    .draw()
}

fn row(cell: &results::Cell, measured: &Measured, bytes: f64) -> Vec<Cell> {
    let names = [&cell.filter, &cell.device, &cell.packets, &cell.transfer, &cell.dispatch]
        .map(|name| Cell::from(name.as_str()));
    let values = [
        grouped(cell.batch as i64),
        digits(bytes),
        digits(measured.mpps.median),
        digits(measured.mpps.median * 1e6 * bytes / 1e9),
    ];
    names.into_iter().chain(values.map(Cell::from)).collect()
}
