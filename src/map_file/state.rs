//! State files: all entries of a filter's maps, kept from one run to the next. The format is
//! specified in `docs/reference/map-memory.md`.
//!
//! A file contains entries rather than the maps' memory, so that a map's capacity may change
//! between runs. A checksum covers the whole file: truncation or a flipped bit is detected before
//! any map is changed.

use std::io::{self, Write};

use portcullis_core::map::{Declaration, MapKind};

use super::entries::Entries;

/// First bytes of a state file.
pub const MAGIC: &[u8; 16] = b"portcullis state";

/// Version of the format.
pub const VERSION: u32 = 1;

/// Why a state file is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The file does not begin with [`MAGIC`].
    #[error("not a state file written by --state; choose another name, or remove the file to start over")]
    NotAStateFile,
    /// The format has another version.
    #[error("format version {0} is not supported (expected {VERSION}); use the release that wrote the file")]
    Version(u32),
    /// The file is truncated or corrupted.
    #[error("the file is damaged ({0}); restore a copy, or remove it to start over")]
    Damaged(&'static str),
    /// The filter's maps differ from those in the file.
    #[error("{0}; use a separate file for each filter, or remove this one to start over")]
    MapsDiffer(String),
    /// A map has become too small for its entries.
    #[error("{0}; increase the number of entries, or remove the file to start over")]
    NoRoom(String),
}

/// Writes a state file: the header, each map in the filter's order, and the checksum.
pub struct Writer<'a> {
    out: &'a mut dyn Write,
    checksum: Checksum,
}

impl<'a> Writer<'a> {
    /// Writes the header.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(out: &'a mut dyn Write, maps: usize) -> io::Result<Writer<'a>> {
        let mut writer = Writer { out, checksum: Checksum::new() };
        writer.write_bytes(MAGIC)?;
        writer.write_words(&[VERSION, maps as u32])?;
        Ok(writer)
    }

    /// Writes the entries of the next map, from its memory as a session returns it.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_map(&mut self, map: &Declaration, words: &[u32]) -> io::Result<()> {
        let entries = Entries::in_memory(map, words);
        let (length, count) = (map.name.len() as u32, entries.len() as u32);
        self.write_words(&[kind_number(map.kind), map.key, map.value, map.entries, count, length])?;
        let mut name = map.name.clone().into_bytes();
        name.resize(name.len().next_multiple_of(4), 0);
        self.write_bytes(&name)?;
        self.write_words(entries.words())
    }

    /// Writes the checksum.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn finish(self) -> io::Result<()> {
        self.out.write_all(&self.checksum.0.to_le_bytes())
    }

    fn write_words(&mut self, words: &[u32]) -> io::Result<()> {
        let mut buffer = [0; 4096];
        for words in words.chunks(buffer.len() / 4) {
            let bytes = &mut buffer[..4 * words.len()];
            bytes.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
            self.write_bytes(bytes)?;
        }
        Ok(())
    }

    /// Writes bytes, a multiple of four of them, and adds them to the checksum.
    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.out.write_all(bytes)
    }
}

/// Parses a state file. Returns the entries of each map, in the filter's order.
///
/// # Errors
/// See [`StateError`].
pub fn read(maps: &[Declaration], bytes: &[u8]) -> Result<Vec<Entries>, StateError> {
    let content = bytes.strip_prefix(MAGIC).ok_or(StateError::NotAStateFile)?;
    let short = StateError::Damaged("it is too short");
    let (version, _) = content.split_first_chunk::<4>().ok_or_else(|| short.clone())?;
    match u32::from_le_bytes(*version) {
        VERSION => {}
        version => return Err(StateError::Version(version)),
    }
    let (before, sum) = bytes.split_last_chunk::<8>().ok_or_else(|| short.clone())?;
    let mut expected = Checksum::new();
    if !before.len().is_multiple_of(4) || expected.update(before) != u64::from_le_bytes(*sum) {
        return Err(StateError::Damaged("truncated or changed: wrong checksum"));
    }
    let mut reader = Reader { rest: before.get(MAGIC.len() + 4..).ok_or(short)? };
    let mut all: Vec<Option<Entries>> = vec![None; maps.len()];
    for _ in 0..reader.read_word()? {
        let (at, entries) = reader.read_map(maps)?;
        if all[at].replace(entries).is_some() {
            return Err(StateError::Damaged("a map occurs twice"));
        }
    }
    if !reader.rest.is_empty() {
        return Err(StateError::Damaged("data after the end"));
    }
    let each = all.into_iter().zip(maps).map(|(entries, map)| {
        entries.ok_or_else(|| StateError::MapsDiffer(format!("it lacks the filter's map `{}`", map.name)))
    });
    each.collect()
}

