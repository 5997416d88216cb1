//! Fuzz target: arbitrary bytes as a packet and classic BPF instructions in the encoding of
//! `SO_ATTACH_FILTER`. An accepted program must give the result of an independent interpreter.

#[path = "../../frontends/bpf/src/tests/reference.rs"]
#[allow(dead_code, reason = "used in full by its own crate's tests")]
mod reference;

use std::fmt::Write;
use std::sync::Arc;

use portcullis_bpf::{self as bpf, Instruction};
use portcullis_core::diagnostics::Source;
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{Metadata, Verdict};
use portcullis_core::program::ProgramOptions;

use crate::mutate::Corpus;
use reference::Input;

/// Upper bound on instructions that the reference executes; above the fuel of the filter.
const STEPS: u32 = 1 << 14;

/// Seed programs: `ip` over four bytes of a packet, arithmetic with memory, a loop, and each
/// instruction.
pub const CORPUS: Corpus = Corpus {
    seeds: &[
        b"\x10\x45\x00\x00\x14\x08\x00\x08\x00\x00\x00\x00\x00\x08\x00\x08\x00\
          \x28\x00\x00\x00\x0c\x00\x00\x00\x15\x00\x00\x01\x00\x08\x00\x00\x06\x00\x00\x00\x00\x00\x04\x00\x06\x00\x00\x00\x00\x00\x00\x00",
        b"\x04\x01\x02\x03\x04\x30\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\xb1\x00\x00\x00\x00\x00\x00\x00\
          \x50\x00\x00\x00\xff\xff\xff\xff\x0c\x00\x00\x00\x00\x00\x00\x00\x61\x00\x00\x00\x03\x00\x00\x00\x3c\x00\x00\x00\x00\x00\x00\x00\
          \x16\x00\x00\x00\x00\x00\x00\x00",
        b"\x02\x05\x07\x30\x00\x00\x00\x00\x00\x00\x00\x14\x00\x00\x00\x01\x00\x00\x00\x15\x00\x01\x00\x00\x00\x00\x00\
          \x05\x00\x00\x00\xfd\xff\xff\xff\x06\x00\x00\x00\x01\x00\x00\x00",
    ],
    tokens: "",
    pieces: &[
        b"\x00\x00\x00\x00\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\x20\x00\x00\x00",
        b"\x07\x00\x00\x00\x00\x00\x00\x00",
        b"\x87\x00\x00\x00\x00\x00\x00\x00",
        b"\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\x60\x00\x00\x00\x0f\x00\x00\x00",
        b"\x84\x00\x00\x00\x00\x00\x00\x00",
        b"\x64\x00\x00\x00\x20\x00\x00\x00",
        b"\x6c\x00\x00\x00\x00\x00\x00\x00",
        b"\x7c\x00\x00\x00\x00\x00\x00\x00",
        b"\x9c\x00\x00\x00\x00\x00\x00\x00",
        b"\x34\x00\x00\x00\x00\x00\x00\x00",
        b"\x40\x00\x00\x00\x02\x00\x00\x00",
        b"\x48\x00\x00\x00\xff\xff\xff\xff",
        b"\x20\x00\x00\x00\x00\xf0\xff\xff",
        b"\x20\x00\x00\x00\x28\xf0\xff\xff",
        b"\x28\x00\x00\x00\x00\x00\xf0\xff",
        b"\x1d\x00\x01\x00\x00\x00\x00\x00",
        b"\x25\x00\x00\x02\x05\x00\x00\x00",
        b"\x45\x00\x03\x00\x0f\x00\x00\x00",
        b"\x05\x00\x00\x00\x02\x00\x00\x00",
        b"\x05\x00\x00\x00\xfb\xff\xff\xff",
        b"\x06\x00\x00\x00\x00\x00\x00\x00",
        b"\x16\x00\x00\x00\x00\x00\x00\x00",
    ],
};

/// Splits the input into the packet, whose length the first byte gives, and the instructions.
fn parts(data: &[u8]) -> (&[u8], Vec<Instruction>) {
    let Some((&length, rest)) = data.split_first() else { return (&[], Vec::new()) };
    let (packet, rest) = rest.split_at(rest.len().min(length.into()));
    let instruction = |bytes: &[u8; 8]| {
        let [a, b, jt, jf, k0, k1, k2, k3] = *bytes;
        Instruction { code: u16::from_le_bytes([a, b]), jt, jf, k: u32::from_le_bytes([k0, k1, k2, k3]) }
    };
    (packet, rest.as_chunks().0.iter().map(instruction).collect())
}

/// Compiles the instructions and runs them over the packet; an accepted program is also lowered and
/// compiled to native code.
///
/// # Panics
/// If the compiler panics, or the filter differs from the instructions.
pub fn run(data: &[u8]) {
    let (packet, program) = parts(data);
    let mut text = format!("{}\n", program.len());
    for Instruction { code, jt, jf, k } in &program {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{code} {jt} {jf} {k}");
    }
    crate::filter::run(text.as_bytes(), bpf::compile);
    let options = ProgramOptions::default().with_fuel(100);
    let Ok(compiled) = bpf::compile(&Source::new("fuzz", text), &options) else { return };
    let metadata = Metadata { wire_length: packet.len() as u32 + 3, port: 2, ..Metadata::default() };
    let input = Input { packet, wire_length: metadata.wire_length, port: metadata.port };
    let bounded = compiled.facts().max_iterations.is_some();
    let interpreter = Interpreter::new(&Arc::new(compiled)).expect("the interpreter accepts what the verifier accepts");
    let got = interpreter.run(packet, &metadata).expect("the packet can be run").verdict;
    let want = reference::run(&program, input, STEPS);
    let want = want.map(|value| if value == 0 { Verdict::Drop } else { Verdict::Pass });
    // A loop may run out of fuel.
    if got != Verdict::Aborted || bounded {
        assert_eq!(Some(got), want, "{packet:02x?}\n{}", bpf::disassemble(&program));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{A_SECOND, check_seeds, run_for};

    #[test]
    fn mutated_seeds_never_panic() {
        println!("{} programs", run_for(A_SECOND, "bpf_instructions", CORPUS, 0, run));
    }

    #[test]
    fn seeds_and_some_mutations_are_valid_programs() {
        check_seeds(CORPUS, run, (300, 20), |data| {
            bpf::compile_program(&Source::new("f", ""), &parts(&data).1, &ProgramOptions::default()).map(drop)
        });
    }
}
