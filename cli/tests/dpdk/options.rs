//! When a run ends, and what is to be seen of it and asked of it meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;

use portcullis_live_tests::wait_until;
use serde_json::Value;

use crate::running::SOON;
use crate::support::{PASS, Place, pcap, sample};
use crate::{pcap_port, run, start};

const DROP: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }";
const TX: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }";

fn count(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("a number: {of}"))
}

/// Every packet has a verdict that is carried out, and no memory is missing.
fn accounts(json: &Value) {
    let verdicts: u64 = json["verdicts"].as_object().unwrap().values().map(count).sum();
    let carried: u64 = json["carried_out"].as_object().unwrap().values().map(count).sum();
    let lost: u64 = json["lost"].as_object().unwrap().values().map(count).sum();
    assert_eq!((verdicts, carried + lost), (count(&json["packets"]), count(&json["packets"])), "{json}");
    assert_eq!(json["frames"]["missing"], 0, "{json}");
}

#[test]
fn signals_end_a_run_and_it_prints_its_totals() {
    let place = Place::new();
    place.file("f.wgsl", DROP);
    for signal in ["INT", "TERM"] {
        // Packets come as fast as they are taken, and for ever.
        let mut running = start(&place, "f.wgsl", "net_null0", &["--stats", "100ms"]);
        while count(&serde_json::from_str::<Value>(&running.line()).unwrap()["interval"]["packets"]) == 0 {}
        running.signal(signal);
        let ended = running.end();
        assert!(ended.status.success(), "{signal}: {}", ended.stderr);
        let totals = ended.stdout.lines().last().unwrap();
        let json: Value = serde_json::from_str(totals).unwrap_or_else(|e| panic!("{e}: {totals}"));
        assert!(count(&json["packets"]) > 0, "{json}");
        accounts(&json);
    }
}

#[test]
fn a_run_ends_when_nothing_has_come_for_as_long_as_it_is_told() {
    let place = Place::new();
    place.file("f.wgsl", DROP);
    // Nobody sends into the ring.
    let json = run(&place, "f.wgsl", "net_ring0", &["--idle-exit", "200ms"]).done().json();
    assert_eq!(json["packets"], 0);
    // By itself only a run ends whose ports all are captures: this one goes on until its time is
    // over.
    let capture = pcap_port(0, &format!("rx_pcap={}", sample()));
    let json = run(&place, "f.wgsl", &capture, &["--dpdk", "net_ring0", "--duration", "2s"]).done().json();
    assert_eq!(json["packets"], 4000);
    assert!(json["elapsed_s"].as_f64().unwrap() >= 2.0, "{json}");
    let json = run(&place, "f.wgsl", &capture, &["--idle-exit", "1500ms"]).done().json();
    assert!(json["elapsed_s"].as_f64().unwrap() >= 1.5, "{json}");
}

