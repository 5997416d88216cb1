//! `--map`: sets a map's entries from a file.

use portcullis::device::Session;
use portcullis::map::{Declaration, Table};
use portcullis::map_file::text::{ParsedRows, RowErrors};
use portcullis::map_file::{self, text};
use portcullis::reason;

use super::map_args::MapFile;
use crate::failure::Failure;

/// Reads the rows of a file.
pub fn read(from: &MapFile, map: &Declaration) -> Result<ParsedRows, Failure> {
    let bytes = text::read_file(&from.file, map).map_err(|error| map_file_error(from, &reason(&error)))?;
    text::parse(map, from.format, &bytes)
        .map_err(|problems| Failure::Error(problems.with_file_name(&from.file.display().to_string())))
}

/// Sets the rows in the session's map, replacing entries with the same keys.
pub fn set(
    rows: &ParsedRows,
    from: &MapFile,
    (number, map): (usize, &Declaration),
    session: &mut dyn Session,
) -> Result<(), Failure> {
    let mut table = Table::new(map, session.map_words(number)?);
    map_file::insert_entries(&mut table, &rows.entries)
        .map_err(|row| Failure::Error(no_room(rows, row, map).with_file_name(&from.file.display().to_string())))?;
    let (at, words) = table.changes();
    Ok(session.set_map_words(number, at, words)?)
}

/// Returns the error for a row, counted from 0, that the map has no room for.
pub fn no_room(rows: &ParsedRows, row: usize, map: &Declaration) -> RowErrors {
    let (name, entries) = (&map.name, map.entries);
    let capacity_hint = map_file::capacity_hint(map, rows.entries.len());
    let what = format!(
        "there is no room in the map `{name}` for this row and those behind it (entries={entries}){capacity_hint}"
    );
    RowErrors::single(rows.lines.get(row).copied().unwrap_or(1), what)
}

/// Returns the error for the file as a whole.
fn map_file_error(from: &MapFile, what: &str) -> Failure {
    Failure::Error(format!("{}: {what}", from.file.display()))
}
