//! Generates random packets that resemble what random filters look for.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Generates `count` packets of 0 to 199 bytes, some of them empty or of one byte. Most begin with
/// Ethernet and IP headers that have the types and ports that filters test.
pub fn packets(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut random = Pcg64::seed_from_u64(seed ^ 0x0009_ac4e_7500);
    (0..count).map(|_| packet(&mut random)).collect()
}

fn packet(random: &mut Pcg64) -> Vec<u8> {
    let length = match random.random_range(0..16) {
        0 => random.random_range(0..2),
        1 => random.random_range(0..20),
        2..4 => random.random_range(100..200),
        _ => random.random_range(34..100),
    };
    let mut bytes = vec![0; length];
    random.fill(&mut bytes[..]);
    if random.random_bool(0.2) {
        return bytes;
    }
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    let mut pick = |of: &[u16]| *of.choose(random).expect("the list is not empty");
    let ethertype = pick(&[0x0800, 0x0800, 0x0800, 0x86dd, 0x8100, 0x0806]);
    put(12, &ethertype.to_be_bytes());
    let first = pick(&[0x45, 0x45, 0x45, 0x46, 0x4f, 0x60]);
    put(14, &[first as u8]);
    let protocol = pick(&[1, 6, 6, 17, 17, 58]);
    put(23, &[protocol as u8]);
    put(34, &pick(&[0, 53, 80, 1024, 40_000]).to_be_bytes());
    put(36, &pick(&[22, 53, 80, 443, 8080]).to_be_bytes());
    bytes
}
