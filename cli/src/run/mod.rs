//! `portcullis run`: filters the packets of a capture or of live traffic.

mod capture;
mod dump;
mod events;
#[cfg(unix)]
mod ignored_signals;
pub mod interrupt;
mod kernel_routes;
pub mod live;
pub mod map_args;
pub mod maps;
mod output_conflicts;
#[cfg(target_os = "linux")]
mod pin;
mod progress;
pub mod replace;
mod report;
mod rows;
mod state;
#[cfg(all(target_os = "linux", feature = "live"))]
mod takeover;
pub mod traps;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::{PathBufValueParser, TypedValueParser};
use portcullis::device::{DEFAULT_IDLE_SPIN, Dispatch, Transfer};
use portcullis::devices::Selector;

use super::failure::Failure;
use super::filter::FilterArgs;
use super::out;
use live::LiveArgs;
pub use live::duration;
#[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
pub use live::missing;
use map_args::MapArgs;

/// Filter packets from a capture or from live traffic
///
/// Reads an Ethernet capture (pcap or pcapng), runs the filter on each packet, and writes packets
/// to the outputs given for their verdicts, as modified by the filter, in order and with their
/// timestamps. Prints a table of verdicts at the end, to standard error if a capture goes to
/// standard output.
///
/// Live traffic is received from an interface (`--af-xdp`, `--dpdk`) or from the firewall
/// (`--nfqueue`), and each verdict is applied: a packet goes to the kernel, back out of the
/// interface it came from, out of another one, or is dropped. Runs until Ctrl-C.
///
/// Takes tcpdump's `-r`, `-w`, `-c`, `-i` and `-n`, and its expressions: `portcullis run -r in.pcap
/// -w out.pcap udp port 53`.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["read", "af_xdp", "nfqueue", "dpdk"])))]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// Read packets from a capture; `-` is standard input
    ///
    /// `synth:packets=100000,seed=1,size=64..1500` generates traffic instead.
    #[arg(short, long, value_name = "FILE|synth:…", value_parser = PathBufValueParser::new(),
          conflicts_with_all = live::SOURCES, help_heading = "Input")]
    read: Option<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    /// Write packets that PASS to a capture; `-` is standard output
    ///
    /// Pcapng if the name ends in .pcapng, else classic pcap in the input's time resolution.
    #[arg(short, long, value_name = "FILE", value_parser = output(), conflicts_with_all = live::SOURCES, help_heading = "Output")]
    write: Option<PathBuf>,
    /// Write packets with verdict TX to a capture
    #[arg(long, value_name = "FILE", value_parser = output(), conflicts_with_all = live::SOURCES, help_heading = "Output", hide_short_help = true)]
    write_tx: Option<PathBuf>,
    /// Write redirected packets to this directory, one capture per target
    ///
    /// Files are named after the target (`3.pcap`). Beyond 1024 targets packets go to
    /// `other.pcap`.
    #[arg(long, value_name = "DIR", value_parser = PathBufValueParser::new(), conflicts_with_all = live::SOURCES, help_heading = "Output", hide_short_help = true)]
    write_redirect: Option<PathBuf>,
    #[command(flatten)]
    maps: MapArgs,
    /// Device: auto, cpu, cuda:N, wgpu:N, opencl:N, interp or noop; N is 0 unless given
    ///
    /// `auto` chooses between the CPU and a hardware GPU for each batch, by estimated cost.
    #[arg(long, value_name = "DEVICE", default_value = "auto", help_heading = "Device")]
    device: Selector,
    /// Dispatch method: inline, pipelined, persistent, waitvalue or graph
    ///
    /// `portcullis devices` lists the methods of each device; the default is the first listed.
    #[arg(long, value_name = "METHOD", help_heading = "Device", hide_short_help = true)]
    dispatch: Option<Dispatch>,
    /// How packets reach the device: whole, window, imported or auto
    ///
    /// `window` copies only the bytes that the filter may read, `imported` maps the host's memory
    /// into the device, and `auto` takes whichever is cheapest.
    #[arg(long, value_name = "TRANSFER", default_value = "auto", conflicts_with_all = live::SOURCES, help_heading = "Device", hide_short_help = true)]
    transfer: Transfer,
    /// Explain on standard error how device and transfer were chosen
    ///
    /// For live traffic, before the first packet.
    #[arg(long, help_heading = "Device", hide_short_help = true)]
    explain: bool,
    /// Maximum number of packets in a batch
    ///
    /// Batches of a capture are also bounded in bytes. For live traffic the default, `auto`,
    /// adapts the size so that the device keeps up.
    #[arg(long, value_name = "N|auto", value_parser = batch, help_heading = "Device")]
    batch: Option<BatchSize>,
    /// Threads that run the filter on CPU devices; defaults to all cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Device")]
    threads: Option<u16>,
    /// Microseconds that threads of CPU devices poll for packets before they sleep; defaults to 50
    ///
    /// A sleeping thread takes tens of microseconds to wake; one that polls uses its core, unless
    /// other threads want it. 0 saves power, more helps batches that come at intervals.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(..=1_000_000), help_heading = "Device", hide_short_help = true)]
    idle_spin: Option<u32>,
    /// Stop after this many packets of a capture (live runs: `--duration`)
    #[arg(short = 'c', long, value_name = "N", conflicts_with_all = live::SOURCES, help_heading = "Input")]
    limit: Option<u64>,
    /// Accepted as tcpdump has it, and ignored: addresses are never resolved
    #[arg(short = 'n', action = clap::ArgAction::Count, help_heading = "Input", hide_short_help = true)]
    _never_resolve: u8,
    /// Print the totals as one line of JSON instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Show progress from the start, even without a terminal
    #[arg(long, conflicts_with_all = live::SOURCES, help_heading = "Output", hide_short_help = true)]
    progress: bool,
}

