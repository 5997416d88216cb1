//! DPDK ports on kernel interfaces, in network namespaces.

use std::process::Command;
use std::time::{Duration, Instant};

use portcullis_live_tests::frames::{numbered, swapped};
use portcullis_live_tests::{Namespace, PacketSocket, Suite, Veth, ping, tcp_echo, wait_until};
use serde_json::Value;

use crate::program::Place;
use crate::running::{QUIET_TIME, Running, TIMEOUT, command, run_to_end};

/// Returns whether a DPDK driver is installed; prints it if not.
fn has_driver(namespace: &Namespace, driver: &str) -> bool {
    // An installed driver rejects the argument instead.
    let port = format!("{driver}0,nonsense=1");
    let ended = run_to_end(command(namespace, "minimal", &["--dpdk", &port, "--idle-exit", "1ms"]));
    let is_missing = ended.err.contains("failed to parse device") || ended.err.contains("no driver");
    if is_missing {
        println!("skipped, no {driver}: {}", ended.err);
    }
    !is_missing
}

/// Checks that a frame is answered by another.
fn expect_answer(peer: &mut PacketSocket, frame: &[u8], back: &[u8]) {
    peer.send(frame);
    assert!(peer.receive_where(TIMEOUT, |frame| frame.bytes == back).is_some(), "no answer {back:02x?}");
}

/// Checks that frames of many lengths come back with their addresses swapped.
fn check_reflection(running: Running, peer: &mut PacketSocket, veth: &Veth) {
    const COUNT: u32 = 300;
    for number in 0..COUNT {
        let frame = numbered(veth, number, 60 + number as usize * 4);
        expect_answer(peer, &frame, &swapped(frame.clone()));
    }
    // The kernel removes VLAN tags, and a driver may deliver them separately.
    let tagged = [&numbered(veth, COUNT, 60)[..12], &[0x81, 0, 0x20, 5], &numbered(veth, COUNT, 300)[12..]].concat();
    expect_answer(peer, &tagged, &swapped(tagged.clone()));
    let json = running.stop().parse_json();
    assert!(json["carried_out"]["tx"].as_u64().unwrap() > COUNT.into(), "{json}");
}

#[test]
fn a_kernel_interface_serves_as_a_port() {
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
        check_reflection(running, &mut PacketSocket::at(&veth.left), &veth);
    }
}

#[test]
fn a_tap_interface_serves_as_a_port() {
    let Some(_suite) = Suite::begin("a TAP interface as DPDK's port", "dpdk", &[]) else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    if !has_driver(&right, "net_tap") {
        return;
    }
    // Created only for its addresses.
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let running = Running::start(command(&right, "mac_swap", &["--dpdk", "net_tap0,iface=dtap0"]));
    let mut peer = PacketSocket::open(&right, "dtap0");
    check_reflection(running, &mut peer, &veth);
}

/// Waits for the end of a run that fails because an interface is gone, and returns its totals.
fn ended_by(interface: &str, running: Running) -> Value {
    running.wait().assert_exit(1, &[&format!("error: {interface}: the interface is gone")]).parse_json()
}

#[test]
fn deleting_a_ports_interface_ends_the_run() {
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
        expect_answer(&mut peer, &frame, &swapped(frame.clone()));
        // Under traffic, which continues after the interface is gone.
        let json = std::thread::scope(|scope| {
            let frame = numbered(&veth, 8, 60);
            // Ends by itself if the test fails.
            let begun = Instant::now();
            scope.spawn(move || while peer.offer(&frame).is_ok() && begun.elapsed() < TIMEOUT {});
            std::thread::sleep(QUIET_TIME);
            right.ip(&["link", "delete", name]);
            ended_by(name, running)
        });
        assert!(json["carried_out"]["tx"].as_u64().unwrap() > 1, "{json}");
    }
}

