//! Pipelines that are too slow drop packets, count them, and continue.

use crate::support::{Place, count, measure, numbered, run, swapped};

#[test]
fn packets_that_a_pipeline_cannot_keep_up_with_are_dropped_and_counted() {
    // The interpreter is far slower than the port that generates packets.
    for burst in ["32", "2000"] {
        let arguments = ["--dpdk", "net_null0", "--device", "interp", "--json", "--workload", "pipelined"];
        let ran = run(arguments.iter().chain(&["--burst", burst, "--warm-up", "0", "--packets", "200000"]));
        let ran = ran.assert_exit(0, &["dropped"]);
        let rows = ran.rows();
        let numbers = &rows[0]["ran"];
        assert_eq!((&numbers["packets"], &numbers["ended"]), (&200_000.into(), &"packets".into()), "{numbers}");
        let dropped = count(&numbers["lost"]["overload"]);
        assert!(dropped > 0 && count(&numbers["packets_out"]) > 0, "{numbers}");
        assert_eq!(dropped + count(&numbers["packets_out"]), 200_000, "{numbers}");
    }
}

#[test]
fn with_overload_wait_no_packet_of_a_capture_is_lost() {
    let place = Place::new();
    // More packets than there are buffers.
    let packets = numbered(40_000).into_iter().map(|packet| packet[..60].to_vec()).collect::<Vec<_>>();
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    let wait = ["--overload", "wait", "--frames", "1024", "--burst", "64"];
    let rows = measure(&port, &[&["--workload", "cpu", "--packets", "40000"][..], &wait].concat());
    assert_eq!(rows[0]["ran"]["packets_out"], 40_000, "{rows:?}");
    assert!(place.packets("out.pcap") == swapped(&packets));
}

#[test]
fn several_pipelines_share_the_packets() {
    let limits = ["--warm-up", "5000", "--packets", "50000", "--burst", "64"];
    let rows = measure("net_null0", &[&["--pipelines", "2", "--workload", "none,cpu"], &limits[..]].concat());
    for row in &rows {
        // Each pipeline may exceed the limit by a burst at either end.
        let packets = count(&row["ran"]["packets"]);
        assert!((50_000 - 128..=50_000 + 128).contains(&packets), "{row}");
    }
    assert_eq!(rows.len(), 2);
}

#[test]
fn work_slower_than_the_traffic_drops_packets() {
    for workload in ["cpu", "pipelined"] {
        let limits = ["--warm-up", "1000", "--packets", "60000", "--burst", "64"];
        let rows = measure("net_null0", &[&["--workload", workload, "--work", "20us"], &limits[..]].concat());
        let ran = &rows[0]["ran"];
        assert_eq!((&ran["packets"], &ran["ended"]), (&60_000.into(), &"packets".into()), "{ran}");
        let dropped = count(&ran["lost"]["overload"]);
        assert!(dropped > 0 && dropped + count(&ran["packets_out"]) == 60_000, "{ran}");
        // Packets are processed one after the other, 20 µs each.
        assert!(ran["through"]["mpps"].as_f64().unwrap() <= 0.05, "{ran}");
    }
}

#[test]
fn work_is_bounded_and_refused_by_devices_without_it() {
    let port = ["--dpdk", "net_null0", "--packets", "100", "--warm-up", "0"];
    run(port.iter().chain(&["--work", "21ms"])).assert_exit(2, &["20ms"]);
    run(port.iter().chain(&["--work", "1us", "--device", "interp"])).assert_exit(1, &["work of 1µs"]);
    // Workload `none` ignores the option.
    run(port.iter().chain(&["--work", "1us", "--device", "interp", "--workload", "none"])).assert_success();
}
