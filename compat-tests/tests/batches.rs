//! Batch layouts, submission and cancellation on every device.

use std::sync::Arc;

use portcullis_compat_tests::devices::on_each;
use portcullis_compat_tests::texts::in_wgsl;
use portcullis_core::device::{CancelToken, Device, DeviceError, DeviceKind, Dispatch, LoadOptions, Session};
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, ResizeRoom, Verdict};
use portcullis_core::program::Program;

fn program(text: &str) -> Arc<Program> {
    in_wgsl("test.wgsl", text)
}

fn load(device: &Arc<dyn Device>, program: &Arc<Program>) -> Box<dyn Session> {
    device.load(program, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", device.info().id))
}

/// Runs one batch and returns its verdicts and packets.
fn run_batch(device: &Arc<dyn Device>, program: &Arc<Program>, batch: Batch) -> (Vec<Verdict>, Vec<Vec<u8>>) {
    let done = load(device, program).run(batch).unwrap_or_else(|e| panic!("{}: {e}", device.info().id));
    assert_eq!(done.verdicts.len(), done.batch.len());
    (done.verdicts.iter().collect(), done.batch.packets().map(<[u8]>::to_vec).collect())
}

/// Returns a batch of `count` packets of `length` bytes, the first at offset `start` and the others
/// each `stride` bytes further. `fill` writes their bytes.
fn strided(count: usize, length: usize, start: usize, stride: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Batch {
    let mut arena = Arena::new(start + count * stride + length).unwrap();
    let mut descriptors = Vec::with_capacity(count);
    for index in 0..count {
        let offset = start + index * stride;
        fill(index, &mut arena[offset..offset + length]);
        descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
    }
    BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::None).unwrap()
}

/// Returns the number of packets that keeps a device busy; fewer for the slow interpreter.
fn many(device: &Arc<dyn Device>, count: usize) -> usize {
    if device.info().kind == DeviceKind::Reference { count / 100 } else { count }
}

/// Redirects to the number in the first four bytes.
const NUMBER: &str = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_be32(pkt, 0u)); }";

/// Adds one to the number in the last four bytes.
const COUNT: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        let at = pkt_len(pkt) - 4u;
        store_be32(pkt, at, load_be32(pkt, at) + 1u);
        return XDP_TX;
    }";

fn numbers(count: usize, length: usize, start: usize, stride: usize) -> Batch {
    strided(count, length, start, stride, |i, packet| packet[..4].copy_from_slice(&(i as u32).to_be_bytes()))
}

#[test]
fn empty_batches_complete() {
    on_each("empty batches", |device| {
        for text in [NUMBER, COUNT] {
            let (verdicts, after) = run_batch(device, &program(text), Batch::from_packets::<[u8; 0]>(&[]).unwrap());
            assert!(verdicts.is_empty() && after.is_empty());
        }
    });
}

/// Frames of a ring: packets lie in any order, between frames that the device must neither read nor
/// write.
#[test]
fn packets_may_lie_in_frames_in_any_order() {
    const MOVES: &str = "
        fn xdp_filter(pkt: u32) -> u32 {
            adjust_head(pkt, i32(load_u8(pkt, 3u) & 7u) - 4);
            store_u8(pkt, 0u, 0xaau);
            return XDP_TX;
        }";
    on_each("packets in frames", |device| {
        for length in [18, 60, 61, 1514] {
            let count = many(device, 1000).max(20);
            let packets = (0..count as u32).map(|number| {
                let end = number.wrapping_mul(0x9e37_79b9);
                [&number.to_be_bytes()[..], &vec![7; length - 8], &end.to_be_bytes()].concat()
            });
            let packets: Vec<Vec<u8>> = packets.collect();
            let run = |text| run_batch(device, &program(text), Batch::in_frames(&packets).unwrap());

            let (verdicts, after) = run(NUMBER);
            assert_eq!(verdicts, (0..count as u32).map(Verdict::Redirect).collect::<Vec<_>>());
            assert_eq!(after, packets);

            let (_, after) = run(COUNT);
            for (after, before) in after.iter().zip(&packets) {
                let (before, number) = before.split_last_chunk::<4>().unwrap();
                assert_eq!(*after, [before, &(u32::from_be_bytes(*number).wrapping_add(1)).to_be_bytes()].concat());
            }

            let (_, after) = run(MOVES);
            for (after, before) in after.iter().zip(&packets) {
                let by = i32::from(before[3] & 7) - 4;
                let cut = by.clamp(0, length as i32 - 14) as usize;
                assert_eq!(after.len() as i32, length as i32 - by, "{by}");
                assert_eq!(after[0], 0xaa);
                let kept = &before[cut..];
                let at = after.len() - kept.len();
                // The filter has overwritten the first byte.
                assert_eq!(after[at.max(1)..], kept[usize::from(at == 0)..]);
            }
        }
    });
}

