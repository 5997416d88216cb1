//! Targets for speed and correctness (docs/performance.md), and how a run compares with them.
//!
//! Targets that a run can measure are judged here; for those that other benchmarks measure, the
//! target names their command.

use std::fs::OpenOptions;
use std::io::{Error, Write};

use super::number::digits;
use super::results::{AUTO, Bar, Cell, Device, Measured, Outcome, Results, largest_batches};
use super::xdp_on_gpu::{Row, Source, Table};

/// Compares a run with every target, in the order of docs/performance.md.
pub fn evaluate(results: &Results) -> Vec<Bar> {
    let mut bars = vec![verdicts(results)];
    bars.extend(EXTERNAL_FIRST.map(external_bar));
    bars.extend(gpus(results));
    bars.extend(software(results));
    bars.extend(auto(results));
    bars.extend(xdp_on_gpu_bars(results));
    bars.extend(EXTERNAL_LAST.map(external_bar));
    bars
}

/// Replaces unmeasured targets by those that other benchmarks measured, and appends new ones.
pub fn add(bars: &mut Vec<Bar>, measured: Vec<Bar>) {
    for bar in measured {
        match bars.iter_mut().find(|other| other.what == bar.what && other.measured.is_none()) {
            Some(other) => *other = bar,
            None => bars.push(bar),
        }
    }
}

/// Environment variable that names the file to which separate benchmarks append their results, for
/// `--bars`.
pub const FILE: &str = "PORTCULLIS_BARS";

/// Returns the target of a separate benchmark, judged by the lowest of named ratios; `None` without
/// any.
pub fn of_ratios(what: &str, against: &str, least: f64, command: &str, ratios: &[(String, f64)]) -> Option<Bar> {
    let (worst, lowest) = ratios.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let highest = ratios.iter().map(|(_, ratio)| *ratio).fold(*lowest, f64::max);
    let range = if highest > *lowest { format!("{lowest:.2} to {highest:.2}") } else { format!("{lowest:.2}") };
    Some(Bar {
        what: what.into(),
        against: against.into(),
        bar: format!("≥ {least:?}"),
        measured: Some(range),
        met: Some(*lowest >= least),
        command: command.into(),
        note: Some(format!("lowest: {worst}")),
    })
}

/// Appends targets as JSON lines to the file that [`FILE`] names; does nothing if it is unset.
///
/// # Errors
/// The file cannot be written.
pub fn record(bars: impl IntoIterator<Item = Bar>) -> Result<(), Error> {
    let Some(file) = std::env::var_os(FILE).filter(|file| !file.is_empty()) else { return Ok(()) };
    let lines = bars.into_iter().map(|bar| serde_json::to_string(&bar).map(|line| line + "\n"));
    let lines = lines.collect::<Result<String, _>>()?;
    OpenOptions::new().create(true).append(true).open(file)?.write_all(lines.as_bytes())
}

/// Reads targets from a JSON list or from concatenated JSON values. Of equal ones the last counts.
///
/// # Errors
/// The text is anything else.
pub fn read(text: &[u8]) -> Result<Vec<Bar>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Item {
        List(Vec<Bar>),
        One(Box<Bar>),
    }
    let mut bars: Vec<Bar> = Vec::new();
    for item in serde_json::Deserializer::from_slice(text).into_iter::<Item>() {
        let new = match item? {
            Item::List(list) => list,
            Item::One(bar) => vec![*bar],
        };
        for bar in new {
            match bars
                .iter_mut()
                .find(|other| (&other.what, &other.against, &other.bar) == (&bar.what, &bar.against, &bar.bar))
            {
                Some(other) => *other = bar,
                None => bars.push(bar),
            }
        }
    }
    Ok(bars)
}

/// A target that another benchmark measures: subject, baseline, target, command.
type ExternalTarget = (&'static str, &'static str, &'static str, &'static str);

/// Targets of other benchmarks that docs/performance.md has before those judged here.
const EXTERNAL_FIRST: [ExternalTarget; 3] = [
    (
        "CPU, one thread, stock stateless filters",
        "the same filter in hand-written safe Rust, same run",
        "≥ 1.0",
        "cargo bench --bench stock",
    ),
    (
        "OpenCL on PoCL, kernel",
        "hand-written OpenCL C on PoCL, same run",
        "≥ 0.95",
        "cargo bench --bench opencl --features opencl",
    ),
    (
        "OpenCL sessions, end to end",
        "their kernel alone, same run",
        "≥ 0.9",
        "cargo bench --bench opencl --features opencl",
    ),
];

