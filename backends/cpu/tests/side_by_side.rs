//! Code that has several packets at a time against the interpreter.

mod stock;

use std::num::NonZeroUsize;
use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom, Verdicts};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::{Cpu, Style};
use portcullis_wgsl as wgsl;

/// Packets in an arena, with metadata, and room around them.
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

/// Verdicts, and packets.
type Outcome = (Verdicts, Vec<Vec<u8>>);

/// What becomes of batches of so many packets, and the words of the maps in the end.
fn outcomes(
    device: &dyn Device,
    program: &Arc<Program>,
    counts: &[usize],
    packets: &[Vec<u8>],
) -> (Vec<Outcome>, Vec<Vec<u32>>) {
    let options = LoadOptions { threads: NonZeroUsize::new(1), ..LoadOptions::default() };
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

fn is_the_interpreter(name: &str, program: &Arc<Program>, counts: &[usize], packets: &[Vec<u8>]) {
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
fn stock_filters_give_what_the_interpreter_gives() {
    let packets = stock::packets();
    let counts: Vec<usize> = (0..=17).chain([600, 1000]).collect();
    for (name, program) in stock::stock() {
        is_the_interpreter(&name, &program, &counts, &packets);
    }
}

/// Of each filter here there is such code, though some others of its kind are left to code for one packet at a time.
#[test]
fn most_filters_have_such_code() {
    let has = |text: &str| {
        let form = portcullis_cpu::render_clif(&program(text)).unwrap();
        (form.contains("; speculative vector\n"), form.contains("; vector\n"))
    };
    let stock =
        |name: &str| std::fs::read_to_string(format!("{}/../../shaders/{name}.wgsl", env!("CARGO_MANIFEST_DIR")));
    for (name, forms) in [
        ("simple_filter", (false, true)),
        ("port_filter", (true, true)),
        ("http_only", (true, true)),
        ("hash_lb", (true, true)),
        ("mac_swap", (false, true)),
    ] {
        assert_eq!(has(&stock(name).unwrap()), forms, "{name}");
    }
}

fn program(text: &str) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("test.wgsl", text), &ProgramOptions::default());
    Arc::new(program.unwrap_or_else(|errors| panic!("{}", errors.render())))
}

/// Packets side by side take each step together: where that could be told from one after the other they do not.
#[test]
fn maps_are_as_if_packets_came_one_after_the_other() {
    let packets = stock::packets();
    for (what, text) in [
        ("a sum that is asked for", "return 1u + (m_add(k, 0u, 1u) & 1u);"),
        ("a sum that nobody asks for", "m_add(k, 0u, load_u8(pkt, 3u)); return XDP_PASS;"),
        ("what was written before", "m_write(k, 0u, load_u8(pkt, 3u)); return 1u + (m_read(k, 0u) & 1u);"),
        ("what is written after", "let x = m_read(k, 0u); m_write(k, 0u, x * 3u + 1u); return 1u + (x & 1u);"),
        ("two sums", "let x = m_add(k, 0u, 1u); let y = m_add(k ^ 1u, 0u, x); return 1u + (y & 1u);"),
        (
            "sums in a loop",
            "var y = 0u; for (var i = 0u; i < 3u; i++) { y += m_add(k, 0u, y + 1u); } return 1u + (y & 1u);",
        ),
    ] {
        let text = format!(
            "//! map m: array value=1 entries=4
            fn xdp_filter(pkt: u32) -> u32 {{ let k = load_u8(pkt, 1u) & 3u; {text} }}"
        );
        is_the_interpreter(what, &program(&text), &[3, 8, 100, 600], &packets);
    }
}

/// What some lanes have loaded is not there for others that come back.
#[test]
fn lanes_that_were_away_load_for_themselves() {
    let packets: Vec<Vec<u8>> =
        (0..64_u8).map(|i| (0..40_u8).map(|at| (i % 3) ^ at.wrapping_mul(7)).collect()).collect();
    for (what, text) in [
        (
            "a helper that some have left",
            "fn five(pkt: u32) -> u32 { if load_u8(pkt, 0u) == 1u { return 0u; } return load_u8(pkt, 5u); }
            fn xdp_filter(pkt: u32) -> u32 {
                let x = five(pkt);
                let y = load_u8(pkt, 5u);
                store_u8(pkt, 9u, y + x);
                return XDP_PASS;
            }",
        ),
        (
            "a loop that some have left",
            "fn xdp_filter(pkt: u32) -> u32 {
                var x = 0u;
                loop { if load_u8(pkt, 0u) == 2u { break; } x = load_u8(pkt, 6u); break; }
                store_u8(pkt, 8u, load_u8(pkt, 6u) + x);
                return XDP_TX;
            }",
        ),
        (
            "a case that some take",
            "fn xdp_filter(pkt: u32) -> u32 {
                var x = 0u;
                switch load_u8(pkt, 0u) { case 1u: { x = load_u8(pkt, 7u); } default: {} }
                store_u8(pkt, 3u, load_u8(pkt, 7u) + x);
                return XDP_DROP;
            }",
        ),
    ] {
        is_the_interpreter(what, &program(text), &[4, 8, 64], &packets);
    }
}

/// Values that are made of each other have more ways through them than anybody could go.
#[test]
fn offsets_of_many_operations_are_compiled_all_the_same() {
    let steps = "x = x + (x >> 1u);\n".repeat(60);
    let text = format!(
        "fn xdp_filter(pkt: u32) -> u32 {{
            var x = load_u8(pkt, 14u) & 15u;
            {steps}
            return 1u + (load_u8(pkt, x & 31u) & 1u);
        }}"
    );
    is_the_interpreter("a chain", &program(&text), &[8, 100], &stock::packets());
}
