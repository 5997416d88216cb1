//! Writing captures.

use std::sync::{Arc, Mutex};

use portcullis_core::packet::{Batch, Descriptor, ResizeRoom};
use portcullis_io::capture::{CaptureKind, CaptureSink};
use portcullis_io::{CaptureFormat, Interface, Resolution, Sink, SourceOptions, Written, create};

use super::bytes::*;
use super::{Packet, open, read};

/// An in-memory file that stays accessible while a sink owns it.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A sink, and the file that it writes.
fn sink(kind: CaptureKind, format: &CaptureFormat) -> (SharedBuffer, Box<CaptureSink>) {
    let out = SharedBuffer::default();
    let sink = CaptureSink::new("out", Box::new(out.clone()), kind, format).unwrap();
    (out, Box::new(sink))
}

/// Writes every second packet of a capture.
fn write_every_second(bytes: &[u8], kind: CaptureKind, room: ResizeRoom) -> (Vec<u8>, Written) {
    let options = SourceOptions::default().with_room(room).with_block_size(300);
    let mut source = open(bytes, &options);
    let (out, mut sink) = sink(kind, source.format());
    let mut number = 0;
    while let Some(batch) = source.next_batch().unwrap() {
        let indices: Vec<u32> = (0..batch.len() as u32).filter(|i| (number + i) % 2 == 1).collect();
        number += batch.len() as u32;
        sink.write(&batch, &indices).unwrap();
    }
    let written = sink.finish().unwrap();
    let bytes = out.0.lock().unwrap().clone();
    (bytes, written)
}

fn input(magic: u32) -> (Vec<u8>, Vec<Packet>) {
    let mut bytes = pcap_header(Order::Big, magic, 0x2400_0001);
    let mut packets = Vec::new();
    let unit = if magic == 0xa1b2_c3d4 { 1000 } else { 1 };
    for i in 0..200u32 {
        let payload = vec![i as u8; i as usize];
        bytes.extend(pcap_record(Order::Big, 100 + i, 999_000 + i, &payload, i + 7));
        let time = u64::from(100 + i) * 1_000_000_000 + u64::from(999_000 + i) * unit;
        packets.push(Packet { bytes: payload, wire: i + 7, port: 0, time });
    }
    let second = packets.into_iter().skip(1).step_by(2).collect();
    (bytes, second)
}

#[test]
fn classic_pcap_preserves_everything() {
    for (magic, room) in [(0xa1b2_c3d4, ResizeRoom::None), (0xa1b2_3c4d, ResizeRoom::Both)] {
        let (bytes, wanted) = input(magic);
        let (out, written) = write_every_second(&bytes, CaptureKind::Pcap, room);
        let (out_magic, snap_length, link_type, packets) = parse_pcap(&out);
        assert_eq!((out_magic, snap_length, link_type), (magic, 262_144, 0x2400_0001));
        assert_eq!(packets, wanted);
        assert_eq!(written.packets, 100);
        assert_eq!(written.bytes, (0..200).filter(|i| i % 2 == 1).sum::<u64>());
    }
}

#[test]
fn pcapng_preserves_everything() {
    let (bytes, wanted) = input(0xa1b2_3c4d);
    let (out, _) = write_every_second(&bytes, CaptureKind::Pcapng, ResizeRoom::None);
    let blocks = parse_pcapng(&out);
    let word = |body: &[u8], at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
    assert_eq!(blocks[0].0, 0x0a0d_0d0a);
    assert_eq!(word(&blocks[0].1, 0), 0x1a2b_3c4d);
    assert_eq!(blocks[0].1[4..8], [1, 0, 0, 0]);
    // Link type 1; snapshot length; if_tsresol 9; if_fcslen 32 bits; end of options.
    let interface =
        [[1, 0, 0, 0, 0, 0, 4, 0].as_slice(), &[9, 0, 1, 0, 9, 0, 0, 0], &[13, 0, 1, 0, 32, 0, 0, 0], &[0; 4]];
    assert_eq!(blocks[1], (1, interface.concat()));
    let packets: Vec<Packet> = blocks[2..]
        .iter()
        .map(|(kind, body)| {
            assert_eq!(*kind, 6);
            let length = word(body, 12) as usize;
            assert_eq!(body.len(), 20 + length.next_multiple_of(4));
            Packet {
                bytes: body[20..20 + length].to_vec(),
                wire: word(body, 16),
                port: word(body, 0),
                time: u64::from(word(body, 4)) << 32 | u64::from(word(body, 8)),
            }
        })
        .collect();
    assert_eq!(packets, wanted);
}

#[test]
fn ports_are_written_as_interfaces() {
    let order = Order::Little;
    let mut bytes = section(order);
    bytes.extend(interface(order, 1, 0, &[(2, b"lan")]));
    bytes.extend(enhanced(order, 0, 1, &[0; 60], 60, &[]));
    bytes.extend(enhanced(order, 0, 2, &[1; 60], 60, &[]));
    // Unknown to the sink when it starts, because blocks have 300 bytes.
    bytes.extend(interface(order, 1, 0, &[(2, b"wan")]));
    bytes.extend(interface(order, 1, 0, &[(9, &[9])]));
    for i in 0..6u64 {
        bytes.extend(enhanced(order, (i % 3) as u32, 1000 * i, &[2; 61], 64, &[]));
    }
    let (out, _) = write_every_second(&bytes, CaptureKind::Pcapng, ResizeRoom::Both);
    let outcome = read(&out);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let got: Vec<(u32, u64, usize)> = outcome.packets.iter().map(|p| (p.port, p.time, p.bytes.len())).collect();
    // Ports 0, 1, 0, 2 of the input; the last, with a nanosecond clock, has 5,000 ns: 5 µs.
    let ports: Vec<u32> = got.iter().map(|&(port, ..)| port).collect();
    assert_eq!(got.len(), 4);
    assert_eq!(ports, [0, 1, 0, 2]);
    assert_eq!(got[3], (2, 5000, 61));
    assert_eq!(got[1], (1, 1_000_000, 61));
}

