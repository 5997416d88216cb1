//! Throughput for packets that are in the device's memory before timing starts.

use maud::{Markup, html};

use super::ReportError;
use super::parts::{details, numbers, table, words};
use super::throughput::{Plotted, figures_of, key, section as group};
use super::view::View;
use crate::number::{digits, grouped};
use crate::results::packets_in_words;

/// Renders the section; `None` if no resident packets were measured.
pub fn section(view: &View<'_>) -> Result<Option<Markup>, ReportError> {
    let mut kinds = Vec::new();
    for packets in &view.packets {
        let is_there = |filter: &&&str| view.cells(filter, packets).any(|cell| cell.is_resident());
        let filters: Vec<&str> = view.filters.iter().filter(is_there).copied().collect();
        let plots: Vec<Plotted<'_>> = filters.iter().map(|f| (*f, view.resident(f, packets), Vec::new())).collect();
        let Some(figures) = figures_of(packets, plots)? else { continue };
        let numbers = numbers_of(view, &filters, packets);
        kinds.push((packets_in_words(packets), html! { (figures) (numbers) }));
    }
    if kinds.is_empty() {
        return Ok(None);
    }
    let intro = html! {
        p {
            "Packets and descriptors stay in the device’s own memory from one time to the next, as a network card that writes there would leave them; how they get there is "
            "not measured. What is: launching the kernel, the kernel, and verdicts back to the host, where they are compared. A device that filters packets in the host’s memory has the same line as above. "
            "None of this says which device to use for packets that the host has."
        }
    };
    Ok(Some(group("resident", "Packets in the device’s memory already", &kinds, &key(view)?, &intro)))
}

fn numbers_of(view: &View<'_>, filters: &[&str], packets: &str) -> Markup {
    let columns = [
        words("filter"),
        words("device"),
        words("packets are"),
        numbers("batch"),
        numbers("Mpps"),
        numbers("interval"),
        numbers("bandwidth used"),
    ];
    let mut rows = Vec::new();
    for filter in filters {
        for shown in &view.devices {
            for (cell, measured) in view.best_resident(filter, packets, &shown.id) {
                let at = if cell.is_resident() { "in its memory" } else { "in the host’s memory" };
                rows.push(vec![
                    (*filter).into(),
                    shown.id.as_str().into(),
                    format!("{at}, {}", cell.dispatch).into(),
                    grouped(cell.batch as i64).into(),
                    digits(measured.mpps.median).into(),
                    format!("{} to {}", digits(measured.mpps.low), digits(measured.mpps.high)).into(),
                    measured.bandwidth_used().unwrap_or_else(|| "–".into()).into(),
                ]);
            }
        }
    }
    let title = format!("Packets in the device’s memory, {}", packets_in_words(packets));
    details("The numbers", &table(&title, &columns, &rows))
}
