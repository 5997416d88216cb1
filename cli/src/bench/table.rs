//! Results for people.

use portcullis_bench::number::{digits, time};
use portcullis_bench::results::{Bar, Cell, Measured, Outcome, Results, StopReason};
use portcullis_bench::xdp_on_gpu;

use crate::out;

/// The whole output.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    for device in &results.devices {
        text += &format!("{}: {} ({})\n", device.id, device.name, device.driver);
    }
    for missing in &results.missing {
        text += &format!("{}: not here: {}\n", missing.device, missing.reason);
    }
    for ceiling in &results.ceilings {
        let device = ceiling.device.as_ref().map(|id| format!("{id}, ")).unwrap_or_default();
        text += &format!("{device}{}: {}\n", ceiling.name, out::rate(ceiling.bytes_per_second.median, "B/s"));
    }
    for (filter, packets) in kinds(results) {
        text += &format!(
            "\n{filter}, {} packets\n",
            if packets == "imix" { packets.into() } else { format!("{packets}-byte") }
        );
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
            "of ceiling",
            "",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        let of_kind = |cell: &&Cell| cell.filter == filter && cell.packets == packets;
        rows.extend(results.cells.iter().filter(of_kind).map(row));
        text += &out::table(rows, &[0, 4, 6, 7, 8, 9, 10, 11]);
    }
    results.xdp_on_gpu.iter().for_each(|table| text += &side_by_side(table));
    text += &bars(&results.bars);
    let wrong = |cell: &Cell| match &cell.outcome {
        Outcome::Measured(_) => None,
        Outcome::Wrong { detail } => Some(format!("WRONG: {cell}: {detail}\n")),
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
    let short = results
        .cells
        .iter()
        .filter(|cell| matches!(&cell.outcome, Outcome::Measured(it) if it.ended != StopReason::Narrow));
    text += &format!(
        "\n{measured} measurements in {:.0} s, {} of them (marked ~) with a wider interval than wanted as their time was used up\n",
        results.run.seconds,
        short.count()
    );
    if results.run.interrupted {
        text += "interrupted: this is not all of it\n";
    }
    out::printable(&text)
}

/// XDP-on-GPU's workloads: a line a side, in millions of packets a second.
fn side_by_side(table: &xdp_on_gpu::Table) -> String {
    let mut head = vec![format!("  Mpps, {}", table.across), String::new()];
    head.extend(table.columns.iter().map(|column| out::grouped(*column)));
    let mut rows = vec![head];
    for row in &table.rows {
        let of = if row.of.is_empty() || row.of == table.title { String::new() } else { format!(", {}", row.of) };
        let mut line = vec![format!("  {}", row.source.name()), format!("{}{of}", row.side)];
        line.extend(row.cells.iter().map(|cell| match cell {
            xdp_on_gpu::Cell::Wrong { .. } => "WRONG".into(),
            cell => cell.mpps().map_or("–".into(), digits),
        }));
        rows.push(line);
    }
    let numbers: Vec<_> = (2..2 + table.columns.len()).collect();
    let mut text = format!("\nXDP-on-GPU: {}\n{}", table.title, out::table(rows, &numbers));
    let cells = table.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
    let mut said = Vec::new();
    for (row, cell) in cells {
        let line = match cell {
            xdp_on_gpu::Cell::Wrong { reason } => format!("  WRONG: {}: {reason}\n", row.side),
            xdp_on_gpu::Cell::None { reason: Some(reason) } => format!("  left out: {}: {reason}\n", row.side),
            _ => continue,
        };
        // Columns have the same reason as often as not.
        if !said.contains(&line) {
            text += &line;
            said.push(line);
        }
    }
    text
}

/// Renders the targets and the values measured in this run.
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
    let head = ["  bar", "", "wanted", "measured", "against"].map(String::from).to_vec();
    format!("\n{}", out::table(std::iter::once(head).chain(rows).collect(), &[]))
}

/// Filters and packets in the order in which they were measured.
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
        let what = if matches!(cell.outcome, Outcome::Wrong { .. }) { "WRONG" } else { "failed" };
        row.push(what.into());
        row.resize(13, String::new());
        return row;
    };
    let Measured { mpps, gbps, latency, copied_bytes, of_ceiling, ended, .. } = &**measured;
    row.extend([
        digits(mpps.median),
        format!("{}–{}", digits(mpps.low), digits(mpps.high)),
        digits(*gbps),
        time(latency.p50),
        time(latency.p99),
        time(latency.p999),
        copied_bytes.map_or("–".into(), |bytes| format!("{} B", digits(bytes))),
        of_ceiling.as_ref().map_or("–".into(), |(share, _)| format!("{:.0} %", share * 100.0)),
        if *ended == StopReason::Narrow { String::new() } else { "~".into() },
    ]);
    row
}
