//! Named corpora of packets to run filters on: well-formed traffic, hostile packets, and captures
//! stored beside the repository.

use std::path::{Path, PathBuf};

use portcullis::packet_io::synth::{self, Generator, Size, Spec};
use portcullis::packet_io::{Source, SourceError, SourceOptions, capture};

/// Packets of one kind or from one file.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Name used in failure messages.
    pub name: String,
    /// The packets' bytes.
    pub packets: Vec<Vec<u8>>,
}

/// Returns well-formed traffic of every kind, with the usual lengths and some jumbo frames.
pub fn synthetic() -> Corpus {
    let mut packets = Vec::new();
    for (count, size) in [(4000, Size::Range(64, 400)), (300, Size::Range(1400, 1600)), (50, Size::Range(64, 9000))] {
        let spec = Spec { packets: count, seed: 11, size, flows: 200, ..Spec::default() };
        let mut generator = Generator::new(&spec);
        let mut bytes = vec![0; Generator::MAX_PACKET];
        for _ in 0..count {
            let (length, _) = generator.next_packet(&mut bytes);
            packets.push(bytes[..length].to_vec());
        }
    }
    Corpus { name: "synthetic traffic".into(), packets }
}

/// Returns packets whose headers contradict their contents.
pub fn hostile() -> Corpus {
    Corpus { name: "hostile packets".into(), packets: synth::hostile::corpus() }
}

/// Returns the paths of all captures under `../shared/captures` (or `PORTCULLIS_CAPTURES`), sorted.
///
/// # Errors
/// If the folder cannot be read.
pub fn files() -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    find_captures(&folder(), &mut files).map_err(|e| {
        format!(
            "no captures in ../shared/captures/tcpdump beside the workspace (or PORTCULLIS_CAPTURES): {}",
            portcullis_core::reason(&e)
        )
    })?;
    files.sort();
    Ok(files)
}

fn folder() -> PathBuf {
    match std::env::var_os("PORTCULLIS_CAPTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures"),
    }
}

/// Reads the packets of all Ethernet captures, each up to the first error, which is returned with
/// them.
///
/// # Errors
/// As [`files`].
pub fn captures() -> Result<Vec<(Corpus, Option<SourceError>)>, String> {
    let folder = folder();
    let files = files()?;
    let mut corpora = Vec::new();
    for file in files {
        let name = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
        let mut corpus = Corpus { name, packets: Vec::new() };
        let mut source = match capture::open(&file, &SourceOptions::default()) {
            Ok(source) => source,
            Err(error) => {
                corpora.push((corpus, Some(error)));
                continue;
            }
        };
        let fault = loop {
            match source.next_batch() {
                Ok(Some(batch)) => corpus.packets.extend(batch.packets().map(<[u8]>::to_vec)),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        corpora.push((corpus, fault));
    }
    Ok(corpora)
}

fn find_captures(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_captures(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "pcap" || e == "pcapng") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::synth::sample;

    #[test]
    fn the_committed_sample_is_up_to_date() {
        let folder = tempfile::tempdir().unwrap();
        let generated = folder.path().join("mixed.pcap");
        sample::write(&sample::sample(), &generated).unwrap();
        let committed = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/mixed.pcap")).unwrap();
        let is_same = committed == std::fs::read(&generated).unwrap();
        assert!(is_same, "samples/mixed.pcap is out of date: run `cargo xtask samples` and commit it");
    }
}
