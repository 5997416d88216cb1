//! Where packets go by routes: the maps by which programs of XDP look for them ([`fib`]), filled
//! from tables, for example the kernel's.

use portcullis_core::device::{DeviceError, Session};
use portcullis_core::map::{Declaration, Table};
use portcullis_core::program::Program;
pub use portcullis_core::routes::RoutingTables;
use portcullis_xdp::fib;

use crate::map_file::{self, Entries};

/// The maps of a filter that are filled from tables: what is not in these is not in the maps
/// either.
#[derive(Debug, Clone)]
pub struct RouteMaps {
    numbers: fib::Maps,
    maps: Vec<Declaration>,
    /// What was last put into each of the filter's maps.
    put: Vec<(usize, Entries)>,
}

/// Why tables are not in the maps, which are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteMapsError {
    /// There are more entries than a map has room for.
    #[error("the map `{map}` has room for {room} entries, and {count} are to be in it")]
    Full {
        /// The map.
        map: String,
        /// How many it has room for.
        room: u32,
        /// How many there are.
        count: usize,
    },
    /// The device's.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl RouteMaps {
    /// Those of a filter; `None` where it looks for no routes.
    pub fn from_program(program: &Program) -> Option<RouteMaps> {
        let numbers =
            portcullis_xdp::ObjectInfo::of(&program).map(|origin| origin.fib).filter(|maps| !maps.is_none())?;
        Some(RouteMaps { numbers, maps: program.maps().to_vec(), put: Vec::new() })
    }

    /// Which they are.
    pub fn maps(&self) -> impl Iterator<Item = &Declaration> {
        self.numbers.all().map(|number| &self.maps[number])
    }

    /// Puts tables into the maps: between two batches, in all of them or in none.
    ///
    /// # Errors
    /// [`RouteMapsError`].
    pub fn apply_tables(&mut self, tables: &RoutingTables, session: &mut dyn Session) -> Result<(), RouteMapsError> {
        let mut changes = Vec::new();
        for (number, rows) in self.numbers.rows(&tables) {
            let map = &self.maps[number];
            let mut entries = Entries::new(map);
            rows.iter().for_each(|(key, value)| entries.push(&[&key[..], value].concat()));
            let before = self.put.iter().find(|(put, _)| *put == number).map(|(_, entries)| entries);
            if before == Some(&entries) {
                continue;
            }
            let none = Entries::new(map);
            let mut table = Table::new(map, session.map_words(number)?);
            if map_file::sync_table(map, &mut table, before.unwrap_or(&none), &entries).is_err() {
                return Err(RouteMapsError::Full { map: map.name.clone(), room: map.entries, count: rows.len() });
            }
            changes.push((number, table, entries));
        }
        for (number, table, entries) in changes {
            let (at, words) = table.changes();
            session.set_map_words(number, at, words)?;
            self.put.retain(|(put, _)| *put != number);
            self.put.push((number, entries));
        }
        Ok(())
    }
}
