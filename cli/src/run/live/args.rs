//! The arguments about live packets.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::NonEmptyStringValueParser;

use super::mempool::MempoolArgs;

/// The arguments that say where live packets come from.
pub const SOURCES: [&str; 3] = ["af_xdp", "nfqueue", "dpdk"];

/// The arguments about live packets.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("ports").args(["af_xdp", "dpdk"])))]
pub struct LiveArgs {
    /// Filter what this interface receives, by all of its queues or by these (counted from 0, as `eth0:0-3,8`), until
    /// Ctrl-C; may be given several times: the first is port 0
    #[arg(long, value_name = "IFACE[:QUEUES]", value_parser = NonEmptyStringValueParser::new(), help_heading = "Live packets")]
    pub af_xdp: Vec<String>,
    /// Give the verdicts on what a netfilter queue has: packets that a rule of the firewall sends there. PASS accepts, DROP
    /// drops, and so does everything else; may be given several times
    #[arg(long, value_name = "N", value_parser = queue, conflicts_with = "af_xdp", help_heading = "Live packets")]
    pub nfqueue: Vec<u16>,
    /// Filter what a port of DPDK receives: a network card (`0000:03:00.0`), a device that DPDK makes
    /// (`net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`), or the port of a number; may be given several times: the first is port 0
    #[arg(long, value_name = "PORT", value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["af_xdp", "nfqueue"],
          help_heading = "Live packets")]
    pub dpdk: Vec<String>,
    /// Queues of each port of DPDK, among which the card deals connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), requires = "dpdk",
          conflicts_with_all = ["read", "af_xdp", "nfqueue"], help_heading = "Live packets")]
    pub queues: Option<u16>,
    /// What DPDK itself is given, as one text: `-l 2 --socket-mem 1024`
    #[arg(
        long,
        value_name = "ARGUMENTS",
        requires = "dpdk",
        conflicts_with_all = ["read", "af_xdp", "nfqueue"],
        allow_hyphen_values = true,
        help_heading = "Live packets"
    )]
    pub eal: Option<String>,
    /// Stop when nothing has come for this time, as `10s`; 1 second if all ports are captures (`net_pcap`), and never otherwise
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "dpdk",
          conflicts_with_all = ["read", "af_xdp", "nfqueue"], help_heading = "Live packets")]
    pub idle_exit: Option<Duration>,
    /// Accept packets of a netfilter queue on which nobody can give a verdict, as the queue is full
    #[arg(long, requires = "nfqueue", conflicts_with_all = ["read", "af_xdp", "dpdk"], help_heading = "Live packets")]
    pub fail_open: bool,
    /// Send packets that are redirected to target N out of this interface, or port of DPDK; may be given several times
    #[arg(long, value_name = "N=IFACE", value_parser = redirect, requires = "ports", conflicts_with_all = ["read", "nfqueue"], help_heading = "Live packets")]
    pub redirect: Vec<(u32, String)>,
    /// Where packets of DPDK go that pass: into the kernel, at an interface that is made (`tap:NAME`, or by vhost-net
    /// `virtio_user:NAME`), or out of another port of DPDK; without it they are counted and dropped. What comes from there goes out of
    /// the first port, past the filter
    #[arg(long, value_name = "tap:NAME|virtio_user:NAME|PORT", value_parser = NonEmptyStringValueParser::new(), requires = "dpdk",
          conflicts_with_all = ["read", "af_xdp", "nfqueue"], help_heading = "Live packets")]
    pub pass_to: Option<String>,
    /// How packets that pass get into the kernel: by a `veth` pair, by a `tap` interface, by what the kernel has of these
    /// (`auto`), or not at all (`none`): then they are dropped and counted
    #[arg(long, value_name = "WAY", value_parser = ["auto", "veth", "tap", "none"], default_value = "auto",
          conflicts_with_all = ["nfqueue", "read", "dpdk"], help_heading = "Live packets")]
    pub stack: String,
    /// Take only these packets, by destination port, IP protocol or EtherType, and leave all others to the kernel:
    /// `tcp/80,udp/5000-5999,proto/47,ethertype/0x86dd`. Without it IPv4 and IPv6 are taken, but for neighbour discovery
    #[arg(long, value_name = "RULES", requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live packets")]
    pub only: Option<String>,
    /// Take every packet
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["only", "read", "nfqueue", "dpdk"], help_heading = "Live packets")]
    pub all: bool,
    /// Where the XDP program runs: `native`, in the driver, or `skb`, in the kernel's stack; by itself it takes the
    /// first that the driver has
    #[arg(long, value_name = "MODE", value_parser = ["native", "skb"], requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live packets")]
    pub xdp_mode: Option<String>,
    /// Have the driver put packets into memory without a copy, or fail
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live packets")]
    pub zero_copy: bool,
    /// Have the kernel copy packets, also where the driver could do without
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["zero_copy", "read", "nfqueue", "dpdk"], help_heading = "Live packets")]
    pub copy: bool,
    /// Have the kernel poll for packets instead of waiting for interrupts, for this many microseconds at a time
    #[arg(long, value_name = "MICROSECONDS", num_args = 0..=1, default_missing_value = "20", requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"],
          value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Live packets")]
    pub busy_poll: Option<u32>,
    /// Have packets in huge pages
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live packets")]
    pub huge_pages: bool,
    /// Frames for each queue, a power of two
    #[arg(long, value_name = "N", value_parser = frames, requires = "ports", conflicts_with_all = ["read", "nfqueue"], help_heading = "Live packets")]
    pub frames: Option<u32>,
    /// Where packets' buffers are.
    #[command(flatten)]
    pub mempool: MempoolArgs,
    /// How long a packet may wait for others to make a batch, as `50us` or `1ms`, at most; if this is not given, 0 where
    /// `--batch` is a number, and else as long as the device needs it, up to 1 ms
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "read", help_heading = "Live packets")]
    pub max_delay: Option<Duration>,
    /// What becomes of packets for which the device has no time: `drop`, they wait where they came in until the kernel drops
    /// them, or `cpu`: the CPU filters them, whose packets may overtake the device's
    #[arg(long, value_name = "WAY", value_parser = ["drop", "cpu"], default_value = "drop", conflicts_with = "read",
          help_heading = "Live packets")]
    pub overload: String,
    /// How queues are dealt: `each` has a lane of its own, or `one` has all, so that a filter with maps can take over later;
    /// by itself each, but for filters with maps
    #[arg(long, value_name = "LANES", value_parser = ["one", "each"], requires = "ports", conflicts_with_all = ["read", "nfqueue"], help_heading = "Live packets")]
    pub lanes: Option<String>,
    /// Listen at this path, a socket that is made, for what `portcullis ctl` asks: to have another filter take over, for
    /// maps, for numbers
    #[arg(long, value_name = "PATH", value_parser = clap::builder::PathBufValueParser::new(), conflicts_with = "read", help_heading = "Live packets")]
    pub control: Option<PathBuf>,
    /// Keep the threads of queues on these processors, in turn
    #[arg(long, value_name = "CPUS", value_parser = processor, value_delimiter = ',', conflicts_with = "read", help_heading = "Live packets")]
    pub pin: Vec<u16>,
    /// Stop after this time, as `10s` or `500ms`
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "read", help_heading = "Live packets")]
    pub duration: Option<Duration>,
    /// Show rates, verdicts, losses, batches and latencies every so often, as `1s`: as a table that is drawn again and again
    /// where standard error is a terminal, else as a line; with `--json` as a line of JSON on standard output, before that of
    /// the totals
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "read", help_heading = "Live packets")]
    pub stats: Option<Duration>,
    /// Answer to Prometheus at this port of 127.0.0.1, at `[::1]:PORT`, or at a Unix socket, for this user alone
    #[arg(long, value_name = "[ADDR:]PORT|unix:PATH", conflicts_with = "read", help_heading = "Live packets")]
    pub metrics: Option<String>,
    /// Have everything that is said on standard error be a log, in lines of text with their times or in lines of JSON
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"], conflicts_with = "read", help_heading = "Live packets")]
    pub log: Option<String>,
    /// What is in the log: `error`, `warn`, `info` (if not given), `debug`, or levels of parts of the program, as
    /// `portcullis::pipeline=debug,warn`; the variable PORTCULLIS_LOG says the same
    #[arg(long, value_name = "LEVEL", conflicts_with = "read", help_heading = "Live packets")]
    pub log_level: Option<String>,
}