/// Targets of other benchmarks that docs/performance.md has after those judged here.
const EXTERNAL_LAST: [ExternalTarget; 3] = [
    ("capture in, capture out", "tcpdump -r -w EXPR, same capture", "≥ 2", "cargo bench --bench capture"),
    (
        "AF_XDP receive",
        "testpmd’s af_xdp port, same generator",
        "≥ 1.0",
        "cargo bench -p portcullis-live-tests --features bench --bench af_xdp",
    ),
    (
        "DPDK forward",
        "testpmd, same ports",
        "≥ 0.9, then 1.0",
        "cargo bench -p portcullis-live-tests --features bench,dpdk --bench dpdk",
    ),
];

fn external_bar((what, against, bar, command): ExternalTarget) -> Bar {
    let note = Some("measured by a benchmark of its own".into());
    Bar { command: command.into(), note, ..target(what.into(), against, bar) }
}

/// Returns a target judged here, without a measurement.
fn target(what: String, against: &str, bar: &str) -> Bar {
    let (against, bar, command) = (against.into(), bar.into(), "portcullis bench".into());
    Bar { what, against, bar, measured: None, met: None, command, note: None }
}

fn verdicts(results: &Results) -> Bar {
    let judged = results.cells.iter().filter(|c| !matches!(c.outcome, Outcome::Failed { .. })).count();
    let wrong = results.cells.iter().filter(|c| matches!(c.outcome, Outcome::Mismatch { .. })).count();
    let what = "measurements with the right verdicts and packets".into();
    Bar {
        measured: (judged > 0).then(|| format!("{} of {judged}", judged - wrong)),
        met: (judged > 0).then_some(wrong == 0),
        note: (judged == 0).then(|| "nothing was measured".into()),
        ..target(what, "the reference interpreter", "identical, always")
    }
}

/// Returns each filter's fastest cell at its largest batch on a device, with its value.
fn largest_cells<'a>(
    results: &'a Results,
    device: &str,
    value: impl Fn(&Cell, &Measured) -> Option<f64>,
) -> impl Iterator<Item = (&'a Cell, &'a Measured, f64)> {
    let cells = results.cells.iter().filter(|c| c.device == device);
    largest_batches(cells, |cell| &cell.filter, value).into_iter()
}

/// Targets for the share of memory and bus bandwidth that GPUs reach.
fn gpus(results: &Results) -> Vec<Bar> {
    let gpus: Vec<&Device> = results.devices.iter().filter(|device| device.is_gpu()).collect();
    let demands = [
        ("packets on the device", "measured copy bandwidth of that GPU", "≥ 0.6, from 8 Mi packets 0.85", true),
        ("end to end", "measured bus bandwidth, for the bytes that must move", "≥ 0.9", false),
    ];
    let mut bars = Vec::new();
    for (how, against, bar, resident) in demands {
        let before = bars.len();
        let share = |cell: &Cell, measured: &Measured| {
            let (share, name) = measured.of_ceiling.as_ref()?;
            (cell.is_resident() == resident && resident != name.contains("bus")).then_some(*share)
        };
        for gpu in &gpus {
            bars.extend(largest_cells(results, &gpu.id, share).map(|(cell, _, share)| Bar {
                measured: Some(format!("{share:.2}")),
                met: Some(share >= least_share(resident, cell.batch)),
                ..target(format!("{}, {how}, {}", gpu.id, cell.filter), against, bar)
            }));
        }
        if bars.len() == before {
            let why = if gpus.is_empty() { "no GPU on this machine" } else { "no such measurement in this run" };
            bars.push(Bar { note: Some(why.into()), ..target(format!("GPU, {how}"), against, bar) });
        }
    }
    bars
}

/// Least share of memory or bus bandwidth. A launch and the return of verdicts weigh less in larger
/// batches of resident packets.
fn least_share(is_resident: bool, batch: u64) -> f64 {
    match (is_resident, batch >= 8 << 20) {
        (false, _) => 0.9,
        (true, false) => 0.6,
        (true, true) => 0.85,
    }
}

/// Targets for wgpu on a software driver: end to end against its kernel.
fn software(results: &Results) -> Vec<Bar> {
    let devices = results.devices.iter().filter(|d| d.id.starts_with("wgpu") && d.kind.contains("software"));
    let mut bars = Vec::new();
    for device in devices {
        let kernel = |cell: &Cell, measured: &Measured| {
            measured.stages.map(|stages| stages.kernel).filter(|kernel| !cell.is_resident() && *kernel > 0.0)
        };
        bars.extend(largest_cells(results, &device.id, kernel).map(|(cell, measured, kernel)| {
            let ratio = 1e-6 / measured.mpps.median / kernel;
            let what = format!("{} on a software GPU, end to end, {}", device.id, cell.filter);
            Bar {
                measured: Some(format!("{ratio:.2}")),
                met: Some(ratio <= 1.3),
                ..target(what, "the time of its kernel", "≤ 1.3")
            }
        }));
    }
    bars
}

