//! Arguments of `run` for live packets, and the parsers of their values.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::NonEmptyStringValueParser;

use super::mempool::MempoolArgs;

/// Names of the arguments that select a live source.
pub const SOURCES: [&str; 3] = ["af_xdp", "nfqueue", "dpdk"];

/// Arguments of `run` for live packets.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("ports").args(["af_xdp", "dpdk"])))]
pub struct LiveArgs {
    /// Filter the packets an interface receives, through AF_XDP sockets
    ///
    /// All RX queues, or those listed (`eth0:0-3,8`, counted from 0), until Ctrl-C. May be
    /// repeated; the first interface is port 0. Unlike tcpdump's `-i`, which copies packets, this
    /// takes them over: what the filter drops is gone, and the kernel gets what passes.
    #[arg(short = 'i', long, value_name = "IFACE[:QUEUES]", value_parser = NonEmptyStringValueParser::new(), help_heading = "Input")]
    pub af_xdp: Vec<String>,
    /// Filter the packets of a netfilter queue
    ///
    /// The queue is fed by a firewall rule. PASS accepts a packet; every other verdict drops it.
    /// May be repeated.
    #[arg(long, value_name = "N", value_parser = queue, conflicts_with = "af_xdp", help_heading = "Input")]
    pub nfqueue: Vec<u16>,
    /// Filter the packets a DPDK port receives
    ///
    /// A PCI address (`0000:03:00.0`), a virtual device
    /// (`net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`) or a port number. May be repeated; the first
    /// is port 0.
    #[arg(long, value_name = "PORT", value_parser = NonEmptyStringValueParser::new(), conflicts_with_all = ["af_xdp", "nfqueue"], help_heading = "Input")]
    pub dpdk: Vec<String>,
    /// RX queues of each DPDK port; the card spreads flows over them by RSS
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), requires = "dpdk",
          conflicts_with_all = ["read", "af_xdp", "nfqueue"], help_heading = "Live traffic", hide_short_help = true)]
    pub queues: Option<u16>,
    /// Arguments for DPDK's EAL, as one string: `-l 2 --socket-mem 1024`
    #[arg(
        long,
        value_name = "ARGUMENTS",
        requires = "dpdk",
        conflicts_with_all = ["read", "af_xdp", "nfqueue"],
        allow_hyphen_values = true, help_heading = "Live traffic", hide_short_help = true)]
    pub eal: Option<String>,
    /// Stop after this long without packets, for example `10s`
    ///
    /// Defaults to 1 s if all ports are captures (`net_pcap`), and to never otherwise.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "dpdk",
          conflicts_with_all = ["read", "af_xdp", "nfqueue"], help_heading = "Live traffic", hide_short_help = true)]
    pub idle_exit: Option<Duration>,
    /// Accept packets when the netfilter queue is full
    #[arg(long, requires = "nfqueue", conflicts_with_all = ["read", "af_xdp", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub fail_open: bool,
    /// Send packets redirected to target N out of this interface or DPDK port
    ///
    /// May be repeated.
    #[arg(long, value_name = "N=IFACE", value_parser = redirect, requires = "ports", conflicts_with_all = ["read", "nfqueue"], help_heading = "Live traffic")]
    pub redirect: Vec<(u32, String)>,
    /// Where DPDK packets go that PASS
    ///
    /// Into the kernel through a new interface (`tap:NAME`, or `virtio_user:NAME` for vhost-net),
    /// or out of another DPDK port. By default they are counted and dropped. Packets from that
    /// interface or port leave through the first port, unfiltered.
    #[arg(long, value_name = "tap:NAME|virtio_user:NAME|PORT", value_parser = NonEmptyStringValueParser::new(), requires = "dpdk",
          conflicts_with_all = ["read", "af_xdp", "nfqueue"], help_heading = "Live traffic", hide_short_help = true)]
    pub pass_to: Option<String>,
    /// How packets that PASS reach the kernel's network stack
    ///
    /// `veth`: a veth pair; `tap`: a TAP interface; `auto`: whichever the kernel supports; `none`:
    /// drop and count them.
    #[arg(long, value_name = "WAY", value_parser = ["auto", "veth", "tap", "none"], default_value = "auto",
          conflicts_with_all = ["nfqueue", "read", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub stack: String,
    /// Take only packets that match these rules; leave all others to the kernel
    ///
    /// Rules name a destination port, IP protocol or EtherType:
    /// `tcp/80,udp/5000-5999,proto/47,ethertype/0x86dd`. The default is IPv4 and IPv6 except
    /// neighbour discovery.
    #[arg(long, value_name = "RULES", requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live traffic")]
    pub only: Option<String>,
    /// Take every packet, neighbour discovery and other protocols included
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["only", "read", "nfqueue", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub all: bool,
    /// Attach the XDP program in the driver (`native`) or in the network stack (`skb`)
    ///
    /// The default is the first that the driver supports.
    #[arg(long, value_name = "MODE", value_parser = ["native", "skb"], requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub xdp_mode: Option<String>,
    /// Require zero-copy AF_XDP sockets; fail if the driver lacks them
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub zero_copy: bool,
    /// Force copy mode, even if the driver supports zero copy
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["zero_copy", "read", "nfqueue", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub copy: bool,
    /// Busy-poll the sockets instead of waiting for interrupts, in microseconds
    #[arg(long, value_name = "MICROSECONDS", num_args = 0..=1, default_missing_value = "20", requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"],
          value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Live traffic", hide_short_help = true)]
    pub busy_poll: Option<u32>,
    /// Allocate packet memory from huge pages
    #[arg(long, requires = "af_xdp", conflicts_with_all = ["read", "nfqueue", "dpdk"], help_heading = "Live traffic", hide_short_help = true)]
    pub huge_pages: bool,
    /// Packet buffers for each queue, a power of two
    #[arg(long, value_name = "N", value_parser = frames, requires = "ports", conflicts_with_all = ["read", "nfqueue"], help_heading = "Live traffic", hide_short_help = true)]
    pub frames: Option<u32>,
    /// Placement of packet buffers.
    #[command(flatten)]
    pub mempool: MempoolArgs,
    /// Longest time that a packet waits for its batch to fill (`50us`, `1ms`)
    ///
    /// Defaults to 0 if `--batch` is a number. Otherwise it adapts to the device, up to 1 ms.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "read", help_heading = "Live traffic")]
    pub max_delay: Option<Duration>,
    /// What to do with packets that the device cannot keep up with
    ///
    /// `drop`: leave them in the RX queue until the kernel drops them. `cpu`: filter them on the
    /// CPU; they may overtake packets on the device. If the device fails, the CPU takes over.
    #[arg(long, value_name = "WAY", value_parser = ["drop", "cpu"], default_value = "drop", conflicts_with = "read", help_heading = "Live traffic", hide_short_help = true)]
    pub overload: String,
    /// Process each queue on its own lane (`each`) or all on one (`one`)
    ///
    /// A filter with maps needs `one`; choose it to be able to reload such a filter later. The
    /// default is `each` for filters without maps.
    #[arg(long, value_name = "LANES", value_parser = ["one", "each"], requires = "ports", conflicts_with_all = ["read", "nfqueue"], help_heading = "Live traffic", hide_short_help = true)]
    pub lanes: Option<String>,
    /// Create a Unix socket here and serve `portcullis ctl` on it
    #[arg(long, value_name = "PATH", value_parser = clap::builder::PathBufValueParser::new(), conflicts_with = "read", help_heading = "Observability")]
    pub control: Option<PathBuf>,
    /// Pin the queues' threads to these CPUs, round-robin
    #[arg(long, value_name = "CPUS", value_parser = processor, value_delimiter = ',', conflicts_with = "read", help_heading = "Live traffic", hide_short_help = true)]
    pub pin: Vec<u16>,
    /// Stop after this time, for example `10s` or `500ms`
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "read", help_heading = "Live traffic")]
    pub duration: Option<Duration>,
    /// Report rates, verdicts, losses, batches and latencies at this interval
    ///
    /// For example `1s`. A table redrawn in place if standard error is a terminal, else one line
    /// per interval; with `--json`, one JSON line per interval on standard output, before the
    /// totals.
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "read", help_heading = "Observability")]
    pub stats: Option<Duration>,
    /// Serve Prometheus metrics at this address
    ///
    /// A port of 127.0.0.1, `[::1]:PORT`, or a Unix socket that only this user can open.
    #[arg(long, value_name = "[ADDR:]PORT|unix:PATH", conflicts_with = "read", help_heading = "Observability")]
    pub metrics: Option<OsString>,
    /// Log to standard error, with timestamps as text or as JSON lines
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"], conflicts_with = "read", help_heading = "Observability", hide_short_help = true)]
    pub log: Option<String>,
    /// Log filter: `error`, `warn`, `info` (default), `debug`, or per module
    ///
    /// For example `portcullis::pipeline=debug,warn`. The environment variable PORTCULLIS_LOG does
    /// the same.
    #[arg(long, value_name = "LEVEL", conflicts_with = "read", help_heading = "Observability", hide_short_help = true)]
    pub log_level: Option<String>,
}

