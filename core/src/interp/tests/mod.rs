//! Tests of the interpreter against values computed by hand and by Rust.

mod builtins;
mod control;
mod maps;
mod operands;
mod operators;
mod prelude;
mod session;

use std::sync::Arc;

use operands::{load, store};

use super::{Interpreter, Outcome};
use crate::packet::Metadata;
use crate::program::{Program, ProgramOptions};
use crate::testing::{Random, program_with};

/// Compiles a filter, or fails with its diagnostics.
fn program(text: &str, fuel: u32) -> Arc<Program> {
    program_with(text, &ProgramOptions { fuel, ..ProgramOptions::default() })
}

fn interpreter(text: &str) -> Interpreter {
    let program = program(text, ProgramOptions::default().fuel);
    Interpreter::new(&program).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run(text: &str, packet: &[u8]) -> Outcome {
    interpreter(text).run(packet, &Metadata::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Evaluates `expression`, over `a`, `b` and `c` of type `ty`, for each of `cases`, and returns the
/// results widened to 64 bits. The operands come from the packet, so that nothing is folded.
fn evaluate(prologue: &str, result: &str, expression: &str, ty: &str, cases: &[[u64; 3]]) -> Vec<u64> {
    let text = format!(
        "{prologue}\nfn xdp_filter(pkt: u32) -> u32 {{
            let a = {}; let b = {}; let c = {};
            let r: {result} = {expression};
            {}
            return XDP_PASS;
        }}",
        load(ty, 0),
        load(ty, 8),
        load(ty, 16),
        store("r", result, 24)
    );
    let interpreter = interpreter(&text);
    let one = |case: &[u64; 3]| {
        let mut packet: Vec<u8> = case.iter().flat_map(|v| v.to_le_bytes()).collect();
        packet.extend([0; 8]);
        let outcome = interpreter.run(&packet, &Metadata::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        u64::from_le_bytes(outcome.packet[24..32].try_into().unwrap())
    };
    cases.iter().map(one).collect()
}
