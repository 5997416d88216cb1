//! Compares a report of `gpu-check.sh` with the bars of a real GPU (docs/performance.md).

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::io_error;

/// Packets in the large batches.
const LARGE: u64 = 1 << 20;

/// Packets in the largest batches, of packets in device memory.
const LARGEST: u64 = 8 << 20;

/// The device that is compared; others are measured for comparison.
const DEVICE: &str = "cuda:0";

/// Steps whose exit status is 0 if every verdict, length, byte and map entry is right.
const CORRECTNESS_STEPS: [&str; 5] = ["selftest cuda", "selftest opencl", "selftest wgpu", "suites", "memcheck"];

/// XDP-on-GPU's workloads, each with the stock filter that does the same; packets in device memory
/// are measured for those that read packet bytes.
const WORKLOADS: [(&str, Option<&str>); 6] = [
    ("simple filter", Some("simple_filter")),
    ("port filter", Some("port_filter")),
    ("minimal filter", None),
    ("complex filter", Some("complex_filter")),
    ("hash load balancer", Some("hash_lb")),
    ("batch hash load balancer", None),
];

/// A figure beside its bar.
#[derive(Debug, PartialEq)]
struct Bar {
    what: String,
    /// The bar in words; `-` for a figure without one.
    bar: String,
    figure: String,
    /// Whether the figure reaches the bar; `None` if it was not measured or there is no bar.
    met: Option<bool>,
}

impl Bar {
    /// Compares a ratio with the least that is enough.
    fn at_least(what: String, least: f64, unit: &str, value: Option<f64>) -> Bar {
        let met = value.map(|value| value >= least);
        Bar { what, bar: format!("≥ {least}{unit}"), figure: figure(value, unit), met }
    }

    /// Compares a figure with the most that is allowed.
    fn at_most(what: String, most: f64, unit: &str, value: Option<f64>) -> Bar {
        let met = value.map(|value| value <= most);
        Bar { what, bar: format!("≤ {most}{unit}"), figure: figure(value, unit), met }
    }

    fn without_bar(what: String, unit: &str, value: Option<f64>) -> Bar {
        Bar { what, bar: "-".into(), figure: figure(value, unit), met: None }
    }

    fn outcome(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        }
    }
}

fn figure(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "not measured".into(), |value| format!("{value:.2}{unit}"))
}

/// Evaluates the bars of a report, adds them to its file, and returns them as a table.
///
/// # Errors
/// The file cannot be read or written, or is not a report.
pub fn add(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| io_error(file, &error))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let bars = evaluate(&report);
    let values = bars.iter().map(|bar| json!({"what": bar.what, "bar": bar.bar, "figure": bar.figure, "met": bar.met}));
    let values = values.map(|bar| bar.to_string()).collect::<Vec<_>>().join(",\n    ");
    // Appended to the text, so that the rest stays as it was written.
    let rest = text.trim_end().strip_suffix('}').filter(|_| report["steps"].is_array());
    let rest = rest.ok_or_else(|| format!("{} is not a report of gpu-check.sh", file.display()))?;
    let text = format!("{},\n  \"bars\": [\n    {values}\n  ]\n}}\n", rest.trim_end());
    std::fs::write(file, text).map_err(|error| io_error(file, &error))?;
    Ok(table(&bars))
}

