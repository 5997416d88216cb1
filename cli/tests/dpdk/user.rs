//! DPDK runs of an unprivileged user, without huge pages.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::program::{Place, RunOutput, packets, sample, stock};

/// User `nobody`, who owns no files.
const NOBODY: u32 = 65_534;

/// A folder of that user with the program, a filter and a capture.
struct UserFolder {
    place: Place,
    is_root: bool,
}

impl UserFolder {
    fn new() -> UserFolder {
        let place = Place::new();
        // A copy, as the build folder may be inaccessible to others.
        fs::copy(env!("CARGO_BIN_EXE_portcullis"), place.path("portcullis")).unwrap();
        place.file("mac_swap.wgsl", fs::read(stock("mac_swap")).unwrap());
        place.file("mixed.pcap", fs::read(sample()).unwrap());
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            for name in [".", "portcullis", "mac_swap.wgsl", "mixed.pcap"] {
                chown(place.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        fs::set_permissions(place.path("portcullis"), Permissions::from_mode(0o755)).unwrap();
        UserFolder { place, is_root }
    }

    /// Runs the program there, as an unprivileged user.
    fn run(&self, more: &[&str]) -> RunOutput {
        // A common default limit, which a program that needs locked memory would exceed.
        let mut command = Command::new("prlimit");
        command.args(["--memlock=65536:65536", "./portcullis", "run", "mac_swap.wgsl", "--device", "cpu", "--json"]);
        command.args(more).current_dir(self.place.path(".")).env_clear().env("PATH", "/usr/bin:/bin");
        if self.is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        RunOutput::of(command.stdin(Stdio::null()).output().unwrap())
    }
}

#[test]
fn an_unprivileged_user_can_filter_a_capture() {
    let folder = UserFolder::new();
    let before = folder.place.names();
    let json = folder.run(&["--dpdk", "net_pcap0,rx_pcap=mixed.pcap,tx_pcap=out.pcap"]).assert_success().parse_json();
    assert_eq!((&json["packets"], &json["frames"]["missing"]), (&4000.into(), &0.into()), "{json}");
    let mut want = packets(&fs::read(sample()).unwrap());
    want.retain(|packet| packet.len() >= 14);
    for packet in &mut want {
        let (to, from) = packet.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
    }
    assert_eq!(packets(&folder.place.read("out.pcap")), want);
    let mut after = folder.place.names();
    after.retain(|name| name != "out.pcap");
    assert_eq!(after, before, "no other file is left");
}

#[test]
fn an_unprivileged_user_learns_what_an_interface_needs() {
    let folder = UserFolder::new();
    let ran = folder.run(&["--dpdk", "net_pcap0,rx_pcap=mixed.pcap", "--pass-to", "tap:pc0"]);
    let err = ran.assert_failure(1, &["tap:pc0: "]).err;
    // The error names whichever of the two this machine lacks.
    assert!(["/dev/net/tun", "CAP_NET_ADMIN"].iter().any(|part| err.contains(part)), "{err}");
}
