//! Options of DPDK runs: how they end, and observing and controlling them.

use std::io::{Read, Write};
use std::net::TcpStream;

use portcullis_live_tests::wait_until;
use serde_json::Value;

use crate::program::{PASS, Place, packets, pcap, sample};
use crate::running::{TIMEOUT, count, sum};
use crate::{pcap_port, run, start};

const DROP: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }";
const TX: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }";

/// Checks that every packet has a verdict, that every verdict was executed or counted as lost, and
/// that no packet buffer is missing.
fn check_accounting(json: &Value) {
    let executed = sum(&json["carried_out"]) + sum(&json["lost"]);
    assert_eq!((sum(&json["verdicts"]), executed), (count(&json["packets"]), count(&json["packets"])), "{json}");
    assert_eq!(json["frames"]["missing"], 0, "{json}");
}

#[test]
fn a_signal_ends_a_run_which_prints_its_totals() {
    let place = Place::new();
    place.file("f.wgsl", DROP);
    for signal in ["INT", "TERM"] {
        // This port delivers packets endlessly, as fast as they are received.
        let mut running = start(&place, "f.wgsl", "net_null0", &["--stats", "100ms"]);
        while count(&serde_json::from_str::<Value>(&running.read_line()).unwrap()["interval"]["packets"]) == 0 {}
        running.signal(signal);
        let ended = running.wait().assert_success();
        let totals = ended.out.lines().last().unwrap();
        let json: Value = serde_json::from_str(totals).unwrap_or_else(|e| panic!("{e}: {totals}"));
        assert!(count(&json["packets"]) > 0, "{json}");
        check_accounting(&json);
    }
}

#[test]
fn idle_exit_ends_a_run_and_only_captures_have_a_default() {
    let place = Place::new();
    place.file("f.wgsl", DROP);
    // An empty ring to which nothing sends.
    let json = run(&place, "f.wgsl", "net_ring0", &["--idle-exit", "200ms"]).assert_success().parse_json();
    assert_eq!(json["packets"], 0);
    // Runs end by themselves only if all ports are captures; this one runs until its time is over.
    let capture = pcap_port(0, &format!("rx_pcap={}", sample()));
    let json =
        run(&place, "f.wgsl", &capture, &["--dpdk", "net_ring0", "--duration", "2s"]).assert_success().parse_json();
    assert_eq!(json["packets"], 4000);
    assert!(json["elapsed_s"].as_f64().unwrap() >= 2.0, "{json}");
    let json = run(&place, "f.wgsl", &capture, &["--idle-exit", "1500ms"]).assert_success().parse_json();
    assert!(json["elapsed_s"].as_f64().unwrap() >= 1.5, "{json}");
}

#[test]
fn metrics_statistics_and_reload_work_during_a_run() {
    let place = Place::new();
    place.file("a.wgsl", DROP);
    place.file("b.wgsl", TX);
    let more = ["--control", "socket", "--metrics", "0", "--stats", "100ms"];
    let mut running = start(&place, "a.wgsl", "net_null0", &more);
    running.wait_for("metrics: ");
    let stderr = running.log.clone();
    let address = stderr.lines().find_map(|line| line.strip_prefix("metrics: http://")?.strip_suffix("/metrics"));
    let ctl = |arguments: &[&str]| place.run(&[&["ctl", "--control", "socket"], arguments].concat());
    let tx = || count(&ctl(&["stats", "--json"]).assert_success().parse_json()["verdicts"]["tx"]);
    assert_eq!(tx(), 0);
    ctl(&["reload", "b.wgsl"]).assert_success();
    wait_until("packets go out", TIMEOUT, || tx() > 0);
    let mut stream = TcpStream::connect(address.unwrap_or_else(|| panic!("no address: {stderr}"))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let sent = answer
        .lines()
        .find(|line| line.starts_with("portcullis_carried_out_packets_total{lane=\"net_null0:0\",verdict=\"tx\"}"));
    assert!(sent.is_some_and(|line| !line.ends_with(" 0")), "{answer}");
    let ended = running.stop();
    let json: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    assert!(json["filter"].as_str().unwrap().ends_with("b.wgsl"), "{json}");
    assert!(count(&json["verdicts"]["drop"]) > 0 && count(&json["verdicts"]["tx"]) > 0, "{json}");
    check_accounting(&json);
}

#[test]
fn without_json_totals_are_printed_as_a_table() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let port = pcap_port(0, &format!("rx_pcap={},tx_pcap=o.pcap", sample()));
    place.run(&["run", "f.wgsl", "--device", "cpu", "--dpdk", &port]).assert_success().assert_stdout_contains(&[
        "f.wgsl, on cpu",
        "packets",
        "4 000",
        "100.0 %",
        "frames: ",
        "all accounted for",
    ]);
}

