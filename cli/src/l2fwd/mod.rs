//! `portcullis l2fwd`
//!
//! ```text
//! args (here)   which modes: workload × mempool × burst
//! plan          a mode, and the order of all of them
//! drive         one mode after the other: sessions, ports, lanes
//! untouched     the session of workload `none`
//! report        the table, and JSON
//! ```

#[cfg(all(target_os = "linux", feature = "dpdk"))]
mod drive;
#[cfg_attr(not(all(target_os = "linux", feature = "dpdk")), allow(dead_code, reason = "nothing is measured"))]
mod plan;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
mod report;
#[cfg(all(target_os = "linux", feature = "dpdk"))]
mod untouched;

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use portcullis::devices::Selector;

use super::failure::Failure;
use super::run::live::{duration, processor};
use plan::{Choice, Mempools};

/// Benchmark layer-2 forwarding between DPDK ports and a device
///
/// Swaps the MAC addresses of each received packet and sends it back out of its port. Each
/// combination of workload and burst size is a separate run and a row of the table. Packets that a
/// pipeline cannot keep up with are dropped and counted. Rates and latencies exclude the warm-up.
/// Letters in parentheses are the corresponding options of NVIDIA's l2fwd-nv.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A port of DPDK: a network card (`0000:03:00.0`), a device that DPDK makes
    /// (`net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`), or the port of a number; may be given
    /// several times
    #[arg(long, value_name = "PORT", required = true, value_parser = NonEmptyStringValueParser::new())]
    dpdk: Vec<String>,
    /// What DPDK itself is given, as one text: `-l 2 --socket-mem 1024`
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    eal: Option<String>,
    /// Pipelines of each port, one for each of its queues, among which the card deals connections:
    /// a thread that receives and one that filters and sends (-p)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pipelines: u16,
    /// Keep the pipelines' threads on these processors, in turn: the first one's that sends, the
    /// first one's that receives, the second one's that sends
    #[arg(long, value_name = "CPUS", value_parser = processor, value_delimiter = ',')]
    pin: Vec<u16>,
    /// Who does the work, several with commas between, or `all`: `none` (packets go out as they
    /// are), `cpu` (the processor, on the thread that sends), or the device by a dispatch method:
    /// `inline`, `pipelined`, `persistent`, `waitvalue`, `graph` (-w)
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',', default_value = "pipelined")]
    workload: Vec<Choice>,
    /// The device for dispatch methods: auto (a real GPU, else the CPU), cpu, cuda, cuda:N, wgpu,
    /// wgpu:N, opencl, opencl:N, interp or noop (-g)
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Selector,
    /// Do this filter's work, and carry out its verdicts, in place of swapping MAC addresses: a stock
    /// filter or a file
    #[arg(long, value_name = "FILTER", value_parser = super::filter::NameParser, hide_possible_values = true)]
    filter: Option<OsString>,
    /// Forward packets that match a tcpdump expression
    #[arg(long, value_name = "EXPRESSION", allow_hyphen_values = true, conflicts_with = "filter")]
    expr: Option<String>,
    /// Send packets that are redirected to target N out of this port; may be given several times
    #[arg(long, value_name = "N=PORT", value_parser = super::run::live::redirect, requires = "filter")]
    redirect: Vec<(u32, String)>,
    /// Where packets come: into memory of the `host`, or of the `gpu`, or of the one and then the
    /// other: `host,gpu` or `all` (-m)
    #[arg(long, value_name = "WHERE", value_delimiter = ',', default_value = "host")]
    mempool: Vec<Mempools>,
    /// The GPU that knows of packets by its communication list, and has them, or is shown the
    /// host's memory: `cuda:N`, `software` (there is none, but all is as with one), or the number
    /// of one that DPDK's own driver has found; that of `--device` if packets come into a GPU
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Have so many first bytes of a packet, 64 if no number is given, in the host's memory, where
    /// the filter looks, and the others where `--mempool` says (-s)
    #[arg(long, value_name = "BYTES", num_args = 0..=1, default_missing_value = "64",
          value_parser = clap::value_parser!(u16).range(14..=2048))]
    header_split: Option<u16>,
    /// Have each packet keep its lane or thread for at least so long, up to 20 ms, beside what the
    /// filter takes; not by `none` (-t)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    work: Option<Duration>,
    /// Packets in a burst, up to 8192; several with commas between (-b)
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1024",
          value_parser = clap::value_parser!(u16).range(1..=plan::LONGEST))]
    burst: Vec<u16>,
    /// How long a packet may wait for its burst to be full, as `50us`; then the burst goes on as it
    /// is
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100us")]
    flush: Duration,
    /// Packets that come before anything is measured; 1000000 if this is not given, and none where
    /// all ports are captures (-z)
    #[arg(long, value_name = "N")]
    warm_up: Option<u64>,
    /// End a run after this many packets behind the warm-up; 0: until Ctrl-C (-v)
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    packets: u64,
    /// End a run after this time, its warm-up included, as `10s`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// End a run when nothing has come for this time, as `10s`; 1 second if all ports are captures
    /// (`net_pcap`), and never otherwise
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle_exit: Option<Duration>,
    /// What becomes of packets for which a pipeline has no time: `drop`, they are dropped at once
    /// and counted, or `wait`: they stay where they came in until the port drops them, which a
    /// capture does not
    #[arg(long, value_name = "WAY", value_parser = ["drop", "wait"], default_value = "drop")]
    overload: String,
    /// Packets that there is memory for, for each pipeline, a power of two; as many as bursts need
    /// if this is not given
    #[arg(long, value_name = "N", value_parser = super::run::live::frames)]
    frames: Option<u32>,
    /// Write all results to this file as JSON; without a name, or as `-`, to standard output in
    /// place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = NonEmptyStringValueParser::new())]
    json: Option<String>,
}

/// Measures.
#[cfg(all(target_os = "linux", feature = "dpdk"))]
pub fn run(args: &Args) -> Result<(), Failure> {
    drive::run(args)
}

/// Says what is missing.
#[cfg(not(all(target_os = "linux", feature = "dpdk")))]
pub fn run(_: &Args) -> Result<(), Failure> {
    Err(super::run::live::missing("l2fwd", "dpdk"))
}
