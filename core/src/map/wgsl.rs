//! What a filter may do with its maps, in WGSL: the text is part of the prelude of a filter that declares any, and
//! gives the maps their meaning on every device (`docs/maps.md` explains it).
//!
//! Lanes may run in lock step, atomics are relaxed, and nobody may wait for anybody. So a place is claimed by
//! filling its key word by word, each from zero by compare and exchange. Who finds another word there than their own
//! goes on to the next place; who does not goes on to the next word. All that get as far as a word have the same words
//! before it, so a place's key is that of whoever wrote its last word, all with that key have got there, and there is
//! one place a key. A place keeps its key until no filter runs any more.

mod lpm;

use std::fmt::Write as _;

use super::declaration::{Declaration, MapKind};
use super::layout::{
    HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, HEADER_WORDS, KEY_WORD_WRITTEN, Layout, MAX_PROBES,
    STATE_PRESENT, STATE_REMOVED, multiplier, stored_key_words, turn,
};

/// What all maps have in common.
const COMMON: &str = "
// No such entry, and no room for one.
const MAP_NONE: u32 = 0xffffffffu;
const MAP_FULL: u32 = 0xfffffffeu;

// Whether a call that gave an entry has made it.
fn map_is_new(entry: u32) -> bool {
    return entry < 0x80000000u && (entry & 0x40000000u) != 0u;
}
";

/// The functions of a filter's maps; nothing where it has none.
pub fn wgsl_text(maps: &[Declaration]) -> String {
    let mut text = String::new();
    if maps.is_empty() {
        return text;
    }
    text += COMMON;
    for (binding, map) in maps.iter().enumerate() {
        let layout = Layout::of(map);
        let mut add = |part: &str| text += &Text { map, layout }.fill(part);
        let memory = format!(
            "\n// NAME: {kind}, {places} places of {stride} words behind a header of {HEADER_WORDS}\n\
             @group(1) @binding({binding}) var<storage, read_write> pc_map_NAME: array<atomic<u32>>;\n",
            kind = map.kind,
            places = layout.slots,
            stride = layout.stride
        );
        add(&memory);
        match map.kind {
            MapKind::Counter => add(COUNTER),
            MapKind::Array => {
                add(BY_NUMBER);
                add(VALUES);
            }
            MapKind::Lpm => {
                add(&lpm::find(map));
                add(BY_NUMBER);
                add(VALUES);
            }
            MapKind::Hash | MapKind::LruHash => {
                add(BY_KEY);
                if map.value > 0 {
                    add(BY_ENTRY);
                    add(VALUES);
                }
            }
        }
    }
    text
}

/// What a filter may do with a map, by one of its functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapFunction {
    /// `NAME_find(key) -> u32`: the entry, or `MAP_NONE`.
    Find,
    /// `NAME_insert(key) -> u32`: the entry, made where there was none, or `MAP_FULL`.
    Insert,
    /// `NAME_remove(key) -> bool`: whether it was there.
    Remove,
    /// `NAME_read(entry, word) -> u32`
    Read,
    /// `NAME_write(entry, word, value)`
    Write,
    /// `NAME_add(entry, word, amount) -> u32`: what was there before.
    Add,
    /// `NAME_compare_exchange(entry, word, expected, value) -> u32`: what was there before.
    CompareExchange,
    /// `NAME_add(index, amount)` of a counter.
    Count,
    /// One of [`changes`], which filters may not call by themselves: what was there before.
    Atomic(AtomicOp),
}

/// How a word of a value may be changed besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// `(entry, word, mask, bits)`: some bits of it become these.
    ReplaceBits,
    /// `(entry, word, shift, mask, amount)`: to some bits of it, from the bit `shift` on, is added.
    AddBits,
    /// `(entry, word, value)`
    Or,
    /// `(entry, word, value)`
    And,
    /// `(entry, word, value)`
    Xor,
    /// `(entry, word, value)`
    Exchange,
}

impl AtomicOp {
    /// Every one.
    pub const ALL: [AtomicOp; 6] =
        [AtomicOp::ReplaceBits, AtomicOp::AddBits, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Exchange];

