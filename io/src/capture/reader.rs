//! Reading blocks into arenas and finding the records in them.

use std::io::{self, Read};

use portcullis_core::packet::{Arena, Batch, Metadata, ResizeRoom};

use super::LinkType;
use crate::batching::{ArenaPool, BatchCollector, ReadyBatches, SlotAllocator};
use crate::source::{CaptureFormat, Progress, Source, SourceError, SourceOptions, Warning};

/// A read that returns fewer bytes than this has drained a pipe.
const DRAINED_READ: usize = 64 << 10;

/// A capture format: a parser for its records.
pub(super) trait Format: Send {
    /// Parses the record at the start of `bytes`. Called again with more bytes after
    /// [`Step::More`], and possibly twice for a packet.
    fn step(&mut self, bytes: &[u8]) -> Step;

    /// Describes the capture; called once, after the first block.
    fn describe(&mut self) -> CaptureFormat;

    /// Takes the index of an interface whose timestamps are finer than [`Format::describe`]
    /// announced, if there is one.
    fn finer_interface(&mut self) -> Option<usize> {
        None
    }
}

/// Result of parsing a record.
pub(super) enum Step {
    /// A packet.
    Packet {
        /// Offset of the packet in the record.
        start: usize,
        /// Captured length in bytes.
        length: usize,
        /// Length of the record in bytes.
        end: usize,
        /// Metadata of the packet.
        metadata: Metadata,
    },
    /// The record is not a packet; the next record starts this many bytes further, possibly
    /// beyond the available bytes.
    Skip(u64),
    /// The record needs this many bytes from its start, more than are available.
    More(usize),
    /// The capture is damaged; reading ends here.
    Fault(Fault),
}

/// A fault without its position.
#[derive(Debug)]
pub(super) enum Fault {
    TooLong(u64),
    Malformed(String),
    NotEthernet { what: String, link_type: LinkType },
}

impl Fault {
    /// Adds the position: the record at byte `at` of capture `name`.
    pub fn at(self, name: &str, at: u64) -> SourceError {
        let name = name.to_owned();
        match self {
            Fault::TooLong(length) => SourceError::TooLong { name, at, length },
            Fault::Malformed(reason) => SourceError::Malformed { name, at, reason },
            Fault::NotEthernet { what, link_type } => SourceError::NotEthernet { name, what, link_type },
        }
    }
}

/// A capture's byte stream.
pub(super) struct Input {
    name: String,
    size: Option<u64>,
    reader: Box<dyn Read + Send>,
    /// Bytes read so far.
    read: u64,
    /// Set at the end of the stream.
    ended: bool,
    /// Set if the last read returned little: the writer is slower than this reader.
    drained: bool,
}

impl Input {
    pub fn new(name: &str, size: Option<u64>, reader: Box<dyn Read + Send>) -> Input {
        Input { name: name.to_owned(), size, reader, read: 0, ended: false, drained: false }
    }

    /// Fills `header` as far as possible and returns the number of bytes.
    pub fn read_header(&mut self, header: &mut [u8]) -> Result<usize, SourceError> {
        let mut have = 0;
        while have < header.len() && !self.ended {
            have += self.read(&mut header[have..])?;
        }
        Ok(have)
    }

    /// Reads once; returns 0 only at the end.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, SourceError> {
        loop {
            match self.reader.read(into) {
                Ok(got) => {
                    self.ended = got == 0;
                    self.drained = got < into.len().min(DRAINED_READ);
                    self.read += got as u64;
                    return Ok(got);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SourceError::Read { name: self.name.clone(), at: self.read, error }),
            }
        }
    }
}

/// A record parser with the state that [`Cursor::advance`] keeps between blocks.
struct Cursor<F> {
    format: F,
    /// Bytes of the current record that are still to be skipped.
    skip: u64,
    /// Offset of that record in the capture.
    skipping: u64,
}

/// Why [`Cursor::advance`] stopped.
enum StopReason {
    /// The record at the position needs this many bytes in total.
    More(usize),
    /// `put` rejected a packet of this length.
    Full(usize),
    /// The record at the position is damaged.
    Fault(Fault),
}

impl<F: Format> Cursor<F> {
    /// Parses records from `*at` on and updates `*at` to where it stopped. `bytes` ends at offset
    /// `read` of the capture. `put` gets each packet's offset in `bytes`, length and metadata, and
    /// returns whether it accepted the packet.
    #[inline]
    fn advance(
        &mut self,
        bytes: &[u8],
        read: u64,
        at: &mut usize,
        mut put: impl FnMut(usize, usize, Metadata) -> bool,
    ) -> StopReason {
        loop {
            if self.skip > 0 {
                let step = self.skip.min((bytes.len() - *at) as u64);
                *at += step as usize;
                self.skip -= step;
                if self.skip > 0 {
                    return StopReason::More(1);
                }
            }
            match self.format.step(&bytes[*at..]) {
                Step::Packet { start, length, end, metadata } => {
                    if !put(*at + start, length, metadata) {
                        return StopReason::Full(length);
                    }
                    *at += end;
                }
                Step::Skip(length) => {
                    self.skip = length;
                    self.skipping = read - (bytes.len() - *at) as u64;
                }
                Step::More(need) => return StopReason::More(need),
                Step::Fault(fault) => return StopReason::Fault(fault),
            }
        }
    }
}

