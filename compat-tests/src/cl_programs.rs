//! Random OpenCL C filters: vectors with swizzles, integer built-in functions, conversions by name.
//! Every expression is generated for a type, because OpenCL C converts no vector implicitly, and
//! calls of built-in functions with arguments of different types are ambiguous. Nothing is
//! undefined: signed numbers are added and multiplied as unsigned ones, divisors are positive, and
//! lower bounds are at most the upper ones.

use std::fmt::Write as _;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::c_programs::PACKET;
use crate::witness::Unit;

const ELEMENTS: [&str; 8] = ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"];

/// Offset at which the final values of vectors are stored, each with the size of four components.
const RESULTS: usize = 64;

/// A scalar, or a vector of 2 to 4 components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Type {
    element: usize,
    size: usize,
}

impl Type {
    fn name(self) -> String {
        match self.size {
            1 => ELEMENTS[self.element].to_owned(),
            size => format!("{}{size}", ELEMENTS[self.element]),
        }
    }

    fn is_signed(self) -> bool {
        self.element.is_multiple_of(2)
    }

    fn bytes(self) -> usize {
        1 << (self.element / 2)
    }

    fn unsigned(self) -> Type {
        Type { element: self.element | 1, ..self }
    }

    fn signed(self) -> Type {
        Type { element: self.element & !1, ..self }
    }

    /// Returns the type of the same width with the other signedness.
    fn other_sign(self) -> Type {
        Type { element: self.element ^ 1, ..self }
    }
}

/// Generates a random filter; with `builtins` it calls OpenCL C's built-in functions.
pub fn program(seed: u64, builtins: bool) -> Unit {
    let mut writer = Writer { random: Pcg64::seed_from_u64(seed), builtins, variables: Vec::new() };
    let text = writer.filter();
    Unit { text, names: vec!["xdp_filter".into(), "turned".into(), "table".into()] }
}

struct Writer {
    random: Pcg64,
    builtins: bool,
    variables: Vec<(String, Type)>,
}

