//! Results of l2fwd as a table and as JSON.

use std::time::Duration;

use portcullis::device::DeviceInfo;
use portcullis::packet::Action;
use portcullis::packet_io::dpdk::{self, PortInfo};
use portcullis::packet_io::live::{ExecutedCounts, Loss};
use portcullis::pipeline::live::{Latency, Summary};
use serde::Serialize;

use super::Args;
use super::plan::{Mode, Workload};
use crate::out;
use crate::run::live::report::Balance;

/// Bytes that a packet has on the wire but not in memory: frame check sequence (4, IEEE 802.3), and
/// preamble, start of frame and inter-frame gap (20, RFC 2544 appendix B).
const WIRE_OVERHEAD: u64 = 24;

/// Results of all modes.
#[derive(Debug, Serialize)]
pub struct Report {
    program: &'static str,
    machine: Machine,
    dpdk: String,
    ports: Vec<Port>,
    filter: String,
    pipelines: u16,
    header_split: Option<u16>,
    work_ns: u64,
    flush_us: f64,
    overload: String,
    /// One row for each mode, in order.
    pub rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Machine {
    processor: String,
    processors: usize,
    system: String,
}

#[derive(Debug, Serialize)]
struct Port {
    name: String,
    driver: String,
    /// NUMA node, if known.
    numa_node: Option<u32>,
}

/// Device of a mode.
#[derive(Debug, Clone, Serialize)]
pub struct Worker {
    /// Identifier, as `--device` takes it.
    pub id: String,
    name: String,
    driver: String,
}

impl From<&DeviceInfo> for Worker {
    fn from(info: &DeviceInfo) -> Worker {
        Worker { id: info.id.clone(), name: info.name.clone(), driver: info.driver.clone() }
    }
}

/// Results of one mode.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Who processed the packets.
    #[serde(serialize_with = "by_name")]
    pub workload: Workload,
    /// Device that ran the filter; `None` for workload `none`.
    pub device: Option<Worker>,
    /// Where ports received packets: `host` or `gpu`.
    pub mempool: &'static str,
    /// GPU whose memory held the packets, or into which host memory was mapped.
    pub gpu: Option<String>,
    /// Maximum number of packets in a burst.
    pub burst: u16,
    /// Set if the device worked on copies of the packets.
    pub is_copied: bool,
    /// Reason why the mode did not run.
    pub not_run: Option<String>,
    /// Measured figures, if the mode ran.
    pub ran: Option<Measurements>,
}

fn by_name<S: serde::Serializer>(workload: &Workload, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(workload.name())
}

/// Reason why a mode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The requested number of packets was received.
    Packets,
    /// The mode ran for its duration.
    Duration,
    /// No packet arrived for the time of `--idle-exit`.
    #[serde(rename = "idle")]
    NoTraffic,
    /// Ctrl-C was pressed.
    Interrupted,
    /// The mode failed.
    #[default]
    Failed,
}

/// Measured figures of a mode.
#[derive(Debug, Default, Serialize)]
pub struct Measurements {
    /// Reason why the mode ended.
    pub ended: StopReason,
    /// The error that ended the mode, or that was found afterwards.
    pub error: Option<String>,
    /// Set if the only error is that work in flight was cancelled.
    #[serde(skip)]
    pub is_cancelled: bool,
    /// Length of the warm-up, in packets.
    pub warm_up: u64,
    /// Set if the warm-up was completed. If not, nothing was measured, and the counts include all
    /// packets received.
    pub is_warm: bool,
    /// Packets received, the warm-up included.
    pub taken: u64,
    /// Throughput, if measured.
    pub through: Option<Throughput>,
    /// Counts and latencies.
    #[serde(flatten)]
    pub summary: Summary,
    /// Where the packet buffers were at the end.
    pub buffers: Balance,
}

/// Rate of packets whose verdict was executed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Throughput {
    packets: u64,
    bytes: u64,
    mpps: f64,
    /// Rate in 10⁹ bits a second, from the Ethernet header to the end of the payload.
    gbps: f64,
    /// Throughput in Gb/s including preamble, frame check sequence and inter-frame gap.
    gbps_wire: f64,
}

impl Throughput {
    /// Computes the throughput over a time above zero.
    pub fn of(executed: &ExecutedCounts, elapsed: Duration) -> Throughput {
        let (packets, bytes) = (executed.packets.iter().sum::<u64>(), executed.bytes.iter().sum::<u64>());
        let gigabits = |bytes: u64| bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9;
        Throughput {
            packets,
            bytes,
            mpps: packets as f64 / elapsed.as_secs_f64() / 1e6,
            gbps: gigabits(bytes),
            gbps_wire: gigabits(bytes + packets * WIRE_OVERHEAD),
        }
    }
}