/// Bytes read, of which `at..have` are not parsed yet.
#[derive(Debug)]
struct Window<B> {
    bytes: B,
    at: usize,
    have: usize,
}

impl<B: AsMut<[u8]> + AsRef<[u8]>> Window<B> {
    /// Moves the unparsed bytes to the front.
    fn compact(&mut self) {
        self.bytes.as_mut().copy_within(self.at..self.have, 0);
        self.have -= self.at;
        self.at = 0;
    }

    fn left(&self) -> usize {
        self.have - self.at
    }
}

/// An arena as the bytes of a window.
#[derive(Debug)]
struct Block(Arena);

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The memory that a capture is read into.
enum ReadTarget {
    /// Arenas in which the packets stay. `None` only while an arena is being filled.
    Arenas(Option<Window<Block>>),
    /// A buffer from which packets are copied to slots.
    Buffer(Window<Vec<u8>>),
}

/// A capture as a source of batches.
pub(super) struct CaptureSource<F> {
    input: Input,
    cursor: Cursor<F>,
    place: ReadTarget,
    pool: ArenaPool,
    collector: BatchCollector,
    ready: ReadyBatches,
    description: CaptureFormat,
    options: SourceOptions,
    warnings: Vec<Warning>,
    /// The error that ended reading, reported after all packets before it.
    error: Option<SourceError>,
    done: bool,
}

impl<F: Format> CaptureSource<F> {
    /// Starts with `begun`, bytes already read but not parsed, and reads the first block.
    pub fn open(
        input: Input,
        format: F,
        begun: &[u8],
        options: &SourceOptions,
    ) -> Result<CaptureSource<F>, SourceError> {
        let options = SourceOptions { block_size: options.block_size.clamp(64, Arena::MAX_LEN), ..options.clone() };
        let mut pool = ArenaPool::new();
        let place = match options.room {
            ResizeRoom::None => {
                let mut arena = pool.take(options.block_size)?;
                arena[..begun.len()].copy_from_slice(begun);
                ReadTarget::Arenas(Some(Window { bytes: Block(arena), at: 0, have: begun.len() }))
            }
            ResizeRoom::Both => {
                let mut bytes = vec![0; options.block_size];
                bytes[..begun.len()].copy_from_slice(begun);
                ReadTarget::Buffer(Window { bytes, at: 0, have: begun.len() })
            }
        };
        let mut source = CaptureSource {
            input,
            cursor: Cursor { format, skip: 0, skipping: 0 },
            place,
            pool,
            collector: BatchCollector::new(options.max_packets, options.metadata),
            ready: ReadyBatches::empty(),
            description: CaptureFormat::default(),
            options,
            warnings: Vec::new(),
            error: None,
            done: false,
        };
        source.fill()?;
        source.description = source.cursor.format.describe();
        // Report a fault in the first record right away, before the caller sets up anything else.
        match source.error.take() {
            Some(error) if source.ready.is_empty() => Err(error),
            error => {
                source.error = error;
                Ok(source)
            }
        }
    }

    /// Reads until there are batches or the input ends.
    fn fill(&mut self) -> Result<(), SourceError> {
        match &mut self.place {
            ReadTarget::Arenas(window) => {
                let window = window.take().expect("put back by every fill");
                self.fill_arena(window)
            }
            ReadTarget::Buffer(_) => self.fill_slots(),
        }
    }

