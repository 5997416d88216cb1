//! Programs that nobody would write.

use super::arbitrary::{any, packets};
use super::*;

fn rounds(seed: u64, rounds: u32, most: u32, back: bool) {
    let mut random = Random(seed);
    let (mut taken, mut all) = (0, 0);
    for _ in 0..rounds {
        let count = 1 + random.below(most);
        let code = any(&mut random, count, back);
        let packets = packets(&mut random, 40);
        taken += check_packets(&code, &packets);
        all += packets.len();
    }
    // Neither all nor none.
    assert!(taken * 20 > all && taken * 4 < all * 3, "{taken} of {all}");
}

#[test]
fn forward_programs_agree_with_the_reference() {
    rounds(1, 500, 12, false);
    rounds(2, 150, 60, false);
}

#[test]
fn programs_with_loops_agree_with_the_reference() {
    rounds(3, 200, 30, true);
}
