//! `--events` of a live run: lines are written while packets arrive, also after a reload.

use portcullis_live_tests::{PacketSocket, wait_until};
use serde_json::{Value, json};

use crate::af_xdp::{Net, net};
use crate::clang;
use crate::ctl::{CtlFolder, numbered};
use crate::support::{Running, TIMEOUT, program};

/// A program that outputs each packet's length as an event, and one that prints it.
const RECORDS: &str = r#"
    struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } lengths SEC(".maps");
    SEC("xdp") int tell(struct xdp_md *ctx)
    {
        __u32 length = ctx->data_end - ctx->data;
        bpf_ringbuf_output(&lengths, &length, sizeof(length), 0);
        return XDP_DROP;
    }"#;
const PRINTS: &str = r#"
    SEC("xdp") int print(struct xdp_md *ctx)
    {
        bpf_printk("a packet of %u bytes", ctx->data_end - ctx->data);
        bpf_printk("and no more");
        return XDP_DROP;
    }"#;

/// Events that cannot be written are lost, and end the run.
#[test]
fn events_that_cannot_be_written_are_counted_as_lost() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let Some(ring) = object(&ctl, "records", RECORDS) else { return };
    let mut command = program(&right, &["run", &ring, "--device", "cpu", "--json", "--events", "/dev/full"]);
    command.args(["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--stack", "none"]);
    let running = Running::start(command);
    let peer = PacketSocket::at(&veth.left);
    (0..4).for_each(|number| peer.send(&numbered(&veth, number)));
    let totals = running.wait().assert_exit(1, &["/dev/full: writing failed"]).parse_json();
    let packets = totals["packets"].as_u64().unwrap();
    assert!(packets > 0 && totals["events"] == json!({"count": 0, "lost": packets}), "{totals}");
}

/// Compiles a program to an object; `None` without clang.
pub fn object(ctl: &CtlFolder, name: &str, text: &str) -> Option<String> {
    let source = ctl.text(&format!("{name}.c"));
    let head = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar LICENSE[] SEC(\"license\") = \"GPL\";\n";
    std::fs::write(&source, format!("{head}{text}\n")).unwrap();
    let object = ctl.text(&format!("{name}.o"));
    clang::require_clang(clang::to_file(source.as_ref(), &["-mcpu=v3"], object.as_ref()))?;
    Some(object)
}

#[test]
fn events_are_written_during_a_run_and_after_each_reload() {
    let Some(Net { veth, right, _suite, .. }) = net(1) else { return };
    let ctl = CtlFolder::new();
    let objects = (object(&ctl, "records", RECORDS), object(&ctl, "prints", PRINTS));
    let (Some(ring), Some(print)) = objects else { return };
    let plain = ctl.filter("plain", "fn xdp_filter(pkt: u32) -> u32 { return XDP_DROP; }") + ".wgsl";
    let peer = PacketSocket::at(&veth.left);
    let send = |count: u32| (0..count).for_each(|number| peer.send(&numbered(&veth, number)));
    for dispatch in ["inline", "pipelined"] {
        let mut command = program(&right, &["run", &ring, "--device", "cpu", "--dispatch", dispatch, "--json"]);
        command.args(["--af-xdp", veth.right.name(), "--only", "udp/1000-1063", "--stack", "none"]);
        command.args(["--control", &ctl.socket(), "--events", &ctl.text("out.jsonl")]);
        let running = Running::start(command);
        let lines = || -> Vec<Value> {
            let text = std::fs::read_to_string(ctl.path("out.jsonl")).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        send(20);
        wait_until("the records are written", TIMEOUT, || lines().len() == 20);
        // 14 bytes of Ethernet, 20 of IPv4, 8 of UDP, 18 of data.
        assert!(lines().iter().all(|line| line["map"] == "lengths" && line["data"] == "3c000000"), "{:?}", lines());
        // An event ring has no entries.
        ctl.assert_failure(1, &["map", "get", "lengths"], &["`lengths` is an event ring"]);
        ctl.assert_failure(1, &["map", "set", "lengths", "0", "1"], &[]);
        ctl.run_successfully(&["reload", &print]);
        send(5);
        wait_until("the prints are written", TIMEOUT, || lines().len() == 30);
        assert!(lines()[20..].iter().all(|line| line["map"] == "printk"), "{:?}", lines());
        assert_eq!(lines()[20]["text"], "a packet of 60 bytes");
        // A filter without events, then one with events again.
        ctl.run_successfully(&["reload", &plain]);
        send(5);
        ctl.run_successfully(&["reload", &ring]);
        send(7);
        assert_eq!(running.stop().parse_json()["events"], json!({"count": 37, "lost": 0}), "{dispatch}");
        assert_eq!(lines().len(), 37, "{dispatch}");
    }
}
