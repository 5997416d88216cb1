//! Parses map rows from CSV and JSON, as people write them and as `dump` does. The syntax is
//! specified in `docs/guide/maps.md`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use portcullis_core::map::{Declaration, Format};

use super::cells::Part;
use super::row_builder::RowBuilder;
use super::{csv, json};

pub use super::cells::CellError;
pub use super::row_builder::{ParsedRows, RowErrors};

/// Parses rows for a map.
///
/// # Errors
/// All errors, if there are any.
pub fn parse(map: &Declaration, format: Format, bytes: &[u8]) -> Result<ParsedRows, RowErrors> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        RowErrors::single(before + 1, "not valid UTF-8; save the file in that encoding")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    reject_constants(map).map_err(|what| RowErrors::single(1, what.to_string()))?;
    let mut builder = RowBuilder::new(map);
    match format {
        Format::Csv => csv::parse(text, &mut builder),
        Format::Json => json::parse(text, &mut builder),
    }
    builder.finish()
}

/// Rejects maps of constants that the program was compiled with.
fn reject_constants(map: &Declaration) -> Result<(), CellError> {
    match &map.typed {
        Some(typed) if typed.constant => {
            let what = "holds constants that the program was compiled with; set them with --set";
            Err(CellError::new(format!("`{}` {what}", typed.name)))
        }
        _ => Ok(()),
    }
}

/// Parses a key from cells like those of rows. Returns its words.
///
/// # Errors
/// [`CellError`] names the wrong cell.
pub fn parse_key(map: &Declaration, cells: &[impl AsRef<str>]) -> Result<Vec<u32>, CellError> {
    let mut builder = RowBuilder::new(map);
    builder.parse_key_cells(cells)?;
    if let Some(bytes) = &builder.bytes {
        return bytes.key_words();
    }
    let (there, wanted) = (builder.words.len(), builder.length(Part::Key));
    if there < wanted {
        let row = builder.describe_row();
        return Err(CellError::new(format!("the key ends after {there} of {wanted} words; {row}")));
    }
    Ok(builder.words)
}

/// Parses a key and a value from cells like those of rows. Returns their words.
///
/// # Errors
/// [`CellError`] names the wrong cell.
pub fn parse_entry(
    map: &Declaration,
    key: &[impl AsRef<str>],
    value: &[impl AsRef<str>],
) -> Result<(Vec<u32>, Vec<u32>), CellError> {
    reject_constants(map)?;
    let mut builder = RowBuilder::new(map);
    builder.parse_key_cells(key)?;
    if builder.part() == Part::Value || builder.length(Part::Value) == 0 {
        value.iter().try_for_each(|cell| builder.parse_cell(cell.as_ref().trim(), Part::Value))?;
    }
    builder.end_row(1)?;
    let (key, value) = builder.rows.entries.iter().next().ok_or_else(|| CellError::new("there is no row"))?;
    Ok((key.to_vec(), value.to_vec()))
}

/// Reads a file of rows. A file larger than all rows of the map could be is not read to its end, as
/// it may have none.
///
/// # Errors
/// If the file cannot be read or is too large.
pub fn read_file(path: &Path, map: &Declaration) -> io::Result<Vec<u8>> {
    // Enough for the longest cell with its name in JSON and generous formatting, and for comments.
    let row = match &map.typed {
        // Each cell with its name, in each of the variants that bpftool writes.
        Some(typed) => {
            let (key, value) = typed.columns();
            let names: usize = key.iter().chain(&value).map(|leaf| leaf.name.len()).sum();
            4 * (64 + names as u64 + 16 * u64::from(typed.key.size + typed.value.size))
        }
        None => 64 * u64::from(1 + map.key_words() + map.value),
    };
    let most = (256 << 20) + u64::from(map.entries).saturating_mul(row);
    let (file, mut bytes) = (File::open(path)?, Vec::new());
    let length = file.metadata()?.len();
    if length <= most {
        bytes.try_reserve_exact(length as usize)?;
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    if length > most || bytes.len() as u64 > most {
        let (name, entries) = (&map.name, map.entries);
        return Err(io::Error::other(format!(
            "larger than all rows of the map `{name}` could be (entries={entries}); is this the right file?"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
