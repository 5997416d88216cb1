//! Measurement windows and the ends of runs.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;

use serde_json::Value;

use crate::support::{Place, RunOutput, command, measure, number, numbered, run, signal, sum, swapped};

#[test]
fn what_comes_before_the_warm_up_is_over_goes_out_and_is_not_counted() {
    let place = Place::new();
    let packets = numbered(2500);
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    for workload in ["none", "cpu", "inline", "pipelined"] {
        let limits = ["--burst", "64", "--warm-up", "500", "--packets", "1000"];
        let rows = measure(&port, &[&["--workload", workload], &limits[..]].concat());
        let ran = &rows[0]["ran"];
        let counts = ["taken", "packets", "packets_out", "warm_up"].map(|name| number(&ran[name]));
        assert_eq!(counts, [1500, 1000, 1000, 500], "{ran}");
        let bytes: usize = packets[500..1500].iter().map(Vec::len).sum();
        assert_eq!(number(&ran["bytes"]), bytes as u64, "{ran}");
        // A burst has packets of the warm-up or others.
        assert!(number(&ran["batches"]) >= 1000_u64.div_ceil(64), "{ran}");
        assert_eq!(number(&ran["verdicts"]["tx"]), 1000, "{ran}");
        let mut want = swapped(&packets[..1500]);
        if workload == "none" {
            want = packets[..1500].to_vec();
        }
        assert!(place.packets("out.pcap") == want, "{workload}");
    }
}

#[test]
fn a_warm_up_that_was_not_reached_is_said_and_gives_no_rates() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(200));
    let port = place.port(0, "in.pcap", "out.pcap");
    let arguments = ["--dpdk", &port, "--device", "cpu", "--json", "--idle-exit", "100ms"];
    let ran = run(arguments.iter().chain(&["--warm-up", "201"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let rows = ran.rows();
    let numbers = &rows[0]["ran"];
    assert_eq!((&numbers["is_warm"], &numbers["through"]), (&false.into(), &Value::Null), "{numbers}");
    assert_eq!((&numbers["packets"], &numbers["packets_out"]), (&200.into(), &200.into()), "{numbers}");
    assert_eq!((&numbers["mpps"], &numbers["elapsed_s"]), (&0.0.into(), &0.0.into()), "{numbers}");
    assert!(ran.err.contains("nothing measured: 200 packets came, and the warm-up takes 201"), "{ran:?}");
    // To the very last packet of it there is nothing either, and nothing is divided by zero.
    let rows = measure(&port, &["--idle-exit", "100ms", "--warm-up", "200"]);
    let numbers = &rows[0]["ran"];
    assert_eq!(
        (&numbers["is_warm"], &numbers["through"], &numbers["packets"]),
        (&true.into(), &Value::Null, &0.into())
    );
}

#[test]
fn nothing_that_comes_is_nothing() {
    let place = Place::new();
    place.capture("in.pcap", &[]);
    let port = place.port(0, "in.pcap", "out.pcap");
    let rows = measure(&port, &["--idle-exit", "100ms", "--workload", "none,cpu,inline,pipelined"]);
    for row in &rows {
        assert_eq!((&row["ran"]["packets"], &row["ran"]["through"]), (&0.into(), &Value::Null), "{row}");
    }
    assert_eq!(rows.len(), 4);
}

#[test]
fn the_table_and_json_agree() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(1000));
    let port = place.port(0, "in.pcap", "out.pcap");
    let file = place.path("results.json");
    let arguments = ["--dpdk", &port, "--device", "cpu", "--packets", "1000", "--workload", "cpu,graph"];
    let ran = run(arguments.iter().copied().chain(["--burst", "100", "--json", file.to_str().unwrap()]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&report["filter"], &report["ports"][0]["driver"]), (&"mac_swap".into(), &"net_pcap".into()));
    assert!(report["dpdk"].as_str().unwrap().starts_with("DPDK 2"), "{report}");
    assert!(number(&report["machine"]["processors"]) > 0, "{report}");
    let numbers = &report["rows"][0]["ran"];
    let line = ran.out.lines().find(|line| line.starts_with("cpu ")).unwrap_or_else(|| panic!("{ran:?}"));
    // Columns are two blanks apart, and digits in groups one.
    let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let three = |value: &Value| match value.as_f64().unwrap() {
        small @ ..0.1 => format!("{small:.4}"),
        small @ ..10.0 => format!("{small:.2}"),
        other => format!("{other:.1}"),
    };
    let through = &numbers["through"];
    let mut want = vec!["cpu".into(), "cpu".into(), "host".into(), "100".into()];
    want.extend(["mpps", "gbps", "gbps_wire"].map(|name| three(&through[name])));
    want.extend(["1 000", "1 000", "0", "0", "0"].map(String::from));
    let latency = |name: &str| format!("{:.1}", numbers["latency_us"][name].as_f64().unwrap());
    want.extend(["p50", "p90", "p99", "p99.9", "max"].map(latency));
    want.push(number(&numbers["batches"]).to_string());
    want.push(format!("{:.1}", numbers["batch_mean"].as_f64().unwrap()));
    assert_eq!(cells, want);
    assert!(ran.out.contains("cpu has no dispatch method `graph`"), "{ran:?}");
}

