//! Programs as tcpdump generates them, on packets made to match or just miss.

use super::*;
use crate::parse;

/// An Ethernet frame with an IPv4 packet, cut to `length` bytes.
fn ipv4(protocol: u8, ihl: u8, fragment: u16, ports: [u16; 2], length: usize) -> Vec<u8> {
    let mut frame = vec![0x22; 64];
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x40 | ihl, 0]);
    frame[20..22].copy_from_slice(&fragment.to_be_bytes());
    frame[23] = protocol;
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 192, 168, 1, 77]);
    let at = 14 + 4 * usize::from(ihl);
    frame.resize(frame.len().max(at + 8), 0x22);
    frame[at..at + 2].copy_from_slice(&ports[0].to_be_bytes());
    frame[at + 2..at + 4].copy_from_slice(&ports[1].to_be_bytes());
    frame.truncate(length);
    frame
}

/// An Ethernet frame with an IPv6 header and what follows it.
fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x33; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, next, 64]);
    frame.extend([0x20; 32]);
    frame.extend(rest);
    frame
}

fn parse_ok(text: &str) -> Vec<Instruction> {
    parse(&Source::new("x.bpf", text)).unwrap_or_else(|errors| panic!("{}", errors.render()))
}

/// `tcpdump -y EN10MB -ddd 'tcp port 80'`
pub const TCP_PORT_80: &str = "20,40 0 0 12,21 0 6 34525,48 0 0 20,21 0 15 6,40 0 0 54,21 12 0 80,40 0 0 56,21 10 11 80,\
21 0 10 2048,48 0 0 23,21 0 8 6,40 0 0 20,69 6 0 8191,177 0 0 14,72 0 0 14,21 2 0 80,72 0 0 16,21 0 1 80,6 0 0 262144,6 0 0 0";

/// `tcpdump -y EN10MB -ddd 'ip6 protochain 6'`
pub const PROTOCHAIN: &str = "36,40 0 0 12,21 0 33 34525,48 0 0 20,1 0 0 40,21 27 0 6,21 26 0 59,21 3 0 0,21 2 0 60,21 1 0 43,\
21 0 9 44,80 0 0 14,2 0 0 0,80 0 0 15,4 0 0 1,36 0 0 8,12 0 0 0,7 0 0 0,96 0 0 0,5 0 0 4294967281,21 0 12 51,135 0 0 0,80 0 0 14,\
2 0 0 0,135 0 0 0,4 0 0 1,7 0 0 0,80 0 0 14,4 0 0 2,36 0 0 4,7 0 0 0,96 0 0 0,5 0 0 4294967268,4 0 0 0,21 0 1 6,6 0 0 262144,6 0 0 0";

/// `tcpdump -y EN10MB -ddd 'tcp[tcp[12] >> 2 & 0x3c : 4] = 0x47455420'`
const GET: &str = "16,40 0 0 12,21 0 13 2048,48 0 0 23,21 0 11 6,40 0 0 20,69 9 0 8191,177 0 0 14,80 0 0 26,116 0 0 2,84 0 0 60,\
12 0 0 0,7 0 0 0,64 0 0 14,21 0 1 1195725856,6 0 0 262144,6 0 0 0";

#[test]
fn tcp_port_matches_only_first_fragments_with_the_port() {
    let code = parse_ok(TCP_PORT_80);
    let mut packets = Vec::new();
    for protocol in [6, 17] {
        for ihl in [5, 6, 15] {
            for fragment in [0, 0x4000, 0x2000, 0x0001] {
                for ports in [[80, 1], [1, 80], [1, 1], [80, 80]] {
                    packets.push(ipv4(protocol, ihl, fragment, ports, 200));
                }
            }
        }
    }
    // TCP, first fragment (the DF bit does not matter), at least one port 80.
    assert_eq!(check_packets(&code, &packets), 3 * 3 * 3);
    // Truncated at every length: accepted once the matching port is captured.
    let cut: Vec<_> = (0..80).map(|length| ipv4(6, 6, 0, [1, 80], length)).collect();
    assert_eq!(check_packets(&code, &cut), 80 - 42);
    let cut: Vec<_> = (0..80).map(|length| ipv4(6, 6, 0, [80, 80], length)).collect();
    assert_eq!(check_packets(&code, &cut), 80 - 40);
    let of_ipv6 = |ports: [u8; 4]| ipv6(6, &ports);
    let packets = [of_ipv6([0, 80, 0, 1]), of_ipv6([0, 1, 0, 80]), of_ipv6([0, 1, 0, 1]), ipv6(17, &[0, 80, 0, 80])];
    assert_eq!(check_packets(&code, &packets), 2);
    let cut: Vec<_> = (50..60).map(|length| of_ipv6([0, 80, 0, 80])[..length.min(58)].to_vec()).collect();
    assert_eq!(check_packets(&code, &cut), 4);
}

