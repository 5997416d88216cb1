//! Benchmarks of AF_XDP: receiving, forwarding and passing packets through the pipeline, compared
//! with a bare loop, DPDK's testpmd and the kernel's own XDP verdicts; and round-trip latency.
//!
//! The kernel sends as fast as it can over a veth pair on the first processor. The receiver is
//! pinned to the second, except for `pipelined`, whose threads the scheduler places. A round lasts
//! one or two seconds, and the sides alternate.
//!
//! `cargo bench -p portcullis-live-tests --features bench --bench af_xdp`, as root; arguments after
//! `--` select parts (`receive`, `batches`, `forward`, `pass`, `latency`). The testpmd sides need
//! `dpdk-testpmd` and its driver net_af_xdp (Debian's packages dpdk-dev and librte-net-af-xdp23).

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis::device::{CancelToken, Dispatch};
use portcullis::packet_io::af_xdp::StackDevice;
use portcullis::packet_io::af_xdp::{self, Options};
use portcullis::pipeline::live::{BatchPolicy, LaneStats, LiveOptions};
use portcullis_live_tests::{End, Flood, KernelXdp, Veth, create_link};
use support::bare::bare;
use support::latency::{quantile, round_trips};
use support::testpmd::Testpmd;
use support::{ROUND, Side, compare, is_stopped, is_wanted, median, rate, say};

const ROUNDS: usize = 7;
const FRAMES: u32 = 8192;

/// Packet rate of the latency measurement, as a share of the forwarding rate.
const LATENCY_LOAD: f64 = 0.1;

// `enum xdp_action`, `linux/bpf.h`.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

fn main() {
    if !support::prepare() {
        return;
    }
    let (_, _, veth) = create_link();
    let has_testpmd = match Testpmd::start(&veth.right, "rxonly") {
        Ok(_) => true,
        Err(reason) => {
            say(format_args!("without testpmd: {reason}\n\n"));
            false
        }
    };
    let bench = Bench { veth, has_testpmd };
    if is_wanted("receive") {
        bench.receive();
    }
    if is_wanted("batches") {
        bench.batches();
    }
    if is_wanted("pass") {
        bench.pass();
    }
    // The latency measurement's load is a share of the forwarding rate.
    let (forward, latency) = (is_wanted("forward"), is_wanted("latency"));
    if let Some(rate) = (forward || latency).then(|| bench.forward()).flatten().filter(|_| latency) {
        bench.latency(rate * LATENCY_LOAD);
    }
}

/// A link whose left end sends and whose right end holds the receiver under test.
struct Bench {
    veth: Veth,
    has_testpmd: bool,
}

impl Bench {
    fn receive(&self) {
        let ours = |filter, dispatch| {
            move || self.flooded(|end| ours(end, filter, dispatch, BatchPolicy::default(), None, executed_rate))
        };
        let mut sides = vec![Side::new("bare loop", || {
            self.flooded(|end| end.namespace().run(|| bare(end.name(), FRAMES, |count| rate(count))))
        })];
        if self.has_testpmd {
            sides.push(self.testpmd("testpmd rxonly", "rxonly", |_, testpmd| testpmd.received()));
        }
        let bases = sides.len();
        sides.push(Side::new("minimal, inline", ours("minimal", Dispatch::Inline)));
        sides.push(Side::new("simple_filter, inline", ours("simple_filter", Dispatch::Inline)));
        sides.push(Side::new("minimal, pipelined", ours("minimal", Dispatch::Pipelined)));
        sides.push(Side::new("the kernel's XDP_DROP", || {
            self.flooded(|end| {
                let _program = KernelXdp::new(XDP_DROP).attach(end);
                rate(&mut || received_packets(end))
            })
        }));
        compare("received", ROUNDS, bases, &mut sides);
    }

