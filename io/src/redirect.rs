//! A capture file for each redirect target.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use portcullis_core::packet::Batch;

use crate::capture::{CaptureKind, Encoder, append_records};
use crate::sink::{SinkError, Written};
use crate::source::CaptureFormat;

/// A directory with a classic pcap file for each redirect target: `3.pcap` for target 3. The first
/// [`RedirectSink::MAX_TARGETS`] targets get files of their own; packets to all other targets go to
/// `other.pcap`.
///
/// A file is created when its first packet arrives, replacing an existing one. At most `MAX_OPEN`
/// files are open at a time, so the limit on open files does not matter.
#[derive(Debug)]
pub struct RedirectSink {
    directory: PathBuf,
    format: CaptureFormat,
    files: Vec<Output>,
    by_target: HashMap<u32, usize>,
    /// Index of `other.pcap` in `files`.
    other: Option<usize>,
    open: usize,
    /// Counts flushes; orders files by their last flush, for closing the least recently used.
    clock: u64,
    written: Written,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    encoder: Encoder,
    buffer: Vec<u8>,
    file: Option<File>,
    /// Set once the file has been created: it is reopened for appending.
    begun: bool,
    /// Packets in the buffer, and in the file.
    buffered: u64,
    flushed: u64,
    used: u64,
}

impl RedirectSink {
    /// Maximum number of targets that have files of their own.
    pub const MAX_TARGETS: usize = 1024;

    /// Maximum number of files open at once.
    const MAX_OPEN: usize = 64;

    /// Bytes buffered per file; 1,025 buffers are 16 MiB.
    const BUFFER_SIZE: usize = 16 << 10;

    /// Creates the directory if it does not exist.
    ///
    /// # Errors
    /// [`SinkError::Create`].
    pub fn create(directory: &Path, format: &CaptureFormat) -> Result<RedirectSink, SinkError> {
        std::fs::create_dir_all(directory)
            .map_err(|error| SinkError::Create { name: directory.display().to_string(), error })?;
        Ok(RedirectSink {
            directory: directory.to_owned(),
            format: format.clone(),
            files: Vec::new(),
            by_target: HashMap::new(),
            other: None,
            open: 0,
            clock: 0,
            written: Written::default(),
        })
    }

    /// Writes the packets `indices` of `batch`, in this order. `targets` has one entry for each
    /// packet of the batch, redirected or not, like the verdicts' target column.
    ///
    /// # Errors
    /// See [`SinkError`]; after an error only [`finish`](Self::finish) is of use, which writes the
    /// other files.
    ///
    /// # Panics
    /// If an index is out of range of the batch or of `targets`.
    pub fn write(&mut self, batch: &Batch, indices: &[u32], targets: &[u32]) -> Result<(), SinkError> {
        self.write_to(batch, indices.iter().map(|&index| (index, targets[index as usize])))
    }

    /// Writes packets of `batch`, given as (index, target) pairs; a packet may occur with several
    /// targets.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Panics
    /// If an index is out of range.
    pub fn write_to(&mut self, batch: &Batch, to: impl Iterator<Item = (u32, u32)>) -> Result<(), SinkError> {
        for (index, target) in to {
            let index = index as usize;
            let length = batch.descriptors()[index].length as usize;
            let file = self.file_of(target);
            // A packet longer than the buffer makes it grow, so flush first what it already holds.
            if !self.files[file].buffer.is_empty() && self.files[file].buffer.len() + length > Self::BUFFER_SIZE {
                self.flush(file)?;
            }
            let output = &mut self.files[file];
            output.buffered += 1;
            self.written.bytes += output.encoder.packet(batch, index, &mut output.buffer) as u64;
            if output.buffer.len() >= Self::BUFFER_SIZE {
                self.flush(file)?;
                self.files[file].buffer.shrink_to(Self::BUFFER_SIZE);
            }
            self.written.packets += 1;
        }
        Ok(())
    }

    /// Flushes every file. If some fail, the others are still written.
    ///
    /// # Errors
    /// The first file's [`SinkError`].
    pub fn finish(mut self) -> Result<Written, SinkError> {
        let flushed = (0..self.files.len()).map(|file| self.flush(file));
        flushed.fold(Ok(()), Result::and)?;
        Ok(self.written)
    }

    /// Returns the index in `files` of the file for `target`, adding it if necessary.
    fn file_of(&mut self, target: u32) -> usize {
        if let Some(&file) = self.by_target.get(&target) {
            return file;
        }
        if self.by_target.len() < Self::MAX_TARGETS {
            let file = self.add(&format!("{target}.pcap"));
            self.by_target.insert(target, file);
            return file;
        }
        match self.other {
            Some(file) => file,
            None => {
                let file = self.add("other.pcap");
                self.other = Some(file);
                file
            }
        }
    }

    fn add(&mut self, name: &str) -> usize {
        let mut buffer = Vec::new();
        let encoder = Encoder::new(CaptureKind::Pcap, &self.format, &mut buffer);
        let path = self.directory.join(name);
        self.files.push(Output { path, encoder, buffer, file: None, begun: false, buffered: 0, flushed: 0, used: 0 });
        self.files.len() - 1
    }

    fn flush(&mut self, index: usize) -> Result<(), SinkError> {
        if self.files[index].buffer.is_empty() {
            return Ok(());
        }
        if self.files[index].file.is_none() && self.open == Self::MAX_OPEN {
            let oldest = self.files.iter_mut().filter(|output| output.file.is_some()).min_by_key(|output| output.used);
            if let Some(oldest) = oldest {
                oldest.file = None;
                self.open -= 1;
            }
        }
        self.clock += 1;
        let output = &mut self.files[index];
        output.used = self.clock;
        let name = || output.path.display().to_string();
        let is_new = !output.begun;
        let file = match &mut output.file {
            Some(file) => file,
            none => {
                let opened = if output.begun {
                    OpenOptions::new().append(true).open(&output.path)
                } else {
                    File::create(&output.path)
                };
                let file = opened.map_err(|error| SinkError::Create { name: name(), error })?;
                self.open += 1;
                output.begun = true;
                none.insert(file)
            }
        };
        let written = append_records(file, CaptureKind::Pcap, &output.buffer, is_new)
            .map_err(|failed| failed.into_sink_error(name(), output.flushed));
        // Clear even after a failure: a partial write must not be repeated.
        output.buffer.clear();
        output.flushed += std::mem::take(&mut output.buffered);
        written
    }
}
