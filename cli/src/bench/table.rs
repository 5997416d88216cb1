//! Benchmark results as tables on the terminal.

use portcullis_bench::caveats::caveats;
use portcullis_bench::number::{digits, time};
use portcullis_bench::results::{Bar, Cell, Measured, Outcome, Results, StopReason, packets_in_words};
use portcullis_bench::xdp_on_gpu;

use crate::out;

/// Formats the results: caveats first, then devices, tables, targets, errors and what was left out.
pub fn text(results: &Results) -> String {
    let mut text: String = caveats(results).iter().map(|caveat| format!("{caveat}\n")).collect();
    if results.run.interrupted {
        text += "interrupted: these results are incomplete\n";
    }
    if !text.is_empty() {
        text += "\n";
    }
    for device in &results.devices {
        text += &format!("{}: {} ({})\n", device.id, device.name, device.driver);
    }
    for missing in &results.missing {
        text += &format!("{}: unavailable: {}\n", missing.device, missing.reason);
    }
    for ceiling in &results.ceilings {
        let device = ceiling.device.as_ref().map(|id| format!("{id}, ")).unwrap_or_default();
        text +=
            &format!("{device}{}, bandwidth: {}\n", ceiling.name, out::rate(ceiling.bytes_per_second.median, "B/s"));
    }
    for (filter, packets) in kinds(results) {
        text += &format!("\n{filter}, {}\n", packets_in_words(packets));
        let head = [
            "  batch",
            "device",
            "transfer",
            "dispatch",
            "Mpps",
            "interval",
            "Gb/s",
            "p50",
            "p99",
            "p99.9",
            "copied",
            "bandwidth",
            "",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        let of_kind = |cell: &&Cell| cell.filter == filter && cell.packets == packets;
        rows.extend(results.cells.iter().filter(of_kind).map(row));
        text += &out::table(rows, &[0, 4, 6, 7, 8, 9, 10, 11]);
    }
    results.xdp_on_gpu.iter().for_each(|table| text += &format_workload(table));
    text += &bars(&results.bars);
    let wrong = |cell: &Cell| match &cell.outcome {
        Outcome::Measured(_) => None,
        Outcome::Mismatch { detail } => Some(format!("WRONG: {cell}: {detail}\n")),
        Outcome::Failed { reason } => Some(format!("failed: {cell}: {reason}\n")),
    };
    let bad: String = results.cells.iter().filter_map(wrong).collect();
    if !bad.is_empty() {
        text += &format!("\n{bad}");
    }
    if !results.left_out.is_empty() {
        text += "\n";
    }
    for left in &results.left_out {
        text += &format!("left out: {}: {}\n", left.what, left.why);
    }
    let measured = results.cells.iter().filter(|cell| matches!(cell.outcome, Outcome::Measured(_))).count();
    text += &format!("\n{measured} measurements in {:.0} s", results.run.seconds);
    if results.cells.iter().any(|cell| has_outcome(cell, |it| it.ended != StopReason::Narrow)) {
        text += "; ~: the confidence interval did not converge";
    }
    if results.cells.iter().any(|cell| has_outcome(cell, |it| it.bandwidth_used().as_deref() == Some("cached"))) {
        text += "; cached: the packets stay in the CPU's caches";
    }
    text += "\n";
    out::printable(&text)
}

fn has_outcome(cell: &Cell, test: impl Fn(&Measured) -> bool) -> bool {
    matches!(&cell.outcome, Outcome::Measured(measured) if test(measured))
}

/// Formats one of XDP-on-GPU's workloads: a line for each side, in Mpps.
fn format_workload(table: &xdp_on_gpu::Table) -> String {
    let mut head = vec![format!("  Mpps, {}", table.across), String::new()];
    head.extend(table.columns.iter().map(|column| out::grouped(*column)));
    let mut rows = vec![head];
    for row in &table.rows {
        let of = if row.of.is_empty() || row.of == table.title { String::new() } else { format!(", {}", row.of) };
        let mut line = vec![format!("  {}", row.source.name()), format!("{}{of}", row.side)];
        line.extend(row.cells.iter().map(|cell| match cell {
            xdp_on_gpu::Cell::Mismatch { .. } => "WRONG".into(),
            cell => cell.mpps().map_or("–".into(), digits),
        }));
        rows.push(line);
    }
    let numbers: Vec<_> = (2..2 + table.columns.len()).collect();
    let mut text = format!("\nXDP-on-GPU: {}\n{}", table.title, out::table(rows, &numbers));
    let cells = table.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
    let mut printed = Vec::new();
    for (row, cell) in cells {
        let line = match cell {
            xdp_on_gpu::Cell::Mismatch { reason } => format!("  WRONG: {}: {reason}\n", row.side),
            xdp_on_gpu::Cell::None { reason: Some(reason) } => format!("  left out: {}: {reason}\n", row.side),
            _ => continue,
        };
        // Columns often share a reason.
        if !printed.contains(&line) {
            text += &line;
            printed.push(line);
        }
    }
    text
}

/// Formats the targets and the values measured in this run.
fn bars(bars: &[Bar]) -> String {
    let line = |bar: &Bar| -> Option<Vec<String>> {
        let verdict = if bar.met? { "met" } else { "missed" };
        let measured = bar.measured.clone()?;
        Some(vec![format!("  {verdict}"), bar.what.clone(), bar.bar.clone(), measured, bar.against.clone()])
    };
    let rows: Vec<_> = bars.iter().filter_map(line).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["  verdict", "what", "target", "measured", "against"].map(String::from).to_vec();
    format!("\n{}", out::table(std::iter::once(head).chain(rows).collect(), &[]))
}

/// Returns the pairs of filter and packet size, in the order of measurement.
fn kinds(results: &Results) -> Vec<(&str, &str)> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for cell in &results.cells {
        let kind = (cell.filter.as_str(), cell.packets.as_str());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

fn row(cell: &Cell) -> Vec<String> {
    let mut row = vec![
        format!("  {}", out::grouped(cell.batch)),
        cell.device.clone(),
        cell.transfer.clone(),
        cell.dispatch.clone(),
    ];
    let Outcome::Measured(measured) = &cell.outcome else {
        let what = if matches!(cell.outcome, Outcome::Mismatch { .. }) { "WRONG" } else { "failed" };
        row.push(what.into());
        row.resize(13, String::new());
        return row;
    };
    let Measured { mpps, gbps, latency, copied_bytes, ended, .. } = &**measured;
    row.extend([
        digits(mpps.median),
        format!("{}–{}", digits(mpps.low), digits(mpps.high)),
        digits(*gbps),
        time(latency.p50),
        time(latency.p99),
        time(latency.p999),
        copied_bytes.map_or("–".into(), |bytes| format!("{} B", digits(bytes))),
        measured.bandwidth_used().unwrap_or_else(|| "–".into()),
        if *ended == StopReason::Narrow { String::new() } else { "~".into() },
    ]);
    row
}
