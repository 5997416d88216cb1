//! Iteration bounds: the number of times that loop bodies are entered, counting the entry in which
//! the loop's own condition ends it.

use super::{body, facts};

fn max_iterations(text: &str) -> Option<u32> {
    body(text).max_iterations
}

#[test]
fn counted_loops_are_bounded() {
    assert_eq!(max_iterations(""), Some(0));
    // i = 0..8, and the entry that ends the loop
    assert_eq!(max_iterations("for (var i = 0u; i < 8u; i++) { }"), Some(9));
    assert_eq!(max_iterations("for (var i = 0u; i <= 8u; i++) { }"), Some(10));
    assert_eq!(max_iterations("for (var i = 3u; i < 8u; i += 2u) { }"), Some(4));
    assert_eq!(max_iterations("for (var i = 8u; i > 0u; i--) { }"), Some(9));
    assert_eq!(max_iterations("for (var i = 8u; i > 3u; i -= 2u) { }"), Some(4));
    assert_eq!(max_iterations("for (var i = 0; i < 8; i++) { }"), Some(9));
    assert_eq!(max_iterations("for (var i = -3; i < 2; i++) { }"), Some(6));
    assert_eq!(max_iterations("for (var i = 8; i >= 0; i = i - 1) { }"), Some(10));
    assert_eq!(max_iterations("for (var i = 8; i >= 0; i = i + -1) { }"), Some(10));
    assert_eq!(max_iterations("for (var i = 0u; i != 8u; i++) { }"), Some(9));
    assert_eq!(max_iterations("for (var i = 0u; i != 8u; i += 4u) { }"), Some(3));
    assert_eq!(max_iterations("for (var i = 9u; 1u != i; i -= 4u) { }"), Some(3));
    assert_eq!(max_iterations("var i = 0u; while i < 8u { i = 1u + i; }"), Some(9));
    assert_eq!(max_iterations("var i = 0u; loop { if i == 8u { break; } i++; }"), Some(9));
    assert_eq!(max_iterations("var i = 0u; loop { i++; if i >= 8u { break; } }"), Some(8));
    assert_eq!(max_iterations("var i = 0u; loop { continuing { i++; break if i >= 8u; } }"), Some(8));
    assert_eq!(max_iterations("loop { break; }"), Some(1));
    // Bounded by a packet byte: 255 iterations and the last.
    assert_eq!(max_iterations("for (var i = 0u; i < load_u8(pkt, 0u); i++) { }"), Some(256));
    assert_eq!(max_iterations("let n = load_be16(pkt, 0u); for (var i = 0u; i < n; i++) { }"), Some(65_536));
    // Start and step taken from the packet.
    assert_eq!(max_iterations("for (var i = load_u8(pkt, 0u); i < 8u; i++) { }"), Some(9));
    assert_eq!(max_iterations("for (var i = 0u; i < 100u; i += 10u + load_u8(pkt, 0u)) { }"), Some(11));
    // Two conditions: the countable one bounds the loop.
    assert_eq!(max_iterations("for (var i = 0u; i < 8u && load_u8(pkt, i) != 6u; i++) { }"), Some(9));
    // A `continue` still reaches the step.
    assert_eq!(max_iterations("for (var i = 0u; i < 8u; i++) { if load_u8(pkt, i) == 0u { continue; } }"), Some(9));
}

#[test]
fn iterations_add_up_over_nests_calls_and_sequences() {
    // 4 iterations of 1 + 5, and the last
    let nest = "for (var i = 0u; i < 4u; i++) { for (var j = 0u; j < 4u; j++) { } }";
    assert_eq!(max_iterations(nest), Some(25));
    // The inner loop is bounded by the largest i, 3, in every iteration.
    assert_eq!(max_iterations("for (var i = 0u; i < 4u; i++) { for (var j = 0u; j < i; j++) { } }"), Some(21));
    assert_eq!(max_iterations("for (var i = 0u; i < 4u; i++) { } for (var i = 0u; i < 2u; i++) { }"), Some(8));
    // Only one of the two loops runs.
    assert_eq!(
        max_iterations(
            "if load_u8(pkt, 0u) == 0u { for (var i = 0u; i < 4u; i++) { } } else { for (var i = 0u; i < 9u; i++) { } }"
        ),
        Some(10)
    );
    // The first loop returns, so only one of the two runs.
    assert_eq!(
        max_iterations(
            "if load_u8(pkt, 0u) == 0u { for (var i = 0u; i < 4u; i++) { } return XDP_DROP; }
             for (var i = 0u; i < 9u; i++) { }"
        ),
        Some(10)
    );
    assert_eq!(
        max_iterations("switch load_u8(pkt, 0u) { case 1u: { for (var i = 0u; i < 4u; i++) { } } default: { } }"),
        Some(5)
    );
    // Exit in the middle, after an inner loop: 3 complete iterations of 1 + 3, and 1 + 3.
    assert_eq!(
        max_iterations("var i = 0u; loop { for (var j = 0u; j < 2u; j++) { } if i >= 3u { break; } i++; }"),
        Some(16)
    );
    // An inner loop before a `continue`: 3 iterations of 1 + 6, and the last.
    assert_eq!(
        max_iterations(
            "for (var i = 0u; i < 3u; i++) {
                 if load_u8(pkt, i) == 1u { for (var j = 0u; j < 5u; j++) { } continue; }
             }"
        ),
        Some(22)
    );
    // An inner loop before a `return`.
    assert_eq!(
        max_iterations(
            "for (var i = 0u; i < 3u; i++) {
                 for (var j = 0u; j < 2u; j++) { }
                 if load_u8(pkt, i) == 0u { return XDP_DROP; }
             }"
        ),
        Some(16)
    );
    // Each call is bounded by its own argument: 6 + 3 iterations.
    assert_eq!(
        facts(
            "fn turn(n: u32) -> u32 { var s = 0u; for (var i = 0u; i < n; i++) { s += i; } return s; }
             fn xdp_filter(pkt: u32) -> u32 { return turn(5u) + turn(2u); }"
        )
        .max_iterations,
        Some(9)
    );
    // 3 iterations of 1 + (4 + 1), and the last
    assert_eq!(
        facts(
            "fn turn() { for (var i = 0u; i < 4u; i++) { } }
             fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < 3u; i++) { turn(); } return 1u; }"
        )
        .max_iterations,
        Some(19)
    );
    // A helper that returns from its loop: its iterations count in the caller.
    assert_eq!(
        facts(
            "fn find(pkt: u32) -> u32 {
                 for (var i = 0u; i < 4u; i++) { if load_u8(pkt, i) == 1u { return i; } }
                 return 9u;
             }
             fn xdp_filter(pkt: u32) -> u32 { return find(pkt) + find(pkt); }"
        )
        .max_iterations,
        Some(10)
    );
}

