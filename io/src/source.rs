//! What every source looks like.

use std::fmt;
use std::io;

use portcullis_core::packet::{ArenaError, Batch, ResizeRoom};
use portcullis_core::reason;

use crate::capture::{self, LinkType};
use crate::sink::SinkError;
use crate::synth::{Spec, SpecError, SynthSource};

/// Where packets come from.
pub trait Source: Send {
    /// The next packets, at least one; `None` when there are no more. After an error or a `None`
    /// there is nothing more to come.
    ///
    /// Packets before a fault in a capture are given out first; the call after that reports it.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError>;

    /// What a capture of these packets would have to keep.
    fn format(&self) -> &CaptureFormat;

    /// What was odd about the packets so far, and is not worth an end. Each is told once.
    fn take_warnings(&mut self) -> Vec<Warning> {
        Vec::new()
    }

    /// How far the source has come.
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

/// How far a source has come: for showing, not for reckoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Units done: bytes of a file, packets of a synthetic source.
    pub done: u64,
    /// Units in all, where that is known.
    pub total: Option<u64>,
}

/// How a source shall make batches.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Packets in a batch, at most. Batches may be smaller: a batch lies in one arena.
    pub max_packets: usize,
    /// Whether the filter changes lengths. With [`ResizeRoom::Both`] packets are copied to slots.
    pub room: ResizeRoom,
    /// Whether batches carry metadata (wire length, port, time). A sink needs it; so does a filter
    /// that reads it.
    pub metadata: bool,
    /// Length of an arena in bytes. A packet that needs more gets a longer one.
    pub block_size: usize,
}

impl SourceOptions {
    /// 1 MiB: large enough to read at full speed, small enough that a block is still in the cache
    /// when it is filtered. Measured over 128 KiB to 4 MiB: 0.5 to 1 MiB was best, 4 MiB a quarter
    /// slower.
    pub const BLOCK_SIZE: usize = 1 << 20;
}

impl Default for SourceOptions {
    fn default() -> Self {
        SourceOptions { max_packets: usize::MAX, room: ResizeRoom::None, metadata: true, block_size: Self::BLOCK_SIZE }
    }
}

/// The unit in which a capture tells the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resolution {
    /// 10⁻⁶ seconds.
    Micro,
    /// 10⁻⁹ seconds.
    Nano,
}

impl Resolution {
    /// Nanoseconds in a unit.
    pub fn nanoseconds(self) -> u64 {
        match self {
            Resolution::Micro => 1000,
            Resolution::Nano => 1,
        }
    }
}

/// An interface that packets were captured on. Its index is the packets' port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Its name, where the capture tells it.
    pub name: Option<String>,
}

/// What a capture of a source's packets has to keep, beside the packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureFormat {
    /// The unit of time.
    pub resolution: Resolution,
    /// The interfaces known from the start; later packets may bring more.
    pub interfaces: Vec<Interface>,
    /// 16-bit words of frame check sequence at the end of each packet, where the capture says so.
    pub fcs_words: Option<u8>,
}

impl Default for CaptureFormat {
    /// Nanoseconds, no named interface, no frame check sequence.
    fn default() -> Self {
        CaptureFormat { resolution: Resolution::Nano, interfaces: Vec::new(), fcs_words: None }
    }
}

/// Something odd in a source that did not stop it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The capture ends inside a record. The packets before it are all there.
    Truncated {
        /// The capture.
        name: String,
        /// Where it ends, in bytes.
        end: u64,
        /// Where the broken record begins, in bytes.
        record: u64,
    },
    /// An interface described late tells the time more finely than those before it, and so than
    /// [`Source::format`] promised.
    FinerTime {
        /// The capture.
        name: String,
        /// The interface's number, counted through all sections.
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

/// Why a source gives no more packets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be opened.
    #[error("{name}: cannot be opened: {}", reason(.error))]
    Open {
        /// The file.
        name: String,
        /// The system's.
        error: io::Error,
    },
    /// Reading failed.
    #[error("{name}: reading failed at byte {at}: {}", reason(.error))]
    Read {
        /// The file.
        name: String,
        /// Bytes read before, in all.
        at: u64,
        /// The system's.
        error: io::Error,
    },
    /// There is not a single byte.
    #[error("{name}: the file is empty (not even a capture header)")]
    Empty {
        /// The file.
        name: String,
    },
    /// It is no capture that is understood here.
    #[error("{name}: {reason}")]
    UnknownFormat {
        /// The file.
        name: String,
        /// What it is instead, as far as its first bytes tell, and what to do.
        reason: String,
    },
    /// The packets are not Ethernet frames.
    #[error("{name}: {what} has link type {link_type}; only Ethernet (1) can be filtered")]
    NotEthernet {
        /// The file.
        name: String,
        /// The capture, or one of its interfaces.
        what: String,
        /// What it has instead.
        link_type: LinkType,
    },
    /// A record claims more bytes than any packet has.
    #[error(
        "{name}: the record at byte {at} claims {length} captured bytes, and a packet has at most {max}; \
         the capture is damaged there",
        max = capture::MAX_PACKET
    )]
    TooLong {
        /// The file.
        name: String,
        /// Where the record begins, in bytes.
        at: u64,
        /// The captured length that it claims, in bytes.
        length: u64,
    },
    /// The capture breaks its format's rules.
    #[error("{name}: at byte {at}: {reason}")]
    Malformed {
        /// The file.
        name: String,
        /// Where the record begins, in bytes.
        at: u64,
        /// Which rule.
        reason: String,
    },
    /// The text after `synth:` is wrong.
    #[error("synth: {0}")]
    Spec(#[from] SpecError),
    /// A [`Tee`](crate::wrap::Tee) could not write its copy.
    #[error(transparent)]
    Tee(#[from] SinkError),
    /// There is no memory for packets.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}

/// Opens the source that `text` names: `-` is a capture on standard input, `synth:` and a
/// [`Spec`] is synthetic traffic, and anything else is the path of a capture file.
///
/// # Errors
/// See [`SourceError`]. A fault behind the first block of a capture shows later, in
/// [`Source::next_batch`].
pub fn open(text: &str, options: &SourceOptions) -> Result<Box<dyn Source>, SourceError> {
    if let Some(spec) = text.strip_prefix("synth:") {
        return Ok(Box::new(SynthSource::new(&spec.parse::<Spec>()?, options)));
    }
    match text {
        "-" => capture::read("stdin", None, Box::new(io::stdin()), options),
        path => capture::open(path, options),
    }
}
