//! Synthetic traffic, checked by an independent dissector.

use std::collections::HashMap;

use portcullis_core::packet::{Metadata, ResizeRoom};
use portcullis_io::synth::{Generator, Kind, Mix, Size, Spec, SynthSource, sample};
use portcullis_io::{Source, SourceOptions, open};

/// All packets of a specification: captured bytes and metadata.
fn packets(spec: &Spec, options: &SourceOptions) -> Vec<(Vec<u8>, Metadata)> {
    let mut source = SynthSource::new(spec, options);
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch().unwrap() {
        assert!(batch.len() <= options.max_packets);
        packets.extend((0..batch.len()).map(|i| (batch.packet(i).to_vec(), batch.metadata_of(i))));
    }
    packets
}

fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// One's complement sum of the pieces, each padded to whole words: 0xffff if they include a correct
/// checksum.
fn ones_sum(pieces: &[&[u8]]) -> u32 {
    let mut sum = 0u32;
    for piece in pieces {
        for pair in piece.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum
}

/// Properties of a packet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Dissected {
    tags: usize,
    version: usize,
    arp: bool,
    options: usize,
    extensions: usize,
    /// Fragment offset in bytes, and the more-fragments flag.
    fragment: Option<(usize, bool)>,
    protocol: usize,
    ports: Option<(usize, usize)>,
    tunnel: Option<Box<Dissected>>,
}

/// Dissects a complete frame, checking all lengths and checksums.
fn dissect(frame: &[u8]) -> Dissected {
    let mut found = Dissected::default();
    let mut at = 12;
    while matches!(be16(frame, at), 0x8100 | 0x88a8) {
        found.tags += 1;
        at += 4;
    }
    let ether_type = be16(frame, at);
    let packet = &frame[at + 2..];
    match ether_type {
        0x0806 => {
            assert_eq!(frame.len(), 60);
            assert_eq!(packet[..7], [0, 1, 8, 0, 6, 4, 0]);
            assert!(matches!(packet[7], 1 | 2));
            found.arp = true;
        }
        0x0800 => ipv4(packet, &mut found),
        0x86dd => ipv6(packet, &mut found),
        other => panic!("EtherType {other:#x}"),
    }
    found
}

fn ipv4(packet: &[u8], found: &mut Dissected) {
    found.version = 4;
    assert_eq!(packet[0] >> 4, 4);
    let header = usize::from(packet[0] & 15) * 4;
    assert!(header >= 20);
    found.options = header - 20;
    assert_eq!(be16(packet, 2), packet.len(), "total length");
    assert_eq!(ones_sum(&[&packet[..header]]), 0xffff, "header checksum");
    let field = be16(packet, 6);
    let (offset, more) = ((field & 0x1fff) * 8, field & 0x2000 != 0);
    if offset > 0 || more {
        found.fragment = Some((offset, more));
    }
    found.protocol = usize::from(packet[9]);
    transport(&packet[header..], &packet[12..20], found);
}

fn ipv6(packet: &[u8], found: &mut Dissected) {
    found.version = 6;
    assert_eq!(packet[0] >> 4, 6);
    assert_eq!(be16(packet, 4) + 40, packet.len(), "payload length");
    let mut next = usize::from(packet[6]);
    let mut at = 40;
    loop {
        let length = match next {
            0 | 43 | 60 => (usize::from(packet[at + 1]) + 1) * 8,
            44 => {
                let field = be16(packet, at + 2);
                found.fragment = Some((field & 0xfff8, field & 1 == 1));
                8
            }
            51 => (usize::from(packet[at + 1]) + 2) * 4,
            _ => break,
        };
        assert!(next != 0 || at == 40, "hop-by-hop options come first");
        assert_eq!(length % 8, 0);
        found.extensions += usize::from(next != 44);
        next = usize::from(packet[at]);
        at += length;
    }
    found.protocol = next;
    transport(&packet[at..], &packet[8..40], found);
}

