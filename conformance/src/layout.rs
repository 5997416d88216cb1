//! Memory layouts of packets, to which devices must be insensitive.

use std::sync::mpsc::{Receiver, channel};

use portcullis_core::packet::{Arena, ArenaError, Batch, BatchCutter, Descriptor, RESIZE_ROOM, ResizeRoom};

use super::corpora::Packet;

/// Fill byte between packets: not zero, so that a read of it changes results.
const FILL: u8 = 0xa5;

/// Where the packets of a batch start within a 4-byte word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Consecutive packets at different offsets, like packets of a capture.
    AnyOffset,
    /// Packets with bytes at the word's first byte, empty ones elsewhere. Devices have faster
    /// kernels for such batches.
    WordAligned,
}

/// Detects writes outside the packets of an arena.
#[derive(Debug)]
pub struct GuardedArena {
    returned_arenas: Receiver<Arena>,
    /// Byte ranges that a device may write, ascending.
    allowed: Vec<std::ops::Range<usize>>,
}

impl GuardedArena {
    /// Lays `packets` out in batches of `size`, at least 1, which alternate between the
    /// [`Placement`]s. With [`ResizeRoom::Both`] every packet has its own room. Without room, empty
    /// packets are anywhere in the arena.
    ///
    /// # Errors
    /// If an arena cannot hold the packets, or cannot be allocated.
    pub fn lay_out(
        packets: &[Packet],
        size: usize,
        room: ResizeRoom,
    ) -> Result<(Vec<Batch>, GuardedArena), ArenaError> {
        // A single batch has either placement, depending on the room.
        let placements = match room {
            ResizeRoom::None => [Placement::AnyOffset, Placement::WordAligned],
            ResizeRoom::Both => [Placement::WordAligned, Placement::AnyOffset],
        };
        GuardedArena::lay_out_by(packets, size, room, |number| placements[number % 2])
    }

    /// Lays `packets` out as [`GuardedArena::lay_out`] does, with the placement of each batch by
    /// its number.
    ///
    /// # Errors
    /// As [`GuardedArena::lay_out`].
    pub fn lay_out_by(
        packets: &[Packet],
        size: usize,
        room: ResizeRoom,
        placement: impl Fn(usize) -> Placement,
    ) -> Result<(Vec<Batch>, GuardedArena), ArenaError> {
        let margin = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let mut descriptors = Vec::with_capacity(packets.len());
        let mut allowed = Vec::with_capacity(packets.len());
        let mut end = 8;
        for (index, packet) in packets.iter().enumerate() {
            let length = packet.bytes.len();
            let shift = match (placement(index / size), length) {
                (Placement::AnyOffset, _) => index % 4,
                (Placement::WordAligned, 0) => 1 + index % 3,
                (Placement::WordAligned, _) => 0,
            };
            let offset = end + margin + shift;
            descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
            if length + margin > 0 {
                allowed.push(offset - margin..offset + length + margin);
                end = (offset + length + margin + 3) & !3;
            }
        }
        let size_of_arena = end + 8;
        if room == ResizeRoom::None {
            for (index, d) in descriptors.iter_mut().enumerate().filter(|(_, d)| d.length == 0) {
                d.offset = match index % 3 {
                    0 => d.offset,
                    1 => 1 + index as u32 % 4,
                    _ => (size_of_arena - index % 4) as u32,
                };
            }
        }
        let mut arena = Arena::new(size_of_arena)?;
        arena.fill(FILL);
        for (packet, d) in packets.iter().zip(&descriptors) {
            arena[d.offset as usize..][..packet.bytes.len()].copy_from_slice(&packet.bytes);
        }
        let (sender, returned_arenas) = channel();
        let mut cutter = BatchCutter::new(arena, Some(sender));
        let mut batches = Vec::new();
        for (packets, descriptors) in packets.chunks(size).zip(descriptors.chunks(size)) {
            let metadata = packets.iter().map(|p| p.metadata).collect();
            let batch = cutter.cut_batch(descriptors.to_vec(), metadata, room);
            batches.push(batch.expect("descriptors are ascending, disjoint and inside the arena"));
        }
        Ok((batches, GuardedArena { returned_arenas, allowed }))
    }

    /// Returns the offset of the first byte outside all packets that was written to.
    ///
    /// # Panics
    /// If a batch still exists, since only its holder may access its memory.
    pub fn stray_write(self) -> Option<usize> {
        let arena = self.returned_arenas.try_recv().expect("every batch has been dropped");
        let mut from = 0;
        let end = arena.len();
        for range in self.allowed.into_iter().chain(std::iter::once(end..end)) {
            if let Some(at) = arena[from..range.start].iter().position(|&byte| byte != FILL) {
                return Some(from + at);
            }
            from = range.end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_core::packet::Metadata;

    fn packets() -> Vec<Packet> {
        (0..20u8).map(|i| Packet { bytes: vec![i; usize::from(i)], metadata: Metadata::default() }).collect()
    }

    #[test]
    fn packets_start_at_every_alignment_or_at_words() {
        let packets: Vec<Packet> = [packets(), packets(), packets()].concat();
        for (room, first) in [(ResizeRoom::None, Placement::AnyOffset), (ResizeRoom::Both, Placement::WordAligned)] {
            let (batches, guarded) = GuardedArena::lay_out(&packets, 19, room).unwrap();
            assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [19, 19, 19, 3]);
            assert!(batches.iter().flat_map(Batch::packets).eq(packets.iter().map(|p| &p.bytes[..])));
            for (number, batch) in batches.iter().enumerate().take(3) {
                let is_aligned = (number % 2 == 0) == (first == Placement::WordAligned);
                let offsets = |empty: bool| {
                    let descriptors = batch.descriptors().iter();
                    let wanted = descriptors.filter(move |d| (d.length == 0) == empty);
                    wanted.map(|d| d.offset % 4).collect::<std::collections::BTreeSet<_>>()
                };
                let wanted: &[u32] = if is_aligned { &[0] } else { &[0, 1, 2, 3] };
                assert!(offsets(false).iter().eq(wanted), "{room:?} {number}");
                assert!(room == ResizeRoom::None || !is_aligned || !offsets(true).contains(&0), "{room:?} {number}");
            }
            drop(batches);
            assert_eq!(guarded.stray_write(), None);
        }
    }

    #[test]
    fn empty_packets_are_anywhere() {
        let packets = vec![Packet { bytes: vec![], metadata: Metadata::default() }; 12];
        let (batches, guarded) = GuardedArena::lay_out(&packets, 12, ResizeRoom::None).unwrap();
        let offsets: Vec<u32> = batches[0].descriptors().iter().map(|d| d.offset).collect();
        assert!(offsets.iter().any(|offset| *offset < 5) && offsets.contains(&16), "{offsets:?}");
        drop(batches);
        assert_eq!(guarded.stray_write(), None);
    }

    #[test]
    fn writes_outside_packets_are_detected() {
        let (mut batches, mut guarded) = GuardedArena::lay_out(&packets(), 20, ResizeRoom::None).unwrap();
        batches[0].packet_mut(5).fill(0);
        // Pretend that the packet is a byte shorter than what was written.
        guarded.allowed[5].end -= 1;
        let at = guarded.allowed[5].end;
        drop(batches);
        assert_eq!(guarded.stray_write(), Some(at));
    }
}
