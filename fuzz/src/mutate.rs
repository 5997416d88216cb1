//! Reproducible mutator that runs the fuzz targets within `cargo test`, without coverage feedback.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Time budget of [`run_for`] in the tests of the targets.
pub const A_SECOND: Duration = Duration::from_secs(1);

/// Material from which a target's inputs are built.
#[derive(Debug, Clone, Copy, Default)]
pub struct Corpus<'a> {
    /// Valid inputs.
    pub seeds: &'a [&'a [u8]],
    /// Tokens of the input language, inserted at random; separated by white space, with `␣` and `␤`
    /// for a space and a line end within a token.
    pub tokens: &'a str,
    /// Other bytes to insert.
    pub pieces: &'a [&'a [u8]],
}

impl Corpus<'_> {
    /// Picks a token or a piece; `None` if there are none.
    fn insertion(&self, rng: &mut Pcg64) -> Option<Vec<u8>> {
        let tokens: Vec<&str> = self.tokens.split_whitespace().collect();
        let at = (0..tokens.len() + self.pieces.len()).choose(rng)?;
        Some(match tokens.get(at) {
            Some(token) => token.replace('␣', " ").replace('␤', "\n").into_bytes(),
            None => self.pieces[at - tokens.len()].to_vec(),
        })
    }
}

/// Mutates one of the seeds; equal numbers give equal results.
///
/// # Panics
/// If the corpus has no seed.
pub fn mutation(corpus: Corpus, number: u64) -> Vec<u8> {
    let mut rng = Pcg64::seed_from_u64(number);
    let mut input = corpus.seeds.choose(&mut rng).expect("a seed").to_vec();
    // Prefer few changes: nearly valid inputs get furthest into the target.
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
                if let Some(inserted) = corpus.insertion(&mut rng) {
                    input.splice(at..end, inserted);
                }
            }
        }
    }
    input
}

/// Calls `target` with malformed inputs, and then with mutations numbered from `first` until `time`
/// is over, at least once, and returns the number of mutations. A mutation that makes the target
/// panic is written to a temporary file, whose path is printed, before the panic resumes.
///
/// # Panics
/// If the target panics.
pub fn run_for(time: Duration, name: &str, corpus: Corpus, first: u64, target: fn(&[u8])) -> u64 {
    run_over(time, name, first, |number| mutation(corpus, number), target)
}

/// Calls `target` like [`run_for`], with inputs that `input` generates from their numbers.
///
/// # Panics
/// If the target panics.
pub fn run_over(time: Duration, name: &str, first: u64, input: impl Fn(u64) -> Vec<u8>, target: fn(&[u8])) -> u64 {
    run_malformed(target);
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

/// Checks that each seed is a valid input, and more than `least` of the first `mutations` mutations
/// too: otherwise only the first checks of the code under test would be reached. Runs the seeds.
#[cfg(test)]
pub fn check_seeds(
    corpus: Corpus,
    target: fn(&[u8]),
    (mutations, least): (u64, usize),
    check: impl Fn(Vec<u8>) -> Result<(), portcullis_core::diagnostics::Diagnostics>,
) {
    for seed in corpus.seeds {
        check(seed.to_vec()).unwrap_or_else(|errors| panic!("{}", errors.render()));
        target(seed);
    }
    let valid = (0..mutations).filter(|&number| check(mutation(corpus, number)).is_ok()).count();
    assert!(valid > least, "{valid} of {mutations}");
}

/// Runs inputs that no format begins with, invalid UTF-8 among them, and long runs of one byte.
fn run_malformed(target: fn(&[u8])) {
    let runs = [0, 6, b' ', b'1', 0x80, 0x95, 0xff].map(|byte| [byte; 100]);
    [&b""[..], b"\0", b"\xff\xfe", b"\xef\xbb\xbf"].into_iter().for_each(target);
    for run in &runs {
        target(run);
        // Whole instructions of eight bytes.
        target(&run[..64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_give_equal_inputs() {
        let corpus = Corpus { seeds: &[b"one seed", b"another"], tokens: "token", pieces: &[b"piece"] };
        assert_eq!(mutation(corpus, 7), mutation(corpus, 7));
        let different: std::collections::HashSet<_> = (0..100).map(|n| mutation(corpus, n)).collect();
        assert!(different.len() > 50);
    }

    #[test]
    fn a_panic_of_the_target_is_passed_on() {
        let corpus = Corpus { seeds: &[b"x"], ..Corpus::default() };
        let result = catch_unwind(|| run_for(A_SECOND, "test", corpus, 0, |_| panic!("found")));
        assert!(result.is_err());
    }
}
