use super::*;
use crate::packet::{Arena, BatchCutter, ResizeRoom};
use crate::testing::Random;

/// Packets of many lengths at all offsets within a word, adjacent or `slot_stride` bytes apart, and
/// a copy of the arena's random bytes.
fn batch(rng: &mut Random, count: u32, slot_stride: u32) -> (Batch, Vec<u8>) {
    let mut at = 0;
    let mut descriptors = Vec::new();
    for index in 0..count {
        let length = rng.below(if index % 3 == 0 { 1500 } else { 70 }) as u32;
        let offset = at + rng.below(4) as u32;
        descriptors.push(Descriptor { offset, length });
        at = (offset + length).next_multiple_of(4).max(if slot_stride > 0 { (index + 1) * slot_stride } else { 0 });
    }
    let mut arena = Arena::new(at as usize + 64).unwrap();
    arena.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
    let bytes = arena.to_vec();
    (BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap(), bytes)
}

const WINDOWS: [u32; 26] =
    [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 38, 54, 63, 64, 65, 100, 127, 128, 129, 1400];

/// The expected bytes of a row, read from the copy of the arena.
fn model(bytes: &[u8], d: Descriptor, window: u32) -> &[u8] {
    &bytes[d.offset as usize..][..window.min(d.length) as usize]
}

#[test]
fn every_gather_variant_copies_the_same_windows() {
    let mut rng = Random(7);
    for (count, slot_stride) in [(0, 0), (1, 0), (63, 0), (64, 2112), (65, 0), (257, 2112)] {
        let (batch, bytes) = batch(&mut rng, count, slot_stride);
        for window in WINDOWS {
            let rows = WindowRows::new(&batch, 0..batch.len(), window);
            let stride = window as usize + (4 - window as usize % 4) % 4;
            assert_eq!(rows.size(), stride * count as usize);
            let prefetch = needs_prefetch(batch.descriptors());
            assert_eq!(prefetch, slot_stride > 0);
            let mut results: Vec<(&str, Vec<u8>)> = Vec::new();
            for (name, store, at) in [
                ("cached", StorePolicy::Cached, 0),
                ("streamed", StorePolicy::Streamed, 0),
                ("unaligned", StorePolicy::Streamed, 3),
            ] {
                // At a multiple of 64 bytes, and off it.
                let mut buffer = vec![0xee; rows.size() + 192];
                let start = buffer.as_ptr().align_offset(64) + at;
                rows.write(&mut buffer[start..], store);
                assert!(
                    buffer[..start].iter().chain(&buffer[start + rows.size()..]).all(|byte| *byte == 0xee),
                    "{name}"
                );
                results.push((name, buffer[start..start + rows.size()].to_vec()));
            }
            let mut buffer = vec![0xee; rows.size()];
            rows.write_reference(&mut buffer);
            results.push(("reference", buffer));
            let mut buffer = vec![0xee; rows.size()];
            // SAFETY: as in `WindowRows::write_to`.
            unsafe {
                super::gather_plain(
                    batch.span().as_ptr(),
                    batch.descriptors(),
                    window as usize,
                    buffer.as_mut_ptr(),
                    prefetch,
                );
            }
            results.push(("without AVX2", buffer));
            for (name, buffer) in results {
                for (index, d) in batch.descriptors().iter().enumerate() {
                    let expected = model(&bytes, *d, window);
                    let row = &buffer[index * stride..][..stride];
                    assert_eq!(&row[..expected.len()], expected, "{name}, window {window}, packet {index}");
                    let rest = &row[expected.len()..];
                    assert!(name == "streamed" || rest.iter().all(|byte| *byte == 0xee), "{name}, window {window}");
                }
            }
        }
    }
}

#[test]
fn scatter_writes_the_windows_and_no_other_byte() {
    let mut rng = Random(11);
    for (count, slot_stride) in [(1, 0), (65, 0), (257, 2112)] {
        for window in WINDOWS {
            let (mut batch, mut expected) = batch(&mut rng, count, slot_stride);
            // The stride may exceed the window.
            let stride = super::stride(window) + 4 * rng.below(3) as usize;
            let rows: Vec<u8> = (0..count as usize * stride).map(|_| rng.below(256) as u8).collect();
            for (index, d) in batch.descriptors().iter().enumerate() {
                let length = window.min(d.length) as usize;
                expected[d.offset as usize..][..length].copy_from_slice(&rows[index * stride..][..length]);
            }
            scatter(batch.packets_mut(0..count as usize), window, &rows, stride);
            let span = batch.span();
            // SAFETY: the arena's bytes, which nothing else accesses.
            let bytes = unsafe { std::slice::from_raw_parts(span.as_ptr(), expected.len()) };
            assert!(bytes == expected, "window {window}, {count} packets");
            // SAFETY: as above, for the variant without AVX2.
            unsafe {
                let all = batch.descriptors();
                super::scatter_plain(span.as_ptr(), all, window as usize, rows.as_ptr(), stride, needs_prefetch(all));
                assert!(std::slice::from_raw_parts(span.as_ptr(), expected.len()) == expected);
            }
        }
    }
}