fn transport(segment: &[u8], addresses: &[u8], found: &mut Dissected) {
    if let Some((offset, more)) = found.fragment {
        assert!(!more || segment.len().is_multiple_of(8), "a fragment of {} bytes", segment.len());
        if offset > 0 {
            return;
        }
    }
    let whole = found.fragment.is_none();
    let pseudo = [addresses, &[0, found.protocol as u8], &(segment.len() as u16).to_be_bytes()].concat();
    let pseudo = if found.protocol == 1 { Vec::new() } else { pseudo };
    if whole {
        assert_eq!(ones_sum(&[&pseudo, segment]), 0xffff, "checksum of protocol {}", found.protocol);
    }
    match found.protocol {
        6 => assert_eq!(segment[12] >> 4, 5),
        17 if whole => assert_eq!(be16(segment, 4), segment.len(), "UDP length"),
        17 => assert!(be16(segment, 4) > segment.len(), "UDP length of the whole datagram"),
        1 => assert!(matches!(segment[0], 0 | 8)),
        58 => assert!(matches!(segment[0], 128 | 129 | 135)),
        other => panic!("protocol {other}"),
    }
    if matches!(found.protocol, 6 | 17) {
        found.ports = Some((be16(segment, 0), be16(segment, 2)));
    }
    if found.protocol == 17 && found.ports == Some((2152, 2152)) {
        let gtp = &segment[8..];
        assert_eq!(gtp[1], 255, "G-PDU");
        assert_eq!(be16(gtp, 2), gtp.len() - 8, "GTP length");
        let mut header = 8;
        if gtp[0] & 4 != 0 {
            assert_eq!(gtp[11], 0x85);
            header = 12 + usize::from(gtp[12]) * 4;
            assert_eq!(gtp[header - 1], 0, "no more extension headers");
        }
        let mut inner = Dissected::default();
        ipv4(&gtp[header..], &mut inner);
        found.tunnel = Some(Box::new(inner));
    }
}

#[test]
fn packets_of_each_kind_are_well_formed() {
    for (kind, name, _) in Kind::ALL {
        // Messages of a fronthaul are not IP.
        if matches!(kind, Kind::Short | Kind::Ecpri) {
            continue;
        }
        for size in [Size::Range(64, 64), Size::Range(64, 1500), Size::Range(9000, 9000), Size::Imix] {
            let mix = Mix::new(&[(kind, 1)]).unwrap();
            let spec = Spec { packets: 300, seed: 3, size, flows: 40, mix };
            let mut extensions = 0;
            for (bytes, metadata) in packets(&spec, &SourceOptions::default()) {
                assert_eq!(metadata.wire_length as usize, bytes.len(), "{name}");
                let found = dissect(&bytes);
                let version = if matches!(
                    kind,
                    Kind::Tcp6 | Kind::Udp6 | Kind::Icmp6 | Kind::Extension6 | Kind::First6 | Kind::Later6
                ) {
                    6
                } else {
                    4
                };
                match kind {
                    Kind::Arp => assert!(found.arp),
                    Kind::Vlan => assert_eq!(found.tags, 1),
                    Kind::QinQ => assert_eq!(found.tags, 2),
                    _ => assert_eq!((found.tags, found.version), (0, version), "{name}"),
                }
                match kind {
                    Kind::Tcp4 | Kind::Tcp6 => assert_eq!(found.protocol, 6),
                    Kind::Udp4 | Kind::Udp6 => assert_eq!(found.protocol, 17),
                    Kind::Icmp4 => assert_eq!(found.protocol, 1),
                    Kind::Icmp6 => assert_eq!(found.protocol, 58),
                    Kind::Arp => {}
                    _ => assert!(matches!(found.protocol, 6 | 17), "{name}"),
                }
                assert_eq!(found.options > 0, kind == Kind::Options4);
                assert_eq!(found.extensions > 0, kind == Kind::Extension6);
                extensions = extensions.max(found.extensions);
                let first = found.fragment == Some((0, true));
                let later = found.fragment.is_some_and(|(offset, _)| offset > 0);
                assert_eq!(first, matches!(kind, Kind::First4 | Kind::First6), "{name}");
                assert_eq!(later, matches!(kind, Kind::Later4 | Kind::Later6), "{name}");
                assert_eq!(found.tunnel.is_some(), kind == Kind::GtpU, "{name}");
                match size {
                    // If there is room for the headers, the size is exact, except for packets with
                    // a fixed length, and fragments, whose length is a multiple of 8.
                    Size::Range(9000, 9000) if !matches!(kind, Kind::Arp | Kind::Icmp6) => {
                        assert!((8993..=9000).contains(&bytes.len()), "{name}: {}", bytes.len());
                    }
                    Size::Range(64, 64) => assert!(bytes.len() <= 264, "{name}: {}", bytes.len()),
                    _ => assert!(bytes.len() <= 1518 || size != Size::Imix),
                }
            }
            assert!(kind != Kind::Extension6 || extensions == 8, "chains of up to 8 extension headers");
        }
    }
}

