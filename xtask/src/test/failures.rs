//! Output of failed tests, repeated at the end of a run: of a long log often only the end is kept,
//! and a flaky test must give its reason there.

use std::collections::VecDeque;

/// Number of lines kept of one test's output: the last ones, which hold the reason.
const LINES_PER_TEST: usize = 30;

/// Number of failed tests kept of one suite.
const TESTS_PER_SUITE: usize = 10;

/// Message for a suite that started and printed no result.
const WITHOUT_RESULT: &str = "a suite ended without a result: its program crashed or was killed";

/// Collects failed tests from libtest's output: between `failures:` and `test result: FAILED`, each
/// has a line `---- NAME stdout ----` followed by what it printed.
#[derive(Debug, Default)]
pub struct Failures {
    tests: Vec<Test>,
    /// Failed tests of the current suite, kept or not.
    of_suite: usize,
    omitted: usize,
    section: Section,
}

/// Position of a line in a suite's output.
#[derive(Debug, Default, PartialEq)]
enum Section {
    #[default]
    Outside,
    /// A line between `running N tests` and the failures.
    Inside,
    /// Output of failed tests.
    Output,
    /// List of the failed tests' names.
    Names,
}

#[derive(Debug)]
struct Test {
    name: String,
    lines: VecDeque<String>,
}

impl Failures {
    /// Processes the next line of a suite's output.
    pub fn add(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.end_suite();
        } else if matches!(self.section, Section::Outside | Section::Inside)
            && line.starts_with("running ")
            && (line.ends_with(" tests") || line.ends_with(" test"))
        {
            self.finish();
            self.section = Section::Inside;
        } else if line == "failures:" {
            self.section = if self.section == Section::Output { Section::Names } else { Section::Output };
        } else if self.section != Section::Output {
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            self.of_suite += 1;
            if self.of_suite <= TESTS_PER_SUITE {
                self.tests.push(Test { name: name.into(), lines: VecDeque::new() });
            }
        } else if let Some(test) = self.tests.last_mut().filter(|_| self.of_suite <= TESTS_PER_SUITE) {
            if test.lines.len() == LINES_PER_TEST {
                test.lines.pop_front();
            }
            test.lines.push_back(line.into());
        }
    }

    /// Ends the current suite.
    fn end_suite(&mut self) {
        self.omitted += self.of_suite.saturating_sub(TESTS_PER_SUITE);
        (self.of_suite, self.section) = (0, Section::Outside);
    }

    /// Ends the output: a suite that printed no result is added as failed.
    pub fn finish(&mut self) {
        if self.section == Section::Inside {
            self.add_end(WITHOUT_RESULT.into());
        }
        self.end_suite();
    }

    /// Adds a suite that did not end normally, with the reason.
    pub fn add_end(&mut self, reason: String) {
        self.tests.push(Test { name: reason, lines: VecDeque::new() });
    }

    /// Appends the failures of another suite.
    pub fn append(&mut self, mut other: Failures) {
        other.end_suite();
        self.tests.append(&mut other.tests);
        self.omitted += other.omitted;
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
        match self.omitted {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures_of(text: &str) -> Failures {
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.add(line));
        failures
    }

    #[test]
    fn only_the_output_of_failed_tests_is_kept() {
        let text = "running 3 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nfine\n\n\
                    failures:\n\n---- b stdout ----\nthread 'b' panicked at x.rs:1:\nleft: 1\n\n---- c stdout ----\nno\n\n\
                    failures:\n    b\n    c\n\ntest result: FAILED. 1 passed; 2 failed\nother";
        let printed = "  b\n    thread 'b' panicked at x.rs:1:\n    left: 1\n  c\n    no\n";
        assert_eq!(failures_of(text).to_string(), printed);
    }

    #[test]
    fn failures_of_several_suites_are_all_kept() {
        let suite = |name: &str| {
            format!("failures:\n\n---- {name} stdout ----\nno\n\nfailures:\n    {name}\n\ntest result: FAILED.\n")
        };
        let mut failures = failures_of(&(suite("a") + &suite("b")));
        failures.append(failures_of(&suite("c")));
        failures.append(failures_of("running 2 tests\ntest x ... ok\nrunning 1 test\ntest result: ok.\n"));
        failures.add_end("d: signal 9".into());
        assert_eq!(
            failures.to_string(),
            format!("  a\n    no\n  b\n    no\n  c\n    no\n  {WITHOUT_RESULT}\n  d: signal 9\n")
        );
    }

    #[test]
    fn long_output_keeps_its_last_lines_and_many_tests_are_summarised() {
        let many: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let printed = failures_of(&format!("failures:\n---- a stdout ----\n{many}test result: FAILED.")).to_string();
        assert_eq!((printed.lines().count(), printed.lines().last()), (1 + LINES_PER_TEST, Some("    line 99")));
        let many: String = (0..=TESTS_PER_SUITE).map(|test| format!("---- t{test} stdout ----\nno\n")).collect();
        let printed = failures_of(&format!("failures:\n{many}test result: FAILED.")).to_string();
        assert_eq!((printed.lines().count(), printed.lines().last()), (2 * TESTS_PER_SUITE + 1, Some("  and 1 more")));
    }
}
