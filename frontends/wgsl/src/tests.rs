use super::*;
use portcullis_core::program::ParameterValue;

const FILTER_TEXT: &str = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";

fn compile_text(text: &str) -> Result<Program, Diagnostics> {
    compile(&Source::new("f", text), &ProgramOptions::default())
}

fn with_parameters(text: &str, parameters: &[(&str, &str)]) -> Result<Program, Diagnostics> {
    let parameters = parameters.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    compile(&Source::new("f", text), &ProgramOptions::default().with_parameters(parameters))
}

/// Asserts that the first error of `text` is at `place` (line:column, `-` for none) and contains
/// `words`.
fn assert_rejected(text: &str, place: &str, words: &str) {
    let Err(errors) = compile_text(text) else { panic!("accepted: {text}") };
    let line = errors.to_string().lines().next().unwrap_or_default().to_owned();
    let expected = if place == "-" { "f: ".to_owned() } else { format!("f:{place}: ") };
    assert!(line.starts_with(&expected) && line.contains(words), "{text}\nwanted {expected}...{words}\ngot {line}");
}

#[test]
fn a_filter_compiles() {
    compile_text(
        "fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, load_be16(pkt, 12u) == ETH_P_IP); }",
    )
    .map_err(|e| e.render())
    .unwrap();
}

#[test]
fn prelude_names_cannot_be_redeclared() {
    for (declaration, place, words) in [
        ("fn load_u8(a: u32) {}", "1:4", "`load_u8` is a name of the prelude"),
        ("const XDP_PASS = 1u;", "1:7", "`XDP_PASS` is a name of the prelude"),
        ("alias u32 = i32;", "1:7", "`u32` cannot be declared"),
        ("struct array { a: u32 }", "1:8", "`array` cannot be declared"),
        ("override bool: u32 = 1u;", "1:10", "`bool` cannot be declared"),
        ("var<private> storage: u32;", "1:14", "`storage` cannot be declared"),
        ("fn pc_mine() {}", "1:4", "`pc_mine` is reserved"),
    ] {
        assert_rejected(&format!("{declaration}\n{FILTER_TEXT}"), place, words);
    }
    for (declaration, words) in [
        ("const MAP_NONE = 1u;", "`MAP_NONE` is a name of the prelude"),
        ("fn atomicLoad(a: u32) {}", "`atomicLoad` cannot be declared at module scope"),
        ("fn m_find(a: u32) {}", "redefinition of `m_find`"),
    ] {
        let map = "//! map m: hash key=1 value=1 entries=1";
        assert_rejected(
            &format!("{map}\n{declaration}\n{FILTER_TEXT}"),
            if words.starts_with("`MAP") { "2:7" } else { "2:4" },
            words,
        );
        compile_text(&format!("{declaration}\n{FILTER_TEXT}")).map_err(|e| e.render()).unwrap();
    }
    assert_rejected("fn xdp_filter(pkt: u32) -> u32 { return pc_length; }", "1:41", "`pc_length` is reserved");
    assert_rejected("fn xdp_filter(pkt: u32) -> u32 { let pc_a = 1u; return 1u; }", "1:38", "`pc_a` is reserved");
    // Local names are free, also those that the prelude uses inside its functions.
    compile_text(
        "const value = 1u; fn at() -> u32 { let XDP_PASS = value; return XDP_PASS; }\
              fn xdp_filter(pkt: u32) -> u32 { let shift = at(); return shift; }",
    )
    .map_err(|e| e.render())
    .unwrap();
}

#[test]
fn incomplete_texts_do_not_run_into_the_prelude() {
    for (text, place, words) in [
        ("fn xdp_filter(pkt: u32) -> u32 {", "1:32", "never closed"),
        ("fn xdp_filter(pkt: u32) -> u32 { return (1u", "1:41", "never closed"),
        ("fn xdp_filter(pkt: u32) -> u32 { return 1u; } /* a", "1:47", "unterminated comment"),
        ("fn xdp_filter(pkt: u32) -> u32 { return 1u; } const", "1:47", "middle of a declaration"),
        ("fn xdp_filter(pkt: u32) -> u32 { return 1u; } @must_use", "1:48", "middle of a declaration"),
        ("fn xdp_filter(pkt: u32) -> u32 { return 1u; } const a = 1u", "1:57", "middle of a declaration"),
        ("fn xdp_filter(pkt: u32) -> u32", "1:28", "middle of a declaration"),
        ("fn xdp_filter(pkt: u32) -> u32 { return 1u; }}", "1:46", "has no opening bracket"),
        ("fn xdp_filter(pkt: u32) -> u32 { return (1u]; }", "1:44", "`]` closes `(`"),
        ("fn xdp_filter(pkt: u32) -> u32 { return 1u; } \u{1b}", "1:47", "U+001B"),
    ] {
        assert_rejected(text, place, words);
    }
    compile_text(&format!("{FILTER_TEXT} // no line break")).map_err(|e| e.render()).unwrap();
}

