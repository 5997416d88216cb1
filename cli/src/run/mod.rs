//! `portcullis run`

mod capture;
mod dump;
mod events;
pub mod interrupt;
mod kernel_routes;
pub mod live;
pub mod maps;
#[cfg(target_os = "linux")]
mod pin;
mod places;
mod progress;
pub mod replace;
mod report;
mod rows;
mod state;
#[cfg(all(target_os = "linux", feature = "live"))]
mod takeover;
pub mod traps;
mod watch;

use clap::ArgGroup;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use portcullis::device::{Dispatch, Transfer};
use portcullis::devices::Selector;

use super::failure::Failure;
use super::filter::FilterArgs;
use live::LiveArgs;
pub use live::duration;
#[cfg(not(all(target_os = "linux", feature = "af-xdp")))]
pub use live::missing;
use maps::MapArgs;

/// Run a filter over a capture, or on live packets
///
/// Packets are read from a capture (pcap or pcapng, Ethernet), judged by the filter, and written by
/// their verdicts where an output is given: with the filter's changes, in their order, with their
/// times. A table of what came through is printed at the end; to standard error where standard
/// output takes a capture.
///
/// Live packets are those that an interface receives (`--af-xdp`, `--dpdk`), or for which the firewall asks (`--nfqueue`). Their
/// verdicts are carried out: packets go on to the kernel, back where they came from, out of another interface, or nowhere,
/// until Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("source").required(true).multiple(true).args(["read", "af_xdp", "nfqueue", "dpdk"])))]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// The capture to read; `-` is standard input, and `synth:packets=100000,seed=1,size=64..1500`
    /// makes up traffic
    #[arg(long, value_name = "FILE|synth:…", value_parser = NonEmptyStringValueParser::new(),
          conflicts_with_all = live::SOURCES)]
    read: Option<String>,
    #[command(flatten)]
    live: LiveArgs,
    /// Write the packets that pass to this capture: classic pcap in the input's time resolution, or
    /// pcapng where the name ends so; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = output(), conflicts_with_all = live::SOURCES)]
    write: Option<String>,
    /// Write the packets with verdict TX to this capture
    #[arg(long, value_name = "FILE", value_parser = output(), conflicts_with_all = live::SOURCES)]
    write_tx: Option<String>,
    /// Write redirected packets to captures in this folder, one for each target (`3.pcap`); after
    /// 1024 targets the rest goes to `other.pcap`
    #[arg(long, value_name = "DIR", value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = live::SOURCES)]
    write_redirect: Option<String>,
    #[command(flatten)]
    maps: MapArgs,
    /// Where to run: auto (a real GPU and the CPU, each batch where it costs least), cpu, cuda, cuda:N, wgpu, wgpu:N,
    /// opencl, opencl:N, interp or noop
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Selector,
    /// How batches are handed to the device: inline, pipelined, persistent, waitvalue or graph; `devices`
    /// lists which a device has, the first of them taken if this is not given
    #[arg(long, value_name = "METHOD")]
    dispatch: Option<Dispatch>,
    /// How packets get to a device that is not the processor: whole, their window (what the filter may read), imported (it
    /// reads them where they lie), or auto, by whichever way costs least
    #[arg(long, value_name = "TRANSFER", default_value = "auto", conflicts_with_all = live::SOURCES)]
    transfer: Transfer,
    /// Also tell, on standard error, by what the device was chosen, how packets got to it and why, and what that took; of live
    /// packets before the first one comes
    #[arg(long)]
    explain: bool,
    /// Packets in a batch, at most; one of a capture is also bounded in bytes. Live packets have batches that find their size
    /// if this is not given (`auto`): as many packets as the device needs to keep up with what comes, and no more
    #[arg(long, value_name = "N|auto", value_parser = batch)]
    batch: Option<BatchSize>,
    /// Threads that run the filter, on devices that run on the processor; all cores if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Stop after this many packets
    #[arg(long, value_name = "N", conflicts_with_all = live::SOURCES)]
    limit: Option<u64>,
    /// Print the totals as one line of JSON in place of the table
    #[arg(long)]
    json: bool,
    /// Show how far it is at once, and without a terminal too; long runs on a terminal show it anyway
    #[arg(long, conflicts_with_all = live::SOURCES)]
    progress: bool,
}

/// What `--batch` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchSize {
    /// As large as the device needs it, for live packets.
    Auto,
    /// So many packets, at most.
    Packets(u32),
}

fn batch(text: &str) -> Result<BatchSize, String> {
    match text.parse() {
        Ok(packets @ 1..) => Ok(BatchSize::Packets(packets)),
        _ if text == "auto" => Ok(BatchSize::Auto),
        _ => Err(format!("expected a number of packets from 1 to {}, or `auto`", u32::MAX)),
    }
}

/// Standard output by whatever name: opened as a file it would be emptied, and have the table in it.
fn output() -> impl TypedValueParser<Value = String> {
    NonEmptyStringValueParser::new().map(|text| stdout_by_any_name(&text))
}

fn stdout_by_any_name(path: &str) -> String {
    match path {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => "-".into(),
        _ => path.into(),
    }
}

/// Runs.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.read {
        Some(read) => capture::run(args, read),
        None => live::run(args),
    }
}

impl Args {
    /// Packets of a batch, about; `most` where nobody says how many.
    fn expected(&self, most: usize) -> usize {
        match self.batch {
            Some(BatchSize::Packets(packets)) => (packets as usize).min(most),
            Some(BatchSize::Auto) | None => most,
        }
    }

    /// Whether standard output is taken, so that the totals cannot go there.
    fn takes_stdout(&self) -> bool {
        self.captures_to_stdout() || self.maps.takes_stdout()
    }

    fn captures_to_stdout(&self) -> bool {
        [&self.write, &self.write_tx].iter().any(|path| path.as_deref() == Some("-"))
    }
}
