//! tcpdump's expressions: a list of them, what tcpdump makes of each, and packets that both are run
//! over.
//!
//! `expressions.txt` has the list. tcpdump compiles an expression (`-ddd`) and says which packets
//! of a capture it takes: so what is held to it here is the front end and the devices, with
//! libpcap's own compiler before both.
//!
//! [`mod@reference`] is another interpreter of programs of classic BPF, and [`arbitrary`] makes any
//! of them.

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

use portcullis::io::{Source as _, SourceOptions, capture};
use portcullis_bpf as bpf;
pub use portcullis_bpf::Instruction;
use portcullis_conformance::corpora::Packet;
use portcullis_core::diagnostics::Source;
use portcullis_core::packet::Metadata;

use crate::corpora;
use reference::Input;

/// Packets of one capture, at most.
const MOST: usize = 4_000;

/// How long tcpdump may take over one expression.
const PATIENCE: Duration = Duration::from_secs(60);

/// The expressions of `expressions.txt`, without what explains them. The first is the empty one.
pub fn expressions() -> Vec<&'static str> {
    let lines = include_str!("../../expressions.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    std::iter::once("").chain(lines).collect()
}

/// tcpdump, where it is installed, and the packets that it looks at.
#[derive(Debug)]
pub struct Tcpdump<'a> {
    packets: &'a [Packet],
    capture: PathBuf,
    folder: tempfile::TempDir,
}

/// What tcpdump says of an expression.
#[derive(Debug)]
pub struct TcpdumpOutput {
    /// Program as printed by `tcpdump -ddd`.
    pub numbers: String,
    /// Program as printed by `tcpdump -d`.
    pub listing: String,
    /// The packets that it takes, by number.
    pub taken: BTreeSet<u32>,
    /// The packets over which it would go round for ever. It was not given those.
    pub endless: BTreeSet<u32>,
}

impl<'a> Tcpdump<'a> {
    /// Has some packets ready for tcpdump.
    ///
    /// # Errors
    /// There is no tcpdump.
    ///
    /// # Panics
    /// Where the packets cannot be written.
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

    /// What tcpdump says of an expression.
    ///
    /// # Errors
    /// That it takes no such expression: older ones know fewer words.
    ///
    /// # Panics
    /// Where it fails in another way, or takes too long.
    pub fn ask(&self, expression: &str) -> Result<TcpdumpOutput, String> {
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
        let taken = run(Command::new("tcpdump").args(["-r", file, "-w", "-", "--", expression]))?;
        Ok(TcpdumpOutput { numbers, listing, taken: numbers_of(&taken), endless })
    }

    /// The packets over which a program does not come to an end: `ip6 protochain` goes from header
    /// to header, and some lead it back.
    fn endless(&self, program: &[Instruction]) -> BTreeSet<u32> {
        let has_loops = program.iter().any(|it| it.code == 0x05 && (it.k as i32) < 0);
        let packets = (0..).zip(self.packets).filter(|_| has_loops);
        let ends = |packet: &Packet| reference::run(program, Input::new(&packet.bytes), STEPS).is_some();
        packets.filter(|(_, packet)| !ends(packet)).map(|(number, _)| number).collect()
    }
}

/// Steps after which a program is taken for one that never ends: more than there is fuel for.
const STEPS: u32 = 1 << 20;

/// What a command writes to its standard output, or what it has against it.
fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("it started before");
    let id = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody may wait for it any more.
        let _ = sender.send(child.wait_with_output());
    });
    let Ok(output) = receiver.recv_timeout(PATIENCE) else {
        // It would go on for ever.
        let _ = Command::new("kill").arg(id.to_string()).status();
        panic!("{command:?} takes longer than {PATIENCE:?}");
    };
    let output = output.expect("it is our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(output.stdout) } else { Err(said) }
}

/// Writes packets but for some. A packet's number is the second in which it came.
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

/// The numbers of the packets in a capture that tcpdump has written here: in this machine's byte
/// order.
fn numbers_of(capture: &[u8]) -> BTreeSet<u32> {
    let word = |at: usize| u32::from_ne_bytes(capture[at..at + 4].try_into().expect("four bytes"));
    let (mut at, mut numbers) = (24, BTreeSet::new());
    while at < capture.len() {
        assert!(numbers.insert(word(at)), "tcpdump gives a packet twice");
        at += 16 + word(at + 8) as usize;
    }
    numbers
}

/// Packets of every kind, each with a length on the wire that may be more than its own: hostile
/// ones, traffic, the sample, and the captures that lie beside the repository, of which those that
/// there are.
///
/// # Panics
/// When the sample cannot be read.
pub fn packets() -> Vec<Packet> {
    let mut all = Vec::new();
    for corpus in [corpora::hostile(), corpora::synthetic()] {
        for (number, bytes) in (0..).zip(corpus.packets) {
            // As it was cut from something longer, now and then.
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

/// The packets of a capture, as far as it can be read and goes.
fn read(file: &Path, into: &mut Vec<Packet>) {
    let before = into.len();
    let Ok(mut source) = capture::open(&file.to_string_lossy(), &SourceOptions::default()) else { return };
    while let Ok(Some(batch)) = source.next_batch() {
        for (index, bytes) in batch.packets().enumerate() {
            if into.len() - before == MOST {
                return;
            }
            let metadata = Metadata { wire_length: batch.metadata_of(index).wire_length, ..Metadata::default() };
            into.push(Packet { bytes: bytes.to_vec(), metadata });
        }
    }
}

/// The instructions of what `tcpdump -ddd` prints.
///
/// # Panics
/// Where they are none.
pub fn instructions(numbers: &str) -> Vec<Instruction> {
    bpf::parse(&Source::new("tcpdump", numbers)).unwrap_or_else(|errors| panic!("{}", errors.render()))
}
