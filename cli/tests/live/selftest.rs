//! `portcullis selftest --af-xdp` on a veth interface.

use std::net::IpAddr;
use std::process::Command;

use portcullis_live_tests::frames::EXPERIMENTAL_ETHERTYPE;
use portcullis_live_tests::{Frame, Namespace, PacketSocket, ping, tcp_echo};
use serde_json::Value;

use crate::af_xdp::{Net, has_program, net};
use crate::support::{QUIET_TIME, RunOutput, Running, TIMEOUT, program, run_to_end};

/// Returns the command `portcullis selftest` with these arguments in a namespace.
fn selftest(namespace: &Namespace, arguments: &[&str]) -> Command {
    program(namespace, &[&["selftest"], arguments].concat())
}

fn is_test_frame(frame: &Frame) -> bool {
    frame.ether_type() == EXPERIMENTAL_ETHERTYPE
}

/// Returns the modes that ran, each with its report.
fn ran(json: &Value) -> Vec<(&str, &Value)> {
    let ways = json["ways"].as_array().unwrap();
    ways.iter().filter(|way| way["outcome"] == "ran").map(|way| (way["mode"].as_str().unwrap(), way)).collect()
}

#[test]
fn it_reports_the_drivers_modes_without_taking_or_sending_packets() {
    let Some(Net { veth, left, right, _suite }) = net(2) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let name = veth.right.name();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let before = right.ip(&["link"]);
    let arguments = ["--af-xdp", name, "--duration", "300ms", "--json", file.to_str().unwrap()];
    let running = Running::start(selftest(&right, &arguments));
    // No packet is taken, so logins stay connected.
    let address: IpAddr = veth.right.ipv4().into();
    tcp_echo(&left, &right, (address, 22), 1 << 20, TIMEOUT).unwrap();
    let ended = running.wait().assert_success();
    ended.assert_stdout_contains(&[
        &format!("{name}: veth, MTU 1500, link up"),
        "zero copy  unsupported",
        "native mode, zero copy: the driver has no zero-copy mode",
        "received: only frames of EtherType 0x88b5",
        "sent: nothing",
        &format!("{name} is unchanged"),
        "selftest passed",
    ]);
    // On a veth pair the other end decides about tags.
    assert!(!ended.out.contains("rx-vlan-offload"), "{}", ended.out);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!((&json["driver"], &json["taken"], &json["changed"]), (&"veth".into(), &"none".into(), &Value::Null));
    let ran = ran(&json);
    assert_eq!(ran.iter().map(|(mode, _)| *mode).collect::<Vec<_>>(), ["native", "skb"], "{json}");
    for (_, mode) in ran {
        let counts = (&mode["zero_copy"], &mode["received"], &mode["sent"]);
        assert_eq!(counts, (&false.into(), &0.into(), &0.into()), "{json}");
        assert_eq!((&mode["queues"], &mode["frames_missing"]), (&[0, 1].into(), &0.into()), "{json}");
    }
    assert!(peer.receive_where(QUIET_TIME, is_test_frame).is_none(), "a frame was sent");
    assert!(!has_program(&veth.right));
    assert_eq!(right.ip(&["link"]), before);
}

#[test]
fn sent_frames_are_addressed_to_the_interface_itself() {
    let Some(Net { veth, right, _suite, .. }) = net(2) else { return };
    let mut peer = PacketSocket::at(&veth.left);
    let arguments = ["--af-xdp", veth.right.name(), "--duration", "100ms", "--send", "--json", "-"];
    let RunOutput { out, err, .. } = run_to_end(selftest(&right, &arguments)).assert_success();
    assert!(err.contains("sent: 64 frames out of each queue"), "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    let ran = ran(&json);
    assert_eq!(ran.len(), 2, "{json}");
    for (_, mode) in &ran {
        assert_eq!((&mode["sent"], &mode["not_completed"]), (&128.into(), &0.into()), "{json}");
    }
    for _ in 0..ran.len() * 128 {
        let frame = peer.receive_where(TIMEOUT, is_test_frame).expect("the frame is sent");
        let mac = veth.right.mac();
        assert_eq!((&frame.bytes[..6], &frame.bytes[6..12], frame.bytes.len()), (&mac[..], &mac[..], 60));
    }
    assert!(peer.receive_where(QUIET_TIME, is_test_frame).is_none(), "more frames were sent");
}

#[test]
fn received_packets_are_returned_to_the_stack() {
    let Some(Net { veth, left, right, _suite }) = net(1) else { return };
    // SKB mode needs segmented packets.
    veth.left.ethtool(&["-K", "tso off gso off"]);
    let arguments = ["--af-xdp", veth.right.name(), "--duration", "1s", "--all", "--json", "-"];
    let running = Running::start(selftest(&right, &arguments));
    assert!(running.log.contains("returned to the kernel's stack: "), "{}", running.log);
    let address: IpAddr = veth.right.ipv4().into();
    // The whole time, also between two modes.
    let ended = std::thread::scope(|scope| {
        let ended = scope.spawn(move || running.wait());
        while !ended.is_finished() {
            assert!(ping(&left, address, TIMEOUT));
            tcp_echo(&left, &right, (address, 0), 100_000, TIMEOUT).unwrap();
        }
        ended.join().unwrap()
    });
    let json: Value = serde_json::from_str(&ended.assert_success().out).unwrap();
    let ran = ran(&json);
    assert_eq!(ran.len(), 2, "{json}");
    for (_, mode) in ran {
        let (received, passed) = (mode["received"].as_u64().unwrap(), mode["passed"].as_u64().unwrap());
        assert!(received > 100 && passed == received && mode["arrived"].as_u64() > Some(0), "{json}");
    }
    assert!(!right.ip(&["link"]).contains("back into the kernel"));
}

#[test]
fn invalid_arguments_and_busy_interfaces_are_refused() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let name = veth.right.name();
    let beyond = format!("{name}:7");
    let running = Running::start(crate::support::command(&right, "minimal", &["--af-xdp", name]));
    for (arguments, code, message) in [
        (&["--af-xdp", "no_such_if"][..], 1, "there is no interface `no_such_if`"),
        (&["--af-xdp", &beyond], 1, "and no queue 7"),
        (&["--af-xdp", "a/b"], 2, "not an interface name"),
        (&["--af-xdp", name, "--only", "tcp/http"], 2, "--only"),
        (&["--af-xdp", name, "--only", "tcp/80", "--all"], 2, "cannot be used with"),
        (&["--af-xdp", name, "--device", "cpu"], 2, "cannot be used with"),
        (&["--send"], 2, "--af-xdp"),
        (&["--af-xdp", name, "--duration", "5"], 2, "a time with its unit"),
        // Another program holds the interface.
        (&["--af-xdp", name], 1, "another XDP program is attached"),
    ] {
        run_to_end(selftest(&right, arguments)).assert_failure(code, &[message]);
    }
    running.stop();
    // An interrupted test restores the interface.
    let running = Running::start(selftest(&right, &["--af-xdp", name, "--duration", "1m", "--only", "udp/9"]));
    running.signal("INT");
    running.wait().assert_exit(130, &[]).assert_stdout_contains(&["selftest interrupted"]);
    assert!(!has_program(&veth.right) && !right.ip(&["link"]).contains("back into the kernel"));
}
