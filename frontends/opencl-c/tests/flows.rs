//! Flows: what number a packet's has, in both languages.

use std::sync::Arc;

use portcullis_core::device::{Device, LoadOptions};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::InterpDevice;
use portcullis_core::packet::{Batch, Verdict};
use portcullis_core::program::{FLOW_BITS, Program, ProgramOptions};

use portcullis_opencl_c::compile;
use portcullis_opencl_c::files::NoIncludes;

/// Compiles a WGSL filter, or fails with its diagnostics.
fn program(text: &str, fuel: u32) -> Program {
    let options = ProgramOptions { fuel, ..ProgramOptions::default() };
    portcullis_wgsl::compile(&Source::new("test.wgsl", text), &options)
        .unwrap_or_else(|errors| panic!("{}\n{text}", errors.render()))
}

const WGSL: &str = "
    fn xdp_flow(pkt: u32) -> u32 { return ends(pkt, 0u) ^ ends(pkt, 4u); }
    fn ends(pkt: u32, at: u32) -> u32 { return load_be32(pkt, at); }
    fn xdp_filter(pkt: u32) -> u32 { return select(XDP_DROP, XDP_PASS, ends(pkt, 0u) == 7u); }
";

const C: &str = "
    static uint ends(__global uchar *at) { return load_be32(at, 0); }
    uint xdp_flow(__global uchar *pkt, uint len) { return ends(pkt) ^ ends(pkt + 4); }
    uint xdp_filter(__global uchar *pkt, uint len) { return ends(pkt) == 7 ? XDP_PASS : XDP_DROP; }
";

/// The numbers of the packets' flows; `None` of one that is ABORTED.
fn numbers(program: &Program, packets: &[Vec<u8>]) -> Vec<Option<u32>> {
    let flows = Arc::new(program.flow_program().expect("the filter has flows"));
    assert!(!flows.has_flows() && flows.maps().is_empty());
    let mut session = InterpDevice::new().load(&flows, &LoadOptions::default()).unwrap();
    let done = session.run(Batch::from_packets(packets).unwrap()).unwrap();
    let number = |index| match done.verdicts.get(index) {
        Verdict::Redirect(number) => Some(number),
        _ => None,
    };
    (0..packets.len()).map(number).collect()
}

#[test]
fn a_flow_has_a_number_that_is_a_hash_of_its_value() {
    let c = compile(&Source::new("f.cl", C), &ProgramOptions::default(), &mut NoIncludes);
    let c = c.unwrap_or_else(|errors| panic!("{}", errors.render()));
    let packets: Vec<Vec<u8>> = [[1_u32, 2], [2, 1], [0, 3], [0, 0], [0xffff_ffff, 0x8000_0000], [7, 7]]
        .map(|ends| ends.iter().flat_map(|end| end.to_be_bytes()).collect())
        .into();
    let wanted = |value: u32| Some(value.wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS));
    let wanted = [3, 3, 3, 0, 0x7fff_ffff, 0].map(wanted);
    assert_eq!(numbers(&program(WGSL, 100), &packets), wanted);
    assert_eq!(numbers(&c, &packets), wanted);
}

#[test]
fn flows_have_fuel_of_their_own() {
    let text = "fn xdp_flow(pkt: u32) -> u32 { for (var i = 0u; i < load_u8(pkt, 0u); i++) {} return 5u; }
        fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < 90u; i++) {} return XDP_PASS; }";
    // The end of a loop costs one as well.
    let found = numbers(&program(text, 100), &[vec![98; 20], vec![99; 20], vec![100; 20]]);
    assert_eq!((found[0].is_some(), found[1].is_some(), found[2]), (true, true, None));
}

#[test]
fn filters_without_flows_have_none() {
    assert!(program("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }", 100).flow_program().is_none());
}
