//! WGSL functions by which filters access their maps. This source is part of the prelude of a
//! filter that declares maps, and defines their semantics on every device (`docs/guide/maps.md`
//! explains it).
//!
//! Insertion is wait-free, because lanes may run in lockstep, atomics are relaxed, and waiting for
//! another lane may deadlock. A slot is claimed by writing its key word by word, each by
//! compare-and-exchange from zero. If an invocation finds another key's word, it goes on to the
//! next slot, otherwise to the next word. All that reach a given word agree on the words before it.
//! So the key of a slot is that of whoever wrote its last word, everyone with this key gets there
//! too, and no key has two slots. A slot keeps its key until the map is compacted, while no filter
//! runs.

mod lpm;

use std::fmt::Write as _;

use super::declaration::{Declaration, MapKind};
use super::layout::{
    HEADER_CLAIMED, HEADER_GENERATION, HEADER_REMOVED, HEADER_WORDS, KEY_WORD_WRITTEN, Layout, MAX_PROBES,
    STATE_PRESENT, STATE_REMOVED, multiplier, rotation, stored_key_words,
};

/// Declarations shared by all maps.
const COMMON_TEXT: &str = "
// Returned if there is no such entry, and if there is no room for one.
const MAP_NONE: u32 = 0xffffffffu;
const MAP_FULL: u32 = 0xfffffffeu;

// Whether the call that returned this entry inserted it.
fn map_is_new(entry: u32) -> bool {
    return entry < 0x80000000u && (entry & 0x40000000u) != 0u;
}
";

/// The functions of a filter's maps; empty if it has none.
pub fn wgsl_text(maps: &[Declaration]) -> String {
    let mut text = String::new();
    if maps.is_empty() {
        return text;
    }
    text += COMMON_TEXT;
    for (binding, map) in maps.iter().enumerate() {
        let layout = Layout::of(map);
        let mut add = |part: &str| text += &MapTemplate { map, layout }.fill(part);
        let memory = format!(
            "\n// NAME: {kind}, {places} places of {stride} words behind a header of {HEADER_WORDS}\n\
             @group(1) @binding({binding}) var<storage, read_write> pc_map_NAME: array<atomic<u32>>;\n",
            kind = map.kind,
            places = layout.slots,
            stride = layout.stride
        );
        add(&memory);
        match map.kind {
            MapKind::Counter => add(COUNTER_TEXT),
            MapKind::Array => {
                add(WORD_BY_INDEX);
                add(&values_text());
            }
            MapKind::Lpm => {
                add(&lpm::find(map));
                add(WORD_BY_INDEX);
                add(&values_text());
            }
            MapKind::Hash | MapKind::LruHash => {
                add(HASHED_TEXT);
                if map.value > 0 {
                    add(WORD_BY_ENTRY);
                    add(&values_text());
                }
            }
        }
    }
    text
}

/// A function of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapFunction {
    /// `NAME_find(key) -> u32`: the entry, or `MAP_NONE`.
    Find,
    /// `NAME_insert(key) -> u32`: the entry, inserted if absent, or `MAP_FULL`.
    Insert,
    /// `NAME_remove(key) -> bool`: whether it was present.
    Remove,
    /// `NAME_read(entry, word) -> u32`
    Read,
    /// `NAME_write(entry, word, value)`
    Write,
    /// `NAME_add(entry, word, amount) -> u32`: the old value.
    Add,
    /// `NAME_compare_exchange(entry, word, expected, value) -> u32`: the old value.
    CompareExchange,
    /// `NAME_add(index, amount)` of a counter.
    Count,
    /// `NAME_…(entry, word, value)`
    Accumulate(Accumulation),
    /// One of [`atomic_functions`], which filters may not call directly: the old value.
    Atomic(AtomicOp),
}

/// A change of a word of a value, without a result. If one of these alone changes a word, the order
/// of the changes does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// Adds to the 64-bit number in the word and the next one, the low word first.
    AddWide,
    /// Adds to the word, up to 2^32 - 1.
    AddSaturating,
    /// Replaces the word by the smaller of it and the value.
    Min,
    /// As `Min`, where zero stands for no number: it is replaced, and as the value changes nothing.
    MinNonzero,
    /// Replaces the word by the larger of it and the value.
    Max,
    /// Sets the bits of the word that are set in the value.
    Or,
}

impl Accumulation {
    /// All accumulations.
    pub const ALL: [Accumulation; 6] = [
        Accumulation::AddWide,
        Accumulation::AddSaturating,
        Accumulation::Min,
        Accumulation::MinNonzero,
        Accumulation::Max,
        Accumulation::Or,
    ];

