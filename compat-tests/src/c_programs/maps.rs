//! Maps in random C, used as in random WGSL: what a program reads of them belongs to its packet's
//! flow, and what flows share they only add to.

use rand::RngExt;

use super::Writer;
use crate::generator::maps::{MAPS, TABLES};

/// The packet's byte that says which of four flows it belongs to; nothing is written there.
const FLOW_OF: &str = "pkt[23] & 3";

/// A key of three words, of members of every size.
const KEY: &str = "struct __attribute__((packed)) key { ushort low, high; uint middle; uchar last[4]; };";

impl Writer {
    /// The maps, and what says which flow a packet belongs to; `ordered` where its packets are to
    /// come in order.
    pub(super) fn map_globals(&mut self, ordered: bool) {
        self.text += MAPS;
        self.line(KEY);
        // A key that a function is given.
        self.line("uint counted(const uint *key, uint by) { return three_add(three_insert(key), 0, by); }");
        if ordered {
            self.line(&format!("uint xdp_flow(__global uchar *pkt, uint len) {{ return {FLOW_OF}; }}"));
        }
    }

    /// What the filter begins with.
    pub(super) fn map_prologue(&mut self) {
        self.line(&format!("uint flow = {FLOW_OF};"));
    }

    /// Words of a key of few values; the one in the middle has the flow in it.
    fn key_words(&mut self, names: &[String], words: u32) -> Vec<String> {
        let word = |index| {
            let value = self.value(names, 1);
            let mask = self.pick(&["12", "12", "0x80000004u"]);
            match index == words / 2 {
                true => format!("((uint)({value}) & {mask} | flow)"),
                // If all words told keys apart there would soon be more than there is room for.
                false if index == 0 => format!("((uint)({value}) & {mask})"),
                false => self.random.random::<u32>().to_string(),
            }
        };
        (0..words).map(word).collect()
    }

    /// Declares a key, in one of the ways that there are; gives what a function of the map's is
    /// given.
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

    /// An operation on a map, whose result goes into a variable.
    pub(super) fn map_statement(&mut self, names: &[String]) {
        let (a, b) = (self.value(names, 1), self.value(names, 1));
        // There is no third word.
        let at = self.pick(&["0", "0", "1", "1", "2"]);
        self.line("{");
        self.depth += 1;
        match self.random.random_range(0..10) {
            0..=4 => {
                let (map, words, value) = self.pick(&TABLES);
                let key = self.key(names, words);
                let how = self.pick(&["find", "insert", "insert"]);
                match self.random.random_range(0..if value > 0 { 7 } else { 2 }) {
                    0 => self.line(&format!("v5 += {map}_remove({key}) ? 3 : 1;")),
                    1 => {
                        self.line(&format!("uint e = {map}_{how}({key});"));
                        self.line("v5 ^= (map_is_new(e) ? 5 : 9) + (e == MAP_NONE);");
                    }
                    2 if map == "three" && key != "k" => {
                        let key = if key == "&k" { "(const uint *)&k".to_owned() } else { key };
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
                // Some are beyond the end.
                let index = self.value(names, 1);
                self.line(&format!("uint e = ((uint)({index}) & 15) << 2 | flow;"));
                let operation = self.random.random_range(2..7);
                self.by_entry("numbers", "e", operation, at, &a, &b);
            }
            7 => self.line(&format!("sums_add(({a}) & 17, {b});")),
            8 => {
                self.line(&format!("uint e = routes_find(({a}) & 0x0f0f00ff);"));
                // All flows add to the second word, and nobody reads it.
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
            _ => format!("v7 ^= {map}_read({entry}, {at});"),
        };
        self.line(&text);
    }
}
