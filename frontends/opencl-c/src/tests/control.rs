//! Statements and functions.

use super::value;

fn helper(body: &str, argument: i64) -> i64 {
    let outside = format!("int f(int x) {{ {body} }}");
    value(&outside, "", &format!("f({argument} + zero)"))
}

#[test]
fn loops_run_as_in_c() {
    for (body, expected) in [
        ("int s = 0; for (int i = 0; i < x; i++) s += i; return s;", 45),
        ("int s = 0; for (int i = 0; i < x; i++) { if (i == 3) continue; if (i == 6) break; s += i; } return s;", 12),
        ("int s = 0, i = 0; while (i < x) s += i++; return s;", 45),
        ("int s = 0, i = 0; do s += i; while (++i < x); return s;", 45),
        ("int s = 0, i = 0; do { if (i & 1) continue; s += i; } while (++i < x); return s;", 20),
        ("int s = 0; do { s++; } while (0); return s;", 1),
        ("int s = 0; do { s++; if (s) break; s = 9; } while (0); return s;", 1),
        ("int i = 0; for (;;) { if (++i == x) return i; }", 10),
        ("int i = 0; while (1) { if (++i == x) break; } return i;", 10),
        ("int s = 0; for (int i = 0, j = x; i < j; i++, j--) s += j - i; return s;", 30),
        ("int s = 0; for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) { if (j > i) break; s++; } return s;", 6),
        ("int s = 0; for (int i = 0; i < 3; i++) { int n; n++; s += n; } return s;", 3),
        (
            "int s = 0; for (int i = 0; i < 2; i++) { int a[2] = {1}; a[1] += 2; a[0]++; s += a[0] * 10 + a[1]; } return s;",
            44,
        ),
        ("__attribute__((opencl_unroll_hint(4))) for (int i = 0; i < 5; i++) x++; return x;", 15),
        ("__attribute__((__opencl_unroll_hint__)) while (x < 12) { x++; } return x;", 12),
        ("if (x) __attribute__((opencl_unroll_hint(2))) do x++; while (x < 20); return x;", 20),
        ("__attribute__((unused)) int y = 3; return x + y;", 13),
        ("for (int i = 0; i < 5; i++) { int i = 100; x += i - 100; } return x;", 10),
    ] {
        assert_eq!(helper(body, 10), expected, "{body}");
    }
}

#[test]
fn switches_fall_through() {
    let body = "int s = 0;
        switch (x) {
        case 1: s += 1; __attribute__((fallthrough));
        case 2: s += 10; break;
        case 3: { s += 100; if (s) break; }
        default: s += 1000;
        case 4: s += 10000;
        case 5:
        case 6: s += 100000; break;
        case 7: return 7;
        case -8: s = -8;
        }
        return s;";
    let model = |x: i64| match x {
        1 => 11,
        2 => 10,
        3 => 100,
        4 => 110_000,
        5 | 6 => 100_000,
        7 => 7,
        -8 => -8,
        _ => 111_000,
    };
    for x in -10..12 {
        assert_eq!(helper(body, x), model(x), "{x}");
    }
}

#[test]
fn switches_in_loops_and_over_wide_integers() {
    for (body, argument, expected) in [
        (
            "int s = 0; for (int i = 0; i < x; i++) { switch (i % 3) { case 0: continue; case 1: s++; break; default: s += 10; } s += 100; } return s;",
            6,
            422,
        ),
        ("switch ((long)x << 32) { case 1l << 32: return 1; case 2l << 32: return 2; default: return 3; }", 2, 2),
        ("switch ((long)x << 32) { case 1l << 32: return 1; case 2l << 32: return 2; default: return 3; }", 0, 3),
        ("switch ((long)x) { case 1: x = 5; case 2: x++; break; } return x;", 1, 6),
        ("switch (x) { } return 4;", 5, 4),
        ("switch (x) { default: ; } return 4;", 5, 4),
        ("int r = 0; switch (x) { case 5: int y = 3; r = y; break; case 6: y = 4; r = y; } return r;", 6, 4),
    ] {
        assert_eq!(helper(body, argument), expected, "{body}");
    }
}

#[test]
fn functions_without_return_return_zero() {
    assert_eq!(helper("if (x == 3) return 7;", 3), 7);
    assert_eq!(helper("if (x == 3) return 7;", 4), 0);
    assert_eq!(helper("if (x == 3) return 7; else return 8; return 9;", 4), 8);
}

#[test]
fn functions_may_be_defined_after_their_use() {
    let outside =
        "int later(int a, int b); int f(int x) { return later(x, 2); } int later(int x, int y) { return x * 10 + y; }";
    assert_eq!(value(outside, "", "f(4)"), 42);
    assert_eq!(value("void set(int *a, int v) { *a = v; if (v) return; *a = 5; }", "int a; set(&a, 0);", "a"), 5);
    assert_eq!(
        value(
            "static inline uint4 f(uint4 v) { v.x++; return v.yxwz; }",
            "uint4 v = (uint4)(1, 2, 3, 4);",
            "f(v).y + v.x"
        ),
        3
    );
}
