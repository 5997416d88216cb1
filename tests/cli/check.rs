//! `check`: diagnostics, facts, and what a filter becomes.

use crate::support::{PASS, Place, stock};

#[test]
fn a_good_filter_shows_its_facts() {
    let place = Place::new();
    let ran = place.run(&["check", &stock("http_only")]).done();
    for fact in ["no errors", "reads", "writes", "loops", "drop, pass"] {
        assert!(ran.out.contains(fact), "{fact}: {}", ran.out);
    }
    let line = place.run(&["check", &stock("mac_swap"), "--json"]).done().json();
    assert_eq!(line["ok"], true);
    let facts = &line["facts"];
    // Both addresses, of 6 bytes each; too short is dropped.
    assert_eq!((&facts["reads_bytes"], &facts["writes_bytes"]), (&12.into(), &12.into()));
    assert_eq!(facts["verdicts"], serde_json::json!(["drop", "tx"]));
    assert!(facts["changes_length"] == false && facts["fuel"] == 32_768);
}

#[test]
fn a_bad_filter_is_shown_with_line_and_column() {
    let place = Place::new();
    let bad = place.file("bad.wgsl", "fn xdp_filter(pkt: u32) -> u32 {\n    return nonsense;\n}\n");
    let ran = place.run(&["check", bad]).failed(1, &["error", "bad.wgsl:2:12", "nonsense"]);
    assert!(!ran.err.contains('\u{1b}'), "no colour without a terminal");
    let ran = place.run(&["check", bad, "--json"]);
    assert_eq!(ran.code, 1);
    let line = ran.json();
    assert_eq!(
        (&line["ok"], &line["errors"][0]["line"], &line["errors"][0]["column"]),
        (&false.into(), &2.into(), &12.into())
    );
    place.run(&["check", "none.wgsl"]).failed(1, &["none.wgsl: there is no such file or folder"]);
    place.run(&["check", place.file("empty.wgsl", "")]).failed(1, &["xdp_filter"]);
    place.run_with(&["check", "-"], b"fn f() {}").failed(1, &["<stdin>", "xdp_filter"]);
}

#[test]
fn the_lowering_is_shown_in_each_form() {
    let place = Place::new();
    let filter = place.file("f.wgsl", PASS);
    assert!(place.run(&["check", filter, "--emit", "wgsl"]).done().out.contains("fn xdp_filter"));
    if cfg!(feature = "wgpu") {
        // The magic number of SPIR-V, section 2.3 of its specification.
        assert_eq!(place.run(&["check", filter, "--emit", "spirv"]).done().bytes[..4], [0x03, 0x02, 0x23, 0x07]);
    }
    if cfg!(feature = "cpu") {
        assert!(place.run(&["check", filter, "--emit", "clif"]).done().out.contains("function"));
    }
    let c = |language| place.run(&["check", filter, "--emit", language]).done().out;
    assert!(c("opencl").contains("__kernel void xdp_kernel("));
    assert!(c("cuda").contains("extern \"C\" __global__ void xdp_kernel("));
    place.run(&["check", filter, "--emit", "asm"]).failed(2, &["asm"]);
}
