//! Runs the suites of a test program, each in a process of its own: after a failed kernel CUDA
//! refuses all work of a process.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

use super::io_error;

/// Suites that run at the same time. Their kernels share the GPU, and most of their time is
/// compiling.
const PARALLEL: usize = 4;

/// Runs every suite; as each ends, prints a line and what failed in it, and writes all results so
/// far as JSON.
///
/// # Errors
/// A suite failed, the program does not start, or the results cannot be written.
pub fn run(program: &Path, result: &Path) -> Result<(), String> {
    let output = Command::new(program).arg("--list").stdin(Stdio::null()).output();
    let output = output.map_err(|error| io_error(program, &error))?;
    let queue = Mutex::new(by_suite(&String::from_utf8_lossy(&output.stdout)).into_iter().collect::<VecDeque<_>>());
    let done: Mutex<Vec<Value>> = Mutex::default();
    let write = |done: &[Value]| {
        std::fs::write(result, Value::from(done).to_string() + "\n").map_err(|error| io_error(result, &error))
    };
    std::thread::scope(|scope| {
        let work = || {
            while let Some((suite, tests)) = take(&queue) {
                let ended = run_suite(program, &suite, &tests);
                let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                done.push(ended);
                // After each, as the time may be up before the last one ends.
                write(&done)?;
            }
            Ok::<(), String>(())
        };
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no suite panics in this process"))
    })?;
    let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let failed: Vec<&str> =
        done.iter().filter(|suite| suite["rc"] != 0).filter_map(|suite| suite["suite"].as_str()).collect();
    match (done.is_empty(), failed.is_empty()) {
        (true, _) => Err(format!("{} has no suites", program.display())),
        (_, false) => Err(format!("failed: {}", failed.join(", "))),
        _ => Ok(()),
    }
}

fn take<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front()
}

/// Groups the lines of `--list`, such as `maps::every_kind: test`, by the first module.
fn by_suite(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut suites: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        if let Some((suite, _)) = test.split_once("::") {
            suites.entry(suite.into()).or_default().push(test.into());
        }
    }
    suites
}

/// Runs the tests of one suite.
fn run_suite(program: &Path, suite: &str, tests: &[String]) -> Value {
    let began = Instant::now();
    let output = Command::new(program).arg("--exact").args(tests).stdin(Stdio::null()).output();
    let seconds = began.elapsed().as_secs();
    let (rc, text) = match output {
        Ok(output) => (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => (-1, error.to_string()),
    };
    let outcome = if rc == 0 { "passes" } else { "FAILS" };
    println!("{suite} {outcome} after {seconds} s ({} tests)", tests.len());
    let failures = failures(&text);
    failures.iter().for_each(|line| println!("  {line}"));
    json!({"suite": suite, "tests": tests.len(), "rc": rc, "seconds": seconds, "failures": failures})
}

/// Returns the names of failed tests, and the beginning of each panic's message.
fn failures(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let mut found: Vec<&str> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with("test ") && line.ends_with(" FAILED") {
            found.push(line);
        } else if line.contains(" panicked at ") {
            found.extend(lines[at..].iter().take(4));
        }
    }
    found.truncate(40);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_told_apart_and_run_whole() {
        let folder = std::env::temp_dir().join(format!("portcullis-suites-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (program, result) = (folder.join("suites"), folder.join("result.json"));
        // `maps` is also the end of another suite's name.
        let script = "#!/bin/sh\n\
            if [ \"$1\" = --list ]; then printf 'maps::a: test\\nmaps::b::c: test\\nhost_maps::a: test\\n\\n3 tests, 0 benchmarks\\n'; exit; fi\n\
            case \"$*\" in\n\
            '--exact maps::a maps::b::c') echo 'test maps::a ... ok' ;;\n\
            '--exact host_maps::a') printf 'test host_maps::a ... FAILED\\n\\nthread x panicked at y:1:1:\\nleft\\n'; exit 101 ;;\n\
            *) exit 3 ;;\n\
            esac\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(run(&program, &result), Err("failed: host_maps".into()));
        let results: Value = serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap();
        let of = |name: &str| results.as_array().unwrap().iter().find(|suite| suite["suite"] == name).unwrap().clone();
        assert_eq!((&of("maps")["rc"], &of("maps")["tests"]), (&json!(0), &json!(2)));
        assert_eq!(of("host_maps")["rc"], 101);
        assert_eq!(
            of("host_maps")["failures"],
            json!(["test host_maps::a ... FAILED", "thread x panicked at y:1:1:", "left"])
        );
        assert!(run(Path::new("/bin/true"), &result).unwrap_err().contains("has no suites"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