#[test]
fn empty_packets_get_verdicts() {
    on_each("empty packets", |device| {
        let empty_packets = |room| {
            let at = |offset| Descriptor { offset, length: 0 };
            let mut cutter = BatchCutter::new(Arena::new(4096).unwrap(), None);
            cutter.cut_batch(vec![at(200), at(456), at(1000)], vec![], room).unwrap()
        };
        for text in [NUMBER, COUNT] {
            for room in [ResizeRoom::None, ResizeRoom::Both] {
                let (verdicts, after) = run_batch(device, &program(text), empty_packets(room));
                assert_eq!(verdicts.len(), 3);
                assert_eq!(after, vec![vec![0u8; 0]; 3]);
            }
        }
    });
}

/// Filters that load and store words at constant and at computed offsets, near a packet's start and
/// far from it.
const WORD_ACCESSES: [&str; 2] = [
    "fn xdp_filter(pkt: u32) -> u32 {
        let at = load_u8(pkt, 14u) & 15u;
        let near = load_be16(pkt, 13u) ^ load_le32(pkt, 26u) ^ load_be32(pkt, at);
        return redirect((near ^ load_le16(pkt, 200u) ^ load_be32(pkt, 250u)) & 0xffffffu);
    }",
    "fn xdp_filter(pkt: u32) -> u32 {
        store_le32(pkt, 4u, load_be32(pkt, 8u));
        store_be16(pkt, 8u, pkt_len(pkt));
        store_le32(pkt, load_u8(pkt, 0u) & 31u, 0x01020304u);
        return XDP_TX;
    }",
];

/// The offset of an empty packet is arbitrary, also if every packet with bytes starts at a multiple
/// of 4: as in a capture of one packet of 255 bytes and empty ones behind it, each 16 bytes after
/// the one before.
#[test]
fn empty_packets_lie_at_any_offset() {
    let d = |offset, length| Descriptor { offset, length };
    let behind = |first: u32| (0..7).map(move |i| d(first + 16 * i, 0));
    let layouts: [Vec<Descriptor>; 5] = [
        [d(40, 255)].into_iter().chain(behind(311)).collect(),
        behind(1).chain([d(256, 255), d(512, 60)]).collect(),
        // Behind and before the others, as far away as can be.
        vec![d(40 << 20, 60), d((80 << 20) - 1, 0), d(3, 0), d((40 << 20) + 64, 1), d((40 << 20) + 68, 255)],
        vec![d(1, 0), d(2, 0), d(3, 0)],
        // One-byte packets at multiples of 4, empty ones between them.
        (0..40).map(|i| d(4 * i, 1)).chain([d(5, 0), d(161, 0)]).collect(),
    ];
    on_each("empty packets at any offset", |device| {
        for text in WORD_ACCESSES {
            let program = program(text);
            let reference = Interpreter::new(&program).unwrap();
            for layout in &layouts {
                let end = layout.iter().map(|d| d.offset + d.length).max().unwrap();
                let mut arena = Arena::new(end as usize + 1).unwrap();
                for d in layout {
                    let bytes = &mut arena[d.offset as usize..][..d.length as usize];
                    bytes.iter_mut().zip(d.offset..).for_each(|(byte, at)| *byte = (at * 7) as u8);
                }
                let batch = BatchCutter::new(arena, None).cut_batch(layout.clone(), vec![], ResizeRoom::None).unwrap();
                let want = batch.packets().map(|packet| {
                    let metadata = Metadata { wire_length: packet.len() as u32, ..Metadata::default() };
                    let outcome = reference.run(packet, &metadata).unwrap();
                    (outcome.verdict, outcome.packet)
                });
                let want: Vec<_> = want.collect();
                let (verdicts, packets) = run_batch(device, &program, batch);
                assert_eq!(verdicts.into_iter().zip(packets).collect::<Vec<_>>(), want, "{layout:?}\n{text}");
            }
        }
    });
}

