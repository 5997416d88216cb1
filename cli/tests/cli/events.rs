//! `run --events`: events that XDP programs output.
#![cfg(target_os = "linux")]

use std::path::Path;

use serde_json::Value;

use crate::clang;
use crate::support::{PASS, Place, RunOutput, has_device, interrupt, pcap_of, wait_until};

/// Compiles objects of compat-tests; `None` without clang.
fn objects(place: &Place, names: &[&str]) -> Option<()> {
    for name in names {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../compat-tests/xdp/{name}.c"));
        clang::require_clang(clang::to_file(&source, &["-mcpu=v3"], &place.path(&format!("{name}.o"))))?;
    }
    Some(())
}

fn lines(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Builds frames of 60 bytes, whose sixth byte is the number of bytes that `ring_output_part`
/// outputs.
fn frames(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|number| (0..60).map(|at| if at == 5 { number } else { at }).collect()).collect()
}

/// Returns the row about events in a run's table, with single spaces.
fn events_row(ran: &RunOutput) -> String {
    let row = ran.out.lines().find(|line| line.starts_with("events ")).unwrap_or_else(|| panic!("{}", ran.out));
    row.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn events_are_written_as_lines_and_counted() {
    let place = Place::new();
    let Some(()) = objects(&place, &["events_ringbuf", "events_perf", "events_print"]) else { return };
    let frames = frames(40);
    let input = place.file("in.pcap", pcap_of(&frames));
    let run = |args: &[&str]| {
        let common = ["--read", input, "--device", "cpu", "--threads", "1"];
        place.run(&[&["run"], args, &common].concat())
    };
    // For each packet: as many bytes as it says, its header, and every other time eight bytes.
    let ran = run(&["events_ringbuf.o:ring_output_part", "--events", "out.jsonl", "--json"]).assert_success();
    let events = lines(&place.read("out.jsonl"));
    let count = 40 * 2 + (0..40).filter(|number| number & 4 != 0).count();
    assert_eq!(ran.parse_json()["events"], serde_json::json!({"count": count, "lost": 0}));
    assert_eq!(events.len(), count);
    assert!(events.iter().all(|event| event["map"] == "events" && event["time_ns"].is_u64()), "{events:?}");
    assert_eq!((&events[0]["data"], &events[1]["data"]), (&"".into(), &"000102030400060708090a0b0c0d".into()));
    assert_eq!(events[2]["data"], "00");

    // Without the option events are counted, in the table too.
    let ran = run(&["events_ringbuf.o:ring_output_part"]).assert_success();
    assert_eq!(events_row(&ran), format!("events {count} 0 lost"));

    // If events go to standard output, the totals do not.
    let ran = run(&["events_print.o:print_few", "--events", "-"]).assert_success();
    let texts = lines(ran.out.as_bytes());
    assert_eq!(texts.len(), 80);
    assert_eq!(texts[0]["text"], "packet of 60 bytes, proto 0c0d");
    assert!(ran.err.contains("events"), "{}", ran.err);

    let ran = run(&["events_perf.o:perf_sample", "--events", "-"]).assert_success();
    let samples = lines(ran.out.as_bytes());
    assert_eq!(samples.len(), 40);
    assert_eq!(samples[7]["data"], "adde3c00");
    let packet: String = frames[7].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(samples[7]["packet"], packet.as_str());

    // If the reader closes the pipe, the run ends quietly.
    let ran = place.shell("{ portcullis run events_print.o:print_few --read synth:packets=1000000000 --events - --device cpu; echo $? >&2; } | head -n 2");
    assert_eq!((lines(ran.out.as_bytes()).len(), ran.err.lines().last()), (2, Some("141")), "{}", ran.err);

    // Errors are reported before anything runs.
    let filter = place.file("f.wgsl", PASS);
    run(&[filter, "--events", "x"]).assert_failure(2, &["--events x", "no events"]);
    run(&["events_print.o:print_few", "--events", input])
        .assert_failure(2, &["--events in.pcap", "choose another name"]);
    run(&["events_print.o:print_few", "--events", "no/such/folder"])
        .assert_failure(1, &["no/such/folder", "cannot be created"]);
}

/// Events that could not be written are lost, and the totals say how many; the file has the others.
#[test]
fn events_that_cannot_be_written_are_counted_as_lost() {
    let place = Place::new();
    let Some(()) = objects(&place, &["events_print"]) else { return };
    let run = "portcullis run events_print.o:print_few --read synth:packets=5000,seed=3 --device cpu";
    let counts = |line: &str| {
        let ran = place.shell(line);
        assert!(ran.code == 1 && ran.err.contains("error: "), "{line}: {}{}", ran.out, ran.err);
        let events = &ran.parse_json()["events"];
        (events["count"].as_u64().unwrap(), events["lost"].as_u64().unwrap())
    };
    let all = place.shell(&format!("{run} --json")).assert_success().parse_json()["events"]["count"].as_u64().unwrap();
    assert!(all > 1000, "{all}");
    assert_eq!(counts(&format!("{run} --json --events /dev/full")), (0, all));
    let ran = place.shell(&format!("{run} --events /dev/full"));
    assert_eq!(events_row(&ran).replace(' ', ""), format!("events0{all}lost"));
    // With SIGXFSZ ignored, writing beyond the limit is an error; the limit of 8 blocks may fall
    // within a line.
    let (count, lost) = counts(&format!("trap '' XFSZ; ulimit -f 8; {run} --json --events cut.jsonl"));
    let text = place.text("cut.jsonl");
    let lines = text.matches('\n').count() as u64;
    assert!(lines > 10 && (count, count + lost) == (lines, all), "{count} {lost}: {lines} of {all}");
}

/// An interrupted run has written all events that it counts.
#[test]
fn an_interrupt_loses_no_events() {
    let Some(place) = crate::interrupts::place() else { return };
    let Some(()) = objects(&place, &["events_perf"]) else { return };
    for device in ["cpu", "wgpu"].into_iter().filter(|device| has_device(device)) {
        let args = ["run", "events_perf.o:perf_plain", "--read", "synth:packets=1000000000", "--json"];
        let args = [&args[..], &["--events", "out.jsonl", "--device", device]].concat();
        let child = place.spawn(&args);
        let events = place.path("out.jsonl");
        wait_until("events are written", || events.metadata().is_ok_and(|file| file.len() > 1_000_000));
        let totals = interrupt(child).assert_exit(130, &[]).parse_json();
        // All packets but IPv6 go back, each with an event.
        let count = totals["verdicts"]["tx"].as_u64().unwrap();
        assert_eq!(totals["events"], serde_json::json!({"count": count, "lost": 0}), "{device}: {totals}");
        assert_eq!(lines(&place.read("out.jsonl")).len() as u64, count, "{device}");
        std::fs::remove_file(place.path("out.jsonl")).unwrap();
    }
}
