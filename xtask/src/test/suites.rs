//! Suites run side by side: many of them wait for sockets, timeouts and devices more than they
//! compute.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io::{PipeReader, Read, Write, pipe};
use std::ops::AddAssign;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::failures::Failures;
use super::tally::Tally;
use crate::executables::Executable;

/// Number of slowest suites that are printed.
const SLOWEST: usize = 8;

/// Suites with network namespaces and DPDK ports, by folder and name; `*` stands for all of a
/// folder. They run one after the other: links and hugepages belong to the whole machine.
const NETWORK: [(&str, &str); 7] = [
    ("live-tests", "*"),
    ("cli", "live"),
    ("cli", "dpdk"),
    ("cli", "l2fwd"),
    ("io", "dpdk"),
    ("io", "gpudev"),
    ("compat-tests", "xdp_routes"),
];

/// Suites that take a minute or more; they start first, so that none runs alone at the end.
const SLOW: [&str; 6] = ["xdp_objects", "c_writer", "stateful_filters", "aarch64", "expressions", "cli"];

/// A program that prints what libtest does.
#[derive(Debug)]
pub struct Suite {
    /// Name for messages.
    pub name: String,
    /// Command that runs the suite.
    pub command: Command,
    /// Whether no other suite with links or ports may run beside this one.
    pub uses_network: bool,
    /// Whether the suite starts before others.
    pub is_slow: bool,
}

impl Suite {
    /// Returns the suite of a test executable, which `command` runs.
    pub fn of_executable(executable: &Executable, command: Command) -> Suite {
        let root = crate::root();
        let folder = executable.folder.strip_prefix(&root).unwrap_or(&executable.folder);
        let uses_network =
            NETWORK.iter().any(|&(owner, name)| folder == Path::new(owner) && (name == "*" || name == executable.name));
        let is_slow = SLOW.contains(&executable.name.as_str());
        let name = match folder.to_str() {
            Some("") => executable.name.clone(),
            _ => format!("{} {}", folder.display(), executable.name),
        };
        Suite { name, command, uses_network, is_slow }
    }
}

/// Numbers of tests of a step, and the output of those that failed.
#[derive(Debug, Default)]
pub struct TestCounts {
    pub tally: Tally,
    pub failures: Failures,
}

impl TestCounts {
    /// A suite whose tests did not run or did not report.
    pub fn without_tests(reason: String) -> TestCounts {
        let mut failures = Failures::default();
        failures.add_end(reason);
        TestCounts { tally: Tally::one(false), failures }
    }
}

impl From<Tally> for TestCounts {
    fn from(tally: Tally) -> TestCounts {
        TestCounts { tally, failures: Failures::default() }
    }
}

impl AddAssign for TestCounts {
    fn add_assign(&mut self, other: TestCounts) {
        self.tally += other.tally;
        self.failures.append(other.failures);
    }
}

/// Runs suites, two at a time, and counts their tests. A suite's output is written to `out` when it
/// ends; errors of writing are ignored, so that a closed output does not stop the run.
pub fn run(mut suites: Vec<Suite>, out: impl Write + Send) -> TestCounts {
    suites.sort_by_key(|suite| !suite.is_slow);
    let (network, others): (VecDeque<_>, VecDeque<_>) = suites.into_iter().partition(|suite| suite.uses_network);
    let (network, others) = (Mutex::new(network), Mutex::new(others));
    let log = Mutex::new(Log { out, counts: TestCounts::default(), times: Vec::new() });
    let work = |queues: &[&Mutex<VecDeque<Suite>>]| {
        while let Some(suite) = queues.iter().find_map(|queue| lock(queue).pop_front()) {
            let _ = writeln!(lock(&log).out, "     Running {}", suite.name);
            let (name, started) = (suite.name.clone(), Instant::now());
            let (counts, output) = run_one(suite);
            lock(&log).add(name, started.elapsed(), counts, &output);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&[&network, &others]));
        work(&[&others]);
    });
    let mut log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
    log.write_slowest();
    log.counts
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Results of the suites that have ended.
struct Log<W> {
    out: W,
    counts: TestCounts,
    times: Vec<(String, Duration)>,
}

impl<W: Write> Log<W> {
    fn add(&mut self, name: String, time: Duration, counts: TestCounts, output: &[u8]) {
        let _ = writeln!(self.out, "\n     Ran {name} in {:.1} s", time.as_secs_f32());
        let _ = self.out.write_all(output);
        self.counts += counts;
        self.times.push((name, time));
    }

    fn write_slowest(&mut self) {
        self.times.sort_by_key(|(_, time)| Reverse(*time));
        let _ = writeln!(self.out, "\nseconds  suite, the slowest {SLOWEST}");
        for (name, time) in self.times.iter().take(SLOWEST) {
            let _ = writeln!(self.out, "{:>7.1}  {name}", time.as_secs_f32());
        }
    }
}

