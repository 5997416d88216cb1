//! Programs through the whole front end, in the interpreter, against another interpreter of their own.

mod arbitrary;
mod opcodes;
mod programs;
mod random;
mod reference;
mod refused;
mod shapes;
mod texts;

use std::sync::Arc;

use super::{Instruction, compile, compile_program};
use arbitrary::Random;
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::interp::Interpreter;
use portcullis_core::packet::{Metadata, Verdict};
use portcullis_core::program::{Program, ProgramOptions};
use reference::Input;

/// Instructions as tuples.
type Code = (u16, u8, u8, u32);

fn program(code: &[Code]) -> Vec<Instruction> {
    code.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect()
}

#[track_caller]
fn compiled(program: &[Instruction]) -> Program {
    let source = Source::new("expression", "");
    // Loops that never end are run to the end of it.
    let options = ProgramOptions { fuel: 400, ..ProgramOptions::default() };
    compile_program(&source, program, &options)
        .unwrap_or_else(|errors| panic!("{}\n{}", errors.render(), super::listing(program)))
}

/// Steps after which a program is taken for one that never ends.
const STEPS: u32 = 1 << 20;

/// Holds a program to the reference on some packets; how many it took.
#[track_caller]
fn check(program: &[Instruction], inputs: &[Input<'_>]) -> usize {
    let compiled = Arc::new(compiled(program));
    let facts = compiled.facts().clone();
    let interpreter = Interpreter::new(&compiled).unwrap();
    let mut taken = 0;
    for input in inputs {
        let Some(expected) = reference::run(program, *input, STEPS) else { continue };
        let metadata = Metadata { wire_length: input.wire_length, port: input.port, ..Metadata::default() };
        let outcome = interpreter.run(input.packet, &metadata).unwrap();
        let expected = if expected == 0 { Verdict::Drop } else { Verdict::Pass };
        // A loop may need more fuel than there is.
        if outcome.verdict == Verdict::Aborted && facts.max_iterations.is_none() {
            assert!(outcome.trace.iterations >= u64::from(compiled.fuel()));
            continue;
        }
        assert_eq!(outcome.verdict, expected, "{:02x?}\n{}", input.packet, super::listing(program));
        assert_eq!(outcome.packet, input.packet);
        taken += usize::from(expected == Verdict::Pass);
    }
    taken
}

/// The same of packets that are as long as they were.
#[track_caller]
fn check_packets(program: &[Instruction], packets: &[Vec<u8>]) -> usize {
    check(program, &packets.iter().map(|packet| Input::new(packet)).collect::<Vec<_>>())
}

/// A text's errors, as they are shown.
#[track_caller]
fn refused(text: &str) -> String {
    match compile(&Source::new("x.bpf", text), &ProgramOptions::default()) {
        Ok(_) => panic!("this is taken:\n{text}"),
        Err(errors) => {
            // Every place can be shown.
            let _: String = Diagnostics::to_string(&errors);
            errors.render()
        }
    }
}
