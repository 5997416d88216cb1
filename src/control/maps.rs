//! Commands of the control socket on map entries, in the text formats of map files.

use portcullis_core::device::{DeviceError, EntryAccess, EntryUpdate, Session};
use portcullis_core::map::{Declaration, Format, Row, Table, dump, dump_rows};

use super::{Refusal, Service};
use crate::map_file::{self, Entries, text};

/// Returns all entries of a map as text, or the entry of `key`.
pub fn get_entries(
    service: &mut dyn Service,
    name: &str,
    key: Option<&[String]>,
    format: Format,
) -> Result<String, Refusal> {
    let (number, map) = find(service, name)?;
    let mut out = Vec::new();
    let written = match key {
        None => dump(&map, &service.map_words(number)?, format, &mut out),
        Some(cells) => {
            let key = text::parse_key(&map, cells).map_err(|error| Refusal::failed(error.to_string()))?;
            let value = service.get_entry(number, key.clone())?.ok_or_else(|| no_entry(&map, cells))?;
            dump_rows(&map, [Row { key, value }], format, &mut out)
        }
    };
    written.map_err(|error| Refusal::failed(error.to_string()))?;
    String::from_utf8(out).map_err(|error| Refusal::failed(error.to_string()))
}

/// Sets the value of an entry, creating it if necessary.
pub fn set_entry(service: &mut dyn Service, name: &str, key: &[String], value: &[String]) -> Result<(), Refusal> {
    let (number, map) = find(service, name)?;
    let (key, value) = text::parse_entry(&map, key, value).map_err(|error| Refusal::failed(error.to_string()))?;
    if service.set_entry(number, key, value)? {
        return Ok(());
    }
    let capacity_hint = map_file::capacity_hint(&map, map.entries as usize + 1);
    let entries = map.entries;
    Err(Refusal::failed(format!(
        "there is no room in the map `{name}` for this entry (entries={entries}){capacity_hint}"
    )))
}

/// Removes an entry.
pub fn remove_entry(service: &mut dyn Service, name: &str, cells: &[String]) -> Result<(), Refusal> {
    let (number, map) = find(service, name)?;
    let key = text::parse_key(&map, cells).map_err(|error| Refusal::failed(error.to_string()))?;
    if service.remove_entry(number, key)? { Ok(()) } else { Err(no_entry(&map, cells)) }
}

fn find(service: &mut dyn Service, name: &str) -> Result<(usize, Declaration), Refusal> {
    let maps = service.maps();
    let number = map_file::find_map(&maps, name).map_err(|error| Refusal::failed(error.to_string()))?;
    Ok((number, maps[number].clone()))
}

fn no_entry(map: &Declaration, cells: &[String]) -> Refusal {
    Refusal::failed(format!("the map `{}` has no entry {}", map.name, cells.join(",")))
}

/// Sets an entry of a session's map. Returns whether there was capacity for it. Reads only the
/// words that a lookup of the key probes, unless that is not enough.
///
/// # Errors
/// Errors of the session.
pub fn set_map_entry(
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
            if map_file::insert_entries(&mut table, &entries).is_err() {
                return Ok(false);
            }
            let (at, words) = table.changes();
            session.set_map_words(number, at, words).map(|()| true)
        }
    }
}

/// Removes an entry of a session's map, in the way of [`set_map_entry`]. Returns whether it
/// existed.
///
/// # Errors
/// Errors of the session.
pub fn remove_map_entry(
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
