//! Packets from one port to another.

use crate::program::{PASS, Place, packets, pcap_of, sample};
use crate::{pcap_port, run};

/// A filter that redirects packets of the first port to target 1, and those of the second to target
/// 2.
const FORWARD: &str = "fn xdp_filter(pkt: u32) -> u32 { return redirect(pkt_port(pkt) + 1u); }";

/// A ring returns the packets that are sent into it.
#[test]
fn packets_are_redirected_through_a_ring_in_order() {
    let (want, place) = (packets(&std::fs::read(sample()).unwrap()), Place::new());
    place.file("f.wgsl", FORWARD);
    // As many packets as the ring holds: with two lanes it may fill up before it is drained.
    let want: Vec<&[u8]> = want.iter().take(1000).map(Vec::as_slice).collect();
    place.file("in.pcap", pcap_of(&want));
    for lanes in ["one", "each"] {
        let more = ["--dpdk", "net_ring0", "--lanes", lanes, "--redirect", "1=net_ring0", "--redirect"];
        let last = format!("2={}", pcap_port(1, "tx_pcap=out.pcap"));
        let more = [&more[..], &[&last, "--idle-exit", "1s"]].concat();
        let json = run(&place, "f.wgsl", &pcap_port(0, "rx_pcap=in.pcap"), &more).assert_success().parse_json();
        assert_eq!(json["carried_out"]["redirect"], 2 * want.len(), "{lanes}: {json}");
        assert_eq!(json["lanes"].as_array().unwrap().len(), if lanes == "one" { 1 } else { 2 });
        assert_eq!(packets(&place.read("out.pcap")), want, "{lanes}");
    }
}

#[test]
fn lanes_serve_one_queue_each_or_one_lane_serves_all() {
    let place = Place::new();
    place.file("f.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return XDP_TX; }");
    // Each queue reads a capture of its own, and each writes one.
    let captures =
        [3, 500].map(|count| (0..count).map(|at| vec![at as u8; 60 + count % 7 + at % 5]).collect::<Vec<_>>());
    for (name, packets) in ["a.pcap", "b.pcap"].iter().zip(&captures) {
        place.file(name, pcap_of(packets));
    }
    let port = pcap_port(0, "rx_pcap=a.pcap,rx_pcap=b.pcap,tx_pcap=x.pcap,tx_pcap=y.pcap");
    for lanes in ["one", "each"] {
        let json = run(&place, "f.wgsl", &port, &["--queues", "2", "--lanes", lanes]).assert_success().parse_json();
        let by_lane = json["lanes"].as_array().unwrap().iter().map(|it| &it["packets"]).collect::<Vec<_>>();
        let out = ["x.pcap", "y.pcap"].map(|name| packets(&place.read(name)));
        match lanes {
            "each" => {
                assert_eq!(by_lane, [3, 500]);
                assert_eq!(out, captures);
            }
            _ => {
                assert_eq!(by_lane, [503]);
                let mut all: Vec<Vec<u8>> = out.concat();
                let mut want = captures.concat();
                all.sort();
                want.sort();
                assert_eq!(all, want);
            }
        }
    }
}

#[test]
fn a_filter_with_maps_gets_one_lane_for_all_queues() {
    let place = Place::new();
    let text = "fn xdp_filter(pkt: u32) -> u32 { seen_add(0u, 1u); return XDP_DROP; }";
    place.file("f.wgsl", format!("//! map seen: counter entries=1\n{text}"));
    let port = pcap_port(0, &format!("rx_pcap={0},rx_pcap={0}", sample()));
    let dump = ["--dump-map", "seen=seen.csv"];
    let json = run(&place, "f.wgsl", &port, &[&["--queues", "2"], &dump[..]].concat()).assert_success().parse_json();
    assert_eq!((json["lanes"].as_array().unwrap().len(), json["packets"].as_u64()), (1, Some(8000)));
    assert!(place.text("seen.csv").contains("8000"));
    run(&place, "f.wgsl", &port, &["--queues", "2", "--lanes", "each"]).assert_failure(2, &["--lanes each", "maps"]);
}

#[test]
fn packets_from_the_pass_to_port_leave_through_the_first_port() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    let first = pcap_port(0, &format!("rx_pcap={},tx_pcap=out.pcap", sample()));
    let ran = run(&place, "f.wgsl", &first, &["--pass-to", "net_ring0", "--batch", "64"]).assert_success();
    let (json, want) = (ran.parse_json(), packets(&std::fs::read(sample()).unwrap()));
    assert_eq!(json["carried_out"]["pass"], want.len(), "{json}");
    assert_eq!(json["from_stack"], want.len(), "{json}");
    assert_eq!(json["verdicts"]["tx"], 0, "packets from the stack bypass the filter");
    assert_eq!(packets(&place.read("out.pcap")), want);
}

#[test]
fn packets_that_pass_without_a_stack_are_counted_with_one_warning() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    let ran = run(&place, "f.wgsl", &pcap_port(0, &format!("rx_pcap={}", sample())), &[]).assert_success();
    let json = ran.parse_json();
    assert_eq!((&json["lost"]["no_stack"], &json["carried_out"]["pass"]), (&4000.into(), &0.into()), "{json}");
    assert_eq!(ran.err.matches("packets that pass are counted and dropped; --pass-to").count(), 1, "{}", ran.err);
}
