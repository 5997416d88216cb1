//! Places where a program aborts packets are reported during a run and at its end, also after a
//! reload.

use std::net::UdpSocket;
use std::os::unix::net::UnixStream;

use portcullis_live_tests::{PacketSocket, wait_until};
use serde_json::Value;

use crate::af_xdp::{Net, net};
use crate::ctl::{CtlFolder, numbered};
use crate::events::object;
use crate::support::{Running, TIMEOUT, program};
use crate::watching::{REQUEST, ask, series};

/// Reads beyond the frame, which has 60 bytes, if the number is odd.
const FIRST: &str = r#"
    SEC("xdp") int first(struct xdp_md *ctx)
    {
        __u8 *data = (void *)(long)ctx->data;
        return data[45] & 1 ? data[60] : XDP_DROP;
    }"#;
/// Looks up a map entry that does not exist, and dereferences the result.
const SECOND: &str = r#"
    struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } none SEC(".maps");
    SEC("xdp") int second(struct xdp_md *ctx)
    {
        __u8 *data = (void *)(long)ctx->data;
        __u32 key = data[45];
        __u32 *value = bpf_map_lookup_elem(&none, &key);
        return *value;
    }"#;

/// Returns function, count and reason of each place, in the functions' order.
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

#[test]
fn places_of_aborted_packets_are_reported_during_a_run_and_at_its_end() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let (Some(first), Some(second)) = (object(&ctl, "first", FIRST), object(&ctl, "second", SECOND)) else { return };
    let peer = PacketSocket::at(&veth.left);
    let send = |numbers: std::ops::Range<u32>| numbers.for_each(|number| peer.send(&numbered(&veth, number)));
    let af_xdp_arguments =
        ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--stack", "none", "--device", "cpu"];
    for dispatch in ["inline", "pipelined"] {
        let socket = ctl.socket();
        let more = ["run", &first, "--dispatch", dispatch, "--control", &socket, "--stats", "100ms", "--json"];
        let mut running = Running::start(program(&right, &[&more[..], &af_xdp_arguments].concat()));
        let stats = || ctl.run_json(&["stats"]);
        let wait_for_packets =
            |count: u64| wait_until("the packets are received", TIMEOUT, || stats()["packets"] == count);
        assert_eq!(places(&stats()), []);
        send(0..20);
        wait_for_packets(20);
        assert_eq!(places(&stats()), [("first", 10, SHORT)], "{dispatch}");
        assert!(ctl.run_successfully(&["stats"]).contains("10 aborted at instruction"), "{dispatch}");
        let map = ctl.run_json(&["map", "get", "traps"]);
        // The first of two places, which every packet reaches.
        let (reason, function) = (&map[1]["reason"], &map[1]["function"]);
        assert_eq!((&map[1]["sum"], reason, function), (&10.into(), &SHORT.into(), &"first".into()));
        // So do the lines of `--stats`.
        let mut line = Value::Null;
        while places(&line["total"]) != [("first", 10, SHORT)] {
            line = serde_json::from_str(&running.read_line()).unwrap();
            assert!(line["total"]["packets"].as_u64() <= Some(20), "{line}");
        }
        // Another program's counts start at zero, and the run reports those of both.
        let output = ctl.run_successfully(&["reload", &second]);
        assert!(!output.contains("traps"), "{output}");
        send(0..6);
        wait_for_packets(26);
        assert_eq!(places(&stats()), [("first", 10, SHORT), ("second", 6, NULL)], "{dispatch}");
        assert!(ctl.run_successfully(&["map", "get", "traps", "1"]).contains("\n1,6,second,"), "{dispatch}");
        // The first program again.
        ctl.run_successfully(&["reload", &first]);
        send(0..4);
        wait_for_packets(30);
        let ended = running.stop();
        let last: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
        assert_eq!(places(&last), [("first", 12, SHORT), ("second", 6, NULL)], "{dispatch}");
        assert_eq!(last["verdicts"]["aborted"], 18, "{last}");
    }
    // The table at the end and the metrics. The first packet is dropped, the second aborted.
    let (socket, metrics) = (ctl.socket(), ctl.path("metrics"));
    let to = format!("unix:{}", metrics.display());
    let arguments = ["run", &first, "--control", &socket, "--metrics", &to];
    let mut running = Running::start(program(&right, &[&arguments[..], &af_xdp_arguments].concat()));
    running.wait_for("metrics: unix:");
    send(0..2);
    wait_until("the packets are received", TIMEOUT, || {
        ctl.run_successfully(&["stats"]).contains("1 aborted at instruction")
    });
    let trapped = || {
        let all = series(&ask(UnixStream::connect(&metrics).unwrap(), REQUEST));
        all.into_iter().find(|(name, _)| name.starts_with("portcullis_trapped_packets_total{instruction="))
    };
    // The counters are read between batches.
    wait_until("the metrics count them", TIMEOUT, || {
        peer.send(&numbered(&veth, 0));
        trapped().is_some()
    });
    let (name, count) = trapped().unwrap();
    assert!(count == 1.0 && name.ends_with(&format!("reason=\"{SHORT}\"}}")), "{name} {count}");
    let ended = running.stop();
    let line = ended.out.lines().last().unwrap_or_default();
    assert!(line.starts_with("1 aborted at instruction ") && line.ends_with(&format!(": {SHORT}")), "{}", ended.out);
}

