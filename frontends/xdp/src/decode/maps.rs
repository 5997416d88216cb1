//! An object's maps as maps of a filter: what there is for each kind of the kernel's, and the functions that programs need of
//! them besides.

use std::collections::HashSet;

use crate::events::PRINTS;
use crate::lower::emit::TRAPS;
use crate::object::{MapDefinition, MapType, Object};
use crate::parameters::section_type;
use portcullis_core::map::declaration::{MAX_ENTRIES, MAX_KEY_WORDS};
use portcullis_core::map::layout::{HEADER_WORDS, Layout, MAX_WORDS, STATE_PRESENT};
use portcullis_core::map::lpm::TrieLayout;
use portcullis_core::map::typed::{CType, TypeInfo};
use portcullis_core::map::{Declaration, MapKind, atomic_functions};

/// What a map is used as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    /// By number.
    Array,
    /// By key.
    Hash,
    /// By prefix, by whole addresses alone.
    Lpm,
    /// By prefix, of any lengths (`prefixes`).
    Prefixes,
    /// To tell the host of events: [`crate::events`] says what it becomes.
    EventRing,
    /// It cannot be, for this reason.
    Refused(String),
}

/// A map of an object's.
#[derive(Debug, Clone)]
pub(crate) struct MapInfo {
    /// The name of the map that it becomes.
    pub name: String,
    pub definition: MapDefinition,
    pub used_as: Use,
}

impl MapInfo {
    /// Whether it is a section of global variables.
    pub fn is_data(&self) -> bool {
        self.definition.data.is_some()
    }

    /// Whether there is one value, which is always there.
    pub fn is_one_value(&self) -> bool {
        self.is_data() || self.definition.ty.is_array() && self.definition.max_entries == 1
    }

    /// The map that it becomes.
    pub fn declaration(&self) -> Declaration {
        let MapDefinition { ty, key_size, value_size, max_entries, .. } = self.definition;
        let words = |bytes: u32| bytes.div_ceil(4);
        let (kind, key) = match &self.used_as {
            Use::Hash if ty.is_lru() => (MapKind::LruHash, words(key_size)),
            Use::Hash | Use::Prefixes => (MapKind::Hash, words(key_size)),
            Use::Lpm => (MapKind::Lpm, words(key_size) - 1),
            _ => (MapKind::Array, 1),
        };
        Declaration::new(self.name.clone(), kind, key, words(value_size), max_entries)
    }

    /// What the object says of its keys and values.
    pub fn typed(&self, object: &Object) -> TypeInfo {
        let MapDefinition { ty, key_size, value_size, key, value, .. } = self.definition;
        let of = |number: Option<u32>, size: u32| {
            let known = number.and_then(|number| object.btf.c_type(number)).filter(|ty| ty.size == size);
            known.unwrap_or_else(|| CType::unknown(size))
        };
        let value = if self.is_data() { section_type(object, &self.definition) } else { of(value, value_size) };
        TypeInfo {
            name: self.definition.name.clone(),
            map_type: ty.name(),
            map_type_number: ty.0,
            key: of(key, key_size),
            value,
            constant: self.definition.read_only,
        }
    }

    /// That its memory is not too large.
    fn fits(&self) -> Result<(), String> {
        let declared = self.declaration();
        let words = match declared.kind {
            MapKind::Lpm => TrieLayout::of(&declared).end,
            _ => Layout::of(&declared).words() as u64,
        };
        match words {
            0..=MAX_WORDS => Ok(()),
            _ => Err(format!("would take {words} words of memory at worst, and {MAX_WORDS} are the most")),
        }
    }

    /// Whether it takes no key beyond its entries. (An LRU map makes room.)
    pub fn is_limited(&self) -> bool {
        let ty = self.definition.ty;
        ty.is_hash() || ty == MapType::LPM_TRIE
    }

