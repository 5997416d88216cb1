//! Answers that are put together, which front ends of bytecode have as operations: between them stands what fits the form that a
//! kernel is written in.

use portcullis_bpf as bpf;
use portcullis_c_writer::{Language, Options, PacketAccess, write};
use portcullis_core::diagnostics::Source;
use portcullis_core::program::ProgramOptions;

/// Packets of IPv4 or IPv6: two questions that lead to the same place.
const EITHER: &str = "5,40 0 0 12,21 1 0 2048,21 0 1 34525,6 0 0 262144,6 0 0 0";

#[test]
fn questions_that_lead_to_one_place_are_written_in_every_form() {
    let program = bpf::compile(&Source::new("either.bpf", EITHER), &ProgramOptions::default())
        .unwrap_or_else(|errors| panic!("{}", errors.render()));
    let written = |packet_access| {
        let options = Options { packet_access, ..Options::new(Language::OpenCl) };
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
