//! Writing captures.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::path::Path;

use portcullis_core::packet::Batch;

use super::MAX_PACKET;
use crate::sink::{Sink, SinkError, Written};
use crate::source::{CaptureFormat, Resolution};

/// Bytes buffered before a write.
const BUFFER_SIZE: usize = 256 << 10;

/// Length of a classic pcap file's header in bytes: draft-ietf-opsawg-pcap, section 4.
const PCAP_HEADER: usize = 24;

/// Length of a classic pcap record's header in bytes: section 5.
const PCAP_RECORD_HEADER: usize = 16;

/// Type of a pcapng block with a packet: draft-ietf-opsawg-pcapng, section 4.3.
const ENHANCED_PACKET: u32 = 6;

/// The writable capture formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
                let mut header = [0; PCAP_RECORD_HEADER];
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
                header[..4].copy_from_slice(&ENHANCED_PACKET.to_le_bytes());
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

/// Appends whole records to a capture file.
///
/// # Errors
/// A failed write leaves no partial record: the file is truncated after the last whole one.
pub(crate) fn append_records(
    file: &mut File,
    kind: CaptureKind,
    records: &[u8],
    with_header: bool,
) -> Result<(), FailedAppend> {
    let mut written = 0;
    let error = loop {
        if written == records.len() {
            return Ok(());
        }
        match file.write(&records[written..]) {
            Ok(0) => break ErrorKind::WriteZero.into(),
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break error,
        }
    };
    let (whole, packets) = whole_records(kind, &records[..written], with_header);
    let packets = truncate_tail(file, (written - whole) as u64).is_ok().then_some(packets);
    Err(FailedAppend { error, packets })
}

/// Why [`append_records`] failed, and what it has written.
#[derive(Debug)]
pub(crate) struct FailedAppend {
    error: io::Error,
    /// Packets of this call that are in the file; `None` if it could not be truncated.
    packets: Option<u64>,
}

impl FailedAppend {
    /// The error of a sink whose file `name` had `before` packets before the call.
    pub fn into_sink_error(self, name: String, before: u64) -> SinkError {
        match self.packets {
            Some(packets) => SinkError::Incomplete { name, packets: before + packets, error: self.error },
            None => SinkError::Write { name, error: self.error },
        }
    }
}

/// Removes the last `bytes` bytes of a file, which have just been written.
///
/// # Errors
/// The file is a pipe or a device, or somebody else has appended to it.
fn truncate_tail(file: &mut File, bytes: u64) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ErrorKind::Unsupported.into());
    }
    // A file that was opened for appending is at position 0 until something is written.
    if bytes == 0 {
        return Ok(());
    }
    if file.stream_position()? != metadata.len() {
        return Err(ErrorKind::Unsupported.into());
    }
    file.set_len(metadata.len() - bytes)
}

/// Length in bytes of the whole records, or blocks, that `bytes` begin with, and the number of
/// packets among them. With `with_header`, they begin with the header of the file.
fn whole_records(kind: CaptureKind, bytes: &[u8], with_header: bool) -> (usize, u64) {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    // The length of the record at `at`, and whether it is a packet.
    let record = |at: usize| match kind {
        CaptureKind::Pcap if with_header && at == 0 => Some((PCAP_HEADER, false)),
        CaptureKind::Pcap => word(at + 8).map(|captured| (PCAP_RECORD_HEADER + captured as usize, true)),
        CaptureKind::Pcapng => word(at + 4).map(|total| (total as usize, word(at) == Some(ENHANCED_PACKET))),
    };
    let (mut end, mut packets) = (0, 0);
    while let Some((length, is_packet)) = record(end).filter(|(length, _)| *length <= bytes.len() - end) {
        end += length;
        packets += u64::from(is_packet);
    }
    (end, packets)
}

/// Where a capture goes.
enum Output {
    File(File),
    Stream(Box<dyn Write + Send>),
}

