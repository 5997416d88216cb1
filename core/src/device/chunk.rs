//! Splitting batches into chunks that fit a device's bindings, and mapping packet locations between
//! the batch and the arena that the kernel sees.

use std::ops::Range;

use super::host_threads::{HostThreads, PART_PACKETS};
use crate::packet::{Batch, Descriptor, PacketsMut, READABLE_PAST_END, RESIZE_ROOM, gather};
use crate::program::Program;

/// Bytes behind the last packet that a kernel may read, because it loads two words to get one that
/// straddles them, and that a binding therefore covers.
pub const OVERREAD_BYTES: u64 = READABLE_PAST_END as u64;

/// Where the kernel finds the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketLayout {
    /// The kernel accesses no packet bytes.
    NoAccess,
    /// Packets are in the batch's own memory, which the device accesses in place.
    InPlace,
    /// Packets are in a copy of the batch's memory, from the first packet to the last.
    Copied,
    /// Packets are copied one by one to a buffer, at 4-byte-aligned offsets.
    Packed,
    /// Packets are rows of equal stride in a buffer, each the window of a packet rounded up to
    /// whole words.
    Rows,
}

impl PacketLayout {
    /// Whether the kernel works on a copy instead of the batch's memory.
    pub fn is_copy(self) -> bool {
        matches!(self, PacketLayout::Copied | PacketLayout::Packed | PacketLayout::Rows)
    }
}

/// Upper bounds of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct ChunkLimits {
    /// Maximum size of a storage binding in bytes.
    pub binding: u64,
    /// Required alignment of a binding's offset in its buffer, in bytes.
    pub alignment: u64,
    /// Maximum number of packets.
    pub packets: usize,
}

/// Which packet bytes a filter may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessNeeds {
    /// The window: number of bytes from a packet's start that the filter may access.
    pub window: u32,
    /// Whether the filter may resize packets into their headroom and tailroom.
    pub room: bool,
}

impl AccessNeeds {
    /// The access needs of a program.
    pub fn of_program(program: &Program) -> AccessNeeds {
        let facts = program.facts();
        // The windows count from the packet's original start, so they do not bound what a filter
        // that moves the start accesses.
        let window =
            if facts.changes_length { u32::MAX } else { facts.reads.max_bytes().max(facts.writes.max_bytes()) };
        AccessNeeds { window, room: facts.changes_length }
    }

    /// Headroom, and tailroom, of each packet in bytes.
    pub(super) fn room_bytes(self) -> u64 {
        if self.room { RESIZE_ROOM.into() } else { 0 }
    }

    /// Number of bytes of a packet of `length` bytes that have to be copied.
    pub fn copied_len(self, length: u32) -> u32 {
        length.min(self.window)
    }

    /// Number of bytes that a packet of `length` bytes takes in a packed layout, room included.
    pub(super) fn packed_size(self, length: u32) -> u64 {
        (u64::from(self.copied_len(length)) + 2 * self.room_bytes() + 3) & !3
    }
}

/// A range of a batch's packets that one set of bindings can cover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The packets, by index.
    pub packets: Range<usize>,
    /// The bytes that hold the packets, and their rooms if the filter may use them: in the batch's
    /// memory, or in the buffer of a packed or row layout.
    pub bytes: Range<u64>,
}

/// Error: a packet exceeds the largest chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// The packet's index in the batch.
    pub index: usize,
    /// The packet's length in bytes.
    pub length: u32,
}

/// The byte range from the first word to the last of these packets, rooms included; `None` if all
/// of them are empty.
pub fn extent(batch: &Batch, packets: Range<usize>, needs: AccessNeeds) -> Option<Range<u64>> {
    let mut occupied =
        batch.descriptors()[packets].iter().filter(|d| d.length > 0 || needs.room).map(|d| word_range(d, needs));
    let first = occupied.next()?;
    if batch.is_scattered() {
        return Some(occupied.fold(first, hull));
    }
    // These packets ascend in memory.
    let last = occupied.next_back().unwrap_or(first.clone());
    Some(first.start..last.end)
}

fn hull(a: Range<u64>, b: Range<u64>) -> Range<u64> {
    a.start.min(b.start)..a.end.max(b.end)
}

