//! Flow functions: the flow number of a packet, in both languages.

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
    let options = ProgramOptions::default().with_fuel(fuel);
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

/// Flow numbers of the packets; `None` for an aborted flow function.
fn flow_numbers(program: &Program, packets: &[Vec<u8>]) -> Vec<Option<u32>> {
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
fn flow_numbers_are_hashes_of_the_returned_value() {
    let c = compile(&Source::new("f.cl", C), &ProgramOptions::default(), &mut NoIncludes);
    let c = c.unwrap_or_else(|errors| panic!("{}", errors.render()));
    let packets: Vec<Vec<u8>> = [[1_u32, 2], [2, 1], [0, 3], [0, 0], [0xffff_ffff, 0x8000_0000], [7, 7]]
        .map(|ends| ends.iter().flat_map(|end| end.to_be_bytes()).collect())
        .into();
    let expected = |value: u32| Some(value.wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS));
    let expected = [3, 3, 3, 0, 0x7fff_ffff, 0].map(expected);
    assert_eq!(flow_numbers(&program(WGSL, 100), &packets), expected);
    assert_eq!(flow_numbers(&c, &packets), expected);
}

#[test]
fn flow_functions_have_their_own_fuel() {
    let text = "fn xdp_flow(pkt: u32) -> u32 { for (var i = 0u; i < load_u8(pkt, 0u); i++) {} return 5u; }
        fn xdp_filter(pkt: u32) -> u32 { for (var i = 0u; i < 90u; i++) {} return XDP_PASS; }";
    // Leaving the loop costs a unit of fuel, too.
    let found = flow_numbers(&program(text, 100), &[vec![98; 20], vec![99; 20], vec![100; 20]]);
    assert_eq!((found[0].is_some(), found[1].is_some(), found[2]), (true, true, None));
}

#[test]
fn filters_without_a_flow_function_have_no_flow_program() {
    assert!(program("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }", 100).flow_program().is_none());
}
