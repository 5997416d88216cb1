//! Maps in files: a map's rows as people write them ([`text`]), and all entries of a filter's maps from one run to the next
//! ([`state`]); and files that a map follows while packets flow ([`watch`]).
//!
//! What is in a file is looked at as a whole before a map is touched, and comes to a map by way of a
//! [`Table`]: a copy, from which the session gets what has changed, or nothing.

mod csv;
mod entries;
mod json;
mod literals;
pub mod state;
pub mod text;
mod typed_rows;
pub mod watch;

use std::collections::{HashMap, HashSet};

use portcullis_core::map::{Declaration, MapFull, MapKind, Table};
use portcullis_core::spelling::nearest;

pub use entries::Entries;

/// The number of the map of this name among those of a filter.
///
/// # Errors
/// That there is none whose entries anybody could look at or set, and what there is.
pub fn find_map(maps: &[Declaration], name: &str) -> Result<usize, String> {
    match maps.iter().position(|map| map.is_called(name)) {
        Some(number) if maps[number].is_ring => Err(format!(
            "`{}` is a ring of events, which has no entries: what the filter tells there is written by `run --events FILE` while packets flow",
            text::shown(name)
        )),
        Some(number) => Ok(number),
        None => {
            let names = || maps.iter().filter(|map| !map.is_ring).map(|map| map.name.as_str());
            let near = nearest(name, names()).map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            let there: Vec<String> = names().map(|name| format!("`{name}`")).collect();
            let there = if there.is_empty() { "no maps".into() } else { there.join(", ") };
            Err(format!("the filter has no map `{}`; it has {there}{near}", text::shown(name)))
        }
    }
}

/// What gives a map room for so many entries, for the end of an error's text: of an object, since a filter in text says it
/// itself.
pub fn capacity_hint(map: &Declaration, entries: usize) -> String {
    map.typed.as_ref().map_or_else(String::new, |typed| format!(": --set {}.max_entries={entries}", typed.name))
}

/// Sets entries in a table, over those of the same keys; the others stay.
///
/// # Errors
/// The number of the first entry that there is no room for. The table is of no more use then.
pub fn insert_entries(table: &mut Table, entries: &Entries) -> Result<(), usize> {
    insert_with(table, entries, Table::set)
}

/// The same, of entries that were in a map of this kind before: there may be a few more than it has room for
/// ([`Table::restore`]).
///
/// # Errors
/// As [`insert_entries`]'s.
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
            // Keys that were removed take room until they are forgotten.
            table.compact();
            set(table, key, value).map_err(|_| number)?;
        }
    }
    Ok(())
}

/// Makes a table follow a file, in which there were the entries `before` and are now those of `after`.
///
/// What is not in the file goes. Of what is in it, what filters have made of the values stays, where the file has the same
/// as before. Entries by number are always there: those that the file had and has no more are zeros then, and those that
/// it never had stay.
///
/// # Errors
/// The number of the first entry that there is no room for. The table is of no more use then.
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
    fn a_table_follows_a_file_and_keeps_what_filters_wrote() {
        for kind in [MapKind::Hash, MapKind::LruHash] {
            let map = map(kind, 1, 1, 50);
            let mut table = Table::new(&map, Vec::new());
            let first = entries(&map, &[&[1, 10], &[2, 20], &[3, 30], &[4, 40]]);
            table.set(&[9], &[90]).unwrap();
            sync_table(&map, &mut table, &Entries::new(&map), &first).unwrap();
            assert_eq!(rows(&table), [[1, 10], [2, 20], [3, 30], [4, 40]], "what was there before is not in the file");
            // A filter counts, makes an entry and removes one.
            (1..=3).for_each(|key| table.set(&[key], &[1000 + key]).unwrap());
            table.set(&[7], &[70]).unwrap();
            table.remove(&[4]);
            // 1 stays, 2 has changed, 3 goes, 4 is the same in the file, 5 is new.
            let second = entries(&map, &[&[5, 50], &[1, 10], &[2, 21], &[4, 40]]);
            sync_table(&map, &mut table, &first, &second).unwrap();
            assert_eq!(rows(&table), [[1, 1001], [2, 21], [4, 40], [5, 50]]);
        }
    }

    #[test]
    fn entries_by_number_that_the_file_never_had_stay() {
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
