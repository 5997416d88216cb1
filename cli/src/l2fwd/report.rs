//! Results of l2fwd as a table and as JSON.

use std::time::Duration;

use portcullis::device::DeviceInfo;
use portcullis::io::dpdk::{self, PortInfo};
use portcullis::io::live::{ExecutedCounts, Loss};
use portcullis::packet::Action;
use portcullis::pipeline::live::{Latency, Summary};
use serde::Serialize;

use super::Args;
use super::plan::{Mode, Workload};
use crate::out;
use crate::run::live::report::Balance;

/// Bytes that a packet has on the wire and not in memory: its frame check sequence (4, IEEE 802.3),
/// and preamble, start of frame and the gap between two (20, RFC 2544 appendix B).
const ON_THE_WIRE: u64 = 24;

/// All that was measured.
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
    /// One for each mode, in order.
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
    /// None where nobody knows.
    numa_node: Option<u32>,
}

/// The device of a mode.
#[derive(Debug, Clone, Serialize)]
pub struct Worker {
    /// What `--device` takes.
    pub id: String,
    name: String,
    driver: String,
}

impl From<&DeviceInfo> for Worker {
    fn from(info: &DeviceInfo) -> Worker {
        Worker { id: info.id.clone(), name: info.name.clone(), driver: info.driver.clone() }
    }
}

/// One mode.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Who did the work.
    #[serde(serialize_with = "by_name")]
    pub workload: Workload,
    /// On what.
    pub device: Option<Worker>,
    /// Where packets were: `host` or `gpu`.
    pub mempool: &'static str,
    /// The GPU that had them, or was shown them.
    pub gpu: Option<String>,
    /// Packets in a burst, at most.
    pub burst: u16,
    /// Whether the device got copies of packets.
    pub is_copied: bool,
    /// Why it was not measured.
    pub not_run: Option<String>,
    /// Measured figures, if the mode ran.
    pub ran: Option<Numbers>,
}

fn by_name<S: serde::Serializer>(workload: &Workload, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(workload.name())
}

/// Why a mode is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// All packets that were wanted have come.
    Packets,
    /// The mode ran for its duration.
    Duration,
    /// Nothing came any more.
    Idle,
    /// Somebody wanted an end.
    Interrupted,
    /// The mode failed.
    #[default]
    Failed,
}

/// Measured figures of a mode.
#[derive(Debug, Default, Serialize)]
pub struct Numbers {
    /// Why it is over.
    pub ended: StopReason,
    /// What went wrong.
    pub error: Option<String>,
    /// Whether that is only that what was under way was given up.
    #[serde(skip)]
    pub is_cancelled: bool,
    /// Packets that were not to be measured.
    pub warm_up: u64,
    /// Whether more than those have come. If not, nothing was measured, and the counts are of all
    /// that have.
    pub is_warm: bool,
    /// Packets that have come, those of the warm-up included.
    pub taken: u64,
    /// Throughput.
    pub through: Option<Through>,
    /// Counts and latencies.
    #[serde(flatten)]
    pub summary: Summary,
    /// Where buffers were in the end.
    pub buffers: Balance,
}

/// Packets whose verdict was carried out.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Through {
    packets: u64,
    bytes: u64,
    mpps: f64,
    /// Bits from the first of the Ethernet header to the last of the packet, 10⁹ a second.
    gbps: f64,
    /// Throughput in Gb/s including preamble, frame check sequence and inter-frame gap.
    gbps_wire: f64,
}

impl Through {
    /// What became of packets in a time that is not zero.
    pub fn of(carried: &ExecutedCounts, elapsed: Duration) -> Through {
        let (packets, bytes) = (carried.packets.iter().sum::<u64>(), carried.bytes.iter().sum::<u64>());
        let gigabits = |bytes: u64| bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9;
        Through {
            packets,
            bytes,
            mpps: packets as f64 / elapsed.as_secs_f64() / 1e6,
            gbps: gigabits(bytes),
            gbps_wire: gigabits(bytes + packets * ON_THE_WIRE),
        }
    }
}

