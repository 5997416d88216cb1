//! Packets gathered for one run of a filter.
#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::arena::{Arena, Span, bytes, bytes_mut};

mod split;

/// Bytes that `adjust_head` may add in front of a packet and `adjust_tail` behind it.
pub const RESIZE_ROOM: u32 = 128;

/// The shortest packet that `adjust_head` and `adjust_tail` leave: an Ethernet header.
pub const MIN_PACKET_LENGTH: u32 = 14;

/// Where a packet lies: `length` bytes from `offset` on, both in bytes, in the batch's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Descriptor {
    /// The first byte's offset in the arena.
    pub offset: u32,
    /// Bytes captured.
    pub length: u32,
}

/// What is known of a packet beside its bytes; as devices see it, `docs/abi.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Metadata {
    /// Bytes on the wire, which may be more than were captured.
    pub wire_length: u32,
    /// The ingress port: 0, or a capture's interface number.
    pub port: u32,
    /// Nanoseconds since the epoch, low word.
    pub time_low: u32,
    /// Nanoseconds since the epoch, high word.
    pub time_high: u32,
    /// Milliseconds since the epoch, modulo 2^32 (devices without 64-bit division need it made).
    pub time_ms: u32,
}

impl Metadata {
    /// Metadata with the time given in nanoseconds since the epoch.
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

    /// Nanoseconds since the epoch.
    pub fn time_ns(&self) -> u64 {
        u64::from(self.time_high) << 32 | u64::from(self.time_low)
    }
}

/// Whether a batch's packets have [`RESIZE_ROOM`] bytes of their own before and behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResizeRoom {
    /// Packets may lie next to each other. Not for filters that change lengths.
    None,
    /// Each packet has at least [`RESIZE_ROOM`] bytes on either side that belong to nobody else.
    Both,
}

/// Why descriptors do not make a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The packet (or the room it needs) reaches out of the arena.
    #[error("packet {index}: bytes {offset}..{end} (room included) lie outside the arena of {arena} bytes")]
    OutOfArena {
        /// The packet's index in the batch.
        index: usize,
        /// The first byte, possibly below zero because of the room.
        offset: i64,
        /// One past the last byte.
        end: i64,
        /// The arena's length in bytes.
        arena: usize,
    },
    /// Two packets (or their rooms) share a 4-byte word, or the packets are not in ascending order.
    #[error(
        "packet {index}: starts at byte {offset}, inside or before the 4-byte word where the packet before it ends ({end})"
    )]
    Overlap {
        /// The packet's index in the batch.
        index: usize,
        /// Its first byte, room included.
        offset: u32,
        /// One past the last word already given out, in bytes.
        end: u64,
    },
    /// There is metadata, but not for every packet.
    #[error("{packets} packets, but metadata for {metadata}")]
    MetadataCount {
        /// Number of descriptors.
        packets: usize,
        /// Number of metadata entries.
        metadata: usize,
    },
    /// A device moved a packet's ends further than it may.
    #[error("packet {index}: the device returned bytes {offset}..{end}, outside the packet's room")]
    OutOfRoom {
        /// The packet's index in the batch.
        index: usize,
        /// The new first byte.
        offset: u64,
        /// One past the new last byte.
        end: u64,
    },
}

/// An arena given up for batches. When the last batch is gone it goes home, if it has one.
#[derive(Debug)]
struct Shared {
    arena: Option<Arena>,
    home: Option<Sender<Arena>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let (Some(arena), Some(home)) = (self.arena.take(), self.home.take()) {
            // Nobody waiting for it is no fault: then it is freed.
            let _ = home.send(arena);
        }
    }
}

/// Cuts an arena into batches, from its start to its end, so that no two packets share a word.
#[derive(Debug)]
pub struct BatchCutter {
    span: Arc<Span>,
    shared: Arc<Shared>,
    taken: u64,
}

impl BatchCutter {
    /// Gives up `arena` for batches. It is sent to `home` when the carver and all its batches are
    /// gone, and freed when there is no home.
    pub fn new(arena: Arena, home: Option<Sender<Arena>>) -> BatchCutter {
        let span = arena.span().clone();
        BatchCutter { span, shared: Arc::new(Shared { arena: Some(arena), home }), taken: 0 }
    }

