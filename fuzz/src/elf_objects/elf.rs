//! Reader and writer of little-endian ELF64 files whose sections may grow and shrink in between.

use std::ops::Range;

/// Size in bytes of a file header (`Elf64_Ehdr`) and of a section header (`Elf64_Shdr`).
const HEADER: usize = 64;

/// Byte ranges of header fields, named as in `elf.h`.
const E_SHOFF: Range<usize> = 40..48;
const E_SHNUM: Range<usize> = 60..62;
const E_SHSTRNDX: Range<usize> = 62..64;
const SH_NAME: Range<usize> = 0..4;
const SH_TYPE: Range<usize> = 4..8;
const SH_OFFSET: Range<usize> = 24..32;
const SH_SIZE: Range<usize> = 32..40;

/// Section type that occupies no bytes in the file.
const SHT_NOBITS: u64 = 8;

/// One section: its header and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The header as read; [`Elf::write`] recomputes the offset, and the size unless `SHT_NOBITS`.
    pub header: [u8; HEADER],
    /// Contents of the section; empty for `SHT_NOBITS`.
    pub bytes: Vec<u8>,
}

/// A parsed ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// The file header as read; [`Elf::write`] recomputes offset and number of the section headers.
    pub header: [u8; HEADER],
    /// Sections in the order of the section header table.
    pub sections: Vec<Section>,
}

/// Decodes a little-endian number of at most 8 bytes.
pub fn read_number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

fn write_number(bytes: &mut [u8], value: u64) {
    let length = bytes.len();
    bytes.copy_from_slice(&value.to_le_bytes()[..length]);
}

fn range(start: u64, length: u64) -> Option<Range<usize>> {
    Some(start.try_into().ok()?..start.checked_add(length)?.try_into().ok()?)
}

impl Elf {
    /// Parses a file; `None` if a table or a section extends beyond its end.
    pub fn read(file: &[u8]) -> Option<Elf> {
        let header: [u8; HEADER] = *file.first_chunk()?;
        let (headers, count) = (read_number(&header[E_SHOFF]), read_number(&header[E_SHNUM]));
        let headers = file.get(range(headers, HEADER as u64 * count)?)?;
        let section = |header: &[u8; HEADER]| {
            let has_bytes = read_number(&header[SH_TYPE]) != SHT_NOBITS;
            let size = if has_bytes { read_number(&header[SH_SIZE]) } else { 0 };
            let bytes = file.get(range(read_number(&header[SH_OFFSET]), size)?).unwrap_or_default().to_vec();
            Some(Section { header: *header, bytes })
        };
        let sections = headers.as_chunks().0.iter().map(section).collect::<Option<_>>()?;
        Some(Elf { header, sections })
    }

    /// Serialises the file: header, sections at multiples of 8 bytes, section header table.
    pub fn write(&self) -> Vec<u8> {
        let mut file = self.header.to_vec();
        let mut headers = Vec::new();
        for section in &self.sections {
            file.resize(file.len().next_multiple_of(8), 0);
            let mut header = section.header;
            write_number(&mut header[SH_OFFSET], file.len() as u64);
            if read_number(&header[SH_TYPE]) != SHT_NOBITS {
                write_number(&mut header[SH_SIZE], section.bytes.len() as u64);
                file.extend(&section.bytes);
            }
            headers.extend(header);
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let at = file.len() as u64;
        write_number(&mut file[E_SHOFF], at);
        write_number(&mut file[E_SHNUM], self.sections.len() as u64);
        file.extend(headers);
        file
    }

    /// Returns the name of a section, empty if its offset is outside the string table.
    pub fn name(&self, section: &Section) -> &[u8] {
        let names = self.sections.get(read_number(&self.header[E_SHSTRNDX]) as usize).map(|it| it.bytes.as_slice());
        let rest =
            names.and_then(|names| names.get(read_number(&section.header[SH_NAME]) as usize..)).unwrap_or_default();
        &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())]
    }
}