#[test]
fn large_batches_are_filtered_completely() {
    on_each("large batches", |device| {
        for (length, stride) in [(4, 4), (60, 64), (61, 2112)] {
            let batch = numbers(many(device, 100_000), length, 12, stride);
            let (verdicts, _) = run_batch(device, &program(NUMBER), batch);
            assert!(verdicts.iter().enumerate().all(|(i, &v)| v == Verdict::Redirect(i as u32)), "{length} {stride}");
        }
    });
}

#[test]
fn packets_may_start_at_any_alignment() {
    on_each("packets at any alignment", |device| {
        for start in [1, 2, 3, 4097, 8191] {
            let (verdicts, _) = run_batch(device, &program(NUMBER), numbers(1000, 61, start, 68));
            assert!(verdicts.iter().enumerate().all(|(i, &v)| v == Verdict::Redirect(i as u32)), "{start}");
        }
    });
}

/// Tests each dispatch method of the device.
#[test]
fn batches_complete_in_order_of_submission() {
    on_each("order of completion", |device| {
        for (&dispatch, text) in device.info().dispatch.iter().flat_map(|d| [(d, NUMBER), (d, COUNT)]) {
            let options = LoadOptions::default().with_depth(4).with_dispatch(dispatch);
            let session = device.load(&program(text), &options);
            let mut session = session.unwrap_or_else(|e| panic!("{} {dispatch}: {e}", device.info().id));
            let depth = session.depth();
            assert!(depth == if dispatch == Dispatch::Inline { 1 } else { 4 }, "{dispatch}: {depth}");
            let mut back = 0;
            let check = |done: portcullis_core::device::Completion, back: usize| {
                assert_eq!(done.batch.len(), 1000 + back * 100, "{dispatch}");
                if text == NUMBER {
                    assert!(
                        done.verdicts.iter().enumerate().all(|(i, v)| v == Verdict::Redirect(i as u32)),
                        "{dispatch}"
                    );
                } else {
                    assert!(done.batch.packets().all(|packet| packet[60..] == [0, 0, 0, 1]), "{dispatch}");
                }
            };
            for sent in 0..12 {
                if session.in_flight() == depth {
                    check(session.complete().unwrap().unwrap(), back);
                    back += 1;
                }
                session.submit(numbers(1000 + sent * 100, 64, sent % 4, 68)).unwrap();
            }
            assert_eq!(session.in_flight(), depth);
            let refused = session.submit(numbers(5, 64, 0, 64)).unwrap_err();
            assert!(matches!(refused.error, DeviceError::Refused(_)));
            assert_eq!(refused.batch.len(), 5);
            while let Some(done) = session.complete().unwrap() {
                check(done, back);
                back += 1;
            }
            assert_eq!(back, 12);
        }
    });
}

#[test]
fn unsupported_dispatch_methods_are_refused_by_name() {
    on_each("unsupported dispatch methods", |device| {
        for dispatch in Dispatch::ALL {
            let options = LoadOptions::default().with_dispatch(dispatch);
            let loaded = device.load(&program(NUMBER), &options);
            if device.info().dispatch.contains(&dispatch) {
                assert!(loaded.is_ok(), "{dispatch}");
            } else {
                let error = loaded.err().expect("the device lacks the method").to_string();
                assert!(error.contains(dispatch.name()) && error.contains(device.info().dispatch[0].name()), "{error}");
            }
        }
    });
}

#[test]
fn many_arenas_and_several_batches_of_one() {
    on_each("many arenas and several batches of one", |device| {
        let mut session = load(device, &program(NUMBER));
        for round in 0..many(device, 100).max(3) as u32 {
            // Large enough for the device to import the arena without being told in advance.
            let mut arena = Arena::new(300 << 10).unwrap();
            for i in 0..2000u32 {
                arena[i as usize * 128..][..4].copy_from_slice(&(i + round).to_be_bytes());
            }
            let mut cutter = BatchCutter::new(arena, None);
            for part in 0..2u32 {
                let descriptors = (0..1000).map(|i| Descriptor { offset: (part * 1000 + i) * 128, length: 60 });
                session.submit(cutter.cut_batch(descriptors.collect(), vec![], ResizeRoom::None).unwrap()).unwrap();
            }
            drop(cutter);
            for part in 0..2u32 {
                let done = session.complete().unwrap().unwrap();
                let expected = |i: usize| Verdict::Redirect(part * 1000 + i as u32 + round);
                assert!(done.verdicts.iter().enumerate().all(|(i, v)| v == expected(i)), "{round} {part}");
            }
        }
    });
}