    /// The end of the function's name.
    pub fn name(self) -> &'static str {
        match self {
            AtomicOp::ReplaceBits => "put",
            AtomicOp::AddBits => "add_part",
            AtomicOp::Or => "or",
            AtomicOp::And => "and",
            AtomicOp::Xor => "xor",
            AtomicOp::Exchange => "exchange",
        }
    }

    /// The function's, behind the entry and the word.
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            AtomicOp::ReplaceBits => &["mask", "bits"],
            AtomicOp::AddBits => &["shift", "mask", "amount"],
            _ => &["value"],
        }
    }

    /// What becomes of what `was` there.
    fn changed(self) -> &'static str {
        match self {
            AtomicOp::ReplaceBits => "(was & ~mask) | bits",
            AtomicOp::AddBits => "(was & ~mask) | ((was + (amount << shift)) & mask)",
            AtomicOp::Or => "was | value",
            AtomicOp::And => "was & value",
            AtomicOp::Xor => "was ^ value",
            AtomicOp::Exchange => "value",
        }
    }

    /// What the function gives of what `was` there.
    fn given(self) -> &'static str {
        match self {
            AtomicOp::AddBits => "(was & mask) >> shift",
            _ => "was",
        }
    }
}

/// The functions for the changes to values of a map of this name, `pc_do_NAME_or` for example, each with its text: programs out of
/// objects take what they call of them.
pub fn atomic_functions(name: &str) -> impl Iterator<Item = (String, String)> + use<'_> {
    AtomicOp::ALL.into_iter().map(move |change| {
        let parameters: String = change.parameters().iter().map(|name| format!(", {name}: u32")).collect();
        let text = CHANGE.replace("FUNCTION", &atomic_function_name("NAME", change)).replace("PARAMETERS", &parameters);
        let text = text.replace("CHANGED", change.changed()).replace("GIVEN", change.given());
        (atomic_function_name(name, change), text.replace("NAME", name))
    })
}

/// What the names of these functions begin with.
pub const ATOMIC_FUNCTION_PREFIX: &str = "pc_do_";

/// The name of the function for a change to values of a map of this name.
pub fn atomic_function_name(name: &str, change: AtomicOp) -> String {
    format!("{ATOMIC_FUNCTION_PREFIX}{name}_{}", change.name())
}

impl MapFunction {
    /// The end of the function's name.
    pub fn name(self) -> &'static str {
        match self {
            MapFunction::Find => "find",
            MapFunction::Insert => "insert",
            MapFunction::Remove => "remove",
            MapFunction::Read => "read",
            MapFunction::Write => "write",
            MapFunction::Add | MapFunction::Count => "add",
            MapFunction::CompareExchange => "compare_exchange",
            MapFunction::Atomic(change) => change.name(),
        }
    }
}

/// A map's functions that filters may call, by their names.
pub fn functions(map: &Declaration) -> impl Iterator<Item = (String, MapFunction)> + '_ {
    let own: &[MapFunction] = match map.kind {
        MapKind::Counter => &[MapFunction::Count],
        MapKind::Array => &[],
        MapKind::Hash | MapKind::LruHash => &[MapFunction::Find, MapFunction::Insert, MapFunction::Remove],
        MapKind::Lpm => &[MapFunction::Find],
    };
    let has_values = map.kind != MapKind::Counter && map.value > 0;
    let values: &[MapFunction] = if has_values {
        &[MapFunction::Read, MapFunction::Write, MapFunction::Add, MapFunction::CompareExchange]
    } else {
        &[]
    };
    own.iter().chain(values).map(|&call| (format!("{}_{}", map.name, call.name()), call))
}

/// Sums of 64 bits. The carry is added apart: between the two the sum is not right, and in the end it is.
const COUNTER: &str = "
fn NAME_add(index: u32, amount: u32) {
    if index >= PLACESu { return; }
    let at = HEADERu + index * STRIDEu;
    let before = atomicAdd(&pc_map_NAME[at], amount);
    if before + amount < before { atomicAdd(&pc_map_NAME[at + 1u], 1u); }
}
";

const BY_NUMBER: &str = "
// Where a word of a value is; 0 where there is none.
fn pc_in_NAME_word(entry: u32, word: u32) -> u32 {
    if entry >= PLACESu || word >= WORDSu { return 0u; }
    return HEADERu + entry * STRIDEu + word;
}
";

const BY_ENTRY: &str = "
fn pc_in_NAME_word(entry: u32, word: u32) -> u32 {
    let place = entry & 0x3fffffffu;
    if entry >= 0x80000000u || place >= PLACESu || word >= WORDSu { return 0u; }
    return HEADERu + place * STRIDEu + VALUEu + word;
}
";

