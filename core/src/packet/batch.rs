//! Batches of packets: descriptors and metadata over a span of packet memory.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use super::arena::{Arena, Span, bytes, bytes_mut};
use super::metadata_summary::MetadataSummary;
use super::summary::{DescriptorSummary, SummaryAccumulator};

mod split;

/// Headroom and tailroom in bytes: how far `adjust_head` may grow a packet at its start and
/// `adjust_tail` at its end.
pub const RESIZE_ROOM: u32 = 128;

/// Minimum packet length in bytes that `adjust_head` and `adjust_tail` leave: an Ethernet header.
pub const MIN_PACKET_LENGTH: u32 = 14;

/// Location of a packet in its batch's arena. Aligned to 8 bytes, as kernels read it in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C, align(8))]
pub struct Descriptor {
    /// Offset of the first byte in the arena, in bytes.
    pub offset: u32,
    /// Captured length in bytes.
    pub length: u32,
}

/// Per-packet metadata, in the layout that devices read (`docs/reference/abi.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Metadata {
    /// Length on the wire in bytes, which may exceed the captured length.
    pub wire_length: u32,
    /// The ingress port: 0, or a capture's interface number.
    pub port: u32,
    /// Receive time in nanoseconds since the epoch, low word.
    pub time_low: u32,
    /// Receive time in nanoseconds since the epoch, high word.
    pub time_high: u32,
    /// Receive time in milliseconds since the epoch, modulo 2^32, for devices without 64-bit
    /// division.
    pub time_ms: u32,
}

impl Metadata {
    /// Creates metadata for a packet received `time_ns` nanoseconds after the epoch.
    pub fn new(wire_length: u32, port: u32, time_ns: u64) -> Metadata {
        Metadata {
            wire_length,
            port,
            time_low: time_ns as u32,
            time_high: (time_ns >> 32) as u32,
            time_ms: (time_ns / 1_000_000) as u32,
        }
    }

    /// The five words as devices read them, little-endian.
    pub fn to_bytes(&self) -> [u8; size_of::<Metadata>()] {
        let words = [self.wire_length, self.port, self.time_low, self.time_high, self.time_ms];
        let mut bytes = [0; size_of::<Metadata>()];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Receive time in nanoseconds since the epoch.
    pub fn time_ns(&self) -> u64 {
        u64::from(self.time_high) << 32 | u64::from(self.time_low)
    }
}

/// Whether a batch's packets have headroom and tailroom of [`RESIZE_ROOM`] bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResizeRoom {
    /// Packets may be adjacent. Not for filters that change lengths.
    None,
    /// Each packet has at least [`RESIZE_ROOM`] bytes of its own before and behind it.
    Both,
}

/// Errors in the descriptors or metadata of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A packet, its room included, exceeds the arena.
    #[error("packet {index}: bytes {offset}..{end}, headroom and tailroom included, exceed the arena of {arena} bytes")]
    OutOfArena {
        /// The packet's index in the batch.
        index: usize,
        /// The first byte, which the room may take below zero.
        offset: i64,
        /// One past the last byte.
        end: i64,
        /// The arena's length in bytes.
        arena: usize,
    },
    /// Two packets (or their rooms) share a 4-byte word, or the packets are not in ascending order.
    #[error(
        "packet {index}: starts at byte {offset}, but the 4-byte words before byte {end} are in use by the packets before it"
    )]
    Overlap {
        /// The packet's index in the batch.
        index: usize,
        /// The packet's first byte, room included.
        offset: u32,
        /// End of the last word in use, in bytes.
        end: u64,
    },
    /// The batch has metadata for some of its packets only.
    #[error("{metadata} metadata entries for {packets} packets")]
    MetadataCount {
        /// Number of descriptors.
        packets: usize,
        /// Number of metadata entries.
        metadata: usize,
    },
    /// A device moved the start or end of a packet beyond its room.
    #[error(
        "packet {index}: the device returned bytes {offset}..{end}, which exceed the packet's headroom or tailroom"
    )]
    OutOfRoom {
        /// The packet's index in the batch.
        index: usize,
        /// The new first byte.
        offset: u64,
        /// One past the new last byte.
        end: u64,
    },
}

/// An arena shared by the batches cut from it. The last one to be dropped sends it back for reuse.
#[derive(Debug)]
struct SharedArena {
    arena: Option<Arena>,
    return_to: Option<Sender<Arena>>,
}

impl Drop for SharedArena {
    fn drop(&mut self) {
        if let (Some(arena), Some(return_to)) = (self.arena.take(), self.return_to.take()) {
            // If the receiver is gone, nothing reuses the arena and it is freed.
            let _ = return_to.send(arena);
        }
    }
}

