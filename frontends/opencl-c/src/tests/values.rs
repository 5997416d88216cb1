//! Scalars and vectors.

use super::value;

fn check(cases: &[(&str, i64)]) {
    for &(expression, expected) in cases {
        assert_eq!(value("", "", expression), expected, "{expression}");
        // Again with run-time values: replacing literals by `(x + zero)` would change types, so the
        // whole expression goes through a variable.
        assert_eq!(value("", &format!("long v = zero + ({expression});"), "v"), expected, "{expression} as a long");
    }
}

#[test]
fn constants_have_the_types_of_c() {
    check(&[
        ("sizeof(1)", 4),
        ("sizeof(2147483648)", 8),
        ("sizeof(0x80000000)", 4),
        ("sizeof(1l)", 8),
        ("sizeof(1u)", 4),
        ("sizeof('a')", 4),
        ("sizeof((char)1)", 1),
        ("sizeof((char)1 + (char)1)", 4),
        ("sizeof((short)1 << 1l)", 4),
        ("sizeof(1u + 1l)", 8),
        ("sizeof(uint3)", 16),
        ("sizeof(1 == 1l)", 4),
        ("0x80000000 > 0", 1),
        ("-1 < 0u", 0),
        ("-1 < 0l + 0u", 1),
        ("-1 < (ushort)0", 1),
        ("0xffffffff + 1", 0),
        ("0xffffffffl + 1", 1 << 32),
        ("'\\xff'", -1),
        ("true + true", 2),
    ]);
}

#[test]
fn narrow_types_are_promoted_and_wrap_when_stored() {
    let narrow = "char c = 100 + zero; uchar u = 200 + zero; short s = 30000 + zero; ushort w = 60000 + zero;";
    for (expression, expected) in [
        ("c + c", 200),
        ("(char)(c + c)", -56),
        ("u + u", 400),
        ("(uchar)(u + u)", 144),
        ("c += 100, c", -56),
        ("u += 100, u", 44),
        ("u++, u++, u", 202),
        ("(u = 255, ++u)", 0),
        ("(u = 0, --u)", 255),
        ("(u = 255, u++)", 255),
        ("s + s", 60000),
        ("(short)(s + s)", -5536),
        ("w * w", i64::from(60000i32.wrapping_mul(60000))),
        ("w * 1u * w", 3_600_000_000),
        ("~u", !200),
        ("-u", -200),
        ("(uchar)~u", 55),
        ("u << 4", 3200),
        ("u <<= 4, u", 128),
        ("c >>= 1, c", 50),
        ("(c = -100, c >> 1)", -50),
        ("(c = -100, (uchar)c)", 156),
        ("(c = -1, c == 255)", 0),
        ("(u = -1, u == 255)", 1),
        ("(c = -1, (uint)c)", 0xffff_ffff),
        ("(s = -1, (ushort)s)", 65535),
        ("(ulong)(c = -1)", -1),
        ("(ulong)(uint)(c = -1)", 0xffff_ffff),
        ("u ? c : -1u", 100),
        ("zero ? 1 : -1u", 0xffff_ffff),
    ] {
        assert_eq!(value("", narrow, expression), expected, "{expression}");
    }
}

#[test]
fn undefined_operations_have_defined_results() {
    let numbers =
        "int least = -2147483647 - 1 + zero, minus = -one; uint many = 40 + zero; long big = 1l << (63 + zero);";
    for (expression, expected) in [
        ("7 / zero", 7),
        ("7 % zero", 0),
        ("7 / 0", 7),
        ("7 % 0", 0),
        ("one / 0", 1),
        ("one % 0", 0),
        ("7u / zero", 7),
        ("7l / zero", 7),
        ("least / minus", i64::from(i32::MIN)),
        ("least % minus", 0),
        ("-least", i64::from(i32::MIN)),
        ("least - 1", i64::from(i32::MAX)),
        ("1 << many", 256),
        ("one << 40", 256),
        ("1l << many", 1 << 40),
        ("-8 >> one", -4),
        ("big / minus", i64::MIN),
        ("one << -1", i64::from(i32::MIN)),
    ] {
        assert_eq!(value("", numbers, expression), expected, "{expression}");
    }
}

