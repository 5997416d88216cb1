//! Compiling filters for tests.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;

use portcullis_core::diagnostics::Source;
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_wgsl as wgsl;

pub fn program(text: &str) -> Arc<Program> {
    program_with(text, &ProgramOptions::default())
}

pub fn program_with(text: &str, options: &ProgramOptions) -> Arc<Program> {
    let program = wgsl::compile(&Source::new("test.wgsl", text), options);
    Arc::new(program.unwrap_or_else(|errors| panic!("{}\n{text}", errors.render())))
}
