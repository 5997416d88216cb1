//! Runs the program, and builds and reads captures.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program;
pub use crate::program::{Place, signal};
pub use crate::running::{RunOutput, TIMEOUT, count, sum};

impl Place {
    /// Returns the name of a port that reads one capture and writes another.
    pub fn port(&self, number: usize, from: &str, to: &str) -> String {
        let (from, to) = (self.path(from), self.path(to));
        format!("net_pcap{number},rx_pcap={},tx_pcap={}", from.display(), to.display())
    }

    /// Writes a capture.
    pub fn capture(&self, name: &str, packets: &[Vec<u8>]) {
        self.file(name, program::pcap_of(packets));
    }

    /// Reads a capture.
    pub fn packets(&self, name: &str) -> Vec<Vec<u8>> {
        program::packets(&self.read(name))
    }
}

/// Builds packets with distinct addresses and numbers, of lengths from Ethernet's shortest to its
/// longest.
pub fn numbered(count: usize) -> Vec<Vec<u8>> {
    let packet = |number: usize| {
        let mut packet: Vec<u8> = (0..60 + number * 37 % 1455).map(|at| (number * 31 + at * 7) as u8).collect();
        packet[14..18].copy_from_slice(&(number as u32).to_be_bytes());
        packet
    };
    (0..count).map(packet).collect()
}

/// Returns packets with their MAC addresses swapped: the expected output.
pub fn swapped(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let swap = |packet: &Vec<u8>| [&packet[6..12], &packet[..6], &packet[12..]].concat();
    packets.iter().map(swap).collect()
}

/// Returns the command `portcullis l2fwd` with these arguments.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("l2fwd").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `portcullis l2fwd` with these arguments.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> RunOutput {
    RunOutput::of(command(arguments).output().unwrap())
}

/// Runs all modes over one port on the CPU, and returns their rows; none may fail.
pub fn measure(port: &str, arguments: &[&str]) -> Vec<Value> {
    run(["--dpdk", port, "--device", "cpu", "--json"].iter().chain(arguments)).assert_success().rows()
}

impl RunOutput {
    /// Returns the rows of the JSON on standard output, after checking that every packet is
    /// accounted for.
    pub fn rows(&self) -> Vec<Value> {
        let report: Value = serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let rows = report["rows"].as_array().unwrap().clone();
        rows.iter().filter(|row| !row["ran"].is_null()).for_each(|row| check_accounting(&row["ran"]));
        rows
    }
}

/// Checks that every received packet was sent, dropped or lost, and that no buffer is missing.
fn check_accounting(ran: &Value) {
    assert_eq!(count(&ran["packets"]), sum(&ran["carried_out"]) + sum(&ran["lost"]), "{ran}");
    assert_eq!((&ran["buffers"]["missing"], &ran["error"]), (&0.into(), &Value::Null), "{ran}");
    assert_eq!(ran["buffers"]["all"], ran["buffers"]["free"], "{ran}");
    let latency = ["p50", "p90", "p99", "p99.9", "max"].map(|name| ran["latency_us"][name].as_f64().unwrap());
    assert!(latency.is_sorted(), "{ran}");
    let Some(through) = ran["through"].as_object() else { return };
    let of = |name: &str| through[name].as_f64().unwrap();
    let elapsed = ran["elapsed_s"].as_f64().unwrap();
    assert!(elapsed > 0.0 && latency[0] > 0.0, "{ran}");
    assert_eq!(of("packets"), sum(&ran["carried_out"]) as f64, "{ran}");
    let near = |is: f64, want: f64| assert!((is - want).abs() <= want * 1e-9, "{is} is not {want}: {ran}");
    near(of("mpps"), of("packets") / elapsed / 1e6);
    near(of("gbps"), of("bytes") * 8.0 / elapsed / 1e9);
    near(of("gbps_wire"), (of("bytes") + of("packets") * 24.0) * 8.0 / elapsed / 1e9);
}
