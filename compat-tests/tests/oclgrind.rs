//! Stock filters and probes under Oclgrind: work items do not access memory outside their buffers,
//! do not race, and give the reference interpreter's results.

use std::sync::Arc;

use portcullis_c_writer::{Language, Options, PacketAccess, write};
use portcullis_compat_tests::generator::{self, Maps};
use portcullis_compat_tests::oclgrind::{self, Edit, Oclgrind};
use portcullis_compat_tests::witness::Unit;
use portcullis_compat_tests::witness::opencl::{KERNEL, Packet, Slots};
use portcullis_compat_tests::{devices, harness, stock, texts, with_maps};
use portcullis_conformance::corpora::{self, Depth};
use portcullis_conformance::filters::{self, Case};
use portcullis_core::device::Device;
use portcullis_core::packet::Metadata;
use portcullis_core::program::Program;

const SUITE: &str = "races, bounds and alignment";

/// Length of the longest packets for filters' own text.
const LONGEST_OWN: usize = 160;

/// Returns a sample of every corpus, because Oclgrind interprets kernels.
fn packets() -> Vec<Vec<u8>> {
    let some = |corpus: corpora::Corpus| {
        let step = corpus.packets.len().div_ceil(40);
        corpus.packets.into_iter().step_by(step).map(|packet| packet.bytes)
    };
    corpora::corpora(Depth::Quick).into_iter().flat_map(some).collect()
}

fn oclgrind() -> Option<Oclgrind> {
    let found = Oclgrind::find();
    if found.is_none() {
        devices::record_skip(SUITE, "oclgrind", "not installed (Debian's package oclgrind)");
    }
    found
}

fn check(oclgrind: &Oclgrind, is_wanted: impl Fn(&Case) -> bool) {
    let packets = packets();
    for case in filters::cases().iter().filter(|case| is_wanted(case)) {
        let program = case.compile().unwrap_or_else(|e| panic!("{}", e.render()));
        harness::compare(&program, oclgrind, &packets, &[packets.len()]).unwrap_or_else(|m| panic!("{m}"));
    }
    devices::record(SUITE, "oclgrind", "passed", &oclgrind.info().name);
}

fn is_stock(case: &Case) -> bool {
    portcullis::stock::STATELESS_WGSL.iter().any(|(name, _)| *name == case.name)
}

#[test]
fn stock_filters_neither_race_nor_access_memory_out_of_bounds() {
    let Some(oclgrind) = oclgrind() else { return };
    check(&oclgrind, is_stock);
}

/// Races are not checked: a load that crosses the packet's end is executed and its value discarded,
/// while the next packet's work item may write there.
#[test]
fn probes_access_no_memory_out_of_bounds() {
    let Some(oclgrind) = oclgrind() else { return };
    check(&oclgrind.without_races(), |case| !is_stock(case));
}

/// Kernels for GPUs, which read and write words. Races are not checked: a word may lie behind the
/// packet, in another.
#[test]
fn word_accesses_are_aligned_and_in_bounds() {
    let Some(oclgrind) = oclgrind() else { return };
    check(&oclgrind.without_races().with_packet_access(PacketAccess::Words), is_stock);
}

/// Kernels for CPUs, in which a work item filters several packets by two loops.
#[test]
fn loops_for_loads_stay_in_bounds() {
    let Some(oclgrind) = oclgrind() else { return };
    check(&oclgrind.with_packet_access(PacketAccess::LoopFission), is_stock);
}

/// Maps of every kind, packet by packet. Races are not checked: map words are read by plain loads
/// beside atomic functions, because OpenCL C 1.2 has no atomic load.
#[test]
fn map_accesses_stay_in_bounds() {
    let Some(oclgrind) = oclgrind() else { return };
    let oclgrind: Arc<dyn Device> = Arc::new(oclgrind.without_races());
    for seed in 0..3 {
        let program = generator::program(seed, Some(Maps::OneByOne));
        with_maps::check(&oclgrind, &program, Maps::OneByOne, &generator::packets(seed, 8));
    }
    devices::record(SUITE, "oclgrind", "passed", "maps");
}

