//! Filter expressions with tcpdump as the reference: a list of expressions, tcpdump's results for
//! each, and the packets to run them on.
//!
//! `expressions.txt` holds the list. tcpdump compiles an expression (`-ddd`) and selects packets of
//! a capture. Both sides use libpcap's compiler, so the comparison tests the front end and the
//! devices.
//!
//! [`mod@reference`] is an independent interpreter of classic BPF, and [`arbitrary`] generates
//! random programs.

#[path = "../../../frontends/bpf/src/tests/arbitrary.rs"]
pub mod arbitrary;
#[path = "../../../frontends/bpf/src/tests/reference.rs"]
#[allow(missing_docs, reason = "it is shared with the front end's tests")]
pub mod reference;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use portcullis::packet_io::{Source as _, SourceOptions, capture};
use portcullis_bpf as bpf;
pub use portcullis_bpf::Instruction;
use portcullis_conformance::corpora::Packet;
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::Metadata;

use crate::corpora;
use reference::Input;

/// Maximum number of packets taken from one capture.
const MAX_PER_CAPTURE: usize = 4_000;

/// Time limit for tcpdump on one expression.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the expressions of `expressions.txt` without its comments. The first is the empty
/// expression.
pub fn expressions() -> Vec<&'static str> {
    let lines = include_str!("../../expressions.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    std::iter::once("").chain(lines).collect()
}

/// An installed tcpdump and the packets that it filters.
#[derive(Debug)]
pub struct Tcpdump<'a> {
    packets: &'a [Packet],
    capture: PathBuf,
    folder: tempfile::TempDir,
}

/// tcpdump's results for one expression.
#[derive(Debug)]
pub struct TcpdumpOutput {
    /// Program as printed by `tcpdump -ddd`.
    pub numbers: String,
    /// Program as printed by `tcpdump -d`.
    pub listing: String,
    /// Numbers of the packets that the expression selects.
    pub matched: BTreeSet<u32>,
    /// Numbers of the packets on which the program would not terminate; tcpdump was not given
    /// these.
    pub endless: BTreeSet<u32>,
}

impl<'a> Tcpdump<'a> {
    /// Prepares packets for tcpdump.
    ///
    /// # Errors
    /// If tcpdump is not installed.
    ///
    /// # Panics
    /// If the packets cannot be written.
    pub fn new(packets: &'a [Packet]) -> Result<Tcpdump<'a>, String> {
        let found = Command::new("tcpdump").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            return Err("not installed (Debian's package tcpdump)".into());
        }
        let folder = tempfile::tempdir().expect("a folder for a capture");
        let capture = folder.path().join("packets.pcap");
        write(&capture, packets, &BTreeSet::new()).expect("room for a capture");
        Ok(Tcpdump { packets, capture, folder })
    }

    /// Runs tcpdump on an expression.
    ///
    /// # Errors
    /// If tcpdump rejects the expression: older versions know fewer keywords.
    ///
    /// # Panics
    /// If tcpdump fails in another way or takes too long.
    pub fn run(&self, expression: &str) -> Result<TcpdumpOutput, String> {
        let compile = |how| run(Command::new("tcpdump").args(["-y", "EN10MB", how, "--", expression]));
        let numbers = compile("-ddd")?;
        let listing = compile("-d")?;
        let text = |bytes| String::from_utf8(bytes).expect("tcpdump prints ASCII");
        let (numbers, listing) = (text(numbers), text(listing));
        let endless = self.endless(&instructions(&numbers));
        let mut file = self.capture.clone();
        if !endless.is_empty() {
            file = self.folder.path().join("some.pcap");
            write(&file, self.packets, &endless).expect("room for another capture");
        }
        let file = file.to_str().expect("the path is UTF-8");
        let matched = run(Command::new("tcpdump").args(["-r", file, "-w", "-", "--", expression]))?;
        Ok(TcpdumpOutput { numbers, listing, matched: numbers_of(&matched), endless })
    }

