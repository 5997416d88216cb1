//! Compares `portcullis run` with `tcpdump` from capture to capture: `cargo bench --bench capture`.
//!
//! The wall time of whole processes, in turn, over one capture of a million packets. A stock filter
//! is compared with the equivalent expression. Expressions are compared with themselves, given as
//! `--expr` if the feature `pcap-expr` is enabled, and else as the output of `tcpdump -ddd`.
//!
//! Also measures the peak memory of a run, for that capture and for one four times as long.

#[path = "../../benches/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use portcullis::packet_io::synth::Random;
use support::{Table, is_test_run, record_bar, sample_in_turn, time};

/// The expression that is equivalent to `http_only`.
const HTTP: &str = "tcp and (dst port 80 or dst port 443)";
const HTTP_ONLY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shaders/http_only.wgsl");

/// A comparison: the arguments that give `portcullis run` its filter, and tcpdump's expression.
struct Case {
    name: &'static str,
    /// Arguments of `portcullis run`.
    filter: Vec<String>,
    expression: String,
}

/// Returns the stock filter, and expressions: ports, bytes after a header of variable length, and a
/// list of hosts.
fn cases(folder: &Path) -> Vec<Case> {
    let hosts: Vec<String> = (0..60).map(|i| format!("host 10.{i}.{}.7", i * 3)).collect();
    let expressions = [
        ("ports", HTTP.to_owned()),
        ("flags and nets", "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not net 10.0.0.0/9".to_owned()),
        ("a word of the payload", "tcp[(tcp[12] & 0xf0) >> 2 : 4] = 0x47455420 or udp port 53".to_owned()),
        ("60 hosts", format!("{} or udp dst port 443", hosts.join(" or "))),
    ];
    let mut cases = vec![Case { name: "http_only", filter: vec![HTTP_ONLY.to_owned()], expression: HTTP.to_owned() }];
    for (number, (name, expression)) in expressions.into_iter().enumerate() {
        let filter = match cfg!(feature = "pcap-expr") {
            true => vec!["--expr".to_owned(), expression.clone()],
            false => {
                let output = Command::new("tcpdump").args(["-y", "EN10MB", "-ddd", &expression]).output();
                // Without tcpdump there is nothing to compare with either.
                let Some(output) = output.ok().filter(|output| output.status.success()) else { break };
                let file = folder.join(format!("capture-bench-{number}.bpf"));
                fs::write(&file, output.stdout).expect("room for a filter");
                vec![file.to_str().expect("the path is UTF-8").to_owned()]
            }
        };
        cases.push(Case { name, filter, expression });
    }
    cases
}

/// Writes a classic capture of `count` packets, about 370 bytes each; 23 of 100 pass the filter.
fn generate(path: &Path, count: usize) -> io::Result<()> {
    let mut random = Random::new(0, 0);
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&0xa1b2_c3d4_u32.to_le_bytes())?;
    out.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0])?;
    let mut packet = [0u8; 1514];
    for index in 0..count as u32 {
        let length: u32 = match random.below(100) {
            0..49 => 66,
            49..73 => 66 + random.below(300),
            73..87 => 590,
            _ => 1514,
        };
        let (protocol, port) = match random.below(100) {
            0..10 => (6, 80),
            10..23 => (6, 443),
            23..60 => (6, 1024 + random.below(60_000) as u16),
            60..70 => (17, 443),
            70..97 => (17, 53),
            _ => (1, 0),
        };
        support::write_ipv4(&mut packet, protocol, port, &mut random);
        packet[16..18].copy_from_slice(&(length as u16 - 14).to_be_bytes());
        // TCP's flags: SYN, ACK, PSH and FIN.
        packet[47] = random.pick(&[0x02, 0x10, 0x10, 0x18, 0x11]);
        for field in [1_700_000_000 + index / 1_000_000, index % 1_000_000, length, length] {
            out.write_all(&field.to_le_bytes())?;
        }
        out.write_all(&packet[..length as usize])?;
    }
    out.flush()
}

