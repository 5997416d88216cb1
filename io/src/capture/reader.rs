//! Reading blocks into arenas and finding the records in them.

use std::io::{self, Read};

use portcullis_core::packet::{Arena, Batch, Metadata, Room};

use super::LinkType;
use crate::batching::{ArenaPool, BatchCollector, ReadyBatches, SlotAllocator};
use crate::source::{CaptureFormat, Progress, Source, SourceError, SourceOptions, Warning};

/// A read that gives less than this has emptied a pipe.
const DRAINED: usize = 64 << 10;

/// A capture format: finds the next record in bytes.
pub(super) trait Format: Send {
    /// Looks at the record that `bytes` begin with. It is asked again, with more bytes, after
    /// [`Step::More`], and may be asked twice about a packet.
    fn step(&mut self, bytes: &[u8]) -> Step;

    /// What is known of the capture by now; called once, after the first block.
    fn describe(&mut self) -> CaptureFormat;

    /// An interface that broke the promise of [`Format::describe`] about the unit of time; each is
    /// given once.
    fn finer_interface(&mut self) -> Option<usize> {
        None
    }
}

/// What a record is.
pub(super) enum Step {
    /// A packet.
    Packet {
        /// Its first byte, counted from the record's.
        start: usize,
        /// Captured bytes.
        length: usize,
        /// The record's length.
        end: usize,
        /// The rest.
        metadata: Metadata,
    },
    /// Nothing for us: the next record is so many bytes on, which may be further than there are.
    Skip(u64),
    /// The record cannot be read without so many bytes from its start, which is more than there are.
    More(usize),
    /// The capture is of no use from here on.
    Fault(Fault),
}

/// A fault, without saying where.
#[derive(Debug)]
pub(super) enum Fault {
    TooLong(u64),
    Malformed(String),
    NotEthernet { what: String, link_type: LinkType },
}

impl Fault {
    /// The fault in the record at byte `at` of capture `name`.
    pub fn at(self, name: &str, at: u64) -> SourceError {
        let name = name.to_owned();
        match self {
            Fault::TooLong(length) => SourceError::TooLong { name, at, length },
            Fault::Malformed(reason) => SourceError::Malformed { name, at, reason },
            Fault::NotEthernet { what, link_type } => SourceError::NotEthernet { name, what, link_type },
        }
    }
}

/// What is read from.
pub(super) struct Input {
    name: String,
    size: Option<u64>,
    reader: Box<dyn Read + Send>,
    /// Bytes read.
    read: u64,
    /// There is nothing more to read.
    ended: bool,
    /// The last read gave little: whoever writes is slower than we are.
    drained: bool,
}

impl Input {
    pub fn new(name: &str, size: Option<u64>, reader: Box<dyn Read + Send>) -> Input {
        Input { name: name.to_owned(), size, reader, read: 0, ended: false, drained: false }
    }

    /// Fills `header` as far as there are bytes, and says how many.
    pub fn read_header(&mut self, header: &mut [u8]) -> Result<usize, SourceError> {
        let mut have = 0;
        while have < header.len() && !self.ended {
            have += self.read(&mut header[have..])?;
        }
        Ok(have)
    }

    /// Reads once; 0 bytes only at the end.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, SourceError> {
        loop {
            match self.reader.read(into) {
                Ok(got) => {
                    self.ended = got == 0;
                    self.drained = got < into.len().min(DRAINED);
                    self.read += got as u64;
                    return Ok(got);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SourceError::Read { name: self.name.clone(), at: self.read, error }),
            }
        }
    }
}

/// Where a format stands in the bytes: what [`Cursor::advance`] keeps between blocks.
struct Cursor<F> {
    format: F,
    /// Bytes still to be passed over, of a record that is nothing for us.
    skip: u64,
    /// Where in the capture that record begins.
    skipping: u64,
}

/// Why [`Cursor::advance`] stopped.
enum Stop {
    /// The record at the position needs so many bytes in all.
    More(usize),
    /// A packet was not taken.
    Full(usize),
    /// The record at the position is broken.
    Fault(Fault),
}

impl<F: Format> Cursor<F> {
    /// Goes from record to record, beginning at `*at`, which afterwards is where it stopped. `bytes`
    /// ends at byte `read` of the capture. `put` gets each packet's first byte in `bytes`, its
    /// length and metadata, and says whether it took the packet.
    #[inline]
    fn advance(
        &mut self,
        bytes: &[u8],
        read: u64,
        at: &mut usize,
        mut put: impl FnMut(usize, usize, Metadata) -> bool,
    ) -> Stop {
        loop {
            if self.skip > 0 {
                let step = self.skip.min((bytes.len() - *at) as u64);
                *at += step as usize;
                self.skip -= step;
                if self.skip > 0 {
                    return Stop::More(1);
                }
            }
            match self.format.step(&bytes[*at..]) {
                Step::Packet { start, length, end, metadata } => {
                    if !put(*at + start, length, metadata) {
                        return Stop::Full(length);
                    }
                    *at += end;
                }
                Step::Skip(length) => {
                    self.skip = length;
                    self.skipping = read - (bytes.len() - *at) as u64;
                }
                Step::More(need) => return Stop::More(need),
                Step::Fault(fault) => return Stop::Fault(fault),
            }
        }
    }
}

