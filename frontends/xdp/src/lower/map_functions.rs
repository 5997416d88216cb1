//! WGSL functions that a program needs of a map besides the map's own.

use crate::lang::xdp::decode::maps::{MapInfo, MapUse};
use crate::lang::xdp::lower::prefix_trie;
use crate::lang::xdp::object::MapDefinition;
use crate::map::layout::{HEADER, Layout, THERE};
use crate::map::{Kind, changes};

impl MapInfo {
    /// Functions that programs need besides a map's own.
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
            let Layout { places, stride, state, .. } = layout;
            let mut by_place = LOAD_FUNCTION.to_owned();
            if self.declaration().kind != Kind::Array {
                by_place += ITERATION_FUNCTIONS;
            }
            let numbers = [
                ("PLACES", places),
                ("STRIDE", stride),
                ("STATE", state),
                ("HEADER", HEADER),
                ("THERE", THERE),
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
        changes(&self.name).fold(text, |text, (_, change)| text + &change)
    }
}

/// A word of an entry that is known to be there, by where it is: `NAME_read` would ask whether there is such an entry. That no
/// place is beyond the map is the front end's proof; this is for a fault in it.
const LOAD_FUNCTION: &str = "
fn x_NAME_get(at: u32) -> u32 {
    return atomicLoad(&pc_map_NAME[min(at, LASTu)]);
}
";

/// Going through the entries of a map by key.
const ITERATION_FUNCTIONS: &str = "
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
const INSERT_FUNCTION: &str = "
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

/// What C's operators on a map's value need besides [`changes`].
const COMMON_FUNCTIONS: &str = "
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