/// Waits until a mode has begun.
fn hear(child: &mut Child, what: &str) -> BufReader<std::process::ChildStderr> {
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains(what) {
        assert!(err.read_line(&mut said).unwrap() > 0, "it ended: {said}");
    }
    err
}

#[test]
fn a_ctrl_c_ends_what_is_measured_and_tells_what_there_is() {
    for (workload, code) in [("cpu", 0), ("cpu,inline", 130)] {
        let arguments = ["--dpdk", "net_null0", "--device", "cpu", "--workload", workload, "--warm-up", "100"];
        let mut child = command(arguments.iter().chain(&["--packets", "0", "--json"])).spawn().unwrap();
        let mut err = hear(&mut child, "cpu on cpu");
        // Until something is measured.
        std::thread::sleep(std::time::Duration::from_secs(1));
        signal(&child, "INT");
        let mut ran = RunOutput::of(child.wait_with_output().unwrap());
        err.read_to_string(&mut ran.err).unwrap();
        assert_eq!(ran.code, code, "{ran:?}");
        let rows = ran.rows();
        assert_eq!(rows[0]["ran"]["ended"], "interrupted", "{ran:?}");
        assert_eq!(rows.len(), workload.split(',').count());
        if let Some(row) = rows.get(1) {
            assert_eq!((&row["ran"], &row["not_run"]), (&Value::Null, &"interrupted before".into()));
        }
    }
}

#[test]
fn what_one_mode_has_no_memory_for_is_no_end_of_the_others() {
    // DPDK begins with memory for all of them, whichever is first.
    let limits = ["--warm-up", "0", "--packets", "20000", "--pipelines", "8", "--workload", "none,inline"];
    let rows = measure("net_null0", &[&limits[..], &["--burst", "64,4096,8192"]].concat());
    assert!(rows.iter().all(|row| number(&row["ran"]["packets"]) > 0), "{rows:?}");
    assert_eq!(rows.len(), 6);
    // Where somebody says how much it is to have, what does not fit is a row with the reason, be it
    // the first one.
    for bursts in ["8192,64", "64,8192"] {
        let limits =
            ["--eal", "--no-huge -m 128", "--warm-up", "0", "--packets", "20000", "--workload", "none", "--json"];
        let ran = run(["--dpdk", "net_null0", "--burst", bursts].iter().chain(&limits));
        let rows = ran.rows();
        assert_eq!((ran.code, rows.len()), (0, 2), "{ran:?}");
        for row in &rows {
            match number(&row["burst"]) {
                64 => assert!(number(&row["ran"]["packets"]) > 0, "{row}"),
                _ => assert!(row["not_run"].as_str().is_some_and(|why| why.contains("no memory for")), "{row}"),
            }
        }
    }
}