// Every prefix of a filter compiles or is rejected without a panic, with places inside the prefix.
// It compiles if it ends with the filter or with a complete declaration after it.
#[test]
fn every_truncation_is_rejected_within_the_text() {
    let text = "// é\nconst a = array<u32, 2>(1u, 2u);\n".to_owned()
        + "fn xdp_filter(pkt: u32) -> u32 { if load_u8(pkt, 1u) < a[0] && !false { return 3u; } return 1u; }\n"
        + "/* tail */ var<private> b: u32;";
    let filter_end = text.find("return 1u; }").unwrap() + "return 1u; }".len();
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
        let whole = end == filter_end
            || text[filter_end..].starts_with(&text[filter_end..end.max(filter_end)]) && {
                // White space, and a complete comment.
                end >= filter_end && matches!(text[filter_end..end].trim(), "" | "/* tail */")
            };
        match compile_text(&text[..end]) {
            Ok(_) => assert!(whole, "accepted {:?}", &text[..end]),
            Err(errors) => {
                assert!(!whole, "refused {:?}: {}", &text[..end], errors.render());
                for label in errors.errors.iter().flat_map(|e| &e.labels) {
                    assert!(label.range.end <= end, "{label:?} of {end}");
                }
            }
        }
    }
}

#[test]
fn directives_are_applied_or_rejected() {
    for directive in [
        "requires packed_4x8_integer_dot_product;",
        "diagnostic(off, derivative_uniformity);",
        "diagnostic(off, some.rule);",
    ] {
        compile_text(&format!("{directive}\n{FILTER_TEXT}")).map_err(|e| e.render()).unwrap();
    }
    for (directive, place) in [
        ("enable f16;", "1:8"),
        ("enable subgroups;", "1:8"),
        ("enable wgpu_ray_query;", "1:8"),
        ("enable nothing_known;", "1:8"),
        ("requires nothing_known;", "1:10"),
    ] {
        assert_rejected(&format!("{directive}\n{FILTER_TEXT}"), place, "");
    }
}

#[test]
fn oversized_and_binary_sources_are_rejected() {
    let too_long = "the source exceeds 1048576 bytes, the maximum for a filter";
    assert_rejected(&format!("{FILTER_TEXT}{}", " ".repeat(MAX_SOURCE_BYTES)), "-", too_long);
    let long = Source::from_bytes("f", vec![b' '; MAX_SOURCE_BYTES + 1]).unwrap_err();
    assert_eq!(long.to_string(), format!("f: {too_long}"));
    let mut binary = vec![b' '; MAX_SOURCE_BYTES + 1];
    binary[100] = 0;
    let binary = Source::from_bytes("f", binary).unwrap_err();
    assert_eq!(binary.to_string(), "f: the source is not text: zero byte at offset 100");
    let error = Source::from_bytes("f", b"fn\n  a\xff\xfe".to_vec()).unwrap_err();
    assert_eq!(error.to_string(), "f:2:4: the text is not UTF-8: byte 0xff at offset 6");
    assert_eq!(&*Source::from_bytes("f", "é".into()).unwrap().text, "é");
}

