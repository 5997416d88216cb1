//! The report's section on the run: what was measured, the machine, and the method.

use maud::{Markup, html};

use super::parts::{Cell, details, facts, numbers, stacked, table, words};
use crate::number::{digits, grouped};
use crate::results::Results;

/// Describes the machine and its devices.
pub fn machine(results: &Results) -> Markup {
    let machine = &results.machine;
    let mut rows =
        vec![("processor", machine.processor.clone()), ("logical processors", grouped(machine.threads as i64))];
    rows.extend(machine.facts.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let devices = results.devices.iter().map(|device| {
        let facts: Vec<_> = device.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        [device.id.clone(), device.name.clone(), device.kind.clone(), device.driver.clone(), facts.join("; ")]
            .map(Cell::Text)
            .to_vec()
    });
    let devices: Vec<_> = devices.collect();
    let columns = [words("device"), words("name"), words("kind"), words("driver"), words("limits")];
    let missing = results
        .missing
        .iter()
        .map(|missing| [&missing.device, &missing.reason].map(|t| Cell::from(t.as_str())).to_vec());
    let missing: Vec<_> = missing.collect();
    let ceilings = results.ceilings.iter().map(|ceiling| {
        let rate = ceiling.bytes_per_second;
        vec![
            Cell::from(ceiling.name.as_str()),
            ceiling.device.as_deref().unwrap_or("host").into(),
            digits(rate.median / 1e9).into(),
            format!("{} to {}", digits(rate.low / 1e9), digits(rate.high / 1e9)).into(),
        ]
    });
    let ceilings: Vec<_> = ceilings.collect();
    html! {
        section #machine {
            h2 { "The machine" }
            (facts("Where this was measured", &rows))
            @if devices.is_empty() { p { "No device was measured." } } @else { (stacked("Devices that were measured", &columns, &devices)) }
            @if !missing.is_empty() {
                (stacked("Backends without a device here", &[words("backend"), words("why")], &missing))
            }
            @if !ceilings.is_empty() {
                (table("Copy bandwidth of memory and buses, measured in the same run",
                    &[words("copy"), words("of"), numbers("GB/s"), numbers("interval")], &ceilings))
            }
        }
    }
}

/// Describes the method and the run.
pub fn method(results: &Results) -> Markup {
    let (run, method) = (&results.run, &results.method);
    let compared = results.cells.iter().filter_map(crate::results::Cell::measured).map(|measured| measured.compared);
    let rows = [
        ("version", run.version.clone()),
        ("commit", run.commit.clone().unwrap_or_else(|| "not known".into())),
        ("began", run.began.clone()),
        ("took", format!("{} s", digits(run.seconds))),
        ("matrix", method.matrix.clone()),
        ("confidence of intervals", format!("{} %", digits(method.confidence * 100.0))),
        ("repetitions of a measurement", format!("{} or more", grouped(method.least_repetitions as i64))),
        ("packets compared with the interpreter’s", grouped(compared.sum::<u64>() as i64)),
    ];
    let left_out = results.left_out.iter().map(|left| [&left.what, &left.why].map(|t| Cell::from(t.as_str())).to_vec());
    let left_out: Vec<_> = left_out.collect();
    html! {
        section #method {
            h2 { "How it was measured" }
            (facts("The run", &rows))
            @if !run.commands.is_empty() {
                p { "The commands:" }
                pre { @for (place, command) in run.commands.iter().enumerate() { @if place > 0 { "\n" } (command) } }
            }
            @for note in &method.notes { p { (note) } }
            @if !left_out.is_empty() {
                @let listed = stacked("What was left out, and why", &[words("what"), words("why")], &left_out);
                @if left_out.len() <= 12 { h3 { "Left out" } (listed) }
                @else { (details(&format!("Left out: {} measurements or parts, and why", left_out.len()), &listed)) }
            }
        }
    }
}