/// Value of `--batch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    /// Sizes that adapt to the device and the load, for live packets.
    Auto,
    /// Maximum number of packets in a batch.
    Packets(u32),
}

fn batch(text: &str) -> Result<BatchSize, String> {
    match text.parse() {
        Ok(packets @ 1..) => Ok(BatchSize::Packets(packets)),
        _ if text == "auto" => Ok(BatchSize::Auto),
        _ => Err(format!("expected a number of packets from 1 to {}, or `auto`", u32::MAX)),
    }
}

/// Parser of output paths. Maps other names of standard output to `-`: opened as a file, it would
/// be truncated, and the results would end up in it too.
fn output() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| normalize_stdout(&path))
}

fn normalize_stdout(path: &Path) -> PathBuf {
    match path.to_str() {
        Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => "-".into(),
        _ => path.into(),
    }
}

/// Runs the filter over a capture or live traffic.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.json || args.takes_stdout() {
        out::check_stdout()?;
    }
    match &args.read {
        Some(read) => capture::run(args, read),
        None => live::run(args),
    }
}

impl Args {
    /// How long threads poll before they sleep.
    fn idle_spin(&self) -> Duration {
        self.idle_spin.map_or(DEFAULT_IDLE_SPIN, |micros| Duration::from_micros(micros.into()))
    }

    /// Expected number of packets in a batch, at most `most`.
    fn expected(&self, most: usize) -> usize {
        match self.batch {
            Some(BatchSize::Packets(packets)) => (packets as usize).min(most),
            Some(BatchSize::Auto) | None => most,
        }
    }

    /// Whether standard output is in use, so that the totals go to standard error.
    fn takes_stdout(&self) -> bool {
        self.captures_to_stdout() || self.maps.takes_stdout()
    }

    fn captures_to_stdout(&self) -> bool {
        [&self.write, &self.write_tx].iter().any(|path| path.as_deref() == Some(Path::new("-")))
    }
}