/// Slot, symbol, antenna port and PRBs of a U-plane message, and its sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UPlane {
    slot: u32,
    symbol: u32,
    port: u32,
    first: u32,
    count: u32,
    sequence: u8,
}

/// Reads a message with one section from O-RAN.WG4.CUS, over eCPRI and one VLAN tag.
fn u_plane(packet: &[u8]) -> UPlane {
    assert_eq!((be16(packet, 12), be16(packet, 16)), (0x8100, 0xaefe));
    assert_eq!((packet[18], packet[19], packet[25], packet[26]), (0x10, 0, 0x80, 0x10), "eCPRI and application header");
    assert_eq!(be16(packet, 20), packet.len() - 22, "eCPRI payload size");
    let time = be16(packet, 28) as u32;
    let section = (be16(packet, 30) as u32) << 16 | be16(packet, 32) as u32;
    let count = if section & 255 == 0 { 273 } else { section & 255 };
    assert_eq!((section >> 18, &packet[34..36]), (0, &[0x91, 0][..]), "section 0, 9 bits of block floating point");
    assert_eq!(packet.len(), 36 + count as usize * 28);
    let first = section >> 8 & 0x3ff;
    assert!(first + count <= 273 && time & 63 < 14 && time >> 6 & 63 < 2 && time >> 12 < 10);
    UPlane {
        slot: (u32::from(packet[27]) * 10 + (time >> 12)) * 2 + (time >> 6 & 63),
        symbol: time & 63,
        port: be16(packet, 22) as u32,
        first,
        count,
        sequence: packet[24],
    }
}

#[test]
fn messages_of_a_fronthaul_are_shuffled_lost_and_duplicated() {
    for (size, whole) in [("size=64", 1), ("size=64..1500", 52), ("size=9000", 273)] {
        let spec = spec(&format!("packets=20000,seed=5,{size},mix=ecpri"));
        let all: Vec<(UPlane, Vec<u8>)> =
            packets(&spec, &SourceOptions::default()).into_iter().map(|(bytes, _)| (u_plane(&bytes), bytes)).collect();
        assert_eq!(all.iter().map(|(message, _)| message.count).max(), Some(whole), "{size}");
        let out_of_order = all.windows(2).filter(|pair| pair[0].0 > pair[1].0).count();
        assert!(out_of_order > 8000, "{size}: {out_of_order}");
        let mut sorted = all.clone();
        sorted.sort();
        // A message is at most as far from its place as are shuffled together, if none were lost.
        assert!(all.iter().zip(&sorted).all(|(is, sorted)| is.0.slot.abs_diff(sorted.0.slot) <= 1), "{size}");
        let duplicates = sorted.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!((120..280).contains(&duplicates), "{size}: {duplicates}");
        sorted.dedup();
        assert!(sorted.windows(2).all(|pair| pair[0].0 != pair[1].0), "{size}: duplicates have equal payloads");
        let mut lost = 0;
        let mut next = [0_u8; 4];
        for (message, _) in &sorted {
            let next = &mut next[message.port as usize];
            lost += u32::from(message.sequence.wrapping_sub(*next));
            *next = message.sequence.wrapping_add(1);
        }
        assert!((120..280).contains(&lost), "{size}: {lost}");
    }
}

#[test]
fn short_packets_are_truncated_at_all_lengths() {
    let spec = spec("packets=2000,seed=5,mix=short");
    let mut lengths = [0; 80];
    for (bytes, metadata) in packets(&spec, &SourceOptions::default()) {
        assert!(bytes.len() < metadata.wire_length as usize);
        if let Some(count) = lengths.get_mut(bytes.len()) {
            *count += 1;
        }
    }
    assert!(lengths.iter().filter(|&&count| count > 0).count() > 70, "truncated all over the headers: {lengths:?}");
}

