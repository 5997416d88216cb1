use super::*;
use crate::packet::{Arena, BatchCutter, ResizeRoom};

/// A small generator of numbers, so that a failure can be had again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }
}

/// Packets of all lengths at all offsets within a word, side by side or in slots, in bytes that tell where they are from.
fn batch(numbers: &mut Numbers, count: u32, slot: u32) -> (Batch, Vec<u8>) {
    let mut at = 0;
    let mut descriptors = Vec::new();
    for index in 0..count {
        let length = numbers.below(if index % 3 == 0 { 1500 } else { 70 });
        let offset = at + numbers.below(4);
        descriptors.push(Descriptor { offset, length });
        at = (offset + length).next_multiple_of(4).max(if slot > 0 { (index + 1) * slot } else { 0 });
    }
    let mut arena = Arena::new(at as usize + 64).unwrap();
    arena.iter_mut().for_each(|byte| *byte = numbers.below(256) as u8);
    let bytes = arena.to_vec();
    (BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap(), bytes)
}

const WINDOWS: [u32; 26] =
    [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 38, 54, 63, 64, 65, 100, 127, 128, 129, 1400];

/// What a row has, by the bytes of the memory alone.
fn model(bytes: &[u8], d: Descriptor, window: u32) -> &[u8] {
    &bytes[d.offset as usize..][..window.min(d.length) as usize]
}

#[test]
fn rows_are_the_windows_of_packets_whichever_way_they_are_copied() {
    let mut numbers = Numbers(7);
    for (count, slot) in [(0, 0), (1, 0), (63, 0), (64, 2112), (65, 0), (257, 2112)] {
        let (batch, bytes) = batch(&mut numbers, count, slot);
        for window in WINDOWS {
            let rows = WindowRows::new(&batch, 0..batch.len(), window);
            let stride = window as usize + (4 - window as usize % 4) % 4;
            assert_eq!(rows.size(), stride * count as usize);
            let far = is_far(batch.descriptors());
            assert_eq!(far, slot > 0);
            let mut ways: Vec<(&str, Vec<u8>)> = Vec::new();
            for (name, store, at) in [
                ("cached", StorePolicy::Cached, 0),
                ("streamed", StorePolicy::Streamed, 0),
                ("anywhere", StorePolicy::Streamed, 3),
            ] {
                // At a multiple of 64, and beside one.
                let mut room = vec![0xee; rows.size() + 192];
                let start = room.as_ptr().align_offset(64) + at;
                rows.write(&mut room[start..], store);
                assert!(room[..start].iter().chain(&room[start + rows.size()..]).all(|byte| *byte == 0xee), "{name}");
                ways.push((name, room[start..start + rows.size()].to_vec()));
            }
            let mut room = vec![0xee; rows.size()];
            rows.write_reference(&mut room);
            ways.push(("plainly", room));
            let mut room = vec![0xee; rows.size()];
            // SAFETY: as `WindowRows::write_to` has it.
            unsafe {
                super::rows(batch.span().as_ptr(), batch.descriptors(), window as usize, room.as_mut_ptr(), far);
            }
            ways.push(("without AVX2", room));
            for (name, room) in ways {
                for (index, d) in batch.descriptors().iter().enumerate() {
                    let wanted = model(&bytes, *d, window);
                    let row = &room[index * stride..][..stride];
                    assert_eq!(&row[..wanted.len()], wanted, "{name}, window {window}, packet {index}");
                    let rest = &row[wanted.len()..];
                    assert!(name == "streamed" || rest.iter().all(|byte| *byte == 0xee), "{name}, window {window}");
                }
            }
        }
    }
}

#[test]
fn rows_come_back_into_their_packets_and_nowhere_else() {
    let mut numbers = Numbers(11);
    for (count, slot) in [(1, 0), (65, 0), (257, 2112)] {
        for window in WINDOWS {
            let (mut batch, mut wanted) = batch(&mut numbers, count, slot);
            // Rows may be longer than what comes back of them.
            let stride = super::stride(window) + 4 * numbers.below(3) as usize;
            let rows: Vec<u8> = (0..count as usize * stride).map(|_| numbers.below(256) as u8).collect();
            for (index, d) in batch.descriptors().iter().enumerate() {
                let length = window.min(d.length) as usize;
                wanted[d.offset as usize..][..length].copy_from_slice(&rows[index * stride..][..length]);
            }
            scatter(&mut batch, 0..count as usize, window, &rows, stride);
            let span = batch.span();
            // SAFETY: the arena's bytes, which nobody else uses.
            let bytes = unsafe { std::slice::from_raw_parts(span.as_ptr(), wanted.len()) };
            assert!(bytes == wanted, "window {window}, {count} packets");
            // SAFETY: as above, by the way without AVX2.
            unsafe {
                let all = batch.descriptors();
                super::back(span.as_ptr(), all, window as usize, rows.as_ptr(), stride, is_far(all));
                assert!(std::slice::from_raw_parts(span.as_ptr(), wanted.len()) == wanted);
            }
        }
    }
}