/// Formats bars as a table, and below it what fell short.
fn table(bars: &[Bar]) -> String {
    let width = |column: fn(&Bar) -> &str| bars.iter().map(|bar| column(bar).chars().count()).max().unwrap_or(0);
    let (what, bar, figure) = (width(|bar| &bar.what), width(|bar| &bar.bar), width(|bar| &bar.figure));
    let mut text = String::new();
    for it in bars {
        let line = format!("{:what$}  {:bar$}  {:>figure$}  {}", it.what, it.bar, it.figure, it.outcome());
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let count = |met: bool| bars.iter().filter(|bar| bar.met == Some(met)).count();
    let unmeasured = bars.iter().filter(|bar| bar.met.is_none() && bar.bar != "-").count();
    let _ = writeln!(text, "{} met, {} missed, {unmeasured} not measured", count(true), count(false));
    text
}

/// Returns every bar, in the order of the steps.
fn evaluate(report: &Value) -> Vec<Bar> {
    let steps = report["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let step = |name: &str| steps.iter().find(|step| step["name"] == name).unwrap_or(&Value::Null);
    let mut bars: Vec<Bar> = CORRECTNESS_STEPS.iter().map(|name| is_right(name, step(name))).collect();

    let cells = cells(step("latency, 64 packets"));
    let small = cells.iter().filter(|cell| cell.batch == 64 && !cell.is_resident());
    let fastest = small.min_by(|a, b| a.p50_us.total_cmp(&b.p50_us));
    let by = fastest.map_or(String::new(), |cell| format!(", {}", cell.dispatch));
    bars.push(Bar::at_most(format!("64 packets, p50{by}"), 10.0, " µs", fastest.map(|cell| cell.p50_us)));

    let cells = self::cells(step("large"));
    for filter in ["simple_filter", "hash_lb"] {
        let shares = cells.iter().filter(|cell| cell.is(DEVICE, filter, LARGE) && !cell.is_resident());
        let share = shares.filter_map(Cell::share_of_bus).reduce(f64::max);
        bars.push(Bar::at_least(format!("end to end, of the bus, {filter}"), 0.9, "", share));
    }
    let cells = self::cells(step("resident"));
    for (batch, name, least) in [(LARGE, "1 Mi", 0.6), (LARGEST, "8 Mi", 0.85)] {
        for filter in ["simple_filter", "hash_lb"] {
            let shares = cells.iter().filter(|cell| cell.is(DEVICE, filter, batch) && cell.is_resident());
            let share = shares.filter_map(|cell| cell.share).reduce(f64::max);
            bars.push(Bar::at_least(format!("resident, {name}, of a copy in memory, {filter}"), least, "", share));
        }
    }
    for (step_name, filters) in
        [("stateful", &["conntrack_fw", "flow_stats", "syn_flood"][..]), ("router", &["router_v4"][..])]
    {
        let cells = self::cells(step(step_name));
        for filter in filters {
            let most = |device| {
                let rates = cells.iter().filter(|cell| cell.is(device, filter, LARGE)).map(|cell| cell.mpps);
                rates.reduce(f64::max)
            };
            let ratio = most(DEVICE).zip(most("cpu")).map(|(gpu, cpu)| gpu / cpu);
            bars.push(Bar::at_least(format!("{filter}, of the CPU's rate"), 1.0, "", ratio));
        }
    }
    for workload in ["persistent", "graph"] {
        let rows = step("l2fwd, 4 pipelines")["result"]["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let row = rows.iter().find(|row| row["workload"] == workload && row["burst"] == 32 && row["mempool"] == "gpu");
        let rate = row.and_then(|row| row["ran"]["through"]["gbps"].as_f64());
        bars.push(Bar::at_least(format!("l2fwd, 4 pipelines, burst 32, {workload}"), 97.0, " Gb/s", rate));
    }
    bars.extend(peers(step("peer")));
    bars
}

/// Returns whether a step found everything right, by its exit status.
fn is_right(name: &str, step: &Value) -> Bar {
    let figure = match (step["skipped"].as_str(), step["rc"].as_i64()) {
        (Some(_), _) => "skipped".into(),
        (None, Some(0)) => "all right".into(),
        (None, Some(124 | 137)) => "out of time".into(),
        (None, Some(rc)) => format!("ends with {rc}"),
        (None, None) => "not measured".into(),
    };
    let rc = step["rc"].as_i64().filter(|rc| !matches!(rc, 124 | 137));
    Bar { what: name.into(), bar: "all right".into(), figure, met: rc.map(|rc| rc == 0) }
}

/// A cell of `portcullis bench` that was measured.
struct Cell {
    filter: String,
    device: String,
    batch: u64,
    transfer: String,
    dispatch: String,
    mpps: f64,
    p50_us: f64,
    /// Share of the ceiling, and the ceiling's name.
    share: Option<f64>,
    ceiling: String,
}

impl Cell {
    fn new(cell: &Value) -> Option<Cell> {
        let text = |name: &str| cell[name].as_str().map(str::to_owned);
        let measured = &cell["outcome"]["measured"];
        Some(Cell {
            filter: text("filter")?,
            device: text("device")?,
            batch: cell["batch"].as_u64()?,
            transfer: text("transfer")?,
            dispatch: text("dispatch")?,
            mpps: measured["mpps"]["median"].as_f64()?,
            p50_us: measured["latency"]["p50"].as_f64()? * 1e6,
            share: measured["of_ceiling"][0].as_f64(),
            ceiling: measured["of_ceiling"][1].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// Whether the cell has this device, filter and batch size. Settings are part of a filter's
    /// name, after a space.
    fn is(&self, device: &str, filter: &str, batch: u64) -> bool {
        self.device == device && self.batch == batch && self.filter.split(' ').next() == Some(filter)
    }

    fn is_resident(&self) -> bool {
        self.transfer == "device-resident"
    }

    fn share_of_bus(&self) -> Option<f64> {
        self.share.filter(|_| self.ceiling.contains("bus"))
    }
}

fn cells(step: &Value) -> Vec<Cell> {
    step["result"]["cells"].as_array().into_iter().flatten().filter_map(Cell::new).collect()
}

/// Compares XDP-on-GPU's workloads with its method, from its records and from raw packets.
fn peers(step: &Value) -> Vec<Bar> {
    let tables = step["result"]["seeds"].as_array().map_or(&[][..], Vec::as_slice);
    let cells = cells(step);
    let mut bars = Vec::new();
    for (workload, filter) in WORKLOADS {
        let table = tables.iter().find(|table| table["title"] == workload).unwrap_or(&Value::Null);
        let rate = |side: &str, source: &str| {
            let rows = table["rows"].as_array()?;
            let row = rows.iter().find(|row| row["side"] == side && row["source"] == source)?;
            let measured = &row["cells"].as_array()?.last()?["measured"];
            Some(measured["packets"].as_f64()? * 1e3 / measured["median_ns"].as_f64()?)
        };
        let (ours, records) = (rate(DEVICE, "ours"), rate("cuda:0, pinned", "like-for-like"));
        let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        bars.push(Bar::at_least(format!("{workload}, of XDP-on-GPU from records"), 1.2, "", ratio(ours, records)));
        for threads in ["one thread", "all threads"] {
            let parsed = rate(&format!("cuda:0, pinned, parsed by {threads}"), "like-for-like");
            let what = format!("{workload}, of XDP-on-GPU from packets parsed by {threads}");
            bars.push(Bar::without_bar(what, "", ratio(ours, parsed)));
        }
        if let Some(filter) = filter {
            let resident = cells.iter().filter(|cell| cell.is(DEVICE, filter, LARGE) && cell.is_resident());
            let resident = resident.map(|cell| cell.mpps).reduce(f64::max);
            let what = format!("{workload}, resident, of XDP-on-GPU from records");
            bars.push(Bar::at_least(what, 15.0, "", ratio(resident, records)));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(device: &str, filter: &str, batch: u64, transfer: &str, mpps: f64) -> Value {
        let ceiling =
            if transfer == "device-resident" { "copy in the device's memory" } else { "bus copy to the device" };
        json!({
            "filter": filter, "device": device, "batch": batch, "transfer": transfer, "dispatch": "graph",
            "outcome": {"measured": {"mpps": {"median": mpps}, "latency": {"p50": 1e-5}, "of_ceiling": [mpps / 1e3, ceiling]}},
        })
    }

    fn step(name: &str, result: Value) -> Value {
        json!({"name": name, "rc": 0, "seconds": 1, "limit": 5, "output": "", "result": result})
    }

    fn report() -> Value {
        let measured = |mpps: f64| json!([{"measured": {"packets": 1_000_000, "median_ns": 1e9 / mpps}}]);
        let row =
            |side: &str, source: &str, mpps: f64| json!({"side": side, "source": source, "cells": measured(mpps)});
        let table = json!({"title": "simple filter", "rows": [
            row("cuda:0, pinned", "like-for-like", 1000.0),
            row("cuda:0, pinned, parsed by one thread", "like-for-like", 50.0),
            row("cuda:0", "ours", 1100.0),
        ]});
        let forwarded = |workload: &str, gbps: f64| json!({"workload": workload, "burst": 32, "mempool": "gpu", "ran": {"through": {"gbps": gbps}}});
        json!({"steps": [
            step("selftest cuda", Value::Null),
            {"name": "selftest opencl", "skipped": "no driver"},
            {"name": "suites", "rc": 1, "result": null},
            {"name": "memcheck", "rc": 124, "result": null},
            step("latency, 64 packets", json!({"cells": [
                cell(DEVICE, "http_only", 64, "whole packets", 7.0),
                {"filter": "http_only", "device": DEVICE, "batch": 64, "outcome": {"wrong": {"detail": ""}}},
            ]})),
            step("large", json!({"cells": [
                cell(DEVICE, "simple_filter", LARGE, "read window", 40.0),
                cell(DEVICE, "simple_filter", LARGE, "whole packets", 910.0),
                cell("cpu", "simple_filter", LARGE, "in place", 2000.0),
            ]})),
            step("router", json!({"cells": [
                cell(DEVICE, "router_v4 --map routes=x.csv", LARGE, "whole packets", 54.0),
                cell("cpu", "router_v4 --map routes=x.csv", LARGE, "in place", 108.0),
            ]})),
            step("l2fwd, 4 pipelines", json!({"rows": [forwarded("persistent", 97.0), forwarded("graph", 96.9)]})),
            step("peer", json!({"seeds": [table], "cells": [
                cell(DEVICE, "simple_filter", LARGE, "device-resident", 15_000.0),
            ]})),
        ]})
    }

    #[test]
    fn figures_are_compared_with_their_bars() {
        let bars = evaluate(&report());
        let find =
            |what: &str| bars.iter().find(|bar| bar.what == what).unwrap_or_else(|| panic!("no {what}\n{bars:#?}"));
        for (what, figure, met) in [
            ("selftest cuda", "all right", Some(true)),
            ("selftest opencl", "skipped", None),
            ("selftest wgpu", "not measured", None),
            ("suites", "ends with 1", Some(false)),
            ("memcheck", "out of time", None),
            ("64 packets, p50, graph", "10.00 µs", Some(true)),
            ("end to end, of the bus, simple_filter", "0.91", Some(true)),
            ("end to end, of the bus, hash_lb", "not measured", None),
            ("resident, 8 Mi, of a copy in memory, hash_lb", "not measured", None),
            ("router_v4, of the CPU's rate", "0.50", Some(false)),
            ("conntrack_fw, of the CPU's rate", "not measured", None),
            ("l2fwd, 4 pipelines, burst 32, persistent", "97.00 Gb/s", Some(true)),
            ("l2fwd, 4 pipelines, burst 32, graph", "96.90 Gb/s", Some(false)),
            ("simple filter, of XDP-on-GPU from records", "1.10", Some(false)),
            ("simple filter, of XDP-on-GPU from packets parsed by one thread", "22.00", None),
            ("simple filter, of XDP-on-GPU from packets parsed by all threads", "not measured", None),
            ("simple filter, resident, of XDP-on-GPU from records", "15.00", Some(true)),
            ("minimal filter, of XDP-on-GPU from records", "not measured", None),
        ] {
            assert_eq!((find(what).figure.as_str(), find(what).met), (figure, met), "{what}");
        }
        // A run without any step has the same bars, none of them measured.
        let empty = evaluate(&json!({"steps": []}));
        assert_eq!(empty.len(), bars.len());
        assert!(empty.iter().all(|bar| bar.met.is_none()));
    }

    #[test]
    fn bars_are_added_to_the_report() {
        let file = std::env::temp_dir().join(format!("portcullis-bars-{}.json", std::process::id()));
        std::fs::write(&file, serde_json::to_string_pretty(&report()).unwrap() + "\n").unwrap();
        let table = add(&file).unwrap();
        assert!(table.contains("l2fwd, 4 pipelines, burst 32, graph "), "{table}");
        assert!(table.contains("≥ 97 Gb/s") && table.contains(" 96.90 Gb/s  missed\n"), "{table}");
        assert!(table.ends_with("5 met, 4 missed, 19 not measured\n"), "{table}");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut with_bars: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let bars = with_bars.as_object_mut().unwrap().remove("bars").unwrap();
        assert_eq!(bars[0], json!({"what": "selftest cuda", "bar": "all right", "figure": "all right", "met": true}));
        assert_eq!(with_bars, report());
        std::fs::write(&file, "[]").unwrap();
        assert!(add(&file).unwrap_err().contains("is not a report of gpu-check.sh"));
        std::fs::remove_file(&file).unwrap();
        assert!(add(&file).unwrap_err().contains(file.to_str().unwrap()));
    }
}
