//! What the other tests of live traffic stand on.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use portcullis_live_tests::{Checksum, Namespace, PacketSocket, Suite, Veth, ping, remove_leftovers, wait_until};

/// Long enough for whatever is to happen, on a busy machine, too.
const SOON: Duration = Duration::from_secs(20);

/// Long enough to see that nothing happens.
const NOTHING: Duration = Duration::from_millis(300);

fn begin() -> Option<Suite> {
    Suite::begin("network namespaces", "af-xdp", &["ethtool"])
}

/// An EtherType for experiments (IEEE 802, 88b5): no kernel answers it.
fn experiment(veth: &Veth, payload: &[u8]) -> Vec<u8> {
    [&veth.right.mac()[..], &veth.left.mac(), &[0x88, 0xb5], payload].concat()
}

#[test]
fn two_namespaces_reach_each_other_and_nobody_else() {
    let Some(_suite) = begin() else { return };
    let (left, right, other) = (Namespace::new(), Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).make();
    let addresses: [IpAddr; 2] = [veth.right.ipv4().into(), veth.right.ipv6().into()];
    for address in addresses {
        assert!(ping(&left, address, SOON), "{address}");
        assert!(!ping(&other, address, NOTHING), "{address}");

        let listener = right.run(|| TcpListener::bind((address, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut sent = left.run(|| TcpStream::connect_timeout(&SocketAddr::new(address, port), SOON)).unwrap();
        let (mut received, _) = listener.accept().unwrap();
        sent.write_all(b"through").unwrap();
        drop(sent);
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }
    veth.right.down();
    assert!(!ping(&left, addresses[0], NOTHING));
    veth.right.up();
    veth.right.wait_until_running();
    assert!(ping(&left, addresses[0], SOON));
    // The address came with the link, and goes with it.
    veth.delete();
    assert!(!ping(&left, addresses[0], NOTHING));
    assert!(!left.ip(&["link"]).contains("veth"));
}

#[test]
fn frames_go_through_byte_for_byte() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).mtu(9000).without_ipv4().without_ipv6().make();
    let (near, mut far) = (PacketSocket::at(&veth.left), PacketSocket::at(&veth.right));
    let payload: Vec<u8> = (0..9000u32).map(|i| ((i * i) >> 5) as u8).collect();
    for length in [0, 1, 45, 46, 1500, 8996, 9000] {
        near.send(&experiment(&veth, &payload[..length]));
        let frame = far.receive(SOON).unwrap();
        assert!(frame.bytes == experiment(&veth, &payload[..length]), "{length}");
        assert_eq!((frame.ether_type(), frame.checksum), (0x88b5, Checksum::Unknown));
    }
    assert_eq!(near.try_send(&experiment(&veth, &[0; 9010])).unwrap_err().raw_os_error(), Some(90)); // EMSGSIZE
    // The kernel takes tags out.
    for tags in [&[0x81, 0x00, 0x20, 0x05][..], &[0x88, 0xa8, 0, 1, 0x81, 0x00, 0xff, 0xff]] {
        let mut tagged = experiment(&veth, &payload[..100]);
        tagged.splice(12..12, tags.iter().copied());
        near.send(&tagged);
        assert_eq!(far.receive(SOON).unwrap().bytes, tagged);
    }
    // Nobody else speaks, and what goes out is not received.
    far.send(&experiment(&veth, &payload));
    assert_eq!(far.receive(NOTHING), None);
    let mut near = near;
    assert!(near.receive_where(SOON, |frame| frame.bytes.len() == 9014).is_some());
}

#[test]
fn what_is_left_to_the_card_is_seen_as_that() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let first = Veth::between(&left, &right).make();
    let second = Veth::between(&left, &right).subnet(1).without_offloads().make();
    for (veth, checksum) in [(first, Checksum::Partial), (second, Checksum::Unknown)] {
        let mut socket = PacketSocket::at(&veth.right);
        let address = (IpAddr::from(veth.right.ipv4()), 9);
        left.run(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"discarded", address)).unwrap();
        let frame = socket.receive_where(SOON, |frame| frame.bytes.ends_with(b"discarded")).unwrap();
        assert_eq!(frame.checksum, checksum);
        assert_eq!((&frame.bytes[..6], &frame.bytes[6..12]), (&veth.right.mac()[..], &veth.left.mac()[..]));
    }
}

#[test]
fn links_have_the_queues_they_were_given() {
    let Some(_suite) = begin() else { return };
    let (left, right) = (Namespace::new(), Namespace::new());
    let veth = Veth::between(&left, &right).queues(3).make();
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
fn a_namespace_goes_with_its_test_and_takes_its_programs_along() {
    let Some(_suite) = begin() else { return };
    let namespace = Namespace::new();
    let clone = namespace.clone();
    let name = namespace.name().to_owned();
    let mut sleeper = namespace.command("sleep").arg("1000").spawn().unwrap();
    // Until then it is not in there.
    wait_until("the program is in the namespace", SOON, || {
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
    wait_until("the program is killed", SOON, || sleeper.try_wait().unwrap().is_some());
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let Some(_suite) = begin() else { return };
    let mut process = Command::new("true").spawn().unwrap();
    process.wait().unwrap();
    // Of one that is no more, of one that is, and of somebody else.
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
    let left = names.each_ref().map(|name| exists(name));
    for name in &names[1..] {
        assert!(Command::new("ip").args(["netns", "delete", name]).status().unwrap().success());
    }
    assert_eq!(left, [false, true, true]);
    wait_until("the program is killed", SOON, || sleeper.try_wait().unwrap().is_some());
}