#[test]
fn invalid_arguments_are_refused_without_side_effects() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    let capture = pcap_port(0, "rx_pcap=in.pcap,tx_pcap=out.pcap");
    for (more, parts) in [
        (&["--dpdk", "net_pcap0,rx_pcap=other.pcap"][..], &["--dpdk net_pcap0", "twice"][..]),
        (&["--dpdk", "eth0"], &["--dpdk", "`eth0`", "net_"]),
        (&["--dpdk", "70000"], &["`70000`", "exceeds DPDK's port numbers"]),
        (&["--dpdk", "0,a=b"], &["`0,a=b`", "a port number takes no arguments"]),
        (&["--redirect", "1"], &["--redirect", "N=IFACE"]),
        (&["--redirect", "1=eth0"], &["--redirect", "`eth0`"]),
        (&["--redirect", "1=net_ring0", "--redirect", "1=net_ring1"], &["target 1 is given twice"]),
        (&["--queues", "0"], &["--queues"]),
        (&["--queues", "1025"], &["--queues"]),
        (&["--frames", "100"], &["--frames", "power of two"]),
        (&["--idle-exit", "1"], &["--idle-exit", "unit"]),
        (&["--eal", "'"], &["--eal", "quotation mark"]),
        (&["--pass-to", "eth0"], &["--pass-to", "`eth0`", "tap:NAME"]),
        (&["--pass-to", "tap:a,remote=b"], &["--pass-to", "`a,remote=b`"]),
        (&["--af-xdp", "eth0"], &["--af-xdp"]),
        (&["--nfqueue", "0"], &["--nfqueue"]),
        (&["--read", "in.pcap"], &["--read"]),
        (&["--write", "o.pcap"], &["--write"]),
        (&["--stack", "tap"], &["--stack"]),
        (&["--limit", "1"], &["--limit"]),
    ] {
        run(&place, "f.wgsl", &capture, more).assert_failure(2, parts);
    }
    for option in ["--queues=1", "--eal=-v", "--idle-exit=1s", "--pass-to=tap:x"] {
        let name = option.split('=').next().unwrap();
        for source in ["--read=in.pcap", "--af-xdp=eth0", "--nfqueue=0"] {
            place.run(&["run", "f.wgsl", source, option]).assert_failure(2, &[name]);
        }
        place.run(&["run", "f.wgsl", option]).assert_failure(2, &["--dpdk"]);
    }
    let others = "--only=tcp/80 --all --xdp-mode=skb --zero-copy --copy --busy-poll --huge-pages --fail-open";
    for option in others.split(' ') {
        run(&place, "f.wgsl", &capture, &[option]).assert_failure(2, &[option.split('=').next().unwrap()]);
    }
    assert_eq!(place.names(), ["f.wgsl"], "no file was created");
}

