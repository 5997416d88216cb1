//! How often loops go round: how often their bodies begin, the round included in which a loop's own
//! condition ends it.

use super::{body, facts};

fn most(text: &str) -> Option<u32> {
    body(text).max_iterations
}

#[test]
fn counted_loops() {
    assert_eq!(most(""), Some(0));
    // i = 0..8, and the round that ends it
    assert_eq!(most("for (var i = 0u; i < 8u; i++) { }"), Some(9));
    assert_eq!(most("for (var i = 0u; i <= 8u; i++) { }"), Some(10));
    assert_eq!(most("for (var i = 3u; i < 8u; i += 2u) { }"), Some(4));
    assert_eq!(most("for (var i = 8u; i > 0u; i--) { }"), Some(9));
    assert_eq!(most("for (var i = 8u; i > 3u; i -= 2u) { }"), Some(4));
    assert_eq!(most("for (var i = 0; i < 8; i++) { }"), Some(9));
    assert_eq!(most("for (var i = -3; i < 2; i++) { }"), Some(6));
    assert_eq!(most("for (var i = 8; i >= 0; i = i - 1) { }"), Some(10));
    assert_eq!(most("for (var i = 8; i >= 0; i = i + -1) { }"), Some(10));
    assert_eq!(most("for (var i = 0u; i != 8u; i++) { }"), Some(9));
    assert_eq!(most("for (var i = 0u; i != 8u; i += 4u) { }"), Some(3));
    assert_eq!(most("for (var i = 9u; 1u != i; i -= 4u) { }"), Some(3));
    assert_eq!(most("var i = 0u; while i < 8u { i = 1u + i; }"), Some(9));
    assert_eq!(most("var i = 0u; loop { if i == 8u { break; } i++; }"), Some(9));
    assert_eq!(most("var i = 0u; loop { i++; if i >= 8u { break; } }"), Some(8));
    assert_eq!(most("var i = 0u; loop { continuing { i++; break if i >= 8u; } }"), Some(8));
    assert_eq!(most("loop { break; }"), Some(1));
    // up to what the packet says: 255 rounds and the last
    assert_eq!(most("for (var i = 0u; i < load_u8(pkt, 0u); i++) { }"), Some(256));
    assert_eq!(most("let n = load_be16(pkt, 0u); for (var i = 0u; i < n; i++) { }"), Some(65_536));
    // from what the packet says, and by it
    assert_eq!(most("for (var i = load_u8(pkt, 0u); i < 8u; i++) { }"), Some(9));
    assert_eq!(most("for (var i = 0u; i < 100u; i += 10u + load_u8(pkt, 0u)) { }"), Some(11));
    // two conditions: the countable one counts
    assert_eq!(most("for (var i = 0u; i < 8u && load_u8(pkt, i) != 6u; i++) { }"), Some(9));
    // a `continue` comes to the count
    assert_eq!(most("for (var i = 0u; i < 8u; i++) { if load_u8(pkt, i) == 0u { continue; } }"), Some(9));
}