    /// Suffix of the function's name.
    pub fn name(self) -> &'static str {
        match self {
            Accumulation::AddWide => "add64",
            Accumulation::AddSaturating => "add_sat",
            Accumulation::Min => "min",
            Accumulation::MinNonzero => "min_nonzero",
            Accumulation::Max => "max",
            Accumulation::Or => "or",
        }
    }

    /// WGSL statements that change the word at the index `at`, which is in range.
    fn body(self) -> &'static str {
        match self {
            // As in a counter, the carry is added separately.
            Accumulation::AddWide => {
                "    if pc_in_NAME_word(entry, word + 1u) == 0u { return; }
    let before = atomicAdd(&pc_map_NAME[at], value);
    if before + value < before { atomicAdd(&pc_map_NAME[at + 1u], 1u); }"
            }
            // An addition that wraps stores the maximum afterwards, and after that every addition
            // wraps. So the maximum is the final value.
            Accumulation::AddSaturating => {
                "    if atomicLoad(&pc_map_NAME[at]) == 0xffffffffu { return; }
    let before = atomicAdd(&pc_map_NAME[at], value);
    if before + value < before { atomicStore(&pc_map_NAME[at], 0xffffffffu); }"
            }
            Accumulation::Min => "    if value < atomicLoad(&pc_map_NAME[at]) { atomicMin(&pc_map_NAME[at], value); }",
            Accumulation::MinNonzero => {
                "    var was = atomicLoad(&pc_map_NAME[at]);
    loop {
        if value == 0u || (was != 0u && was <= value) { break; }
        let now = atomicCompareExchangeWeak(&pc_map_NAME[at], was, value);
        if now.exchanged { break; }
        was = now.old_value;
    }"
            }
            Accumulation::Max => "    if value > atomicLoad(&pc_map_NAME[at]) { atomicMax(&pc_map_NAME[at], value); }",
            Accumulation::Or => {
                "    if (atomicLoad(&pc_map_NAME[at]) & value) != value { atomicOr(&pc_map_NAME[at], value); }"
            }
        }
    }

    /// WGSL text of the function.
    fn text(self) -> String {
        format!(
            "
fn NAME_{}(entry: u32, word: u32, value: u32) {{
    let at = pc_in_NAME_word(entry, word);
    if at == 0u {{ return; }}
{}
}}
",
            self.name(),
            self.body()
        )
    }
}

/// A further atomic read-modify-write operation on a word of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// `(entry, word, mask, bits)`: replaces the bits in `mask`.
    ReplaceBits,
    /// `(entry, word, shift, mask, amount)`: adds to the bit field in `mask`, which starts at bit
    /// `shift`.
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
    /// All operations.
    pub const ALL: [AtomicOp; 6] =
        [AtomicOp::ReplaceBits, AtomicOp::AddBits, AtomicOp::Or, AtomicOp::And, AtomicOp::Xor, AtomicOp::Exchange];

    /// Suffix of the function's name.
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

    /// Names of the function's parameters after the entry and the word.
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            AtomicOp::ReplaceBits => &["mask", "bits"],
            AtomicOp::AddBits => &["shift", "mask", "amount"],
            _ => &["value"],
        }
    }

    /// WGSL expression of the new value, from the old value `was`.
    fn new_value(self) -> &'static str {
        match self {
            AtomicOp::ReplaceBits => "(was & ~mask) | bits",
            AtomicOp::AddBits => "(was & ~mask) | ((was + (amount << shift)) & mask)",
            AtomicOp::Or => "was | value",
            AtomicOp::And => "was & value",
            AtomicOp::Xor => "was ^ value",
            AtomicOp::Exchange => "value",
        }
    }

    /// WGSL expression of the function's result, from the old value `was`.
    fn result(self) -> &'static str {
        match self {
            AtomicOp::AddBits => "(was & mask) >> shift",
            _ => "was",
        }
    }
}

/// Name and source of the functions for [`AtomicOp`]s on a map, for example `pc_do_NAME_or`. The
/// eBPF front end adds those that a program calls.
pub fn atomic_functions(name: &str) -> impl Iterator<Item = (String, String)> + use<'_> {
    AtomicOp::ALL.into_iter().map(move |op| {
        let parameters: String = op.parameters().iter().map(|name| format!(", {name}: u32")).collect();
        let text =
            ATOMIC_OP_TEXT.replace("FUNCTION", &atomic_function_name("NAME", op)).replace("PARAMETERS", &parameters);
        let text = text.replace("CHANGED", op.new_value()).replace("GIVEN", op.result());
        (atomic_function_name(name, op), text.replace("NAME", name))
    })
}

