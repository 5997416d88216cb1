//! The interpreter as a device, with batches.

use std::sync::Arc;

use super::{Random, program};
use crate::device::{Device, DeviceError, LoadOptions, Session};
use crate::interp::InterpDevice;
use crate::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, ResizeRoom, Verdict};
use crate::program::{Program, ProgramOptions};

fn session(program: &Arc<Program>, options: &LoadOptions) -> Box<dyn Session> {
    InterpDevice::new().load(program, options).unwrap()
}

fn filter(text: &str) -> Arc<Program> {
    program(text, ProgramOptions::default().fuel)
}

/// Unaligned packets, surrounded by bytes of all ones.
fn scattered(packets: &[Vec<u8>], gap: usize) -> Batch {
    let mut arena = Arena::new(packets.iter().map(|p| p.len() + gap + 8).sum()).unwrap();
    arena.fill(0xff);
    let mut at = gap / 2;
    let mut descriptors = Vec::new();
    for (i, packet) in packets.iter().enumerate() {
        at = at.next_multiple_of(4) + i % 4;
        arena[at..at + packet.len()].copy_from_slice(packet);
        descriptors.push(Descriptor { offset: at as u32, length: packet.len() as u32 });
        at += packet.len() + gap;
    }
    let room = if gap >= 256 { ResizeRoom::Both } else { ResizeRoom::None };
    let metadata = (0..packets.len()).map(|i| Metadata::new(i as u32, 0, 0)).collect();
    BatchCutter::new(arena, None).cut_batch(descriptors, metadata, room).unwrap()
}

#[test]
fn packets_of_any_alignment_are_rewritten_and_resized() {
    let program = filter(
        "fn xdp_filter(pkt: u32) -> u32 {
            let n = pkt_wire_len(pkt);
            store_be32(pkt, 1u, 0xaabbccddu);
            if n % 3u == 1u && !adjust_head(pkt, 5i) { return XDP_DROP; }
            if n % 3u == 2u && !adjust_head(pkt, -5i) { return XDP_DROP; }
            if n % 2u == 1u && !adjust_tail(pkt, -3i) { return XDP_DROP; }
            return XDP_PASS;
        }",
    );
    let mut random = Random(3);
    let packets: Vec<Vec<u8>> = (0..40).map(|i| (0..30 + i % 9).map(|_| random.next() as u8).collect()).collect();
    let mut session = session(&program, &LoadOptions::default());
    let done = session.run(scattered(&packets, 260)).unwrap();
    for (i, packet) in packets.iter().enumerate() {
        let mut expected = packet.clone();
        expected[1..5].copy_from_slice(&[0xaa, 0xbb, 0xcc, 0xdd]);
        match i % 3 {
            1 => drop(expected.drain(..5)),
            2 => drop(expected.splice(..0, [0; 5])),
            _ => {}
        }
        if i % 2 == 1 {
            expected.truncate(expected.len() - 3);
        }
        assert_eq!(done.verdicts.get(i), Verdict::Pass);
        assert_eq!(done.batch.packet(i), expected, "packet {i}");
    }
}

#[test]
fn batches_complete_in_order_and_depth_is_enforced() {
    let program = filter("fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u); }");
    let mut session = session(&program, &LoadOptions { depth: 2, ..LoadOptions::default() });
    let batch = |byte: u8| Batch::from_packets(&[[byte; 14]]).unwrap();
    assert!(session.complete().unwrap().is_none());
    session.submit(batch(1)).unwrap();
    session.submit(batch(2)).unwrap();
    assert_eq!((session.in_flight(), session.depth()), (2, 2));
    let refused = session.submit(batch(3)).unwrap_err();
    assert_eq!(refused.batch.packet(0), [3; 14]);
    assert_eq!(session.complete().unwrap().unwrap().verdicts.get(0), Verdict::Drop);
    assert_eq!(session.complete().unwrap().unwrap().verdicts.get(0), Verdict::Pass);
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn cancellation_stops_in_the_middle_of_a_packet() {
    let program = program(
        "fn xdp_filter(pkt: u32) -> u32 { loop { if pkt_len(pkt) == 0u { break; } } return XDP_PASS; }",
        u32::MAX,
    );
    let options = LoadOptions::default();
    let mut session = session(&program, &options);
    session.submit(Batch::from_packets(&[[0; 14]]).unwrap()).unwrap();
    // Four billion iterations would take minutes: only the token ends this test.
    let cancel = options.cancel.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        cancel.cancel();
    });
    assert!(matches!(session.complete(), Err(DeviceError::Cancelled)));
    canceller.join().unwrap();
}