#[test]
fn booleans_are_one_bit() {
    for (expression, expected) in [
        ("(bool)(256 + zero)", 1),
        ("(bool)zero", 0),
        ("!zero + !zero", 2),
        ("!!5", 1),
        ("(one > zero) + (zero == 0) * 4", 5),
        ("-(one > zero)", -1),
        ("one && 2", 1),
        ("zero || 2", 1),
        ("one && zero", 0),
        ("(b = 2, b + b)", 2),
        ("(b = 0.5f, b)", 1),
        ("(b++, b)", 1),
        ("(b = one > zero) == one", 1),
        ("(bool)1l", 1),
    ] {
        assert_eq!(value("", "bool b = zero;", expression), expected, "{expression}");
    }
}

#[test]
fn logical_operators_short_circuit() {
    let side = "int hit(int *count, int result) { *count += 1; return result; }";
    for (expression, calls) in [
        ("zero && hit(&n, 1)", 0),
        ("one && hit(&n, 1)", 1),
        ("one || hit(&n, 1)", 0),
        ("zero || hit(&n, 1)", 1),
        ("one ? 1 : hit(&n, 1)", 0),
        ("zero ? 1 : hit(&n, 1)", 1),
        ("hit(&n, 0) && hit(&n, 1) || hit(&n, 1)", 2),
        ("(hit(&n, 0), hit(&n, 1))", 2),
        ("sizeof(hit(&n, 1))", 0),
        ("one ? hit(&n, 1), hit(&n, 2) : hit(&n, 3)", 2),
    ] {
        assert_eq!(value(side, &format!("int n = 0; int r = {expression};"), "n"), calls, "{expression}");
    }
    assert_eq!(value(side, "int n = 1; n += n++ * 0 + 1;", "n"), 2, "the left operand is read first");
}

#[test]
fn vector_operations() {
    let vector_operations =
        "uint4 v = (uint4)(1, 2, 3, 4) + zero; uchar4 b = (uchar4)(250, 1, 2, 3); int2 i = (int2)(-1, 7) * one;";
    for (expression, expected) in [
        ("v.x + v.y * 10 + v.s2 * 100 + v.S3 * 1000", 4321),
        ("(v.wzyx).x", 4),
        ("v.lo.y + v.hi.x + v.odd.y + v.even.x", 2 + 3 + 4 + 1),
        ("(v.xy = (uint2)(7, 8), v.x * 10 + v.y)", 78),
        ("(v.zx = v.xz, v.x * 10 + v.z)", 31),
        ("(v.xy.x = 7, v.x * 10 + v.y)", 72),
        ("(v.hi.lo = 9, v.z * 10 + v.w)", 94),
        ("v.hi.lo++ * 100 + v.z * 10 + v.w", 344),
        ("++v.hi.hi * 100 + v.w * 10 + v.z", 553),
        ("(v.lo.xy = v.hi, v.x * 10 + v.y)", 34),
        ("(v.wzy.zx = v.xy, v.y * 100 + v.w * 10 + v.z)", 123),
        ("((v.xy).x = 3, v.x)", 3),
        ("(v.zw.yx.x += 5, v.w * 10 + v.z)", 93),
        ("v.wzyx.hi.lo", 2),
        ("(v += 1u, v.w)", 5),
        ("(v++, v.x)", 2),
        ("(b += (uchar)10, b.x)", 4),
        ("(b + b).x", 244),
        ("(b << (uchar4)(9)).y", 2),
        ("(v << (uint4)(v.xy, 33u, v.x)).z", 6),
        ("(v.xyz >> 33u).y", 1),
        ("(~b).y", 254),
        ("(i < 0).x", -1),
        ("(i < 0).y", 0),
        ("(i == i && i).x", -1),
        ("(!i).y", 0),
        ("any(i < 0)", 1),
        ("all(i < 0)", 0),
        ("any(i > 100)", 0),
        ("((i < 0) ? (int2)(5, 6) : 9).x", 5),
        ("((i < 0) ? (int2)(5, 6) : 9).y", 9),
        ("select(i, (int2)(1, 2), i < 0).x", 1),
        ("((uint4)(v.yz, 9, v.x)).z", 9),
        ("((uint3)(5)).z", 5),
        ("convert_uchar4(v + 255u).x", 0),
        ("convert_uchar4_sat(v + 255u).x", 255),
        ("convert_int2(i.yx).x", 7),
        ("as_uint2(i).x", 0xffff_ffff),
        ("convert_long2(i).x", -1),
        ("(v / (uint4)(0, 2, 0, 2)).z", 3),
        ("(v % (uint4)(0)).z", 0),
        ("(convert_ulong4(v) << 33u).x", 1 << 33),
        ("sizeof(v.xyz)", 16),
    ] {
        assert_eq!(value("", vector_operations, expression), expected, "{expression}");
    }
}

