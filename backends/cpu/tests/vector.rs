//! Vector code against the reference interpreter.

mod common;
mod stock;

use std::num::NonZeroUsize;
use std::sync::Arc;

use common::program;
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom, Verdicts};
use portcullis_core::program::Program;
use portcullis_cpu::{Cpu, Style};

/// Packets in an arena, with metadata and room around them.
fn batch(packets: &[Vec<u8>]) -> Batch {
    let (mut bytes, mut descriptors, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    for (i, packet) in packets.iter().enumerate() {
        bytes.resize(bytes.len() + RESIZE_ROOM as usize, 0x77);
        descriptors.push(Descriptor { offset: bytes.len() as u32, length: packet.len() as u32 });
        metadata.push(Metadata::new(packet.len() as u32 + 4, i as u32 % 3, i as u64 * 1_000_003));
        bytes.extend(packet);
        bytes.resize(bytes.len().next_multiple_of(4) + RESIZE_ROOM as usize, 0x77);
    }
    let mut arena = Arena::new(bytes.len()).unwrap();
    arena.copy_from_slice(&bytes);
    BatchCutter::new(arena, None).cut_batch(descriptors, metadata, ResizeRoom::Both).unwrap()
}

/// Verdicts and packets of a batch.
type Outcome = (Verdicts, Vec<Vec<u8>>);

/// Filters batches of `counts` packets; returns their outcomes and the final words of the maps.
fn outcomes(
    device: &dyn Device,
    program: &Arc<Program>,
    counts: &[usize],
    packets: &[Vec<u8>],
) -> (Vec<Outcome>, Vec<Vec<u32>>) {
    let options = LoadOptions::default().with_threads(NonZeroUsize::new(1));
    let mut session = device.load(program, &options).unwrap();
    let mut start = 0;
    let mut outcome = |&count: &usize| {
        let packets: Vec<_> = packets.iter().cycle().skip(start).take(count).cloned().collect();
        start += count;
        let done = session.run(batch(&packets)).unwrap();
        let bytes = done.batch.packets().map(<[u8]>::to_vec).collect();
        (done.verdicts, bytes)
    };
    let outcomes = counts.iter().map(&mut outcome).collect();
    (outcomes, (0..program.maps().len()).map(|map| session.map_words(map).unwrap()).collect())
}

fn assert_agrees_with_interpreter(name: &str, program: &Arc<Program>, counts: &[usize], packets: &[Vec<u8>]) {
    let want = outcomes(&InterpDevice::new(), program, counts, packets);
    for style in [Style::SpeculativeVector, Style::Vector] {
        let ours = outcomes(&Cpu::with_style(style), program, counts, packets);
        for ((ours, want), count) in ours.0.iter().zip(&want.0).zip(counts) {
            assert_eq!(ours, want, "{name}, {}, {count} packets", style.name());
        }
        assert!(ours.1 == want.1, "{name}, {}: maps", style.name());
    }
}

#[test]
fn stock_filters_agree_with_the_interpreter() {
    let packets = stock::packets();
    let counts: Vec<usize> = (0..=17).chain([600, 1000]).collect();
    for (name, program) in stock::stock() {
        assert_agrees_with_interpreter(&name, &program, &counts, &packets);
    }
}

/// Not every filter has vector code, but these must have it.
#[test]
fn stock_filters_have_vector_code() {
    let has = |text: &str| {
        let form = portcullis_cpu::render_clif(&program(text)).unwrap();
        (form.contains("; speculative vector\n"), form.contains("; vector\n"))
    };
    for (name, forms) in [
        ("simple_filter", (false, true)),
        ("port_filter", (true, true)),
        ("http_only", (true, true)),
        ("hash_lb", (true, true)),
        ("mac_swap", (false, true)),
    ] {
        assert_eq!(has(&stock::text(name)), forms, "{name}");
    }
}

/// Groups of four give the same results at half the speed, so no other test would notice.
#[test]
fn stock_filters_without_effects_have_avx2_code() {
    #[cfg(target_arch = "x86_64")]
    if !std::is_x86_feature_detected!("avx2") {
        eprintln!("skipped: this processor has no AVX2");
        return;
    }
    if !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: not an x86-64 processor");
        return;
    }
    for name in ["simple_filter", "port_filter", "complex_filter", "http_only", "hash_lb", "minimal"] {
        let form = portcullis_cpu::render_clif(&program(&stock::text(name))).unwrap();
        let mut vector_forms = 0;
        for style in ["; speculative vector\n", "; vector\n"] {
            let Some((_, form)) = form.split_once(style) else { continue };
            let form = form.split("\n; ").next().unwrap();
            vector_forms += 1;
            // Groups of four are Cranelift's; groups of eight are listed as machine instructions.
            assert!(!form.contains("block0"), "{name}: {style}{form}");
        }
        assert!(vector_forms > 0, "{name} has no vector code");
    }
}