    /// Functions that programs need besides a map's own.
    pub fn text(&self) -> String {
        if self.used_as == Use::Lpm && self.definition.value_size == 0 {
            return String::new();
        }
        let key = match self.declaration().key {
            1 => "u32".into(),
            words @ 2..=4 => format!("vec{words}<u32>"),
            words => format!("array<u32, {words}>"),
        };
        let mut text = TEXT.to_owned();
        if self.is_limited() {
            text += INSERT;
        }
        if self.used_as != Use::Lpm {
            let layout = Layout::of(&self.declaration());
            let Layout { slots: places, stride, state, .. } = layout;
            let mut by_place = GET.to_owned();
            if self.declaration().kind != MapKind::Array {
                by_place += EACH;
            }
            let numbers = [
                ("PLACES", places),
                ("STRIDE", stride),
                ("STATE", state),
                ("HEADER", HEADER_WORDS),
                ("THERE", STATE_PRESENT),
                ("LAST", layout.words() as u32 - 1),
            ];
            let add =
                |text: String, (name, number): &(&str, u32)| text.replace(&format!("{name}u"), &format!("{number}u"));
            text += &numbers.iter().fold(by_place, add);
        }
        if self.used_as == Use::Prefixes {
            let MapDefinition { key_size, .. } = self.definition;
            text += &crate::lower::prefix_trie::text(&key, self.declaration().key, 8 * (key_size - 4));
        }
        let insert = if self.is_limited() { "x_NAME_insert" } else { "NAME_insert" };
        let text = text.replace("ADDED", insert).replace("ENTRIES", &self.definition.max_entries.to_string());
        let text = text.replace("KEY", &key).replace("NAME", &self.name);
        atomic_functions(&self.name).fold(text, |text, (_, change)| text + &change)
    }
}

/// All maps of an object.
pub(crate) fn maps(object: &Object) -> Vec<MapInfo> {
    // Maps that are no object's go by these.
    let mut names: HashSet<String> = [PRINTS, TRAPS].map(str::to_owned).into();
    let mut infos = Vec::new();
    for definition in &object.maps {
        let mut name: String = definition
            .name
            .trim_start_matches(['.', '_'])
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .take(portcullis_core::map::declaration::MAX_NAME_BYTES - 4)
            .collect();
        // What functions' names begin with must be nobody else's.
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || name == "x"
            || portcullis_core::map::declaration::reserved_name_conflict(&name).is_some()
        {
            name = format!("m_{name}");
        }
        let mut own = name.clone();
        let mut number = 2;
        while !names.insert(own.clone()) {
            own = format!("{name}_{number}");
            number += 1;
        }
        let used_as = used_as(definition);
        infos.push(MapInfo { name: own, definition: definition.clone(), used_as });
    }
    infos
}

/// Entries of a map of this type, at most. Arrays, which are nothing but their values, may have more: rings of hashes have
/// tens of millions.
pub(crate) fn most_entries(ty: MapType) -> u32 {
    if ty.is_array() { 4 * MAX_ENTRIES } else { MAX_ENTRIES }
}

fn used_as(map: &MapDefinition) -> Use {
    let MapDefinition { ty, key_size, value_size, max_entries, .. } = *map;
    let refused = |why: String| Use::Refused(format!("the map `{}` {why}", map.name));
    let used = match ty {
        MapType::PERF_EVENT_ARRAY => return Use::EventRing,
        MapType::RINGBUF if max_entries == 0 => {
            return refused(format!("has no room: set its bytes with `--set {}.max_entries=N`", map.name));
        }
        MapType::RINGBUF => return Use::EventRing,
        MapType::HASH_OF_MAPS | MapType::DEVMAP_HASH => Use::Hash,
        _ if ty.is_hash() || ty.is_lru() => Use::Hash,
        MapType::PROG_ARRAY | MapType::ARRAY_OF_MAPS => Use::Array,
        _ if ty.is_array() || ty.holds_redirect_targets() => Use::Array,
        MapType::LPM_TRIE if key_size == 8 || key_size == 20 => Use::Lpm,
        MapType::LPM_TRIE => Use::Prefixes,
        other => return refused(format!("is of {}, which there is none of here", other.words())),
    };
    if max_entries == 0 {
        return refused(format!("has no entries: set how many with `--set {}.max_entries=N`", map.name));
    }
    let most = most_entries(ty);
    if max_entries > most {
        return refused(format!(
            "has {max_entries} entries, and {most} are the most: set fewer with `--set {}.max_entries=N`",
            map.name
        ));
    }
    if map.data.is_none() && value_size > MAX_VALUE {
        return refused(format!("has values of {value_size} bytes, and {MAX_VALUE} are the most"));
    }
    if value_size == 0 && used != Use::Hash {
        return refused("has values of no size".into());
    }
    // As the kernel has them: what is behind a target's number, a program for example, is nothing here.
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
        Use::Array if key_size != 4 => refused(format!("has keys of {key_size} bytes, and numbers have 4")),
        Use::Hash if key_size == 0 || key_size > 4 * MAX_KEY_WORDS => {
            refused(format!("has keys of {key_size} bytes, and {} are the most", 4 * MAX_KEY_WORDS))
        }
        Use::Prefixes if !(5..=4 * MAX_KEY_WORDS).contains(&key_size) => {
            let most = 4 * MAX_KEY_WORDS;
            refused(format!("has keys of {key_size} bytes: a prefix's length and what it is of have 5 to {most} here"))
        }
        used => {
            let info = MapInfo { name: String::new(), definition: map.clone(), used_as: used };
            match info.fits() {
                Ok(()) => info.used_as,
                Err(why) => refused(why),
            }
        }
    }
}

