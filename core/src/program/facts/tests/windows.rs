//! Read and write windows. The byte counts in the comments are worked out by hand.

use super::super::Window::{Bytes, Nothing, WholePacket};
use super::{body, facts, reads};

#[test]
fn constant_offsets_bound_the_window() {
    assert_eq!(reads(""), Nothing);
    assert_eq!(reads("let x = load_u8(pkt, 0u);"), Bytes(1));
    assert_eq!(reads("let x = load_be16(pkt, 12u);"), Bytes(14));
    assert_eq!(reads("let x = load_le32(pkt, 30u); let y = load_u8(pkt, 3u);"), Bytes(34));
    // The length is metadata, not a byte of the packet.
    assert_eq!(reads("if pkt_len(pkt) < 20u { return XDP_DROP; }"), Nothing);
}

#[test]
fn offsets_computed_from_packet_bytes_are_bounded() {
    // IHL: 14 + 15 * 4 + 2, and the port's two bytes: 78
    assert_eq!(reads("let p = load_be16(pkt, 14u + (load_u8(pkt, 14u) & 15u) * 4u + 2u);"), Bytes(78));
    // A byte is at most 255.
    assert_eq!(reads("let p = load_u8(pkt, load_u8(pkt, 0u));"), Bytes(256));
    // A 16-bit load is at most 65535: beyond the largest window.
    assert_eq!(reads("let p = load_u8(pkt, load_be16(pkt, 0u) + 1u);"), WholePacket);
    assert_eq!(reads("let p = load_u8(pkt, load_be16(pkt, 0u) >> 8u);"), Bytes(256));
    assert_eq!(reads("let p = load_u8(pkt, load_be32(pkt, 0u) % 10u);"), Bytes(10));
    assert_eq!(reads("let p = load_u8(pkt, min(load_be32(pkt, 0u), 40u));"), Bytes(41));
    assert_eq!(reads("let p = load_u8(pkt, clamp(load_be32(pkt, 0u), 4u, 40u));"), Bytes(41));
    assert_eq!(reads("let p = load_u8(pkt, extractBits(load_be32(pkt, 0u), 4u, 3u));"), Bytes(8));
    assert_eq!(reads("let p = load_u8(pkt, select(20u, 60u, load_u8(pkt, 0u) == 1u));"), Bytes(61));
    assert_eq!(reads("let p = load_u8(pkt, u32(i32(load_u8(pkt, 0u)) + 3i));"), Bytes(259));
}

#[test]
fn offsets_that_may_wrap_are_unbounded() {
    // x - 20 wraps for x below 20.
    assert_eq!(reads("let p = load_u8(pkt, load_u8(pkt, 0u) - 20u);"), WholePacket);
    assert_eq!(reads("let p = load_u8(pkt, u32(i32(load_u8(pkt, 0u)) - 20i));"), WholePacket);
    // All values wrap: 2^32 - 20 + 20..=275.
    assert_eq!(reads("let p = load_u8(pkt, load_u8(pkt, 0u) + 20u - 20u);"), Bytes(256));
    assert_eq!(reads("let p = load_u8(pkt, load_u8(pkt, 0u) + 0xffffffffu);"), WholePacket);
    assert_eq!(reads("let p = load_u8(pkt, load_u8(pkt, 0u) * 0x1000000u);"), WholePacket);
    // 200 << 30 loses bits, so the result may be anything.
    assert_eq!(reads("let p = load_u8(pkt, load_u8(pkt, 0u) << 30u);"), WholePacket);
    // Shift counts are taken modulo 32.
    assert_eq!(reads("let p = load_u8(pkt, (load_u8(pkt, 0u) >> load_u8(pkt, 1u)));"), Bytes(256));
    // An access at the last offset reads nothing, but its end does not wrap to a small one.
    assert_eq!(reads("let p = load_be32(pkt, 0xffffffffu);"), WholePacket);
}

