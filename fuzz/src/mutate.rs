//! A small mutator, so that the targets are run without a fuzzer too: reproducible, and blind to
//! what the target does with its input.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// How long [`run_for`] goes on.
pub const A_SECOND: Duration = Duration::from_secs(1);

/// What a target's inputs are made of.
#[derive(Debug, Clone, Copy)]
pub struct Corpus<'a> {
    /// Inputs that are right.
    pub seeds: &'a [&'a [u8]],
    /// Pieces that mean something in such inputs.
    pub pieces: &'a [&'a [u8]],
}

/// A mutation of one of the seeds; the same for the same number.
///
/// # Panics
/// When there is no seed.
pub fn mutation(corpus: Corpus, number: u64) -> Vec<u8> {
    let mut rng = Pcg64::seed_from_u64(number);
    let mut input = corpus.seeds.choose(&mut rng).expect("a seed").to_vec();
    // Few changes more often than many: what is nearly right goes deepest.
    for _ in 0..1 << rng.random_range(0..5u32) {
        let at = rng.random_range(0..=input.len());
        let end = (at + (1 << rng.random_range(0..7u32))).min(input.len());
        match rng.random_range(0..9u32) {
            0 => drop(input.drain(at..end)),
            1 => {
                let copy = input[at..end].to_vec();
                let to = rng.random_range(0..=input.len());
                input.splice(to..to, copy);
            }
            2 => {
                let copy = input[at..end].to_vec();
                let times = rng.random_range(2..400usize);
                input.splice(at..at, copy.repeat(times));
            }
            3 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = rng.random();
                }
            }
            4 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << rng.random_range(0..8u32);
                }
            }
            5 => {
                let other = corpus.seeds.choose(&mut rng).expect("a seed");
                let from = rng.random_range(0..=other.len());
                let to = rng.random_range(from..=other.len());
                input.splice(at..end, other[from..to].iter().copied());
            }
            6 => input.truncate(at),
            _ => {
                if let Some(piece) = corpus.pieces.choose(&mut rng) {
                    input.splice(at..end, piece.iter().copied());
                }
            }
        }
    }
    input
}

/// Calls `target` with mutations from number `first` on until `time` is over, at least one of them,
/// and gives back how many there were. An input that makes it panic is written to a file, whose
/// name is printed; the panic goes on.
///
/// # Panics
/// When the target does.
pub fn run_for(time: Duration, name: &str, corpus: Corpus, first: u64, target: fn(&[u8])) -> u64 {
    run_over(time, name, first, |number| mutation(corpus, number), target)
}

/// The same with inputs made otherwise, by their numbers.
///
/// # Panics
/// When the target does.
pub fn run_over(time: Duration, name: &str, first: u64, input: impl Fn(u64) -> Vec<u8>, target: fn(&[u8])) -> u64 {
    let start = Instant::now();
    let mut count = 0;
    while count == 0 || start.elapsed() < time {
        let input = input(first + count);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            let path = std::env::temp_dir().join(format!("portcullis-fuzz-{name}-{}", first + count));
            match std::fs::write(&path, &input) {
                Ok(()) => eprintln!("{name}: the input of {} bytes is in {}", input.len(), path.display()),
                Err(error) => eprintln!("{name}: mutation {} (not written: {error})", first + count),
            }
            resume_unwind(panic);
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_an_input() {
        let corpus = Corpus { seeds: &[b"one seed", b"another"], pieces: &[b"piece"] };
        assert_eq!(mutation(corpus, 7), mutation(corpus, 7));
        let different: std::collections::HashSet<_> = (0..100).map(|n| mutation(corpus, n)).collect();
        assert!(different.len() > 50);
    }

    #[test]
    fn a_panic_is_passed_on() {
        let corpus = Corpus { seeds: &[b"x"], pieces: &[] };
        let result = catch_unwind(|| run_for(A_SECOND, "test", corpus, 0, |_| panic!("found")));
        assert!(result.is_err());
    }
}
