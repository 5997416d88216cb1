//! `portcullis ctl` at work: a folder with filters and a run's socket, and frames sent meanwhile,
//! each of which is to be accounted for.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use portcullis_live_tests::frames::udp;
use portcullis_live_tests::{PacketSocket, Veth, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net};
use crate::support::{ExitedRun, NOTHING, Running, SOON, command_on, ends};

/// Where a frame of [`numbered`] has its number, and where filters write who they are.
pub const NUMBER: usize = 42;
pub const MARK: usize = 46;

/// A folder with filters and the socket of a run.
pub struct Desk(tempfile::TempDir);

impl Desk {
    pub fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a filter, and gives its path without the ending, as [`command`] takes it.
    pub fn filter(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(&format!("{name}.wgsl")), text).unwrap();
        self.text(name)
    }

    pub fn socket(&self) -> String {
        self.text("control")
    }

    /// Asks.
    pub fn ctl(&self, arguments: &[&str]) -> ExitedRun {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["ctl", "--control", &self.socket()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command)
    }

    /// Asks, and what is asked is done.
    pub fn done(&self, arguments: &[&str]) -> String {
        let ended = self.ctl(arguments);
        assert!(ended.status.success(), "{arguments:?}: {}", ended.stderr);
        ended.stdout
    }

    /// Asks, and it is refused.
    pub fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let ended = self.ctl(arguments);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {}{}", ended.stdout, ended.stderr);
        ended.stderr
    }
}

/// A frame with a number, which goes to a port that depends on it.
pub fn numbered(veth: &Veth, number: u32) -> Vec<u8> {
    udp(veth, 1000 + number as u16 % 64, &[&number.to_be_bytes()[..], &[0; 14]].concat())
}

/// A filter that sends frames back with its mark, but for each eighth.
pub fn marking(mark: char) -> String {
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
pub struct Back {
    pub marks: [u64; 256],
    pub wrong: u64,
}

/// Says so when it goes out of scope, a panic's way included: threads that are waited for look at
/// this.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends frames as fast as it can for as long as `meanwhile` takes, and gives what came back.
pub fn under_load(veth: &Veth, meanwhile: impl FnOnce(&AtomicU64)) -> (u64, Back) {
    let (stop, settled, sent, seen) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut peer = PacketSocket::at(&veth.left);
    let sender = PacketSocket::at(&veth.left);
    let back = std::thread::scope(|scope| {
        let (settles, stops) = (SetOnDrop(&settled), SetOnDrop(&stop));
        let back = scope.spawn(|| {
            let (mut back, mut numbers) = (Back { marks: [0; 256], wrong: 0 }, std::collections::HashSet::new());
            loop {
                match peer.receive(NOTHING) {
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
                // The peer's socket has room for so many, and what it has no room for nobody would
                // count.
                let begun = Instant::now();
                while u64::from(number) * 7 / 8 > seen.load(Ordering::Relaxed) + 8192 && begun.elapsed() < SOON {
                    std::thread::yield_now();
                }
            }
        });
        meanwhile(&sent);
        drop(stops);
        send.join().unwrap();
        drop(settles);
        back.join().unwrap()
    });
    (sent.into_inner(), back)
}

pub fn count(of: &Value) -> u64 {
    of.as_u64().unwrap()
}

/// Every packet that was sent is one that came back, one that a filter dropped, or one that is
/// counted as lost.
pub fn accounts(json: &Value, sent: u64, back: &Back) {
    let lost: u64 = json["lost"].as_object().unwrap().values().map(count).sum();
    assert_eq!(count(&json["packets"]) + count(&json["dropped_by_kernel"]), sent, "{json}");
    assert_eq!(count(&json["verdicts"]["tx"]) + count(&json["verdicts"]["drop"]), count(&json["packets"]), "{json}");
    assert_eq!(count(&json["carried_out"]["tx"]) + lost, count(&json["verdicts"]["tx"]), "{json}");
    assert_eq!(back.marks.iter().sum::<u64>(), count(&json["carried_out"]["tx"]), "{json}");
    assert_eq!(back.wrong, 0, "each packet has been through one filter");
}

/// Waits until so many more have been sent.
pub fn wait_for_more(sent: &AtomicU64, more: u64) {
    let until = sent.load(Ordering::Relaxed) + more;
    wait_until("more is sent", SOON, || sent.load(Ordering::Relaxed) >= until);
}

/// Filters take over from each other while frames are sent as fast as they can, and no packet is
/// without a verdict.
pub fn filters_take_over_under_load(queues: u32, device: &str, dispatch: &str) {
    let Some(Net { veth, right, _suite, .. }) = net(queues) else { return };
    // What the kernels at both ends say of themselves is nobody's number.
    for end in [&veth.left, &veth.right] {
        end.namespace().sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", end.name()), "1");
    }
    let desk = Desk::new();
    let (a, b) = (desk.filter("a", &marking('A')), desk.filter("b", &marking('B')) + ".wgsl");
    let arguments = ["--af-xdp", veth.right.name(), "--control", &desk.socket(), "--dispatch", dispatch];
    let running = Running::start(command_on(&right, device, &a, &arguments));
    let (sent, back) = under_load(&veth, |sent| {
        for filter in [&b, &(a.clone() + ".wgsl"), &b, &(a.clone() + ".wgsl"), &b] {
            wait_for_more(sent, 3000);
            assert!(desk.done(&["reload", filter]).contains("has taken over"));
        }
        // From now on there is only the last one.
        wait_for_more(sent, 3000);
    });
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{device} {dispatch}: {}", ended.stderr);
    let json = ended.json();
    accounts(&json, sent, &back);
    assert!(back.marks[usize::from(b'A')] > 0 && back.marks[usize::from(b'B')] > 0, "both were in force");
    assert_eq!(json["filter"], b, "the totals name the last");
    assert!(!Path::new(&desk.socket()).exists(), "the socket goes with the run");
}
