//! `portcullis run --nfqueue` between two namespaces.

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use portcullis_live_tests::{Namespace, SetOnDrop, Suite, Veth, ping, tcp_echo, wait_until};

pub use crate::af_xdp::Net;
use crate::ctl::{CtlFolder, wait_for_more};
use crate::devices::on_each;
use crate::support::{QUIET_TIME, Running, TIMEOUT, command, command_on, count, run_to_end};

/// Sets up two namespaces, with these rules on the right.
pub fn net(rules: &[&str]) -> Option<Net> {
    net_with(rules, &[])
}

/// Sets up a [`Net`] for tests that need these programs.
pub fn net_with(rules: &[&str], programs: &[&str]) -> Option<Net> {
    let suite =
        Suite::begin("run --nfqueue", "nfqueue", &[&["iptables-legacy", "ip6tables-legacy"], programs].concat())?;
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    for rule in rules {
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            let status = right.command(program).args(rule.split(' ')).status().unwrap();
            assert!(status.success(), "{program} {rule}");
        }
    }
    Some(Net { veth, left, right, _suite: suite })
}

fn connects(from: &Namespace, address: IpAddr, port: u16, timeout: Duration) -> bool {
    from.run(|| TcpStream::connect_timeout(&(address, port).into(), timeout)).is_ok()
}

#[test]
fn the_filter_decides_on_queued_packets() {
    let Some(Net { veth, left, right, _suite }) = net(&["-A INPUT -p tcp -j NFQUEUE --queue-num 5"]) else { return };
    for dispatch in ["inline", "pipelined"] {
        let running = Running::start(command(&right, "http_only", &["--nfqueue", "5", "--dispatch", dispatch]));
        for address in [IpAddr::from(veth.right.ipv4()), veth.right.ipv6().into()] {
            let _refused = right.run(|| TcpListener::bind((address, 8080))).unwrap();
            tcp_echo(&left, &right, (address, 80), 500_000, TIMEOUT)
                .unwrap_or_else(|e| panic!("{dispatch}, {address}: {e}"));
            assert!(!connects(&left, address, 8080, QUIET_TIME), "{dispatch}, {address}");
        }
        // The rule queues TCP only.
        assert!(ping(&left, veth.right.ipv4().into(), TIMEOUT));
        let json = running.stop().parse_json();
        assert!(count(&json["carried_out"]["pass"]) > 10 && count(&json["carried_out"]["drop"]) >= 2, "{json}");
        assert_eq!(json["verdicts"], json["carried_out"], "{json}");
    }
    // No program holds the queue now, and the rule has no bypass.
    assert!(!connects(&left, veth.right.ipv4().into(), 80, QUIET_TIME));
}

/// Offset of the word that filters write in a datagram; its number comes before.
const WRITTEN: usize = 4;

/// Returns a filter that, by a datagram's number, passes it unchanged, passes it with another word
/// and an updated checksum, drops it, or returns TX or REDIRECT, which a queue cannot execute.
fn rewriting(word: &str) -> String {
    format!(
        "fn xdp_filter(pkt: u32) -> u32 {{
    let number = load_be32(pkt, 42u);
    switch number % 5u {{
        case 0u: {{ return XDP_PASS; }}
        case 1u: {{
            store_be16(pkt, 40u, csum_replace32(load_be16(pkt, 40u), load_be32(pkt, 46u), {word}u));
            store_be32(pkt, 46u, {word}u);
            return XDP_PASS;
        }}
        case 2u: {{ return XDP_DROP; }}
        case 3u: {{ return XDP_TX; }}
        default: {{ return redirect(number & 0xffu); }}
    }}
}}"
    )
}

/// Builds the payload of datagram `number`: the number, a word, and fill bytes of varied length.
fn datagram(number: u32) -> Vec<u8> {
    let fill = (0..number % 1000).map(|at| (at ^ number) as u8);
    number.to_be_bytes().into_iter().chain([0; 4]).chain(fill).collect()
}