fn ours(filter: &[String], input: &str, output: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("run").args(filter).args(["--read", input, "--device", "cpu", "--write"]).arg(output);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn tcpdump(expression: &str, input: &str, output: &Path) -> Command {
    let mut command = Command::new("tcpdump");
    command.args(["-r", input, "-w"]).arg(output).arg(expression).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn must_succeed(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// Peak resident memory of a process in bytes, polled while it runs (VmHWM of proc(5), a high-water
/// mark). `None` if the system does not report it.
fn peak_memory(mut command: Command, feed: Option<(PathBuf, usize)>) -> Option<u64> {
    command.stdin(if feed.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().expect("the program starts");
    let writer = child.stdin.take().zip(feed).map(|(mut stdin, (path, times))| {
        std::thread::spawn(move || -> io::Result<()> {
            for time in 0..times {
                let mut file = File::open(&path)?;
                // Repetitions skip the capture's header.
                file.seek(SeekFrom::Start(if time == 0 { 0 } else { 24 }))?;
                io::copy(&mut file, &mut stdin)?;
            }
            Ok(())
        })
    });
    let mut peak = None;
    while child.try_wait().expect("a child of this process").is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.map(|k| k << 10));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().expect("a child of this process").success(), "{command:?}");
    if let Some(writer) = writer {
        writer.join().expect("writing does not panic").expect("the process reads all of its input");
    }
    peak
}

fn main() {
    support::restore_sigpipe();
    let (count, rounds) = if is_test_run() { (1000, 1) } else { (1_000_000, 9) };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let input = folder.join("capture-bench.pcap");
    let (our_output, their_output) = (folder.join("capture-bench-ours.pcap"), folder.join("capture-bench-theirs.pcap"));
    generate(&input, count).expect("room for the capture");
    let name = input.to_str().expect("the path is UTF-8");
    let bytes = fs::metadata(&input).expect("just written").len();
    println!("{count} packets, {} B each on average", (bytes - 24) / count as u64 - 16);

    if Command::new("tcpdump").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        println!("skipped: there is no tcpdump to compare with (Debian: apt-get install tcpdump)");
        must_succeed(&mut ours(&[HTTP_ONLY.to_owned()], name, &our_output));
    } else {
        let mut table = Table::new("capture to capture, wall time", "ours", "tcpdump");
        let mut ratios = Vec::new();
        for Case { name: case, filter, expression } in &cases(folder) {
            must_succeed(&mut ours(filter, name, &our_output));
            must_succeed(&mut tcpdump(expression, name, &their_output));
            let passed = fs::metadata(&our_output).expect("just written").len();
            println!("{case}: {:.1} % of the bytes pass", (passed - 24) as f64 * 100.0 / (bytes - 24) as f64);
            let records = |path| fs::read(path).expect("just written").split_off(24);
            assert!(records(&our_output) == records(&their_output), "both keep the same packets");
            // Both write new files: truncating an old one takes time that is neither program's work
            // (ext4 also flushes a file that replaces another when it is closed).
            let fresh = || {
                for output in [&our_output, &their_output] {
                    // Ignore errors: the file may not exist.
                    let _ = fs::remove_file(output);
                }
            };
            let timed = |mut command: Command| {
                fresh();
                time(|| must_succeed(&mut command))
            };
            let mut pair = sample_in_turn(
                rounds,
                || timed(ours(filter, name, &our_output)),
                || timed(tcpdump(expression, name, &their_output)),
            );
            // The CPU time of child processes does not count as this process's.
            pair.ours.processor = Duration::ZERO;
            ratios.push(((*case).to_owned(), pair.ratio()));
            table.row(case, pair, |time| format!("{time:.0?}"));
        }
        let against = "tcpdump -r -w EXPR, same capture";
        let (stock, expressions) = ratios.split_at(1);
        for (what, ratios) in [("capture in, capture out", stock), ("capture in, capture out, by --expr", expressions)]
        {
            record_bar(what, against, 2.0, "cargo bench --bench capture", ratios);
        }
        table.print();
    }
    for (what, input_name, feed) in
        [("this capture", name, None), ("four times as long", "-", Some((input.clone(), 4)))]
    {
        match peak_memory(ours(&[HTTP_ONLY.to_owned()], input_name, &our_output), feed) {
            Some(peak) => println!("peak memory, {what}: {:.1} MiB", peak as f64 / f64::from(1 << 20)),
            None => println!("peak memory, {what}: skipped, this system does not report it"),
        }
    }
    for file in [input, our_output, their_output] {
        // Ignore errors: a file left in target/ does no harm.
        let _ = fs::remove_file(file);
    }
}
