//! Starts the program in a namespace and watches its output.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use portcullis_live_tests::{Namespace, wait_until};
use serde_json::Value;

/// Timeout for what must happen; long, as the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Time in which nothing must happen.
pub const QUIET_TIME: Duration = Duration::from_millis(300);

/// A running program.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Standard error so far.
    pub log: String,
}

/// Exit status and output of a run.
pub struct ExitedRun {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl ExitedRun {
    /// Parses the line of JSON, after checking that no frame is missing.
    pub fn json(&self) -> Value {
        let line: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr));
        let frames = &line["frames"];
        assert!(frames.is_null() || frames["missing"] == 0 && frames["all"].as_u64() > Some(0), "{line}");
        line
    }
}

/// Runs a command that ends by itself.
pub fn run_to_end(mut command: Command) -> ExitedRun {
    let mut child = command.spawn().expect("the program starts");
    let stderr = BufReader::new(child.stderr.take().unwrap());
    Running { child, stderr, log: String::new() }.wait()
}

/// Returns the command `portcullis run` with these arguments, on the CPU, in a namespace. The
/// filter is a stock filter's name, or the absolute path of another without its `.wgsl`.
pub fn command(namespace: &Namespace, filter: &str, arguments: &[&str]) -> Command {
    command_on(namespace, "cpu", filter, arguments)
}

/// Like [`command`], on another device.
pub fn command_on(namespace: &Namespace, device: &str, filter: &str, arguments: &[&str]) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_portcullis"));
    let filter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders").join(format!("{filter}.wgsl"));
    command.arg("run").arg(filter).args(["--device", device, "--json"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns a number in JSON.
pub fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Sums the numbers of a JSON object.
pub fn sum(value: &Value) -> u64 {
    value.as_object().unwrap().values().map(count).sum()
}

impl Running {
    /// Starts the program, and waits until it receives packets.
    pub fn start(mut command: Command) -> Running {
        let mut child = command.spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Running { child, stderr, log: String::new() };
        running.wait_for_any(&[" mode, ", "taking packets", " of DPDK, "]);
        running
    }

    /// Waits until standard error contains a text.
    pub fn wait_for(&mut self, what: &str) {
        self.wait_for_any(&[what]);
    }

    fn wait_for_any(&mut self, what: &[&str]) {
        while !what.iter().any(|what| self.log.contains(what)) {
            assert!(self.stderr.read_line(&mut self.log).unwrap() > 0, "the program ended: {}", self.log);
        }
    }

    /// Reads a line from standard output, which is then missing from the output of
    /// [`Running::wait`].
    pub fn read_line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" {
            self.child.stdout.as_mut().unwrap().read_exact(&mut byte).expect("a line");
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `INT`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits for the program's end. Its remaining output must fit into the pipes.
    pub fn wait(mut self) -> ExitedRun {
        let mut status = None;
        wait_until("the program ends", TIMEOUT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.stderr.read_to_string(&mut self.log).unwrap();
        ExitedRun { status: status.unwrap(), stdout, stderr: std::mem::take(&mut self.log) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failing test must not leave the program running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