impl Writer {
    fn below(&mut self, bound: usize) -> usize {
        self.random.random_range(0..bound)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn any_type(&mut self) -> Type {
        Type { element: self.below(8), size: self.below(4) + 1 }
    }

    fn filter(&mut self) -> String {
        let helper = self.any_type();
        self.variables = vec![("a".into(), helper), ("b".into(), helper)];
        let name = helper.name();
        let (first, second) = (self.value(helper, 2), self.value(helper, 3));
        let table: Vec<String> = (0..8).map(|_| self.random.random_range(-120..120).to_string()).collect();
        let mut text = format!(
            "__constant short table[8] = {{{}}};\n{name} turned({name} a, {name} b)\n{{\n    a = {first};\n    return {second};\n}}\n",
            table.join(", ")
        );
        text += "uint xdp_filter(__global uchar *pkt, uint len)\n{\n";
        self.variables.clear();
        let mut locals = Vec::new();
        for number in 0..self.random.random_range(3..7) {
            let ty = self.any_type();
            let at = 32 * self.below(2);
            // Some compilers read four components of a vector of three.
            let value = match ty.size {
                3 => format!("(*(__global {}4 *)(pkt + {at})).xyz", ELEMENTS[ty.element]),
                _ => format!("*(__global {} *)(pkt + {at})", ty.name()),
            };
            let _ = writeln!(text, "    {} v{number} = {value};", ty.name());
            locals.push((format!("v{number}"), ty));
        }
        self.variables.clone_from(&locals);
        for _ in 0..self.random.random_range(4..10) {
            text += &self.statement(&locals, helper);
        }
        let mut at = RESULTS;
        for (name, ty) in &locals {
            let element = ELEMENTS[ty.element];
            for component in 0..ty.size {
                let part = if ty.size == 1 { String::new() } else { format!(".s{component}") };
                let _ = writeln!(text, "    *(__global {element} *)(pkt + {at}) = {name}{part};");
                at += ty.bytes();
            }
            at = at.next_multiple_of(8);
        }
        assert!(at <= PACKET, "results need {at} bytes");
        let verdict = self.value(Type { element: 5, size: 1 }, 2);
        let _ = write!(text, "    return {verdict} & 3;\n}}\n");
        text
    }

    fn statement(&mut self, locals: &[(String, Type)], helper: Type) -> String {
        let (name, ty) = locals[self.below(locals.len())].clone();
        match self.below(12) {
            0 if ty.size > 1 => {
                let (part, size) = self.components(ty.size, false);
                let value = self.value(Type { size, ..ty }, 2);
                format!("    {name}.{part} = {value};\n")
            }
            1 if ty.size > 1 => {
                let (component, value) = (self.below(ty.size), self.value(Type { size: 1, ..ty }, 2));
                let op = self.pick(&["=", "^=", "&=", "|="]);
                format!("    {name}.s{component} {op} {value};\n")
            }
            2 => {
                let value = self.value(ty, 2);
                format!("    {name} {} {value};\n", self.pick(&["&=", "|=", "^="]))
            }
            3 => {
                let (condition, value) = (self.value(Type { element: 4, size: 1 }, 2), self.value(ty, 2));
                format!("    if ({condition} > {}) {{ {name} = {value}; }}\n", self.random.random_range(-9..9))
            }
            4 => {
                let rounds = self.random.random_range(1..4);
                let value = self.value(ty, 2);
                format!("    for (int i = 0; i < {rounds}; i++) {{ {name} = {value}; }}\n")
            }
            5 => {
                let (a, b) = (self.value(helper, 1), self.value(helper, 1));
                let call = format!("turned({a}, {b})");
                let to = locals.iter().find(|(_, ty)| *ty == helper);
                to.map_or_else(String::new, |(name, _)| format!("    {name} = {call};\n"))
            }
            _ => {
                let value = self.value(ty, 3);
                format!("    {name} = {value};\n")
            }
        }
    }

    /// Returns a swizzle of a vector with `of` components, and its length: each component at most
    /// once, unless `repeated`.
    fn components(&mut self, of: usize, repeated: bool) -> (String, usize) {
        if of == 4 && self.random.random_bool(0.2) {
            return (self.pick(&["lo", "hi", "even", "odd"]).into(), 2);
        }
        let size = if repeated { self.random.random_range(2..5) } else { self.random.random_range(2..=of) };
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.len() < size {
            let component = self.below(of);
            if repeated || !chosen.contains(&component) {
                chosen.push(component);
            }
        }
        let numbered = self.random.random_bool(0.4);
        let letter = |c: usize| if numbered { b"0123"[c] } else { b"xyzw"[c] } as char;
        let letters: String = chosen.into_iter().map(letter).collect();
        (if numbered { format!("s{letters}") } else { letters }, size)
    }

    /// Returns a variable of the type, or one converted to it.
    fn leaf(&mut self, ty: Type) -> String {
        let same: Vec<String> =
            self.variables.iter().filter(|(_, other)| *other == ty).map(|(name, _)| name.clone()).collect();
        if !same.is_empty() && self.random.random_bool(0.5) {
            return same[self.below(same.len())].clone();
        }
        let longer: Vec<(String, Type)> =
            self.variables.iter().filter(|(_, other)| other.element == ty.element && other.size > 1).cloned().collect();
        if !longer.is_empty() && self.random.random_bool(0.7) {
            let (name, other) = longer[self.below(longer.len())].clone();
            if ty.size == 1 {
                return format!("{name}.s{}", self.below(other.size));
            }
            for _ in 0..20 {
                let (part, size) = self.components(other.size, true);
                if size == ty.size {
                    return format!("{name}.{part}");
                }
            }
        }
        self.constant(ty)
    }

    fn constant(&mut self, ty: Type) -> String {
        let bits = 8 * ty.bytes() as u32;
        let value = self.random.random::<u64>() >> self.random.random_range(64 - bits..64);
        let literal = match (bits, ty.is_signed()) {
            (64, true) => format!("(long)0x{value:x}ul"),
            (64, false) => format!("0x{value:x}ul"),
            // Hexadecimal literals are cast if they must be unsigned.
            _ => format!("({})0x{value:x}", ELEMENTS[ty.element]),
        };
        if ty.size == 1 { format!("({literal})") } else { format!("(({})({literal}))", ty.name()) }
    }

    /// Generates an expression of exactly this type.
    fn value(&mut self, ty: Type, depth: usize) -> String {
        if depth == 0 {
            return self.leaf(ty);
        }
        let name = ty.name();
        let next = |this: &mut Self, ty: Type| {
            let lower = this.below(depth);
            this.value(ty, lower)
        };
        match self.below(if self.builtins { 26 } else { 13 }) {
            0 | 1 => {
                // Scalars are promoted first; unsigned arithmetic does not overflow.
                let unsigned = ty.unsigned();
                let (a, b) = (next(self, unsigned), next(self, unsigned));
                let op = self.pick(&["+", "-", "*"]);
                match ty.size {
                    1 if ty.bytes() < 4 => format!("(({name})((uint){a} {op} {b}))"),
                    1 => format!("(({name})({a} {op} {b}))"),
                    _ => format!("as_{name}({a} {op} {b})"),
                }
            }
            2 => {
                let (a, b, op) = (next(self, ty), next(self, ty), self.pick(&["&", "|", "^"]));
                format!("(({name})({a} {op} {b}))")
            }
            3 => {
                // The count is taken modulo the width, which promotion changes for scalars.
                let (a, b) = (next(self, ty.unsigned()), next(self, ty.unsigned()));
                let op = self.pick(&["<<", ">>"]);
                let mask = 8 * ty.bytes() - 1;
                match ty.size {
                    1 => format!("(({name})({a} {op} ({b} & {mask})))"),
                    _ => format!("as_{name}({a} {op} {b})"),
                }
            }
            4 => format!("(({name})({} >> {}))", next(self, ty), self.below(8 * ty.bytes())),
            5 => {
                let (a, b, op) = (next(self, ty), next(self, ty), self.pick(&["/", "%"]));
                let (mask, one) = (format!("({name})7"), format!("({name})1"));
                format!("(({name})({a} {op} (({b} & {mask}) + {one})))")
            }
            6 => format!("(({name})~{})", next(self, ty)),
            7 if ty.size > 1 && ty.is_signed() => {
                let of = if self.random.random_bool(0.5) { ty } else { ty.unsigned() };
                let (a, b) = (next(self, of), next(self, of));
                format!("({a} {} {b})", self.pick(&["<", ">", "<=", ">=", "==", "!="]))
            }
            8 => {
                let (a, b) = (next(self, ty), next(self, ty));
                let of = self.below(8);
                let condition = match ty.size {
                    1 => format!("{} > {}", next(self, Type { element: of, size: 1 }), self.below(100)),
                    _ => format!("{} != {}", next(self, ty), next(self, ty)),
                };
                // A conditional of scalars has the promoted type.
                format!("(({name})(({condition}) ? {a} : {b}))")
            }
            9 | 10 if ty.size > 1 => {
                // Components of a vector, or all of it.
                let mut parts = Vec::new();
                let mut left = ty.size;
                while left > 0 {
                    let size = if left == ty.size {
                        self.random.random_range(1..left)
                    } else {
                        self.random.random_range(1..=left)
                    };
                    parts.push(next(self, Type { size, ..ty }));
                    left -= size;
                }
                format!("(({name})({}))", parts.join(", "))
            }
            9 | 10 => {
                let from = Type { element: self.below(8), size: 1 };
                format!("(({name}){})", next(self, from))
            }
            11 => format!("as_{name}({})", next(self, ty.other_sign())),
            12 => {
                let index = next(self, Type { element: 5, size: 1 });
                let entry = format!("({})table[{index} & 7]", ELEMENTS[ty.element]);
                format!("(({name})({entry}))")
            }
            13 | 14 => {
                let from = Type { element: self.below(8), ..ty };
                let how = self.pick(&["", "_sat"]);
                format!("convert_{name}{how}({})", next(self, from))
            }
            15 | 16 => {
                let function =
                    self.pick(&["min", "max", "rotate", "mul_hi", "add_sat", "sub_sat", "hadd", "rhadd", "bitselect"]);
                let (a, b) = (next(self, ty), next(self, ty));
                match function {
                    "bitselect" => format!("bitselect({a}, {b}, {})", next(self, ty)),
                    _ => format!("{function}({a}, {b})"),
                }
            }
            17 => {
                let (x, low, high) = (next(self, ty), self.leaf(ty), self.leaf(ty));
                format!("clamp({x}, min({low}, {high}), max({low}, {high}))")
            }
            18 => format!("{}({})", self.pick(&["popcount", "clz"]), next(self, ty)),
            19 if !ty.is_signed() => {
                let of = if self.random.random_bool(0.6) { ty.signed() } else { ty };
                match self.random.random_bool(0.5) {
                    true => format!("abs({})", next(self, of)),
                    false => format!("abs_diff({}, {})", next(self, of), next(self, of)),
                }
            }
            20 => {
                let of = if self.random.random_bool(0.5) { ty } else { ty.other_sign() };
                format!("select({}, {}, {})", next(self, ty), next(self, ty), next(self, of))
            }
            21 if ty.size == 1 => {
                let of = Type { element: 2 * self.below(4), size: self.below(3) + 2 };
                format!("(({name}){}({}))", self.pick(&["any", "all"]), next(self, of))
            }
            22 if ty.bytes() == 4 => {
                // Results beyond 24 bits are implementation-defined.
                let mask = if ty.is_signed() { "(0x7ff)" } else { "(0xfffu)" };
                let (a, b) = (
                    format!("({} & ({name}){mask})", next(self, ty)),
                    format!("({} & ({name}){mask})", next(self, ty)),
                );
                format!("mul24({a}, {b})")
            }
            23 if !ty.is_signed() => {
                format!("mad_hi({}, {}, {})", next(self, ty), next(self, ty), next(self, ty))
            }
            24 => format!("mad_sat({}, {}, {})", next(self, ty), next(self, ty), next(self, ty)),
            25 if ty.bytes() > 1 => {
                let half = Type { element: ty.element - 2, ..ty };
                format!("upsample({}, {})", next(self, half), next(self, half.unsigned()))
            }
            _ => self.leaf(ty),
        }
    }
}