impl Measurements {
    /// Adds an error if packet buffers are missing at the end.
    pub fn with_buffer_check(mut self) -> Measurements {
        if let Some(fault) = self.buffers.fault() {
            // Another error does not explain missing buffers.
            let before = self.error.take().map_or(String::new(), |error| error + "; ");
            self.error = Some(before + &fault);
            self.is_cancelled = false;
        }
        self
    }

    /// Returns the number of packets that the port delivered.
    fn received(&self) -> u64 {
        self.summary.packets + self.summary.refused
    }

    /// Returns the number of packets lost between receiving and sending, malformed ones included.
    fn dropped(&self) -> u64 {
        self.summary.refused + Loss::ALL.into_iter().map(|loss| self.summary.lost(loss)).sum::<u64>()
    }

    fn remark(&self) -> String {
        let mut remarks = Vec::new();
        if !self.is_warm {
            let (taken, warm_up) = (out::grouped(self.taken), out::grouped(self.warm_up));
            remarks.push(format!("nothing measured: {taken} packets received, fewer than the warm-up of {warm_up}"));
        } else if self.through.is_none() {
            let why = if self.received() == 0 { "no packets received" } else { "no burst completed" };
            remarks.push(format!("nothing measured: {why}"));
        }
        if self.ended == StopReason::Interrupted {
            remarks.push("interrupted".into());
        }
        remarks.extend(self.error.as_deref().map(out::printable));
        remarks.join("; ")
    }
}

impl Row {
    /// A row of a mode that has not run.
    pub fn new(Mode { workload, mempool, burst }: Mode) -> Row {
        Row {
            workload,
            device: None,
            mempool: mempool.name(),
            gpu: None,
            burst,
            is_copied: false,
            not_run: None,
            ran: None,
        }
    }

    /// A row of a mode that cannot run.
    pub fn not_run(mode: Mode, reason: String) -> Row {
        Row { not_run: Some(reason), ..Row::new(mode) }
    }

    fn cells(&self) -> Vec<String> {
        let device = self.device.as_ref().map_or("-", |device| device.id.as_str());
        let mut cells =
            vec![self.workload.to_string(), device.to_owned(), self.mempool.to_owned(), self.burst.to_string()];
        let Some(ran) = &self.ran else {
            cells.resize(COLUMNS.len() - 1, String::new());
            cells.push(out::printable(self.not_run.as_deref().unwrap_or_default()));
            return cells;
        };
        let rates = |of: fn(&Throughput) -> f64| ran.through.as_ref().map_or("-".to_owned(), |it| three_digits(of(it)));
        cells.extend([rates(|it| it.mpps), rates(|it| it.gbps), rates(|it| it.gbps_wire)]);
        let Summary { packets_out, dropped_by_kernel, batches, batch_mean, .. } = ran.summary;
        let filtered = ran.summary.carried_out.get(Action::Drop.name()).copied().unwrap_or_default();
        cells.extend([ran.received(), packets_out, filtered, ran.dropped(), dropped_by_kernel].map(out::grouped));
        let Latency { p50, p90, p99, p99_9, max } = ran.summary.latency_us;
        let is_known = ran.summary.batches > 0 && ran.is_warm;
        cells.extend([p50, p90, p99, p99_9, max].map(|us| if is_known { format!("{us:.1}") } else { "-".into() }));
        cells.extend([out::grouped(batches), format!("{batch_mean:.1}"), ran.remark()]);
        cells
    }
}

/// Formats a number with about three significant digits.
fn three_digits(number: f64) -> String {
    match number {
        ..0.1 => format!("{number:.4}"),
        ..10.0 => format!("{number:.2}"),
        _ => format!("{number:.1}"),
    }
}

const COLUMNS: [&str; 20] = [
    "workload", "device", "mempool", "burst", "Mpps", "Gb/s", "on wire", "in", "out", "filtered", "dropped", "missed",
    "p50 µs", "p90", "p99", "p99.9", "max", "bursts", "mean", "",
];

impl Report {
    /// Creates a report without rows, with a description of this machine.
    pub fn new(filter: String, args: &Args) -> Report {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        let processor = portcullis::devices::open("cpu").map(|cpu| cpu.info().name.clone());
        Report {
            program: concat!("portcullis ", env!("CARGO_PKG_VERSION")),
            machine: Machine {
                processor: processor.unwrap_or_else(|_| std::env::consts::ARCH.into()),
                processors: std::thread::available_parallelism().map_or(1, |count| count.get()),
                system: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            },
            dpdk: dpdk::version(),
            ports: Vec::new(),
            filter,
            pipelines: args.pipelines,
            header_split: args.header_split,
            work_ns: args.work.map_or(0, |work| work.as_nanos() as u64),
            flush_us: args.flush.as_secs_f64() * 1e6,
            overload: args.overload.clone(),
            rows: Vec::new(),
        }
    }

    /// Records the ports in use.
    pub fn opened(&mut self, info: &[PortInfo]) {
        let port =
            |info: &PortInfo| Port { name: info.name.clone(), driver: info.driver.clone(), numa_node: info.node };
        self.ports = info.iter().map(port).collect();
    }