/// Cuts an arena into batches, front to back, so that no two packets share a word.
#[derive(Debug)]
pub struct BatchCutter {
    span: Arc<Span>,
    shared: Arc<SharedArena>,
    next_free: u64,
}

impl BatchCutter {
    /// Takes over `arena`. Once the cutter and all of its batches are dropped, the arena is sent to
    /// `return_to`, or freed if that is `None`.
    pub fn new(arena: Arena, return_to: Option<Sender<Arena>>) -> BatchCutter {
        let span = arena.span().clone();
        BatchCutter { span, shared: Arc::new(SharedArena { arena: Some(arena), return_to }), next_free: 0 }
    }

    /// Cuts the next batch. Its descriptors ascend in the arena, behind those of the batches
    /// before, and no two packets (with [`ResizeRoom::Both`]: nor their rooms) share a 4-byte word.
    /// `metadata` has one entry per packet or is empty; then the wire length is the captured length
    /// and the rest is zero.
    ///
    /// # Errors
    /// [`BatchError`]; no part of the arena is used up then.
    pub fn cut_batch(
        &mut self,
        descriptors: Vec<Descriptor>,
        metadata: Vec<Metadata>,
        room: ResizeRoom,
    ) -> Result<Batch, BatchError> {
        if !metadata.is_empty() && metadata.len() != descriptors.len() {
            return Err(BatchError::MetadataCount { packets: descriptors.len(), metadata: metadata.len() });
        }
        let mut next_free = self.next_free;
        let mut summary = SummaryAccumulator::default();
        for (index, d) in descriptors.iter().enumerate() {
            summary.add(d);
            let Range { start, end } = check_in_arena(index, d, room, self.span.len())?;
            if end > start {
                let (first, last) = (start as u64 & !3, (end as u64 + 3) & !3);
                if first < next_free {
                    return Err(BatchError::Overlap { index, offset: start as u32, end: next_free });
                }
                next_free = last;
            }
        }
        self.next_free = next_free;
        let summary = OnceLock::from(summary.finish(&descriptors));
        let batch = Batch::new(self.span.clone(), Some(self.shared.clone()), descriptors, metadata, room, None);
        Ok(Batch { summary, ..batch })
    }
}

/// The bytes of a packet, room included.
fn occupied_bytes(d: &Descriptor, room: ResizeRoom) -> Range<i64> {
    let room_bytes = if room == ResizeRoom::Both { i64::from(RESIZE_ROOM) } else { 0 };
    i64::from(d.offset) - room_bytes..i64::from(d.offset) + i64::from(d.length) + room_bytes
}

/// Whether a packet, room included, exceeds an arena of `arena` bytes.
fn is_outside(d: &Descriptor, room: ResizeRoom, arena: usize) -> bool {
    let Range { start, end } = occupied_bytes(d, room);
    (start < 0) | (end > arena as i64)
}

/// The bytes of a packet, room included, checked against the arena's length.
fn check_in_arena(index: usize, d: &Descriptor, room: ResizeRoom, arena: usize) -> Result<Range<i64>, BatchError> {
    let Range { start, end } = occupied_bytes(d, room);
    match is_outside(d, room, arena) {
        true => Err(BatchError::OutOfArena { index, offset: start, end, arena }),
        false => Ok(start..end),
    }
}

/// Data that a source attaches to a batch, to get it back with the batch
/// ([`Batch::into_source_data`]).
pub type SourceData = Box<dyn Any + Send + Sync>;

/// The parts of a batch that its source reuses ([`Batch::into_parts`]).
#[derive(Debug)]
pub struct BatchParts<T> {
    /// The data that the source attached.
    pub source_data: Box<T>,
    /// The final location of each packet.
    pub descriptors: Vec<Descriptor>,
    /// One entry per packet, or empty.
    pub metadata: Vec<Metadata>,
}

/// A batch of packets, with exclusive access to the bytes of each.
pub struct Batch {
    span: Arc<Span>,
    /// The arena that the batch was cut from, unless it lies in frames.
    shared: Option<Arc<SharedArena>>,
    descriptors: Vec<Descriptor>,
    /// The summary of the descriptors, once it is known.
    summary: OnceLock<DescriptorSummary>,
    /// The descriptors as the source made them; empty if lengths cannot change.
    original: Vec<Descriptor>,
    metadata: Vec<Metadata>,
    /// The summary of the metadata, once it is known.
    metadata_summary: OnceLock<MetadataSummary>,
    room: ResizeRoom,
    /// Whether packets lie in separate frames in any order, with foreign memory between them.
    is_scattered: bool,
    source_data: Option<SourceData>,
    /// The range of packets in the original batch, for a part made by [`Batch::split_off`].
    range_in_parent: Option<split::BatchRange>,
}

