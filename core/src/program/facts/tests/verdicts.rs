//! Verdicts, uses of metadata, and scalar types.

use super::super::VerdictSet;
use super::super::interval::Interval;
use super::{body, facts};
use crate::packet::Action::{self, Aborted, Drop, Pass, Redirect, Tx};
use crate::packet::Verdict;

fn verdicts(text: &str) -> Vec<Action> {
    body(text).verdicts.iter().collect()
}

#[test]
fn verdict_set_of_a_range_is_that_of_its_values() {
    for (lo, hi) in (0..600).flat_map(|lo| [0, 1, 2, 3, 5, 200, 255, 256].map(|more| (lo, lo + more))) {
        let mut want = VerdictSet::NONE;
        for value in lo..=hi {
            // Redirect targets do not matter here.
            want = want.union(VerdictSet::of(Verdict::from_return(value).action()));
        }
        let got = VerdictSet::of_range(Interval::new(lo.into(), hi.into()));
        assert_eq!(got, want, "{lo}..={hi}");
    }
}

#[test]
fn verdicts_of_constants_choices_and_redirects() {
    assert_eq!(verdicts(""), [Pass]);
    assert_eq!(verdicts("if load_u8(pkt, 0u) == 1u { return XDP_DROP; }"), [Drop, Pass]);
    // A choice is one of its two values, not the range between them.
    assert_eq!(verdicts("if true { return select(XDP_DROP, XDP_TX, load_u8(pkt, 0u) == 1u); }"), [Drop, Tx]);
    assert_eq!(
        verdicts("var v = XDP_DROP; if load_u8(pkt, 0u) == 1u { v = XDP_TX; } if true { return v; }"),
        [Drop, Tx]
    );
    assert_eq!(verdicts("if load_u8(pkt, 0u) == 1u { return redirect(3u); }"), [Pass, Redirect]);
    assert_eq!(verdicts("return redirect(load_u8(pkt, 0u));"), [Redirect]);
    assert_eq!(verdicts("return redirect(load_be32(pkt, 0u));"), [Aborted, Redirect]);
    assert_eq!(verdicts("return redirect(0x1000000u);"), [Aborted]);
    assert_eq!(verdicts("return load_u8(pkt, 0u) & 3u;"), [Aborted, Drop, Pass, Tx]);
    assert_eq!(verdicts("return load_u8(pkt, 0u);"), [Aborted, Drop, Pass, Tx, Redirect]);
    assert_eq!(verdicts("return (load_u8(pkt, 0u) << 8u) | 4u;"), [Aborted, Redirect]);
    assert_eq!(verdicts("return 0x104u;"), [Redirect]);
    assert_eq!(verdicts("return 0x102u;"), [Aborted]);
    // A guard restricts the returned value.
    assert_eq!(verdicts("let v = load_u8(pkt, 0u); if v >= 1u && v <= 2u { return v; }"), [Drop, Pass]);
    // Running out of fuel aborts.
    assert_eq!(verdicts("loop { if load_u8(pkt, 0u) == 1u { break; } }"), [Aborted, Pass]);
    assert_eq!(verdicts("for (var i = 0u; i < 40000u; i++) { }"), [Aborted, Pass]);
    assert_eq!(verdicts("for (var i = 0u; i < 32767u; i++) { }"), [Pass]);

    assert!(!body("return load_u8(pkt, 0u) & 3u;").redirects);
    assert!(body("return load_u8(pkt, 0u) & 7u;").redirects);
    // A helper's redirect counts, unless its result is reduced to a plain number.
    assert!(facts("fn go() -> u32 { return redirect(1u); } fn xdp_filter(pkt: u32) -> u32 { return go(); }").redirects);
    assert!(
        !facts("fn go() -> u32 { return redirect(1u); } fn xdp_filter(pkt: u32) -> u32 { return min(go(), 3u); }")
            .redirects
    );
}

#[test]
fn metadata_uses_are_found_by_kind() {
    let uses = |text: &str| {
        let facts = body(text);
        (facts.uses_metadata, facts.uses_wire_length, facts.uses_port, facts.uses_time)
    };
    assert_eq!(uses("let x = pkt_len(pkt);"), (false, false, false, false));
    assert_eq!(uses("let x = pkt_wire_len(pkt);"), (true, true, false, false));
    assert_eq!(uses("let x = pkt_port(pkt);"), (true, false, true, false));
    assert_eq!(uses("let x = pkt_time(pkt);"), (true, false, false, true));
    assert_eq!(uses("let x = pkt_time_ms(pkt);"), (true, false, false, true));
    // A device compiles unreachable code, but not uncalled functions.
    assert_eq!(uses("if false { let x = pkt_time_ms(pkt); }"), (true, false, false, true));
    assert!(body("if false { let ok = adjust_head(pkt, 4); }").changes_length);
    let helper = "fn now(pkt: u32) -> u32 { return pkt_time_ms(pkt); }";
    assert!(facts(&format!("{helper} fn xdp_filter(pkt: u32) -> u32 {{ return now(pkt); }}")).uses_time);
    assert!(!facts(&format!("{helper} fn xdp_filter(pkt: u32) -> u32 {{ return 1u; }}")).uses_time);
}

#[test]
fn scalar_types_are_found_in_the_whole_module() {
    let uses = |text: &str| (body(text).uses_int64, body(text).uses_float);
    assert_eq!(uses("let x = i32(pkt_len(pkt)) + 1;"), (false, false));
    assert_eq!(uses("let x = u64(pkt_len(pkt)) << 3u;"), (true, false));
    assert_eq!(uses("var x: i64; x = 1li;"), (true, false));
    assert_eq!(uses("let x = f32(pkt_len(pkt));"), (false, true));
    // Uncalled functions count: devices get the module as a whole.
    let facts = facts("fn f(x: f32) -> f32 { return x; } fn xdp_filter(pkt: u32) -> u32 { return 1u; }");
    assert!(facts.uses_float);
}