/// The word-aligned byte range of a packet with its room. Only meaningful for packets with bytes:
/// the offset of an empty one is arbitrary.
fn word_range(d: &Descriptor, needs: AccessNeeds) -> Range<u64> {
    let (start, room) = (u64::from(d.offset), needs.room_bytes());
    (start - room) & !3..(start + u64::from(d.length) + room + 3) & !3
}

/// Splits a batch into chunks, which are appended to `chunks`. Each packet is in exactly one chunk,
/// in order; an empty batch has none.
pub fn split_batch(
    batch: &Batch,
    layout: PacketLayout,
    needs: AccessNeeds,
    limits: ChunkLimits,
    chunks: &mut Vec<Chunk>,
) -> Result<(), TooLarge> {
    let descriptors = batch.descriptors();
    if layout == PacketLayout::NoAccess {
        let starts = (0..descriptors.len()).step_by(limits.packets);
        let ranges = starts.map(|start| start..(start + limits.packets).min(descriptors.len()));
        chunks.extend(ranges.map(|packets| Chunk { packets, bytes: 0..0 }));
        return Ok(());
    }
    let (alignment, capacity) = (alignment(layout, limits), limits.binding - OVERREAD_BYTES);
    if layout == PacketLayout::Rows {
        let stride = gather::stride(needs.window) as u64;
        let max_packets = usize::try_from(capacity / stride).unwrap_or(usize::MAX).min(limits.packets);
        if let (0, Some(first)) = (max_packets, descriptors.first()) {
            return Err(TooLarge { index: 0, length: first.length });
        }
        let starts = (0..descriptors.len()).step_by(max_packets.max(1));
        let ranges = starts.map(|start| start..(start + max_packets).min(descriptors.len()));
        chunks.extend(ranges.map(|packets| Chunk { bytes: 0..packets.len() as u64 * stride, packets }));
        return Ok(());
    }
    for (number, group) in descriptors.chunks(limits.packets).enumerate() {
        let first = number * limits.packets;
        if layout == PacketLayout::InPlace && limits.binding == u64::MAX {
            // Without a limit it does not matter where in the memory the packets are.
            let packets = first..first + group.len();
            chunks.push(Chunk { packets, bytes: 0..batch.span().len() as u64 });
            continue;
        }
        // The common case takes no pass over the packets, or one without branches.
        let bytes = if layout == PacketLayout::Packed {
            0..group.iter().map(|d| needs.packed_size(d.length)).sum()
        } else {
            let all = extent(batch, first..first + group.len(), needs).unwrap_or(0..0);
            all.start / alignment * alignment..all.end
        };
        if bytes.end - bytes.start <= capacity {
            chunks.push(Chunk { packets: first..first + group.len(), bytes });
            continue;
        }
        split_by_packet(group, first, layout, needs, limits, chunks)?;
    }
    Ok(())
}

/// Appends packets one by one; the first has index `first` in the batch.
fn split_by_packet(
    descriptors: &[Descriptor],
    first: usize,
    layout: PacketLayout,
    needs: AccessNeeds,
    limits: ChunkLimits,
    chunks: &mut Vec<Chunk>,
) -> Result<(), TooLarge> {
    let (alignment, capacity) = (alignment(layout, limits), limits.binding - OVERREAD_BYTES);
    for (index, d) in (first..).zip(descriptors) {
        let is_empty = d.length == 0 && !needs.room;
        // The byte range of a chunk that starts with this packet.
        let alone = if layout == PacketLayout::Packed {
            0..needs.packed_size(d.length)
        } else if is_empty {
            0..0
        } else {
            let word_range = word_range(d, needs);
            word_range.start / alignment * alignment..word_range.end
        };
        if let Some(chunk) = chunks.last_mut().filter(|chunk| chunk.packets.len() < limits.packets) {
            let all = chunk.bytes.clone();
            let both = match layout {
                PacketLayout::Packed => all.start..all.end + alone.end,
                _ if is_empty => all,
                // A chunk of only empty packets so far starts with this one.
                _ if all.is_empty() => alone.clone(),
                _ => hull(all, alone.clone()),
            };
            if both.end - both.start <= capacity {
                chunk.packets.end = index + 1;
                chunk.bytes = both;
                continue;
            }
        }
        if alone.end - alone.start > capacity {
            return Err(TooLarge { index, length: d.length });
        }
        chunks.push(Chunk { packets: index..index + 1, bytes: alone });
    }
    Ok(())
}

