//! Truncated, damaged and foreign captures.

use portcullis_core::packet::ResizeRoom;
use portcullis_io::{SourceError, SourceOptions, Warning, capture};

use super::bytes::*;
use super::{Outcome, packet, read, read_all_ways, read_with};

/// Options that take different code paths.
fn option_variants() -> impl Iterator<Item = SourceOptions> {
    [(ResizeRoom::None, 64), (ResizeRoom::None, 4096), (ResizeRoom::Both, 64), (ResizeRoom::Both, 4096)]
        .into_iter()
        .map(|(room, block_size)| SourceOptions::default().with_room(room).with_block_size(block_size))
}

/// Reads `bytes` truncated at every length. `ends` are the lengths at record boundaries with the
/// numbers of packets up to there, ascending.
fn truncate_everywhere(bytes: &[u8], header: usize, ends: &[(usize, usize)]) {
    assert_eq!(ends.last().unwrap().0, bytes.len());
    for options in option_variants() {
        for cut in 0..=bytes.len() {
            let Outcome { packets, warnings, error } = read_with(&bytes[..cut], &options);
            if cut < header {
                match error {
                    Some(SourceError::Empty { .. }) => assert_eq!(cut, 0),
                    Some(SourceError::UnknownFormat { .. }) => assert!(cut > 0),
                    // In pcapng, the first block is truncated after the bytes that identify the
                    // format.
                    None => assert!(cut >= 24 && warnings.len() == 1, "{cut}: {warnings:?}"),
                    Some(error) => panic!("{cut}: {error}"),
                }
                assert!(packets.is_empty());
                continue;
            }
            assert!(error.is_none(), "{cut}: {error:?}");
            let &(record, whole) = ends.iter().rev().find(|(end, _)| *end <= cut).unwrap();
            assert_eq!(packets.len(), whole, "cut at {cut}");
            for (i, packet) in packets.iter().enumerate() {
                assert_eq!(packet.bytes, vec![i as u8; packet.bytes.len()]);
            }
            if cut == record {
                assert_eq!(warnings, [], "cut at {cut}");
            } else {
                let (end, record) = (cut as u64, record as u64);
                assert_eq!(warnings, [Warning::Truncated { name: "test".into(), end, record }], "cut at {cut}");
            }
        }
    }
}

#[test]
fn pcap_truncated_at_every_byte() {
    for order in ORDERS {
        let mut bytes = pcap_header(order, 0xa1b2_c3d4, 1);
        let mut ends = vec![(24, 0)];
        for (i, length) in [60usize, 0, 14, 33].into_iter().enumerate() {
            bytes.extend(pcap_record(order, 1, 2, &vec![i as u8; length], 60));
            ends.push((bytes.len(), i + 1));
        }
        truncate_everywhere(&bytes, 24, &ends);
    }
}

#[test]
fn pcapng_truncated_at_every_byte() {
    for order in ORDERS {
        let mut bytes = section(order);
        let header = bytes.len();
        let mut ends = vec![(bytes.len(), 0)];
        let mut packets = 0;
        let mut add = |block: Vec<u8>, is_packet: bool| {
            bytes.extend(block);
            packets += usize::from(is_packet);
            ends.push((bytes.len(), packets));
        };
        add(interface(order, 1, 0, &[(2, b"eth0"), (9, &[9])]), false);
        add(enhanced(order, 0, 5, &[0; 60], 60, &[0; 8]), true);
        add(block(order, 5, &[1; 30]), false);
        add(simple(order, &[1; 14], 14), true);
        add(block(order, 0xbad, &[2; 200]), false);
        add(enhanced(order, 0, 5, &[2; 7], 7, &[]), true);
        add(block(order, 0xbad, &[2; 200]), false);
        truncate_everywhere(&bytes, header, &ends);
    }
}

