//! Programs that the verifier rejects: text, place of the error, and part of its message.

use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::program::{Program, ProgramOptions};

fn compile(text: &str) -> Result<Program, Diagnostics> {
    crate::compile(&Source::new("f", text), &ProgramOptions::default())
}

/// Asserts that `text` is rejected with an error at `position` (line:column; `-` for none) whose
/// message contains `words`.
fn assert_rejected(text: &str, position: &str, words: &str) {
    let Err(errors) = compile(text) else { panic!("accepted: {text}") };
    let lines = errors.to_string();
    let expected = if position == "-" { "f: ".to_owned() } else { format!("f:{position}: ") };
    assert!(
        lines.lines().any(|line| line.strip_prefix(&expected).is_some_and(|message| message.contains(words))),
        "{text}\nwanted {expected}...{words}\ngot {lines}"
    );
}

/// A filter with `body` before its return, starting at line 2, column 1, and `declarations` after
/// the filter.
fn with(body: &str, declarations: &str) -> String {
    format!("fn xdp_filter(pkt: u32) -> u32 {{\n{body}\nreturn XDP_PASS;\n}}\n{declarations}")
}

/// Asserts that a filter with these statements is rejected.
fn assert_body_rejected(body: &str, position: &str, words: &str) {
    assert_rejected(&with(body, ""), position, words);
}

fn assert_accepted(text: &str) {
    if let Err(errors) = compile(text) {
        panic!("{text}\n{}", errors.render());
    }
}

#[test]
fn filter_signature_is_checked() {
    assert_rejected("", "-", "no function `xdp_filter`");
    assert_rejected("fn f() {}", "-", "no function `xdp_filter`");
    assert_rejected("const xdp_filter = 1;", "1:7", "no function `xdp_filter`");
    for signature in
        ["() -> u32", "(a: i32) -> u32", "(a: u32, b: u32) -> u32", "(a: u32) -> i32", "(a: vec2<u32>) -> u32"]
    {
        let value = if signature.ends_with("i32") { "1i" } else { "1u" };
        assert_rejected(&format!("\n  fn xdp_filter{signature} {{ return {value}; }}"), "2:6", "wrong signature");
    }
    assert_rejected("fn xdp_filter(a: u32) { }", "1:4", "wrong signature");
    assert_rejected("@compute @workgroup_size(1) fn xdp_filter() { return; }", "1:32", "entry point");
}

#[test]
fn packet_handle_is_opaque() {
    for (body, position) in [
        ("let a = pkt + 1u;", "2:9"),
        ("if pkt == 0u { return 1u; }", "2:4"),
        ("var a = pkt;", "2:1"),
        ("var a: u32; a = pkt;", "2:13"),
        ("return pkt;", "2:1"),
        ("switch pkt { default {} }", "2:1"),
        ("let a = vec2(pkt, 1u);", "2:9"),
        ("let a = i32(pkt);", "2:9"),
        ("let a = max(pkt, 1u);", "2:9"),
        ("let a = select(1u, pkt, true);", "2:9"),
        ("let a = array(1u, 2u)[pkt];", "2:9"),
        ("let a = redirect(pkt);", "2:9"),
        ("let a = load_u8(pkt, pkt);", "2:9"),
        ("store_u8(pkt, 0u, pkt);", "2:1"),
        ("let a = ~pkt;", "2:9"),
        ("let a = -i32(pkt);", "2:10"),
    ] {
        assert_body_rejected(body, position, "only be passed to functions");
    }
    assert_accepted(&with("let p = pkt; let a = load_u8(p, 0u); _ = pkt;", ""));
}

