//! Fuzz target: arbitrary descriptors over a small arena. A batch must be built exactly when a
//! word-granular ownership map of the arena finds no overlap, and packets must then not alias.

use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom};

/// Size of the arena in bytes; small, so that random descriptors overlap often.
const ARENA: usize = 1024;

/// Reference check of a batch's layout, by an ownership map of 4-byte words. `taken` is the map so
/// far, with the end of the allocated range.
fn is_valid_layout(descriptors: &[Descriptor], margin: i64, taken: &mut [bool]) -> bool {
    let mut map = taken.to_vec();
    for d in descriptors {
        let (start, end) = (i64::from(d.offset) - margin, i64::from(d.offset) + i64::from(d.length) + margin);
        if start < 0 || end > ARENA as i64 {
            return false;
        }
        let words = start as usize / 4..(end as usize).div_ceil(4);
        if start == end {
            continue;
        }
        // Packets come in ascending order: no memory after this packet is allocated yet.
        if map[words.start..].contains(&true) {
            return false;
        }
        map[words].fill(true);
    }
    taken.copy_from_slice(&map);
    true
}

/// Decodes one descriptor from each 8 bytes; most are moved close to the arena.
fn descriptors(bytes: &[u8]) -> Vec<Descriptor> {
    let field = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let near = |value: u32, limit: u32| if value >> 28 == 15 { value } else { value % limit };
    bytes
        .chunks_exact(8)
        .map(|b| Descriptor { offset: near(field(b), ARENA as u32 + 8), length: near(field(&b[4..]), 96) })
        .collect()
}

/// Fills each packet with its own number, and checks that no other packet changes.
fn check_no_aliasing(batch: &mut Batch) {
    for i in 0..batch.len() {
        batch.packet_mut(i).fill(i as u8);
    }
    for (i, packet) in batch.packets().enumerate() {
        assert!(packet.iter().all(|&byte| byte == i as u8), "packet {i} shares bytes");
    }
}

/// Builds two batches from the bytes, and moves their packets. The first byte says whether packets
/// have headroom and metadata, and how many descriptors belong to the first batch; the last third
/// of the descriptors is where a filter leaves the packets.
///
/// # Panics
/// If a batch is built from an overlapping layout, or a valid layout is rejected.
pub fn run(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    let (room, margin) = if how & 1 == 0 { (ResizeRoom::None, 0) } else { (ResizeRoom::Both, i64::from(RESIZE_ROOM)) };
    let mut all = descriptors(bytes);
    if how & 2 != 0 {
        all.sort_by_key(|d| d.offset);
    }
    let resized = all.split_off(all.len() - all.len() / 3);
    let first = all.len().min(usize::from(how >> 4));
    let mut cutter = BatchCutter::new(Arena::new(ARENA).expect("a small arena"), None);
    let mut taken = vec![false; ARENA / 4];
    let mut batches = Vec::new();
    for part in [&all[..first], &all[first..]] {
        let metadata = if how & 4 == 0 { Vec::new() } else { vec![Metadata::default(); part.len()] };
        let wanted = is_valid_layout(part, margin, &mut taken);
        let batch = cutter.cut_batch(part.to_vec(), metadata, room);
        assert_eq!(batch.is_ok(), wanted, "{part:?} with {room:?}: {:?}", batch.err());
        batches.extend(batch);
    }
    drop(cutter);
    for batch in &mut batches {
        check_no_aliasing(batch);
    }
    for batch in &mut batches {
        let before = batch.descriptors().to_vec();
        let moved: Vec<Descriptor> = before.iter().zip(resized.iter().chain(&before)).map(|(_, &d)| d).collect();
        let inside = moved.iter().zip(&before).all(|(new, old)| {
            i64::from(new.offset) >= i64::from(old.offset) - margin
                && i64::from(new.offset) + i64::from(new.length)
                    <= i64::from(old.offset) + i64::from(old.length) + margin
        });
        assert_eq!(batch.resize(moved.clone()).is_ok(), inside, "{before:?} to {moved:?}");
        assert_eq!(batch.descriptors(), if inside { &moved } else { &before });
        check_no_aliasing(batch);
        batch.truncate(usize::from(how >> 5));
        assert!(batch.resize(Vec::new()).is_ok() == batch.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, Corpus, run_for};

    /// Packets in order, close together and with headroom.
    fn good() -> Vec<Vec<u8>> {
        let mut inputs = Vec::new();
        for how in 0..=255u8 {
            for (first, step, length) in [(0u32, 64, 60), (128, 320, 60), (0, 4, 4), (130, 260, 3)] {
                let mut data = vec![how];
                for i in 0..8 {
                    data.extend((first + i * step).to_le_bytes());
                    data.extend(u32::to_le_bytes(length));
                }
                inputs.push(data);
            }
        }
        inputs
    }

    #[test]
    fn mutated_seeds_never_panic() {
        let good = good();
        let seeds: Vec<&[u8]> = good.iter().map(Vec::as_slice).collect();
        let pieces: &[&[u8]] = &[&[0; 4], &[0xff; 4], &[0, 4, 0, 0], &[0xff, 3, 0, 0], &[128, 0, 0, 0], &[4, 0, 0, 0]];
        println!("{} batches", run_for(A_SECOND, "descriptors", Corpus { seeds: &seeds, tokens: "", pieces }, 0, run));
    }
}
