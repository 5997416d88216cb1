//! Filters out of texts that compile.

use std::sync::Arc;

use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::program::{Program, ProgramOptions};
use portcullis_opencl_c as opencl_c;
use portcullis_opencl_c::files::NoIncludes;
use portcullis_wgsl as wgsl;

/// A filter in WGSL.
///
/// # Panics
/// With the compiler's words, where it is none.
pub fn in_wgsl(name: &str, text: &str) -> Arc<Program> {
    in_wgsl_with(name, text, &ProgramOptions::default())
}

/// The same with parameters or fuel of its own.
///
/// # Panics
/// As [`in_wgsl`].
pub fn in_wgsl_with(name: &str, text: &str, options: &ProgramOptions) -> Arc<Program> {
    compiled(wgsl::compile(&Source::new(name, text), options), text)
}

/// A filter in OpenCL C that includes no files.
///
/// # Panics
/// As [`in_wgsl`].
pub fn in_opencl_c(name: &str, text: &str) -> Arc<Program> {
    in_opencl_c_with(name, text, &ProgramOptions::default())
}

/// The same with parameters or fuel of its own.
///
/// # Panics
/// As [`in_wgsl`].
pub fn in_opencl_c_with(name: &str, text: &str, options: &ProgramOptions) -> Arc<Program> {
    compiled(opencl_c::compile(&Source::new(name, text), options, &mut NoIncludes), text)
}

fn compiled(program: Result<Program, Diagnostics>, text: &str) -> Arc<Program> {
    Arc::new(program.unwrap_or_else(|errors| panic!("{}\n{text}", errors.render())))
}
