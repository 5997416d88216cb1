//! Files for maps: rows as people write them ([`text`]), the state of all maps kept between runs
//! ([`state`]), and files that a map follows while packets flow ([`watch`]).
//!
//! A file is parsed completely before a map is changed. Changes are made in a [`Table`], a copy of
//! the map, of which the session gets the changed words, all or none.

mod cells;
mod csv;
mod entries;
mod json;
mod json_members;
mod literals;
mod row_builder;
pub mod state;
pub mod text;
mod typed_rows;
pub mod watch;

use std::collections::{HashMap, HashSet};

use portcullis_core::map::{Declaration, MapFull, MapKind, Table};
use portcullis_core::spelling::nearest;

pub use entries::Entries;

/// Error of [`find_map`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FindMapError {
    /// The map is an event ring.
    #[error("`{name}` is an event ring, which has no entries; use `run --events FILE` to write its events")]
    EventRing {
        /// The name, escaped.
        name: String,
    },
    /// The filter has no map of this name.
    #[error("the filter has no map `{name}`; it has {known}{hint}")]
    Unknown {
        /// The name, escaped.
        name: String,
        /// The names of the maps that exist, for the message.
        known: String,
        /// The most similar name as a question, for the message; may be empty.
        hint: String,
    },
}

/// Returns the index of the map with this name.
///
/// # Errors
/// If there is no such map, with the names that exist, or if it is an event ring, which has no
/// entries.
pub fn find_map(maps: &[Declaration], name: &str) -> Result<usize, FindMapError> {
    match maps.iter().position(|map| map.is_called(name)) {
        Some(number) if maps[number].is_ring => Err(FindMapError::EventRing { name: cells::quote_cell(name) }),
        Some(number) => Ok(number),
        None => {
            let names = || maps.iter().filter(|map| !map.is_ring).map(|map| map.name.as_str());
            let near = nearest(name, names()).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            let there: Vec<String> = names().map(|name| format!("`{name}`")).collect();
            let there = if there.is_empty() { "no maps".into() } else { there.join(", ") };
            Err(FindMapError::Unknown { name: cells::quote_cell(name), known: there, hint: near })
        }
    }
}

/// Suggests how to give a map capacity for `entries`, as the end of an error message. Empty unless
/// the map comes from an object: other filters declare the capacity themselves.
pub fn capacity_hint(map: &Declaration, entries: usize) -> String {
    map.typed.as_ref().map_or_else(String::new, |typed| format!(": --set {}.max_entries={entries}", typed.name))
}

/// Inserts entries into a table, replacing entries with the same keys. Others stay.
///
/// # Errors
/// The index of the first entry that does not fit. The table must not be used any more.
pub fn insert_entries(table: &mut Table, entries: &Entries) -> Result<(), usize> {
    insert_with(table, entries, Table::set)
}

/// Variant of [`insert_entries`] for entries that were in such a map before, which may exceed the
/// declared number slightly ([`Table::restore`]).
///
/// # Errors
/// As [`insert_entries`].
pub fn restore_entries(table: &mut Table, entries: &Entries) -> Result<(), usize> {
    insert_with(table, entries, Table::restore)
}

fn insert_with(
    table: &mut Table,
    entries: &Entries,
    set: impl Fn(&mut Table, &[u32], &[u32]) -> Result<(), MapFull>,
) -> Result<(), usize> {
    for (number, (key, value)) in entries.iter().enumerate() {
        if set(table, key, value).is_err() {
            // Removed keys occupy slots until the table is compacted.
            table.compact();
            set(table, key, value).map_err(|_| number)?;
        }
    }
    Ok(())
}

