//! DPDK's own forwarder, testpmd: Debian's packages dpdk-dev and, for AF_XDP, librte-net-af-xdp23.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use portcullis_live_tests::End;

/// A running `dpdk-testpmd`, which polls and forwards on the second processor.
pub struct Testpmd {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Prefix of DPDK's run-time files.
    prefix: String,
}

impl Testpmd {
    /// Starts testpmd at queue 0 of an interface, and waits until it forwards in mode `rxonly` or
    /// `macswap`.
    ///
    /// # Errors
    /// The reason why it cannot start: not installed, or without this driver.
    pub fn start(end: &End, forward: &str) -> Result<Testpmd, String> {
        let mut command = end.namespace().command("stdbuf");
        command.env("LIBXDP_SKIP_DISPATCHER", "1");
        let port = format!("net_af_xdp0,iface={},start_queue=0,queue_count=1", end.name());
        Testpmd::at(command, &port, forward, 32)
    }

    /// Starts testpmd with a virtual device that it creates, and bursts of `burst` packets.
    ///
    /// # Errors
    /// See [`Testpmd::start`].
    pub fn at(mut stdbuf: Command, port: &str, forward: &str, burst: u16) -> Result<Testpmd, String> {
        let prefix = format!("portcullis-{}", std::process::id());
        stdbuf
            // Line-buffered, as its output is read line by line.
            .args(["-oL", "dpdk-testpmd", "-l", "0,1", "--no-huge", "--no-pci", "-m", "512", "--no-telemetry"])
            .args(["--file-prefix", &prefix, "--vdev", port, "--", "-i", "--total-num-mbufs=8192", "--no-mlockall"])
            .args([format!("--forward-mode={forward}"), format!("--burst={burst}")])
            // A process group of its own: Ctrl-C is for the benchmark.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = stdbuf.spawn().map_err(|error| format!("stdbuf: {error}"))?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut testpmd = Testpmd { child, output, prefix };
        testpmd.say("start");
        // The last line that testpmd prints when it starts.
        match testpmd.line_with("TX offloads=") {
            Some(_) => Ok(testpmd),
            None => {
                let mut stderr = String::new();
                // An unreadable or empty stderr leaves `stderr` empty.
                let _ = testpmd.child.stderr.take().expect("piped").read_to_string(&mut stderr);
                let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended");
                Err(format!("dpdk-testpmd: {last} (Debian's packages dpdk-dev and librte-net-af-xdp23 have it)"))
            }
        }
    }

    /// Returns the number of packets received.
    pub fn received(&mut self) -> u64 {
        self.say("show port stats 0");
        let line = self.line_with("RX-packets:").expect("testpmd is running");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of packets")
    }

    fn say(&mut self, command: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        // If testpmd has ended, the missing answer is noticed.
        let _ = writeln!(stdin, "{command}").and_then(|()| stdin.flush());
    }

    /// Returns the next line that contains `part`; `None` if the output ends before.
    fn line_with(&mut self, part: &str) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            match self.output.read_line(&mut line) {
                Ok(1..) if line.contains(part) => return Some(line),
                Ok(1..) => {}
                _ => return None,
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.say("quit");
        let begun = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if begun.elapsed() > Duration::from_secs(10) {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // testpmd leaves these files behind. Ignore errors: there may be none.
        let _ = std::fs::remove_dir_all(Path::new("/var/run/dpdk").join(&self.prefix));
    }
}