    /// Returns the packets on which a program does not terminate: `ip6 protochain` follows the
    /// chain of headers, and some packets lead it in a cycle.
    fn endless(&self, program: &[Instruction]) -> BTreeSet<u32> {
        let has_loops = program.iter().any(|it| it.code == 0x05 && (it.k as i32) < 0);
        let packets = (0..).zip(self.packets).filter(|_| has_loops);
        let ends = |packet: &Packet| reference::run(program, Input::new(&packet.bytes), STEPS).is_some();
        packets.filter(|(_, packet)| !ends(packet)).map(|(number, _)| number).collect()
    }
}

/// Steps after which a program counts as endless; more than the fuel of any device allows.
const STEPS: u32 = 1 << 20;

/// Returns a command's standard output, or its error message.
fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("it started before");
    let id = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Sending fails if the receiver has given up after the timeout.
        let _ = sender.send(child.wait_with_output());
    });
    let Ok(output) = receiver.recv_timeout(TIMEOUT) else {
        // Stop the command, which might never exit by itself.
        let _ = Command::new("kill").arg(id.to_string()).status();
        panic!("{command:?} takes longer than {TIMEOUT:?}");
    };
    let output = output.expect("it is our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(output.stdout) } else { Err(said) }
}

/// Writes all packets except those in `without`. A packet's number is stored as its timestamp in
/// seconds.
fn write(path: &Path, packets: &[Packet], without: &BTreeSet<u32>) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, capture::MAX_PACKET as u32, 1] {
        file.write_all(&word.to_le_bytes())?;
    }
    for (number, packet) in (0..).zip(packets).filter(|(number, _)| !without.contains(number)) {
        let length = packet.bytes.len() as u32;
        for word in [number, 0, length, packet.metadata.wire_length] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&packet.bytes)?;
    }
    file.flush()
}

/// Returns the numbers of the packets in a capture written by tcpdump on this machine, in the
/// machine's byte order.
fn numbers_of(capture: &[u8]) -> BTreeSet<u32> {
    let word = |at: usize| u32::from_ne_bytes(capture[at..at + 4].try_into().expect("four bytes"));
    let (mut at, mut numbers) = (24, BTreeSet::new());
    while at < capture.len() {
        assert!(numbers.insert(word(at)), "tcpdump gives a packet twice");
        at += 16 + word(at + 8) as usize;
    }
    numbers
}

/// Returns packets of every kind, each with a wire length that may exceed its captured length:
/// hostile packets, synthetic traffic, the sample, and any captures stored beside the repository.
///
/// # Panics
/// If the sample cannot be read.
pub fn packets() -> Vec<Packet> {
    let mut all = Vec::new();
    for corpus in [corpora::hostile(), corpora::synthetic()] {
        for (number, bytes) in (0..).zip(corpus.packets) {
            // Make some packets look truncated by the snapshot length.
            let wire_length = bytes.len() as u32 + if number % 5 == 0 { number % 1_000 } else { 0 };
            all.push(Packet { metadata: Metadata { wire_length, ..Metadata::default() }, bytes });
        }
    }
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/mixed.pcap");
    let before = all.len();
    read(&sample, &mut all);
    assert!(all.len() > before, "the sample has packets");
    match corpora::files() {
        Ok(files) => files.iter().for_each(|file| read(file, &mut all)),
        Err(reason) => println!("{reason}"),
    }
    all
}

/// Appends at most [`MAX_PER_CAPTURE`] packets of a capture, up to the first error.
fn read(file: &Path, into: &mut Vec<Packet>) {
    let before = into.len();
    let Ok(mut source) = capture::open(file, &SourceOptions::default()) else { return };
    while let Ok(Some(batch)) = source.next_batch() {
        for (index, bytes) in batch.packets().enumerate() {
            if into.len() - before == MAX_PER_CAPTURE {
                return;
            }
            let metadata = Metadata { wire_length: batch.metadata_of(index).wire_length, ..Metadata::default() };
            into.push(Packet { bytes: bytes.to_vec(), metadata });
        }
    }
}

/// Parses the output of `tcpdump -ddd`.
///
/// # Panics
/// If it is not a list of instructions.
pub fn instructions(numbers: &str) -> Vec<Instruction> {
    bpf::parse(&Source::new("tcpdump", numbers)).unwrap_or_else(|errors| panic!("{}", errors.render()))
}