/// Alignment of a chunk's start: that of bindings for packets in place, whole words for copies.
fn alignment(layout: PacketLayout, limits: ChunkLimits) -> u64 {
    if layout == PacketLayout::InPlace { limits.alignment.max(4) } else { 4 }
}

/// The packets of a chunk as the kernel sees them: offsets count from the start of the binding.
pub fn kernel_descriptors<'a>(
    batch: &'a Batch,
    chunk: &'a Chunk,
    layout: PacketLayout,
    needs: AccessNeeds,
) -> impl Iterator<Item = Descriptor> + 'a {
    let packed = matches!(layout, PacketLayout::Packed | PacketLayout::Rows);
    let base = if layout == PacketLayout::NoAccess { 0 } else { chunk.bytes.start as u32 };
    // Without packet access nothing is bound, so no offset is out of bounds.
    let size = if layout == PacketLayout::NoAccess { u64::MAX } else { chunk.bytes.end - chunk.bytes.start };
    let room = needs.room_bytes() as u32;
    let row = if layout == PacketLayout::Rows { gather::stride(needs.window) as u32 } else { 0 };
    let mut at = room;
    batch.descriptors()[chunk.packets.clone()].iter().map(move |d| {
        if !packed {
            // An empty packet may lie outside the chunk. Kernels may load readable bytes behind a
            // packet's start before they check its length, so place it at the chunk's start.
            let within = d.offset.checked_sub(base).filter(|&offset| u64::from(offset) <= size);
            debug_assert!(within.is_some() || d.length == 0, "a chunk contains its packets");
            return Descriptor { offset: within.unwrap_or(0), length: d.length };
        }
        let offset = at;
        at += if row > 0 { row } else { needs.packed_size(d.length) as u32 };
        Descriptor { offset, length: d.length }
    })
}

/// Packets in a packed layout, the first of which takes the bytes from `start` on.
pub(super) fn packed_descriptors(
    packets: &[Descriptor],
    needs: AccessNeeds,
    start: u32,
) -> impl Iterator<Item = Descriptor> {
    let mut at = start + needs.room_bytes() as u32;
    packets.iter().map(move |d| {
        let offset = at;
        at += needs.packed_size(d.length) as u32;
        Descriptor { offset, length: d.length }
    })
}

/// Translates the descriptors that a kernel left, `after`, back to the batch. `before` are the
/// packets in the batch and `in_kernel` those in the kernel's arena, both from before the launch.
pub fn translate_descriptors(
    before: &[Descriptor],
    in_kernel: impl Iterator<Item = Descriptor>,
    after: impl Iterator<Item = Descriptor>,
) -> impl Iterator<Item = Descriptor> {
    // A packet's start moves by the same distance in either memory.
    before.iter().zip(in_kernel).zip(after).map(|((before, in_kernel), after)| Descriptor {
        offset: before.offset.wrapping_add(after.offset.wrapping_sub(in_kernel.offset)),
        length: after.length,
    })
}

/// Where the kernel's copy of a chunk's packets is.
#[derive(Debug, Clone, Copy)]
pub enum CopiedPackets<'a> {
    /// In rows this many bytes apart.
    Rows(usize),
    /// At the batch's offsets, which count from this one.
    AtBatchOffsets(u64),
    /// At these locations in the copy, from before the launch, when the packets in the batch were
    /// at the first ones.
    AtDescriptors(&'a [Descriptor], &'a [Descriptor]),
}

impl CopiedPackets<'_> {
    fn split_at(self, packets: usize) -> (Self, Self) {
        let CopiedPackets::AtDescriptors(before, in_kernel) = self else { return (self, self) };
        let ((before, before_rest), (in_kernel, rest)) = (before.split_at(packets), in_kernel.split_at(packets));
        (CopiedPackets::AtDescriptors(before, in_kernel), CopiedPackets::AtDescriptors(before_rest, rest))
    }
}

/// Copies packets from the kernel's copy, `from`, back into the batch, whose descriptors are
/// already updated, with all of the threads if there are many. At most `window` bytes of each may
/// have changed.
pub fn write_back(packets: PacketsMut<'_>, copied: CopiedPackets<'_>, window: u32, from: &[u8], threads: &HostThreads) {
    let parts = packets.descriptors().len() / PART_PACKETS;
    threads.run(parts, |has_threads| write_part_back(packets, copied, window, from, has_threads));
}

