//! All entries of a filter's maps, carried from one run to the next. `docs/maps.md` has the format.
//!
//! There are entries in such a file and not the maps' memory, so that a map can get another number of entries between
//! two runs. A file is read as a whole before anything comes of it: what was cut off, or changed by as little as a bit, is
//! refused.

use std::io::{self, Write};

use portcullis_core::map::{Declaration, MapKind};

use super::entries::Entries;

/// How such a file begins.
pub const MAGIC: &[u8; 16] = b"portcullis state";

/// The only version of the format.
pub const VERSION: u32 = 1;

/// Why a file is not taken for state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// It does not begin as one.
    #[error("this is no file that --state has written; choose another name, or remove it to begin anew")]
    Foreign,
    /// A version that there was not when this was written.
    #[error("its format is version {0}, and this program knows version {VERSION}; run the program that has written it")]
    Version(u32),
    /// It was cut off, or changed.
    #[error("it is damaged ({0}); put a copy in its place, or remove it to begin anew")]
    Damaged(&'static str),
    /// The filter has other maps.
    #[error("{0}; give each filter a file of its own, or remove this one to begin anew")]
    Differs(String),
    /// A map has become smaller than what was in it.
    #[error("{0}; declare more, or remove the file to begin anew")]
    ResizeRoom(String),
}

/// Writes state: maps one by one, in the filter's order.
pub struct Writer<'a> {
    out: &'a mut dyn Write,
    sum: Sum,
}

impl<'a> Writer<'a> {
    /// Writes how it begins.
    ///
    /// # Errors
    /// What `out` fails with.
    pub fn new(out: &'a mut dyn Write, maps: usize) -> io::Result<Writer<'a>> {
        let mut writer = Writer { out, sum: Sum::new() };
        writer.bytes(MAGIC)?;
        writer.words(&[VERSION, maps as u32])?;
        Ok(writer)
    }

    /// Writes the entries of the next map, out of its memory as a session gives it.
    ///
    /// # Errors
    /// What `out` fails with.
    pub fn map(&mut self, map: &Declaration, words: &[u32]) -> io::Result<()> {
        let entries = Entries::in_memory(map, words);
        let (length, count) = (map.name.len() as u32, entries.len() as u32);
        self.words(&[number(map.kind), map.key, map.value, map.entries, count, length])?;
        let mut name = map.name.clone().into_bytes();
        name.resize(name.len().next_multiple_of(4), 0);
        self.bytes(&name)?;
        self.words(entries.words())
    }

    /// Writes how it ends.
    ///
    /// # Errors
    /// What `out` fails with.
    pub fn finish(self) -> io::Result<()> {
        self.out.write_all(&self.sum.0.to_le_bytes())
    }

    fn words(&mut self, words: &[u32]) -> io::Result<()> {
        let mut buffer = [0; 4096];
        for words in words.chunks(buffer.len() / 4) {
            let bytes = &mut buffer[..4 * words.len()];
            bytes.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
            self.bytes(bytes)?;
        }
        Ok(())
    }

    /// A whole number of words.
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.take(bytes);
        self.out.write_all(bytes)
    }
}

/// The entries of each of a filter's maps, in the filter's order.
///
/// # Errors
/// See [`StateError`].
pub fn read(maps: &[Declaration], bytes: &[u8]) -> Result<Vec<Entries>, StateError> {
    let content = bytes.strip_prefix(MAGIC).ok_or(StateError::Foreign)?;
    let short = StateError::Damaged("it is too short");
    let (version, _) = content.split_first_chunk::<4>().ok_or_else(|| short.clone())?;
    match u32::from_le_bytes(*version) {
        VERSION => {}
        version => return Err(StateError::Version(version)),
    }
    let (before, sum) = bytes.split_last_chunk::<8>().ok_or_else(|| short.clone())?;
    let mut expected = Sum::new();
    if !before.len().is_multiple_of(4) || expected.take(before) != u64::from_le_bytes(*sum) {
        return Err(StateError::Damaged("cut off or changed: its checksum is another"));
    }
    let mut reader = Reader { rest: before.get(MAGIC.len() + 4..).ok_or(short)? };
    let mut all: Vec<Option<Entries>> = vec![None; maps.len()];
    for _ in 0..reader.word()? {
        let (at, entries) = reader.map(maps)?;
        if all[at].replace(entries).is_some() {
            return Err(StateError::Damaged("it has a map twice"));
        }
    }
    if !reader.rest.is_empty() {
        return Err(StateError::Damaged("there is something behind its end"));
    }
    let each = all.into_iter().zip(maps).map(|(entries, map)| {
        entries.ok_or_else(|| StateError::Differs(format!("the filter's map `{}` is not in it", map.name)))
    });
    each.collect()
}