/// Sends datagrams while `meanwhile` runs, at most 100 ahead of what arrives. Returns how many were
/// sent, and the payloads that arrived.
fn datagrams(
    (from, to): (&Namespace, &Namespace),
    address: IpAddr,
    meanwhile: impl FnOnce(&AtomicU64),
) -> (u64, Vec<Vec<u8>>) {
    let receiver = to.run(|| UdpSocket::bind((address, 0))).unwrap();
    receiver.set_read_timeout(Some(QUIET_TIME)).unwrap();
    let sender = from.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let (stop, settled, sent, seen) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let received = std::thread::scope(|scope| {
        let (settle_guard, stop_guard) = (SetOnDrop(&settled), SetOnDrop(&stop));
        let received = scope.spawn(|| {
            let (mut received, mut buffer) = (Vec::new(), [0; 2048]);
            loop {
                match receiver.recv(&mut buffer) {
                    Ok(length) => received.push(buffer[..length].to_vec()),
                    Err(_) if settled.load(Ordering::Relaxed) => return received,
                    Err(_) => {}
                }
                seen.store(received.len() as u64, Ordering::Relaxed);
            }
        });
        let send = scope.spawn(|| {
            for number in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                sender.send(&datagram(number)).unwrap();
                sent.store(u64::from(number) + 1, Ordering::Relaxed);
                let ahead = || u64::from(number) * 2 / 5 > seen.load(Ordering::Relaxed) + 40;
                while ahead() && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
        });
        meanwhile(&sent);
        drop(stop_guard);
        send.join().unwrap();
        drop(settle_guard);
        received.join().unwrap()
    });
    (sent.into_inner(), received)
}

#[test]
fn verdicts_of_every_device_are_executed_and_filters_reloaded_under_load() {
    let Some(suite) = Suite::begin("live packets by NFQUEUE", "nfqueue", &["iptables-legacy"]) else { return };
    let Some(Net { veth, left, right, _suite }) = net(&["-A INPUT -p udp -j NFQUEUE --queue-num 5"]) else { return };
    let ctl = CtlFolder::new();
    let (a, b) = (ctl.filter("a", &rewriting("0xaaaa0001")), ctl.filter("b", &rewriting("0xbbbb0002")));
    let socket = ctl.socket();
    on_each(&suite, |tested| {
        let (id, dispatch) = (tested.id(), tested.dispatch());
        let running = tested.start(&right, &a, &["--nfqueue", "5", "--control", &socket]);
        let (sent, received) = datagrams((&left, &right), veth.right.ipv4().into(), |sent| {
            for filter in [&b, &a, &b] {
                wait_for_more(sent, 500);
                ctl.run_successfully(&["reload", &format!("{filter}.wgsl")]);
            }
            wait_for_more(sent, 500);
        });
        let json = running.stop().parse_json();
        let mut marks = [0; 2];
        let passing: Vec<u32> = (0..sent as u32).filter(|number| number % 5 < 2).collect();
        assert_eq!(received.len(), passing.len(), "{id} {dispatch}: {json}");
        for (number, received) in passing.into_iter().zip(received) {
            let mut want = datagram(number);
            if number % 5 == 1 {
                let second = received[WRITTEN] == 0xbb;
                want[WRITTEN..8].copy_from_slice(if second { &[0xbb, 0xbb, 0, 2] } else { &[0xaa, 0xaa, 0, 1] });
                marks[usize::from(second)] += 1;
            }
            assert_eq!(received, want, "{id} {dispatch}: {number}");
        }
        assert!(marks.iter().all(|mark| *mark > 50), "{id} {dispatch}: both filters rewrote packets: {marks:?}");
        let of = |rest: u64| (sent + 4 - rest) / 5;
        assert_eq!((count(&json["packets"]), count(&json["dropped_by_kernel"])), (sent, 0), "{json}");
        assert_eq!(count(&json["carried_out"]["pass"]), of(0) + of(1), "{id} {dispatch}: {json}");
        assert_eq!(count(&json["carried_out"]["drop"]), of(2), "{id} {dispatch}: {json}");
        assert_eq!(count(&json["lost"]["not_here"]), of(3) + of(4), "{id} {dispatch}: {json}");
    });
}

