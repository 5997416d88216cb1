//! WGSL functions that programs need of a map besides the map's own.

use crate::decode::maps::{MapInfo, MapUse};
use crate::lower::prefix_trie;
use crate::object::MapDefinition;
use portcullis_core::map::layout::{HEADER_WORDS, Layout, STATE_PRESENT};
use portcullis_core::map::{MapKind, atomic_functions};

impl MapInfo {
    /// The functions that programs may call on this map.
    pub fn runtime_text(&self) -> String {
        if self.used_as == MapUse::Lpm && self.definition.value_size == 0 {
            return String::new();
        }
        let key = match self.declaration().key {
            1 => "u32".into(),
            words @ 2..=4 => format!("vec{words}<u32>"),
            words => format!("array<u32, {words}>"),
        };
        let mut text = COMMON_FUNCTIONS.to_owned();
        if self.enforces_max_entries() {
            text += INSERT_FUNCTION;
        }
        if self.used_as != MapUse::Lpm {
            let layout = Layout::of(&self.declaration());
            let Layout { slots, stride, state, .. } = layout;
            let mut by_place = LOAD_FUNCTION.to_owned();
            if self.declaration().kind != MapKind::Array {
                by_place += ITERATION_FUNCTIONS;
            }
            let numbers = [
                ("PLACES", slots),
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
        if self.used_as == MapUse::Prefixes {
            let MapDefinition { key_size, .. } = self.definition;
            text += &prefix_trie::runtime_text(&key, self.declaration().key, 8 * (key_size - 4));
        }
        let insert = if self.enforces_max_entries() { "x_NAME_insert" } else { "NAME_insert" };
        let text = text.replace("ADDED", insert).replace("ENTRIES", &self.definition.max_entries.to_string());
        let text = text.replace("KEY", &key).replace("NAME", &self.name);
        atomic_functions(&self.name).fold(text, |text, (_, change)| text + &change)
    }
}

/// Load of a word of an existing entry, by position in the map; `NAME_read` would check that the
/// entry exists. The analysis proves that the position is within the map; `min` guards against a
/// fault of the analysis.
const LOAD_FUNCTION: &str = "
fn x_NAME_get(at: u32) -> u32 {
    return atomicLoad(&pc_map_NAME[min(at, LASTu)]);
}
";

/// Iteration over the entries of a hash.
const ITERATION_FUNCTIONS: &str = "
// The first occupied slot at or after `start`.
fn x_NAME_next(start: u32) -> u32 {
    for (var place = start; place < PLACESu; place = place + 1u) {
        if atomicLoad(&pc_map_NAME[HEADERu + place * STRIDEu + STATEu]) == THEREu { return place; }
    }
    return PLACESu;
}

// A word of the key in a slot. Its upper bits are in the next word in memory (`layout::stored`).
fn x_NAME_key(place: u32, word: u32) -> u32 {
    let at = HEADERu + place * STRIDEu + word;
    if place >= PLACESu { return 0u; }
    let low = (atomicLoad(&pc_map_NAME[at]) & 0x7fffffffu) >> word;
    return low | (atomicLoad(&pc_map_NAME[at + 1u]) << (31u - word));
}
";

/// Insertion into a map that enforces `max_entries`, though it has room for more.
const INSERT_FUNCTION: &str = "
// Number of entries, never too low: removals are read first.
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
    // Other packets inserted in between and came first.
    NAME_remove(key);
    return MAP_FULL;
}
";

/// Functions for C's operators on map values, besides [`atomic_functions`].
const COMMON_FUNCTIONS: &str = "
// Adds to a 64-bit number and returns the previous value, low word first. The carry is added
// separately: in between the number is wrong, in the end it is right.
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

// The entry to write for an update with these flags, or why there is none: MAP_NONE, MAP_FULL,
// 0xfffffffd if the key exists, 0xfffffffc for invalid flags.
fn x_NAME_update(key: KEY, flags: u32) -> u32 {
    if flags == 0u { return ADDED(key); }
    if flags == 2u { return NAME_find(key); }
    if flags != 1u { return 0xfffffffcu; }
    let entry = ADDED(key);
    return select(0xfffffffdu, entry, entry == MAP_FULL || map_is_new(entry));
}
";
