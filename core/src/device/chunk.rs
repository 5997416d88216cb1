//! How a batch is cut into pieces that each fit a device's bindings, and where its packets lie in
//! what the kernel sees as the arena.

use std::ops::Range;

use crate::packet::{Batch, Descriptor, READABLE_PAST_END, RESIZE_ROOM, gather};
use crate::program::Program;

/// Bytes behind the last packet that a kernel may look at (two words are loaded to get one that
/// straddles them), and that a binding therefore covers.
pub const OVERREAD_BYTES: u64 = READABLE_PAST_END as u64;

/// Where a kernel finds the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketLayout {
    /// Nowhere: it looks at none.
    NoAccess,
    /// In the batch's own memory, which the device reads in place.
    InPlace,
    /// In a copy of that memory, from the first packet to the last.
    Copied,
    /// In a buffer into which each packet is copied by itself, at multiples of 4 bytes.
    Packed,
    /// The same, in rows of one length: the window, in whole words.
    Rows,
}

impl PacketLayout {
    /// Whether the kernel works on a copy, which is not the batch's memory.
    pub fn is_copy(self) -> bool {
        matches!(self, PacketLayout::Copied | PacketLayout::Packed | PacketLayout::Rows)
    }
}

/// What bounds a piece.
#[derive(Debug, Clone, Copy)]
pub struct ChunkLimits {
    /// Bytes that a storage binding may have.
    pub binding: u64,
    /// What a binding's offset in its buffer must be a multiple of.
    pub alignment: u64,
    /// Number of packets.
    pub packets: usize,
}

/// What a filter does, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessNeeds {
    /// Bytes of each packet, from its start, that the filter may touch.
    pub window: u32,
    /// Whether packets may grow into their room.
    pub room: bool,
}

impl AccessNeeds {
    /// What a program needs.
    pub fn of_program(program: &Program) -> AccessNeeds {
        let facts = program.facts();
        // What a filter adds to a packet, and what it finds there, is not bounded by the windows,
        // which are about the packet as it arrived.
        let window =
            if facts.changes_length { u32::MAX } else { facts.reads.max_bytes().max(facts.writes.max_bytes()) };
        AccessNeeds { window, room: facts.changes_length }
    }

    /// Bytes before and behind a packet that are its own.
    pub(super) fn margin(self) -> u64 {
        if self.room { RESIZE_ROOM.into() } else { 0 }
    }

    /// Bytes of a packet that have to be copied.
    pub fn of(self, length: u32) -> u32 {
        length.min(self.window)
    }
}

/// A part of a batch that one set of bindings can show a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Which packets.
    pub packets: Range<usize>,
    /// The bytes that hold them: of the batch's memory, or, packed, of the buffer. Packets' rooms
    /// are included where the filter may use them.
    pub bytes: Range<u64>,
}

/// A packet too large for any piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// Its place in the batch.
    pub index: usize,
    /// Its length in bytes.
    pub length: u32,
}

/// The bytes from the first word of these packets to the last, rooms included; `None` where none of them has any.
pub fn extent(batch: &Batch, packets: Range<usize>, needs: AccessNeeds) -> Option<Range<u64>> {
    let mut seen =
        batch.descriptors()[packets].iter().filter(|d| d.length > 0 || needs.room).map(|d| word_range(d, needs));
    let first = seen.next()?;
    if batch.is_scattered() {
        return Some(seen.fold(first, hull));
    }
    // They ascend in memory.
    let last = seen.next_back().unwrap_or(first.clone());
    Some(first.start..last.end)
}

fn hull(a: Range<u64>, b: Range<u64>) -> Range<u64> {
    a.start.min(b.start)..a.end.max(b.end)
}

/// The words of the span that a packet lies in. A packet without bytes may be anywhere, and lies
/// in none.
fn word_range(d: &Descriptor, needs: AccessNeeds) -> Range<u64> {
    let (start, margin) = (u64::from(d.offset), needs.margin());
    (start - margin) & !3..(start + u64::from(d.length) + margin + 3) & !3
}

