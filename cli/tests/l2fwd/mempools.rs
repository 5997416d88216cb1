//! Packets in GPU memory, and header split.

use serde_json::Value;

use crate::support::{Place, count, measure, numbered, run, swapped};

/// Options for an emulated GPU.
const SOFTWARE: [&str; 4] = ["--gpu", "software", "--mempool", "gpu"];

#[test]
fn every_packet_in_gpu_memory_is_processed() {
    let place = Place::new();
    // Fewer packets for small bursts, each of which takes a megabyte of communication list.
    for (count, burst) in [(40, "1"), (300, "3"), (2500, "64"), (2500, "1000"), (2500, "1024"), (2500, "8192")] {
        let packets = numbered(count);
        place.capture("in.pcap", &packets);
        let (port, wanted) = (place.port(0, "in.pcap", "out.pcap"), count.to_string());
        for workload in ["none", "cpu", "inline", "pipelined"] {
            let limits = ["--workload", workload, "--burst", burst, "--packets", &wanted];
            let rows = measure(&port, &[&SOFTWARE[..], &limits].concat());
            let row = &rows[0];
            assert_eq!((&row["mempool"], &row["ran"]["packets_out"]), (&"gpu".into(), &count.into()), "{row}");
            // An item of the communication list holds no more.
            assert!(row["ran"]["batch_mean"].as_f64().unwrap() <= 1024.0, "{row}");
            let want = if workload == "none" { packets.clone() } else { swapped(&packets) };
            assert!(place.packets("out.pcap") == want, "{workload}, {burst}");
        }
    }
}

#[test]
fn a_fronthaul_in_gpu_memory_is_consumed_by_a_filter_with_parameters() {
    let place = Place::new();
    let packets = place.synthetic("packets=1500,seed=6,size=64..1500,mix=ecpri");
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    let of_two_ports = packets.iter().filter(|packet| packet[23] < 2).count();
    for (set, consumed) in [(&[][..], 1500), (&["--set", "ports=2"], of_two_ports)] {
        let filter = ["--filter", "ecpri_reorder", "--workload", "cpu,inline,pipelined", "--burst", "64,1024"];
        let rows = measure(&port, &[&SOFTWARE[..], &filter, &["--packets", "1500"], set].concat());
        assert_eq!(rows.len(), 6, "{rows:?}");
        for row in rows {
            assert_eq!(row["ran"]["verdicts"]["drop"], consumed, "{row}");
            assert_eq!((&row["mempool"], &row["is_copied"]), (&"gpu".into(), &false.into()), "{row}");
        }
    }
}

#[test]
fn packets_with_split_headers_are_sent_whole() {
    let place = Place::new();
    let packets = numbered(1000);
    place.capture("in.pcap", &packets);
    let port = place.port(0, "in.pcap", "out.pcap");
    let bytes: usize = packets.iter().map(Vec::len).sum();
    for (split, mempool) in [(&["--header-split"][..], "host"), (&["--header-split", "14"], "gpu")] {
        for workload in ["none", "cpu", "pipelined"] {
            let arguments = ["--gpu", "software", "--mempool", mempool, "--workload", workload, "--packets", "1000"];
            let rows = measure(&port, &[&arguments[..], split].concat());
            let ran = &rows[0]["ran"];
            assert_eq!((&ran["packets_out"], &ran["bytes_out"]), (&1000.into(), &bytes.into()), "{mempool}: {ran}");
            let want = if workload == "none" { packets.clone() } else { swapped(&packets) };
            assert!(place.packets("out.pcap") == want, "{workload}, {mempool}");
        }
    }
}

#[test]
fn devices_and_filters_that_cannot_access_the_packets_are_refused() {
    let place = Place::new();
    place.capture("in.pcap", &numbered(100));
    let port = place.port(0, "in.pcap", "out.pcap");
    let text = "fn xdp_filter(pkt: u32) -> u32 {
        return select(XDP_TX, XDP_DROP, load_u8(pkt, pkt_len(pkt) - 1u) == 7u);
    }";
    let whole = place.path(place.file("whole.wgsl", text));
    for (arguments, code, part) in [
        (&["--mempool", "gpu"][..], 1, "--gpu cuda:0"),
        (&["--header-split", "--filter", whole.to_str().unwrap()], 1, "only the first 64"),
        (&["--gpu", "gpu", "--mempool", "gpu"], 2, "cuda:N"),
        (&["--mempool", "device"], 2, "host, gpu or all"),
        (&["--header-split", "13"], 2, "14"),
        (&["--header-split", "2049"], 2, "2048"),
    ] {
        run(["--dpdk", &port, "--device", "cpu"].iter().chain(arguments)).assert_failure(code, &[part]);
    }
    // If another memory is available, the unavailable one is a row with the reason.
    let rows = measure(&port, &["--mempool", "all", "--packets", "100"]);
    let of = |row: &Value| (row["mempool"].as_str().unwrap().to_owned(), row["ran"].is_null());
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), [("host".to_owned(), false), ("gpu".to_owned(), true)]);
    assert!(rows[1]["not_run"].as_str().unwrap().contains("--gpu software"), "{rows:?}");
    let rows = measure(&port, &["--mempool", "all", "--gpu", "software", "--packets", "100", "--workload", "none,cpu"]);
    assert!(rows.len() == 4 && rows.iter().all(|row| count(&row["ran"]["packets_out"]) == 100), "{rows:?}");
}
