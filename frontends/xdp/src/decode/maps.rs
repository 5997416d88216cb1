//! The object's maps as maps of a filter: which kind of map each kernel map type becomes.

use std::collections::HashSet;

use crate::decode::variable_types::section_type;
use crate::events::PRINT_RING;
use crate::object::{MapDefinition, MapType, Object};
use portcullis_core::map::declaration::{MAX_ENTRIES, MAX_KEY_WORDS};
use portcullis_core::map::layout::{Layout, MAX_WORDS};
use portcullis_core::map::lpm::TrieLayout;
use portcullis_core::map::typed::{CType, TypeInfo};
use portcullis_core::map::{Declaration, MapKind};

/// Name of the map that counts traps.
pub(crate) const TRAP_MAP: &str = "traps";

/// Lowering chosen for a map of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MapUse {
    /// Indexed by number.
    Array,
    /// Indexed by key.
    Hash,
    /// A prefix table that is searched for whole addresses only.
    Lpm,
    /// A prefix trie that is searched for prefixes of any length (`lower::prefix_trie`).
    Prefixes,
    /// A ring of events for the host; see [`crate::events`].
    EventRing,
    /// The map cannot be lowered, for this reason.
    Unsupported(String),
}

/// A map of the object.
#[derive(Debug, Clone)]
pub(crate) struct MapInfo {
    /// Name of the filter's map.
    pub name: String,
    pub definition: MapDefinition,
    pub used_as: MapUse,
}

impl MapInfo {
    /// Whether the map is a section of global variables.
    pub fn is_global_section(&self) -> bool {
        self.definition.data.is_some()
    }

    /// Whether the map has a single entry, which always exists.
    pub fn has_single_value(&self) -> bool {
        self.is_global_section() || self.definition.ty.is_array() && self.definition.max_entries == 1
    }

    /// Declaration of the filter's map.
    pub fn declaration(&self) -> Declaration {
        let MapDefinition { ty, key_size, value_size, max_entries, .. } = self.definition;
        let words = |bytes: u32| bytes.div_ceil(4);
        let (kind, key) = match &self.used_as {
            MapUse::Hash if ty.is_lru() => (MapKind::LruHash, words(key_size)),
            MapUse::Hash | MapUse::Prefixes => (MapKind::Hash, words(key_size)),
            MapUse::Lpm => (MapKind::Lpm, words(key_size) - 1),
            _ => (MapKind::Array, 1),
        };
        Declaration::new(self.name.clone(), kind, key, words(value_size), max_entries)
    }

    /// Returns the types of keys and values from the object's BTF.
    pub fn type_info(&self, object: &Object) -> TypeInfo {
        let MapDefinition { ty, key_size, value_size, key, value, .. } = self.definition;
        let of = |number: Option<u32>, size: u32| {
            let known = number.and_then(|number| object.btf.c_type(number)).filter(|ty| ty.size == size);
            known.unwrap_or_else(|| CType::unknown(size))
        };
        let value =
            if self.is_global_section() { section_type(object, &self.definition) } else { of(value, value_size) };
        TypeInfo {
            name: self.definition.name.clone(),
            map_type: ty.name(),
            map_type_number: ty.0,
            key: of(key, key_size),
            value,
            constant: self.definition.read_only,
        }
    }

    /// Checks that the map's memory is not too large.
    fn check_size(&self) -> Result<(), String> {
        let declared = self.declaration();
        let words = match declared.kind {
            MapKind::Lpm => TrieLayout::of(&declared).end,
            _ => Layout::of(&declared).words() as u64,
        };
        match words {
            0..=MAX_WORDS => Ok(()),
            _ => Err(format!("would take up to {words} words of memory; the limit is {MAX_WORDS}")),
        }
    }

    /// Whether insertion fails at `max_entries`. (An LRU map evicts instead.)
    pub fn enforces_max_entries(&self) -> bool {
        let ty = self.definition.ty;
        ty.is_hash() || ty == MapType::LPM_TRIE
    }
}

