//! A map of a session's, with keys and values of types of Rust's.

use std::marker::PhantomData;

use super::declaration::{Declaration, MapKind};
use super::entry::{EntryAccess, EntryUpdate};
use super::lpm::{self, PrefixError};
use super::table::{MapFull, Table};
use super::words::Words;
use crate::device::{DeviceError, Session};
use crate::program::Program;

/// A map of a filter's. It belongs to no session: each call says in which it means the map, and the session is one
/// of the same filter.
///
/// What is written is there for all batches that are submitted after, and for none before: to a batch an update is
/// there as a whole or not at all. What is read is what the batches submitted so far have left.
///
/// ```
/// use std::net::Ipv4Addr;
/// use std::sync::Arc;
///
/// use portcullis_core::device::{Device, LoadOptions};
/// use portcullis_core::interp::Interp;
/// use portcullis_core::lang::{Source, wgsl};
/// use portcullis_core::map::{Handle, UpdateError};
/// use portcullis_core::packet::Batch;
/// use portcullis_core::program::ProgramOptions;
///
/// let text = "
///     //! map blocked: hash key=1 value=1 entries=1000
///     //! map seen: counter entries=1
///     fn xdp_filter(pkt: u32) -> u32 {
///         seen_add(0u, 1u);
///         let entry = blocked_find(load_be32(pkt, 26u));
///         if entry == MAP_NONE { return XDP_PASS; }
///         blocked_add(entry, 0u, 1u);
///         return XDP_DROP;
///     }";
/// let program = Arc::new(wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default())?);
/// let mut session = Interp::new().load(&program, &LoadOptions::default())?;
/// let session = &mut *session;
///
/// let blocked = Handle::<Ipv4Addr, u32>::open(&program, "blocked")?;
/// let seen = Handle::<u32, u64>::open(&program, "seen")?;
/// let bad = Ipv4Addr::new(10, 0, 0, 19);
/// blocked.set(session, &bad, &0)?;
///
/// let mut packet = [0; 60];
/// packet[26..30].copy_from_slice(&bad.octets());
/// let done = session.run(Batch::from_packets(&[packet, packet, [0; 60]])?)?;
/// assert_eq!(done.verdicts.counts()[1], 2); // are dropped
/// assert_eq!(blocked.get(session, &bad)?, Some(2));
/// assert_eq!(seen.get(session, &0)?, Some(3));
///
/// // Several changes at once, or none of them.
/// blocked.update(session, |rows| {
///     rows.remove(&bad);
///     for last in 1..=9 {
///         rows.set(&Ipv4Addr::new(192, 0, 2, last), &0)?;
///     }
///     Ok::<(), UpdateError>(())
/// })?;
/// let rows = blocked.snapshot(session)?;
/// assert_eq!(rows.iter().next(), Some((Ipv4Addr::new(192, 0, 2, 1), 0)));
/// assert_eq!(rows.iter().count(), 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct MapHandle<K, V> {
    number: usize,
    map: Declaration,
    types: PhantomData<fn(K) -> V>,
}

/// Why there is no handle on a map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No map of the filter's has this name.
    #[error("the filter has no map `{0}`")]
    NoMap(String),
    /// Its keys or values are of another size.
    #[error("the map `{map}` has {part}s of {declared} words, and the type asked for is {asked}")]
    Size {
        /// The map.
        map: String,
        /// `key` or `value`.
        part: &'static str,
        /// Words, as declared.
        declared: usize,
        /// Words of the type.
        asked: usize,
    },
}