#[test]
fn nests_calls_and_sequences() {
    // 4 rounds of 1 + 5, and the last
    let nest = "for (var i = 0u; i < 4u; i++) { for (var j = 0u; j < 4u; j++) { } }";
    assert_eq!(most(nest), Some(25));
    // an inner loop that ends earlier is no shorter for the analysis: i is at most 3
    assert_eq!(most("for (var i = 0u; i < 4u; i++) { for (var j = 0u; j < i; j++) { } }"), Some(21));
    assert_eq!(most("for (var i = 0u; i < 4u; i++) { } for (var i = 0u; i < 2u; i++) { }"), Some(8));
    // one or the other
    assert_eq!(
        most(
            "if load_u8(pkt, 0u) == 0u { for (var i = 0u; i < 4u; i++) { } } else { for (var i = 0u; i < 9u; i++) { } }"
        ),
        Some(10)
    );
    // the first returns: never both
    assert_eq!(
        most(
            "if load_u8(pkt, 0u) == 0u { for (var i = 0u; i < 4u; i++) { } return XDP_DROP; }
             for (var i = 0u; i < 9u; i++) { }"
        ),
        Some(10)
    );
    assert_eq!(
        most("switch load_u8(pkt, 0u) { case 1u: { for (var i = 0u; i < 4u; i++) { } } default: { } }"),
        Some(5)
    );
    // a loop that is left in its middle, after an inner loop: 3 full rounds of 1 + 3, and 1 + 3
    assert_eq!(most("var i = 0u; loop { for (var j = 0u; j < 2u; j++) { } if i >= 3u { break; } i++; }"), Some(16));
    // an inner loop before a `continue`: 3 rounds of 1 + 6, and the last
    assert_eq!(
        most(
            "for (var i = 0u; i < 3u; i++) {
                 if load_u8(pkt, i) == 1u { for (var j = 0u; j < 5u; j++) { } continue; }
             }"
        ),
        Some(22)
    );
    // or by a return
    assert_eq!(
        most(
            "for (var i = 0u; i < 3u; i++) {
                 for (var j = 0u; j < 2u; j++) { }
                 if load_u8(pkt, i) == 0u { return XDP_DROP; }
             }"
        ),
        Some(16)
    );
    // each call by what it is called with: 6 + 3 rounds
    assert_eq!(
        facts(
            "fn turn(n: u32) -> u32 { var s = 0u; for (var i = 0u; i < n; i++) { s += i; } return s; }
             fn xdp_filter(pkt: u32) -> u32 { return turn(5u) + turn(2u); }"
        )
        .max_iterations,
        Some(9)
    );
    // 3 rounds of 1 + (4 + 1), and the last
    assert_eq!(
        facts(
            "fn turn() { for (var i = 0u; i < 4u; i++) { } }
             fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < 3u; i++) { turn(); } return 1u; }"
        )
        .max_iterations,
        Some(19)
    );
    // the helper that returns from its loop: its rounds count for what comes behind the call
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
fn loops_without_a_bound() {
    assert_eq!(most("loop { }"), None);
    assert_eq!(most("while load_u8(pkt, 0u) != 0u { }"), None);
    // 2^32 rounds are more than a number of rounds
    assert_eq!(most("for (var i = 0u; i <= 0xffffffffu; i++) { }"), None);
    assert_eq!(most("for (var i = 0u; i < load_be32(pkt, 0u); i += 2u) { }"), None);
    // exactly 2^32 - 1 rounds, and one
    assert_eq!(most("for (var i = 0u; i < load_be32(pkt, 0u); i++) { }"), None);
    // i >= 0 is always true
    assert_eq!(most("for (var i = 8u; i >= 0u; i--) { }"), None);
    // misses its end
    assert_eq!(most("for (var i = 1u; i != 8u; i += 2u) { }"), None);
    assert_eq!(most("for (var i = 9u; i != 8u; i++) { }"), None);
    // moves by what may be nothing
    assert_eq!(most("for (var i = 0u; i < 8u; i += load_u8(pkt, i)) { }"), None);
    // moves past the end of numbers
    assert_eq!(most("for (var i = 0u; i < 0xfffffff0u; i += 0x20u) { }"), None);
    // set back in the body
    assert_eq!(most("for (var i = 0u; i < 8u; i++) { if load_u8(pkt, i) == 1u { i = 0u; } }"), None);
    // or through a pointer
    assert_eq!(
        facts(
            "fn back(i: ptr<function, u32>) { *i = 0u; }
             fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < 8u; i++) { back(&i); } return 1u; }"
        )
        .max_iterations,
        None
    );
    // moves only sometimes
    assert_eq!(most("var i = 0u; while i < 8u { if load_u8(pkt, 0u) == 1u { i++; } }"), None);
    assert_eq!(most("var i = 0u; while i < 8u { if load_u8(pkt, 0u) == 1u { continue; } i++; }"), None);
    // moves from where it was before the loop
    assert_eq!(most("var i = 0u; let k = i; while i < 8u { i = k + 1u; }"), None);
    // the test for the end may be jumped over
    assert_eq!(most("var i = 0u; loop { if load_u8(pkt, 0u) == 1u { if i == 8u { break; } } i++; }"), None);
    assert_eq!(
        most("var i = 0u; loop { if load_u8(pkt, 0u) == 1u { continue; } if i == 8u { break; } continuing { i++; } }"),
        None
    );
    // tested against what was loaded before the loop
    assert_eq!(most("var i = 0u; let k = i; loop { if k == 8u { break; } i++; }"), None);
    // a private variable that a helper sets back
    assert_eq!(
        facts(
            "var<private> i: u32;
             fn back() { i = 0u; }
             fn xdp_filter(pkt: u32) -> u32 { for (i = 0u; i < 8u; i++) { back(); } return 1u; }"
        )
        .max_iterations,
        None
    );
    // an endless loop in a helper, and one that every path ends in
    assert_eq!(
        facts(
            "fn hang() { loop { } } fn xdp_filter(pkt: u32) -> u32 { if load_u8(pkt, 0u) == 1u { hang(); } return 1u; }"
        )
        .max_iterations,
        None
    );
}
