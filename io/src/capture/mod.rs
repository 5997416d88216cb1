//! pcap and pcapng files.
//!
//! Formats: draft-ietf-opsawg-pcap (classic pcap, microseconds or nanoseconds) and
//! draft-ietf-opsawg-pcapng, in either byte order, detected by their first bytes. Only Ethernet
//! frames are accepted.
//!
//! Captures are read in large blocks into arenas, and packets stay where they were read. Only
//! records that straddle a block boundary are copied to the next block, unless the filter changes
//! packet lengths, which needs slots.

mod pcap;
mod pcapng;
mod reader;
mod writer;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use crate::link_type::LinkType;
pub use crate::source::{FormatMismatch, MAX_PACKET};
pub use writer::{CaptureKind, CaptureSink};
pub(crate) use writer::{Encoder, append_records};

use crate::source::{Source, SourceError, SourceOptions};
use pcap::Pcap;
use pcapng::Pcapng;
use reader::{CaptureSource, Input};

/// Bytes read to detect the format: a whole pcap header, and less than the shortest pcapng section
/// header.
const DETECTION_BYTES: usize = 24;

/// Opens a capture file.
///
/// # Errors
/// Errors of [`read`], and [`SourceError::Open`].
pub fn open(path: impl AsRef<Path>, options: &SourceOptions) -> Result<Box<dyn Source>, SourceError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let failed = |error| SourceError::Open { name: name.clone(), error };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let size = metadata.is_file().then_some(metadata.len());
    read(&name, size, Box::new(file), options)
}

/// Reads a capture from any reader; `name` and `size` (in bytes, if known) are for messages and
/// progress.
///
/// Reads are large, so the reader needs no buffer of its own. A read that returns less than 64 KiB
/// (from a live pipe) ends the batch, so that packets are not delayed until a block is full.
///
/// # Errors
/// [`SourceError::Empty`], [`SourceError::UnknownFormat`], and faults in the first block's headers.
pub fn read(
    name: &str,
    size: Option<u64>,
    reader: Box<dyn Read + Send>,
    options: &SourceOptions,
) -> Result<Box<dyn Source>, SourceError> {
    let mut input = Input::new(name, size, reader);
    let mut header = [0; DETECTION_BYTES];
    let got = input.read_header(&mut header)?;
    let header = &header[..got];
    if header.is_empty() {
        return Err(SourceError::Empty { name: name.to_owned() });
    }
    let unknown = |reason| SourceError::UnknownFormat { name: name.to_owned(), reason };
    let format = detect_format(header).map_err(unknown)?;
    if got < DETECTION_BYTES {
        let format = if format == CaptureFormatKind::Pcap { "pcap" } else { "pcapng" };
        return Err(unknown(FormatMismatch::Truncated { at: got, format }));
    }
    match format {
        CaptureFormatKind::Pcap => {
            let format = Pcap::new(header).map_err(|fault| fault.at(name, 0))?;
            Ok(Box::new(CaptureSource::open(input, format, &[], options)?))
        }
        CaptureFormatKind::Pcapng => Ok(Box::new(CaptureSource::open(input, Pcapng::new(), header, options)?)),
    }
}

/// The readable formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaptureFormatKind {
    Pcap,
    Pcapng,
}

/// Detects the format by the first bytes.
fn detect_format(header: &[u8]) -> Result<CaptureFormatKind, FormatMismatch> {
    let first: Vec<u8> = header.iter().copied().take(4).collect();
    let magic = |bytes: &[u8]| first.starts_with(bytes);
    let magic32 = <[u8; 4]>::try_from(&first[..]).map_or(0, u32::from_be_bytes);
    let compressed = |program| Err(FormatMismatch::Compressed { program });
    match magic32 {
        0xa1b2_c3d4 | 0xd4c3_b2a1 | 0xa1b2_3c4d | 0x4d3c_b2a1 => Ok(CaptureFormatKind::Pcap),
        0x0a0d_0d0a => Ok(CaptureFormatKind::Pcapng),
        0xa1b2_cd34 | 0x34cd_b2a1 => Err(FormatMismatch::ModifiedPcap),
        0x2204_2204..=0x2204_22ff | 0x28b5_2ffd => compressed("zstd"),
        0x0a0d_0a00..=0x0a0d_0aff | 0x0d0d_0a00..=0x0d0d_0aff => Err(FormatMismatch::ChangedLineEnds),
        _ if magic(&[0x1f, 0x8b]) => compressed("gzip"),
        _ if magic(b"BZh") => compressed("bzip2"),
        _ if magic(&[0xfd, b'7', b'z', b'X']) => compressed("xz"),
        _ if magic(&[0x04, 0x22, 0x4d, 0x18]) => compressed("lz4"),
        _ if magic(b"snoo") => Err(FormatMismatch::Snoop),
        _ => {
            let hex: Vec<String> = first.iter().map(|b| format!("{b:02x}")).collect();
            Err(FormatMismatch::Unknown { first: hex.join(" ") })
        }
    }
}