#[test]
fn only_the_packet_can_be_passed_as_packet() {
    let helper = "fn help(n: u32, p: u32) -> u32 { return load_u8(p, n); }";
    assert_accepted(&with("let a = help(1u, pkt);", helper));
    assert_rejected(&with("let a = help(pkt, 1u);", helper), "2:19", "argument 2 of `help` has to be the packet");
    assert_rejected(&with("let a = help(pkt, 1u);", helper), "5:41", "passed to functions");
    assert_rejected(&with("let a = load_u8(0u, 0u);", ""), "2:17", "argument 1 of `load_u8` has to be the packet");
    assert_rejected(&with("let a = pkt_len(load_u8(pkt, 0u));", ""), "2:17", "has to be the packet");
    assert_rejected(
        &with("let a = help(1u, pkt);", "fn help(n: u32, p: u32) -> u32 { return p + n; }"),
        "5:41",
        "passed to functions",
    );
    // The packet is opaque through two levels of helpers.
    let two = "fn outer(p: u32) -> u32 { return inner(p); }\nfn inner(q: u32) -> u32 { return q ^ 1u; }";
    assert_rejected(&with("let a = outer(pkt);", two), "6:34", "passed to functions");
    // Helpers that are never called follow the same rules.
    assert_rejected(&with("", "fn unused(p: u32) -> u32 { return load_u8(p, p); }"), "5:35", "passed to functions");
    // The parameter is a number in one call and the packet in the other.
    let either = "fn either(p: u32) -> u32 { return p; }";
    assert_rejected(&with("let a = either(1u); let b = either(pkt);", either), "5:28", "passed to functions");
}

#[test]
fn cross_invocation_operations_are_rejected() {
    for (body, position, words) in [
        ("workgroupBarrier();", "2:1", "barriers"),
        ("storageBarrier();", "2:1", "barriers"),
        ("textureBarrier();", "2:1", "barriers"),
        ("let a = dpdx(1.0);", "2:9", "derivatives"),
        ("let a = fwidth(1.0);", "2:9", "derivatives"),
        ("let a = subgroupAdd(1u);", "2:9", "subgroup operations"),
        ("let a = subgroupBallot(true);", "2:9", "subgroup operations"),
        ("let a = quadSwapX(1u);", "2:9", "subgroup operations"),
        ("discard;", "2:1", "`discard`"),
    ] {
        assert_body_rejected(body, position, words);
    }
}

#[test]
fn resources_and_entry_points_are_rejected() {
    for (declaration, position, words) in [
        ("@group(0) @binding(3) var<storage, read_write> b: array<u32>;", "5:48", "resources"),
        ("@group(2) @binding(0) var<uniform> b: vec4<u32>;", "5:36", "resources"),
        ("var<storage> b: u32;", "5:14", "resources"),
        ("var<workgroup> b: u32;", "5:16", "workgroup memory"),
        ("var<workgroup> b: atomic<u32>;", "5:16", "workgroup memory"),
        ("var<immediate> b: u32;", "5:16", "immediate"),
        ("@group(1) @binding(0) var t: texture_2d<f32>;", "5:27", "textures"),
        ("@group(1) @binding(0) var s: sampler;", "5:27", "textures and samplers"),
        ("@compute @workgroup_size(1) fn main() { return; }", "5:32", "entry point"),
        ("struct S { a: atomic<u32> }", "5:8", "atomics"),
        ("fn f(p: ptr<workgroup, u32>) {}", "5:4", "its own variables"),
        ("fn f(p: ptr<storage, u32>) {}", "5:4", "its own variables"),
    ] {
        assert_rejected(&with("", declaration), position, words);
    }
    assert_body_rejected("let n = arrayLength(&b);", "2:22", "no definition in scope");
}

#[test]
fn optional_types_are_rejected() {
    assert_rejected(&format!("enable f16;\n{}", with("", "")), "1:8", "f16");
    assert_rejected(&with("let a = 1.0lf;", ""), "2:9", "no f64");
    assert_rejected(&with("let a = f64(pkt_len(pkt));", ""), "2:9", "no f64");
    assert_rejected(&with("var a: f64;", ""), "2:1", "no f64");
    assert_accepted(&with("var a: i64 = 1li; var b: u64 = 2lu; b = b * 3lu; var c = 1.5f;", ""));
}

