//! Ctrl-C: the first ends a run in order, the second at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{PASS, Place, has_device, interrupt, packets, pcap, pcap_of, signal, wait_for_end, wait_until};

/// Returns whether these tests were started with signals ignored (`nohup`, or `&` in a script),
/// which the program inherits.
fn signals_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    // HUP, INT and TERM are 1, 2 and 15.
    let is_ignored = ignored.is_some_and(|ignored| ignored & 0x4003 != 0);
    if is_ignored {
        println!("skipped: signals are ignored here");
    }
    is_ignored
}

/// Creates a folder; `None` if runs there could not be interrupted.
pub fn place() -> Option<Place> {
    (!signals_are_ignored()).then(Place::new)
}

fn size(place: &Place, name: &str) -> u64 {
    place.path(name).metadata().map_or(0, |metadata| metadata.len())
}

/// All packets received from a live source before the interrupt are in the file.
#[test]
fn an_interrupt_finishes_the_files() {
    let Some(place) = place() else { return };
    let filter = place.file("f.wgsl", PASS);
    let mut child = place.spawn(&["run", filter, "--read", "-", "--write", "o.pcap", "--device", "cpu", "--json"]);
    let mut stdin = child.stdin.take().unwrap();
    // Some packets, then an idle pipe.
    stdin.write_all(&pcap(&[&[1; 60], &[2; 60]])).unwrap();
    // Packets are being processed once the output file has its header.
    wait_until("the file has its header", || size(&place, "o.pcap") >= 24);
    let ran = interrupt(child).assert_exit(130, &[]);
    assert!(ran.err.ends_with("interrupted: the rest of the input was not read\n"), "{}", ran.err);
    // The output is a complete capture of the packets counted.
    let line = ran.parse_json();
    let written = packets(&place.read("o.pcap"));
    assert_eq!((&line["packets"], &line["interrupted"]), (&written.len().into(), &true.into()));
    assert!([[1; 60], [2; 60]].starts_with(&written.iter().map(|p| p[..].try_into().unwrap()).collect::<Vec<_>>()));
    drop(stdin);
}

/// All packets counted are written, in the middle of a long capture and to several files, even if a
/// device's driver changes signal handlers when it compiles.
#[test]
fn an_interrupted_long_run_has_written_what_it_counts() {
    if signals_are_ignored() {
        return;
    }
    ["cpu", "wgpu", "opencl"].into_iter().filter(|device| has_device(device)).for_each(interrupt_a_long_run);
}

fn interrupt_a_long_run(device: &str) {
    let place = Place::new();
    let text = "fn xdp_filter(pkt: u32) -> u32 {
        let by = pkt_len(pkt) % 3u;
        if by == 0u { return redirect(7u); }
        return XDP_PASS + by - 1u;
    }";
    let filter = place.file("f.wgsl", text);
    let read = "synth:packets=1000000000,size=64..1500";
    let outputs = ["--write", "o.pcap", "--write-tx", "tx.pcap", "--write-redirect", "r"];
    let args = [&["run", filter, "--read", read, "--json", "--device", device], &outputs[..]].concat();
    let child = place.spawn(&args);
    // Many batches, so that the driver has compiled kernels for all shapes of them.
    wait_until("the files grow", || {
        ["o.pcap", "tx.pcap", "r/7.pcap"].iter().all(|name| size(&place, name) > 20_000_000)
    });
    let line = interrupt(child).assert_exit(130, &[]).parse_json();
    let count = |name: &str| packets(&place.read(name)).len();
    assert_eq!(line["verdicts"]["pass"], count("o.pcap"));
    assert_eq!(line["verdicts"]["tx"], count("tx.pcap"));
    assert_eq!(line["verdicts"]["redirect"], count("r/7.pcap"));
}

/// The maps match the packets counted.
#[test]
fn an_interrupted_run_dumps_its_maps() {
    let Some(place) = place() else { return };
    let filter = "//! map seen: counter entries=1
        fn xdp_filter(pkt: u32) -> u32 { seen_add(0u, 1u); return XDP_PASS; }";
    let filter = place.file("f.wgsl", filter);
    let args = ["run", filter, "--read", "synth:packets=1000000000", "--device", "cpu", "--json", "--write", "o.pcap"];
    let child = place.spawn(&[&args[..], &["--dump-map", "seen=seen.csv", "--state", "s"]].concat());
    wait_until("the file grows", || size(&place, "o.pcap") > 1_000_000);
    assert!(!place.has("seen.csv") && !place.has("s"), "maps and state are written at the end");
    let line = interrupt(child).assert_exit(130, &[]).parse_json();
    let wanted = format!("index,sum\n0,{}\n", line["packets"]);
    assert_eq!(place.text("seen.csv"), wanted);
    let again = ["run", filter, "--read", place.file("none.pcap", pcap(&[])), "--state", "s"];
    place.run(&[&again[..], &["--dump-map", "seen=again.csv"]].concat()).assert_success();
    assert_eq!(place.text("again.csv"), wanted);
}

