//! Packets that an XDP program sends to all devices of a map (`BPF_F_BROADCAST`), over captures.

use std::collections::BTreeMap;

use crate::clang;
use crate::support::{Place, packets};

/// An object whose action is the last byte of the packet's destination address.
const PROGRAM: &str = r#"
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u32);
} ports SEC(".maps");

SEC("xdp")
int hub(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    switch (eth->h_dest[5]) {
    case 0:
        return bpf_redirect_map(&ports, 7, BPF_F_BROADCAST);
    case 1:
        return bpf_redirect_map(&ports, 7, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
    case 2:
        return bpf_redirect(2, 0);
    case 3:
        return bpf_redirect(0xffffe0, 0);
    case 4:
        return bpf_redirect_map(&ports, 7, XDP_TX);
    default:
        return bpf_redirect_map(&ports, 3, XDP_TX);
    }
}

char LICENSE[] SEC("license") = "GPL";
"#;

/// Compiles the program; `None` without clang.
fn object(place: &Place) -> Option<&'static str> {
    place.file("hub.c", PROGRAM);
    clang::require_clang(clang::to_file(&place.path("hub.c"), &[], &place.path("hub.o")))?;
    Some("hub.o")
}

/// Builds a pcapng capture of packets, each with its ingress interface, out of four.
fn pcapng(packets: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let block = |kind: u32, words: &[u32], data: &[u8]| {
        let length = 12 + 4 * words.len() + data.len().next_multiple_of(4);
        let mut block: Vec<u8> = [kind, length as u32].iter().chain(words).flat_map(|it| it.to_le_bytes()).collect();
        block.extend(data);
        block.resize(length - 4, 0);
        block.extend((length as u32).to_le_bytes());
        block
    };
    let mut all = block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX], &[]);
    (0..4).for_each(|_| all.extend(block(1, &[1, 0], &[])));
    for (interface, packet) in packets {
        let length = packet.len() as u32;
        all.extend(block(6, &[*interface, 0, 0, length, length], packet));
    }
    all
}

#[test]
fn packets_go_to_every_device_of_a_map() {
    let place = Place::new();
    let Some(object) = object(&place) else { return };
    // Device 2 twice, and a slot that is emptied.
    let devices = [(0, 1), (3, 2), (4, 3), (6, 2)];
    let rows: String = devices.iter().map(|(slot, port)| format!("{slot},{port}\n")).collect();
    place.file("ports.csv", rows + "5,0\n");
    let sent: Vec<(u32, Vec<u8>)> = (0..600_u32)
        .map(|number| {
            let mut packet = vec![0; 60 + (number % 50) as usize];
            packet[5] = (number * 7 % 6) as u8;
            packet[20..24].copy_from_slice(&number.to_be_bytes());
            (number % 4, packet)
        })
        .collect();
    place.file("in.pcapng", pcapng(&sent));
    // Expected contents of each file, in order.
    let mut files: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    let (mut redirected, mut aborted, mut back) = (0, 0, 0);
    for (ingress, packet) in &sent {
        let to: Vec<u32> = match packet[5] {
            0 => devices.iter().map(|(_, port)| *port).collect(),
            1 => devices.iter().map(|(_, port)| *port).filter(|port| port != ingress).collect(),
            2 => vec![2],
            3 => {
                aborted += 1;
                continue;
            }
            4 => {
                back += 1;
                continue;
            }
            _ => vec![2],
        };
        redirected += 1;
        to.into_iter().for_each(|port| files.entry(port).or_default().push(packet.clone()));
    }
    for extra_args in [&["--device", "cpu"][..], &["--device", "interp", "--batch", "7"]] {
        let arguments = ["run", object, "--read", "in.pcapng", "--map", "ports=ports.csv", "--write-redirect", "out"];
        let json = place.run(&[&arguments[..], &["--json"], extra_args].concat()).assert_success().parse_json();
        let verdicts = &json["verdicts"];
        assert_eq!(
            (&verdicts["redirect"], &verdicts["aborted"], &verdicts["tx"]),
            (&redirected.into(), &aborted.into(), &back.into())
        );
        let targets = json["redirect_targets"].as_object().unwrap();
        assert_eq!(targets.len(), files.len(), "{json}");
        for (port, want) in &files {
            assert_eq!(targets[&port.to_string()], want.len(), "{json}");
            assert_eq!(packets(&place.read(&format!("out/{port}.pcap"))), *want, "port {port}");
        }
        assert_eq!(std::fs::read_dir(place.path("out")).unwrap().count(), files.len());
    }
}
