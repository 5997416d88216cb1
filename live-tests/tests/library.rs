//! Tests of this library: namespaces, links and packet sockets.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use portcullis_live_tests::{
    Checksum, Namespace, PacketSocket, QUIET_TIME, Suite, TIMEOUT, Veth, create_link_with, ping, remove_leftovers,
    wait_until,
};

fn begin() -> Option<Suite> {
    Suite::begin("network namespaces", "af-xdp", &["ethtool"])
}

/// Builds a frame of the EtherType for experiments (IEEE Std 802, 88b5), which no kernel answers.
fn experiment(veth: &Veth, payload: &[u8]) -> Vec<u8> {
    [&veth.right.mac()[..], &veth.left.mac(), &[0x88, 0xb5], payload].concat()
}

#[test]
fn linked_namespaces_reach_each_other_and_no_other() {
    let Some(_suite) = begin() else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
    for address in addresses {
        assert!(ping(&left, address, TIMEOUT), "{address}");
        assert!(!ping(&other, address, QUIET_TIME), "{address}");

        let listener = right.run(|| TcpListener::bind((address, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut sent = left.run(|| TcpStream::connect_timeout(&SocketAddr::new(address, port), TIMEOUT)).unwrap();
        let (mut received, _) = listener.accept().unwrap();
        sent.write_all(b"through").unwrap();
        drop(sent);
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }
    veth.right.down();
    assert!(!ping(&left, addresses[0], QUIET_TIME));
    veth.right.up();
    veth.right.wait_until_running();
    assert!(ping(&left, addresses[0], TIMEOUT));
    // The address belongs to the link, and is removed with it.
    veth.delete();
    assert!(!ping(&left, addresses[0], QUIET_TIME));
    assert!(!left.ip(&["link"]).contains("veth"));
}

#[test]
fn frames_go_through_byte_for_byte() {
    let Some(_suite) = begin() else { return };
    let (_, _, veth) = create_link_with(|link| link.mtu(9000).without_ipv4().without_ipv6());
    let (near, mut far) = (PacketSocket::at(&veth.left), PacketSocket::at(&veth.right));
    let payload: Vec<u8> = (0..9000u32).map(|i| ((i * i) >> 5) as u8).collect();
    for length in [0, 1, 45, 46, 1500, 8996, 9000] {
        near.send(&experiment(&veth, &payload[..length]));
        let frame = far.receive(TIMEOUT).unwrap();
        assert!(frame.bytes == experiment(&veth, &payload[..length]), "{length}");
        assert_eq!((frame.ether_type(), frame.checksum), (0x88b5, Checksum::Unknown));
    }
    assert_eq!(near.try_send(&experiment(&veth, &[0; 9010])).unwrap_err().raw_os_error(), Some(90)); // EMSGSIZE
    // The kernel removes VLAN tags, and the socket puts them back.
    for tags in [&[0x81, 0x00, 0x20, 0x05][..], &[0x88, 0xa8, 0, 1, 0x81, 0x00, 0xff, 0xff]] {
        let mut tagged = experiment(&veth, &payload[..100]);
        tagged.splice(12..12, tags.iter().copied());
        near.send(&tagged);
        assert_eq!(far.receive(TIMEOUT).unwrap().bytes, tagged);
    }
    // No other frame is on the link, and a socket does not receive what it sends.
    far.send(&experiment(&veth, &payload));
    assert_eq!(far.receive(QUIET_TIME), None);
    let mut near = near;
    assert!(near.receive_where(TIMEOUT, |frame| frame.bytes.len() == 9014).is_some());
}

#[test]
fn a_checksum_left_to_the_card_is_reported_as_partial() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let first = Veth::between(&left, &right).make();
    let second = Veth::between(&left, &right).subnet(1).without_offloads().make();
    for (veth, checksum) in [(first, Checksum::Partial), (second, Checksum::Unknown)] {
        let mut socket = PacketSocket::at(&veth.right);
        let address = (IpAddr::from(veth.right.ipv4()), 9);
        left.run(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"discarded", address)).unwrap();
        let frame = socket.receive_where(TIMEOUT, |frame| frame.bytes.ends_with(b"discarded")).unwrap();
        assert_eq!(frame.checksum, checksum);
        assert_eq!((&frame.bytes[..6], &frame.bytes[6..12]), (&veth.right.mac()[..], &veth.left.mac()[..]));
    }
}

#[test]
fn links_have_the_requested_number_of_queues() {
    let Some(_suite) = begin() else { return };
    let (_, _, veth) = create_link_with(|link| link.queues(3));
    for end in [&veth.left, &veth.right] {
        let current = end.ethtool(&["-l"]);
        let current = current.split("Current").nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(current.contains("RX: 3 TX: 3"), "{current}");
    }
}

fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

#[test]
fn dropping_a_namespace_removes_it_and_kills_its_programs() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let clone = namespace.clone();
    let name = namespace.name().to_owned();
    let mut sleeper = namespace.command("sleep").arg("1000").spawn().unwrap();
    // `ip netns exec` enters the namespace a moment after it starts.
    wait_until("the program is in the namespace", TIMEOUT, || {
        let pids = Command::new("ip").args(["netns", "pids", &name]).output().unwrap();
        String::from_utf8(pids.stdout).unwrap().trim() == sleeper.id().to_string()
    });
    drop(namespace);
    assert!(exists(&name) && sleeper.try_wait().unwrap().is_none());
    let failed = std::panic::catch_unwind(move || {
        let namespace = clone;
        namespace.run(|| panic!("a test fails"))
    });
    assert_eq!(failed.unwrap_err().downcast_ref(), Some(&"a test fails"));
    assert!(!exists(&name));
    wait_until("the program is killed", TIMEOUT, || sleeper.try_wait().unwrap().is_some());
}

#[test]
fn namespaces_of_killed_processes_are_removed() {
    let Some(_suite) = begin() else { return };
    let mut process = Command::new("true").spawn().unwrap();
    process.wait().unwrap();
    // One namespace of a dead process, one of a living process, and one with another prefix.
    let dead = format!("portcullis-{}-0", process.id());
    let alive = format!("portcullis-{}-kept", std::process::id());
    let names = [dead.clone(), alive, format!("other-{}-0", process.id())];
    for name in &names {
        assert!(Command::new("ip").args(["netns", "add", name]).status().unwrap().success());
    }
    let mut sleeper = Command::new("ip");
    sleeper.args(["netns", "exec", &dead, "sh", "-c", "echo; exec sleep 1000"]).stdout(Stdio::piped());
    let mut sleeper = sleeper.spawn().unwrap();
    sleeper.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    remove_leftovers();
    let exist = names.each_ref().map(|name| exists(name));
    for name in &names[1..] {
        assert!(Command::new("ip").args(["netns", "delete", name]).status().unwrap().success());
    }
    assert_eq!(exist, [false, true, true]);
    wait_until("the program is killed", TIMEOUT, || sleeper.try_wait().unwrap().is_some());
}
