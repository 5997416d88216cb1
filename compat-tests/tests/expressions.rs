//! Filter expressions on every device: a device passes the packets that tcpdump matches. Random
//! classic BPF programs are compared with an independent interpreter.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_bpf::compile_program;
use portcullis_bpf::disassemble;
use portcullis_compat_tests::expressions::arbitrary::{self, Random};
use portcullis_compat_tests::expressions::reference::{self, Input};
use portcullis_compat_tests::expressions::{Tcpdump, TcpdumpOutput, expressions, instructions, packets};
use portcullis_compat_tests::{devices, layouts};
use portcullis_conformance::corpora::Packet;
use portcullis_conformance::layout::GuardedArena;
use portcullis_core::device::{Device, DeviceKind, LoadOptions};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{ResizeRoom, Verdict};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_cpu::vector::LaneProgram;

/// Packets per batch: not a power of two, so that batches end within a group of packets.
const BATCH: usize = 3001;

/// Minimum number of expressions that tcpdump must accept; libpcap 1.10 does.
const MIN_EXPRESSIONS: usize = 150;

fn program(name: &str, code: &[portcullis_bpf::Instruction], fuel: u32) -> Arc<Program> {
    let options = ProgramOptions::default().with_fuel(fuel);
    let program = compile_program(&Source::new(name, name), code, &options);
    Arc::new(program.unwrap_or_else(|errors| panic!("{}\n{}", errors.render(), disassemble(code))))
}

/// Returns the numbers of the packets that a device passes and of those that it aborts. All others
/// are dropped.
fn passed_and_aborted(device: &Arc<dyn Device>, program: &Arc<Program>, packets: &[Packet]) -> [BTreeSet<u32>; 2] {
    let what = |error: &dyn std::fmt::Display| format!("{}: {}: {error}", device.info().id, program.source().name);
    let mut session = device.load(program, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}", what(&e)));
    let (batches, guarded) =
        GuardedArena::lay_out(packets, BATCH, ResizeRoom::None).unwrap_or_else(|e| panic!("{}", what(&e)));
    let [mut passed, mut aborted] = [BTreeSet::new(), BTreeSet::new()];
    let mut number = 0;
    for batch in batches {
        let done = session.run(batch).unwrap_or_else(|e| panic!("{}", what(&e)));
        for verdict in done.verdicts.iter() {
            match verdict {
                Verdict::Pass => _ = passed.insert(number),
                Verdict::Aborted => _ = aborted.insert(number),
                Verdict::Drop => {}
                other => panic!("{}", what(&format!("packet {number} is {other}"))),
            }
            number += 1;
        }
    }
    assert_eq!(guarded.stray_write(), None, "a byte that belongs to no packet was written to");
    [passed, aborted]
}

