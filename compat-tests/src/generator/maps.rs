//! Generates random uses of maps.
//!
//! Only packets of the same flow are processed in order. So a filter reads only entries of its
//! packet's flow, whose number is part of every key and index, and only adds to what flows share. A
//! filter without `xdp_flow` runs packet by packet.

use portcullis_core::map::Accumulation;

use super::{Generator, Scalar, Type};

/// Expression that gives a packet's flow.
const FLOW_OF: &str = "load_u8(pkt, 23u) & 3u";

/// Declarations of the maps, with keys of 1 to 6 words.
pub(crate) const MAPS: &str = "//! map one: hash key=1 value=2 entries=300
//! map three: hash key=3 value=1 entries=300
//! map six: lru_hash key=6 value=2 entries=300
//! map bare: hash key=2 value=0 entries=300
//! map numbers: array value=2 entries=32
//! map sums: counter entries=16
//! map routes: lpm key=1 value=2 entries=100
//! map routes6: lpm key=4 value=2 entries=100
";

/// Maps with keys: name, words per key, and words per value.
pub(crate) const TABLES: [(&str, u32, u32); 4] = [("one", 1, 2), ("three", 3, 1), ("six", 6, 2), ("bare", 2, 0)];

impl Generator<'_> {
    /// Declares the maps and which flow a packet belongs to; `ordered` if packets of a flow must be
    /// processed in order.
    pub(super) fn map_globals(&mut self, ordered: bool) {
        self.text += MAPS;
        self.line("var<private> flow: u32;");
        if ordered {
            self.line(&format!("fn xdp_flow(pkt: u32) -> u32 {{ return {FLOW_OF}; }}"));
        }
    }

    /// Emits the start of the filter, which reads the flow before the packet may change.
    pub(super) fn map_prologue(&mut self) {
        self.line(&format!("flow = {FLOW_OF};"));
    }

    fn word(&mut self) -> String {
        self.value(Scalar::U32, 1)
    }

    /// Generates a key with few possible values that contains the flow.
    fn key(&mut self, words: u32) -> String {
        // The flow is in the same word of all keys, as flows would otherwise share keys.
        let mut key = Vec::new();
        for index in 0..words {
            let mask = if self.once_in(2) { "0x80000004u" } else { "12u" };
            let word = format!("({} & {mask})", self.word());
            key.push(if index == words / 2 { format!("({word} | flow)") } else { word });
        }
        let key = key.join(", ");
        match words {
            1 => key,
            2..=4 => format!("vec{words}<u32>({key})"),
            _ => format!("array<u32, {words}>({key})"),
        }
    }

    /// Emits an operation on a map and stores its result in a variable.
    pub(super) fn map_statement(&mut self) {
        let result = self.name("v");
        // Index 2 is out of bounds: a value has at most two words.
        let at = format!("{}u", self.pick(&[0, 0, 1, 1, 2]));
        let (a, b) = (self.word(), self.word());
        match self.below(12) {
            0..=4 => {
                let (map, words, value) = self.pick(&TABLES);
                let (entry, key) = (self.name("e"), self.key(words));
                let how = self.pick(&["find", "insert", "insert"]);
                let call = match self.below(if value > 0 { 8 } else { 2 }) {
                    0 => format!("u32({map}_remove({key}))"),
                    1 => {
                        self.line(&format!("let {entry} = {map}_{how}({key});"));
                        format!("select(0u, 1u, map_is_new({entry})) + select(0u, 2u, {entry} == MAP_NONE)")
                    }
                    operation => {
                        self.line(&format!("let {entry} = {map}_{how}({key});"));
                        if self.once_in(2) {
                            self.line(&format!("if map_is_new({entry}) {{ {map}_write({entry}, {at}, {a}); }}"));
                        }
                        self.by_entry(map, &entry, operation, &at, &a, &b)
                    }
                };
                self.line(&format!("var {result}: u32 = {call};"));
            }
            5 | 6 => {
                // Some indices are beyond the end of the map.
                let index = format!("((({} & 15u) << 2u) | flow)", self.word());
                let operation = self.below(8);
                let call = self.by_entry("numbers", &index, operation, &at, &a, &b);
                self.line(&format!("var {result}: u32 = {call};"));
            }
            7 => {
                let index = self.word();
                self.line(&format!("sums_add({index} & 17u, {a});"));
                return;
            }
            other => {
                let (map, address) = match other {
                    8 | 9 => ("routes", format!("({} & 0x0f0f00ffu)", self.word())),
                    _ => {
                        let (c, d) = (self.word(), self.word());
                        ("routes6", format!("vec4<u32>({a} & 3u, {b} & 0x80000001u, {c} & 1u, {d})"))
                    }
                };
                let entry = self.name("e");
                self.line(&format!("let {entry} = {map}_find({address});"));
                // All flows add to the second word, which no filter reads.
                self.line(&format!("_ = {map}_add({entry}, 1u, {a});"));
                self.line(&format!("var {result}: u32 = {map}_read({entry}, 0u);"));
            }
        }
        self.declare(&result, Type::Scalar(Scalar::U32), true);
    }

    fn by_entry(&mut self, map: &str, entry: &str, operation: u32, at: &str, a: &str, b: &str) -> String {
        match operation {
            0 | 2 => format!("{map}_add({entry}, {at}, {a})"),
            1 | 3 => format!("{map}_compare_exchange({entry}, {at}, {}, {b})", self.pick(&["0u", "1u", "flow"])),
            4 => {
                self.line(&format!("{map}_write({entry}, {at}, {b});"));
                format!("{map}_read({entry}, {at})")
            }
            5 => format!("{map}_read({entry}, {at})"),
            _ => {
                let accumulate = self.pick(&Accumulation::ALL).name();
                self.line(&format!("{map}_{accumulate}({entry}, {at}, {b});"));
                format!("{map}_read({entry}, {at})")
            }
        }
    }
}
