//! `portcullis l2fwd`: benchmark of layer-2 forwarding over DPDK ports.
//!
//! ```text
//! Args (here)   modes to run: workload × mempool × burst
//! plan          a mode, and the order of the modes
//! drive         runs one mode after the other: sessions, ports, lanes
//! null_session  the session of workload `none`
//! report        results as a table and as JSON
//! ```

#[cfg(all(target_os = "linux", feature = "dpdk"))]
mod drive;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
mod null_session;
#[cfg_attr(not(all(target_os = "linux", feature = "dpdk")), allow(dead_code, reason = "used only with DPDK"))]
mod plan;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PathBufValueParser};
use portcullis::devices::Selector;

use super::failure::Failure;
use super::run::live::{duration, processor};
use plan::{MempoolChoice, WorkloadChoice};

/// Benchmark layer-2 forwarding between DPDK ports and a device
///
/// Swaps the MAC addresses of each received packet and sends it back out of its port. Each
/// combination of workload, packet memory and burst size is a separate run and a row of the table.
/// Packets that a pipeline cannot keep up with are dropped and counted. Rates and latencies exclude
/// the warm-up. Letters in parentheses are the corresponding options of NVIDIA's l2fwd-nv.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// DPDK port to receive from and send to; may be repeated
    ///
    /// A network card (`0000:03:00.0`), a virtual device
    /// (`net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`), or the number of a port.
    #[arg(long, value_name = "PORT", required = true, value_parser = NonEmptyStringValueParser::new(), help_heading = "Ports")]
    dpdk: Vec<String>,
    /// Arguments for DPDK itself, as one text: `-l 2 --socket-mem 1024`
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true, help_heading = "Ports", hide_short_help = true)]
    eal: Option<String>,
    /// Pipelines per port, each with a queue of its own (-p)
    ///
    /// One thread receives, the other filters and sends; with dispatch method `inline` one thread
    /// does both. The network card distributes connections over the queues.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Ports")]
    pipelines: u16,
    /// Pin the pipelines' threads to these processors
    ///
    /// In turn: the first pipeline's sending thread, its receiving thread, the second pipeline's
    /// sending thread, and so on.
    #[arg(long, value_name = "CPUS", value_parser = processor, value_delimiter = ',', help_heading = "Ports", hide_short_help = true)]
    pin: Vec<u16>,
    /// Workloads: none, cpu, dispatch methods, or all; comma-separated (-w)
    ///
    /// `none` sends packets back unread, `cpu` filters on the sending thread, and a dispatch method
    /// (`inline`, `pipelined`, `persistent`, `waitvalue`, `graph`) hands bursts to the device.
    #[arg(
        long,
        value_name = "WORKLOADS",
        value_delimiter = ',',
        default_value = "pipelined",
        help_heading = "Filter and device"
    )]
    workload: Vec<WorkloadChoice>,
    /// Device: auto, cpu, cuda:N, wgpu:N, opencl:N, interp or noop (-g)
    ///
    /// `auto` is a hardware GPU, or the CPU if there is none. N is 0 unless given.
    #[arg(long, value_name = "DEVICE", default_value = "auto", help_heading = "Filter and device")]
    device: Selector,
    /// Run this filter and apply its verdicts instead of swapping MAC addresses
    ///
    /// A stock filter or a file.
    #[arg(long, value_name = "FILTER", value_parser = super::filter::NameParser, hide_possible_values = true, help_heading = "Filter and device")]
    filter: Option<OsString>,
    /// Set a parameter of the filter; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::filter::parameter, requires = "filter", help_heading = "Filter and device", hide_short_help = true)]
    set: Vec<(String, String)>,
    /// Forward packets that match a tcpdump expression
    #[arg(
        long,
        value_name = "EXPRESSION",
        allow_hyphen_values = true,
        conflicts_with = "filter",
        help_heading = "Filter and device",
        hide_short_help = true
    )]
    expr: Option<String>,
    /// Send packets redirected to target N out of this port; may be repeated
    #[arg(long, value_name = "N=PORT", value_parser = super::run::live::redirect, requires = "filter", help_heading = "Filter and device", hide_short_help = true)]
    redirect: Vec<(u32, String)>,
    /// Minimum processing time per packet, up to 20ms (-t)
    ///
    /// The GPU lane or thread stays busy for that long; the filter's own time counts towards it.
    /// Workload `none` ignores it.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Filter and device", hide_short_help = true)]
    work: Option<Duration>,
    /// Memory that ports receive into: host, gpu, or all (both in turn) (-m)
    #[arg(long, value_name = "WHERE", value_delimiter = ',', default_value = "host", help_heading = "Packet memory")]
    mempool: Vec<MempoolChoice>,
    /// GPU that gets packets through a DPDK communication list
    ///
    /// `cuda:N`, `software` (an emulation without a GPU), or the number of a GPU that DPDK's own
    /// driver found. The GPU's memory holds the packets, or the host's memory is mapped into it,
    /// as `--mempool` says. With `--mempool gpu` the default is the GPU of `--device`.
    #[arg(long, value_name = "GPU", help_heading = "Packet memory", hide_short_help = true)]
    gpu: Option<String>,
    /// Receive the first bytes of a packet, 64 unless given, into host memory (-s)
    ///
    /// The filter sees these bytes only; the rest goes where `--mempool` says.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, default_missing_value = "64",
          value_parser = clap::value_parser!(u16).range(14..=2048), help_heading = "Packet memory", hide_short_help = true)]
    header_split: Option<u16>,
    /// Packet buffers per pipeline, a power of two; by default as many as bursts need
    #[arg(long, value_name = "N", value_parser = super::run::live::frames, help_heading = "Packet memory", hide_short_help = true)]
    frames: Option<u32>,
    /// Packets in a burst, up to 8192; comma-separated (-b)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1024",
          value_parser = clap::value_parser!(u16).range(1..=plan::MAX_BURST), help_heading = "Bursts")]
    burst: Vec<u16>,
    /// Process a burst that is not full after this time
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100us", help_heading = "Bursts", hide_short_help = true)]
    flush: Duration,
    /// What to do with packets that a pipeline cannot keep up with
    ///
    /// `drop` drops and counts them at once. `wait` leaves them in the port until the port drops
    /// them; a port that reads a capture loses none.
    #[arg(long, value_name = "POLICY", value_parser = ["drop", "wait"], default_value = "drop", help_heading = "Bursts", hide_short_help = true)]
    overload: String,
    /// Packets before the measurement starts (-z) [default: 1000000]
    ///
    /// The default is 0 if all ports are captures.
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    warm_up: Option<u64>,
    /// End a run after measuring this many packets; 0 runs until Ctrl-C (-v)
    #[arg(long, value_name = "N", default_value_t = 10_000_000, help_heading = "Measurement")]
    packets: u64,
    /// End a run after this time, warm-up included, for example 10s
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Measurement")]
    duration: Option<Duration>,
    /// End a run when no packet has arrived for this time, for example 10s
    ///
    /// Defaults to 1s if all ports are captures (`net_pcap`), and to never otherwise.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Measurement", hide_short_help = true)]
    idle_exit: Option<Duration>,
    /// Write results as JSON to a file, or instead of the table if no file is given
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = PathBufValueParser::new(), help_heading = "Output")]
    json: Option<PathBuf>,
}

/// Runs every mode and prints or writes the report.
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub fn run(args: &Args) -> Result<(), Failure> {
    drive::run(args)
}

/// Reports that the program was built without DPDK.
#[cfg(not(all(target_os = "linux", feature = "dpdk")))]
pub fn run(_: &Args) -> Result<(), Failure> {
    Err(super::run::live::missing("l2fwd", "dpdk"))
}
