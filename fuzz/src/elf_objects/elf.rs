//! ELF of 64 bits, the lowest byte first, as sections that may get longer and shorter.

use std::ops::Range;

/// Bytes of the file's header, and of a section's.
const HEADER: usize = 64;

/// Where they say what is looked at here (`Elf64_Ehdr`, `Elf64_Shdr`).
const E_SHOFF: Range<usize> = 40..48;
const E_SHNUM: Range<usize> = 60..62;
const E_SHSTRNDX: Range<usize> = 62..64;
const SH_NAME: Range<usize> = 0..4;
const SH_TYPE: Range<usize> = 4..8;
const SH_OFFSET: Range<usize> = 24..32;
const SH_SIZE: Range<usize> = 32..40;

/// The type of a section without bytes.
const SHT_NOBITS: u64 = 8;

/// A section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its header, of which offset and size do not matter where it has bytes.
    pub header: [u8; HEADER],
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// Its header, of which the place and number of the sections' headers do not matter.
    pub header: [u8; HEADER],
    /// Its sections.
    pub sections: Vec<Section>,
}

/// A number in bytes that are there.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

fn set(bytes: &mut [u8], value: u64) {
    let length = bytes.len();
    bytes.copy_from_slice(&value.to_le_bytes()[..length]);
}

fn range(start: u64, length: u64) -> Option<Range<usize>> {
    Some(start.try_into().ok()?..start.checked_add(length)?.try_into().ok()?)
}

impl Elf {
    /// Takes a file apart; `None` where it cannot be.
    pub fn read(file: &[u8]) -> Option<Elf> {
        let header: [u8; HEADER] = *file.first_chunk()?;
        let (headers, count) = (number(&header[E_SHOFF]), number(&header[E_SHNUM]));
        let headers = file.get(range(headers, HEADER as u64 * count)?)?;
        let section = |header: &[u8; HEADER]| {
            let has_bytes = number(&header[SH_TYPE]) != SHT_NOBITS;
            let size = if has_bytes { number(&header[SH_SIZE]) } else { 0 };
            let bytes = file.get(range(number(&header[SH_OFFSET]), size)?).unwrap_or_default().to_vec();
            Some(Section { header: *header, bytes })
        };
        let sections = headers.as_chunks().0.iter().map(section).collect::<Option<_>>()?;
        Some(Elf { header, sections })
    }

    /// Puts it together.
    pub fn write(&self) -> Vec<u8> {
        let mut file = self.header.to_vec();
        let mut headers = Vec::new();
        for section in &self.sections {
            file.resize(file.len().next_multiple_of(8), 0);
            let mut header = section.header;
            set(&mut header[SH_OFFSET], file.len() as u64);
            if number(&header[SH_TYPE]) != SHT_NOBITS {
                set(&mut header[SH_SIZE], section.bytes.len() as u64);
                file.extend(&section.bytes);
            }
            headers.extend(header);
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let at = file.len() as u64;
        set(&mut file[E_SHOFF], at);
        set(&mut file[E_SHNUM], self.sections.len() as u64);
        file.extend(headers);
        file
    }

    /// A section's name, as far as there is one.
    pub fn name(&self, section: &Section) -> &[u8] {
        let names = self.sections.get(number(&self.header[E_SHSTRNDX]) as usize).map(|it| it.bytes.as_slice());
        let rest = names.and_then(|names| names.get(number(&section.header[SH_NAME]) as usize..)).unwrap_or_default();
        &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())]
    }
}