/// Runs a suite; returns the numbers of its tests and its output.
fn run_one(suite: Suite) -> (TestCounts, Vec<u8>) {
    let Suite { name, mut command, .. } = suite;
    let mut output = Vec::new();
    let started = pipe().and_then(|(reader, writer)| {
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        Ok((command.spawn()?, reader))
    });
    // The command keeps the pipe's ends for writing, without which reading would not end.
    drop(command);
    let (mut child, mut reader): (_, PipeReader) = match started {
        Ok(started) => started,
        Err(error) => return (TestCounts::without_tests(format!("{name}: does not start: {error}")), output),
    };
    let read = reader.read_to_end(&mut output);
    let mut counts = count_tests(&output);
    let has_result = String::from_utf8_lossy(&output).lines().any(|line| Tally::from_line(line).is_some());
    match read.and_then(|_| child.wait()) {
        Ok(status) if status.success() && has_result || counts.tally.failed > 0 => {}
        // A test program that crashes, or that a test ends, prints no result.
        Ok(status) => counts += TestCounts::without_tests(format!("{name}: {status}, and no test failed")),
        Err(error) => counts += TestCounts::without_tests(format!("{name}: {error}")),
    }
    (counts, output)
}

/// Counts the tests in libtest's output.
fn count_tests(output: &[u8]) -> TestCounts {
    let mut counts = TestCounts::default();
    for line in String::from_utf8_lossy(output).lines() {
        counts.tally += Tally::from_line(line).unwrap_or_default();
        counts.failures.add(line);
    }
    counts.failures.finish();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Suite {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Suite { name: name.into(), command, uses_network: name.starts_with("network"), is_slow: false }
    }

    #[test]
    fn outcomes_of_all_suites_are_summed() {
        let passes = "echo running 2 tests; echo 'test result: ok. 2 passed; 0 failed; 1 ignored'";
        let fails = "echo running 1 test; echo; echo failures:; echo '---- a stdout ----'; echo reason >&2; \
                     echo failures:; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101";
        let crashes = "echo running 1 test; kill -9 $$";
        let missing = Suite { name: "missing".into(), command: Command::new("/nowhere"), ..shell("missing", "") };
        let ends_early = shell("d", "exit 0");
        let suites = vec![shell("a", passes), shell("network b", fails), shell("c", crashes), ends_early, missing];
        let counts = run(suites, std::io::sink());
        assert_eq!(counts.tally, Tally { passed: 2, failed: 4, skipped: 1 });
        let printed = counts.failures.to_string();
        for part in
            ["  a\n    reason\n", "without a result", "c: signal: 9", "d: exit status: 0", "missing: does not start"]
        {
            assert!(printed.contains(part), "{part}: {printed}");
        }
    }

    #[test]
    fn suites_of_the_network_run_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        let ok = "echo 'test result: ok. 1 passed'";
        let script = format!("mkdir {0} || exit 1; sleep 0.05; rmdir {0}; {ok}", lock.display());
        let suites = (0..4).map(|number| shell(&format!("network {number}"), &script));
        assert_eq!(run(suites.collect(), std::io::sink()).tally.failed, 0);
        // Others run beside them: each of these waits for the other.
        let meet = |own: &str, other: &str| {
            let folder = folder.path().display();
            format!(
                "touch {folder}/{own}; for i in $(seq 500); do [ -e {folder}/{other} ] && {ok} && exit; sleep 0.02; done; exit 1"
            )
        };
        let suites = vec![shell("network", &meet("x", "y")), shell("other", &meet("y", "x"))];
        assert_eq!(run(suites, std::io::sink()).tally.failed, 0);
    }

    #[test]
    fn suites_with_links_or_ports_use_the_network() {
        let suite = |folder: &str, name: &str| {
            let executable = Executable {
                folder: crate::root().join(folder),
                kind: "test".into(),
                name: name.into(),
                is_test: true,
                path: "/p/x".into(),
            };
            Suite::of_executable(&executable, Command::new("/p/x"))
        };
        assert!(suite("live-tests", "steer").uses_network && suite("cli", "live").uses_network);
        assert!(!suite("cli", "cli").uses_network && !suite("compat-tests", "maps").uses_network);
        assert_eq!((suite("", "examples").name, suite("cli", "cli").name), ("examples".into(), "cli cli".into()));
        // Every suite that the lists name exists.
        let exists = |owner: &str, name: &str| {
            let tests = crate::root().join(owner).join("tests");
            tests.join(name).is_dir() || tests.join(format!("{name}.rs")).is_file()
        };
        for (owner, name) in NETWORK.into_iter().filter(|&(_, name)| name != "*") {
            assert!(exists(owner, name), "{owner} {name}");
        }
        for name in SLOW {
            assert!(exists("compat-tests", name) || exists("cli", name), "{name}");
        }
    }
}
