//! Compiles filters from source text that must be valid.

use std::sync::Arc;

use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_opencl_c as opencl_c;
use portcullis_opencl_c::files::NoIncludes;
use portcullis_wgsl as wgsl;

/// Compiles a WGSL filter with default options.
///
/// # Panics
/// With the diagnostics, if the text does not compile.
pub fn in_wgsl(name: &str, text: &str) -> Arc<Program> {
    in_wgsl_with(name, text, &ProgramOptions::default())
}

/// Compiles a WGSL filter with the given parameters and fuel.
///
/// # Panics
/// As [`in_wgsl`].
pub fn in_wgsl_with(name: &str, text: &str, options: &ProgramOptions) -> Arc<Program> {
    compiled(wgsl::compile(&Source::new(name, text), options), text)
}

/// Compiles an OpenCL C filter that includes no files, with default options.
///
/// # Panics
/// As [`in_wgsl`].
pub fn in_opencl_c(name: &str, text: &str) -> Arc<Program> {
    in_opencl_c_with(name, text, &ProgramOptions::default())
}

/// Compiles an OpenCL C filter with the given parameters and fuel.
///
/// # Panics
/// As [`in_wgsl`].
pub fn in_opencl_c_with(name: &str, text: &str, options: &ProgramOptions) -> Arc<Program> {
    compiled(opencl_c::compile(&Source::new(name, text), options, &mut NoIncludes), text)
}

/// Writes a map key in WGSL, given an expression for each of its words.
pub fn wgsl_key(words: &[String]) -> String {
    let list = words.join(", ");
    match words.len() {
        1 => list,
        count @ 2..=4 => format!("vec{count}<u32>({list})"),
        count => format!("array<u32, {count}>({list})"),
    }
}

fn compiled(program: Result<Program, Diagnostics>, text: &str) -> Arc<Program> {
    Arc::new(program.unwrap_or_else(|errors| panic!("{}\n{text}", errors.render())))
}
