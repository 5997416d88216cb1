//! Throughput against batch size.

use maud::{Markup, html};

use super::ReportError;
use super::parts::{Cell, details, grid, legend, numbers, packet_size_sections, table, words};
use super::plot::{Axis, Ceiling, Plot, Point, Series, label_width, plot_size};
use super::view::View;
use crate::number::{digits, short, trimmed};
use crate::results::packets_in_words;

/// Renders the section.
pub fn throughput(view: &View<'_>) -> Result<Markup, ReportError> {
    let mut kinds = Vec::new();
    for packets in &view.packets {
        let plots: Vec<_> =
            view.filters.iter().map(|f| (*f, view.throughput(f, packets), view.ceilings(f, packets))).collect();
        let Some(figures) = figures_of(packets, plots)? else { continue };
        kinds.push((packets_in_words(packets), html! { (figures) (numbers_of(view, packets)) }));
    }
    Ok(section(
        "throughput",
        "Throughput against batch size",
        &kinds,
        &key(view)?,
        &html! {
            p {
                "Both axes are logarithmic and the same in all plots of a group. Each line is a device at its best transfer and dispatch; the band around it is the "
                "confidence interval of the median. Dashed grey lines are copy bandwidths measured in the same run; packets that stay in the CPU’s caches can be above that of memory. A red cross is a measurement whose "
                "verdicts were not the interpreter’s: no speed counts there."
            }
        },
    ))
}

/// A filter with its series and bandwidth ceilings.
pub type Plotted<'a> = (&'a str, Vec<Series>, Vec<Ceiling>);

/// Draws a plot for each filter, all with the same axes; `None` if there is nothing to show.
pub fn figures_of(packets: &str, mut plots: Vec<Plotted<'_>>) -> Result<Option<Markup>, ReportError> {
    plots.retain(|(_, series, _)| !series.is_empty());
    let all = || plots.iter().flat_map(|(_, series, _)| series);
    let batches = all().flat_map(|s| s.points.iter().map(|p| p.x).chain(s.wrong.iter().copied()));
    let heights = all().flat_map(|s| &s.points).flat_map(|p| [p.low, p.y, p.high]);
    let heights = heights.chain(plots.iter().flat_map(|(.., c)| c.iter().map(|c| c.ends[0].1)));
    // Wrong cells have no rate but are marked, which needs an axis.
    let wrong = all().any(|s| !s.wrong.is_empty());
    let heights: Vec<_> = heights.chain(wrong.then_some(1.0)).collect();
    let (Some(x), Some(y)) = (Axis::over(batches, short), Axis::over(heights, trimmed)) else { return Ok(None) };
    let label_width = label_width(all().map(|s| s.label.as_str()));
    let captions: Vec<&str> = plots.iter().map(|(filter, ..)| *filter).collect();
    let draw = |place: usize, width| {
        let (filter, series, ceilings): &Plotted<'_> = &plots[place];
        let description = describe(filter, packets, series);
        Plot {
            size: plot_size(width),
            description: &description,
            x: &x,
            x_name: "packets in a batch",
            y: &y,
            y_name: "Mpps",
            label_width,
            series,
            ceilings,
        }
        .draw()
    };
    grid(&captions, draw).map(Some)
}

/// Renders the legend of devices.
pub fn key(view: &View<'_>) -> Result<Markup, ReportError> {
    legend(&view.devices.iter().map(|d| (d.slot, d.id.clone(), d.name.clone())).collect::<Vec<_>>())
}

/// Renders a section with a group of plots for each packet size, of which the first is open.
pub fn section(id: &str, heading: &str, kinds: &[(String, Markup)], key: &Markup, intro: &Markup) -> Markup {
    html! {
        section id=(id) {
            h2 { (heading) }
            @if kinds.is_empty() { p { "Nothing was measured." } } @else {
                (intro)
                (key)
                (packet_size_sections(kinds))
            }
        }
    }
}

/// Describes a plot in words, for screen readers.
fn describe(filter: &str, packets: &str, series: &[Series]) -> String {
    let mut text = format!("Throughput of {filter} against batch size, {}.", packets_in_words(packets));
    for series in series {
        if let Some(Point { x, y, .. }) = series.points.last() {
            text += &format!(" {}: {} Mpps in batches of {}.", series.label, digits(*y), short(*x));
        }
    }
    text
}

fn numbers_of(view: &View<'_>, packets: &str) -> Markup {
    let columns = [
        words("filter"),
        words("device"),
        words("at its best by"),
        numbers("batch"),
        numbers("Mpps"),
        numbers("interval"),
        numbers("Gb/s"),
        numbers("bandwidth used"),
    ];
    let rows = rows(view, packets, |cell, measured| {
        let estimate = measured.mpps;
        vec![
            format!("{}, {}", cell.transfer, cell.dispatch).into(),
            crate::number::grouped(cell.batch as i64).into(),
            digits(estimate.median).into(),
            format!("{} to {}", digits(estimate.low), digits(estimate.high)).into(),
            digits(measured.gbps).into(),
            measured.bandwidth_used().unwrap_or_else(|| "–".into()).into(),
        ]
    });
    details("The numbers", &table(&format!("Throughput, {}", packets_in_words(packets)), &columns, &rows))
}

/// Returns a table row for each device's fastest cell at each batch size.
pub fn rows(
    view: &View<'_>,
    packets: &str,
    row: impl Fn(&crate::results::Cell, &crate::results::Measured) -> Vec<Cell>,
) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for filter in &view.filters {
        for shown in &view.devices {
            for (cell, measured) in view.best(filter, packets, &shown.id) {
                let names = [Cell::from(*filter), shown.id.as_str().into()];
                rows.push(names.into_iter().chain(row(cell, measured)).collect());
            }
        }
    }
    rows
}
