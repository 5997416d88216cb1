//! `.BTF.ext`: which line of which file an instruction comes from (Documentation/bpf/btf.rst, section 4).

use std::collections::HashMap;
use std::sync::Arc;

use super::btf::{Btf, read_header, section_part};
use super::{ObjectError, StringBudget};

/// The line that an instruction, and those behind it, come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineInfo {
    /// The first instruction, in its section.
    pub instruction: usize,
    /// The file's name as the compiler was given it.
    pub file: Arc<str>,
    /// The line's text.
    pub text: Arc<str>,
    /// Its number, from 1; 0 where the compiler knows none, nor one before it in the function.
    pub line: u32,
    /// The column, from 1; 0 where it is not known.
    pub column: u32,
}

/// The lines of each section, by the section's name, in the order of the instructions.
pub(super) fn read(bytes: &[u8], btf: &Btf) -> Result<Vec<(String, Vec<LineInfo>)>, ObjectError> {
    let what = ".BTF.ext";
    let (mut head, length) = read_header(bytes, what)?;
    let mut records = |least, of: &str| -> Result<_, ObjectError> {
        let (at, size) = (head.u32()?, head.u32()?);
        let mut from = section_part(bytes, length, at, size, what)?;
        let record = if from.bytes.is_empty() { least } else { from.u32()? as usize };
        if record < least {
            return Err(ObjectError::new(format!(
                "{what} has records of {record} bytes for {of}, and {least} are the least"
            )));
        }
        Ok((from, record))
    };
    let (mut from, record) = records(8, "functions")?;
    let mut functions: HashMap<u32, Vec<usize>> = HashMap::new();
    while from.at < from.bytes.len() {
        let (section, count) = (from.u32()?, from.u32()?);
        for _ in 0..count {
            let first = from.take(record)?.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            functions.entry(section).or_default().push(first as usize / 8);
        }
    }
    let (mut from, record) = records(16, "lines")?;
    let mut sections = Vec::new();
    // Many lines are of one file, and many instructions of one line.
    let (mut strings, mut known) = (StringBudget::default(), HashMap::<u32, Arc<str>>::new());
    let mut string = |at: u32| -> Result<Arc<str>, ObjectError> {
        if let Some(known) = known.get(&at) {
            return Ok(known.clone());
        }
        let text: Arc<str> = strings.text(btf.string(at))?.into();
        known.insert(at, text.clone());
        Ok(text)
    };
    while from.at < from.bytes.len() {
        let (name, count) = (from.u32()?, from.u32()?);
        let section = string(name)?;
        let mut lines = Vec::new();
        for _ in 0..count {
            let start = from.at;
            let (offset, file, text, place) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            from.at = start;
            from.take(record)?;
            lines.push(LineInfo {
                instruction: offset as usize / 8,
                file: string(file)?,
                text: string(text)?,
                line: place >> 10,
                column: place & 0x3ff,
            });
        }
        lines.sort_by_key(|line| line.instruction);
        let mut starts = functions.remove(&name).unwrap_or_default();
        starts.sort_unstable();
        sections.push((section.to_string(), drop_unknown_lines(lines, &starts)));
    }
    Ok(sections)
}

/// Without those of which the compiler says that they have no line (it writes 0): such instructions are of the line before, but
/// not of another function's.
fn drop_unknown_lines(lines: Vec<LineInfo>, starts: &[usize]) -> Vec<LineInfo> {
    let function = |line: &LineInfo| starts.partition_point(|start| *start <= line.instruction);
    let mut all: Vec<LineInfo> = Vec::with_capacity(lines.len());
    for line in lines {
        if line.line > 0 || all.last().is_none_or(|before| function(before) != function(&line)) {
            all.push(line);
        }
    }
    all
}
