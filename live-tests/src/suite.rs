//! Whether a machine can run tests of live traffic, and a note of what became of them.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use crate::namespace;

/// What must not be missing, with commas between: `af-xdp,nfqueue`.
const REQUIRE: &str = "PORTCULLIS_REQUIRE";

/// A folder for notes on what ran; `cargo xtask test` makes a table of them.
const RECORDS: &str = "PORTCULLIS_TEST_RECORDS";

/// A suite that is running. When it goes out of scope, how it ended is noted: failed where a panic
/// ends it.
#[derive(Debug)]
#[must_use = "how the suite ends is noted when this goes out of scope"]
pub struct Suite {
    name: &'static str,
    tests: &'static str,
    started: Instant,
}

impl Suite {
    /// Begins a suite that tests a feature (`af-xdp` or `nfqueue`), for which it needs these
    /// programs beside `ip`. `None` where this user or this machine cannot run it; that is printed,
    /// with the reason.
    ///
    /// # Panics
    /// Where it cannot be run, but `PORTCULLIS_REQUIRE` demands it.
    pub fn begin(name: &'static str, tests: &'static str, programs: &[&str]) -> Option<Suite> {
        match obstacle(programs) {
            None => Some(Suite { name, tests, started: Instant::now() }),
            Some(reason) => {
                leave_out(name, tests, &reason);
                None
            }
        }
    }

    /// Begins a suite that any user and machine can run.
    pub fn anywhere(name: &'static str, tests: &'static str) -> Suite {
        Suite { name, tests, started: Instant::now() }
    }

    /// Begins a part of the suite that is noted by itself: what it does with a device (`opencl`).
    pub fn on(&self, device: &'static str) -> Suite {
        Suite { name: self.name, tests: device, started: Instant::now() }
    }

    /// Notes that a part of the suite is not run: there is no such device.
    ///
    /// # Panics
    /// Where `PORTCULLIS_REQUIRE` demands it.
    pub fn lacks(&self, device: &'static str, reason: &str) {
        leave_out(self.name, device, reason);
    }

    /// Leaves the suite out because of something that only its tests could find out: a kernel
    /// without what they need.
    ///
    /// # Panics
    /// Where `PORTCULLIS_REQUIRE` demands it.
    pub fn skip(self, reason: &str) {
        let (name, tests) = (self.name, self.tests);
        std::mem::forget(self);
        leave_out(name, tests, reason);
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        let outcome = if std::thread::panicking() { "failed" } else { "passed" };
        record(self.name, self.tests, outcome, &format!("{:.1} s", self.started.elapsed().as_secs_f32()));
    }
}

/// Notes that a suite is not run.
///
/// # Panics
/// Where it is required.
fn leave_out(name: &str, tests: &str, reason: &str) {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    let required = required.split(',').any(|required| required.trim() == tests);
    record(name, tests, if required { "failed" } else { "skipped" }, reason);
    assert!(!required, "{tests} is required, and {name} cannot be tested: {reason}");
}

/// Why tests cannot be run that need these programs.
fn obstacle(programs: &[&str]) -> Option<String> {
    let missing = ["ip"].iter().chain(programs).find(|program| !is_in_path(program));
    if let Some(program) = missing {
        let package = match *program {
            "ip" | "tc" | "ss" => "iproute2",
            "iptables-legacy" => "iptables",
            other => other,
        };
        return Some(format!("the program `{program}` is not in PATH (Debian's package {package})"));
    }
    // Asked for once: to be root is not enough in a container.
    static PRIVILEGES: OnceLock<Option<String>> = OnceLock::new();
    PRIVILEGES.get_or_init(|| namespace::attempt().err()).clone()
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Notes how a suite ended (`passed`, `failed` or `skipped`), and prints it: the lines of
/// `compat-tests`.
fn record(suite: &str, tests: &str, outcome: &str, remark: &str) {
    println!("{suite}: {tests}: {outcome} ({remark})");
    let Some(folder) = std::env::var_os(RECORDS) else { return };
    let line = format!("{suite}\t{tests}\t{outcome}\t{}\n", remark.replace(['\t', '\n', '\r'], " "));
    let file = Path::new(&folder).join(format!("{}.tsv", std::process::id()));
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(&file);
    // One write a line: tests of a process run on several threads. No panic: one may be on its way.
    if let Err(error) = opened.and_then(|mut f| f.write_all(line.as_bytes())) {
        println!("{}: {error}", file.display());
    }
}