#[test]
fn private_memory_is_limited() {
    assert_accepted(&with("var a: array<u32, 4096>; a[1] = 1u;", ""));
    assert_body_rejected("var a: array<u32, 4097>; a[1] = 1u;", "1:4", "16388 bytes");
    assert_accepted(&with("var a: array<u32, 4095>; a[1] = 1u;", "var<private> b: u32;"));
    assert_rejected(&with("var a: array<u32, 4095>; a[1] = 1u;", "var<private> b: vec2<u32>;"), "1:4", "16388 bytes");
    // Only the deepest call chain counts, not the sum of all functions.
    let two = "fn f() { var a: array<u32, 3000>; a[1] = 1u; }\nfn g() { var a: array<u32, 3000>; a[1] = 1u; }";
    assert_accepted(&with("f(); g();", two));
    let nested = "fn f() { var a: array<u32, 3000>; a[1] = 1u; g(); }\nfn g() { var a: array<u32, 3000>; a[1] = 1u; }";
    assert_rejected(&with("f();", nested), "1:4", "24000 bytes");
    assert_body_rejected("let a = array<u32, 5000>();", "2:9", "20000 bytes is too large");
    // Most devices place dynamically indexed constants in private memory.
    let table = |n: u32| format!("const t{n} = array<u32, 3000>();");
    let use_of = |n: u32| format!("let a{n} = t{n}[load_u8(pkt, 0u)];");
    assert_accepted(&with(&(use_of(1) + "let b = t1[load_u8(pkt, 1u)];"), &table(1)));
    assert_rejected(&with(&(use_of(1) + &use_of(2)), &(table(1) + &table(2))), "1:4", "24000 bytes");
}

#[test]
fn statements_are_counted_after_inlining() {
    // f0 has one statement (its return), f(n) two calls and a return: 4 * 2^n - 3 in all.
    let tower = |n: u32| {
        let functions = (1..=n).map(|i| format!("fn f{i}() {{ f{}(); f{}(); }}\n", i - 1, i - 1));
        format!("fn f0() {{}}\n{}", functions.collect::<String>())
    };
    assert_accepted(&with("f13();", &tower(13)));
    assert_rejected(&with("f15();", &tower(15)), "1:4", "at most 65536");
    assert_rejected(&with("f60();", &tower(60)), "1:4", "at most 65536");
    let expressions = format!("var x = 1u; x = {};", vec!["x"; 250].join("+"));
    let tower = tower(11).replace("fn f0() {}", &format!("fn f0() {{ {expressions} }}"));
    assert_rejected(&with("f11();", &tower), "1:4", "expressions");
}

#[test]
fn nesting_and_parameter_limits_match_wgsl() {
    let nest = |depth: u32| {
        let structs = (1..depth).map(|i| format!("struct S{i} {{ a: S{} }}\n", i - 1));
        format!("struct S0 {{ a: u32 }}\n{}", structs.collect::<String>())
    };
    // S(n) nests n + 2 levels, the u32 included.
    assert_accepted(&with("", &nest(14)));
    assert_rejected(&with("", &nest(15)), "19:8", "15 deep");
    let function =
        |n: u32| format!("fn f({}) {{}}", (0..n).map(|i| format!("a{i}: u32")).collect::<Vec<_>>().join(","));
    assert_accepted(&with("", &function(255)));
    assert_rejected(&with("", &function(256)), "5:4", "255 parameters");
}

#[test]
fn validator_errors_are_phrased_in_wgsl() {
    for (body, position, words) in [
        ("return 1i;", "2:8", "the return value is `i32`, the declared type is `u32`"),
        ("let a: u32 = true;", "2:5", "expected to be `u32`, but got `bool`"),
        ("let a = load_u8(pkt);", "2:9", "`load_u8` takes 2 arguments, given are 1"),
        ("let a = load_u8(pkt, 1i);", "2:22", "argument 2 of `load_u8` has type `u32`, but `i32` is passed"),
        ("let a = pkt_len(pkt) + 2i;", "2:9", "`+` does not go between `u32` and `i32`"),
        ("let a = -pkt_len(pkt);", "2:9", "`-` does not go before `u32`"),
        ("if pkt_len(pkt) {}", "2:4", "condition of `if` is `u32`"),
        ("var a: S; a = pkt_len(pkt);", "2:15", "`u32` cannot be stored in a variable of type `S`"),
        ("switch pkt_len(pkt) { case 1 {} }", "2:1", "missing a `default` case"),
        ("break;", "2:1", "outside of a `loop`"),
    ] {
        assert_rejected(&with(body, "struct S { a: u32 }"), position, words);
    }
    assert_rejected(
        "fn xdp_filter(pkt: u32) -> u32 { if pkt_len(pkt) > 1 { return 1u; } }",
        "1:4",
        "without returning",
    );
    assert_rejected(&with("f();", "fn f() { f(); }"), "5:4", "recurs");
}

