//! Time per packet by stage.

use maud::{Markup, html};

use super::ReportError;
use super::bar_charts::{StackedChart, StackedRow};
use super::parts::{Cell, chips, details, grid, numbers, packet_size_sections, table, words};
use super::theme::STAGES;
use super::view::View;
use crate::number::{digits, grouped};
use crate::results::{self, Stages, largest_batches, packets_in_words};

/// Names of the stages, in order.
const NAMES: [&str; 5] = ["gather", "upload", "kernel", "download", "verdicts"];

/// Renders the section; `None` if no device reported stages.
pub fn section(view: &View<'_>) -> Result<Option<Markup>, ReportError> {
    let mut kinds = Vec::new();
    for packets in &view.packets {
        let plots = view.filters.iter().map(|filter| (*filter, measured_stages(view, filter, packets)));
        let plots: Vec<_> = plots.filter(|(_, measured_stages)| !measured_stages.is_empty()).collect();
        let captions: Vec<&str> = plots.iter().map(|(filter, _)| *filter).collect();
        let rows: Vec<_> = plots
            .iter()
            .flat_map(|(filter, measured_stages)| {
                measured_stages.iter().map(move |(cell, stages)| row(filter, cell, stages))
            })
            .collect();
        if !plots.is_empty() {
            let figures = grid(&captions, |place, width| plot(plots[place].0, packets, &plots[place].1, width))?;
            let numbers = details(
                "The numbers",
                &table(&format!("Nanoseconds a packet, {}", packets_in_words(packets)), &columns(), &rows),
            );
            kinds.push((packets_in_words(packets), html! { (figures) (numbers) }));
        }
    }
    let colours: Vec<_> = STAGES.iter().zip(NAMES).map(|(colour, name)| (colour.var(), name)).collect();
    Ok((!kinds.is_empty()).then(|| html! {
        section #stages {
            h2 { "Time by stage" }
            p {
                "Time per packet, each device and transfer at its largest batch. Stages of different batches may run at the same time, so that their sum can be "
                "more than one over the throughput."
            }
            (chips(&colours))
            (packet_size_sections(&kinds))
        }
    }))
}

/// Returns, for each device and transfer, the fastest dispatch at the largest batch with stages.
fn measured_stages<'a>(view: &View<'a>, filter: &str, packets: &str) -> Vec<(&'a results::Cell, Stages)> {
    let key = |cell: &'a results::Cell| (&cell.device, &cell.transfer);
    let mut measured_stages = largest_batches(view.cells(filter, packets), key, |_, measured| {
        measured.stages.filter(|stages| parts(stages).iter().any(|part| *part > 0.0))
    });
    let place = |cell: &results::Cell| {
        let device = view.devices.iter().position(|shown| shown.id == cell.device);
        (device, view.transfers.iter().position(|transfer| *transfer == cell.transfer))
    };
    measured_stages.sort_by_key(|(cell, ..)| place(cell));
    measured_stages.into_iter().map(|(cell, _, stages)| (cell, stages)).collect()
}

/// Returns the stages in nanoseconds per packet.
fn parts(stages: &Stages) -> [f64; 5] {
    let Stages { gather, upload, kernel, download, verdicts } = *stages;
    [gather, upload, kernel, download, verdicts].map(|seconds| seconds * 1e9)
}

fn plot(
    filter: &str,
    packets: &str,
    measured_stages: &[(&results::Cell, Stages)],
    width: u32,
) -> Result<Markup, ReportError> {
    let rows = measured_stages.iter().map(|(cell, stages)| {
        let parts = parts(stages).to_vec();
        let total = format!("{} ns", digits(parts.iter().sum()));
        StackedRow { name: format!("{} · {}", cell.device, cell.transfer), parts, total }
    });
    let rows: Vec<_> = rows.collect();
    let spoken: Vec<_> = rows.iter().map(|row| format!("{}: {}", row.name, row.total)).collect();
    let description = format!("Time by stage of {filter}, {}. {}.", packets_in_words(packets), spoken.join("; "));
    StackedChart { width, description: &description, x_name: "ns a packet", rows: &rows }.draw()
}

fn columns() -> Vec<super::parts::Column> {
    let names = [words("filter"), words("device"), words("transfer"), words("dispatch"), numbers("batch")];
    names.into_iter().chain(NAMES.map(numbers)).chain([numbers("sum")]).collect()
}

fn row(filter: &str, cell: &results::Cell, stages: &Stages) -> Vec<Cell> {
    let parts = parts(stages);
    let names = [filter, &cell.device, &cell.transfer, &cell.dispatch].map(Cell::from);
    let times = parts.iter().map(|part| digits(*part)).chain([digits(parts.iter().sum())]);
    names.into_iter().chain([grouped(cell.batch as i64).into()]).chain(times.map(Cell::from)).collect()
}
