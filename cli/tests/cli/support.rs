//! Runs the program and examines its output.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A temporary folder of a test, in which the program runs.
pub struct Place {
    dir: TempDir,
}

/// Exit status and output of a run.
#[derive(Debug)]
pub struct RunOutput {
    /// The exit status.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard output as bytes.
    pub bytes: Vec<u8>,
    /// Standard error.
    pub err: String,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file, and returns its name.
    pub fn file<'a>(&self, name: &'a str, content: impl AsRef<[u8]>) -> &'a str {
        std::fs::write(self.path(name), content).unwrap();
        name
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// Returns whether a file exists.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the packets of synthetic traffic.
    pub fn synthetic(&self, spec: &str) -> Vec<Vec<u8>> {
        let read = format!("synth:{spec}");
        self.run(&["run", "minimal", "--device", "cpu", "--read", &read, "--write", "synthetic.pcap"]).assert_success();
        packets(&self.read("synthetic.pcap"))
    }

    /// Returns the names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns the command that runs the program in this folder.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// The program as a shell starts it that ignores a signal.
    pub fn command_ignoring<S: AsRef<std::ffi::OsStr>>(&self, signal: &str, args: &[S]) -> Command {
        let line = format!("trap '' {signal}; exec '{}' \"$@\"", env!("CARGO_BIN_EXE_portcullis"));
        let mut command = Command::new("sh");
        command.args(["-c", &line, "sh"]).args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> RunOutput {
        RunOutput::of(self.command(args).output().unwrap())
    }

    /// Starts the program with pipes for its input and output.
    pub fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a shell command in which `portcullis` is the program.
    #[cfg(unix)]
    pub fn shell(&self, line: &str) -> RunOutput {
        let line = format!("portcullis() {{ '{}' \"$@\"; }}\n{line}", env!("CARGO_BIN_EXE_portcullis"));
        let mut shell = Command::new("sh");
        RunOutput::of(shell.args(["-c", &line]).current_dir(self.dir.path()).stdin(Stdio::null()).output().unwrap())
    }

    /// Runs the program with `input` on standard input.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> RunOutput {
        let mut child = self.spawn(args);
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // A program that fails early does not read all of it.
            scope.spawn(move || {
                let _ = stdin.write_all(input);
            });
            RunOutput::of(child.wait_with_output().unwrap())
        })
    }
}

impl RunOutput {
    /// Collects the output of a finished command, which must not have panicked.
    pub fn of(output: Output) -> RunOutput {
        let ran = RunOutput {
            code: output.status.code().expect("the program ended by itself"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            bytes: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        ran.check_no_panic();
        ran
    }

    /// Checks that the output does not look like a crash.
    fn check_no_panic(&self) {
        for word in ["panicked", "internal error", "RUST_BACKTRACE", "unwrap"] {
            assert!(!self.err.contains(word) && !self.out.contains(word), "{}{}", self.out, self.err);
        }
    }

    /// Checks that the run succeeded.
    pub fn assert_success(self) -> RunOutput {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    /// Checks that the run ended with this exit status, and with all of these texts on standard
    /// error.
    pub fn assert_exit(self, code: i32, words: &[&str]) -> RunOutput {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "wanted {word:?} in: {}", self.err);
        }
        self
    }

    /// Checks that the run failed with this exit status, with all of these texts on standard error,
    /// and without standard output.
    pub fn assert_failure(self, code: i32, words: &[&str]) -> RunOutput {
        assert_eq!(self.out, "", "{}", self.err);
        self.assert_exit(code, words)
    }

    /// Checks that all of these texts are on standard output.
    pub fn assert_stdout_contains(&self, words: &[&str]) -> &RunOutput {
        for word in words {
            assert!(self.out.contains(word), "wanted {word:?} in: {}{}", self.out, self.err);
        }
        self
    }

    /// Parses the only line of output as JSON, and checks that no frame of live packets is missing.
    pub fn parse_json(&self) -> serde_json::Value {
        assert_eq!(self.out.matches('\n').count(), 1, "one line: {}{}", self.out, self.err);
        let line = serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out));
        assert_no_frame_is_missing(&line);
        line
    }
}