#[test]
fn a_capture_in_use_is_not_overwritten() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let whole = pcap(&[&[1; 60], &[2; 70]]);
    place.file("in.pcap", &whole);
    let both = "rx_pcap=in.pcap,tx_pcap=out.pcap";
    let other = pcap_port(1, both);
    for (port, more, message) in [
        ("rx_pcap=in.pcap,tx_pcap=./in.pcap", &[][..], "net_pcap0,tx_pcap=./in.pcap: net_pcap0 reads this capture"),
        (both, &["--dpdk", &other], "net_pcap1,tx_pcap=out.pcap: net_pcap0 writes this capture"),
        (both, &["--pass-to", "net_pcap2,tx_pcap=in.pcap"], "net_pcap2,tx_pcap=in.pcap: net_pcap0 reads this capture"),
        (both, &["--redirect", "1=net_pcap2,tx_pcap=out.pcap"], "net_pcap0 writes this capture"),
    ] {
        run(&place, "f.wgsl", &pcap_port(0, port), more).assert_failure(2, &[message, "choose another name"]);
        assert_eq!(place.names(), ["f.wgsl", "in.pcap"]);
        assert!(place.read("in.pcap") == whole);
    }
    // Several ports may read one capture.
    let ran = run(&place, "f.wgsl", &pcap_port(0, both), &["--dpdk", "net_pcap1,rx_pcap=in.pcap"]).assert_success();
    assert_eq!(ran.parse_json()["packets"], 4);
}

#[test]
fn truncated_malformed_and_missing_captures_are_reported() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    place.file("empty.pcap", "");
    place.file("none.pcap", "a text, and not the beginning of a capture");
    for file in ["empty.pcap", "none.pcap", "nowhere.pcap"] {
        run(&place, "f.wgsl", &pcap_port(0, &format!("rx_pcap={file}")), &[]).assert_failure(1, &["net_pcap0", file]);
    }
    // All complete packets of a truncated capture are received.
    let whole = pcap(&[&[1; 60], &[2; 70], &[3; 80]]);
    place.file("cut.pcap", &whole[..whole.len() - 30]);
    let port = pcap_port(0, "rx_pcap=cut.pcap,tx_pcap=out.pcap");
    let ran = run(&place, "f.wgsl", &port, &[]).assert_success();
    assert_eq!(ran.parse_json()["packets"], 2);
    let record = whole.len() - 16 - 80;
    let message = format!(
        "cut.pcap: the capture ends at byte {}, in the middle of the record that begins at byte {record}",
        whole.len() - 30
    );
    assert!(ran.err.contains(&message), "{}", ran.err);
    assert_eq!(packets(&place.read("out.pcap")), [vec![1; 60], vec![2; 70]]);
    // Packets before a malformed record are received.
    let mut broken = whole.clone();
    let second = 24 + 16 + 60;
    broken[second + 8..second + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    place.file("broken.pcap", &broken);
    let ran = run(&place, "f.wgsl", &pcap_port(0, "rx_pcap=broken.pcap"), &[]).assert_success();
    assert_eq!(ran.parse_json()["packets"], 1);
    let message = format!("broken.pcap: the record at byte {second} claims 2147483647 captured bytes");
    assert!(ran.err.contains(&message), "{}", ran.err);
    // A capture without packets.
    place.file("head.pcap", pcap(&[]));
    assert_eq!(
        run(&place, "f.wgsl", &pcap_port(0, "rx_pcap=head.pcap"), &[]).assert_success().parse_json()["packets"],
        0
    );
}

#[test]
fn totals_that_cannot_be_written_are_an_error_unless_the_pipe_is_closed() {
    let place = Place::new();
    place.file("f.wgsl", DROP);
    let run =
        format!("portcullis run f.wgsl --device cpu --json --dpdk {}", pcap_port(0, &format!("rx_pcap={}", sample())));
    place.shell(&format!("{run} > /dev/full")).assert_failure(1, &["standard output"]);
    let head = place.shell(&format!("{run} --stats 100ms | head -n 1"));
    assert_eq!((head.code, head.out.matches('\n').count()), (0, 1), "{}", head.err);
}
