//! No filter can make generated code access memory that it must not: packets lie next to
//! inaccessible pages, so that an access one byte out of bounds crashes the process.

#![allow(unsafe_code)]

mod common;

use std::ptr::NonNull;

use common::program;
use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::packet::{Arena, Batch, BatchCutter, Descriptor, READABLE_PAST_END, RESIZE_ROOM, ResizeRoom};
use portcullis_cpu::{Cpu, Style};

const PAGE: usize = 4096;

/// Memory between two inaccessible pages.
struct Guarded {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: only an address; the mapping is released in `drop`.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped in `guarded` with this length, and no longer in use.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// An arena of one page less the bytes that may be read past its end. Accesses to the byte after
/// those, and to the byte before the arena, fault.
fn guarded() -> Arena {
    let len = 3 * PAGE;
    // SAFETY: a fresh anonymous mapping; its middle page is made accessible and handed over with
    // its owner, and is initialised (anonymous pages are zero).
    unsafe {
        let start =
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let owner = Guarded { start, len };
        let middle = start.cast::<u8>().add(PAGE);
        assert_eq!(libc::mprotect(middle.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
        Arena::from_raw_parts(NonNull::new(middle).unwrap(), PAGE - READABLE_PAST_END, PAGE, Box::new(owner)).unwrap()
    }
}

/// A group of packets, one at the arena's start and the others up to its end, or as near as their
/// room allows.
fn packets(length: u32, room: ResizeRoom) -> Batch {
    let mut arena = guarded();
    arena.fill(0x5a);
    let margin = if room == ResizeRoom::Both { RESIZE_ROOM } else { 0 };
    let end = arena.len() as u32 - margin;
    let slot = length.next_multiple_of(4) + 2 * margin;
    let offset = |number: u32| end - length - number * slot;
    let mut descriptors: Vec<_> = (0..7).rev().map(|number| Descriptor { offset: offset(number), length }).collect();
    descriptors.insert(0, Descriptor { offset: margin, length });
    BatchCutter::new(arena, None).cut_batch(descriptors, Vec::new(), room).unwrap()
}

/// Runs a filter over short packets at both ends of the memory, in each style and with prefetch
/// code.
fn run(text: &str) {
    let program = program(text);
    let room = if program.facts().changes_length { ResizeRoom::Both } else { ResizeRoom::None };
    for device in [
        Cpu::with_style(Style::BranchFree),
        Cpu::with_style(Style::Branching),
        Cpu::with_style(Style::SpeculativeVector),
        Cpu::with_style(Style::Vector),
        Cpu::with_prefetch(),
    ] {
        let mut session = device.load(&program, &LoadOptions::default()).unwrap();
        for length in [0, 1, 3, 4, 13, 14, 15, 34, 60, 64, 100, 127, 128, 129, 200] {
            session.run(packets(length, room)).unwrap();
        }
    }
}

/// A load that a branch guards must not be hoisted out of the loop, although its operands are loop
/// invariant.
#[test]
fn loads_are_not_moved_before_the_branch_that_guards_them() {
    for load in ["load_u8", "load_be16", "load_le16", "load_be32", "load_le32"] {
        for far in ["0x40000000u", "0x2000u", "100u"] {
            run(&format!(
                "fn xdp_filter(pkt: u32) -> u32 {{
                    let off = (load_le32(pkt, 0u) & 0x3fu) | {far};
                    var s = 0u;
                    var i = 0u;
                    loop {{
                        if off + 4u <= pkt_len(pkt) {{
                            s = s + {load}(pkt, off) + i;
                            if s == 77u {{ break; }}
                        }}
                        i = i + 1u;
                        if i > 9u {{ break; }}
                    }}
                    return 1u + (s & 1u);
                }}"
            ));
        }
    }
}

#[test]
fn loads_at_every_offset_stay_in_the_packet() {
    for offset in
        ["0u", "60u", "61u", "63u", "64u", "65u", "127u", "4095u", "0x7fffffffu", "0xfffffffcu", "0xffffffffu"]
    {
        run(&format!(
            "fn xdp_filter(pkt: u32) -> u32 {{
                let sum = load_u8(pkt, {offset}) + load_be16(pkt, {offset}) + load_le32(pkt, {offset});
                return 1u + (sum & 1u);
            }}"
        ));
        // The offset is known at run time only, and some loads are guarded by an unrelated check.
        run(&format!(
            "fn xdp_filter(pkt: u32) -> u32 {{
                let off = {offset} + (load_u8(pkt, 0u) & 1u);
                if pkt_len(pkt) >= 34u && load_be32(pkt, off) == 7u {{ return XDP_PASS; }}
                if pkt_len(pkt) < 100u {{ return 1u + (load_be16(pkt, off) & 1u); }}
                return 1u + (load_u8(pkt, off + 36u) & 1u);
            }}"
        ));
    }
}

