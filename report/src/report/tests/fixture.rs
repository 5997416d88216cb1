//! Synthetic results from a cost model: a device has a cost per batch, a cost per packet, and moves
//! bytes.

use crate::results::*;
use crate::xdp_on_gpu::{self, Row, Source, Table};

/// Filters, with their cost per packet on a processor, in nanoseconds.
pub const FILTERS: [(&str, f64); 3] = [("simple_filter", 3.1), ("http_only", 9.0), ("hash_lb", 14.0)];
/// Batch sizes, in packets.
pub const BATCHES: [u64; 6] = [64, 1_024, 16_384, 262_144, 1_048_576, 10_000_000];
/// Packet sizes, with their mean in bytes.
pub const PACKETS: [(&str, f64); 3] = [("64", 64.0), ("1500", 1_500.0), ("imix", 353.8)];

/// Devices: id, name, nanoseconds a batch, share of the processor's time for a packet, whether
/// there is a bus.
const DEVICES: [(&str, &str, f64, f64, bool); 4] = [
    ("cpu", "AMD EPYC 9B45", 400.0, 1.0, false),
    ("opencl:0", "pthread-AMD EPYC 9B45", 12_000.0, 0.8, false),
    ("wgpu:0", "llvmpipe (LLVM 15.0.6, 256 bits)", 90_000.0, 1.4, true),
    ("cuda:0", "NVIDIA H100 80GB HBM3", 25_000.0, 0.05, true),
];

fn around(median: f64, noise: f64) -> Estimate {
    Estimate { median, low: median * (1.0 - noise), high: median * (1.0 + noise) }
}

/// Returns one measured cell.
pub fn cell(filter: usize, device: usize, batch: u64, packets: usize, transfer: &str) -> Cell {
    let (id, _, start, share, bus) = DEVICES[device];
    let (packets, packet_bytes) = PACKETS[packets];
    let moved = if transfer == "read window" { 54.0 } else { packet_bytes };
    let gather = if transfer == "read window" { 0.9 } else { 0.0 };
    let upload = if bus && transfer != "device-resident" { moved / 25.0 } else { 0.0 };
    let stages = Stages {
        gather: gather * 1e-9,
        upload: upload * 1e-9,
        kernel: FILTERS[filter].1 * share * 1e-9,
        download: if bus { 0.05e-9 } else { 0.0 },
        verdicts: 0.06e-9,
    };
    let packet = stages.gather + stages.upload + stages.kernel + stages.download + stages.verdicts;
    let time = start * 1e-9 + batch as f64 * packet;
    let mpps = batch as f64 / time / 1e6;
    let noise = 0.02 + 2.0 / (batch as f64).sqrt().max(20.0);
    let measured = Measured {
        mpps: around(mpps, noise),
        gbps: mpps * packet_bytes * 8.0 / 1e3,
        repetitions: (30 + 1_000_000 / batch).min(1_000),
        ended: if batch < 1_000_000 { StopReason::Narrow } else { StopReason::Time },
        compared: batch,
        latency: Latency { p50: time, p99: time * 1.4, p999: time * 2.6 },
        latencies: (20_000_000 / batch).clamp(10, 20_000),
        loads: [0.1, 0.5, 0.9]
            .map(|offered| {
                let waits = time / (1.0 - offered);
                let latency = Latency { p50: time, p99: waits * 1.4, p999: waits * 3.0 };
                Load { offered, mpps: mpps * offered, latency }
            })
            .into(),
        bus_bytes: bus.then_some(if transfer == "device-resident" { 1.0 } else { moved + 1.0 }),
        copied_bytes: None,
        memory_bytes: Some(moved + 1.0),
        stages: Some(stages),
        of_ceiling: Some((
            mpps * 1e6 * moved / if bus { 25e9 } else { 28e9 },
            if bus { "bus copy" } else { "memory copy" }.into(),
        )),
    };
    Cell {
        filter: FILTERS[filter].0.into(),
        device: id.into(),
        batch,
        packets: packets.into(),
        packet_bytes,
        transfer: transfer.into(),
        dispatch: "pipelined".into(),
        outcome: Outcome::Measured(Box::new(measured)),
    }
}

/// Returns the figures of a measured cell, to change them.
pub fn measured(cell: &mut Cell) -> Option<&mut Measured> {
    match &mut cell.outcome {
        Outcome::Measured(measured) => Some(measured),
        _ => None,
    }
}