/// Prefix of these functions' names.
pub const ATOMIC_FUNCTION_PREFIX: &str = "pc_do_";

/// Name of the function for an operation on a map's values.
pub fn atomic_function_name(name: &str, op: AtomicOp) -> String {
    format!("{ATOMIC_FUNCTION_PREFIX}{name}_{}", op.name())
}

impl MapFunction {
    /// Suffix of the function's name.
    pub fn name(self) -> &'static str {
        match self {
            MapFunction::Find => "find",
            MapFunction::Insert => "insert",
            MapFunction::Remove => "remove",
            MapFunction::Read => "read",
            MapFunction::Write => "write",
            MapFunction::Add | MapFunction::Count => "add",
            MapFunction::CompareExchange => "compare_exchange",
            MapFunction::Accumulate(operation) => operation.name(),
            MapFunction::Atomic(op) => op.name(),
        }
    }
}

/// Functions of maps with values, besides [`Accumulation`]s.
const VALUE_FUNCTIONS: [MapFunction; 4] =
    [MapFunction::Read, MapFunction::Write, MapFunction::Add, MapFunction::CompareExchange];

/// The functions of a map that filters may call, with their names.
pub fn functions(map: &Declaration) -> impl Iterator<Item = (String, MapFunction)> + '_ {
    let own: &[MapFunction] = match map.kind {
        MapKind::Counter => &[MapFunction::Count],
        MapKind::Array => &[],
        MapKind::Hash | MapKind::LruHash => &[MapFunction::Find, MapFunction::Insert, MapFunction::Remove],
        MapKind::Lpm => &[MapFunction::Find],
    };
    let has_values = map.kind != MapKind::Counter && map.value > 0;
    let values: &[MapFunction] = if has_values { &VALUE_FUNCTIONS } else { &[] };
    let accumulations = Accumulation::ALL.into_iter().filter(move |_| has_values).map(MapFunction::Accumulate);
    let all = own.iter().chain(values).copied().chain(accumulations);
    all.map(|call| (format!("{}_{}", map.name, call.name()), call))
}

/// 64-bit sums as two words. The carry is added separately: the sum is wrong in between, but
/// correct in the end.
const COUNTER_TEXT: &str = "
fn NAME_add(index: u32, amount: u32) {
    if index >= PLACESu { return; }
    let at = HEADERu + index * STRIDEu;
    let before = atomicAdd(&pc_map_NAME[at], amount);
    if before + amount < before { atomicAdd(&pc_map_NAME[at + 1u], 1u); }
}
";

const WORD_BY_INDEX: &str = "
// Index of a word of a value; 0 if there is none.
fn pc_in_NAME_word(entry: u32, word: u32) -> u32 {
    if entry >= PLACESu || word >= WORDSu { return 0u; }
    return HEADERu + entry * STRIDEu + word;
}
";

const WORD_BY_ENTRY: &str = "
fn pc_in_NAME_word(entry: u32, word: u32) -> u32 {
    let place = entry & 0x3fffffffu;
    if entry >= 0x80000000u || place >= PLACESu || word >= WORDSu { return 0u; }
    return HEADERu + place * STRIDEu + VALUEu + word;
}
";

/// The functions for values of a map.
fn values_text() -> String {
    Accumulation::ALL.into_iter().fold(VALUES_TEXT.to_owned(), |text, operation| text + &operation.text())
}

/// Access to values, through the function above.
const VALUES_TEXT: &str = "
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
        // Weak compare-and-exchange may fail spuriously.
        if was.exchanged || was.old_value != expected { return was.old_value; }
    }
    return 0u;
}
";

/// An atomic operation as a compare-and-exchange loop. It is lock-free: if an attempt fails,
/// another one has succeeded.
const ATOMIC_OP_TEXT: &str = "
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

/// Entries by key. Probing is triangular (steps of one, two, three …), which visits every slot of a
/// power-of-two table.
///
/// Once a slot's first word fits, all that a search needs of the slot is loaded at once: on a GPU a
/// load whose address or condition depends on another one waits for it, some hundred nanoseconds.
/// An entry that is present is found without an atomic read-modify-write operation.
const HASHED_TEXT: &str = "
fn pc_in_NAME_hash(key: KEY) -> u32 {
    var h = HASH;
    h = (h ^ (h >> 15u)) * 0x2c1b3c6du;
    return h ^ (h >> 13u);
}