#[test]
fn protochain_follows_ipv6_extension_headers() {
    let code = parse_ok(PROTOCHAIN);
    let hop = |next: u8, words: u8| {
        let mut header = vec![0; 8 * (usize::from(words) + 1)];
        header[..2].copy_from_slice(&[next, words]);
        header
    };
    let authentication = |next: u8| [&[next, 4][..], &[0; 22]].concat();
    let accepted = [ipv6(6, &[]), ipv6(0, &hop(6, 0)), ipv6(0, &[hop(43, 0), hop(60, 2), hop(6, 1)].concat())];
    assert_eq!(check_packets(&code, &accepted), 3);
    let rejected = [
        ipv6(17, &[]),
        ipv6(0, &hop(17, 0)),
        ipv6(0, &hop(59, 0)),
        // Truncated in the middle of the chain.
        ipv6(0, &[hop(43, 0), hop(60, 2), hop(6, 1)].concat())[..54 + 8].to_vec(),
        // libpcap's code continues at the packet's start after an authentication header and does
        // not match.
        ipv6(51, &[authentication(0), hop(6, 0)].concat()),
        ipv4(6, 5, 0, [0, 0], 64),
    ];
    assert_eq!(check_packets(&code, &rejected), 0);
    // The longest chain that fits a packet: each header costs a loop iteration.
    let long = ipv6(0, &[hop(0, 0).repeat(180), hop(6, 0)].concat());
    assert_eq!(check_packets(&code, &[long]), 1);
}

#[test]
fn load_offsets_may_depend_on_the_packet() {
    let code = parse_ok(GET);
    let packet = |ihl: u8, words: u8, method: &[u8; 4], length: usize| {
        let mut frame = ipv4(6, ihl, 0, [1, 80], 200);
        frame.resize(200, 0);
        let tcp = 14 + 4 * usize::from(ihl);
        frame[tcp + 12] = words << 4;
        let payload = tcp + 4 * usize::from(words);
        frame[payload..payload + 4].copy_from_slice(method);
        frame.truncate(length);
        frame
    };
    let mut packets = Vec::new();
    for ihl in [5, 15] {
        for words in [5, 8, 15] {
            packets.extend([packet(ihl, words, b"GET ", 200), packet(ihl, words, b"POST", 200)]);
        }
    }
    assert_eq!(check_packets(&code, &packets), 6);
    let cut: Vec<_> = (0..100).map(|length| packet(5, 8, b"GET ", length)).collect();
    assert_eq!(check_packets(&code, &cut), 100 - 70);
}

#[test]
fn long_host_lists_match_every_host() {
    // `host a or host b or ...` as libpcap compiles it: one load, a comparison for each host, then
    // the other address.
    let hosts = 120_u32;
    let mut code: Vec<Code> = vec![(0x28, 0, 0, 12), (0x15, 1, 0, 0x800), (0x06, 0, 0, 0)];
    for at in [26, 30] {
        code.push((0x20, 0, 0, at));
        for host in 0..hosts {
            // Skips the `ret` after it.
            code.extend([(0x15, 0, 1, 0x0a00_0000 + 3 * host), (0x06, 0, 0, 1)]);
        }
    }
    code.push((0x06, 0, 0, 0));
    let code = program(&code);
    let packet = |source: u32, destination: u32| {
        let mut frame = ipv4(6, 5, 0, [0, 0], 64);
        frame[26..30].copy_from_slice(&source.to_be_bytes());
        frame[30..34].copy_from_slice(&destination.to_be_bytes());
        frame
    };
    let packets: Vec<_> =
        (0..3 * hosts).flat_map(|host| [packet(0x0a00_0000 + host, 1), packet(1, 0x0a00_0000 + host)]).collect();
    assert_eq!(check_packets(&code, &packets), 2 * hosts as usize);
}
