//! Ports that are interfaces of the kernel's, in networks of a test's own.

use std::process::Command;
use std::time::{Duration, Instant};

use portcullis_live_tests::frames::{numbered, swapped};
use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth, ping, tcp_echo, wait_until};
use serde_json::Value;

use crate::running::{ExitedRun, NOTHING, Running, SOON, command};
use crate::support::Place;

/// Whether a driver of DPDK's is installed. Where it is not, that is printed.
fn has_driver(namespace: &Namespace, driver: &str) -> bool {
    // Whoever has the driver says something else.
    let port = format!("{driver}0,nonsense=1");
    let ended = crate::running::ends(command(namespace, "minimal", &["--dpdk", &port, "--idle-exit", "1ms"]));
    let is_missing = ended.stderr.contains("failed to parse device") || ended.stderr.contains("no driver");
    if is_missing {
        println!("{driver} is not tested: {}", ended.stderr);
    }
    !is_missing
}

fn end(running: Running) -> Value {
    running.signal("INT");
    let ended: ExitedRun = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.json()
}

/// Checks that a sent frame comes back as another.
fn comes_back(peer: &mut PacketSocket, frame: &[u8], back: &[u8]) {
    peer.send(frame);
    assert!(peer.receive_where(SOON, |frame| frame.bytes == back).is_some(), "it comes back: {back:02x?}");
}

/// Frames come back with their addresses swapped, whatever their length.
fn reflects(running: Running, peer: &mut PacketSocket, veth: &Veth) {
    const COUNT: u32 = 300;
    for number in 0..COUNT {
        let frame = numbered(veth, number, 60 + number as usize * 4);
        comes_back(peer, &frame, &swapped(frame.clone()));
    }
    // The kernel takes tags out of frames, and a driver may find them beside these.
    let tagged = [&numbered(veth, COUNT, 60)[..12], &[0x81, 0, 0x20, 5], &numbered(veth, COUNT, 300)[12..]].concat();
    comes_back(peer, &tagged, &swapped(tagged.clone()));
    let json = end(running);
    assert!(json["carried_out"]["tx"].as_u64().unwrap() > COUNT.into(), "{json}");
}

#[test]
fn interfaces_are_ports() {
    let Some(_suite) = Suite::begin("interfaces as DPDK's ports", "dpdk", &["ethtool"]) else { return };
    for driver in ["net_af_packet", "net_af_xdp"] {
        let (left, right) = (Namespace::new(), Namespace::new());
        if !has_driver(&right, driver) {
            continue;
        }
        let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
        let port = format!("{driver}0,iface={}", veth.right.name());
        println!("{port}");
        let running = Running::start(command(&right, "mac_swap", &["--dpdk", &port]));
        reflects(running, &mut PacketSocket::at(&veth.left), &veth);
    }
}

#[test]
fn a_tap_interface_is_a_port() {
    let Some(_suite) = Suite::begin("a TAP interface as DPDK's port", "dpdk", &[]) else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    if !has_driver(&right, "net_tap") {
        return;
    }
    // For its addresses.
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let running = Running::start(command(&right, "mac_swap", &["--dpdk", "net_tap0,iface=dtap0"]));
    let mut peer = PacketSocket::open(&right, "dtap0");
    reflects(running, &mut peer, &veth);
}

/// What a run says in the end that an interface has ended.
fn ended_by(interface: &str, running: Running) -> Value {
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("error: {interface}: the interface is gone")), "{}", ended.stderr);
    ended.json()
}

#[test]
fn an_interface_that_is_gone_ends_the_run() {
    let Some(_suite) = Suite::begin("interfaces of DPDK's ports that go away", "dpdk", &[]) else { return };
    for driver in ["net_af_packet", "net_af_xdp", "net_tap"] {
        let (left, right) = (Namespace::new(), Namespace::new());
        if !has_driver(&right, driver) {
            continue;
        }
        let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
        let is_tap = driver == "net_tap";
        let name = if is_tap { "dtap0" } else { veth.right.name() };
        println!("{driver}");
        let running = Running::start(command(&right, "mac_swap", &["--dpdk", &format!("{driver}0,iface={name}")]));
        let mut peer = if is_tap { PacketSocket::open(&right, name) } else { PacketSocket::at(&veth.left) };
        let frame = numbered(&veth, 7, 60);
        comes_back(&mut peer, &frame, &swapped(frame.clone()));
        // Under traffic, for which nobody is there in the end.
        let json = std::thread::scope(|scope| {
            let frame = numbered(&veth, 8, 60);
            // Should the test fail, it ends, too.
            let begun = Instant::now();
            scope.spawn(move || while peer.offer(&frame).is_ok() && begun.elapsed() < SOON {});
            std::thread::sleep(NOTHING);
            right.ip(&["link", "delete", name]);
            ended_by(name, running)
        });
        assert!(json["carried_out"]["tx"].as_u64().unwrap() > 1, "{json}");
    }
}