#[test]
fn built_in_functions() {
    let numbers = "uint u = 0x80000001 + zero; int i = -5 * one; uchar c = 0x81 + zero; char s = -128 + zero; \
                   short h = -2 * one; long l = -3 * one; ulong m = 0xfedcba9876543210ul + zero; ushort w = 0x1234 + zero;";
    for (expression, expected) in [
        ("min(i, 3)", -5),
        ("min(u, 3u)", 3),
        ("min(u, 3)", 3),
        ("max(s, (char)1)", 1),
        ("clamp(i, -3, 3)", -3),
        ("clamp(c, (uchar)1, (uchar)9)", 9),
        ("rotate(u, 1u)", 3),
        ("rotate(u, 33u)", 3),
        ("rotate(c, (uchar)1)", 3),
        ("rotate(s, (char)1)", 1),
        ("rotate(m, 8ul)", 0xdcba_9876_5432_10fe_u64 as i64),
        ("mul_hi(u, u)", i64::from(((0x8000_0001_u64 * 0x8000_0001) >> 32) as u32)),
        ("mul_hi(i, 7)", -1),
        ("mul_hi(c, c)", 0x41),
        ("mul_hi(s, s)", 64),
        ("mul_hi(m, m)", ((0xfedc_ba98_7654_3210_u128 * 0xfedc_ba98_7654_3210_u128) >> 64) as i64),
        ("mul_hi(l, l)", 0),
        ("mul_hi(l, 7l)", -1),
        ("mul_hi((long)m, l)", ((i128::from(0xfedc_ba98_7654_3210_u64 as i64) * -3) >> 64) as i64),
        ("mad_hi(u, 2u, 5u)", 6),
        ("mad_sat(i, 2, 3)", -7),
        ("mad_sat(s, (char)1, (char)127)", -1),
        ("mad_sat(s, s, (char)0)", 127),
        ("mad_sat(s, (char)127, (char)0)", -128),
        ("mad_sat(c, c, c)", 255),
        ("mad_sat(c, (uchar)1, (uchar)126)", 255),
        ("mad_sat(w, w, w)", 0xffff),
        ("mad_sat(u, 1u, 0x7ffffffeu)", 0xffff_ffff),
        ("mad_sat(u, 2u, 0u)", 0xffff_ffff),
        ("mad_sat(-2147483647 - one, 2, 0)", i64::from(i32::MIN)),
        ("mad_sat(m, 1ul, 0x123456789abcdeful)", -1),
        ("mad_sat(m, 1ul, 0x123456789abcdf0ul)", -1),
        ("mad_sat(m, 1ul, 1ul)", 0xfedc_ba98_7654_3211_u64 as i64),
        ("mad_sat(l, l, -10l)", -1),
        ("mad_sat(l, 1l << 62, 0l)", i64::MIN),
        ("mad_sat(l, -(1l << 62), 0l)", i64::MAX),
        // -3 * 3074457345618258602 is 2 above the minimum.
        ("mad_sat(l, 3074457345618258602l, -2l)", i64::MIN),
        ("mad_sat(l, 3074457345618258602l, -3l)", i64::MIN),
        ("mad_sat(l, 3074457345618258602l, -1l)", i64::MIN + 1),
        ("upsample(c, c)", 0x8181),
        ("upsample(s, c)", -0x7f7f),
        ("upsample(h, w)", -0x1edcc),
        ("upsample(i, u)", -0x4_7fff_ffff),
        ("upsample(u, u)", 0x8000_0001_8000_0001_u64 as i64),
        ("mad(i, 2, 3)", -7),
        ("mad24(i, 2, 3)", -7),
        ("mul24(i, 2)", -10),
        ("popcount(u)", 2),
        ("popcount(s)", 1),
        ("popcount(m)", 32),
        ("clz(c)", 0),
        ("clz((uchar)1)", 7),
        ("clz(w)", 3),
        ("clz((ulong)zero)", 64),
        ("clz(zero)", 32),
        ("ctz((uchar)zero)", 8),
        ("ctz(w)", 2),
        ("abs(i)", 5),
        ("abs(s)", 128),
        ("abs(-2147483647 - one)", 0x8000_0000),
        ("abs_diff(i, 3)", 8),
        ("abs_diff(s, (char)127)", 255),
        ("abs_diff(-2147483647 - one, 2147483647)", 0xffff_ffff),
        ("add_sat(s, s)", -128),
        ("add_sat(c, c)", 255),
        ("add_sat(u, u)", 0xffff_ffff),
        ("add_sat(2147483647 - zero, one)", 0x7fff_ffff),
        ("sub_sat(c, (uchar)200)", 0),
        ("sub_sat(-2147483647 - one, one)", i64::from(i32::MIN)),
        ("sub_sat(zero + 0l, 1l << 63)", i64::MAX),
        ("hadd(u, u)", 0x8000_0001),
        ("hadd(i, -2)", -4),
        ("rhadd(i, -2)", -3),
        ("bitselect(u, 0xffu, 0xf0u)", 0x8000_00f1),
        ("select(1, 2, zero)", 1),
        ("select(1, 2, one)", 2),
        ("ntohs(w)", 0x3412),
        ("htonl(u)", 0x0100_0080),
        ("ntohs(0x1234)", 0x3412),
        ("convert_uchar_sat(i)", 0),
        ("convert_char_sat(u)", 127),
        ("convert_int_sat(m)", 0x7fff_ffff),
        ("convert_uint_sat(-1.5f)", 0),
        ("convert_char(300 + zero)", 44),
        ("as_int(1.0f)", 0x3f80_0000),
        ("as_uchar(s)", 128),
        ("as_ulong(l)", -3),
        ("(int)(2.9f * one)", 2),
        ("(int)(-2.9f * one)", -2),
    ] {
        assert_eq!(value("", numbers, expression), expected, "{expression}");
    }
}