    /// Returns whether a mode has been measured.
    pub fn has_run(&self) -> bool {
        self.rows.iter().any(|row| row.ran.is_some())
    }

    /// Returns the report as one line of JSON, with a line feed.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report serialises") + "\n"
    }

    /// Returns the table below a description of filter, ports and machine.
    pub fn table(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(|port| format!("{} ({})", port.name, port.driver)).collect();
        let Machine { processor, processors, system } = &self.machine;
        let pipelines = if self.pipelines == 1 { "pipeline" } else { "pipelines" };
        let head = format!(
            "{} over {}, {} {pipelines} per port\n{processor}, {processors} processors, {system}; {}\n\n",
            out::printable(&self.filter),
            out::printable(&ports.join(", ")),
            self.pipelines,
            self.dpdk
        );
        let mut rows = vec![COLUMNS.map(String::from).to_vec()];
        rows.extend(self.rows.iter().map(Row::cells));
        head + &out::table(rows, &(3..COLUMNS.len() - 1).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use portcullis::pipeline::live::Snapshot;

    use super::super::plan::Mempool;
    use super::*;

    #[test]
    fn wire_rates_include_preamble_and_gap() {
        let mut executed = ExecutedCounts::default();
        executed.packets[Action::Tx as usize] = 1000;
        executed.bytes[Action::Tx as usize] = 60_000;
        executed.losses.add(Loss::NoRoom, 7);
        let through = Throughput::of(&executed, Duration::from_micros(100));
        // RFC 2544's smallest frames have 64 bytes with their check sequence, and take 84 on the
        // wire.
        assert_eq!((through.packets, through.mpps), (1000, 10.0));
        assert_eq!((through.gbps, through.gbps_wire), (4.8, 6.72));
    }

    #[test]
    fn an_unmeasured_mode_has_no_figures_but_a_reason() {
        let mode = Mode { workload: Workload::Cpu, mempool: Mempool::Host, burst: 64 };
        let measurements =
            Measurements { warm_up: 1000, taken: 12, ended: StopReason::NoTraffic, ..Measurements::default() };
        let row = Row { ran: Some(measurements), ..Row::new(mode) };
        let cells = row.cells();
        assert_eq!(cells.len(), COLUMNS.len());
        assert!(cells[4..7].iter().chain(&cells[12..17]).all(|cell| cell == "-"), "{cells:?}");
        assert!(cells[19].contains("12 packets") && cells[19].contains("1 000"), "{cells:?}");
        let lacking = Row::not_run(mode, "the device has no graph".into()).cells();
        assert_eq!((lacking.len(), lacking[19].as_str()), (COLUMNS.len(), "the device has no graph"));
    }

    #[test]
    fn received_packets_are_sent_filtered_or_dropped() {
        let mut snapshot = Snapshot::default();
        (snapshot.received.packets, snapshot.received.refused, snapshot.received.dropped_by_kernel) = (10, 5, 3000);
        (snapshot.executed.packets[Action::Tx as usize], snapshot.executed.packets[Action::Drop as usize]) = (4, 2);
        snapshot.executed.losses.add(Loss::NoRoom, 3);
        snapshot.executed.losses.add(Loss::Overload, 1);
        let summary = Summary::new(&snapshot, Duration::from_secs(1));
        let mode = Mode { workload: Workload::Cpu, mempool: Mempool::Host, burst: 64 };
        let row =
            Row { ran: Some(Measurements { is_warm: true, summary, ..Measurements::default() }), ..Row::new(mode) };
        // In, out, filtered, dropped, missed.
        assert_eq!(row.cells()[7..12], ["15", "4", "2", "9", "3 000"].map(str::to_owned));
    }

    #[test]
    fn an_empty_measurement_says_whether_packets_were_received() {
        let remark = |packets| {
            let summary = Summary { packets, ..Summary::new(&Snapshot::default(), Duration::ZERO) };
            Measurements { is_warm: true, summary, ..Measurements::default() }.remark()
        };
        assert_eq!(remark(0), "nothing measured: no packets received");
        assert_eq!(remark(1), "nothing measured: no burst completed");
    }

    #[test]
    fn a_missing_buffer_is_an_error() {
        let buffers = |missing| Balance { all: 10, free: 9, missing, ..Balance::default() };
        let error =
            |missing| Measurements { buffers: buffers(missing), ..Measurements::default() }.with_buffer_check().error;
        assert_eq!(error(0), None);
        assert!(error(1).unwrap().contains("1 of 10"));
        let failed =
            Measurements { buffers: buffers(2), error: Some("the device failed".into()), ..Measurements::default() };
        let error = failed.with_buffer_check().error.unwrap();
        assert!(error.contains("2 of 10") && error.contains("the device failed"), "{error}");
    }
}
