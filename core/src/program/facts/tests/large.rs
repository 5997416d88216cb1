//! Filters near the verifier's limits: the analysis completes, or falls back to facts read off the
//! text.

use std::fmt::Write;

use super::super::VerdictSet;
use super::super::Window::{Bytes, Nothing, WholePacket};
use super::facts;

#[test]
fn long_filters_are_analysed() {
    let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 { var x = 0u;\n");
    for i in 0..2_000 {
        let _ = writeln!(text, "if load_u8(pkt, {}u) == 7u && x < 9u {{ x = x + 1u; }} else {{ x = 2u; }}", i % 90);
    }
    text += "return x; }";
    let facts = facts(&text);
    assert_eq!((facts.reads, facts.writes, facts.max_iterations), (Bytes(90), Nothing, Some(0)));
}

#[test]
fn every_call_of_a_call_tree_is_analysed() {
    // 2^9 calls of f0, each of 4 complete iterations and the last; offsets 0..=63
    let mut text = String::from(
        "fn f0(pkt: u32, x: u32) -> u32 {
             var s = x;
             for (var i = 0u; i < 4u; i++) { s = (s + load_u8(pkt, s)) & 63u; }
             return s;
         }\n",
    );
    for i in 1..10 {
        let _ = writeln!(text, "fn f{i}(pkt: u32, x: u32) -> u32 {{ return f{0}(pkt, f{0}(pkt, x)); }}", i - 1);
    }
    text += "fn xdp_filter(pkt: u32) -> u32 { return f9(pkt, 3u); }";
    let facts = facts(&text);
    assert_eq!((facts.reads, facts.max_iterations), (Bytes(64), Some(512 * 5)));
}

/// A loop with as many exits as variables exceeds the work limit.
#[test]
fn filters_beyond_the_work_limit_get_facts_from_their_text() {
    let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 {\n");
    for i in 0..1_500 {
        let _ = writeln!(text, "var x{i} = load_u8(pkt, {}u);", i % 90);
    }
    text += "loop { ";
    for i in 0..1_500 {
        let _ = writeln!(text, "x{i} += 1u; if x{i} == 7u {{ break; }}");
    }
    text += "} return XDP_DROP; }";
    let facts = facts(&text);
    assert_eq!((facts.reads, facts.writes, facts.max_iterations), (WholePacket, Nothing, None));
    assert_eq!((facts.verdicts, facts.changes_length, facts.uses_metadata), (VerdictSet::ALL, false, false));
}

#[test]
fn iterations_of_nested_loops_multiply() {
    let nest = |depth: u32| {
        let mut text = String::from("fn xdp_filter(pkt: u32) -> u32 { var x = 0u;\n");
        for i in 0..depth {
            let _ = writeln!(text, "for (var i{i} = 0u; i{i} < 2u; i{i}++) {{ x = load_u8(pkt, x);");
        }
        text += &"}".repeat(depth as usize);
        text += "return x; }";
        facts(&text)
    };
    // Each loop's body is entered 3 times: t(n) = 2 (1 + t(n - 1)) + 1, so 3, 9, 21, 45, 93.
    let five = nest(5);
    assert_eq!((five.reads, five.max_iterations), (Bytes(256), Some(93)));
    // 3 * 2^60 iterations exceed a `u32`.
    assert_eq!(nest(60).max_iterations, None);
}