/// Cuts a batch. Every packet is in exactly one piece, in order; an empty batch has no piece.
pub fn split_batch(
    batch: &Batch,
    layout: PacketLayout,
    needs: AccessNeeds,
    bounds: ChunkLimits,
) -> Result<Vec<Chunk>, TooLarge> {
    let descriptors = batch.descriptors();
    if layout == PacketLayout::NoAccess {
        let starts = (0..descriptors.len()).step_by(bounds.packets);
        let pieces = starts.map(|start| start..(start + bounds.packets).min(descriptors.len()));
        return Ok(pieces.map(|packets| Chunk { packets, bytes: 0..0 }).collect());
    }
    let (alignment, room) = (alignment(layout, bounds), bounds.binding - OVERREAD_BYTES);
    let mut pieces: Vec<Chunk> = Vec::new();
    if layout == PacketLayout::Rows {
        let stride = gather::stride(needs.window) as u64;
        let most = usize::try_from(room / stride).unwrap_or(usize::MAX).min(bounds.packets);
        if let (0, Some(first)) = (most, descriptors.first()) {
            return Err(TooLarge { index: 0, length: first.length });
        }
        let starts = (0..descriptors.len()).step_by(most.max(1));
        let pieces = starts.map(|start| start..(start + most).min(descriptors.len()));
        return Ok(pieces.map(|packets| Chunk { bytes: 0..packets.len() as u64 * stride, packets }).collect());
    }
    for (number, chunk) in descriptors.chunks(bounds.packets).enumerate() {
        let first = number * bounds.packets;
        if layout != PacketLayout::Packed {
            // The usual case needs no look at each packet.
            let all = extent(batch, first..first + chunk.len(), needs).unwrap_or(0..0);
            let start = all.start / alignment * alignment;
            if all.end - start <= room {
                pieces.push(Chunk { packets: first..first + chunk.len(), bytes: start..all.end });
                continue;
            }
        }
        split_by_packet(chunk, first, layout, needs, bounds, &mut pieces)?;
    }
    Ok(pieces)
}

/// Appends packets, the first of which is packet `first` of the batch.
fn split_by_packet(
    descriptors: &[Descriptor],
    first: usize,
    layout: PacketLayout,
    needs: AccessNeeds,
    bounds: ChunkLimits,
    pieces: &mut Vec<Chunk>,
) -> Result<(), TooLarge> {
    let (alignment, room) = (alignment(layout, bounds), bounds.binding - OVERREAD_BYTES);
    for (index, d) in (first..).zip(descriptors) {
        let nothing = d.length == 0 && !needs.room;
        // Where the packet begins and ends in a piece of its own.
        let fresh = if layout == PacketLayout::Packed {
            0..(u64::from(needs.of(d.length)) + 2 * needs.margin() + 3) & !3
        } else if nothing {
            0..0
        } else {
            let word_range = word_range(d, needs);
            word_range.start / alignment * alignment..word_range.end
        };
        if let Some(piece) = pieces.last_mut().filter(|piece| piece.packets.len() < bounds.packets) {
            let all = piece.bytes.clone();
            let both = match layout {
                PacketLayout::Packed => all.start..all.end + fresh.end,
                _ if nothing => all,
                // A piece that has only empty packets so far begins with the first that is not.
                _ if all.is_empty() => fresh.clone(),
                _ => hull(all, fresh.clone()),
            };
            if both.end - both.start <= room {
                piece.packets.end = index + 1;
                piece.bytes = both;
                continue;
            }
        }
        if fresh.end - fresh.start > room {
            return Err(TooLarge { index, length: d.length });
        }
        pieces.push(Chunk { packets: index..index + 1, bytes: fresh });
    }
    Ok(())
}

/// What is bound begins where the device lets a binding begin; a copy begins at the first word.
fn alignment(layout: PacketLayout, bounds: ChunkLimits) -> u64 {
    if layout == PacketLayout::InPlace { bounds.alignment.max(4) } else { 4 }
}