#[test]
fn foreign_formats_are_named() {
    for (bytes, wanted) in [
        (&b""[..], "the file is empty"),
        (b"\x1f\x8b\x08\0", "compressed (gzip)"),
        (b"\x28\xb5\x2f\xfd", "compressed (zstd)"),
        (b"\xfd7zXZ\0", "compressed (xz)"),
        (b"snoop\0\0\0\0\0\0\x02", "snoop"),
        (b"\xa1\xb2\xcd\x34", "modified"),
        (b"\x34\xcd\xb2\xa1", "modified"),
        (b"GIF89a", "neither pcap nor pcapng: it begins with the bytes 47 49 46 38"),
        (b"x", "neither pcap nor pcapng: it begins with the bytes 78"),
        (b"\xa1\xb2\xc3\xd4\0\x02", "ends at byte 6, in the middle of its pcap header"),
        (b"\x0a\x0d\x0d\x0a\0\0\0\x1c", "ends at byte 8, in the middle of its pcapng header"),
    ] {
        let error = read(bytes).error.expect(wanted).to_string();
        assert!(error.starts_with("test: ") && error.contains(wanted), "{error}");
    }
}

#[test]
fn other_link_types_are_named() {
    for (link_type, wanted) in [
        (0, "the capture has link type BSD loopback (NULL) (0); only Ethernet (1) can be filtered"),
        (105, "link type IEEE 802.11 (105)"),
        (113, "link type Linux cooked capture (SLL) (113)"),
        (0x0001_0001, "link type 65537;"),
    ] {
        for order in ORDERS {
            let error = read(&pcap_header(order, 0xa1b2_c3d4, link_type)).error.expect(wanted).to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
    // In pcapng, an interface matters once a packet comes from it; earlier packets are returned.
    let mut bytes = section(Order::Big);
    bytes.extend(interface(Order::Big, 1, 0, &[]));
    bytes.extend(interface(Order::Big, 228, 0, &[(2, b"tun0")]));
    bytes.extend(enhanced(Order::Big, 0, 0, &[1; 60], 60, &[]));
    bytes.extend(enhanced(Order::Big, 1, 0, &[1; 60], 60, &[]));
    for (how, outcome) in read_all_ways(&bytes) {
        assert_eq!(outcome.packets, [packet(&[1; 60], 0)], "{how}");
        let error = outcome.error.expect(&how).to_string();
        assert!(error.contains("interface 1 (tun0), which has packets, has link type raw IPv4 (228)"), "{error}");
    }
}

#[test]
fn unsupported_versions_are_refused() {
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    bytes[6] = 2;
    let error = read(&bytes).error.unwrap().to_string();
    assert!(error.contains("at byte 0: pcap version 2.2 is not read here"), "{error}");
    let mut bytes = section(Order::Little);
    bytes[12] = 2;
    let error = read(&bytes).error.unwrap().to_string();
    assert!(error.contains("pcapng version 2.0 is not read here"), "{error}");
}

/// Expects one packet, and then an error that names the position of `bad`.
fn broken(kind: &str, start: Vec<u8>, bad: Vec<u8>, wanted: &str) {
    let at = start.len();
    let bytes = [start, bad].concat();
    for (how, outcome) in read_all_ways(&bytes) {
        assert_eq!(outcome.packets.len(), 1, "{kind}: {how}");
        let error = outcome.error.unwrap_or_else(|| panic!("{kind}: {how}: no error")).to_string();
        assert!(error.contains(&format!("at byte {at}")) && error.contains(wanted), "{kind}: {how}: {error}");
    }
}

#[test]
fn damaged_records_are_errors_with_their_position() {
    for order in ORDERS {
        let mut pcap = pcap_header(order, 0xa1b2_c3d4, 1);
        pcap.extend(pcap_record(order, 1, 1, &[0; 60], 60));
        for length in [262_145u32, u32::MAX, 0x8000_0000] {
            broken("length", pcap.clone(), order.words([1, 1, length, 1]), &format!("claims {length} captured bytes"));
        }

        let mut pcapng = section(order);
        pcapng.extend(interface(order, 1, 0, &[]));
        pcapng.extend(enhanced(order, 0, 1, &[0; 60], 60, &[]));
        let start = || pcapng.clone();
        let raw = |kind: u32, total: u32, body: &[u8]| [&order.words([kind, total])[..], body].concat();
        for total in [0, 4, 8, 11, 13, 0xffff_ffff] {
            broken("block length", start(), raw(7, total, &[0; 40]), &format!("a block of {total} bytes"));
        }
        broken("long block", start(), raw(6, (16 << 20) + 4, &[0; 40]), "at most 16777216 are supported");
        broken("short block", start(), raw(6, 28, &[0; 40]), "too short for its header");
        broken("short simple block", start(), raw(3, 12, &[0; 40]), "too short for its header");
        for (length, wanted) in [(61, "does not fit"), (u32::MAX, "claims 4294967295")] {
            let body = [&order.words([0, 0, 0, length, 61])[..], &[0; 60]].concat();
            broken("captured length", start(), raw(6, 92, &body), wanted);
        }
        broken("simple", start(), raw(3, 76, &[order.u32(61).to_vec(), vec![0; 60]].concat()), "does not fit");
        let mut block = enhanced(order, 0, 1, &[0; 60], 60, &[]);
        *block.last_mut().unwrap() ^= 1;
        *block.last_mut().unwrap() |= 2;
        broken("trailer", start(), block, "a block's length is 92 at its start and");
        for number in [1, u32::MAX] {
            let block = enhanced(order, number, 1, &[0; 60], 60, &[]);
            broken("interface", start(), block, &format!("a packet of interface {number}"));
        }
        // A new section starts without interfaces.
        let mut two = start();
        two.extend(section(order));
        broken("no interface", two, enhanced(order, 0, 1, &[0; 60], 60, &[]), "has described 0 so far");
        broken("byte order", start(), raw(0x0a0d_0d0a, 28, &[0; 20]), "without byte-order magic");
        // An interface description too short for its fields.
        let short = self::block(order, 1, &[1, 0, 0, 0]);
        broken("description", start(), short, "the interface description block cannot be read");
    }
}

#[test]
fn a_packet_of_maximum_length_is_read() {
    let long = vec![7; 262_144];
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    bytes.extend(pcap_record(Order::Little, 0, 0, &long, 262_144));
    let mut ng = section(Order::Little);
    ng.extend(interface(Order::Little, 1, 0, &[]));
    ng.extend(enhanced(Order::Little, 0, 0, &long, 262_144, &[]));
    for bytes in [bytes, ng] {
        for options in option_variants() {
            let outcome = read_with(&bytes, &options);
            assert!(outcome.error.is_none(), "{:?}", outcome.error);
            assert_eq!(outcome.packets, [packet(&long, 0)]);
        }
    }
}

#[test]
fn a_claimed_block_length_allocates_no_memory() {
    let mut bytes = section(Order::Little);
    bytes.extend(Order::Little.words([0xbad, 0xffff_fffc]));
    bytes.extend([0; 100]);
    let record = 28;
    let end = bytes.len() as u64;
    assert_eq!(read(&bytes).warnings, [Warning::Truncated { name: "test".into(), end, record }]);
}

#[test]
fn a_read_error_is_reported_after_the_packets_before_it() {
    struct Failing(std::io::Cursor<Vec<u8>>);
    impl std::io::Read for Failing {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(std::io::Error::other("the cable is out")),
                got => Ok(got),
            }
        }
    }
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    bytes.extend(pcap_record(Order::Little, 0, 0, &[0; 60], 60));
    for options in option_variants() {
        let reader = Box::new(Failing(std::io::Cursor::new(bytes.clone())));
        let outcome = super::drain(capture::read("test", None, reader, &options));
        assert_eq!(outcome.packets.len(), 1);
        let error = outcome.error.unwrap().to_string();
        assert_eq!(error, "test: reading failed at byte 100: the cable is out");
    }
}
