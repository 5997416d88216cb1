//! Filters traced to lane IR: control flow in every combination agrees with the reference
//! interpreter, bounds checks exist exactly if they are needed, and filters that are too large are
//! refused.

mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::program_with;
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::Metadata;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::vector::LaneProgram;

/// Little, so that loops run out of it.
const FUEL: u32 = 40;

fn program(text: &str) -> Arc<Program> {
    program_with(text, &ProgramOptions::default().with_fuel(FUEL))
}

fn traced(text: &str) -> LaneProgram {
    LaneProgram::trace(&program(text)).unwrap_or_else(|reason| panic!("{reason}\n{text}"))
}

/// Bodies of filters over the packet's bytes. They never ask for its length, so all loads are
/// checked.
const BODIES: &[&str] = &[
    // Returns from two loops at once, with a value that depends on both.
    "for (var i = 0u; i < load_u8(pkt, 0u); i++) {
        for (var j = 0u; j < load_u8(pkt, 1u); j++) { if load_u8(pkt, 2u + i + j) == 3u { return redirect(i * 16u + j); } }
    }
    return 2u;",
    // Iterations that continue early and others that leave the loop, with different variables set.
    "var sum = 0u; var last = 7u;
    loop {
        let byte = load_u8(pkt, sum + 3u);
        if byte == 0u { last = 1u; break; }
        if byte == 1u { sum += 2u; continue; }
        if byte == 2u { last = sum; return redirect(sum + 100u); }
        last = byte;
        sum += 1u;
        continuing { last += 1u; break if sum > 9u; }
    }
    return redirect(sum * 256u + last);",
    // From a switch in a loop: fall through, leave the switch, leave the loop, return.
    "var state = 0u;
    for (var i = 0u; i < 12u; i++) {
        switch load_u8(pkt, i) & 7u {
            case 0u, 1u: { state += 1u; if state == 3u { break; } state += 10u; }
            case 2u: { continue; }
            case 3u: { return redirect(state); }
            case 4u: { state = state * 3u; }
            default: { if state > 50u { return 1u; } state += 5u; }
        }
        state += 1000u;
    }
    return redirect(state);",
    // Runs out of fuel in the inner of two loops, after stores that must stay and before one that
    // must not happen.
    "for (var i = 0u; i < 6u; i++) {
        store_u8(pkt, i, 0xeeu);
        for (var j = 0u; j < load_u8(pkt, 7u); j++) { store_u8(pkt, 8u + j % 4u, j); }
    }
    store_u8(pkt, 12u, 0x77u);
    return 3u;",
    // Adjusts the packet's bounds in a loop, depending on bytes read after the adjustment.
    "var moved = 0u;
    while moved < 5u {
        if !adjust_head(pkt, i32(load_u8(pkt, 0u)) - 3i) { break; }
        if load_u8(pkt, 1u) > 4u && !adjust_tail(pkt, i32(load_u8(pkt, 1u)) - 6i) { return redirect(moved); }
        moved += 1u;
        store_u8(pkt, 0u, moved);
    }
    return redirect(pkt_len(pkt) * 8u + moved);",
    // Bytes that the tail loses and regains are zero, though they were loaded before: in all lanes,
    // behind conditions, and in some lanes.
    "let before = load_u8(pkt, 15u);
    let cut = i32(pkt_len(pkt)) - 14i;
    adjust_tail(pkt, -cut);
    adjust_tail(pkt, cut);
    return redirect((before << 8u) | load_u8(pkt, 15u));",
    "let before = load_be16(pkt, 12u) ^ load_u8(pkt, 15u);
    let cut = i32(pkt_len(pkt)) - 14i;
    if cut > 0i && adjust_tail(pkt, -cut) && adjust_tail(pkt, cut) {
        return redirect((before << 8u) ^ load_u8(pkt, 15u) ^ load_be16(pkt, 12u));
    }
    return redirect(before);",
    "let before = load_u8(pkt, 15u);
    if load_u8(pkt, 0u) < 3u {
        let cut = i32(pkt_len(pkt)) - 14i;
        if cut > 0i { adjust_tail(pkt, -cut); adjust_tail(pkt, cut); }
    }
    return redirect((before << 8u) | load_u8(pkt, 15u));",
    // Likewise at the head: the byte at 3 moves to 7, behind new zeros.
    "let before = load_u8(pkt, 3u);
    if load_u8(pkt, 0u) < 3u { adjust_head(pkt, -4i); }
    return redirect((before << 16u) | (load_u8(pkt, 3u) << 8u) | load_u8(pkt, 7u));",
    // Lanes leave depending on a byte loaded in a branch, between stores, which says nothing about
    // the lanes that do not take the branch: out of the filter, and out of a loop.
    "store_u8(pkt, 30u, 9u);
    if load_u8(pkt, 0u) > 1u {
        if load_u8(pkt, 1u) == 1u { return redirect(7u); }
        store_u8(pkt, 2u, 5u);
    }
    return redirect(load_u8(pkt, 2u) + 8u);",
    "var rounds = 0u;
    for (var i = 0u; i < 5u; i++) {
        store_u8(pkt, 20u, i);
        if load_u8(pkt, i) > 1u {
            if (load_u8(pkt, i + 5u) & 1u) == 1u { break; }
            rounds += 16u;
        }
        rounds += 1u;
    }
    return redirect(rounds * 2u + load_u8(pkt, 0u));",
    // An array indexed by packet bytes, in a loop that some lanes skip.
    "var counts = array<u32, 8>();
    for (var i = 0u; i < pkt_len(pkt) / 2u; i++) {
        let byte = load_u8(pkt, i);
        if byte == 5u { continue; }
        counts[byte] += i + 1u;
        if counts[7] > 60u { break; }
    }
    return redirect((counts[load_u8(pkt, 0u)] ^ counts[3]) & 0xffffffu);",
    // A helper that changes its caller's variable on some of its paths.
    "var kept = 5u;
    let found = find(pkt, &kept);
    if found { kept += 100u; }
    return redirect(kept);",
    // A table and a vector with dynamic indices.
    "let v = vec4<u32>(load_u8(pkt, 0u), 20u, load_u8(pkt, 1u), 40u);
    return redirect(TABLE[load_u8(pkt, 2u)] + v[load_u8(pkt, 3u)]);",
];

