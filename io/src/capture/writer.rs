//! Writing captures.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use portcullis_core::packet::Batch;

use super::MAX_PACKET;
use crate::sink::{Sink, SinkError, Written};
use crate::source::{CaptureFormat, Resolution};

/// Bytes buffered before a write.
const BUFFER_SIZE: usize = 256 << 10;

/// The writable capture formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureKind {
    /// Classic pcap, in microseconds or nanoseconds. Ports are not preserved.
    Pcap,
    /// pcapng with one section; interfaces are numbered like the ports, further ones by first
    /// appearance.
    Pcapng,
}

impl CaptureKind {
    /// Chooses pcapng for names that end in `.pcapng`, classic pcap otherwise.
    pub fn of(path: &Path) -> CaptureKind {
        match path.extension() {
            Some(extension) if extension.eq_ignore_ascii_case("pcapng") => CaptureKind::Pcapng,
            _ => CaptureKind::Pcap,
        }
    }
}

/// Encodes packets in a capture format, little-endian.
#[derive(Debug)]
pub(crate) struct Encoder {
    kind: CaptureKind,
    resolution: Resolution,
    fcs_words: Option<u8>,
    /// pcapng: the interface number of each port.
    interfaces: HashMap<u32, u32>,
    /// pcapng: the last port and its interface, a cache because ports come in runs.
    last: (u32, u32),
}

impl Encoder {
    /// Appends the file header to `into`.
    pub fn new(kind: CaptureKind, format: &CaptureFormat, into: &mut Vec<u8>) -> Encoder {
        let resolution = format.resolution;
        let mut encoder =
            Encoder { kind, resolution, fcs_words: format.fcs_words, interfaces: HashMap::new(), last: (0, 0) };
        match kind {
            CaptureKind::Pcap => {
                // draft-ietf-opsawg-pcap, section 4.
                let magic: u32 = if resolution == Resolution::Nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
                let fcs = format.fcs_words.map_or(0, |words| u32::from(words) << 28 | 0x0400_0000);
                into.extend_from_slice(&magic.to_le_bytes());
                into.extend_from_slice(&2u16.to_le_bytes());
                into.extend_from_slice(&4u16.to_le_bytes());
                into.extend_from_slice(&[0; 8]);
                // Packets may be longer than the input's snapshot length, at which readers would
                // truncate them.
                into.extend_from_slice(&(MAX_PACKET as u32).to_le_bytes());
                into.extend_from_slice(&(1 | fcs).to_le_bytes());
            }
            CaptureKind::Pcapng => {
                // draft-ietf-opsawg-pcapng, section 4.1; the section's length is left unspecified.
                block(into, 0x0a0d_0d0a, |into| {
                    into.extend_from_slice(&0x1a2b_3c4du32.to_le_bytes());
                    into.extend_from_slice(&1u16.to_le_bytes());
                    into.extend_from_slice(&0u16.to_le_bytes());
                    into.extend_from_slice(&u64::MAX.to_le_bytes());
                });
                // Describe at least one interface: without one the link type would be unknown.
                for port in 0..format.interfaces.len().max(1) {
                    let name = format.interfaces.get(port).and_then(|interface| interface.name.as_deref());
                    encoder.interface(port as u32, name, into);
                }
            }
        }
        encoder
    }

    /// Appends the interface description for `port` (section 4.2) and returns its number.
    fn interface(&mut self, port: u32, name: Option<&str>, into: &mut Vec<u8>) -> u32 {
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(port, number);
        let (resolution, fcs_words) = (self.resolution, self.fcs_words);
        block(into, 1, |into| {
            into.extend_from_slice(&1u16.to_le_bytes());
            into.extend_from_slice(&0u16.to_le_bytes());
            into.extend_from_slice(&(MAX_PACKET as u32).to_le_bytes());
            if let Some(name) = name.filter(|name| name.len() < 1 << 16) {
                option(into, 2, name.as_bytes());
            } else if port != number {
                option(into, 2, format!("port {port}").as_bytes());
            }
            option(into, 9, &[if resolution == Resolution::Nano { 9 } else { 6 }]);
            if let Some(words) = fcs_words {
                option(into, 13, &[words * 16]);
            }
            option(into, 0, &[]);
        });
        number
    }