/// Updates a table for a file whose entries have changed from `before` to `after`.
///
/// Entries that are not in the file are removed. Values that the filter has changed are kept if the
/// file has the same value as before. Arrays always have all their entries: those that disappeared
/// from the file become zero, and those that were never in it stay.
///
/// # Errors
/// The index of the first entry of `after` that does not fit. The table must not be used any more.
pub fn sync_table(map: &Declaration, table: &mut Table, before: &Entries, after: &Entries) -> Result<(), usize> {
    let stay: HashSet<&[u32]> = after.iter().map(|(key, _)| key).collect();
    let goes = |key: &&[u32]| !stay.contains(key);
    match map.kind {
        MapKind::Array | MapKind::Counter => before.iter().map(|(key, _)| key).filter(goes).for_each(|key| {
            table.remove(key);
        }),
        MapKind::Hash | MapKind::LruHash | MapKind::Lpm => {
            for row in table.rows().iter().filter(|row| goes(&row.key.as_slice())) {
                table.remove(&row.key);
            }
        }
    }
    let before: HashMap<&[u32], &[u32]> = before.iter().collect();
    let mut changed = Entries::new(map);
    let mut numbers = Vec::new();
    for (number, (key, value)) in after.iter().enumerate() {
        if before.get(key) != Some(&value) || table.get(key).is_none() {
            changed.push(&[key, value].concat());
            numbers.push(number);
        }
    }
    insert_entries(table, &changed).map_err(|number| numbers[number])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
        Declaration::new("m", kind, key, value, entries)
    }

    fn entries(map: &Declaration, rows: &[&[u32]]) -> Entries {
        let mut entries = Entries::new(map);
        rows.iter().for_each(|row| entries.push(row));
        entries
    }

    fn rows(table: &Table) -> Vec<Vec<u32>> {
        table.rows().into_iter().map(|row| [row.key, row.value].concat()).collect()
    }

    #[test]
    fn a_table_follows_a_file_and_keeps_values_of_filters() {
        for kind in [MapKind::Hash, MapKind::LruHash] {
            let map = map(kind, 1, 1, 50);
            let mut table = Table::new(&map, Vec::new());
            let first = entries(&map, &[&[1, 10], &[2, 20], &[3, 30], &[4, 40]]);
            table.set(&[9], &[90]).unwrap();
            sync_table(&map, &mut table, &Entries::new(&map), &first).unwrap();
            assert_eq!(
                rows(&table),
                [[1, 10], [2, 20], [3, 30], [4, 40]],
                "entries that are not in the file are removed"
            );
            // The filter changes values, adds an entry and removes one.
            (1..=3).for_each(|key| table.set(&[key], &[1000 + key]).unwrap());
            table.set(&[7], &[70]).unwrap();
            table.remove(&[4]);
            // 1 stays, 2 has changed, 3 is removed, 4 is the same in the file, 5 is new.
            let second = entries(&map, &[&[5, 50], &[1, 10], &[2, 21], &[4, 40]]);
            sync_table(&map, &mut table, &first, &second).unwrap();
            assert_eq!(rows(&table), [[1, 1001], [2, 21], [4, 40], [5, 50]]);
        }
    }

    #[test]
    fn array_entries_that_were_never_in_the_file_stay() {
        let map = map(MapKind::Array, 1, 1, 5);
        let mut table = Table::new(&map, Vec::new());
        let first = entries(&map, &[&[1, 10], &[2, 20]]);
        table.set(&[0], &[7]).unwrap();
        sync_table(&map, &mut table, &Entries::new(&map), &first).unwrap();
        table.set(&[4], &[8]).unwrap();
        table.set(&[2], &[21]).unwrap();
        sync_table(&map, &mut table, &first, &entries(&map, &[&[2, 20], &[3, 30]])).unwrap();
        assert_eq!(rows(&table), [[0, 7], [1, 0], [2, 21], [3, 30], [4, 8]]);
    }

    #[test]
    fn a_full_table_can_be_replaced_as_a_whole() {
        let map = map(MapKind::Hash, 1, 0, 5);
        let mut table = Table::new(&map, Vec::new());
        let mut before = Entries::new(&map);
        for round in 0..10_u32 {
            let keys: Vec<[u32; 1]> = (0..5).map(|n| [10 * round + n]).collect();
            let after = entries(&map, &keys.iter().map(|key| &key[..]).collect::<Vec<_>>());
            sync_table(&map, &mut table, &before, &after).unwrap();
            assert_eq!(rows(&table), keys);
            before = after;
        }
        let more = entries(&map, &[&[1], &[2], &[3], &[4], &[5], &[6]]);
        assert_eq!(sync_table(&map, &mut table, &before, &more), Err(5));
    }
}