/// The interpreter is slow, and processes one batch at a time.
#[test]
fn overload_cpu_takes_batches_from_a_slow_device() {
    let Some(Net { veth, left, right, _suite }) = net(&["-A INPUT -p tcp -j NFQUEUE --queue-num 5"]) else { return };
    for more in [&["--batch", "1"][..], &["--batch", "auto"]] {
        let arguments = [&["--nfqueue", "5", "--dispatch", "pipelined", "--overload", "cpu"], more].concat();
        let running = Running::start(command_on(&right, "interp", "http_only", &arguments));
        tcp_echo(&left, &right, (IpAddr::from(veth.right.ipv4()), 80), 2_000_000, TIMEOUT)
            .unwrap_or_else(|e| panic!("{more:?}: {e}"));
        let json = running.stop().parse_json();
        assert_eq!((&json["verdicts"], &json["packets"]), (&json["carried_out"], &json["verdicts"]["pass"]), "{json}");
        let sizing = &json["lanes"][0]["sizing"];
        match more {
            [_, "auto"] => assert!(sizing["batch"].as_u64().unwrap() >= 1, "{json}"),
            _ => assert!(sizing.is_null() && json["judged_by_cpu"].as_u64().unwrap() > 0, "{json}"),
        }
    }
}

/// A reader that does not read standard output delays the run, not the packets.
#[test]
fn a_queue_is_closed_before_maps_are_written() {
    let Some(Net { right, _suite, .. }) = net(&[]) else { return };
    let is_held = || {
        let table = right.run(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue").unwrap());
        table.lines().any(|line| line.split_whitespace().next() == Some("9"))
    };
    // More than a pipe holds, and nothing reads it.
    let running = Running::start(command(&right, "maglev_lb", &["--nfqueue", "9", "--dump-map", "table=-"]));
    assert!(is_held());
    running.signal("INT");
    wait_until("the queue is closed", TIMEOUT, || !is_held());
    running.kill();
}

#[test]
fn verdicts_that_a_queue_cannot_execute_drop_packets_and_are_counted() {
    let Some(Net { veth, left, right, _suite }) = net(&["-A INPUT -p icmp -j NFQUEUE --queue-num 1"]) else { return };
    let running = Running::start(command(&right, "mac_swap", &["--nfqueue", "1"]));
    assert!(!ping(&left, veth.right.ipv4().into(), QUIET_TIME));
    running.signal("TERM");
    let json = running.wait().parse_json();
    assert!(json["lost"]["not_here"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn invalid_arguments_are_refused() {
    let Some(Net { right, _suite, .. }) = net(&[]) else { return };
    for (arguments, code, message) in [
        (&["--nfqueue", "70000"][..], 2, "70000"),
        (&["--nfqueue", "1", "--nfqueue", "1"], 2, "given twice"),
        (&["--nfqueue", "1", "--af-xdp", "eth0"], 2, "cannot be used with"),
        (&["--nfqueue", "1", "--only", "tcp/80"], 2, "cannot be used with"),
        (&["--nfqueue", "1", "--write", "x.pcap"], 2, "cannot be used with"),
        (&["--nfqueue", "1", "--batch", "some"], 2, "or `auto`"),
        (&["--nfqueue", "1", "--overload", "cpu"], 2, "the CPU already runs the filter"),
    ] {
        run_to_end(command(&right, "minimal", arguments)).assert_failure(code, &[message]);
    }
    for (filter, dispatch, code, message) in [
        ("minimal", "inline", 2, "`--dispatch inline` has no queue that could be full"),
        ("conntrack_fw", "pipelined", 1, "its maps would be in two places"),
    ] {
        let arguments = ["--nfqueue", "1", "--overload", "cpu", "--dispatch", dispatch];
        run_to_end(command_on(&right, "interp", filter, &arguments)).assert_failure(code, &[message]);
    }
    let running = Running::start(command(&right, "minimal", &["--nfqueue", "7"]));
    let holder = format!("queue 7: another program has it: process {} (portcullis)", running.pid());
    run_to_end(command(&right, "minimal", &["--nfqueue", "7"])).assert_failure(1, &[&holder]);
    running.stop();
}
