//! Random filters that use 64-bit integers throughout: in variables of every kind, loops, branches,
//! helpers with pointers, and loads and stores of the packet.
//!
//! At most one operand is a constant: WGSL's front end does not evaluate constant expressions of 64
//! bits.

use std::fmt::Write;

use crate::testing::Random;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ty {
    U64,
    I64,
    U32,
    I32,
    Bool,
    /// A vector of `u64` with this many components.
    Vu(u32),
    /// A vector of `i64`, likewise.
    Vi(u32),
}

use Ty::*;

/// Assignable expressions of a filter, by type.
const PLACES: &[(Ty, &[&str])] = &[
    (U64, &["a", "b", "g", "p.wide", "v.x", "v[k]", "t[b]", "l[k]", "l[s]", "n[k].wide", "w.y", "o.pairs[k].x"]),
    (I64, &["c", "d", "p.inner.y", "q.w", "q[s]", "h[2]", "h[k]", "n[1].inner[k]", "o.last.inner.x"]),
    (U32, &["k", "e[a]", "p.count"]),
    (I32, &["s", "f[1]"]),
    (Vu(2), &["v", "w", "o.pairs[1]", "o.pairs[k]"]),
    (Vu(3), &["t"]),
    (Vi(2), &["p.inner", "n[k].inner"]),
    (Vi(3), &["h"]),
    (Vi(4), &["q"]),
];

const HEAD: &str = "
struct P { wide: u64, count: u32, inner: vec2<i64> }
struct O { last: P, pairs: array<vec2<u64>, 3> }
const TABLE = array<u64, 4>(1lu, 0xfedcba9876543210lu, 0lu, 0x8000000000000000lu);
var<private> g: u64 = 99lu;
var<private> h: vec3<i64>;
var<private> l: array<u64, 5>;
var<private> o: O;
fn take(pkt: u32, at: u32) -> u64 { return u64(load_le32(pkt, at)) | (u64(load_be32(pkt, at + 4u)) << 32u); }
fn put(pkt: u32, at: u32, v: u64) { store_le32(pkt, at, u32(v)); store_be32(pkt, at + 4u, u32(v >> 32u)); }
fn mix(x: u64, y: i64, z: vec2<u64>) -> vec2<u64> { g = g * 31lu + x; return z * x + vec2<u64>(u64(y)); }
fn turn(x: ptr<function, vec4<i64>>, by: i64) -> i64 {
    let first = (*x).x;
    (*x).x = (*x)[u32(by) & 3u] - by;
    *x = (*x).yzwx;
    return first;
}
fn step(x: ptr<function, u64>) { *x = (*x ^ (*x << 13u)) * 3lu; if *x % 2lu == 0lu { return; } *x += 1lu; }
";

const LOCALS: &str = "
    var a = take(pkt, 0u); var b = take(pkt, 8u); var c = i64(take(pkt, 16u)); var d = i64(i32(load_u8(pkt, 1u))) - 128li;
    var k = load_u8(pkt, 2u); var s = i32(load_be32(pkt, 3u));
    var v = vec2<u64>(a, b); var w: vec2<u64>; var t = vec3<u64>(b, v); var q = vec4<i64>(c, d, c - d, -c);
    var p = P(a, k, q.xy); var n = array<P, 3>(p, P(), P(b, 7u, q.zw));
    var e = array<u32, 3>(k, 1u, 2u); var f = array<i32, 2>(s, -s);
";

