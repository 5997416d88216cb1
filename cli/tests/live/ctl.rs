//! A folder with filters and a run's control socket, `portcullis ctl` on it, and traffic during
//! reloads of which every frame is accounted for.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{PacketSocket, SetOnDrop, Veth, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net};
use crate::program::Place;
use crate::support::{QUIET_TIME, RunOutput, Running, TIMEOUT, command_on, count, sum};

/// Offset of the number in a frame of [`numbered`], and of the byte that filters mark.
pub const NUMBER: usize = 42;
pub const MARK: usize = 46;

/// A folder with filters and the control socket of a run.
pub struct CtlFolder(Place);

impl CtlFolder {
    pub fn new() -> CtlFolder {
        CtlFolder(Place::new())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a filter, and returns its path without the extension, as [`command_on`] takes it.
    pub fn filter(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(&format!("{name}.wgsl")), text).unwrap();
        self.text(name)
    }

    pub fn socket(&self) -> String {
        self.text("control")
    }

    /// Runs `portcullis ctl` with these arguments.
    pub fn run(&self, arguments: &[&str]) -> RunOutput {
        self.0.run(&[&["ctl", "--control", &self.socket()], arguments].concat())
    }

    /// Runs `portcullis ctl`, which must succeed, and returns its output.
    pub fn run_successfully(&self, arguments: &[&str]) -> String {
        self.run(arguments).assert_success().out
    }

    /// Runs `portcullis ctl`, which must succeed, and returns its output as JSON.
    pub fn run_json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run_successfully(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Runs `portcullis ctl`, which must fail with this exit status and a message of these words.
    pub fn assert_failure(&self, code: i32, arguments: &[&str], words: &[&str]) {
        self.run(arguments).assert_failure(code, words);
    }
}

/// Builds a frame with a number, which also selects its port.
pub fn numbered(veth: &Veth, number: u32) -> Vec<u8> {
    udp(veth, 1000 + number as u16 % 64, &[&number.to_be_bytes()[..], &[0; 14]].concat())
}

/// Returns a filter that drops every eighth frame, and marks and sends back all others.
pub fn marking_filter(mark: char) -> String {
    format!(
        "fn xdp_filter(pkt: u32) -> u32 {{
    if load_be16(pkt, 12u) != ETH_P_IP || (load_u8(pkt, {}u) & 7u) == 7u {{ return XDP_DROP; }}
    store_u8(pkt, {MARK}u, {}u);
    return XDP_TX;
}}",
        NUMBER + 3,
        mark as u32,
    )
}

/// Received marks: how often each was seen, duplicates, and packets without a mark.
#[derive(Debug)]
pub struct ReflectedFrames {
    pub marks: [u64; 256],
    pub wrong: u64,
}

/// Sends frames as fast as possible while `meanwhile` runs, waits until the program of this folder
/// has done with all, and returns how many, and what came back.
pub fn under_load(veth: &Veth, ctl: &CtlFolder, meanwhile: impl FnOnce(&AtomicU64)) -> (u64, ReflectedFrames) {
    let (stop, settled, sent, seen) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut peer = PacketSocket::at(&veth.left);
    let sender = PacketSocket::at(&veth.left);
    let back = std::thread::scope(|scope| {
        let (settle_guard, stop_guard) = (SetOnDrop(&settled), SetOnDrop(&stop));
        let back = scope.spawn(|| {
            let (mut back, mut numbers) =
                (ReflectedFrames { marks: [0; 256], wrong: 0 }, std::collections::HashSet::new());
            loop {
                match peer.receive(QUIET_TIME) {
                    Some(frame) if frame.bytes.len() > MARK && frame.ether_type() == 0x0800 => {
                        let number: [u8; 4] = frame.bytes[NUMBER..NUMBER + 4].try_into().unwrap();
                        let mark = frame.bytes[MARK];
                        back.marks[usize::from(mark)] += 1;
                        back.wrong += u64::from(mark == 0 || !numbers.insert(number));
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(_) => {}
                    None if settled.load(Ordering::Relaxed) => return back,
                    None => {}
                }
            }
        });
        let send = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                sender.send(&numbered(veth, number));
                number += 1;
                sent.store(number.into(), Ordering::Relaxed);
                // The peer's socket would drop frames beyond its buffer uncounted.
                let begun = Instant::now();
                while u64::from(number) * 7 / 8 > seen.load(Ordering::Relaxed) + 8192 && begun.elapsed() < TIMEOUT {
                    std::thread::yield_now();
                }
            }
        });
        meanwhile(&sent);
        drop(stop_guard);
        send.join().unwrap();
        wait_until("all frames are filtered", TIMEOUT, || {
            let now = ctl.run_json(&["stats"]);
            let received = count(&now["packets"]) + count(&now["dropped_by_kernel"]);
            let done = sum(&now["carried_out"]) + sum(&now["lost"]);
            received == sent.load(Ordering::Relaxed) && done == count(&now["packets"])
        });
        drop(settle_guard);
        back.join().unwrap()
    });
    (sent.into_inner(), back)
}

/// Checks that every frame came back, was dropped by a filter, or is counted as lost.
pub fn check_accounting(json: &Value, sent: u64, back: &ReflectedFrames) {
    let lost = sum(&json["lost"]);
    assert_eq!(count(&json["packets"]) + count(&json["dropped_by_kernel"]), sent, "{json}");
    assert_eq!(count(&json["verdicts"]["tx"]) + count(&json["verdicts"]["drop"]), count(&json["packets"]), "{json}");
    assert_eq!(count(&json["carried_out"]["tx"]) + lost, count(&json["verdicts"]["tx"]), "{json}");
    assert_eq!(back.marks.iter().sum::<u64>(), count(&json["carried_out"]["tx"]), "{json}");
    assert_eq!(back.wrong, 0, "each packet passed one filter once");
}

/// Waits until `more` further frames have been sent.
pub fn wait_for_more(sent: &AtomicU64, more: u64) {
    let until = sent.load(Ordering::Relaxed) + more;
    wait_until("more frames are sent", TIMEOUT, || sent.load(Ordering::Relaxed) >= until);
}

/// Reloads filters under full load, and checks that every packet gets a verdict of one filter.
pub fn check_reload_under_load(queues: u32, device: &str, dispatch: &str) {
    let Some(Net { veth, right, _suite, .. }) = net(queues) else { return };
    // IPv6 traffic of the kernels would be counted as packets.
    for end in [&veth.left, &veth.right] {
        end.namespace().sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", end.name()), "1");
    }
    let ctl = CtlFolder::new();
    let (a, b) = (ctl.filter("a", &marking_filter('A')), ctl.filter("b", &marking_filter('B')) + ".wgsl");
    let arguments = ["--af-xdp", veth.right.name(), "--control", &ctl.socket(), "--dispatch", dispatch];
    let running = Running::start(command_on(&right, device, &a, &arguments));
    let (sent, back) = under_load(&veth, &ctl, |sent| {
        for filter in [&b, &(a.clone() + ".wgsl"), &b, &(a.clone() + ".wgsl"), &b] {
            wait_for_more(sent, 3000);
            assert!(ctl.run_successfully(&["reload", filter]).contains("has replaced the filter"));
        }
        // From now on only the last filter runs.
        wait_for_more(sent, 3000);
    });
    let json = running.stop().parse_json();
    check_accounting(&json, sent, &back);
    assert!(back.marks[usize::from(b'A')] > 0 && back.marks[usize::from(b'B')] > 0, "both filters marked packets");
    assert_eq!(json["filter"], b, "the totals name the last filter");
    assert!(!Path::new(&ctl.socket()).exists(), "the run removes its socket");
}