/// The packets of a piece as its kernel sees them: offsets from the start of what is bound.
pub fn kernel_descriptors<'a>(
    batch: &'a Batch,
    piece: &'a Chunk,
    layout: PacketLayout,
    needs: AccessNeeds,
) -> impl Iterator<Item = Descriptor> + 'a {
    let packed = matches!(layout, PacketLayout::Packed | PacketLayout::Rows);
    let base = if layout == PacketLayout::NoAccess { 0 } else { piece.bytes.start as u32 };
    // Of what nobody sees nothing is bound, and nothing is read.
    let size = if layout == PacketLayout::NoAccess { u64::MAX } else { piece.bytes.end - piece.bytes.start };
    let margin = needs.margin() as u32;
    let row = if layout == PacketLayout::Rows { gather::stride(needs.window) as u32 } else { 0 };
    let mut at = margin;
    batch.descriptors()[piece.packets.clone()].iter().map(move |d| {
        if !packed {
            // A packet without bytes may lie outside of the piece. Kernels may load what is readable behind a packet's first
            // byte before they look at its length, so it is said to lie at the piece's beginning.
            let within = d.offset.checked_sub(base).filter(|&offset| u64::from(offset) <= size);
            debug_assert!(within.is_some() || d.length == 0, "pieces hold their packets");
            return Descriptor { offset: within.unwrap_or(0), length: d.length };
        }
        if row > 0 {
            let offset = at;
            at += row;
            return Descriptor { offset, length: d.length };
        }
        let offset = at;
        at += (needs.of(d.length) + 2 * margin + 3) & !3;
        Descriptor { offset, length: d.length }
    })
}

/// Where the packets of a piece lie in their batch now: `before` there, `seen` and `after` as the kernel
/// found them and left them.
pub fn translate_descriptors(
    before: &[Descriptor],
    seen: impl Iterator<Item = Descriptor>,
    after: impl Iterator<Item = Descriptor>,
) -> impl Iterator<Item = Descriptor> {
    // How far the packet's start moved is the same in either memory.
    before.iter().zip(seen).zip(after).map(|((before, seen), after)| Descriptor {
        offset: before.offset.wrapping_add(after.offset.wrapping_sub(seen.offset)),
        length: after.length,
    })
}

