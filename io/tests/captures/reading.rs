//! Reading well-formed captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portcullis_core::packet::ResizeRoom;
use portcullis_io::{Resolution, SourceOptions, Warning, capture};

use super::bytes::*;
use super::{Packet, open, packet, read, read_all_ways, read_with};

/// Payloads of awkward lengths, among them the longest.
fn payloads() -> Vec<Vec<u8>> {
    [60usize, 0, 1, 2, 3, 4, 5, 14, 61, 0, 1514, 9000, 255, 256, 257, 13]
        .iter()
        .enumerate()
        .map(|(i, &len)| (0..len).map(|j| (i * 37 + j * 11) as u8).collect())
        .collect()
}

fn format_of(bytes: &[u8]) -> portcullis_io::CaptureFormat {
    open(bytes, &SourceOptions::default()).format().clone()
}

#[test]
fn classic_pcap_in_both_orders_and_resolutions() {
    for order in ORDERS {
        for (magic, unit, resolution) in [(0xa1b2_c3d4, 1000, Resolution::Micro), (0xa1b2_3c4d, 1, Resolution::Nano)] {
            let mut bytes = pcap_header(order, magic, 1);
            let mut wanted = Vec::new();
            for (i, payload) in payloads().iter().enumerate() {
                let (seconds, fraction) = (1_700_000_000 + i as u32, 999_999 - i as u32);
                let wire = payload.len() as u32 + (i as u32 % 3) * 100;
                bytes.extend(pcap_record(order, seconds, fraction, payload, wire));
                wanted.push(Packet {
                    bytes: payload.clone(),
                    wire,
                    port: 0,
                    time: u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit,
                });
            }
            assert_eq!(format_of(&bytes).resolution, resolution);
            for (how, outcome) in read_all_ways(&bytes) {
                assert!(outcome.error.is_none(), "{how}: {:?}", outcome.error);
                assert_eq!(outcome.warnings, [], "{how}");
                assert_eq!(outcome.packets, wanted, "{order:?} {resolution:?} {how}");
            }
        }
    }
}

#[test]
fn the_frame_check_sequence_length_is_in_the_link_type_field() {
    for (field, fcs_words) in [(1, None), (0x3000_0001, None), (0x2400_0001, Some(2)), (0x0400_0001, Some(0))] {
        let bytes = pcap_header(Order::Little, 0xa1b2_c3d4, field);
        assert_eq!(format_of(&bytes).fcs_words, fcs_words, "{field:#x}");
        assert!(read(&bytes).packets.is_empty());
    }
}

#[test]
fn pcapng_in_both_orders_through_sections_and_interfaces() {
    for order in ORDERS {
        let other = if order == Order::Big { Order::Little } else { Order::Big };
        let offset = match order {
            Order::Big => 5i64.to_be_bytes(),
            Order::Little => 5i64.to_le_bytes(),
        };
        let mut bytes = section(order);
        // Microseconds by default; nanoseconds; 1/1024 seconds with an offset of 5 seconds.
        bytes.extend(interface(order, 1, 0, &[(2, b"eth0")]));
        bytes.extend(interface(order, 1, 65_535, &[(9, &[9]), (2, b"lan-1"), (1, b"a comment")]));
        bytes.extend(interface(order, 1, 0, &[(9, &[0x8a]), (14, &offset)]));
        // An interface that is not Ethernet and has no packets is no error.
        bytes.extend(interface(order, 105, 0, &[]));
        let mut wanted = Vec::new();
        let mut add = |bytes: &mut Vec<u8>, payload: &[u8], port, time, block: Vec<u8>| {
            bytes.extend(block);
            let wire = payload.len() as u32;
            wanted.push(Packet { bytes: payload.to_vec(), wire, port, time });
        };
        for (i, payload) in payloads().iter().enumerate() {
            let wire = payload.len() as u32;
            let block = |interface, time, options: &[u8]| enhanced(order, interface, time, payload, wire, options);
            let i = i as u64;
            // A packet option (epb_flags), and an option with an invalid length: both are skipped.
            let options = [order.u16(2), order.u16(4), [0, 0], [0, 1], [0, 0], [0, 0]].concat();
            let rubbish = [0xff; 8];
            add(&mut bytes, payload, 0, 1_000_000 * i, block(0, 1000 * i, &options));
            add(&mut bytes, payload, 1, 1 << 33 | i, block(1, 1 << 33 | i, &rubbish));
            add(&mut bytes, payload, 2, 5_500_000_000, block(2, 512, &[]));
            add(&mut bytes, payload, 0, 0, simple(order, payload, wire));
            // Blocks without packets: name resolution, statistics, private.
            bytes.extend(self::block(order, 4, &[1; 40]));
            bytes.extend(self::block(order, 5, &[]));
            bytes.extend(self::block(order, 0x8000_1234, &vec![7; i as usize * 100]));
        }
        // The obsolete packet block: a 16-bit interface number, and a drop counter.
        let obsolete = [&order.u16(1)[..], &order.u16(0xffff), &order.words([0, 77, 3, 3]), b"abc"].concat();
        add(&mut bytes, b"abc", 1, 77, block(order, 2, &obsolete));
        // A section in the other byte order; interfaces are numbered through all sections.
        bytes.extend(section(other));
        bytes.extend(interface(other, 1, 0, &[(9, &[3])]));
        add(&mut bytes, &[9; 60], 4, 8_000_000, enhanced(other, 0, 8, &[9; 60], 60, &[]));

        let format = format_of(&bytes);
        assert_eq!(format.resolution, Resolution::Nano);
        let names: Vec<Option<&str>> = format.interfaces.iter().map(|i| i.name.as_deref()).collect();
        assert_eq!(names, [Some("eth0"), Some("lan-1"), None, None, None]);
        for (how, outcome) in read_all_ways(&bytes) {
            assert!(outcome.error.is_none(), "{how}: {:?}", outcome.error);
            assert_eq!(outcome.packets, wanted, "{order:?} {how}");
        }
    }
}

