//! Operators and conversions on every pair of boundary operands, compared with Rust.

use super::operands::pairs;
use super::{evaluate, run};

/// Checks `expression` over operands of one type against `expected`.
fn check(ty: &str, result: &str, expression: &str, expected: impl Fn(u64, u64) -> u64) {
    let cases = pairs();
    let results = evaluate("", result, expression, ty, &cases);
    for ([a, b, _], got) in cases.into_iter().zip(results) {
        assert_eq!(got, expected(a, b), "{expression} over {ty}: a = {a:#x}, b = {b:#x}");
    }
}

#[test]
fn u32_arithmetic_wraps_and_is_total() {
    let c = |expression: &str, f: fn(u32, u32) -> u32| {
        check("u32", "u32", expression, |a, b| f(a as u32, b as u32).into());
    };
    c("a + b", |a, b| (u64::from(a) + u64::from(b)) as u32);
    c("a - b", |a, b| (i64::from(a) - i64::from(b)) as u32);
    c("a * b", |a, b| (u64::from(a) * u64::from(b)) as u32);
    c("a / b", |a, b| a.checked_div(b).unwrap_or(a));
    c("a % b", |a, b| a.checked_rem(b).unwrap_or(0));
    c("a & b", |a, b| a & b);
    c("a | b", |a, b| a | b);
    c("a ^ b", |a, b| a ^ b);
    c("~a", |a, _| u32::MAX - a);
    c("a << b", |a, b| (u64::from(a) << (b % 32)) as u32);
    c("a >> b", |a, b| a >> (b % 32));
    c("select(a, b, a < b)", u32::max);
}

#[test]
fn i32_arithmetic_wraps_and_is_total() {
    let c = |expression: &str, f: fn(i32, i32) -> i32| {
        check("i32", "i32", expression, |a, b| (f(a as i32, b as i32) as u32).into());
    };
    c("a + b", |a, b| (i64::from(a) + i64::from(b)) as i32);
    c("a - b", |a, b| (i64::from(a) - i64::from(b)) as i32);
    c("a * b", |a, b| (i64::from(a) * i64::from(b)) as i32);
    c("a / b", |a, b| if b == 0 { a } else { (i64::from(a) / i64::from(b)) as i32 });
    c("a % b", |a, b| if b == 0 { 0 } else { (i64::from(a) % i64::from(b)) as i32 });
    c("-a", |a, _| (-i64::from(a)) as i32);
    c("~a", |a, _| (-1 - i64::from(a)) as i32);
    c("a & b", |a, b| a & b);
    c("a | b", |a, b| a | b);
    c("a ^ b", |a, b| a ^ b);
    c("a << u32(b)", |a, b| (i64::from(a) << (b as u32 % 32)) as i32);
    c("a >> u32(b)", |a, b| (i64::from(a) >> (b as u32 % 32)) as i32);
}

#[test]
fn u64_arithmetic_wraps_and_is_total() {
    let c = |expression: &str, f: fn(u64, u64) -> u64| check("u64", "u64", expression, f);
    c("a + b", |a, b| (u128::from(a) + u128::from(b)) as u64);
    c("a - b", |a, b| (i128::from(a) - i128::from(b)) as u64);
    c("a * b", |a, b| (u128::from(a) * u128::from(b)) as u64);
    c("a / b", |a, b| a.checked_div(b).unwrap_or(a));
    c("a % b", |a, b| a.checked_rem(b).unwrap_or(0));
    c("a & b", |a, b| a & b);
    c("a | b", |a, b| a | b);
    c("a ^ b", |a, b| a ^ b);
    c("~a", |a, _| u64::MAX - a);
    c("a << u32(b)", |a, b| (u128::from(a) << (b as u32 % 64)) as u64);
    c("a >> u32(b)", |a, b| a >> (b as u32 % 64));
}

#[test]
fn i64_arithmetic_wraps_and_is_total() {
    let c = |expression: &str, f: fn(i64, i64) -> i64| {
        check("i64", "i64", expression, |a, b| f(a as i64, b as i64) as u64);
    };
    c("a + b", |a, b| (i128::from(a) + i128::from(b)) as i64);
    c("a - b", |a, b| (i128::from(a) - i128::from(b)) as i64);
    c("a * b", |a, b| (i128::from(a) * i128::from(b)) as i64);
    c("a / b", |a, b| if b == 0 { a } else { (i128::from(a) / i128::from(b)) as i64 });
    c("a % b", |a, b| if b == 0 { 0 } else { (i128::from(a) % i128::from(b)) as i64 });
    c("-a", |a, _| (-i128::from(a)) as i64);
    c("a >> u32(b)", |a, b| (i128::from(a) >> (b as u32 % 64)) as i64);
    c("a << u32(b)", |a, b| (i128::from(a) << (b as u32 % 64)) as i64);
}