// Whether the word at this index is `word`, after writing it if it was zero.
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
        if first == s0 {
LOADED
            if others == 0u {
                if state != THEREu { return MAP_NONE; }
USED
                return place;
            }
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
        if first == s0 {
LOADED
            if others == 0u && state == THEREu {
USED
                return place;
            }
        }
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
STAMPED
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

/// Clears an entry's value before it is removed.
const CLEAR_VALUE: &str = "    // Before it is removed: whoever reinserts it finds zeros.
    for (var word = 0u; word < WORDSu; word = word + 1u) {
        atomicStore(&pc_map_NAME[at + VALUEu + word], 0u);
    }
";

/// Keeps the value, in a map of an object: as in the kernel, pointers to a value stay valid after
/// its deletion. Whoever reinserts the entry writes the whole value.
const KEEP_VALUE: &str = "    // Invocations that have found the entry still read its value.
";

/// Fills in the templates above for one map.
struct MapTemplate<'a> {
    map: &'a Declaration,
    layout: Layout,
}

impl MapTemplate<'_> {
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
        let cleared = if self.map.typed.is_some() { KEEP_VALUE } else { CLEAR_VALUE };
        let part = &part
            .replace("USED\n", &self.stamp_update(true))
            .replace("STAMPED\n", &self.stamp_update(false))
            .replace("CLEARED\n", cleared);
        let text = numbers.iter().fold(part.to_owned(), |text, (name, number)| {
            // Only where a number is meant: `WORDSu`, not `WORDS` in another name.
            text.replace(&format!("{name}u"), &format!("{number}u"))
        });
        let text = text
            .replace("STORED", &self.stored_key_words())
            .replace("LOADED", &self.slot_loads())
            .replace("CLAIMED", &self.for_other_words(" && ", "pc_in_NAME_claim(AT, WORD)"))
            .replace("HASH", &self.hash());
        text.replace("KEY", &self.key()).replace("NAME", &self.map.name)
    }

    /// WGSL type of the key.
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
            let (word, by, turn) = (self.word(index), multiplier(index), rotation(index));
            let product = format!("({word} * {by:#010x}u)");
            if turn == 0 { product } else { format!("(({product} << {turn}u) | ({product} >> {}u))", 32 - turn) }
        };
        (0..self.map.key).map(part).collect::<Vec<_>>().join(" ^ ")
    }

    /// WGSL declarations of the key's stored words.
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

    /// WGSL statements that load what a search needs of the slot at `at` beyond its first word: the
    /// differences of the other words from the key's, the state, and the entry's stamp.
    fn slot_loads(&self) -> String {
        let others = self.for_other_words(" | ", "(atomicLoad(&pc_map_NAME[AT]) ^ WORD)");
        let mut text = format!(
            "            let others = {};
            let state = atomicLoad(&pc_map_NAME[at + {}u]);",
            others.trim_start_matches(" | "),
            self.layout.state
        );
        if let Some(stamp) = self.layout.stamp {
            let _ = write!(
                text,
                "
            let now = atomicLoad(&pc_map_NAME[{HEADER_GENERATION}u]);
            let stamp = atomicLoad(&pc_map_NAME[at + {stamp}u]);"
            );
        }
        text
    }

    /// WGSL statements that stamp the entry at `at` with the current generation, unless it has it
    /// already. Both are `loaded` or yet to be loaded.
    fn stamp_update(&self, loaded: bool) -> String {
        let stamp = |stamp: u32| {
            let update = format!("if stamp != now {{ atomicStore(&pc_map_NAME[at + {stamp}u], now); }}");
            match loaded {
                true => format!("                {update}\n"),
                false => format!(
                    "            let now = atomicLoad(&pc_map_NAME[{HEADER_GENERATION}u]);
            let stamp = atomicLoad(&pc_map_NAME[at + {stamp}u]);
            {update}\n"
                ),
            }
        };
        self.layout.stamp.map_or(String::new(), stamp)
    }

    /// Conditions or terms of all stored words but the first, each behind an operator.
    fn for_other_words(&self, operator: &str, what: &str) -> String {
        let each = (1..stored_key_words(self.map.key)).map(|index| {
            let what = what.replace("AT", &format!("at + {index}u")).replace("WORD", &format!("s{index}"));
            format!("{operator}{what}")
        });
        each.collect()
    }
}
