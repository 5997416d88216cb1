//! Every packet of a burst is processed, whatever the burst's size.

use portcullis_live_tests::wait_until;

use crate::support::{Place, RunOutput, TIMEOUT, command, count, measure, numbered, signal, swapped};

/// More packets than the largest burst of similar programs, and no multiple of the bursts tested
/// here.
const PACKETS: usize = 2500;

#[test]
fn every_packet_is_swapped_and_sent_in_order_with_each_workload_and_burst() {
    let place = Place::new();
    let packets = numbered(PACKETS);
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    for workload in ["none", "cpu", "inline", "pipelined"] {
        let want = if workload == "none" { packets.clone() } else { swapped(&packets) };
        for burst in [1, 3, 64, 1000, 1024, 8192] {
            let burst_text = burst.to_string();
            let rows = measure(&port, &["--workload", workload, "--burst", &burst_text, "--packets", "2500"]);
            let [row] = &rows[..] else { panic!("{rows:?}") };
            assert_eq!((&row["workload"], &row["burst"]), (&workload.into(), &burst.into()), "{row}");
            let ran = &row["ran"];
            assert_eq!((&ran["packets"], &ran["packets_out"]), (&PACKETS.into(), &PACKETS.into()), "{row}");
            assert_eq!((&ran["ended"], &ran["is_warm"]), (&"packets".into(), &true.into()), "{row}");
            let bytes: usize = packets.iter().map(Vec::len).sum();
            assert_eq!((&ran["bytes"], &ran["through"]["bytes"]), (&bytes.into(), &bytes.into()), "{row}");
            // The flush timer may shorten a burst; nothing lengthens one.
            assert!(count(&ran["batches"]) >= PACKETS.div_ceil(burst) as u64, "{row}");
            assert!(ran["batch_mean"].as_f64().unwrap() <= burst as f64, "{row}");
            let out = place.packets("out.pcap");
            assert!(out == want, "{workload}, {burst}: {} packets", out.len());
        }
    }
}

#[test]
fn several_modes_run_one_after_the_other_on_one_port() {
    let place = Place::new();
    let packets = numbered(300);
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    let rows = measure(&port, &["--workload", "all", "--burst", "64,7", "--idle-exit", "100ms"]);
    let names: Vec<&str> = rows.iter().map(|row| row["workload"].as_str().unwrap()).collect();
    let all = ["none", "cpu", "inline", "pipelined", "persistent", "waitvalue", "graph"];
    assert_eq!(names, all.iter().flat_map(|name| [*name; 2]).collect::<Vec<_>>());
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["burst"], [64, 7][index % 2], "{row}");
        if index < 8 {
            assert_eq!((&row["ran"]["packets_out"], &row["ran"]["ended"]), (&300.into(), &"idle".into()), "{row}");
            assert_eq!(row["not_run"], serde_json::Value::Null, "{row}");
        } else {
            let reason = row["not_run"].as_str().unwrap();
            assert!(row["ran"].is_null() && reason.contains("it has pipelined and inline"), "{row}");
        }
    }
    // The output of the last mode that ran.
    assert!(place.packets("out.pcap") == swapped(&packets));
}

#[test]
fn a_port_given_by_number_can_be_reopened() {
    let modes = ["--workload", "none,inline", "--warm-up", "0", "--packets", "1000"];
    let rows = measure("0", &[&["--eal", "--vdev net_null0,size=100"], &modes[..]].concat());
    let bytes: Vec<u64> = rows.iter().map(|row| count(&row["ran"]["bytes"])).collect();
    assert_eq!(bytes, [100_000; 2], "the port has the same size again");
}

#[test]
fn an_incomplete_burst_is_sent_after_the_flush_time() {
    let place = Place::new();
    let packets = numbered(PACKETS);
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    let all: u64 = packets.iter().map(|packet| packet.len() as u64).sum();
    // The burst never fills, and only the signal ends the run.
    let ends = ["--packets", "0", "--idle-exit", "60m", "--burst", "8192", "--flush", "1ms"];
    for workload in ["none", "cpu", "inline", "pipelined"] {
        let arguments = ["--dpdk", &port, "--device", "cpu", "--json", "--workload", workload];
        let child = command(arguments.iter().chain(&ends)).spawn().unwrap();
        // The driver may still buffer the last packets.
        let written = || place.path("out.pcap").metadata().is_ok_and(|file| file.len() > all / 2);
        wait_until("packets are sent while the program runs", TIMEOUT, written);
        signal(&child, "INT");
        let rows = RunOutput::of(child.wait_with_output().unwrap()).assert_success().rows();
        let ran = &rows[0]["ran"];
        assert_eq!((&ran["packets_out"], &ran["ended"]), (&PACKETS.into(), &"interrupted".into()), "{ran}");
        std::fs::remove_file(place.path("out.pcap")).unwrap();
    }
}

#[test]
fn verdicts_of_a_given_filter_are_executed() {
    let place = Place::new();
    let packets = numbered(500);
    place.capture("in.pcap", &packets);
    let text = "fn xdp_filter(pkt: u32) -> u32 {
        let number = load_be32(pkt, 14u);
        if number % 4u == 0u { return XDP_DROP; }
        if number % 4u == 1u { return redirect(7u); }
        if number % 4u == 2u { return XDP_PASS; }
        return XDP_TX;
    }";
    let filter = place.path(place.file("by_number.wgsl", text));
    let (port, filter) = (place.port(0, "in.pcap", "out.pcap"), filter.to_str().unwrap());
    let other = format!("7=net_pcap1,tx_pcap={}", place.path("other.pcap").display());
    let rows = measure(&port, &["--filter", filter, "--redirect", &other, "--burst", "10", "--packets", "500"]);
    let ran = &rows[0]["ran"];
    let executed = ["drop", "redirect", "tx", "pass"].map(|name| count(&ran["carried_out"][name]));
    assert_eq!((executed, count(&ran["lost"]["no_stack"])), ([125, 125, 125, 0], 125), "{ran}");
    let every = |first: usize| packets.iter().skip(first).step_by(4).cloned().collect::<Vec<_>>();
    assert!(place.packets("out.pcap") == every(3) && place.packets("other.pcap") == every(1));
}