impl Numbers {
    /// Says where something is missing.
    pub fn checked(mut self) -> Numbers {
        if let Some(fault) = self.buffers.fault() {
            // Whatever else went wrong is no reason for it.
            let before = self.error.take().map_or(String::new(), |error| error + "; ");
            self.error = Some(before + &fault);
            self.is_cancelled = false;
        }
        self
    }

    /// Packets that the port gave.
    fn came(&self) -> u64 {
        self.summary.packets + self.summary.refused
    }

    /// Packets that were lost on their way from port to port, those included of which nothing could
    /// be made.
    fn dropped(&self) -> u64 {
        self.summary.refused + Loss::ALL.into_iter().map(|loss| self.summary.lost(loss)).sum::<u64>()
    }

    fn remark(&self) -> String {
        let mut remarks = Vec::new();
        if !self.is_warm {
            let (taken, warm_up) = (out::grouped(self.taken), out::grouped(self.warm_up));
            remarks.push(format!("nothing measured: {taken} packets came, and the warm-up takes {warm_up}"));
        } else if self.through.is_none() {
            let why = if self.came() == 0 { "no packets came" } else { "no burst was through" };
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
    /// A mode of which nothing is known yet.
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

    /// A mode that cannot be had.
    pub fn not_run(mode: Mode, reason: String) -> Row {
        Row { not_run: Some(reason), ..Row::new(mode) }
    }

    fn cells(&self) -> Vec<String> {
        let device = self.device.as_ref().map_or("-", |device| device.id.as_str());
        let mut cells =
            vec![self.workload.to_string(), device.to_owned(), self.mempool.to_owned(), self.burst.to_string()];
        let Some(ran) = &self.ran else {
            cells.resize(HEAD.len() - 1, String::new());
            cells.push(out::printable(self.not_run.as_deref().unwrap_or_default()));
            return cells;
        };
        let rates = |of: fn(&Through) -> f64| ran.through.as_ref().map_or("-".to_owned(), |it| three(of(it)));
        cells.extend([rates(|it| it.mpps), rates(|it| it.gbps), rates(|it| it.gbps_wire)]);
        let Summary { packets_out, dropped_by_kernel, batches, batch_mean, .. } = ran.summary;
        let filtered = ran.summary.carried_out.get(Action::Drop.name()).copied().unwrap_or_default();
        cells.extend([ran.came(), packets_out, filtered, ran.dropped(), dropped_by_kernel].map(out::grouped));
        let Latency { p50, p90, p99, p99_9, max } = ran.summary.latency_us;
        let is_known = ran.summary.batches > 0 && ran.is_warm;
        cells.extend([p50, p90, p99, p99_9, max].map(|us| if is_known { format!("{us:.1}") } else { "-".into() }));
        cells.extend([out::grouped(batches), format!("{batch_mean:.1}"), ran.remark()]);
        cells
    }
}

/// A number in about three digits, however small.
fn three(number: f64) -> String {
    match number {
        ..0.1 => format!("{number:.4}"),
        ..10.0 => format!("{number:.2}"),
        _ => format!("{number:.1}"),
    }
}

const HEAD: [&str; 20] = [
    "workload", "device", "mempool", "burst", "Mpps", "Gb/s", "on wire", "in", "out", "filtered", "dropped", "missed",
    "p50 µs", "p90", "p99", "p99.9", "max", "bursts", "mean", "",
];

impl Report {
    /// Of a machine on which nothing was measured yet.
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

    /// Notes what ports there are.
    pub fn opened(&mut self, info: &[PortInfo]) {
        let port =
            |info: &PortInfo| Port { name: info.name.clone(), driver: info.driver.clone(), numa_node: info.node };
        self.ports = info.iter().map(port).collect();
    }

    /// Whether a mode has been measured.
    pub fn has_run(&self) -> bool {
        self.rows.iter().any(|row| row.ran.is_some())
    }

    /// One line of JSON, its end included.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts, with texts for keys") + "\n"
    }

    /// The table, and what it is of.
    pub fn table(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(|port| format!("{} ({})", port.name, port.driver)).collect();
        let Machine { processor, processors, system } = &self.machine;
        let pipelines = if self.pipelines == 1 { "pipeline" } else { "pipelines" };
        let head = format!(
            "{} by {}, {} {pipelines} a port\n{processor}, {processors} processors, {system}; {}\n\n",
            out::printable(&self.filter),
            out::printable(&ports.join(", ")),
            self.pipelines,
            self.dpdk
        );
        let mut rows = vec![HEAD.map(String::from).to_vec()];
        rows.extend(self.rows.iter().map(Row::cells));
        head + &out::table(rows, &(3..HEAD.len() - 1).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use portcullis::pipeline::live::Snapshot;

    use super::super::plan::Mempool;
    use super::*;

    #[test]
    fn rates_count_what_a_wire_has_beside() {
        let mut carried = ExecutedCounts::default();
        carried.packets[Action::Tx as usize] = 1000;
        carried.bytes[Action::Tx as usize] = 60_000;
        carried.losses.add(Loss::NoRoom, 7);
        let through = Through::of(&carried, Duration::from_micros(100));
        // RFC 2544's smallest frames, of 64 bytes with their check sequence, are 84 on the wire.
        assert_eq!((through.packets, through.mpps), (1000, 10.0));
        assert_eq!((through.gbps, through.gbps_wire), (4.8, 6.72));
    }

    #[test]
    fn what_was_not_measured_has_no_figures_and_a_reason() {
        let mode = Mode { workload: Workload::Cpu, mempool: Mempool::Host, burst: 64 };
        let numbers = Numbers { warm_up: 1000, taken: 12, ended: StopReason::Idle, ..Numbers::default() };
        let row = Row { ran: Some(numbers), ..Row::new(mode) };
        let cells = row.cells();
        assert_eq!(cells.len(), HEAD.len());
        assert!(cells[4..7].iter().chain(&cells[12..17]).all(|cell| cell == "-"), "{cells:?}");
        assert!(cells[19].contains("12 packets") && cells[19].contains("1 000"), "{cells:?}");
        let lacking = Row::not_run(mode, "the device has no graph".into()).cells();
        assert_eq!((lacking.len(), lacking[19].as_str()), (HEAD.len(), "the device has no graph"));
    }

    #[test]
    fn what_came_is_what_went_out_was_filtered_or_dropped() {
        let mut of = Snapshot::default();
        (of.received.packets, of.received.refused, of.received.dropped_by_kernel) = (10, 5, 3000);
        (of.executed.packets[Action::Tx as usize], of.executed.packets[Action::Drop as usize]) = (4, 2);
        of.executed.losses.add(Loss::NoRoom, 3);
        of.executed.losses.add(Loss::Overload, 1);
        let summary = Summary::new(&of, Duration::from_secs(1));
        let mode = Mode { workload: Workload::Cpu, mempool: Mempool::Host, burst: 64 };
        let row = Row { ran: Some(Numbers { is_warm: true, summary, ..Numbers::default() }), ..Row::new(mode) };
        // In, out, filtered, dropped and missed.
        assert_eq!(row.cells()[7..12], ["15", "4", "2", "9", "3 000"].map(str::to_owned));
    }

    #[test]
    fn where_nothing_was_through_it_is_said_whether_anything_came() {
        let remark = |packets| {
            let summary = Summary { packets, ..Summary::new(&Snapshot::default(), Duration::ZERO) };
            Numbers { is_warm: true, summary, ..Numbers::default() }.remark()
        };
        assert_eq!(remark(0), "nothing measured: no packets came");
        assert_eq!(remark(1), "nothing measured: no burst was through");
    }

    #[test]
    fn a_buffer_that_is_missing_is_an_error() {
        let buffers = |missing| Balance { all: 10, free: 9, missing, ..Balance::default() };
        let error = |missing| Numbers { buffers: buffers(missing), ..Numbers::default() }.checked().error;
        assert_eq!(error(0), None);
        assert!(error(1).unwrap().contains("1 of 10"));
        let failed = Numbers { buffers: buffers(2), error: Some("the device failed".into()), ..Numbers::default() };
        let error = failed.checked().error.unwrap();
        assert!(error.contains("2 of 10") && error.contains("the device failed"), "{error}");
    }
}
