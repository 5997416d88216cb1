//! Randomly generated programs, compared with the model.

use super::model::arbitrary;
use super::model::compare::{Comparison, compare};
use super::model::shrink::shrink;
use super::model::{Code, Random};

/// A number from the environment: the first seed, or the count of programs.
fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Compares generated programs with the model; returns the numbers of programs and packets run.
fn compare_random(count: u64, make: impl Fn(&mut Random) -> Code) -> (usize, usize) {
    let (mut taken, mut packets) = (0, 0);
    let mut refused = std::collections::BTreeMap::<String, u64>::new();
    let first = from_environment("PORTCULLIS_RANDOM_SEED", 1);
    let count = from_environment("PORTCULLIS_RANDOM_OBJECTS", count);
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
                // Shrinking must keep the kind of difference.
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
fn programs_that_the_kernel_accepts_mean_the_same() {
    let (taken, packets) = compare_random(60, |random| {
        let budget = 2 + random.below(30);
        arbitrary::program(random, budget)
    });
    assert!(taken >= 50 && packets >= 300, "{taken}, {packets}");
}

#[test]
fn damaged_programs_mean_the_same_or_are_refused() {
    compare_random(60, |random| {
        let budget = 2 + random.below(12);
        let code = arbitrary::program(random, budget);
        arbitrary::damaged(random, &code)
    });
}

#[test]
fn random_instructions_are_refused_or_mean_the_same() {
    compare_random(300, |random| {
        let count = 1 + random.below(8);
        arbitrary::noise(random, count)
    });
}