/// Minimum interval of `--stats`; shorter ones would be unreadable.
const MIN_STATS_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < MIN_STATS_INTERVAL => Err("expected 100ms or more".into()),
        interval => Ok(interval),
    }
}

fn queue(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected a queue's number, from 0 to 65535".into())
}

/// Parses the number of a CPU.
pub fn processor(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected numbers of processors, counted from 0, as `2,3`".into())
}

/// Parses `3=eth1`.
pub fn redirect(text: &str) -> Result<(u32, String), String> {
    let parts = text.split_once('=').map(|(target, interface)| (target.parse(), interface));
    match parts {
        Some((Ok(target), interface)) if !interface.is_empty() && target < 1 << 24 => Ok((target, interface.into())),
        _ => Err("expected N=IFACE, for example 3=eth1, with a target below 2^24".into()),
    }
}

/// Parses a number of packet buffers.
pub fn frames(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|n| n.is_power_of_two() && (64..=1 << 20).contains(n));
    number.ok_or_else(|| "expected a power of two from 64 to 1048576".into())
}

/// Parses a duration: `10s`, `500ms`, `50us`, `0`.
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
    fn stats_intervals_have_a_minimum() {
        assert_eq!(interval("100ms"), Ok(MIN_STATS_INTERVAL));
        assert!(["0", "99ms", "1"].iter().all(|text| interval(text).is_err()));
    }

    #[test]
    fn arguments_are_parsed_or_rejected() {
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
