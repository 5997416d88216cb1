//! Texts made to exhaust the compiler's stack, memory or time.

use super::{compile_text, filter};

fn rejected(text: &str) -> String {
    match compile_text(text, &[]) {
        Ok(_) => panic!("accepted: {} bytes", text.len()),
        Err(errors) => {
            let shown = errors.render();
            assert!(!shown.contains("the compiler itself failed"), "{shown}");
            shown
        }
    }
}

#[test]
fn deep_nesting_is_rejected() {
    let n = 100_000;
    for inside in [
        format!("uint a = {}1{};", "(".repeat(n), ")".repeat(n)),
        format!("uint a = {}1;", "1 + ".repeat(n)),
        format!("uint a = {}1;", "-~".repeat(n)),
        format!("uint a; {} a = 1;", "a = ".repeat(n)),
        format!("uint a = {}1;", "1 ? 2 : ".repeat(n)),
        "{".repeat(n),
        "if (1) ".repeat(n),
        "if (1) ; else ".repeat(n),
        "for (;;) ".repeat(n),
        format!("uint a{};", "[1]".repeat(n)),
        format!("uint a[1] = {};", "{".repeat(n)),
        format!("uint a = {}1;", "(uint)".repeat(n)),
        format!("uint a = {};", "sizeof ".repeat(n)),
        "struct {".repeat(n),
        "__attribute__((opencl_unroll_hint(4))) for (;;) ".repeat(n),
        "__attribute__((opencl_unroll_hint(4))) ".repeat(n),
        format!("uint a = {};", "min(".repeat(n)),
        format!("uint a = b{};", "[0]".repeat(n)),
        format!("uint a = b{};", ".x".repeat(n)),
        format!("uint a = {};", "1, ".repeat(n)),
        format!("uint *{} a;", "*".repeat(n)),
        format!("switch (1) {{ {} }}", "case 1: ".repeat(n)),
        format!("uint a = {}", "\"x\" ".repeat(n)),
    ] {
        rejected(&filter("", &inside));
    }
}