/// Why a map could not be changed; it is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// There is no room for an entry.
    #[error(transparent)]
    MapFull(#[from] MapFull),
    /// A map by number has no entry of this number.
    #[error("the map has no entry {0}")]
    NoEntry(u32),
    /// A key of an `lpm` is no prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The session's error.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl<K: Words, V: Words> MapHandle<K, V> {
    /// That on the map of this name. Keys of maps by number are `u32`, those of an `lpm` are [`Prefix`](super::Prefix),
    /// sums of counters `u64`.
    ///
    /// # Errors
    /// Where there is no such map, or its keys or values have another number of words.
    pub fn open(program: &Program, name: &str) -> Result<MapHandle<K, V>, OpenError> {
        let mut maps = program.maps().iter().enumerate();
        let found = maps.find(|(_, map)| map.name == name);
        let (number, map) = found.ok_or_else(|| OpenError::NoMap(name.into()))?;
        for (part, declared, asked) in [("key", map.key_words(), K::COUNT), ("value", map.value, V::COUNT)] {
            if declared as usize != asked {
                return Err(OpenError::Size { map: name.into(), part, declared: declared as usize, asked });
            }
        }
        Ok(MapHandle { number, map: map.clone(), types: PhantomData })
    }

    /// The map's declaration.
    pub fn declaration(&self) -> &Declaration {
        &self.map
    }

    /// The value of a key. For many of them take a [`snapshot`](Handle::snapshot): this reads of the map what a search for
    /// one looks at; of an `lpm` all prefixes.
    ///
    /// # Errors
    /// Those of [`Session::map_words_at`].
    pub fn get(&self, session: &mut dyn Session, key: &K) -> Result<Option<V>, DeviceError> {
        let found = EntryAccess::new(session, self.number, &self.map, &words(key)).get()?;
        Ok(found.map(|value| V::read(&value)))
    }

    /// Gives a key a value; makes the entry where there is none. Many are set faster in one [`update`](Handle::update): this
    /// reads of the map what a search for one looks at, and writes what changes. It takes a copy of the whole where room
    /// has to be made, and of an `lpm` for a prefix that is new, or any where the filter only reads its values.
    ///
    /// # Errors
    /// Where there is no room or no such entry, or the session fails.
    pub fn set(&self, session: &mut dyn Session, key: &K, value: &V) -> Result<(), UpdateError> {
        let number = words(key);
        check(&self.map, &number)?;
        match EntryAccess::new(session, self.number, &self.map, &number).set(&words(value))? {
            EntryUpdate::Done => Ok(()),
            EntryUpdate::Impossible => Err(MapFull.into()),
            EntryUpdate::NeedsFullCopy => self.update(session, |rows| rows.set(key, value)),
        }
    }

    /// Removes a key; whether it was there. Entries by number always are, and are set to zeros. As with
    /// [`set`](Handle::set), the whole map is copied only to remove a prefix of an `lpm`.
    ///
    /// # Errors
    /// Those of [`Session::set_map_words`].
    pub fn remove(&self, session: &mut dyn Session, key: &K) -> Result<bool, DeviceError> {
        match EntryAccess::new(session, self.number, &self.map, &words(key)).remove()? {
            EntryUpdate::Done => Ok(true),
            EntryUpdate::Impossible => Ok(false),
            EntryUpdate::NeedsFullCopy => self.update(session, |rows| Ok(rows.remove(key))),
        }
    }

    /// What is in the map: a copy that stays as it is.
    ///
    /// # Errors
    /// Those of [`Session::map_words`].
    pub fn snapshot(&self, session: &mut dyn Session) -> Result<Snapshot<K, V>, DeviceError> {
        let table = Table::new(&self.map, session.map_words(self.number)?);
        Ok(Snapshot { map: self.map.clone(), table, tidy: false, types: PhantomData })
    }

    /// Changes several entries at once, by what is in the map: all of it, or nothing where `change` gives an error. It gets
    /// a copy, which is written back when it has ended.
    ///
    /// # Errors
    /// That of `change`, and those of [`Session::map_words`] and [`Session::set_map_words`].
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

/// The entries of a map as they were at a batch's end, with keys and values of types of Rust's.
#[derive(Debug, Clone)]
pub struct Snapshot<K, V> {
    map: Declaration,
    table: Table,
    /// No key was removed since removed keys were forgotten: doing it again would win no room.
    tidy: bool,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Words, V: Words> Snapshot<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        self.table.get(&words(key)).map(V::read)
    }

    /// Gives a key a value; makes the entry where there is none.
    ///
    /// # Errors
    /// Where there is no room for it, or the map has no such keys.
    pub fn set(&mut self, key: &K, value: &V) -> Result<(), UpdateError> {
        let (key, value) = (words(key), words(value));
        check(&self.map, &key)?;
        if self.table.set(&key, &value).is_ok() {
            return Ok(());
        }
        if self.tidy {
            return Err(MapFull.into());
        }
        // Keys that were removed take room until they are forgotten.
        self.table.tidy();
        self.tidy = true;
        Ok(self.table.set(&key, &value)?)
    }

    /// Removes a key; whether it was there. Entries by number always are, and are set to zeros.
    pub fn remove(&mut self, key: &K) -> bool {
        self.tidy = false;
        self.table.remove(&words(key))
    }

    /// All entries as they are now, in order of their keys. They may be changed while one goes through them.
    pub fn iter(&self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        self.table.rows().into_iter().map(|row| (K::read(&row.key), V::read(&row.value)))
    }

    /// The same in words.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// Refuses what is no key of a map's.
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