/// A sink that writes a capture to a file or pipe.
pub struct CaptureSink {
    name: String,
    out: Output,
    encoder: Encoder,
    buffer: Vec<u8>,
    live: bool,
    written: Written,
    /// Packets that have left the buffer; `None` until the header has.
    flushed: Option<u64>,
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
        CaptureSink::begin(&name, Output::File(file), CaptureKind::of(path), format)
    }

    /// Writes a capture to an open file, pipe or device, as [`CaptureSink::new`] does.
    ///
    /// # Errors
    /// [`SinkError::Write`], or of a regular file [`SinkError::Incomplete`].
    pub fn with_file(
        name: &str,
        file: File,
        kind: CaptureKind,
        format: &CaptureFormat,
    ) -> Result<CaptureSink, SinkError> {
        CaptureSink::begin(name, Output::File(file), kind, format)
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
        CaptureSink::begin(name, Output::Stream(out), kind, format)
    }

    fn begin(name: &str, out: Output, kind: CaptureKind, format: &CaptureFormat) -> Result<CaptureSink, SinkError> {
        let (live, written) = (false, Written::default());
        let mut buffer = Vec::with_capacity(BUFFER_SIZE + (16 << 10));
        let encoder = Encoder::new(kind, format, &mut buffer);
        let mut sink = CaptureSink { name: name.to_owned(), out, encoder, buffer, live, written, flushed: None };
        sink.flush()?;
        Ok(sink)
    }

    /// Flushes after each batch, so that the reader of a pipe sees packets as they arrive.
    pub fn live(mut self) -> CaptureSink {
        self.live = true;
        self
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let name = || self.name.clone();
        let done = match &mut self.out {
            Output::File(file) => append_records(file, self.encoder.kind, &self.buffer, self.flushed.is_none())
                .map_err(|failed| failed.into_sink_error(name(), self.flushed.unwrap_or(0))),
            Output::Stream(out) => out
                .write_all(&self.buffer)
                .and_then(|()| out.flush())
                .map_err(|error| SinkError::Write { name: name(), error }),
        };
        self.buffer.clear();
        self.flushed = Some(self.written.packets);
        done
    }
}

impl Sink for CaptureSink {
    fn write(&mut self, batch: &Batch, indices: &[u32]) -> Result<(), SinkError> {
        for &index in indices {
            self.written.bytes += self.encoder.packet(batch, index as usize, &mut self.buffer) as u64;
            self.written.packets += 1;
            if self.buffer.len() >= BUFFER_SIZE {
                self.flush()?;
            }
        }
        if self.live { self.flush() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<Written, SinkError> {
        self.flush()?;
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file header and three records of known lengths, cut at each byte.
    #[test]
    fn only_whole_records_are_kept() {
        let pcap_record =
            |length: u32| [[0; 8].as_slice(), &length.to_le_bytes(), &vec![0xff; 4 + length as usize]].concat();
        let pcap = [vec![0xff; 24], pcap_record(0), pcap_record(5), pcap_record(1)].concat();
        let pcap_ends = [(0, 0), (24, 0), (40, 1), (61, 2), (78, 3)];
        let block =
            |ty: u32, total: u32| [&ty.to_le_bytes(), &total.to_le_bytes(), &*vec![0xff; total as usize - 8]].concat();
        let pcapng = [block(0x0a0d_0d0a, 28), block(1, 20), block(6, 36), block(1, 20), block(6, 40)].concat();
        let pcapng_ends = [(0, 0), (28, 0), (48, 0), (84, 1), (104, 1), (144, 2)];
        for (kind, bytes, ends) in
            [(CaptureKind::Pcap, pcap, &pcap_ends[..]), (CaptureKind::Pcapng, pcapng, &pcapng_ends)]
        {
            assert_eq!(bytes.len(), ends.last().unwrap().0);
            for cut in 0..=bytes.len() {
                let wanted = *ends.iter().rfind(|(end, _)| *end <= cut).unwrap();
                assert_eq!(whole_records(kind, &bytes[..cut], true), wanted, "{kind:?} cut at {cut}");
            }
        }
        assert_eq!(whole_records(CaptureKind::Pcap, &pcap_record(7), false), (23, 1));
    }
}