    /// Compares batch policies, and reports the packets received per wait of a thread.
    fn batches(&self) {
        let ms = Duration::from_millis(1);
        let policies = [
            ("inline, 256 packets", Dispatch::Inline, BatchPolicy::default()),
            ("inline, adaptive", Dispatch::Inline, BatchPolicy::adaptive()),
            ("pipelined, 256 packets", Dispatch::Pipelined, BatchPolicy::default()),
            ("pipelined, adaptive", Dispatch::Pipelined, BatchPolicy::adaptive()),
            ("pipelined, 256 in 1 ms", Dispatch::Pipelined, BatchPolicy::fixed(256, ms)),
            ("pipelined, 4096 in 1 ms", Dispatch::Pipelined, BatchPolicy::fixed(4096, ms)),
        ];
        let woken: Vec<_> = policies.iter().map(|_| Mutex::new(Vec::new())).collect();
        let sides = policies.iter().zip(&woken).map(|((name, dispatch, closing), woken)| {
            let measure = |stats: &LaneStats| {
                let (packets, waits) = (stats.snapshot().executed.all(), context_switches());
                let rate = executed_rate(stats);
                let (packets, waits) = (stats.snapshot().executed.all() - packets, self::context_switches() - waits);
                woken.lock().unwrap().push(packets as f64 / waits.max(1) as f64);
                rate
            };
            Side::new(name, move || self.flooded(|end| ours(end, "minimal", *dispatch, *closing, None, measure)))
        });
        compare("received in batches", ROUNDS, 1, &mut sides.collect::<Vec<_>>());
        for ((name, ..), woken) in policies.iter().zip(woken) {
            let woken = woken.into_inner().unwrap();
            if !woken.is_empty() {
                say(format_args!("{name}: {:.0} packets a wait\n", median(woken)));
            }
        }
    }

    /// Returns the forwarding rate of `mac_swap`, in packets a second.
    fn forward(&self) -> Option<f64> {
        // Drop returned frames after counting them.
        let _program = KernelXdp::new(XDP_DROP).attach(&self.veth.left);
        let back = || received_packets(&self.veth.left);
        let ours = |dispatch| {
            let measure = move |_: &LaneStats| rate(&mut || back());
            move || self.flooded(|end| ours(end, "mac_swap", dispatch, BatchPolicy::default(), None, measure))
        };
        let mut sides = Vec::new();
        if self.has_testpmd {
            sides.push(self.testpmd("testpmd macswap", "macswap", move |_, _| back()));
        }
        sides.push(Side::new("mac_swap, inline", ours(Dispatch::Inline)));
        sides.push(Side::new("mac_swap, pipelined", ours(Dispatch::Pipelined)));
        sides.push(Side::new("the kernel's XDP_TX", || {
            self.flooded(|end| {
                let _program = KernelXdp::new(XDP_TX).attach(end);
                rate(&mut || back())
            })
        }));
        let ours = sides.len() - 3;
        compare("forwarded to where they came from", ROUNDS, 1, &mut sides).map(|rates| rates[ours])
    }

    fn pass(&self) {
        let passed = |dispatch| {
            move || {
                self.flooded(|end| {
                    ours(end, "minimal", dispatch, BatchPolicy::default(), Some(StackDevice::Veth), |_| {
                        rate(&mut || stack_packets(end))
                    })
                })
            }
        };
        let mut sides = vec![
            Side::new("received by the bare loop", || {
                self.flooded(|end| end.namespace().run(|| bare(end.name(), FRAMES, |count| rate(count))))
            }),
            Side::new("minimal, inline", passed(Dispatch::Inline)),
            Side::new("minimal, pipelined", passed(Dispatch::Pipelined)),
            Side::new("the kernel's XDP_PASS", || {
                self.flooded(|end| {
                    let _program = KernelXdp::new(XDP_PASS).attach(end);
                    rate(&mut || stack_packets(end))
                })
            }),
        ];
        compare("passed into the kernel's stack", ROUNDS, 1, &mut sides);
    }

    /// Measures round trips at `rate` packets a second, through the pipeline and through an XDP
    /// program that returns every frame unchanged. The difference is what the path through user
    /// space adds.
    fn latency(&self, rate: f64) {
        const SHARES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
        // On a veth, frames that XDP_TX returns are received only if the peer has an XDP program
        // too.
        let _program = KernelXdp::new(XDP_PASS).attach(&self.veth.left);
        let frame = self.frame();
        let trips = || {
            let (times, sent) = round_trips(&self.veth.left, &frame, rate, 2 * ROUND);
            let lost = sent - times.len() as u64;
            (SHARES.map(|(_, share)| quantile(&times, share) as f64 / 1e3), lost, sent)
        };
        let mut rows = [const { [const { Vec::new() }; SHARES.len()] }; 4];
        let (mut lost, mut sent) = (0, 0);
        for _ in 0..ROUNDS {
            if is_stopped() {
                return;
            }
            let (theirs, ..) = {
                let _program = KernelXdp::new(XDP_TX).attach(&self.veth.right);
                trips()
            };
            let mut own = [0.0; SHARES.len()];
            let mut round = None;
            ours(&self.veth.right, "mac_swap", Dispatch::Inline, BatchPolicy::default(), None, |stats| {
                round = Some(trips());
                let latency = stats.snapshot().latency;
                own = SHARES.map(|(_, share)| latency.value_at_quantile(share) as f64 / 1e3);
                0.0
            });
            let (ours, lost_now, sent_now) = round.expect("the round was measured");
            (lost, sent) = (lost + lost_now, sent + sent_now);
            for share in 0..SHARES.len() {
                let added = ours[share] - theirs[share];
                for (row, value) in rows.iter_mut().zip([theirs[share], ours[share], added, own[share]]) {
                    row[share].push(value);
                }
            }
        }
        say(format_args!(
            "{:<34} {:>8} {:>8} {:>8}\n",
            format!("µs at {:.0} packets a second", rate),
            "p50",
            "p99",
            "p99.9"
        ));
        let names = ["the kernel's XDP_TX", "mac_swap, inline, delay 0", "added", "of it from receipt to verdict"];
        for (name, row) in names.iter().zip(rows) {
            let [p50, p99, p999] = row.map(median);
            say(format_args!("{name:<34} {p50:>8.1} {p99:>8.1} {p999:>8.1}\n"));
        }
        say(format_args!("{lost} of {sent} did not come back through the program\n"));
    }

