//! `.BTF.ext`: source lines of instructions (Documentation/bpf/btf.rst, section 4).

use std::collections::HashMap;
use std::sync::Arc;

use super::btf::{Btf, read_header, section_part};
use super::{ObjectError, StringBudget};

/// Source line of an instruction and those after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineInfo {
    /// Index of the first instruction in its section.
    pub instruction: usize,
    /// File name as given to the compiler.
    pub file: Arc<str>,
    /// Text of the line.
    pub text: Arc<str>,
    /// Line number from 1; 0 if neither this nor an earlier line of the function is known.
    pub line: u32,
    /// Column from 1; 0 if unknown.
    pub column: u32,
}

/// Reads the lines of each section, as (section name, lines in instruction order).
pub(super) fn read(bytes: &[u8], btf: &Btf) -> Result<Vec<(String, Vec<LineInfo>)>, ObjectError> {
    let what = ".BTF.ext";
    let (mut head, length) = read_header(bytes, what)?;
    let mut records = |least, of: &str| -> Result<_, ObjectError> {
        let (at, size) = (head.u32()?, head.u32()?);
        let mut from = section_part(bytes, length, at, size, what)?;
        let record = if from.bytes.is_empty() { least } else { from.u32()? as usize };
        if record < least {
            return Err(ObjectError::new(format!(
                "{what} has records of {record} bytes for {of}; the minimum is {least}"
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
    // Cache strings: many instructions share a file and a line.
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

/// Drops entries without a line, for which the compiler writes 0, so that their instructions get
/// the line before; but not that of another function.
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
