//! The [`Source`] trait, its options, warnings and errors.

use std::fmt;
use std::io;

use portcullis_core::packet::{ArenaError, Batch, ResizeRoom};
use portcullis_core::reason;

use crate::link_type::LinkType;
use crate::sink::SinkError;
use crate::synth_spec::SpecError;

/// Maximum length of a packet in bytes, as in libpcap (`MAXIMUM_SNAPLEN`).
pub const MAX_PACKET: usize = 262_144;

/// A source of packets, in batches.
pub trait Source: Send {
    /// Returns the next batch, with at least one packet, or `None` at the end. After an error or
    /// `None` no more packets follow.
    ///
    /// Packets before a fault in a capture are returned first; the next call reports the fault.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError>;

    /// Properties that a capture of these packets has to preserve.
    fn format(&self) -> &CaptureFormat;

    /// Takes the warnings about oddities met so far; each is returned once.
    fn take_warnings(&mut self) -> Vec<Warning> {
        Vec::new()
    }

    /// Progress through the source.
    fn progress(&self) -> Progress;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        (**self).next_batch()
    }

    fn format(&self) -> &CaptureFormat {
        (**self).format()
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        (**self).take_warnings()
    }

    fn progress(&self) -> Progress {
        (**self).progress()
    }
}

/// Progress through a source, for display only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Units done: bytes of a file, packets of a synthetic source.
    pub done: u64,
    /// Total number of units, if known.
    pub total: Option<u64>,
}

/// Options for how a source builds batches.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceOptions {
    /// Maximum number of packets in a batch. Batches may be smaller, because a batch lies in one
    /// arena.
    pub max_packets: usize,
    /// Whether the filter changes packet lengths. With [`ResizeRoom::Both`] packets are copied to
    /// slots.
    pub room: ResizeRoom,
    /// Whether batches carry metadata (wire length, port, time). Sinks need it, and filters that
    /// read it.
    pub metadata: bool,
    /// Size of an arena in bytes. A longer packet gets an arena of its own size.
    pub block_size: usize,
}

impl SourceOptions {
    /// 1 MiB: large enough to read at full speed, small enough that a block is still in the cache
    /// when it is filtered. Measured from 128 KiB to 4 MiB: 0.5 to 1 MiB was fastest, 4 MiB a
    /// quarter slower.
    pub const BLOCK_SIZE: usize = 1 << 20;

    /// Sets [`SourceOptions::max_packets`].
    #[must_use]
    pub fn with_max_packets(self, max_packets: usize) -> SourceOptions {
        SourceOptions { max_packets, ..self }
    }

    /// Sets [`SourceOptions::room`].
    #[must_use]
    pub fn with_room(self, room: ResizeRoom) -> SourceOptions {
        SourceOptions { room, ..self }
    }

    /// Sets [`SourceOptions::metadata`].
    #[must_use]
    pub fn with_metadata(self, metadata: bool) -> SourceOptions {
        SourceOptions { metadata, ..self }
    }

    /// Sets [`SourceOptions::block_size`].
    #[must_use]
    pub fn with_block_size(self, block_size: usize) -> SourceOptions {
        SourceOptions { block_size, ..self }
    }
}

impl Default for SourceOptions {
    fn default() -> Self {
        SourceOptions { max_packets: usize::MAX, room: ResizeRoom::None, metadata: true, block_size: Self::BLOCK_SIZE }
    }
}

/// Resolution of a capture's timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resolution {
    /// 10⁻⁶ seconds.
    Micro,
    /// 10⁻⁹ seconds.
    Nano,
}

impl Resolution {
    /// Nanoseconds per unit.
    pub fn nanoseconds(self) -> u64 {
        match self {
            Resolution::Micro => 1000,
            Resolution::Nano => 1,
        }
    }
}

/// An interface that packets were captured on. Its index is the port in packets' metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Interface name, if the capture has one.
    pub name: Option<String>,
}

/// Properties of a source that a capture of its packets preserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureFormat {
    /// Timestamp resolution.
    pub resolution: Resolution,
    /// Interfaces known from the start; later packets may bring more.
    pub interfaces: Vec<Interface>,
    /// 16-bit words of frame check sequence at the end of each packet, if the capture states it.
    pub fcs_words: Option<u8>,
}