/// Checks that the report of a run with its own frames accounts for all of them.
fn assert_no_frame_is_missing(report: &serde_json::Value) {
    let frames = &report["frames"];
    assert!(frames.is_null() || frames["missing"] == 0 && frames["all"].as_u64() > Some(0), "{report}");
}

/// Timeout for what must happen; long, as the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds, at most for [`TIMEOUT`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the exit status of a child that must end by itself; one that does not is killed.
pub fn wait_for_end(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Interrupts a child, which must end by itself, and returns its output.
#[cfg(unix)]
pub fn interrupt(mut child: Child) -> RunOutput {
    signal(&child, "INT");
    wait_for_end(&mut child);
    RunOutput::of(child.wait_with_output().unwrap())
}

/// Sends a signal, such as `INT`.
#[cfg(unix)]
pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// Returns whether a device is available; one that `PORTCULLIS_REQUIRE` names must be.
pub fn has_device(device: &str) -> bool {
    let missing = match portcullis::devices::open(device) {
        Ok(_) => return true,
        Err(error) => error,
    };
    let required = std::env::var("PORTCULLIS_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == device), "{device} is required and missing: {missing}");
    println!("skipped on {device}: {missing}");
    false
}

/// Returns a stock filter's path.
pub fn stock(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders").join(name).with_extension("wgsl");
    path.to_str().unwrap().to_owned()
}

/// Returns the sample capture's path.
pub fn sample() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/mixed.pcap").to_owned()
}

/// A filter that passes everything.
pub const PASS: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";

/// Builds a classic capture, little-endian, in microseconds, with one packet a second.
pub fn pcap(packets: &[&[u8]]) -> Vec<u8> {
    pcap_of(packets)
}

/// Builds the capture of [`pcap`] from packets of any one type.
pub fn pcap_of<P: AsRef<[u8]>>(packets: &[P]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (second, packet) in packets.iter().map(AsRef::as_ref).enumerate() {
        for word in [second as u32, 5, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// Returns a UDP packet over IPv4 to this port.
pub fn udp(port: u16) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    packet[23] = 17;
    packet[36..38].copy_from_slice(&port.to_be_bytes());
    packet
}

/// Returns the packets of a little-endian classic capture.
pub fn packets(file: &[u8]) -> Vec<Vec<u8>> {
    assert!(matches!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1]), "{:x?}", &file[..4]);
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        packets.push(rest[16..16 + length].to_vec());
        rest = &rest[16 + length..];
    }
    packets
}

/// Puts the PRBs of a synthetic fronthaul in order: the words of the buffer that `ecpri_reorder`
/// fills, by number, without zeros, and the number of PRBs in all packets.
pub fn reordered(packets: &[Vec<u8>]) -> (BTreeMap<u32, u32>, usize) {
    let (mut words, mut prbs) = (BTreeMap::new(), 0);
    for packet in packets {
        // Ethernet with a VLAN tag, eCPRI at 18, the O-RAN header at 26, a section at 30.
        let [port, frame, first] = [packet[23], packet[27], packet[32]].map(u32::from);
        let time = u32::from(u16::from_be_bytes([packet[28], packet[29]]));
        let slot = (frame * 10 + (time >> 12)) * 2 + (time >> 6 & 63);
        let first = u32::from(packet[31] & 3) << 8 | first;
        for (number, prb) in packet[36..].chunks(28).enumerate() {
            let position = ((slot % 4 * 4 + port) * 14 + (time & 63)) * 273 + first + number as u32;
            for (word, bytes) in prb.chunks(4).enumerate() {
                words.insert(position * 7 + word as u32, u32::from_le_bytes(bytes.try_into().unwrap()));
            }
            prbs += 1;
        }
    }
    words.retain(|_, word| *word != 0);
    (words, prbs)
}

/// Returns the second column of a dumped map by the first, without zeros.
pub fn entries(csv: &str) -> BTreeMap<u32, u32> {
    let rows = csv.lines().skip(1).map(|row| row.split_once(',').unwrap());
    let rows = rows.map(|(key, value)| (key.parse().unwrap(), value.parse().unwrap()));
    rows.filter(|(_, value)| *value != 0).collect()
}