/// That there is no room for an entry.
pub fn no_room_error(map: &Declaration, entries: &Entries, number: usize) -> StateError {
    let (name, room) = (&map.name, map.entries);
    StateError::ResizeRoom(match (map.kind, entries.iter().nth(number)) {
        (MapKind::Array | MapKind::Counter, Some((key, _))) => {
            format!("entry {} of the map `{name}` is not zero, and the map ends before (entries={room})", key[0])
        }
        _ => format!(
            "the map `{name}` has {} entries in it, for which entries={room} of the filter's is too few{}",
            entries.len(),
            super::capacity_hint(map, entries.len())
        ),
    })
}

/// What is left to read.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], StateError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(StateError::Damaged("a map is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, StateError> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    }

    /// A map's number among the filter's, and its entries.
    fn map(&mut self, maps: &[Declaration]) -> Result<(usize, Entries), StateError> {
        let kind = self.word()?;
        let kind = MapKind::ALL.into_iter().find(|other| number(*other) == kind);
        let kind = kind.ok_or(StateError::Damaged("a map is of no kind"))?;
        let [key, value, entries, count, length] =
            [self.word()?, self.word()?, self.word()?, self.word()?, self.word()?];
        let name = self.take((length as usize).next_multiple_of(4))?;
        let name = std::str::from_utf8(&name[..length as usize]).ok();
        // It may come to be shown.
        let name = name.filter(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
        let name = name.ok_or(StateError::Damaged("a map has no name"))?.to_owned();
        let there = Declaration::new(name, kind, key, value, entries);
        let Some(at) = maps.iter().position(|map| map.name == there.name) else {
            let what =
                format!("it has a map `{}` ({}), and the filter has none of this name", there.name, shape(&there));
            return Err(StateError::Differs(what));
        };
        if shape(&maps[at]) != shape(&there) {
            let [name, there, here] = [&there.name, &shape(&there), &shape(&maps[at])];
            let what = format!("its map `{name}` is declared as `{there}`, and the filter's as `{here}`");
            return Err(StateError::Differs(what));
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

/// A declaration as far as it must stay the same.
fn shape(map: &Declaration) -> String {
    match map.kind {
        MapKind::Counter => "counter".into(),
        MapKind::Array => format!("array value={}", map.value),
        kind => format!("{kind} key={} value={}", map.key, map.value),
    }
}

/// A kind's number in files, which stays what it is.
fn number(kind: MapKind) -> u32 {
    match kind {
        MapKind::Array => 0,
        MapKind::Hash => 1,
        MapKind::LruHash => 2,
        MapKind::Lpm => 3,
        MapKind::Counter => 4,
    }
}

/// FNV-1a of 64 bits, over words of 4 bytes in place of bytes. A change of a single word changes it for certain.
struct Sum(u64);

impl Sum {
    fn new() -> Sum {
        Sum(0xcbf2_9ce4_8422_2325)
    }

    fn take(&mut self, bytes: &[u8]) -> u64 {
        for word in bytes.as_chunks().0 {
            self.0 = (self.0 ^ u64::from(u32::from_le_bytes(*word))).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.0
    }
}

#[cfg(test)]
mod tests;
