//! Measurement windows and the ends of runs.

use serde_json::Value;

use crate::running::Running;
use crate::support::{Place, RunOutput, command, count, measure, numbered, run, sum, swapped};

#[test]
fn packets_of_the_warm_up_are_sent_but_not_counted() {
    let place = Place::new();
    let packets = numbered(2500);
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    for workload in ["none", "cpu", "inline", "pipelined"] {
        let limits = ["--burst", "64", "--warm-up", "500", "--packets", "1000"];
        let rows = measure(&port, &[&["--workload", workload], &limits[..]].concat());
        let ran = &rows[0]["ran"];
        let counts = ["taken", "packets", "packets_out", "warm_up"].map(|name| count(&ran[name]));
        assert_eq!(counts, [1500, 1000, 1000, 500], "{ran}");
        let bytes: usize = packets[500..1500].iter().map(Vec::len).sum();
        assert_eq!(count(&ran["bytes"]), bytes as u64, "{ran}");
        // A burst never holds packets of both the warm-up and the measurement.
        assert!(count(&ran["batches"]) >= 1000_u64.div_ceil(64), "{ran}");
        assert_eq!(count(&ran["verdicts"]["tx"]), 1000, "{ran}");
        let want = if workload == "none" { packets[..1500].to_vec() } else { swapped(&packets[..1500]) };
        assert!(place.packets("out.pcap") == want, "{workload}");
    }
}

#[test]
fn an_incomplete_warm_up_is_reported_and_gives_no_rates() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(200));
    let port = place.port(0, "in.pcap", "out.pcap");
    let arguments = ["--dpdk", &port, "--device", "cpu", "--json", "--idle-exit", "100ms"];
    let ran = run(arguments.iter().chain(&["--warm-up", "201"])).assert_success();
    let rows = ran.rows();
    let numbers = &rows[0]["ran"];
    assert_eq!((&numbers["is_warm"], &numbers["through"]), (&false.into(), &Value::Null), "{numbers}");
    assert_eq!((&numbers["packets"], &numbers["packets_out"]), (&200.into(), &200.into()), "{numbers}");
    assert_eq!((&numbers["mpps"], &numbers["elapsed_s"]), (&0.0.into(), &0.0.into()), "{numbers}");
    ran.assert_exit(0, &["nothing measured: 200 packets received, fewer than the warm-up of 201"]);
    // If the warm-up ends with the last packet, nothing is measured, and nothing is divided by
    // zero.
    let rows = measure(&port, &["--idle-exit", "100ms", "--warm-up", "200"]);
    let numbers = &rows[0]["ran"];
    let counts = (&numbers["is_warm"], &numbers["through"], &numbers["packets"]);
    assert_eq!(counts, (&true.into(), &Value::Null, &0.into()), "{numbers}");
}

#[test]
fn a_run_without_packets_measures_nothing() {
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
fn table_and_json_agree() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(1000));
    let port = place.port(0, "in.pcap", "out.pcap");
    let file = place.path("results.json");
    let arguments = ["--dpdk", &port, "--device", "cpu", "--packets", "1000", "--workload", "cpu,graph"];
    let ran =
        run(arguments.iter().copied().chain(["--burst", "100", "--json", file.to_str().unwrap()])).assert_success();
    let report: Value = serde_json::from_slice(&place.read("results.json")).unwrap();
    assert_eq!((&report["filter"], &report["ports"][0]["driver"]), (&"mac_swap".into(), &"net_pcap".into()));
    assert!(report["dpdk"].as_str().unwrap().starts_with("DPDK 2"), "{report}");
    assert!(count(&report["machine"]["processors"]) > 0, "{report}");
    let numbers = &report["rows"][0]["ran"];
    let line = ran.out.lines().find(|line| line.starts_with("cpu ")).unwrap_or_else(|| panic!("{ran:?}"));
    // Two spaces separate columns, one separates groups of digits.
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
    want.push(count(&numbers["batches"]).to_string());
    want.push(format!("{:.1}", numbers["batch_mean"].as_f64().unwrap()));
    assert_eq!(cells, want);
    assert!(ran.out.contains("cpu has no dispatch method `graph`"), "{ran:?}");
}

/// Runs the workload `cpu` and others without an end, and presses Ctrl-C after a second.
fn interrupted(arguments: &[&str]) -> RunOutput {
    let endless = ["--dpdk", "net_null0", "--packets", "0", "--json"];
    let mut running = Running::spawn(command(arguments.iter().chain(&endless)));
    running.wait_for("cpu on cpu");
    // Give it time to receive something.
    std::thread::sleep(std::time::Duration::from_secs(1));
    running.signal("INT");
    running.wait()
}

