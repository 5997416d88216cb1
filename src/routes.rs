//! Keeps the maps that XDP programs use for route lookups ([`fib`]) in sync with routing tables,
//! for example the kernel's.

use portcullis_core::device::{DeviceError, Session};
use portcullis_core::map::{Declaration, Table};
use portcullis_core::program::Program;
pub use portcullis_core::routes::RoutingTables;
use portcullis_xdp::fib;

use crate::map_file::{self, Entries};

/// The routing maps of a filter. Their content is exactly that of the routing tables applied last.
#[derive(Debug, Clone)]
pub struct RouteMaps {
    indices: fib::Maps,
    maps: Vec<Declaration>,
    /// Entries last written to each map, by its index.
    written: Vec<(usize, Entries)>,
}

/// Why tables were not applied. The maps are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteMapsError {
    /// A map is too small.
    #[error("the map `{map}` has capacity for {capacity} entries, but the routing tables need {count}")]
    Full {
        /// Name of the map.
        map: String,
        /// Capacity of the map in entries.
        capacity: u32,
        /// Number of entries required.
        count: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl RouteMaps {
    /// Returns the routing maps of a filter, or `None` if it does no route lookups.
    pub fn from_program(program: &Program) -> Option<RouteMaps> {
        let indices =
            portcullis_xdp::ObjectInfo::of(program).map(|origin| origin.fib).filter(|maps| !maps.is_none())?;
        Some(RouteMaps { indices, maps: program.maps().to_vec(), written: Vec::new() })
    }

    /// Returns the declarations of the routing maps.
    pub fn maps(&self) -> impl Iterator<Item = &Declaration> {
        self.indices.all().map(|index| &self.maps[index])
    }

    /// Writes tables to the maps, all of them or none. Must be called between two batches.
    ///
    /// # Errors
    /// [`RouteMapsError`].
    pub fn apply_tables(&mut self, tables: &RoutingTables, session: &mut dyn Session) -> Result<(), RouteMapsError> {
        let mut changes = Vec::new();
        for (index, rows) in self.indices.rows(tables) {
            let map = &self.maps[index];
            let mut entries = Entries::new(map);
            rows.iter().for_each(|(key, value)| entries.push(&[&key[..], value].concat()));
            let before = self.written.iter().find(|(written, _)| *written == index).map(|(_, entries)| entries);
            if before == Some(&entries) {
                continue;
            }
            let none = Entries::new(map);
            let mut table = Table::new(map, session.map_words(index)?);
            if map_file::sync_table(map, &mut table, before.unwrap_or(&none), &entries).is_err() {
                return Err(RouteMapsError::Full { map: map.name.clone(), capacity: map.entries, count: rows.len() });
            }
            changes.push((index, table, entries));
        }
        for (index, table, entries) in changes {
            let (at, words) = table.changes();
            session.set_map_words(index, at, words)?;
            self.written.retain(|(written, _)| *written != index);
            self.written.push((index, entries));
        }
        Ok(())
    }
}