#[test]
fn guards_restrict_the_code_they_dominate() {
    let x = "let x = load_be16(pkt, 0u);";
    assert_eq!(reads(&format!("{x} if x > 50u {{ return XDP_DROP; }} let p = load_u8(pkt, x);")), Bytes(51));
    assert_eq!(reads(&format!("{x} if x < 50u {{ let p = load_u8(pkt, x); }}")), Bytes(50));
    assert_eq!(reads(&format!("{x} if 50u >= x {{ let p = load_u8(pkt, x); }}")), Bytes(51));
    assert_eq!(reads(&format!("{x} if !(x >= 50u) {{ let p = load_u8(pkt, x); }}")), Bytes(50));
    assert_eq!(reads(&format!("{x} if x == 7u {{ let p = load_u8(pkt, x); }}")), Bytes(8));
    // The guard holds on one branch only.
    assert_eq!(reads(&format!("{x} if x < 50u {{ return XDP_DROP; }} let p = load_u8(pkt, x);")), Bytes(65_536));
    assert_eq!(reads(&format!("{x} if x < 50u {{ }} let p = load_u8(pkt, x);")), Bytes(65_536));
    // Guards combined by `||` and `&&`.
    assert_eq!(
        reads(&format!(
            "{x} let y = load_be16(pkt, 2u);
             if x > 50u || y > 60u {{ return XDP_DROP; }}
             let p = load_u8(pkt, x) + load_u8(pkt, y);"
        )),
        Bytes(61)
    );
    assert_eq!(reads(&format!("{x} if load_u8(pkt, 0u) == 3u && x < 9u {{ let p = load_u8(pkt, x); }}")), Bytes(9));
    // A false `&&` implies nothing about its operands.
    assert_eq!(
        reads(&format!("{x} if load_u8(pkt, 0u) == 3u && x > 50u {{ return XDP_DROP; }} let p = load_u8(pkt, x);")),
        Bytes(65_536)
    );
    // A guard on a sum restricts its operand.
    assert_eq!(reads(&format!("{x} if x + 4u > 60u {{ return XDP_DROP; }} let p = load_u8(pkt, x);")), Bytes(57));
    // x - 0x45 <= 10 means 0x45..=0x4f.
    assert_eq!(reads(&format!("{x} if x - 0x45u > 10u {{ return XDP_DROP; }} let p = load_u8(pkt, x);")), Bytes(0x50));
    // Not if the sum may wrap: x = -4 passes the guard as well.
    assert_eq!(
        reads("let x = load_be32(pkt, 0u); if x + 4u > 60u { return XDP_DROP; } let p = load_u8(pkt, x);"),
        WholePacket
    );
}

#[test]
fn switches_bound_their_selector() {
    let x = "let x = load_be16(pkt, 0u);";
    assert_eq!(
        reads(&format!("{x} switch x {{ case 3u, 9u: {{ let p = load_u8(pkt, x); }} default: {{ }} }}")),
        Bytes(10)
    );
    assert_eq!(
        reads(&format!("{x} switch x {{ case 3u: {{ }} default: {{ let p = load_u8(pkt, x); }} }}")),
        Bytes(65_536)
    );
    // An impossible case is not analysed.
    assert_eq!(reads("switch load_u8(pkt, 0u) { case 300u: { let p = load_u8(pkt, 99u); } default: { } }"), Bytes(1));
    // `break` leaves the switch with the values assigned before it.
    assert_eq!(
        reads(&format!(
            "{x} var off = 4u;
             switch x {{
                 case 1u: {{ off = 80u; if load_u8(pkt, 5u) == 1u {{ break; }} off = 90u; }}
                 case 2u: {{ off = 20u; }}
                 default: {{ }}
             }}
             let p = load_u8(pkt, off);"
        )),
        Bytes(91)
    );
}

