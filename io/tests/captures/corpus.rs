//! Captures of tcpdump's test suite, many of them malformed on purpose, if available. Results are
//! compared with tcpdump's.

use std::path::{Path, PathBuf};
use std::process::Command;

use portcullis_core::packet::ResizeRoom;
use portcullis_io::{SourceOptions, open};

use super::bytes::parse_pcap;
use super::{Packet, drain};

/// The captures in `PORTCULLIS_CAPTURES` and its subfolders, or `None` if not available.
fn captures() -> Option<Vec<PathBuf>> {
    let directory = match std::env::var_os("PORTCULLIS_CAPTURES") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures/tcpdump"),
    };
    let mut files = Vec::new();
    if find(&directory, &mut files).is_err() {
        println!("skipped: no captures in ../shared/captures/tcpdump beside the workspace (or PORTCULLIS_CAPTURES)");
        return None;
    }
    files.sort();
    assert!(!files.is_empty(), "there are no captures in {}", directory.display());
    Some(files)
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "pcap" || extension == "pcapng") {
            files.push(path);
        }
    }
    Ok(())
}

#[test]
fn room_and_block_size_do_not_affect_packets() {
    for path in captures().unwrap_or_default() {
        let read = |room, block_size| {
            let options = SourceOptions::default().with_room(room).with_block_size(block_size);
            let outcome = drain(open(path.to_str().unwrap(), &options));
            (outcome.packets, outcome.warnings, outcome.error.map(|error| error.to_string()))
        };
        let wanted = read(ResizeRoom::None, 1 << 20);
        for (room, block_size) in
            [(ResizeRoom::None, 64), (ResizeRoom::None, 1000), (ResizeRoom::Both, 64), (ResizeRoom::Both, 4096)]
        {
            assert!(read(room, block_size) == wanted, "{}: {room:?}, blocks of {block_size}", path.display());
        }
    }
}

#[test]
fn packets_are_those_that_tcpdump_reads() {
    let Some(files) = captures() else { return };
    if Command::new("tcpdump").arg("--version").output().is_err() {
        println!("skipped: tcpdump is not installed");
        return;
    }
    let mut packets = 0;
    for path in files {
        let ours = drain(open(path.to_str().unwrap(), &SourceOptions::default()));
        let theirs = Command::new("tcpdump").args(["-w", "-", "-r"]).arg(&path).output().unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        let words = String::from_utf8_lossy(&theirs.stderr);
        let (_, snap_length, _, wanted) =
            if theirs.stdout.is_empty() { Default::default() } else { parse_pcap(&theirs.stdout) };
        // tcpdump writes microseconds without interfaces, and truncates packets at the header's
        // snapshot length.
        let got: Vec<Packet> = ours
            .packets
            .iter()
            .map(|packet| {
                let mut bytes = packet.bytes.clone();
                bytes.truncate(snap_length as usize);
                Packet { time: packet.time / 1000 * 1000, port: 0, bytes, ..*packet }
            })
            .collect();
        assert_eq!(got.len(), wanted.len(), "{name}: {words} {:?}", ours.error);
        for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            assert_eq!(got, wanted, "{name}, packet {i}");
        }
        let complaint = ours.error.is_some() || !ours.warnings.is_empty();
        assert_eq!(complaint, !theirs.status.success(), "{name}: {words} {:?} {:?}", ours.error, ours.warnings);
        packets += got.len();
    }
    assert!(packets > 1000, "the captures hold only {packets} packets together");
}
