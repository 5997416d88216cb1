//! Where a program's packets are aborted is told while they come and in the end, also when another
//! program has taken over.

use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use portcullis_live_tests::{Namespace, PacketSocket, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net};
use crate::desk::{Desk, numbered};
use crate::events::object;
use crate::support::{Running, SOON};
use crate::watching::{REQUEST, ask, series};

/// Frames are of 60 bytes, and the last of the number's decides whether the program reads further.
const FIRST: &str = r#"
    SEC("xdp") int first(struct xdp_md *ctx)
    {
        __u8 *data = (void *)(long)ctx->data;
        return data[45] & 1 ? data[60] : XDP_DROP;
    }"#;
/// And here what it looks for.
const SECOND: &str = r#"
    struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } none SEC(".maps");
    SEC("xdp") int second(struct xdp_md *ctx)
    {
        __u8 *data = (void *)(long)ctx->data;
        __u32 key = data[45];
        __u32 *value = bpf_map_lookup_elem(&none, &key);
        return *value;
    }"#;

/// Count and reason of each place, in the functions' order.
fn places(line: &Value) -> Vec<(&str, u64, &str)> {
    let all = line["traps"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
    let one = |it| -> Option<(&str, u64, &str)> {
        let it: &Value = it;
        Some((it["function"].as_str()?, it["count"].as_u64()?, it["reason"].as_str()?))
    };
    all.map(|it| one(it).unwrap_or_else(|| panic!("{it}"))).collect()
}

const SHORT: &str = "the packet is not so long";
const NULL: &str = "the pointer to a map's value is NULL";

fn portcullis(right: &Namespace, arguments: &[&str]) -> Command {
    let mut command = right.command(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("run").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn what_packets_are_aborted_at_is_told_while_they_come_and_in_the_end() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let (Some(first), Some(second)) = (object(&desk, "first", FIRST), object(&desk, "second", SECOND)) else { return };
    let peer = PacketSocket::at(&veth.left);
    let send = |numbers: std::ops::Range<u32>| numbers.for_each(|number| peer.send(&numbered(&veth, number)));
    let of_link = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--stack", "none", "--device", "cpu"];
    for dispatch in ["inline", "pipelined"] {
        let socket = desk.socket();
        let more = [&first, "--dispatch", dispatch, "--control", &socket, "--stats", "100ms", "--json"];
        let mut running = Running::start(portcullis(&right, &[&more[..], &of_link].concat()));
        let stats = || -> Value { serde_json::from_str(&desk.done(&["stats", "--json"])).unwrap() };
        let come = |count: u64| wait_until("they have come", SOON, || stats()["packets"].as_u64() == Some(count));
        assert_eq!(places(&stats()), []);
        send(0..20);
        come(20);
        assert_eq!(places(&stats()), [("first", 10, SHORT)], "{dispatch}");
        assert!(desk.done(&["stats"]).contains("10 aborted at instruction"), "{dispatch}");
        let map: Value = serde_json::from_str(&desk.done(&["map", "get", "traps", "--json"])).unwrap();
        // Of two places, of which all packets reach the first.
        let (reason, function) = (&map[1]["reason"], &map[1]["function"]);
        assert_eq!((&map[1]["sum"], reason, function), (&10.into(), &SHORT.into(), &"first".into()));
        // So do the lines of `--stats`.
        let mut line = Value::Null;
        while places(&line["total"]) != [("first", 10, SHORT)] {
            line = serde_json::from_str(&running.line()).unwrap();
            assert!(line["total"]["packets"].as_u64() <= Some(20), "{line}");
        }
        // Counts of another program's instructions begin anew, and the run has them all.
        let told = desk.done(&["reload", &second]);
        assert!(!told.contains("traps"), "{told}");
        send(0..6);
        come(26);
        assert_eq!(places(&stats()), [("first", 10, SHORT), ("second", 6, NULL)], "{dispatch}");
        assert!(desk.done(&["map", "get", "traps", "1"]).contains("\n1,6,second,"), "{dispatch}");
        // The first again.
        desk.done(&["reload", &first]);
        send(0..4);
        come(30);
        running.signal("INT");
        let ended = running.end();
        assert!(ended.status.success(), "{}", ended.stderr);
        let last: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(places(&last), [("first", 12, SHORT), ("second", 6, NULL)], "{dispatch}");
        assert_eq!(last["verdicts"]["aborted"], 18, "{last}");
    }
    // For people, in the end, and for whoever collects numbers: the first is dropped, and the
    // second aborted.
    let (socket, metrics) = (desk.socket(), desk.path("metrics"));
    let to = format!("unix:{}", metrics.display());
    let arguments = [&first, "--control", &socket, "--metrics", &to];
    let mut running = Running::start(portcullis(&right, &[&arguments[..], &of_link].concat()));
    running.hear("metrics: unix:");
    send(0..2);
    wait_until("they have come", SOON, || desk.done(&["stats"]).contains("1 aborted at instruction"));
    let trapped = || {
        let all = series(&ask(UnixStream::connect(&metrics).unwrap(), REQUEST));
        all.into_iter().find(|(name, _)| name.starts_with("portcullis_trapped_packets_total{instruction="))
    };
    // It is looked at between batches.
    wait_until("they are in the metrics", SOON, || {
        peer.send(&numbered(&veth, 0));
        trapped().is_some()
    });
    let (name, count) = trapped().unwrap();
    assert!(count == 1.0 && name.ends_with(&format!("reason=\"{SHORT}\"}}")), "{name} {count}");
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let line = ended.stdout.lines().last().unwrap_or_default();
    assert!(line.starts_with("1 aborted at instruction ") && line.ends_with(&format!(": {SHORT}")), "{}", ended.stdout);
}

#[test]
fn packets_out_of_fuel_are_told_while_they_come_and_in_the_end() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let desk = Desk::new();
    let loops = "fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < load_u8(pkt, 45u); i++) {} return XDP_DROP; }";
    let filter = desk.filter("loops", loops) + ".wgsl";
    let of_link = ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--stack", "none", "--device", "cpu"];
    let socket = desk.socket();
    // The last iteration is the one that ends the loop.
    let arguments = [&filter, "--fuel", "5", "--control", &socket, "--json"];
    let running = Running::start(portcullis(&right, &[&arguments[..], &of_link].concat()));
    let peer = PacketSocket::at(&veth.left);
    // Those from 5 on.
    (0..8).for_each(|number| peer.send(&numbered(&veth, number)));
    wait_until("they have come", SOON, || desk.done(&["stats"]).contains("\n3 aborted for want of fuel: see --fuel\n"));
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let last = ended.json();
    assert_eq!(last["verdicts"]["aborted"], 3, "{last}");
    assert_eq!(last["out_of_fuel"], serde_json::json!({"at_least": 3, "at_most": 3}), "{last}");
}

#[cfg(feature = "nfqueue")]
#[test]
fn a_netfilter_queue_tells_of_it_too() {
    let rules = ["-A INPUT -p udp --dport 9 -j NFQUEUE --queue-num 5"];
    let Some(crate::nfqueue::Net { veth, left, right, _suite }) = crate::nfqueue::net(&rules) else { return };
    let desk = Desk::new();
    let Some(object) = object(&desk, "first", FIRST) else { return };
    let socket = desk.socket();
    let arguments = [&object, "--nfqueue", "5", "--device", "cpu", "--control", &socket, "--json"];
    let running = Running::start(portcullis(&right, &arguments));
    let sender = left.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
    for number in 0..8_u32 {
        let payload = [&number.to_be_bytes()[..], &[0; 14]].concat();
        sender.send_to(&payload, (veth.right.ipv4(), 9)).unwrap();
    }
    wait_until("they have come", SOON, || {
        serde_json::from_str::<Value>(&desk.done(&["stats", "--json"])).unwrap()["packets"].as_u64() == Some(8)
    });
    running.signal("INT");
    let ended = running.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(places(&ended.json()), [("first", 4, SHORT)]);
}