/// Returns a run without any measurement.
pub fn empty() -> Results {
    Results {
        schema: SCHEMA,
        run: Run {
            version: "0.1.0".into(),
            commit: Some("d10bdda".into()),
            began: "2026-11-23 04:08:30 UTC".into(),
            seconds: 104.2,
            commands: vec!["portcullis bench --quick --report out.html".into()],
            interrupted: false,
            load: Some(SystemLoad { average_at_start: 0.4, busy_elsewhere: 0.1 }),
            warnings: Vec::new(),
        },
        machine: Machine {
            processor: "AMD EPYC 9B45".into(),
            threads: 2,
            facts: vec![("memory".into(), "24 GiB".into())],
        },
        method: Method {
            matrix: "quick".into(),
            confidence: 0.95,
            least_repetitions: 10,
            wanted_width: Some(0.03),
            filters: FILTERS.map(|(name, ..)| name.into()).into(),
            notes: vec!["Medians, with intervals by order statistics.".into()],
        },
        devices: Vec::new(),
        missing: Vec::new(),
        ceilings: Vec::new(),
        cells: Vec::new(),
        left_out: Vec::new(),
        bars: Vec::new(),
        xdp_on_gpu: Vec::new(),
    }
}

/// Returns a complete run, with one wrong cell and one failed cell.
pub fn full() -> Results {
    let mut results = empty();
    results.devices = DEVICES
        .map(|(id, name, ..)| Device {
            id: id.into(),
            name: name.into(),
            kind: if id == "cpu" { "CPU" } else { "discrete GPU" }.into(),
            driver: "driver 1.2.3".into(),
            facts: vec![("memory".into(), "80 GiB".into())],
        })
        .into();
    results.missing =
        vec![Missing { device: "opencl".into(), reason: "there is no OpenCL on this machine; install an ICD".into() }];
    results.ceilings = vec![
        Ceiling { name: "memory copy".into(), device: None, bytes_per_second: around(28e9, 0.03) },
        Ceiling {
            name: "bus copy to the device".into(),
            device: Some("cuda:0".into()),
            bytes_per_second: around(25e9, 0.01),
        },
    ];
    for filter in 0..FILTERS.len() {
        for (device, (id, .., bus)) in DEVICES.iter().enumerate() {
            for packets in 0..PACKETS.len() {
                for batch in BATCHES {
                    results.cells.push(cell(filter, device, batch, packets, "whole packets"));
                    if *bus {
                        results.cells.push(cell(filter, device, batch, packets, "read window"));
                    }
                    if *id == "cuda:0" {
                        results.cells.push(cell(filter, device, batch, packets, "device-resident"));
                    }
                }
            }
        }
    }
    let place = |device: &str| results.cells.iter().position(|c| c.device == device).expect("each device has cells");
    let (wrong, failed) = (place("wgpu:0"), place("cuda:0"));
    results.cells[wrong].outcome =
        Outcome::Mismatch { detail: "packet 17 of mixed traffic: DROP instead of PASS".into() };
    results.cells[failed].outcome = Outcome::Failed { reason: "the device was lost".into() };
    results.left_out = vec![SkippedCell { what: "unified memory".into(), why: "no transfer is timed there".into() }];
    let bar = |what: &str, measured: Option<&str>, met, note: Option<&str>| Bar {
        what: what.into(),
        against: "the same filter in hand-written safe Rust, same run".into(),
        bar: "≥ 1.0".into(),
        measured: measured.map(Into::into),
        met,
        command: "cargo bench --bench stock".into(),
        note: note.map(Into::into),
    };
    results.bars = vec![
        bar("CPU, one thread, simple_filter", Some("2.04 (1.98 to 2.11)"), Some(true), None),
        bar("CPU, one thread, hash_lb", Some("0.96 (0.93 to 0.98)"), Some(false), None),
        bar("CPU, one thread, http_only", Some("0.99 (0.97 to 1.01)"), Some(false), None),
        bar("GPU kernel", None, None, Some("no GPU on this machine")),
    ];
    let row = |of: &str, side: &str, source, cells| Row { of: of.into(), side: side.into(), source, cells };
    let measured = |packets: u64, mpps: f64| {
        let median_ns = packets as f64 / mpps * 1e3;
        xdp_on_gpu::Cell::Measured {
            packets,
            median_ns,
            low_ns: median_ns * 0.98,
            high_ns: median_ns * 1.03,
            samples: 21,
        }
    };
    results.xdp_on_gpu = vec![Table {
        title: "port filter".into(),
        note: "40-byte event records, 80 bytes a packet over the bus.".into(),
        across: "packets".into(),
        columns: vec![100_000, 10_000_000],
        rows: vec![
            row(
                "",
                "its GPU, pinned",
                Source::Published,
                vec![
                    xdp_on_gpu::Cell::None { reason: None },
                    xdp_on_gpu::Cell::Published { packets: 10_000_000, mean_ns: 9.365e6 },
                ],
            ),
            row("", "opencl:0", Source::Portcullis, vec![measured(100_000, 312.0), measured(10_000_000, 400.0)]),
        ],
    }];
    results
}
