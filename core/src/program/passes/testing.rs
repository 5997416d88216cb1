//! Test support: filters before and after lowering, on the reference interpreter.

use std::sync::Arc;

use super::{Lowering, lower};
use crate::interp::{Interpreter, Outcome};
use crate::packet::Metadata;
use crate::program::Program;
use crate::testing::program;

/// The program with its lowered module in place of the original.
fn lower_program(program: &Program, lowering: Lowering) -> Program {
    let lowered = lower(program, lowering).unwrap_or_else(|e| panic!("{e}\n{}", program.source().text));
    let mut after = program.clone();
    after.module = lowered.module;
    after.info = lowered.info;
    after.filter = lowered.filter;
    after.internals = lowered.internals;
    after.intrinsics = lowered.intrinsics;
    after.prelude = lowered.prelude;
    after
}

/// A filter before and after lowering.
pub(super) struct Pair {
    text: String,
    before: Interpreter,
    after: Interpreter,
    /// Whether lowering may add speculative reads.
    speculates: bool,
}

impl Pair {
    pub(super) fn new(text: &str, lowering: Lowering) -> Pair {
        let program = program(text);
        let interpreter = |program: &Arc<Program>| Interpreter::new(program).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let after = Arc::new(lower_program(&program, lowering));
        let speculates = lowering.if_convert || lowering.if_convert_all;
        Pair { speculates, text: text.into(), before: interpreter(&program), after: interpreter(&after) }
    }

    /// The outcome of a packet, checked to be the same before and after.
    pub(super) fn run(&self, packet: &[u8]) -> Outcome {
        let run = |interpreter: &Interpreter| {
            interpreter
                .run(packet, &Metadata::new(packet.len() as u32, 1, 0x1234_5678_9abc_def0))
                .unwrap_or_else(|e| panic!("{e}\n{}", self.text))
        };
        let (before, mut after) = (run(&self.before), run(&self.after));
        if self.speculates && after.trace.read_end > before.trace.read_end {
            after.trace.read_end = before.trace.read_end;
        }
        assert_eq!(after, before, "packet {packet:x?}\n{}", self.text);
        before
    }
}