#[test]
fn packets_out_of_fuel_are_reported_during_a_run_and_at_its_end() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let loops = "fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < load_u8(pkt, 45u); i++) {} return XDP_DROP; }";
    let filter = ctl.filter("loops", loops) + ".wgsl";
    let af_xdp_arguments =
        ["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--stack", "none", "--device", "cpu"];
    let socket = ctl.socket();
    // The last iteration is the one that ends the loop.
    let arguments = ["run", &filter, "--fuel", "5", "--control", &socket, "--json"];
    let running = Running::start(program(&right, &[&arguments[..], &af_xdp_arguments].concat()));
    let peer = PacketSocket::at(&veth.left);
    // Packets from number 5 on run out of fuel.
    (0..8).for_each(|number| peer.send(&numbered(&veth, number)));
    wait_until("the packets are received", TIMEOUT, || {
        ctl.run_successfully(&["stats"]).contains("\n3 aborted for lack of fuel: see --fuel\n")
    });
    let last = running.stop().parse_json();
    assert_eq!(last["verdicts"]["aborted"], 3, "{last}");
    assert_eq!(last["out_of_fuel"], serde_json::json!({"at_least": 3, "at_most": 3}), "{last}");
}

#[cfg(feature = "nfqueue")]
#[test]
fn places_of_aborted_packets_are_reported_with_nfqueue() {
    let rules = ["-A INPUT -p udp --dport 9 -j NFQUEUE --queue-num 5"];
    let Some(crate::nfqueue::Net { veth, left, right, _suite }) = crate::nfqueue::net(&rules) else { return };
    let ctl = CtlFolder::new();
    let Some(object) = object(&ctl, "first", FIRST) else { return };
    let socket = ctl.socket();
    let arguments = ["run", &object, "--nfqueue", "5", "--device", "cpu", "--control", &socket, "--json"];
    let running = Running::start(program(&right, &arguments));
    let sender = left.run(|| UdpSocket::bind(("0.0.0.0", 0))).unwrap();
    for number in 0..8_u32 {
        let payload = [&number.to_be_bytes()[..], &[0; 14]].concat();
        sender.send_to(&payload, (veth.right.ipv4(), 9)).unwrap();
    }
    wait_until("the packets are received", TIMEOUT, || ctl.run_json(&["stats"])["packets"] == 8);
    assert_eq!(places(&running.stop().parse_json()), [("first", 4, SHORT)]);
}
