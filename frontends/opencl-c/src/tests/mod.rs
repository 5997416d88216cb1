//! End-to-end tests: texts are compiled and interpreted, and results compared with values worked
//! out by hand.

mod control;
mod diagnostics;
mod hostile;
mod maps;
mod memory;
mod values;

use std::sync::Arc;

use super::compile;
use super::files::NoIncludes;
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::interp::{Interpreter, Outcome};
use portcullis_core::packet::Metadata;
use portcullis_core::program::{Program, ProgramOptions};

fn compile_text(text: &str, parameters: &[(&str, &str)]) -> Result<Program, Diagnostics> {
    let parameters = parameters.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let options = ProgramOptions::default().with_parameters(parameters);
    compile(&Source::new("test.cl", text), &options, &mut NoIncludes)
}

fn run_with(text: &str, parameters: &[(&str, &str)], packet: &[u8], metadata: &Metadata) -> Outcome {
    let program = compile_text(text, parameters).unwrap_or_else(|errors| panic!("{}\n{text}", errors.render()));
    let interpreter = Interpreter::new(&Arc::new(program)).unwrap_or_else(|error| panic!("{error}\n{text}"));
    interpreter.run(packet, metadata).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run(text: &str, packet: &[u8]) -> Outcome {
    run_with(text, &[], packet, &Metadata::default())
}

/// A filter with `inside` as its body, after `outside`.
fn filter(outside: &str, inside: &str) -> String {
    format!("{outside}\nuint xdp_filter(__global uchar *pkt, uint len) {{ {inside} return XDP_PASS; }}")
}

/// The value of an expression, converted to `long`. `zero` is 0 and `one` is 1, but unknown at
/// compile time.
fn value(outside: &str, before: &str, expression: &str) -> i64 {
    let inside = format!("int zero = pkt[0], one = pkt[1]; {before}\n*(__global long *)(pkt + 8) = ({expression});");
    let mut packet = vec![0u8; 64];
    packet[1] = 1;
    let outcome = run(&filter(outside, &inside), &packet);
    i64::from_le_bytes(outcome.packet[8..16].try_into().unwrap())
}

/// All error messages, and the rendered report.
fn errors(text: &str) -> (Vec<String>, String) {
    match compile_text(text, &[]) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => (errors.errors.iter().map(|error| error.message.clone()).collect(), errors.render()),
    }
}