/// Abbreviated: a batch may hold millions of descriptors, and errors that contain one are printed.
impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (packets, metadata) = (self.len(), !self.metadata.is_empty());
        f.debug_struct("Batch")
            .field("packets", &packets)
            .field("metadata", &metadata)
            .field("room", &self.room)
            .field("span", &self.span.id())
            .finish()
    }
}

impl Batch {
    fn new(
        span: Arc<Span>,
        shared: Option<Arc<SharedArena>>,
        descriptors: Vec<Descriptor>,
        metadata: Vec<Metadata>,
        room: ResizeRoom,
        source_data: Option<SourceData>,
    ) -> Batch {
        let original = if room == ResizeRoom::Both { descriptors.clone() } else { Vec::new() };
        Batch {
            span,
            shared,
            descriptors,
            summary: OnceLock::new(),
            original,
            metadata,
            metadata_summary: OnceLock::new(),
            room,
            is_scattered: false,
            source_data,
            range_in_parent: None,
        }
    }

    /// Creates a batch of packets that each lie in a frame of their own: of an AF_XDP UMEM or a
    /// mempool. They may be in any order. Metadata is as in [`BatchCutter::cut_batch`].
    ///
    /// `source_data` is dropped with the batch, and may release the frames then;
    /// [`Batch::into_source_data`] returns it instead.
    ///
    /// # Errors
    /// [`BatchError::OutOfArena`] and [`BatchError::MetadataCount`]; `source_data` is dropped.
    ///
    /// # Safety
    /// No two packets (with [`ResizeRoom::Both`]: nor their rooms) share a 4-byte word, and until
    /// `source_data` is dropped or returned nothing else reads or writes these words.
    pub unsafe fn from_frames(
        span: Arc<Span>,
        descriptors: Vec<Descriptor>,
        metadata: Vec<Metadata>,
        room: ResizeRoom,
        source_data: SourceData,
    ) -> Result<Batch, BatchError> {
        if !metadata.is_empty() && metadata.len() != descriptors.len() {
            return Err(BatchError::MetadataCount { packets: descriptors.len(), metadata: metadata.len() });
        }
        // Check all packets without a branch per packet first; only a failure needs the packet's
        // index.
        let is_outside = |is: bool, descriptor: &Descriptor| is | is_outside(descriptor, room, span.len());
        if descriptors.iter().fold(false, is_outside) {
            for (index, descriptor) in descriptors.iter().enumerate() {
                check_in_arena(index, descriptor, room, span.len())?;
            }
        }
        let batch = Batch::new(span, None, descriptors, metadata, room, Some(source_data));
        Ok(Batch { is_scattered: true, ..batch })
    }

    /// Whether packets lie in separate frames in any order ([`Batch::from_frames`]), rather than
    /// ascending in memory that belongs to this batch alone.
    pub fn is_scattered(&self) -> bool {
        self.is_scattered
    }

    /// Attaches the data that the batch's source wants back with it.
    ///
    /// # Panics
    /// If the batch has source data already, which may be what keeps its memory alive, or is a part
    /// made by [`Batch::split_off`], whose source data belongs to the whole.
    pub fn set_source_data(&mut self, source_data: SourceData) {
        assert!(self.range_in_parent.is_none(), "a part of a split batch cannot have source data of its own");
        assert!(self.source_data.is_none(), "a batch has source data already");
        self.source_data = Some(source_data);
    }

    /// Consumes the batch and returns its source data.
    ///
    /// # Errors
    /// The batch, if it has no source data, or of another type than `T`.
    pub fn into_source_data<T: Any>(self) -> Result<Box<T>, Box<Batch>> {
        self.into_parts().map(|parts| parts.source_data)
    }

    /// Consumes the batch and returns its source data and its vectors, for reuse in the source's
    /// next batch.
    ///
    /// # Errors
    /// As [`Batch::into_source_data`].
    pub fn into_parts<T: Any>(mut self) -> Result<BatchParts<T>, Box<Batch>> {
        match self.source_data.take().map(|source_data| source_data.downcast::<T>()) {
            Some(Ok(source_data)) => {
                Ok(BatchParts { source_data, descriptors: self.descriptors, metadata: self.metadata })
            }
            Some(Err(other)) => {
                self.source_data = Some(other);
                Err(Box::new(self))
            }
            None => Err(Box::new(self)),
        }
    }