/// What goes to the one is lost then, and all else goes on.
#[test]
fn a_run_ends_with_its_way_into_the_kernel_and_not_with_a_target() {
    let Some(_suite) = Suite::begin("interfaces that DPDK's packets go to", "dpdk", &[]) else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    if !has_driver(&right, "net_tap") || !has_driver(&right, "net_af_packet") {
        return;
    }
    let place = Place::new();
    // By the number that frames have: to the target, or back.
    place.file(
        "f.wgsl",
        "fn xdp_filter(pkt: u32) -> u32 { if load_u8(pkt, pkt_len(pkt) - 1u) == 3u { return redirect(3u); } return XDP_TX; }",
    );
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let target = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let port = format!("net_af_packet0,iface={}", veth.right.name());
    let redirect = format!("3=net_af_packet1,iface={}", target.right.name());
    // It ends by itself where it should have ended before.
    let arguments = ["--dpdk", &port, "--redirect", &redirect, "--pass-to", "tap:kernel0", "--duration", "60s"];
    let filter = place.path("f");
    let mut running = Running::start(command(&right, filter.to_str().unwrap(), &arguments));
    let mut peer = PacketSocket::at(&veth.left);
    let frame = |last| [&numbered(&veth, 7, 60)[..59], &[last]].concat();
    let mut there = PacketSocket::at(&target.left);
    peer.send(&frame(3));
    assert!(there.receive_where(SOON, |it| it.bytes == frame(3)).is_some(), "the frame gets to the target");
    comes_back(&mut peer, &frame(1), &frame(1));
    let gone = format!("the interface is gone interface={}", target.right.name());
    target.delete();
    running.hear(&gone);
    for _ in 0..100 {
        peer.send(&frame(3));
        comes_back(&mut peer, &frame(1), &frame(1));
    }
    right.ip(&["link", "delete", "kernel0"]);
    let json = ended_by("kernel0", running);
    assert_eq!((&json["packets"], &json["carried_out"]["tx"]), (&202.into(), &101.into()), "{json}");
}

/// What passes gets into the kernel, and what that sends comes back: an address that is at nothing
/// but the interface for these packets answers, and has connections.
#[test]
fn packets_pass_into_the_kernel_and_its_answers_go_out() {
    let Some(_suite) = Suite::begin("packets of DPDK into the kernel", "dpdk", &["ethtool", "iptables-legacy"]) else {
        return;
    };
    let (left, right) = (Namespace::new(), Namespace::new());
    if !has_driver(&right, "net_tap") || !has_driver(&right, "net_af_packet") {
        return;
    }
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    for end in [&veth.left, &veth.right] {
        // Checksums are left to the other end, and segments are cut: longer packets than it has
        // room for the driver cuts off.
        end.ethtool(&["-K", "tso off gso off gro off"]);
    }
    left.ip(&["address", "add", "10.9.0.1/24", "dev", veth.left.name()]);
    // The kernel sees what comes to the interface as well, where this driver only listens: that is
    // to be no answer.
    let drop = ["-t", "raw", "-A", "PREROUTING", "-i", veth.right.name(), "-j", "DROP"];
    let status = right.command("iptables-legacy").args(drop).status().unwrap();
    assert!(status.success(), "iptables-legacy drops what comes in");
    right.sysctl(&format!("net/ipv4/conf/{}/arp_ignore", veth.right.name()), "8");

    let port = format!("net_af_packet0,iface={}", veth.right.name());
    let running = Running::start(command(&right, "minimal", &["--dpdk", &port, "--pass-to", "tap:kernel0"]));
    let link = right.ip(&["-oneline", "link", "show", "kernel0"]);
    let mac = veth.right.mac().map(|byte| format!("{byte:02x}")).join(":");
    assert!(link.contains(&mac), "it has the port's address {mac}: {link}");
    right.ip(&["address", "add", "10.9.0.2/24", "dev", "kernel0"]);
    let address: std::net::Ipv4Addr = "10.9.0.2".parse().unwrap();
    assert!(ping(&left, address.into(), SOON), "the kernel answers");
    tcp_echo(&left, &right, (address, 0), 500_000, SOON).unwrap();
    let json = end(running);
    assert_eq!(json["carried_out"]["pass"], json["packets"], "{json}");
    assert!(json["from_stack"].as_u64().unwrap() > 100, "{json}");
    assert!(json["checksums_completed"].as_u64().unwrap() > 100, "checksums were left to the other end: {json}");
    // The interface goes with the run.
    wait_until("kernel0 is gone", Duration::from_secs(10), || {
        !Command::new("ip").args(["-netns", right.name(), "link", "show", "kernel0"]).output().unwrap().status.success()
    });
}
