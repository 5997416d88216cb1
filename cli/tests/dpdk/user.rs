//! As an ordinary user, without huge pages.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::support::{Place, packets, sample, stock};

/// The user who owns nothing (`nobody`).
const NOBODY: u32 = 65_534;

/// A folder of this user's, with the program, a filter and a capture.
struct UserFolder {
    place: Place,
    is_root: bool,
}

impl UserFolder {
    fn new() -> UserFolder {
        let place = Place::new();
        // Where the program was built others may have no access.
        fs::copy(env!("CARGO_BIN_EXE_portcullis"), place.path("portcullis")).unwrap();
        place.file("mac_swap.wgsl", fs::read(stock("mac_swap")).unwrap());
        place.file("mixed.pcap", fs::read(sample()).unwrap());
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            for path in
                [place.path("."), place.path("portcullis"), place.path("mac_swap.wgsl"), place.path("mixed.pcap")]
            {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        fs::set_permissions(place.path("portcullis"), Permissions::from_mode(0o755)).unwrap();
        UserFolder { place, is_root }
    }

    /// Runs it there, as whoever is no root.
    fn run(&self, more: &[&str]) -> Output {
        // A limit that whoever needs locked memory would meet, and as many systems have it.
        let mut command = Command::new("prlimit");
        command.args(["--memlock=65536:65536", "./portcullis", "run", "mac_swap.wgsl", "--device", "cpu", "--json"]);
        command.args(more).current_dir(self.place.path(".")).env_clear().env("PATH", "/usr/bin:/bin");
        if self.is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.stdin(Stdio::null()).output().unwrap()
    }
}

#[test]
fn an_ordinary_user_filters_a_capture() {
    let home = UserFolder::new();
    let before = home.place.names();
    let output = home.run(&["--dpdk", "net_pcap0,rx_pcap=mixed.pcap,tx_pcap=out.pcap"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["packets"].as_u64(), json["frames"]["missing"].as_i64()), (Some(4000), Some(0)), "{json}");
    let mut want = packets(&fs::read(sample()).unwrap());
    want.retain(|packet| packet.len() >= 14);
    for packet in &mut want {
        let (to, from) = packet.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
    }
    assert_eq!(packets(&home.place.read("out.pcap")), want);
    let mut after = home.place.names();
    after.retain(|name| name != "out.pcap");
    assert_eq!(after, before, "nothing is left behind");
}

#[test]
fn an_ordinary_user_is_told_what_an_interface_takes() {
    let home = UserFolder::new();
    let output = home.run(&["--dpdk", "net_pcap0,rx_pcap=mixed.pcap", "--pass-to", "tap:pc0"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("tap:pc0: "), "{said}");
    // Of the two this is what a machine lacks.
    assert!(["/dev/net/tun", "CAP_NET_ADMIN"].iter().any(|part| said.contains(part)), "{said}");
    assert!(output.stdout.is_empty());
}
