//! Filters as functions for other kernels: one signature, whatever the filter needs.

use portcullis_c_writer::{Argument, Language, Options, PacketAccess, write};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

const SIGNATURE: &str = "static __device__ __forceinline__ void pc_filter_packet(
    uchar *arena,
    pc_descriptor *descriptors,
    const uint *metadata,
    uchar *verdicts,
    uint *targets,
    uint packet)
{
    pc_descriptor descriptor = descriptors[packet];
";

fn function(body: &str) -> portcullis_c_writer::Kernel {
    let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}");
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default()).unwrap();
    let options =
        Options::new(Language::Cuda).with_function("pc_filter_packet").with_packet_access(PacketAccess::AlignedWords);
    write(&program, &options).unwrap()
}

#[test]
fn every_filter_has_the_same_signature_and_no_kernel() {
    for body in [
        "return XDP_PASS;",
        "return redirect(load_be32(pkt, 4u) & 7u);",
        "store_u8(pkt, 0u, pkt_port(pkt)); if adjust_head(pkt, 4) { return XDP_TX; } return XDP_DROP;",
    ] {
        let kernel = function(body);
        assert_eq!(kernel.entry, "pc_filter_packet");
        assert_eq!(kernel.source.matches(SIGNATURE).count(), 1, "{}", kernel.source);
        assert!(!kernel.source.contains("__global__") && !kernel.source.contains("__restrict__"), "{}", kernel.source);
        assert!(kernel.source.contains("    verdicts[packet] = (uchar)verdict;\n"), "{}", kernel.source);
    }
}

#[test]
fn arguments_list_what_the_filter_uses() {
    let uses = |body| function(body).arguments;
    let always = [Argument::Descriptors { writes: false }, Argument::Verdicts, Argument::Base, Argument::Count];
    assert_eq!(uses("return XDP_PASS;"), always);
    let all =
        uses("store_u8(pkt, 0u, 1u); if adjust_tail(pkt, 4) { return redirect(pkt_port(pkt)); } return XDP_DROP;");
    for argument in [
        Argument::Arena { writes: true },
        Argument::Descriptors { writes: true },
        Argument::Metadata,
        Argument::Targets,
    ] {
        assert!(all.contains(&argument), "{all:?}");
    }
}

/// In C++ no member may have the name of another member's type (C++17, 6.3.7).
#[test]
fn no_member_has_the_name_of_a_member_type() {
    let text = "struct ends { low: u32, high: u32 }
        struct segment { ends: ends, flags: u32 }
        fn made(pkt: u32) -> segment { return segment(ends(load_u8(pkt, 0u), load_u8(pkt, 1u)), 2u); }
        fn xdp_filter(pkt: u32) -> u32 { let s = made(pkt); return s.ends.low + s.ends.high + s.flags; }";
    let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default()).unwrap();
    let source = write(&program, &Options::new(Language::Cuda)).unwrap().source;
    assert!(source.contains("ends ends_;") && !source.contains("ends ends;"), "{source}");
}