/// A filter that takes too long is cancelled; packets before it are written.
#[test]
fn an_interrupt_cancels_a_filter_that_does_not_end() {
    let Some(place) = place() else { return };
    let text = "//! map m: counter entries=1
        fn xdp_filter(pkt: u32) -> u32 {
            while load_u8(pkt, 0u) == 2u {}
            return XDP_PASS;
        }";
    let filter = place.file("f.wgsl", text);
    // All packets but the first use up the fuel: hours in the interpreter.
    let all: Vec<&[u8]> = std::iter::once(&[1; 60][..]).chain(std::iter::repeat_n(&[2; 60][..], 20_000)).collect();
    let capture = place.file("c.pcap", pcap_of(&all));
    let options = ["--device", "interp", "--fuel", "16777216", "--batch", "1", "--write", "-", "--dump-map", "m=m.csv"];
    let mut child = place.spawn(&[&["run", filter, "--read", capture][..], &options].concat());
    let mut stdout = child.stdout.take().unwrap();
    let mut written = vec![0; 24 + 16 + 60];
    stdout.read_exact(&mut written).unwrap();
    signal(&child, "INT");
    assert_eq!(wait_for_end(&mut child).code(), Some(130));
    stdout.read_to_end(&mut written).unwrap();
    assert_eq!(packets(&written), [[1; 60]]);
    // The state of maps after a cancelled batch is undefined.
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("no map is written"), "{stderr}");
    assert_eq!(place.names(), ["c.pcap", "f.wgsl"]);
}

/// Before the first packet there is nothing to finish.
#[test]
fn an_interrupt_ends_the_wait_for_a_capture() {
    let Some(place) = place() else { return };
    let filter = place.file("f.wgsl", PASS);
    for begun in [&[][..], &pcap(&[&[1; 60]])[..30]] {
        let mut child = place.spawn(&["run", filter, "--read", "-", "--write", "o.pcap", "--device", "cpu"]);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(begun).unwrap();
        // By then it waits for input; if not, the test still holds.
        std::thread::sleep(Duration::from_millis(500));
        signal(&child, "INT");
        let status = wait_for_end(&mut child);
        assert!(status.code() == Some(130) || status.signal() == Some(2), "{status}");
        assert!(!place.has("o.pcap"));
    }
}

/// Opening a FIFO without a reader can be interrupted too.
#[test]
fn an_interrupt_ends_the_wait_for_a_reader() {
    let Some(place) = place() else { return };
    let filter = place.file("f.wgsl", PASS);
    assert!(std::process::Command::new("mkfifo").arg(place.path("ff")).status().unwrap().success());
    let mut child = place.spawn(&["run", filter, "--read", "synth:packets=10", "--write", "ff", "--device", "cpu"]);
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "INT");
    let status = wait_for_end(&mut child);
    assert!(status.code() == Some(130) || status.signal() == Some(2), "{status}");
    let ended = child.wait_with_output().unwrap();
    assert_eq!((&*ended.stdout, &*ended.stderr), (&b""[..], &b""[..]));
}

/// A reader that does not read delays the first Ctrl-C, and not the second.
#[test]
fn a_second_interrupt_ends_the_run_at_once() {
    let Some(place) = place() else { return };
    let filter = place.file("f.wgsl", PASS);
    let args = ["run", filter, "--read", "synth:packets=1000000000", "--write", "-", "--device", "cpu"];
    let mut child = place.spawn(&args);
    let mut stdout = child.stdout.take().unwrap();
    // A third of a batch; the rest exceeds a pipe's buffer.
    stdout.read_exact(&mut [0; 300_000]).unwrap();
    signal(&child, "INT");
    let mut stderr = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut stderr).unwrap();
    assert_eq!(stderr, "interrupted: finishing the batches in flight (again: end at once)\n");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the pipe is full");
    signal(&child, "INT");
    assert_eq!(wait_for_end(&mut child).code(), Some(130));
}

/// A signal that the parent ignores stays ignored: `nohup`, or `&` in a script.
#[test]
fn an_ignored_sighup_stays_ignored() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    let args = ["run", filter, "--read", "-", "--write", "o.pcap", "--device", "cpu", "--json"];
    let mut command = place.command_ignoring("HUP", &args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let capture = pcap(&[&[1; 60], &[2; 60]]);
    stdin.write_all(&capture).unwrap();
    wait_until("the file has its header", || size(&place, "o.pcap") >= 24);
    signal(&child, "HUP");
    std::thread::sleep(Duration::from_millis(300));
    stdin.write_all(&capture[24..]).unwrap();
    drop(stdin);
    assert_eq!(wait_for_end(&mut child).code(), Some(0));
    assert_eq!(packets(&place.read("o.pcap")).len(), 4);
}
