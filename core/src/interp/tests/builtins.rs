//! Built-in functions, compared with Rust's.

use super::evaluate;
use super::operands::pairs;

fn check(ty: &str, result: &str, expression: &str, cases: &[[u64; 3]], expected: impl Fn(&[u64; 3]) -> u64) {
    for (case, got) in cases.iter().zip(evaluate("", result, expression, ty, cases)) {
        assert_eq!(got, expected(case), "{expression} over {ty}: {case:x?}");
    }
}

#[test]
fn bit_functions_of_one_number() {
    // Name, and Rust's function for u32, i32, u64 and i64.
    type Row = (&'static str, fn(u32) -> u32, fn(i32) -> u32, fn(u64) -> u64, fn(i64) -> u64);
    let rows: &[Row] = &[
        ("abs", |v| v, i32::unsigned_abs, |v| v, i64::unsigned_abs),
        ("countOneBits", u32::count_ones, i32::count_ones, |v| v.count_ones().into(), |v| v.count_ones().into()),
        (
            "countLeadingZeros",
            u32::leading_zeros,
            i32::leading_zeros,
            |v| v.leading_zeros().into(),
            |v| v.leading_zeros().into(),
        ),
        (
            "countTrailingZeros",
            u32::trailing_zeros,
            i32::trailing_zeros,
            |v| v.trailing_zeros().into(),
            |v| v.trailing_zeros().into(),
        ),
        ("reverseBits", u32::reverse_bits, |v| v.reverse_bits() as u32, u64::reverse_bits, |v| v.reverse_bits() as u64),
        (
            "firstTrailingBit",
            |v| if v == 0 { u32::MAX } else { v.trailing_zeros() },
            |v| if v == 0 { u32::MAX } else { v.trailing_zeros() },
            |v| if v == 0 { u64::MAX } else { v.trailing_zeros().into() },
            |v| if v == 0 { u64::MAX } else { v.trailing_zeros().into() },
        ),
        // ilog2 of 0 is undefined; for a negative number the complement counts.
        (
            "firstLeadingBit",
            |v| v.checked_ilog2().unwrap_or(u32::MAX),
            |v| v.max(!v).checked_ilog2().unwrap_or(u32::MAX),
            |v| v.checked_ilog2().map_or(u64::MAX, u64::from),
            |v| v.max(!v).checked_ilog2().map_or(u64::MAX, u64::from),
        ),
    ];
    let cases = pairs();
    check("i32", "i32", "sign(a)", &cases, |c| (c[0] as i32).signum() as u32 as u64);
    check("i64", "i64", "sign(a)", &cases, |c| (c[0] as i64).signum() as u64);
    for (name, of_u32, of_i32, of_u64, of_i64) in rows {
        let text = format!("{name}(a)");
        check("u32", "u32", &text, &cases, |c| of_u32(c[0] as u32).into());
        check("i32", "i32", &text, &cases, |c| of_i32(c[0] as i32).into());
        check("u64", "u64", &text, &cases, |c| of_u64(c[0]));
        check("i64", "i64", &text, &cases, |c| of_i64(c[0] as i64));
    }
}

#[test]
fn min_max_and_clamp() {
    let cases = pairs();
    check("u32", "u32", "min(a, b)", &cases, |c| u64::from((c[0] as u32).min(c[1] as u32)));
    check("u32", "u32", "max(a, b)", &cases, |c| u64::from((c[0] as u32).max(c[1] as u32)));
    check("i32", "i32", "min(a, b)", &cases, |c| u64::from((c[0] as i32).min(c[1] as i32) as u32));
    check("i32", "i32", "max(a, b)", &cases, |c| u64::from((c[0] as i32).max(c[1] as i32) as u32));
    check("u64", "u64", "min(a, b)", &cases, |c| c[0].min(c[1]));
    check("i64", "i64", "max(a, b)", &cases, |c| (c[0] as i64).max(c[1] as i64) as u64);
    check("u32", "u32", "clamp(a, b, c)", &cases, |c| u64::from((c[0] as u32).max(c[1] as u32).min(c[2] as u32)));
    check(
        "i32",
        "i32",
        "clamp(a, b, c)",
        &cases,
        |c| u64::from((c[0] as i32).max(c[1] as i32).min(c[2] as i32) as u32),
    );
    check("i64", "i64", "clamp(a, b, c)", &cases, |c| (c[0] as i64).max(c[1] as i64).min(c[2] as i64) as u64);
}

#[test]
fn bit_fields() {
    let offsets = [0u64, 1, 7, 16, 31, 32, 33, 0xffff_ffff];
    let values = [0u64, 0xffff_ffff, 0x1234_5678, 0x8765_4321, 0x8000_0000];
    let cases: Vec<[u64; 3]> =
        values.iter().flat_map(|&v| offsets.iter().flat_map(move |&o| offsets.map(move |n| [v, o, n]))).collect();
    let field = |c: &[u64; 3]| {
        let offset = c[1].min(32);
        (offset, c[2].min(32 - offset))
    };
    check("u32", "u32", "extractBits(a, b, c)", &cases, |c| {
        let (offset, count) = field(c);
        (c[0] >> offset) & ((1 << count) - 1)
    });
    check("i32", "i32", "extractBits(a, u32(b), u32(c))", &cases, |c| {
        let (offset, count) = field(c);
        let bits = (c[0] >> offset) & ((1 << count) - 1);
        let negative = count > 0 && bits >> (count - 1) == 1;
        if negative { (bits as i64 - (1 << count)) as u32 as u64 } else { bits }
    });
    check("u32", "u32", "insertBits(a, 0x5a5a5a5au, b, c)", &cases, |c| {
        let (offset, count) = field(c);
        let mask = ((1u64 << count) - 1) << offset;
        (c[0] & !mask | (0x5a5a_5a5a << offset) & mask) & 0xffff_ffff
    });
    // 64-bit results computed by hand.
    let one = |ty: &str, text: &str, a: u64| evaluate("", ty, text, ty, &[[a, 0, 0]])[0];
    assert_eq!(one("u64", "extractBits(a, 36u, 8u)", 0x0123_4567_89ab_cdef), 0x56);
    assert_eq!(one("i64", "extractBits(a, 56u, 100u)", 0xf123_4567_89ab_cdef), 0xffff_ffff_ffff_fff1);
    assert_eq!(one("u64", "insertBits(a, u64(0xffu), 60u, 8u)", 0), 0xf000_0000_0000_0000);
}

#[test]
fn packed_numbers() {
    let u = |text: &str, a: u32, b: u32| evaluate("", "u32", text, "u32", &[[a.into(), b.into(), 0]])[0] as u32;
    assert_eq!(u("pack4xU8(vec4(a, b, 3u, 0x104u))", 0x101, 2), 0x0403_0201);
    assert_eq!(u("pack4xU8Clamp(vec4(a, b, 3u, 0x104u))", 0x101, 2), 0xff03_02ff);
    assert_eq!(u("pack4xI8(vec4(-1i, i32(a), 0x7fi, i32(b)))", 5, 0x80), 0x807f_05ff);
    assert_eq!(u("pack4xI8Clamp(vec4(-300i, i32(a), 300i, i32(b)))", 5, 0x80), 0x7f7f_0580);
    assert_eq!(u("unpack4xU8(a).z * 256u + unpack4xU8(a).x", 0x0403_0201, 0), 0x301);
    assert_eq!(u("u32(unpack4xI8(a).w)", 0x8403_0201, 0), 0xffff_ff84);
    assert_eq!(u("dot4U8Packed(a, b)", 0xff02_0304, 0xff01_0203), 255 * 255 + 2 + 6 + 12);
    assert_eq!(u("u32(dot4I8Packed(a, b))", 0xff02_0304, 0x0201_0203), 18);
    assert_eq!(u("pack4x8unorm(vec4(0.0, 1.0, 0.5, f32(a)))", 9, 0), 0xff80_ff00);
    assert_eq!(u("pack4x8snorm(vec4(0.0, 1.0, -1.0, f32(a)))", 9, 0), 0x7f81_7f00);
    assert_eq!(u("pack2x16unorm(vec2(1.0, f32(a)))", 0, 0), 0x0000_ffff);
    assert_eq!(u("pack2x16snorm(vec2(-1.0, f32(a)))", 1, 0), 0x7fff_8001);
    assert_eq!(u("u32(unpack4x8unorm(a).y * 255.0)", 0x0000_ff00, 0), 255);
    assert_eq!(u("u32(unpack4x8snorm(a).x * -127.0 + 0.5)", 0x80, 0), 127);
    assert_eq!(u("u32(unpack2x16unorm(a).y * 65535.0 + 0.5)", 0x1234_0000, 0), 0x1234);
    assert_eq!(u("u32(unpack2x16snorm(a).x * -32767.0 + 0.5)", 0x8001, 0), 32767);
}

#[test]
fn floating_point() {
    let cases: &[(&str, [f32; 3], f32)] = &[
        ("abs(a)", [-1.5, 0.0, 0.0], 1.5),
        ("min(a, b)", [-1.5, 2.0, 0.0], -1.5),
        ("max(a, b)", [-1.5, 2.0, 0.0], 2.0),
        ("clamp(a, b, c)", [5.0, 1.0, 3.0], 3.0),
        ("saturate(a)", [5.0, 0.0, 0.0], 1.0),
        ("floor(a)", [-1.5, 0.0, 0.0], -2.0),
        ("ceil(a)", [-1.5, 0.0, 0.0], -1.0),
        ("trunc(a)", [-1.5, 0.0, 0.0], -1.0),
        ("round(a)", [2.5, 0.0, 0.0], 2.0),
        ("fract(a)", [-1.25, 0.0, 0.0], 0.75),
        ("sign(a)", [-3.0, 0.0, 0.0], -1.0),
        ("sign(a)", [0.0, 0.0, 0.0], 0.0),
        ("sqrt(a)", [6.25, 0.0, 0.0], 2.5),
        ("inverseSqrt(a)", [4.0, 0.0, 0.0], 0.5),
        ("pow(a, b)", [2.0, 10.0, 0.0], 1024.0),
        ("exp2(a)", [3.0, 0.0, 0.0], 8.0),
        ("log2(a)", [8.0, 0.0, 0.0], 3.0),
        ("exp(a)", [0.0, 0.0, 0.0], 1.0),
        ("log(a)", [1.0, 0.0, 0.0], 0.0),
        ("sin(a)", [0.0, 0.0, 0.0], 0.0),
        ("cos(a)", [0.0, 0.0, 0.0], 1.0),
        ("tan(a) + asin(a) + atan(a) + sinh(a) + tanh(a) + asinh(a) + atanh(a)", [0.0, 0.0, 0.0], 0.0),
        ("acos(a) + acosh(a) + cosh(b)", [1.0, 0.0, 0.0], 1.0),
        ("degrees(atan2(a, b))", [1.0, 1.0, 0.0], 45.0),
        ("degrees(radians(a))", [90.0, 0.0, 0.0], 90.0),
        ("fma(a, b, c)", [2.0, 3.0, 4.0], 10.0),
        ("mix(a, b, c)", [1.0, 3.0, 0.25], 1.5),
        ("step(a, b)", [2.0, 2.0, 0.0], 1.0),
        ("step(a, b)", [2.0, 1.0, 0.0], 0.0),
        ("smoothstep(a, b, c)", [0.0, 2.0, 1.0], 0.5),
        ("ldexp(a, i32(b))", [3.0, 4.0, 0.0], 48.0),
        ("modf(a).fract", [-2.75, 0.0, 0.0], -0.75),
        ("modf(a).whole", [-2.75, 0.0, 0.0], -2.0),
        ("frexp(a).fract", [12.0, 0.0, 0.0], 0.75),
        ("f32(frexp(a).exp)", [12.0, 0.0, 0.0], 4.0),
        ("f32(frexp(a).exp)", [1e-45, 0.0, 0.0], -148.0),
        ("length(vec2(a, b))", [3.0, 4.0, 0.0], 5.0),
        ("distance(vec2(a, b), vec2(c, c))", [4.0, 5.0, 1.0], 5.0),
        ("normalize(vec2(a, b)).y", [3.0, 4.0, 0.0], 0.8),
        ("cross(vec3(a, b, 0.0), vec3(b, a, 0.0)).z", [3.0, 2.0, 0.0], 5.0),
        ("dot(vec3(a, b, c), vec3(1.0, 2.0, 3.0))", [1.0, 2.0, 3.0], 14.0),
        ("reflect(vec2(a, b), vec2(0.0, 1.0)).y", [1.0, -2.0, 0.0], 2.0),
        ("refract(vec2(a, b), vec2(0.0, 1.0), 1.0).y", [0.0, -1.0, 0.0], -1.0),
        ("faceForward(vec2(a, b), vec2(0.0, 1.0), vec2(0.0, 1.0)).x", [1.0, 0.0, 0.0], -1.0),
    ];
    for (text, operands, expected) in cases {
        let operands = operands.map(|v| u64::from(v.to_bits()));
        let got = f32::from_bits(evaluate("", "f32", text, "f32", &[operands])[0] as u32);
        // The results need not be exact: WGSL permits rounding errors.
        assert!((got - expected).abs() <= expected.abs() * 1e-6, "{text}: {got}, not {expected}");
    }
}
