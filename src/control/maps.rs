//! Entries of a map that goes on, in the text forms of maps' files.

use portcullis_core::device::{DeviceError, Session};
use portcullis_core::map::{Declaration, EntryAccess, EntryUpdate, Format, Row, Table, dump, dump_rows};

use super::{Refused, Service};
use crate::map_file::{self, Entries, text};

/// All entries as text, or one of them.
pub fn get(service: &mut dyn Service, name: &str, key: Option<&[String]>, format: Format) -> Result<String, Refused> {
    let (number, map) = find(service, name)?;
    let mut out = Vec::new();
    let written = match key {
        None => dump(&map, &service.words(number)?, format, &mut out),
        Some(cells) => {
            let key = text::key(&map, cells).map_err(Refused::wrong)?;
            let value = service.get(number, key.clone())?.ok_or_else(|| no_entry(&map, cells))?;
            dump_rows(&map, [Row { key, value }], format, &mut out)
        }
    };
    written.map_err(|error| Refused::wrong(error.to_string()))?;
    String::from_utf8(out).map_err(|error| Refused::wrong(error.to_string()))
}

/// Gives an entry a value.
pub fn set(service: &mut dyn Service, name: &str, key: &[String], value: &[String]) -> Result<(), Refused> {
    let (number, map) = find(service, name)?;
    let (key, value) = text::entry(&map, key, value).map_err(Refused::wrong)?;
    if service.set(number, key, value)? {
        return Ok(());
    }
    let remedy = map_file::remedy(&map, map.entries as usize + 1);
    let entries = map.entries;
    Err(Refused::wrong(format!("there is no room in the map `{name}` for this entry (entries={entries}){remedy}")))
}

/// Removes an entry.
pub fn remove(service: &mut dyn Service, name: &str, cells: &[String]) -> Result<(), Refused> {
    let (number, map) = find(service, name)?;
    let key = text::key(&map, cells).map_err(Refused::wrong)?;
    if service.remove(number, key)? { Ok(()) } else { Err(no_entry(&map, cells)) }
}

fn find(service: &mut dyn Service, name: &str) -> Result<(usize, Declaration), Refused> {
    let maps = service.maps();
    let number = map_file::find(&maps, name).map_err(Refused::wrong)?;
    Ok((number, maps[number].clone()))
}

fn no_entry(map: &Declaration, cells: &[String]) -> Refused {
    Refused::wrong(format!("the map `{}` has no entry {}", map.name, cells.join(",")))
}

/// Gives a key of a session's map a value; whether there was room for it. Of the map only what a search for the key looks at
/// is read, but where that does not do.
///
/// # Errors
/// The session's.
pub fn set_in(
    session: &mut dyn Session,
    number: usize,
    map: &Declaration,
    (key, value): (&[u32], &[u32]),
) -> Result<bool, DeviceError> {
    match EntryAccess::new(session, number, map, key).set(value)? {
        EntryUpdate::Done => Ok(true),
        EntryUpdate::Impossible => Ok(false),
        EntryUpdate::NeedsFullCopy => {
            let mut table = Table::new(map, session.map_words(number)?);
            let mut entries = Entries::new(map);
            entries.push(&[key, value].concat());
            if map_file::put(&mut table, &entries).is_err() {
                return Ok(false);
            }
            let (at, words) = table.changes();
            session.set_map_words(number, at, words).map(|()| true)
        }
    }
}

/// Removes a key of a session's map, as [`set_in`] sets it; whether it was there.
///
/// # Errors
/// The session's.
pub fn remove_in(
    session: &mut dyn Session,
    number: usize,
    map: &Declaration,
    key: &[u32],
) -> Result<bool, DeviceError> {
    match EntryAccess::new(session, number, map, key).remove()? {
        EntryUpdate::Done => Ok(true),
        EntryUpdate::Impossible => Ok(false),
        EntryUpdate::NeedsFullCopy => {
            let mut table = Table::new(map, session.map_words(number)?);
            if !table.remove(key) {
                return Ok(false);
            }
            let (at, words) = table.changes();
            session.set_map_words(number, at, words).map(|()| true)
        }
    }
}
