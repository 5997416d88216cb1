//! Starts the program in a namespace and watches its output.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use portcullis_live_tests::Namespace;
use serde_json::Value;

pub use crate::program::{RunOutput, TIMEOUT};
use crate::program::{signal, wait_for_end};

/// Time in which nothing must happen.
pub const QUIET_TIME: Duration = Duration::from_millis(300);

/// A running program.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Standard error so far.
    pub log: String,
}

/// Runs a command that ends by itself.
pub fn run_to_end(command: Command) -> RunOutput {
    Running::spawn(command).wait()
}

/// Returns the command of the program with these arguments in a namespace.
pub fn program(namespace: &Namespace, arguments: &[&str]) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments);
    command
}

/// Returns the command `portcullis run` with these arguments, on the CPU, in a namespace. The
/// filter is a stock filter's name, or the absolute path of another without its `.wgsl`.
pub fn command(namespace: &Namespace, filter: &str, arguments: &[&str]) -> Command {
    command_on(namespace, "cpu", filter, arguments)
}

/// Like [`command`], on another device.
pub fn command_on(namespace: &Namespace, device: &str, filter: &str, arguments: &[&str]) -> Command {
    let filter = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shaders").join(format!("{filter}.wgsl"));
    let mut command = program(namespace, &["run", "--device", device, "--json"]);
    command.arg(filter).args(arguments);
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
    /// Starts the program.
    pub fn spawn(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running { child, stderr, log: String::new() }
    }

    /// Starts the program, and waits until it receives packets.
    pub fn start(command: Command) -> Running {
        let mut running = Running::spawn(command);
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
        signal(&self.child, name);
    }

    /// Waits for the program's end. Its remaining output must fit into the pipes.
    pub fn wait(mut self) -> RunOutput {
        let status = wait_for_end(&mut self.child);
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.stderr.read_to_string(&mut self.log).unwrap();
        RunOutput::of(Output { status, stdout, stderr: std::mem::take(&mut self.log).into_bytes() })
    }

    /// Ends the run by Ctrl-C, which is a success.
    pub fn stop(self) -> RunOutput {
        self.signal("INT");
        self.wait().assert_success()
    }

    /// Kills the program, which must not have ended before.
    pub fn kill(mut self) {
        self.signal("KILL");
        assert_eq!(wait_for_end(&mut self.child).code(), None, "the program ended before it was killed");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failing test must not leave the program running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