/// Bytes that were read, of which `at..have` are not parsed yet.
#[derive(Debug)]
struct Window<B> {
    bytes: B,
    at: usize,
    have: usize,
}

impl<B: AsMut<[u8]> + AsRef<[u8]>> Window<B> {
    /// Moves what is left to the front.
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

/// Where a capture is read to.
enum Place {
    /// Into the arenas where the packets will stay. The arena is `None` only while one is filled.
    Arenas(Option<Window<Block>>),
    /// Into a buffer from which packets are copied to slots.
    Buffer(Window<Vec<u8>>),
}

/// A capture as a source of batches.
pub(super) struct CaptureSource<F> {
    input: Input,
    cursor: Cursor<F>,
    place: Place,
    pool: ArenaPool,
    collector: BatchCollector,
    ready: ReadyBatches,
    description: CaptureFormat,
    options: SourceOptions,
    warnings: Vec<Warning>,
    /// What stopped the reading; to be told when all packets before it were given out.
    error: Option<SourceError>,
    done: bool,
}

impl<F: Format> CaptureSource<F> {
    /// Starts with `begun`, bytes that were read already and not parsed, and reads the first block.
    pub fn open(
        input: Input,
        format: F,
        begun: &[u8],
        options: &SourceOptions,
    ) -> Result<CaptureSource<F>, SourceError> {
        let options = SourceOptions { block_size: options.block_size.clamp(64, Arena::MAX_LEN), ..options.clone() };
        let mut pool = ArenaPool::new();
        let place = match options.room {
            Room::None => {
                let mut arena = pool.take(options.block_size)?;
                arena[..begun.len()].copy_from_slice(begun);
                Place::Arenas(Some(Window { bytes: Block(arena), at: 0, have: begun.len() }))
            }
            Room::Both => {
                let mut bytes = vec![0; options.block_size];
                bytes[..begun.len()].copy_from_slice(begun);
                Place::Buffer(Window { bytes, at: 0, have: begun.len() })
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
        // A fault in the very first record is better told before anything is set up for the rest.
        match source.error.take() {
            Some(error) if source.ready.is_empty() => Err(error),
            error => {
                source.error = error;
                Ok(source)
            }
        }
    }

    /// Reads until there are batches, or no more bytes.
    fn fill(&mut self) -> Result<(), SourceError> {
        match &mut self.place {
            Place::Arenas(window) => {
                let window = window.take().expect("put back by every fill");
                self.fill_arena(window)
            }
            Place::Buffer(_) => self.fill_slots(),
        }
    }

    /// Reads into an arena and leaves the packets there.
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
                Stop::More(need) => need,
                Stop::Full(_) => unreachable!("packets that stay where they are fit"),
                Stop::Fault(fault) => {
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
                // The piece of a record that is there moves on to the next arena.
                let mut next = self.pool.take(self.options.block_size.max(need))?;
                next[..window.left()].copy_from_slice(&window.bytes.0[window.at..window.have]);
                let next = Window { bytes: Block(next), at: 0, have: window.left() };
                let full = std::mem::replace(&mut window, next);
                if self.collector.is_empty() {
                    self.pool.release(full.bytes.0);
                } else {
                    self.collector.finish_arena(full.bytes.0, &self.pool, Room::None, &mut self.ready);
                    self.place = Place::Arenas(Some(window));
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
            self.collector.finish_arena(window.bytes.0, &self.pool, Room::None, &mut self.ready);
        }
        Ok(())
    }

    /// Reads into the buffer and copies the packets to slots.
    fn fill_slots(&mut self) -> Result<(), SourceError> {
        let Place::Buffer(window) = &mut self.place else { unreachable!("only called for a buffer") };
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
                Stop::More(need) => need,
                Stop::Full(length) if self.collector.is_empty() => {
                    arena = self.pool.take(SlotAllocator::stride(length))?;
                    continue;
                }
                Stop::Full(_) => break,
                Stop::Fault(found) => {
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
            // What was read is worth handing out; the next fill starts with what is left.
            self.collector.finish_arena(arena, &self.pool, Room::Both, &mut self.ready);
        }
        if let Some(fault) = fault {
            self.fail(fault, unparsed);
        }
        if let Some(left) = left {
            self.end(left);
        }
        Ok(())
    }

    /// The record `left` bytes before the end of what was read is broken.
    fn fail(&mut self, fault: Fault, left: usize) {
        self.error = Some(fault.at(&self.input.name, self.input.read - left as u64));
        self.done = true;
    }

    /// Nothing more can be read, and `left` bytes make no record.
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