/// The shortest time that `--stats` takes: nobody reads faster.
const SHORTEST: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < SHORTEST => Err("expected 100ms or more".into()),
        interval => Ok(interval),
    }
}

fn queue(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected a queue's number, from 0 to 65535".into())
}

/// Reads a processor's number.
pub fn processor(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected numbers of processors, counted from 0, as `2,3`".into())
}

/// Reads `3=eth1`.
pub fn redirect(text: &str) -> Result<(u32, String), String> {
    let parts = text.split_once('=').map(|(target, interface)| (target.parse(), interface));
    match parts {
        Some((Ok(target), interface)) if !interface.is_empty() && target < 1 << 24 => Ok((target, interface.into())),
        _ => Err("expected N=IFACE, for example 3=eth1, with a target below 2^24".into()),
    }
}

/// Reads a number of buffers.
pub fn frames(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|n| n.is_power_of_two() && (64..=1 << 20).contains(n));
    number.ok_or_else(|| "expected a power of two from 64 to 1048576".into())
}

/// Reads `10s`, `500ms`, `50us`, `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let nanoseconds = match unit {
        "ns" => Some(1),
        "us" => Some(1000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "" if number == "0" => Some(1),
        _ => None,
    };
    let all = nanoseconds.and_then(|unit: u64| number.parse::<u64>().ok()?.checked_mul(unit));
    all.map(Duration::from_nanos).ok_or_else(|| "expected a time with its unit, for example 50us, 20ms or 10s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, want) in [("0", 0), ("50us", 50_000), ("1ms", 1_000_000), ("10s", 10_000_000_000), ("7ns", 7)] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(want)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5s", "99999999999999s", "1 s", "10S"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nobody_reads_faster() {
        assert_eq!(interval("100ms"), Ok(SHORTEST));
        assert!(["0", "99ms", "1"].iter().all(|text| interval(text).is_err()));
    }

    #[test]
    fn numbers_are_what_they_are_numbers_of() {
        assert_eq!(redirect("3=eth1"), Ok((3, "eth1".into())));
        for text in ["", "3", "=eth1", "3=", "x=eth1", "-1=eth1", "16777216=eth1"] {
            assert!(redirect(text).is_err(), "{text:?}");
        }
        assert_eq!((queue("65535"), processor("3")), (Ok(65535), Ok(3)));
        for text in ["", "x", "65536", "-1", "0-3"] {
            assert!(
                queue(text).unwrap_err().contains("65535") && processor(text).unwrap_err().contains("2,3"),
                "{text:?}"
            );
        }
        assert_eq!(frames("4096"), Ok(4096));
        assert!(["0", "63", "100", "2097152", "x"].iter().all(|text| frames(text).is_err()));
    }
}
