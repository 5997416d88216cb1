//! Counts of tests and steps, summed from the test harness's output.

use std::ops::AddAssign;

/// Number of tests and steps by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Succeeded.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Skipped; the reason is printed.
    pub skipped: u64,
}

impl Tally {
    /// Counts one step that passed or failed.
    pub fn one(passed: bool) -> Tally {
        Tally { passed: u64::from(passed), failed: u64::from(!passed), skipped: 0 }
    }

    /// Parses libtest's result line: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    pub fn from_line(line: &str) -> Option<Tally> {
        let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
        let mut tally = Tally::default();
        for part in counts.split("; ") {
            let mut words = part.split(' ');
            let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse), words.next()) else { continue };
            match what {
                "passed" => tally.passed = count,
                "failed" => tally.failed = count,
                "ignored" => tally.skipped = count,
                _ => {}
            }
        }
        Some(tally)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_parsed_and_others_ignored() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s";
        assert_eq!(Tally::from_line(line), Some(Tally { passed: 12, failed: 3, skipped: 1 }));
        assert_eq!(Tally::from_line("test result::tests::works ... ok"), None);
        assert_eq!(Tally::from_line("running 3 tests"), None);
    }
}
