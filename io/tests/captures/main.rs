//! Reading and writing captures. Inputs are built byte by byte after the formats' specifications,
//! and outputs are parsed independently of the crate.

mod bytes;
mod corpus;
mod damaged;
mod reading;
mod writing;

use std::io::{Cursor, Read};

use portcullis_core::packet::ResizeRoom;
use portcullis_io::{Source, SourceError, SourceOptions, Warning, capture};

/// A packet returned by a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire: u32,
    pub(crate) port: u32,
    pub(crate) time: u64,
}

/// A completely captured packet on port 0.
pub(crate) fn packet(bytes: &[u8], time: u64) -> Packet {
    Packet { bytes: bytes.to_vec(), wire: bytes.len() as u32, port: 0, time }
}

/// Everything that a source returned.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) packets: Vec<Packet>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) error: Option<SourceError>,
}

/// Reads a source to its end.
pub(crate) fn drain(source: Result<Box<dyn Source>, SourceError>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut source = match source {
        Ok(source) => source,
        Err(error) => return Outcome { error: Some(error), ..outcome },
    };
    loop {
        match source.next_batch() {
            Ok(Some(batch)) => {
                assert!(!batch.is_empty(), "a batch without a packet");
                for i in 0..batch.len() {
                    let metadata = batch.metadata_of(i);
                    outcome.packets.push(Packet {
                        bytes: batch.packet(i).to_vec(),
                        wire: metadata.wire_length,
                        port: metadata.port,
                        time: metadata.time_ns(),
                    });
                }
            }
            Ok(None) => break,
            Err(error) => {
                outcome.error = Some(error);
                break;
            }
        }
    }
    assert!(matches!(source.next_batch(), Ok(None)), "nothing follows the end");
    outcome.warnings = source.take_warnings();
    outcome
}

/// Opens a capture in memory of unknown size.
pub(crate) fn open(bytes: &[u8], options: &SourceOptions) -> Box<dyn Source> {
    capture::read("test", None, Box::new(Cursor::new(bytes.to_vec())), options).unwrap()
}

/// Reads a capture from memory.
pub(crate) fn read_with(bytes: &[u8], options: &SourceOptions) -> Outcome {
    let size = bytes.len() as u64;
    drain(capture::read("test", Some(size), Box::new(Cursor::new(bytes.to_vec())), options))
}

/// Reads a capture from memory with default options.
pub(crate) fn read(bytes: &[u8]) -> Outcome {
    read_with(bytes, &SourceOptions::default())
}

/// A reader that returns a few bytes at a time, as a pipe may.
pub(crate) struct Dribble {
    pub(crate) bytes: Cursor<Vec<u8>>,
    pub(crate) step: usize,
}

impl Read for Dribble {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let step = self.step.min(into.len());
        self.bytes.read(&mut into[..step])
    }
}

/// Reads a capture in all ways that must not affect its packets.
pub(crate) fn read_all_ways(bytes: &[u8]) -> Vec<(String, Outcome)> {
    let mut outcomes = Vec::new();
    for room in [ResizeRoom::None, ResizeRoom::Both] {
        for block_size in [1, 64, 100, 1000, 1 << 20] {
            for max_packets in [1, 3, usize::MAX] {
                let options =
                    SourceOptions::default().with_max_packets(max_packets).with_room(room).with_block_size(block_size);
                outcomes.push((format!("{options:?}"), read_with(bytes, &options)));
            }
            for step in [1, 7, 300] {
                let options = SourceOptions::default().with_room(room).with_block_size(block_size);
                let reader = Dribble { bytes: Cursor::new(bytes.to_vec()), step };
                let outcome = drain(capture::read("test", None, Box::new(reader), &options));
                outcomes.push((format!("{options:?}, {step} bytes at a time"), outcome));
            }
        }
    }
    outcomes
}
