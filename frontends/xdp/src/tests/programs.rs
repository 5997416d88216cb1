//! Programs that nobody would write, against the model.

use super::model::arbitrary;
use super::model::compare::{Comparison, compare};
use super::model::shrink::shrink;
use super::model::{Code, Random};

/// The first seed, and how many programs: more where somebody asks for them.
fn asked(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Holds programs to the model: how many were run, and over how many packets.
fn rounds(count: u64, make: impl Fn(&mut Random) -> Code) -> (usize, usize) {
    let (mut taken, mut packets) = (0, 0);
    let mut refused = std::collections::BTreeMap::<String, u64>::new();
    let first = asked("PORTCULLIS_RANDOM_SEED", 1);
    let count = asked("PORTCULLIS_RANDOM_OBJECTS", count);
    for seed in first..first + count {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let code = make(&mut random);
        let of = arbitrary::packets(&mut random, 12);
        match compare(&code, &of) {
            Ok(Comparison::Refused(why)) => {
                let first = why.lines().next().unwrap_or_default().to_owned();
                *refused.entry(first).or_default() += 1;
            }
            Ok(Comparison::Same(0, _)) => {}
            Ok(Comparison::Same(count, _)) => (taken, packets) = (taken + 1, packets + count),
            Err(difference) => {
                // Another difference may be there without what made this one.
                let kind = |what: &str| what.get(..8).map(str::to_owned);
                let is_it = |code: &Code| compare(code, &of).is_err_and(|it| kind(&it.what) == kind(&difference.what));
                let small = shrink(&code, is_it);
                let what = compare(&small, &of).map_err(|difference| difference.what);
                panic!("seed {seed}: {what:?}\n{}", small.listing())
            }
        }
    }
    println!("{taken} of {count} programs, {packets} packets; refused: {refused:#?}");
    (taken, packets)
}

#[test]
fn programs_that_the_kernel_takes_mean_the_same() {
    let (taken, packets) = rounds(60, |random| {
        let budget = 2 + random.below(30);
        arbitrary::program(random, budget)
    });
    assert!(taken >= 50 && packets >= 300, "{taken}, {packets}");
}

#[test]
fn damaged_programs_mean_the_same_or_are_refused() {
    rounds(60, |random| {
        let budget = 2 + random.below(12);
        let code = arbitrary::program(random, budget);
        arbitrary::damaged(random, &code)
    });
}

#[test]
fn instructions_of_no_kind_are_refused_or_mean_the_same() {
    rounds(300, |random| {
        let count = 1 + random.below(8);
        arbitrary::noise(random, count)
    });
}
