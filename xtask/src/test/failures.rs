//! What tests said when they failed, kept for the end: of a long log often only the end is kept,
//! and a test that fails once in twenty runs must say then what was wrong.

use std::collections::VecDeque;

/// Of what one test printed, the last lines, where the reason is.
const LINES_OF_A_TEST: usize = 30;

/// Of one suite's failed tests, as many.
const TESTS: usize = 10;

/// Message for a suite that began and printed no result.
const WITHOUT_RESULT: &str = "a suite ended without a result: its program died, or was ended";

/// What libtest prints of tests that failed: between `failures:` and `test result: FAILED`, for
/// each a line `---- NAME stdout ----` and then what it printed.
#[derive(Debug, Default)]
pub struct Failures {
    tests: Vec<Test>,
    /// How many of them are of the suite under way, and how many more of it there were.
    of_suite: usize,
    left_out: usize,
    place: Place,
}

/// Where in a suite's output a line is.
#[derive(Debug, Default, PartialEq)]
enum Place {
    #[default]
    Outside,
    /// Tests run.
    Inside,
    /// What failed tests printed.
    Output,
    /// Their names once more.
    Names,
}

#[derive(Debug)]
struct Test {
    name: String,
    lines: VecDeque<String>,
}

impl Failures {
    /// Takes the next line of a suite's output.
    pub fn add(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.ends();
        } else if matches!(self.place, Place::Outside | Place::Inside)
            && line.starts_with("running ")
            && (line.ends_with(" tests") || line.ends_with(" test"))
        {
            self.finish();
            self.place = Place::Inside;
        } else if line == "failures:" {
            self.place = if self.place == Place::Output { Place::Names } else { Place::Output };
        } else if self.place != Place::Output {
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            self.of_suite += 1;
            if self.of_suite <= TESTS {
                self.tests.push(Test { name: name.into(), lines: VecDeque::new() });
            }
        } else if let Some(test) = self.tests.last_mut().filter(|_| self.of_suite <= TESTS) {
            if test.lines.len() == LINES_OF_A_TEST {
                test.lines.pop_front();
            }
            test.lines.push_back(line.into());
        }
    }

    /// A suite's result came.
    fn ends(&mut self) {
        self.left_out += self.of_suite.saturating_sub(TESTS);
        (self.of_suite, self.place) = (0, Place::Outside);
    }

    /// Nothing more comes of the suite under way, or of the last.
    pub fn finish(&mut self) {
        if self.place == Place::Inside {
            self.add_end(WITHOUT_RESULT.into());
        }
        self.ends();
    }

    /// A suite that did not end as one does, with the reason.
    pub fn add_end(&mut self, reason: String) {
        self.tests.push(Test { name: reason, lines: VecDeque::new() });
    }

    /// Has those of another suite follow.
    pub fn append(&mut self, mut other: Failures) {
        other.ends();
        self.tests.append(&mut other.tests);
        self.left_out += other.left_out;
    }
}

impl std::fmt::Display for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Test { name, lines } in &self.tests {
            writeln!(f, "  {name}")?;
            for line in lines.iter().filter(|line| !line.trim().is_empty()) {
                writeln!(f, "    {line}")?;
            }
        }
        match self.left_out {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Failures {
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.add(line));
        failures
    }

    #[test]
    fn what_failed_tests_printed_is_kept_and_no_other_line() {
        let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nfine\n\n\
                    failures:\n\n---- b stdout ----\nthread 'b' panicked at x.rs:1:\nleft: 1\n\n---- c stdout ----\nno\n\n\
                    failures:\n    b\n    c\n\ntest result: FAILED. 1 passed; 2 failed\nother";
        let told = "  b\n    thread 'b' panicked at x.rs:1:\n    left: 1\n  c\n    no\n";
        assert_eq!(of(text).to_string(), told);
    }

    #[test]
    fn one_suite_that_fails_does_not_hide_the_next() {
        let suite = |name: &str| {
            format!("failures:\n\n---- {name} stdout ----\nno\n\nfailures:\n    {name}\n\ntest result: FAILED.\n")
        };
        let mut failures = of(&(suite("a") + &suite("b")));
        failures.append(of(&suite("c")));
        failures.append(of("running 2 tests\ntest x ... ok\nrunning 1 test\ntest result: ok.\n"));
        failures.add_end("d: signal 9".into());
        assert_eq!(
            failures.to_string(),
            format!("  a\n    no\n  b\n    no\n  c\n    no\n  {WITHOUT_RESULT}\n  d: signal 9\n")
        );
    }

    #[test]
    fn the_reason_is_at_the_end_of_much_and_few_tests_are_told() {
        let many: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let told = of(&format!("failures:\n---- a stdout ----\n{many}test result: FAILED.")).to_string();
        assert_eq!((told.lines().count(), told.lines().last()), (1 + LINES_OF_A_TEST, Some("    line 99")));
        let many: String = (0..=TESTS).map(|test| format!("---- t{test} stdout ----\nno\n")).collect();
        let told = of(&format!("failures:\n{many}test result: FAILED.")).to_string();
        assert_eq!((told.lines().count(), told.lines().last()), (2 * TESTS + 1, Some("  and 1 more")));
    }
}