/// Filters' own text reads packets at any address, as other compilers of OpenCL C compile it: a
/// misaligned access is undefined, and ends the process on some GPUs.
#[test]
fn filters_own_text_accesses_packets_at_any_address() {
    if oclgrind().is_none() {
        return;
    }
    let filters = stock::all_in_opencl_c();
    let units: Vec<Unit> = filters
        .iter()
        .map(|(_, text)| Unit { names: vec!["xdp_filter".into()], text: stock::without_include(text) })
        .collect();
    let packets = packets().into_iter().filter(|packet| packet.len() <= LONGEST_OWN).collect::<Vec<_>>();
    for (unit, (name, _)) in units.iter().zip(&filters) {
        let slots = Slots::close_together(LONGEST_OWN, stock::reach(name) + LONGEST_OWN);
        let packet = |bytes| (0, Packet { bytes, metadata: Metadata::new(1500, 1, 1 << 40), fill: 0 });
        let memory = slots.memory(&packets.iter().map(|bytes| packet(bytes)).collect::<Vec<_>>());
        oclgrind::run_over_memory(&slots.kernel(std::slice::from_ref(unit)), KERNEL, &memory, packets.len())
            .unwrap_or_else(|report| panic!("{name}: {report}"));
    }
    devices::record(SUITE, "oclgrind", "passed", "filters' own text");
}

#[test]
fn an_access_outside_a_map_is_detected() {
    let Some(oclgrind) = oclgrind() else { return };
    let text = "
        //! map m: array value=1 entries=5
        fn xdp_filter(pkt: u32) -> u32 { m_add(load_u8(pkt, 0u), 0u, 1u); return XDP_PASS; }";
    let program = texts::in_wgsl("map.wgsl", text);
    let packets = [vec![4; 20]];
    let edit: Edit = |text| text.replace("16u + ", "17u + ");
    let found = harness::compare(&program, &oclgrind.with_edit(edit), &packets, &[1]);
    let text = found.expect_err("nothing was found").to_string();
    assert!(text.contains("Invalid") && text.contains("m"), "{text}");
}

/// The check can fail: asserts that Oclgrind reports an invalid kernel.
fn assert_detected(name: &str, edit: Edit, report: &str) {
    let Some(oclgrind) = oclgrind() else { return };
    let case = filters::cases().into_iter().find(|case| case.name == name).unwrap();
    let program: Arc<Program> = case.compile().unwrap();
    let text = write(&program, &Options::new(Language::OpenCl)).unwrap().source;
    assert_ne!(edit(&text), text, "the edit changes nothing");
    let packets = packets();
    let found = harness::compare(&program, &oclgrind.with_edit(edit), &packets, &[packets.len()]);
    let text = found.expect_err("nothing was found").to_string();
    assert!(text.contains(report), "{text}");
}

#[test]
fn a_store_outside_a_buffer_is_detected() {
    let edit: Edit = |text| text.replace("verdicts[packet] =", "verdicts[packet + count] =");
    assert_detected("port_filter", edit, "Invalid write of size 1");
}

#[test]
fn a_load_outside_a_buffer_is_detected() {
    let edit: Edit = |text| text.replace("descriptors[packet]", "descriptors[packet + count]");
    assert_detected("port_filter", edit, "Invalid read of size");
}

#[test]
fn a_misaligned_load_is_detected() {
    let edit: Edit =
        |text| text.replace("uint verdict =", "uint odd = *(__global const uint *)(arena + 1); uint verdict =");
    assert_detected("port_filter", edit, "Invalid memory load - source pointer is not aligned");
}

#[test]
fn a_misaligned_store_is_detected() {
    let edit: Edit = |text| text.replace("uint verdict =", "*(__global ushort *)(arena + 1) = 0; uint verdict =");
    assert_detected("mac_swap", edit, "Invalid memory store - source pointer is not aligned");
}

#[test]
fn a_race_of_stores_is_detected() {
    // Pairs of work items write the same byte, with different verdicts.
    let edit: Edit = |text| text.replace("verdicts[packet] =", "verdicts[packet / 2] =");
    assert_detected("http_only", edit, "data race");
}

#[test]
fn a_race_of_a_store_and_a_load_is_detected() {
    // Every work item writes the first byte of the arena.
    let edit: Edit = |text| text.replace("pkt.bytes = arena +", "arena[0] = (uchar)lane; pkt.bytes = arena +");
    assert_detected("mac_swap", edit, "data race");
}

#[test]
fn a_wrong_verdict_is_detected() {
    let edit: Edit = |text| text.replace("verdicts[packet] =", "verdicts[packet] = 1 ^");
    assert_detected("simple_filter", edit, "oclgrind differs on simple_filter.wgsl");
}
