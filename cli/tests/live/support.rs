//! The program while it runs in a namespace.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use portcullis_live_tests::{Namespace, wait_until};
use serde_json::Value;

/// Long enough for whatever is to happen, on a busy machine, too.
pub const SOON: Duration = Duration::from_secs(30);

/// Long enough to see that nothing happens.
pub const NOTHING: Duration = Duration::from_millis(300);

/// A run of the program.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Standard error so far.
    pub said: String,
}

/// How a run ended.
pub struct ExitedRun {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl ExitedRun {
    /// The line of JSON, in which no frame is missing.
    pub fn json(&self) -> Value {
        let line: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr));
        let frames = &line["frames"];
        assert!(frames.is_null() || frames["missing"] == 0 && frames["all"].as_u64() > Some(0), "{line}");
        line
    }
}

/// Runs a command that ends by itself, and soon.
pub fn ends(mut command: Command) -> ExitedRun {
    let mut child = command.spawn().expect("the program starts");
    let stderr = BufReader::new(child.stderr.take().unwrap());
    Running { child, stderr, said: String::new() }.end()
}

/// `portcullis run` with these arguments, on the CPU, in a namespace. The filter is a stock one, or
/// the whole path of another, without its `.wgsl`.
pub fn command(namespace: &Namespace, filter: &str, arguments: &[&str]) -> Command {
    command_on(namespace, "cpu", filter, arguments)
}

/// Builds the command for another device.
pub fn command_on(namespace: &Namespace, device: &str, filter: &str, arguments: &[&str]) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_portcullis"));
    let filter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders").join(format!("{filter}.wgsl"));
    command.arg("run").arg(filter).args(["--device", device, "--json"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Running {
    /// Starts it, and waits until it receives.
    pub fn start(mut command: Command) -> Running {
        let mut child = command.spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Running { child, stderr, said: String::new() };
        running.hear_one_of(&[" mode, ", "taking packets", " of DPDK, "]);
        running
    }

    /// Waits until it has said this on standard error.
    pub fn hear(&mut self, what: &str) {
        self.hear_one_of(&[what]);
    }

    fn hear_one_of(&mut self, what: &[&str]) {
        while !what.iter().any(|what| self.said.contains(what)) {
            assert!(self.stderr.read_line(&mut self.said).unwrap() > 0, "it ended: {}", self.said);
        }
    }

    /// Waits for a line on standard output, which is then no more in what it has printed in the
    /// end.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" {
            self.child.stdout.as_mut().unwrap().read_exact(&mut byte).expect("a line");
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal: `INT`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end. What it says until then is little enough for its pipes.
    pub fn end(mut self) -> ExitedRun {
        let mut status = None;
        wait_until("the program ends", SOON, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.stderr.read_to_string(&mut self.said).unwrap();
        ExitedRun { status: status.unwrap(), stdout, stderr: std::mem::take(&mut self.said) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that fails leaves nobody behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