/// Returns tcpdump's result for every expression that it accepts; none if it is not installed.
fn run_tcpdump(suite: &str, packets: &[Packet]) -> Vec<(&'static str, TcpdumpOutput, Arc<Program>)> {
    let tcpdump = match Tcpdump::new(packets) {
        Ok(tcpdump) => tcpdump,
        Err(reason) => {
            devices::record_skip(suite, "tcpdump", &reason);
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for expression in expressions() {
        match tcpdump.run(expression) {
            Ok(output) => {
                let code = instructions(&output.numbers);
                assert_eq!(disassemble(&code), output.listing, "{expression}");
                all.push((expression, output, program(expression, &code, 32_768)));
            }
            // Keywords differ between versions of libpcap.
            Err(reason) => println!("tcpdump refuses `{expression}`: {}", reason.trim_end()),
        }
    }
    assert!(all.len() >= MIN_EXPRESSIONS, "tcpdump accepts only {} expressions", all.len());
    all
}

#[test]
fn devices_pass_the_packets_that_tcpdump_matches() {
    let suite = "expressions, tcpdump";
    let packets = packets();
    let results = run_tcpdump(suite, &packets);
    if results.is_empty() {
        return;
    }
    assert!(results.iter().any(|(_, output, _)| !output.endless.is_empty()), "no packet leads to an endless loop");
    // Expressions that match all packets or none prove little.
    let some = results
        .iter()
        .filter(|(_, output, _)| !output.matched.is_empty() && output.matched.len() < packets.len())
        .count();
    // Some protocols occur in the captures only.
    let least = if portcullis_compat_tests::corpora::files().is_ok() { 8 } else { 7 };
    assert!(some * 10 > results.len() * least, "{some} of {} expressions match some packets", results.len());
    println!("{} expressions, {} packets; {some} expressions match some packets", results.len(), packets.len());
    devices::on_each(suite, |device| {
        let is_reference = device.info().kind == DeviceKind::Reference;
        // The interpreter is slow.
        let step = if is_reference { 5 } else { 1 };
        for (expression, output, program) in devices::share(device, &results, 30).step_by(step) {
            let [passed, aborted] = passed_and_aborted(device, program, &packets);
            assert_eq!(aborted, output.endless, "{}: `{expression}`: tcpdump loops on these packets", device.info().id);
            if let Some(&number) = passed.symmetric_difference(&output.matched).next() {
                let packet = &packets[number as usize];
                panic!(
                    "{}: `{expression}`: packet {number} is {}\n{:02x?}, {} bytes on the wire\n{}",
                    device.info().id,
                    if output.matched.contains(&number) {
                        "dropped, but tcpdump matches it"
                    } else {
                        "passed, but tcpdump does not match it"
                    },
                    packet.bytes,
                    packet.metadata.wire_length,
                    output.listing,
                );
            }
        }
    });
}

#[test]
fn expressions_without_loops_have_a_vector_form() {
    let suite = "expressions, lanes";
    let results = run_tcpdump(suite, &[]);
    let mut loops = 0;
    for (expression, output, program) in &results {
        if program.facts().max_iterations != Some(0) {
            assert!(output.listing.contains("ja "), "{expression}: {}", output.listing);
            loops += 1;
        } else if let Err(reason) = LaneProgram::trace(program) {
            panic!("{expression}: {reason}");
        }
    }
    if !results.is_empty() {
        assert!(loops < 12, "{loops} of {} have loops", results.len());
        devices::record(suite, "cpu", "passed", &format!("{} expressions", results.len() - loops));
    }
}

/// Random programs: the independent interpreter agrees with the reference interpreter, and that
/// with every device.
#[test]
fn random_programs_agree_with_an_independent_interpreter() {
    let mut random = Random(9);
    let cases: Vec<_> = (0..150)
        .map(|round| {
            let count = 1 + random.below(if round % 3 == 0 { 60 } else { 14 });
            let code = arbitrary::program(&mut random, count, round % 4 == 0);
            let packets = arbitrary::packets(&mut random, 300);
            let program = program(&format!("program {round}"), &code, 300);
            (code, program, packets)
        })
        .collect();
    let (mut matched, mut all) = (0, 0);
    for (code, program, packets) in &cases {
        let interpreter = Interpreter::new(program).unwrap_or_else(|e| panic!("{e}"));
        for (number, packet) in (0..).zip(packets) {
            let metadata = layouts::metadata(number);
            let input = Input { packet, wire_length: metadata.wire_length, port: metadata.port };
            let verdict = interpreter.run(packet, &metadata).unwrap_or_else(|e| panic!("{e}")).verdict;
            let expected = reference::run(code, input, 1 << 16);
            let expected = expected.map(|value| if value == 0 { Verdict::Drop } else { Verdict::Pass });
            // A program with loops may run out of fuel.
            if verdict != Verdict::Aborted || program.facts().max_iterations.is_some() {
                assert_eq!(Some(verdict), expected, "{packet:02x?}\n{}", disassemble(code));
            }
            all += 1;
            matched += usize::from(verdict == Verdict::Pass);
        }
    }
    assert!(matched * 20 > all && matched * 4 < all * 3, "{matched} of {all}");
    let cases: Vec<_> = cases
        .into_iter()
        .map(|(_, program, packets)| portcullis_compat_tests::harness::Case::new(program, packets))
        .collect();
    devices::on_each("expressions, any programs", |device| {
        for case in devices::share(device, &cases, 15) {
            case.compare(&**device, &[37]).unwrap_or_else(|mismatch| panic!("{mismatch}"));
        }
    });
}
