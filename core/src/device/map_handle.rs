//! Access to a session's maps with Rust types for keys and values.

use std::marker::PhantomData;

use super::map_entry::{EntryAccess, EntryUpdate};
use super::{DeviceError, Session};
use crate::map::lpm::{self, PrefixError};
use crate::map::{Declaration, MapFull, MapKind, Table, Words};
use crate::program::Program;

/// A map of a filter, with Rust types for its keys and values. A handle belongs to no session: each
/// call names a session of the same filter.
///
/// Writes are visible to all batches submitted later and to none submitted earlier; to a batch, an
/// update is atomic. Reads see the effects of all batches submitted so far.
///
/// `portcullis::Run::map` opens one beside its session; `examples/maps.rs` uses it.
#[derive(Debug, Clone)]
pub struct MapHandle<K, V> {
    number: usize,
    map: Declaration,
    types: PhantomData<fn(K) -> V>,
}

/// Why a map cannot be opened with these types.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The filter has no map with this name.
    #[error("the filter has no map `{0}`")]
    NoMap(String),
    /// The map's keys or values have another size.
    #[error("the map `{map}` has {part}s of {declared} words, but the requested type has {requested}")]
    Size {
        /// Name of the map.
        map: String,
        /// `key` or `value`.
        part: &'static str,
        /// Number of words declared.
        declared: usize,
        /// Number of words of the type.
        requested: usize,
    },
}