/// OpenCL C 6.2.4.2 on little-endian devices: the first component has the lowest bits.
#[test]
fn reinterpretation_between_component_counts() {
    let numbers = "uint u = 0x04030281u + zero; ulong l = 0x8877665544332211ul + zero; float f = one;
        uchar4 b = (uchar4)(one, 2, 3, 0x84); char2 c = (char2)(-one, 3); uint4 q = (uint4)(one, 2, 3, 4);";
    for (expression, expected) in [
        ("as_uchar4(u).x", 0x81),
        ("as_uchar4(u).w", 4),
        ("as_char4(u).x", -127),
        ("as_uint(b)", 0x8403_0201),
        ("as_int(b)", -0x7bfc_fdff),
        ("as_ushort2(u).y", 0x0403),
        ("as_short2(b).y", -0x7bfd),
        ("as_uchar4(as_ushort2(u)).z", 3),
        ("as_short(c)", 0x03ff),
        ("as_uint2(l).y", 0x8877_6655),
        ("as_ushort4(l).z", 0x6655),
        ("as_long(as_uint2(l))", 0x8877_6655_4433_2211_u64 as i64),
        ("as_ulong(as_short4(l))", 0x8877_6655_4433_2211_u64 as i64),
        ("as_uchar4(f).w", 0x3f),
        ("as_float((uchar4)(zero, 0, 0x80, 0x3f)) == 1.0f", 1),
        ("as_float2(0x400000003f800000ul + zero).y == 2.0f", 1),
        ("as_ulong2(q).y", 0x4_0000_0003),
        // A vector of three occupies the space of four.
        ("as_uint3(q).z", 3),
        ("as_uint4(q.xyz).z", 3),
        ("as_uint4(q.xyz).w", 0),
        ("as_ulong2(q.xyz).y", 3),
        ("as_uint3((ulong2)(one, 0x200000003ul)).z", 3),
    ] {
        assert_eq!(value("", numbers, expression), expected, "{expression}");
    }
}