fn write_part_back(packets: PacketsMut<'_>, copied: CopiedPackets<'_>, window: u32, from: &[u8], has_threads: bool) {
    let descriptors = packets.descriptors();
    if has_threads && descriptors.len() >= 2 * PART_PACKETS {
        let half = descriptors.len() / 2;
        let ((packets, other_packets), (copied, other_copied)) = (packets.split_at(half), copied.split_at(half));
        let other_from = if let CopiedPackets::Rows(stride) = copied { &from[half * stride..] } else { from };
        rayon::join(
            || write_part_back(packets, copied, window, from, true),
            || write_part_back(other_packets, other_copied, window, other_from, true),
        );
        return;
    }
    match copied {
        CopiedPackets::Rows(stride) => gather::scatter(packets, window, from, stride),
        CopiedPackets::AtBatchOffsets(start) => write_each(packets, window, from, |_, d| d.offset - start as u32),
        // A packet's start has moved by the same distance in either memory.
        CopiedPackets::AtDescriptors(before, in_kernel) => write_each(packets, window, from, |index, d| {
            in_kernel[index].offset.wrapping_add(d.offset.wrapping_sub(before[index].offset))
        }),
    }
}

/// Copies packets that are at `source` in the copy, given their index and location.
fn write_each(mut packets: PacketsMut<'_>, window: u32, from: &[u8], source: impl Fn(usize, &Descriptor) -> u32) {
    let descriptors = packets.descriptors();
    for ((index, d), packet) in descriptors.iter().enumerate().zip(packets.iter_mut()) {
        let length = packet.len().min(window as usize);
        // The offset of an empty packet is arbitrary.
        if length > 0 {
            packet[..length].copy_from_slice(&from[source(index, d) as usize..][..length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Arena, BatchCutter, ResizeRoom};

    const WHOLE: AccessNeeds = AccessNeeds { window: u32::MAX, room: false };

    fn split_batch(
        batch: &Batch,
        layout: PacketLayout,
        needs: AccessNeeds,
        limits: ChunkLimits,
    ) -> Result<Vec<Chunk>, TooLarge> {
        let mut chunks = Vec::new();
        super::split_batch(batch, layout, needs, limits, &mut chunks).map(|()| chunks)
    }

    fn batch(descriptors: &[(u32, u32)], room: ResizeRoom) -> Batch {
        let descriptors = descriptors.iter().map(|&(offset, length)| Descriptor { offset, length }).collect();
        BatchCutter::new(Arena::new(1 << 16).unwrap(), None).cut_batch(descriptors, vec![], room).unwrap()
    }

    fn limits(binding: u64, alignment: u64, packets: usize) -> ChunkLimits {
        ChunkLimits { binding: binding + OVERREAD_BYTES, alignment, packets }
    }

    fn chunk(packets: Range<usize>, bytes: Range<u64>) -> Chunk {
        Chunk { packets, bytes }
    }

    #[test]
    fn a_batch_that_fits_is_one_chunk() {
        let b = batch(&[(70, 30), (100, 1)], ResizeRoom::None);
        let split_batch = |layout| split_batch(&b, layout, WHOLE, limits(100, 16, 10));
        assert_eq!(split_batch(PacketLayout::InPlace), Ok(vec![chunk(0..2, 64..104)]));
        assert_eq!(split_batch(PacketLayout::Copied), Ok(vec![chunk(0..2, 68..104)]));
        assert_eq!(split_batch(PacketLayout::Packed), Ok(vec![chunk(0..2, 0..36)]));
        assert_eq!(split_batch(PacketLayout::NoAccess), Ok(vec![chunk(0..2, 0..0)]));
    }

    #[test]
    fn an_empty_batch_has_no_chunks() {
        let b = batch(&[], ResizeRoom::None);
        for layout in [
            PacketLayout::InPlace,
            PacketLayout::Copied,
            PacketLayout::Packed,
            PacketLayout::Rows,
            PacketLayout::NoAccess,
        ] {
            let needs = AccessNeeds { window: 54, ..WHOLE };
            assert_eq!(split_batch(&b, layout, needs, limits(100, 16, 10)), Ok(vec![]));
        }
    }

    #[test]
    fn chunks_respect_binding_size_alignment_and_packet_count() {
        let b = batch(&[(0, 40), (40, 40), (80, 40), (120, 8), (60000, 4)], ResizeRoom::None);
        let in_place = |binding, packets| split_batch(&b, PacketLayout::InPlace, WHOLE, limits(binding, 16, packets));
        // 40 is not a multiple of 16: the second chunk's binding starts at 32.
        assert_eq!(in_place(88, 10), Ok(vec![chunk(0..2, 0..80), chunk(2..4, 80..128), chunk(4..5, 60000..60004)]));
        assert_eq!(
            in_place(48, 10),
            Ok(vec![chunk(0..1, 0..40), chunk(1..2, 32..80), chunk(2..4, 80..128), chunk(4..5, 60000..60004)])
        );
        assert_eq!(in_place(47, 10), Err(TooLarge { index: 1, length: 40 }));
        assert_eq!(in_place(1 << 16, 2), Ok(vec![chunk(0..2, 0..80), chunk(2..4, 80..128), chunk(4..5, 60000..60004)]));
    }

    #[test]
    fn empty_packets_do_not_extend_chunks() {
        // The first packet, which is empty, lies behind the others.
        let b = batch(&[(9000, 0), (64, 8), (0, 0), (72, 8), (9000, 8)], ResizeRoom::None);
        for binding in [16, 1 << 16] {
            let chunks = split_batch(&b, PacketLayout::InPlace, WHOLE, limits(binding, 16, 10)).unwrap();
            assert_eq!(chunks.first().unwrap().packets.start, 0);
            assert_eq!(chunks.last().unwrap().packets.end, 5);
            let in_kernel: Vec<_> =
                chunks.iter().flat_map(|p| kernel_descriptors(&b, p, PacketLayout::InPlace, WHOLE)).collect();
            for (chunk, index) in chunks.iter().flat_map(|p| p.packets.clone().map(move |i| (p, i))) {
                if b.descriptors()[index].length > 0 {
                    assert_eq!(
                        u64::from(in_kernel[index].offset) + chunk.bytes.start,
                        u64::from(b.descriptors()[index].offset)
                    );
                }
            }
        }
    }

    /// Kernels may load readable bytes behind a packet's start before they check its length.
    #[test]
    fn empty_packets_are_placed_inside_their_chunk() {
        let b = batch(&[(9000, 0), (64, 8), (0, 0), (72, 8), (9000, 8)], ResizeRoom::None);
        for layout in [PacketLayout::InPlace, PacketLayout::Copied] {
            for binding in [16, 1 << 16] {
                for chunk in split_batch(&b, layout, WHOLE, limits(binding, 16, 10)).unwrap() {
                    let size = chunk.bytes.end - chunk.bytes.start;
                    for (in_kernel, index) in kernel_descriptors(&b, &chunk, layout, WHOLE).zip(chunk.packets.clone()) {
                        let end = u64::from(in_kernel.offset) + u64::from(in_kernel.length);
                        assert!(end <= size, "{layout:?}, {binding}: packet {index}: {in_kernel:?} of {size} bytes");
                        assert_eq!(in_kernel.length, b.descriptors()[index].length);
                    }
                }
            }
        }
    }

    #[test]
    fn scattered_packets_are_bound_from_the_lowest_to_the_highest() {
        // Frames of 1,756 bytes, rooms included, the first packet in the last frame.
        let b = Batch::in_frames(&[&[0; 60][..], &[0; 60], &[], &[0; 1500]]).unwrap();
        assert_eq!(extent(&b, 0..4, WHOLE), Some(128..3 * 1756 + 128 + 60));
        assert_eq!(extent(&b, 1..4, WHOLE), Some(128..2 * 1756 + 128 + 60));
        assert_eq!(extent(&b, 1..4, AccessNeeds { room: true, ..WHOLE }), Some(0..2 * 1756 + 316));
        let in_place = |binding| split_batch(&b, PacketLayout::InPlace, WHOLE, limits(binding, 64, 10));
        assert_eq!(in_place(1 << 16), Ok(vec![chunk(0..4, 128..5456)]));
        assert_eq!(in_place(4000), Ok(vec![chunk(0..3, 3640 / 64 * 64..5456), chunk(3..4, 128..1628)]));
        assert_eq!(in_place(1499), Err(TooLarge { index: 3, length: 1500 }));
    }

    #[test]
    fn packed_chunks_hold_windows_or_whole_packets_with_room() {
        let b = batch(&[(1000, 100), (3000, 10)], ResizeRoom::Both);
        let needs = AccessNeeds { window: 54, room: false };
        let chunks = split_batch(&b, PacketLayout::Packed, needs, limits(1000, 16, 10)).unwrap();
        assert_eq!(chunks, [chunk(0..2, 0..56 + 12)]);
        let at = |needs| {
            kernel_descriptors(&b, &chunks[0], PacketLayout::Packed, needs)
                .map(|d| (d.offset, d.length))
                .collect::<Vec<_>>()
        };
        assert_eq!(at(needs), [(0, 100), (56, 10)]);
        let needs = AccessNeeds { window: u32::MAX, room: true };
        let chunks = split_batch(&b, PacketLayout::Packed, needs, limits(1000, 16, 10)).unwrap();
        assert_eq!(chunks, [chunk(0..2, 0..356 + 268)]);
        assert_eq!(at(needs), [(128, 100), (356 + 128, 10)]);
    }

    #[test]
    fn rows_have_equal_stride_whatever_the_packet_lengths() {
        let b = batch(&[(1000, 100), (3000, 10), (4000, 0), (5000, 54)], ResizeRoom::None);
        let needs = AccessNeeds { window: 54, room: false };
        // 54 bytes are 14 words.
        let chunks = |binding, packets| split_batch(&b, PacketLayout::Rows, needs, limits(binding, 16, packets));
        assert_eq!(chunks(1000, 10), Ok(vec![chunk(0..4, 0..224)]));
        assert_eq!(chunks(1000, 3), Ok(vec![chunk(0..3, 0..168), chunk(3..4, 0..56)]));
        assert_eq!(chunks(112, 10), Ok(vec![chunk(0..2, 0..112), chunk(2..4, 0..112)]));
        assert_eq!(chunks(55, 10), Err(TooLarge { index: 0, length: 100 }));
        let chunk = chunk(1..4, 0..168);
        let in_kernel = kernel_descriptors(&b, &chunk, PacketLayout::Rows, needs);
        assert_eq!(in_kernel.map(|d| (d.offset, d.length)).collect::<Vec<_>>(), [(0, 10), (56, 0), (112, 54)]);
    }

    #[test]
    fn threads_write_back_what_the_kernel_left() {
        let mut random = crate::testing::Random(9);
        let count = 5 * PART_PACKETS + 77;
        let mut packets: Vec<Vec<u8>> = (0..count).map(|_| vec![1; random.below(40) as usize]).collect();
        let needs = AccessNeeds { window: 24, room: false };
        let limits = ChunkLimits { binding: 1 << 30, alignment: 4, packets: usize::MAX };
        for layout in [PacketLayout::Rows, PacketLayout::Packed, PacketLayout::Copied] {
            for (threads, window) in [(1, 24), (2, 7), (3, 24)] {
                let mut batch = Batch::from_packets(&packets).unwrap();
                let mut chunks = Vec::new();
                super::split_batch(&batch, layout, needs, limits, &mut chunks).unwrap();
                let before = batch.descriptors().to_vec();
                let in_kernel: Vec<_> = kernel_descriptors(&batch, &chunks[0], layout, needs).collect();
                let bytes: Vec<u8> = (0..chunks[0].bytes.end).map(|_| random.below(256) as u8).collect();
                for (packet, d) in packets.iter_mut().zip(&in_kernel) {
                    let changed = packet.len().min(window as usize);
                    packet[..changed].copy_from_slice(&bytes[d.offset as usize..][..changed]);
                }
                let copied = match layout {
                    PacketLayout::Rows => CopiedPackets::Rows(gather::stride(needs.window)),
                    PacketLayout::Copied => CopiedPackets::AtBatchOffsets(chunks[0].bytes.start),
                    _ => CopiedPackets::AtDescriptors(&before, &in_kernel),
                };
                let threads = HostThreads::new(std::num::NonZeroUsize::new(threads));
                write_back(batch.packets_mut(0..count), copied, window, &bytes, &threads);
                assert!(batch.packets().eq(&packets), "{layout:?}");
            }
        }
    }
}