#[test]
fn writes_to_a_reused_arena_are_seen() {
    on_each("writes to a reused arena", |device| {
        let mut session = load(device, &program(NUMBER));
        let (home, arenas) = std::sync::mpsc::channel();
        let mut arena = Arena::new(1 << 20).unwrap();
        for round in 0..20u32 {
            arena[..4].copy_from_slice(&round.to_be_bytes());
            let mut cutter = BatchCutter::new(arena, Some(home.clone()));
            let batch = cutter.cut_batch(vec![Descriptor { offset: 0, length: 4 }], vec![], ResizeRoom::None).unwrap();
            drop(cutter);
            let done = session.run(batch).unwrap();
            assert_eq!(done.verdicts.get(0), Verdict::Redirect(round));
            drop(done);
            arena = arenas.recv().unwrap();
        }
    });
}

#[test]
fn filters_that_resize_packets_need_room() {
    let text = "fn xdp_filter(pkt: u32) -> u32 { if adjust_head(pkt, 4) { return XDP_PASS; } return XDP_DROP; }";
    on_each("filters that resize packets need room", |device| {
        let refused = load(device, &program(text)).submit(numbers(10, 60, 0, 64)).unwrap_err();
        assert!(matches!(refused.error, DeviceError::Refused(_)), "{}", refused.error);
    });
}

/// Exhausts its fuel on every packet.
const BURN: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        var x = load_le32(pkt, 0u);
        loop { x = x * 1664525u + 1013904223u; if x == load_le32(pkt, 4u) + 0x80000000u { break; } }
        return select(XDP_PASS, XDP_DROP, x == 7u);
    }";

#[test]
fn cancelling_ends_a_long_batch() {
    on_each("cancelling a long batch", |device| {
        let cancel = CancelToken::new();
        let options = LoadOptions::default().with_cancel(cancel.clone());
        let mut session = device.load(&program(BURN), &options).unwrap();
        session.submit(numbers(4_000_000, 8, 0, 8)).unwrap();
        cancel.cancel();
        assert_eq!(session.complete().unwrap_err(), DeviceError::Cancelled);
        assert_eq!(session.in_flight(), 0);
    });
}

#[test]
fn batches_split_into_launches_are_complete() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            var n = load_be32(pkt, 0u);
            loop { if n < 1000u { break; } n = n - 1000u; }
            return redirect(n);
        }";
    on_each("batches split into launches", |device| {
        let (verdicts, _) = run_batch(device, &program(text), numbers(many(device, 50_000), 60, 0, 64));
        assert!(verdicts.iter().enumerate().all(|(i, &v)| v == Verdict::Redirect(i as u32 % 1000)));
    });
}

#[test]
fn cancelling_ends_a_load() {
    on_each("cancelling a load", |device| {
        let cancel = CancelToken::new();
        cancel.cancel();
        let options = LoadOptions::default().with_cancel(cancel);
        // Both outcomes are correct: the load may finish before it checks the token.
        match device.load(&program(NUMBER), &options) {
            Ok(mut session) => assert_eq!(session.run(numbers(1, 4, 0, 4)).unwrap_err(), DeviceError::Cancelled),
            Err(error) => assert_eq!(error, DeviceError::Cancelled),
        }
    });
}

#[test]
fn sessions_are_independent_and_can_move_to_other_threads() {
    on_each("independent sessions on other threads", |device| {
        let threads: Vec<_> = [NUMBER, COUNT, NUMBER]
            .into_iter()
            .map(|text| {
                let mut session = load(device, &program(text));
                let batch = numbers(many(device, 50_000), 60, 0, 64);
                std::thread::spawn(move || session.run(batch).unwrap().verdicts.get(77))
            })
            .collect();
        let verdicts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(verdicts, [Verdict::Redirect(77), Verdict::Tx, Verdict::Redirect(77)]);
    });
}

