//! Front end for WGSL: parses the filter's text, followed by the prelude, into one naga module.

mod const_integers;
mod declaration;
mod expanded_size;
mod lexer;
mod scan;

use naga::front::wgsl::{Frontend, Options, ParseError};

use portcullis_core::diagnostics::too_long;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, MAX_SOURCE_BYTES, Source};
use portcullis_core::map;
use portcullis_core::program::map_declarations::{self, CommentSyntax};
use portcullis_core::program::{CAPABILITIES, Program, ProgramOptions};
use portcullis_core::program::{FILTER_FUNCTION, prelude};
use portcullis_core::stack::run_on_large_stack;

pub use expanded_size::{MAX_CONSTANT_EXPRESSIONS, MAX_TYPE_SCALARS};
pub use scan::{MAX_BRACKETS, MAX_DECLARATIONS, MAX_DEPTH};

/// Parses, validates and analyses a filter, on a thread with a stack of
/// [`COMPILE_STACK_BYTES`](portcullis_core::stack::COMPILE_STACK_BYTES) bytes.
///
/// # Errors
/// All errors of the text that were found, with their places.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    if source.text.len() > MAX_SOURCE_BYTES {
        return Err(Diagnostics::one(source, too_long()));
    }
    run_on_large_stack(source, || compile_here(source, options))?
}

/// [`compile`] on the current thread's stack.
fn compile_here(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let rejected = |errors| Diagnostics { source: source.clone(), errors };
    let maps = map_declarations::declarations(&source.text, CommentSyntax::Wgsl).map_err(rejected)?;
    let declared = scan::scan(&source.text, !maps.is_empty()).map_err(rejected)?;
    let is_filter = |d: &&declaration::Declaration| source.text[d.name.clone()] == *FILTER_FUNCTION;
    match declared.iter().find(is_filter) {
        Some(filter) if filter.keyword == "fn" => {}
        other => return Err(Diagnostics::one(source, no_filter(other.map(|d| d.name.clone())))),
    }
    // The prelude follows the filter so that the filter's lines keep their numbers.
    let text = format!("{}\n{}{}", source.text, prelude::TEXT, map::wgsl_text(&maps));
    let mut frontend = Frontend::new_with_options(Options { parse_doc_comments: false, capabilities: CAPABILITIES });
    let module = frontend.parse(&text).map_err(|error| Diagnostics::one(source, explain(source, &error)))?;
    Program::new(source, module, maps, options)
}

fn no_filter(other: Option<std::ops::Range<usize>>) -> Diagnostic {
    let error = Diagnostic::new(format!("there is no function `{FILTER_FUNCTION}`"));
    let error = match other {
        Some(place) => error.at(place, "this is not a function"),
        None => error,
    };
    error.note(format!("a filter is `fn {FILTER_FUNCTION}(pkt: u32) -> u32 {{ ... }}`"))
}

/// Converts naga's error. Places in the prelude, which follows the filter's text, cannot be shown
/// and become a note.
fn explain(source: &Source, error: &ParseError) -> Diagnostic {
    if error.notes().any(|note| note.contains("recursion limit")) {
        // naga reports no place. The scan rejects all known causes but chains of `*` and `&` on the
        // left of an assignment.
        return Diagnostic::new("the text nests deeper than the parser supports");
    }
    let mut diagnostic = Diagnostic::new(error.message().trim_end_matches('.'));
    let mut in_prelude = false;
    for (span, message) in error.labels() {
        // naga's label that has nothing to add to the message.
        let message = if message == "see msg" { "" } else { message };
        match span.to_range() {
            Some(range) if range.start < source.text.len() => diagnostic = diagnostic.at(range, message),
            Some(_) => in_prelude = true,
            None => {}
        }
    }
    if in_prelude {
        diagnostic = diagnostic.note("the other place is in the prelude, which is compiled into every filter");
    }
    error.notes().fold(diagnostic, |diagnostic, note| diagnostic.note(note))
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verifier_tests;
