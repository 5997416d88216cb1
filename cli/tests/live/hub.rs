//! Packets that an XDP program sends to all devices of a map (`BPF_F_BROADCAST`), live.

use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth};

use crate::routes::{command, compiled, number};
use crate::support::{QUIET_TIME, Running, TIMEOUT};

#[test]
fn a_broadcast_frame_reaches_every_other_port() {
    let Some(_suite) = Suite::begin("run --af-xdp", "af-xdp", &["ethtool", "clang"]) else { return };
    let between = Namespace::new();
    let hosts: Vec<Namespace> = (0..3).map(|_| Namespace::new()).collect();
    let link = |(subnet, host)| Veth::between(host, &between).subnet(subnet).without_ipv4().without_ipv6().make();
    let links: Vec<Veth> = (1..).zip(&hosts).map(link).collect();
    let folder = tempfile::tempdir().unwrap();
    let object = compiled(folder.path(), "compat-tests/xdp/broadcast.c");
    let rows = (0..).zip(&links).map(|(slot, link)| format!("{slot},{}\n", number(&between, link.right.name())));
    let ports = folder.path().join("ports.csv");
    std::fs::write(&ports, rows.collect::<String>()).unwrap();
    let map = format!("array={}", ports.display());
    let mut arguments = vec!["--all", "--stack", "none", "--map", &map];
    links.iter().for_each(|link| arguments.extend(["--af-xdp", link.right.name()]));
    let running = Running::start(command(&between, &object, "hub", &arguments));
    let mut peers: Vec<PacketSocket> = links.iter().map(|link| PacketSocket::at(&link.left)).collect();
    let count = 50_u32;
    for number in 0..count {
        let from = number as usize % 3;
        // A broadcast frame of the experimental EtherType.
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, from as u8, 0x88, 0xb5]);
        frame.extend(number.to_be_bytes().repeat(10 + number as usize % 200));
        peers[from].send(&frame);
        for to in (0..3).filter(|to| *to != from) {
            assert!(peers[to].receive_where(TIMEOUT, |it| it.bytes == frame).is_some(), "{number} from {from} to {to}");
        }
        if number == 0 {
            assert!(
                peers[from].receive_where(QUIET_TIME, |it| it.bytes == frame).is_none(),
                "the frame comes back to its sender"
            );
        }
    }
    let ended = running.stop();
    // No frame is missing, and each copy is counted.
    assert_eq!(ended.parse_json()["carried_out"]["redirect"], 2 * count, "{}", ended.out);
}