#[test]
fn an_operator_sees_it_and_has_another_filter_take_over() {
    let place = Place::new();
    place.file("a.wgsl", DROP);
    place.file("b.wgsl", TX);
    let more = ["--control", "socket", "--metrics", "0", "--stats", "100ms"];
    let mut running = start(&place, "a.wgsl", "net_null0", &more);
    running.hear("metrics: ");
    let said = running.said.clone();
    let address = said.lines().find_map(|line| line.strip_prefix("metrics: http://")?.strip_suffix("/metrics"));
    let ctl = |arguments: &[&str]| place.run(&[&["ctl", "--control", "socket"], arguments].concat());
    let tx = || count(&ctl(&["stats", "--json"]).done().json()["verdicts"]["tx"]);
    assert_eq!(tx(), 0);
    ctl(&["reload", "b.wgsl"]).done();
    wait_until("packets go out", SOON, || tx() > 0);
    let mut stream = TcpStream::connect(address.unwrap_or_else(|| panic!("an address: {said}"))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let sent = answer
        .lines()
        .find(|line| line.starts_with("portcullis_carried_out_packets_total{lane=\"net_null0:0\",verdict=\"tx\"}"));
    assert!(sent.is_some_and(|line| !line.ends_with(" 0")), "{answer}");
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let json: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert!(json["filter"].as_str().unwrap().ends_with("b.wgsl"), "{json}");
    assert!(count(&json["verdicts"]["drop"]) > 0 && count(&json["verdicts"]["tx"]) > 0, "{json}");
    accounts(&json);
}

#[test]
fn without_json_a_table_says_it() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let ran = place
        .run(&[
            "run",
            "f.wgsl",
            "--device",
            "cpu",
            "--dpdk",
            &pcap_port(0, &format!("rx_pcap={},tx_pcap=o.pcap", sample())),
        ])
        .done();
    for part in ["f.wgsl, on cpu", "packets", "4 000", "100.0 %", "frames: ", "all accounted for"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused_before_anything_is_done() {
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
        run(&place, "f.wgsl", &capture, more).failed(2, parts);
    }
    for option in ["--queues=1", "--eal=-v", "--idle-exit=1s", "--pass-to=tap:x"] {
        let name = option.split('=').next().unwrap();
        for source in ["--read=in.pcap", "--af-xdp=eth0", "--nfqueue=0"] {
            place.run(&["run", "f.wgsl", source, option]).failed(2, &[name]);
        }
        place.run(&["run", "f.wgsl", option]).failed(2, &["--dpdk"]);
    }
    for option in [
        "--only=tcp/80",
        "--all",
        "--xdp-mode=skb",
        "--zero-copy",
        "--copy",
        "--busy-poll",
        "--huge-pages",
        "--fail-open",
    ] {
        run(&place, "f.wgsl", &capture, &[option]).failed(2, &[option.split('=').next().unwrap()]);
    }
    assert_eq!(place.names(), ["f.wgsl"], "nothing was made");
}

#[test]
fn no_capture_is_written_over() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    let whole = pcap(&[&[1; 60], &[2; 70]]);
    place.file("in.pcap", &whole);
    let other = pcap_port(1, "rx_pcap=in.pcap,tx_pcap=out.pcap");
    for (port, more, said) in [
        ("rx_pcap=in.pcap,tx_pcap=./in.pcap", &[][..], "net_pcap0,tx_pcap=./in.pcap: net_pcap0 reads this capture"),
        (
            "rx_pcap=in.pcap,tx_pcap=out.pcap",
            &["--dpdk", &other],
            "net_pcap1,tx_pcap=out.pcap: net_pcap0 writes this capture",
        ),
        (
            "rx_pcap=in.pcap,tx_pcap=out.pcap",
            &["--pass-to", "net_pcap2,tx_pcap=in.pcap"],
            "net_pcap2,tx_pcap=in.pcap: net_pcap0 reads this capture",
        ),
        (
            "rx_pcap=in.pcap,tx_pcap=out.pcap",
            &["--redirect", "1=net_pcap2,tx_pcap=out.pcap"],
            "net_pcap0 writes this capture",
        ),
    ] {
        run(&place, "f.wgsl", &pcap_port(0, port), more).failed(2, &[said, "choose another name"]);
        assert_eq!(place.names(), ["f.wgsl", "in.pcap"]);
        assert!(place.read("in.pcap") == whole);
    }
    // Of one capture several may read.
    let both = ["--dpdk", "net_pcap1,rx_pcap=in.pcap"];
    let ran = run(&place, "f.wgsl", &pcap_port(0, "rx_pcap=in.pcap,tx_pcap=out.pcap"), &both).done();
    assert_eq!(ran.json()["packets"], 4);
}

#[test]
fn captures_that_are_cut_or_none_are_told_of() {
    let place = Place::new();
    place.file("f.wgsl", TX);
    place.file("empty.pcap", "");
    place.file("none.pcap", "a text, and not the beginning of a capture");
    for file in ["empty.pcap", "none.pcap", "nowhere.pcap"] {
        run(&place, "f.wgsl", &pcap_port(0, &format!("rx_pcap={file}")), &[]).failed(1, &["net_pcap0", file]);
    }
    // Whole packets are taken of one that is cut.
    let whole = pcap(&[&[1; 60], &[2; 70], &[3; 80]]);
    place.file("cut.pcap", &whole[..whole.len() - 30]);
    let port = pcap_port(0, "rx_pcap=cut.pcap,tx_pcap=out.pcap");
    let ran = run(&place, "f.wgsl", &port, &[]).done();
    let json = ran.json();
    assert_eq!(json["packets"], 2);
    let record = whole.len() - 16 - 80;
    let said = format!(
        "cut.pcap: the capture ends at byte {}, in the middle of the record that begins at byte {record}",
        whole.len() - 30
    );
    assert!(ran.err.contains(&said), "{}", ran.err);
    assert_eq!(crate::support::packets(&place.read("out.pcap")), [vec![1; 60], vec![2; 70]]);
    // Those before a record that makes no sense.
    let mut broken = whole.clone();
    let second = 24 + 16 + 60;
    broken[second + 8..second + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    place.file("broken.pcap", &broken);
    let ran = run(&place, "f.wgsl", &pcap_port(0, "rx_pcap=broken.pcap"), &[]).done();
    assert_eq!(ran.json()["packets"], 1);
    let said = format!("broken.pcap: the record at byte {second} claims 2147483647 captured bytes");
    assert!(ran.err.contains(&said), "{}", ran.err);
    // With no packets at all.
    place.file("head.pcap", pcap(&[]));
    assert_eq!(run(&place, "f.wgsl", &pcap_port(0, "rx_pcap=head.pcap"), &[]).done().json()["packets"], 0);
}

#[test]
fn totals_that_nobody_takes_are_an_error_or_a_quiet_end() {
    let place = Place::new();
    place.file("f.wgsl", DROP);
    let run =
        format!("portcullis run f.wgsl --device cpu --json --dpdk {}", pcap_port(0, &format!("rx_pcap={}", sample())));
    let full = place.shell(&format!("{run} > /dev/full"));
    assert_eq!(full.code, 1, "{}", full.err);
    assert!(full.err.contains("standard output"), "{}", full.err);
    let head = place.shell(&format!("{run} --stats 100ms | head -n 1"));
    assert_eq!((head.code, head.out.matches('\n').count()), (0, 1), "{}", head.err);
}
