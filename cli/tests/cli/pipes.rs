//! Standard input and output, and closed pipes.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::support::{PASS, Place, packets, pcap, sample, stock};

#[test]
fn a_capture_is_filtered_from_stdin_to_stdout() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let capture = pcap(&[&[1; 60], &[2; 61]]);
    let ran = place.run_with(&["run", filter, "--read", "-", "--write", "-"], &capture).assert_success();
    assert_eq!(packets(&ran.bytes), [vec![1; 60], vec![2; 61]]);
    assert!(ran.err.contains("packets"), "the table is on standard error: {}", ran.err);
    let ran = place.run_with(&["run", filter, "--read", "-", "--write", "-", "--json"], &capture).assert_success();
    assert_eq!(packets(&ran.bytes).len(), 2);
    let line: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(line["packets"], 2);
}

/// The time to the first packet counts as reading, as the clock starts with the first read.
#[test]
fn waiting_for_the_first_packet_counts_as_reading() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let args = ["run", filter, "--read", "-", "--device", "cpu"];
    let mut child = place.spawn(&args);
    let mut stdin = child.stdin.take().unwrap();
    let capture = pcap(&[&[1; 60]]);
    stdin.write_all(&capture[..10]).unwrap();
    // At least half of this time it waits.
    std::thread::sleep(std::time::Duration::from_secs(1));
    stdin.write_all(&capture[10..]).unwrap();
    drop(stdin);
    let table = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    for row in ["time", "read"] {
        let row = table.lines().find_map(|line| line.trim_start().strip_prefix(row)).unwrap();
        assert!(row.split_whitespace().next().unwrap().parse::<f64>().unwrap() >= 0.5, "{table}");
    }
}

#[test]
fn a_filter_can_be_read_from_stdin() {
    let place = Place::new();
    let capture = place.file("c.pcap", pcap(&[&[1; 60]]));
    let ran = place.run_with(&["run", "-", "--read", capture, "--json"], PASS.as_bytes()).assert_success();
    assert_eq!(ran.parse_json()["filter"], "<stdin>");
    place.run_with(&["run", "-", "--read", capture], b"fn x").assert_failure(1, &["<stdin>:1:"]);
    place.run(&["run", "-", "--read", "-"]).assert_failure(2, &["standard input"]);
}

/// `portcullis … | head -c 100`: the reader closes the pipe. The program ends silently, with the
/// exit status that a shell reports for SIGPIPE.
#[test]
fn a_closed_pipe_ends_the_program_silently() {
    let place = Place::new();
    for args in [
        &["run", &stock("minimal"), "--read", "synth:packets=200000", "--write", "-", "--device", "cpu"][..],
        &["run", &stock("minimal"), "--read", &sample(), "--json"],
        &["run", &stock("minimal"), "--read", &sample()],
        &["completions", "bash"],
        &["devices"],
        &["check", &stock("minimal"), "--emit", "wgsl"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        // Short output would fit into the pipe: close it before the program starts.
        let mut reader = args.contains(&"-").then_some(reader);
        let child = place.command(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(reader) = &mut reader {
            reader.read_exact(&mut [0; 100]).unwrap();
        }
        drop(reader);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{args:?}");
        assert_eq!(ended.status.code(), Some(141), "{args:?}");
    }
}

/// Rust's runtime opens `/dev/null` in place of a closed standard output, so that all writes would
/// succeed. `/dev/null` itself is as good as any file, however it was opened.
#[cfg(unix)]
#[test]
fn a_closed_standard_output_is_an_error() {
    let place = Place::new();
    place.file("f.wgsl", PASS);
    place.file("c.pcap", pcap(&[&[1; 60]]));
    place.file("m.wgsl", format!("//! map m: array value=1 entries=1\n{PASS}"));
    let error = "error: standard output is closed: Bad file descriptor (os error 9); \
                 redirect it to a file, a pipe or /dev/null\n";
    for line in [
        "run f.wgsl --read c.pcap --write -",
        "run f.wgsl --read c.pcap --write-tx /dev/stdout",
        "run f.wgsl --read c.pcap --json",
        "run f.wgsl --read c.pcap --write o.pcap --json",
        "run m.wgsl --read c.pcap --dump-map m=-",
        "run f.wgsl --read c.pcap",
        "check f.wgsl",
        "completions bash",
        "--help",
        "run --help",
    ] {
        let ran = place.shell(&format!("portcullis {line} >&-"));
        assert_eq!((ran.code, ran.err.as_str()), (1, error), "{line}");
        assert!(!place.has("o.pcap"), "the error comes before packets are read");
        for null in [">/dev/null", "1<>/dev/null", ">>/dev/null"] {
            assert_eq!(place.shell(&format!("portcullis {line} {null}")).code, 0, "{line} {null}");
        }
        let _ = std::fs::remove_file(place.path("o.pcap"));
    }
    // Wrong usage is reported on standard error, and needs no standard output.
    place.shell("portcullis run f.wgsl >&-").assert_failure(2, &["--read"]);
    // Closed standard input or standard error does no harm, as neither is needed.
    place.shell("portcullis run f.wgsl --read c.pcap --write o.pcap <&- 2>&-").assert_success();
    assert_eq!(packets(&place.read("o.pcap")), [[1; 60]]);
}

/// If one output fails, the others are still complete.
#[test]
fn a_closed_pipe_does_not_truncate_other_outputs() {
    let place = Place::new();
    let filter = place.file("f.wgsl", "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS + (load_u8(pkt, 0u) & 1u); }");
    let args = ["run", filter, "--read", "-", "--write", "-", "--write-tx", "tx.pcap", "--device", "cpu"];
    let mut child = place.spawn(&args);
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let capture = pcap(&[&[1; 60], &[2; 60]]);
    stdin.write_all(&capture).unwrap();
    // A header and a packet.
    stdout.read_exact(&mut [0; 24 + 16 + 60]).unwrap();
    drop(stdout);
    // The program may notice the closed pipe in any of these.
    while stdin.write_all(&capture[24..]).is_ok() {}
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let sent = packets(&place.read("tx.pcap"));
    assert!(sent.len() >= 2 && sent.iter().all(|packet| *packet == [1; 60]), "{}", sent.len());
}