/// Target for `--device auto` against the best measured device that it may choose, where its ratio
/// is lowest.
fn auto(results: &Results) -> Option<Bar> {
    let is_one = |id: &str| results.devices.iter().any(|device| device.id == id && is_auto_candidate(device));
    let medians = |auto: bool| {
        let of = move |c: &&Cell| if auto { c.device == AUTO } else { c.device != AUTO && is_one(&c.device) };
        let cells = results.cells.iter().filter(move |c| of(c) && !c.is_resident());
        cells.filter_map(|cell| Some((cell, cell.measured()?.mpps.median)))
    };
    let mut worst: Option<(f64, &Cell)> = None;
    for (cell, _) in medians(true) {
        let same =
            |other: &Cell| (&other.filter, other.batch, &other.packets) == (&cell.filter, cell.batch, &cell.packets);
        let most = |auto| medians(auto).filter(|(other, _)| same(other)).map(|(_, mpps)| mpps).fold(0.0, f64::max);
        let ratio = most(true) / most(false);
        if ratio.is_finite() && worst.is_none_or(|(least, _)| ratio < least) {
            worst = Some((ratio, cell));
        }
    }
    worst.map(|(ratio, cell)| Bar {
        measured: Some(format!("{ratio:.2} at worst")),
        met: Some(ratio >= 0.9),
        note: Some(format!("the worst is {} in batches of {}, packets {}", cell.filter, cell.batch, cell.packets)),
        ..target("--device auto, at any batch size".into(), "the best single device, same run", "≥ 0.9")
    })
}

/// Whether `auto` may choose a device: hardware GPUs and `cpu`.
fn is_auto_candidate(device: &Device) -> bool {
    let (backend, _) = device.id.split_once(['@', ':']).unwrap_or((&device.id, ""));
    backend == "cpu" || device.is_gpu()
}

