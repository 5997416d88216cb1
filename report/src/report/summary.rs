//! The summary: the fastest device by batch size, as a chart and a sentence for each filter.

use maud::{Markup, html};

use super::ReportError;
use super::bar_charts::{FastestChart, FastestRange};
use super::fastest::{Curve, fastest_ranges};
use super::parts::packet_size_sections;
use super::plot::Axis;
use super::view::View;
use crate::number::{digits, short};
use crate::results::packets_in_words;

/// Renders the section.
pub fn section(view: &View<'_>) -> Result<Markup, ReportError> {
    let mut kinds = Vec::new();
    for packets in &view.packets {
        if let Some(kind) = kind(view, packets)? {
            kinds.push((packets_in_words(packets), kind));
        }
    }
    Ok(html! {
        section #summary {
            h2 { "Which device to use" }
            @if kinds.is_empty() {
                p { "Nothing was measured, so there is nothing to recommend." }
            } @else {
                p {
                    "The fastest device for batches of each size, each at its best transfer and dispatch, with packets that start in the host’s memory."
                }
                (packet_size_sections(&kinds))
            }
        }
    })
}

/// Renders one packet size; `None` if nothing was measured.
fn kind(view: &View<'_>, packets: &str) -> Result<Option<Markup>, ReportError> {
    let mut rows = Vec::new();
    let mut sentences = Vec::new();
    for filter in &view.filters {
        let curves: Vec<_> = view.devices.iter().map(|shown| view.curve(filter, packets, shown)).collect();
        let fastest_ranges = fastest_ranges(&curves);
        if !fastest_ranges.is_empty() {
            sentences.push((*filter, sentence(&fastest_ranges, &curves)));
            rows.push(((*filter).to_owned(), fastest_ranges));
        }
    }
    let Some(axis) = Axis::over(rows.iter().flat_map(|(_, r)| r).flat_map(|r| [r.from, r.to]), short) else {
        return Ok(None);
    };
    let description =
        sentences.iter().map(|(filter, sentence)| format!("{filter}: {sentence}.")).collect::<Vec<_>>().join(" ");
    let picture = FastestChart { description: &description, x: &axis, rows: &rows };
    let (wide, narrow) = (picture.draw(860)?, picture.draw(340)?);
    let both = html! { div.wide { (wide) } div.narrow { (narrow) } };
    Ok(Some(html! {
        figure { (both) figcaption.under-plot { "The fastest device by batch size. Where a bar is pale, the next device is as fast within the noise." } }
        ul.answers {
            @for (filter, sentence) in &sentences { li { strong { (filter) } ": " (sentence) "." } }
        }
    }))
}

/// Says which device is the fastest in which range, and its rate at the largest batch.
fn sentence(fastest_ranges: &[FastestRange], curves: &[Curve]) -> String {
    // Merge neighbouring ranges of a device that differ only in how close the next one is.
    let mut leads: Vec<&FastestRange> = Vec::new();
    for fastest in fastest_ranges {
        match leads.last_mut() {
            Some(lead) if lead.slot == fastest.slot => *lead = fastest,
            _ => leads.push(fastest),
        }
    }
    let Some((last, before)) = leads.split_last() else { return "nothing was measured".into() };
    let before: Vec<_> =
        before.iter().map(|lead| format!("{} up to about {} packets", lead.name, short(rounded(lead.to)))).collect();
    let mut text = match &*before {
        [] => format!("{} at every batch size measured", last.name),
        before => format!("{}, then {}", before.join(", then "), last.name),
    };
    let end = curves.iter().find(|curve| curve.slot == last.slot).and_then(|curve| curve.points.last());
    if let Some(end) = end {
        text += &format!("; {} Mpps in batches of {}", digits(end.y), short(end.x));
        let others = curves.iter().filter(|curve| curve.slot != last.slot);
        let next = others.filter_map(|curve| Some((curve, curve.points.iter().find(|p| p.x == end.x)?)));
        if let Some((curve, next)) = next.max_by(|(_, a), (_, b)| a.y.total_cmp(&b.y)) {
            let close = fastest_ranges.last().is_some_and(|fastest| fastest.close);
            text += &match close {
                true => format!(", and {} as many within the noise", curve.name),
                false => format!(", {} times {}", digits(end.y / next.y), curve.name),
            };
        }
    }
    text
}

/// Rounds to two digits: a crossover between two measured batch sizes is not known better.
fn rounded(value: f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}
