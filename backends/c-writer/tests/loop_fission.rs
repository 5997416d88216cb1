//! Kernels with a loop for loads from packets and one for all else.

use portcullis_c_writer::{FISSION_PACKETS, Kernel, Language, Options, PacketAccess, write};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::ProgramOptions;
use portcullis_wgsl as wgsl;

fn kernel(text: &str, options: Options) -> Kernel {
    let source = Source::new("filter.wgsl", text);
    let program = wgsl::compile(&source, &ProgramOptions::default()).unwrap_or_else(|e| panic!("{}", e.render()));
    write(&program, &options.with_packet_access(PacketAccess::LoopFission)).unwrap()
}

fn opencl(text: &str) -> Kernel {
    kernel(text, Options::new(Language::OpenCl))
}

/// Three loads, of which two are in a helper that is called twice; and the filter's own variable
/// has the name of the array.
const HELPERS: &str = "
fn ports(pkt: u32, at: u32) -> u32 { return load_be16(pkt, at) ^ load_be16(pkt, at + 2u); }

fn twice(x: u32) -> u32 { return x * 2u; }

fn xdp_filter(pkt: u32) -> u32 {
    let loaded = load_u8(pkt, 23u);
    if loaded == loaded * loaded && twice(ports(pkt, 34u)) == ports(pkt, 40u) {
        return XDP_PASS;
    }
    return XDP_DROP;
}
";

#[test]
fn every_load_of_every_call_has_its_place() {
    let kernel = opencl(HELPERS);
    assert_eq!(kernel.packets_per_item, FISSION_PACKETS);
    for expected in [
        // The second of the helper's loads has the next array of 16 words.
        "return load_be16_far(pkt, at, loaded + 0u) ^ load_be16_far(pkt, at + 2u, loaded + 16u);",
        "return load_be16_far_loads(pkt, at, loaded + 0u) ^ load_be16_far_loads(pkt, at + 2u, loaded + 16u);",
        // The helper's first call has the arrays 1 and 2, its second 3 and 4.
        "uint loaded_ = load_u8(pkt, 23u, loaded + 0u);",
        "twice(ports(pkt, 34u, loaded + 16u)) == ports(pkt, 40u, loaded + 48u)",
        "uint loaded_ = load_u8_loads(pkt, 23u, loaded + 0u);",
        "twice(ports_loads(pkt, 34u, loaded + 16u)) == ports_loads(pkt, 40u, loaded + 48u)",
        "uint loaded[80];",
        "        xdp_filter_loads(&pkt, loaded + turn);\n        lengths[turn] = descriptor.length;\n    }\n    for (",
        "pc_descriptor descriptor = { 0u, lengths[turn] };",
        "uint verdict = xdp_filter(&pkt, loaded + turn);",
    ] {
        assert!(kernel.source.contains(expected), "{expected} is missing:\n{}", kernel.source);
    }
    let count = |text: &str| kernel.source.matches(text).count();
    assert_eq!(count("uint twice("), 1, "a function without loads is written once:\n{}", kernel.source);
    assert_eq!(count("verdicts[packet]"), 1, "the first loop writes no verdicts:\n{}", kernel.source);
}

#[test]
fn no_type_is_hidden_by_the_array() {
    let kernel = opencl(
        "struct loaded { a: u32, b: u32 }
        fn xdp_filter(pkt: u32) -> u32 {
            var both: array<loaded, 2>;
            both[load_u8(pkt, 0u) & 1u] = loaded(load_u8(pkt, 1u), 2u);
            return both[1].a & 1u;
        }",
    );
    assert_eq!(kernel.packets_per_item, FISSION_PACKETS);
    assert!(kernel.source.contains("} loaded_;"), "{}", kernel.source);
}

/// Functions that nobody calls may have more loads than there are words.
#[test]
fn loads_are_counted_without_overflow() {
    let mut text = String::from("fn f0(pkt: u32) -> u32 { return load_u8(pkt, 0u); }\n");
    for i in 1..40 {
        text += &format!("fn f{i}(pkt: u32) -> u32 {{ return f{0}(pkt) + f{0}(pkt); }}\n", i - 1);
    }
    text += "fn xdp_filter(pkt: u32) -> u32 { return load_u8(pkt, 0u) & 1u; }";
    assert_eq!(opencl(&text).packets_per_item, FISSION_PACKETS);
}

#[test]
fn filters_that_need_no_second_loop_have_one() {
    let no_loads = "fn xdp_filter(pkt: u32) -> u32 { return pkt_len(pkt) & 1u; }";
    let with_a_loop = "fn xdp_filter(pkt: u32) -> u32 {
        var sum = 0u;
        for (var at = 0u; at < pkt_len(pkt); at += 1u) { sum += load_u8(pkt, at); }
        return sum & 1u;
    }";
    let with_stores = "fn xdp_filter(pkt: u32) -> u32 { store_u8(pkt, 0u, load_u8(pkt, 1u)); return XDP_PASS; }";
    let with_a_map = "//! map seen: hash key=1 value=1 entries=256
fn xdp_filter(pkt: u32) -> u32 { return seen_find(load_u8(pkt, 0u)) & 1u; }";
    let sum = |loads: u32| {
        let terms: Vec<String> = (0..loads).map(|at| format!("load_u8(pkt, {at}u)")).collect();
        format!("fn xdp_filter(pkt: u32) -> u32 {{ return ({}) & 1u; }}", terms.join(" + "))
    };
    assert_eq!(opencl(&sum(12)).packets_per_item, FISSION_PACKETS);
    for text in [no_loads, with_a_loop, with_stores, with_a_map, &sum(13)] {
        let kernel = opencl(text);
        assert_eq!(kernel.packets_per_item, 1);
        assert!(!kernel.source.contains("uint turn"), "{}", kernel.source);
    }
    let function = kernel(HELPERS, Options::new(Language::OpenCl).with_function("filter_packet"));
    assert_eq!(function.packets_per_item, 1);
    assert!(!function.source.contains("_loads"), "{}", function.source);
}
