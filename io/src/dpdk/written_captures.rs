//! Verifying captures that ports write: net_pcap does not report incomplete writes.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use portcullis_core::reason;

/// Length in bytes of a capture's header and of a packet's (`struct pcap_file_header`, `struct
/// pcap_sf_pkthdr`).
const FILE_HEADER: u64 = 24;
const PACKET_HEADER: u64 = 16;

/// The captures that a port has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenCaptures {
    files: Vec<PathBuf>,
    bytes: u64,
}

impl WrittenCaptures {
    /// Expects `packets` packets of `bytes` bytes in total in these files.
    pub(super) fn new(files: Vec<PathBuf>, packets: u64, bytes: u64) -> WrittenCaptures {
        let bytes = files.len() as u64 * FILE_HEADER + packets * PACKET_HEADER + bytes;
        WrittenCaptures { files, bytes }
    }

    /// Checks that the files are complete, once the port is closed.
    ///
    /// # Errors
    /// A sentence that names the missing bytes and the likely cause.
    pub fn check(&self) -> Result<(), String> {
        let mut there = 0;
        for file in &self.files {
            let failed =
                |error: &io::Error| Err(format!("{}: packets cannot be written: {}", file.display(), reason(error)));
            let opened = OpenOptions::new().write(true).open(file);
            let (mut opened, kind) = match opened.and_then(|file| Ok((file.metadata()?, file))) {
                Ok((metadata, opened)) => (opened, metadata),
                Err(error) => return failed(&error),
            };
            if kind.is_file() {
                there += kind.len();
            } else {
                // Pipes and devices keep nothing to count; an empty write shows whether they can be
                // written.
                return opened.write(&[]).map(drop).or_else(|error| failed(&error));
            }
        }
        if there >= self.bytes {
            return Ok(());
        }
        let names: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let (names, missing) = (names.join(" and "), self.bytes - there);
        Err(format!("{names}: {missing} of {} bytes are missing; is the disk full?", self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let files = vec![folder.path().join("a.pcap"), folder.path().join("b.pcap")];
        let written = WrittenCaptures::new(files.clone(), 3, 200);
        assert!(written.check().unwrap_err().contains("a.pcap: packets cannot be written: No such file or directory"));
        for (file, length) in files.iter().zip([24 + 2 * 16 + 150, 24 + 16 + 50]) {
            std::fs::write(file, vec![0; length]).unwrap();
        }
        assert_eq!(written.check(), Ok(()));
        std::fs::write(&files[1], [0; 24 + 16]).unwrap();
        let error = written.check().unwrap_err();
        assert!(error.contains("b.pcap: 50 of 296 bytes are missing"), "{error}");
    }

    #[test]
    fn unwritable_devices_are_reported() {
        let written = |file: &str| WrittenCaptures::new(vec![file.into()], 1, 60).check();
        assert!(written("/dev/full").unwrap_err().contains("/dev/full: packets cannot be written: "));
        assert_eq!(written("/dev/null"), Ok(()));
    }
}