    /// Reads into an arena, where the packets stay.
    fn fill_arena(&mut self, mut window: Window<Block>) -> Result<(), SourceError> {
        loop {
            let collector = &mut self.collector;
            let stop = self.cursor.advance(
                &window.bytes.0[..window.have],
                self.input.read,
                &mut window.at,
                |start, length, metadata| {
                    collector.push(start, length, metadata);
                    true
                },
            );
            let need = match stop {
                StopReason::More(need) => need,
                StopReason::Full(_) => unreachable!("packets that stay where they are fit"),
                StopReason::Fault(fault) => {
                    self.fail(fault, window.left());
                    break;
                }
            };
            if self.input.ended {
                self.end(window.left());
                break;
            }
            let length = window.bytes.0.len();
            if self.collector.is_empty() && window.at + need > length && need <= length {
                window.compact();
            }
            if window.at + need > length || (self.input.drained && !self.collector.is_empty()) {
                // Move the incomplete record to the next arena.
                let mut next = self.pool.take(self.options.block_size.max(need))?;
                next[..window.left()].copy_from_slice(&window.bytes.0[window.at..window.have]);
                let next = Window { bytes: Block(next), at: 0, have: window.left() };
                let full = std::mem::replace(&mut window, next);
                if self.collector.is_empty() {
                    self.pool.release(full.bytes.0);
                } else {
                    self.collector.finish_arena(full.bytes.0, &self.pool, ResizeRoom::None, &mut self.ready);
                    self.place = ReadTarget::Arenas(Some(window));
                    return Ok(());
                }
            }
            match self.input.read(&mut window.bytes.0[window.have..]) {
                Ok(got) => window.have += got,
                Err(error) => {
                    self.error = Some(error);
                    self.done = true;
                    break;
                }
            }
        }
        if !self.collector.is_empty() {
            self.collector.finish_arena(window.bytes.0, &self.pool, ResizeRoom::None, &mut self.ready);
        }
        Ok(())
    }

    /// Reads into the buffer and copies packets to slots.
    fn fill_slots(&mut self) -> Result<(), SourceError> {
        let ReadTarget::Buffer(window) = &mut self.place else { unreachable!("only called for a buffer") };
        let mut arena = self.pool.take(self.options.block_size)?;
        let mut slots = SlotAllocator::default();
        let (mut fault, mut left) = (None, None);
        loop {
            let collector = &mut self.collector;
            let bytes = &window.bytes[..window.have];
            let stop = self.cursor.advance(bytes, self.input.read, &mut window.at, |start, length, metadata| {
                let Some(at) = slots.allocate(length, arena.len()) else { return false };
                arena[at..at + length].copy_from_slice(&bytes[start..start + length]);
                collector.push(at, length, metadata);
                true
            });
            let need = match stop {
                StopReason::More(need) => need,
                StopReason::Full(length) if self.collector.is_empty() => {
                    arena = self.pool.take(SlotAllocator::stride(length))?;
                    continue;
                }
                StopReason::Full(_) => break,
                StopReason::Fault(found) => {
                    fault = Some(found);
                    break;
                }
            };
            if self.input.ended {
                left = Some(window.left());
                break;
            }
            if self.input.drained && !self.collector.is_empty() {
                break;
            }
            if window.at + need > window.bytes.len() {
                window.compact();
                if need > window.bytes.len() {
                    window.bytes.resize(need, 0);
                }
            }
            match self.input.read(&mut window.bytes[window.have..]) {
                Ok(got) => window.have += got,
                Err(error) => {
                    self.error = Some(error);
                    self.done = true;
                    break;
                }
            }
        }
        let unparsed = window.left();
        if self.collector.is_empty() {
            self.pool.release(arena);
        } else {
            // Hand out what was read; the next fill continues with the rest.
            self.collector.finish_arena(arena, &self.pool, ResizeRoom::Both, &mut self.ready);
        }
        if let Some(fault) = fault {
            self.fail(fault, unparsed);
        }
        if let Some(left) = left {
            self.end(left);
        }
        Ok(())
    }

    /// Records a fault in the record that starts `left` bytes before the end of what was read.
    fn fail(&mut self, fault: Fault, left: usize) {
        self.error = Some(fault.at(&self.input.name, self.input.read - left as u64));
        self.done = true;
    }

    /// Handles the end of the input, where `left` bytes do not form a record.
    fn end(&mut self, left: usize) {
        self.done = true;
        if left > 0 || self.cursor.skip > 0 {
            self.warnings.push(Warning::Truncated {
                name: self.input.name.clone(),
                end: self.input.read,
                record: if left > 0 { self.input.read - left as u64 } else { self.cursor.skipping },
            });
        }
    }
}

impl<F: Format> Source for CaptureSource<F> {
    fn next_batch(&mut self) -> Result<Option<Batch>, SourceError> {
        loop {
            if let Some(batch) = self.ready.next() {
                return Ok(Some(batch));
            }
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            if self.done {
                return Ok(None);
            }
            if let Err(error) = self.fill() {
                self.done = true;
                return Err(error);
            }
        }
    }

    fn format(&self) -> &CaptureFormat {
        &self.description
    }

    fn take_warnings(&mut self) -> Vec<Warning> {
        while let Some(interface) = self.cursor.format.finer_interface() {
            self.warnings.push(Warning::FinerTime { name: self.input.name.clone(), interface });
        }
        std::mem::take(&mut self.warnings)
    }

    fn progress(&self) -> Progress {
        Progress { done: self.input.read, total: self.input.size }
    }
}