    /// Copies packets into a new batch with [`ResizeRoom::Both`]. For tests and small programs.
    ///
    /// # Errors
    /// If the packets together exceed the largest arena.
    pub fn from_packets<P: AsRef<[u8]>>(packets: &[P]) -> Result<Batch, super::ArenaError> {
        let mut at = 0usize;
        let mut offsets = Vec::with_capacity(packets.len());
        for packet in packets {
            let offset = at + RESIZE_ROOM as usize;
            offsets.push(offset);
            at = (offset + packet.as_ref().len() + RESIZE_ROOM as usize + 3) & !3;
        }
        let mut arena = Arena::new(at)?;
        let mut descriptors = Vec::with_capacity(packets.len());
        for (packet, offset) in packets.iter().zip(offsets) {
            let packet = packet.as_ref();
            arena[offset..offset + packet.len()].copy_from_slice(packet);
            descriptors.push(Descriptor { offset: offset as u32, length: packet.len() as u32 });
        }
        Ok(BatchCutter::new(arena, None)
            .cut_batch(descriptors, Vec::new(), ResizeRoom::Both)
            .expect("laid out without overlap, inside the arena"))
    }

    /// Copies packets as a ring might deliver them, each into a frame of its own, in descending
    /// order, with [`ResizeRoom::Both`]. For tests.
    ///
    /// # Errors
    /// As [`Batch::from_packets`].
    pub fn in_frames<P: AsRef<[u8]>>(packets: &[P]) -> Result<Batch, super::ArenaError> {
        let longest = packets.iter().map(|packet| packet.as_ref().len()).max().unwrap_or(0);
        let frame = (longest + 2 * RESIZE_ROOM as usize).next_multiple_of(4);
        let bytes = frame.saturating_mul(packets.len());
        let mut arena = Arena::new(bytes)?;
        let mut descriptors = Vec::with_capacity(packets.len());
        for (packet, frame) in packets.iter().map(AsRef::as_ref).zip(arena.chunks_exact_mut(frame.max(1)).rev()) {
            frame[RESIZE_ROOM as usize..][..packet.len()].copy_from_slice(packet);
        }
        for (number, packet) in packets.iter().map(AsRef::as_ref).enumerate() {
            // Empty packets start anywhere: a frame has space for the longest.
            let shift = if packet.is_empty() { (number % 4).min(longest) } else { 0 };
            let offset = bytes - (number + 1) * frame + RESIZE_ROOM as usize + shift;
            descriptors.push(Descriptor { offset: offset as u32, length: packet.len() as u32 });
        }
        let span = arena.span().clone();
        // SAFETY: each packet has a frame of its own, which starts and ends at a word, and the
        // source data is the only handle on the memory.
        let batch = unsafe { Batch::from_frames(span, descriptors, Vec::new(), ResizeRoom::Both, Box::new(arena)) };
        Ok(batch.expect("laid out inside the arena"))
    }

    /// A batch with [`ResizeRoom::Both`] in memory of a fictitious device: host access panics.
    #[cfg(test)]
    pub(crate) fn in_device_memory(device: &str, descriptors: Vec<Descriptor>) -> Batch {
        let view = super::DeviceView { device: device.into(), address: 1 << 40 };
        // SAFETY: nothing accesses the memory.
        let span = unsafe { Span::from_views(None, Some(view), 1 << 20, 2 << 20, Box::new(())) }.unwrap();
        // SAFETY: as above.
        unsafe { Batch::from_frames(span, descriptors, Vec::new(), ResizeRoom::Both, Box::new(())) }.unwrap()
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether the batch has no packets.
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The current location of each packet.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors
    }

    /// Properties of the descriptors as a whole.
    pub fn summary(&self) -> DescriptorSummary {
        *self.summary.get_or_init(|| DescriptorSummary::of(&self.descriptors))
    }

    /// The location of each packet before any filter resized it.
    pub fn original(&self) -> &[Descriptor] {
        if self.original.is_empty() { &self.descriptors } else { &self.original }
    }

    /// One entry per packet, or empty (see [`BatchCutter::cut_batch`]).
    pub fn metadata(&self) -> &[Metadata] {
        &self.metadata
    }

    /// Properties of the metadata as a whole.
    pub fn metadata_summary(&self) -> MetadataSummary {
        *self.metadata_summary.get_or_init(|| self.summarize_metadata())
    }