#[test]
fn ctrl_c_ends_a_run_which_reports_its_results_so_far() {
    for (workload, code) in [("cpu", 0), ("cpu,inline", 130)] {
        let ran = interrupted(&["--device", "cpu", "--workload", workload, "--warm-up", "100"]).assert_exit(code, &[]);
        let rows = ran.rows();
        assert_eq!(rows[0]["ran"]["ended"], "interrupted", "{ran:?}");
        assert_eq!(rows.len(), workload.split(',').count());
        if let Some(row) = rows.get(1) {
            assert_eq!((&row["ran"], &row["not_run"]), (&Value::Null, &"interrupted earlier".into()));
        }
    }
}

#[test]
fn a_mode_without_enough_memory_does_not_end_the_others() {
    // Memory for the largest mode is reserved first, whichever runs first.
    let limits = ["--warm-up", "0", "--packets", "20000", "--pipelines", "8", "--workload", "none,inline"];
    let rows = measure("net_null0", &[&limits[..], &["--burst", "64,4096,8192"]].concat());
    assert!(rows.iter().all(|row| count(&row["ran"]["packets"]) > 0), "{rows:?}");
    assert_eq!(rows.len(), 6);
    // If the memory is limited by the user, a mode that does not fit is a row with the reason, even
    // if it is the first.
    for bursts in ["8192,64", "64,8192"] {
        let limits =
            ["--eal", "--no-huge -m 128", "--warm-up", "0", "--packets", "20000", "--workload", "none", "--json"];
        let ran = run(["--dpdk", "net_null0", "--burst", bursts].iter().chain(&limits));
        let rows = ran.rows();
        assert_eq!((ran.code, rows.len()), (0, 2), "{ran:?}");
        for row in &rows {
            match count(&row["burst"]) {
                64 => assert!(count(&row["ran"]["packets"]) > 0, "{row}"),
                _ => assert!(row["not_run"].as_str().is_some_and(|reason| reason.contains("no memory for")), "{row}"),
            }
        }
    }
}

#[test]
fn a_slow_device_does_not_count_as_idle() {
    let place = Place::new();
    // More packets than can be queued for the device or processed in the grace period at the end.
    for (workload, count) in [("cpu", 4400), ("inline", 2800)] {
        let packets = numbered(count);
        place.capture("in.pcap", &packets);
        let port = place.port(0, "in.pcap", "out.pcap");
        // A burst takes longer than the idle time.
        let slow = ["--work", "1ms", "--burst", "400", "--overload", "wait", "--idle-exit", "300ms"];
        let rows = measure(&port, &[&["--workload", workload, "--packets", "0"], &slow[..]].concat());
        let ran = &rows[0]["ran"];
        assert_eq!((&ran["packets_out"], &ran["ended"]), (&count.into(), &"idle".into()), "{ran}");
        assert!(place.packets("out.pcap") == swapped(&packets));
    }
}

#[test]
fn packets_cancelled_by_ctrl_c_are_counted_as_lost() {
    // A burst takes longer than the grace period after Ctrl-C.
    let ran = interrupted(&["--workload", "cpu", "--work", "20ms", "--burst", "256", "--warm-up", "0"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let numbers = &report["rows"][0]["ran"];
    assert!(count(&numbers["packets"]) > 0 && numbers["through"].is_null(), "{numbers}");
    assert_eq!(count(&numbers["packets"]), sum(&numbers["carried_out"]) + sum(&numbers["lost"]), "{numbers}");
    assert!(count(&numbers["lost"]["failed"]) > 0 && numbers["ended"] == "interrupted", "{numbers}");
    // The exit status that `run` has in this case.
    assert_eq!(ran.code, 130, "{ran:?}");
}

#[test]
fn a_truncated_capture_is_reported() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(3));
    let whole = place.read("in.pcap");
    place.file("in.pcap", &whole[..whole.len() - 1]);
    let port = place.port(0, "in.pcap", "out.pcap");
    let ran = run(["--dpdk", &port, "--workload", "none", "--packets", "0", "--warm-up", "0", "--json"].iter());
    assert_eq!(count(&ran.rows()[0]["ran"]["packets"]), 2, "{ran:?}");
    ran.assert_exit(0, &["in.pcap: the capture ends at byte"]);
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
fn a_failed_write_to_a_capture_is_an_error_of_its_mode() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(2000));
    let port = format!("net_pcap0,rx_pcap={},tx_pcap=/dev/full", place.path("in.pcap").display());
    let ran = run(["--dpdk", &port, "--device", "cpu", "--packets", "2000", "--workload", "none,inline"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(ran.out.matches("/dev/full: packets cannot be written").count(), 2, "{ran:?}");
}
