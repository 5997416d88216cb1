//! Structure-aware mutator for ELF objects: it resizes sections, adds and removes records, and
//! changes numbers in them, but usually keeps the file parseable. Random bytes would mostly be
//! rejected at the first table.

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::elf::{Elf, Section, read_number};

/// Size of BTF's header, and its fields `type_len` and `str_off` (`struct btf_header`).
const BTF_HEADER: usize = 24;
const BTF_TYPE_LEN: std::ops::Range<usize> = 12..16;
const BTF_STR_OFF: std::ops::Range<usize> = 16..20;

/// Values at the limits of the usual integer widths.
const LIMITS: [u64; 14] = [
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

/// Mutates an object; equal numbers give equal results. `None` if the object does not parse.
pub fn damaged(object: &[u8], number: u64) -> Option<Vec<u8>> {
    let mut elf = Elf::read(object)?;
    let mut rng = Pcg64::seed_from_u64(number);
    // Prefer few changes: nearly valid inputs get furthest into the front end.
    for _ in 0..1 << rng.random_range(0..4u32) {
        match rng.random_range(0..16u32) {
            0 => replace_number(&mut elf.header, 2, &mut rng),
            1 => mutate_sections(&mut elf.sections, &mut rng),
            2 => {
                if let Some(section) = random_section(&mut elf.sections, &mut rng) {
                    replace_number(&mut section.header, 8, &mut rng);
                }
            }
            _ => mutate_contents(&mut elf, &mut rng),
        }
    }
    let mut file = elf.write();
    // Damage the file's structure too, in one of twelve objects.
    match rng.random_range(0..24u32) {
        0 => file.truncate(rng.random_range(0..=file.len())),
        1 => replace_number(&mut file, 1, &mut rng),
        _ => {}
    }
    Some(file)
}

fn random_section<'s>(sections: &'s mut [Section], rng: &mut Pcg64) -> Option<&'s mut Section> {
    let count = sections.len();
    (count > 0).then(|| &mut sections[rng.random_range(0..count)])
}

fn mutate_sections(sections: &mut Vec<Section>, rng: &mut Pcg64) {
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

/// Mutates the contents of a random section.
fn mutate_contents(elf: &mut Elf, rng: &mut Pcg64) {
    let count = elf.sections.len();
    if count == 0 {
        return;
    }
    let at = rng.random_range(0..count);
    let is_btf = elf.name(&elf.sections[at]) == b".BTF";
    let section = &mut elf.sections[at];
    if is_btf && section.bytes.len() >= BTF_HEADER && rng.random_range(0..8u32) > 0 {
        let types = read_number(&section.bytes[BTF_TYPE_LEN]) as usize;
        if let Some(range) = BTF_HEADER.checked_add(types).filter(|end| *end <= section.bytes.len()) {
            let mut inner = section.bytes[BTF_HEADER..range].to_vec();
            mutate_records(&mut inner, 4, rng);
            // The string section follows the types, so its offset moves with their length.
            let length = (inner.len() as u32).to_le_bytes();
            section.bytes.splice(BTF_HEADER..range, inner);
            section.bytes[BTF_TYPE_LEN].copy_from_slice(&length);
            section.bytes[BTF_STR_OFF].copy_from_slice(&length);
            return;
        }
    }
    // Record sizes: symbol 24 bytes, relocation 16, instruction 8; anything else is words.
    let size = match read_number(&section.header[4..8]) {
        2 => 24,
        9 => 16,
        1 if section.bytes.len().is_multiple_of(8) => 8,
        _ => 4,
    };
    mutate_records(&mut section.bytes, size, rng);
}

/// Mutates a section of records of `size` bytes each.
fn mutate_records(bytes: &mut Vec<u8>, size: usize, rng: &mut Pcg64) {
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
        _ => replace_number(bytes, size, rng),
    }
}

/// Replaces an aligned number of at most `max_bytes` bytes: by a random one, a limit, one from
/// elsewhere in `bytes`, a copy with one bit flipped, or a neighbour of the old value.
fn replace_number(bytes: &mut [u8], max_bytes: usize, rng: &mut Pcg64) {
    let lengths: Vec<usize> = [1, 2, 4, 8].into_iter().filter(|length| *length <= max_bytes).collect();
    let length = *lengths.choose(rng).unwrap_or(&1);
    let count = bytes.len() / length;
    if count == 0 {
        return;
    }
    let mut place = || length * rng.random_range(0..count);
    let (at, other) = (place(), place());
    let was = read_number(&bytes[at..at + length]);
    let value = match rng.random_range(0..6u32) {
        0 => rng.random(),
        1 => *LIMITS.choose(rng).unwrap_or(&0),
        2 => read_number(&bytes[other..other + length]),
        3 => was ^ 1 << rng.random_range(0..8 * length as u32),
        _ => was.wrapping_add(rng.random_range(0..9u64)).wrapping_sub(4),
    };
    bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
}