#[test]
fn comparisons_respect_signedness() {
    for (operator, holds) in [
        ("==", [false, true, false]),
        ("!=", [true, false, true]),
        ("<", [true, false, false]),
        ("<=", [true, true, false]),
        (">", [false, false, true]),
        (">=", [false, true, true]),
    ] {
        let text = format!("a {operator} b");
        let by = move |order: std::cmp::Ordering| u64::from(holds[(order as i8 + 1) as usize]);
        check("u32", "bool", &text, |a, b| by((a as u32).cmp(&(b as u32))));
        check("i32", "bool", &text, |a, b| by((a as i32).cmp(&(b as i32))));
        check("u64", "bool", &text, |a, b| by(a.cmp(&b)));
        check("i64", "bool", &text, |a, b| by((a as i64).cmp(&(b as i64))));
    }
}

#[test]
fn bool_operators() {
    // A bool operand is whether the 32-bit word is not zero.
    let truth = |v: u64| v as u32 != 0;
    for (text, expected) in [
        ("a && b", (|a, b| a && b) as fn(bool, bool) -> bool),
        ("a || b", |a, b| a || b),
        ("a & b", |a, b| a && b),
        ("a | b", |a, b| a || b),
        ("!a", |a, _| !a),
        ("a == b", |a, b| a == b),
        ("a != b", |a, b| a != b),
        ("select(a, b, a)", |a, b| if a { b } else { a }),
    ] {
        check("bool", "bool", text, |a, b| expected(truth(a), truth(b)).into());
    }
}

#[test]
fn conversions_extend_by_the_sign_of_the_source() {
    check("i32", "u64", "u64(a)", |a, _| i64::from(a as i32) as u64);
    check("i32", "i64", "i64(a)", |a, _| i64::from(a as i32) as u64);
    check("u32", "i64", "i64(a)", |a, _| u64::from(a as u32));
    check("u32", "u64", "u64(a)", |a, _| u64::from(a as u32));
    check("i64", "u32", "u32(a)", |a, _| a & 0xffff_ffff);
    check("u64", "i32", "i32(a)", |a, _| a & 0xffff_ffff);
    check("i64", "u64", "u64(a)", |a, _| a);
    check("u64", "i64", "bitcast<i64>(a)", |a, _| a);
    check("u32", "i32", "bitcast<i32>(a)", |a, _| a & 0xffff_ffff);
    check("u32", "bool", "bool(a)", |a, _| u64::from(a as u32 != 0));
    check("i64", "bool", "bool(a)", |a, _| u64::from(a != 0));
    check("bool", "i32", "i32(a)", |a, _| u64::from(a as u32 != 0));
    check("bool", "u64", "u64(a)", |a, _| u64::from(a as u32 != 0));
    check("i32", "f32", "f32(a)", |a, _| ((a as i32) as f32).to_bits().into());
    check("bool", "f32", "f32(a)", |a, _| if a as u32 != 0 { 0x3f80_0000 } else { 0 });
}

#[test]
fn float_to_integer_conversion_truncates_and_clamps() {
    let cases = [
        (1.9f32, 1u32, 1i32),
        (-1.9, 0, -1),
        (0.0, 0, 0),
        (4e9, 4_000_000_000, 2_147_483_520),
        // 2^32 - 2^8 and 2^31 - 2^7 are the largest below the limits with a 24-bit mantissa.
        (1e20, 4_294_967_040, 2_147_483_520),
        (-1e20, 0, i32::MIN),
        (f32::NAN, 0, 0),
    ];
    let operands: Vec<_> = cases.iter().map(|c| [u64::from(c.0.to_bits()), 0, 0]).collect();
    let unsigned = evaluate("", "u32", "u32(a)", "f32", &operands);
    let signed = evaluate("", "i32", "i32(a)", "f32", &operands);
    for (i, (value, to_u32, to_i32)) in cases.into_iter().enumerate() {
        assert_eq!(unsigned[i] as u32, to_u32, "u32({value})");
        assert_eq!(signed[i] as i32, to_i32, "i32({value})");
    }
    let wide = evaluate("", "u64", "u64(a)", "f32", &[[u64::from(1e30f32.to_bits()), 0, 0]]);
    assert_eq!(wide, [0xffff_ff00_0000_0000]);
}

