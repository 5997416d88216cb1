//! Results of a benchmark run, from which files, tables, comparisons and the report are made.
//!
//! Units are seconds, bytes and millions of packets per second (Mpps). A value that was not
//! measured is `None`, never 0.

use serde::{Deserialize, Serialize};

use super::comparison_tables::Table;
use super::number::digits;

/// Version of the format, increased when older files can no longer be read.
pub const SCHEMA: u32 = 1;

/// Id of the device that chooses among others per batch.
pub const AUTO: &str = "auto";

/// Results of a benchmark run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Version of the format: [`SCHEMA`].
    pub schema: u32,
    /// The run: version, time and options.
    pub run: Run,
    /// The machine that ran it.
    pub machine: Machine,
    /// Method of the run.
    pub method: Method,
    /// The devices that were measured.
    pub devices: Vec<Device>,
    /// Backends without a device here.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Copy bandwidth of memory and buses, measured in the same run.
    #[serde(default)]
    pub ceilings: Vec<Ceiling>,
    /// The measurements.
    pub cells: Vec<Cell>,
    /// Cells that were not measured, with the reasons.
    #[serde(default)]
    pub left_out: Vec<SkippedCell>,
    /// Targets and measured values.
    #[serde(default)]
    pub bars: Vec<Bar>,
    /// Comparisons with published figures of others.
    #[serde(default, rename = "seeds")]
    pub xdp_on_gpu: Vec<Table>,
}

/// The run: version, time and options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Portcullis' version.
    pub version: String,
    /// Commit of the build, if known.
    #[serde(default)]
    pub commit: Option<String>,
    /// Start time in UTC: `2026-11-23 04:08:30 UTC`.
    pub began: String,
    /// Duration in seconds, including probing devices and compiling filters.
    pub seconds: f64,
    /// Command lines.
    pub commands: Vec<String>,
    /// Whether the run was interrupted before it had measured everything.
    #[serde(default)]
    pub interrupted: bool,
    /// Load of the machine by other processes; `None` if the system does not report it.
    #[serde(default)]
    pub load: Option<SystemLoad>,
    /// Warnings of devices that were measured, such as that they could not use pinned memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Load of the machine by other processes during a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SystemLoad {
    /// Load average over one minute at the start of the run.
    pub average_at_start: f64,
    /// Logical processors that other processes kept busy, on average over the run.
    pub busy_elsewhere: f64,
}

/// The machine that ran a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Number of logical processors.
    pub threads: usize,
    /// Further facts, each a name and a value with its unit: memory, caches, kernel, system.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
}

/// Method of a run: its matrix, its statistics and notes on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// `quick`, `full` or `chosen`.
    pub matrix: String,
    /// The confidence of intervals, as 0.95.
    pub confidence: f64,
    /// Minimum repetitions of a cell.
    pub least_repetitions: u64,
    /// Width of the confidence interval at which a cell has converged, as a share of the median.
    #[serde(default)]
    pub wanted_width: Option<f64>,
    /// The filters to be measured, whether or not there was time for them.
    #[serde(default)]
    pub filters: Vec<String>,
    /// Notes on the method, a sentence or more each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A measured device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Id, as `--device` takes it.
    pub id: String,
    /// Name that the device reports.
    pub name: String,
    /// Kind of device, in words.
    pub kind: String,
    /// Driver name and version.
    pub driver: String,
    /// Further facts, each a name and a value with its unit.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
}

impl Device {
    /// Whether the device is a hardware GPU.
    pub fn is_gpu(&self) -> bool {
        self.kind.contains("GPU") && !self.kind.contains("software")
    }
}

/// A backend that has no device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// The backend's name, or the device's id.
    pub device: String,
    /// Why the device is missing, and what to install.
    pub reason: String,
}

/// A measured copy bandwidth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Name of the copy: `memory copy`, `bus copy to the device`.
    pub name: String,
    /// Device of the bandwidth; `None` for the host.
    #[serde(default)]
    pub device: Option<String>,
    /// Bytes per second.
    pub bytes_per_second: Estimate,
}

/// A median and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Transfer of packets that are in the device's memory before timing starts.
pub const RESIDENT: &str = "device-resident";

/// A cell of the measuring matrix: one filter on one device, with one batch size, packet size,
/// transfer and dispatch method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The filter's name.
    pub filter: String,
    /// The device's id.
    pub device: String,
    /// Packets in a batch.
    pub batch: u64,
    /// Packet size in bytes, or a mix: `64`, `1500`, `imix`.
    pub packets: String,
    /// Mean packet size, in bytes.
    pub packet_bytes: f64,
    /// How packets reach the device: `whole packets`, `read window`, `imported memory`,
    /// `device-resident`.
    pub transfer: String,
    /// Dispatch method of batches: `inline`, `pipelined`.
    pub dispatch: String,
    /// Result of the cell.
    pub outcome: Outcome,
}

impl Cell {
    /// Whether packets were in the device's memory before anything was timed.
    pub fn is_resident(&self) -> bool {
        self.transfer == RESIDENT
    }

    /// Returns the figures, if the cell was measured and is right.
    pub fn measured(&self) -> Option<&Measured> {
        match &self.outcome {
            Outcome::Measured(measured) => Some(measured),
            _ => None,
        }
    }
}