#[test]
fn stores_and_adjusted_bounds_stay_in_the_packet() {
    run("fn xdp_filter(pkt: u32) -> u32 {
        for (var i = 0u; i < 300u; i++) {
            store_be32(pkt, i, 0x01020304u);
            store_u8(pkt, 0u - i, 5u);
            store_le16(pkt, 0x80000000u + i, 5u);
        }
        return XDP_PASS;
    }");
    run("fn xdp_filter(pkt: u32) -> u32 {
        let long = pkt_len(pkt) >= 60u;
        for (var i = 0; i < 40; i++) {
            _ = adjust_head(pkt, -i * 7);
            _ = adjust_tail(pkt, i * 9);
            store_be32(pkt, 0u, load_be32(pkt, pkt_len(pkt) - 4u));
            store_be32(pkt, pkt_len(pkt) - 4u, 7u);
            _ = adjust_head(pkt, i * 5);
            _ = adjust_tail(pkt, -i * 8);
            if long { store_be32(pkt, 56u, load_be32(pkt, 50u)); }
        }
        return XDP_TX;
    }");
}

/// Single bytes of a load are accessed directly; beyond the last one there is nothing to read.
#[test]
fn narrowed_loads_do_not_read_beyond_the_load() {
    for load in ["load_be16", "load_le16", "load_be32", "load_le32"] {
        for offset in ["0u", "30u", "pkt_len(pkt) - 4u"] {
            let shifts: String =
                (1..2000).map(|i| format!("let x{i} = x{} >> 24u; sum += x{i} & 0xffu;\n", i - 1)).collect();
            run(&format!(
                "fn xdp_filter(pkt: u32) -> u32 {{
                    if pkt_len(pkt) < 34u {{ return XDP_DROP; }}
                    let x0 = {load}(pkt, {offset});
                    var sum = 0u;
                    {shifts}
                    return 1u + (sum & 1u);
                }}"
            ));
        }
    }
}

/// Keys at offsets outside the packet, in the filter and in prefetch code.
#[test]
fn map_keys_are_read_within_the_packet() {
    for offset in ["0u", "61u", "127u", "4095u", "0x7fffffffu", "0xfffffffcu", "load_u8(pkt, 0u) << 20u"] {
        for moved in ["", "_ = adjust_tail(pkt, 60);", "if pkt_len(pkt) == 100u { _ = adjust_head(pkt, 40); }"] {
            run(&format!(
                "//! map flows: hash key=2 value=1 entries=9
                fn xdp_filter(pkt: u32) -> u32 {{
                    {moved}
                    let at = {offset};
                    let flow = flows_insert(vec2<u32>(load_le32(pkt, at), load_be16(pkt, at + 1u)));
                    store_le32(pkt, at, flow);
                    return 1u + (flows_find(vec2<u32>(load_le32(pkt, at), load_u8(pkt, at + 3u))) & 1u);
                }}"
            ));
        }
    }
}
