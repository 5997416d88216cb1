//! Memory layouts of packets, to which devices must be insensitive.

use std::sync::mpsc::{Receiver, channel};

use portcullis_core::packet::{Arena, ArenaError, Batch, BatchCutter, Descriptor, RESIZE_ROOM, ResizeRoom};

use super::corpora::Packet;

/// Fill byte between packets: not zero, so that a read of it changes results.
const FILL: u8 = 0xa5;

/// Detects writes outside the packets of an arena.
#[derive(Debug)]
pub struct GuardedArena {
    returned_arenas: Receiver<Arena>,
    /// Byte ranges that a device may write, ascending.
    allowed: Vec<std::ops::Range<usize>>,
}

impl GuardedArena {
    /// Lays `packets` out in batches of `size`, at least 1. Consecutive packets have different
    /// offsets within a 4-byte word, like packets of a capture. With [`ResizeRoom::Both`] every
    /// packet has its own room.
    ///
    /// # Errors
    /// If an arena cannot hold the packets, or cannot be allocated.
    pub fn lay_out(
        packets: &[Packet],
        size: usize,
        room: ResizeRoom,
    ) -> Result<(Vec<Batch>, GuardedArena), ArenaError> {
        let margin = if room == ResizeRoom::Both { RESIZE_ROOM as usize } else { 0 };
        let mut descriptors = Vec::with_capacity(packets.len());
        let mut allowed = Vec::with_capacity(packets.len());
        let mut end = 8;
        for (index, packet) in packets.iter().enumerate() {
            let length = packet.bytes.len();
            let offset = end + margin + index % 4;
            descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
            allowed.push(offset - margin..offset + length + margin);
            end = (offset + length + margin + 3) & !3;
        }
        let mut arena = Arena::new(end + 8)?;
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
    fn the_bytes_arrive_at_every_alignment() {
        for room in [ResizeRoom::None, ResizeRoom::Both] {
            let (batches, guarded) = GuardedArena::lay_out(&packets(), 6, room).unwrap();
            assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [6, 6, 6, 2]);
            assert!(batches.iter().flat_map(Batch::packets).eq(packets().iter().map(|p| &p.bytes[..])));
            let mut alignments: Vec<u32> = batches[0].descriptors().iter().map(|d| d.offset % 4).collect();
            alignments.sort_unstable();
            alignments.dedup();
            assert_eq!(alignments, [0, 1, 2, 3]);
            drop(batches);
            assert_eq!(guarded.stray_write(), None);
        }
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