/// Returns, for each key, the cell with the largest batch, and of those the fastest, among the
/// measured cells that have a value.
pub(crate) fn largest_batches<'a, K: PartialEq, T>(
    cells: impl Iterator<Item = &'a Cell>,
    key: impl Fn(&'a Cell) -> K,
    value: impl Fn(&'a Cell, &'a Measured) -> Option<T>,
) -> Vec<(&'a Cell, &'a Measured, T)> {
    let mut largest: Vec<(&Cell, &Measured, T)> = Vec::new();
    for cell in cells {
        let Some(measured) = cell.measured() else { continue };
        let Some(value) = value(cell, measured) else { continue };
        let rank = (cell.batch, measured.mpps.median);
        match largest.iter_mut().find(|(other, ..)| key(other) == key(cell)) {
            Some(other) if (other.0.batch, other.1.mpps.median) < rank => *other = (cell, measured, value),
            Some(_) => {}
            None => largest.push((cell, measured, value)),
        }
    }
    largest
}

/// Result of measuring a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The verdicts are the interpreter's.
    Measured(Box<Measured>),
    /// The verdicts differ from the interpreter's, so there is no rate.
    #[serde(rename = "wrong")]
    Mismatch {
        /// The first difference.
        detail: String,
    },
    /// The measurement failed.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Figures of a measured cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Rate in Mpps.
    pub mpps: Estimate,
    /// Rate in gigabits per second, of packet bytes without the frame check sequence.
    pub gbps: f64,
    /// Number of repetitions.
    pub repetitions: u64,
    /// Why the cell was not repeated further.
    #[serde(default)]
    pub ended: StopReason,
    /// Packets whose verdicts, lengths and bytes were compared with the interpreter's.
    #[serde(default)]
    pub compared: u64,
    /// Latency from a batch's submission to its verdicts, with no other in flight.
    pub latency: Latency,
    /// Number of latency samples; below 1,000 the maximum stands for p99.9.
    #[serde(default)]
    pub latencies: u64,
    /// Latencies at constant offered loads, the lowest load first; empty if they were not measured.
    #[serde(default)]
    pub loads: Vec<Load>,
    /// Bytes over the bus per packet, both ways; `None` without a bus.
    #[serde(default)]
    pub bus_bytes: Option<f64>,
    /// Bytes copied per packet, both ways, over a bus or not; `None` if the device works on the
    /// host's memory.
    #[serde(default)]
    pub copied_bytes: Option<f64>,
    /// Bytes of memory traffic that each packet needs.
    #[serde(default)]
    pub memory_bytes: Option<f64>,
    /// Seconds per packet by stage, if the device reports them.
    #[serde(default)]
    pub stages: Option<Stages>,
    /// Share of a copy bandwidth that the cell's traffic uses, and the name of that bandwidth.
    /// Above 1 for packets that stay in caches.
    #[serde(default)]
    pub of_ceiling: Option<(f64, String)>,
}

impl Measured {
    /// Returns the share of the measured copy bandwidth that the cell's traffic uses, in words:
    /// `12.3 % of memory copy`. A rate beyond the memory's copy bandwidth is `cached`: the packets
    /// stay in the CPU's caches, and no share of memory bandwidth describes that.
    pub fn bandwidth_used(&self) -> Option<String> {
        let (share, name) = self.of_ceiling.as_ref().filter(|(share, _)| share.is_finite())?;
        Some(match (*share > 1.0, name.starts_with("memory")) {
            (true, true) => "cached".into(),
            (true, false) => format!("> 100 % of {name}"),
            (false, _) => format!("{} % of {name}", digits(share * 100.0)),
        })
    }
}

/// Describes a packet size as [`Cell::packets`] has it: `512-byte packets`, `IMIX packets`.
pub fn packets_in_words(packets: &str) -> String {
    if packets.parse::<u64>().is_ok() {
        format!("{packets}-byte packets")
    } else {
        format!("{} packets", packets.to_uppercase())
    }
}

/// Why a cell was not repeated further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// The median's interval converged.
    Narrow,
    /// The time for it was used up.
    #[default]
    Time,
    /// The run was interrupted.
    Interrupted,
}

/// Latency of batches at a steady rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Offered rate, as a share of the measured rate.
    pub offered: f64,
    /// Rate reached, in Mpps.
    pub mpps: f64,
    /// Latency from when a batch was due to its verdicts.
    pub latency: Latency,
}

/// Latencies of batches, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

/// Time per packet by stage, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Laying bytes out for the device.
    pub gather: f64,
    /// Copying to the device.
    pub upload: f64,
    /// Running the filter.
    pub kernel: f64,
    /// Copying from the device.
    pub download: f64,
    /// Unpacking verdicts.
    pub verdicts: f64,
}

/// A cell that was not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkippedCell {
    /// The cell or group.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// A target, and what was measured against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Subject of the target.
    pub what: String,
    /// Baseline that it is compared with.
    pub against: String,
    /// The target, in words: `≥ 0.95`.
    pub bar: String,
    /// Measured value, in words, if it was measured.
    #[serde(default)]
    pub measured: Option<String>,
    /// Whether the target is met; `None` if it was not measured.
    #[serde(default)]
    pub met: Option<bool>,
    /// The command that measures it.
    pub command: String,
    /// Further notes, such as why it was not measured.
    #[serde(default)]
    pub note: Option<String>,
}
