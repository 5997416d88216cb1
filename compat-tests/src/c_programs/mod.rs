//! Random filters in the common subset of OpenCL C and plain C (with a prelude for the latter),
//! with the same meaning in both. Their only undefined behaviour is what `-fwrapv` defines: shift
//! counts are in range, divisors are positive, indices and packet offsets are in bounds, and no
//! object is modified twice between sequence points.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::generator::Maps;
use crate::witness::Unit;
use structures::Structure;

mod maps;
mod structures;

/// Packet length in bytes, on which the programs rely.
pub const PACKET: usize = 256;

const TYPES: [&str; 9] = ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "bool"];

/// Offset in the packet at which the final values of the variables are stored, 8 bytes each.
const RESULTS: usize = 24;

/// Names that a program declares at file scope.
const NAMES: &str = "table pair tight colour RED GREEN BLUE helper0 helper1 helper2 inner outer turned xdp_filter";

/// Generates a random filter.
pub fn program(seed: u64) -> Unit {
    Unit { text: text(seed, None), names: NAMES.split(' ').map(str::to_owned).collect() }
}

/// Generates a program that uses maps, which plain C does not have.
pub fn with_maps(seed: u64, maps: Maps) -> String {
    text(seed, Some(maps))
}

fn text(seed: u64, maps: Option<Maps>) -> String {
    let mut writer = Writer {
        random: Pcg64::seed_from_u64(seed),
        text: String::new(),
        depth: 0,
        maps: maps.is_some(),
        helpers: Vec::new(),
        outer: Structure::default(),
    };
    if let Some(maps) = maps {
        writer.map_globals(maps == Maps::Flows);
    }
    writer.table();
    writer.structures();
    for number in 0..writer.random.random_range(1..4) {
        writer.helper(number);
    }
    writer.filter();
    writer.text
}