const HELPERS: &str = "const TABLE = array<u32, 5>(7u, 11u, 13u, 17u, 19u);
fn find(pkt: u32, kept: ptr<function, u32>) -> bool {
    for (var i = 0u; i < 10u; i++) {
        let byte = load_u8(pkt, i);
        if byte == 6u { *kept = i; return true; }
        if byte == 7u { return false; }
        if byte > 3u { *kept += byte; }
    }
    *kept = 9u;
    return false;
}
";

/// Packets of many lengths with small bytes, so that some take each path.
fn packets() -> Vec<Vec<u8>> {
    let mut state = 5_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..400)
        .map(|_| {
            let (length, most) = (next(40), 2 + next(8));
            (0..length).map(|_| next(most) as u8).collect()
        })
        .collect()
}

#[test]
fn control_flow_agrees_with_the_reference_interpreter() {
    let packets = packets();
    let metadata = Metadata::default();
    for body in BODIES {
        let text = format!("{HELPERS}fn xdp_filter(pkt: u32) -> u32 {{\n{body}\n}}");
        let program = program(&text);
        let traced = LaneProgram::trace(&program).unwrap_or_else(|reason| panic!("{reason}\n{text}"));
        let reference = Interpreter::new(&program).unwrap_or_else(|error| panic!("{error}"));
        let want: Vec<_> = packets
            .iter()
            .map(|packet| {
                let outcome = reference.run(packet, &metadata).unwrap_or_else(|error| panic!("{error}"));
                (outcome.verdict.to_return(), outcome.packet)
            })
            .collect();
        let different: HashSet<u32> = want.iter().map(|(verdict, _)| *verdict).collect();
        assert!(different.len() > 1, "all packets take the same path\n{text}");
        for lanes in [1, 4, 3] {
            for unspecified in [0, u32::MAX, 0x1234_5679] {
                for (group, want) in packets.chunks(lanes).zip(want.chunks(lanes)) {
                    let group: Vec<_> = group.iter().map(|packet| (&packet[..], &metadata)).collect();
                    let got = traced.run(&group, &mut [], unspecified);
                    let got = got.unwrap_or_else(|fault| panic!("{fault}\n{text}\n{}", traced.dump()));
                    let got: Vec<_> = got.into_iter().map(|it| (it.verdict, it.packet)).collect();
                    assert_eq!(got, want, "{group:02x?}\n{text}\n{}", traced.dump());
                }
            }
        }
    }
}

/// Number of different comparisons with the packet's length, the filter's own and those of bounds
/// checks.
fn comparisons(body: &str) -> usize {
    let dump = traced(&format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}")).dump();
    let sides = dump.lines().filter_map(|line| line.split_once("= Less")?.1.split_once(", "));
    // A comparison and its negation count once: `length <= 19` and `20 <= length`.
    let bound = |(less, greater): (&str, &str)| match (less, greater) {
        (" length", least) => Some(least.to_owned()),
        ("Equal length", most) => most.parse::<u32>().ok().map(|most| (most + 1).to_string()),
        (least, "length") => least.strip_prefix("Equal ").map(str::to_owned),
        _ => None,
    };
    sides.filter_map(bound).collect::<HashSet<_>>().len()
}

