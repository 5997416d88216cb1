//! Batches that several threads filter in partitions: a flow's packets must stay in order of
//! arrival, as they do on one thread by construction, and results must be those of their packets.

mod common;

use std::num::NonZeroUsize;
use std::sync::Arc;

use common::program;
use portcullis_core::device::{Device, LoadOptions, Session};
use portcullis_core::interp::InterpDevice;
use portcullis_core::map::{Row, rows};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom, Verdicts};
use portcullis_core::program::Program;
use portcullis_cpu::Cpu;

/// A verdict depends on the number of packets of the flow before it, the flow's sum on their order.
const TEXT: &str = "
    //! map flows: hash key=1 value=2 entries=65536
    fn xdp_flow(pkt: u32) -> u32 { return load_le32(pkt, 0u); }
    fn xdp_filter(pkt: u32) -> u32 {
        let flow = flows_insert(load_le32(pkt, 0u));
        if flow == MAP_FULL { return XDP_ABORTED; }
        let before = flows_read(flow, 0u);
        flows_write(flow, 0u, before + 1u);
        flows_write(flow, 1u, flows_read(flow, 1u) * 31u + load_le32(pkt, 4u));
        return redirect(before);
    }";

fn run(program: &Arc<Program>, threads: usize, sizes: [usize; 2], flows: u32) -> (Vec<Verdicts>, Vec<Row>) {
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
    let mut session = Cpu::new().load(program, &options).unwrap();
    let mut state = 1_u32;
    let mut verdicts = Vec::new();
    for size in sizes {
        let packets: Vec<[u8; 16]> = (0..size)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let mut packet = [0; 16];
                packet[..4].copy_from_slice(&((state >> 8) % flows).to_le_bytes());
                packet[4..8].copy_from_slice(&state.to_le_bytes());
                packet
            })
            .collect();
        verdicts.push(session.run(Batch::from_packets(&packets).unwrap()).unwrap().verdicts);
    }
    let rows = rows(&program.maps()[0], &session.map_words(0).unwrap());
    (verdicts, rows)
}

#[test]
fn packets_of_a_flow_stay_in_order_with_several_threads() {
    let program = program(TEXT);
    // A tile is 32,768 packets: batches of more than two tiles, exactly two, less than one.
    for (sizes, flows) in [([100_000, 65_536], 40_000), ([65_537, 20_000], 50), ([70_000, 32_768], 1)] {
        let expected = run(&program, 1, sizes, flows);
        assert!(expected.1.len() > flows as usize / 2, "{} flows", expected.1.len());
        for threads in [2, 3, 8, 33] {
            let found = run(&program, threads, sizes, flows);
            assert!(found.0 == expected.0, "verdicts with {threads} threads, {flows} flows");
            assert!(found.1 == expected.1, "map rows with {threads} threads, {flows} flows");
        }
    }
}

/// Filters whose packets several threads filter in partitions: by flow, and by where the packet's
/// search begins.
const PARTITIONED: [&str; 2] = [
    "fn xdp_flow(pkt: u32) -> u32 { return load_u8(pkt, 0u) % 7u; }
    fn xdp_filter(pkt: u32) -> u32 {",
    "//! map keys: hash key=1 value=1 entries=65536
    fn xdp_filter(pkt: u32) -> u32 {
        keys_add(keys_insert(load_u8(pkt, 0u) % 200u), 0u, load_u8(pkt, 1u));",
];

/// Verdicts, lengths, bytes and metadata belong to their packets, although threads filter packets
/// in another order.
#[test]
fn results_of_partitions_are_those_of_their_packets() {
    for start in PARTITIONED {
        let program = program(&format!(
            "{start}
            let number = load_le32(pkt, 1u);
            _ = adjust_head(pkt, i32(number % 5u) - 2i);
            store_le32(pkt, 20u, number * 3u);
            if pkt_len(pkt) % 3u == 0u {{ return XDP_DROP; }}
            return redirect((pkt_port(pkt) ^ pkt_time(pkt).x) & 0xffffffu);
        }}"
        ));
        check_results(&program);
    }
}

fn check_results(program: &Arc<Program>) {
    let rows_of = |session: &mut dyn Session| -> Vec<_> {
        program.maps().iter().enumerate().map(|(map, it)| rows(it, &session.map_words(map).unwrap())).collect()
    };
    let batch = |packets: usize| {
        let slot = 64 + 2 * RESIZE_ROOM as usize;
        let mut arena = Arena::new(packets * slot).unwrap();
        for (number, bytes) in (0_u32..).zip(arena.chunks_exact_mut(slot)) {
            let packet = &mut bytes[RESIZE_ROOM as usize..];
            packet[0] = (number.wrapping_mul(0x9e37_79b1) >> 24) as u8;
            packet[1..5].copy_from_slice(&number.to_le_bytes());
        }
        let place =
            |number| Descriptor { offset: (number * slot) as u32 + RESIZE_ROOM, length: 40 + number as u32 % 24 };
        let metadata = |number| Metadata::new(60, number as u32, number as u64 * 77);
        let (descriptors, metadata) = ((0..packets).map(place).collect(), (0..packets).map(metadata).collect());
        BatchCutter::new(arena, None).cut_batch(descriptors, metadata, ResizeRoom::Both).unwrap()
    };
    for packets in [1, 255, 256, 257, 5000, 40_000] {
        let mut reference = InterpDevice::new().load(program, &LoadOptions::default()).unwrap();
        let expected = reference.run(batch(packets)).unwrap();
        let expected_rows = rows_of(&mut *reference);
        for threads in [1, 2, 3, 8, 33] {
            let options = LoadOptions::default().with_threads(NonZeroUsize::new(threads));
            // This device partitions whenever there are several threads.
            let mut session = Cpu::with_prefetch().load(program, &options).unwrap();
            // Flow numbers by vector code, where there is any, every other time.
            if threads % 2 == 0 {
                session.finish_background_work();
            }
            let done = session.run(batch(packets)).unwrap();
            assert!(done.verdicts == expected.verdicts, "{packets} packets, {threads} threads");
            assert!(done.batch.packets().eq(expected.batch.packets()), "{packets} packets, {threads} threads");
            assert!(rows_of(&mut *session) == expected_rows, "{packets} packets, {threads} threads");
        }
    }
}