#[test]
fn stores_change_only_the_packets_bytes() {
    // Covers every size at every offset within a word; packets start at most 4 bytes apart.
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            store_u8(pkt, 0u, 0x1a1u);
            store_be16(pkt, 1u, 0xb1b2u);
            store_le16(pkt, 3u, 0xc1c2u);
            store_be32(pkt, 5u, 0xd1d2d3d4u);
            store_le32(pkt, 9u, 0xe1e2e3e4u);
            store_le32(pkt, pkt_len(pkt) - 3u, 0xffffffffu);
            store_u8(pkt, 0xffffffffu, 0xffu);
            return XDP_PASS;
        }";
    let new = [0xa1, 0xb1, 0xb2, 0xc2, 0xc1, 0xd1, 0xd2, 0xd3, 0xd4, 0xe4, 0xe3, 0xe2, 0xe1];
    on_each("stores", |device| {
        for start in 0..4usize {
            let batch = strided(50, 17, start, 20, |_, packet| packet.fill(0x55));
            let (_, after) = run_batch(device, &program(text), batch);
            for packet in after {
                assert_eq!(packet[..13], new);
                assert_eq!(packet[13..], [0x55; 4]);
            }
        }
    });
}

/// Writes all metadata into the packet.
const WRITES_METADATA: &str = "
    fn xdp_filter(pkt: u32) -> u32 {
        store_le32(pkt, 0u, pkt_wire_len(pkt));
        store_le32(pkt, 4u, pkt_port(pkt));
        store_le32(pkt, 8u, pkt_time(pkt).x);
        store_le32(pkt, 12u, pkt_time(pkt).y);
        store_le32(pkt, 16u, pkt_time_ms(pkt));
        store_le32(pkt, 20u, pkt_len(pkt));
        return XDP_PASS;
    }";

fn words(packet: &[u8]) -> Vec<u32> {
    packet.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
}

/// The metadata of packet `index`.
type MetadataOf = fn(u32) -> Metadata;

#[test]
fn metadata_reaches_the_filter() {
    const TIME: u64 = 0x0123_4567_ffff_fff0;
    // The second half of a batch of 20,000 packets is in another chunk of work on the host.
    let kinds: [(usize, MetadataOf); 9] = [
        (300, |i| Metadata::new(i + 1000, i % 7, TIME + u64::from(i))),
        (300, |_| Metadata::new(1500, 3, TIME)),
        (300, |i| Metadata::new(24, 3, TIME - 100 * u64::from(i))),
        (33, |i| Metadata::new(24, u32::MAX - i, u64::MAX - (u64::from(i) << 26))),
        (33, |i| Metadata::new(i << 27, i << 15, u64::from(i) << 40)),
        (2, |i| Metadata::new(24 + i, i, u64::from(i))),
        (1, |_| Metadata::new(70_000, 70_000, u64::MAX)),
        (20_000, |i| Metadata::new(24 + i % 1400, 0, TIME + 700 * u64::from(i))),
        (20_000, |i| Metadata::new(if i == 19_999 { 1 << 31 } else { 24 }, i / 9000, TIME << (i / 15_000))),
    ];
    on_each("metadata", |device| {
        for (kind, &(count, metadata_of)) in kinds.iter().enumerate() {
            let count = many(device, count).max(count.min(300));
            let descriptors = (0..count as u32).map(|i| Descriptor { offset: i * 24, length: 24 }).collect();
            let metadata: Vec<Metadata> = (0..count as u32).map(metadata_of).collect();
            let mut cutter = BatchCutter::new(Arena::new(24 * count).unwrap(), None);
            let batch = cutter.cut_batch(descriptors, metadata.clone(), ResizeRoom::None).unwrap();
            let (_, after) = run_batch(device, &program(WRITES_METADATA), batch);
            for (i, (packet, metadata)) in after.iter().zip(metadata).enumerate() {
                let Metadata { wire_length, port, time_low, time_high, time_ms } = metadata;
                let expected = [wire_length, port, time_low, time_high, time_ms, 24];
                assert_eq!(words(packet), expected, "{}, kind {kind}, packet {i}", device.info().id);
            }
        }
        // Without metadata, the wire length is the captured length.
        let (_, after) = run_batch(device, &program(WRITES_METADATA), strided(3, 24, 0, 24, |_, _| ()));
        assert_eq!(words(&after[2]), [24, 0, 0, 0, 0, 24]);
    });
}