#[test]
fn simple_packets_are_truncated_at_the_snapshot_length() {
    // Section 4.4: the captured length is the minimum of wire length and snapshot length.
    let mut bytes = section(Order::Little);
    bytes.extend(interface(Order::Little, 1, 5, &[]));
    bytes.extend(simple(Order::Little, b"abcde", 100));
    bytes.extend(simple(Order::Little, b"abc", 3));
    let outcome = read(&bytes);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let wanted = [Packet { bytes: b"abcde".into(), wire: 100, port: 0, time: 0 }, packet(b"abc", 0)];
    assert_eq!(outcome.packets, wanted);
}

#[test]
fn a_later_interface_with_finer_timestamps_is_warned_about() {
    let order = Order::Little;
    let mut bytes = section(order);
    bytes.extend(interface(order, 1, 0, &[]));
    // More than a block, so that the second interface is unknown at the start.
    for _ in 0..3 {
        bytes.extend(enhanced(order, 0, 1, &[0; 60], 60, &[]));
    }
    bytes.extend(interface(order, 1, 0, &[(9, &[9])]));
    bytes.extend(enhanced(order, 1, 1, &[0; 60], 60, &[]));
    let outcome = read_with(&bytes, &SourceOptions::default().with_block_size(128));
    assert_eq!(outcome.packets.len(), 4);
    assert_eq!(outcome.warnings, [Warning::FinerTime { name: "test".into(), interface: 1 }]);
    // If everything is in the first block, the second interface is known at the start.
    assert_eq!(read(&bytes).warnings, []);
    assert_eq!(format_of(&bytes).resolution, Resolution::Nano);
}

#[test]
fn metadata_is_left_out_if_disabled() {
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    bytes.extend(pcap_record(Order::Little, 1, 2, &[0; 60], 100));
    let options = SourceOptions::default().with_metadata(false);
    assert_eq!(read_with(&bytes, &options).packets, [packet(&[0; 60], 0)]);
}

#[test]
fn batches_have_at_most_the_requested_size() {
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    for _ in 0..100 {
        bytes.extend(pcap_record(Order::Little, 1, 2, &[0; 60], 60));
    }
    let options = SourceOptions::default().with_max_packets(30);
    let mut source = open(&bytes, &options);
    let sizes: Vec<usize> = std::iter::from_fn(|| source.next_batch().unwrap()).map(|batch| batch.len()).collect();
    assert_eq!(sizes, [30, 30, 30, 10]);
}

#[test]
fn memory_does_not_grow_with_the_capture() {
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    for i in 0..20_000u32 {
        bytes.extend(pcap_record(Order::Little, 1, 2, &vec![7; (i % 900) as usize], 900));
    }
    for room in [ResizeRoom::None, ResizeRoom::Both] {
        let options = SourceOptions::default().with_room(room).with_block_size(8192);
        let mut source = open(&bytes, &options);
        let mut in_flight = std::collections::VecDeque::new();
        let mut arenas = std::collections::HashSet::new();
        let mut packets = 0;
        while let Some(batch) = source.next_batch().unwrap() {
            packets += batch.len();
            arenas.insert(batch.span().id());
            in_flight.push_back(batch);
            if in_flight.len() == 3 {
                in_flight.pop_front();
            }
        }
        assert_eq!(packets, 20_000);
        // Two in flight, one returned, one being filled, one with the incomplete record.
        assert!(arenas.len() <= 5, "{} arenas", arenas.len());
    }
}

/// Returns one piece per read, like a pipe with a slow writer, and fails if it is read while
/// earlier packets are held back.
struct SlowPipe {
    pieces: std::vec::IntoIter<Vec<u8>>,
    given: usize,
    received: Arc<AtomicUsize>,
}

impl std::io::Read for SlowPipe {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.pieces.next() else { return Ok(0) };
        assert!(self.received.load(Ordering::Relaxed) >= self.given, "packets are held back");
        self.given += usize::from(piece.len() > 24);
        into[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

#[test]
fn packets_from_a_live_pipe_are_not_delayed() {
    for room in [ResizeRoom::None, ResizeRoom::Both] {
        let mut pieces = vec![pcap_header(Order::Little, 0xa1b2_c3d4, 1)];
        pieces.extend((0..10).map(|i| pcap_record(Order::Little, i, 2, &[i as u8; 60], 60)));
        let received = Arc::new(AtomicUsize::new(0));
        let reader = SlowPipe { pieces: pieces.into_iter(), given: 0, received: received.clone() };
        let options = SourceOptions::default().with_room(room);
        let mut source = capture::read("test", None, Box::new(reader), &options).unwrap();
        for i in 0..10 {
            let batch = source.next_batch().unwrap().unwrap();
            assert_eq!((batch.len(), batch.packet(0)), (1, &[i; 60][..]));
            received.fetch_add(1, Ordering::Relaxed);
        }
        assert!(source.next_batch().unwrap().is_none());
    }
}