#[test]
fn rendered_reports_match() {
    let report = |text: &str| compile_text(text).unwrap_err().render();
    assert_eq!(
        report("fn xdp_filter(pkt: u32) -> u32 {\n\tlet länge = pkt_len(pkt) + pkt;\n\treturn länge;\n}\n"),
        "error: the packet may only be passed to functions
  ┌─ f:2:14
  │
2 │     let länge = pkt_len(pkt) + pkt;
  │                 ^^^^^^^^^^^^^^^^^^ used as a number here
  │
  = its value is not a property of the packet: pass it to functions of the prelude or to a helper

"
    );
    assert_eq!(
        report("fn a() { b(); }\nfn b() { a(); }\nfn xdp_filter(pkt: u32) -> u32 { return 1u; }\n"),
        "error: declaration of `a` is cyclic
  ┌─ f:2:4
  │
1 │ fn a() { b(); }
  │    -     - uses `b`
2 │ fn b() { a(); }
  │    ^     - ending the cycle

"
    );
    assert_eq!(
        report("fn xdp_filter(pkt: u32) -> u32 {\n    return 1u;\n"),
        "error: this `{` is never closed
  ┌─ f:1:32
  │
1 │ fn xdp_filter(pkt: u32) -> u32 {
  │                                ^ opened here
  │
  = the text ends before the matching bracket

"
    );
}

const PARAMETERS: &str = "override port: u32 = 80u;
override address: u32 = 0x0a000001u;
override shift: i32 = -5;
override on: bool = false;
@id(7) override rate: f32 = 1.5;
override unused: u32 = later + 1u;
override later: u32 = port;
fn xdp_filter(pkt: u32) -> u32 {
    if on && load_be16(pkt, 36u) == port && load_be32(pkt, 26u) == address { return u32(shift) + u32(rate); }
    return XDP_PASS;
}";

#[test]
fn parameters_have_default_values() {
    let program = compile_text(PARAMETERS).map_err(|e| e.render()).unwrap();
    let found: Vec<_> = program.parameters().iter().map(|p| (p.name.as_str(), p.value.clone(), p.is_default)).collect();
    assert_eq!(
        found,
        [
            ("port", ParameterValue::U32(80), true),
            ("address", ParameterValue::U32(0x0a00_0001), true),
            ("shift", ParameterValue::I32(-5), true),
            ("on", ParameterValue::Bool(false), true),
            ("rate", ParameterValue::F32(1.5), true),
            ("unused", ParameterValue::U32(81), true),
            ("later", ParameterValue::U32(80), true),
        ]
    );
    assert!(program.module().overrides.is_empty() && program.module().entry_points.is_empty());
    assert!(program.module().functions.iter().all(|(_, f)| f.name.as_deref() != Some("pc_root")));
}

#[test]
fn parameters_accept_several_notations() {
    for (name, text, value) in [
        ("port", "443", ParameterValue::U32(443)),
        ("port", "443u", ParameterValue::U32(443)),
        ("port", "0x1BB", ParameterValue::U32(443)),
        ("port", " 4294967295 ", ParameterValue::U32(u32::MAX)),
        ("address", "192.168.0.1", ParameterValue::U32(0xc0a8_0001)),
        ("shift", "-2147483648", ParameterValue::I32(i32::MIN)),
        ("shift", "0x7fffffff", ParameterValue::I32(i32::MAX)),
        ("on", "true", ParameterValue::Bool(true)),
        ("rate", "2.25", ParameterValue::F32(2.25)),
        ("rate", "-1e3f", ParameterValue::F32(-1000.0)),
    ] {
        let program = with_parameters(PARAMETERS, &[(name, text)]).map_err(|e| e.render()).unwrap();
        let found = program.parameters().iter().find(|p| p.name == name).unwrap();
        assert_eq!((&found.value, found.is_default), (&value, false), "{name}={text}");
    }
    // Defaults that depend on a parameter follow its value.
    let program = with_parameters(PARAMETERS, &[("port", "8080")]).map_err(|e| e.render()).unwrap();
    assert_eq!(program.parameters()[5].value, ParameterValue::U32(8081));
}

#[test]
fn invalid_parameters_are_explained() {
    let message = |parameters: &[(&str, &str)]| with_parameters(PARAMETERS, parameters).unwrap_err().to_string();
    assert_eq!(message(&[("prot", "1")]), "f: the filter has no parameter `prot`");
    let rendered = with_parameters(PARAMETERS, &[("prot", "1")]).unwrap_err().render();
    assert!(rendered.contains("`port`, `address`, `shift`"), "{rendered}");
    for (name, text, place, words) in [
        ("port", "4294967296", "1:10", "0 to 4294967295"),
        ("port", "-1", "1:10", "0 to 4294967295"),
        ("port", "", "1:10", "expected a number"),
        ("port", "0x", "1:10", "expected a number"),
        ("port", "+1", "1:10", "expected a number"),
        ("port", "http", "1:10", "expected a number"),
        ("port", "1.2.3", "1:10", "expected a number"),
        ("port", "9999999999999999999999999999999999999999999999", "1:10", "0 to 4294967295"),
        ("shift", "2147483648", "3:10", "-2147483648 to 2147483647"),
        ("on", "1", "4:10", "`true` or `false`"),
        ("rate", "nan", "5:17", "finite"),
        ("rate", "1e99", "5:17", "finite"),
    ] {
        let found = message(&[(name, text)]);
        assert!(found.starts_with(&format!("f:{place}: ")) && found.contains(words), "{name}={text}: {found}");
    }
    assert!(message(&[("port", "1"), ("port", "2")]).contains("twice"));
    let unset = "override a: u32;\noverride b: u32;\nfn xdp_filter(pkt: u32) -> u32 { return a; }";
    let errors = with_parameters(unset, &[("a", "1")]).unwrap_err().to_string();
    assert_eq!(errors, "f:2:10: the parameter `b` has no value");
    let wide = with_parameters("override a: u64 = 1lu;\nfn xdp_filter(pkt: u32) -> u32 { return 1u; }", &[]);
    assert!(wide.is_err());
    let none = with_parameters(FILTER_TEXT, &[("a", "1")]).unwrap_err().render();
    assert!(none.contains("no parameters"), "{none}");
}

#[test]
fn errors_in_constant_expressions_name_the_parameter() {
    let text = "override n: u32 = 1u;
override m: i32 = 1;
override of_n: u32 = 12u / n;
const TABLE = array<u32, 3>(1u, 2u, 3u);
fn index() -> u32 { return TABLE[n + 0u]; }
fn xdp_filter(pkt: u32) -> u32 {
    let length = pkt_len(pkt);
    var places = array<u32, 4>();
    let shifted = length << (n + 29u);
    let both = (1u << (u32(m) + 28u)) + (1u << (u32(m) + 29u));
    let whole = length / u32(m);
    let rest = 7 % (m - 1 + 1);
    let vector = vec2<u32>(length) % vec2<u32>(1u, u32(m));
    places[length] = 1u;
    return index() + shifted + both + whole + u32(rest) + vector.x + places[u32(m)];
}";
    compile_text(text).map_err(|e| e.render()).unwrap();
    for (name, value, place, words) in [
        ("n", "0", "3:22", "division by zero"),
        ("n", "3", "5:28", "out of range"),
        ("m", "3", "10:42", "count is 32 or more"),
        ("m", "0", "12:16", "by zero"),
        ("m", "4", "10:17", "count is 32 or more"),
    ] {
        let errors = with_parameters(text, &[(name, value)]).unwrap_err();
        let line = errors.to_string();
        assert!(line.starts_with(&format!("f:{place}: ")) && line.contains(words), "{name}={value}: {line}");
        let rendered = errors.render();
        assert!(rendered.contains(&format!("= with `{name}` = {value}\n")), "{rendered}");
    }
    // Operands known only at run time do not hide the error.
    for (expression, default, value, words) in [
        ("pkt_len(pkt) << n", "1u", "32", "shift amount"),
        ("pkt_len(pkt) / n", "1u", "0", "division by zero"),
        ("pkt_len(pkt) % n", "1u", "0", "division by zero"),
        ("places[n]", "1u", "4", "out of"),
        ("pkt_len(pkt) % n", "0u", "", "division by zero"),
    ] {
        let text = format!(
            "override n: u32 = {default};\nfn xdp_filter(pkt: u32) -> u32 {{\nvar places: array<u32, 4>;\nreturn {expression};\n}}"
        );
        let set: &[_] = if value.is_empty() { &[] } else { &[("n", value)] };
        let errors = with_parameters(&text, set).unwrap_err();
        let line = errors.to_string();
        assert!(line.starts_with("f:4:8: ") && line.contains(words), "{expression}: {line}");
        let rendered = errors.render();
        assert!(rendered.contains("in the function `xdp_filter`") && !rendered.contains("invalid"), "{rendered}");
        let said = if value.is_empty() {
            "with all parameters at their defaults".into()
        } else {
            format!("with `n` = {value}")
        };
        assert!(rendered.contains(&said), "{rendered}");
    }
}

/// docs/reference/semantics.md, "Arithmetic": constant expressions that naga evaluates.
#[test]
fn constant_arithmetic_wraps_or_is_rejected() {
    let filter = |expression: &str| format!("fn xdp_filter(pkt: u32) -> u32 {{ return u32({expression}); }}");
    for fine in
        ["0xffffffffu + 1u", "0u - 1u", "2147483647i + 1i", "65536i * 65536i", "1lu / 0lu", "u64(pkt_len(pkt)) / 0lu"]
    {
        compile_text(&filter(fine)).map_err(|e| e.render()).unwrap();
    }
    for (wrong, words) in [
        ("9223372036854775807 + 1", "overflow"),
        ("3u / 0u", "by zero"),
        ("3i % 0i", "by zero"),
        ("pkt_len(pkt) / 0u", "by zero"),
        ("0xffffffffu << 1u", "overflow"),
        ("1u << 32u", "shift"),
        ("pkt_len(pkt) >> 32u", "shift"),
        ("u64(pkt_len(pkt)) << 64u", "shift"),
        ("array<u32, 2>(1u, 2u)[2]", "index"),
    ] {
        let Err(errors) = compile_text(&filter(wrong)) else { panic!("accepted: {wrong}") };
        let said = errors.to_string().to_lowercase();
        assert!(said.contains(words), "{wrong}: {said}");
    }
}