#[test]
fn proven_loads_have_no_bounds_check() {
    // One comparison of the filter's own.
    for body in [
        "if pkt_len(pkt) < 20u { return 1u; } return load_u8(pkt, 19u) & 3u;",
        "if pkt_len(pkt) >= 20u && load_u8(pkt, 19u) == 1u { return 2u; } return 1u;",
        "if !(pkt_len(pkt) >= 20u) || load_be32(pkt, 16u) == 1u { return 2u; } return 1u;",
        "var v = 1u; if pkt_len(pkt) > 19u { v = load_u8(pkt, 19u) & 3u; } return v;",
        "if 20u > pkt_len(pkt) { return 1u; } for (var i = 0u; i < 9u; i++) { if load_u8(pkt, i) == 3u { return 3u; } } return 1u;",
        "if 20u > pkt_len(pkt) { return 1u; } for (var i = 0u; i < load_u8(pkt, 3u); i++) { if load_u8(pkt, i & 15u) == 3u { return 3u; } } return 1u;",
    ] {
        assert_eq!(comparisons(body), 1, "{body}");
    }
    // An offset from the packet that the first comparison does not cover: one more.
    for body in [
        "if pkt_len(pkt) < 20u { return 1u; } let off = (load_u8(pkt, 14u) & 15u) * 4u + 14u;
         if pkt_len(pkt) < off + 20u { return 1u; } return load_be16(pkt, off + 18u) & 3u;",
        "if pkt_len(pkt) < 20u { return 1u; } let off = (load_u8(pkt, 14u) & 15u) * 4u;
         if off + 34u <= pkt_len(pkt) && load_be16(pkt, off + 32u) == 80u { return 2u; } return 1u;",
    ] {
        assert_eq!(comparisons(body), 2, "{body}");
    }
}

#[test]
fn unproven_loads_have_a_bounds_check() {
    for body in [
        // One byte too few, the wrong direction, on one of two paths only, and after the bounds
        // have changed.
        "if pkt_len(pkt) < 20u { return 1u; } return load_be16(pkt, 19u) & 3u;",
        "if pkt_len(pkt) > 24u { return 1u; } return load_u8(pkt, 19u) & 3u;",
        "if pkt_len(pkt) >= 24u || pkt_port(pkt) == 1u { return load_u8(pkt, 19u) & 3u; } return 1u;",
        "var v = 1u; if pkt_len(pkt) > 29u { v = 2u; } return v + (load_u8(pkt, 19u) & 1u);",
    ] {
        assert_eq!(comparisons(body), 2, "{body}");
    }
    // One byte beyond what was compared.
    let body = "if pkt_len(pkt) < 20u { return 1u; } let off = (load_u8(pkt, 14u) & 15u) * 4u + 14u;
        if pkt_len(pkt) < off + 20u { return 1u; } return load_be16(pkt, off + 19u) & 3u;";
    assert_eq!(comparisons(body), 3, "{body}");
    let moves =
        "if pkt_len(pkt) < 20u { return 1u; } if !adjust_head(pkt, 2i) { return 1u; } return load_u8(pkt, 19u) & 3u;";
    let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {moves} }}");
    let metadata = Metadata::default();
    for length in 18..26 {
        let packet = vec![2; length];
        let got =
            traced(&text).run(&[(&packet, &metadata)], &mut [], u32::MAX).unwrap_or_else(|fault| panic!("{fault}"));
        let expected = if length < 20 {
            1
        } else if length - 2 < 20 {
            0
        } else {
            2
        };
        assert_eq!(got[0].verdict, expected, "{length} bytes");
    }
}

#[test]
fn filters_that_lane_ir_cannot_express_are_refused_with_a_reason() {
    let refused = |text: &str| {
        let error = LaneProgram::trace(&program(text)).err();
        error.unwrap_or_else(|| panic!("the filter was not refused\n{text}")).to_string()
    };
    // Each helper calls the previous one twice: 2^14 calls.
    let mut text = "fn f0(pkt: u32, n: u32) -> u32 { return load_u8(pkt, n) * 3u; }\n".to_owned();
    for i in 1..14 {
        let before = i - 1;
        text += &format!(
            "fn f{i}(pkt: u32, n: u32) -> u32 {{ return f{before}(pkt, n) ^ f{before}(pkt, n + {}u); }}\n",
            1 << i
        );
    }
    text += "fn xdp_filter(pkt: u32) -> u32 { return f13(pkt, pkt_len(pkt)) & 3u; }";
    let reason = refused(&text);
    assert!(reason.contains("too large for vector code"), "{reason}");
    let reason = refused("fn xdp_filter(pkt: u32) -> u32 { return u32(f32(pkt_len(pkt)) * 0.5f); }");
    assert_eq!(reason, "floating point");
    let reason = refused("fn xdp_flow(pkt: u32) -> u32 { return 1u; } fn xdp_filter(pkt: u32) -> u32 { return 2u; }");
    assert!(reason.contains("flow"), "{reason}");
}
