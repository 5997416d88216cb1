//! Decides whether a machine can run tests with live traffic, and records how they ended.

use std::sync::OnceLock;
use std::time::Instant;

use crate::namespace;
use crate::records::{record, record_skip};

/// A running suite. Dropping it records how it ended: failed if a panic is unwinding.
#[derive(Debug)]
#[must_use = "the outcome is recorded when this is dropped"]
pub struct Suite {
    name: &'static str,
    tests: &'static str,
    started: Instant,
}

impl Suite {
    /// Begins a suite that tests a feature (`af-xdp` or `nfqueue`) and needs these programs beside
    /// `ip`. Returns `None`, and prints the reason, if this user or this machine cannot run it.
    ///
    /// # Panics
    /// If it cannot be run although `PORTCULLIS_REQUIRE` names the feature.
    pub fn begin(name: &'static str, tests: &'static str, programs: &[&str]) -> Option<Suite> {
        match missing_requirement(programs) {
            None => Some(Suite { name, tests, started: Instant::now() }),
            Some(reason) => {
                record_skip(name, tests, &reason);
                None
            }
        }
    }

    /// Begins a suite that any user on any machine can run.
    pub fn anywhere(name: &'static str, tests: &'static str) -> Suite {
        Suite { name, tests, started: Instant::now() }
    }

    /// Begins the part of the suite that uses a device (`opencl`), which is recorded by itself.
    pub fn on(&self, device: &'static str) -> Suite {
        Suite { name: self.name, tests: device, started: Instant::now() }
    }

    /// Records that the part for a device is skipped because there is no such device.
    ///
    /// # Panics
    /// If `PORTCULLIS_REQUIRE` names the device.
    pub fn lacks(&self, device: &'static str, reason: &str) {
        record_skip(self.name, device, reason);
    }

    /// Records the suite as skipped, for a reason that only its tests could find out, such as a
    /// missing kernel feature.
    ///
    /// # Panics
    /// If `PORTCULLIS_REQUIRE` names the feature.
    pub fn skip(self, reason: &str) {
        let (name, tests) = (self.name, self.tests);
        std::mem::forget(self);
        record_skip(name, tests, reason);
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        let outcome = if std::thread::panicking() { "failed" } else { "passed" };
        record(self.name, self.tests, outcome, &format!("{:.1} s", self.started.elapsed().as_secs_f32()));
    }
}

/// Returns why tests that need these programs cannot be run here.
fn missing_requirement(programs: &[&str]) -> Option<String> {
    let missing = ["ip"].iter().chain(programs).find(|program| !is_in_path(program));
    if let Some(program) = missing {
        let package = match *program {
            "ip" | "tc" | "ss" => "iproute2",
            "iptables-legacy" => "iptables",
            other => other,
        };
        return Some(format!("the program `{program}` is not in PATH (Debian's package {package})"));
    }
    // Tried once per process: in a container, root may still lack the privilege.
    static PRIVILEGES: OnceLock<Option<String>> = OnceLock::new();
    PRIVILEGES.get_or_init(|| namespace::probe().err()).clone()
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
