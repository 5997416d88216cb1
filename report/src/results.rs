//! What a benchmark has found: the one shape that files, tables, comparisons and the report are
//! made from.
//!
//! Units are those of the field: seconds, bytes, millions of packets a second (Mpps). A value that
//! was not measured is not there; none is 0 for that.

use serde::{Deserialize, Serialize};

use super::number::digits;
use super::xdp_on_gpu::Table;

/// The shape's version, raised when what was written before can no longer be read.
pub const SCHEMA: u32 = 1;

/// Everything that a benchmark has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The run: version, time and options.
    pub run: Run,
    /// The machine that ran it.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// The devices that were measured.
    pub devices: Vec<Device>,
    /// Backends without a device here.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// What nothing can pass, measured in the same run.
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
    /// The commit that it was built from, where that is known.
    #[serde(default)]
    pub commit: Option<String>,
    /// When it began, in UTC: `2026-11-23 04:08:30 UTC`.
    pub began: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The commands as they were typed.
    pub commands: Vec<String>,
    /// Whether the run was interrupted before it had measured everything.
    #[serde(default)]
    pub interrupted: bool,
    /// Load of the machine by other processes; `None` if the system does not report it.
    #[serde(default)]
    pub load: Option<SystemLoad>,
}

/// Load of the machine by other processes during a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SystemLoad {
    /// Load average over one minute at the start of the run.
    pub average_at_start: f64,
    /// Logical processors that other processes kept busy, on average over the run.
    pub busy_elsewhere: f64,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Number of logical processors.
    pub threads: usize,
    /// Anything else worth knowing, each a name and a value with its unit: memory, caches, kernel,
    /// system.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
}

/// How it was measured.
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
    /// Sentences about it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// What `--device` takes.
    pub id: String,
    /// Name that the device reports.
    pub name: String,
    /// Kind of device, in words.
    pub kind: String,
    /// Driver name and version.
    pub driver: String,
    /// Anything else worth knowing, each a name and a value with its unit.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
}

/// A backend that has no device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// The backend's name, or the device's id.
    pub device: String,
    /// Why it is not there, and what to install.
    pub reason: String,
}

/// A rate that nothing can pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// What the ceiling limits: `memory copy`, `bus copy to the device`.
    pub name: String,
    /// The device whose it is; the host's where there is none.
    #[serde(default)]
    pub device: Option<String>,
    /// Bytes a second.
    pub bytes_per_second: Estimate,
}

/// A median, and what it is between with the method's confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// The transfer of packets that are in the device's memory before anything is timed.
pub const RESIDENT: &str = "device-resident";

/// A measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The filter's name.
    pub filter: String,
    /// The device's id.
    pub device: String,
    /// Packets in a batch.
    pub batch: u64,
    /// The packets: `64`, `1500`, `imix`.
    pub packets: String,
    /// Their mean size, in bytes.
    pub packet_bytes: f64,
    /// How packets come to the device: `whole packets`, `read window`, `imported memory`,
    /// `device-resident`.
    pub transfer: String,
    /// How batches are handed to it: `inline`, `pipelined`.
    pub dispatch: String,
    /// Result of the cell.
    pub outcome: Outcome,
}

impl Cell {
    /// Whether packets were in the device's memory before anything was timed.
    pub fn is_resident(&self) -> bool {
        self.transfer == RESIDENT
    }
}

/// Result of measuring a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The verdicts are the interpreter's.
    Measured(Box<Measured>),
    /// They are not; no speed counts then.
    Wrong {
        /// What differed first.
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
    /// Millions of packets a second.
    pub mpps: Estimate,
    /// Gigabits of packets a second.
    pub gbps: f64,
    /// How often it was repeated.
    pub repetitions: u64,
    /// Why it was repeated no more: the interval was as narrow as wanted, or the time was used up.
    #[serde(default)]
    pub ended: StopReason,
    /// Packets whose verdicts, lengths and bytes were compared with the interpreter's.
    #[serde(default)]
    pub compared: u64,
    /// From a batch's submission to its verdicts, with no other in flight.
    pub latency: Latency,
    /// How many latencies were taken; of fewer than 1,000 the longest stands for p99.9.
    #[serde(default)]
    pub latencies: u64,
    /// Latencies at constant offered loads, the lowest load first; empty if they were not measured.
    #[serde(default)]
    pub loads: Vec<Load>,
    /// Bytes over the bus for each packet, both ways; nothing where there is no bus.
    #[serde(default)]
    pub bus_bytes: Option<f64>,
    /// Bytes copied for each packet, both ways, over a bus or not; nothing where the device works
    /// on the host's memory.
    #[serde(default)]
    pub copied_bytes: Option<f64>,
    /// Bytes of memory that must move for each packet.
    #[serde(default)]
    pub memory_bytes: Option<f64>,
    /// Where the time goes, where that could be told: seconds a packet, by stage.
    #[serde(default)]
    pub stages: Option<Stages>,
    /// The share of the ceiling that counts for this cell, and that ceiling's name.
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

/// Why a measurement was not repeated any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// The median's interval was as narrow as wanted.
    Narrow,
    /// The time for it was used up.
    #[default]
    Time,
    /// Somebody interrupted the run.
    Interrupted,
}

/// Batches that come at a steady rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The rate at which they come, as a share of the measured one.
    pub offered: f64,
    /// Millions of packets a second that were filtered then.
    pub mpps: f64,
    /// From when a batch was due to its verdicts.
    pub latency: Latency,
}

/// Latencies of batches, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half take no longer.
    pub p50: f64,
    /// 99 of 100 take no longer.
    pub p99: f64,
    /// 999 of 1,000 take no longer.
    pub p999: f64,
}

/// Where a packet's time goes, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Bytes laid out for the device.
    pub gather: f64,
    /// To the device.
    pub upload: f64,
    /// The filter.
    pub kernel: f64,
    /// From the device.
    pub download: f64,
    /// Verdicts made of what came.
    pub verdicts: f64,
}

/// A cell that was not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkippedCell {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// A demand, and what was measured against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Subject of the target.
    pub what: String,
    /// Against what.
    pub against: String,
    /// The bar, in words: `≥ 0.95`.
    pub bar: String,
    /// Measured value, in words, if it was measured.
    #[serde(default)]
    pub measured: Option<String>,
    /// Whether that reaches the bar; nothing where it was not measured.
    #[serde(default)]
    pub met: Option<bool>,
    /// The command that measures it.
    pub command: String,
    /// Anything to know about it: why it was not measured.
    #[serde(default)]
    pub note: Option<String>,
}