struct Writer {
    random: Pcg64,
    text: String,
    depth: usize,
    maps: bool,
    /// Each helper's name, whether its first parameter is a pointer to `int`, and the types of its
    /// result and other parameters.
    helpers: Vec<(String, bool, Vec<&'static str>)>,
    /// The members of `struct outer`.
    outer: Structure,
}

impl Writer {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.random_range(0..from.len())]
    }

    fn line(&mut self, text: &str) {
        self.text += &"    ".repeat(self.depth);
        self.text += text;
        self.text.push('\n');
    }

    fn table(&mut self) {
        let values: Vec<String> = (0..8).map(|_| self.random.random::<i16>().to_string()).collect();
        let ty = self.pick(&TYPES[..8]);
        self.line(&format!("__constant {ty} table[8] = {{{}}};", values.join(", ")));
        self.line("struct pair { uchar a; short b; uint c; long d; };");
        self.line("struct __attribute__((packed)) tight { uchar a; short b; uint c; long d; };");
        self.line("enum colour { RED = 3, GREEN, BLUE = -2 };");
    }

    fn helper(&mut self, number: usize) {
        let name = format!("helper{number}");
        let with_pointer = self.random.random_bool(0.5);
        let parameters: Vec<&'static str> = (0..self.random.random_range(1..4)).map(|_| self.pick(&TYPES)).collect();
        let result = self.pick(&TYPES);
        let mut list: Vec<String> = parameters.iter().enumerate().map(|(i, ty)| format!("{ty} p{i}")).collect();
        if with_pointer {
            list.insert(0, "int *at".into());
        }
        self.line(&format!("{result} {name}({})", list.join(", ")));
        self.line("{");
        self.depth += 1;
        let mut names: Vec<String> = (0..parameters.len()).map(|i| format!("p{i}")).collect();
        if with_pointer {
            names.push("(*at)".into());
        }
        for _ in 0..self.random.random_range(1..3) {
            let (name, value) = (names[self.random.random_range(0..names.len())].clone(), self.value(&names, 2));
            self.assign(&name, &value);
        }
        let (condition, early) = (self.value(&names, 1), self.value(&names, 2));
        self.line(&format!("if ({condition}) return {early};"));
        let value = self.value(&names, 3);
        self.line(&format!("return {value};"));
        self.depth -= 1;
        self.line("}");
        self.helpers.push((name, with_pointer, parameters));
    }

    fn filter(&mut self) {
        self.line("uint xdp_filter(__global uchar *pkt, uint len)");
        self.line("{");
        self.depth += 1;
        if self.maps {
            self.map_prologue();
        }
        let mut names = Vec::new();
        for (i, ty) in TYPES.iter().enumerate() {
            let at = self.random.random_range(0..16);
            self.line(&format!("{ty} v{i} = *(__global {} *)(pkt + {at});", if *ty == "bool" { "uchar" } else { ty }));
            names.push(format!("v{i}"));
        }
        let packed = if self.random.random_bool(0.5) { "pair" } else { "tight" };
        let at = 8 * self.random.random_range(0..2);
        // The offset is a multiple of 8 because the native compiler may rely on natural alignment.
        let place = if packed == "pair" { "struct pair" } else { "struct tight" };
        self.line(&format!("{place} s = *(__global {place} *)(pkt + {at}), t = {{1, .c = 7}};"));
        self.line("int a[4] = {1, -2}, n = 0;");
        self.structure_variables(&mut names);
        for part in ["s.a", "s.b", "s.c", "s.d", "t.b", "t.c", "a[1]", "a[v1 & 3]", "a[v4 & 3]", "n"] {
            names.push(part.into());
        }
        for _ in 0..self.random.random_range(3..9) {
            self.statement(&names, 3);
        }
        for (i, ty) in TYPES.iter().enumerate().filter(|(_, ty)| **ty != "bool") {
            self.line(&format!("*(__global {ty} *)(pkt + {}) = v{i};", RESULTS + 8 * i));
        }
        self.structure_results();
        self.line("pkt[16] = v8; pkt[17] = s.a + s.b; *(__global ushort *)(pkt + 18) = s.c ^ s.d ^ t.b ^ t.c;");
        self.line("*(__global int *)(pkt + 20) = a[0] ^ a[1] ^ a[2] ^ a[3] ^ n;");
        let value = self.value(&names, 3);
        self.line(&format!("return ({value}) & 3;"));
        self.depth -= 1;
        self.line("}");
    }

    fn assign(&mut self, place: &str, value: &str) {
        let text = match self.random.random_range(0..14) {
            0..5 => format!("{place} = {value};"),
            5 => format!("{place} += {value};"),
            6 => format!("{place} -= {value};"),
            7 => format!("{place} *= {value};"),
            8 => format!("{place} ^= {value};"),
            9 => format!("{place} <<= ({value}) & 7;"),
            10 => format!("{place} >>= ({value}) & 7;"),
            11 => format!("{place} /= (({value}) & 7) + 1;"),
            12 => format!("{place}++;"),
            _ => format!("--{place};"),
        };
        self.line(&text);
    }

    fn place(&mut self, names: &[String]) -> String {
        names[self.random.random_range(0..names.len())].clone()
    }

    fn block(&mut self, names: &[String], depth: u32) {
        self.depth += 1;
        for _ in 0..self.random.random_range(1..4) {
            self.statement(names, depth);
        }
        self.depth -= 1;
    }

    fn statement(&mut self, names: &[String], depth: u32) {
        if self.maps && self.random.random_bool(0.4) {
            return self.map_statement(names);
        }
        let kind = if depth == 0 { 0 } else { self.random.random_range(0..16) };
        match kind {
            12..15 => self.structure_statement(names),
            6 => {
                let condition = self.value(names, 2);
                self.line(&format!("if ({condition}) {{"));
                self.block(names, depth - 1);
                if self.random.random_bool(0.6) {
                    self.line("} else {");
                    self.block(names, depth - 1);
                }
                self.line("}");
            }
            7 => {
                let (rounds, leave) = (self.random.random_range(1..5), self.value(names, 1));
                let how = self.pick(&["break", "continue"]);
                self.line(&format!("for (int i{depth} = 0; i{depth} < {rounds}; i{depth}++) {{"));
                let mut names = names.to_vec();
                // Expressions may read this element, but no statement assigns to it.
                names.push(format!("a[i{depth} & 3]"));
                self.block(&names, depth - 1);
                self.line(&format!("    if ({leave}) {how};"));
                self.block(&names, depth - 1);
                self.line("}");
            }
            8 => {
                let (rounds, condition) = (self.random.random_range(1..4), self.value(names, 1));
                self.line(&format!("{{ int w{depth} = 0; do {{"));
                self.block(names, depth - 1);
                self.line(&format!("}} while (++w{depth} < {rounds} && ({condition})); }}"));
            }
            9 => {
                let value = self.value(names, 2);
                let wide = self.pick(&["", "(long)", "(uint)", "(uchar)"]);
                self.line(&format!("switch ({wide}(({value}) & 7)) {{"));
                let mut labels: Vec<String> = (0..8).map(|i| format!("case {i}")).collect();
                labels.push("default".into());
                for label in labels {
                    if self.random.random_bool(0.4) {
                        continue;
                    }
                    self.line(&format!("{label}:"));
                    if self.random.random_bool(0.7) {
                        self.depth += 1;
                        self.statement(names, depth - 1);
                        self.depth -= 1;
                    }
                    if self.random.random_bool(0.5) {
                        self.line("    break;");
                    }
                }
                // C requires a statement after a label.
                self.line("    ;");
                self.line("}");
            }
            10 => {
                if let Some(call) = self.call(names, true) {
                    let place = self.place(names);
                    // Avoid a place that depends on `v4`, which the helper changes through its
                    // pointer.
                    if !place.contains("v4") {
                        self.line(&format!("{place} = {call};"));
                    }
                }
            }
            11 => {
                let (count, place) = (self.value(names, 1), self.random.random_range(0..4));
                self.line(&format!("{{ int *p = a + (({count}) & 3); *p += {place}; n += p - a + (p > a); }}"));
            }
            _ => {
                let (place, value) = (self.place(names), self.value(names, 3));
                self.assign(&place, &value);
            }
        }
    }

    /// Returns a call of a random helper. If `pointers` is set, the helper may take `&v4`, and the
    /// caller makes the call a statement of its own.
    fn call(&mut self, names: &[String], pointers: bool) -> Option<String> {
        let fitting: Vec<_> = self.helpers.iter().filter(|(_, pointer, _)| pointers || !pointer).cloned().collect();
        if fitting.is_empty() || !names.iter().any(|name| name == "v4") {
            return None;
        }
        let (name, pointer, parameters) = fitting[self.random.random_range(0..fitting.len())].clone();
        // C leaves the evaluation order of arguments open, so none may read what the pointer refers
        // to.
        let mut arguments = Vec::new();
        if pointer {
            arguments.push("&v4".to_owned());
        }
        for _ in parameters {
            arguments.push(self.value(&["v0".into(), "v3".into(), "v6".into(), "v7".into(), "s.b".into()], 1));
        }
        Some(format!("{name}({})", arguments.join(", ")))
    }

    /// Returns an expression without side effects.
    fn value(&mut self, names: &[String], depth: u32) -> String {
        if depth == 0 {
            return match self.random.random_range(0..8) {
                0 => self.random.random_range(-130..300).to_string(),
                1 => {
                    let (value, suffix) = (
                        self.random.random::<u32>() >> self.random.random_range(0..32),
                        self.pick(&["", "u", "l", "ul"]),
                    );
                    format!("0x{value:x}{suffix}")
                }
                2 => {
                    let known =
                        ["RED", "BLUE", "'a'", "'\\xff'", "sizeof(struct pair)", "table[3]", "(enum colour)GREEN"];
                    let known = self.pick(&known);
                    // `sizeof` has 32 bits in OpenCL C and 64 in plain C, so it is cast.
                    if known.starts_with("sizeof") { format!("(uint){known}") } else { known.into() }
                }
                _ => names[self.random.random_range(0..names.len())].clone(),
            };
        }
        let next = |this: &mut Self| {
            let lower = this.random.random_range(0..depth);
            this.value(names, lower)
        };
        match self.random.random_range(0..22) {
            0..8 => {
                let op = self.pick(&["+", "-", "*", "&", "|", "^", "+", "-"]);
                format!("({} {op} {})", next(self), next(self))
            }
            8..11 => {
                let op = self.pick(&["<", ">", "<=", ">=", "==", "!="]);
                format!("({} {op} {})", next(self), next(self))
            }
            11 => format!("({} << ({} & 31 & 15))", next(self), next(self)),
            12 => format!("({} >> ({} & 15))", next(self), next(self)),
            13 => format!("({} / (({} & 15) + 1))", next(self), next(self)),
            14 => format!("({} % (({} & 15) + 1))", next(self), next(self)),
            15 => {
                let op = self.pick(&["-", "~", "!", "+"]);
                format!("({op} {})", next(self))
            }
            16 | 17 => {
                let ty = self.pick(&TYPES);
                format!("(({ty}){})", next(self))
            }
            18 => format!("({} ? {} : {})", next(self), next(self), next(self)),
            19 => {
                let op = self.pick(&["&&", "||"]);
                format!("({} {op} {})", next(self), next(self))
            }
            20 => format!("table[{} & 7]", next(self)),
            _ => self.call(names, false).unwrap_or_else(|| "1".into()),
        }
    }
}

/// Returns a random packet whose bytes are often extreme values.
pub fn packet(random: &mut impl Rng) -> Vec<u8> {
    let byte = |random: &mut dyn Rng| match random.random_range(0..6) {
        0 => 0,
        1 => 0xff,
        2 => 0x80,
        3 => 0x7f,
        _ => random.random(),
    };
    (0..PACKET).map(|_| byte(random)).collect()
}