#[test]
fn kinds_occur_by_their_weights() {
    let all = packets(&spec("packets=20000,seed=9,mix=tcp4:3+arp:1"), &SourceOptions::default());
    let arp = all.iter().filter(|(bytes, _)| dissect(bytes).arp).count();
    // A quarter of 20,000 with a standard deviation of 61.
    assert!((4700..5300).contains(&arp), "{arp}");
    assert!(all.is_sorted_by(|a, b| a.1.time_ns() < b.1.time_ns()), "timestamps ascend");
}

#[test]
fn the_number_of_flows_is_as_specified() {
    let mut flows = HashMap::new();
    for (bytes, _) in packets(&spec("packets=5000,seed=9,mix=udp4,flows=50"), &SourceOptions::default()) {
        // Addresses and ports, the smaller end first.
        let (mut a, mut b) = ([&bytes[26..30], &bytes[34..36]].concat(), [&bytes[30..34], &bytes[36..38]].concat());
        if a > b {
            std::mem::swap(&mut a, &mut b);
        }
        *flows.entry((a, b)).or_insert(0) += 1;
    }
    assert_eq!(flows.len(), 50);
}

#[test]
fn batch_size_and_room_do_not_affect_packets() {
    let spec = spec("packets=3000,seed=7,size=64..9000");
    let wanted = packets(&spec, &SourceOptions::default());
    assert_eq!(wanted.len(), 3000);
    for room in [ResizeRoom::None, ResizeRoom::Both] {
        for (max_packets, block_size) in [(1, 1), (7, 100_000), (usize::MAX, 4 << 20)] {
            let options =
                SourceOptions::default().with_max_packets(max_packets).with_room(room).with_block_size(block_size);
            assert!(packets(&spec, &options) == wanted, "{options:?}");
        }
    }
}

/// FNV-1a, 64 bits.
fn fingerprint(packets: &[(Vec<u8>, Metadata)]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut eat = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for (bytes, metadata) in packets {
        eat(bytes);
        eat(&metadata.wire_length.to_le_bytes());
        eat(&metadata.time_ns().to_le_bytes());
    }
    hash
}

/// If this fails, the packets of a seed have changed: increment `GENERATION`, regenerate the
/// sample, and update the hashes here.
#[test]
fn a_seed_always_yields_the_same_packets() {
    assert_eq!(portcullis_io::synth::GENERATION, 1);
    let all = |spec: &Spec| fingerprint(&packets(spec, &SourceOptions::default()));
    let got = [
        all(&spec("packets=5000,seed=1")),
        all(&spec("packets=5000,seed=2,size=imix,flows=3")),
        all(&sample::sample()),
    ];
    assert_eq!(got.map(|hash| format!("{hash:016x}")), ["518eb05fb85b1571", "db5d9111bc4a5277", "4a7691b082b5d300"]);
}

#[test]
fn about_a_quarter_of_the_sample_is_web_traffic() {
    let all = packets(&sample::sample(), &SourceOptions::default());
    let web = all
        .iter()
        .filter(|(bytes, metadata)| {
            let whole = bytes.len() == metadata.wire_length as usize;
            let found = if whole { dissect(bytes) } else { Dissected::default() };
            found.protocol == 6 && matches!(found.ports, Some((_, 80 | 443)))
        })
        .count();
    let share = web as f64 / all.len() as f64;
    assert!((0.20..0.30).contains(&share), "{share}");
    let bytes: usize = all.iter().map(|(bytes, _)| bytes.len() + 16).sum();
    assert!(bytes < 1_000_000, "{bytes}");
}

#[test]
fn packets_fit_the_maximum_length() {
    let mut generator = Generator::new(&spec("seed=4,size=64..9000"));
    let mut into = vec![0; Generator::MAX_PACKET];
    for _ in 0..5000 {
        generator.next_packet(&mut into);
    }
}

#[test]
fn an_invalid_specification_is_an_error() {
    let error = open("synth:packets=x", &SourceOptions::default()).err().unwrap().to_string();
    assert_eq!(error, "synth: packets: \"x\" is no whole number below 2^64");
    assert!(open("synth:packets=3", &SourceOptions::default()).is_ok());
}
