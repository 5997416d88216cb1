//! A test that is run as a process of its own, to be killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child as Process, Stdio};

use crate::veth::End;

/// Names the interface to the process.
const INTERFACE: &str = "PORTCULLIS_TEST_INTERFACE";

/// What comes before the line for which the parent waits. The test harness prints lines, too.
const READY: &str = "ready: ";

/// A test of the same program that runs once more, in the namespace of an interface.
#[derive(Debug)]
pub struct Child(Process);

impl Child {
    /// Runs the test of this name, until it has [said](Child::hold) that it is ready. Gives what it
    /// said.
    ///
    /// # Panics
    /// When it ends before.
    pub fn start(end: &End, test: &str) -> (Child, String) {
        let program = std::env::current_exe().expect("a program's own path");
        let mut process = end
            .namespace()
            .command(program)
            .args(["--exact", test, "--nocapture"])
            .env(INTERFACE, end.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{test}: {e}"));
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let said = lines.find_map(|line| line.ok()?.strip_prefix(READY).map(str::to_owned));
        (Child(process), said.unwrap_or_else(|| panic!("{test} ended before it was ready")))
    }

    /// In the process: the interface that the test is about. `None` in the ordinary run, where the
    /// test does nothing.
    pub fn interface() -> Option<String> {
        std::env::var(INTERFACE).ok()
    }

    /// In the process: says that all is there, and keeps it until the process is killed.
    ///
    /// # Panics
    /// When its parent has ended instead.
    pub fn hold(said: &str) -> ! {
        println!("\n{READY}{said}");
        let _ = std::io::stdin().read(&mut [0]);
        panic!("it was not killed");
    }

    /// Kills it (SIGKILL), and waits for its end.
    ///
    /// # Panics
    /// When it has ended by itself.
    pub fn kill(mut self) {
        self.0.kill().expect("it can be killed");
        assert!(!self.0.wait().expect("it can be waited for").success(), "it ended by itself");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A test that fails leaves nobody behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
