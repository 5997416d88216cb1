//! Fuzz target: arbitrary bytes as a capture file. Reading must terminate, yield at most as many
//! packets as the bytes can hold, not depend on how the file is read, and round-trip through a
//! writer.

use std::io::{Cursor, Read, Write};
use std::sync::{Arc, Mutex};

use portcullis_core::packet::ResizeRoom;
use portcullis_io::capture::{self, CaptureKind, CaptureSink};
use portcullis_io::{CaptureFormat, Sink, Source, SourceOptions};

/// A packet with its wire length and timestamp.
type Packet = (Vec<u8>, u32, u64);

/// Reader that returns a few bytes per call, as a pipe does.
struct ShortReads {
    bytes: Cursor<Vec<u8>>,
    step: usize,
}

impl Read for ShortReads {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let step = self.step.min(into.len());
        self.bytes.read(&mut into[..step])
    }
}

/// A file in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the lock is not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads all packets, the format, and the error that ended reading, if any.
fn read(bytes: &[u8], step: usize, options: &SourceOptions) -> (Vec<Packet>, CaptureFormat, Option<String>) {
    let reader = ShortReads { bytes: Cursor::new(bytes.to_vec()), step };
    let mut packets = Vec::new();
    let mut source = match capture::read("fuzz", None, Box::new(reader), options) {
        Ok(source) => source,
        Err(error) => return (packets, CaptureFormat::default(), Some(error.to_string())),
    };
    let error = loop {
        match source.next_batch() {
            Ok(Some(batch)) => {
                assert!(!batch.is_empty() && batch.len() <= options.max_packets);
                for i in 0..batch.len() {
                    let metadata = batch.metadata_of(i);
                    packets.push((batch.packet(i).to_vec(), metadata.wire_length, metadata.time_ns()));
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    assert!(matches!(source.next_batch(), Ok(None)), "no batch follows the end");
    for warning in source.take_warnings() {
        assert!(warning.to_string().starts_with("fuzz: "));
    }
    let format = source.format().clone();
    (packets, format, error)
}

/// Writes the packets of `source` to a capture.
fn write(bytes: &[u8], kind: CaptureKind) -> Option<Vec<u8>> {
    let reader = Box::new(Cursor::new(bytes.to_vec()));
    let mut source = capture::read("fuzz", None, reader, &SourceOptions::default()).ok()?;
    let memory = Memory::default();
    let sink = CaptureSink::new("memory", Box::new(memory.clone()), kind, source.format());
    let mut sink = Box::new(sink.expect("memory takes everything"));
    // Packets before an error are still written.
    while let Ok(Some(batch)) = source.next_batch() {
        let all: Vec<u32> = (0..batch.len() as u32).collect();
        sink.write(&batch, &all).expect("memory takes everything");
    }
    sink.finish().expect("memory takes everything");
    let bytes = memory.0.lock().expect("the lock is not poisoned").clone();
    Some(bytes)
}

/// Reads the bytes as a capture in several ways, and writes and reads it again. The first byte
/// selects how the rest is read.
///
/// # Panics
/// If ways of reading disagree, or if writing and reading again changes the packets.
pub fn run(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let (wanted, format, error) = read(bytes, usize::MAX, &SourceOptions::default());
    // The header of a record takes at least 16 bytes.
    assert!(wanted.iter().map(|(packet, ..)| packet.len() + 16).sum::<usize>() <= bytes.len());
    let options = SourceOptions::default()
        .with_max_packets(if how & 1 == 0 { 3 } else { usize::MAX })
        .with_room(if how & 2 == 0 { ResizeRoom::None } else { ResizeRoom::Both })
        .with_block_size(if how & 4 == 0 { 64 } else { 4096 });
    let step = if how & 8 == 0 { 17 } else { usize::MAX };
    let other = read(bytes, step, &options);
    assert_eq!((&other.0, &other.2), (&wanted, &error), "read with {options:?}, {step} bytes at a time");

    for kind in [CaptureKind::Pcap, CaptureKind::Pcapng] {
        let Some(written) = write(bytes, kind) else { continue };
        let (again, _, error) = read(&written, usize::MAX, &SourceOptions::default());
        assert_eq!(error, None, "reading what was written");
        let unit = format.resolution.nanoseconds();
        let limit = u64::from(u32::MAX) * 1_000_000_000;
        for ((packet, wire, time), (packet_again, wire_again, time_again)) in wanted.iter().zip(&again) {
            assert_eq!((packet, wire), (packet_again, wire_again));
            // Classic pcap stores seconds in 32 bits.
            if *time < limit {
                assert_eq!(time / unit * unit, *time_again);
            }
        }
        assert_eq!(wanted.len(), again.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, Corpus, run_for};

    /// Small captures of both formats, each behind every byte that selects a way of reading.
    fn good() -> Vec<Vec<u8>> {
        let le = |fields: &[u32]| fields.iter().flat_map(|field| field.to_le_bytes()).collect::<Vec<u8>>();
        let be = |fields: &[u32]| fields.iter().flat_map(|field| field.to_be_bytes()).collect::<Vec<u8>>();
        let packet = [0x55; 60];
        let mut captures = Vec::new();
        for order in [&le as &dyn Fn(&[u32]) -> Vec<u8>, &be] {
            let big = order(&[1])[0] == 0;
            let version = if big { 0x0002_0004 } else { 0x0004_0002 };
            let mut pcap = order(&[0xa1b2_c3d4, version, 0, 0, 65_535, 1]);
            for i in 0..4 {
                pcap.extend(order(&[i, i, 60, 60 + i]));
                pcap.extend(packet);
            }
            captures.push(pcap);
            let version = if big { 0x0001_0000 } else { 1 };
            let mut pcapng = order(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, version, u32::MAX, u32::MAX, 28]);
            let (link_type, resolution) = if big { (0x0001_0000, 0x0009_0001) } else { (1, 0x0001_0009) };
            pcapng.extend(order(&[1, 20, link_type, 0, 20]));
            pcapng.extend(order(&[1, 32, link_type, 0, resolution]));
            pcapng.extend([9, 0, 0, 0]);
            pcapng.extend(order(&[0, 32]));
            for i in 0..4 {
                pcapng.extend(order(&[6, 92, i % 2, 1, i, 60, 60]));
                pcapng.extend(packet);
                pcapng.extend(order(&[92]));
            }
            pcapng.extend(order(&[3, 76, 60]));
            pcapng.extend(packet);
            pcapng.extend(order(&[76]));
            pcapng.extend(order(&[5, 16, 0, 16]));
            captures.push(pcapng);
        }
        (0..16u8).flat_map(|how| captures.iter().map(move |c| [&[how], &c[..]].concat())).collect()
    }

    #[test]
    fn seeds_are_valid_captures() {
        for data in good() {
            let (packets, _, error) = read(&data[1..], usize::MAX, &SourceOptions::default());
            assert_eq!(error, None);
            assert!(matches!(packets.len(), 4 | 5), "{}", packets.len());
        }
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let good = good();
        let seeds: Vec<&[u8]> = good.iter().map(Vec::as_slice).collect();
        // Lengths at their limits in both byte orders, and starts of pcapng blocks.
        let pieces: &[&[u8]] = &[
            &[0; 4],
            &[0xff; 4],
            &[1, 0, 0, 0],
            &[0, 0, 0, 1],
            &[0xff, 0xff, 0xff, 0x7f],
            &[0x7f, 0xff, 0xff, 0xff],
            &[0, 0, 4, 0],
            &[1, 0, 4, 0],
            &[0, 4, 0, 1],
            &[0x0a, 0x0d, 0x0d, 0x0a],
            &[6, 0, 0, 0, 32, 0, 0, 0],
            &[0, 0, 0, 6, 0, 0, 0, 32],
            &[7, 0, 0, 0, 12, 0, 0, 0, 12, 0, 0, 0],
        ];
        println!(
            "{} captures",
            run_for(A_SECOND, "capture_bytes", Corpus { seeds: &seeds, tokens: "", pieces }, 0, run)
        );
    }
}
