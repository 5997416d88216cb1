//! Front end for OpenCL C: compiles the filter's text to one naga module. `docs/guide/opencl-c.md`
//! describes the supported subset of the language.
//!
//! The stages are [`preprocessor`] → `parser` → `check` → `lower`. They exchange tokens, a syntax
//! tree (`ast`), a typed tree (`tree`) in which only the targets of pointers can still be wrong,
//! and the module. Compilation stops after the first stage that reports errors.

mod ast;
mod check;
mod errors;
pub mod files;
mod lexer;
mod library;
mod lower;
mod parser;
pub mod preprocessor;
mod suggestions;
pub mod token;
mod tree;
mod types;

use naga::valid::{ValidationFlags, Validator};

use errors::Errors;
use files::Includes;
use portcullis_core::diagnostics::{Diagnostics, Source};
use portcullis_core::program::{CAPABILITIES, Program, ProgramOptions};
use portcullis_core::stack::run_on_large_stack;

pub use ast::MAX_DEPTH;

/// Preprocesses, parses, checks, lowers and analyses a filter, on a thread with a stack of
/// [`COMPILE_STACK_BYTES`](portcullis_core::stack::COMPILE_STACK_BYTES) bytes. The options'
/// parameters become macros that are defined before the text starts, like a compiler's `-D`.
///
/// # Errors
/// All errors that the last stage reached has found in the text, with their places.
pub fn compile(
    source: &Source,
    options: &ProgramOptions,
    includes: &mut (dyn Includes + Send),
) -> Result<Program, Diagnostics> {
    run_on_large_stack(source, || compile_here(source, options, includes))?
}

/// [`compile`] on the current thread's stack.
fn compile_here(
    source: &Source,
    options: &ProgramOptions,
    includes: &mut dyn Includes,
) -> Result<Program, Diagnostics> {
    let preprocessed = preprocessor::preprocess(source, &options.parameters, includes)?;
    let (names, files, maps) = (&preprocessed.names, &preprocessed.files, &preprocessed.maps);
    let mut errors = Errors::default();
    let unit = parser::parse(&preprocessed.tokens, names, &mut errors);
    if !errors.is_empty() {
        return Err(errors.into_diagnostics(files));
    }
    let Some(filter) = check::check(&unit, names, maps, &mut errors) else {
        return Err(errors.into_diagnostics(files));
    };
    let Some(module) = lower::lower(&filter, names, files, maps, &mut errors) else {
        if errors.is_empty() {
            errors.add_global("the compiler itself failed on this text: it has no module, and no errors", "");
        }
        return Err(errors.into_diagnostics(files));
    };
    if cfg!(debug_assertions) {
        // All errors of the text have been reported by now: an invalid module is a bug of this
        // front end.
        let mut validator = Validator::new(ValidationFlags::all(), CAPABILITIES);
        validator.validate(&module).unwrap_or_else(|error| panic!("{error:?}"));
    }
    // The preprocessor has applied the parameters.
    let options = options.clone().with_parameters(Vec::new());
    // Places of maps are in the filter's own file, which the joined text starts with.
    let program = Program::new(&files.joined(), module, maps.clone(), &options)
        .map_err(|errors| files.add_inclusion_notes(errors))?;
    Ok(program.with_parameters(preprocessed.parameters))
}

#[cfg(test)]
mod tests;