impl Default for CaptureFormat {
    /// Nanoseconds, no named interface, no frame check sequence.
    fn default() -> Self {
        CaptureFormat { resolution: Resolution::Nano, interfaces: Vec::new(), fcs_words: None }
    }
}

/// An oddity in a source that did not end it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The capture ends inside a record. All packets before it were read.
    Truncated {
        /// The capture.
        name: String,
        /// Length of the capture in bytes.
        end: u64,
        /// Offset of the incomplete record in bytes.
        record: u64,
    },
    /// An interface described after the first packet has finer timestamps than [`Source::format`]
    /// announced.
    FinerTime {
        /// The capture.
        name: String,
        /// Index of the interface, counted through all sections.
        interface: usize,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Truncated { name, end, record } => write!(
                f,
                "{name}: the capture ends at byte {end}, in the middle of the record that begins at byte {record}; \
                 the packets before it were read"
            ),
            Warning::FinerTime { name, interface } => write!(
                f,
                "{name}: interface {interface}, described after the first packet, has finer times than those before \
                 it; a classic pcap output rounds them down to microseconds (write pcapng to keep them)"
            ),
        }
    }
}

/// What a file is instead of a readable capture, and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatMismatch {
    /// A "modified" pcap file, whose record headers are longer.
    #[error("a pcap file of the \"modified\" kind (magic a1b2cd34), which is not read here; convert it with editcap")]
    ModifiedPcap,
    /// A pcapng file with converted line ends.
    #[error("a pcapng file with its line ends changed, as by a transfer in text mode; transfer it again")]
    ChangedLineEnds,
    /// A snoop capture.
    #[error("a snoop capture, which is not read here; convert it with editcap -F pcap")]
    Snoop,
    /// A compressed file.
    #[error("it is compressed ({program}); decompress it first: {program} -dc FILE")]
    Compressed {
        /// The program that decompresses it.
        program: &'static str,
    },
    /// A file that is shorter than the header of its format.
    #[error("the file ends at byte {at}, in the middle of its {format} header")]
    Truncated {
        /// Number of bytes in the file.
        at: usize,
        /// Name of the format.
        format: &'static str,
    },
    /// Anything else.
    #[error("neither pcap nor pcapng: it begins with the bytes {first}")]
    Unknown {
        /// The first four bytes, in hexadecimal.
        first: String,
    },
}

/// Why a source ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be opened.
    #[error("{name}: cannot be opened: {}", reason(.error))]
    Open {
        /// The file.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Reading failed.
    #[error("{name}: reading failed at byte {at}: {}", reason(.error))]
    Read {
        /// The file.
        name: String,
        /// Total number of bytes read before the error.
        at: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The file has no bytes.
    #[error("{name}: the file is empty (not even a capture header)")]
    Empty {
        /// The file.
        name: String,
    },
    /// The file is not a capture in a supported format.
    #[error("{name}: {reason}")]
    UnknownFormat {
        /// The file.
        name: String,
        /// What the file is instead, and the next step.
        reason: FormatMismatch,
    },
    /// The packets are not Ethernet frames.
    #[error("{name}: {what} has link type {link_type}; only Ethernet (1) can be filtered")]
    NotEthernet {
        /// The file.
        name: String,
        /// The capture, or one of its interfaces.
        what: String,
        /// Link type of the capture or interface.
        link_type: LinkType,
    },
    /// A record claims more captured bytes than a packet may have.
    #[error(
        "{name}: the record at byte {at} claims {length} captured bytes, and a packet has at most {max}; \
         the capture is damaged there",
        max = MAX_PACKET
    )]
    TooLong {
        /// The file.
        name: String,
        /// Offset of the record in bytes.
        at: u64,
        /// Claimed captured length in bytes.
        length: u64,
    },
    /// The capture violates its format.
    #[error("{name}: at byte {at}: {reason}")]
    Malformed {
        /// The file.
        name: String,
        /// Offset of the record in bytes.
        at: u64,
        /// The violated rule.
        reason: String,
    },
    /// The specification after `synth:` is invalid.
    #[error("synth: {0}")]
    Spec(#[from] SpecError),
    /// A [`Tee`](crate::wrap::Tee) could not write its copy.
    #[error(transparent)]
    Tee(#[from] SinkError),
    /// No memory for packets.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}
