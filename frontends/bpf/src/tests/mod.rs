//! End-to-end tests: programs are compiled, interpreted and compared with a reference interpreter.

mod arbitrary;
mod generated_code;
mod opcodes;
mod parsing;
mod random_programs;
mod reference;
mod rejected;
mod tcpdump_programs;

use std::sync::Arc;

use super::{Instruction, compile, compile_program};
use arbitrary::Random;
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{Metadata, Verdict};
use portcullis_core::program::{Program, ProgramOptions};
use reference::Input;

/// An instruction as (code, jt, jf, k).
type Code = (u16, u8, u8, u32);

fn program(code: &[Code]) -> Vec<Instruction> {
    code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect()
}

#[track_caller]
fn compile_ok(program: &[Instruction]) -> Program {
    let source = Source::new("expression", "");
    // Small enough that endless loops run out of fuel soon.
    let options = ProgramOptions::default().with_fuel(400);
    compile_program(&source, program, &options)
        .unwrap_or_else(|errors| panic!("{}\n{}", errors.render(), super::disassemble(program)))
}

/// Steps after which the reference gives a program up as endless.
const MAX_REFERENCE_STEPS: u32 = 1 << 20;

/// Compares a program with the reference on each input; returns how many packets it accepts.
#[track_caller]
fn check(program: &[Instruction], inputs: &[Input<'_>]) -> usize {
    let compiled = Arc::new(compile_ok(program));
    let facts = compiled.facts().clone();
    let interpreter = Interpreter::new(&compiled).unwrap();
    let mut accepted = 0;
    for input in inputs {
        let Some(expected) = reference::run(program, *input, MAX_REFERENCE_STEPS) else { continue };
        let metadata = Metadata { wire_length: input.wire_length, port: input.port, ..Metadata::default() };
        let outcome = interpreter.run(input.packet, &metadata).unwrap();
        let expected = if expected == 0 { Verdict::Drop } else { Verdict::Pass };
        // A loop may run out of fuel before the reference ends.
        if outcome.verdict == Verdict::Aborted && facts.max_iterations.is_none() {
            assert!(outcome.trace.iterations >= u64::from(compiled.fuel()));
            continue;
        }
        assert_eq!(outcome.verdict, expected, "{:02x?}\n{}", input.packet, super::disassemble(program));
        assert_eq!(outcome.packet, input.packet);
        accepted += usize::from(expected == Verdict::Pass);
    }
    accepted
}

/// [`check`] for packets that were captured whole.
#[track_caller]
fn check_packets(program: &[Instruction], packets: &[Vec<u8>]) -> usize {
    check(program, &packets.iter().map(|packet| Input::new(packet)).collect::<Vec<_>>())
}

/// The rendered errors of a listing that must be rejected.
#[track_caller]
fn rejected(text: &str) -> String {
    match compile(&Source::new("x.bpf", text), &ProgramOptions::default()) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => {
            // Rendering must find every place in the text.
            let _: String = Diagnostics::to_string(&errors);
            errors.render()
        }
    }
}
