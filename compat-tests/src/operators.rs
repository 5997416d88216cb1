//! Filters that apply every operator, built-in function and conversion to scalars and vectors, with
//! operands at the edge cases. The interpreter is the reference; its own tests compare it with
//! Rust's arithmetic.

#[path = "../../core/src/interp/tests/operands.rs"]
mod operands;

use std::sync::Arc;

use operands::{load, pairs, store};
use portcullis_core::device::Device;
use portcullis_core::program::Program;

use crate::harness::{self, MismatchKind};
use crate::texts;

/// Size of a packet's three operands in bytes; the results follow, 8 bytes each.
const OPERANDS: usize = 24;

/// Maximum number of results per filter; not too few, because a device compiles each filter anew.
const RESULTS: usize = 24;

fn is_wide(ty: &str) -> bool {
    ty.ends_with("64")
}

/// Returns expressions over `a`, `b` and `c` of the type, each with its result type.
fn expressions(ty: &'static str) -> Vec<(String, &'static str)> {
    let mut all: Vec<(String, &'static str)> = Vec::new();
    let signed = ty.starts_with('i');
    if ty == "bool" {
        for text in ["a && b", "a || b", "a & b", "a | b", "!a", "a == b", "a != b", "select(a, b, c)"] {
            all.push((text.into(), "bool"));
        }
        all.push(("all(vec3<bool>(a, b, c))".into(), "bool"));
        all.push(("any(vec3<bool>(a, b, c))".into(), "bool"));
        all.push(("(vec2<bool>(a, b) & vec2<bool>(b, c)).y".into(), "bool"));
        all.push(("(!vec2<bool>(a, b)).x".into(), "bool"));
        for to in ["u32", "i32", "u64", "i64"] {
            all.push((format!("{to}(a)"), to));
        }
        return all;
    }
    for operator in ["+", "-", "*", "/", "%", "&", "|", "^"] {
        all.push((format!("a {operator} b"), ty));
        for size in 2..=4 {
            let parts = |all: &str| all[..size * 3 - 2].to_string();
            let (left, right) = (parts("a, b, c, a"), parts("b, c, a, c"));
            let last = &"xyzw"[size - 1..size];
            all.push((format!("(vec{size}<{ty}>({left}) {operator} vec{size}<{ty}>({right})).{last}"), ty));
        }
    }
    all.push((format!("(vec3<{ty}>(a, b, c) * c).y"), ty));
    for operator in ["<<", ">>"] {
        all.push((format!("a {operator} u32(b)"), ty));
        all.push((format!("(vec2<{ty}>(a, c) {operator} vec2<u32>(u32(b), u32(a))).y"), ty));
        all.push((format!("a {operator} {}u", if is_wide(ty) { 63 } else { 31 }), ty));
    }
    for operator in ["==", "!=", "<", "<=", ">", ">="] {
        all.push((format!("a {operator} b"), "bool"));
        all.push((format!("(vec4<{ty}>(a, b, c, a) {operator} vec4<{ty}>(c, a, b, b)).z"), "bool"));
    }
    all.push(("select(a, b, a < b)".into(), ty));
    all.push((format!("select(vec2<{ty}>(a, b), vec2<{ty}>(b, c), vec2<bool>(a < b, b < c)).y"), ty));
    all.push(("~a".into(), ty));
    all.push((format!("(~vec2<{ty}>(a, b)).y"), ty));
    if signed {
        all.push(("-a".into(), ty));
        all.push((format!("(-vec3<{ty}>(a, b, c)).z"), ty));
        all.push(("sign(a)".into(), ty));
        all.push((format!("sign(vec2<{ty}>(b, a)).y"), ty));
    }
    for name in [
        "abs",
        "countOneBits",
        "countLeadingZeros",
        "countTrailingZeros",
        "reverseBits",
        "firstLeadingBit",
        "firstTrailingBit",
    ] {
        all.push((format!("{name}(a)"), ty));
        all.push((format!("{name}(vec2<{ty}>(b, a)).y"), ty));
    }
    for name in ["min", "max"] {
        all.push((format!("{name}(a, b)"), ty));
        all.push((format!("{name}(vec3<{ty}>(a, b, c), vec3<{ty}>(c, a, b)).z"), ty));
    }
    all.push(("clamp(a, b, c)".into(), ty));
    all.push((format!("clamp(vec2<{ty}>(c, a), vec2<{ty}>(b, b), vec2<{ty}>(a, c)).y"), ty));
    all.push(("extractBits(a, u32(b), u32(c))".into(), ty));
    all.push(("extractBits(a, 3u, 17u)".into(), ty));
    all.push((format!("extractBits(vec2<{ty}>(a, b), u32(b), u32(c)).y"), ty));
    all.push(("insertBits(a, b, u32(b), u32(c))".into(), ty));
    all.push(("insertBits(a, b, 5u, 20u)".into(), ty));
    all.push((format!("insertBits(vec2<{ty}>(a, b), vec2<{ty}>(b, c), u32(c), u32(a)).y"), ty));
    all.push((format!("dot(vec3<{ty}>(a, b, c), vec3<{ty}>(b, c, a))"), ty));
    for to in ["u32", "i32", "u64", "i64", "bool"] {
        all.push((format!("{to}(a)"), to));
        all.push((format!("vec2<{to}>(vec2<{ty}>(a, b)).y"), to));
        if to != "bool" && is_wide(to) == is_wide(ty) {
            all.push((format!("bitcast<{to}>(a)"), to));
        }
    }
    // Index with values of any size and sign.
    all.push(("array<u32, 5>(10u, 11u, 12u, 13u, 14u)[a]".into(), "u32"));
    all.push((format!("vec3<{ty}>(c, b, a)[b]"), ty));
    if ty == "u32" {
        for text in [
            "pack4xU8(vec4<u32>(a, b, c, a))",
            "pack4xU8Clamp(vec4<u32>(a, b, c, a))",
            "pack4xI8(vec4<i32>(vec4<u32>(a, b, c, a)))",
            "pack4xI8Clamp(vec4<i32>(vec4<u32>(a, b, c, a)))",
            "unpack4xU8(a).z",
            "bitcast<u32>(unpack4xI8(a).w)",
            "dot4U8Packed(a, b)",
            "bitcast<u32>(dot4I8Packed(a, b))",
            "csum_add(a, b)",
            "csum_fold(a)",
            "csum_replace16(a, b, c)",
            "csum_replace32(a, b, c)",
        ] {
            all.push((text.into(), "u32"));
        }
    }
    all
}

/// Compiles a filter that computes expressions and stores their results.
fn program(ty: &str, part: &[(String, &str)]) -> Arc<Program> {
    let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 {\n");
    for (i, name) in ["a", "b", "c"].iter().enumerate() {
        text += &format!("    let {name} = {};\n", load(ty, i * 8));
    }
    for (i, (expression, result)) in part.iter().enumerate() {
        let at = OPERANDS + i * 8;
        text += &format!("    let r{i} = {expression};\n    {}\n", store(&format!("r{i}"), result, at));
    }
    text += "    return XDP_PASS;\n}\n";
    texts::in_wgsl(&format!("operators of {ty}"), &text)
}

fn packets() -> Vec<Vec<u8>> {
    let packet = |operands: [u64; 3]| {
        let mut packet: Vec<u8> = operands.iter().flat_map(|v| v.to_le_bytes()).collect();
        packet.resize(OPERANDS + RESULTS * 8, 0);
        packet
    };
    pairs().into_iter().map(packet).collect()
}

/// A filter that applies some operators.
#[derive(Debug)]
pub struct Case {
    /// The filter, with packets for all pairs of operands.
    pub case: harness::Case,
    ty: &'static str,
    expressions: Vec<(String, &'static str)>,
}

/// Operand types.
pub const TYPES: [&str; 5] = ["u32", "i32", "bool", "u64", "i64"];

/// Returns filters that together cover all operators of the [`TYPES`] given.
pub fn cases(types: &[&'static str]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &ty in types {
        for part in expressions(ty).chunks(RESULTS) {
            let case = harness::Case::new(program(ty, part), packets());
            cases.push(Case { case, ty, expressions: part.to_vec() });
        }
    }
    cases
}

/// Runs the cases on a device.
///
/// # Panics
/// With a list of all wrong results.
pub fn check(device: &Arc<dyn Device>, cases: &[Case]) {
    let mut wrong = Vec::new();
    for Case { case, ty, expressions } in cases {
        let Err(mismatch) = case.compare(&**device, &[case.packets().len()]) else { continue };
        let place = match &mismatch.kind {
            MismatchKind::Packet { got, want, .. } => got.1.iter().zip(&want.1).position(|(a, b)| a != b),
            _ => None,
        };
        let which = place.map(|at| expressions[(at - OPERANDS) / 8].0.as_str()).unwrap_or("the filter as a whole");
        wrong.push(format!("{which} over {ty}: {mismatch}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
