//! Verifying captures that ports write: net_pcap does not report incomplete writes.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use super::error::DpdkError;

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
    /// [`DpdkError::CaptureWrite`] or [`DpdkError::CaptureTruncated`].
    pub fn check(&self) -> Result<(), DpdkError> {
        let mut there = 0;
        for file in &self.files {
            let failed = |error| Err(DpdkError::CaptureWrite { file: file.clone(), error });
            let opened = OpenOptions::new().write(true).open(file);
            let (mut opened, kind) = match opened.and_then(|file| Ok((file.metadata()?, file))) {
                Ok((metadata, opened)) => (opened, metadata),
                Err(error) => return failed(error),
            };
            if kind.is_file() {
                there += kind.len();
            } else {
                // Pipes and devices keep nothing to count; an empty write shows whether they can be
                // written.
                return opened.write(&[]).map(drop).or_else(failed);
            }
        }
        if there >= self.bytes {
            return Ok(());
        }
        let names: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let (files, missing) = (names.join(" and "), self.bytes - there);
        Err(DpdkError::CaptureTruncated { files, missing, expected: self.bytes })
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
        let error = written.check().unwrap_err().to_string();
        assert!(error.contains("a.pcap: packets cannot be written: No such file or directory"), "{error}");
        for (file, length) in files.iter().zip([24 + 2 * 16 + 150, 24 + 16 + 50]) {
            std::fs::write(file, vec![0; length]).unwrap();
        }
        written.check().unwrap();
        std::fs::write(&files[1], [0; 24 + 16]).unwrap();
        let error = written.check().unwrap_err().to_string();
        assert!(error.contains("b.pcap: 50 of 296 bytes are missing"), "{error}");
    }

    #[test]
    fn unwritable_devices_are_reported() {
        let written = |file: &str| WrittenCaptures::new(vec![file.into()], 1, 60).check();
        let error = written("/dev/full").unwrap_err().to_string();
        assert!(error.contains("/dev/full: packets cannot be written: "), "{error}");
        written("/dev/null").unwrap();
    }
}