#[test]
fn several_errors_are_reported_at_once() {
    let errors = compile(&with("let a = pkt + 1u;\nlet b = pkt * 2u;\nworkgroupBarrier();", "")).unwrap_err();
    // An earlier stage finds barriers before it looks at the uses of the packet.
    assert_eq!(errors.errors.len(), 1);
    let errors = compile(&with("let a = pkt + 1u;\nlet b = pkt * 2u;", "")).unwrap_err();
    assert_eq!(errors.to_string().lines().count(), 2);
    let many: String = (0..30).map(|i| format!("let a{i} = pkt + {i}u;\n")).collect();
    let errors = compile(&with(&many, "")).unwrap_err();
    assert_eq!(errors.errors.len(), 21);
    assert!(errors.errors[20].message.contains("10 more"));
}

#[test]
fn sign_rejects_unsigned_numbers() {
    let declarations = "fn n() -> u32 { return 7u; }";
    for body in ["let a = sign(n());", "let a = sign(vec2<u32>(n(), 1u));"] {
        assert_rejected(&with(body, declarations), "2:9", "`sign` does not take unsigned numbers");
    }
    assert_accepted(&with("let a = sign(i32(n())); let b = sign(f32(n()));", declarations));
}

#[test]
fn flow_functions_are_pure_and_typed() {
    let with = |flow: &str| {
        format!(
            "//! map m: hash key=1 value=1 entries=9\nfn xdp_filter(pkt: u32) -> u32 {{ return XDP_PASS; }}\n{flow}"
        )
    };
    assert_accepted(&with("fn xdp_flow(pkt: u32) -> u32 { return load_be32(pkt, 26u) + pkt_port(pkt); }"));
    assert_accepted(&with("fn xdp_flow(p: u32) -> u32 { return f(p); }\nfn f(p: u32) -> u32 { return pkt_len(p); }"));
    for signature in ["() -> u32", "(pkt: u32)", "(pkt: u32) -> i32", "(pkt: u32, n: u32) -> u32"] {
        let value = if signature.ends_with("i32") {
            "return 1i;"
        } else if signature.contains('>') {
            "return 1u;"
        } else {
            ""
        };
        assert_rejected(
            &with(&format!("fn xdp_flow{signature} {{ {value} }}")),
            "3:4",
            "`xdp_flow` has the wrong signature",
        );
    }
    for (body, words) in [
        ("store_u8(pkt, 0u, 1u);", "may not change the packet"),
        ("adjust_head(pkt, 4i);", "may not change the packet"),
        ("m_insert(1u);", "may not use maps"),
        ("m_find(1u);", "may not use maps"),
    ] {
        let body = body.replace("adjust_head", "_ = adjust_head").replace("m_", "_ = m_");
        assert_rejected(
            &with(&format!("fn xdp_flow(pkt: u32) -> u32 {{\n{body}\nreturn 1u; }}")),
            &call_place(&body),
            words,
        );
        let helper = format!(
            "fn xdp_flow(pkt: u32) -> u32 {{ return f(pkt); }} fn f(pkt: u32) -> u32 {{\n{body}\nreturn 1u; }}"
        );
        assert_rejected(&with(&helper), &call_place(&body), words);
        // The filter may use the same helper.
        assert_accepted(&with(&helper.replace("xdp_flow", "other")));
    }
    assert_rejected(&with("fn xdp_flow(pkt: u32) -> u32 {\nreturn pkt; }"), "4:1", "may only be passed to functions");
    let asks = "fn xdp_flow(pkt: u32) -> u32 { return 1u; }\nfn f(pkt: u32) -> u32 {\nreturn xdp_flow(pkt); }";
    assert_rejected(&with(asks), "5:8", "may not call `xdp_flow`");
}

/// Place that naga reports for a call in the fourth line: its name, or the statement.
fn call_place(body: &str) -> String {
    let column = if body.starts_with("_ = ") { 5 } else { 1 };
    format!("4:{column}")
}