    fn testpmd<'a>(
        &'a self,
        name: &'static str,
        forward: &'a str,
        count: impl Fn(&End, &mut Testpmd) -> u64 + 'a,
    ) -> Side<'a> {
        Side::new(name, move || {
            let mut testpmd = Testpmd::start(&self.veth.right, forward).unwrap_or_else(|error| panic!("{error}"));
            self.flooded(|end| rate(&mut || count(end, &mut testpmd)))
        })
    }

    /// Measures while the left end sends as fast as it can.
    fn flooded(&self, measure: impl FnOnce(&End) -> f64) -> f64 {
        let _flood = Flood::start(&self.veth.left, &self.frame());
        measure(&self.veth.right)
    }

    /// A frame from left to right whose IPv4 header the kernel's stack reads and rejects.
    fn frame(&self) -> Vec<u8> {
        [&self.veth.right.mac()[..], &self.veth.left.mac(), &[0x08, 0x00, 0x45], &[0; 49]].concat()
    }
}

/// Number of voluntary context switches of this process.
fn context_switches() -> i64 {
    // SAFETY: a zeroed `rusage` is valid and outlives the call.
    #[expect(unsafe_code, reason = "getrusage(2)")]
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    usage.ru_nvcsw
}

/// Rate of packets whose verdict was executed.
fn executed_rate(stats: &LaneStats) -> f64 {
    rate(&mut || stats.snapshot().executed.all())
}

/// Number of packets received at an end of a link, whatever XDP does with them.
fn received_packets(end: &End) -> u64 {
    let table =
        end.namespace().run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("procfs is mounted");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(end.name())?.strip_prefix(':'));
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.expect("the interface is listed")
}

/// Number of packets that the kernel's IPv4 stack has seen, including malformed ones.
fn stack_packets(end: &End) -> u64 {
    let table =
        end.namespace().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).expect("procfs is mounted");
    let mut lines = table.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { panic!("no IPv4: {table}") };
    let received = names.zip(values).find(|(name, _)| *name == "InReceives");
    received.and_then(|(_, value)| value.parse().ok()).expect("a number of packets")
}

/// Runs a filter at an end of a link while `measure` runs.
fn ours(
    end: &End,
    filter: &str,
    dispatch: Dispatch,
    closing: BatchPolicy,
    stack: Option<StackDevice>,
    measure: impl FnOnce(&LaneStats) -> f64 + Send,
) -> f64 {
    let options = Options::new(vec![format!("{}:0", end.name()).parse().unwrap()])
        .with_stack(stack)
        .with_rewrites(filter == "mac_swap")
        .with_frames(FRAMES);
    let session = support::session(filter, dispatch);
    let stats = Arc::new(LaneStats::default());
    let stop = CancelToken::new();
    let processors = if dispatch == Dispatch::Inline { vec![1] } else { vec![] };
    let live = LiveOptions::new(closing, dispatch).with_processors(processors);
    end.namespace().run(|| {
        let mut run = af_xdp::open(&options).unwrap_or_else(|error| panic!("{error}"));
        let lane = run.lanes.remove(0);
        let rate = std::thread::scope(|scope| {
            let (stop, stats, run) = (&stop, &stats, &mut run);
            let ran = scope.spawn(move || support::drive(lane, session, &live, stats, stop, || run.detach()));
            let rate = measure(stats);
            stop.cancel();
            ran.join().unwrap();
            rate
        });
        assert_eq!(run.frame_audit.frames().in_batches(), 0, "a frame is missing");
        rate
    })
}