#[test]
fn float_operators_are_ieee_754() {
    let f = |v: f32| u64::from(v.to_bits());
    let values = [0.0f32, 1.5, -2.25, 1e30, 3.0];
    let cases: Vec<_> = values.iter().flat_map(|&a| values.map(|b| [f(a), f(b), 0])).collect();
    for (text, expected) in [
        ("a + b", (|a, b| a + b) as fn(f32, f32) -> f32),
        ("a - b", |a, b| a - b),
        ("a * b", |a, b| a * b),
        ("-a", |a, _| -a),
    ] {
        for ([a, b, _], got) in cases.iter().zip(evaluate("", "f32", text, "f32", &cases)) {
            let (a, b) = (f32::from_bits(*a as u32), f32::from_bits(*b as u32));
            assert_eq!(f32::from_bits(got as u32), expected(a, b), "{text}: {a}, {b}");
        }
    }
    let one =
        |text: &str, a: f32, b: f32| f32::from_bits(evaluate("", "f32", text, "f32", &[[f(a), f(b), 0]])[0] as u32);
    assert_eq!(one("a / b", 1.0, 4.0), 0.25);
    assert_eq!(one("a / b", 1.0, 0.0), f32::INFINITY);
    assert_eq!(one("a % b", -7.5, 2.0), -1.5);
    assert_eq!(one("select(2.0, 1.0, a < b)", 1.0, f32::NAN), 2.0);
}

#[test]
fn vector_operators_are_componentwise() {
    let outcome = run(
        "fn xdp_filter(pkt: u32) -> u32 {
            let a = vec4<u32>(load_u8(pkt, 0u), load_u8(pkt, 1u), load_u8(pkt, 2u), load_u8(pkt, 3u));
            let b = vec4(10u) + a * 2u;
            let less = a < vec4<u32>(2u, 2u, 3u, 3u);
            let c = select(a, b, less).wzyx;
            let d = c.xy;
            store_u8(pkt, 0u, c.x); store_u8(pkt, 1u, c.y); store_u8(pkt, 2u, c.z); store_u8(pkt, 3u, c.w);
            store_u8(pkt, 4u, u32(all(less)) + 2u * u32(any(less)));
            store_u8(pkt, 5u, dot(a, vec4(1u, 2u, 3u, 4u)));
            store_u8(pkt, 6u, d.y + d[load_u8(pkt, 0u) - load_u8(pkt, 0u)]);
            store_u8(pkt, 7u, (vec2<u32>(1u, 0x80u) << vec2<u32>(35u - a.y, a.x)).y);
            return XDP_PASS;
        }",
        &[1, 2, 3, 4, 0, 0, 0, 0],
    );
    // b = 12 14 16 18; less = true false false false; c = (4 3 2 12)
    // dot = 1 + 4 + 9 + 16; d = (4, 3); 0x80 << 1 is 0x100, whose low byte is 0
    assert_eq!(outcome.packet, [4, 3, 2, 12, 2, 30, 7, 0]);
}

#[test]
fn matrices_multiply() {
    // Columns (1, 2) and (3, 4).
    let outcome = run(
        "fn xdp_filter(pkt: u32) -> u32 {
            let x = f32(load_u8(pkt, 0u));
            let m = mat2x2<f32>(vec2(x, 2.0), vec2(3.0, 4.0));
            let v = m * vec2(5.0, 6.0);
            let w = vec2(5.0, 6.0) * m;
            let p = m * m;
            store_u8(pkt, 0u, u32(v.x)); store_u8(pkt, 1u, u32(v.y));
            store_u8(pkt, 2u, u32(w.x)); store_u8(pkt, 3u, u32(w.y));
            store_u8(pkt, 4u, u32(p[0].x)); store_u8(pkt, 5u, u32(p[0].y));
            store_u8(pkt, 6u, u32(p[1].x)); store_u8(pkt, 7u, u32(p[1].y));
            store_u8(pkt, 8u, u32(determinant(m) + 10.0));
            store_u8(pkt, 9u, u32(transpose(m)[0].y));
            store_u8(pkt, 10u, u32((m * 2.0 + m)[1].y));
            return XDP_PASS;
        }",
        &[1; 11],
    );
    // m·v = (1·5 + 3·6, 2·5 + 4·6); v·m = (5 + 12, 15 + 24); m·m = columns (7, 10), (15, 22)
    assert_eq!(outcome.packet, [23, 34, 17, 39, 7, 10, 15, 22, 8, 3, 12]);
}