/// Values, by the function above.
const VALUES: &str = "
fn NAME_read(entry: u32, word: u32) -> u32 {
    let at = pc_in_NAME_word(entry, word);
    if at == 0u { return 0u; }
    return atomicLoad(&pc_map_NAME[at]);
}

fn NAME_write(entry: u32, word: u32, value: u32) {
    let at = pc_in_NAME_word(entry, word);
    if at != 0u { atomicStore(&pc_map_NAME[at], value); }
}

fn NAME_add(entry: u32, word: u32, amount: u32) -> u32 {
    let at = pc_in_NAME_word(entry, word);
    if at == 0u { return 0u; }
    return atomicAdd(&pc_map_NAME[at], amount);
}

fn NAME_compare_exchange(entry: u32, word: u32, expected: u32, value: u32) -> u32 {
    let at = pc_in_NAME_word(entry, word);
    if at == 0u { return 0u; }
    loop {
        let was = atomicCompareExchangeWeak(&pc_map_NAME[at], expected, value);
        // WGSL's may fail for no reason.
        if was.exchanged || was.old_value != expected { return was.old_value; }
    }
    return 0u;
}
";

/// A change to a word: it is tried until nobody came in between. Whoever did has got on, so all come to an end.
const CHANGE: &str = "
fn FUNCTION(entry: u32, word: u32PARAMETERS) -> u32 {
    let at = pc_in_NAME_word(entry, word);
    if at == 0u { return 0u; }
    var was = atomicLoad(&pc_map_NAME[at]);
    loop {
        let now = atomicCompareExchangeWeak(&pc_map_NAME[at], was, CHANGED);
        if now.exchanged { break; }
        was = now.old_value;
    }
    return GIVEN;
}
";

/// Entries by key. Searches go in steps of one, two, three: in a table of a power of two that meets every place.
const BY_KEY: &str = "
fn pc_in_NAME_hash(key: KEY) -> u32 {
    var h = HASH;
    h = (h ^ (h >> 15u)) * 0x2c1b3c6du;
    return h ^ (h >> 13u);
}

// Whether the word at a place is this one, which it is made where there was none.
fn pc_in_NAME_claim(at: u32, word: u32) -> bool {
    var was = atomicLoad(&pc_map_NAME[at]);
    loop {
        if was != 0u { return was == word; }
        let now = atomicCompareExchangeWeak(&pc_map_NAME[at], 0u, word);
        if now.exchanged { return true; }
        was = now.old_value;
    }
    return false;
}

fn NAME_find(key: KEY) -> u32 {
STORED
    var place = pc_in_NAME_hash(key) & (PLACESu - 1u);
    for (var step = 1u; step <= PROBESu; step = step + 1u) {
        let at = HEADERu + place * STRIDEu;
        let first = atomicLoad(&pc_map_NAME[at]);
        if first == 0u { return MAP_NONE; }
        if first == s0 SAME {
            if atomicLoad(&pc_map_NAME[at + STATEu]) != THEREu { return MAP_NONE; }
USED
            return place;
        }
        place = (place + step) & (PLACESu - 1u);
    }
    return MAP_NONE;
}

fn NAME_insert(key: KEY) -> u32 {
STORED
    var place = pc_in_NAME_hash(key) & (PLACESu - 1u);
    for (var step = 1u; step <= PROBESu; step = step + 1u) {
        let at = HEADERu + place * STRIDEu;
        var first = atomicLoad(&pc_map_NAME[at]);
        if first == 0u {
            if atomicLoad(&pc_map_NAME[TAKENu]) >= LIMITu { return MAP_FULL; }
            loop {
                let now = atomicCompareExchangeWeak(&pc_map_NAME[at], 0u, s0);
                first = now.old_value;
                if now.exchanged {
                    atomicAdd(&pc_map_NAME[TAKENu], 1u);
                    first = s0;
                }
                if first != 0u { break; }
            }
        }
        if first == s0 CLAIMED {
            let was = atomicExchange(&pc_map_NAME[at + STATEu], THEREu);
            if was == GONEu { atomicAdd(&pc_map_NAME[REMOVEDu], 0xffffffffu); }
USED
            return place | select(0x40000000u, 0u, was == THEREu);
        }
        place = (place + step) & (PLACESu - 1u);
    }
    return MAP_FULL;
}

fn NAME_remove(key: KEY) -> bool {
    let place = NAME_find(key);
    if place == MAP_NONE { return false; }
    let at = HEADERu + place * STRIDEu;
CLEARED
    if atomicExchange(&pc_map_NAME[at + STATEu], GONEu) != THEREu { return false; }
    atomicAdd(&pc_map_NAME[REMOVEDu], 1u);
    return true;
}
";

