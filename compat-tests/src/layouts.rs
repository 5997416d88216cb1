//! Packets in memory, laid out as the self-test lays them out.

use portcullis_conformance::corpora::Packet;
use portcullis_conformance::layout::Watched;
use portcullis_core::packet::{Batch, Metadata, ResizeRoom};

/// What is known of packet `i`.
pub fn metadata(i: u32) -> Metadata {
    Metadata::new(2000 + i, i % 3, u64::from(i) << 30)
}

/// `packets` in batches of `size`, each packet with metadata of its own, in memory that is watched.
///
/// # Panics
/// When there is no memory for them.
pub fn batches<P: AsRef<[u8]>>(packets: &[P], size: usize, room: ResizeRoom) -> (Vec<Batch>, Watched) {
    batches_with(packets, size, room, metadata)
}

/// The same with other metadata.
///
/// # Panics
/// As [`batches`] does.
pub fn batches_with<P: AsRef<[u8]>>(
    packets: &[P],
    size: usize,
    room: ResizeRoom,
    metadata: impl Fn(u32) -> Metadata,
) -> (Vec<Batch>, Watched) {
    let packet = |(i, bytes): (u32, &P)| Packet { bytes: bytes.as_ref().to_vec(), metadata: metadata(i) };
    let packets: Vec<Packet> = (0..).zip(packets).map(packet).collect();
    Watched::lay_out(&packets, size.max(1), room).unwrap_or_else(|e| panic!("{e}"))
}
