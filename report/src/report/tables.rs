//! Tables of all measurements, targets and published figures.

use maud::{Markup, html};

use super::parts::{Cell, count, details, numbers, stacked, table, tight, words};
use super::view::View;
use crate::number::{digits, grouped, time};
use crate::results::{Bar, Measured, Outcome, Results, StopReason};
use crate::xdp_on_gpu::FormattedTable;

/// Column name of p99.9.
pub const LONGEST: &str = "p99.9, or the longest of n";

/// Formats p99.9, or the maximum if there are fewer than 1,000 samples.
pub fn longest(measured: &Measured) -> String {
    let text = time(measured.latency.p999);
    if (1..1_000).contains(&measured.latencies) { format!("{text} of {}", measured.latencies) } else { text }
}

/// Formats the number of repetitions, and why there were no more.
fn repetitions(measured: &Measured) -> String {
    let count = grouped(measured.repetitions as i64);
    match measured.ended {
        StopReason::Narrow => count,
        StopReason::Time => format!("{count}, time was up"),
        StopReason::Interrupted => format!("{count}, interrupted"),
    }
}

/// Renders every measurement, by filter.
pub fn all(view: &View<'_>) -> Markup {
    let columns = [
        words("device"),
        words("packets"),
        words("transfer"),
        words("dispatch"),
        numbers("batch"),
        numbers("Mpps"),
        numbers("interval"),
        numbers("Gb/s"),
        numbers("bus, B a packet"),
        numbers("p50"),
        numbers("p99"),
        numbers(LONGEST),
        numbers("bandwidth used"),
        numbers("repetitions"),
    ];
    html! {
        section #measurements {
            h2 { "All measurements" }
            @if view.filters.is_empty() { p { "Nothing was measured." } }
            @for filter in &view.filters {
                @let cells: Vec<_> = view.results.cells.iter().filter(|c| c.filter == *filter).collect();
                @let rows: Vec<_> = cells.iter().map(|cell| row(cell)).collect();
                (details(&format!("{filter}: {}", count(cells.len(), "measurement")), &table(filter, &columns, &rows)))
            }
        }
    }
}

fn row(cell: &crate::results::Cell) -> Vec<Cell> {
    let names = [&cell.device, &cell.packets, &cell.transfer, &cell.dispatch].map(|name| Cell::from(name.as_str()));
    let mut row = Vec::from(names);
    row.push(grouped(cell.batch as i64).into());
    match &cell.outcome {
        Outcome::Measured(measured) => {
            let Measured { mpps, latency, .. } = **measured;
            row.extend(
                [
                    digits(mpps.median),
                    format!("{} to {}", digits(mpps.low), digits(mpps.high)),
                    digits(measured.gbps),
                    measured.bus_bytes.map_or("–".into(), digits),
                    time(latency.p50),
                    time(latency.p99),
                    longest(measured),
                    measured.bandwidth_used().unwrap_or_else(|| "–".into()),
                    repetitions(measured),
                ]
                .map(Cell::from),
            );
        }
        Outcome::Mismatch { detail } => row.extend([Cell::Mismatch, Cell::Over(8, detail.clone())]),
        Outcome::Failed { reason } => row.extend([Cell::Text("failed".into()), Cell::Over(8, reason.clone())]),
    }
    row
}

/// Renders targets and measured values; `None` if the run checked no target.
pub fn bars(results: &Results) -> Option<Markup> {
    let verdict = |bar: &Bar| match bar.met {
        Some(true) => html! { span.hit { "met" } },
        Some(false) => html! { span.miss { "missed" } },
        None => html! { span.open { "not measured" } },
    };
    let rows = results.bars.iter().map(|bar| {
        vec![
            Cell::from(bar.what.as_str()),
            bar.against.as_str().into(),
            bar.bar.as_str().into(),
            bar.measured.as_deref().unwrap_or("–").into(),
            Cell::Markup(verdict(bar)),
            Cell::Markup(html! {
                @if !bar.command.is_empty() { code { @for word in bar.command.split(' ') { span { (word) } " " } } }
                @if let Some(note) = &bar.note { @if !bar.command.is_empty() { br; } (note) }
            }),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let count_met = |met| results.bars.iter().filter(|bar| bar.met == met).count();
    let columns =
        [words("what"), words("against"), tight("target"), tight("measured"), tight("verdict"), words("by, and notes")];
    (!rows.is_empty()).then(|| {
        html! {
            section #bars {
                h2 { "Targets" }
                p { (count_met(Some(true))) " met, " (count_met(Some(false))) " missed, " (count_met(None)) " not measured here." }
                (stacked("Targets and measured values", &columns, &rows))
            }
        }
    })
}

/// Renders the comparisons with published figures; `None` if there are none.
pub fn published(results: &Results) -> Option<Markup> {
    (!results.xdp_on_gpu.is_empty()).then(|| html! {
        section #xdp-on-gpu {
            h2 { "Beside published figures" }
            p { "Figures in columns marked “published” are others’ own, from their machines; all else was measured in this run." }
            @for table in &results.xdp_on_gpu { (comparison(&table.formatted())) }
        }
    })
}

fn comparison(table: &FormattedTable) -> Markup {
    html! {
        h3 { (table.title) }
        p { (table.note) }
        div.table tabindex="0" role="region" aria-label=(table.title) {
            table.stacked {
                thead { tr {
                    @for (place, column) in table.columns.iter().enumerate() {
                        th.n[place > 0] scope="col" { (column.name) @if column.published { br; span.published { "published" } } }
                    }
                } }
                tbody { @for row in &table.rows { tr {
                    @for (place, value) in row.iter().enumerate() {
                        @let value = value.as_deref().unwrap_or("–");
                        @let wrong = value == "WRONG";
                        @let published = table.columns.get(place).is_some_and(|c| c.published);
                        @let label = table.columns.get(place).map(|c| if published { format!("{}, published", c.name) } else { c.name.clone() });
                        @if place == 0 { th scope="row" { (value) " " span.narrow { (table.columns[0].name) } } } @else {
                            td.n.published[published].wrong[wrong] data-label=[label] { (value) }
                        }
                    }
                } } }
            }
        }
    }
}
