//! Runs a test as a process of its own, for tests that kill it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child as Process, Stdio};

use crate::veth::End;

/// Environment variable that names the interface to the child process.
const INTERFACE: &str = "PORTCULLIS_TEST_INTERFACE";

/// Prefix of the line that the parent waits for; the test harness prints other lines too.
const READY: &str = "ready: ";

/// A test of the same program, running once more in the namespace of an interface.
#[derive(Debug)]
pub struct Child(Process);

impl Child {
    /// Runs the test of this name until it calls [`Child::hold`], and returns the text passed
    /// there.
    ///
    /// # Panics
    /// If the child ends before it is ready.
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
        let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let text = lines.find_map(|line| line.ok()?.strip_prefix(READY).map(str::to_owned));
        (Child(process), text.unwrap_or_else(|| panic!("{test} ended before it was ready")))
    }

    /// Called in the child: returns the interface under test. `None` in the ordinary run, in which
    /// the test returns at once.
    pub fn interface() -> Option<String> {
        std::env::var(INTERFACE).ok()
    }

    /// Called in the child: prints `text` for the parent and blocks until the process is killed.
    ///
    /// # Panics
    /// If the parent ends without killing the child.
    pub fn hold(text: &str) -> ! {
        println!("\n{READY}{text}");
        let _ = std::io::stdin().read(&mut [0]);
        panic!("the parent did not kill the child");
    }

    /// Kills the child (SIGKILL) and waits for it.
    ///
    /// # Panics
    /// If the child has ended by itself.
    pub fn kill(mut self) {
        self.0.kill().expect("the child can be killed");
        assert!(!self.0.wait().expect("the child can be waited for").success(), "the child ended by itself");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A failing test must not leave the child running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