/// The filter for this seed.
pub(super) fn filter(seed: u64) -> String {
    let mut writer =
        Writer { random: Random(seed ^ 0x5eed_0000), text: HEAD.into(), depth: 0, loops: 0, helper: false };
    writer.text += "fn helper(pkt: u32, a: u64, c: i64, v: vec2<u64>, k: u32) -> u64 {\n";
    // Declares the filter's variables that the helper lacks, so that expressions are valid in both.
    writer.text += "    var b = a + 1lu; var d = c; var s = i32(k); var w: vec2<u64>; var t = vec3<u64>(a, v);
    var q = vec4<i64>(c); var p = P(a, k, q.xy); var n = array<P, 3>(); var e = array<u32, 3>(); var f = array<i32, 2>();\n";
    for _ in 0..2 {
        let (name, ty) = writer.random.pick(&[("b", U64), ("d", I64), ("w", Vu(2)), ("q", Vi(4)), ("t[k]", U64)]);
        let value = writer.value(ty, 3);
        let _ = writeln!(writer.text, "    {name} = {value};");
    }
    let value = writer.value(U64, 3);
    let _ = writeln!(writer.text, "    return {value};\n}}\nfn xdp_filter(pkt: u32) -> u32 {{{LOCALS}");
    writer.helper = true;
    for _ in 0..10 {
        writer.statement();
    }
    // Store every variable to the packet, so that differences show.
    let mut at = 0;
    for &(ty, names) in PLACES {
        let (count, wrap) = match ty {
            Vu(n) | Vi(n) => (n, true),
            _ => (1, false),
        };
        for name in names {
            for i in 0..count {
                let element = if wrap { format!("{name}[{i}]") } else { (*name).into() };
                let _ = writeln!(
                    writer.text,
                    "    put(pkt, {}u, take(pkt, {}u) * 7lu + u64({element}));",
                    at % 56,
                    at % 56
                );
                at += 8;
            }
        }
    }
    let value = writer.value(U64, 2);
    let _ = writeln!(writer.text, "    return 1u + u32({value} % 3lu);\n}}");
    writer.text
}

struct Writer {
    random: Random,
    text: String,
    depth: usize,
    loops: usize,
    /// Whether the helper may be called.
    helper: bool,
}