/// What makes an entry's value zeros before it is removed.
const CLEARED: &str = "    // Before it is gone: who puts it back finds zeros.
    for (var word = 0u; word < WORDSu; word = word + 1u) {
        atomicStore(&pc_map_NAME[at + VALUEu + word], 0u);
    }
";

/// The same in a map of an object, whose pointers to values are good behind a deletion, as in the kernel. Whoever puts the entry
/// back writes all of the value.
const KEPT: &str = "    // Who has found it before still reads its value.
";

/// A map's own text, out of what stands for its parts.
struct Text<'a> {
    map: &'a Declaration,
    layout: Layout,
}

impl Text<'_> {
    fn fill(&self, part: &str) -> String {
        let Layout { slots: places, stride, state, value, max_claimed: limit, .. } = self.layout;
        let numbers = [
            ("PLACES", places),
            ("STRIDE", stride),
            ("STATE", state),
            ("VALUE", value),
            ("LIMIT", limit),
            ("WORDS", self.map.value),
            ("HEADER", HEADER_WORDS),
            ("PROBES", MAX_PROBES),
            ("TAKEN", HEADER_CLAIMED),
            ("REMOVED", HEADER_REMOVED),
            ("THERE", STATE_PRESENT),
            ("GONE", STATE_REMOVED),
        ];
        let cleared = if self.map.typed.is_some() { KEPT } else { CLEARED };
        let part = &part.replace("USED\n", &self.used()).replace("CLEARED\n", cleared);
        let text = numbers.iter().fold(part.to_owned(), |text, (name, number)| {
            // As numbers only: `VALUES` is another word.
            text.replace(&format!("{name}u"), &format!("{number}u"))
        });
        let text = text
            .replace("STORED", &self.stored_key_words())
            .replace("SAME", &self.all("atomicLoad(&pc_map_NAME[AT]) == WORD"));
        let text = text.replace("CLAIMED", &self.all("pc_in_NAME_claim(AT, WORD)")).replace("HASH", &self.hash());
        text.replace("KEY", &self.key()).replace("NAME", &self.map.name)
    }

    /// The key's type.
    fn key(&self) -> String {
        match self.map.key {
            1 => "u32".into(),
            words @ 2..=4 => format!("vec{words}<u32>"),
            words => format!("array<u32, {words}>"),
        }
    }

    fn word(&self, index: u32) -> String {
        match self.map.key {
            1 => "key".into(),
            _ => format!("key[{index}]"),
        }
    }

    fn hash(&self) -> String {
        let part = |index| {
            let (word, by, turn) = (self.word(index), multiplier(index), turn(index));
            let product = format!("({word} * {by:#010x}u)");
            if turn == 0 { product } else { format!("(({product} << {turn}u) | ({product} >> {}u))", 32 - turn) }
        };
        (0..self.map.key).map(part).collect::<Vec<_>>().join(" ^ ")
    }

    /// The key's words as they are stored.
    fn stored_key_words(&self) -> String {
        let mut text = String::new();
        for index in 0..stored_key_words(self.map.key) {
            let mut parts = Vec::new();
            if index > 0 {
                parts.push(format!("({} >> {}u)", self.word(index - 1), 32 - index));
            }
            if index < self.map.key {
                parts.push(format!("({} << {index}u)", self.word(index)));
            }
            let _ = writeln!(text, "    let s{index} = {} | {KEY_WORD_WRITTEN:#010x}u;", parts.join(" | "));
        }
        text.trim_end().to_owned()
    }

    /// What notes that the entry at `at` is used, which is written only where it is news.
    fn used(&self) -> String {
        let stamp = |stamp: u32| {
            format!(
                "            let now = atomicLoad(&pc_map_NAME[{HEADER_GENERATION}u]);
            let stamp = at + {stamp}u;
            if atomicLoad(&pc_map_NAME[stamp]) != now {{ atomicStore(&pc_map_NAME[stamp], now); }}\n"
            )
        };
        self.layout.stamp.map_or(String::new(), stamp)
    }

    /// That something holds of every word but the first.
    fn all(&self, what: &str) -> String {
        let each = (1..stored_key_words(self.map.key)).map(|index| {
            let what = what.replace("AT", &format!("at + {index}u")).replace("WORD", &format!("s{index}"));
            format!("&& {what}")
        });
        each.collect::<Vec<_>>().join(" ")
    }
}