/// Has a trie of addresses searched for prefixes of any length.
pub(crate) fn by_length(map: &mut MapInfo) -> Result<(), String> {
    map.used_as = Use::Prefixes;
    map.fits().map_err(|why| format!("the map `{}` {why}", map.definition.name))
}

/// Bytes of a value, at most.
const MAX_VALUE: u32 = 1 << 20;

/// A word of an entry that is known to be there, by where it is: `NAME_read` would ask whether there is such an entry. That no
/// place is beyond the map is the front end's proof; this is for a fault in it.
const GET: &str = "
fn x_NAME_get(at: u32) -> u32 {
    return atomicLoad(&pc_map_NAME[min(at, LASTu)]);
}
";

/// Going through the entries of a map by key.
const EACH: &str = "
// The first place from this one on that has an entry.
fn x_NAME_next(start: u32) -> u32 {
    for (var place = start; place < PLACESu; place = place + 1u) {
        if atomicLoad(&pc_map_NAME[HEADERu + place * STRIDEu + STATEu]) == THEREu { return place; }
    }
    return PLACESu;
}

// A word of the key there, of which the upper bits are in the next word in memory (`layout::stored`).
fn x_NAME_key(place: u32, word: u32) -> u32 {
    let at = HEADERu + place * STRIDEu + word;
    if place >= PLACESu { return 0u; }
    let low = (atomicLoad(&pc_map_NAME[at]) & 0x7fffffffu) >> word;
    return low | (atomicLoad(&pc_map_NAME[at + 1u]) << (31u - word));
}
";

/// Of a map that takes no key beyond its entries, though it has room for more.
const INSERT: &str = "
// How many entries there are: no fewer than there are at any time between the two, since those removed are read first.
fn x_NAME_entries() -> u32 {
    let removed = atomicLoad(&pc_map_NAME[1]);
    return atomicLoad(&pc_map_NAME[0]) - removed;
}

fn x_NAME_insert(key: KEY) -> u32 {
    if x_NAME_entries() >= ENTRIESu {
        let entry = NAME_find(key);
        return select(entry, MAP_FULL, entry == MAP_NONE);
    }
    let entry = NAME_insert(key);
    if !map_is_new(entry) || x_NAME_entries() <= ENTRIESu { return entry; }
    // Others came in between, and were first.
    NAME_remove(key);
    return MAP_FULL;
}
";

/// What C's operators on a map's value need besides [`atomic_functions`].
const TEXT: &str = "
// Adds to a number of 64 bits; what was there before, the low word first. The carry is added apart: between the two it is
// not right, and in the end it is.
fn x_NAME_add64(entry: u32, word: u32, low: u32, high: u32) -> vec2<u32> {
    let was = NAME_add(entry, word, low);
    let more = high + select(0u, 1u, was + low < was);
    var top = 0u;
    if more == 0u {
        top = NAME_read(entry, word + 1u);
    } else {
        top = NAME_add(entry, word + 1u, more);
    }
    return vec2<u32>(was, top);
}

// An entry to write to, by the flags of an update; or why there is none: two more than the maps' own, that the key is there
// already, and that there are no such flags.
fn x_NAME_update(key: KEY, flags: u32) -> u32 {
    if flags == 0u { return ADDED(key); }
    if flags == 2u { return NAME_find(key); }
    if flags != 1u { return 0xfffffffcu; }
    let entry = ADDED(key);
    return select(0xfffffffdu, entry, entry == MAP_FULL || map_is_new(entry));
}
";
