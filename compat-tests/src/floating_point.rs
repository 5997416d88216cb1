//! Floating-point expressions (f32). Devices may differ, but every device must run them and be
//! close to the reference.

use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{Metadata, ResizeRoom, Verdict};
use portcullis_core::program::Program;

use crate::layouts;
use crate::texts::in_wgsl;

/// Expressions over `a`, `b` and `c`, all between 0.1 and 0.9.
const EXPRESSIONS: &[&str] = &[
    "a + b - c",
    "a * b / c",
    "(a * 7.0) % b",
    "-a",
    "abs(-a)",
    "min(a, b)",
    "max(a, b)",
    "clamp(a, b, 0.95)",
    "saturate(a + b)",
    "sign(a - b)",
    "floor(a * 9.0)",
    "ceil(a * 9.0)",
    "round(a * 9.0)",
    "trunc(a * -9.0)",
    "fract(a * 9.0)",
    "sqrt(a)",
    "inverseSqrt(a)",
    "sin(a)",
    "cos(a)",
    "tan(a)",
    "asin(a)",
    "acos(a)",
    "atan(a)",
    "atan2(a, b)",
    "sinh(a)",
    "cosh(a)",
    "tanh(a)",
    "asinh(a)",
    "acosh(a + 1.0)",
    "atanh(a)",
    "exp(a)",
    "exp2(a)",
    "log(a)",
    "log2(a)",
    "pow(a, b)",
    "degrees(a)",
    "radians(a * 90.0)",
    "fma(a, b, c)",
    "mix(a, b, c)",
    "mix(vec2(a, b), vec2(b, c), a).y",
    "step(a, b)",
    "smoothstep(0.0, 1.0, a)",
    "ldexp(a, 3i)",
    "modf(a * 9.0).fract",
    "modf(vec2(a, b) * 9.0).whole.y",
    "frexp(a).fract",
    "f32(frexp(a).exp)",
    "length(vec3(a, b, c))",
    "distance(vec2(a, b), vec2(b, c))",
    "dot(vec4(a, b, c, a), vec4(b, c, a, a))",
    "normalize(vec2(a, b)).x",
    "cross(vec3(a, b, c), vec3(c, a, b)).y",
    "reflect(vec2(a, b), vec2(0.6, 0.8)).x",
    "refract(vec2(0.6, -0.8), vec2(0.0, 1.0), a).x",
    "faceForward(vec2(a, b), vec2(c, a), vec2(b, b)).x",
    "(mat2x2<f32>(a, b, c, a) * vec2(b, c)).y",
    "(vec3(a, b, c) * mat2x3<f32>(a, b, c, c, b, a)).y",
    "(mat2x3<f32>(a, b, c, c, b, a) * mat3x2<f32>(a, b, c, a, b, c))[1].z",
    "(mat2x2<f32>(a, b, c, a) * 3.0 + mat2x2<f32>(b, b, b, b))[0].y",
    "transpose(mat2x3<f32>(a, b, c, c, b, a))[2].x",
    "determinant(mat3x3<f32>(a, b, c, b, b, a, c, a, a))",
    "select(a, b, a < b)",
    "f32(a < b) + f32(a <= b) + f32(a > b) + f32(a >= b) + f32(a == b) + f32(a != b)",
    "f32(u32(a * 100.0)) + f32(i32(a * -100.0))",
    "f32(u64(a * 1000.0)) + f32(i64(b * -1000.0))",
    "f32(bool(a))",
    "unpack4x8unorm(pack4x8unorm(vec4(a, b, c, a))).y",
    "unpack4x8snorm(pack4x8snorm(vec4(a, -b, c, a))).y",
    "unpack2x16unorm(pack2x16unorm(vec2(a, b))).x",
    "unpack2x16snorm(pack2x16snorm(vec2(a, -b))).y",
    "array<f32, 3>(a, b, c)[u32(a * 3.0)]",
];

/// Tolerance: the largest error that WGSL allows is that of sine and cosine, 2^-11.
const TOLERANCE: f32 = 1e-3;

fn program(part: &[&str]) -> Arc<Program> {
    let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 {\n");
    for (i, name) in ["a", "b", "c"].iter().enumerate() {
        text += &format!("    let {name} = f32(load_be16(pkt, {}u)) / 65536.0 * 0.8 + 0.1;\n", i * 2);
    }
    for (i, expression) in part.iter().enumerate() {
        text += &format!("    store_le32(pkt, {}u, bitcast<u32>(f32({expression})));\n", 6 + i * 4);
    }
    text += "    return XDP_PASS;\n}\n";
    in_wgsl("floating point", &text)
}

/// Number of results per filter.
const RESULTS: usize = 24;

/// Returns filters that together cover all expressions, each with its own.
pub fn cases() -> Vec<(Arc<Program>, &'static [&'static str])> {
    EXPRESSIONS.chunks(RESULTS).map(|part| (program(part), part)).collect()
}

/// Runs the filters on a device.
///
/// # Panics
/// At the first result outside the tolerance.
pub fn check(device: &Arc<dyn Device>, cases: &[(Arc<Program>, &[&str])]) {
    let packets: Vec<Vec<u8>> = (0..64u16)
        .map(|i| {
            let operands = [i * 1021, (63 - i) * 977, (i * 31 % 64) * 1009];
            let mut packet: Vec<u8> = operands.iter().flat_map(|v| v.to_be_bytes()).collect();
            packet.resize(6 + RESULTS * 4, 0);
            packet
        })
        .collect();
    for (program, part) in cases {
        assert!(program.facts().uses_float, "the facts know about floating point");
        let reference = Interpreter::new(program).unwrap_or_else(|e| panic!("{e}"));
        let session = device.load(program, &LoadOptions::default());
        let mut session = session.unwrap_or_else(|e| panic!("{e}\n{}", program.source().text));
        let (mut batches, _) = layouts::batches(&packets, packets.len(), ResizeRoom::None);
        let done = session.run(batches.remove(0)).unwrap_or_else(|e| panic!("{e}"));
        for (index, packet) in packets.iter().enumerate() {
            let want = reference.run(packet, &Metadata::default()).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(done.verdicts.get(index), Verdict::Pass);
            let number =
                |bytes: &[u8], i: usize| f32::from_le_bytes(bytes[6 + i * 4..][..4].try_into().expect("four bytes"));
            for (i, expression) in part.iter().enumerate() {
                let (got, want) = (number(done.batch.packet(index), i), number(&want.packet, i));
                assert!(
                    (got - want).abs() <= TOLERANCE * want.abs().max(1.0),
                    "{expression}: got {got}, expected {want}, for {:02x?}",
                    &packet[..6]
                );
            }
        }
    }
}