#[test]
fn loops_without_a_provable_bound_have_none() {
    assert_eq!(max_iterations("loop { }"), None);
    assert_eq!(max_iterations("while load_u8(pkt, 0u) != 0u { }"), None);
    // 2^32 iterations exceed a `u32`.
    assert_eq!(max_iterations("for (var i = 0u; i <= 0xffffffffu; i++) { }"), None);
    assert_eq!(max_iterations("for (var i = 0u; i < load_be32(pkt, 0u); i += 2u) { }"), None);
    // Exactly 2^32 - 1 iterations, and one more.
    assert_eq!(max_iterations("for (var i = 0u; i < load_be32(pkt, 0u); i++) { }"), None);
    // i >= 0 is always true.
    assert_eq!(max_iterations("for (var i = 8u; i >= 0u; i--) { }"), None);
    // The step misses the end.
    assert_eq!(max_iterations("for (var i = 1u; i != 8u; i += 2u) { }"), None);
    assert_eq!(max_iterations("for (var i = 9u; i != 8u; i++) { }"), None);
    // The step may be 0.
    assert_eq!(max_iterations("for (var i = 0u; i < 8u; i += load_u8(pkt, i)) { }"), None);
    // The step wraps.
    assert_eq!(max_iterations("for (var i = 0u; i < 0xfffffff0u; i += 0x20u) { }"), None);
    // The body resets the counter.
    assert_eq!(max_iterations("for (var i = 0u; i < 8u; i++) { if load_u8(pkt, i) == 1u { i = 0u; } }"), None);
    // The body resets the counter through a pointer.
    assert_eq!(
        facts(
            "fn back(i: ptr<function, u32>) { *i = 0u; }
             fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < 8u; i++) { back(&i); } return 1u; }"
        )
        .max_iterations,
        None
    );
    // The step is conditional.
    assert_eq!(max_iterations("var i = 0u; while i < 8u { if load_u8(pkt, 0u) == 1u { i++; } }"), None);
    assert_eq!(max_iterations("var i = 0u; while i < 8u { if load_u8(pkt, 0u) == 1u { continue; } i++; }"), None);
    // The step starts from the value before the loop.
    assert_eq!(max_iterations("var i = 0u; let k = i; while i < 8u { i = k + 1u; }"), None);
    // The exit test may be skipped.
    assert_eq!(max_iterations("var i = 0u; loop { if load_u8(pkt, 0u) == 1u { if i == 8u { break; } } i++; }"), None);
    assert_eq!(
        max_iterations(
            "var i = 0u; loop { if load_u8(pkt, 0u) == 1u { continue; } if i == 8u { break; } continuing { i++; } }"
        ),
        None
    );
    // The exit test reads a value loaded before the loop.
    assert_eq!(max_iterations("var i = 0u; let k = i; loop { if k == 8u { break; } i++; }"), None);
    // A helper resets a private variable.
    assert_eq!(
        facts(
            "var<private> i: u32;
             fn back() { i = 0u; }
             fn xdp_filter(pkt: u32) -> u32 { for (i = 0u; i < 8u; i++) { back(); } return 1u; }"
        )
        .max_iterations,
        None
    );
    // An endless loop in a helper that only one path calls.
    assert_eq!(
        facts(
            "fn hang() { loop { } } fn xdp_filter(pkt: u32) -> u32 { if load_u8(pkt, 0u) == 1u { hang(); } return 1u; }"
        )
        .max_iterations,
        None
    );
}