/// Packets to a deleted redirect target are lost, and all others continue.
#[test]
fn losing_the_pass_to_interface_ends_a_run_and_losing_a_target_does_not() {
    let Some(_suite) = Suite::begin("interfaces that DPDK's packets go to", "dpdk", &[]) else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    if !has_driver(&right, "net_tap") || !has_driver(&right, "net_af_packet") {
        return;
    }
    let place = Place::new();
    // The last byte of a frame says where it goes: to the target, or back.
    place.file(
        "f.wgsl",
        "fn xdp_filter(pkt: u32) -> u32 { if load_u8(pkt, pkt_len(pkt) - 1u) == 3u { return redirect(3u); } return XDP_TX; }",
    );
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let target = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    let port = format!("net_af_packet0,iface={}", veth.right.name());
    let redirect = format!("3=net_af_packet1,iface={}", target.right.name());
    // The duration ends the run if the test fails.
    let arguments = ["--dpdk", &port, "--redirect", &redirect, "--pass-to", "tap:kernel0", "--duration", "60s"];
    let filter = place.path("f");
    let mut running = Running::start(command(&right, filter.to_str().unwrap(), &arguments));
    let mut peer = PacketSocket::at(&veth.left);
    let frame = |last| [&numbered(&veth, 7, 60)[..59], &[last]].concat();
    let mut target_peer = PacketSocket::at(&target.left);
    peer.send(&frame(3));
    assert!(target_peer.receive_where(TIMEOUT, |it| it.bytes == frame(3)).is_some(), "the frame gets to the target");
    expect_answer(&mut peer, &frame(1), &frame(1));
    let gone = format!("the interface is gone interface={}", target.right.name());
    target.delete();
    running.wait_for(&gone);
    for _ in 0..100 {
        peer.send(&frame(3));
        expect_answer(&mut peer, &frame(1), &frame(1));
    }
    right.ip(&["link", "delete", "kernel0"]);
    let json = ended_by("kernel0", running);
    assert_eq!((&json["packets"], &json["carried_out"]["tx"]), (&202.into(), &101.into()), "{json}");
}

/// Packets that pass reach the kernel, and its packets are sent: an address that only the pass-to
/// interface has answers echo requests and accepts connections.
#[test]
fn packets_pass_into_the_kernel_and_its_answers_are_sent() {
    let Some(_suite) = Suite::begin("packets of DPDK into the kernel", "dpdk", &["ethtool", "iptables-legacy"]) else {
        return;
    };
    let (left, right) = (Namespace::new(), Namespace::new());
    if !has_driver(&right, "net_tap") || !has_driver(&right, "net_af_packet") {
        return;
    }
    let veth = Veth::between(&left, &right).without_ipv4().without_ipv6().make();
    for end in [&veth.left, &veth.right] {
        // Checksums stay incomplete, but segments are cut, as the driver truncates longer packets.
        end.ethtool(&["-K", "tso off gso off gro off"]);
    }
    left.ip(&["address", "add", "10.9.0.1/24", "dev", veth.left.name()]);
    // The kernel sees the interface's packets too, as this driver only listens; it must not answer.
    let drop = ["-t", "raw", "-A", "PREROUTING", "-i", veth.right.name(), "-j", "DROP"];
    let status = right.command("iptables-legacy").args(drop).status().unwrap();
    assert!(status.success(), "iptables-legacy adds the rule");
    right.sysctl(&format!("net/ipv4/conf/{}/arp_ignore", veth.right.name()), "8");

    let port = format!("net_af_packet0,iface={}", veth.right.name());
    let running = Running::start(command(&right, "minimal", &["--dpdk", &port, "--pass-to", "tap:kernel0"]));
    let link = right.ip(&["-oneline", "link", "show", "kernel0"]);
    let mac = veth.right.mac().map(|byte| format!("{byte:02x}")).join(":");
    assert!(link.contains(&mac), "kernel0 has the port's address {mac}: {link}");
    right.ip(&["address", "add", "10.9.0.2/24", "dev", "kernel0"]);
    let address: std::net::Ipv4Addr = "10.9.0.2".parse().unwrap();
    assert!(ping(&left, address.into(), TIMEOUT), "the kernel answers");
    tcp_echo(&left, &right, (address, 0), 500_000, TIMEOUT).unwrap();
    let json = running.stop().parse_json();
    assert_eq!(json["carried_out"]["pass"], json["packets"], "{json}");
    assert!(json["from_stack"].as_u64().unwrap() > 100, "{json}");
    assert!(json["checksums_completed"].as_u64().unwrap() > 100, "checksums were left to the other end: {json}");
    // The run deletes its interface at the end.
    wait_until("kernel0 is gone", Duration::from_secs(10), || {
        !Command::new("ip").args(["-netns", right.name(), "link", "show", "kernel0"]).output().unwrap().status.success()
    });
}