    /// The next batch. Descriptors ascend in the arena, behind those of the batches before, and
    /// no two packets (with [`ResizeRoom::Both`]: nor their rooms) share a 4-byte word. `metadata` is one
    /// entry a packet, or empty: then the wire length is the captured length and the rest is zero.
    ///
    /// # Errors
    /// See [`BatchError`]; nothing is taken then.
    pub fn cut_batch(
        &mut self,
        descriptors: Vec<Descriptor>,
        metadata: Vec<Metadata>,
        room: ResizeRoom,
    ) -> Result<Batch, BatchError> {
        if !metadata.is_empty() && metadata.len() != descriptors.len() {
            return Err(BatchError::MetadataCount { packets: descriptors.len(), metadata: metadata.len() });
        }
        let mut taken = self.taken;
        for (index, d) in descriptors.iter().enumerate() {
            let Range { start, end } = check_arena(index, d, room, self.span.len())?;
            if end > start {
                let (first, last) = (start as u64 & !3, (end as u64 + 3) & !3);
                if first < taken {
                    return Err(BatchError::Overlap { index, offset: start as u32, end: taken });
                }
                taken = last;
            }
        }
        self.taken = taken;
        Ok(Batch::new(self.span.clone(), Some(self.shared.clone()), descriptors, metadata, room, None))
    }
}

/// The bytes of a packet, room included.
fn reach(d: &Descriptor, room: ResizeRoom) -> Range<i64> {
    let margin = if room == ResizeRoom::Both { i64::from(RESIZE_ROOM) } else { 0 };
    i64::from(d.offset) - margin..i64::from(d.offset) + i64::from(d.length) + margin
}

/// Whether any of them lies outside an arena of this length.
fn outside(d: &Descriptor, room: ResizeRoom, arena: usize) -> bool {
    let Range { start, end } = reach(d, room);
    (start < 0) | (end > arena as i64)
}

/// The bytes of a packet, room included, where they lie in an arena of this length.
fn check_arena(index: usize, d: &Descriptor, room: ResizeRoom, arena: usize) -> Result<Range<i64>, BatchError> {
    let Range { start, end } = reach(d, room);
    match outside(d, room, arena) {
        true => Err(BatchError::OutOfArena { index, offset: start, end, arena }),
        false => Ok(start..end),
    }
}

/// What a source wants back with a batch ([`Batch::into_source_data`]).
pub type SourceData = Box<dyn Any + Send + Sync>;

/// What a batch was made of ([`Batch::into_parts`]).
#[derive(Debug)]
pub struct BatchParts<T> {
    /// What its source wanted back.
    pub source_data: Box<T>,
    /// Where its packets lay in the end.
    pub descriptors: Vec<Descriptor>,
    /// One entry a packet, or none at all.
    pub metadata: Vec<Metadata>,
}

/// Packets on their way through a device: exclusive access to the bytes of each.
pub struct Batch {
    span: Arc<Span>,
    /// Of a batch that was cut from an arena: what gives that back.
    shared: Option<Arc<Shared>>,
    descriptors: Vec<Descriptor>,
    /// The descriptors as the source made them; empty where lengths cannot change.
    original: Vec<Descriptor>,
    metadata: Vec<Metadata>,
    room: ResizeRoom,
    /// Whether packets lie in any order, each in a frame of its own, and between them are others'.
    is_scattered: bool,
    source_data: Option<SourceData>,
    /// Where it is a part of a batch ([`Batch::split_off`]), which.
    cut: Option<split::Cut>,
}

