//! Maps in random C, with the same discipline as in random WGSL: a program reads only entries of
//! its packet's flow, and only adds to what flows share.

use portcullis_core::map::Accumulation;
use rand::RngExt;

use super::Writer;
use crate::generator::maps::{MAPS, TABLES};

/// Expression that gives a packet's flow, one of four; programs do not write to this byte.
const FLOW_OF: &str = "pkt[23] & 3";

/// A key of three words, with members of every size.
const KEY: &str = "struct __attribute__((packed)) key { ushort low, high; uint middle; uchar last[4]; };";

impl Writer {
    /// Declares the maps and which flow a packet belongs to; `ordered` if packets of a flow must be
    /// processed in order.
    pub(super) fn map_globals(&mut self, ordered: bool) {
        self.text += MAPS;
        self.line(KEY);
        // Passes a key to a function by pointer.
        self.line("uint counted(const uint *key, uint by) { return three_add(three_insert(key), 0, by); }");
        if ordered {
            self.line(&format!("uint xdp_flow(__global uchar *pkt, uint len) {{ return {FLOW_OF}; }}"));
        }
    }

    /// Emits the statements at the start of the filter.
    pub(super) fn map_prologue(&mut self) {
        self.line(&format!("uint flow = {FLOW_OF};"));
    }

    /// Returns expressions for the words of a key with few possible values; the middle word
    /// contains the flow.
    fn key_words(&mut self, names: &[String], words: u32) -> Vec<String> {
        let word = |index| {
            let value = self.value(names, 1);
            let mask = self.pick(&["12", "12", "0x80000004u"]);
            match index == words / 2 {
                true => format!("((uint)({value}) & {mask} | flow)"),
                // Few values for the first word, so that the keys do not overflow the map's
                // capacity.
                false if index == 0 => format!("((uint)({value}) & {mask})"),
                false => self.random.random::<u32>().to_string(),
            }
        };
        (0..words).map(word).collect()
    }

    /// Declares a key in a random style and returns the argument for the map's functions.
    fn key(&mut self, names: &[String], words: u32) -> String {
        let key = self.key_words(names, words);
        let wide = |words: &[String]| format!("(ulong){} << 32 | {}", words[1], words[0]);
        match (words, self.random.random_range(0..4)) {
            (1, _) => return key[0].clone(),
            (3, 0) => {
                let [first, middle, last] = &key[..] else { unreachable!("three words") };
                self.line(&format!("struct key k = {{{first}, ({first}) >> 16, {middle}, {{{last}, 1, 2}}}};"));
                return self.pick(&["&k", "(const uint *)&k"]).into();
            }
            (3, 1) => {
                self.line(&format!("uint3 k = (uint3)({});", key.join(", ")));
                return "k".into();
            }
            (6, 0) => {
                let halves: Vec<String> = key.chunks(2).map(wide).collect();
                self.line(&format!("ulong k[3] = {{{}}};", halves.join(", ")));
                return "(const uint *)k".into();
            }
            (2, 0) => {
                self.line(&format!("ushort k[4] = {{{}, 7, {}, 9}};", key[0], key[1]));
                return "(const uint *)k".into();
            }
            (_, 1 | 2) => {
                self.line(&format!("uint k[{}] = {{5, {}, 6}};", words + 2, key.join(", ")));
                return self.pick(&["k + 1", "&k[1]"]).into();
            }
            _ => {}
        }
        self.line(&format!("uint k[{words}] = {{{}}};", key.join(", ")));
        "k".into()
    }

    /// Emits an operation on a map and adds its result to a variable.
    pub(super) fn map_statement(&mut self, names: &[String]) {
        let (a, b) = (self.value(names, 1), self.value(names, 1));
        // Index 2 is out of bounds: the value has two words.
        let at = self.pick(&["0", "0", "1", "1", "2"]);
        self.line("{");
        self.depth += 1;
        match self.random.random_range(0..10) {
            0..=4 => {
                let (map, words, value) = self.pick(&TABLES);
                let key = self.key(names, words);
                let how = self.pick(&["find", "insert", "insert"]);
                match self.random.random_range(0..if value > 0 { 9 } else { 2 }) {
                    0 => self.line(&format!("v5 += {map}_remove({key}) ? 3 : 1;")),
                    1 => {
                        self.line(&format!("uint e = {map}_{how}({key});"));
                        self.line("v5 ^= (map_is_new(e) ? 5 : 9) + (e == MAP_NONE);");
                    }
                    // A helper takes the address of words; of a structure only map functions do.
                    2 if map == "three" && ["k + 1", "&k[1]"].contains(&&*key) => {
                        self.line(&format!("v7 += counted({key}, {a});"));
                    }
                    operation => {
                        self.line(&format!("uint e = {map}_{how}({key});"));
                        self.line(&format!("if (map_is_new(e)) {map}_write(e, {at}, {a});"));
                        self.by_entry(map, "e", operation, at, &a, &b);
                    }
                }
            }
            5 | 6 => {
                // Some indices are beyond the end of the map.
                let index = self.value(names, 1);
                self.line(&format!("uint e = ((uint)({index}) & 15) << 2 | flow;"));
                let operation = self.random.random_range(2..9);
                self.by_entry("numbers", "e", operation, at, &a, &b);
            }
            7 => self.line(&format!("sums_add(({a}) & 17, {b});")),
            8 => {
                self.line(&format!("uint e = routes_find(({a}) & 0x0f0f00ff);"));
                // All flows add to the second word, which no program reads.
                self.line(&format!("routes_add(e, 1, {b}); v5 = v5 * 31 + routes_read(e, 0);"));
            }
            _ => {
                let (c, d) = (self.value(names, 1), self.value(names, 1));
                self.line(&format!("uint4 k = (uint4)(({a}) & 3, ({b}) & 0x80000001u, ({c}) & 1, {d});"));
                self.line("uint e = routes6_find(k);");
                self.line("routes6_add(e, 1, 1); v5 = v5 * 31 + routes6_read(e, 0);");
            }
        }
        self.depth -= 1;
        self.line("}");
    }

    fn by_entry(&mut self, map: &str, entry: &str, operation: u32, at: &str, a: &str, b: &str) {
        let text = match operation {
            2 | 3 => format!("v5 += {map}_add({entry}, {at}, {a});"),
            4 => {
                let expected = self.pick(&["0", "1", "flow"]);
                format!("v5 ^= {map}_compare_exchange({entry}, {at}, {expected}, {b});")
            }
            5 => format!("{map}_write({entry}, {at}, {b}); v7 += {map}_read({entry}, {at});"),
            6 => format!("v7 ^= {map}_read({entry}, {at});"),
            _ => {
                let accumulate = self.pick(&Accumulation::ALL.map(Accumulation::name));
                format!("{map}_{accumulate}({entry}, {at}, {b}); v7 += {map}_read({entry}, {at});")
            }
        };
        self.line(&text);
    }
}