    /// Appends packet `index` of `batch` to `into` and returns its captured length. A packet that
    /// the filter made too long is truncated to the maximum, as a capture would.
    #[inline]
    pub fn packet(&mut self, batch: &Batch, index: usize, into: &mut Vec<u8>) -> usize {
        let whole = batch.packet(index);
        let packet = &whole[..whole.len().min(MAX_PACKET)];
        let metadata = batch.metadata_of(index);
        // Bytes that the filter added or removed change the wire length as well.
        let wire = i64::from(metadata.wire_length) + whole.len() as i64 - i64::from(batch.original()[index].length);
        let wire = wire.clamp(0, i64::from(u32::MAX)) as u32;
        let time = metadata.time_ns();
        let captured = (packet.len() as u32).to_le_bytes();
        match self.kind {
            CaptureKind::Pcap => {
                let seconds = u32::try_from(time / 1_000_000_000).unwrap_or(u32::MAX);
                let fraction = (time % 1_000_000_000 / self.resolution.nanoseconds()) as u32;
                let mut header = [0; 16];
                header[..4].copy_from_slice(&seconds.to_le_bytes());
                header[4..8].copy_from_slice(&fraction.to_le_bytes());
                header[8..12].copy_from_slice(&captured);
                header[12..].copy_from_slice(&wire.to_le_bytes());
                into.extend_from_slice(&header);
                into.extend_from_slice(packet);
            }
            CaptureKind::Pcapng => {
                let number = self.interface_of(metadata.port, into);
                let units = time / self.resolution.nanoseconds();
                // Section 4.3; without options.
                let padded = packet.len().next_multiple_of(4);
                let total = (32 + padded as u32).to_le_bytes();
                let mut header = [0; 28];
                header[..4].copy_from_slice(&6u32.to_le_bytes());
                header[4..8].copy_from_slice(&total);
                header[8..12].copy_from_slice(&number.to_le_bytes());
                header[12..16].copy_from_slice(&((units >> 32) as u32).to_le_bytes());
                header[16..20].copy_from_slice(&(units as u32).to_le_bytes());
                header[20..24].copy_from_slice(&captured);
                header[24..].copy_from_slice(&wire.to_le_bytes());
                into.extend_from_slice(&header);
                into.extend_from_slice(packet);
                into.extend_from_slice(&[0; 3][..padded - packet.len()]);
                into.extend_from_slice(&total);
            }
        }
        packet.len()
    }

    #[inline]
    fn interface_of(&mut self, port: u32, into: &mut Vec<u8>) -> u32 {
        if self.last.0 != port {
            let number = match self.interfaces.get(&port) {
                Some(&number) => number,
                None => self.interface(port, None, into),
            };
            self.last = (port, number);
        }
        self.last.1
    }
}

/// Appends a pcapng block: section 3.1.
fn block(into: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.extend_from_slice(&kind.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    body(into);
    let total = (into.len() + 4 - start) as u32;
    into[start + 4..start + 8].copy_from_slice(&total.to_le_bytes());
    into.extend_from_slice(&total.to_le_bytes());
}

/// Appends a pcapng option: section 3.5.
fn option(into: &mut Vec<u8>, code: u16, value: &[u8]) {
    into.extend_from_slice(&code.to_le_bytes());
    into.extend_from_slice(&(value.len() as u16).to_le_bytes());
    into.extend_from_slice(value);
    into.extend_from_slice(&[0; 3][..value.len().next_multiple_of(4) - value.len()]);
}

/// A sink that writes a capture to a file or pipe.
pub struct CaptureSink {
    name: String,
    out: Box<dyn Write + Send>,
    encoder: Encoder,
    buffer: Vec<u8>,
    live: bool,
    written: Written,
}

impl std::fmt::Debug for CaptureSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureSink").field("name", &self.name).field("written", &self.written).finish_non_exhaustive()
    }
}

impl CaptureSink {
    /// Creates or truncates the file `path` and writes the capture's header; the name determines
    /// the format.
    ///
    /// # Errors
    /// See [`SinkError`].
    pub fn create(path: &Path, format: &CaptureFormat) -> Result<CaptureSink, SinkError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| SinkError::Create { name: name.clone(), error })?;
        CaptureSink::new(&name, Box::new(file), CaptureKind::of(path), format)
    }

    /// Writes a capture to any writer, in large pieces; the header is written at once. `name` is
    /// for messages.
    ///
    /// # Errors
    /// [`SinkError::Write`].
    pub fn new(
        name: &str,
        out: Box<dyn Write + Send>,
        kind: CaptureKind,
        format: &CaptureFormat,
    ) -> Result<CaptureSink, SinkError> {
        let mut buffer = Vec::with_capacity(BUFFER_SIZE + (16 << 10));
        let encoder = Encoder::new(kind, format, &mut buffer);
        let mut sink =
            CaptureSink { name: name.to_owned(), out, encoder, buffer, live: false, written: Written::default() };
        sink.flush()?;
        Ok(sink)
    }

    /// Flushes after each batch, so that the reader of a pipe sees packets as they arrive.
    pub fn live(mut self) -> CaptureSink {
        self.live = true;
        self
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let done = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        done.map_err(|error| SinkError::Write { name: self.name.clone(), error })
    }
}

impl Sink for CaptureSink {
    fn write(&mut self, batch: &Batch, indices: &[u32]) -> Result<(), SinkError> {
        for &index in indices {
            self.written.bytes += self.encoder.packet(batch, index as usize, &mut self.buffer) as u64;
            if self.buffer.len() >= BUFFER_SIZE {
                self.flush()?;
            }
        }
        self.written.packets += indices.len() as u64;
        if self.live { self.flush() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<Written, SinkError> {
        self.flush()?;
        Ok(self.written)
    }
}