#[test]
fn variables_are_tracked_flow_sensitively() {
    // The most common pattern: a base offset that a VLAN tag moves.
    assert_eq!(
        reads(
            "var at = 14u;
             if load_be16(pkt, 12u) == ETH_P_8021Q { at = at + 4u; }
             if load_be16(pkt, at - 2u) == ETH_P_8021Q { at += 4u; }
             let p = load_u8(pkt, at);"
        ),
        Bytes(23)
    );
    // A store after the load does not affect it.
    assert_eq!(reads("var at = 3u; let p = load_u8(pkt, at); at = 100u;"), Bytes(4));
    // A guard on the new value does not restrict the old one.
    assert_eq!(
        reads(
            "var x = load_be16(pkt, 0u); let old = x; x = load_u8(pkt, 1u);
             if x < 5u { let p = load_u8(pkt, old); }"
        ),
        Bytes(65_536)
    );
    // A guard restricts the variable until the next store.
    assert_eq!(reads("var x = load_be16(pkt, 0u); if x < 5u { let p = load_u8(pkt, x); }"), Bytes(5));
    assert_eq!(
        reads("var x = load_be16(pkt, 0u); if x < 5u { x = load_u8(pkt, 1u); let p = load_u8(pkt, x); }"),
        Bytes(256)
    );
    // A variable of an inner block that has the same name is another variable.
    assert_eq!(reads("var at = 3u; { var at = 70u; at = at + 1u; } let p = load_u8(pkt, at);"), Bytes(4));
    // Structures and vectors are tracked by component, arrays by any element.
    assert_eq!(
        facts(
            "struct At { l3: u32, l4: u32 }
             fn find(pkt: u32) -> At { return At(14u, 14u + (load_u8(pkt, 14u) & 15u) * 4u); }
             fn xdp_filter(pkt: u32) -> u32 {
                 let at = find(pkt);
                 var v = vec2<u32>(at.l3, 2u);
                 v.y = 9u;
                 return load_u8(pkt, at.l4) + load_u8(pkt, v.x + v.y);
             }"
        )
        .reads,
        Bytes(75)
    );
    assert_eq!(
        reads(
            "var a: array<u32, 4>; a[1] = 30u; a[load_u8(pkt, 0u) & 3u] = 40u;
             let p = load_u8(pkt, a[load_u8(pkt, 1u)]);"
        ),
        Bytes(41)
    );
}

/// Conditions restrict the value that was compared, not what the variable holds later.
#[test]
fn conditions_do_not_outlive_the_compared_value() {
    // The variable has been stored to since.
    assert_eq!(
        reads(
            "var x = load_be16(pkt, 0u); let old = x; x = load_be16(pkt, 2u);
             if old < 5u { let p = load_u8(pkt, x); }"
        ),
        Bytes(65_536)
    );
    // In the next iteration, x is another value.
    assert_eq!(
        reads(
            "var ok = false;
             for (var i = 0u; i < 3u; i++) {
                 let x = load_be16(pkt, i);
                 if ok { let p = load_u8(pkt, x); }
                 ok = x < 5u;
             }"
        ),
        Bytes(65_536)
    );
    // In the next call, x is another value.
    assert_eq!(
        facts(
            "var<private> ok: bool;
             fn look(pkt: u32, at: u32) -> u32 {
                 let x = load_be16(pkt, at);
                 var found = 0u;
                 if ok { found = load_u8(pkt, x); }
                 ok = x < 5u;
                 return found;
             }
             fn xdp_filter(pkt: u32) -> u32 { return look(pkt, 0u) + look(pkt, 2u); }"
        )
        .reads,
        Bytes(65_536)
    );
    // On one branch, the bool is true for another reason.
    assert_eq!(
        reads(
            "let x = load_be16(pkt, 0u);
             var small = x < 5u;
             if load_u8(pkt, 4u) == 1u { small = true; }
             if small { let p = load_u8(pkt, x); }"
        ),
        Bytes(65_536)
    );
}

#[test]
fn helpers_are_analysed_per_call_site() {
    // Each call has its own base: 20 + 1 and 40 + 1.
    let two = "fn at(pkt: u32, base: u32) -> u32 { return load_u8(pkt, base) & 7u; }
               fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 10u + at(pkt, 20u)) + at(pkt, 40u); }";
    assert_eq!(facts(two).reads, Bytes(41));
    // Results are per call: the second is at most 3, so 100 + 3 + 1.
    let own = "fn cut(x: u32, to: u32) -> u32 { return min(x, to); }
               fn xdp_filter(pkt: u32) -> u32 {
                   let wide = cut(load_be32(pkt, 0u), 5000u);
                   return load_u8(pkt, 100u + cut(wide, 3u));
               }";
    assert_eq!(facts(own).reads, Bytes(104));
    // Either returned value.
    let either = "fn at(x: u32) -> u32 { if x == 1u { return 90u; } return 14u; }
                  fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, at(load_u8(pkt, 0u))); }";
    assert_eq!(facts(either).reads, Bytes(91));
    // Through a pointer argument.
    let pointer = "fn move_on(at: ptr<function, u32>, by: u32) { *at = *at + by; }
                   fn xdp_filter(pkt: u32) -> u32 {
                       var at = 14u; move_on(&at, 20u); move_on(&at, 8u);
                       return load_u8(pkt, at);
                   }";
    assert_eq!(facts(pointer).reads, Bytes(43));
    // Private variables keep what a helper stored.
    let private = "var<private> at: u32 = 2u;
                   fn put(x: u32) { if x > 3u { at = 60u; return; } at = 50u; }
                   fn xdp_filter(pkt: u32) -> u32 {
                       let early = load_u8(pkt, at);
                       put(early);
                       return load_u8(pkt, at);
                   }";
    assert_eq!(facts(private).reads, Bytes(61));
    // A helper that returns early, with what it stored before.
    let early = "var<private> at: u32;
                 fn put(x: u32) -> bool { at = 200u; if x == 0u { return false; } at = 5u; return true; }
                 fn xdp_filter(pkt: u32) -> u32 {
                     if put(load_u8(pkt, 0u)) { return load_u8(pkt, at); }
                     return XDP_PASS;
                 }";
    assert_eq!(facts(early).reads, Bytes(201));
    // A helper that is not called reads nothing.
    let idle = "fn idle(pkt: u32) -> u32 { return load_u8(pkt, 500u); }
                fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }";
    assert_eq!(facts(idle).reads, Bytes(1));
    // A helper's name does not make it a prelude function.
    let named = "fn load_u9(pkt: u32, off: u32) -> u32 { return load_u8(pkt, off + 40u); }
                 fn xdp_filter(pkt: u32) -> u32 { return load_u9(pkt, 0u); }";
    assert_eq!(facts(named).reads, Bytes(41));
}

