//! DPDK's own forwarder: Debian's packages dpdk-dev and, for AF_XDP, librte-net-af-xdp23.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use portcullis_live_tests::End;

/// `dpdk-testpmd`. It forwards on the second processor, which it polls without a pause.
pub struct Testpmd {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Prefix of DPDK's run-time files.
    prefix: String,
}

impl Testpmd {
    /// Starts it at queue 0 of an interface, and waits until it forwards: `rxonly`, or `macswap`.
    ///
    /// # Errors
    /// Why it cannot: it is not there, or has no such driver.
    pub fn start(end: &End, forward: &str) -> Result<Testpmd, String> {
        let mut command = end.namespace().command("stdbuf");
        command.env("LIBXDP_SKIP_DISPATCHER", "1");
        let port = format!("net_af_xdp0,iface={},start_queue=0,queue_count=1", end.name());
        Testpmd::at(command, &port, forward, 32)
    }

    /// Starts it at a device that it makes, with so many packets at a time.
    ///
    /// # Errors
    /// As [`Testpmd::start`].
    pub fn at(mut stdbuf: Command, port: &str, forward: &str, burst: u16) -> Result<Testpmd, String> {
        let prefix = format!("portcullis-{}", std::process::id());
        stdbuf
            // Its output is waited for line by line.
            .args(["-oL", "dpdk-testpmd", "-l", "0,1", "--no-huge", "--no-pci", "-m", "512", "--no-telemetry"])
            .args(["--file-prefix", &prefix, "--vdev", port, "--", "-i", "--total-num-mbufs=8192", "--no-mlockall"])
            .args([format!("--forward-mode={forward}"), format!("--burst={burst}")])
            // Ctrl-C is for who measures.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = stdbuf.spawn().map_err(|error| format!("stdbuf: {error}"))?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut testpmd = Testpmd { child, output, prefix };
        testpmd.say("start");
        // What it says last when it starts.
        match testpmd.line_with("TX offloads=") {
            Some(_) => Ok(testpmd),
            None => {
                let mut said = String::new();
                // Where it said nothing, nothing is told.
                let _ = testpmd.child.stderr.take().expect("piped").read_to_string(&mut said);
                let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended");
                Err(format!("dpdk-testpmd: {last} (Debian's packages dpdk-dev and librte-net-af-xdp23 have it)"))
            }
        }
    }

    /// Packets that it has received.
    pub fn received(&mut self) -> u64 {
        self.say("show port stats 0");
        let line = self.line_with("RX-packets:").expect("it runs");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of packets")
    }

    fn say(&mut self, command: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        // Who does not hear it any more says nothing either, which is noticed.
        let _ = writeln!(stdin, "{command}").and_then(|()| stdin.flush());
    }

    /// The next line that has this in it; `None` where it ends before.
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
        // It leaves them behind. Where there are none, there is nothing to do.
        let _ = std::fs::remove_dir_all(Path::new("/var/run/dpdk").join(&self.prefix));
    }
}
