//! WGSL in: the filter's text with the prelude behind it becomes one naga module.

mod integers;
mod scan;
mod tokens;
mod weigh;

use naga::front::wgsl::{Frontend, Options, ParseError};

use portcullis_core::diagnostics::too_long;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, MAX_SOURCE, Source};
use portcullis_core::map::{self, declare::Comments};
use portcullis_core::program::{CAPABILITIES, Program, ProgramOptions};
use portcullis_core::program::{FILTER, prelude};
use portcullis_core::stack::on_large_stack;

pub use scan::{MAX_BRACKETS, MAX_DECLARATIONS, MAX_DEPTH};
pub use weigh::{MAX_CONSTANT_WEIGHT, MAX_TYPE_WEIGHT};

/// Parses, validates and analyses a filter, on a thread with a stack of
/// [`LARGE_STACK`](portcullis_core::stack::LARGE_STACK) bytes.
///
/// # Errors
/// Everything that is wrong with the text, with its place.
pub fn compile(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    if source.text.len() > MAX_SOURCE {
        return Err(Diagnostics::one(source, too_long()));
    }
    on_large_stack(source, || compile_here(source, options))?
}

/// [`compile`] on the stack that there is.
fn compile_here(source: &Source, options: &ProgramOptions) -> Result<Program, Diagnostics> {
    let refused = |errors| Diagnostics { source: source.clone(), errors };
    let maps = map::declare::declarations(&source.text, Comments::Wgsl).map_err(refused)?;
    let declared = scan::scan(&source.text, !maps.is_empty()).map_err(refused)?;
    let is_filter = |d: &&scan::Declared| source.text[d.name.clone()] == *FILTER;
    match declared.iter().find(is_filter) {
        Some(filter) if filter.keyword == "fn" => {}
        other => return Err(Diagnostics::one(source, no_filter(other.map(|d| d.name.clone())))),
    }
    // Behind the filter, so that the filter's own lines keep their numbers.
    let text = format!("{}\n{}{}", source.text, prelude::TEXT, map::text(&maps));
    let mut frontend = Frontend::new_with_options(Options { parse_doc_comments: false, capabilities: CAPABILITIES });
    let module = frontend.parse(&text).map_err(|error| Diagnostics::one(source, explain(source, &error)))?;
    Program::new(source, module, maps, options)
}

fn no_filter(other: Option<std::ops::Range<usize>>) -> Diagnostic {
    let error = Diagnostic::new(format!("there is no function `{FILTER}`"));
    let error = match other {
        Some(place) => error.at(place, "this is no function"),
        None => error,
    };
    error.note(format!("a filter is `fn {FILTER}(pkt: u32) -> u32 {{ ... }}`"))
}

/// What naga says, with its places: those in the prelude, which stands behind the text, cannot be
/// shown and are put into words.
fn explain(source: &Source, error: &ParseError) -> Diagnostic {
    if error.notes().any(|note| note.contains("recursion limit")) {
        // naga has no place for it. The scan refuses what is known to lead here, but for chains of
        // `*` and `&` on the left of an assignment.
        return Diagnostic::new("the text nests deeper than the parser can follow");
    }
    let mut diagnostic = Diagnostic::new(error.message().trim_end_matches('.'));
    let mut beyond = false;
    for (span, message) in error.labels() {
        // Where naga has nothing to add to the message itself.
        let message = if message == "see msg" { "" } else { message };
        match span.to_range() {
            Some(range) if range.start < source.text.len() => diagnostic = diagnostic.at(range, message),
            Some(_) => beyond = true,
            None => {}
        }
    }
    if beyond {
        diagnostic = diagnostic.note("the other place is in the prelude, which is part of every filter");
    }
    error.notes().fold(diagnostic, |diagnostic, note| diagnostic.note(note))
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