/// The error for entry `number`, which does not fit into `map`.
pub fn no_room_error(map: &Declaration, entries: &Entries, number: usize) -> StateError {
    let (name, room) = (&map.name, map.entries);
    StateError::NoRoom(match (map.kind, entries.iter().nth(number)) {
        (MapKind::Array | MapKind::Counter, Some((key, _))) => {
            format!(
                "entry {} of the map `{name}` is not zero, but the map has too few entries (entries={room})",
                key[0]
            )
        }
        _ => format!(
            "the map `{name}` has {} entries in the file, but entries={room} in the filter{}",
            entries.len(),
            super::capacity_hint(map, entries.len())
        ),
    })
}

/// Parser state: the bytes that are left.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], StateError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(StateError::Damaged("a map is truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn read_word(&mut self) -> Result<u32, StateError> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    }

    /// Reads a map. Returns its index in the filter, and its entries.
    fn read_map(&mut self, maps: &[Declaration]) -> Result<(usize, Entries), StateError> {
        let kind = self.read_word()?;
        let kind = MapKind::ALL.into_iter().find(|other| kind_number(*other) == kind);
        let kind = kind.ok_or(StateError::Damaged("unknown map kind"))?;
        let [key, value, entries, count, length] =
            [self.read_word()?, self.read_word()?, self.read_word()?, self.read_word()?, self.read_word()?];
        let name = self.take((length as usize).next_multiple_of(4))?;
        let name = std::str::from_utf8(&name[..length as usize]).ok();
        // The name may end up in a message, so it must be printable.
        let name = name.filter(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
        let name = name.ok_or(StateError::Damaged("invalid map name"))?.to_owned();
        let there = Declaration::new(name, kind, key, value, entries);
        let Some(at) = maps.iter().position(|map| map.name == there.name) else {
            let what = format!(
                "it has a map `{}` ({}), but the filter has no map of this name",
                there.name,
                compatible_declaration(&there)
            );
            return Err(StateError::MapsDiffer(what));
        };
        if compatible_declaration(&maps[at]) != compatible_declaration(&there) {
            let [name, there, here] =
                [&there.name, &compatible_declaration(&there), &compatible_declaration(&maps[at])];
            let what = format!("its map `{name}` is declared as `{there}`, but the filter's as `{here}`");
            return Err(StateError::MapsDiffer(what));
        }
        let mut found = Entries::new(&maps[at]);
        let bytes = (count as usize).checked_mul(4 * found.width()).ok_or(StateError::Damaged("a map is too long"))?;
        let mut entry = Vec::with_capacity(found.width());
        for bytes in self.take(bytes)?.chunks_exact(4 * found.width()) {
            entry.clear();
            entry.extend(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
            found.push(&entry);
        }
        Ok((at, found))
    }
}

/// The part of a declaration that must not change between runs.
fn compatible_declaration(map: &Declaration) -> String {
    match map.kind {
        MapKind::Counter => "counter".into(),
        MapKind::Array => format!("array value={}", map.value),
        kind => format!("{kind} key={} value={}", map.key, map.value),
    }
}

/// Number of a kind in the file format; must not change.
fn kind_number(kind: MapKind) -> u32 {
    match kind {
        MapKind::Array => 0,
        MapKind::Hash => 1,
        MapKind::LruHash => 2,
        MapKind::Lpm => 3,
        MapKind::Counter => 4,
    }
}

/// 64-bit FNV-1a over 32-bit words instead of bytes. Any change of a single word changes it.
struct Checksum(u64);

impl Checksum {
    fn new() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }

    fn update(&mut self, bytes: &[u8]) -> u64 {
        for word in bytes.as_chunks().0 {
            self.0 = (self.0 ^ u64::from(u32::from_le_bytes(*word))).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.0
    }
}

#[cfg(test)]
mod tests;
