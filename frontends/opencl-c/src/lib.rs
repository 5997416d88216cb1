//! OpenCL C in: the filter's text becomes one naga module. `docs/opencl-c.md` says which of the
//! language there is.
//!
//! [`preprocessor`] → `parser` → `check` → `lower`, each with a result that the next takes as it
//! is: tokens, a syntax tree (`ast`), a tree in which everything has a type and nothing is left to be
//! wrong but where pointers point (`tree`), a module. A stage that found errors is the last.

mod ast;
mod check;
mod errors;
pub mod files;
mod foreign;
mod lexer;
mod library;
mod lower;
mod parser;
pub mod preprocessor;
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
/// [`COMPILE_STACK_BYTES`](super::COMPILE_STACK_BYTES) bytes. The options' parameters are macros that are set before
/// the text begins, as a compiler's `-D` does.
///
/// # Errors
/// Everything that is wrong with the text, with its place.
pub fn compile(
    source: &Source,
    options: &ProgramOptions,
    includes: &mut (dyn Includes + Send),
) -> Result<Program, Diagnostics> {
    run_on_large_stack(source, || compile_here(source, options, includes))?
}

/// [`compile`] on the stack that there is.
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
        return Err(errors.finish(files));
    }
    let Some(filter) = check::check(&unit, names, maps, &mut errors) else {
        return Err(errors.finish(files));
    };
    let Some(module) = lower::lower(&filter, names, files, maps, &mut errors) else {
        if errors.is_empty() {
            errors.whole("the compiler itself failed on this text: it has no module, and no errors", "");
        }
        return Err(errors.finish(files));
    };
    if cfg!(debug_assertions) {
        // What is wrong with a text has been said by now.
        let mut validator = Validator::new(ValidationFlags::all(), CAPABILITIES);
        validator.validate(&module).unwrap_or_else(|error| panic!("{error:?}"));
    }
    // The parameters are in the text by now.
    let options = ProgramOptions { parameters: Vec::new(), ..options.clone() };
    // The maps' places are in the filter's own file, which the joined text begins with.
    let program = Program::new(&files.joined(), module, maps.clone(), &options)
        .map_err(|errors| files.with_inclusions(errors))?;
    Ok(program.with_parameters(preprocessed.parameters))
}

#[cfg(test)]
mod tests;
