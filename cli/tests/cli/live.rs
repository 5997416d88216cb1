//! Runs whose packets arrive one at a time through a pipe, and come back.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{Place, TIMEOUT, pcap};

/// A filter that sends back the map's words for a packet's IPv4 source: a number from the file, and
/// a count of the source's packets.
pub const LOOK_UP: &str = "
    //! map hosts: hash key=1 value=2 entries=1000
    fn xdp_filter(pkt: u32) -> u32 {
        let host = hosts_find(load_be32(pkt, 26u));
        if host == MAP_NONE { return XDP_PASS; }
        store_be32(pkt, 0u, hosts_read(host, 0u));
        store_be32(pkt, 4u, hosts_add(host, 1u, 1u) + 1u);
        return XDP_PASS;
    }";

/// A run of `f.wgsl` whose packets the test sends and receives one at a time.
pub struct Live {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    log: Arc<Mutex<String>>,
    listener: JoinHandle<()>,
    /// Number of packets that came back.
    pub packets: u64,
}

impl Live {
    /// Starts a run with these additional arguments.
    pub fn start(place: &Place, args: &[&str]) -> Live {
        let always = ["run", "f.wgsl", "--read", "-", "--write", "-", "--json"];
        let mut child = place.spawn(&[&always[..], args].concat());
        let (mut to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        to.write_all(&pcap(&[])).unwrap();
        let (mut err, log) = (child.stderr.take().unwrap(), Arc::<Mutex<String>>::default());
        let shared = log.clone();
        let listener = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(length @ 1..) = err.read(&mut some) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..length]));
            }
        });
        Live { child, to, from, log, listener, packets: 0 }
    }

    /// Sends a packet of a source, and returns its number and count.
    pub fn ask(&mut self, source: u8) -> [u32; 2] {
        let mut packet = [0; 60];
        packet[26..30].copy_from_slice(&[10, 0, 0, source]);
        self.to.write_all(&pcap(&[&packet])[24..]).unwrap();
        if self.packets == 0 {
            self.from.read_exact(&mut [0; 24]).unwrap();
        }
        self.packets += 1;
        let mut back = [0; 16 + 60];
        self.from.read_exact(&mut back).unwrap();
        [16, 20].map(|at| u32::from_be_bytes(back[at..at + 4].try_into().unwrap()))
    }

    /// Repeats [`Live::ask`] until a condition holds.
    pub fn until(&mut self, source: u8, condition: impl Fn(&Live, [u32; 2]) -> bool) {
        let begun = Instant::now();
        loop {
            let answer = self.ask(source);
            if condition(self, answer) {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "timeout: {answer:?}, {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Closes the input, and returns standard error up to the totals.
    pub fn end(mut self) -> String {
        drop(self.to);
        let mut rest = Vec::new();
        self.from.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "all packets came back before");
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{}", self.log.lock().unwrap());
        self.listener.join().unwrap();
        let log = self.log.lock().unwrap().clone();
        let (before, totals) = log.trim_end().rsplit_once('\n').unwrap_or(("", log.trim_end()));
        let totals: serde_json::Value = serde_json::from_str(totals).unwrap_or_else(|e| panic!("{e}: {log}"));
        assert_eq!(totals["packets"], self.packets, "no packet was lost");
        before.to_owned()
    }

    /// Kills the program.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.listener.join().unwrap();
    }
}