/// Copies the packets of a piece from a copy that a kernel worked on, `from`, back into their batch,
/// which knows already where the kernel left their ends. `before` is where they lay, `seen` where the
/// kernel found them; `window` is how many bytes of each it may have changed.
pub fn write_back(
    batch: &mut Batch,
    piece: &Chunk,
    before: &[Descriptor],
    seen: &[Descriptor],
    window: u32,
    from: &[u8],
) {
    for ((index, before), seen) in piece.packets.clone().zip(before).zip(seen) {
        let moved = batch.descriptors()[index].offset.wrapping_sub(before.offset);
        let at = seen.offset.wrapping_add(moved) as usize;
        let packet = batch.packet_mut(index);
        let length = packet.len().min(window as usize);
        if length == 0 {
            continue; // It lies nowhere.
        }
        packet[..length].copy_from_slice(&from[at..at + length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Arena, BatchCutter, ResizeRoom};

    const WHOLE: AccessNeeds = AccessNeeds { window: u32::MAX, room: false };

    fn batch(descriptors: &[(u32, u32)], room: ResizeRoom) -> Batch {
        let descriptors = descriptors.iter().map(|&(offset, length)| Descriptor { offset, length }).collect();
        BatchCutter::new(Arena::new(1 << 16).unwrap(), None).cut_batch(descriptors, vec![], room).unwrap()
    }

    fn bounds(binding: u64, alignment: u64, packets: usize) -> ChunkLimits {
        ChunkLimits { binding: binding + OVERREAD_BYTES, alignment, packets }
    }

    fn piece(packets: Range<usize>, bytes: Range<u64>) -> Chunk {
        Chunk { packets, bytes }
    }

    #[test]
    fn what_fits_is_one_piece() {
        let b = batch(&[(70, 30), (100, 1)], ResizeRoom::None);
        let split_batch = |layout| split_batch(&b, layout, WHOLE, bounds(100, 16, 10));
        assert_eq!(split_batch(PacketLayout::InPlace), Ok(vec![piece(0..2, 64..104)]));
        assert_eq!(split_batch(PacketLayout::Copied), Ok(vec![piece(0..2, 68..104)]));
        assert_eq!(split_batch(PacketLayout::Packed), Ok(vec![piece(0..2, 0..36)]));
        assert_eq!(split_batch(PacketLayout::NoAccess), Ok(vec![piece(0..2, 0..0)]));
    }

    #[test]
    fn no_packet_is_no_piece() {
        let b = batch(&[], ResizeRoom::None);
        for layout in [
            PacketLayout::InPlace,
            PacketLayout::Copied,
            PacketLayout::Packed,
            PacketLayout::Rows,
            PacketLayout::NoAccess,
        ] {
            let needs = AccessNeeds { window: 54, ..WHOLE };
            assert_eq!(split_batch(&b, layout, needs, bounds(100, 16, 10)), Ok(vec![]));
        }
    }

    #[test]
    fn pieces_keep_to_the_binding_and_to_the_number_of_packets() {
        let b = batch(&[(0, 40), (40, 40), (80, 40), (120, 8), (60000, 4)], ResizeRoom::None);
        let in_place = |binding, packets| split_batch(&b, PacketLayout::InPlace, WHOLE, bounds(binding, 16, packets));
        // 40 is not a multiple of 16: the second piece's binding begins at 32.
        assert_eq!(in_place(88, 10), Ok(vec![piece(0..2, 0..80), piece(2..4, 80..128), piece(4..5, 60000..60004)]));
        assert_eq!(
            in_place(48, 10),
            Ok(vec![piece(0..1, 0..40), piece(1..2, 32..80), piece(2..4, 80..128), piece(4..5, 60000..60004)])
        );
        assert_eq!(in_place(47, 10), Err(TooLarge { index: 1, length: 40 }));
        assert_eq!(in_place(1 << 16, 2), Ok(vec![piece(0..2, 0..80), piece(2..4, 80..128), piece(4..5, 60000..60004)]));
    }

    #[test]
    fn a_packet_without_bytes_lies_nowhere() {
        // The first lies behind the others, which is nobody's business.
        let b = batch(&[(9000, 0), (64, 8), (0, 0), (72, 8), (9000, 8)], ResizeRoom::None);
        for binding in [16, 1 << 16] {
            let pieces = split_batch(&b, PacketLayout::InPlace, WHOLE, bounds(binding, 16, 10)).unwrap();
            assert_eq!(pieces.first().unwrap().packets.start, 0);
            assert_eq!(pieces.last().unwrap().packets.end, 5);
            let seen: Vec<_> =
                pieces.iter().flat_map(|p| kernel_descriptors(&b, p, PacketLayout::InPlace, WHOLE)).collect();
            for (piece, index) in pieces.iter().flat_map(|p| p.packets.clone().map(move |i| (p, i))) {
                if b.descriptors()[index].length > 0 {
                    assert_eq!(
                        u64::from(seen[index].offset) + piece.bytes.start,
                        u64::from(b.descriptors()[index].offset)
                    );
                }
            }
        }
    }

    /// As a ring delivers them: in any order, with others' frames between.
    /// Kernels may load what is always readable behind a packet's first byte before they look at its length.
    #[test]
    fn a_packet_without_bytes_is_looked_for_in_its_piece() {
        let b = batch(&[(9000, 0), (64, 8), (0, 0), (72, 8), (9000, 8)], ResizeRoom::None);
        for layout in [PacketLayout::InPlace, PacketLayout::Copied] {
            for binding in [16, 1 << 16] {
                for piece in split_batch(&b, layout, WHOLE, bounds(binding, 16, 10)).unwrap() {
                    let size = piece.bytes.end - piece.bytes.start;
                    for (seen, index) in kernel_descriptors(&b, &piece, layout, WHOLE).zip(piece.packets.clone()) {
                        let end = u64::from(seen.offset) + u64::from(seen.length);
                        assert!(end <= size, "{layout:?}, {binding}: packet {index}: {seen:?} of {size} bytes");
                        assert_eq!(seen.length, b.descriptors()[index].length);
                    }
                }
            }
        }
    }

    #[test]
    fn scattered_packets_are_bound_from_the_lowest_to_the_highest_and_never_copied_with_what_is_between() {
        // Frames of 1,756 bytes, the room included, the first packet in the last one.
        let b = Batch::in_frames(&[&[0; 60][..], &[0; 60], &[], &[0; 1500]]).unwrap();
        assert_eq!(extent(&b, 0..4, WHOLE), Some(128..3 * 1756 + 128 + 60));
        assert_eq!(extent(&b, 1..4, WHOLE), Some(128..2 * 1756 + 128 + 60));
        assert_eq!(extent(&b, 1..4, AccessNeeds { room: true, ..WHOLE }), Some(0..2 * 1756 + 316));
        let in_place = |binding| split_batch(&b, PacketLayout::InPlace, WHOLE, bounds(binding, 64, 10));
        assert_eq!(in_place(1 << 16), Ok(vec![piece(0..4, 128..5456)]));
        assert_eq!(in_place(4000), Ok(vec![piece(0..3, 3640 / 64 * 64..5456), piece(3..4, 128..1628)]));
        assert_eq!(in_place(1499), Err(TooLarge { index: 3, length: 1500 }));
    }

    #[test]
    fn packing_takes_the_window_and_keeps_the_room() {
        let b = batch(&[(1000, 100), (3000, 10)], ResizeRoom::Both);
        let needs = AccessNeeds { window: 54, room: false };
        let pieces = split_batch(&b, PacketLayout::Packed, needs, bounds(1000, 16, 10)).unwrap();
        assert_eq!(pieces, [piece(0..2, 0..56 + 12)]);
        let at = |needs| {
            kernel_descriptors(&b, &pieces[0], PacketLayout::Packed, needs)
                .map(|d| (d.offset, d.length))
                .collect::<Vec<_>>()
        };
        assert_eq!(at(needs), [(0, 100), (56, 10)]);
        let needs = AccessNeeds { window: u32::MAX, room: true };
        let pieces = split_batch(&b, PacketLayout::Packed, needs, bounds(1000, 16, 10)).unwrap();
        assert_eq!(pieces, [piece(0..2, 0..356 + 268)]);
        assert_eq!(at(needs), [(128, 100), (356 + 128, 10)]);
    }

    #[test]
    fn rows_are_of_one_length_whatever_the_packets_are() {
        let b = batch(&[(1000, 100), (3000, 10), (4000, 0), (5000, 54)], ResizeRoom::None);
        let needs = AccessNeeds { window: 54, room: false };
        // 54 bytes are 14 words.
        let pieces = |binding, packets| split_batch(&b, PacketLayout::Rows, needs, bounds(binding, 16, packets));
        assert_eq!(pieces(1000, 10), Ok(vec![piece(0..4, 0..224)]));
        assert_eq!(pieces(1000, 3), Ok(vec![piece(0..3, 0..168), piece(3..4, 0..56)]));
        assert_eq!(pieces(112, 10), Ok(vec![piece(0..2, 0..112), piece(2..4, 0..112)]));
        assert_eq!(pieces(55, 10), Err(TooLarge { index: 0, length: 100 }));
        let piece = piece(1..4, 0..168);
        let seen = kernel_descriptors(&b, &piece, PacketLayout::Rows, needs);
        assert_eq!(seen.map(|d| (d.offset, d.length)).collect::<Vec<_>>(), [(0, 10), (56, 0), (112, 54)]);
    }
}