impl Writer {
    fn names(ty: Ty) -> &'static [&'static str] {
        PLACES.iter().find(|(of, _)| *of == ty).map_or(&[], |(_, names)| names)
    }

    fn line(&mut self, text: &str) {
        let indent = "    ".repeat(self.depth + 1);
        let _ = writeln!(self.text, "{indent}{text}");
    }

    fn nested(&mut self, statements: usize) {
        self.depth += 1;
        for _ in 0..statements {
            self.statement();
        }
        self.depth -= 1;
    }

    fn statement(&mut self) {
        let deep = self.depth >= 3;
        match self.random.below(if deep { 8 } else { 14 }) {
            0..4 => {
                let ty = self.random.pick(&[U64, U64, I64, I64, U32, I32, Vu(2), Vu(3), Vi(2), Vi(3), Vi(4)]);
                let (name, value) = (self.random.pick(Self::names(ty)), self.value(ty, 4));
                self.line(&format!("{name} = {value};"));
            }
            4 => {
                let ty = self.random.pick(&[U64, I64, Vu(2), Vi(4)]);
                let op = self.random.pick(&["+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="]);
                let (name, value) = (self.random.pick(Self::names(ty)), self.value(ty, 3));
                self.line(&format!("{name} {op} {value};"));
            }
            5 => {
                let (ty, op) = (self.random.pick(&[U64, I64]), self.random.pick(&["<<=", ">>="]));
                let (name, value) = (self.random.pick(Self::names(ty)), self.value(U32, 2));
                self.line(&format!("{name} {op} {value};"));
            }
            6 => {
                let (at, value) = (self.value(U32, 1), self.value(U64, 3));
                self.line(&format!("put(pkt, {at} & 63u, {value});"));
            }
            7 => {
                let value = self.value(I64, 2);
                let call =
                    self.random.pick(&["step(&a);", "step(&b);", "d ^= turn(&q, #by);", "n[2] = p;", "o.last = n[k];"]);
                self.line(&call.replace("#by", &value));
            }
            8 | 9 => {
                let condition = self.value(Bool, 3);
                self.line(&format!("if {condition} {{"));
                self.nested(2);
                if self.random.below(2) == 0 {
                    self.line("} else {");
                    self.nested(2);
                }
                self.line("}");
            }
            10 => {
                let (n, count) = (self.loops, 1 + self.random.below(4));
                self.loops += 1;
                let wide = self.random.pick(&["u64", "i64", "u32"]);
                self.line(&format!("for (var i{n}: {wide} = 0; i{n} < {count}; i{n}++) {{"));
                self.nested(2);
                let condition = self.value(Bool, 2);
                let leave = self.random.pick(&["break", "continue"]);
                self.line(&format!("    if {condition} {{ {leave}; }} l[i{n}] += u64(i{n}) + b;"));
                self.line("}");
            }
            11 => {
                let n = self.loops;
                self.loops += 1;
                let (value, condition) = (self.value(U64, 2), self.value(Bool, 2));
                self.line(&format!("var r{n} = {value}; var m{n} = 0lu;"));
                self.line("loop {");
                self.nested(1);
                self.line(&format!(
                    "    continuing {{ r{n} >>= 9u; m{n}++; break if r{n} == 0lu || m{n} > 4lu || {condition}; }}"
                ));
                self.line("}");
            }
            12 => {
                let value = self.value(U64, 2);
                self.line(&format!("switch u32({value}) % 4u {{ case 0u: {{"));
                self.nested(1);
                self.line("} case 1u, 2u: {");
                self.nested(1);
                self.line("} default: {");
                self.nested(1);
                self.line("} }");
            }
            _ => {
                let (one, two) = (self.value(Bool, 3), self.value(Bool, 3));
                let value = self.value(U64, 2);
                self.line(&format!("if {one} && {two} {{ put(pkt, 40u, {value}); return 1u + u32(a & 1lu); }}"));
            }
        }
    }

    /// An expression that is not constant.
    fn value(&mut self, ty: Ty, depth: usize) -> String {
        if depth == 0 {
            return match ty {
                Bool => format!("(a {} b)", self.random.pick(&["<", "==", ">="])),
                _ => self.random.pick(Self::names(ty)).into(),
            };
        }
        let depth = depth - 1;
        match ty {
            Bool => match self.random.below(6) {
                0 => format!("!{}", self.value(Bool, depth)),
                1 => {
                    let op = self.random.pick(&["&&", "||"]);
                    format!("({} {op} {})", self.value(Bool, depth), self.value(Bool, depth))
                }
                2 => {
                    let of = self.random.pick(&[Vu(2), Vi(4)]);
                    let (all, op) = (self.random.pick(&["all", "any"]), self.random.pick(&["<", "<=", "==", "!="]));
                    format!("{all}({} {op} {})", self.value(of, depth), self.value(of, depth))
                }
                3 => format!("bool({})", self.wide(depth)),
                _ => {
                    let of = self.random.pick(&[U64, I64, U64, I64, I32]);
                    let op = self.random.pick(&["<", "<=", ">", ">=", "==", "!="]);
                    format!("({} {op} {})", self.value(of, depth), self.value_or_constant(of, depth))
                }
            },
            U32 => match self.random.below(4) {
                0 => format!("u32({})", self.wide(depth)),
                1 => format!("({} + {})", self.value(U32, depth), self.value(U32, depth)),
                2 => format!("load_u8(pkt, {} & 63u)", self.value(U32, depth)),
                _ => self.value(U32, 0),
            },
            I32 => match self.random.below(3) {
                0 => format!("i32({})", self.wide(depth)),
                1 => format!("({} - {})", self.value(I32, depth), self.value(I32, depth)),
                _ => self.value(I32, 0),
            },
            U64 | I64 => self.scalar(ty, depth),
            Vu(n) | Vi(n) => self.vector(ty, n, depth),
        }
    }

    fn wide(&mut self, depth: usize) -> String {
        let ty = self.random.pick(&[U64, I64]);
        self.value(ty, depth)
    }

    fn constant(&mut self, ty: Ty) -> String {
        let value = self.random.next() >> self.random.below(64);
        match ty {
            U64 => format!("{}lu", value | 1),
            I64 => format!("({}{}li)", self.random.pick(&["", "-"]), (value >> 1) | 1),
            _ => format!("{}i", (value >> 34) | 1),
        }
    }

    fn value_or_constant(&mut self, ty: Ty, depth: usize) -> String {
        if self.random.below(4) == 0 { self.constant(ty) } else { self.value(ty, depth) }
    }

    fn scalar(&mut self, ty: Ty, depth: usize) -> String {
        let name = if ty == U64 { "u64" } else { "i64" };
        let pair = if ty == U64 { Vu(2) } else { Vi(4) };
        match self.random.below(13) {
            0..4 => {
                let op = self.random.pick(&["+", "-", "*", "/", "%", "&", "|", "^"]);
                format!("({} {op} {})", self.value(ty, depth), self.value_or_constant(ty, depth))
            }
            4 => {
                let op = self.random.pick(&["<<", ">>"]);
                format!("({} {op} ({}))", self.value(ty, depth), self.value(U32, depth))
            }
            5 => format!("{}({})", if ty == U64 { "~" } else { "-" }, self.value(ty, depth)),
            6 => {
                let of = self.random.pick(&[U64, I64, U32, I32, Bool]);
                format!("{name}({})", self.value(of, depth))
            }
            7 => {
                let of = self.random.pick(&["min", "max"]);
                format!("{of}({}, {})", self.value(ty, depth), self.value_or_constant(ty, depth))
            }
            8 => {
                let of = self.random.pick(&[
                    "abs",
                    // WGSL defines `sign` for signed numbers only.
                    if ty == U64 { "abs" } else { "sign" },
                    "countOneBits",
                    "countLeadingZeros",
                    "countTrailingZeros",
                    "firstLeadingBit",
                    "firstTrailingBit",
                    "reverseBits",
                ]);
                format!("{of}({})", self.value(ty, depth))
            }
            9 => {
                let (x, y, condition) =
                    (self.value(ty, depth), self.value_or_constant(ty, depth), self.value(Bool, depth));
                format!("select({x}, {y}, {condition})")
            }
            10 => {
                let vector = self.value(pair, depth);
                match self.random.below(3) {
                    0 => format!("({vector}).y"),
                    1 => format!("({vector})[k]"),
                    _ => format!("dot({vector}, {})", self.value(pair, depth)),
                }
            }
            11 if ty == U64 => {
                let (x, y, z) = (self.value(U64, depth), self.value(I64, depth), self.value(Vu(2), depth));
                let last = if self.helper { "helper(pkt, #x, #y, #z, k)" } else { "g" };
                self.random
                    .pick(&["mix(#x, #y, #z).x", "TABLE[k & 3u]", "take(pkt, k & 63u)", "mix(#x, #y, #z)[k]", last])
                    .replace("#x", &x)
                    .replace("#y", &y)
                    .replace("#z", &z)
            }
            _ => self.value(ty, 0),
        }
    }

    fn vector(&mut self, ty: Ty, n: u32, depth: usize) -> String {
        let (scalar, name) = if let Vu(_) = ty { (U64, "u64") } else { (I64, "i64") };
        match self.random.below(10) {
            0..3 => {
                let op = self.random.pick(&["+", "-", "*", "/", "%", "&", "|", "^"]);
                format!("({} {op} {})", self.value(ty, depth), self.value(ty, depth))
            }
            3 => {
                let op = self.random.pick(&["+", "*", "-", "/"]);
                format!("({} {op} {})", self.value(ty, depth), self.value_or_constant(scalar, depth))
            }
            4 => {
                let components: Vec<_> = (0..n).map(|_| self.value(scalar, depth)).collect();
                format!("vec{n}<{name}>({})", components.join(", "))
            }
            5 => format!("vec{n}<{name}>({})", self.value(scalar, depth)),
            6 => {
                let letters: String = (0..n).map(|_| self.random.pick(&["x", "y"])).collect();
                let of = if let Vu(_) = ty {
                    self.random.pick(&[Vu(2), Vu(3)])
                } else {
                    self.random.pick(&[Vi(2), Vi(3), Vi(4)])
                };
                format!("({}).{letters}", self.value(of, depth))
            }
            7 => {
                let (x, y, condition) = (self.value(ty, depth), self.value(ty, depth), self.value(Bool, depth));
                match self.random.below(2) {
                    0 => format!("select({x}, {y}, {condition})"),
                    _ => format!("select({x}, {y}, {x} < {y})"),
                }
            }
            8 => {
                let (x, y) = (self.value(ty, depth), self.value(ty, depth));
                self.random
                    .pick(&["min(#x, #y)", "max(#x, #y)", "abs(#x)", "clamp(#x, #y, #x)", "~#x"])
                    .replace("#x", &x)
                    .replace("#y", &y)
            }
            _ => self.value(ty, 0),
        }
    }
}