#[test]
fn nesting_within_the_limit_compiles() {
    let n = 100;
    for inside in [
        format!("uint a = {}1{};", "(".repeat(n), ")".repeat(n)),
        format!("uint a = len{};", " + 1".repeat(2 * n)),
        format!("{} len = 1;", "if (len) ".repeat(n)),
        format!("uint a = {}1;", "len ? 2 : ".repeat(n / 2)),
    ] {
        compile_text(&filter("", &inside), &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    }
}

#[test]
fn exponential_growth_is_bounded() {
    // Each function calls the previous one twice.
    let mut doubling = String::from("uint f0(uint a) { return a * 3; }\n");
    for i in 1..40 {
        doubling += &format!("uint f{i}(uint a) {{ return f{}(a) + f{}(a + 1); }}\n", i - 1, i - 1);
    }
    assert!(rejected(&filter(&doubling, "pkt[0] = f39(len);")).contains("at most"));
    // Each function is specialised for each of its pointers.
    let mut shapes = String::from("struct s { uint a[2]; uint b[2]; };\nvoid g0(uint *p) { *p = 1; }\n");
    for i in 1..20 {
        shapes += &format!(
            "void g{i}(uint *p) {{ uint x[{}], y; struct s z; g{}(p); g{}(x); g{}(&y); g{}(z.a); g{}(&z.b[1]); }}\n",
            i + 1,
            i - 1,
            i - 1,
            i - 1,
            i - 1,
            i - 1
        );
    }
    rejected(&filter(&shapes, "uint v; g19(&v);"));
    // Nested types, referred to many times.
    let mut types = String::from("struct t0 { uchar a; };\n");
    for i in 1..14 {
        types += &format!("struct t{i} {{ struct t{} a, b, c; }};\n", i - 1);
    }
    let asks = "x = ((__global struct t13 *)pkt)->a.b.c.a.b.c.a.b.c.a.b.c.a.a;\n".repeat(2000);
    rejected(&filter(&types, &format!("uint x; {asks}")));
    // Large values.
    let mut large = String::from("struct s0 { uchar a[1000]; };\n");
    for i in 1..12 {
        large += &format!("struct s{i} {{ struct s{} a, b, c; }};\n", i - 1);
    }
    rejected(&filter(&large, "struct s11 a, b = a; *(__global struct s11 *)pkt = a;"));
    rejected(&filter("", "uchar a[20000]; a[len] = 1; pkt[0] = a[1];"));
    rejected(&filter("__constant uint a[100000] = {1};", "pkt[0] = a[len];"));
    rejected(&filter(
        "",
        "struct s { uchar a[2000]; }; struct s x = *(__global struct s *)pkt; *(__global struct s *)(pkt + 1) = x;",
    ));
    let copies = "x = *(__global struct s *)pkt; *(__global struct s *)pkt = x;".repeat(3000);
    rejected(&filter("struct s { uchar a[1000]; };", &format!("struct s x; {copies}")));
}

#[test]
fn large_texts_compile_quickly() {
    let body: String = (0..20_000).map(|i| format!("x = x * 31 + {i};\n")).collect();
    let text = filter("", &format!("uint x = len; {body} pkt[0] = x;"));
    compile_text(&text, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    for (count, end) in [(20_000, ""), (600, ""), (400, ""), (2_000, "break;")] {
        let labels: String = (0..count).map(|i| format!("case {i}: x++; {end}\n")).collect();
        let text = filter("", &format!("uint x = len; switch (len) {{ {labels} }} pkt[0] = x;"));
        if count == 400 || end == "break;" {
            compile_text(&text, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
        } else {
            let report = rejected(&text);
            assert!(report.contains("too large") && report.contains("cases that fall through"), "{report}");
        }
    }
    let names: String = (0..4_000).map(|i| format!("uint v{i};\n")).collect();
    compile_text(&filter("", &names), &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    let wrong: String = (0..50_000).map(|i| format!("w{i} = 1;\n")).collect();
    rejected(&filter("", &wrong));
}

/// Every kind of nesting compiles up to some depth, and one level more is rejected by a limit
/// documented in docs/guide/opencl-c.md or docs/reference/semantics.md.
#[test]
fn nesting_limits_are_exact() {
    type Nested = fn(usize) -> String;
    let kinds: [(&str, Nested); 12] = [
        ("parentheses", |n| format!("len = {}1{};", "(".repeat(n), ")".repeat(n))),
        ("sums", |n| format!("len = len{};", " + 1".repeat(n))),
        ("signs", |n| format!("len = {}len;", "~".repeat(n))),
        ("assignments", |n| format!("{} 1;", "len = ".repeat(n))),
        ("choices", |n| format!("len = {}1;", "len ? 2 : ".repeat(n))),
        ("casts", |n| format!("len = {}len;", "(uint)".repeat(n))),
        ("calls", |n| format!("len = {}1{};", "min(1u, (uint)".repeat(n), ")".repeat(n))),
        ("blocks", |n| format!("{}{}", "{".repeat(n), "}".repeat(n))),
        ("branches", |n| format!("{} len = 1;", "if (len) ".repeat(n))),
        ("alternatives", |n| format!("{} len = 1;", "if (len) ; else ".repeat(n))),
        ("loops", |n| format!("{} len--;", "while (len) ".repeat(n))),
        ("commas", |n| format!("len = ({}1);", "len, ".repeat(n))),
    ];
    for (kind, nested) in kinds {
        let fits = |n: usize| compile_text(&filter("", &nested(n)), &[]).is_ok();
        let (mut least, mut most) = (1, 1000);
        while most - least > 1 {
            let middle = usize::midpoint(least, most);
            if fits(middle) { least = middle } else { most = middle }
        }
        assert!((40..=256).contains(&least), "{kind}: {least} levels");
        let report = rejected(&filter("", &nested(most)));
        assert!(report.contains("deep"), "{kind}, {most} levels: {report}");
    }
}

/// Line ends of other systems, and a missing one at the end.
#[test]
fn line_ends_of_other_systems_are_accepted() {
    let text = filter("#define A \\\n 7\n// comment", "\nif (len == A)\n    return XDP_DROP;\n");
    for text in [text.replace('\n', "\r\n"), text.trim_end().to_owned(), format!("{text}// no end of line")] {
        compile_text(&text, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    }
    let marked = rejected(&format!("\u{feff}{text}"));
    assert!(marked.contains("without a byte order mark"), "{marked}");
    for (bytes, report) in
        [(&b"uint \0"[..], "zero byte at offset 5"), (b"uint \xe9;", "not UTF-8: byte 0xe9 at offset 5")]
    {
        let errors = portcullis_core::diagnostics::Source::from_bytes("f.cl", bytes.to_vec()).unwrap_err();
        assert!(errors.to_string().contains(report), "{errors}");
    }
    let long = filter("", &format!("len = {}1;", " ".repeat(900_000)));
    compile_text(&long, &[]).unwrap_or_else(|errors| panic!("{}", errors.render()));
    let digits = rejected(&filter("", &format!("len = {};", "9".repeat(100_000))));
    assert!(digits.contains("is not a valid constant") && digits.len() < 2000, "{digits}");
}