/// Targets for XDP-on-GPU's workloads, on software devices its two main ones: Portcullis on raw
/// packets against its method on the same device, from records in host memory.
fn xdp_on_gpu_bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for device in &results.devices {
        // The last column with a rate, and that rate in Mpps.
        let of = |table: &Table, source| -> Option<(usize, f64)> {
            let is_its = |row: &&Row| row.source == source && row.side.split(',').next() == Some(device.id.as_str());
            let row = table.rows.iter().find(is_its)?;
            row.cells.iter().enumerate().rev().find_map(|(column, cell)| Some((column, cell.mpps()?)))
        };
        let is_main = |title: &str| matches!(title, "simple filter" | "hash load balancer");
        for table in results.xdp_on_gpu.iter().filter(|table| device.is_gpu() || is_main(&table.title)) {
            let Some((column, ours)) = of(table, Source::Portcullis) else { continue };
            let Some((_, theirs)) = of(table, Source::LikeForLike).filter(|(at, _)| *at == column) else { continue };
            let packets = table.columns[column];
            let least = if device.is_gpu() { 1.2 } else { 3.0 };
            let what = format!("{}, end to end, {}, {} packets", device.id, table.title, digits(packets as f64));
            bars.push(Bar {
                measured: Some(digits(ours / theirs)),
                met: Some(ours / theirs >= least),
                ..target(what, "XDP-on-GPU’s way on the same device, same run", &format!("≥ {least}"))
            });
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use crate::results::Stages;

    fn find<'a>(bars: &'a [Bar], what: &str) -> &'a Bar {
        bars.iter().find(|bar| bar.what == what).unwrap_or_else(|| panic!("no {what}"))
    }

    #[test]
    fn one_wrong_measurement_is_a_miss() {
        let mut results = fixture::full();
        results.cells.retain(|c| c.measured().is_some());
        let verdicts =
            |results: &Results| find(&evaluate(results), "measurements with the right verdicts and packets").clone();
        assert_eq!(verdicts(&results).met, Some(true));
        results.cells[0].outcome = Outcome::Mismatch { detail: String::new() };
        assert_eq!(verdicts(&results).met, Some(false));
        assert!(
            verdicts(&results).measured.is_some_and(|m| m.starts_with(&format!("{} of ", results.cells.len() - 1)))
        );
        results.cells.clear();
        assert_eq!((verdicts(&results).met, verdicts(&results).measured), (None, None));
    }

    #[test]
    fn a_gpu_is_judged_by_its_largest_batch() {
        let mut results = fixture::full();
        let cell = |batch, share: f64, name: &str, transfer: &str| {
            let mut cell = fixture::cell(0, 3, batch, 0, transfer);
            fixture::measured(&mut cell).unwrap().of_ceiling = Some((share, name.into()));
            cell
        };
        results.cells = vec![
            cell(64, 0.95, "bus copy", "whole packets"),
            cell(1_024, 0.89, "bus copy", "whole packets"),
            cell(1_024, 0.85, "memory copy of the device", "device-resident"),
        ];
        let bars = evaluate(&results);
        let bus = find(&bars, "cuda:0, end to end, simple_filter");
        assert_eq!((bus.measured.as_deref(), bus.met), (Some("0.89"), Some(false)));
        let memory = find(&bars, "cuda:0, packets on the device, simple_filter");
        assert_eq!((memory.measured.as_deref(), memory.met), (Some("0.85"), Some(true)));
        for (batch, share, met) in
            [(1 << 20, 0.6, true), (1 << 20, 0.59, false), (8 << 20, 0.85, true), (8 << 20, 0.84, false)]
        {
            results.cells = vec![cell(batch, share, "memory copy of the device", "device-resident")];
            let bars = evaluate(&results);
            assert_eq!(find(&bars, "cuda:0, packets on the device, simple_filter").met, Some(met), "{batch}, {share}");
        }
        results.devices.clear();
        assert_eq!(find(&evaluate(&results), "GPU, end to end").note.as_deref(), Some("no GPU on this machine"));
    }

    #[test]
    fn the_least_ratio_counts() {
        let ratios = [("a".to_owned(), 1.2), ("b".to_owned(), 0.949), ("c".to_owned(), 3.0)];
        let bar = |least, ratios| of_ratios("x", "y", least, "z", ratios);
        let found = bar(0.95, &ratios[..]).unwrap();
        assert_eq!((found.measured.as_deref(), found.met), (Some("0.95 to 3.00"), Some(false)));
        assert_eq!((found.bar.as_str(), found.note.as_deref()), ("≥ 0.95", Some("lowest: b")));
        let one = bar(1.0, &ratios[..1]).unwrap();
        assert_eq!((one.measured.as_deref(), one.met, one.bar.as_str()), (Some("1.20"), Some(true), "≥ 1.0"));
        assert_eq!(bar(1.0, &[]), None);
    }

    #[test]
    fn bar_files_are_a_list_or_lines() {
        let one = of_ratios("x", "y", 1.0, "z", &[("a".into(), 2.0)]).unwrap();
        let other = Bar { what: "w".into(), ..one.clone() };
        let newer = Bar { measured: Some("0.50".into()), met: Some(false), ..one.clone() };
        let text = |bar: &Bar| serde_json::to_string(bar).unwrap();
        let lines = [text(&one), text(&other), text(&newer)].join("\n");
        assert_eq!(read(lines.as_bytes()).unwrap(), [newer.clone(), other.clone()]);
        let list = serde_json::to_string_pretty(&[one.clone(), other.clone()]).unwrap();
        assert_eq!(read(list.as_bytes()).unwrap(), [one, other.clone()]);
        assert_eq!(read(b"").unwrap(), []);
        for wrong in ["{", "[1]", "{\"what\": 1}", "no", &(text(&other) + "}")] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn auto_is_judged_where_it_does_worst() {
        let mut results = fixture::full();
        results.cells =
            vec![fixture::cell(0, 0, 64, 0, "whole packets"), fixture::cell(0, 0, 1_024, 0, "whole packets")];
        assert!(evaluate(&results).iter().all(|bar| !bar.what.contains("auto")));
        for (cell, factor) in results.cells.clone().into_iter().zip([1.0, 0.8]) {
            let mut cell = Cell { device: "auto".into(), ..cell };
            fixture::measured(&mut cell).unwrap().mpps.median *= factor;
            results.cells.push(cell);
        }
        let bars = evaluate(&results);
        let auto = find(&bars, "--device auto, at any batch size");
        assert_eq!((auto.measured.as_deref(), auto.met), (Some("0.80 at worst"), Some(false)));
    }

    #[test]
    fn software_is_judged_against_its_kernel() {
        let mut results = fixture::full();
        results.devices.iter_mut().for_each(|d| d.kind = "software GPU".into());
        let mut cell = fixture::cell(0, 2, 1_024, 0, "whole packets");
        let measured = fixture::measured(&mut cell).unwrap();
        measured.mpps.median = 50.0;
        measured.stages = Some(Stages { kernel: 16e-9, ..Stages::default() });
        results.cells = vec![cell];
        let bars = evaluate(&results);
        let bar = find(&bars, "wgpu:0 on a software GPU, end to end, simple_filter");
        // 20 ns a packet, of which 16 in the kernel.
        assert_eq!((bar.measured.as_deref(), bar.met), (Some("1.25"), Some(true)));
    }

    #[test]
    fn results_of_other_benchmarks_replace_unmeasured_targets() {
        let mut bars = evaluate(&fixture::empty());
        let count = bars.len();
        let measured =
            Bar { measured: Some("2.43".into()), met: Some(true), ..find(&bars, "capture in, capture out").clone() };
        let new = Bar { what: "something else".into(), ..measured.clone() };
        add(&mut bars, vec![measured.clone(), new.clone()]);
        assert_eq!(find(&bars, "capture in, capture out"), &measured);
        assert_eq!((bars.len(), bars.last()), (count + 1, Some(&new)));
        // A second one of the same subject is another measurement.
        add(&mut bars, vec![measured.clone()]);
        assert_eq!(bars.len(), count + 2);
    }

    #[test]
    fn sides_are_compared_in_a_column_that_both_have() {
        use crate::xdp_on_gpu::Cell;
        let mut results = fixture::full();
        let processor = results.devices.iter().find(|d| !d.kind.contains("GPU")).expect("there is one").id.clone();
        let cell = |mpps: Option<f64>| match mpps {
            Some(mpps) => Cell::Measured {
                packets: 1000,
                median_ns: 1e6 / mpps,
                low_ns: 1e6 / mpps,
                high_ns: 1e6 / mpps,
                samples: 9,
            },
            None => Cell::None { reason: None },
        };
        let row = |source, side: String, cells: [Option<f64>; 2]| Row {
            of: String::new(),
            side,
            source,
            cells: cells.map(cell).to_vec(),
        };
        let mut bars_of = |theirs: [Option<f64>; 2], ours: [Option<f64>; 2]| {
            results.xdp_on_gpu = vec![Table {
                title: "simple filter".into(),
                note: String::new(),
                across: "packets".into(),
                columns: vec![100, 1000],
                rows: vec![
                    row(Source::LikeForLike, format!("{processor}, pinned"), theirs),
                    row(Source::Portcullis, processor.clone(), ours),
                ],
            }];
            super::xdp_on_gpu_bars(&results).into_iter().map(|bar| (bar.measured, bar.met)).collect::<Vec<_>>()
        };
        let found = |measured: &str, met| vec![(Some(measured.to_owned()), Some(met))];
        assert_eq!(bars_of([Some(100.0), Some(50.0)], [Some(1.0), Some(151.0)]), found("3.02", true));
        assert_eq!(bars_of([Some(1.0), Some(50.0)], [Some(100.0), Some(149.0)]), found("2.98", false));
        // Rates of different columns are not compared.
        assert_eq!(bars_of([Some(1.0), None], [Some(100.0), Some(149.0)]), []);
        assert_eq!(bars_of([Some(1.0), Some(2.0)], [None, None]), []);
    }

    #[test]
    fn a_gpu_is_compared_with_every_workload_from_records() {
        use crate::xdp_on_gpu::Cell;
        let mut results = fixture::full();
        let row = |source, side: &str, median_ns: f64| Row {
            of: String::new(),
            side: side.into(),
            source,
            cells: vec![Cell::Measured { packets: 1000, median_ns, low_ns: median_ns, high_ns: median_ns, samples: 9 }],
        };
        results.xdp_on_gpu = [("complex filter", 1000.0), ("minimal filter", 1001.0)]
            .map(|(title, ours)| Table {
                title: title.into(),
                note: String::new(),
                across: "packets".into(),
                columns: vec![1000],
                rows: vec![
                    row(Source::LikeForLike, "cuda:0, pinned", 1200.0),
                    row(Source::LikeForLike, "cuda:0, pinned, parsed by one thread", 9000.0),
                    row(Source::Portcullis, "cuda:0", ours),
                ],
            })
            .into();
        let bars = super::xdp_on_gpu_bars(&results);
        let found: Vec<_> = bars.iter().map(|bar| (bar.what.as_str(), bar.bar.as_str(), bar.met)).collect();
        assert_eq!(
            found,
            [
                ("cuda:0, end to end, complex filter, 1,000 packets", "≥ 1.2", Some(true)),
                ("cuda:0, end to end, minimal filter, 1,000 packets", "≥ 1.2", Some(false)),
            ]
        );
    }
}