    fn summarize_metadata(&self) -> MetadataSummary {
        if self.metadata.is_empty() && self.original.is_empty() {
            // Wire lengths are the captured lengths, and all else is zero.
            let DescriptorSummary { min_length, max_length, .. } = self.summary();
            let packet = |length| (Metadata { wire_length: length, ..Metadata::default() }, length);
            return MetadataSummary::of([min_length, max_length].map(packet));
        }
        let lengths = self.descriptors.iter().map(|descriptor| descriptor.length);
        MetadataSummary::of(lengths.enumerate().map(|(index, length)| (self.metadata_of(index), length)))
    }

    /// Sets the summary of the metadata, which the source accumulated while it made the batch; else
    /// a session that needs it makes a pass over the metadata. Has no effect on a batch without
    /// metadata.
    #[must_use]
    pub fn with_metadata_summary(self, summary: MetadataSummary) -> Batch {
        if self.metadata.is_empty() {
            return self;
        }
        debug_assert_eq!(summary, self.summarize_metadata());
        Batch { metadata_summary: OnceLock::from(summary), ..self }
    }

    /// The metadata of packet `index`; derived from the descriptor, as [`BatchCutter::cut_batch`]
    /// describes, if the batch has none.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn metadata_of(&self, index: usize) -> Metadata {
        match self.metadata.get(index) {
            Some(metadata) => *metadata,
            None => Metadata { wire_length: self.original()[index].length, ..Metadata::default() },
        }
    }

    /// Whether the packets, as they are now, have room for length changes. A packet that grew into
    /// its room has less than [`RESIZE_ROOM`] bytes left, so a batch with such a packet counts as
    /// having none until its packets are copied to a new layout.
    pub fn room(&self) -> ResizeRoom {
        // Without room `original` is empty, and nothing can have grown.
        let grew = self.descriptors.iter().zip(&self.original).any(|(now, source)| {
            let end = |d: &Descriptor| u64::from(d.offset) + u64::from(d.length);
            now.offset < source.offset || end(now) > end(source)
        });
        if grew { ResizeRoom::None } else { self.room }
    }

    /// The memory that holds the packets. While a device holds the batch it may read and write the
    /// bytes of its packets and their rooms, and read (without relying on the values) up to
    /// [`READABLE_PAST_END`](super::READABLE_PAST_END) bytes past the end.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }

    /// The bytes of packet `index`.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn packet(&self, index: usize) -> &[u8] {
        let d = self.descriptors[index];
        // SAFETY: `cut_batch` (and `resize`) checked that the range lies in the span and gave its
        // words to this batch alone; `&self` excludes writers (`packet_mut`, or a device, which
        // owns the batch).
        unsafe { bytes(&self.span, d.offset as usize, d.length as usize) }
    }

    /// A range of the arena that contains only packets of this batch, for devices that copy them
    /// all at once.
    ///
    /// # Panics
    /// If the range exceeds the words from the first packet to the last, rooms included, or if the
    /// packets are scattered.
    pub(crate) fn bytes(&self, range: Range<u64>) -> &[u8] {
        assert!(!self.is_scattered, "scattered packets cannot be copied as one range");
        // Packets that were resized since still lie within the room of their original location.
        let room_bytes = if self.room == ResizeRoom::Both { RESIZE_ROOM } else { 0 };
        let mut occupied = self.original().iter().filter(|d| d.length > 0 || room_bytes > 0);
        let Some(first) = occupied.next() else {
            assert!(range.is_empty(), "the range exceeds the batch");
            return &[];
        };
        let last = occupied.next_back().unwrap_or(first);
        let start = u64::from(first.offset - room_bytes) & !3;
        let end = (u64::from(last.offset) + u64::from(last.length) + u64::from(room_bytes) + 3) & !3;
        assert!(range.is_empty() || (start <= range.start && range.end <= end), "the range exceeds the batch");
        // SAFETY: the packets and their rooms lie in the span (`cut_batch`), and a span is readable
        // behind its end, where the last word may end. No other batch has bytes in between: a
        // cutter hands out the arena front to back, and no two packets share a word. So nothing
        // writes there while we hold the batch.
        unsafe {
            let from = self.span.as_ptr().add(range.start as usize);
            std::slice::from_raw_parts(from, (range.end - range.start) as usize)
        }
    }

    /// The bytes of packet `index`, for writing.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn packet_mut(&mut self, index: usize) -> &mut [u8] {
        let d = self.descriptors[index];
        // SAFETY: as for `packet`; `&mut self` makes the access unique.
        unsafe { bytes_mut(&self.span, d.offset as usize, d.length as usize) }
    }

    /// A range of the packets, for writing by several threads.
    ///
    /// # Panics
    /// If the range exceeds the batch, or its packets are in device memory.
    pub fn packets_mut(&mut self, packets: Range<usize>) -> PacketsMut<'_> {
        assert!(self.span.is_on_host(), "the packets are in device memory");
        PacketsMut { span: &self.span, descriptors: &self.descriptors[packets] }
    }

    /// The bytes of each packet, in order.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        (0..self.len()).map(|i| self.packet(i))
    }

    /// Drops all packets behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.summary = self.summary_of_part(len.min(self.len()));
        self.descriptors.truncate(len);
        self.original.truncate(len);
        self.metadata.truncate(len);
    }

    /// Sets the descriptors to what a filter left.
    ///
    /// # Errors
    /// [`BatchError::OutOfRoom`] if a packet exceeds its room; [`BatchError::MetadataCount`] if
    /// there is not one descriptor per packet. The batch is unchanged then.
    pub fn resize(&mut self, descriptors: Vec<Descriptor>) -> Result<(), BatchError> {
        if descriptors.len() != self.descriptors.len() {
            return Err(BatchError::MetadataCount { packets: self.descriptors.len(), metadata: descriptors.len() });
        }
        self.check_room(0, &descriptors)?;
        self.forget_lengths();
        self.descriptors = descriptors;
        Ok(())
    }

    /// Sets the descriptors of the packets from `first` on, like [`Batch::resize`].
    ///
    /// # Errors
    /// As [`Batch::resize`].
    pub fn resize_from(&mut self, first: usize, descriptors: &[Descriptor]) -> Result<(), BatchError> {
        let packets = self.descriptors.len().saturating_sub(first);
        if descriptors.len() > packets {
            return Err(BatchError::MetadataCount { packets, metadata: descriptors.len() });
        }
        self.check_room(first, descriptors)?;
        self.forget_lengths();
        self.descriptors[first..first + descriptors.len()].copy_from_slice(descriptors);
        Ok(())
    }

    /// Brings the summaries up to date before packets are resized. Metadata stays as it is, but
    /// wire lengths that were captured lengths may not be any more; without original lengths they
    /// are the present ones.
    fn forget_lengths(&mut self) {
        self.summary = OnceLock::new();
        if self.metadata.is_empty() && self.original.is_empty() {
            self.metadata_summary = OnceLock::new();
        } else if let Some(summary) = self.metadata_summary.get_mut() {
            summary.varies_from_captured_length = true;
        }
    }

    /// The summary of `packets` consecutive packets, if it follows from that of the batch.
    fn summary_of_part(&self, packets: usize) -> OnceLock<DescriptorSummary> {
        let part = self.summary.get().and_then(|summary| summary.of_part(packets));
        part.map_or_else(OnceLock::new, OnceLock::from)
    }

    fn check_room(&self, first: usize, descriptors: &[Descriptor]) -> Result<(), BatchError> {
        let room_bytes = if self.room == ResizeRoom::Both { u64::from(RESIZE_ROOM) } else { 0 };
        for (index, (new, old)) in descriptors.iter().zip(&self.original()[first..]).enumerate() {
            let (offset, end) = (u64::from(new.offset), u64::from(new.offset) + u64::from(new.length));
            let (start, last) = (u64::from(old.offset), u64::from(old.offset) + u64::from(old.length));
            if offset + room_bytes < start || end > last + room_bytes {
                return Err(BatchError::OutOfRoom { index: first + index, offset, end });
            }
        }
        Ok(())
    }
}