/// In short: a batch may hold millions of descriptors, and errors that give one back get printed.
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
        shared: Option<Arc<Shared>>,
        descriptors: Vec<Descriptor>,
        metadata: Vec<Metadata>,
        room: ResizeRoom,
        source_data: Option<SourceData>,
    ) -> Batch {
        let original = if room == ResizeRoom::Both { descriptors.clone() } else { Vec::new() };
        Batch { span, shared, descriptors, original, metadata, room, is_scattered: false, source_data, cut: None }
    }

    /// A batch of packets that each lie in a frame of a ring's memory: an AF_XDP UMEM's, a mempool's. They may lie in any
    /// order. Metadata is as in [`BatchCutter::cut_batch`].
    ///
    /// `source_data` is dropped with the batch, and so may give the frames back then; [`Batch::into_source_data`] has it
    /// instead.
    ///
    /// # Errors
    /// [`BatchError::OutOfArena`] and [`BatchError::MetadataCount`]; the companion is dropped.
    ///
    /// # Safety
    /// No two packets (with [`ResizeRoom::Both`]: nor their rooms) share a 4-byte word, and until `source_data` is dropped, or given
    /// away, nobody else reads or writes any of these words.
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
        // All at once, without a branch a packet, and one by one only to say which.
        let outside = |is: bool, descriptor: &Descriptor| is | outside(descriptor, room, span.len());
        if descriptors.iter().fold(false, outside) {
            for (index, descriptor) in descriptors.iter().enumerate() {
                check_arena(index, descriptor, room, span.len())?;
            }
        }
        let batch = Batch::new(span, None, descriptors, metadata, room, Some(source_data));
        Ok(Batch { is_scattered: true, ..batch })
    }

    /// Whether packets lie in any order, each in a frame of its own ([`Batch::from_frames`]), and not from the first to the
    /// last with nothing of others between.
    pub fn is_scattered(&self) -> bool {
        self.is_scattered
    }

    /// Adds what the batch's source wants back with it.
    ///
    /// # Panics
    /// When it has something already: that may be what keeps its memory. When it is a part of a batch
    /// ([`Batch::split_off`]): that has what it has.
    pub fn set_source_data(&mut self, source_data: SourceData) {
        assert!(self.cut.is_none(), "a part of a batch has no companion of its own");
        assert!(self.source_data.is_none(), "a batch has one companion");
        self.source_data = Some(source_data);
    }

    /// What the batch's source wants back with it, in exchange for the batch.
    ///
    /// # Errors
    /// The batch, where it has none, or one of another type.
    pub fn into_source_data<T: Any>(self) -> Result<Box<T>, Box<Batch>> {
        self.into_parts().map(|parts| parts.source_data)
    }

    /// The same, and the lists that the batch was made of, for the source's next one.
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

    /// Copies packets into a batch of their own, with [`ResizeRoom::Both`]: for tests and small programs.
    ///
    /// # Errors
    /// The packets together are larger than an arena can be.
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

    /// Copies packets as a ring might deliver them, each into a frame of its own, the first into the last frame, with
    /// [`ResizeRoom::Both`]: for tests of what takes batches.
    ///
    /// # Errors
    /// As [`Batch::from_packets`].
    pub fn in_frames<P: AsRef<[u8]>>(packets: &[P]) -> Result<Batch, super::ArenaError> {
        let longest = packets.iter().map(|packet| packet.as_ref().len()).max().unwrap_or(0);
        let frame = (longest + 2 * RESIZE_ROOM as usize).next_multiple_of(4);
        let asked = frame.saturating_mul(packets.len());
        let mut arena = Arena::new(asked)?;
        let mut descriptors = Vec::with_capacity(packets.len());
        for (packet, frame) in packets.iter().map(AsRef::as_ref).zip(arena.chunks_exact_mut(frame.max(1)).rev()) {
            frame[RESIZE_ROOM as usize..][..packet.len()].copy_from_slice(packet);
        }
        for (number, packet) in packets.iter().map(AsRef::as_ref).enumerate() {
            let offset = asked - (number + 1) * frame + RESIZE_ROOM as usize;
            descriptors.push(Descriptor { offset: offset as u32, length: packet.len() as u32 });
        }
        let span = arena.span().clone();
        // SAFETY: no two packets have a frame in common, which begins and ends between words, and the companion is the only
        // handle on the memory.
        let batch = unsafe { Batch::from_frames(span, descriptors, Vec::new(), ResizeRoom::Both, Box::new(arena)) };
        Ok(batch.expect("laid out inside the arena"))
    }

    /// Packets with [`ResizeRoom::Both`] in the memory of a device that is not there: whoever reads or writes them on the host
    /// panics.
    #[cfg(test)]
    pub(crate) fn out_of_reach(device: &str, descriptors: Vec<Descriptor>) -> Batch {
        let view = super::DeviceView { device: device.into(), address: 1 << 40 };
        // SAFETY: nobody looks at the memory.
        let span = unsafe { Span::from_views(None, Some(view), 1 << 20, 2 << 20, Box::new(())) }.unwrap();
        // SAFETY: as above.
        unsafe { Batch::from_frames(span, descriptors, Vec::new(), ResizeRoom::Both, Box::new(())) }.unwrap()
    }

    /// The number of packets.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// Where the packets lie now.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors
    }

    /// Where the packets lay before any filter changed their lengths.
    pub fn original(&self) -> &[Descriptor] {
        if self.original.is_empty() { &self.descriptors } else { &self.original }
    }

    /// One entry a packet, or none at all (see [`BatchCutter::cut_batch`]).
    pub fn metadata(&self) -> &[Metadata] {
        &self.metadata
    }

    /// The metadata of packet `index`, made up as [`BatchCutter::cut_batch`] says where the batch has none.
    ///
    /// # Panics
    /// When there is no such packet.
    pub fn metadata_of(&self, index: usize) -> Metadata {
        match self.metadata.get(index) {
            Some(metadata) => *metadata,
            None => Metadata { wire_length: self.original()[index].length, ..Metadata::default() },
        }
    }

    /// Whether the packets, as they lie now, have room for length changes. Where a filter has moved an
    /// end into a packet's room, less than [`RESIZE_ROOM`] is left there: such a batch has none until its
    /// packets are laid out anew.
    pub fn room(&self) -> ResizeRoom {
        // Without room there is no `original`, and nothing has grown.
        let grew = self.descriptors.iter().zip(&self.original).any(|(now, source)| {
            let end = |d: &Descriptor| u64::from(d.offset) + u64::from(d.length);
            now.offset < source.offset || end(now) > end(source)
        });
        if grew { ResizeRoom::None } else { self.room }
    }

    /// The memory that the packets lie in. What a device may do with it: read and write the bytes
    /// of this batch's packets (and their rooms), while it holds the batch, and read (not rely on)
    /// everything up to [`READABLE_PAST_END`](super::READABLE_PAST_END) bytes past the end.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }

    /// The bytes of packet `index`.
    ///
    /// # Panics
    /// When there is no such packet.
    pub fn packet(&self, index: usize) -> &[u8] {
        let d = self.descriptors[index];
        // SAFETY: `cut_batch` (and `resize`) checked that the range lies in the span and gave its words
        // to this batch alone; `&self` keeps writers (`packet_mut`, a device, which owns the
        // batch) away.
        unsafe { bytes(&self.span, d.offset as usize, d.length as usize) }
    }

    /// Bytes of the arena from one packet of this batch to another, for devices that get all of them as one copy.
    ///
    /// # Panics
    /// When the range does not lie in the words from the first packet's to the last one's, rooms included, or the packets
    /// are scattered.
    pub(crate) fn bytes(&self, range: Range<u64>) -> &[u8] {
        assert!(!self.is_scattered, "others' packets lie between");
        // Where they lay at first: what has been moved meanwhile lies in its room.
        let margin = if self.room == ResizeRoom::Both { RESIZE_ROOM } else { 0 };
        let mut lying = self.original().iter().filter(|d| d.length > 0 || margin > 0);
        let Some(first) = lying.next() else {
            assert!(range.is_empty(), "outside the batch");
            return &[];
        };
        let last = lying.next_back().unwrap_or(first);
        let start = u64::from(first.offset - margin) & !3;
        let end = (u64::from(last.offset) + u64::from(last.length) + u64::from(margin) + 3) & !3;
        assert!(range.is_empty() || (start <= range.start && range.end <= end), "outside the batch");
        // SAFETY: the range lies in the span, as the packets and their rooms do (`cut_batch`), but for the last word's
        // end, behind which a span is readable too. Between the packets lies nothing of other batches (a carver hands
        // out an arena from its start to its end, and no two packets share a word), so nobody writes there while we
        // hold the batch.
        unsafe {
            let from = self.span.as_ptr().add(range.start as usize);
            std::slice::from_raw_parts(from, (range.end - range.start) as usize)
        }
    }

    /// The bytes of packet `index`, for writing.
    ///
    /// # Panics
    /// When there is no such packet.
    pub fn packet_mut(&mut self, index: usize) -> &mut [u8] {
        let d = self.descriptors[index];
        // SAFETY: as for `packet`; `&mut self` makes the access unique.
        unsafe { bytes_mut(&self.span, d.offset as usize, d.length as usize) }
    }

    /// The packets' bytes in order.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        (0..self.len()).map(|i| self.packet(i))
    }

    /// Keeps the first `len` packets and gives up the others.
    pub fn truncate(&mut self, len: usize) {
        self.descriptors.truncate(len);
        self.original.truncate(len);
        self.metadata.truncate(len);
    }

    /// Moves the packets' ends to where a filter left them.
    ///
    /// # Errors
    /// [`BatchError::OutOfRoom`] when a packet leaves its room, or the batch has none;
    /// [`BatchError::MetadataCount`] when it is not one descriptor a packet. Nothing changes then.
    pub fn resize(&mut self, descriptors: Vec<Descriptor>) -> Result<(), BatchError> {
        if descriptors.len() != self.descriptors.len() {
            return Err(BatchError::MetadataCount { packets: self.descriptors.len(), metadata: descriptors.len() });
        }
        self.check_room(0, &descriptors)?;
        self.descriptors = descriptors;
        Ok(())
    }

    /// Moves the ends of some packets, from packet `first` on, as [`Batch::resize`] does of all.
    ///
    /// # Errors
    /// As there.
    pub fn resize_from(&mut self, first: usize, descriptors: &[Descriptor]) -> Result<(), BatchError> {
        let packets = self.descriptors.len().saturating_sub(first);
        if descriptors.len() > packets {
            return Err(BatchError::MetadataCount { packets, metadata: descriptors.len() });
        }
        self.check_room(first, descriptors)?;
        self.descriptors[first..first + descriptors.len()].copy_from_slice(descriptors);
        Ok(())
    }

    fn check_room(&self, first: usize, descriptors: &[Descriptor]) -> Result<(), BatchError> {
        let margin = if self.room == ResizeRoom::Both { u64::from(RESIZE_ROOM) } else { 0 };
        for (index, (new, old)) in descriptors.iter().zip(&self.original()[first..]).enumerate() {
            let (offset, end) = (u64::from(new.offset), u64::from(new.offset) + u64::from(new.length));
            let (start, last) = (u64::from(old.offset), u64::from(old.offset) + u64::from(old.length));
            if offset + margin < start || end > last + margin {
                return Err(BatchError::OutOfRoom { index: first + index, offset, end });
            }
        }
        Ok(())
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
        let mut carver = BatchCutter::new(Arena::new(64).unwrap(), None);
        assert!(matches!(
            carver.cut_batch(vec![d(0, 5), d(5, 3)], vec![], ResizeRoom::None),
            Err(BatchError::Overlap { index: 1, .. })
        ));
        let first = carver.cut_batch(vec![d(0, 5), d(8, 4)], vec![], ResizeRoom::None).unwrap();
        assert_eq!(first.len(), 2);
        assert!(matches!(carver.cut_batch(vec![d(8, 4)], vec![], ResizeRoom::None), Err(BatchError::Overlap { .. })));
        assert!(carver.cut_batch(vec![d(12, 52)], vec![], ResizeRoom::None).is_ok());
    }

    #[test]
    fn what_lies_outside_is_refused_room_included() {
        let mut carver = BatchCutter::new(Arena::new(512).unwrap(), None);
        for (bad, room) in [
            (d(512, 1), ResizeRoom::None),
            (d(500, 13), ResizeRoom::None),
            (d(u32::MAX, u32::MAX), ResizeRoom::None),
            (d(127, 10), ResizeRoom::Both),
            (d(128, 257), ResizeRoom::Both),
        ] {
            assert!(matches!(carver.cut_batch(vec![bad], vec![], room), Err(BatchError::OutOfArena { .. })), "{bad:?}");
        }
        assert!(carver.cut_batch(vec![d(128, 256)], vec![], ResizeRoom::Both).is_ok());
    }

    #[test]
    fn a_filter_may_move_the_ends_within_the_room_only() {
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
    fn a_batch_that_grew_has_no_room() {
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

    /// Says when it is dropped.
    struct Frames(std::sync::mpsc::Sender<&'static str>, &'static str);

    impl Drop for Frames {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn frames_go_back_with_their_batch_or_in_exchange_for_it() {
        let (home, returned) = channel();
        let span = Arena::new(4096).unwrap().span().clone();
        let batch = |name, at: &[(u32, u32)], room| {
            let descriptors = at.iter().map(|&(offset, length)| d(offset, length)).collect();
            // SAFETY: nobody looks at the packets.
            unsafe { Batch::from_frames(span.clone(), descriptors, vec![], room, Box::new(Frames(home.clone(), name))) }
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
        let BatchParts { source_data: frames, descriptors, metadata } = second.into_parts::<Frames>().unwrap();
        assert_eq!((descriptors, metadata), (vec![d(0, 60)], vec![]));
        assert!(returned.try_recv().is_err());
        drop(frames);
        assert_eq!(returned.try_recv(), Ok("second"));

        let mut other = Batch::from_packets(&[[7u8; 60]]).unwrap();
        other.set_source_data(Box::new(vec![5u32]));
        assert_eq!(*other.into_source_data::<Vec<u32>>().unwrap(), [5]);
    }

    #[test]
    fn an_arena_goes_home_with_its_last_batch() {
        let (home, arenas) = channel();
        let mut carver = BatchCutter::new(Arena::new(4096).unwrap(), Some(home));
        let one = carver.cut_batch(vec![d(0, 64)], vec![], ResizeRoom::None).unwrap();
        let two = carver.cut_batch(vec![d(64, 64)], vec![], ResizeRoom::None).unwrap();
        drop(carver);
        drop(one);
        assert!(arenas.try_recv().is_err());
        drop(two);
        assert!(arenas.try_recv().is_ok());
    }
}
