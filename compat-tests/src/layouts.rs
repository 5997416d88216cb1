//! Packets in memory, laid out as the conformance suite does.

use portcullis_conformance::corpora::Packet;
use portcullis_conformance::layout::{GuardedArena, Placement};
use portcullis_core::packet::{Batch, Metadata, ResizeRoom};

/// Returns distinct metadata for packet `i`.
pub fn metadata(i: u32) -> Metadata {
    Metadata::new(2000 + i, i % 3, u64::from(i) << 30)
}

/// Splits `packets` into batches of `size` in guarded memory, each packet with its own metadata.
///
/// # Panics
/// If the memory cannot be allocated.
pub fn batches<P: AsRef<[u8]>>(packets: &[P], size: usize, room: ResizeRoom) -> (Vec<Batch>, GuardedArena) {
    batches_with(packets, size, room, metadata)
}

/// Variant of [`batches`] in which the caller chooses the metadata.
///
/// # Panics
/// As [`batches`] does.
pub fn batches_with<P: AsRef<[u8]>>(
    packets: &[P],
    size: usize,
    room: ResizeRoom,
    metadata: impl Fn(u32) -> Metadata,
) -> (Vec<Batch>, GuardedArena) {
    let packet = |(i, bytes): (u32, &P)| Packet { bytes: bytes.as_ref().to_vec(), metadata: metadata(i) };
    let packets: Vec<Packet> = (0..).zip(packets).map(packet).collect();
    GuardedArena::lay_out(&packets, size.max(1), room).unwrap_or_else(|e| panic!("{e}"))
}

/// Lays out packets as one batch with room and without metadata of its own. Batches alternate
/// between the placements by their numbers.
///
/// # Panics
/// As [`batches`] does.
pub fn batch(packets: &[Vec<u8>], number: usize) -> Batch {
    if packets.is_empty() {
        return Batch::from_packets(packets).unwrap_or_else(|e| panic!("{e}"));
    }
    let packet = |bytes: &Vec<u8>| Packet { bytes: bytes.clone(), metadata: Metadata::new(bytes.len() as u32, 0, 0) };
    let packets: Vec<Packet> = packets.iter().map(packet).collect();
    let placement = [Placement::WordAligned, Placement::AnyOffset][number % 2];
    let laid_out = GuardedArena::lay_out_by(&packets, packets.len(), ResizeRoom::Both, |_| placement);
    laid_out.unwrap_or_else(|e| panic!("{e}")).0.remove(0)
}
