//! Combined conditions, as bytecode front ends emit them for comparisons with a common target. The
//! operator between them depends on the kind of packet access.

use portcullis_bpf as bpf;
use portcullis_c_writer::{Language, Options, PacketAccess, write};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::ProgramOptions;

/// Packets of IPv4 or IPv6: two conditions with the same target.
const EITHER: &str = "5,40 0 0 12,21 1 0 2048,21 0 1 34525,6 0 0 262144,6 0 0 0";

#[test]
fn conditions_with_a_common_target_are_combined() {
    let program = bpf::compile(&Source::new("either.bpf", EITHER), &ProgramOptions::default())
        .unwrap_or_else(|errors| panic!("{}", errors.render()));
    let written = |packet_access| {
        let options = Options::new(Language::OpenCl).with_packet_access(packet_access);
        write(&program, &options).map(|kernel| kernel.source).unwrap_or_else(|error| panic!("{error}"))
    };
    let plain = Options::new(Language::OpenCl).packet_access;
    for (packet_access, between) in
        [(PacketAccess::Vectorizable, "(t1 == 2048u) | (t1 == 34525u)"), (plain, "(t1 == 2048u || t1 == 34525u)")]
    {
        let source = written(packet_access);
        assert!(source.contains(between), "{source}");
    }
}