#[test]
fn the_wire_length_changes_with_the_packet_length() {
    let mut bytes = pcap_header(Order::Little, 0xa1b2_c3d4, 1);
    for _ in 0..3 {
        bytes.extend(pcap_record(Order::Little, 1, 1, &[5; 60], 100));
    }
    let options = SourceOptions::default().with_room(ResizeRoom::Both);
    let mut source = open(&bytes, &options);
    let mut batch = source.next_batch().unwrap().unwrap();
    let d = batch.descriptors().to_vec();
    let at = |i: usize, move_by: i32, length| Descriptor { offset: d[i].offset.wrapping_add_signed(move_by), length };
    batch.resize(vec![at(0, 4, 56), at(1, -8, 68), at(2, 0, 14)]).unwrap();
    let (out, mut sink) = sink(CaptureKind::Pcap, source.format());
    sink.write(&batch, &[0, 1, 2]).unwrap();
    sink.finish().unwrap();
    let lengths: Vec<(usize, u32)> =
        parse_pcap(&out.0.lock().unwrap()).3.iter().map(|p| (p.bytes.len(), p.wire)).collect();
    assert_eq!(lengths, [(56, 96), (68, 108), (14, 54)]);
}

#[test]
fn packets_beyond_the_maximum_length_are_truncated() {
    let mut batch = Batch::from_packets(&[vec![3; 262_144], vec![4; 60]]).unwrap();
    let d = batch.descriptors().to_vec();
    batch.resize(vec![Descriptor { length: 262_144 + 128, ..d[0] }, d[1]]).unwrap();
    for kind in [CaptureKind::Pcap, CaptureKind::Pcapng] {
        let (out, mut sink) = sink(kind, &CaptureFormat::default());
        sink.write(&batch, &[0, 1]).unwrap();
        assert_eq!(sink.finish().unwrap(), Written { packets: 2, bytes: 262_144 + 60 });
        let outcome = read(&out.0.lock().unwrap());
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        let lengths: Vec<(usize, u32)> = outcome.packets.iter().map(|p| (p.bytes.len(), p.wire)).collect();
        assert_eq!(lengths, [(262_144, 262_272), (60, 60)]);
    }
}

#[test]
fn an_empty_capture_has_a_header() {
    let dir = tempfile::tempdir().unwrap();
    let interfaces = vec![Interface::default()];
    let format = CaptureFormat { resolution: Resolution::Micro, interfaces, fcs_words: None };
    for (name, length) in [("a.pcap", 24), ("b", 24), ("c.PcapNG", 28 + 32)] {
        let path = dir.path().join(name);
        std::fs::write(&path, vec![1; 1000]).unwrap();
        let sink = create(path.to_str().unwrap(), &format).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length, "{name}");
        assert_eq!(sink.finish().unwrap(), Written::default());
        let outcome = read(&std::fs::read(&path).unwrap());
        assert!(outcome.error.is_none() && outcome.packets.is_empty() && outcome.warnings.is_empty());
    }
}

#[test]
fn a_live_sink_flushes_each_batch() {
    let (bytes, _) = input(0xa1b2_c3d4);
    for (live, wanted) in [(true, 200), (false, 0)] {
        let (out, sink) = sink(CaptureKind::Pcap, &CaptureFormat::default());
        let mut sink = if live { sink.live() } else { *sink };
        let batch = open(&bytes, &SourceOptions::default()).next_batch().unwrap().unwrap();
        sink.write(&batch, &(0..batch.len() as u32).collect::<Vec<_>>()).unwrap();
        assert_eq!(parse_pcap(&out.0.lock().unwrap()).3.len(), wanted);
    }
}

#[test]
fn errors_name_the_file() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let format = CaptureFormat::default();
    let error = CaptureSink::new("disk.pcap", Box::new(Full), CaptureKind::Pcap, &format).unwrap_err();
    assert!(error.to_string().starts_with("disk.pcap: writing failed: "), "{error}");
    let error = create("/nowhere/at/all.pcap", &format).err().unwrap();
    assert!(error.to_string().starts_with("/nowhere/at/all.pcap: cannot be created: "), "{error}");
}

#[test]
fn same_file_follows_links() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    std::fs::write(&one, b"x").unwrap();
    assert!(portcullis_io::same_file(&one, &one));
    assert!(!portcullis_io::same_file(&one, &two));
    std::fs::write(&two, b"x").unwrap();
    assert!(!portcullis_io::same_file(&one, &two));
    #[cfg(unix)]
    {
        let three = dir.path().join("three");
        std::os::unix::fs::symlink(&one, &three).unwrap();
        assert!(portcullis_io::same_file(&one, &three));
    }
}
