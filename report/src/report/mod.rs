//! A benchmark's report as one HTML file without network access, scripts or other files.
//!
//! Plots are inline SVG by plotters, coloured by the page's style sheet (`theme`), so that one
//! drawing serves light and dark screens and print. All text goes through maud, which escapes it:
//! names of devices and drivers are not trusted.

mod about;
mod bar_charts;
mod fastest;
mod latency;
mod parts;
mod plot;
mod resident;
mod roofline;
mod stages;
mod summary;
mod tables;
mod theme;
mod throughput;
mod view;

#[cfg(test)]
#[path = "tests/fixture.rs"]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

use std::io;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::drawing::DrawingAreaErrorKind;

use self::parts::count;
use self::view::View;
use super::caveats::caveats;
use super::results::{Outcome, Results};

/// A plot could not be drawn, which is a bug: its values are checked before.
#[derive(Debug, thiserror::Error)]
#[error("a plot of the report cannot be drawn: {0}")]
pub struct ReportError(String);

impl From<DrawingAreaErrorKind<io::Error>> for ReportError {
    fn from(error: DrawingAreaErrorKind<io::Error>) -> ReportError {
        ReportError(error.to_string())
    }
}

/// Renders the report as a self-contained HTML file, without any URL.
pub fn html(results: &Results) -> Result<String, ReportError> {
    let view = View::new(results);
    let body = html! {
        (summary::section(&view)?)
        @if let Some(bars) = tables::bars(results) { (bars) }
        (throughput::throughput(&view)?)
        @if let Some(resident) = resident::section(&view)? { (resident) }
        (latency::section(&view)?)
        @if let Some(stages) = stages::section(&view)? { (stages) }
        @if let Some(roofline) = roofline::section(&view)? { (roofline) }
        @if let Some(published) = tables::published(results) { (published) }
        (tables::all(&view))
        (about::machine(results))
        (about::method(results))
    };
    // Texts of drivers or commands may contain a URL: written with entities it reads the same, and
    // the file provably names no outside address.
    Ok(page(results, &body).into_string().replace("://", ":&#47;/").replace("www.", "www&#46;"))
}

fn page(results: &Results, body: &Markup) -> Markup {
    let run = &results.run;
    let commit = run.commit.as_ref().map(|commit| format!(" ({commit})")).unwrap_or_default();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="color-scheme" content="light dark";
                // The page fetches nothing; the policy makes the browser enforce it.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { "Portcullis benchmark, " (results.machine.processor) ", " (run.began) }
                style { (PreEscaped(theme::sheet())) }
            }
            body {
                header {
                    h1 { "Portcullis benchmark" }
                    p.under { (results.machine.processor) " · " (run.began) " · version " (run.version) (commit) }
                    (terms())
                    (notices(results))
                    (contents(body))
                }
                main { (body) }
                footer { p { "Made by portcullis bench from one run on one machine, except where figures are marked as published. Print includes the sections that are open." } }
            }
        }
    }
}

/// Explains the words that the report uses.
fn terms() -> Markup {
    html! {
        p.terms {
            "Portcullis runs one packet filter on CPUs and GPUs, with the same verdicts on each. A filter is a function that is given a packet and returns a verdict: "
            "drop it, pass it on, or send it out of an interface. It runs on batches of packets. A device is named as " code { "--device" } " names it: "
            code { "cpu" } " uses all processors, " code { "cpu@1" } " is the same with one thread, and " code { "cuda:0" } " is the first GPU through CUDA."
        }
    }
}

/// Warnings and caveats that precede everything else.
fn notices(results: &Results) -> Markup {
    let wrong = results.cells.iter().filter(|c| matches!(c.outcome, Outcome::Mismatch { .. })).count();
    let failed = results.cells.iter().filter(|c| matches!(c.outcome, Outcome::Failed { .. })).count();
    let measurements = |number| count(number, "measurement");
    let caveats = caveats(results);
    html! {
        @if !caveats.is_empty() { div.notice.caveats { @for caveat in &caveats { p { (caveat) } } } }
        @if results.run.interrupted {
            div.notice { p { strong { "Interrupted. " } "The run ended before it was complete; this is what it had measured." } }
        }
        @if wrong > 0 {
            div.notice { p {
                strong { "Verdicts differ. " } "In " (measurements(wrong)) " a device’s verdicts were not the reference interpreter’s. No speed is shown there; "
                a href="#measurements" { "all measurements" } " says which."
            } }
        }
        @if failed > 0 {
            div.notice { p { strong { "Failed. " } (measurements(failed)) " could not be made; " a href="#measurements" { "all measurements" } " says why." } }
        }
    }
}

/// Renders links to the sections present.
fn contents(body: &Markup) -> Markup {
    const SECTIONS: [(&str, &str); 11] = [
        ("summary", "Which device"),
        ("bars", "Targets"),
        ("throughput", "Throughput"),
        ("resident", "On the device"),
        ("latency", "Latency"),
        ("stages", "Stages"),
        ("roofline", "Roofline"),
        ("xdp-on-gpu", "Published figures"),
        ("measurements", "All measurements"),
        ("machine", "Machine"),
        ("method", "Method"),
    ];
    let there = SECTIONS.iter().filter(|(id, _)| body.0.contains(&format!("<section id=\"{id}\"")));
    html! { nav aria-label="Contents" { ul { @for (id, name) in there { li { a href={ "#" (id) } { (name) } } } } } }
}
