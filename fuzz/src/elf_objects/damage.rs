//! Damage to objects that is no damage to their frame: sections get longer and shorter, records come and go, and numbers in them
//! become others, where bytes at random would mostly make a file that is refused at its first table.

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::elf::{Elf, Section, number};

/// Bytes of BTF's header, and where it says how long the types are, where names begin and how long they are (`btf_header`).
const BTF_HEADER: usize = 24;
const BTF_TYPES: std::ops::Range<usize> = 12..16;
const BTF_NAMES: std::ops::Range<usize> = 16..20;

/// Numbers at the ends of what there is.
const CORNERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0xff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// An object with a few things in it that are others; the same for the same number. `None` where it cannot be taken apart.
pub fn damaged(object: &[u8], number: u64) -> Option<Vec<u8>> {
    let mut elf = Elf::read(object)?;
    let mut rng = Pcg64::seed_from_u64(number);
    // Few changes more often than many: what is nearly right goes deepest.
    for _ in 0..1 << rng.random_range(0..4u32) {
        match rng.random_range(0..16u32) {
            0 => change(&mut elf.header, 2, &mut rng),
            1 => sections(&mut elf.sections, &mut rng),
            2 => {
                if let Some(section) = chosen(&mut elf.sections, &mut rng) {
                    change(&mut section.header, 8, &mut rng);
                }
            }
            _ => contents(&mut elf, &mut rng),
        }
    }
    let mut file = elf.write();
    // And the frame, now and then.
    match rng.random_range(0..24u32) {
        0 => file.truncate(rng.random_range(0..=file.len())),
        1 => change(&mut file, 1, &mut rng),
        _ => {}
    }
    Some(file)
}

fn chosen<'s>(sections: &'s mut [Section], rng: &mut Pcg64) -> Option<&'s mut Section> {
    let count = sections.len();
    (count > 0).then(|| &mut sections[rng.random_range(0..count)])
}

fn sections(sections: &mut Vec<Section>, rng: &mut Pcg64) {
    let count = sections.len();
    if count == 0 {
        return;
    }
    let (one, other) = (rng.random_range(0..count), rng.random_range(0..count));
    match rng.random_range(0..4u32) {
        0 => drop(sections.remove(one)),
        1 => sections.push(sections[one].clone()),
        2 => sections.swap(one, other),
        _ => sections[one].bytes = sections[other].bytes.clone(),
    }
}

/// Changes what a section has in it.
fn contents(elf: &mut Elf, rng: &mut Pcg64) {
    let count = elf.sections.len();
    if count == 0 {
        return;
    }
    let at = rng.random_range(0..count);
    let is_btf = elf.name(&elf.sections[at]) == b".BTF";
    let section = &mut elf.sections[at];
    if is_btf && section.bytes.len() >= BTF_HEADER && rng.random_range(0..8u32) > 0 {
        let types = number(&section.bytes[BTF_TYPES]) as usize;
        if let Some(range) = BTF_HEADER.checked_add(types).filter(|end| *end <= section.bytes.len()) {
            let mut inner = section.bytes[BTF_HEADER..range].to_vec();
            records(&mut inner, 4, rng);
            // Names stand behind.
            let length = (inner.len() as u32).to_le_bytes();
            section.bytes.splice(BTF_HEADER..range, inner);
            section.bytes[BTF_TYPES].copy_from_slice(&length);
            section.bytes[BTF_NAMES].copy_from_slice(&length);
            return;
        }
    }
    // Symbols have 24 bytes, relocations 16, instructions 8; what else there is has words.
    let size = match number(&section.header[4..8]) {
        2 => 24,
        9 => 16,
        1 if section.bytes.len().is_multiple_of(8) => 8,
        _ => 4,
    };
    records(&mut section.bytes, size, rng);
}

/// Changes records of so many bytes.
fn records(bytes: &mut Vec<u8>, size: usize, rng: &mut Pcg64) {
    let count = bytes.len() / size;
    let place = |rng: &mut Pcg64| rng.random_range(0..=count);
    match rng.random_range(0..12u32) {
        0 => {
            let (from, length) = (place(rng), 1 << rng.random_range(0..4u32));
            bytes.drain(size * from..size * (from + length).min(count).max(from));
        }
        1 => {
            let (from, to, length) = (place(rng), place(rng), 1 << rng.random_range(0..4u32));
            let copy = bytes[size * from..size * (from + length).min(count).max(from)].to_vec();
            bytes.splice(size * to..size * to, copy);
        }
        2 if count > 1 => {
            let (one, other) = (rng.random_range(0..count), rng.random_range(0..count));
            (0..size).for_each(|byte| bytes.swap(size * one + byte, size * other + byte));
        }
        3 => bytes.truncate(rng.random_range(0..=bytes.len())),
        4 => {
            let at = size * place(rng);
            let mut record = vec![0; size];
            rng.fill_bytes(&mut record);
            bytes.splice(at..at, record);
        }
        _ => change(bytes, size, rng),
    }
}

/// Has a number in bytes be another: any, one at a corner, one that is in another place, or one next to it.
fn change(bytes: &mut [u8], most: usize, rng: &mut Pcg64) {
    let lengths: Vec<usize> = [1, 2, 4, 8].into_iter().filter(|length| *length <= most).collect();
    let length = *lengths.choose(rng).unwrap_or(&1);
    let count = bytes.len() / length;
    if count == 0 {
        return;
    }
    let mut place = || length * rng.random_range(0..count);
    let (at, other) = (place(), place());
    let was = number(&bytes[at..at + length]);
    let value = match rng.random_range(0..6u32) {
        0 => rng.random(),
        1 => *CORNERS.choose(rng).unwrap_or(&0),
        2 => number(&bytes[other..other + length]),
        3 => was ^ 1 << rng.random_range(0..8 * length as u32),
        _ => was.wrapping_add(rng.random_range(0..9u64)).wrapping_sub(4),
    };
    bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
}
