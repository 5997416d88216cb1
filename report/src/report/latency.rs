//! Latency against load: at a steady rate, and by batch size.

use maud::{Markup, html};

use super::ReportError;
use super::parts::{Cell, Column, details, grid, numbers, table, words};
use super::plot::{Axis, Plot, Point, Series, label_width, placeable, plot_size};
use super::tables::{LONGEST, longest};
use super::throughput::{key, rows, section as kinds_of};
use super::view::{DeviceView, View};
use crate::number::{digits, grouped, tick_time, time, trimmed};
use crate::results::packets_in_words;
use crate::results::{self, Latency, Measured};

/// Renders the section: for each packet size, plots at a steady rate and by batch size.
pub fn section(view: &View<'_>) -> Result<Markup, ReportError> {
    let mut kinds = Vec::new();
    for packets in &view.packets {
        let steady = Group {
            description: "Latency of batches that come at a steady rate",
            y_name: "from when it was due to its verdicts",
            plots: view.filters.iter().map(|f| (*f, series(view, |d| loads(view, f, packets, d)))).collect(),
        };
        let growing = Group {
            description: "Latency of batches as they grow",
            y_name: "from submission to verdicts",
            plots: view.filters.iter().map(|f| (*f, series(view, |d| sizes(view, f, packets, d)))).collect(),
        };
        let (steady, growing) = (steady.draw(packets)?, growing.draw(packets)?);
        if steady.is_none() && growing.is_none() {
            continue;
        }
        kinds.push((
            packets_in_words(packets),
            html! {
                @if let Some(steady) = steady {
                    h4 { "At a steady rate" }
                    p { "Batches come at shares of the rate that was measured, each device with the batch size at which it was the fastest." }
                    (steady)
                    (load_table(view, packets))
                }
                @if let Some(growing) = growing {
                    h4 { "As batches grow" }
                    p { "One batch at a time: how long it takes, against the throughput that is reached with batches of that size. They grow along each line." }
                    (growing)
                    (batch_size_table(view, packets))
                }
            },
        ));
    }
    Ok(kinds_of(
        "latency",
        "Latency against load",
        &kinds,
        &key(view)?,
        &html! { p { "The lines are p99: 99 of 100 batches take no longer. Bands reach from p50 up to p99.9." } },
    ))
}

/// Plots with the same axes, one for each filter.
struct Group<'a> {
    description: &'a str,
    y_name: &'a str,
    plots: Vec<(&'a str, Vec<Series>)>,
}

impl Group<'_> {
    fn draw(&self, packets: &str) -> Result<Option<Markup>, ReportError> {
        let points = || self.plots.iter().flat_map(|(_, series)| series).flat_map(|s| &s.points);
        let times = points().flat_map(|p| [p.low, p.y, p.high]);
        let (Some(x), Some(y)) = (Axis::over(points().map(|p| p.x), trimmed), Axis::over(times, tick_time)) else {
            return Ok(None);
        };
        let label_width = label_width(self.plots.iter().flat_map(|(_, series)| series).map(|s| s.label.as_str()));
        let plots: Vec<_> = self.plots.iter().filter(|(_, series)| !series.is_empty()).collect();
        let captions: Vec<&str> = plots.iter().map(|(filter, _)| *filter).collect();
        let draw = |place: usize, width| {
            let (filter, series) = plots[place];
            let description = format!(
                "{}, {filter}, {}. The table below has the values.",
                self.description,
                packets_in_words(packets)
            );
            Plot {
                size: plot_size(width),
                description: &description,
                x: &x,
                x_name: "Mpps",
                y: &y,
                y_name: self.y_name,
                label_width,
                series,
                ceilings: &[],
            }
            .draw()
        };
        grid(&captions, draw).map(Some)
    }
}

/// Returns a series for each device that has points.
fn series(view: &View<'_>, points: impl Fn(&DeviceView) -> Vec<(f64, Latency)>) -> Vec<Series> {
    let series = view.devices.iter().map(|shown| {
        let points = points(shown).into_iter().filter_map(|(mpps, latency)| {
            let point = Point { x: mpps, y: latency.p99, low: latency.p50, high: latency.p999 };
            [point.x, point.y, point.low, point.high].into_iter().all(placeable).then_some(point)
        });
        Series { slot: shown.slot, label: shown.id.clone(), points: points.collect(), wrong: Vec::new(), joined: true }
    });
    series.filter(|s| !s.points.is_empty()).collect()
}

/// Returns the rate in Mpps and the latency at each batch size, the smallest first.
fn sizes(view: &View<'_>, filter: &str, packets: &str, shown: &DeviceView) -> Vec<(f64, Latency)> {
    let best = view.best(filter, packets, &shown.id);
    best.into_iter().map(|(_, measured)| (measured.mpps.median, measured.latency)).collect()
}

/// Returns the fastest cell of a device among those measured under load.
fn loaded<'a>(
    view: &View<'a>,
    filter: &str,
    packets: &str,
    shown: &DeviceView,
) -> Option<(&'a results::Cell, &'a Measured)> {
    let best = view.best(filter, packets, &shown.id).into_iter().filter(|(_, measured)| !measured.loads.is_empty());
    best.max_by(|(_, a), (_, b)| a.mpps.median.total_cmp(&b.mpps.median))
}

/// Returns the rate reached in Mpps and the latency at each offered load, the lowest first.
fn loads(view: &View<'_>, filter: &str, packets: &str, shown: &DeviceView) -> Vec<(f64, Latency)> {
    let loaded = loaded(view, filter, packets, shown);
    loaded
        .map(|(_, measured)| measured.loads.iter().map(|load| (load.mpps, load.latency)).collect())
        .unwrap_or_default()
}

const TIMES: [Column; 3] = [numbers("Mpps"), numbers("p50"), numbers("p99")];

fn times(mpps: f64, latency: Latency, longest: String) -> [Cell; 4] {
    [digits(mpps), time(latency.p50), time(latency.p99), longest].map(Cell::from)
}

fn batch_size_table(view: &View<'_>, packets: &str) -> Markup {
    let columns =
        [words("filter"), words("device"), numbers("batch")].into_iter().chain(TIMES).chain([numbers(LONGEST)]);
    let rows = rows(view, packets, |cell, measured| {
        let batch = Cell::from(grouped(cell.batch as i64));
        [batch].into_iter().chain(times(measured.mpps.median, measured.latency, longest(measured))).collect()
    });
    let caption = format!("Latency of one batch at a time, {}", packets_in_words(packets));
    details("The numbers", &table(&caption, &columns.collect::<Vec<_>>(), &rows))
}

fn load_table(view: &View<'_>, packets: &str) -> Markup {
    let names = [words("filter"), words("device"), numbers("batch"), numbers("offered")];
    let columns: Vec<_> = names.into_iter().chain(TIMES).chain([numbers("p99.9")]).collect();
    let mut rows = Vec::new();
    for filter in &view.filters {
        for shown in &view.devices {
            let Some((cell, measured)) = loaded(view, filter, packets, shown) else { continue };
            rows.extend(measured.loads.iter().map(|load| {
                let offered = format!("{} %", digits(load.offered * 100.0));
                let names =
                    [(*filter).into(), shown.id.as_str().into(), grouped(cell.batch as i64).into(), offered.into()];
                names.into_iter().chain(times(load.mpps, load.latency, time(load.latency.p999))).collect()
            }));
        }
    }
    let caption = format!("Latency of batches that come at a steady rate, {}", packets_in_words(packets));
    details("The numbers", &table(&caption, &columns, &rows))
}