#[test]
fn loop_counters_bound_offsets() {
    // 0..=7
    assert_eq!(reads("for (var i = 0u; i < 8u; i++) { let p = load_u8(pkt, i); }"), Bytes(8));
    assert_eq!(reads("for (var i = 0; i < 8; i++) { let p = load_u8(pkt, u32(i)); }"), Bytes(8));
    // 4, 8, .. 36, four bytes each
    assert_eq!(reads("for (var i = 4u; i <= 36u; i += 4u) { let p = load_be32(pkt, i); }"), Bytes(40));
    assert_eq!(reads("for (var i = 20u; i > 0u; i--) { let p = load_u8(pkt, i); }"), Bytes(21));
    assert_eq!(reads("for (var i = 10u; i != 20u; i++) { let p = load_u8(pkt, i); }"), Bytes(20));
    // The counter moves in an iteration that is cut short by `continue`.
    assert_eq!(
        reads("for (var i = 0u; i < 8u; i++) { if load_u8(pkt, i) == 0u { continue; } let p = load_u8(pkt, i + 8u); }"),
        Bytes(16)
    );
    // Nested loops.
    assert_eq!(
        reads("for (var i = 0u; i < 4u; i++) { for (var j = 0u; j < 4u; j++) { let p = load_u8(pkt, i * 4u + j); } }"),
        Bytes(16)
    );
    // An offset accumulated over iterations has no bound.
    assert_eq!(reads("var at = 14u; for (var i = 0u; i < 8u; i++) { at = at + load_u8(pkt, at); }"), WholePacket);
    // The loop's own condition bounds the offset.
    assert_eq!(reads("var at = 14u; while at < 100u { at = at + load_u8(pkt, at) + 1u; }"), Bytes(100));
    // The condition is checked before the offset moves: 99 + 256.
    assert_eq!(
        reads("var at = 14u; while at < 100u { at = at + load_u8(pkt, at) + 1u; let p = load_u8(pkt, at); }"),
        Bytes(356)
    );
    // An offset that is replaced, not accumulated.
    assert_eq!(reads("var at = 14u; loop { let p = load_u8(pkt, at); if p == 0u { break; } at = p; }"), Bytes(256));
    // Replaced in an inner loop.
    assert_eq!(
        reads(
            "var at = 14u;
             for (var i = 0u; i < 4u; i++) {
                 for (var j = 0u; j < 4u; j++) { at = load_u8(pkt, j); }
                 let p = load_u8(pkt, at);
             }"
        ),
        Bytes(256)
    );
    // A step that misses its `!=` wraps around.
    assert_eq!(reads("for (var i = 1u; i != 20u; i += 2u) { let p = load_u8(pkt, i); }"), WholePacket);
    // A helper moves a private variable in every iteration.
    assert_eq!(
        facts(
            "var<private> at: u32;
             fn step() { at += 2u; }
             fn xdp_filter(pkt: u32) -> u32 {
                 for (var i = 0u; i < 3u; i++) { step(); }
                 return load_u8(pkt, at);
             }"
        )
        .reads,
        WholePacket
    );
    // Conditions of a bool do not outlive the iteration.
    assert_eq!(
        reads(
            "var ok = true; var x = load_be16(pkt, 0u);
             for (var i = 0u; i < 3u; i++) {
                 if ok { let p = load_u8(pkt, x); }
                 ok = x < 5u;
                 x = load_be16(pkt, 2u);
             }"
        ),
        Bytes(65_536)
    );
}

