//! Maps in files: a map's rows as people write them ([`text`]), and all entries of a filter's maps from one run to the next
//! ([`state`]).
//!
//! What is in a file is looked at as a whole before a map is touched, and comes to a map by way of a
//! [`Table`]: a copy, from which the session gets what has changed, or nothing.

mod csv;
mod entries;
mod json;
mod notation;
pub mod state;
pub mod text;

use portcullis_core::map::Table;

pub use entries::Entries;

/// Sets entries in a table, over those of the same keys; the others stay.
///
/// # Errors
/// The number of the first entry that there is no room for. The table is of no more use then.
pub fn put(table: &mut Table, entries: &Entries) -> Result<(), usize> {
    for (number, (key, value)) in entries.iter().enumerate() {
        if table.set(key, value).is_err() {
            // Keys that were removed take room until they are forgotten.
            table.tidy();
            table.set(key, value).map_err(|_| number)?;
        }
    }
    Ok(())
}
