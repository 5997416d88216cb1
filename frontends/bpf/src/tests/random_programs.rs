//! Random programs, compared with the reference.

use super::arbitrary::{self, packets};
use super::*;

fn compare_random_programs(seed: u64, rounds: u32, max_length: u32, with_loops: bool) {
    let mut random = Random(seed);
    let (mut accepted, mut all) = (0, 0);
    for _ in 0..rounds {
        let count = 1 + random.below(max_length);
        let code = arbitrary::program(&mut random, count, with_loops);
        let packets = packets(&mut random, 40);
        accepted += check_packets(&code, &packets);
        all += packets.len();
    }
    // Neither trivial outcome dominates, so the comparison means something.
    assert!(accepted * 20 > all && accepted * 4 < all * 3, "{accepted} of {all}");
}

#[test]
fn forward_programs_agree_with_the_reference() {
    compare_random_programs(1, 500, 12, false);
    compare_random_programs(2, 150, 60, false);
}

#[test]
fn programs_with_loops_agree_with_the_reference() {
    compare_random_programs(3, 200, 30, true);
}