#[test]
fn variables_after_a_loop_join_its_exits() {
    assert_eq!(
        reads(
            "var at = 3u;
             for (var i = 0u; i < 8u; i++) { if load_u8(pkt, i) == 9u { at = 40u + i; break; } }
             let p = load_u8(pkt, at);"
        ),
        Bytes(48)
    );
    assert_eq!(reads("var i = 0u; loop { i++; if i >= 9u { break; } } let p = load_u8(pkt, i);"), Bytes(10));
    assert_eq!(reads("var i = 0u; loop { continuing { i++; break if i >= 9u; } } let p = load_u8(pkt, i);"), Bytes(10));
}

#[test]
fn adjust_head_shifts_the_window() {
    // 4 bytes cut off: what is now at 0..2 was at 4..6 or, if the call failed, at 0..2.
    let pop = body("let ok = adjust_head(pkt, 4); let p = load_be16(pkt, 0u);");
    assert!(pop.changes_length);
    assert_eq!((pop.reads, pop.writes), (Bytes(6), Nothing));
    assert_eq!(reads("let p = load_be16(pkt, 0u); let ok = adjust_head(pkt, 4);"), Bytes(2));
    assert_eq!(reads("if adjust_head(pkt, 4) { if adjust_head(pkt, 10) { let p = load_u8(pkt, 0u); } }"), Bytes(15));
    // 4 bytes added: 0..4 are new, and 4..8 was 0..4 unless the call failed.
    assert_eq!(reads("let ok = adjust_head(pkt, -4); let p = load_be32(pkt, 4u);"), Bytes(8));
    // By an unknown amount.
    assert_eq!(reads("let ok = adjust_head(pkt, i32(load_be32(pkt, 0u))); let p = load_u8(pkt, 0u);"), WholePacket);
    // In a loop.
    assert_eq!(reads("while load_u8(pkt, 0u) == 1u { let ok = adjust_head(pkt, 1); }"), WholePacket);
    // Bytes that are added, again or for the first time, are cleared.
    let back = body("if adjust_head(pkt, 6) { let ok = adjust_head(pkt, -4); }");
    assert_eq!((back.reads, back.writes), (Nothing, WholePacket));
    assert_eq!(body("let ok = adjust_head(pkt, -4);").writes, WholePacket);
    assert_eq!(body("let ok = adjust_tail(pkt, -4) && adjust_tail(pkt, 4);").writes, WholePacket);
    assert_eq!(body("let ok = adjust_tail(pkt, -4);").writes, Nothing);
    // Stores are relative to the moved head as well.
    assert_eq!(body("let ok = adjust_head(pkt, 4); store_u8(pkt, 1u, 0u);").writes, Bytes(6));
}

#[test]
fn stores_bound_the_write_window() {
    assert_eq!(body("").writes, Nothing);
    assert!(!body("let p = load_u8(pkt, 0u);").rewrites());
    let ttl = body("let ttl = load_u8(pkt, 22u); if ttl > 1u { store_u8(pkt, 22u, ttl - 1u); }");
    assert_eq!((ttl.reads, ttl.writes, ttl.changes_length), (Bytes(23), Bytes(23), false));
    assert_eq!(body("store_le32(pkt, load_u8(pkt, 0u), 1u);").writes, Bytes(259));
    assert_eq!(body("store_be16(pkt, load_be32(pkt, 0u), 1u);").writes, WholePacket);
    // Unreachable stores.
    assert_eq!(body("if false { store_u8(pkt, 0u, 1u); }").writes, Nothing);
    assert_eq!(body("if load_u8(pkt, 0u) > 255u { store_u8(pkt, 0u, 1u); }").writes, Nothing);
}

#[test]
fn windows_are_clamped_to_the_packet() {
    assert_eq!(Nothing.bytes_in(60), 0);
    assert_eq!((Bytes(54).bytes_in(60), Bytes(54).bytes_in(20)), (54, 20));
    assert_eq!(WholePacket.bytes_in(60), 60);
}