#[test]
fn the_wire_length_stays_when_a_filter_cuts_packets() {
    let cut = "
        fn xdp_filter(pkt: u32) -> u32 {
            adjust_tail(pkt, -i32(load_u8(pkt, 0u)));
            return XDP_PASS;
        }";
    on_each("wire lengths of cut packets", |device| {
        let packets: Vec<Vec<u8>> = (0..40).map(|i| vec![if i % 3 == 0 { 4 } else { 0 }; 28]).collect();
        let mut batch = Batch::from_packets(&packets).unwrap();
        // In the second round the session knows the wire lengths of the batch from the first.
        for text in [WRITES_METADATA, cut, WRITES_METADATA] {
            if text == cut {
                (0..batch.len()).for_each(|index| batch.packet_mut(index).copy_from_slice(&packets[index]));
            }
            batch = load(device, &program(text)).run(batch).unwrap().batch;
        }
        for (index, packet) in batch.packets().enumerate() {
            let length = if index % 3 == 0 { 24 } else { 28 };
            assert_eq!(words(packet)[..6], [28, 0, 0, 0, 0, length], "{}, packet {index}", device.info().id);
        }
    });
}

#[test]
fn packets_far_apart_are_gathered() {
    // Packets make up far less than half of the memory between the first and the last. The batch is
    // too small to be imported unless requested, and two of the filters write to packets.
    let read = "fn xdp_filter(pkt: u32) -> u32 { return redirect(load_be32(pkt, 0u) + load_u8(pkt, 40u)); }";
    let write = "fn xdp_filter(pkt: u32) -> u32 { store_be16(pkt, 11u, load_be16(pkt, 2u)); return XDP_PASS; }";
    let packets = || {
        strided(100, 61, 3, 2112, |i, packet| {
            packet.fill(0x77);
            packet[..4].copy_from_slice(&(i as u32).to_be_bytes());
            packet[57..].copy_from_slice(&[0; 4]);
        })
    };
    on_each("packets far apart are gathered", |device| {
        let (verdicts, after) = run_batch(device, &program(read), packets());
        assert!(verdicts.iter().enumerate().all(|(i, &v)| v == Verdict::Redirect(i as u32 + 0x77)));
        assert!(after.iter().map(Vec::as_slice).eq(packets().packets()));

        let (_, after) = run_batch(device, &program(write), packets());
        let mut expected: Vec<Vec<u8>> = packets().packets().map(<[u8]>::to_vec).collect();
        expected.iter_mut().for_each(|packet| packet.copy_within(2..4, 11));
        assert_eq!(after, expected);

        let (_, after) = run_batch(device, &program(COUNT), packets());
        let mut expected: Vec<Vec<u8>> = packets().packets().map(<[u8]>::to_vec).collect();
        expected.iter_mut().for_each(|packet| packet[60] = 1);
        assert_eq!(after, expected);
    });
}

#[test]
fn packets_far_apart_grow_and_shrink() {
    let text = "
        fn xdp_filter(pkt: u32) -> u32 {
            let number = load_u8(pkt, 0u);
            if !adjust_head(pkt, select(-20i, 7i, number % 2u == 0u)) { return XDP_DROP; }
            if !adjust_tail(pkt, select(-9i, 33i, number % 3u == 0u)) { return XDP_DROP; }
            store_u8(pkt, 0u, number);
            return XDP_PASS;
        }";
    on_each("packets far apart grow and shrink", |device| {
        let stride = 4000;
        let mut arena = Arena::new(61 * stride).unwrap();
        let mut descriptors = Vec::new();
        let mut expected = Vec::new();
        for i in 0..60u8 {
            let (offset, length) = (usize::from(i) * stride + 130, 50 + usize::from(i));
            let packet: Vec<u8> = (0..length as u8).map(|at| if at == 0 { i } else { at }).collect();
            arena[offset..offset + length].copy_from_slice(&packet);
            descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
            let mut after = if i % 2 == 0 { packet[7..].to_vec() } else { [&[0; 20], &packet[..]].concat() };
            after.resize(if i % 3 == 0 { after.len() + 33 } else { after.len() - 9 }, 0);
            after[0] = i;
            expected.push(after);
        }
        let batch = BatchCutter::new(arena, None).cut_batch(descriptors, vec![], ResizeRoom::Both).unwrap();
        let (verdicts, after) = run_batch(device, &program(text), batch);
        assert!(verdicts.iter().all(|&v| v == Verdict::Pass));
        assert_eq!(after, expected);
    });
}
