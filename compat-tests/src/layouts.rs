//! Packets laid out in memory as sources lay them out, which a device must not notice.

use portcullis_core::packet::{Arena, Batch, Carver, Descriptor, Metadata, ROOM, Room};

/// One batch of `packets`, each starting at another distance from a 4-byte word than the one
/// before it, as packets of a capture do.
///
/// # Panics
/// When there is no memory for it.
pub fn batch<P: AsRef<[u8]>>(packets: &[P], room: Room) -> Batch {
    let margin = if room == Room::Both { ROOM as usize } else { 0 };
    let mut descriptors = Vec::with_capacity(packets.len());
    let mut end = 0;
    for (index, packet) in packets.iter().enumerate() {
        let length = packet.as_ref().len();
        let offset = end + margin + index % 4;
        descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
        end = (offset + length + margin + 3) & !3;
    }
    // What lies between packets is not zero, so that whoever reads it is found out.
    let mut arena = Arena::new(end).expect("memory for a test's packets");
    arena.fill(0xa5);
    for (packet, d) in packets.iter().zip(&descriptors) {
        arena[d.offset as usize..][..d.length as usize].copy_from_slice(packet.as_ref());
    }
    let metadata = (0..packets.len() as u32).map(|i| Metadata::new(2000 + i, i % 3, u64::from(i) << 30)).collect();
    Carver::new(arena, None).carve(descriptors, metadata, room).expect("no two packets share a word")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_arrive_at_every_alignment() {
        let packets: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; usize::from(i)]).collect();
        for room in [Room::None, Room::Both] {
            let batch = batch(&packets, room);
            assert!(batch.packets().eq(packets.iter().map(Vec::as_slice)));
            let alignments: std::collections::HashSet<u32> = batch.descriptors().iter().map(|d| d.offset % 4).collect();
            assert_eq!(alignments.len(), 4);
        }
    }
}