#[test]
fn a_device_that_takes_long_is_no_end_of_what_comes() {
    let place = Place::new();
    // More than wait for the device, or are taken in the time that there is for it in the end.
    for (workload, count) in [("cpu", 4400), ("inline", 2800)] {
        let packets = numbered(count);
        place.capture("in.pcap", &packets);
        let port = place.port(0, "in.pcap", "out.pcap");
        // A burst takes longer than nothing may come.
        let slow = ["--work", "1ms", "--burst", "400", "--overload", "wait", "--idle-exit", "300ms"];
        let rows = measure(&port, &[&["--workload", workload, "--packets", "0"], &slow[..]].concat());
        let ran = &rows[0]["ran"];
        assert_eq!((&ran["packets_out"], &ran["ended"]), (&count.into(), &"idle".into()), "{ran}");
        assert!(place.packets("out.pcap") == swapped(&packets));
    }
}

#[test]
fn what_a_ctrl_c_has_not_through_is_lost_and_counted() {
    // A burst takes longer than anybody waits for it.
    let arguments = ["--dpdk", "net_null0", "--workload", "cpu", "--work", "20ms", "--burst", "256", "--warm-up", "0"];
    let mut child = command(arguments.iter().chain(&["--packets", "0", "--json", "-"])).spawn().unwrap();
    let mut err = hear(&mut child, "cpu on cpu");
    // Until something has come.
    std::thread::sleep(std::time::Duration::from_secs(1));
    signal(&child, "INT");
    let mut ran = RunOutput::of(child.wait_with_output().unwrap());
    err.read_to_string(&mut ran.err).unwrap();
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let numbers = &report["rows"][0]["ran"];
    assert!(number(&numbers["packets"]) > 0 && numbers["through"].is_null(), "{numbers}");
    assert_eq!(number(&numbers["packets"]), sum(&numbers["carried_out"]) + sum(&numbers["lost"]), "{numbers}");
    assert!(number(&numbers["lost"]["failed"]) > 0 && numbers["ended"] == "interrupted", "{numbers}");
    // As `run` ends then.
    assert_eq!(ran.code, 130, "{ran:?}");
}

#[test]
fn a_capture_that_is_cut_off_is_told_of() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(3));
    let capture = place.path("in.pcap");
    let whole = std::fs::read(&capture).unwrap();
    std::fs::write(&capture, &whole[..whole.len() - 1]).unwrap();
    let port = place.port(0, "in.pcap", "out.pcap");
    let ran = run(["--dpdk", &port, "--workload", "none", "--packets", "0", "--warm-up", "0", "--json"].iter());
    assert_eq!(number(&ran.rows()[0]["ran"]["packets"]), 2, "{ran:?}");
    assert!(ran.err.contains("in.pcap: the capture ends at byte"), "{ran:?}");
}

#[test]
fn a_duration_ends_a_mode() {
    let rows =
        measure("net_null0", &["--workload", "inline,none", "--duration", "200ms", "--packets", "0", "--warm-up", "1"]);
    for row in &rows {
        assert_eq!((&row["ran"]["ended"], &row["ran"]["is_warm"]), (&"duration".into(), &true.into()), "{row}");
    }
    assert_eq!(rows.len(), 2);
}

#[test]
fn a_capture_that_is_cut_short_is_an_error_of_its_mode() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(2000));
    let port = format!("net_pcap0,rx_pcap={},tx_pcap=/dev/full", place.path("in.pcap").display());
    let ran = run(["--dpdk", &port, "--device", "cpu", "--packets", "2000", "--workload", "none,inline"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(ran.out.matches("/dev/full: packets cannot be written").count(), 2, "{ran:?}");
}
