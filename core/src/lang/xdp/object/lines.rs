//! `.BTF.ext`: which line of which file an instruction comes from (Documentation/bpf/btf.rst, section 4).

use std::collections::HashMap;
use std::sync::Arc;

use super::btf::{Btf, header, part};
use super::{Letters, Wrong};

/// The line that an instruction, and those behind it, come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The first instruction, in its section.
    pub instruction: usize,
    /// The file's name as the compiler was given it.
    pub file: Arc<str>,
    /// The line's text.
    pub text: Arc<str>,
    /// Its number, from 1.
    pub line: u32,
    /// The column, from 1; 0 where it is not known.
    pub column: u32,
}

/// The lines of each section, by the section's name, in the order of the instructions.
pub(super) fn read(bytes: &[u8], btf: &Btf) -> Result<Vec<(String, Vec<Line>)>, Wrong> {
    let what = ".BTF.ext";
    let (mut head, length) = header(bytes, what)?;
    // Those of functions.
    head.u32()?;
    head.u32()?;
    let (at, size) = (head.u32()?, head.u32()?);
    let mut from = part(bytes, length, at, size, what)?;
    let mut sections = Vec::new();
    if from.bytes.is_empty() {
        return Ok(sections);
    }
    let record = from.u32()? as usize;
    if record < 16 {
        return Err(Wrong::new(format!("{what} has records of {record} bytes for lines, and 16 are the least")));
    }
    // Many lines are of one file, and many instructions of one line.
    let (mut letters, mut known) = (Letters::default(), HashMap::<u32, Arc<str>>::new());
    let mut string = |at: u32| -> Result<Arc<str>, Wrong> {
        if let Some(known) = known.get(&at) {
            return Ok(known.clone());
        }
        let text: Arc<str> = letters.text(btf.string(at))?.into();
        known.insert(at, text.clone());
        Ok(text)
    };
    while from.at < from.bytes.len() {
        let (section, count) = (string(from.u32()?)?, from.u32()?);
        let mut lines = Vec::new();
        for _ in 0..count {
            let start = from.at;
            let (offset, file, text, place) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            from.at = start;
            from.take(record)?;
            lines.push(Line {
                instruction: offset as usize / 8,
                file: string(file)?,
                text: string(text)?,
                line: place >> 10,
                column: place & 0x3ff,
            });
        }
        lines.sort_by_key(|line| line.instruction);
        sections.push((section.to_string(), lines));
    }
    Ok(sections)
}