/// Vector code executes each step for all packets of a group at once. Filters in which that can be
/// observed must use scalar code.
#[test]
fn map_accesses_are_not_reordered_between_packets() {
    let packets = stock::packets();
    for (what, text) in [
        ("an add whose result is used", "return 1u + (m_add(k, 0u, 1u) & 1u);"),
        ("an add whose result is unused", "m_add(k, 0u, load_u8(pkt, 3u)); return XDP_PASS;"),
        ("a read after a write", "m_write(k, 0u, load_u8(pkt, 3u)); return 1u + (m_read(k, 0u) & 1u);"),
        ("a write after a read", "let x = m_read(k, 0u); m_write(k, 0u, x * 3u + 1u); return 1u + (x & 1u);"),
        ("two adds", "let x = m_add(k, 0u, 1u); let y = m_add(k ^ 1u, 0u, x); return 1u + (y & 1u);"),
        (
            "adds in a loop",
            "var y = 0u; for (var i = 0u; i < 3u; i++) { y += m_add(k, 0u, y + 1u); } return 1u + (y & 1u);",
        ),
    ] {
        let text = format!(
            "//! map m: array value=1 entries=4
            fn xdp_filter(pkt: u32) -> u32 {{ let k = load_u8(pkt, 1u) & 3u; {text} }}"
        );
        assert_agrees_with_interpreter(what, &program(&text), &[3, 8, 100, 600], &packets);
    }
}

/// A value loaded by some lanes must not be reused by lanes that were inactive then.
#[test]
fn loads_are_not_reused_by_lanes_that_were_inactive() {
    let packets: Vec<Vec<u8>> =
        (0..64_u8).map(|i| (0..40_u8).map(|at| (i % 3) ^ at.wrapping_mul(7)).collect()).collect();
    for (what, text) in [
        (
            "a helper that some lanes have left",
            "fn five(pkt: u32) -> u32 { if load_u8(pkt, 0u) == 1u { return 0u; } return load_u8(pkt, 5u); }
            fn xdp_filter(pkt: u32) -> u32 {
                let x = five(pkt);
                let y = load_u8(pkt, 5u);
                store_u8(pkt, 9u, y + x);
                return XDP_PASS;
            }",
        ),
        (
            "a loop that some lanes have left",
            "fn xdp_filter(pkt: u32) -> u32 {
                var x = 0u;
                loop { if load_u8(pkt, 0u) == 2u { break; } x = load_u8(pkt, 6u); break; }
                store_u8(pkt, 8u, load_u8(pkt, 6u) + x);
                return XDP_TX;
            }",
        ),
        (
            "a case that some lanes take",
            "fn xdp_filter(pkt: u32) -> u32 {
                var x = 0u;
                switch load_u8(pkt, 0u) { case 1u: { x = load_u8(pkt, 7u); } default: {} }
                store_u8(pkt, 3u, load_u8(pkt, 7u) + x);
                return XDP_DROP;
            }",
        ),
    ] {
        assert_agrees_with_interpreter(what, &program(text), &[4, 8, 64], &packets);
    }
}

/// Sums of sums have exponentially many paths through the graph.
#[test]
fn offsets_with_exponentially_many_paths_are_compiled() {
    let steps = "x = x + (x >> 1u);\n".repeat(60);
    let text = format!(
        "fn xdp_filter(pkt: u32) -> u32 {{
            var x = load_u8(pkt, 14u) & 15u;
            {steps}
            return 1u + (load_u8(pkt, x & 31u) & 1u);
        }}"
    );
    assert_agrees_with_interpreter("a chain", &program(&text), &[8, 100], &stock::packets());
}