/// Why a map could not be changed. The map is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// There is no room for the entry.
    #[error(transparent)]
    MapFull(#[from] MapFull),
    /// A map by index has no entry with this index.
    #[error("the map has no entry {0}")]
    NoEntry(u32),
    /// The key of an `lpm` is not a prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The session failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl<K: Words, V: Words> MapHandle<K, V> {
    /// Opens the map with this name. Keys of maps by index are `u32`, those of an `lpm` are
    /// [`Prefix`](crate::map::Prefix), values of counters `u64`.
    ///
    /// # Errors
    /// If there is no such map, or its keys or values have another number of words.
    pub fn open(program: &Program, name: &str) -> Result<MapHandle<K, V>, OpenError> {
        let mut maps = program.maps().iter().enumerate();
        let found = maps.find(|(_, map)| map.name == name);
        let (number, map) = found.ok_or_else(|| OpenError::NoMap(name.into()))?;
        for (part, declared, requested) in [("key", map.key_words(), K::COUNT), ("value", map.value, V::COUNT)] {
            if declared as usize != requested {
                return Err(OpenError::Size { map: name.into(), part, declared: declared as usize, requested });
            }
        }
        Ok(MapHandle { number, map: map.clone(), types: PhantomData })
    }

    /// Declaration of the map.
    pub fn declaration(&self) -> &Declaration {
        &self.map
    }

    /// The value of a key. Reads only the part of the map that a probe for the key visits, for an
    /// `lpm` all prefixes; for many keys, a [`snapshot`](MapHandle::snapshot) is faster.
    ///
    /// # Errors
    /// As for [`Session::map_words_at`].
    pub fn get(&self, session: &mut dyn Session, key: &K) -> Result<Option<V>, DeviceError> {
        let found = EntryAccess::new(session, self.number, &self.map, &words(key)).get()?;
        Ok(found.map(|value| V::read(&value)))
    }

    /// Sets the value of a key, inserting the entry if it is absent. Reads only what a probe for
    /// the key visits and writes only what changes; for many keys, one
    /// [`update`](MapHandle::update) is faster. Copies the whole map if compaction has to make room
    /// and, for an `lpm`, if the prefix is new or the filter only reads the values.
    ///
    /// # Errors
    /// If there is no room or no such entry, or the session fails.
    pub fn set(&self, session: &mut dyn Session, key: &K, value: &V) -> Result<(), UpdateError> {
        let number = words(key);
        check(&self.map, &number)?;
        match EntryAccess::new(session, self.number, &self.map, &number).set(&words(value))? {
            EntryUpdate::Done => Ok(()),
            EntryUpdate::Impossible => Err(MapFull.into()),
            EntryUpdate::NeedsFullCopy => self.update(session, |rows| rows.set(key, value)),
        }
    }

    /// Removes a key; returns whether it was present. An entry by index is always present; it is
    /// set to zeros. Copies the whole map only to remove a prefix of an `lpm`.
    ///
    /// # Errors
    /// As for [`Session::set_map_words`].
    pub fn remove(&self, session: &mut dyn Session, key: &K) -> Result<bool, DeviceError> {
        match EntryAccess::new(session, self.number, &self.map, &words(key)).remove()? {
            EntryUpdate::Done => Ok(true),
            EntryUpdate::Impossible => Ok(false),
            EntryUpdate::NeedsFullCopy => self.update(session, |rows| Ok(rows.remove(key))),
        }
    }

    /// A copy of the map's current contents.
    ///
    /// # Errors
    /// As for [`Session::map_words`].
    pub fn snapshot(&self, session: &mut dyn Session) -> Result<Snapshot<K, V>, DeviceError> {
        let table = Table::new(&self.map, session.map_words(self.number)?);
        Ok(Snapshot { map: self.map.clone(), table, is_compact: false, types: PhantomData })
    }

    /// Changes several entries atomically: `change` gets a copy of the map, which is written back
    /// if it succeeds and discarded if it fails.
    ///
    /// # Errors
    /// Errors of `change`, of [`Session::map_words`] and of [`Session::set_map_words`].
    pub fn update<T, E: From<DeviceError>>(
        &self,
        session: &mut dyn Session,
        change: impl FnOnce(&mut Snapshot<K, V>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut rows = self.snapshot(session)?;
        let result = change(&mut rows)?;
        let (at, words) = rows.table.changes();
        session.set_map_words(self.number, at, words)?;
        Ok(result)
    }
}

/// The entries of a map after some batch, with Rust types for keys and values.
#[derive(Debug, Clone)]
pub struct Snapshot<K, V> {
    map: Declaration,
    table: Table,
    /// Set if no key was removed since the last compaction; compacting again would free no slot.
    is_compact: bool,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Words, V: Words> Snapshot<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        self.table.get(&words(key)).map(V::read)
    }

    /// Sets the value of a key, inserting the entry if it is absent.
    ///
    /// # Errors
    /// If there is no room for the entry, or the key is not valid for the map.
    pub fn set(&mut self, key: &K, value: &V) -> Result<(), UpdateError> {
        let (key, value) = (words(key), words(value));
        check(&self.map, &key)?;
        if self.table.set(&key, &value).is_ok() {
            return Ok(());
        }
        if self.is_compact {
            return Err(MapFull.into());
        }
        // Removed keys occupy slots until the map is compacted.
        self.table.compact();
        self.is_compact = true;
        Ok(self.table.set(&key, &value)?)
    }

    /// Removes a key; returns whether it was present. An entry by index is always present; it is
    /// set to zeros.
    pub fn remove(&mut self, key: &K) -> bool {
        self.is_compact = false;
        self.table.remove(&words(key))
    }

    /// Iterates over the current entries in order of their keys. The snapshot may change meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        self.table.rows().into_iter().map(|row| (K::read(&row.key), V::read(&row.value)))
    }

    /// The snapshot in words.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// Checks that a key is valid for a map.
fn check(map: &Declaration, key: &[u32]) -> Result<(), UpdateError> {
    match map.kind {
        MapKind::Array | MapKind::Counter if key[0] >= map.entries => Err(UpdateError::NoEntry(key[0])),
        MapKind::Lpm => Ok(lpm::check(map, key)?),
        _ => Ok(()),
    }
}

fn words<T: Words>(of: &T) -> Vec<u32> {
    let mut words = vec![0; T::COUNT];
    of.write(&mut words);
    words
}