/// Links all maps of an object, giving each a unique name that is valid in the module.
pub(crate) fn link_maps(object: &Object) -> Vec<MapInfo> {
    // Names of maps that the front end adds.
    let mut names: HashSet<String> = [PRINT_RING, TRAP_MAP].map(str::to_owned).into();
    let mut infos = Vec::new();
    for definition in &object.maps {
        let mut name: String = definition
            .name
            .trim_start_matches(['.', '_'])
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .take(portcullis_core::map::declaration::MAX_NAME_BYTES - 4)
            .collect();
        // Generated functions are called `x_…`, and some prefixes belong to the prelude.
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || name == "x"
            || portcullis_core::program::map_declarations::reserved_name_conflict(&name).is_some()
        {
            name = format!("m_{name}");
        }
        let mut own = name.clone();
        let mut number = 2;
        while !names.insert(own.clone()) {
            own = format!("{name}_{number}");
            number += 1;
        }
        let used_as = choose_use(definition);
        infos.push(MapInfo { name: own, definition: definition.clone(), used_as });
    }
    infos
}

/// Maximum number of entries of a map of this type. Arrays may have more, since they store nothing
/// but values: hash rings have tens of millions.
pub(crate) fn max_entries_of(ty: MapType) -> u32 {
    if ty.is_array() { 4 * MAX_ENTRIES } else { MAX_ENTRIES }
}

fn choose_use(map: &MapDefinition) -> MapUse {
    let MapDefinition { ty, key_size, value_size, max_entries, .. } = *map;
    let refused = |why: String| MapUse::Unsupported(format!("the map `{}` {why}", map.name));
    let used = match ty {
        MapType::PERF_EVENT_ARRAY => return MapUse::EventRing,
        MapType::RINGBUF if max_entries == 0 => {
            return refused(format!("has no room: set its bytes with `--set {}.max_entries=N`", map.name));
        }
        MapType::RINGBUF => return MapUse::EventRing,
        MapType::HASH_OF_MAPS | MapType::DEVMAP_HASH => MapUse::Hash,
        _ if ty.is_hash() || ty.is_lru() => MapUse::Hash,
        MapType::PROG_ARRAY | MapType::ARRAY_OF_MAPS => MapUse::Array,
        _ if ty.is_array() || ty.holds_redirect_targets() => MapUse::Array,
        MapType::LPM_TRIE if key_size == 8 || key_size == 20 => MapUse::Lpm,
        MapType::LPM_TRIE => MapUse::Prefixes,
        other => return refused(format!("is of {}, which is not supported", other.describe())),
    };
    if max_entries == 0 {
        return refused(format!("has no entries: set how many with `--set {}.max_entries=N`", map.name));
    }
    let most = max_entries_of(ty);
    if max_entries > most {
        return refused(format!(
            "has {max_entries} entries; the limit is {most}: set fewer with `--set {}.max_entries=N`",
            map.name
        ));
    }
    if map.data.is_none() && value_size > MAX_VALUE_BYTES {
        return refused(format!("has values of {value_size} bytes; the limit is {MAX_VALUE_BYTES}"));
    }
    if value_size == 0 && used != MapUse::Hash {
        return refused("has values of size zero".into());
    }
    // The kernel's sizes. What a value has after the target, a program for example, is ignored.
    let fits = if ty.holds_redirect_targets() {
        key_size == 4 && matches!(value_size, 4 | 8)
    } else {
        !ty.is_map_of_maps() || value_size == 4
    };
    if !fits {
        return refused(format!(
            "has keys of {key_size} bytes and values of {value_size}, which a map of type {} cannot have",
            ty.name()
        ));
    }
    match used {
        MapUse::Array if key_size != 4 => refused(format!("has keys of {key_size} bytes; an index has 4")),
        MapUse::Hash if key_size == 0 || key_size > 4 * MAX_KEY_WORDS => {
            refused(format!("has keys of {key_size} bytes; the limit is {}", 4 * MAX_KEY_WORDS))
        }
        MapUse::Prefixes if !(5..=4 * MAX_KEY_WORDS).contains(&key_size) => {
            let most = 4 * MAX_KEY_WORDS;
            refused(format!("has keys of {key_size} bytes; a prefix length and its data have 5 to {most}"))
        }
        used => {
            let info = MapInfo { name: String::new(), definition: map.clone(), used_as: used };
            match info.check_size() {
                Ok(()) => info.used_as,
                Err(why) => refused(why),
            }
        }
    }
}

/// Turns a table of whole addresses into a general prefix trie.
pub(crate) fn use_prefix_search(map: &mut MapInfo) -> Result<(), String> {
    map.used_as = MapUse::Prefixes;
    map.check_size().map_err(|why| format!("the map `{}` {why}", map.definition.name))
}

/// Maximum size of a value in bytes.
const MAX_VALUE_BYTES: u32 = 1 << 20;
