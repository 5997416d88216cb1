//! A map as a filter declares it. Sizes are in 32-bit words.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::annotations::Annotations;
use super::fields::Field;
use super::typed::TypeInfo;

/// Maximum number of maps in a filter: as many as Linux' verifier accepts in a program
/// (`MAX_USED_MAPS`).
pub const MAX_MAPS: usize = 64;

/// Maximum length of a map's name, in bytes.
pub const MAX_NAME_BYTES: usize = 48;

/// Maximum number of entries of a map.
pub const MAX_ENTRIES: u32 = 16 << 20;

/// Maximum size of a key, in words.
pub const MAX_KEY_WORDS: u32 = 16;
/// Maximum size of a value, in words.
pub const MAX_VALUE_WORDS: u32 = 64;

/// The kind of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapKind {
    /// Values by index, from 0 on; all entries are always present.
    Array,
    /// Values by key.
    Hash,
    /// Values by key; a full map evicts the entries that were used least recently.
    LruHash,
    /// Values by prefix of an IPv4 or IPv6 address; a lookup returns the longest match.
    Lpm,
    /// 64-bit sums by index, from 0 on.
    Counter,
}

impl MapKind {
    /// All kinds, in the order in which messages list them.
    pub const ALL: [MapKind; 5] = [MapKind::Array, MapKind::Hash, MapKind::LruHash, MapKind::Lpm, MapKind::Counter];

    /// Name of the kind in a declaration.
    pub fn name(self) -> &'static str {
        match self {
            MapKind::Array => "array",
            MapKind::Hash => "hash",
            MapKind::LruHash => "lru_hash",
            MapKind::Lpm => "lpm",
            MapKind::Counter => "counter",
        }
    }

    /// Valid sizes for `key=`; `None` if the kind takes none.
    pub(crate) fn keys(self) -> Option<RangeInclusive<u32>> {
        match self {
            MapKind::Hash | MapKind::LruHash | MapKind::Lpm => Some(1..=MAX_KEY_WORDS),
            MapKind::Array | MapKind::Counter => None,
        }
    }

    /// Valid sizes for `value=`; `None` if the kind takes none.
    pub(crate) fn values(self) -> Option<RangeInclusive<u32>> {
        match self {
            MapKind::Hash | MapKind::LruHash => Some(0..=MAX_VALUE_WORDS),
            MapKind::Array | MapKind::Lpm => Some(1..=MAX_VALUE_WORDS),
            MapKind::Counter => None,
        }
    }
}

impl fmt::Display for MapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A map as a filter declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Name of the map, with which its functions' names begin.
    pub name: String,
    /// Kind of the map.
    pub kind: MapKind,
    /// Words of a key; 1 if it is an index.
    pub key: u32,
    /// Words of a value; 2 for a counter.
    pub value: u32,
    /// Minimum number of entries that the map has room for.
    pub entries: u32,
    /// Names and types of an entry's words, key before value; empty if not declared.
    pub fields: Vec<Field>,
    /// Whether the filter never writes to values, set for the maps of a
    /// [`Program`](crate::program::Program). Prefixes of a read-only `lpm` share an entry if their
    /// values are equal.
    pub read_only: bool,
    /// Byte range of the declaration in the source.
    pub source_range: Range<usize>,
    /// Name and C types of a map of an eBPF object, which take the place of `fields`.
    pub typed: Option<Arc<TypeInfo>>,
    /// Annotations of the entries of a map by index.
    pub annotations: Option<Arc<Annotations>>,
    /// Whether the map is a ring of event records (`portcullis_xdp::events`). Only readers of
    /// events can interpret its entries.
    pub is_ring: bool,
}

impl Declaration {
    /// A declaration without optional parts.
    pub fn new(name: impl Into<String>, kind: MapKind, key: u32, value: u32, entries: u32) -> Declaration {
        Declaration {
            name: name.into(),
            kind,
            key,
            value,
            entries,
            fields: Vec::new(),
            read_only: false,
            source_range: 0..0,
            typed: None,
            annotations: None,
            is_ring: false,
        }
    }

    /// Whether the entries are of use to another run. Records of a ring are read in their own run,
    /// and counters of program sites belong to one program.
    pub fn is_persistent(&self) -> bool {
        !self.is_ring && self.annotations.is_none()
    }

    /// Maximum number of keys. A hash map of an object takes as many as it has entries, as in the
    /// kernel; others take as many as their slots allow.
    pub fn max_keys(&self) -> u32 {
        if self.kind == MapKind::Hash && self.typed.is_some() { self.entries } else { u32::MAX }
    }

    /// Words of a key in the host's interface: for an `lpm`, the address's words and the prefix's
    /// length.
    pub fn key_words(&self) -> u32 {
        self.key + u32::from(self.kind == MapKind::Lpm)
    }
}