/// Consecutive packets of a batch, which this value alone may access.
pub struct PacketsMut<'a> {
    /// Whose bytes at `descriptors` are borrowed for writing.
    span: &'a Span,
    descriptors: &'a [Descriptor],
}

impl<'a> PacketsMut<'a> {
    /// Locations of the packets.
    pub fn descriptors(&self) -> &'a [Descriptor] {
        self.descriptors
    }

    /// Splits them before the packet with this index.
    ///
    /// # Panics
    /// If there are fewer packets.
    #[must_use]
    pub fn split_at(self, index: usize) -> (PacketsMut<'a>, PacketsMut<'a>) {
        let (before, behind) = self.descriptors.split_at(index);
        // No two packets share a word (`cut_batch`), so the parts share no byte.
        (PacketsMut { span: self.span, descriptors: before }, PacketsMut { span: self.span, descriptors: behind })
    }

    /// The bytes of each packet, in order.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> + '_ {
        // SAFETY: as for `Batch::packet_mut`; the packets are this value's, and each is visited
        // once.
        self.descriptors.iter().map(|d| unsafe { bytes_mut(self.span, d.offset as usize, d.length as usize) })
    }

    /// The first byte of the memory that the descriptors' offsets count from.
    pub(super) fn base(&mut self) -> *mut u8 {
        self.span.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn d(offset: u32, length: u32) -> Descriptor {
        Descriptor { offset, length }
    }

    #[test]
    fn packets_may_touch_but_share_no_word() {
        let mut cutter = BatchCutter::new(Arena::new(64).unwrap(), None);
        assert!(matches!(
            cutter.cut_batch(vec![d(0, 5), d(5, 3)], vec![], ResizeRoom::None),
            Err(BatchError::Overlap { index: 1, .. })
        ));
        let first = cutter.cut_batch(vec![d(0, 5), d(8, 4)], vec![], ResizeRoom::None).unwrap();
        assert_eq!(first.len(), 2);
        assert!(matches!(cutter.cut_batch(vec![d(8, 4)], vec![], ResizeRoom::None), Err(BatchError::Overlap { .. })));
        assert!(cutter.cut_batch(vec![d(12, 52)], vec![], ResizeRoom::None).is_ok());
    }

    #[test]
    fn the_summary_is_that_of_the_current_packets() {
        let mut first = BatchCutter::new(Arena::new(64).unwrap(), None)
            .cut_batch(vec![d(0, 5), d(63, 0), d(8, 1)], vec![], ResizeRoom::None)
            .unwrap();
        let check = |batch: &Batch| assert_eq!(batch.summary(), DescriptorSummary::of(batch.descriptors()));
        check(&first);
        let rest = first.split_off(1);
        [&first, &rest].into_iter().for_each(check);
        first.join(rest);
        check(&first);
        first.truncate(1);
        check(&first);
        let mut uniform = Batch::from_packets(&[[7u8; 60], [8; 60], [9; 60]]).unwrap();
        check(&uniform);
        let rest = uniform.split_off(2);
        [&uniform, &rest].into_iter().for_each(check);
        let at = uniform.descriptors()[0].offset;
        uniform.resize_from(0, &[d(at + 60, 0)]).unwrap();
        check(&uniform);
        check(&Batch::in_frames(&[&[1][..], &[]]).unwrap());
    }

    #[test]
    fn the_metadata_summary_is_that_of_the_current_packets() {
        let check = |batch: &Batch| {
            let packets = (0..batch.len()).map(|index| (batch.metadata_of(index), batch.descriptors()[index].length));
            let (summary, exact) = (batch.metadata_summary(), MetadataSummary::of(packets));
            assert_eq!(summary.varying, exact.varying);
            // Any resizing counts as a change of lengths.
            assert!(summary.varies_from_captured_length >= exact.varies_from_captured_length);
        };
        let cut = |metadata| {
            let mut cutter = BatchCutter::new(Arena::new(512).unwrap(), None);
            cutter.cut_batch(vec![d(128, 60)], metadata, ResizeRoom::Both).unwrap()
        };
        for metadata in [vec![], vec![Metadata::new(60, 1, 7)], vec![Metadata::new(61, 1, 7)]] {
            let mut batch = cut(metadata);
            check(&batch);
            batch.resize(vec![d(128, 59)]).unwrap();
            check(&batch);
            batch.resize_from(0, &[d(129, 59)]).unwrap();
            check(&batch);
        }
        let mut cutter = BatchCutter::new(Arena::new(64).unwrap(), None);
        let mut first = cutter.cut_batch(vec![d(0, 5), d(8, 1)], vec![], ResizeRoom::None).unwrap();
        check(&first);
        // A part may count as varying if the whole does.
        let rest = first.split_off(1);
        assert!(first.metadata_summary().varying.wire_length && !rest.metadata_summary().varies_from_captured_length);
        first.join(rest);
        check(&first);
    }

    #[test]
    fn packets_that_exceed_the_arena_with_their_room_are_refused() {
        let mut cutter = BatchCutter::new(Arena::new(512).unwrap(), None);
        for (bad, room) in [
            (d(512, 1), ResizeRoom::None),
            (d(500, 13), ResizeRoom::None),
            (d(u32::MAX, u32::MAX), ResizeRoom::None),
            (d(127, 10), ResizeRoom::Both),
            (d(128, 257), ResizeRoom::Both),
        ] {
            assert!(matches!(cutter.cut_batch(vec![bad], vec![], room), Err(BatchError::OutOfArena { .. })), "{bad:?}");
        }
        assert!(cutter.cut_batch(vec![d(128, 256)], vec![], ResizeRoom::Both).is_ok());
    }

    #[test]
    fn packets_can_grow_only_within_their_room() {
        let mut batch = Batch::from_packets(&[[7u8; 60]]).unwrap();
        let at = batch.descriptors()[0].offset;
        for bad in [d(at.wrapping_sub(129), 60), d(at, 60 + 129), d(at - 128, 60 + 128 + 129), d(0, u32::MAX)] {
            assert!(batch.resize(vec![bad]).is_err(), "{bad:?}");
        }
        batch.resize(vec![d(at - 128, 60 + 256)]).unwrap();
        assert_eq!(batch.packet(0).len(), 316);
        assert_eq!(batch.original()[0], d(at, 60));
        batch.resize(vec![d(at + 46, 14)]).unwrap();
        assert_eq!(batch.packet(0), [7; 14]);
    }

    #[test]
    fn a_batch_with_a_grown_packet_has_no_room() {
        let mut batch = Batch::from_packets(&[[7u8; 60], [8; 60]]).unwrap();
        let at: Vec<u32> = batch.descriptors().iter().map(|d| d.offset).collect();
        for (second, room) in [
            (d(at[1], 60), ResizeRoom::Both),
            (d(at[1] + 20, 20), ResizeRoom::Both),
            (d(at[1] - 1, 14), ResizeRoom::None),
            (d(at[1] + 46, 15), ResizeRoom::None),
            (d(at[1] + 60, 0), ResizeRoom::Both),
        ] {
            batch.resize(vec![d(at[0], 60), second]).unwrap();
            assert_eq!(batch.room(), room, "{second:?}");
        }
    }

    #[test]
    fn truncate_keeps_the_first_packets() {
        let mut batch = Batch::from_packets(&[[1u8; 60], [2; 60], [3; 60]]).unwrap();
        batch.truncate(5);
        assert_eq!(batch.len(), 3);
        batch.truncate(2);
        assert_eq!((batch.len(), batch.original().len(), batch.packet(1)), (2, 2, &[2; 60][..]));
        batch.truncate(0);
        assert!(batch.is_empty());
    }

    /// Source data that reports when it is dropped.
    struct DropReporter(std::sync::mpsc::Sender<&'static str>, &'static str);

    impl Drop for DropReporter {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn source_data_is_dropped_with_the_batch_or_returned_for_it() {
        let (return_to, returned) = channel();
        let span = Arena::new(4096).unwrap().span().clone();
        let batch = |name, at: &[(u32, u32)], room| {
            let descriptors = at.iter().map(|&(offset, length)| d(offset, length)).collect();
            // SAFETY: nothing accesses the packets.
            unsafe {
                Batch::from_frames(
                    span.clone(),
                    descriptors,
                    vec![],
                    room,
                    Box::new(DropReporter(return_to.clone(), name)),
                )
            }
        };
        let first = batch("first", &[(2176, 60), (128, 60)], ResizeRoom::Both).unwrap();
        assert!(first.is_scattered() && first.room() == ResizeRoom::Both);
        let second = batch("second", &[(0, 60)], ResizeRoom::None).unwrap();
        assert!(matches!(batch("third", &[(127, 60)], ResizeRoom::Both), Err(BatchError::OutOfArena { index: 0, .. })));
        assert_eq!(returned.try_recv(), Ok("third"));
        assert!(returned.try_recv().is_err());
        drop(first);
        assert_eq!(returned.try_recv(), Ok("first"));
        let second = second.into_source_data::<u32>().unwrap_err();
        let BatchParts { source_data: frames, descriptors, metadata } = second.into_parts::<DropReporter>().unwrap();
        assert_eq!((descriptors, metadata), (vec![d(0, 60)], vec![]));
        assert!(returned.try_recv().is_err());
        drop(frames);
        assert_eq!(returned.try_recv(), Ok("second"));

        let mut other = Batch::from_packets(&[[7u8; 60]]).unwrap();
        other.set_source_data(Box::new(vec![5u32]));
        assert_eq!(*other.into_source_data::<Vec<u32>>().unwrap(), [5]);
    }

    #[test]
    fn an_arena_is_returned_with_its_last_batch() {
        let (return_to, arenas) = channel();
        let mut cutter = BatchCutter::new(Arena::new(4096).unwrap(), Some(return_to));
        let one = cutter.cut_batch(vec![d(0, 64)], vec![], ResizeRoom::None).unwrap();
        let two = cutter.cut_batch(vec![d(64, 64)], vec![], ResizeRoom::None).unwrap();
        drop(cutter);
        drop(one);
        assert!(arenas.try_recv().is_err());
        drop(two);
        assert!(arenas.try_recv().is_ok());
    }
}
