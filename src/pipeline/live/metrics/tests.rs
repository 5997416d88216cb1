use std::collections::BTreeMap;
use std::time::Duration;

use portcullis_core::packet::VerdictCounts;
use portcullis_io::live::{ExecutedCounts, Losses, ReceivedCounts};

use super::*;

fn run() -> RunCollector {
    let mut losses = Losses::default();
    losses.add(Loss::NoTarget, 8);
    let mut lane = Snapshot {
        received: ReceivedCounts {
            packets: 1,
            bytes: 2,
            reassembled: 3,
            checksums: 4,
            dropped_by_kernel: 5,
            refused: 6,
        },
        executed: ExecutedCounts {
            packets: [10, 11, 12, 13, 14],
            bytes: [20, 21, 22, 23, 24],
            losses,
            checksums: 9,
            from_stack: 15,
            from_stack_lost: 16,
        },
        verdicts: VerdictCounts { aborted: 30, drop: 31, pass: 32, tx: 33, redirect: 34 },
        batches: 40,
        sizing: Some(Sizing {
            batch: 48,
            delay: Duration::from_micros(250),
            rate: 1e6,
            fixed: Duration::ZERO,
            packet_ns: 1.0,
        }),
        ..Snapshot::default()
    };
    lane.times.kernel = Duration::from_millis(2500);
    for (nanoseconds, packets) in [(900, 2), (1_500, 3), (40_000, 5), (3_000_000_000, 1)] {
        lane.latency.record_n(nanoseconds, packets).unwrap();
    }
    let lanes = vec![("eth0:0".to_owned(), lane), ("odd\"\\\n".to_owned(), Snapshot::default())];
    let reading = RunSnapshot { elapsed: Duration::from_secs(1), lanes };
    let trap = |line: u32, count| Trap {
        count,
        instruction: format!("instruction {line} of `parse`: exit"),
        file: "p.c".into(),
        line: line.to_string(),
        reason: "the packet is not so long".into(),
    };
    RunCollector {
        reading,
        filter: "f.wgsl".into(),
        device: "cpu".into(),
        start_time: 1.5e9,
        traps: vec![trap(7, 17), trap(9, 18)],
    }
}

/// The value of each series in the text.
fn series(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.map(|line| line.rsplit_once(' ').unwrap());
    lines.map(|(name, value)| (name, value.parse().unwrap_or_else(|_| panic!("{name} {value}")))).collect()
}

#[test]
fn every_counter_is_exported_under_its_name() {
    let text = encode(run());
    let series = series(&text);
    for (name, want) in [
        ("portcullis_build_info{version=\"0.1.0\"}", 1.0),
        ("portcullis_run_info{filter=\"f.wgsl\",device=\"cpu\"}", 1.0),
        ("portcullis_start_time_seconds", 1.5e9),
        ("portcullis_received_packets_total{lane=\"eth0:0\"}", 1.0),
        ("portcullis_received_bytes_total{lane=\"eth0:0\"}", 2.0),
        ("portcullis_reassembled_packets_total{lane=\"eth0:0\"}", 3.0),
        ("portcullis_completed_checksums_total{lane=\"eth0:0\"}", 13.0),
        ("portcullis_from_stack_packets_total{lane=\"eth0:0\"}", 15.0),
        ("portcullis_from_stack_lost_packets_total{lane=\"eth0:0\"}", 16.0),
        ("portcullis_kernel_dropped_packets_total{lane=\"eth0:0\"}", 5.0),
        ("portcullis_refused_packets_total{lane=\"eth0:0\"}", 6.0),
        ("portcullis_verdicts_total{lane=\"eth0:0\",verdict=\"aborted\"}", 30.0),
        ("portcullis_verdicts_total{lane=\"eth0:0\",verdict=\"redirect\"}", 34.0),
        (
            "portcullis_trapped_packets_total{instruction=\"instruction 9 of `parse`: exit\",file=\"p.c\",line=\"9\",\
             reason=\"the packet is not so long\"}",
            18.0,
        ),
        ("portcullis_carried_out_packets_total{lane=\"eth0:0\",verdict=\"tx\"}", 13.0),
        ("portcullis_carried_out_bytes_total{lane=\"eth0:0\",verdict=\"pass\"}", 22.0),
        ("portcullis_lost_packets_total{lane=\"eth0:0\",reason=\"no_target\"}", 8.0),
        ("portcullis_lost_packets_total{lane=\"eth0:0\",reason=\"overload\"}", 0.0),
        ("portcullis_batches_total{lane=\"eth0:0\"}", 40.0),
        ("portcullis_batch_target_packets{lane=\"eth0:0\"}", 48.0),
        ("portcullis_batch_delay_seconds{lane=\"eth0:0\"}", 0.000_25),
        ("portcullis_device_seconds_total{lane=\"eth0:0\",stage=\"kernel\"}", 2.5),
        ("portcullis_batch_latency_seconds_count{lane=\"eth0:0\"}", 11.0),
        ("portcullis_batches_total{lane=\"odd\\\"\\\\\\n\"}", 0.0),
    ] {
        assert_eq!(series.get(name), Some(&want), "{name}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    // All names have this program's prefix, and each is described once.
    assert!(series.keys().all(|name| name.starts_with("portcullis_")));
    let described: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    assert_eq!(described.len(), described.iter().collect::<std::collections::BTreeSet<_>>().len());
}

#[test]
fn sizing_gauges_exist_only_for_adaptive_batches() {
    let mut run = run();
    let count_lines =
        |text: &str| text.lines().filter(|line| line.contains("batch_target") || line.contains("batch_delay")).count();
    // Type and help of both gauges, the unit of one, and one value each for the one adaptive lane.
    let text = encode(RunCollector {
        reading: run.reading.clone(),
        filter: run.filter.clone(),
        device: run.device.clone(),
        start_time: 0.0,
        traps: Vec::new(),
    });
    assert!(text.contains("# TYPE portcullis_batch_delay_seconds gauge\n"), "{text}");
    assert_eq!(count_lines(&text), 7, "{text}");
    run.reading.lanes.remove(0);
    let text = encode(run);
    assert_eq!(count_lines(&text), 0, "{text}");
}

#[test]
fn latency_buckets_are_cumulative() {
    let text = encode(run());
    let series = series(&text);
    let bucket = |bound: &str| {
        let name = format!("portcullis_batch_latency_seconds_bucket{{le=\"{bound}\",lane=\"eth0:0\"}}");
        series.get(name.as_str()).copied().unwrap_or_else(|| panic!("{name}\n{text}"))
    };
    for (bound, want) in
        [("0.000001", 2.0), ("0.000002", 5.0), ("0.00002", 5.0), ("0.00005", 10.0), ("1.0", 10.0), ("+Inf", 11.0)]
    {
        assert_eq!(bucket(bound), want, "{bound}");
    }
    let sum = series["portcullis_batch_latency_seconds_sum{lane=\"eth0:0\"}"];
    let want = 3.0 + 5.0 * 40e-6 + 3.0 * 1.5e-6 + 2.0 * 0.9e-6;
    assert!((sum / want - 1.0).abs() < 0.001, "{sum} is not {want}");
}

#[test]
fn latency_bounds_range_from_a_microsecond_to_a_second() {
    assert_eq!((LATENCY_BUCKETS_NS[0], LATENCY_BUCKETS_NS[4], LATENCY_BUCKETS_NS[18]), (1_000, 20_000, 1_000_000_000));
    assert!(LATENCY_BUCKETS_NS.is_sorted());
}
